//! Errors of tracing a kernel, with messages that say what to do.

use crate::ir::{SourceLine, Type, VerifyErrors};
use crate::tensor::MixedBanks;
use std::fmt;

/// Why a kernel could not be built.
#[derive(Clone)]
#[non_exhaustive]
pub enum BuildError {
    /// The language was misused; every place is listed.
    Misuse {
        /// Name of the kernel.
        kernel: String,
        /// The user's line that builds it.
        built_at: SourceLine,
        /// The misuses, in the order they were met; never empty.
        errors: Vec<Misuse>,
    },
    /// Two traces of one closure differ.
    NotPure {
        /// Name of the kernel.
        kernel: String,
        /// The user's line that builds it.
        built_at: SourceLine,
        /// The first line whose instruction differs.
        at: SourceLine,
        /// What differs.
        difference: String,
    },
    /// The closure panicked.
    Panicked {
        /// Name of the kernel.
        kernel: String,
        /// The panic's message.
        message: String,
        /// The user's line that builds it; for a collective, the line of its call.
        at: SourceLine,
        /// Misuse met before the panic, which may have led to it.
        earlier: Vec<Misuse>,
    },
    /// The traced kernel is illegal in a way that tracing does not detect.
    Verify {
        /// Name of the kernel.
        kernel: String,
        /// The user's line that builds it.
        built_at: SourceLine,
        /// The verifier's report.
        errors: VerifyErrors,
    },
}

impl BuildError {
    /// The misuses this error lists; empty for other kinds of error.
    pub fn misuses(&self) -> &[Misuse] {
        match self {
            BuildError::Misuse { errors, .. } | BuildError::Panicked { earlier: errors, .. } => errors,
            _ => &[],
        }
    }
}

errors! {
    enum BuildError {
        Misuse { kernel, built_at, errors } => { |f|
            write!(f, "kernel {kernel}, built at {built_at}, cannot be built:")?;
            list(f, errors)
        },
        NotPure { kernel, built_at, at, difference } =>
            "kernel {kernel}, built at {built_at}, is not pure: tracing its closure twice gave two kernels, first \
             different at {at}: {difference}. The closure may run any number of times: keep counters, random numbers \
             and changing state out of it (a number that changes between launches is a Scalar)",
        Panicked { kernel, message, at, earlier } => { |f|
            write!(f, "the closure of kernel {kernel}, built at {at}, panicked: {message}")?;
            if !earlier.is_empty() {
                write!(f, "\nbefore that:")?;
            }
            list(f, earlier)
        },
        Verify { kernel, built_at, errors } => "kernel {kernel}, built at {built_at}, is not legal:\n{errors}",
    }
}

fn list(f: &mut fmt::Formatter<'_>, errors: &[Misuse]) -> fmt::Result {
    errors.iter().try_for_each(|e| write!(f, "\n  {e}"))
}

/// One place where the language was misused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misuse {
    /// The user's line.
    pub at: SourceLine,
    /// The misuse.
    pub kind: MisuseKind,
}

messages! {
    struct Misuse {
        Misuse { at, kind } => "{at}: {kind}",
    }
}

/// The part of a kernel a value belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the names of the language
pub enum ScopeKind {
    Role,
    If,
    For,
    While,
    Each,
}

messages! {
    enum ScopeKind {
        Role => "role",
        If => "if_",
        For => "for_",
        While => "while_",
        Each => "each",
    }
}

