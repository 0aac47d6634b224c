//! Windows: tensors that peers write in one hop, without staging.
//!
//! **Why a window allocates.** The memory of an ordinary tensor is kept alive by handles that never leave their thread.
//! If ranks are processes, no other rank can map it. A peer's handle could neither keep it alive nor reach it. So a
//! window allocates its tensor itself, in a segment that every rank's handle keeps alive independently.

use super::Transport;
use super::line_set::{LineSet, LineSets};
use crate::tensor::{Element, Memory, Tensor, Type};
use crate::transport::desk::Desk;
use crate::transport::proxy::PostedRegion;
use crate::transport::rendezvous::{Parameters, Shared};
use crate::transport::{Rank, TransportError};
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

/// A tensor on every rank that every rank can write.
///
/// ```
/// use tilewire::World;
/// use tilewire::link::{ShmOptions, ShmTransport, Window};
///
/// World::threads(2).run(|world| {
///     let transport = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let window = Window::<f32>::allocate(&transport, 1000)?;
///     // This rank's elements, for hooks, kernels and the host:
///     window.tensor().fill(1.0);
///     // Where a kernel here writes to reach those of the other rank:
///     let peer = world.next();
///     assert_eq!(window.peer(peer).map(|memory| memory.bytes()), Some(4000));
///     Ok(transport.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
///
/// Each rank's handle keeps the memory alive independently: a window may be dropped at any time, in any order. A far
/// rank ([`MeshTransport`](super::MeshTransport)) is the exception: its posts find a window only as long as the
/// window's own rank keeps the handle, or something built with it. A post that comes later breaks the transport.
pub struct Window<T: Element> {
    tensor: Tensor<T>,
    peers: Vec<Option<Memory>>,
    /// The windows of far ranks.
    posted: Option<PostedRegion>,
    lines: LineSet,
    /// The number that rank 0 gave it, so that two sides cannot confuse two different windows.
    number: String,
}

/// A rank's request for a window, for [`Transport::window_memory`].
#[derive(Clone, Debug)]
pub struct WindowCall {
    /// Describes the call, with the user's line.
    pub what: String,
    /// The element type, the same on all ranks.
    pub ty: Type,
    /// Elements of this rank's window. Ranks may differ.
    pub len: usize,
}

/// The parts of a window, as a transport provides them.
#[derive(Clone, Debug)]
pub struct WindowParts {
    /// Names this window on all ranks, so that two sides cannot confuse two different windows.
    pub number: String,
    /// The window of every rank, in rank order, as this rank reaches it. `None` where it cannot; never this rank's own
    /// memory instead.
    pub peers: Vec<Option<Memory>>,
    /// The windows that this rank reaches by posts, if there are any.
    pub posted: Option<PostedRegion>,
    /// Its control lines, the same set on all ranks. Without a set of its own it shares those of the transport.
    pub lines: LineSet,
}

impl WindowParts {
    /// A window that is reached by loads and stores alone, with the control lines of the transport.
    pub fn mapped(number: String, peers: Vec<Option<Memory>>) -> WindowParts {
        WindowParts { number, peers, posted: None, lines: LineSet::default() }
    }

    /// The same window where some ranks are out of reach.
    pub(super) fn without(mut self, is_out_of_reach: impl Fn(Rank) -> bool) -> WindowParts {
        let ranks = Rank::all(self.peers.len());
        self.peers.iter_mut().zip(ranks).filter(|(_, rank)| is_out_of_reach(*rank)).for_each(|(peer, _)| *peer = None);
        self
    }

    /// The same window where the ranks in this region are reached by posts.
    pub(super) fn with_posted(mut self, region: PostedRegion) -> WindowParts {
        self = self.without(|rank| region.bytes(rank).is_some());
        WindowParts { posted: Some(region), ..self }
    }
}

/// The number of the next window of this process.
static NUMBER: AtomicU64 = AtomicU64::new(0);

