//! The leader's work for all lanes: loads of memory that others write, stores, and handing out loaded values.
//!
//! A load is only started where it stands. Its value **lands** (is handed to all lanes) when an op needs it, or before
//! anything that others could observe. Until then more loads start, and scratch is filled.

use super::role::{RoleCode, is_lane_local};
use super::text::Reg;
use crate::ir::access::{SCRATCH_ALIGN, place};
use crate::ir::{Access, Base, Entity, Inst, Mask, Op, Param, Place, Type, Value};

/// Loads of the leader in flight together: with the abort word, as many as the mailbox holds.
pub(super) const MOST_PENDING: usize = SCRATCH_ALIGN as usize / 8 - 1;

impl RoleCode<'_> {
    /// True if an op, with all its regions, only fills scratch, and needs nothing that the leader has loaded but not
    /// handed out. Such ops run while the loads are in flight.
    pub fn prepares(&self, inst: Inst) -> bool {
        let kernel = self.kernel;
        let in_scratch = |at: &Place| matches!(at.base, Base::Scratch(_));
        let quiet = |inst: Inst| {
            let op = &kernel.insts[inst].op;
            let quiet = match op {
                Op::Store { at, .. } | Op::Put { at, .. } => in_scratch(at),
                Op::Load { .. } | Op::Get { .. } | Op::Each { .. } | Op::For { .. } | Op::If { .. } => true,
                Op::Group { .. } => true,
                op => is_lane_local(op),
            };
            quiet && !self.needs_pending(op)
        };
        // The leader's loads of scratch must land before anything refills it.
        let loaded = |v: Value| kernel.def(v).and_then(place).is_some_and(|at| !in_scratch(at));
        let apart = !self.pending.is_empty() && self.pending.iter().all(|&(v, _)| loaded(v));
        let op = &kernel.insts[inst].op;
        let regions = op.regions();
        let fills = !regions.is_empty() || matches!(op, Op::Store { .. } | Op::Put { .. });
        let mut all = apart && fills && quiet(inst);
        regions.iter().for_each(|&region| kernel.walk(region, &mut |inst| all &= quiet(inst)));
        all
    }

    /// True for the leader, if the mask holds.
    pub fn leader_and(&mut self, mask: Option<Value>) -> Reg {
        match mask {
            Some(mask) => {
                let mask = self.value(mask);
                self.t.p("and.pred", &[&self.fixed.leader, &mask])
            }
            None => self.fixed.leader,
        }
    }

    /// A load whose value all lanes know immediately, or after they [`land`](Self::land).
    pub fn uniform_load(&mut self, inst: Inst, at: &Place, (ty, unit): (Type, u32), mask: Option<&Mask>) {
        let index = self.value(at.index);
        let from = self.address(at, index, unit);
        let mask = mask.map(|mask| (self.value(mask.cond), self.value(mask.other)));
        // Nothing writes an input: all lanes read the same.
        let input = match at.base {
            Base::Param(p) => matches!(self.kernel.params[p], Param::Buffer { access: Access::In, .. }),
            Base::Scratch(_) => false,
        };
        let bytes = (unit, ty.size() as u64);
        if input {
            let cond = self.bounded(inst, at, index, bytes, mask.map(|mask| mask.0));
            let mask = cond.map(|cond| (cond, mask.map_or_else(|| self.t.constant(ty, 0), |mask| mask.1)));
            let x = self.load(from, ty, mask);
            self.leave_if_outside();
            return self.define(inst, x);
        }
        let (cond, other) = match mask {
            Some((cond, other)) => (self.t.p("and.pred", &[&self.fixed.leader, &cond]), other),
            None => (self.fixed.leader, self.t.constant(ty, 0)),
        };
        let cond = self.bounded(inst, at, index, bytes, Some(cond)).unwrap_or(cond);
        let x = self.load(from, ty, Some((cond, other)));
        self.leave_if_outside();
        if let Some(result) = self.kernel.insts[inst].result {
            self.pending.push((result, x));
        }
    }

    /// True if an op reads a value that only the leader has.
    pub fn needs_pending(&self, op: &Op) -> bool {
        let operands = op.operands();
        self.pending.iter().any(|(value, _)| operands.contains(value))
    }

    /// Reads the abort word on entry: after an abort nothing may write memory or wait, since a captured launch may be
    /// replayed. The word lands with the first loads.
    pub fn enter(&mut self) {
        let word = self.t.d_const(0);
        let (leader, abort) = (self.fixed.leader, self.fixed.abort);
        self.t.line(format_args!("@{leader} ld.relaxed.sys.global.u64 {word}, [{abort}];"));
        self.entry = Some(word);
    }

    /// Hands the leader's loaded values to all lanes.
    pub fn land(&mut self) {
        let (entry, pending) = (self.entry.take(), std::mem::take(&mut self.pending));
        let loaded: Vec<Reg> = entry.into_iter().chain(pending.iter().map(|(_, x)| *x)).collect();
        if loaded.is_empty() {
            return;
        }
        let mut known = self.broadcast_all(&loaded).into_iter();
        if entry.is_some() {
            let word = known.next().expect("as many as were loaded");
            let aborted = self.t.p("setp.ne.u64", &[&word, &0]);
            self.t.jump_if(aborted, self.exit);
        }
        for ((value, _), x) in pending.into_iter().zip(known) {
            self.values[value.index()] = Some(x);
        }
    }

    pub fn uniform_store(&mut self, inst: Inst, at: &Place, x: Value, bytes: bool, mask: Option<Value>) {
        let ty = self.kernel.ty(x);
        self.sync_readers();
        let guard = self.leader_and(mask);
        let index = self.value(at.index);
        let unit = if bytes { 1 } else { ty.size() as u32 };
        let to = self.address(at, index, unit);
        let guard = self.bounded(inst, at, index, (unit, ty.size() as u64), Some(guard));
        let x = self.value(x);
        self.store(to, ty, x, guard);
        self.leave_if_outside();
        self.unsynced = true;
    }

    /// The leader's value, for all lanes.
    pub fn broadcast(&mut self, x: Reg) -> Reg {
        self.broadcast_all(&[x])[0]
    }

    /// The leader's values, for all lanes; at most as many as the mailbox holds.
    fn broadcast_all(&mut self, values: &[Reg]) -> Vec<Reg> {
        // A predicate travels as a number.
        let sent: Vec<Reg> = values
            .iter()
            .map(|&x| if matches!(x, Reg::P(_)) { self.t.r("selp.b32", &[&1, &0, &x]) } else { x })
            .collect();
        let taken: Vec<Reg> = match self.barrier {
            None => sent.iter().map(|&x| self.shuffled(x)).collect(),
            Some(_) => {
                let place = |code: &Self, k: usize| format!("[{}+{}]", code.fixed.frame, code.mailbox as usize + 8 * k);
                let bits = |x: Reg| if matches!(x, Reg::D(_)) { "b64" } else { "b32" };
                // All lanes have taken the previous content.
                if std::mem::replace(&mut self.mailed, true) {
                    self.barrier();
                }
                let handed = self.t.label();
                self.t.branch_unless(self.fixed.leader, handed);
                for (k, &x) in sent.iter().enumerate() {
                    let place = place(self, k);
                    self.t.line(format_args!("st.shared.{} {place}, {x};", bits(x)));
                }
                self.t.at(handed);
                self.barrier();
                let take = |(k, &x): (usize, &Reg)| {
                    let (new, place) = (self.t.like(x), place(self, k));
                    self.t.op(&format!("ld.shared.{}", bits(x)), new, &[&place])
                };
                sent.iter().enumerate().map(take).collect()
            }
        };
        let back = |(&x, taken): (&Reg, Reg)| {
            if matches!(x, Reg::P(_)) { self.t.p("setp.ne.u32", &[&taken, &0]) } else { taken }
        };
        values.iter().zip(taken).map(back).collect()
    }

    /// The leader's value, for the other lanes of its warp.
    fn shuffled(&mut self, x: Reg) -> Reg {
        let Reg::D(_) = x else { return self.t.r("shfl.sync.idx.b32", &[&x, &0, &31, &-1]) };
        let (low, high) = (self.t.new_r(), self.t.new_r());
        self.t.line(format_args!("mov.b64 {{{low}, {high}}}, {x};"));
        let [low, high] = [low, high].map(|half| self.t.r("shfl.sync.idx.b32", &[&half, &0, &31, &-1]));
        self.t.d("mov.b64", &[&format_args!("{{{low}, {high}}}")])
    }
}
