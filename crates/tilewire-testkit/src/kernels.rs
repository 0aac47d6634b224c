//! Legal kernels that together use every op.

use super::code::{Code, at, slot};
use tilewire::ir::{
    Access, Base, BinaryOp, BulkDone, CompareOp, GroupOp, Kernel, Mask, Notice, NoticeKind, Op, Order, Place, PostSpan,
    RequiredSpan, Scope, Slot, Special, Type, UnaryOp,
};

/// All kernels, with the names of their snapshots.
pub fn all() -> Vec<(&'static str, Kernel)> {
    vec![
        ("scale", scale()),
        ("constants", constants()),
        ("values", values()),
        ("memory", memory()),
        ("control", control()),
        ("staged", staged()),
        ("packets", packets()),
        ("bulk", bulk()),
        ("network", network()),
        ("requirements", requirements()),
    ]
}

/// `y = x * s`.
pub fn scale() -> Kernel {
    let mut code = Code::new("scale");
    let x = code.buffer("x", Access::In, Type::F32, 1024);
    let y = code.buffer("y", Access::Out, Type::F32, 1024);
    let s = code.scalar("s", Type::F32);
    code.role("main", 4, 1, |c, _| {
        let n = c.int(1024);
        let s = c.value(Op::Scalar(s));
        c.each(&[n], |c, i| {
            let loaded = c.load(at(x, i[0]));
            let scaled = c.value(Op::Binary { op: BinaryOp::Mul, a: loaded, b: s });
            c.store(at(y, i[0]), scaled);
        });
    });
    code.finish()
}

/// Constants of every type, including unusual ones.
pub fn constants() -> Kernel {
    let mut code = Code::new("constants of every type");
    code.role("main", 1, 1, |c, _| {
        for ty in Type::ALL {
            c.constant(ty, 0);
            c.constant(ty, 1);
            if ty != Type::Bool {
                c.constant(ty, u64::MAX >> (64 - ty.bits()));
            }
        }
        for x in [0.1, 1.0, -2.5e-9, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            c.f32(x);
        }
        c.constant(Type::F16, 0x2e66);
        c.constant(Type::BF16, 0x3e20);
        c.constant(Type::F8E4M3, 0x38);
        c.constant(Type::F8E5M2, 0x7c);
    });
    code.finish()
}

/// Arithmetic of every kind, uniform and lane.
pub fn values() -> Kernel {
    use {BinaryOp as B, CompareOp as C, UnaryOp as U};
    let mut code = Code::new("values");
    let x = code.buffer("x", Access::In, Type::F32, 256);
    code.role("main", 2, 1, |c, _| {
        for special in
            [Special::Rank, Special::WorldSize, Special::Block, Special::Blocks, Special::Copy, Special::Copies]
        {
            c.value(Op::Special(special));
        }
        let (a, b) = (c.int(7), c.int(-3));
        for op in [U::Neg, U::Abs, U::Not] {
            c.value(Op::Unary { op, x: a });
        }
        for op in [B::Add, B::Sub, B::Mul, B::Div, B::Rem, B::MulHi, B::Min, B::Max, B::And, B::Or, B::Xor] {
            c.value(Op::Binary { op, a, b });
        }
        for op in [B::Shl, B::Shr] {
            c.value(Op::Binary { op, a, b: a });
        }
        let n = c.int(256);
        c.each(&[n], |c, i| {
            let x = c.load(at(x, i[0]));
            for op in [U::Sqrt, U::Rsqrt, U::Rcp, U::Exp, U::Log, U::Tanh, U::Floor, U::Ceil, U::Trunc, U::RoundEven] {
                c.value(Op::Unary { op, x });
            }
            for op in [C::Eq, C::Ne, C::Lt, C::Le, C::Gt, C::Ge] {
                c.value(Op::Compare { op, a: i[0], b: a });
            }
            for op in [GroupOp::Max, GroupOp::Min, GroupOp::Sum, GroupOp::Scan] {
                c.value(Op::Group { op, x, size: 32 });
            }
            let positive = c.value(Op::Compare { op: C::Gt, a: i[0], b: a });
            let fused = c.value(Op::Fma { a: x, b: x, c: x });
            c.value(Op::Select { cond: positive, a: fused, b: x });
            let narrow = c.value(Op::Cast { x, to: Type::F8E4M3 });
            c.value(Op::Bitcast { x: narrow, to: Type::U8 });
        });
    });
    code.finish()
}

