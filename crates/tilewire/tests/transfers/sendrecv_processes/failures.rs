//! Ranks that fail. Every survivor learns which rank it was, nothing outside the message is written, and nothing stays
//! behind.

use super::case::{Case, Hook, Ready};
use crate::case::{SMALL, Way, seed};
use std::time::{Duration, Instant};
use tilewire::collective::Timeout;
use tilewire::link::{ShmOptions, ShmTransport};
use tilewire::transport::{RankError, TransportError, World};
use tilewire::{Knobs, Primitive, RunError, Tensor, recv, send};
use tilewire_testkit::job::Member;
use tilewire_testkit::random::Random;
use tilewire_testkit::ranks::{join, join_hosted, join_within, start, start_hosted};

/// A survivor's report: its error, and the error of the next call.
fn told(error: &RunError) -> String {
    match error {
        RunError::PeerFailed { rank, cause, .. } if rank.index() == cause.rank => format!("failed: {cause}"),
        RunError::Timeout(timeout) => format!("timeout: {}", timeout.peer.expect("a peer is waited for")),
        other => format!("another error: {other}"),
    }
}

/// Launches until a launch fails, and then checks the state: memory outside the message, the next call, descriptors,
/// mappings.
fn transfer_until_it_fails(member: &mut Member, world: World, case: Case) {
    let before = open_files();
    let link =
        ShmTransport::rendezvous(&world, ShmOptions { per_peer_bytes: Some(1 << 20), ..Default::default() }).unwrap();
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

/// A crash could leave these behind, if segments had names.
fn names_in_dev_shm() -> Vec<String> {
    let shm = std::fs::read_dir("/dev/shm").into_iter().flatten();
    let shm = shm.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
    shm.filter(|name| name.contains("tilewire")).collect()
}

/// The transfer of a round of killing, and the ranks in it.
fn round(number: u64) -> (usize, usize, Case, Duration) {
    let mut random = Random::new(seed() ^ number << 8);
    let ranks = 2 + random.below(3);
    let victim = random.below(ranks);
    let primitive = random.pick(&[Primitive::Staged, Primitive::Bulk, Primitive::Direct, Primitive::Packet]);
    let (rows, cols) = if primitive == Primitive::Packet { (10, 20) } else { (300, 401) };
    let blocks = Some(random.pick(&[1, 2, 4]));
    let config = Knobs { primitive: Some(primitive), blocks, ..Knobs::default() };
    let hook = random.pick(&[Hook::Copy, Hook::Scale, Hook::Transpose]);
    let case = Case { hook, rows, cols, shift: 1 + random.below(ranks - 1), config };
    (ranks, victim, case, Duration::from_micros(random.below(4000) as u64))
}

#[test]
fn every_survivor_of_a_kill_is_told_who_died_and_nothing_stays_behind() {
    let test = "sendrecv_processes::failures::every_survivor_of_a_kill_is_told_who_died_and_nothing_stays_behind";
    if let Some(mut member) = Member::of_this_process() {
        let world = join(&mut member);
        let number = String::from_utf8(member.hear()).unwrap().parse().unwrap();
        return transfer_until_it_fails(&mut member, world, round(number).2);
    }
    let rounds = std::env::var("TILEWIRE_KILLS").map_or(100, |kills| kills.parse().unwrap());
    println!("seed {}, {rounds} kills", seed());
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
        let context = format!("seed {}, round {number}, {ranks} ranks, {case:?}, killed after {after:?}", seed());
        for rank in (0..ranks).filter(|&rank| rank != victim) {
            for call in ["the first", "the next"] {
                assert_eq!(job.report(rank), format!("failed: rank {victim} died"), "{call} call; {context}");
            }
            assert_eq!(job.report(rank), "nothing left", "{context}");
        }
        // Dropping waits for every process. The survivors themselves have counted what they have open and mapped.
        drop((job, store));
        assert_eq!(names_in_dev_shm(), [""; 0], "{context}");
    }
}

/// With rank 0, the store is gone. A rank that hears of that first may leave before another rank has heard anything.
/// All of them still name rank 0.
#[test]
fn every_survivor_of_the_rank_that_hosts_the_store_names_it() {
    let test = "sendrecv_processes::failures::every_survivor_of_the_rank_that_hosts_the_store_names_it";
    if let Some(mut member) = Member::of_this_process() {
        let world = join_hosted(&mut member);
        let error = transfer_until_lost(&mut member, &world);
        drop(world);
        return member.report(error.to_string());
    }
    let (mut random, ranks) = (Random::new(seed()), 3);
    for number in 0..30 {
        let mut job = start_hosted(test, ranks);
        job.expect(0..ranks, "under way");
        let (wait, after) = (Instant::now(), Duration::from_micros(random.below(3000) as u64));
        while wait.elapsed() < after {
            std::hint::spin_loop();
        }
        job.kill(0);
        for rank in 1..ranks {
            let error = job.report(rank);
            assert!(error.contains("rank 0 died"), "seed {}, round {number}, rank {rank}: {error}", seed());
        }
    }
}

/// Builds, launches and meets again and again, so that the end comes in any of these.
fn transfer_until_lost(member: &mut Member, world: &World) -> RankError {
    let options = ShmOptions { per_peer_bytes: Some(1 << 20), ..Default::default() };
    let link = match ShmTransport::rendezvous(world, options) {
        Ok(link) => link,
        Err(error) => return error.into(),
    };
    for turn in 0.. {
        let once = || -> Result<(), RankError> {
            let mut ready = Ready::build(&link, PLAIN)?;
            ready.fill(turn);
            ready.launch()?;
            Ok(world.bootstrap().barrier("again", world.deadline())?)
        };
        if let Err(error) = once() {
            return error;
        }
        if turn == 0 {
            member.report("under way");
        }
    }
    unreachable!("a rank is killed")
}

