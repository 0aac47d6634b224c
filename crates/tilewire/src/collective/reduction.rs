//! `reduce_scatter` and `all_reduce`: what they are asked for, checked.

use super::RunError;
use super::algorithm::{Algorithm, ReduceOp, Reducible};
use super::call::Call;
use super::config::{Config, Decision, Primitive};
use super::hooks::{Hooks, OverlapCheck, hook_methods};
use super::launch_exchange::PreparedExchange;
use super::leg::{Tiled, check_groups, check_shards, over_the_input};
use super::link::Streams;
use super::pair::Card;
use super::reduction_kernel::{roles, swaps};
use super::reduction_windows::Reached;
use super::rounds::Rounds;
use super::terms::{Message, Terms, WindowOf, terms_methods};
use crate::hook::{AnyCtx, AnyValue, Ctx, MisuseKind, Regs, Traced, Value, kernel_at};
use crate::ir::scalar::Element;
use crate::ir::{SourceLine, Type};
use crate::link::Transport;
use crate::schedule::Tiling;
use crate::tensor::{AnyTensor, Tensor};
use crate::transport::{Protocol, Rank, TransferError};
use crate::vm::Puts;
use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Combines the inputs of all ranks, chunk by chunk: chunk `p` of all of them becomes the output of rank `p`. The input has one equal
/// chunk for each rank. Collective.
///
/// ```
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::World;
/// use tilewire::{ReduceOp, Tensor, reduce_scatter};
/// World::threads(3).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let me = world.rank().number();
///     let (inp, out) = (Tensor::from_fn(6, |i| (10 * me + i as u32) as f32), Tensor::<f32>::zeros(2));
///     reduce_scatter(&link, &out, &inp).op(ReduceOp::Max).run()?;
///     assert_eq!(out.to_vec(), [20.0 + 2.0 * me as f32, 21.0 + 2.0 * me as f32]);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
///
/// `produce` gives what a rank has for a position of the chunk of rank `c.peer()`, `consume` gets what all have together, which has no
/// `c.recv_peer()`. In place where the output is this rank's chunk of the input, and no hook is given.
#[track_caller]
pub fn reduce_scatter<'h, 'l, In: Element, Out: Element>(
    link: &'l dyn Transport,
    out: &Tensor<Out>,
    inp: &Tensor<In>,
) -> Reduction<'h, 'l, In, Out, In> {
    Reduction::new(link, out, inp, Kind::ReduceScatter, SourceLine::caller())
}

/// Combines the inputs of all ranks, position by position; every rank gets the result. Collective.
///
/// ```
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::World;
/// use tilewire::{Bf16, Tensor, all_reduce};
/// World::threads(4).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let x = Tensor::from_fn(1000, |i| Bf16::from_f32((i % 7) as f32));
///     let sum = Tensor::<Bf16>::zeros(1000);
///     all_reduce(&link, &sum, &x).run()?; // summed in f32, rounded once
///     assert_eq!(sum.get(6).to_f32(), 24.0);
///     all_reduce(&link, &x, &x).run()?; // in place
///     assert_eq!(x.get(6).to_f32(), 24.0);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
///
/// Hooks see the whole tensors, whatever the algorithm does with them: `c.pos()` is the position in the output, `c.shard()` the rank whose
/// shard it is in. What `produce` gives ends in the outputs of all ranks and has no `c.peer()`; what `consume` gets comes from the inputs of all
/// and has no `c.recv_peer()`. Where hooks reduce over groups of neighbours, every shard must begin with a group. Shard `s` is accumulated
/// in the order of ranks `s + 1`, …, `s`, so all algorithms, runs and ranks have the same bits.
#[track_caller]
pub fn all_reduce<'h, 'l, In: Element, Out: Element>(
    link: &'l dyn Transport,
    out: &Tensor<Out>,
    inp: &Tensor<In>,
) -> Reduction<'h, 'l, In, Out, In> {
    Reduction::new(link, out, inp, Kind::AllReduce, SourceLine::caller())
}

/// A [`reduce_scatter`] or [`all_reduce`] being built. `R` is what is reduced.
#[must_use = "nothing happens before run(), build() or trace()"]
pub struct Reduction<'h, 'l, In: Element, Out: Element, R: Regs = In> {
    pub(super) any: AnyReduction<'h, 'l>,
    types: PhantomData<fn(In, R) -> Out>,
}

/// A [`Reduction`] whose types are values: what everything below the builder works with, compiled once.
pub(super) struct AnyReduction<'h, 'l> {
    pub(super) out: AnyTensor,
    pub(super) inp: AnyTensor,
    pub(super) kind: Kind,
    pub(super) op: ReduceOp,
    pub(super) algorithm: Option<Algorithm>,
    rounds: Option<Rounds>,
    /// What peers reach of the input and the output.
    pub(super) windows: Vec<WindowOf>,
    pub(super) terms: Terms<'l>,
    pub(super) hooks: Hooks<'h>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    ReduceScatter,
    AllReduce,
}

