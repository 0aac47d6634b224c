//! Prepared collectives over other tensors: the same results as after another build, or an error that says what
//! differs.

use crate::case::{SMALL, Way, assert_same, data, seed, threads};
use tilewire::collective::RebindError;
use tilewire::link::{ShmOptions, ShmTransport, Window};
use tilewire::tensor::Axis;
use tilewire::transport::Rank;
use tilewire::{
    Algorithm, Bf16, RunError, Tensor, all_gather, all_reduce, all_to_all, barrier, map, recv, reduce_scatter, send,
};

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
            // One side rebinds, and the other does not notice. In place stays in place.
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
        // Tensors that peers reach stay. Others can be replaced.
        let (window, other) = (Window::<f32>::allocate(&link, 128)?, Window::<f32>::allocate(&link, 128)?);
        let mut op = all_gather(&link, window.tensor(), &inp).window(&window).build()?;
        refused(op.rebind(other.tensor(), &inp), "in a window, so peers have its address");
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

#[test]
fn posts_read_the_new_input_where_it_lies() {
    threads(2, "posted", |world| {
        let link = crate::posts::alone(world, Some(4))?;
        let (me, window) = (world.rank().number(), Window::<u32>::allocate(&link, 64)?);
        let inputs: Vec<_> = (0..3).map(|k| Tensor::from_fn(64, |i| 1000 * k + 100 * me + i as u32 / 32)).collect();
        let op = all_to_all(&link, window.tensor(), &inputs[0]).window(&window);
        assert!(op.explain()?.contains("posted from the input (zero-copy)"));
        let mut op = op.build()?;
        for k in [0, 1, 2, 0, 2] {
            op.rebind(window.tensor(), &inputs[k])?;
            op.run()?;
            let base = 1000 * k as u32 + me;
            assert_eq!((window.tensor().get(0), window.tensor().get(63)), (base, base + 100));
        }
        // A network may keep lent memory registered, and its owner has it back soon.
        let error = Tensor::lend(&mut [0u32; 64], |lent| op.rebind(window.tensor(), lent)).unwrap_err().to_string();
        assert!(error.contains("memory that a network may keep"), "{error}");
        // The window cannot move either, because posts name its registration.
        let other = Window::<u32>::allocate(&link, 64)?;
        let error = op.rebind_window(&other, &inputs[0]).unwrap_err().to_string();
        assert!(error.contains("far peers write by posts"), "{error}");
        op.run()?;
        assert_eq!(window.tensor().get(0), 2000 + me);
        drop(op);
        Ok(link.close()?)
    });
}

/// Element `i` of the data of a rank in a step.
fn of_step(step: usize, rank: usize, i: usize) -> u32 {
    (step * 10_000 + rank * 1000 + i) as u32
}

/// In one shot peers read the input where it lies, and nobody reaches the output, although it is in a window.
#[test]
fn a_window_that_the_plan_does_not_need_is_swapped_like_the_others() {
    threads(2, "spare windows", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let windows = (0..4).map(|_| Window::<u32>::allocate(&link, 16)).collect::<Result<Vec<_>, _>>()?;
        let (short, other) = (Window::<u32>::allocate(&link, 8)?, Window::<f32>::allocate(&link, 16)?);
        let call = all_reduce(&link, windows[0].tensor(), windows[1].tensor()).algorithm(Algorithm::OneShot);
        let mut sum = call.window(&windows[0]).window(&windows[1]).build()?;
        for step in 0..40 {
            let (out, inp) = (&windows[step % 2 * 2], &windows[step % 2 * 2 + 1]);
            inp.tensor().fill(step as u32 + 1);
            out.tensor().fill(0);
            sum.rebind_windows(out, inp)?;
            sum.run()?;
            assert_eq!(out.tensor().to_vec(), [2 * step as u32 + 2; 16]);
            // Peers have read the input when all have ended.
            barrier(&link).run()?;
        }
        for (result, part) in [
            (sum.rebind_windows(&short, &windows[1]), "is [1, 8]"),
            (sum.rebind_windows(&other, &windows[1]), "elements of f32"),
        ] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("output") && error.contains(part), "{error}");
        }
        drop(sum);
        Ok(link.close()?)
    });
}

