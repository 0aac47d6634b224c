//! Atomics: those that acquire although nobody reads their result, those on the bytes of a slot, and those of too small
//! a scope.

use super::Expect::{AnyFault, Fault, NotCalledSafe};
use super::{Kit, Seen, Shared, check, one};
use tilewire::hook::{RoleCtx, View};
use tilewire::ir::{Access, Order, Scope};
use tilewire::{Traced, kernel};

seeds! {
    acquire_before_the_release: NotCalledSafe,
    acq_rel_on_both_sides: NotCalledSafe,
    two_stores_ordered_by_luck: NotCalledSafe,
    acquire_in_an_each: NotCalledSafe,
    acquire_through_a_third_rank: NotCalledSafe,
    acquire_through_a_relaxed_addition: NotCalledSafe,
    acquire_between_blocks: NotCalledSafe,
    acquire_only_in_the_second_launch: NotCalledSafe,
    release_is_missing: Fault("race"),
    acquire_is_missing: Fault("race"),
    store_after_the_release: Fault("race"),
    relaxed_addition_to_a_slot_as_signal: AnyFault,
    addition_completes_a_count: AnyFault,
    addition_takes_a_count_back: AnyFault,
    addition_lost_under_a_signal: AnyFault,
    slot_read_by_a_relaxed_addition: Fault("race"),
    addition_to_half_of_a_slot: AnyFault,
    addition_before_a_smaller_signal: AnyFault,
    addition_ahead_of_the_next_signal: AnyFault,
    addition_in_place_of_the_next_signal: AnyFault,
    addition_takes_back_what_was_seen: AnyFault,
    acquire_by_an_addition_to_a_slot: NotCalledSafe,
    credits_by_relaxed_additions: AnyFault,
    device_scope_between_ranks: NotCalledSafe,
    block_scope_between_ranks: NotCalledSafe,
    block_scope_between_blocks: NotCalledSafe,
    device_scope_on_one_side_only: NotCalledSafe,
    block_scope_counter_of_two_blocks: NotCalledSafe,
    device_scope_counter_of_two_ranks: NotCalledSafe,
    unused_acquire_of_device_scope: NotCalledSafe,
}

/// One rank puts and then adds. The other adds and then gets. If the second addition comes first, nothing orders put
/// and get.
fn handover(release: Order, acquire: Order, scopes: [Scope; 2]) -> Seen {
    let s = Shared::new();
    let put = line!() + 2;
    let send = s.rank(|_, kit| {
        kit.bytes.put(0, 0, 7u64);
        kit.words.atomic_add(0, 1u64, release, scopes[0]);
    });
    let get = line!() + 3;
    let receive = s.rank(|_, kit| {
        kit.words.atomic_add(0, 1u64, acquire, scopes[1]);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
    });
    check(&[vec![send, receive]]).at(&[put, get])
}

const SYSTEM: [Scope; 2] = [Scope::System; 2];

fn acquire_before_the_release() -> Seen {
    handover(Order::Release, Order::Acquire, SYSTEM)
}

fn acq_rel_on_both_sides() -> Seen {
    handover(Order::AcqRel, Order::AcqRel, SYSTEM)
}

/// An acquire that finds a relaxed addition is ordered after nothing. It is a race in all schedules.
fn release_is_missing() -> Seen {
    handover(Order::Relaxed, Order::Acquire, SYSTEM)
}

fn acquire_is_missing() -> Seen {
    handover(Order::Release, Order::Relaxed, SYSTEM)
}

/// The race of `acquire_before_the_release`. Here the scope does not reach the other rank anyway.
fn unused_acquire_of_device_scope() -> Seen {
    handover(Order::Release, Order::Acquire, [Scope::Device; 2])
}

