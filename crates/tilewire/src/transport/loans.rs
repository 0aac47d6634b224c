//! Loans of memory: a launch in one hop permits peers to write this rank's tensors, or to read them. The user has them
//! back only when no peer can still do so.
//!
//! ```text
//!   borrower: every launch in one hop               lender: a launch that fails
//!   BORROWS := 1                                    sets the abort words of all ranks
//!   (fence) looks at its abort word; set: leaves    (fence) waits until all BORROWS are 0, or their ranks are gone
//!   runs; machines that wait see the abort word     has its memory back
//!   BORROWS := 0 (release)                          (acquire)
//! ```
//! A launch that ends well needs none of this: it has the DONE or READY of every peer that it permitted anything. After
//! a failure, a permission may lie in a slot that the peer has not read yet. The two fences decide: either the borrower
//! sees the abort word and starts nothing, or the lender sees BORROWS and waits. A peer is gone when its process has
//! ended, so that it cannot store, or when it has left the transport, which its launches borrow.
//!
//! A peer that is stopped keeps its BORROWS. The lender then gives up after a while; what it does is up to the caller.
#![forbid(unsafe_code)]

use super::abort::{AbortCode, Cause};
use super::door::Door;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// A launch of this rank that may touch tensors of other ranks, until it is dropped.
pub(crate) struct Borrowing<'d> {
    door: &'d Door,
    limit: Option<Duration>,
}

impl Door {
    /// Begins a launch that may touch tensors of other ranks. Look at the abort word afterwards, and start nothing if
    /// it is set. `limit` bounds the wait of a launch that panics.
    #[inline]
    pub(crate) fn borrows(&self, limit: Option<Duration>) -> Borrowing<'_> {
        self.abort().borrows().store(1, Ordering::Relaxed);
        // With the fence in `has_all_back`.
        fence(Ordering::SeqCst);
        Borrowing { door: self, limit }
    }

    /// Waits until no other rank can touch tensors of this rank that launches have permitted it to. The abort words of
    /// all ranks must have been set. False if a rank is still in its launch after this time; `None`: waits as long as
    /// it takes.
    #[cold]
    pub(crate) fn has_all_back(&self, limit: Option<Duration>) -> bool {
        const NAP: Duration = Duration::from_micros(50);
        // With the fence in `borrows`.
        fence(Ordering::SeqCst);
        let start = Instant::now();
        let is_gone = |rank: usize| self.departures().is_some_and(|departures| departures.is_gone(rank));
        self.aborts().enumerate().filter(|(rank, _)| *rank != self.own()).all(|(rank, abort)| {
            // Acquire: what the launch stored is there.
            while abort.borrows().load(Ordering::Acquire) != 0 && !is_gone(rank) {
                if limit.is_some_and(|limit| start.elapsed() >= limit) {
                    return false;
                }
                std::thread::sleep(NAP);
            }
            true
        })
    }
}

impl Drop for Borrowing<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: the launch is over, and all its threads have left it.
        self.door.abort().borrows().store(0, Ordering::Release);
        if std::thread::panicking() {
            self.door.fail(Cause { code: AbortCode::Panicked, rank: self.door.own(), reason: 0 });
            self.door.has_all_back(self.limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SegmentSet;
    use super::*;

    #[test]
    fn a_lender_has_its_memory_back_when_every_peer_has_left_its_launch() {
        let ranks = SegmentSet::threads(3, 0).unwrap();
        let [lender, near, other] = [0, 1, 2].map(|rank| Door::of(&ranks[rank]));
        let short = Some(Duration::from_millis(5));
        let borrowing = near.borrows(None);
        let own = lender.borrows(None);
        assert!(!lender.has_all_back(short) && other.broken().is_none());
        drop(borrowing);
        assert!(lender.has_all_back(short) && !near.has_all_back(short));
        drop(own);
        assert!(near.has_all_back(short));
        // The end of a launch is seen however long it takes.
        std::thread::scope(|threads| {
            let borrowing = other.borrows(None);
            let waits = threads.spawn(|| lender.has_all_back(None));
            assert!(!waits.is_finished());
            drop(borrowing);
            assert!(waits.join().unwrap());
        });
    }

    #[test]
    fn a_panic_in_a_launch_ends_those_of_the_peers() {
        let ranks = SegmentSet::threads(2, 0).unwrap();
        let doors = [0, 1].map(|rank| Door::of(&ranks[rank]));
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _launch = doors[0].borrows(Some(Duration::from_secs(60)));
            panic!("as an example");
        }));
        assert!(panics.is_err());
        assert_eq!(doors[1].broken().map(|cause| (cause.code, cause.rank)), Some((AbortCode::Panicked, 0)));
        assert!(doors[1].has_all_back(Some(Duration::ZERO)));
    }
}
