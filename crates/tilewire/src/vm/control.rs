//! Control flow, strips, signals and posts.

use super::address::{bank, element, fault};
use super::copy;
use super::machine::{Blocked, Cursor, Fault, Handler, Inst, Machine, Stop, Watch};
use super::pace::Group;
use super::scalar_op::{self, Compare};
use super::stamp::WordStamp;
use crate::ir::CompareOp;
use crate::ir::matching::{self, Look};
use crate::tensor::push;
use std::sync::atomic::{AtomicU64, Ordering};

// SAFETY, for every `unsafe` in this file: operands are registers, table entries and jump targets of a verified
// program; slot addresses are checked against their table.

/// `End`
pub(crate) unsafe fn end(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // Readers of this launch's streamed stores learn of them after the launch returns: the stores must be done by then.
    if std::mem::take(&mut m.streamed) {
        copy::fence();
    }
    m.stop_at(pc, Stop::Done)
}

/// `Jump`
pub(crate) unsafe fn jump(_: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe { pc.offset((*pc).e as isize) }
}

/// A polling loop lets other machines run after this many turns. The awaited line is often only one cache-line transfer
/// away, which is a few turns. A loop that computes pays a few nanoseconds for each pause.
const TURNS: u32 = 256;

/// `Again`: a loop that reads memory written by others may be waiting for a role of this very thread.
pub(crate) unsafe fn again(m: &mut Machine, pc: *const Inst) -> *const Inst {
    m.turns = m.turns.wrapping_add(1);
    // SAFETY: see above.
    unsafe { if m.turns.is_multiple_of(TURNS) { let_others_run(m, pc) } else { pc.offset((*pc).e as isize) } }
}

/// `Again`, after `TURNS` turns. If all registers are as they were when the loop last came here, only someone else's
/// write can change what it does. It is then waiting, and the deadline applies. Otherwise it may be computing, and
/// counts as making progress. So a loop that counts its turns, or polls several words alternately, is not ended by the
/// deadline. It ends by itself, by the value it polls for, or by the abort word.
#[inline(never)]
unsafe fn let_others_run(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let poll = (*pc).a;
        let mix = |hash: u64, x: u64| (hash ^ x).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let registers = 0..m.role().registers.len();
        let found = registers.map(|reg| m.reg(reg as u16)).fold(u64::from(poll) + 1, mix);
        if found != m.polled {
            m.polled = found;
            m.passed += 1;
        }
        m.watch = Watch::Polled;
        m.stop_at(pc.offset((*pc).e as isize), Stop::Blocked(Blocked::Poll { poll: u32::from(poll) }))
    }
}

/// `JumpUnless`
pub(crate) unsafe fn jump_unless(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe { if m.reg((*pc).a) == 0 { pc.offset((*pc).e as isize) } else { pc.add(1) } }
}

/// Handler of `JumpUnlessU64`.
pub(crate) fn jump_unless_u64(op: CompareOp) -> Handler {
    match op {
        CompareOp::Eq => jump_unless_of::<scalar_op::Eq>,
        CompareOp::Ne => jump_unless_of::<scalar_op::Ne>,
        CompareOp::Lt => jump_unless_of::<scalar_op::Lt>,
        CompareOp::Le => jump_unless_of::<scalar_op::Le>,
        CompareOp::Gt => jump_unless_of::<scalar_op::Gt>,
        CompareOp::Ge => jump_unless_of::<scalar_op::Ge>,
    }
}

unsafe fn jump_unless_of<O: Compare<u64>>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        if O::apply(m.reg(i.a), m.reg(i.b)) { pc.add(1) } else { pc.offset(i.e as isize) }
    }
}

/// `JumpIfBits`
pub(crate) unsafe fn jump_if_bits(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        if m.reg(i.a) & m.reg(i.b) != 0 { pc.offset(i.e as isize) } else { pc.add(1) }
    }
}

/// `ForBegin`
pub(crate) unsafe fn for_begin(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        let (start, end, step) = (m.reg(i.b) as i64, m.reg(i.c) as i64, m.reg(i.d) as i64);
        m.set_reg(i.a, start as u64);
        if start < end && step > 0 { pc.add(1) } else { pc.offset(i.e as isize) }
    }
}

/// `ForNext`
pub(crate) unsafe fn for_next(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        let (index, step, end) = (m.reg(i.a) as i64, m.reg(i.b) as i64, m.reg(i.c) as i64);
        // A sum beyond i64 is beyond any bound as well.
        match index.checked_add(step) {
            Some(next) if next < end => {
                m.set_reg(i.a, next as u64);
                pc.offset(i.e as isize)
            }
            _ => pc.add(1),
        }
    }
}

