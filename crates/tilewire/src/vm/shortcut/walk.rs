//! Walks code to its end. Register contents are found as functions of the message's number, and everything the code
//! does besides computing is recorded. The walk gives up on code that does anything that messages do not.

use crate::ir::{BinaryOp, CompareOp, Type};
use crate::vm::address::from_base;
use crate::vm::code::{Opcode, Operand, RoleCode};
use crate::vm::machine::{Machine, Place};
use crate::vm::stamp::{FlagStamp, WordStamp};
use std::sync::atomic::{AtomicU64, Ordering};

/// Places that are used in turn. The place of a number begins at `(number & mask) * stride`.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Ring {
    start: *mut u8,
    mask: u64,
    /// Bytes from one place to the next.
    stride: u64,
}

impl Ring {
    /// A single word, the place of every number.
    pub(super) fn word(start: *mut u64) -> Ring {
        Ring { start: start.cast(), mask: 0, stride: 0 }
    }

    /// The places of `count` elements from an index on, if they are in bounds for every number.
    fn of(place: Place, index: Value, count: u64) -> Option<Ring> {
        let (first, mask, scale) = match index {
            Value::Constant(index) => (index, 0, 0),
            Value::Masked { mask, scale } => (0, mask, scale),
            _ => return None,
        };
        let last = mask.checked_mul(scale)?;
        let is_inside =
            place.holds(first, count) && (mask == 0 || place.holds(scale, 1)) && place.holds(first + last, count);
        // A scale fits in 31 bits and a unit in 32. The bank holds every place, so later products do not wrap either.
        let unit = u64::from(place.unit);
        is_inside.then(|| Ring { start: place.start.wrapping_add((first * unit) as usize), mask, stride: scale * unit })
    }

    #[inline(always)]
    pub(super) fn at(self, number: u64) -> *mut u8 {
        self.start.wrapping_add(((number & self.mask) * self.stride) as usize)
    }

    /// # Safety
    /// This is a ring of slots whose memory is alive.
    #[inline(always)]
    pub(super) unsafe fn atomic<'m>(self, number: u64) -> &'m AtomicU64 {
        // SAFETY: the caller's promise; slots are aligned, and are only accessed atomically.
        unsafe { AtomicU64::from_ptr(self.at(number).cast()) }
    }

    /// True if none of its places, of `bytes` bytes each, overlaps the `len` bytes at `start`.
    pub(super) fn is_apart(self, bytes: u64, start: *const u8, len: u64) -> bool {
        let (a, b) = (self.start as u64, start as u64);
        a + self.mask * self.stride + bytes <= b || b + len <= a
    }
}

/// What a register holds, as a function of the number.
#[derive(Clone, Copy)]
enum Value {
    Constant(u64),
    Number,
    /// A word that was read before the first effect.
    Kept(*mut u64),
    /// `number | bits`
    Flagged(u64),
    /// `number + by`
    Next(u64),
    /// `(number & mask) * scale`
    Masked {
        mask: u64,
        scale: u64,
    },
    /// `number & mask == 0`
    IsMultiple(u64),
    /// `max(number, behind)`
    AtLeast(u64),
    /// `max(number, behind) - behind`
    Behind(u64),
    /// `Behind`, or the number itself if `number & wrap == 0`
    Needed {
        wrap: u64,
        behind: u64,
    },
    Other,
}

/// A message in packets, as constants of the code.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Message {
    pub words: *mut u64,
    pub packets: Ring,
    pub count: u64,
    pub flag: u64,
    /// How it becomes the flag that is sent.
    pub stamp: FlagStamp,
    /// The entry of the packets.
    pub entry: usize,
}

/// A row that is copied.
#[derive(Clone, Copy)]
pub(super) struct Copied {
    /// This rank's end, the same for every number.
    pub own: *mut u8,
    pub rows: Ring,
    pub bytes: u64,
}

/// A slot to wait for or to signal.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub at: Ring,
    /// How counts become its words.
    pub words: WordStamp,
    /// Its entry, whose bell is rung.
    entry: usize,
}

impl Slot {
    /// # Safety
    /// Its memory is alive.
    #[inline(always)]
    pub(super) unsafe fn word<'m>(self, number: u64) -> &'m AtomicU64 {
        // SAFETY: the caller's promise.
        unsafe { self.at.atomic(number) }
    }

