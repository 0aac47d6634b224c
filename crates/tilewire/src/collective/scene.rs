//! Where a hook is called: the chunks of a leg, and everything else its context says.

use crate::hook::{Chunk, Ctx, RoleCtx, Value};
use crate::ir::scalar::Element;
use crate::schedule::{Leg, Tiling};
use crate::transport::Rank;

/// The surroundings of the hooks of one leg.
pub(super) struct Scene<'t, In, Out> {
    pub input: Chunk<'t, In>,
    pub output: Chunk<'t, Out>,
    pub tiling: Tiling,
    pub to: Option<Rank>,
    pub from: Option<Rank>,
    pub shard: Option<Rank>,
    /// Position of the hooks' chunk at which the leg's tiles begin.
    pub start: usize,
    /// Columns of that chunk, where it has a shape that the tiles do not have.
    pub cols: Option<usize>,
}

impl<'t, In: Element, Out: Element> Scene<'t, In, Out> {
    /// The context of a hook for one position.
    pub(super) fn context(&self, r: &RoleCtx<'t>, at: &Leg<'t>) -> Ctx<'t, In, Out> {
        self.context_in(r, at, self.shard.map(|shard| r.constant(i64::from(shard.number()))))
    }

    /// The same, in a shard that depends on the position.
    pub(super) fn context_in(&self, r: &RoleCtx<'t>, at: &Leg<'t>, shard: Option<Value<'t, i64>>) -> Ctx<'t, In, Out> {
        let pos = if self.start == 0 { at.pos } else { at.pos + self.start as i64 };
        let mut c = Ctx::new(r, self.input, self.output)
            .pos(pos)
            .tile(at.tile)
            .tile_rows(self.tiling.tile_rows())
            .tile_cols(self.tiling.tile_cols())
            .step(at.step);
        if let Some((row, col)) = at.place {
            c = c.row(row).col(col);
        } else if let Some(cols) = self.cols {
            c = c.row(pos / cols as i64).col(pos % cols as i64);
        }
        if let Some(to) = self.to {
            c = c.peer(to.number());
        }
        if let Some(from) = self.from {
            c = c.recv_peer(from.number());
        }
        if let Some(shard) = shard {
            c = c.shard(shard);
        }
        if let Some(slot) = at.slot {
            c = c.slot(slot.slot);
        }
        if let Some(region) = at.region {
            c = c.region(region);
        }
        c.build()
    }
}
