//! Bulk copies happen at any time between the last proxy fence and the wait that covers them.

use super::Expect::Fault;
use super::{Seen, Shared, check};
use tilewire::ir::BulkDone;

seeds! {
    bulk_wait_leaves_one_pending: Fault("race"),
    bulk_signalled_before_the_wait: Fault("race"),
    bulk_waited_for_as_read_before_the_signal: Fault("race"),
    bulk_from_a_region_without_a_fence_after_the_wait: Fault("race"),
    bulk_to_scratch_waited_for_as_read: Fault("race"),
    bulk_credited_before_it_has_read: Fault("race"),
    bulk_copies_to_one_place: Fault("race"),
    bulk_fence_before_the_stores: Fault("race"),
    bulk_into_a_slot_just_given_back_without_a_fence: Fault("race"),
    bulk_source_refilled_two_copies_later: Fault("race"),
}

/// Two copies of 32 bytes to a peer, with `done(kit)` between the last one and the signal.
fn sends(pending: u32, done: Option<BulkDone>) -> Seen {
    let s = Shared::new();
    let send = s.rank(move |r, kit| {
        let tile = r.scratch::<u8>(64);
        r.each(64, |i| tile.store(i, 7u8));
        r.proxy_fence();
        for half in 0..2i64 {
            r.bulk_copy(kit.bytes.bank(0).part(half * 32, 32), tile.part(half * 32, 32), 32);
        }
        if let Some(done) = done {
            r.bulk_wait(pending, done);
        }
        r.signal(kit.slots.slot(0, 0), 1);
        r.bulk_wait(0, BulkDone::Complete);
    });
    let receive = s.rank(|r, kit| {
        r.wait(kit.slots.slot(0, 0), 1);
        r.each(8, |i| kit.out.store(i, kit.bytes.get::<u64>(0, i * 8)));
    });
    check(&[vec![send, receive]])
}

/// Only the first of two copies is known to have arrived when the signal is given.
fn bulk_wait_leaves_one_pending() -> Seen {
    sends(1, Some(BulkDone::Complete))
}

fn bulk_signalled_before_the_wait() -> Seen {
    sends(0, None)
}

/// `Read` says that the source may be overwritten, not that the copy has arrived.
fn bulk_waited_for_as_read_before_the_signal() -> Seen {
    sends(0, Some(BulkDone::Read))
}

/// A proxy fence makes visible to bulk copies what a wait has made visible.
fn bulk_from_a_region_without_a_fence_after_the_wait() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        r.each(4, |i| kit.bytes.put(0, i * 8, 7u64));
        r.signal(kit.slots.slot(0, 0), 1);
    });
    let receive = s.rank(|r, kit| {
        let tile = r.scratch::<u8>(32);
        r.proxy_fence();
        r.wait(kit.slots.slot(0, 0), 1);
        r.bulk_copy(tile, kit.bytes.bank(0), 32);
        r.bulk_wait(0, BulkDone::Complete);
        kit.out.store(0, tile.load(0).cast::<u64>());
    });
    check(&[vec![send, receive]])
}

/// The role waits until the copy has read its source, not until it has written, and then reads its scratch.
fn bulk_to_scratch_waited_for_as_read() -> Seen {
    let s = Shared::new();
    let rank = s.rank(|r, kit| {
        let tile = r.scratch::<u8>(32);
        r.each(4, |i| kit.bytes.put(0, i * 8, 7u64));
        r.proxy_fence();
        r.bulk_copy(tile, kit.bytes.bank(0), 32);
        r.bulk_wait(0, BulkDone::Read);
        kit.out.store(0, tile.load(0).cast::<u64>());
    });
    check(&[vec![rank]])
}

/// The receiver gives the slot back while the copy still reads it.
fn bulk_credited_before_it_has_read() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        for step in 0..2 {
            r.wait(kit.slots.slot(0, 1), step);
            r.each(4, |i| kit.bytes.put(0, i * 8, 7u64));
            r.signal(kit.slots.slot(0, 0), step + 1);
        }
    });
    let receive = s.rank(|r, kit| {
        let tile = r.scratch::<u8>(32);
        for step in 0..2 {
            r.wait(kit.slots.slot(0, 0), step + 1);
            r.proxy_fence();
            r.bulk_copy(tile, kit.bytes.bank(0), 32);
            r.signal_credit(kit.slots.slot(0, 1), step + 1);
            r.bulk_wait(0, BulkDone::Complete);
            kit.out.store(step, tile.load(0).cast::<u64>());
        }
    });
    check(&[vec![send, receive]])
}

/// Two copies under way overlap by 16 bytes. Either may be the last.
fn bulk_copies_to_one_place() -> Seen {
    let s = Shared::new();
    let rank = s.rank(|r, kit| {
        let tile = r.scratch::<u8>(64);
        r.each(64, |i| tile.store(i, 7u8));
        r.proxy_fence();
        r.bulk_copy(kit.bytes.bank(0), tile, 32);
        r.bulk_copy(kit.bytes.bank(0).part(16, 32), tile.part(32, 32), 32);
        r.bulk_wait(0, BulkDone::Complete);
    });
    check(&[vec![rank]])
}

/// The fence orders earlier stores, and these come later.
fn bulk_fence_before_the_stores() -> Seen {
    let s = Shared::new();
    let rank = s.rank(|r, kit| {
        let tile = r.scratch::<u8>(32);
        r.proxy_fence();
        r.each(32, |i| tile.store(i, 7u8));
        r.bulk_copy(kit.bytes.bank(0), tile, 32);
        r.bulk_wait(0, BulkDone::Complete);
    });
    check(&[vec![rank]])
}

/// The credit lets the sender write again. Without a fence, its bulk copy may have begun before.
fn bulk_into_a_slot_just_given_back_without_a_fence() -> Seen {
    let s = Shared::new();
    let send = s.rank(|r, kit| {
        let tile = r.scratch::<u8>(64);
        r.each(64, |i| tile.store(i, 7u8));
        r.proxy_fence();
        for step in 0..2 {
            r.wait(kit.slots.slot(0, 1), step);
            r.bulk_copy(kit.bytes.bank(0), tile.part(step * 32, 32), 32);
            r.bulk_wait(0, BulkDone::Complete);
            r.signal(kit.slots.slot(0, 0), step + 1);
        }
    });
    let receive = s.rank(|r, kit| {
        for step in 0..2 {
            r.wait(kit.slots.slot(0, 0), step + 1);
            kit.out.store(step, kit.bytes.get::<u64>(0, 0));
            r.signal_credit(kit.slots.slot(0, 1), step + 1);
        }
    });
    check(&[vec![send, receive]])
}

/// Two tiles take turns, and a wait leaves two copies pending. The tile before last is still being read.
fn bulk_source_refilled_two_copies_later() -> Seen {
    let s = Shared::new();
    let rank = s.rank(|r, kit| {
        let tiles = r.scratch::<u8>(32);
        for step in 0..3i64 {
            let tile = tiles.part(step % 2 * 16, 16);
            if step == 2 {
                r.bulk_wait(2, BulkDone::Read);
            }
            r.each(16, |i| tile.store(i, 7u8));
            r.proxy_fence();
            r.bulk_copy(kit.bytes.bank(0).part(step * 16, 16), tile, 16);
        }
        r.bulk_wait(0, BulkDone::Complete);
    });
    check(&[vec![rank]])
}
