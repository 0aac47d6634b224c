//! The place where a hook is called: the chunks of a leg, and everything else in the context of the hook.

use super::flow::Flow;
use crate::hook::{AnyCtx, AnyCtxBuilder, Chunk, RoleCtx};
use crate::schedule::{Position, Tiling};
use crate::transport::Rank;

/// The surroundings of the hooks of one leg.
pub(super) struct Scene<'t> {
    pub input: Chunk<'t, ()>,
    pub output: Chunk<'t, ()>,
    pub tiling: Tiling,
    /// Determines the fields that name ranks.
    pub flow: Flow,
    /// The rank whose output gets the produced value, or whose input gave the consumed value. For a chunk that a rank
    /// passes to itself, it is this rank. In a ring, the neighbour that passes a value on is usually a different rank.
    pub other: Rank,
    /// The position in the hooks' chunk at which the leg's tiles begin.
    pub start: usize,
    /// Columns of that chunk, if it has a shape that the tiles do not have.
    pub cols: Option<usize>,
}

impl<'t> Scene<'t> {
    /// The context of a produce hook for one position.
    pub(super) fn producing(&self, r: &RoleCtx<'t>, at: &Position<'t>) -> AnyCtx<'t> {
        self.flow.producing(self.place(r, at), self.other).build()
    }

    /// The context of a consume hook for one position.
    pub(super) fn consuming(&self, r: &RoleCtx<'t>, at: &Position<'t>) -> AnyCtx<'t> {
        self.flow.consuming(self.place(r, at), self.other).build()
    }

    /// The contexts of both hooks for a position that this rank passes to itself.
    pub(super) fn passing(&self, r: &RoleCtx<'t>, at: &Position<'t>) -> [AnyCtx<'t>; 2] {
        let place = self.place(r, at);
        [self.flow.producing(place.clone(), self.other).build(), self.flow.consuming(place, self.other).build()]
    }

    /// Everything but the fields that name ranks.
    fn place(&self, r: &RoleCtx<'t>, at: &Position<'t>) -> AnyCtxBuilder<'t> {
        let pos = if self.start == 0 { at.pos } else { at.pos + self.start as i64 };
        let mut c = AnyCtx::new(r, self.input, self.output)
            .pos(pos)
            .tile(at.tile)
            .tile_rows(self.tiling.tile_rows())
            .tile_cols(self.tiling.tile_cols())
            .step(at.step);
        if let Some((row, col)) = at.place {
            c = c.row(row).col(col);
        } else if let Some(cols) = self.cols {
            c = c.row(pos / cols as i64).col((pos % cols as i64).within(cols));
        }
        if let Some(slot) = at.slot {
            c = c.slot(slot.slot);
        }
        if let Some(region) = at.region {
            c = c.region(region);
        }
        c
    }
}
