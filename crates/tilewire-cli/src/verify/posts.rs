//! Virtual GPU ranks in domains that post to each other: a captured graph of several collectives, replayed with new
//! data, a message much larger than all staging, and launches that cannot succeed.

use crate::run::Mesh;
use anyhow::{Context, Result, bail, ensure};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewire::collective::{Launch, PreparedExchange};
use tilewire::cuda::Device;
use tilewire::link::{MeshTransport, NvlOptions, Transport};
use tilewire::transport::{PeerEndpoint, Rank, There};
use tilewire::{Knobs, RunError, Tensor, all_reduce, all_to_all, kernel, recv, send, sendrecv};

/// Elements that one rank sends to another in an all-to-all: an odd number, in more than one slot.
const CHUNK: usize = 1001;
/// Elements of an all-reduce.
const REDUCED: usize = 3003;

/// The tensors of one rank: in and out of each collective.
struct Tensors {
    to_all: (Tensor<u32>, Tensor<u32>),
    sum: (Tensor<f32>, Tensor<f32>),
}

/// Replays a graph of an all-to-all and an all-reduce of all ranks this many times with new data, with an occasional
/// plain launch in between.
pub fn replays(device: &Arc<Device>, mesh: &Mesh, ranks: usize, replays: u64) -> Result<()> {
    let links = mesh.virtual_ranks(device, ranks, small())?;
    // Small slots: a launch takes several steps, and successive ones use different places.
    let config = Knobs { blocks: Some(2), slot_bytes: Some(1024), ..Knobs::default() };
    let (mut tensors, mut ops) = (Vec::new(), Vec::new());
    for link in &links {
        let to_all = (device.zeros(ranks * CHUNK)?, device.zeros(ranks * CHUNK)?);
        let sum = (device.zeros(REDUCED)?, device.zeros(REDUCED)?);
        let it = Tensors { to_all, sum };
        ops.push(all_to_all(link, &it.to_all.1, &it.to_all.0).config(config).build()?);
        ops.push(all_reduce(link, &it.sum.1, &it.sum.0).config(config).build()?);
        tensors.push(it);
    }
    // The first launch compares the ranks, which a capture must not.
    run_all(&mut ops)?;
    let streams: Vec<_> = links.iter().filter_map(|link| Some(&link.seat()?.stream)).collect();
    let graph = streams[0].capture::<RunError>(&streams[1..], || ops.iter_mut().try_for_each(|op| op.run()))?;
    for turn in 0..replays {
        for (me, of) in tensors.iter().enumerate() {
            of.to_all.0.try_copy_from(&(0..ranks).flat_map(|to| chunk(turn, me, to)).collect::<Vec<_>>())?;
            of.sum.0.try_copy_from(&(0..REDUCED).map(|i| number(turn, me, i)).collect::<Vec<_>>())?;
            // Often enough to detect a launch that does nothing.
            if turn % 16 == 0 {
                of.to_all.1.try_fill(u32::MAX)?;
                of.sum.1.try_fill(-1.0)?;
            }
        }
        if turn % 100 == 99 {
            run_all(&mut ops)?;
        } else {
            graph.replay(streams[0])?;
        }
        // The values are whole numbers, whose sum is the same in any order.
        let sum = |i: usize| (0..ranks).map(|rank| number(turn, rank, i)).sum::<f32>();
        for (me, of) in tensors.iter().enumerate() {
            let all = (0..ranks).flat_map(|from| chunk(turn, from, me));
            ensure!(of.to_all.1.try_to_vec()?.into_iter().eq(all), "replay {turn}: the all-to-all of rank {me}");
            let sums = (0..REDUCED).map(sum);
            ensure!(of.sum.1.try_to_vec()?.into_iter().eq(sums), "replay {turn}: the all-reduce of rank {me}");
        }
    }
    drop((graph, ops));
    let carried: u64 = links.iter().map(MeshTransport::carried_bytes).sum();
    ensure!(carried > 0, "nothing has gone by posts");
    Ok(())
}

