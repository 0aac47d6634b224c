//! A transport from outside the library: under the library's collectives, and beside the library's own transport in one
//! kernel.

use outside_transport::{OutboxTransport, Outboxes};
use std::time::Duration;
use tilewire::collective::{Launch, RunError};
use tilewire::link::{AnyTransport, ShmOptions, ShmTransport, Staged, Tensors, Transport, Window};
use tilewire::tensor::bytes_of;
use tilewire::transport::{AbortCode, Rank, RankError, WorldError};
use tilewire::{
    Bf16, Knobs, Primitive, Tensor, World, all_gather, all_reduce, all_to_all, barrier, broadcast, gather, kernel,
    recv, reduce_scatter, scatter, send, sendrecv,
};

fn ranks<R: Send>(
    count: usize,
    body: impl Fn(&World, &OutboxTransport) -> Result<R, RankError> + Sync,
) -> Result<Vec<R>, WorldError> {
    let outboxes = Outboxes::new(count, 16 << 10).unwrap();
    World::threads(count).run(|world| body(&world, &outboxes.join(&world, Duration::from_secs(20))))
}

fn element(rank: Rank, launch: usize, i: usize) -> f32 {
    (rank.index() * 100_000 + launch * 10_000 + i) as f32
}

fn fill(tensor: &Tensor<f32>, rank: Rank, launch: usize) {
    (0..tensor.len()).for_each(|i| tensor.set(i, element(rank, launch, i)));
}

#[track_caller]
fn assert_from(tensor: &Tensor<f32>, rank: Rank, launch: usize, factor: f32) {
    (0..tensor.len()).for_each(|i| assert_eq!(tensor.get(i), element(rank, launch, i) * factor, "element {i}"));
}

