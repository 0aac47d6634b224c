//! Faults, and the events involved in them.

use crate::check::error::EvalError;
use crate::check::model::Conflict;
use crate::check::residency::NotResident;
use crate::ir::SourceLine;
use std::ops::Range;

/// An event: a party, an op and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The rank.
    pub rank: u32,
    /// The launch, from 0.
    pub launch: u32,
    /// The block; `None` for a host.
    pub block: Option<u32>,
    /// Name of the role; `None` for a host.
    pub role: Option<String>,
    /// Copy of the role; `None` for a host.
    pub copy: Option<u32>,
    /// The party, if it is not the role copy itself: a bulk copy, a network put, a copy engine, a host.
    pub party: Option<&'static str>,
    /// Source line; `None` for a host.
    pub at: Option<SourceLine>,
    /// The line of the role, if the op itself is in another file: for example that of a library schedule, whose caller
    /// this is.
    pub role_at: Option<SourceLine>,
    /// The op, as in the text form of the IR.
    pub op: String,
}

/// A fault, its count, and the events that lead to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The first one.
    pub fault: Fault,
    /// How many like it (with the same two instructions) the run found.
    pub times: u64,
    /// The signals and waits that had to happen for it, in order. Nothing else of the schedule matters.
    pub prefix: Vec<Moment>,
    /// True if it was found with one copy of every role, as the CPU engine runs them, and not with all copies.
    pub with_one_copy: bool,
}

/// A signal or a wait on the way to a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moment {
    /// The party and the place.
    pub event: Event,
    /// The action: `signals tail[0][1] = 5`.
    pub deed: String,
    /// The index of the signal that a wait was for, if it is in the list.
    pub from: Option<usize>,
}

/// A party that waits forever.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// The party and the place.
    pub event: Event,
    /// The condition: `tail[0][1] ≥ 5, seen 4`.
    pub on: String,
    /// The party that would have to signal, in words.
    pub needs: String,
    /// The waiters (indices in the list) that would have to signal.
    pub after: Vec<usize>,
}

/// A fault.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Two accesses to the same bytes, one of them a write, that nothing orders.
    Race {
        /// The missing order between them.
        conflict: Conflict,
        /// The one that ran first.
        first: Event,
        /// The other.
        second: Event,
        /// The memory.
        memory: String,
        /// The bytes of it.
        bytes: Range<u64>,
    },
    /// A write of another rank, during a launch, to bytes that the launch reaches through an input or an output. A
    /// kernel may assume that nobody else writes them, so signals do not help.
    Promised {
        /// The one that ran first.
        first: Event,
        /// The other.
        second: Event,
        /// The input or output.
        memory: String,
        /// The bytes of it.
        bytes: Range<u64>,
        /// True for an input.
        input: bool,
        /// The rank it belongs to.
        rank: u32,
    },
    /// A wait that a signal of another operation satisfies: the two ranks launched different operations.
    OtherOperation {
        /// The slot.
        slot: String,
        /// The wait.
        wait: Event,
        /// The operation of its launch.
        expected: Option<u16>,
        /// The signal.
        signal: Event,
        /// Its operation.
        seen: Option<u16>,
    },
    /// A read of bytes that nobody wrote.
    Unwritten {
        /// The read.
        by: Event,
        /// The memory.
        memory: String,
        /// The bytes of it.
        bytes: Range<u64>,
    },
    /// Two signals to one slot that nothing orders: the counter can go backwards.
    TwoWriters {
        /// The slot.
        slot: String,
        /// One.
        first: Event,
        /// The other.
        second: Event,
    },
    /// A signal that does not make its counter grow.
    NotGrowing {
        /// The slot.
        slot: String,
        /// The signal before.
        first: Event,
        /// Its value.
        before: u64,
        /// The signal.
        second: Event,
        /// Its value.
        value: u64,
    },
    /// A first signal that is smaller than the counter's initial value: waits for that value end too early, or never.
    BelowStart {
        /// The slot.
        slot: String,
        /// The initial value.
        before: u64,
        /// The signal.
        signal: Event,
        /// Its value.
        value: u64,
    },
    /// A wait that a signal meant for another satisfies: the value it names is never signalled.
    Skipped {
        /// The slot.
        slot: String,
        /// The wait.
        wait: Event,
        /// The value it names.
        expected: u64,
        /// The signal.
        signal: Event,
        /// Its value.
        value: u64,
    },
    /// A packet whose flag is not larger than that of the packet before: a reader can mistake the old for the new.
    StaleFlag {
        /// The write.
        by: Event,
        /// The area.
        memory: String,
        /// First byte of the packet.
        byte: u64,
        /// The flag before.
        before: u64,
        /// The flag.
        flag: u64,
    },
    /// A credit for a step that its giver does not know to be sent: more is taken than there is, and the sender
    /// continues with a slot that was not read.
    OverCredit {
        /// The counter of credits.
        slot: String,
        /// The credit.
        credit: Event,
        /// Its value.
        value: u64,
        /// The counter of data.
        tail: String,
        /// The last value known to be sent.
        known: u64,
        /// The sender's wait that the credit ends.
        wait: Option<Event>,
    },
    /// Data that was signalled and that nobody waited for in that launch or before.
    Leftover {
        /// The slot.
        slot: String,
        /// The signal.
        signal: Event,
        /// Its value.
        value: u64,
        /// The largest value anybody waited for.
        waited: u64,
    },
    /// A packet that nobody took in its launch or before.
    Untaken {
        /// The access that put it.
        by: Event,
        /// The area.
        memory: String,
        /// First byte of the packet.
        byte: u64,
        /// Its flag.
        flag: u64,
    },
    /// A word of a handshake that does not end with its initial value: the next launch mistakes it for its own.
    NotReset {
        /// The word.
        slot: String,
        /// The last write.
        write: Event,
        /// Its value.
        value: u64,
    },
    /// Nobody can run.
    Deadlock {
        /// The waiters.
        waiters: Vec<Waiter>,
        /// A cycle among them, as indices in the list; empty if somebody waits for something that nobody will do.
        cycle: Vec<usize>,
    },
    /// A host finds another value in a tensor than it should ([`Plan::expect`](crate::check::Plan::expect)).
    WrongValue {
        /// The rank.
        rank: u32,
        /// The launch before the check.
        launch: u32,
        /// The tensor.
        tensor: String,
        /// The first element that differs.
        element: u64,
        /// The expected value.
        expected: String,
        /// The value found; `None` if no kernel wrote it.
        found: Option<String>,
        /// Number of elements that differ.
        count: u64,
        /// The line that states the expectation.
        at: SourceLine,
    },
    /// A wait for a slot that no kernel of the world signals.
    NoProducer {
        /// The slots.
        slot: String,
        /// The wait.
        wait: Event,
    },
    /// Blocks that wait for each other and do not all fit on the device simultaneously.
    NotResident {
        /// The launch, from 0.
        launch: u32,
        /// The scarce resource.
        why: NotResident,
        /// A role of the launch.
        at: Option<SourceLine>,
    },
    /// A meaningless op: out of bounds, misaligned, a zero flag, an endless loop, a wrong binding.
    Error(EvalError),
}

