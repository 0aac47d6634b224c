//! Which chunk goes where: the routes of a collective, in rounds.
//!
//! ```text
//!   round 0      the rank's own chunk: passes through both hooks, is not sent
//!   round i      to the rank i after this one, from the rank i before it        i = 1 … ranks - 1
//! ```
//! Within a round, every rank sends to a different rank, so the ranks never all write to one receiver simultaneously.

use crate::tensor::{AnyTensor, Axis};
use crate::transport::layout::Side;
use crate::transport::{Rank, TransferError};
use std::ops::Range;

/// How chunks move in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// One transfer, or two simultaneous ones: `send`, `recv`, `sendrecv`.
    Pair { to: Option<Rank>, from: Option<Rank> },
    /// Chunk `p` of the input goes to rank `p`, and becomes chunk `rank` of that rank's output.
    AllToAll,
    /// The input goes to every rank, and becomes chunk `rank` of that rank's output.
    AllGather,
    /// An all-gather in which only the signals matter.
    Barrier,
    /// The input of `root` becomes the output of every rank.
    Broadcast { root: Rank },
    /// The input of every rank becomes that rank's chunk of the output of `root`.
    Gather { root: Rank },
    /// Chunk `p` of the input of `root` becomes the output of rank `p`.
    Scatter { root: Rank },
}

/// The part of a tensor that a route uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it.
    All,
    /// One of as many equal parts as there are ranks.
    Chunk(usize),
    /// Nothing: this rank has no such tensor, and any tensor it passed is ignored.
    Absent,
}

/// One chunk on its way to or from a peer, or from this rank to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub side: Side,
    pub peer: Rank,
    /// The input and the output of the hooks.
    pub input: Part,
    pub output: Part,
    /// The part of the receiver's output that it becomes.
    pub lands: Part,
}

/// The routes of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub send: Option<Route>,
    pub receive: Option<Route>,
}

/// All routes of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Routes {
    /// From this rank to itself.
    pub own: Option<Route>,
    pub rounds: Vec<Round>,
}

impl Pattern {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Pattern::Pair { to: Some(_), from: Some(_) } => "sendrecv",
            Pattern::Pair { to: Some(_), from: None } => "send",
            Pattern::Pair { .. } => "recv",
            Pattern::AllToAll => "all_to_all",
            Pattern::AllGather => "all_gather",
            Pattern::Barrier => "barrier",
            Pattern::Broadcast { .. } => "broadcast",
            Pattern::Gather { .. } => "gather",
            Pattern::Scatter { .. } => "scatter",
        }
    }

    /// True if all ranks of the world take part.
    pub(super) fn is_collective(&self) -> bool {
        !matches!(self, Pattern::Pair { .. })
    }

    /// True if there is a two-level algorithm for it.
    pub(super) fn takes_two_levels(&self) -> bool {
        matches!(self, Pattern::AllGather | Pattern::Broadcast { .. })
    }

    /// The routes of a rank in a world of `ranks`.
    pub(super) fn routes(&self, me: Rank, ranks: usize) -> Result<Routes, TransferError> {
        let (after, before) = (|i: usize| me.after(i, ranks), |i: usize| me.after(ranks - i, ranks));
        let chunk = |rank: Rank| Part::Chunk(rank.index());
        let others = 1..ranks;
        let root = match *self {
            Pattern::Broadcast { root } | Pattern::Gather { root } | Pattern::Scatter { root } => root,
            _ => me,
        };
        if root.index() >= ranks {
            return Err(TransferError::NoSuchPeer { peer: root, world_size: ranks });
        }
        let send = |peer, input, output, lands| Route { side: Side::Send, peer, input, output, lands };
        let receive = |peer, input, output| Route { side: Side::Receive, peer, input, output, lands: output };
        let both = |tx: Route, rx: Route| Round { send: Some(tx), receive: Some(rx) };
        let only_send = |tx: Route| Round { send: Some(tx), receive: None };
        let only_receive = |rx: Route| Round { send: None, receive: Some(rx) };
        let (own, rounds): (Option<Route>, Vec<Round>) = match *self {
            Pattern::Pair { to, from } => {
                let absent = |present: bool| if present { Part::All } else { Part::Absent };
                let tx = to.map(|peer| send(peer, Part::All, absent(from.is_some()), Part::All));
                let rx = from.map(|peer| receive(peer, absent(to.is_some()), Part::All));
                (None, vec![Round { send: tx, receive: rx }])
            }
            Pattern::AllToAll => {
                let round = |i| {
                    let (to, from) = (after(i), before(i));
                    both(send(to, chunk(to), chunk(to), chunk(me)), receive(from, chunk(from), chunk(from)))
                };
                (Some(send(me, chunk(me), chunk(me), chunk(me))), others.map(round).collect())
            }
            Pattern::AllGather | Pattern::Barrier => {
                let round = |i| {
                    let (to, from) = (after(i), before(i));
                    both(send(to, Part::All, chunk(to), chunk(me)), receive(from, Part::All, chunk(from)))
                };
                (Some(send(me, Part::All, chunk(me), chunk(me))), others.map(round).collect())
            }
            Pattern::Broadcast { root } if root == me => {
                let round = |i| only_send(send(after(i), Part::All, Part::All, Part::All));
                (Some(send(me, Part::All, Part::All, Part::All)), others.map(round).collect())
            }
            Pattern::Broadcast { root } => (None, vec![only_receive(receive(root, Part::Absent, Part::All))]),
            Pattern::Gather { root } if root == me => {
                let round = |i| only_receive(receive(before(i), Part::All, chunk(before(i))));
                (Some(send(me, Part::All, chunk(me), chunk(me))), others.map(round).collect())
            }
            Pattern::Gather { root } => (None, vec![only_send(send(root, Part::All, Part::Absent, chunk(me)))]),
            Pattern::Scatter { root } if root == me => {
                let round = |i| only_send(send(after(i), chunk(after(i)), Part::All, Part::All));
                (Some(send(me, chunk(me), Part::All, Part::All)), others.map(round).collect())
            }
            Pattern::Scatter { root } => (None, vec![only_receive(receive(root, Part::Absent, Part::All))]),
        };
        Ok(Routes { own, rounds })
    }
}

