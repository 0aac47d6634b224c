//! A transport from outside the library: under its collectives, and beside its own transport in one kernel.

use outside_transport::{OutboxTransport, Outboxes};
use std::time::Duration;
use tilewire::collective::{Host, Launch, Link, RunError};
use tilewire::hook::Regs;
use tilewire::schedule::{Packing, StagedPlan, Tiling, recv_tiles, send_tiles};
use tilewire::transport::{AbortCode, P2pTransport, Protocol, Rank, RankError, ShmOptions, ShmTransport, WorldError};
use tilewire::{Bf16, Config, Primitive, Tensor, World, kernel, recv, send, sendrecv};

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
        Config::default(),
        Config { primitive: Some(Primitive::Packet), ..Config::default() },
        Config { blocks: Some(2), slot_bytes: Some(128), depth: Some(3), ..Config::default() },
        Config { primitive: Some(Primitive::Bulk), slot_bytes: Some(64), depth: Some(4), ..Config::default() },
    ];
    ranks(3, |world, link| {
        let (me, to, from) = (world.rank(), world.rank().after(1, 3), world.rank().after(2, 3));
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
        let (me, peer) = (world.rank(), world.rank().after(1, 2));
        let x = Tensor::<f32>::zeros(100);
        let staged = Config { primitive: Some(Primitive::Staged), slot_bytes: Some(1024), ..Config::default() };
        fill(&x, Rank::new(0), 0);
        if me.index() == 0 {
            send(link, &x, peer).config(staged).run()?;
            assert_eq!(link.outbox(peer).read()[..400], x.memory().read());
        } else {
            x.fill(0.0);
            recv(link, &x, peer).config(staged).run()?;
            assert_from(&x, peer, 0, 1.0);
            assert!(link.outbox(peer).read().iter().all(|&byte| byte == 0));
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn slots_fill_the_staging_to_its_last_byte() {
    // Two blocks of four slots of 56 elements: what is delivered of the last must not go beyond.
    let outboxes = Outboxes::new(2, 1792).unwrap();
    let staged = Config { blocks: Some(2), slot_bytes: Some(224), depth: Some(4), ..Config::default() };
    let shift = |world: World| -> Result<(), RankError> {
        let link = outboxes.join(&world, Duration::from_secs(20));
        let peer = world.rank().after(1, 2);
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
        let peer = world.rank().after(1, 2);
        let (inp, out) = (Tensor::<f32>::zeros(10), Tensor::<f32>::zeros(10 + world.rank().index()));
        Ok(sendrecv(link, &out, &inp, peer, peer).run().unwrap_err())
    });
    for error in errors.unwrap() {
        assert!(matches!(error, RunError::Mismatch(_)), "{error}");
        assert!(error.to_string().contains("the number of elements"), "{error}");
    }
}

/// A kernel that sends over one transport and receives over another.
fn over_two<'l, S: Link, R: Link>(
    (out_link, inp_link): (&'l S, &'l R),
    (out, inp): (&Tensor<f32>, &Tensor<f32>),
    peer: Rank,
    deadline: Duration,
) -> Result<Launch<'l>, RunError> {
    let (slot_bytes, depth, blocks) = (256, 2, 2);
    let protocol = Protocol::Staged { slot_bytes, depth };
    let (tiling, packing) = (Tiling::flat(inp.len(), 128, blocks), Packing::new(Bf16::TYPES, 128));
    let traced = kernel("over two", |k| {
        k.blocks(blocks as u32);
        let (x, y) = (k.input(inp), k.output(out));
        let (tx, rx) = (out_link.sender(k, peer, protocol, None), inp_link.receiver(k, peer, protocol));
        k.role("send", 4).run(|r| {
            let plan = StagedPlan::new(out_link, slot_bytes, depth, blocks).unwrap();
            send_tiles::<Bf16>(r, &tx, plan, tiling, packing, |at| (x.load(at.pos) / 4096.0).cast());
        });
        k.role("receive", 4).run(|r| {
            let plan = StagedPlan::new(inp_link, slot_bytes, depth, blocks).unwrap();
            recv_tiles::<Bf16>(r, &rx, plan, tiling, packing, |at, x| y.store(at.pos, x.cast::<f32>()));
        });
    })?;
    Launch::with_deadline(&[out_link as &dyn Host, inp_link], &traced, Some(deadline))
}

#[test]
fn one_kernel_sends_over_one_transport_and_receives_over_another() {
    ranks(2, |world, outside| {
        let shm = ShmTransport::rendezvous(world, ShmOptions::default())?;
        let (me, peer) = (world.rank(), world.rank().after(1, 2));
        let (inp, out) = (Tensor::<f32>::zeros(3000), Tensor::<f32>::zeros(3000));
        let deadline = Duration::from_secs(20);
        // What rank 0 sends goes through shared memory, what rank 1 sends through its outbox.
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
        let peer = world.rank().after(1, 2);
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
