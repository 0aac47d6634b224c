//! Atomics, regions, packets, signals and bulk copies.

use super::{bytes, elements, run, run_with};
use tilewire::check::{BulkTiming, InstanceOptions, Options, Schedule};
use tilewire::ir::{Access, BulkDone, CompareOp, Op, ParamId, Special, Type};
use tilewire_testkit::programs::Writer;
use tilewire_testkit::programs::writer::{at, in_scratch};

#[test]
fn an_atomic_add_wraps_gives_the_old_value_and_0_where_masked_off() {
    let mut c = Writer::new("atomic", 1);
    let counter = c.buffer("counter", Type::U32, 2, Access::InOut);
    let old = c.buffer("old", Type::U32, 3, Access::Out);
    c.role("main", |c, _| {
        let (zero, one, n, x) = (c.i64(0), c.i64(1), c.i64(3), c.bits(Type::U32, u64::from(u32::MAX)));
        let before = c.atomic_add(counter, zero, x, None);
        c.store(old, zero, before);
        c.each(n, |c, i| {
            let x = c.cast(i, Type::U32);
            let mask = c.compare(CompareOp::Ge, i, one);
            let before = c.atomic_add(counter, one, x, Some(mask));
            let first = c.compare(CompareOp::Eq, i, zero);
            let place = c.op(Op::Select { cond: first, a: one, b: i });
            c.store_if(old, place, before, first);
        });
    });
    let after = run(c, &[bytes(&[5u32, 7]), bytes(&[9u32; 3])]);
    assert_eq!(elements::<u32>(&after[0]), [4, 10]);
    assert_eq!(elements::<u32>(&after[1]), [5, 0, 9]);
}

#[test]
fn put_and_get_move_bits_of_any_type_at_byte_offsets() {
    let mut c = Writer::new("region", 1);
    let region = c.region("region", 24);
    let out = c.buffer("out", Type::F16, 4, Access::Out);
    c.role("main", |c, _| {
        let [zero, one, eight, twenty] = [0, 1, 8, 20].map(|x| c.i64(x));
        let (wide, narrow) = (c.u64(0x7c01_fc00_8000_3c00), c.bits(Type::Bool, 1));
        c.put(region, eight, wide);
        c.put(region, twenty, narrow);
        let n = c.i64(4);
        c.each(n, |c, i| {
            let byte = c.scale(i, 2, eight);
            let x = c.get(region, byte, Type::F16);
            c.store(out, i, x);
        });
        let flag = c.get(region, twenty, Type::Bool);
        let flag = c.cast(flag, Type::U8);
        c.put(region, zero, flag);
        c.put(region, one, flag);
    });
    let after = run(c, &[vec![0xee; 24], vec![0; 8]]);
    assert_eq!(after[1], 0x7c01_fc00_8000_3c00u64.to_le_bytes());
    assert_eq!(after[0][..8], [1, 1, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee]);
    assert_eq!(after[0][20..], [1, 0xee, 0xee, 0xee]);
}

#[test]
fn a_packet_is_data_and_flag_twice() {
    let mut c = Writer::new("packet", 1);
    let area = c.region("area", 32);
    let out = c.buffer("out", Type::U64, 1, Access::Out);
    c.role("main", |c, _| {
        let (one, x, flag) = (c.i64(1), c.u64(0x1111_2222_3333_4444), c.bits(Type::U32, 0xf1a9));
        c.each(one, |c, i| {
            let place = c.add(i, one);
            c.run(Op::PacketPut { at: at(area, place), x, flag });
        });
        c.each(one, |c, i| {
            let place = c.add(i, one);
            let x = c.op(Op::PacketGet { at: at(area, place), flag });
            c.store(out, i, x);
        });
    });
    let after = run(c, &[vec![0; 32], vec![0; 8]]);
    let words = elements::<u32>(&after[0]);
    assert_eq!(words[4..], [0x3333_4444, 0xf1a9, 0x1111_2222, 0xf1a9]);
    assert_eq!(elements::<u64>(&after[1]), [0x1111_2222_3333_4444]);
}

/// A receiver that is declared before its sender, and so scheduled before it.
fn message() -> Writer {
    let mut c = Writer::new("message", 2);
    let slots = c.slots("slots", 2, 16);
    let data = c.buffer("data", Type::I64, 2, Access::InOut);
    let out = c.buffer("out", Type::I64, 2, Access::Out);
    let packets = c.region("packets", 2 * 3 * 16);
    let flag = |c: &mut Writer| c.bits(Type::U32, 7);
    c.role("receiver", |c, _| {
        let (block, three, n) = (c.special(Special::Block), c.u64(3), c.i64(3));
        c.wait(slots, block, three);
        let x = c.load(data, block);
        c.store(out, block, x);
        let (flag, zero) = (flag(c), c.i64(0));
        let start = c.scale(block, 3, zero);
        c.each(n, |c, i| {
            let place = c.add(start, i);
            let x = c.op(Op::PacketGet { at: at(packets, place), flag });
            let last = c.i64(2);
            let mask = c.compare(CompareOp::Eq, i, last);
            let x = c.cast(x, Type::I64);
            c.store_if(data, block, x, mask);
        });
    });
    c.role("sender", |c, _| {
        let (block, three, n) = (c.special(Special::Block), c.u64(3), c.i64(3));
        let x = c.scale(block, 10, n);
        c.store(data, block, x);
        c.signal(slots, block, three);
        let (flag, zero) = (flag(c), c.i64(0));
        let start = c.scale(block, 3, zero);
        c.each(n, |c, i| {
            let place = c.add(start, i);
            let x = c.cast(place, Type::U64);
            c.run(Op::PacketPut { at: at(packets, place), x, flag });
        });
    });
    c
}