impl Part {
    /// This part of a tensor, in a world of `ranks`. `None` if it is absent. The axis must split evenly, and so must
    /// the elements of a tensor of one row, which has no axes.
    pub(super) fn of(
        self,
        what: &'static str,
        tensor: &AnyTensor,
        axis: Axis,
        ranks: usize,
    ) -> Result<Option<AnyTensor>, TransferError> {
        let grid = tensor.grid();
        let k = match self {
            Part::Absent => return Ok(None),
            Part::All => return Ok(Some(tensor.clone())),
            Part::Chunk(_) if grid.rows <= 1 => {
                return self.range(what, tensor.len(), ranks).map(|range| Some(tensor.slice(range)));
            }
            Part::Chunk(k) => k,
        };
        let extent = grid.extent(axis);
        if !extent.is_multiple_of(ranks) {
            return Err(TransferError::UnevenAxis { what, axis, extent, ranks });
        }
        let each = extent / ranks;
        Ok(Some(tensor.part(axis, &(k * each..(k + 1) * each))))
    }

    /// The elements of this part of a tensor of one row of `len` elements, in a world of `ranks`. The tensor must split
    /// evenly.
    pub(super) fn range(self, what: &'static str, len: usize, ranks: usize) -> Result<Range<usize>, TransferError> {
        match self {
            Part::All => Ok(0..len),
            Part::Absent => Ok(0..0),
            Part::Chunk(_) if !len.is_multiple_of(ranks) => Err(TransferError::Uneven { what, len, ranks }),
            Part::Chunk(k) => Ok(k * (len / ranks)..(k + 1) * (len / ranks)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(root: Rank) -> [Pattern; 5] {
        [
            Pattern::AllToAll,
            Pattern::AllGather,
            Pattern::Broadcast { root },
            Pattern::Gather { root },
            Pattern::Scatter { root },
        ]
    }

    #[test]
    fn what_one_rank_sends_another_receives_and_it_lands_where_that_one_expects_it() {
        for ranks in 1..7 {
            for pattern in Rank::all(ranks).flat_map(patterns) {
                let of = |rank: Rank| pattern.routes(rank, ranks).unwrap();
                let mut met = 0;
                for me in Rank::all(ranks) {
                    for tx in of(me).rounds.iter().filter_map(|round| round.send) {
                        let theirs = of(tx.peer).rounds.into_iter().filter_map(|round| round.receive);
                        let rx: Vec<Route> = theirs.filter(|rx| rx.peer == me).collect();
                        assert_eq!(rx.len(), 1, "{pattern:?}: {me} to {}", tx.peer);
                        assert_eq!(rx[0].output, tx.lands, "{pattern:?}");
                        met += 1;
                    }
                }
                let received: usize = Rank::all(ranks)
                    .map(|me| of(me).rounds.iter().filter(|round| round.receive.is_some()).count())
                    .sum();
                assert_eq!(met, received, "{pattern:?} of {ranks}");
            }
        }
    }

    #[test]
    fn every_part_of_every_output_is_written_once() {
        for ranks in 1..7 {
            for pattern in Rank::all(ranks).flat_map(patterns) {
                for me in Rank::all(ranks) {
                    let routes = pattern.routes(me, ranks).unwrap();
                    let own = routes.own.map(|own| own.lands);
                    let received = routes.rounds.iter().filter_map(|round| round.receive.map(|rx| rx.output));
                    let mut written: Vec<usize> =
                        received.chain(own).flat_map(|part| part.range("output", ranks, ranks).unwrap()).collect();
                    written.sort_unstable();
                    let whole = !matches!(pattern, Pattern::Gather { root } if root != me);
                    let must: Vec<usize> = if whole { (0..ranks).collect() } else { Vec::new() };
                    assert_eq!(written, must, "{pattern:?}, rank {me} of {ranks}");
                }
            }
        }
    }

    #[test]
    fn in_a_round_no_two_ranks_send_to_one() {
        for ranks in 2..7 {
            for pattern in [Pattern::AllToAll, Pattern::AllGather] {
                for round in 0..ranks - 1 {
                    let to = |me| pattern.routes(me, ranks).unwrap().rounds[round].send.unwrap().peer;
                    let mut targets: Vec<Rank> = Rank::all(ranks).map(to).collect();
                    targets.sort_unstable();
                    assert!(targets.into_iter().eq(Rank::all(ranks)), "{pattern:?}, round {round} of {ranks}");
                }
            }
        }
    }
}
