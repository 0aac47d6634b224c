//! Findings of a third review: signals of the value that a counter holds at first, atomics on slots before signals of
//! data and credits, inputs of no length.

use super::Expect::{Clean, CleanDecided, Fault};
use super::{Kit, Seen, Shared, check, one};
use tilewire::hook::{RoleCtx, View};
use tilewire::ir::{Access, Order, Scope};
use tilewire::{Memory, Tensor, Traced, kernel};

seeds! {
    first_signal_of_what_the_counter_holds: CleanDecided,
    wait_for_what_the_counter_holds_finds_no_signal: Fault("two-writers"),
    wait_for_what_the_counter_holds_finds_no_signal_late: Fault("two-writers"),
    credit_after_what_another_signalled: Fault("race"),
    credit_after_an_addition_of_its_own: Fault("race"),
    credit_after_a_release_by_an_addition_of_its_own: Fault("race"),
    credit_continues_a_release_by_an_addition: Clean,
    credit_continues_a_release_before_an_addition: Clean,
    signal_after_an_addition_of_its_own: Fault("race"),
    signal_of_one_who_saw_an_addition: Fault("race"),
    signal_of_one_who_saw_an_addition_and_what_it_continues: Clean,
    credit_of_the_next_launch: CleanDecided,
    input_of_no_length_amid_what_a_peer_writes: CleanDecided,
}

/// The counter holds 0 at first. The signal changes nothing, and a wait for it continues with or without it.
fn first_signal_of_what_the_counter_holds() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| r.signal(kit.slots.slot(0, 0), 0));
    let b = s.rank(|r, kit| r.wait(kit.slots.slot(0, 0), 0));
    check(&[vec![a, b]])
}

/// W's wait is satisfied by the initial value of the counter, so A's signal may come after B's. C then waits forever.
fn wait_for_what_the_counter_holds_finds_no_signal() -> Seen {
    met_at_first([0, 1, 2, 3])
}
/// The same where A comes last in the order of the ranks.
fn wait_for_what_the_counter_holds_finds_no_signal_late() -> Seen {
    met_at_first([1, 2, 3, 0])
}
fn met_at_first(order: [usize; 4]) -> Seen {
    let s = Shared::new();
    let first = line!() + 1;
    let a = s.rank(|r, kit| r.signal(kit.slots.slot(0, 0), 0));
    let w = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 0);
        r.signal_credit(kit.slots.slot(0, 1), 1);
    });
    let second = line!() + 3;
    let b = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 1), 1);
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let c = s.rank(|r, kit| r.wait(kit.slots.slot(0, 0), 1));
    let all = [a, w, b, c];
    check(&[order.map(|rank| all[rank].clone()).to_vec()]).at(&[first, second])
}

/// A rank that has the slots as words, too.
fn adder(s: &Shared, body: impl for<'t> Fn(&RoleCtx<'t>, Kit<'t>, View<'t, u64>)) -> Traced {
    s.kernel(|k, kit| {
        let counts = k.buffer::<u64>("counts", one(&s.slots), Access::InOut).bank(0);
        k.main(|r| body(r, kit, counts));
    })
}

/// Puts and signals 1. Returns also the line of the put.
fn teller(s: &Shared) -> (Traced, u32) {
    let put = line!() + 2;
    let told = adder(s, |r, kit, _| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
    });
    (told, put)
}

/// Waits for `value`, gets the data, and waits for `last`. Returns also the line of the get.
fn getter(s: &Shared, value: i64, last: i64) -> (Traced, u32) {
    let get = line!() + 3;
    let got = adder(s, |r, kit, _| {
        r.wait(kit.slots.slot(0, 0), value);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
        r.wait(kit.slots.slot(0, 0), last);
    });
    (got, get)
}

/// C may find P's 3, which publishes nothing.
fn credit_after_what_another_signalled() -> Seen {
    credited_by_another(None)
}
/// P's addition continues A's release. P's credit continues only releases of P, and there are none.
fn credit_after_an_addition_of_its_own() -> Seen {
    credited_by_another(Some(Order::Relaxed))
}
/// P's addition released what P has seen, and P was told by a credit, so A's data is not in it.
fn credit_after_a_release_by_an_addition_of_its_own() -> Seen {
    let s = Shared::new();
    let ((a, put), (c, get)) = (teller(&s), getter(&s, 1, 3));
    let p = adder(&s, |r, kit, counts| {
        r.wait(kit.slots.slot(0, 1), 1);
        counts.atomic_add(0, 1u64, Order::Release, Scope::System);
        r.signal_credit(kit.slots.slot(0, 0), 3);
    });
    check(&[vec![a, passes_on(&s), p, c]]).at(&[put, get])
}
fn credited_by_another(adds: Option<Order>) -> Seen {
    let s = Shared::new();
    let ((a, put), (c, get)) = (teller(&s), getter(&s, 1, 3));
    let p = adder(&s, |r, kit, counts| {
        r.wait(kit.slots.slot(0, 0), 1);
        if let Some(order) = adds {
            counts.atomic_add(0, 1u64, order, Scope::System);
        }
        r.signal_credit(kit.slots.slot(0, 0), 3);
    });
    check(&[vec![a, p, c]]).at(&[put, get])
}

