//! The transport of domains that are joined by posts. Within a domain, ranks map each other's memory.

mod domains;
mod far;
#[cfg(feature = "fabric")]
mod network;

use super::window::{WindowCall, WindowParts};
use super::{Machine, PostFrom, ShmOptions, ShmTransport, Transport};
#[cfg(feature = "cuda")]
use super::{NvlOptions, NvlTransport};
#[cfg(feature = "cuda")]
use crate::cuda::Device;
use crate::cuda::Seat;
use crate::tensor::{Memory, Queue};
#[cfg(feature = "fabric")]
use crate::transport::fabric::{Choice, FabricOptions as NetworkOptions};
use crate::transport::layout::{Geometry, LINE, Layout};
use crate::transport::proxy::{
    Carrier, Event, LoopCarrier, LoopEnd, MOST_LINES, PostedRegion, PostedSource, PostedTo, Proxy, ProxyError,
    ProxyParts, ProxyThread, Write,
};
use crate::transport::rendezvous::{Parameters, Shared};
use crate::transport::{
    Cause, Deadline, Domains, Door, LinkKind, LinkShape, Pairing, PeerEndpoint, PostedPeer, Rank, SegmentSet, Ticket,
    TransportError, World,
};
use domains::{are_apart, check, domain_of, found};
use far::{FarMemory, FarPeer, lines_of, sent_lines};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The sizes of a [`MeshTransport`], and its domains. They must be the same on all ranks.
///
/// `sizes` are the options of the transport within domains: [`ShmOptions`] on CPUs, `NvlOptions` on GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeshOptions<S = ShmOptions> {
    /// The ranks of each domain. Every rank must be in exactly one. With `None`, ranks that reach each other's memory
    /// are a domain. On CPUs these are the ranks of one machine, on GPUs those whose kernels reach each other's
    /// devices.
    pub domains: Option<Vec<Vec<u32>>>,
    /// The sizes of staging and slots, for near and far peers alike.
    pub sizes: S,
    /// The number of descriptors that the ring of posts holds. The default is 1024.
    pub ring: Option<usize>,
    /// Makes the carrier between ranks of a process delay and reorder writes, with random numbers from this seed. For
    /// tests.
    pub seed: Option<u64>,
    /// True if ranks on CPUs have a thread that carries posts while their own threads sleep. In a world of
    /// several domains, ranks on GPUs and ranks that are processes always have one. Ranks on CPUs that are threads of
    /// one process do not need it.
    pub thread: bool,
    /// The network between ranks that are processes.
    #[cfg(feature = "fabric")]
    pub network: NetworkOptions,
}

/// The most descriptors of a ring, which then has 64 MiB.
const MOST_DESCRIPTORS: usize = 1 << 20;
/// The default number of descriptors.
const DESCRIPTORS: usize = 1024;

impl<S: Default> MeshOptions<S> {
    /// Options with which every rank is a domain of its own, so that all peers are reached by posts.
    pub fn alone(ranks: usize) -> MeshOptions<S> {
        MeshOptions { domains: Some((0..ranks as u32).map(|rank| vec![rank]).collect()), ..MeshOptions::default() }
    }
}

