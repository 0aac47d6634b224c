//! Valid code passes. Code that breaks any one guarantee that the machine relies on does not.
#![cfg_attr(fuzzing, allow(dead_code, unused_imports))] // fuzzing needs only the sample

use super::super::code::{Code, Opcode, RoleCode};
use super::super::lower::{lower, memories};
use super::verify;
use crate::ir::{
    Access, Base, BinaryOp, Builder, CompareOp, GroupOp, Mask, Op, Order, Param, ParamId, Place, Scope, Slot,
    SourceLine, Type, UnaryOp, Value,
};
use crate::tensor::{Arg, Memory};

/// Elements of every buffer of the sample.
pub(in super::super) const LEN: usize = 300;

/// A kernel that uses nearly every opcode, its arguments and the sizes of its memory.
pub(in super::super) struct Sample {
    pub args: Vec<Arg>,
    pub role: RoleCode,
    pub entries: Vec<u64>,
    /// Every memory with [`MARGIN`] bytes before and after it.
    pub whole: Vec<Memory>,
}

/// Bytes around every memory of the sample.
pub(in super::super) const MARGIN: usize = 128;

struct Writer(Builder);

impl Writer {
    #[track_caller]
    fn op(&mut self, op: Op) -> Value {
        self.0.value(op, &SourceLine::caller())
    }
    #[track_caller]
    fn run(&mut self, op: Op) {
        self.0.push(op, &SourceLine::caller());
    }
    fn buffer(&mut self, name: &str, ty: Type, len: usize, banks: u32) -> ParamId {
        let (name, align) = (name.into(), ty.size().max(16) as u32);
        self.0.param(Param::Buffer { name, ty, len: len as u64, banks, access: Access::InOut, align })
    }
    fn i64(&mut self, x: i64) -> Value {
        self.0.constant(Type::I64, x as u64, &SourceLine::caller())
    }
    fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        self.op(Op::Binary { op, a, b })
    }
    fn load(&mut self, at: Place) -> Value {
        self.op(Op::Load { at, mask: None })
    }
    fn store(&mut self, at: Place, x: Value) {
        self.run(Op::Store { at, x, mask: None });
    }
    fn each(&mut self, extent: Vec<Value>, body: impl FnOnce(&mut Writer, &[Value])) {
        let region = self.0.open(true);
        let (inst, indices) = self.0.loop_head(Op::Each { extent, body: region }, &SourceLine::caller());
        body(self, &indices);
        self.0.close();
        self.0.place(inst);
    }
}

fn at(param: ParamId, index: Value) -> Place {
    Place { base: Base::Param(param), bank: None, index }
}

