//! A chunk cut into tiles, and the tiles dealt to blocks.
//!
//! ```text
//!  [rows, cols] in tiles of [tile_rows, tile_cols], numbered row by row:      blocks take neighbouring tiles:
//!      0 0 0 1 1 1 2 2                                                         block 0: tiles 0, 1, 2
//!      0 0 0 1 1 1 2 2                                                         block 1: tiles 3, 4, 5
//!      3 3 3 4 4 4 5 5
//! ```
//! Both sides of a transfer have the same tiling, so step n of the sender is step n of the receiver.

use super::counters::block_of;
use super::packing::Packing;
use super::peer::Peer;
use crate::hook::{self, RoleCtx, Value};

/// How the positions of a chunk are cut into tiles and dealt to blocks. The host computes these numbers; they are equal
/// on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    rows: usize,
    cols: usize,
    tile_rows: usize,
    tile_cols: usize,
    blocks: usize,
    shaped: bool,
}

impl Tiling {
    /// A chunk of `len` positions without a shape, in tiles of `tile` positions.
    ///
    /// ```
    /// use tilewire::schedule::Tiling;
    /// let tiling = Tiling::flat(1000, 128, 3);
    /// assert_eq!((tiling.tiles(), tiling.steps(0), tiling.steps(2)), (8, 3, 2));
    /// assert_eq!(Tiling::flat(0, 128, 3).steps(0), 0);
    /// ```
    pub fn flat(len: usize, tile: usize, blocks: usize) -> Tiling {
        let (tile_cols, blocks) = (tile.max(1), blocks.max(1));
        Tiling { rows: 1, cols: len, tile_rows: 1, tile_cols, blocks, shaped: false }
    }

    /// A chunk of rows and columns, in tiles of at most `tile` positions: whole rows if they are short, otherwise about
    /// square, so that a hook that transposes touches few cache lines.
    ///
    /// ```
    /// use tilewire::schedule::Tiling;
    /// let tiling = Tiling::shaped(1000, 1000, 16384, 1);
    /// assert_eq!((tiling.tile_rows(), tiling.tile_cols(), tiling.tiles()), (128, 128, 64));
    /// assert_eq!(Tiling::shaped(10, 24, 16384, 1).tile_cols(), 24);
    /// ```
    pub fn shaped(rows: usize, cols: usize, tile: usize, blocks: usize) -> Tiling {
        let tile = tile.max(1);
        let square = 1usize << (tile.ilog2() / 2);
        // Several short rows together, or part of a long one, with no more columns than fit.
        let tile_cols = if cols <= square { cols.max(1) } else { square };
        let tile_rows = (tile / tile_cols).clamp(1, rows.max(1));
        Tiling { rows, cols, tile_rows, tile_cols, blocks: blocks.max(1), shaped: true }
    }

    /// As [`Tiling::shaped`], but tiles that are not whole rows have a multiple of `granule` columns, if that many fit.
    pub(crate) fn shaped_by(rows: usize, cols: usize, tile: usize, blocks: usize, granule: usize) -> Tiling {
        let tiling = Tiling::shaped(rows, cols, tile, blocks);
        let Tiling { tile_cols, .. } = tiling;
        if granule <= 1 || tile_cols >= cols || tile_cols.is_multiple_of(granule) || granule > tile {
            return tiling;
        }
        let tile_cols = (tile_cols / granule).max(1) * granule;
        let tile_cols = if tile_cols >= cols { cols } else { tile_cols };
        Tiling { tile_cols, tile_rows: (tile / tile_cols).clamp(1, rows.max(1)), ..tiling }
    }

    /// A chunk of rows and columns, in tiles of at most `tile` positions: as many whole rows as fit, or a part of one.
    /// Parts have a multiple of `granule` columns, if that many fit.
    pub(crate) fn in_rows(rows: usize, cols: usize, tile: usize, blocks: usize, granule: usize) -> Tiling {
        let (tile, granule) = (tile.max(1), granule.max(1));
        let tile_cols = match tile {
            _ if cols <= tile => cols.max(1),
            tile if granule <= tile => tile / granule * granule,
            tile => tile,
        };
        let tile_rows = (tile / tile_cols).clamp(1, rows.max(1));
        Tiling { rows, cols, tile_rows, tile_cols, blocks: blocks.max(1), shaped: true }
    }

