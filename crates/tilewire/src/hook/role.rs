//! The body of a role: elements, control flow, variables and scratch.

use super::error::{MisuseKind, ScopeKind};
use super::trace::{Brand, Trace};
use super::value::{IntoIndex, IntoValue, Known, Value};
use super::view::View;
use super::wire::{Banks, Region};
use crate::ir::scalar::Element;
use crate::ir::{self, Access, Base, Entity, Inst, Op, RoleId, SourceLine, Special, Type, VarId};
use crate::tensor::Scalar;
use std::marker::PhantomData;
use std::ops::{Range, RangeTo};
use std::rc::Rc;

/// The context in which the body of a role is written.
///
/// Control flow is on uniform values and runs its closures once each, while tracing. A Rust `for` or `if` around traced
/// ops unrolls or chooses at trace time; [`RoleCtx::for_`] and [`RoleCtx::if_`] do so when the kernel runs.
///
/// ```
/// use tilewire::{Tensor, kernel};
/// let (x, y) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(16));
/// kernel("sum of four rows", |k| {
///     let (x, y) = (k.input(&x).shape(4, 16), k.output(&y));
///     k.main(|r| {
///         r.each(16, |col| {
///             let mut sum = x.at(0, col);
///             for row in 1..4 {
///                 sum = sum + x.at(row, col); // unrolled: a Rust loop runs while tracing
///             }
///             y.store(col, sum);
///         });
///         r.if_(r.block().eq(0), || y.store(0, 0.0)); // decided when the kernel runs
///     });
/// })?;
/// # Ok::<(), tilewire::BuildError>(())
/// ```
pub struct RoleCtx<'t> {
    pub(super) trace: &'t Trace,
    role: RoleId,
    pub(super) name: Rc<str>,
    /// This block's number and the number of blocks, if they are not the launch's.
    pub(super) share: Option<(Value<'t, i64>, usize)>,
    brand: Brand<'t>,
}

impl<'t> RoleCtx<'t> {
    pub(super) fn new(trace: &'t Trace, role: RoleId, name: Rc<str>) -> Self {
        RoleCtx { trace, role, name, share: None, brand: PhantomData }
    }

    /// Copies of this role, as declared: engines may run fewer.
    pub(crate) fn declared_copies(&self) -> u32 {
        self.trace.copies_of(self.role)
    }

    /// The number of this role in its kernel.
    pub(crate) fn role_index(&self) -> usize {
        self.role.index()
    }

    /// This role as one of `blocks` blocks that share some work: code traced with it uses `block`, from 0, as its
    /// number. So a schedule written for all blocks of a launch can run on some of them, and a launch can serve several
    /// peers simultaneously.
    ///
    /// ```
    /// use tilewire::{Tensor, kernel};
    /// let y = Tensor::<i64>::zeros(6);
    /// kernel("two groups of three blocks", |k| {
    ///     k.blocks(6);
    ///     let y = k.output(&y);
    ///     k.main(|r| {
    ///         let (group, part) = (r.block() / 3, r.as_block(r.block() % 3, 3));
    ///         y.store(group * part.blocks() + part.block(), group);
    ///     });
    /// })?;
    /// # Ok::<(), tilewire::BuildError>(())
    /// ```
    #[track_caller]
    pub fn as_block(&self, block: impl IntoIndex<'t>, blocks: usize) -> RoleCtx<'t> {
        let at = SourceLine::caller();
        let block = Known::uniform(self.trace, "the number of a block", block, &at).ir(self.trace, &at);
        let share = Some((Value::new(self.trace, block), blocks));
        RoleCtx { trace: self.trace, role: self.role, name: self.name.clone(), share, brand: PhantomData }
    }

    /// Index of this block, from 0.
    #[track_caller]
    pub fn block(&self) -> Value<'t, i64> {
        match self.share {
            Some((block, _)) => block,
            None => self.trace.value(Op::Special(Special::Block), &SourceLine::caller()),
        }
    }

