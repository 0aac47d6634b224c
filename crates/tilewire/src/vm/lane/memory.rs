//! Moves between lanes and memory that are not plain pointer bindings: strided, tiled, by index, masked, atomic.

use super::super::address::{self, bank, contiguous, element, fault, rectangle};
use super::super::copy::{self, Stores};
use super::super::level::Level;
use super::super::machine::{Handler, Inst, Machine};
use super::super::transpose::transpose;
use super::{LaneOp, get, handler_for, put};
use crate::ir::Type;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The expression with `$W` the unsigned integer of `$size` bytes.
macro_rules! by_size {
    ($size:expr, $W:ident => $body:expr) => {
        match $size {
            1 => {
                type $W = u8;
                $body
            }
            2 => {
                type $W = u16;
                $body
            }
            4 => {
                type $W = u32;
                $body
            }
            _ => {
                type $W = u64;
                $body
            }
        }
    };
}

/// Handler of `LoadStrided`.
pub(crate) fn load_strided(size: u8, level: Level) -> Handler {
    by_size!(size, W => handler_for::<LoadStrided<W>>(level))
}

/// Handler of `StoreStrided`.
pub(crate) fn store_strided(size: u8, level: Level) -> Handler {
    by_size!(size, W => handler_for::<StoreStrided<W>>(level))
}

/// Handler of `LoadTile`.
pub(crate) fn load_tile(size: u8) -> Handler {
    by_size!(size, W => load_tile_of::<W>)
}

/// Handler of `StoreTile`.
pub(crate) fn store_tile(size: u8) -> Handler {
    by_size!(size, W => store_tile_of::<W>)
}

/// Handler of `MoveTile`.
pub(crate) fn move_tile(size: u8) -> Handler {
    by_size!(size, W => move_tile_of::<W>)
}

/// Handler of `Gather` by indices of an integer type.
pub(crate) fn gather(size: u8, index: Type, level: Level) -> Handler {
    match index {
        Type::I32 => by_size!(size, W => handler_for::<Gather<W, i32>>(level)),
        Type::I64 => by_size!(size, W => handler_for::<Gather<W, i64>>(level)),
        other => unreachable!("the lowering gathers by i32 and i64, not {other}"),
    }
}

/// Handler of `GatherMasked`.
pub(crate) fn gather_masked(size: u8) -> Handler {
    by_size!(size, W => gather_masked_of::<W>)
}

/// Handler of `Scatter`.
pub(crate) fn scatter(size: u8) -> Handler {
    by_size!(size, W => scatter_of::<W, false>)
}

/// Handler of `ScatterMasked`.
pub(crate) fn scatter_masked(size: u8) -> Handler {
    by_size!(size, W => scatter_of::<W, true>)
}

/// Handler of `AffineIndex`.
pub(crate) fn affine_index(level: Level) -> Handler {
    handler_for::<AffineIndex>(level)
}

// SAFETY, for every `unsafe` in this file: operands are those of a verified program; lanes have at least `counts[d]`
// elements of the op's size; addresses of memory come from `address`, which checked them against the bank, or from a
// known place.

/// `Bind`: points a lane at memory.
pub(crate) unsafe fn bind(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        match contiguous(m, i.e, m.counts[i.d as usize]) {
            Ok(start) => {
                m.bind(i.a, start);
                pc.add(1)
            }
            Err(what) => fault(m, pc, what),
        }
    }
}

/// `BindStore`: points a lane at memory that the next op writes, bypassing the cache if the `each` is large.
pub(crate) unsafe fn bind_store(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `bind`.
    unsafe {
        m.stream_lane = if m.cursor.streaming { (*pc).a } else { u16::MAX };
        bind(m, pc)
    }
}

/// `CopyOut`: copies a lane to contiguous memory.
pub(crate) unsafe fn copy_out(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `out`.
    unsafe { out(m, pc, m.cursor.stream_from) }
}

/// `StreamOut`: like `CopyOut`, bypassing the cache if the `each` is large.
pub(crate) unsafe fn stream_out(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `out`.
    unsafe { out(m, pc, if m.cursor.streaming { 0 } else { m.cursor.stream_from }) }
}

