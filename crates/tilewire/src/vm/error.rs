//! What can go wrong when a kernel is prepared or launched on the CPU.

use crate::ir::{RequiredBytes, SourceLine, Type};
use std::time::Duration;

/// Why a kernel cannot be prepared for the CPU engine.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum PrepareError {
    /// The kernel's IR is malformed; the text lists every fault.
    Invalid(String),
    /// The arguments do not match the parameters.
    Argument {
        /// Name of the parameter.
        param: String,
        /// What is wrong, with the values.
        what: String,
    },
    /// A parameter's memory is not aligned as the kernel states.
    Unaligned {
        /// Name of the parameter.
        param: String,
        /// Its element type.
        ty: Type,
        /// The required alignment, in bytes.
        align: usize,
        /// The address.
        address: usize,
    },
    /// A role needs more registers or lanes than the bytecode can name.
    TooLarge {
        /// Name of the role.
        role: String,
        /// Uniform registers it needs.
        registers: usize,
        /// Lanes it needs.
        lanes: usize,
        /// The maximum of each.
        limit: usize,
    },
    /// An environment variable has an unknown value.
    BadVariable {
        /// Its name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The values it may have.
        expected: &'static str,
    },
    /// An `each` uses more group sizes, or larger ones, than the engine can hold in one strip.
    Groups {
        /// The group sizes.
        sizes: Vec<u32>,
        /// Where the `each` is.
        at: SourceLine,
    },
}

errors! {
    enum PrepareError {
        Invalid(faults) => "the kernel is malformed:\n{faults}",
        Argument { param, what } => "argument {param}: {what}",
        Unaligned { param, ty, align, address } =>
            "argument {param} ({ty}) is at address {address:#x}, which is no multiple of the {align} bytes its kernel \
             needs",
        TooLarge { role, registers, lanes, limit } =>
            "role {role} needs {registers} registers and {lanes} lanes; at most {limit} of each fit: unroll less",
        BadVariable { variable, value, expected } => "{variable} is '{value}': it must be {expected}, or unset",
        Groups { sizes, at } => "groups of {sizes:?} elements in one each at {at} do not fit one strip: use two eaches",
    }
}

/// Why a launch failed. What it had written by then stays written.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum LaunchError {
    /// An access left its buffer.
    OutOfBounds {
        /// The buffer, region or slot table.
        name: String,
        /// Index of the first element outside (of a strip: the index where the strip starts).
        index: i64,
        /// Its number of elements (bytes in a region).
        len: u64,
        /// Block and role that did it.
        by: Box<Who>,
        /// Source line of the access.
        at: SourceLine,
    },
    /// A byte offset of a put or get is not a multiple of the value's size.
    Misaligned {
        /// The region.
        name: String,
        /// The byte offset.
        offset: i64,
        /// The size it must be a multiple of.
        size: u32,
        /// Block and role that did it.
        by: Box<Who>,
        /// Source line of the access.
        at: SourceLine,
    },
    /// An access to a bank that does not exist.
    NoSuchBank {
        /// The buffer or slot table.
        name: String,
        /// The bank asked for.
        bank: i64,
        /// How many there are.
        banks: u32,
        /// Block and role that did it.
        by: Box<Who>,
        /// Source line of the access.
        at: SourceLine,
    },
    /// A bulk copy or post of a negative number of elements.
    NegativeCount {
        /// The number.
        count: i64,
        /// Block and role that did it.
        by: Box<Who>,
        /// Source line.
        at: SourceLine,
    },
    /// A requirement of the kernel ([`Op::Require`](crate::ir::Op::Require)) does not hold.
    Required {
        /// The bytes it is about, if it is about bytes.
        span: Option<RequiredBytes>,
        /// Block and role that found it.
        by: Box<Who>,
        /// Source line of the requirement.
        at: SourceLine,
    },
    /// A wait was not satisfied before the deadline.
    Timeout {
        /// What was waited for: the op and the slot, packet or queue.
        what: String,
        /// The bank of the slot or packet, if there are several.
        bank: Option<u32>,
        /// The rank that signals there, if the purpose of the parameter says so.
        peer: Option<u32>,
        /// The index of the slot or packet; `None` for a wait for room in a queue and for a polling loop.
        index: Option<i64>,
        /// Value that was waited for.
        expected: u64,
        /// Value seen last.
        seen: u64,
        /// The deadline.
        after: Duration,
        /// Block and role that waited.
        by: Box<Who>,
        /// Source line of the wait.
        at: SourceLine,
    },
    /// The awaited signal or packet came, but of another operation: the peer launched something else.
    OtherOperation {
        /// What was waited for: the op and the slot or packet.
        what: String,
        /// The bank of the slot or packet, if there are several.
        bank: Option<u32>,
        /// The rank that signals there, if the purpose of the parameter says so.
        peer: Option<u32>,
        /// The operation of this launch.
        expected: u16,
        /// The operation of the peer's launch.
        seen: u16,
        /// Block and role that waited.
        by: Box<Who>,
        /// Source line of the wait.
        at: SourceLine,
    },
    /// The job was aborted while this launch waited: another rank died, failed or gave up.
    Aborted {
        /// What happened, and to which rank.
        cause: String,
        /// The abort word, for callers that can decode it.
        word: u64,
        /// What was waited for when the abort was seen.
        what: String,
        /// Block and role that waited.
        by: Box<Who>,
        /// Source line of the wait.
        at: SourceLine,
    },
    /// The kernel uses memory that was lent for the time of a closure, which has ended. Nothing was run.
    Returned {
        /// The rank.
        rank: usize,
    },
    /// The launch was made on another thread than the one whose memory the kernel uses. Nothing was run.
    OtherThread {
        /// The rank.
        rank: usize,
    },
}

