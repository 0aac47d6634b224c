//! Collectives in two levels: a chunk goes to one rank of every other domain, its *relay* there. The relay keeps the
//! chunk and passes it on to its near peers. So each chunk crosses the network once per other domain.
//!
//! ```text
//!   domain 0              domain 1            all-gather: every rank is an origin; broadcast: the root is
//!     origin ══ posts ══▶ relay               relay: the rank whose number in its domain is that of the origin in its
//!      │ loads              │ loads           own, modulo the ranks there
//!      ▼ and stores         ▼ and stores
//!     near ranks          near ranks
//! ```
//! Between two near ranks there are several pipelines. A rank's own chunk uses the transport's first blocks. The chunks
//! that a relay passes on use the last blocks, in *lanes* of as many blocks as a leg to a far peer has. Lane 0 has the
//! last blocks, lane 1 those before them, and so on. If a relay has more origins than lanes, it deals the origins to
//! the lanes, and the origins of one lane take turns.

use super::algorithm::Algorithm;
use super::config::{Config, Knobs, Primitive};
use super::decide::Way;
use super::domains::Domains;
use super::error::RunError;
use super::pattern::{Part, Pattern, Round, Route};
use crate::link::Transport;
use crate::transport::layout::{LINE, Side};
use crate::transport::{LinkShape, Protocol, Rank, TransferError, check_slots};

/// The routes of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Routes {
    /// The route from this rank to itself.
    pub own: Option<Route>,
    /// The chunks that come straight from their origin or go straight to their destination.
    pub rounds: Vec<Round>,
    /// The chunks that relays pass on within this rank's domain.
    pub passes: Vec<Passing>,
}

/// Chunks of far ranks that share one lane of a relay. Their tiles take turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Passing {
    /// The route of each origin's chunk.
    pub chunks: Vec<Route>,
    /// The near rank that passes the chunks on to this rank. `None` if this rank is their relay.
    pub from: Option<Rank>,
    /// The near ranks that this rank passes the chunks on to.
    pub to: Vec<Rank>,
    /// The number of the lane between the near ranks.
    pub lane: usize,
}

impl Pattern {
    /// The ranks whose inputs go to all ranks. `None` for patterns that do not work in two levels.
    fn origins(&self, ranks: usize) -> Option<Vec<Rank>> {
        match *self {
            Pattern::AllGather => Some(Rank::all(ranks).collect()),
            Pattern::Broadcast { root } => Some(vec![root]),
            _ => None,
        }
    }
}

/// The most chunks that a relay passes on in this world.
pub(super) fn most_passed(pattern: Pattern, domains: &Domains, ranks: usize) -> usize {
    let of = |relay: Rank| passed_by(pattern, domains, ranks, relay).len();
    Rank::all(ranks).filter(|&rank| domains.around(rank).len() > 1).map(of).max().unwrap_or(0)
}

/// The far ranks whose chunks this rank keeps and passes on.
fn passed_by(pattern: Pattern, domains: &Domains, ranks: usize, relay: Rank) -> Vec<Rank> {
    let around = domains.around(relay);
    let far = pattern.origins(ranks).into_iter().flatten().filter(|&origin| !domains.are_near(origin, relay));
    far.filter(|&origin| domains.relay(origin, around) == relay).collect()
}

