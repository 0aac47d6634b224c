//! Windows: tensors that peers write in one hop, without staging.
//!
//! **Why a window allocates.** The memory of an ordinary tensor is kept alive by handles that never leave their thread, and, where
//! ranks are processes, nobody else can map it. A peer's handle could neither keep it alive nor reach it. So a window makes its
//! tensor itself, in a segment, which every rank's handle keeps alive for itself.
#![forbid(unsafe_code)]

use super::desk::Desk;
use super::nvl::NvlTransport;
use super::rank::Rank;
use super::rendezvous::{Parameters, TransportError};
use super::segment::SegmentOptions;
use super::shm::ShmTransport;
use crate::cuda::Buffer;
use crate::tensor::{Element, Memory, Tensor};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A tensor of every rank that every rank can write.
///
/// ```
/// use tilewire::transport::{ShmOptions, ShmTransport, Window, World};
///
/// World::threads(2).run(|world| {
///     let transport = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let window = Window::<f32>::allocate(&transport, 1000)?;
///     // This rank's elements, for hooks, kernels and the host:
///     window.tensor().fill(1.0);
///     // Where a kernel here writes to reach those of the other rank:
///     let peer = world.rank().after(1, 2);
///     assert_eq!(window.peer(peer).bytes(), 4000);
///     Ok(transport.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
///
/// The handles keep the memory alive, on every rank for itself: a window may be dropped at any time, in any order.
pub struct Window<T: Element> {
    tensor: Tensor<T>,
    peers: Vec<Memory>,
    /// Which window of rank 0 it is: so that two sides that mean different ones do not take one for the other.
    number: String,
}

/// A transport that windows can be allocated on.
pub trait WindowSpace: space::Space {}
impl<S: space::Space> WindowSpace for S {}

/// What only transports of this crate do.
mod space {
    use super::*;

    pub trait Space {
        #[doc(hidden)]
        fn desk(&self) -> &Desk;
        /// Whether memory can be had now.
        #[doc(hidden)]
        fn may_allocate(&self) -> Result<(), TransportError>;
        /// Memory of every rank, all of one size. Collective.
        #[doc(hidden)]
        fn space(&self, bytes: usize) -> Result<Vec<Memory>, TransportError>;
        #[doc(hidden)]
        fn tensor<T: Element>(&self, memory: Memory, len: usize) -> Tensor<T>;
    }
}

impl space::Space for ShmTransport {
    fn desk(&self) -> &Desk {
        ShmTransport::desk(self)
    }

    fn may_allocate(&self) -> Result<(), TransportError> {
        self.check()
    }

    fn space(&self, bytes: usize) -> Result<Vec<Memory>, TransportError> {
        let world = &ShmTransport::desk(self).world;
        // The sockets of these segments are closed here: it is the transport's monitor that sees a peer die.
        let segments = world.segments("window", bytes, SegmentOptions::default(), world.deadline())?;
        Ok((0..world.size()).map(|rank| segments.segment(rank)).collect())
    }

    fn tensor<T: Element>(&self, memory: Memory, len: usize) -> Tensor<T> {
        Tensor::in_shared(memory, len)
    }
}

impl space::Space for NvlTransport {
    fn desk(&self) -> &Desk {
        NvlTransport::desk(self)
    }

    fn may_allocate(&self) -> Result<(), TransportError> {
        self.not_capturing("allocating a window")?;
        self.check()
    }

    fn space(&self, bytes: usize) -> Result<Vec<Memory>, TransportError> {
        self.shared_memory("window", bytes)
    }

    fn tensor<T: Element>(&self, memory: Memory, len: usize) -> Tensor<T> {
        Tensor::on_device(memory, len)
    }
}

/// The number of the next window of this process.
static NUMBER: AtomicU64 = AtomicU64::new(0);

