//! How a launch waits: what it needs from the code that connects the ranks, and how an idle participant passes the
//! time.
//!
//! ```text
//!  no machine gets on ──▶ spin ──▶ yield ──▶ sleep on the host's doorbell ──▶ run the machines again
//!                          every round: the abort word        │ woken by a ring, by what it waits for, by an abort,
//!                                                             │ by a failing participant, at the deadline
//! ```
//! Nothing here orders data. If a sleeping wait is found ready, the waiting machine checks it again with acquire.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// What a launch needs in order to wait for other ranks without burning a core and without hanging: a word that ends
/// its waits, and a bell to sleep on. The code that connects the ranks provides it. The engine knows nothing else about
/// ranks.
///
/// Any thread that takes part in the launch may make any of these calls, and several threads may call simultaneously.
///
/// **Calls must not touch memory of the waiting launch**, neither through tensors nor through another launch. Other
/// blocks of the launch may be writing there at that moment, and host access to a tensor assumes that nothing else is
/// running.
///
/// Beyond that the trait is safe to implement. For memory safety the engine relies on the types alone. A [`Bell`] is
/// borrowed from the host, and the engine holds the host in an [`Arc`] for as long as it looks at the bell. While
/// another owner holds the `Arc`, nobody can move, change or free the borrowed word through it. A host that breaks any
/// other promise here only delays waits or ends them wrongly. So a host can only lend a word that it owns:
///
/// ```compile_fail,E0515
/// # use std::sync::atomic::AtomicU32;
/// # use tilewire::vm::Bell;
/// fn bell<'h>(host: &'h ()) -> Bell<'h> {
///     let word = AtomicU32::new(0);
///     Bell { word: &word, sleepers: 1 }
/// }
/// ```
pub trait WaitHost: Send + Sync {
    /// The word that says why this rank's waits must end, if they must. Called in every round of a wait: one relaxed
    /// load.
    fn aborted(&self) -> Option<u64>;

    /// The word that says why a wait is in vain, if it is known that the rank will no longer signal there. Earlier
    /// signals have already arrived: the engine looks once more before it gives up. Called in every round of a wait
    /// that has stopped spinning.
    fn in_vain(&self, _at: Awaited) -> Option<u64> {
        None
    }

    /// A number to read before checking what a launch waits for, and to pass to [`WaitHost::stalled`] if the check
    /// found nothing. A rank that asks whether this one still waits changes the number.
    fn probe(&self) -> u64 {
        0
    }

    /// Reports that the whole launch waits for these ranks (`None`: for memory that no rank is known to signal), and
    /// that it checked after reading `probe`. Returns the word that says why it waits in vain, if that is known. A
    /// launch that has waited for a few milliseconds calls this every few milliseconds.
    fn stalled(&self, _at: &[Option<Awaited>], _probe: u64) -> Option<u64> {
        None
    }

    /// A stalled launch continues. Not called for a launch that fails: its caller tells the other ranks why, and until
    /// then they must see that this rank waited. Otherwise a rank whose wait expires at the same time would blame this
    /// rank.
    fn resumed(&self) {}

    /// Does work that waits depend on, such as a network's. Returns true if there was any. Called in every round of a
    /// wait that is not ready.
    fn progress(&self) -> bool {
        false
    }

    /// True if [`WaitHost::progress`] makes system calls, as for a network. A wait then spins for fewer rounds before
    /// it yields, because ranks that share the processor may have to run first.
    fn is_slow(&self) -> bool {
        false
    }

    /// The rank that keeps the queue of posts full, if that is known. Called when a wait for room has expired, to name
    /// the rank.
    fn behind(&self) -> Option<usize> {
        None
    }

    /// Explains such a word to people.
    fn explain(&self, word: u64) -> String;

