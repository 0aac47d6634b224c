//! The transport of ranks on GPUs whose kernels load and store in each other's memory: several ranks on one device, or
//! on linked devices.
//!
//! ```text
//!  host     control segment of every rank: abort word, doorbell ──watcher──▶ abort word on the device (kernels poll)
//!  device   segment of every rank, cut as `layout` says: slots, counters, packets, staging; mapped by its peers
//! ```

mod watcher;

use super::gpu_memory::{Sharing, own_memory, share};
use super::line_set::{LineSet, LineSets};
use super::machine::MACHINE;
use super::registered::WindowRegistry;
use super::window::{Registration, WindowCall, WindowParts};
use super::{Machine, Transport};
use crate::cuda::{AbortWord, Buffer, BusyWord, CudaError, Device, Gang, Launches, Seat, Stream};
use crate::tensor::Memory;
use crate::transport::bootstrap::LocalBootstrap;
use crate::transport::desk::Desk;
use crate::transport::layout::{Geometry, Layout};
use crate::transport::meeting::Meeting;
use crate::transport::proxy::Proxy;
use crate::transport::rendezvous::{Parameters, Shared, layout_of};
use crate::transport::sizing::Sizes;
use crate::transport::watch::Watch;
use crate::transport::{
    Cause, Door, LinkKind, LinkShape, LocalBuffers, Pairing, PeerEndpoint, Rank, SegmentOptions, SegmentSet, Ticket,
    TransportError, World,
};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use watcher::{StallWatch, Watcher};

/// The sizes of an [`NvlTransport`]. The same on all ranks.
///
/// Options that are `None` depend on the number of ranks. [`geometry`](NvlOptions::geometry) returns the values, for
/// which all device memory of a machine's ranks stays within [`DEFAULT_TOTAL`](crate::transport::DEFAULT_TOTAL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvlOptions {
    /// Staging bytes of each sender at each receiver. Default: 32 MiB for up to 4 ranks, 8 MiB for 8 ranks.
    pub per_peer_bytes: Option<usize>,
    /// Blocks that may talk to one peer in one launch; each has an equal part of the staging. Default: 32 for up to 4
    /// ranks, 8 for 8 ranks.
    pub max_blocks_per_peer: Option<usize>,
    /// Slots of a block: the largest depth of a pipeline. Default: 8.
    pub max_slots: Option<usize>,
    /// Copies of a role that take slots alternately, so that one copy's release overlaps the work of the others. The
    /// same in all launches.
    pub copies: usize,
    /// Packet bytes of each sender at each receiver; half of them carry data. `Some(0)` means no packets. Default: 32
    /// MiB for up to 3 ranks, 4 MiB for 8 ranks.
    pub packet_bytes: Option<usize>,
    /// Windows that have control lines of their own at the same time ([`Window`](super::Window)): more are refused.
    /// `Some(0)` means that all windows share the lines of the transport, and that there may be any number. Default: 8
    /// for up to 16 ranks, 4 for 32, 2 for more.
    pub window_sets: Option<usize>,
    /// Lets others capture launches of this rank, by [`run_on`](crate::collective::PreparedExchange::run_on) on a
    /// stream that is being captured. Its kernels then look for launches that run at the same time, which costs about 1
    /// µs each. Each rank chooses for itself. Default: false.
    pub foreign_captures: bool,
}

/// A block has 8 slots of 128 KiB, and packets for 8 messages of 64 KiB. Half of the packets are enough for up to 6
/// ranks that share a device, and for any number of devices: the more ranks share one, the fewer blocks each has for
/// 128 KiB. Four blocks copy about 200 GB/s.
const SIZES: Sizes = Sizes {
    blocks: 32,
    least_blocks: 4,
    staging: 1 << 20,
    least_staging: 16 << 10,
    packets: 1 << 20,
    enough_packets: 512 << 10,
    least_packets: 8 << 10,
    slots: 8,
    least_slots: 8,
    copies: 4,
};

impl Default for NvlOptions {
    /// All sizes by the number of ranks, and 4 copies.
    fn default() -> Self {
        NvlOptions {
            per_peer_bytes: None,
            max_blocks_per_peer: None,
            max_slots: None,
            copies: SIZES.copies,
            packet_bytes: None,
            window_sets: None,
            foreign_captures: false,
        }
    }
}

