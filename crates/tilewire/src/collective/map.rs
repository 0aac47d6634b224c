//! `map`: a collective of one rank. There is no wire; the rank's own chunk passes both hooks, as in every collective. And `prepare`: a kernel
//! of the user's own, of one rank.

use super::builder::Map;
use super::operation::Operation;
use crate::hook::Traced;
use crate::ir::SourceLine;
use crate::ir::scalar::Element;
use crate::tensor::Tensor;
use crate::vm::{PrepareError, Prepared};

/// Applies hooks to a whole tensor. Without hooks it copies. In place, with one tensor as input and output, where every element reads only
/// the position that it writes; any other overlap is an error of the build.
///
/// ```
/// use tilewire::{Tensor, map};
/// let (out, inp) = (Tensor::<f32>::zeros(3), Tensor::from_slice(&[1.0f32, 2.0, 3.0]));
/// map(&out, &inp).produce(|c| c.input.load(c.pos()) * 2.0).run()?;
/// assert_eq!(out.to_vec(), [2.0, 4.0, 6.0]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
///
/// It runs where its tensors lie: on the CPU, or on a GPU. There, launches of one thread run in the order of its calls, whichever of them
/// are maps and whichever go over a transport.
#[track_caller]
pub fn map<'h, In: Element, Out: Element>(out: &Tensor<Out>, inp: &Tensor<In>) -> Map<'h, In, Out> {
    Map::at(Operation::Map, None, out, inp, SourceLine::caller())
}

/// Compiles a traced kernel for the CPU, with its arguments bound: launch the result any number of times.
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
