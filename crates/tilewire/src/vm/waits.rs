//! How a launch waits: what it needs from whoever connects the ranks, and how a participant with nothing to do passes the time.
//!
//! ```text
//!  no machine gets on ──▶ spin ──▶ yield ──▶ sleep on the host's doorbell ──▶ run the machines again
//!                          every round: the abort word        │ woken by a ring, by what it waits for, by an abort,
//!                                                             │ by a failing participant, at the deadline
//! ```
//! Nothing here orders data: a wait that is found ready while asleep is looked at again, with acquire, by the machine that waits.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// What a launch needs in order to wait for other ranks without burning a core and without hanging: a word that ends its waits,
/// and a bell to sleep on. Whoever connects the ranks provides it; the engine knows nothing else about them.
///
/// Every call may come from any thread that takes part in the launch, several at once.
///
/// **Calls must not touch memory of the launch that waits**, neither through tensors nor by another launch: its other blocks may be writing
/// there at that moment, and host access to a tensor counts on running alone.
///
/// Beyond that the trait is safe to implement. What the engine relies on for memory safety is in the types alone: a [`Bell`] is borrowed from
/// the host, the engine holds the host in an [`Arc`] for as long as it looks at the bell, and through an `Arc` that somebody else
/// holds, nobody can move, change or free what was lent. A host that breaks any other promise here makes waits late, or ends them
/// wrongly, and no more. So a host can only lend a word it has:
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
    /// The word that says why this rank's waits are to end, if they are. Called in every round of a wait: one relaxed load.
    fn aborted(&self) -> Option<u64>;

    /// The word that says why a wait is in vain, if it is known to be: that rank will not signal there any more. What
    /// was signalled before is there: the engine looks once more before it gives up. Asked in every round of a wait that does not spin any more.
    fn in_vain(&self, _at: Awaited) -> Option<u64> {
        None
    }

    /// A number that is to be read before a look at what a launch waits for, and given to [`WaitHost::stalled`] where nothing was there:
    /// whoever asks whether this rank still waits changes it.
    fn probe(&self) -> u64 {
        0
    }

    /// All of a launch waits, for these ranks (`None`: for memory that no rank is known to signal), and looked after it read `probe`. Gives the
    /// word that says why it waits in vain, if that is known. Called every few milliseconds by a launch that has waited for some.
    fn stalled(&self, _at: &[Option<Awaited>], _probe: u64) -> Option<u64> {
        None
    }

    /// A launch that was stalled goes on. Not called for one that fails: the caller of the launch tells the other ranks why, and until it has,
    /// they must see that this rank waited. Otherwise one whose wait expires at the same time would take this rank for the late one.
    fn resumed(&self) {}

    /// What such a word means, for people.
    fn explain(&self, word: u64) -> String;

    /// Sleeps until `ready` says true or `timeout` is over; gives what `ready` said last. `ready` must be asked after the sleeper
    /// can be seen by [`WaitHost::ring`], after every ring, and now and then without one: where a signal does not ring (a device's
    /// does not), or a ring is lost, the wait is late and no more.
    fn sleep(&self, ready: &mut dyn FnMut() -> bool, timeout: Duration) -> bool;

    /// The rank whose waits look at memory that starts at `address`; this rank for memory the host knows nothing about. Asked
    /// when a kernel is prepared, for every bank of its arguments.
    fn owner(&self, address: usize) -> usize;

    /// The bell of a rank. Asked when a kernel is prepared, and looked at until the kernel is dropped: should it be another one
    /// later, signals ring for nobody.
    fn bell(&self, rank: usize) -> Bell<'_>;

    /// Wakes the sleepers of a rank, after a signal to memory it owns. Called only when its [`Bell`] counts some.
    fn ring(&self, rank: usize);

    /// Wakes the sleepers of this rank.
    fn wake(&self);
}

/// What a wait is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Awaited {
    /// The rank that signals there, as the purpose of the parameter says.
    pub rank: usize,
    /// Where it looks.
    pub address: usize,
}

/// How signallers see whether a rank sleeps, at the cost of one load: a call per signal would cost three times as much.
#[derive(Clone, Copy, Debug)]
pub struct Bell<'h> {
    /// Counts the sleepers, among other things.
    pub word: &'h AtomicU32,
    /// The bits of the word that are zero while nobody sleeps.
    pub sleepers: u32,
}

/// The [`WaitHost`] of a launch, or none: then nothing ends a wait but its deadline, and waits sleep for 50 µs at a time.
#[derive(Clone, Default)]
pub struct Waits(Option<Arc<dyn WaitHost>>);

impl Waits {
    /// Waits through a host.
    pub fn on(host: Arc<dyn WaitHost>) -> Waits {
        Waits(Some(host))
    }

    /// No host, as is the default: the signals of such a launch wake nobody.
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

    /// The word of a wait that will never be satisfied, if that is known.
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

    /// Makes the participants of this rank that sleep look around.
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

/// How a participant with nothing to do passes the time: first it spins, then it lets others run, then it sleeps.
pub(crate) struct Backoff {
    rounds: u32,
    since: Option<Instant>,
    deadline: Option<Duration>,
    expired: bool,
}

impl Backoff {
    const SPINS: u32 = 256;
    /// So long it lets others run before it sleeps, however often that is: beside others that want the processor each time is a slice of
    /// theirs. With sleep after some 100 µs 8 MiB in one hop took 475 µs instead of 410 (two virtual processors).
    const YIELDING: Duration = Duration::from_millis(1);
    /// Between two looks at what nobody rings for.
    const SHORT: Duration = Duration::from_micros(50);
    /// One sleep of a wait; then it looks around, tells its host that it still waits, and begins another.
    const LONG: Duration = Duration::from_millis(20);
    /// From then on a wait is worth telling others of.
    const STALLED: Duration = Duration::from_millis(5);

    pub(crate) fn new(deadline: Option<Duration>) -> Backoff {
        Backoff { rounds: 0, since: None, deadline, expired: false }
    }

    /// Whether it still spins: then only what is cheapest is looked at.
    pub(crate) fn spins(&self) -> bool {
        self.rounds < Self::SPINS
    }

    /// Whether it has waited for so long that others may want to know.
    pub(crate) fn is_stalled(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= Self::STALLED)
    }

    /// Waits a little, or until `ready`; true when the deadline has passed **and** the caller has looked once more since: a thread
    /// that got no processor for long does not report as missing what arrived meanwhile.
    ///
    /// `polls`: something waits in a way that `ready` cannot tell, so sleep only for a moment.
    pub(crate) fn pause(&mut self, waits: &Waits, polls: bool, ready: &mut dyn FnMut() -> bool) -> bool {
        self.rounds = self.rounds.saturating_add(1);
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
}
