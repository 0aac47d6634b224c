//! The facts about a world's machines: everything that decisions depend on besides the message, the knobs and the link.

use crate::cuda::Device;
use crate::link::Transport;
use crate::schedule::BulkPlan;
use crate::transport::{LinkKind, Rank};
use crate::vm::Processor;

/// The facts that decisions may depend on if all ranks must agree on them. They are plain data, so that all ranks can
/// hold the same values.
///
/// Each rank fills in its own machine, which is correct if all ranks are on one machine. Ranks on several machines
/// would agree on these facts at the rendezvous, without any change to the deciding code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorldFacts {
    pub ranks: usize,
    pub machine: Machine,
    /// True if all ranks reach each other through the memory of one host, or are threads of hosts.
    pub in_memory: bool,
    /// True if some ranks reach each other by posts.
    pub has_far: bool,
    /// Number of copies of a role that share the steps of a leg.
    pub copies: u32,
}

/// The machine that runs the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    Cpu(Processor),
    Gpu {
        /// Maximum number of ranks that share a device.
        sharers: usize,
        multiprocessors: usize,
        /// Bytes of shared memory per block.
        shared_bytes: usize,
    },
}

impl Machine {
    /// A GPU shared by at most this many ranks.
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
        // Posts leave a processor's threads as they are: one thread still runs all roles.
        let on_host = link.seat().is_none();
        let is_memory = |kind: LinkKind| kind == LinkKind::Shm || on_host && kind == LinkKind::Fabric;
        let in_memory = Rank::all(ranks).all(|rank| rank == me || is_memory(link.link(rank).kind));
        let has_far = Rank::all(ranks).any(|rank| link.link(rank).kind == LinkKind::Fabric);
        WorldFacts { ranks, machine, in_memory, has_far, copies: link.copies() }
    }

    pub(super) fn on_gpu(&self) -> bool {
        matches!(self.machine, Machine::Gpu { .. })
    }

    /// True if kernels take the form that suits a GPU: on a GPU, and in rehearsals of one.
    pub(super) fn for_gpu(&self) -> bool {
        self.on_gpu() || self.copies > 1
    }

    /// True in a world of GPUs, or in the rehearsal of one, some of which reach each other by posts.
    pub(super) fn is_gpu_mesh(&self) -> bool {
        self.has_far && self.for_gpu()
    }

    /// Bytes of scratch for the bulk copies of a role. Each of a block's two roles has whole slots of the largest size
    /// in its half of the shared memory. The rest is left for the values that their hooks exchange.
    pub(super) fn bulk_scratch(&self) -> usize {
        match self.machine {
            Machine::Cpu(_) => BulkPlan::SCRATCH,
            Machine::Gpu { shared_bytes, .. } => shared_bytes / 2 / BulkPlan::LARGEST_SLOT * BulkPlan::LARGEST_SLOT,
        }
    }
}