/// The transport of ranks in domains. Peers of the same domain are *near*: kernels load and store in their memory. All
/// other peers are *far*: kernels fill an outbox and post it, and a proxy carries the bytes to the peer.
///
/// If ranks are threads of one process, the carrier between domains copies. They run on CPUs ([`rendezvous`]) or on
/// GPUs (`rendezvous_on`), where the memory that posts write and read is host memory that the device maps.
///
/// If ranks are processes, the carrier is a network that libfabric reaches, and the ranks of each host are a domain.
/// `Display` says which provider was chosen, and why. These ranks run on CPUs.
///
/// [`rendezvous`]: MeshTransport::rendezvous
///
/// ```
/// use tilewire::link::{MeshOptions, MeshTransport};
/// use tilewire::{Tensor, World, all_gather};
///
/// World::threads(4).run(|world| {
///     let domains = Some(vec![vec![0, 1], vec![2, 3]]);
///     let link = MeshTransport::rendezvous(&world, MeshOptions { domains, ..Default::default() })?;
///     let (inp, out) = (Tensor::from_slice(&[world.rank().number()]), Tensor::<u32>::zeros(4));
///     all_gather(&link, &out, &inp).run()?;
///     assert_eq!(out.to_vec(), [0, 1, 2, 3]);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
pub struct MeshTransport {
    /// The thread of the proxy. It is dropped first, because it uses the fields below.
    thread: Option<ProxyThread>,
    near: Near,
    domains: Vec<Vec<u32>>,
    /// The memory of posts to and from each rank; `None` for near ranks.
    far: Vec<Option<FarPeer>>,
    /// This rank's control lines that far peers move.
    lines: Memory,
    /// The queue that kernels bind to post.
    queue: Queue,
    door: Door,
    joint: Joint,
}

/// The connection between the domains.
enum Joint {
    /// Carriers that copy between ranks of one process: the end of each rank.
    Loop(Vec<Arc<LoopEnd>>),
    /// No connection, because the ranks are processes of one domain.
    None,
    #[cfg(feature = "fabric")]
    Network(network::Chosen),
}

/// The transport within domains. It spans the whole world: the tickets, status lines and abort words of far peers are
/// in it, too. Kernels use none of its memory to reach far peers.
enum Near {
    Shm(Box<ShmTransport>),
    #[cfg(feature = "cuda")]
    Nvl(Box<NvlTransport>),
}

impl Near {
    fn transport(&self) -> &dyn Transport {
        match self {
            Near::Shm(near) => &**near,
            #[cfg(feature = "cuda")]
            Near::Nvl(near) => &**near,
        }
    }

    fn layout(&self) -> &Layout {
        match self {
            Near::Shm(near) => near.layout(),
            #[cfg(feature = "cuda")]
            Near::Nvl(near) => near.layout(),
        }
    }

    /// The segments with abort words and doorbells.
    fn control(&self) -> &SegmentSet {
        match self {
            Near::Shm(near) => near.segments(),
            #[cfg(feature = "cuda")]
            Near::Nvl(near) => near.control(),
        }
    }

    fn close(self) -> Result<(), TransportError> {
        match self {
            Near::Shm(near) => near.close(),
            #[cfg(feature = "cuda")]
            Near::Nvl(near) => near.close(),
        }
    }
}

/// The parts of a transport that a rank makes before the domains are joined.
struct Half {
    near: Near,
    domains: Vec<Vec<u32>>,
    far: FarMemory,
}

impl MeshTransport {
    /// Makes a transport of ranks on CPUs. Collective: every rank of the world calls it, with the same options.
    pub fn rendezvous(world: &World, options: MeshOptions) -> Result<MeshTransport, TransportError> {
        let geometry = options.sizes.geometry(world.size());
        let (shared, capacity) = (Shared::of(world), options.ring.unwrap_or(DESCRIPTORS));
        let reaches = |me: &domains::Place, other: &domains::Place| Ok(me.is_on_host_of(other));
        // Processes find their domains when they share their segments.
        let finds = options.domains.is_none() && shared.are_threads();
        let mut domains = agreed(&shared, &options, "cpu", geometry, finds.then_some((Default::default(), reaches)))?;
        let near = match shared.are_threads() {
            true => ShmTransport::rendezvous(world, options.sizes)?,
            false => {
                let given = options.domains.clone().map_or(Domains::Found, Domains::Given);
                ShmTransport::in_domains(world, options.sizes, given)?
            }
        };
        if !shared.are_threads() {
            domains = near.segments().domains().to_vec();
        }
        let far = FarMemory::of_cpu(&near, |peer| are_apart(&domains, peer, world.rank()), capacity);
        Half { near: Near::Shm(Box::new(near)), domains, far }.meet(&shared, &options)
    }

