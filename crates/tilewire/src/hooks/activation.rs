//! Computing while sending: activations and norms whose result is sent as it is made, without a separate pass.
//!
//! Everything is computed in `f32`, in the order of the code, and rounded once to the element's type: the same bits on
//! every engine.

use crate::hook::{Captured, Ctx, Value};
use crate::ir::scalar::{Element, Float};
use crate::tensor::Tensor;

/// The Gaussian error linear unit in its tanh form, `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`: a function of a
/// value, for [`then`](super::Compose::then).
///
/// ```
/// use tilewire::hooks::{self, Compose};
/// use tilewire::{Tensor, map};
/// let (out, inp) = (Tensor::<f32>::zeros(3), Tensor::from_slice(&[-10.0f32, 0.0, 1.0]));
/// map(&out, &inp).produce(hooks::bias(0.0).then(hooks::gelu)).run()?;
/// assert!(out.get(0).abs() < 1e-6 && out.get(1) == 0.0 && (out.get(2) - 0.8412).abs() < 1e-4);
/// # Ok::<(), tilewire::RunError>(())
/// ```
#[track_caller]
pub fn gelu<'t, T: Float>(x: Value<'t, T>) -> Value<'t, T> {
    let x = x.cast::<f32>();
    let inner = (x + x * x * x * 0.044715) * std::f32::consts::FRAC_2_PI.sqrt();
    (x * 0.5 * (inner.tanh() + 1.0)).cast()
}

/// The sigmoid linear unit, `x / (1 + e^-x)`, also called swish: a function of a value, for
/// [`then`](super::Compose::then).
///
/// ```
/// use tilewire::hooks::{self, Compose};
/// use tilewire::{Tensor, map};
/// let (out, inp) = (Tensor::<f32>::zeros(2), Tensor::from_slice(&[-200.0f32, 2.0]));
/// map(&out, &inp).produce(hooks::copy().then(hooks::silu)).run()?;
/// assert!(out.get(0) == 0.0 && (out.get(1) - 1.7616).abs() < 1e-4);
/// # Ok::<(), tilewire::RunError>(())
/// ```
#[track_caller]
pub fn silu<'t, T: Float>(x: Value<'t, T>) -> Value<'t, T> {
    let x = x.cast::<f32>();
    (x / ((-x).exp() + 1.0)).cast()
}

/// `silu(gate) · up`: every row of the input is the gates, then the same number of ups; the output is half as wide.
///
/// ```text
///   chunk_shape(rows, 2·cols)   [ gate … │ up … ]    ──▶   [ silu(gate)·up … ]   output_shape(rows, cols)
/// ```
/// ```
/// use tilewire::{Tensor, hooks, map};
/// let (out, inp) = (Tensor::<f32>::zeros(2), Tensor::from_slice(&[0.0f32, 2.0, 5.0, 10.0]));
/// map(&out, &inp).chunk_shape(1, 4).output_shape(1, 2).produce(hooks::swiglu()).run()?;
/// assert!(out.get(0) == 0.0 && (out.get(1) - 17.616).abs() < 1e-3);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn swiglu<In: Float, Out: Element>() -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, In> {
    |c| {
        if c.input.cols() != 2 * c.output.cols() {
            let (wide, cols) = (c.input.cols(), c.output.cols());
            c.refuse(format!(
                "swiglu: input rows of {wide} for output rows of {cols}: the input must be twice as wide, for gates and ups"
            ));
        }
        let (gate, up) = (c.input.at(c.row(), c.col()), c.input.at(c.row(), c.col() + c.output.cols() as i64));
        (silu(gate.cast::<f32>()) * up.cast::<f32>()).cast()
    }
}

/// Every row divided by its root mean square, times a weight for each column: `x · 1/√(mean(x²) + epsilon) · weight`. A
/// row is as long as `weight`. The squares are summed as by [`group_sum`](Value::group_sum), neighbours first.
///
/// A row of zeros stays zeros if `epsilon` is not 0; with an `epsilon` of 0 it becomes NaN.
///
/// Tiles must not split a row: in a transfer use `.granule(weight.len())` unless 1024 is a multiple of it.
///
/// ```
/// use tilewire::{Tensor, hooks, map};
/// let (out, inp) = (Tensor::<f32>::zeros(4), Tensor::from_slice(&[3.0f32, 4.0, 0.0, 10.0]));
/// let weight = Tensor::from_slice(&[1.0f32, 2.0]);
/// map(&out, &inp).produce(hooks::rms_norm(&weight, 1e-9)).run()?;
/// assert!((out.get(0) - 3.0 / 12.5f32.sqrt()).abs() < 1e-6 && (out.get(3) - 2.0 * 2f32.sqrt()).abs() < 1e-5);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn rms_norm<In: Float, Out: Element, W: Float>(
    weight: &Tensor<W>,
    epsilon: f32,
) -> impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, In> {
    move |c| {
        let row = weight.len();
        // Without a shape the chunk is one long row.
        if row == 0 || !c.output.cols().is_multiple_of(row) {
            let cols = c.output.cols();
            c.refuse(format!("rms_norm: {cols} columns are not a multiple of {row}, the length of the weight"));
            return c.input.load(c.pos());
        }
        let x = c.input.load(c.pos()).cast::<f32>();
        let mean = (x * x).group_sum(row as u32) / row as f32;
        (x * (mean + epsilon).rsqrt() * weight.at(c.pos() % row as i64).cast::<f32>()).cast()
    }
}
