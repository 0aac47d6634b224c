//! Puts into windows by kernels of one's own: clean and decided among near and far ranks, and no mistake about their
//! signals goes unnoticed.

use crate::checker::clean;
use tilewire::check::{Mutation, Settings};
use tilewire::rehearsal::Rehearsal;
use tilewire_testkit::shipped::puts::in_chunks;
use tilewire_testkit::shipped::{Case, posted, shipped};

fn puts(ranks: usize, blocks: usize) -> Vec<Case> {
    let all = shipped(ranks, blocks).into_iter().chain(posted(ranks, blocks));
    all.filter(|case| case.collective == "sendrecv" && case.name.starts_with("put")).collect()
}

#[test]
fn puts_are_clean_and_decided() {
    for (ranks, blocks) in [(1, 1), (2, 1), (2, 3), (3, 2), (5, 1)] {
        let cases = puts(ranks, blocks);
        assert_eq!(cases.len(), 4 * [1, 2, 3][(ranks - 1).min(2)]);
        for case in cases {
            println!("{}: {ranks} ranks, {blocks} blocks", case.name);
            clean(&case.plan().unwrap().verify(&Settings::default()));
        }
    }
}

/// Two copies of a role share a put, on a GPU; the CPU engine runs one.
#[test]
fn chunks_of_several_copies_are_clean_and_decided() {
    for domains in [&[&[0usize, 1, 2][..]][..], &[&[0, 2], &[1]], &[&[0], &[1], &[2]]] {
        for blocks in [1, 2] {
            let plan = in_chunks(&Rehearsal::small(3, blocks).mesh(domains), 3, blocks).unwrap();
            clean(&plan.verify(&Settings::default()));
            let near = domains.len() == 1;
            let of = |mutation| plan.mutants(mutation);
            let mutants = [Mutation::SignalBeforePut, Mutation::ReleaseToRelaxed].into_iter().flat_map(of);
            let mutants: Vec<_> = mutants.collect();
            assert!(!near || !mutants.is_empty());
            for mutant in mutants {
                assert!(!mutant.verify(&Settings::default()).is_clean(), "{mutant} is missed");
            }
        }
    }
}

/// The signal of a put comes before its bytes, shows nothing of them, or overtakes them.
#[test]
fn a_signal_before_the_put_of_a_window_is_caught() {
    const NEAR: [Mutation; 2] = [Mutation::SignalBeforePut, Mutation::ReleaseToRelaxed];
    const FAR: [Mutation; 2] = [Mutation::NoticeBeforeData, Mutation::OvertakingSignal];
    let mut made = [0; 2];
    for case in puts(2, 1).into_iter().chain(puts(3, 1)) {
        let plan = case.plan().unwrap();
        for (mutations, made) in [NEAR, FAR].into_iter().zip(&mut made) {
            for mutant in mutations.into_iter().flat_map(|mutation| plan.mutants(mutation)) {
                *made += 1;
                assert!(!mutant.verify(&Settings::default()).is_clean(), "{}: {mutant} is missed", case.name);
            }
        }
    }
    assert!(made.iter().all(|made| *made >= 10), "{made:?}");
}
