//! The interface of a transport to everything above it.

use super::line_set::LineSet;
use super::machine::Machine;
use super::registered::{MemoryView, Registered, WindowRegistry};
use super::window::{Registration, WindowCall, WindowParts};
use crate::cuda::{CudaError, Seat};
use crate::hook::Block;
use crate::schedule::{LoadStore, Peer, PostedReach, PostedWindow};
use crate::tensor::{Element, Memory, NoMemory, Tensor};
use crate::transport::proxy::PostedSource;
use crate::transport::{
    Cause, Door, LinkShape, LocalBuffer, LocalBufferError, LocalBuffers, Offer, Pairing, PeerEndpoint, Protocol, Rank,
    There, Ticket, TransportError,
};
use std::sync::Arc;
use std::time::Duration;

/// Memory and signals between the ranks of a world: what collectives, schedules and launches need from a transport.
///
/// Implement it for your own transport. If peers map each other's memory, the methods without a body suffice. A
/// transport that reaches peers in another way also implements [`sender`](Transport::sender) and
/// [`receiver`](Transport::receiver). `crates/outside-transport` is an example.
pub trait Transport {
    // ---- who and where ------------------------------------------------------------------------------------------

    /// This rank.
    fn rank(&self) -> Rank;

    /// Number of ranks in the world.
    fn world_size(&self) -> usize;

    /// The constants of the link to a peer. The link of a rank to itself has no peer's limits.
    ///
    /// # Panics
    /// If there is no such peer. [`check_transfer`](super::check_transfer) returns an error instead.
    fn link(&self, peer: Rank) -> LinkShape;

    /// The memories between this rank and a peer. `None` if kernels of this rank cannot reach it.
    ///
    /// Launch kernels that use them from the thread that holds the transport and, on a GPU, on the stream of its
    /// [`seat`](Transport::seat). Otherwise a cycle of waiting ranks may be reported that such a launch would have
    /// broken.
    ///
    /// # Panics
    /// If there is no such peer.
    fn endpoint(&self, peer: Rank) -> Option<PeerEndpoint>;

    /// The same with the control lines of a window ([`Window::lines`](super::Window::lines)) in place of the
    /// transport's own. Whoever keeps these memories keeps the set in use. `None` also if the transport has no such
    /// set; without an implementation it has only its own.
    ///
    /// # Panics
    /// If there is no such peer.
    fn endpoint_of(&self, peer: Rank, lines: &LineSet) -> Option<PeerEndpoint> {
        if lines.is_own() { self.endpoint(peer) } else { None }
    }

    /// The machine of every rank, by rank: the same list on all ranks, told at the rendezvous. Default choices depend
    /// on nothing else about machines.
    ///
    /// Without an implementation, every rank's machine is that of this rank. This is right if all ranks are on one
    /// machine, or on machines of one kind.
    fn machines(&self) -> Vec<Machine> {
        vec![Machine::here(self.seat()); self.world_size()]
    }

    /// The number of a rank's domain: ranks of one domain reach each other by loads and stores, all others by posts.
    /// The same on all ranks. The links between near ranks then have the constants of a rank's link to itself. `None`
    /// if this is not known; no algorithm then makes use of domains.
    fn domain(&self, _rank: Rank) -> Option<usize> {
        None
    }

    // ---- how launches wait and end ------------------------------------------------------------------------------

    /// Abort word, doorbells, deadline, and what is known about the other ranks. Without a door, launches poll, and
    /// only a deadline of 30 s ends a wait.
    fn door(&self) -> Option<&Door> {
        None
    }

    /// Called when a launch of this rank has failed: ends the waits of all ranks on this transport, and makes later
    /// calls fail.
    fn fail(&self, cause: Cause) {
        if let Some(door) = self.door() {
            door.fail(cause);
        }
    }

    /// The seat of its kernels on a GPU. `None` if they run on the CPU.
    fn seat(&self) -> Option<&Seat> {
        None
    }

    // ---- how operations meet ------------------------------------------------------------------------------------

    /// The ticket of the next operation of a kind with a peer: the same one until it is told. This rank's n-th ticket
    /// matches the peer's n-th.
    fn ticket(&self, pairing: Pairing, peer: Rank) -> Ticket;

    /// Tells the peer of a ticket what this rank is about to do with it. The first line of the card describes it for
    /// people.
    fn tell(&self, ticket: &Ticket, card: &[u8]) -> Result<(), TransportError>;

