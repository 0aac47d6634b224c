//! Windows with control lines of their own: how many there are, who has them how long, and that two windows of one
//! launch do not meet.

use crate::case::{LONG, SMALL};
use std::collections::HashSet;
use tilewire::collective::Launch;
use tilewire::link::{
    LineSet, MeshOptions, MeshTransport, PostFrom, Puts, ShmOptions, ShmTransport, Tensors, Transport, Window,
    WindowPart,
};
use tilewire::schedule::{PostedWindow, Tiling, recv_direct, send_direct};
use tilewire::transport::layout::LINE;
use tilewire::transport::{PeerEndpoint, RankError, There, TransportError, World};
use tilewire::{Tensor, Traced, all_gather, all_reduce, kernel};

fn of_sets(window_sets: usize) -> ShmOptions {
    ShmOptions { window_sets: Some(window_sets), ..SMALL }
}

fn run(ranks: usize, body: impl Fn(&World) -> Result<(), RankError> + Sync) {
    World::threads(ranks).deadline(LONG).run(|world| body(&world)).unwrap();
}

/// The addresses of all lines of an endpoint that belong to its set.
fn lines(endpoint: &PeerEndpoint) -> HashSet<usize> {
    let PeerEndpoint { here, starts, window, .. } = endpoint;
    let own = [&here.signals.ready, &here.signals.done, &here.signals.signals, starts, &window.counters];
    let there = endpoint.mapped().map(|there| [&there.signals.ready, &there.signals.done, &there.signals.signals]);
    let all = own.into_iter().chain([&window.tallies]).chain(there.into_iter().flatten());
    all.flat_map(|memory| (0..memory.bytes()).step_by(LINE).map(|at| memory.start().addr().get() + at)).collect()
}

#[test]
fn windows_have_lines_of_their_own_and_give_them_back() {
    run(3, |world| {
        let link = ShmTransport::rendezvous(world, of_sets(2))?;
        let allocate = || Window::<f32>::allocate(&link, 9);
        let (first, second) = (allocate()?, allocate()?);
        assert_eq!([first.lines().number(), second.lines().number()], [1, 2]);
        let mut all = HashSet::new();
        for set in [&LineSet::default(), first.lines(), second.lines()] {
            for peer in [world.next(), world.previous()] {
                let lines = lines(&link.endpoint_of(peer, set).expect("it is reached"));
                assert!(!lines.is_empty() && lines.iter().all(|line| all.insert(*line)), "{set:?} shares a line");
            }
        }
        // A third has none, on any rank.
        let error = allocate().unwrap_err();
        assert!(matches!(error, TransportError::NoLineSet { sets: 2 }), "{error}");
        assert!(error.to_string().contains("`window_sets`"), "{error}");
        // One rank keeps something that was built with the first.
        let inp = Tensor::<f32>::zeros(3);
        let mut gather = all_gather(&link, first.tensor(), &inp).window(&first).build()?;
        gather.run()?;
        let kept = (world.rank().number() == 1).then_some(gather);
        drop(first);
        assert!(matches!(allocate(), Err(TransportError::NoLineSet { .. })), "rank 1 still has the lines");
        drop(kept);
        assert_eq!(allocate()?.lines().number(), 1);
        drop(second);
        Ok(link.close()?)
    });
}

#[test]
fn without_sets_there_is_any_number_of_windows() {
    run(2, |world| {
        let link = ShmTransport::rendezvous(world, of_sets(0))?;
        let windows: Vec<_> = (0..20).map(|_| Window::<u32>::allocate(&link, 2)).collect::<Result<_, _>>()?;
        for window in &windows {
            assert!(window.lines().is_own());
            let inp = Tensor::from_slice(&[world.rank().number()]);
            all_gather(&link, window.tensor(), &inp).window(window).run()?;
            assert_eq!(window.tensor().to_vec(), [0, 1]);
        }
        // A set that no window of this transport has is not used, whatever its number.
        let [own, other] = [0, 1].map(|number| link.endpoint_of(world.next(), &LineSet::numbered(number)));
        assert_eq!(own.as_ref().map(lines), other.as_ref().map(lines));
        Ok(link.close()?)
    });
}

