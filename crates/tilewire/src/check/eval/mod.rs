//! One (rank, block, role, copy) as a state machine that a scheduler steps.
//!
//! The machine has its own stack of frames, one per open region, so that it can stop before any op and continue later:
//!
//! ```text
//!   role body ─▶ for ─▶ if ─▶ each        one step: the op at the top frame's position,
//!   frames[0]                 top         or leaving a region that has come to its end
//! ```

mod bulk;
mod each;
mod place;
mod value;

use super::error::{EvalError, Location};
use super::memory::{Binding, MemoryId, World};
use super::observer::{Actor, Observer, SlotRef, Wanted};
use crate::ir::{Entity, Inst, Kernel, Op, Region, RequiredBytes, RequiredSpan, Shape, SourceLine, Value};
use bulk::BulkQueue;
use each::EachState;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The order in which the elements of an `each` run one op. The language allows all of them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ElementOrder {
    /// First to last.
    #[default]
    Forward,
    /// Last to first.
    Reverse,
    /// A different order for every `each`, from this seed.
    Shuffled(u64),
}

/// When a bulk copy moves its bytes. The language allows both.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum BulkTiming {
    /// When it starts, as the CPU engine does.
    #[default]
    AtOnce,
    /// As late as allowed: in the `BulkWait` that covers it, or at the end of the role.
    Late,
}

/// How an instance uses the freedom of the language.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct InstanceOptions {
    /// Order of elements.
    pub order: ElementOrder,
    /// Time of bulk copies.
    pub bulk: BulkTiming,
}

/// The effect of one step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Ran one op, or left a region.
    Ran,
    /// Nothing that another instance can see: the instance waits. Step again after another one has run.
    Blocked(Blocked),
    /// Nothing: the body has finished.
    Done,
}

/// The condition that an instance waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blocked {
    /// The instruction.
    pub inst: Inst,
    /// Its source line.
    pub at: SourceLine,
    /// The slot or packet.
    pub on: Awaited,
    /// The value (for a packet: the flag) that would let it continue.
    pub expected: u64,
    /// The value seen (for a packet: the flag of its first half that differs).
    pub seen: u64,
}

/// An object that can be waited for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Awaited {
    /// A signal slot.
    Slot {
        /// Name of the parameter.
        name: String,
        /// The slot.
        slot: SlotRef,
    },
    /// A word of a handshake, which must equal the value.
    Word {
        /// Its name.
        name: String,
        /// Piece of memory that holds it.
        memory: MemoryId,
        /// First of its eight bytes.
        byte: u64,
    },
    /// A number that an atomic polls.
    Number {
        /// Name of the parameter.
        name: String,
        /// Piece of memory that holds it.
        memory: MemoryId,
        /// First of its bytes.
        byte: u64,
    },
    /// A packet.
    Packet {
        /// Name of the parameter.
        name: String,
        /// Number of the packet in its bank.
        index: u64,
        /// Piece of memory that holds it.
        memory: MemoryId,
        /// First of its 16 bytes.
        byte: u64,
    },
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Blocked { expected, seen, .. } = self;
        match &self.on {
            Awaited::Slot { name, slot } => {
                write!(f, "waits until {name}[{}][{}] is at least {expected}; it is {seen}", slot.bank, slot.index)
            }
            Awaited::Word { name, .. } => write!(f, "waits until {name} is {expected}; it is {seen}"),
            Awaited::Number { name, .. } => write!(f, "polls {name}, which stays {seen}"),
            Awaited::Packet { name, index, .. } => {
                write!(f, "waits until packet {index} of {name} has flag {expected}; it has {seen}")
            }
        }
    }
}

