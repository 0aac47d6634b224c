//! Role copies. The CPU engine runs one copy of every role, a GPU all of them. A program must be right with both.

use super::Expect::{AnyFault, Fault};
use super::{Kit, Seen, Shared, check};
use tilewire::hook::RoleCtx;

seeds! {
    two_copies_wait_for_each_other: Fault("deadlock"),
    copy_waits_for_the_next_of_two: Fault("deadlock"),
    copy_waits_for_the_next_of_three: Fault("deadlock"),
    copy_waits_for_the_next_of_four: Fault("deadlock"),
    copy_hands_over_to_the_next: Fault("deadlock"),
    copies_share_steps_by_a_constant: Fault("deadlock"),
    copies_of_two_roles_need_each_other: Fault("deadlock"),
    copy_that_answers_is_the_last: Fault("deadlock"),
    copy_of_a_peer_is_waited_for: Fault("deadlock"),
    copies_leave_elements_unwritten: Fault("unwritten"),
    copies_write_one_slot_of_staging: Fault("race"),
    copies_signal_one_counter: Fault("two-writers"),
    copies_add_up_in_one_word: Fault("race"),
    copies_share_one_start_counter: AnyFault,
}

/// A rank whose only role has copies.
fn with_copies(copies: u32, body: impl for<'t> Fn(&RoleCtx<'t>, Kit<'t>)) -> Seen {
    let s = Shared::new();
    check(&[vec![s.kernel(|k, kit| k.role("all", 1).copies(copies, |r| body(r, kit)))]])
}

/// Copy 0 waits before it signals, and so does copy 1. Nobody continues, however many copies run.
fn two_copies_wait_for_each_other() -> Seen {
    with_copies(2, |r, kit| {
        r.wait(kit.slots.slot(0, 1 - r.copy()), 1);
        r.signal(kit.slots.slot(0, r.copy()), 1);
    })
}

/// Every copy signals and then waits for the next one. With one copy there is no next one.
fn ring_of(copies: u32) -> Seen {
    with_copies(copies, move |r, kit| {
        r.signal(kit.slots.slot(0, r.copy()), 1);
        r.wait(kit.slots.slot(0, (r.copy() + 1) % i64::from(copies)), 1);
    })
}

fn copy_waits_for_the_next_of_two() -> Seen {
    ring_of(2)
}

fn copy_waits_for_the_next_of_three() -> Seen {
    ring_of(3)
}

fn copy_waits_for_the_next_of_four() -> Seen {
    ring_of(4)
}

/// Copy 0 writes and copy 1 continues the work: a pipeline of two copies. One copy alone waits for the other's answer.
fn copy_hands_over_to_the_next() -> Seen {
    with_copies(2, |r, kit| {
        r.if_else(
            r.copy().eq(0),
            || {
                kit.bytes.put(0, 0, 7u64);
                r.signal(kit.slots.slot(0, 0), 1);
                r.wait(kit.slots.slot(0, 1), 1);
            },
            || {
                r.wait(kit.slots.slot(0, 0), 1);
                kit.out.store(0, kit.bytes.get::<u64>(0, 0));
                r.signal(kit.slots.slot(0, 1), 1);
            },
        );
    })
}

/// Copies take steps `copy`, `copy + 2`, … whether there are two copies or one. The receiver waits for all steps.
fn copies_share_steps_by_a_constant() -> Seen {
    let s = Shared::new();
    let send = s.kernel(|k, kit| {
        k.role("send", 1).copies(2, |r| {
            r.for_step(r.copy(), 4, 2, |step| {
                kit.bytes.put(0, step * 8, 7u64);
                r.signal(kit.slots.slot(0, step), 1);
            });
        });
    });
    let receive = s.rank(|r, kit| {
        r.for_(0..4, |step| {
            r.wait(kit.slots.slot(0, step), 1);
            kit.out.store(step, kit.bytes.get::<u64>(0, step * 8));
        });
    });
    check(&[vec![send, receive]])
}

/// Copy g of one role is answered by copy 1 − g of the other.
fn copies_of_two_roles_need_each_other() -> Seen {
    let s = Shared::new();
    let rank = s.kernel(|k, kit| {
        k.role("ask", 1).copies(2, |r| {
            r.signal(kit.slots.slot(0, r.copy()), 1);
            r.wait(kit.slots.slot(0, r.copy() + 2), 1);
        });
        k.role("answer", 1).copies(2, |r| {
            r.wait(kit.slots.slot(0, 1 - r.copy()), 1);
            r.signal(kit.slots.slot(0, 3 - r.copy()), 1);
        });
    });
    check(&[vec![rank]])
}

