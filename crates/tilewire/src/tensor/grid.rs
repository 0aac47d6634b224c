//! The rows and columns of a tensor, and the conversion of shapes with more axes to rows and columns.
#![forbid(unsafe_code)]

use super::memory::Memory;
use super::rows::Rows;
use std::fmt;
use std::ops::Range;

/// Rows and columns of elements. Rows begin `stride` elements apart. A tensor of one dimension is one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grid {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// The distance between rows in elements. It is not less than `cols`, or it is 0 if all rows are the same elements.
    /// If there is at most one row, or no column, it is `cols`.
    pub(crate) stride: usize,
}

/// The two axes of a tensor. Chunks of a collective divide one of them: see
/// [`along`](crate::collective::Collective::along).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Axis {
    /// A chunk is some neighbouring rows.
    #[default]
    Rows,
    /// A chunk is some neighbouring columns of every row.
    Cols,
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Axis::Rows => "rows",
            Axis::Cols => "columns",
        })
    }
}

/// The reason why memory cannot have a shape.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeError {
    /// Rows begin closer together than they are long.
    #[non_exhaustive]
    Overlapping {
        /// The requested number of rows.
        rows: usize,
        /// The requested number of columns.
        cols: usize,
        /// The distance between rows in elements.
        stride: usize,
    },
    /// The shape does not end inside the memory.
    #[non_exhaustive]
    TooShort {
        /// The requested number of rows.
        rows: usize,
        /// The requested number of columns.
        cols: usize,
        /// The distance between rows in elements.
        stride: usize,
        /// The number of elements needed, gaps included.
        needed: usize,
        /// The number of elements in the memory.
        len: usize,
    },
    /// A tensor with gaps between its rows cannot get another shape in place.
    #[non_exhaustive]
    Gaps {
        /// The rows of the tensor.
        rows: usize,
        /// The columns of the tensor.
        cols: usize,
        /// The distance between the rows in elements.
        stride: usize,
        /// The requested shape.
        wanted: [usize; 2],
    },
    /// The shape has another number of elements than the tensor.
    #[non_exhaustive]
    Elements {
        /// The requested shape.
        wanted: [usize; 2],
        /// The number of elements of the tensor.
        len: usize,
    },
    /// The axes cannot become rows and columns: the elements of a row are not neighbours, a stride is negative, or more
    /// than two axes remain after merging.
    #[non_exhaustive]
    Axes {
        /// The extents.
        shape: Vec<usize>,
        /// The distances between neighbours on each axis, in elements.
        strides: Vec<isize>,
        /// The reason.
        why: &'static str,
    },
    /// More elements, or bytes, than addresses.
    #[non_exhaustive]
    TooLarge {
        /// The extents.
        shape: Vec<usize>,
    },
    /// The number of extents differs from the number of strides.
    #[non_exhaustive]
    Count {
        /// The number of extents.
        shape: usize,
        /// The number of strides.
        strides: usize,
    },
    /// The address is not aligned for elements of this type.
    #[non_exhaustive]
    Unaligned {
        /// The address.
        address: usize,
        /// The required alignment in bytes.
        align: usize,
    },
    /// The address is null.
    #[non_exhaustive]
    Null {
        /// The number of elements that should lie there.
        len: usize,
    },
}

errors! {
    enum ShapeError {
        Overlapping { rows, cols, stride } =>
            "{rows} rows of {cols} elements that begin {stride} apart overlap: the stride must be at least {cols}, or 0 \
             for rows that are all the same elements",
        TooShort { rows, cols, stride, needed, len } =>
            "{rows} rows of {cols} elements that begin {stride} apart need {needed} elements, but there are {len}",
        Gaps { rows, cols, stride, wanted: [wanted_rows, wanted_cols] } =>
            "[{rows}, {cols}] elements with rows {stride} apart cannot become [{wanted_rows}, {wanted_cols}] in place: \
             there are gaps between the rows; call contiguous() first, which makes a copy",
        Elements { wanted: [rows, cols], len } =>
            "[{rows}, {cols}] is not a shape of {len} elements: the product must be {len}",
        Axes { shape, strides, why } =>
            "shape {shape:?} with strides {strides:?} is not rows and columns of neighbouring elements: {why}; copy it \
             first (.contiguous())",
        TooLarge { shape } =>
            "shape {shape:?} has more elements than fit the address space: give the extents of memory that exists",
        Count { shape, strides } => "{shape} extents with {strides} strides: there must be one stride for each extent",
        Unaligned { address, align } =>
            "address {address:#x} is not aligned for its elements: it must be a multiple of {align}; copy the elements \
             to an aligned buffer",
        Null { len } => "{len} elements at address 0: pass the address of the first element",
    }
}

impl Grid {
    /// A grid of one dimension.
    pub(crate) const fn flat(len: usize) -> Grid {
        Grid { rows: 1, cols: len, stride: len }
    }

