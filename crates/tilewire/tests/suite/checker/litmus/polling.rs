//! Tests: a role does something else while a slot is not ready.

use super::Shared;
use crate::checker::{check, expect, kinds};

#[test]
fn a_test_is_sampled_and_every_schedule_is_run() {
    let s = Shared::new();
    let send = s.rank(|r, bytes, slots, _| {
        bytes.put(0, 0, 7u64);
        r.signal(slots.slot(0, 0), 1);
    });
    let receive = s.rank(|r, bytes, slots, out| {
        let there = r.test(slots.slot(0, 0), 1);
        // Wrong if the test fails. Only some schedules show it.
        r.if_(!there, || out.store(0, bytes.get::<u64>(0, 0)));
        r.wait(slots.slot(0, 0), 1);
    });
    let report = check(&[vec![send, receive]]);
    assert!(!report.is_decided(), "{report}");
    expect(&report, "race", &[]);
    assert!(report.schedules > 1, "{report}");
}

#[test]
fn a_role_may_poll() {
    let s = Shared::new();
    let send = s.rank(|r, bytes, slots, _| {
        bytes.put(0, 0, 7u64);
        r.signal(slots.slot(0, 0), 1);
    });
    let polls = |slot: i64| {
        s.rank(move |r, bytes, slots, out| {
            r.while_(|| !r.test(slots.slot(0, slot), 1), || {});
            out.store(0, bytes.get::<u64>(0, 0));
        })
    };
    let report = check(&[vec![send.clone(), polls(0)]]);
    assert!(report.is_clean() && !report.is_decided(), "{report}");
    // Nobody will ever signal. The checker finds that the role polls forever, without waiting for it.
    let report = check(&[vec![send, polls(1)]]);
    assert!(kinds(&report) == ["no-producer", "deadlock"], "{report}");
}
