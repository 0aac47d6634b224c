//! One role: uniform code and control flow.
//!
//! Every lane computes uniform values for itself, with equal results. The **leader**, lane 0, does everything that
//! happens once per role copy: a store, an atomic, a signal. It also does loads of memory that others may write, which
//! must be read exactly once, and hands the result to the other lanes.

use super::bulk::{self, BulkState};
use super::leader::MOST_PENDING;
use super::register_scratch::RegisterScratch;
use super::text::{Label, Reg, Text};
use super::wire::SlotWait;
use super::{ARGS, Options, ParamBlock, PtxError, SHARED, abi, convert, number};
use crate::ir::access::SCRATCH_ALIGN;
use crate::ir::{
    Base, BinaryOp, Def, Entity, Facts, Inst, Kernel, Op, Order, Param, Region, Role, RoleId, Shape, Special, Type,
    Value,
};
use std::collections::HashSet;

/// The code of one role under construction.
pub(super) struct RoleCode<'k> {
    pub kernel: &'k Kernel,
    pub options: Options,
    pub params: &'k ParamBlock,
    pub t: Text,
    pub role: RoleId,
    /// Lanes of one copy.
    pub lanes: u32,
    /// True if the kernel reads regions of bytes, as receivers of staged data do.
    pub takes_staged: bool,
    pub fixed: Fixed,
    /// The named barrier of this copy; `None` for a single warp, which needs none.
    pub barrier: Option<u32>,
    /// Every lane jumps here when it has finished or given up.
    pub exit: Label,
    /// Registers of uniform values (and of loop indices).
    pub values: Vec<Option<Reg>>,
    vars: Vec<Option<Reg>>,
    /// Byte offsets of the role's scratch in its frame.
    scratches: Vec<u32>,
    /// Frame offset of the mailbox, where the leader leaves values for the other lanes.
    pub mailbox: u32,
    /// True while lanes may still have to read the mailbox's previous content.
    pub mailed: bool,
    /// Frame offset of the area where group ops exchange elements, and the bytes they need there.
    pub exchange: u32,
    pub exchange_bytes: u32,
    /// Bytes of the lane's private memory.
    pub depot_bytes: u32,
    /// True if the leader may have written since the last barrier.
    pub unsynced: bool,
    /// True while lanes may still be reading the source of their register-held words; writes to it need a barrier
    /// first.
    pub reading: bool,
    /// Scratch kept in registers; empty if accesses are checked.
    pub register_scratch: Vec<RegisterScratch>,
    /// True if no lane has touched memory since the last barrier.
    pub clean: bool,
    /// Lets bodies use shared memory to load ahead and to transpose.
    pub may_use_shared: bool,
    /// Loads of the leader that have not been handed to the other lanes yet. Several are in flight together and share
    /// two barriers.
    pub pending: Vec<(Value, Reg)>,
    /// The abort word loaded on entry, also not handed out yet.
    pub entry: Option<Reg>,
    /// State of the role's bulk copies; `None` if it has none, or the target has none.
    pub bulk: Option<BulkState>,
    mbarriers: u32,
    /// Values that some op reads.
    pub used: HashSet<Value>,
    pub facts: Facts,
}

/// The registers that every role begins with: [`RoleCode::prologue`] fills them.
#[derive(Clone, Copy)]
pub(super) struct Fixed {
    /// Number of the lane in its role copy, 32 bits.
    pub lane: Reg,
    /// The same, 64 bits.
    pub wide_lane: Reg,
    /// Whether this is lane 0.
    pub leader: Reg,
    /// Number of the copy, 32 bits.
    pub copy: Reg,
    /// First byte of the copy's shared memory, 32 bits.
    pub frame: Reg,
    /// Addresses, and nanoseconds of the deadline; 64 bits.
    pub abort: Reg,
    pub report: Reg,
    pub deadline: Reg,
    /// True once this lane has given up.
    pub failed: Reg,
    /// Time of the first failed test since the last progress; 0 after progress.
    pub since: Reg,
}

