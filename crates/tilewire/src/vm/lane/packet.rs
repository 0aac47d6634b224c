//! Packets: 16 bytes `{d32, flag, d32, flag}`. Each 8-byte half is written and read by one atomic access, so the flag
//! vouches for the data beside it without any fence.

use super::super::address::{bank, contiguous, element, fault, first_index, from_base};
use super::super::control::prepare_signal;
#[cfg(target_arch = "x86_64")]
use super::super::level::Level;
use super::super::machine::{Blocked, Fault, Inst, Machine, Stop, Watch};
use super::super::stamp::FlagStamp;
use super::{get, put};
use crate::ir::matching::Look;
use std::sync::atomic::{AtomicU64, Ordering};

/// `PacketPut`
pub(crate) unsafe fn packet_put(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: operands of a verified program; lanes have `counts[d]` elements; the address is checked; the launch
    // checked that packet areas are aligned to 16.
    unsafe {
        let i = *pc;
        let access = m.access(i.e);
        let (data, index) = (m.lane(i.a).cast::<u64>(), m.lane(i.b).cast::<i64>());
        let flag = u64::from(flags(m, i.e).flag(m.reg(i.c) as u32)) << 32;
        let start = bank(m, access, i.e);
        for k in 0..m.counts[i.d as usize] {
            let at = match start.and_then(|start| element(access, i.e, start, get(index, k))) {
                Ok(at) => at.cast::<u64>(),
                Err(what) => return fault(m, pc, what),
            };
            let x = get(data, k);
            store(at, (x & 0xffff_ffff) | flag, (x >> 32) | flag);
        }
        // One ring for the strip. With no elements, the bank was not checked, and nobody is woken.
        if start.is_ok() {
            ring(m, i.e);
        }
        pc.add(1)
    }
}

/// `PacketPutRow`
pub(crate) unsafe fn packet_put_row(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `packet_put`; `contiguous` checked that all packets lie in the bank.
    unsafe {
        let i = *pc;
        let count = m.counts[i.d as usize];
        match contiguous(m, i.e, count) {
            Ok(first) => {
                write_row(m, first.cast(), m.lane(i.a).cast(), count, flags(m, i.e).flag(m.reg(i.c) as u32));
                ring(m, i.e);
                pc.add(1)
            }
            Err(what) => fault(m, pc, what),
        }
    }
}

/// `PacketSend`. Handles one word at a known place, where each nanosecond counts. All other cases are in a separate
/// function, so that this one needs no stack.
pub(crate) unsafe fn packet_send(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `packet_put_row`; both places are known, so they need no check. There is no strip: both begin at
    // their base.
    unsafe {
        let i = *pc;
        let to = m.place(i.e + 1);
        let (Some(word), Some(packet), 1) = (m.place(i.e).known(m, 1), to.known(m, 1), m.reg(i.a)) else {
            return packet_send_many(m, pc);
        };
        m.passed += 1;
        write(packet.cast(), get(word.cast(), 0), to.flags.flag(m.reg(i.c) as u32));
        m.ring(to.entry as usize);
        pc.add(1)
    }
}

/// `PacketSend` of any number of words, anywhere.
#[inline(never)]
unsafe fn packet_send_many(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `packet_send`.
    unsafe {
        let i = *pc;
        let count = m.reg(i.a) as i64;
        if count <= 0 {
            return pc.add(1);
        }
        m.passed += 1;
        match (from_base(m, i.e, count as usize), from_base(m, i.e + 1, count as usize)) {
            (Ok(words), Ok(packets)) => {
                let flag = flags(m, i.e + 1).flag(m.reg(i.c) as u32);
                write_row(m, packets.cast(), words.cast(), count as usize, flag);
                ring(m, i.e + 1);
                pc.add(1)
            }
            (Err(what), _) | (_, Err(what)) => fault(m, pc, what),
        }
    }
}

/// `PacketGetRow`, which blocks as `PacketGet` does.
pub(crate) unsafe fn packet_get_row(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `packet_put_row`.
    unsafe {
        let i = *pc;
        let (count, flag) = (m.counts[i.d as usize], flags(m, i.e).flag(m.reg(i.c) as u32));
        match contiguous(m, i.e, count) {
            Ok(first) => match read_row(m, first.cast(), m.lane(i.a).cast(), count, flag) {
                Ok(()) => {
                    m.passed += 1;
                    pc.add(1)
                }
                Err(k) => block(m, pc, first.cast::<u64>().add(2 * k), first_index(m, m.access(i.e)) + k as i64, flag),
            },
            Err(what) => fault(m, pc, what),
        }
    }
}

