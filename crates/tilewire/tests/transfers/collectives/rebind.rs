//! Prepared collectives over other tensors: the same results as if they had been built again, or an error that says
//! what differs.

use crate::case::{SMALL, Way, assert_same, data, seed, threads};
use tilewire::collective::RebindError;
use tilewire::link::{ShmTransport, Window};
use tilewire::tensor::Axis;
use tilewire::transport::Rank;
use tilewire::{Bf16, RunError, Tensor, all_gather, all_reduce, all_to_all, map, recv, reduce_scatter, send};

#[test]
fn every_launch_may_have_tensors_of_its_own() {
    for ranks in [1, 3] {
        threads(ranks, "rebind", |world| {
            let link = ShmTransport::rendezvous(world, SMALL)?;
            let me = world.rank();
            for way in [Way::Chosen, Way::Packet, Way::staged(256, 2), Way::bulk(256, 2)] {
                let (rows, cols) = (4, 3 * ranks);
                let tensors = |k: u64| {
                    let inp = Tensor::<u32>::zeros(rows * 20).reshape(rows, 20).unwrap().columns(2..2 + cols);
                    inp.copy_from(&data(seed() + k, me, rows * cols));
                    (Tensor::<u32>::zeros(rows * cols).reshape(rows, cols).unwrap(), inp)
                };
                let (out, inp) = tensors(0);
                let mut op = all_to_all(&link, &out, &inp).along(Axis::Cols).config(way.config(1)).build()?;
                for k in 0..6 {
                    let (out, inp) = tensors(k);
                    op.rebind(&out, &inp)?;
                    op.run()?;
                    let row = |row: usize| {
                        Rank::all(ranks).flat_map(move |rank| {
                            let theirs = data::<u32>(seed() + k, rank, rows * cols);
                            let first = row * cols + 3 * me.index();
                            theirs[first..first + 3].to_vec()
                        })
                    };
                    let must: Vec<u32> = (0..rows).flat_map(row).collect();
                    assert_same(&out.to_vec(), &must, (way, k, me));
                }
            }
            // One side rebinds, the other does not notice. In place stays in place.
            let x = |k: u32| Tensor::from_fn(100, |i| i as u32 + 1000 * k);
            let (first, second) = (Rank::new(0), Rank::new(1));
            if ranks > 1 && me == first {
                let mut op = send(&link, &x(0), second).build()?;
                for k in 0..5 {
                    op.rebind(&x(k), &x(k)).unwrap_err(); // two tensors where there was one
                    let x = x(k);
                    op.rebind(&x, &x)?;
                    op.run()?;
                }
            } else if ranks > 1 && me == second {
                let y = Tensor::<u32>::zeros(100);
                let mut op = recv(&link, &y, first).build()?;
                for k in 0..5 {
                    op.run()?;
                    assert_eq!(y.get(99), 99 + 1000 * k);
                }
            }
            let mut op = all_reduce(&link, &x(0), &x(0)).build()?;
            op.rebind(&x(1), &x(2))?;
            op.run()?;
            let y = x(3);
            assert!(matches!(op.rebind(&y, &y), Err(RunError::Rebind(RebindError::Overlap { did: false, .. }))));
            drop(op);
            let mut op = all_reduce(&link, &y, &y).build()?;
            let z = x(4);
            op.rebind(&z, &z)?;
            op.run()?;
            assert_eq!(z.get(1), 4001 * ranks as u32);
            assert!(matches!(op.rebind(&z, &y), Err(RunError::Rebind(RebindError::Overlap { did: true, .. }))));
            drop(op);
            Ok(link.close()?)
        });
    }
}

#[test]
fn tensors_that_are_not_alike_are_refused_and_the_old_ones_stay() {
    threads(2, "refused", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let captured = Tensor::<f32>::from_fn(64, |_| 1.0);
        let (inp, out) = (Tensor::<f32>::from_fn(64, |i| i as f32), Tensor::<f32>::zeros(128));
        let mut op =
            all_gather(&link, &out, &inp).produce(|c| c.input.load(c.pos()) + c.captured(&captured).load(3)).build()?;
        let refused = |error: Result<(), RunError>, part: &str| match error {
            Err(RunError::Rebind(error)) => assert!(error.to_string().contains(part), "{error}"),
            other => panic!("{other:?} instead of {part}"),
        };
        refused(op.rebind(&out, &Tensor::<Bf16>::zeros(64)), "elements of bf16");
        refused(op.rebind(&out, &Tensor::<f32>::zeros(63)), "[1, 63]");
        refused(op.rebind(&out.reshape(2, 64).unwrap(), &inp), "[2, 64] with rows 64 apart");
        // A CPU takes any alignment.
        op.rebind(&out, &Tensor::<f32>::zeros(65).slice(1..65))?;
        op.rebind(&out, &inp)?;
        refused(op.rebind(&out, &out.slice(0..64)), "shares bytes with the input");
        refused(op.rebind(&out, &captured), "shares bytes with captured");
        op.run()?;
        assert_eq!((out.get(1), out.get(127)), (2.0, 64.0));
        drop(op);
        // What peers reach stays; what they do not reach goes.
        let (window, other) = (Window::<f32>::allocate(&link, 128)?, Window::<f32>::allocate(&link, 128)?);
        let mut op = all_gather(&link, window.tensor(), &inp).window(&window).build()?;
        refused(op.rebind(other.tensor(), &inp), "in a window");
        op.rebind(window.tensor(), &captured)?;
        op.run()?;
        assert_eq!(window.tensor().to_vec(), [1.0; 128]);
        drop(op);
        let mut op = reduce_scatter(&link, &Tensor::<f32>::zeros(64), window.tensor()).window(&window).build()?;
        let out = Tensor::<f32>::zeros(64);
        refused(op.rebind(&out, other.tensor()), "in a window");
        op.rebind(&out, window.tensor())?;
        op.run()?;
        assert_eq!(out.get(63), 2.0);
        drop(op);
        Ok(link.close()?)
    });
}

/// Bytes that this process holds in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("pages") * 4096
}

#[test]
fn ten_thousand_rebinds_hold_no_more_memory_than_one() {
    let tensors: Vec<_> = (0..7).map(|k| Tensor::<f32>::from_fn(256, |i| (k * 1000 + i) as f32)).collect();
    let out = Tensor::<f32>::zeros(256);
    let mut op = map(&out, &tensors[0]).produce(|c| c.input.load(c.pos()) * 2.0).build().unwrap();
    let mut before = 0;
    for k in 0..10_000 {
        op.rebind(&out, &tensors[k % 7]).unwrap();
        if k % 500 == 0 {
            op.run().unwrap();
            assert_eq!(out.get(3), (k % 7 * 1000 + 3) as f32 * 2.0);
        }
        if k == 1000 {
            before = resident();
        }
    }
    // Other tests of this process run beside it, so this finds only what grows with every rebind.
    let grown = resident().saturating_sub(before);
    assert!(grown < 9000 * 4096, "{grown} bytes after 9,000 more rebinds");
}
