//! Packets: 16 bytes `{d32, flag, d32, flag}`, each 8-byte half written and read by one atomic access, so that the flag vouches
//! for the data beside it without any fence.

use super::super::address::{bank, element, fault};
use super::super::machine::{Blocked, Inst, Machine, Stop, Watch};
use super::{get, put};
use std::sync::atomic::{AtomicU64, Ordering};

/// `PacketPut`
pub(crate) unsafe fn packet_put(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: operands of a verified program; lanes have `counts[d]` elements; the address is checked; the launch checked that packet areas
    // are aligned to 16.
    unsafe {
        let i = *pc;
        let access = m.access(i.e);
        let (data, index) = (m.lane(i.a).cast::<u64>(), m.lane(i.b).cast::<i64>());
        let flag = (m.reg(i.c) & 0xffff_ffff) << 32;
        let start = bank(m, access, i.e);
        for k in 0..m.counts[i.d as usize] {
            let at = match start.and_then(|start| element(access, i.e, start, get(index, k))) {
                Ok(at) => at.cast::<u64>(),
                Err(what) => return fault(m, pc, what),
            };
            let x = get(data, k);
            AtomicU64::from_ptr(at).store((x & 0xffff_ffff) | flag, Ordering::Relaxed);
            AtomicU64::from_ptr(at.add(1)).store((x >> 32) | flag, Ordering::Relaxed);
        }
        // One ring for the strip; without elements nobody has checked the bank, and nobody is told.
        if start.is_ok() {
            m.ring(access.first as usize + access.bank.map_or(0, |reg| m.reg(reg) as usize));
        }
        pc.add(1)
    }
}

/// `PacketGet`: stops as blocked while a packet lacks the flag; run again, it starts over, which reads the same data.
pub(crate) unsafe fn packet_get(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `packet_put`.
    unsafe {
        let i = *pc;
        let access = m.access(i.e);
        let (data, index) = (m.lane(i.a).cast::<u64>(), m.lane(i.b).cast::<i64>());
        let flag = m.reg(i.c) as u32;
        let start = bank(m, access, i.e);
        for k in 0..m.counts[i.d as usize] {
            let packet = get(index, k);
            let at = match start.and_then(|start| element(access, i.e, start, packet)) {
                Ok(at) => at.cast::<u64>(),
                Err(what) => return fault(m, pc, what),
            };
            let low = AtomicU64::from_ptr(at).load(Ordering::Relaxed);
            let high = AtomicU64::from_ptr(at.add(1)).load(Ordering::Relaxed);
            let (first, second) = ((low >> 32) as u32, (high >> 32) as u32);
            if first != flag || second != flag {
                let (half, seen) = if first != flag { (at, first) } else { (at.add(1), second) };
                m.watch = Watch::Packet { half: half.cast_const().cast(), flag };
                let bank = access.bank.map(|reg| m.reg(reg) as i64);
                let blocked = Blocked::Packet { access: i.e as u32, bank, packet, expected: flag, seen };
                return m.stop_at(pc, Stop::Blocked(blocked));
            }
            put(data, k, (low & 0xffff_ffff) | high << 32);
        }
        m.passed += 1;
        pc.add(1)
    }
}
