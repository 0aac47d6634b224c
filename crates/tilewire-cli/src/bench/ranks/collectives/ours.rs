//! Our own sides: tilewire's collectives behind the same trait as the limits. One launch is one step.
#![forbid(unsafe_code)]

use super::limits::Buffers;
use super::work::{ROOT, Step, Work, shape};
use crate::bench::ranks::side::{Aim, Limit, Part, Side};
use anyhow::Result;
use tilewire::collective::{Exchange, PreparedExchange, Reduction};
use tilewire::transport::Rank;
use tilewire::{Primitive, all_gather, all_reduce, all_to_all, broadcast, gather, reduce_scatter, scatter};

/// One of our sides, and its target.
#[derive(Clone, Copy, Debug)]
pub struct Race {
    /// The protocol's name in reports.
    pub name: &'static str,
    /// How chunks travel; `None`: as the library chooses by default.
    pub primitive: Option<Primitive>,
    /// The limit it is compared with.
    pub against: Limit,
    /// Its target.
    pub aim: Aim,
}

impl Race {
    /// A side over the buffers of a contest.
    pub fn side<'l>(&self, buffers: &Buffers<'l>) -> Result<Side<'l>> {
        let direct = self.primitive == Some(Primitive::Direct);
        // The memory that peers reach: the inputs of a reduction, and outputs. A reduce-scatter keeps its output
        // private.
        let writes_peers = direct && buffers.work != Work::ReduceScatter;
        let out = if writes_peers { buffers.outputs.tensor() } else { &buffers.out };
        let inp = if direct && buffers.work.reduces() { buffers.inputs.tensor() } else { buffers.source(out) };
        let root = Rank::new(ROOT as u32);
        let launch = match buffers.work {
            Work::AllToAll => self.exchange(all_to_all(buffers.ours, out, inp), buffers)?,
            Work::Transposing => {
                let (rows, cols) = shape(buffers.chunk);
                let exchange = all_to_all(buffers.ours, out, inp).chunk_shape(rows, cols).output_shape(cols, rows);
                self.exchange(exchange.produce(|c| c.input.at(c.col(), c.row())), buffers)?
            }
            Work::AllGather => self.exchange(all_gather(buffers.ours, out, inp), buffers)?,
            Work::ReduceScatter => self.reduction(reduce_scatter(buffers.ours, out, inp), buffers)?,
            Work::AllReduce => self.reduction(all_reduce(buffers.ours, out, inp), buffers)?,
            Work::Broadcast => self.exchange(broadcast(buffers.ours, out, inp, root), buffers)?,
            Work::Gather => self.exchange(gather(buffers.ours, out, inp, root), buffers)?,
            Work::Scatter => self.exchange(scatter(buffers.ours, out, inp, root), buffers)?,
        };
        let part = Part::Racer { against: self.against, aim: self.aim, protocol: self.name };
        let run = buffers.steps(Launch(launch), inp, out);
        Ok(Side { name: self.name.into(), part, run: Box::new(run) })
    }

    fn exchange<'l>(
        &self,
        exchange: Exchange<'_, 'l, f32, f32>,
        buffers: &Buffers<'l>,
    ) -> Result<PreparedExchange<'l>> {
        let exchange = match self.primitive {
            Some(Primitive::Direct) => exchange.primitive(Primitive::Direct).window(&buffers.outputs),
            Some(primitive) => exchange.primitive(primitive),
            None => exchange,
        };
        Ok(exchange.build()?)
    }

    fn reduction<'l>(
        &self,
        reduction: Reduction<'_, 'l, f32, f32>,
        buffers: &Buffers<'l>,
    ) -> Result<PreparedExchange<'l>> {
        let reduction = match self.primitive {
            Some(Primitive::Direct) => {
                reduction.primitive(Primitive::Direct).window(&buffers.inputs).window(&buffers.outputs)
            }
            Some(primitive) => reduction.primitive(primitive),
            None => reduction,
        };
        Ok(reduction.build()?)
    }
}

struct Launch<'l>(PreparedExchange<'l>);

impl Step for Launch<'_> {
    #[inline]
    fn step(&mut self, _number: u64) -> Result<()> {
        Ok(self.0.run()?)
    }
}
