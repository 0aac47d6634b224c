//! `Ctx`: everything a hook may know about the element it is called for. It is the same in every schedule, on every
//! engine.

use super::error::MisuseKind;
use super::legs::{Holds, HookLeg};
use super::regs::Payload;
use super::role::RoleCtx;
use super::trace::Trace;
use super::value::{AnyValue, IntoIndex, IntoValue, Known, Value};
use super::view::{Touch, View, View2, input};
use super::wire::Region;
use crate::ir::scalar::Element;
use crate::ir::{self, BinaryOp, Op, SourceLine, Special, Type};
use crate::tensor::Tensor;
use std::rc::Rc;

/// The argument of a hook: the chunks it reads and writes, and its position.
///
/// `produce` is called on the send leg and `consume` on the receive leg, once for every position of the *output* chunk.
/// Positions are lane values, and so is `shard()` of an all-reduce; everything else is uniform. New needs become new
/// methods, never a new signature.
///
/// **Fields that identify a value** mean the same in every algorithm, protocol, size and [`Config`](crate::Config):
/// `rank`, `world_size`, `peer`, `recv_peer`, `shard`, `pos`, `row`, `col`, `rows`, `cols`, `chunk`. `peer` is the rank
/// whose output the value ends in, `recv_peer` the rank whose input it comes from:
///
/// | | `produce`: `peer` | `recv_peer` | `consume`: `peer` | `recv_peer` | `shard` |
/// |---|---|---|---|---|---|
/// | `map` | `rank` | `rank` | `rank` | `rank` | `rank` |
/// | `send`, `recv`, `sendrecv` | the receiver | `rank` | `rank` | the sender | as `recv_peer` |
/// | `all_to_all` | the receiver | `rank` | `rank` | the sender | as `recv_peer` |
/// | `all_gather` | refused: use `rank` | `rank` | `rank` | the rank that produced it | as `recv_peer` |
/// | `broadcast` | refused: use `rank` | `rank` | `rank` | the root | as `recv_peer` |
/// | `gather` | the root | `rank` | `rank` | the sender | as `recv_peer` |
/// | `scatter` | the receiver | `rank` | `rank` | the root | as `peer` |
/// | `reduce_scatter` | the rank whose chunk it is | `rank` | `rank` | refused: use `rank` | as `peer` |
/// | `all_reduce` | refused: use `shard` | `rank` | `rank` | refused: use `shard` | the rank whose shard it is in |
///
/// A field is refused if no single rank qualifies: in an all-gather one value ends in the outputs of all ranks, and a
/// reduced value comes from the inputs of all. The build fails and names the line. (Hooks of empty chunks are not
/// called, and not traced.)
///
/// **Fields that describe how a value travels** depend on the algorithm, the protocol, the size and
/// [`Config`](crate::Config): `tile`, `tile_rows`, `tile_cols`, `step`, `slot`, `block`, `num_blocks`, `region`,
/// `role`. They are for measuring and debugging. A result that depends on one changes when the library chooses another
/// way.
///
/// ```
/// use tilewire::{Tensor, map, prelude::*};
/// let (out, inp, bias) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(8));
/// map(&out, &inp)
///     .produce(|c| c.input.load(c.pos()) + bias.at(c.pos() % 8))
///     .consume(|c, x| c.output.store(c.pos(), x * (c.rank() + 1).cast::<f32>()))
///     .trace()?;
/// # Ok::<(), tilewire::RunError>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Ctx<'t, In, Out> {
    /// The chunk being sent, on the sender. `consume` may read it too: there it is this rank's own. A rank that only
    /// receives (by `recv`, or in a broadcast or scatter of another root) has none. No hook writes it.
    pub input: Chunk<'t, In>,
    /// The chunk being received, on the receiver. `consume` writes it, and may read an element that it writes.
    /// `produce` may ask only for its length and shape: its elements are overwritten while others are still being sent.
    pub output: Chunk<'t, Out>,
    /// The current tile in the transport's region, if there is one: the bytes as they travel. `consume` may read it; no
    /// hook writes it. Depends on [`Config`](crate::Config).
    pub region: Option<Tile<'t>>,
    trace: &'t Trace,
    role: Rc<str>,
    facts: Facts<'t>,
}

