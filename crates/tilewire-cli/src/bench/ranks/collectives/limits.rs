//! Hand-written limits of collectives: every byte is touched as often as necessary, through windows that all ranks
//! reach.
//!
//! ```text
//!   Moving     ready k │ own chunk │ wait ready k of p, write chunk `rank` of p's output, done k to p │ …
//!              │ wait done k of all; or the own chunk in turns with the first peer's
//!   Reducing   ready k │ wait ready k of all │ sum the own shard of all inputs into the outputs it is for │ done k
//!              │ wait done k of all
//!   Words      to each: the chunk, then k beside it │ from each: wait k │ move or sum
//! ```
//! `ready` means that the output may be written, or that the input is there. If there is a root, each rank does its
//! part of this.

use super::sum::{STRIP, accumulate, add};
use super::work::{Data, ELEMENT, ROOT, Step, Steps, Work, shape, stamp};
use crate::bench::ranks::copy::{Copy, has_turns, in_turns};
use crate::bench::ranks::links::Links;
use crate::bench::ranks::side::{Limit, Side};
use crate::bench::ranks::words::{Word, Words};
use crate::handwritten as hand;
use anyhow::Result;
use std::sync::atomic::Ordering::{Relaxed, Release};
use tilewire::ir::scalar::Element;
use tilewire::link::{ShmTransport, Transport, Window};
use tilewire::{Memory, Tensor};

/// Below this, streamed stores lose by far: the receiver would fetch data from memory that could have come from a
/// cache.
const STREAMED_FROM: usize = 512 << 10;

/// The memory that the sides of one contest share, so that none gets luckier pages.
pub struct Buffers<'l> {
    /// The transport of the limits.
    pub link: &'l ShmTransport,
    /// The transport of our sides.
    pub ours: &'l dyn Transport,
    /// The collective.
    pub work: Work,
    /// Elements of a chunk.
    pub chunk: usize,
    /// Memory private to this rank.
    pub inp: Tensor<f32>,
    pub out: Tensor<f32>,
    /// Memory that all ranks reach.
    pub inputs: Window<f32>,
    pub outputs: Window<f32>,
    words: Words<'l>,
}

impl<'l> Buffers<'l> {
    /// For chunks of `bytes` bytes, rounded up to whole elements. Collective.
    pub fn allocate(links: &'l Links, work: Work, bytes: usize) -> Result<Buffers<'l>> {
        let link = &links.shm;
        let chunk = bytes.div_ceil(ELEMENT).max(1);
        // Windows have the same size on all ranks, so every rank allocates as much as the one that needs most.
        let (inputs, outputs) = work.chunks(ROOT, link.world_size());
        Ok(Buffers {
            link,
            ours: links.ours(),
            work,
            chunk,
            inp: Tensor::zeros(inputs * chunk),
            out: Tensor::zeros(outputs * chunk),
            // Data that is only moved is read by its own rank.
            inputs: Window::allocate(link, if work.reduces() { inputs * chunk } else { 1 })?,
            outputs: Window::allocate(link, outputs * chunk)?,
            words: Words::allocate(link)?,
        })
    }

    /// The data of sides that read and write these tensors.
    fn data(&self, inp: &Tensor<f32>, out: &Tensor<f32>) -> Data {
        Data::new(self.work, self.link, self.chunk, inp, out)
    }

    /// The input of sides that write `out` and read nothing of others: memory private to this rank, unless the work is
    /// done in place.
    pub fn source<'b>(&'b self, out: &'b Tensor<f32>) -> &'b Tensor<f32> {
        if self.work == Work::Broadcast { out } else { &self.inp }
    }

    /// Steps of a side that reads and writes these tensors.
    pub fn steps<S: Step>(&self, step: S, inp: &Tensor<f32>, out: &Tensor<f32>) -> Steps<'l, S> {
        Steps::new(step, self.data(inp, out), &self.words)
    }

