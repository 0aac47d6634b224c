//! The abort word: how a failing rank ends the waits of the others.
//!
//! ```text
//!  63        56 55                 32 31                  0
//!  ├ code      ┼ rank that failed    ┼ reason             ┤      all zeros: nothing is wrong
//! ```
//! Each rank has one word, in the header of its segment. The first to learn that waiting has become pointless writes
//! it: a peer that gives up, any rank's monitor, or a panicking peer. The first cause stays, and nothing ever clears
//! it: after an abort the counters of a transport are undefined, and only a new rendezvous recovers.

use super::doorbell::Doorbell;
use super::mapping::Mapping;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What happened to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AbortCode {
    /// Its process ended without saying goodbye.
    Died,
    /// It panicked.
    Panicked,
    /// One of its calls returned an error.
    Failed,
    /// One of its waits expired. [`Cause::late`] is the late rank, if known.
    TimedOut,
    /// It can no longer see whether its peers are alive, because polling their sockets failed.
    Blind,
    /// It dropped its transport while others waited for it, after an error of its own or at the end of its program.
    Left,
    /// It told its peers about a transfer but dropped it before it was run: after an error of its own, or by mistake.
    Dropped,
    /// It found that ranks wait for each other: [`Status::verdict`](super::Status::verdict) says which.
    Deadlocked,
    /// It found that a peer launched a different operation, or disagrees about the same one:
    /// [`Status::verdict`](super::Status::verdict) names both.
    Mismatched,
    /// Its kernel required something that does not hold: [`Status::verdict`](super::Status::verdict) says what.
    Required,
    /// It lost the bootstrap store, through which ranks of different domains learn of each other's failures.
    Cut,
    /// Its network to a rank failed, and nothing is known about that rank's end. [`Cause::severed_from`] is that rank.
    Severed,
    /// A code that this version does not know.
    Other(u8),
}

impl AbortCode {
    fn number(self) -> u8 {
        match self {
            AbortCode::Died => 1,
            AbortCode::Panicked => 2,
            AbortCode::Failed => 3,
            AbortCode::TimedOut => 4,
            AbortCode::Blind => 5,
            AbortCode::Left => 6,
            AbortCode::Dropped => 7,
            AbortCode::Deadlocked => 8,
            AbortCode::Mismatched => 9,
            AbortCode::Cut => 10,
            AbortCode::Severed => 11,
            AbortCode::Required => 12,
            // Never 0, which would mean that nothing is wrong, and never a known code.
            AbortCode::Other(code) => code.max(13),
        }
    }

    fn from_number(number: u8) -> AbortCode {
        match number {
            1 => AbortCode::Died,
            2 => AbortCode::Panicked,
            3 => AbortCode::Failed,
            4 => AbortCode::TimedOut,
            5 => AbortCode::Blind,
            6 => AbortCode::Left,
            7 => AbortCode::Dropped,
            8 => AbortCode::Deadlocked,
            9 => AbortCode::Mismatched,
            10 => AbortCode::Cut,
            11 => AbortCode::Severed,
            12 => AbortCode::Required,
            code => AbortCode::Other(code),
        }
    }
}

/// Why waits were ended: which rank, what happened to it, and a number whose meaning is up to the code that set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// What happened.
    pub code: AbortCode,
    /// The rank it happened to; below 2²⁴.
    pub rank: usize,
    /// Details, as defined by the user of the code (such as an index into a table of reasons); 0: nothing more is
    /// known. For an expired wait, a number with the highest bit set names the late rank ([`Cause::timed_out`]), so
    /// other reasons must be below 2³¹.
    pub reason: u32,
}

/// Set in the reason of an expired wait if the remaining bits are the late rank, and in that of a failed network if
/// they are the peer.
const LATE: u32 = 1 << 31;

impl Cause {
    /// A wait of `rank` expired; `late` is the late rank, if known.
    pub fn timed_out(rank: usize, late: Option<usize>) -> Cause {
        Cause { code: AbortCode::TimedOut, rank, reason: late.map_or(0, |late| LATE | late as u32) }
    }

