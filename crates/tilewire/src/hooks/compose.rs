//! The composer: a hook, then a transformation of its value.

use super::quantise::{Quantised, Scaled};
use crate::hook::{Ctx, Value};
use crate::ir::scalar::{Element, Float};

/// Every hook of the send leg that returns one value has these methods, including yours: first *where* an element comes
/// from, then *what* becomes of it.
///
/// ```
/// use tilewire::hooks::{self, Compose};
/// use tilewire::{F8E4M3, Tensor, Value, map};
///
/// let (out, inp) = (Tensor::<f32>::zeros(64), Tensor::from_fn(64, |i| i as f32));
/// map(&out, &inp).produce(hooks::gather(|c| c.pos() / 2).then(|x| x + 0.5)).run()?;
/// assert_eq!(out.to_vec()[..4], [0.5, 0.5, 1.5, 1.5]);
///
/// // Your own function works as well as a closure. It names the types of its argument and result.
/// fn squared<'t>(x: Value<'t, f32>) -> Value<'t, f32> {
///     x * x
/// }
/// map(&out, &inp).chunk_shape(4, 16).output_shape(16, 4).produce(hooks::transpose().then(squared)).run()?;
/// assert_eq!(out.to_vec()[..4], [0.0, 256.0, 1024.0, 2304.0]);
///
/// // Transposed, then quantised: groups are of neighbours in the output.
/// map(&out, &inp)
///     .chunk_shape(4, 16)
///     .output_shape(16, 4)
///     .produce2(hooks::transpose().quantised(F8E4M3::MAX, 4))
///     .consume(hooks::dequantise())
///     .run()?;
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub trait Compose<In: Element, Out: Element, A: Element>: for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, A> {
    /// Sends the result of `transform` on the value.
    fn then<B: Element>(
        self,
        transform: impl for<'t> Fn(Value<'t, A>) -> Value<'t, B>,
    ) -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, B>
    where
        Self: Sized,
    {
        move |c| transform(self(c))
    }

    /// Sends the result of `transform` on the value and its context.
    ///
    /// ```
    /// use tilewire::hooks::{self, Compose};
    /// use tilewire::{Tensor, map};
    /// let (out, inp) = (Tensor::<i64>::zeros(3), Tensor::from_slice(&[5i64, 6, 7]));
    /// map(&out, &inp).produce(hooks::copy().then_at(|c, x| x * c.pos())).run()?;
    /// assert_eq!(out.to_vec(), [0, 6, 14]);
    /// # Ok::<(), tilewire::RunError>(())
    /// ```
    fn then_at<B: Element>(
        self,
        transform: impl for<'t> Fn(&Ctx<'t, In, Out>, Value<'t, A>) -> Value<'t, B>,
    ) -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, B>
    where
        Self: Sized,
    {
        move |c| transform(c, self(c))
    }

    /// Sends the value quantised; see [`quantise`](super::quantise()).
    fn quantised<Q: Quantised>(self, largest: Q, group: usize) -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Scaled<'t, Q>
    where
        Self: Sized,
        A: Float,
    {
        move |c| {
            let x = self(c).cast::<f32>();
            // No chunk has more neighbours than fit a u32.
            let group = u32::try_from(group).unwrap_or(u32::MAX);
            // Multiplies by reciprocals, one of them a constant: a division would cost several times the rest.
            let scale = (x.abs().group_max(group) * c.value(largest).cast::<f32>().rcp()).max(f32::MIN_POSITIVE);
            (Q::nearest(x * scale.rcp()), scale)
        }
    }
}

impl<F, In: Element, Out: Element, A: Element> Compose<In, Out, A> for F where
    F: for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, A>
{
}