    /// Makes a transport of ranks on GPUs. Collective, as [`rendezvous`](Self::rendezvous).
    ///
    /// Ranks that share a device run simultaneously on it, even if they are in different domains. Several devices are
    /// implemented, but have never been run.
    ///
    /// ```no_run
    /// use tilewire::cuda::Device;
    /// use tilewire::link::{MeshOptions, MeshTransport, Tensors};
    /// use tilewire::{World, all_reduce};
    ///
    /// World::threads(4).run(|world| {
    ///     let domains = Some(vec![vec![0, 1], vec![2, 3]]);
    ///     let options = MeshOptions { domains, ..Default::default() };
    ///     let link = MeshTransport::rendezvous_on(&world, &Device::open(0)?, options)?;
    ///     let (x, y) = (link.tensor(&[1.0f32; 1000])?, link.zeros::<f32>(1000)?);
    ///     let mut sum = all_reduce(&link, &y, &x).build()?;
    ///     sum.run()?;
    ///     sum.sync()?; // the launch has ended, and what it posted is delivered
    ///     assert_eq!(y.get(0), 4.0);
    ///     drop(sum);
    ///     Ok(link.close()?)
    /// })?;
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    #[cfg(feature = "cuda")]
    pub fn rendezvous_on(
        world: &World,
        device: &Arc<Device>,
        options: MeshOptions<NvlOptions>,
    ) -> Result<MeshTransport, TransportError> {
        let geometry = options.sizes.geometry(world.size());
        let (shared, capacity) = (Shared::of(world), options.ring.unwrap_or(DESCRIPTORS));
        let named = (device.ordinal().to_string(), device.uuid());
        let reaches = |_: &domains::Place, other: &domains::Place| reaches_place(device, other);
        let domains = agreed(&shared, &options, "gpu", geometry, Some((named, reaches)))?;
        let near = NvlTransport::rendezvous(world, device, options.sizes)?;
        let far = FarMemory::of_gpu(&near, |peer| are_apart(&domains, peer, world.rank()), capacity);
        let far = shared.all_have("mesh", far, world.deadline())?;
        Half { near: Near::Nvl(Box::new(near)), domains, far }.meet(&shared, &options)
    }

    /// Makes the transports of several ranks on one device, all played by one thread, as
    /// [`NvlTransport::virtual_ranks`](super::NvlTransport::virtual_ranks) does. Without `domains` they are one domain.
    #[cfg(feature = "cuda")]
    pub fn virtual_ranks(
        device: &Arc<Device>,
        count: usize,
        options: MeshOptions<NvlOptions>,
    ) -> Result<Vec<MeshTransport>, TransportError> {
        let domains = options.domains.clone().unwrap_or_else(|| vec![(0..count as u32).collect()]);
        check(&domains, count)?;
        objections(&options, options.sizes.geometry(count)).map_or(Ok(()), Err)?;
        let near = NvlTransport::virtual_ranks(device, count, options.sizes)?;
        let half = |near: NvlTransport| {
            let is_far = |peer| are_apart(&domains, peer, near.rank());
            let far = FarMemory::of_gpu(&near, is_far, options.ring.unwrap_or(DESCRIPTORS))?;
            Ok(Half { near: Near::Nvl(Box::new(near)), domains: domains.clone(), far })
        };
        let halves = near.into_iter().map(half).collect::<Result<Vec<Half>, TransportError>>()?;
        let ends: Vec<Arc<LoopEnd>> = halves.iter().map(|half| Arc::new(half.end())).collect();
        let whole = |half: Half| {
            let carrier = LoopCarrier::new(half.rank().index(), ends.clone(), options.seed);
            half.over(Box::new(carrier), Joint::Loop(ends.clone()), true)
        };
        halves.into_iter().map(whole).collect()
    }

    /// The ranks of each domain.
    pub fn domains(&self) -> &[Vec<u32>] {
        &self.domains
    }

    /// True if the peer is reached by posts.
    pub fn is_far(&self, peer: Rank) -> bool {
        self.far.get(peer.index()).is_some_and(Option::is_some)
    }

    fn proxy(&self) -> &Arc<Proxy> {
        self.door.proxy().expect("a mesh has a proxy")
    }

