//! Calls that all ranks of a transport make: who waits there for ranks that are doing something else finds out.
//!
//! ```text
//!  rank 0: Window::allocate                               rank 1: all_reduce(..).run()
//!  1  counts the call in its own line
//!  2  looks whether all lines have counted as many ◀─ no ─ its line: waits for rank 0 in all_reduce at src/main.rs:12:5
//!     its line: waits for rank 1 in Window::allocate ..   a cycle, which both see and answer: an error on both
//!  3  all have: they compare and create, over the bootstrap, where nobody who has come leaves the others waiting
//! ```
//! The bootstrap alone would do to meet, but a rank that waits there sees nothing else, and nobody sees it.
//!
//! A rank that has let go of the transport never comes, so a call that sees this ends: step 3 needs all ranks, and no rank has passed it
//! while another is in step 2. A rank that calls for a window on *another* transport of its thread has come, to the wrong place: the ranks
//! compare their transports in step 3, and that is an error on all of them. (Each keeps a list of its thread's transports for it.)
#![forbid(unsafe_code)]

use super::abort::{AbortCode, Cause};
use super::bootstrap::{BootstrapError, Operation};
use super::deadline::Deadline;
use super::desk::Desk;
use super::rank::Rank;
use super::rendezvous::TransportError;
use super::status::{Kind, Status};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// A wait that has lasted so long is told to others.
const TELLS: Duration = Duration::from_millis(5);
/// Between two looks at the lines of all ranks.
const LOOKS: Duration = Duration::from_millis(20);
/// The longest sleep between two looks at what is waited for.
const NAP: Duration = Duration::from_millis(1);

/// A rank lets go of its transport before it tells why, where it fails. That is waited for: it says more than that the rank has left.
const REASON: Duration = Duration::from_millis(100);

/// A call for a window that all ranks have come to, until it is agreed on.
pub(crate) struct Gathering<'d> {
    desk: &'d Desk,
    /// Whether it counts: it does not when it expired before all had come.
    counts: bool,
}

impl Desk {
    /// Enters a call for a window, and returns when all ranks have. `doing` is the call in words, with the user's line.
    pub(crate) fn gather(&self, doing: &str, deadline: Deadline) -> Result<Gathering<'_>, TransportError> {
        let nth = self.status.calls_for_window();
        mark_others(&self.status, true);
        let mut gathering = Gathering { desk: self, counts: false };
        let (missing, left) = (RefCell::default(), Cell::new(None));
        let all_came = self.wait_until(deadline, |probe, lasts| {
            let now = self.status.missing(nth);
            // Of one that is gone the bootstrap knows more.
            let came = now.is_empty() || now.iter().any(|&rank| self.departures.has_left(rank));
            let gone = self.status.let_go().into_iter().find(|&rank| !calls_elsewhere(&self.status, rank));
            left.set(gone.map(|rank| (rank, left.get().map_or_else(Instant::now, |(_, since)| since))));
            let is_over = left.get().map_or(came, |(_, since)| since.elapsed() >= REASON);
            if !is_over && lasts {
                self.status.waits(Kind::Gathering, &now, &doing, probe);
            }
            missing.replace(now);
            is_over
        });
        self.status.goes_on();
        if let (Ok(_), Some((rank, _))) = (&all_came, left.get()) {
            self.check()?;
            return Err(TransportError::Broken { cause: Cause { code: AbortCode::Left, rank, reason: 0 } });
        }
        if !all_came? {
            let late = self
                .status
                .late_for(nth, missing.into_inner())
                .into_iter()
                .map(|rank| Rank::new(rank as u32))
                .collect();
            let (rank, operation, name) = (self.world.rank(), Operation::AllGather, doing.to_string());
            let waited = self.world.length().unwrap_or_default();
            return Err(BootstrapError::Timeout { rank, operation, name, late, absent: Vec::new(), waited }.into());
        }
        gathering.counts = true;
        Ok(gathering)
    }

    /// Returns when all ranks close the transport or have let go of it. At the deadline gives the ranks that have done neither. The lines
    /// know them, and the bootstrap does not: ranks that wait here have not come to its barrier.
    pub(crate) fn wait_closing(&self, deadline: Deadline) -> Result<Vec<usize>, TransportError> {
        let open = RefCell::default();
        let all_came = |_, _| {
            let now = self.status.open();
            let all_came = now.is_empty() || now.iter().any(|&rank| self.departures.has_left(rank));
            open.replace(now);
            all_came
        };
        let all_came = self.wait_until(deadline, all_came)?;
        Ok(if all_came { Vec::new() } else { open.into_inner() })
    }

    /// Looks until it is true, which it gives, or the deadline is over. `look` gets the probe that was read before it, and whether the wait has
    /// lasted long enough to tell others. Ends early when the transport breaks: then with the verdict, if there is one.
    fn wait_until(&self, deadline: Deadline, look: impl Fn(u64, bool) -> bool) -> Result<bool, TransportError> {
        let (start, mut nap, mut judged) = (Instant::now(), Duration::from_micros(20), Instant::now());
        loop {
            self.check()?;
            let (probe, lasts) = (self.status.probe(), start.elapsed() >= TELLS);
            if look(probe, lasts) {
                return Ok(true);
            }
            if deadline.is_over() {
                return Ok(false);
            }
            if lasts && judged.elapsed() >= LOOKS {
                judged = Instant::now();
                if let Some(verdict) = self.status.judge() {
                    self.status.tell_all(&verdict);
                    continue;
                }
            }
            std::thread::sleep(deadline.remaining().map_or(nap, |left| left.min(nap)));
            nap = (nap * 2).min(NAP);
        }
    }
}

impl Gathering<'_> {
    /// All ranks have compared what they ask for, or not: one whose wait for that expired has not come, and may come again.
    pub(crate) fn agreed<T>(mut self, said: Result<T, TransportError>) -> Result<T, TransportError> {
        self.counts = !matches!(said, Err(TransportError::Bootstrap(BootstrapError::Timeout { .. })));
        said
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        if !self.counts {
            self.desk.status.calls_no_more();
        }
        mark_others(&self.desk.status, false);
    }
}

thread_local! {
    /// The lines of this thread's transports.
    static LINES: RefCell<Vec<Status>> = const { RefCell::new(Vec::new()) };
}

/// This thread has a transport with these lines.
pub(crate) fn enlist(status: &Status) {
    LINES.with(|lines| lines.borrow_mut().push(status.clone()));
}

/// It has let go of it.
pub(crate) fn strike(status: &Status) {
    status.lets_go();
    // At the end of the thread the list may be gone already.
    _ = LINES.try_with(|lines| lines.borrow_mut().retain(|other| !other.is(status)));
}

/// Whether a rank waits for this one in a call for a window on another transport of this thread.
fn calls_elsewhere(status: &Status, rank: usize) -> bool {
    LINES.with(|lines| lines.borrow().iter().any(|other| !other.is(status) && other.calls_for_more(rank)))
}

fn mark_others(status: &Status, elsewhere: bool) {
    LINES.with(|lines| {
        lines.borrow().iter().filter(|other| !other.is(status)).for_each(|other| other.is_elsewhere(elsewhere))
    });
}
