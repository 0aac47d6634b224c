//! A launch that fails names the fault, its place and its party, touches nothing outside, and can be repeated.

use crate::engine_launch::{SOON, impatient, prepared, slots};
use std::time::Duration;
use tilewire::hook::Traced;
use tilewire::ir::{Access, Order, Scope};
use tilewire::tensor::bytes_of;
use tilewire::vm::{LaunchError, Prepared, Settings};
use tilewire::{Memory, Scalar, Tensor, kernel};

const LEN: usize = 100;

/// A tensor inside a larger one, whose other elements must not change.
struct Guarded {
    whole: Tensor<f32>,
    inside: Tensor<f32>,
}

impl Guarded {
    fn new() -> Guarded {
        let whole = Tensor::from_fn(3 * LEN, |_| -1.0f32);
        let inside = whole.slice(LEN..2 * LEN);
        Guarded { whole, inside }
    }

    fn check(&self) {
        let all = self.whole.to_vec();
        let outside = all[..LEN].iter().chain(&all[2 * LEN..]);
        assert!(outside.into_iter().all(|&x| x == -1.0), "memory outside was written");
    }
}

/// Runs a kernel that leaves its buffer. Returns (name, index, len, line).
#[track_caller]
fn out_of_bounds(traced: &Traced) -> (String, i64, u64, u32) {
    match prepared(traced).run() {
        Err(LaunchError::OutOfBounds { name, index, len, by, at }) => {
            assert_eq!((by.rank, by.block, by.role.as_str()), (0, 0, "main"));
            assert!(at.file.ends_with("faults.rs"), "{at}");
            (name, index, len, at.line)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_load_or_store_beyond_its_tensor_is_an_error_and_no_access() {
    // (extent, first): beyond the end, before the start, and numbers whose bytes do not fit 64 bits.
    for (extent, first) in
        [(101i64, 0i64), (1, 100), (1, -1), (1, i64::MIN), (1, i64::MAX), (1 << 40, 0), (1 << 62, 0), (i64::MAX, 0)]
    {
        let (x, y) = (Guarded::new(), Guarded::new());
        let (n, first) = (Scalar::new(extent), Scalar::new(first));
        let load = line!() + 4;
        let traced = kernel("load", |k| {
            let x = k.input(&x.inside).named("x");
            let sum = k.inout(&y.inside);
            k.main(|r| r.each(&n, |i| sum.store(i & 7, x.load(i + &first) + 1.0)));
        });
        let (name, _, len, line) = out_of_bounds(&traced.expect("traces"));
        assert_eq!((name.as_str(), len, line), ("x", LEN as u64, load), "{extent} from {}", first.get());

        let store = line!() + 3;
        let traced = kernel("store", |k| {
            let y = k.output(&y.inside).named("y");
            k.main(|r| r.each(&n, |i| y.store(i + &first, (i & 3).cast::<f32>() + 1.0)));
        });
        let (name, _, len, line) = out_of_bounds(&traced.expect("traces"));
        assert_eq!((name.as_str(), len, line), ("y", LEN as u64, store), "{extent} from {}", first.get());

        let traced = kernel("both", |k| {
            let (x, y) = (k.input(&x.inside), k.output(&y.inside));
            k.main(|r| r.each(&n, |i| y.store(i + &first, x.load(i + &first) * 2.0)));
        });
        out_of_bounds(&traced.expect("traces"));
        x.check();
        y.check();
    }
}

#[test]
fn rows_and_columns_beyond_a_tensor_are_an_error() {
    let huge = 1i64 << 62;
    for (rows, cols, stride) in
        [(11, 10, 10), (10, 11, 10), (huge, 10, 10), (10, huge, 10), (huge, huge, 1), (3, huge, huge)]
    {
        let (x, y) = (Guarded::new(), Guarded::new());
        let (rows, cols, stride) = (Scalar::new(rows), Scalar::new(cols), Scalar::new(stride));
        for transposed in [false, true] {
            let traced = kernel("rows", |k| {
                let (x, y) = (k.input(&x.inside), k.output(&y.inside));
                k.main(|r| {
                    r.each2(&rows, &cols, |row, col| match transposed {
                        true => y.store(row * &stride + col, x.load(row + col * &stride)),
                        false => y.store(row * &stride + col, x.load(row * &stride + col)),
                    });
                });
            });
            out_of_bounds(&traced.expect("traces"));
            x.check();
            y.check();
        }
    }
}

#[test]
fn strides_out_of_every_range_are_an_error() {
    for stride in [50i64, -1, i64::MAX, i64::MIN, i64::MIN + 1, 1 << 61] {
        for extent in [3i64, 1 << 61, i64::MAX] {
            let (x, y) = (Guarded::new(), Guarded::new());
            let (by, n, two) = (Scalar::new(stride), Scalar::new(extent), Scalar::new(2i64));
            let traced = kernel("strided", |k| {
                let (x, y) = (k.input(&x.inside), k.output(&y.inside));
                k.main(|r| r.each2(&two, &n, |row, col| y.store(row + col * &by, x.load(row + col * &by))));
            });
            out_of_bounds(&traced.expect("traces"));
            x.check();
            y.check();
        }
    }
}

#[test]
fn a_gather_or_scatter_names_the_index_that_is_outside() {
    for bad in [100i64, -1, 1 << 40, i64::MIN] {
        let (x, y) = (Guarded::new(), Guarded::new());
        let index = Tensor::from_fn(LEN, |i| if i == 57 { bad } else { i as i64 });
        let traced = kernel("gather", |k| {
            let (x, y, index) = (k.input(&x.inside), k.output(&y.inside), k.input(&index));
            k.main(|r| r.each(LEN, |i| y.store(i, x.load(index.load(i)))));
        });
        assert_eq!(out_of_bounds(&traced.expect("traces")).1, bad);
        let traced = kernel("scatter", |k| {
            let (x, y, index) = (k.input(&x.inside), k.output(&y.inside), k.input(&index));
            k.main(|r| r.each(LEN, |i| y.store(index.load(i), x.load(i))));
        });
        assert_eq!(out_of_bounds(&traced.expect("traces")).1, bad);
        if let Ok(bad) = i32::try_from(bad) {
            let index = Tensor::from_fn(LEN, |i| if i == 99 { bad } else { i as i32 });
            let traced = kernel("narrow", |k| {
                let (x, y, index) = (k.input(&x.inside), k.output(&y.inside), k.input(&index));
                k.main(|r| r.each(LEN, |i| y.store(i, x.load(index.load(i)))));
            });
            assert_eq!(out_of_bounds(&traced.expect("traces")).1, i64::from(bad));
        }
        x.check();
        y.check();
    }
}

#[test]
fn a_masked_access_is_checked_where_its_mask_is_on() {
    let (x, y, n) = (Guarded::new(), Guarded::new(), Scalar::new(0i64));
    let traced = kernel("masked", |k| {
        let (x, y) = (k.input(&x.inside), k.output(&y.inside));
        k.main(|r| r.each(LEN + 20, |i| y.store_if(i.lt(&n), i, x.load_if(i.lt(&n), i, 0.0f32))));
    });
    let traced = traced.expect("traces");
    n.set(LEN as i64);
    prepared(&traced).run().expect("all inside");
    n.set(LEN as i64 + 1);
    assert_eq!(out_of_bounds(&traced).1, LEN as i64);
    x.check();
    y.check();
}

#[test]
fn a_uniform_access_is_checked_too() {
    for bad in [100i64, -1, i64::MAX] {
        let (x, at) = (Guarded::new(), Scalar::new(bad));
        for store in [true, false] {
            let line = line!() + 5;
            let traced = kernel("uniform", |k| {
                let x = k.inout(&x.inside).named("x");
                k.main(|r| {
                    let at = r.scalar(&at);
                    if store { x.store(at, 1.0) } else { x.store(0, x.load(at)) }
                });
            });
            assert_eq!(out_of_bounds(&traced.expect("traces")), ("x".into(), bad, LEN as u64, line));
        }
        x.check();
    }
}

#[test]
fn a_slot_that_does_not_exist_is_an_error() {
    let ((_, bank), index) = (slots(3), Scalar::new(3i64));
    let line = line!() + 3;
    let traced = kernel("slot", |k| {
        let flags = k.slots("flags", &bank, 8);
        k.main(|r| r.signal(flags.slot(0, &index), 1));
    });
    assert_eq!(out_of_bounds(&traced.expect("traces")), ("flags".into(), 3, 3, line));
    index.set(-1);
    let traced = kernel("slot", |k| {
        let flags = k.slots("flags", &bank, 8);
        k.main(|r| r.wait(flags.slot(0, &index), 1));
    });
    assert_eq!(out_of_bounds(&traced.expect("traces")).1, -1);
}

#[test]
fn a_bank_that_does_not_exist_is_an_error() {
    let (memories, bank) = ([Memory::zeroed(64), Memory::zeroed(64)], Scalar::new(2i64));
    for wrong in [2, -1, i64::MAX] {
        bank.set(wrong);
        let traced = kernel("bank", |k| {
            let x = k.buffer::<f32>("x", &memories, Access::InOut);
            k.main(|r| r.each(4, |i| x.bank(&bank).store(i, 1.0)));
        });
        let error = prepared(&traced.expect("traces")).run().expect_err("no such bank");
        let text = error.to_string();
        match error {
            LaunchError::NoSuchBank { name, bank, banks, .. } => {
                assert_eq!((name.as_str(), bank, banks), ("x", wrong, 2))
            }
            other => panic!("{other:?}"),
        }
        assert!(text.contains(&format!("bank {wrong} of x, which has 2")), "{text}");
        let traced = kernel("bank of slots", |k| {
            let flags = k.slots("flags", &memories, 8);
            k.main(|r| r.signal(flags.slot(&bank, 0), 1));
        });
        let error = prepared(&traced.expect("traces")).run().expect_err("no such bank");
        assert!(matches!(&error, LaunchError::NoSuchBank { name, banks: 2, .. } if name == "flags"), "{error}");
    }
}

#[test]
fn a_value_in_a_region_lies_at_a_multiple_of_its_size() {
    let (bank, first) = ([Memory::zeroed(64)], Scalar::new(2i64));
    for lanes in [true, false] {
        let traced = kernel("put", |k| {
            let region = k.region("staging", &bank);
            k.main(|r| match lanes {
                true => r.each(4, |i| region.put(0, i * 4 + &first, 1.0f32)),
                false => region.put(0, &first, 1.0f32),
            });
        });
        let traced = traced.expect("traces");
        first.set(2);
        match prepared(&traced).run() {
            Err(LaunchError::Misaligned { name, offset, size, .. }) => {
                assert_eq!((name.as_str(), offset, size), ("staging", 2, 4));
            }
            other => panic!("{other:?}"),
        }
        first.set(4);
        prepared(&traced).run().expect("aligned");
    }
    assert_eq!(bytes_of(&bank[0]).unwrap()[..4], [0; 4]);
}

#[test]
fn a_bulk_copy_is_checked_at_both_ends() {
    for (count, negative) in [(101i64, false), (-1, true), (1 << 62, false), (i64::MAX, false), (i64::MIN, true)] {
        let (x, y, n) = (Guarded::new(), Guarded::new(), Scalar::new(count));
        let traced = kernel("bulk", |k| {
            let (x, y) = (k.input(&x.inside), k.output(&y.inside));
            k.main(|r| r.bulk_copy(y, x, &n));
        });
        match prepared(&traced.expect("traces")).run() {
            Err(LaunchError::NegativeCount { count: is, .. }) if negative => assert_eq!(is, count),
            Err(LaunchError::OutOfBounds { len: 100, .. }) if !negative => {}
            other => panic!("{count}: {other:?}"),
        }
        x.check();
        y.check();
    }
}

#[test]
fn a_wait_that_nobody_satisfies_ends_at_the_deadline_and_says_who_waited_for_what() {
    for blocks in [1u32, 3] {
        let ((flags, bank), last) = (slots(4), blocks as i64 - 1);
        flags.set(2, 5);
        let line = line!() + 6;
        let traced = kernel("late", |k| {
            k.blocks(blocks);
            let flags = k.slots("arrived", &bank, 8);
            k.role("early", 1).run(|r| r.signal(flags.slot(0, 0), 1));
            k.role("late", 1).run(|r| {
                r.if_(r.block().eq(last), || r.wait(flags.slot(0, 2), 7));
            });
        });
        let traced = traced.expect("traces");
        let mut op = Prepared::with(&traced.kernel, &traced.args, impatient()).expect("prepares");
        for _ in 0..2 {
            let error = op.run().expect_err("nobody signals");
            let text = error.to_string();
            match error {
                LaunchError::Timeout { what, expected, seen, after, by, at, .. } => {
                    assert_eq!((what.as_str(), expected, seen, after), ("wait arrived[2]", 7, 5, SOON));
                    assert_eq!((by.rank, by.block, by.role.as_str()), (0, last as usize, "late"));
                    assert_eq!(at.line, line);
                }
                other => panic!("{other:?}"),
            }
            assert!(text.contains("wait arrived[2]: waited 50ms for 7, saw 5"), "{text}");
        }
        flags.set(2, 7);
        op.run().expect("runs when the slot is raised");
    }
}

#[test]
fn a_packet_that_never_comes_is_a_timeout_too() {
    let (bank, y) = ([Memory::zeroed(16 * 8)], Tensor::<u64>::zeros(8));
    let traced = kernel("packets", |k| {
        let (region, y) = (k.region("inbox", &bank), k.output(&y));
        k.role("send", 1).run(|r| r.each(5, |i| region.packet_put(0, i, i.cast::<u64>(), 9u32)));
        k.role("receive", 1).run(|r| r.each(8, |i| y.store(i, region.packet_get(0, i, 9u32))));
    });
    let traced = traced.expect("traces");
    let mut op = Prepared::with(&traced.kernel, &traced.args, impatient()).expect("prepares");
    match op.run() {
        Err(LaunchError::Timeout { what, expected: 9, seen: 0, by, .. }) => {
            assert_eq!((what.as_str(), by.role.as_str()), ("packet 5 of inbox", "receive"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_loop_that_polls_for_what_never_comes_ends_at_the_deadline() {
    for roles in [1, 2] {
        let (words, out) = (Tensor::<u64>::zeros(1), Tensor::<i64>::zeros(1));
        let line = line!() + 5;
        let traced = kernel("polls", |k| {
            let (words, out) = (k.inout(&words), k.output(&out));
            k.role("poll", 1).run(|r| {
                let flag = || words.atomic_add(0, 0u64, Order::Acquire, Scope::System);
                r.while_(|| flag().eq(0u64), || {});
            });
            if roles > 1 {
                k.role("other", 1).run(|_| out.store(0, 1i64));
            }
        });
        let traced = traced.expect("traces");
        let mut op = Prepared::with(&traced.kernel, &traced.args, impatient()).expect("prepares");
        let error = op.run().expect_err("nobody tells");
        assert!(error.to_string().contains("a loop that polls"), "{error}");
        let LaunchError::Timeout { by, at, .. } = error else { panic!("{error:?}") };
        assert_eq!((by.role.as_str(), at.line), ("poll", line));
        assert_eq!(out.to_vec(), [i64::from(roles > 1)], "the other role has run");
    }
}

/// A failed test lets others run. The deadline counts from that test, whatever else the loop does.
#[test]
fn a_loop_that_tests_and_counts_in_memory_ends_at_the_deadline() {
    let (flags, turns) = (Memory::zeroed(64), Tensor::<i64>::zeros(1));
    let traced = kernel("tests", |k| {
        let (flag, turns) = (k.slots("flag", std::slice::from_ref(&flags), 64), k.inout(&turns));
        k.main(|r| r.while_(|| !r.test(flag.slot(0, 0), 1), || turns.store(0, turns.load(0) + 1)));
    });
    let traced = traced.expect("traces");
    let error = Prepared::with(&traced.kernel, &traced.args, impatient()).expect("prepares").run().unwrap_err();
    assert!(matches!(error, LaunchError::Timeout { .. }), "{error}");
    assert!(turns.get(0) > 0);
}

/// Words whose values repeat, and one that is read in every turn. A loop that computes is never taken for one that
/// waits.
#[test]
fn a_long_loop_over_few_words_computes() {
    for words in [1, 256] {
        let (n, sum) = (1_000_000i64, Tensor::<u64>::zeros(1));
        let memory = Tensor::<u64>::from_slice(&vec![1; words]);
        let traced = kernel("adds", |k| {
            let (memory, sum) = (k.inout(&memory), k.output(&sum));
            k.main(|r| {
                let (at, total) = (r.var(0i64), r.var(0u64));
                let more = || at.get().lt(n);
                r.while_(more, || {
                    total.set(total.get() + memory.load(at.get() % words as i64));
                    at.set(at.get() + 1);
                });
                sum.store(0, total.get());
            });
        });
        let traced = traced.expect("traces");
        let settings = Settings { deadline: Some(Duration::from_millis(1)), ..Settings::default() };
        Prepared::with(&traced.kernel, &traced.args, settings).expect("prepares").run().expect("it computes");
        assert_eq!(sum.get(0), n as u64);
    }
}

#[test]
fn a_long_loop_that_reads_memory_is_not_taken_for_one_that_polls() {
    let (n, sum) = (3_000_000, Tensor::<u64>::zeros(1));
    let words = Tensor::<u64>::from_slice(&vec![1; n]);
    let traced = kernel("adds", |k| {
        let (words, sum) = (k.inout(&words), k.output(&sum));
        k.main(|r| {
            let (at, total) = (r.var(0i64), r.var(0u64));
            let more = || at.get().lt(n as i64);
            r.while_(more, || {
                total.set(total.get() + words.load(at.get()));
                at.set(at.get() + 1);
            });
            sum.store(0, total.get());
        });
    });
    let traced = traced.expect("traces");
    let nothing = Settings { deadline: Some(Duration::from_millis(1)), ..Settings::default() };
    Prepared::with(&traced.kernel, &traced.args, nothing)
        .expect("prepares")
        .run()
        .expect("it computes, it does not wait");
    assert_eq!(sum.to_vec(), [n as u64]);
}
