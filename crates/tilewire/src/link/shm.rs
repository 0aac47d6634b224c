//! The transport of ranks on one machine: every rank maps every rank's segment, which is cut as
//! [`layout`](crate::transport::layout) says.

use super::line_set::{LineSet, LineSets};
use super::machine::MACHINE;
use super::registered::WindowRegistry;
use super::window::{Registration, WindowCall, WindowParts};
use super::{Machine, Transport};
use crate::tensor::{Memory, Purpose};
use crate::transport::LocalBuffers;
use crate::transport::desk::Desk;
use crate::transport::layout::{Geometry, Layout};
use crate::transport::offer::Accepted;
use crate::transport::rendezvous::{Parameters, Shared, layout_of};
use crate::transport::sizing::Sizes;
use crate::transport::watch::Watch;
use crate::transport::{
    Abort, Cause, Departures, Domains, Door, Doorbell, LinkKind, LinkShape, Offer, Pairing, PeerEndpoint, Rank,
    SegmentOptions, SegmentSet, Signals, Status, Ticket, TransportError, World,
};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The sizes of a [`ShmTransport`]. The same on all ranks.
///
/// Options that are `None` depend on the number of ranks. [`geometry`](ShmOptions::geometry) returns the values, for
/// which all segments of a machine stay within [`DEFAULT_TOTAL`](crate::transport::DEFAULT_TOTAL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmOptions {
    /// Staging bytes of each sender at each receiver. Default: 16 MiB for up to 7 ranks, 128 KiB for 64 ranks.
    pub per_peer_bytes: Option<usize>,
    /// Blocks that may talk to one peer in one launch; each has an equal part of the staging. Default: 8 for up to 7
    /// ranks, 2 from 12 ranks on.
    pub max_blocks_per_peer: Option<usize>,
    /// Slots of a block: the largest depth of a pipeline. Default: 64, or fewer with very many ranks.
    pub max_slots: Option<usize>,
    /// Copies a role may have; the CPU engine uses 1.
    pub max_copies: usize,
    /// Packet bytes of each sender at each receiver; half of them carry data. `Some(0)` means no packets. Default: 256
    /// KiB for up to 7 ranks, 64 KiB for 64 ranks.
    pub packet_bytes: Option<usize>,
    /// Windows that have control lines of their own at the same time ([`Window`](super::Window)): more are refused.
    /// `Some(0)` means that all windows share the lines of the transport, and that there may be any number. Default: 8
    /// for up to 16 ranks, 4 for 32, 2 for more.
    pub window_sets: Option<usize>,
    /// True to enter all pages into the page tables immediately rather than at first touch. May differ between ranks;
    /// if ranks are threads, rank 0's value counts.
    pub populate: bool,
}

/// A block has 2 MiB of staging (32 slots of 64 KiB, or 64 of 32 KiB) and 32 KiB of packets (8 messages of 2 KiB). One
/// thread runs all blocks, so fewer of them cost nothing, but a two-phase all-reduce needs two. Slots of less than 4
/// KiB are not worth their signals, and packets are chosen for up to 512 bytes.
const SIZES: Sizes = Sizes {
    blocks: 8,
    least_blocks: 2,
    staging: 2 << 20,
    least_staging: 32 << 10,
    packets: 32 << 10,
    enough_packets: 32 << 10,
    least_packets: 8 << 10,
    slots: 64,
    least_slots: 8,
    copies: 1,
};

impl Default for ShmOptions {
    /// All sizes by the number of ranks. If ranks are threads, pages that are never used take no memory.
    fn default() -> Self {
        ShmOptions {
            per_peer_bytes: None,
            max_blocks_per_peer: None,
            max_slots: None,
            max_copies: 1,
            packet_bytes: None,
            window_sets: None,
            populate: false,
        }
    }
}

