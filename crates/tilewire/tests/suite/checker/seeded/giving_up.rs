//! Loops that stop polling after some tries. In some schedule they give up, however many tries they have.

use super::Expect::NotCalledSafe;
use super::{Kit, Seen, Shared, check};
use tilewire::Traced;
use tilewire::hook::{RoleCtx, Value};
use tilewire::ir::{Order, Scope};

seeds! {
    gives_up_and_reads: NotCalledSafe,
    gives_up_late_and_reads: NotCalledSafe,
    gives_up_without_a_loop: NotCalledSafe,
    gives_up_and_writes: NotCalledSafe,
    gives_up_and_does_not_answer: NotCalledSafe,
    gives_up_and_the_next_launch_hangs: NotCalledSafe,
    gives_up_in_a_chain: NotCalledSafe,
    gives_up_on_an_atomic: NotCalledSafe,
    gives_up_waiting_for_a_credit: NotCalledSafe,
    both_give_up: NotCalledSafe,
}

/// Tests a slot until it is `value`, at most `tries` times. Returns true if it was.
fn poll<'t>(r: &RoleCtx<'t>, kit: Kit<'t>, slot: i64, value: i64, tries: i64) -> Value<'t, bool> {
    let (left, there) = (r.var(tries), r.var(false));
    r.while_(
        || left.get().gt(0).and(!there.get()),
        || {
            there.set(r.test(kit.slots.slot(0, slot), value));
            left.set(left.get() - 1);
        },
    );
    there.get()
}

fn sender(s: &Shared) -> Traced {
    s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        r.wait(kit.slots.slot(0, 1), 1);
    })
}

/// Reads after this many tries, whether the data is there or not.
fn reads_after(tries: i64) -> Seen {
    let s = Shared::new();
    let receive = s.rank(move |r, kit| {
        poll(r, kit, 0, 1, tries);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
        r.wait(kit.slots.slot(0, 0), 1);
        r.signal(kit.slots.slot(0, 1), 1);
    });
    check(&[vec![sender(&s), receive]])
}

fn gives_up_and_reads() -> Seen {
    reads_after(8)
}

/// More tries than the sender has steps.
fn gives_up_late_and_reads() -> Seen {
    reads_after(500)
}

/// Four tests of one slot in a row. All fail if the sender is slow.
fn gives_up_without_a_loop() -> Seen {
    let s = Shared::new();
    let receive = s.rank(|r, kit| {
        let there = (0..4).map(|_| r.test(kit.slots.slot(0, 0), 1)).reduce(|a, b| a.or(b)).unwrap();
        r.if_(!there, || kit.out.store(0, kit.bytes.get::<u64>(0, 0)));
        r.wait(kit.slots.slot(0, 0), 1);
        r.signal(kit.slots.slot(0, 1), 1);
    });
    check(&[vec![sender(&s), receive]])
}

/// A receiver that gives up stores a value of its own while the sender's value is on its way.
fn gives_up_and_writes() -> Seen {
    let s = Shared::new();
    let receive = s.rank(|r, kit| {
        r.if_(!poll(r, kit, 0, 1, 6), || kit.bytes.put(0, 0, 0u64));
        r.wait(kit.slots.slot(0, 0), 1);
        r.signal(kit.slots.slot(0, 1), 1);
    });
    check(&[vec![sender(&s), receive]])
}

/// The sender waits for an answer that a receiver gives only if it did not give up: a deadlock.
fn gives_up_and_does_not_answer() -> Seen {
    let s = Shared::new();
    let receive = s.rank(|r, kit| {
        r.if_(poll(r, kit, 0, 1, 6), || {
            kit.out.store(0, kit.bytes.get::<u64>(0, 0));
            r.signal(kit.slots.slot(0, 1), 1);
        });
    });
    check(&[vec![sender(&s), receive]])
}

/// A launch that gave up leaves its credit out, and the next launch misses it.
fn gives_up_and_the_next_launch_hangs() -> Seen {
    let s = Shared::new();
    let launch = |n: i64| {
        let send = s.rank(move |r, kit| {
            r.wait(kit.slots.slot(0, 1), n);
            kit.bytes.put(0, 0, 7u64);
            r.signal(kit.slots.slot(0, 0), n + 1);
        });
        let receive = s.rank(move |r, kit| {
            r.if_(poll(r, kit, 0, n + 1, 6), || {
                kit.out.store(0, kit.bytes.get::<u64>(0, 0));
                r.signal_credit(kit.slots.slot(0, 1), n + 1);
            });
        });
        vec![send, receive]
    };
    check(&[launch(0), launch(1)])
}

/// The middle rank tells the last one whether it saw anything or not. The last rank takes that for the data.
fn gives_up_in_a_chain() -> Seen {
    let s = Shared::new();
    let first = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let middle = s.rank(|r, kit| {
        poll(r, kit, 0, 1, 6);
        r.signal(kit.slots.slot(0, 1), 1);
        r.wait(kit.slots.slot(0, 0), 1);
    });
    let last = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 1), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
    });
    check(&[vec![first, middle, last]])
}

/// The same with an atomic in place of a test.
fn gives_up_on_an_atomic() -> Seen {
    let s = Shared::new();
    let send = s.rank(|_, kit| {
        kit.bytes.put(0, 0, 7u64);
        kit.words.atomic_add(0, 1u64, Order::Release, Scope::System);
    });
    let receive = s.rank(|r, kit| {
        let (left, there) = (r.var(6i64), r.var(0u64));
        r.while_(
            || left.get().gt(0).and(there.get().eq(0)),
            || {
                there.set(kit.words.atomic_add(0, 0u64, Order::Acquire, Scope::System));
                left.set(left.get() - 1);
            },
        );
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
    });
    check(&[vec![send, receive]])
}

/// A sender that does not get its credit in time overwrites the slot all the same.
fn gives_up_waiting_for_a_credit() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        poll(r, kit, 1, 1, 6);
        kit.bytes.put(0, 0, 8u64);
        r.signal(kit.slots.slot(0, 0), 2);
    });
    let receive = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
        r.signal_credit(kit.slots.slot(0, 1), 1);
        r.wait(kit.slots.slot(0, 0), 2);
    });
    check(&[vec![send, receive]])
}

/// Both ranks poll for the other before they signal. A rank that gives up writes the common word, and both may give up.
fn both_give_up() -> Seen {
    let s = Shared::new();
    let one = |mine: i64, theirs: i64| {
        s.rank(move |r, kit| {
            r.if_(!poll(r, kit, theirs, 1, 4), || kit.bytes.put(0, 0, mine as u64));
            r.signal(kit.slots.slot(0, mine), 1);
            r.wait(kit.slots.slot(0, theirs), 1);
        })
    };
    check(&[vec![one(0, 1), one(1, 0)]])
}
