//! All code that the verifier accepts runs to an end (done, blocked or a fault) and touches nothing outside its memory.
#![cfg_attr(fuzzing, allow(dead_code, unused_imports))] // fuzzing needs only the one target

use super::super::code::{Access, Code, Opcode, RoleCode};
use super::super::handlers::{handler, of_several};
use super::super::lower::memories;
use super::super::pace::{Pace, Puts};
use super::super::verify::tests::{LEN, MARGIN, Sample, sample};
use super::super::verify::verify;
use super::{Blocked, Identity, Level, Machine, Program, Stop};
use crate::ir::{BinaryOp, SourceLine, Type};
use crate::tensor::bytes_of;
use std::sync::Arc;

const GUARD: u8 = 0xcc;

/// SplitMix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// A number near `x`, or any number.
    pub(crate) fn near(&mut self, x: u64) -> u64 {
        match self.below(6) {
            0 => x.wrapping_add(1),
            1 => x.wrapping_sub(1),
            2 => x ^ 1 << self.below(64),
            3 => self.next() % 40,
            4 => [0, 1, 2, 4, 7, 8, 300, 1 << 31, 1 << 32, 1 << 61, 1 << 62, i64::MAX as u64, 1 << 63, u64::MAX]
                [self.below(14)],
            _ => self.next(),
        }
    }
}

/// Changes one number of the code or its tables. Opcodes stay, so every op keeps its own operands, broken or not. The
/// sample has no jumps, so accepted code comes to an end.
fn mutate(role: &mut RoleCode, random: &mut Random) {
    macro_rules! change {
        ($field:expr) => {
            $field = random.near($field as u64) as _
        };
    }
    macro_rules! optional {
        ($field:expr) => {
            $field = if random.below(3) == 0 { None } else { Some(random.near($field.unwrap_or(0) as u64) as _) }
        };
    }
    match random.below(12) {
        0..5 => {
            let k = random.below(role.code.len());
            let code = &mut role.code[k];
            match random.below(5) {
                0 => change!(code.a),
                1 => change!(code.b),
                2 => change!(code.c),
                3 => change!(code.d),
                _ => change!(code.e),
            }
        }
        5..8 => {
            let k = random.below(role.accesses.len());
            let access = &mut role.accesses[k];
            match random.below(11) {
                0 => change!(access.first),
                1 => change!(access.banks),
                2 => optional!(access.bank),
                3 => change!(access.bytes),
                4 => change!(access.unit),
                5 => change!(access.width),
                6 => change!(access.base),
                7 => change!(access.row_stride),
                8 => change!(access.col_stride),
                9 => change!(access.group),
                _ => change!(access.group_stride),
            }
        }
        8 => {
            let k = random.below(role.registers.len());
            change!(role.registers[k]);
        }
        9 => {
            let k = random.below(role.lanes.len());
            let lane = &mut role.lanes[k];
            match (random.below(3), &mut lane.strip) {
                (0, Some((offset, _))) => change!(*offset),
                (1, Some((_, capacity))) => change!(*capacity),
                (_, strip) if random.below(4) == 0 => *strip = None,
                _ => change!(lane.size),
            }
        }
        10 => {
            let k = random.below(role.eaches.len());
            let each = &mut role.eaches[k];
            match random.below(8) {
                // An each of one row keeps one row: without a row stride, any number of rows would be in bounds.
                0 if each.rows.is_some() => optional!(each.rows),
                1 => change!(each.cols),
                2 => change!(each.tile_rows),
                3 => change!(each.tile_cols),
                4 => change!(each.stream_bytes),
                6 => change!(each.store_bytes),
                5 => change!(each.top),
                _ => {
                    let g = random.below(each.groups.len());
                    change!(each.groups[g]);
                }
            }
        }
        _ => match random.below(6) {
            0 => change!(role.slots[0].index),
            1 => change!(role.slots[0].len),
            2 => change!(role.slots[0].stride),
            3 => change!(role.slots[0].first),
            4 => change!(role.scratch[0].1),
            _ => change!(role.inputs[0].0),
        },
    }
}

