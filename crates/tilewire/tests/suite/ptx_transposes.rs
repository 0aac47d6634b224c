//! Transposes of 16-bit elements as PTX. For any shape, any number of warps and any other work of the body, the bytes
//! are those of the reference evaluator. A comment beside each test says which of them go through squares
//! (`src/ptx/squares.rs`).

use tilewire::ir::scalar::{Element, Number};
use tilewire::ir::simplify;
use tilewire::ptx::{Options, Target, emit};
use tilewire::{Bf16, F8E4M3, F16, Memory, Tensor, Traced, kernel};
use tilewire_testkit::programs::data::element;
use tilewire_testkit::random::Random;
use tilewire_testkit::simulated::{same_as_defined, simulate_world};

/// Rows and columns that vectors of 16 bytes fit: less than a square, one, several, with and without a remainder.
const VECTORS: [(usize, usize); 9] =
    [(8, 8), (64, 64), (8, 136), (200, 8), (72, 56), (128, 192), (136, 264), (24, 520), (256, 64)];
/// Other shapes, one of them empty.
const OTHERS: [(usize, usize); 6] = [(0, 64), (33, 65), (60, 64), (64, 60), (100, 129), (2, 300)];

/// Runs a kernel of one rank on the machine and in the evaluator.
fn agree(name: &str, traced: &Traced, target: Target, squares: bool) {
    let text = same_as_defined(name, traced, target);
    assert_eq!(text.contains("cp.async.cg"), squares, "{name} for {target}\n{}\n{text}", traced.kernel);
}

/// Elements of all kinds.
fn mixed<T: Element>(len: usize) -> Tensor<T> {
    let mut random = Random::new(len as u64 + 5);
    Tensor::from_fn(len, |_| T::from_bits(element(T::TYPE, &mut random)))
}

/// Small whole numbers: no NaN, whose bits engines may choose.
fn numbers<T: Number>(len: usize, seed: u64) -> Tensor<T> {
    let mut random = Random::new(seed);
    let ty = T::TYPE;
    let cast = |x: u64| tilewire::ir::scalar::dynamic::cast(tilewire::ir::Type::I64, ty, x);
    Tensor::from_fn(len, |_| T::from_bits(cast(random.below_u64(100))))
}

fn moved<T: Element>((rows, cols): (usize, usize), warps: u32) -> Traced {
    let (x, y) = (mixed::<T>(rows * cols), Tensor::<T>::zeros(rows * cols));
    kernel("moved", |k| {
        let (x, y) = (k.input(&x).shape(cols, rows), k.output(&y).shape(rows, cols));
        k.role("main", warps).run(|r| r.each2(rows, cols, |row, col| y.store(row, col, x.at(col, row))));
    })
    .unwrap()
}

#[test]
fn elements_of_16_bits_are_moved() {
    for (k, shape) in VECTORS.into_iter().enumerate() {
        let target = Target::ALL[k % 5];
        agree(&format!("bf16 {shape:?}"), &moved::<Bf16>(shape, 8), target, true);
        agree(&format!("i16 {shape:?}"), &moved::<i16>(shape, 4), target, true);
    }
    agree("f16", &moved::<F16>((72, 136), 8), Target::Sm90a, true);
    agree("u16", &moved::<u16>((72, 136), 8), Target::Sm80, true);
    for (k, shape) in OTHERS.into_iter().enumerate() {
        agree(&format!("bf16 {shape:?}"), &moved::<Bf16>(shape, 8), Target::ALL[k % 5], false);
    }
    // Elements of other sizes take another path.
    agree("f32", &moved::<f32>((64, 64), 8), Target::Sm90a, false);
    agree("fp8", &moved::<F8E4M3>((64, 64), 8), Target::Sm90a, false);
}

#[test]
fn warps_share_squares_where_most_of_them_have_a_part() {
    for (warps, squares) in
        [(1, false), (3, false), (4, true), (5, true), (7, false), (9, true), (12, true), (16, true)]
    {
        agree(&format!("{warps} warps"), &moved::<Bf16>((136, 200), warps), Target::Sm90a, squares);
    }
    // Shared memory has room for one, two or three turns of 32 warps.
    for target in Target::ALL {
        agree("32 warps", &moved::<u16>((264, 1040), 32), target, true);
    }
}