/// P's credit continues what P released by its addition.
fn credit_continues_a_release_by_an_addition() -> Seen {
    let s = Shared::new();
    let p = adder(&s, |r, kit, counts| {
        kit.bytes.put(0, 0, 7u64);
        counts.atomic_add(0, 1u64, Order::Release, Scope::System);
        r.signal_credit(kit.slots.slot(0, 0), 3);
    });
    check(&[vec![p, getter(&s, 1, 3).0]])
}
/// P's credit continues what P released by a signal, even after an addition of P that releases nothing.
fn credit_continues_a_release_before_an_addition() -> Seen {
    let s = Shared::new();
    let p = adder(&s, |r, kit, counts| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
        counts.atomic_add(0, 1u64, Order::Relaxed, Scope::System);
        r.signal_credit(kit.slots.slot(0, 0), 3);
    });
    check(&[vec![p, getter(&s, 1, 3).0]])
}

/// Says by a credit in the second slot that it found 1 in the first.
fn passes_on(s: &Shared) -> Traced {
    adder(s, |r, kit, _| {
        r.wait(kit.slots.slot(0, 0), 1);
        r.signal_credit(kit.slots.slot(0, 1), 1);
    })
}

/// P's addition continues A's release, and P has not seen A's data. C may find P's 3 instead of A's 1.
fn signal_after_an_addition_of_its_own() -> Seen {
    let s = Shared::new();
    let ((a, put), (c, get)) = (teller(&s), getter(&s, 1, 3));
    let p = adder(&s, |r, kit, counts| {
        r.wait(kit.slots.slot(0, 1), 1);
        counts.atomic_add(0, 1u64, Order::Release, Scope::System);
        r.signal(kit.slots.slot(0, 0), 3);
    });
    check(&[vec![a, passes_on(&s), p, c]]).at(&[put, get])
}

/// The same with a signal of B, which has seen what P has seen and not what P's addition continues.
fn signal_of_one_who_saw_an_addition() -> Seen {
    saw_an_addition(1)
}
/// B waits for P's addition, and so sees A's data.
fn signal_of_one_who_saw_an_addition_and_what_it_continues() -> Seen {
    saw_an_addition(0)
}
/// B waits for P in the slot where P adds (0), or in another (1).
fn saw_an_addition(which: i64) -> Seen {
    let s = Shared::new();
    let ((a, put), (c, get)) = (teller(&s), getter(&s, 1, 3));
    let p = adder(&s, |r, kit, counts| {
        r.wait(kit.slots.slot(0, 1), 1);
        counts.atomic_add(0, 1u64, Order::Release, Scope::System);
        if which == 1 {
            r.signal(kit.slots.slot(0, 2), 2);
        }
    });
    let b = adder(&s, |r, kit, _| {
        r.wait(kit.slots.slot(0, 2 * which), 2);
        r.signal(kit.slots.slot(0, 0), 3);
    });
    check(&[vec![a, passes_on(&s), p, b, c]]).at(&[put, get])
}

/// The end of a launch flushes: a credit of the party's next launch continues what it released in this one.
fn credit_of_the_next_launch() -> Seen {
    let s = Shared::new();
    let a = s.rank(|r, kit| {
        kit.bytes.put(0, 0, 7u64);
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let c = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        kit.out.store(0, kit.bytes.get::<u64>(0, 0));
    });
    let a2 = s.rank(|r, kit| r.signal_credit(kit.slots.slot(0, 0), 2));
    let c2 = s.rank(|r, kit| r.wait(kit.slots.slot(0, 0), 2));
    check(&[vec![a, c], vec![a2, c2]])
}

/// No byte of the input is written.
fn input_of_no_length_amid_what_a_peer_writes() -> Seen {
    let (whole, slots) = (Tensor::<u64>::zeros(4), Memory::zeroed(512));
    let nothing = whole.slice(2..2);
    let owner = kernel("owner", |k| {
        let (_, slots) = (k.input(&nothing), k.slots("slots", one(&slots), 128));
        k.main(|r| {
            r.signal(slots.slot(0, 0), 1);
            r.wait(slots.slot(0, 1), 1);
        });
    });
    let peer = kernel("peer", |k| {
        let (theirs, slots) = (k.region("theirs", one(whole.memory())), k.slots("slots", one(&slots), 128));
        k.main(|r| {
            r.wait(slots.slot(0, 0), 1);
            r.each(4, |i| theirs.put(0, i * 8, 7u64));
            r.signal(slots.slot(0, 1), 1);
        });
    });
    check(&[vec![owner.unwrap(), peer.unwrap()]])
}
