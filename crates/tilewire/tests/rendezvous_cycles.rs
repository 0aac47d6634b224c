//! Worlds and transports that are made and closed many times leave nothing behind in the process: no descriptor, no
//! mapping, no thread, no memory.
//!
//! `TILEWIRE_CYCLES` sets the number of cycles, for a longer run than CI has time for.
#![cfg(target_os = "linux")]

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tilewire::link::{ShmOptions, ShmTransport, Transport};
use tilewire::transport::{RankError, World};
use tilewire_testkit::job::{Job, Member};
use tilewire_testkit::ranks;

const OPTIONS: ShmOptions = ShmOptions {
    per_peer_bytes: Some(64 << 10),
    max_blocks_per_peer: Some(2),
    max_slots: Some(4),
    max_copies: 1,
    packet_bytes: Some(4096),
    window_sets: None,
    populate: true,
};
/// After this many cycles everything that exists once exists: the allocator's arenas, the runtime's threads.
const WARM_UP: usize = 20;
/// The most that memory may grow in any number of cycles. After 1000 cycles, 4 to 20 KiB were seen. A leak of 2 KiB in
/// each of 1000 cycles would be seen, and so would one segment left by every sixtieth.
const ALLOWANCE: usize = 2 << 20;
/// The same for mappings. No growth was seen.
const MAPPINGS: usize = 8;

/// The number without `TILEWIRE_CYCLES`.
const CYCLES: usize = 1000;

fn cycles() -> usize {
    std::env::var("TILEWIRE_CYCLES").map_or(CYCLES, |text| text.parse().expect("TILEWIRE_CYCLES is a number"))
}

/// Waits for the ranks' report that nothing has grown, far longer than this many cycles take.
fn expect_done(mut job: Job, ranks: usize, cycles: usize) {
    job.allow(Duration::from_secs(60) + cycles as u32 * Duration::from_millis(50));
    job.expect(0..ranks, "done");
    job.finish();
}

/// The resources that a process holds.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    descriptors: usize,
    mappings: usize,
    threads: usize,
    resident_bytes: usize,
}

impl Holdings {
    fn now() -> Holdings {
        let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
        let text = |file: &str| std::fs::read_to_string(file).unwrap();
        let status = text("/proc/self/status");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes: usize = resident.trim().trim_end_matches(" kB").parse().unwrap();
        Holdings {
            descriptors: count("/proc/self/fd"),
            mappings: text("/proc/self/maps").lines().count(),
            threads: count("/proc/self/task"),
            resident_bytes: kilobytes << 10,
        }
    }

    /// The bounds do not depend on the number of cycles.
    fn have_not_grown(before: Holdings, cycles: usize) {
        let now = Holdings::now();
        let context = format!("after {cycles} cycles {now:?}, before {before:?}");
        assert_eq!(now.descriptors, before.descriptors, "{context}");
        assert!(now.threads <= before.threads, "{context}");
        assert!(now.mappings <= before.mappings + MAPPINGS, "{context}");
        assert!(now.resident_bytes < before.resident_bytes + ALLOWANCE, "{context}");
    }
}

/// A transport that is used a little, and closed.
fn cycle(world: &World) -> Result<(), RankError> {
    let transport = ShmTransport::rendezvous(world, OPTIONS)?;
    for peer in ranks::peers(world) {
        // Touches every page, so that memory that stays would be counted.
        let endpoint = transport.endpoint(peer).unwrap();
        ranks::words(&endpoint.mapped().unwrap().staging)
            .iter()
            .step_by(64)
            .for_each(|word| word.store(1, Ordering::Relaxed));
    }
    Ok(transport.close()?)
}

/// A joined thread may still be in the list of threads for a moment. So the test waits for the world's threads.
fn wait_for_threads(most: usize) {
    let patience = Instant::now() + Duration::from_secs(10);
    while Holdings::now().threads > most && Instant::now() < patience {
        std::thread::yield_now();
    }
}

#[test]
fn rendezvous_cycles() {
    // In a separate process, in which no other test opens and closes anything.
    if let Some(mut member) = Member::of_this_process() {
        let threads = Holdings::now().threads;
        let world_of_threads = || World::threads(2).run(|world| cycle(&world)).map(drop).unwrap();
        (0..WARM_UP).for_each(|_| world_of_threads());
        wait_for_threads(threads);
        let (before, cycles) = (Holdings::now(), cycles());
        (0..cycles).for_each(|_| world_of_threads());
        wait_for_threads(threads);
        Holdings::have_not_grown(before, cycles);
        return member.report("done");
    }
    expect_done(Job::start("rendezvous_cycles", 1), 1, cycles());
}

#[test]
fn rendezvous_cycles_of_threads_in_one_world() {
    if let Some(mut member) = Member::of_this_process() {
        let cycles = cycles();
        let before = std::sync::Mutex::new(None);
        // Both ranks exist as long as the world, so anything left of a cycle would be seen.
        let body = |world: World| {
            let barrier = |name: &str| world.bootstrap().barrier(name, world.deadline());
            (0..WARM_UP).try_for_each(|_| cycle(&world))?;
            barrier("warm")?;
            let first = world.rank().index() == 0;
            if first {
                *before.lock().unwrap() = Some(Holdings::now());
            }
            barrier("counted")?;
            (0..cycles).try_for_each(|_| cycle(&world))?;
            barrier("done")?;
            if first {
                Holdings::have_not_grown(before.lock().unwrap().unwrap(), cycles);
            }
            Ok(barrier("compared")?)
        };
        World::threads(2).run(body).unwrap();
        return member.report("done");
    }
    expect_done(Job::start("rendezvous_cycles_of_threads_in_one_world", 1), 1, cycles());
}

#[test]
fn rendezvous_cycles_of_processes() {
    if let Some(mut member) = Member::of_this_process() {
        let world = ranks::join(&mut member);
        (0..WARM_UP).for_each(|_| cycle(&world).unwrap());
        let (before, cycles) = (Holdings::now(), cycles());
        (0..cycles).for_each(|_| cycle(&world).unwrap());
        wait_for_threads(before.threads);
        Holdings::have_not_grown(before, cycles);
        return member.report("done");
    }
    let (job, _store) = ranks::start("rendezvous_cycles_of_processes", 2);
    expect_done(job, 2, cycles());
}
