//! Typed memory as a kernel sees it: one-dimensional views, and two-dimensional ones on top of them.

use super::error::MisuseKind;
use super::legs::Holds;
use super::trace::Trace;
use super::value::{IntoIndex, IntoValue, Known, Value, number};
use crate::ir::scalar::{Element, Integer};
use crate::ir::{self, Access, Base, BinaryOp, Mask, Op, Order, Place, RoleId, Scope, SourceLine, Type};
use crate::tensor::{AnyTensor, Grid, Tensor};
use std::marker::PhantomData;

/// Elements `0..len` of a buffer or of scratch.
///
/// A tensor with a row stride is numbered without its gaps, row after row: element `i` is in row `i / cols`. Each
/// access divides, so prefer [`matrix`](View::matrix), which takes rows and columns.
///
/// ```
/// use tilewire::{Tensor, kernel};
/// let (x, y) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(64));
/// let traced = kernel("double", |k| {
///     let (x, y) = (k.input(&x), k.output(&y));
///     k.main(|r| r.each(x.len(), |i| y.store(i, x.load(i) * 2.0)));
/// })?;
/// assert_eq!(traced.kernel.params.len(), 2);
/// # Ok::<(), tilewire::BuildError>(())
/// ```
pub struct View<'t, T> {
    pub(crate) trace: &'t Trace,
    base: Base,
    bank: Option<ir::Value>,
    /// The element of the base that is element 0 of the view.
    start: Known<'t>,
    len: usize,
    /// The role that owns the scratch.
    role: Option<RoleId>,
    access: Access,
    holds: Holds,
    /// Rows and columns of the tensor, if it has more than one row. Its elements are counted from the base's first.
    grid: Option<Grid>,
    element: PhantomData<T>,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

impl<'t, T> View<'t, T> {
    pub(crate) fn of(trace: &'t Trace, base: Base, len: usize, role: Option<RoleId>, access: Access) -> Self {
        let (start, holds) = (Known::Number(0), Holds::Other);
        View { trace, base, bank: None, start, len, role, access, holds, grid: None, element: PhantomData }
    }

    /// The elements of a tensor with these rows and columns.
    fn gridded(self, grid: Grid) -> Self {
        View { len: grid.len(), grid: (grid.rows > 1).then_some(grid), ..self }
    }

    /// The rows and columns, if positions are not places.
    fn gaps(&self) -> Option<Grid> {
        self.grid.filter(|grid| !grid.is_contiguous())
    }

    /// The elements of the base as they lie in memory, gaps included.
    fn places(self, grid: Grid) -> Self {
        View { start: Known::Number(0), len: grid.span(), grid: None, ..self }
    }