    /// The network between `rank` and `peer` failed, as `rank` has noticed.
    pub fn severed(rank: usize, peer: usize) -> Cause {
        Cause { code: AbortCode::Severed, rank, reason: LATE | peer as u32 }
    }

    /// The rank that a rank's network failed to, if that is the cause.
    pub fn severed_from(self) -> Option<usize> {
        (self.code == AbortCode::Severed && self.reason & LATE != 0).then_some((self.reason & !LATE) as usize)
    }

    /// The late rank, if a wait expired and the late rank is known.
    pub fn late(self) -> Option<usize> {
        (self.code == AbortCode::TimedOut && self.reason & LATE != 0).then_some((self.reason & !LATE) as usize)
    }

    /// Encodes this cause as a word; never 0.
    pub fn to_word(self) -> u64 {
        u64::from(self.code.number()) << 56 | (self.rank as u64 & 0xff_ffff) << 32 | u64::from(self.reason)
    }

    /// Decodes a word; `None` for 0.
    #[inline]
    pub fn from_word(word: u64) -> Option<Cause> {
        if word == 0 { None } else { Some(Cause::of(word)) }
    }

    #[cold]
    fn of(word: u64) -> Cause {
        let code = AbortCode::from_number((word >> 56) as u8);
        Cause { code, rank: (word >> 32 & 0xff_ffff) as usize, reason: word as u32 }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cause { code, rank, reason } = self;
        match code {
            AbortCode::Died => write!(f, "rank {rank} died"),
            AbortCode::Panicked => write!(f, "rank {rank} panicked"),
            AbortCode::Failed => write!(f, "rank {rank} gave up after an error"),
            AbortCode::TimedOut => match self.late() {
                Some(late) => return write!(f, "a wait of rank {rank} for rank {late} expired"),
                None => write!(f, "a wait of rank {rank} expired"),
            },
            AbortCode::Blind => {
                write!(f, "rank {rank} can no longer watch its peers, because polling their sockets failed")
            }
            AbortCode::Left => write!(f, "rank {rank} left while others waited for it"),
            AbortCode::Dropped => {
                write!(f, "rank {rank} dropped a transfer before it was run, after an error of its own or by mistake")
            }
            AbortCode::Deadlocked => write!(f, "rank {rank} found that ranks wait for each other"),
            AbortCode::Mismatched => write!(f, "rank {rank} found that a peer launched a different operation"),
            AbortCode::Required => write!(f, "rank {rank} found that a requirement of its kernel does not hold"),
            AbortCode::Cut => {
                write!(f, "rank {rank} lost the bootstrap store, so it cannot learn of failures on other hosts")
            }
            AbortCode::Severed => match self.severed_from() {
                Some(peer) => return write!(f, "the network of rank {rank} to rank {peer} failed"),
                None => write!(f, "the network of rank {rank} failed"),
            },
            AbortCode::Other(code) => write!(f, "rank {rank} aborted with code {code}"),
        }?;
        if *reason != 0 { write!(f, " (reason {reason})") } else { Ok(()) }
    }
}

/// The abort word of one rank, with its doorbell. This is a handle: clones refer to the same word.
#[derive(Clone)]
pub struct Abort {
    segment: Arc<Mapping>,
    doorbell: Doorbell,
}

impl Abort {
    pub(super) fn new(segment: Arc<Mapping>) -> Abort {
        Abort { doorbell: Doorbell::new(segment.clone()), segment }
    }

    /// Why this rank's waits must end, if they must. Costs one load of a cache line that hardly ever changes.
    #[inline]
    pub fn get(&self) -> Option<Cause> {
        // Relaxed: the word is complete in itself; no other data is read because of it.
        Cause::from_word(self.word().load(Ordering::Relaxed))
    }

