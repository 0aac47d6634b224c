//! From an access and the current strip to an address: bank, affine index, bounds.

use super::code::Access;
use super::machine::{Fault, Inst, Machine, Stop};

/// The bank's first byte, or a fault.
///
/// # Safety
/// `e` is an access of the verified program of `m`.
#[inline(always)]
pub(crate) unsafe fn bank(m: &Machine, access: &Access, e: i32) -> Result<*mut u8, Fault> {
    // SAFETY: registers and bases of a verified access; the bank is checked here.
    unsafe {
        match access.bank {
            None => Ok(m.base(access.first as usize)),
            Some(reg) => {
                let bank = m.reg(reg) as i64;
                if bank as u64 >= access.banks as u64 {
                    return Err(Fault::Bank { access: e as u32, bank });
                }
                Ok(m.base(access.first as usize + bank as usize))
            }
        }
    }
}

/// Index of the strip's first element.
///
/// # Safety
/// `access` is one of the verified program of `m`.
#[inline(always)]
pub(crate) unsafe fn first_index(m: &Machine, access: &Access) -> i64 {
    // SAFETY: registers of a verified access.
    unsafe {
        let (row, col) = (m.cursor.row as i64, m.cursor.col as i64);
        let mut index = m.reg(access.base) as i64;
        if row != 0 {
            index = index.wrapping_add((m.reg(access.row_stride) as i64).wrapping_mul(row));
        }
        if col != 0 {
            index = index.wrapping_add((m.reg(access.col_stride) as i64).wrapping_mul(col));
            if access.group != 0 {
                let group = col / access.group as i64;
                index = index.wrapping_add((m.reg(access.group_stride) as i64).wrapping_mul(group));
            }
        }
        index
    }
}

/// Address of `count` consecutive elements from the strip's first on, in bounds and aligned to the access width within
/// the bank.
///
/// # Safety
/// `e` is an access of the verified program of `m`.
#[inline(always)]
pub(crate) unsafe fn contiguous(m: &Machine, e: i32, count: usize) -> Result<*mut u8, Fault> {
    // SAFETY: the caller's promise; the result is checked to lie in the bank.
    unsafe { contiguous_from(m, e, first_index(m, m.access(e)), count) }
}

/// As [`contiguous`], from element `index` on.
///
/// # Safety
/// `e` is an access of the verified program of `m`.
#[inline(always)]
pub(crate) unsafe fn contiguous_from(m: &Machine, e: i32, index: i64, count: usize) -> Result<*mut u8, Fault> {
    // SAFETY: the caller's promise; the result is checked to lie in the bank.
    unsafe {
        let access = m.access(e);
        let start = bank(m, access, e)?;
        let end = offset_of(access, index).and_then(|offset| {
            // A product with a count that is known only now could wrap. (A division would detect that too, but takes 5
            // ns.)
            let bytes = (count as u64).checked_mul(u64::from(access.width))?;
            Some((offset, offset.checked_add(bytes)?))
        });
        let Some((offset, _)) = end.filter(|&(_, end)| end <= access.bytes) else {
            return Err(Fault::Bounds { access: e as u32, index });
        };
        if is_misaligned(access, offset) {
            return Err(Fault::Misaligned { access: e as u32, index });
        }
        Ok(start.add(offset as usize))
    }
}

/// As [`contiguous`], from the base of the access on: outside an `each` there is no strip.
///
/// # Safety
/// `e` is an access of the verified program of `m`.
#[inline(always)]
pub(crate) unsafe fn from_base(m: &Machine, e: i32, count: usize) -> Result<*mut u8, Fault> {
    // SAFETY: the caller's promise.
    unsafe { contiguous_from(m, e, m.reg(m.access(e).base) as i64, count) }
}

/// Address of element `index` of the bank at `start`, or a fault.
#[inline(always)]
pub(crate) fn element(access: &Access, e: i32, start: *mut u8, index: i64) -> Result<*mut u8, Fault> {
    let offset = match offset_of(access, index) {
        Some(offset) if offset < access.bytes && access.bytes - offset >= access.width as u64 => offset,
        _ => return Err(Fault::Bounds { access: e as u32, index }),
    };
    if is_misaligned(access, offset) {
        return Err(Fault::Misaligned { access: e as u32, index });
    }
    Ok(start.wrapping_add(offset as usize))
}

/// A strided rectangle: address of its first element and its strides in bytes, every element in bounds.
pub(crate) struct Rectangle {
    pub start: *mut u8,
    pub row: isize,
    pub col: isize,
}

/// The current strip as a rectangle of `rows` × `cols` elements, both ≥ 1.
///
/// # Safety
/// `e` is an access of the verified program of `m`.
#[inline(always)]
pub(crate) unsafe fn rectangle(m: &Machine, e: i32, rows: usize, cols: usize) -> Result<Rectangle, Fault> {
    // SAFETY: the caller's promise; the result is checked to lie in the bank.
    unsafe {
        let access = m.access(e);
        let start = bank(m, access, e)?;
        let index = first_index(m, access);
        let col_stride = if access.group != 0 { access.group_stride } else { access.col_stride };
        let (row, col) = (m.reg(access.row_stride) as i64, m.reg(col_stride) as i64);
        let unit = access.unit as i128;
        // A stride larger than the bank leaves it in one step; without such strides no product below can wrap.
        let leaves = |stride: i64, extent: usize| {
            extent > 1 && stride.unsigned_abs() as u128 * unit as u128 > access.bytes as u128
        };
        if leaves(row, rows) || leaves(col, cols) {
            return Err(Fault::Bounds { access: e as u32, index });
        }
        // The extremes of an affine function lie in the corners.
        let span =
            |stride: i64, extent: usize| if extent > 1 { stride as i128 * unit * (extent as i128 - 1) } else { 0 };
        let (down, right) = (span(row, rows), span(col, cols));
        let first = index as i128 * unit;
        let low = first.saturating_add(down.min(0)).saturating_add(right.min(0));
        let high = first.saturating_add(down.max(0)).saturating_add(right.max(0));
        if low < 0 || high > access.bytes as i128 - access.width as i128 {
            let at = if low < 0 { low } else { high };
            return Err(Fault::Bounds {
                access: e as u32,
                index: (at / unit).clamp(i64::MIN as i128, i64::MAX as i128) as i64,
            });
        }
        if access.unit < access.width {
            let width = access.width as i128;
            let steps = (if rows > 1 { row as i128 * unit % width } else { 0 })
                | (if cols > 1 { col as i128 * unit % width } else { 0 });
            if first % width != 0 || steps != 0 {
                return Err(Fault::Misaligned { access: e as u32, index });
            }
        }
        Ok(Rectangle {
            start: start.offset(first as isize),
            row: (row as i128 * unit) as isize,
            col: (col as i128 * unit) as isize,
        })
    }
}

/// Stops the machine with a fault.
#[inline(never)]
#[cold]
pub(crate) fn fault(m: &mut Machine, pc: *const Inst, fault: Fault) -> *const Inst {
    m.stop_at(pc, Stop::Fault(fault))
}

/// True if an offset is not a multiple of the access's width. Widths are powers of two (verified), so a mask is enough.
#[inline(always)]
fn is_misaligned(access: &Access, offset: u64) -> bool {
    access.unit < access.width && offset & u64::from(access.width - 1) != 0
}

#[inline(always)]
fn offset_of(access: &Access, index: i64) -> Option<u64> {
    if index < 0 { None } else { (index as u64).checked_mul(access.unit as u64) }
}