    /// Sleeps until `ready` returns true or `timeout` has passed, and returns the last result of `ready`. `ready` must
    /// be called after the sleeper becomes visible to [`WaitHost::ring`], after every ring, and occasionally without
    /// one. If a signal does not ring (a device's does not) or a ring is lost, the wait is merely late.
    fn sleep(&self, ready: &mut dyn FnMut() -> bool, timeout: Duration) -> bool;

    /// The rank whose waits look at memory that starts at `address`, or this rank for memory unknown to the host.
    /// Called for every bank of a kernel's arguments when the kernel is prepared.
    fn owner(&self, address: usize) -> usize;

    /// The bell of a rank. Called when a kernel is prepared; the engine looks at that bell until the kernel is dropped.
    /// If the host later uses a different bell, signals wake nobody.
    fn bell(&self, rank: usize) -> Bell<'_>;

    /// Wakes the sleepers of a rank, after a signal to memory it owns. Called only if its [`Bell`] counts sleepers.
    fn ring(&self, rank: usize);

    /// Wakes the sleepers of this rank.
    fn wake(&self);
}

/// What a wait is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Awaited {
    /// The rank that signals there, according to the purpose of the parameter.
    pub rank: usize,
    /// The address that the wait reads.
    pub address: usize,
}

/// Lets signallers check with one load whether a rank sleeps. A call per signal would cost three times as much.
#[derive(Clone, Copy, Debug)]
pub struct Bell<'h> {
    /// A word that counts the sleepers, among other things.
    pub word: &'h AtomicU32,
    /// The bits of the word that are zero while nobody sleeps.
    pub sleepers: u32,
}

/// The [`WaitHost`] of a launch, or none. Without one, only its deadline ends a wait, and waits sleep for 50 µs at a
/// time.
#[derive(Clone, Default)]
pub struct Waits(Option<Arc<dyn WaitHost>>);

impl Waits {
    /// Waits through a host.
    pub fn on(host: Arc<dyn WaitHost>) -> Waits {
        Waits(Some(host))
    }

    /// No host, the default: signals of such a launch wake nobody.
    pub fn alone() -> Waits {
        Waits(None)
    }

    pub(crate) fn host(&self) -> Option<&Arc<dyn WaitHost>> {
        self.0.as_ref()
    }

    /// The abort word, if there is one and it is set.
    #[inline]
    pub(crate) fn aborted(&self) -> Option<u64> {
        self.0.as_ref().and_then(|host| host.aborted())
    }

    /// The word that says why a wait will never be satisfied, if that is known.
    #[inline]
    pub(crate) fn in_vain(&self, at: Option<Awaited>) -> Option<u64> {
        self.0.as_ref().zip(at).and_then(|(host, at)| host.in_vain(at))
    }

    pub(crate) fn probe(&self) -> u64 {
        self.0.as_ref().map_or(0, |host| host.probe())
    }

    /// See [`WaitHost::stalled`].
    pub(crate) fn stalled(&self, at: &[Option<Awaited>], probe: u64) -> Option<u64> {
        self.0.as_ref().and_then(|host| host.stalled(at, probe))
    }

    /// See [`WaitHost::resumed`].
    pub(crate) fn resumed(&self) {
        if let Some(host) = &self.0 {
            host.resumed();
        }
    }

    /// Makes the sleeping participants of this rank check their waits.
    pub(crate) fn wake(&self) {
        if let Some(host) = &self.0 {
            host.wake();
        }
    }
}

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Waits(on a host)" } else { "Waits(alone)" })
    }
}

/// How an idle participant passes the time: it spins, then yields, then sleeps.
pub(crate) struct Backoff {
    rounds: u32,
    /// What one round adds to `rounds`.
    weight: u32,
    since: Option<Instant>,
    deadline: Option<Duration>,
    expired: bool,
}

