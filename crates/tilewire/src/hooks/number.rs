//! Hooks that compute with one element at a time.

use super::operand::Operand;
use crate::hook::{Ctx, Value};
use crate::ir::scalar::{Bf16, Element, F8E4M3, F8E5M2, F16, Number};

/// Sends every element times a factor: a constant, a scalar, or an element of a tensor ([`Operand`]).
///
/// ```
/// use tilewire::{Bf16, Scalar, Tensor, hooks, map};
/// let (out, inp) = (Tensor::<f32>::zeros(2), Tensor::from_slice(&[1.0f32, 2.0]));
/// map(&out, &inp).produce(hooks::scale(2.0)).run()?;
/// assert_eq!(out.to_vec(), [2.0, 4.0]);
///
/// // A scalar may change from launch to launch, without a new build.
/// let factor = Scalar::new(10.0f32);
/// let mut scaled = map(&out, &inp).produce(hooks::scale(&factor)).build()?;
/// scaled.run()?;
/// factor.set(100.0);
/// scaled.run()?;
/// assert_eq!(out.to_vec(), [100.0, 200.0]);
///
/// // Narrow floats take a plain number too.
/// let halves = Tensor::from_slice(&[Bf16::from_f32(3.0)]);
/// map(&halves, &halves.clone()).produce(hooks::scale(0.5)).run()?;
/// assert_eq!(halves.get(0).to_f32(), 1.5);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn scale<In: Number, Out: Element>(
    factor: impl Operand<In>,
) -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, In> {
    move |c| c.input.load(c.pos()) * factor.value(c)
}

/// Sends every element plus a number: a constant, a scalar, or an element of a tensor ([`Operand`]). Followed by an
/// activation this is the end of a layer, computed while sending:
///
/// ```
/// use tilewire::hooks::{self, Compose};
/// use tilewire::{Tensor, map};
/// let (out, inp) = (Tensor::<f32>::zeros(4), Tensor::from_slice(&[-1.0f32, 0.0, 1.0, 2.0]));
/// let bias = Tensor::from_slice(&[0.0f32, 3.0]);
/// let hook = hooks::bias(hooks::per_col(&bias)).then(hooks::gelu);
/// map(&out, &inp).chunk_shape(2, 2).produce(hook).run()?;
/// assert!((out.get(3) - 5.0).abs() < 1e-5 && out.get(0) < 0.0);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn bias<In: Number, Out: Element>(number: impl Operand<In>) -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, In> {
    move |c| c.input.load(c.pos()) + number.value(c)
}

/// Sends every element converted to the output's type, rounded once. To send yet another type, compose:
/// `hooks::copy().then(|x| x.cast::<Bf16>())` with [`store`] as `consume`.
///
/// ```
/// use tilewire::{Bf16, Tensor, hooks, map};
/// let (out, inp) = (Tensor::<Bf16>::zeros(2), Tensor::from_slice(&[1.0f32, 1.001]));
/// map(&out, &inp).produce(hooks::cast()).run()?;
/// assert_eq!(out.get(1).to_f32(), 1.0);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn cast<In: Element, Out: Element>() -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, Out> {
    |c| c.input.load(c.pos()).cast()
}

/// Stores the received value, converted to the output's type.
///
/// ```
/// use tilewire::hooks::{self, Compose};
/// use tilewire::{Bf16, Tensor, map};
/// let (out, inp) = (Tensor::<f32>::zeros(2), Tensor::from_slice(&[1.0f32, 1.001]));
/// // Half the bytes on the way.
/// map(&out, &inp).produce(hooks::copy().then(|x| x.cast::<Bf16>())).consume(hooks::store()).run()?;
/// assert_eq!(out.to_vec(), [1.0, 1.0]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn store<In: Element, Out: Element, T: Element>() -> impl for<'t> Fn(&Ctx<'t, In, Out>, Value<'t, T>) {
    |c, x| c.output.store(c.pos(), x.cast::<Out>())
}

/// Adds the received value to the output. The sum is computed in [`Accumulates::Sum`] (`f32` for narrow floats) and
/// rounded once to the output's type, whatever type arrives.
///
/// ```
/// use tilewire::{Bf16, Tensor, hooks, map};
/// let out = Tensor::from_slice(&[1.0f32, 2.0]);
/// let inp = Tensor::from_slice(&[Bf16::from_f32(0.5), Bf16::from_f32(8.0)]);
/// map(&out, &inp).consume(hooks::accumulate()).run()?;
/// assert_eq!(out.to_vec(), [1.5, 10.0]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn accumulate<In: Element, Out: Accumulates, T: Number>() -> impl for<'t> Fn(&Ctx<'t, In, Out>, Value<'t, T>) {
    |c, x| {
        let sum = c.output.load(c.pos()).cast::<Out::Sum>() + x.cast::<Out::Sum>();
        c.output.store(c.pos(), sum.cast::<Out>());
    }
}

/// The type that sums of a type are computed in.
pub trait Accumulates: Number {
    /// `f32` for narrow floats, otherwise the type itself.
    type Sum: Number;
}

macro_rules! accumulates {
    ($($name:ident in $sum:ident),*) => {$(
        impl Accumulates for $name {
            type Sum = $sum;
        }
    )*};
}

accumulates!(F16 in f32, Bf16 in f32, F8E4M3 in f32, F8E5M2 in f32, f32 in f32, f64 in f64);
accumulates!(i8 in i8, i16 in i16, i32 in i32, i64 in i64, u8 in u8, u16 in u16, u32 in u32, u64 in u64);