    /// Signals a slot whose words are plain counts, as `Signal` does.
    ///
    /// # Safety
    /// As for [`tell`](Slot::tell).
    #[inline(always)]
    pub(super) unsafe fn tell_bare(self, m: &Machine, number: u64, value: u64) {
        // SAFETY: the caller's promise.
        unsafe {
            self.word(number).store(value, Ordering::Release);
            m.ring(self.entry);
        }
    }

    /// Signals the slot, as `Signal` does.
    ///
    /// # Safety
    /// The slot is one of `m`, whose memory is alive, and there are no unfenced streamed stores.
    #[inline(always)]
    pub(super) unsafe fn tell(self, m: &Machine, number: u64, value: u64) {
        // SAFETY: the caller's promise.
        unsafe {
            self.word(number).store(self.words.word(value), Ordering::Release);
            m.ring(self.entry);
        }
    }
}

/// What the code does besides computing.
#[derive(Clone, Copy)]
pub(super) enum Effect {
    /// Waits for a slot to reach `max(number, behind) - behind`, or `number` if it has none of the bits `wrap`.
    WaitBehind {
        slot: Slot,
        wrap: u64,
        behind: u64,
    },
    /// Waits for a slot to reach the next number.
    WaitNext(Slot),
    Send(Message),
    Receive(Message),
    CopyTo(Copied),
    CopyFrom(Copied),
    /// Stores the next number in a slot.
    Signal(Slot),
    /// Stores the next number in the counter.
    Count,
}

/// The condition of a jump.
#[derive(Clone, Copy)]
pub(super) enum Guard {
    /// `number + add` has one of the bits.
    Bits { add: u64, bits: u64 },
    /// The word at `at`, read before the first effect, equals `word`.
    Same { at: *mut u64, word: u64 },
}

/// Code that was walked.
pub(super) struct Walked {
    /// The counter.
    pub number: *mut u64,
    pub by: u64,
    effects: Vec<Effect>,
    guards: Vec<Guard>,
}

impl Walked {
    pub(super) fn steps(&self) -> (&[Effect], &[Guard]) {
        (&self.effects, &self.guards)
    }
}