/// `PacketReceive`, which blocks as `PacketGet` does. Handles one packet at a known place that has already arrived; all
/// other cases are in a separate function, as for [`packet_send`].
pub(crate) unsafe fn packet_receive(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `packet_send`.
    unsafe {
        let i = *pc;
        let from = m.place(i.e);
        let (packet, word) = (from.known(m, 1), m.place(i.e + 1).known(m, 1));
        let (Some(packet), Some(word), 1) = (packet, word, m.reg(i.a)) else {
            return packet_receive_many(m, pc);
        };
        match look(packet.cast(), from.flags.flag(m.reg(i.c) as u32)) {
            Some(x) => {
                put(word.cast(), 0, x);
                m.passed += 1;
                pc.add(1)
            }
            None => packet_receive_many(m, pc),
        }
    }
}

/// `PacketReceive` of any number of packets, anywhere, which may have to wait.
#[inline(never)]
unsafe fn packet_receive_many(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `packet_send`.
    unsafe {
        let i = *pc;
        let (count, flag) = (m.reg(i.a) as i64, flags(m, i.e).flag(m.reg(i.c) as u32));
        if count <= 0 {
            return pc.add(1);
        }
        match (from_base(m, i.e, count as usize), from_base(m, i.e + 1, count as usize)) {
            // For one packet, nothing comes between its arrival and the end.
            (Ok(packet), Ok(word)) if count == 1 => {
                let packet = packet.cast();
                let x = look(packet, flag).or_else(|| {
                    prepare_signal(m, i.b);
                    poll(packet, flag, m.looks)
                });
                match x {
                    Some(x) => {
                        put(word.cast(), 0, x);
                        m.passed += 1;
                        pc.add(1)
                    }
                    None => block(m, pc, packet, m.reg(m.access(i.e).base) as i64, flag),
                }
            }
            (Ok(packets), Ok(words)) => match read_row(m, packets.cast(), words.cast(), count as usize, flag) {
                Ok(()) => {
                    m.passed += 1;
                    pc.add(1)
                }
                Err(k) => {
                    let packet = m.reg(m.access(i.e).base) as i64 + k as i64;
                    block(m, pc, packets.cast::<u64>().add(2 * k), packet, flag)
                }
            },
            (Err(what), _) | (_, Err(what)) => fault(m, pc, what),
        }
    }
}

/// How flags of packets of access `e` become the flags that are sent. For a bank that does not exist the result is
/// arbitrary: using that bank faults.
///
/// # Safety
/// `e` is an access of the verified program of `m`.
#[inline(always)]
unsafe fn flags(m: &Machine, e: i32) -> FlagStamp {
    // SAFETY: the caller's promise.
    unsafe {
        match m.access(e).bank {
            None => m.place(e).flags,
            Some(reg) => FlagStamp::of(m.access(e).operations.as_deref(), m.reg(reg) as usize),
        }
    }
}

/// Wakes ranks that may sleep on packets of access `e`.
///
/// # Safety
/// `e` is an access of the verified program of `m`, and its bank was checked.
#[inline(always)]
unsafe fn ring(m: &Machine, e: i32) {
    // SAFETY: the caller's promise.
    unsafe {
        let access = m.access(e);
        m.ring(access.first as usize + access.bank.map_or(0, |reg| m.reg(reg) as usize));
    }
}

/// Writes adjacent packets.
///
/// # Safety
/// `first` is valid for `count` packets, aligned to 16, and `data` for `count` words.
#[inline(always)]
pub(crate) unsafe fn write_row(m: &Machine, first: *mut u64, data: *const u64, count: usize, flag: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut done = 0;
        #[cfg(target_arch = "x86_64")]
        if count >= PAIRS_FROM && m.level >= Level::Avx2 {
            done = pairs::put(first, data, count, flag);
        }
        for k in done..count {
            write(first.add(2 * k), get(data, k), flag);
        }
    }
}