/// Copies a lane to contiguous memory, bypassing the cache from `stream_from` bytes on.
#[inline(always)]
unsafe fn out(m: &mut Machine, pc: *const Inst, stream_from: usize) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        let count = m.counts[i.d as usize];
        match contiguous(m, i.e, count) {
            Ok(to) => {
                let bytes = count * m.access(i.e).width as usize;
                m.streamed |= move_bytes(m, to, m.lane(i.a), bytes, stream_from);
                pc.add(1)
            }
            Err(what) => fault(m, pc, what),
        }
    }
}

/// Copies bytes that may overlap, bypassing the cache from `stream_from` bytes on. Returns whether it used non-temporal
/// stores.
///
/// # Safety
/// Both ranges are valid.
pub(super) unsafe fn move_bytes(m: &Machine, to: *mut u8, from: *const u8, bytes: usize, stream_from: usize) -> bool {
    let (a, b) = (to as usize, from as usize);
    // SAFETY: the caller's promise; overlapping ranges go to the function that allows them.
    unsafe {
        if a < b + bytes && b < a + bytes {
            std::ptr::copy(from, to, bytes);
            false
        } else {
            let stores = if bytes >= stream_from { Stores::Streamed } else { Stores::Cached };
            copy::copy(to, from, bytes, stores, m.level)
        }
    }
}

struct LoadStrided<W>(PhantomData<W>);
struct StoreStrided<W>(PhantomData<W>);
struct Gather<W, I>(PhantomData<(W, I)>);
struct AffineIndex;

impl<W: Copy> LaneOp for LoadStrided<W> {
    #[inline(always)]
    unsafe fn run<const AVX2: bool>(m: &mut Machine, pc: *const Inst) -> *const Inst {
        // SAFETY: see above.
        unsafe {
            let i = *pc;
            let (dst, n) = (m.lane(i.a).cast::<W>(), m.counts[i.d as usize]);
            match rectangle(m, i.e, 1, n) {
                Ok(from) if from.col == 0 => {
                    let x = from.start.cast::<W>().read_unaligned();
                    (0..n).for_each(|k| put(dst, k, x));
                }
                Ok(from) => {
                    let mut p = from.start.cast_const();
                    for k in 0..n {
                        put(dst, k, p.cast::<W>().read_unaligned());
                        p = p.wrapping_offset(from.col);
                    }
                }
                Err(what) => return fault(m, pc, what),
            }
            pc.add(1)
        }
    }
}

impl<W: Copy> LaneOp for StoreStrided<W> {
    #[inline(always)]
    unsafe fn run<const AVX2: bool>(m: &mut Machine, pc: *const Inst) -> *const Inst {
        // SAFETY: see above.
        unsafe {
            let i = *pc;
            let (src, n) = (m.lane(i.a).cast::<W>(), m.counts[i.d as usize]);
            match rectangle(m, i.e, 1, n) {
                Ok(to) => {
                    let mut p = to.start;
                    for k in 0..n {
                        p.cast::<W>().write_unaligned(get(src, k));
                        p = p.wrapping_offset(to.col);
                    }
                    pc.add(1)
                }
                Err(what) => fault(m, pc, what),
            }
        }
    }
}

unsafe fn load_tile_of<W: Copy>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above; a packed tile has tile_rows * tile_cols elements, which is `counts[0]`.
    unsafe {
        let i = *pc;
        let (rows, cols) = (m.cursor.tile_rows as usize, m.cursor.tile_cols as usize);
        match rectangle(m, i.e, rows, cols) {
            Ok(from) => {
                let packed = (m.lane(i.a), (cols * size_of::<W>()) as isize, size_of::<W>() as isize);
                // Never bypass the cache here: the target is strip memory, which is read immediately.
                move_rectangle::<W>(packed, (from.start, from.row, from.col), (rows, cols), usize::MAX, m.level);
                pc.add(1)
            }
            Err(what) => fault(m, pc, what),
        }
    }
}

unsafe fn store_tile_of<W: Copy>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `load_tile_of`.
    unsafe {
        let i = *pc;
        let (rows, cols) = (m.cursor.tile_rows as usize, m.cursor.tile_cols as usize);
        match rectangle(m, i.e, rows, cols) {
            Ok(to) => {
                let packed = (m.lane(i.a), (cols * size_of::<W>()) as isize, size_of::<W>() as isize);
                let (to, from) = ((to.start, to.row, to.col), m.cursor.stream_from);
                m.streamed |= move_rectangle::<W>(to, packed, (rows, cols), from, m.level);
                pc.add(1)
            }
            Err(what) => fault(m, pc, what),
        }
    }
}

