//! The result of a check: faults with names and lines, as text, as JSON and as a picture.
//!
//! - **In**: the faults of the model ([`Seen`](super::model::Seen)), deadlocks and errors. **Out**: a [`Report`].
//! - **Invariants**: every fault names the source lines of all events involved in it. Two runs of one plan print alike.
//! - **Must not know**: schedulers.
//!
//! | file | holds |
//! |---|---|
//! | `fault.rs` | [`Fault`], [`Event`]: the fault, the parties, the places |
//! | `naming.rs` | from parties, instructions and bytes to names |
//! | `deadlock.rs` | the wait-for graph, with its cycle in words |
//! | `text.rs` | `Display` |
//! | `json.rs` | the same for programs |
//! | `timeline.rs` | the offending interleaving as SVG |

mod deadlock;
mod fault;
mod json;
mod naming;
mod text;
mod timeline;

pub use fault::{Event, Fault, Found, Moment, Waiter};
pub(in crate::check) use naming::Namer;

/// The scope of a report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Certainty {
    /// For every schedule of this configuration: the program is in the monotone fragment.
    Decided,
    /// For the schedules that were run.
    Sampled {
        /// Why one run does not decide.
        why: String,
        /// Seed of the random schedules.
        seed: u64,
        /// True if every schedule was run before the budget was spent.
        exhausted: bool,
    },
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of launches of each rank.
    pub launches: u32,
    /// The faults; empty if the check holds.
    pub faults: Vec<Found>,
    /// The scope of the result.
    pub certainty: Certainty,
    /// Schedules that were run.
    pub schedules: u64,
    /// Steps of all schedules together.
    pub steps: u64,
}

impl Report {
    /// True if there are no faults.
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty()
    }

    /// True if the report holds for every schedule of the configuration.
    pub fn is_decided(&self) -> bool {
        self.certainty == Certainty::Decided
    }
}
