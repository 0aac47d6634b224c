//! Value ops, loads and stores.

use super::{bytes, elements, run};
use tilewire::ir::{Access, BinaryOp, CompareOp, GroupOp, Mask, Op, Special, Type, UnaryOp, Value};
use tilewire_testkit::programs::Writer;
use tilewire_testkit::programs::writer::at;

/// `out[i] = f(in[i])` for all elements of `input`.
fn map(input: Vec<u8>, from: Type, to: Type, f: impl FnOnce(&mut Writer, Value, Value) -> Value) -> Vec<u8> {
    let len = (input.len() / from.size()) as u64;
    let mut c = Writer::new("map", 1);
    let src = c.buffer("in", from, len, Access::In);
    let out = c.buffer("out", to, len, Access::Out);
    c.role("main", |c, _| {
        let n = c.i64(len as i64);
        c.each(n, |c, i| {
            let x = c.load(src, i);
            let y = f(c, i, x);
            c.store(out, i, y);
        });
    });
    run(c, &[input, vec![0; len as usize * to.size()]]).swap_remove(1)
}

#[test]
fn arithmetic_is_that_of_the_scalar_module() {
    let out = map(bytes(&[1i32, -7, i32::MAX]), Type::I32, Type::I32, |c, _, x| {
        let one = c.bits(Type::I32, 1);
        let sum = c.add(x, one);
        c.unary(UnaryOp::Neg, sum)
    });
    assert_eq!(elements::<i32>(&out), [-2, 6, i32::MIN]);
    let out = map(bytes(&[3.0f32, -2.0]), Type::F32, Type::F32, |c, _, x| {
        let half = c.f32(0.5);
        c.op(Op::Fma { a: x, b: x, c: half })
    });
    assert_eq!(elements::<f32>(&out), [9.5, 4.5]);
}

#[test]
fn compare_and_select() {
    let out = map(bytes(&[1.0f32, f32::NAN, -0.0]), Type::F32, Type::U8, |c, _, x| {
        let (zero, a, b) = (c.f32(0.0), c.bits(Type::U8, 10), c.bits(Type::U8, 20));
        let cond = c.compare(CompareOp::Le, x, zero);
        c.op(Op::Select { cond, a, b })
    });
    assert_eq!(out, [20, 20, 10]);
}

#[test]
fn casts_saturate_and_bitcasts_keep_bits() {
    let out = map(bytes(&[1e9f32, -1.5, f32::NAN]), Type::F32, Type::I8, |c, _, x| c.cast(x, Type::I8));
    assert_eq!(elements::<i8>(&out), [127, -1, 0]);
    let out = map(bytes(&[-0.0f32]), Type::F32, Type::U32, |c, _, x| c.op(Op::Bitcast { x, to: Type::U32 }));
    assert_eq!(elements::<u32>(&out), [0x8000_0000]);
}

#[test]
fn a_bool_in_memory_is_any_byte_and_is_stored_as_0_or_1() {
    assert_eq!(map(vec![0, 1, 2, 0xff], Type::Bool, Type::Bool, |_, _, x| x), [0, 1, 1, 1]);
    assert_eq!(map(vec![0, 7], Type::Bool, Type::Bool, |c, _, x| c.unary(UnaryOp::Not, x)), [1, 0]);
}

#[test]
fn group_reductions_reach_every_element_and_the_last_group_may_be_short() {
    let input = bytes(&[3i32, 1, 4, 1, 5]);
    let group = |op, size| {
        let out = map(input.clone(), Type::I32, Type::I32, move |c, _, x| c.group(op, x, size));
        elements::<i32>(&out)
    };
    assert_eq!(group(GroupOp::Max, 2), [3, 3, 4, 4, 5]);
    assert_eq!(group(GroupOp::Min, 3), [1, 1, 1, 1, 1]);
    assert_eq!(group(GroupOp::Sum, 3), [8, 8, 8, 6, 6]);
    assert_eq!(group(GroupOp::Scan, 3), [3, 4, 8, 1, 6]);
    assert_eq!(group(GroupOp::Scan, 1), [3, 1, 4, 1, 5]);
    assert_eq!(group(GroupOp::Sum, 128), [14; 5]);
}

#[test]
fn a_float_sum_pairs_neighbours_and_carries_an_odd_last() {
    // ((1e30 + -1e30) + (1 + 2)) + 4 is 7. From left to right it is also 7, but (1e30 + 1) + … is not.
    let out = map(bytes(&[1e30f32, -1e30, 1.0, 2.0, 4.0]), Type::F32, Type::F32, |c, _, x| c.group(GroupOp::Sum, x, 5));
    assert_eq!(elements::<f32>(&out), [7.0; 5]);
    // (1 + 1e30) + (-1e30 + 2) loses both small numbers. From left to right the 2 would stay.
    let out = map(bytes(&[1.0f32, 1e30, -1e30, 2.0]), Type::F32, Type::F32, |c, _, x| c.group(GroupOp::Sum, x, 4));
    assert_eq!(elements::<f32>(&out), [0.0; 4]);
}

