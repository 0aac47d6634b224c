//! What launches wait for, as their kernels say: for the thread that watches a rank while its host does something else.

use super::error::{CudaError, Stopped};
use super::report::Report;
use crate::ir::{Entity, Inst, Kernel, Param, Purpose, RoleId, matching};
use crate::ptx::abi;
use crate::tensor::{Arg, Between};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// The launches of a seat that can be looked at.
#[derive(Clone, Default)]
pub struct Launches(Arc<Mutex<Vec<Weak<Eye>>>>);

/// What can be seen of one launch while it runs.
pub(super) struct Eye {
    pub(super) report: Report,
    /// Of every parameter, between which ranks its words or packets travel.
    params: Vec<Option<Between>>,
    /// See [`crossings`].
    has: Vec<Between>,
    kernel: Kernel,
    rank: u32,
    name: OnceLock<String>,
}

/// A launch of which a wait lasts.
#[derive(Clone, Debug)]
pub struct Stalled {
    /// What it waits for.
    pub at: Between,
    /// All that the launch has between ranks, credits included.
    pub has: Vec<Between>,
    /// What it is, in words.
    pub name: String,
    /// Another number whenever its kernel has looked again.
    pub mark: u64,
    /// Another number for another launch, or when a wait of this one has gone on since: which launch, and how many have.
    pub since: (u64, u64),
}

impl Eye {
    pub(super) fn new(report: Report, kernel: &Kernel, rank: u32, args: &[Arg]) -> Eye {
        let of = |arg: &Arg| match arg {
            Arg::Slots(banks) | Arg::Buffer(banks) => match &banks[..] {
                [bank] => bank.between(),
                // Of several banks a mark does not say which.
                _ => None,
            },
            _ => None,
        };
        let params = args.iter().map(of).collect();
        Eye { report, params, has: crossings(args), kernel: kernel.clone(), rank, name: OnceLock::new() }
    }

    pub(super) fn name(&self, name: String) {
        _ = self.name.set(name);
    }

    /// What the launch has reported so far.
    #[inline]
    pub(super) fn reported(&self) -> Option<CudaError> {
        self.report.get().map(|words| self.stopped(&words))
    }

    #[cold]
    fn stopped(&self, words: &[u64; abi::REPORT_WORDS]) -> CudaError {
        let kernel = &self.kernel;
        let &[state, role, block, copy, inst, param, bank, index, expected, seen] = words;
        let bound = kernel.params.iter().nth(param as usize);
        let name = bound.map_or("scratch", |(_, param)| param.name());
        let is_matched = bound.is_some_and(|(id, _)| kernel.is_matched(id));
        let of_packets = bound.is_some_and(|(_, param)| matches!(param, Param::Buffer { .. }));
        let operation = |word: u64| match of_packets {
            true => matching::operation_of_flag(word as u32).into(),
            false => matching::operation_of_word(word).into(),
        };
        let [expected, seen] = [expected, seen].map(|word| match is_matched {
            true if state == abi::OTHER_OPERATION => operation(word),
            true if of_packets => word & u64::from(matching::FLAG_BITS),
            true => word >> matching::COUNT_SHIFT,
            false => word,
        });
        let stopped = Box::new(Stopped {
            rank: self.rank,
            block,
            role: kernel.roles[RoleId::new(role as usize)].name.clone(),
            copy,
            param: name.to_string(),
            bank,
            index,
            expected,
            seen,
            at: kernel.line(Inst::new(inst as usize)).clone(),
            peer: bound.and_then(|(id, param)| self.signaller(kernel.purpose(id, bank as usize), param, index)),
            launch: self.name.get().cloned().unwrap_or_default(),
        });
        match state {
            abi::OUTSIDE => CudaError::OutOfBounds(stopped),
            abi::OTHER_OPERATION => CudaError::OtherOperation(stopped),
            _ => CudaError::Timeout(stopped),
        }
    }

    /// The rank that a wait for a slot or packet of a parameter is for.
    fn signaller(&self, purpose: Purpose, param: &Param, index: u64) -> Option<u32> {
        let len = match param {
            Param::Slots { len, .. } => *len,
            Param::Buffer { ty, len, .. } => len * ty.size() as u64 / 16,
            _ => return None,
        };
        purpose.signaller(index, len).filter(|&by| by != self.rank)
    }

    fn stalled(&self) -> Option<Stalled> {
        let mark = self.report.stall();
        let at = (*self.params.get(abi::stall(mark)?)?)?;
        let has = self.has.clone();
        let name = self.name.get().cloned().unwrap_or_else(|| "a launch".to_string());
        Some(Stalled { at, has, name, mark, since: (self.report.address(), self.report.lifts()) })
    }
}

/// All that a launch has between ranks, of all banks. Credits too: a launch that only gives credits gives what a peer may wait for.
fn crossings(args: &[Arg]) -> Vec<Between> {
    let banks = args.iter().flat_map(|arg| match arg {
        Arg::Slots(banks) | Arg::Buffer(banks) => &banks[..],
        _ => &[],
    });
    banks.filter_map(|bank| bank.between()).collect()
}

impl Launches {
    pub(super) fn watch(&self, eye: &Arc<Eye>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|eye| eye.strong_count() > 0);
        all.push(Arc::downgrade(eye));
    }

    /// What the first of them that gave up has reported.
    pub fn reported(&self) -> Option<CudaError> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).find_map(|eye| eye.reported())
    }

    /// A launch that waits, if one does: launches of a seat run one after another.
    pub fn stalled(&self) -> Option<Stalled> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).find_map(|eye| eye.stalled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Memory, Part};

    #[test]
    fn a_launch_has_its_credits_and_all_banks_of_its_tables() {
        let memory =
            |part, from, to| Memory::zeroed(8).for_purpose(Purpose::Transfer { part, from, to }).for_operation(4);
        let table = vec![memory(Part::Packets, 0, 1), memory(Part::Packets, 0, 2)];
        let args = [
            Arg::Slots(vec![memory(Part::Head, 1, 0)]),
            Arg::Scalar(Memory::zeroed(8)),
            Arg::Buffer(table),
            Arg::Buffer(vec![memory(Part::Staging, 0, 1)]),
        ];
        let found: Vec<_> = crossings(&args).iter().map(|it| (it.from, it.to, it.operation)).collect();
        assert_eq!(found, [(1, 0, None), (0, 1, Some(4)), (0, 2, Some(4))]);
    }
}
