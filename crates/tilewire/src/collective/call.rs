//! The user's call that an operation comes from: the operation, and its source line.

use crate::ir::{SourceLine, Type};
use std::fmt;

/// An operation as the user wrote it: `all_reduce of 600 f32 at src/main.rs:12:5`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// The operation, with its length and its types. For a user's own kernel, its name.
    pub operation: String,
    /// The line of the call.
    pub at: SourceLine,
}

impl Call {
    /// A collective or transfer of `len` elements of these types.
    pub(super) fn of(name: &str, len: usize, types: &[Type], at: &SourceLine) -> Call {
        let types: Vec<String> = types.iter().map(ToString::to_string).collect();
        Call { operation: format!("{name} of {len} {}", types.join(" and ")), at: at.clone() }
    }

    /// A user's own kernel.
    pub(super) fn of_kernel(name: &str, at: SourceLine) -> Call {
        Call { operation: format!("kernel {name}"), at }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.operation, self.at)
    }
}
