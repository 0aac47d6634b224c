//! A transport from outside tilewire, with ops of its own: what is put goes into a buffer of the sender first and is
//! copied to the receiver when it is delivered, as a network does it.
//!
//! ```text
//!   put ──▶ outbox (the sender's own memory) ── deliver: copy the span, signal ──▶ staging of the receiver ──▶ get
//! ```
//! Everything here is public API of tilewire: [`Transport`] for the transport, [`Reach`](tilewire::schedule::Reach)
//! for what its kernels do.
#![forbid(unsafe_code)]

mod ops;

pub use ops::Outbox;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tilewire::hook::Block;
use tilewire::link::{Transport, WindowCall, WindowParts, WindowRegistry};
use tilewire::schedule::{LoadStore, Peer};
use tilewire::transport::layout::{Geometry, Layout};
use tilewire::transport::{
    Bootstrap, BootstrapError, Deadline, Door, LinkKind, LinkShape, LocalBuffers, Pairing, PeerEndpoint, Protocol,
    Rank, SegmentError, SegmentSet, Ticket, TransportError,
};
use tilewire::{Memory, World};

/// What the ranks of a world share before they start: the segments, to be taken by each.
pub struct Outboxes {
    geometry: Geometry,
    segments: Mutex<Vec<Option<SegmentSet>>>,
    windows: Arc<Mutex<HashMap<u64, Vec<Option<SegmentSet>>>>>,
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
            window_sets: 0,
        };
        let bytes = Layout::new(geometry).expect("a layout that fits").bytes();
        let segments = SegmentSet::threads(world_size, bytes)?.into_iter().map(Some).collect();
        Ok(Outboxes { geometry, segments: Mutex::new(segments), windows: Arc::default() })
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
            door: Door::of(&segments).with_deadline(Some(deadline)),
            segments,
            windows: self.windows.clone(),
            window_calls: Cell::new(0),
            registry: WindowRegistry::default(),
            buffers: LocalBuffers::default(),
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
    door: Door,
    segments: SegmentSet,
    /// Segments of windows by their number, for each rank to take its set.
    windows: Arc<Mutex<HashMap<u64, Vec<Option<SegmentSet>>>>>,
    /// Windows that this rank has called for.
    window_calls: Cell<u64>,
    /// Its windows, and its buffers with handles.
    registry: WindowRegistry,
    buffers: LocalBuffers,
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

impl Transport for OutboxTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.segments.world_size()
    }

    fn link(&self, peer: Rank) -> LinkShape {
        let kind = if peer == self.rank { LinkKind::SameDevice } else { LinkKind::Fabric };
        LinkShape::of(self.layout.geometry(), kind, 1)
    }

    fn endpoint(&self, peer: Rank) -> Option<PeerEndpoint> {
        let of = |rank: Rank| self.segments.segment(rank.index());
        Some(PeerEndpoint::between(&self.layout, (self.rank, &of(self.rank)), (peer, &of(peer))))
    }

    fn door(&self) -> Option<&Door> {
        Some(&self.door)
    }

    /// The ranks compare lengths and types over the bootstrap. The first to come makes the segments of all.
    fn window_memory(&self, call: &WindowCall) -> Result<WindowParts, TransportError> {
        let nth = self.window_calls.replace(self.window_calls.get() + 1);
        let card = format!("{} {}", call.ty, call.len);
        let name = format!("outbox/window/{nth}");
        let cards = self.bootstrap.all_gather(&name, card.as_bytes(), Deadline::after(self.deadline))?;
        let cards: Vec<String> = cards.iter().map(|card| String::from_utf8_lossy(card).into_owned()).collect();
        let mut lens = Vec::new();
        for (rank, card) in Rank::all(cards.len()).zip(&cards) {
            let of_type = card.split_once(' ').filter(|(ty, _)| *ty == call.ty.to_string());
            let len = of_type.and_then(|(_, len)| len.parse::<usize>().ok()?.checked_mul(call.ty.size()));
            let what = || format!("it asks for a window of {card}, and rank {} for one of {}", self.rank, call.ty);
            lens.push(len.ok_or_else(|| TransportError::Peer { rank, what: what() })?);
        }
        let mut windows = self.windows.lock().expect("no rank panics in here");
        let sets = match windows.entry(nth) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(none) => {
                let sets = SegmentSet::threads(lens.len(), lens.iter().copied().max().unwrap_or(0))?;
                none.insert(sets.into_iter().map(Some).collect())
            }
        };
        let mine = sets[self.rank.index()].take();
        let mine = mine.expect("every rank takes its set once");
        let peers = lens.iter().enumerate().map(|(rank, bytes)| Some(mine.segment(rank).part(0, *bytes))).collect();
        Ok(WindowParts::mapped(nth.to_string(), peers))
    }

    fn windows(&self) -> Option<&WindowRegistry> {
        Some(&self.registry)
    }

    fn local_buffers(&self) -> Option<&LocalBuffers> {
        Some(&self.buffers)
    }

    fn sender<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol, window: Option<&Memory>) -> Peer<'t> {
        let wire = LoadStore::sender(k, &self.endpoint(peer).expect("every peer is reached"), protocol, window);
        let outbox = window.map_or_else(|| self.outbox(peer).clone(), |window| Memory::zeroed(window.bytes()));
        Peer::new(k, Outbox::new(wire, k.region("outbox", &[outbox])))
    }

    fn receiver<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol) -> Peer<'t> {
        // A receiver puts nothing.
        let wire = LoadStore::receiver(k, &self.endpoint(peer).expect("every peer is reached"), protocol);
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