/// Both store to one word, one before its addition and one after. They race if the one that stores last adds first.
fn two_stores_ordered_by_luck() -> Seen {
    let s = Shared::new();
    let before = s.rank(|_, kit| {
        kit.words.store(1, 1u64);
        kit.words.atomic_add(0, 1u64, Order::AcqRel, Scope::System);
    });
    let after = s.rank(|_, kit| {
        kit.words.atomic_add(0, 1u64, Order::AcqRel, Scope::System);
        kit.words.store(1, 2u64);
    });
    check(&[vec![before, after]])
}

/// Like `acquire_before_the_release`, by the lanes of an `each` whose mask is true.
fn acquire_in_an_each() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        r.each(4, |i| kit.bytes.put(0, i * 8, 7u64));
        kit.words.atomic_add(0, 1u64, Order::Release, Scope::System);
    });
    let receive = s.rank(|r, kit| {
        r.each(4, |i| {
            kit.words.atomic_add_if(i.eq(0), 0, 1u64, Order::Acquire, Scope::System);
        });
        r.each(4, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
    });
    check(&[vec![send, receive]])
}

/// 0 → 1 → 2 by two words. Only the schedule in which all three add in this order is ordered.
fn acquire_through_a_third_rank() -> Seen {
    let s = Shared::new();
    let first = s.rank(|_, kit| {
        kit.bytes.put(0, 0, 7u64);
        kit.words.atomic_add(0, 1u64, Order::Release, Scope::System);
    });
    let second = s.rank(|_, kit| {
        kit.words.atomic_add(0, 1u64, Order::Acquire, Scope::System);
        kit.words.atomic_add(1, 1u64, Order::Release, Scope::System);
    });
    let third = s.rank(|_, kit| {
        kit.words.atomic_add(1, 1u64, Order::Acquire, Scope::System);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
    });
    check(&[vec![first, second, third]])
}

/// A third rank adds to the same word, relaxed. Wherever that comes, the acquire may still be the first of all.
fn acquire_through_a_relaxed_addition() -> Seen {
    let s = Shared::new();
    let add = |order: Order| move |kit: Kit<'_>| _ = kit.words.atomic_add(0, 1u64, order, Scope::System);
    let send = s.rank(|_, kit| {
        kit.bytes.put(0, 0, 7u64);
        add(Order::Release)(kit);
    });
    let between = s.rank(|_, kit| add(Order::Relaxed)(kit));
    let receive = s.rank(|_, kit| {
        add(Order::Acquire)(kit);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
    });
    check(&[vec![send, between, receive]])
}

/// Like `acquire_before_the_release`, between the blocks of one rank, where the scope suffices.
fn acquire_between_blocks() -> Seen {
    let s = Shared::new();
    let blocks = s.kernel(|k, kit| {
        k.blocks(2);
        k.main(|r| {
            r.if_else(
                r.block().eq(0),
                || {
                    kit.bytes.put(0, 0, 7u64);
                    kit.words.atomic_add(0, 1u64, Order::Release, Scope::Device);
                },
                || {
                    kit.words.atomic_add(0, 1u64, Order::Acquire, Scope::Device);
                    kit.out.store(0, kit.bytes.get::<u64>(0, 0));
                },
            );
        });
    });
    check(&[vec![blocks]])
}

/// The first launch is ordered by signals, the second only by additions.
fn acquire_only_in_the_second_launch() -> Seen {
    let s = Shared::new();
    let signalled = vec![
        s.rank(|r, kit| {
            kit.bytes.put(0, 0, 7u64);
            r.signal(kit.slots.slot(0, 0), 1);
            r.wait(kit.slots.slot(0, 1), 1);
        }),
        s.rank(|r, kit| {
            r.wait(kit.slots.slot(0, 0), 1);
            kit.out.store(0, kit.bytes.get::<u64>(0, 0));
            r.signal_credit(kit.slots.slot(0, 1), 1);
        }),
    ];
    let added = vec![
        s.rank(|_, kit| {
            kit.bytes.put(0, 0, 8u64);
            kit.words.atomic_add(0, 1u64, Order::Release, Scope::System);
        }),
        s.rank(|_, kit| {
            kit.words.atomic_add(0, 1u64, Order::Acquire, Scope::System);
            kit.out.store(0, kit.bytes.get::<u64>(0, 0));
        }),
    ];
    check(&[signalled, added])
}

