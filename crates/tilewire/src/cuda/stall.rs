//! What launches wait for, as reported by their kernels, for the thread that watches a rank while its host does
//! something else.

use super::error::{CudaError, Stopped, UnmetRequirement};
use super::report::Report;
use crate::ir::{Entity, Inst, Kernel, Param, Purpose, RequiredBytes, RoleId, matching};
use crate::ptx::abi;
use crate::tensor::{Arg, Between};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// The launches of a seat that can be observed.
#[derive(Clone, Default)]
pub struct Launches(Arc<Mutex<Vec<Weak<ObservedLaunch>>>>);

/// The observable state of one launch while it runs.
pub(super) struct ObservedLaunch {
    pub(super) report: Report,
    /// By parameter: the ranks between which its words or packets travel.
    params: Vec<Option<Between>>,
    /// See [`crossings`].
    has: Vec<Between>,
    kernel: Kernel,
    pub(super) rank: u32,
    name: OnceLock<String>,
}

/// A launch with a stalled wait.
#[derive(Clone, Debug)]
pub struct Stalled {
    /// The ranks between which the awaited data travels.
    pub at: Between,
    /// All pairs of ranks that the launch connects, including by credits.
    pub has: Vec<Between>,
    /// The launch, in words.
    pub name: String,
    /// Changes whenever its kernel has polled again.
    pub mark: u64,
    /// The launch, and how many of its waits have continued: changes with another launch, or when a wait of this one
    /// has continued.
    pub since: (u64, u64),
}

impl ObservedLaunch {
    pub(super) fn new(report: Report, kernel: &Kernel, rank: u32, args: &[Arg]) -> ObservedLaunch {
        let of = |arg: &Arg| match arg {
            Arg::Slots(banks) | Arg::Buffer(banks) => match &banks[..] {
                [bank] => bank.between(),
                // A mark does not identify one of several banks.
                _ => None,
            },
            _ => None,
        };
        let params = args.iter().map(of).collect();
        ObservedLaunch { report, params, has: crossings(args), kernel: kernel.clone(), rank, name: OnceLock::new() }
    }

    pub(super) fn name(&self, name: String) {
        _ = self.name.set(name);
    }

    /// The error that the launch has reported so far.
    #[inline]
    pub(super) fn reported(&self) -> Option<CudaError> {
        self.report.get().map(|words| self.stopped(&words))
    }

    #[cold]
    fn stopped(&self, words: &[u64; abi::REPORT_WORDS]) -> CudaError {
        let kernel = &self.kernel;
        let &[state, role, block, copy, inst, param, bank, index, expected, seen] = words;
        if state == abi::REQUIRED {
            let span = [param, index, bank, expected].map(|word| word as i64);
            return CudaError::Required(Box::new(UnmetRequirement {
                rank: self.rank,
                block,
                role: kernel.roles[RoleId::new(role as usize)].name.clone(),
                copy,
                span: (seen != 0).then(|| RequiredBytes::of(span)),
                at: kernel.line(Inst::new(inst as usize)).clone(),
                launch: self.name.get().cloned().unwrap_or_default(),
            }));
        }
        if state == abi::OVERLAPPED {
            return CudaError::Overlapped { launch: self.name.get().cloned().unwrap_or_default() };
        }
        let bound = kernel.params.iter().nth(param as usize);
        // A wait for room in a queue counts entries, also where the posts are matched.
        let counts_entries = bound.is_some_and(|(_, param)| matches!(param, Param::Queue { .. }));
        let is_matched = !counts_entries && bound.is_some_and(|(id, _)| kernel.is_matched(id));
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
            param: bound.map_or_else(|| "scratch".to_string(), |(id, _)| kernel.name_for(id, self.rank)),
            bank,
            index,
            expected,
            seen,
            at: kernel.line(Inst::new(inst as usize)).clone(),
            peer: bound.and_then(|(id, param)| self.signaller(kernel.purpose(id, bank as usize), param, index)),
            for_room: counts_entries,
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

/// All pairs of ranks that a launch connects, over all banks. Credits count too: a peer may wait for a launch that only
/// gives credits. So do queues, whose posts a peer may wait for.
fn crossings(args: &[Arg]) -> Vec<Between> {
    let banks = args.iter().flat_map(|arg| match arg {
        Arg::Slots(banks) | Arg::Buffer(banks) => &banks[..],
        Arg::Queue(queue) => std::slice::from_ref(queue.entries()),
        Arg::Scalar(_) => &[],
    });
    banks.filter_map(|bank| bank.between()).collect()
}

impl Launches {
    pub(super) fn watch(&self, observed: &Arc<ObservedLaunch>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|observed| observed.strong_count() > 0);
        all.push(Arc::downgrade(observed));
    }

    /// The report of the first of them that gave up.
    pub fn reported(&self) -> Option<CudaError> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).find_map(|observed| observed.reported())
    }

    /// A waiting launch, if there is one: launches of a seat run one after another.
    pub fn stalled(&self) -> Option<Stalled> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).find_map(|observed| observed.stalled())
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
