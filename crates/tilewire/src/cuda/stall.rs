//! What launches wait for, as their kernels say: for whoever watches a rank while its host does something else.

use super::report::Report;
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
    name: OnceLock<String>,
}

/// A launch of which a wait lasts.
#[derive(Clone, Debug)]
pub struct Stalled {
    /// What it waits for.
    pub at: Between,
    /// All that the launch has between ranks.
    pub has: Vec<Between>,
    /// What it is, in words.
    pub name: String,
    /// Another number whenever its kernel has looked again.
    pub mark: u64,
    /// Another number for another launch, or when a wait of this one has gone on since: which launch, and how many have.
    pub since: (u64, u64),
}

impl Eye {
    pub(super) fn new(report: Report, args: &[Arg]) -> Eye {
        let of = |arg: &Arg| match arg {
            Arg::Slots(banks) | Arg::Buffer(banks) => match &banks[..] {
                [bank] => bank.between(),
                // Of several banks a mark does not say which.
                _ => None,
            },
            _ => None,
        };
        Eye { report, params: args.iter().map(of).collect(), name: OnceLock::new() }
    }

    pub(super) fn name(&self, name: String) {
        _ = self.name.set(name);
    }

    fn stalled(&self) -> Option<Stalled> {
        let mark = self.report.stall();
        let at = (*self.params.get(abi::stall(mark)?)?)?;
        let has = self.params.iter().flatten().copied().filter(|between| between.operation.is_some()).collect();
        let name = self.name.get().cloned().unwrap_or_else(|| "a launch".to_string());
        Some(Stalled { at, has, name, mark, since: (self.report.address(), self.report.lifts()) })
    }
}

impl Launches {
    pub(super) fn watch(&self, eye: &Arc<Eye>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|eye| eye.strong_count() > 0);
        all.push(Arc::downgrade(eye));
    }

    /// A launch that waits, if one does: launches of a seat run one after another.
    pub fn stalled(&self) -> Option<Stalled> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).find_map(|eye| eye.stalled())
    }
}