impl ShmOptions {
    /// The sizes in a world of `world_size` ranks.
    ///
    /// ```
    /// use tilewire::link::ShmOptions;
    /// let of = |ranks| ShmOptions::default().geometry(ranks);
    /// assert_eq!((of(2).per_peer_bytes, of(64).per_peer_bytes), (16 << 20, 128 << 10));
    /// let said = ShmOptions { per_peer_bytes: Some(1 << 20), ..Default::default() };
    /// assert_eq!(said.geometry(64).per_peer_bytes, 1 << 20);
    /// ```
    pub fn geometry(&self, world_size: usize) -> Geometry {
        let &ShmOptions {
            per_peer_bytes, max_blocks_per_peer, max_slots, max_copies, packet_bytes, window_sets, ..
        } = self;
        let usual = SIZES.of_world(world_size);
        Geometry {
            per_peer_bytes: per_peer_bytes.unwrap_or(usual.per_peer_bytes),
            max_blocks_per_peer: max_blocks_per_peer.unwrap_or(usual.max_blocks_per_peer),
            max_slots: max_slots.unwrap_or(usual.max_slots),
            max_copies,
            packet_bytes: packet_bytes.unwrap_or(usual.packet_bytes),
            window_sets: window_sets.unwrap_or(usual.window_sets),
            ..usual
        }
    }
}

/// Memory and signals between ranks that are threads or processes on one machine.
///
/// One collective call makes it, and the user holds it. Dropping it without [`close`](ShmTransport::close) is not an
/// error: a peer that still uses this rank's segment keeps it alive.
///
/// ```
/// use tilewire::World;
/// use tilewire::link::{ShmOptions, ShmTransport, Transport};
///
/// World::threads(2).run(|world| {
///     let options = ShmOptions { per_peer_bytes: Some(1 << 16), ..Default::default() };
///     let transport = ShmTransport::rendezvous(&world, options)?;
///     let peer = world.next();
///     let endpoint = transport.endpoint(peer).expect("ranks of one machine reach each other");
///     let there = endpoint.mapped().expect("by loads and stores");
///     assert_eq!((there.staging.bytes(), endpoint.here.staging.bytes()), (1 << 16, 1 << 16));
///     // Kernels bind `there.staging`, `there.signals.tail` and so on; see `Block::region` and `Block::slots`.
///     Ok(transport.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
pub struct ShmTransport {
    desk: Desk,
    layout: Layout,
    machines: Vec<Machine>,
    /// `None` if the memory of some ranks is not mapped here.
    table: Option<PeerTable>,
    buffers: LocalBuffers,
    sets: LineSets,
    windows: WindowRegistry,
    accepted: Accepted,
    segments: SegmentSet,
    door: Door,
    watch: Watch,
}

/// The memories of all ranks, in rank order. Each is a bank of a kernel's parameter, so a kernel can choose the peer.
///
/// All banks of one kind have the same size. Slots lie [`PeerEndpoint::SLOT_STRIDE`] bytes apart and are numbered as
/// [`Layout::slot_index`] and [`Layout::block_index`] say. Staging and packets begin at a page boundary.
#[derive(Clone, Debug)]
pub struct PeerTable {
    /// All staging of each rank. A sender's part begins at [`PeerTable::staging_offset`].
    pub staging: Vec<Memory>,
    /// All packets of each rank.
    pub packets: Vec<Memory>,
    /// The slots of each rank.
    pub slots: Vec<Signals>,
    /// This rank's own counters, numbered as [`Layout::start_index`] says.
    pub starts: Memory,
}

/// Size of a huge page on most machines.
const HUGE_PAGE: usize = 2 << 20;

/// The number of the next rendezvous of this process.
static SERIAL: AtomicU64 = AtomicU64::new(0);

impl ShmTransport {
    /// Makes a transport. Collective: every rank of the world calls it with the same options. If anything differs,
    /// including the library's version, every rank gets an error that names the ranks and the values.
    pub fn rendezvous(world: &World, options: ShmOptions) -> Result<ShmTransport, TransportError> {
        ShmTransport::in_domains(world, options, Domains::One)
    }