/// The current tile of a transport's region.
#[derive(Clone, Copy)]
pub struct Tile<'t> {
    /// The region.
    pub region: Region<'t>,
    /// The bank: the peer, as the transport numbers it.
    pub bank: Value<'t, i64>,
    /// First byte of the tile in the bank.
    pub offset: Value<'t, i64>,
}

/// A number of a context: given by the schedule, by the launch, or unavailable.
#[derive(Clone, Copy)]
enum Fact<'t> {
    Given(Known<'t>),
    Launch(Special),
    NoShape,
    Several {
        field: &'static str,
        of: Several,
    },
    /// The position divided by this many elements: the shard it is in.
    ShardOf(usize),
}

/// Why a field that names one rank is refused: several ranks qualify.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Several {
    /// `produce` or `consume`.
    pub hook: &'static str,
    pub collective: &'static str,
    /// The field to use instead, and its meaning.
    pub instead: &'static str,
}

macro_rules! facts {
    ($($(#[$doc:meta])* $name:ident = $default:expr;)*) => {
        #[derive(Clone, Copy)]
        struct Facts<'t> {
            $($name: Fact<'t>,)*
        }

        impl Facts<'_> {
            fn new() -> Self {
                Facts { $($name: $default,)* }
            }
        }

        impl<'t, In, Out> Ctx<'t, In, Out> {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self) -> Value<'t, i64> {
                self.fact(self.facts.$name, &SourceLine::caller())
            }
        )*}

        impl<'t, In, Out> CtxBuilder<'t, In, Out> {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(mut self, x: impl IntoIndex<'t>) -> Self {
                self.ctx.facts.$name = Fact::Given(Known::any(self.ctx.trace, x, &SourceLine::caller()));
                self
            }
        )*}
    };
}

fn fixed<'t>(number: usize) -> Fact<'t> {
    Fact::Given(Known::Number(number as i64))
}

facts! {
    /// Position in the output chunk, from 0: `row * cols + col` if it has a shape. The chunk of an all-reduce is the
    /// whole tensor.
    pos = fixed(0);
    /// Row in the output chunk; a misuse if it has no shape.
    row = Fact::NoShape;
    /// Column in the output chunk; a misuse if it has no shape.
    col = Fact::NoShape;
    /// Rows of the output chunk; 1 if it has no shape.
    rows = fixed(1);
    /// Columns of the output chunk; all its elements if it has no shape.
    cols = fixed(0);
    /// Elements of the output chunk.
    chunk = fixed(0);
    /// Index of the tile among those of this leg. Depends on [`Config`](crate::Config).
    tile = fixed(0);
    /// Rows of a tile. Depends on [`Config`](crate::Config).
    tile_rows = fixed(1);
    /// Columns of a tile. Depends on [`Config`](crate::Config).
    tile_cols = fixed(0);
    /// Step of the schedule, from 0. Depends on [`Config`](crate::Config).
    step = fixed(0);
    /// Staging slot of the step. Depends on [`Config`](crate::Config).
    slot = fixed(0);
    /// Index of this block among those that serve this leg. Depends on [`Config`](crate::Config).
    block = Fact::Launch(Special::Block);
    /// Number of blocks that serve this leg. Depends on [`Config`](crate::Config).
    num_blocks = Fact::Launch(Special::Blocks);
    /// This rank.
    rank = Fact::Launch(Special::Rank);
    /// The rank whose output the value ends in: in `consume` this rank. A misuse in `produce` if it ends in the outputs
    /// of all ranks (see the table of [`Ctx`]).
    peer = Fact::Launch(Special::Rank);
    /// The rank whose input the value comes from: in `produce` this rank. A misuse in `consume` if it comes from the
    /// inputs of all ranks (see the table of [`Ctx`]).
    recv_peer = Fact::Launch(Special::Rank);
    /// The shard of the value, named by a rank: the rank it comes from, or, if a tensor is distributed (`scatter`,
    /// `reduce_scatter`), the rank it goes to. In an all-reduce it is the rank whose shard of the output the position
    /// is in, a lane value.
    shard = Fact::Launch(Special::Rank);
    /// Number of ranks.
    world_size = Fact::Launch(Special::WorldSize);
}

