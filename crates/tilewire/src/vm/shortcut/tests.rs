//! The fast path and the code leave the same memory behind, whatever the code is.

use super::super::code::{Access, Code, Input, Opcode, RoleCode, SlotRef};
use super::super::level::Level;
use super::super::machine::tests::Random;
use super::super::machine::{Identity, Machine, Program, Stop};
use super::super::pace::{Pace, Puts};
use super::super::verify::verify;
use super::super::waits::{Bell, WaitHost, Waits};
use super::Shortcut;
use crate::ir::{BinaryOp, CompareOp, SourceLine, Special, Type};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Entries of the programs below: where each begins and how long it is, in words.
const COUNTER: (usize, usize) = (0, 8);
const CREDIT: (usize, usize) = (8, 16);
const WORDS: (usize, usize) = (24, 8);
const PACKETS: (usize, usize) = (32, 64);
const TAIL: (usize, usize) = (96, 64);
const HEAD: (usize, usize) = (160, 64);
const ENTRIES: [(usize, usize); 6] = [COUNTER, CREDIT, WORDS, PACKETS, TAIL, HEAD];
/// The geometry that senders expect.
const GEOMETRY: u64 = 1 << 31;

#[derive(Clone, Debug, PartialEq)]
#[repr(align(64))]
struct Memory([u64; 224]);

impl Memory {
    fn word(&mut self, (first, _): (usize, usize), k: usize) -> &mut u64 {
        &mut self.0[first + k]
    }
}

/// Registers of the programs below: constants first.
mod reg {
    pub const HIGH: u16 = 0;
    pub const DEPTH: u16 = 1;
    pub const ONE: u16 = 2;
    pub const HALF: u16 = 3;
    pub const WRAP: u16 = 4;
    pub const ZERO: u16 = 5;
    pub const FOUR: u16 = 6;
    pub const COUNT: u16 = 7;
    pub const NUMBER: u16 = 8;
    pub const FLAG: u16 = 9;
    pub const PLACE: u16 = 10;
    pub const FIRST: u16 = 11;
    pub const NEXT: u16 = 12;
    pub const A: u16 = 13;
    pub const B: u16 = 14;
    pub const C: u16 = 15;
}

fn inst(op: Opcode, [a, b, c, d]: [u16; 4], e: i32) -> Code {
    Code { op, a, b, c, d, e }
}

fn access(entry: u16, width: u32, unit: u32, base: u16) -> Access {
    Access {
        first: entry,
        banks: 1,
        bank: None,
        bytes: 8 * ENTRIES[entry as usize].1 as u64,
        unit,
        width,
        base,
        row_stride: reg::ZERO,
        col_stride: reg::ZERO,
        group: 0,
        group_stride: reg::ZERO,
        operations: None,
        name: "memory".into(),
        at: SourceLine::caller(),
    }
}

const fn binary(op: BinaryOp) -> Opcode {
    Opcode::UBinary(op, Type::U64)
}

