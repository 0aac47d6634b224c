//! Correct programs of random sizes: parts between neighbours in a ring of ranks. Each part has its own roles and
//! memory. The counters continue over several launches.
//!
//! ```text
//!   pipeline   send ──tail──▶ receive ──head (credit)──▶ send     tiles in `depth` places; copies take turns
//!   packets    put  ──flag──▶ get     ──free (credit)──▶ put
//!   swap       one `each` puts to the next rank and gets from the one before
//!   chain      rank 0 puts, every other gets in one `each` and puts on in the next
//!   reduction  all add (relaxed), signal; rank 0 waits for all and reads, credits
//! ```

use super::{Case, Make, Room, disagreement, is_clean};
use crate::checker::brute::numbers;
use std::sync::Arc;
use tilewire::hook::Block;
use tilewire::ir::{Access, Order, Scope};
use tilewire::{Arg, Memory, Tensor, Traced, kernel};
use tilewire_testkit::random::Random;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Pipeline,
    Packets,
    Swap,
    Chain,
    Reduction,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    kind: Kind,
    /// The number of elements of a tile, or of packets.
    len: usize,
    tiles: usize,
    depth: usize,
    /// The copies of the sending role, and of the receiving one.
    copies: [u32; 2],
}

#[derive(Clone, Debug)]
struct Correct {
    ranks: usize,
    blocks: usize,
    launches: usize,
    parts: Vec<Part>,
}

impl Correct {
    fn random(random: &mut Random) -> Correct {
        let kinds = [Kind::Pipeline, Kind::Pipeline, Kind::Packets, Kind::Swap, Kind::Chain, Kind::Reduction];
        let (ranks, blocks, launches) = (2 + random.below(3), 1 + random.below(2), 1 + random.below(3));
        let mut part = || {
            let copies = [1 + random.below(4), 1 + random.below(3)];
            Part {
                kind: random.pick(&kinds),
                len: 1 + random.below(40),
                tiles: 1 + random.below(6),
                // A place belongs to one copy of the sender. A credit lets no copy overwrite what another one has
                // written.
                depth: copies[0] * (1 + random.below(4)),
                copies: copies.map(|copies| copies as u32),
            }
        };
        let parts = [part(), part()];
        let parts = parts[..1 + random.below(2)].to_vec();
        Correct { ranks, blocks, launches, parts }
    }

    fn make(&self, room: &Room) -> Case {
        let rings: Vec<Ring> = self.parts.iter().map(|part| Ring::new(part, self, room)).collect();
        let outs = |rank: usize| rings.iter().flat_map(move |ring| ring.outs.iter().map(move |outs| &outs[rank]));
        let own = (0..self.ranks).map(|rank| outs(rank).map(|out| out.memory().clone()).collect()).collect();
        let shared = rings.iter().flat_map(|ring| ring.shared.iter().chain(&ring.tails).chain(&ring.heads)).cloned();
        let trace = |launch: usize, rank: usize| {
            let traced = kernel("correct", |k| {
                k.blocks(self.blocks as u32);
                rings.iter().enumerate().for_each(|(number, ring)| ring.trace(k, number, launch, rank));
            });
            traced.expect("a right program")
        };
        let launches = (0..self.launches).map(|launch| (0..self.ranks).map(|rank| trace(launch, rank)).collect());
        let launches: Vec<Vec<Traced>> = launches.collect();
        // Not every part uses all of its memory.
        let args = || launches.iter().flatten().flat_map(|traced| &traced.args);
        let names = |arg: &Arg, memory: &Memory| match arg {
            Arg::Buffer(banks) | Arg::Slots(banks) => banks.iter().any(|bank| bank.is(memory)),
            _ => false,
        };
        let shared = shared.filter(|memory| args().any(|arg| names(arg, memory))).collect();
        Case { shared, own, launches }
    }
}

/// A part with its memory.
struct Ring<'p> {
    part: &'p Part,
    ranks: usize,
    blocks: usize,
    /// For each rank, the memory that others write there.
    shared: Vec<Memory>,
    /// For each rank, the counters of data there, and of places that are free again.
    tails: Vec<Memory>,
    heads: Vec<Memory>,
    /// For each rank.
    inputs: Vec<Tensor<u64>>,
    /// For each launch, then for each rank.
    outs: Vec<Vec<Tensor<u64>>>,
}

