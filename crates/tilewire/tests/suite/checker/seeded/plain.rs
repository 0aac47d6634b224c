//! Plain loads and stores of shared memory, and signals that do not order them.

use super::Expect::Fault;
use super::{Kit, Seen, Shared, check, one};
use tilewire::hook::RoleCtx;
use tilewire::ir::Access;
use tilewire::kernel;

seeds! {
    words_without_a_signal: Fault("race"),
    words_with_the_signal_the_other_way: Fault("race"),
    words_stored_after_the_signal: Fault("race"),
    words_behind_a_plain_flag: Fault("race"),
    words_counted_by_two_blocks: Fault("race"),
    words_of_the_launch_before: Fault("race"),
    byte_beside_bytes_that_are_read_together: Fault("race"),
    halves_of_a_word_by_two_ranks_and_a_whole_read: Fault("race"),
    words_under_two_types: Fault("race"),
    words_written_by_a_role_that_did_not_wait: Fault("race"),
    words_signalled_by_another_role: Fault("race"),
    words_masked_by_the_wrong_condition: Fault("unwritten"),
    words_read_by_one_lane_too_many: Fault("race"),
}

/// Two ranks, each of which runs one part.
fn pair(first: impl for<'t> Fn(&RoleCtx<'t>, Kit<'t>), second: impl for<'t> Fn(&RoleCtx<'t>, Kit<'t>)) -> Seen {
    let s = Shared::new();
    check(&[vec![s.rank(first), s.rank(second)]])
}

fn words_without_a_signal() -> Seen {
    let store = line!() + 2;
    let seen = pair(
        |r, kit| r.each(4, |i| kit.words.store(i, 7u64)),
        |r, kit| r.each(4, |i| kit.out.store(i, kit.words.load(i))),
    );
    seen.at(&[store, store + 1])
}

/// The reader announces itself, and does not wait until the writer has written.
fn words_with_the_signal_the_other_way() -> Seen {
    let store = line!() + 4;
    let seen = pair(
        |r, kit| {
            r.wait(kit.slots.slot(0, 0), 1);
            kit.words.store(0, 7u64);
        },
        |r, kit| {
            r.signal(kit.slots.slot(0, 0), 1);
            kit.out.store(0, kit.words.load(0));
        },
    );
    seen.at(&[store, store + 4])
}

/// The last of four words is written after the signal.
fn words_stored_after_the_signal() -> Seen {
    pair(
        |r, kit| {
            r.each(3, |i| kit.words.store(i, 7u64));
            r.signal(kit.slots.slot(0, 0), 1);
            kit.words.store(3, 7u64);
        },
        |r, kit| {
            r.wait(kit.slots.slot(0, 0), 1);
            r.each(4, |i| kit.out.store(i, kit.words.load(i)));
        },
    )
}

/// A flag made of plain accesses orders nothing, and is a race itself.
fn words_behind_a_plain_flag() -> Seen {
    pair(
        |_, kit| {
            kit.words.store(0, 7u64);
            kit.words.store(1, 1u64);
        },
        |r, kit| r.if_(kit.words.load(1).eq(1), || kit.out.store(0, kit.words.load(0))),
    )
}

/// Two blocks add to one word without an atomic. The reader waits for both.
fn words_counted_by_two_blocks() -> Seen {
    let s = Shared::new();
    let count = s.kernel(|k, kit| {
        k.blocks(2);
        k.main(|r| {
            kit.words.store(0, kit.words.load(0) + 1);
            r.signal(kit.slots.slot(0, r.block()), 1);
        });
    });
    let read = s.rank(|r, kit| {
        (0..2).for_each(|block| r.wait(kit.slots.slot(0, block), 1));
        kit.out.store(0, kit.words.load(0));
    });
    check(&[vec![count, read]])
}

