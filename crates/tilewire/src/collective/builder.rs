//! The builder behind every call that takes tensors and hooks: [`Exchange`], [`Reduction`] and [`Map`] are one type.

use super::algorithm::{Algorithm, ReduceOp, Reducible};
use super::config::{Config, Knobs, Primitive};
use super::error::RunError;
use super::hooks::{Hooks, ProduceHook};
use super::operation::Operation;
use super::prepared::PreparedExchange;
use super::request::Request;
use super::rounds::Rounds;
use super::windows::WindowOf;
use crate::hook::{AnyCtx, AnyValue, Ctx, Payload, Regs, Traced, Value};
use crate::ir::SourceLine;
use crate::ir::scalar::Element;
use crate::link::{Transport, Window};
use crate::tensor::{Axis, Tensor};
use crate::vm::Puts;
use std::marker::PhantomData;
use std::rc::Rc;
use std::time::Duration;

/// A builder for a collective, a transfer or a `map`, from tensors of `In` to tensors of `Out`. `R` is the payload of
/// one element. `K` is the kind: [`Exchange`], [`Reduction`] or [`Map`].
///
/// All participating ranks must agree on the payload (number of elements, types, shape) and on how it travels
/// ([`Config`]). The ranks compare these before the first launch. Any difference is an error on all of them, and the
/// message says what differs.
#[must_use = "nothing happens before run(), build() or trace()"]
pub struct Collective<'h, 'l, In: Element, Out: Element, R: Regs, K> {
    request: Request<'h, 'l>,
    types: PhantomData<fn(In, R, K) -> Out>,
}

/// A [`send`](super::send), [`recv`](super::recv) or [`sendrecv`](super::sendrecv), or a collective that moves chunks,
/// like [`all_to_all`](super::all_to_all).
pub type Exchange<'h, 'l, In, Out, R = In> = Collective<'h, 'l, In, Out, R, Moving>;

/// A [`reduce_scatter`](super::reduce_scatter) or [`all_reduce`](super::all_reduce). `R` is the reduced type.
///
/// A reduction combines single numbers, so it has no method for several values. An exchange has them:
///
/// ```
/// # use tilewire::{Tensor, all_reduce, all_to_all, link::Transport};
/// # fn build(link: &dyn Transport, x: &Tensor<f32>) {
/// let _ = all_reduce(link, x, x).produce(|c| c.input.load(c.pos()));
/// let _ = all_to_all(link, x, x).produce2(|c| (c.input.load(c.pos()), c.input.load(c.pos()))).last_per(32);
/// let _ = all_to_all(link, x, x).produce3(|c| (c.pos(), c.pos(), c.input.load(c.pos())));
/// # }
/// ```
///
/// The same on a reduction does not compile:
///
/// ```compile_fail,E0599
/// # use tilewire::{Tensor, all_reduce, link::Transport};
/// # fn build(link: &dyn Transport, x: &Tensor<f32>) {
/// let _ = all_reduce(link, x, x).produce2(|c| (c.input.load(c.pos()), c.input.load(c.pos())));
/// # }
/// ```
/// ```compile_fail,E0599
/// # use tilewire::{Tensor, all_reduce, link::Transport};
/// # fn build(link: &dyn Transport, x: &Tensor<f32>) {
/// let _ = all_reduce(link, x, x).produce3(|c| (c.pos(), c.pos(), c.input.load(c.pos())));
/// # }
/// ```
/// ```compile_fail,E0599
/// # use tilewire::{Tensor, all_reduce, link::Transport};
/// # fn build(link: &dyn Transport, x: &Tensor<f32>) {
/// let _ = all_reduce(link, x, x).last_per(32);
/// # }
/// ```
pub type Reduction<'h, 'l, In, Out, R = In> = Collective<'h, 'l, In, Out, R, Combining>;

/// A [`map`](super::map). `R` is the value that `produce` passes to `consume`.
pub type Map<'h, In, Out, R = In> = Collective<'h, 'static, In, Out, R, Mapping>;