impl WindowCall {
    /// Agrees with all ranks of a desk on a window, and makes it. `space` returns memory of every rank, all of one
    /// size. The window gets a set of lines that no rank uses.
    pub(super) fn agree(
        &self,
        desk: &Desk,
        sets: &LineSets,
        space: impl FnOnce(&Shared, usize) -> Result<Vec<Option<Memory>>, TransportError>,
    ) -> Result<WindowParts, TransportError> {
        let (world, size, WindowCall { what, ty, len }) = (&desk.world, self.ty.size(), self);
        let deadline = world.deadline();
        let fits = |len: usize| len.checked_mul(size).is_some_and(|bytes| bytes <= isize::MAX as usize);
        let gathering = desk.gather(what, deadline)?;
        let said = Parameters::new("window")
            .with("transport", &desk.name)
            .with("element type", ty)
            // Relaxed: it only has to differ each time.
            .with("sets in use", sets.said())
            .with("number", NUMBER.fetch_add(1, Ordering::Relaxed))
            .with("length", len)
            .object((!fits(*len)).then_some(TransportError::TooLarge))
            .agree(world, &["sets in use", "number", "length"], deadline);
        let said = gathering.agreed(said)?;
        let number = said[0][said[0].len() - 2].clone();
        // All ranks come to the same, also if there is none.
        let lines = sets.take(said.iter().map(|of| of[of.len() - 3].as_str()))?;
        let lens = said.iter().enumerate().map(|(rank, values)| {
            // Every rank of this version has checked its own length. Other ranks' lengths are checked here.
            let len = values.last().and_then(|len| len.parse::<usize>().ok()).filter(|len| fits(*len));
            let what = || format!("it announced a length of {:?}", values.last());
            len.ok_or_else(|| TransportError::Peer { rank: Rank::new(rank as u32), what: what() })
        });
        let lens = lens.collect::<Result<Vec<usize>, _>>()?;
        // All segments have the same size.
        let bytes = lens.iter().max().map_or(0, |longest| longest * size);
        let space = world.all_have("window", space(world, bytes), deadline)?;
        let part = |(len, memory): (&usize, &Option<Memory>)| memory.as_ref().map(|memory| memory.part(0, len * size));
        let parts = WindowParts::mapped(number, lens.iter().zip(&space).map(part).collect());
        Ok(WindowParts { lines, ..parts })
    }
}

impl<T: Element> Window<T> {
    /// Makes a window of `len` zeros. Collective: every rank of the transport calls it with the same element type. The
    /// lengths may differ.
    ///
    /// Host access to the tensor is atomic per element, since a peer may be writing. The signal that follows the bytes
    /// (`DONE` of `direct`) tells that the peer has finished, and only a launch can wait for it.
    ///
    /// If a rank launches or closes instead, or asks for no window, this is detected within about a second. All ranks
    /// then get an error ([`TransportError::Judged`]) that names the calls and their lines.
    #[track_caller]
    pub fn allocate(transport: &dyn Transport, len: usize) -> Result<Window<T>, TransportError> {
        let what = format!("Window::allocate of {len} {} at {}", T::TYPE, Location::caller());
        let parts = transport.window_memory(&WindowCall { what, ty: T::TYPE, len })?;
        let WindowParts { number, peers, posted, lines } = parts;
        let rank = transport.rank();
        let own = peers.get(rank.index()).and_then(Clone::clone);
        // Host access to memory that peers write must be atomic, and tensors use atomics only for shared memory.
        let own = own.filter(|own| own.is_shared() || !own.reachable_from().host);
        let what = || "its transport gives it no memory for a window that peers may write".to_string();
        let own = own.ok_or_else(|| TransportError::Peer { rank, what: what() })?;
        Ok(Window { tensor: Tensor::over(own, len), peers, posted, lines, number })
    }

