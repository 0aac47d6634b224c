//! Segments among real processes: shared memory, resources that stay open, and the survivors' view when a rank is
//! killed.
#![cfg(target_os = "linux")]

use crate::stranger;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stranger::{Stranger, doors};
use tilewire::Memory;
use tilewire::transport::{AbortCode, Cause, GoodbyeError, Monitor, SegmentError, SegmentOptions, SegmentSet};
use tilewire_testkit::job::{Job, Member};

/// The longest time that still counts as immediate.
const SOON: Duration = Duration::from_secs(1);
const BYTES: usize = 1 << 20;

fn create(member: &mut Member) -> Result<SegmentSet, SegmentError> {
    SegmentSet::create(member.rank, member.size, BYTES, &mut |mine| member.exchange(mine))
}

fn word(memory: &Memory, index: usize) -> &AtomicU64 {
    assert!((index + 1) * 8 <= memory.bytes());
    // SAFETY: inside, aligned (segments begin on a page), alive as long as the handle; only touched by atomics in these
    // tests.
    unsafe { AtomicU64::from_ptr(memory.start().as_ptr().cast::<u64>().add(index)) }
}

/// The number of descriptors that this process has open, and of segments that it has mapped.
fn open_files() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let target = |entry: io::Result<std::fs::DirEntry>| std::fs::read_link(entry.unwrap().path()).ok();
    entries.filter_map(target).map(|path| path.to_string_lossy().into_owned()).collect()
}

fn mapped_segments() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("memfd:tilewire")).count()
}

#[test]
fn a_segment_is_shared_both_ways_and_no_descriptor_stays_open() {
    if let Some(mut member) = Member::of_this_process() {
        let before = open_files().len();
        let mut set = create(&mut member).unwrap();
        // In both directions: into this rank's segment and into every peer's, each rank at a separate place.
        for segment in 0..member.size {
            let value = (100 * segment + member.rank + 1) as u64;
            word(&set.segment(segment), 1000 * member.rank).store(value, Ordering::Release);
        }
        member.report("wrote");
        member.hear();
        for segment in 0..member.size {
            for writer in 0..member.size {
                let seen = word(&set.segment(segment), 1000 * writer).load(Ordering::Acquire);
                assert_eq!(seen, (100 * segment + writer + 1) as u64);
            }
        }
        let open = open_files();
        assert!(open.iter().all(|file| !file.contains("memfd")), "{open:?}");
        assert_eq!(open.len(), before + member.size - 1, "a control socket to every peer, nothing else: {open:?}");
        assert_eq!(mapped_segments(), member.size);
        drop(set.take_control());
        assert_eq!(open_files().len(), before);
        let last = set.segment(0);
        drop(set);
        assert_eq!(mapped_segments(), 1, "a segment is mapped until its last handle is gone");
        drop(last);
        assert_eq!(mapped_segments(), 0);
        return member.report("done");
    }
    let ranks = 4;
    let mut job = Job::start("segment_processes::a_segment_is_shared_both_ways_and_no_descriptor_stays_open", ranks);
    job.gather();
    job.expect(0..ranks, "wrote");
    (0..ranks).for_each(|rank| job.tell(rank, b"go on"));
    job.expect(0..ranks, "done");
    job.finish();
}

#[test]
fn two_hundred_worlds_leave_nothing_behind() {
    if let Some(mut member) = Member::of_this_process() {
        let mut first = None;
        for _ in 0..200 {
            let mut set = create(&mut member).unwrap();
            let monitor = Monitor::start(set.take_control(), set.aborts()).unwrap();
            monitor.goodbye(SOON * 10).unwrap();
            assert_eq!(set.abort(member.rank).get(), None);
            drop(set);
            let lines = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
            let now = (open_files().len(), mapped_segments());
            let (start, start_lines) = *first.get_or_insert((now, lines));
            assert_eq!(now, start);
            // The allocator may map a little for threads. Growth with every world would be hundreds.
            assert!(lines < start_lines + 20, "{lines} mappings, at first {start_lines}");
        }
        return member.report("done");
    }
    let mut job = Job::start("segment_processes::two_hundred_worlds_leave_nothing_behind", 2);
    (0..200).for_each(|_| _ = job.gather());
    job.expect(0..2, "done");
    job.finish();
}

