//! A packet's flag vouches for the bytes beside it and for nothing else.

use super::Shared;
use crate::checker::{check, clean, expect};

#[test]
fn packets_carry_their_own_bytes_and_nothing_else() {
    let s = Shared::new();
    let send = s.rank(|r, bytes, _, _| r.each(4, |i| bytes.packet_put(0, i, i.cast::<u64>(), 1u32)));
    let receive = s.rank(|r, bytes, _, out| r.each(4, |i| out.store(i, bytes.packet_get(0, i, 1u32))));
    clean(&check(&[vec![send, receive]]));

    let s = Shared::new();
    let send = s.rank(|r, bytes, _, _| {
        bytes.put(0, 128, 1u64);
        r.each(4, |i| bytes.packet_put(0, i, i.cast::<u64>(), 1u32));
    });
    let receive = s.rank(|r, bytes, _, out| {
        r.each(4, |i| out.store(i, bytes.packet_get(0, i, 1u32)));
        out.store(0, bytes.get::<u64>(0, 128));
    });
    expect(&check(&[vec![send, receive]]), "race", &[]);
}

#[test]
fn packets_are_credited_like_slots() {
    for credited in [true, false] {
        let s = Shared::new();
        let send = s.rank(|r, bytes, slots, _| {
            r.each(4, |i| bytes.packet_put(0, i, i.cast::<u64>(), 1u32));
            if credited {
                r.wait(slots.slot(0, 0), 1);
            }
            r.each(4, |i| bytes.packet_put(0, i, i.cast::<u64>(), 2u32));
        });
        let receive = s.rank(|r, bytes, slots, out| {
            r.each(4, |i| out.store(i, bytes.packet_get(0, i, 1u32)));
            r.signal_credit(slots.slot(0, 0), 1);
            r.each(4, |i| out.store(i, bytes.packet_get(0, i, 2u32)));
        });
        let report = check(&[vec![send, receive]]);
        assert_eq!(report.is_clean(), credited, "{report}");
    }
}

/// A waiting element holds back no smaller one. Ranks that take their packets in the same order continue; other orders
/// may not.
#[test]
fn packets_that_are_put_and_got_in_one_each_are_so_in_ascending_order() {
    for ascending in [true, false] {
        let s = Shared::new();
        let swap = |mine: i64, reversed: bool| {
            s.rank(move |r, bytes, _, out| {
                r.each(4, |i| {
                    let k = if reversed { -i + 3 } else { i };
                    bytes.packet_put(0, k + mine * 4, i.cast::<u64>(), 1u32);
                    out.store(i, bytes.packet_get(0, k + (1 - mine) * 4, 1u32));
                });
            })
        };
        let report = check(&[vec![swap(0, false), swap(1, !ascending)]]);
        match ascending {
            true => clean(&report),
            false => _ = expect(&report, "deadlock", &[]),
        }
    }
}