impl<'p> Ring<'p> {
    fn new(part: &'p Part, program: &Correct, room: &Room) -> Ring<'p> {
        let Correct { ranks, blocks, launches, .. } = *program;
        let (len, tiles) = (part.len, if part.kind == Kind::Pipeline { part.tiles } else { 1 });
        let all = |bytes: usize| (0..ranks).map(|_| room.shared(bytes)).collect::<Vec<_>>();
        let elements = blocks * tiles * len;
        let input = |rank| Tensor::from_fn(elements, |i| (rank * 1009 + i * 31 + 7) as u64);
        Ring {
            part,
            ranks,
            blocks,
            shared: all(blocks * part.depth * len * 16),
            tails: all(8 * (blocks * part.depth).max(ranks * blocks)),
            heads: all(8 * (blocks * part.depth).max(ranks * blocks)),
            inputs: (0..ranks).map(input).collect(),
            outs: (0..launches).map(|_| (0..ranks).map(|_| Tensor::zeros(elements)).collect()).collect(),
        }
    }

    fn trace(&self, k: &Block<'_>, number: usize, launch: usize, rank: usize) {
        match self.part.kind {
            Kind::Pipeline => self.pipeline(k, number, launch, rank),
            Kind::Packets => self.packets(k, number, launch, rank),
            Kind::Swap => self.swap(k, number, launch, rank),
            Kind::Chain => self.chain(k, number, launch, rank),
            Kind::Reduction => self.reduction(k, number, launch, rank),
        }
    }

    fn next(&self, rank: usize) -> usize {
        (rank + 1) % self.ranks
    }

    fn before(&self, rank: usize) -> usize {
        (rank + self.ranks - 1) % self.ranks
    }

    fn pipeline(&self, k: &Block<'_>, number: usize, launch: usize, rank: usize) {
        let Part { len, tiles, depth, copies, .. } = *self.part;
        let [tiles, depth, size] = [tiles, depth, len].map(|n| n as i64);
        let (next, before, launch) = (self.next(rank), self.before(rank), launch as i64);
        let staging = k.region(&format!("staging {number}"), &[self.shared[rank].clone(), self.shared[next].clone()]);
        let tails = k.slots(&format!("tails {number}"), &[self.tails[rank].clone(), self.tails[next].clone()], 8);
        let heads = k.slots(&format!("heads {number}"), &[self.heads[rank].clone(), self.heads[before].clone()], 8);
        let (x, y) = (k.input(&self.inputs[rank]), k.output(&self.outs[launch as usize][rank]));
        k.role(format!("send {number}"), 1).copies(copies[0], |r| {
            r.for_turns(tiles, |tile| {
                let (step, first) = (tile + launch * tiles, (r.block() * tiles + tile) * size);
                let (place, round) = (r.block() * depth + step % depth, step / depth);
                r.wait(heads.slot(0, place), round);
                r.each(size, |i| staging.put(1, (place * size + i) * 8, x.load(first + i) * 3 + 1));
                r.signal(tails.slot(1, place), round + 1);
            });
        });
        k.role(format!("receive {number}"), 1).copies(copies[1], |r| {
            r.for_turns(tiles, |tile| {
                let (step, first) = (tile + launch * tiles, (r.block() * tiles + tile) * size);
                let (place, round) = (r.block() * depth + step % depth, step / depth);
                r.wait(tails.slot(0, place), round + 1);
                r.each(size, |i| y.store(first + i, staging.get::<u64>(0, (place * size + i) * 8) ^ 5));
                r.signal_credit(heads.slot(1, place), round + 1);
            });
        });
    }

    fn packets(&self, k: &Block<'_>, number: usize, launch: usize, rank: usize) {
        let (len, flag) = (self.part.len as i64, launch as u32 + 1);
        let (next, before, turn) = (self.next(rank), self.before(rank), launch as i64);
        let wire = k.region(&format!("packets {number}"), &[self.shared[rank].clone(), self.shared[next].clone()]);
        let free = k.slots(&format!("free {number}"), &[self.heads[rank].clone(), self.heads[before].clone()], 8);
        let (x, y) = (k.input(&self.inputs[rank]), k.output(&self.outs[launch][rank]));
        k.role(format!("put {number}"), 1).run(|r| {
            let first = r.block() * len;
            r.wait(free.slot(0, r.block()), turn);
            r.each(len, |i| wire.packet_put(1, first + i, x.load(first + i) * 5, flag));
        });
        k.role(format!("get {number}"), 1).run(|r| {
            let first = r.block() * len;
            r.each(len, |i| y.store(first + i, wire.packet_get(0, first + i, flag) + 3));
            r.signal_credit(free.slot(1, r.block()), turn + 1);
        });
    }

    fn swap(&self, k: &Block<'_>, number: usize, launch: usize, rank: usize) {
        let (len, flag) = (self.part.len as i64, launch as u32 + 1);
        let (next, before, turn) = (self.next(rank), self.before(rank), launch as i64);
        let wire = k.region(&format!("swap {number}"), &[self.shared[rank].clone(), self.shared[next].clone()]);
        let free = k.slots(&format!("free {number}"), &[self.heads[rank].clone(), self.heads[before].clone()], 8);
        let (x, y) = (k.input(&self.inputs[rank]), k.output(&self.outs[launch][rank]));
        k.role(format!("swap {number}"), 1).run(|r| {
            let first = r.block() * len;
            r.wait(free.slot(0, r.block()), turn);
            r.each(len, |i| {
                wire.packet_put(1, first + i, x.load(first + i) + 11, flag);
                y.store(first + i, wire.packet_get(0, first + i, flag) * 7);
            });
            r.signal_credit(free.slot(1, r.block()), turn + 1);
        });
    }

    fn chain(&self, k: &Block<'_>, number: usize, launch: usize, rank: usize) {
        let (len, flag) = (self.part.len as i64, launch as u32 + 1);
        let (next, before, turn) = (self.next(rank), self.before(rank), launch as i64);
        let wire = k.region(&format!("chain {number}"), &[self.shared[rank].clone(), self.shared[next].clone()]);
        let free = k.slots(&format!("free {number}"), &[self.heads[rank].clone(), self.heads[before].clone()], 8);
        let (x, y) = (k.input(&self.inputs[rank]), k.output(&self.outs[launch][rank]));
        k.role(format!("chain {number}"), 1).run(|r| {
            let first = r.block() * len;
            match rank {
                0 => r.each(len, |i| y.store(first + i, x.load(first + i))),
                _ => {
                    r.each(len, |i| y.store(first + i, wire.packet_get(0, first + i, flag) + x.load(first + i)));
                    r.signal_credit(free.slot(1, r.block()), turn + 1);
                }
            }
            if next != 0 {
                r.wait(free.slot(0, r.block()), turn);
                r.each(len, |i| wire.packet_put(1, first + i, y.load(first + i), flag));
            }
        });
    }

    fn reduction(&self, k: &Block<'_>, number: usize, launch: usize, rank: usize) {
        let (len, turn, ranks, blocks) = (self.part.len as i64, launch as i64, self.ranks as i64, self.blocks as i64);
        let sums = k.buffer::<u64>(&format!("sums {number}"), &self.shared[..1], Access::InOut).bank(0);
        let done = k.slots(&format!("done {number}"), &self.tails[..1], 8);
        let free = k.slots(&format!("free {number}"), &self.heads[..1], 8);
        let (x, y) = (k.input(&self.inputs[rank]), k.output(&self.outs[launch][rank]));
        k.role(format!("add {number}"), 1).run(|r| {
            let (first, mine) = (r.block() * len, r.block() + rank as i64 * blocks);
            r.wait(free.slot(0, mine), turn);
            r.each(len, |i| _ = sums.atomic_add(first + i, x.load(first + i), Order::Relaxed, Scope::System));
            r.signal(done.slot(0, mine), turn + 1);
        });
        if rank == 0 {
            k.role(format!("collect {number}"), 1).run(|r| {
                let first = r.block() * len;
                (0..ranks).for_each(|from| r.wait(done.slot(0, r.block() + from * blocks), turn + 1));
                r.each(len, |i| y.store(first + i, sums.load(first + i) + 1));
                (0..ranks).for_each(|to| r.signal_credit(free.slot(0, r.block() + to * blocks), turn + 1));
            });
        }
    }
}

#[test]
fn programs_that_are_right_are_clean_and_run() {
    let all = numbers(60);
    for seed in all.clone() {
        let program = Correct::random(&mut Random::of_case(!seed ^ 1 << 39));
        let (clean, report) = is_clean(&program.make(&Room::apart()));
        assert!(clean && report.is_decided(), "seed {seed}: {program:?}\n{report}");
        let right = program.clone();
        let make: Make = Arc::new(move |room| right.make(room));
        if let Some(wrong) = disagreement(&make, 3, true) {
            panic!("seed {seed}: {wrong}\n{program:?}");
        }
    }
    println!("{} programs ran", all.end - all.start);
}
