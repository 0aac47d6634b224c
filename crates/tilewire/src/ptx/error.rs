//! Why a kernel cannot be written as PTX.

use super::target::Target;
use std::fmt;

/// Why a legal kernel has no PTX for a target.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PtxError {
    /// An op that the GPU engine does not support.
    Unsupported {
        /// The op, as the text form writes it.
        op: String,
        /// Source line.
        at: String,
    },
    /// The roles of a block have more lanes than a block can.
    TooManyWarps {
        /// Warps of all copies of all roles.
        warps: u32,
        /// Most that fit.
        most: u32,
    },
    /// There are more role copies with several warps than named barriers.
    TooManyBarriers {
        /// Copies that need a barrier of their own.
        copies: u32,
        /// Named barriers of a block.
        most: u32,
    },
    /// Scratch, and the shared memory of group ops, is larger than the target's shared memory.
    SharedMemory {
        /// Bytes that a block needs.
        bytes: u64,
        /// Bytes that the target has.
        most: u32,
        /// The target.
        target: Target,
    },
    /// The parameter block is larger than a launch can pass.
    TooManyBanks {
        /// Bytes of the parameter block.
        bytes: u64,
        /// Most that a launch passes.
        most: u32,
    },
}

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PtxError::Unsupported { op, at } => write!(f, "{at}: the GPU engine does not have `{op}` yet"),
            PtxError::TooManyWarps { warps, most } => {
                write!(f, "the roles of a block have {warps} warps; {most} fit: use fewer warps or copies")
            }
            PtxError::TooManyBarriers { copies, most } => {
                write!(f, "{copies} role copies need a barrier of their own; a block has {most}: use fewer copies")
            }
            PtxError::SharedMemory { bytes, most, target } => {
                write!(f, "a block needs {bytes} bytes of shared memory; {target} has {most}: use less scratch")
            }
            PtxError::TooManyBanks { bytes, most } => {
                write!(f, "the addresses of all banks take {bytes} bytes of parameters; a launch passes {most}")
            }
        }
    }
}

impl std::error::Error for PtxError {}