/// The sample; `control` adds loops and branches.
pub(in super::super) fn sample(control: bool) -> Sample {
    let mut w = Writer(Builder::new("sample", 1));
    let [x, y] = ["x", "y"].map(|name| w.buffer(name, Type::F32, LEN, 1));
    let (index, half, banks) = (w.buffer("i", Type::I32, LEN, 1), w.buffer("h", Type::BF16, LEN, 1), 2);
    let (pair, bytes) = (w.buffer("pair", Type::F32, LEN, banks), w.buffer("bytes", Type::U8, 4 * LEN, 1));
    let (sums, packets) = (w.buffer("sums", Type::U32, LEN, 1), w.buffer("packets", Type::U8, 16 * LEN, 1));
    let words = w.buffer("words", Type::U64, LEN, 1);
    let flags = w.0.param(Param::Slots { name: "flags".into(), len: 4, stride: 16, banks: 1 });
    let (n, which) =
        (Param::Scalar { name: "n".into(), ty: Type::I64 }, Param::Scalar { name: "b".into(), ty: Type::I64 });
    let (n, which) = (w.0.param(n), w.0.param(which));
    let role = w.0.open_role("main", 1, 1, &SourceLine::caller());
    let scratch = w.0.scratch(role, Type::F32, LEN as u64);
    let (n, which) = (w.op(Op::Scalar(n)), w.op(Op::Scalar(which)));
    let in_scratch = |index| Place { base: Base::Scratch(scratch), bank: None, index };
    let in_bank = |index| Place { base: Base::Param(pair), bank: Some(which), index };

    // Pointers, a group's maximum stored by its first element, a widening sum, a selection between spread uniforms.
    w.each(vec![n], |w, i| {
        let (a, b) = (w.load(at(x, i[0])), w.load(at(half, i[0])));
        let b = w.op(Op::Cast { x: b, to: Type::F32 });
        let sum = w.binary(BinaryOp::Add, a, b);
        let size = w.i64(7);
        let (rest, group) = (w.binary(BinaryOp::Rem, i[0], size), w.binary(BinaryOp::Div, i[0], size));
        let zero = w.i64(0);
        let first = w.op(Op::Compare { op: CompareOp::Eq, a: rest, b: zero });
        let magnitude = w.op(Op::Unary { op: UnaryOp::Abs, x: a });
        let most = w.op(Op::Group { op: GroupOp::Max, x: magnitude, size: 7 });
        w.run(Op::Store { at: in_bank(group), x: most, mask: Some(first) });
        let scaled = w.binary(BinaryOp::Mul, sum, most);
        let one = w.0.constant(Type::F32, 1.0f32.to_bits().into(), &SourceLine::caller());
        let big = w.op(Op::Compare { op: CompareOp::Gt, a: scaled, b: one });
        let picked = w.op(Op::Select { cond: big, a: one, b: most });
        w.store(at(y, i[0]), picked);
        w.store(in_scratch(i[0]), sum);
    });
    // Accesses by index, masked, strided and atomic; bytes, packets, and indices as data.
    w.each(vec![n], |w, i| {
        let place = w.load(at(index, i[0]));
        let place = w.op(Op::Cast { x: place, to: Type::I64 });
        let (a, last) = (w.load(at(x, place)), w.i64(LEN as i64 - 1));
        let (back, zero) = (w.binary(BinaryOp::Sub, last, i[0]), w.i64(10));
        let b = w.load(in_scratch(back));
        let cond = w.op(Op::Compare { op: CompareOp::Lt, a: i[0], b: zero });
        let c = w.op(Op::Load { at: at(y, i[0]), mask: Some(Mask { cond, other: a }) });
        let sum = w.binary(BinaryOp::Add, b, c);
        w.run(Op::Store { at: at(x, back), x: sum, mask: Some(cond) });
        w.store(in_scratch(place), a);
        let number = w.op(Op::Cast { x: i[0], to: Type::U32 });
        let (order, scope) = (Order::Relaxed, Scope::System);
        w.op(Op::AtomicAdd { at: at(sums, back), x: number, mask: Some(cond), order, scope });
        let four = w.i64(4);
        let byte = w.binary(BinaryOp::Mul, i[0], four);
        w.run(Op::Put { at: at(bytes, byte), x: number, mask: None });
        let word = w.op(Op::Cast { x: i[0], to: Type::U64 });
        let flag = w.0.constant(Type::U32, 1, &SourceLine::caller());
        w.run(Op::PacketPut { at: at(packets, i[0]), x: word, flag });
        let narrow = w.binary(BinaryOp::Mul, a, b);
        let narrow = w.op(Op::Cast { x: narrow, to: Type::BF16 });
        w.store(at(half, i[0]), narrow);
    });
    // Tiles.
    let (rows, cols) = (w.i64(20), w.i64(15));
    w.each(vec![rows, cols], |w, i| {
        let (across, down) = (w.binary(BinaryOp::Mul, i[1], rows), w.binary(BinaryOp::Mul, i[0], cols));
        let (from, to) = (w.binary(BinaryOp::Add, across, i[0]), w.binary(BinaryOp::Add, down, i[1]));
        let (a, b) = (w.load(at(x, from)), w.load(at(y, to)));
        let sum = w.binary(BinaryOp::Add, a, b);
        w.store(at(y, to), sum);
        let moved = w.load(in_scratch(from));
        w.store(in_bank(to), moved);
    });
    // Code that is joined into one instruction: a copy, packets from words and back, a place in a ring, a counter.
    w.each(vec![n], |w, i| {
        let a = w.load(at(x, i[0]));
        w.store(at(y, i[0]), a);
    });
    w.each(vec![n], |w, i| {
        let a = w.load(at(x, i[0]));
        w.store(at(y, i[0]), a);
        w.store(in_bank(i[0]), a);
    });
    let flag = w.0.constant(Type::U32, 1, &SourceLine::caller());
    w.each(vec![n], |w, i| {
        let x = w.load(at(words, i[0]));
        w.run(Op::PacketPut { at: at(packets, i[0]), x, flag });
    });
    w.each(vec![n], |w, i| {
        let x = w.op(Op::PacketGet { at: at(packets, i[0]), flag });
        w.store(at(words, i[0]), x);
    });
    let (zero, one, two) = (w.i64(0), w.i64(1), w.i64(2));
    let (mask, factor) = [7, 16].map(|k| w.0.constant(Type::U64, k, &SourceLine::caller())).into();
    let count = w.load(at(words, zero));
    let slot = w.binary(BinaryOp::And, count, mask);
    let place = w.binary(BinaryOp::Mul, slot, factor);
    w.store(at(words, one), place);
    let next = w.binary(BinaryOp::Add, count, mask);
    w.store(at(words, two), next);
    let (none, value) = (w.0.constant(Type::U64, 0, &SourceLine::caller()), w.load(at(x, zero)));
    w.store(at(y, one), value);
    let slot = Slot { slots: flags, bank: None, index: one };
    w.run(Op::Signal { slot, x: none });
    w.run(Op::Wait { slot, x: none });
    w.op(Op::Test { slot, x: none });
    w.run(Op::BulkCopy { dst: at(y, zero), src: at(x, zero), count: n });
    if control {
        let body = w.0.open(false);
        let (inst, turn) = w.0.loop_head(Op::For { start: zero, end: n, step: one, body }, &SourceLine::caller());
        let cond = w.op(Op::Compare { op: CompareOp::Lt, a: turn[0], b: one });
        let (then, otherwise) = (w.0.open(false), {
            w.0.close();
            w.0.open(false)
        });
        w.store(at(x, turn[0]), value);
        w.0.close();
        w.run(Op::If { cond, then, otherwise });
        w.0.close();
        w.0.place(inst);
    }
    w.0.close();
    let kernel = w.0.finish();
    crate::ir::verify(&kernel).unwrap_or_else(|e| panic!("{e}\n{kernel}"));

    let mut whole = Vec::new();
    let mut memory = |bytes: usize| {
        let memory = Memory::zeroed(bytes + 2 * MARGIN);
        whole.push(memory.clone());
        memory.part(MARGIN, bytes)
    };
    let sizes: [&[usize]; 9] = [&[4], &[4], &[4], &[2], &[4, 4], &[4], &[4], &[16], &[8]];
    let mut args: Vec<Arg> =
        sizes.iter().map(|banks| Arg::Buffer(banks.iter().map(|size| memory(size * LEN)).collect())).collect();
    args.extend([Arg::Slots(vec![memory(64)]), Arg::Scalar(memory(8)), Arg::Scalar(memory(8))]);
    let role = lower(&kernel, &args, 0, usize::MAX).expect("lowers").remove(0);
    let mut entries: Vec<u64> = args.iter().flat_map(memories).map(|m| m.bytes() as u64).collect();
    entries.push(4 * LEN as u64);
    Sample { args, role, entries, whole }
}

