//! The doorbell: how a rank that waits for its peers sleeps, and how they wake it at no cost while it is awake.
//!
//! One 32-bit word per rank, in the header of its segment. Bit 0: somebody sleeps, or is about to. The other bits count the
//! rings that found somebody asleep.
//!
//! ```text
//!  signaller                               sleeper
//!  s1  slot.store(v, release)              z1  seen = word.fetch_or(ASLEEP) | ASLEEP
//!  s2  word.load(relaxed)                  z2  fence(seq_cst)
//!      ASLEEP not set: done                z3  slots ready? done
//!  s3  word: clear ASLEEP, count + 1       z4  FUTEX_WAIT while word == seen, for a bounded time
//!  s4  FUTEX_WAKE all                      z5  go to z1
//! ```
//!
//! **Why nobody hangs.** Consider a signal and a sleeper that needs it.
//!
//! - If s2 sees the ASLEEP of z1, then s3 changes the word. Either that comes before the kernel compares in z4, which then
//!   returns at once, or after, and then s4 finds the sleeper in the queue: FUTEX_WAIT compares and queues itself under the lock
//!   that FUTEX_WAKE takes. So a wake is never lost between z3 and z4, whatever happens there. (The count may wrap to the very
//!   value of `seen` only after 2³¹ rings within one bounded wait, and then the next line holds.)
//! - If s2 does not see it, the sleeper may or may not see s1 in z3. That both miss (s1 still in the signaller's store buffer
//!   when s2 reads) would take a full fence between s1 and s2 to rule out: 5 to 20 ns of *every* signal, for a case that needs the
//!   two to meet within the life of a store in the buffer. We do not pay it. The wait of z4 is bounded: after at most
//!   [`LONGEST_NAP`] the sleeper is back at z3. Stores become visible in finite time (that is what hardware and the language
//!   promise for atomics), so a later z3 sees s1. **A lost wake-up is a delay of one nap, never a hang.**
//!
//! z2 keeps z3 from being done before z1: without it the sleeper could miss with the signaller's fence in place, too, and misses
//! would be common rather than rare. It is the sleeper who pays for it, and the sleeper has time.
//!
//! What the data needs is in s1 and z3 alone (release and acquire of the slot): the bell publishes nothing.

use super::futex;
use super::mapping::Mapping;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use std::time::{Duration, Instant};

/// The first nap: what a lost wake-up costs at most when sleeping has just begun.
const FIRST_NAP: Duration = Duration::from_millis(1);
/// Naps double up to this one: a hundred looks a second cost a rank that waits for long next to nothing.
const LONGEST_NAP: Duration = Duration::from_millis(10);

/// Somebody sleeps, or is about to.
const ASLEEP: u32 = 1;
/// One ring, above the flag.
const RING: u32 = 2;

/// The doorbell of one rank: its threads sleep on it, its peers ring it after they signalled. A handle; clones are the same bell.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::Duration;
/// use tilewire::transport::SegmentSet;
///
/// let ranks = SegmentSet::threads(2, 0)?;
/// let slot = AtomicBool::new(false); // stands for a slot that rank 1 writes and rank 0 waits for
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         slot.store(true, Ordering::Release);
///         ranks[1].doorbell(0).ring();
///     });
///     assert!(ranks[0].doorbell(0).sleep(|| slot.load(Ordering::Acquire), Duration::from_secs(30)));
/// });
/// # Ok::<(), tilewire::transport::SegmentError>(())
/// ```
#[derive(Clone)]
pub struct Doorbell {
    segment: Arc<Mapping>,
}

impl Doorbell {
    pub(super) fn new(segment: Arc<Mapping>) -> Doorbell {
        Doorbell { segment }
    }

    /// Wakes whoever sleeps. To be called after the store that makes a sleeper ready; costs one load when nobody sleeps.
    #[inline]
    pub fn ring(&self) {
        // No instruction; it keeps the compiler from moving the load up before the signal, which would widen the window in which
        // both sides miss each other.
        compiler_fence(Ordering::SeqCst);
        // Relaxed: see s2 in the module's docs.
        let word = self.word().load(Ordering::Relaxed);
        if word & ASLEEP != 0 {
            self.wake(word);
        }
    }

    /// Sleeps until `ready` says true or `timeout` is over; gives what `ready` said last. Several threads may sleep at once.
    ///
    /// `ready` is asked again after every ring, and at least every 10 ms. It should look with acquire at what it waits for, and
    /// look at the abort word as well.
    pub fn sleep(&self, mut ready: impl FnMut() -> bool, timeout: Duration) -> bool {
        // A timeout beyond what the clock can express is none.
        let until = Instant::now().checked_add(timeout);
        let mut nap = FIRST_NAP;
        loop {
            // Relaxed with the fence behind it: z1 and z2. The flag stays set when `ready` says true: another thread may sleep, too.
            // The next signal then pays for one wake-up that nobody needs.
            let seen = self.word().fetch_or(ASLEEP, Ordering::Relaxed) | ASLEEP;
            fence(Ordering::SeqCst);
            if ready() {
                return true;
            }
            let left = until.map_or(nap, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            futex::wait(self.word(), seen, nap.min(left));
            nap = (nap * 2).min(LONGEST_NAP);
        }
    }

    /// s3 and s4.
    #[cold]
    fn wake(&self, mut word: u32) {
        // Only who clears the flag wakes: one system call per sleep, however many signals come before the sleeper is up.
        while word & ASLEEP != 0 {
            let rung = (word & !ASLEEP).wrapping_add(RING);
            // Relaxed: the word orders nothing but itself, and the kernel's lock orders it against the sleeper's comparison.
            match self.word().compare_exchange_weak(word, rung, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return futex::wake_all(self.word()),
                Err(now) => word = now,
            }
        }
    }

    fn word(&self) -> &AtomicU32 {
        &self.segment.header().doorbell.0
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word().load(Ordering::Relaxed);
        write!(f, "Doorbell({} rings{})", word / RING, if word & ASLEEP != 0 { ", somebody sleeps" } else { "" })
    }
}