    /// The part of a transport within domains. It spans the whole world: tickets, status lines and abort words of ranks
    /// in other domains are here too, but those ranks have no endpoints and no windows.
    pub(super) fn in_domains(
        world: &World,
        options: ShmOptions,
        domains: Domains,
    ) -> Result<ShmTransport, TransportError> {
        let (world, deadline) = (Shared::of(world), world.deadline());
        let geometry = options.geometry(world.size());
        let layout = layout_of(geometry);
        let (layout, objection) = match layout {
            Ok(layout) => (Some(layout), None),
            Err(objection) => (None, Some(objection)),
        };
        // Relaxed: it only has to differ each time.
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let said = (Machine::here(None).say(Parameters::new("shm")))
            .with("per_peer_bytes", geometry.per_peer_bytes)
            .with("max_blocks_per_peer", geometry.max_blocks_per_peer)
            .with("max_slots", geometry.max_slots)
            .with("max_copies", geometry.max_copies)
            .with("packet_bytes", geometry.packet_bytes)
            .with("window_sets", geometry.window_sets)
            .with("domains", &domains)
            .with("serial", serial)
            .object(objection)
            .agree(&world, &[MACHINE, "serial"], deadline)?;
        let machines = Machine::heard(&said)?;
        let layout = layout.expect("whoever has no layout objects");
        let serial = said[0].last().expect("the serial is the last value").clone();
        // If the parts are smaller, a huge page would hold those of several peers.
        let huge_pages = geometry.per_peer_bytes >= HUGE_PAGE;
        let pages = SegmentOptions { populate: options.populate, huge_pages, domains, ..SegmentOptions::default() };
        let name = format!("shm/{serial}");
        let made = world
            .segments("shm", layout.bytes(), pages, deadline)
            .and_then(|mut segments| Ok((Watch::start(&mut segments, &world, &name)?, segments)));
        let (watch, segments) = world.all_have("shm", made, deadline)?;
        let table = PeerTable::new(&layout, &segments);
        let departures = watch.departures(&world);
        let desk = Desk::new(world, name, &segments, departures);
        let (door, sets) = (desk.door(&segments), LineSets::new(layout.geometry().window_sets));
        let (buffers, windows) = (LocalBuffers::default(), WindowRegistry::default());
        let accepted = Accepted::default();
        Ok(ShmTransport { desk, layout, machines, table, buffers, sets, windows, accepted, segments, door, watch })
    }

    /// Ends the transport once all ranks have called this. Collective. After `Ok`, no peer will touch this rank's
    /// segment again.
    ///
    /// A broken transport is released immediately, with its cause as the error: there may be nobody left to wait for.
    pub fn close(self) -> Result<(), TransportError> {
        self.desk.closed(&self.watch)?;
        let deadline = self.desk.world.deadline();
        self.watch.goodbye(self.segments.rank(), deadline)
    }

    /// `Err` with the cause if the transport is broken.
    pub fn check(&self) -> Result<(), TransportError> {
        self.desk.check()
    }

    /// True if a rank died or marked the transport broken. Its counters are then undefined, and only a new rendezvous
    /// recovers.
    pub fn is_broken(&self) -> bool {
        self.broken().is_some()
    }

    /// Ends the waits of all ranks on this transport, and makes every later call on any of them fail with the cause. If
    /// there are several causes, the first one counts.
    pub fn mark_broken(&self, cause: Cause) {
        self.segments.abort_all(self.desk.first(cause));
        self.watch.fails();
    }

    /// The layout of every rank's segment.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The memories of all ranks.
    pub fn table(&self) -> &PeerTable {
        self.table.as_ref().expect("all ranks of this transport are mapped here")
    }

    /// Options of segments for the ranks that reach each other: they have found their domains before.
    fn in_own_domains(&self) -> SegmentOptions {
        let domains = match self.segments.domains() {
            [_] => Domains::One,
            several => Domains::Given(several.to_vec()),
        };
        SegmentOptions { domains, ..SegmentOptions::default() }
    }

    /// True if no other rank maps this rank's memory.
    fn is_alone(&self) -> bool {
        let me = self.rank().number();
        self.segments.domains().iter().any(|domain| **domain == [me])
    }

    /// The ranks, to meet again.
    pub(super) fn shared(&self) -> &Shared {
        &self.desk.world
    }

