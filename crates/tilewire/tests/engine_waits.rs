//! Waits between ranks: a waiting thread sleeps, a signal wakes it, and an abort ends every wait immediately.
//!
//! The ranks are threads over `SegmentSet::threads`. A sleep in a test makes a rank late, or lets it fall asleep; no
//! result depends on its length. The tests run one at a time, because they measure time on few cores.
#![cfg(target_os = "linux")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tilewire::collective::waits_over;
use tilewire::prelude::*;
use tilewire::transport::{AbortCode, Cause, Doorbell, SegmentSet};
use tilewire::vm::{Prepared, Settings};
use tilewire::{LaunchError, Memory, Traced};

const BYTES: usize = 4096;
const STRIDE: u32 = 64;

fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|failed| failed.into_inner())
}

fn settings(set: &SegmentSet) -> Settings {
    let deadline = Some(Duration::from_secs(20));
    Settings { rank: set.rank(), world_size: set.world_size(), deadline, waits: waits_over(set), ..Settings::default() }
}

fn prepare(set: &SegmentSet, traced: &Traced) -> Prepared {
    Prepared::with(&traced.kernel, &traced.args, settings(set)).unwrap()
}

/// The segments of all ranks, as banks.
fn banks(set: &SegmentSet) -> Vec<Memory> {
    (0..set.world_size()).map(|rank| set.segment(rank)).collect()
}

fn slot(memory: &Memory, index: usize) -> &AtomicU64 {
    assert!((index + 1) * STRIDE as usize <= memory.bytes());
    // SAFETY: inside the segment and aligned; the handle keeps it alive; only touched by atomics.
    unsafe { AtomicU64::from_ptr(memory.start().as_ptr().add(index * STRIDE as usize).cast()) }
}

