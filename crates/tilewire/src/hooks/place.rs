//! Hooks that choose which element is sent for a position, and where a received one is stored. They compute nothing and
//! keep every bit.

use super::operand::Operand;
use crate::hook::{Captured, Ctx, Value};
use crate::ir::scalar::{Element, Integer};
use crate::tensor::Tensor;

/// Sends the element at the same position. This is the default of a collective; here it is a start for composing.
///
/// ```
/// use tilewire::hooks::{self, Compose};
/// use tilewire::{Tensor, map};
/// let (out, inp) = (Tensor::<i32>::zeros(3), Tensor::from_slice(&[1, 2, 3]));
/// map(&out, &inp).produce(hooks::copy()).run()?;
/// assert_eq!(out.to_vec(), [1, 2, 3]);
/// map(&out, &inp).produce(hooks::copy().then(|x| x * x)).run()?;
/// assert_eq!(out.to_vec(), [1, 4, 9]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn copy<In: Element, Out: Element>() -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, In> {
    |c| c.input.load(c.pos())
}

/// Sends a chunk of [`chunk_shape`](crate::collective::Map::chunk_shape)`(rows, cols)` transposed, as `[cols, rows]`.
///
/// ```
/// use tilewire::{Tensor, hooks, map};
/// let (out, inp) = (Tensor::<i32>::zeros(6), Tensor::from_slice(&[1, 2, 3, 4, 5, 6]));
/// map(&out, &inp).chunk_shape(2, 3).output_shape(3, 2).produce(hooks::transpose()).run()?;
/// assert_eq!(out.to_vec(), [1, 4, 2, 5, 3, 6]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn transpose<In: Element, Out: Element>() -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, In> {
    |c| c.input.at(c.col(), c.row())
}

/// Sends a chunk of any number of axes with the axes in another order: axis `k` of the output is axis `axes[k]` of the
/// input, which has the lengths `shape`. Needs no `chunk_shape`. For two axes [`transpose`] is faster.
///
/// ```
/// use tilewire::{Tensor, hooks, map};
/// // [2, 2, 3] to [3, 2, 2]: the last axis first.
/// let (out, inp) = (Tensor::<u32>::zeros(12), Tensor::from_fn(12, |i| i as u32));
/// map(&out, &inp).produce(hooks::permute([2, 2, 3], [2, 0, 1])).run()?;
/// assert_eq!(out.to_vec(), [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn permute<In: Element, Out: Element, const AXES: usize>(
    shape: [usize; AXES],
    axes: [usize; AXES],
) -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, In> {
    move |c| {
        let mut sorted = axes;
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..AXES) || shape.iter().product::<usize>() != c.input.len() {
            let len = c.input.len();
            c.refuse(format!(
                "permute: {shape:?} by {axes:?} is not a permutation of the axes of a chunk of {len} elements"
            ));
            return c.input.load(c.pos());
        }
        let stride = |axis: usize| shape[axis + 1..].iter().product::<usize>() as i64;
        // The last axis of the output runs fastest: its coordinate is the remainder, and so on backwards.
        let (mut rest, mut index) = (c.pos(), c.value(0i64));
        for axis in axes.into_iter().rev() {
            index = index + rest % shape[axis] as i64 * stride(axis);
            rest = rest / shape[axis] as i64;
        }
        c.input.load(index)
    }
}

/// Sends the element at the index that the closure returns. On a CPU an index out of bounds ends the launch with an
/// error.
///
/// Start here to compose: *where* an element comes from, then *what* becomes of it
/// ([`Compose::then`](super::Compose::then)).
///
/// ```
/// use tilewire::hooks::{self, Compose};
/// use tilewire::{Tensor, map};
/// let (out, inp) = (Tensor::<f32>::zeros(4), Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0]));
/// map(&out, &inp).produce(hooks::gather(|c| 3 - c.pos()).then(|x| x.max(2.0) * 10.0)).run()?;
/// assert_eq!(out.to_vec(), [40.0, 30.0, 20.0, 20.0]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn gather<In: Element, Out: Element, I: Integer>(
    index: impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, I>,
) -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, In> {
    move |c| c.input.load(index(c))
}

