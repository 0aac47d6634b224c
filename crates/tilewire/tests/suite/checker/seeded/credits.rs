//! Credits that come too early, for too much, or to the wrong slot, or that are taken for a publication.

use super::Expect::{AnyFault, Fault};
use super::{Kit, Seen, Shared, check};
use tilewire::Traced;
use tilewire::hook::RoleCtx;

seeds! {
    credit_before_the_read: Fault("race"),
    credit_between_two_reads: Fault("race"),
    credit_for_the_next_step_too: AnyFault,
    credit_at_the_start_of_every_launch: AnyFault,
    credit_to_the_other_slot: Fault("race"),
    credit_waited_for_one_step_late: Fault("race"),
    credit_of_one_of_two_receivers: Fault("race"),
    credit_after_a_write_into_the_slot: Fault("race"),
    credit_hop_in_a_chain_of_signals: Fault("race"),
    credit_hop_at_the_end_of_a_chain: Fault("race"),
    credit_answers_with_data: Fault("race"),
    drain_missing_where_slots_grow: Fault("race"),
    drain_missing_where_slots_move: Fault("race"),
    credit_of_a_block_for_all_blocks: Fault("race"),
}

/// A sender of this many steps through one slot. HEAD is slot 1, TAIL is slot 0. Before step g it waits until
/// `waits(g)` steps are given back.
fn sender(s: &Shared, steps: i64, waits: fn(i64) -> i64) -> Traced {
    s.rank(move |r, kit| {
        for step in 0..steps {
            r.wait(kit.slots.slot(0, 1), waits(step));
            kit.bytes.put(0, 0, 7u64);
            r.signal(kit.slots.slot(0, 0), step + 1);
        }
    })
}

fn receiver(s: &Shared, steps: i64, take: impl for<'t> Fn(&RoleCtx<'t>, Kit<'t>, i64)) -> Traced {
    s.rank(move |r, kit| {
        for step in 0..steps {
            r.wait(kit.slots.slot(0, 0), step + 1);
            take(r, kit, step);
        }
    })
}

fn credit_before_the_read() -> Seen {
    let s = Shared::new();
    let receive = receiver(&s, 2, |r, kit, step| {
        r.signal_credit(kit.slots.slot(0, 1), step + 1);
        kit.out.store(step, kit.bytes.get::<u64>(0, 0));
    });
    check(&[vec![sender(&s, 2, |step| step), receive]])
}

fn credit_between_two_reads() -> Seen {
    let s = Shared::new();
    let receive = receiver(&s, 2, |r, kit, step| {
        kit.out.store(step, kit.bytes.get::<u32>(0, 0).cast::<u64>());
        r.signal_credit(kit.slots.slot(0, 1), step + 1);
        kit.out.store(step, kit.bytes.get::<u32>(0, 4).cast::<u64>());
    });
    check(&[vec![sender(&s, 2, |step| step), receive]])
}

/// After step 0 the receiver gives back two steps, so the sender overwrites step 1 before it is read.
fn credit_for_the_next_step_too() -> Seen {
    let s = Shared::new();
    let receive = receiver(&s, 3, |r, kit, step| {
        kit.out.store(step, kit.bytes.get::<u64>(0, 0));
        r.signal_credit(kit.slots.slot(0, 1), step + 2);
    });
    check(&[vec![sender(&s, 3, |step| step), receive]])
}

/// HEAD is ahead of TAIL: a launch gives back what it has not seen yet, and the sender's next step overwrites it.
fn credit_at_the_start_of_every_launch() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let send = s.rank(move |r, kit| {
            for step in 2 * n..2 * n + 2 {
                r.wait(kit.slots.slot(0, 1), step + 1);
                kit.bytes.put(0, 0, 7u64);
                r.signal(kit.slots.slot(0, 0), step + 1);
            }
        });
        let receive = s.rank(move |r, kit| {
            for step in 2 * n..2 * n + 2 {
                r.signal_credit(kit.slots.slot(0, 1), step + 1);
            }
            for step in 2 * n..2 * n + 2 {
                r.wait(kit.slots.slot(0, 0), step + 1);
                kit.out.store(0, kit.bytes.get::<u64>(0, 0));
            }
        });
        vec![send, receive]
    };
    check(&[launch(0), launch(1)])
}

/// Two slots with separate counters. The receiver has read one and gives back the other.
fn credit_to_the_other_slot() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        for step in 0..2 {
            for slot in [1, 0] {
                r.wait(kit.slots.slot(0, 2 + slot), step);
                kit.bytes.put(0, slot * 8, 7u64);
                r.signal(kit.slots.slot(0, slot), step + 1);
            }
        }
    });
    let receive = s.rank(|r, kit| {
        for step in 0..2 {
            (0..2).for_each(|slot| r.wait(kit.slots.slot(0, slot), step + 1));
            for slot in 0..2 {
                kit.out.store(slot, kit.bytes.get::<u64>(0, slot * 8));
                r.signal_credit(kit.slots.slot(0, 3 - slot), step + 1);
            }
        }
    });
    check(&[vec![send, receive]])
}

