//! The transport of domains that are joined by posts. Within a domain, ranks map each other's memory.

mod agreement;
mod domains;
mod far;
mod half;
mod near;
#[cfg(feature = "fabric")]
mod network;
mod windows;

use super::registered::WindowRegistry;
use super::window::{Registration, WindowCall, WindowParts};
use super::{LineSet, Machine, PostFrom, ShmOptions, ShmTransport, Transport};
#[cfg(feature = "cuda")]
use super::{NvlOptions, NvlTransport};
#[cfg(feature = "cuda")]
use crate::cuda::Device;
use crate::cuda::Seat;
use crate::tensor::{Memory, Queue};
#[cfg(feature = "fabric")]
use crate::transport::fabric::{Choice, FabricOptions as NetworkOptions};
#[cfg(test)]
use crate::transport::proxy::Carrier;
use crate::transport::proxy::{LoopCarrier, LoopEnd, PostedSource, Proxy, ProxyThread};
use crate::transport::rendezvous::Shared;
use crate::transport::{
    Cause, Domains, Door, LinkKind, LinkShape, LocalBuffers, Pairing, PeerEndpoint, PostedPeer, Rank, Ticket,
    TransportError, World,
};
use agreement::agreed;
#[cfg(feature = "cuda")]
use agreement::{objections, reaches_place};
#[cfg(feature = "cuda")]
use domains::check;
use domains::{are_apart, domain_of};
use far::{FarMemory, FarPeer};
use half::Half;
use near::Near;
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
    /// True if the threads that carry posts also do so while the waiting threads of their rank sleep. In a world of
    /// several domains every rank has such a thread. On GPUs, and where ranks are processes, it always does this. For
    /// ranks on CPUs that are threads of one process, it otherwise only carries what a launch posts before it computes
    /// for long.
    pub thread: bool,
    /// True if ranks that are threads of one process are joined by the network, too. Ranks that are processes always
    /// are. Each rank then has an endpoint of its own, so everything happens that happens between hosts.
    #[cfg(feature = "fabric")]
    pub over_network: bool,
    /// The network between ranks that are processes, and between threads with `over_network`.
    #[cfg(feature = "fabric")]
    pub network: NetworkOptions,
}

/// The default number of descriptors.
const DESCRIPTORS: usize = 1024;

impl<S: Default> MeshOptions<S> {
    /// Options with which every rank is a domain of its own, so that all peers are reached by posts.
    pub fn alone(ranks: usize) -> MeshOptions<S> {
        MeshOptions { domains: Some((0..ranks as u32).map(|rank| vec![rank]).collect()), ..MeshOptions::default() }
    }
}

impl<S> MeshOptions<S> {
    /// True if threads are joined by the network.
    fn is_over_network(&self) -> bool {
        #[cfg(feature = "fabric")]
        return self.over_network;
        #[cfg(not(feature = "fabric"))]
        return false;
    }
}

