//! Plans reductions: the algorithm, the protocol, the shards and their tiles, and the windows, checked against the
//! transport.

use super::algorithm::{Algorithm, ReduceOp};
use super::config::{Knobs, Primitive};
use super::decide::{RING_SHARD, Way};
use super::domains::Domains;
use super::error::RunError;
use super::exchange_plan::{expanded, over_the_input};
use super::facts::WorldFacts;
use super::itinerary::{Itinerary, ReachedWindows, Shard, Shards, Work};
use super::operation::Kind;
use super::pattern::Part;
use super::request::Request;
use super::rounds::{FEWER, Rounds, Warps, warps_of};
use super::settle::Message;
use super::windows::{UsedWindows, WindowOf};
use crate::hook::MisuseKind;
use crate::ir::Type;
use crate::link::Transport;
use crate::schedule::{Tiling, swapped};
use crate::tensor::{Axis, Memory};
use crate::transport::{LinkKind, Protocol, Rank, TransferError};
use crate::vm::Traffic;
use std::ops::Range;

/// Plans a reduction.
pub(super) fn plan(request: &Request<'_, '_>, (kind, op): (Kind, ReduceOp)) -> Result<Itinerary, RunError> {
    let (link, hooks) = (request.link(), &request.hooks);
    let facts = WorldFacts::of(link);
    let planner = Planner { request, kind, op, link, layout: request.layout(&facts), facts };
    let (ranks, len) = (facts.ranks, request.out.len());
    if kind == Kind::ReduceScatter {
        Part::Chunk(0).of("the input", &request.inp, request.axes[0], ranks)?;
    }
    let in_place = planner.in_place()?;
    let (algorithm, shards, why) = match planner.reached(in_place)? {
        Some(reached) => {
            let (algorithm, shards) = planner.in_windows(reached)?;
            (algorithm, shards, None)
        }
        None => planner.through_staging()?,
    };
    let (is, must) = (request.inp.len(), len * planner.chunks());
    let what = if planner.chunks() == 1 {
        "the input, which without a produce hook is as long as the output,"
    } else {
        "the input, which without a produce hook is as long as the outputs of all ranks together,"
    };
    let fault = (hooks.at.clone(), MisuseKind::Length { what, is, must });
    let lengths = if hooks.copies && is != must { vec![fault] } else { Vec::new() };
    let faults = [lengths, expanded(request, true)].concat();
    let payload = (if algorithm == Algorithm::Ring { shards.partial(hooks.types[0]) } else { hooks.types }, 1);
    let windows = shards.windows.as_ref().map(|windows| windows.used.clone());
    // Not for an all-reduce: it writes all outputs, and measurements showed no difference.
    let reads_more = kind == Kind::ReduceScatter;
    let traffic = Traffic { reads_more, stages: windows.is_none(), ..Traffic::default() };
    let windows = windows.unwrap_or_default();
    let base = Itinerary::of(request, facts, len, Work::Shards(shards));
    let warps = planner.message().knobs(link).into();
    Ok(Itinerary { algorithm, warps, payload, windows, in_place, traffic, why, faults, ..base })
}

struct Planner<'p, 'h, 'l> {
    request: &'p Request<'h, 'l>,
    kind: Kind,
    op: ReduceOp,
    link: &'l dyn Transport,
    layout: Rounds,
    facts: WorldFacts,
}

/// An all-reduce of GPUs over windows takes one shot if every rank reads at most this many bytes from its peers, and
/// two phases otherwise. One shot reads more, but ends as soon as its own output is written: nobody else waits for it.
const ONE_SHOT_READS: usize = 3 << 19;

/// The windows of a reduction.
struct Reached<'p> {
    input: &'p WindowOf,
    /// For an all-reduce in two phases.
    output: Option<&'p WindowOf>,
}

impl<'p> Planner<'p, '_, '_> {
    /// Number of chunks in the input, each as long as the output.
    fn chunks(&self) -> usize {
        if self.kind == Kind::AllReduce { 1 } else { self.facts.ranks }
    }