/// Breaks the sample and expects the verifier's message to contain `words`.
#[track_caller]
fn caught(words: &str, break_it: impl FnOnce(&mut RoleCode)) {
    let Sample { mut role, entries, .. } = sample(true);
    break_it(&mut role);
    match verify(&role, &entries) {
        Err(what) => assert!(what.contains(words), "caught, but as: {what}"),
        Ok(()) => panic!("not caught\n{role}"),
    }
}

/// The first instruction with this name.
#[track_caller]
fn named<'r>(role: &'r mut RoleCode, name: &str) -> &'r mut Code {
    let at = position(role, name);
    &mut role.code[at]
}

/// The position of the first instruction with this name, which may omit the part in parentheses.
#[track_caller]
fn position(role: &RoleCode, name: &str) -> usize {
    role.code.iter().position(|code| is(code.op, name)).unwrap_or_else(|| panic!("no {name} in\n{role}"))
}

fn is(op: Opcode, name: &str) -> bool {
    let text = format!("{op:?}");
    text == name || text.split('(').next() == Some(name)
}

#[test]
fn the_sample_passes_and_has_the_opcodes_that_are_broken_below() {
    for control in [false, true] {
        let sample = sample(control);
        verify(&sample.role, &sample.entries).unwrap_or_else(|e| panic!("{e}\n{}", sample.role));
        let text = sample.role.to_string();
        let ops =
            ["Bind", "Fill", "LGroupMaxAbs", "LBinaryWiden", "LSelect", "Gather(", "GatherMasked", "ScatterMasked"];
        let more =
            ["AtomicLanes", "PacketPutRow", "LBinaryNarrow", "LoadTile", "StoreTile", "MoveTile", "Bulk", "Iota"];
        let joined = ["CopyRow ", "CopyTwoRows", "PacketSend", "PacketReceive", "UMaskScale", "UAddStoreWord"];
        for op in ops.into_iter().chain(more).chain(joined) {
            assert!(text.contains(op), "no {op} in\n{text}");
        }
    }
}

