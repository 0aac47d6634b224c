//! Errors of a run.

use super::eval::Blocked;
use super::observer::Actor;
use crate::ir::{Kernel, RequiredBytes, SourceLine};

/// The place of an error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// The user's source line.
    pub at: SourceLine,
    /// The rank.
    pub rank: u32,
    /// The block.
    pub block: u32,
    /// Name of the role.
    pub role: String,
    /// The copy of the role.
    pub copy: u32,
}

impl Location {
    pub(super) fn new(kernel: &Kernel, who: Actor, at: &SourceLine) -> Self {
        let role = kernel.roles[who.role].name.clone();
        Location { at: at.clone(), rank: who.rank, block: who.block, role, copy: who.copy }
    }
}

messages! {
    struct Location {
        Location { at, rank, block, role, copy } => "{at} (rank {rank}, block {block}, role {role}, copy {copy})",
    }
}

/// One instance of a deadlock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// The place of its wait.
    pub by: Location,
    /// What it waits for.
    pub on: Blocked,
}

/// Why a run did not finish.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EvalError {
    /// An unmasked access outside its bound memory.
    OutOfBounds {
        /// The indexed object: a parameter, a scratch, a bank, a count.
        what: String,
        /// The index used, in the units of the op (elements, bytes or packets).
        index: i64,
        /// The number that exist, in the same units.
        len: u64,
        /// The place.
        by: Location,
    },
    /// A `put` or `get` at a byte offset that is not a multiple of the value's size.
    Misaligned {
        /// The parameter or scratch.
        what: String,
        /// The byte offset.
        offset: i64,
        /// Size of the value.
        size: u64,
        /// The place.
        by: Location,
    },
    /// A bulk copy whose source and destination have bytes in common.
    CopyOverlaps {
        /// The destination.
        what: String,
        /// The place.
        by: Location,
    },
    /// A notice of a post for a slot that the proxy does not move for this rank and peer.
    ForeignSlot {
        /// The slots.
        what: String,
        /// The number of the slot.
        index: i64,
        /// The place.
        by: Location,
    },
    /// A packet flag is 0, which means empty.
    ZeroFlag {
        /// The place.
        by: Location,
    },
    /// The awaited signal or packet came from another operation than this launch's: the two ranks launched different
    /// operations.
    OtherOperation {
        /// The slot or packet.
        what: String,
        /// The operation of this launch.
        expected: u16,
        /// The other operation.
        seen: u16,
        /// The place.
        by: Location,
    },
    /// A requirement of the kernel does not hold: the launch ends on all ranks.
    Required {
        /// The bytes it is about, if it is about bytes.
        span: Option<RequiredBytes>,
        /// The place.
        by: Location,
    },
    /// Every unfinished instance waits for something that nobody will do.
    Deadlock {
        /// The waiting instances.
        blocked: Vec<Stuck>,
    },
    /// The run took too many steps: an endless loop, or the limit is too low.
    StepLimit {
        /// The limit.
        limit: u64,
        /// The instance that took the last step, and its place.
        by: Location,
    },
    /// The arguments do not fit the kernel.
    Binding {
        /// The kernel.
        kernel: String,
        /// The mismatch.
        message: String,
    },
    /// An op appears where the language does not allow it: the kernel was not verified.
    Malformed {
        /// The error.
        message: String,
        /// The place.
        by: Location,
    },
}

errors! {
    enum EvalError {
        OutOfBounds { what, index, len, by } => "{by}: index {index} of {what}, which has {len}",
        Misaligned { what, offset, size, by } =>
            "{by}: byte offset {offset} of {what} is not a multiple of the value's {size} bytes",
        CopyOverlaps { what, by } =>
            "{by}: source and destination of a bulk copy overlap in {what}; copy through scratch",
        ForeignSlot { what, index, by } =>
            "{by}: a notice for slot {index} of {what}, which posts of this rank to this peer do not move",
        ZeroFlag { by } => "{by}: packet flag is 0, which means empty; count flags from 1",
        OtherOperation { what, expected, seen, by } =>
            "{by}: {what} is of operation {seen}, and this launch is operation {expected}; launch the same operations \
             in the same order on both ranks",
        Required { span, by } => { |f|
            write!(f, "{by}: ")?;
            RequiredBytes::explain(span.as_ref(), f)
        },
        Deadlock { blocked } => { |f|
            write!(f, "deadlock: {} instances wait forever", blocked.len())?;
            for Stuck { by, on } in blocked {
                write!(f, "\n  {by}: {on}")?;
            }
            Ok(())
        },
        StepLimit { limit, by } => "{by}: no end after {limit} steps: an endless loop, or raise the step limit",
        Binding { kernel, message } => "arguments of {kernel}: {message}",
        Malformed { message, by } => "{by}: {message}; verify kernels before running them",
    }
}