impl<'t, In, Out> Ctx<'t, In, Out> {
    /// Starts a context for the code of a role. Fields that are not set keep their defaults: the rank's own chunk, step
    /// and slot 0. Schedules call this; hooks only read.
    #[allow(clippy::new_ret_no_self)] // a context is built, never changed
    pub fn new(r: &RoleCtx<'t>, input: Chunk<'t, In>, output: Chunk<'t, Out>) -> CtxBuilder<'t, In, Out> {
        let mut facts = Facts::new();
        let (rows, cols) = output.shape.map_or((1, output.len()), |shape| (shape.rows(), shape.cols()));
        (facts.rows, facts.cols, facts.chunk) = (fixed(rows), fixed(cols), fixed(output.len()));
        (facts.tile_rows, facts.tile_cols) = (facts.rows, facts.cols);
        if let Some((block, blocks)) = r.share {
            (facts.block, facts.num_blocks) = (Fact::Given(Known::Value(block)), fixed(blocks));
        }
        let role = Rc::clone(&r.name);
        CtxBuilder { ctx: Ctx { input, output, region: None, trace: r.trace, role, facts } }
    }

    /// Name of the role that runs the hook. Depends on [`Config`](crate::Config).
    pub fn role(&self) -> &str {
        &self.role
    }

    /// A constant, or a scalar's value, as a value.
    #[track_caller]
    pub fn value<T: Element>(&self, x: impl IntoValue<'t, T>) -> Value<'t, T> {
        Value::new(self.trace, x.into_ir(self.trace, &SourceLine::caller()))
    }

    /// A tensor that the hook captured, as a view. Use it for an element at a constant index, which
    /// [`Captured::at`](super::Captured::at) does not accept.
    ///
    /// ```
    /// use tilewire::{Tensor, map};
    /// let (out, inp) = (Tensor::<f32>::zeros(3), Tensor::from_slice(&[1.0f32, 2.0, 3.0]));
    /// let factor = Tensor::from_slice(&[10.0f32]);
    /// map(&out, &inp).produce(|c| c.input.load(c.pos()) * c.captured(&factor).load(0)).run()?;
    /// assert_eq!(out.to_vec(), [10.0, 20.0, 30.0]);
    /// # Ok::<(), tilewire::RunError>(())
    /// ```
    pub fn captured<T: Element>(&self, tensor: &Tensor<T>) -> View<'t, T> {
        input(self.trace, tensor)
    }

    /// For a hook that cannot work with these chunks: the build fails with this message and the line of this call.
    /// Tracing continues, so return some value anyway.
    ///
    /// ```
    /// use tilewire::{Tensor, map};
    /// let (out, inp) = (Tensor::<f32>::zeros(6), Tensor::<f32>::zeros(5));
    /// let pairs = map(&out, &inp).produce(|c| {
    ///     if c.input.len() != 2 * c.output.len() {
    ///         c.refuse("pairs: the input must be twice as long as the output");
    ///     }
    ///     c.input.load(c.pos() * 2) + c.input.load(c.pos() * 2 + 1)
    /// });
    /// assert!(pairs.trace().unwrap_err().to_string().contains("twice as long"));
    /// ```
    #[track_caller]
    pub fn refuse(&self, why: impl Into<String>) {
        self.trace.report(&SourceLine::caller(), MisuseKind::Refused { why: why.into() });
    }

    /// Checks that groups of `group` neighbours have the same value, as the hook given at this line promises.
    pub(crate) fn shared_by(&self, value: ir::Value, group: usize, at: &SourceLine) {
        if !self.trace.same_in_groups(value, group) {
            self.trace.report(at, MisuseKind::NotShared { group });
        }
    }

    /// Runs a hook that was given at this line.
    pub(crate) fn run_hook<T>(&self, leg: HookLeg, given_at: &SourceLine, hook: impl FnOnce() -> T) -> T {
        self.trace.run_hook(leg, given_at, hook)
    }

    pub(crate) fn pos_line(&self, at: &SourceLine) -> Value<'t, i64> {
        self.fact(self.facts.pos, at)
    }