/// Reports how a creation ended, and whether that was soon.
fn report_creation(member: &mut Member) {
    let mut start = Instant::now();
    let options = SegmentOptions { deadline: SOON * 5, ..SegmentOptions::default() };
    let result = SegmentSet::create_with(member.rank, member.size, BYTES, &options, &mut |mine| {
        let parts = member.exchange(mine);
        start = Instant::now();
        parts
    });
    let soon = if start.elapsed() < SOON { "soon" } else { "late" };
    member.report(match result {
        Ok(_) => format!("created {soon}"),
        Err(SegmentError::Died { rank }) => format!("rank {rank} died {soon}"),
        Err(other) => format!("{other} {soon}"),
    });
}

#[test]
fn a_rank_killed_between_exchange_and_handover_is_named_by_all_others() {
    let test = "segment_processes::a_rank_killed_between_exchange_and_handover_is_named_by_all_others";
    if let Some(mut member) = Member::of_this_process() {
        if member.hear() == b"die" {
            let _ = SegmentSet::create(member.rank, member.size, BYTES, &mut |mine| {
                let _ = member.exchange(mine);
                // SAFETY: ends this process; touches no memory.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                Err::<Vec<Vec<u8>>, _>("not reached")
            });
        }
        return report_creation(&mut member);
    }
    // The lowest rank, one in the middle, and the highest: they open and accept different connections.
    for victim in 0..3 {
        let mut job = Job::start(test, 3);
        for rank in 0..3 {
            job.tell(rank, if rank == victim { b"die" } else { b"live" });
        }
        let parts = job.gather();
        for rank in (0..3).filter(|&rank| rank != victim) {
            assert_eq!(job.report(rank), format!("rank {victim} died soon"));
        }
        drop(job);
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        for (name, _) in doors(&parts) {
            assert!(!sockets.contains(&String::from_utf8(name).unwrap()), "a socket stayed behind");
        }
    }
}

#[test]
fn a_rank_killed_at_any_time_leaves_nobody_waiting() {
    let test = "segment_processes::a_rank_killed_at_any_time_leaves_nobody_waiting";
    if let Some(mut member) = Member::of_this_process() {
        return report_creation(&mut member);
    }
    let (mut delay, mut created, mut died) = (Duration::from_micros(500), 0, 0);
    for round in 0..36 {
        let victim = round % 3;
        let mut job = Job::start(test, 3);
        job.gather();
        let start = Instant::now();
        while start.elapsed() < delay {
            std::hint::spin_loop();
        }
        job.kill(victim);
        let mut named = false;
        for rank in (0..3).filter(|&rank| rank != victim) {
            let report = job.report(rank);
            assert!(report == "created soon" || report == format!("rank {victim} died soon"), "{report}");
            named |= report != "created soon";
        }
        // Later if the handover was cut short, and sooner if it was over. So the kills gather at the time of the
        // handover.
        delay = if named { delay * 3 / 2 + Duration::from_micros(20) } else { delay / 2 };
        *(if named { &mut died } else { &mut created }) += 1;
    }
    println!("{created} times all was over before the kill, {died} times not; the last delay is {delay:?}");
    assert!(created >= 3 && died >= 3, "{created} kills after the handover, {died} before: the test shows only one");
}

