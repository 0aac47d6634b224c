//! Slots of two peers that a rank could mistake for each other.

use super::sites::each_inst;
use crate::check::world::Plan;
use crate::ir::{Inst, Kernel, Op, Param, ParamId};
use crate::tensor::Arg;
use std::fmt;

/// Slots of one name and form that the first rank uses in one way: it signals them, or it waits for them.
///
/// Unused slots are left alone: swapping them changes nothing. Nor is a swap wrong if the slots have the same values
/// and all are signalled, or waited for, next to each other. So a plan needs counters that differ from peer to peer.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Swap {
    param: Param,
    waited: bool,
}

impl fmt::Display for Swap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} that it {}", self.param.name(), if self.waited { "waits for" } else { "signals" })
    }
}

/// All swaps of a plan; `ran` is true for ops that the first rank ran in a launch.
pub(super) fn swaps(plan: &Plan, ran: impl Fn(usize, Inst) -> bool) -> Vec<Swap> {
    let mut found: Vec<Swap> = Vec::new();
    for (launch, job) in plan.launches.iter().filter_map(|ranks| ranks.first()).enumerate() {
        each_inst(&job.kernel, |_, inst| {
            if let Some((param, waited)) = used(&job.kernel.insts[inst].op).filter(|_| ran(launch, inst)) {
                let swap = Swap { param: job.kernel.params[param].clone(), waited };
                if !found.contains(&swap) && swap.places(&job.kernel).is_some() {
                    found.push(swap);
                }
            }
        });
    }
    found
}

impl Swap {
    /// Makes the first rank swap them, in every launch. (If all ranks swapped alike, only the names would be swapped.)
    pub fn apply(&self, plan: &mut Plan) {
        for job in plan.launches.iter_mut().filter_map(|ranks| ranks.first_mut()) {
            match self.places(&job.kernel) {
                Some((first, last)) if first != last => job.args.swap(first, last),
                Some((place, _)) => {
                    if let Arg::Slots(banks) = &mut job.args[place] {
                        banks.rotate_left(1);
                    }
                }
                None => {}
            }
        }
    }

    /// The first and the last of them among the parameters of a kernel: peers that are far apart. One with several
    /// banks is enough.
    fn places(&self, kernel: &Kernel) -> Option<(usize, usize)> {
        let mut uses = Vec::new();
        each_inst(kernel, |_, inst| uses.extend(used(&kernel.insts[inst].op)));
        let is_one = |(param, data): &(ParamId, &Param)| **data == self.param && uses.contains(&(*param, self.waited));
        let places: Vec<usize> =
            kernel.params.iter().enumerate().filter(|(_, param)| is_one(param)).map(|(place, _)| place).collect();
        let (&first, &last) = (places.first()?, places.last()?);
        let banks = matches!(self.param, Param::Slots { banks, .. } if banks > 1);
        (banks || first != last).then_some(if banks { (first, first) } else { (first, last) })
    }
}

/// The slots that an op uses, and true if it waits for them.
fn used(op: &Op) -> Option<(ParamId, bool)> {
    match op {
        Op::Wait { slot, .. } | Op::Test { slot, .. } => Some((slot.slots, true)),
        Op::Signal { slot, .. } | Op::SignalCredit { slot, .. } => Some((slot.slots, false)),
        _ => None,
    }
}
