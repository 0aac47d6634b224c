//! When a rank's thread drives its proxy, and when it sleeps.
//!
//! Threads that wait drive the proxy themselves. They cannot where a kernel of a GPU waits, and need not where a
//! waiting thread sleeps. Then the rank's own thread, if it has one, does it:
//!
//! ```text
//!   calls of other threads                        the thread ([`Duty::serve`])
//!   launched    a GPU runs a launch               steps without a pause; naps if none arrives for `LONG_WAIT`
//!   landed      ... and has ended
//!   captured    others replay launches, and tell  steps for `AFTERGLOW` after an arrival or post, then naps of 1 ms
//!               nobody
//!   hand_over   a waiting thread falls asleep     steps as long as posts are under way; the carrier's bell wakes the
//!   take_back   ... and is awake again            waiting thread for arrivals
//!                                                 otherwise: sleeps until it is called, or an arrival rings its bell
//! ```
//! A network's arrivals ring no bell, and libfabric's providers go on with what peers write here only while somebody
//! polls. A thread that *polls* therefore never sleeps for long: it steps for a waiting thread that sleeps, and naps
//! while the rank does something else. Naps become longer when nothing has come for a second, so that an idle rank
//! takes less than one percent of a processor.
//!
//! **Why no call is lost.** Consider a call and a thread that sleeps, or is about to.
//!
//! ```text
//!   caller                                      thread
//!   c1  flag := …, relaxed                      t1  seen = calls, acquire
//!   c2  calls += 1, release                     t2  reads the flags, steps: nothing to do
//!   c3  fence(seq_cst)                          t3  counts itself as a sleeper, fence(seq_cst)
//!   c4  rings if it sees a sleeper              t4  sleeps unless calls ≠ seen, or a step makes progress
//! ```
//! - If t1 sees c2, the flags that t2 reads are those of c1 or later ones: acquire and release.
//! - If t4 sees c2, the thread does not sleep, and comes back to t1.
//! - If neither sees it, c4 sees the sleeper of t3: of two fences one is first, and if that were c3, t4 would see c2.
//!   Ringing changes the word that the thread sleeps on, so it does not sleep or is woken (`doorbell.rs`, which argues
//!   this part).
//!
//! So unlike a signal of a kernel, a call has the full fence, and waits for no nap. A call is made once per launch or
//! sleep, where a fence costs nothing that could be noticed.
//!
//! **Why the waiting thread may sleep.** It hands the proxy over *before* it counts itself as a sleeper of the rank's
//! doorbell. From then on every step that moves a slot rings that bell, whoever makes it. What is left of the argument
//! is the doorbell's: a wake-up may be late by one nap.
//!
//! Two threads never step at the same time. A thread that finds another one inside says so, and that one rings the bell
//! when it comes out (`Proxy::step`).

#![forbid(unsafe_code)]

use crate::sync::{AtomicBool, AtomicUsize, Instant, Ordering, fence, yield_now};
use crate::transport::doorbell::Doorbell;
use std::time::Duration;

/// How long a launch may be in flight without an arrival or a post before the thread begins to nap.
const LONG_WAIT: Duration = Duration::from_millis(100);
/// How long the thread steps without a pause after an arrival or a post of a replayed launch.
const AFTERGLOW: Duration = Duration::from_millis(10);
/// How long it steps without a pause for a waiting thread that sleeps: deliveries ring no bell.
const UNDER_WAY: Duration = Duration::from_millis(1);
/// Naps while something may come of which no bell tells.
const SHORT_NAP: Duration = Duration::from_micros(50);
/// Naps between replays.
const REPLAY_NAP: Duration = Duration::from_millis(1);
/// Naps of a thread that polls, once nothing has come for `QUIET`.
const LONG_NAP: Duration = Duration::from_millis(5);
const QUIET: Duration = Duration::from_secs(1);
/// Sleep while nothing is expected.
const SLEEP: Duration = Duration::from_secs(1);
/// Idle steps between two yields.
const STEPS: u32 = 16;

/// What a rank's thread knows about its duty.
pub(crate) struct Duty {
    /// The thread sleeps on it.
    bell: Doorbell,
    /// Counts calls.
    calls: AtomicUsize,
    /// Waiting threads that sleep.
    handed: AtomicUsize,
    in_flight: AtomicBool,
    captured: AtomicBool,
    ended: AtomicBool,
    /// True if no bell tells of arrivals.
    polls: bool,
}

/// What the thread does when a step has made no progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pace {
    Step,
    Sleep(Duration),
}

