//! Attempts of safe code to break the engine: run-time numbers that overflow, memory that is not a ring, roles that
//! poll, stores that cross. Reviews found each of these mistakes before a user did.

use std::time::Duration;
use tilewire::prelude::*;
use tilewire::tensor::Ring;
use tilewire::tensor::bytes_of;
use tilewire::vm::{Prepared, Settings};
use tilewire::{LaunchError, PrepareError, Traced, check};

fn prepare(traced: &Traced) -> Prepared {
    Prepared::new(&traced.kernel, &traced.args).unwrap()
}

fn impatient(traced: &Traced) -> Prepared {
    let settings = Settings { deadline: Some(Duration::from_millis(500)), ..Settings::default() };
    Prepared::with(&traced.kernel, &traced.args, settings).unwrap()
}

fn assert_out_of_bounds(traced: &Traced) {
    let result = prepare(traced).run();
    assert!(matches!(result, Err(LaunchError::OutOfBounds { .. })), "{result:?}");
}

#[test]
fn an_extent_whose_bytes_wrap_is_out_of_bounds() {
    for n in [(1i64 << 62) + 1, (1 << 61) + 1, i64::MAX] {
        let (x, y) = (Tensor::<f32>::zeros(16), Tensor::<f32>::zeros(16));
        let n = Scalar::new(n);
        let scale = kernel("scale", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            k.main(|r| r.each(r.scalar(&n), |i| y.store(i, x.load(i) * 2.0)));
        });
        assert_out_of_bounds(&scale.unwrap());
    }
}

#[test]
fn a_stride_whose_product_wraps_is_out_of_bounds() {
    let len = (1usize << 21) + 4096;
    let (x, y) = (Tensor::<u64>::zeros(len), Tensor::<u64>::zeros(len));
    let (stride, cols, rows) =
        (Scalar::new((1i64 << 62) + (1 << 10)), Scalar::new(i64::MAX - (1 << 11) + 2), Scalar::new(1i64));
    let moved = kernel("move", |k| {
        let (x, y) = (k.input(&x), k.output(&y));
        k.main(|r| {
            let (stride, cols, rows) = (r.scalar(&stride), r.scalar(&cols), r.scalar(&rows));
            r.each2(rows, cols, |row, col| {
                let at = col * stride + row + (1i64 << 21);
                y.store(at, x.load(at));
            });
        });
    });
    assert_out_of_bounds(&moved.unwrap());
}

#[test]
fn rows_times_columns_that_wrap_are_out_of_bounds() {
    let (x, y) = (Tensor::<f32>::zeros(16), Tensor::<f32>::zeros(16));
    let (rows, cols) = (Scalar::new(1i64 << 32), Scalar::new(1i64 << 32));
    let flat = kernel("flat", |k| {
        let (x, y) = (k.input(&x), k.output(&y));
        k.main(|r| {
            let (rows, cols) = (r.scalar(&rows), r.scalar(&cols));
            r.each2(rows, cols, |row, col| y.store(row * cols + col, x.load(row * cols + col) + 1.0));
        });
    });
    assert_out_of_bounds(&flat.unwrap());
}

#[test]
fn a_bulk_copy_whose_bytes_wrap_is_out_of_bounds() {
    let (x, y) = (Tensor::<u64>::zeros(16), Tensor::<u64>::zeros(16));
    let n = Scalar::new((1i64 << 61) + 1);
    let bulk = kernel("bulk", |k| {
        let (x, y) = (k.input(&x), k.output(&y));
        k.main(|r| r.bulk_copy(y, x, r.scalar(&n)));
    });
    assert_out_of_bounds(&bulk.unwrap());
}