    /// The same memory with elements of another type, or of one that is known only while tracing.
    pub(crate) fn retyped<U>(self) -> View<'t, U> {
        let View { trace, base, bank, start, len, role, access, holds, grid, .. } = self;
        View { trace, base, bank, start, len, role, access, holds, grid, element: PhantomData }
    }

    /// The same memory, with its role for the hooks of a collective.
    pub(crate) fn held_as(self, holds: Holds) -> Self {
        View { holds, ..self }
    }

    pub(crate) fn in_bank(self, bank: Option<ir::Value>) -> Self {
        View { bank, ..self }
    }

    /// The same memory as a chunk of another length, for a context that has no chunk of its own there. Elements beyond
    /// the real one are reported as out of bounds when they are touched.
    pub(crate) fn resized(self, len: usize) -> Self {
        View { len, grid: None, ..self }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the parameter a name for messages and for the text of the kernel.
    pub fn named(self, name: &str) -> Self {
        if let Base::Param(param) = self.base {
            self.trace.rename(param, name);
        }
        self
    }

    /// Elements `start .. start + len` as their own view; `start` is uniform.
    #[track_caller]
    pub fn part(&self, start: impl IntoIndex<'t>, len: usize) -> View<'t, T> {
        let at = SourceLine::caller();
        let constant = start.number();
        if len > self.len || constant.is_some_and(|n| n < 0 || n + len as i128 > self.len as i128) {
            let start = constant.unwrap_or(0);
            let index = if start < 0 { start } else { start.max(start + len as i128 - 1) };
            self.trace.report(&at, MisuseKind::OutOfBounds { index, len: self.len });
        }
        let start = Known::uniform(self.trace, "start of a part", start, &at);
        let start = match (self.start, start) {
            (Known::Number(0), start) | (start, Known::Number(0)) => start,
            (Known::Number(a), Known::Number(b)) => Known::Number(a.saturating_add(b)),
            (a, b) => {
                let (a, b) = (a.ir(self.trace, &at), b.ir(self.trace, &at));
                Known::Value(self.trace.value(Op::Binary { op: BinaryOp::Add, a, b }, &at))
            }
        };
        View { start, len, ..*self }
    }

    /// The view as `rows` rows of `cols` elements; `rows * cols` must be its length.
    #[track_caller]
    pub fn shape(&self, rows: usize, cols: usize) -> View2<'t, T> {
        let (fits, at) = (rows.checked_mul(cols) == Some(self.len), SourceLine::caller());
        match self.gaps() {
            Some(grid) => self.with_gaps(grid, (rows, cols), &at),
            None => self.shaped(rows, cols, cols, fits, &at),
        }
    }

    /// The view with the rows and columns of its tensor. One dimension is one row.
    ///
    /// ```
    /// use tilewire::{Tensor, kernel, prepare};
    /// let matrix = Tensor::from_fn(12, |i| i as f32).reshape(3, 4)?;
    /// let (left, right) = (matrix.columns(0..2), matrix.columns(2..4));
    /// let traced = kernel("add halves", |k| {
    ///     let (x, y) = (k.input(&right).matrix(), k.inout(&left).matrix());
    ///     k.main(|r| r.each2(y.rows(), y.cols(), |row, col| y.store(row, col, y.at(row, col) + x.at(row, col))));
    /// })?;
    /// prepare(&traced)?.run()?;
    /// assert_eq!(matrix.to_vec(), [2.0, 4.0, 2.0, 3.0, 10.0, 12.0, 6.0, 7.0, 18.0, 20.0, 10.0, 11.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn matrix(&self) -> View2<'t, T> {
        match self.grid {
            Some(Grid { rows, cols, .. }) => self.shape(rows, cols),
            None => self.shape(1, self.len),
        }
    }

    /// The rows and columns of a tensor with gaps between its rows: no others.
    fn with_gaps(&self, grid: Grid, (rows, cols): (usize, usize), at: &SourceLine) -> View2<'t, T> {
        let is_whole = matches!(self.start, Known::Number(0)) && self.len == grid.len();
        if !is_whole || (rows, cols) != (grid.rows, grid.cols) {
            self.trace.report(at, MisuseKind::Gaps { rows: grid.rows, cols: grid.cols, stride: grid.stride });
        }
        View2 { view: *self, rows, cols, stride: grid.stride }
    }

    /// [`View::shape`] for a chunk of the input or output of a collective, whose shape the user gave at line `at`.
    pub(crate) fn chunk_shape(&self, of: &'static str, (rows, cols): (usize, usize), at: &SourceLine) -> View2<'t, T> {
        if rows.checked_mul(cols) != Some(self.len) {
            let (elements, len) = (rows.saturating_mul(cols), self.len);
            self.trace.report(at, MisuseKind::ChunkShape { of, elements, len });
        }
        match self.gaps() {
            Some(grid) => self.with_gaps(grid, (rows, cols), at),
            None => View2 { view: *self, rows, cols, stride: cols },
        }
    }

    /// The view as `rows` rows of `cols` elements whose first elements are `stride` apart.
    #[track_caller]
    pub fn shape_strided(&self, rows: usize, cols: usize, stride: usize) -> View2<'t, T> {
        let end = rows.saturating_sub(1).checked_mul(stride).and_then(|n| n.checked_add(cols));
        let fits = rows == 0 || cols == 0 || (stride >= cols && end.is_some_and(|end| end <= self.len));
        let at = SourceLine::caller();
        match self.gaps() {
            Some(grid) if grid.stride == stride => self.with_gaps(grid, (rows, cols), &at),
            // No such rows: reported.
            Some(grid) => self.with_gaps(grid, (0, 0), &at),
            None => self.shaped(rows, cols, stride, fits, &at),
        }
    }

    fn shaped(&self, rows: usize, cols: usize, stride: usize, fits: bool, at: &SourceLine) -> View2<'t, T> {
        if !fits {
            self.trace.report(at, MisuseKind::Shape { rows, cols, stride, len: self.len });
        }
        View2 { view: *self, rows, cols, stride }
    }

    /// The place of element `i`, checked as far as possible while tracing.
    pub(crate) fn place(&self, i: impl IntoIndex<'t>, touch: Touch, at: &SourceLine) -> Place {
        let trace = self.trace;
        if let Some(role) = self.role {
            trace.own("scratch", role, at);
        }
        let allowed = self.holds == Holds::Other || trace.touches(self.holds, touch, at);
        if allowed && touch.writes() && self.access == Access::In {
            let name = match self.base {
                Base::Param(param) => trace.kernel().params[param].name().to_string(),
                Base::Scratch(scratch) => scratch.to_string(),
            };
            trace.report(at, MisuseKind::StoreToInput { name });
        }
        let is_number = i.number().is_some_and(|n| i64::try_from(n).is_ok());
        let index = match (self.start, i.number()) {
            (Known::Number(start), Some(n)) if i64::try_from(n).is_ok() => {
                if touch.is_certain() {
                    self.in_bounds(n, at);
                }
                let position = start as i128 + n;
                let place = self.gaps().and_then(|grid| {
                    let inside = usize::try_from(position).ok().filter(|&position| position < grid.len());
                    inside.map(|position| grid.place(position) as i128)
                });
                // A place outside of the view, for a column that does not exist.
                let place = if self.gaps().is_some() { place.unwrap_or(-1) } else { position };
                number(trace, place, Type::I64, at)
            }
            (Known::Number(0), _) => i.into_index(trace, Type::I64, at),
            (start, _) => {
                let (a, b) = (start.ir(trace, at), i.into_index(trace, Type::I64, at));
                trace.raw(Op::Binary { op: BinaryOp::Add, a, b }, at)
            }
        };
        let is_constant = matches!(self.start, Known::Number(_)) && is_number;
        let index = match self.gaps() {
            Some(grid) if !is_constant => place_of(Value::new(trace, index), grid).ir,
            _ => index,
        };
        Place { base: self.base, bank: self.bank, index }
    }

    /// The place of element 0, which may be one past a view of no elements, for an operation on the bytes that follow.
    pub(crate) fn first(&self, touch: Touch, at: &SourceLine) -> Place {
        if let Some(Grid { rows, cols, stride }) = self.gaps() {
            self.trace.report(at, MisuseKind::Gaps { rows, cols, stride });
        }
        View { len: self.len.max(1), grid: None, ..*self }.place(0, touch, at)
    }

    fn in_bounds(&self, index: i128, at: &SourceLine) {
        if !(0..self.len as i128).contains(&index) {
            self.trace.report(at, MisuseKind::OutOfBounds { index, len: self.len });
        }
    }
}

