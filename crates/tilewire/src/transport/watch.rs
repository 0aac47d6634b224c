//! Tells the peers of this rank's end, and this rank of theirs.
#![forbid(unsafe_code)]

use super::deadline::Deadline;
use super::departures::Departures;
use super::rendezvous::{Shared, TransportError};
use super::segment::SegmentSet;
#[cfg(target_os = "linux")]
use super::{abort::Cause, monitor::Monitor};

/// Tells the peers of this rank's end, and this rank of theirs. Ranks that are threads need none: their world tells
/// them, once the cause is noted.
pub(crate) struct Watch {
    #[cfg(target_os = "linux")]
    monitor: Option<Monitor>,
}

impl Watch {
    pub(crate) fn start(segments: &mut SegmentSet, are_threads: bool) -> Result<Watch, TransportError> {
        #[cfg(target_os = "linux")]
        let monitor =
            if are_threads { None } else { Some(Monitor::start(segments.take_control(), segments.aborts())?) };
        #[cfg(not(target_os = "linux"))]
        let _ = (segments, are_threads);
        Ok(Watch {
            #[cfg(target_os = "linux")]
            monitor,
        })
    }

    /// The ranks that have left. A rank that is a thread has left when its closure has returned.
    pub(crate) fn departures(&self, world: &Shared) -> Departures {
        #[cfg(target_os = "linux")]
        if let Some(monitor) = &self.monitor {
            return monitor.departures();
        }
        world.meeting().map_or_else(|| Departures::new(0), |meeting| meeting.departures().clone())
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn goodbye(self, own: usize, deadline: Deadline) -> Result<(), TransportError> {
        use super::abort::AbortCode;
        use super::monitor::GoodbyeError;
        let Some(monitor) = self.monitor else { return Ok(()) };
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