#[test]
fn a_rank_that_stands_still_is_missed_at_the_deadline() {
    let test = "segment_processes::a_rank_that_stands_still_is_missed_at_the_deadline";
    if let Some(mut member) = Member::of_this_process() {
        let options = SegmentOptions { deadline: Duration::from_millis(200), ..SegmentOptions::default() };
        let result = SegmentSet::create_with(member.rank, member.size, BYTES, &options, &mut |mine| {
            let parts = member.exchange(mine);
            if member.rank == 1 {
                // SAFETY: stops this thread at once and so this process; touches no memory.
                unsafe { libc::raise(libc::SIGSTOP) };
            }
            parts
        });
        return member.report(match result {
            Err(SegmentError::Missing { ranks, .. }) => format!("missing {ranks:?}"),
            // A rank that learns it from another survivor gets that survivor's words.
            Err(SegmentError::Peer { what, .. }) => what,
            other => format!("{other:?}"),
        });
    }
    let mut job = Job::start(test, 3);
    job.gather();
    for rank in [0, 2] {
        let report = job.report(rank);
        assert!(report == "missing [1]" || report.starts_with("rank 1 did not share memory"), "{report}");
    }
}

/// Creates, starts a monitor, reports, and hands both over.
fn join(member: &mut Member) -> (SegmentSet, Monitor) {
    let mut set = create(member).unwrap();
    let monitor = Monitor::start(set.take_control(), set.aborts()).unwrap();
    member.report("joined");
    (set, monitor)
}

/// Sleeps until the abort word of this rank is set.
fn sleep_until_abort(set: &SegmentSet) -> Option<Cause> {
    let abort = set.abort(set.rank());
    set.doorbell(set.rank()).sleep(|| abort.get().is_some(), SOON * 10);
    abort.get()
}

#[test]
fn a_killed_rank_ends_the_waits_of_all_others_at_once() {
    let test = "segment_processes::a_killed_rank_ends_the_waits_of_all_others_at_once";
    if let Some(mut member) = Member::of_this_process() {
        let (set, _monitor) = join(&mut member);
        let cause = sleep_until_abort(&set).expect("an abort");
        return member.report(cause.to_string());
    }
    for victim in 0..3 {
        let mut job = Job::start(test, 3);
        job.gather();
        job.expect(0..3, "joined");
        let start = Instant::now();
        job.kill(victim);
        let rest: Vec<usize> = (0..3).filter(|&rank| rank != victim).collect();
        // The first cause stays, although the first survivor to leave says goodbye, which is no abort.
        job.expect(rest, &format!("rank {victim} died"));
        assert!(start.elapsed() < SOON, "it took {:?}", start.elapsed());
    }
}

#[test]
fn who_hears_of_a_death_has_told_all_ranks_before_it_acts() {
    let test = "segment_processes::who_hears_of_a_death_has_told_all_ranks_before_it_acts";
    if let Some(mut member) = Member::of_this_process() {
        if member.rank == 1 {
            // Without a monitor, like a rank whose monitor has not run yet. Only rank 0's monitor can set this word.
            let set = create(&mut member).unwrap();
            member.report("joined");
            member.hear();
            return member.report(format!("{:?}", set.abort(1)));
        }
        let (set, _monitor) = join(&mut member);
        let cause = sleep_until_abort(&set).expect("an abort");
        return member.report(cause.to_string());
    }
    let mut job = Job::start(test, 3);
    job.gather();
    job.expect(0..3, "joined");
    job.kill(2);
    job.expect([0], "rank 2 died");
    job.tell(1, b"look");
    job.expect([1], "Abort(rank 2 died)");
}

#[test]
fn who_leaves_after_a_failure_has_told_all_ranks_of_it_before() {
    let test = "segment_processes::who_leaves_after_a_failure_has_told_all_ranks_of_it_before";
    if let Some(mut member) = Member::of_this_process() {
        let (set, monitor) = join(&mut member);
        if member.rank == 0 {
            // Like a rank that tells one peer after the other and has not come to rank 1 yet.
            set.abort(0).set(Cause { code: AbortCode::TimedOut, rank: 2, reason: 0 });
            drop(monitor);
            return member.report("left");
        }
        while !monitor.has_left(0) {
            std::thread::yield_now();
        }
        return member.report(format!("{:?}", set.abort(member.rank)));
    }
    let mut job = Job::start(test, 2);
    job.gather();
    job.expect(0..2, "joined");
    job.expect([0], "left");
    job.expect([1], "Abort(a wait of rank 2 expired)");
    job.finish();
}