/// The transport of ranks in domains. Peers of the same domain are *near*: kernels load and store in their memory. All
/// other peers are *far*: kernels fill an outbox and post it, and a proxy carries the bytes to the peer.
///
/// If ranks are threads of one process, the carrier between domains copies, or is a network with
/// `MeshOptions::over_network`. They run on CPUs ([`rendezvous`]) or on GPUs (`rendezvous_on`), where the memory that
/// posts write and read is host memory that the device maps. Windows in memory of the device are the exception, where
/// the network of all ranks registers them. That was never run.
///
/// If ranks are processes, the carrier is a network that libfabric reaches, and the ranks of each host are a domain.
/// These ranks run on CPUs. `Display` says which provider was chosen, and why.
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
        #[cfg(feature = "fabric")]
        if options.over_network && domains.len() > 1 {
            return network::join_all(halves, &options.network);
        }
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

    /// Memory that kernels fill and the carrier reads.
    fn outbox(&self, bytes: usize) -> Result<Memory, TransportError> {
        match &self.near {
            Near::Shm(near) => near.memory(bytes),
            // Host memory, like the outboxes of staging (`mesh/far.rs`): nobody needs to register a device's for it.
            #[cfg(feature = "cuda")]
            Near::Nvl(near) => {
                near.not_capturing("allocating memory")?;
                Ok(near.device().host_memory(bytes)?)
            }
        }
    }

    fn proxy(&self) -> &Arc<Proxy> {
        self.door.proxy().expect("a mesh has a proxy")
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

    /// A window of which far ranks are reached by posts, if at all. Collective.
    fn reached(&self, parts: WindowParts) -> Result<WindowParts, TransportError> {
        match &self.near {
            Near::Shm(near) if self.domains.len() > 1 && self.posts_windows() => {
                let region = self.region(near.shared(), &parts)?;
                Ok(parts.with_posted(region))
            }
            #[cfg(all(feature = "cuda", feature = "fabric"))]
            Near::Nvl(near) if self.domains.len() > 1 && self.posts_windows() => {
                let region = self.region(near.shared(), &parts)?;
                Ok(parts.with_posted(region))
            }
            // Posts cannot reach the memory of a GPU.
            _ => Ok(parts.without(|rank| self.is_far(rank))),
        }
    }

    /// Before this rank waits outside of a launch, everything that its launches posted is delivered. A rank that waits
    /// for what is still on its way would otherwise seem to wait for one that waits for it. Launches on GPUs are looked
    /// at by those who judge.
    fn deliver_first(&self) -> Result<(), TransportError> {
        match (self.seat(), self.door.proxy(), self.door.broken()) {
            (None, Some(proxy), None) => proxy.drain(self.door.deadline()),
            _ => Ok(()),
        }
    }

    /// Closes the transport, when all ranks have called this. Collective, as [`ShmTransport::close`].
    pub fn close(self) -> Result<(), TransportError> {
        let MeshTransport { thread, near, door, .. } = self;
        if let (Some(proxy), None) = (door.proxy(), door.broken()) {
            if let Some(seat) = near.transport().seat() {
                // Waits for launches that nobody waited for, and for replays.
                #[cfg(feature = "cuda")]
                seat.stream.sync()?;
                #[cfg(not(feature = "cuda"))]
                let _ = seat;
                proxy.landed();
            }
            proxy.drain(door.deadline())?;
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
        ring: usize,
        wrap: impl FnOnce(LoopCarrier) -> Box<dyn Carrier>,
    ) -> Result<MeshTransport, TransportError> {
        let options = MeshOptions { sizes, ..MeshOptions::alone(world.size()) };
        let (near, domains) = (ShmTransport::rendezvous(world, sizes)?, options.domains.unwrap_or_default());
        let far = FarMemory::of_cpu(&near, |peer| peer != world.rank(), ring);
        let half = Half { near: Near::Shm(Box::new(near)), domains, far };
        let ends = Shared::of(world).show("mesh", Arc::new(half.end()), world.deadline())?.expect("ranks are threads");
        let carrier = wrap(LoopCarrier::new(world.rank().index(), ends.clone(), None));
        half.over(carrier, Joint::Loop(ends), false)
    }
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
        self.endpoint_of(peer, &LineSet::default())
    }

    fn endpoint_of(&self, peer: Rank, lines: &LineSet) -> Option<PeerEndpoint> {
        let Some(far) = &self.far[peer.index()] else { return self.near.transport().endpoint_of(peer, lines) };
        let lines = lines.on(self.near.sets());
        let (layout, me, set) = (self.near.layout(), self.rank(), lines.number());
        let posted = PostedPeer::of(layout, set, (me, &self.lines), peer, (self.queue.clone(), far.outbox.clone()));
        let here = far.here(layout, set, &self.lines, peer);
        Some(lines.held_by(PeerEndpoint::posted_in(layout, set, me, here, posted)))
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
        self.deliver_first()?;
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
        self.deliver_first()?;
        let parts = self.near.transport().window_memory(call)?;
        self.reached(parts)
    }

    fn register_window(&self, call: &WindowCall, of: Registration) -> Result<Option<WindowParts>, TransportError> {
        self.deliver_first()?;
        let parts = self.near.transport().register_window(call, of)?;
        parts.map(|parts| self.reached(parts)).transpose()
    }

    fn windows(&self) -> Option<&WindowRegistry> {
        self.near.transport().windows()
    }

    fn local_buffers(&self) -> Option<&LocalBuffers> {
        self.near.transport().local_buffers()
    }

    fn posts_windows(&self) -> bool {
        match (&self.near, &self.joint) {
            (_, Joint::None) => false,
            (Near::Shm(_), _) => true,
            // Written, and never run: it takes a card.
            #[cfg(all(feature = "cuda", feature = "fabric"))]
            (Near::Nvl(_), Joint::Network(chosen)) => chosen.reaches_devices(),
            #[cfg(feature = "cuda")]
            (Near::Nvl(_), _) => false,
        }
    }

    fn reads_in_place(&self, peer: Rank, memory: &Memory) -> bool {
        self.is_far(peer) && self.proxy().reads_in_place(memory)
    }

    fn post_source(&self, _: Rank, from: PostFrom<'_>) -> Result<PostedSource, TransportError> {
        let outbox;
        let memory = match from {
            PostFrom::Memory(memory) => memory,
            PostFrom::Outbox(bytes) => {
                outbox = self.outbox(bytes.max(1))?.part(0, bytes);
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
