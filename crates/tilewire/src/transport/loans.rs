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
//! A peer that is stopped keeps its BORROWS. A thread is never stopped alone, so among threads the lender waits as long
//! as it takes. Among processes it gives up after a while and exposes its memory: it is kept alive for ever, and
//! accessed with atomics. Host code may have references to the elements of memory with cells, so for that it waits on.
#![forbid(unsafe_code)]

use super::abort::{AbortCode, Cause};
use super::door::Door;
use crate::tensor::Memory;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// The tensors of this rank that peers touch in a launch. Not windows: those are shared anyway.
#[derive(Default)]
pub(crate) struct Loan {
    memory: Vec<Memory>,
    /// How long to wait for them after a failure. `None`: as long as it takes.
    limit: Option<Duration>,
}

impl Loan {
    /// A loan to other threads, or to other processes. A peer that computes or copies is not slow because a deadline is
    /// short.
    pub(crate) fn of(memory: Vec<Memory>, to_processes: bool, deadline: Option<Duration>) -> Loan {
        const LEAST: Duration = Duration::from_secs(2);
        const WITHOUT_DEADLINE: Duration = Duration::from_secs(30);
        let limit = to_processes.then(|| deadline.map_or(WITHOUT_DEADLINE, |deadline| deadline.max(LEAST)));
        Loan { memory, limit }
    }

    /// After a failure, when the abort words of all ranks are set: waits until no peer can touch the memory. False if
    /// one still can after the limit. The memory is then exposed.
    #[cold]
    pub(crate) fn comes_back(&self, door: &Door) -> bool {
        let is_back = self.memory.is_empty()
            || door.has_all_back(self.limit)
            || self.memory.iter().any(Memory::has_cells) && door.has_all_back(None);
        if !is_back {
            self.memory.iter().for_each(Memory::expose);
        }
        is_back
    }
}

/// A launch of this rank that may touch tensors of other ranks, until it is dropped.
pub(crate) struct Borrowing<'d> {
    door: &'d Door,
    loan: &'d Loan,
    /// True if the launch is made while a panic unwinds.
    in_panic: bool,
}

impl Door {
    /// Begins a launch that may touch tensors of other ranks. Look at the abort word afterwards, and start nothing if
    /// it is set. `loan`: what the launch lends, which comes back if it panics.
    #[inline]
    pub(crate) fn borrows<'d>(&'d self, loan: &'d Loan) -> Borrowing<'d> {
        self.abort().borrows().store(1, Ordering::Relaxed);
        // With the fence in `has_all_back`.
        fence(Ordering::SeqCst);
        Borrowing { door: self, loan, in_panic: std::thread::panicking() }
    }

    /// Waits until no other rank can touch tensors of this rank that launches have permitted it to. The abort words of
    /// all ranks must have been set. False if a rank is still in its launch after this time; `None`: waits as long as
    /// it takes.
    fn has_all_back(&self, limit: Option<Duration>) -> bool {
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
        let panics = !self.in_panic && std::thread::panicking();
        // Release: the launch is over, and all its threads have left it. Its caller has fenced streamed stores.
        self.door.abort().borrows().store(0, Ordering::Release);
        if panics {
            self.door.fail(Cause { code: AbortCode::Panicked, rank: self.door.own(), reason: 0 });
            self.loan.comes_back(self.door);
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
        let (short, nothing) = (Some(Duration::from_millis(5)), Loan::default());
        let borrowing = near.borrows(&nothing);
        let own = lender.borrows(&nothing);
        assert!(!lender.has_all_back(short) && other.broken().is_none());
        drop(borrowing);
        assert!(lender.has_all_back(short) && !near.has_all_back(short));
        drop(own);
        assert!(near.has_all_back(short));
        // The end of a launch is seen however long it takes.
        std::thread::scope(|threads| {
            let borrowing = other.borrows(&nothing);
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
            let loan = Loan::of(vec![Memory::zeroed(8)], false, None);
            let _launch = doors[0].borrows(&loan);
            panic!("as an example");
        }));
        assert!(panics.is_err());
        assert_eq!(doors[1].broken().map(|cause| (cause.code, cause.rank)), Some((AbortCode::Panicked, 0)));
        assert!(doors[1].has_all_back(Some(Duration::ZERO)));
    }

    #[test]
    fn a_panic_exposes_what_does_not_come_back() {
        let ranks = SegmentSet::threads(2, 0).unwrap();
        let doors = [0, 1].map(|rank| Door::of(&ranks[rank]));
        let (nothing, memory) = (Loan::default(), Memory::zeroed(8));
        let _stopped = doors[1].borrows(&nothing);
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let loan = Loan { memory: vec![memory.clone()], limit: Some(Duration::ZERO) };
            let _launch = doors[0].borrows(&loan);
            panic!("as an example");
        }));
        assert!(panics.is_err() && memory.is_exposed() && memory.is_shared());
    }

    #[test]
    fn a_launch_that_ends_well_while_a_panic_unwinds_ends_no_other() {
        struct Late(Door);
        impl Drop for Late {
            fn drop(&mut self) {
                drop(self.0.borrows(&Loan::default()));
            }
        }
        let ranks = SegmentSet::threads(2, 0).unwrap();
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _late = Late(Door::of(&ranks[0]));
            panic!("as an example");
        }));
        assert!(panics.is_err() && Door::of(&ranks[1]).broken().is_none());
    }

    #[test]
    fn what_comes_back_is_waited_for_as_long_as_it_must_be() {
        let ranks = SegmentSet::threads(2, 0).unwrap();
        let doors = [0, 1].map(|rank| Door::of(&ranks[rank]));
        let nothing = Loan::default();
        let stopped = doors[1].borrows(&nothing);
        // Nothing was lent.
        assert!(Loan::of(Vec::new(), false, None).comes_back(&doors[0]));
        let limit = |to_processes, deadline| Loan::of(Vec::new(), to_processes, deadline).limit;
        assert_eq!(limit(false, Some(Duration::ZERO)), None);
        assert_eq!(limit(true, Some(Duration::ZERO)), Some(Duration::from_secs(2)));
        assert_eq!(limit(true, None), Some(Duration::from_secs(30)));
        let loan = Loan { memory: vec![Memory::zeroed(8)], limit: Some(Duration::ZERO) };
        assert!(!loan.comes_back(&doors[0]) && loan.memory[0].is_exposed());
        // Host code may have its elements in place.
        let x = crate::tensor::Tensor::<u64>::zeros(1);
        x.cells();
        let memory = x.memory().clone();
        let door = &doors[0];
        std::thread::scope(|threads| {
            let loan = Loan { memory: vec![memory], limit: Some(Duration::ZERO) };
            let waits = threads.spawn(move || loan.comes_back(door) && !loan.memory[0].is_exposed());
            std::thread::sleep(Duration::from_millis(5));
            assert!(!waits.is_finished());
            drop(stopped);
            assert!(waits.join().unwrap());
        });
    }
}
