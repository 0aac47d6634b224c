//! Tensors of rows and columns: views of existing memory, without copies.
#![forbid(unsafe_code)]

use super::grid::{Axis, Grid, ShapeError};
use super::{AccessError, Tensor};
use crate::ir::scalar::Element;
use std::ops::Range;

impl<T: Element> Tensor<T> {
    /// The numbers of rows and columns. A tensor of one dimension is one row.
    pub fn shape(&self) -> [usize; 2] {
        [self.grid.rows, self.grid.cols]
    }

    /// The distance between the first elements of two neighbouring rows, in elements. It is the number of columns if
    /// there are no gaps, and 0 if all rows are the same elements.
    pub fn row_stride(&self) -> usize {
        self.grid.stride
    }

    /// True if the elements follow each other in memory without gaps, row after row.
    pub fn is_contiguous(&self) -> bool {
        self.grid.is_contiguous()
    }

    /// The same elements as `rows` rows of `cols` elements.
    ///
    /// ```
    /// use tilewire::Tensor;
    /// let x = Tensor::from_fn(6, |i| i as u32);
    /// assert_eq!(x.reshape(2, 3)?.rows(1..2).to_vec(), [3, 4, 5]);
    /// let error = x.reshape(2, 3)?.columns(0..2).reshape(1, 4).unwrap_err();
    /// assert!(error.to_string().contains("call contiguous() first"));
    /// # Ok::<(), tilewire::tensor::ShapeError>(())
    /// ```
    pub fn reshape(&self, rows: usize, cols: usize) -> Result<Self, ShapeError> {
        let (len, wanted) = (self.len(), [rows, cols]);
        if rows.checked_mul(cols) != Some(len) {
            return Err(ShapeError::Elements { wanted, len });
        }
        if self.shape() == wanted {
            return Ok(self.clone());
        }
        if !self.is_contiguous() {
            let Grid { rows, cols, stride } = self.grid;
            return Err(ShapeError::Gaps { rows, cols, stride, wanted });
        }
        Ok(self.at((0, Grid::new(rows, cols, cols)?)))
    }

    /// A view of `rows` rows of `cols` elements of this memory, which begin `stride` elements apart. With a stride of
    /// 0, every row is the first one. Such an *expanded* tensor can be read, but not written.
    ///
    /// ```
    /// use tilewire::Tensor;
    /// let x = Tensor::from_fn(10, |i| i as i32);
    /// assert_eq!(x.strided(3, 2, 4)?.to_vec(), [0, 1, 4, 5, 8, 9]);
    /// assert!(x.strided(3, 4, 2).is_err()); // rows would overlap
    /// let bias = x.strided(3, 2, 0)?;
    /// assert_eq!(bias.to_vec(), [0, 1, 0, 1, 0, 1]);
    /// assert!(bias.try_set(0, 7).is_err());
    /// # Ok::<(), tilewire::tensor::ShapeError>(())
    /// ```
    pub fn strided(&self, rows: usize, cols: usize, stride: usize) -> Result<Self, ShapeError> {
        self.regrid(Grid::new(rows, cols, stride)?)
    }

    /// A view with any number of axes, outermost first. `strides` are the distances between neighbours on each axis, in
    /// elements. Neighbouring axes without a gap are merged. The remaining axes must be rows and columns, and the
    /// elements of a row must be neighbours in memory.
    ///
    /// ```
    /// use tilewire::Tensor;
    /// let x = Tensor::from_fn(2 * 3 * 8, |i| i as u32);
    /// // The first four elements of the last axis of [2, 3, 8].
    /// let view = x.axes(&[2, 3, 4], &[24, 8, 1])?;
    /// assert_eq!((view.shape(), view.row_stride(), view.get(4)), ([6, 4], 8, 8));
    /// // A transpose is not rows of neighbours.
    /// let error = x.axes(&[8, 6], &[1, 8]).unwrap_err();
    /// assert!(error.to_string().contains("contiguous()"), "{error}");
    /// # Ok::<(), tilewire::tensor::ShapeError>(())
    /// ```
    pub fn axes(&self, shape: &[usize], strides: &[isize]) -> Result<Self, ShapeError> {
        self.regrid(Grid::of_axes(shape, strides)?)
    }

    /// Other rows and columns of the same contiguous memory.
    fn regrid(&self, grid: Grid) -> Result<Self, ShapeError> {
        let Grid { rows, cols, stride } = grid;
        if !self.is_contiguous() {
            let Grid { rows: of, cols: by, stride } = self.grid;
            return Err(ShapeError::Gaps { rows: of, cols: by, stride, wanted: [rows, cols] });
        }
        let (needed, len) = (grid.span(), self.len());
        if needed > len {
            return Err(ShapeError::TooShort { rows, cols, stride, needed, len });
        }
        Ok(self.at((0, grid)))
    }

    /// The rows in `range`.
    ///
    /// # Panics
    /// If there are no such rows.
    pub fn rows(&self, range: Range<usize>) -> Self {
        self.at(self.grid.part(Axis::Rows, &range))
    }

    /// The columns in `range` of every row.
    ///
    /// # Panics
    /// If there are no such columns.
    pub fn columns(&self, range: Range<usize>) -> Self {
        self.at(self.grid.part(Axis::Cols, &range))
    }

    /// This tensor if it is contiguous, otherwise a contiguous copy on the host with the same shape.
    ///
    /// # Panics
    /// If there is not enough memory, or a copy from a device fails.
    pub fn contiguous(&self) -> Self {
        self.try_contiguous().unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`contiguous`](Tensor::contiguous), but returns the error if a copy from a device fails.
    ///
    /// # Panics
    /// If there is not enough memory.
    pub fn try_contiguous(&self) -> Result<Self, AccessError> {
        if self.is_contiguous() {
            return Ok(self.clone());
        }
        let Grid { rows, cols, .. } = self.grid;
        let copy = Tensor::from_slice(&self.try_to_vec()?);
        Ok(copy.at((0, Grid { rows, cols, stride: cols })))
    }
}