/// The routes of rank `me`, where relays have up to `lanes` lanes.
pub(super) fn routes(pattern: Pattern, domains: &Domains, (me, ranks): (Rank, usize), lanes: usize) -> Routes {
    let gathers = pattern == Pattern::AllGather;
    let origins = pattern.origins(ranks).expect("only these are planned in two levels");
    let is_origin = |rank: Rank| origins.contains(&rank);
    let lands = |origin: Rank| if gathers { Part::Chunk(origin.index()) } else { Part::All };
    // Chunks are the same as in one level, so hooks see the same values.
    let send = |peer: Rank| {
        let output = if gathers { Part::Chunk(peer.index()) } else { Part::All };
        Route { side: Side::Send, peer, input: Part::All, output, lands: lands(me) }
    };
    let receive = |origin: Rank| {
        let input = if gathers { Part::All } else { Part::Absent };
        Route { side: Side::Receive, peer: origin, input, output: lands(origin), lands: lands(origin) }
    };
    let around = domains.around(me);
    let (near, number) = (around.len(), around.iter().position(|&rank| rank == me).expect("it is in its domain"));
    let mut rounds: Vec<Round> = (1..near)
        .map(|i| {
            let (to, from) = (around[(number + i) % near], around[(number + near - i) % near]);
            Round { send: is_origin(me).then(|| send(to)), receive: is_origin(from).then(|| receive(from)) }
        })
        .filter(|round| round.send.is_some() || round.receive.is_some())
        .collect();
    let others = domains.members().iter().filter(|members| !members.contains(&me) && is_origin(me));
    rounds.extend(others.map(|members| Round { send: Some(send(domains.relay(me, members))), receive: None }));
    let mut passes = Vec::new();
    for &relay in around {
        let passed = passed_by(pattern, domains, ranks, relay);
        if near == 1 {
            // The relay has no near peers to pass the chunks on to.
            rounds.extend(passed.iter().map(|&origin| Round { send: None, receive: Some(receive(origin)) }));
            continue;
        }
        let used = lanes.min(passed.len());
        for lane in 0..used {
            let chunks = passed.iter().skip(lane).step_by(used).map(|&origin| receive(origin)).collect();
            let to = around.iter().copied().filter(|&rank| rank != me && relay == me).collect();
            passes.push(Passing { chunks, from: (relay != me).then_some(relay), to, lane });
        }
    }
    Routes { own: is_origin(me).then(|| send(me)), rounds, passes }
}

// ---- the decision
// ----------------------------------------------------------------------------------------------------

/// The decisions for a collective in two levels. They are the same on all ranks.
#[derive(Debug)]
pub(super) struct TwoLevel {
    pub domains: Domains,
    /// The most lanes that a relay may use.
    pub lanes: usize,
    /// The user's settings, with decisions for everything that the user left open.
    pub config: Config,
}

/// The facts that decide between two levels and one.
pub(super) struct Question<'q> {
    pub pattern: Pattern,
    pub link: &'q dyn Transport,
    pub config: Config,
    pub has_windows: bool,
    /// Decides how a chunk travels to a peer, or within the rank itself, with the given settings.
    pub way: &'q dyn Fn(Option<Rank>, Config) -> Result<Way, RunError>,
}

/// The number of levels.
pub(super) enum Levels {
    Two(Box<TwoLevel>),
    /// One level, and the reason if the user might expect two.
    One(Option<&'static str>),
}

const BUSY: &str = "near peers leave no blocks free for the chunks that a relay passes on: use fewer blocks, or raise \
                    max_blocks_per_peer at the rendezvous";
const NO_ROOM: &str = "the slots for far peers do not fit the staging of near peers: use smaller slots";
const FAR_BUSY: &str = "far peers take more than half of the blocks, and the chunks that a relay passes on need as \
                        many: use fewer blocks, or raise max_blocks_per_peer at the rendezvous";
const NO_DOMAINS: &str = "no two ranks reach each other by posts, or the transport does not report its domains: use a \
                          MeshTransport of several domains, or ring";
const NOT_STAGED: &str = "relays pass on data from staging only: use staged, or leave the primitive out";

impl Question<'_> {
    /// Decides between two levels and one. Fails if the user asks for two levels and they are impossible.
    pub(super) fn answer(&self) -> Result<Levels, RunError> {
        let Question { pattern, config, .. } = self;
        let asked = config.algorithm == Some(Algorithm::TwoLevel);
        if !pattern.takes_two_levels() || config.algorithm.is_some() && !asked {
            return Ok(Levels::One(None));
        }
        let refused = |why| TransferError::NotTwoLevel { collective: pattern.name(), why }.into();
        let Some(domains) = Domains::of(self.link) else {
            return if asked { Err(refused(NO_DOMAINS)) } else { Ok(Levels::One(None)) };
        };
        let primitives = [config.near.primitive, config.far.and_then(|far| far.primitive)];
        if asked && primitives.iter().flatten().any(|&primitive| primitive != Primitive::Staged) {
            return Err(refused(NOT_STAGED));
        }
        if !asked && !domains.have_neighbours() {
            return Ok(Levels::One(Some("every rank is alone in its domain")));
        }
        if !asked && primitives.iter().any(Option::is_some) {
            return Ok(Levels::One(Some("a primitive was asked for")));
        }
        if !asked && self.has_windows {
            return Ok(Levels::One(Some("a window was given")));
        }
        match self.settled(domains)? {
            Ok(two) => Ok(Levels::Two(Box::new(two))),
            Err(why) if asked => Err(refused(why)),
            Err(why) => Ok(Levels::One(Some(why))),
        }
    }