#[test]
fn registers_lie_in_the_register_file() {
    caught("register 9999 does not exist", |role| named(role, "ULoad").a = 9999);
    caught("register 9999 does not exist", |role| named(role, "Signal").a = 9999);
    caught("register 9999 does not exist", |role| named(role, "ForNext").c = 9999);
    for field in 0..4 {
        caught("register 9999 does not exist", |role| {
            let copy = named(role, "CopyRow");
            let mut of = [0; 4];
            of[field] = 9999;
            let [a, b, c, d] = of;
            *copy = Code { op: Opcode::FetchSlot, a, b, c, d, e: copy.e + 1 };
        });
    }
    caught("no such access", |role| {
        let copy = named(role, "CopyRow");
        *copy = Code { op: Opcode::FetchSlot, a: 0, b: 0, c: 0, d: 0, e: 9999 };
    });
    caught("register 9999 does not exist", |role| role.accesses[0].base = 9999);
    caught("register 9999 does not exist", |role| role.accesses[0].group_stride = 9999);
    caught("register 9999 does not exist", |role| role.slots[0].index = 9999);
    caught("register 9999 does not exist", |role| role.eaches[0].cols = 9999);
    caught("register 9999 does not exist", |role| role.eaches[2].rows = Some(9999));
    caught("register 9999 does not exist", |role| role.inputs[0].0 = 9999);
    caught("does not exist", |role| role.registers.truncate(2));
}

#[test]
fn lanes_exist_and_have_elements_of_the_size_the_op_expects() {
    caught("lane 9999 does not exist", |role| named(role, "LBinaryWiden").b = 9999);
    caught("lane 9999 does not exist", |role| named(role, "LSelect").e = 9999);
    caught("no such lane", |role| named(role, "LSelect").e = -1);
    caught("elements of", |role| {
        let wide = named(role, "LBinaryWiden").b;
        named(role, "LBinaryWiden").c = wide;
    });
    caught("elements of", |role| {
        let lane = named(role, "Fill").a;
        role.lanes[lane as usize].size = 8;
    });
}

