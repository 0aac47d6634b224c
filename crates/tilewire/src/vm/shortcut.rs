//! The short way of a launch that sends or receives one message in packets. To interpret it takes half as long as a cache line takes to the
//! other core, so what its code does is found once, by walking it with the number of the message unknown and all else known, and is then
//! done at once.
//!
//! ```text
//!   number := counter                                                  number := counter
//!   now and then: credit ≥ what there must be room for?                get packets number mod depth
//!   put packets number mod depth                                       now and then: credit := number + 1
//!   counter := number + 1                                              counter := number + 1
//! ```
//! It is gone to the end or not at all: where a credit or a packet is missing, or flags come again, nothing was written that the code would not
//! write again, and the code runs as if there were no short way. Waiting, deadlines and errors are left to the code.

use super::address::from_base;
use super::code::{Opcode, Operand, RoleCode};
use super::copy;
use super::lane::packet::{read_row, write_row};
use super::machine::{Machine, Place};
use crate::ir::{BinaryOp, CompareOp, Type};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a whole launch does.
pub(crate) struct Shortcut {
    go: Go,
    /// The counter, a word of the rank's own, and how far it goes on.
    number: *mut u64,
    by: u64,
    /// This rank's end.
    words: *mut u64,
    count: usize,
    packets: Ring,
    flag: u64,
    /// The entry of the packets, whose bell rings.
    entry: usize,
    credit: Credit,
}

/// What is done besides counting; tells whether it was. The number is what the counter holds.
type Go = unsafe fn(shortcut: &Shortcut, m: &Machine, number: u64) -> bool;

/// What there is to do now and then: for numbers without any of the bits `seldom`. (A receiver goes by the next number.)
struct Credit {
    seldom: u64,
    slot: *mut u64,
    /// The entry of the slot.
    entry: usize,
    /// Numbers without any of these bits are those where flags come again.
    wrap: u64,
    /// How far behind a sender the credit may be, elsewhere.
    behind: u64,
}

/// Places that are used in turn.
#[derive(Clone, Copy, PartialEq)]
struct Ring {
    start: *mut u8,
    mask: u64,
    /// Bytes from one to the next.
    stride: u64,
}

impl Ring {
    /// Where `count` elements from `(number & mask) * scale` on lie, if they are inside for every number.
    fn of(place: Place, mask: u64, scale: u64, count: u64) -> Option<Ring> {
        let last = mask.checked_mul(scale)?;
        let is_inside = last < place.count && count > 0 && count <= place.count - last;
        // Both fit 32 bits; and the bank holds more than `last` elements, so what is multiplied later does not wrap either.
        is_inside.then(|| Ring { start: place.start, mask, stride: scale * place.unit })
    }

    #[inline(always)]
    fn at(self, number: u64) -> *mut u8 {
        self.start.wrapping_add(((number & self.mask) * self.stride) as usize)
    }
}

impl Shortcut {
    /// The short way of a machine's code, if it has one.
    pub(crate) fn of(m: &Machine) -> Option<Shortcut> {
        let (often, now_and_then) = (walk(m, true)?, walk(m, false)?);
        let (number, by) = (often.number, often.by);
        let (go, message, credit): (Go, Message, Credit) = match (often.steps(), now_and_then.steps()) {
            (
                (&[Effect::Send(message), Effect::Count], &[(0, seldom)]),
                (&[Effect::Wait(Slot { slot, entry }, wrap, behind), Effect::Send(same), Effect::Count], &[(0, guard)]),
            ) if message == same && seldom == guard => {
                let go = if message.count == 1 { send::<true> } else { send::<false> };
                (go, message, Credit { seldom, slot, entry, wrap, behind })
            }
            (
                (&[Effect::Receive(message), Effect::Count], &[(add, seldom)]),
                (
                    &[Effect::Receive(same), Effect::Signal(Slot { slot, entry }), Effect::Count],
                    &[(added, guard), (again, wrap)],
                ),
            ) if message == same && seldom == guard && [add, added, again] == [by; 3] => {
                let go = if message.count == 1 { receive::<true> } else { receive::<false> };
                (go, message, Credit { seldom, slot, entry, wrap, behind: 0 })
            }
            _ => return None,
        };
        let Message { words, packets, count, flag, entry } = message;
        // Who gives up half a message reads the number again, and the packets.
        let is_apart = |start: *mut u8, bytes: u64| {
            let (a, b) = (words as usize, start as usize);
            a + 8 * count as usize <= b || b + bytes as usize <= a
        };
        let are_apart =
            is_apart(number.cast(), 8) && is_apart(packets.start, packets.mask * packets.stride + 16 * count);
        (are_apart && now_and_then.by == by).then_some(Shortcut {
            go,
            number,
            by,
            words,
            count: count as usize,
            packets,
            flag,
            entry,
            credit,
        })
    }