#[test]
fn a_panic_of_a_process_is_told_apart_from_its_death() {
    if let Some(mut member) = Member::of_this_process() {
        let (set, monitor) = join(&mut member);
        if member.rank == 1 {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _monitor = monitor;
                std::panic::resume_unwind(Box::new("without a message"));
            }));
            assert!(result.is_err());
        } else {
            let cause = sleep_until_abort(&set).expect("an abort");
            assert_eq!((cause.code, cause.rank), (AbortCode::Panicked, 1));
            assert_eq!(monitor.goodbye(SOON), Err(GoodbyeError::Died { rank: 1 }));
        }
        return member.report("done");
    }
    let mut job = Job::start("segment_processes::a_panic_of_a_process_is_told_apart_from_its_death", 2);
    job.gather();
    job.expect(0..2, "joined");
    job.expect(0..2, "done");
    job.finish();
}

#[test]
fn a_goodbye_is_complete_when_all_have_said_it() {
    if let Some(mut member) = Member::of_this_process() {
        let (set, monitor) = join(&mut member);
        let rank = member.rank;
        // Everything that a rank wrote before its goodbye is there after any rank's goodbye.
        word(&set.segment(0), rank).store(1, Ordering::Release);
        if rank == 2 {
            member.hear();
        }
        monitor.goodbye(SOON * 10).unwrap();
        assert!((0..3).all(|writer| word(&set.segment(0), writer).load(Ordering::Acquire) == 1));
        assert_eq!(set.abort(rank).get(), None);
        return member.report("closed");
    }
    let mut job = Job::start("segment_processes::a_goodbye_is_complete_when_all_have_said_it", 3);
    job.gather();
    job.expect(0..3, "joined");
    job.tell(2, b"go on");
    job.expect(0..3, "closed");
    job.finish();
}

#[test]
fn a_goodbye_names_who_does_not_say_it() {
    if let Some(mut member) = Member::of_this_process() {
        let (set, monitor) = join(&mut member);
        if member.rank == 0 {
            let after = Duration::from_millis(50);
            assert_eq!(monitor.goodbye(after), Err(GoodbyeError::Missing { ranks: vec![1], after }));
            member.report("gave up");
        } else {
            member.hear();
            // Rank 0 has left and said so. This is no death and no abort.
            while !monitor.has_left(0) {
                std::thread::yield_now();
            }
            assert!(monitor.goodbye(SOON).is_ok());
            assert_eq!(set.abort(1).get(), None);
        }
        return member.report("done");
    }
    let mut job = Job::start("segment_processes::a_goodbye_names_who_does_not_say_it", 2);
    job.gather();
    job.expect(0..2, "joined");
    job.expect([0], "gave up");
    job.tell(1, b"go on");
    job.expect(0..2, "done");
    job.finish();
}

/// Sets the limits on open files of this process. Never raises the hard limit.
fn limit_open_files(soft: u64, hard: Option<u64>) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is writable for the first call and readable for the second.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit = libc::rlimit { rlim_cur: soft, rlim_max: hard.unwrap_or(limit.rlim_max) };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