/// (rings that found a sleeper, sleepers) of a rank's doorbell.
fn bell(set: &SegmentSet, rank: usize) -> (u32, u32) {
    let word = set.doorbell(rank).word().load(Ordering::Relaxed);
    (word >> Doorbell::SLEEPERS.count_ones(), word & Doorbell::SLEEPERS)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

/// Runs each rank in a thread.
fn ranks(count: usize, run: impl Fn(SegmentSet) + Sync) {
    let sets = SegmentSet::threads(count, BYTES).unwrap();
    std::thread::scope(|scope| {
        for set in sets {
            scope.spawn(|| run(set));
        }
    });
}

/// One exchange with the other rank per launch; `round` is its number. Rank 0 signals first.
fn ping(set: &SegmentSet, round: &Scalar<i64>) -> Traced {
    let first = set.rank() == 0;
    let ping = kernel("ping", |k| {
        let s = k.slots("turn", &banks(set), STRIDE);
        k.main(|r| {
            let (peer, round) = (1 - r.rank(), r.scalar(round));
            if first {
                r.signal(s.slot(peer, 0), round);
            }
            r.wait(s.slot(r.rank(), 0), round);
            if !first {
                r.signal(s.slot(peer, 0), round);
            }
        });
    });
    ping.unwrap()
}

#[test]
fn ten_thousand_exchanges_with_random_delays_lose_no_wake_up() {
    let _turn = one_at_a_time();
    let start = Instant::now();
    ranks(2, |set| {
        let round = Scalar::new(0i64);
        let mut exchange = prepare(&set, &ping(&set, &round));
        let (mut state, mut late) = (set.rank() as u64 + 7, 0);
        for lap in 1..=10_000 {
            // From nothing to well beyond the time for which a wait spins and yields.
            match random(&mut state) % 16 {
                0 => std::thread::sleep(Duration::from_micros(1000 + random(&mut state) % 1500)),
                1..4 => std::thread::sleep(Duration::from_micros(random(&mut state) % 400)),
                _ => {}
            }
            round.set(lap);
            let began = Instant::now();
            exchange.run().unwrap();
            late += usize::from(began.elapsed() > Duration::from_millis(20));
        }
        let (rings, _) = bell(&set, set.rank());
        println!("rank {}: {rings} rings found a sleeper, {late} exchanges took more than 20 ms", set.rank());
        assert!(rings > 100, "only {rings} rings: hardly anybody slept, and the test shows nothing");
        // A lost wake-up costs a nap of 10 ms at most. A longer wait is due to the machine, so it is printed and not
        // judged.
    });
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn a_sleeper_is_woken_by_packets_too_whatever_the_number_of_its_bank() {
    let _turn = one_at_a_time();
    ranks(2, |set| {
        let first = set.rank() == 0;
        let (x, y, round) = (Tensor::<u64>::zeros(8), Tensor::<u64>::zeros(8), Scalar::new(0u32));
        let traced = kernel("packets", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            let (own, peer) = (set.segment(set.rank()), set.segment(1 - set.rank()));
            let region = k.region("packets", &[own, peer]);
            k.main(|r| {
                let flag = r.scalar(&round);
                let put = || r.each(8, |i| region.packet_put(1, i, x.load(i), flag));
                if first {
                    put();
                }
                r.each(8, |i| y.store(i, region.packet_get(0, i, flag)));
                if !first {
                    put();
                }
            });
        });
        let mut exchange = prepare(&set, &traced.unwrap());
        for lap in 1..=50u32 {
            if first {
                // Long enough for the other rank to sleep, even on a busy machine.
                std::thread::sleep(Duration::from_millis(20));
            }
            x.fill(u64::from(lap));
            round.set(lap);
            exchange.run().unwrap();
            assert_eq!(y.to_vec(), [u64::from(lap); 8]);
        }
        if !first {
            let (rings, _) = bell(&set, 1);
            assert!(rings > 20, "only {rings} rings");
        }
    });
}

/// A kernel in which every instance waits for a separate slot that another party must set.
fn patient(set: &SegmentSet, roles: usize, blocks: usize) -> Traced {
    let patient = kernel("patient", |k| {
        k.blocks(blocks as u32);
        let s = k.slots("mail", &banks(set), STRIDE);
        for role in 0..roles {
            k.role(format!("role{role}"), 1).run(|r| {
                r.wait(s.slot(r.rank(), r.block() * roles as i64 + role as i64), 5i64);
            });
        }
    });
    patient.unwrap()
}

#[test]
fn an_abort_ends_a_blocked_launch_at_once_and_the_next_launch_runs_when_the_word_is_cleared() {
    let _turn = one_at_a_time();
    for (roles, blocks) in [(1, 1), (3, 1), (1, 4), (2, 3)] {
        let mut sets = SegmentSet::threads(2, BYTES).unwrap();
        let (one, zero) = (sets.pop().unwrap(), sets.pop().unwrap());
        let mut launch = prepare(&zero, &patient(&zero, roles, blocks));
        for _ in 0..3 {
            let aborter = || {
                until("rank 0 sleeps", || bell(&one, 0).1 > 0);
                let now = Instant::now();
                one.abort_all(Cause { code: AbortCode::Died, rank: 1, reason: 9 });
                now
            };
            let (error, ended, aborted) = std::thread::scope(|scope| {
                let aborter = scope.spawn(aborter);
                let error = launch.run().unwrap_err();
                (error, Instant::now(), aborter.join().unwrap())
            });
            let took = ended.saturating_duration_since(aborted);
            // Immediately means: long before the deadline, however busy the machine is.
            assert!(took < Duration::from_secs(5), "{roles} roles, {blocks} blocks: {took:?}");
            let LaunchError::Aborted { cause, word, what, by, at } = &error else { panic!("{error}") };
            assert_eq!(cause, "rank 1 died (reason 9)");
            assert_eq!(Cause::from_word(*word).unwrap().rank, 1);
            assert!(what.starts_with("wait mail[bank 0]["), "{what}");
            assert!(by.rank == 0 && by.block < blocks && by.role.starts_with("role"), "{by}");
            assert!(at.to_string().contains("engine_waits.rs"), "{at}");
            assert!(error.to_string().contains("connect the ranks anew"), "{error}");

            // While it is set, it ends the next launch as well, which need not sleep first.
            assert!(matches!(launch.run(), Err(LaunchError::Aborted { .. })));

            // A new rendezvous would begin with a new word and new slots. Here both are reset by hand.
            zero.abort(0).word().store(0, Ordering::Relaxed);
            let mail = zero.segment(0);
            (0..roles * blocks).for_each(|k| slot(&mail, k).store(5, Ordering::Release));
            launch.run().unwrap();
            (0..roles * blocks).for_each(|k| slot(&mail, k).store(0, Ordering::Release));
        }
    }
}

#[test]
fn an_abort_ends_roles_that_poll_and_roles_that_keep_each_other_busy() {
    let _turn = one_at_a_time();
    let sets = SegmentSet::threads(2, BYTES).unwrap();
    let polling = kernel("polling", |k| {
        let s = k.slots("ready", &banks(&sets[0]), STRIDE);
        k.main(|r| r.while_(|| !r.test(s.slot(0, 0), 1), || {}));
    });
    let busy = kernel("busy", |k| {
        let s = k.slots("turn", &banks(&sets[0]), STRIDE);
        k.role("a", 1).run(|r| {
            r.for_(0i64..i64::MAX, |i| {
                r.signal(s.slot(0, 1), i + 1);
                r.wait(s.slot(0, 2), i + 1);
            });
        });
        k.role("b", 1).run(|r| {
            r.for_(0i64..i64::MAX, |i| {
                r.wait(s.slot(0, 1), i + 1);
                r.signal(s.slot(0, 2), i + 1);
            });
        });
    });
    for traced in [polling.unwrap(), busy.unwrap()] {
        let mut launch = prepare(&sets[0], &traced);
        let (abort, result) = (
            sets[0].abort(0),
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(30));
                    sets[1].abort_all(Cause { code: AbortCode::TimedOut, rank: 1, reason: 0 });
                });
                launch.run()
            }),
        );
        assert!(matches!(&result, Err(LaunchError::Aborted { .. })), "{result:?}");
        abort.word().store(0, Ordering::Relaxed);
    }
}