impl NvlOptions {
    /// The sizes in a world of `world_size` ranks.
    pub fn geometry(&self, world_size: usize) -> Geometry {
        let &NvlOptions { per_peer_bytes, max_blocks_per_peer, max_slots, copies, packet_bytes, window_sets, .. } =
            self;
        let usual = SIZES.of_world(world_size);
        Geometry {
            per_peer_bytes: per_peer_bytes.unwrap_or(usual.per_peer_bytes),
            max_blocks_per_peer: max_blocks_per_peer.unwrap_or(usual.max_blocks_per_peer),
            max_slots: max_slots.unwrap_or(usual.max_slots),
            max_copies: copies,
            packet_bytes: packet_bytes.unwrap_or(usual.packet_bytes),
            window_sets: window_sets.unwrap_or(usual.window_sets),
            ..usual
        }
    }

    fn busy_word(&self, device: &Arc<Device>) -> Result<Option<BusyWord>, CudaError> {
        self.foreign_captures.then(|| BusyWord::new(device)).transpose()
    }
}

/// Memory and signals between ranks on GPUs.
///
/// ```no_run
/// use tilewire::cuda::Device;
/// use tilewire::link::{NvlOptions, NvlTransport};
/// use tilewire::{World, sendrecv};
///
/// // Two virtual ranks: threads of one device, each with its own stream and memory.
/// World::threads(2).run(|world| {
///     let device = Device::open(0)?;
///     let link = NvlTransport::rendezvous(&world, &device, NvlOptions::default())?;
///     let (inp, out) = (device.tensor(&[1.0f32, 2.0, 3.0])?, device.zeros::<f32>(3)?);
///     let peer = world.next();
///     let mut swap = sendrecv(&link, &out, &inp, peer, peer).produce(|c| c.input.load(c.pos()) * 10.0).build()?;
///     swap.run()?; // returns immediately
///     swap.sync()?; // waits, and says how it ended
///     assert_eq!(out.to_vec(), [10.0, 20.0, 30.0]);
///     drop(swap);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
pub struct NvlTransport {
    desk: Desk,
    layout: Layout,
    sets: LineSets,
    windows: WindowRegistry,
    buffers: LocalBuffers,
    copies: u32,
    seat: Seat,
    /// The device memory of every rank, as this rank reaches it. `None` where it cannot.
    segments: Vec<Option<Memory>>,
    /// The device of every rank: its number in its process, and its name for all processes.
    ordinals: Vec<u32>,
    devices: Vec<String>,
    machines: Vec<Machine>,
    control: SegmentSet,
    door: Door,
    watch: Watch,
    watcher: Watcher,
    /// What carries posts of this rank's kernels to others, if anything does.
    proxy: Arc<OnceLock<Arc<Proxy>>>,
}

/// What a rank makes for itself: control segments and their watch, the device memory of all ranks, the seat of its
/// kernels.
type Made = (SegmentSet, Watch, Vec<Option<Memory>>, Seat);

/// Where the ranks run, and where their memory is.
struct Places {
    seat: Seat,
    segments: Vec<Option<Memory>>,
    ordinals: Vec<u32>,
    devices: Vec<String>,
    machines: Vec<Machine>,
}

/// The number of the next rendezvous of this process.
static SERIAL: AtomicU64 = AtomicU64::new(0);