    /// The same chunk in one contiguous tile per block: whole rows or, without a shape, a multiple of `granule`
    /// positions.
    ///
    /// ```
    /// use tilewire::schedule::Tiling;
    /// let bands = Tiling::shaped(10, 1000, 64, 4).bands(1);
    /// assert_eq!((bands.tile_rows(), bands.tile_cols(), bands.tiles()), (3, 1000, 4));
    /// assert_eq!(Tiling::flat(100, 1, 3).bands(64).tile_len(), 64);
    /// ```
    pub fn bands(self, granule: usize) -> Tiling {
        let Tiling { rows, cols, blocks, shaped, .. } = self;
        if shaped {
            return Tiling { tile_rows: rows.div_ceil(blocks).max(1), tile_cols: cols.max(1), ..self };
        }
        let share = if blocks == 1 { cols } else { cols.div_ceil(blocks).next_multiple_of(granule.max(1)) };
        Tiling { tile_cols: share.max(1), ..self }
    }

    /// Rows of a tile, at most.
    pub fn tile_rows(&self) -> usize {
        self.tile_rows
    }

    /// Columns of a tile, at most.
    pub fn tile_cols(&self) -> usize {
        self.tile_cols
    }

    /// Columns of the chunk, or all its positions if it has no shape.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Number of blocks the tiles are dealt to.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Number of positions in the chunk.
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// True if the chunk has no positions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Positions of a tile, at most.
    pub fn tile_len(&self) -> usize {
        self.tile_rows * self.tile_cols
    }

    /// True if every row of every tile has a multiple of `count` positions.
    pub(super) fn is_cut_by(&self, count: usize) -> bool {
        self.cols.is_multiple_of(count) && self.tile_cols.is_multiple_of(count)
    }

    /// Number of tiles.
    pub fn tiles(&self) -> usize {
        if self.is_empty() { 0 } else { self.rows.div_ceil(self.tile_rows) * self.across() }
    }

    /// Number of tiles of one block.
    pub fn steps(&self, block: usize) -> usize {
        self.tiles().saturating_sub(block * self.share()).min(self.share())
    }

    fn across(&self) -> usize {
        self.cols.div_ceil(self.tile_cols)
    }

    fn share(&self) -> usize {
        self.tiles().div_ceil(self.blocks)
    }

    // ---- in a kernel ----------------------------------------------------------------------------------------------

