//! A rank's copy engine: copies and handshakes that the host has queued, in order, without a kernel.
//!
//! ```text
//!   sender's stream              receiver's stream            a word has two writers and goes back to 0, so that
//!   wait  ready = 1              write ready := 1             a captured stream can be launched again: outside of
//!   write ready := 0             wait  done  = 1              the monotone fragment
//!   copy  input ──▶ output       write done  := 0
//!   write done  := 1
//! ```
//! Ordering: operations of one stream happen one after the other. A write happens after all earlier effects of the
//! stream are visible to observers of the value (the driver fences before it). Operations after a wait see what its
//! value published. A stream begins after the host's effects before the launch, and the launch ends when its streams
//! have ended.

use super::plan::Span;
use crate::check::error::Location;
use crate::check::eval::{Awaited, Blocked, Step};
use crate::check::memory::World;
use crate::check::model::Detector;
use crate::check::world::footprint::Footprint;
use crate::ir::{Entity, Inst, SourceLine};
use crate::tensor::Memory;

/// A word of a handshake between streams: 64 bits, initially 0.
#[derive(Clone, Debug)]
pub struct Word {
    /// Its name, for reports.
    pub(in crate::check) name: String,
    pub(in crate::check) memory: Memory,
}

impl Word {
    /// A word in its own memory.
    pub fn new(name: &str) -> Word {
        Word { name: name.to_string(), memory: Memory::zeroed(8) }
    }
}

/// A stream of a rank's copy engine in one launch.
///
/// ```
/// use tilewire::Tensor;
/// use tilewire::check::{CopyStream, Plan, Settings, Word};
/// let (x, y, done) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(64), Word::new("done"));
/// let mut plan = Plan::new(2);
/// plan.launch_streams(&[
///     CopyStream::new().copy(y.memory(), x.memory()).write(&done, 1),
///     CopyStream::new().wait(&done, 1).write(&done, 0),
/// ]);
/// plan.host_writes(0, x.memory()).host_reads(1, y.memory());
/// let report = plan.verify(&Settings::default());
/// assert!(report.is_clean(), "{report}");
/// assert!(!report.is_decided()); // every schedule was run instead
/// ```
#[derive(Clone, Debug, Default)]
pub struct CopyStream {
    pub(in crate::check) ops: Vec<(StreamOp, SourceLine)>,
}

#[derive(Clone, Debug)]
pub(in crate::check) enum StreamOp {
    Copy { to: Memory, from: Memory },
    Write { word: Word, value: u64 },
    Wait { word: Word, value: u64 },
}

impl CopyStream {
    /// A stream without an operation.
    pub fn new() -> CopyStream {
        CopyStream::default()
    }

    /// Copies all bytes of one memory to another.
    ///
    /// # Panics
    /// If their sizes differ.
    #[track_caller]
    pub fn copy(self, to: &Memory, from: &Memory) -> CopyStream {
        assert_eq!(to.bytes(), from.bytes(), "a copy has as many bytes at both ends");
        self.then(StreamOp::Copy { to: to.clone(), from: from.clone() }, SourceLine::caller())
    }

    /// Sets a word, after everything before it.
    #[track_caller]
    pub fn write(self, word: &Word, value: u64) -> CopyStream {
        self.then(StreamOp::Write { word: word.clone(), value }, SourceLine::caller())
    }

    /// Waits until a word **equals** the value: larger ones do not suffice.
    #[track_caller]
    pub fn wait(self, word: &Word, value: u64) -> CopyStream {
        self.then(StreamOp::Wait { word: word.clone(), value }, SourceLine::caller())
    }

    fn then(mut self, op: StreamOp, at: SourceLine) -> CopyStream {
        self.ops.push((op, at));
        self
    }

    pub(in crate::check) fn memories(&self) -> impl Iterator<Item = &Memory> {
        self.ops.iter().flat_map(|(op, _)| match op {
            StreamOp::Copy { to, from } => vec![to, from],
            StreamOp::Write { word, .. } | StreamOp::Wait { word, .. } => vec![&word.memory],
        })
    }
}

