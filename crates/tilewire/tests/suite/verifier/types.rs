//! Operands of the wrong type or shape.

use super::*;

#[test]
fn types() {
    let made = kernel(|c, p, _| {
        let x = c.int(1);
        let line = line!() + 1;
        c.store(at(p.y, x), x);
        line
    });
    let complaint = "stored value is i64; f32 is needed";
    let text = "error: stored value is i64; f32 is needed\n  in kernel k, role main: store p1[v0], v0";
    refused(made, Fault::Types(complaint.into()), text);
}

/// One op and the faults that are reported for it. The closure makes the op's operands.
#[track_caller]
fn complains<R>(says: &str, body: impl FnOnce(&mut Code, &Params) -> R) {
    let (kernel, _) = kernel(|c, p, _| body(c, p));
    let errors = verify(&kernel).expect_err(says).0;
    let complaints: Vec<&Fault> = errors.iter().map(|error| &error.fault).collect();
    assert_eq!(complaints, [&Fault::Types(says.into())], "{kernel}");
}

#[test]
fn every_complaint_about_operands() {
    complains("a bool constant is 0 or 1, not 2", |c, _| c.constant(Type::Bool, 2));
    complains("constant bits 0x100 do not fit u8", |c, _| c.constant(Type::U8, 256));
    complains("p0 is not a scalar parameter", |c, p| c.value(Op::Scalar(p.x)));
    complains("bool has no order: lt takes numbers", |c, _| {
        let a = c.constant(Type::Bool, 0);
        c.value(Op::Compare { op: tilewire::ir::CompareOp::Lt, a, b: a });
    });
    complains("fma takes floats, not i64", |c, _| {
        let a = c.int(0);
        c.value(Op::Fma { a, b: a, c: a });
    });
    complains("condition of select is i64; bool is needed", |c, _| {
        let a = c.int(0);
        c.value(Op::Select { cond: a, a, b: a });
    });
    complains("bit cast from i64 (64 bits) to f32 (32 bits)", |c, _| {
        let x = c.int(0);
        c.value(Op::Bitcast { x, to: Type::F32 });
    });
    complains("not takes integers and bool, not f32", |c, _| {
        let x = c.f32(0.0);
        c.value(Op::Unary { op: tilewire::ir::UnaryOp::Not, x });
    });
    complains("mul_hi takes integers, not f32", |c, _| {
        let a = c.f32(0.0);
        c.value(Op::Binary { op: BinaryOp::MulHi, a, b: a });
    });
    complains("store into x, which is an input", |c, p| {
        let (i, x) = (c.int(0), c.f32(0.0));
        c.store(at(p.x, i), x);
    });
    complains("banked has 2 banks: say which", |c, p| {
        let i = c.int(0);
        c.load(at(p.banked, i));
    });
    complains("bank is a lane value (one per element); it must be uniform", |c, p| {
        let n = c.int(2);
        c.each(&[n], |c, i| c.load(Place { bank: Some(i[0]), ..at(p.banked, i[0]) }));
    });
    complains("atomic_add takes 32- and 64-bit integers, not u8", |c, p| {
        let (i, x) = (c.int(0), c.constant(Type::U8, 0));
        let (order, scope) = (tilewire::ir::Order::Relaxed, tilewire::ir::Scope::Block);
        c.run(Op::AtomicAdd { at: at(p.bytes, i), x, mask: None, order, scope });
    });
    complains("put takes a byte region (u8), not f32", |c, p| {
        let (i, x) = (c.int(0), c.f32(0.0));
        c.run(Op::Put { at: at(p.y, i), x, mask: None });
    });
    complains("packet flag is 0, which means empty", |c, p| {
        let (n, flag) = (c.int(4), c.constant(Type::U32, 0));
        c.each(&[n], |c, i| c.value(Op::PacketGet { at: at(p.bytes, i[0]), flag }));
    });
    complains("count of a bulk copy is -1, below 0", |c, p| {
        let (i, count) = (c.int(0), c.int(-1));
        c.run(Op::BulkCopy { dst: at(p.y, i), src: at(p.x, i), count });
    });
    complains("p0 is not a queue parameter", |c, p| {
        let (i, x) = (c.int(0), c.constant(Type::U64, 1));
        c.run(Op::Post {
            queue: p.x,
            peer: i,
            span: None,
            notice: Some(Notice { slot: i, x, parts: 1, kind: NoticeKind::Data }),
        });
    });
    for (kind, what) in [(NoticeKind::Credit, "a credit has no bytes"), (NoticeKind::Flush, "a flush has no bytes")] {
        complains(what, |c, p| {
            let (i, x, queue) =
                (c.int(0), c.constant(Type::U64, 1), c.builder.param(Param::Queue { name: "wire".into() }));
            let span = Some(PostSpan { src: at(p.bytes, i), dst: i, bytes: i });
            c.run(Op::Post { queue, peer: i, span, notice: Some(Notice { slot: i, x, parts: 1, kind }) });
        });
    }
    complains("p0 is not a slots parameter", |c, p| {
        let (i, x) = (c.int(0), c.constant(Type::U64, 1));
        c.run(Op::Wait { slot: slot(p.x, i), x });
    });
    complains("each has 3 extents; one or two are allowed", |c, _| {
        let n = c.int(4);
        c.each(&[n, n, n], |_, _| {});
    });
}

#[test]
fn scratch_is_private_and_outputs_are_plain() {
    let (kernel, ()) = kernel(|c, p, role| {
        let tile = Base::Scratch(c.builder.scratch(role, Type::U8, 64));
        let (i, flag, one) = (c.int(0), c.constant(Type::U32, 1), c.constant(Type::F32, 1));
        let place = Place { base: tile, bank: None, index: i };
        c.run(Op::BulkCopy { dst: place, src: place, count: i });
        c.each(&[i], |c, _| c.value(Op::PacketGet { at: place, flag }));
        let (order, scope) = (tilewire::ir::Order::Relaxed, tilewire::ir::Scope::Block);
        c.run(Op::AtomicAdd { at: at(p.y, i), x: one, mask: None, order, scope });
    });
    let text = verify(&kernel).unwrap_err().to_string();
    for says in [
        "bulk copy from scratch to scratch; one side must be a parameter",
        "packet_get takes a buffer parameter; scratch is private to its role copy",
        "atomic_add on y, which is declared Out; declare it InOut",
    ] {
        assert!(text.contains(says), "{says}\n{text}");
    }
}