unsafe fn move_tile_of<W: Copy>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above; the lowering emits this only for arguments that do not overlap.
    unsafe {
        let i = *pc;
        let (rows, cols) = (m.cursor.tile_rows as usize, m.cursor.tile_cols as usize);
        match (rectangle(m, i.e, rows, cols), rectangle(m, i.e + 1, rows, cols)) {
            (Ok(from), Ok(to)) => {
                let (to, from) = ((to.start, to.row, to.col), (from.start, from.row, from.col));
                m.streamed |= move_rectangle::<W>(to, from, (rows, cols), m.cursor.stream_from, m.level);
                pc.add(1)
            }
            (Err(what), _) | (_, Err(what)) => fault(m, pc, what),
        }
    }
}

/// Copies a rectangle of elements between two layouts (start, row stride, column stride in bytes) that do not overlap.
/// It copies by rows if both are contiguous along rows, uses the transpose kernel if one is contiguous along columns,
/// and otherwise goes element by element. Bypasses the cache from `stream_from` bytes on, and returns whether those
/// stores still need a fence.
///
/// # Safety
/// Every element of both rectangles is valid; the two do not overlap.
unsafe fn move_rectangle<W: Copy>(
    to: (*mut u8, isize, isize),
    from: (*mut u8, isize, isize),
    (rows, cols): (usize, usize),
    stream_from: usize,
    level: Level,
) -> bool {
    let size = size_of::<W>() as isize;
    let ((to, to_row, to_col), (from, from_row, from_col)) = (to, from);
    let bytes = rows.saturating_mul(cols).saturating_mul(size_of::<W>());
    let stores = if bytes >= stream_from { Stores::Streamed } else { Stores::Cached };
    let size_in_bytes = size_of::<W>();
    let mut streamed = false;
    // SAFETY: the caller's promise.
    unsafe {
        if to_col == size && from_col == size {
            for row in 0..rows as isize {
                let (to, from) = (to.offset(row * to_row), from.offset(row * from_row));
                streamed |= copy::copy(to, from, cols * size_in_bytes, stores, level);
            }
        } else if to_col == size && from_row == size && to_row > 0 && from_col > 0 {
            transpose(to, to_row as usize, from, from_col as usize, rows, cols, size_in_bytes, stores, level);
        } else if to_row == size && from_col == size && to_col > 0 && from_row > 0 {
            // The destination is contiguous along columns: the same kernel with the axes exchanged.
            transpose(to, to_col as usize, from, from_row as usize, cols, rows, size_in_bytes, stores, level);
        } else {
            for row in 0..rows as isize {
                for col in 0..cols as isize {
                    let x = from.offset(row * from_row + col * from_col).cast::<W>().read_unaligned();
                    to.offset(row * to_row + col * to_col).cast::<W>().write_unaligned(x);
                }
            }
        }
    }
    streamed
}

/// An index type.
trait Index: Copy + Default {
    /// The bound of an index, in the index's own width so that the check runs at full vector width.
    type Bound: Copy;
    fn wide(self) -> i64;
    /// The bound for a buffer of `len` elements.
    fn bound(len: u64) -> Self::Bound;
    /// Whether `0 <= self < len`.
    fn below(self, bound: Self::Bound) -> bool;
    /// Reads two adjacent non-negative indices, with a single load if they fit in a register: loads limit the speed of
    /// a gather.
    ///
    /// # Safety
    /// `from` is valid for reads of two indices.
    unsafe fn two(from: *const Self) -> [usize; 2];
}

impl Index for i32 {
    type Bound = u32;
    #[inline(always)]
    fn wide(self) -> i64 {
        self as i64
    }
    #[inline(always)]
    fn bound(len: u64) -> u32 {
        // As unsigned, a negative index is 2^31 or more, beyond every bound.
        len.min(1 << 31) as u32
    }
    #[inline(always)]
    fn below(self, bound: u32) -> bool {
        (self as u32) < bound
    }
    #[inline(always)]
    unsafe fn two(from: *const i32) -> [usize; 2] {
        // SAFETY: the caller's promise.
        let both = unsafe { from.cast::<u64>().read_unaligned() }.to_le();
        [both as u32 as usize, (both >> 32) as usize]
    }
}