/// The code that the lowering makes of `send_packets` and `recv_packets`: messages of `count` words, eight under way,
/// four packets each. Flags repeat after `flags` messages, so that tests reach that case.
fn role(sends: bool, count: u64, flags: u64) -> RoleCode {
    use reg::*;
    let begin = [
        inst(Opcode::ULoadWord, [NUMBER, 0, 0, 0], 8),
        inst(binary(BinaryOp::Or), [FLAG, NUMBER, HIGH, 0], 0),
        inst(Opcode::UMaskScale, [PLACE, NUMBER, DEPTH, FIRST], 4),
        inst(binary(BinaryOp::Add), [NEXT, NUMBER, ONE, 0], 0),
    ];
    let end = [inst(Opcode::UStoreWord, [NEXT, 0, 0, 0], 8), inst(Opcode::End, [0; 4], 0)];
    let send = [
        inst(Opcode::JumpIfBits, [NUMBER, HALF, 0, 0], 7),
        inst(binary(BinaryOp::And), [A, NUMBER, WRAP, 0], 0),
        inst(Opcode::UCompare(CompareOp::Eq, Type::U64), [B, A, ZERO, 0], 0),
        inst(binary(BinaryOp::Max), [C, NUMBER, FOUR, 0], 0),
        inst(binary(BinaryOp::Sub), [C, C, FOUR, 0], 0),
        inst(Opcode::USelect, [A, B, NUMBER, C], 0),
        inst(Opcode::Wait, [A, 0, 1, 0], 0),
        inst(Opcode::PacketSend, [COUNT, 0, FLAG, 0], 0),
    ];
    let receive = [
        inst(Opcode::PacketReceive, [COUNT, 1, FLAG, 0], 0),
        inst(Opcode::JumpIfBits, [NEXT, HALF, 0, 0], 5),
        inst(Opcode::JumpIfBits, [NEXT, WRAP, 0, 0], 3),
        // Stands in for clearing the packets.
        inst(Opcode::UStoreWord, [NEXT, 0, 0, 0], 32),
        inst(Opcode::Jump, [0; 4], 1),
        inst(Opcode::Signal, [NEXT, 0, 0, 0], 0),
    ];
    let (words, packets) = (access(2, 8, 1, ZERO), access(3, 16, 16, FIRST));
    let mut registers = vec![0; 16];
    registers[..8].copy_from_slice(&[1 << 31, 7, 1, 3, flags - 1, 0, 4, count]);
    RoleCode {
        name: "test".into(),
        code: begin.into_iter().chain(if sends { send.to_vec() } else { receive.to_vec() }).chain(end).collect(),
        registers,
        accesses: if sends { vec![words, packets] } else { vec![packets, words] },
        slots: vec![slot(1, 2, ZERO)],
        ..RoleCode::default()
    }
}

fn slot(entry: u16, len: u64, index: u16) -> SlotRef {
    let (name, at) = ("slots".into(), SourceLine::caller());
    SlotRef { first: entry, banks: 1, bank: None, len, stride: 64, index, operations: None, name, op: "wait", at }
}

/// The code that the lowering makes of `send_tiles` and `recv_tiles` for one step: `count` words in one of eight slots
/// of eight words, which lie where the other programs have packets.
fn row_role(sends: bool, count: u64) -> RoleCode {
    use reg::*;
    let place = [
        inst(Opcode::UMaskScale, [PLACE, NUMBER, DEPTH, FIRST], 64),
        inst(binary(BinaryOp::Add), [NEXT, NUMBER, ONE, 0], 0),
    ];
    let mut code = vec![inst(Opcode::ULoadWord, [NUMBER, 0, 0, 0], 8)];
    // Stands in for the drain and for asking for credit.
    let other = |at: i32| inst(Opcode::UStoreWord, [ONE, 0, 0, 0], at);
    if sends {
        code.push(inst(Opcode::ULoadWord, [A, 0, 0, 0], 16));
        code.extend([inst(Opcode::JumpUnlessU64(CompareOp::Ne), [A, HIGH, 0, 0], 2), other(32)]);
        code.extend(place);
        code.extend([inst(Opcode::JumpIfBits, [NUMBER, HALF, 0, 0], 2), other(40)]);
        code.push(inst(Opcode::CopyRow, [COUNT, 0, 0, 0], 0));
        code.push(inst(Opcode::Signal, [NEXT, 0, 0, 0], 0));
        code.push(inst(Opcode::FetchSlot, [COUNT, NEXT, DEPTH, FOUR], 1));
    } else {
        code.extend(place);
        code.push(inst(Opcode::Wait, [NEXT, 2, 1, 0], 0));
        code.push(inst(Opcode::CopyRow, [COUNT, 0, 0, 0], 0));
        code.push(inst(Opcode::Signal, [NEXT, 0, 0, 0], 1));
    }
    code.extend([inst(Opcode::UStoreWord, [NEXT, 0, 0, 0], 8), inst(Opcode::End, [0; 4], 0)]);
    let mut registers = vec![0; 16];
    registers[..8].copy_from_slice(&[GEOMETRY, 7, 1, 3, 15, 0, 64, count]);
    let (words, rows) = (access(2, 8, 8, ZERO), access(3, 8, 1, FIRST));
    RoleCode {
        name: "test".into(),
        code,
        registers,
        accesses: if sends { vec![words, rows] } else { vec![rows, words] },
        slots: vec![slot(4, 8, PLACE), slot(5, 8, PLACE)],
        ..RoleCode::default()
    }
}

