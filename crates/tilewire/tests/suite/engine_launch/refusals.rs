//! Kernels that cannot be prepared, and the messages for that.

use crate::engine_launch::slots;
use tilewire::hook::Traced;
use tilewire::ir::{Access, Op};
use tilewire::vm::{PrepareError, Prepared};
use tilewire::{Arg, Memory, Scalar, Tensor, kernel};

/// One buffer of 8 floats in two banks, one scalar, 4 slots.
fn traced() -> Traced {
    let (banks, scale, (_, flags)) = ([Memory::zeroed(32), Memory::zeroed(32)], Scalar::new(1.0f32), slots(4));
    kernel("sample", |k| {
        let (x, flags) = (k.buffer::<f32>("x", &banks, Access::InOut), k.slots("flags", &flags, 8));
        k.main(|r| {
            r.each(8, |i| x.bank(0).store(i, x.bank(1).load(i) * &scale));
            r.signal(flags.slot(0, 3), 1);
        });
    })
    .expect("traces")
}

/// The error with argument `k` replaced, and its text.
#[track_caller]
fn refused(find: impl Fn(&Arg) -> bool, by: Arg) -> (PrepareError, String) {
    let mut traced = traced();
    let place = traced.args.iter().position(find).expect("there is one");
    traced.args[place] = by;
    let error = Prepared::new(&traced.kernel, &traced.args).expect_err("must be refused");
    let text = error.to_string();
    (error, text)
}

fn is_buffer(arg: &Arg) -> bool {
    matches!(arg, Arg::Buffer(_))
}

#[test]
fn the_sample_is_fine_as_it_stands() {
    let traced = traced();
    Prepared::new(&traced.kernel, &traced.args).expect("prepares").run().expect("runs");
}

#[test]
fn every_parameter_needs_its_argument() {
    let mut traced = traced();
    traced.args.pop();
    match Prepared::new(&traced.kernel, &traced.args) {
        Err(PrepareError::Argument { what, .. }) => assert_eq!(what, "2 arguments for 3 parameters"),
        other => panic!("{other:?}"),
    }
    traced.args.clear();
    assert!(Prepared::new(&traced.kernel, &traced.args).is_err());
}

#[test]
fn memory_must_hold_what_the_kernel_uses() {
    let (error, text) = refused(is_buffer, Arg::Buffer(vec![Memory::zeroed(32), Memory::zeroed(31)]));
    assert!(matches!(error, PrepareError::Argument { param, .. } if param == "x"));
    assert_eq!(text, "argument x: 31 bytes of memory where the kernel uses 32");
    let (_, text) = refused(|arg| matches!(arg, Arg::Slots(_)), Arg::Slots(vec![Memory::zeroed(24)]));
    assert_eq!(text, "argument flags: 24 bytes of memory where the kernel uses 32");
    let (_, text) = refused(|arg| matches!(arg, Arg::Scalar(_)), Arg::Scalar(Memory::zeroed(2)));
    assert!(text.contains("2 bytes of memory where the kernel uses 4"), "{text}");
}

#[test]
fn every_bank_needs_its_memory() {
    for banks in [0, 1, 3] {
        let (_, text) = refused(is_buffer, Arg::Buffer(vec![Memory::zeroed(32); banks]));
        assert_eq!(text, format!("argument x: {banks} memories for 2 banks"));
    }
}

#[test]
fn memory_must_be_aligned_as_its_elements() {
    let whole = Memory::zeroed(128);
    let (error, text) = refused(is_buffer, Arg::Buffer(vec![whole.part(0, 32), whole.part(34, 40)]));
    match error {
        // The same alignment as that of the memory it was traced with.
        PrepareError::Unaligned { param, align, address, .. } => {
            assert_eq!((param.as_str(), address % 4), ("x", 2));
            assert!(text.contains(&format!("no multiple of the {align} bytes")), "{text}");
        }
        other => panic!("{other:?}"),
    }
    let (error, _) = refused(|arg| matches!(arg, Arg::Slots(_)), Arg::Slots(vec![whole.part(4, 64)]));
    assert!(matches!(error, PrepareError::Unaligned { align: 8, .. }), "{error}");
    let (error, _) = refused(|arg| matches!(arg, Arg::Scalar(_)), Arg::Scalar(whole.part(1, 4)));
    assert!(matches!(error, PrepareError::Unaligned { align: 4, .. }), "{error}");
}

#[test]
fn packets_need_memory_aligned_to_sixteen() {
    let whole = Memory::zeroed(256);
    for (offset, fits) in [(0, true), (16, true), (8, false)] {
        let bank = [whole.part(offset, 64)];
        let traced = kernel("packets", |k| {
            let region = k.region("inbox", &bank);
            k.main(|r| r.each(4, |i| region.packet_put(0, i, 1u64, 1u32)));
        })
        .expect("traces");
        let prepared = Prepared::new(&traced.kernel, &traced.args);
        assert_eq!(prepared.is_ok(), fits, "at {offset}");
        if let Err(error) = prepared {
            assert!(matches!(error, PrepareError::Unaligned { align: 16, .. }), "{error}");
        }
    }
}

#[test]
fn an_argument_of_another_kind_is_refused() {
    let (_, text) = refused(is_buffer, Arg::Scalar(Memory::zeroed(32)));
    assert!(text.starts_with("argument x: a Scalar"), "{text}");
    let (_, text) = refused(|arg| matches!(arg, Arg::Slots(_)), Arg::Buffer(vec![Memory::zeroed(64)]));
    assert!(text.starts_with("argument flags: a Buffer"), "{text}");
}

#[test]
fn a_malformed_kernel_is_refused_with_its_faults() {
    let mut traced = traced();
    let store = traced.kernel.insts.iter().find(|(_, inst)| matches!(inst.op, Op::Store { .. }));
    let id = store.expect("there is one").0;
    let Op::Store { at, x, .. } = traced.kernel.insts[id].op.clone() else { unreachable!("found above") };
    // An element in the place of a mask, which is a bool.
    traced.kernel.insts[id].op = Op::Store { at, x, mask: Some(x) };
    match Prepared::new(&traced.kernel, &traced.args) {
        Err(PrepareError::Invalid(faults)) => assert!(!faults.is_empty()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn groups_that_fit_no_strip_are_refused_with_their_line() {
    let (x, y) = (Tensor::<i64>::zeros(64), Tensor::<i64>::zeros(64));
    let line = line!() + 4;
    let traced = kernel("groups", |k| {
        let (x, y) = (k.input(&x), k.output(&y));
        k.main(|r| {
            r.each(64, |i| y.store(i, x.load(i).group_sum(1021) + x.load(i).group_sum(1031)));
        });
    })
    .expect("traces");
    match Prepared::new(&traced.kernel, &traced.args) {
        Err(PrepareError::Groups { sizes, at }) => assert_eq!((sizes, at.line), (vec![1021, 1031], line)),
        other => panic!("{other:?}"),
    }
}