#[test]
fn a_float_scan_doubles_its_distance() {
    // Distance 1: [1, 1e30, 0, 2-1e30 → -1e30]; distance 2: x[2] += x[0], x[3] += x[1].
    let out = map(bytes(&[1.0f32, 1e30, -1e30, 2.0]), Type::F32, Type::F32, |c, _, x| c.group(GroupOp::Scan, x, 4));
    assert_eq!(elements::<f32>(&out), [1.0, 1e30, 1.0, 0.0]);
}

#[test]
fn groups_of_a_two_dimensional_each_stay_in_their_row() {
    let mut c = Writer::new("rows", 1);
    let src = c.buffer("in", Type::I32, 6, Access::In);
    let out = c.buffer("out", Type::I32, 6, Access::Out);
    c.role("main", |c, _| {
        let (rows, cols) = (c.i64(2), c.i64(3));
        c.each2(rows, cols, |c, row, col| {
            let i = c.scale(row, 3, col);
            let x = c.load(src, i);
            let sum = c.group(GroupOp::Sum, x, 2);
            c.store(out, i, sum);
        });
    });
    let after = run(c, &[bytes(&[1i32, 2, 3, 4, 5, 6]), vec![0; 24]]);
    assert_eq!(elements::<i32>(&after[1]), [3, 3, 3, 9, 9, 6]);
}

#[test]
fn masked_off_accesses_are_not_evaluated() {
    let mut c = Writer::new("masked", 1);
    let src = c.buffer("in", Type::I32, 2, Access::In);
    let out = c.buffer("out", Type::I32, 2, Access::Out);
    c.role("main", |c, _| {
        let (n, limit, other) = (c.i64(4), c.i64(2), c.bits(Type::I32, 9));
        c.each(n, |c, i| {
            let inside = c.compare(CompareOp::Lt, i, limit);
            let x = c.load_if(src, i, inside, other);
            let one = c.i64(1);
            let turned = c.binary(BinaryOp::Sub, one, i);
            c.store_if(out, turned, x, inside);
        });
    });
    let after = run(c, &[bytes(&[5i32, 6]), vec![0; 8]]);
    assert_eq!(elements::<i32>(&after[1]), [6, 5]);
}

#[test]
fn a_masked_off_load_gives_its_other_value() {
    let out = map(bytes(&[1i32, 2, 3]), Type::I32, Type::I32, |c, i, x| {
        let two = c.bits(Type::I32, 2);
        let cond = c.compare(CompareOp::Ge, x, two);
        let far = c.i64(1000);
        let mut place = at(tilewire::ir::Entity::new(0), far);
        place.index = c.op(Op::Select { cond, a: i, b: far });
        c.op(Op::Load { at: place, mask: Some(Mask { cond, other: two }) })
    });
    assert_eq!(elements::<i32>(&out), [2, 2, 3]);
}

#[test]
fn specials_and_scalars() {
    let mut c = Writer::new("specials", 2);
    let scale = c.scalar("scale", Type::I64);
    let out = c.buffer("out", Type::I64, 6, Access::Out);
    c.role("main", |c, _| {
        let (zero, one, two) = (c.i64(0), c.i64(1), c.i64(2));
        let (block, blocks, by) = (c.special(Special::Block), c.special(Special::Blocks), c.op(Op::Scalar(scale)));
        let start = c.scale(block, 3, zero);
        let copies = c.special(Special::Copies);
        let x = c.mul(block, by);
        c.store(out, start, x);
        let place = c.add(start, one);
        c.store(out, place, blocks);
        let place = c.add(start, two);
        c.store(out, place, copies);
    });
    let after = run(c, &[bytes(&[10i64]), vec![0; 48]]);
    assert_eq!(elements::<i64>(&after[1]), [0, 2, 1, 10, 2, 1]);
}

#[test]
fn a_store_leaves_its_neighbours_alone() {
    let mut c = Writer::new("one", 1);
    let out = c.buffer("out", Type::U16, 3, Access::Out);
    c.role("main", |c, _| {
        let (i, x) = (c.i64(1), c.bits(Type::U16, 0xbeef));
        c.store(out, i, x);
    });
    assert_eq!(run(c, &[vec![0x11; 6]])[0], [0x11, 0x11, 0xef, 0xbe, 0x11, 0x11]);
}

#[test]
fn scratch_is_private_and_poisoned() {
    let mut c = Writer::new("scratch", 2);
    let out = c.buffer("out", Type::U32, 4, Access::Out);
    c.role("main", |c, role| {
        let scratch = c.b.scratch(role, Type::U32, 2);
        let (zero, one, block) = (c.i64(0), c.i64(1), c.special(Special::Block));
        let x = c.cast(block, Type::U32);
        c.store_scratch(scratch, zero, x);
        for i in [zero, one] {
            let x = c.load_scratch(scratch, i);
            let place = c.scale(block, 2, i);
            c.store(out, place, x);
        }
    });
    assert_eq!(elements::<u32>(&run(c, &[vec![0; 16]])[0]), [0, 0xa5a5_a5a5, 1, 0xa5a5_a5a5]);
}