impl<'t, T: Element> View<'t, T> {
    /// Element `i`. In an `each` the result is a lane value, outside it is uniform.
    #[track_caller]
    pub fn load(&self, i: impl IntoIndex<'t>) -> Value<'t, T> {
        let at = SourceLine::caller();
        let place = self.place(i, Touch::Read, &at);
        self.trace.value(Op::Load { at: place, mask: None }, &at)
    }

    /// Element `i`; the same as [`View::load`].
    #[track_caller]
    pub fn at(&self, i: impl IntoIndex<'t>) -> Value<'t, T> {
        self.load(i)
    }

    /// Element `i` if `cond` holds, otherwise `other`; then nothing is read and `i` may be out of bounds.
    #[track_caller]
    pub fn load_if(
        &self,
        cond: impl IntoValue<'t, bool>,
        i: impl IntoIndex<'t>,
        other: impl IntoValue<'t, T>,
    ) -> Value<'t, T> {
        let at = SourceLine::caller();
        let mask = Mask { cond: cond.into_ir(self.trace, &at), other: other.into_ir(self.trace, &at) };
        let place = self.place(i, Touch::ReadIf, &at);
        self.trace.value(Op::Load { at: place, mask: Some(mask) }, &at)
    }

    /// Writes element `i`. Outside an `each` one lane writes.
    #[track_caller]
    pub fn store(&self, i: impl IntoIndex<'t>, x: impl IntoValue<'t, T>) {
        let at = SourceLine::caller();
        let x = x.into_ir(self.trace, &at);
        let place = self.place(i, Touch::Write, &at);
        self.trace.emit(Op::Store { at: place, x, mask: None }, &at);
    }

    /// Writes element `i` if `cond` holds; otherwise `i` may be out of bounds.
    #[track_caller]
    pub fn store_if(&self, cond: impl IntoValue<'t, bool>, i: impl IntoIndex<'t>, x: impl IntoValue<'t, T>) {
        let at = SourceLine::caller();
        let (mask, x) = (Some(cond.into_ir(self.trace, &at)), x.into_ir(self.trace, &at));
        let place = self.place(i, Touch::WriteIf, &at);
        self.trace.emit(Op::Store { at: place, x, mask }, &at);
    }
}

/// The kind of an access. A masked one may be masked off exactly where it would be out of bounds, so its index is not
/// checked.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Touch {
    Read,
    ReadIf,
    Write,
    WriteIf,
}

