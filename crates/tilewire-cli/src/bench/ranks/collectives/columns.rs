//! An all-to-all of column slices of a larger matrix: where they lie, and copied into a contiguous buffer first. Both
//! race the all-to-all of a contiguous tensor with as many bytes.
#![forbid(unsafe_code)]

use super::work::{ELEMENT, shape, stamp};
use crate::bench::ranks::links::Links;
use crate::bench::ranks::side::{Aim, Limit, Part, Run, Side};
use anyhow::{Result, bail};
use tilewire::collective::PreparedExchange;
use tilewire::tensor::Axis;
use tilewire::{Tensor, all_to_all, map};

/// The contiguous all-to-all, and the two ways to send column slices. Collective.
pub fn sides<'l>(links: &'l Links, bytes: usize) -> Result<Vec<Side<'l>>> {
    let (link, chunk) = (links.ours(), bytes.div_ceil(ELEMENT).max(1));
    let (ranks, (rows, cols)) = (link.world_size(), shape(chunk));
    let width = ranks * cols;
    // The slices are the middle third of a matrix, as keys lie between queries and values.
    let slices = Tensor::<f32>::zeros(rows * 3 * width).reshape(rows, 3 * width)?.columns(width..2 * width);
    let run = |way: Way, inp: &Tensor<f32>| -> Result<Box<dyn Run + 'l>> {
        let out = Tensor::<f32>::zeros(ranks * chunk).reshape(ranks * rows, cols)?;
        let (copies, op) = match way {
            Way::Contiguous => (Vec::new(), all_to_all(link, &out, inp).build()?),
            Way::InPlace => {
                (Vec::new(), all_to_all(link, &out, inp).along(Axis::Cols).output_along(Axis::Rows).build()?)
            }
            Way::Copied => {
                let buffer = Tensor::<f32>::zeros(ranks * chunk).reshape(ranks * rows, cols)?;
                let copy = |p: usize| {
                    let (to, from) = (buffer.rows(p * rows..(p + 1) * rows), inp.columns(p * cols..(p + 1) * cols));
                    map(&to, &from).build()
                };
                ((0..ranks).map(copy).collect::<Result<_, _>>()?, all_to_all(link, &out, &buffer).build()?)
            }
        };
        let (inp, rank) = (inp.clone(), link.rank().index());
        Ok(Box::new(Columns { way, copies, op, inp, out, rank, ranks, rows, cols, number: 0 }))
    };
    let contiguous = Tensor::<f32>::zeros(ranks * chunk).reshape(ranks * rows, cols)?;
    let racer = |name: &'static str, aim, way| -> Result<Side<'l>> {
        let part = Part::Racer { against: Limit::Plain, aim, protocol: name };
        Ok(Side { name: name.into(), part, run: run(way, &slices)? })
    };
    Ok(vec![
        Side { name: "contiguous".into(), part: Part::Limit(Limit::Plain), run: run(Way::Contiguous, &contiguous)? },
        racer("column slices", Aim::Ratio(0.9), Way::InPlace)?,
        racer("copied, then sent", Aim::None, Way::Copied)?,
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
