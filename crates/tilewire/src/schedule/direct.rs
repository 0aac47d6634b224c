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
//!
//! To a far peer the part is put into an outbox and posted with its DONE, as one delivery. The sender of launch n + 1
//! may fill the outbox again when it has READY: the receiver's launch n ended before it permitted launch n + 1, and so
//! all its blocks had their bytes. That holds even if the blocks then cut the outbox in another way.
//!
//! An input that is copied as it is needs no outbox ([`post_direct`]). But its bytes are read later than a store would
//! read them, and the user may overwrite them after the launch. So the role ends only when they have been read:
//!
//! ```text
//!   sender, launch n
//!   wait READY[block] ≥ n + 1
//!   post this block's part of the input, with DONE[block] := n + 1
//!   post a flush of SENT[block] := n + 1            this rank's own line, moved by its proxy
//!   wait SENT[block] ≥ n + 1
//! ```

use super::counters::{Counters, Keeps, Shape, block_of};
use super::peer::{Peer, Span, Word};
use super::tiling::{Position, Tiling};
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
    produce: impl Fn(&Position<'t>) -> R::Of<'t>,
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
    produce: &dyn Fn(&Position<'t>) -> Payload<'t>,
) {
    let (block, counters, next) = permitted(r, peer, max_blocks, tiling);
    tiling.for_tiles(r, |step, tile| {
        tile.each(r, |spot| {
            let offset = match (pitch, spot.place) {
                (Some(pitch), Some((row, col))) => row * pitch as i64 + byte_of(col, ty.size()),
                (Some(_), None) => unreachable!("rows with gaps between them have a shape"),
                (None, _) => byte_of(spot.pos, ty.size()),
            };
            peer.put_any(offset, produce(&Position { spot, step, slot: None, region: None }).only());
        });
    });
    let span = span_of(r, tiling, block, ty.size());
    deliver(r, peer, tiling, span, ty.size(), (block, next));
    counters.set(StartWord::Direct, next);
}

/// Posts this block's part of an input to the peer's window as it is, and waits until it has been read. `size` is that
/// of an element. The peer must be reached by posts from the input.
#[track_caller]
pub fn post_direct<'t>(r: &RoleCtx<'t>, peer: &Peer<'t>, max_blocks: usize, tiling: Tiling, size: usize) {
    let (block, counters, next) = permitted(r, peer, max_blocks, tiling);
    let span = span_of(r, tiling, block, size);
    deliver(r, peer, tiling, span, size, (block, next));
    peer.flush(r, Word::Sent(block), next);
    peer.wait(r, Word::Sent(block), next);
    counters.set(StartWord::Direct, next);
}

/// Delivers this block's part.
#[track_caller]
fn deliver<'t>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    tiling: Tiling,
    span: Span<'t>,
    size: usize,
    (block, next): (Value<'t, i64>, Value<'t, u64>),
) {
    if tiling.is_empty() {
        // The window may have no bytes either, not even for a post of none.
        return peer.signal(r, Word::Done(block), next);
    }
    // A block that has nothing to do posts no bytes, at the end of the window: its part would begin beyond.
    let end = (tiling.len() * size) as i64;
    peer.deliver(r, &|| vec![Span { offset: span.offset.min(end), ..span }], Word::Done(block), next);
}

/// Waits until this block may write the window. Returns its number, its counters, and the number of this launch.
#[track_caller]
fn permitted<'t>(
    r: &RoleCtx<'t>,
    peer: &Peer<'t>,
    max_blocks: usize,
    tiling: Tiling,
) -> (Value<'t, i64>, Counters<'t>, Value<'t, u64>) {
    let block = block_of(r, tiling.blocks());
    let counters = Counters::of(r, peer, block, Side::Send, Shape { max_blocks, keeps: Keeps::One });
    let next = counters.get(StartWord::Direct) + 1;
    peer.wait(r, Word::Ready(block), next);
    (block, counters, next)
}

/// The bytes of this block's part.
#[track_caller]
fn span_of<'t>(r: &RoleCtx<'t>, tiling: Tiling, block: Value<'t, i64>, size: usize) -> Span<'t> {
    let (len, part, size) = (tiling.len() as i64, tiling.tile_len() as i64, size as i64);
    let first = block * part;
    let bytes = (r.constant(len) - first).max(0).min(part) * size;
    Span { offset: first * size, bytes }
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
