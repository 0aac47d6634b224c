//! `send`, `recv` and `sendrecv`, and the builder that they and the collectives of `exchanges.rs` give.

use super::algorithm::Algorithm;
use super::config::{Config, Primitive};
use super::hooks::{Hooks, OverlapCheck, hook_methods, tuple_methods};
use super::launch_exchange::PreparedExchange;
use super::leg::{Leg, Legs, Tiled, check_groups};
use super::link::Streams;
use super::pair::Card;
use super::pattern::Pattern;
use super::rounds::Rounds;
use super::terms::{Terms, WindowOf, terms_methods};
use super::{RunError, legs};
use crate::hook::{AnyCtx, AnyValue, Ctx, MisuseKind, Payload, Regs, Traced, Value, kernel_at};
use crate::ir::SourceLine;
use crate::ir::scalar::Element;
use crate::link::{Transport, Window};
use crate::tensor::{AnyTensor, Tensor};
use crate::transport::layout::Side;
use crate::transport::{LinkKind, Pairing, Protocol, Rank};
use crate::vm::{KEPT_IN_CACHE, Puts, Settings, is_intel};
use std::marker::PhantomData;
use std::rc::Rc;
use std::time::Duration;

/// Sends a tensor to a rank, which receives it by [`recv`].
///
/// ```
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::{Rank, World};
/// use tilewire::{Tensor, recv, send};
///
/// let (first, second) = (Rank::new(0), Rank::new(1));
/// World::threads(2).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     if world.rank() == first {
///         let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0]);
///         send(&link, &x, second).produce(|c| c.input.load(c.pos()) * 10.0).run()?;
///     } else {
///         let y = Tensor::<f32>::zeros(3);
///         recv(&link, &y, first).consume(|c, x| c.output.store(c.pos(), x + 1.0)).run()?;
///         assert_eq!(y.to_vec(), [11.0, 21.0, 31.0]);
///     }
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
///
/// There is no output on this side: a hook that writes `c.output` is a misuse.
#[track_caller]
pub fn send<'h, 'l, In: Element>(link: &'l dyn Transport, inp: &Tensor<In>, to: Rank) -> Exchange<'h, 'l, In, In, In> {
    Exchange::new(link, inp, inp, Pattern::Pair { to: Some(to), from: None }, SourceLine::caller())
}

/// Receives into a tensor what a rank sends by [`send`]: as many elements as the tensor has, of its type unless
/// [`Exchange::carries`] says otherwise.
#[track_caller]
pub fn recv<'h, 'l, Out: Element>(
    link: &'l dyn Transport,
    out: &Tensor<Out>,
    from: Rank,
) -> Exchange<'h, 'l, Out, Out, Out> {
    Exchange::new(link, out, out, Pattern::Pair { to: None, from: Some(from) }, SourceLine::caller())
}

/// Sends a tensor to one rank and receives from one, the same or another, at the same time.
///
/// ```
/// use tilewire::link::{ShmOptions, ShmTransport};
/// use tilewire::transport::World;
/// use tilewire::{Tensor, sendrecv};
///
/// // A ring: everybody gets the tensor of the rank before, transposed on its way.
/// let sums = World::threads(3).run(|world| {
///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
///     let inp = Tensor::from_fn(6, |i| i as f32 + 10.0 * world.rank().number() as f32);
///     let out = Tensor::<f32>::zeros(6);
///     let (next, previous) = (world.rank().after(1, 3), world.rank().after(2, 3));
///     let mut shift = sendrecv(&link, &out, &inp, next, previous)
///         .chunk_shape(2, 3)
///         .output_shape(3, 2)
///         .produce(|c| c.input.at(c.col(), c.row()))
///         .build()?;
///     shift.run()?; // any number of times
///     drop(shift);
///     link.close()?;
///     Ok(out.to_vec())
/// })?;
/// assert_eq!(sums[0], [20.0, 23.0, 21.0, 24.0, 22.0, 25.0]);
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
#[track_caller]
pub fn sendrecv<'h, 'l, In: Element, Out: Element>(
    link: &'l dyn Transport,
    out: &Tensor<Out>,
    inp: &Tensor<In>,
    to: Rank,
    from: Rank,
) -> Exchange<'h, 'l, In, Out, In> {
    Exchange::new(link, out, inp, Pattern::Pair { to: Some(to), from: Some(from) }, SourceLine::caller())
}

