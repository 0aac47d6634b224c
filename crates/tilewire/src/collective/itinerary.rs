//! The plan of a collective: what one rank will do, decided and checked, as plain data.
//!
//! ```text
//!   Request ──exchange_plan.rs──▶ Itinerary ──┬─▶ kernel        exchange_kernel.rs, reduction_kernel.rs, map_kernel.rs
//!           ──reduction_plan.rs─▶             ├─▶ agreement     agreement.rs: compared with the other ranks
//!                                             ├─▶ explain()     a description to read
//!                                             └─▶ launch        which stores bypass the cache
//! ```
//! Everything is decided before anything is built, and all later stages read the decisions here.

use super::algorithm::{Algorithm, ReduceOp};
use super::call::Call;
use super::facts::WorldFacts;
use super::operation::{Kind, Operation};
use super::rebind::Bound;
use super::request::Request;
use super::rounds::{Rounds, Warps};
use super::windows::UsedWindows;
use crate::hook::MisuseKind;
use crate::ir::{SourceLine, Type};
use crate::link::{PostFrom, Transport};
use crate::schedule::{PostedWindow, Tiling};
use crate::tensor::{AnyTensor, Axis, Memory};
use crate::transport::layout::Side;
use crate::transport::proxy::{PostedRegion, PostedSource};
use crate::transport::{LinkKind, LinkShape, Protocol, Rank, TransportError};
use crate::vm::Traffic;
use std::cell::OnceCell;
use std::ops::Range;

/// Why the slots and blocks of a plan cannot be refused while its kernel is traced.
pub(super) const CHECKED: &str = "slots and blocks were checked when it was decided how to travel";

/// What one rank of a collective will do.
pub(super) struct Itinerary {
    pub operation: Operation,
    /// The user's call.
    pub call: Call,
    pub out: AnyTensor,
    pub inp: AnyTensor,
    /// The axes along which the input and the output are cut into chunks.
    pub axes: [Axis; 2],
    pub algorithm: Algorithm,
    /// How the rounds share the launch.
    pub layout: Rounds,
    pub facts: WorldFacts,
    pub warps: Warps,
    /// Those of roles that serve far peers only.
    pub far_warps: Warps,
    /// The payload of a position: its parts, and how many neighbours share the last one.
    pub payload: (&'static [Type], usize),
    pub windows: UsedWindows,
    /// True if input and output are the same memory. A hook then touches only its own position.
    pub in_place: bool,
    pub work: Work,
    /// The amount of data that the launch moves.
    pub traffic: Traffic,
    /// Why this algorithm, where domains decide it.
    pub why: Option<String>,
    /// Faults of the call, reported together with those of its hooks.
    pub faults: Vec<(SourceLine, MisuseKind)>,
}

/// The work to be done.
pub(super) enum Work {
    /// Hooks over a whole tensor. Each block has a share of its rows, or of its elements.
    Map { blocks: usize, share: usize },
    /// Chunks that move from rank to rank.
    Legs(Legs),
    /// Shards that all ranks combine.
    Shards(Shards),
}

/// The legs of one rank.
pub(super) struct Legs {
    /// From this rank to itself. `None` if there is nothing to do, or if another leg does it.
    pub own: Option<Leg>,
    /// The sending and the receiving leg of each round.
    pub rounds: Vec<[Option<Leg>; 2]>,
    /// In two levels, the chunks that pass through this rank's domain.
    pub passes: Vec<Pass>,
}

/// Chunks of far ranks that a near rank passes on, tile by tile in turn.
pub(super) struct Pass {
    /// The receiving legs, one for each far rank.
    pub chunks: Vec<Leg>,
    /// The near rank that passes them on. `None` if this rank does.
    pub from: Option<Rank>,
    /// The near ranks that this rank passes them on to.
    pub to: Vec<Rank>,
    /// The constants of the links between the near ranks.
    pub near: LinkShape,
    /// The first of the transport's blocks that they use between near ranks.
    pub first_block: usize,
}

/// One leg of an exchange: a chunk that is sent to a peer, received from a peer, or passed to the rank itself.
pub(super) struct Leg {
    pub peer: Rank,
    pub side: Side,
    /// The chunks of the hooks. `None` if this rank has no such chunk and only its length is known.
    pub inp: Option<AnyTensor>,
    pub out: Option<AnyTensor>,
    pub tiling: Tiling,
    pub protocol: Protocol,
    /// The constants of the link it uses.
    pub link: LinkShape,
    /// Where `direct` writes.
    pub window: Option<LegWindow>,
    /// Distance between the rows of the chunk there, in bytes, if there are gaps between them.
    pub pitch: Option<usize>,
    /// The rank's own leg, if it is not separate: this leg stores the rank's own chunk while it sends another.
    pub keeps: Option<Box<Leg>>,
}

/// The part of a peer's window that a leg writes.
pub(super) enum LegWindow {
    /// By stores.
    Mapped(Memory),
    /// By posts.
    Posted {
        region: PostedRegion,
        /// Its first byte, and how many.
        first: usize,
        bytes: usize,
        /// True if the input is posted where it is, without an outbox.
        in_place: bool,
        /// What is posted: registered when the kernel is traced.
        source: OnceCell<PostedSource>,
    },
}

impl LegWindow {
    /// How the bytes get there, in words; nothing where stores bring them.
    fn how(&self) -> &'static str {
        match self {
            LegWindow::Mapped(_) => "",
            LegWindow::Posted { in_place: true, .. } => ", posted from the input (zero-copy)",
            LegWindow::Posted { in_place: false, .. } => ", posted from an outbox",
        }
    }