impl<T: Element> Window<T> {
    /// Makes a window of `len` zeros. Collective: every rank of the transport calls it, with the same element type; the lengths may
    /// differ.
    ///
    /// Host access to the tensor is atomic, element by element: a peer may be writing. What tells that it has finished is the
    /// signal that follows the bytes (`DONE` of `direct`), and a wait for that is inside a launch.
    ///
    /// A rank that launches instead, asks for no window or closes is found, within about a second: that is an error on all ranks
    /// ([`TransportError::Judged`]) which names the calls and their lines.
    #[track_caller]
    pub fn allocate(transport: &impl WindowSpace, len: usize) -> Result<Window<T>, TransportError> {
        let (call, desk) =
            (format!("Window::allocate of {len} {} at {}", T::TYPE, Location::caller()), transport.desk());
        let (world, size) = (&desk.world, T::TYPE.size());
        let deadline = world.deadline();
        let too_large = len.checked_mul(size).is_none_or(|bytes| bytes > isize::MAX as usize);
        // At once: after a break the peers may never come here.
        transport.may_allocate()?;
        let gathering = desk.gather(&call, deadline)?;
        let said = Parameters::new("window")
            .with("transport", &desk.name)
            .with("element type", T::TYPE)
            // Relaxed: only its being different each time matters.
            .with("number", NUMBER.fetch_add(1, Ordering::Relaxed))
            .with("length", len)
            .object(too_large.then_some(TransportError::TooLarge))
            .agree(world, &["number", "length"], deadline);
        let said = gathering.agreed(said)?;
        let number = said[0][said[0].len() - 2].clone();
        let lens = said.iter().enumerate().map(|(rank, values)| {
            let len = values.last().and_then(|len| len.parse::<usize>().ok());
            // Every rank of this version has checked its own; what another says is not believed.
            let fits = len.filter(|len| len.checked_mul(size).is_some_and(|bytes| bytes <= isize::MAX as usize));
            let what = || format!("it says a length of {:?}", values.last());
            fits.ok_or_else(|| TransportError::Peer { rank: Rank::new(rank as u32), what: what() })
        });
        let lens = lens.collect::<Result<Vec<usize>, _>>()?;
        // Segments are of one size.
        let bytes = lens.iter().max().map_or(0, |longest| longest * size);
        let space = transport.space(bytes);
        let space = world.all_have("window", space, deadline)?;
        let peers: Vec<Memory> = lens.iter().zip(&space).map(|(len, memory)| memory.part(0, len * size)).collect();
        Ok(Window { tensor: transport.tensor(peers[world.rank().index()].clone(), len), peers, number })
    }

    /// A window on the ranks that one thread plays, by [`NvlTransport::virtual_ranks`].
    pub fn on_virtual_ranks(ranks: &[NvlTransport], len: usize) -> Result<Vec<Window<T>>, TransportError> {
        let bytes = len.checked_mul(T::TYPE.size()).ok_or(TransportError::TooLarge)?;
        let mut peers = Vec::new();
        for rank in ranks {
            space::Space::may_allocate(rank)?;
            peers.push(Arc::new(Buffer::shareable(rank.device(), bytes, &[])?).memory());
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
        let window = |memory: &Memory| {
            let tensor = Tensor::on_device(memory.clone(), len);
            Window { tensor, peers: peers.clone(), number: number.clone() }
        };
        Ok(peers.iter().map(window).collect())
    }

    /// What names this window on all ranks.
    pub fn number(&self) -> &str {
        &self.number
    }

    /// This rank's elements.
    pub fn tensor(&self) -> &Tensor<T> {
        &self.tensor
    }

    /// The window of a rank, as this rank reaches it.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn peer(&self, rank: Rank) -> &Memory {
        &self.peers[rank.index()]
    }

    /// The windows of all ranks, in rank order: banks of a kernel's parameter where all lengths are equal.
    pub fn peers(&self) -> &[Memory] {
        &self.peers
    }
}

impl<T: Element> fmt::Debug for Window<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:?} of {} ranks)", self.tensor, self.peers.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ShmOptions, World};
    use super::*;

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
