//! Plain copies: every type, size, number of ranks and of blocks, by every protocol.

use crate::case::{SMALL, Shift, TYPES, Way, assert_same, data, everything, joined, poison, seed, threads};
use tilewire::link::ShmOptions;
use tilewire::transport::Rank;
use tilewire::{Tensor, recv, send, sendrecv};
use tilewire_testkit::random::Random;

const WAYS: [Way; 6] =
    [Way::Packet, Way::staged(128, 2), Way::staged(512, 8), Way::bulk(128, 2), Way::bulk(512, 8), Way::Direct];

#[test]
pub fn every_type_in_every_small_count_goes_every_way() {
    threads(2, "small counts", |world| {
        let link = joined(world, SMALL)?;
        for ty in 0..TYPES {
            for len in [0, 1, 15, 16, 17] {
                for way in WAYS {
                    for blocks in [1, 3] {
                        Shift { len, by: 1, blocks, way }.run_as(ty, world, &link, seed() + len as u64)?;
                    }
                }
            }
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn a_kibibyte_to_many_mebibytes_go_every_way() {
    let largest = if everything() { 256 << 20 } else { 1 << 20 };
    threads(2, "large", |world| {
        let link = joined(world, ShmOptions::default())?;
        let mut bytes = 1 << 10;
        while bytes <= largest {
            for way in [Way::Chosen, Way::staged(64 << 10, 2), Way::bulk(32 << 10, 4), Way::Direct] {
                for (len, ty) in [(bytes / 8, 7), (bytes / 8 - 1, 11)] {
                    Shift { len, by: 1, blocks: 1 + len % 3, way }.run_as(ty, world, &link, seed())?;
                }
            }
            bytes *= 4;
        }
        for (bytes, ty) in [(1 << 10, 4), (10_000, 9), (65_536, 10), (100_000, 1)] {
            Shift { len: bytes, by: 1, blocks: 2, way: Way::Chosen }.run_as(ty, world, &link, seed())?;
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn rings_of_two_to_eight_ranks_shift_by_every_distance() {
    for ranks in 2..=8 {
        threads(ranks, ranks, |world| {
            let link = joined(world, SMALL)?;
            for by in 1..ranks {
                for (way, len) in
                    [(Way::Packet, 100), (Way::staged(256, 2), 1000), (Way::bulk(256, 5), 1000), (Way::Direct, 300)]
                {
                    Shift { len, by, blocks: 1 + by % 2, way }.run::<f32>(world, &link, seed() + by as u64)?;
                }
            }
            Ok(link.close()?)
        });
    }
}

#[test]
pub fn one_to_eight_blocks_share_tiles_that_they_do_not_divide() {
    threads(2, "blocks", |world| {
        let link = joined(world, SMALL)?;
        for blocks in 1..=8 {
            for (way, len) in [
                (Way::staged(256, 2), 64 * 13 + 5),
                (Way::staged(256, 3), 64 * 3),
                (Way::staged(128, 8), 64 * 100 + 1),
                (Way::bulk(256, 2), 64 * 13 + 5),
                (Way::bulk(128, 8), 64 * 100 + 1),
                (Way::Packet, 109),
                (Way::Direct, 1001),
                (Way::Direct, 5),
            ] {
                Shift { len, by: 1, blocks, way }.run::<f32>(world, &link, seed())?;
                Shift { len, by: 1, blocks, way }.run::<u16>(world, &link, seed())?;
            }
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn a_block_goes_more_than_128_steps() {
    threads(3, "steps", |world| {
        let link = joined(world, SMALL)?;
        for (depth, blocks) in [(2, 1), (7, 1), (8, 3)] {
            // 16 elements in a slot: 600 steps and a part of one, three times the 200 of a block.
            Shift { len: 16 * 600 + 3, by: 2, blocks, way: Way::staged(128, depth) }.run::<u64>(
                world,
                &link,
                seed(),
            )?;
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn a_message_goes_from_rank_to_rank_by_send_and_recv() {
    let (first, ranks) = (Rank::new(0), 5);
    threads(ranks, "chain", |world| {
        let link = joined(world, SMALL)?;
        for (round, way) in [Way::Packet, Way::staged(256, 3), Way::bulk(256, 3), Way::Chosen].into_iter().enumerate() {
            let (len, seed) = (77 + round, seed() + round as u64);
            let (me, config) = (world.rank(), way.config(2));
            let x = Tensor::from_slice(&data::<i32>(seed, first, len));
            if me != first {
                poison(&x);
                recv(&link, &x, me.after(ranks - 1, ranks)).config(config).run()?;
            }
            if me.index() + 1 < ranks {
                send(&link, &x, me.after(1, ranks)).config(config).run()?;
            }
            assert_same(&x.to_vec(), &data::<i32>(seed, first, len), (me, way));
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn every_leg_of_a_ring_may_have_a_length_of_its_own() {
    let len = |from: Rank| [0, 700, 33, 129][from.index()];
    threads(4, "lengths", |world| {
        let link = joined(world, SMALL)?;
        let (me, to, from) = (world.rank(), world.rank().after(1, 4), world.rank().after(3, 4));
        for way in [Way::Chosen, Way::staged(128, 2), Way::bulk(128, 3)] {
            let (inp, out) = (Tensor::from_slice(&data::<u16>(seed(), me, len(me))), Tensor::zeros(len(from)));
            poison(&out);
            sendrecv(&link, &out, &inp, to, from).config(way.config(2)).run()?;
            assert_same(&out.to_vec(), &data::<u16>(seed(), from, len(from)), (me, way));
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn a_pair_sends_both_ways_without_sendrecv() {
    threads(2, "both ways", |world| {
        let link = joined(world, SMALL)?;
        let (me, peer) = (world.rank(), world.rank().after(1, 2));
        let (x, y) = (Tensor::from_slice(&data::<f64>(seed(), me, 40)), Tensor::<f64>::zeros(40));
        let (mut give, mut take) = (send(&link, &x, peer).build()?, recv(&link, &y, peer).build()?);
        for _ in 0..20 {
            // One rank sends first, the other receives first.
            if me.index() == 0 {
                give.run()?;
                take.run()?;
            } else {
                take.run()?;
                give.run()?;
            }
            assert_same(&y.to_vec(), &data::<f64>(seed(), peer, 40), me);
        }
        drop((give, take));
        Ok(link.close()?)
    });
}

#[test]
pub fn a_seeded_sample_of_everything() {
    let (worlds, transfers) = if everything() { (500, 40) } else { (8, 12) };
    for world_number in 0..worlds {
        let numbers = Random::new(seed().wrapping_mul(31).wrapping_add(world_number));
        let ranks = 2 + numbers.clone().below(7);
        threads(ranks, &numbers, |world| {
            let (mut numbers, link) = (numbers.clone(), joined(world, SMALL)?);
            for _ in 0..transfers {
                let (shift, ty) = (Shift::any(&mut numbers, ranks), numbers.below(TYPES));
                shift.run_as(ty, world, &link, numbers.next())?;
            }
            Ok(link.close()?)
        });
    }
}

#[test]
pub fn what_is_chosen_fits_every_transport() {
    // From hardly any staging and packets to plenty of both.
    for (per_peer_bytes, packet_bytes, max_blocks_per_peer) in
        [(1024, 0, 8), (4096, 1024, 8), (300, 2048, 2), (1 << 16, 256, 1)]
    {
        let options = ShmOptions {
            per_peer_bytes: Some(per_peer_bytes),
            packet_bytes: Some(packet_bytes),
            max_blocks_per_peer: Some(max_blocks_per_peer),
            ..SMALL
        };
        threads(2, options, |world| {
            let link = joined(world, options)?;
            for blocks in [1, 2, 8].into_iter().filter(|&blocks| blocks <= max_blocks_per_peer) {
                for len in [1, 16, 65, 100, 1000] {
                    Shift { len, by: 1, blocks, way: Way::Chosen }.run::<u64>(world, &link, seed())?;
                    Shift { len, by: 1, blocks, way: Way::Chosen }.run::<f32>(world, &link, seed())?;
                }
            }
            Ok(link.close()?)
        });
    }
}