/// Initial contents: an index table, the scalars, guards around everything.
fn fill(sample: &Sample) {
    for whole in &sample.whole {
        let (start, bytes) = (whole.start().as_ptr(), whole.bytes());
        // SAFETY: the memory is alive, and nobody else looks at it.
        unsafe {
            start.write_bytes(GUARD, MARGIN);
            start.add(MARGIN).write_bytes(0, bytes - 2 * MARGIN);
            start.add(bytes - MARGIN).write_bytes(GUARD, MARGIN);
        }
    }
    let inside = |entry: usize| sample.whole[entry].start().as_ptr().wrapping_add(MARGIN);
    // Entries: x, y, indices, h, two banks, bytes, sums, packets, words, flags, n, bank.
    for i in 0..LEN {
        // SAFETY: the third memory holds LEN indices of 4 bytes, the first LEN floats.
        unsafe {
            inside(2).cast::<i32>().add(i).write((LEN - 1 - i) as i32);
            inside(0).cast::<f32>().add(i).write(i as f32 - 100.5);
        }
    }
    // SAFETY: the last two memories are scalars of 8 bytes.
    unsafe {
        inside(11).cast::<i64>().write(LEN as i64);
        inside(12).cast::<i64>().write(1);
    }
}

fn check_guards(sample: &Sample, what: &dyn std::fmt::Debug) {
    for (entry, whole) in sample.whole.iter().enumerate() {
        let bytes = bytes_of(whole).unwrap();
        let outside = bytes[..MARGIN].iter().chain(&bytes[bytes.len() - MARGIN..]);
        assert!(outside.into_iter().all(|&byte| byte == GUARD), "memory beside entry {entry} was written: {what:?}");
    }
}

fn run(sample: &Sample, role: RoleCode, level: Level, (stream_from, pace): (usize, Pace)) -> Stop {
    let mut bases: Vec<*mut u8> = sample.args.iter().flat_map(memories).map(|m| m.start().as_ptr()).collect();
    bases.push(std::ptr::null_mut());
    let id = Identity { rank: 0, world_size: 1, block: 0, blocks: 1 };
    // SAFETY: the caller verified the code with the sizes of these addresses, which `sample` keeps alive.
    let mut machine = unsafe { Machine::new(Arc::new(Program::new(role, level)), bases, id, level) };
    machine.stream(stream_from, stream_from, pace);
    machine.restart();
    machine.run();
    machine.stop
}

#[test]
fn the_sample_runs_to_its_end() {
    let sample = sample(false);
    fill(&sample);
    for level in Level::available() {
        assert_eq!(run(&sample, sample.role.clone(), level, (usize::MAX, Pace::none())), Stop::Done);
        check_guards(&sample, &level);
    }
}

/// A target for fuzzing: every 8 bytes break the sample once more. The verifier does not panic, and accepted code runs
/// to an end on all levels, inside its memory. Returns whether it was accepted.
pub(crate) fn fuzz(data: &[u8]) -> bool {
    thread_local!(static SAMPLE: Sample = sample(false));
    SAMPLE.with(|sample| {
        let mut role = sample.role.clone();
        for chunk in data.chunks(8).take(4) {
            mutate(&mut role, &mut Random(chunk.iter().fold(0, |seed, &byte| seed << 8 | u64::from(byte))));
        }
        if verify(&role, &sample.entries).is_err() {
            return false;
        }
        for level in Level::available() {
            fill(sample);
            let stop = run(sample, role.clone(), level, (usize::MAX, Pace::none()));
            assert_ne!(stop, Stop::Running, "stopped while running\n{role}");
            check_guards(sample, &data);
        }
        true
    })
}

