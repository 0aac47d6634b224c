//! The errors of a kernel, and their messages.

use super::super::kernel::SourceLine;
use super::super::types::{Shape, Type};

/// All errors of a kernel, declarations first, then in program order. Never empty.
#[derive(Clone, PartialEq)]
pub struct VerifyErrors(pub Vec<VerifyError>);

/// One error of a kernel, and its place.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct VerifyError {
    /// Name of the kernel.
    pub kernel: String,
    /// Name of the role; `None` if the kernel as a whole is at fault.
    pub role: Option<String>,
    /// The instruction as in the text of the kernel; `None` if a declaration is at fault.
    pub inst: Option<String>,
    /// The error.
    pub fault: Fault,
    /// The line of the user's source, if known.
    pub at: Option<SourceLine>,
}

/// An error. Values, variables and scratch of a role's code are named as in the text of the kernel. Ids that do not
/// appear in that text (regions, instructions, unknown ids) are named as in the arena.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Operands of the wrong type or shape, in the words of [`typing::complaints`](crate::ir::typing::complaints).
    Types(String),
    /// An id that is in no table of the kernel.
    Dangling {
        /// The id.
        id: String,
    },
    /// A lane value used after the `each` that it lives in.
    Escapes {
        /// The value.
        value: String,
    },
    /// A value used before the instruction that defines it.
    UseBeforeDef {
        /// The value.
        value: String,
    },
    /// A value used after the end of the region that defines it (a loop index after the loop, a branch's value after
    /// it).
    NotDominated {
        /// The value.
        value: String,
    },
    /// A value of an instruction that stands in no role's body.
    Unplaced {
        /// The value.
        value: String,
    },
    /// A variable that is read though some path to here does not write it.
    Unassigned {
        /// The variable.
        var: String,
    },
    /// A value, variable or scratch of another role.
    WrongRole {
        /// The value, variable or scratch.
        what: String,
        /// Name of the role it belongs to.
        owner: String,
    },
    /// `if`, `for` or `while` in an `each`.
    ControlInEach,
    /// A signal, wait, barrier, bulk or network op, or an assignment, in an `each`.
    SyncInEach,
    /// A group reduction or packet op outside any `each`.
    OutsideEach,
    /// An `each` in an `each`.
    NestedEach,
    /// A packet put after one was got, in one `each`.
    PutAfterGet,
    /// Packets put and got in one `each` of two dimensions.
    SwapInTwoDimensions,
    /// Packets put and got in one `each` that combines neighbours.
    SwapInGroups,
    /// The type and shape recorded for the result are not those of the op.
    WrongResult {
        /// What the op defines.
        expected: Option<(Type, Shape)>,
        /// What the kernel has recorded.
        recorded: Option<(Type, Shape)>,
    },
    /// A value that does not name the instruction that defines it: two instructions define it, or its record is wrong.
    WrongDef {
        /// The value.
        value: String,
    },
    /// An instruction with the wrong number of index values.
    WrongIndices {
        /// Axes of the op.
        expected: usize,
        /// Index values recorded.
        recorded: usize,
    },
    /// A region that stands in two places.
    RegionShared {
        /// The region.
        region: String,
    },
    /// An instruction that stands in two places.
    InstShared {
        /// The instruction.
        inst: String,
    },
    /// Regions nested too deeply.
    TooDeep {
        /// The deepest nesting allowed.
        limit: usize,
    },
    /// An access that is out of bounds in every execution.
    OutOfBounds {
        /// The unit: element, byte, packet, slot or bank.
        unit: &'static str,
        /// Name of the parameter.
        of: String,
        /// The first one accessed.
        index: i64,
        /// One past the last one accessed.
        end: i128,
        /// The number that exists.
        len: u64,
    },
    /// A `put` or `get` at a byte offset that is not a multiple of the value's size.
    Misaligned {
        /// The byte offset.
        index: i64,
        /// Type of the value.
        ty: Type,
    },
    /// An invalid parameter.
    BadParam {
        /// Its name.
        param: String,
        /// The reason.
        reason: String,
    },
    /// Invalid scratch.
    BadScratch {
        /// Its id.
        scratch: String,
        /// The reason.
        reason: String,
    },
    /// An invalid role, or an invalid combination of roles.
    BadRole {
        /// The reason.
        reason: String,
    },
    /// A kernel without blocks.
    BlocksZero,
}

