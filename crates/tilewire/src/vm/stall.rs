//! Tracks which participants of a launch have only waiting instances. When every participant waits, the host is told
//! what for.
//!
//! Only waits that stopped spinning long ago come here, so a lock and a list cost nothing that matters.
#![forbid(unsafe_code)]

use super::waits::{Awaited, Waits};
use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering};

/// The participants of one launch.
#[derive(Default)]
pub(crate) struct Stalls {
    /// Participants that may have something to run. Counted without the lock, because every launch counts them.
    inside: AtomicUsize,
    /// The number of the next participant.
    next: AtomicUsize,
    /// True if the launch has failed: the host then keeps what it was told, see
    /// [`WaitHost::resumed`](super::WaitHost::resumed).
    pub(crate) failed: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// The waiting participants, the ranks they wait for, and the probe that each read before it looked.
    of: Vec<(usize, Vec<Option<Awaited>>, u64)>,
    /// True if the host was told.
    told: bool,
}

/// One participant, until it leaves.
pub(crate) struct Participant<'s> {
    stalls: &'s Stalls,
    waits: &'s Waits,
    number: usize,
    waiting: bool,
    /// The host's probe before the last look; see [`WaitHost::probe`](super::WaitHost::probe).
    probe: u64,
}

impl Stalls {
    pub(crate) fn enter<'s>(&'s self, waits: &'s Waits) -> Participant<'s> {
        // Relaxed: taking instances provides the order. A waiting participant has found no instance left, so it sees
        // all participants that took one. A participant that enters later finds none, and leaves.
        self.inside.fetch_add(1, Ordering::Relaxed);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Participant { stalls: self, waits, number, waiting: false, probe: 0 }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Participant<'_> {
    /// Call before running the instances again.
    #[inline]
    pub(crate) fn looks(&mut self) {
        if self.waiting {
            self.probe = self.waits.probe();
        }
    }

    /// Reports that all its instances wait, at these places, and that none found its signal since
    /// [`Participant::looks`]. Returns the word that ends the launch, if the host knows that it waits in vain.
    #[cold]
    pub(crate) fn waits(&mut self, at: impl Iterator<Item = Option<Awaited>>) -> Option<u64> {
        self.waits.host()?;
        let mut waiting = self.stalls.waiting();
        waiting.of.retain(|(number, ..)| *number != self.number);
        waiting.of.push((self.number, at.collect(), self.probe));
        self.waiting = true;
        if waiting.of.len() < self.stalls.inside.load(Ordering::Relaxed) {
            return None;
        }
        waiting.told = true;
        let probe = waiting.of.iter().map(|(.., probe)| *probe).min().unwrap_or(0);
        let all: Vec<Option<Awaited>> = waiting.of.iter().flat_map(|(_, at, _)| at.iter().copied()).collect();
        self.waits.stalled(&all, probe)
    }

    /// Reports that one of its instances has made progress.
    #[inline]
    pub(crate) fn goes_on(&mut self) {
        if self.waiting {
            self.forget();
        }
    }

    #[cold]
    fn forget(&mut self) {
        let mut waiting = self.stalls.waiting();
        waiting.of.retain(|(number, ..)| *number != self.number);
        (self.waiting, self.probe) = (false, 0);
        // Relaxed: a participant that leaves because of a failure has seen the flag or set it. One that makes progress
        // meanwhile may miss the flag, but then it is true that not all participants wait.
        if std::mem::take(&mut waiting.told) && !self.stalls.failed.load(Ordering::Relaxed) {
            self.waits.resumed();
        }
    }
}

impl Drop for Participant<'_> {
    fn drop(&mut self) {
        self.goes_on();
        self.stalls.inside.fetch_sub(1, Ordering::Relaxed);
    }
}