/// The release does not publish what is stored after it, whichever addition comes first.
fn store_after_the_release() -> Seen {
    let s = Shared::new();
    let send = s.rank(|_, kit| {
        kit.words.atomic_add(0, 1u64, Order::AcqRel, Scope::System);
        kit.words.store(1, 1u64);
    });
    check(&[vec![send.clone(), send]])
}

/// A rank that has the counters as words, too. All ranks of a program have them, so they are no rank's tensor.
fn counts(s: &Shared, body: impl for<'t> Fn(&RoleCtx<'t>, Kit<'t>, View<'t, u64>)) -> Traced {
    s.kernel(|k, kit| {
        let counts = k.buffer::<u64>("counts", one(&s.slots), Access::InOut).bank(0);
        k.main(|r| body(r, kit, counts));
    })
}

/// The wait ends when the addition arrives, and a relaxed addition publishes nothing.
fn relaxed_addition_to_a_slot_as_signal() -> Seen {
    let s = Shared::new();
    let send = counts(&s, |_, kit, counts| {
        kit.bytes.put(0, 0, 7u64);
        counts.atomic_add(0, 1u64, Order::Relaxed, Scope::System);
    });
    let receive = counts(&s, |r, kit, _| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
    });
    check(&[vec![send, receive]])
}

/// The sender counts to 2. Another rank adds 1 to the same counter, so the receiver may go on after the first message.
fn addition_completes_a_count() -> Seen {
    let s = Shared::new();
    let send = counts(&s, |r, kit, _| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        kit.bytes.put(0, 8, 8u64);
        r.signal(kit.slots.slot(0, 0), 2);
    });
    let meddle = counts(&s, |_, _, counts| {
        counts.atomic_add(0, 1u64, Order::Relaxed, Scope::System);
    });
    let receive = counts(&s, |r, kit, _| {
        r.wait(kit.slots.slot(0, 0), 1);
        r.wait(kit.slots.slot(0, 0), 2);
        kit.out.store(0, kit.bytes.get::<u64>(0, 8));
    });
    check(&[vec![send, meddle, receive]])
}

/// The sender takes its signal back by adding −1. A receiver that polls too late waits forever.
fn addition_takes_a_count_back() -> Seen {
    let s = Shared::new();
    let send = counts(&s, |r, kit, counts| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        counts.atomic_add(0, u64::MAX, Order::Relaxed, Scope::System);
    });
    let receive = counts(&s, |r, kit, _| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
    });
    check(&[vec![send, receive]])
}

/// Two ranks count in one slot: one sets it to 1, the other adds 1. If the signal comes last, the addition is lost and
/// the slot never becomes 2.
fn addition_lost_under_a_signal() -> Seen {
    let s = Shared::new();
    let set = counts(&s, |r, kit, _| r.signal(kit.slots.slot(0, 0), 1));
    let add = counts(&s, |_, _, counts| {
        counts.atomic_add(0, 1u64, Order::Release, Scope::System);
    });
    let receive = counts(&s, |r, kit, _| r.wait(kit.slots.slot(0, 0), 2));
    check(&[vec![set, add, receive]])
}

/// The receiver polls the counter by adding 0. It finds the signal in some schedules, and a relaxed addition acquires
/// nothing.
fn slot_read_by_a_relaxed_addition() -> Seen {
    let s = Shared::new();
    let send = counts(&s, |r, kit, _| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        r.wait(kit.slots.slot(0, 1), 1);
    });
    let receive = counts(&s, |r, kit, counts| {
        let seen = counts.atomic_add(0, 0u64, Order::Relaxed, Scope::System);
        r.if_(seen.ge(1), || kit.out.store(0, kit.bytes.get::<u64>(0, 0)));
        r.wait(kit.slots.slot(0, 0), 1);
        r.signal(kit.slots.slot(0, 1), 1);
    });
    check(&[vec![send, receive]])
}