/// The kind of an [`Exchange`].
pub enum Moving {}
/// The kind of a [`Reduction`].
pub enum Combining {}
/// The kind of a [`Map`].
pub enum Mapping {}

/// Kinds of collectives, with the payloads they can carry. A reduction carries single numbers; the others carry
/// anything.
pub trait Carries<R>: sealed::Kind {}
impl<R: Regs> Carries<R> for Moving {}
impl<R: Regs> Carries<R> for Mapping {}
impl<R: Reducible> Carries<R> for Combining {}

/// Kinds of collectives whose payload may consist of several values.
pub trait CarriesTuples: sealed::Kind {}
impl CarriesTuples for Moving {}
impl CarriesTuples for Mapping {}

/// Kinds of collectives that use a transport.
pub trait Travels: sealed::Kind {}
impl Travels for Moving {}
impl Travels for Combining {}

mod sealed {
    pub trait Kind {}
    impl Kind for super::Moving {}
    impl Kind for super::Combining {}
    impl Kind for super::Mapping {}
}

impl<'h, 'l, In: Element, Out: Element, K> Collective<'h, 'l, In, Out, In, K> {
    pub(super) fn at(
        operation: Operation,
        link: Option<&'l dyn Transport>,
        out: &Tensor<Out>,
        inp: &Tensor<In>,
        at: SourceLine,
    ) -> Self {
        let hooks = Hooks::copy(<In as Regs>::TYPES, Out::TYPE, at);
        Collective { request: Request::new(operation, link, out.into(), inp.into(), hooks), types: PhantomData }
    }

    #[track_caller]
    pub(super) fn over(operation: Operation, link: &'l dyn Transport, out: &Tensor<Out>, inp: &Tensor<In>) -> Self {
        Self::at(operation, Some(link), out, inp, SourceLine::caller())
    }
}

impl<'h, 'l, In: Element, Out: Element, R: Regs, K> Collective<'h, 'l, In, Out, R, K> {
    /// The same builder with a different payload type.
    #[track_caller]
    fn with<Q: Regs>(mut self, produce: Rc<ProduceHook<'h>>) -> Collective<'h, 'l, In, Out, Q, K> {
        self.request.hooks.set_produce(Q::TYPES, produce);
        Collective { request: self.request, types: PhantomData }
    }

    /// Gives the chunks a shape: `rows` rows of `cols` elements, for both input and output. Use
    /// [`output_shape`](Self::output_shape) if the output's shape differs. Hooks are called for every position of the
    /// output.
    ///
    /// ```
    /// use tilewire::{Tensor, map};
    /// let (out, inp) = (Tensor::<f32>::zeros(6), Tensor::<f32>::zeros(6));
    /// map(&out, &inp).chunk_shape(2, 3).produce(|c| -c.input.at(c.row(), c.col())).trace()?;
    /// # Ok::<(), tilewire::RunError>(())
    /// ```
    #[track_caller]
    pub fn chunk_shape(mut self, rows: usize, cols: usize) -> Self {
        self.request.hooks.set_chunk_shape(rows, cols);
        self.request.shape_chunks();
        self
    }

    /// Gives the output chunk its own shape, for example that of a transpose.
    ///
    /// ```text
    ///   chunk_shape(2, 3)       a  b  c                 a  d         output (row, col)
    ///   output_shape(3, 2)      d  e  f       ──▶       b  e           = input (col, row)
    ///                                                   c  f
    /// ```
    ///
    /// ```
    /// use tilewire::{Tensor, map};
    /// let (out, inp) = (Tensor::<i32>::zeros(6), Tensor::from_slice(&[1, 2, 3, 4, 5, 6]));
    /// map(&out, &inp).chunk_shape(2, 3).output_shape(3, 2).produce(|c| c.input.at(c.col(), c.row())).run()?;
    /// assert_eq!(out.to_vec(), [1, 4, 2, 5, 3, 6]);
    /// # Ok::<(), tilewire::RunError>(())
    /// ```
    #[track_caller]
    pub fn output_shape(mut self, rows: usize, cols: usize) -> Self {
        self.request.hooks.set_output_shape(rows, cols);
        self.request.shape_chunks();
        self
    }