#[test]
fn windows_of_all_ranks_are_swapped_a_thousand_times() {
    const RANKS: usize = 3;
    threads(RANKS, "swaps", |world| {
        // More windows than usual.
        let link = ShmTransport::rendezvous(world, ShmOptions { window_sets: Some(16), ..SMALL })?;
        let (me, len) = (world.rank().index(), 5);
        let windows = |len| (0..3).map(|_| Window::<u32>::allocate(&link, len)).collect::<Result<Vec<_>, _>>();
        let (outs, inps, shorts) = (windows(RANKS * len)?, windows(RANKS * len)?, windows(len)?);
        let mine = Tensor::<u32>::zeros(RANKS * len);
        let one = mine.slice(0..len);
        let mut exchange = all_to_all(&link, outs[0].tensor(), &mine).window(&outs[0]).build()?;
        let mut gather = all_gather(&link, outs[0].tensor(), &one).window(&outs[0]).build()?;
        let mut reduce =
            all_reduce(&link, outs[0].tensor(), inps[0].tensor()).window(&outs[0]).window(&inps[0]).build()?;
        let mut scatter = reduce_scatter(&link, &one, inps[0].tensor()).window(&inps[0]).build()?;
        let fill = |tensor: &Tensor<u32>, step: usize| {
            tensor.copy_from(&(0..tensor.len()).map(|i| of_step(step, me, i)).collect::<Vec<_>>());
        };
        let sum = |step, i| (0..RANKS).map(|rank| of_step(step, rank, i)).sum::<u32>();
        // Each of the four calls in turn, with three windows in turn.
        for step in 0..1000 {
            let (out, inp) = (&outs[step % 3], &inps[step % 3]);
            match step % 4 {
                0 => {
                    fill(&mine, step);
                    exchange.rebind_window(out, &mine)?;
                    exchange.run()?;
                    let must = |i: usize| of_step(step, i / len, me * len + i % len);
                    assert_eq!(out.tensor().to_vec(), (0..RANKS * len).map(must).collect::<Vec<_>>(), "step {step}");
                }
                1 => {
                    fill(&mine, step);
                    gather.rebind_window(out, &one)?;
                    gather.run()?;
                    let must = |i: usize| of_step(step, i / len, i % len);
                    assert_eq!(out.tensor().to_vec(), (0..RANKS * len).map(must).collect::<Vec<_>>(), "step {step}");
                }
                // The next call meets all ranks again. They have read the input by then.
                2 => {
                    fill(inp.tensor(), step);
                    reduce.rebind_windows(out, inp)?;
                    reduce.run()?;
                    let must: Vec<u32> = (0..RANKS * len).map(|i| sum(step, i)).collect();
                    assert_eq!(out.tensor().to_vec(), must, "step {step}");
                }
                _ => {
                    fill(inp.tensor(), step);
                    scatter.rebind_input_window(&one, inp)?;
                    scatter.run()?;
                    let must: Vec<u32> = (me * len..(me + 1) * len).map(|i| sum(step, i)).collect();
                    assert_eq!(one.to_vec(), must, "step {step}");
                }
            }
        }
        // A refused rebind keeps the old windows, and tells nobody.
        let refused = |result: Result<(), RunError>, part: &str| match result {
            Err(RunError::Rebind(error)) => assert!(error.to_string().contains(part), "{error}"),
            other => panic!("{other:?} instead of {part}"),
        };
        refused(exchange.rebind_window(&shorts[0], &mine), "has 20 bytes on rank 0, where the old one has 60 bytes");
        refused(exchange.rebind(outs[1].tensor(), &mine), "rebind_window(..)");
        refused(exchange.rebind_windows(&outs[1], &inps[1]), "the input was in no window");
        refused(exchange.rebind_window(&outs[1], &one), "[1, 5]");
        refused(exchange.rebind_window(&Window::<f32>::allocate(&link, RANKS * len)?, &mine), "elements of f32");
        fill(&mine, 7);
        exchange.run()?;
        assert_eq!(outs[0].tensor().get(0), of_step(7, 0, me * len));
        drop((exchange, gather, reduce, scatter));
        // Both sides of a transfer. One of them has no output.
        let two = [Window::<u32>::allocate(&link, len)?, Window::allocate(&link, len)?];
        let (first, second) = (Rank::new(0), Rank::new(1));
        if me == 0 {
            let mut op = send(&link, &one, second).window(&two[0]).build()?;
            for step in 0..10 {
                fill(&one, step);
                op.rebind_window(&two[step % 2], &one)?;
                op.run()?;
            }
        } else if me == 1 {
            let mut op = recv(&link, two[0].tensor(), first).window(&two[0]).build()?;
            for step in 0..10 {
                op.rebind_window(&two[step % 2], two[step % 2].tensor())?;
                op.run()?;
                assert_eq!(two[step % 2].tensor().get(4), of_step(step, 0, 4));
            }
        }
        Ok(link.close()?)
    });
}

