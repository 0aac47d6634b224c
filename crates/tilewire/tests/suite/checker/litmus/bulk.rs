//! Bulk copies are asynchronous. Only proxy fences and waits order them.

use super::Shared;
use crate::checker::check;
use tilewire::ir::BulkDone;

#[test]
fn a_bulk_copy_is_seen_when_it_was_waited_for() {
    for (fenced, waited, ok) in [
        (true, Some(BulkDone::Complete), true),
        (false, Some(BulkDone::Complete), false),
        (true, Some(BulkDone::Read), false),
        (true, None, false),
    ] {
        let s = Shared::new();
        let send = s.rank(|r, bytes, slots, _| {
            let tile = r.scratch::<u8>(64);
            r.each(64, |i| tile.store(i, i.cast::<u8>()));
            if fenced {
                r.proxy_fence();
            }
            r.bulk_copy(bytes.bank(0), tile, 64);
            if let Some(done) = waited {
                r.bulk_wait(0, done);
            }
            r.signal(slots.slot(0, 0), 1);
        });
        let receive = s.rank(|r, bytes, slots, out| {
            r.wait(slots.slot(0, 0), 1);
            out.store(0, bytes.get::<u64>(0, 0));
        });
        let report = check(&[vec![send, receive]]);
        assert_eq!(report.is_clean(), ok, "fenced {fenced}, waited {waited:?}: {report}");
    }
}

#[test]
fn a_refill_needs_the_source_to_be_read_and_a_fence_for_the_next_copy() {
    for (read, fenced, ok) in [(true, true, true), (false, true, false), (true, false, false)] {
        let s = Shared::new();
        let send = s.rank(|r, bytes, _, _| {
            let tile = r.scratch::<u8>(32);
            for half in 0..2i64 {
                if half == 1 && read {
                    r.bulk_wait(0, BulkDone::Read);
                }
                r.each(32, |i| tile.store(i, i.cast::<u8>()));
                if half == 0 || fenced {
                    r.proxy_fence();
                }
                r.bulk_copy(bytes.bank(0).part(half * 32, 32), tile, 32);
            }
            r.bulk_wait(0, BulkDone::Complete);
        });
        let report = check(&[vec![send]]);
        assert_eq!(report.is_clean(), ok, "read {read}, fenced {fenced}: {report}");
    }
}