#[test]
fn whatever_the_verifier_accepts_stays_inside_its_memory() {
    let sample = sample(false);
    let mut random = Random(2026);
    let (mut accepted, mut done, mut faults) = (0, 0, 0);
    for turn in 0..30_000 {
        if turn % 64 == 0 {
            fill(&sample);
        }
        let mut role = sample.role.clone();
        for _ in 0..1 + random.below(2) {
            mutate(&mut role, &mut random);
        }
        if verify(&role, &sample.entries).is_err() {
            continue;
        }
        accepted += 1;
        let levels: Vec<Level> = Level::available().collect();
        let level = levels[random.below(levels.len())];
        let pace = if random.below(2) == 0 { Pace::none() } else { Pace::of(Puts::AroundCache) };
        let stream_from = [1, usize::MAX][random.below(2)];
        match run(&sample, role.clone(), level, (stream_from, pace)) {
            Stop::Done => done += 1,
            Stop::Blocked(_) => {}
            Stop::Fault(_) => faults += 1,
            Stop::Running => panic!("stopped while running\n{role}"),
        }
        check_guards(&sample, &turn);
    }
    // The test is meaningful: most mutations are refused, some accepted ones run to the end, some fault.
    assert!(accepted > 1000 && done > 100 && faults > 100, "{accepted} accepted, {done} done, {faults} faults");
    assert!(accepted < 25_000, "{accepted} accepted");
}

/// Eight words, aligned as a launch requires for packets.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(64))]
struct Words([u64; 8]);

/// Runs a program of uniform code on one memory of eight words. `joined`: use handlers that run several instructions.
fn of_words(role: RoleCode, words: &mut Words, joined: bool) -> (Stop, Vec<u64>, u64) {
    verify(&role, &[64, 64]).unwrap_or_else(|what| panic!("{what}\n{role}"));
    let mut program = Program::new(role, Level::Baseline);
    if !joined {
        let own = program.role.code.iter().map(|code| handler(code.op, Level::Baseline));
        program.insts.iter_mut().zip(own).for_each(|(inst, own)| inst.run = own);
    }
    let id = Identity { rank: 0, world_size: 1, block: 0, blocks: 1 };
    let start = words.0.as_mut_ptr().cast::<u8>();
    // SAFETY: verified with the size of the words; both entries are the same memory, which outlives the machine.
    let mut machine = unsafe { Machine::new(Arc::new(program), vec![start, start], id, Level::Baseline) };
    machine.restart();
    machine.run();
    // SAFETY: the programs of these tests have sixteen registers.
    let registers = (0..16).map(|reg| unsafe { machine.reg(reg) }).collect();
    (machine.stop, registers, machine.passed)
}

fn role_of(code: Vec<Code>, registers: Vec<u64>, accesses: Vec<Access>) -> RoleCode {
    RoleCode { name: "test".into(), code, registers, accesses, ..RoleCode::default() }
}

#[test]
fn several_instructions_at_once_do_what_each_alone_does() {
    const ADD: Opcode = Opcode::UBinary(BinaryOp::Add, Type::U64);
    const OR: Opcode = Opcode::UBinary(BinaryOp::Or, Type::U64);
    use Opcode::{End, Jump, JumpIfBits, ULoadWord, UMaskScale, UStoreWord};
    let begins: [&[Opcode]; 6] = [
        &[ULoadWord, OR, UMaskScale, ADD, JumpIfBits],
        &[ULoadWord, OR, UMaskScale, ADD],
        &[ULoadWord, UMaskScale, ADD],
        &[UMaskScale, ADD, JumpIfBits],
        &[UStoreWord, End],
        &[Jump],
    ];
    let mut random = Random(7);
    let mut joined = 0;
    for _ in 0..3000 {
        let ops: Vec<Opcode> = (0..6).flat_map(|_| begins[random.below(begins.len())].to_vec()).chain([End]).collect();
        let code: Vec<Code> = (0..ops.len())
            .map(|k| {
                let op = ops[k];
                let [a, c, d] = [(); 3].map(|()| random.below(16) as u16);
                // Words are entry 0; jumps go forward, also into the middle of joined instructions.
                let (b, e) = match op {
                    ULoadWord | UStoreWord => (0, 8 * random.below(8)),
                    Jump | JumpIfBits => (random.below(16) as u16, 1 + random.below(ops.len() - k - 1)),
                    _ => (random.below(16) as u16, random.below(100)),
                };
                Code { op, a, b, c, d, e: e as i32 }
            })
            .collect();
        joined += (0..code.len()).filter(|&k| of_several(&code[k..]).is_some()).count();
        let registers: Vec<u64> = (0..16).map(|_| random.next() % 32).collect();
        let role = role_of(code, registers, Vec::new());
        let (mut together, mut alone) = (Words([1, 2, 3, 4, 5, 6, 7, 8]), Words([1, 2, 3, 4, 5, 6, 7, 8]));
        let one = of_words(role.clone(), &mut together, true);
        assert_eq!((one, together), (of_words(role.clone(), &mut alone, false), alone), "{role}");
    }
    assert!(joined > 10_000, "{joined}");
}

