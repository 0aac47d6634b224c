//! Hooks of the library, given to exchanges and reductions of any element type.

use super::case::Case;
use super::data::{GROUP, bias_of, factor, number, weight_of};
use super::hook::{Hook, axes, gathered_from, norm_row, scattered_to, square};
use tilewire::collective::{Exchange, PreparedExchange, Reducible, Reduction};
use tilewire::hooks::{self, Accumulates, Compose};
use tilewire::ir::scalar::{Arithmetic, Element, Float};
use tilewire::link::{AnyTransport, Tensors};
use tilewire::{Bf16, F8E4M3, F8E5M2, F16, RunError, Scalar, Tensor};

type Built<'l> = Result<PreparedExchange<'l>, RunError>;

/// The case and transport of a hook.
pub(super) struct Given<'a> {
    pub link: &'a AnyTransport,
    pub case: &'a Case,
}

impl Given<'_> {
    /// A tensor in the memory of the kernels.
    fn tensor<T: Element>(&self, len: usize, of: impl Fn(usize) -> T) -> Result<Tensor<T>, RunError> {
        Ok(self.link.tensor(&(0..len).map(of).collect::<Vec<T>>())?)
    }
}

/// Elements of any type. Ops that are undefined for one are here only so that there is one list of types: code that
/// makes a case asks [`Hook::takes`].
pub(super) trait Sample: Element {
    /// The output type of [`Hook::Cast`].
    type Other: Sample + Reducible;
    /// The exchange with its hook.
    fn exchange<'l>(builder: Exchange<'_, 'l, Self, Self>, given: &Given<'_>) -> Built<'l>;
    /// The reduction with its hook.
    fn reduction<'l>(builder: Reduction<'_, 'l, Self, Self>, given: &Given<'_>) -> Built<'l>;
    /// Sum on the host.
    fn plus(self, other: Self) -> Self;
    /// Product on the host.
    fn times(self, other: Self) -> Self;
}

/// Casts while sending.
pub(super) fn cast_exchange<'l, T: Sample>(builder: Exchange<'_, 'l, T, T::Other>) -> Built<'l> {
    builder.produce(hooks::cast()).build()
}

/// Casts, and reduces the results.
pub(super) fn cast_reduction<'l, T: Sample>(builder: Reduction<'_, 'l, T, T::Other>) -> Built<'l> {
    builder.produce(hooks::cast()).build()
}

/// The hooks common to exchanges and reductions: the two builder types have the same methods.
macro_rules! hooks_of {
    ($Builder:ident: $places:ident $Any:path, $numbers:ident $Number:path, $floats:ident $Float:path) => {
        /// Hooks that choose.
        fn $places<'l, T: $Any>(builder: $Builder<'_, 'l, T, T>, given: &Given<'_>) -> Built<'l> {
            let len = given.case.len;
            match given.case.hook {
                Hook::Copy => builder.build(),
                Hook::Transpose => {
                    let (rows, cols) = square(len);
                    builder.chunk_shape(rows, cols).output_shape(cols, rows).produce(hooks::transpose()).build()
                }
                Hook::Permute => builder.produce(hooks::permute(axes(len), [2, 0, 1])).build(),
                Hook::Gather => {
                    let index = given.tensor(len, |pos| gathered_from(len, pos) as i32)?;
                    builder.produce(hooks::gather_by(&index)).build()
                }
                Hook::Scatter => {
                    let index = given.tensor(len, |pos| scattered_to(len, pos) as u32)?;
                    builder.consume(hooks::scatter_by(&index)).build()
                }
                Hook::Mask => builder.produce(hooks::mask(|c| (c.pos() % 5).ne(0), factor::<T>())).build(),
                Hook::Keep => builder.consume(hooks::keep(|c| (c.pos() % 3).ne(0))).build(),
                other => unreachable!("{other:?} is not for {}", T::TYPE),
            }
        }

        /// Hooks that compute with any number.
        fn $numbers<'l, T: $Number>(builder: $Builder<'_, 'l, T, T>, given: &Given<'_>) -> Built<'l> {
            match given.case.hook {
                Hook::Scale => {
                    let factor = Scalar::new(factor::<T>());
                    builder.produce(hooks::scale(&factor)).build()
                }
                Hook::Accumulate => builder.consume(hooks::accumulate()).build(),
                Hook::Compose => {
                    let last = given.case.len as i64 - 1;
                    builder.produce(hooks::gather(|c| last - c.pos()).then(|x| x + x)).build()
                }
                _ => $places(builder, given),
            }
        }

        /// Hooks that compute with floats.
        fn $floats<'l, T: $Float>(builder: $Builder<'_, 'l, T, T>, given: &Given<'_>) -> Built<'l> {
            let ((rows, cols), row) = (square(given.case.len), norm_row(given.case.len));
            match given.case.hook {
                Hook::BiasGelu => {
                    let bias = given.tensor(cols, |col| number::<T>(bias_of(col)))?;
                    let hook = hooks::bias(hooks::per_col(&bias)).then(hooks::gelu);
                    builder.chunk_shape(rows, cols).produce(hook).build()
                }
                Hook::Swiglu => {
                    builder.chunk_shape(rows, 2 * cols).output_shape(rows, cols).produce(hooks::swiglu()).build()
                }
                Hook::RmsNorm => {
                    let weight = given.tensor(row, weight_of)?;
                    builder.granule(row).produce(hooks::rms_norm(&weight, EPSILON)).build()
                }
                _ => $numbers(builder, given),
            }
        }
    };
}

