//! Checks for enough memory before it is allocated: beyond the limit the system kills a process silently.

use std::error::Error;
use std::fmt;
use tilewire::tensor::{MemoryLeft, Shortage};
use tilewire::transport::layout::{Geometry, Layout};

/// More memory was requested than there is.
#[derive(Debug)]
pub struct TooMuch {
    /// The request.
    what: String,
    shortage: Shortage,
    /// The options that reduce it.
    less: &'static str,
}

impl fmt::Display for TooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooMuch { what, shortage, less } = self;
        write!(f, "no memory for {what}: {shortage}: give a smaller {less}, or raise the memory limit")
    }
}

impl Error for TooMuch {}

/// Checks that `bytes` bytes are left for `what`; `less` names the command-line options that lower the need.
pub fn check(bytes: u64, less: &'static str, what: impl FnOnce() -> String) -> Result<(), TooMuch> {
    MemoryLeft::now().check(bytes).map_err(|shortage| TooMuch { what: what(), shortage, less })
}

/// Bytes of the segments of all ranks.
pub fn of_segments(geometry: Geometry) -> u64 {
    let of_one = Layout::new(geometry).map_or(u64::MAX, |layout| layout.bytes() as u64);
    of_one.saturating_mul(geometry.world_size as u64)
}
