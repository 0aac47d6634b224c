//! The time of the simplifier, and its result for the smallest kernel.

use super::*;

fn copy_kernel() -> Kernel {
    program(|p| {
        let (src, dst) = (p.buffer(Type::F32, Access::In), p.buffer(Type::F32, Access::Out));
        let n = p.int(1 << 20);
        p.each(n, |p, i| {
            let x = p.load(src, i);
            p.store(dst, i, x);
        });
    })
}

/// An `each` whose body adds up `terms` loads.
fn unrolled(terms: i64) -> Kernel {
    program(|p| {
        let (n, dst) = (p.scalar(Type::I64), p.buffer(Type::I64, Access::InOut));
        p.each(n, |p, i| {
            let mut x = i;
            for k in 0..terms {
                let at = p.with(BinaryOp::Add, i, k);
                let y = p.load(dst, at);
                x = p.bin(BinaryOp::Add, x, y);
            }
            p.store(dst, i, x);
        });
    })
}

/// Processor time of this thread. It does not include what others do on a busy machine.
fn used() -> std::time::Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is writable, and the call keeps no pointer to it.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Eight times the instructions take eight times as long, or a little more. With a quadratic pass it would be 64 times.
/// `--nocapture` shows the times.
///
/// It fails with a `simplify` that searches all instructions for each one.
#[test]
fn the_time_grows_with_the_instructions_and_not_with_their_square() {
    let (small, large) = (unrolled(1000), unrolled(8000));
    let time = |kernel: &Kernel| {
        let start = used();
        std::hint::black_box(simplify(std::hint::black_box(kernel)));
        used() - start
    };
    // Measured alternately. The least time of each counts.
    let measured = (0..5).map(|_| (time(&small), time(&large)));
    let (few, many) = measured.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1))).expect("five");
    let ratio = many.as_secs_f64() / few.as_secs_f64();
    println!("{} instructions {few:?}, {} instructions {many:?}: {ratio:.1}", small.insts.len(), large.insts.len());
    assert!(ratio < 24.0, "{few:?} and {many:?}: {ratio:.1} times for 8 times the instructions");
}

#[test]
fn index_values_keep_shape_and_axis() {
    let kernel = simplify(&copy_kernel());
    let (each, data) = kernel.insts.iter().find(|(_, d)| matches!(d.op, Op::Each { .. })).unwrap();
    let index = &kernel.values[data.indices[0]];
    assert_eq!((index.shape, index.def), (Shape::Lane, Def::Index { inst: each, axis: 0 }));
}
