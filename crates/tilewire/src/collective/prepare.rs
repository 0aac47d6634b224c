//! From a traced kernel to one that can be launched.

use crate::hook::Traced;
use crate::vm::{PrepareError, Prepared};

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