/// An exchange being built: a [`send`], [`recv`] or [`sendrecv`], or a collective like [`all_to_all`](super::all_to_all). `R` is what
/// travels for one element.
///
/// All who take part must say the same about what travels: how many elements, of which types, in which shape, and how ([`Config`]).
/// They are compared before the first launch; a difference is an error on all of them that names it.
#[must_use = "nothing happens before run(), build() or trace()"]
pub struct Exchange<'h, 'l, In: Element, Out: Element, R: Regs = In> {
    any: AnyExchange<'h, 'l>,
    types: PhantomData<fn(In, R) -> Out>,
}

/// An [`Exchange`] whose types are values: what everything below the builder works with, compiled once.
pub(super) struct AnyExchange<'h, 'l> {
    pub(super) out: AnyTensor,
    pub(super) inp: AnyTensor,
    pub(super) pattern: Pattern,
    /// Positions sent, where the user says so.
    send_len: Option<usize>,
    pub(super) algorithm: Option<Algorithm>,
    rounds: Option<Rounds>,
    /// Whether the own chunk is kept while another is sent wherever the kernel can, whatever its size and the processor: for rehearsals.
    keeps: bool,
    pub(super) terms: Terms<'l>,
    pub(super) hooks: Hooks<'h>,
}

/// A leg that keeps the rank's own chunk while it sends another: two copies in turns (`vm/copy/two.rs` has what that takes).
pub(super) struct Keeper<'a> {
    pub leg: &'a Leg,
    /// Whether it keeps what it sends, and so reads it once.
    same: bool,
}

/// Chunks of so many bytes are kept while they are sent. A rank reads smaller ones from its nearest cache a second time, and need not wait for its peer before it keeps them.
const KEPT_FROM: usize = 8 << 10;

/// Smaller outputs stay in the cache on any processor: a copy of what another core has just written, and one read of it, was as fast both ways there (Intel).
const LARGE_OUTPUT: usize = 8 << 20;

impl<'h, 'l, In: Element, Out: Element> Exchange<'h, 'l, In, Out, In> {
    pub(super) fn new(
        link: &'l dyn Transport,
        out: &Tensor<Out>,
        inp: &Tensor<In>,
        pattern: Pattern,
        at: SourceLine,
    ) -> Self {
        let hooks = Hooks::copy(<In as Regs>::TYPES, Out::TYPE, at);
        let any = AnyExchange {
            out: out.into(),
            inp: inp.into(),
            pattern,
            send_len: None,
            algorithm: None,
            rounds: None,
            keeps: false,
            terms: Terms::new(link),
            hooks,
        };
        Exchange { any, types: PhantomData }
    }
}

impl<'h, 'l, In: Element, Out: Element, R: Regs> Exchange<'h, 'l, In, Out, R> {
    hook_methods!(Exchange<'h, 'l>);
    tuple_methods!(Exchange<'h, 'l>);
    terms_methods!();

