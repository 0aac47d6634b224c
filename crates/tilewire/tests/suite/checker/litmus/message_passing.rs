//! Message passing: data, then a signal; a wait, then the data.

use super::Shared;
use crate::checker::{check, clean, expect};

#[test]
fn message_passing_is_ordered() {
    let s = Shared::new();
    let send = s.rank(|r, bytes, slots, _| {
        bytes.put(0, 0, 7u64);
        r.signal(slots.slot(0, 0), 1);
    });
    let receive = s.rank(|r, bytes, slots, out| {
        r.wait(slots.slot(0, 0), 1);
        out.store(0, bytes.get::<u64>(0, 0));
    });
    clean(&check(&[vec![send, receive]]));
}

#[test]
fn message_passing_without_the_wait_is_a_race_at_both_lines() {
    let s = Shared::new();
    let put = line!() + 2;
    let send = s.rank(|r, bytes, slots, _| {
        bytes.put(0, 0, 7u64);
        r.signal(slots.slot(0, 0), 1);
    });
    let get = line!() + 2;
    let receive = s.rank(|r, bytes, slots, out| {
        out.store(0, bytes.get::<u64>(0, 0));
        r.wait(slots.slot(0, 0), 1);
    });
    let report = check(&[vec![send, receive]]);
    expect(&report, "race", &[put, get]);
    assert!(report.is_decided());
}

#[test]
fn a_signal_carries_what_all_lanes_of_the_role_did() {
    let s = Shared::new();
    let send = s.rank(|r, bytes, slots, _| {
        r.each(8, |i| bytes.put(0, i * 8, i.cast::<u64>()));
        r.signal(slots.slot(0, 0), 1);
    });
    let receive = s.rank(|r, bytes, slots, out| {
        r.wait(slots.slot(0, 0), 1);
        // The reading lanes are not the writing lanes.
        r.each(4, |i| out.store(i, bytes.get::<u64>(0, (3 - i) * 16)));
    });
    clean(&check(&[vec![send, receive]]));
}