/// Variables, scratch, masks and atomics.
pub fn memory() -> Kernel {
    let mut code = Code::new("memory");
    let x = code.banked("x", Access::In, Type::I32, 64, 4);
    let y = code.buffer("y", Access::InOut, Type::I32, 64);
    code.role("main", 1, 1, |c, role| {
        let unused = c.builder.scratch(role, Type::F64, 8);
        let tile = c.builder.scratch(role, Type::I32, 64);
        assert_ne!(unused, tile);
        let count = c.builder.var(role, Type::I64);
        let n = c.int(64);
        c.run(Op::WriteVar { var: count, x: n });
        let (bank, zero) = (c.int(3), c.constant(Type::I32, 0));
        c.each(&[n], |c, i| {
            let inside = c.value(Op::Compare { op: CompareOp::Lt, a: i[0], b: n });
            let from = Place { base: Base::Param(x), bank: Some(bank), index: i[0] };
            let loaded = c.value(Op::Load { at: from, mask: Some(Mask { cond: inside, other: zero }) });
            let to = Place { base: Base::Scratch(tile), bank: None, index: i[0] };
            c.run(Op::Store { at: to, x: loaded, mask: Some(inside) });
            let (order, scope) = (Order::AcqRel, Scope::Device);
            c.run(Op::AtomicAdd { at: at(y, i[0]), x: loaded, mask: Some(inside), order, scope });
        });
        let first = c.int(0);
        let seen = c.load(at(y, first));
        c.store(at(y, first), seen);
        let (order, scope) = (Order::Relaxed, Scope::System);
        c.run(Op::AtomicAdd { at: at(y, first), x: seen, mask: None, order, scope });
        c.value(Op::ReadVar(count));
    });
    code.finish()
}

/// Branches and loops.
pub fn control() -> Kernel {
    let mut code = Code::new("control");
    let x = code.buffer("x", Access::InOut, Type::I64, 64);
    code.role("main", 1, 1, |c, role| {
        let (zero, one, eight) = (c.int(0), c.int(1), c.int(8));
        let turn = c.builder.var(role, Type::I64);
        let rank = c.value(Op::Special(Special::Rank));
        let first = c.value(Op::Compare { op: CompareOp::Eq, a: rank, b: zero });
        c.if_(
            first,
            |c| c.run(Op::WriteVar { var: turn, x: zero }),
            |c| {
                c.run(Op::WriteVar { var: turn, x: one });
                c.run(Op::Barrier);
            },
        );
        c.if_(first, |c| c.run(Op::Barrier), |_| {});
        c.while_(
            |c| {
                let turn = c.value(Op::ReadVar(turn));
                c.value(Op::Compare { op: CompareOp::Lt, a: turn, b: eight })
            },
            |c| {
                let old = c.value(Op::ReadVar(turn));
                let next = c.value(Op::Binary { op: BinaryOp::Add, a: old, b: one });
                c.run(Op::WriteVar { var: turn, x: next });
            },
        );
        c.for_([zero, eight, one], |c, row| {
            c.store(at(x, row[0]), row[0]);
        });
        c.each(&[eight, eight], |c, i| {
            let start = c.value(Op::Binary { op: BinaryOp::Mul, a: i[0], b: eight });
            let index = c.value(Op::Binary { op: BinaryOp::Add, a: start, b: i[1] });
            c.store(at(x, index), i[1]);
        });
    });
    code.finish()
}

/// A sender and a receiver that pass a tile through staging.
pub fn staged() -> Kernel {
    let mut code = Code::new("staged");
    let input = code.buffer("input", Access::In, Type::F32, 256);
    let output = code.buffer("output", Access::Out, Type::F32, 256);
    let theirs = code.banked("theirs", Access::InOut, Type::U8, 1024, 2);
    let mine = code.banked("mine", Access::InOut, Type::U8, 1024, 2);
    let tails = code.slots("tails", 16, 2);
    let heads = code.slots("heads", 16, 2);
    code.role("send", 4, 2, |c, _| {
        let (peer, zero, n, four) = (c.int(1), c.int(0), c.int(256), c.int(4));
        let step = c.constant(Type::U64, 1);
        c.run(Op::Wait { slot: Slot { slots: heads, bank: Some(peer), index: zero }, x: step });
        c.each(&[n], |c, i| {
            let x = c.load(at(input, i[0]));
            let byte = c.value(Op::Binary { op: BinaryOp::Mul, a: i[0], b: four });
            let inside = c.value(Op::Compare { op: CompareOp::Lt, a: i[0], b: n });
            c.run(Op::Put { at: Place { bank: Some(peer), ..at(theirs, byte) }, x, mask: Some(inside) });
        });
        c.run(Op::Signal { slot: Slot { slots: tails, bank: Some(peer), index: zero }, x: step });
    });
    code.role("receive", 4, 2, |c, _| {
        let (peer, zero, n, four) = (c.int(1), c.int(0), c.int(256), c.int(4));
        let step = c.constant(Type::U64, 1);
        let tail = Slot { slots: tails, bank: Some(peer), index: zero };
        c.value(Op::Test { slot: tail, x: step });
        c.run(Op::Wait { slot: tail, x: step });
        let nothing = c.f32(0.0);
        c.each(&[n], |c, i| {
            let byte = c.value(Op::Binary { op: BinaryOp::Mul, a: i[0], b: four });
            let from = Place { bank: Some(peer), ..at(mine, byte) };
            let inside = c.value(Op::Compare { op: CompareOp::Lt, a: i[0], b: n });
            let mask = Some(Mask { cond: inside, other: nothing });
            let x = c.value(Op::Get { at: from, to: Type::F32, mask });
            c.store(at(output, i[0]), x);
        });
        c.run(Op::SignalCredit { slot: Slot { slots: heads, bank: Some(peer), index: zero }, x: step });
    });
    code.finish()
}