#[test]
fn collectives_run_over_it_with_hooks_and_by_every_protocol_it_carries() {
    let ways = [
        Knobs::default(),
        Knobs { primitive: Some(Primitive::Packet), ..Knobs::default() },
        Knobs { blocks: Some(2), slot_bytes: Some(128), depth: Some(3), ..Knobs::default() },
        Knobs { primitive: Some(Primitive::Bulk), slot_bytes: Some(64), depth: Some(4), ..Knobs::default() },
    ];
    ranks(3, |world, link| {
        let (me, to, from) = (world.rank(), world.next(), world.previous());
        for config in ways {
            let len = if config.primitive.is_some() { 16 } else { 1000 };
            let (inp, out) = (Tensor::<f32>::zeros(len), Tensor::<f32>::zeros(len));
            let hook = sendrecv(link, &out, &inp, to, from).config(config);
            let mut shift = hook.produce(|c| c.input.load(c.pos()) * 2.0).build()?;
            for launch in 0..5 {
                fill(&inp, me, launch);
                shift.run()?;
                assert_from(&out, from, launch, 2.0);
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_is_put_waits_in_the_outbox() {
    ranks(2, |world, link| {
        let (me, peer) = (world.rank(), world.next());
        let x = Tensor::<f32>::zeros(100);
        let staged = Knobs { primitive: Some(Primitive::Staged), slot_bytes: Some(1024), ..Knobs::default() };
        fill(&x, Rank::new(0), 0);
        if me.index() == 0 {
            send(link, &x, peer).config(staged).run()?;
            assert_eq!(bytes_of(link.outbox(peer)).unwrap()[..400], bytes_of(x.memory()).unwrap());
        } else {
            x.fill(0.0);
            recv(link, &x, peer).config(staged).run()?;
            assert_from(&x, peer, 0, 1.0);
            assert!(bytes_of(link.outbox(peer)).unwrap().iter().all(|&byte| byte == 0));
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn slots_fill_the_staging_to_its_last_byte() {
    // Two blocks of four slots of 56 elements. The delivery of the last slot must not reach beyond it.
    let outboxes = Outboxes::new(2, 1792).unwrap();
    let staged = Knobs { blocks: Some(2), slot_bytes: Some(224), depth: Some(4), ..Knobs::default() };
    let shift = |world: World| -> Result<(), RankError> {
        let link = outboxes.join(&world, Duration::from_secs(20));
        let peer = world.next();
        let (inp, out) = (Tensor::<f32>::zeros(1000), Tensor::<f32>::zeros(1000));
        fill(&inp, world.rank(), 0);
        sendrecv(&link, &out, &inp, peer, peer).config(staged).run()?;
        assert_from(&out, peer, 0, 1.0);
        Ok(())
    };
    World::threads(2).run(shift).unwrap();
}

#[test]
fn the_two_sides_are_compared() {
    let errors = ranks(2, |world, link| {
        let peer = world.next();
        let (inp, out) = (Tensor::<f32>::zeros(10), Tensor::<f32>::zeros(10 + world.rank().index()));
        Ok(sendrecv(link, &out, &inp, peer, peer).run().unwrap_err())
    });
    for error in errors.unwrap() {
        assert!(matches!(error, RunError::Mismatch(_)), "{error}");
        assert!(error.to_string().contains("the number of elements"), "{error}");
    }
}

/// A kernel that sends over one transport and receives over another.
fn over_two<'l>(
    (out_link, inp_link): (&'l dyn Transport, &'l dyn Transport),
    (out, inp): (&Tensor<f32>, &Tensor<f32>),
    peer: Rank,
    deadline: Duration,
) -> Result<Launch<'l>, RunError> {
    let leg = |link| Staged::<Bf16>::new(link, inp.len()).tile(128).depth(2).blocks(2).with(peer);
    let (to, from) = (leg(out_link)?, leg(inp_link)?);
    let traced = kernel("over two", |k| {
        k.blocks(2);
        let (x, y) = (k.input(inp), k.output(out));
        let (tx, rx) = (to.sender(k), from.receiver(k));
        k.role("send", 4).run(|r| tx.send(r, |at| (x.load(at.pos) / 4096.0).cast()));
        k.role("receive", 4).run(|r| rx.recv(r, |at, x| y.store(at.pos, x.cast::<f32>())));
    })?;
    Launch::with_deadline(&[out_link, inp_link], &traced, Some(deadline))
}

#[test]
fn one_kernel_sends_over_one_transport_and_receives_over_another() {
    ranks(2, |world, outside| {
        let shm = ShmTransport::rendezvous(world, ShmOptions::default())?;
        let (me, peer) = (world.rank(), world.next());
        let (inp, out) = (Tensor::<f32>::zeros(3000), Tensor::<f32>::zeros(3000));
        let deadline = Duration::from_secs(20);
        // Rank 0 sends through shared memory, and rank 1 through its outbox.
        let mut swap = match me.index() {
            0 => over_two((&shm, outside), (&out, &inp), peer, deadline)?,
            _ => over_two((outside, &shm), (&out, &inp), peer, deadline)?,
        };
        for launch in 0..20 {
            fill(&inp, me, launch);
            swap.run()?;
            for i in 0..out.len() {
                let must = Bf16::from_f32(element(peer, launch, i) / 4096.0).to_f32();
                assert_eq!(out.get(i), must, "element {i} of launch {launch}");
            }
        }
        drop(swap);
        Ok(shm.close()?)
    })
    .unwrap();
}

#[test]
fn a_launch_over_two_transports_that_fails_breaks_both() {
    ranks(2, |world, outside| {
        let shm = ShmTransport::rendezvous(world, ShmOptions::default())?;
        let peer = world.next();
        let (inp, out) = (Tensor::<f32>::zeros(300), Tensor::<f32>::zeros(300));
        if world.rank().index() == 0 {
            let mut swap = over_two((&shm, outside), (&out, &inp), peer, Duration::from_millis(100))?;
            let error = swap.run().unwrap_err();
            let RunError::Timeout(timeout) = &error else { panic!("{error}") };
            assert_eq!((timeout.rank, timeout.peer), (world.rank(), Some(peer)), "{error}");
        }
        world.bootstrap().barrier("failed", world.deadline())?;
        for broken in [shm.broken(), outside.broken()] {
            let cause = broken.expect("broken on both ranks");
            assert_eq!((cause.code, cause.rank), (AbortCode::TimedOut, 0));
        }
        let error = send(outside, &inp, peer).run().unwrap_err();
        assert!(matches!(error, RunError::PeerFailed { .. }), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_rank_that_fails_ends_the_waits_of_the_others() {
    let error = ranks(2, |world, link| {
        let x = Tensor::<f32>::zeros(300);
        if world.rank().index() == 1 {
            std::mem::forget(send(link, &x, Rank::new(0)).build()?);
            return Err("no more".into());
        }
        let error = recv(link, &x, Rank::new(1)).deadline(None).run().unwrap_err();
        assert!(error.to_string().contains("rank 1"), "{error}");
        Err::<(), _>(error.into())
    });
    assert_eq!(error.unwrap_err().to_string(), "rank 1 failed: no more");
}

#[test]
fn every_collective_and_transfer_runs_over_any_transport_and_into_its_windows() {
    const RANKS: usize = 3;
    let outboxes = Outboxes::new(RANKS, 16 << 10).unwrap();
    let run = |world: World| -> Result<(), RankError> {
        let links = [
            AnyTransport::new(outboxes.join(&world, Duration::from_secs(20))),
            AnyTransport::from(ShmTransport::rendezvous(&world, ShmOptions::default())?),
        ];
        for link in links {
            let me = world.rank().index();
            let root = Rank::new(1);
            // Every element of chunk c of the input of rank r is 10 r + c.
            for chunk in [5, 700] {
                let chunks = |of: &dyn Fn(usize) -> f32| -> Vec<f32> {
                    (0..RANKS).flat_map(|c| std::iter::repeat_n(of(c), chunk)).collect()
                };
                let own = |r: usize, c: usize| (10 * r + c) as f32;
                let whole = link.tensor(&chunks(&|c| own(me, c)))?;
                let one = link.tensor(&vec![own(me, 0); chunk])?;
                let (long, short) = (link.zeros::<f32>(RANKS * chunk)?, link.zeros::<f32>(chunk)?);
                let same = |tensor: &Tensor<f32>, must: Vec<f32>| assert_eq!(tensor.to_vec(), must, "{chunk} elements");

                all_to_all(&link, &long, &whole).run()?;
                same(&long, chunks(&|c| own(c, me)));
                all_gather(&link, &long, &one).produce(|c| c.input.load(c.pos()) + 1.0).run()?;
                same(&long, chunks(&|c| own(c, 0) + 1.0));
                reduce_scatter(&link, &short, &whole).run()?;
                same(&short, vec![(0..RANKS).map(|r| own(r, me)).sum(); chunk]);
                all_reduce(&link, &long, &whole).run()?;
                same(&long, chunks(&|c| (0..RANKS).map(|r| own(r, c)).sum()));
                scatter(&link, &short, &whole, root).run()?;
                same(&short, vec![own(root.index(), me); chunk]);
                long.fill(-1.0);
                gather(&link, &long, &one, root).run()?;
                same(&long, chunks(&|c| if me == root.index() { own(c, 0) } else { -1.0 }));
                broadcast(&link, &one, &one, root).run()?;
                same(&one, vec![own(root.index(), 0); chunk]);

                // Between pairs: round the ring, and from rank 0 to rank 1 alone.
                let (next, previous) = (world.next(), world.previous());
                let mine = link.tensor(&vec![own(me, 7); chunk])?;
                sendrecv(&link, &short, &mine, next, previous).produce(|c| -c.input.load(c.pos())).run()?;
                same(&short, vec![-own(previous.index(), 7); chunk]);
                match me {
                    0 => send(&link, &mine, Rank::new(1)).run()?,
                    1 => {
                        recv(&link, &short, Rank::new(0)).consume(|c, x| c.output.store(c.pos(), x + 0.5)).run()?;
                        same(&short, vec![own(0, 7) + 0.5; chunk]);
                    }
                    _ => {}
                }

                // In one hop, into a window that this transport made.
                let window = Window::<f32>::allocate(&link, RANKS * chunk)?;
                let direct = all_to_all(&link, window.tensor(), &whole).window(&window);
                assert!(direct.explain()?.contains("direct"), "{}", direct.explain()?);
                direct.run()?;
                same(window.tensor(), chunks(&|c| own(c, me)));
                let shift = sendrecv(&link, window.tensor(), &whole, next, previous).window(&window);
                shift.produce(|c| c.input.load(c.pos()) * 2.0).run()?;
                same(window.tensor(), chunks(&|c| 2.0 * own(previous.index(), c)));
            }
            barrier(&link).run()?;
            link.close()?;
        }
        Ok(())
    };
    World::threads(RANKS).run(run).unwrap();
}

#[test]
fn it_writes_straight_into_windows_of_its_own() {
    ranks(3, |world, link| {
        let (me, chunk) = (world.rank().index(), 500);
        // The lengths of windows may differ. The error about one that is too short names its rank.
        let short = Window::<f32>::allocate(link, if me == 2 { 1 } else { 3 * chunk })?;
        let inp = Tensor::from_fn(3 * chunk, |i| (1000 * me + i) as f32);
        if me == 0 {
            let error =
                sendrecv(link, short.tensor(), &inp, Rank::new(2), Rank::new(1)).window(&short).trace().unwrap_err();
            assert!(error.to_string().contains("the window of rank 2 has 4 bytes"), "{error}");
        }
        let window = Window::<f32>::allocate(link, 3 * chunk)?;
        for launch in 0..3 {
            inp.set(0, launch as f32);
            all_to_all(link, window.tensor(), &inp).window(&window).run()?;
            let must = |i: usize| match (i / chunk, me * chunk + i % chunk) {
                (_, 0) => launch as f32,
                (from, at) => (1000 * from + at) as f32,
            };
            let out = window.tensor().to_vec();
            (0..3 * chunk).for_each(|i| assert_eq!(out[i], must(i), "element {i} of launch {launch}"));
        }
        Ok(())
    })
    .unwrap();
}
