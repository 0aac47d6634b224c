//! The result of a plan, so that the checker's executor can be compared with an engine.

use super::choose::{Chooser, Priorities, ToBlock};
use super::execute::{Ending, Limits, Waiting, Who, execute};
use super::plan::{Plan, Stage};
use super::stream::StreamId;
use crate::check::error::{EvalError, Location, Stuck};
use crate::check::memory::Memories;
use crate::check::model::Watch;
use crate::check::verify::Settings;
use crate::tensor::Memory;

/// Memory when all launches of a plan are over. The tensors themselves are not touched.
pub struct After {
    stage: Stage,
    memories: Memories,
}

impl After {
    /// The bytes of a memory that the plan's arguments name, without gaps between rows.
    ///
    /// # Panics
    /// If none of them names it.
    pub fn bytes(&self, memory: &Memory) -> Vec<u8> {
        self.stage.snapshot.rows(memory).flat_map(|row| self.memories.bank(row).to_vec()).collect()
    }
}

/// Choices between which random priorities change.
const CHANGED_WITHIN: u64 = 256;

impl Plan {
    /// Runs the launches once, in a copy of the memory, with the executor that [`Plan::verify`] uses: everybody runs
    /// until it waits, or, with a seed, by random priorities. Inputs keep their bytes between launches. Faults that do
    /// not stop the run are ignored.
    pub fn run(&self, settings: &Settings, seed: Option<u64>) -> Result<After, EvalError> {
        let stage = self.stage()?;
        let limits = Limits { most_copies: settings.most_copies, steps: settings.step_limit, first_fault: false };
        let mut chooser: Box<dyn Chooser> = match seed {
            None => Box::new(ToBlock),
            Some(seed) => Box::new(Priorities::new(seed, CHANGED_WITHIN, 8)),
        };
        let outcome = execute(self, &stage, Watch::default(), limits, &mut *chooser);
        match outcome.ending {
            Ending::Complete | Ending::Stopped | Ending::Abandoned => {}
            Ending::Error(error) => return Err(error),
            Ending::Deadlock(waiting) => {
                let blocked = waiting.into_iter().map(|Waiting { who, launch, on }| {
                    let by = match who {
                        Who::Role(who) => Location::new(self.kernel(launch, who.rank), who, &on.at),
                        Who::Stream(StreamId { rank, number }) => {
                            Location { at: on.at.clone(), rank, block: 0, role: "copy engine".into(), copy: number }
                        }
                    };
                    Stuck { by, on }
                });
                return Err(EvalError::Deadlock { blocked: blocked.collect() });
            }
        }
        let memories = outcome.memories;
        Ok(After { stage, memories })
    }
}
