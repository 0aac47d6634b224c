//! Hooks may differ between ranks unless the calls say that they are the same. Also: the explanation of a builder.

use crate::case::{SMALL, threads};
use std::collections::BTreeSet;
use tilewire::collective::Mismatch;
use tilewire::link::{ShmTransport, Transport};
use tilewire::transport::Rank;
use tilewire::{RunError, Tensor, all_gather, all_reduce, sendrecv};

const WHAT: &str = "the hooks (same_hooks)";

/// A call of one rank of three. Its hook has this constant, and it may ask for equal hooks.
type Run = fn(&ShmTransport, f32, bool) -> Result<Vec<f32>, RunError>;

fn gather(link: &ShmTransport, factor: f32, same: bool) -> Result<Vec<f32>, RunError> {
    let out = Tensor::<f32>::zeros(3);
    let op = all_gather(link, &out, &Tensor::from_slice(&[1.0])).produce(|c| c.input.load(c.pos()) * factor);
    if same {
        op.same_hooks().run()?
    } else {
        op.run()?
    }
    Ok(out.to_vec())
}

fn reduce(link: &ShmTransport, factor: f32, same: bool) -> Result<Vec<f32>, RunError> {
    let out = Tensor::<f32>::zeros(1);
    let op = all_reduce(link, &out, &Tensor::from_slice(&[1.0])).produce(|c| c.input.load(c.pos()) * factor);
    if same {
        op.same_hooks().run()?
    } else {
        op.run()?
    }
    Ok(out.to_vec())
}

fn shift(link: &ShmTransport, factor: f32, same: bool) -> Result<Vec<f32>, RunError> {
    let (out, me) = (Tensor::<f32>::zeros(1), link.rank());
    let op = sendrecv(link, &out, &Tensor::from_slice(&[1.0]), me.after(1, 3), me.after(2, 3));
    let op = op.consume(|c, x| c.output.store(c.pos(), x * factor));
    if same {
        op.same_hooks().run()?
    } else {
        op.run()?
    }
    Ok(out.to_vec())
}

/// The result of each of three ranks with these constants, some of which ask for `same_hooks`.
fn all(run: Run, factors: [f32; 3], same: [bool; 3]) -> Vec<Result<Vec<f32>, RunError>> {
    threads(3, "same hooks", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let me = world.rank().index();
        let ran = run(&link, factors[me], same[me]);
        world.bootstrap().barrier("ran", world.deadline())?;
        Ok(ran)
    })
}

#[test]
fn a_constant_that_depends_on_the_rank_is_legal() {
    let right = |run: Run, must: [&[f32]; 3]| {
        for (is, must) in all(run, [1.0, 2.0, 4.0], [false; 3]).into_iter().zip(must) {
            assert_eq!(is.unwrap(), must);
        }
    };
    right(gather, [&[1.0, 2.0, 4.0]; 3]);
    right(reduce, [&[7.0]; 3]);
    right(shift, [&[1.0], &[2.0], &[4.0]]);
}

#[test]
fn hooks_that_are_said_to_be_the_same_and_are_run() {
    for run in [gather, reduce, shift] as [Run; 3] {
        assert!(all(run, [2.0; 3], [true; 3]).iter().all(Result::is_ok));
    }
}

#[test]
fn hooks_that_are_said_to_be_the_same_and_differ_are_an_error_on_all_ranks() {
    for run in [gather, reduce, shift] as [Run; 3] {
        for (factors, same) in [([1.0, 1.0, 2.0], [true; 3]), ([1.0; 3], [true, true, false])] {
            let outcomes = all(run, factors, same);
            for outcome in &outcomes {
                let Err(RunError::Mismatch(mismatch)) = outcome else { panic!("{outcomes:?}") };
                let Mismatch { rank, peer, what, mine, theirs, .. } = &**mismatch;
                assert!(what == WHAT && mine != theirs, "{mismatch}");
                // Rank 2 is the one that differs from the others.
                assert!((*rank == Rank::new(2)) != (*peer == Rank::new(2)), "{mismatch}");
                assert_eq!(mine == "any" || theirs == "any", !same[2], "{mismatch}");
            }
        }
    }
}

#[test]
fn what_it_would_do_is_said_with_its_line_its_ways_and_a_hash_of_its_hooks() {
    let texts = threads(3, "explain", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (inp, out, total) = (Tensor::<f32>::zeros(2000), Tensor::<f32>::zeros(6000), Tensor::<f32>::zeros(2000));
        let gather = |factor: f32| all_gather(&link, &out, &inp).produce(move |c| c.input.load(c.pos()) * factor);
        let sum = |factor: f32| all_reduce(&link, &total, &inp).produce(move |c| c.input.load(c.pos()) * factor);
        let texts = [gather(2.0).explain()?, gather(2.0).explain()?, gather(3.0).explain()?];
        let sums = [sum(2.0).explain()?, sum(2.0).explain()?, sum(3.0).explain()?];
        // Nothing was built, so nothing must be launched.
        link.close()?;
        Ok([texts, sums])
    });
    let hash = |text: &str| text.rsplit_once("hooks ").map(|(_, hash)| hash.trim().to_string()).expect("a hash");
    for (rank, [gathers, sums]) in texts.iter().enumerate() {
        let text = &gathers[0];
        assert!(["all_gather of 2000 f32", file!(), "staged"].iter().all(|word| text.contains(word)), "{text}");
        for peer in (0..3).filter(|peer| *peer != rank) {
            assert_eq!(text.matches(&format!("rank {peer}:")).count(), 2, "to it and from it: {text}");
        }
        assert!(sums[0].contains("all_reduce of 2000 f32") && sums[0].contains(file!()), "{}", sums[0]);
        for [first, again, other] in [gathers, sums] {
            assert_eq!(hash(first), hash(again));
            assert_ne!(hash(first), hash(other));
        }
    }
    let hashes: BTreeSet<String> = texts.iter().map(|[gathers, _]| hash(&gathers[0])).collect();
    assert_eq!(hashes.len(), 1, "ranks can compare them");
}