    /// Number of blocks of the launch.
    #[track_caller]
    pub fn blocks(&self) -> Value<'t, i64> {
        match self.share {
            Some((_, blocks)) => self.number(blocks as i64, &SourceLine::caller()),
            None => self.trace.value(Op::Special(Special::Blocks), &SourceLine::caller()),
        }
    }

    /// Name of the role.
    pub fn name(&self) -> &str {
        &self.name
    }

    // ---- elements -----------------------------------------------------------------------------------------------

    /// Runs the body for elements `0..n`, in any order, in parallel. Its effects are visible to the code that follows
    /// in this role.
    #[track_caller]
    pub fn each(&self, n: impl IntoIndex<'t>, body: impl FnOnce(Value<'t, i64>)) {
        let at = SourceLine::caller();
        let (inst, [i, _]) = self.open_each(&[Known::any(self.trace, n, &at)], &at);
        body(i);
        self.close(inst);
    }

    /// Runs the body for every row and column of `rows × cols`, in any order, in parallel.
    #[track_caller]
    pub fn each2(
        &self,
        rows: impl IntoIndex<'t>,
        cols: impl IntoIndex<'t>,
        body: impl FnOnce(Value<'t, i64>, Value<'t, i64>),
    ) {
        let at = SourceLine::caller();
        let extent = [Known::any(self.trace, rows, &at), Known::any(self.trace, cols, &at)];
        let (inst, [row, col]) = self.open_each(&extent, &at);
        body(row, col);
        self.close(inst);
    }

    // Opening and closing a body take no closure, so that they are compiled once and not for every user's body.

    /// Opens the body of an `each` and returns its indices. The instruction to close is `None` if there may be no
    /// `each` here.
    fn open_each(&self, extent: &[Known<'t>], at: &SourceLine) -> (Option<Inst>, [Value<'t, i64>; 2]) {
        let trace = self.trace;
        let extent: Vec<_> = extent.iter().map(|n| n.as_uniform(trace, "the extent of an each", at)).collect();
        if let Some(outer) = trace.each() {
            trace.report(at, MisuseKind::NestedEach { outer });
            return (None, [self.number(0, at); 2]);
        }
        let (inst, indices) = trace.open_loop(ScopeKind::Each, at, &|body| Op::Each { extent: extent.clone(), body });
        (Some(inst), indices.map(|index| Value::new(trace, index)))
    }

    /// Opens the body of a `for_` and returns its index. The instruction to close is `None` if there may be no loop
    /// here.
    fn open_for(&self, [start, end, step]: [Known<'t>; 3], at: &SourceLine) -> (Option<Inst>, Value<'t, i64>) {
        let trace = self.trace;
        if !trace.not_in_each("for_", at) {
            return (None, self.number(0, at));
        }
        if let Known::Number(is @ ..1) = step {
            trace.report(at, MisuseKind::TooSmall { what: "the step of a for_", is: is.into() });
        }
        let start = start.as_uniform(trace, "the start of a for_", at);
        let end = end.as_uniform(trace, "the end of a for_", at);
        let step = step.as_uniform(trace, "the step of a for_", at);
        let (inst, [index, _]) = trace.open_loop(ScopeKind::For, at, &|body| Op::For { start, end, step, body });
        (Some(inst), Value::new(trace, index))
    }

    fn close(&self, inst: Option<Inst>) {
        if let Some(inst) = inst {
            self.trace.close_loop(inst);
        }
    }

    // ---- control flow -------------------------------------------------------------------------------------------

    /// Runs the body if `cond`, a uniform value, holds.
    #[track_caller]
    pub fn if_(&self, cond: impl IntoValue<'t, bool>, then: impl FnOnce()) {
        self.branch(cond, then, || {});
    }

    /// Runs one of the bodies. Results that are needed later go into a [`Var`] or into memory.
    #[track_caller]
    pub fn if_else(&self, cond: impl IntoValue<'t, bool>, then: impl FnOnce(), otherwise: impl FnOnce()) {
        self.branch(cond, then, otherwise);
    }

    #[track_caller]
    fn branch(&self, cond: impl IntoValue<'t, bool>, then: impl FnOnce(), otherwise: impl FnOnce()) {
        let (trace, at) = (self.trace, SourceLine::caller());
        if !trace.not_in_each("if_", &at) {
            then();
            return otherwise();
        }
        let cond = trace.uniform("the condition of an if_", cond.into_ir(trace, &at), &at);
        let then = self.body(ScopeKind::If, &at, then);
        let otherwise = self.body(ScopeKind::If, &at, otherwise);
        trace.place(Op::If { cond, then, otherwise }, &at);
    }

    /// Runs the body for every number of a range, in order. Both ends are uniform: `0..n` if both are Rust integers or
    /// both are values, `..n` from 0, or `(start, end)` of any two kinds of index.
    ///
    /// ```
    /// # use tilewire::kernel;
    /// # kernel("k", |k| k.main(|r| {
    /// r.for_(0..10, |i| { r.var(i); });
    /// r.for_(..r.world_size(), |peer| { r.var(peer); });
    /// r.for_((1, r.world_size()), |peer| { r.var(peer); });
    /// # }))?;
    /// # Ok::<(), tilewire::BuildError>(())
    /// ```
    #[track_caller]
    pub fn for_<R: IntoRange<'t>>(&self, range: R, body: impl FnOnce(Value<'t, i64>)) {
        let (start, end) = range.ends();
        self.for_step(start, end, 1, body);
    }

    /// Runs the body for `start`, `start + step`, … below `end`; `step` is positive.
    #[track_caller]
    pub fn for_step(
        &self,
        start: impl IntoIndex<'t>,
        end: impl IntoIndex<'t>,
        step: impl IntoIndex<'t>,
        body: impl FnOnce(Value<'t, i64>),
    ) {
        let (trace, at) = (self.trace, SourceLine::caller());
        let ends = [Known::any(trace, start, &at), Known::any(trace, end, &at), Known::any(trace, step, &at)];
        let (inst, index) = self.open_for(ends, &at);
        body(index);
        self.close(inst);
    }

    /// Runs the body for this copy's share of the steps `0..n`: copy `g` of `G` takes `g`, `g + G`, ….
    #[track_caller]
    pub fn for_turns(&self, n: impl IntoIndex<'t>, body: impl FnOnce(Value<'t, i64>)) {
        self.for_step(self.copy(), n, self.copies(), body);
    }

    /// Runs the body as long as `cond`, computed again each time, holds.
    ///
    /// ```
    /// # use tilewire::kernel;
    /// # kernel("k", |k| k.main(|r| {
    /// let n = r.var(10i64);
    /// r.while_(|| n.get().gt(0), || n.set(n.get() - 1));
    /// # }))?;
    /// # Ok::<(), tilewire::BuildError>(())
    /// ```
    #[track_caller]
    pub fn while_<C: IntoValue<'t, bool>>(&self, cond: impl FnOnce() -> C, body: impl FnOnce()) {
        let (trace, at) = (self.trace, SourceLine::caller());
        if !trace.not_in_each("while_", &at) {
            cond().into_ir(trace, &at);
            return body();
        }
        let mut holds = None;
        let head = self.body(ScopeKind::While, &at, || {
            let cond = cond().into_ir(trace, &at);
            // Checked while its body is open: the loop that uses it stands outside.
            holds = Some(trace.uniform("the condition of a while_", cond, &at));
        });
        let body = self.body(ScopeKind::While, &at, body);
        trace.place(Op::While { head, cond: holds.expect("the head ran"), body }, &at);
    }

    fn body(&self, kind: ScopeKind, at: &SourceLine, body: impl FnOnce()) -> ir::Region {
        let region = self.trace.open(kind, at);
        body();
        self.trace.close();
        region
    }

    // ---- values -------------------------------------------------------------------------------------------------

    /// A variable with a first value. It keeps its value from one turn of a loop to the next.
    #[track_caller]
    pub fn var<T: Element>(&self, init: impl IntoValue<'t, T>) -> Var<'t, T> {
        let id = self.trace.new_var(self.role, T::TYPE);
        let var = Var { trace: self.trace, id, role: self.role, brand: PhantomData, element: PhantomData };
        var.set(init);
        var
    }

    /// Memory private to this role of this block (and copy); undefined until written.
    #[track_caller]
    pub fn scratch<T: Element>(&self, len: usize) -> View<'t, T> {
        if len == 0 {
            self.trace.report(&SourceLine::caller(), MisuseKind::TooSmall { what: "the length of scratch", is: 0 });
        }
        let id = self.trace.new_scratch(self.role, T::TYPE, len as u64);
        View::of(self.trace, Base::Scratch(id), len, Some(self.role), Access::InOut)
    }

    /// Scratch for values of several types: `put` and `get` by byte, in bank 0. It starts on a cache line.
    #[track_caller]
    pub fn scratch_region(&self, bytes: usize) -> Region<'t> {
        Region::new(Banks::of(self.scratch::<u8>(bytes)))
    }

    /// As [`scratch_region`](Self::scratch_region), but shared by all callers in this role, with the size of the
    /// largest request. For schedules that leave nothing there: however many peers a role serves one after the other,
    /// its scratch does not grow.
    pub(crate) fn passing_region(&self, bytes: usize) -> Region<'t> {
        let id = self.trace.passing_scratch(self.role, bytes as u64);
        Region::new(Banks::of(View::<u8>::of(self.trace, Base::Scratch(id), bytes, Some(self.role), Access::InOut)))
    }

    /// A constant. Rarely needed: a Rust number is accepted wherever a value is.
    #[track_caller]
    pub fn constant<T: Element>(&self, x: T) -> Value<'t, T> {
        self.value(x)
    }

    /// The value of a scalar, read when the launch starts.
    #[track_caller]
    pub fn scalar<T: Element>(&self, scalar: &Scalar<T>) -> Value<'t, T> {
        self.value(scalar)
    }

    /// Converts anything that can be a value to one.
    #[track_caller]
    pub fn value<T: Element>(&self, x: impl IntoValue<'t, T>) -> Value<'t, T> {
        Value::new(self.trace, x.into_ir(self.trace, &SourceLine::caller()))
    }

    fn number(&self, n: i64, at: &SourceLine) -> Value<'t, i64> {
        Value::new(self.trace, self.trace.constant(Type::I64, n as u64, at))
    }
}