impl Backoff {
    const SPINS: u32 = 256;
    /// The weight of a round whose progress makes system calls: 32 of them take about 30 µs.
    const SLOW: u32 = 8;
    /// How long to yield before sleeping, regardless of the number of yields: if others want the processor, each yield
    /// costs one of their time slices. Sleeping sooner makes large messages slower (docs/decisions/0010).
    const YIELDING: Duration = Duration::from_millis(1);
    /// The interval between checks of memory for which nobody rings.
    const SHORT: Duration = Duration::from_micros(50);
    /// The length of one sleep. After it the wait checks again, tells its host that it still waits, and sleeps again.
    const LONG: Duration = Duration::from_millis(20);
    /// From this duration on, other ranks are told about a wait.
    const STALLED: Duration = Duration::from_millis(5);

    pub(crate) fn new(deadline: Option<Duration>) -> Backoff {
        Backoff { rounds: 0, weight: 1, since: None, deadline, expired: false }
    }

    /// True while spinning: then only the cheapest checks are made.
    pub(crate) fn spins(&self) -> bool {
        self.rounds < Self::SPINS
    }

    /// True if the wait has lasted long enough that other ranks may want to know.
    pub(crate) fn is_stalled(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= Self::STALLED)
    }

    /// Waits a little, or until `ready`. Returns true once the deadline has passed **and** the caller has checked again
    /// since then. So a thread that got no processor for a long time does not report as missing a signal that arrived
    /// meanwhile.
    ///
    /// `polls`: `ready` cannot detect everything that is waited for, so sleep only briefly.
    pub(crate) fn pause(&mut self, waits: &Waits, polls: bool, ready: &mut dyn FnMut() -> bool) -> bool {
        if self.rounds == 0 && waits.0.as_ref().is_some_and(|host| host.is_slow()) {
            self.weight = Self::SLOW;
        }
        self.rounds = self.rounds.saturating_add(self.weight);
        if waits.0.as_ref().is_some_and(|host| host.progress()) {
            return false;
        }
        if self.rounds < Self::SPINS {
            std::hint::spin_loop();
            return false;
        }
        if self.expired {
            return true;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let waited = since.elapsed();
        let left = self.deadline.map_or(Self::LONG, |deadline| deadline.saturating_sub(waited)).min(Self::LONG);
        if left.is_zero() {
            self.expired = true;
        } else if waited < Self::YIELDING {
            std::thread::yield_now();
        } else {
            match &waits.0 {
                Some(host) => _ = host.sleep(ready, if polls { left.min(Self::SHORT) } else { left }),
                None => std::thread::sleep(left.min(Self::SHORT)),
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_leaves_one_more_look() {
        let mut backoff = Backoff::new(Some(Duration::ZERO));
        let mut pause = || backoff.pause(&Waits::alone(), false, &mut || false);
        assert!((1..Backoff::SPINS).all(|_| !pause()));
        assert!(!pause(), "the caller looks once more");
        assert!(pause());
    }

    /// A host whose rounds are slow, or not.
    struct Idle(bool);

    impl WaitHost for Idle {
        fn aborted(&self) -> Option<u64> {
            None
        }

        fn is_slow(&self) -> bool {
            self.0
        }

        fn explain(&self, _: u64) -> String {
            String::new()
        }

        fn sleep(&self, ready: &mut dyn FnMut() -> bool, _: Duration) -> bool {
            ready()
        }

        fn owner(&self, _: usize) -> usize {
            0
        }

        fn bell(&self, _: usize) -> Bell<'_> {
            static WORD: AtomicU32 = AtomicU32::new(0);
            Bell { word: &WORD, sleepers: 1 }
        }

        fn ring(&self, _: usize) {}

        fn wake(&self) {}
    }

    #[test]
    fn a_host_with_slow_rounds_spins_for_fewer() {
        let spins = |is_slow: bool| {
            let (waits, mut backoff) = (Waits::on(Arc::new(Idle(is_slow))), Backoff::new(None));
            (0..Backoff::SPINS).take_while(|_| !backoff.pause(&waits, false, &mut || false) && backoff.spins()).count()
        };
        assert_eq!([spins(false), spins(true)], [255, 31]);
    }
}
