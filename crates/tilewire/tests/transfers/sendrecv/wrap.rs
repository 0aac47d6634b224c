//! Flags of packets repeat after 2³¹ messages: launches right before and after that. No leftovers of the last time are
//! taken.

use crate::case::{SMALL, Way, assert_same, data, poison, seed, threads};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tilewire::link::{ShmTransport, Transport};
use tilewire::transport::layout::{LINE, Side, StartWord};
use tilewire::transport::{Rank, RankError, World};
use tilewire::{Tensor, recv, send, sendrecv};
use tilewire_testkit::ranks::words;

/// The number of messages until flags repeat.
const FLAGS: u64 = 1 << 16;

/// Pretends that `count` messages went each way between this rank and a peer, and were all read. Both sides do so, and
/// then meet.
fn after_messages(world: &World, link: &ShmTransport, peer: Rank, count: u64) -> Result<(), RankError> {
    // The last credits have been given when both have come here.
    world.bootstrap().barrier(&format!("before {count} messages"), world.deadline())?;
    let endpoint = link.endpoint(peer).unwrap();
    for block in 0..link.link(peer).max_blocks {
        for side in [Side::Send, Side::Receive] {
            let line = block * 2 + side as usize;
            let word = line * (LINE / 8) + StartWord::Packet.index();
            words(&endpoint.starts)[word].store(count, Ordering::Release);
        }
        words(&endpoint.here.signals.packet_head)[block * (LINE / 8)].store(count, Ordering::Release);
    }
    Ok(world.bootstrap().barrier(&format!("after {count} messages"), world.deadline())?)
}

#[test]
fn messages_are_right_before_and_after_flags_come_again() {
    threads(2, "wrap", |world| {
        for start in [FLAGS - 13, 3 * FLAGS - 8, FLAGS - 1, FLAGS] {
            let link = ShmTransport::rendezvous(world, SMALL)?;
            let (me, peer) = (world.rank(), world.rank().after(1, 2));
            after_messages(world, &link, peer, start)?;
            // A message of 512 bytes for each block fills its packets; the others leave a part of them as they were.
            let mut shifts = Vec::new();
            for len in [128, 3, 64, 0] {
                let (inp, out) = (Tensor::<u32>::zeros(len), Tensor::<u32>::zeros(len));
                let shift =
                    sendrecv(&link, &out, &inp, peer, peer).config(Way::Packet.config(if len > 64 { 2 } else { 1 }));
                shifts.push((inp.clone(), out.clone(), shift.build()?));
            }
            for message in 0..40 {
                let (inp, out, shift) = &mut shifts[message * 7 % 4];
                let seed = seed() + message as u64;
                inp.copy_from(&data(seed, me, inp.len()));
                poison(out);
                shift.run()?;
                assert_same(&out.to_vec(), &data(seed, peer, out.len()), (start, message));
            }
            drop(shifts);
            link.close()?;
        }
        Ok(())
    });
}

#[test]
fn a_packet_left_from_the_last_time_is_not_taken() {
    threads(2, "stale", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (me, peer) = (world.rank(), world.rank().after(1, 2));
        let sends = me.index() == 0;
        let transfer = |len: usize, seed: u64, late: bool| -> Result<(), RankError> {
            let x = Tensor::from_slice(&data::<u64>(seed, Rank::new(0), len));
            if sends {
                let mut give = send(&link, &x, peer).config(Way::Packet.config(1)).build()?;
                if late {
                    // The receiver looks before anything new has arrived.
                    std::thread::sleep(Duration::from_millis(5));
                }
                give.run()?;
            } else {
                poison(&x);
                recv(&link, &x, peer).config(Way::Packet.config(1)).run()?;
                assert_same(&x.to_vec(), &data::<u64>(seed, Rank::new(0), len), (len, seed));
            }
            Ok(())
        };
        // Flags 1 … 8 now stand in all packets of the block.
        for message in 0..8 {
            transfer(64, message, false)?;
        }
        // 2³¹ messages later, short messages that leave most packets untouched …
        after_messages(world, &link, peer, FLAGS - 4)?;
        for message in 0..4 {
            transfer(1, 100 + message, false)?;
        }
        // … the same flags are sent again.
        for message in 0..8 {
            transfer(64, 200 + message, true)?;
        }
        Ok(link.close()?)
    });
}

#[test]
fn the_packets_of_other_blocks_wrap_on_their_own() {
    threads(2, "blocks", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let peer = world.rank().after(1, 2);
        after_messages(world, &link, peer, FLAGS - 3)?;
        // Block 0 is eight messages ahead of the others.
        for message in 0..30 {
            let blocks = if message < 8 { 1 } else { 1 + message % 4 };
            let (me, len) = (world.rank(), 60 * blocks);
            let (inp, out) = (Tensor::from_slice(&data::<f64>(message as u64, me, len)), Tensor::<f64>::zeros(len));
            poison(&out);
            sendrecv(&link, &out, &inp, peer, peer).config(Way::Packet.config(blocks)).run()?;
            assert_same(&out.to_vec(), &data(message as u64, peer, len), (message, blocks));
        }
        Ok(link.close()?)
    });
}
