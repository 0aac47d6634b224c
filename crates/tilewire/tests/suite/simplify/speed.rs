//! How long it takes, and what it leaves of the smallest kernel.

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

/// Run with `--nocapture` to see the numbers; the bounds leave room for a busy machine and an unoptimised build.
#[test]
fn small_kernels_take_microseconds_and_unrolled_ones_milliseconds() {
    let kernel = copy_kernel();
    let fastest = |runs: usize, kernel: &Kernel| {
        (0..runs)
            .map(|_| {
                let start = std::time::Instant::now();
                std::hint::black_box(simplify(std::hint::black_box(kernel)));
                start.elapsed()
            })
            .min()
            .unwrap()
    };
    let small = fastest(200, &kernel);
    let unrolled = program(|p| {
        let (n, dst) = (p.scalar(Type::I64), p.buffer(Type::I64, Access::InOut));
        p.each(n, |p, i| {
            let mut x = i;
            for k in 0..1200 {
                let at = p.with(BinaryOp::Add, i, k);
                let y = p.load(dst, at);
                x = p.bin(BinaryOp::Add, x, y);
            }
            p.store(dst, i, x);
        });
    });
    let large = fastest(5, &unrolled);
    println!("copy kernel {small:?}, {} instructions {large:?}", unrolled.insts.len());
    // Far above what any machine needs: these bounds tell linear from quadratic, not fast from slow.
    assert!(small.as_millis() < 5, "{small:?}");
    assert!(large.as_secs() < 5, "{large:?}");
}

#[test]
fn index_values_keep_shape_and_axis() {
    let kernel = simplify(&copy_kernel());
    let (each, data) = kernel.insts.iter().find(|(_, d)| matches!(d.op, Op::Each { .. })).unwrap();
    let index = &kernel.values[data.indices[0]];
    assert_eq!((index.shape, index.def), (Shape::Lane, Def::Index { inst: each, axis: 0 }));
}
