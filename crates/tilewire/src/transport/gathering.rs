//! Calls that all ranks of a transport make. A rank that waits in such a call for ranks that are doing something else
//! finds out.
//!
//! ```text
//!  rank 0: Window::allocate                               rank 1: all_reduce(..).run()
//!  1  counts the call in its own line
//!  2  checks whether all lines have counted it ◀──── no ─ its line: waits for rank 0 in all_reduce at src/main.rs:12:5
//!     its line: waits for rank 1 in Window::allocate ..   a cycle, which both see: an error on both
//!  3  all have: they compare and create, over the bootstrap; no rank that got here leaves the others waiting
//! ```
//! The bootstrap alone would be enough to meet, but a rank that waits there sees nothing else, and no other rank sees
//! it.
//!
//! A rank that has let go of the transport never comes, so a call that sees this ends. That is safe because step 3
//! needs all ranks: no rank has passed it while another is in step 2. A rank that calls for a window on *another*
//! transport of its thread has come, but to the wrong place. The ranks compare their transports in step 3, which gives
//! an error on all of them. (Each thread keeps a list of its transports for this.)
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

/// A wait is published to the other ranks once it has lasted this long.
const TELLS: Duration = Duration::from_millis(5);
/// Time between two looks at the lines of all ranks.
const LOOKS: Duration = Duration::from_millis(20);
/// The longest sleep between two checks of a wait's condition.
const NAP: Duration = Duration::from_millis(1);

/// When a rank fails, it lets go of its transport before it reports why. We wait this long for the reason, because it
/// says more than that the rank has left.
const REASON: Duration = Duration::from_millis(100);

/// A window call that all ranks have joined, until they agree on it.
pub(crate) struct Gathering<'d> {
    desk: &'d Desk,
    /// False if the call expired before all ranks had come: then it does not count.
    counts: bool,
}

impl Desk {
    /// Enters a window call, and returns when all ranks have entered it. `doing` describes the call, with the user's
    /// source line.
    pub(crate) fn gather(&self, doing: &str, deadline: Deadline) -> Result<Gathering<'_>, TransportError> {
        let nth = self.status.calls_for_window();
        mark_others(&self.status, true);
        let mut gathering = Gathering { desk: self, counts: false };
        let (missing, left) = (RefCell::default(), Cell::new(None));
        let all_came = self.wait_until(deadline, |probe, lasts| {
            let now = self.status.missing(nth);
            // The bootstrap knows more about a rank that is gone.
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

    /// Returns when every rank is closing the transport or has let go of it. At the deadline, returns the ranks that
    /// have done neither. Only the lines know them, not the bootstrap: ranks that wait here have not come to its
    /// barrier.
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

    /// Calls `look` until it returns true or the deadline is over, and returns which. `look` gets the probe that was
    /// read before it, and whether the wait has lasted long enough to publish it. If the transport breaks, ends early
    /// with an error: the verdict, if there is one.
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
    /// Ends the call with the result of comparing the ranks' requests. A rank whose wait for that expired has not come,
    /// and may come again.
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
    /// The status lines of this thread's transports.
    static LINES: RefCell<Vec<Status>> = const { RefCell::new(Vec::new()) };
}

/// Records that this thread has a transport with these lines.
pub(crate) fn enlist(status: &Status) {
    LINES.with(|lines| lines.borrow_mut().push(status.clone()));
}

/// Records that this thread has let go of that transport.
pub(crate) fn strike(status: &Status) {
    status.lets_go();
    // When the thread ends, the list may already be gone.
    _ = LINES.try_with(|lines| lines.borrow_mut().retain(|other| !other.is(status)));
}

/// True if a rank waits for this one in a window call on another transport of this thread.
fn calls_elsewhere(status: &Status, rank: usize) -> bool {
    LINES.with(|lines| lines.borrow().iter().any(|other| !other.is(status) && other.calls_for_more(rank)))
}

fn mark_others(status: &Status, elsewhere: bool) {
    LINES.with(|lines| {
        lines.borrow().iter().filter(|other| !other.is(status)).for_each(|other| other.is_elsewhere(elsewhere))
    });
}
