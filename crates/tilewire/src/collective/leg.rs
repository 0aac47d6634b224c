//! The legs of an exchange, decided: every route with its tensors, its tiles and its protocol, checked against the transport.

use super::RunError;
use super::algorithm::Algorithm;
use super::config::{Decision, Primitive};
use super::exchange::AnyExchange;
use super::pattern::{Part, Pattern, Round, Route};
use super::rounds::Rounds;
use super::terms::{Message, WindowOf};
use crate::hook::Traced;
use crate::ir::Op;
use crate::schedule::Tiling;
use crate::tensor::{AnyTensor, Memory};
use crate::transport::layout::Side;
use crate::transport::{Protocol, Rank, TransferError};
use std::ops::Range;

/// Why a plan cannot be refused where a kernel is traced.
pub(super) const CHECKED: &str = "slots and blocks were checked when it was decided how to travel";

/// One leg of an exchange: what is sent to, or received from, a peer, or passed to oneself.
pub(super) struct Leg {
    pub peer: Rank,
    pub side: Side,
    /// The chunks of the hooks; `None` where this rank has none, and only a length stands for it.
    pub inp: Option<AnyTensor>,
    pub out: Option<AnyTensor>,
    pub tiling: Tiling,
    pub protocol: Protocol,
    pub decision: Decision,
    /// Where it is written, by `direct`.
    pub window: Option<Memory>,
}

/// The legs of one rank.
pub(super) struct Legs {
    /// From this rank to itself; none where there is nothing to do for it.
    pub own: Option<Leg>,
    /// Of each round what is sent and what is received.
    pub rounds: Vec<[Option<Leg>; 2]>,
}

impl Legs {
    /// All legs, those to peers first.
    pub(super) fn all(&self) -> impl Iterator<Item = &Leg> {
        self.rounds.iter().flatten().chain([&self.own]).flatten()
    }
}

impl AnyExchange<'_, '_> {
    /// The legs, checked against the transport.
    pub(super) fn legs(&self) -> Result<Legs, RunError> {
        let (me, ranks) = (self.terms.link.rank(), self.terms.link.world_size());
        let routes = self.pattern.routes(me, ranks)?;
        if let Some(algorithm) = self.algorithm.filter(|algorithm| !self.pattern.takes(*algorithm)) {
            let (algorithm, collective) = (algorithm.name(), self.pattern.name());
            return Err(TransferError::NoAlgorithm { algorithm, collective }.into());
        }
        if let Pattern::Pair { to: Some(_), from: Some(_) } = self.pattern
            && self.inp.memory().overlaps(self.out.memory())
        {
            return Err(over_the_input(self.inp.memory()).into());
        }
        let leg = |route: Option<Route>| route.map(|route| self.leg(route)).transpose();
        let round = |round: &Round| Ok([leg(round.send)?, leg(round.receive)?]);
        let rounds = routes.rounds.iter().map(round).collect::<Result<Vec<_>, RunError>>()?;
        let own = leg(routes.own)?.filter(|own| !self.in_place(own));
        let legs = Legs { own, rounds };
        if self.pattern.is_collective() {
            check_overlap(&legs)?;
        }
        Ok(legs)
    }

    /// Whether a rank's own chunk is where it must be already.
    fn in_place(&self, own: &Leg) -> bool {
        let same = |inp: &AnyTensor, out: &AnyTensor| inp.memory().is(out.memory()) && inp.ty() == out.ty();
        let there = own.inp.as_ref().zip(own.out.as_ref()).is_some_and(|(inp, out)| same(inp, out));
        there && self.hooks.copies && self.hooks.stores()
    }

    /// Positions of the chunk that a route moves.
    fn positions(&self, route: &Route) -> Result<usize, TransferError> {
        let ranks = self.terms.link.world_size();
        match (self.pattern, route.side) {
            (Pattern::Pair { .. }, Side::Send) => Ok(self.sent()),
            // Only the root has an output; what it says is compared with what the others say.
            (Pattern::Gather { root }, _) if root != self.terms.link.rank() => Ok(self.sent()),
            _ => Ok(route.output.range("the output", self.out.len(), ranks)?.len()),
        }
    }

    fn leg(&self, route: Route) -> Result<Leg, RunError> {
        let (terms, ranks) = (&self.terms, self.terms.link.world_size());
        let Route { side, peer, .. } = route;
        let is_own = peer == terms.link.rank() && self.pattern.is_collective();
        let len = self.positions(&route)?;
        let ring = self.algorithm == Some(Algorithm::Ring) && !is_own;
        let only = ring.then_some((Primitive::Staged, "a ring passes on what lies in staging: use staged"));
        let (last_per, shape) = (self.hooks.last_per, &self.hooks.output_shape);
        let rounds = if self.pattern.is_collective() { ranks } else { 1 };
        let at_once = if self.layout() == Rounds::Legs { 2 * rounds } else { rounds };
        let consumed = !self.hooks.stores();
        let message = Message { types: self.hooks.types, len, last_per, shape, at_once, only, consumed };
        let reached = terms.window.as_ref().map(|window| window.reached(&route, self.window_range(&route, len)));
        let (decision, tiling) = terms.settle((!is_own).then_some(peer), message, reached).map_err(|error| {
            match (error, &terms.window) {
                (
                    RunError::Transfer(TransferError::TooLarge { protocol: Protocol::Direct { .. }, .. }),
                    Some(window),
                ) => window.too_short(&route, self.window_range(&route, len)).into(),
                (error, _) => error,
            }
        })?;
        self.check_direct(&decision, side)?;
        let part = |part: Part, what, len| match part {
            Part::Absent => Ok(None),
            part => part.range(what, len, ranks).map(Some),
        };
        let inp = part(route.input, "the input", self.inp.len())?.map(|range| self.inp.slice(range));
        let out = part(route.output, "the output", self.out.len())?.map(|range| self.out.slice(range));
        let window = terms.window.as_ref().filter(|_| matches!(decision.protocol, Protocol::Direct { .. }) && !is_own);
        let window = window.filter(|_| side == Side::Send).map(|window| {
            let (first, bytes) = self.window_range(&route, len);
            // A transfer uses the window from its start on, however long it is.
            let bytes = if self.pattern.is_collective() { bytes } else { window.bytes_of(peer) };
            window.part_of(peer, first, bytes)
        });
        // Copies of a role share out tiles; where there are none, the fewer the better.
        let tiling = if is_own && terms.link.copies() == 1 { tiling.bands(decision.granule) } else { tiling };
        let Decision { protocol, .. } = decision;
        Ok(Leg { peer, side, inp, out, tiling, protocol, decision, window })
    }