/// The addition is to the upper four bytes of the slot. The counter becomes 2³², and every wait is satisfied by it.
fn addition_to_half_of_a_slot() -> Seen {
    let s = Shared::new();
    let send = counts(&s, |r, kit, _| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let meddle = kernel("halves", |k| {
        let halves = k.buffer::<u32>("halves", one(&s.slots), Access::InOut).bank(0);
        k.main(|_| _ = halves.atomic_add(1, 1u32, Order::Relaxed, Scope::System));
    });
    let receive = counts(&s, |r, kit, _| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
    });
    check(&[vec![send, meddle.unwrap(), receive]])
}

/// The slot goes from 5 back to 1. A receiver that polls too late waits forever.
fn addition_before_a_smaller_signal() -> Seen {
    let s = Shared::new();
    let send = counts(&s, |r, kit, counts| {
        counts.atomic_add(0, 5u64, Order::Release, Scope::System);
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let receive = counts(&s, |r, kit, _| r.wait(kit.slots.slot(0, 0), 2));
    check(&[vec![send, receive]])
}

/// The sender adds 1 where it should signal 2. It signals 2 later, when the second word is there. The wait for 2 may
/// end before that.
fn addition_ahead_of_the_next_signal() -> Seen {
    let s = Shared::new();
    let send = counts(&s, |r, kit, counts| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        counts.atomic_add(0, 1u64, Order::Release, Scope::System);
        kit.bytes.put(0, 8, 8u64);
        r.signal(kit.slots.slot(0, 0), 2);
    });
    let receive = counts(&s, |r, kit, _| {
        r.wait(kit.slots.slot(0, 0), 2);
        kit.out.store(0, kit.bytes.get::<u64>(0, 8));
    });
    check(&[vec![send, receive]])
}

/// Every two accesses to the counter are ordered, including those by the addition. But the addition makes it 2, and
/// rank 2 takes that for the signal of rank 1, which may come later.
fn addition_in_place_of_the_next_signal() -> Seen {
    let s = Shared::new();
    let adds = counts(&s, |r, kit, counts| {
        r.wait(kit.slots.slot(0, 0), 1);
        counts.atomic_add(0, 1u64, Order::Relaxed, Scope::System);
        r.signal(kit.slots.slot(0, 1), 1);
    });
    let sends = counts(&s, |r, kit, _| {
        r.signal(kit.slots.slot(0, 0), 1);
        r.wait(kit.slots.slot(0, 1), 1);
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 2);
    });
    let receives = counts(&s, |r, kit, _| {
        r.wait(kit.slots.slot(0, 1), 1);
        r.wait(kit.slots.slot(0, 0), 2);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
    });
    check(&[vec![adds, sends, receives]])
}

/// The receiver has seen the signal. The sender takes it back and says so. The receiver then waits for it once more,
/// forever.
fn addition_takes_back_what_was_seen() -> Seen {
    let s = Shared::new();
    let send = counts(&s, |r, kit, counts| {
        r.signal(kit.slots.slot(0, 0), 1);
        r.wait(kit.slots.slot(0, 1), 1);
        counts.atomic_add(0, u64::MAX, Order::Relaxed, Scope::System);
        r.signal(kit.slots.slot(0, 2), 1);
    });
    let receive = counts(&s, |r, kit, _| {
        r.wait(kit.slots.slot(0, 0), 1);
        r.signal(kit.slots.slot(0, 1), 1);
        r.wait(kit.slots.slot(0, 2), 1);
        r.wait(kit.slots.slot(0, 0), 1);
    });
    check(&[vec![send, receive]])
}

