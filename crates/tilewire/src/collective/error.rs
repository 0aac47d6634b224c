//! What can go wrong between a collective's call and its result.

use crate::cuda::CudaError;
use crate::hook::{BuildError, Misuse};
use crate::ir::SourceLine;
use crate::transport::{Rank, TransferError, TransportError};
use crate::vm::{LaunchError, PrepareError};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a collective gave no result; one variant per stage.
///
/// ```
/// use tilewire::{RunError, Tensor, map};
/// let (out, inp) = (Tensor::<f32>::zeros(4), Tensor::<f32>::zeros(4));
/// let error = map(&out, &inp).produce(|c| c.input.load(c.pos() + 1)).run().unwrap_err();
/// assert!(matches!(error, RunError::Launch(_)), "element 4 is known to be missing only when it is read");
/// assert!(error.to_string().contains("input"));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RunError {
    /// Tracing the hooks found a misuse, or a hook panicked.
    Build(BuildError),
    /// The kernel cannot be compiled for the engine, or its arguments do not fit it.
    Prepare(PrepareError),
    /// A launch failed; what it had written by then stays written.
    Launch(LaunchError),
    /// The GPU engine cannot take the kernel, or a launch on a GPU failed.
    Cuda(CudaError),
    /// The transport cannot do the transfer, or broke before.
    Transfer(TransferError),
    /// The ranks could not meet.
    Transport(Arc<TransportError>),
    /// Two ranks want different things. Nothing was sent, and the transport can still be used.
    Mismatch(Box<Mismatch>),
    /// A wait for a peer expired. The transport is broken.
    Timeout(Box<Timeout>),
}

/// What two ranks of a transfer or a collective say differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// This rank.
    pub rank: Rank,
    /// The other.
    pub peer: Rank,
    /// What they differ in.
    pub what: String,
    /// What this rank says.
    pub mine: String,
    /// What the other says.
    pub theirs: String,
}

/// A wait for a peer that expired.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeout {
    /// The rank that waited.
    pub rank: Rank,
    /// The rank it waited for.
    pub peer: Rank,
    /// The block that waited.
    pub block: usize,
    /// The role that waited.
    pub role: String,
    /// What it waited for: the op, and the slot or packet.
    pub op: String,
    /// The number of the slot or packet among those of the peer.
    pub slot: i64,
    /// The value that was waited for.
    pub expected: u64,
    /// The value seen last.
    pub seen: u64,
    /// How long it waited without any progress.
    pub after: Duration,
    /// Source line of the wait.
    pub at: SourceLine,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { rank, peer, what, mine, theirs } = self;
        write!(f, "the ranks differ in {what}: rank {rank} says {mine}, rank {peer} says {theirs}")
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Timeout { rank, peer, block, role, op, expected, seen, after, at, .. } = self;
        write!(
            f,
            "rank {rank} waited {after:?} for rank {peer}: {op} is {seen}, {expected} is needed (block {block}, role {role}, \
             at {at}); see what rank {peer} is doing, or allow a longer deadline"
        )
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Build(error) => error.fmt(f),
            RunError::Prepare(error) => error.fmt(f),
            RunError::Launch(error) => error.fmt(f),
            RunError::Cuda(error) => error.fmt(f),
            RunError::Transfer(error) => error.fmt(f),
            RunError::Transport(error) => error.fmt(f),
            RunError::Mismatch(error) => error.fmt(f),
            RunError::Timeout(error) => error.fmt(f),
        }
    }
}

impl RunError {
    /// The misuses of the language that this error lists, each with the user's line; empty for other kinds of error.
    pub fn misuses(&self) -> &[Misuse] {
        match self {
            RunError::Build(error) => error.misuses(),
            _ => &[],
        }
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // `Display` already says what the stage's error says, so the chain goes on with that error's own source.
        match self {
            RunError::Build(error) => error.source(),
            RunError::Prepare(error) => error.source(),
            RunError::Launch(error) => error.source(),
            RunError::Cuda(error) => error.source(),
            RunError::Transfer(error) => error.source(),
            RunError::Transport(error) => error.source(),
            RunError::Mismatch(_) | RunError::Timeout(_) => None,
        }
    }
}

impl From<BuildError> for RunError {
    fn from(error: BuildError) -> Self {
        RunError::Build(error)
    }
}

impl From<PrepareError> for RunError {
    fn from(error: PrepareError) -> Self {
        RunError::Prepare(error)
    }
}

impl From<LaunchError> for RunError {
    fn from(error: LaunchError) -> Self {
        RunError::Launch(error)
    }
}

impl From<CudaError> for RunError {
    fn from(error: CudaError) -> Self {
        RunError::Cuda(error)
    }
}

impl From<TransferError> for RunError {
    fn from(error: TransferError) -> Self {
        RunError::Transfer(error)
    }
}

impl From<TransportError> for RunError {
    fn from(error: TransportError) -> Self {
        RunError::Transport(Arc::new(error))
    }
}