/// Walks the code to its end. Takes every jump, except that a jump on bits that comes first is taken only if `often`.
pub(super) fn walk(m: &Machine, often: bool) -> Option<Walked> {
    let code = &m.role().code;
    let mut values = first_values(m.role());
    let (mut number, mut by, mut effects, mut guards) = (None, None, Vec::new(), Vec::new());
    let mut pc = 0;
    loop {
        let inst = code.get(pc)?;
        let [a, b, c, d] = [inst.a, inst.b, inst.c, inst.d].map(usize::from);
        // SAFETY: these are operands of an instruction of the verified program.
        let word = || unsafe { m.base(b).add(inst.e as usize) }.cast::<u64>();
        let constant = |reg: usize| if let Value::Constant(x) = values[reg] { Some(x) } else { None };
        // Called only for instructions on slots.
        let slot = || {
            // SAFETY: as above.
            let place = unsafe { m.slot_place(inst.e) };
            let at = Ring::of(place, values[place.base as usize], 1)?;
            Some(Slot { at, words: place.words, entry: place.entry.into() })
        };
        // This rank's end of `count` elements, the other end and its entry, given their access numbers. Called only for
        // instructions with two accesses.
        let ends = |own: i32, far: i32, count: u64| {
            // SAFETY: as above.
            let (access, place) = unsafe { (m.access(own), m.place(far)) };
            constant(access.base.into())?;
            access.bank.map_or(Some(0), |bank| constant(bank.into()))?;
            // SAFETY: as above. The registers are constants, so this address always holds.
            let own = unsafe { from_base(m, own, usize::try_from(count).ok()?) }.ok()?;
            Some((own, Ring::of(place, values[place.base as usize], count)?, place.entry.into()))
        };
        let message = |words: i32, packets: i32| {
            let (Value::Flagged(flag), count) = (values[c], constant(a)?) else { return None };
            // SAFETY: as above. A ring of packets has one bank, so one stamp applies to all.
            let stamp = unsafe { m.place(packets) }.flags;
            let (words, packets, entry) = ends(words, packets, count)?;
            Some(Message { words: words.cast(), packets, count, flag, stamp, entry })
        };
        // Every number that is signalled or waited for must be the next one.
        let mut is_next = |reg: usize| matches!(values[reg], Value::Next(x) if *by.get_or_insert(x) == x);
        let jump = || usize::try_from(inst.e).ok().filter(|&e| e > 0);
        let mut ahead = 1;
        match (inst.op, number) {
            (Opcode::ULoadWord, None) => {
                number = Some(word());
                values[a] = Value::Number;
            }
            (Opcode::ULoadWord, Some(_)) if effects.is_empty() => values[a] = Value::Kept(word()),
            (Opcode::UMaskScale, _) => {
                let (Value::Number, Ok(scale)) = (values[b], u64::try_from(inst.e)) else { return None };
                let mask = constant(c)?;
                values[a] = Value::Masked { mask, scale: 1 };
                values[d] = Value::Masked { mask, scale };
            }
            (Opcode::UBinary(op, Type::U64), _) => {
                let x = constant(c)?;
                values[a] = match (op, values[b]) {
                    (BinaryOp::Or, Value::Number) => Value::Flagged(x),
                    (BinaryOp::Add, Value::Number) => Value::Next(x),
                    (BinaryOp::And, Value::Number) => Value::Masked { mask: x, scale: 1 },
                    (BinaryOp::Max, Value::Number) => Value::AtLeast(x),
                    (BinaryOp::Sub, Value::AtLeast(behind)) if behind == x => Value::Behind(behind),
                    _ => return None,
                };
            }
            (Opcode::UCompare(CompareOp::Eq, Type::U64), _) => match (values[b], values[c]) {
                (Value::Masked { mask, scale: 1 }, Value::Constant(0)) => values[a] = Value::IsMultiple(mask),
                _ => return None,
            },
            (Opcode::USelect, _) => match [values[b], values[c], values[d]] {
                [Value::IsMultiple(wrap), Value::Number, Value::Behind(behind)] => {
                    values[a] = Value::Needed { wrap, behind };
                }
                _ => return None,
            },
            (Opcode::JumpIfBits, _) => {
                let add = match values[a] {
                    Value::Number => 0,
                    Value::Next(add) => add,
                    _ => return None,
                };
                if often || !guards.is_empty() {
                    ahead = jump()?;
                }
                guards.push(Guard::Bits { add, bits: constant(b)? });
            }
            (Opcode::JumpUnlessU64(CompareOp::Ne), _) => {
                let Value::Kept(at) = values[a] else { return None };
                guards.push(Guard::Same { at, word: constant(b)? });
                ahead = jump()?;
            }
            (Opcode::Wait, _) => effects.push(match values[a] {
                Value::Needed { wrap, behind } => Effect::WaitBehind { slot: slot()?, wrap, behind },
                Value::Next(_) if is_next(a) => Effect::WaitNext(slot()?),
                _ => return None,
            }),
            (Opcode::PacketSend, _) => effects.push(Effect::Send(message(inst.e, inst.e + 1)?)),
            (Opcode::PacketReceive, _) => effects.push(Effect::Receive(message(inst.e + 1, inst.e)?)),
            (Opcode::CopyRow, _) => {
                let count = constant(a)?;
                // SAFETY: as above.
                let (from, width) = unsafe { (m.access(inst.e).base, m.access(inst.e).width) };
                let bytes = count.checked_mul(width.into())?;
                let is_sent = constant(from.into()).is_some();
                let (near, far) = if is_sent { (inst.e, inst.e + 1) } else { (inst.e + 1, inst.e) };
                let (own, rows, _) = ends(near, far, count)?;
                let copied = Copied { own, rows, bytes };
                effects.push(if is_sent { Effect::CopyTo(copied) } else { Effect::CopyFrom(copied) });
            }
            // Only a hint.
            (Opcode::FetchSlot, _) => {}
            (Opcode::Signal, _) if is_next(a) => effects.push(Effect::Signal(slot()?)),
            (Opcode::UStoreWord, Some(number)) if number == word() && is_next(a) => effects.push(Effect::Count),
            (Opcode::End, Some(number)) => return Some(Walked { number, by: by?, effects, guards }),
            _ => return None,
        }
        pc += ahead;
    }
}

/// Registers that no instruction or input writes are constants.
fn first_values(role: &RoleCode) -> Vec<Value> {
    let mut values: Vec<Value> = role.registers.iter().map(|&x| Value::Constant(x)).collect();
    for inst in &role.code {
        let operands = [inst.a, inst.b, inst.c, inst.d].into_iter().zip(inst.op.signature().0);
        let written = operands.filter(|&(_, operand)| operand == Operand::RegOut);
        written.for_each(|(reg, _)| values[reg as usize] = Value::Other);
    }
    role.inputs.iter().for_each(|&(reg, _)| values[reg as usize] = Value::Other);
    values
}
