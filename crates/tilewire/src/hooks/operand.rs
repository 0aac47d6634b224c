//! The other operand of a hook that computes: one number for all elements, or one for each row, column or element.

use crate::hook::{Captured, Ctx, Value};
use crate::ir::scalar::{Bf16, Element, F8E4M3, F8E5M2, F16};
use crate::tensor::{Scalar, Tensor};

/// A number of type `T` for [`scale`](super::scale), [`bias`](super::bias) and [`mask`](super::mask).
///
/// | given | the number is |
/// |---|---|
/// | `2.0` | a constant of the kernel (for narrow floats an `f32`, rounded to the type) |
/// | `&Scalar` | read when a launch starts |
/// | [`per_row`], [`per_col`] | of the row or column of the output chunk |
/// | [`per_element`] | of the position in the output chunk |
pub trait Operand<T: Element> {
    /// The number for the position of a context.
    fn value<'t, In: Element, Out: Element>(&self, c: &Ctx<'t, In, Out>) -> Value<'t, T>;
}

impl<T: Element> Operand<T> for T {
    fn value<'t, In: Element, Out: Element>(&self, c: &Ctx<'t, In, Out>) -> Value<'t, T> {
        c.value(*self)
    }
}

impl<T: Element> Operand<T> for &Scalar<T> {
    fn value<'t, In: Element, Out: Element>(&self, c: &Ctx<'t, In, Out>) -> Value<'t, T> {
        c.value(*self)
    }
}

macro_rules! narrow {
    ($($name:ident)*) => {$(
        impl Operand<$name> for f32 {
            fn value<'t, In: Element, Out: Element>(&self, c: &Ctx<'t, In, Out>) -> Value<'t, $name> {
                c.value($name::from_f32(*self))
            }
        }
    )*};
}

narrow!(F16 Bf16 F8E4M3 F8E5M2);

/// One number for each row of the output chunk; see [`per_row`].
#[derive(Clone, Debug)]
pub struct PerRow<T>(Tensor<T>)
where
    T: Element;

/// One number for each column of the output chunk; see [`per_col`].
#[derive(Clone, Debug)]
pub struct PerCol<T>(Tensor<T>)
where
    T: Element;

/// One number for each element of the output chunk; see [`per_element`].
#[derive(Clone, Debug)]
pub struct PerElement<T>(Tensor<T>)
where
    T: Element;

/// One number for each row of the output chunk, which must have a shape.
///
/// ```
/// use tilewire::{Tensor, hooks, map};
/// let (out, inp) = (Tensor::<f32>::zeros(4), Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0]));
/// let factors = Tensor::from_slice(&[10.0f32, 100.0]);
/// map(&out, &inp).chunk_shape(2, 2).produce(hooks::scale(hooks::per_row(&factors))).run()?;
/// assert_eq!(out.to_vec(), [10.0, 20.0, 300.0, 400.0]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn per_row<T: Element>(tensor: &Tensor<T>) -> PerRow<T> {
    PerRow(tensor.clone())
}

/// One number for each column of the output chunk, which must have a shape: a bias, a weight.
pub fn per_col<T: Element>(tensor: &Tensor<T>) -> PerCol<T> {
    PerCol(tensor.clone())
}

/// One number for each element of the output chunk: a residual to be added.
///
/// ```
/// use tilewire::{Tensor, hooks, map};
/// let (out, inp) = (Tensor::<f32>::zeros(2), Tensor::from_slice(&[1.0f32, 2.0]));
/// let residual = Tensor::from_slice(&[0.5f32, 0.25]);
/// map(&out, &inp).produce(hooks::bias(hooks::per_element(&residual))).run()?;
/// assert_eq!(out.to_vec(), [1.5, 2.25]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
pub fn per_element<T: Element>(tensor: &Tensor<T>) -> PerElement<T> {
    PerElement(tensor.clone())
}

impl<T: Element> Operand<T> for PerRow<T> {
    fn value<'t, In: Element, Out: Element>(&self, c: &Ctx<'t, In, Out>) -> Value<'t, T> {
        one_each(c, "row", self.0.len(), c.output.rows());
        self.0.at(c.row())
    }
}

impl<T: Element> Operand<T> for PerCol<T> {
    fn value<'t, In: Element, Out: Element>(&self, c: &Ctx<'t, In, Out>) -> Value<'t, T> {
        one_each(c, "column", self.0.len(), c.output.cols());
        self.0.at(c.col())
    }
}

impl<T: Element> Operand<T> for PerElement<T> {
    fn value<'t, In: Element, Out: Element>(&self, c: &Ctx<'t, In, Out>) -> Value<'t, T> {
        one_each(c, "element", self.0.len(), c.output.len());
        self.0.at(c.pos())
    }
}

fn one_each<In: Element, Out: Element>(c: &Ctx<'_, In, Out>, what: &str, is: usize, must: usize) {
    if is != must {
        c.refuse(format!(
            "a tensor of {is} numbers for an output chunk of {must} {what}s: give one number for each {what}"
        ));
    }
}
