//! Two ranks measured against hand-written limits and against Open MPI, in one run.
//!
//! ```text
//!   sendrecv: cases ──▶ sides, one half of each per rank ──▶ contest: rounds of samples ──▶ table, JSON rows
//!                          ▲          ▲           ▲                 │
//!                       limits      ours      mpi (its own        lockstep: rank 0 leads, rank 1 follows
//!                                             two processes)        probe │ warm up │ timed run │ probe ──▶ place
//! ```
//! - **In**: which cases and sizes, and whether the ranks are threads or processes. **Out**: medians by place, and ratios to the
//!   best limit of the same place.
//! - **Why places**: virtual processors move between physical ones within seconds, and a cache line then travels in 0.03, 0.06 or
//!   0.26 µs. A median over all of that compares nothing, so each sample is probed on both ends and counts for its [`place`] only.
//! - **Invariants**: both ranks make the same sides in the same order, since making one may be a collective call. Nothing is timed
//!   that was not checked byte by byte, and every timed message differs from the one before. Every wait ends when the other rank
//!   is gone.
//! - **Must not know**: how a kernel works. `ours` alone uses the collectives.

mod contest;
mod limits;
mod lockstep;
mod mpi;
mod ours;
mod pin;
mod place;
mod sendrecv;
mod side;
mod table;
mod words;
mod world;

pub use sendrecv::{Plan, check_key};
pub use table::{Heat, rows, table};
pub use world::Kind;

use anyhow::Result;
use mpi::Peer;

/// Measures in every world of the plan.
pub fn run(plan: &Plan) -> Result<Vec<Heat>> {
    let mut heats = Vec::new();
    for kind in plan.worlds() {
        // Rank 1 leads nobody.
        let peer = if world::is_rank() { Peer::Missing("not started by a rank".into()) } else { Peer::start() };
        heats.extend(sendrecv::run(plan, kind, peer)?);
    }
    Ok(heats)
}