#[test]
fn a_rank_that_panics_ends_the_waits_of_its_peers() {
    let _turn = one_at_a_time();
    let mut sets = SegmentSet::threads(2, BYTES).unwrap();
    let (one, zero) = (sets.pop().unwrap(), sets.pop().unwrap());
    let mut launch = prepare(&zero, &patient(&zero, 1, 2));
    let panics = std::thread::spawn(move || {
        let _guard = one.panic_guard();
        until("rank 0 sleeps", || bell(&one, 0).1 > 0);
        panic!("planted");
    });
    let error = launch.run().unwrap_err();
    assert!(matches!(&error, LaunchError::Aborted { cause, .. } if cause == "rank 1 panicked"), "{error}");
    assert!(panics.join().is_err());
}

#[test]
fn a_timeout_says_who_waited_where_for_what() {
    let _turn = one_at_a_time();
    let sets = SegmentSet::threads(2, BYTES).unwrap();
    for (roles, blocks) in [(1, 1), (2, 2)] {
        let traced = patient(&sets[1], roles, blocks);
        let settings = Settings { deadline: Some(Duration::from_millis(100)), ..settings(&sets[1]) };
        slot(&sets[1].segment(1), 0).store(3, Ordering::Relaxed);
        (1..roles * blocks).for_each(|k| slot(&sets[1].segment(1), k).store(5, Ordering::Relaxed));
        let start = Instant::now();
        let error = Prepared::with(&traced.kernel, &traced.args, settings).unwrap().run().unwrap_err();
        assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());
        let LaunchError::Timeout { bank, index, expected, seen, .. } = &error else { panic!("{error}") };
        assert_eq!((*bank, *index, *expected, *seen), (Some(1), Some(0), 5, 3));
        let text = error.to_string();
        let expected = "wait mail[bank 1][0]: waited 100ms for 5, saw 3: rank 1 block 0 role role0, at ";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("engine_waits.rs:"), "{text}");
    }
}

/// Every block of every rank signals its counterpart in all ranks, and waits for all of them, `laps` times.
fn meeting(set: &SegmentSet, blocks: usize, laps: &Scalar<i64>) -> Traced {
    let (size, wide) = (set.world_size() as i64, blocks as i64);
    let meeting = kernel("meeting", |k| {
        k.blocks(blocks as u32);
        let s = k.slots("here", &banks(set), STRIDE);
        k.main(|r| {
            r.for_(r.constant(0i64)..r.scalar(laps), |lap| {
                r.for_(0i64..size, |peer| r.signal(s.slot(peer, r.rank() * wide + r.block()), lap + 1));
                r.for_(0i64..size, |peer| r.wait(s.slot(r.rank(), peer * wide + r.block()), lap + 1));
            });
        });
    });
    meeting.unwrap()
}