impl CopyStream {
    /// The operations with the bytes that `of` returns for their memories.
    pub(super) fn bound(&self, of: &impl Fn(&Memory) -> Span) -> Vec<BoundOp> {
        let bound = |(op, _): &(StreamOp, SourceLine)| match op {
            StreamOp::Copy { to, from } => BoundOp::Copy { to: of(to), from: of(from) },
            StreamOp::Write { word, value } => BoundOp::Write { word: of(&word.memory), value: *value },
            StreamOp::Wait { word, value } => BoundOp::Wait { word: of(&word.memory), value: *value },
        };
        self.ops.iter().map(bound).collect()
    }
}

impl StreamOp {
    /// A description in words.
    pub fn text(&self) -> String {
        match self {
            StreamOp::Copy { to, .. } => format!("copy of {} bytes", to.bytes()),
            StreamOp::Write { word, value } => format!("write {} := {value}", word.name),
            StreamOp::Wait { word, value } => format!("wait until {} = {value}", word.name),
        }
    }
}

/// A stream of a rank: its number among those of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StreamId {
    /// The rank.
    pub rank: u32,
    /// The index of the stream.
    pub number: u32,
}

/// An operation with its bytes in model memory.
#[derive(Clone, Debug)]
pub(in crate::check) enum BoundOp {
    Copy { to: Span, from: Span },
    Write { word: Span, value: u64 },
    Wait { word: Span, value: u64 },
}

impl BoundOp {
    /// The word of a handshake that it touches.
    pub fn word(&self) -> Option<&Span> {
        match self {
            BoundOp::Copy { .. } => None,
            BoundOp::Write { word, .. } | BoundOp::Wait { word, .. } => Some(word),
        }
    }
}

/// A stream somewhere between its first operation and its last.
pub(super) struct StreamRun<'p> {
    pub id: StreamId,
    stream: &'p CopyStream,
    bound: &'p [BoundOp],
    next: usize,
}

impl<'p> StreamRun<'p> {
    pub fn new(id: StreamId, stream: &'p CopyStream, bound: &'p [BoundOp]) -> Self {
        StreamRun { id, stream, bound, next: 0 }
    }

    /// The footprint of the next operation.
    pub fn footprint(&self) -> Footprint {
        match self.bound.get(self.next) {
            Some(BoundOp::Write { word, .. }) => Footprint::Bytes { spans: vec![word.clone()], writes: true },
            Some(BoundOp::Wait { word, .. }) => Footprint::Bytes { spans: vec![word.clone()], writes: false },
            Some(BoundOp::Copy { .. }) | None => Footprint::Nothing,
        }
    }

    /// Its place.
    pub fn location(&self) -> Location {
        let StreamId { rank, number } = self.id;
        let at = self.stream.ops.get(self.next).or(self.stream.ops.last()).map(|(_, at)| at.clone());
        let at = at.unwrap_or_else(SourceLine::caller);
        Location { at, rank, block: 0, role: "copy engine".into(), copy: number }
    }

    /// Does the next operation, if it can.
    pub fn step(&mut self, world: &mut World, detector: &mut Detector<'_>) -> Step {
        let inst = Inst::new(self.next);
        match self.bound.get(self.next) {
            None => return Step::Done,
            Some(BoundOp::Copy { to, from }) => {
                detector.stream_copy(self.id, inst, from, to);
                let bytes = world.memories.bytes(from.0)[from.1.start as usize..from.1.end as usize].to_vec();
                world.memories.bytes_mut(to.0)[to.1.start as usize..to.1.end as usize].copy_from_slice(&bytes);
            }
            Some(&BoundOp::Write { word: (memory, ref bytes), value }) => {
                let before = world.memories.read(memory, bytes.start, 8);
                detector.stream_write(self.id, inst, (memory, bytes.start), before, value);
                world.memories.write(memory, bytes.start, 8, value);
            }
            Some(&BoundOp::Wait { word: (memory, ref bytes), value }) => {
                let seen = world.memories.read(memory, bytes.start, 8);
                let (op, at) = &self.stream.ops[self.next];
                if seen != value {
                    let StreamOp::Wait { word, .. } = op else { unreachable!("bound from a wait") };
                    let on = Awaited::Word { name: word.name.clone(), memory, byte: bytes.start };
                    return Step::Blocked(Blocked { inst, at: at.clone(), on, expected: value, seen });
                }
                detector.stream_wait(self.id, inst, (memory, bytes.start), value);
            }
        }
        self.next += 1;
        Step::Ran
    }
}
