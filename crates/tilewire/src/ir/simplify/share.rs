//! Common subexpressions: when two ops are the same.
//!
//! The table of shared ops follows structured dominance. A region's entries leave it when the region closes, so every
//! entry was computed on every path to the walk's position.

use super::super::entity::{Entity, Value};
use super::super::op::{Base, CompareOp, Op, Place};

/// An op's identity: equal keys, equal results.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    kind: u32,
    a: u64,
    b: u64,
    c: u64,
}

impl Key {
    /// The key of a pure op; `None` for others.
    pub fn of(op: &Op) -> Option<Key> {
        let id = |v: Value| v.index() as u64;
        let key = |class: u32, which: u32, a, b, c| Some(Key { kind: class << 16 | which, a, b, c });
        match *op {
            Op::Const(c) => key(0, c.ty as u32, c.bits, 0, 0),
            Op::Special(s) => key(1, s as u32, 0, 0, 0),
            Op::Scalar(p) => key(2, 0, p.index() as u64, 0, 0),
            Op::Unary { op, x } => key(3, op as u32, id(x), 0, 0),
            Op::Binary { op, a, b } => {
                let (a, b) = if op.commutes() && b < a { (b, a) } else { (a, b) };
                key(4, op as u32, id(a), id(b), 0)
            }
            Op::Compare { op, a, b } => {
                let (a, b) = if matches!(op, CompareOp::Eq | CompareOp::Ne) && b < a { (b, a) } else { (a, b) };
                key(5, op as u32, id(a), id(b), 0)
            }
            Op::Select { cond, a, b } => key(6, 0, id(cond), id(a), id(b)),
            Op::Fma { a, b, c } => key(7, 0, id(a), id(b), id(c)),
            Op::Cast { x, to } => key(8, to as u32, id(x), 0, 0),
            Op::Bitcast { x, to } => key(9, to as u32, id(x), 0, 0),
            Op::Group { op, x, size } => key(10, op as u32, id(x), u64::from(size), 0),
            _ => None,
        }
    }

    /// The key of an unmasked load or get.
    pub fn of_load(op: &Op) -> Option<Key> {
        let (which, at) = match op {
            Op::Load { at, mask: None } => (0, at),
            Op::Get { at, to, mask: None } => (1 + *to as u32, at),
            _ => return None,
        };
        let Place { base, bank, index } = at;
        let base = match base {
            Base::Param(p) => p.index() as u64,
            Base::Scratch(s) => 1 << 32 | s.index() as u64,
        };
        let bank = bank.map_or(u64::MAX, |v| v.index() as u64);
        Some(Key { kind: 11 << 16 | which, a: base, b: bank, c: index.index() as u64 })
    }
}
