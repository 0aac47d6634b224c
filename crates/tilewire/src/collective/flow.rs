//! From whose inputs to whose outputs a value goes: what `c.peer()`, `c.recv_peer()` and `c.shard()` are, by the collective and the leg, and by
//! nothing else. Sizes, algorithms and protocols have no say in it.
//!
//! ```text
//!                                 in one output                                  in the outputs of all
//!   from one input                map, send, recv, sendrecv,                     all_gather, broadcast
//!                                 all_to_all, gather, scatter
//!   from the inputs of all        reduce_scatter                                 all_reduce
//!
//!   produce     peer        the rank of the one output; of several: refused
//!               recv_peer   this rank
//!   consume     peer        this rank
//!               recv_peer   the rank of the one input; of several: refused
//! ```
//! The guide (`docs/guide/hooks.md`) and [`Ctx`](crate::hook::Ctx) have this table for users.

use super::operation::Kind;
use super::pattern::Pattern;
use crate::hook::{AnyCtxBuilder, Several};
use crate::transport::Rank;

/// The way of a value through a collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    collective: &'static str,
    /// Whose inputs it comes from.
    from: Ranks,
    /// Whose outputs it ends in.
    to: Ranks,
    shard: Shard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ranks {
    One,
    All,
}

/// What shards are numbered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shard {
    /// The rank whose input the value comes from.
    Origin,
    /// The rank whose output it ends in.
    Destination,
    /// So many positions are a shard.
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
    /// Names ranks for a produce hook whose value ends in the output of `to`, or of all. What is not set is this rank.
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

    /// Names ranks for a consume hook whose value comes from the input of `from`, or of all. What is not set is this rank.
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