/// Data that carries its own flag.
pub fn packets() -> Kernel {
    let mut code = Code::new("packets");
    let area = code.buffer("area", Access::InOut, Type::U8, 1024);
    code.role("main", 1, 1, |c, _| {
        let (n, flag) = (c.int(64), c.constant(Type::U32, 1));
        c.each(&[n], |c, i| {
            let x = c.value(Op::Cast { x: i[0], to: Type::U64 });
            c.run(Op::PacketPut { at: at(area, i[0]), x, flag });
            c.value(Op::PacketGet { at: at(area, i[0]), flag });
        });
    });
    code.finish()
}

/// Asynchronous copies through scratch.
pub fn bulk() -> Kernel {
    let mut code = Code::new("bulk");
    let x = code.buffer("x", Access::In, Type::F32, 256);
    let y = code.buffer("y", Access::Out, Type::F32, 256);
    code.role("main", 1, 1, |c, role| {
        let tile = c.builder.scratch(role, Type::F32, 128);
        let (zero, half) = (c.int(0), c.int(128));
        let staging = Place { base: Base::Scratch(tile), bank: None, index: zero };
        c.run(Op::BulkCopy { dst: staging, src: at(x, half), count: half });
        c.run(Op::BulkWait { pending: 0, done: BulkDone::Complete });
        c.run(Op::ProxyFence);
        c.run(Op::BulkCopy { dst: at(y, half), src: staging, count: half });
        c.run(Op::BulkWait { pending: 1, done: BulkDone::Read });
    });
    code.finish()
}

/// Descriptors for a proxy.
pub fn network() -> Kernel {
    let mut code = Code::new("network");
    let staging = code.buffer("staging", Access::InOut, Type::U8, 4096);
    let arrived = code.slots("arrived", 4, 1);
    let wire = code.queue("wire");
    code.role("main", 1, 1, |c, _| {
        let (zero, peer, bytes) = (c.int(0), c.int(1), c.int(4096));
        let step = c.constant(Type::U64, 1);
        let span = Some(PostSpan { src: at(staging, zero), dst: zero, bytes });
        let notice = |parts, kind| Some(Notice { slot: zero, x: step, parts, kind });
        c.run(Op::Post { queue: wire, peer, span, notice: None });
        c.run(Op::Post { queue: wire, peer, span, notice: notice(2, NoticeKind::Data) });
        c.run(Op::Post { queue: wire, peer, span: None, notice: notice(1, NoticeKind::Data) });
        c.run(Op::Post { queue: wire, peer, span: None, notice: notice(1, NoticeKind::Credit) });
        c.run(Op::Post { queue: wire, peer, span: None, notice: notice(1, NoticeKind::Flush) });
        c.run(Op::Wait { slot: slot(arrived, zero), x: step });
    });
    code.finish()
}

/// Conditions that must hold, before a store that relies on them.
pub fn requirements() -> Kernel {
    let mut code = Code::new("requirements");
    let y = code.buffer("y", Access::Out, Type::F32, 64);
    let first = code.scalar("first", Type::I64);
    code.role("main", 2, 1, |c, _| {
        let (rank, size, bytes) = (c.int(0), c.int(256), c.int(16));
        let first = c.value(Op::Scalar(first));
        let (four, count) = (c.int(4), c.int(4));
        let offset = c.value(Op::Binary { op: BinaryOp::Mul, a: first, b: four });
        let end = c.value(Op::Binary { op: BinaryOp::Add, a: offset, b: bytes });
        let fits = c.value(Op::Compare { op: CompareOp::Le, a: end, b: size });
        let positive = c.value(Op::Compare { op: CompareOp::Ge, a: first, b: rank });
        c.run(Op::Require { cond: positive, span: None });
        c.run(Op::Require { cond: fits, span: Some(RequiredSpan { rank, offset, bytes, size }) });
        c.each(&[count], |c, i| {
            let x = c.constant(Type::F32, 0x3f80_0000);
            let index = c.value(Op::Binary { op: BinaryOp::Add, a: first, b: i[0] });
            c.run(Op::Store { at: at(y, index), x, mask: None });
        });
    });
    code.finish()
}