impl NvlTransport {
    /// Makes a transport. Collective: every rank of the world calls it with the same options. If anything differs,
    /// including the library's version, every rank gets an error that names the ranks and the values.
    pub fn rendezvous(
        world: &World,
        device: &Arc<Device>,
        options: NvlOptions,
    ) -> Result<NvlTransport, TransportError> {
        let (world, deadline) = (Shared::of(world), world.deadline());
        let geometry = options.geometry(world.size());
        let (layout, objection) = match layout_of(geometry) {
            Ok(layout) => (Some(layout), None),
            Err(objection) => (None, Some(objection)),
        };
        // Relaxed: it only has to differ each time.
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let said = (Machine::of_device(device, 1).say(Parameters::new("nvl")))
            .with("per_peer_bytes", geometry.per_peer_bytes)
            .with("max_blocks_per_peer", geometry.max_blocks_per_peer)
            .with("max_slots", geometry.max_slots)
            .with("copies", geometry.max_copies)
            .with("packet_bytes", geometry.packet_bytes)
            .with("window_sets", geometry.window_sets)
            .with("ordinal", device.ordinal())
            .with("device", device.uuid())
            .with("serial", serial)
            .object(objection)
            .agree(&world, &[MACHINE, "ordinal", "device", "serial"], deadline)?;
        let machines = Machine::heard(&said)?;
        let layout = layout.expect("whoever has no layout objects");
        let last = |of: &Vec<String>, back: usize| of[of.len() - back].clone();
        let serial = last(&said[0], 1);
        let devices: Vec<String> = said.iter().map(|of| last(of, 2)).collect();
        let ordinals: Vec<u32> = said.iter().map(|of| last(of, 3).parse().unwrap_or(0)).collect();
        let made =
            Self::make(&world, device, &layout, &ordinals, &devices).and_then(|(control, watch, segments, seat)| {
                Ok((control, watch, segments, Seat { busy: options.busy_word(device)?, ..seat }))
            });
        let (control, watch, segments, seat) = world.all_have("nvl", made, deadline)?;
        let sharers = |device: &String| devices.iter().filter(|of| *of == device).count();
        let machines = machines.into_iter().zip(&devices).map(|(of, device)| of.shared_by(sharers(device))).collect();
        let places = Places { seat, segments, ordinals, devices, machines };
        Self::assemble(world, serial, layout, options.copies as u32, places, (control, watch))
    }

    fn make(
        world: &Shared,
        device: &Arc<Device>,
        layout: &Layout,
        ordinals: &[u32],
        devices: &[String],
    ) -> Result<Made, TransportError> {
        let mut control = world.segments("nvl", 0, SegmentOptions::default(), world.deadline())?;
        let sharing = Sharing { device, ordinals, devices, what: "nvl" };
        let segments = share(world, Some(&mut control), &sharing, layout.bytes())?;
        let watch = Watch::start(&mut control, world, "nvl")?;
        // The most ranks on one device. All ranks base choices on this number, and must choose the same.
        let sharers = |device: &String| devices.iter().filter(|of| *of == device).count() as u32;
        let sharers = devices.iter().map(sharers).max().unwrap_or(1);
        let shared = devices.iter().enumerate().any(|(k, of)| devices[..k].contains(of));
        // Only threads need this: processes have a context each, so a kernel running in one holds up no call in
        // another.
        let ranks =
            if shared { world.show("nvl/together", Arc::new(Gang::of_threads()), world.deadline())? } else { None };
        let stream = match ranks.as_ref().and_then(|ranks| ranks.first()) {
            Some(first) => Stream::together(device, first)?,
            None => Stream::new(device)?,
        };
        let seat = Seat { stream, abort: AbortWord::new(device)?, sharers, launches: Launches::default(), busy: None };
        Ok((control, watch, segments, seat))
    }