#[test]
fn what_lies_off_its_alignment_goes_another_way() {
    let (x, y) = (mixed::<u16>(64 * 64 + 1).slice(1..64 * 64 + 1), Tensor::<u16>::zeros(64 * 64));
    let traced = kernel("shifted", |k| {
        let (x, y) = (k.input(&x).shape(64, 64), k.output(&y).shape(64, 64));
        k.main(|r| r.each2(64, 64, |row, col| y.store(row, col, x.at(col, row))));
    });
    agree("shifted", &traced.unwrap(), Target::Sm90a, false);
}

/// With arithmetic, with an output that is also read, with factors along both axes, with two transposed inputs,
/// narrowed, widened.
#[test]
fn bodies_compute_with_what_they_transpose() {
    fn check<T: Number>(target: Target, (rows, cols): (usize, usize)) {
        let n = rows * cols;
        let (x, z, y) = (numbers::<T>(n, 1), numbers::<T>(n, 2), numbers::<T>(n, 3));
        let (along, down) = (numbers::<T>(cols, 4), numbers::<T>(rows, 5));
        let shape = (rows, cols);
        let name = |what: &str| format!("{what}, {} {shape:?}", T::TYPE);
        let two = T::from_bits(numbers::<T>(1, 6).get(0).to_bits());
        let traced = kernel("twice", |k| {
            let (x, y) = (k.input(&x).shape(cols, rows), k.output(&y).shape(rows, cols));
            k.main(|r| r.each2(rows, cols, |row, col| y.store(row, col, x.at(col, row) * two + two)));
        });
        agree(&name("arithmetic"), &traced.unwrap(), target, true);
        let traced = kernel("accumulate", |k| {
            let (x, y) = (k.input(&x).shape(cols, rows), k.inout(&y).shape(rows, cols));
            k.main(|r| r.each2(rows, cols, |row, col| y.store(row, col, x.at(col, row) + y.at(row, col))));
        });
        agree(&name("accumulate"), &traced.unwrap(), target, true);
        let traced = kernel("factors", |k| {
            let (x, y) = (k.input(&x).shape(cols, rows), k.output(&y).shape(rows, cols));
            let (along, down) = (k.input(&along), k.input(&down));
            k.main(|r| {
                r.each2(rows, cols, |row, col| {
                    y.store(row, col, x.at(col, row) * along.load(col) + down.load(row));
                });
            });
        });
        agree(&name("factors"), &traced.unwrap(), target, true);
        let traced = kernel("two", |k| {
            let (x, z) = (k.input(&x).shape(cols, rows), k.input(&z).shape(cols, rows));
            let y = k.output(&y).shape(rows, cols);
            k.main(|r| r.each2(rows, cols, |row, col| y.store(row, col, x.at(col, row) - z.at(col, row))));
        });
        agree(&name("two inputs"), &traced.unwrap(), target, true);
        let (narrow, wide) = (Tensor::<F8E4M3>::zeros(n), Tensor::<f32>::zeros(n));
        let traced = kernel("narrow", |k| {
            let (x, y) = (k.input(&x).shape(cols, rows), k.output(&narrow).shape(rows, cols));
            k.main(|r| r.each2(rows, cols, |row, col| y.store(row, col, x.at(col, row).cast::<F8E4M3>())));
        });
        agree(&name("narrowed"), &traced.unwrap(), target, true);
        let traced = kernel("wide", |k| {
            let (x, y) = (k.input(&x).shape(cols, rows), k.output(&wide).shape(rows, cols));
            k.main(|r| r.each2(rows, cols, |row, col| y.store(row, col, x.at(col, row).cast::<f32>())));
        });
        agree(&name("widened"), &traced.unwrap(), target, false);
        let traced = kernel("beside", |k| {
            let (x, y) = (k.input(&x).shape(cols, rows), k.output(&y).shape(rows, cols));
            let (z, wide) = (k.input(&z).shape(rows, cols), k.output(&wide).shape(rows, cols));
            k.main(|r| {
                r.each2(rows, cols, |row, col| {
                    y.store(row, col, x.at(col, row));
                    wide.store(row, col, z.at(row, col).cast::<f32>());
                });
            });
        });
        agree(&name("widened beside it"), &traced.unwrap(), target, false);
    }
    check::<Bf16>(Target::Sm90a, (72, 136));
    check::<F16>(Target::Sm80, (64, 128));
    check::<i16>(Target::Sm120, (40, 200));
    check::<u16>(Target::Sm100a, (128, 64));
}