    /// Registers a window with this rank's proxy and carrier, under a number that is the same on all ranks. Collective.
    fn region(&self, world: &Shared, parts: &WindowParts) -> Result<PostedRegion, TransportError> {
        let (proxy, deadline) = (self.proxy(), world.deadline());
        // The new number is one that no rank uses, neither for a window of its own nor for posts to one.
        let mine = proxy.regions().map_err(TransportError::from);
        let list = |used: &[u16]| used.iter().map(u16::to_string).collect::<Vec<_>>().join(" ");
        let said = Parameters::new("window regions")
            .with("used", mine.as_deref().map(list).unwrap_or_default())
            .object(mine.err())
            .agree(world, &["used"], deadline)?;
        let used = said.iter().filter_map(|values| values.last()).flat_map(|used| used.split(' '));
        let used: Vec<u16> = used.filter_map(|number| number.parse().ok()).collect();
        let number = (1..=u16::MAX).find(|number| !used.contains(number)).ok_or(TransportError::TooManyWindows);
        let far =
            |(rank, memory): (Rank, &Option<Memory>)| memory.as_ref().filter(|_| self.is_far(rank)).map(Memory::bytes);
        let bytes = Rank::all(self.world_size()).zip(&parts.peers).map(far).collect();
        let own = parts.peers[self.rank().index()].as_ref().expect("a rank reaches itself");
        let region = number.and_then(|number| Ok(PostedRegion::register(proxy, &self.queue, number, own, bytes)?));
        // This is also a barrier: no rank posts to a peer that does not have the region yet.
        let region = world.all_have("window regions", region, deadline)?;
        let place = region.place()?;
        // All carriers of a world are of one kind, so either all need places or none does.
        if !place.is_empty() {
            let hex = place.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let said = Parameters::new("window places").with("place", hex).agree(world, &[], deadline)?;
            let byte = |hex: &str, at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
            let bytes = |hex: &String| (0..hex.len()).step_by(2).map(|at| byte(hex, at)).collect::<Option<Vec<u8>>>();
            // A malformed place becomes empty here, and the carrier refuses it.
            let places: Vec<Vec<u8>> =
                said.iter().map(|said| said.last().and_then(bytes).unwrap_or_default()).collect();
            region.reach(&places)?;
        }
        Ok(region)
    }

    /// The number of bytes that have arrived at this rank by posts. Over a network, the number of bytes that this rank
    /// has sent.
    pub fn carried_bytes(&self) -> u64 {
        match &self.joint {
            Joint::Loop(ends) => ends[self.rank().index()].bytes(),
            Joint::None => 0,
            #[cfg(feature = "fabric")]
            Joint::Network(chosen) => chosen.bytes(),
        }
    }

    /// The network between domains, if there is one.
    #[cfg(feature = "fabric")]
    pub fn network(&self) -> Option<&Choice> {
        match &self.joint {
            Joint::Network(chosen) => Some(chosen.choice()),
            _ => None,
        }
    }

    /// Closes the transport, when all ranks have called this. Collective, as [`ShmTransport::close`].
    pub fn close(self) -> Result<(), TransportError> {
        let MeshTransport { thread, near, door, .. } = self;
        if let (Some(seat), Some(proxy), None) = (near.transport().seat(), door.proxy(), door.broken()) {
            // Waits for launches that nobody waited for, and for replays.
            #[cfg(feature = "cuda")]
            seat.stream.sync()?;
            #[cfg(not(feature = "cuda"))]
            let _ = seat;
            proxy.landed();
            proxy.drain(door.deadline().map_or(Deadline::never(), Deadline::after))?;
        }
        // The thread runs until all ranks have closed.
        let closed = near.close();
        drop(thread);
        closed
    }
}