    /// Sets the hook that computes the value to send for a position of the output chunk. Without a consume hook, the
    /// receiver stores that value there.
    #[track_caller]
    pub fn produce<Q: Element>(
        self,
        hook: impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, Q> + 'h,
    ) -> Collective<'h, 'l, In, Out, Q, K> {
        self.with::<Q>(Rc::new(move |c: &AnyCtx<'_>| AnyValue::from(hook(&c.typed())).into()))
    }

    /// Sets the hook that handles the value arriving for a position of the output chunk. Call it after `produce`.
    #[track_caller]
    pub fn consume(mut self, hook: impl for<'t> Fn(&Ctx<'t, In, Out>, R::Of<'t>) + 'h) -> Self {
        self.request.hooks.set_consume(Rc::new(move |c, payload| hook(&c.typed(), R::restore(payload))));
        self
    }

    /// Number of blocks that share the work for one peer. On a CPU, the default is 1; with more blocks, idle worker
    /// threads of the process help. On a GPU, the default grows with the size of the data.
    pub fn blocks(mut self, blocks: usize) -> Self {
        self.request.config.near.blocks = Some(blocks);
        self
    }

    /// Warps of one copy of a role on a GPU, whether it sends or receives; see [`Knobs::send_warps`].
    pub fn warps(mut self, warps: u32) -> Self {
        self.request.config.near = Knobs::warps(warps).or(self.request.config.near);
        self
    }

    /// Number of vectors of neighbouring elements that a GPU lane keeps in flight. Chosen automatically by default.
    pub fn unroll(mut self, vectors: u32) -> Self {
        self.request.config.unroll = Some(vectors);
        self
    }
}

impl<'h, 'l, In: Element, Out: Element, R: Regs, K: CarriesTuples> Collective<'h, 'l, In, Out, R, K> {
    /// Like `produce`, for two values that travel side by side, such as a payload and its scale.
    ///
    /// ```
    /// use tilewire::{F8E4M3, Tensor, map};
    /// let (out, inp) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(64));
    /// map(&out, &inp)
    ///     .produce2(|c| {
    ///         let x = c.input.load(c.pos());
    ///         let scale = (x.abs().group_max(32) / 448.0).max(f32::MIN_POSITIVE); // never 0
    ///         ((x / scale).cast::<F8E4M3>(), scale)
    ///     })
    ///     .consume(|c, (payload, scale)| c.output.store(c.pos(), payload.cast::<f32>() * scale))
    ///     .run()?;
    /// assert_eq!(out.to_vec(), [0.0; 64]); // without the `max`, a group of zeros would give 0 / 0
    /// # Ok::<(), tilewire::RunError>(())
    /// ```
    #[track_caller]
    pub fn produce2<A: Element, B: Element>(
        self,
        hook: impl for<'t> Fn(&Ctx<'t, In, Out>) -> (Value<'t, A>, Value<'t, B>) + 'h,
    ) -> Collective<'h, 'l, In, Out, (A, B), K> {
        self.with::<(A, B)>(Rc::new(move |c: &AnyCtx<'_>| {
            let (a, b) = hook(&c.typed());
            Payload::new(&[a.into(), b.into()])
        }))
    }

