//! Tells the peers of this rank's end, and this rank of theirs.
#![forbid(unsafe_code)]

use super::deadline::Deadline;
use super::departures::Departures;
use super::herald::Herald;
use super::rendezvous::{Shared, TransportError};
use super::segment::SegmentSet;
#[cfg(target_os = "linux")]
use super::{abort::Cause, monitor::Monitor};

/// Tells the peers of this rank's end, and this rank of theirs. Ranks that are threads need none: their world tells
/// them, once the cause is noted. Among processes, a monitor watches the domain, and a herald joins the domains.
pub(crate) struct Watch {
    /// Ends first: other domains must hear of a cause before this rank lets go of its connection to the store.
    herald: Option<Herald>,
    #[cfg(target_os = "linux")]
    monitor: Option<Monitor>,
}

impl Watch {
    /// Starts watching for a transport of this name, which no earlier one of this world had.
    pub(crate) fn start(segments: &mut SegmentSet, world: &Shared, name: &str) -> Result<Watch, TransportError> {
        #[cfg(target_os = "linux")]
        let monitor = match world.are_threads() {
            true => None,
            false => Some(Monitor::start(segments.take_control(), segments.aborts())?),
        };
        let mut watch = Watch {
            herald: None,
            #[cfg(target_os = "linux")]
            monitor,
        };
        if !world.are_threads() {
            watch.herald = Herald::start(world, name, segments, watch.departures(world))?;
        }
        Ok(watch)
    }

    /// This rank has failed, and its abort word is set.
    pub(crate) fn fails(&self) {
        self.herald.iter().for_each(Herald::fails);
    }

    /// This rank has come to close.
    pub(crate) fn closes(&self) {
        self.herald.iter().for_each(Herald::closes);
    }

    /// All ranks have come to close. Reads the remaining messages.
    pub(crate) fn all_close(&self, deadline: Deadline) {
        self.herald.iter().for_each(|herald| herald.reads_to_the_end(deadline));
    }

    /// The ranks that have left. A rank that is a thread has left when its closure has returned.
    pub(crate) fn departures(&self, world: &Shared) -> Departures {
        #[cfg(target_os = "linux")]
        if let Some(monitor) = &self.monitor {
            return monitor.departures();
        }
        world.meeting().map_or_else(|| Departures::new(0), |meeting| meeting.departures().clone())
    }

    /// The last step of a collective close.
    #[cfg(target_os = "linux")]
    pub(crate) fn goodbye(self, own: usize, deadline: Deadline) -> Result<(), TransportError> {
        use super::abort::AbortCode;
        use super::monitor::GoodbyeError;
        let (mut herald, monitor) = (self.herald, self.monitor);
        herald.iter_mut().for_each(Herald::all_closed);
        let Some(monitor) = monitor else { return Ok(()) };
        let length = deadline.remaining().unwrap_or(std::time::Duration::MAX);
        monitor.goodbye(length).map_err(|error| match error {
            GoodbyeError::Unseen { .. } => {
                TransportError::Broken { cause: Cause { code: AbortCode::Blind, rank: own, reason: 0 } }
            }
            GoodbyeError::Died { rank } => {
                TransportError::Broken { cause: Cause { code: AbortCode::Died, rank, reason: 0 } }
            }
            GoodbyeError::Missing { ranks, after } => {
                TransportError::NotClosed { rank: super::rank::Rank::new(own as u32), ranks, after }
            }
        })
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn goodbye(self, _: usize, _: Deadline) -> Result<(), TransportError> {
        Ok(())
    }
}