#[cfg(test)]
impl MeshTransport {
    /// Makes a transport of ranks of one process, each alone in its domain. `wrap` replaces the usual carriers.
    /// Collective.
    pub(crate) fn over_carriers(
        world: &World,
        sizes: ShmOptions,
        wrap: impl FnOnce(LoopCarrier) -> Box<dyn Carrier>,
    ) -> Result<MeshTransport, TransportError> {
        let options = MeshOptions { sizes, ..MeshOptions::alone(world.size()) };
        let (near, domains) = (ShmTransport::rendezvous(world, sizes)?, options.domains.unwrap_or_default());
        let far = FarMemory::of_cpu(&near, |peer| peer != world.rank(), DESCRIPTORS);
        let half = Half { near: Near::Shm(Box::new(near)), domains, far };
        let ends = Shared::of(world).show("mesh", Arc::new(half.end()), world.deadline())?.expect("ranks are threads");
        let carrier = wrap(LoopCarrier::new(world.rank().index(), ends.clone(), None));
        half.over(carrier, Joint::Loop(ends), false)
    }
}

impl Half {
    fn rank(&self) -> Rank {
        self.near.transport().rank()
    }

    fn end(&self) -> LoopEnd {
        LoopEnd::new(self.far.targets(), self.far.bell.clone())
    }

    /// Joins the domains. Collective.
    fn meet<S>(self, world: &Shared, options: &MeshOptions<S>) -> Result<MeshTransport, TransportError> {
        if !world.are_threads() {
            if self.domains.len() == 1 {
                return self.over(Box::new(Nowhere), Joint::None, false);
            }
            #[cfg(feature = "fabric")]
            return network::join(self, world, &options.network);
            #[cfg(not(feature = "fabric"))]
            return Err(TransportError::NoNetwork);
        }
        let ends = world.show("mesh", Arc::new(self.end()), world.deadline())?.expect("ranks are threads");
        let carrier = LoopCarrier::new(self.rank().index(), ends.clone(), options.seed);
        self.over(Box::new(carrier), Joint::Loop(ends), options.thread)
    }

    /// Makes the transport over a carrier. `thread` gives the proxy a thread even if the ranks are on CPUs.
    fn over(self, carrier: Box<dyn Carrier>, joint: Joint, thread: bool) -> Result<MeshTransport, TransportError> {
        let (me, Half { near, domains, far }) = (self.rank(), self);
        let (layout, control, ranks) = (near.layout(), near.control(), near.transport().world_size());
        let is_far = |peer: Rank| far.peers[peer.index()].is_some();
        let (queue, sources, segment) = (far.ring.queue(0), far.outboxes(), far.lines.clone());
        let to = |peer: Rank| {
            let regions = vec![Some(layout.geometry().per_peer_bytes as u64)];
            is_far(peer).then(|| PostedTo { regions, lines: lines_of(layout, me) })
        };
        let proxy = Proxy::new(ProxyParts {
            rank: me.index(),
            carrier,
            peers: Rank::all(ranks).map(to).collect(),
            sources,
            segment,
            inbound: Rank::all(ranks).filter(|&peer| is_far(peer)).flat_map(|peer| lines_of(layout, peer)).collect(),
            flushed: vec![sent_lines(layout)],
            doorbell: far.bell.clone(),
            aborts: control.aborts(),
            ring: far.ring,
        });
        let door = near.transport().door().expect("both have a door").clone();
        let departures = door.departures().filter(|_| !matches!(joint, Joint::Loop(_))).cloned();
        let proxy = Arc::new(match departures {
            Some(departures) => proxy.with_departures(departures),
            None => proxy,
        });
        let (on_gpu, has_far) = (near.transport().seat().is_some(), far.peers.iter().any(Option::is_some));
        #[cfg(feature = "cuda")]
        if let Near::Nvl(near) = &near {
            near.post_by(&proxy);
        }
        let thread = match has_far && (thread || on_gpu) {
            // On a CPU, waiting threads sleep on the rank's doorbell. The proxy's thread must not sleep there, because
            // each signal of a near peer would wake it.
            true if on_gpu => Some(ProxyThread::start(&proxy, far.bell)?),
            // Arrivals from a network ring no bell, so the thread polls.
            true => Some(ProxyThread::start_alone(&proxy, !matches!(joint, Joint::Loop(_)))?),
            false => None,
        };
        let door = door.with_proxy(proxy);
        Ok(MeshTransport { thread, near, domains, far: far.peers, lines: far.lines, queue, door, joint })
    }
}

