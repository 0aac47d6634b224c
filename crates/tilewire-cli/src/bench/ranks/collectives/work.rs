//! What a collective does with what the ranks have, so that every side of a contest is checked alike. `mpi_peer.c` has the same.
#![forbid(unsafe_code)]

use crate::bench::ranks::side::Run;
use anyhow::{Result, bail};
use tilewire::Tensor;
use tilewire::transport::{P2pTransport, ShmTransport};

/// Bytes of an element: all are f32.
pub const ELEMENT: usize = 4;

/// A collective, plain or with a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    AllToAll,
    /// All to all, every chunk transposed on its way.
    Transposing,
    AllGather,
    ReduceScatter,
    AllReduce,
}

impl Work {
    /// The word of MPI programs for it.
    pub fn name(self) -> &'static str {
        match self {
            Work::AllToAll => "all_to_all",
            Work::Transposing => "transposing",
            Work::AllGather => "all_gather",
            Work::ReduceScatter => "reduce_scatter",
            Work::AllReduce => "all_reduce",
        }
    }

    /// Whether what the ranks have is summed.
    pub fn reduces(self) -> bool {
        matches!(self, Work::ReduceScatter | Work::AllReduce)
    }

    /// Chunks of a rank's input and of its output.
    pub fn chunks(self, ranks: usize) -> (usize, usize) {
        match self {
            Work::AllToAll | Work::Transposing => (ranks, ranks),
            Work::AllGather => (1, ranks),
            Work::ReduceScatter => (ranks, 1),
            Work::AllReduce => (1, 1),
        }
    }

    /// Bytes that a rank sends to others, where chunks are of so many: what the speed of a collective is told by.
    pub fn volume(self, bytes: usize, ranks: usize) -> usize {
        // An all-reduce is a reduce-scatter and an all-gather of its shards.
        if self == Work::AllReduce { 2 * bytes / ranks * (ranks - 1) } else { bytes * (ranks - 1) }
    }
}

/// Rows and columns of a chunk: about as many of both, rows a power of two.
pub fn shape(elements: usize) -> (usize, usize) {
    let mut rows = 1;
    while rows * rows * 4 <= elements {
        rows *= 2;
    }
    while !elements.is_multiple_of(rows) {
        rows /= 2;
    }
    (rows, elements / rows)
}

/// Small whole numbers, so that sums are exact in any order.
fn value(rank: usize, k: usize) -> f32 {
    ((k * 7 + rank * 13) % 251) as f32
}

/// What one rank has.
#[derive(Clone)]
pub struct Data {
    pub work: Work,
    pub rank: usize,
    pub ranks: usize,
    /// Elements of a chunk.
    pub chunk: usize,
    pub inp: Tensor<f32>,
    pub out: Tensor<f32>,
}

impl Data {
    /// Of tensors with room for the chunks of the work.
    pub fn new(work: Work, link: &ShmTransport, chunk: usize, inp: &Tensor<f32>, out: &Tensor<f32>) -> Data {
        let (rank, ranks) = (link.rank().index(), link.world_size());
        Data { work, rank, ranks, chunk, inp: inp.clone(), out: out.clone() }
    }

    /// Makes the input another than the last one: the first and the last element of every chunk are the number of the step.
    #[inline]
    fn stamp(&self, number: u64) {
        for first in (0..self.inp.len()).step_by(self.chunk) {
            self.inp.set(first, stamp(number));
            self.inp.set(first + self.chunk - 1, stamp(number));
        }
    }

    /// Whether it is what lies in the output, by the first and last elements of chunks.
    #[inline]
    fn expect(&self, number: u64) -> Result<()> {
        let must = stamp(number) * if self.work.reduces() { self.ranks as f32 } else { 1.0 };
        for first in (0..self.out.len()).step_by(self.chunk) {
            let got = [self.out.get(first), self.out.get(first + self.chunk - 1)];
            if got != [must; 2] {
                bail!(
                    "step {number} is wrong: chunk {} is {got:?} at its ends where {must} was sent",
                    first / self.chunk
                );
            }
        }
        Ok(())
    }