/// Processor time this process has used.
fn processor_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the buffer is as large as the call needs, and all zeros is a value of it.
    let usage = unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()), 0);
        usage.assume_init()
    };
    let time = |t: libc::timeval| Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64);
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[test]
fn eight_ranks_of_two_blocks_get_on_and_cost_little_while_one_is_late() {
    let _turn = one_at_a_time();
    let (ready, late) = (Barrier::new(8), Duration::from_millis(300));
    ranks(8, |set| {
        let laps = Scalar::new(1i64);
        let mut launch = prepare(&set, &meeting(&set, 2, &laps));
        ready.wait();
        if set.rank() == 7 {
            // The seven others wait meanwhile, and so do their helpers. This thread measures all of them while it
            // sleeps.
            let (start, before) = (Instant::now(), processor_time());
            std::thread::sleep(late);
            let (used, wall) = (processor_time() - before, start.elapsed());
            println!("seven ranks that wait used {used:?} in {wall:?}");
            assert!(used < wall.mul_f64(0.3), "seven ranks that wait used {used:?} in {wall:?}");
        }
        launch.run().unwrap();
        ready.wait();
        // From here on nobody is late: many laps, each with all ranks.
        (0..16).for_each(|k| slot(&set.segment(set.rank()), k).store(0, Ordering::Relaxed));
        laps.set(200);
        ready.wait();
        launch.run().unwrap();
    });
}

#[test]
fn a_helper_asleep_is_woken_by_a_signal_within_its_rank() {
    let _turn = one_at_a_time();
    ranks(1, |set| {
        // A slot outside the segment belongs to nobody, so it is the rank's own.
        let private = Tensor::<u64>::zeros(64);
        let laps = 300i64;
        let traced = kernel("blocks", |k| {
            k.blocks(2);
            let s = k.slots("turn", &[private.memory().clone()], STRIDE);
            k.main(|r| {
                let other = 1 - r.block();
                r.for_(0i64..laps, |lap| {
                    r.if_(r.block().eq(0), || r.signal(s.slot(0, other), lap + 1));
                    r.wait(s.slot(0, r.block()), lap + 1);
                    r.if_(r.block().eq(1), || r.signal(s.slot(0, other), lap + 1));
                });
            });
        });
        let mut launch = prepare(&set, &traced.unwrap());
        let start = Instant::now();
        launch.run().unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    });
}

/// The least time of several runs with a host and without one, alternately.
fn with_and_without(set: &SegmentSet, traced: &Traced) -> (Duration, Duration) {
    let alone = Settings { waits: tilewire::vm::Waits::alone(), ..settings(set) };
    let mut alone = Prepared::with(&traced.kernel, &traced.args, alone).unwrap();
    let mut hosted = prepare(set, traced);
    let time = |launch: &mut Prepared| {
        (0..set.world_size()).for_each(|rank| {
            let memory = set.segment(rank);
            (0..4).for_each(|k| slot(&memory, k).store(0, Ordering::Relaxed));
        });
        let start = Instant::now();
        launch.run().unwrap();
        start.elapsed()
    };
    let least = |best: (Duration, Duration), _| (best.0.min(time(&mut hosted)), best.1.min(time(&mut alone)));
    (0..30).fold((Duration::MAX, Duration::MAX), least)
}

#[test]
#[ignore = "a measurement: cargo test --release --test engine_waits -- --ignored --nocapture"]
fn what_ringing_and_polling_cost() {
    let _turn = one_at_a_time();
    let sets = SegmentSet::threads(2, BYTES).unwrap();
    let laps = 1_000_000i64;
    let signals = kernel("signals", |k| {
        let s = k.slots("s", &banks(&sets[0]), STRIDE);
        k.main(|r| r.for_(0i64..laps, |i| r.signal(s.slot(1, 0), i + 1)));
    });
    let rounds = kernel("rounds", |k| {
        let s = k.slots("s", &banks(&sets[0]), STRIDE);
        k.role("a", 1).run(|r| {
            r.for_(0i64..laps, |i| {
                r.signal(s.slot(0, 1), i + 1);
                r.wait(s.slot(0, 2), i + 1);
            });
        });
        k.role("b", 1).run(|r| {
            r.for_(0i64..laps, |i| {
                r.wait(s.slot(0, 1), i + 1);
                r.signal(s.slot(0, 2), i + 1);
            });
        });
    });
    for (what, traced) in [("a signal", signals), ("a round of two roles: two signals, one poll", rounds)] {
        let (hosted, alone) = with_and_without(&sets[0], &traced.unwrap());
        let each = |time: Duration| time.as_secs_f64() * 1e9 / laps as f64;
        println!(
            "{what}: {:.2} ns with a host, {:.2} ns without: {:.3}×",
            each(hosted),
            each(alone),
            each(hosted) / each(alone)
        );
    }
}
