//! Doorbells: no rank sleeps through a signal for longer than a nap, among threads, among processes, with more ranks
//! than cores.
#![cfg(target_os = "linux")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tilewire::Memory;
use tilewire::transport::SegmentSet;
use tilewire_testkit::job::{Job, Member};

const LONG: Duration = Duration::from_secs(15);

/// The slot at the start of a rank's segment.
fn slot(memory: &Memory) -> &AtomicU64 {
    // SAFETY: segments begin on a page and these have 8 bytes; the handle keeps them alive; only touched by atomics.
    unsafe { AtomicU64::from_ptr(memory.start().as_ptr().cast()) }
}

/// Passes a counter around the ranks. Each waits for its turn, sometimes asleep from the beginning, and signals the
/// next.
fn pass_around(set: &SegmentSet, laps: u64, sleep_always: bool) {
    let (rank, size) = (set.rank(), set.world_size());
    let (mine, next) = (set.segment(rank), set.segment((rank + 1) % size));
    let (bell, next_bell) = (set.doorbell(rank), set.doorbell((rank + 1) % size));
    let mut random = rank as u64 + 1;
    for lap in 1..=laps {
        // Rank 0 begins a lap; the others follow, and rank 0 waits for the end of it.
        let wait = || {
            let ready = || slot(&mine).load(Ordering::Acquire) >= lap;
            assert!(bell.sleep(ready, LONG), "rank {rank} slept through lap {lap}");
        };
        let signal = || {
            slot(&next).store(lap, Ordering::Release);
            next_bell.ring();
        };
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let spins = if sleep_always || random >> 63 == 0 { 0 } else { random >> 33 & 0xfff };
        let spin = || {
            (0..spins).any(|_| {
                std::hint::spin_loop();
                slot(&mine).load(Ordering::Acquire) >= lap
            })
        };
        if rank == 0 {
            signal();
        }
        if !spin() {
            wait();
        }
        if rank != 0 {
            signal();
        }
    }
}

fn pass_among_threads(ranks: usize, laps: u64, sleep_always: bool) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for set in SegmentSet::threads(ranks, 8).unwrap() {
            scope.spawn(move || pass_around(&set, laps, sleep_always));
        }
    });
    start.elapsed()
}

#[test]
fn a_hundred_thousand_round_trips_with_random_sleeping_do_not_hang() {
    let time = pass_among_threads(2, 100_000, false);
    println!("2 threads: {:.2} us a lap", time.as_secs_f64() * 1e6 / 1e5);
}

#[test]
fn eight_ranks_on_few_cores_make_progress() {
    let time = pass_among_threads(8, 2000, true);
    println!("8 threads: {:.2} us a lap", time.as_secs_f64() * 1e6 / 2e3);
}

#[test]
fn processes_ring_each_other() {
    if let Some(mut member) = Member::of_this_process() {
        let (rank, size) = (member.rank, member.size);
        let set = SegmentSet::create(rank, size, 8, &mut |mine| member.exchange(mine)).unwrap();
        pass_around(&set, 20_000 / size as u64, rank.is_multiple_of(2));
        return member.report("done");
    }
    for ranks in [2, 4] {
        let mut job = Job::start("doorbell::processes_ring_each_other", ranks);
        job.gather();
        job.expect(0..ranks, "done");
        job.finish();
    }
}

#[test]
fn a_sleep_ends_in_time_when_nobody_rings() {
    let set = SegmentSet::threads(1, 0).unwrap().remove(0);
    let start = Instant::now();
    assert!(!set.doorbell(0).sleep(|| false, Duration::from_millis(20)));
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert!(!set.doorbell(0).sleep(|| false, Duration::ZERO));
    assert!(set.doorbell(0).sleep(|| true, Duration::ZERO), "who is ready does not sleep");
}

#[test]
fn a_signal_without_a_ring_is_seen_after_a_nap() {
    // The effect of a lost wake-up: the slot changes and nobody rings. It must cost a bounded delay.
    let set = SegmentSet::threads(1, 8).unwrap().remove(0);
    let memory = set.segment(0);
    let (mut asked, start) = (0, Instant::now());
    let woke = set.doorbell(0).sleep(
        || {
            asked += 1;
            if asked == 2 {
                slot(&memory).store(1, Ordering::Release);
            }
            asked > 2 && slot(&memory).load(Ordering::Acquire) == 1
        },
        LONG,
    );
    assert!(woke && asked == 3);
    assert!(start.elapsed() < LONG / 2, "naps are short");
}

#[test]
fn one_ring_wakes_all_who_sleep() {
    let set = SegmentSet::threads(1, 8).unwrap().remove(0);
    let go = AtomicU64::new(0);
    let asleep = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let sleep = || {
            let mut first = true;
            set.doorbell(0).sleep(
                || {
                    if std::mem::take(&mut first) {
                        asleep.fetch_add(1, Ordering::Relaxed);
                    }
                    go.load(Ordering::Acquire) == 1
                },
                LONG,
            )
        };
        let sleepers: Vec<_> = (0..4).map(|_| scope.spawn(sleep)).collect();
        while asleep.load(Ordering::Relaxed) < 4 {
            std::thread::yield_now();
        }
        go.store(1, Ordering::Release);
        set.doorbell(0).ring();
        assert!(sleepers.into_iter().all(|sleeper| sleeper.join().unwrap()));
    });
}

/// The price of a signal to a rank that is awake: a load, and no fence. A full fence costs several nanoseconds.
#[test]
fn a_ring_nobody_needs_writes_nothing() {
    let set = SegmentSet::threads(1, 0).unwrap().remove(0);
    let bell = set.doorbell(0);
    assert!(bell.sleep(|| true, LONG), "somebody who slept has risen");
    (0..1000).for_each(|_| bell.ring());
    assert_eq!(format!("{bell:?}"), "Doorbell(0 rings, 0 asleep)");
}