/// The carrier of ranks that have no far peers.
struct Nowhere;

impl Carrier for Nowhere {
    fn write(&mut self, write: &Write<'_>) -> Result<bool, ProxyError> {
        Err(ProxyError::Peer { peer: write.peer })
    }

    fn open(&mut self, _: u16, _: &Memory, _: &[usize]) -> Result<(), ProxyError> {
        Ok(())
    }

    fn close(&mut self, _: u16) {}

    fn reads(&self, _: &Memory) -> bool {
        false
    }

    fn poll(&mut self, _: &mut Vec<Event>) -> Result<(), ProxyError> {
        Ok(())
    }
}

/// True if kernels of a device reach the memory of a rank at this place.
#[cfg(feature = "cuda")]
fn reaches_place(device: &Arc<Device>, other: &domains::Place) -> Result<bool, TransportError> {
    if other.device == device.uuid() {
        return Ok(true);
    }
    // This path, for several devices of one process, has never been run.
    let ordinal = other.ordinal.parse().ok().filter(|_| other.is_in_this_process());
    let peer = ordinal.map(Device::open).transpose()?;
    Ok(peer.map(|peer| device.reaches(&peer)).transpose()?.unwrap_or(false))
}

/// Agrees on the options, and on the domains if they are given or must be found. `finds` has the number and name of
/// this rank's device, and a closure that says whether this rank's kernels reach another rank's memory. Collective.
fn agreed<S: fmt::Debug>(
    world: &Shared,
    options: &MeshOptions<S>,
    engine: &'static str,
    geometry: Geometry,
    finds: Option<((String, String), impl Fn(&domains::Place, &domains::Place) -> Result<bool, TransportError>)>,
) -> Result<Vec<Vec<u32>>, TransportError> {
    let ranks = world.size();
    let objection = (options.domains.as_ref().and_then(|given| check(given, ranks).err()))
        .or_else(|| (!world.are_threads() && engine == "gpu").then(not_threads))
        .or_else(|| objections(options, geometry));
    Parameters::new("mesh")
        .with("engine", engine)
        .with("domains", format!("{:?}", options.domains))
        .with("ring", format!("{:?}", options.ring))
        .with("seed", format!("{:?}", options.seed))
        .object(objection)
        .agree(world, &[], world.deadline())?;
    match (&options.domains, finds) {
        (Some(given), _) => Ok(given.clone()),
        (None, Some((device, reaches))) => found(world, device, reaches),
        (None, None) => Ok(Vec::new()),
    }
}

fn objections<S>(options: &MeshOptions<S>, geometry: Geometry) -> Option<TransportError> {
    too_many_lines(geometry).or_else(|| options.ring.and_then(bad_ring))
}

fn not_threads() -> TransportError {
    let what = "a mesh of GPU ranks works only among threads of one process: use World::threads".to_string();
    TransportError::Peer { rank: Rank::new(0), what }
}

fn bad_ring(ring: usize) -> Option<TransportError> {
    let expected = format!("1 to {MOST_DESCRIPTORS} descriptors");
    let is_good = (1..=MOST_DESCRIPTORS).contains(&ring);
    (!is_good).then_some(TransportError::BadOption { option: "ring", value: ring, expected })
}

/// The error for a geometry with more control lines than a notice can name in its 20 bits.
fn too_many_lines(geometry: Geometry) -> Option<TransportError> {
    let layout = Layout::new(geometry)?;
    let lines = layout.lines().len() / LINE;
    (lines > MOST_LINES).then(|| TransportError::BadOption {
        option: "max_slots",
        value: geometry.max_slots,
        expected: format!(
            "so small (or max_blocks_per_peer so small) that a rank has at most {MOST_LINES} control lines; it has {lines}"
        ),
    })
}

impl Transport for MeshTransport {
    fn rank(&self) -> Rank {
        self.near.transport().rank()
    }