#[test]
fn a_wait_blocks_until_the_slot_is_at_least_its_value() {
    let schedules = [Schedule::RoundRobin, Schedule::ToBlock, Schedule::Random(1), Schedule::Random(2)];
    for schedule in schedules {
        let options = Options { schedule, ..Options::default() };
        let after = run_with(message(), &[vec![0; 24], vec![0; 16], vec![0; 16], vec![0; 96]], options);
        assert_eq!(elements::<u64>(&after[0]), [3, 0, 3]);
        assert_eq!(elements::<i64>(&after[2]), [3, 13]);
        assert_eq!(elements::<i64>(&after[1]), [2, 5]);
    }
}

#[test]
fn a_test_tells_whether_a_wait_would_pass() {
    let mut c = Writer::new("test", 1);
    let slots = c.slots("slots", 1, 8);
    let out = c.buffer("out", Type::Bool, 4, Access::Out);
    c.role("main", |c, _| {
        let zero = c.i64(0);
        for (i, (set, least)) in [(4, 4), (4, 5), (5, 5), (u64::MAX, u64::MAX)].into_iter().enumerate() {
            let (set, least, i) = (c.u64(set), c.u64(least), c.i64(i as i64));
            c.credit(slots, zero, set);
            let test = c.test(slots, zero, least);
            c.store(out, i, test);
        }
    });
    assert_eq!(run(c, &[vec![0; 8], vec![9; 4]])[1], [1, 0, 1, 1]);
}

#[test]
fn a_bulk_copy_happens_between_its_start_and_the_wait_that_covers_it() {
    let copy = |c: &mut Writer, dst: ParamId, src: ParamId| {
        let (zero, count) = (c.i64(0), c.i64(2));
        c.run(Op::BulkCopy { dst: at(dst, zero), src: at(src, zero), count });
    };
    let build = |pending, done| {
        let mut c = Writer::new("bulk", 1);
        let [a, b, out] = ["a", "b", "out"].map(|name| c.buffer(name, Type::U8, 2, Access::InOut));
        c.role("main", |c, _| {
            copy(c, b, a);
            c.run(Op::BulkWait { pending, done });
            let (zero, x) = (c.i64(0), c.bits(Type::U8, 9));
            c.store(a, zero, x);
            let seen = c.load(b, zero);
            c.store(out, zero, seen);
        });
        c
    };
    let first = [vec![1, 2], vec![3, 4], vec![0, 0]];
    let run = |bulk, pending, done| {
        let instance = InstanceOptions { bulk, ..InstanceOptions::default() };
        let after = run_with(build(pending, done), &first, Options { instance, ..Options::default() });
        (after[1].clone(), after[2][0])
    };
    // A wait that covers the copy makes its time invisible.
    assert_eq!(run(BulkTiming::AtOnce, 0, BulkDone::Complete), (vec![1, 2], 1));
    assert_eq!(run(BulkTiming::Late, 0, BulkDone::Complete), (vec![1, 2], 1));
    // Read: the source may be overwritten, but the destination is not written yet.
    assert_eq!(run(BulkTiming::Late, 0, BulkDone::Read), (vec![1, 2], 3));
    // The wait does not cover the copy, which reads later writes.
    assert_eq!(run(BulkTiming::Late, 1, BulkDone::Complete), (vec![9, 2], 3));
}

#[test]
fn bulk_copies_reach_scratch() {
    let mut c = Writer::new("bulk", 1);
    let (src, out) = (c.buffer("in", Type::I32, 4, Access::In), c.buffer("out", Type::I32, 4, Access::InOut));
    c.role("main", |c, role| {
        let scratch = c.b.scratch(role, Type::I32, 3);
        let [zero, one, two, three] = [0, 1, 2, 3].map(|x| c.i64(x));
        c.run(Op::BulkCopy { dst: in_scratch(scratch, zero), src: at(src, one), count: three });
        c.run(Op::BulkWait { pending: 0, done: BulkDone::Complete });
        c.run(Op::ProxyFence);
        c.run(Op::BulkCopy { dst: at(out, two), src: in_scratch(scratch, one), count: two });
        c.run(Op::BulkCopy { dst: at(out, one), src: in_scratch(scratch, three), count: zero });
        c.run(Op::BulkWait { pending: 0, done: BulkDone::Complete });
        c.run(Op::Barrier);
    });
    let after = run(c, &[bytes(&[1i32, 2, 3, 4]), bytes(&[0i32; 4])]);
    assert_eq!(elements::<i32>(&after[1]), [0, 0, 3, 4]);
}