    fn fact(&self, fact: Fact<'t>, at: &SourceLine) -> Value<'t, i64> {
        match fact {
            Fact::Given(known) => Value::new(self.trace, known.ir(self.trace, at)),
            Fact::Launch(special) => self.trace.value(Op::Special(special), at),
            Fact::NoShape => {
                self.trace.report(at, MisuseKind::NoShape);
                Value::new(self.trace, self.trace.constant(Type::I64, 0, at))
            }
            Fact::Several { field, of: Several { hook, collective, instead } } => {
                self.trace.report(at, MisuseKind::SeveralRanks { field, hook, collective, instead });
                Value::new(self.trace, self.trace.constant(Type::I64, 0, at))
            }
            Fact::ShardOf(positions) => {
                let (pos, each) = (self.pos_line(at), self.trace.constant(Type::I64, positions as u64, at));
                self.trace.value(Op::Binary { op: BinaryOp::Div, a: pos.ir, b: each }, at)
            }
        }
    }
}

/// A context under construction.
#[derive(Clone)]
#[must_use]
pub struct CtxBuilder<'t, In, Out> {
    ctx: Ctx<'t, In, Out>,
}

impl<'t, In, Out> CtxBuilder<'t, In, Out> {
    /// The current tile of the transport's region.
    pub fn region(mut self, tile: Tile<'t>) -> Self {
        self.ctx.region = Some(Tile { region: tile.region.held_as(Holds::Staging), ..tile });
        self
    }

    /// Makes `peer()` a misuse, because no single rank qualifies.
    pub(crate) fn no_peer(mut self, of: Several) -> Self {
        self.ctx.facts.peer = Fact::Several { field: "peer()", of };
        self
    }

    /// Makes `recv_peer()` a misuse, because no single rank qualifies.
    pub(crate) fn no_recv_peer(mut self, of: Several) -> Self {
        self.ctx.facts.recv_peer = Fact::Several { field: "recv_peer()", of };
        self
    }

    /// Derives the shard from the position; a shard has `each` positions.
    pub(crate) fn shard_of_positions(mut self, each: usize) -> Self {
        self.ctx.facts.shard = Fact::ShardOf(each);
        self
    }

    /// The context.
    pub fn build(mut self) -> Ctx<'t, In, Out> {
        let facts = &self.ctx.facts;
        let axis = |what, fact, extent| match (fact, extent) {
            (Fact::Given(Known::Value(v)), Fact::Given(Known::Number(n))) => Some((what, v.ir, n as usize)),
            _ => None,
        };
        let axes = [axis("row()", facts.row, facts.rows), axis("col()", facts.col, facts.cols)];
        let here = match (facts.pos, axes) {
            (Fact::Given(Known::Value(pos)), [Some((_, row, rows)), Some((_, col, cols))]) => {
                Some((pos.ir, [row, col], (rows, cols)))
            }
            _ => None,
        };
        self.ctx.input.placed(axes, here);
        self.ctx.output.placed(axes, here);
        self.ctx
    }
}

