//! Cumulativity through a chain of signals, and through the barriers of a role.

use super::Shared;
use crate::checker::{check, clean, expect, plan};
use tilewire::check::{Mutation, Settings};

#[test]
fn a_signal_is_cumulative() {
    // 0 → 1 → 2: rank 2 sees what rank 0 wrote, although rank 1 never touched it. By a credit it does not.
    for credit in [false, true] {
        let s = Shared::new();
        let first = s.rank(|r, bytes, slots, _| {
            bytes.put(0, 0, 1u64);
            r.signal(slots.slot(0, 0), 1);
        });
        let second = s.rank(|r, _, slots, _| {
            r.wait(slots.slot(0, 0), 1);
            if credit {
                r.signal_credit(slots.slot(0, 1), 1);
            } else {
                r.signal(slots.slot(0, 1), 1);
            }
        });
        let third = s.rank(|r, bytes, slots, out| {
            r.wait(slots.slot(0, 1), 1);
            out.store(0, bytes.get::<u64>(0, 0));
        });
        let report = check(&[vec![first, second, third]]);
        assert_eq!(report.is_clean(), !credit, "{report}");
    }
}

#[test]
fn elements_of_one_each_are_not_ordered_and_two_eaches_are() {
    let s = Shared::new();
    let two = s.rank(|r, bytes, _, out| {
        r.each(4, |i| bytes.put(0, i * 8, 1u64));
        r.each(4, |i| out.store(i, bytes.get::<u64>(0, (3 - i) * 8)));
    });
    clean(&check(&[vec![two]]));
    let s = Shared::new();
    let at = line!() + 3;
    let one = s.rank(|r, bytes, _, out| {
        r.each(4, |i| {
            bytes.put(0, i * 8, 1u64);
            out.store(i, bytes.get::<u64>(0, (3 - i) * 8));
        });
    });
    let report = check(&[vec![one]]);
    expect(&report, "race", &[at, at + 1]);
}

#[test]
fn a_role_barrier_hands_on_what_other_lanes_and_other_ranks_did() {
    // Rank 0's lanes write, and its leader signals. Rank 1's leader waits, and its lanes forward; each forwards the
    // write of another lane of rank 0. Rank 2 reads both in other lanes.
    let s = Shared::new();
    let first = s.rank(|r, bytes, slots, _| {
        r.each(4, |i| bytes.put(0, i * 8, i.cast::<u64>()));
        r.signal(slots.slot(0, 0), 1);
    });
    let store = line!() + 4;
    let second = s.rank(|r, bytes, slots, _| {
        let turned = r.scratch::<u64>(4);
        r.wait(slots.slot(0, 0), 1);
        r.each(4, |i| turned.store(i, bytes.get::<u64>(0, (3 - i) * 8)));
        r.each(4, |i| bytes.put(0, 64 + i * 8, turned.load(3 - i)));
        r.signal(slots.slot(0, 1), 1);
    });
    let third = s.rank(|r, bytes, slots, out| {
        r.wait(slots.slot(0, 1), 1);
        r.each(4, |i| out.store(i, bytes.get::<u64>(0, i * 8) + bytes.get::<u64>(0, 64 + i * 8)));
    });
    let plan = plan(&[vec![first, second, third]]);
    clean(&plan.verify(&Settings::default()));
    // Without the barrier at the end of the `each`, the lanes of rank 1 do not see each other's writes.
    let mutants = plan.mutants(Mutation::MissingBarrier);
    assert_eq!(mutants.len(), 1, "one each feeds another");
    expect(&mutants[0].verify(&Settings::default()), "race", &[store, store + 1]);
}
