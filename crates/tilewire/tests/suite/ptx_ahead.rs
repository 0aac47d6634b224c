//! Long bodies as PTX, whose loads come ahead of them through shared memory (`src/ptx/ahead.rs`). The bytes must be
//! those of the reference evaluator, for any number of elements, any number of warps and any width of a lane's vector.

use tilewire::hook::Value;
use tilewire::ir::simplify;
use tilewire::ptx::{Options, Target, emit};
use tilewire::{Bf16, F8E4M3, F16, Memory, Tensor, Traced, kernel};
use tilewire_testkit::random::Random;
use tilewire_testkit::simulated::same_as_defined;

/// Numbers of elements: none, less than a warp has, whole turns of a warp, with remainders of vectors and of elements.
const SIZES: [usize; 9] = [0, 100, 128, 512, 1000, 4096, 4608, 9000, 20480];

fn agree(name: &str, traced: &Traced, target: Target, ahead: bool) {
    let text = same_as_defined(name, traced, target);
    assert_eq!(text.contains("cp.async.cg"), ahead, "{name} for {target}\n{}\n{text}", traced.kernel);
}

fn numbers(len: usize, seed: u64) -> Tensor<f32> {
    let mut random = Random::new(seed);
    Tensor::from_fn(len, |_| random.below_u64(2000) as f32 / 16.0 - 60.0)
}

fn halves(len: usize) -> Tensor<Bf16> {
    let x = numbers(len, 7);
    Tensor::from_fn(len, |i| Bf16::from_f32(x.get(i)))
}

/// Many steps, each of which rounds.
fn long<'t>(x: Value<'t, f32>) -> Value<'t, f32> {
    (0..8).fold(x, |y, _| y * 0.75 + x)
}

/// Vectors of 16 bytes, of 64 and, with a scale for groups, of 32. The last are those of a warp that stays together.
#[test]
fn vectors_of_all_lengths_come_ahead() {
    for (k, n) in SIZES.into_iter().enumerate() {
        let (target, warps) = (Target::ALL[k % 5], [1, 2, 3, 4][k % 4]);
        let (x, y, small) = (numbers(n, 1), Tensor::<f32>::zeros(n), Tensor::<F8E4M3>::zeros(n));
        let traced = kernel("same", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            k.role("main", warps).run(|r| r.each(n, |i| y.store(i, long(x.load(i)))));
        });
        agree(&format!("{n} of f32"), &traced.unwrap(), target, n > 0);
        let traced = kernel("narrow", |k| {
            let (x, y) = (k.input(&x), k.output(&small));
            k.role("main", warps).run(|r| r.each(n, |i| y.store(i, long(x.load(i)).cast::<F8E4M3>())));
        });
        agree(&format!("{n} of f32 to fp8"), &traced.unwrap(), target, n > 0);
        let (half, scales) = (halves(n), Tensor::<f32>::zeros(n));
        let traced = kernel("squeeze", |k| {
            let (x, y, scales) = (k.input(&half), k.output(&small), k.output(&scales));
            k.role("main", warps).run(|r| {
                r.each(n, |i| {
                    let x = x.load(i).cast::<f32>();
                    let scale = x.abs().group_max(128).max(f32::MIN_POSITIVE);
                    y.store(i, (x * scale.rcp()).cast::<F8E4M3>());
                    scales.store(i, scale);
                });
            });
        });
        // Scales of four bytes make vectors of four elements, which are less than a piece of the loads.
        agree(&format!("{n} of bf16, with all scales"), &traced.unwrap(), target, false);
        let traced = kernel("squeeze", |k| {
            let (x, y) = (k.input(&half), k.output(&small));
            k.role("main", warps).run(|r| {
                r.each(n, |i| {
                    let x = x.load(i).cast::<f32>();
                    y.store(i, (x * x.abs().group_max(128).max(f32::MIN_POSITIVE).rcp()).cast::<F8E4M3>());
                });
            });
        });
        agree(&format!("{n} of bf16 in groups"), &traced.unwrap(), target, n % 128 == 0 && n > 0);
    }
}

