//! Graphs of an all-to-all of column slices of a larger matrix, among virtual ranks played by this thread: where they
//! lie, and copied into a contiguous buffer first.

use super::collectives::Group;
use super::frozen::mixed;
use super::race::Side;
use anyhow::{Result, ensure};
use tilewire::collective::{Launch, PreparedExchange};
use tilewire::cuda::Graph;
use tilewire::link::{NvlTransport, Window};
use tilewire::tensor::Axis;
use tilewire::{Knobs, Primitive, RunError, Tensor, all_to_all, map};

/// Rows of a chunk.
const ROWS: usize = 1024;

/// Where the chunks of the input lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// One after the other.
    Contiguous,
    /// In columns of a matrix of three times as many.
    InPlace,
    /// There as well, and every launch first copies them one after the other.
    Copied,
}

/// What one rank launches.
struct Ranked<'l> {
    /// Of each chunk. On the rank's stream: a [`map`] has one of its own, which a capture of the ranks' streams
    /// refuses.
    copies: Vec<Launch<'l>>,
    op: PreparedExchange<'l>,
    inp: Tensor<f32>,
    out: Tensor<f32>,
}

impl Ranked<'_> {
    fn run(&mut self) -> Result<(), RunError> {
        self.copies.iter_mut().try_for_each(Launch::run)?;
        self.op.run()
    }
}

impl Group {
    /// An all-to-all of chunks of `bytes` bytes, through staging or into windows.
    pub fn columns(&self, bytes: usize, config: Knobs, source: Source, rotation: usize) -> Result<Side> {
        let (ranks, cols) = (self.links.len(), bytes / size_of::<f32>() / ROWS);
        let is_direct = config.primitive == Some(Primitive::Direct);
        let mut all = Vec::new();
        for k in 0..rotation {
            let windows = match is_direct {
                true => Window::<f32>::on_virtual_ranks(&self.links, ranks * ROWS * cols)?,
                false => Vec::new(),
            };
            let mut ops = Vec::new();
            for (me, link) in self.links.iter().enumerate() {
                ops.push(ranked(link, windows.get(me), (source, cols, k * ranks + me), config)?);
            }
            ops.iter_mut().try_for_each(Ranked::run)?;
            ops.iter_mut().try_for_each(|it| it.op.sync())?;
            all.push((ops, windows));
        }
        let streams = self.streams();
        let graph = |ops: &mut Vec<Ranked<'_>>| -> Result<Graph> {
            Ok(streams[0].capture::<RunError>(&streams[1..], || ops.iter_mut().try_for_each(Ranked::run))?)
        };
        let graphs = all.iter_mut().map(|(ops, _)| graph(ops)).collect::<Result<Vec<_>>>()?;
        let name = match source {
            Source::Contiguous => "contiguous",
            Source::InPlace => "column slices",
            Source::Copied => "copied, then sent",
        };
        let side = Side { name: name.into(), graphs };
        all.iter().flat_map(|(ops, _)| ops).try_for_each(|it| it.out.try_fill(-1.0))?;
        self.replay_all(&side)?;
        for (ops, _) in &all {
            let sent = ops.iter().map(|it| it.inp.try_to_vec()).collect::<Result<Vec<_>, _>>()?;
            for (me, it) in ops.iter().enumerate() {
                let right = |(i, got): (usize, &f32)| {
                    let (from, row, col) = (i / (ROWS * cols), i / cols % ROWS, i % cols);
                    let at = match source {
                        Source::Contiguous => (me * ROWS + row) * cols + col,
                        _ => row * ranks * cols + me * cols + col,
                    };
                    *got == sent[from][at]
                };
                ensure!(it.out.try_to_vec()?.iter().enumerate().all(right), "{name} gives something else to rank {me}");
            }
        }
        Ok(side)
    }
}

/// What one rank launches, with data of its own: `seed`.
fn ranked<'l>(
    link: &'l NvlTransport,
    window: Option<&Window<f32>>,
    (source, cols, seed): (Source, usize, usize),
    config: Knobs,
) -> Result<Ranked<'l>> {
    use tilewire::link::Transport;
    let ranks = link.world_size();
    let numbers = |len: usize| (0..len).map(|i| (mixed((seed << 32 | i) as u64) % 4096) as f32).collect::<Vec<_>>();
    let width = ranks * cols;
    let inp = match source {
        Source::Contiguous => link.device().tensor(&numbers(ROWS * width))?.reshape(ranks * ROWS, cols)?,
        _ => link.device().tensor(&numbers(ROWS * 3 * width))?.reshape(ROWS, 3 * width)?.columns(width..2 * width),
    };
    let out = match window {
        Some(window) => window.tensor().clone(),
        None => link.device().zeros(ROWS * width)?,
    };
    let out = out.reshape(ranks * ROWS, cols)?;
    let (mut copies, mut sent, mut axis) = (Vec::new(), inp.clone(), Axis::Rows);
    match source {
        Source::Contiguous => {}
        Source::InPlace => axis = Axis::Cols,
        Source::Copied => {
            sent = link.device().zeros(ROWS * width)?.reshape(ranks * ROWS, cols)?;
            for p in 0..ranks {
                let (to, from) = (sent.rows(p * ROWS..(p + 1) * ROWS), inp.columns(p * cols..(p + 1) * cols));
                copies.push(Launch::new(link, &map(&to, &from).trace()?)?);
            }
        }
    }
    let op = all_to_all(link, &out, &sent).along(axis).output_along(Axis::Rows).config(config);
    let op = match window {
        Some(window) => op.window(window).build()?,
        None => op.build()?,
    };
    Ok(Ranked { copies, op, inp, out })
}