    /// True if there is a cause. Unlike [`get`](Abort::get), it is always inlined, and small messages pass here.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        // Relaxed: as in `get`.
        self.word().load(Ordering::Relaxed) != 0
    }

    /// Makes this rank's waits check again: there may be news other than an abort.
    pub(super) fn wake(&self) {
        self.doorbell.ring();
    }

    /// Ends this rank's waits: sets the word and rings the doorbell. False if there was already a cause, which stays.
    pub fn set(&self, cause: Cause) -> bool {
        // Release on success costs nothing here and lets users publish a text that `reason` refers to.
        let set = self.word().compare_exchange(0, cause.to_word(), Ordering::Release, Ordering::Relaxed).is_ok();
        self.doorbell.ring();
        set
    }

    /// The word of [`super::loans`], in the same header.
    #[inline]
    pub(super) fn borrows(&self) -> &AtomicU64 {
        &self.segment.header().borrows.0
    }

    /// The word itself, for code that polls: any value but 0 is an abort.
    #[inline]
    pub fn word(&self) -> &AtomicU64 {
        &self.segment.header().abort.0
    }
}

impl fmt::Debug for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(cause) => write!(f, "Abort({cause})"),
            None => write!(f, "Abort(none)"),
        }
    }
}

/// Ends the waits of a rank's peers if a panic drops it: for threads, what a monitor is for processes.
///
/// ```
/// use tilewire::transport::{AbortCode, SegmentSet};
///
/// let ranks = SegmentSet::threads(2, 0)?;
/// let mut ranks = ranks.into_iter();
/// let (zero, one) = (ranks.next().unwrap(), ranks.next().unwrap());
/// let panicked = std::thread::spawn(move || {
///     let _guard = one.panic_guard();
///     panic!("as an example");
/// });
/// assert!(panicked.join().is_err());
/// let cause = zero.abort(0).get().unwrap();
/// assert_eq!((cause.code, cause.rank), (AbortCode::Panicked, 1));
/// # Ok::<(), tilewire::transport::SegmentError>(())
/// ```
#[must_use = "the guard acts when it is dropped: keep it as long as the rank runs"]
#[derive(Debug)]
pub struct PanicGuard {
    rank: usize,
    peers: Vec<Abort>,
}

impl PanicGuard {
    pub(super) fn new(rank: usize, peers: Vec<Abort>) -> PanicGuard {
        PanicGuard { rank, peers }
    }
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for peer in &self.peers {
                peer.set(Cause { code: AbortCode::Panicked, rank: self.rank, reason: 0 });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_survives_its_word() {
        use AbortCode::*;
        let known =
            [Died, Panicked, Failed, TimedOut, Blind, Left, Dropped, Deadlocked, Mismatched, Cut, Severed, Required];
        for code in known.into_iter().chain([Other(77)]) {
            for (rank, reason) in [(0, 0), (1, 2), ((1 << 24) - 1, u32::MAX)] {
                let cause = Cause { code, rank, reason };
                assert_eq!(Cause::from_word(cause.to_word()), Some(cause));
            }
        }
        assert_eq!(Cause::from_word(0), None);
        let late = |late| Cause::from_word(Cause::timed_out(4, late).to_word()).unwrap();
        assert_eq!((late(Some(0)).late(), late(None).late()), (Some(0), None));
        assert_eq!(late(Some(2)).to_string(), "a wait of rank 4 for rank 2 expired");
        let severed = Cause::from_word(Cause::severed(4, 7).to_word()).unwrap();
        assert_eq!((severed.severed_from(), severed.late()), (Some(7), None));
        assert_eq!(severed.to_string(), "the network of rank 4 to rank 7 failed");
        // A user's own reason is not a rank.
        let own = Cause { reason: 3, ..late(None) };
        assert_eq!((own.late(), own.to_string().as_str()), (None, "a wait of rank 4 expired (reason 3)"));
        // Whatever a broken peer writes is still a cause.
        assert!(Cause::from_word(1).is_some());
        assert_ne!(Cause { code: AbortCode::Other(0), rank: 0, reason: 0 }.to_word(), 0);
    }
}
