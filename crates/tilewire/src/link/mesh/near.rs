//! The transport within domains.
#![forbid(unsafe_code)]

#[cfg(feature = "cuda")]
use crate::link::NvlTransport;
use crate::link::line_set::LineSets;
use crate::link::{ShmTransport, Transport};
use crate::transport::layout::Layout;
use crate::transport::{SegmentSet, TransportError};

/// The transport within domains. It spans the whole world: the tickets, status lines and abort words of far peers are
/// in it, too. Kernels use none of its memory to reach far peers.
pub(super) enum Near {
    Shm(Box<ShmTransport>),
    #[cfg(feature = "cuda")]
    Nvl(Box<NvlTransport>),
}

impl Near {
    pub(super) fn transport(&self) -> &dyn Transport {
        match self {
            Near::Shm(near) => &**near,
            #[cfg(feature = "cuda")]
            Near::Nvl(near) => &**near,
        }
    }

    /// The sets of control lines, of far peers, too.
    pub(super) fn sets(&self) -> &LineSets {
        match self {
            Near::Shm(near) => near.sets(),
            #[cfg(feature = "cuda")]
            Near::Nvl(near) => near.sets(),
        }
    }

    pub(super) fn layout(&self) -> &Layout {
        match self {
            Near::Shm(near) => near.layout(),
            #[cfg(feature = "cuda")]
            Near::Nvl(near) => near.layout(),
        }
    }

    /// The device of a rank on a GPU, as the network sees it.
    #[cfg(feature = "fabric")]
    pub(super) fn network_device(&self) -> Option<std::sync::Arc<dyn crate::transport::fabric::NetworkDevice>> {
        match self {
            Near::Shm(_) => None,
            #[cfg(feature = "cuda")]
            Near::Nvl(near) => Some(std::sync::Arc::new(crate::link::network_device::OnNetwork(near.device().clone()))),
        }
    }

    /// The segments with abort words and doorbells.
    pub(super) fn control(&self) -> &SegmentSet {
        match self {
            Near::Shm(near) => near.segments(),
            #[cfg(feature = "cuda")]
            Near::Nvl(near) => near.control(),
        }
    }

    pub(super) fn close(self) -> Result<(), TransportError> {
        match self {
            Near::Shm(near) => near.close(),
            #[cfg(feature = "cuda")]
            Near::Nvl(near) => near.close(),
        }
    }
}
