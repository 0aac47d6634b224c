//! Credits give a slot back and publish no data.

use super::Shared;
use crate::checker::{check, expect};

#[test]
fn a_credit_shows_no_data() {
    let s = Shared::new();
    let put = line!() + 2;
    let send = s.rank(|r, bytes, slots, _| {
        bytes.put(0, 0, 7u64);
        r.signal_credit(slots.slot(0, 0), 1);
    });
    let get = line!() + 3;
    let receive = s.rank(|r, bytes, slots, out| {
        r.wait(slots.slot(0, 0), 1);
        out.store(0, bytes.get::<u64>(0, 0));
    });
    let report = check(&[vec![send, receive]]);
    let fault = expect(&report, "race", &[put, get]);
    assert!(fault.to_string().contains("a credit shows no data"), "{fault}");
}

#[test]
fn a_credit_hands_a_slot_back() {
    for credited in [true, false] {
        let s = Shared::new();
        let send = s.rank(|r, bytes, slots, _| {
            bytes.put(0, 0, 1u64);
            r.signal(slots.slot(0, 0), 1);
            if credited {
                r.wait(slots.slot(0, 1), 1);
            }
            bytes.put(0, 0, 2u64);
            r.signal(slots.slot(0, 0), 2);
        });
        let receive = s.rank(|r, bytes, slots, out| {
            r.wait(slots.slot(0, 0), 1);
            out.store(0, bytes.get::<u64>(0, 0));
            r.signal_credit(slots.slot(0, 1), 1);
            r.wait(slots.slot(0, 0), 2);
            out.store(1, bytes.get::<u64>(0, 0));
        });
        let report = check(&[vec![send, receive]]);
        assert_eq!(report.is_clean(), credited, "{report}");
    }
}