    /// The window, if it is reached by posts. Its source must have been registered.
    pub(super) fn posted(&self) -> Option<PostedWindow> {
        let LegWindow::Posted { region, first, in_place, source, .. } = self else { return None };
        let source = source.get().expect("registered before the kernel is traced").clone();
        Some(PostedWindow { region: region.clone(), first: *first, source, in_place: *in_place })
    }
}

impl Legs {
    /// The legs that no relay handles, but for the rank's own.
    pub(super) fn straight(&self) -> impl Iterator<Item = &Leg> + Clone {
        self.rounds.iter().flatten().flatten()
    }

    /// All legs but the rank's own.
    pub(super) fn to_peers(&self) -> impl Iterator<Item = &Leg> + Clone {
        self.straight().chain(self.passes.iter().flat_map(|pass| &pass.chunks))
    }

    /// All legs, starting with those to peers.
    pub(super) fn all(&self) -> impl Iterator<Item = &Leg> {
        let to_peers = self.to_peers();
        let kept = to_peers.clone().filter_map(|leg| leg.keeps.as_deref());
        to_peers.chain(&self.own).chain(kept)
    }
}

/// The work of a reduction, in which every rank combines its shard.
pub(super) struct Shards {
    pub kind: Kind,
    pub op: ReduceOp,
    pub protocol: Protocol,
    /// The constants of the links to all peers, which are identical.
    pub link: LinkShape,
    /// One per rank; the first is the longest.
    pub shards: Vec<Shard>,
    /// The windows it uses, if any.
    pub windows: Option<ReachedWindows>,
    /// True if packets are sent, received and combined in one pass.
    pub swaps: bool,
    /// Warps of a role that has the block to itself.
    pub warps: u32,
}

/// The shard that one rank combines.
pub(super) struct Shard {
    /// Its positions in the hooks' chunk.
    pub range: Range<usize>,
    /// Its tiles. For an all-reduce in packets, the tiles of the whole message.
    pub tiling: Tiling,
}

/// The parts of all ranks' windows that this rank combines.
pub(super) struct ReachedWindows {
    pub used: UsedWindows,
    /// The windows of the inputs.
    pub input: Vec<Memory>,
    /// The windows of the outputs, if all ranks get the whole result.
    pub output: Option<Vec<Memory>>,
}

impl Shards {
    /// The ranks in the order in which shard `s` is accumulated.
    pub(super) fn order(&self, s: usize) -> impl ExactSizeIterator<Item = Rank> + use<> {
        let ranks = self.shards.len();
        (0..ranks).map(move |i| Rank::new(s as u32).after(i + 1, ranks))
    }

    pub(super) fn blocks(&self) -> usize {
        self.shards[0].tiling.blocks()
    }

    /// The type of partial results on their way, if the reduced type is `ty`.
    pub(super) fn partial(&self, ty: Type) -> &'static [Type] {
        self.op.partial(ty).alone()
    }
}

impl Itinerary {
    /// A plan for this work with chunks of `len` elements: one-shot unless the user chose another algorithm, without
    /// windows and without faults.
    pub(super) fn of(request: &Request<'_, '_>, facts: WorldFacts, len: usize, work: Work) -> Itinerary {
        let Request { operation, out, inp, axes, hooks, config, .. } = request;
        Itinerary {
            operation: *operation,
            call: operation.call(len, hooks.types, &hooks.at),
            out: out.clone(),
            inp: inp.clone(),
            axes: *axes,
            algorithm: config.algorithm.unwrap_or(Algorithm::OneShot),
            layout: request.layout(&facts),
            facts,
            warps: config.near.into(),
            far_warps: config.knobs(LinkKind::Fabric).into(),
            payload: (hooks.types, hooks.last_per),
            windows: UsedWindows::default(),
            in_place: false,
            work,
            traffic: Traffic::default(),
            why: None,
            faults: Vec::new(),
        }
    }