    /// A grid of rows at equal distances.
    pub(crate) fn new(rows: usize, cols: usize, stride: usize) -> Result<Grid, ShapeError> {
        if rows <= 1 || cols == 0 {
            return Ok(Grid { rows, cols, stride: cols });
        }
        if stride != 0 && stride < cols {
            return Err(ShapeError::Overlapping { rows, cols, stride });
        }
        // Of rows that are all the same elements there may be more than memory holds, and they are counted, too.
        if rows.checked_mul(cols).is_none() || span_of(rows, cols, stride).is_none() {
            return Err(ShapeError::TooLarge { shape: vec![rows, cols] });
        }
        Ok(Grid { rows, cols, stride })
    }

    /// The rows and columns for any number of axes, outermost first. Neighbouring axes without a gap are merged.
    pub(crate) fn of_axes(shape: &[usize], strides: &[isize]) -> Result<Grid, ShapeError> {
        if shape.len() != strides.len() {
            return Err(ShapeError::Count { shape: shape.len(), strides: strides.len() });
        }
        let refused = |why| Err(ShapeError::Axes { shape: shape.to_vec(), strides: strides.to_vec(), why });
        // Extents beside a zero may be anything.
        if shape.contains(&0) {
            return Ok(Grid::flat(0));
        }
        if shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)).is_none() {
            return Err(ShapeError::TooLarge { shape: shape.to_vec() });
        }
        // From the innermost axis outwards: (extent, stride).
        let mut axes: Vec<(usize, usize)> = Vec::new();
        for (&extent, &stride) in shape.iter().zip(strides).rev().filter(|&(&extent, _)| extent != 1) {
            let Ok(stride) = usize::try_from(stride) else { return refused("a stride is negative") };
            match axes.last_mut() {
                // The outer axis continues the inner one without a gap, or both repeat the same elements.
                Some((inner, by)) if inner.checked_mul(*by) == Some(stride) => *inner *= extent,
                _ => axes.push((extent, stride)),
            }
        }
        match axes[..] {
            [] => Ok(Grid::flat(1)),
            [(cols, 1)] => Ok(Grid::flat(cols)),
            // The elements form one column.
            [(rows, stride)] => Grid::new(rows, 1, stride),
            [(cols, 1), (rows, stride)] => Grid::new(rows, cols, stride),
            [(_, by), _] if by != 1 => refused("neighbours on the last axis are not neighbours in memory"),
            _ => refused("more than two axes have strides of their own"),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// The number of elements from the first to the last, gaps included.
    pub(crate) fn span(&self) -> usize {
        if self.len() == 0 { 0 } else { span_of(self.rows, self.cols, self.stride).expect("checked when it was made") }
    }

    /// True if the position of every element is its place in memory: there are neither gaps nor repetitions.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.rows <= 1 || self.stride == self.cols
    }

    /// True if all rows are the same elements.
    pub(crate) fn is_expanded(&self) -> bool {
        self.rows > 1 && self.cols > 0 && self.stride == 0
    }

    /// The place of element `i`.
    #[inline]
    pub(crate) fn place(&self, i: usize) -> usize {
        if self.is_contiguous() { i } else { i / self.cols * self.stride + i % self.cols }
    }

    /// The bytes of elements of `size` bytes, from the first one on.
    pub(crate) fn bytes(&self, size: usize) -> Option<Rows> {
        let [cols, stride] = [self.cols, self.stride].map(|elements| elements.checked_mul(size));
        match self.is_expanded() {
            true => Rows::new(1, cols?, cols?),
            false => Rows::new(self.rows, cols?, stride?),
        }
    }

    /// The grid of the elements in `range`, and the place of the first. `None` if they are neither whole rows nor part
    /// of one row.
    pub(crate) fn slice(&self, range: &Range<usize>) -> Option<(usize, Grid)> {
        let len = range.len();
        if self.is_contiguous() || len == 0 {
            return Some((if len == 0 { 0 } else { range.start }, Grid::flat(len)));
        }
        let (row, col) = (range.start / self.cols, range.start % self.cols);
        if col + len <= self.cols {
            return Some((row * self.stride + col, Grid::flat(len)));
        }
        let whole = col == 0 && len.is_multiple_of(self.cols);
        whole.then(|| (row * self.stride, self.cut(len / self.cols, self.cols)))
    }

    /// As [`slice`](Grid::slice).
    ///
    /// # Panics
    /// If the range does not lie inside the grid, or crosses a gap.
    pub(crate) fn sliced(&self, range: &Range<usize>) -> (usize, Grid) {
        let Grid { rows, cols, stride } = *self;
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "slice {range:?} of a tensor of {} elements",
            self.len()
        );
        self.slice(range).unwrap_or_else(|| {
            panic!(
                "slice {range:?} of a tensor of [{rows}, {cols}] with rows {stride} apart crosses a gap: take rows(..) or \
                 columns(..) of it, or a slice of contiguous()"
            )
        })
    }

    /// The part of a memory that these elements of `size` bytes cover. The first element is at place `first`.
    ///
    /// # Panics
    /// If the elements do not lie inside the memory.
    pub(crate) fn memory(&self, of: &Memory, first: usize, size: usize) -> Memory {
        of.rows_at(first * size, self.bytes(size).expect("it lies in a larger tensor"))
    }

    /// The grid of some neighbouring rows or columns, and the place of its first element.
    ///
    /// # Panics
    /// If there are no such rows or columns.
    pub(crate) fn part(&self, axis: Axis, range: &Range<usize>) -> (usize, Grid) {
        let extent = self.extent(axis);
        assert!(range.start <= range.end && range.end <= extent, "{axis} {range:?} of a tensor that has {extent}");
        match axis {
            _ if range.is_empty() => (0, Grid::flat(0)),
            Axis::Rows => (range.start * self.stride, self.cut(range.len(), self.cols)),
            Axis::Cols => (range.start, self.cut(self.rows, range.len())),
        }
    }

    /// The extent of an axis.
    pub(crate) fn extent(&self, axis: Axis) -> usize {
        match axis {
            Axis::Rows => self.rows,
            Axis::Cols => self.cols,
        }
    }

    fn cut(&self, rows: usize, cols: usize) -> Grid {
        Grid::new(rows, cols, self.stride).expect("fewer elements with the same stride")
    }
}