#[test]
fn a_rebound_call_moves_to_the_lines_of_its_new_window() {
    run(2, |world| {
        let link = ShmTransport::rendezvous(world, of_sets(2))?;
        let allocate = || Window::<u32>::allocate(&link, 6);
        let inp = Tensor::from_fn(3, |i| 10 * world.rank().number() + i as u32);
        let (first, second) = (allocate()?, allocate()?);
        let mut gather = all_gather(&link, first.tensor(), &inp).window(&first).build()?;
        gather.run()?;
        gather.rebind_window(&second, &inp)?;
        // Nothing uses the lines of the first any more.
        drop(first);
        let third = allocate()?;
        assert_eq!(third.lines().number(), 1);
        let mut other = all_gather(&link, third.tensor(), &inp).window(&third).build()?;
        for launch in 0..5 {
            inp.fill(launch * 2 + world.rank().number());
            gather.run()?;
            other.run()?;
            let all = [2 * launch, 2 * launch + 1].map(|x| [x; 3]).concat();
            assert_eq!([second.tensor().to_vec(), third.tensor().to_vec()], [all.clone(), all]);
        }
        drop(second);
        let error = allocate().unwrap_err();
        assert!(matches!(error, TransportError::NoLineSet { .. }), "the rebound call has the second: {error}");
        drop((gather, other, third));
        // Sets that were used by others go on where those ended.
        for _ in 0..4 {
            let (x, y) = (allocate()?, allocate()?);
            x.tensor().fill(1);
            all_reduce(&link, y.tensor(), x.tensor()).window(&x).window(&y).run()?;
            assert_eq!(y.tensor().to_vec(), [2; 6]);
        }
        Ok(link.close()?)
    });
}

// ---- two windows at the same time -----------------------------------------------------------------------------------

const LEN: usize = 300;
const BLOCKS: usize = 3;

/// A kernel that sends through several windows at the same time, in the same blocks: each rank to the next one. It does
/// what launches do that run at the same time.
fn at_once(
    link: &dyn Transport,
    windows: &[&Window<f32>],
    [inputs, outboxes]: [&[Tensor<f32>; 2]; 2],
) -> Result<(Traced, Vec<Option<PostedWindow>>), RankError> {
    let (me, ranks) = (link.rank(), link.world_size());
    let ((to, from), max_blocks) = ((me.after(1, ranks), me.after(ranks - 1, ranks)), link.link(me).max_blocks);
    let tiling = Tiling::flat(LEN, 1, BLOCKS).bands(1);
    let posted = windows.iter().enumerate().map(|(number, window)| {
        let Some(region) = window.posted().filter(|region| region.bytes(to).is_some()) else { return Ok(None) };
        let source = link.post_source(to, PostFrom::Memory(outboxes[number].memory()))?;
        Ok(Some(PostedWindow { region: region.clone(), first: 0, source, in_place: false }))
    });
    let posted = posted.collect::<Result<Vec<_>, TransportError>>()?;
    let traced = kernel("at once", |k| {
        k.blocks(BLOCKS as u32);
        for (number, (window, inp)) in windows.iter().zip(inputs).enumerate() {
            let x = k.input(inp);
            let part = match &posted[number] {
                Some(posted) => WindowPart::Posted(posted),
                None => WindowPart::Mapped(window.peer(to)),
            };
            let tx = link.window_sender(k, to, window.lines(), part);
            let rx = link.window_receiver(k, from, window.lines());
            k.role(format!("send {number}"), 4)
                .run(|r| send_direct::<f32>(r, &tx, max_blocks, tiling, |at| x.load(at.pos)));
            k.role(format!("receive {number}"), 4).run(|r| recv_direct(r, &rx, max_blocks, BLOCKS));
        }
    })?;
    Ok((traced, posted))
}

/// Two windows at a time, 20 times over: made, used in one kernel and by collectives, and dropped in both orders.
fn lifecycles(world: &World, link: &dyn Transport) -> Result<(), RankError> {
    let number = |rank: u32, life: u32, which: u32| (rank * 1000 + life * 10 + which) as f32;
    let (me, before) = (world.rank().number(), world.previous().number());
    for life in 0..20 {
        // One of them is registered in every other life.
        let second = match life % 2 {
            0 => Window::<f32>::allocate(link, LEN)?,
            _ => Window::register(link, &link.zeros(LEN)?)?,
        };
        let first = Window::<f32>::allocate(link, LEN)?;
        let inputs = [0, 1].map(|which| Tensor::from_fn(LEN, |i| number(me, life, which) + i as f32 / 512.0));
        let outboxes = [link.zeros::<f32>(LEN)?, link.zeros(LEN)?];
        let (traced, posted) = at_once(link, &[&first, &second], [&inputs, &outboxes])?;
        let mut launch = Launch::new(link, &traced)?;
        for _ in 0..3 {
            launch.run()?;
            for (which, window) in (0..).zip([&first, &second]) {
                let must: Vec<f32> = (0..LEN).map(|i| number(before, life, which) + i as f32 / 512.0).collect();
                assert_eq!(window.tensor().to_vec(), must, "life {life}, window {which}");
                window.tensor().fill(-1.0);
            }
            // The peer may write again when it knows that this is over.
            tilewire::barrier(link).run()?;
        }
        drop((launch, posted));
        match life % 2 {
            0 => drop((first, second)),
            _ => drop((second, first)),
        }
    }
    Ok(())
}

