//! The operation that a collective performs.

use super::algorithm::{Algorithm, ReduceOp};
use super::call::Call;
use super::pattern::Pattern;
use crate::ir::{SourceLine, Type};

/// An operation of one rank or of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Hooks over a tensor, in a world of one.
    Map,
    /// Chunks move from rank to rank.
    Exchange(Pattern),
    /// The values of all ranks are combined.
    Reduction(Kind, ReduceOp),
}

/// Which ranks get the combined values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    ReduceScatter,
    AllReduce,
}

impl Operation {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Operation::Map => "map",
            Operation::Exchange(pattern) => pattern.name(),
            Operation::Reduction(kind, _) => kind.name(),
        }
    }

    /// The user's call, with chunks of `len` elements.
    pub(super) fn call(&self, len: usize, types: &[Type], at: &SourceLine) -> Call {
        let mut call = Call::of(self.name(), len, types, at);
        match self {
            Operation::Exchange(Pattern::Barrier) => call.operation = self.name().to_string(),
            Operation::Exchange(Pattern::Pair { .. } | Pattern::Broadcast { .. }) => {}
            Operation::Exchange(_) => call.operation.push_str(" for each rank"),
            Operation::Map | Operation::Reduction(..) => {}
        }
        call
    }

    /// What all participating ranks must agree on: the collective, its root, its operator. A `send` pairs with a
    /// `sendrecv`.
    pub(super) fn agreement(&self) -> String {
        use Pattern::{Broadcast, Gather, Pair, Scatter};
        match self {
            Operation::Exchange(Pair { .. }) => "a transfer".to_string(),
            Operation::Exchange(Broadcast { root } | Gather { root } | Scatter { root }) => {
                format!("{} with root {root}", self.name())
            }
            Operation::Reduction(_, op) => format!("{} of {}", self.name(), op.name()),
            Operation::Map | Operation::Exchange(_) => self.name().to_string(),
        }
    }

    /// True if the operation supports this algorithm. Most support only one-shot, in which every rank sends straight to
    /// the ranks that need its data.
    pub(super) fn takes(&self, algorithm: Algorithm) -> bool {
        match (self, algorithm) {
            (_, Algorithm::OneShot) => true,
            (Operation::Reduction(kind, _), Algorithm::TwoPhase) => *kind == Kind::AllReduce,
            (Operation::Reduction(..) | Operation::Exchange(Pattern::AllGather), Algorithm::Ring) => true,
            (Operation::Exchange(pattern), Algorithm::TwoLevel) => pattern.takes_two_levels(),
            _ => false,
        }
    }

    /// True if all ranks of the world take part.
    pub(super) fn is_collective(&self) -> bool {
        !matches!(self, Operation::Exchange(Pattern::Pair { .. }))
    }
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::ReduceScatter => "reduce_scatter",
            Kind::AllReduce => "all_reduce",
        }
    }
}