/// The receiver adds 0 to the counter in order to acquire, and ignores the result. The signal may come later.
fn acquire_by_an_addition_to_a_slot() -> Seen {
    let s = Shared::new();
    let send = counts(&s, |r, kit, _| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let receive = counts(&s, |r, kit, counts| {
        counts.atomic_add(0, 0u64, Order::Acquire, Scope::System);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
        r.wait(kit.slots.slot(0, 0), 1);
    });
    check(&[vec![send, receive]])
}

/// Two receivers count in one HEAD by additions. Relaxed additions do not order the reads before them.
fn credits_by_relaxed_additions() -> Seen {
    let s = Shared::new();
    let send = counts(&s, |r, kit, _| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        r.wait(kit.slots.slot(0, 1), 2);
        kit.bytes.put(0, 0, 8u64);
    });
    let receive = || {
        counts(&s, |r, kit, counts| {
            r.wait(kit.slots.slot(0, 0), 1);
            kit.out.store(0, kit.bytes.get::<u64>(0, 0));
            counts.atomic_add(16, 1u64, Order::Relaxed, Scope::System);
        })
    };
    check(&[vec![send, receive(), receive()]])
}

/// Two parties put and add. The second one to add reads what the first one put. This is right with a scope that
/// contains both, and wrong with any smaller scope.
fn last_one_reads<'t>(r: &RoleCtx<'t>, kit: Kit<'t>, at: i64, scope: Scope) {
    kit.bytes.put(0, at * 8, 1u64);
    let before = kit.words.atomic_add(0, 1u64, Order::AcqRel, scope);
    r.if_(before.eq(1), || kit.out.store(at, kit.bytes.get::<u64>(0, (1 - at) * 8)));
}

fn between_ranks(scopes: [Scope; 2]) -> Seen {
    let s = Shared::new();
    let rank = |at: usize| s.rank(move |r, kit| last_one_reads(r, kit, at as i64, scopes[at]));
    check(&[vec![rank(0), rank(1)]])
}

fn device_scope_between_ranks() -> Seen {
    between_ranks([Scope::Device; 2])
}

fn block_scope_between_ranks() -> Seen {
    between_ranks([Scope::Block; 2])
}

/// Both sides of a handover need a scope that contains the other side.
fn device_scope_on_one_side_only() -> Seen {
    between_ranks([Scope::System, Scope::Device])
}

fn block_scope_between_blocks() -> Seen {
    let s = Shared::new();
    let blocks = s.kernel(|k, kit| {
        k.blocks(2);
        k.main(|r| {
            let block = r.block();
            let part = |at: i64| r.if_(block.eq(at), || last_one_reads(r, kit, at, Scope::Block));
            (0..2).for_each(part);
        });
    });
    check(&[vec![blocks]])
}

/// The additions are atomic for the lanes of one block only, so that of one block may be lost. The signals come after
/// them, and nothing else is wrong.
fn block_scope_counter_of_two_blocks() -> Seen {
    let s = Shared::new();
    let count = s.kernel(|k, kit| {
        k.blocks(2);
        k.main(|r| {
            kit.words.atomic_add(0, 1u64, Order::Relaxed, Scope::Block);
            r.signal(kit.slots.slot(0, r.block()), 1);
        });
    });
    let read = s.rank(|r, kit| {
        (0..2).for_each(|block| r.wait(kit.slots.slot(0, block), 1));
        kit.out.store(0, kit.words.load(0));
    });
    check(&[vec![count, read]])
}

fn device_scope_counter_of_two_ranks() -> Seen {
    let s = Shared::new();
    let count = |slot: i64| {
        s.rank(move |r, kit| {
            kit.words.atomic_add(0, 1u64, Order::Relaxed, Scope::Device);
            r.signal(kit.slots.slot(0, slot), 1);
        })
    };
    let read = s.rank(|r, kit| {
        (0..2).for_each(|slot| r.wait(kit.slots.slot(0, slot), 1));
        kit.out.store(0, kit.words.load(0));
    });
    check(&[vec![count(0), count(1), read]])
}