    /// Runs the launch to its end, if that can be done at once; tells whether it was.
    ///
    /// # Safety
    /// It is the short way of `m`, whose memory is alive, and no other thread runs `m` or uses its counter.
    #[inline(always)]
    pub(crate) unsafe fn run(&self, m: &Machine) -> bool {
        // SAFETY: the caller's promise; the counter is a word of an entry.
        unsafe {
            let number = self.number.read_unaligned();
            let done = (self.go)(self, m, number);
            if done {
                self.number.write_unaligned(number.wrapping_add(self.by));
            }
            done
        }
    }
}

/// # Safety
/// As for [`Shortcut::run`].
unsafe fn send<const ONE: bool>(shortcut: &Shortcut, m: &Machine, number: u64) -> bool {
    let Shortcut { words, packets, flag, entry, credit, .. } = shortcut;
    let count = if ONE { 1 } else { shortcut.count };
    // SAFETY: `Shortcut::of` found all places in their banks for every number; the launch checked the alignment of packets and slots. Peers
    // look at them meanwhile: they are written and read as `PacketSend` and `Wait` do it.
    unsafe {
        if number & credit.seldom == 0 {
            let needed = if number & credit.wrap == 0 { number } else { number.max(credit.behind) - credit.behind };
            if AtomicU64::from_ptr(credit.slot).load(Ordering::Acquire) < needed {
                return false;
            }
        }
        write_row(m, packets.at(number).cast(), *words, count, (number | flag) as u32);
        m.ring(*entry);
    }
    true
}

/// # Safety
/// As for [`Shortcut::run`].
unsafe fn receive<const ONE: bool>(shortcut: &Shortcut, m: &Machine, number: u64) -> bool {
    let Shortcut { by, words, packets, flag, credit, .. } = shortcut;
    let count = if ONE { 1 } else { shortcut.count };
    let next = number.wrapping_add(*by);
    if next & credit.wrap == 0 {
        return false;
    }
    // SAFETY: as for `send`, with `PacketReceive` and `Signal`. Words that came before one that did not come in time are read again.
    unsafe {
        let is_due = next & credit.seldom == 0;
        if is_due {
            // The line is in the sender's cache; it comes while the packets do. See `Wait`.
            copy::prefetch_for_write(credit.slot.cast());
        }
        if read_row(m, packets.at(number).cast(), *words, count, (number | flag) as u32).is_err() {
            return false;
        }
        if is_due {
            AtomicU64::from_ptr(credit.slot).store(next, Ordering::Release);
            m.ring(credit.entry);
        }
    }
    true
}

/// What a register holds, as a function of the number.
#[derive(Clone, Copy)]
enum Value {
    Constant(u64),
    Number,
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
    /// `Behind`, but the number itself where it is a multiple.
    Needed {
        wrap: u64,
        behind: u64,
    },
    Other,
}

/// A message: constants of the code.
#[derive(Clone, Copy, PartialEq)]
struct Message {
    words: *mut u64,
    packets: Ring,
    count: u64,
    flag: u64,
    /// The entry of the packets.
    entry: usize,
}

#[derive(Clone, Copy)]
struct Slot {
    slot: *mut u64,
    entry: usize,
}

