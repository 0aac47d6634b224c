//! A staged pipeline between ranks, written by hand: TAIL and HEAD for each slot, and counters in memory that survive
//! launches.

use crate::checker::{check, clean};
use tilewire::hook::Value;
use tilewire::ir::Access;
use tilewire::{Memory, Tensor, Traced, kernel};

/// The memory between a sender and its receiver.
#[derive(Clone)]
pub struct Link {
    pub staging: Memory,
    pub tail: Memory,
    pub head: Memory,
    pub sent: Memory,
    pub received: Memory,
}

impl Link {
    pub fn new(bytes: usize) -> Link {
        let zeroed = |lines: usize| Memory::zeroed(lines * 128);
        Link {
            staging: Memory::zeroed(bytes),
            tail: zeroed(64),
            head: zeroed(64),
            sent: zeroed(16),
            received: zeroed(16),
        }
    }

    /// A ring. Link `r` goes from rank `r` to the next one.
    pub fn ring(ranks: usize, bytes: usize) -> Vec<Link> {
        (0..ranks).map(|_| Link::new(bytes)).collect()
    }
}

/// The numbers of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub blocks: u32,
    pub copies: u32,
    pub depth: i64,
    pub steps: i64,
    pub tile: i64,
}

impl Shape {
    pub const SMALL: Shape = Shape { blocks: 1, copies: 1, depth: 2, steps: 5, tile: 4 };

    pub fn elements(&self) -> usize {
        self.blocks as usize * (self.steps * self.tile) as usize
    }
}

/// The number of slots of a block, for any depth.
pub const SLOTS: i64 = 8;
/// Bytes of staging of a block.
pub const BLOCK: usize = 4096;

/// The kernel of one rank of a ring: it sends its input to the next rank and stores the data of the previous one.
pub fn ring_rank(links: &[Link], rank: usize, shape: Shape, slot_bytes: usize) -> Traced {
    let (to, from) = (&links[rank], &links[(rank + links.len() - 1) % links.len()]);
    let (x, y) = (Tensor::<f32>::zeros(shape.elements()), Tensor::<f32>::zeros(shape.elements()));
    let Shape { blocks, copies, depth, steps, tile } = shape;
    let (slot_bytes, block_bytes) = (slot_bytes as i64, slot_bytes as i64 * SLOTS);
    let one = std::slice::from_ref::<Memory>;
    let traced = kernel("ring", |k| {
        k.blocks(blocks);
        let (x, y) = (k.input(&x).named("x"), k.output(&y).named("y"));
        let (theirs, mine) = (k.region("theirs", one(&to.staging)), k.region("mine", one(&from.staging)));
        let (tail, head) = (k.slots("tail out", one(&to.tail), 128), k.slots("head in", one(&to.head), 128));
        let (arrived, taken) = (k.slots("tail in", one(&from.tail), 128), k.slots("head out", one(&from.head), 128));
        let sent = k.buffer::<u64>("sent", one(&to.sent), Access::InOut).bank(0);
        let received = k.buffer::<u64>("received", one(&from.received), Access::InOut).bank(0);
        k.role("send", 1).copies(copies, |r| {
            let line = r.block() * 16 + r.copy();
            let start = sent.load(line).cast::<i64>();
            r.for_turns(steps, |step| {
                let g: Value<'_, i64> = start + step;
                let slot = g % depth;
                let number = r.block() * SLOTS + slot;
                r.wait(head.slot(0, number), (g + 1 - depth).max(0));
                let (to, from) = (r.block() * block_bytes + slot * slot_bytes, (r.block() * steps + step) * tile);
                r.each(tile, |i| theirs.put(0, to + i * 4, x.load(from + i)));
                r.signal(tail.slot(0, number), g + 1);
            });
            sent.store(line, (start + steps).cast::<u64>());
        });
        k.role("receive", 1).copies(copies, |r| {
            let line = r.block() * 16 + r.copy();
            let start = received.load(line).cast::<i64>();
            r.for_turns(steps, |step| {
                let g: Value<'_, i64> = start + step;
                let slot = g % depth;
                let number = r.block() * SLOTS + slot;
                r.wait(arrived.slot(0, number), g + 1);
                let (from, to) = (r.block() * block_bytes + slot * slot_bytes, (r.block() * steps + step) * tile);
                r.each(tile, |i| y.store(to + i, mine.get::<f32>(0, from + i * 4)));
                r.signal_credit(taken.slot(0, number), g + 1);
            });
            received.store(line, (start + steps).cast::<u64>());
        });
    });
    traced.unwrap()
}

/// A launch of every rank.
pub fn ring(links: &[Link], shape: Shape) -> Vec<Traced> {
    ring_with(links, shape, BLOCK / SLOTS as usize)
}

/// The same with slots of another size.
pub fn ring_with(links: &[Link], shape: Shape, slot_bytes: usize) -> Vec<Traced> {
    (0..links.len()).map(|rank| ring_rank(links, rank, shape, slot_bytes)).collect()
}

#[test]
fn a_staged_ring_is_clean_whatever_its_shape() {
    for ranks in 2..=5 {
        for blocks in 1..=3 {
            for (copies, depth) in [(1, 2), (2, 2), (2, 4), (4, 4), (3, 6)] {
                let links = Link::ring(ranks, blocks as usize * BLOCK);
                let shape = Shape { blocks, copies, depth, steps: 12, tile: 4 };
                let launches: Vec<_> = (0..3).map(|_| ring(&links, shape)).collect();
                clean(&check(&launches));
            }
        }
    }
}

#[test]
fn a_change_of_slot_size_without_a_drain_is_a_race() {
    // The depth stays, the tiles change: slot s of the new launch lies over bytes that the receiver may still be
    // reading.
    let links = Link::ring(2, BLOCK);
    let small = Shape::SMALL;
    let deep = Shape { depth: 3, ..small };
    let report = check(&[ring(&links, small), ring(&links, deep)]);
    assert!(!report.is_clean(), "{report}");
}
