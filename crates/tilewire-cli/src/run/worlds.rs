//! The kinds of ranks: threads, processes that this program starts, or processes that a launcher has started.

use super::agreement::{Word, refuse_different};
use crate::launch::{Job, launch};
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::ffi::OsString;
use std::io::{Write, stderr};
use std::process::ExitCode;
use std::time::Duration;
use tilewire::RunError;
use tilewire::cuda::CudaError;
use tilewire::transport::{
    BootstrapError, Deadline, Placement, Rank, RankError, SegmentError, TransportError, World, WorldError,
};

/// The values of `--world`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ranks {
    /// Threads of this process.
    Threads,
    /// Processes that this one starts.
    Processes,
    /// This process is already a rank, as its environment says.
    Env,
}

impl Ranks {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Ranks::Threads => "threads",
            Ranks::Processes => "processes",
            Ranks::Env => "env",
        }
    }

    /// The default: a launcher's ranks under a launcher, and otherwise this.
    pub fn unless_launched(self) -> Ranks {
        let launched = !matches!(Placement::from_env(), Err(WorldError::NoLauncher));
        if launched { Ranks::Env } else { self }
    }
}

/// Runs `body` in every rank. It returns true if everything is right, the same on every rank, and rank 0 has reported
/// it. Processes compare `words` first.
pub fn everywhere(
    ranks: Ranks,
    count: Option<usize>,
    words: &[Word],
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
            // If left out, it is the number of ranks in the world.
            let ranks = Word::given("--ranks", count).of_kind(count.unwrap_or(world.size()));
            if let Some(code) = refuse_different(&world, &words.iter().chain([&ranks]).collect::<Vec<_>>())? {
                return Ok(code);
            }
            // When the first rank fails the launcher ends the others: what all ranks know is reported by rank 0 alone.
            let speaks = world.rank().index() == 0;
            if let Some(count) = count.filter(|&count| count != world.size()) {
                if !speaks {
                    return Ok(ExitCode::SUCCESS);
                }
                _ = writeln!(stderr(), "tilewire: --ranks {count}, but the launcher started {}", world.size());
                return Ok(ExitCode::from(2));
            }
            match body(&world) {
                Ok(held) => Ok(status(held || !speaks)),
                // Printed before the world is left: whatever that waits for, the error is out.
                Err(error) => Ok(fail(&world, &error)),
            }
        }
    }
}

/// The default number of ranks.
pub const DEFAULT: usize = 2;

/// Runs this command again as every rank of a job, with more arguments. Lines of ranks are not prefixed, since only
/// rank 0 has a report.
pub fn in_processes(count: usize, more: &[&str]) -> Result<ExitCode> {
    let own = std::env::current_exe().context("this program's own file is not known")?;
    let mut program = vec![own.into_os_string()];
    program.extend(std::env::args_os().skip(1));
    program.extend(["--world", "env"].iter().chain(more).map(OsString::from));
    let (deadline, hosts, address) = (None, Vec::new(), None);
    launch(&Job { ranks: count, deadline, hosts, address, program, prefixed: false })
}

/// The rank that reports why the job fails, and that it has done so, with the status of the job.
const SPEAKER: &str = "cli/speaker";
const SAID: &str = "cli/said";
/// How long a rank that fails because of another waits for that one's report.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reports why this rank has failed, unless another rank has reported it, or is about to: the first cause is reported,
/// once. Returns the same status on all ranks, since the launcher's is that of whichever ends first.
fn fail(world: &World, error: &RankError) -> ExitCode {
    let store = world.bootstrap();
    let said = || store.get(SAID, Deadline::after(PATIENCE)).ok().and_then(|code| code.first().copied());
    if blames_another(error, world.rank())
        && let Some(code) = said()
    {
        return ExitCode::from(code);
    }
    let own = world.rank().number().to_le_bytes();
    if matches!(store.set(SPEAKER, &own, Deadline::after(PATIENCE)), Err(BootstrapError::KeyTaken { .. }))
        && let Some(code) = said()
    {
        return ExitCode::from(code);
    }
    let code = if is_refusal(error) { 2 } else { 1 };
    _ = writeln!(stderr(), "tilewire: rank {}: {error}", world.rank());
    // A rank that does not learn of it reports its own error.
    _ = store.set(SAID, &[code], Deadline::after(PATIENCE));
    world.abort(&error.to_string());
    ExitCode::from(code)
}

/// True if an error is, or may be, the consequence of another rank's.
fn blames_another(error: &RankError, own: Rank) -> bool {
    let by_bootstrap = |error: &BootstrapError| matches!(error, BootstrapError::PeerGone { peer, .. } if *peer != own);
    let by_transport = |error: &TransportError| match error {
        TransportError::Broken { cause } => cause.rank != own.index(),
        TransportError::Peer { rank, .. } => *rank != own,
        TransportError::Bootstrap(error) => by_bootstrap(error),
        TransportError::Segment(error) => matches!(error, SegmentError::Died { .. } | SegmentError::Peer { .. }),
        _ => false,
    };
    if let Some(error) = error.downcast_ref::<RunError>() {
        return match error {
            RunError::PeerFailed { rank, .. } => *rank != own,
            RunError::Transport(error) => by_transport(error),
            _ => false,
        };
    }
    if let Some(error) = error.downcast_ref::<TransportError>() {
        return by_transport(error);
    }
    if let Some(error) = error.downcast_ref::<BootstrapError>() {
        return by_bootstrap(error);
    }
    // Others have types that show it; what remains are texts, into which some commands turn their errors.
    !error.is::<std::io::Error>() && !error.is::<CudaError>()
}

/// True if an error is about the request, and not about an event.
fn is_refusal(error: &RankError) -> bool {
    matches!(error.downcast_ref::<RunError>(), Some(RunError::Transfer(_)))
}

fn refused(error: &RankError) -> ExitCode {
    _ = writeln!(stderr(), "tilewire: {error}");
    ExitCode::from(2)
}

fn status(holds: bool) -> ExitCode {
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
