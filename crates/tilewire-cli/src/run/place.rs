//! The transport of a run, whichever it is: one type, so that what is made for every element type is made once.

use std::time::Duration;
use tilewire::collective::{Host, Link};
use tilewire::cuda::Seat;
use tilewire::hook::Block;
use tilewire::ir::scalar::Element;
use tilewire::schedule::{LoadStore, Peer};
use tilewire::transport::{
    Cause, Departures, LinkKind, NvlTransport, P2pTransport, Pairing, PeerEndpoint, Protocol, Rank, SegmentSet,
    ShmTransport, Status, Ticket, TransportError, Window,
};
use tilewire::{Memory, RunError, Tensor};

/// A transport, and where its kernels want their tensors.
pub enum Wire {
    /// Between ranks on CPUs.
    Shm(ShmTransport),
    /// Between ranks on GPUs.
    Nvl(NvlTransport),
}

impl Wire {
    /// A tensor of zeros.
    pub fn zeros<T: Element>(&self, len: usize) -> Result<Tensor<T>, RunError> {
        match self {
            Wire::Shm(_) => Ok(Tensor::zeros(len)),
            Wire::Nvl(link) => Ok(link.device().zeros(len)?),
        }
    }

    /// A window of all ranks. Collective.
    pub fn window<T: Element>(&self, len: usize) -> Result<Window<T>, TransportError> {
        match self {
            Wire::Shm(link) => Window::allocate(link, len),
            Wire::Nvl(link) => Window::allocate(link, len),
        }
    }

    /// Ends it. Collective.
    pub fn close(self) -> Result<(), TransportError> {
        match self {
            Wire::Shm(link) => link.close(),
            Wire::Nvl(link) => link.close(),
        }
    }

    fn p2p(&self) -> &dyn P2pTransport {
        match self {
            Wire::Shm(link) => link,
            Wire::Nvl(link) => link,
        }
    }

    fn host(&self) -> &dyn Host {
        match self {
            Wire::Shm(link) => link,
            Wire::Nvl(link) => link,
        }
    }
}

impl P2pTransport for Wire {
    fn rank(&self) -> Rank {
        self.p2p().rank()
    }

    fn world_size(&self) -> usize {
        self.p2p().world_size()
    }

    fn per_peer_bytes(&self) -> usize {
        self.p2p().per_peer_bytes()
    }

    fn max_blocks_per_peer(&self) -> usize {
        self.p2p().max_blocks_per_peer()
    }

    fn link_kind(&self, peer: Rank) -> LinkKind {
        self.p2p().link_kind(peer)
    }

    fn endpoint(&self, peer: Rank) -> PeerEndpoint {
        self.p2p().endpoint(peer)
    }

    fn max_slots(&self) -> usize {
        self.p2p().max_slots()
    }

    fn reaches(&self, peer: Rank) -> bool {
        self.p2p().reaches(peer)
    }

    fn copies(&self) -> u32 {
        self.p2p().copies()
    }

    fn packet_bytes(&self) -> usize {
        self.p2p().packet_bytes()
    }

    fn broken(&self) -> Option<Cause> {
        self.p2p().broken()
    }
}

impl Host for Wire {
    fn segments(&self) -> Option<&SegmentSet> {
        self.host().segments()
    }

    fn deadline(&self) -> Option<Duration> {
        self.host().deadline()
    }

    fn seat(&self) -> Option<&Seat> {
        self.host().seat()
    }

    fn departures(&self) -> Option<&Departures> {
        self.host().departures()
    }

    fn status(&self) -> Option<&Status> {
        self.host().status()
    }

    fn describe(&self, peer: Rank, operation: u16) -> Option<String> {
        self.host().describe(peer, operation)
    }

    fn fail(&self, cause: Cause) {
        self.host().fail(cause);
    }
}

impl Link for Wire {
    fn sender<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol, window: Option<&Memory>) -> Peer<'t> {
        Peer::new(k, LoadStore::sender(k, &self.endpoint(peer), protocol, window))
    }

    fn receiver<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol) -> Peer<'t> {
        Peer::new(k, LoadStore::receiver(k, &self.endpoint(peer), protocol))
    }

    fn ticket(&self, pairing: Pairing, peer: Rank) -> Ticket {
        match self {
            Wire::Shm(link) => link.ticket(pairing, peer),
            Wire::Nvl(link) => link.ticket(pairing, peer),
        }
    }

    fn tell(&self, ticket: &Ticket, card: &[u8]) -> Result<(), TransportError> {
        match self {
            Wire::Shm(link) => link.tell(ticket, card),
            Wire::Nvl(link) => link.tell(ticket, card),
        }
    }

    fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError> {
        match self {
            Wire::Shm(link) => link.hear(ticket, deadline),
            Wire::Nvl(link) => link.hear(ticket, deadline),
        }
    }
}
