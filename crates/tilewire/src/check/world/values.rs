//! The values that hosts put into tensors before a launch, and those they must find after it.

use super::plan::{Plan, Span};
use crate::ir::scalar::{Element, dynamic};
use crate::ir::{CompareOp, Const, SourceLine, Type};
use crate::tensor::{Memory, Tensor};

/// The elements of a tensor, for [`Plan::inputs`] and [`Plan::expect`].
#[derive(Clone, Debug)]
pub struct Values {
    pub(in crate::check) memory: Memory,
    pub(in crate::check) ty: Type,
    pub(in crate::check) bytes: Vec<u8>,
    pub(in crate::check) at: SourceLine,
}

impl Values {
    /// These elements from the beginning of a tensor. If they are fewer than it has, the rest is left unchanged, or
    /// unchecked.
    ///
    /// # Panics
    /// If there are more than the tensor has.
    #[track_caller]
    pub fn of<T: Element>(tensor: &Tensor<T>, elements: impl IntoIterator<Item = T>) -> Values {
        let elements: Vec<T> = elements.into_iter().collect();
        assert!(elements.len() <= tensor.len(), "{} values for a tensor of {}", elements.len(), tensor.len());
        let memory = tensor.slice(0..elements.len()).memory().clone();
        let bytes = elements.iter().flat_map(|x| x.to_bits().to_le_bytes().into_iter().take(size_of::<T>())).collect();
        Values { memory, ty: T::TYPE, bytes, at: SourceLine::caller() }
    }
}

/// An element that differs from its expected value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::check) struct Wrong {
    pub rank: u32,
    pub launch: u32,
    pub span: Span,
    /// The first one that differs.
    pub element: u64,
    pub expected: String,
    /// `None` if nobody wrote it.
    pub found: Option<String>,
    /// Number of elements that differ.
    pub count: u64,
    pub at: SourceLine,
}

impl Values {
    /// The first element that differs from these bytes, and the number that do. All NaNs count as equal.
    pub(in crate::check) fn differ(&self, found: &[u8]) -> Option<(u64, String, String, u64)> {
        let size = self.ty.size();
        let pairs = self.bytes.chunks(size).zip(found.chunks(size)).enumerate();
        let mut wrong =
            pairs.filter(|(_, (wanted, found))| wanted != found && !(self.is_nan(wanted) && self.is_nan(found)));
        let (first, (wanted, found)) = wrong.next()?;
        Some((first as u64, self.text(wanted), self.text(found), 1 + wrong.count() as u64))
    }

    fn is_nan(&self, bytes: &[u8]) -> bool {
        self.ty.is_float() && dynamic::compare(CompareOp::Ne, self.ty, bits(bytes), bits(bytes))
    }

    fn text(&self, bytes: &[u8]) -> String {
        Const { ty: self.ty, bits: bits(bytes) }.to_string()
    }
}

/// Up to eight little-endian bytes.
fn bits(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

impl Plan {
    /// Sets the values that hosts put into their tensors before each launch: `values(rank, launch)`. By default inputs
    /// keep their first bytes.
    pub fn inputs(&mut self, values: impl Fn(u32, usize) -> Vec<Values>) -> &mut Plan {
        self.sets = self.of_each(values);
        self
    }

    /// Sets the values that hosts must find in their tensors after each launch: `values(rank, launch)`. An element that
    /// differs, or that no kernel wrote, is a fault at the line of its [`Values::of`].
    ///
    /// ```
    /// use tilewire::check::{Settings, Values};
    /// use tilewire::rehearsal::Rehearsal;
    /// use tilewire::{Tensor, all_reduce};
    ///
    /// // Make tensors once for each rank: new ones for every launch would hide the effects of one launch on the next.
    /// let tensors = || -> Vec<Tensor<f32>> { (0..2).map(|_| Tensor::zeros(40)).collect() };
    /// let (x, y) = (tensors(), tensors());
    /// let mut plan = Rehearsal::small(2, 1).plan(3, |link, _| {
    ///     let rank = link.number() as usize;
    ///     all_reduce(link, &y[rank], &x[rank]).trace()
    /// })?;
    /// plan.inputs(|rank, launch| vec![Values::of(&x[rank as usize], vec![(rank as usize + 10 * launch) as f32; 40])]);
    /// plan.expect(|rank, launch| vec![Values::of(&y[rank as usize], vec![(1 + 20 * launch) as f32; 40])]);
    /// let report = plan.verify(&Settings::default());
    /// assert!(report.is_clean() && report.is_decided(), "{report}");
    /// # Ok::<(), tilewire::RunError>(())
    /// ```
    pub fn expect(&mut self, values: impl Fn(u32, usize) -> Vec<Values>) -> &mut Plan {
        self.expected = self.of_each(values);
        self
    }

    /// By launch, then by rank.
    fn of_each(&self, values: impl Fn(u32, usize) -> Vec<Values>) -> Vec<Vec<Vec<Values>>> {
        (0..self.launches()).map(|launch| (0..self.ranks()).map(|rank| values(rank, launch)).collect()).collect()
    }
}