    /// Transports of several ranks on one device, all played by one thread. Nothing blocks: launches are asynchronous.
    ///
    /// ```no_run
    /// use tilewire::cuda::Device;
    /// use tilewire::link::{NvlOptions, NvlTransport};
    /// use tilewire::{Rank, recv, send};
    ///
    /// let device = Device::open(0)?;
    /// let ranks = NvlTransport::virtual_ranks(&device, 2, NvlOptions::default())?;
    /// let (x, y) = (device.tensor(&[1.0f32, 2.0])?, device.zeros::<f32>(2)?);
    /// let mut give = send(&ranks[0], &x, Rank::new(1)).build()?;
    /// let mut take = recv(&ranks[1], &y, Rank::new(0)).build()?;
    /// give.run()?;
    /// take.run()?;
    /// take.sync()?;
    /// assert_eq!(y.to_vec(), [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn virtual_ranks(
        device: &Arc<Device>,
        count: usize,
        options: NvlOptions,
    ) -> Result<Vec<NvlTransport>, TransportError> {
        let layout = layout_of(options.geometry(count))?;
        let buffer = |_| Ok(Arc::new(Buffer::shareable(device, layout.bytes(), &[])?));
        let buffers = (0..count).map(buffer).collect::<Result<Vec<_>, TransportError>>()?;
        let meeting = Arc::new(Meeting::default());
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed).to_string();
        let controls = SegmentSet::threads(count, 0)?;
        let together = Gang::of_one_thread();
        let ranks = LocalBootstrap::world(count).into_iter().zip(controls);
        let transport = |(bootstrap, mut control): (LocalBootstrap, SegmentSet)| {
            let world = Shared::alone(Arc::new(bootstrap), meeting.clone(), Some(Duration::from_secs(30)));
            let watch = Watch::start(&mut control, &world, "nvl")?;
            let stream = Stream::together(device, &together)?;
            let (abort, launches) = (AbortWord::new(device)?, Launches::default());
            let seat = Seat { stream, abort, sharers: count as u32, launches, busy: options.busy_word(device)? };
            let segments = buffers.iter().map(|buffer| Some(buffer.memory())).collect();
            let (ordinals, devices) = (vec![device.ordinal(); count], vec![device.uuid(); count]);
            let machines = vec![Machine::of_device(device, count); count];
            let places = Places { seat, segments, ordinals, devices, machines };
            let (serial, copies) = (serial.clone(), options.copies as u32);
            Self::assemble(world, serial, layout.clone(), copies, places, (control, watch))
        };
        ranks.map(transport).collect()
    }

    fn assemble(
        world: Shared,
        serial: String,
        layout: Layout,
        copies: u32,
        Places { seat, segments, ordinals, devices, machines }: Places,
        (control, watch): (SegmentSet, Watch),
    ) -> Result<NvlTransport, TransportError> {
        let own = control.rank();
        let (abort, doorbell) = (control.abort(own), control.doorbell(own));
        let departures = watch.departures(&world);
        let desk = Desk::new(world, format!("nvl/{serial}"), &control, departures);
        let door = desk.door(&control);
        let proxy = Arc::default();
        let stalls = StallWatch::new(own, desk.status.clone(), desk.names().clone(), Arc::clone(&proxy));
        let watcher = Watcher::start(abort, doorbell, seat.clone(), stalls)?;
        Ok(NvlTransport {
            desk,
            sets: LineSets::new(layout.geometry().window_sets),
            windows: WindowRegistry::default(),
            buffers: LocalBuffers::default(),
            layout,
            copies,
            seat,
            segments,
            ordinals,
            devices,
            machines,
            control,
            door,
            watch,
            watcher,
            proxy,
        })
    }

    /// Posts of this rank's kernels are on their way until this proxy has delivered them: no wait is judged before.
    pub(super) fn post_by(&self, proxy: &Arc<Proxy>) {
        _ = self.proxy.set(proxy.clone());
    }

    /// The layout of every rank's segment.
    #[cfg(feature = "fabric")]
    pub(super) fn shared(&self) -> &Shared {
        &self.desk.world
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Abort words and doorbells.
    pub(super) fn control(&self) -> &SegmentSet {
        &self.control
    }

    /// This rank's segment.
    pub(super) fn own_segment(&self) -> &Memory {
        self.segments[self.rank().index()].as_ref().expect("a rank reaches its own memory")
    }

    /// Ends the transport once all ranks have called this. Collective. After `Ok`, no peer will touch this rank's
    /// segment again.
    pub fn close(self) -> Result<(), TransportError> {
        self.seat.stream.sync()?;
        self.desk.closed(&self.watch)?;
        let (own, deadline) = (self.control.rank(), self.desk.world.deadline());
        self.watch.goodbye(own, deadline)
    }

    /// `Err` with the cause if the transport is broken.
    pub fn check(&self) -> Result<(), TransportError> {
        self.desk.check()
    }

    /// Ends the waits of all ranks on this transport, and makes every later call on any of them fail with the cause. If
    /// there are several causes, the first one counts.
    pub fn mark_broken(&self, cause: Cause) {
        self.control.abort_all(self.desk.first(cause));
        // Immediately for this rank, whose watcher may be asleep.
        _ = self.watcher.pass_on();
    }

    /// Where kernels of this rank run.
    pub fn seat(&self) -> &Seat {
        &self.seat
    }

    /// The device of this rank.
    pub fn device(&self) -> &Arc<Device> {
        self.seat.stream.device()
    }

    /// The address at which kernels of this rank load and store in a peer's segment. 0 if they cannot.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn nvlink_address(&self, peer: Rank) -> u64 {
        self.segments[peer.index()].as_ref().map_or(0, |memory| memory.start().addr().get() as u64)
    }

    pub(super) fn not_capturing(&self, what: &'static str) -> Result<(), TransportError> {
        if self.seat.stream.is_capturing()? { Err(CudaError::Capturing { what }.into()) } else { Ok(()) }
    }

    /// The sets of control lines that windows use.
    pub(super) fn sets(&self) -> &LineSets {
        &self.sets
    }

    /// Checks that memory can be allocated now.
    pub(super) fn may_allocate(&self) -> Result<(), TransportError> {
        self.not_capturing("allocating a window")?;
        self.check()
    }
}