    /// The sets of control lines that windows use.
    pub(super) fn sets(&self) -> &LineSets {
        &self.sets
    }

    /// The underlying memory: abort words, doorbells and every rank's segment.
    pub fn segments(&self) -> &SegmentSet {
        &self.segments
    }

    /// What each rank is waiting for.
    pub fn status(&self) -> &Status {
        &self.desk.status
    }

    /// The ranks that have already let go of the transport. For ranks that are threads: those whose closure has ended.
    pub fn departures(&self) -> &Departures {
        &self.desk.departures
    }

    /// This rank's abort word, which its waits poll.
    pub fn abort(&self) -> Abort {
        self.desk.abort.clone()
    }

    /// The doorbell of a rank. Ring it after a signal to that rank; sleep on it if it is this rank's.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn doorbell(&self, rank: Rank) -> Doorbell {
        self.segments.doorbell(rank.index())
    }
}

impl Transport for ShmTransport {
    fn rank(&self) -> Rank {
        self.desk.world.rank()
    }

    fn world_size(&self) -> usize {
        self.desk.world.size()
    }

    fn link(&self, peer: Rank) -> LinkShape {
        let kind = if peer == self.rank() { LinkKind::SameDevice } else { LinkKind::Shm };
        LinkShape::of(self.layout.geometry(), kind, 1)
    }

    fn endpoint(&self, peer: Rank) -> Option<PeerEndpoint> {
        self.endpoint_of(peer, &LineSet::default())
    }

    fn endpoint_of(&self, peer: Rank, lines: &LineSet) -> Option<PeerEndpoint> {
        let theirs = self.segments.mapped(peer.index())?;
        let (me, mine) = (self.rank(), self.segments.segment(self.rank().index()));
        let lines = lines.on(&self.sets);
        let of_set = || PeerEndpoint::between_in(&self.layout, lines.number(), (me, &mine), (peer, &theirs));
        Some(lines.held_by(of_set()))
    }

    fn machines(&self) -> Vec<Machine> {
        self.machines.clone()
    }

    #[inline]
    fn door(&self) -> Option<&Door> {
        Some(&self.door)
    }

    fn fail(&self, cause: Cause) {
        self.mark_broken(cause);
    }

    fn ticket(&self, pairing: Pairing, peer: Rank) -> Ticket {
        self.desk.ticket(pairing, peer)
    }

    fn tell(&self, ticket: &Ticket, card: &[u8]) -> Result<(), TransportError> {
        self.desk.tell(ticket, card)
    }

    /// If the transport breaks, this looks once more, so that a card told before that is still heard. The look ends
    /// immediately if the store answers, and otherwise within about two seconds. If the store did not answer, no later
    /// call on the broken transport looks again.
    ///
    /// After [`NotMet`](TransportError::NotMet) the other ranks still see this one as waiting. Break the transport and
    /// then call [`Status::goes_on`], as the collectives do.
    fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError> {
        self.desk.hear(ticket, deadline)
    }

    fn describe(&self, peer: Rank, operation: u16) -> Option<String> {
        self.desk.describe(peer, operation)
    }

    fn memory(&self, bytes: usize) -> Result<Memory, TransportError> {
        Ok(if self.desk.world.are_threads() { Memory::try_zeroed(bytes)? } else { SegmentSet::exportable(bytes)? })
    }

    fn window_memory(&self, call: &WindowCall) -> Result<WindowParts, TransportError> {
        self.check()?;
        call.agree(&self.desk, (self, &self.sets), |world, bytes| {
            // These segments' sockets are closed here: the transport's own monitor notices when a peer dies.
            let options = SegmentOptions { keeps_file: true, ..self.in_own_domains() };
            let segments = world.segments("window", bytes, options, world.deadline())?;
            Ok((0..world.size()).map(|rank| segments.mapped(rank)).collect())
        })
    }

