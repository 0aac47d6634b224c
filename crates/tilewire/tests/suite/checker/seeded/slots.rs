//! Signals and waits that do not match: writers, values, launches, blocks, barriers.

use super::Expect::{AnyFault, Fault};
use super::{Seen, Shared, check, one};
use tilewire::kernel;

seeds! {
    every_block_signals_one_slot: Fault("two-writers"),
    two_roles_take_turns_at_one_slot: Fault("two-writers"),
    slot_reset_for_the_next_launch: Fault("not-growing"),
    signal_repeated_in_the_next_launch: Fault("not-growing"),
    start_counter_not_stored: AnyFault,
    start_counter_stored_in_one_branch: AnyFault,
    second_launch_has_no_signal: Fault("deadlock"),
    signal_from_block_zero_only: Fault("deadlock"),
    signal_from_the_even_blocks: Fault("deadlock"),
    wait_of_the_third_launch_is_that_of_the_second: Fault("race"),
    role_waits_for_the_signal_of_another: Fault("race"),
    barrier_of_the_launch_before: Fault("race"),
    barrier_without_the_second_round: Fault("race"),
    barrier_whose_root_releases_too_early: Fault("race"),
    barrier_right_in_the_first_launch_only: Fault("race"),
    slots_of_different_strides: Fault("deadlock"),
    slot_overwritten_by_a_put: AnyFault,
    signal_skipped_in_a_loop_of_one_step_less: Fault("deadlock"),
    waits_crossed_between_three_ranks: Fault("deadlock"),
    wait_for_oneself: Fault("deadlock"),
}

/// Each of two blocks sets the counter to 1. The receiver continues after the first.
fn every_block_signals_one_slot() -> Seen {
    let s = Shared::new();
    let send = s.kernel(|k, kit| {
        k.blocks(2);
        k.main(|r| {
            kit.bytes.put(0, r.block() * 8, 7u64);
            r.signal(kit.slots.slot(0, 0), 1);
        });
    });
    let receive = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        r.each(2, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
    });
    check(&[vec![send, receive]])
}

/// The odd and the even values come from two roles that do not know of each other.
fn two_roles_take_turns_at_one_slot() -> Seen {
    let s = Shared::new();
    let send = s.kernel(|k, kit| {
        k.role("odd", 1).run(|r| r.signal(kit.slots.slot(0, 0), 1));
        k.role("even", 1).run(|r| r.signal(kit.slots.slot(0, 0), 2));
    });
    let receive = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        r.wait(kit.slots.slot(0, 0), 2);
    });
    check(&[vec![send, receive]])
}

/// The receiver sets the slot back to 0 when it has what it wants.
fn slot_reset_for_the_next_launch() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        r.wait(kit.slots.slot(0, 1), 1);
    });
    let receive = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
        r.signal(kit.slots.slot(0, 0), 0);
        r.signal(kit.slots.slot(0, 1), 1);
    });
    check(&[vec![send, receive]])
}

/// The values are constants of the kernel, and the kernel is launched twice. No data is shared, so nothing races.
fn signal_repeated_in_the_next_launch() -> Seen {
    let s = Shared::new();
    let ask = s.rank(|r, kit| {
        r.signal(kit.slots.slot(0, 0), 1);
        r.wait(kit.slots.slot(0, 1), 1);
    });
    let answer = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        r.signal(kit.slots.slot(0, 1), 1);
    });
    let launch = vec![ask, answer];
    check(&[launch.clone(), launch])
}

/// Both sides read their start counter; the sender does not store it.
fn start_counter_not_stored() -> Seen {
    start_counter(|_| false)
}

/// The sender stores it in the first launch only.
fn start_counter_stored_in_one_branch() -> Seen {
    start_counter(|launch| launch == 0)
}

