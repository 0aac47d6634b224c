//! Accesses with a constant place, which can be checked before the kernel runs. A masked access is not checked unless
//! its mask is constantly true, since it may be masked off exactly where it would be out of bounds.

use super::super::entity::Value;
use super::super::kernel::{Kernel, Param};
use super::super::op::{Base, Op, Place, PostSpan, Slot};
use super::super::types::Type;
use super::Fault;

/// Bytes of a packet.
const PACKET: u64 = 16;

/// The accesses of this op that are out of bounds or misaligned in every execution.
pub(super) fn faults(kernel: &Kernel, op: &Op) -> Vec<Fault> {
    let mut check = Bounds { kernel, faults: Vec::new() };
    let certain = |mask: Option<Value>| mask.is_none_or(|mask| constant_bool(kernel, mask) == Some(true));
    match op {
        Op::Load { at, mask } if certain(mask.map(|m| m.cond)) => check.place(at, "element", 1, Some(1)),
        Op::Store { at, mask, .. } | Op::AtomicAdd { at, mask, .. } if certain(*mask) => {
            check.place(at, "element", 1, Some(1))
        }
        Op::Put { at, x, mask } if certain(*mask) => {
            if let Some(value) = kernel.values.get(*x) {
                check.bytes(at, value.ty);
            }
        }
        Op::Get { at, to, mask } if certain(mask.map(|m| m.cond)) => check.bytes(at, *to),
        Op::PacketPut { at, .. } | Op::PacketGet { at, .. } => check.place(at, "packet", PACKET, Some(1)),
        Op::BulkCopy { dst, src, count } => {
            let count = constant(kernel, *count);
            check.place(dst, "element", 1, count);
            check.place(src, "element", 1, count);
        }
        Op::Post { span: Some(PostSpan { src, bytes, .. }), .. } => {
            check.place(src, "byte", 1, constant(kernel, *bytes))
        }
        Op::Signal { slot, .. } | Op::SignalCredit { slot, .. } | Op::Wait { slot, .. } | Op::Test { slot, .. } => {
            check.slot(slot)
        }
        _ => {}
    }
    check.faults
}

/// The number of a constant value.
pub(super) fn constant(kernel: &Kernel, v: Value) -> Option<i64> {
    kernel.as_const(v).filter(|c| c.ty == Type::I64).map(|c| c.bits as i64)
}

/// The truth value of a constant.
pub(super) fn constant_bool(kernel: &Kernel, v: Value) -> Option<bool> {
    kernel.as_const(v).filter(|c| c.ty == Type::Bool).map(|c| c.bits != 0)
}

struct Bounds<'k> {
    kernel: &'k Kernel,
    faults: Vec<Fault>,
}

impl Bounds<'_> {
    /// `count` units from the place on, each of `size` elements of the base. `None`: the count is not constant; it may
    /// be 0, which allows a place at the very end.
    fn place(&mut self, at: &Place, unit: &'static str, size: u64, count: Option<i64>) {
        let Some(len) = self.kernel.base_len(at.base) else { return };
        let mut name = "scratch";
        if let Base::Param(p) = at.base
            && let Some(param @ Param::Buffer { banks, .. }) = self.kernel.params.get(p)
        {
            name = param.name();
            self.bank(name, at.bank, *banks);
        }
        if let Some(index) = constant(self.kernel, at.index) {
            self.range(name, unit, index, count.unwrap_or(0), len / size);
        }
    }

    fn bytes(&mut self, at: &Place, ty: Type) {
        self.place(at, "byte", 1, Some(ty.size() as i64));
        if let Some(index) = constant(self.kernel, at.index)
            && index % ty.size() as i64 != 0
        {
            self.faults.push(Fault::Misaligned { index, ty });
        }
    }

    fn slot(&mut self, slot: &Slot) {
        let Some(Param::Slots { name, len, banks, .. }) = self.kernel.params.get(slot.slots) else { return };
        self.bank(name, slot.bank, *banks);
        if let Some(index) = constant(self.kernel, slot.index) {
            self.range(name, "slot", index, 1, *len);
        }
    }

    fn bank(&mut self, name: &str, bank: Option<Value>, banks: u32) {
        if let Some(bank) = bank.and_then(|bank| constant(self.kernel, bank)) {
            self.range(name, "bank", bank, 1, banks.into());
        }
    }

    fn range(&mut self, name: &str, unit: &'static str, index: i64, count: i64, len: u64) {
        // A negative count is reported separately; in i128 no sum overflows.
        let end = i128::from(index) + i128::from(count.max(0));
        if index < 0 || end > i128::from(len) {
            self.faults.push(Fault::OutOfBounds { unit, of: name.to_string(), index, end, len });
        }
    }
}