impl Index for i64 {
    type Bound = u64;
    #[inline(always)]
    fn wide(self) -> i64 {
        self
    }
    #[inline(always)]
    fn bound(len: u64) -> u64 {
        len.min(1 << 63)
    }
    #[inline(always)]
    fn below(self, bound: u64) -> bool {
        (self as u64) < bound
    }
    #[inline(always)]
    unsafe fn two(from: *const i64) -> [usize; 2] {
        // SAFETY: the caller's promise.
        unsafe { [get(from, 0) as usize, get(from, 1) as usize] }
    }
}

impl<W: Copy, I: Index> LaneOp for Gather<W, I> {
    #[inline(always)]
    unsafe fn run<const AVX2: bool>(m: &mut Machine, pc: *const Inst) -> *const Inst {
        // SAFETY: see above; every index is checked before any element is read.
        unsafe {
            let i = *pc;
            let access = m.access(i.e);
            let (dst, index, n) = (m.lane(i.a).cast::<W>(), m.lane(i.b).cast::<I>(), m.counts[i.d as usize]);
            let start = match bank(m, access, i.e) {
                Ok(start) => start,
                Err(what) => return fault(m, pc, what),
            };
            if access.unit != access.width {
                // Byte offsets are rare, and each must also be aligned.
                for k in 0..n {
                    match element(access, i.e, start, get(index, k).wide()) {
                        Ok(from) => put(dst, k, from.cast::<W>().read_unaligned()),
                        Err(what) => return fault(m, pc, what),
                    }
                }
                return pc.add(1);
            }
            let len = I::bound(access.bytes / access.width as u64);
            // Check a copy of the indices and use the copy. The lane may be a tensor that another thread writes, so a
            // second read could return a different index.
            const STRIP: usize = 512;
            let mut checked = [I::default(); STRIP];
            for first in (0..n).step_by(STRIP) {
                let count = STRIP.min(n - first);
                let mut inside = true;
                for (k, checked) in checked[..count].iter_mut().enumerate() {
                    *checked = get(index, first + k);
                    inside &= checked.below(len);
                }
                if !inside {
                    let out = checked[..count].iter().find(|x| !x.below(len));
                    let index = out.map_or(0, |x| x.wide());
                    return fault(m, pc, super::super::machine::Fault::Bounds { access: i.e as u32, index });
                }
                let (dst, from) = (dst.add(first), start.cast::<W>().cast_const());
                for pair in 0..count / 2 {
                    let at = I::two(checked.as_ptr().add(2 * pair));
                    let x = at.map(|at| get(from, at));
                    put(dst, 2 * pair, x[0]);
                    put(dst, 2 * pair + 1, x[1]);
                }
                if count % 2 == 1 {
                    put(dst, count - 1, get(from, checked[count - 1].wide() as usize));
                }
            }
            pc.add(1)
        }
    }
}

unsafe fn gather_masked_of<W: Copy>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above; only elements whose mask is set are addressed.
    unsafe {
        let i = *pc;
        let access = m.access(i.e);
        let (dst, index, n) = (m.lane(i.a).cast::<W>(), m.lane(i.b).cast::<i64>(), m.counts[0]);
        let (mask, other) = (m.lane(i.c), m.lane(i.d).cast::<W>());
        let start = bank(m, access, i.e);
        for k in 0..n {
            let mut x = get(other, k);
            if get(mask, k) != 0 {
                match start.and_then(|start| element(access, i.e, start, get(index, k))) {
                    Ok(from) => x = from.cast::<W>().read_unaligned(),
                    Err(what) => return fault(m, pc, what),
                }
            }
            put(dst, k, x);
        }
        pc.add(1)
    }
}

