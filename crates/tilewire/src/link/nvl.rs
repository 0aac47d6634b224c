//! The transport of ranks on GPUs whose kernels load and store in each other's memory: several ranks on one device, or
//! on linked devices.
//!
//! ```text
//!  host     control segment of every rank: abort word, doorbell ──watcher──▶ abort word on the device (kernels poll)
//!  device   segment of every rank, cut as `layout` says: slots, counters, packets, staging; mapped by its peers
//! ```

use super::gpu_memory::{Sharing, own_memory, share};
use super::machine::MACHINE;
use super::window::{WindowCall, WindowParts};
use super::{Machine, Transport};
use crate::cuda::{
    AbortWord, BesideCaptures, Buffer, BusyWord, CudaError, Device, Gang, Launches, Seat, Stalled, Stopped, Stream,
    UnmetRequirement,
};
use crate::tensor::{Between, Memory};
use crate::transport::bootstrap::LocalBootstrap;
use crate::transport::desk::Desk;
use crate::transport::layout::{Geometry, Layout};
use crate::transport::meeting::Meeting;
use crate::transport::pairing::Names;
use crate::transport::proxy::Proxy;
use crate::transport::rendezvous::{Parameters, Shared, layout_of};
use crate::transport::sizing::Sizes;
use crate::transport::watch::Watch;
use crate::transport::{
    Abort, Cause, Crossing, Dealings, DeviceWait, Door, Doorbell, Found, LinkKind, LinkShape, Operations, Pairing,
    PeerEndpoint, Rank, SegmentOptions, SegmentSet, Status, Ticket, TransportError, Unmet, Verdict, World,
};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

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
            foreign_captures: false,
        }
    }
}

