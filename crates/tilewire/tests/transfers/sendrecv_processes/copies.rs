//! Plain copies among processes: every type, size, number of ranks and of blocks, by every protocol, as in the suite of
//! threads.

use crate::case::{SMALL, Shift, TYPES, Way, everything, pause, seed};
use tilewire::link::{ShmOptions, ShmTransport};
use tilewire::transport::{RankError, World};
use tilewire_testkit::random::Random;
use tilewire_testkit::ranks::in_worlds;

#[test]
fn every_type_in_every_small_count_goes_every_way() {
    in_worlds("sendrecv_processes::copies::every_type_in_every_small_count_goes_every_way", [2], |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        for ty in 0..TYPES {
            for (number, len) in [0, 1, 15, 16, 17].into_iter().enumerate() {
                for way in [Way::Chosen, Way::Packet, Way::staged(128, 2), Way::bulk(128, 2), Way::Direct] {
                    // Every number of blocks meets every size in some type.
                    for blocks in [1, 2 + (ty + number) % 7] {
                        Shift { len, by: 1, blocks, way }.run_as(ty, world, &link, seed() + len as u64)?;
                    }
                }
            }
        }
        Ok(link.close()?)
    });
}

#[test]
fn one_to_eight_blocks_share_tiles_that_they_do_not_divide() {
    in_worlds("sendrecv_processes::copies::one_to_eight_blocks_share_tiles_that_they_do_not_divide", [2], |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        for blocks in 1..=8 {
            for (way, len) in [
                (Way::staged(256, 2), 64 * 13 + 5),
                (Way::bulk(256, 2), 64 * 13 + 5),
                // More than 128 steps of one block.
                (Way::staged(128, 8), 64 * 130 + 1),
                (Way::Packet, 109),
                (Way::Direct, 1001),
            ] {
                Shift { len, by: 1, blocks, way }.run::<u16>(world, &link, seed())?;
            }
        }
        Ok(link.close()?)
    });
}

#[test]
fn a_kibibyte_to_many_mebibytes_go_every_way() {
    let ranks = if everything() { 2..=8 } else { 2..=2 };
    in_worlds("sendrecv_processes::copies::a_kibibyte_to_many_mebibytes_go_every_way", ranks, |world| {
        let link = ShmTransport::rendezvous(world, ShmOptions::default())?;
        // All ranks together send half a GiB at most: a rank has each of its messages five times in memory.
        let largest = if everything() { (512 << 20) / world.size() } else { 1 << 20 };
        let mut bytes = 1 << 10;
        while bytes <= largest {
            for (number, way) in
                [Way::Chosen, Way::staged(64 << 10, 2), Way::bulk(32 << 10, 4), Way::Direct].into_iter().enumerate()
            {
                let (len, by) = (bytes / 8 - number % 2, 1 + number % (world.size() - 1));
                Shift { len, by, blocks: 1 + len % 3, way }.run_as([7, 11][number % 2], world, &link, seed())?;
            }
            bytes *= 4;
        }
        Ok(link.close()?)
    });
}

/// Transfers of any kind, on two transports in any order, of ranks that come at any time.
fn sample(world: &World) -> Result<(), RankError> {
    let ranks = world.size();
    let links = [
        ShmTransport::rendezvous(world, SMALL)?,
        ShmTransport::rendezvous(world, ShmOptions { per_peer_bytes: Some(64 << 10), ..SMALL })?,
    ];
    let mut numbers = Random::new(seed().wrapping_mul(31).wrapping_add(ranks as u64));
    let mut late = Random::new(seed() + u64::from(world.rank().number()));
    for _ in 0..if everything() { 3000 } else { 150 } {
        let (shift, ty, link) = (Shift::any(&mut numbers, ranks), numbers.below(TYPES), numbers.pick(&[0, 1]));
        pause(&mut late);
        shift.run_as(ty, world, &links[link], numbers.next())?;
    }
    let [a, b] = links;
    a.close()?;
    Ok(b.close()?)
}

#[test]
fn a_seeded_sample_of_everything() {
    println!("seed {}", seed());
    in_worlds("sendrecv_processes::copies::a_seeded_sample_of_everything", 2..=8, sample);
}