/// The misuses of the language that the compiler cannot detect.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MisuseKind {
    /// A value that differs between elements where the whole group must agree.
    LaneInUniform {
        /// What the value was used as.
        what: &'static str,
    },
    /// A value used after the body that computed it.
    Escaped {
        /// The kind of body.
        from: ScopeKind,
        /// Where that body began.
        began: SourceLine,
    },
    /// Something of one role used in another.
    OtherRole {
        /// `value`, `variable` or `scratch`.
        what: &'static str,
        /// The role it belongs to.
        owner: String,
        /// The role that used it.
        user: String,
    },
    /// An operation outside every role.
    OutsideRole,
    /// A store into a view that was declared as input.
    StoreToInput {
        /// Name of the parameter.
        name: String,
    },
    /// A hook of a collective that touches memory outside its leg.
    WrongLeg {
        /// `produce` or `consume`.
        hook: &'static str,
        /// `c.input`, `c.output` or `c.region`.
        what: &'static str,
        /// True if it writes there.
        writes: bool,
    },
    /// An `each` inside an `each`.
    NestedEach {
        /// Where the outer one began.
        outer: SourceLine,
    },
    /// A role inside a role.
    NestedRole {
        /// The outer role.
        outer: String,
    },
    /// Control flow, a variable's assignment or synchronisation inside an `each`.
    InsideEach {
        /// The operation.
        what: &'static str,
        /// Where the `each` began.
        each: SourceLine,
    },
    /// An operation between elements outside every `each`.
    OutsideEach {
        /// The operation.
        what: &'static str,
    },
    /// A shape that does not match the size of the memory.
    Shape {
        /// The requested number of rows.
        rows: usize,
        /// The requested number of columns.
        cols: usize,
        /// The distance between rows.
        stride: usize,
        /// The number of elements of the memory.
        len: usize,
    },
    /// Elements of a tensor with gaps between its rows, used as if they were neighbours or in other rows.
    Gaps {
        /// Rows of the tensor.
        rows: usize,
        /// Columns of the tensor.
        cols: usize,
        /// Distance between its rows.
        stride: usize,
    },
    /// An output whose rows are all the same elements.
    Expanded {
        /// Its rows.
        rows: usize,
    },
    /// Memory with gaps where a run of bytes is needed.
    GapsInBank {
        /// Name of the parameter.
        name: String,
    },
    /// A shape that does not match one chunk.
    ChunkShape {
        /// `input` or `output`.
        of: &'static str,
        /// Elements of the shape.
        elements: usize,
        /// Elements of a chunk.
        len: usize,
    },
    /// Two lengths that must agree and do not.
    Length {
        /// What has the length.
        what: &'static str,
        /// The length it has.
        is: usize,
        /// The length it must have.
        must: usize,
    },
    /// A constant index outside the view.
    OutOfBounds {
        /// The index.
        index: i128,
        /// The view's length.
        len: usize,
    },
    /// A chunk without shape addressed by row and column.
    NoShape,
    /// A field that names one rank, where several qualify.
    SeveralRanks {
        /// `peer()` or `recv_peer()`.
        field: &'static str,
        /// `produce` or `consume`.
        hook: &'static str,
        /// The collective.
        collective: &'static str,
        /// The field to use instead, and its meaning.
        instead: &'static str,
    },
    /// `row()` or `col()` used on an axis of a chunk that is shorter than the range of the position.
    Transposed {
        /// `row()` or `col()`.
        what: &'static str,
        /// The exclusive bound of the position.
        runs_to: usize,
        /// The length of the axis.
        extent: usize,
    },
    /// A hook whose payload the default `consume` cannot store.
    NeedsConsume {
        /// The types that `produce` returns.
        carries: Vec<Type>,
        /// Element type of the output.
        output: Type,
    },
    /// A `consume` given before the `produce` that decides its argument.
    HookOrder,
    /// A group of no elements.
    ZeroGroup,
    /// A number that must be at least one and is not.
    TooSmall {
        /// The quantity.
        what: &'static str,
        /// The number.
        is: i128,
    },
    /// Signal slots at a distance that is not a positive multiple of 8.
    Stride {
        /// The distance in bytes.
        stride: u32,
    },
    /// A table whose banks mix signals that carry the number of their operation with memory that carries none.
    MixedBanks {
        /// Name of the table.
        name: String,
        /// The banks.
        mixed: MixedBanks,
    },
    /// Two roles of one name.
    DuplicateRole {
        /// The name.
        name: String,
        /// Where the first was declared.
        first: SourceLine,
    },
    /// A kernel without a role.
    NoRole,
    /// A value that should travel once for a group of neighbours, but is not known to be the same for all of them.
    NotShared {
        /// Elements of a group.
        group: usize,
    },
    /// A hook that cannot work where it was given.
    Refused {
        /// The hook's own words.
        why: String,
    },
    /// A number that does not fit its type.
    ConstantRange {
        /// The number.
        number: i128,
        /// The type that must hold it.
        ty: Type,
    },
}