#[test]
fn ranks_that_rebind_to_different_windows_all_hear_of_it() {
    let errors = threads(3, "other window", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let windows = [(); 3].map(|()| Window::<u32>::allocate(&link, 6).expect("memory"));
        let mut op = all_gather(&link, windows[0].tensor(), &Tensor::<u32>::zeros(2)).window(&windows[0]).build()?;
        op.run()?;
        let mine = if world.rank().index() == 1 { &windows[2] } else { &windows[1] };
        op.rebind_window(mine, &Tensor::<u32>::zeros(2))?;
        let error = op.run().unwrap_err();
        // This does not change later.
        assert!(op.run().is_err() && op.rebind_window(&windows[1], &Tensor::<u32>::zeros(2)).is_err());
        Ok(error)
    });
    for error in errors {
        assert!(matches!(&error, RunError::Mismatch(_)) && error.to_string().contains("the window"), "{error}");
    }
}

#[test]
fn a_rank_that_does_not_rebind_is_an_error_and_no_hang() {
    let start = std::time::Instant::now();
    for late in [0, 2] {
        let errors = threads(3, ("no rebind", late), |world| {
            let link = ShmTransport::rendezvous(world, SMALL)?;
            let windows = [(); 2].map(|()| Window::<u32>::allocate(&link, 6).expect("memory"));
            let mut op =
                all_to_all(&link, windows[0].tensor(), &Tensor::<u32>::zeros(6)).window(&windows[0]).build()?;
            op.run()?;
            if world.rank().index() != late {
                op.rebind_window(&windows[1], &Tensor::<u32>::zeros(6))?;
            }
            Ok(op.run().unwrap_err().to_string())
        });
        assert!(errors.iter().all(|error| error.contains("rank")), "{errors:?}");
        // A rank that builds another call instead is found when the ranks meet.
        let errors = threads(3, ("another build", late), |world| {
            let link = ShmTransport::rendezvous(world, SMALL)?;
            let windows = [(); 2].map(|()| Window::<u32>::allocate(&link, 6).expect("memory"));
            let build = |window: &Window<u32>| {
                all_to_all(&link, window.tensor(), &Tensor::<u32>::zeros(6)).window(window).build()
            };
            let mut op = build(&windows[0])?;
            op.run()?;
            match world.rank().index() == late {
                true => op = build(&windows[1])?,
                false => op.rebind_window(&windows[1], &Tensor::<u32>::zeros(6))?,
            }
            Ok(op.run().unwrap_err().to_string())
        });
        assert!(errors.iter().all(|error| error.contains("bound to other windows")), "{errors:?}");
    }
    // Far below the deadline, because the ranks see that they wait for each other.
    assert!(start.elapsed() < std::time::Duration::from_secs(60), "{:?}", start.elapsed());
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
    // Other tests of this process run beside it. So this finds only growth with every rebind.
    let grown = resident().saturating_sub(before);
    assert!(grown < 9000 * 4096, "{grown} bytes after 9,000 more rebinds");
}

#[test]
fn ten_thousand_rebinds_of_a_collective_hold_no_more_memory_than_one() {
    let grown = threads(2, "many", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let me = world.rank().number();
        let tensors: Vec<_> = (0..7).map(|k| Tensor::from_fn(256, |i| k * 1000 + me * 500 + i as u32 / 128)).collect();
        let outs = [Tensor::<u32>::zeros(256), Tensor::zeros(256)];
        let mut op = all_to_all(&link, &outs[0], &tensors[0]).build()?;
        let mut before = 0;
        for k in 0..10_000 {
            op.rebind(&outs[k % 2], &tensors[k % 7])?;
            // Ranks rebind as often as they like between two launches.
            if k % 100 == 99 {
                op.run()?;
                let base = k as u32 % 7 * 1000 + me;
                assert_eq!((outs[k % 2].get(3), outs[k % 2].get(200)), (base, base + 500), "rebind {k}");
            }
            if k == 1000 {
                before = resident();
            }
        }
        let grown = resident().saturating_sub(before);
        drop(op);
        link.close()?;
        Ok(grown)
    });
    assert!(grown.iter().all(|&grown| grown < 9000 * 4096), "{grown:?} bytes after 9,000 more rebinds");
}
