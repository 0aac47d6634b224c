//! Moves whole rows from one place in memory to another, outside any `each`: for an `each` that only copies, and for
//! bulk copies.

use super::super::address::{contiguous, contiguous_from, fault, from_base};
use super::super::copy::{self, Stores};
use super::super::machine::{Inst, Machine};
use super::memory::move_bytes;

// SAFETY, for every `unsafe` in this file: operands are those of a verified program; addresses of memory come from
// `address`, which checked them against the bank, or from a known place.

/// `Bulk`: on a CPU the asynchronous copy happens immediately.
pub(crate) unsafe fn bulk(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above. The cursor is reset: a bulk copy is outside any `each`, and its accesses have no strides.
    unsafe {
        let i = *pc;
        let count = m.reg(i.a) as i64;
        if count < 0 {
            return fault(m, pc, super::super::machine::Fault::Count { access: i.e as u32, count });
        }
        m.cursor = Default::default();
        let (from, to) = (contiguous(m, i.e, count as usize), contiguous(m, i.e + 1, count as usize));
        match (from, to) {
            (Ok(from), Ok(to)) => {
                let bytes = count as usize * m.access(i.e).width as usize;
                if move_bytes(m, to, from, bytes, m.stream_from) {
                    // So that a `BulkWait` has nothing left to do.
                    copy::fence();
                }
                pc.add(1)
            }
            (Err(what), _) | (_, Err(what)) => fault(m, pc, what),
        }
    }
}

/// `CopyRow`
pub(crate) unsafe fn copy_row(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above. It is outside any `each`: there is no strip, and the elements begin at the base of each
    // access.
    unsafe {
        let i = *pc;
        let count = m.reg(i.a);
        let (Some(from), Some(to)) = (m.place(i.e).known(m, count), m.place(i.e + 1).known(m, count)) else {
            return copy_row_anywhere(m, pc);
        };
        copy_elements(m, pc, from, to)
    }
}

/// `CopyRow` between arbitrary banks.
#[inline(never)]
unsafe fn copy_row_anywhere(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `copy_row`.
    unsafe {
        let i = *pc;
        let count = m.reg(i.a) as i64;
        if count <= 0 {
            return pc.add(1);
        }
        match (from_base(m, i.e, count as usize), from_base(m, i.e + 1, count as usize)) {
            (Ok(from), Ok(to)) => copy_elements(m, pc, from, to),
            (Err(what), _) | (_, Err(what)) => fault(m, pc, what),
        }
    }
}

/// The part of `CopyRow` after the bounds checks.
///
/// # Safety
/// `pc` is a `CopyRow` of the verified program of `m`, and its elements at `from` and `to` are in bounds.
#[inline(always)]
unsafe fn copy_elements(m: &mut Machine, pc: *const Inst, from: *mut u8, to: *mut u8) -> *const Inst {
    // SAFETY: the caller's promise.
    unsafe {
        let i = *pc;
        m.passed += 1;
        let bytes = m.reg(i.a) as usize * m.access(i.e).width as usize;
        let timed = bytes as u64 >= m.pace.from();
        if timed {
            m.begin_step(bytes as u64);
        }
        if move_bytes(m, to, from, bytes, m.stream_from) {
            // As at the end of an `each`: streamed bytes may be read again only after a fence.
            copy::fence();
        }
        if timed {
            m.end_step();
        }
        pc.add(1)
    }
}

/// `CopyTwoRows`
pub(crate) unsafe fn copy_two_rows(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `copy_row`; the program was verified, so there are four accesses.
    unsafe {
        let i = *pc;
        let count = m.reg(i.a) as i64;
        if count <= 0 {
            return pc.add(1);
        }
        let mut places = [std::ptr::null_mut(); 4];
        for (k, place) in places.iter_mut().enumerate() {
            match from_base(m, i.e + k as i32, count as usize) {
                Ok(start) => *place = start,
                Err(what) => return fault(m, pc, what),
            }
        }
        m.passed += 1;
        let (from, to) = ([places[0].cast_const(), places[2].cast_const()], [places[1], places[3]]);
        let bytes = count as usize * m.access(i.e).width as usize;
        // This cannot overflow: no bank is larger than half the address space.
        let stored = 2 * bytes;
        let timed = stored as u64 >= m.pace.from();
        if timed {
            m.begin_step(stored as u64);
        }
        let is_apart = |a: *const u8, b: *const u8| (a as usize).abs_diff(b as usize) >= bytes;
        let read = |to: *mut u8| from.iter().any(|from| !is_apart(to, *from));
        let streamed = if read(to[0]) || read(to[1]) || !is_apart(to[0], to[1]) {
            [0, 1].into_iter().fold(false, |streamed, k| streamed | move_bytes(m, to[k], from[k], bytes, usize::MAX))
        } else {
            let stores = [0, 1].map(|k| {
                let stream_from = if i.b >> k & 1 == 1 { m.stream_from } else { m.stream_kept_from };
                if stored >= stream_from { Stores::Streamed } else { Stores::Cached }
            });
            copy::copy_two(to, from, bytes, stores, m.level)
        };
        if streamed {
            // As for `CopyRow`.
            copy::fence();
        }
        if timed {
            m.end_step();
        }
        pc.add(1)
    }
}

/// The lines of the next slot are prefetched for messages of up to this many bytes. For larger ones the copy itself
/// hides the latency.
pub(crate) const FETCHED: usize = 16 << 10;

/// `FetchSlot`
pub(crate) unsafe fn fetch_slot(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above; as for `CopyRow`.
    unsafe {
        let i = *pc;
        let bytes = (m.reg(i.a) as usize).saturating_mul(m.access(i.e).width as usize);
        if bytes <= FETCHED {
            let index = (m.reg(i.b) & m.reg(i.c)).wrapping_mul(m.reg(i.d)) as i64;
            // If there is no such slot, there is nothing to prefetch.
            if let Ok(start) = contiguous_from(m, i.e, index, m.reg(i.a) as usize) {
                copy::prefetch_all_for_write(start, bytes);
            }
        }
        pc.add(1)
    }
}
