//! Whether there is memory for what is asked for, before it is taken: beyond what is left the system ends a process without a word.

use std::error::Error;
use std::fmt;
use tilewire::tensor::{MemoryLeft, Shortage};
use tilewire::transport::layout::{Geometry, Layout};

/// More was asked for than there is memory for.
#[derive(Debug)]
pub struct TooMuch {
    /// What was asked for.
    what: String,
    shortage: Shortage,
    /// The words of the command line that make it less.
    less: &'static str,
}

impl fmt::Display for TooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooMuch { what, shortage, less } = self;
        write!(f, "no memory for {what}: {shortage}: give a smaller {less}, or raise the memory limit")
    }
}

impl Error for TooMuch {}

/// Checks that `bytes` are left for `what`; `less` names the options of the command line that lower the need.
pub fn check(bytes: u64, less: &'static str, what: impl FnOnce() -> String) -> Result<(), TooMuch> {
    MemoryLeft::now().check(bytes).map_err(|shortage| TooMuch { what: what(), shortage, less })
}

/// Bytes of the segments of all ranks.
pub fn of_segments(geometry: Geometry) -> u64 {
    let of_one = Layout::new(geometry).map_or(u64::MAX, |layout| layout.bytes() as u64);
    of_one.saturating_mul(geometry.world_size as u64)
}