impl Transport for NvlTransport {
    fn rank(&self) -> Rank {
        self.desk.world.rank()
    }

    fn world_size(&self) -> usize {
        self.desk.world.size()
    }

    fn link(&self, peer: Rank) -> LinkShape {
        let same = self.devices[peer.index()] == self.devices[self.rank().index()];
        let kind = if same { LinkKind::SameDevice } else { LinkKind::Nvlink };
        LinkShape::of(self.layout.geometry(), kind, self.copies)
    }

    fn endpoint(&self, peer: Rank) -> Option<PeerEndpoint> {
        self.endpoint_of(peer, &LineSet::default())
    }

    fn endpoint_of(&self, peer: Rank, lines: &LineSet) -> Option<PeerEndpoint> {
        let (mine, theirs) = (self.own_segment(), self.segments[peer.index()].as_ref()?);
        let lines = lines.on(&self.sets);
        let of_set = || PeerEndpoint::between_in(&self.layout, lines.number(), (self.rank(), mine), (peer, theirs));
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

    fn seat(&self) -> Option<&Seat> {
        Some(&self.seat)
    }

    fn ticket(&self, pairing: Pairing, peer: Rank) -> Ticket {
        self.desk.ticket(pairing, peer)
    }

    fn tell(&self, ticket: &Ticket, card: &[u8]) -> Result<(), TransportError> {
        self.not_capturing("telling a peer of a new transfer")?;
        self.desk.tell(ticket, card)
    }

    fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError> {
        self.not_capturing("comparing a transfer with its peer, at its first launch,")?;
        self.desk.hear(ticket, deadline)
    }

    fn describe(&self, peer: Rank, operation: u16) -> Option<String> {
        self.desk.describe(peer, operation)
    }

    fn memory(&self, bytes: usize) -> Result<Memory, TransportError> {
        self.not_capturing("allocating memory")?;
        let threads = self.desk.world.are_threads();
        let buffer = own_memory(self.device(), &self.ordinals, threads, bytes)?;
        Ok(buffer.memory())
    }

    fn window_memory(&self, call: &WindowCall) -> Result<WindowParts, TransportError> {
        self.may_allocate()?;
        let (device, ordinals, devices) = (self.device(), &self.ordinals, &self.devices);
        let sharing = Sharing { device, ordinals, devices, what: "window" };
        call.agree(&self.desk, (self, &self.sets), |world, bytes| share(world, None, &sharing, bytes))
    }

    fn register_window(&self, call: &WindowCall, of: Registration) -> Result<Option<WindowParts>, TransportError> {
        self.not_capturing("registering a window")?;
        self.check()?;
        let own = self.device().ordinal();
        let why = if !self.desk.world.are_threads() {
            Some("the ranks are processes on GPUs, to which no tensor is passed yet: use Window::allocate")
        } else if !of.memory.reachable_from().is_device(own) {
            Some("this rank's device does not reach it: give a tensor of the device, or of link.zeros()")
        } else {
            None
        };
        let objection = of.objection.or(why.map(|why| TransportError::NotRegistrable { why }));
        call.agree_over(&self.desk, (self, &self.sets), Registration { objection, ..of }, |world, memory| {
            let all = world.show("window", Arc::new(memory.clone()), world.deadline())?;
            let reach = |memory: &Arc<Memory>| memory.reachable_from().is_device(own).then(|| (**memory).clone());
            Ok(all.unwrap_or_default().iter().map(reach).collect())
        })
    }

    fn windows(&self) -> Option<&WindowRegistry> {
        Some(&self.windows)
    }

    fn local_buffers(&self) -> Option<&LocalBuffers> {
        Some(&self.buffers)
    }

    fn close(self: Box<Self>) -> Result<(), TransportError> {
        NvlTransport::close(*self)
    }
}

impl fmt::Debug for NvlTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NvlTransport(rank {} of {} on {:?})", self.rank(), self.world_size(), self.device())
    }
}
