//! `send`, `recv` and `sendrecv`: one transfer, or two at once, between this rank and its peers.

use super::config::{Config, Decision, Primitive};
use super::hooks::{Hooks, ProduceHook, hook_methods};
use super::launch_exchange::PreparedExchange;
use super::link::{How, Launch, Link};
use super::pair::Card;
use super::{RunError, legs};
use crate::hook::{Ctx, MisuseKind, Regs, Traced, Value, kernel};
use crate::ir::scalar::Element;
use crate::ir::{Op, SourceLine, Type};
use crate::schedule::{PacketPlan, Packing, Tiling};
use crate::tensor::{Memory, Tensor};
use crate::transport::layout::Side;
use crate::transport::{Protocol, Rank, Transfer, TransferError, Window, check_transfer};
use std::rc::Rc;
use std::time::Duration;

/// Sends a tensor to a rank, which receives it by [`recv`].
///
/// ```
/// use tilewire::transport::{Rank, ShmOptions, ShmTransport, World};
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
pub fn send<'h, 'l, L: Link, In: Element>(link: &'l L, inp: &Tensor<In>, to: Rank) -> Exchange<'h, 'l, L, In, In, In> {
    Exchange::new(link, inp, inp, Some(to), None, SourceLine::caller())
}

/// Receives into a tensor what a rank sends by [`send`]: as many elements as the tensor has, of its type unless
/// [`Exchange::carries`] says otherwise.
#[track_caller]
pub fn recv<'h, 'l, L: Link, Out: Element>(
    link: &'l L,
    out: &Tensor<Out>,
    from: Rank,
) -> Exchange<'h, 'l, L, Out, Out, Out> {
    Exchange::new(link, out, out, None, Some(from), SourceLine::caller())
}

/// Sends a tensor to one rank and receives from one, the same or another, at the same time.
///
/// ```
/// use tilewire::transport::{ShmOptions, ShmTransport, World};
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
pub fn sendrecv<'h, 'l, L: Link, In: Element, Out: Element>(
    link: &'l L,
    out: &Tensor<Out>,
    inp: &Tensor<In>,
    to: Rank,
    from: Rank,
) -> Exchange<'h, 'l, L, In, Out, In> {
    Exchange::new(link, out, inp, Some(to), Some(from), SourceLine::caller())
}

/// A [`send`], [`recv`] or [`sendrecv`] being built. `R` is what travels for one element.
///
/// Both sides must say the same about what travels: how many elements, of which types, in which shape, and how ([`Config`]). They are
/// compared before the first launch; a difference is an error on both sides that names it.
#[must_use = "nothing happens before run(), build() or trace()"]
pub struct Exchange<'h, 'l, L: Link, In: Element, Out: Element, R: Regs = In> {
    pub(super) link: &'l L,
    pub(super) out: Tensor<Out>,
    pub(super) inp: Tensor<In>,
    pub(super) to: Option<Rank>,
    pub(super) from: Option<Rank>,
    /// Positions sent, where the user says so.
    send_len: Option<usize>,
    config: Config,
    pub(super) window: Option<WindowOf>,
    deadline: Option<Duration>,
    watched: bool,
    pub(super) hooks: Hooks<'h, In, Out, R>,
}

/// The windows of all ranks, for `direct`.
pub(super) struct WindowOf {
    pub peers: Vec<Memory>,
    own: Memory,
    ty: Type,
    number: String,
}

/// Outputs of so many bytes leave no room in a cache for anything else.
const STREAM_FROM: usize = 8 << 20;

/// One leg of an exchange, decided: what is sent to, or received from, a peer.
pub(super) struct Leg {
    pub peer: Rank,
    pub side: Side,
    pub tiling: Tiling,
    pub protocol: Protocol,
    decision: Decision,
}

impl<'h, 'l, L: Link, In: Element, Out: Element> Exchange<'h, 'l, L, In, Out, In> {
    fn new(
        link: &'l L,
        out: &Tensor<Out>,
        inp: &Tensor<In>,
        to: Option<Rank>,
        from: Option<Rank>,
        at: SourceLine,
    ) -> Self {
        Exchange {
            link,
            out: out.clone(),
            inp: inp.clone(),
            to,
            from,
            send_len: None,
            config: Config::default(),
            window: None,
            deadline: link.deadline(),
            watched: true,
            hooks: Hooks::copy(at),
        }
    }
}