    /// A window on the ranks of [`NvlTransport::virtual_ranks`](super::NvlTransport::virtual_ranks), which one thread
    /// plays.
    #[cfg(feature = "cuda")]
    pub fn on_virtual_ranks(ranks: &[super::NvlTransport], len: usize) -> Result<Vec<Window<T>>, TransportError> {
        let bytes = len.checked_mul(T::TYPE.size()).ok_or(TransportError::TooLarge)?;
        let mut peers = Vec::new();
        for rank in ranks {
            rank.may_allocate()?;
            let buffer = crate::cuda::Buffer::shareable(rank.device(), bytes, &[])?;
            peers.push(Some(std::sync::Arc::new(buffer).memory()));
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
        let sets: Vec<&LineSets> = ranks.iter().map(|rank| rank.sets()).collect();
        let window = |(memory, lines): (&Memory, LineSet)| {
            let tensor = Tensor::over(memory.clone(), len);
            Window { tensor, peers: peers.clone(), posted: None, lines, number: number.clone() }
        };
        Ok(peers.iter().flatten().zip(LineSets::take_all(&sets)?).map(window).collect())
    }

    /// A window over tensors of one thread that plays all ranks, for kernels that are traced and never launched.
    #[cfg(feature = "check")]
    pub(crate) fn of_tensors(
        tensors: &[Tensor<T>],
        rank: Rank,
        (posted, lines): (Option<PostedRegion>, LineSet),
    ) -> Window<T> {
        let peers = tensors.iter().map(|tensor| Some(tensor.memory().clone())).collect();
        let parts = WindowParts::mapped("rehearsed".to_string(), peers);
        let parts = posted.map_or(parts.clone(), |posted| parts.with_posted(posted));
        let WindowParts { number, peers, posted, .. } = parts;
        Window { tensor: tensors[rank.index()].clone(), peers, posted, lines, number }
    }

    /// Names this window on all ranks.
    pub fn number(&self) -> &str {
        &self.number
    }

    /// This rank's elements.
    pub fn tensor(&self) -> &Tensor<T> {
        &self.tensor
    }

    /// The window of a rank, as this rank reaches it. `None` if it cannot.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn peer(&self, rank: Rank) -> Option<&Memory> {
        self.peers[rank.index()].as_ref()
    }

    /// The windows of far ranks, which only posts reach: `direct` writes them. `None` if there are no far ranks.
    pub fn posted(&self) -> Option<&PostedRegion> {
        self.posted.as_ref()
    }

    /// Its control lines. Launches that use only the lines of different windows may be in flight at the same time.
    pub fn lines(&self) -> &LineSet {
        &self.lines
    }

    /// The windows of all ranks, in rank order, as this rank reaches them.
    pub fn peers(&self) -> &[Option<Memory>] {
        &self.peers
    }

    /// The windows of all ranks, in rank order, as banks of a kernel's parameter, which must all have the same length.
    /// `None` if this rank cannot reach one of them.
    pub fn banks(&self) -> Option<Vec<Memory>> {
        self.peers.iter().cloned().collect()
    }
}

impl<T: Element> fmt::Debug for Window<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:?} of {} ranks)", self.tensor, self.peers.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ShmOptions, ShmTransport};
    use super::*;
    use crate::transport::World;

    fn keeps_what_is_set<T: Element + PartialEq>(transport: &ShmTransport, value: T) {
        let window = Window::<T>::allocate(transport, 5).unwrap();
        window.tensor().slice(1..4).fill(value);
        let zero = T::default();
        assert_eq!(window.tensor().to_vec(), [zero, value, value, value, zero]);
        assert_eq!((window.tensor().get(1), window.tensor().get(4)), (value, zero));
    }

    #[test]
    fn elements_of_every_size_keep_what_is_set() {
        let body = |world: World| {
            let transport = ShmTransport::rendezvous(&world, ShmOptions::default())?;
            keeps_what_is_set(&transport, true);
            keeps_what_is_set(&transport, -3i8);
            keeps_what_is_set(&transport, 60_000u16);
            keeps_what_is_set(&transport, 1.5f32);
            keeps_what_is_set(&transport, -1e300f64);
            Ok(transport.close()?)
        };
        World::threads(2).run(body).unwrap();
    }

    #[test]
    fn a_window_has_no_cells() {
        let result = World::threads(1).run(|world| {
            let transport = ShmTransport::rendezvous(&world, ShmOptions::default())?;
            Ok(Window::<u32>::allocate(&transport, 1)?.tensor().cells().len())
        });
        assert!(result.unwrap_err().to_string().contains("a window has no cells"));
    }
}