impl Touch {
    pub(super) fn writes(self) -> bool {
        matches!(self, Touch::Write | Touch::WriteIf)
    }

    fn is_certain(self) -> bool {
        matches!(self, Touch::Read | Touch::Write)
    }
}

/// Atomics exist for 32- and 64-bit integers.
pub trait Atomic: Integer {}
impl Atomic for i32 {}
impl Atomic for u32 {}
impl Atomic for i64 {}
impl Atomic for u64 {}

impl<'t, T: Atomic> View<'t, T> {
    /// Adds to element `i` atomically and returns the old value.
    #[track_caller]
    pub fn atomic_add(
        &self,
        i: impl IntoIndex<'t>,
        x: impl IntoValue<'t, T>,
        order: Order,
        scope: Scope,
    ) -> Value<'t, T> {
        let at = SourceLine::caller();
        let x = x.into_ir(self.trace, &at);
        let place = self.place(i, Touch::Write, &at);
        self.trace.value(Op::AtomicAdd { at: place, x, mask: None, order, scope }, &at)
    }

    /// Adds to element `i` atomically if `cond` holds and returns the old value; 0 if it does not.
    #[track_caller]
    pub fn atomic_add_if(
        &self,
        cond: impl IntoValue<'t, bool>,
        i: impl IntoIndex<'t>,
        x: impl IntoValue<'t, T>,
        order: Order,
        scope: Scope,
    ) -> Value<'t, T> {
        let at = SourceLine::caller();
        let (mask, x) = (Some(cond.into_ir(self.trace, &at)), x.into_ir(self.trace, &at));
        let place = self.place(i, Touch::WriteIf, &at);
        self.trace.value(Op::AtomicAdd { at: place, x, mask, order, scope }, &at)
    }
}