impl<'h, 'l, L: Link, In: Element, Out: Element, R: Regs> Exchange<'h, 'l, L, In, Out, R> {
    hook_methods!(Exchange<'h, 'l; L>);

    #[track_caller]
    fn with<Q: Regs>(self, produce: Rc<ProduceHook<'h, In, Out, Q>>) -> Exchange<'h, 'l, L, In, Out, Q> {
        let Exchange { link, out, inp, to, from, send_len, config, window, deadline, watched, hooks } = self;
        let hooks = hooks.with_produce(produce);
        Exchange { link, out, inp, to, from, send_len, config, window, deadline, watched, hooks }
    }

    /// For a [`recv`]: what arrives for one element, where it is not of the output's type. Give it before `consume`.
    ///
    /// ```
    /// # use tilewire::transport::{Rank, ShmOptions, ShmTransport, World};
    /// # use tilewire::{F8E4M3, Tensor, recv, send};
    /// # let (first, second) = (Rank::new(0), Rank::new(1));
    /// # World::threads(2).run(|world| {
    /// # let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
    /// # let (x, y) = (Tensor::from_fn(64, |i| i as f32), Tensor::<f32>::zeros(64));
    /// # if world.rank() == first {
    /// send(&link, &x, second)
    ///     .produce2(|c| {
    ///         let x = c.input.load(c.pos());
    ///         let scale = x.abs().group_max(32) / 448.0;
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
    pub fn carries<Q: Regs>(self) -> Exchange<'h, 'l, L, In, Out, Q> {
        self.with::<Q>(Rc::new(|_| unreachable!("a receive produces nothing")))
    }

    /// How many positions are sent, where it is not the length of the input: for hooks that gather.
    pub fn send_len(mut self, len: usize) -> Self {
        self.send_len = Some(len);
        self
    }

    /// How it runs; what is not said is chosen by the size.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// How bytes travel; chosen by the size unless said.
    pub fn primitive(mut self, primitive: Primitive) -> Self {
        self.config.primitive = Some(primitive);
        self
    }

    /// Blocks that share the work; 1 unless said. With several, idle worker threads of the process help.
    pub fn blocks(mut self, blocks: usize) -> Self {
        self.config.blocks = Some(blocks);
        self
    }

    /// Keeps groups of so many neighbours in one tile, for hooks that reduce over groups.
    pub fn granule(mut self, elements: usize) -> Self {
        self.config.granule = Some(elements);
        self
    }

    /// How long a wait may last without progress; the world's deadline unless said, `None`: without end.
    pub fn deadline(mut self, deadline: impl Into<Option<Duration>>) -> Self {
        self.deadline = deadline.into();
        self
    }

    /// For measuring what watching costs: launches that neither see a peer's failure nor sleep. Only their deadline ends a wait then.
    pub fn unwatched(mut self) -> Self {
        self.watched = false;
        self
    }

