//! Memory outside of the message does not change.

use crate::case::{SMALL, Shift, Way, assert_same, bits, data, joined, poison, seed, threads};
use crate::untouched;
use std::ops::Range;
use std::sync::atomic::Ordering;
use tilewire::ir::scalar::Element;
use tilewire::link::{Transport, Window};
use tilewire::tensor::bytes_of;
use tilewire::transport::{Rank, RankError, World};
use tilewire::{Memory, Tensor, recv, send, sendrecv};
use tilewire_testkit::ranks::words;

/// Receives into the middle of a tensor.
fn into_the_middle<T: Element>(world: &World, link: &dyn Transport, way: Way, blocks: usize) -> Result<(), RankError> {
    let (me, peer) = (world.rank(), world.rank().after(1, 2));
    for (start, len) in [(1, 17), (8, 16), (64, 15), (3, 0), (64, 64)] {
        let (inp, all) = (Tensor::from_slice(&data::<T>(seed(), me, 200)), Tensor::<T>::zeros(200));
        poison(&all);
        let untouched = all.get(0);
        let out = all.slice(start..start + len);
        // The source is a part of a tensor, too.
        sendrecv(link, &out, &inp.slice(5..5 + len), peer, peer).config(way.config(blocks)).run()?;
        let mut must = vec![untouched; 200];
        must[start..start + len].copy_from_slice(&data::<T>(seed(), peer, 200)[5..5 + len]);
        assert_same(&all.to_vec(), &must, (T::TYPE, way, blocks, start, len));
        assert_eq!(bits(&inp.to_vec()), bits(&data::<T>(seed(), me, 200)), "what is sent is not changed");
    }
    Ok(())
}

