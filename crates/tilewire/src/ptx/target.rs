//! The GPU architectures PTX is generated for, and their features.

use std::fmt;
use std::str::FromStr;

/// A GPU architecture.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[allow(missing_docs)] // the names say it all
pub enum Target {
    Sm80,
    Sm90a,
    Sm100a,
    Sm103a,
    Sm120,
}

impl Target {
    /// Every target, oldest first.
    pub const ALL: [Target; 5] = [Target::Sm80, Target::Sm90a, Target::Sm100a, Target::Sm103a, Target::Sm120];

    /// The name that PTX and `ptxas` use.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Sm80 => "sm_80",
            Target::Sm90a => "sm_90a",
            Target::Sm100a => "sm_100a",
            Target::Sm103a => "sm_103a",
            Target::Sm120 => "sm_120",
        }
    }

    /// The best target for a device of this compute capability. Targets with an `a` run on exactly one capability.
    /// Every other device from 8.0 on runs code for `sm_80`, or for `sm_120` from 12.0 on.
    pub const fn for_capability(major: u32, minor: u32) -> Option<Target> {
        Some(match (major, minor) {
            (9, 0) => Target::Sm90a,
            (10, 0) => Target::Sm100a,
            (10, 3) => Target::Sm103a,
            (12.., _) => Target::Sm120,
            (8.., _) => Target::Sm80,
            _ => return None,
        })
    }

    /// The PTX version that a text for this target declares: the oldest that supports the target and kernel parameters
    /// beyond 4 KiB.
    pub(super) const fn ptx_version(self) -> &'static str {
        match self {
            Target::Sm80 | Target::Sm90a => "8.1",
            Target::Sm100a => "8.6",
            Target::Sm120 => "8.7",
            Target::Sm103a => "8.8",
        }
    }

    /// Shared memory that one block can have, in bytes.
    pub const fn shared_bytes(self) -> u32 {
        match self {
            Target::Sm80 => 163 * 1024,
            Target::Sm90a | Target::Sm100a | Target::Sm103a => 227 * 1024,
            Target::Sm120 => 99 * 1024,
        }
    }

    /// True if the target has asynchronous bulk copies.
    pub(super) const fn has_bulk(self) -> bool {
        !matches!(self, Target::Sm80)
    }

    /// True if the target has instructions that convert from and to fp8.
    pub(super) const fn has_fp8(self) -> bool {
        !matches!(self, Target::Sm80)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        Target::ALL.into_iter().find(|target| target.name() == text).ok_or_else(|| {
            let all: Vec<&str> = Target::ALL.iter().map(|target| target.name()).collect();
            format!("there is no target '{text}'; there are {}", all.join(", "))
        })
    }
}