macro_rules! specials {
    ($($(#[$doc:meta])* $name:ident => $special:ident;)*) => {
        impl<'t> RoleCtx<'t> {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self) -> Value<'t, i64> {
                self.trace.value(Op::Special(Special::$special), &SourceLine::caller())
            }
        )*}
    };
}

specials! {
    /// Rank of this launch in its world.
    rank => Rank;
    /// Number of ranks in the world.
    world_size => WorldSize;
    /// Index of this copy of the role, from 0.
    copy => Copy;
    /// Number of copies of the role as run (the CPU engine runs one).
    copies => Copies;
}

/// A mutable uniform variable of a role.
pub struct Var<'t, T> {
    trace: &'t Trace,
    id: VarId,
    role: RoleId,
    brand: Brand<'t>,
    element: PhantomData<T>,
}

impl<T> Clone for Var<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Var<'_, T> {}

impl<'t, T: Element> Var<'t, T> {
    /// The current value.
    #[track_caller]
    pub fn get(&self) -> Value<'t, T> {
        let at = SourceLine::caller();
        self.trace.own("variable", self.role, &at);
        self.trace.value(Op::ReadVar(self.id), &at)
    }

    /// Assigns a uniform value. Not inside an `each`.
    #[track_caller]
    pub fn set(&self, x: impl IntoValue<'t, T>) {
        let (trace, at) = (self.trace, SourceLine::caller());
        if !trace.own("variable", self.role, &at) || !trace.not_in_each("the assignment of a variable", &at) {
            return;
        }
        let x = trace.uniform("the value of a variable", x.into_ir(trace, &at), &at);
        trace.emit(Op::WriteVar { var: self.id, x }, &at);
    }
}

/// The ranges of [`RoleCtx::for_`].
pub trait IntoRange<'t> {
    #[doc(hidden)]
    type Start: IntoIndex<'t>;
    #[doc(hidden)]
    type End: IntoIndex<'t>;
    #[doc(hidden)]
    fn ends(self) -> (Self::Start, Self::End);
}

impl<'t, I: IntoIndex<'t>> IntoRange<'t> for Range<I> {
    type Start = I;
    type End = I;
    fn ends(self) -> (I, I) {
        (self.start, self.end)
    }
}

impl<'t, I: IntoIndex<'t>> IntoRange<'t> for RangeTo<I> {
    type Start = i64;
    type End = I;
    fn ends(self) -> (i64, I) {
        (0, self.end)
    }
}

impl<'t, A: IntoIndex<'t>, B: IntoIndex<'t>> IntoRange<'t> for (A, B) {
    type Start = A;
    type End = B;
    fn ends(self) -> (A, B) {
        self
    }
}