#[test]
fn memory_that_is_no_ring_is_refused_as_a_queue() {
    let ring = Tensor::<u64>::zeros(64);
    ring.set(16, 1 << 40);
    let post = kernel("post", |k| {
        let queue = k.queue("queue", ring.memory());
        k.main(|r| r.post_signal(queue, 0i64, 1i64, 2i64));
    });
    let post = post.unwrap();
    let refused = Prepared::new(&post.kernel, &post.args).unwrap_err();
    assert!(matches!(refused, PrepareError::Argument { .. }), "{refused}");
    assert!(refused.to_string().contains("no ring"), "{refused}");
}

#[test]
fn a_kernel_that_overwrites_a_ring_cannot_lead_its_consumer_astray() {
    let ring = Ring::new(4);
    let memory = ring.entries().clone();
    let spoil = kernel("spoil", |k| {
        let words = k.buffer::<u64>("ring", std::slice::from_ref(&memory), tilewire::ir::Access::InOut);
        k.main(|r| {
            for word in 0..8 {
                words.bank(0i64).store(word, r.constant(1u64 << 33));
            }
            words.bank(0i64).store(16i64, r.constant(1u64 << 40));
        });
    });
    prepare(&spoil.unwrap()).run().unwrap();
    assert_eq!(ring.pop(), None);
}

#[test]
fn two_stores_to_one_place_keep_their_order() {
    let n = 10_000;
    let x = Tensor::from_fn(n, |i| i as f32);
    let (y, z) = (Tensor::<f32>::zeros(n), Tensor::<f32>::zeros(n));
    let traced = kernel("crossing", |k| {
        let (x, y, z) = (k.input(&x), k.output(&y), k.output(&z));
        k.main(|r| {
            r.each(n as i64, |i| {
                let x = x.load(i);
                let a = x * 2.0;
                y.store(i, a);
                let b = x + 1.0;
                let c = a + 5.0;
                z.store(i, c);
                y.store(i, b);
            });
        });
    });
    let traced = traced.unwrap();
    let expected = check::evaluate(&traced.kernel, &traced.args, (0, 1), check::Options::default()).unwrap();
    prepare(&traced).run().unwrap();
    assert_eq!(bytes_of(y.memory()).unwrap(), expected[1][0]);
    assert_eq!(bytes_of(z.memory()).unwrap(), expected[2][0]);
}

#[test]
fn a_deadline_counts_from_the_last_progress() {
    let slots = Tensor::<u64>::zeros(16);
    let rounds = 200_000i64;
    let ping = kernel("ping", |k| {
        let s = k.slots("s", &[slots.memory().clone()], 64);
        k.role("a", 1).run(|r| {
            r.for_(0i64..rounds, |i| {
                r.signal(s.slot(0i64, 0i64), i + 1);
                r.wait(s.slot(0i64, 1i64), i + 1);
            });
        });
        k.role("b", 1).run(|r| {
            r.for_(0i64..rounds, |i| {
                r.wait(s.slot(0i64, 0i64), i + 1);
                r.signal(s.slot(0i64, 1i64), i + 1);
            });
        });
    });
    impatient(&ping.unwrap()).run().unwrap();
    assert_eq!(slots.get(8), rounds as u64);
}

#[test]
fn a_role_that_polls_lets_the_others_run_and_has_a_deadline_too() {
    let slots = Tensor::<u64>::zeros(16);
    let poll = |signals: bool| {
        kernel("poll", |k| {
            let s = k.slots("ready", &[slots.memory().clone()], 64);
            k.role("poller", 1).run(|r| r.while_(|| !r.test(s.slot(0i64, 0i64), 1i64), || {}));
            k.role("other", 1).run(|r| r.if_(r.constant(signals), || r.signal(s.slot(0i64, 0i64), 1i64)));
        })
        .unwrap()
    };
    impatient(&poll(true)).run().unwrap();
    slots.fill(0);
    let error = impatient(&poll(false)).run().unwrap_err();
    assert!(matches!(&error, LaunchError::Timeout { expected: 1, seen: 0, .. }), "{error}");
    assert!(
        error.to_string().contains("test ready[bank 0][0]") || error.to_string().contains("test ready[0]"),
        "{error}"
    );
}