fn machine(role: &RoleCode, memory: &mut Memory) -> Machine {
    let start = memory.0.as_mut_ptr();
    let bases = ENTRIES.map(|(first, _)| start.wrapping_add(first).cast::<u8>()).to_vec();
    let id = Identity { rank: 0, world_size: 1, block: 0, blocks: 1 };
    // SAFETY: callers verified the role with the sizes of these entries and keep the memory alive as long as the
    // machine.
    unsafe { Machine::new(Arc::new(Program::new(role.clone(), Level::detect())), bases, id, Level::detect()) }
}

fn is_verified(role: &RoleCode) -> bool {
    verify(role, &ENTRIES.map(|(_, words)| 8 * words as u64)).is_ok()
}

/// Records which ranks are woken. Every entry is a rank, and all of them sleep.
struct Listener {
    start: usize,
    asleep: AtomicU32,
    heard: Mutex<Vec<usize>>,
}

impl WaitHost for Listener {
    fn aborted(&self) -> Option<u64> {
        None
    }

    fn explain(&self, word: u64) -> String {
        word.to_string()
    }

    fn sleep(&self, ready: &mut dyn FnMut() -> bool, _: Duration) -> bool {
        ready()
    }

    fn owner(&self, address: usize) -> usize {
        ENTRIES.iter().position(|&(first, _)| self.start + 8 * first == address).unwrap()
    }

    fn bell(&self, _: usize) -> Bell<'_> {
        Bell { word: &self.asleep, sleepers: 1 }
    }

    fn ring(&self, rank: usize) {
        self.heard.lock().unwrap().push(rank);
    }

    fn wake(&self) {}
}

/// Runs the code, trying the fast path first if allowed. Returns whether there is one, whether it ran, how the run
/// ended, and which ranks were woken.
fn run(role: &RoleCode, memory: &mut Memory, looks: u32, by_shortcut: bool) -> (bool, bool, Stop, Vec<usize>) {
    let start = memory.0.as_ptr() as usize;
    let listener = Arc::new(Listener { start, asleep: AtomicU32::new(1), heard: Mutex::default() });
    let mut machine = machine(role, memory);
    machine.announce(&Waits::on(listener.clone()));
    machine.looks = looks;
    machine.stream(usize::MAX, usize::MAX, if looks == 1 { Pace::of(Puts::AroundCache) } else { Pace::none() });
    let shortcut = Shortcut::of(&machine).filter(|_| by_shortcut);
    // SAFETY: the shortcut is the machine's own, and the memory is alive.
    let gone = shortcut.as_ref().is_some_and(|shortcut| unsafe { shortcut.run(&machine) });
    if !gone {
        machine.restart();
        machine.run();
    }
    let stop = if gone { Stop::Done } else { machine.stop };
    let heard = listener.heard.lock().unwrap().clone();
    (shortcut.is_some(), gone, stop, heard)
}

/// A memory in which the message of a number may or may not have arrived.
fn memory(random: &mut Random, number: u64) -> Memory {
    let mut memory = Memory([0; 224]);
    memory.0.iter_mut().for_each(|word| *word = random.next());
    *memory.word(COUNTER, 1) = number;
    let credit = [number, number.saturating_sub(4), number.saturating_sub(5), number.wrapping_add(9), 0];
    *memory.word(CREDIT, 0) = credit[random.below(5)];
    *memory.word(CREDIT, 8) = credit[random.below(5)];
    // All packets of the message, or none, or some.
    let there = [u64::MAX, u64::MAX, 0, random.next() | 3][random.below(4)];
    for half in (0..8).filter(|half| there >> half & 1 == 1) {
        let flag = u64::from(number as u32 | 1 << 31);
        *memory.word(PACKETS, (number & 7) as usize * 8 + half) = flag << 32 | random.next() >> 32;
    }
    if random.below(8) > 0 {
        *memory.word(COUNTER, 2) = GEOMETRY;
    }
    let tail = [number.wrapping_add(1), number.wrapping_add(9), number, 0];
    *memory.word(TAIL, (number & 7) as usize * 8) = tail[random.below(4)];
    memory
}

