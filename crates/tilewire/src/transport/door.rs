//! How the launches of a rank wait, and how their waits end: a rank's one door to all its peers.
#![forbid(unsafe_code)]

use super::abort::{Abort, Cause};
use super::departures::Departures;
use super::doorbell::Doorbell;
use super::proxy::Proxy;
use super::segment::SegmentSet;
use super::status::Status;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A rank's abort word and doorbell, and what it knows about the ranks whose memory is mapped here: whose doorbell to
/// ring after a signal, whose waits to end if this rank fails, which ranks have left, and what each waits for.
#[derive(Clone)]
pub struct Door {
    own: usize,
    ranks: Vec<Mapped>,
    departures: Option<Departures>,
    status: Option<Status>,
    deadline: Option<Duration>,
    proxy: Option<Arc<Proxy>>,
}

/// A rank, by its segment or its shadow.
#[derive(Clone)]
struct Mapped {
    abort: Abort,
    doorbell: Doorbell,
    /// Empty for a shadow.
    place: Range<usize>,
}

impl Door {
    /// The door of a rank over these segments. Waits last at most 30 s, and departures are not noticed.
    ///
    /// ```
    /// use tilewire::transport::{AbortCode, Cause, Door, SegmentSet};
    /// let ranks = SegmentSet::threads(2, 64)?;
    /// let doors = [Door::of(&ranks[0]), Door::of(&ranks[1])];
    /// let cause = Cause { code: AbortCode::Failed, rank: 1, reason: 0 };
    /// doors[1].fail(cause);
    /// assert_eq!(doors[0].broken(), Some(cause));
    /// # Ok::<(), tilewire::transport::SegmentError>(())
    /// ```
    pub fn of(segments: &SegmentSet) -> Door {
        let rank = |rank| {
            // Kernels have no addresses in the memory of a rank of another domain.
            let place = segments.mapped(rank).map_or(0..0, |segment| {
                let start = segment.start().as_ptr() as usize;
                start..start + segment.bytes()
            });
            Mapped { abort: segments.abort(rank), doorbell: segments.doorbell(rank), place }
        };
        Door {
            own: segments.rank(),
            ranks: (0..segments.world_size()).map(rank).collect(),
            departures: None,
            status: None,
            deadline: Some(Duration::from_secs(30)),
            proxy: None,
        }
    }

    /// With a proxy that this rank's waits drive.
    pub(crate) fn with_proxy(self, proxy: Arc<Proxy>) -> Door {
        Door { proxy: Some(proxy), ..self }
    }

    /// The proxy that carries this rank's posts, if there is one.
    pub fn proxy(&self) -> Option<&Arc<Proxy>> {
        self.proxy.as_ref()
    }

    /// Sets the deadline for waits; `None`: they last as long as it takes.
    pub fn with_deadline(self, deadline: Option<Duration>) -> Door {
        Door { deadline, ..self }
    }

    /// Adds what is known about ranks that have left, and what all ranks wait for.
    pub(crate) fn with_news(self, departures: Departures, status: Status) -> Door {
        Door { departures: Some(departures), status: Some(status), ..self }
    }

    /// This rank's abort word, which its waits poll.
    #[inline]
    pub fn abort(&self) -> &Abort {
        &self.ranks[self.own].abort
    }

    /// Why this rank's waits must end, if they must.
    #[inline]
    pub fn broken(&self) -> Option<Cause> {
        self.abort().get()
    }

    /// Ends the waits of all ranks that are mapped here, including this one's.
    pub fn fail(&self, cause: Cause) {
        self.ranks.iter().for_each(|rank| _ = rank.abort.set(cause));
    }

    /// How long a wait may last; `None`: forever.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// The ranks that have left the transport, if that is noticed: waits for what they have not sent end immediately.
    pub fn departures(&self) -> Option<&Departures> {
        self.departures.as_ref()
    }

    /// What all ranks wait for, if they publish it. Without it, only a deadline ends a wait for a rank that is waiting.
    pub fn status(&self) -> Option<&Status> {
        self.status.as_ref()
    }

    /// The abort words of all ranks, by rank.
    pub(super) fn aborts(&self) -> impl Iterator<Item = &Abort> {
        self.ranks.iter().map(|rank| &rank.abort)
    }

    /// Which of [`doorbells`](Self::doorbells) is this rank's.
    pub(crate) fn own(&self) -> usize {
        self.own
    }

    /// The doorbells of the ranks that are mapped here, each with the address range of the rank's segment.
    pub(crate) fn doorbells(&self) -> impl Iterator<Item = (&Doorbell, &Range<usize>)> {
        self.ranks.iter().map(|rank| (&rank.doorbell, &rank.place))
    }
}