    /// One peer, which stands for all of them: a far one if there is one, since far links can do less. Every rank of a
    /// world with far peers has one, so all ranks decide alike.
    fn peer(&self) -> Option<Rank> {
        let (me, ranks) = (self.link.rank(), self.facts.ranks);
        let mut others = (1..ranks).map(|distance| me.after(distance, ranks));
        let is_far = |&peer: &Rank| self.link.link(peer).kind == LinkKind::Fabric;
        others.clone().find(is_far).or(others.next())
    }

    /// The positions of each shard; the first is the longest.
    fn ranges(&self) -> Vec<Range<usize>> {
        let (ranks, len) = (self.facts.ranks, self.request.out.len());
        let share = len.div_ceil(ranks);
        match self.kind {
            Kind::ReduceScatter => vec![0..len; ranks],
            Kind::AllReduce => (0..ranks).map(|s| (s * share).min(len)..((s + 1) * share).min(len)).collect(),
        }
    }

    /// True if the output is exactly the input, or this rank's chunk of it. Any other overlap is refused. In place,
    /// hooks must touch only their own position, as copies do. This is safe because a result arrives only after its
    /// sender has read what this rank sent for it.
    fn in_place(&self) -> Result<bool, RunError> {
        let Request { inp, out, hooks, .. } = self.request;
        if !inp.memory().overlaps(out.memory()) {
            return Ok(false);
        }
        let part = if self.kind == Kind::AllReduce { Part::All } else { Part::Chunk(self.link.rank().index()) };
        let own = part.of("the input", inp, self.request.axes[0], self.facts.ranks)?.expect("it is there");
        if !own.memory().is(out.memory()) || inp.ty() != out.ty() {
            return Err(over_the_input(inp.memory()).into());
        }
        if !hooks.is_copy() {
            hooks.check_in_place(out)?;
        }
        Ok(true)
    }