    /// Like `produce`, for three values that travel side by side.
    #[track_caller]
    pub fn produce3<A: Element, B: Element, C: Element>(
        self,
        hook: impl for<'t> Fn(&Ctx<'t, In, Out>) -> (Value<'t, A>, Value<'t, B>, Value<'t, C>) + 'h,
    ) -> Collective<'h, 'l, In, Out, (A, B, C), K> {
        self.with::<(A, B, C)>(Rc::new(move |c: &AnyCtx<'_>| {
            let (a, b, d) = hook(&c.typed());
            Payload::new(&[a.into(), b.into(), d.into()])
        }))
    }

    /// Declares that the last value of the payload (a scale, for example) is the same for every `group` neighbouring
    /// positions. It then travels once per group, beside the rest of the payload. Both sides must declare it. Tracing
    /// must be able to show that the value is the same throughout a group; otherwise it reports a misuse.
    ///
    /// ```
    /// use tilewire::{F8E4M3, Tensor, hooks, map};
    /// let (out, inp) = (Tensor::<f32>::zeros(256), Tensor::<f32>::zeros(256));
    /// map(&out, &inp)
    ///     .produce2(hooks::quantise(F8E4M3::MAX, 128))
    ///     .last_per(128)
    ///     .consume(hooks::dequantise())
    ///     .run()?;
    /// # Ok::<(), tilewire::RunError>(())
    /// ```
    ///
    /// Messages sent in packets are small, and still carry all values for every position.
    pub fn last_per(mut self, group: usize) -> Self {
        self.request.hooks.last_per = group.max(1);
        self
    }
}

impl<'h, 'l, In: Element, Out: Element, R: Regs> Exchange<'h, 'l, In, Out, R> {
    /// For a [`recv`](crate::collective::recv): the payload type of one element, if it differs from the output's type.
    /// Call it before `consume`.
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

    /// Number of positions to send, if it differs from the length of the input: for hooks that gather.
    pub fn send_len(mut self, len: usize) -> Self {
        self.request.send_len = Some(len);
        self.request.shape_chunks();
        self
    }

    /// Stores this rank's own chunk in the same pass that sends another chunk, for any size and processor. By default
    /// this happens only for large chunks, on processors where it was measured to be faster. It changes the kernel, not
    /// the result. It requires plain copies through a window, one block and a CPU, and has no effect otherwise.
    pub fn keep_while_sending(mut self) -> Self {
        self.request.keeps = true;
        self
    }
}

impl<'h, 'l, In: Element, Out: Element, R: Regs> Reduction<'h, 'l, In, Out, R> {
    /// The reduction operator; the sum by default.
    pub fn op(mut self, op: ReduceOp) -> Self {
        if let Operation::Reduction(_, of) = &mut self.request.operation {
            *of = op;
        }
        self
    }
}

/// Settings for how the data travels.
impl<'h, 'l, In: Element, Out: Element, R: Regs, K: Travels> Collective<'h, 'l, In, Out, R, K> {
    /// Cuts tensors of several rows into chunks along this axis: a chunk is some of their rows (the default), or some
    /// of their columns in every row. Use [`output_along`](Self::output_along) if the output is cut along another axis.
    /// A tensor of one row has no axes, and is cut into runs of elements.
    ///
    /// A tensor of several rows gives its chunks a shape, so hooks have `c.row()` and `c.col()` without
    /// [`chunk_shape`](Self::chunk_shape). All ranks must have chunks of one shape.
    ///
    /// ```
    /// use tilewire::link::{ShmOptions, ShmTransport};
    /// use tilewire::tensor::Axis;
    /// use tilewire::{Tensor, World, all_gather};
    /// World::threads(2).run(|world| {
    ///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
    ///     // Every rank has some columns of a matrix, and gets them all.
    ///     let mine = Tensor::from_fn(6, |i| (10 * world.rank().number() + i as u32)).reshape(3, 2).unwrap();
    ///     let all = Tensor::<u32>::zeros(12).reshape(3, 4).unwrap();
    ///     all_gather(&link, &all, &mine).along(Axis::Cols).run()?;
    ///     assert_eq!(all.to_vec(), [0, 1, 10, 11, 2, 3, 12, 13, 4, 5, 14, 15]);
    ///     Ok(link.close()?)
    /// })?;
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    pub fn along(mut self, axis: Axis) -> Self {
        self.request.axes = [axis; 2];
        self.request.shape_chunks();
        self
    }