/// Two inputs, an output that is also read, tiles whose lengths are known only at run time, and several loops in a row.
#[test]
fn other_bodies_come_ahead() {
    let n = 6000;
    for target in Target::ALL {
        let (x, z, y) = (numbers(n, 1), numbers(n, 2), numbers(n, 3));
        let traced = kernel("two", |k| {
            let (x, z, y) = (k.input(&x), k.input(&z), k.output(&y));
            k.role("main", 3).run(|r| r.each(n, |i| y.store(i, long(x.load(i)) - long(z.load(i)))));
        });
        agree("two inputs", &traced.unwrap(), target, true);
        let traced = kernel("in place", |k| {
            let y = k.inout(&y);
            k.role("main", 2).run(|r| r.each(n, |i| y.store(i, long(y.load(i)))));
        });
        agree("in place", &traced.unwrap(), target, true);
        let traced = kernel("tiles", |k| {
            let (x, y) = (k.input(&x), k.inout(&y));
            k.role("main", 2).copies(2, |r| {
                r.for_turns(6, |tile| {
                    let len = (r.constant(n as i64) - tile * 1024).min(1024);
                    r.each(len, |i| y.store(tile * 1024 + i, long(x.load(tile * 1024 + i))));
                    r.each(len, |i| y.store(tile * 1024 + i, long(y.load(tile * 1024 + i)) + 1.0));
                });
            });
        });
        agree("tiles", &traced.unwrap(), target, true);
        // Three tensors are too many to load ahead. Elements that are not neighbours do not come in pieces.
        let traced = kernel("three", |k| {
            let (x, z, y) = (k.input(&x), k.input(&z), k.inout(&y));
            k.main(|r| r.each(n, |i| y.store(i, long(x.load(i)) - long(z.load(i)) + y.load(i))));
        });
        agree("three inputs", &traced.unwrap(), target, false);
        let traced = kernel("gathered", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            k.main(|r| r.each(n, |i| y.store(i, long(x.load(i * 7 % n as i64)))));
        });
        agree("gathered", &traced.unwrap(), target, false);
    }
}

/// The computation of a body with its groups.
type Grouped = for<'t> fn(Value<'t, f32>, u32) -> Value<'t, f32>;

/// Groups of all sizes: within a lane's vector, across several lanes, across both vectors of some lanes. Sums have an
/// order, the largest magnitude of small floats is searched two at a time, and one body has groups of two sizes. The
/// first element of a group stores the group's result.
#[test]
fn groups_of_all_sizes_come_ahead() {
    let ops: [(&str, Grouped); 6] = [
        ("largest magnitude", |x, size| x.abs().group_max(size)),
        ("least magnitude", |x, size| x.abs().group_min(size)),
        ("largest", |x, size| x.group_max(size)),
        ("least", |x, size| x.group_min(size)),
        ("sum", |x, size| x.group_sum(size)),
        ("both", |x, size| x.group_sum(size) + x.abs().group_max(size / 2)),
    ];
    let n = 8192;
    let x = Tensor::from_fn(n, |i| Bf16::from_f32(numbers(n, 3).get(i)));
    let whole = Tensor::from_fn(n, |i| F16::from_f32(x.get(i).to_f32()));
    let mut ahead = 0;
    let mut same = |name: &str, traced: &Traced, target: Target| {
        ahead += usize::from(same_as_defined(name, traced, target).contains("cp.async.cg"));
    };
    for (k, (name, op)) in ops.into_iter().enumerate() {
        for (j, size) in [2, 16, 32, 64, 128, 256, 512].into_iter().enumerate() {
            let (target, warps) = (Target::ALL[(k + j) % 5], [1, 2, 3][j % 3]);
            let (y, firsts) = (Tensor::<F8E4M3>::zeros(n), Tensor::<f32>::zeros(n / size as usize));
            let traced = kernel("groups", |k| {
                let (x, y, firsts) = (k.input(&x), k.output(&y), k.output(&firsts));
                k.role("main", warps).run(|r| {
                    r.each(n, |i| {
                        let x = x.load(i).cast::<f32>();
                        let all = op(x, size);
                        y.store(i, (long(x) * all.abs().max(f32::MIN_POSITIVE).rcp()).cast::<F8E4M3>());
                        firsts.store_if((i % i64::from(size)).eq(0), i / i64::from(size), all);
                    });
                });
            });
            same(&format!("{name} of {size} bf16"), &traced.unwrap(), target);
            // The output is as wide as the input: two vectors of eight.
            let y = Tensor::<F16>::zeros(n);
            let traced = kernel("groups", |k| {
                let (x, y) = (k.input(&whole), k.inout(&y));
                k.role("main", warps).run(|r| {
                    r.each(n, |i| {
                        let x = x.load(i).cast::<f32>();
                        y.store(i, (long(x) - op(x, size)).cast::<F16>());
                    });
                });
            });
            same(&format!("{name} of {size} f16"), &traced.unwrap(), target);
        }
    }
    assert!(ahead > 60, "{ahead} of 84");
}

