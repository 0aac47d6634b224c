//! Decides when a rank's thread drives its proxy, and when that thread sleeps.
//!
//! Waiting threads drive the proxy themselves. Where a kernel of a GPU waits there is no such thread, and a waiting
//! thread that sleeps does not drive. In these cases the rank's own thread, if it has one, drives the proxy:
//!
//! ```text
//!   calls of other threads                        the thread ([`Duty::serve`])
//!   launched    a GPU runs a launch               steps without a pause; naps after a quiet `LONG_WAIT`
//!   landed      ... and has ended
//!   captured    a graph replays launches, and     steps for `AFTERGLOW` after an arrival or post, then naps of 1 ms
//!               nobody reports the replays
//!   hand_over   a waiting thread falls asleep     steps as long as posts are under way; the carrier's bell wakes the
//!   take_back   ... and is awake again            waiting thread for arrivals
//!   runs        a CPU runs a launch               naps of 1 ms, also for `RECENT` after the launch
//!                                                 otherwise: sleeps until it is called, or an arrival rings its bell
//! ```
//! A launch on a CPU drives the proxy in its own waits. But it may post and then compute for long, with peers waiting
//! for what it posted. Posts ring no bell, because almost all of them are followed by a wait. Instead the thread looks
//! after every nap, so what a launch posts leaves within about 1 ms. A thread that dozes, because no launch has run for
//! `RECENT`, is called by the next launch. That call has no fence: if it is missed, the thread looks when its nap on
//! the bell ends, after 10 ms at most, and stays awake from then on.
//!
//! A thread need not take over from waiting threads that sleep. If it does not, they look at the proxy themselves
//! between naps, as they would without any thread (`wait_host.rs`). Taking over costs a wake-up for every sleep.
//!
//! Arrivals from a network ring no bell, and libfabric's providers make progress with the writes of peers only while
//! this rank polls. A thread that *polls* therefore never sleeps for long: it steps for a waiting thread that sleeps,
//! and naps while the rank does something else. Naps become longer after a second without an arrival or post, so that
//! an idle rank takes less than one percent of a processor.
//!
//! **While other threads drive the proxy**, a thread that polls stays outside. It would find nothing that they do not
//! find themselves, and if it held the proxy when a launch ends, that launch would wait for it.
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
//! So unlike a kernel's signal, a call has the full fence, and its wake-up is not late by a nap. There is one call per
//! launch or sleep, so the fence costs nothing measurable.
//!
//! **Why the waiting thread may sleep.** It hands the proxy over *before* it counts itself as a sleeper of the rank's
//! doorbell. From then on every step that moves a slot rings that bell, in any thread. The rest of the argument is in
//! `doorbell.rs`: a wake-up may be late by one nap.
//!
//! Two threads never step at the same time (`turns.rs`).

#![forbid(unsafe_code)]

use crate::sync::{AtomicBool, AtomicUsize, Instant, Ordering, fence, yield_now};
use crate::transport::doorbell::Doorbell;
use std::time::Duration;

/// The thread begins to nap when a launch has been in flight for this long without an arrival or a post.
const LONG_WAIT: Duration = Duration::from_millis(100);
/// How long the thread steps without a pause after an arrival or a post of a replayed launch.
const AFTERGLOW: Duration = Duration::from_millis(10);
/// How long the thread steps without a pause for a waiting thread that sleeps. It must poll, as deliveries ring no
/// bell.
const UNDER_WAY: Duration = Duration::from_millis(1);
/// The length of a nap while something may arrive that rings no bell.
const SHORT_NAP: Duration = Duration::from_micros(50);
/// The length of a nap while other threads drive the proxy.
const DRIVEN_NAP: Duration = Duration::from_micros(100);
/// The length of a nap between replays, and while a launch on a CPU runs.
const LAUNCH_NAP: Duration = Duration::from_millis(1);
/// How long the thread naps after a launch on a CPU as if it still ran, so that launches in a row need not call it.
const RECENT: Duration = Duration::from_millis(20);
/// The length of a nap of a thread that polls, once nothing has arrived for `QUIET`.
const LONG_NAP: Duration = Duration::from_millis(5);
/// After this long without a call, an arrival or a post, a rank counts as idle.
const QUIET: Duration = Duration::from_secs(1);
/// The length of a sleep while nothing is expected.
const SLEEP: Duration = Duration::from_secs(1);
/// Idle steps between two yields.
const STEPS: u32 = 16;

