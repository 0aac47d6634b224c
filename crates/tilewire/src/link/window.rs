//! Windows: tensors that peers write in one hop, without staging.
//!
//! A window is allocated, in a segment that every rank's handle keeps alive independently, or a tensor that exists is
//! registered as one. If ranks are threads, any memory of the process will do. Other processes map only memory that is
//! made for it: that of `link.zeros()`. Ranks that are reached by posts need not map it.

use super::Transport;
use super::line_set::{LineSet, LineSets};
use super::registered::{Known, MemoryView, Registered};
use crate::schedule::take_all_signals;
use crate::tensor::{Element, Memory, Tensor, Type, bytes_of, overwrite};
use crate::transport::desk::Desk;
use crate::transport::proxy::PostedRegion;
use crate::transport::rendezvous::{Parameters, Shared};
use crate::transport::{Rank, TransportError};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
    registered: Arc<Registered>,
    /// True once this handle was deregistered.
    is_over: AtomicBool,
}

/// Memory that is to be a window, for [`Transport::register_window`].
#[derive(Debug)]
pub struct Registration {
    /// This rank's memory.
    pub memory: Memory,
    /// The window that it is already, on this rank.
    pub again: Option<Arc<Registered>>,
    /// Why this rank cannot register it. All ranks hear of it.
    pub objection: Option<TransportError>,
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

    /// The same window, in the transport's own lines if the transport has no endpoints for the window's. That is so
    /// where a transport passes windows of another one on, and knows nothing of lines. It depends on the transport's
    /// type alone, so all ranks find the same.
    fn in_lines_of(self, transport: &dyn Transport) -> WindowParts {
        let mut peers = Rank::all(transport.world_size()).filter(|&peer| peer != transport.rank());
        let lacks = |peer| transport.endpoint(peer).is_some() && transport.endpoint_of(peer, &self.lines).is_none();
        let lines = if peers.any(lacks) { LineSet::default() } else { self.lines.clone() };
        WindowParts { lines, ..self }
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
        sets: (&dyn Transport, &LineSets),
        space: impl FnOnce(&Shared, usize) -> Result<Vec<Option<Memory>>, TransportError>,
    ) -> Result<WindowParts, TransportError> {
        let parts = self.agree_on(desk, sets, ("allocated", None), space)?;
        Ok(parts.expect("an allocated window is new"))
    }

    /// Agrees with all ranks of a desk on a window over memory that they have. `share` returns the memory of every
    /// rank. `None` if it is the same window on all ranks already.
    pub(super) fn agree_over(
        &self,
        desk: &Desk,
        sets: (&dyn Transport, &LineSets),
        of: Registration,
        share: impl FnOnce(&Shared, &Memory) -> Result<Vec<Option<Memory>>, TransportError>,
    ) -> Result<Option<WindowParts>, TransportError> {
        let Registration { memory, again, objection } = of;
        let which = again.map_or("registered".to_string(), |window| format!("window {} again", window.number()));
        self.agree_on(desk, sets, (&which, objection), |world, _| share(world, &memory))
    }

    fn agree_on(
        &self,
        desk: &Desk,
        (transport, sets): (&dyn Transport, &LineSets),
        (which, objection): (&str, Option<TransportError>),
        space: impl FnOnce(&Shared, usize) -> Result<Vec<Option<Memory>>, TransportError>,
    ) -> Result<Option<WindowParts>, TransportError> {
        let (world, size, WindowCall { what, ty, len }) = (&desk.world, self.ty.size(), self);
        let deadline = world.deadline();
        let fits = |len: usize| len.checked_mul(size).is_some_and(|bytes| bytes <= isize::MAX as usize);
        let gathering = desk.gather(what, deadline)?;
        let said = Parameters::new("window")
            .with("transport", &desk.name)
            .with("element type", ty)
            .with("memory", which)
            // Relaxed: it only has to differ each time.
            .with("sets in use", sets.said())
            .with("number", NUMBER.fetch_add(1, Ordering::Relaxed))
            .with("length", len)
            .object((!fits(*len)).then_some(TransportError::TooLarge).or(objection))
            .agree(world, &["sets in use", "number", "length"], deadline);
        let said = gathering.agreed(said)?;
        if which.ends_with("again") {
            return Ok(None);
        }
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
        // All launches that used the lines are over on all ranks, and no rank uses them for the new window before all
        // are here.
        let cleared = forget_signals(transport, &lines);
        let space = world.all_have("window", cleared.and_then(|()| space(world, bytes)), deadline)?;
        let part = |(len, memory): (&usize, &Option<Memory>)| memory.as_ref().map(|memory| memory.part(0, len * size));
        let parts = WindowParts::mapped(number, lens.iter().zip(&space).map(part).collect());
        Ok(Some(WindowParts { lines, ..parts }))
    }
}