impl NvlOptions {
    /// The sizes in a world of `world_size` ranks.
    pub fn geometry(&self, world_size: usize) -> Geometry {
        let &NvlOptions { per_peer_bytes, max_blocks_per_peer, max_slots, copies, packet_bytes, .. } = self;
        let usual = SIZES.of_world(world_size);
        Geometry {
            per_peer_bytes: per_peer_bytes.unwrap_or(usual.per_peer_bytes),
            max_blocks_per_peer: max_blocks_per_peer.unwrap_or(usual.max_blocks_per_peer),
            max_slots: max_slots.unwrap_or(usual.max_slots),
            max_copies: copies,
            packet_bytes: packet_bytes.unwrap_or(usual.packet_bytes),
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
        let (mine, theirs) = (self.segments[self.rank().index()].as_ref()?, self.segments[peer.index()].as_ref()?);
        Some(PeerEndpoint::between(&self.layout, (self.rank(), mine), (peer, theirs)))
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
        call.agree(&self.desk, |world, bytes| share(world, None, &sharing, bytes))
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

/// Tells other ranks what this rank's kernels wait for, and detects waits that can never end.
struct StallWatch {
    rank: usize,
    status: Status,
    names: Names,
    proxy: Arc<OnceLock<Arc<Proxy>>>,
    /// The last two different marks, each with the probe that was read before it.
    seen: [(u64, u64); 2],
    /// The published wait. `looks` counts the looks since then: of a launch's several waits, each look may see another.
    told: Option<(Between, (u64, u64))>,
    looks: u32,
}

impl StallWatch {
    /// Time between two looks.
    const PERIOD: Duration = Duration::from_millis(20);

    fn new(rank: usize, status: Status, names: Names, proxy: Arc<OnceLock<Arc<Proxy>>>) -> StallWatch {
        StallWatch { rank, status, names, proxy, seen: [(0, 0); 2], told: None, looks: 0 }
    }

    /// Takes everything that has arrived by posts. Returns true if posts of this rank are on their way: they may end
    /// the wait of another rank, although this one waits.
    fn settle(&self) -> bool {
        self.proxy.get().is_some_and(|proxy| proxy.settle())
    }

    /// Looks before another wait of the same launch is published: long enough for two ranks to answer each other. A
    /// wait that continues changes `since`, so no wait stays published once it is over.
    const TURN: u32 = 15;

    fn goes_on(&mut self) {
        self.status.device_goes_on();
        (self.seen, self.told, self.looks) = ([(0, 0); 2], None, 0);
    }

    /// Tells all ranks that a kernel found another operation: the host may be waiting for another rank's kernel.
    fn tell_of(&self, by: &Stopped) {
        let Some(peer) = by.peer else { return };
        let there = self.names.of(Rank::new(peer), by.seen as u16);
        let there = there.unwrap_or_else(|| format!("its operation {}", by.seen));
        let (here, there) = ((self.rank, by.launch.clone()), (peer as usize, there));
        self.status.tell_all(&Verdict::OtherOperation { here, there });
    }

    /// Tells all ranks that a kernel required something that does not hold.
    fn tell_unmet(&self, by: &UnmetRequirement) {
        let span = by.span.map(|span| [span.rank, span.offset, span.bytes, span.size]);
        let (at, launch) = (by.at.to_string(), by.launch.clone());
        self.status.tell_all(&Verdict::Required(Box::new(Unmet { rank: self.rank, span, at, launch })));
    }

    fn look(&mut self, seat: &Seat) {
        let Seat { stream, launches, .. } = seat;
        // If the device is gone, nothing is known about it.
        if let Some(since) = self.status.host_waits_since()
            && stream.is_idle().unwrap_or(false)
            // What ended launches posted is theirs to give until it is delivered.
            && !self.settle()
        {
            self.status.device_is_idle(since);
        }
        let (host_waits, probe) = (stream.host_waits(), self.status.device_probe());
        // After the probe, and before the mark: the kernel's next poll finds what had arrived when the probe was read.
        let posts = self.settle();
        let stalled = launches.stalled().filter(|_| !posts);
        // Read after the mark: a wait that gives up reports first, and then takes its mark back.
        match launches.reported() {
            Some(CudaError::OtherOperation(by)) => return self.tell_of(&by),
            Some(CudaError::Required(by)) => return self.tell_unmet(&by),
            // The line stays until the abort words are set, since other ranks with the same deadline are looking for
            // the late rank.
            Some(CudaError::Timeout(_)) => return,
            _ => {}
        }
        // If it is the same before and after, the host waits for this launch.
        let host_waits = Some(host_waits).filter(|&number| number == stream.host_waits()).unwrap_or(0);
        match stalled {
            Some(stalled) => self.lasts(stalled, host_waits, probe),
            None => match stream.lacks().filter(|_| host_waits != 0) {
                Some(lacks) => self.waits_to_start(stream, lacks, host_waits, probe),
                None => self.goes_on(),
            },
        }
    }

    /// A launch may not start before a peer's launch arrives, and the host waits for it.
    fn waits_to_start(&mut self, stream: &Stream, (number, peer): (u64, u32), host_waits: u64, probe: u64) {
        (self.seen, self.told, self.looks) = ([(0, 0); 2], None, 0);
        // No running launch has this number: running launches are identified by addresses.
        let (peer, since) = (peer as usize, (0, number));
        let doing = "a launch that has not started";
        self.status.device_waits(&DeviceWait { peer, needs: None, has: &[], doing, since, host_waits }, probe);
        if let Some(Found::NobodyComes) = self.status.judge_device() {
            stream.start_without(number);
        }
    }

    /// A wait of a running launch is still going on.
    fn lasts(&mut self, stalled: Stalled, host_waits: u64, probe: u64) {
        let Stalled { at, has, name, mark, since } = stalled;
        self.looks += 1;
        match self.told {
            Some(told) if told == (at, since) => {}
            Some((_, same)) if same == since && self.looks < Self::TURN => return,
            _ => {
                self.goes_on();
                self.told = Some((at, since));
            }
        }
        let [last, before] = self.seen;
        // A mark is written after a poll that found nothing. So once it has changed twice, the second of these polls
        // came after the earlier mark was seen here, and after the probe that was read with it.
        let looked = if mark != last.0 && last.0 != before.0 { before.1 } else { 0 };
        if mark != last.0 {
            self.seen = [(mark, probe), last];
        }
        let peer = if at.from as usize == self.rank { at.to } else { at.from };
        let needs = Some(Crossing { from: at.from as usize, operation: at.operation });
        let has = dealings(self.rank, peer as usize, &has);
        let wait = DeviceWait { peer: peer as usize, needs, has: &has, doing: &name, since, host_waits };
        self.status.device_waits(&wait, looked);
        if let Some(Found::Forever(verdict)) = self.status.judge_device() {
            self.status.tell_all(&verdict);
        }
    }
}

/// What a launch of rank `me` that connects these pairs exchanges with each of its peers. The dealings with `first`
/// come first, since a line has room for only some.
fn dealings(me: usize, first: usize, has: &[Between]) -> Vec<Dealings> {
    let mut all = vec![Dealings { peer: first, sent: Operations::None, received: Operations::None }];
    for it in has {
        let sends = it.from as usize == me;
        let peer = if sends { it.to } else { it.from } as usize;
        let known = all.iter().position(|with| with.peer == peer).unwrap_or_else(|| {
            all.push(Dealings { peer, sent: Operations::None, received: Operations::None });
            all.len() - 1
        });
        let of = if sends { &mut all[known].sent } else { &mut all[known].received };
        *of = of.and(it.operation);
    }
    all
}

/// Passes this rank's abort word on to the device, where kernels poll it, and watches for waits that can never end.
struct Watcher {
    own: Abort,
    doorbell: Doorbell,
    seat: Seat,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    fn start(own: Abort, doorbell: Doorbell, seat: Seat, mut stalls: StallWatch) -> Result<Watcher, TransportError> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut watcher = Watcher { own, doorbell, seat, stop, thread: None };
        let (own, doorbell, seat) = (watcher.own.clone(), watcher.doorbell.clone(), watcher.seat.clone());
        let stop = watcher.stop.clone();
        let run = move || {
            // A capture of others forbids some calls to all threads, and would fail if one of them came from here.
            let _calls = BesideCaptures::now();
            // Relaxed: the words themselves are all the information.
            let over = || own.get().is_some() || stop.load(Ordering::Relaxed);
            while !doorbell.sleep(over, StallWatch::PERIOD) {
                stalls.look(&seat);
            }
            if let Some(cause) = own.get() {
                // If the device is gone, so are its kernels.
                _ = seat.give_up(cause.to_word());
            }
        };
        let thread = std::thread::Builder::new().name("tilewire-nvl".to_string()).spawn(run);
        let source = |source| crate::transport::SegmentError::System { call: "starting a thread", source };
        watcher.thread = Some(thread.map_err(source)?);
        Ok(watcher)
    }

    fn pass_on(&self) -> Result<(), CudaError> {
        self.own.get().map_or(Ok(()), |cause| self.seat.give_up(cause.to_word()))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.doorbell.ring();
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(from: u32, to: u32, operation: Option<u16>) -> Between {
        Between { from, to, operation }
    }

    #[test]
    fn a_launch_that_only_gives_credits_has_dealings_with_their_receiver() {
        // Rank 0 signals `recv.head` of rank 1, and waits for nothing from it.
        let none = Operations::None;
        let with = |peer, sent, received| Dealings { peer, sent, received };
        let found = dealings(0, 2, &[between(1, 0, None)]);
        assert_eq!(found, [with(2, none, none), with(1, none, Operations::Credits)]);
        // Data takes precedence over credits, in either order.
        for has in [[None, Some(7)], [Some(7), None]] {
            let has = has.map(|operation| between(1, 0, operation));
            assert_eq!(dealings(0, 1, &has), [with(1, none, Operations::One(7))]);
        }
        let has = [between(0, 1, Some(7)), between(0, 1, Some(8)), between(0, 1, None)];
        assert_eq!(dealings(0, 1, &has), [with(1, Operations::Several, none)]);
    }
}