/// `EachBegin`
pub(crate) unsafe fn each_begin(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let each = m.each((*pc).e);
        let known = u64::from(each.one_strip);
        if known > 0 && known * u64::from(each.store_bytes) < m.plain_below {
            m.passed += 1;
            m.stream_lane = u16::MAX;
            let (rows, tile_rows, cols, tile_cols) = (1, 1, known, known);
            let stream_from = usize::MAX;
            m.cursor = Cursor { rows, cols, streaming: false, stream_from, row: 0, col: 0, tile_rows, tile_cols };
            m.counts[0] = known as usize;
            return pc.add(1);
        }
        let rows = each.rows.map_or(1, |reg| m.reg(reg) as i64);
        let cols = m.reg(each.cols) as i64;
        if rows <= 0 || cols <= 0 {
            return pc.offset(each.end as isize);
        }
        let (mut rows, mut cols) = (rows as u64, cols as u64);
        if each.flat {
            // A product that saturates is larger than any buffer: its first access faults.
            (rows, cols) = (1, rows.saturating_mul(cols));
        }
        m.passed += 1;
        let stored = rows.saturating_mul(cols).saturating_mul(u64::from(each.store_bytes));
        if stored >= m.pace.from() {
            m.begin_step(stored);
        }
        let stream_from = if each.may_stream { m.stream_from } else { usize::MAX };
        let streaming = each.stream_bytes > 0
            && rows.saturating_mul(cols).saturating_mul(each.stream_bytes as u64) >= stream_from as u64;
        m.stream_lane = u16::MAX;
        m.cursor = Cursor { rows, cols, streaming, stream_from, row: 0, col: 0, tile_rows: 0, tile_cols: 0 };
        open_strip(m, (*pc).e);
        pc.add(1)
    }
}

/// `EachNext`
pub(crate) unsafe fn each_next(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let each = m.each((*pc).e);
        let cursor = &mut m.cursor;
        cursor.col += cursor.tile_cols;
        if cursor.col >= cursor.cols {
            cursor.col = 0;
            cursor.row += cursor.tile_rows;
            if cursor.row >= cursor.rows {
                // The instruction set allows streamed bytes to be read again, even by this thread, only after a fence.
                if std::mem::take(&mut m.streamed) {
                    copy::fence();
                }
                m.end_step();
                return pc.add(1);
            }
        }
        open_strip(m, (*pc).e);
        pc.offset(each.top as isize)
    }
}

/// Sets the strip's extents and counts from its position.
#[inline(always)]
unsafe fn open_strip(m: &mut Machine, e: i32) {
    // SAFETY: see above.
    unsafe {
        let each = m.each(e);
        let cursor = &mut m.cursor;
        cursor.tile_rows = (cursor.rows - cursor.row).min(each.tile_rows as u64);
        cursor.tile_cols = (cursor.cols - cursor.col).min(each.tile_cols);
        // Saturates only if no strip memory bounds the tile. Every access is then checked by rows and columns.
        let elements = cursor.tile_rows.saturating_mul(cursor.tile_cols) as usize;
        m.counts[0] = elements;
        for (count, &group) in m.counts.iter_mut().zip(&each.groups).skip(1) {
            *count = elements.div_ceil(group as usize);
        }
    }
}

/// Address of a slot, or a fault.
#[inline(always)]
unsafe fn slot_address(m: &Machine, e: i32) -> Result<(&'static AtomicU64, i64, i64), Fault> {
    // SAFETY: see above. The reference does not outlive the handler call; the memory behind it lives as long as the
    // machine.
    unsafe {
        let slot = m.slot(e);
        let index = m.reg(slot.index) as i64;
        let bank = slot.bank.map_or(0, |reg| m.reg(reg) as i64);
        if index as u64 >= slot.len || bank as u64 >= slot.banks as u64 {
            return Err(Fault::Slot { slot: e as u32, bank, index });
        }
        let start = m.base(slot.first as usize + bank as usize);
        Ok((AtomicU64::from_ptr(start.add(index as usize * slot.stride as usize).cast()), bank, index))
    }
}

/// How counts become words in a bank of slots.
#[inline(always)]
unsafe fn words(m: &Machine, e: i32, bank: i64) -> WordStamp {
    // SAFETY: see above.
    unsafe {
        match m.slot(e).bank {
            None => m.slot_place(e).words,
            Some(_) => WordStamp::of(m.slot(e).operations.as_deref(), bank as usize),
        }
    }
}

/// `Signal`: everything this instance did before is visible to a thread that sees the new value. A credit is the same
/// store: on a CPU a release store also keeps earlier reads before it.
pub(crate) unsafe fn signal(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let place = m.slot_place((*pc).e);
        let (Some(slot), false) = (place.known(m, 1), m.streamed) else { return signal_anywhere(m, pc) };
        AtomicU64::from_ptr(slot.cast()).store(place.words.word(m.reg((*pc).a)), Ordering::Release);
        m.ring(place.entry as usize);
        pc.add(1)
    }
}

