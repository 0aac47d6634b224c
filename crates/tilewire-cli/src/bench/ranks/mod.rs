//! Ranks measured against hand-written limits and against MPI, in one run. Over a network, see [`network`].
//!
//! ```text
//!   sendrecv/, collectives/: cases ──▶ heats: steps ──▶ contest: rounds of samples ──▶ tables, JSON rows, plots
//!                            │                             │
//!                            ▼                             ▼
//!          sides, one half of each per rank:           lockstep: rank 0 leads, the others follow
//!          limits, ours; mpi (its own processes)       probe │ warm up │ timed run │ probe ──▶ place
//! ```
//! - **In**: the cases and sizes, the number of ranks, and whether they are threads or processes. **Out**: medians by
//!   place, and ratios to the best limit of the same place.
//! - **Why places**: virtual processors move between physical ones within seconds, and a cache line then travels in
//!   0.03, 0.06 or 0.26 µs. A median over all of that compares nothing, so each sample is probed before and after, and
//!   counts for its [`place`] only.
//! - **Invariants**: all ranks make the same sides in the same order, since making one may be a collective call. Only
//!   sides that were checked byte by byte are timed, and every timed message differs from the one before. Every wait
//!   ends when another rank is gone.
//! - **Must not know**: how a kernel works. Only the `ours` files use the library's collectives.

mod collectives;
mod contest;
mod copy;
mod heats;
mod links;
mod lockstep;
mod mpi;
mod network;
mod pin;
mod place;
mod sendrecv;
mod side;
mod words;
mod world;

pub use collectives::{Plan as CollectivePlan, SUBJECTS as COLLECTIVES, table as collective_table};
pub use heats::{Heat, panels, rows};
pub use network::{
    Plan as NetworkPlan, What as NetworkWork, panels as network_panels, rows as network_rows, run as network,
    table as network_table,
};
pub use sendrecv::{Plan as PairPlan, check_key as check_pair_key, table as pair_table};
pub use world::{Kind, is_rank};

use anyhow::Result;
use mpi::Peer;

/// Measures transfers of two ranks in every world of the plan.
pub fn sendrecv(plan: &PairPlan) -> Result<Vec<Heat>> {
    let mut heats = Vec::new();
    for kind in plan.worlds() {
        // Rank 1 leads nobody.
        let peer = if world::is_rank() { Peer::Missing("not started by a rank".into()) } else { Peer::start(2) };
        heats.extend(sendrecv::run(plan, kind, peer)?);
    }
    Ok(heats)
}

/// Measures collectives.
pub fn collectives(plan: &CollectivePlan) -> Result<Vec<Heat>> {
    collectives::run(plan, Peer::start(plan.ranks))
}
