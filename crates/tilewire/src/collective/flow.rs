//! Which ranks' inputs a value comes from, and which ranks' outputs it ends in. This defines `c.peer()`,
//! `c.recv_peer()` and `c.shard()`. They depend only on the collective and the leg, never on sizes, algorithms or
//! protocols.
//!
//! ```text
//!                                 into one output                                into the outputs of all
//!   from one input                map, send, recv, sendrecv,                     all_gather, broadcast
//!                                 all_to_all, gather, scatter
//!   from the inputs of all        reduce_scatter                                 all_reduce
//!
//!   produce     peer        the rank of the output; refused if there are several
//!               recv_peer   this rank
//!   consume     peer        this rank
//!               recv_peer   the rank of the input; refused if there are several
//! ```
//! The guide (`docs/guide/hooks.md`) and [`Ctx`](crate::hook::Ctx) have this table for users.

use super::operation::Kind;
use super::pattern::Pattern;
use crate::hook::{AnyCtxBuilder, Several};
use crate::transport::Rank;

/// The path of a value through a collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    collective: &'static str,
    /// The ranks whose inputs it comes from.
    from: Ranks,
    /// The ranks whose outputs it ends in.
    to: Ranks,
    shard: Shard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ranks {
    One,
    All,
}

/// How shards are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shard {
    /// By the rank whose input the value comes from.
    Origin,
    /// By the rank whose output it ends in.
    Destination,
    /// By position: a shard has this many positions.
    Positions(usize),
}

impl Pattern {
    pub(super) fn flow(&self) -> Flow {
        let (to, shard) = match self {
            Pattern::Pair { .. } | Pattern::AllToAll | Pattern::Gather { .. } => (Ranks::One, Shard::Origin),
            Pattern::Scatter { .. } => (Ranks::One, Shard::Destination),
            Pattern::AllGather | Pattern::Barrier | Pattern::Broadcast { .. } => (Ranks::All, Shard::Origin),
        };
        Flow { collective: self.name(), from: Ranks::One, to, shard }
    }
}

impl Kind {
    /// `share`: positions of the longest shard.
    pub(super) fn flow(self, share: usize) -> Flow {
        let (to, shard) = match self {
            Kind::ReduceScatter => (Ranks::One, Shard::Destination),
            Kind::AllReduce => (Ranks::All, Shard::Positions(share.max(1))),
        };
        Flow { collective: self.name(), from: Ranks::All, to, shard }
    }
}

impl Flow {
    /// Sets the ranks for a produce hook whose value ends in the output of `to`, or of all ranks. Fields left unset
    /// mean this rank.
    pub(super) fn producing<'t>(self, c: AnyCtxBuilder<'t>, to: Rank) -> AnyCtxBuilder<'t> {
        let c = match self.to {
            Ranks::One => c.peer(to.number()),
            Ranks::All => c.no_peer(Several {
                hook: "produce",
                collective: self.collective,
                instead: match self.shard {
                    Shard::Positions(_) => "c.shard(), the rank whose shard the position is in",
                    _ => "c.rank(), the rank whose input it comes from",
                },
            }),
        };
        match self.shard {
            Shard::Origin => c,
            Shard::Destination => c.shard(to.number()),
            Shard::Positions(each) => c.shard_of_positions(each),
        }
    }

    /// Sets the ranks for a consume hook whose value comes from the input of `from`, or of all ranks. Fields left unset
    /// mean this rank.
    pub(super) fn consuming<'t>(self, c: AnyCtxBuilder<'t>, from: Rank) -> AnyCtxBuilder<'t> {
        let c = match self.from {
            Ranks::One => c.recv_peer(from.number()),
            Ranks::All => c.no_recv_peer(Several {
                hook: "consume",
                collective: self.collective,
                instead: match self.shard {
                    Shard::Positions(_) => "c.shard(), the rank whose shard the position is in",
                    _ => "c.rank(), the rank whose output it ends in",
                },
            }),
        };
        match self.shard {
            Shard::Origin => c.shard(from.number()),
            Shard::Destination => c,
            Shard::Positions(each) => c.shard_of_positions(each),
        }
    }
}
