//! Direct: one hop into the receiver's window.
//!
//! ```text
//!   receiver, launch n                    sender, launch n
//!   READY[block] := n + 1   ───────────▶  wait READY[block] ≥ n + 1
//!                                         put this block's part into the window
//!   wait DONE[block] ≥ n + 1  ◀─────────  DONE[block] := n + 1
//! ```
//! The receiver's launch n permits the writes of launch n, so a fast sender never overwrites a result that is still
//! being read. Every block waits for its own READY, because another block's READY says nothing about it.

use super::counters::{Counters, Keeps, Shape, block_of};
use super::peer::{Peer, Span, Word};
use super::tiling::{Leg, Tiling};
use crate::hook::{Payload, Regs, RoleCtx, Value};
use crate::ir::Type;
use crate::transport::layout::{Side, StartWord};

/// Writes this block's part of a chunk into the peer's window. `produce` returns the single value to store at a
/// position. The tiling has one tile per block.
#[track_caller]
pub fn send_direct<'t, R: Regs>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    max_blocks: usize,
    tiling: Tiling,
    produce: impl Fn(&Leg<'t>) -> R::Of<'t>,
) {
    let to = DirectTo { max_blocks, ty: R::TYPES[0], pitch: None };
    send_direct_any(r, peer, to, tiling, &|at| R::erase(produce(at)));
}

/// How a window is written.
#[derive(Clone, Copy)]
pub(crate) struct DirectTo {
    pub max_blocks: usize,
    /// The type of its elements.
    pub ty: Type,
    /// Distance between rows in bytes, if there are gaps between them. The chunk then has a shape.
    pub pitch: Option<usize>,
}

/// [`send_direct`] with the given type and pitch.
#[track_caller]
pub(crate) fn send_direct_any<'t>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    DirectTo { max_blocks, ty, pitch }: DirectTo,
    tiling: Tiling,
    produce: &dyn Fn(&Leg<'t>) -> Payload<'t>,
) {
    let block = block_of(r, tiling.blocks());
    let counters = Counters::of(r, peer, block, Side::Send, Shape { max_blocks, keeps: Keeps::One });
    let next = counters.get(StartWord::Direct) + 1;
    peer.wait(r, Word::Ready(block), next);
    let size = ty.size() as i64;
    tiling.for_tiles(r, |step, tile| {
        tile.each(r, |spot| {
            let offset = match (pitch, spot.place) {
                (Some(pitch), Some((row, col))) => row * pitch as i64 + byte_of(col, ty.size()),
                (Some(_), None) => unreachable!("rows with gaps between them have a shape"),
                (None, _) => byte_of(spot.pos, ty.size()),
            };
            peer.put_any(offset, produce(&Leg { spot, step, slot: None, region: None }).only());
        });
    });
    let (len, part) = (tiling.len() as i64, tiling.tile_len() as i64);
    let first = block * part;
    let bytes = (r.constant(len) - first).max(0).min(part) * size;
    // Only links that are memory reach windows, and they need no spans: these are for chunks without gaps.
    let span = Span { offset: first * size, bytes };
    peer.deliver(r, &|| vec![span], Word::Done(block), next);
    counters.set(StartWord::Direct, next);
}

/// The first byte of a position in a window.
pub(super) fn byte_of<'t>(pos: Value<'t, i64>, size: usize) -> Value<'t, i64> {
    if size == 1 { pos } else { pos * size as i64 }
}

/// Lets the peer write this block's part of this rank's window, and waits until it has.
#[track_caller]
pub fn recv_direct<'t>(r: &RoleCtx<'t>, peer: &Peer<'t>, max_blocks: usize, blocks: usize) {
    let block = block_of(r, blocks);
    let counters = Counters::of(r, peer, block, Side::Receive, Shape { max_blocks, keeps: Keeps::One });
    let next = counters.get(StartWord::Direct) + 1;
    peer.signal(r, Word::Ready(block), next);
    peer.wait(r, Word::Done(block), next);
    counters.set(StartWord::Direct, next);
}