#[test]
fn an_access_moves_as_many_bytes_as_its_op() {
    for (op, second, width) in [
        ("LoadTile", 0, 8),
        ("StoreTile", 0, 8),
        ("MoveTile", 0, 8),
        ("MoveTile", 1, 8),
        ("CopyOut", 0, 8),
        ("Gather", 0, 8),
        ("GatherMasked", 0, 8),
        ("ScatterMasked", 0, 8),
        ("AtomicLanes", 0, 8),
        ("ULoad", 0, 8),
        ("UStore", 0, 8),
        ("Bulk", 1, 8),
        ("CopyRow", 1, 8),
        ("CopyTwoRows", 1, 8),
        ("CopyTwoRows", 3, 8),
        ("PacketPutRow", 0, 32),
    ] {
        caught("another width", |role| {
            let access = named(role, op).e as usize + second;
            role.accesses[access].width = width;
        });
    }
    for (op, words, packets) in [("PacketSend", 0, 1), ("PacketReceive", 1, 0)] {
        for (second, width) in [(words, 4), (packets, 8), (packets, 32)] {
            caught("and packets of", |role| {
                let access = named(role, op).e as usize + second;
                (role.accesses[access].width, role.accesses[access].unit) = (width, width.min(8));
            });
        }
    }
    caught("no slot 99", |role| named(role, "Wait").b = 99);
    caught("width 12 in units of", |role| role.accesses[0].width = 12);
    caught("elements of", |role| {
        let access = named(role, "Bind").e as usize;
        role.accesses[access].width = 8;
    });
    caught("another width", |role| named(role, "CopyOut").op = Opcode::CopyOut(2));
    caught("in units of 0", |role| role.accesses[0].unit = 0);
    caught("width 4 in units of 6", |role| role.accesses[0].unit = 6);
    caught("width 0 in units of", |role| role.accesses[0].width = 0);
}

#[test]
fn jumps_stay_in_the_code_and_out_of_eaches() {
    caught("jump to", |role| named(role, "ForBegin").e = 10_000);
    caught("jump to -", |role| named(role, "ForNext").e = -10_000);
    caught("jump into an each", |role| {
        let (inside, jump) = (1 + position(role, "EachBegin"), position(role, "ForNext"));
        role.code[jump].e = inside as i32 - jump as i32;
    });
    caught("jump to", |role| {
        let end = role.code.len() as i32;
        named(role, "ForBegin").e = end;
    });
}

#[test]
fn the_code_ends() {
    caught("does not end with End", |role| {
        role.code.pop();
    });
    caught("does not end with End", |role| role.code.clear());
}

#[test]
fn tables_have_the_entries_that_are_named() {
    caught("no such access", |role| named(role, "Bind").e = 9999);
    caught("negative access", |role| named(role, "Bind").e = -1);
    caught("no such access", |role| {
        let last = role.accesses.len() as i32 - 1;
        named(role, "Bulk").e = last;
    });
    caught("table entry 9 of", |role| named(role, "Wait").e = 9);
    caught("table entry -1 of", |role| named(role, "Test").e = -1);
    caught("each 77 does not exist", |role| named(role, "EachBegin").e = 77);
    caught("count 7 does not exist", |role| named(role, "Bind").d = 7);
}

#[test]
fn memory_is_as_large_as_what_is_used_of_it() {
    caught("where", |role| role.accesses[0].bytes += 1);
    caught("do not exist", |role| role.accesses[0].first = 500);
    caught("do not exist", |role| role.slots[0].first = 500);
    caught("where", |role| role.slots[0].len = 5);
    caught("slot table overflows", |role| role.slots[0].len = u64::MAX);
    caught("has stride 12", |role| role.slots[0].stride = 12);
    caught("has stride 0", |role| role.slots[0].stride = 0);
    caught("banks and no bank register", |role| {
        role.accesses.iter_mut().filter(|access| access.banks == 2).for_each(|access| access.bank = None);
    });
    caught("no bank register", |role| role.slots[0].banks = 2);
    caught("do not exist", |role| {
        role.accesses.iter_mut().filter(|access| access.bank.is_some()).for_each(|access| access.banks = 50);
    });
    caught("scratch at", |role| role.scratch[0].1 = 128);
    caught("scratch at", |role| role.scratch[0].1 = 8);
    caught("scratch at", |role| role.scratch[0].1 = usize::MAX - 127);
    caught("scratch at", |role| role.scratch_bytes -= 512);
    caught("scratch entry out of range", |role| role.scratch[0].0 = 99);
}