/// One copy of one role of one block of one rank, somewhere between its first op and its last.
pub struct Instance<'k> {
    kernel: &'k Kernel,
    binding: &'k Binding,
    who: Actor,
    copies: u32,
    options: InstanceOptions,
    /// Uniform values, by the number of the value.
    uniform: Vec<u64>,
    /// Variables; 0 until they are written.
    vars: Vec<u64>,
    /// The role's own scratch.
    scratches: Vec<Option<MemoryId>>,
    frames: Vec<Frame>,
    bulk: BulkQueue,
    /// Number of `each`s begun, so that every one gets its own shuffle.
    eaches: u64,
}

/// An open region and the position in it.
struct Frame {
    region: Region,
    next: usize,
    kind: FrameKind,
}

/// The action at the end of an open region.
enum FrameKind {
    /// Leaves the region.
    Plain,
    /// Repeats with the next index, while it is below `end`.
    For { inst: Inst, index: i64, end: i64, step: i64 },
    /// The head of a `While`: the condition decides.
    Head { inst: Inst },
    /// The body of a `While`: repeats the head.
    Body { inst: Inst },
    /// A barrier.
    Each(Box<EachState>),
}

/// Byte that undefined memory (scratch at launch) is filled with: neither a small number nor a common float.
const POISON: u8 = 0xa5;

impl<'k> Instance<'k> {
    /// An instance before its first op. `copies` is the number of copies of the role as run. Allocates the role's
    /// scratch.
    pub fn new(
        kernel: &'k Kernel,
        binding: &'k Binding,
        who: Actor,
        copies: u32,
        options: InstanceOptions,
        world: &mut World,
    ) -> Self {
        let scratches = kernel.scratches.values().map(|scratch| {
            let bytes = scratch.len as usize * scratch.ty.size();
            (scratch.role == who.role).then(|| world.memories.add(vec![POISON; bytes]))
        });
        Instance {
            kernel,
            binding,
            who,
            copies,
            options,
            uniform: vec![0; kernel.values.len()],
            vars: vec![0; kernel.vars.len()],
            scratches: scratches.collect(),
            frames: vec![Frame { region: kernel.roles[who.role].body, next: 0, kind: FrameKind::Plain }],
            bulk: BulkQueue::default(),
            eaches: 0,
        }
    }

    /// The identity of this instance.
    pub fn actor(&self) -> Actor {
        self.who
    }

