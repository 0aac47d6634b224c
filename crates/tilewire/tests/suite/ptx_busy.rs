//! Launches that run at the same time on one transport find each other by the busy word, where the PTX is written with
//! it. The text without it stays as it was, which snapshots and fingerprints judge.

use proptest::prelude::*;
use std::slice::from_ref;
use tilewire::ir::{Kernel, simplify};
use tilewire::ptx::abi::{self, BusyEntry};
use tilewire::ptx::{Module, Options, Target, emit};
use tilewire::{Tensor, kernel};
use tilewire_testkit::ptx_machine::{self, Memory};
use tilewire_testkit::simulated::Launch;
use tilewire_testkit::{kernels, ptxas};

const BLOCKS: u32 = 3;
/// Role copies of a block.
const COPIES: u16 = 4;

/// Roles of one warp and of several, one that waits and one that only writes.
fn busy_kernel() -> Kernel {
    let (x, go) = (Tensor::<i64>::zeros(3 * BLOCKS as usize), Tensor::<u64>::zeros(1));
    let traced = kernel("busy", |k| {
        k.blocks(BLOCKS);
        let (x, go) = (k.output(&x), k.slots("go", from_ref(go.memory()), 8));
        k.role("waits", 1).copies(2, |r| {
            r.wait(go.slot(0, 0), 1i64);
            x.store(r.block() * 3 + r.copy(), r.block() + 1);
        });
        k.role("writes", 2).run(|r| x.store(r.block() * 3 + 2, r.block() + 10));
        k.role("does nothing", 1).run(|_| {});
    });
    simplify(&traced.unwrap().kernel)
}

fn module(target: Target) -> Module {
    emit(&busy_kernel(), Options { busy: true, ..Options::new(target) }).unwrap()
}

/// The memory of a transport's launches: a busy word, the slot that they wait for, and what each of them writes.
struct Transport {
    memory: Memory,
    busy: u64,
    go: u64,
}

impl Transport {
    fn new(go: u64) -> Self {
        let mut memory = Memory::default();
        let (busy, go) = (memory.add(vec![0; 8]), memory.add(go.to_le_bytes().to_vec()));
        Transport { memory, busy, go }
    }

    fn busy_word(&self) -> u64 {
        self.memory.word(0, 0)
    }

    /// A launch with this tag, and the piece that it writes.
    fn launch(&mut self, tag: u16) -> (Launch, usize) {
        let mut launch = Launch::new(&mut self.memory, 0, 1, u64::MAX);
        launch.words.push(self.busy);
        launch.words.extend(BusyEntry::new(tag, BLOCKS as u16 * COPIES).words());
        let piece = self.memory.pieces.len();
        let x = self.memory.add(vec![0; 24 * BLOCKS as usize]);
        launch.words.extend([x, self.go]);
        (launch, piece)
    }

    fn written(&self, piece: usize) -> Vec<u64> {
        (0..3 * BLOCKS as usize).map(|k| self.memory.word(piece, 8 * k)).collect()
    }
}

#[test]
fn launches_in_order_leave_the_word_as_they_found_it() {
    for target in Target::ALL {
        let (module, mut transport) = (module(target), Transport::new(1));
        for tag in [1, 1, 2, u16::MAX, 1] {
            let (launch, x) = transport.launch(tag);
            ptx_machine::run(&module, &launch.args(), &mut transport.memory).unwrap();
            assert_eq!(transport.busy_word(), 0, "{target}, tag {tag}");
            assert_eq!(transport.written(x), [1, 1, 10, 2, 2, 11, 3, 3, 12], "{target}, tag {tag}");
            assert_eq!([launch.abort, launch.report].map(|piece| transport.memory.word(piece, 0)), [0, 0]);
        }
    }
}

/// The first one waits for a signal that never comes: only the second one, which runs beside it, can end it.
#[test]
fn launches_at_the_same_time_end_both() {
    for target in Target::ALL {
        let (module, mut transport) = (module(target), Transport::new(0));
        let (first, _) = transport.launch(1);
        let (mut second, written) = transport.launch(2);
        // One rank's launches have one abort word.
        second.words[2] = first.words[2];
        let launches = [first.args(), second.args()];
        let both = [(&module, &launches[0][..]), (&module, &launches[1][..])];
        ptx_machine::run_world(&both, &mut transport.memory).unwrap();
        let report = |k: usize| transport.memory.word(second.report, 8 * k);
        assert_eq!(report(0), abi::OVERLAPPED, "{target}");
        // What the tags would be if its own launch alone had entered, and what they were.
        assert_ne!(report(8), report(9));
        assert_eq!(transport.memory.word(first.report, 0), 0, "the first one was told by the abort word");
        assert_ne!(transport.memory.word(first.abort, 0), 0);
        assert_eq!(transport.written(written), [0; 9], "nothing is written beside another launch");
    }
}

/// A launch that was aborted leaves the word, too: the next transport's memory starts from 0, but a graph is replayed.
#[test]
fn a_launch_that_is_aborted_leaves_the_word() {
    let (module, mut transport) = (module(Target::Sm90a), Transport::new(0));
    let (launch, x) = transport.launch(7);
    transport.memory.set_word(launch.abort, 0, abi::ABORTED_BY_PANIC);
    ptx_machine::run(&module, &launch.args(), &mut transport.memory).unwrap();
    assert_eq!((transport.busy_word(), transport.written(x)), (0, vec![0; 9]));
}

#[test]
fn kernels_with_the_word_assemble_for_every_target() {
    if ptxas::find().is_none() {
        return;
    }
    for (name, kernel) in kernels::all().into_iter().chain([("busy", busy_kernel())]) {
        for target in Target::ALL {
            let module = emit(&simplify(&kernel), Options { busy: true, ..Options::new(target) }).unwrap();
            let said = ptxas::assemble(&module.text, target);
            assert!(said.as_ref().is_ok_and(|usage| usage.spills == 0), "{name} for {target}: {said:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any number of role copies of a launch have entered, and some have left: the first one of another launch sees it.
    /// When all have left, nothing is left of them.
    #[test]
    fn the_first_role_copy_beside_another_launch_sees_it(
        tags in (0..=u16::MAX, 0..=u16::MAX),
        role_copies in prop_oneof![1..=4u16, 1..=u16::MAX, Just(u16::MAX)],
        part in 0.0..1.0,
        left in 0.0..1.0,
    ) {
        prop_assume!(tags.0 != tags.1);
        let entry = BusyEntry::new(tags.0, role_copies);
        let entered = 1 + (part * f64::from(role_copies)) as u64;
        let entered = entered.min(role_copies.into());
        // The last one that leaves takes everything back.
        let left = ((left * entered as f64) as u64).min(u64::from(role_copies) - 1);
        let word = entered.wrapping_mul(entry.enters()).wrapping_add(left * BusyEntry::LEAVES);
        let sees = |tag: u16, word: u64| (word & 0xffff) * u64::from(tag) != word >> 32;
        prop_assert!(!sees(tags.0, word), "one of its own");
        prop_assert!(sees(tags.1, word));
        let [enters, last, back] = entry.words();
        prop_assert_eq!((enters, last), (entry.enters(), u64::from(role_copies) - 1));
        let all = (enters + BusyEntry::LEAVES).wrapping_mul(role_copies.into());
        prop_assert_eq!((all - BusyEntry::LEAVES) >> 16 & 0xffff, last, "the last one finds that all others have left");
        prop_assert_eq!(all.wrapping_add(back), 0);
    }
}