fn number(random: &mut Random) -> u64 {
    let bases = [0, 16, 1 << 31, (1 << 32) - 8, u64::MAX - 5, random.next()];
    bases[random.below(6)].wrapping_add(random.below(20) as u64)
}

/// Runs both ways from the same memory. Returns whether there was a fast path, and whether it ran.
fn compare(role: &RoleCode, before: &Memory, looks: u32) -> (bool, bool) {
    let (mut short, mut long) = (before.clone(), before.clone());
    let (found, gone, stop, heard) = run(role, &mut short, looks, true);
    let (_, _, expected, told) = run(role, &mut long, looks, false);
    assert_eq!((stop, heard, &short), (expected, told, &long), "{role}gone: {gone}");
    (found, gone)
}

#[test]
fn messages_take_it() {
    let mut random = Random(11);
    let packets = [(true, 1), (true, 3), (true, 4), (false, 1), (false, 2), (false, 4)];
    let packets = packets.map(|(sends, count)| role(sends, count, 16));
    let rows = [(true, 1), (true, 5), (true, 8), (false, 1), (false, 6), (false, 8)];
    for role in packets.into_iter().chain(rows.map(|(sends, count)| row_role(sends, count))) {
        assert!(is_verified(&role), "{role}");
        let mut gone = [0; 2];
        for _ in 0..2000 {
            let number = number(&mut random);
            let (found, could) = compare(&role, &memory(&mut random, number), random.below(3) as u32);
            assert!(found, "{role}");
            gone[usize::from(could)] += 1;
        }
        // Now and then something is missing.
        assert!(gone[0] > 100 && gone[1] > 500, "{role}{gone:?}");
    }
}

#[test]
fn what_is_no_message_has_none() {
    let has = |role: &RoleCode| {
        assert!(is_verified(role), "{role}");
        Shortcut::of(&machine(role, &mut Memory([0; 224]))).is_some()
    };
    for sends in [true, false] {
        let like = row_role(sends, 8);
        assert!(has(&like));
        // The message overlaps the slots, or is longer than its source or destination, or there are too few slots.
        let mut over = like.clone();
        over.accesses[usize::from(!sends)].first = 3;
        let mut longer = like.clone();
        longer.registers[reg::COUNT as usize] = 9;
        let mut fewer = like.clone();
        fewer.slots[usize::from(!sends)].len = 7;
        // Rows do not begin at word boundaries.
        let mut shifted = like.clone();
        let place = shifted.code.iter_mut().find(|code| code.op == Opcode::UMaskScale);
        place.unwrap().e = 60;
        for role in [over, longer, fewer, shifted] {
            assert!(!has(&role), "{role}");
        }
        // The row is streamed.
        let mut memory = Memory([0; 224]);
        let mut machine = machine(&like, &mut memory);
        machine.stream(64, 64, Pace::none());
        assert!(Shortcut::of(&machine).is_none());
        machine.stream(65, 65, Pace::none());
        assert!(Shortcut::of(&machine).is_some());
    }
    for sends in [true, false] {
        let at = |role: &RoleCode, op: Opcode| role.code.iter().position(|code| code.op == op).unwrap();
        let like = role(sends, 2, 16);
        assert!(has(&like));
        // The words of the message overlap its number or its packets.
        for entry in [0, 3] {
            let mut over = like.clone();
            over.accesses[usize::from(!sends)].first = entry;
            assert!(!has(&over), "{over}");
        }
        // Now and then it counts by four.
        let mut faster = like.clone();
        let (jump, end) = (at(&like, Opcode::JumpIfBits), at(&like, Opcode::UStoreWord).max(like.code.len() - 2));
        let target = if sends { at(&like, Opcode::PacketSend) } else { end };
        faster.code.insert(target, inst(binary(BinaryOp::Add), [reg::NEXT, reg::NUMBER, reg::FOUR, 0], 0));
        faster.code[jump].e += 1;
        assert!(!has(&faster), "{faster}");
    }
}

