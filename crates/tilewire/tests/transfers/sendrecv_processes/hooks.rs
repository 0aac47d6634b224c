//! Hooks of four kinds by every protocol. Several transfers are alive at a time on two transports, and are launched
//! alternately with new data.

use super::case::{Case, Hook, Ready};
use crate::case::{everything, pause, seed};
use tilewire::link::{ShmOptions, ShmTransport};
use tilewire::transport::{RankError, World};
use tilewire::{Knobs, Primitive};
use tilewire_testkit::job::Member;
use tilewire_testkit::random::Random;
use tilewire_testkit::ranks::{in_threads, in_worlds, join, start};

/// Random cases. Several are alive at a time, and ranks that come at any time launch them alternately with new data.
fn random_transfers(world: &World, seed: u64, cases: usize) -> Result<Vec<u64>, RankError> {
    let links = [
        ShmTransport::rendezvous(world, ShmOptions::default())?,
        ShmTransport::rendezvous(world, ShmOptions { per_peer_bytes: Some(1 << 20), ..ShmOptions::default() })?,
    ];
    let (mut random, mut late) = (Random::new(seed), Random::new(seed + u64::from(world.rank().number())));
    let (mut alive, mut digests) = (Vec::new(), Vec::new());
    for number in 0..cases {
        let case = Case::random(&mut random, world.size());
        let context = |error: String| format!("seed {seed}, case {number}, {case:?}: {error}");
        alive.push((case, Ready::build(&links[number % 2], case).map_err(|error| context(error.to_string()))?));
        for turn in 0..4 {
            // Usually the newest, and sometimes one whose geometry was used before others.
            let which = if turn < 3 { alive.len() - 1 } else { random.below(alive.len()) };
            let (case, ready) = &mut alive[which];
            let turn = number as u64 * 4 + turn;
            let context = |error: String| format!("seed {seed}, case {number}, {case:?}: {error}");
            ready.fill(turn);
            pause(&mut late);
            ready.launch().map_err(|error| context(error.to_string()))?;
            ready.check(turn).map_err(|error| context(error.to_string()))?;
            digests.push(digest(&ready.arrived()));
        }
        if alive.len() > 5 {
            alive.remove(random.below(5));
        }
    }
    drop(alive);
    let [a, b] = links;
    a.close()?;
    b.close()?;
    Ok(digests)
}

fn digest(bits: &[u32]) -> u64 {
    bits.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &x| (sum ^ u64::from(x)).wrapping_mul(0x100_0000_01b3))
}

fn sample(world: &World) -> Result<(), RankError> {
    let cases = if everything() { 400 } else { 40 };
    random_transfers(world, seed() + world.size() as u64, cases).map(drop)
}

#[test]
fn random_transfers_among_processes_are_right_to_the_bit() {
    let ranks = if everything() { 2..=8 } else { 2..=4 };
    in_worlds("sendrecv_processes::hooks::random_transfers_among_processes_are_right_to_the_bit", ranks, sample);
}

#[test]
fn random_transfers_among_four_threads_are_right_to_the_bit() {
    in_threads(4, sample);
}

#[test]
fn a_packet_share_that_is_no_whole_number_of_words_is_received_as_it_was_sent() {
    in_threads(2, |world| {
        let link = ShmTransport::rendezvous(world, ShmOptions::default())?;
        // The output is [6, 3]: each of 6 blocks has 3 elements of 4 bytes, all of it 9 words.
        let config = Knobs { primitive: Some(Primitive::Packet), blocks: Some(6), ..Knobs::default() };
        let mut ready = Ready::build(&link, Case { hook: Hook::Transpose, rows: 3, cols: 6, shift: 1, config })?;
        ready.fill(0);
        ready.launch()?;
        ready.check(0)
    });
}

#[test]
fn processes_and_threads_receive_the_same() {
    let test = "sendrecv_processes::hooks::processes_and_threads_receive_the_same";
    let said = |digests: Vec<u64>| format!("{digests:x?}");
    if let Some(mut member) = Member::of_this_process() {
        let world = join(&mut member);
        return member.report(said(random_transfers(&world, seed(), 15).unwrap()));
    }
    let threads = World::threads(3).run(|world| random_transfers(&world, seed(), 15)).unwrap();
    let (mut job, _store) = start(test, 3);
    for (rank, digests) in threads.into_iter().enumerate() {
        assert_eq!(job.report(rank), said(digests), "rank {rank}");
    }
    job.finish();
}

#[test]
fn a_thousand_launches_alternate_protocol_and_geometry() {
    in_worlds("sendrecv_processes::hooks::a_thousand_launches_alternate_protocol_and_geometry", [2], |world| {
        let link = ShmTransport::rendezvous(world, ShmOptions::default())?;
        let case = |hook, (rows, cols), primitive, blocks, slot_bytes, depth| {
            let config =
                Knobs { primitive: Some(primitive), blocks: Some(blocks), slot_bytes, depth, ..Knobs::default() };
            Case { hook, rows, cols, shift: 1, config }
        };
        let cases = [
            case(Hook::Copy, (1, 100), Primitive::Packet, 1, None, None),
            case(Hook::Scale, (1, 1000), Primitive::Staged, 2, Some(512), Some(2)),
            case(Hook::Transpose, (30, 41), Primitive::Staged, 1, Some(1024), Some(8)),
            case(Hook::Transpose, (30, 41), Primitive::Bulk, 2, Some(1024), Some(8)),
            case(Hook::Copy, (1, 999), Primitive::Direct, 3, None, None),
            case(Hook::Scale, (1, 17), Primitive::Packet, 8, None, None),
        ];
        let built = cases.map(|case| Ready::build(&link, case));
        let mut ready = built.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut random = Random::new(seed());
        for turn in 0..1000 {
            let one = random.below(ready.len());
            ready[one].fill(turn);
            ready[one].launch()?;
            ready[one].check(turn)?;
        }
        drop(ready);
        Ok(link.close()?)
    });
}