#[test]
fn two_windows_in_flight_live_twenty_lives() {
    run(3, |world| {
        let link = ShmTransport::rendezvous(world, of_sets(3))?;
        lifecycles(world, &link)?;
        Ok(link.close()?)
    });
}

#[test]
fn two_posted_windows_in_flight_live_twenty_lives() {
    for seed in [None, Some(7)] {
        run(3, |world| {
            let domains = Some(vec![vec![0, 1], vec![2]]);
            let options = MeshOptions { domains, sizes: of_sets(2), seed, ..MeshOptions::default() };
            let link = MeshTransport::rendezvous(world, options)?;
            let far = link.endpoint_of(world.next(), &LineSet::numbered(2)).expect("it is reached");
            assert_eq!(matches!(far.there, There::Posted(_)), world.rank().number() > 0);
            lifecycles(world, &link)?;
            Ok(link.close()?)
        });
    }
}

/// The same kernel is decided to be right where each window has its lines, and is a race where they share them.
#[cfg(feature = "check")]
#[test]
fn windows_that_share_their_lines_are_found() {
    use tilewire::rehearsal::Rehearsal;
    use tilewire::transport::layout::Geometry;
    for (sets, domains) in [(2, &[&[0usize, 1][..]][..]), (2, &[&[0], &[1]]), (0, &[&[0, 1]]), (0, &[&[0], &[1]])] {
        let geometry = Geometry {
            world_size: 2,
            per_peer_bytes: 4096,
            max_blocks_per_peer: 4,
            max_slots: 2,
            max_copies: 2,
            packet_bytes: 0,
            window_sets: sets,
        };
        let tensors = || -> Vec<Tensor<f32>> { (0..2).map(|_| Tensor::zeros(LEN)).collect() };
        let [windows, inputs, outboxes] = [(); 3].map(|()| [tensors(), tensors()]);
        let report = Rehearsal::new(geometry).mesh(domains).check(3, |link, _| {
            let [first, second] = windows.each_ref().map(|tensors| link.window(tensors));
            let mine = |all: &[Vec<Tensor<f32>>; 2]| all.each_ref().map(|all| all[link.number() as usize].clone());
            at_once(link, &[&first, &second], [&mine(&inputs), &mine(&outboxes)]).map(|(traced, _)| traced)
        });
        let report = report.unwrap();
        assert_eq!(report.is_clean(), sets == 2, "{report}");
        assert!(sets == 0 || report.is_decided(), "{report}");
    }
}

#[test]
fn a_window_sees_no_signal_of_one_that_had_its_lines_before() {
    run(2, |world| {
        let link = ShmTransport::rendezvous(world, of_sets(1))?;
        let (me, peer) = (world.rank().number(), world.next().number());
        let exchange = |first: bool| -> Result<u32, RankError> {
            let window = Window::<u32>::allocate(&link, 4)?;
            let (x, y) = (Tensor::from_slice(&[7u32; 4]), Tensor::<u32>::zeros(4));
            let puts = Puts::new(&link, &window)?;
            let source = puts.source(&x)?;
            let traced = kernel("one too many", |k| {
                let (ops, x, y) = (puts.ops(k), source.bind(k), k.output(&y));
                k.main(|r| match me {
                    0 => {
                        ops.to(peer, 0).from(x, 0, 16).signal(0).put_block_direct(r);
                        if first {
                            ops.signal(r, peer, 0);
                        }
                    }
                    _ => {
                        ops.wait_signal_from(r, peer, 0);
                        r.each(4, |i| y.store(i, ops.own().get::<u32>(0, i * 4)));
                    }
                });
            })?;
            let mut launch = Launch::new(&link, &traced)?;
            if me == 0 && !first {
                // Long enough for the other rank to take a signal that is left.
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            launch.run()?;
            Ok(y.get(3))
        };
        let expected = if me == 0 { 0 } else { 7 };
        assert_eq!([exchange(true)?, exchange(false)?], [expected; 2]);
        Ok(link.close()?)
    });
}

#[test]
fn windows_of_another_transport_use_the_lines_of_this_one() {
    run(2, |world| {
        for sets in [0, 1, 2] {
            let here = ShmTransport::rendezvous(world, of_sets(sets))?;
            let there = ShmTransport::rendezvous(world, of_sets(2))?;
            let windows = [Window::<u32>::allocate(&there, 2)?, Window::<u32>::allocate(&here, 2)?];
            let x = Tensor::from_slice(&[world.rank().number() + 1]);
            for _ in 0..3 {
                for window in &windows {
                    let out = window.tensor();
                    out.fill(0);
                    all_gather(&here, out, &x).window(window).build()?.run()?;
                    assert_eq!(out.to_vec(), [1, 2], "{sets} sets");
                    // Nobody fills before all have compared.
                    world.bootstrap().barrier("next", world.deadline())?;
                }
            }
            drop(windows);
            here.close()?;
            there.close()?;
        }
        Ok(())
    });
}
