//! Several prepared operations that one rank launches in another order than the others, plainly and captured in a
//! graph: the bytes are right, or all ranks get an error, and none because a deadline passed.

use anyhow::{Result, bail, ensure};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewire::collective::PreparedExchange;
use tilewire::cuda::Device;
use tilewire::link::{NvlOptions, NvlTransport, Transport, Window};
use tilewire::transport::{Rank, RankError, World};
use tilewire::{Primitive, RunError, Tensor, all_gather, all_reduce, all_to_all, recv, send, sendrecv};
use tilewire_testkit::random::Random;

/// Only a hang reaches it.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longer than detection takes.
const SOON: Duration = Duration::from_secs(15);
/// Detection takes less than a second, or more on a busy machine.
const FOUND: Duration = Duration::from_secs(3);

/// An operation. There are few of them, since every text is assembled once.
#[derive(Clone, Copy, Debug)]
enum Spec {
    /// In packets.
    SmallReduce,
    /// The same kernel with other tensors.
    SameReduce,
    /// In two phases, through slots.
    LargeReduce,
    Gather,
    StagedSwap,
    Shift,
}

const SPECS: [Spec; 6] =
    [Spec::SmallReduce, Spec::SameReduce, Spec::LargeReduce, Spec::Gather, Spec::StagedSwap, Spec::Shift];

/// An operation of one rank, and its expected result.
struct Made<'l> {
    op: PreparedExchange<'l>,
    out: Tensor<u32>,
    expected: Vec<u32>,
}

fn make<'l>(device: &Arc<Device>, link: &'l NvlTransport, number: usize, spec: Spec) -> Result<Made<'l>> {
    let (me, ranks) = (link.rank().index(), link.world_size());
    let of = |rank: usize, i: usize| (number as u32 + 1) * 1_000_003 + rank as u32 * 10_007 + i as u32;
    let sum = |i: usize| (0..ranks).map(|rank| of(rank, i)).fold(0u32, u32::wrapping_add);
    let len = match spec {
        Spec::SmallReduce | Spec::SameReduce => 600,
        Spec::LargeReduce => 300_000,
        Spec::Gather => 100,
        Spec::StagedSwap => 5000,
        Spec::Shift => 700,
    };
    let (next, previous) = (link.rank().after(1, ranks), link.rank().after(ranks - 1, ranks));
    let (inp_len, expected): (usize, Vec<u32>) = match spec {
        Spec::SmallReduce | Spec::SameReduce | Spec::LargeReduce => (len, (0..len).map(sum).collect()),
        Spec::Gather => (len, (0..len * ranks).map(|i| of(i / len, i % len)).collect()),
        Spec::StagedSwap => (len * ranks, (0..len * ranks).map(|i| of(i / len, me * len + i % len)).collect()),
        Spec::Shift => (len, (0..len).map(|i| of(previous.index(), i)).collect()),
    };
    let inp = device.tensor(&(0..inp_len).map(|i| of(me, i)).collect::<Vec<_>>())?;
    let out = device.zeros::<u32>(expected.len())?;
    let op = match spec {
        Spec::SmallReduce | Spec::SameReduce | Spec::LargeReduce => {
            all_reduce(link, &out, &inp).deadline(DEADLINE).build()?
        }
        Spec::Gather => all_gather(link, &out, &inp).deadline(DEADLINE).build()?,
        Spec::StagedSwap => all_to_all(link, &out, &inp).primitive(Primitive::Staged).deadline(DEADLINE).build()?,
        Spec::Shift => sendrecv(link, &out, &inp, next, previous).deadline(DEADLINE).build()?,
    };
    Ok(Made { op, out, expected })
}