/// Code that resembles a message has no fast path, or one with the same effect.
#[test]
fn whatever_has_it_does_the_same_without() {
    let mut random = Random(2027);
    let (mut accepted, mut found, mut gone) = (0, 0, 0);
    for _ in 0..60_000 {
        let (sends, count) = (random.below(2) == 0, 1 + random.below(4) as u64);
        let mut role = match random.below(2) {
            0 => role(sends, count, [16, 64, 1 << 31][random.below(3)]),
            _ => row_role(sends, 2 * count),
        };
        for _ in 0..1 + random.below(2) {
            mutate(&mut role, &mut random);
        }
        // A loop might not end.
        let jumps = |op| matches!(op, Opcode::JumpIfBits | Opcode::Jump | Opcode::JumpUnlessU64(_));
        let forward = |code: &Code| !jumps(code.op) || code.e > 0;
        if !is_verified(&role) || !role.code.iter().all(forward) {
            continue;
        }
        accepted += 1;
        for _ in 0..3 {
            let number = number(&mut random);
            let (has, could) = compare(&role, &memory(&mut random, number), random.below(3) as u32);
            found += usize::from(has);
            gone += usize::from(could);
        }
    }
    assert!(accepted > 10_000 && found > 10_000 && gone > 5000, "{accepted} accepted, {found} found, {gone} gone");
    assert!(found < 3 * accepted, "every change was taken for a message");
}

/// Changes one number, or swaps, replaces or repeats an instruction, or adds an input.
fn mutate(role: &mut RoleCode, random: &mut Random) {
    macro_rules! change {
        ($field:expr) => {
            $field = random.near($field as u64) as _
        };
    }
    let k = random.below(role.code.len());
    match random.below(12) {
        0..5 => {
            let code = &mut role.code[k];
            match random.below(5) {
                0 => code.a = random.below(16) as u16,
                1 => code.b = random.below(16) as u16,
                2 => code.c = random.below(16) as u16,
                3 => code.d = random.below(16) as u16,
                _ => change!(code.e),
            }
        }
        5 => {
            let other = random.below(role.code.len());
            role.code.swap(k, other);
        }
        6 => {
            let ops = [BinaryOp::Add, BinaryOp::Or, BinaryOp::And, BinaryOp::Sub, BinaryOp::Max, BinaryOp::Xor];
            if let Opcode::UBinary(op, _) = &mut role.code[k].op {
                *op = ops[random.below(ops.len())];
            }
        }
        7 => {
            let r = random.below(role.registers.len());
            change!(role.registers[r]);
        }
        8 => {
            let mut again = role.code[random.below(role.code.len())];
            change!(again.c);
            role.code.insert(k, again);
        }
        9 => role.inputs.push((random.below(16) as u16, Input::Special(Special::Blocks))),
        10 => {
            let access = &mut role.accesses[random.below(2)];
            match random.below(5) {
                0 => change!(access.bytes),
                1 => access.base = random.below(16) as u16,
                2 => access.unit = [1, 8, 16][random.below(3)],
                3 => access.first = random.below(6) as u16,
                _ => access.bank = Some(reg::ZERO),
            }
        }
        _ => {
            let slots = role.slots.len();
            let slot = &mut role.slots[random.below(slots)];
            match random.below(4) {
                0 => slot.index = random.below(16) as u16,
                1 => change!(slot.len),
                2 => slot.first = random.below(6) as u16,
                _ => slot.bank = Some(reg::ZERO),
            }
        }
    }
}