    /// Cuts the output along another axis than the input. Call it after [`along`](Self::along).
    ///
    /// ```
    /// use tilewire::link::{ShmOptions, ShmTransport};
    /// use tilewire::tensor::Axis;
    /// use tilewire::{Tensor, World, all_to_all};
    /// World::threads(2).run(|world| {
    ///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
    ///     // Every rank has some rows of a matrix, and gets all rows of some columns.
    ///     let rows = Tensor::from_fn(8, |i| (8 * world.rank().number() + i as u32)).reshape(2, 4).unwrap();
    ///     let columns = Tensor::<u32>::zeros(8).reshape(4, 2).unwrap();
    ///     all_to_all(&link, &columns, &rows).along(Axis::Cols).output_along(Axis::Rows).run()?;
    ///     let first = 2 * world.rank().number();
    ///     assert_eq!(columns.to_vec(), [0, 1, 4, 5, 8, 9, 12, 13].map(|i| first + i));
    ///     Ok(link.close()?)
    /// })?;
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    pub fn output_along(mut self, axis: Axis) -> Self {
        self.request.axes[1] = axis;
        self.request.shape_chunks();
        self
    }

    /// Sets several knobs together. Knobs that `config` leaves unset keep their earlier value; knobs that are never set
    /// are chosen by size. This method and those for single knobs combine in any order, and the last value given for a
    /// knob wins.
    pub fn config(mut self, config: impl Into<Config>) -> Self {
        self.request.config = config.into().or(self.request.config);
        self
    }

    /// The algorithm; chosen by size by default. All algorithms give bit-identical results.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.request.config.algorithm = Some(algorithm);
        self
    }

    /// How the rounds of a collective share a launch. By default this depends on the links between the ranks.
    pub fn rounds(mut self, rounds: Rounds) -> Self {
        self.request.config.rounds = Some(rounds);
        self
    }

    /// Separate knobs for peers across a network; see [`Config::far`].
    pub fn far(mut self, knobs: Knobs) -> Self {
        self.request.config.far = Some(self.request.config.far.map_or(knobs, |said| knobs.or(said)));
        self
    }

    /// Warps of one copy of a sending role on a GPU; see [`Knobs::send_warps`].
    pub fn send_warps(mut self, warps: u32) -> Self {
        self.request.config.near.send_warps = Some(warps);
        self
    }

    /// Warps of one copy of a receiving role on a GPU.
    pub fn recv_warps(mut self, warps: u32) -> Self {
        self.request.config.near.recv_warps = Some(warps);
        self
    }

    /// How bytes travel; chosen by size by default.
    pub fn primitive(mut self, primitive: Primitive) -> Self {
        self.request.config.near.primitive = Some(primitive);
        self
    }

    /// Bytes per staging slot; chosen by size by default.
    pub fn slot_bytes(mut self, bytes: usize) -> Self {
        self.request.config.near.slot_bytes = Some(bytes);
        self
    }

    /// Slots per block; chosen by size by default.
    pub fn depth(mut self, slots: usize) -> Self {
        self.request.config.near.depth = Some(slots);
        self
    }

    /// Keeps each group of this many neighbours within one tile, for hooks that reduce over groups.
    pub fn granule(mut self, elements: usize) -> Self {
        self.request.config.near.granule = Some(elements);
        self
    }

    /// How long a wait may last without progress. The default is the world's deadline; `None` means forever.
    pub fn deadline(mut self, deadline: impl Into<Option<Duration>>) -> Self {
        self.request.deadline = deadline.into();
        self
    }

    /// How a CPU writes data for other ranks. By default, it writes staging in whichever way is found to be faster, and
    /// windows through the cache.
    pub fn puts(mut self, puts: Puts) -> Self {
        self.request.puts = Some(puts);
        self
    }

    /// Makes different hooks on different ranks an error: the first launch compares hashes of the hooks before anything
    /// is sent. By default hooks may differ, since a constant may legitimately depend on the rank. Call it on all
    /// ranks.
    pub fn same_hooks(mut self) -> Self {
        self.request.same_hooks = true;
        self
    }

    /// For measuring the cost of watching. On a CPU, launches then neither notice a peer's failure nor sleep, and only
    /// the deadline ends a wait. On a GPU, waits have no deadline, but still end when a peer fails. A transport with
    /// far peers ignores it, since its waits also carry the posts.
    pub fn unwatched(mut self) -> Self {
        self.request.watched = false;
        self
    }

    /// Declares that the input or output is this rank's part of a window that peers can reach. Call it once for each
    /// window.
    ///
    /// An exchange sends straight into the receiver's window, in one hop. The receiver's output must be its part of the
    /// window. A consume hook is not allowed, and the payload must be one value of the window's type. Far peers'
    /// windows are written by posts: straight from the input if nothing changes it on the way, from an outbox if a hook
    /// does. [`explain`](Self::explain) tells which.
    ///
    /// ```
    /// use tilewire::link::{ShmOptions, ShmTransport, Window};
    /// use tilewire::transport::World;
    /// use tilewire::{Tensor, sendrecv};
    /// World::threads(2).run(|world| {
    ///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
    ///     let (window, inp) = (Window::<f32>::allocate(&link, 4)?, Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0]));
    ///     let peer = world.next();
    ///     sendrecv(&link, window.tensor(), &inp, peer, peer).window(&window).run()?;
    ///     assert_eq!(window.tensor().to_vec(), [1.0, 2.0, 3.0, 4.0]);
    ///     Ok(link.close()?)
    /// })?;
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    ///
    /// A reduction combines in one hop. Every rank reads its part of all inputs directly from their windows; in an
    /// all-reduce it also stores the result in all outputs. The input must be this rank's part of a window. So must the
    /// output of an all-reduce, either of the same window (in place) or of a second one: call this once for each. A
    /// produce hook is not allowed, nor is a consume hook of an all-reduce.
    ///
    /// ```
    /// use tilewire::all_reduce;
    /// use tilewire::link::{ShmOptions, ShmTransport, Window};
    /// use tilewire::transport::World;
    /// World::threads(3).run(|world| {
    ///     let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
    ///     let window = Window::<f32>::allocate(&link, 1000)?;
    ///     window.tensor().fill(world.rank().number() as f32);
    ///     all_reduce(&link, window.tensor(), window.tensor()).window(&window).run()?;
    ///     assert_eq!(window.tensor().get(999), 3.0);
    ///     Ok(link.close()?)
    /// })?;
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    pub fn window<W: Element>(mut self, window: &Window<W>) -> Self {
        self.request.windows.push(WindowOf::of(window));
        self
    }
}