impl Fixed {
    pub fn new(t: &mut Text) -> Self {
        Fixed {
            lane: t.new_r(),
            wide_lane: t.new_d(),
            leader: t.new_p(),
            copy: t.new_r(),
            frame: t.new_r(),
            abort: t.new_d(),
            report: t.new_d(),
            deadline: t.new_d(),
            failed: t.new_p(),
            since: t.new_d(),
        }
    }
}

/// The place of a role among the others of its block.
#[derive(Clone, Copy)]
pub(super) struct RolePlacement {
    /// The block's thread number.
    pub thread: Reg,
    /// First warp of the role.
    pub first_warp: u32,
    /// First byte of the role's shared memory.
    pub first_byte: u64,
    /// Bytes of shared memory of one copy.
    pub frame_bytes: u32,
}

impl<'k> RoleCode<'k> {
    pub fn new(
        kernel: &'k Kernel,
        options: Options,
        params: &'k ParamBlock,
        mut t: Text,
        fixed: Fixed,
        role: RoleId,
        first_barrier: u32,
    ) -> Self {
        let data = &kernel.roles[role];
        let mut end = 0;
        let mut scratches = Vec::new();
        for scratch in kernel.scratches.values() {
            scratches.push(end);
            if scratch.role == role {
                let bytes = scratch.len.saturating_mul(scratch.ty.size() as u64);
                end = u32::try_from(bytes)
                    .ok()
                    .and_then(|bytes| bytes.checked_next_multiple_of(SCRATCH_ALIGN))
                    .map_or(u32::MAX / 2, |bytes| bytes.saturating_add(end).min(u32::MAX / 2));
            }
        }
        let mbarriers = end;
        if options.target.has_bulk() && bulk::ways(kernel, data.body)[1] {
            end = end.saturating_add(bulk::MBARRIER_BYTES).min(u32::MAX / 2);
        }
        let mut used = HashSet::new();
        kernel.walk(data.body, &mut |inst| used.extend(kernel.insts[inst].op.operands()));
        let takes = |op: &Op| matches!(op, Op::Get { at, .. } if matches!(at.base, Base::Param(_)));
        let takes_staged = kernel.insts.values().any(|inst| takes(&inst.op));
        let exit = t.label();
        RoleCode {
            kernel,
            options,
            params,
            t,
            role,
            lanes: data.warps * 32,
            takes_staged,
            fixed,
            barrier: (data.warps > 1).then_some(first_barrier),
            exit,
            values: vec![None; kernel.values.len()],
            vars: vec![None; kernel.vars.len()],
            scratches,
            mailbox: end,
            mailed: false,
            exchange: end + SCRATCH_ALIGN,
            exchange_bytes: 0,
            depot_bytes: 0,
            unsynced: false,
            reading: false,
            register_scratch: if options.bounds {
                Vec::new()
            } else {
                RegisterScratch::of(kernel, role, data.warps * 32)
            },
            clean: false,
            may_use_shared: true,
            pending: Vec::new(),
            entry: None,
            bulk: None,
            mbarriers,
            used,
            facts: Facts::default(),
        }
    }

    /// Fills the fixed registers.
    pub fn prologue(t: &mut Text, fixed: Fixed, role: &Role, at: RolePlacement) {
        let lanes = role.warps * 32;
        let thread = t.r("sub.u32", &[&at.thread, &(at.first_warp * 32)]);
        // ptxas divides even by 128 with a reciprocal and about 20 instructions, and every launch waits for the code
        // before its first load.
        match lanes {
            _ if role.copies == 1 => {
                t.op("mov.b32", fixed.copy, &[&0]);
                t.assign(fixed.lane, thread);
            }
            lanes if lanes.is_power_of_two() => {
                t.op("shr.u32", fixed.copy, &[&thread, &lanes.trailing_zeros()]);
                t.op("and.b32", fixed.lane, &[&thread, &(lanes - 1)]);
            }
            _ => {
                t.op("div.u32", fixed.copy, &[&thread, &lanes]);
                t.op("rem.u32", fixed.lane, &[&thread, &lanes]);
            }
        }
        t.op("cvt.u64.u32", fixed.wide_lane, &[&fixed.lane]);
        t.op("setp.eq.u32", fixed.leader, &[&fixed.lane, &0]);
        let start = t.r("mov.u32", &[&SHARED]);
        let start = t.r("add.u32", &[&start, &at.first_byte]);
        t.op("mad.lo.u32", fixed.frame, &[&fixed.copy, &at.frame_bytes, &start]);
        for (to, offset) in [(fixed.abort, abi::ABORT), (fixed.report, abi::REPORT), (fixed.deadline, abi::DEADLINE)] {
            t.op("ld.param.u64", to, &[&format_args!("[{ARGS}+{offset}]")]);
        }
        t.op("mov.pred", fixed.failed, &[&0]);
        t.op("mov.b64", fixed.since, &[&0]);
    }