    fn register_window(&self, call: &WindowCall, of: Registration) -> Result<Option<WindowParts>, TransportError> {
        self.check()?;
        let why = if !of.memory.reachable_from().host {
            Some("it is a device's, and the ranks run on CPUs: give a tensor of link.zeros()")
        } else if self.desk.world.are_threads() || self.is_alone() || SegmentSet::is_exportable(&of.memory) {
            None
        } else {
            Some("other processes cannot map it: give a tensor of link.zeros(), or use Window::allocate")
        };
        let objection = of.objection.or(why.map(|why| TransportError::NotRegistrable { why }));
        call.agree_over(&self.desk, (self, &self.sets), Registration { objection, ..of }, |world, own| {
            if let Some(all) = world.show("window", std::sync::Arc::new(own.clone()), world.deadline())? {
                return Ok(all.iter().map(|memory| Some((**memory).clone())).collect());
            }
            let mut mapped = world.exported(own, self.in_own_domains())?;
            mapped[self.rank().index()] = Some(own.clone());
            Ok(mapped)
        })
    }

    fn windows(&self) -> Option<&WindowRegistry> {
        Some(&self.windows)
    }

    fn offer(&self, memory: &Memory) -> Option<Offer> {
        // The ranks of several domains do not all reach each other.
        if self.table.is_some() { Accepted::offer(&self.desk.world, memory) } else { None }
    }

    fn accept(&self, _peer: Rank, offer: &str) -> Option<Memory> {
        self.accepted.accept(&self.desk.world, offer)
    }

    fn local_buffers(&self) -> Option<&LocalBuffers> {
        Some(&self.buffers)
    }

    fn close(self: Box<Self>) -> Result<(), TransportError> {
        ShmTransport::close(*self)
    }
}

impl fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Geometry { per_peer_bytes, max_blocks_per_peer, .. } = self.layout.geometry();
        let (rank, size) = (self.rank(), self.world_size());
        write!(
            f,
            "ShmTransport(rank {rank} of {size}, {per_peer_bytes} bytes and {max_blocks_per_peer} blocks per peer)"
        )
    }
}

impl PeerTable {
    /// `None` if a rank's memory is not mapped here.
    fn new(layout: &Layout, segments: &SegmentSet) -> Option<PeerTable> {
        if segments.domains().len() > 1 {
            return None;
        }
        let area = |rank: usize, range: Range<usize>| segments.segment(rank).part(range.start, range.len());
        let ranks = || 0..segments.world_size();
        // As in endpoints, because one side may use the table while the other uses its endpoint.
        let all = |credits| Purpose::AllRanks { ranks: segments.world_size() as u32, credits };
        let data = |rank: usize, range: Range<usize>| area(rank, range).for_purpose(all(false));
        let credits = |rank: usize, range: Range<usize>| area(rank, range).for_purpose(all(true));
        let slots = |rank: usize| Signals {
            tail: data(rank, layout.tails()),
            head: credits(rank, layout.heads()),
            packet_head: credits(rank, layout.packet_heads()),
            ready: data(rank, layout.ready()),
            done: data(rank, layout.done()),
            // Only windows have them.
            signals: area(rank, 0..0),
        };
        Some(PeerTable {
            staging: ranks().map(|rank| area(rank, layout.staging())).collect(),
            packets: ranks().map(|rank| data(rank, layout.packets())).collect(),
            slots: ranks().map(slots).collect(),
            starts: area(segments.rank(), layout.starts()),
        })
    }

    /// Banks of one kind of slot: `table.slot_banks(|of_rank| &of_rank.tail)`.
    pub fn slot_banks(&self, kind: impl Fn(&Signals) -> &Memory) -> Vec<Memory> {
        self.slots.iter().map(|of_rank| kind(of_rank).clone()).collect()
    }

    /// The offset of a sender's bytes in every bank of `staging`.
    pub fn staging_offset(&self, sender: Rank) -> usize {
        sender.index() * (self.staging[0].bytes() / self.staging.len())
    }

    /// The offset of a sender's packets in every bank of `packets`.
    pub fn packet_offset(&self, sender: Rank) -> usize {
        sender.index() * (self.packets[0].bytes() / self.packets.len())
    }
}