    /// The kernel it runs.
    pub fn kernel(&self) -> &'k Kernel {
        self.kernel
    }

    /// The instruction that the next step runs; `None` at the end of a region.
    pub fn next_inst(&self) -> Option<Inst> {
        let frame = self.frames.last()?;
        self.kernel.regions[frame.region].get(frame.next).copied()
    }

    /// Its place: the next instruction, or the one that opened the region whose end it has reached.
    pub(in crate::check) fn location_now(&self) -> Location {
        let opened = || {
            self.frames.iter().rev().find_map(|frame| match &frame.kind {
                FrameKind::Plain => None,
                FrameKind::For { inst, .. } | FrameKind::Head { inst } | FrameKind::Body { inst } => Some(*inst),
                FrameKind::Each(state) => Some(state.inst),
            })
        };
        let first = || self.kernel.regions[self.kernel.roles[self.who.role].body].first().copied();
        let inst = self.next_inst().or_else(opened).or_else(first);
        let at = inst.map_or_else(SourceLine::caller, |inst| self.kernel.line(inst).clone());
        Location::new(self.kernel, self.who, &at)
    }

    /// A hash of everything but memory that decides its next steps. Two moments with one state, between which no memory
    /// changed, are followed by the same steps.
    pub(in crate::check) fn state(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        (&self.uniform, &self.vars, self.bulk.started()).hash(&mut hash);
        for frame in &self.frames {
            (frame.region.index(), frame.next).hash(&mut hash);
            if let FrameKind::For { index, end, step, .. } = frame.kind {
                (index, end, step).hash(&mut hash);
            }
        }
        hash.finish()
    }

    /// The object that the next instruction polls, if it is a test or an atomic.
    pub(in crate::check) fn polls_for(&self, world: &World) -> Option<Blocked> {
        let inst = self.next_inst()?;
        let (on, expected, seen) = match &self.kernel.insts[inst].op {
            Op::Test { slot, x } => {
                let (slot, value) = (self.slot(inst, slot).ok()?, self.uniform(*x));
                let seen = self.count(inst, &slot, value, world).ok()?;
                (Awaited::Slot { name: self.kernel.params[slot.param].name().to_string(), slot }, value, seen)
            }
            Op::AtomicAdd { at, x, .. } => {
                let size = self.kernel.ty(*x).size();
                let (memory, bytes) = self.span(inst, at, None, size as u64, size as u64).ok()?;
                let name = self.base_name(at.base);
                (Awaited::Number { name, memory, byte: bytes.start }, 0, world.memories.read(memory, bytes.start, size))
            }
            _ => return None,
        };
        Some(Blocked { inst, at: self.kernel.line(inst).clone(), on, expected, seen })
    }

    /// Runs one op. A blocked step can be repeated; after an error the instance is unusable.
    pub fn step(&mut self, world: &mut World, observer: &mut dyn Observer) -> Result<Step, EvalError> {
        let Some(frame) = self.frames.last() else { return Ok(Step::Done) };
        let Some(&inst) = self.kernel.regions[frame.region].get(frame.next) else {
            self.leave(world, observer);
            return Ok(Step::Ran);
        };
        let depth = self.frames.len();
        let blocked = match frame.kind {
            FrameKind::Each(_) => self.each_op(inst, world, observer)?,
            _ => self.uniform_op(inst, world, observer)?,
        };
        if let Some(blocked) = blocked {
            return Ok(Step::Blocked(blocked));
        }
        // The op may have opened a region above this frame; the position to advance is that of the frame that held the
        // op.
        self.frames[depth - 1].next += 1;
        Ok(Step::Ran)
    }

    /// One op outside of any `each`. Returns what it waits for, if it does.
    fn uniform_op(
        &mut self,
        inst: Inst,
        world: &mut World,
        observer: &mut dyn Observer,
    ) -> Result<Option<Blocked>, EvalError> {
        let kernel = self.kernel;
        match &kernel.insts[inst].op {
            Op::If { cond, then, otherwise } => {
                let region = if self.uniform(*cond) != 0 { *then } else { *otherwise };
                self.frames.push(Frame { region, next: 0, kind: FrameKind::Plain });
            }
            Op::For { start, end, step, body } => {
                let [index, end, step] = [start, end, step].map(|v| self.uniform(*v) as i64);
                if step > 0 && index < end {
                    self.set_index(inst, 0, index);
                    let kind = FrameKind::For { inst, index, end, step };
                    self.frames.push(Frame { region: *body, next: 0, kind });
                }
            }
            Op::While { head, .. } => {
                self.frames.push(Frame { region: *head, next: 0, kind: FrameKind::Head { inst } });
            }
            Op::Each { extent, body } => {
                let extent: Vec<i64> = extent.iter().map(|v| self.uniform(*v) as i64).collect();
                self.open_each(inst, &extent, *body, observer)?;
            }
            Op::WriteVar { var, x } => self.vars[var.index()] = self.uniform(*x),
            Op::Wait { slot, x } => return self.wait(inst, slot, self.uniform(*x), world, observer),
            Op::Test { slot, x } => {
                let (slot, value) = (self.slot(inst, slot)?, self.uniform(*x));
                let seen = self.count(inst, &slot, value, world)?;
                let operation = self.operation(slot.param, slot.bank);
                observer.test(self.who, inst, &slot, &Wanted { value, seen, operation });
                self.set_result(inst, u64::from(seen >= value));
            }
            Op::Signal { slot, x } => self.signal(inst, slot, self.uniform(*x), false, world, observer)?,
            Op::SignalCredit { slot, x } => self.signal(inst, slot, self.uniform(*x), true, world, observer)?,
            Op::Barrier => observer.barrier(self.who, inst),
            Op::ProxyFence => observer.proxy_fence(self.who, inst),
            Op::BulkCopy { dst, src, count } => {
                self.bulk_copy(inst, dst, src, self.uniform(*count) as i64, world, observer)?;
            }
            Op::BulkWait { pending, done } => self.bulk_wait(inst, *pending, *done, world, observer),
            Op::Post { .. } => self.post(inst, world, observer)?,
            Op::Require { cond, span } if self.uniform(*cond) == 0 => {
                let span = span.map(|RequiredSpan { rank, offset, bytes, size }| {
                    RequiredBytes::of([rank, offset, bytes, size].map(|v| self.uniform(v) as i64))
                });
                return Err(EvalError::Required { span, by: self.location(inst) });
            }
            Op::Require { .. } => {}
            Op::Group { .. } | Op::PacketPut { .. } | Op::PacketGet { .. } => {
                return Err(self.malformed(inst, "the op belongs in an `each`"));
            }
            op => {
                if let Some(bits) = self.element_op(inst, op, None, world, observer)? {
                    self.set_result(inst, bits);
                }
            }
        }
        Ok(None)
    }

    /// The top region has ended.
    fn leave(&mut self, world: &mut World, observer: &mut dyn Observer) {
        let frame = self.frames.last_mut().expect("a region is open");
        match &mut frame.kind {
            FrameKind::Plain => {
                self.frames.pop();
                if self.frames.is_empty() {
                    self.bulk_finish(world, observer);
                    observer.done(self.who);
                }
            }
            // An index beyond the largest i64 is certainly not below `end`.
            FrameKind::For { inst, index, end, step } => match index.checked_add(*step).filter(|next| next < end) {
                Some(next) => {
                    *index = next;
                    frame.next = 0;
                    let inst = *inst;
                    self.set_index(inst, 0, next);
                }
                None => {
                    self.frames.pop();
                }
            },
            &mut FrameKind::Head { inst } => {
                let Op::While { cond, body, .. } = self.kernel.insts[inst].op else {
                    unreachable!("opened by a While")
                };
                self.frames.pop();
                if self.uniform(cond) != 0 {
                    self.frames.push(Frame { region: body, next: 0, kind: FrameKind::Body { inst } });
                }
            }
            &mut FrameKind::Body { inst } => {
                let Op::While { head, .. } = self.kernel.insts[inst].op else { unreachable!("opened by a While") };
                *frame = Frame { region: head, next: 0, kind: FrameKind::Head { inst } };
            }
            FrameKind::Each(state) => {
                let inst = state.inst;
                if state.next() {
                    frame.next = 0;
                    return;
                }
                self.frames.pop();
                observer.barrier(self.who, inst);
            }
        }
    }

    /// A uniform value.
    fn uniform(&self, v: Value) -> u64 {
        self.uniform[v.index()]
    }

    /// A value as one element sees it: its own, or the uniform one.
    fn value(&self, v: Value, element: Option<usize>) -> u64 {
        match (self.kernel.shape(v), element, self.frames.last()) {
            (Shape::Lane, Some(element), Some(Frame { kind: FrameKind::Each(state), .. })) => state.value(v, element),
            _ => self.uniform(v),
        }
    }

    fn set_result(&mut self, inst: Inst, bits: u64) {
        let result = self.kernel.insts[inst].result.expect("the op defines a value");
        self.uniform[result.index()] = bits;
    }

    fn set_index(&mut self, inst: Inst, axis: usize, index: i64) {
        let value = self.kernel.insts[inst].indices[axis];
        self.uniform[value.index()] = index as u64;
    }

    fn location(&self, inst: Inst) -> Location {
        Location::new(self.kernel, self.who, self.kernel.line(inst))
    }

    fn malformed(&self, inst: Inst, message: &str) -> EvalError {
        EvalError::Malformed { message: message.to_string(), by: self.location(inst) }
    }
}
