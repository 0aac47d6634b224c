//! The result of each collective, so that every side of a contest is checked alike. `mpi_peer.c` has the same
//! definition.
#![forbid(unsafe_code)]

use crate::bench::ranks::side::Run;
use crate::bench::ranks::words::{Word, Words};
use anyhow::{Result, bail};
use std::sync::atomic::Ordering::Release;
use tilewire::Tensor;
use tilewire::link::{ShmTransport, Transport};

/// Bytes of an element: all are f32.
pub const ELEMENT: usize = 4;
/// The rank that has or gets everything, in collectives that have one.
pub const ROOT: usize = 0;

/// A collective, plain or with a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    AllToAll,
    /// All to all, with every chunk transposed on its way.
    Transposing,
    AllGather,
    ReduceScatter,
    AllReduce,
    /// In place at the root: MPI's has one buffer, so the root copies nothing for itself, and neither does ours.
    Broadcast,
    /// The root copies its own chunk, as it does under MPI: the work is not in place.
    Gather,
    /// The same.
    Scatter,
}

impl Work {
    /// Its name in MPI programs.
    pub fn name(self) -> &'static str {
        match self {
            Work::AllToAll => "all_to_all",
            Work::Transposing => "transposing",
            Work::AllGather => "all_gather",
            Work::ReduceScatter => "reduce_scatter",
            Work::AllReduce => "all_reduce",
            Work::Broadcast => "broadcast",
            Work::Gather => "gather",
            Work::Scatter => "scatter",
        }
    }

    /// True if one rank differs from the rest.
    pub fn is_rooted(self) -> bool {
        matches!(self, Work::Broadcast | Work::Gather | Work::Scatter)
    }

    /// True if the ranks' data is summed.
    pub fn reduces(self) -> bool {
        matches!(self, Work::ReduceScatter | Work::AllReduce)
    }

    /// Chunks of a rank's input and of its output. No rank has more than the root.
    pub fn chunks(self, rank: usize, ranks: usize) -> (usize, usize) {
        let at_root = |chunks: usize| if rank == ROOT { chunks } else { 0 };
        match self {
            Work::AllToAll | Work::Transposing => (ranks, ranks),
            Work::AllGather => (1, ranks),
            Work::ReduceScatter => (ranks, 1),
            Work::AllReduce => (1, 1),
            Work::Broadcast => (at_root(1), 1),
            Work::Gather => (1, at_root(ranks)),
            Work::Scatter => (at_root(ranks), 1),
        }
    }

    /// The chunk of a rank's input that goes to a rank (possibly itself), and the chunk of the output there that it
    /// becomes or is summed into; `None` if nothing goes there.
    pub fn route(self, rank: usize, to: usize) -> Option<(usize, usize)> {
        match self {
            Work::AllToAll | Work::Transposing => Some((to, rank)),
            Work::AllGather => Some((0, rank)),
            Work::ReduceScatter => Some((to, 0)),
            Work::AllReduce => Some((0, 0)),
            Work::Broadcast => (rank == ROOT && to != ROOT).then_some((0, 0)),
            Work::Gather => (to == ROOT).then_some((0, rank)),
            Work::Scatter => (rank == ROOT).then_some((to, 0)),
        }
    }

    /// Bytes that a rank sends to others (for a gather: that the root gets from them), for chunks of `bytes` bytes: the
    /// basis of a collective's speed.
    pub fn volume(self, bytes: usize, ranks: usize) -> usize {
        // An all-reduce is a reduce-scatter and an all-gather of its shards.
        if self == Work::AllReduce { 2 * bytes / ranks * (ranks - 1) } else { bytes * (ranks - 1) }
    }
}

/// Rows and columns of a chunk: about equal, rows a power of two.
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

