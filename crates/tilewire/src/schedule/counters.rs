//! The counters a role keeps for itself across launches. It reads them first and stores them last, so a launch needs
//! nothing from the host and may be replayed.

use super::peer::Peer;
use crate::hook::{RoleCtx, Value, View};
use crate::transport::layout::{LINE, Side, StartWord};

/// The line of counters of one (peer, block, side, copy).
#[derive(Clone, Copy)]
pub(super) struct Counters<'t> {
    words: View<'t, u64>,
    /// First word of the line.
    line: Value<'t, i64>,
    /// Number of lines to store to, starting there.
    lines: u32,
}

impl<'t> Counters<'t> {
    /// The line of this role for `block`, in a transport with room for `shape.max_blocks` blocks.
    pub(super) fn of(r: &RoleCtx<'t>, peer: &Peer<'t>, block: Value<'t, i64>, side: Side, shape: Shape) -> Self {
        let words = peer.starts();
        let per_line = LINE / 8;
        let copies = words.len() / per_line / 2 / shape.max_blocks;
        let line = block * (2 * copies) as i64 + (side as usize * copies) as i64;
        let (line, lines) = match shape.keeps {
            Keeps::One => (line, 1),
            Keeps::OfCopy => (line + r.copy(), 1),
            Keeps::OfAll(copies) => (line, copies),
        };
        Counters { words, line: line * per_line as i64, lines }
    }

    #[track_caller]
    pub(super) fn get(&self, word: StartWord) -> Value<'t, u64> {
        self.words.load(self.line + word.index() as i64)
    }

    #[track_caller]
    pub(super) fn set(&self, word: StartWord, x: Value<'t, u64>) {
        for line in 0..i64::from(self.lines) {
            self.words.store(self.line + (line * (LINE / 8) as i64 + word.index() as i64), x);
        }
    }
}

/// Determines the position of a line.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub max_blocks: usize,
    pub keeps: Keeps,
}

/// Selects the counters a role reads and stores. All copies of a role have equal counters between launches.
#[derive(Clone, Copy)]
pub(super) enum Keeps {
    /// The only counters there are.
    One,
    /// Those of this copy of the role.
    OfCopy,
    /// One role takes the steps of this many copies: it reads the first copy's counters, and stores to all.
    OfAll(u32),
}

/// This block's number, a constant if there is only one block.
pub(super) fn block_of<'t>(r: &RoleCtx<'t>, blocks: usize) -> Value<'t, i64> {
    if blocks == 1 { r.constant(0i64) } else { r.block() }
}