    /// The limits of the work, in several forms.
    pub fn limits(&self) -> Vec<Side<'l>> {
        if self.chunk * ELEMENT <= 8 {
            let (inp, out) = (self.source(&self.out), &self.out);
            let words = (0..self.link.world_size().pow(2)).map(|_| [self.words.next(), self.words.next()]).collect();
            let exchange = self.steps(Exchange { words, data: self.data(inp, out) }, inp, out);
            return vec![Side::limit("two words of a line", Limit::Words, exchange)];
        }
        let streams = self.chunk * ELEMENT >= STREAMED_FROM;
        let copies = Copy::available().into_iter().filter(|copy| streams || !copy.streams());
        match self.work {
            Work::Transposing => {
                let ways = [(false, false), (true, false), (false, true), (true, true)];
                let ways = ways.into_iter().filter(|&(way, _)| !way || streams);
                ways.map(|(streams, down)| self.moving(Mover::Transposition { streams, down }, None)).collect()
            }
            // In these, no rank writes two chunks of which one is its own.
            Work::Broadcast | Work::Gather => copies.map(|copy| self.moving(Mover::Copy(copy), None)).collect(),
            Work::AllToAll | Work::AllGather | Work::Scatter => {
                let turns = [[false, false], [false, true], [true, true]].into_iter().filter(|_| has_turns());
                let turns = turns.filter(|ways| streams || !ways.contains(&true));
                copies
                    .map(|copy| self.moving(Mover::Copy(copy), None))
                    .chain(turns.map(|turns| self.moving(Mover::Copy(Copy::Cached), Some(turns))))
                    .collect()
            }
            Work::ReduceScatter => {
                let ways = [false, true].into_iter().filter(|&way| !way || streams);
                ways.map(|streams| self.reducing(Copy::Cached, streams, false)).collect()
            }
            Work::AllReduce => copies
                .map(|copy| self.reducing(copy, copy.streams(), false))
                .chain([self.reducing(Copy::Cached, streams, true)])
                .collect(),
        }
    }

    /// Stores as many bytes as every chunk has where the limit writes them, and reads nothing. Not a limit to judge
    /// others by.
    pub fn stores_alone(&self) -> Vec<Side<'l>> {
        let streams = Copy::available().into_iter().filter(|copy| copy.streams());
        streams.map(|copy| self.moving(Mover::Stores(copy), None)).collect()
    }

    fn moving(&self, mover: Mover, turns: Option<[bool; 2]>) -> Side<'l> {
        let out = self.outputs.tensor();
        let inp = self.source(out);
        let ranks = self.link.world_size();
        let moving = Moving {
            mover,
            turns,
            data: self.data(inp, out),
            outputs: reached(&self.outputs),
            ready: (0..ranks).map(|_| self.words.next()).collect(),
            done: (0..ranks * ranks).map(|_| self.words.next()).collect(),
        };
        let limit = match mover {
            Mover::Copy(_) => Limit::Moved,
            Mover::Transposition { .. } => Limit::Transposed,
            Mover::Stores(_) => Limit::Stores,
        };
        let name = match turns {
            Some(turns) => format!(
                "in turns{}",
                ["", ", sent streamed", ", streamed"][usize::from(turns[0]) + usize::from(turns[1])]
            ),
            None => mover.name(),
        };
        Side::limit(name, limit, self.steps(moving, inp, out))
    }

    fn reducing(&self, copy: Copy, streams: bool, whole: bool) -> Side<'l> {
        let (inp, out) = (self.inputs.tensor(), self.outputs.tensor());
        let words = || (0..self.link.world_size()).map(|_| self.words.next()).collect();
        let (inputs, outputs) = (reached(&self.inputs), reached(&self.outputs));
        let data = self.data(inp, out);
        let reducing = Reducing { data, copy, streams, whole, inputs, outputs, ready: words(), done: words() };
        let name = if whole { "all of it by each" } else { "a shard by each" };
        let name = format!("{name}{}", if streams { ", streamed" } else { copy.suffix() });
        Side::limit(name, Limit::Reduced, self.steps(reducing, inp, out))
    }
}

/// How a chunk gets into an output.
#[derive(Clone, Copy, Debug)]
enum Mover {
    Copy(Copy),
    Transposition {
        streams: bool,
        down: bool,
    },
    /// Nothing is copied: the number of the step is stored instead.
    Stores(Copy),
}

impl Mover {
    fn name(self) -> String {
        match self {
            Mover::Copy(copy) => format!("sender{}", copy.suffix()),
            Mover::Stores(copy) => format!("stores{}", copy.suffix()),
            Mover::Transposition { streams, down } => {
                format!("sender{}{}", if down { ", down" } else { "" }, if streams { ", streamed" } else { "" })
            }
        }
    }

    /// # Safety
    /// No rank writes the elements of `source` from there on, and no other rank touches those of `target` from there
    /// on, before this rank's next signal.
    unsafe fn run(self, target: (&Memory, usize), source: (&Memory, usize), elements: usize, number: u64) {
        let ((target, to), (source, from)) = (target, source);
        match self {
            // SAFETY: the caller guarantees it.
            Mover::Copy(copy) => unsafe {
                copy.run(target, to * ELEMENT, source, from * ELEMENT, elements * ELEMENT);
            },
            // SAFETY: the same.
            Mover::Stores(copy) => unsafe {
                let bits = u64::from(stamp(number).to_bits());
                copy.fill(target, to * ELEMENT, elements * ELEMENT, bits | bits << 32);
            },
            Mover::Transposition { streams, down } => {
                let (rows, cols) = shape(elements);
                // SAFETY: as above.
                let (target, source) = unsafe { (floats_mut(target, to, elements), floats(source, from, elements)) };
                let transpose = match (streams, down) {
                    (false, false) => hand::transpose_f32,
                    (true, false) => hand::transpose_f32_non_temporal,
                    (false, true) => hand::transpose_f32_down,
                    (true, true) => hand::transpose_f32_down_non_temporal,
                };
                transpose(target, source, cols, rows);
            }
        }
    }
}