/// Sends element `index[pos]` for position `pos`. The tensor lives on the sender and is read at every launch. The
/// output may be longer or shorter than the input (set [`send_len`](crate::collective::Exchange::send_len) in a
/// transfer).
///
/// ```
/// use tilewire::{Tensor, hooks, map};
/// let (inp, index) = (Tensor::from_slice(&[10.0f32, 20.0, 30.0]), Tensor::from_slice(&[2i32, 2, 0, 1]));
/// let out = Tensor::<f32>::zeros(4);
/// map(&out, &inp).produce(hooks::gather_by(&index)).run()?;
/// assert_eq!(out.to_vec(), [30.0, 30.0, 10.0, 20.0]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn gather_by<In: Element, Out: Element, I: Integer>(
    index: &Tensor<I>,
) -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, In> {
    move |c| c.input.load(index.at(c.pos()))
}

/// Sends the element at the same position if the condition holds, otherwise `other`. Masked elements are not even read.
///
/// ```
/// use tilewire::{Tensor, hooks, map};
/// let (out, inp) = (Tensor::<f32>::zeros(9), Tensor::from_fn(9, |i| i as f32 + 1.0));
/// // A causal mask.
/// map(&out, &inp)
///     .chunk_shape(3, 3)
///     .produce(hooks::mask(|c| c.col().le(c.row()), f32::NEG_INFINITY))
///     .run()?;
/// assert_eq!(out.to_vec()[..5], [1.0, f32::NEG_INFINITY, f32::NEG_INFINITY, 4.0, 5.0]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn mask<In: Element, Out: Element>(
    condition: impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, bool>,
    other: impl Operand<In>,
) -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, In> {
    move |c| c.input.load_if(condition(c), c.pos(), other.value(c))
}

/// Stores the value received for a position at the index that the closure returns. Two positions with one index race.
///
/// ```
/// use tilewire::{Tensor, hooks, map};
/// let (out, inp) = (Tensor::<i32>::zeros(6), Tensor::from_slice(&[1, 2, 3]));
/// // Three elements arrive, for the first three of the output.
/// map(&out.slice(0..3), &inp).consume(hooks::scatter(|c| 2 - c.pos())).run()?;
/// assert_eq!(out.to_vec(), [3, 2, 1, 0, 0, 0]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn scatter<In: Element, Out: Element, I: Integer>(
    index: impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, I>,
) -> impl for<'t> Fn(&Ctx<'t, In, Out>, Value<'t, Out>) {
    move |c, x| c.output.store(index(c), x)
}

/// Stores the value received for position `pos` at `index[pos]`. The tensor lives on the receiver and is read at every
/// launch. No index may occur twice.
///
/// ```
/// use tilewire::{Tensor, hooks, map};
/// let (out, inp) = (Tensor::<f32>::zeros(3), Tensor::from_slice(&[10.0f32, 20.0, 30.0]));
/// let index = Tensor::from_slice(&[2i64, 0, 1]);
/// map(&out, &inp).consume(hooks::scatter_by(&index)).run()?;
/// assert_eq!(out.to_vec(), [20.0, 30.0, 10.0]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn scatter_by<In: Element, Out: Element, I: Integer>(
    index: &Tensor<I>,
) -> impl for<'t> Fn(&Ctx<'t, In, Out>, Value<'t, Out>) {
    move |c, x| c.output.store(index.at(c.pos()), x)
}

/// Stores the received value only if the condition holds; otherwise the output stays as it is.
///
/// ```
/// use tilewire::{Tensor, hooks, map};
/// let (out, inp) = (Tensor::from_slice(&[7, 7, 7, 7]), Tensor::from_slice(&[1, 2, 3, 4]));
/// map(&out, &inp).consume(hooks::keep(|c| (c.pos() % 2).eq(0))).run()?;
/// assert_eq!(out.to_vec(), [1, 7, 3, 7]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn keep<In: Element, Out: Element>(
    condition: impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, bool>,
) -> impl for<'t> Fn(&Ctx<'t, In, Out>, Value<'t, Out>) {
    move |c, x| c.output.store_if(condition(c), c.pos(), x)
}
