//! Graphs of collectives among virtual ranks played by this thread.

use super::frozen::mixed;
use super::race::Side;
use anyhow::{Result, ensure};
use std::sync::Arc;
use tilewire::collective::{PreparedExchange, Reducible};
use tilewire::cuda::{Device, Graph, Stream};
use tilewire::link::{NvlOptions, NvlTransport, Window};
use tilewire::{Algorithm, Bf16, F8E4M3, Knobs, Primitive, RunError, all_reduce, all_to_all, hooks};

/// Neighbours that share a scale.
const GROUP: usize = 128;

type Op<'l> = PreparedExchange<'l>;

/// The ranks.
pub struct Group {
    pub(super) links: Vec<NvlTransport>,
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

/// How an all-reduce travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReduceWay {
    /// As the library chooses, without windows.
    Default,
    /// In one shot of packets.
    Packets,
    /// Every rank reads the inputs of all.
    OneShotWindows,
    /// Every rank reads its shard of all inputs, and writes it into the outputs of all.
    TwoPhaseWindows,
}

impl ReduceWay {
    pub fn name(self) -> &'static str {
        match self {
            ReduceWay::Default => "default",
            ReduceWay::Packets => "packets",
            ReduceWay::OneShotWindows => "one-shot, windows",
            ReduceWay::TwoPhaseWindows => "two-phase, windows",
        }
    }

    fn is_in_windows(self) -> bool {
        matches!(self, ReduceWay::OneShotWindows | ReduceWay::TwoPhaseWindows)
    }

    fn algorithm(self) -> Option<Algorithm> {
        match self {
            ReduceWay::Default => None,
            ReduceWay::Packets | ReduceWay::OneShotWindows => Some(Algorithm::OneShot),
            ReduceWay::TwoPhaseWindows => Some(Algorithm::TwoPhase),
        }
    }
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

    /// A graph of all-reduces of `bytes` bytes, one after another. `of` makes an element of a small whole number.
    pub fn all_reduce<T: Reducible + PartialEq>(
        &self,
        bytes: usize,
        config: Knobs,
        (way, times): (ReduceWay, usize),
        of: impl Fn(u64) -> T,
    ) -> Result<Side> {
        let len = bytes / size_of::<T>();
        let windows = || match way.is_in_windows() {
            true => Window::<T>::on_virtual_ranks(&self.links, len),
            false => Ok(Vec::new()),
        };
        let (inputs, outputs) = (windows()?, windows()?);
        // Sums of 8 ranks are exact in every float of 16 bits, in any order.
        let sent = |me: usize, i: usize| mixed((me << 32 | i) as u64) % 30;
        let mut tensors = Vec::new();
        for (me, link) in self.links.iter().enumerate() {
            let of_window = |windows: &[Window<T>]| match windows.get(me) {
                Some(window) => Ok(window.tensor().clone()),
                None => link.device().zeros::<T>(len),
            };
            let (x, y) = (of_window(&inputs)?, of_window(&outputs)?);
            x.try_copy_from(&(0..len).map(|i| of(sent(me, i))).collect::<Vec<_>>())?;
            tensors.push((x, y));
        }
        let mut ops = Vec::new();
        for (me, (link, (x, y))) in self.links.iter().zip(&tensors).enumerate() {
            let op = all_reduce(link, y, x).config(config);
            let op = way.algorithm().into_iter().fold(op, |op, algorithm| op.algorithm(algorithm));
            ops.push(match way.is_in_windows() {
                true => op.primitive(Primitive::Direct).window(&inputs[me]).window(&outputs[me]).build()?,
                false => op.build()?,
            });
        }
        run_all(&mut ops)?;
        let streams = self.streams();
        let graph = streams[0].capture::<RunError>(&streams[1..], || {
            (0..times).try_for_each(|_| ops.iter_mut().try_for_each(|op| op.run()))
        })?;
        let side = Side { name: way.name().into(), graphs: vec![graph] };
        tensors.iter().try_for_each(|(_, y)| y.try_fill(of(7)))?;
        self.replay_all(&side)?;
        let sums: Vec<T> = (0..len).map(|i| of((0..self.links.len()).map(|me| sent(me, i)).sum())).collect();
        for (_, y) in &tensors {
            ensure!(y.try_to_vec()? == sums, "ours gives something else by {}", way.name());
        }
        Ok(side)
    }

    fn graph(&self, ops: &mut [Op<'_>]) -> Result<Graph> {
        let streams = self.streams();
        Ok(streams[0].capture::<RunError>(&streams[1..], || ops.iter_mut().try_for_each(|op| op.run()))?)
    }

    pub(super) fn replay_all(&self, side: &Side) -> Result<()> {
        let stream = &self.links[0].seat().stream;
        side.graphs.iter().try_for_each(|graph| graph.replay(stream))?;
        Ok(stream.sync()?)
    }
}

fn run_all(ops: &mut [Op<'_>]) -> Result<()> {
    ops.iter_mut().try_for_each(|op| op.run())?;
    Ok(ops.iter_mut().try_for_each(|op| op.sync())?)
}