/// A kernel of rank 0 posts for a control line that it may not move, while all other ranks wait. Every rank must get
/// the cause immediately.
pub fn bad_post(device: &Arc<Device>, mesh: &Mesh, ranks: usize) -> Result<()> {
    let links = mesh.virtual_ranks(device, ranks, small())?;
    let Some(far) = Rank::all(ranks).find(|&peer| links[0].is_far(peer)) else { return Ok(()) };
    let start = Instant::now();
    let mut launches = Vec::new();
    for link in [&links[0], &links[far.index()]] {
        let peer = if link.rank().index() == 0 { far } else { Rank::new(0) };
        let endpoint = link.endpoint(peer).context("a peer")?;
        let There::Posted(posted) = &endpoint.there else { bail!("rank {peer} is not far") };
        let traced = kernel("bad", |k| {
            let queue = k.queue("posts", posted.queue.clone());
            let tail = k.slots("tail", std::slice::from_ref(&endpoint.here.signals.tail), PeerEndpoint::SLOT_STRIDE);
            k.role("wait", 1).run(|r| {
                if link.rank().index() == 0 {
                    r.post_signal(queue, i64::from(far.number()), 1i64 << 19, 1i64);
                }
                r.wait(tail.slot(0i64, 0i64), 1i64);
            });
        })?;
        launches.push(Launch::new(link, &traced)?);
    }
    launches.iter_mut().try_for_each(|launch| launch.run())?;
    let errors: Vec<RunError> = launches.iter_mut().filter_map(|launch| launch.sync().err()).collect();
    let [own, other] = &errors[..] else { bail!("{} of 2 ranks were told", errors.len()) };
    ensure!(own.to_string().contains("control line 524288"), "rank 0: {own}");
    let by_rank_0 = matches!(other, RunError::PeerFailed { cause, .. } if cause.rank == 0);
    ensure!(by_rank_0, "rank {far}: {other}");
    ensure!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
    Ok(())
}

/// A far peer that never comes: the rank reports within its deadline whom it waited for.
pub fn missing_peer(device: &Arc<Device>, mesh: &Mesh, ranks: usize) -> Result<()> {
    let links = mesh.virtual_ranks(device, ranks, small())?;
    let Some(far) = Rank::all(ranks).find(|&peer| links[0].is_far(peer)) else { return Ok(()) };
    let (x, y) = (device.zeros::<u32>(1000)?, device.zeros::<u32>(1000)?);
    let mut take = recv(&links[0], &y, far).deadline(Duration::from_millis(300)).build()?;
    let _never = send(&links[far.index()], &x, Rank::new(0)).build()?;
    take.run()?;
    let error = take.sync().err().context("a receive without a send succeeds")?;
    let RunError::Timeout(timeout) = &error else { bail!("another error than a timeout: {error}") };
    ensure!(timeout.peer == Some(far), "{error}");
    ensure!(links.iter().all(|link| link.broken().is_some()), "the transport is not broken");
    Ok(())
}

/// Blocks and slots of a large message.
const BLOCKS: usize = 4;
const SLOT: usize = 128 << 10;

/// A message both ways between two ranks that post to each other. A GiB takes 2048 steps in every block.
pub fn large(device: &Arc<Device>, mesh: &Mesh, ranks: usize, bytes: usize) -> Result<()> {
    let links = mesh.virtual_ranks(device, ranks, NvlOptions::default())?;
    let far = Rank::all(ranks).find(|&peer| links[0].is_far(peer));
    let Some(far) = far else { return Ok(()) };
    let (ends, len) = ([Rank::new(0), far], bytes / 8);
    let number = |from: Rank, i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(from.number()) << 60;
    let (mut tensors, mut ops) = (Vec::new(), Vec::new());
    for (me, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        let x = device.tensor(&(0..len).map(|i| number(me, i)).collect::<Vec<_>>())?;
        let y = device.zeros::<u64>(len)?;
        let config = Knobs { blocks: Some(BLOCKS), slot_bytes: Some(SLOT), ..Knobs::default() };
        ops.push(sendrecv(&links[me.index()], &y, &x, peer, peer).config(config).build()?);
        tensors.push((peer, y, x));
    }
    run_all(&mut ops)?;
    for (peer, y, _) in &tensors {
        let wrong = y.try_to_vec()?.into_iter().enumerate().find(|&(i, x)| x != number(*peer, i));
        ensure!(wrong.is_none(), "{bytes} bytes from rank {peer}: element {wrong:?}");
    }
    Ok(())
}

fn run_all(ops: &mut [PreparedExchange<'_>]) -> Result<()> {
    ops.iter_mut().try_for_each(|op| op.run())?;
    Ok(ops.iter_mut().try_for_each(|op| op.sync())?)
}

fn chunk(turn: u64, from: usize, to: usize) -> impl Iterator<Item = u32> {
    let seed = turn * 7919 + (from * 101 + to * 13) as u64;
    (0..CHUNK as u64).map(move |i| (seed + i * 31) as u32)
}

fn number(turn: u64, rank: usize, i: usize) -> f32 {
    ((turn * 37 + rank as u64 * 11 + i as u64) % 1000) as f32
}

fn small() -> NvlOptions {
    NvlOptions {
        per_peer_bytes: Some(1 << 20),
        packet_bytes: Some(1 << 20),
        max_blocks_per_peer: Some(8),
        ..NvlOptions::default()
    }
}