/// The data of one rank.
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
    /// For tensors with room for the chunks of the work; ranks other than the root may have fewer.
    pub fn new(work: Work, link: &ShmTransport, chunk: usize, inp: &Tensor<f32>, out: &Tensor<f32>) -> Data {
        let (rank, ranks) = (link.rank().index(), link.world_size());
        let (inputs, outputs) = work.chunks(rank, ranks);
        let (inp, out) = (inp.slice(0..inputs * chunk), out.slice(0..outputs * chunk));
        Data { work, rank, ranks, chunk, inp, out }
    }

    /// Makes the input differ from the last one: the first and the last element of every chunk become the number of the
    /// step.
    #[inline]
    fn stamp(&self, number: u64) {
        for first in (0..self.inp.len()).step_by(self.chunk) {
            self.inp.set(first, stamp(number));
            self.inp.set(first + self.chunk - 1, stamp(number));
        }
    }

    /// Checks the output of this step, by the first and last elements of chunks.
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
        // The input last: in place it is the output.
        self.out.fill(-1.0);
        (0..self.inp.len()).for_each(|k| self.inp.set(k, value(self.rank, k)));
    }

    /// Element `k` of chunk `p` of the output, for an element that is neither first nor last.
    fn must(&self, p: usize, k: usize) -> f32 {
        let own = self.rank * self.chunk;
        let sum = |k: usize| (0..self.ranks).map(|rank| value(rank, k)).sum();
        match self.work {
            Work::AllToAll => value(p, own + k),
            Work::Transposing => {
                let (rows, cols) = shape(self.chunk);
                value(p, own + k % rows * cols + k / rows)
            }
            Work::AllGather | Work::Gather => value(p, k),
            Work::ReduceScatter => sum(own + k),
            Work::AllReduce => sum(k),
            Work::Broadcast => value(ROOT, k),
            Work::Scatter => value(ROOT, own + k),
        }
    }

    /// Checks the whole output; with `fills` it is the number of the step everywhere.
    fn verify(&self, number: u64, fills: bool) -> Result<()> {
        self.expect(number)?;
        for (at, got) in self.out.to_vec().into_iter().enumerate() {
            let (p, k) = (at / self.chunk, at % self.chunk);
            let must = if fills { stamp(number) } else { self.must(p, k) };
            if k != 0 && k != self.chunk - 1 && got != must {
                bail!("the result is wrong: element {k} of chunk {p} is {got} and not {must}");
            }
        }
        Ok(())
    }
}

/// The number of a step as an element.
pub fn stamp(number: u64) -> f32 {
    (number % 4096) as f32
}

/// One way of doing the work, as one rank sees it. Step k is the k-th call, from 1 on, by all ranks.
pub trait Step {
    /// Does it. When it returns, the input may be changed and the output is complete.
    fn step(&mut self, number: u64) -> Result<()>;

    /// True if it reads no input, and writes the number of the step instead.
    fn fills(&self) -> bool {
        false
    }
}

/// Keeps a rank from running ahead of ranks that it sends to but that send it nothing.
///
/// ```text
///   sender:    step k ───┬─▶ wait for `has k` of all it sends to ──▶ step k + 1
///   receiver:  step k ◀──┘ check it   │ has k ──┘
/// ```
/// A broadcast's root is done when it has sent. With room in between (slots, packets, the eager buffers of MPI) it
/// would be many steps ahead, and the figure would be its sending rate, not the duration of a broadcast. So a step is
/// over when all ranks have it, on every side of a contest: ours, limits and MPI (`mpi_peer.c`). All use the same word
/// on its own line, at the same cost for all. Work in which every rank receives from every other needs none.
struct Pace<'l> {
    rank: usize,
    /// One word for each rank.
    has: Vec<Word<'l>>,
    /// The ranks that this rank sends to.
    receivers: Vec<usize>,
}

impl<'l> Pace<'l> {
    fn of(data: &Data, words: &Words<'l>) -> Option<Pace<'l>> {
        let Data { work, rank, ranks, .. } = *data;
        let sends_to = |&peer: &usize| peer != rank && work.route(rank, peer).is_some();
        let has = || (0..ranks).map(|_| words.next()).collect();
        work.is_rooted().then(|| Pace { rank, has: has(), receivers: (0..ranks).filter(sends_to).collect() })
    }

    #[inline]
    fn keep(&self, number: u64) -> Result<()> {
        self.has[self.rank].store(number, Release);
        self.receivers.iter().try_for_each(|&peer| self.has[peer].wait(number))
    }
}

/// Steps over data, each different from the last. Generic, so that a step costs no indirect call.
pub struct Steps<'l, S> {
    step: S,
    data: Data,
    pace: Option<Pace<'l>>,
    number: u64,
}

impl<'l, S: Step> Steps<'l, S> {
    /// All ranks must request the words in the same order.
    pub fn new(step: S, data: Data, words: &Words<'l>) -> Steps<'l, S> {
        Steps { step, pace: Pace::of(&data, words), data, number: 0 }
    }
}

impl<S: Step> Run for Steps<'_, S> {
    fn run(&mut self, steps: u64) -> Result<()> {
        for _ in 0..steps {
            self.number += 1;
            self.data.stamp(self.number);
            self.step.step(self.number)?;
            self.data.expect(self.number)?;
            self.pace.as_ref().map_or(Ok(()), |pace| pace.keep(self.number))?;
        }
        Ok(())
    }

    fn fill(&mut self) {
        self.data.fill();
    }