/// Reads adjacent packets. Returns the index of the first that does not carry the flag in time.
///
/// # Safety
/// As for [`write_row`], with `data` valid for writes.
#[inline(always)]
pub(crate) unsafe fn read_row(
    m: &Machine,
    first: *mut u64,
    data: *mut u64,
    count: usize,
    flag: u32,
) -> Result<(), usize> {
    // SAFETY: the caller's promise.
    unsafe {
        let mut done = 0;
        #[cfg(target_arch = "x86_64")]
        if count >= PAIRS_FROM && m.level >= Level::Avx2 {
            done = pairs::get(first, data, count, flag, m.looks);
        }
        for k in done..count {
            put(data, k, poll(first.add(2 * k), flag, m.looks).ok_or(k)?);
        }
        Ok(())
    }
}

/// `PacketGet`: stops as blocked while a packet lacks the flag. When run again it starts over, and reads the same data.
pub(crate) unsafe fn packet_get(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `packet_put`.
    unsafe {
        let i = *pc;
        let access = m.access(i.e);
        let (data, index) = (m.lane(i.a).cast::<u64>(), m.lane(i.b).cast::<i64>());
        let flag = flags(m, i.e).flag(m.reg(i.c) as u32);
        let start = bank(m, access, i.e);
        for k in 0..m.counts[i.d as usize] {
            let packet = get(index, k);
            let at = match start.and_then(|start| element(access, i.e, start, packet)) {
                Ok(at) => at.cast::<u64>(),
                Err(what) => return fault(m, pc, what),
            };
            match poll(at, flag, m.looks) {
                Some(x) => put(data, k, x),
                None => return block(m, pc, at, packet, flag),
            }
        }
        m.passed += 1;
        pc.add(1)
    }
}

/// Fewer packets than this are moved one by one.
const PAIRS_FROM: usize = 4;

/// Packets in pairs, in vectors of 32 bytes. Each half of a packet stays whole, as with [`store`]: processors with AVX
/// move a vector in pieces of at least sixteen bytes, and packets are aligned to that.
#[cfg(target_arch = "x86_64")]
mod pairs {
    use std::arch::asm;
    use std::arch::x86_64::*;

    /// Writes the packets of an even number of words and returns how many it wrote.
    ///
    /// # Safety
    /// The processor has AVX2; `to` is valid for `count` packets, aligned to 16, and `data` for `count` words.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn put(to: *mut u64, data: *const u64, count: usize, flag: u32) -> usize {
        let flags = _mm256_set1_epi32(flag as i32);
        let even = count & !1;
        for k in (0..even).step_by(2) {
            // SAFETY: the caller's promise. In assembly, since peers read concurrently; see `store`.
            unsafe {
                let words = _mm_loadu_si128(data.add(k).cast());
                // d0 d1 d2 d3 ▶ d0 d1 . . d2 d3 . . ▶ d0 f d1 f d2 f d3 f
                let apart = _mm256_permute4x64_epi64::<0b01_01_00_00>(_mm256_castsi128_si256(words));
                let packets = _mm256_unpacklo_epi32(apart, flags);
                asm!("vmovdqu ymmword ptr [{at}], {x}", at = in(reg) to.add(2 * k), x = in(ymm_reg) packets,
                     options(nostack, preserves_flags));
            }
        }
        even
    }

    /// Reads packets in pairs, from the first on, until one does not carry the flag in time. Returns how many it read.
    ///
    /// # Safety
    /// As for [`put`], with `data` valid for writes.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn get(from: *mut u64, data: *mut u64, count: usize, flag: u32, looks: u32) -> usize {
        let flags = _mm256_set1_epi32(flag as i32);
        let order = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
        let even = count & !1;
        for k in (0..even).step_by(2) {
            let mut left = looks;
            let packets = loop {
                let packets: __m256i;
                // SAFETY: the caller's promise. In assembly, since peers write concurrently; see `store`.
                unsafe {
                    asm!("vmovdqu {x}, ymmword ptr [{at}]", at = in(reg) from.add(2 * k), x = out(ymm_reg) packets,
                         options(nostack, preserves_flags, readonly));
                }
                let equal = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(packets, flags)));
                // The flags are the odd ones of the eight words.
                if equal & 0b1010_1010 == 0b1010_1010 {
                    break packets;
                }
                if left == 0 {
                    return k;
                }
                std::hint::spin_loop();
                left -= 1;
            };
            let words = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(packets, order));
            // SAFETY: the caller's promise.
            unsafe { _mm_storeu_si128(data.add(k).cast(), words) };
        }
        even
    }
}

