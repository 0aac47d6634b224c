//! Why a kernel cannot be written as PTX.

use super::target::Target;

/// Why a legal kernel has no PTX for a target.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PtxError {
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

errors! {
    enum PtxError {
        TooManyWarps { warps, most } =>
            "the roles of a block have {warps} warps; {most} fit: use fewer warps or copies",
        TooManyBarriers { copies, most } =>
            "{copies} role copies need a barrier of their own; a block has {most}: use fewer copies",
        SharedMemory { bytes, most, target } =>
            "a block needs {bytes} bytes of shared memory; {target} has {most}: use less scratch",
        TooManyBanks { bytes, most } =>
            "the addresses of all banks take {bytes} bytes of parameters; a launch passes {most}",
    }
}
