//! Direct: one hop into the receiver's window.
//!
//! ```text
//!   receiver, launch n                    sender, launch n
//!   READY[block] := n + 1   ───────────▶  wait READY[block] ≥ n + 1
//!                                         put this block's part into the window
//!   wait DONE[block] ≥ n + 1  ◀─────────  DONE[block] := n + 1
//! ```
//! The receiver's launch n permits the writes of launch n, so a fast sender never overwrites a result that is still being read. Every
//! block waits for its own READY: that of another says nothing about this one's.

use super::counters::{Counters, Keeps, Shape, block_of};
use super::ops::{Ops, Span, Word};
use super::tiling::{Leg, Tiling};
use crate::hook::{PutParts, Regs, RoleCtx, Value};
use crate::ir::scalar::Element;
use crate::transport::layout::{Side, StartWord};

/// Writes this block's part of a chunk into the peer's window: `produce` gives what is stored at a position, one value. The tiling has
/// a tile for each block.
#[track_caller]
pub fn send_direct<'t, R: Regs, O: Ops<'t>>(
    r: &RoleCtx<'t>,
    ops: &O,
    max_blocks: usize,
    tiling: Tiling,
    produce: impl Fn(&Leg<'t>) -> R::Of<'t>,
) {
    let block = block_of(r, tiling.blocks());
    let counters = Counters::of(r, ops, block, Side::Send, Shape { max_blocks, keeps: Keeps::One });
    let next = counters.get(StartWord::Direct) + 1;
    ops.wait(r, Word::Ready(block), next);
    let size = R::TYPES[0].size() as i64;
    tiling.for_tiles(r, |step, tile| {
        tile.each(r, |spot| {
            let offset = byte_of(spot.pos, R::TYPES[0].size());
            R::put(produce(&Leg { spot, step, slot: None, region: None }), &InWindow { ops, offset });
        });
    });
    let (len, part) = (tiling.len() as i64, tiling.tile_len() as i64);
    let first = block * part;
    let bytes = (r.constant(len) - first).max(0).min(part) * size;
    let span = Span { offset: first * size, bytes };
    ops.deliver(r, span, Word::Done(block), next);
    counters.set(StartWord::Direct, next);
}

/// The first byte of a position of a window.
pub(super) fn byte_of<'t>(pos: Value<'t, i64>, size: usize) -> Value<'t, i64> {
    if size == 1 { pos } else { pos * size as i64 }
}

/// An element of the peer's window.
struct InWindow<'o, 't, O> {
    ops: &'o O,
    offset: Value<'t, i64>,
}

impl<'t, O: Ops<'t>> PutParts<'t> for InWindow<'_, 't, O> {
    #[track_caller]
    fn put<T: Element>(&self, _: usize, x: Value<'t, T>) {
        self.ops.put(self.offset, x);
    }
}

/// Lets the peer write this block's part of this rank's window, and waits until it has.
#[track_caller]
pub fn recv_direct<'t, O: Ops<'t>>(r: &RoleCtx<'t>, ops: &O, max_blocks: usize, blocks: usize) {
    let block = block_of(r, blocks);
    let counters = Counters::of(r, ops, block, Side::Receive, Shape { max_blocks, keeps: Keeps::One });
    let next = counters.get(StartWord::Direct) + 1;
    ops.signal(r, Word::Ready(block), next);
    ops.wait(r, Word::Done(block), next);
    counters.set(StartWord::Direct, next);
}
