//! probe
#![allow(missing_docs)]
use std::time::Instant;
use tilewire::prelude::*;
use tilewire::{Traced, vm::Prepared};
#[allow(dead_code)]
mod hw;
fn race(name: &str, bytes: usize, op: &mut Prepared, hand: &mut [(&str, &mut dyn FnMut())]) {
    let iters = (6_000_000 / (bytes + 400)).clamp(1, 30_000);
    let k = hand.len() + 1;
    let mut t: Vec<Vec<f64>> = vec![vec![]; k];
    for round in 0..25 {
        for j in 0..k {
            let side = (j + round) % k;
            let run = |f: &mut dyn FnMut()| {
                f();
                f();
                let s = Instant::now();
                for _ in 0..iters {
                    f()
                }
                s.elapsed().as_secs_f64() / iters as f64
            };
            let s = if side == 0 { run(&mut || op.run().unwrap()) } else { run(hand[side - 1].1) };
            t[side].push(s);
        }
    }
    let med = |v: &mut Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    let ours = med(&mut t[0]);
    print!("{name:10} {bytes:9} ours {:9.3}us {:6.2}GB/s |", ours * 1e6, bytes as f64 / ours / 1e9);
    let mut best = f64::MAX;
    for (j, (n, _)) in hand.iter().enumerate() {
        let m = med(&mut t[j + 1]);
        best = best.min(m);
        print!(" {n} {:6.2}", bytes as f64 / m / 1e9);
    }
    println!(" | ratio {:.2}", best / ours);
}
fn slice<T>(t: &Tensor<T>) -> &'static mut [T]
where
    T: tilewire::ir::scalar::Element,
{
    unsafe { std::slice::from_raw_parts_mut(t.memory().start().as_ptr().cast(), t.len()) }
}
fn main() {
    let only: Vec<String> = std::env::args().skip(1).collect();
    let want = |s: &str| only.is_empty() || only.iter().any(|o| o == s);
    let e = kernel("empty", |k| k.main(|_| {})).unwrap();
    if want("empty") {
        race("empty", 0, &mut Prepared::new(&e.kernel, &e.args).unwrap(), &mut []);
    }
    for n in [1usize, 16 << 10, 256 << 10, 1 << 20, 16 << 20] {
        let x = Tensor::from_fn(n, |i| (i % 1000) as f32 - 500.0);
        let y = Tensor::<f32>::zeros(n);
        let z = Tensor::<f32>::zeros(n);
        let b = Tensor::from_fn(n, |i| Bf16::from_f32((i % 100) as f32));
        let q = Tensor::<F8E4M3>::zeros(n);
        let q2 = Tensor::<u8>::zeros(n);
        let s = Tensor::<f32>::zeros(n.div_ceil(128));
        let s2 = Tensor::<f32>::zeros(n.div_ceil(128));
        let mut st = 1u32;
        let ix = Tensor::from_fn(n, |_| {
            st = st.wrapping_mul(1664525).wrapping_add(1013904223);
            ((st >> 4) as usize % n) as i32
        });
        let sc = Scalar::new(1.5f32);
        let p = |t: Traced| Prepared::new(&t.kernel, &t.args).unwrap();
        let by = n * 4;
        let (xs, zs) = (&*slice(&x), slice(&z));
        let (xb, zb) = unsafe {
            (
                std::slice::from_raw_parts(xs.as_ptr().cast::<u8>(), by),
                std::slice::from_raw_parts_mut(zs.as_mut_ptr().cast::<u8>(), by),
            )
        };
        let zb2 = unsafe { std::slice::from_raw_parts_mut(zs.as_mut_ptr().cast::<u8>(), by) };
        let zb3 = unsafe { std::slice::from_raw_parts_mut(zs.as_mut_ptr().cast::<u8>(), by) };
        if want("copy") {
            race(
                "copy",
                by,
                &mut p(kernel("copy", |k| {
                    let (x, y) = (k.input(&x), k.output(&y));
                    k.main(|r| r.each(x.len(), |i| y.store(i, x.load(i))))
                })
                .unwrap()),
                &mut [
                    ("memcpy", &mut || hw::copy_memcpy(zb, xb)),
                    ("temporal", &mut || hw::copy_temporal(zb2, xb)),
                    ("nt", &mut || hw::copy_non_temporal(zb3, xb)),
                ],
            );
        }
        if want("scale") {
            race(
                "scale",
                by,
                &mut p(kernel("scale", |k| {
                    let (x, y) = (k.input(&x), k.output(&y));
                    k.main(|r| r.each(x.len(), |i| y.store(i, x.load(i) * &sc)))
                })
                .unwrap()),
                &mut [
                    ("plain", &mut || hw::scale_f32(slice(&z), xs, 1.5)),
                    ("nt", &mut || hw::scale_f32_non_temporal(slice(&z), xs, 1.5)),
                ],
            );
        }
        if want("acc") {
            race(
                "acc",
                by,
                &mut p(kernel("acc", |k| {
                    let (b, y) = (k.input(&b), k.inout(&y));
                    k.main(|r| r.each(y.len(), |i| y.store(i, y.load(i) + b.load(i).cast::<f32>())))
                })
                .unwrap()),
                &mut [("plain", &mut || {
                    hw::accumulate_bf16(slice(&z), unsafe { std::slice::from_raw_parts(slice(&b).as_ptr().cast(), n) })
                })],
            );
        }
        if want("quant") && n > 1 {
            race(
                "quant",
                by,
                &mut p(kernel("quant", |k| {
                    let (x, q, s) = (k.input(&x), k.output(&q), k.output(&s));
                    k.main(|r| {
                        r.each(x.len(), |i| {
                            let v = x.load(i);
                            let m = v.abs().group_max(128);
                            let sc = m.eq(0.0).select(1.0, m / 448.0);
                            let inv = sc.rcp();
                            q.store(i, (v * inv).cast::<F8E4M3>());
                            s.store_if((i % 128).eq(0), i / 128, sc);
                        })
                    })
                })
                .unwrap()),
                &mut [
                    ("plain", &mut || hw::quantise_f8e4m3(slice(&q2), slice(&s2), xs)),
                    ("nt", &mut || hw::quantise_f8e4m3_non_temporal(slice(&q2), slice(&s2), xs)),
                ],
            );
        }
        if want("gather") {
            race(
                "gather",
                by,
                &mut p(kernel("gather", |k| {
                    let (x, y, ix) = (k.input(&x), k.output(&y), k.input(&ix));
                    k.main(|r| r.each(y.len(), |i| y.store(i, x.load(ix.load(i)))))
                })
                .unwrap()),
                &mut [
                    ("scalar", &mut || unsafe { hw::gather_i32(slice(&z), xs, slice(&ix)) }),
                    ("vector", &mut || unsafe { hw::gather_i32_vector(slice(&z), xs, slice(&ix)) }),
                ],
            );
        }
        if want("transpose") && n > 1 {
            let r = 1usize << (n.trailing_zeros() / 2);
            let c = n / r;
            race(
                "transpose",
                by,
                &mut p(map(&y, &x).chunk_shape(r, c).produce(|c| c.input.at(c.col(), c.row())).trace().unwrap()),
                &mut [
                    ("plain", &mut || hw::transpose_f32(slice(&z), xs, r, c)),
                    ("nt", &mut || hw::transpose_f32_non_temporal(slice(&z), xs, r, c)),
                ],
            );
        }
    }
}