hooks_of!(Exchange: places Element, numbers Accumulating, floats Floating);
hooks_of!(Reduction: reduced_places Reducible, reduced_numbers Accumulating, reduced_floats Floating);

/// The epsilon of a root mean square.
pub(super) const EPSILON: f32 = 1e-5;

/// Numbers that can be reduced and accumulated: all of them.
trait Accumulating: Accumulates + Reducible {}
impl<T: Accumulates + Reducible> Accumulating for T {}

/// All floats.
trait Floating: Accumulating + Float {}
impl<T: Accumulating + Float> Floating for T {}

/// Hooks on both legs, with another payload type between them.
fn packed<'l, T: Floating>(builder: Exchange<'_, 'l, T, T>, given: &Given<'_>) -> Built<'l> {
    match given.case.hook {
        Hook::Quantise => {
            builder.produce2(hooks::quantise(F8E4M3::MAX, GROUP)).last_per(GROUP).consume(hooks::dequantise()).build()
        }
        Hook::QuantiseI8 => builder.produce2(hooks::quantise(i8::MAX, GROUP)).consume(hooks::dequantise()).build(),
        Hook::Narrow => builder.produce(hooks::copy().then(|x| x.cast::<Bf16>())).consume(hooks::store()).build(),
        _ => floats(builder, given),
    }
}

macro_rules! samples {
    ($exchange:ident, $reduction:ident: $($name:ty => $other:ty),*) => {$(
        impl Sample for $name {
            type Other = $other;

            fn exchange<'l>(builder: Exchange<'_, 'l, Self, Self>, given: &Given<'_>) -> Built<'l> {
                $exchange(builder, given)
            }

            fn reduction<'l>(builder: Reduction<'_, 'l, Self, Self>, given: &Given<'_>) -> Built<'l> {
                $reduction(builder, given)
            }

            fn plus(self, other: Self) -> Self {
                Arithmetic::add(self, other)
            }

            fn times(self, other: Self) -> Self {
                Arithmetic::mul(self, other)
            }
        }
    )*};
}

samples!(numbers, reduced_numbers: i8 => f32, i16 => f32, i32 => f32, i64 => f32, u8 => f32, u16 => f32, u32 => f32, u64 => f32);
samples!(packed, reduced_floats: F16 => f32, Bf16 => f32, f32 => Bf16, f64 => f32, F8E4M3 => f32, F8E5M2 => f32);

impl Sample for bool {
    type Other = f32;

    fn exchange<'l>(builder: Exchange<'_, 'l, bool, bool>, given: &Given<'_>) -> Built<'l> {
        places(builder, given)
    }

    fn reduction<'l>(_: Reduction<'_, 'l, bool, bool>, given: &Given<'_>) -> Built<'l> {
        unreachable!("{} of bool is not reduced", given.case)
    }

    fn plus(self, _: bool) -> bool {
        unreachable!("bool is no number")
    }

    fn times(self, _: bool) -> bool {
        unreachable!("bool is no number")
    }
}
