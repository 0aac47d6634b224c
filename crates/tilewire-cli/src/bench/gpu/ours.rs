//! Graphs of `send`, `recv` and `sendrecv` between two virtual ranks played by this thread.

use super::frozen::{HOST_SAMPLES, mixed};
use super::race::{Side, median_of};
use anyhow::{Result, ensure};
use std::time::Instant;
use tilewire::collective::{Exchange, PreparedExchange};
use tilewire::ir::scalar::Element;
use tilewire::link::{NvlTransport, Window};
use tilewire::tensor::bytes_of;
use tilewire::transport::Rank;
use tilewire::{Bf16, Knobs, Primitive, RunError, Tensor, recv, send, sendrecv};

/// A prepared transfer between the two ranks.
type Op<'l> = PreparedExchange<'l>;

/// Two ranks.
pub struct Pair<'l> {
    ranks: &'l [NvlTransport],
}

/// The hook of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hook {
    /// No hook.
    Copy,
    /// Multiplied by 2.
    Scale,
    /// The matrix is sent transposed, as bf16: its rows and columns.
    Transpose(usize, usize),
}

impl<'l> Pair<'l> {
    pub fn new(ranks: &'l [NvlTransport]) -> Pair<'l> {
        Pair { ranks }
    }

    /// One direction, by any protocol but direct.
    pub fn one_way(&self, bytes: usize, config: Knobs, hook: Hook, rotation: usize) -> Result<Side> {
        match hook {
            Hook::Copy => self.one_way_of::<u64>(bytes, config, hook, rotation, |x| x, |e| e),
            Hook::Scale => {
                let twice = |x: f32| x * 2.0;
                let scaled = |e: Exchange<'static, 'l, f32, f32>| e.produce(|c| c.input.load(c.pos()) * 2.0);
                self.one_way_of::<f32>(bytes, config, hook, rotation, twice, scaled)
            }
            Hook::Transpose(rows, cols) => {
                let turned = move |e: Exchange<'static, 'l, Bf16, Bf16>| {
                    e.chunk_shape(rows, cols).output_shape(cols, rows).produce(|c| c.input.at(c.col(), c.row()))
                };
                self.one_way_of::<Bf16>(bytes, config, hook, rotation, |x| x, turned)
            }
        }
    }

    fn one_way_of<T: Element + PartialEq>(
        &self,
        bytes: usize,
        config: Knobs,
        hook: Hook,
        rotation: usize,
        arrives: impl Fn(T) -> T,
        hooked: impl Fn(Exchange<'static, 'l, T, T>) -> Exchange<'static, 'l, T, T>,
    ) -> Result<Side> {
        let [a, b] = self.ranks else { unreachable!("two ranks") };
        let (mut ops, mut tensors) = (Vec::new(), Vec::new());
        for k in 0..rotation {
            let (x, y) = (filled::<T>(a, bytes, k)?, a.device().zeros::<T>(bytes / size_of::<T>())?);
            let mut give = hooked(send(a, &x, Rank::new(1)).config(config)).build()?;
            let mut take = hooked(recv(b, &y, Rank::new(0)).config(config)).build()?;
            run_both(&mut give, &mut take)?;
            tensors.push((x, y));
            ops.push((give, take));
        }
        let graphs = ops.iter_mut().map(|(give, take)| self.graph(give, take)).collect::<Result<Vec<_>>>()?;
        let side = Side { name: "ours".into(), graphs };
        for (_, y) in &tensors {
            y.try_fill(T::default())?;
        }
        self.replay_all(&side)?;
        for (x, y) in tensors {
            let sent: Vec<T> = x.try_to_vec()?.into_iter().map(&arrives).collect();
            let wanted = match hook {
                Hook::Transpose(rows, cols) => (0..rows * cols).map(|i| sent[i % rows * cols + i / rows]).collect(),
                _ => sent,
            };
            ensure!(y.try_to_vec()? == wanted, "ours gives something else");
        }
        Ok(side)
    }

    /// Both ways, staged.
    pub fn both_ways(&self, bytes: usize, config: Knobs, rotation: usize) -> Result<Side> {
        let (mut ops, mut tensors) = (Vec::new(), Vec::new());
        for k in 0..rotation {
            let mut op = Vec::new();
            for (me, link) in self.ranks.iter().enumerate() {
                let (x, y) = (filled::<u64>(link, bytes, 2 * k + me)?, link.device().zeros::<u64>(bytes / 8)?);
                let peer = Rank::new(1 - me as u32);
                op.push(sendrecv(link, &y, &x, peer, peer).config(config).build()?);
                tensors.push((x, y));
            }
            let [one, two] = &mut op[..] else { unreachable!("two ranks") };
            run_both(one, two)?;
            ops.push(op);
        }
        let mut graphs = Vec::new();
        for op in &mut ops {
            let [one, two] = &mut op[..] else { unreachable!("two ranks") };
            graphs.push(self.graph(one, two)?);
        }
        let side = Side { name: "ours".into(), graphs };
        self.replay_all(&side)?;
        for (k, (_, y)) in tensors.iter().enumerate() {
            ensure!(bytes_of(y.memory())? == bytes_of(tensors[k ^ 1].0.memory())?, "ours gives something else");
        }
        Ok(side)
    }

    /// A copy in one hop into a window.
    pub fn direct(&self, bytes: usize, config: Knobs, rotation: usize) -> Result<Side> {
        let [a, b] = self.ranks else { unreachable!("two ranks") };
        let config = Knobs { primitive: Some(Primitive::Direct), ..config };
        let (mut ops, mut tensors) = (Vec::new(), Vec::new());
        for k in 0..rotation {
            let windows = Window::<u64>::on_virtual_ranks(self.ranks, bytes / 8)?;
            let x = filled::<u64>(a, bytes, k)?;
            let mut give = send(a, &x, Rank::new(1)).config(config).window(&windows[0]).build()?;
            let mut take = recv(b, windows[1].tensor(), Rank::new(0)).config(config).window(&windows[1]).build()?;
            run_both(&mut give, &mut take)?;
            ops.push((give, take));
            tensors.push((x, windows));
        }
        let graphs = ops.iter_mut().map(|(give, take)| self.graph(give, take)).collect::<Result<Vec<_>>>()?;
        let side = Side { name: "ours".into(), graphs };
        self.replay_all(&side)?;
        for (x, windows) in &tensors {
            ensure!(bytes_of(x.memory())? == bytes_of(windows[1].tensor().memory())?, "ours gives something else");
        }
        Ok(side)
    }

    /// Microseconds of host time for a prepared `run()`, and milliseconds for a new kernel.
    pub fn host_cost(&self, config: Knobs) -> Result<(f64, f64)> {
        let [a, b] = self.ranks else { unreachable!("two ranks") };
        let (x, y) = (filled::<u64>(a, 1 << 20, 0)?, a.device().zeros::<u64>((1 << 20) / 8)?);
        let mut built = 0;
        // A different length each time makes it a different kernel.
        let build_ms = median_of(9, || {
            built += 1;
            let part = x.slice(0..x.len() - built);
            let start = Instant::now();
            let give = send(a, &part, Rank::new(1)).config(config).build()?;
            let took = start.elapsed().as_secs_f64() * 1e3;
            let mut take = recv(b, &y.slice(0..part.len()), Rank::new(0)).config(config).build()?;
            run_both(&mut { give }, &mut take)?;
            Ok(took)
        })?;
        let mut give = send(a, &x, Rank::new(1)).config(config).build()?;
        let mut take = recv(b, &y, Rank::new(0)).config(config).build()?;
        run_both(&mut give, &mut take)?;
        let run_us = median_of(HOST_SAMPLES, || {
            let start = Instant::now();
            give.run()?;
            take.run()?;
            let took = start.elapsed().as_secs_f64() * 1e6 / 2.0;
            give.sync()?;
            take.sync()?;
            Ok(took)
        })?;
        Ok((run_us, build_ms))
    }

    fn graph(&self, one: &mut Op<'_>, two: &mut Op<'_>) -> Result<tilewire::cuda::Graph> {
        let [a, b] = self.ranks else { unreachable!("two ranks") };
        Ok(a.seat().stream.capture::<RunError>(&[&b.seat().stream], || {
            one.run()?;
            two.run()
        })?)
    }

    fn replay_all(&self, side: &Side) -> Result<()> {
        let stream = &self.ranks[0].seat().stream;
        side.graphs.iter().try_for_each(|graph| graph.replay(stream))?;
        Ok(stream.sync()?)
    }
}

fn run_both(one: &mut Op<'_>, two: &mut Op<'_>) -> Result<()> {
    one.run()?;
    two.run()?;
    one.sync()?;
    Ok(two.sync()?)
}

/// Numbers without NaN, which would not equal itself.
fn filled<T: Element>(link: &NvlTransport, bytes: usize, seed: usize) -> Result<Tensor<T>> {
    let ones = tilewire::ir::scalar::dynamic::cast(tilewire::ir::Type::I32, T::TYPE, 1);
    let mask = if T::TYPE.is_float() { 0x7f } else { u64::MAX };
    let number = |i: usize| T::from_bits(ones ^ mixed((seed << 32 | i) as u64) & mask);
    let data: Vec<T> = (0..bytes / size_of::<T>()).map(number).collect();
    Ok(link.device().tensor(&data)?)
}
