//! Transfers among real processes: every bit right, the same as among threads, and a typed error for every survivor of a rank
//! that dies, panics, leaves or never comes.
#![cfg(target_os = "linux")]

#[path = "support/job.rs"]
mod job;
#[path = "support/ranks.rs"]
mod ranks;
#[path = "support/transfers.rs"]
mod transfers;
#[path = "support/untouched.rs"]
mod untouched;

use job::Member;
use ranks::{in_processes, in_threads, join, join_within, start};
use std::time::{Duration, Instant};
use tilewire::transport::{RankError, ShmOptions, ShmTransport, TransferError, TransportError, World};
use tilewire::{Config, LaunchError, Primitive, RunError};
use transfers::{Case, Hook, Random, Ready};

const SEED: u64 = 0x5eed_0003;

/// Random cases, several of them alive at a time, launched in turns with new data.
fn random_transfers(world: &World, seed: u64, cases: usize) -> Result<Vec<u64>, RankError> {
    let link = ShmTransport::rendezvous(world, ShmOptions::default())?;
    let mut random = Random(seed);
    let (mut alive, mut digests) = (Vec::new(), Vec::new());
    for number in 0..cases {
        let case = Case::random(&mut random, world.size());
        let context = |error: String| format!("seed {seed:#x}, case {number}, {case:?}: {error}");
        alive.push((case, Ready::build(&link, case).map_err(|error| context(error.to_string()))?));
        for turn in 0..4 {
            // Mostly the newest, now and then one whose geometry was used before others.
            let which = if turn < 3 { alive.len() - 1 } else { random.below(alive.len()) };
            let (case, ready) = &mut alive[which];
            let turn = number as u64 * 4 + turn;
            let context = |error: String| format!("seed {seed:#x}, case {number}, {case:?}: {error}");
            ready.fill(turn);
            ready.launch().map_err(|error| context(error.to_string()))?;
            ready.check(turn).map_err(|error| context(error.to_string()))?;
            digests.push(digest(&ready.arrived()));
        }
        if alive.len() > 5 {
            alive.remove(random.below(5));
        }
    }
    drop(alive);
    link.close()?;
    Ok(digests)
}

fn digest(bits: &[u32]) -> u64 {
    bits.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &x| (sum ^ u64::from(x)).wrapping_mul(0x100_0000_01b3))
}

fn sample(world: &World) -> Result<(), RankError> {
    random_transfers(world, SEED + world.size() as u64, 40).map(drop)
}

#[test]
fn random_transfers_between_two_processes_are_right_to_the_bit() {
    in_processes("random_transfers_between_two_processes_are_right_to_the_bit", 2, sample);
}

#[test]
fn random_transfers_among_three_processes_are_right_to_the_bit() {
    in_processes("random_transfers_among_three_processes_are_right_to_the_bit", 3, sample);
}

#[test]
fn random_transfers_among_four_processes_are_right_to_the_bit() {
    in_processes("random_transfers_among_four_processes_are_right_to_the_bit", 4, sample);
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
        let config = Config { primitive: Some(Primitive::Packet), blocks: Some(6), ..Config::default() };
        let mut ready = Ready::build(&link, Case { hook: Hook::Transpose, rows: 3, cols: 6, shift: 1, config })?;
        ready.fill(0);
        ready.launch()?;
        ready.check(0)
    });
}

#[test]
fn processes_and_threads_receive_the_same() {
    let test = "processes_and_threads_receive_the_same";
    let said = |digests: Vec<u64>| format!("{digests:x?}");
    if let Some(mut member) = Member::of_this_process() {
        let world = join(&mut member);
        return member.report(said(random_transfers(&world, SEED, 15).unwrap()));
    }
    let threads = World::threads(3).run(|world| random_transfers(&world, SEED, 15)).unwrap();
    let (mut job, _store) = start(test, 3);
    for (rank, digests) in threads.into_iter().enumerate() {
        assert_eq!(job.report(rank), said(digests), "rank {rank}");
    }
    job.finish();
}

