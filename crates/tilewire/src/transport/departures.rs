//! Which ranks have left: what a rank signalled before it left is there, and nothing more will come from it.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The ranks that have let go of a transport: processes that closed it, dropped it because of an error, or ended;
/// threads whose closure ended.
///
/// That alone is not a failure, because data that such a rank has sent can still be received. But a wait for something
/// that it has not sent would never end, so it is ended. Look here first, and then look once more for what you wait
/// for. This is a handle: clones refer to the same list.
#[derive(Clone, Debug)]
pub struct Departures(Arc<Left>);

#[derive(Debug)]
struct Left {
    /// True if any rank has left. Waits usually look at nothing else.
    any: AtomicBool,
    ranks: Vec<AtomicBool>,
    /// Those whose process has ended without a goodbye, or whose transport was dropped by a panic.
    dead: Vec<AtomicBool>,
}

impl Departures {
    /// A list for this many ranks, none of which has left yet. With 0, no departure is ever noticed.
    pub(crate) fn new(ranks: usize) -> Departures {
        let none = || (0..ranks).map(|_| AtomicBool::new(false)).collect();
        Departures(Arc::new(Left { any: AtomicBool::new(false), ranks: none(), dead: none() }))
    }

    /// The rank's process has ended without a goodbye, or its transport was dropped by a panic.
    #[cfg(target_os = "linux")]
    pub(crate) fn note_death(&self, rank: usize) {
        self.0.dead[rank].store(true, Ordering::Release);
    }

    /// True if this rank has left or died: it touches no other rank's memory any more.
    pub(crate) fn is_gone(&self, rank: usize) -> bool {
        self.has_left(rank) || self.0.dead.get(rank).is_some_and(|dead| dead.load(Ordering::Acquire))
    }

    pub(crate) fn note(&self, rank: usize) {
        // Release: a reader sees all the rank did before its goodbye. This thread heard that goodbye, or is the rank.
        self.0.ranks[rank].store(true, Ordering::Release);
        self.0.any.store(true, Ordering::Release);
    }

    /// True if departures are noticed here at all.
    pub fn are_noticed(&self) -> bool {
        !self.0.ranks.is_empty()
    }

    /// True if any rank has left. Costs one load.
    #[inline]
    pub fn any(&self) -> bool {
        self.0.any.load(Ordering::Acquire)
    }

    /// True if this rank has left.
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