/// The data of a packet, if it carries the flag in time.
///
/// # Safety
/// `at` is valid for 16 bytes and aligned to 16.
#[inline(always)]
unsafe fn poll(at: *mut u64, flag: u32, mut looks: u32) -> Option<u64> {
    loop {
        // SAFETY: the caller's promise.
        let found = unsafe { look(at, flag) };
        if found.is_some() || looks == 0 {
            return found;
        }
        std::hint::spin_loop();
        looks -= 1;
    }
}

/// The data of a packet, if it carries the flag now.
///
/// # Safety
/// As for [`poll`].
#[inline(always)]
unsafe fn look(at: *mut u64, flag: u32) -> Option<u64> {
    // SAFETY: the caller's promise.
    let (low, high) = unsafe { load(at) };
    let there = (low >> 32) as u32 == flag && (high >> 32) as u32 == flag;
    there.then_some((low & 0xffff_ffff) | high << 32)
}

/// Stops at a packet that does not carry the flag.
///
/// # Safety
/// As for [`poll`]; `pc` is an instruction on packets of the verified program of `m`.
#[cold]
unsafe fn block(m: &mut Machine, pc: *const Inst, at: *mut u64, packet: i64, flag: u32) -> *const Inst {
    // SAFETY: the caller's promise.
    unsafe {
        let e = (*pc).e;
        let (low, high) = load(at);
        let (first, second) = ((low >> 32) as u32, (high >> 32) as u32);
        // If both halves have arrived meanwhile, the next look finds them.
        let (half, seen) = if first != flag { (at, first) } else { (at.add(1), second) };
        let (stamp, bank) = (flags(m, e), m.access(e).bank.map(|reg| m.reg(reg) as i64));
        if stamp.look(seen, flag) == Look::Other {
            return fault(m, pc, Fault::OtherPacket { access: e as u32, bank, packet, expected: flag, seen });
        }
        m.watch = Watch::Packet { half: half.cast_const().cast(), flag, stamp };
        let [expected, seen] = [flag, seen].map(|flag| stamp.bare(flag));
        let blocked = Blocked::Packet { access: e as u32, bank, packet, expected, seen };
        m.stop_at(pc, Stop::Blocked(blocked))
    }
}

/// # Safety
/// `at` is valid for 16 bytes and aligned to 16.
#[inline(always)]
unsafe fn load(at: *mut u64) -> (u64, u64) {
    // SAFETY: the caller's promise.
    unsafe {
        let low = AtomicU64::from_ptr(at).load(Ordering::Relaxed);
        (low, AtomicU64::from_ptr(at.add(1)).load(Ordering::Relaxed))
    }
}

/// Writes the packet of a word.
///
/// # Safety
/// `at` is valid for 16 bytes and aligned to 16.
#[inline(always)]
unsafe fn write(at: *mut u64, x: u64, flag: u32) {
    let high = u64::from(flag) << 32;
    // SAFETY: the caller's promise.
    unsafe { store(at, (x & 0xffff_ffff) | high, (x >> 32) | high) }
}

/// Writes both halves, on x86-64 with one instruction. Between two instructions, the polling receiver would take the
/// line away, and the second store would have to fetch it back. We rely only on each half being whole, and that holds
/// here too: processors with SSE2 write aligned vectors in pieces of at least eight bytes.
///
/// # Safety
/// `at` is valid for 16 bytes and aligned to 16.
#[inline(always)]
unsafe fn store(at: *mut u64, low: u64, high: u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise. In assembly, since peers read the bytes concurrently. The language allows that only
    // for atomic accesses, and has none of this size. The compiler treats the assembly as an access to unknown memory.
    unsafe {
        use std::arch::x86_64::_mm_set_epi64x;
        std::arch::asm!(
            "movaps xmmword ptr [{at}], {x}",
            at = in(reg) at,
            x = in(xmm_reg) _mm_set_epi64x(high as i64, low as i64),
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        AtomicU64::from_ptr(at).store(low, Ordering::Relaxed);
        AtomicU64::from_ptr(at.add(1)).store(high, Ordering::Relaxed);
    }
}