/// `Signal` to any bank, after any stores.
#[inline(never)]
unsafe fn signal_anywhere(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        match slot_address(m, (*pc).e) {
            Ok((slot, bank, _)) => {
                // A release store does not order non-temporal stores.
                if std::mem::take(&mut m.streamed) {
                    copy::fence();
                }
                let entry = m.slot((*pc).e).first as usize + bank as usize;
                slot.store(words(m, (*pc).e, bank).word(m.reg((*pc).a)), Ordering::Release);
                m.ring(entry);
                pc.add(1)
            }
            Err(what) => fault(m, pc, what),
        }
    }
}

/// `Wait`
///
/// Two hints affect only when cache lines move. A wait that is about to spin fetches the slot that is signalled
/// afterwards (`b`). That line is in the peer's cache, and a store that had to fetch it would hold up every later
/// store, including the answer to the message. A wait that is satisfied fetches the slot of the next wait (`c` further
/// on): slots are waited for in order, and if this value is there the next one usually is too. This is not done for a
/// far peer, because the time its next value takes to read tells whether it is still far.
pub(crate) unsafe fn wait(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        let (expected, address) = (m.reg(i.a), slot_address(m, i.e));
        match address {
            Ok(_) if m.pace.is_far() => wait_for_far(m, pc),
            Ok((slot, bank, _)) if is_there(words(m, i.e, bank), slot, expected) => {
                m.passed += 1;
                copy::prefetch(slot.as_ptr().wrapping_byte_add(m.slot(i.e).stride as usize * i.c as usize).cast());
                pc.add(1)
            }
            _ => wait_for(m, pc),
        }
    }
}

/// True if a slot has reached a count of the expected operation.
#[inline(always)]
fn is_there(words: WordStamp, slot: &AtomicU64, count: u64) -> bool {
    words.look(slot.load(Ordering::Acquire), words.word(count)) == Look::Ready
}

/// `Wait` of a machine that writes to a far peer. The first wait of a launch also looks at the preceding counters of
/// its group, to learn whether the peer is still far.
#[inline(never)]
unsafe fn wait_for_far(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above. The other slots looked at have smaller numbers than one that was found to be in the same bank.
    unsafe {
        let i = *pc;
        let expected = m.reg(i.a);
        let Ok((slot, bank, index)) = slot_address(m, i.e) else { return wait_for(m, pc) };
        let group = Group { slot: i.e, bank, index: index as u64, beside: u64::from(i.c).saturating_sub(1) };
        let words = words(m, i.e, bank);
        if m.pace.look(group, || is_there(words, slot, expected), |k| slot_of(m, group, k)) {
            m.passed += 1;
            return pc.add(1);
        }
        let next = wait_for(m, pc);
        if next == pc.add(1) {
            m.pace.look(group, || true, |k| slot_of(m, group, k));
        }
        next
    }
}

/// The value of slot `k` of a bank.
///
/// # Safety
/// `group` names a slot that was found to be in that bank of a table of `m`, and `k` is not larger.
unsafe fn slot_of(m: &Machine, group: Group, k: u64) -> u64 {
    // SAFETY: the caller's promise; slots are only touched by atomics.
    unsafe {
        let (stride, first) = (m.slot(group.slot).stride as usize, m.slot(group.slot).first as usize);
        let start = m.base(first + group.bank as usize);
        AtomicU64::from_ptr(start.add(k as usize * stride).cast()).load(Ordering::Relaxed)
    }
}

/// Before the first store of this launch, looks at the neighbours of the last slot that the previous launch waited for.
///
/// # Safety
/// `group` was noted by a wait of this very machine.
#[inline(never)]
pub(crate) unsafe fn look_again(m: &Machine, group: Group) {
    // SAFETY: the slot was in its bank then, and a machine keeps its tables; only smaller numbers are looked at.
    m.pace.look_beside(group, |k| unsafe { slot_of(m, group, k) });
}

/// `Wait` for a value that was not there at the first look.
#[inline(never)]
unsafe fn wait_for(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        match slot_address(m, i.e) {
            Ok((slot, bank, index)) => {
                let (stamp, slot_ref) = (words(m, i.e, bank), i.e as u32);
                let (mut seen, expected) = (slot.load(Ordering::Acquire), stamp.word(m.reg(i.a)));
                prepare_signal(m, i.b);
                let mut looks = m.looks;
                while stamp.look(seen, expected) == Look::Missing && looks > 0 {
                    std::hint::spin_loop();
                    seen = slot.load(Ordering::Acquire);
                    looks -= 1;
                }
                match stamp.look(seen, expected) {
                    Look::Ready => {
                        m.passed += 1;
                        pc.add(1)
                    }
                    Look::Other => fault(m, pc, Fault::OtherSignal { slot: slot_ref, bank, index, expected, seen }),
                    Look::Missing => {
                        m.watch = Watch::Slot { slot, expected, stamp };
                        let [expected, seen] = [expected, seen].map(|word| stamp.count(word));
                        m.stop_at(pc, Stop::Blocked(Blocked::Slot { slot: slot_ref, bank, index, expected, seen }))
                    }
                }
            }
            Err(what) => fault(m, pc, what),
        }
    }
}

