//! The reports of runs that fail.

use super::{bind, bytes};
use std::error::Error;
use std::sync::Arc;
use tilewire::check::{self, Awaited, Bank, Binding, Bound, EvalError, Memories, Options, Plan, Settings};
use tilewire::ir::{Access, Kernel, Op, Special, Type};
use tilewire::tensor::DeviceBytes;
use tilewire::{Arg, Memory, Tensor, kernel};
use tilewire_testkit::programs::Writer;
use tilewire_testkit::programs::writer::at;

fn fail(kernel: &Kernel, all: &[Vec<u8>]) -> EvalError {
    let (binding, memories) = bind(all, kernel);
    let options = Options { step_limit: 10_000, ..Options::default() };
    check::run(kernel, &binding, memories, options).expect_err("the run must fail")
}

#[test]
fn out_of_bounds_names_what_where_and_who() {
    for index in [-1, 3, i64::MAX, i64::MIN] {
        let mut c = Writer::new("outside", 2);
        let out = c.buffer("out", Type::I32, 3, Access::Out);
        let mut line = 0;
        c.role("writer", |c, _| {
            let (index, x) = (c.i64(index), c.bits(Type::I32, 0));
            line = line!() + 1;
            c.store(out, index, x);
        });
        match fail(&c.finish(), &[vec![0; 12]]) {
            EvalError::OutOfBounds { what, index: seen, len, by } => {
                assert_eq!((what.as_str(), seen, len), ("out", index, 3));
                assert_eq!((by.rank, by.block, by.role.as_str(), by.copy), (0, 0, "writer", 0));
                assert_eq!((by.at.line, by.at.file.ends_with("errors.rs")), (line, true));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn the_last_byte_of_a_wide_value_counts() {
    let mut c = Writer::new("outside", 1);
    let region = c.region("region", 12);
    c.role("main", |c, _| {
        let (byte, x) = (c.i64(8), c.u64(0));
        c.put(region, byte, x);
    });
    assert!(matches!(fail(&c.finish(), &[vec![0; 12]]), EvalError::OutOfBounds { index: 8, len: 12, .. }));
}

#[test]
fn put_and_get_need_a_multiple_of_the_size() {
    let mut c = Writer::new("skewed", 1);
    let region = c.region("region", 16);
    c.role("main", |c, _| {
        let byte = c.i64(6);
        c.get(region, byte, Type::F32);
    });
    let error = fail(&c.finish(), &[vec![0; 16]]);
    assert!(matches!(error, EvalError::Misaligned { offset: 6, size: 4, .. }), "{error}");
}

#[test]
fn slots_banks_and_counts_have_bounds() {
    let mut c = Writer::new("slot", 1);
    let slots = c.slots("slots", 2, 8);
    c.role("main", |c, _| {
        let (index, x) = (c.i64(2), c.u64(1));
        c.signal(slots, index, x);
    });
    assert!(matches!(fail(&c.finish(), &[vec![0; 16]]), EvalError::OutOfBounds { index: 2, len: 2, .. }));

    let mut c = Writer::new("bank", 1);
    let data = c.buffer("data", Type::U8, 2, Access::InOut);
    c.role("main", |c, _| {
        let mut place = at(data, c.i64(0));
        place.bank = Some(c.i64(1));
        c.op(Op::Load { at: place, mask: None });
    });
    assert!(matches!(fail(&c.finish(), &[vec![0; 2]]), EvalError::OutOfBounds { index: 1, len: 1, .. }));

    let mut c = Writer::new("count", 1);
    let data = c.buffer("data", Type::U8, 2, Access::InOut);
    c.role("main", |c, _| {
        let (zero, count) = (c.i64(0), c.i64(-1));
        c.run(Op::BulkCopy { dst: at(data, zero), src: at(data, zero), count });
    });
    assert!(matches!(fail(&c.finish(), &[vec![0; 2]]), EvalError::OutOfBounds { index: -1, .. }));
}

#[test]
fn a_deadlock_lists_everybody_who_waits() {
    let mut c = Writer::new("cycle", 1);
    let slots = c.slots("slots", 2, 8);
    let area = c.region("area", 32);
    for (role, mine, other) in [("a", 0, 1), ("b", 1, 0)] {
        c.role(role, |c, _| {
            let (mine, other, x) = (c.i64(mine), c.i64(other), c.u64(5));
            c.wait(slots, other, x);
            c.signal(slots, mine, x);
        });
    }
    c.role("packet", |c, _| {
        let (n, flag) = (c.i64(2), c.bits(Type::U32, 3));
        c.each(n, |c, i| {
            c.op(Op::PacketGet { at: at(area, i), flag });
        });
    });
    c.role("done", |c, _| {
        c.special(Special::Rank);
    });
    // Packet 0 has arrived, and of packet 1 only the first half.
    let area = bytes(&[1u32, 3, 2, 3, 1, 3, 2, 1]);
    match fail(&c.finish(), &[bytes(&[4u64, 0]), area]) {
        EvalError::Deadlock { blocked } => {
            let seen: Vec<_> = blocked.iter().map(|s| (s.by.role.as_str(), s.on.expected, s.on.seen)).collect();
            assert_eq!(seen, [("a", 5, 0), ("b", 5, 4), ("packet", 3, 1)]);
            assert!(matches!(&blocked[0].on.on, Awaited::Slot { name, slot } if name == "slots" && slot.index == 1));
            assert!(matches!(&blocked[2].on.on, Awaited::Packet { name, index: 1, byte: 16, .. } if name == "area"));
            assert!(blocked.iter().all(|s| s.by.at.file.ends_with("errors.rs")));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn an_endless_loop_reaches_the_step_limit() {
    let mut c = Writer::new("forever", 1);
    c.role("main", |c, _| c.while_loop(|c| c.bits(Type::Bool, 1), |_| {}));
    assert!(matches!(fail(&c.finish(), &[]), EvalError::StepLimit { limit: 10_000, .. }));
}

#[test]
fn a_packet_flag_of_0_is_refused() {
    let mut c = Writer::new("flag", 1);
    let (area, flag) = (c.region("area", 16), c.scalar("flag", Type::U32));
    c.role("main", |c, _| {
        let (n, flag, x) = (c.i64(1), c.op(Op::Scalar(flag)), c.u64(0));
        c.each(n, |c, i| c.run(Op::PacketPut { at: at(area, i), x, flag }));
    });
    assert!(matches!(fail(&c.finish(), &[vec![0; 16], vec![0; 4]]), EvalError::ZeroFlag { .. }));
}

#[test]
fn what_does_not_fit_the_kernel_is_refused() {
    let mut c = Writer::new("fits", 1);
    c.buffer("data", Type::I32, 2, Access::In);
    let kernel = c.finish();
    let mut memories = Memories::new();
    let memory = memories.add(vec![0; 12]);
    let check = |params| Binding::alone(params).check(&kernel, &memories);
    let bank = |offset, len| Bound::Buffer(vec![Bank { memory, offset, len }]);
    assert!(check(vec![bank(4, 8)]).is_ok());
    assert!(check(vec![]).is_err(), "a parameter is missing");
    assert!(check(vec![Bound::Scalar(0)]).is_err(), "another kind");
    assert!(check(vec![bank(0, 4)]).is_err(), "too short");
    assert!(check(vec![bank(2, 8)]).is_err(), "misaligned");
    assert!(check(vec![bank(8, 8)]).is_err(), "outside of the memory");
    assert!(check(vec![Bound::Buffer(vec![])]).is_err(), "no bank");
}

/// Bytes of a device whose driver copies nothing.
struct Gone;

impl DeviceBytes for Gone {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err("the driver is gone".into())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err("the driver is gone".into())
    }
}

#[test]
fn arguments_that_cannot_be_read() {
    let (x, y) = (Tensor::<u32>::zeros(4), Tensor::<u32>::zeros(4));
    let traced = kernel("copy", |k| {
        let (x, y) = (k.input(&x), k.output(&y));
        k.main(|r| r.each(4, |i| y.store(i, x.load(i))));
    })
    .unwrap();
    // SAFETY: no kernel gets it, and nothing is ever copied.
    let gone = unsafe { Memory::on_device(4096, 16, vec![0], Arc::new(Gone)) };
    let args = [Arg::Buffer(vec![gone]), traced.args[1].clone()];
    let messages = [
        check::evaluate(&traced.kernel, &args, (0, 1), Options::default()).unwrap_err(),
        Plan::new(1).launch(&[(&traced.kernel, &args)]).run(&Settings::default(), None).err().unwrap(),
        // The tensors are this thread's own.
        std::thread::spawn(move || check::evaluate(&traced.kernel, &traced.args, (0, 1), Options::default()))
            .join()
            .unwrap()
            .unwrap_err(),
    ]
    .map(|error| match error {
        EvalError::Binding { kernel, message } => format!("{kernel}: {message}"),
        other => panic!("{other}"),
    });
    assert!(messages[0].starts_with("copy: a copy of 16 bytes from GPU 0 failed: the driver is gone"), "{messages:?}");
    assert_eq!(messages[0], messages[1]);
    assert!(messages[2].starts_with("copy: memory of 16 bytes is another thread's own"), "{messages:?}");
}