/// How a reduction runs, decided.
pub(super) struct Course<'w> {
    pub algorithm: Algorithm,
    pub protocol: Protocol,
    pub blocks: usize,
    pub decision: Decision,
    /// The tiles of each shard; in packets, of the whole message.
    pub tilings: Vec<Tiling>,
    /// Positions of each shard in the hooks' chunk.
    pub shards: Vec<Range<usize>>,
    /// What it goes through, where that is windows.
    pub reached: Option<Reached<'w>>,
}

impl<'h, 'l, In: Element, Out: Element> Reduction<'h, 'l, In, Out, In> {
    fn new(link: &'l dyn Transport, out: &Tensor<Out>, inp: &Tensor<In>, kind: Kind, at: SourceLine) -> Self {
        let any = AnyReduction {
            out: out.into(),
            inp: inp.into(),
            kind,
            op: ReduceOp::Sum,
            algorithm: None,
            rounds: None,
            windows: Vec::new(),
            terms: Terms::new(link),
            hooks: Hooks::copy(<In as Regs>::TYPES, Out::TYPE, at),
        };
        Reduction { any, types: PhantomData }
    }
}

impl<'h, 'l, In: Element, Out: Element, R: Regs> Reduction<'h, 'l, In, Out, R> {
    hook_methods!(Reduction<'h, 'l>);
    terms_methods!();

    /// What is computed; the sum unless said.
    pub fn op(mut self, op: ReduceOp) -> Self {
        self.any.op = op;
        self
    }

    /// Which way it goes; by the size unless said. The results are the same, to the bit.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.any.algorithm = Some(algorithm);
        self
    }

    /// How the rounds share a launch; by what lies between the ranks unless said.
    pub fn rounds(mut self, rounds: Rounds) -> Self {
        self.any.rounds = Some(rounds);
        self
    }
}

impl<'h, 'l, In: Element, Out: Element, R: Reducible> Reduction<'h, 'l, In, Out, R> {
    /// Traces, verifies and compiles, and tells the other ranks what is to come; the result is launched any number of times, by all
    /// ranks in the same order.
    pub fn build(self) -> Result<PreparedExchange<'l>, RunError> {
        self.any.build()
    }

    /// What it would do, for people: the operation, the algorithm, how it travels, and a hash of its hooks, which ranks can compare.
    /// Nothing is built.
    pub fn explain(&self) -> Result<String, RunError> {
        self.any.explain()
    }

    /// Builds and launches once. It builds at every call, which takes far longer than a small launch: in a loop, call
    /// [`build`](Reduction::build) once, and `run` what it gives as often as you like.
    pub fn run(self) -> Result<(), RunError> {
        self.any.build()?.run()
    }

    /// Traces the kernel and stops there: for printing its IR, for the checker, for another engine.
    pub fn trace(self) -> Result<Traced, RunError> {
        self.any.trace_course(&self.any.course()?)
    }
}