    /// First byte and bytes of the receiver's window that a route writes.
    fn window_range(&self, route: &Route, len: usize) -> (usize, usize) {
        let bytes = len * self.hooks.types[0].size();
        match route.lands {
            Part::Chunk(k) => (k * bytes, bytes),
            _ => (0, bytes),
        }
    }

    /// What `direct` cannot do with this window.
    fn check_direct(&self, decision: &Decision, side: Side) -> Result<(), TransferError> {
        let (protocol @ Protocol::Direct { .. }, Some(window)) = (decision.protocol, &self.terms.window) else {
            return Ok(());
        };
        let unable = |why| Err(TransferError::Unable { protocol, why });
        if self.hooks.types != [window.ty] {
            return unable("it stores one value of the window's type: use staged or packet for others");
        }
        if side == Side::Receive && !window.own.is(self.out.memory()) {
            return unable("the output is not this rank's part of the window: give window.tensor() as output");
        }
        Ok(())
    }
}

impl WindowOf {
    fn too_short(&self, route: &Route, (first, bytes): (usize, usize)) -> TransferError {
        let (rank, has) = match route.side {
            Side::Send => (route.peer, self.bytes_of(route.peer)),
            Side::Receive => {
                let own = self.peers.iter().position(|window| window.as_ref().is_some_and(|it| it.is(&self.own)));
                (own.map_or(route.peer, |own| Rank::new(own as u32)), self.own.bytes())
            }
        };
        TransferError::WindowTooShort { rank, bytes: has, needed: first + bytes }
    }

    /// Bytes that may be written from where a route lands.
    fn reached(&self, route: &Route, (first, _): (usize, usize)) -> usize {
        let all = match route.side {
            Side::Send => self.bytes_of(route.peer),
            Side::Receive => self.own.bytes(),
        };
        all.saturating_sub(first)
    }
}

/// Nothing that is read may be written: not by what arrives, and not by the rank's own chunk.
fn check_overlap(legs: &Legs) -> Result<(), TransferError> {
    let own = legs.own.iter();
    let sends = legs.rounds.iter().filter_map(|[send, _]| send.as_ref());
    let receives = legs.rounds.iter().filter_map(|[_, receive]| receive.as_ref());
    let read: Vec<&Memory> =
        sends.chain(own.clone()).filter_map(|leg| leg.inp.as_ref().map(AnyTensor::memory)).collect();
    for out in receives.chain(own).filter_map(|leg| leg.out.as_ref()) {
        if let Some(memory) = read.iter().find(|memory| memory.overlaps(out.memory())) {
            return Err(over_the_input(memory));
        }
    }
    Ok(())
}

/// The output lies over this part of the input.
pub(super) fn over_the_input(memory: &Memory) -> TransferError {
    TransferError::Overlap { what: "the input".to_string(), bytes: memory.bytes() }
}

/// Groups of neighbours must not be torn apart by tiles; `torn` says of a group and a tile what to do about it.
pub(super) fn check_groups<'t>(
    traced: &Traced,
    tilings: impl Iterator<Item = &'t Tiling>,
    torn: impl Fn(usize, usize) -> TransferError,
) -> Result<(), TransferError> {
    let groups: Vec<usize> = groups(traced).collect();
    for tiling in tilings {
        let tile = tiling.tile_cols();
        for &group in &groups {
            if tiling.tiles() > 1 && tile < tiling.cols() && !tile.is_multiple_of(group) {
                return Err(torn(group, tile));
            }
        }
    }
    Ok(())
}

/// Groups are counted from where a shard begins: one that begins within a group would have others for neighbours than the hook means.
pub(super) fn check_shards(traced: &Traced, shards: &[Range<usize>]) -> Result<(), TransferError> {
    let torn = |group: usize| shards.iter().any(|shard| !shard.is_empty() && !shard.start.is_multiple_of(group));
    match groups(traced).find(|&group| torn(group)) {
        Some(group) => {
            let shard = shards[0].len();
            Err(TransferError::TornShard { group, shard, padded: shard.next_multiple_of(group) * shards.len() })
        }
        None => Ok(()),
    }
}

/// How many neighbours the group ops of a kernel go over.
fn groups(traced: &Traced) -> impl Iterator<Item = usize> {
    let group = |op: &Op| if let Op::Group { size, .. } = op { Some(*size as usize) } else { None };
    traced.kernel.insts.values().filter_map(move |inst| group(&inst.op))
}

/// How a chunk travels, in words.
pub(super) struct Tiled(pub String);

impl Tiled {
    pub(super) fn of(protocol: Protocol, tiling: &Tiling) -> Tiled {
        let (rows, cols) = (tiling.tile_rows(), tiling.tile_cols());
        Tiled(format!("{} elements by {protocol}, {} blocks, tiles of [{rows}, {cols}]", tiling.len(), tiling.blocks()))
    }
}