/// # Safety
/// No rank writes them in the meantime.
///
/// # Panics
/// If they are not inside.
unsafe fn floats(memory: &Memory, first: usize, elements: usize) -> &[f32] {
    assert!((first + elements) * ELEMENT <= memory.bytes());
    // SAFETY: they are inside memory that the handle keeps alive, aligned and initialised like a tensor's or a
    // window's, and the caller guarantees the rest.
    unsafe { std::slice::from_raw_parts(memory.start().as_ptr().cast::<f32>().add(first), elements) }
}

/// # Safety
/// No other rank touches them in the meantime.
///
/// # Panics
/// If they are not inside.
#[allow(
    clippy::mut_from_ref,
    reason = "the memory is shared with other ranks; the caller vouches that this part is not"
)]
unsafe fn floats_mut(memory: &Memory, first: usize, elements: usize) -> &mut [f32] {
    assert!((first + elements) * ELEMENT <= memory.bytes());
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(memory.start().as_ptr().cast::<f32>().add(first), elements) }
}

/// Moves every chunk into its output, by the rank that has it.
struct Moving<'l> {
    mover: Mover,
    /// If set: the own chunk and the first peer's in turns, and which of them are streamed.
    turns: Option<[bool; 2]>,
    data: Data,
    outputs: Vec<Memory>,
    /// One for each rank.
    ready: Vec<Word<'l>>,
    /// One from each rank to each.
    done: Vec<Word<'l>>,
}

impl Step for Moving<'_> {
    fn step(&mut self, number: u64) -> Result<()> {
        let Data { work, rank, ranks, chunk, ref inp, .. } = self.data;
        self.ready[rank].store(number, Release);
        // Elements of the input, and their place in the peer's output.
        let route = |peer: usize| work.route(rank, peer).map(|(sent, becomes)| (sent * chunk, becomes * chunk));
        let routes = (0..ranks).map(|i| (rank + i) % ranks).filter_map(|peer| Some((peer, route(peer)?)));
        let peer = (rank + 1) % ranks;
        let at_once = match (self.turns, route(rank), route(peer)) {
            (Some(streams), Some((own_from, own_to)), Some((from, to))) if ranks > 1 => {
                self.ready[peer].wait(number)?;
                let targets = [(rank, own_to), (peer, to)].map(|(peer, to)| (&self.outputs[peer], to * ELEMENT));
                let sources = [own_from, from].map(|from| (inp.memory(), from * ELEMENT));
                // SAFETY: as below, for both.
                unsafe { in_turns(targets, sources, chunk * ELEMENT, streams) };
                [rank, peer].iter().for_each(|peer| self.done[rank * ranks + peer].store(number, Release));
                2
            }
            _ => 0,
        };
        for (peer, (from, to)) in routes.skip(at_once) {
            if peer != rank {
                self.ready[peer].wait(number)?;
            }
            // SAFETY: the input is this rank's. The peer has allowed this step and does not touch this chunk of its
            // output before `done`; no other rank ever does.
            unsafe { self.mover.run((&self.outputs[peer], to), (inp.memory(), from), chunk, number) };
            self.done[rank * ranks + peer].store(number, Release);
        }
        let mut senders = (0..ranks).filter(|&peer| work.route(peer, rank).is_some());
        senders.try_for_each(|peer| self.done[peer * ranks + rank].wait(number))
    }

    fn fills(&self) -> bool {
        matches!(self.mover, Mover::Stores(_))
    }
}

/// Sums all inputs into the outputs, directly from the memory of their ranks.
struct Reducing<'l> {
    data: Data,
    /// How a sum gets into the outputs of others.
    copy: Copy,
    streams: bool,
    /// True if every rank sums everything; else each sums its shard for all.
    whole: bool,
    inputs: Vec<Memory>,
    outputs: Vec<Memory>,
    ready: Vec<Word<'l>>,
    done: Vec<Word<'l>>,
}

