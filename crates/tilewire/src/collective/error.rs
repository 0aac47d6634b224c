//! What can go wrong between a collective's call and its result.

use crate::hook::BuildError;
use crate::vm::{LaunchError, PrepareError};
use std::fmt;

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
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Build(error) => error.fmt(f),
            RunError::Prepare(error) => error.fmt(f),
            RunError::Launch(error) => error.fmt(f),
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
