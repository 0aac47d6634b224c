//! Who has left: what a rank signalled before it went is there, and nothing more will come from it.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The ranks that have let go of a transport: processes that closed it, dropped it because of an error, or came to their end; threads whose
/// closure did.
///
/// That alone is no failure: what such a rank has sent can still be received. But a wait for something that it has not sent yet is in
/// vain, and is ended: look here first, and then once more at what is waited for. A handle; clones are the same list.
#[derive(Clone, Debug)]
pub struct Departures(Arc<Left>);

#[derive(Debug)]
struct Left {
    /// Whether there is one at all: the only thing that waits look at as a rule.
    any: AtomicBool,
    ranks: Vec<AtomicBool>,
}

impl Departures {
    /// Nobody of so many has left yet. With 0 nobody ever does.
    pub(crate) fn new(ranks: usize) -> Departures {
        let ranks = (0..ranks).map(|_| AtomicBool::new(false)).collect();
        Departures(Arc::new(Left { any: AtomicBool::new(false), ranks }))
    }

    pub(crate) fn note(&self, rank: usize) {
        // Release: who reads it sees all that the rank did before it said goodbye, which this thread has heard, or is.
        self.0.ranks[rank].store(true, Ordering::Release);
        self.0.any.store(true, Ordering::Release);
    }

    /// Whether anybody's leaving would be known here.
    pub fn are_noticed(&self) -> bool {
        !self.0.ranks.is_empty()
    }

    /// Whether any rank has left: one load.
    #[inline]
    pub fn any(&self) -> bool {
        self.0.any.load(Ordering::Acquire)
    }

    /// Whether this rank has.
    pub fn has_left(&self, rank: usize) -> bool {
        self.any() && self.0.ranks.get(rank).is_some_and(|left| left.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_left_is_known_to_all_handles() {
        let (list, nobody) = (Departures::new(3), Departures::new(0));
        let other = list.clone();
        assert!(!list.any() && !list.has_left(1));
        other.note(1);
        assert!(list.any() && list.has_left(1) && !list.has_left(2) && !list.has_left(9));
        assert!(!nobody.any() && !nobody.has_left(0));
    }
}
