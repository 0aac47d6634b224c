//! What a check has to say: faults with names and lines, as text, as JSON and as a picture.
//!
//! - **In**: what the model saw ([`Seen`](super::model::Seen)), deadlocks and errors. **Out**: a [`Report`].
//! - **Invariants**: every fault names the source lines of all who take part in it; two runs of one plan print alike.
//! - **Must not know**: schedulers.
//!
//! | file | holds |
//! |---|---|
//! | `fault.rs` | [`Fault`], [`Event`]: what went wrong, who did it, where |
//! | `naming.rs` | from parties, instructions and bytes to names |
//! | `deadlock.rs` | who waits for whom, as a cycle in words |
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

/// How far a report holds.
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
        /// Whether every schedule was run before the budget was spent.
        exhausted: bool,
    },
}

/// What came of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of launches of each rank.
    pub launches: u32,
    /// What is wrong; empty when the check holds.
    pub faults: Vec<Found>,
    /// How far this holds.
    pub certainty: Certainty,
    /// Schedules that were run.
    pub schedules: u64,
    /// Steps of all of them.
    pub steps: u64,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty()
    }

    /// Whether the report holds for every schedule of the configuration.
    pub fn is_decided(&self) -> bool {
        self.certainty == Certainty::Decided
    }
}