const PLAIN: Case = Case {
    hook: Hook::Scale,
    rows: 100,
    cols: 200,
    shift: 1,
    config: Knobs {
        primitive: Some(Primitive::Staged),
        blocks: Some(2),
        slot_bytes: None,
        depth: None,
        granule: None,
        send_warps: None,
        recv_warps: None,
    },
};

/// Three ranks. Rank 1 ends in its own way after some launches, and the others must report that.
#[track_caller]
fn ends_of_rank_1(test: &str, end: fn(), cause: &str) {
    if let Some(mut member) = Member::of_this_process() {
        let world = join(&mut member);
        if member.rank != 1 {
            return transfer_until_it_fails(&mut member, world, PLAIN);
        }
        let link = ShmTransport::rendezvous(&world, ShmOptions { per_peer_bytes: Some(1 << 20), ..Default::default() })
            .unwrap();
        let mut ready = Ready::build(&link, PLAIN).unwrap();
        // The third gets what rank 0 sends after its second, which needed the second of rank 2. Both have reported
        // their first by then.
        for turn in 0..3 {
            ready.fill(turn);
            ready.launch().unwrap();
        }
        return end();
    }
    let (mut job, _store) = start(test, 3);
    for rank in [0, 2] {
        assert_eq!(job.report(rank), "under way");
        for call in ["the first", "the next"] {
            assert_eq!(job.report(rank), format!("failed: {cause}"), "{call} call");
        }
        assert_eq!(job.report(rank), "nothing left");
    }
}

#[test]
fn a_peer_that_panics_ends_the_transfers_of_the_others() {
    let panics = || std::panic::resume_unwind(Box::new("without a message"));
    ends_of_rank_1(
        "sendrecv_processes::failures::a_peer_that_panics_ends_the_transfers_of_the_others",
        panics,
        "rank 1 panicked",
    );
}

#[test]
fn a_peer_that_exits_ends_the_transfers_of_the_others() {
    let exits = || std::process::exit(1);
    ends_of_rank_1(
        "sendrecv_processes::failures::a_peer_that_exits_ends_the_transfers_of_the_others",
        exits,
        "rank 1 died",
    );
}

#[test]
fn a_peer_that_never_builds_is_named_at_the_deadline() {
    let test = "sendrecv_processes::failures::a_peer_that_never_builds_is_named_at_the_deadline";
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
        // It is too late: rank 0 has given up.
        return member.report(told(&Ready::build(&link, PLAIN).err().unwrap()));
    }
    let (mut job, _store) = start(test, 2);
    job.expect([0], "timeout: 1");
    job.expect(0..2, "done");
    (0..2).for_each(|rank| job.tell(rank, b"go on"));
    job.expect(0..2, "failed: a wait of rank 0 for rank 1 expired");
    job.finish();
}

#[test]
fn a_peer_that_stops_calling_is_named_at_the_deadline() {
    let test = "sendrecv_processes::failures::a_peer_that_stops_calling_is_named_at_the_deadline";
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
    job.expect(0..2, "failed: a wait of rank 0 for rank 1 expired");
    job.finish();
}

#[test]
fn a_wait_that_expires_says_where_and_for_what() {
    let test = "sendrecv_processes::failures::a_wait_that_expires_says_where_and_for_what";
    if let Some(mut member) = Member::of_this_process() {
        let world = join(&mut member);
        let link = ShmTransport::rendezvous(&world, SMALL).unwrap();
        let (x, config) = (Tensor::<u32>::zeros(160), Way::staged(128, 2).config(1));
        let build = |deadline: Duration| {
            let peer = world.rank().after(1, 2);
            let leg = if world.rank().index() == 0 { recv(&link, &x, peer) } else { send(&link, &x, peer) };
            leg.config(config).deadline(deadline).build().unwrap()
        };
        let mut before = build(Duration::from_secs(10));
        (0..3).for_each(|_| before.run().unwrap());
        let mut last = build(Duration::from_millis(300));
        world.bootstrap().barrier("built", world.deadline()).unwrap();
        if member.rank == 0 {
            let RunError::Timeout(it) = last.run().unwrap_err() else { panic!("no timeout") };
            let Timeout { rank, peer, block, role, op, slot, expected, seen, after, at, .. } = *it;
            member.report(format!(
                "{rank} for {peer:?}, block {block}, {role}: {op}, {slot}, {seen} of {expected}, {after:?}"
            ));
            member.report(at.unwrap().file);
        }
        member.report("done");
        member.hear();
        return member.report(told(&last.run().unwrap_err()));
    }
    let (mut job, _store) = start(test, 2);
    // Five steps in each of three launches. The next is number 15, which lies in slot 1. Step 13 signalled that slot
    // last.
    job.expect([0], "0 for Some(Rank(1)), block 0, receive: wait tail of rank 1[1], 1, 14 of 16, 300ms");
    assert!(job.report(0).ends_with("schedule/staged.rs"));
    job.expect(0..2, "done");
    (0..2).for_each(|rank| job.tell(rank, b"go on"));
    job.expect(0..2, "failed: a wait of rank 0 for rank 1 expired");
    job.finish();
}
