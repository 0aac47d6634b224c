//! Independent reads of independent writes.

use super::Shared;
use crate::checker::check;

/// With a signal for each write and a wait before each read, no disagreement can be seen.
#[test]
fn iriw_with_signals_is_ordered_and_without_is_not() {
    for ordered in [true, false] {
        let s = Shared::new();
        let writer = |at: i64| {
            s.rank(move |r, bytes, slots, _| {
                bytes.put(0, at * 8, 1u64);
                r.signal(slots.slot(0, at), 1);
            })
        };
        let reader = |first: i64, second: i64| {
            s.rank(move |r, bytes, slots, out| {
                for (i, at) in [first, second].into_iter().enumerate() {
                    if ordered {
                        r.wait(slots.slot(0, at), 1);
                    }
                    out.store(i as i64, bytes.get::<u64>(0, at * 8));
                }
            })
        };
        let report = check(&[vec![writer(0), writer(1), reader(0, 1), reader(1, 0)]]);
        assert_eq!(report.is_clean(), ordered, "{report}");
    }
}