    fn fill(&self) {
        (0..self.inp.len()).for_each(|k| self.inp.set(k, value(self.rank, k)));
        self.out.fill(-1.0);
    }

    /// Element `k` of chunk `p` of the output, if it is neither the first nor the last.
    fn must(&self, p: usize, k: usize) -> f32 {
        let own = self.rank * self.chunk;
        let sum = |k: usize| (0..self.ranks).map(|rank| value(rank, k)).sum();
        match self.work {
            Work::AllToAll => value(p, own + k),
            Work::Transposing => {
                let (rows, cols) = shape(self.chunk);
                value(p, own + k % rows * cols + k / rows)
            }
            Work::AllGather => value(p, k),
            Work::ReduceScatter => sum(own + k),
            Work::AllReduce => sum(k),
        }
    }

    fn verify(&self, number: u64) -> Result<()> {
        self.expect(number)?;
        for (at, got) in self.out.to_vec().into_iter().enumerate() {
            let (p, k) = (at / self.chunk, at % self.chunk);
            if k != 0 && k != self.chunk - 1 && got != self.must(p, k) {
                bail!("the result is wrong: element {k} of chunk {p} is {got} and not {}", self.must(p, k));
            }
        }
        Ok(())
    }
}

fn stamp(number: u64) -> f32 {
    (number % 4096) as f32
}

/// One way to do the work, as one rank sees it. Step k is the k-th call, from 1 on, by all ranks.
pub trait Step {
    /// Does it; when it returns, the input may be changed and the output is there.
    fn step(&mut self, number: u64) -> Result<()>;
}

/// Steps over data, each other than the last. Generic, so that a step costs no indirect call.
pub struct Steps<S> {
    step: S,
    data: Data,
    number: u64,
}

impl<S: Step> Steps<S> {
    pub fn new(step: S, data: Data) -> Steps<S> {
        Steps { step, data, number: 0 }
    }
}

impl<S: Step> Run for Steps<S> {
    fn run(&mut self, steps: u64) -> Result<()> {
        for _ in 0..steps {
            self.number += 1;
            self.data.stamp(self.number);
            self.step.step(self.number)?;
            self.data.expect(self.number)?;
        }
        Ok(())
    }

    fn fill(&mut self) {
        self.data.fill();
    }

    fn verify(&mut self) -> Result<()> {
        self.data.verify(self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_about_square_and_whole() {
        for (elements, must) in
            [(1, (1, 1)), (2, (1, 2)), (262144, (512, 512)), (2 << 20, (1024, 2048)), (25600, (128, 200))]
        {
            assert_eq!(shape(elements), must);
        }
        assert_eq!(shape(7 * 9), (1, 63));
    }

    #[test]
    fn wrong_results_are_named() {
        let (inp, out) = (Tensor::zeros(8), Tensor::zeros(8));
        let data = Data { work: Work::AllToAll, rank: 1, ranks: 2, chunk: 4, inp, out };
        data.fill();
        data.stamp(9);
        assert_eq!(data.inp.to_vec(), [9.0, 20.0, 27.0, 9.0, 9.0, 48.0, 55.0, 9.0]);
        assert!(data.expect(9).unwrap_err().to_string().contains("chunk 0 is [-1.0, -1.0]"));
        let right = [9.0, 35.0, 42.0, 9.0, 9.0, 48.0, 55.0, 9.0];
        right.iter().enumerate().for_each(|(k, &x)| data.out.set(k, x));
        data.verify(9).unwrap();
        data.out.set(6, 0.0);
        assert!(data.verify(9).unwrap_err().to_string().contains("element 2 of chunk 1 is 0 and not 55"));
    }

    #[test]
    fn volumes_are_what_a_rank_sends() {
        assert_eq!(Work::AllToAll.volume(100, 4), 300);
        assert_eq!(Work::AllReduce.volume(100, 2), 100);
        assert_eq!(Work::AllReduce.volume(100, 4), 150);
    }
}
