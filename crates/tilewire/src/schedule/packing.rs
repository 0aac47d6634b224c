//! The places of an element's parts in a slot.
//!
//! ```text
//!  slot   ├ part 0 of all elements ┤├ part 1 of all elements ┤ …      each part begins on 64 bytes
//! ```
//! The last of several parts may be shared by groups of neighbours (a scale). It is then stored once per group.

use super::peer::{Peer, Span};
use crate::hook::{self, Payload, RoleCtx, Value};
use crate::ir::Type;

/// How the parts of up to `elements` elements are packed side by side.
///
/// ```
/// use tilewire::ir::Type;
/// use tilewire::schedule::Packing;
/// let types = &[Type::F8E4M3, Type::F32];
/// let packing = Packing::new(types, 100);
/// assert_eq!((packing.offset(0), packing.offset(1), packing.bytes()), (0, 128, 128 + 448));
/// // The most elements that fit into 64 KiB, rounded down to a multiple of 1024:
/// assert_eq!(Packing::fitting(types, 64 << 10).unwrap().elements(), 12 << 10);
/// // With a scale for every 128 elements:
/// assert_eq!(Packing::fitting_shared(types, 128, 64 << 10).unwrap().elements(), 61 << 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    types: &'static [Type],
    elements: usize,
    last_per: usize,
}

impl Packing {
    /// Every part begins on a multiple of this many bytes.
    pub const ALIGN: usize = 64;

    /// Packs `elements` elements of these parts.
    pub const fn new(types: &'static [Type], elements: usize) -> Packing {
        Packing { types, elements, last_per: 1 }
    }

    /// The same packing with a last part shared by groups of `group` neighbours and stored once per group. Every tile
    /// must begin with a new group, and so must every row of a tile; in slots without gaps (see
    /// [`Reach::is_dense`](super::Reach::is_dense)) this means that rows of a chunk with a shape are whole groups. A
    /// single part is never shared.
    pub const fn last_per(self, group: usize) -> Packing {
        let last_per = if self.types.len() > 1 && group > 1 { group } else { 1 };
        Packing { last_per, ..self }
    }

    /// The most elements that fit into a slot, rounded down so that groups of neighbours stay together: to a multiple
    /// of 1024, or of 64 if fewer fit. `None` if not even one fits.
    pub fn fitting(types: &'static [Type], slot_bytes: usize) -> Option<Packing> {
        Packing::fitting_shared(types, 1, slot_bytes)
    }

    /// As [`Packing::fitting`], with a last part shared by groups of `last_per` neighbours. Only whole groups are
    /// counted.
    pub fn fitting_shared(types: &'static [Type], last_per: usize, slot_bytes: usize) -> Option<Packing> {
        let of = |elements: usize| Packing::new(types, elements).last_per(last_per);
        let group = of(1).last_per;
        // A single part may fill the slot to its last byte.
        let slack = if types.len() > 1 { types.len() * Self::ALIGN } else { 0 };
        // Bytes of a group, which is one element if nothing is shared.
        let bytes = |ty: &Type| ty.size() * group;
        let all: usize = types.iter().map(bytes).sum();
        let shared = if group > 1 { types.last().map_or(0, |ty| bytes(ty) - ty.size()) } else { 0 };
        let most = slot_bytes.saturating_sub(slack) / (all - shared).max(1) * group;
        let many = [1024, 64].into_iter().find(|many| most >= *many && many.is_multiple_of(group)).unwrap_or(group);
        let packing = of((most / many * many).max(group));
        let fits = if types.len() > 1 { packing.bytes() } else { packing.elements * all };
        (fits <= slot_bytes).then_some(packing)
    }