/// The memory of one chunk: by position, and by row and column if it has a shape.
pub struct Chunk<'t, T> {
    view: View<'t, T>,
    shape: Option<View2<'t, T>>,
    /// The hook's `row()` and `col()` and their ranges, to report one used on an axis that is too short for it.
    axes: [Option<(&'static str, ir::Value, usize)>; 2],
    /// The hook's `pos()`, and the row and column of that position, if this chunk has the rows and columns of the
    /// output. Memory with gaps is then addressed without a division.
    here: Option<(ir::Value, [ir::Value; 2])>,
}

impl<T> Clone for Chunk<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Chunk<'_, T> {}

impl<'t, T> From<View<'t, T>> for Chunk<'t, T> {
    fn from(view: View<'t, T>) -> Self {
        Chunk { view, shape: None, axes: [None; 2], here: None }
    }
}

impl<'t, T> From<View2<'t, T>> for Chunk<'t, T> {
    fn from(shape: View2<'t, T>) -> Self {
        Chunk { view: shape.flat(), shape: Some(shape), axes: [None; 2], here: None }
    }
}

impl<'t, T> Chunk<'t, T> {
    /// The same chunk with elements of another type, or of one that is known only while tracing.
    fn retyped<U>(self) -> Chunk<'t, U> {
        let Chunk { view, shape, axes, here } = self;
        Chunk { view: view.retyped(), shape: shape.map(View2::retyped), axes, here }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// Rows; 1 if the chunk has no shape.
    pub fn rows(&self) -> usize {
        self.shape.map_or(1, |shape| shape.rows())
    }

    /// Columns; all elements if the chunk has no shape.
    pub fn cols(&self) -> usize {
        self.shape.map_or(self.len(), |shape| shape.cols())
    }

    /// Distance between rows.
    pub fn row_stride(&self) -> usize {
        self.shape.map_or(self.len(), |shape| shape.row_stride())
    }