    /// For a [`recv`]: what arrives for one element, where it is not of the output's type. Give it before `consume`.
    ///
    /// ```
    /// # use tilewire::link::{ShmOptions, ShmTransport};
    /// # use tilewire::transport::{Rank, World};
    /// # use tilewire::{F8E4M3, Tensor, recv, send};
    /// # let (first, second) = (Rank::new(0), Rank::new(1));
    /// # World::threads(2).run(|world| {
    /// # let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
    /// # let (x, y) = (Tensor::from_fn(64, |i| i as f32), Tensor::<f32>::zeros(64));
    /// # if world.rank() == first {
    /// send(&link, &x, second)
    ///     .produce2(|c| {
    ///         let x = c.input.load(c.pos());
    ///         let scale = (x.abs().group_max(32) / 448.0).max(f32::MIN_POSITIVE);
    ///         ((x / scale).cast::<F8E4M3>(), scale)
    ///     })
    ///     .run()?;
    /// # } else {
    /// recv(&link, &y, first)
    ///     .carries::<(F8E4M3, f32)>()
    ///     .consume(|c, (x, scale)| c.output.store(c.pos(), x.cast::<f32>() * scale))
    ///     .run()?;
    /// # assert!((y.get(31) - 31.0).abs() < 1e-3);
    /// # }
    /// # Ok(link.close()?) }).unwrap();
    /// ```
    #[track_caller]
    pub fn carries<Q: Regs>(self) -> Exchange<'h, 'l, In, Out, Q> {
        self.with::<Q>(Rc::new(|_: &AnyCtx<'_>| unreachable!("a receive produces nothing")))
    }

    /// How many positions are sent, where it is not the length of the input: for hooks that gather.
    pub fn send_len(mut self, len: usize) -> Self {
        self.any.send_len = Some(len);
        self
    }

    /// Which way chunks take; straight to whom they concern unless said. [`all_gather`](super::all_gather) can also go round a ring.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.any.algorithm = Some(algorithm);
        self
    }

    /// How the rounds of a collective share a launch; by what lies between the ranks unless said.
    pub fn rounds(mut self, rounds: Rounds) -> Self {
        self.any.rounds = Some(rounds);
        self
    }

    /// Sends straight into the receiver's window, in one hop. The output of the receiver must be its part of the window. There is no
    /// consume hook then, and what is sent is one value of the window's type.
    ///
    /// ```
    /// use tilewire::link::{ShmOptions, ShmTransport, Window};
    /// use tilewire::transport::World;
    /// use tilewire::{Tensor, sendrecv};
    /// World::threads(2).run(|world| {
    ///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
    ///     let (window, inp) = (Window::<f32>::allocate(&link, 4)?, Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0]));
    ///     let peer = world.rank().after(1, 2);
    ///     sendrecv(&link, window.tensor(), &inp, peer, peer).window(&window).run()?;
    ///     assert_eq!(window.tensor().to_vec(), [1.0, 2.0, 3.0, 4.0]);
    ///     Ok(link.close()?)
    /// })?;
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    pub fn window<W: Element>(mut self, window: &Window<W>) -> Self {
        self.any.terms.window = Some(WindowOf::of(window));
        self
    }

    /// As `window`, with memory of one thread: for kernels that are traced and never launched.
    pub(crate) fn rehearsed_window<W: Element>(mut self, of_all: &[Tensor<W>]) -> Self {
        self.any.terms.window = Some(WindowOf::rehearsed(of_all, self.any.terms.link.rank()));
        self
    }

    /// Keeps the own chunk while another is sent, as large chunks are kept on some processors: so that the checker sees that form on all.
    pub(crate) fn rehearsed_keeper(mut self) -> Self {
        self.any.keeps = true;
        self
    }

    /// Traces, verifies and compiles, and tells the peers what is to come; the result is launched any number of times.
    ///
    /// Nothing waits here: the sides are compared by the first launch, so that ranks may build transfers with different peers in any order.
    /// The n-th transfer built towards a peer meets the n-th that the peer builds from here, and those of one pair are launched in the
    /// same order on both sides; a collective is built and launched by all ranks, in the same order. What is built is to be launched: a
    /// peer that was told of it may be waiting, so dropping it before the first launch breaks the transport.
    pub fn build(self) -> Result<PreparedExchange<'l>, RunError> {
        self.any.build()
    }

    /// What it would do, for people: the operation, how it travels to and from each peer, and a hash of its hooks, which ranks can
    /// compare. Nothing is built.
    ///
    /// ```
    /// use tilewire::link::{ShmOptions, ShmTransport};
    /// use tilewire::transport::World;
    /// use tilewire::{Tensor, all_gather};
    /// World::threads(2).run(|world| {
    ///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
    ///     let (inp, out) = (Tensor::<f32>::zeros(4), Tensor::<f32>::zeros(8));
    ///     let text = all_gather(&link, &out, &inp).produce(|c| c.input.load(c.pos()) * 2.0).explain()?;
    ///     assert!(text.contains("all_gather of 4 f32") && text.contains("packet") && text.contains("hooks"));
    ///     Ok(link.close()?)
    /// })?;
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    pub fn explain(&self) -> Result<String, RunError> {
        self.any.explain()
    }

