//! A transport whose type is chosen at run time.

#[cfg(feature = "fabric")]
use super::FabricTransport;
#[cfg(feature = "cuda")]
use super::NvlTransport;
use super::line_set::LineSet;
use super::registered::{MemoryView, Registered, WindowRegistry};
use super::window::{Registration, WindowCall, WindowParts};
use super::{Machine, MeshTransport, PostFrom, ShmTransport, Transport, WindowPart};
use crate::cuda::Seat;
use crate::hook::Block;
use crate::schedule::Peer;
use crate::tensor::Memory;
use crate::transport::proxy::PostedSource;
use crate::transport::{
    Cause, Door, LinkShape, LocalBuffer, LocalBuffers, Offer, Pairing, PeerEndpoint, Protocol, Rank, Ticket,
    TransportError,
};
use std::sync::Arc;
use std::time::Duration;

/// Any [`Transport`]: one type for programs that choose between CPUs, GPUs and networks when they start.
///
/// ```
/// use tilewire::link::{AnyTransport, ShmOptions, ShmTransport, Tensors};
/// use tilewire::{World, all_gather};
///
/// World::threads(2).run(|world| {
///     let link = AnyTransport::from(ShmTransport::rendezvous(&world, ShmOptions::default())?); // or an NvlTransport
///     let (inp, out) = (link.tensor(&[world.rank().number()])?, link.zeros::<u32>(2)?);
///     all_gather(&link, &out, &inp).run()?;
///     assert_eq!(out.to_vec(), [0, 1]);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
pub struct AnyTransport(Box<dyn Transport>);

impl AnyTransport {
    /// Erases the type of a transport, for instance of one of your own.
    pub fn new(transport: impl Transport + 'static) -> AnyTransport {
        AnyTransport(Box::new(transport))
    }

    /// As [`Transport::close`].
    pub fn close(self) -> Result<(), TransportError> {
        self.0.close()
    }

    #[inline]
    fn inside(&self) -> &dyn Transport {
        &*self.0
    }
}

impl From<ShmTransport> for AnyTransport {
    fn from(transport: ShmTransport) -> Self {
        AnyTransport::new(transport)
    }
}

impl From<MeshTransport> for AnyTransport {
    fn from(transport: MeshTransport) -> Self {
        AnyTransport::new(transport)
    }
}

#[cfg(feature = "cuda")]
impl From<NvlTransport> for AnyTransport {
    fn from(transport: NvlTransport) -> Self {
        AnyTransport::new(transport)
    }
}

#[cfg(feature = "fabric")]
impl From<FabricTransport> for AnyTransport {
    fn from(transport: FabricTransport) -> Self {
        AnyTransport::new(transport)
    }
}

/// Implements [`Transport`] for a transport around another one, its only field. Every method asks the transport inside,
/// because a default here would hide that transport's answer.
macro_rules! delegate {
    ($outer:ty { $(fn $name:ident $(<$brand:lifetime>)? (&self $(, $arg:ident: $ty:ty)*) $(-> $out:ty)?;)* }) => {
        impl Transport for $outer {
            $(#[inline] fn $name $(<$brand>)? (&self $(, $arg: $ty)*) $(-> $out)? {
                Transport::$name(self.inside(), $($arg),*)
            })*

            fn close(self: Box<Self>) -> Result<(), TransportError> {
                <$outer>::close(*self)
            }
        }
    };
    ($outer:ty) => {
        delegate! {
            $outer {
                fn rank(&self) -> Rank;
                fn world_size(&self) -> usize;
                fn link(&self, peer: Rank) -> LinkShape;
                fn endpoint(&self, peer: Rank) -> Option<PeerEndpoint>;
                fn endpoint_of(&self, peer: Rank, lines: &LineSet) -> Option<PeerEndpoint>;
                fn machines(&self) -> Vec<Machine>;
                fn domain(&self, rank: Rank) -> Option<usize>;
                fn door(&self) -> Option<&Door>;
                fn fail(&self, cause: Cause);
                fn seat(&self) -> Option<&Seat>;
                fn ticket(&self, pairing: Pairing, peer: Rank) -> Ticket;
                fn tell(&self, ticket: &Ticket, card: &[u8]) -> Result<(), TransportError>;
                fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError>;
                fn describe(&self, peer: Rank, operation: u16) -> Option<String>;
                fn sender<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol, window: Option<&Memory>) -> Peer<'t>;
                fn window_sender<'t>(&self, k: &Block<'t>, peer: Rank, lines: &LineSet, part: WindowPart<'_>) -> Peer<'t>;
                fn window_receiver<'t>(&self, k: &Block<'t>, peer: Rank, lines: &LineSet) -> Peer<'t>;
                fn receiver<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol) -> Peer<'t>;
                fn is_dense(&self) -> bool;
                fn memory(&self, bytes: usize) -> Result<Memory, TransportError>;
                fn window_memory(&self, call: &WindowCall) -> Result<WindowParts, TransportError>;
                fn register_window(&self, call: &WindowCall, of: Registration) -> Result<Option<WindowParts>, TransportError>;
                fn windows(&self) -> Option<&WindowRegistry>;
                fn window_of(&self, memory: &Memory) -> Option<Arc<Registered>>;
                fn is_in_flight(&self) -> bool;
                fn local_buffers(&self) -> Option<&LocalBuffers>;
                fn register_local_buffer(&self, memory: &Memory) -> Result<u64, TransportError>;
                fn local_buffer(&self, handle: u64) -> Result<LocalBuffer, TransportError>;
                fn buffer_view(&self, handle: u64) -> Result<MemoryView, TransportError>;
                fn source_of(&self, window: u64) -> Option<Memory>;
                fn deregister_local_buffer(&self, handle: u64) -> Result<(), TransportError>;
                fn posts_windows(&self) -> bool;
                fn reads_in_place(&self, peer: Rank, memory: &Memory) -> bool;
                fn post_source(&self, peer: Rank, from: PostFrom<'_>) -> Result<PostedSource, TransportError>;
                fn offer(&self, memory: &Memory) -> Option<Offer>;
                fn accept(&self, peer: Rank, offer: &str) -> Option<Memory>;
                fn broken(&self) -> Option<Cause>;
                fn deadline(&self) -> Option<Duration>;
                fn copies(&self) -> u32;
            }
        }
    };
}

delegate!(AnyTransport);
#[cfg(feature = "fabric")]
delegate!(FabricTransport);