    /// Decides blocks and slots so that all legs have room, or returns the reason why that is impossible.
    fn settled(&self, domains: Domains) -> Result<Result<TwoLevel, &'static str>, RunError> {
        let (me, ranks) = (self.link.rank(), self.link.world_size());
        let (near, far) = (self.link.link(me), domains.far_from(me));
        let said = self.config.knobs(self.link.link(far).kind);
        let passed = most_passed(self.pattern, &domains, ranks);
        let staged =
            |knobs: Knobs| Config { far: Some(Knobs { primitive: Some(Primitive::Staged), ..knobs }), ..self.config };
        let mut way = (self.way)(Some(far), staged(said))?;
        let half = near.max_blocks / 2;
        if passed > 0 && way.blocks > half {
            if said.blocks.is_some() || half == 0 {
                return Ok(Err(FAR_BUSY));
            }
            way = (self.way)(Some(far), staged(Knobs { blocks: Some(half), ..said }))?;
        }
        let blocks = Some(way.blocks);
        if passed > 0 && !fits(&near, &way) {
            // A relay passes tiles on in slots like those in which they arrive, so the slots must fit near peers, too.
            let Protocol::Staged { slot_bytes, depth } = way.protocol else { return Ok(Err(NO_ROOM)) };
            let least = 2.max(near.copies as usize);
            let depth = said.depth.unwrap_or(depth.min(near.max_slots / least * least));
            let room = near.block_bytes() / depth.max(1) / LINE * LINE;
            let slot_bytes = said.slot_bytes.unwrap_or(slot_bytes.min(room));
            if depth < least || slot_bytes == 0 {
                return Ok(Err(NO_ROOM));
            }
            let knobs = Knobs { blocks, depth: Some(depth), slot_bytes: Some(slot_bytes), ..said };
            way = (self.way)(Some(far), staged(knobs))?;
            if !fits(&near, &way) {
                return Ok(Err(NO_ROOM));
            }
        }
        let lanes = passed.min((half / way.blocks.max(1)).max(1));
        let free = near.max_blocks - lanes * way.blocks;
        let Protocol::Staged { slot_bytes, depth } = way.protocol else { return Ok(Err(NO_ROOM)) };
        let far = Knobs { blocks, slot_bytes: Some(slot_bytes), depth: Some(depth), ..said };
        let mut config = Config { near: self.config.near, ..staged(far) };
        // The blocks of a message within the rank count here, because not all ranks have near peers and all ranks must
        // decide alike.
        let usual = (self.way)(None, config)?.blocks;
        if passed > 0 && usual > free {
            if self.config.near.blocks.is_some() {
                return Ok(Err(BUSY));
            }
            config.near.blocks = Some(free);
        }
        Ok(Ok(TwoLevel { domains, lanes, config }))
    }
}

/// True if the staging of near peers has room for the slots of this way.
fn fits(near: &LinkShape, way: &Way) -> bool {
    let Protocol::Staged { slot_bytes, depth } = way.protocol else { return false };
    check_slots(near, way.protocol, slot_bytes, depth).is_ok() && depth.is_multiple_of(near.copies as usize)
}