/// The last of three copies signals for all. A single copy is not the last of three.
fn copy_that_answers_is_the_last() -> Seen {
    let s = Shared::new();
    let send = s.kernel(|k, kit| {
        k.role("send", 1).copies(3, |r| {
            r.signal(kit.slots.slot(0, r.copy()), 1);
            r.if_(r.copy().eq(2), || {
                (0..3).for_each(|copy| r.wait(kit.slots.slot(0, copy), 1));
                r.signal(kit.slots.slot(0, 3), 1);
            });
        });
    });
    let receive = s.rank(|r, kit| r.wait(kit.slots.slot(0, 3), 1));
    check(&[vec![send, receive]])
}

/// Copy g of each rank waits for copy 1 − g of the other.
fn copy_of_a_peer_is_waited_for() -> Seen {
    let s = Shared::new();
    let rank = |me: i64| {
        s.kernel(move |k, kit| {
            k.role("exchange", 1).copies(2, |r| {
                r.signal(kit.slots.slot(0, me * 2 + r.copy()), 1);
                r.wait(kit.slots.slot(0, (1 - me) * 2 + 1 - r.copy()), 1);
            });
        })
    };
    check(&[vec![rank(0), rank(1)]])
}

/// Each copy writes a half and signals for itself. The reader waits for as many copies as run, and reads both halves.
fn copies_leave_elements_unwritten() -> Seen {
    let s = Shared::new();
    let rank = s.kernel(|k, kit| {
        k.role("write", 1).copies(2, |r| {
            r.each(2, |i| kit.bytes.put(0, (r.copy() * 2 + i) * 8, 7u64));
            r.signal(kit.slots.slot(0, r.copy()), 1);
        });
        k.role("read", 1).copies(2, |r| {
            r.if_(r.copy().eq(0), || {
                r.for_(..r.copies(), |copy| r.wait(kit.slots.slot(0, copy), 1));
                r.each(4, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
            });
        });
    });
    check(&[vec![rank]])
}

/// One slot of staging serves all steps. This is right with one copy; two copies overwrite each other.
fn copies_write_one_slot_of_staging() -> Seen {
    with_copies(2, |r, kit| {
        r.for_turns(4, |step| {
            kit.bytes.put(0, 0, step.cast::<u64>());
            kit.out.store(step, kit.bytes.get::<u64>(0, 0));
        });
    })
}

/// One counter serves all steps. This is right with one copy; with two, the counter may go back.
fn copies_signal_one_counter() -> Seen {
    let s = Shared::new();
    let send = s.kernel(|k, kit| {
        k.role("send", 1).copies(2, |r| {
            r.for_turns(2, |step| {
                kit.bytes.put(0, step * 8, 7u64);
                r.signal(kit.slots.slot(0, 0), step + 1);
            });
        });
    });
    let receive = s.rank(|r, kit| {
        for step in 0..2 {
            r.wait(kit.slots.slot(0, 0), step + 1);
            kit.out.store(step, kit.bytes.get::<u64>(0, step * 8));
        }
    });
    check(&[vec![send, receive]])
}

/// Copies accumulate a sum without an atomic.
fn copies_add_up_in_one_word() -> Seen {
    with_copies(2, |r, kit| {
        r.if_(r.copy().eq(0), || kit.out.store(0, 0u64));
        r.for_turns(4, |_| kit.words.store(0, kit.words.load(0) + 1));
    })
}

/// Every copy first reads the start counter and last stores it. All copies have the same one.
fn copies_share_one_start_counter() -> Seen {
    let s = Shared::new();
    let launch = || {
        let send = s.kernel(|k, kit| {
            k.role("send", 1).copies(2, |r| {
                let start = kit.words.load(0).cast::<i64>();
                r.for_turns(2, |step| r.signal(kit.slots.slot(0, step), start + 1));
                kit.words.store(0, (start + 1).cast::<u64>());
            });
        });
        let receive = s.rank(|r, kit| {
            let start = kit.words.load(1).cast::<i64>();
            (0..2).for_each(|slot| r.wait(kit.slots.slot(0, slot), start + 1));
            kit.words.store(1, (start + 1).cast::<u64>());
        });
        vec![send, receive]
    };
    check(&[launch(), launch()])
}