    fn world_size(&self) -> usize {
        self.near.transport().world_size()
    }

    fn link(&self, peer: Rank) -> LinkShape {
        let shape = self.near.transport().link(peer);
        match self.is_far(peer) {
            true => LinkShape { kind: LinkKind::Fabric, packet_bytes: 0, ..shape },
            false => shape,
        }
    }

    fn endpoint(&self, peer: Rank) -> Option<PeerEndpoint> {
        let Some(far) = &self.far[peer.index()] else { return self.near.transport().endpoint(peer) };
        let (layout, me) = (self.near.layout(), self.rank());
        let posted = PostedPeer::of(layout, (me, &self.lines), peer, self.queue.clone(), far.outbox.clone());
        Some(PeerEndpoint::posted_in(layout, me, far.here(&self.lines), posted))
    }

    fn machines(&self) -> Vec<Machine> {
        self.near.transport().machines()
    }

    fn domain(&self, rank: Rank) -> Option<usize> {
        domain_of(&self.domains, rank)
    }

    #[inline]
    fn door(&self) -> Option<&Door> {
        Some(&self.door)
    }

    fn fail(&self, cause: Cause) {
        self.near.transport().fail(cause);
    }

    fn seat(&self) -> Option<&Seat> {
        self.near.transport().seat()
    }

    fn ticket(&self, pairing: Pairing, peer: Rank) -> Ticket {
        self.near.transport().ticket(pairing, peer)
    }

    fn tell(&self, ticket: &Ticket, card: &[u8]) -> Result<(), TransportError> {
        self.near.transport().tell(ticket, card)
    }

    fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError> {
        self.near.transport().hear(ticket, deadline)
    }

    fn describe(&self, peer: Rank, operation: u16) -> Option<String> {
        self.near.transport().describe(peer, operation)
    }

    fn is_dense(&self) -> bool {
        self.far.iter().any(Option::is_some)
    }

    fn memory(&self, bytes: usize) -> Result<Memory, TransportError> {
        self.near.transport().memory(bytes)
    }

    fn window_memory(&self, call: &WindowCall) -> Result<WindowParts, TransportError> {
        let parts = self.near.transport().window_memory(call)?;
        match &self.near {
            Near::Shm(near) if self.domains.len() > 1 && self.posts_windows() => {
                let region = self.region(near.shared(), &parts)?;
                Ok(parts.with_posted(region))
            }
            // Posts cannot reach the memory of a GPU, and windows over a network are not supported yet.
            _ => Ok(parts.without(|rank| self.is_far(rank))),
        }
    }

    fn posts_windows(&self) -> bool {
        matches!((&self.near, &self.joint), (Near::Shm(_), Joint::Loop(_)))
    }

    fn reads_in_place(&self, peer: Rank, memory: &Memory) -> bool {
        self.is_far(peer) && self.proxy().reads_in_place(memory)
    }

    fn post_source(&self, _: Rank, from: PostFrom<'_>) -> Result<PostedSource, TransportError> {
        let outbox;
        let memory = match from {
            PostFrom::Memory(memory) => memory,
            PostFrom::Outbox(bytes) => {
                outbox = self.memory(bytes.max(1))?.part(0, bytes);
                &outbox
            }
        };
        Ok(PostedSource::register(self.proxy(), memory)?)
    }

    fn close(self: Box<Self>) -> Result<(), TransportError> {
        MeshTransport::close(*self)
    }
}

impl fmt::Debug for MeshTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeshTransport(rank {} of {}, {self})", self.rank(), self.world_size())
    }
}

impl fmt::Display for MeshTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let domains: Vec<String> = self.domains.iter().map(|domain| format!("{domain:?}")).collect();
        write!(f, "domains {}", domains.join(" "))?;
        match &self.joint {
            Joint::Loop(_) => f.write_str(", joined by copies within the process"),
            Joint::None => Ok(()),
            #[cfg(feature = "fabric")]
            Joint::Network(chosen) => write!(f, ", joined by {}", chosen.choice()),
        }
    }
}