fn span_of(rows: usize, cols: usize, stride: usize) -> Option<usize> {
    (rows - 1).checked_mul(stride)?.checked_add(cols)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn collapsed_axes_put_every_element_where_its_strides_say(
            extents in proptest::collection::vec(0usize..4, 0..5), gaps in proptest::collection::vec(0usize..3, 5)
        ) {
            // Distances of a nested array with a gap after some of its axes.
            let mut strides = vec![0isize; extents.len()];
            let mut step = 1;
            for (axis, &extent) in extents.iter().enumerate().rev() {
                strides[axis] = step as isize;
                step = step * extent.max(1) + if gaps[axis] == 2 { 3 } else { 0 };
            }
            let mut places = vec![0usize];
            for (&extent, &stride) in extents.iter().zip(&strides) {
                places = places.iter().flat_map(|&at| (0..extent).map(move |k| at + k * stride as usize)).collect();
            }
            match Grid::of_axes(&extents, &strides) {
                Ok(grid) => {
                    prop_assert_eq!((0..grid.len()).map(|i| grid.place(i)).collect::<Vec<_>>(), places);
                }
                // At least three axes of more than one element, or two of which the last has gaps inside.
                Err(error) => {
                    let long: Vec<isize> =
                        extents.iter().zip(&strides).filter(|&(&n, _)| n > 1).map(|(_, &stride)| stride).collect();
                    prop_assert!(long.len() >= 3 || long.len() == 2 && long[1] != 1, "{error}");
                }
            }
        }
    }

    #[test]
    fn axes_that_are_no_rows_and_columns_are_refused_with_the_remedy() {
        for (shape, strides, why) in [
            (&[4, 3][..], &[1, 4][..], "neighbours on the last axis"),
            (&[2, 3, 4], &[100, 10, 1], "more than two axes"),
            (&[4, 3], &[-3, 1], "negative"),
            (&[4, 3], &[8, 2], "neighbours on the last axis"),
            (&[4, 2, 3], &[0, 0, 0], "neighbours"),
        ] {
            match Grid::of_axes(shape, strides) {
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains(why) && text.contains("contiguous()"), "{text}");
                }
                // One element, repeated: rows of one column.
                Ok(grid) => assert!(grid.is_expanded() && why == "neighbours", "{grid:?}"),
            }
        }
        assert!(matches!(Grid::of_axes(&[4, 3], &[2, 1]), Err(ShapeError::Overlapping { .. })));
        assert!(matches!(Grid::of_axes(&[4, 3], &[2]), Err(ShapeError::Count { .. })));
        // Products that wrap to 0, also of rows that are all the same elements.
        let half = 1 << (usize::BITS / 2);
        for strides in [[half as isize, 1], [0, 1]] {
            let error = Grid::of_axes(&[half, half], &strides).unwrap_err();
            assert_eq!(error, ShapeError::TooLarge { shape: vec![half, half] });
        }
        assert!(matches!(Grid::new(half, half, 0), Err(ShapeError::TooLarge { .. })));
        assert_eq!(Grid::of_axes(&[half, half, 0], &[1, 1, 1]), Ok(Grid::flat(0)));
        assert_eq!(Grid::of_axes(&[5, 1, 3], &[3, 7, 1]), Ok(Grid::flat(15)));
        assert_eq!(Grid::of_axes(&[5, 3], &[0, 1]), Ok(Grid { rows: 5, cols: 3, stride: 0 }));
    }
}