/// What the code does besides computing.
#[derive(Clone, Copy)]
enum Effect {
    /// For a slot to reach what is needed: the slot, `wrap` and `behind`.
    Wait(Slot, u64, u64),
    Send(Message),
    Receive(Message),
    /// The next number to a slot.
    Signal(Slot),
    /// The next number to the counter.
    Count,
}

struct Walked {
    number: *mut u64,
    by: u64,
    effects: Vec<Effect>,
    /// What was jumped by: `number + guard.0` has one of the bits `guard.1`.
    guards: Vec<(u64, u64)>,
}

impl Walked {
    fn steps(&self) -> (&[Effect], &[(u64, u64)]) {
        (&self.effects, &self.guards)
    }
}

/// Walks the code to its end. All jumps are taken, but the first only if `often`.
fn walk(m: &Machine, often: bool) -> Option<Walked> {
    let code = &m.role().code;
    let mut values = first_values(m.role());
    let (mut number, mut by, mut effects, mut guards) = (None, None, Vec::new(), Vec::new());
    let mut pc = 0;
    loop {
        let inst = code.get(pc)?;
        let [a, b, c, d] = [inst.a, inst.b, inst.c, inst.d].map(usize::from);
        // SAFETY: of an instruction of the verified program.
        let word = || unsafe { m.base(b).add(inst.e as usize) }.cast::<u64>();
        let constant = |reg: usize| if let Value::Constant(x) = values[reg] { Some(x) } else { None };
        let slot = || {
            // SAFETY: as above; only instructions on slots ask.
            let place = unsafe { m.slot_place(inst.e) };
            constant(place.base.into())?;
            // SAFETY: as above. What the register holds now it always holds.
            let slot = unsafe { place.known(m, 1) }?.cast();
            Some(Slot { slot, entry: place.entry.into() })
        };
        // Numbers of accesses, of which only instructions on two ask.
        let message = |words: i32, packets: i32| {
            let (Value::Flagged(flag), count) = (values[c], constant(a)?) else { return None };
            // SAFETY: as above.
            let (from, place) = unsafe { (m.access(words), m.place(packets)) };
            constant(from.base.into())?;
            from.bank.map_or(Some(0), |bank| constant(bank.into()))?;
            // SAFETY: as above. What the registers hold now they always hold.
            let words = unsafe { from_base(m, words, count as usize) }.ok()?.cast();
            let Value::Masked { mask, scale } = values[place.base as usize] else { return None };
            let packets = Ring::of(place, mask, scale, count)?;
            Some(Message { words, packets, count, flag, entry: place.entry.into() })
        };
        // All numbers that are told are the next one.
        let mut is_next = |reg: usize| matches!(values[reg], Value::Next(x) if *by.get_or_insert(x) == x);
        let mut ahead = 1;
        match (inst.op, number) {
            (Opcode::ULoadWord, None) => {
                number = Some(word());
                values[a] = Value::Number;
            }
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
                    ahead = usize::try_from(inst.e).ok().filter(|&e| e > 0)?;
                }
                guards.push((add, constant(b)?));
            }
            (Opcode::Wait, _) => {
                let Value::Needed { wrap, behind } = values[a] else { return None };
                effects.push(Effect::Wait(slot()?, wrap, behind));
            }
            (Opcode::PacketSend, _) => effects.push(Effect::Send(message(inst.e, inst.e + 1)?)),
            (Opcode::PacketReceive, _) => effects.push(Effect::Receive(message(inst.e + 1, inst.e)?)),
            (Opcode::Signal, _) if is_next(a) => effects.push(Effect::Signal(slot()?)),
            (Opcode::UStoreWord, Some(number)) if number == word() && is_next(a) => effects.push(Effect::Count),
            (Opcode::End, Some(number)) => return Some(Walked { number, by: by?, effects, guards }),
            _ => return None,
        }
        pc += ahead;
    }
}

/// Constants are what no instruction writes.
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

#[cfg(test)]
mod tests;
