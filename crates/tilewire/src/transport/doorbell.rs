//! The doorbell: how a rank sleeps while it waits for its peers, and how they wake it (one load if it is awake).
//!
//! One 32-bit word per rank, in the header of its segment. The low 12 bits count the threads that sleep, or are about
//! to; the others count the rings that found a sleeper.
//!
//! ```text
//!  signaller                               sleeper
//!  s1  slot.store(v, release)              z1  seen = word, with one sleeper more
//!  s2  word.load(relaxed)                  z2  fence(seq_cst)
//!      no sleepers: done                   z3  slots ready? z5 and done
//!  s3  word: no sleepers, one ring more    z4  FUTEX_WAIT while word == seen, for a bounded time
//!  s4  FUTEX_WAKE all                      z5  word: one sleeper less, unless a ring has taken it away; z1
//! ```
//!
//! **Why nobody hangs.** Consider a signal and a sleeper that needs it.
//!
//! - If s2 sees the sleeper of z1, then s3 changes the word. Either that comes before the kernel compares in z4, which
//!   then returns immediately, or after, and then s4 finds the sleeper in the queue: FUTEX_WAIT compares and enqueues
//!   under the lock that FUTEX_WAKE takes. So a wake is never lost between z3 and z4, whatever happens there. (The
//!   counts can wrap around to exactly `seen` only after 2²⁰ rings within one bounded wait, and then the next point
//!   applies.) If another ring took the sleeper away before s2, nothing is lost: that ring changed the word as well.
//! - If s2 does not see it, the sleeper may or may not see s1 in z3. Both may miss, if s1 is still in the signaller's
//!   store buffer when s2 reads. To rule that out would take a full fence between s1 and s2 in *every* signal, for a
//!   case that needs the two to meet within the lifetime of a store in the buffer. We do not pay that. The wait of z4
//!   is bounded: after at most [`LONGEST_NAP`] the sleeper is back at z3. Stores become visible in finite time
//!   (hardware and the language promise that for atomics), so a later z3 sees s1. **A lost wake-up is a delay of one
//!   nap, never a hang.**
//!
//! z2 keeps z3 from being executed before z1. Without it the sleeper could miss a signal even with a fence on the
//! signaller's side, and misses would be common rather than rare. The sleeper pays for it, and the sleeper has time.
//!
//! A killed sleeper stays counted until the next ring, which then wakes nobody; nothing depends on a correct count.
//!
//! The data is ordered by s1 and z3 alone (release and acquire of the slot): the bell publishes nothing.

use super::futex;
use super::mapping::{HEADER, Mapping};
use crate::sync::{Arc, AtomicU32, Instant, Ordering, compiler_fence, fence};
use std::fmt;
use std::time::Duration;

/// The first nap: the most that a lost wake-up costs when sleeping has just begun.
const FIRST_NAP: Duration = Duration::from_millis(1);
/// Naps grow with the time slept, up to this: a hundred looks per second cost a rank in a long wait next to nothing.
const LONGEST_NAP: Duration = Duration::from_millis(10);

/// One ring: the lowest bit above the count of sleepers.
const RING: u32 = 1 << 12;
const SLEEPERS: u32 = Doorbell::SLEEPERS;

/// The doorbell of one rank: its threads sleep on it, its peers ring it after they have signalled. This is a handle:
/// clones refer to the same bell.
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
    /// The bits of the [word](Doorbell::word) that count sleepers. (If there are more than fit, the count carries over
    /// into the rings, which delays some sleeper by a nap.)
    pub const SLEEPERS: u32 = RING - 1;

    pub(super) fn new(segment: Arc<Mapping>) -> Doorbell {
        Doorbell { segment }
    }

    /// A bell of this process that belongs to no segment; `None` if there is no memory for it.
    pub(crate) fn alone() -> Option<Doorbell> {
        Some(Doorbell::new(Arc::new(Mapping::own(HEADER, false, false)?)))
    }

    /// Wakes all sleepers. Call it after the store that makes a sleeper ready. It costs one load if nobody sleeps.
    #[inline]
    pub fn ring(&self) {
        // This is not an instruction: it keeps the compiler from moving the load up before the signal, which would
        // widen the window in which both sides miss each other.
        compiler_fence(Ordering::SeqCst);
        // Relaxed: see s2 in the module's docs.
        let word = self.word().load(Ordering::Relaxed);
        if word & SLEEPERS != 0 {
            self.wake(word);
        }
    }

    /// Sleeps until `ready` returns true or `timeout` has passed; returns the last result of `ready`. Several threads
    /// may sleep simultaneously.
    ///
    /// `ready` is called again after every ring, and at least every 10 ms. It should load what it waits for with
    /// acquire, and check the abort word as well.
    pub fn sleep(&self, mut ready: impl FnMut() -> bool, timeout: Duration) -> bool {
        let start = Instant::now();
        loop {
            // Relaxed, followed by a fence: z1 and z2.
            let seen = self.word().fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            fence(Ordering::SeqCst);
            let is_ready = ready();
            let slept = start.elapsed();
            let left = timeout.saturating_sub(slept);
            if !is_ready && !left.is_zero() {
                futex::wait(self.word(), seen, slept.clamp(FIRST_NAP, LONGEST_NAP).min(left));
            }
            self.rise(seen);
            if is_ready || left.is_zero() {
                return is_ready;
            }
        }
    }

    /// As [`sleep`](Self::sleep), but looks only once, before it sleeps for the whole time. For a sleeper whose callers
    /// have a full fence before they ring, so that no ring is lost.
    pub fn nap(&self, mut ready: impl FnMut() -> bool, timeout: Duration) {
        // Relaxed, followed by a fence: z1 and z2.
        let seen = self.word().fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        fence(Ordering::SeqCst);
        if !ready() {
            futex::wait(self.word(), seen, timeout);
        }
        self.rise(seen);
    }

    /// z5: so that nobody rings for a rank that is awake.
    fn rise(&self, seen: u32) {
        // Relaxed: a stale count only costs a needless wake-up.
        let mut word = self.word().load(Ordering::Relaxed);
        while word / RING == seen / RING && word & SLEEPERS != 0 {
            match self.word().compare_exchange_weak(word, word - 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// s3 and s4.
    #[cold]
    fn wake(&self, mut word: u32) {
        // Only the ring that takes the sleepers away wakes them: one system call per sleep, however many signals come.
        while word & SLEEPERS != 0 {
            let rung = (word & !SLEEPERS).wrapping_add(RING);
            // Relaxed: the word orders nothing but itself; the kernel's lock orders it against the sleeper's
            // comparison.
            match self.word().compare_exchange_weak(word, rung, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return futex::wake_all(self.word()),
                Err(now) => word = now,
            }
        }
    }

    /// The word itself, for code that often checks whether there is anybody to [ring](Doorbell::ring) for.
    pub fn word(&self) -> &AtomicU32 {
        &self.segment.header().doorbell.0
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word().load(Ordering::Relaxed);
        write!(f, "Doorbell({} rings, {} asleep)", word / RING, word & SLEEPERS)
    }
}