    /// The whole body, to the exit.
    pub fn body(&mut self) -> Result<(), PtxError> {
        let body = self.kernel.roles[self.role].body;
        self.t.comment(format_args!("role {}", self.kernel.roles[self.role].name));
        let ways = bulk::ways(self.kernel, body);
        if self.options.target.has_bulk() && ways != [false; 2] {
            self.begin_bulk(ways, self.mbarriers);
        }
        if self.options.busy {
            self.take_place();
        } else if self.waits(body) {
            self.enter();
        }
        self.region(body)?;
        self.t.at(self.exit);
        self.end_bulk();
        if self.options.busy {
            self.leave_place();
        }
        self.t.line("exit;");
        Ok(())
    }

    /// Shared memory of one copy, in bytes.
    pub fn frame_bytes(&self) -> u32 {
        match self.exchange_bytes {
            0 if self.mailbox == 0 && self.barrier.is_none() => 0,
            bytes => (self.exchange.saturating_add(bytes)).next_multiple_of(SCRATCH_ALIGN),
        }
    }

    /// Memory of one lane, in bytes.
    pub fn depot_bytes(&self) -> u32 {
        self.depot_bytes
    }

    pub fn finish(self) -> Text {
        self.t
    }

    /// True if a region contains an op that may block.
    fn waits(&self, region: Region) -> bool {
        let mut found = false;
        self.kernel.walk(region, &mut |inst| found |= self.kernel.insts[inst].op.may_block());
        found
    }

    /// True if the leader may have something to hand out in a region.
    pub fn mails(&self, region: Region) -> bool {
        let mut found = false;
        self.kernel.walk(region, &mut |inst| {
            let data = &self.kernel.insts[inst];
            let uniform = data.result.is_some_and(|v| self.kernel.shape(v) == Shape::Uniform);
            found |= uniform && !is_lane_local(&data.op);
        });
        found
    }

    /// True if the leader alone writes in a region. Lanes' writes in an `each` are published by the barrier at its end.
    pub fn writes_alone(&self, region: Region) -> bool {
        self.kernel.regions[region].iter().any(|&inst| match &self.kernel.insts[inst].op {
            Op::Store { .. } | Op::Put { .. } | Op::AtomicAdd { .. } | Op::BulkCopy { .. } => true,
            Op::Each { .. } => false,
            op => op.regions().iter().any(|&region| self.writes_alone(region)),
        })
    }

    pub fn region(&mut self, region: Region) -> Result<(), PtxError> {
        self.insts(&self.kernel.regions[region])?;
        // Values of a region are not visible outside it.
        self.pending.clear();
        self.clean = false;
        Ok(())
    }

    /// Emits ops in order, combining consecutive waits.
    fn insts(&mut self, mut insts: &'k [Inst]) -> Result<(), PtxError> {
        while let Some((&inst, rest)) = insts.split_first() {
            let run = self.waits_in_a_row(insts);
            if run.is_empty() {
                self.inst(inst)?;
                insts = rest;
                continue;
            }
            self.land();
            let mut waits = Vec::new();
            for &inst in run {
                match &self.kernel.insts[inst].op {
                    Op::Wait { slot, x } => waits.push(SlotWait { inst, slot, x: *x }),
                    _ => self.op(inst)?,
                }
            }
            self.clean = false;
            self.wait(&waits);
            insts = &insts[run.len()..];
        }
        Ok(())
    }