    /// Runs the body for every tile of this block, with the step number from 0. Returns the number of steps.
    #[track_caller]
    pub fn for_tiles<'t>(&self, r: &RoleCtx<'t>, body: impl FnOnce(Value<'t, i64>, Tile<'t>)) -> Value<'t, i64> {
        self.for_turns(r, None, body)
    }

    /// As [`Tiling::for_tiles`], for several roles that take the tiles alternately. This one is number `role`.
    #[track_caller]
    pub fn for_tiles_in_turns<'t>(
        &self,
        r: &RoleCtx<'t>,
        (role, roles): (u32, u32),
        body: impl FnOnce(Value<'t, i64>, Tile<'t>),
    ) -> Value<'t, i64> {
        let copies = r.copies();
        let turns = match roles {
            1 => (r.copy(), copies),
            _ => (r.copy() + copies * i64::from(role), copies * i64::from(roles)),
        };
        self.for_turns(r, Some(turns), body)
    }

    /// As [`Tiling::for_tiles`], for one copy of a role: `turns` has its first step and the distance to its next one.
    #[track_caller]
    pub(super) fn for_turns<'t>(
        &self,
        r: &RoleCtx<'t>,
        turns: Option<(Value<'t, i64>, Value<'t, i64>)>,
        body: impl FnOnce(Value<'t, i64>, Tile<'t>),
    ) -> Value<'t, i64> {
        let tiles = self.tiles();
        if tiles == 0 {
            return r.constant(0i64);
        }
        if self.blocks == 1 && tiles == 1 && turns.is_none() {
            // The whole chunk in one step: no loop, and every number is known.
            let zero = r.constant(0i64);
            body(zero, self.tile(r, zero));
            return r.constant(1i64);
        }
        let (first, steps) = self.dealt(r);
        let (from, by) = turns.unwrap_or_else(|| (r.constant(0i64), r.constant(1i64)));
        r.for_step(from, steps, by, |step| body(step, self.tile_of(r, first, step)));
        steps
    }

    /// Number of steps of this block.
    pub(super) fn steps_here<'t>(&self, r: &RoleCtx<'t>) -> Value<'t, i64> {
        self.dealt(r).1
    }

    /// The tile of a step of this block.
    pub(super) fn tile_here<'t>(&self, r: &RoleCtx<'t>, step: Value<'t, i64>) -> Tile<'t> {
        self.tile_of(r, self.dealt(r).0, step)
    }

    /// The tile of a step of a block whose first tile is `first`.
    fn tile_of<'t>(&self, r: &RoleCtx<'t>, first: Option<Value<'t, i64>>, step: Value<'t, i64>) -> Tile<'t> {
        self.tile(r, first.map_or(step, |first| first + step))
    }

    /// The first tile of this block (`None` if it is the only block), and its number of tiles.
    fn dealt<'t>(&self, r: &RoleCtx<'t>) -> (Option<Value<'t, i64>>, Value<'t, i64>) {
        let (tiles, share) = (self.tiles() as i64, self.share() as i64);
        if self.blocks == 1 {
            return (None, r.constant(tiles));
        }
        let first = block_of(r, self.blocks) * share;
        (Some(first), (r.constant(tiles) - first).max(0).min(share))
    }

    fn tile<'t>(&self, r: &RoleCtx<'t>, index: Value<'t, i64>) -> Tile<'t> {
        let across = self.across() as i64;
        let (down, along) = match (self.rows.div_ceil(self.tile_rows), across) {
            (1, 1) => (None, None),
            (1, _) => (None, Some(index)),
            (_, 1) => (Some(index), None),
            _ => (Some(index / across), Some(index % across)),
        };
        let axis = |which: Option<Value<'t, i64>>, extent: usize, tile: usize| match which {
            None => (None, r.constant(extent.min(tile) as i64)),
            Some(k) if extent.is_multiple_of(tile) => (Some(k * tile as i64), r.constant(tile as i64)),
            Some(k) => {
                let first = k * tile as i64;
                (Some(first), (r.constant(extent as i64) - first).min(tile as i64))
            }
        };
        let (first_row, rows) = axis(down, self.rows, self.tile_rows);
        let (first_col, cols) = axis(along, self.cols, self.tile_cols);
        Tile { tiling: *self, index, first_row, first_col, rows, cols }
    }
}

/// One tile, in a kernel.
#[derive(Clone, Copy)]
pub struct Tile<'t> {
    tiling: Tiling,
    /// Its number in the chunk.
    pub index: Value<'t, i64>,
    first_row: Option<Value<'t, i64>>,
    first_col: Option<Value<'t, i64>>,
    rows: Value<'t, i64>,
    cols: Value<'t, i64>,
}