#[test]
pub fn elements_around_the_output_are_untouched() {
    threads(2, "around", |world| {
        let link = joined(world, SMALL)?;
        for way in [Way::Packet, Way::staged(64, 2), Way::bulk(64, 4), Way::Chosen] {
            for blocks in [1, 2] {
                into_the_middle::<u8>(world, &link, way, blocks)?;
                into_the_middle::<u16>(world, &link, way, blocks)?;
                into_the_middle::<f32>(world, &link, way, blocks)?;
                into_the_middle::<u64>(world, &link, way, blocks)?;
            }
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn windows_of_others_are_untouched() {
    let [sender, receiver] = [0, 1].map(Rank::new);
    threads(3, "windows", |world| {
        let link = joined(world, SMALL)?;
        let (window, other) = (Window::<u16>::allocate(&link, 77)?, Window::<u16>::allocate(&link, 77)?);
        poison(window.tensor());
        poison(other.tensor());
        let untouched = vec![window.tensor().get(0); 77];
        world.bootstrap().barrier("poisoned", world.deadline())?;
        let sent = data::<u16>(seed(), sender, 77);
        if world.rank() == sender {
            send(&link, &Tensor::from_slice(&sent), receiver).window(&window).blocks(3).run()?;
        } else if world.rank() == receiver {
            recv(&link, window.tensor(), sender).window(&window).blocks(3).run()?;
        }
        world.bootstrap().barrier("sent", world.deadline())?;
        let must = if world.rank() == receiver { &sent } else { &untouched };
        assert_same(&window.tensor().to_vec(), must, world.rank());
        assert_same(&other.tensor().to_vec(), &untouched, "another window");
        Ok(link.close()?)
    });
}

#[test]
pub fn bytes_behind_a_window_are_untouched() {
    // Ends within a word, a vector and a line; several blocks end within one line.
    threads(2, "behind windows", |world| {
        let link = joined(world, SMALL)?;
        for len in [1, 3, 15, 77, 131, 1023] {
            for blocks in [1, 2, 3, 8] {
                let shift = Shift { len, by: 1, blocks, way: Way::Direct };
                shift.run::<u8>(world, &link, seed())?;
                shift.run::<u16>(world, &link, seed())?;
                shift.run::<f32>(world, &link, seed())?;
                shift.run::<u64>(world, &link, seed())?;
            }
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn bytes_behind_a_window_that_is_shorter_than_others_are_untouched() {
    // All segments are as long as the longest. The message is as long as the receiver's window.
    let len = |of: Rank| [77, 500, 21][of.index()];
    threads(3, "windows of their own lengths", |world| {
        let link = joined(world, SMALL)?;
        let (me, to, from) = (world.rank(), world.rank().after(1, 3), world.rank().after(2, 3));
        let window = Window::<u16>::allocate(&link, len(me))?;
        let behind = untouched::behind(window.tensor().memory());
        untouched::poison(&behind);
        let inp = Tensor::from_slice(&data::<u16>(seed(), me, len(to)));
        // READY comes after the poison is written, so no barrier is needed.
        sendrecv(&link, window.tensor(), &inp, to, from).window(&window).blocks(2).run()?;
        assert_eq!(untouched::spoilt(&behind), None, "a byte behind the window of {me}");
        assert_same(&window.tensor().to_vec(), &data::<u16>(seed(), from, len(me)), me);
        Ok(link.close()?)
    });
}

/// The value of memory that nobody may touch.
fn guard(at: usize) -> u64 {
    0x5a5a_0000_0000_0000 | at as u64
}

fn lay(memory: &Memory) {
    words(memory).iter().enumerate().for_each(|(at, word)| word.store(guard(at), Ordering::Release));
}

/// All bytes except those that `used` counts.
#[track_caller]
fn assert_laid(memory: &Memory, used: &[Range<usize>], what: impl std::fmt::Debug) {
    for (at, word) in words(memory).iter().enumerate() {
        if used.iter().all(|used| !used.contains(&(at * 8))) {
            assert_eq!(word.load(Ordering::Acquire), guard(at), "byte {} of {what:?}", at * 8);
        }
    }
}

#[test]
fn staging_and_packets_that_are_not_of_the_message_are_untouched() {
    const BLOCKS: usize = 3;
    let [sender, receiver] = [0, 1].map(Rank::new);
    threads(3, "staging", |world| {
        let link = joined(world, SMALL)?;
        let me = world.rank();
        let areas = |of: Rank| {
            let endpoint = link.endpoint(of).unwrap();
            [endpoint.here.staging, endpoint.here.packets]
        };
        for from in Rank::all(3) {
            areas(from).iter().for_each(lay);
        }
        world.bootstrap().barrier("laid", world.deadline())?;
        let slot_bytes = 128;
        for (way, len) in [(Way::staged(slot_bytes, 3), 1000), (Way::bulk(slot_bytes, 3), 1000), (Way::Packet, 3 * 64)]
        {
            // Elements of eight bytes, 64 of them for each block in a message of packets.
            let x = Tensor::from_slice(&data::<u64>(seed(), sender, len));
            if me == sender {
                send(&link, &x, receiver).config(way.config(BLOCKS)).run()?;
            } else if me == receiver {
                poison(&x);
                recv(&link, &x, sender).config(way.config(BLOCKS)).run()?;
                assert_same(&x.to_vec(), &data::<u64>(seed(), sender, len), way);
            }
        }
        world.bootstrap().barrier("sent", world.deadline())?;
        let shape = link.link(sender);
        let (block, packets) = (shape.block_bytes(), shape.block_packet_bytes());
        for from in Rank::all(3) {
            let [staging, of_packets] = areas(from);
            if (me, from) == (receiver, sender) {
                let slots: Vec<_> = (0..BLOCKS).map(|b| b * block..b * block + 3 * slot_bytes).collect();
                // One message of 64 packets, the first of the eight of a block.
                let message: Vec<_> = (0..BLOCKS).map(|b| b * packets..b * packets + 64 * 16).collect();
                assert_laid(&staging, &slots, "staging of the sender");
                assert_laid(&of_packets, &message, "packets of the sender");
            } else {
                assert_laid(&staging, &[], (me, from, "staging"));
                assert_laid(&of_packets, &[], (me, from, "packets"));
            }
        }
        Ok(link.close()?)
    });
}

#[test]
fn slots_of_other_peers_and_blocks_are_untouched() {
    threads(3, "slots", |world| {
        let link = joined(world, SMALL)?;
        let (me, idle) = (world.rank(), Rank::new(2));
        if me != idle {
            let peer = me.after(1, 2);
            let (inp, out) = (Tensor::<u32>::zeros(700), Tensor::<u32>::zeros(700));
            sendrecv(&link, &out, &inp, peer, peer).config(Way::staged(128, 2).config(2)).run()?;
        }
        world.bootstrap().barrier("done", world.deadline())?;
        let zero = |memory: &Memory| bytes_of(memory).unwrap().iter().all(|&byte| byte == 0);
        for peer in Rank::all(3) {
            let endpoint = link.endpoint(peer).unwrap();
            let all = [&endpoint.here.signals.tail, &endpoint.here.signals.head, &endpoint.starts];
            if me == idle || peer == idle || peer == me {
                assert!(all.into_iter().all(zero), "{me} and {peer}");
                continue;
            }
            assert!(!all.into_iter().any(zero));
            for slots in &all[..2] {
                let block = slots.bytes() / link.link(peer).max_blocks;
                assert!(zero(&slots.part(2 * block, slots.bytes() - 2 * block)), "blocks that took no part");
                assert!(zero(&slots.part(block / 4, block / 4 * 3)), "slots beyond the depth");
            }
        }
        Ok(link.close()?)
    });
}