/// Counts the signals of an earlier window with these lines as taken.
fn forget_signals(transport: &dyn Transport, lines: &LineSet) -> Result<(), TransportError> {
    let me = transport.rank();
    for peer in Rank::all(transport.world_size()).filter(|&peer| peer != me && !lines.is_own()) {
        let Some(endpoint) = transport.endpoint_of(peer, lines) else { continue };
        let (signals, tallies) = (&endpoint.here.signals.signals, &endpoint.window.tallies);
        let cleared = bytes_of(signals).and_then(|signals| {
            let mut counts = bytes_of(tallies)?;
            take_all_signals(&signals, &mut counts);
            overwrite(tallies, &counts)
        });
        let what = |error| format!("the lines of a window cannot be read: {error}");
        cleared.map_err(|error| TransportError::Peer { rank: me, what: what(error) })?;
    }
    Ok(())
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
        let rank = transport.rank();
        let own = parts.peers.get(rank.index()).and_then(Clone::clone);
        // Host access to memory that peers write must be atomic, and tensors use atomics only for shared memory.
        let own = own.filter(|own| own.is_shared() || !own.reachable_from().host);
        let what = || "its transport gives it no memory for a window that peers may write".to_string();
        let own = own.ok_or_else(|| TransportError::Peer { rank, what: what() })?;
        Ok(Window::over(Tensor::over(own, len), parts.in_lines_of(transport), Some(transport)))
    }

    /// Makes a window of a tensor that exists. Collective: every rank of the transport calls it with a tensor of the
    /// same element type. The lengths may differ. The tensor must have no gaps.
    ///
    /// - Where ranks are threads of one process, any memory will do. Where they are processes, peers must be able to
    ///   map it: that of [`zeros`](super::Tensors::zeros) and [`tensor`](super::Tensors::tensor) of the transport. Far
    ///   ranks need not map it: they post.
    /// - From now on, all handles to a thread's own memory access it by atomics, because peers may be writing. It has
    ///   no [`cells`](Tensor::cells) any more, and memory whose cells were taken is refused.
    /// - The same tensor may be registered several times, on all ranks alike: it is one window, which counts its
    ///   handles. Memory that shares only some bytes with a window is refused.
    ///
    /// ```
    /// use tilewire::link::{ShmOptions, ShmTransport, Window};
    /// use tilewire::{Tensor, World, all_gather};
    ///
    /// World::threads(2).run(|world| {
    ///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
    ///     let (inp, out) = (Tensor::from_slice(&[world.rank().number()]), Tensor::<u32>::zeros(2));
    ///     let window = Window::register(&link, &out)?;
    ///     all_gather(&link, &out, &inp).window(&window).run()?; // one hop
    ///     assert_eq!(out.to_vec(), [0, 1]);
    ///     window.deregister(&link)?;
    ///     Ok(link.close()?)
    /// })?;
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    #[track_caller]
    pub fn register(transport: &dyn Transport, tensor: &Tensor<T>) -> Result<Window<T>, TransportError> {
        let (memory, len) = (tensor.memory(), tensor.len());
        let what = format!("Window::register of {len} {} at {}", T::TYPE, Location::caller());
        let range = |memory: &Memory| {
            let start = memory.start().addr().get();
            [start, start + memory.bytes()]
        };
        let is_plain = tensor.is_contiguous() && memory.covered() == len * T::TYPE.size();
        let (again, objection) = match transport.windows().map(|windows| windows.find(memory)) {
            _ if !is_plain => (
                None,
                Some(TransportError::NotRegistrable { why: "its rows have gaps or repeat: register the whole tensor" }),
            ),
            Some(Known::Overlaps(window)) => {
                let (range, window) = (range(memory), range(window.own()));
                (None, Some(TransportError::OverlapsWindow { range, window }))
            }
            Some(Known::Again(window)) => (Some(window), None),
            _ if !memory.share() => {
                let why = "another thread owns it, it was lent, or host code took its cells: copy it into a tensor of \
                           link.zeros()";
                (None, Some(TransportError::NotRegistrable { why }))
            }
            _ => (None, None),
        };
        let known = again.clone();
        let registration = Registration { memory: memory.clone(), again, objection };
        let call = WindowCall { what, ty: T::TYPE, len };
        match (transport.register_window(&call, registration)?, known) {
            (None, Some(registered)) => {
                registered.add_handle();
                Ok(Window { tensor: tensor.clone(), registered, is_over: AtomicBool::new(false) })
            }
            (Some(parts), _) => Ok(Window::over(tensor.clone(), parts.in_lines_of(transport), Some(transport))),
            (None, None) => Err(TransportError::NoWindows),
        }
    }

    fn over(tensor: Tensor<T>, parts: WindowParts, transport: Option<&dyn Transport>) -> Window<T> {
        let registered = Registered::new(tensor.memory().clone(), parts);
        if let Some(windows) = transport.and_then(Transport::windows) {
            windows.add(&registered);
        }
        Window { tensor, registered, is_over: AtomicBool::new(false) }
    }

    /// Ends this handle's registration. With the last one, the window is over: what was built with it can no longer be
    /// launched, and the tensor may be registered again. All ranks call it, and none waits for another. The memory
    /// stays alive until the last handle is dropped, here and at the peers.
    ///
    /// Returns [`InFlight`](TransportError::InFlight), and changes nothing, while launches of this rank may use it. A
    /// handle that is dropped ends its registration, too, but what was built with the window stays usable.
    pub fn deregister(&self, transport: &dyn Transport) -> Result<(), TransportError> {
        if self.is_over.load(Ordering::Relaxed) {
            return Err(TransportError::Deregistered { number: self.number().to_string() });
        }
        if transport.is_in_flight() {
            return Err(TransportError::InFlight);
        }
        self.is_over.store(true, Ordering::Relaxed);
        self.registered.remove_handle(true);
        Ok(())
    }

    /// Where a rank's window is mapped here; 0 if this rank's kernels cannot load and store in it.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn address(&self, rank: Rank) -> u64 {
        self.registered.address(rank)
    }

    /// The window of all ranks, as this rank reaches them.
    pub fn view(&self) -> MemoryView {
        self.registered.view()
    }

    /// The window without its element type.
    pub(crate) fn registered(&self) -> &Arc<Registered> {
        &self.registered
    }

    /// The error if this handle was deregistered.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
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
            let parts = WindowParts { lines, ..WindowParts::mapped(number.clone(), peers.clone()) };
            (tensor, parts)
        };
        let lines = LineSets::take_all(&sets)?;
        ranks.iter().zip(&lines).try_for_each(|(rank, lines)| forget_signals(rank, lines))?;
        let windows = peers.iter().flatten().zip(lines).map(window);
        Ok(windows.zip(ranks).map(|((tensor, parts), rank)| Window::over(tensor, parts, Some(rank))).collect())
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
        Window::over(tensors[rank.index()].clone(), WindowParts { lines, ..parts }, None)
    }

    /// Names this window on all ranks.
    pub fn number(&self) -> &str {
        self.registered.number()
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
        self.peers()[rank.index()].as_ref()
    }

    /// The windows of far ranks, which only posts reach: `direct` writes them. `None` if there are no far ranks.
    pub fn posted(&self) -> Option<&PostedRegion> {
        self.registered.parts().posted.as_ref()
    }

    /// Its control lines. Launches that use only the lines of different windows may be in flight at the same time.
    pub fn lines(&self) -> &LineSet {
        &self.registered.parts().lines
    }

    /// The windows of all ranks, in rank order, as this rank reaches them.
    pub fn peers(&self) -> &[Option<Memory>] {
        &self.registered.parts().peers
    }

    /// The windows of all ranks, in rank order, as banks of a kernel's parameter, which must all have the same length.
    /// `None` if this rank cannot reach one of them.
    pub fn banks(&self) -> Option<Vec<Memory>> {
        self.peers().iter().cloned().collect()
    }
}

impl<T: Element> Drop for Window<T> {
    fn drop(&mut self) {
        if !*self.is_over.get_mut() {
            self.registered.remove_handle(false);
        }
    }
}

impl<T: Element> fmt::Debug for Window<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:?} of {} ranks)", self.tensor, self.peers().len())
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
