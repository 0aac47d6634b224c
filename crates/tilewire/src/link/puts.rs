//! [`Puts`]: the operations on a window, for kernels of your own.

use super::contract::{PostFrom, Tensors, Transport};
use super::window::Window;
use crate::hook::Block;
use crate::schedule::{Source, WINDOW_IDS, WindowAt, WindowOps, WindowReach, WindowWorld};
use crate::tensor::{Element, Memory, Tensor};
use crate::transport::proxy::{PostedRegion, PostedSource};
use crate::transport::{PeerEndpoint, Rank, There, TransportError};
use std::fmt;

/// Puts, signals and counters of a [`Window`], for kernels of your own: [`WindowOps`] has the operations.
///
/// ```
/// use tilewire::collective::Launch;
/// use tilewire::link::{Puts, ShmOptions, ShmTransport, Window};
/// use tilewire::{Tensor, World, kernel};
///
/// World::threads(2).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let window = Window::<f32>::allocate(&link, 256)?;
///     let (puts, peer) = (Puts::new(&link, &window)?, world.next().number());
///     let (x, y) = (Tensor::from_fn(256, |i| i as f32), Tensor::<f32>::zeros(256));
///     let source = puts.source(&x)?;
///     let traced = kernel("exchange", |k| {
///         let (ops, x, y) = (puts.ops(k), source.bind(k), k.output(&y));
///         k.main(|r| {
///             ops.to(peer, 0).from(x, 0, 1024).signal(0).put_block_direct(r);
///             ops.wait_signal_from(r, peer, 0);
///             r.each(256, |i| y.store(i, ops.own().get::<f32>(0, i * 4)));
///         });
///     })?;
///     Launch::new(&link, &traced)?.run()?;
///     assert_eq!(y.get(255), 255.0);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
///
/// Keep it, and every [`PutSource`], as long as launches of its kernels may run.
pub struct Puts<'l> {
    transport: &'l dyn Transport,
    world: WindowWorld,
    /// The first rank that is reached by posts.
    far: Option<Rank>,
    #[expect(dead_code, reason = "posts may read and write these as long as they are kept")]
    kept: (Option<PostedRegion>, Option<PostedSource>),
}

/// Memory that puts read.
pub struct PutSource {
    memory: Memory,
    posted: Option<PostedSource>,
    is_registered: bool,
}

/// The sizes of what [`Puts`] needs.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct PutsOptions {
    /// Blocks of a kernel whose roles have copies that put chunks together. Default: as many as the transport has.
    pub blocks: Option<usize>,
    /// Bytes of the outbox that `put_block` has for each far peer and counter. Longer puts take several turns. Default:
    /// 64 KiB, and less if there are many far peers.
    pub outbox_bytes: Option<usize>,
}

/// Bytes of an outbox for a far peer and a counter, and of all together, by default.
const OUTBOX: usize = 64 << 10;
const OUTBOXES: usize = 8 << 20;

impl<'l> Puts<'l> {
    /// The operations on a window. A local call.
    ///
    /// Returns an error if this rank reaches the window of some rank neither by loads and stores nor by posts, or if
    /// windows have no control lines of their own.
    pub fn new<T: Element>(transport: &'l dyn Transport, window: &Window<T>) -> Result<Puts<'l>, TransportError> {
        Puts::with(transport, window, PutsOptions::default())
    }

    /// As [`new`](Self::new), with other sizes.
    pub fn with<T: Element>(
        transport: &'l dyn Transport,
        window: &Window<T>,
        options: PutsOptions,
    ) -> Result<Puts<'l>, TransportError> {
        let (rank, ranks) = (transport.rank(), || Rank::all(transport.world_size()));
        let windows = ranks().map(|peer| at(transport, window, peer)).collect::<Result<Vec<_>, _>>()?;
        let is_far = |peer: &Rank| matches!(windows[peer.index()].reach, WindowReach::Far { .. });
        let (far, number) = (ranks().find(is_far), ranks().filter(is_far).count());
        let usual = (OUTBOXES / (number.max(1) * WINDOW_IDS)).min(OUTBOX);
        let piece = options.outbox_bytes.unwrap_or(usual).next_multiple_of(16).max(16);
        let outbox = far.map(|peer| transport.post_source(peer, PostFrom::Outbox(number * WINDOW_IDS * piece)));
        let outbox = outbox.transpose()?;
        let blocks = options.blocks.unwrap_or(transport.link(rank).max_blocks);
        let world = WindowWorld {
            rank: rank.index(),
            queue: window.posted().map(|posted| posted.queue().clone()),
            table: transport.tensor(&WindowWorld::table(&windows))?,
            blocks,
            outbox: outbox.as_ref().map(|outbox| outbox.memory().clone()),
            piece,
            windows,
        };
        Ok(Puts { transport, world, far, kept: (window.posted().cloned(), outbox) })
    }

    /// A tensor that puts may read. If there are far peers and posts can read it in place, this registers it.
    pub fn source<T: Element>(&self, tensor: &Tensor<T>) -> Result<PutSource, TransportError> {
        let memory = tensor.memory().clone();
        let in_place = self.far.filter(|peer| self.transport.reads_in_place(*peer, &memory));
        let posted = in_place.map(|peer| self.transport.post_source(peer, PostFrom::Memory(&memory))).transpose()?;
        let is_registered = self.far.is_none() || posted.is_some();
        Ok(PutSource { memory, posted, is_registered })
    }

    /// Binds the windows of all ranks to a kernel.
    ///
    /// # Panics
    /// If there is no memory for it. In a kernel being traced this is a build error.
    pub fn ops<'t>(&self, k: &Block<'t>) -> WindowOps<'t> {
        let meeting = self.transport.memory(self.world.meeting_bytes());
        WindowOps::bind(k, &self.world, &meeting.unwrap_or_else(|error| panic!("{error}")))
    }
}

impl PutSource {
    /// Binds the source to a kernel.
    pub fn bind<'t>(&self, k: &Block<'t>) -> Source<'t> {
        let memory = self.posted.as_ref().map_or(&self.memory, PostedSource::memory);
        Source::bind(k, memory, self.is_registered)
    }
}

/// The window of a rank, as this rank reaches it.
fn at<T: Element>(transport: &dyn Transport, window: &Window<T>, peer: Rank) -> Result<WindowAt, TransportError> {
    let near = window.peer(peer);
    let far = window.posted().and_then(|posted| posted.bytes(peer));
    let endpoint = transport.endpoint_of(peer, window.lines());
    let unreached = TransportError::WindowUnreached { rank: transport.rank(), peer };
    let Some(PeerEndpoint { here, there, window: lines, .. }) = endpoint else { return Err(unreached) };
    if here.signals.signals.bytes() == 0 {
        return Err(TransportError::NoSignals);
    }
    let (bytes, reach) = match (there, near, far) {
        (There::Mapped(there), Some(near), _) => {
            (near.bytes(), WindowReach::Near { window: near.clone(), signals: there.signals.signals })
        }
        (There::Posted(posted), _, Some(bytes)) => {
            let (signal, counter) = (posted.lines.signal, posted.lines.counter);
            (bytes, WindowReach::Far { signal, counters: lines.counters, counter })
        }
        _ => return Err(unreached),
    };
    Ok(WindowAt { bytes, reach, signals: here.signals.signals, tallies: lines.tallies })
}

impl fmt::Debug for Puts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Puts(of rank {} to {} windows)", self.world.rank, self.world.windows.len())
    }
}

impl fmt::Debug for PutSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PutSource({} bytes)", self.memory.bytes())
    }
}
