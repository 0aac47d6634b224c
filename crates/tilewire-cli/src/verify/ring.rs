//! Virtual ranks in a ring on one GPU: every rank sends its input, tile by tile, to the next, which doubles it.
//!
//! ```text
//!   rank r    send: wait HEAD[r] ▶ put into staging[r+1] ▶ signal TAIL[r+1]    a slot per (block, step mod depth)
//!             receive: wait TAIL[r] ▶ get from staging[r] ▶ credit HEAD[r-1]
//! ```

use anyhow::{Result, ensure};
use std::sync::Arc;
use std::time::Duration;
use tilewire::cuda::Device;
use tilewire::{Memory, Tensor, Traced, Value, kernel};
use tilewire_testkit::copied::{RankLaunch, evaluate_world};

/// Elements of a tile: not a whole number of vectors of the lanes, so that the remainder of a tile is tested.
const TILE: usize = 1000;
/// Steps of a block.
const STEPS: usize = 9;
/// Slots of a block, and copies of a role, which take them in turn.
const DEPTH: usize = 4;
const COPIES: u32 = 2;

/// Runs a ring and compares.
pub fn ring(device: &Arc<Device>, ranks: usize, blocks: usize) -> Result<()> {
    let count = blocks * STEPS * TILE;
    let shared = |bytes: usize| (0..ranks).map(|_| Memory::zeroed(bytes)).collect::<Vec<_>>();
    let staging = shared(blocks * DEPTH * TILE * size_of::<f32>());
    let (tails, heads) = (shared(blocks * DEPTH * 128), shared(blocks * DEPTH * 128));
    let inputs: Vec<Tensor<f32>> =
        (0..ranks).map(|rank| Tensor::from_fn(count, |k| (rank * count + k) as f32 * 0.5)).collect();
    let outputs: Vec<Tensor<f32>> = (0..ranks).map(|_| Tensor::zeros(count)).collect();
    let traced = (0..ranks)
        .map(|rank| {
            let wire = Wire { staging: &staging, tails: &tails, heads: &heads };
            member(rank, ranks, blocks, &inputs[rank], &outputs[rank], wire)
        })
        .collect::<Result<Vec<Traced>>>()?;
    let launches: Vec<RankLaunch<'_>> =
        traced.iter().map(|traced| RankLaunch { kernel: &traced.kernel, args: &traced.args }).collect();
    let results = evaluate_world(device, &launches, Some(Duration::from_secs(10)))?;
    for rank in 0..ranks {
        let sent = inputs[(rank + ranks - 1) % ranks].to_vec();
        let wanted: Vec<u8> = sent.iter().flat_map(|x| (x * 2.0).to_le_bytes()).collect();
        // The output is the kernel's second parameter.
        ensure!(results[rank][1][0] == wanted, "rank {rank} received something else");
    }
    Ok(())
}

/// The memory that the ranks share, one of each for every rank.
struct Wire<'a> {
    staging: &'a [Memory],
    tails: &'a [Memory],
    heads: &'a [Memory],
}

fn member(
    rank: usize,
    ranks: usize,
    blocks: usize,
    inp: &Tensor<f32>,
    out: &Tensor<f32>,
    wire: Wire<'_>,
) -> Result<Traced> {
    let (next, before) = (((rank + 1) % ranks) as i64, ((rank + ranks - 1) % ranks) as i64);
    let me = rank as i64;
    Ok(kernel("ring", |k| {
        k.blocks(blocks as u32);
        let (x, y) = (k.input(inp).named("x"), k.output(out).named("y"));
        let staging = k.region("staging", wire.staging);
        let (tails, heads) = (k.slots("tails", wire.tails, 128), k.slots("heads", wire.heads, 128));
        k.role("send", 2).copies(COPIES, |r| {
            let block = r.block();
            r.for_turns(STEPS, |step| {
                let slot = block * DEPTH as i64 + step % DEPTH as i64;
                r.wait(heads.slot(me, slot), (step + 1 - DEPTH as i64).max(0));
                let first = (block * STEPS as i64 + step) * TILE as i64;
                r.each(TILE, |i| staging.put(next, byte(slot, i), x.load(first + i)));
                r.signal(tails.slot(next, slot), step + 1);
            });
        });
        k.role("receive", 2).copies(COPIES, |r| {
            let block = r.block();
            r.for_turns(STEPS, |step| {
                let slot = block * DEPTH as i64 + step % DEPTH as i64;
                r.wait(tails.slot(me, slot), step + 1);
                let first = (block * STEPS as i64 + step) * TILE as i64;
                r.each(TILE, |i| y.store(first + i, staging.get::<f32>(me, byte(slot, i)) * 2.0));
                r.signal_credit(heads.slot(before, slot), step + 1);
            });
        });
    })?)
}

/// The place of element `i` of the tile in a slot.
fn byte<'t>(slot: Value<'t, i64>, i: Value<'t, i64>) -> Value<'t, i64> {
    (slot * TILE as i64 + i) * size_of::<f32>() as i64
}
