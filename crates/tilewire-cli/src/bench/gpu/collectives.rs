//! Graphs of collectives among virtual ranks played by this thread.

use super::frozen::mixed;
use super::race::Side;
use anyhow::{Result, ensure};
use std::sync::Arc;
use tilewire::collective::PreparedExchange;
use tilewire::cuda::{Device, Graph, Stream};
use tilewire::link::{NvlOptions, NvlTransport, Window};
use tilewire::{Algorithm, Bf16, F8E4M3, Knobs, Primitive, RunError, Tensor, all_reduce, all_to_all, hooks};

/// Neighbours that share a scale.
const GROUP: usize = 128;

type Op<'l> = PreparedExchange<'l>;

/// The ranks.
pub struct Group {
    links: Vec<NvlTransport>,
}

/// How an all-to-all travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// In one hop into windows.
    Direct,
    /// Through staging.
    Staged,
    /// Through staging, as fp8 with a scale for each group.
    Quantised,
}

impl Group {
    pub fn new(device: &Arc<Device>, ranks: usize, options: NvlOptions) -> Result<Group> {
        Ok(Group { links: NvlTransport::virtual_ranks(device, ranks, options)? })
    }

    /// The streams of the ranks.
    pub fn streams(&self) -> Vec<&Arc<Stream>> {
        self.links.iter().map(|link| &link.seat().stream).collect()
    }

    /// An all-to-all in which every rank has `bytes` bytes.
    pub fn all_to_all(&self, bytes: usize, config: Knobs, way: Way, rotation: usize) -> Result<Side> {
        let ranks = self.links.len();
        let len = bytes / 2 / ranks;
        let primitive = if way == Way::Direct { Primitive::Direct } else { Primitive::Staged };
        let granule = (way == Way::Quantised).then_some(GROUP);
        let config = Knobs { primitive: Some(primitive), granule, ..config };
        let (mut all, mut tensors) = (Vec::new(), Vec::new());
        for k in 0..rotation {
            let windows = match way {
                Way::Direct => Window::<Bf16>::on_virtual_ranks(&self.links, bytes / 2)?,
                _ => Vec::new(),
            };
            let mut ops = Vec::new();
            for (me, link) in self.links.iter().enumerate() {
                // Positive and of similar magnitude, so that fp8 keeps most of it.
                let number =
                    |i: usize| Bf16::from_bits(0x3f80 | (mixed(((k * ranks + me) << 32 | i) as u64) & 0x7f) as u16);
                let x = link.device().tensor(&(0..ranks * len).map(number).collect::<Vec<_>>())?;
                let y = match windows.get(me) {
                    Some(window) => window.tensor().clone(),
                    None => link.device().zeros(ranks * len)?,
                };
                let op = all_to_all(link, &y, &x).config(config);
                ops.push(match way {
                    Way::Direct => op.window(&windows[me]).build()?,
                    Way::Staged => op.build()?,
                    Way::Quantised => op
                        .produce2(hooks::quantise(F8E4M3::MAX, GROUP))
                        .last_per(GROUP)
                        .consume(hooks::dequantise())
                        .build()?,
                });
                tensors.push((x, y));
            }
            run_all(&mut ops)?;
            all.push((ops, windows));
        }
        let graphs = all.iter_mut().map(|(ops, _)| self.graph(ops)).collect::<Result<Vec<_>>>()?;
        let side = Side { name: format!("{way:?}").to_lowercase(), graphs };
        tensors.iter().try_for_each(|(_, y)| y.try_fill(Bf16::from_bits(0)))?;
        self.replay_all(&side)?;
        for of_ranks in tensors.chunks(ranks) {
            let sent = of_ranks.iter().map(|(x, _)| x.try_to_vec()).collect::<Result<Vec<_>, _>>()?;
            for (me, (_, y)) in of_ranks.iter().enumerate() {
                let close = |(i, y): (usize, &Bf16)| {
                    let x = sent[i / len][me * len + i % len];
                    if way == Way::Quantised { (x.to_f32() - y.to_f32()).abs() <= x.to_f32() / 16.0 } else { x == *y }
                };
                ensure!(y.try_to_vec()?.iter().enumerate().all(close), "ours gives something else to rank {me}");
            }
        }
        Ok(side)
    }

    /// A one-shot all-reduce of `bytes` bytes.
    pub fn all_reduce(&self, bytes: usize, config: Knobs) -> Result<Side> {
        let tensors = self.links.iter().enumerate().map(|(me, link)| {
            let x: Vec<f32> = (0..bytes / 4).map(|i| (mixed((me << 32 | i) as u64) % 1000) as f32).collect();
            Ok((link.device().tensor(&x)?, link.device().zeros::<f32>(x.len())?))
        });
        let tensors: Vec<(Tensor<f32>, Tensor<f32>)> = tensors.collect::<Result<_>>()?;
        let ops = self.links.iter().zip(&tensors);
        let ops = ops.map(|(link, (x, y))| all_reduce(link, y, x).config(config).algorithm(Algorithm::OneShot).build());
        let mut ops = ops.collect::<Result<Vec<_>, RunError>>()?;
        run_all(&mut ops)?;
        let side = Side { name: "ours".into(), graphs: vec![self.graph(&mut ops)?] };
        tensors.iter().try_for_each(|(_, y)| y.try_fill(-1.0))?;
        self.replay_all(&side)?;
        let sent = tensors.iter().map(|(x, _)| x.try_to_vec()).collect::<Result<Vec<_>, _>>()?;
        for (_, y) in &tensors {
            // The values are whole numbers, whose sum is the same in any order.
            let right = |(i, y): (usize, &f32)| *y == sent.iter().map(|x| x[i]).sum::<f32>();
            ensure!(y.try_to_vec()?.iter().enumerate().all(right), "ours gives something else");
        }
        Ok(side)
    }

    fn graph(&self, ops: &mut [Op<'_>]) -> Result<Graph> {
        let streams = self.streams();
        Ok(streams[0].capture::<RunError>(&streams[1..], || ops.iter_mut().try_for_each(|op| op.run()))?)
    }

    fn replay_all(&self, side: &Side) -> Result<()> {
        let stream = &self.links[0].seat().stream;
        side.graphs.iter().try_for_each(|graph| graph.replay(stream))?;
        Ok(stream.sync()?)
    }
}

fn run_all(ops: &mut [Op<'_>]) -> Result<()> {
    ops.iter_mut().try_for_each(|op| op.run())?;
    Ok(ops.iter_mut().try_for_each(|op| op.sync())?)
}
