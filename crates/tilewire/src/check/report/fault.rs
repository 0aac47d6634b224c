//! What can be wrong, and who takes part.

use crate::check::error::EvalError;
use crate::check::model::Conflict;
use crate::check::residency::NotResident;
use crate::ir::SourceLine;
use std::ops::Range;

/// Somebody did something somewhere.
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
    /// The party beyond that: a bulk copy, a network put, a copy engine, a host.
    pub party: Option<&'static str>,
    /// Source line; `None` for a host.
    pub at: Option<SourceLine>,
    /// The line of the role, where the op itself stands in another file: of a schedule out of the library, say, whose caller this is.
    pub role_at: Option<SourceLine>,
    /// The op, as the text form of the IR has it.
    pub op: String,
}

/// A fault with how often it was met and how to get there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The first one.
    pub fault: Fault,
    /// How many like it (the same two instructions) were met in the run.
    pub times: u64,
    /// The signals and waits that had to happen for it, in order: nothing else of the schedule matters.
    pub prefix: Vec<Moment>,
    /// Whether it was met with one copy of every role, as the CPU engine runs them, and not with all of them.
    pub with_one_copy: bool,
}

/// A signal or a wait on the way to a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Who and where.
    pub event: Event,
    /// What: `signals tail[0][1] = 5`.
    pub deed: String,
    /// The moment of the signal that a wait was for, if it is in the list.
    pub from: Option<usize>,
}

/// Somebody who waits for ever.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// Who and where.
    pub event: Event,
    /// For what: `tail[0][1] ≥ 5, seen 4`.
    pub on: String,
    /// Who would have to signal, in words.
    pub needs: String,
    /// The waiters (places in the list) who would have to signal.
    pub after: Vec<usize>,
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Two accesses to the same bytes, one of them a write, that nothing orders.
    Race {
        /// What is missing between them.
        conflict: Conflict,
        /// The one that the run did first.
        first: Event,
        /// The other.
        second: Event,
        /// What they touch.
        memory: String,
        /// Which bytes of it.
        bytes: Range<u64>,
    },
    /// A write of another rank, during a launch, to bytes that the launch reaches through an input or an output: a kernel may take it that
    /// nobody else writes them, so signals do not help.
    Promised {
        /// The one that the run did first.
        first: Event,
        /// The other.
        second: Event,
        /// The input or output.
        memory: String,
        /// Which bytes of it.
        bytes: Range<u64>,
        /// Whether it is an input.
        input: bool,
        /// The rank that has it.
        rank: u32,
    },
    /// A wait that a signal of another operation satisfies: the two ranks launched different ones.
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
        /// What it reads.
        memory: String,
        /// Which bytes of it.
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
    /// A first signal that is smaller than what the counter held before all launches: waits for that pass too early, or never.
    BelowStart {
        /// The slot.
        slot: String,
        /// What it held.
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
    /// A packet whose flag is not larger than that of the packet before: a reader can take the old for the new.
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
    /// A credit for a step that whoever gives it does not know to be sent: more is taken than there is, and the sender goes on to a slot
    /// that was not read.
    OverCredit {
        /// The counter of credits.
        slot: String,
        /// The credit.
        credit: Event,
        /// Its value.
        value: u64,
        /// The counter of data.
        tail: String,
        /// As far as it is known to be sent.
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
        /// Who put it.
        by: Event,
        /// The area.
        memory: String,
        /// First byte of the packet.
        byte: u64,
        /// Its flag.
        flag: u64,
    },
    /// A word of a handshake that does not end as it began: the next launch takes it for its own.
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
        /// Who waits.
        waiters: Vec<Waiter>,
        /// A cycle among them, as places in the list; empty where somebody waits for what nobody will do.
        cycle: Vec<usize>,
    },
    /// What a host finds in a tensor is not what it was said to find ([`Plan::expect`](crate::check::Plan::expect)).
    WrongValue {
        /// The rank.
        rank: u32,
        /// The launch after which it looks.
        launch: u32,
        /// The tensor.
        tensor: String,
        /// The first element that differs.
        element: u64,
        /// What it should be.
        expected: String,
        /// What it is; `None`: no kernel wrote it.
        found: Option<String>,
        /// How many elements differ.
        count: u64,
        /// Where it was said.
        at: SourceLine,
    },
    /// A wait for a slot that no kernel of the world signals.
    NoProducer {
        /// The slots.
        slot: String,
        /// The wait.
        wait: Event,
    },
    /// Blocks that wait for each other and are not all on the device at once.
    NotResident {
        /// The launch, from 0.
        launch: u32,
        /// What there is too little of.
        why: NotResident,
        /// A role of the launch.
        at: Option<SourceLine>,
    },
    /// An op without a meaning: out of bounds, misaligned, a zero flag, an endless loop, a wrong binding.
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
            Fault::Error(EvalError::StepLimit { .. }) => "step-limit",
            Fault::Error(EvalError::OtherOperation { .. }) => "other-operation",
            Fault::Error(_) => "error",
        }
    }

    /// Everybody who takes part, in order.
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

    /// The source lines of everybody who takes part, in order.
    pub fn lines(&self) -> Vec<SourceLine> {
        use EvalError::{CopyOverlaps, Malformed, Misaligned, OtherOperation, OutOfBounds, StepLimit, ZeroFlag};
        match self {
            Fault::Error(
                OutOfBounds { by, .. }
                | Misaligned { by, .. }
                | ZeroFlag { by }
                | StepLimit { by, .. }
                | CopyOverlaps { by, .. }
                | OtherOperation { by, .. }
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
