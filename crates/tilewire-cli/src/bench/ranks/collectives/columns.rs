//! An all-to-all of column slices of a larger matrix: where they lie, and copied into a contiguous buffer first. What
//! is sent in place races the all-to-all of a contiguous tensor with as many bytes, and the copy that it saves.
#![forbid(unsafe_code)]

use super::work::{ELEMENT, shape, stamp};
use crate::bench::ranks::links::Links;
use crate::bench::ranks::side::{Aim, Limit, Part, Run, Side};
use anyhow::{Result, bail};
use tilewire::collective::PreparedExchange;
use tilewire::link::Window;
use tilewire::tensor::Axis;
use tilewire::{Tensor, all_to_all, map};

/// The contiguous all-to-all, and the two ways to send column slices, by default or into windows. Collective.
pub fn sides<'l>(links: &'l Links, bytes: usize, in_windows: bool) -> Result<Vec<Side<'l>>> {
    let (link, chunk) = (links.ours(), bytes.div_ceil(ELEMENT).max(1));
    let (ranks, (rows, cols)) = (link.world_size(), shape(chunk));
    let width = ranks * cols;
    // The slices are the middle third of a matrix, as keys lie between queries and values.
    let slices = Tensor::<f32>::zeros(rows * 3 * width).reshape(rows, 3 * width)?.columns(width..2 * width);
    let contiguous = Tensor::<f32>::zeros(ranks * chunk).reshape(ranks * rows, cols)?;
    let side = |name: &str, part: Part, way: Way| -> Result<Side<'l>> {
        let window = in_windows.then(|| Window::<f32>::allocate(link, ranks * chunk)).transpose()?;
        let out = window.as_ref().map_or_else(|| Tensor::zeros(ranks * chunk), |window| window.tensor().clone());
        let out = out.reshape(ranks * rows, cols)?;
        let inp = if way == Way::Contiguous { &contiguous } else { &slices };
        let build = |sent: &Tensor<f32>, axis: Axis| {
            // Chunks for far peers go through staging by themselves.
            let op = all_to_all(link, &out, sent).along(axis).output_along(Axis::Rows);
            match &window {
                Some(window) => op.window(window).build(),
                None => op.build(),
            }
        };
        let (copies, op) = match way {
            Way::Contiguous => (Vec::new(), build(inp, Axis::Rows)?),
            Way::InPlace => (Vec::new(), build(inp, Axis::Cols)?),
            Way::Copied => {
                let buffer = Tensor::<f32>::zeros(ranks * chunk).reshape(ranks * rows, cols)?;
                let copy = |p: usize| {
                    let (to, from) = (buffer.rows(p * rows..(p + 1) * rows), inp.columns(p * cols..(p + 1) * cols));
                    map(&to, &from).build()
                };
                ((0..ranks).map(copy).collect::<Result<_, _>>()?, build(&buffer, Axis::Rows)?)
            }
        };
        let (inp, rank) = (inp.clone(), link.rank().index());
        let run = Columns { way, copies, op, inp, out, rank, ranks, rows, cols, number: 0 };
        Ok(Side { name: name.into(), part, run: Box::new(run) })
    };
    let protocol = if in_windows { "direct" } else { "default" };
    let racer = |against, aim| Part::Racer { against, aim: Aim::Ratio(aim), protocol };
    Ok(vec![
        side("contiguous", Part::Limit(Limit::Plain), Way::Contiguous)?,
        side("copied, then sent", Part::Limit(Limit::Copied), Way::Copied)?,
        side("in place, against contiguous", racer(Limit::Plain, 0.9), Way::InPlace)?,
        side("in place, against a copy first", racer(Limit::Copied, 1.5), Way::InPlace)?,
    ])
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Contiguous,
    InPlace,
    Copied,
}

struct Columns<'l> {
    way: Way,
    /// The copy of each chunk into a buffer, if the chunk is copied first.
    copies: Vec<PreparedExchange<'static>>,
    op: PreparedExchange<'l>,
    inp: Tensor<f32>,
    out: Tensor<f32>,
    rank: usize,
    ranks: usize,
    rows: usize,
    cols: usize,
    number: u64,
}

impl Columns<'_> {
    /// The place of the first element of the chunk for a rank.
    fn first(&self, p: usize) -> usize {
        if self.way == Way::Contiguous { p * self.rows * self.cols } else { p * self.cols }
    }

    /// A small number for element `k` of the chunk from one rank to another.
    fn value(from: usize, to: usize, k: usize) -> f32 {
        ((k * 7 + from * 13 + to * 5) % 251) as f32
    }
}

impl Run for Columns<'_> {
    fn run(&mut self, steps: u64) -> Result<()> {
        for _ in 0..steps {
            self.number += 1;
            (0..self.ranks).for_each(|p| self.inp.set(self.first(p), stamp(self.number)));
            self.copies.iter_mut().try_for_each(PreparedExchange::run)?;
            self.op.run()?;
            for p in 0..self.ranks {
                let (got, must) = (self.out.get(p * self.rows * self.cols), stamp(self.number));
                if got != must {
                    bail!("step {} is wrong: chunk {p} begins with {got} where {must} was sent", self.number);
                }
            }
        }
        Ok(())
    }

    fn fill(&mut self) {
        self.out.fill(-1.0);
        let Columns { rank, rows, cols, ranks, .. } = *self;
        let stride = if self.way == Way::Contiguous { cols } else { ranks * cols };
        for (p, row, col) in (0..ranks).flat_map(|p| (0..rows).flat_map(move |r| (0..cols).map(move |c| (p, r, c)))) {
            self.inp.set(self.first(p) + row * stride + col, Columns::value(rank, p, row * cols + col));
        }
    }

    fn verify(&mut self) -> Result<()> {
        let chunk = self.rows * self.cols;
        for (at, got) in self.out.to_vec().into_iter().enumerate() {
            let (p, k) = (at / chunk, at % chunk);
            let must = Columns::value(p, self.rank, k);
            if k != 0 && got != must {
                bail!("the result is wrong: element {k} of chunk {p} is {got} and not {must}");
            }
        }
        Ok(())
    }
}
