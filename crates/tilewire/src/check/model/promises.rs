//! What parameters promise: bytes that a kernel reaches through an `In` or an `Out` are written by nobody else during its launch.
//!
//! Engines rely on it (a GPU may read an input through a cache that sees no writes, and the CPU engine keeps what it has read), so a write of
//! another rank during the launch is a fault even where signals order it. A write is *before* a launch when the host that launched it knew of
//! it, and *after* it when whoever writes knows that the host has gone on. Both are happens-before, so every run says the same.

use super::detector::Detector;
use super::shadow::{Touch, writes};
use crate::check::observer::AccessKind;
use crate::ir::{Access, Base, Inst, Op, Param, Place};

impl Detector<'_> {
    /// What the parameter promises that an access of a kernel goes through.
    pub(super) fn promise(&self, launch: u32, rank: u32, inst: Inst, kind: AccessKind) -> Option<Access> {
        let kernel = self.kernels.get(launch as usize)?[rank as usize];
        let at: &Place = match &kernel.insts[inst].op {
            Op::Load { at, .. } | Op::Store { at, .. } | Op::AtomicAdd { at, .. } => at,
            Op::BulkCopy { dst, src, .. } => {
                if writes(kind) {
                    dst
                } else {
                    src
                }
            }
            Op::Post { src, .. } if !writes(kind) => src,
            _ => return None,
        };
        let Base::Param(param) = at.base else { return None };
        match kernel.params[param] {
            Param::Buffer { access: access @ (Access::In | Access::Out), .. } => Some(access),
            _ => None,
        }
    }

    /// Whether one of two accesses of two ranks writes, during a launch of the other, what that launch was promised.
    pub(super) fn is_broken(&self, first: &Touch, second: &Touch) -> bool {
        let before = || {
            let host = &self.begun[second.rank as usize];
            !host.visible.covers(first.party, first.epoch)
        };
        let after = || {
            let host = self.hosts[first.rank as usize];
            let over = self.over[first.rank as usize].get(first.launch as usize);
            let knowledge = &self.parties[second.party as usize].knowledge;
            over.is_none_or(|&over| !knowledge.over.covers(host, over))
        };
        second.promise.is_some() && writes(first.kind) && before()
            || first.promise.is_some() && writes(second.kind) && after()
    }
}
