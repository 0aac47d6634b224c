//! The plan of a collective: what one rank will do, decided and checked, as plain data.
//!
//! ```text
//!   Request ──exchange_plan.rs──▶ Itinerary ──┬─▶ kernel        exchange_kernel.rs, reduction_kernel.rs, map.rs
//!           ──reduction_plan.rs─▶             ├─▶ agreement     agreement.rs: compared with the other ranks
//!                                             ├─▶ explain()     for people
//!                                             └─▶ launch        which stores go around the cache
//! ```
//! All that is decided is decided before it is made, and whatever comes after reads it here.

use super::algorithm::{Algorithm, ReduceOp};
use super::call::Call;
use super::facts::WorldFacts;
use super::operation::{Kind, Operation};
use super::request::Request;
use super::rounds::{Rounds, Warps};
use crate::hook::MisuseKind;
use crate::ir::{SourceLine, Type};
use crate::schedule::Tiling;
use crate::tensor::{AnyTensor, Memory};
use crate::transport::layout::Side;
use crate::transport::{LinkShape, Protocol, Rank};
use crate::vm::Traffic;
use std::ops::Range;

/// Why a plan cannot be refused where a kernel is traced.
pub(super) const CHECKED: &str = "slots and blocks were checked when it was decided how to travel";

/// What one rank of a collective will do.
pub(super) struct Itinerary {
    pub operation: Operation,
    /// The user's call.
    pub call: Call,
    pub out: AnyTensor,
    pub inp: AnyTensor,
    pub algorithm: Algorithm,
    /// How its rounds share the launch.
    pub layout: Rounds,
    pub facts: WorldFacts,
    pub warps: Warps,
    /// What travels for a position: the parts, and how many neighbours share the last.
    pub payload: (&'static [Type], usize),
    /// What names the windows it goes through, on all ranks.
    pub windows: Option<String>,
    /// Whether input and output are the same memory, which the hooks touch only where they are.
    pub in_place: bool,
    pub work: Work,
    /// What the launch moves, in sizes.
    pub traffic: Traffic,
    /// What is wrong with the call, and shown with what is wrong with its hooks.
    pub faults: Vec<(SourceLine, MisuseKind)>,
}

/// What there is to do.
pub(super) enum Work {
    /// Hooks over a whole tensor, by blocks that each have a share of its rows, or of its elements.
    Map { blocks: usize, share: usize },
    /// Chunks, from rank to rank.
    Legs(Legs),
    /// Shards of what all ranks combine.
    Shards(Shards),
}

/// The legs of one rank.
pub(super) struct Legs {
    /// From this rank to itself; none where there is nothing to do for it, or another leg does it.
    pub own: Option<Leg>,
    /// Of each round what is sent and what is received.
    pub rounds: Vec<[Option<Leg>; 2]>,
}

/// One leg of an exchange: what is sent to, or received from, a peer, or passed to oneself.
pub(super) struct Leg {
    pub peer: Rank,
    pub side: Side,
    /// The chunks of the hooks; `None` where this rank has none, and only a length stands for it.
    pub inp: Option<AnyTensor>,
    pub out: Option<AnyTensor>,
    pub tiling: Tiling,
    pub protocol: Protocol,
    /// The constants of the link it goes over.
    pub link: LinkShape,
    /// Where it is written, by `direct`.
    pub window: Option<Memory>,
    /// The own leg, where that is not one of its own: this one keeps the rank's own chunk while it sends another.
    pub keeps: Option<Box<Leg>>,
}

impl Legs {
    /// All legs, those to peers first.
    pub(super) fn all(&self) -> impl Iterator<Item = &Leg> {
        let to_peers = self.rounds.iter().flatten().flatten();
        let kept = to_peers.clone().filter_map(|leg| leg.keeps.as_deref());
        to_peers.chain(&self.own).chain(kept)
    }
}

/// A reduction: every rank combines its shard.
pub(super) struct Shards {
    pub kind: Kind,
    pub op: ReduceOp,
    pub protocol: Protocol,
    /// The constants of the links to all peers, which are alike.
    pub link: LinkShape,
    /// One for each rank; the first is the longest.
    pub shards: Vec<Shard>,
    /// What it goes through, where that is windows.
    pub windows: Option<ReachedWindows>,
    /// Whether packets are sent, taken and combined in one pass.
    pub swaps: bool,
    /// Warps of a role that has the block to itself.
    pub warps: u32,
}

/// What one rank combines.
pub(super) struct Shard {
    /// Its positions in the hooks' chunk.
    pub range: Range<usize>,
    /// Its tiles; in packets of an all-reduce, those of the whole message.
    pub tiling: Tiling,
}

/// What this rank combines of every rank's windows.
pub(super) struct ReachedWindows {
    /// What names the windows, on all ranks.
    pub number: String,
    /// Of the inputs.
    pub input: Vec<Memory>,
    /// Of the outputs, where all ranks get everything.
    pub output: Option<Vec<Memory>>,
}

impl Shards {
    /// The ranks that shard `s` is accumulated in the order of.
    pub(super) fn order(&self, s: usize) -> impl ExactSizeIterator<Item = Rank> + use<> {
        let ranks = self.shards.len();
        (0..ranks).map(move |i| Rank::new(s as u32).after(i + 1, ranks))
    }