impl<'t> Tile<'t> {
    /// Rows of this tile.
    pub fn rows(&self) -> Value<'t, i64> {
        self.rows
    }

    /// Columns of this tile.
    pub fn cols(&self) -> Value<'t, i64> {
        self.cols
    }

    /// The positions of the tile that lie in the first `len` of a chunk without a shape. For chunks that share a tiling
    /// but may be shorter than it.
    pub(super) fn within(self, r: &RoleCtx<'t>, len: usize) -> Tile<'t> {
        if len >= self.tiling.len() {
            return self;
        }
        let longest = self.tiling.len();
        assert!(
            !self.tiling.shaped,
            "{len} of {longest} positions: chunks with a shape are all as long as their tiling"
        );
        let first = self.first_col.unwrap_or_else(|| r.constant(0i64));
        Tile { cols: (r.constant(len as i64) - first).min(self.cols).max(0), ..self }
    }

    /// The number of the tile's first position, in a chunk without a shape.
    pub(super) fn first(&self, r: &RoleCtx<'t>) -> Value<'t, i64> {
        self.first_col.unwrap_or_else(|| r.constant(0i64))
    }

    /// Runs the body for every position of the tile, in any order, in parallel.
    #[track_caller]
    pub fn each(&self, r: &RoleCtx<'t>, body: impl FnOnce(Spot<'t>)) {
        self.each_wide(r, None, body);
    }

    /// As `each`, numbering positions as the slots of a peer hold them: without gaps if it is dense. There, rows of a
    /// narrow tile lie one right after another.
    ///
    /// # Panics
    /// If such rows would begin inside a group that shares a value of this packing. In a kernel being traced, this is a
    /// build error.
    #[track_caller]
    pub(super) fn each_at(&self, r: &RoleCtx<'t>, (peer, packing): (&Peer<'t>, &Packing), body: impl FnOnce(Spot<'t>)) {
        if !peer.is_dense() {
            return self.each(r, body);
        }
        let (Tiling { rows, cols, shaped, .. }, group) = (self.tiling, packing.group());
        assert!(
            !shaped || rows == 1 || cols.is_multiple_of(group),
            "rows of {cols} positions, and a value for {group} neighbours: slots have no gaps in this world, so a row \
             would begin inside the group of another; use groups that divide {cols}, or a value per element"
        );
        self.each_dense(r, body)
    }

    /// Number of positions.
    pub(super) fn positions(&self) -> Value<'t, i64> {
        if self.tiling.shaped { self.rows * self.cols } else { self.cols }
    }

    /// As `each`, with positions numbered without gaps: rows of a tile at the edge are packed as densely as any others.
    #[track_caller]
    pub(super) fn each_dense(&self, r: &RoleCtx<'t>, body: impl FnOnce(Spot<'t>)) {
        let narrow = !self.tiling.cols.is_multiple_of(self.tiling.tile_cols);
        self.each_wide(r, narrow.then_some(self.cols), body);
    }

    #[track_caller]
    fn each_wide(&self, r: &RoleCtx<'t>, width: Option<Value<'t, i64>>, body: impl FnOnce(Spot<'t>)) {
        let from = |first: Option<Value<'t, i64>>, k| first.map_or(k, |first| first + k);
        if !self.tiling.shaped {
            return r.each(self.cols, |k| {
                body(Spot { index: k, pos: from(self.first_col, k), place: None, tile: self.index });
            });
        }
        r.each2(self.rows, self.cols, |y, x| {
            let row = from(self.first_row, y).within(self.tiling.rows);
            let col = from(self.first_col, x).within(self.tiling.cols);
            let index = width.map_or_else(|| y * self.tiling.tile_cols as i64, |width| y * width) + x;
            body(Spot { index, pos: row * self.tiling.cols as i64 + col, place: Some((row, col)), tile: self.index });
        });
    }
}

/// One position of a chunk, in a kernel.
#[derive(Clone, Copy)]
pub struct Spot<'t> {
    /// Its number in the tile, which determines its place in a slot.
    pub index: Value<'t, i64>,
    /// Its number in the chunk.
    pub pos: Value<'t, i64>,
    /// Its row and column, if the chunk has a shape.
    pub place: Option<(Value<'t, i64>, Value<'t, i64>)>,
    /// The number of its tile.
    pub tile: Value<'t, i64>,
}

/// Where a hook runs: the position, and the step that carries it.
#[derive(Clone, Copy)]
pub struct Position<'t> {
    /// The position.
    pub spot: Spot<'t>,
    /// The step in this launch, from 0.
    pub step: Value<'t, i64>,
    /// The staging slot that carries it, if there is one.
    pub slot: Option<super::SlotAt<'t>>,
    /// The memory that holds the tile while the hook runs, if it is memory of the kernel: that slot, or scratch.
    pub region: Option<hook::Tile<'t>>,
}

impl<'t> std::ops::Deref for Position<'t> {
    type Target = Spot<'t>;
    fn deref(&self) -> &Spot<'t> {
        &self.spot
    }
}