/// The place of a position in a tensor with gaps. One outside has a place outside.
#[track_caller]
fn place_of<'t>(position: Value<'t, i64>, Grid { cols, stride, .. }: Grid) -> Value<'t, i64> {
    match (cols, stride) {
        (cols, 0) => position % cols as i64,
        (1, stride) => position * stride as i64,
        (cols, stride) => position / cols as i64 * stride as i64 + position % cols as i64,
    }
}

/// A view with rows and columns.
///
/// ```
/// use tilewire::{Tensor, kernel};
/// let (x, y) = (Tensor::<f32>::zeros(6), Tensor::<f32>::zeros(6));
/// kernel("transpose", |k| {
///     let (x, y) = (k.input(&x).shape(2, 3), k.output(&y).shape(3, 2));
///     k.main(|r| r.each2(y.rows(), y.cols(), |row, col| y.store(row, col, x.at(col, row))));
/// })?;
/// # Ok::<(), tilewire::BuildError>(())
/// ```
pub struct View2<'t, T> {
    view: View<'t, T>,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<T> Clone for View2<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View2<'_, T> {}

impl<'t, T> View2<'t, T> {
    pub(crate) fn retyped<U>(self) -> View2<'t, U> {
        let View2 { view, rows, cols, stride } = self;
        View2 { view: view.retyped(), rows, cols, stride }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Distance between the first elements of two neighbouring rows.
    pub fn row_stride(&self) -> usize {
        self.stride
    }

    /// The elements in one dimension.
    pub fn flat(&self) -> View<'t, T> {
        self.view
    }

    /// `row * stride + col`.
    #[track_caller]
    fn index(&self, row: impl IntoIndex<'t>, col: impl IntoIndex<'t>, touch: Touch) -> Value<'t, i64> {
        let (at, trace) = (SourceLine::caller(), self.view.trace);
        for (number, extent) in [(row.number(), self.rows), (col.number(), self.cols)] {
            if let Some(index) = number.filter(|n| touch.is_certain() && !(0..extent as i128).contains(n)) {
                trace.report(&at, MisuseKind::OutOfBounds { index, len: extent });
            }
        }
        let constant = col.number();
        let row = Value::<i64>::new(trace, row.into_index(trace, Type::I64, &at));
        let col = Value::<i64>::new(trace, col.into_index(trace, Type::I64, &at));
        match self.stride {
            0 if self.has_gaps() => col,
            1 if !self.has_gaps() => row + col,
            stride => {
                let place = row * stride as i64 + col;
                let inside = constant.is_some_and(|n| (0..self.cols as i128).contains(&n));
                if !self.has_gaps() || inside || trace.is_below(col.ir, self.cols) {
                    return place;
                }
                // Bytes between the rows belong to others, so a column that does not exist must not reach them.
                (col.ge(0) & col.lt(self.cols as i64)).select(place, -1)
            }
        }
    }

    /// True if positions are not places.
    pub(crate) fn has_gaps(&self) -> bool {
        self.view.gaps().is_some()
    }

    /// The memory that [`index`](View2::index) counts in.
    fn places(&self) -> View<'t, T> {
        self.view.gaps().map_or(self.view, |grid| self.view.places(grid))
    }

    /// The place of the element in a row and a column.
    pub(crate) fn place(&self, row: Value<'t, i64>, col: Value<'t, i64>, touch: Touch, at: &SourceLine) -> Place {
        self.places().place(self.index(row, col, touch), touch, at)
    }
}