/// The sender waits as if there were two slots, but there is one.
fn credit_waited_for_one_step_late() -> Seen {
    let s = Shared::new();
    let receive = receiver(&s, 3, |r, kit, step| {
        kit.out.store(step, kit.bytes.get::<u64>(0, 0));
        r.signal_credit(kit.slots.slot(0, 1), step + 1);
    });
    check(&[vec![sender(&s, 3, |step| (step - 1).max(0)), receive]])
}

/// Two ranks read the slot, but the sender waits for one.
fn credit_of_one_of_two_receivers() -> Seen {
    let s = Shared::new();
    let receive = |head: i64| {
        receiver(&s, 2, move |r, kit, step| {
            kit.out.store(step, kit.bytes.get::<u64>(0, 0));
            r.signal_credit(kit.slots.slot(0, head), step + 1);
        })
    };
    check(&[vec![sender(&s, 2, |step| step), receive(1), receive(2)]])
}

/// The receiver works in the slot. A credit orders its reads before the sender's next write, but not its writes.
fn credit_after_a_write_into_the_slot() -> Seen {
    let s = Shared::new();
    let receive = receiver(&s, 2, |r, kit, step| {
        kit.bytes.put(0, 0, kit.bytes.get::<u64>(0, 0) + 1);
        kit.out.store(step, kit.bytes.get::<u64>(0, 0));
        r.signal_credit(kit.slots.slot(0, 1), step + 1);
    });
    check(&[vec![sender(&s, 2, |step| step), receive]])
}

/// Four ranks forward a message that rank 0 has written. One hop is a credit.
fn chain(credit: usize) -> Seen {
    let s = Shared::new();
    let put = line!() + 5;
    let rank = |me: usize| {
        s.rank(move |r, kit| {
            match me {
                // One word, for the last rank.
                0 => kit.bytes.put(0, 0, 7u64),
                _ => r.wait(kit.slots.slot(0, me - 1), 1),
            }
            match me {
                3 => kit.out.store(0, kit.bytes.get::<u64>(0, 0)),
                _ if me == credit => r.signal_credit(kit.slots.slot(0, me), 1),
                _ => r.signal(kit.slots.slot(0, me), 1),
            }
        })
    };
    check(&[(0..4).map(rank).collect()]).at(&[put, put + 4])
}

fn credit_hop_in_a_chain_of_signals() -> Seen {
    chain(1)
}

fn credit_hop_at_the_end_of_a_chain() -> Seen {
    chain(2)
}

/// The answer is a credit. It does not publish what the receiver wrote beside it.
fn credit_answers_with_data() -> Seen {
    let s = Shared::new();
    let ask = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        r.wait(kit.slots.slot(0, 1), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 8));
    });
    let answer = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.bytes.put(0, 8, kit.bytes.get::<u64>(0, 0) + 1);
        r.signal_credit(kit.slots.slot(0, 1), 1);
    });
    check(&[vec![ask, answer]])
}

/// Launch 0 has two slots of 16 bytes, at 0 and 16; the sender of launch 1 waits for the first of them only and writes
/// `bytes` at `offset`.
fn undrained(offset: i64, words: i64) -> Seen {
    let s = Shared::new();
    let small = vec![
        s.rank(|r, kit| {
            for slot in 0..2i64 {
                r.each(2, |i| kit.bytes.put(0, slot * 16 + i * 8, 7u64));
                r.signal(kit.slots.slot(0, slot), 1);
            }
        }),
        s.rank(|r, kit| {
            for slot in 0..2i64 {
                r.wait(kit.slots.slot(0, slot), 1);
                r.each(2, |i| kit.out.store(i, kit.bytes.get::<u64>(0, slot * 16 + i * 8)));
                r.signal_credit(kit.slots.slot(0, 2 + slot), 1);
            }
        }),
    ];
    let large = vec![
        s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 2), 1);
            r.each(words, |i| kit.bytes.put(0, offset + i * 8, 7u64));
            r.signal(kit.slots.slot(0, 0), 2);
        }),
        s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 0), 2);
            r.each(words, |i| kit.out.store(i, kit.bytes.get::<u64>(0, offset + i * 8)));
            r.signal_credit(kit.slots.slot(0, 2), 2);
        }),
    ];
    check(&[small, large])
}

fn drain_missing_where_slots_grow() -> Seen {
    undrained(0, 4)
}

fn drain_missing_where_slots_move() -> Seen {
    undrained(8, 2)
}

/// Two blocks read one slot each. Block 0 gives back both slots.
fn credit_of_a_block_for_all_blocks() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        for step in 0..2 {
            r.wait(kit.slots.slot(0, 2), step);
            r.each(2, |i| kit.bytes.put(0, i * 8, 7u64));
            (0..2).for_each(|block| r.signal(kit.slots.slot(0, block), step + 1));
        }
    });
    let receive = s.kernel(|k, kit| {
        k.blocks(2);
        k.main(|r| {
            for step in 0..2 {
                r.wait(kit.slots.slot(0, r.block()), step + 1);
                kit.out.store(r.block(), kit.bytes.get::<u64>(0, r.block() * 8));
                r.if_(r.block().eq(0), || r.signal_credit(kit.slots.slot(0, 2), step + 1));
            }
        });
    });
    check(&[vec![send, receive]])
}
