//! Runs of a whole world: every rank's launches one after the other, ranks in parallel, hosts between launches.
//!
//! - **In**: a [`Plan`]. **Out**: an [`Outcome`] for each schedule that was run.
//! - **Invariants**: a run depends only on its plan and its [`Chooser`]. Nothing orders ranks but signals: one may be
//!   launches ahead of another.
//! - **Must not know**: how faults are named or printed.
//!
//! | file | holds |
//! |---|---|
//! | `plan.rs` | [`Plan`]: launches, memory, what hosts read and write |
//! | `execute.rs` | one run under a chooser |
//! | `after.rs` | [`After`]: the bytes after a run |
//! | `stream.rs` | [`CopyStream`]: the copy engines beside the kernels |
//! | `ready.rs` | the parties that can run, if each runs until it waits |
//! | `values.rs` | the values that hosts put into tensors and expect in them |
//! | `choose.rs` | the next party: to the next wait, or by random priorities |
//! | `explore.rs` | all schedules in turn, up to the order of steps that commute |
//! | `footprint.rs` | which steps those are |

mod after;
mod choose;
mod execute;
mod explore;
mod footprint;
mod plan;
mod ready;
mod stream;
mod values;

pub use after::After;
pub use choose::{Chooser, Priorities, ToBlock};
pub(super) use execute::{Ending, Limits, Outcome, Waiting, Who, execute};
pub use explore::Exhaustive;
pub use plan::Plan;
pub(super) use plan::{Span, Stage};
pub(super) use stream::{BoundOp, StreamOp};
pub use stream::{CopyStream, StreamId, Word};
pub use values::Values;
pub(super) use values::Wrong;