impl<'t, T: Element> View2<'t, T> {
    /// The element in row `row` and column `col`.
    #[track_caller]
    pub fn at(&self, row: impl IntoIndex<'t>, col: impl IntoIndex<'t>) -> Value<'t, T> {
        self.places().load(self.index(row, col, Touch::Read))
    }

    /// The element in row `row` and column `col`; the same as [`View2::at`].
    #[track_caller]
    pub fn load(&self, row: impl IntoIndex<'t>, col: impl IntoIndex<'t>) -> Value<'t, T> {
        self.at(row, col)
    }

    /// The element if `cond` holds, otherwise `other`; then nothing is read.
    #[track_caller]
    pub fn load_if(
        &self,
        cond: impl IntoValue<'t, bool>,
        row: impl IntoIndex<'t>,
        col: impl IntoIndex<'t>,
        other: impl IntoValue<'t, T>,
    ) -> Value<'t, T> {
        self.places().load_if(cond, self.index(row, col, Touch::ReadIf), other)
    }

    /// Writes the element in row `row` and column `col`.
    #[track_caller]
    pub fn store(&self, row: impl IntoIndex<'t>, col: impl IntoIndex<'t>, x: impl IntoValue<'t, T>) {
        self.places().store(self.index(row, col, Touch::Write), x);
    }

    /// Writes the element if `cond` holds.
    #[track_caller]
    pub fn store_if(
        &self,
        cond: impl IntoValue<'t, bool>,
        row: impl IntoIndex<'t>,
        col: impl IntoIndex<'t>,
        x: impl IntoValue<'t, T>,
    ) {
        self.places().store_if(cond, self.index(row, col, Touch::WriteIf), x);
    }
}

/// Reads a tensor that the kernel's closure captured, which makes it an input. The index is a traced value; for a
/// constant one use [`Ctx::captured`](super::Ctx::captured) or [`Block::input`](super::Block::input).
///
/// ```
/// use tilewire::{Tensor, kernel, prelude::*};
/// let (scale, y) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(64));
/// let traced = kernel("copy", |k| {
///     let y = k.output(&y);
///     k.main(|r| r.each(y.len(), |i| y.store(i, scale.at(i))));
/// })?;
/// assert_eq!(traced.args.len(), 2);
/// # Ok::<(), tilewire::BuildError>(())
/// ```
pub trait Captured<T: Element> {
    /// Element `i`.
    #[track_caller]
    fn at<'t, I: Integer>(&self, i: Value<'t, I>) -> Value<'t, T>;
}

impl<T: Element> Captured<T> for Tensor<T> {
    #[track_caller]
    fn at<'t, I: Integer>(&self, i: Value<'t, I>) -> Value<'t, T> {
        input(i.trace, self).load(i)
    }
}

/// A tensor that a closure captured, as an input of the kernel.
pub(crate) fn input<'t, T: Element>(trace: &'t Trace, tensor: &Tensor<T>) -> View<'t, T> {
    named_argument(trace, tensor.name().unwrap_or("captured"), tensor, Access::In)
}

/// The tensor as an argument of the kernel, with elements of any type.
pub(crate) fn any_argument<'t>(trace: &'t Trace, tensor: &AnyTensor, access: Access) -> View<'t, ()> {
    let (name, memory) = (tensor.name().unwrap_or(""), std::slice::from_ref(tensor.memory()));
    let grid = tensor.grid();
    let param = trace.buffer(name, tensor.ty(), memory, grid.span(), access);
    trace.mark_tensor(param);
    View::of(trace, Base::Param(param), grid.span(), None, access).gridded(grid)
}

/// The tensor as an argument of the kernel. The parameter's access widens if a tensor is used in several ways.
#[track_caller]
pub(crate) fn argument<'t, T: Element>(trace: &'t Trace, tensor: &Tensor<T>, access: Access) -> View<'t, T> {
    named_argument(trace, tensor.name().unwrap_or(""), tensor, access)
}

#[track_caller]
fn named_argument<'t, T: Element>(trace: &'t Trace, name: &str, tensor: &Tensor<T>, access: Access) -> View<'t, T> {
    let grid = tensor.grid();
    if grid.is_expanded() && access != Access::In {
        trace.report(&SourceLine::caller(), MisuseKind::Expanded { rows: grid.rows });
    }
    let param = trace.buffer(name, T::TYPE, std::slice::from_ref(tensor.memory()), grid.span(), access);
    trace.mark_tensor(param);
    View::of(trace, Base::Param(param), grid.span(), None, access).gridded(grid)
}
