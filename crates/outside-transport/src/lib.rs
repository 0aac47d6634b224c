//! A transport from outside tilewire, with ops of its own: what is put goes into a buffer of the sender first and is copied to the receiver
//! when it is delivered, as a network does it.
//!
//! ```text
//!   put ──▶ outbox (the sender's own memory) ── deliver: copy the span, then signal ──▶ staging of the receiver ──▶ get
//! ```
//! Everything here is public API of tilewire: [`P2pTransport`], [`Host`] and [`Link`] for the transport, [`Reach`](tilewire::schedule::Reach) for what its kernels do.
#![forbid(unsafe_code)]

mod ops;

pub use ops::Outbox;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tilewire::collective::{Host, Link};
use tilewire::hook::Block;
use tilewire::schedule::{LoadStore, Peer};
use tilewire::transport::layout::{Geometry, Layout};
use tilewire::transport::{
    Bootstrap, BootstrapError, Cause, Deadline, LinkKind, P2pTransport, Pairing, PeerEndpoint, Protocol, Rank,
    SegmentError, SegmentSet, Ticket, TransportError,
};
use tilewire::{Memory, World};

/// What the ranks of a world share before they start: the segments, to be taken by each.
pub struct Outboxes {
    geometry: Geometry,
    segments: Mutex<Vec<Option<SegmentSet>>>,
}

impl Outboxes {
    /// Segments for ranks that are threads.
    pub fn new(world_size: usize, per_peer_bytes: usize) -> Result<Outboxes, SegmentError> {
        let geometry = Geometry {
            world_size,
            per_peer_bytes,
            max_blocks_per_peer: 2,
            max_slots: 4,
            max_copies: 1,
            packet_bytes: 8 << 10,
        };
        let bytes = Layout::new(geometry).expect("a layout that fits").bytes();
        let segments = SegmentSet::threads(world_size, bytes)?.into_iter().map(Some).collect();
        Ok(Outboxes { geometry, segments: Mutex::new(segments) })
    }

    /// The transport of one rank; once for each.
    pub fn join(&self, world: &World, deadline: Duration) -> OutboxTransport {
        let rank = world.rank();
        let segments = self.segments.lock().expect("no rank panics in here")[rank.index()].take();
        let segments = segments.expect("every rank joins once");
        // A rank that fails ends the waits of the others.
        world.watch(&segments);
        OutboxTransport {
            rank,
            layout: Layout::new(self.geometry).expect("a layout that fits"),
            outboxes: (0..world.size()).map(|_| Memory::zeroed(self.geometry.per_peer_bytes)).collect(),
            told: RefCell::default(),
            bootstrap: world.bootstrap().clone(),
            deadline,
            segments,
        }
    }
}

/// The transport of one rank.
pub struct OutboxTransport {
    rank: Rank,
    layout: Layout,
    /// For each peer, where what is put waits until it is delivered.
    outboxes: Vec<Memory>,
    /// Operations so far, by peer and kind.
    told: RefCell<HashMap<(Rank, Pairing), u64>>,
    bootstrap: Arc<dyn Bootstrap>,
    deadline: Duration,
    segments: SegmentSet,
}

impl OutboxTransport {
    /// What was put for a peer, delivered or not.
    pub fn outbox(&self, peer: Rank) -> &Memory {
        &self.outboxes[peer.index()]
    }

    fn key(&self, ticket: &Ticket, by: Rank) -> String {
        let Ticket { rank, peer, number, .. } = ticket;
        let what = match ticket.pairing {
            Pairing::Send => format!("{rank}to{peer}"),
            Pairing::Receive => format!("{peer}to{rank}"),
            Pairing::Together => format!("{}and{}", rank.min(peer), rank.max(peer)),
        };
        format!("outbox/{what}/{number}/{by}")
    }
}

impl P2pTransport for OutboxTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.segments.world_size()
    }

    fn per_peer_bytes(&self) -> usize {
        self.layout.geometry().per_peer_bytes
    }

    fn max_blocks_per_peer(&self) -> usize {
        self.layout.geometry().max_blocks_per_peer
    }

    fn max_slots(&self) -> usize {
        self.layout.geometry().max_slots
    }

    fn packet_bytes(&self) -> usize {
        self.layout.geometry().packet_bytes
    }

    fn link_kind(&self, peer: Rank) -> LinkKind {
        if peer == self.rank { LinkKind::SameDevice } else { LinkKind::Fabric }
    }

    fn endpoint(&self, peer: Rank) -> PeerEndpoint {
        let of = |rank: Rank| self.segments.segment(rank.index());
        PeerEndpoint::between(&self.layout, (self.rank, &of(self.rank)), (peer, &of(peer)))
    }

    fn broken(&self) -> Option<Cause> {
        self.segments.abort(self.rank.index()).get()
    }
}

impl Host for OutboxTransport {
    fn segments(&self) -> Option<&SegmentSet> {
        Some(&self.segments)
    }

    fn deadline(&self) -> Option<Duration> {
        Some(self.deadline)
    }
}

impl Link for OutboxTransport {
    fn sender<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol, window: Option<&Memory>) -> Peer<'t> {
        let wire = LoadStore::sender(k, &self.endpoint(peer), protocol, window);
        let outbox = window.map_or_else(|| self.outbox(peer).clone(), |window| Memory::zeroed(window.bytes()));
        Peer::new(k, Outbox::new(wire, k.region("outbox", &[outbox])))
    }

    fn receiver<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol) -> Peer<'t> {
        // A receiver puts nothing.
        let wire = LoadStore::receiver(k, &self.endpoint(peer), protocol);
        Peer::new(k, Outbox::new(wire, k.region("outbox", &[Memory::zeroed(8)])))
    }

    fn ticket(&self, pairing: Pairing, peer: Rank) -> Ticket {
        let number = self.told.borrow().get(&(peer, pairing)).copied().unwrap_or(0);
        Ticket { rank: self.rank, peer, pairing, number }
    }

    fn tell(&self, ticket: &Ticket, card: &[u8]) -> Result<(), TransportError> {
        self.bootstrap.set(&self.key(ticket, self.rank), card, Deadline::after(self.deadline))?;
        self.told.borrow_mut().insert((ticket.peer, ticket.pairing), ticket.number + 1);
        Ok(())
    }

    fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError> {
        let key = self.key(ticket, ticket.peer);
        self.bootstrap.take(&key, deadline.map_or(Deadline::never(), Deadline::after)).map_err(|error| match error {
            BootstrapError::KeyNotSet { waited, .. } => {
                TransportError::NotMet { ticket: *ticket, late: ticket.peer, after: waited }
            }
            error => error.into(),
        })
    }
}