    /// Waits up to the deadline for the card that the peer told. Called once per ticket.
    fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError>;

    /// Describes an operation with a peer, if this rank knows it.
    fn describe(&self, _peer: Rank, _operation: u16) -> Option<String> {
        None
    }

    // ---- how kernels reach a peer -------------------------------------------------------------------------------

    /// Binds a kernel to a peer that it sends to: by loads and stores or by posts, as its endpoint says. `window` is
    /// the peer's, for `direct`.
    ///
    /// # Panics
    /// If the peer cannot be reached: [`check_transfer`](super::check_transfer) refuses it before.
    fn sender<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol, window: Option<&Memory>) -> Peer<'t> {
        let endpoint = reached(self.endpoint(peer), peer);
        match endpoint.there {
            There::Posted(_) => Peer::new(k, PostedReach::sender(k, &endpoint, protocol)),
            _ => Peer::new(k, LoadStore::sender(k, &endpoint, protocol, window).dense(self.is_dense())),
        }
    }

    /// Binds a kernel to a peer whose window it writes by `direct`, with the control lines of a window.
    ///
    /// # Panics
    /// If the peer cannot be reached in the way that `part` says.
    fn window_sender<'t>(&self, k: &Block<'t>, peer: Rank, lines: &LineSet, part: WindowPart<'_>) -> Peer<'t> {
        let (direct, endpoint) =
            (Protocol::Direct { window_bytes: 0 }, || reached(self.endpoint_of(peer, lines), peer));
        match part {
            WindowPart::Posted(window) => Peer::new(k, PostedReach::into_window(k, &endpoint(), window)),
            WindowPart::Mapped(window) if lines.is_own() => self.sender(k, peer, direct, window),
            WindowPart::Mapped(window) => {
                Peer::new(k, LoadStore::sender(k, &endpoint(), direct, window).dense(self.is_dense()))
            }
        }
    }

    /// Binds a kernel to a peer that writes this rank's window by `direct`, with the control lines of a window.
    ///
    /// # Panics
    /// If the peer cannot be reached.
    fn window_receiver<'t>(&self, k: &Block<'t>, peer: Rank, lines: &LineSet) -> Peer<'t> {
        let direct = Protocol::Direct { window_bytes: 0 };
        if lines.is_own() {
            return self.receiver(k, peer, direct);
        }
        let endpoint = reached(self.endpoint_of(peer, lines), peer);
        match endpoint.there {
            There::Posted(_) => Peer::new(k, PostedReach::receiver(k, &endpoint, direct)),
            _ => Peer::new(k, LoadStore::receiver(k, &endpoint, direct).dense(self.is_dense())),
        }
    }

    /// Binds a kernel to a peer that it receives from.
    ///
    /// # Panics
    /// If the peer cannot be reached.
    fn receiver<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol) -> Peer<'t> {
        let endpoint = reached(self.endpoint(peer), peer);
        match endpoint.there {
            There::Posted(_) => Peer::new(k, PostedReach::receiver(k, &endpoint, protocol)),
            _ => Peer::new(k, LoadStore::receiver(k, &endpoint, protocol).dense(self.is_dense())),
        }
    }

    /// True if tiles lie in slots without gaps, as posts need it: if any two ranks of the world reach each other by
    /// posts. See [`Reach::is_dense`](crate::schedule::Reach::is_dense).
    fn is_dense(&self) -> bool {
        false
    }

    // ---- memory -------------------------------------------------------------------------------------------------

    /// Zeroed memory for kernels of this rank. A local call that never waits for a peer. [`Tensors`] is the typed form.
    fn memory(&self, bytes: usize) -> Result<Memory, TransportError> {
        Ok(Memory::try_zeroed(bytes)?)
    }

    /// Memory of every rank that all ranks which reach it can write. Collective.
    /// [`Window::allocate`](super::Window::allocate) calls it.
    fn window_memory(&self, _call: &WindowCall) -> Result<WindowParts, TransportError> {
        Err(TransportError::NoWindows)
    }

    /// The memory of every rank as a window, where it is. Collective. [`Window::register`](super::Window::register)
    /// calls it. `None` if all ranks have registered this memory before, as one window.
    fn register_window(&self, _: &WindowCall, _: Registration) -> Result<Option<WindowParts>, TransportError> {
        Err(TransportError::NoWindows)
    }

    /// This rank's windows, by address. `None` for a transport that does not remember them.
    fn windows(&self) -> Option<&WindowRegistry> {
        None
    }

    /// The window that this memory of this rank lies in.
    fn window_of(&self, memory: &Memory) -> Option<Arc<Registered>> {
        self.windows()?.window_of(memory)
    }

    /// This rank's buffers with handles. `None` for a transport that gives none.
    fn local_buffers(&self) -> Option<&LocalBuffers> {
        None
    }

    /// Names a buffer of this rank for code that takes a single number: the address of a [`LocalBuffer`], where kernels
    /// of this rank can read it. The memory stays alive until it is deregistered or the transport is gone. Far ranks'
    /// windows can be written from it by posts, if the network reads such memory where it is. A local call. On a GPU it
    /// comes after this thread's launches.
    ///
    /// ```
    /// # use tilewire::link::{ShmOptions, ShmTransport, Transport};
    /// # use tilewire::transport::World;
    /// # use tilewire::Tensor;
    /// # World::threads(1).run(|world| {
    /// # let transport = ShmTransport::rendezvous(&world, ShmOptions::default())?;
    /// let x = Tensor::<f32>::zeros(100);
    /// let handle = transport.register_local_buffer(x.memory())?;
    /// assert_eq!(transport.local_buffer(handle)?.size, 400);
    /// transport.deregister_local_buffer(handle)?;
    /// assert!(transport.local_buffer(handle).is_err());
    /// # Ok(()) }).unwrap();
    /// ```
    fn register_local_buffer(&self, memory: &Memory) -> Result<u64, TransportError> {
        let refused = |why| TransportError::NotRegistrable { why };
        let buffers = self.local_buffers().ok_or(refused("this transport gives no handles of buffers"))?;
        if memory.is_lent() || !memory.is_contiguous() {
            return Err(refused(
                "it was lent for the time of a closure, or its rows have gaps: give memory of your own",
            ));
        }
        let peers = Rank::all(self.world_size()).filter(|&peer| peer != self.rank());
        let far = peers.into_iter().find(|&peer| self.posts_windows() && self.reads_in_place(peer, memory));
        let source = far.map(|peer| self.post_source(peer, PostFrom::Memory(memory))).transpose()?;
        buffers.register(memory, source, |bytes| self.memory(bytes))
    }

    /// The buffer that a handle names.
    fn local_buffer(&self, handle: u64) -> Result<LocalBuffer, TransportError> {
        let buffers = self.local_buffers().ok_or(LocalBufferError::Unknown { handle })?;
        Ok(buffers.buffer(handle)?.0)
    }

    /// The same as those see it who copy: it has no peers.
    fn buffer_view(&self, handle: u64) -> Result<MemoryView, TransportError> {
        let LocalBuffer { base, size, .. } = self.local_buffer(handle)?;
        Ok(MemoryView { address: base, bytes: size as usize, handle, peers: Vec::new() })
    }

    /// The memory of the registered buffer with this [`window`](LocalBuffer::window) number, if there is one.
    fn source_of(&self, window: u64) -> Option<Memory> {
        self.local_buffers()?.source(window)
    }

    /// Lets go of a buffer: its struct is empty from now on. This transport never gives its handle again, and using the
    /// handle again is an error. On a GPU it comes after this thread's launches.
    fn deregister_local_buffer(&self, handle: u64) -> Result<(), TransportError> {
        self.local_buffers().ok_or(LocalBufferError::Unknown { handle })?.deregister(handle)
    }

    /// True if launches of this rank, or what they posted, may still be under way.
    fn is_in_flight(&self) -> bool {
        let posts = self.door().and_then(Door::proxy).is_some_and(|proxy| proxy.behind().is_some());
        posts || self.seat().is_some_and(|seat| !seat.stream.is_idle().unwrap_or(true))
    }

    /// True if `direct` reaches the windows of far peers, by posts.
    fn posts_windows(&self) -> bool {
        false
    }

    /// True if posts to a far peer can read this memory where it is, so that `direct` needs no outbox for it.
    fn reads_in_place(&self, _peer: Rank, _memory: &Memory) -> bool {
        false
    }

    /// Memory that posts to a far peer read: the caller's own, or an outbox. A local call. Posts of other memory are
    /// refused. Asked for only if [`posts_windows`](Transport::posts_windows), and for memory only if
    /// [`reads_in_place`](Transport::reads_in_place).
    fn post_source(&self, _peer: Rank, _from: PostFrom<'_>) -> Result<PostedSource, TransportError> {
        Err(TransportError::NoWindows)
    }

    /// What to tell the other ranks, so that launches of theirs can load and store in this memory of this rank. `None`
    /// if they cannot. A local call. Collectives whose outputs peers reach write them in one hop.
    fn offer(&self, _memory: &Memory) -> Option<Offer> {
        None
    }

    /// The memory that another rank has [offered](Transport::offer), as launches of this rank reach it. `None` if they
    /// cannot.
    fn accept(&self, _peer: Rank, _offer: &str) -> Option<Memory> {
        None
    }

    // ---- the end ------------------------------------------------------------------------------------------------

    /// Ends the transport once all ranks have called this. Collective. Dropping a transport also releases it; this
    /// returns how it ended, too.
    fn close(self: Box<Self>) -> Result<(), TransportError> {
        Ok(())
    }

    // ---- what follows from the above ----------------------------------------------------------------------------

    /// Why the transport can no longer be used, if so. Launches poll the abort word of [`door`](Transport::door)
    /// themselves: a transport that can break has a door, and need not override this.
    fn broken(&self) -> Option<Cause> {
        self.door().and_then(Door::broken)
    }

    /// How long a wait may last. `None` means forever.
    fn deadline(&self) -> Option<Duration> {
        self.door().map_or(Some(Duration::from_secs(30)), Door::deadline)
    }

    /// Copies of a role that take the slots of `staged` alternately: the same number for all peers.
    fn copies(&self) -> u32 {
        self.link(self.rank()).copies
    }
}

