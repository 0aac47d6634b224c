//! Virtual ranks on one GPU measured against frozen hand-written kernels, in one run.
//!
//! ```text
//!   cases ──▶ sides: graphs of ours, of frozen kernels, empty ones ──▶ race: replays in turn ──▶ medians ──▶ reports
//! ```
//! - **In**: the cases, sizes and numbers of blocks. **Out**: medians, and ratios to the limit with the same blocks, as
//!   a table, JSON rows and plots.
//! - **How**: a sample is several replays of captured graphs in which both ranks run side by side, so the slower rank
//!   counts. The buffers of successive replays differ, so that inputs are not in the cache. The sides take turns,
//!   sample by sample.
//! - **Invariants**: only results that were compared byte by byte count.
//!
//! | file | holds |
//! |---|---|
//! | `cases.rs` | the cases and their limits |
//! | `ours.rs` | graphs of `send`, `recv` and `sendrecv` |
//! | `collectives.rs` | graphs of collectives among four ranks |
//! | `columns.rs` | graphs of an all-to-all of column slices |
//! | `frozen.rs` | graphs of the hand-written kernels (`frozen.cu`, `frozen.ptx`) |
//! | `posts.rs` | ranks that post to each other, with limits of their own (`posts.ptx`) |
//! | `race.rs` | sides in turn |
//! | `panels.rs` | rows as pictures |

mod cases;
mod collectives;
mod columns;
mod frozen;
mod ours;
mod panels;
mod posts;
mod race;

pub use cases::{Plan, check_key};
pub use panels::panels;

use super::report::Row;
use anyhow::Result;

/// Measures.
pub fn run(plan: &Plan) -> Result<Vec<Row>> {
    cases::run(plan)
}