    fn verify(&mut self) -> Result<()> {
        self.data.verify(self.number, self.step.fills())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::SeqCst;
    use tilewire::link::ShmOptions;
    use tilewire::transport::World;

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
        data.verify(9, false).unwrap();
        assert!(data.verify(9, true).unwrap_err().to_string().contains("element 1 of chunk 0 is 35 and not 9"));
        data.out.set(6, 0.0);
        assert!(data.verify(9, false).unwrap_err().to_string().contains("element 2 of chunk 1 is 0 and not 55"));
        data.out.fill(9.0);
        data.verify(9, true).unwrap();
    }

    const ALL: [Work; 8] = [
        Work::AllToAll,
        Work::Transposing,
        Work::AllGather,
        Work::ReduceScatter,
        Work::AllReduce,
        Work::Broadcast,
        Work::Gather,
        Work::Scatter,
    ];

    #[test]
    fn every_chunk_of_an_output_comes_from_one_rank_or_is_a_sum_of_all() {
        for (work, ranks) in ALL.into_iter().flat_map(|work| (1..5).map(move |ranks| (work, ranks))) {
            for rank in 0..ranks {
                let outputs = work.chunks(rank, ranks).1;
                let mut sources = vec![0; outputs];
                for from in 0..ranks {
                    let Some((sent, becomes)) = work.route(from, rank) else { continue };
                    assert!(sent < work.chunks(from, ranks).0, "{work:?}: {from} has no chunk {sent}");
                    sources[becomes] += 1;
                }
                // The root of a broadcast already has its data.
                let there = usize::from(work == Work::Broadcast && rank == ROOT);
                let must = if work.reduces() { ranks } else { 1 - there };
                assert_eq!(sources, vec![must; outputs], "{work:?}, rank {rank} of {ranks}");
            }
        }
    }

    #[test]
    fn no_rank_has_more_than_the_root() {
        for work in ALL {
            let root = work.chunks(ROOT, 4);
            let others = (0..4).map(|rank| work.chunks(rank, 4));
            assert!(others.into_iter().all(|(inp, out)| inp <= root.0 && out <= root.1), "{work:?}");
        }
    }

    #[test]
    fn what_is_in_place_is_filled_and_stays() {
        let x = Tensor::zeros(4);
        let data = |rank, inp: &Tensor<f32>| Data {
            work: Work::Broadcast,
            rank,
            ranks: 2,
            chunk: 4,
            inp: inp.clone(),
            out: x.clone(),
        };
        let root = data(ROOT, &x);
        root.fill();
        root.stamp(3);
        root.verify(3, false).unwrap();
        // Another rank has no input, and the root's earlier data is no result.
        let other = data(1, &Tensor::zeros(0));
        other.fill();
        other.stamp(3);
        assert!(other.expect(3).is_err());
        [3.0, 7.0, 14.0, 3.0].into_iter().enumerate().for_each(|(k, value)| x.set(k, value));
        other.verify(3, false).unwrap();
    }

    /// A step whose receiver records the step's number, and whose sender does not wait.
    struct Careless<'a> {
        receives: bool,
        received: &'a AtomicU64,
        out: Tensor<f32>,
    }

    impl Step for Careless<'_> {
        fn step(&mut self, number: u64) -> Result<()> {
            if self.receives {
                self.out.fill(stamp(number));
                self.received.store(number, SeqCst);
            } else {
                assert!(self.received.load(SeqCst) >= number - 1, "step {number} begins before the last is over");
            }
            Ok(())
        }
    }

    #[test]
    fn who_sends_does_not_run_ahead_of_who_receives() {
        for work in [Work::Broadcast, Work::Gather, Work::Scatter] {
            let received = AtomicU64::new(0);
            let worked = World::threads(2).run(|world| {
                let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
                let (x, words) = (Tensor::zeros(4), Words::allocate(&link)?);
                let data = Data::new(work, &link, 2, &x, &x);
                let receives = (data.rank == ROOT) == (work == Work::Gather);
                let step = Careless { receives, received: &received, out: data.out.clone() };
                // A rank that only sends has nothing in its output.
                let data = if receives { data } else { Data { out: Tensor::zeros(0), ..data } };
                Steps::new(step, data, &words).run(1000)?;
                Ok(link.close()?)
            });
            worked.unwrap();
        }
    }

    #[test]
    fn volumes_are_what_a_rank_sends() {
        assert_eq!(Work::AllToAll.volume(100, 4), 300);
        assert_eq!(Work::AllReduce.volume(100, 2), 100);
        assert_eq!(Work::AllReduce.volume(100, 4), 150);
        assert_eq!(Work::Scatter.volume(100, 4), 300);
    }
}