#[test]
fn a_rank_that_cannot_see_its_peers_any_more_ends_its_own_waits_and_says_so() {
    if let Some(mut member) = Member::of_this_process() {
        let (set, monitor) = join(&mut member);
        match member.rank {
            0 => {
                // The kernel refuses to wait for more descriptors than may be open.
                limit_open_files(1, None);
                member.report("blindfolded");
                let cause = sleep_until_abort(&set).expect("an abort");
                assert_eq!((cause.code, cause.rank, cause.reason), (AbortCode::Blind, 0, libc::EINVAL as u32));
                assert_eq!(monitor.goodbye(SOON * 10), Err(GoodbyeError::Unseen { ranks: vec![1] }));
                member.report(cause.to_string());
            }
            // It stays, and nothing reads from it.
            1 => _ = member.hear(),
            // Its goodbye makes rank 0 check the others.
            _ => {
                member.hear();
                drop(monitor);
            }
        }
        return;
    }
    let mut job =
        Job::start("segment_processes::a_rank_that_cannot_see_its_peers_any_more_ends_its_own_waits_and_says_so", 3);
    job.gather();
    job.expect(0..3, "joined");
    job.expect([0], "blindfolded");
    job.tell(2, b"leave");
    let report = job.report(0);
    assert!(report.starts_with("rank 0 can no longer watch its peers"), "{report}");
    job.tell(1, b"leave");
    job.finish();
}

#[test]
fn a_limit_on_open_files_is_raised_or_named() {
    if let Some(mut member) = Member::of_this_process() {
        let open = open_files().len() as u64;
        limit_open_files(open + 20, Some(open + 400));
        let set = create(&mut member).unwrap();
        drop(set);
        // For 200 ranks the limit is too low. The others are told, so there is an exchange.
        let mut card = Vec::new();
        let error = SegmentSet::create(0, 200, BYTES, &mut |mine: &[u8]| {
            card = mine.to_vec();
            Err::<Vec<Vec<u8>>, _>("not needed")
        });
        let error = error.unwrap_err();
        let SegmentError::Descriptors(limit) = &error else { panic!("{error}") };
        assert!(limit.needed > open + 400 && limit.allowed == open + 400, "{limit:?}");
        let text = error.to_string();
        assert!(text.contains(&limit.needed.to_string()) && text.contains(&limit.allowed.to_string()), "{text}");
        assert!(String::from_utf8_lossy(&card).contains(&text), "the others are told");
        return member.report("done");
    }
    let mut job = Job::start("segment_processes::a_limit_on_open_files_is_raised_or_named", 2);
    job.gather();
    job.expect(0..2, "done");
    job.finish();
}

#[test]
fn another_user_is_refused_even_with_the_token() {
    let test = "segment_processes::another_user_is_refused_even_with_the_token";
    if let Some(mut member) = Member::of_this_process() {
        if member.rank < 2 {
            let set = create(&mut member).unwrap();
            word(&set.segment(1 - member.rank), 0).store(1, Ordering::Release);
            return member.report("created");
        }
        // An intruder: a process that is no rank but knows everything that the bootstrap told.
        let card = member.exchange(b"").unwrap().remove(0);
        let (name, token) = doors(&[card]).remove(0);
        let stranger = Stranger::connect(&name).unwrap();
        stranger.send_hello(1, &token);
        member.report("knocked");
        return member.report(format!("{:?}", stranger.hear()));
    }
    // SAFETY: touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        return tilewire_testkit::skip::skip("root", "only root can run a process as another user");
    }
    use std::os::unix::process::CommandExt;
    let nobody = 65534;
    let mut job = Job::start_with(test, 3, |rank, command| {
        let size = if rank == 2 { 1 } else { 2 };
        command.env("TILEWIRE_TEST_MEMBER", format!("{rank}/{size}"));
        if rank == 2 { command.uid(nobody).gid(nobody) } else { command }
    });
    let cards = job.collect(0..2);
    // Rank 0 listens; the intruder comes before rank 1 does.
    assert_eq!(job.collect([2]), [b""]);
    job.tell(2, &cards[0]);
    job.expect([2], "knocked");
    for rank in 0..2 {
        cards.iter().for_each(|card| job.tell(rank, card));
    }
    job.expect(0..2, "created");
    job.expect([2], "None");
    job.finish();
}
