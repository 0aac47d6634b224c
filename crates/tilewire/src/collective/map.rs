//! `map`: a collective of one rank. Nothing is sent: the rank's own chunk passes through both hooks, as in every
//! collective. Also `prepare`: compiles a user's own kernel for one rank.

use super::builder::Map;
use super::operation::Operation;
use crate::hook::Traced;
use crate::ir::SourceLine;
use crate::ir::scalar::Element;
use crate::tensor::Tensor;
use crate::vm::{PrepareError, Prepared};

/// Applies hooks to a whole tensor. Without hooks, it copies. In place, with one tensor as both input and output, is
/// allowed if every element reads only the position that it writes. Any other overlap is a build error.
///
/// ```
/// use tilewire::{Tensor, map};
/// let (out, inp) = (Tensor::<f32>::zeros(3), Tensor::from_slice(&[1.0f32, 2.0, 3.0]));
/// map(&out, &inp).produce(|c| c.input.load(c.pos()) * 2.0).run()?;
/// assert_eq!(out.to_vec(), [2.0, 4.0, 6.0]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
///
/// It runs where its tensors are: on the CPU, or on a GPU. On a GPU, the launches of one thread run in the order of its
/// calls, including both maps and launches over a transport.
#[track_caller]
pub fn map<'h, In: Element, Out: Element>(out: &Tensor<Out>, inp: &Tensor<In>) -> Map<'h, In, Out> {
    Map::at(Operation::Map, None, out, inp, SourceLine::caller())
}

/// Compiles a traced kernel for the CPU, with its arguments bound. Launch the result any number of times.
///
/// ```
/// use tilewire::{Scalar, Tensor, kernel, prepare};
/// let (x, y) = (Tensor::from_slice(&[1.0f32, 2.0, 3.0]), Tensor::<f32>::zeros(3));
/// let factor = Scalar::new(2.0f32);
/// let traced = kernel("scale", |k| {
///     let (x, y) = (k.input(&x), k.output(&y));
///     k.main(|r| r.each(x.len(), |i| y.store(i, x.load(i) * &factor)));
/// })?;
///
/// let mut scale = prepare(&traced)?;
/// scale.run()?;
/// assert_eq!(y.to_vec(), [2.0, 4.0, 6.0]);
///
/// // A scalar is read when a launch starts, a tensor while it runs: neither needs a new build.
/// factor.set(10.0);
/// scale.run()?;
/// assert_eq!(y.to_vec(), [10.0, 20.0, 30.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn prepare(traced: &Traced) -> Result<Prepared, PrepareError> {
    Prepared::new(&traced.kernel, &traced.args)
}
