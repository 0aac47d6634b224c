//! Programs that poll in loops, by an atomic, a load or a test. They poll for another role of the block, another block
//! or another rank. The signaller may be on the thread that polls.

use super::{Case, Make, Room, disagreement, is_clean};
use std::sync::Arc;
use tilewire::hook::{RoleCtx, Slots, View};
use tilewire::ir::{Access, Order, Scope};
use tilewire::{Tensor, kernel};

/// The way in which a party polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Atomic,
    /// By an atomic, in a loop that counts its tries.
    CountedAtomic,
    Test,
}

/// The signaller, and the party that polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Between {
    /// The polling role comes first.
    Roles,
    /// Another role of the block must signal a peer before that peer signals.
    RolesByAPeer,
    Blocks,
    Ranks,
}

#[derive(Clone, Copy)]
struct Kit<'t> {
    by: By,
    slots: Slots<'t>,
    words: View<'t, u64>,
    out: View<'t, u64>,
}

impl<'t> Kit<'t> {
    fn poll(&self, r: &RoleCtx<'t>) {
        let flag = || self.words.atomic_add(0, 0u64, Order::Acquire, Scope::System);
        match self.by {
            By::Atomic => r.while_(|| flag().eq(0u64), || {}),
            By::CountedAtomic => {
                let tries = r.var(0i64);
                r.while_(|| flag().eq(0u64), || tries.set(tries.get() + 1));
            }
            By::Test => r.while_(|| !r.test(self.slots.slot(0, 1), 1), || {}),
        }
        self.out.store(0, self.words.load(1));
    }

    fn tell(&self, r: &RoleCtx<'t>) {
        self.words.store(1, 9u64);
        match self.by {
            By::Test => r.signal(self.slots.slot(0, 1), 1),
            _ => _ = self.words.atomic_add(0, 1u64, Order::Release, Scope::System),
        }
    }
}

fn make(by: By, between: Between, room: &Room) -> Case {
    let (words, slots) = (room.shared(128), room.shared(2 * 128));
    let ranks = if matches!(between, Between::Roles | Between::Blocks) { 1 } else { 2 };
    let outs: Vec<Tensor<u64>> = (0..ranks).map(|_| Tensor::zeros(1)).collect();
    let rank = |rank: usize| {
        let traced = kernel("polls", |k| {
            let kit = Kit {
                by,
                slots: k.slots("slots", std::slice::from_ref(&slots), 128),
                words: k.buffer::<u64>("words", std::slice::from_ref(&words), Access::InOut).bank(0),
                out: k.output(&outs[rank]),
            };
            match (between, rank) {
                (Between::Roles, _) => {
                    k.role("poll", 1).run(|r| kit.poll(r));
                    k.role("tell", 1).run(|r| kit.tell(r));
                }
                (Between::Blocks, _) => {
                    k.blocks(2);
                    k.main(|r| r.if_else(r.block().eq(0), || kit.poll(r), || kit.tell(r)));
                }
                (Between::RolesByAPeer, 0) => {
                    k.role("poll", 1).run(|r| kit.poll(r));
                    k.role("ask", 1).run(|r| r.signal(kit.slots.slot(0, 0), 1));
                }
                (Between::RolesByAPeer, _) => k.main(|r| {
                    r.wait(kit.slots.slot(0, 0), 1);
                    kit.tell(r);
                }),
                (Between::Ranks, 0) => k.main(|r| kit.poll(r)),
                (Between::Ranks, _) => k.main(|r| kit.tell(r)),
            }
        });
        traced.expect("a right program")
    };
    let own = outs.iter().map(|out| vec![out.memory().clone()]).collect();
    Case { launches: vec![(0..ranks).map(rank).collect()], shared: vec![words], own }
}

#[test]
fn whoever_polls_lets_others_run() {
    for by in [By::Atomic, By::CountedAtomic, By::Test] {
        for between in [Between::Roles, Between::RolesByAPeer, Between::Blocks, Between::Ranks] {
            let made: Make = Arc::new(move |room| make(by, between, room));
            let (clean, report) = is_clean(&made(&Room::apart()));
            assert!(clean, "{by:?} {between:?}: {report}");
            assert_eq!(disagreement(&made, 4, true), None, "{by:?} {between:?}");
        }
    }
}