impl Step for Reducing<'_> {
    fn step(&mut self, number: u64) -> Result<()> {
        let Data { work, rank, ranks, chunk, .. } = self.data;
        self.ready[rank].store(number, Release);
        self.ready.iter().try_for_each(|ready| ready.wait(number))?;
        // Start in the inputs, start in the outputs, length, and true if it is for all outputs.
        let shard = chunk.div_ceil(ranks);
        let start = (rank * shard).min(chunk);
        let (from, to, len, shares) = match work {
            Work::ReduceScatter => (rank * chunk, 0, chunk, false),
            _ if self.whole => (0, 0, chunk, false),
            _ => (start, start, shard.min(chunk - start), true),
        };
        for at in (0..len).step_by(STRIP) {
            let strip = STRIP.min(len - at);
            // SAFETY: all ranks leave their inputs unchanged until this one is done, and this part of the outputs is
            // this rank's alone.
            unsafe { self.strip((from + at, to + at, strip), rank, shares) };
        }
        self.done[rank].store(number, Release);
        self.done.iter().try_for_each(|done| done.wait(number))
    }
}

impl Reducing<'_> {
    /// # Safety
    /// No rank writes the inputs there, and no other rank touches the outputs there, in the meantime.
    unsafe fn strip(&self, (from, to, len): (usize, usize, usize), rank: usize, shares: bool) {
        let alone = !shares && self.inputs.len() == 2;
        // SAFETY: the caller guarantees it; inputs and outputs are separate windows.
        unsafe {
            let (own, first) = (floats_mut(&self.outputs[rank], to, len), floats(&self.inputs[0], from, len));
            match &self.inputs[1..] {
                [] => own.copy_from_slice(first),
                [second, more @ ..] => {
                    add(own, first, floats(second, from, len), self.streams && alone);
                    more.iter().for_each(|more| accumulate(own, floats(more, from, len)));
                }
            }
            for (peer, output) in self.outputs.iter().enumerate().filter(|(peer, _)| shares && *peer != rank) {
                debug_assert_ne!(peer, rank);
                self.copy.run(output, to * ELEMENT, &self.outputs[rank], to * ELEMENT, len * ELEMENT);
            }
        }
    }
}

/// Chunks of two elements, each a word beside its flag. Two lines alternate: a rank that is a step ahead has heard from
/// all others in between.
struct Exchange<'l> {
    /// From each rank to each.
    words: Vec<[Word<'l>; 2]>,
    data: Data,
}

impl Step for Exchange<'_> {
    fn step(&mut self, number: u64) -> Result<()> {
        let Data { work, rank, ranks, chunk, ref inp, ref out } = self.data;
        let pair = |chunks: &Tensor<f32>, k: usize| [chunks.get(k * chunk), chunks.get((k + 1) * chunk - 1)];
        let store = |k: usize, [a, b]: [f32; 2]| {
            out.set(k * chunk, a);
            out.set((k + 1) * chunk - 1, b);
        };
        let turn = number as usize % 2;
        for peer in (0..ranks).filter(|&peer| peer != rank) {
            let Some((sent, _)) = work.route(rank, peer) else { continue };
            let (line, [a, b]) = (&self.words[rank * ranks + peer][turn], pair(inp, sent));
            line.beside().store(u64::from(a.to_bits()) | u64::from(b.to_bits()) << 32, Relaxed);
            line.store(number, Release);
        }
        let own = work.route(rank, rank).map(|(kept, becomes)| (pair(inp, kept), becomes));
        let mut sum = own.map_or([0.0; 2], |(own, _)| own);
        if let Some((own, becomes)) = own.filter(|_| !work.reduces()) {
            store(becomes, own);
        }
        for peer in (0..ranks).filter(|&peer| peer != rank) {
            let Some((_, becomes)) = work.route(peer, rank) else { continue };
            let line = &self.words[peer * ranks + rank][turn];
            line.wait(number)?;
            let word = line.beside().load(Relaxed);
            let got = [f32::from_bits(word as u32), f32::from_bits((word >> 32) as u32)];
            if work.reduces() {
                sum = [sum[0] + got[0], sum[1] + got[1]];
            } else {
                store(becomes, got);
            }
        }
        if work.reduces() {
            store(0, sum);
        }
        Ok(())
    }
}

/// The windows of all ranks: those of one machine reach each other.
fn reached<T: Element>(window: &Window<T>) -> Vec<Memory> {
    window.banks().expect("ranks of one machine reach each other's windows")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewire::link::ShmOptions;
    use tilewire::transport::World;

    /// At any size: contests include them only if they take long.
    #[test]
    fn stores_alone_write_what_copies_write() {
        let worked = World::threads(3).run(|world| {
            let links = Links::rendezvous(&world, None, ShmOptions::default())?;
            for work in [Work::AllToAll, Work::AllGather, Work::Scatter] {
                for mut side in Buffers::allocate(&links, work, 4096)?.stores_alone() {
                    side.run.fill();
                    side.run.run(3)?;
                    side.run.verify()?;
                }
            }
            Ok(links.close()?)
        });
        worked.unwrap();
    }
}