impl Duty {
    /// The duty of a thread that sleeps on this bell.
    pub(crate) fn new(bell: Doorbell) -> Duty {
        let [in_flight, captured, ended] = [(); 3].map(|()| AtomicBool::new(false));
        let (calls, handed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Duty { bell, calls, handed, in_flight, captured, ended, polls: false }
    }

    /// The same where no bell tells of arrivals.
    pub(crate) fn that_polls(self) -> Duty {
        Duty { polls: true, ..self }
    }

    /// A launch starts on a GPU.
    pub(crate) fn launched(&self) {
        self.in_flight.store(true, Ordering::Relaxed);
        self.call();
    }

    /// All launches have ended. The thread notices it by itself.
    pub(crate) fn landed(&self) {
        self.in_flight.store(false, Ordering::Relaxed);
    }

    /// A launch was recorded in a graph.
    pub(crate) fn captured(&self) {
        self.captured.store(true, Ordering::Relaxed);
        self.call();
    }

    /// A waiting thread is about to sleep.
    pub(crate) fn hand_over(&self) {
        self.handed.fetch_add(1, Ordering::Relaxed);
        self.call();
    }

    /// It is awake again, and drives the proxy itself.
    pub(crate) fn take_back(&self) {
        self.handed.fetch_sub(1, Ordering::Relaxed);
    }

    /// [`serve`](Self::serve) returns.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.call();
    }

    /// c2 to c4.
    fn call(&self) {
        self.calls.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.bell.ring();
    }

    /// The thread's work until [`end`](Self::end). `step` makes progress with the proxy and returns true if there was
    /// any; `is_busy` says whether posts are under way.
    pub(crate) fn serve(&self, mut step: impl FnMut() -> bool, is_busy: impl Fn() -> bool) {
        let (mut last, mut known, mut idle) = (Instant::now(), 0, 0);
        loop {
            let seen = self.calls.load(Ordering::Acquire);
            if seen != known {
                (known, last) = (seen, Instant::now());
            }
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            if step() {
                (last, idle) = (Instant::now(), 0);
                continue;
            }
            match self.pace(last.elapsed(), is_busy()) {
                Pace::Step => {
                    idle += 1;
                    if idle % STEPS == 0 {
                        yield_now();
                    }
                }
                Pace::Sleep(most) => {
                    let mut progress = false;
                    let ready = || {
                        progress |= step();
                        progress || self.calls.load(Ordering::Acquire) != seen
                    };
                    self.bell.sleep(ready, most);
                    if progress {
                        last = Instant::now();
                    }
                }
            }
        }
    }

    /// `quiet`: the time since the last call, arrival or post.
    fn pace(&self, quiet: Duration, is_busy: bool) -> Pace {
        let [in_flight, captured] = [&self.in_flight, &self.captured].map(|flag| flag.load(Ordering::Relaxed));
        let is_handed = self.handed.load(Ordering::Relaxed) > 0;
        let (steps_for, nap) = match (in_flight, captured) {
            (true, _) => (LONG_WAIT, SHORT_NAP),
            (_, true) => (AFTERGLOW, if is_busy { SHORT_NAP } else { REPLAY_NAP }),
            // While a launch runs on the CPU, its own threads drive.
            _ if is_busy && is_handed => (UNDER_WAY, SHORT_NAP),
            _ if self.polls && quiet >= QUIET => (Duration::ZERO, LONG_NAP),
            _ if self.polls && is_handed => (UNDER_WAY, SHORT_NAP),
            _ if self.polls => (Duration::ZERO, SHORT_NAP),
            _ => (Duration::ZERO, SLEEP),
        };
        if quiet < steps_for { Pace::Step } else { Pace::Sleep(nap) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_steps_while_something_may_come_without_a_bell_and_sleeps_otherwise() {
        let duty = Duty::new(Doorbell::alone().unwrap());
        let ms = Duration::from_millis;
        let sleeps = |quiet, busy| duty.pace(quiet, busy) == Pace::Sleep(SLEEP);
        assert!(sleeps(ms(0), false) && sleeps(ms(0), true));
        duty.hand_over();
        assert_eq!(duty.pace(ms(0), true), Pace::Step);
        assert_eq!(duty.pace(ms(2), true), Pace::Sleep(SHORT_NAP));
        assert!(sleeps(ms(0), false), "the carrier's bell wakes the waiting thread");
        duty.take_back();
        assert!(sleeps(ms(0), true));
        duty.launched();
        assert_eq!((duty.pace(ms(99), false), duty.pace(ms(100), false)), (Pace::Step, Pace::Sleep(SHORT_NAP)));
        duty.landed();
        assert!(sleeps(ms(0), false));
        duty.captured();
        assert_eq!((duty.pace(ms(9), false), duty.pace(ms(10), false)), (Pace::Step, Pace::Sleep(REPLAY_NAP)));
        duty.launched();
        assert_eq!(duty.pace(ms(50), false), Pace::Step, "a plain launch between replays");
    }

    #[test]
    fn a_thread_that_polls_never_sleeps_for_long() {
        let duty = Duty::new(Doorbell::alone().unwrap()).that_polls();
        let ms = Duration::from_millis;
        for busy in [false, true] {
            assert_eq!(duty.pace(ms(0), busy), Pace::Sleep(SHORT_NAP), "the rank drives, or does something else");
            assert_eq!(duty.pace(ms(1000), busy), Pace::Sleep(LONG_NAP));
        }
        duty.hand_over();
        assert_eq!((duty.pace(ms(0), false), duty.pace(ms(1), false)), (Pace::Step, Pace::Sleep(SHORT_NAP)));
        assert_eq!(duty.pace(ms(1000), false), Pace::Sleep(LONG_NAP), "a long wait is an idle rank, too");
    }
}
