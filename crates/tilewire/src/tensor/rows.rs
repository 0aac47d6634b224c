//! Rectangles of bytes: the bytes that the rows of a strided tensor cover, and whether two rectangles share a byte.
//!
//! ```text
//!    offset 0                        stride                          2 * stride
//!    │◀─ width ─▶│· · · · gap · · · ·│◀─ width ─▶│· · · · gap · · · ·│◀─ width ─▶│
//! ```
//! Bytes of the gaps may belong to other columns of the same matrix, or to memory that is not this library's. Nothing
//! in this crate reads or writes them.
#![forbid(unsafe_code)]

/// Rows of bytes at equal distances. Contiguous bytes are one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    /// The number of rows, at least 1.
    pub(crate) count: usize,
    /// The size of a row in bytes.
    pub(crate) width: usize,
    /// The distance between the first bytes of two rows. If there are several rows, it is not less than the width.
    pub(crate) stride: usize,
}

impl Rows {
    /// Contiguous bytes.
    pub(crate) const fn one(bytes: usize) -> Rows {
        Rows { count: 1, width: bytes, stride: bytes }
    }

    /// Rows in their simplest form: rows without gaps become one row. `None` if the rows overlap, or their end does not
    /// fit the address space.
    pub(crate) fn new(count: usize, width: usize, stride: usize) -> Option<Rows> {
        match count {
            _ if width == 0 || count == 0 => Some(Rows::one(0)),
            1 => Some(Rows::one(width)),
            _ if stride == width => count.checked_mul(width).map(Rows::one),
            _ if stride < width => None,
            _ => {
                (count - 1).checked_mul(stride)?.checked_add(width)?;
                Some(Rows { count, width, stride })
            }
        }
    }

    /// The number of bytes from the start of the first row to the end of the last row, gaps included.
    pub(crate) fn span(&self) -> usize {
        (self.count - 1) * self.stride + self.width
    }

    pub(crate) fn is_one(&self) -> bool {
        self.count == 1
    }

    /// The number of bytes in the rows, without gaps.
    pub(crate) fn covered(&self) -> usize {
        self.count * self.width
    }

    /// True if these rows contain the other rows, which begin `offset` bytes after the first byte of these. May be
    /// false for some rows that are contained.
    pub(crate) fn contain(&self, offset: usize, other: &Rows) -> bool {
        let Some(end) = offset.checked_add(other.span()) else { return false };
        if self.is_one() || other.covered() == 0 {
            return end <= self.span();
        }
        let in_row = (offset % self.stride).checked_add(other.width).is_some_and(|last| last <= self.width);
        end <= self.span() && in_row && (other.is_one() || other.stride.is_multiple_of(self.stride))
    }

    /// True if these rows, at address `a`, share a byte with others at address `b`. Exact.
    pub(crate) fn overlap(&self, a: usize, other: &Rows, b: usize) -> bool {
        if self.covered() == 0 || other.covered() == 0 || a >= b + other.span() || b >= a + self.span() {
            return false;
        }
        if self.is_one() && other.is_one() {
            return true;
        }
        // Every row of one rectangle is looked up in the other. Looking up the one with fewer rows is faster.
        let (few, from, many, to) = if self.count <= other.count { (self, a, other, b) } else { (other, b, self, a) };
        if few.stride == many.stride && !few.is_one() {
            // The distance between any two rows is that of the starts plus a multiple of the stride.
            let (stride, apart) = (few.stride as i128, to as i128 - from as i128);
            let (least, most) = (-(few.count as i128 - 1), many.count as i128 - 1);
            let first = (1 - many.width as i128 - apart).div_euclid(stride);
            // They overlap if some multiple of the stride puts the start of a row of `many` after the start of a row of
            // `few` by more than minus its own width and less than the width of the other.
            return (first..=first + 2).filter(|k| (least..=most).contains(k)).any(|k| {
                let distance = apart + k * stride;
                -(many.width as i128) < distance && distance < few.width as i128
            });
        }
        (0..few.count).any(|row| {
            let start = from + row * few.stride;
            let end = start + few.width;
            // The last row of `many` that begins before the end of this one.
            end > to && {
                let last = ((end - 1 - to) / many.stride).min(many.count - 1);
                to + last * many.stride + many.width > start
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn bytes_of(rows: &Rows, start: usize) -> HashSet<usize> {
        (0..rows.count).flat_map(|row| (0..rows.width).map(move |k| start + row * rows.stride + k)).collect()
    }

    fn some_rows() -> impl Strategy<Value = Rows> {
        (0usize..6, 0usize..5, 0usize..7).prop_map(|(count, width, gap)| Rows::new(count, width, width + gap).unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn overlap_and_containment_are_those_of_the_sets_of_bytes(
            a in some_rows(), b in some_rows(), same in any::<bool>(), starts in (0usize..30, 0usize..30)
        ) {
            // In half of the cases both have the same stride, like columns of one matrix.
            let b = if same && a.count > 1 && b.width <= a.stride { Rows::new(b.count, b.width, a.stride).unwrap() } else { b };
            let (x, y) = (bytes_of(&a, starts.0), bytes_of(&b, starts.1));
            prop_assert_eq!(a.overlap(starts.0, &b, starts.1), !x.is_disjoint(&y));
            prop_assert_eq!(b.overlap(starts.1, &a, starts.0), !x.is_disjoint(&y));
            // Containment may refuse, but never claims too much.
            if starts.1 >= starts.0 && a.contain(starts.1 - starts.0, &b) {
                prop_assert!(y.is_subset(&x));
            }
            prop_assert_eq!(a.covered(), x.len());
        }

        #[test]
        fn blocks_of_rows_and_columns_are_contained(
            (count, width, gap) in (1usize..6, 1usize..6, 0usize..4),
            (row, rows, col, cols) in (0usize..6, 1usize..6, 0usize..6, 1usize..6)
        ) {
            let whole = Rows::new(count, width, width + gap).unwrap();
            let part = Rows::new(rows, cols, width + gap);
            let fits = row + rows <= count && col + cols <= width;
            if let (Some(part), true) = (part, fits) {
                prop_assert!(whole.contain(row * (width + gap) + col, &part), "{part:?} of {whole:?}");
            }
        }
    }

    #[test]
    fn interleaved_columns_do_not_overlap() {
        let columns = Rows::new(1000, 16, 64).unwrap();
        for (start, shares) in
            [(0, true), (15, true), (16, false), (48, false), (49, true), (64, true), (64_000, false)]
        {
            assert_eq!(columns.overlap(0, &columns, start), shares, "{start}");
        }
        assert!(Rows::new(3, 8, 7).is_none() && Rows::new(2, 1, usize::MAX).is_none());
        assert_eq!(Rows::new(4, 8, 8), Some(Rows::one(32)));
    }
}