/// The calls to a rank's thread, and the bell that the thread sleeps on.
pub(crate) struct Duty {
    /// The bell that the thread sleeps on.
    bell: Doorbell,
    /// The number of calls so far.
    calls: AtomicUsize,
    /// The number of waiting threads that have handed the proxy over and sleep.
    handed: AtomicUsize,
    /// The number of launches on a GPU that were reported and have not ended.
    in_flight: AtomicUsize,
    /// The number of launches on a CPU that run.
    running: AtomicUsize,
    /// True while the thread sleeps for as long as nobody calls.
    dozes: AtomicBool,
    captured: AtomicBool,
    ended: AtomicBool,
    /// True if arrivals ring no bell.
    polls: bool,
    /// True if the thread takes over from waiting threads that sleep.
    relieves: bool,
}

/// The thread's next action when a step has made no progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pace {
    Step,
    Sleep(Duration),
}

impl Duty {
    /// The duty of a thread that sleeps on this bell.
    pub(crate) fn new(bell: Doorbell) -> Duty {
        let [dozes, captured, ended] = [(); 3].map(|()| AtomicBool::new(false));
        let [calls, handed, in_flight, running] = [(); 4].map(|()| AtomicUsize::new(0));
        Duty { bell, calls, handed, in_flight, running, dozes, captured, ended, polls: false, relieves: true }
    }

    /// Makes this the duty of a thread that does not take over from waiting threads.
    pub(crate) fn that_relieves_nobody(self) -> Duty {
        Duty { relieves: false, ..self }
    }

    /// Makes this the duty of a thread that polls, because arrivals ring no bell.
    pub(crate) fn that_polls(self) -> Duty {
        Duty { polls: true, ..self }
    }

    /// True if the thread polls.
    pub(crate) fn polls(&self) -> bool {
        self.polls
    }

    /// Says that a launch starts on a GPU.
    pub(crate) fn launched(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.call();
    }