    /// Builds and launches once. It builds at every call, which takes far longer than a small launch: in a loop, call
    /// [`build`](Exchange::build) once, and `run` what it gives as often as you like.
    pub fn run(self) -> Result<(), RunError> {
        self.any.build()?.run()
    }

    /// Traces the kernel and stops there: for printing its IR, for the checker, for another engine.
    pub fn trace(self) -> Result<Traced, RunError> {
        self.any.trace_legs(&self.any.legs()?)
    }
}

impl<'l> AnyExchange<'_, 'l> {
    fn build(self) -> Result<PreparedExchange<'l>, RunError> {
        let legs = self.legs()?;
        let traced = self.trace_legs(&legs)?;
        let how = self.terms.how(self.streams(&legs));
        let call =
            self.pattern.call(legs.all().next().map_or(0, |leg| leg.tiling.len()), self.hooks.types, &self.hooks.at);
        let mut prepared = PreparedExchange::prepare(self.terms.link, traced, self.pattern.is_collective(), how, call)?;
        let window = self.terms.window.as_ref().map(|window| window.number.as_str());
        let (collective, way) = (self.pattern.agreement(), self.algorithm.unwrap_or(Algorithm::OneShot).name());
        let hash = self.terms.same_hooks.then(|| self.hooks.hash()).transpose()?;
        let card = |leg: &Leg| {
            let card = Card::new(
                (&collective, way),
                self.hooks.types,
                &leg.tiling,
                &leg.decision,
                &self.hooks.output_shape,
                window,
                self.hooks.last_per,
            );
            card.with_hooks(hash)
        };
        match self.pattern {
            Pattern::Pair { .. } => {
                for leg in legs.all() {
                    let pairing = if leg.side == Side::Send { Pairing::Send } else { Pairing::Receive };
                    prepared.tell(pairing, leg.peer, card(leg))?;
                }
            }
            // All chunks are alike, so one card is every rank's, and whoever differs is seen by all: not one of them launches.
            _ => {
                if let Some(leg) = legs.all().next() {
                    prepared.tell_all(card(leg))?;
                }
            }
        }
        Ok(prepared)
    }

    fn explain(&self) -> Result<String, RunError> {
        let legs = self.legs()?;
        let len = legs.all().next().map_or(0, |leg| leg.tiling.len());
        let mut text = format!("{}\n", self.pattern.call(len, self.hooks.types, &self.hooks.at));
        for leg in legs.all() {
            let Tiled(way) = Tiled::of(leg.protocol, &leg.tiling);
            text.push_str(&format!("  {} rank {}: {way}\n", leg.side, leg.peer));
        }
        text.push_str(&format!("  hooks {:016x}", self.hooks.hash()?));
        Ok(text)
    }

    /// From how many bytes on an `each` writes around the cache: fewer, where a launch has several of them, one for each chunk that it writes. What comes
    /// through the staging comes in pieces, so there it is the output as a whole that counts. (How the staging itself is written, its receiver's place decides.)
    fn streams(&self, legs: &Legs) -> Streams {
        let usual = Settings::default().stream_from;
        let staged = legs.all().any(|leg| matches!(leg.protocol, Protocol::Staged { .. }));
        let large = self.out.memory().bytes() >= usual.max(LARGE_OUTPUT);
        let sent = legs.rounds.iter().filter(|[send, _]| send.is_some()).count();
        let keeper = self.keeper(legs);
        let written = sent + usize::from(legs.own.is_some() && keeper.is_none());
        // Windows stay with their readers: nothing goes back and forth, and nothing could tell where they are.
        let puts = if staged { Puts::Measured } else { Puts::ThroughCache };
        // What is kept stays in the cache for longer than what is sent (`vm/copy/two.rs` has both, of 8 and of 10 MiB): sizes are of the two together.
        let (from, kept_from) = match keeper {
            Some(Keeper { same: true, .. }) => (usual, Some(KEPT_IN_CACHE * usual)),
            Some(Keeper { same: false, .. }) => (usual / 3 * 2, Some(usual / 3 * 5)),
            None => (usual, None),
        };
        Streams { from: from / written.max(1), own_from: (staged && large).then_some(1), kept_from, puts }
    }

    /// Which leg keeps the rank's own chunk, if that has no leg of its own. On a CPU, where one thread takes leg after leg; and only of copies, since hooks may give every peer something else.
    pub(super) fn keeper<'a>(&self, legs: &'a Legs) -> Option<Keeper<'a>> {
        let (own, leg) = (legs.own.as_ref()?, legs.rounds.first()?[0].as_ref()?);
        let (kept, sent) = (own.inp.as_ref()?.memory(), leg.inp.as_ref()?.memory());
        let copies = self.hooks.copies && self.hooks.stores() && self.hooks.output_shape.is_none();
        let is_direct = matches!(leg.protocol, Protocol::Direct { .. }) && self.terms.link.seat().is_none();
        let same = kept.is(sent);
        let from = if same { KEPT_FROM } else { Settings::default().stream_from / 3 };
        let alike = own.tiling.len() == leg.tiling.len();
        // Blocks and rounds of their own may have threads of their own, and what is not memory takes its time to say that it is ready.
        let alone = leg.tiling.blocks() == 1 && self.layout() == Rounds::Roles;
        let is_memory = self.terms.link.link(leg.peer).kind == LinkKind::Shm;
        // Intel's processors stream by other loops, and were not measured.
        let pays = self.keeps || sent.bytes() >= from && !is_intel();
        (copies && is_direct && is_memory && alike && alone && pays).then_some(Keeper { leg, same })
    }

    // ---- what is to be done ---------------------------------------------------------------------------------------

    /// Positions of the chunk that is sent.
    pub(super) fn sent(&self) -> usize {
        let shape = self.hooks.output_shape.as_ref().map(|shape| shape.rows * shape.cols);
        shape.or(self.send_len).unwrap_or(self.inp.len())
    }

    /// How rounds share the launch: as the user says, or by what lies between the ranks.
    pub(super) fn layout(&self) -> Rounds {
        self.rounds.unwrap_or_else(|| Rounds::usual(self.terms.link))
    }

    fn trace_legs(&self, legs: &Legs) -> Result<Traced, RunError> {
        let overlap = OverlapCheck::default();
        let traced = kernel_at(self.pattern.name(), self.hooks.at.clone(), |k| {
            for (at, fault) in &self.hooks.faults {
                k.report(at, fault.clone());
            }
            let sends = legs.all().filter(|leg| leg.side == Side::Send);
            let what = if self.pattern.is_collective() {
                "the input's chunk for one rank (without a produce hook input and output are equally long: one of the two is wrong)"
            } else {
                "the input of a send without produce hook"
            };
            for leg in sends.filter(|_| self.hooks.copies) {
                let (is, must) = (leg.inp.as_ref().map_or(0, AnyTensor::len), leg.tiling.len());
                if is != must {
                    k.report(&self.hooks.at, MisuseKind::Length { what, is, must });
                }
            }
            let must = legs.all().next().filter(|_| self.pattern.is_collective());
            let must = must.map_or_else(|| self.sent(), |leg| leg.tiling.len());
            if let Some(is) = self.send_len.filter(|&len| len != must) {
                let what = "send_len beside a shape or an output";
                k.report(&self.hooks.at, MisuseKind::Length { what, is, must });
            }
            legs::roles(self, k, legs);
            if !(self.hooks.copies && self.hooks.stores()) && legs.all().any(|leg| leg.out.is_some()) {
                overlap.look(k, self.out.memory());
            }
        })?;
        overlap.result()?;
        for leg in legs.all() {
            let torn = |group, tile| self.terms.torn(group, tile, leg.protocol, self.hooks.types, self.hooks.last_per);
            check_groups(&traced, [&leg.tiling].into_iter(), torn)?;
        }
        Ok(traced)
    }
}