/// The part of a peer's window that a kernel writes.
#[derive(Clone, Copy, Debug)]
pub enum WindowPart<'w> {
    /// By loads and stores. `None` if it writes nothing there, and only signals.
    Mapped(Option<&'w Memory>),
    /// By posts.
    Posted(&'w PostedWindow),
}

/// Where the bytes are that posts read.
#[derive(Clone, Copy, Debug)]
pub enum PostFrom<'m> {
    /// In this memory.
    Memory(&'m Memory),
    /// In an outbox of this many bytes, which hooks fill.
    Outbox(usize),
}

fn reached(endpoint: Option<PeerEndpoint>, peer: Rank) -> PeerEndpoint {
    endpoint.unwrap_or_else(|| panic!("kernels of this rank cannot reach rank {peer}"))
}

/// Tensors in the memory that a transport's kernels use, so that the same code works on CPUs and GPUs. For every
/// [`Transport`].
///
/// ```
/// use tilewire::link::{ShmOptions, ShmTransport, Tensors, Transport};
/// use tilewire::{World, all_reduce};
///
/// fn sum(link: &dyn Transport) -> Result<Vec<f32>, tilewire::RunError> {
///     let (x, y) = (link.tensor(&[1.0f32, 2.0])?, link.zeros::<f32>(2)?);
///     all_reduce(link, &y, &x).run()?;
///     Ok(y.to_vec())
/// }
/// let sums = World::threads(2).run(|world| Ok(sum(&ShmTransport::rendezvous(&world, ShmOptions::default())?)?))?;
/// assert_eq!(sums[0], [2.0, 4.0]);
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
///
/// These are local calls that never wait for a peer. The memory can be exported to other processes. On a GPU each
/// tensor is an allocation of its own, of at least 2 MiB: make few large ones and slice them.
pub trait Tensors: Transport {
    /// A tensor of zeros.
    fn zeros<T: Element>(&self, len: usize) -> Result<Tensor<T>, TransportError> {
        let no_memory = || NoMemory { bytes: usize::MAX, shortage: None };
        let memory = self.memory(len.checked_mul(T::TYPE.size()).ok_or_else(no_memory)?)?;
        Ok(Tensor::over(memory, len))
    }

    /// A tensor with these elements.
    fn tensor<T: Element>(&self, data: &[T]) -> Result<Tensor<T>, TransportError> {
        let tensor = self.zeros(data.len())?;
        tensor.try_copy_from(data).map_err(|error| TransportError::Device(Arc::new(error)))?;
        Ok(tensor)
    }
}

impl<L: Transport + ?Sized> Tensors for L {}

impl From<CudaError> for TransportError {
    fn from(error: CudaError) -> Self {
        TransportError::Device(Arc::new(error))
    }
}
