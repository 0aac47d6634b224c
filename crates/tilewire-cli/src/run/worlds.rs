//! Where ranks run: as threads, as processes started here, or as processes a launcher has started.

use crate::launch::{Job, launch};
use anyhow::{Context, Result, bail};
use std::io::{Write, stderr};
use std::process::ExitCode;
use tilewire::RunError;
use tilewire::transport::{Placement, RankError, TransferError, World, WorldError};

/// What `--world` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// Threads of this process.
    Threads,
    /// Processes, which this one starts: itself again, with `--world env`.
    Processes,
    /// This process is a rank already, as its environment says.
    Env,
}

impl Ranks {
    /// Reads the value of `--world`.
    pub fn parse(word: &str) -> Result<Ranks, String> {
        match word {
            "threads" => Ok(Ranks::Threads),
            "processes" => Ok(Ranks::Processes),
            "env" => Ok(Ranks::Env),
            _ => Err(format!("'{word}' is no world: there are threads, processes and env")),
        }
    }

    /// What is meant where nothing is said: a launcher's ranks under a launcher, and otherwise this.
    pub fn unless_launched(self) -> Ranks {
        let launched = !matches!(Placement::from_env(), Err(WorldError::NoLauncher));
        if launched { Ranks::Env } else { self }
    }
}

/// Runs `body` in every rank. It gives whether all is well, the same on every rank, and rank 0 has said so.
pub fn everywhere(
    ranks: Ranks,
    count: Option<usize>,
    body: impl Fn(&World) -> Result<bool, RankError> + Sync,
) -> Result<ExitCode> {
    match ranks {
        Ranks::Processes => in_processes(count.unwrap_or(DEFAULT), &[]),
        Ranks::Threads => match World::threads(count.unwrap_or(DEFAULT)).run(|world| body(&world)) {
            Ok(held) => Ok(status(held[0])),
            Err(WorldError::RankFailed { source, .. } | WorldError::AllFailed { source, .. })
                if is_refusal(&source) =>
            {
                Ok(refused(&source))
            }
            Err(error) => Err(error.into()),
        },
        Ranks::Env => {
            let world = World::from_env()?;
            if let Some(count) = count.filter(|&count| count != world.size()) {
                if world.rank().index() == 0 {
                    _ = writeln!(stderr(), "tilewire: --ranks {count}, but the launcher started {}", world.size());
                    return Ok(ExitCode::from(2));
                }
                return Ok(ExitCode::SUCCESS);
            }
            // When the first rank fails the launcher ends the others: what all ranks know is left to rank 0 to say.
            let speaks = world.rank().index() == 0;
            match body(&world) {
                Ok(held) => Ok(status(held || !speaks)),
                Err(error) if is_refusal(&error) => Ok(if speaks { refused(&error) } else { ExitCode::SUCCESS }),
                Err(error) => {
                    world.abort(&error.to_string());
                    bail!("rank {}: {error}", world.rank())
                }
            }
        }
    }
}

/// Ranks where nobody says how many.
pub const DEFAULT: usize = 2;

/// Runs this command again as every rank of a job, with more words; lines of ranks are not prefixed, since only rank 0 has a report to
/// give.
pub fn in_processes(count: usize, more: &[&str]) -> Result<ExitCode> {
    let own = std::env::current_exe().context("this program's own file is not known")?;
    let mut program = vec![own.to_string_lossy().into_owned()];
    program.extend(std::env::args().skip(1));
    program.extend(["--world", "env"].iter().chain(more).map(ToString::to_string));
    launch(&Job { ranks: count, deadline: None, program, prefixed: false })
}

/// Whether an error is about what was asked for, and not about what happened.
fn is_refusal(error: &RankError) -> bool {
    let broken = |error: &TransferError| matches!(error, TransferError::Broken { .. });
    matches!(error.downcast_ref::<RunError>(), Some(RunError::Transfer(error)) if !broken(error))
}

fn refused(error: &RankError) -> ExitCode {
    _ = writeln!(stderr(), "tilewire: {error}");
    ExitCode::from(2)
}

fn status(holds: bool) -> ExitCode {
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