    /// Says that a launch that was reported did not start.
    pub(crate) fn launched_not(&self) {
        // All launches may have ended meanwhile, and then nothing is in flight.
        let less = |in_flight: usize| in_flight.checked_sub(1);
        _ = self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Says that a launch on a CPU starts.
    #[inline]
    pub(crate) fn runs(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
        // No fence comes between the two. The head of this file says what a missed call costs.
        if self.dozes.load(Ordering::Relaxed) {
            self.call();
        }
    }

    /// Says that a launch on a CPU has ended.
    #[inline]
    pub(crate) fn ran(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// Says that all launches have ended. The thread sees this at its next round, so it is not woken.
    pub(crate) fn landed(&self) {
        self.in_flight.store(0, Ordering::Relaxed);
    }

    /// Says that a launch was recorded in a graph.
    pub(crate) fn captured(&self) {
        self.captured.store(true, Ordering::Relaxed);
        self.call();
    }

    /// Says that a waiting thread is about to sleep. Returns false if this thread does not take over.
    pub(crate) fn hand_over(&self) -> bool {
        if self.relieves {
            self.handed.fetch_add(1, Ordering::Relaxed);
            self.call();
        }
        self.relieves
    }

    /// Says that the waiting thread is awake again and drives the proxy itself.
    pub(crate) fn take_back(&self) {
        self.handed.fetch_sub(1, Ordering::Relaxed);
    }

    /// Makes [`serve`](Self::serve) return.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.call();
    }

    /// Steps c2 to c4 of the argument above.
    fn call(&self) {
        self.calls.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.bell.ring();
    }

    /// Does the thread's work until [`end`](Self::end) is called. `step` drives the proxy and returns true if it made
    /// progress. `is_busy` says whether posts are under way. `driven` returns a number that changes whenever another
    /// thread makes a step.
    pub(crate) fn serve(&self, mut step: impl FnMut() -> bool, is_busy: impl Fn() -> bool, driven: impl Fn() -> usize) {
        let (mut last, mut known, mut idle, mut ran, mut steps) = (Instant::now(), 0, 0, None::<Instant>, driven());
        loop {
            let seen = self.calls.load(Ordering::Acquire);
            if seen != known {
                (known, last) = (seen, Instant::now());
            }
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            let now = driven();
            if self.stays_out() && now != steps {
                (steps, last) = (now, Instant::now());
                self.bell.nap(|| self.calls.load(Ordering::Acquire) != seen, DRIVEN_NAP);
                continue;
            }
            if step() {
                (last, idle) = (Instant::now(), 0);
                continue;
            }
            if self.running.load(Ordering::Relaxed) > 0 {
                ran = Some(Instant::now());
            }
            let is_running = ran.is_some_and(|ran| ran.elapsed() < RECENT);
            match self.pace(last.elapsed(), is_busy(), is_running) {
                Pace::Step => {
                    idle += 1;
                    if idle % STEPS == 0 {
                        yield_now();
                    }
                }
                Pace::Sleep(most) => {
                    let (mut progress, dozes) = (false, most >= SLEEP);
                    if dozes {
                        self.dozes.store(true, Ordering::Relaxed);
                    }
                    let ready = || {
                        progress |= step();
                        let runs = dozes && self.running.load(Ordering::Relaxed) > 0;
                        progress || self.calls.load(Ordering::Acquire) != seen || runs
                    };
                    // The bell of a thread that polls is rung by calls alone. Looking again and again within a nap
                    // would take an idle rank more than a percent of a processor.
                    match self.polls {
                        true => self.bell.nap(ready, most),
                        false => _ = self.bell.sleep(ready, most),
                    }
                    if dozes {
                        self.dozes.store(false, Ordering::Relaxed);
                    }
                    if progress {
                        last = Instant::now();
                    }
                }
            }
        }
    }

    /// True if the thread has nothing to do while other threads make steps: it polls only for a rank that does not.
    fn stays_out(&self) -> bool {
        let is_needed = self.in_flight.load(Ordering::Relaxed) > 0 || self.captured.load(Ordering::Relaxed);
        self.polls && !is_needed && self.handed.load(Ordering::Relaxed) == 0
    }

    /// The next action, when the last call, arrival or post was `quiet` ago. `is_running`: a launch on a CPU runs, or
    /// has run a moment ago.
    fn pace(&self, quiet: Duration, is_busy: bool, is_running: bool) -> Pace {
        let (in_flight, captured) = (self.in_flight.load(Ordering::Relaxed) > 0, self.captured.load(Ordering::Relaxed));
        let is_handed = self.handed.load(Ordering::Relaxed) > 0;
        let (steps_for, nap) = match (in_flight, captured) {
            (true, _) => (LONG_WAIT, SHORT_NAP),
            (_, true) => (AFTERGLOW, if is_busy { SHORT_NAP } else { LAUNCH_NAP }),
            _ if is_busy && is_handed => (UNDER_WAY, SHORT_NAP),
            _ if self.polls && quiet >= QUIET => (Duration::ZERO, LONG_NAP),
            _ if self.polls && is_handed => (UNDER_WAY, SHORT_NAP),
            _ if self.polls => (Duration::ZERO, SHORT_NAP),
            // A launch on a CPU drives the proxy in its waits, and computes between them.
            _ if is_running => (Duration::ZERO, LAUNCH_NAP),
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
        let sleeps = |quiet, busy| duty.pace(quiet, busy, false) == Pace::Sleep(SLEEP);
        assert!(sleeps(ms(0), false) && sleeps(ms(0), true));
        duty.hand_over();
        assert_eq!(duty.pace(ms(0), true, false), Pace::Step);
        assert_eq!(duty.pace(ms(2), true, false), Pace::Sleep(SHORT_NAP));
        assert!(sleeps(ms(0), false), "the carrier's bell wakes the waiting thread");
        duty.take_back();
        assert!(sleeps(ms(0), true));
        duty.launched();
        assert_eq!(
            (duty.pace(ms(99), false, false), duty.pace(ms(100), false, false)),
            (Pace::Step, Pace::Sleep(SHORT_NAP))
        );
        duty.landed();
        assert!(sleeps(ms(0), false));
        duty.captured();
        assert_eq!(
            (duty.pace(ms(9), false, false), duty.pace(ms(10), false, false)),
            (Pace::Step, Pace::Sleep(LAUNCH_NAP))
        );
        duty.launched();
        assert_eq!(duty.pace(ms(50), false, false), Pace::Step, "a plain launch between replays");
    }

    #[test]
    fn the_thread_looks_every_millisecond_while_a_launch_on_a_cpu_runs_and_it_need_not_relieve() {
        let duty = Duty::new(Doorbell::alone().unwrap()).that_relieves_nobody();
        assert!(!duty.hand_over());
        for busy in [false, true] {
            assert_eq!(duty.pace(QUIET, busy, true), Pace::Sleep(LAUNCH_NAP));
            assert_eq!(duty.pace(QUIET, busy, false), Pace::Sleep(SLEEP));
        }
        let calls = || duty.calls.load(Ordering::Relaxed);
        duty.runs();
        assert_eq!(calls(), 0, "a thread that is awake sees the launch by itself");
        duty.ran();
        duty.dozes.store(true, Ordering::Relaxed);
        duty.runs();
        assert_eq!((calls(), duty.running.load(Ordering::Relaxed)), (1, 1));
    }

    #[test]
    fn a_launch_that_did_not_start_leaves_nothing_in_flight() {
        let duty = Duty::new(Doorbell::alone().unwrap());
        duty.launched();
        duty.launched_not();
        assert_eq!(duty.pace(Duration::ZERO, false, false), Pace::Sleep(SLEEP));
        duty.launched();
        duty.launched();
        duty.launched_not();
        assert_eq!(duty.pace(Duration::ZERO, false, false), Pace::Step, "an earlier launch is in flight");
        duty.landed();
        duty.launched_not();
        assert_eq!(duty.pace(Duration::ZERO, false, false), Pace::Sleep(SLEEP));
    }

    #[test]
    fn a_thread_that_polls_stays_out_while_others_drive() {
        let polling = || Duty::new(Doorbell::alone().unwrap()).that_polls();
        assert!(!Duty::new(Doorbell::alone().unwrap()).stays_out(), "nobody drives for it");
        assert!(polling().stays_out());
        let duty = polling();
        duty.hand_over();
        assert!(!duty.stays_out(), "the waiting thread sleeps");
        duty.take_back();
        assert!(duty.stays_out());
        duty.launched();
        assert!(!duty.stays_out(), "a kernel of a GPU waits");
    }

    /// Others drive for ten rounds, and then no longer.
    #[test]
    fn a_thread_steps_again_when_others_have_stopped() {
        let duty = Duty::new(Doorbell::alone().unwrap()).that_polls();
        let (rounds, stepped) = (std::cell::Cell::new(0), std::cell::Cell::new(false));
        let driven = || {
            rounds.set(rounds.get() + 1);
            rounds.get().min(10)
        };
        let step = || {
            assert!(rounds.get() > 10, "a step in round {} while others drive", rounds.get());
            stepped.set(true);
            duty.end();
            true
        };
        duty.serve(step, || false, driven);
        assert!(stepped.get());
    }

    #[test]
    fn a_thread_that_polls_never_sleeps_for_long() {
        let duty = Duty::new(Doorbell::alone().unwrap()).that_polls();
        let ms = Duration::from_millis;
        for busy in [false, true] {
            assert_eq!(
                duty.pace(ms(0), busy, false),
                Pace::Sleep(SHORT_NAP),
                "the rank drives, or does something else"
            );
            assert_eq!(duty.pace(ms(1000), busy, false), Pace::Sleep(LONG_NAP));
        }
        duty.hand_over();
        assert_eq!(
            (duty.pace(ms(0), false, false), duty.pace(ms(1), false, false)),
            (Pace::Step, Pace::Sleep(SHORT_NAP))
        );
        assert_eq!(duty.pace(ms(1000), false, false), Pace::Sleep(LONG_NAP), "a long wait is an idle rank, too");
        // On a GPU: launches and replays as over any carrier, and never a long sleep without them.
        duty.take_back();
        duty.launched();
        assert_eq!(
            (duty.pace(ms(99), false, false), duty.pace(ms(100), false, false)),
            (Pace::Step, Pace::Sleep(SHORT_NAP))
        );
        duty.landed();
        assert_eq!(duty.pace(ms(0), false, false), Pace::Sleep(SHORT_NAP));
        duty.captured();
        assert_eq!(
            (duty.pace(ms(9), false, false), duty.pace(ms(2000), false, false)),
            (Pace::Step, Pace::Sleep(LAUNCH_NAP))
        );
    }
}