    pub(super) fn blocks(&self) -> usize {
        self.shards[0].tiling.blocks()
    }

    /// The type of what is reduced is `ty`: what partial results travel as.
    pub(super) fn partial(&self, ty: Type) -> &'static [Type] {
        self.op.partial(ty).alone()
    }
}

impl Itinerary {
    /// A plan that does this, with chunks of `len` elements: straight, through no window, with nothing wrong.
    pub(super) fn of(request: &Request<'_, '_>, facts: WorldFacts, len: usize, work: Work) -> Itinerary {
        let Request { operation, out, inp, hooks, config, .. } = request;
        Itinerary {
            operation: *operation,
            call: operation.call(len, hooks.types, &hooks.at),
            out: out.clone(),
            inp: inp.clone(),
            algorithm: config.algorithm.unwrap_or(Algorithm::OneShot),
            layout: request.layout(facts.in_memory),
            facts,
            warps: config.near.into(),
            payload: (hooks.types, hooks.last_per),
            windows: None,
            in_place: false,
            work,
            traffic: Traffic::default(),
            faults: Vec::new(),
        }
    }

    /// How everything is cut, how it travels, and over what.
    pub(super) fn tilings(&self) -> Vec<(Tiling, Protocol, LinkShape)> {
        match &self.work {
            Work::Map { .. } => Vec::new(),
            Work::Legs(legs) => legs.all().map(|leg| (leg.tiling, leg.protocol, leg.link)).collect(),
            Work::Shards(of) => of.shards.iter().map(|shard| (shard.tiling, of.protocol, of.link)).collect(),
        }
    }

    /// For people: how it travels to and from each peer.
    pub(super) fn explain(&self) -> String {
        let on = if self.facts.on_gpu() { "a GPU" } else { "the CPU" };
        let lines: Vec<String> = match &self.work {
            Work::Map { blocks, .. } => vec![format!("{blocks} blocks on {on}")],
            Work::Legs(legs) => legs
                .all()
                .map(|leg| format!("{} rank {}: {}", leg.side, leg.peer, way(leg.protocol, &leg.tiling)))
                .collect(),
            Work::Shards(of) => {
                let way = way(of.protocol, &of.shards[0].tiling);
                vec![format!("{} of {}: {way}", self.algorithm.name(), of.op.name())]
            }
        };
        lines.iter().fold(self.call.to_string(), |text, line| format!("{text}\n  {line}"))
    }
}

/// How a chunk travels, in words.
fn way(protocol: Protocol, tiling: &Tiling) -> String {
    let (rows, cols) = (tiling.tile_rows(), tiling.tile_cols());
    format!("{} elements by {protocol}, {} blocks, tiles of [{rows}, {cols}]", tiling.len(), tiling.blocks())
}
