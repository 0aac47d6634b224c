//! What is known of the machines of a world: all that decisions depend on besides the message, the knobs and the link.

use crate::cuda::Device;
use crate::link::Transport;
use crate::schedule::BulkPlan;
use crate::transport::{LinkKind, Rank};
use crate::vm::Processor;

/// What decisions that ranks must agree in may depend on: plain data, so that all ranks can have the same.
///
/// Today each rank fills in its own machine, which is right where all ranks are on one. Ranks of several machines agree on these at the
/// rendezvous, and nothing that decides need change for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorldFacts {
    pub ranks: usize,
    pub machine: Machine,
    /// Whether all ranks reach each other through memory of one host.
    pub in_memory: bool,
    /// Copies of a role that share out the steps of a leg.
    pub copies: u32,
}

/// What runs the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    Cpu(Processor),
    Gpu {
        /// Ranks that share a device, at most.
        sharers: usize,
        multiprocessors: usize,
        /// Shared memory of a block.
        shared_bytes: usize,
    },
}

impl Machine {
    /// A GPU, of at most this many ranks.
    pub(super) fn of(device: &Device, sharers: usize) -> Machine {
        let (multiprocessors, shared_bytes) = (device.multiprocessors(), device.target().shared_bytes());
        Machine::Gpu { sharers, multiprocessors: multiprocessors as usize, shared_bytes: shared_bytes as usize }
    }
}

impl WorldFacts {
    pub(super) fn of(link: &dyn Transport) -> WorldFacts {
        let (me, ranks) = (link.rank(), link.world_size());
        let machine = match link.seat() {
            Some(seat) => Machine::of(seat.stream.device(), seat.sharers.max(1) as usize),
            None => Machine::Cpu(Processor::here()),
        };
        let in_memory = Rank::all(ranks).all(|rank| rank == me || link.link(rank).kind == LinkKind::Shm);
        WorldFacts { ranks, machine, in_memory, copies: link.copies() }
    }

    pub(super) fn on_gpu(&self) -> bool {
        matches!(self.machine, Machine::Gpu { .. })
    }

    /// Whether kernels have the form that suits a GPU: there, and in rehearsals of one.
    pub(super) fn for_gpu(&self) -> bool {
        self.on_gpu() || self.copies > 1
    }

    /// What bulk copies of a role go through, in bytes: each of two roles of a block has whole slots of the largest in its half of the shared
    /// memory, and the rest is left for what their hooks exchange.
    pub(super) fn bulk_scratch(&self) -> usize {
        match self.machine {
            Machine::Cpu(_) => BulkPlan::SCRATCH,
            Machine::Gpu { shared_bytes, .. } => shared_bytes / 2 / BulkPlan::LARGEST_SLOT * BulkPlan::LARGEST_SLOT,
        }
    }
}
