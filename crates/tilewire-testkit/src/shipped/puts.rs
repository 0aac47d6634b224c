//! Plans of puts into windows by kernels of one's own, with their signals and counters.
//!
//! ```text
//!   receiver: signal 2b of the previous rank        the window may be written
//!   sender:   wait for it, put with signal 2b + 1   block b; wait for the counter
//!   receiver: wait for signal 2b + 1, read the window
//! ```

use super::{Cases, World};
use tilewire::check::Plan;
use tilewire::link::{Puts, PutsOptions};
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::{RunError, Tensor, Traced, kernel};

/// The way in which bytes are put.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Direct,
    /// The kernel computes the peer, and looks up how it is reached.
    Computed,
    /// Through an outbox, if the peer is far.
    Block,
    /// By several copies of a role.
    Chunked,
    /// A signal of its own follows the bytes.
    Signalled,
}

const ALL: [(&str, How); 4] = [
    ("put", How::Direct),
    ("put to a computed peer", How::Computed),
    ("put by a block", How::Block),
    ("put and a signal", How::Signalled),
];

/// Elements that a block puts.
const LEN: i64 = 24;
const LAUNCHES: usize = 3;

/// The cases of one copy of a role.
pub(super) fn cases(cases: &mut Cases, world: &World) {
    for (name, how) in ALL {
        let world = world.clone();
        cases.add("sendrecv", name, move || plan(&world, how));
    }
}

/// Puts in chunks by two copies of a role. It is none of the shipped cases: its copies meet, which is more than they
/// need, so not everything that is left out there is a mistake.
pub fn in_chunks(rehearsal: &Rehearsal, ranks: usize, blocks: usize) -> Result<Plan, RunError> {
    rehearsed(rehearsal, (ranks, blocks), How::Chunked)
}

fn plan(world: &World, how: How) -> Result<Plan, RunError> {
    rehearsed(&world.small(), (world.ranks, world.blocks), how)
}

fn rehearsed(rehearsal: &Rehearsal, (ranks, blocks): (usize, usize), how: How) -> Result<Plan, RunError> {
    let tensors = || -> Vec<Tensor<u32>> { (0..ranks).map(|_| Tensor::zeros(blocks * LEN as usize)).collect() };
    let (windows, inputs, outputs) = (tensors(), tensors(), tensors());
    rehearsal.plan(LAUNCHES, |link, launch| {
        let rank = link.number() as usize;
        trace(link, (blocks, launch), &windows, (&inputs[rank], &outputs[rank]), how)
    })
}

fn trace(
    link: &RehearsalRank,
    (blocks, launch): (usize, usize),
    windows: &[Tensor<u32>],
    (x, y): (&Tensor<u32>, &Tensor<u32>),
    how: How,
) -> Result<Traced, RunError> {
    let mut options = PutsOptions::default();
    // A put takes two turns through it.
    (options.blocks, options.outbox_bytes) = (Some(blocks), Some(64));
    let (window, (to, from)) = (link.window(windows), link.neighbours());
    let puts = Puts::with(link, &window, options)?;
    let source = puts.source(x)?;
    let next = Tensor::from_slice(&[i64::from(to.number())]);
    let copies = if how == How::Chunked { 2 } else { 1 };
    Ok(kernel("puts", |k| {
        k.blocks(blocks as u32);
        let (ops, source, y, next) = (puts.ops(k), source.bind(k), k.output(y), k.input(&next));
        k.role("put", 2).copies(copies, |r| {
            let (free, full, first) = (r.block() * 2, r.block() * 2 + 1, r.block() * (4 * LEN));
            // The second launch puts less.
            let bytes = 4 * LEN - launch as i64 % 2 * 8;
            let to = i64::from(to.number());
            if how == How::Chunked {
                r.if_(r.copy().eq(0), || ops.wait_signal_from(r, to, free));
                ops.meet(r);
                ops.to(to, first).from(source, first, bytes).signal(full).counter(full).put_warp_chunked_direct(r, 16);
                return r.if_(r.copy().eq(0), || ops.wait_counter(r, to, full));
            }
            match how {
                How::Computed => {
                    let to = next.load(0);
                    ops.wait_signal_from(r, to, free);
                    ops.to(to, first).from(source, first, bytes).signal(full).counter(full).put_block_direct(r);
                    return ops.wait_counter(r, to, full);
                }
                How::Block => {
                    ops.wait_signal_from(r, to, free);
                    // The source is free when this returns.
                    return ops.to(to, first).from(source, first, bytes).signal(full).counter(full).put_block(r);
                }
                How::Signalled => {
                    ops.wait_signal_from(r, to, free);
                    ops.to(to, first).from(source, first, bytes).counter(full).put_block_direct(r);
                    ops.signal(r, to, full);
                }
                _ => {
                    ops.wait_signal_from(r, to, free);
                    ops.to(to, first).from(source, first, bytes).signal(full).counter(full).put_block_direct(r);
                }
            }
            ops.wait_counter(r, to, full);
        });
        k.role("receive", 2).run(|r| {
            let (free, full, first) = (r.block() * 2, r.block() * 2 + 1, r.block() * LEN);
            let from = i64::from(from.number());
            ops.signal(r, from, free);
            ops.wait_signal_from(r, from, full);
            r.each(LEN, |i| y.store(first + i, ops.own().get::<u32>(0, (first + i) * 4)));
        });
    })?)
}
