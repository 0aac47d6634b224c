//! Quantise before sending, dequantise after receiving: a payload of one byte, and a scale that neighbours share.

use super::compose::Compose;
use super::place::copy;
use crate::hook::{Ctx, Value};
use crate::ir::scalar::{Element, F8E4M3, F8E5M2, Float, Number};

/// Sends every element as a narrow payload and a scale that `group` neighbours share, chosen so that the largest
/// magnitude of the group becomes `largest`, whose type is the payload's. For `produce2`, with [`dequantise`] as
/// `consume`.
///
/// ```
/// use tilewire::{F8E4M3, Tensor, hooks, map};
/// let (out, inp) = (Tensor::<f32>::zeros(256), Tensor::from_fn(256, |i| i as f32 - 100.0));
/// map(&out, &inp).produce2(hooks::quantise(F8E4M3::MAX, 128)).last_per(128).consume(hooks::dequantise()).run()?;
/// assert!((out.get(0) + 100.0).abs() < 1e-4);
///
/// // Eight bits of integer, or only four bits of their range:
/// map(&out, &inp).produce2(hooks::quantise(i8::MAX, 128)).consume(hooks::dequantise()).run()?;
/// map(&out, &inp).produce2(hooks::quantise(7i8, 32)).consume(hooks::dequantise()).run()?;
/// # Ok::<(), tilewire::RunError>(())
/// ```
///
/// In `f32`: `scale = max(|x|) · (1 / largest)`, at least the smallest normal number, so that a group of zeros stays
/// zeros. `payload = x · (1 / scale)`, rounded to nearest even and saturated. A NaN becomes a NaN of the payload (0 for
/// integers) and does not change the scale; an infinity spoils its group.
///
/// With [`last_per(group)`](crate::collective::Exchange::last_per) the scale travels once per group: 1.03 bytes per
/// element with groups of 128. Without it every element carries its own.
///
/// Tiles must not split a group: in a transfer use `.granule(group)` unless 1024 is a multiple of it. To quantise the
/// value of another hook, use [`hook.quantised(largest, group)`](Compose::quantised).
pub fn quantise<In: Float, Out: Element, Q: Quantised>(
    largest: Q,
    group: usize,
) -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Scaled<'t, Q> {
    copy().quantised(largest, group)
}

/// Stores `payload · scale`, computed in `f32` and rounded once to the output's type: the other end of [`quantise`].
///
/// ```
/// # use tilewire::link::{ShmOptions, ShmTransport};
/// # use tilewire::transport::{Rank, World};
/// use tilewire::{Bf16, F8E4M3, Tensor, hooks, recv, send};
/// # let (first, second) = (Rank::new(0), Rank::new(1));
/// # World::threads(2).run(|world| {
/// # let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
/// # let (x, y) = (Tensor::from_fn(64, |i| Bf16::from_f32(i as f32)), Tensor::<Bf16>::zeros(64));
/// # if world.rank() == first {
/// send(&link, &x, second).produce2(hooks::quantise(F8E4M3::MAX, 32)).last_per(32).run()?;
/// # } else {
/// // A receiver alone must name the types that arrive.
/// recv(&link, &y, first).carries::<(F8E4M3, f32)>().last_per(32).consume(hooks::dequantise()).run()?;
/// # assert_eq!(y.get(63).to_f32(), 63.0);
/// # }
/// # Ok(link.close()?) }).unwrap();
/// ```
pub fn dequantise<In: Element, Out: Float, Q: Quantised>() -> impl for<'t> Fn(&Ctx<'t, In, Out>, Scaled<'t, Q>) {
    |c, (payload, scale)| c.output.store(c.pos(), (payload.cast::<f32>() * scale).cast::<Out>())
}

/// A payload and its scale.
pub type Scaled<'t, Q> = (Value<'t, Q>, Value<'t, f32>);

/// The types of a payload.
pub trait Quantised: Number {
    /// The payload nearest to a number, ties to even; numbers beyond the largest payload saturate.
    fn nearest(x: Value<'_, f32>) -> Value<'_, Self>;
}

impl Quantised for F8E4M3 {
    fn nearest(x: Value<'_, f32>) -> Value<'_, Self> {
        x.cast()
    }
}

impl Quantised for F8E5M2 {
    fn nearest(x: Value<'_, f32>) -> Value<'_, Self> {
        x.cast()
    }
}

/// A cast to an integer truncates, so the rounding comes first.
impl Quantised for i8 {
    fn nearest(x: Value<'_, f32>) -> Value<'_, Self> {
        x.round_even().cast()
    }
}