    /// The message to every peer, before its length and how it travels are known.
    fn message(&self) -> Message<'static> {
        Message {
            config: self.request.config,
            peer: self.peer(),
            types: self.request.hooks.types,
            len: 0,
            last_per: 1,
            shape: None,
            at_once: 1,
            only: None,
            consumed: false,
            window_bytes: None,
        }
    }

    fn through_staging(&self) -> Result<(Algorithm, Shards, Option<String>), RunError> {
        let (link, ranks, len) = (self.link, self.facts.ranks, self.request.out.len());
        let (hooks, knobs) = (&self.request.hooks, self.message().knobs(link));
        if knobs.primitive == Some(Primitive::Bulk) {
            let (protocol, why) = (
                Protocol::Bulk { slot_bytes: 0, depth: 0 },
                "a reduction combines what arrives: use staged, packet or direct",
            );
            return Err(TransferError::Unable { protocol, why }.into());
        }
        if let Some(refused) = self.request.refused_algorithm() {
            return Err(refused.into());
        }
        let settle = |message: Message<'_>| Ok::<Way, RunError>(message.settle(link, &self.facts)?.0);
        let at_once = if self.layout == Rounds::Legs { 2 * ranks } else { ranks };
        let staged = |types: &'static [Type], len, why| Message {
            types,
            len,
            at_once,
            only: Some((Primitive::Staged, why)),
            ..self.message()
        };
        // One role sends and receives the packets of all peers, so no other blocks run beside its own.
        let in_packets = |only| settle(Message { len, only, ..self.message() });
        let (algorithm, why) = match (self.kind, self.request.config.algorithm) {
            (_, Some(said)) => (said, self.across_domains(said)),
            (Kind::ReduceScatter, None) => (Algorithm::OneShot, None),
            (Kind::AllReduce, None) if in_packets(None)?.protocol == Protocol::Packet => (Algorithm::OneShot, None),
            (Kind::AllReduce, None) => self.usual_all_reduce(),
        };
        let share = if self.kind == Kind::AllReduce { len.div_ceil(ranks) } else { len };
        let way = match (self.kind, algorithm) {
            (_, Algorithm::TwoLevel) => unreachable!("no reduction takes it"),
            (Kind::AllReduce, Algorithm::OneShot) if self.facts.has_far => {
                let why = "a one-shot all-reduce goes in packets, and far peers take none: use two-phase or ring, or \
                           leave the algorithm out";
                return Err(TransferError::Unable { protocol: Protocol::Packet, why }.into());
            }
            (Kind::AllReduce, Algorithm::OneShot) => {
                let why = "one-shot sends everything in packets: use two-phase, or leave the primitive out";
                in_packets(Some((Primitive::Packet, why))).map_err(|error| match error {
                    RunError::Transfer(TransferError::TooLarge { bytes, region, .. }) => {
                        TransferError::OneShot { bytes, region }.into()
                    }
                    error => error,
                })?
            }
            (Kind::ReduceScatter, Algorithm::OneShot) => match in_packets(None)? {
                small if small.protocol == Protocol::Packet => small,
                _ => settle(Message { len, at_once, ..self.message() })?,
            },
            (_, Algorithm::Ring) => {
                let why = "a ring passes on what lies in staging: use staged";
                settle(staged(self.op.partial(hooks.types[0]).alone(), share, why))?
            }
            (_, Algorithm::TwoPhase) => {
                let message = staged(hooks.types, share, "two phases go through staging: use staged");
                let usual = settle(message)?;
                let most = usual.link.max_blocks / 2;
                match knobs.blocks {
                    // Outgoing and returning data have separate blocks. If the user did not set the number, each
                    // direction gets at most half of the link's blocks.
                    None if usual.blocks > most && most > 0 => {
                        settle(Message { config: Knobs { blocks: Some(most), ..knobs }.into(), ..message })?
                    }
                    _ => usual,
                }
            }
        };
        let Way { protocol, blocks, tile, granule, .. } = way;
        let max = way.link.max_blocks;
        if algorithm == Algorithm::TwoPhase && 2 * blocks > max && ranks > 1 {
            // Outgoing and returning data have separate blocks.
            return Err(TransferError::Blocks { blocks: 2 * blocks, max }.into());
        }
        let whole = self.kind == Kind::AllReduce && protocol == Protocol::Packet;
        let tiling = |range: &Range<usize>| {
            let tiling = Tiling::flat(if whole { len } else { range.len() }, tile, blocks);
            if matches!(protocol, Protocol::Staged { .. }) && ranks > 1 { tiling } else { tiling.bands(granule) }
        };
        Ok((algorithm, self.shards(&way, tiling, None), why))
    }

    /// The algorithm of an all-reduce that goes through staging, and why, where domains decide it. Every algorithm
    /// keeps the order of ranks, so sums are not regrouped per domain. In two phases every shard crosses the network
    /// once for each far rank and back. A ring in rank order crosses as often as neighbours are far, which is once per
    /// domain where domains are contiguous.
    fn usual_all_reduce(&self) -> (Algorithm, Option<String>) {
        let Some(domains) = Domains::of(self.link) else { return (Algorithm::TwoPhase, None) };
        let (ranks, ty) = (self.facts.ranks, self.request.hooks.types[0]);
        let (partial, whole) = (self.op.partial(ty).size(), ty.size());
        // Bytes across the network for every element of a shard.
        let ring = domains.crossings() * (ranks - 1) * (partial + whole);
        let phases = 2 * domains.far_pairs() * whole;
        let is_small = self.request.out.len().div_ceil(ranks) * whole < RING_SHARD;
        let crosses = || format!("a ring in rank order crosses {} times a lap", domains.crossings());
        if !is_small && ring < phases {
            return (Algorithm::Ring, Some(format!("ring: over {}, {}", domains.describe(), crosses())));
        }
        let why = match (domains.are_contiguous(), is_small) {
            (_, true) => format!("shards of less than {} KiB take fewer steps so", RING_SHARD >> 10),
            (false, _) => format!("domains are not contiguous, and {}", crosses()),
            (true, _) => format!("a ring would carry no less across {}", domains.describe()),
        };
        (Algorithm::TwoPhase, Some(format!("two-phase: {why}")))
    }

    /// What there is to say about an algorithm that the user chose, in a world of several domains.
    fn across_domains(&self, algorithm: Algorithm) -> Option<String> {
        let domains = Domains::of(self.link).filter(|_| algorithm == Algorithm::Ring)?;
        let order = if domains.are_contiguous() { "" } else { ": they are not contiguous in rank order" };
        Some(format!("ring: crosses {} times a lap between {}{order}", domains.crossings(), domains.describe()))
    }

    fn shards(&self, way: &Way, tiling: impl Fn(&Range<usize>) -> Tiling, windows: Option<ReachedWindows>) -> Shards {
        let Way { protocol, link, .. } = *way;
        let shard = |range: Range<usize>| Shard { tiling: tiling(&range), range };
        let shards: Vec<Shard> = self.ranges().into_iter().map(shard).collect();
        let in_packets = protocol == Protocol::Packet && shards.len() > 1;
        let warps = Warps::from(self.message().knobs(self.link));
        // There are few words per peer, so with many warps the barriers cost more than the lanes gain
        // (docs/decisions/0015).
        let warps = warps_of(self.facts.on_gpu(), warps.both(), if in_packets { 8 } else { FEWER });
        // Swapping handles several positions together, which suits the few lanes that a GPU has for them. A `consume`
        // hook may combine neighbours, so it gets positions one by one.
        let for_all = self.kind == Kind::AllReduce && self.request.hooks.stores();
        let fits = || swapped(self.request.hooks.types[0], shards[0].tiling).is_some();
        let swaps = self.facts.for_gpu() && in_packets && for_all && fits();
        Shards { kind: self.kind, op: self.op, protocol, link, shards, windows, swaps, warps }
    }

    // ---- windows --------------------------------------------------------------------------------------------------

    /// The windows that the reduction uses, if any. It does if the user chooses `direct`, or passes windows and chooses
    /// no primitive.
    fn reached(&self, in_place: bool) -> Result<Option<Reached<'p>>, TransferError> {
        let Request { windows, hooks, config, inp, out, .. } = self.request;
        match self.message().knobs(self.link).primitive {
            // Windows of far peers cannot be read: everything goes through staging.
            _ if self.facts.has_far => return Ok(None),
            Some(Primitive::Direct) => {}
            None if !windows.is_empty() => {}
            _ => return Ok(None),
        }
        let unable = |why| Err(TransferError::Unable { protocol: Protocol::Direct { window_bytes: 0 }, why });
        let all = self.kind == Kind::AllReduce;
        match config.algorithm {
            None | Some(Algorithm::OneShot) => {}
            Some(Algorithm::TwoPhase) if all => {}
            Some(_) if all => {
                return unable("an all-reduce goes through windows in one shot or in two phases: say so, or nothing");
            }
            Some(_) => return unable("a reduce-scatter goes through windows in one shot: say one-shot, or nothing"),
        }
        if !hooks.copies {
            return unable("nobody runs a produce hook when peers read the input where it lies: use staged or packet");
        }
        if !all && inp.grid().rows > 1 && self.request.axes[0] == Axis::Cols {
            return unable("it reads a chunk as one run of a window: cut the input along rows, or use staged");
        }
        let of = |memory: &Memory| windows.iter().find(|window| window.own.is(memory));
        let Some(input) = of(inp.memory()).filter(|window| window.ty == inp.ty()) else {
            return unable(
                "the input is not this rank's part of a window: give window.tensor() and say window(&window)",
            );
        };
        if !all {
            return Ok(Some(Reached { input, output: None }));
        }
        let output = of(out.memory()).filter(|window| hooks.types == [window.ty]);
        // In one shot every rank writes only its own output, while others may still read its input.
        let one_shot = match (config.algorithm, hooks.stores(), output) {
            (Some(algorithm), ..) => algorithm == Algorithm::OneShot,
            _ if in_place => false,
            (_, false, _) | (.., None) => true,
            _ => self.facts.for_gpu() && (self.facts.ranks - 1) * inp.memory().bytes() <= ONE_SHOT_READS,
        };
        match (one_shot, output) {
            (true, _) if in_place => unable(
                "in one shot peers read the input until the launch has ended: give another output, or use two-phase \
                 with both in one window",
            ),
            (true, _) => Ok(Some(Reached { input, output: None })),
            (false, _) if !hooks.stores() => unable(
                "nobody runs a consume hook when peers write the output: use one-shot with another output, staged or \
                 packet",
            ),
            (false, Some(output)) => Ok(Some(Reached { input, output: Some(output) })),
            (false, None) => unable(
                "the output is not this rank's part of a window: give window.tensor(), and say window(&window) for it \
                 too; or use one-shot",
            ),
        }
    }

    fn in_windows(&self, Reached { input, output }: Reached<'_>) -> Result<(Algorithm, Shards), RunError> {
        // The tensors are the windows, which must be equally long on all ranks. If they are not, every rank notices.
        let windows = || std::iter::once(input).chain(output);
        let unreached = |window: &WindowOf| window.peers.iter().position(Option::is_none);
        if let Some(peer) = windows().find_map(unreached) {
            return Err(TransferError::Unreachable { rank: self.link.rank(), peer: Rank::new(peer as u32) }.into());
        }
        let sizes = || windows().flat_map(|window| window.peers.iter().flatten().map(Memory::bytes).enumerate());
        let (shortest, least) = sizes().min_by_key(|&(_, bytes)| bytes).unwrap_or((0, 0));
        let needed = sizes().map(|(_, bytes)| bytes).max().unwrap_or(0);
        if needed > least {
            let rank = Rank::new(shortest as u32);
            return Err(TransferError::WindowTooShort { rank, bytes: least, needed }.into());
        }
        if windows().any(|window| window.peers.len() != self.facts.ranks) {
            let why = "its windows are of another world: allocate them on this transport";
            return Err(TransferError::Unable { protocol: Protocol::Direct { window_bytes: least }, why }.into());
        }
        let ranges = self.ranges();
        let algorithm = if output.is_some() { Algorithm::TwoPhase } else { Algorithm::OneShot };
        let whole = self.kind == Kind::AllReduce && algorithm == Algorithm::OneShot;
        // Use the first shard, which is the longest, so that all ranks decide alike.
        let len = if whole { self.request.out.len() } else { ranges[0].len() };
        let only = Some((Primitive::Direct, "a reduction through windows"));
        let message = Message { len, only, window_bytes: Some(least), ..self.message() };
        let (way, _) = message.settle(self.link, &self.facts)?;
        let len_of = |range: &Range<usize>| if whole { len } else { range.len() };
        let tiling = |range: &Range<usize>| Tiling::flat(len_of(range), way.tile, way.blocks).bands(way.granule);
        // The part of every peer's window that this rank combines.
        let me = self.link.rank().index();
        let first = match self.kind {
            _ if whole => 0,
            Kind::AllReduce => ranges[me].start,
            Kind::ReduceScatter => me * self.request.out.len(),
        };
        let parts = |window: &WindowOf| {
            let size = window.ty.size();
            let part = |memory: &Memory| memory.part(first * size, len_of(&ranges[me]) * size);
            window.peers.iter().flatten().map(part).collect()
        };
        let is_output = |window: &WindowOf| window.own.is(self.request.out.memory());
        let spare_output = output.is_none() && self.request.windows.iter().any(is_output);
        let used = UsedWindows { of: [output.cloned(), Some(input.clone())], along: "", spare_output };
        // Lengths that do not match are a fault of the plan, in which case no roles are traced.
        let fits = self.request.inp.len() == self.request.out.len() * self.chunks();
        let reached = fits.then(|| ReachedWindows { used, input: parts(input), output: output.map(parts) });
        Ok((algorithm, self.shards(&way, tiling, reached)))
    }
}
