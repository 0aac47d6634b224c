//! Captured transfers, replayed many times without a reset, with new data each time; and launches that cannot succeed.

use anyhow::{Context, Result, bail, ensure};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewire::cuda::{CudaError, Device};
use tilewire::link::{NvlOptions, NvlTransport, Transport};
use tilewire::transport::Rank;
use tilewire::{Knobs, Primitive, RunError, Tensor, recv, send, sendrecv};

/// Two ranks exchange in packets and in slots, both in one graph, `replays` times, with a plain launch in between now
/// and then.
pub fn replays(device: &Arc<Device>, replays: u64) -> Result<()> {
    let ranks = NvlTransport::virtual_ranks(device, 2, small())?;
    let len = 1000;
    let tensors = (0..4).map(|_| Ok((device.zeros::<u32>(len)?, device.zeros::<u32>(len)?)));
    let tensors: Vec<(Tensor<u32>, Tensor<u32>)> = tensors.collect::<Result<_, CudaError>>()?;
    let mut ops = Vec::new();
    for (k, (x, y)) in tensors.iter().enumerate() {
        let (link, peer) = (&ranks[k % 2], Rank::new(1 - k as u32 % 2));
        let primitive = if k < 2 { Primitive::Packet } else { Primitive::Staged };
        // Small slots: successive replays use different places.
        let slot_bytes = (k >= 2).then_some(512);
        let config = Knobs { primitive: Some(primitive), blocks: Some(2), slot_bytes, ..Knobs::default() };
        ops.push(sendrecv(link, y, x, peer, peer).config(config).build()?);
    }
    // The first launch compares the sides, which a capture must not.
    ops.iter_mut().try_for_each(|op| op.run())?;
    ops.iter_mut().try_for_each(|op| op.sync())?;
    let stream = &ranks[0].seat().stream;
    let graph =
        stream.capture::<RunError>(&[&ranks[1].seat().stream], || ops.iter_mut().try_for_each(|op| op.run()))?;
    for turn in 0..replays {
        let data = |k: usize| (0..len as u64).map(move |i| (turn * 7919 + i * 31 + k as u64 * 101) as u32);
        for (k, (x, y)) in tensors.iter().enumerate() {
            x.try_copy_from(&data(k).collect::<Vec<_>>())?;
            // Often enough to detect a launch that does nothing.
            if turn % 16 == 0 {
                y.try_fill(u32::MAX)?;
            }
        }
        if turn % 100 == 99 {
            ops.iter_mut().try_for_each(|op| op.run())?;
        } else {
            graph.replay(stream)?;
        }
        for (k, (_, y)) in tensors.iter().enumerate() {
            ensure!(y.try_to_vec()?.into_iter().eq(data(k ^ 1)), "replay {turn}: transfer {k} gave something else");
        }
    }
    Ok(())
}

/// Checks that a capture refuses a transfer that has not met its peer, and a window.
pub fn refusals(device: &Arc<Device>) -> Result<()> {
    let ranks = NvlTransport::virtual_ranks(device, 2, small())?;
    let x = device.zeros::<u32>(10)?;
    let mut early = send(&ranks[0], &x, Rank::new(1)).build()?;
    let stream = &ranks[0].seat().stream;
    let refused = stream.capture::<RunError>(&[], || early.run());
    let Err(error) = refused else { bail!("a first launch was captured") };
    ensure!(error.to_string().contains("capture"), "{error}");
    Ok(())
}

/// A peer that never comes: the rank reports within its deadline whom it waited for, and the device stays usable.
pub fn missing_peer(device: &Arc<Device>) -> Result<()> {
    {
        let ranks = NvlTransport::virtual_ranks(device, 2, small())?;
        let (x, y) = (device.zeros::<u32>(1000)?, device.zeros::<u32>(1000)?);
        let mut take = recv(&ranks[1], &y, Rank::new(0)).deadline(Duration::from_millis(300)).build()?;
        let _never = send(&ranks[0], &x, Rank::new(1)).build()?;
        let start = Instant::now();
        take.run()?;
        let error = take.sync().err().context("a receive without a send succeeds")?;
        let RunError::Timeout(timeout) = &error else { bail!("another error than a timeout: {error}") };
        ensure!(timeout.rank == Rank::new(1) && timeout.peer == Some(Rank::new(0)), "{error}");
        ensure!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
        ensure!(ranks[0].broken().is_some() && ranks[1].broken().is_some(), "the transport is not broken");
    }
    replays(device, 3)
}

/// More blocks than a device holds simultaneously.
pub fn too_many_blocks(device: &Arc<Device>) -> Result<()> {
    let ranks = 8;
    let options =
        NvlOptions { max_blocks_per_peer: Some(64), per_peer_bytes: Some(8 << 20), packet_bytes: Some(0), ..small() };
    let links = NvlTransport::virtual_ranks(device, ranks, options)?;
    let (x, y) = (device.zeros::<u32>(1 << 20)?, device.zeros::<u32>(1 << 20)?);
    let next = |k: usize| Rank::new((k % ranks) as u32);
    match sendrecv(&links[0], &y, &x, next(1), next(ranks - 1)).blocks(64).build() {
        Err(RunError::Cuda(CudaError::NotResident { .. })) => Ok(()),
        Err(other) => bail!("another error: {other}"),
        Ok(_) => bail!("{} blocks were not refused", 64 * ranks),
    }
}

fn small() -> NvlOptions {
    NvlOptions {
        per_peer_bytes: Some(1 << 20),
        packet_bytes: Some(1 << 20),
        max_blocks_per_peer: Some(8),
        ..NvlOptions::default()
    }
}
