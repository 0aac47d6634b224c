//! Arrays of `ndarray` as tensors, in place.

use super::foreign::Foreign;
use super::grid::{Grid, ShapeError};
use super::{AnyBits, Tensor};
use crate::ir::scalar::Element;
use ndarray::{Array, ArrayViewMut, Dimension};
use std::ptr::NonNull;
use std::sync::Arc;

/// The array's elements, without a copy. Its axes must collapse to rows and columns: see [`Tensor::axes`].
///
/// ```
/// use ndarray::{Array2, s};
/// use tilewire::Tensor;
/// let array = Array2::from_shape_fn((3, 4), |(row, col)| (10 * row + col) as f32);
/// let x = Tensor::<f32>::try_from(array.slice_move(s![.., 1..3]))?;
/// assert_eq!((x.shape(), x.to_vec()), ([3, 2], vec![1.0, 2.0, 11.0, 12.0, 21.0, 22.0]));
/// # Ok::<(), tilewire::tensor::ShapeError>(())
/// ```
impl<T: Element, D: Dimension + Send + Sync + 'static> TryFrom<Array<T, D>> for Tensor<T> {
    type Error = ShapeError;

    fn try_from(mut array: Array<T, D>) -> Result<Self, ShapeError> {
        if array.is_empty() {
            return Ok(Tensor::zeros(0));
        }
        let start = NonNull::new(array.as_mut_ptr()).expect("an array's pointer is not null");
        let (shape, strides) = (array.shape().to_vec(), array.strides().to_vec());
        // SAFETY: the array keeps its elements, which are initialised. It is moved into the keep-alive, where nobody
        // uses it, and it holds a pointer to them, no reference.
        unsafe { Tensor::foreign(Foreign::Host(start), &shape, &strides, Arc::new(array)) }
    }
}

impl<T: Element + AnyBits> Tensor<T> {
    /// Lends a view of an array to a closure as a tensor, in place; as [`Tensor::lend`]. A tensor may be written, so a
    /// view that may only be read cannot come in: copy it with `to_owned()`.
    ///
    /// ```
    /// use ndarray::{Array2, s};
    /// use tilewire::{Tensor, map};
    /// let mut array = Array2::<f32>::ones((3, 4));
    /// let columns = array.slice_mut(s![.., 1..3]);
    /// Tensor::lend_view(columns, |x| map(x, x).produce(|c| c.input.load(c.pos()) * 5.0).run()).unwrap().unwrap();
    /// assert_eq!(array.row(2).to_vec(), [1.0, 5.0, 5.0, 1.0]);
    /// ```
    pub fn lend_view<D: Dimension, R>(
        mut view: ArrayViewMut<'_, T, D>,
        body: impl FnOnce(&Tensor<T>) -> R,
    ) -> Result<R, ShapeError> {
        let grid = Grid::of_axes(view.shape(), view.strides())?;
        let start = NonNull::new(view.as_mut_ptr()).expect("a view's pointer is not null");
        // SAFETY: the view borrows these elements exclusively until this returns. Any bytes are valid elements.
        Ok(unsafe { Tensor::lend_rows(start.cast(), grid, body) })
    }
}
