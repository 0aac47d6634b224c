//! What is wrong whatever the schedule: checks that run nothing.
//!
//! `ir::verify` has judged constant indices of every kernel alone; here kernels are looked at together.

use super::memory::{Bank, Bound};
use super::observer::Actor;
use super::report::{Fault, Namer};
use super::residency::Residence;
use crate::ir::{Entity, Kernel, Op, ParamId, RoleId, Slot};

/// Waits for slots that no kernel of the world signals.
pub(super) fn waits_without_producer(namer: &Namer<'_>) -> Vec<Fault> {
    let mut produced: Vec<Reach> = Vec::new();
    each_slot_op(namer, |launch, rank, _, kernel, op| {
        let bound = &namer.stage.bindings[launch][rank].params;
        match op {
            Op::Signal { slot, .. } | Op::SignalCredit { slot, .. } => produced.extend(reach(kernel, bound, slot)),
            Op::PostSignal { queue, .. } => {
                if let Bound::Queue(routes) = &bound[queue.index()] {
                    produced.extend(routes.iter().flatten().map(|route| Reach::all(&route.slots)));
                }
            }
            _ => {}
        }
    });
    produced.sort_by_key(|reach| (reach.memory, reach.start, reach.end));
    produced.dedup();
    let mut faults = Vec::new();
    each_slot_op(namer, |launch, rank, (role, inst), kernel, op| {
        let (Op::Wait { slot, x } | Op::Test { slot, x }) = op else { return };
        if kernel.as_const(*x).is_some_and(|c| c.bits == 0) {
            return;
        }
        let wanted = reach(kernel, &namer.stage.bindings[launch][rank].params, slot);
        if !wanted.is_empty() && !wanted.iter().any(|wanted| produced.iter().any(|made| made.meets(wanted))) {
            let who = Actor { rank: rank as u32, block: 0, role, copy: 0 };
            let mut name = kernel.params[slot.slots].name().to_string();
            if let Some(index) = kernel.as_const(slot.index) {
                name += &format!("[{}]", index.bits);
            }
            let fault = Fault::NoProducer { slot: name, wait: namer.actor(who, launch as u32, Some(inst)) };
            // A line that several ranks and launches share is named once.
            if !faults.iter().any(|known: &Fault| known.lines() == fault.lines()) {
                faults.push(fault);
            }
        }
    });
    faults
}

/// The first launch whose blocks a device does not hold at once.
pub(super) fn beyond_device(namer: &Namer<'_>, device: &Residence) -> Option<Fault> {
    let launches = namer.plan.kernels();
    let beyond = |(launch, kernels): (u32, &Vec<&Kernel>)| {
        let why = device.holds(kernels).err()?;
        Some(Fault::NotResident { launch, why })
    };
    (0..).zip(&launches).find_map(beyond)
}

fn each_slot_op(namer: &Namer<'_>, mut f: impl FnMut(usize, usize, (RoleId, crate::ir::Inst), &Kernel, &Op)) {
    for (launch, ranks) in namer.plan.kernels().iter().enumerate() {
        for (rank, kernel) in ranks.iter().enumerate() {
            for (role, data) in kernel.roles.iter() {
                kernel.walk(data.body, &mut |inst| f(launch, rank, (role, inst), kernel, &kernel.insts[inst].op));
            }
        }
    }
}

/// Bytes that a slot may lie at.
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

    /// Whether the slot at a byte is one of them.
    pub(super) fn holds(&self, memory: super::MemoryId, byte: u64) -> bool {
        self.memory == memory && self.start <= byte && byte + 8 <= self.end
    }

    pub(super) fn meets(&self, other: &Reach) -> bool {
        self.memory == other.memory && self.start < other.end && other.start < self.end
    }
}

/// Where a slot may lie: one place where bank and index are constant, whole banks where not.
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
    let at = |bank: &Bank| bank.offset + index as u64 * stride;
    banks.into_iter().map(|bank| Reach { memory: bank.memory, start: at(bank), end: at(bank) + 8 }).collect()
}

fn stride(kernel: &Kernel, slots: ParamId) -> u64 {
    match &kernel.params[slots] {
        crate::ir::Param::Slots { stride, .. } => u64::from(*stride),
        _ => 8,
    }
}