/// NaNs lose, infinities win, and of two zeros the positive one wins.
#[test]
fn odd_numbers_in_groups() {
    let odd = [0x0000u16, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x0001, 0x8001, 0x3f80, 0xbf80];
    let mut random = Random::new(11);
    // Some groups are all NaNs, or all zeros.
    let x = Tensor::from_fn(4096, |i| match i / 128 % 4 {
        0 => Bf16::from_bits(odd[4 + random.below_u64(2) as usize]),
        1 => Bf16::from_bits(odd[random.below_u64(2) as usize]),
        _ => Bf16::from_bits(odd[random.below_u64(10) as usize]),
    });
    for magnitude in [true, false] {
        let y = Tensor::<f32>::zeros(4096 / 128);
        let small = Tensor::<F8E4M3>::zeros(4096);
        let traced = kernel("odd", |k| {
            let (x, y, small) = (k.input(&x), k.output(&y), k.output(&small));
            k.role("main", 2).run(|r| {
                r.each(4096, |i| {
                    let x = x.load(i).cast::<f32>();
                    let all = if magnitude { x.abs().group_max(128) } else { x.group_min(128) };
                    // The bits of a NaN are not specified, so none are compared.
                    let all = all.eq(all).select(all, -1.0);
                    y.store_if((i % 128).eq(0), i / 128, all);
                    small.store(i, long(x.abs().min(1.0) + all.min(2.0)).cast::<F8E4M3>());
                });
            });
        });
        agree("odd numbers", &traced.unwrap(), Target::Sm90a, true);
    }
}

/// Bodies that load less than a piece. The places that they load from and store to advance from turn to turn.
#[test]
fn places_move_on() {
    for (k, n) in [0, 8, 1000, 4096, 4104, 20480].into_iter().enumerate() {
        let (target, warps) = (Target::ALL[k % 5], [1, 2, 3, 4][k % 4]);
        let mut random = Random::new(5);
        let x = Tensor::from_fn(n, |_| F8E4M3::from_bits(random.below_u64(0x7e) as u8));
        let (scales, y) = (numbers(n.div_ceil(32) + 1, 9), Tensor::<Bf16>::zeros(n));
        let traced = kernel("dequantise", |k| {
            let (x, scales, y) = (k.input(&x), k.input(&scales), k.output(&y));
            k.role("main", warps).copies(2, |r| {
                r.for_turns(3, |_| {
                    r.each(n, |i| {
                        let x = x.load(i).cast::<f32>() * scales.load(i / 32 + 1);
                        y.store(i, (x * 0.5 + i.cast::<f32>()).cast::<Bf16>());
                    });
                });
            });
        });
        agree(&format!("{n} with scales"), &traced.unwrap(), target, false);
    }
}

/// Places and conditions that are computed through other types are computed in every turn.
#[test]
fn places_by_way_of_other_types() {
    let n = 8192;
    let (x, y, firsts) = (numbers(n, 1), Tensor::<f32>::zeros(n + 8), Tensor::<f32>::zeros(n / 128));
    for loads in [false, true] {
        let traced = kernel("detour", |k| {
            let (x, y, firsts) = (k.input(&x), k.output(&y), k.output(&firsts));
            k.role("main", 2).run(|r| {
                r.each(n, |i| {
                    let unsigned = i.cast::<u64>();
                    let near = if loads { x.load((unsigned >> 5u64).cast::<i64>()) } else { x.load(i) };
                    y.store((unsigned + 8u64).cast::<i64>(), long(near));
                    firsts.store_if((unsigned % 128u64).eq(0), i / 128, near);
                });
            });
        });
        agree("a detour", &traced.unwrap(), Target::Sm90a, !loads);
    }
}

/// Large inputs of kernels that read staging are marked to leave the cache first.
#[test]
fn large_inputs_stream() {
    let (large, y) = (numbers(4 << 20, 1), Tensor::<f32>::zeros(4096));
    let staging = [Memory::zeroed(4 * 4096)];
    let traced = kernel("streams", |k| {
        let (x, y, staging) = (k.input(&large), k.inout(&y), k.region("staging", &staging));
        k.role("main", 2).run(|r| {
            r.each(4096, |i| y.store(i, staging.get::<f32>(0, i * 4)));
            r.each(4096, |i| y.store(i, long(x.load(i))));
        });
    });
    let text = same_as_defined("streams", &traced.unwrap(), Target::Sm90a);
    assert!(text.contains("cp.async.cg.shared.global.L2::cache_hint"), "{text}");
}

/// A lane whose packet never comes leaves its warp. No other lane may then wait for all lanes.
#[test]
fn a_body_that_can_give_up_does_not_come_ahead() {
    let (x, y, packets) = (Tensor::<f64>::zeros(4096), Tensor::<f64>::zeros(4096), [Memory::zeroed(16 * 4096)]);
    for gets in [false, true] {
        let traced = kernel("packets", |k| {
            let (x, y, packets) = (k.input(&x), k.output(&y), k.region("packets", &packets));
            k.main(|r| {
                r.each(4096, |i| {
                    let near = x.load(i);
                    let far = if gets { packets.packet_get(0, i, 1).cast::<f64>() } else { near };
                    y.store(i, (0..8).fold(near, |z, _| z * 0.75 + far));
                });
            });
        });
        let text = emit(&simplify(&traced.unwrap().kernel), Options::new(Target::Sm90a)).unwrap().text;
        assert_eq!(text.contains("cp.async"), !gets, "{text}");
    }
}