    /// The parts' types.
    pub const fn types(&self) -> &'static [Type] {
        self.types
    }

    /// Number of neighbours that share one value of the last part.
    pub(super) fn group(&self) -> usize {
        self.last_per
    }

    /// Capacity in elements.
    pub const fn elements(&self) -> usize {
        self.elements
    }

    /// The first byte of a part.
    pub fn offset(&self, part: usize) -> usize {
        let aligned = |bytes: usize| bytes.checked_next_multiple_of(Self::ALIGN).unwrap_or(usize::MAX);
        let bytes = |part: usize| aligned(self.types[part].size().saturating_mul(self.count(part)));
        (0..part).map(bytes).fold(0, usize::saturating_add)
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.offset(self.types.len())
    }

    /// Traces a constant with the bytes of a whole tile in a slot, which nothing reads. It only keeps the text of
    /// kernels stable. Every op takes a number even if its value is unused, and a hoisted constant stands where the
    /// first one of its value stood. Without this constant, kernels for mapped peers would compute the same with other
    /// register numbers, and comparing texts would not show that they are the same.
    pub(super) fn note_whole(&self, r: &RoleCtx<'_>, slot_bytes: usize) {
        _ = r.constant(self.bytes().min(slot_bytes) as i64);
    }

    /// The bytes of a tile of `positions` positions without gaps, in a slot from byte `base` on: a span for each part.
    pub(super) fn spans<'t>(&self, base: Value<'t, i64>, positions: Value<'t, i64>) -> Vec<Span<'t>> {
        let span = |(part, ty): (usize, &Type)| {
            let offset = self.offset(part) as i64;
            let count = match self.sharers(part) {
                1 => positions,
                group => (positions + (group as i64 - 1)) / group as i64,
            };
            Span { offset: if offset == 0 { base } else { base + offset }, bytes: count * ty.size() as i64 }
        };
        self.types.iter().enumerate().map(span).collect()
    }

    /// Bytes of all parts, without the padding between them.
    pub(crate) fn bytes_of_parts(&self) -> usize {
        let bytes = |part: usize| self.types[part].size().saturating_mul(self.count(part));
        (0..self.types.len()).map(bytes).fold(0, usize::saturating_add)
    }

    /// Number of stored values of a part.
    fn count(&self, part: usize) -> usize {
        self.elements.div_ceil(self.sharers(part))
    }

    /// Number of neighbours that share one value of a part.
    fn sharers(&self, part: usize) -> usize {
        if part + 1 == self.types.len() { self.last_per } else { 1 }
    }

    /// Puts the parts of element `index` into the peer's staging from byte `base` on.
    #[track_caller]
    pub(super) fn put<'t>(&self, to: &Peer<'t>, base: Value<'t, i64>, index: Value<'t, i64>, payload: Payload<'t>) {
        for (part, &x) in payload.parts().iter().enumerate() {
            let byte = self.byte(part, base, index);
            match self.sharers(part) {
                1 => to.put_any(byte, x),
                // All elements of a group have the same value; the first one writes it.
                group => to.put_any_if((index % group as i64).eq(0), byte, x),
            }
        }
    }

    /// Gets the parts of element `index` from this rank's staging from byte `base` on.
    #[track_caller]
    pub(super) fn get<'t>(&self, from: &Peer<'t>, base: Value<'t, i64>, index: Value<'t, i64>) -> Payload<'t> {
        let mut parts = Vec::with_capacity(self.types.len());
        // A loop, because a closure would lose the caller's line.
        for (part, &ty) in self.types.iter().enumerate() {
            parts.push(from.get_any(self.byte(part, base, index), ty));
        }
        Payload::new(&parts)
    }

    /// Puts the parts of element `index` of a tile into a region.
    #[track_caller]
    pub(super) fn put_in<'t>(&self, tile: hook::Tile<'t>, index: Value<'t, i64>, payload: Payload<'t>) {
        for (part, &x) in payload.parts().iter().enumerate() {
            tile.region.put_any(0, self.byte(part, tile.offset, index), x);
        }
    }

    /// Gets the parts of element `index` of a tile from a region.
    #[track_caller]
    pub(super) fn get_in<'t>(&self, tile: hook::Tile<'t>, index: Value<'t, i64>) -> Payload<'t> {
        let mut parts = Vec::with_capacity(self.types.len());
        for (part, &ty) in self.types.iter().enumerate() {
            parts.push(tile.region.get_any(0, self.byte(part, tile.offset, index), ty));
        }
        Payload::new(&parts)
    }

    fn byte<'t>(&self, part: usize, base: Value<'t, i64>, index: Value<'t, i64>) -> Value<'t, i64> {
        let size = self.types[part].size() as i64;
        let offset = self.offset(part) as i64;
        let base = if offset == 0 { base } else { base + offset };
        let index = match self.sharers(part) {
            1 => index,
            group => index / group as i64,
        };
        base + if size == 1 { index } else { index * size }
    }
}