    /// The ops from a wait to the last one that follows with only pure ops in between. Empty if there is no second
    /// wait.
    fn waits_in_a_row(&self, insts: &'k [Inst]) -> &'k [Inst] {
        let is_wait = |inst: &Inst| matches!(self.kernel.insts[*inst].op, Op::Wait { .. });
        if !insts.first().is_some_and(is_wait) {
            return &[];
        }
        let run = insts.iter().take_while(|inst| is_wait(inst) || is_lane_local(&self.kernel.insts[**inst].op));
        let waits: Vec<usize> = run.enumerate().filter(|(_, inst)| is_wait(inst)).map(|(k, _)| k).take(32).collect();
        match waits[..] {
            [_, .., last] => &insts[..=last],
            _ => &[],
        }
    }

    fn inst(&mut self, inst: Inst) -> Result<(), PtxError> {
        let kernel = self.kernel;
        let data = &kernel.insts[inst];
        let loads = matches!(data.op, Op::Load { .. } | Op::Get { .. });
        if self.prepares(inst) {
            // Pending loads land after this op: no region inside may hand out values that are needed beyond it.
            let (pending, entry) = (std::mem::take(&mut self.pending), self.entry.take());
            self.op(inst)?;
            self.land();
            (self.pending, self.entry) = (pending, entry);
            return Ok(());
        }
        if !(loads || is_lane_local(&data.op)) || self.pending.len() >= MOST_PENDING || self.needs_pending(&data.op) {
            self.land();
        }
        self.op(inst)
    }

    /// One op whose operands are all available.
    fn op(&mut self, inst: Inst) -> Result<(), PtxError> {
        let kernel = self.kernel;
        let data = &kernel.insts[inst];
        // Only the leader touches memory in these.
        let by_leader =
            matches!(data.op, Op::Signal { .. } | Op::SignalCredit { .. } | Op::Post { .. } | Op::Require { .. });
        if !(is_lane_local(&data.op) || by_leader) {
            self.clean = false;
        }
        match &data.op {
            Op::If { cond, then, otherwise } => {
                let (cond, no, end) = (self.value(*cond), self.t.label(), self.t.label());
                self.t.jump_unless(cond, no);
                let before = (self.unsynced, self.reading);
                self.region(*then)?;
                let after = (self.unsynced, self.reading);
                (self.unsynced, self.reading) = before;
                self.t.jump(end);
                self.t.at(no);
                self.region(*otherwise)?;
                self.unsynced |= after.0;
                self.reading |= after.1;
                self.t.at(end);
            }
            Op::For { start, end, step, body } => self.for_loop(inst, [*start, *end, *step], *body)?,
            Op::While { head, cond, body } => {
                self.mailed = true;
                self.unsynced |= self.writes_alone(*head) || self.writes_alone(*body);
                let before = (self.unsynced, self.reading);
                let (again, end) = (self.t.label(), self.t.label());
                self.t.at(again);
                self.insts(&kernel.regions[*head])?;
                self.land();
                let cond = self.value(*cond);
                self.t.jump_unless(cond, end);
                self.region(*body)?;
                self.t.jump(again);
                self.t.at(end);
                (self.unsynced, self.reading) = before;
            }
            Op::Each { extent, body } => {
                let extent: Vec<Reg> = extent.iter().map(|&v| self.value(v)).collect();
                self.sync_leader();
                self.sync_readers();
                self.each(inst, &extent, *body)?;
            }
            Op::WriteVar { var, x } => {
                let x = self.value(*x);
                let to = match self.vars[var.index()] {
                    Some(to) => to,
                    None => *self.vars[var.index()].insert(self.t.like(x)),
                };
                self.t.assign(to, x);
            }
            Op::Load { at, mask } => {
                let ty = kernel.base_type(at.base).unwrap_or(Type::U8);
                self.uniform_load(inst, at, (ty, ty.size() as u32), mask.as_ref());
            }
            Op::Get { at, to, mask } => self.uniform_load(inst, at, (*to, 1), mask.as_ref()),
            Op::Store { at, x, mask } => self.uniform_store(inst, at, *x, false, *mask),
            Op::Put { at, x, mask } => self.uniform_store(inst, at, *x, true, *mask),
            Op::AtomicAdd { at, x, mask, order, scope } => {
                let ty = kernel.ty(*x);
                self.sync_readers();
                if matches!(order, Order::Release | Order::AcqRel) {
                    self.barrier();
                }
                let guard = self.leader_and(*mask);
                let index = self.value(at.index);
                let to = self.address(at, index, ty.size() as u32);
                let guard = self.bounded(inst, at, index, (ty.size() as u32, ty.size() as u64), Some(guard));
                let x = self.value(*x);
                let old = self.atomic_add(to, ty, x, guard, *order, *scope);
                self.leave_if_outside();
                self.unsynced = true;
                let result = data.result.expect("an atomic has a result");
                let acquires = matches!(order, Order::Acquire | Order::AcqRel);
                if self.used.contains(&result) || acquires {
                    let old = self.broadcast(old);
                    self.define(inst, old);
                }
                if acquires {
                    self.barrier();
                }
            }
            Op::Signal { slot, x } => self.signal(slot, *x, "release"),
            Op::SignalCredit { slot, x } => self.signal(slot, *x, "relaxed"),
            Op::Wait { slot, x } => self.wait(&[SlotWait { inst, slot, x: *x }]),
            Op::Test { slot, x } => {
                let ok = self.test(inst, slot, *x);
                self.define(inst, ok);
            }
            Op::BulkCopy { dst, src, count } => {
                self.sync_readers();
                self.bulk_copy(dst, src, *count);
            }
            Op::BulkWait { pending, done } => self.bulk_wait(*pending, *done),
            Op::ProxyFence => self.proxy_fence(),
            Op::Barrier => self.barrier(),
            Op::Require { cond, span } => self.require(inst, *cond, span.as_ref()),
            Op::Post { queue, peer, span, notice } => self.post(inst, *queue, *peer, span.as_ref(), notice.as_ref()),
            Op::Group { .. } | Op::PacketPut { .. } | Op::PacketGet { .. } => {
                unreachable!("the verifier allows it in an `each` only")
            }
            _ => self.uniform_value(inst),
        }
        Ok(())
    }

    // ---- values -----------------------------------------------------------------------------------------------------

    /// The register of a uniform value.
    pub fn value(&self, v: Value) -> Reg {
        self.values[v.index()].expect("a value is defined before it is used")
    }

    pub fn define(&mut self, inst: Inst, x: Reg) {
        if let Some(result) = self.kernel.insts[inst].result {
            self.values[result.index()] = Some(x);
        }
    }

    /// A pure op on uniform values.
    pub fn uniform_value(&mut self, inst: Inst) {
        let op = &self.kernel.insts[inst].op;
        let x = match op {
            Op::Const(c) => self.t.constant(c.ty, c.bits),
            Op::Special(special) => self.special(*special),
            Op::Scalar(p) => self.scalar(*p),
            Op::ReadVar(var) => {
                let ty = self.kernel.vars[*var].ty;
                let from = match self.vars[var.index()] {
                    Some(from) => from,
                    // First written in a branch that comes later in the text but runs earlier.
                    None => *self.vars[var.index()].insert(self.t.new_of(ty)),
                };
                self.t.copy(from)
            }
            op => {
                let operands: Vec<Reg> = op.operands().into_iter().map(|v| self.value(v)).collect();
                match self.divided(op) {
                    Some((name, by)) => self.t.d(name, &[&operands[0], &by]),
                    None => pure(&mut self.t, self.kernel, op, &operands),
                }
            }
        };
        let x = self.halved(inst, x);
        self.define(inst, x);
    }

    /// How to divide a nonnegative 64-bit number by a divisor that this role knows. ptxas takes hundreds of
    /// instructions for a quotient by an unknown divisor, and the number of copies is known only here.
    fn divided(&mut self, op: &Op) -> Option<(&'static str, u64)> {
        let &Op::Binary { op: op @ (BinaryOp::Div | BinaryOp::Rem), a, b } = op else { return None };
        let by = self.known(b).filter(|&by| by > 0 && by <= i64::MAX as u64)?;
        if self.kernel.ty(a).size() != 8 || self.facts.of(self.kernel, a).lo < 0 {
            return None;
        }
        Some(match (op, by.is_power_of_two()) {
            (BinaryOp::Div, true) => ("shr.u64", u64::from(by.trailing_zeros())),
            (BinaryOp::Div, false) => ("div.u64", by),
            (_, true) => ("and.b64", by - 1),
            (_, false) => ("rem.u64", by),
        })
    }

    /// The value of an integer that is the same in all launches of this role.
    fn known(&self, v: Value) -> Option<u64> {
        let Def::Result(inst) = self.kernel.values[v].def else { return None };
        match self.kernel.insts[inst].op {
            Op::Const(c) if c.ty.is_int() => Some(c.bits),
            Op::Special(Special::Copies) => Some(u64::from(self.kernel.roles[self.role].copies)),
            Op::Special(Special::Blocks) => Some(u64::from(self.kernel.blocks)),
            Op::Cast { x, to: Type::I64 | Type::U64 } if matches!(self.kernel.ty(x), Type::I64 | Type::U64) => {
                self.known(x)
            }
            _ => None,
        }
    }

    /// Tells ptxas that a 64-bit value fits 32 bits, so it keeps no register for the upper half.
    pub fn halved(&mut self, inst: Inst, x: Reg) -> Reg {
        let data = &self.kernel.insts[inst];
        let computed = matches!(data.op, Op::Binary { .. } | Op::Select { .. } | Op::Cast { .. } | Op::Bitcast { .. });
        match data.result {
            Some(v) if computed && matches!(x, Reg::D(_)) && self.fits_word(v) => {
                let low = self.t.r("cvt.u32.u64", &[&x]);
                self.t.d("cvt.u64.u32", &[&low])
            }
            _ => x,
        }
    }

    /// True if an integer is known to be nonnegative and to fit 32 bits.
    pub fn fits_word(&mut self, v: Value) -> bool {
        self.facts.of(self.kernel, v).lo >= 0 && self.most(v) <= u64::from(u32::MAX)
    }

    /// The upper bound of an integer; 0 if it is negative.
    pub fn most(&mut self, v: Value) -> u64 {
        self.facts.of(self.kernel, v).hi.clamp(0, i128::from(u64::MAX)) as u64
    }

    fn special(&mut self, special: Special) -> Reg {
        match special {
            Special::Rank => self.argument(abi::RANK),
            Special::WorldSize => self.argument(abi::WORLD_SIZE),
            Special::Block => {
                let block = self.t.r("mov.u32", &[&"%ctaid.x"]);
                self.t.d("cvt.u64.u32", &[&block])
            }
            Special::Blocks => self.t.d_const(u64::from(self.kernel.blocks)),
            Special::Copy => self.t.d("cvt.u64.u32", &[&self.fixed.copy]),
            Special::Copies => self.t.d_const(u64::from(self.kernel.roles[self.role].copies)),
        }
    }

    fn scalar(&mut self, p: crate::ir::ParamId) -> Reg {
        let bits = self.argument(self.params.offset(p));
        let Param::Scalar { ty, .. } = self.kernel.params[p] else { unreachable!("the verifier says it is a scalar") };
        match ty {
            Type::Bool => {
                let byte = self.t.d("and.b64", &[&bits, &0xff]);
                self.t.p("setp.ne.u64", &[&byte, &0])
            }
            _ if ty.size() == 8 => bits,
            _ => {
                let low = self.t.r("cvt.u32.u64", &[&bits]);
                convert::bitcast(&mut self.t, ty, low)
            }
        }
    }

    /// Eight bytes of the parameter block.
    pub fn argument(&mut self, offset: u32) -> Reg {
        self.t.d("ld.param.u64", &[&format_args!("[{ARGS}+{offset}]")])
    }

    /// First byte of a scratch, 32 bits.
    pub fn scratch(&mut self, scratch: crate::ir::ScratchId) -> Reg {
        self.t.r("add.u32", &[&self.fixed.frame, &self.scratches[scratch.index()]])
    }

    // ---- barriers ---------------------------------------------------------------------------------------------------

    /// Barrier of the role copy.
    pub fn barrier(&mut self) {
        match self.barrier_number() {
            Some(number) => self.t.line(format_args!("bar.sync {number}, {};", self.lanes)),
            None => self.t.line("bar.warp.sync 0xffffffff;"),
        }
        (self.unsynced, self.reading) = (false, false);
    }

    /// Barrier before the leader acts for all lanes; omitted if no lane has touched memory since the last one.
    pub fn barrier_if_needed(&mut self) {
        if !self.clean {
            self.barrier();
            self.clean = true;
        }
    }

    /// Barrier that also tells all lanes if the predicate holds for any of them.
    pub fn any(&mut self, p: Reg) -> Reg {
        (self.unsynced, self.reading) = (false, false);
        match self.barrier_number() {
            Some(number) => self.t.p("bar.red.or.pred", &[&number, &self.lanes, &p]),
            None => {
                // A vote orders no memory accesses.
                self.t.line("bar.warp.sync 0xffffffff;");
                self.t.p("vote.sync.any.pred", &[&p, &"0xffffffff"])
            }
        }
    }

    /// All lanes exit if one of them has given up. Includes a barrier.
    pub fn leave_if_failed(&mut self) {
        let failed = self.any(self.fixed.failed);
        self.t.jump_if(failed, self.exit);
    }

    /// All lanes exit if one's preceding uniform access was out of bounds; emits nothing if bounds are not checked.
    pub fn leave_if_outside(&mut self) {
        if self.options.bounds {
            self.leave_if_failed();
        }
    }

    /// Makes the leader's writes visible to all lanes.
    fn sync_leader(&mut self) {
        if self.unsynced {
            self.barrier();
        }
    }

    /// Barrier before a write, if lanes may still be reading the source of their register-held words.
    pub fn sync_readers(&mut self) {
        if self.reading {
            self.barrier();
        }
    }

    fn barrier_number(&mut self) -> Option<String> {
        let first = self.barrier?;
        Some(match self.kernel.roles[self.role].copies {
            1 => first.to_string(),
            _ => self.t.r("add.u32", &[&self.fixed.copy, &first]).to_string(),
        })
    }
}

/// True if a lane computes an op alone, in registers. Unlike for [`Op::is_pure`], a variable is a register here, and a
/// group is several lanes.
pub(super) fn is_lane_local(op: &Op) -> bool {
    matches!(op, Op::ReadVar(_)) || op.is_pure() && !matches!(op, Op::Group { .. })
}

/// A pure op; operands in the order of its fields.
pub(super) fn pure(t: &mut Text, kernel: &Kernel, op: &Op, operands: &[Reg]) -> Reg {
    match (op, operands) {
        (Op::Unary { op, x: v }, &[x]) => number::unary(t, *op, kernel.ty(*v), x),
        (Op::Binary { op, a: v, .. }, &[a, b]) => number::binary(t, *op, kernel.ty(*v), a, b),
        (Op::Compare { op, a: v, .. }, &[a, b]) => number::compare(t, *op, kernel.ty(*v), a, b),
        (Op::Select { a: v, .. }, &[cond, a, b]) => t.op_select(kernel.ty(*v), cond, a, b),
        (Op::Fma { a: v, .. }, &[a, b, c]) => number::fma(t, kernel.ty(*v), a, b, c),
        (Op::Cast { x: v, to }, &[x]) => convert::cast(t, kernel.ty(*v), *to, x),
        (Op::Bitcast { to, .. }, &[x]) => convert::bitcast(t, *to, x),
        _ => unreachable!("not an op that only computes: {op:?}"),
    }
}