#[test]
fn a_known_place_is_no_other_than_a_bank_of_one() {
    let access = |first, width, unit, base, bank| Access {
        first,
        banks: 1,
        bank,
        bytes: 64,
        unit,
        width,
        base,
        row_stride: 15,
        col_stride: 15,
        group: 0,
        group_stride: 15,
        operations: None,
        name: "words".into(),
        at: SourceLine::caller(),
    };
    let numbers = [0, 1, 2, 3, 7, 8, 9, 16, 56, 60, u64::MAX, 1 << 63, 1 << 61, i64::MAX as u64];
    let mut ends = std::collections::BTreeMap::new();
    // Each op with the width of an element and the unit of an index, for both accesses.
    let ops = [
        (Opcode::CopyRow, [(8, 8), (8, 8)]),
        (Opcode::CopyRow, [(8, 1), (8, 8)]),
        (Opcode::CopyRow, [(8, 4), (8, 2)]),
        (Opcode::PacketSend, [(8, 1), (16, 16)]),
        (Opcode::PacketReceive, [(16, 16), (8, 1)]),
    ];
    for (op, widths) in ops {
        for number in 0..numbers.len().pow(3) {
            let n = numbers.len();
            let (count, from, to) = (numbers[number % n], numbers[number / n % n], numbers[number / n / n]);
            // Register 0 is the count, 1 and 2 are the first indices, 3 is the flag, 4 the bank.
            let mut registers = vec![0; 16];
            registers[..5].copy_from_slice(&[count, from, to, 5, 0]);
            let code =
                vec![Code { op, a: 0, b: 0, c: 3, d: 0, e: 0 }, Code { op: Opcode::End, a: 0, b: 0, c: 0, d: 0, e: 0 }];
            let outcome = |bank: Option<u16>| {
                let [(w0, u0), (w1, u1)] = widths;
                let accesses = vec![access(0, w0, u0, 1, bank), access(1, w1, u1, 2, bank)];
                // The third packet carries the flag.
                let mut words = Words([1, 2, 3, 4, 5 << 32 | 6, 5 << 32 | 7, 8, 9]);
                let (stop, _, passed) = of_words(role_of(code.clone(), registers.clone(), accesses), &mut words, true);
                let stop = match stop {
                    // Only one of the two names its bank.
                    Stop::Blocked(Blocked::Packet { packet, seen, .. }) => format!("blocked {packet} {seen}"),
                    stop => format!("{stop:?}"),
                };
                (stop, passed, words)
            };
            let known = outcome(None);
            assert_eq!(known, outcome(Some(4)), "{op:?} of {count} from {from} to {to}");
            assert!(count as i64 > 0 || known.1 == 0, "what does nothing is no progress: {op:?} of {count}");
            *ends.entry(known.0[..4].to_string()).or_insert(0) += 1;
        }
    }
    // All three kinds of end were seen.
    assert!(ends["Done"] > 100 && ends["Faul"] > 100 && ends["bloc"] > 10, "{ends:?}");
}
