//! Accesses at constant places.

use super::*;

fn out(unit: &'static str, of: &str, index: i64, end: i128, len: u64) -> Fault {
    Fault::OutOfBounds { unit, of: of.into(), index, end, len }
}

#[test]
fn constant_accesses_are_in_bounds() {
    let made = kernel(|c, p, _| {
        let i = c.int(64);
        let line = line!() + 1;
        c.load(at(p.x, i));
        line
    });
    let text = "error: element 64 of x is out of bounds: it has 64\n  in kernel k, role main: v1: f32 = load p0[v0]";
    refused(made, out("element", "x", 64, 65, 64), text);

    let made = kernel(|c, p, _| {
        let i = c.int(-1);
        let line = line!() + 1;
        c.load(at(p.x, i));
        line
    });
    let text = "error: element -1 of x is out of bounds: it has 64\n  in kernel k, role main: v1: f32 = load p0[v0]";
    refused(made, out("element", "x", -1, 0, 64), text);

    let made = kernel(|c, p, _| {
        let (i, n) = (c.int(32), c.int(40));
        let line = line!() + 1;
        c.run(Op::BulkCopy { dst: at(p.y, i), src: at(p.x, i), count: i });
        c.run(Op::BulkCopy { dst: at(p.bytes, n), src: at(p.bytes, i), count: i });
        line + 1
    });
    let text = "error: element 40..72 of bytes is out of bounds: it has 64\n  \
                in kernel k, role main: bulk_copy p2[v1] from p2[v0] count v0";
    refused(made, out("element", "bytes", 40, 72, 64), text);

    let made = kernel(|c, p, _| {
        let (bank, index, x) = (c.int(2), c.int(4), c.constant(Type::U64, 1));
        c.run(Op::Signal { slot: Slot { slots: p.slots, bank: Some(bank), index: bank }, x });
        let _ = index;
    });
    let errors = verify(&made.0).unwrap_err().0;
    assert_eq!(errors[0].fault, out("bank", "slots", 2, 3, 2));

    let made = kernel(|c, p, _| {
        let (bank, index, x) = (c.int(1), c.int(4), c.constant(Type::U64, 1));
        let line = line!() + 1;
        c.run(Op::Wait { slot: Slot { slots: p.slots, bank: Some(bank), index }, x });
        line
    });
    let text = "error: slot 4 of slots is out of bounds: it has 4\n  in kernel k, role main: wait p4[bank v0][v1], v2";
    refused(made, out("slot", "slots", 4, 5, 4), text);
}

#[test]
fn byte_offsets_are_multiples_of_the_size() {
    let made = kernel(|c, p, _| {
        let i = c.int(6);
        let line = line!() + 1;
        c.value(Op::Get { at: at(p.bytes, i), to: Type::F32, mask: None });
        line
    });
    let text = "error: byte offset 6 is not a multiple of 4, the size of f32\n  \
                in kernel k, role main: v1: f32 = get p2[v0] to f32";
    refused(made, Fault::Misaligned { index: 6, ty: Type::F32 }, text);
}

#[test]
fn what_never_happens_is_not_out_of_bounds() {
    let (kernel, ()) = kernel(|c, p, _| {
        let (i, no, zero) = (c.int(64), c.constant(Type::Bool, 0), c.f32(0.0));
        c.if_(no, |c| c.load(at(p.x, i)), |_| {});
        c.value(Op::Load { at: at(p.x, i), mask: Some(Mask { cond: no, other: zero }) });
        let none = c.int(0);
        c.each(&[none], |c, _| c.load(at(p.x, i)));
        c.for_([i, none, i], |c, _| c.load(at(p.x, i)));
    });
    verify(&kernel).unwrap();
}

#[test]
fn packets_bytes_and_posts_are_counted_in_their_own_units() {
    let (kernel, ()) = kernel(|c, p, _| {
        let (n, flag, x) = (c.int(4), c.constant(Type::U32, 1), c.f32(1.0));
        c.each(&[n], |c, _| c.value(Op::PacketGet { at: at(p.bytes, n), flag }));
        let (last, over) = (c.int(60), c.int(64));
        c.run(Op::Put { at: at(p.bytes, last), x, mask: None });
        c.run(Op::Put { at: at(p.bytes, over), x, mask: None });
        let queue = c.queue("queue");
        let span = Some(PostSpan { src: at(p.bytes, n), dst: n, bytes: over });
        c.run(Op::Post { queue, peer: n, span, notice: None });
        // If nothing is copied, the place may be the one after the last.
        let count = c.value(Op::Special(Special::Rank));
        c.run(Op::BulkCopy { dst: at(p.y, over), src: at(p.x, over), count });
    });
    let faults: Vec<Fault> = verify(&kernel).unwrap_err().0.into_iter().map(|error| error.fault).collect();
    let expected = [out("packet", "bytes", 4, 5, 4), out("byte", "bytes", 64, 68, 64), out("byte", "bytes", 4, 68, 64)];
    assert_eq!(faults, expected);
}