impl<'l> AnyReduction<'_, 'l> {
    fn build(self) -> Result<PreparedExchange<'l>, RunError> {
        let course = self.course()?;
        let traced = self.trace_course(&course)?;
        // Of an element that waits all lanes of a warp may have to wait, so that it is the same ones everywhere.
        let lanes = match swaps(&self, &course) {
            true => format!(", {} warps", traced.kernel.roles.values().map(|role| role.warps).sum::<u32>()),
            false => String::new(),
        };
        let call = Call::of(self.kind.name(), self.out.len(), self.hooks.types, &self.hooks.at);
        let how = self.terms.how(self.streams(&course));
        let mut prepared = PreparedExchange::prepare(self.terms.link, traced, true, how, call)?;
        let Course { algorithm, decision, .. } = &course;
        let collective = format!("{} of {}", self.kind.name(), self.op.name());
        let way = format!("{}{lanes}", algorithm.name());
        // All ranks have the same shards, so the first stands for all; a difference in any is one in the length of the whole.
        let whole = Tiling::flat(self.out.len(), course.tilings[0].tile_len(), course.blocks);
        let window = course.reached.as_ref().map(Reached::number);
        let shape = &self.hooks.output_shape;
        let hash = self.terms.same_hooks.then(|| self.hooks.hash()).transpose()?;
        let card = Card::new((&collective, &way), self.hooks.types, &whole, decision, shape, window.as_deref(), 1);
        prepared.tell_all(card.with_hooks(hash))?;
        Ok(prepared)
    }

    fn explain(&self) -> Result<String, RunError> {
        let course = self.course()?;
        let call = Call::of(self.kind.name(), self.out.len(), self.hooks.types, &self.hooks.at);
        let Tiled(way) = Tiled::of(course.protocol, &course.tilings[0]);
        let hash = self.hooks.hash()?;
        Ok(format!("{call}\n  {} of {}: {way}\n  hooks {hash:016x}", course.algorithm.name(), self.op.name()))
    }

    fn trace_course(&self, course: &Course<'_>) -> Result<Traced, RunError> {
        let overlap = OverlapCheck::default();
        let traced = kernel_at(self.kind.name(), self.hooks.at.clone(), |k| {
            for (at, fault) in &self.hooks.faults {
                k.report(at, fault.clone());
            }
            let (is, must) = (self.inp.len(), self.out.len() * self.chunks());
            if self.hooks.copies && is != must {
                let what = if self.chunks() == 1 {
                    "the input, which without a produce hook is as long as the output,"
                } else {
                    "the input, which without a produce hook is as long as the outputs of all ranks together,"
                };
                k.report(&self.hooks.at, MisuseKind::Length { what, is, must });
                // Its own roles would reach beyond it.
                return k.main(|_| {});
            }
            roles(self, k, course);
            if !(self.hooks.copies && self.hooks.stores()) {
                overlap.look(k, self.out.memory());
            }
        })?;
        overlap.result()?;
        let types = if course.algorithm == Algorithm::Ring { self.partial() } else { self.hooks.types };
        let torn = |group, tile| self.terms.torn(group, tile, course.protocol, types, 1);
        check_groups(&traced, course.tilings.iter(), torn)?;
        check_shards(&traced, &course.shards)?;
        Ok(traced)
    }

    /// From how many bytes on an `each` writes around the cache: fewer than usual where more is read than written, which fills the cache as well. Of an
    /// all-reduce all outputs are written, and no difference was measured.
    fn streams(&self, course: &Course<'_>) -> Streams {
        let usual = Streams::default();
        let from = if self.kind == Kind::ReduceScatter { usual.from / 2 } else { usual.from };
        // As of an exchange.
        let puts = if course.reached.is_some() { Puts::ThroughCache } else { usual.puts };
        Streams { from, puts, ..usual }
    }

    /// The type of what is reduced.
    pub(super) fn ty(&self) -> Type {
        self.hooks.types[0]
    }

    /// What partial results travel as.
    pub(super) fn partial(&self) -> &'static [Type] {
        self.op.partial(self.ty()).alone()
    }

    pub(super) fn layout(&self) -> Rounds {
        self.rounds.unwrap_or_else(|| Rounds::usual(self.terms.link))
    }

    /// How many chunks of the output's length the input has.
    pub(super) fn chunks(&self) -> usize {
        if self.kind == Kind::AllReduce { 1 } else { self.terms.link.world_size() }
    }

    // ---- what is to be done ---------------------------------------------------------------------------------------

    fn course(&self) -> Result<Course<'_>, RunError> {
        let (link, ranks, len) = (self.terms.link, self.terms.link.world_size(), self.out.len());
        if self.kind == Kind::ReduceScatter && !self.inp.len().is_multiple_of(ranks) {
            return Err(TransferError::Uneven { what: "the input", len: self.inp.len(), ranks }.into());
        }
        self.check_overlap()?;
        if let Some(reached) = self.reached()? {
            return self.course_in_windows(reached);
        }
        let none = None;
        let peer = (ranks > 1).then(|| link.rank().after(1, ranks));
        let settle_as = |config, at_once, types, len, only| {
            let message = Message { types, len, last_per: 1, shape: &none, at_once, only, consumed: false };
            self.terms.settle_by(config, peer, message, None)
        };
        let settle_among = |at_once, types, len, only| settle_as(self.terms.config, at_once, types, len, only);
        let at_once = if self.layout() == Rounds::Legs { 2 * ranks } else { ranks };
        let settle = |types, len, only| settle_among(at_once, types, len, only);
        // Packets of all peers are sent and taken by one role, so no other blocks run beside its own.
        let in_packets = |len, only| settle_among(1, self.hooks.types, len, only);
        let staged = |why| Some((Primitive::Staged, why));
        let share = len.div_ceil(ranks);
        if self.terms.config.primitive == Some(Primitive::Bulk) {
            let (protocol, why) = (
                Protocol::Bulk { slot_bytes: 0, depth: 0 },
                "a reduction combines what arrives: use staged, packet or direct",
            );
            return Err(TransferError::Unable { protocol, why }.into());
        }
        let algorithm = match (self.kind, self.algorithm) {
            (Kind::ReduceScatter, Some(Algorithm::TwoPhase)) => {
                let (algorithm, collective) = (Algorithm::TwoPhase.name(), self.kind.name());
                return Err(TransferError::NoAlgorithm { algorithm, collective }.into());
            }
            (Kind::ReduceScatter, said) => said.unwrap_or(Algorithm::OneShot),
            (Kind::AllReduce, Some(said)) => said,
            (Kind::AllReduce, None) => {
                let small = in_packets(len, None)?.0.protocol == Protocol::Packet;
                if small { Algorithm::OneShot } else { Algorithm::TwoPhase }
            }
        };
        let partial = self.partial();
        let (decision, _) = match (self.kind, algorithm) {
            (Kind::AllReduce, Algorithm::OneShot) => {
                let why = "one-shot sends everything in packets: use two-phase, or leave the primitive out";
                in_packets(len, Some((Primitive::Packet, why))).map_err(|error| match error {
                    RunError::Transfer(TransferError::TooLarge { bytes, region, .. }) => {
                        TransferError::OneShot { bytes, region }.into()
                    }
                    error => error,
                })?
            }
            (Kind::ReduceScatter, Algorithm::OneShot) => match in_packets(len, None)? {
                small if small.0.protocol == Protocol::Packet => small,
                _ => settle(self.hooks.types, len, None)?,
            },
            (Kind::ReduceScatter, _) => {
                settle(partial, len, staged("a ring passes on what lies in staging: use staged"))?
            }
            (Kind::AllReduce, Algorithm::TwoPhase) => {
                let only = staged("two phases go through staging: use staged");
                let (usual, most) = (settle(self.hooks.types, share, only)?, self.terms.shape().max_blocks / 2);
                match self.terms.config.blocks {
                    // What goes out and what comes back have blocks of their own: of those that the user does not ask for, half as many.
                    None if usual.0.blocks > most && most > 0 => {
                        let config = Config { blocks: Some(most), ..self.terms.config };
                        settle_as(config, at_once, self.hooks.types, share, only)?
                    }
                    _ => usual,
                }
            }
            (Kind::AllReduce, Algorithm::Ring) => {
                settle(partial, share, staged("a ring passes on what lies in staging: use staged"))?
            }
        };
        let Decision { protocol, blocks, tile, granule } = decision;
        let max = self.terms.shape().max_blocks;
        if algorithm == Algorithm::TwoPhase && 2 * blocks > max && ranks > 1 {
            // What goes out and what comes back have blocks of their own.
            return Err(TransferError::Blocks { blocks: 2 * blocks, max }.into());
        }
        let shards = self.shards();
        let tiling = |len: usize| {
            let tiling = Tiling::flat(len, tile, blocks);
            if matches!(protocol, Protocol::Staged { .. }) && ranks > 1 { tiling } else { tiling.bands(granule) }
        };
        let tilings = match (self.kind, protocol) {
            (Kind::AllReduce, Protocol::Packet) => vec![tiling(len); ranks],
            _ => shards.iter().map(|shard| tiling(shard.len())).collect(),
        };
        Ok(Course { algorithm, protocol, blocks, decision, tilings, shards, reached: None })
    }

    /// Positions of each shard; the first is the longest.
    pub(super) fn shards(&self) -> Vec<Range<usize>> {
        let (ranks, len) = (self.terms.link.world_size(), self.out.len());
        let share = len.div_ceil(ranks);
        match self.kind {
            Kind::ReduceScatter => vec![0..len; ranks],
            Kind::AllReduce => (0..ranks).map(|s| (s * share).min(len)..((s + 1) * share).min(len)).collect(),
        }
    }

    /// The output may be where the result is of: the input, or this rank's chunk of it, position for position.
    fn check_overlap(&self) -> Result<(), TransferError> {
        let (inp, out) = (self.inp.memory(), self.out.memory());
        if !inp.overlaps(out) {
            return Ok(());
        }
        let (me, chunk) = (self.terms.link.rank().index(), inp.bytes() / self.chunks());
        let own = if self.kind == Kind::AllReduce { inp.clone() } else { inp.part(me * chunk, chunk) };
        if own.is(out) && self.hooks.copies && self.hooks.stores() && self.inp.ty() == self.out.ty() {
            return Ok(());
        }
        Err(over_the_input(inp))
    }
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::ReduceScatter => "reduce_scatter",
            Kind::AllReduce => "all_reduce",
        }
    }
}

impl Course<'_> {
    /// The ranks that shard `s` is accumulated in the order of.
    pub(super) fn order(&self, s: usize) -> impl ExactSizeIterator<Item = Rank> + use<> {
        let ranks = self.shards.len();
        (0..ranks).map(move |i| Rank::new(s as u32).after(i + 1, ranks))
    }
}
