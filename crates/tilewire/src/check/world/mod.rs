//! Runs of a whole world: every rank's launches one after the other, ranks beside each other, hosts between launches.
//!
//! - **In**: a [`Plan`]. **Out**: an [`Outcome`] for each schedule that was run.
//! - **Invariants**: a run depends on its plan and its [`Chooser`] alone; ranks are ordered by nothing but signals: one may be
//!   launches ahead of another.
//! - **Must not know**: how faults are named or printed.
//!
//! | file | holds |
//! |---|---|
//! | `plan.rs` | [`Plan`]: launches, memory, what hosts read and write |
//! | `execute.rs` | one run under a chooser |
//! | `after.rs` | [`After`]: the bytes that a run leaves |
//! | `choose.rs` | who runs next: to the next wait, all schedules in turn, or by random priorities |

mod after;
mod choose;
mod execute;
mod plan;

pub use after::After;
pub use choose::{Chooser, Exhaustive, Priorities, ToBlock};
pub(super) use execute::{Ending, Limits, Outcome, Waiting, execute};
pub use plan::Plan;
pub(super) use plan::Stage;