/// Runs one random program. Returns true if its launches were in the same order on all ranks.
pub fn program(device: &Arc<Device>, seed: u64, captured: bool) -> Result<bool> {
    let mut random = Random::new(seed);
    let mut below = |n: usize| random.below(n);
    let ranks = 2 + below(2);
    let options = NvlOptions {
        per_peer_bytes: Some(1 << 20),
        packet_bytes: Some(1 << 20),
        max_blocks_per_peer: Some(16),
        ..NvlOptions::default()
    };
    let links = NvlTransport::virtual_ranks(device, ranks, options)?;
    let specs: Vec<Spec> = (0..2 + below(2)).map(|_| SPECS[below(SPECS.len())]).collect();
    let order: Vec<usize> = (0..2 + below(4)).map(|_| below(specs.len())).collect();
    let mut orders = vec![order.clone(); ranks];
    let (a, b) = (below(order.len()), below(order.len()));
    orders[below(ranks)].swap(a, b);
    let same = orders.iter().all(|of| *of == order);
    let mut made = Vec::new();
    for link in &links {
        let of_rank = specs.iter().enumerate().map(|(number, spec)| make(device, link, number, *spec));
        made.push(of_rank.collect::<Result<Vec<_>>>()?);
    }
    // The first launch compares the sides, which a capture must not.
    for number in 0..specs.len() {
        made.iter_mut().try_for_each(|of| of[number].op.run())?;
        made.iter_mut().try_for_each(|of| of[number].op.sync())?;
        made.iter().try_for_each(|of| of[number].out.try_fill(0))?;
    }
    let what = format!("seed {seed}, captured {captured}: {specs:?} by {orders:?}");
    let start = Instant::now();
    let mut errors: Vec<Option<RunError>> = vec![None; ranks];
    let launch = |made: &mut Vec<Vec<Made<'_>>>, errors: &mut Vec<Option<RunError>>| {
        for step in 0..order.len() {
            for rank in 0..ranks {
                if errors[rank].is_none() {
                    errors[rank] = made[rank][orders[rank][step]].op.run().err();
                }
            }
        }
        Ok::<(), RunError>(())
    };
    if captured {
        let streams: Vec<_> = links[1..].iter().map(|link| &link.seat().stream).collect();
        let stream = &links[0].seat().stream;
        let graph = stream.capture::<RunError>(&streams, || launch(&mut made, &mut errors))?;
        if let Some(error) = errors.iter().flatten().next() {
            bail!("{what}: in the capture: {error}");
        }
        for _ in 0..2 {
            graph.replay(stream)?;
        }
        sync(&mut made, &mut errors);
    } else {
        launch(&mut made, &mut errors)?;
        sync(&mut made, &mut errors);
    }
    let failed = errors.iter().flatten().count();
    ensure!(start.elapsed() < SOON, "{what}: it took {:?}", start.elapsed());
    ensure!(failed == 0 || failed == ranks, "{what}: an error on {failed} ranks of {ranks}: {errors:?}");
    for error in errors.iter().flatten() {
        let is_found = matches!(error, RunError::OtherOperation(_) | RunError::Deadlock(_));
        ensure!(!same && is_found, "{what}: {error}");
    }
    if failed == 0 {
        for (rank, of) in made.iter().enumerate() {
            for number in &orders[rank] {
                ensure!(of[*number].out.try_to_vec()? == of[*number].expected, "{what}: wrong bytes on rank {rank}");
            }
        }
    }
    Ok(same)
}

/// Three ranks whose launches wait for each other in a ring, although no two wait for each other: all three get an
/// error that names them, before any deadline.
pub fn ring(device: &Arc<Device>, captured: bool) -> Result<()> {
    const RANKS: usize = 3;
    let links = NvlTransport::virtual_ranks(device, RANKS, NvlOptions::default())?;
    let mut ops = Vec::new();
    for link in &links {
        let (next, previous) = (link.rank().after(1, RANKS), link.rank().after(RANKS - 1, RANKS));
        let (inp, out) = (device.zeros::<u32>(700)?, device.zeros::<u32>(700)?);
        let give = send(link, &inp, next).deadline(DEADLINE).build()?;
        let take = recv(link, &out, previous).deadline(DEADLINE).build()?;
        ops.push((give, take));
    }
    // Once in an order that works: the first launch compares the sides, which a capture must not.
    ops.iter_mut().try_for_each(|(give, _)| give.run())?;
    ops.iter_mut().try_for_each(|(_, take)| take.run())?;
    ops.iter_mut().try_for_each(|(_, take)| take.sync())?;
    let start = Instant::now();
    let mut errors: Vec<Option<RunError>> = vec![None; RANKS];
    let launch = |ops: &mut Vec<(PreparedExchange<'_>, PreparedExchange<'_>)>| {
        ops.iter_mut().try_for_each(|(_, take)| take.run())?;
        ops.iter_mut().try_for_each(|(give, _)| give.run())
    };
    if captured {
        let streams: Vec<_> = links[1..].iter().map(|link| &link.seat().stream).collect();
        let stream = &links[0].seat().stream;
        let graph = stream.capture::<RunError>(&streams, || launch(&mut ops))?;
        graph.replay(stream)?;
    } else {
        launch(&mut ops)?;
    }
    for ((give, take), error) in ops.iter_mut().zip(&mut errors) {
        *error = take.sync().and_then(|()| give.sync()).err();
    }
    ensure!(start.elapsed() < SOON, "a ring, captured {captured}: it took {:?}: {errors:?}", start.elapsed());
    for (rank, error) in errors.iter().enumerate() {
        let Some(RunError::Deadlock(deadlock)) = error else {
            bail!("a ring, captured {captured}: rank {rank}: {error:?}")
        };
        let all = (0..RANKS).all(|rank| deadlock.waiting.iter().any(|waiting| waiting.rank == rank));
        ensure!(all, "a ring, captured {captured}: rank {rank}: {deadlock}");
    }
    Ok(())
}

/// The call in which the host of rank 1 waits while a kernel of rank 0 waits for rank 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostWait {
    /// The first launch of an operation that rank 0 has not built.
    Meeting,
    /// A window that rank 0 has not called for.
    Window,
}

