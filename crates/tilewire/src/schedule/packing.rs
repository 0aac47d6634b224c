//! Where the parts of an element lie in a slot.
//!
//! ```text
//!  slot   ├ part 0 of all elements ┤├ part 1 of all elements ┤ …      each part begins on 64 bytes
//! ```

use super::ops::Ops;
use crate::hook::{self, GetParts, PutParts, Value};
use crate::ir::Type;
use crate::ir::scalar::Element;
use std::marker::PhantomData;

/// How the parts of up to `elements` elements are packed side by side.
///
/// ```
/// use tilewire::ir::Type;
/// use tilewire::schedule::Packing;
/// let packing = Packing::new(&[Type::F8E4M3, Type::F32], 100);
/// assert_eq!((packing.offset(0), packing.offset(1), packing.bytes()), (0, 128, 128 + 448));
/// // As many as fit into 64 KiB, a multiple of 1024 where there are so many:
/// assert_eq!(Packing::fitting(&[Type::F8E4M3, Type::F32], 64 << 10).unwrap().elements(), 12 << 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    types: &'static [Type],
    elements: usize,
}

impl Packing {
    /// Every part begins on a multiple of so many bytes.
    pub const ALIGN: usize = 64;

    /// Packs `elements` elements of these parts.
    pub const fn new(types: &'static [Type], elements: usize) -> Packing {
        Packing { types, elements }
    }

    /// The most elements that fit into a slot, rounded down so that groups of neighbours stay together: to a multiple of 1024, or of 64
    /// where fewer fit. `None` where not one fits.
    pub fn fitting(types: &'static [Type], slot_bytes: usize) -> Option<Packing> {
        let one: usize = types.iter().map(|ty| ty.size()).sum();
        // A single part may fill the slot to its last byte.
        let slack = if types.len() > 1 { types.len() * Self::ALIGN } else { 0 };
        let most = slot_bytes.saturating_sub(slack) / one.max(1);
        let most = [1024, 64].into_iter().find(|&many| most >= many).map_or(most, |many| most / many * many);
        let packing = if most > 0 { Packing::new(types, most) } else { Packing::new(types, 1) };
        let fits = |packing: Packing| if types.len() > 1 { packing.bytes() } else { packing.elements * one };
        (fits(packing) <= slot_bytes).then_some(packing)
    }

    /// The parts' types.
    pub const fn types(&self) -> &'static [Type] {
        self.types
    }

    /// How many elements there is room for.
    pub const fn elements(&self) -> usize {
        self.elements
    }

    /// Where a part begins.
    pub fn offset(&self, part: usize) -> usize {
        let before = self.types[..part].iter();
        before.map(|ty| (ty.size() * self.elements).next_multiple_of(Self::ALIGN)).sum()
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.offset(self.types.len())
    }

    /// The parts of element `index`, in the peer's or in this rank's staging from byte `base`.
    pub(super) fn at<'o, 't, O>(&self, ops: &'o O, base: Value<'t, i64>, index: Value<'t, i64>) -> Parts<'o, 't, O> {
        Parts { packing: *self, ops, base, index, brand: PhantomData }
    }

    /// The parts of element `index` in a tile that lies in a region.
    pub(super) fn in_region<'t>(&self, tile: hook::Tile<'t>, index: Value<'t, i64>) -> RegionParts<'t> {
        RegionParts { packing: *self, tile, index }
    }

    fn byte<'t>(&self, part: usize, base: Value<'t, i64>, index: Value<'t, i64>) -> Value<'t, i64> {
        let size = self.types[part].size() as i64;
        let offset = self.offset(part) as i64;
        let base = if offset == 0 { base } else { base + offset };
        base + if size == 1 { index } else { index * size }
    }
}

/// The parts of one element behind [`Ops`].
pub(super) struct Parts<'o, 't, O> {
    packing: Packing,
    ops: &'o O,
    base: Value<'t, i64>,
    index: Value<'t, i64>,
    brand: PhantomData<&'t ()>,
}

impl<'t, O: Ops<'t>> PutParts<'t> for Parts<'_, 't, O> {
    #[track_caller]
    fn put<T: Element>(&self, part: usize, x: Value<'t, T>) {
        self.ops.put(self.packing.byte(part, self.base, self.index), x);
    }
}

impl<'t, O: Ops<'t>> GetParts<'t> for Parts<'_, 't, O> {
    #[track_caller]
    fn get<T: Element>(&self, part: usize) -> Value<'t, T> {
        self.ops.get(self.packing.byte(part, self.base, self.index))
    }
}

/// The parts of one element of a tile in a region.
pub(super) struct RegionParts<'t> {
    packing: Packing,
    tile: hook::Tile<'t>,
    index: Value<'t, i64>,
}

impl<'t> PutParts<'t> for RegionParts<'t> {
    #[track_caller]
    fn put<T: Element>(&self, part: usize, x: Value<'t, T>) {
        self.tile.region.put(0, self.packing.byte(part, self.tile.offset, self.index), x);
    }
}

impl<'t> GetParts<'t> for RegionParts<'t> {
    #[track_caller]
    fn get<T: Element>(&self, part: usize) -> Value<'t, T> {
        self.tile.region.get(0, self.packing.byte(part, self.tile.offset, self.index))
    }
}