    /// Its tensors and windows, and which of them peers reach.
    pub(super) fn bound(&self) -> Bound {
        let is_direct = |(_, protocol, _): &(_, Protocol, _)| matches!(protocol, Protocol::Direct { .. });
        let ways = self.tilings();
        let (is_reached, is_posted) = match &self.work {
            Work::Shards(of) => (of.windows.is_some(), false),
            Work::Legs(_) => {
                let is_far = |(_, _, link): &(_, _, LinkShape)| link.kind == LinkKind::Fabric;
                (ways.iter().any(is_direct), ways.iter().any(|way| is_direct(way) && is_far(way)))
            }
            Work::Map { .. } => (false, false),
        };
        let tensors = [self.out.clone(), self.inp.clone()];
        Bound { tensors, windows: self.windows.clone(), is_reached, is_posted }
    }

    /// Registers what posts to windows will read, before the kernel is traced.
    pub(super) fn register_sources(&self, link: &dyn Transport) -> Result<(), TransportError> {
        let Work::Legs(legs) = &self.work else { return Ok(()) };
        for leg in legs.all() {
            let Some(LegWindow::Posted { bytes, in_place, source, .. }) = &leg.window else { continue };
            let from = match &leg.inp {
                Some(inp) if *in_place => PostFrom::Memory(inp.memory()),
                _ => PostFrom::Outbox(*bytes),
            };
            if source.get().is_none() {
                _ = source.set(link.post_source(leg.peer, from)?);
            }
        }
        Ok(())
    }

    /// The windows that its posts write, with their ranks, and what posts read.
    pub(super) fn posted(&self) -> Vec<(Rank, PostedWindow)> {
        let Work::Legs(legs) = &self.work else { return Vec::new() };
        legs.all().filter_map(|leg| Some((leg.peer, leg.window.as_ref()?.posted()?))).collect()
    }

    /// The tiling, the protocol and the link of every leg or shard.
    pub(super) fn tilings(&self) -> Vec<(Tiling, Protocol, LinkShape)> {
        match &self.work {
            Work::Map { .. } => Vec::new(),
            Work::Legs(legs) => legs.all().map(|leg| (leg.tiling, leg.protocol, leg.link)).collect(),
            Work::Shards(of) => of.shards.iter().map(|shard| (shard.tiling, of.protocol, of.link)).collect(),
        }
    }

    /// Describes the plan as text to read: how data travels to and from each peer.
    pub(super) fn explain(&self) -> String {
        let on = if self.facts.on_gpu() { "a GPU" } else { "the CPU" };
        let lines: Vec<String> = match &self.work {
            Work::Map { blocks, .. } => vec![format!("{blocks} blocks on {on}")],
            Work::Legs(legs) => {
                let line = |leg: &Leg| {
                    let how = leg.window.as_ref().map_or("", LegWindow::how);
                    format!("{} rank {}: {}{how}", leg.side, leg.peer, way(leg.protocol, &leg.tiling))
                };
                let passed = |pass: &Pass| {
                    let how = match pass.from {
                        Some(relay) => format!("through rank {relay}"),
                        None => format!("passed on to {}", list(&pass.to)),
                    };
                    pass.chunks.iter().map(|leg| format!("{}, {how}", line(leg))).collect::<Vec<_>>()
                };
                let kept = legs.straight().filter_map(|leg| leg.keeps.as_deref());
                let (straight, own) = (legs.straight().map(line), legs.own.iter().chain(kept).map(line));
                straight.chain(legs.passes.iter().flat_map(passed)).chain(own).collect()
            }
            Work::Shards(of) => {
                let way = way(of.protocol, &of.shards[0].tiling);
                vec![format!("{} of {}: {way}", self.algorithm.name(), of.op.name())]
            }
        };
        let lines = self.why.iter().chain(&lines);
        lines.fold(self.call.to_string(), |text, line| format!("{text}\n  {line}"))
    }
}

/// Ranks in words.
fn list(ranks: &[Rank]) -> String {
    let numbers: Vec<String> = ranks.iter().map(Rank::to_string).collect();
    format!("rank{} {}", if numbers.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

/// How a chunk travels, in words.
fn way(protocol: Protocol, tiling: &Tiling) -> String {
    let (rows, cols) = (tiling.tile_rows(), tiling.tile_cols());
    format!("{} elements by {protocol}, {} blocks, tiles of [{rows}, {cols}]", tiling.len(), tiling.blocks())
}