/// All launches, plain and captured.
pub const HOST_WAITS: [(HostWait, bool); 4] =
    [(HostWait::Meeting, false), (HostWait::Meeting, true), (HostWait::Window, false), (HostWait::Window, true)];

/// A kernel of rank 0 waits for a launch of rank 1, whose host waits for rank 0: both get the same error, which names
/// them, before any deadline.
pub fn host(device: &Arc<Device>, waits: HostWait, captured: bool) -> Result<()> {
    let what = format!("{waits:?}, captured {captured}");
    let body = |world: World| -> Result<(RunError, Duration), RankError> {
        let link = NvlTransport::rendezvous(&world, device, NvlOptions::default())?;
        let (x, me, peer) = (device.zeros::<u32>(700)?, world.rank().index(), world.rank().after(1, 2));
        let mut op = if me == 0 { recv(&link, &x, peer).build()? } else { send(&link, &x, peer).build()? };
        // Built while nothing runs: loading a program waits for kernels.
        let second = (me == 1 && waits == HostWait::Meeting).then(|| send(&link, &x, peer).build()).transpose()?;
        op.run()?;
        op.sync()?;
        world.bootstrap().barrier("once", world.deadline())?;
        let start = Instant::now();
        let ended = match waits {
            _ if me == 0 && captured => {
                let stream = &link.seat().stream;
                let graph = stream.capture::<RunError>(&[], || op.run())?;
                graph.replay(stream)?;
                op.sync()
            }
            _ if me == 0 => op.run().and_then(|()| op.sync()),
            HostWait::Meeting => second.map_or(Ok(()), |mut second| second.run()),
            HostWait::Window => Window::<u32>::allocate(&link, 8).map(|_| ()).map_err(RunError::from),
        };
        let after = start.elapsed();
        // Neither drops its transport before the other has been told.
        world.bootstrap().barrier("ended", world.deadline())?;
        Ok((ended.err().ok_or("it ended well")?, after))
    };
    let ends = World::threads(2).deadline(DEADLINE).run(body)?;
    for (rank, (error, after)) in ends.iter().enumerate() {
        let RunError::Deadlock(deadlock) = error else { bail!("{what}: rank {rank}: {error}") };
        let all = (0..2).all(|rank| deadlock.waiting.iter().any(|waiting| waiting.rank == rank));
        ensure!(all && error.to_string() == ends[0].0.to_string(), "{what}: rank {rank}: {error}");
        ensure!(*after < FOUND, "{what}: rank {rank}: it took {after:?}");
    }
    Ok(())
}

/// Kernels of ranks 0 and 1 wait in a chain for rank 2, which never comes, and their deadlines pass at the same time:
/// both name rank 2.
pub fn late(device: &Arc<Device>) -> Result<()> {
    const PATIENCE: Duration = Duration::from_millis(300);
    let body = |world: World| -> Result<Option<RunError>, RankError> {
        let link = NvlTransport::rendezvous(&world, device, NvlOptions::default())?;
        let (x, y, me) = (device.zeros::<u32>(700)?, device.zeros::<u32>(700)?, world.rank());
        let take = (me.index() < 2).then(|| recv(&link, &y, me.after(1, 3)).deadline(PATIENCE).build());
        let give = (me.index() > 0).then(|| send(&link, &x, me.after(2, 3)).build());
        let (mut take, mut give) = (take.transpose()?, give.transpose()?);
        let meet = |name: &str| world.bootstrap().barrier(name, world.deadline());
        meet("built")?;
        // Once with all ranks: a first launch compares the sides.
        for op in [&mut give, &mut take] {
            op.as_mut().map_or(Ok(()), |op| op.run())?;
        }
        for op in [&mut give, &mut take] {
            op.as_mut().map_or(Ok(()), |op| op.sync())?;
        }
        meet("once")?;
        let error = take.as_mut().and_then(|take| take.run().and_then(|()| take.sync()).err());
        meet("ended")?;
        Ok(error)
    };
    let errors = World::threads(3).deadline(DEADLINE).run(body)?;
    for (rank, error) in errors.iter().enumerate().take(2) {
        let late = match error {
            Some(RunError::Timeout(timeout)) => timeout.late.map(Rank::index),
            Some(RunError::PeerFailed { cause, .. }) => cause.late(),
            _ => bail!("rank {rank}: {error:?}"),
        };
        ensure!(late == Some(2), "rank {rank} blames another rank than 2: {error:?}");
    }
    Ok(())
}

fn sync(made: &mut [Vec<Made<'_>>], errors: &mut [Option<RunError>]) {
    for (of, error) in made.iter_mut().zip(errors) {
        for Made { op, .. } in of {
            if let Err(found) = op.sync() {
                error.get_or_insert(found);
            }
        }
    }
}