#[test]
fn a_thousand_launches_alternate_protocol_and_geometry() {
    in_processes("a_thousand_launches_alternate_protocol_and_geometry", 2, |world| {
        let link = ShmTransport::rendezvous(world, ShmOptions::default())?;
        let case = |hook, (rows, cols), primitive, blocks, slot_bytes, depth| {
            let config =
                Config { primitive: Some(primitive), blocks: Some(blocks), slot_bytes, depth, ..Config::default() };
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
        let mut random = Random(SEED);
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

// ---- ranks that fail ------------------------------------------------------------------------------------------------

/// What a survivor tells: its error, and the error of the call after that.
fn told(error: &RunError) -> String {
    match error {
        RunError::Launch(LaunchError::Aborted { cause, .. }) => format!("aborted: {cause}"),
        RunError::Transfer(TransferError::Broken { cause }) => format!("broken: {cause}"),
        RunError::Transport(error) => match &**error {
            TransportError::Broken { cause } => format!("broken: {cause}"),
            TransportError::NotMet { ticket, .. } => format!("not met: {}", ticket.peer),
            other => format!("another error: {other}"),
        },
        RunError::Timeout(timeout) => format!("timeout: {}", timeout.peer),
        other => format!("another error: {other}"),
    }
}

/// Launches until that fails, and looks at what is left: memory outside the message, the next call, descriptors, mappings.
fn transfer_until_it_fails(member: &mut Member, world: World, case: Case) {
    let before = open_files();
    let link = ShmTransport::rendezvous(&world, ShmOptions { per_peer_bytes: 1 << 20, ..Default::default() }).unwrap();
    let mut ready = Ready::build(&link, case).unwrap();
    let mut turn = 0;
    let error = loop {
        ready.fill(turn);
        match ready.launch() {
            Ok(()) => ready.check(turn).unwrap(),
            Err(error) => break error,
        }
        if turn == 0 {
            member.report("under way");
        }
        turn += 1;
    };
    member.report(told(&error));
    ready.check_outside(turn).unwrap();
    ready.check_partial(turn).unwrap();
    member.report(told(&ready.launch().unwrap_err()));
    drop(ready);
    assert!(Ready::build(&link, case).is_err(), "a broken transport builds nothing");
    let closed = link.close().unwrap_err();
    assert!(matches!(closed, TransportError::Broken { .. }), "{closed}");
    assert_eq!((open_files(), mapped_segments()), (before, 0), "descriptors, and segments that are mapped");
    member.report("nothing left");
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mapped_segments() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("memfd:tilewire")).count()
}

/// What a crash could leave behind, if segments had names.
fn names_in_dev_shm() -> Vec<String> {
    let shm = std::fs::read_dir("/dev/shm").into_iter().flatten();
    let shm = shm.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
    shm.filter(|name| name.contains("tilewire")).collect()
}

/// The transfer of a round of killing, and the ranks in it.
fn round(number: u64) -> (usize, usize, Case, Duration) {
    let mut random = Random(SEED ^ number << 8);
    let ranks = 2 + random.below(3);
    let victim = random.below(ranks);
    let primitive = random.one_of(&[Primitive::Staged, Primitive::Staged, Primitive::Direct, Primitive::Packet]);
    let (rows, cols) = if primitive == Primitive::Packet { (10, 20) } else { (300, 401) };
    let blocks = Some(random.one_of(&[1, 2, 4]));
    let config = Config { primitive: Some(primitive), blocks, ..Config::default() };
    let hook = random.one_of(&[Hook::Copy, Hook::Scale, Hook::Transpose]);
    let case = Case { hook, rows, cols, shift: 1 + random.below(ranks - 1), config };
    (ranks, victim, case, Duration::from_micros(random.below(4000) as u64))
}

#[test]
fn every_survivor_of_a_kill_is_told_who_died_and_nothing_stays_behind() {
    let test = "every_survivor_of_a_kill_is_told_who_died_and_nothing_stays_behind";
    if let Some(mut member) = Member::of_this_process() {
        let world = join(&mut member);
        let number = String::from_utf8(member.hear()).unwrap().parse().unwrap();
        return transfer_until_it_fails(&mut member, world, round(number).2);
    }
    let rounds = std::env::var("TILEWIRE_KILLS").map_or(100, |kills| kills.parse().unwrap());
    println!("seed {SEED:#x}, {rounds} kills");
    for number in 0..rounds {
        let (ranks, victim, case, after) = round(number);
        let (mut job, store) = start(test, ranks);
        (0..ranks).for_each(|rank| job.tell(rank, number.to_string().as_bytes()));
        job.expect(0..ranks, "under way");
        // In the middle of one of the launches, which follow each other without a pause.
        let wait = Instant::now();
        while wait.elapsed() < after {
            std::hint::spin_loop();
        }
        job.kill(victim);
        let context = format!("seed {SEED:#x}, round {number}, {ranks} ranks, {case:?}, killed after {after:?}");
        for rank in (0..ranks).filter(|&rank| rank != victim) {
            let report = job.report(rank);
            let died = format!("rank {victim} died");
            assert!(report == format!("aborted: {died}") || report == format!("broken: {died}"), "{report}; {context}");
            assert_eq!(job.report(rank), format!("broken: {died}"), "{context}");
            assert_eq!(job.report(rank), "nothing left", "{context}");
        }
        // Dropping waits for every process. What survivors have open and mapped they have counted themselves.
        drop((job, store));
        assert_eq!(names_in_dev_shm(), [""; 0], "{context}");
    }
}

const PLAIN: Case = Case {
    hook: Hook::Scale,
    rows: 100,
    cols: 200,
    shift: 1,
    config: Config {
        primitive: Some(Primitive::Staged),
        blocks: Some(2),
        slot_bytes: None,
        depth: None,
        granule: None,
        warps: None,
    },
};

/// Three ranks of which rank 1 ends in a way of its own after some launches; the others must say so.
#[track_caller]
fn ends_of_rank_1(test: &str, end: fn(), cause: &str) {
    if let Some(mut member) = Member::of_this_process() {
        let world = join(&mut member);
        if member.rank != 1 {
            return transfer_until_it_fails(&mut member, world, PLAIN);
        }
        let link =
            ShmTransport::rendezvous(&world, ShmOptions { per_peer_bytes: 1 << 20, ..Default::default() }).unwrap();
        let mut ready = Ready::build(&link, PLAIN).unwrap();
        // The third gets what rank 0 sends after its second, which needed the second of rank 2: both have told of their first by then.
        for turn in 0..3 {
            ready.fill(turn);
            ready.launch().unwrap();
        }
        return end();
    }
    let (mut job, _store) = start(test, 3);
    for rank in [0, 2] {
        assert_eq!(job.report(rank), "under way");
        let report = job.report(rank);
        assert!(report == format!("aborted: {cause}") || report == format!("broken: {cause}"), "{report}");
        assert_eq!(job.report(rank), format!("broken: {cause}"));
        assert_eq!(job.report(rank), "nothing left");
    }
}

#[test]
fn a_peer_that_panics_ends_the_transfers_of_the_others() {
    let panics = || std::panic::resume_unwind(Box::new("without a message"));
    ends_of_rank_1("a_peer_that_panics_ends_the_transfers_of_the_others", panics, "rank 1 panicked");
}

#[test]
fn a_peer_that_exits_ends_the_transfers_of_the_others() {
    let exits = || std::process::exit(1);
    ends_of_rank_1("a_peer_that_exits_ends_the_transfers_of_the_others", exits, "rank 1 died");
}

#[test]
fn a_peer_that_never_builds_is_named_at_the_deadline() {
    let test = "a_peer_that_never_builds_is_named_at_the_deadline";
    if let Some(mut member) = Member::of_this_process() {
        let world = join_within(&mut member, "1s");
        let link = ShmTransport::rendezvous(&world, ShmOptions::default()).unwrap();
        if member.rank == 0 {
            let mut ready = Ready::build(&link, PLAIN).unwrap();
            ready.fill(0);
            member.report(told(&ready.launch().unwrap_err()));
            ready.check_outside(0).unwrap();
        }
        member.report("done");
        member.hear();
        // Late is too late: rank 0 has given up.
        return member.report(told(&Ready::build(&link, PLAIN).err().unwrap()));
    }
    let (mut job, _store) = start(test, 2);
    job.expect([0], "not met: 1");
    job.expect(0..2, "done");
    (0..2).for_each(|rank| job.tell(rank, b"go on"));
    job.expect(0..2, "broken: a wait of rank 0 expired");
    job.finish();
}

#[test]
fn a_peer_that_stops_calling_is_named_at_the_deadline() {
    let test = "a_peer_that_stops_calling_is_named_at_the_deadline";
    if let Some(mut member) = Member::of_this_process() {
        let world = join_within(&mut member, "1s");
        let link = ShmTransport::rendezvous(&world, ShmOptions::default()).unwrap();
        let mut ready = Ready::build(&link, PLAIN).unwrap();
        ready.fill(0);
        ready.launch().unwrap();
        ready.check(0).unwrap();
        if member.rank == 0 {
            ready.fill(1);
            member.report(told(&ready.launch().unwrap_err()));
            ready.check_outside(1).unwrap();
        }
        member.report("done");
        member.hear();
        return member.report(told(&ready.launch().unwrap_err()));
    }
    let (mut job, _store) = start(test, 2);
    job.expect([0], "timeout: 1");
    job.expect(0..2, "done");
    (0..2).for_each(|rank| job.tell(rank, b"go on"));
    job.expect(0..2, "broken: a wait of rank 0 expired");
    job.finish();
}