#[test]
fn strips_have_room_for_the_longest_strip() {
    caught("ends at", |role| role.strip_bytes /= 2);
    caught("has room for", |role| role.eaches[0].tile_cols += 7);
    caught("has room for", |role| role.eaches[2].tile_rows = 10_000);
    caught("has room for", |role| role.eaches[0].tile_cols = u64::MAX);
    caught("has room for", |role| {
        let lane = named(role, "LGroupMaxAbs").a;
        let (offset, capacity) = role.lanes[lane as usize].strip.expect("it has strip memory");
        role.lanes[lane as usize].strip = Some((offset, capacity - 1));
    });
    caught("has room for", |role| named(role, "LGroupMaxAbs").e = 6);
    caught("is flat", |role| role.eaches[0].tile_cols = 0);
    caught("is flat", |role| role.eaches[2].tile_rows = 0);
}

#[test]
fn a_lane_is_filled_or_bound_before_it_is_read() {
    caught("is read before it is written", |role| {
        // Replace the fill by something harmless, so that the each keeps its shape.
        let (fill, bind) = (position(role, "Fill"), position(role, "Bind"));
        role.code[fill] = role.code[bind];
    });
    caught("lane", |role| {
        let (bind, later) = (position(role, "Bind"), position(role, "LBinaryWiden"));
        role.code.swap(bind, later);
    });
    caught("was bound for count", |role| named(role, "Bind").d = 1);
    caught("has strip memory", |role| {
        let lane = named(role, "Bind").a;
        role.lanes[lane as usize].strip = Some((0, 1));
    });
    caught("is not bound", |role| {
        let lane = named(role, "Fill").a;
        role.lanes[lane as usize].strip = None;
    });
    caught("counts groups where it walks elements", |role| {
        // Give the tiles' each a second count first, so that the count exists.
        role.eaches[2].groups.push(5);
        named(role, "StoreTile").d = 1;
    });
}

#[test]
fn eaches_begin_end_and_do_not_overlap() {
    caught("does not end at", |role| role.eaches[0].end += 1);
    caught("does not end at", |role| role.eaches[0].end = 0);
    caught("does not end at", |role| role.eaches[0].end = i32::MIN);
    caught("repeats from", |role| role.eaches[0].top = 1);
    caught("repeats from", |role| role.eaches[0].top = -1000);
    caught("each 0 begins twice", |role| {
        role.code.iter_mut().filter(|code| code.op == Opcode::EachBegin).for_each(|code| code.e = 0);
    });
    caught("stray EachNext", |role| {
        let next = *named(role, "EachNext");
        let end = role.code.len() - 1;
        role.code.insert(end, next);
    });
    caught("lane code and each do not agree", |role| {
        let bind = *named(role, "Bind");
        let end = role.code.len() - 1;
        role.code.insert(end, bind);
    });
    caught("lane code and each do not agree", |role| {
        let (inside, signal) = (position(role, "LBinaryWiden"), *named(role, "Signal"));
        role.code[inside] = signal;
    });
    caught("has groups", |role| role.eaches[0].groups[1] = 0);
    caught("has groups", |role| role.eaches[0].groups[0] = 2);
    caught("has groups", |role| role.eaches[0].groups.clear());
    caught("has groups", |role| role.eaches[0].groups.resize(9, 3));
    caught("group of no elements", |role| named(role, "LGroupMaxAbs").e = 0);
    caught("group of no elements", |role| named(role, "LGroupMaxAbs").e = -7);
}