/// A running (rank, block, role).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// The rank.
    pub rank: usize,
    /// The block.
    pub block: usize,
    /// The role's name.
    pub role: String,
}

messages! {
    struct Who {
        Who { rank, block, role } => "rank {rank} block {block} role {role}",
    }
}

errors! {
    enum LaunchError {
        // A strip is checked as a whole, so its first index may be in bounds.
        OutOfBounds { name, index, len, by, at } if (0..*len as i64).contains(index) =>
            "an access to elements from index {index} on leaves {name}, which has {len}: {by}, at {at}",
        OutOfBounds { name, index, len, by, at } => "index {index} is outside {name}, which has {len}: {by}, at {at}",
        Misaligned { name, offset, size, by, at } =>
            "byte offset {offset} in {name} is no multiple of {size}, the size of the value: {by}, at {at}",
        NoSuchBank { name, bank, banks, by, at } => "there is no bank {bank} of {name}, which has {banks}: {by}, at {at}",
        NegativeCount { count, by, at } => "a copy or post of {count} elements, which is negative: {by}, at {at}",
        Required { span, by, at } => { |f|
            RequiredBytes::explain(span.as_ref(), f)?;
            write!(f, ": {by}, at {at}")
        },
        Timeout { what, expected, seen, after, by, at, .. } =>
            "{what}: waited {after:?} for {expected}, saw {seen}: {by}, at {at}; see what the rank that signals it is \
             doing, or allow a longer deadline",
        OtherOperation { what, expected, seen, by, at, .. } =>
            "{what}: the peer launched operation {seen} where this rank launched operation {expected}: {by}, at {at}; \
             launch the same operations in the same order on both ranks",
        Aborted { cause, what, by, at, .. } =>
            "aborted, because {cause}: {by} stopped in {what}, at {at}; counters are undefined now: look into the \
             cause, then connect the ranks anew",
        Returned { rank } =>
            "rank {rank} launches a kernel over memory that was lent, and its owner has it back: launch it inside the \
             closure of Tensor::lend, or rebind it to other tensors",
        OtherThread { rank } =>
            "rank {rank} launches a kernel over another thread's own memory: launch it on the thread that made its \
             tensors",
    }
}
