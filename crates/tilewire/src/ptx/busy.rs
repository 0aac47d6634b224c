//! How launches of a transport that run at the same time find each other: the busy word of [`abi`].
//!
//! Streams put launches in order, and this only looks whether they did. A role copy enters after it is started and
//! leaves after all its lanes are done, with acquire and release: launches that do not find each other saw each other's
//! writes.

use super::abi::{self, BusyEntry};
use super::role::RoleCode;
use super::text::Hex;
use super::wire::Awaited;

impl RoleCode<'_> {
    /// Enters the busy word, and reads the abort word as [`enter`](RoleCode::enter) does. A role copy that finds
    /// another launch reports it, and ends before its first access that others could observe.
    pub fn take_place(&mut self) {
        self.enter();
        let (leader, alone) = (self.fixed.leader, self.t.label());
        let (busy, entry) = (self.argument(abi::BUSY), self.argument(abi::BUSY_ENTRY));
        let before = self.t.d_const(0);
        self.t.line(format_args!("@{leader} atom.acquire.gpu.global.add.u64 {before}, [{busy}], {entry};"));
        let entered = self.t.d("and.b64", &[&before, &Hex(0xffff)]);
        let tag = self.t.d("shr.u64", &[&entry, &32]);
        let must = self.t.d("mul.lo.s64", &[&entered, &tag]);
        let tags = self.t.d("shr.u64", &[&before, &32]);
        let differs = self.t.p("setp.ne.u64", &[&tags, &must]);
        let overlaps = self.t.p("and.pred", &[&differs, &leader]);
        if let Some(word) = self.entry {
            self.t.op("selp.b64", word, &[&1, &word, &overlaps]);
        }
        self.t.branch_unless(overlaps, alone);
        let none = self.t.d_const(0);
        let what = Awaited { inst: none, param: none, bank: none, index: none, expected: must, seen: tags };
        self.report(what, &abi::OVERLAPPED);
        self.t.at(alone);
    }

    /// Leaves the busy word. The last role copy of the launch clears what all of them have added.
    pub fn leave_place(&mut self) {
        self.barrier();
        let [busy, last, all] =
            [abi::BUSY, abi::BUSY_ENTRY + 8, abi::BUSY_ENTRY + 16].map(|offset| self.argument(offset));
        let leader = self.fixed.leader;
        let before = self.t.d_const(0);
        let leaves = BusyEntry::LEAVES;
        self.t.line(format_args!("@{leader} atom.acq_rel.gpu.global.add.u64 {before}, [{busy}], {leaves};"));
        let left = self.t.d("shr.u64", &[&before, &16]);
        let left = self.t.d("and.b64", &[&left, &Hex(0xffff)]);
        let is_last = self.t.p("setp.eq.u64", &[&left, &last]);
        let is_last = self.t.p("and.pred", &[&is_last, &leader]);
        self.t.line(format_args!("@{is_last} atom.acq_rel.gpu.global.add.u64 {before}, [{busy}], {all};"));
    }
}
