//! Copies of bytes by the lanes of a role copy: in vectors where the places allow it.

use crate::hook::{Known, Region, RoleCtx, Value};

/// A place in one bank of a region.
#[derive(Clone, Copy)]
pub(super) struct Place<'t> {
    pub region: Region<'t>,
    pub bank: Known<'t>,
    pub offset: Value<'t, i64>,
}

/// Copies `bytes` bytes. The places are aligned alike most of the time, so the role copy branches: whole words of four
/// bytes in vectors of 16 if both places are aligned to 16, single words if both are aligned to four, bytes otherwise.
/// A branch on places that are known while tracing disappears.
pub(super) fn copy<'t>(r: &RoleCtx<'t>, to: Place<'t>, from: Place<'t>, bytes: Value<'t, i64>) {
    let low = to.offset | from.offset;
    r.if_else(
        (low & 15).eq(0),
        || words(r, to, from, bytes, 4),
        || r.if_else((low & 3).eq(0), || words(r, to, from, bytes, 2), || singles(r, to, from, bytes)),
    );
}

/// Copies words between places that are multiples of `1 << shift`, and the bytes after them.
fn words<'t>(r: &RoleCtx<'t>, to: Place<'t>, from: Place<'t>, bytes: Value<'t, i64>, shift: i64) {
    // This changes no number, and says what is known about it.
    let aligned = |place: Place<'t>| Place { offset: (place.offset >> shift) << shift, ..place };
    let (to, from, whole) = (aligned(to), aligned(from), bytes >> 2);
    r.each(whole, |i| {
        let x = from.region.get::<u32>(from.bank, from.offset + i * 4);
        to.region.put(to.bank, to.offset + i * 4, x);
    });
    let done = whole << 2;
    r.if_(done.lt(bytes), || {
        let after = |place: Place<'t>| Place { offset: place.offset + done, ..place };
        singles(r, after(to), after(from), bytes - done);
    });
}

fn singles<'t>(r: &RoleCtx<'t>, to: Place<'t>, from: Place<'t>, bytes: Value<'t, i64>) {
    r.each(bytes, |i| to.region.put(to.bank, to.offset + i, from.region.get::<u8>(from.bank, from.offset + i)));
}