    /// The chunk in one dimension.
    pub fn flat(&self) -> View<'t, T> {
        self.view
    }

    /// Tells the chunk where its hook is: the ranges of its row and column, and the position with its row and column
    /// and the shape they are counted in.
    fn placed(
        &mut self,
        axes: [Option<(&'static str, ir::Value, usize)>; 2],
        here: Option<(ir::Value, [ir::Value; 2], (usize, usize))>,
    ) {
        let is_own = |shape: (usize, usize)| (self.rows(), self.cols()) == shape;
        self.here = here.filter(|&(.., shape)| is_own(shape)).map(|(pos, place, _)| (pos, place));
        self.axes = axes;
    }

    /// The row and column of a position, if the chunk has gaps and this is the hook's own position.
    fn place_here(&self, pos: &impl IntoIndex<'t>) -> Option<(View2<'t, T>, [Value<'t, i64>; 2])> {
        let (here, place) = self.here?;
        let shape = self.shape.filter(|shape| shape.has_gaps() && pos.id() == Some(here))?;
        Some((shape, place.map(|v| Value::new(self.view.trace, v))))
    }

    /// The place of a position.
    fn place(&self, pos: Value<'t, i64>, touch: Touch, at: &SourceLine) -> ir::Place {
        match self.place_here(&pos) {
            Some((shape, [row, col])) => shape.place(row, col, touch, at),
            None => self.view.place(pos, touch, at),
        }
    }

    fn shaped(&self, row: &impl IntoIndex<'t>, col: &impl IntoIndex<'t>, at: &SourceLine) -> Option<View2<'t, T>> {
        let Some(shape) = self.shape else {
            self.view.trace.report(at, MisuseKind::NoShape);
            return None;
        };
        for (id, extent) in [(row.id(), shape.rows()), (col.id(), shape.cols())] {
            let Some(id) = id else { continue };
            for (what, axis, runs_to) in self.axes.into_iter().flatten() {
                if axis == id && runs_to > extent {
                    self.view.trace.report(at, MisuseKind::Transposed { what, runs_to, extent });
                }
            }
        }
        Some(shape)
    }
}

impl<'t, T: Element> Chunk<'t, T> {
    /// The element at a position.
    #[track_caller]
    pub fn load(&self, pos: impl IntoIndex<'t>) -> Value<'t, T> {
        match self.place_here(&pos) {
            Some((shape, [row, col])) => shape.load(row, col),
            None => self.view.load(pos),
        }
    }

    /// The element at a position if `cond` holds, otherwise `other`.
    #[track_caller]
    pub fn load_if(
        &self,
        cond: impl IntoValue<'t, bool>,
        pos: impl IntoIndex<'t>,
        other: impl IntoValue<'t, T>,
    ) -> Value<'t, T> {
        match self.place_here(&pos) {
            Some((shape, [row, col])) => shape.load_if(cond, row, col, other),
            None => self.view.load_if(cond, pos, other),
        }
    }

    /// Writes the element at a position.
    #[track_caller]
    pub fn store(&self, pos: impl IntoIndex<'t>, x: impl IntoValue<'t, T>) {
        match self.place_here(&pos) {
            Some((shape, [row, col])) => shape.store(row, col, x),
            None => self.view.store(pos, x),
        }
    }

    /// Writes the element at a position if `cond` holds.
    #[track_caller]
    pub fn store_if(&self, cond: impl IntoValue<'t, bool>, pos: impl IntoIndex<'t>, x: impl IntoValue<'t, T>) {
        match self.place_here(&pos) {
            Some((shape, [row, col])) => shape.store_if(cond, row, col, x),
            None => self.view.store_if(cond, pos, x),
        }
    }

    /// The element in a row and a column; a misuse if the chunk has no shape.
    #[track_caller]
    pub fn at(&self, row: impl IntoIndex<'t>, col: impl IntoIndex<'t>) -> Value<'t, T> {
        let at = SourceLine::caller();
        match self.shaped(&row, &col, &at) {
            Some(shape) => shape.at(row, col),
            None => Value::new(self.view.trace, self.view.trace.constant(T::TYPE, 0, &at)),
        }
    }

    /// Writes the element in a row and a column; a misuse if the chunk has no shape.
    #[track_caller]
    pub fn store_at(&self, row: impl IntoIndex<'t>, col: impl IntoIndex<'t>, x: impl IntoValue<'t, T>) {
        if let Some(shape) = self.shaped(&row, &col, &SourceLine::caller()) {
            shape.store(row, col, x);
        }
    }
}

/// A context whose element types are known only while tracing, for schedules and collectives.
pub(crate) type AnyCtx<'t> = Ctx<'t, (), ()>;
/// Such a context under construction.
pub(crate) type AnyCtxBuilder<'t> = CtxBuilder<'t, (), ()>;

impl<'t> AnyCtx<'t> {
    /// The context as a hook with these types gets it.
    pub(crate) fn typed<In: Element, Out: Element>(&self) -> Ctx<'t, In, Out> {
        let Ctx { input, output, region, trace, role, facts } = self.clone();
        Ctx { input: input.retyped(), output: output.retyped(), region, trace, role, facts }
    }

    /// Reads the input at this position, for code that has no line of its own.
    pub(crate) fn load_input(&self, at: &SourceLine) -> AnyValue<'t> {
        let place = self.input.place(self.pos_line(at), Touch::Read, at);
        AnyValue::new(self.trace, self.trace.raw(Op::Load { at: place, mask: None }, at))
    }

    /// The default `consume`: stores the value at its position. Several values, or one of another type than the
    /// output's, are a misuse at `at`.
    pub(crate) fn store_output(&self, payload: Payload<'t>, output: Type, at: &SourceLine) {
        match payload.parts() {
            [x] if x.ty() == output => {
                let place = self.output.place(self.pos_line(at), Touch::Write, at);
                self.trace.emit(Op::Store { at: place, x: x.ir, mask: None }, at);
            }
            parts => {
                let carries = parts.iter().map(|x| x.ty()).collect();
                self.trace.report(at, MisuseKind::NeedsConsume { carries, output });
            }
        }
    }
}
