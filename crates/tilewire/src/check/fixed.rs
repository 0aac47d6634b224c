//! Facts about the kernels of all ranks together, without a run: which ops could ever signal a slot, and whether a
//! device holds a launch.

use super::eval::Awaited;
use super::memory::{Bank, Bound};
use super::report::{Fault, Namer};
use super::residency::Residence;
use super::world::{Waiting, Who};
use crate::ir::{Base, Entity, Kernel, Op, ParamId, Slot};

/// The waits of a deadlock for slots that no kernel of the world changes.
pub(super) fn waits_without_producer(namer: &Namer<'_>, stuck: &[Waiting]) -> Vec<Fault> {
    let mut produced: Vec<Reach> = Vec::new();
    each_op(namer, |launch, rank, kernel, op| {
        let bound = &namer.stage.bindings[launch][rank].params;
        match op {
            Op::Signal { slot, .. } | Op::SignalCredit { slot, .. } => produced.extend(reach(kernel, bound, slot)),
            Op::Post { queue, notice: Some(_), .. } => {
                if let Bound::Queue(routes) = &bound[queue.index()] {
                    produced.extend(routes.iter().flatten().map(|route| Reach::all(&route.slots)));
                }
            }
            Op::AtomicAdd { at, .. } | Op::Store { at, .. } | Op::Put { at, .. } => {
                if let Base::Param(param) = at.base
                    && let Bound::Buffer(banks) = &bound[param.index()]
                {
                    produced.extend(banks.iter().map(Reach::all));
                }
            }
            _ => {}
        }
    });
    let mut faults = Vec::new();
    for Waiting { who, launch, on } in stuck {
        let (Who::Role(who), Awaited::Slot { name, slot }) = (who, &on.on) else { continue };
        if produced.iter().any(|made| made.holds(slot.memory, slot.byte)) {
            continue;
        }
        let slot = format!("{name}[{}]", slot.index);
        let fault = Fault::NoProducer { slot, wait: namer.actor(*who, *launch, Some(on.inst)) };
        // A line that several ranks share is reported once.
        if !faults.iter().any(|known: &Fault| known.lines() == fault.lines()) {
            faults.push(fault);
        }
    }
    faults
}

/// The first launch whose blocks a device does not hold simultaneously.
pub(super) fn beyond_device(namer: &Namer<'_>, device: &Residence) -> Option<Fault> {
    let launches = namer.plan.kernels();
    let beyond = |(launch, kernels): (u32, &Vec<&Kernel>)| {
        let why = device.holds(kernels).err()?;
        let largest = kernels.iter().max_by_key(|kernel| kernel.blocks)?;
        let at = largest.roles.values().find_map(|role| largest.sites.get(role.site).cloned());
        Some(Fault::NotResident { launch, why, at })
    };
    (0..).zip(&launches).find_map(beyond)
}

fn each_op(namer: &Namer<'_>, mut f: impl FnMut(usize, usize, &Kernel, &Op)) {
    for (launch, ranks) in namer.plan.kernels().iter().enumerate() {
        for (rank, kernel) in ranks.iter().enumerate() {
            for role in kernel.roles.values() {
                kernel.walk(role.body, &mut |inst| f(launch, rank, kernel, &kernel.insts[inst].op));
            }
        }
    }
}

/// Bytes where a slot may lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Reach {
    memory: super::MemoryId,
    start: u64,
    end: u64,
}

impl Reach {
    pub(super) fn all(bank: &Bank) -> Reach {
        Reach { memory: bank.memory, start: bank.offset, end: bank.offset + bank.len }
    }

    /// The slot at an offset of a bank.
    pub(super) fn one(bank: &Bank, offset: u64) -> Reach {
        let start = bank.offset.saturating_add(offset);
        Reach { memory: bank.memory, start, end: start.saturating_add(8) }
    }

    /// True if the slot at a byte is one of them.
    pub(super) fn holds(&self, memory: super::MemoryId, byte: u64) -> bool {
        self.memory == memory && self.start <= byte && byte + 8 <= self.end
    }

    pub(super) fn meets(&self, other: &Reach) -> bool {
        self.memory == other.memory && self.start < other.end && other.start < self.end
    }
}

/// Where a slot may lie: one place if bank and index are constant, otherwise whole banks.
pub(super) fn reach(kernel: &Kernel, bound: &[Bound], slot: &Slot) -> Vec<Reach> {
    let Some(Bound::Slots(banks)) = bound.get(slot.slots.index()) else { return Vec::new() };
    let constant = |v| kernel.as_const(v).map(|c| c.bits as usize);
    let banks: Vec<&Bank> = match slot.bank.map(constant) {
        None => banks.iter().take(1).collect(),
        Some(Some(bank)) => banks.get(bank).into_iter().collect(),
        Some(None) => banks.iter().collect(),
    };
    let Some(index) = constant(slot.index) else { return banks.into_iter().map(Reach::all).collect() };
    let stride = stride(kernel, slot.slots);
    banks.into_iter().map(|bank| Reach::one(bank, index as u64 * stride)).collect()
}

fn stride(kernel: &Kernel, slots: ParamId) -> u64 {
    match &kernel.params[slots] {
        crate::ir::Param::Slots { stride, .. } => u64::from(*stride),
        _ => 8,
    }
}
