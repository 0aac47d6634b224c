//! Kernels over transports: how one is bound to a peer, and how it is launched so that nothing hangs.

use super::RunError;
use super::wait_host::waits_over_all;
use crate::hook::{Block, Traced};
use crate::schedule::{LoadStore, Ops};
use crate::tensor::Memory;
use crate::transport::layout::Side;
use crate::transport::{
    AbortCode, Cause, P2pTransport, Protocol, Rank, SegmentSet, ShmTransport, Ticket, TransferError, TransportError,
};
use crate::vm::{LaunchError, Prepared, Settings};
use std::fmt;
use std::time::Duration;

/// A transport whose launches can sleep, and end when a rank fails.
pub trait Host: P2pTransport {
    /// The memory that holds the transport's abort words and doorbells; none: its launches poll, and only a deadline ends a wait.
    fn segments(&self) -> Option<&SegmentSet> {
        None
    }

    /// How long a wait may last; `None`: without end.
    fn deadline(&self) -> Option<Duration> {
        Some(Duration::from_secs(30))
    }

    /// A launch of this rank has failed: ends the waits of all ranks on this transport, and makes later calls fail.
    fn fail(&self, cause: Cause) {
        if let Some(segments) = self.segments() {
            segments.abort_all(cause);
        }
    }
}

/// A transport that the collectives of this crate can use. Implement it for a transport of your own.
pub trait Link: Host {
    /// What its kernels reach a peer with.
    type Ops<'t>: Ops<'t>;

    /// Binds a kernel to a peer it sends to. `window` is the peer's, for `direct`.
    fn sender<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol, window: Option<&Memory>) -> Self::Ops<'t>;

    /// Binds a kernel to a peer it receives from.
    fn receiver<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol) -> Self::Ops<'t>;

    /// Tells a peer what this rank is about to do with it; see [`ShmTransport::tell`].
    fn tell(&self, side: Side, peer: Rank, card: &[u8]) -> Result<Ticket, TransportError>;

    /// Waits for what the peer told, at most so long; see [`ShmTransport::hear`].
    fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError>;

    /// Compiles a kernel of your own that is bound to this transport.
    fn prepare(&self, traced: &Traced) -> Result<Launch<'_>, RunError>
    where
        Self: Sized,
    {
        Launch::over(&[self], traced)
    }
}

impl Host for ShmTransport {
    fn segments(&self) -> Option<&SegmentSet> {
        Some(ShmTransport::segments(self))
    }

    fn deadline(&self) -> Option<Duration> {
        ShmTransport::deadline(self)
    }
}

impl Link for ShmTransport {
    type Ops<'t> = LoadStore<'t>;

    fn sender<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol, window: Option<&Memory>) -> LoadStore<'t> {
        LoadStore::sender(k, &self.endpoint(peer), protocol, window)
    }

    fn receiver<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol) -> LoadStore<'t> {
        LoadStore::receiver(k, &self.endpoint(peer), protocol)
    }

    fn tell(&self, side: Side, peer: Rank, card: &[u8]) -> Result<Ticket, TransportError> {
        ShmTransport::tell(self, side, peer, card)
    }

    fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError> {
        ShmTransport::hear(self, ticket, deadline)
    }
}

/// A kernel compiled for launches over transports. A launch that fails breaks them all: their counters are undefined then.
///
/// It borrows the transports, so none can be closed under it.
pub struct Launch<'l> {
    hosts: Vec<&'l dyn Host>,
    prepared: Prepared,
}

/// How a kernel is launched.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub deadline: Option<Duration>,
    /// Every `each` that can writes around the cache, whatever its size.
    pub streams: bool,
    /// Waits see the abort word, and sleep on doorbells.
    pub watched: bool,
}

impl<'l> Launch<'l> {
    /// Compiles a kernel that is bound to these transports, at least one, all of the same world.
    ///
    /// # Panics
    /// Without a transport.
    pub fn over(hosts: &[&'l dyn Host], traced: &Traced) -> Result<Launch<'l>, RunError> {
        let deadline = hosts.iter().map(|host| host.deadline()).min_by_key(|d| d.unwrap_or(Duration::MAX));
        Launch::with_deadline(hosts, traced, deadline.flatten())
    }

    /// As [`Launch::over`], with a deadline of its own.
    ///
    /// # Panics
    /// Without a transport.
    pub fn with_deadline(
        hosts: &[&'l dyn Host],
        traced: &Traced,
        deadline: Option<Duration>,
    ) -> Result<Launch<'l>, RunError> {
        Launch::with(hosts, traced, How { deadline, streams: false, watched: true })
    }

    pub(super) fn with(hosts: &[&'l dyn Host], traced: &Traced, how: How) -> Result<Launch<'l>, RunError> {
        let How { deadline, streams, watched } = how;
        let first = hosts.first().expect("a launch over at least one transport");
        let segments: Vec<&SegmentSet> = hosts.iter().filter(|_| watched).filter_map(|host| host.segments()).collect();
        let usual = Settings::default();
        let settings = Settings {
            rank: first.rank().index(),
            world_size: first.world_size(),
            deadline,
            waits: waits_over_all(&segments),
            stream_from: if streams { 1 } else { usual.stream_from },
            ..usual
        };
        let prepared = Prepared::with(&traced.kernel, &traced.args, settings)?;
        Ok(Launch { hosts: hosts.to_vec(), prepared })
    }

    /// Runs the kernel to the end.
    #[inline]
    pub fn run(&mut self) -> Result<(), RunError> {
        for host in &self.hosts {
            if let Some(cause) = host.broken() {
                return Err(TransferError::Broken { cause }.into());
            }
        }
        self.prepared.run().map_err(|error| self.failed(error))
    }

    /// The bytecode, for people.
    pub fn disassembly(&self) -> String {
        self.prepared.disassembly()
    }

    #[cold]
    fn failed(&self, error: LaunchError) -> RunError {
        let rank = self.hosts[0].rank().index();
        let own = |code| Cause { code, rank, reason: 0 };
        let cause = match &error {
            LaunchError::Timeout { .. } => own(AbortCode::TimedOut),
            // Who is told of it must hear what happened first, and not that this rank heard of it.
            LaunchError::Aborted { word, .. } => Cause::from_word(*word).unwrap_or(own(AbortCode::Failed)),
            _ => own(AbortCode::Failed),
        };
        self.hosts.iter().for_each(|host| host.fail(cause));
        error.into()
    }
}

impl fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launch({:?} over {} transports)", self.prepared, self.hosts.len())
    }
}