messages! {
    enum MisuseKind {
        LaneInUniform { what } =>
            "{what} is a lane value (one per element), but the whole group must agree on it: compute it from uniform \
             values, or use select, load_if or store_if inside the each",
        Escaped { from: ScopeKind::Each, began } =>
            "this value exists once per element of the each at {began} and is used outside of it: store it into a \
             view or scratch inside the each and load it afterwards",
        Escaped { from, began } =>
            "this value is computed in the {from} at {began}, which may not have run, and is used outside of it: \
             assign it to a variable (r.var) that is declared before the {from}",
        OtherRole { what: what @ "value", owner, user } =>
            "a {what} of role {owner} is used in role {user}, but roles share nothing but memory: compute it in both, \
             or pass it through a buffer and a signal",
        OtherRole { what, owner, user } =>
            "{what} of role {owner} is used in role {user}, but it is private to its role: declare one in {user}, or \
             use a buffer",
        OutsideRole => "an operation outside every role: put it into k.main(|r| ..) or k.role(..).run(|r| ..)",
        StoreToInput { name } => "store into {name}, which is an input: declare it with k.output or k.inout",
        WrongLeg { hook, what: what @ "c.output", writes: true } =>
            "{hook} stores to {what}, which consume writes as values arrive: return the value from {hook}, and store \
             it in consume",
        WrongLeg { hook, what: what @ "c.output", writes: false } =>
            "{hook} reads {what}, which may already be overwritten: read it in consume, which writes it, or let \
             {hook} read c.input or a tensor that it captures",
        WrongLeg { hook, what: what @ "c.input", writes: true } =>
            "{hook} stores to {what}, which hooks only read: store to c.output, in consume",
        WrongLeg { hook, what: what @ "c.input", writes: false } =>
            "{hook} reads {what}, but this rank only receives and has no input: capture the tensor, and read it with \
             at(index)",
        WrongLeg { hook, what, writes: true } =>
            "{hook} writes {what}, which other elements and the peer read: it holds the values that produce returns; \
             store other results to c.output, in consume",
        WrongLeg { hook, what, writes: false } =>
            "{hook} reads {what}, which does not hold the data it sends yet: read c.input",
        NestedEach { outer } =>
            "each inside the each at {outer}: use each2 for two dimensions, or put a for_ around the each",
        NestedRole { outer } => "role inside role {outer}: declare roles side by side on the block",
        InsideEach { what, each } =>
            "{what} inside the each at {each}, where elements run independently: move it before or after the each \
             (per-element choice is select, load_if and store_if)",
        OutsideEach { what } => "{what} outside an each: it works on the elements of an each",
        Shape { rows, cols, stride, len } if stride == cols => (
            "shape {rows} x {cols} is {} elements, but the view has {len}: shape part(start, len) of it, or correct \
             the shape",
            *rows as u128 * *cols as u128
        ),
        Shape { rows, cols, stride, len } =>
            "shape {rows} x {cols} with rows {stride} apart does not fit a view of {len} elements: rows must not \
             overlap and the last must end inside",
        Gaps { rows, cols, stride } =>
            "a tensor of {rows} rows of {cols} elements, {stride} apart, has gaps: it can be shaped as [{rows}, {cols}] \
             only (matrix()), and bulk copies and posts need neighbours; for anything else pass contiguous(), which \
             copies",
        Expanded { rows } =>
            "the output is an expanded tensor, whose {rows} rows are one row of memory (row stride 0): give it memory \
             for every row",
        GapsInBank { name } =>
            "{name} has gaps between its rows, but a bank is one run of bytes: pass the tensor to k.input, k.output or \
             k.inout, or the memory of contiguous()",
        ChunkShape { of, elements, len } =>
            "a shape of {elements} elements for a chunk of {len} of the {of}: give the shape of one chunk, which one \
             rank sends to one other, not that of the whole tensor; if it is that of a chunk, the {of} has the wrong \
             length",
        Length { what, is, must } => "{what} has length {is}, but it must be {must}",
        OutOfBounds { index, len } => "index {index} is outside a view of {len} elements",
        NoShape =>
            "row and column of a chunk without a shape: call chunk_shape(rows, cols) on the collective, or use \
             load(pos)",
        SeveralRanks { field, hook, collective, instead } => { |f|
            let (why, other) = match *field {
                "peer()" => ("ends in the outputs of all ranks", "consume hook, which runs where it ends"),
                _ => ("comes from the inputs of all ranks", "produce hook, before it is combined"),
            };
            write!(
                f,
                "c.{field} in the {hook} hook of {collective}: the value {why}, so no single rank is meant: use {instead}, or \
                 c.{field} in the {other}"
            )
        },
        Transposed { what, runs_to, extent } =>
            "{what} runs to {runs_to}, but this axis of the chunk has {extent}: hooks run over the positions of the \
             output; for a transpose say output_shape(cols, rows) beside chunk_shape(rows, cols), and read \
             at(c.col(), c.row())",
        NeedsConsume { carries, output } => (
            "produce returns {}, which cannot be stored into an output of {output} as it is: add a consume hook, or \
             cast in produce",
            carries.iter().map(|ty| ty.name()).collect::<Vec<_>>().join(" and ")
        ),
        HookOrder => "consume before produce: produce decides what consume gets, so give produce first",
        ZeroGroup => "a group of 0 elements: the size of a group is at least 1",
        TooSmall { what, is } => "{what} is {is}, but at least 1 is needed",
        Stride { stride } =>
            "slots {stride} bytes apart: a slot is 8 bytes, so the distance is a positive multiple of 8",
        MixedBanks { name, mixed } => "table {name} mixes two kinds of banks: {mixed}",
        DuplicateRole { name, first } =>
            "a second role named {name} (the first is at {first}): give each role its own name",
        NoRole => "the kernel has no role: give it a body with k.main(|r| ..)",
        NotShared { group } =>
            "last_per({group}), but the last value is not known to be the same for all of {group} neighbours: compute \
             it only from group reductions such as group_max({group}), constants and scalars",
        Refused { why } => "{why}",
        ConstantRange { number, ty } => "{number} does not fit {ty}",
    }
}