impl<'h, 'l, In: Element, Out: Element, R: Regs, K: Carries<R>> Collective<'h, 'l, In, Out, R, K> {
    /// Traces, verifies and compiles, and announces the operation to the peers. The result can be launched any number
    /// of times.
    ///
    /// This call does not wait. The first launch compares the sides, so ranks may build transfers with different peers
    /// in any order. The n-th transfer built towards a peer pairs with the n-th one that the peer builds from this
    /// rank. Both sides must launch the transfers of one pair in the same order. A collective must be built and
    /// launched by all ranks in the same order. Launch everything you build: a peer may already be waiting for it, so
    /// dropping it before the first launch breaks the transport.
    pub fn build(self) -> Result<PreparedExchange<'l>, RunError> {
        self.request.build()
    }

    /// Describes what would happen, as text to read: the operation, how it travels to and from each peer, and a hash of
    /// its hooks that ranks can compare. Nothing is built.
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
        self.request.explain()
    }

    /// Builds and launches once. Building takes far longer than a small launch. In a loop, call [`build`](Self::build)
    /// once and then `run` its result as often as you like.
    pub fn run(self) -> Result<(), RunError> {
        self.request.build()?.run()
    }

    /// Traces the kernel and stops there: for printing its IR, for the checker, or for another engine.
    pub fn trace(self) -> Result<Traced, RunError> {
        self.request.trace(&self.request.plan()?)
    }
}