unsafe fn scatter_of<W: Copy, const MASKED: bool>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above; only elements whose mask is set are addressed.
    unsafe {
        let i = *pc;
        let access = m.access(i.e);
        let (src, index, n) = (m.lane(i.a).cast::<W>(), m.lane(i.b).cast::<i64>(), m.counts[i.d as usize]);
        let start = bank(m, access, i.e);
        for k in 0..n {
            if MASKED && get(m.lane(i.c), k) == 0 {
                continue;
            }
            match start.and_then(|start| element(access, i.e, start, get(index, k))) {
                Ok(to) => to.cast::<W>().write_unaligned(get(src, k)),
                Err(what) => return fault(m, pc, what),
            }
        }
        pc.add(1)
    }
}

impl LaneOp for AffineIndex {
    #[inline(always)]
    unsafe fn run<const AVX2: bool>(m: &mut Machine, pc: *const Inst) -> *const Inst {
        // SAFETY: see above.
        unsafe {
            let i = *pc;
            let access = m.access(i.e);
            let dst = m.lane(i.a).cast::<i64>();
            let (rows, cols) = (m.cursor.tile_rows as usize, m.cursor.tile_cols as usize);
            let (row, col) = (m.reg(access.row_stride) as i64, m.reg(access.col_stride) as i64);
            if access.group != 0 {
                // Several strides together: compute each index from the definition.
                let (base, each_group) = (m.reg(access.base) as i64, m.reg(access.group_stride) as i64);
                for k in 0..rows * cols {
                    let (r, c) = ((m.cursor.row as usize + k / cols) as i64, (m.cursor.col as usize + k % cols) as i64);
                    let group = (c / access.group as i64).wrapping_mul(each_group);
                    let index = base.wrapping_add(row.wrapping_mul(r)).wrapping_add(col.wrapping_mul(c));
                    put(dst, k, index.wrapping_add(group));
                }
                return pc.add(1);
            }
            let first = address::first_index(m, access);
            for r in 0..rows {
                let first = first.wrapping_add(row.wrapping_mul(r as i64));
                let dst = dst.add(r * cols);
                for c in 0..cols {
                    put(dst, c, first.wrapping_add(col.wrapping_mul(c as i64)));
                }
            }
            pc.add(1)
        }
    }
}

/// Handler of `AtomicLanes` on elements of 4 or 8 bytes.
pub(crate) fn atomic_lanes(size: u8) -> Handler {
    if size == 4 { atomic_lanes_of::<u32> } else { atomic_lanes_of::<u64> }
}

/// A wrapping fetch-and-add; two's complement makes signed and unsigned the same.
pub(crate) trait FetchAdd: Copy + Default {
    /// # Safety
    /// `at` is valid and aligned for the type.
    unsafe fn fetch_add(at: *mut u8, x: Self) -> Self;
}

impl FetchAdd for u32 {
    #[inline(always)]
    unsafe fn fetch_add(at: *mut u8, x: u32) -> u32 {
        // SAFETY: the caller's promise. No order in the kernel language is stronger than AcqRel, which x86 provides for
        // free.
        unsafe { AtomicU32::from_ptr(at.cast()).fetch_add(x, Ordering::AcqRel) }
    }
}

impl FetchAdd for u64 {
    #[inline(always)]
    unsafe fn fetch_add(at: *mut u8, x: u64) -> u64 {
        // SAFETY: as for u32.
        unsafe { AtomicU64::from_ptr(at.cast()).fetch_add(x, Ordering::AcqRel) }
    }
}

unsafe fn atomic_lanes_of<W: FetchAdd>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above; the launch checked that arguments of atomic ops are aligned for their element.
    unsafe {
        let i = *pc;
        let access = m.access(i.e);
        let (dst, x, index) = (m.lane(i.a).cast::<W>(), m.lane(i.b).cast::<W>(), m.lane(i.c).cast::<i64>());
        // A releasing atomic must not overtake earlier streamed stores of this thread.
        if std::mem::take(&mut m.streamed) {
            copy::fence();
        }
        let start = bank(m, access, i.e);
        for k in 0..m.counts[0] {
            if i.d != u16::MAX && get(m.lane(i.d), k) == 0 {
                put(dst, k, W::default());
                continue;
            }
            match start.and_then(|start| element(access, i.e, start, get(index, k))) {
                Ok(at) => put(dst, k, W::fetch_add(at, get(x, k))),
                Err(what) => return fault(m, pc, what),
            }
        }
        pc.add(1)
    }
}
