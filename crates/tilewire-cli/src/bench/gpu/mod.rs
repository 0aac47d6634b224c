//! Virtual ranks on one GPU measured against frozen hand-written kernels, in one run.
//!
//! ```text
//!   cases ──▶ sides: graphs of ours, of the frozen kernels, of nothing ──▶ race: replays in turn ──▶ medians ──▶ table, JSON rows, plots
//! ```
//! - **In**: which cases, sizes and numbers of blocks. **Out**: medians, and ratios to the limit of the same blocks.
//! - **How**: a sample is some replays of captured graphs in which both ranks run side by side, so it is the slower rank that counts.
//!   The buffers of successive replays differ, so that what is read is not in the cache. The sides take turns, sample by sample.
//! - **Invariants**: nothing counts that was not compared byte by byte.
//!
//! | file | holds |
//! |---|---|
//! | `cases.rs` | what is measured against what |
//! | `ours.rs` | graphs of `send`, `recv` and `sendrecv` |
//! | `collectives.rs` | graphs of collectives among four ranks |
//! | `frozen.rs` | graphs of the hand-written kernels (`frozen.cu`, `frozen.ptx`) |
//! | `race.rs` | sides in turn |
//! | `panels.rs` | rows as pictures |

mod cases;
mod collectives;
mod frozen;
mod ours;
mod panels;
mod race;

pub use cases::{Plan, check_key};
pub use panels::panels;

use super::report::Row;
use anyhow::Result;

/// Measures.
pub fn run(plan: &Plan) -> Result<Vec<Row>> {
    cases::run(plan)
}
