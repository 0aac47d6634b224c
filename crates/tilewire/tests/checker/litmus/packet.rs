//! Packets: a flag vouches for the bytes beside it and for nothing else.

use super::Shared;
use crate::{check, clean, expect};

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