impl Fault {
    /// One word for the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Race { .. } => "race",
            Fault::Promised { .. } => "written-during-launch",
            Fault::OtherOperation { .. } => "other-operation",
            Fault::Unwritten { .. } => "unwritten",
            Fault::TwoWriters { .. } => "two-writers",
            Fault::NotGrowing { .. } | Fault::BelowStart { .. } => "not-growing",
            Fault::Skipped { .. } => "skipped",
            Fault::StaleFlag { .. } => "stale-flag",
            Fault::OverCredit { .. } => "over-credit",
            Fault::Leftover { .. } => "leftover",
            Fault::Untaken { .. } => "untaken",
            Fault::NotReset { .. } => "not-reset",
            Fault::Deadlock { .. } => "deadlock",
            Fault::WrongValue { found: None, .. } => "not-written",
            Fault::WrongValue { .. } => "wrong-value",
            Fault::NoProducer { .. } => "no-producer",
            Fault::NotResident { .. } => "not-resident",
            Fault::Error(EvalError::OutOfBounds { .. }) => "out-of-bounds",
            Fault::Error(EvalError::ForeignSlot { .. }) => "foreign-slot",
            Fault::Error(EvalError::StepLimit { .. }) => "step-limit",
            Fault::Error(EvalError::OtherOperation { .. }) => "other-operation",
            Fault::Error(EvalError::Required { .. }) => "required",
            Fault::Error(_) => "error",
        }
    }

    /// All events involved, in order.
    pub fn events(&self) -> Vec<&Event> {
        match self {
            Fault::Race { first, second, .. }
            | Fault::Promised { first, second, .. }
            | Fault::TwoWriters { first, second, .. }
            | Fault::NotGrowing { first, second, .. } => vec![first, second],
            Fault::Skipped { wait, signal, .. } | Fault::OtherOperation { wait, signal, .. } => vec![signal, wait],
            Fault::Unwritten { by, .. } | Fault::StaleFlag { by, .. } => vec![by],
            Fault::OverCredit { credit, wait, .. } => std::iter::once(credit).chain(wait).collect(),
            Fault::Leftover { signal, .. } | Fault::BelowStart { signal, .. } => vec![signal],
            Fault::Untaken { by, .. } => vec![by],
            Fault::NotReset { write, .. } => vec![write],
            Fault::NoProducer { wait, .. } => vec![wait],
            Fault::Deadlock { waiters, .. } => waiters.iter().map(|waiter| &waiter.event).collect(),
            Fault::NotResident { .. } | Fault::WrongValue { .. } | Fault::Error(_) => Vec::new(),
        }
    }

    /// The source lines of all events involved, in order.
    pub fn lines(&self) -> Vec<SourceLine> {
        use EvalError::{
            CopyOverlaps, ForeignSlot, Malformed, Misaligned, OtherOperation, OutOfBounds, Required, StepLimit,
            ZeroFlag,
        };
        match self {
            Fault::Error(
                OutOfBounds { by, .. }
                | Misaligned { by, .. }
                | ForeignSlot { by, .. }
                | ZeroFlag { by }
                | StepLimit { by, .. }
                | CopyOverlaps { by, .. }
                | OtherOperation { by, .. }
                | Required { by, .. }
                | Malformed { by, .. },
            ) => {
                vec![by.at.clone()]
            }
            Fault::WrongValue { at, .. } => vec![at.clone()],
            Fault::NotResident { at, .. } => at.iter().cloned().collect(),
            _ => self.events().iter().filter_map(|event| event.at.clone()).collect(),
        }
    }
}