    /// Sends straight into the receiver's window, in one hop. The output of the receiver must be its part of the window. There is no
    /// consume hook then, and what is sent is one value of the window's type.
    ///
    /// ```
    /// use tilewire::transport::{ShmOptions, ShmTransport, Window, World};
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
        let (peers, own) = (window.peers().to_vec(), window.tensor().memory().clone());
        self.window = Some(WindowOf { peers, own, ty: W::TYPE, number: window.number().to_string() });
        self
    }

    /// Traces, verifies and compiles, and tells the peers what is to come; the result is launched any number of times.
    ///
    /// Nothing waits here: the sides are compared by the first launch, so that ranks may build transfers with different peers in any order.
    /// The n-th transfer built towards a peer meets the n-th that the peer builds from here, and those of one pair are launched in the
    /// same order on both sides. What is built is to be launched: a peer that was told of it may be waiting, so dropping it before the
    /// first launch breaks the transport.
    pub fn build(self) -> Result<PreparedExchange<'l, L>, RunError> {
        let legs = self.legs()?;
        let traced = self.trace_legs(&legs)?;
        let how = How { deadline: self.deadline, streams: self.streams(&legs), watched: self.watched };
        let launch = Launch::with(&[self.link], &traced, how)?;
        let mut prepared = PreparedExchange::new(self.link, launch, self.deadline, self.to, self.from);
        for leg in &legs {
            let window = self.window.as_ref().map(|window| window.number.as_str());
            let card =
                Card::new(R::TYPES, &leg.tiling, &leg.decision, &self.hooks.output_shape, window, self.hooks.last_per);
            prepared.tell(leg.side, leg.peer, card)?;
        }
        Ok(prepared)
    }

    /// Whether the output is so large that it is better written around the cache. The staging is not: the receiver reads it at once.
    fn streams(&self, legs: &[Leg]) -> bool {
        let staged = |leg: &Leg| leg.side == Side::Receive && matches!(leg.protocol, Protocol::Staged { .. });
        matches!(legs, [leg] if staged(leg)) && self.out.memory().bytes() >= STREAM_FROM
    }

    /// Builds and launches once.
    pub fn run(self) -> Result<(), RunError> {
        self.build()?.run()
    }

    /// Traces the kernel and stops there: for printing its IR, for the checker, for another engine.
    pub fn trace(self) -> Result<Traced, RunError> {
        self.trace_legs(&self.legs()?)
    }

    // ---- what is to be done ---------------------------------------------------------------------------------------

    /// The legs, checked against the transport.
    fn legs(&self) -> Result<Vec<Leg>, RunError> {
        if self.to.is_some() && self.from.is_some() && self.inp.memory().overlaps(self.out.memory()) {
            return Err(TransferError::Overlap { bytes: self.inp.memory().bytes() }.into());
        }
        let sends = self.to.map(|peer| (peer, Side::Send));
        let receives = self.from.map(|peer| (peer, Side::Receive));
        sends.into_iter().chain(receives).map(|(peer, side)| self.leg(peer, side)).collect()
    }

    /// Positions of the chunk that is sent.
    pub(super) fn sent(&self) -> usize {
        let shape = self.hooks.output_shape.as_ref().map(|shape| shape.rows * shape.cols);
        shape.or(self.send_len).unwrap_or(self.inp.len())
    }

    fn leg(&self, peer: Rank, side: Side) -> Result<Leg, RunError> {
        let (link, types) = (self.link, R::TYPES);
        let len = if side == Side::Send { self.sent() } else { self.out.len() };
        let reached = |window: &WindowOf| match side {
            Side::Send => window.peers.get(peer.index()).map_or(0, Memory::bytes),
            Side::Receive => window.own.bytes(),
        };
        let window = self.window.as_ref().map(reached);
        let mut decision = self.config.decide(link, types, (len, self.hooks.last_per), window);
        if self.config.primitive.is_none()
            && decision.protocol == Protocol::Packet
            && self.check_packets(&self.tiling(&decision, len)).is_err()
        {
            // Whole rows, or groups, may give a block more than its equal share.
            decision = Config { primitive: Some(Primitive::Staged), ..self.config }.decide(
                link,
                types,
                (len, self.hooks.last_per),
                window,
            );
        }
        let Decision { protocol, blocks, .. } = decision;
        // Several parts are bytes to the transport.
        let (dtype, bytes) = match types {
            [ty] => (*ty, len * ty.size()),
            _ => (Type::U8, len * types.iter().map(|ty| ty.size()).sum::<usize>()),
        };
        if self.window.is_none() && matches!(protocol, Protocol::Direct { .. }) {
            let why = "it writes a window: allocate one and say window(&window), or use staged";
            return Err(TransferError::Unable { protocol, why }.into());
        }
        check_transfer(link, &Transfer { peer, bytes, dtype, blocks, protocol }, &[])?;
        let tiling = self.tiling(&decision, len);
        self.check_protocol(&decision, side, &tiling)?;
        Ok(Leg { peer, side, tiling, protocol, decision })
    }

    /// How a leg is cut: in tiles that fit a slot, or in one part for each block.
    fn tiling(&self, decision: &Decision, len: usize) -> Tiling {
        let Decision { protocol, blocks, tile, granule } = *decision;
        let tiling = match &self.hooks.output_shape {
            Some(shape) => Tiling::shaped(shape.rows, shape.cols, tile, blocks),
            None => Tiling::flat(len, tile, blocks),
        };
        if matches!(protocol, Protocol::Staged { .. }) { tiling } else { tiling.bands(granule) }
    }

    /// Whether the part of every block fits its packets.
    fn check_packets(&self, tiling: &Tiling) -> Result<(), TransferError> {
        let (protocol, blocks) = (Protocol::Packet, tiling.blocks());
        let room = PacketPlan::new(self.link, blocks).message_packets();
        let needed = PacketPlan::packets(R::TYPES, tiling.tile_len().min(tiling.len()));
        if needed <= room {
            return Ok(());
        }
        Err(TransferError::TooLarge { protocol, bytes: needed * 8 * blocks, region: room * 8 * blocks })
    }

    /// What a protocol cannot do.
    fn check_protocol(&self, decision: &Decision, side: Side, tiling: &Tiling) -> Result<(), TransferError> {
        let protocol = decision.protocol;
        let unable = |why| Err(TransferError::Unable { protocol, why });
        match protocol {
            Protocol::Direct { .. } => {
                let window = self.window.as_ref().expect("checked before the transfer");
                if R::TYPES != [window.ty] {
                    return unable("it stores one value of the window's type: use staged or packet for others");
                }
                if !self.hooks.stores() {
                    return unable(
                        "nobody runs a consume hook when the sender writes the output: use staged or packet",
                    );
                }
                if side == Side::Receive && !window.own.is(self.out.memory()) {
                    return unable("the output is not this rank's part of the window: give window.tensor() as output");
                }
                Ok(())
            }
            Protocol::Packet => self.check_packets(tiling),
            Protocol::Staged { slot_bytes, .. } => {
                if R::TYPES.len() > 1 && !slot_bytes.is_multiple_of(Packing::ALIGN) {
                    return unable("the parts of a slot begin on 64 bytes: use slots of a multiple of 64");
                }
                if Packing::fitting_shared(R::TYPES, self.hooks.last_per, slot_bytes).is_none() {
                    return unable(
                        "not one element fits a slot, with those that share its last value: use larger slots",
                    );
                }
                Ok(())
            }
        }
    }

    fn trace_legs(&self, legs: &[Leg]) -> Result<Traced, RunError> {
        let name = match (self.to, self.from) {
            (Some(_), Some(_)) => "sendrecv",
            (Some(_), None) => "send",
            _ => "recv",
        };
        let traced = kernel(name, |k| {
            for (at, fault) in &self.hooks.faults {
                k.report(at, fault.clone());
            }
            if self.to.is_some() && self.hooks.copies && self.inp.len() != self.sent() {
                let (is, must) = (self.inp.len(), self.sent());
                let what = "the input of a send without produce hook";
                k.report(&self.hooks.at, MisuseKind::Length { what, is, must });
            }
            if let Some(is) = self.send_len.filter(|&len| len != self.sent()) {
                let (what, must) = ("send_len beside a shape", self.sent());
                k.report(&self.hooks.at, MisuseKind::Length { what, is, must });
            }
            k.blocks(legs[0].tiling.blocks() as u32);
            legs::roles(self, k, legs);
        })?;
        check_groups(&traced, legs)?;
        check_shared(R::TYPES, self.hooks.last_per, legs)?;
        Ok(traced)
    }
}

/// Groups of neighbours must not be torn apart by tiles.
fn check_groups(traced: &Traced, legs: &[Leg]) -> Result<(), TransferError> {
    for inst in traced.kernel.insts.values() {
        let Op::Group { size, .. } = inst.op else { continue };
        let group = size as usize;
        for Leg { tiling, .. } in legs {
            let tile = tiling.tile_cols();
            if tiling.tiles() > 1 && tile < tiling.cols() && !tile.is_multiple_of(group) {
                return Err(TransferError::TornGroup { group, tile });
            }
        }
    }
    Ok(())
}

/// Where a value travels once for a group, every row of a tile begins with a group.
fn check_shared(types: &[Type], group: usize, legs: &[Leg]) -> Result<(), TransferError> {
    let staged = legs.iter().filter(|leg| matches!(leg.protocol, Protocol::Staged { .. }));
    for Leg { tiling, .. } in staged.filter(|_| types.len() > 1) {
        let tile = tiling.tile_cols();
        let one_row = tiling.tile_rows() == 1 && tile >= tiling.cols();
        if !one_row && !tile.is_multiple_of(group) {
            return Err(TransferError::TornGroup { group, tile });
        }
    }
    Ok(())
}