fn start_counter(stores: fn(usize) -> bool) -> Seen {
    let s = Shared::new();
    let launch = |launch: usize| {
        let send = s.rank(move |r, kit| {
            let start = kit.words.load(0).cast::<i64>();
            r.wait(kit.slots.slot(0, 1), start);
            kit.bytes.put(0, 0, 7u64);
            r.signal(kit.slots.slot(0, 0), start + 1);
            if stores(launch) {
                kit.words.store(0, (start + 1).cast::<u64>());
            }
        });
        let receive = s.rank(|r, kit| {
            let start = kit.words.load(1).cast::<i64>();
            r.wait(kit.slots.slot(0, 0), start + 1);
            kit.out.store(0, kit.bytes.get::<u64>(0, 0));
            r.signal_credit(kit.slots.slot(0, 1), start + 1);
            kit.words.store(1, (start + 1).cast::<u64>());
        });
        vec![send, receive]
    };
    check(&[launch(0), launch(1), launch(2)])
}

/// The kernel that signals is launched once, the kernel that waits twice.
fn second_launch_has_no_signal() -> Seen {
    let s = Shared::new();
    let receive = |n: i64| s.rank(move |r, kit| r.wait(kit.slots.slot(0, 0), n));
    let send = s.rank(|r, kit| r.signal(kit.slots.slot(0, 0), 1));
    let idle = s.rank(|r, _| r.barrier());
    check(&[vec![send, receive(1)], vec![idle, receive(2)]])
}

/// Each block of the receiver waits for the sender's block of the same number. Only some of those signal.
fn signals_of_blocks(step: i64) -> Seen {
    let s = Shared::new();
    let send = s.kernel(|k, kit| {
        k.blocks(4);
        k.main(|r| r.if_((r.block() % step).eq(0), || r.signal(kit.slots.slot(0, r.block()), 1)));
    });
    let receive = s.kernel(|k, kit| {
        k.blocks(4);
        k.main(|r| r.wait(kit.slots.slot(0, r.block()), 1));
    });
    check(&[vec![send, receive]])
}

fn signal_from_block_zero_only() -> Seen {
    signals_of_blocks(4)
}

fn signal_from_the_even_blocks() -> Seen {
    signals_of_blocks(2)
}

/// Steps 1, 2, 3 in three launches. The third receiver waits for step 2 again.
fn wait_of_the_third_launch_is_that_of_the_second() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let send = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 1), n);
            kit.bytes.put(0, 0, 7u64);
            r.signal(kit.slots.slot(0, 0), n + 1);
        });
        let receive = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 0), (n + 1).min(2));
            kit.out.store(0, kit.bytes.get::<u64>(0, 0));
            r.signal_credit(kit.slots.slot(0, 1), n + 1);
        });
        vec![send, receive]
    };
    check(&[launch(0), launch(1), launch(2)])
}

/// Two messages, counted by one slot. The role that takes the second message waits for the first.
fn role_waits_for_the_signal_of_another() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        for step in 0..2 {
            kit.bytes.put(0, step * 8, 7u64);
            r.signal(kit.slots.slot(0, 0), step + 1);
        }
    });
    let receive = s.kernel(|k, kit| {
        k.role("first", 1).run(|r| {
            r.wait(kit.slots.slot(0, 0), 1);
            kit.out.store(0, kit.bytes.get::<u64>(0, 0));
            r.wait(kit.slots.slot(0, 0), 2);
        });
        k.role("second", 1).run(|r| {
            r.wait(kit.slots.slot(0, 0), 1);
            kit.out.store(1, kit.bytes.get::<u64>(0, 8));
        });
    });
    check(&[vec![send, receive]])
}

/// All ranks write a word, meet, and read all words. Then they meet again, so that the next launch may write. The first
/// barrier waits for `value(launch)`, which should be `2 * launch + 1`.
fn barriers(value: fn(i64) -> i64) -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let rank = |me: usize| {
            s.rank(move |r, kit| {
                kit.bytes.put(0, me * 8, 7u64);
                r.signal(kit.slots.slot(0, me), 2 * n + 1);
                (0..3).filter(|&other| other != me).for_each(|other| r.wait(kit.slots.slot(0, other), value(n)));
                r.each(3, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
                r.signal(kit.slots.slot(0, me), 2 * n + 2);
                (0..3).filter(|&other| other != me).for_each(|other| r.wait(kit.slots.slot(0, other), 2 * n + 2));
            })
        };
        (0..3).map(rank).collect::<Vec<_>>()
    };
    check(&[launch(0), launch(1)])
}