/// A part of a larger matrix, several times in a row, by copies of a role. The squares of one follow those of the
/// previous one.
#[test]
fn parts_of_a_matrix_are_transposed_one_after_the_other() {
    const SIDE: i64 = 256;
    const TILE: i64 = 128;
    let (x, y) = (mixed::<Bf16>((SIDE * SIDE) as usize), Tensor::<Bf16>::zeros((SIDE * SIDE) as usize));
    let traced = kernel("parts", |k| {
        let (x, y) = (k.input(&x), k.output(&y));
        k.role("main", 4).copies(2, |r| {
            r.for_turns(4, |tile| {
                let (down, along) = (tile / 2 * TILE, tile % 2 * TILE);
                r.each2(TILE, TILE, |row, col| {
                    let (row, col) = (row + down, col + along);
                    y.store(row * SIDE + col, x.load(col * SIDE + row));
                });
            });
        });
    });
    let traced = traced.unwrap();
    for target in Target::ALL {
        agree("parts", &traced, target, true);
    }
}

/// Through memory of another rank: transposed on the way out, and again on the way in.
#[test]
fn ranks_send_and_receive_transposed() {
    const ROWS: i64 = 72;
    const COLS: i64 = 136;
    const STEPS: i64 = 3;
    let ranks = 2;
    let count = (STEPS * ROWS * COLS) as usize;
    let shared = |bytes: i64| (0..ranks).map(|_| Memory::zeroed(bytes as usize)).collect::<Vec<_>>();
    let (staging, tails) = (shared(STEPS * ROWS * COLS * 2), shared(STEPS * 64));
    let inputs: Vec<Tensor<u16>> =
        (0..ranks).map(|rank| Tensor::from_fn(count, |k| (rank * count + k) as u16)).collect();
    let member = |input: &Tensor<u16>| {
        let output = Tensor::<u16>::zeros(count);
        kernel("there and back", |k| {
            let (x, y) = (k.input(input), k.output(&output));
            let staging = k.region("staging", &staging);
            let tails = k.slots("tails", &tails, 64);
            k.role("send", 4).run(|r| {
                let next = (r.rank() + 1) % r.world_size();
                r.for_turns(STEPS, |step| {
                    let first = step * (ROWS * COLS);
                    r.each2(ROWS, COLS, |row, col| {
                        staging.put(next, (first + row * COLS + col) * 2, x.load(first + col * ROWS + row));
                    });
                    r.signal(tails.slot(next, step), step + 1);
                });
            });
            k.role("receive", 8).run(|r| {
                let me = r.rank();
                r.for_turns(STEPS, |step| {
                    let first = step * (ROWS * COLS);
                    r.wait(tails.slot(me, step), step + 1);
                    r.each2(COLS, ROWS, |row, col| {
                        let x = staging.get::<u16>(me, (first + col * COLS + row) * 2);
                        y.store(first + row * ROWS + col, x);
                    });
                });
            });
        })
        .unwrap()
    };
    let traced: Vec<_> = inputs.iter().map(member).collect();
    let text = emit(&simplify(&traced[0].kernel), Options::new(Target::Sm90a)).unwrap().text;
    assert_eq!(text.matches("cp.async.cg").count(), 8, "both roles\n{text}");
    let results = simulate_world(&traced, Target::Sm90a).unwrap_or_else(|fault| panic!("{}", fault.0));
    for rank in 0..ranks {
        let sent: Vec<u8> = inputs[1 - rank].to_vec().iter().flat_map(|x| x.to_le_bytes()).collect();
        assert!(results[rank][1][0] == sent, "rank {rank}");
    }
}