/// The ranks write and read in separate launches. Only signals order the launches of two ranks.
fn words_of_the_launch_before() -> Seen {
    let s = Shared::new();
    let idle = s.rank(|r, _| r.barrier());
    let store = line!() + 1;
    let write = s.rank(|_, kit| kit.words.store(0, 7u64));
    let read = s.rank(|_, kit| kit.out.store(0, kit.words.load(0)));
    check(&[vec![write, idle.clone()], vec![idle, read]]).at(&[store, store + 1])
}

/// The reader reads four bytes. Another rank writes the last of them.
fn byte_beside_bytes_that_are_read_together() -> Seen {
    let s = Shared::new();
    let first = s.rank(|r, kit| {
        r.each(3, |i| kit.bytes.put(0, i, 7u8));
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let last = s.rank(|_, kit| kit.bytes.put(0, 3, 7u8));
    let read = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u32>(0, 0).cast::<u64>());
    });
    check(&[vec![first, last, read]])
}

/// Each half has a signal, and the reader waits for one of them.
fn halves_of_a_word_by_two_ranks_and_a_whole_read() -> Seen {
    let s = Shared::new();
    let half = |at: i64| {
        s.rank(move |r, kit| {
            kit.bytes.put(0, at * 4, 7u32);
            r.signal(kit.slots.slot(0, at), 1);
        })
    };
    let read = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
        r.wait(kit.slots.slot(0, 1), 1);
    });
    check(&[vec![half(0), half(1), read]])
}

/// One rank has the memory as words, the other as halves of words.
fn words_under_two_types() -> Seen {
    let s = Shared::new();
    let store = line!() + 1;
    let write = s.rank(|_, kit| kit.words.store(1, 7u64));
    let other = kernel("halves", |k| {
        let halves = k.buffer::<u32>("halves", one(&s.words), Access::InOut).bank(0);
        k.main(|r| r.each(1, |i| halves.store(i + 3, 8u32)));
    });
    check(&[vec![write, other.unwrap()]]).at(&[store, store + 3])
}

/// One role waits, and another one writes.
fn words_written_by_a_role_that_did_not_wait() -> Seen {
    let s = Shared::new();
    let read = s.rank(|r, kit| {
        kit.words.store(0, 7u64);
        kit.out.store(0, kit.words.load(0));
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let write = s.kernel(|k, kit| {
        k.role("wait", 1).run(|r| r.wait(kit.slots.slot(0, 0), 1));
        k.role("write", 1).run(|_| kit.words.store(0, 8u64));
    });
    check(&[vec![read, write]])
}

/// One role signals, and another one writes. A signal publishes the writes of its own role.
fn words_signalled_by_another_role() -> Seen {
    let s = Shared::new();
    let write = s.kernel(|k, kit| {
        k.role("write", 1).run(|r| r.each(2, |i| kit.words.store(i, 7u64)));
        k.role("signal", 1).run(|r| r.signal(kit.slots.slot(0, 0), 1));
    });
    let read = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        r.each(2, |i| kit.out.store(i, kit.words.load(i)));
    });
    check(&[vec![write, read]])
}

/// The writer leaves out the last byte of four. The reader gets it, but nobody wrote it.
fn words_masked_by_the_wrong_condition() -> Seen {
    pair(
        |r, kit| {
            r.each(4, |i| kit.bytes.put_if(i.lt(3), 0, i * 8, 7u64));
            r.signal(kit.slots.slot(0, 0), 1);
        },
        |r, kit| {
            r.wait(kit.slots.slot(0, 0), 1);
            r.each(4, |i| kit.out.store(i, kit.bytes.get_if(i.le(3), 0, i * 8, 0u64)));
        },
    )
}

/// Blocks shift by one. The last element that a block reads is the first one that the next block writes.
fn words_read_by_one_lane_too_many() -> Seen {
    let s = Shared::new();
    let rank = s.kernel(|k, kit| {
        k.blocks(2);
        k.main(|r| {
            r.each(4, |i| kit.words.store(r.block() * 4 + i, 7u64));
            r.each(4, |i| kit.out.store(r.block() * 4 + i, kit.words.load((r.block() * 4 + i + 1).min(7))));
        });
    });
    check(&[vec![rank]])
}