/// The leftovers of the previous launch satisfy the barrier.
fn barrier_of_the_launch_before() -> Seen {
    barriers(|n| 2 * n)
}

/// The value is a constant from the second launch on.
fn barrier_right_in_the_first_launch_only() -> Seen {
    barriers(|n| if n == 0 { 1 } else { 2 })
}

/// Dissemination among four ranks: rounds of distance 1 and 2. Without the second round, a rank knows only of its
/// neighbour.
fn barrier_without_the_second_round() -> Seen {
    let s = Shared::new();
    let rank = |me: usize| {
        s.rank(move |r, kit| {
            kit.bytes.put(0, me * 8, 7u64);
            r.signal(kit.slots.slot(0, me), 1);
            r.wait(kit.slots.slot(0, (me + 3) % 4), 1);
            r.each(4, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
        })
    };
    check(&[(0..4).map(rank).collect()])
}

/// The root of three ranks releases the others when one of them has come.
fn barrier_whose_root_releases_too_early() -> Seen {
    let s = Shared::new();
    let root = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.wait(kit.slots.slot(0, 1), 1);
        r.signal(kit.slots.slot(0, 0), 1);
        r.wait(kit.slots.slot(0, 2), 1);
    });
    let leaf = |me: i64| {
        s.rank(move |r, kit| {
            kit.bytes.put(0, me * 8, 7u64);
            r.signal(kit.slots.slot(0, me), 1);
            r.wait(kit.slots.slot(0, 0), 1);
            r.each(3, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
        })
    };
    check(&[vec![root, leaf(1), leaf(2)]])
}

/// The sides disagree about where slot 1 is: at byte 64, or at byte 128.
fn slots_of_different_strides() -> Seen {
    let s = Shared::new();
    let send = kernel("near", |k| {
        let near = k.slots("near", one(&s.slots), 64);
        k.main(|r| r.signal(near.slot(0, 1), 1));
    });
    let receive = s.rank(|r, kit| r.wait(kit.slots.slot(0, 1), 1));
    check(&[vec![send.unwrap(), receive]])
}

/// A region reaches into the counters, so data takes the place of a count.
fn slot_overwritten_by_a_put() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let stray = kernel("stray", |k| {
        let region = k.region("region", one(&s.slots));
        k.main(|_| region.put(0, 0, 7u64));
    });
    let receive = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
    });
    check(&[vec![send, stray.unwrap(), receive]])
}

/// At run time the sender's loop has one step fewer than the receiver's.
fn signal_skipped_in_a_loop_of_one_step_less() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| r.for_((0, r.world_size()), |step| r.signal(kit.slots.slot(0, 0), step + 1)));
    let receive = s.rank(|r, kit| r.for_((0, r.world_size() + 1), |step| r.wait(kit.slots.slot(0, 0), step + 1)));
    check(&[vec![send, receive]])
}

/// Every rank waits for the next one before it tells anybody.
fn waits_crossed_between_three_ranks() -> Seen {
    let s = Shared::new();
    // Slot `a * 4 + b` is for signals from a to b.
    let rank = |me: i64, peers: [i64; 2]| {
        s.rank(move |r, kit| {
            for peer in peers {
                r.wait(kit.slots.slot(0, peer * 4 + me), 1);
                r.signal(kit.slots.slot(0, me * 4 + peer), 1);
            }
        })
    };
    check(&[vec![rank(0, [1, 2]), rank(1, [2, 0]), rank(2, [0, 1])]])
}

/// A rank signals its neighbour, and waits for the slot that it signalled itself, with a later value.
fn wait_for_oneself() -> Seen {
    let s = Shared::new();
    let rank = s.rank(|r, kit| {
        r.signal(kit.slots.slot(0, 0), 1);
        r.wait(kit.slots.slot(0, 0), 2);
        r.signal(kit.slots.slot(0, 0), 2);
    });
    check(&[vec![rank]])
}