/// Fetches for writing the slot that a later instruction signals. `signal` is its number in the table plus 1, or 0 for
/// none.
///
/// # Safety
/// `signal` is that operand of an instruction of the verified program of `m`.
#[inline(always)]
pub(crate) unsafe fn prepare_signal(m: &Machine, signal: u16) {
    // SAFETY: the caller's promise; the address is checked, and a hint without a valid slot is skipped.
    unsafe {
        if signal > 0
            && let Ok((slot, ..)) = slot_address(m, i32::from(signal) - 1)
        {
            copy::prefetch_for_write(slot.as_ptr().cast());
        }
    }
}

/// `Test`. A failed test lets other machines run: a role may poll in a loop, and the signalling role may be on this
/// thread.
pub(crate) unsafe fn test(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        match slot_address(m, i.e) {
            Ok((slot, bank, index)) => {
                let stamp = words(m, i.e, bank);
                let (seen, expected) = (slot.load(Ordering::Acquire), stamp.word(m.reg(i.b)));
                let look = stamp.look(seen, expected);
                m.set_reg(i.a, (look == Look::Ready) as u64);
                match look {
                    Look::Ready => {
                        m.passed += 1;
                        pc.add(1)
                    }
                    Look::Other => fault(m, pc, Fault::OtherSignal { slot: i.e as u32, bank, index, expected, seen }),
                    Look::Missing => {
                        m.watch = Watch::Polled;
                        let [expected, seen] = [expected, seen].map(|word| stamp.count(word));
                        let blocked = Blocked::Slot { slot: i.e as u32, bank, index, expected, seen };
                        m.stop_at(pc.add(1), Stop::Blocked(blocked))
                    }
                }
            }
            Err(what) => fault(m, pc, what),
        }
    }
}

/// `Require`
pub(crate) unsafe fn require(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe { if m.reg((*pc).a) != 0 { pc.add(1) } else { fault(m, pc, Fault::Required { require: (*pc).e as u32 }) } }
}

/// A post of this many bytes is handed to the network before the role goes on. Its bytes then travel while the role
/// fills the next slot, and the receiver need not wait until the whole message was filled.
const LARGE_POST: u64 = 32 << 10;

/// `Post`
pub(crate) unsafe fn post(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above; the source range is checked, and the verifier checked that the memory holds a ring of this
    // capacity.
    unsafe {
        let post = m.post((*pc).e);
        let [mut source, mut destination, mut count] = [0; 3];
        if let Some((src, dst, bytes)) = post.span {
            let access = m.access(src as i32);
            let (index, bytes) = (m.reg(access.base) as i64, m.reg(bytes) as i64);
            if bytes < 0 {
                return fault(m, pc, Fault::Count { access: src, count: bytes });
            }
            let start = bank(m, access, src as i32);
            let from = match bytes {
                // Nothing is read, so any address will do.
                0 => start,
                _ => start.and_then(|start| {
                    element(access, src as i32, start, index.wrapping_add(bytes - 1))?;
                    element(access, src as i32, start, index)
                }),
            };
            match from {
                Ok(from) => (source, destination, count) = (from as u64, m.reg(dst), bytes as u64),
                Err(what) => return fault(m, pc, what),
            }
        }
        let (slot, value) = match post.notice {
            Some((slot, value, Some(operation))) => (m.reg(slot), matching::word(m.reg(value), operation)),
            Some((slot, value, None)) => (m.reg(slot), m.reg(value)),
            None => (0, 0),
        };
        if std::mem::take(&mut m.streamed) {
            copy::fence();
        }
        let words = [post.head | m.reg(post.peer).min(u64::from(u32::MAX)), source, destination, count, slot, value];
        let [entries, tickets] = [0, 1].map(|k| m.base(usize::from(post.queue) + k));
        if push(entries, tickets, post.capacity, &words) {
            // A waiting thread of this rank may sleep there. It drives the proxy when it wakes. If all threads compute,
            // the proxy's own thread finds the post (`transport/proxy/duty.rs`).
            m.ring(usize::from(post.queue));
            if count >= LARGE_POST {
                m.progress();
            }
            m.passed += 1;
            pc.add(1)
        } else {
            // The consumer of the ring rings no bell.
            m.watch = Watch::Polled;
            m.stop_at(pc, Stop::Blocked(Blocked::Queue { post: (*pc).e as u32 }))
        }
    }
}