messages! {
    enum Fault {
        Types(complaint) => "{complaint}",
        Dangling { id } => "{id} is not of this kernel",
        Escapes { value } => "{value} is a lane value and its each has ended; store it in memory and load it here",
        UseBeforeDef { value } => "{value} is used before it is defined",
        NotDominated { value } => "{value} is used after the region that defines it; carry it out in a variable",
        Unplaced { value } => "{value} is defined by an instruction that no role runs",
        Unassigned { var } => "{var} is read where it may have no value yet; write it before, on every path",
        WrongRole { what, owner } => "{what} belongs to role {owner}; roles share only memory and signals",
        ControlInEach => "control flow inside an each; use select or a masked load or store, or move it outside",
        SyncInEach => "an op of the whole group inside an each; move it before or after the each",
        OutsideEach => "an op on elements outside any each; put it in the body of one",
        PutAfterGet =>
            "a packet is put after another was got, in one each: whether elements that wait hold back others is not \
             defined; put first, or use two eaches",
        SwapInTwoDimensions =>
            "packets are put and got in one each of two dimensions, whose order of elements is free: ranks could wait \
             for each other; use an each of one dimension, or two eaches",
        SwapInGroups =>
            "packets are put and got in one each that combines neighbours: ranks could wait for each other; use two \
             eaches",
        NestedEach => "each inside an each; use one each of two extents",
        WrongResult { expected, recorded } => (
            "the op defines {} but {} is recorded",
            kind(*expected), kind(*recorded)
        ),
        WrongDef { value } => "{value} is recorded as defined by something else",
        WrongIndices { expected, recorded } => "the op has {expected} index values but {recorded} are recorded",
        RegionShared { region } => "region {region} stands in two places; give each its own copy of the instructions",
        InstShared { inst } => "instruction {inst} stands in two places; copy it",
        TooDeep { limit } => "regions are nested more than {limit} deep",
        OutOfBounds { unit, of, index, end, len } => { |f|
            write!(f, "{unit} {index}")?;
            if *end > i128::from(*index) + 1 {
                write!(f, "..{end}")?;
            }
            write!(f, " of {of} is out of bounds: it has {len}")
        },
        Misaligned { index, ty } => ("byte offset {index} is not a multiple of {}, the size of {ty}", ty.size()),
        BadParam { param, reason } => "parameter {param}: {reason}",
        BadScratch { scratch, reason } => "scratch {scratch}: {reason}",
        BadRole { reason } => "{reason}",
        BlocksZero => "the kernel has 0 blocks; 1 is the least",
    }
}

fn kind(kind: Option<(Type, Shape)>) -> String {
    match kind {
        None => "no value".into(),
        Some((ty, Shape::Uniform)) => format!("a uniform {ty}"),
        Some((ty, Shape::Lane)) => format!("a lane {ty}"),
    }
}

errors! {
    struct VerifyError {
        VerifyError { kernel, role, inst, at, fault } => { |f|
            write!(f, "error: {fault}\n  in kernel {kernel}")?;
            role.iter().try_for_each(|role| write!(f, ", role {role}"))?;
            inst.iter().try_for_each(|inst| write!(f, ": {inst}"))?;
            at.iter().try_for_each(|at| write!(f, "\n  at {at}"))
        },
    }
}

errors! {
    struct VerifyErrors {
        VerifyErrors(all) => { |f|
            all.iter().enumerate().try_for_each(|(k, error)| write!(f, "{}{error}", if k > 0 { "\n" } else { "" }))
        },
    }
}
