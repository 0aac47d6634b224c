//! Signals, waits, tests and packets, and how a role copy gives up.
//!
//! ```text
//!   signal   barrier, then the leader's st.release.sys: the lanes' accesses happen before the barrier, the barrier
//!            before the release, and release is cumulative
//!   credit   barrier, then a relaxed store: that the barrier completes the lanes' reads is an assumption outside the
//!            formal PTX model
//!   wait     the leader polls ld.acquire.sys; the barrier after it passes what it saw on to the lanes. Consecutive
//!            waits are one: lane k polls for the k-th, and one deadline for all runs from their start
//! ```
//!
//! Every 32nd poll that finds nothing also polls the abort word and reads the clock. When either ends the wait, the
//! lane marks itself as failed. The barrier that follows (an or over all lanes) takes the whole role copy to its exit.
//! Other role copies find the abort word set.

use super::abi;
use super::batch::{Batch, Wanted};
use super::role::RoleCode;
use super::text::{Hex, Label, Reg};
use crate::ir::matching::{COUNT_SHIFT, FLAG_BITS, IN_STEP};
use crate::ir::{Base, Entity, Inst, Param, Place, RequiredSpan, Slot, Value};
use std::fmt::Display;

/// The object of a wait, as the report names it.
#[derive(Clone, Copy)]
pub(super) struct Awaited {
    pub inst: Reg,
    pub param: Reg,
    pub bank: Reg,
    pub index: Reg,
    pub expected: Reg,
    pub seen: Reg,
}

/// How a long wait makes itself known: see [`abi`].
pub(super) struct StallMark {
    param: Reg,
    /// True while the mark is set.
    is_set: Reg,
    /// Jump target of a wait that has ended.
    pub lifted: Label,
}

/// A wait and its place in the kernel.
#[derive(Clone, Copy)]
pub(super) struct SlotWait<'k> {
    pub inst: Inst,
    pub slot: &'k Slot,
    pub x: Value,
}

impl RoleCode<'_> {
    pub fn signal(&mut self, slot: &Slot, x: Value, order: &str) {
        let (address, _) = self.slot(slot);
        let x = self.word(slot, x);
        self.barrier_if_needed();
        self.t.line(format_args!("@{} st.{order}.sys.global.u64 [{address}], {x};", self.fixed.leader));
        self.progress();
    }

    /// The word that a signal of a count stores in a slot, and that a wait for it expects.
    fn word(&mut self, slot: &Slot, count: Value) -> Reg {
        let count = self.value(count);
        match self.stamp(slot.slots, slot.bank) {
            None => count,
            Some(stamp) => {
                let high = self.t.d("shl.b64", &[&count, &COUNT_SHIFT]);
                self.t.d("or.b64", &[&high, &stamp])
            }
        }
    }

    /// The flag on the wire of packets at a place, from the kernel's flag.
    pub fn wire_flag(&mut self, at: &Place, flag: Reg) -> Reg {
        let Base::Param(param) = at.base else { unreachable!("the verifier wants a parameter") };
        match self.stamp(param, at.bank) {
            None => flag,
            Some(stamp) => {
                let stamp = self.t.r("cvt.u32.u64", &[&stamp]);
                let bits = self.t.r("and.b32", &[&flag, &Hex(FLAG_BITS.into())]);
                self.t.r("or.b32", &[&bits, &stamp])
            }
        }
    }

    /// Waits for all of these side by side. Polls that overlap take as long as one, so lane k polls for the k-th.
    /// Matched slots compare differently and are waited for after the others.
    pub fn wait(&mut self, waits: &[SlotWait<'_>]) {
        let is_matched = |wait: &&SlotWait<'_>| self.kernel.is_matched(wait.slot.slots);
        let (matched, bare): (Vec<SlotWait<'_>>, Vec<_>) = waits.iter().partition(is_matched);
        for (waits, matched) in [(bare, false), (matched, true)] {
            if !waits.is_empty() {
                self.wait_alike(&waits, matched);
            }
        }
    }

    fn wait_alike(&mut self, waits: &[SlotWait<'_>], matched: bool) {
        let mut polled = Vec::new();
        for &SlotWait { slot, x, .. } in waits {
            let (address, index) = self.slot(slot);
            polled.push([address, index, self.word(slot, x)]);
        }
        let (again, done) = (self.t.label(), self.t.label());
        let polls = match waits.len() {
            1 => self.fixed.leader,
            some => self.t.p("setp.lt.u32", &[&self.fixed.lane, &some]),
        };
        self.t.branch_unless(polls, done);
        let [addresses, indices, values]: [Vec<Reg>; 3] =
            [0, 1, 2].map(|field| polled.iter().map(|of_wait: &[Reg; 3]| of_wait[field]).collect());
        let (address, expected) = (self.by_lane(&addresses), self.by_lane(&values));
        let seen = self.t.new_d();
        // A matched word usually equals the expected one. Everything else is examined rarely.
        let is_there = if matched { "setp.eq.u64" } else { "setp.ge.u64" };
        let poll = |code: &mut Self, then: Label| {
            code.t.op("ld.acquire.sys.global.u64", seen, &[&format_args!("[{address}]")]);
            let there = code.t.p(is_there, &[&seen, &expected]);
            code.t.branch_if(there, then);
        };
        poll(self, done);
        let started = self.t.d("mov.u64", &[&"%globaltimer"]);
        let polls = self.t.r_const(0);
        let state = self.t.d_const(abi::GAVE_UP);
        let params: Vec<Reg> = waits.iter().map(|wait| self.t.d_const(wait.slot.slots.index() as u64)).collect();
        let mark = self.stall_mark(&params);
        let (reached, tell) = (self.t.label(), self.t.label());
        self.t.at(again);
        poll(self, mark.lifted);
        let over = self.poll_rarely(polls, started, again, &mark, |code| {
            if matched {
                let [count, least] = code.counts(seen, expected);
                let is_reached = code.t.p("setp.ge.u64", &[&count, &least]);
                code.t.branch_if(is_reached, reached);
            }
        });
        poll(self, mark.lifted);
        if matched {
            self.t.line(format_args!("bra {tell};"));
            self.t.at(reached);
            let fine = self.is_fine(seen, expected);
            self.t.branch_if(fine, mark.lifted);
            self.t.op("mov.b64", state, &[&abi::OTHER_OPERATION]);
            self.t.at(tell);
        }
        let mut whats = Vec::new();
        for (SlotWait { inst, slot, .. }, index) in waits.iter().zip(indices) {
            whats.push(self.awaited(*inst, (slot.slots.index(), slot.bank), index, expected, seen));
        }
        let mut of = |field: fn(&Awaited) -> Reg| self.by_lane(&whats.iter().map(field).collect::<Vec<_>>());
        let (inst, param) = (of(|what| what.inst), of(|what| what.param));
        let (bank, index) = (of(|what| what.bank), of(|what| what.index));
        let what = Awaited { inst, param, bank, index, expected, seen };
        self.give_up(what, &state, over);
        self.lift(mark);
        self.t.at(done);
        self.progress();
        self.leave_if_failed();
    }

    /// True if a word whose count is reached may be taken: see [`look_at_word`](crate::ir::matching::look_at_word).
    fn is_fine(&mut self, seen: Reg, expected: Reg) -> Reg {
        let differs = self.t.d("xor.b64", &[&seen, &expected]);
        let differs = self.t.d("and.b64", &[&differs, &Hex((1 << COUNT_SHIFT) - 1)]);
        let same = self.t.p("setp.eq.u64", &[&differs, &0]);
        let in_step = self.t.d("and.b64", &[&expected, &Hex(IN_STEP.into())]);
        let own = self.t.p("setp.eq.u64", &[&in_step, &0]);
        let [count, least] = self.counts(seen, expected);
        let past = self.t.p("setp.gt.u64", &[&count, &least]);
        let ahead = self.t.p("and.pred", &[&own, &past]);
        let nothing = self.t.p("setp.eq.u64", &[&least, &0]);
        let may = self.t.p("or.pred", &[&same, &ahead]);
        self.t.p("or.pred", &[&may, &nothing])
    }

    /// The counts of two words.
    fn counts(&mut self, seen: Reg, expected: Reg) -> [Reg; 2] {
        [seen, expected].map(|word| self.t.d("shr.u64", &[&word, &COUNT_SHIFT]))
    }

    /// The k-th of these, for lane k.
    fn by_lane(&mut self, values: &[Reg]) -> Reg {
        let mut x = values[0];
        for (k, other) in values.iter().enumerate().skip(1) {
            let mine = self.t.p("setp.eq.u32", &[&self.fixed.lane, &k]);
            x = self.t.d("selp.b64", &[other, &x, &mine]);
        }
        x
    }

    /// True if the slot has the value now. A role may poll this way in a loop. A failed test ends the launch if it was
    /// aborted, or if no wait, test or signal of the role copy has succeeded within the deadline.
    pub fn test(&mut self, inst: Inst, slot: &Slot, x: Value) -> Reg {
        let (address, index) = self.slot(slot);
        let expected = self.word(slot, x);
        let (over, done) = (self.t.label(), self.t.label());
        let there = self.t.p("mov.pred", &[&0]);
        self.t.branch_unless(self.fixed.leader, done);
        let seen = self.t.d("ld.acquire.sys.global.u64", &[&format_args!("[{address}]")]);
        let state = self.t.d_const(abi::GAVE_UP);
        let tell = self.t.label();
        if self.kernel.is_matched(slot.slots) {
            let [count, least] = self.counts(seen, expected);
            let reached = self.t.p("setp.ge.u64", &[&count, &least]);
            let fine = self.is_fine(seen, expected);
            self.t.op("and.pred", there, &[&reached, &fine]);
            let wrong = self.t.p("not.pred", &[&fine]);
            let other = self.t.p("and.pred", &[&reached, &wrong]);
            self.t.line(format_args!("@{other} mov.b64 {state}, {};", abi::OTHER_OPERATION));
            self.t.branch_if(other, tell);
        } else {
            self.t.op("setp.ge.u64", there, &[&seen, &expected]);
        }
        let since = self.fixed.since;
        self.t.line(format_args!("@{there} mov.b64 {since}, 0;"));
        self.t.branch_if(there, done);
        let word = self.t.d("ld.relaxed.sys.global.u64", &[&format_args!("[{}]", self.fixed.abort)]);
        let aborted = self.t.p("setp.ne.u64", &[&word, &0]);
        self.t.branch_if(aborted, over);
        let now = self.t.d("mov.u64", &[&"%globaltimer"]);
        let first = self.t.p("setp.eq.u64", &[&since, &0]);
        self.t.line(format_args!("@{first} mov.b64 {since}, {now};"));
        let waited = self.t.d("sub.u64", &[&now, &since]);
        let early = self.t.p("setp.lt.u64", &[&waited, &self.fixed.deadline]);
        self.t.branch_if(early, done);
        self.t.at(tell);
        let what = self.awaited(inst, (slot.slots.index(), slot.bank), index, expected, seen);
        self.give_up(what, &state, over);
        self.t.at(done);
        self.leave_if_failed();
        self.any(there)
    }

    /// Waits for packets that were polled once, those of several ops together. All missing ones are polled side by
    /// side, since polls that overlap take as long as one. A lane that gives up reports the first missing packet and
    /// jumps to the end of the batch.
    pub fn packets_wait(&mut self, batch: &Batch, wanted: &[Wanted<'_>]) {
        let mut packets = Vec::new();
        for want in wanted {
            for (k, packet) in batch.polled[&want.inst].iter().enumerate() {
                let flag = self.of(batch, want.flag, k);
                packets.push((*want, *packet, self.wire_flag(want.at, flag)));
            }
        }
        let param_of = |want: &Wanted<'_>| match want.at.base {
            Base::Param(param) => param,
            Base::Scratch(_) => unreachable!("the verifier wants a parameter"),
        };
        let (again, done) = (self.t.label(), self.t.label());
        let there: Vec<Reg> = packets.iter().map(|_| self.t.p("mov.pred", &[&0])).collect();
        let poll = |code: &mut Self| {
            for ((_, packet, _), there) in packets.iter().zip(&there) {
                code.poll_packet(&format!("@!{there} "), packet.address, packet.halves);
            }
        };
        let check = |code: &mut Self, then: Label| -> Vec<Reg> {
            let flags = packets.iter().zip(&there);
            let seen = flags.map(|((_, packet, flag), there)| code.packet_flag(packet.halves, *flag, *there)).collect();
            let all = there.iter().copied().reduce(|a, b| code.t.p("and.pred", &[&a, &b]));
            code.t.branch_if(all.expect("an op gets a packet"), then);
            seen
        };
        check(self, done);
        let started = self.t.d("mov.u64", &[&"%globaltimer"]);
        let polls = self.t.r_const(0);
        let state = self.t.d_const(abi::GAVE_UP);
        let param = self.t.d_const(param_of(&packets[0].0).index() as u64);
        let mark = self.stall_mark(&[param]);
        let tell = self.t.label();
        self.t.at(again);
        poll(self);
        let last = check(self, mark.lifted);
        let over = self.poll_rarely(polls, started, again, &mark, |code| {
            for (k, (want, _, flag)) in packets.iter().enumerate().rev() {
                let param = param_of(want);
                let absent = code.t.p("not.pred", &[&there[k]]);
                let number = code.t.d_const(param.index() as u64);
                code.t.op("selp.b64", mark.param, &[&number, &mark.param, &absent]);
                // One check per op and lane is enough: all packets of a message belong to one operation, and every
                // message has the first packet of the first lane.
                let is_first = k == 0 || packets[k - 1].0.inst != want.inst;
                if is_first && code.kernel.is_matched(param) {
                    let differs = code.t.r("xor.b32", &[&last[k], flag]);
                    let bits = code.t.r("and.b32", &[&differs, &Hex(FLAG_BITS.into())]);
                    let same = code.t.p("setp.eq.u32", &[&bits, &0]);
                    let other = code.t.p("and.pred", &[&same, &absent]);
                    code.t.line(format_args!("@{other} mov.b64 {state}, {};", abi::OTHER_OPERATION));
                    code.t.branch_if(other, tell);
                }
            }
        });
        self.t.at(tell);
        poll(self);
        let seen = check(self, mark.lifted);
        let mut what = None;
        for (((want, packet, flag), there), seen) in packets.iter().zip(&there).zip(&seen).rev() {
            let Base::Param(param) = want.at.base else { unreachable!("the verifier wants a parameter") };
            let [flag, seen] = [flag, seen].map(|flag| self.t.d("cvt.u64.u32", &[flag]));
            let these = self.awaited(want.inst, (param.index(), want.at.bank), packet.index, flag, seen);
            what = Some(what.map_or(these, |others| self.first_missing(*there, these, others)));
        }
        self.give_up(what.expect("an op gets a packet"), &state, over);
        self.t.line(format_args!("bra {};", batch.end));
        self.lift(mark);
        self.t.at(done);
    }

    /// The first of two packets, unless it has arrived.
    fn first_missing(&mut self, there: Reg, this: Awaited, other: Awaited) -> Awaited {
        let mut pick = |this: Reg, other: Reg| self.t.d("selp.b64", &[&other, &this, &there]);
        Awaited {
            inst: pick(this.inst, other.inst),
            param: pick(this.param, other.param),
            bank: pick(this.bank, other.bank),
            index: pick(this.index, other.index),
            expected: pick(this.expected, other.expected),
            seen: pick(this.seen, other.seen),
        }
    }

    /// Sets `there` if both halves of a packet have its flag. Returns a wrong flag, if there is one.
    fn packet_flag(&mut self, halves: [Reg; 2], flag: Reg, there: Reg) -> Reg {
        let [low, high] = halves.map(|half| {
            let (data, flag) = (self.t.new_r(), self.t.new_r());
            self.t.line(format_args!("mov.b64 {{{data}, {flag}}}, {half};"));
            flag
        });
        let (first, second) = (self.t.p("setp.eq.u32", &[&low, &flag]), self.t.p("setp.eq.u32", &[&high, &flag]));
        self.t.op("and.pred", there, &[&first, &second]);
        self.t.r("selp.b32", &[&high, &low, &first])
    }

    /// Reads both halves of a packet, if a guard holds; each half is one access.
    pub fn poll_packet(&mut self, guard: &str, address: Reg, [low, high]: [Reg; 2]) {
        self.t.line(format_args!("{guard}ld.relaxed.sys.global.v2.b64 {{{low}, {high}}}, [{address}];"));
    }

    /// Address and number of a slot.
    fn slot(&mut self, slot: &Slot) -> (Reg, Reg) {
        let Param::Slots { stride, .. } = self.kernel.params[slot.slots] else {
            unreachable!("the verifier says these are slots")
        };
        let bank = self.bank(slot.slots, slot.bank);
        let index = self.value(slot.index);
        (self.t.d("mad.lo.s64", &[&index, &stride, &bank]), index)
    }

    /// The mark of a wait that may last, at the k-th of these parameters for lane k. Must precede the first poll of the
    /// loop.
    pub fn stall_mark(&mut self, params: &[Reg]) -> StallMark {
        let param = self.by_lane(params);
        let is_set = self.t.p("mov.pred", &[&0]);
        StallMark { param, is_set, lifted: self.t.label() }
    }

    /// The target of a wait that has ended: clears the mark, if it was set.
    pub fn lift(&mut self, mark: StallMark) {
        self.t.at(mark.lifted);
        let place = format!("[{}+{}]", self.fixed.report, 8 * abi::STALL);
        self.t.line(format_args!("@{} st.relaxed.sys.global.u64 {place}, 0;", mark.is_set));
        let lifts = format!("[{}+{}]", self.fixed.report, 8 * abi::LIFTS);
        let before = self.t.new_d();
        self.t.line(format_args!("@{} atom.relaxed.sys.global.add.u64 {before}, {lifts}, 1;", mark.is_set));
    }

    /// Jumps back to poll again. Every 32nd time it first runs `rarely`, polls the abort word and reads the clock.
    /// Returns the label for aborted waits; falls through when the deadline has passed.
    pub fn poll_rarely(
        &mut self,
        polls: Reg,
        started: Reg,
        again: Label,
        mark: &StallMark,
        rarely: impl FnOnce(&mut Self),
    ) -> Label {
        let over = self.t.label();
        self.t.op("add.u32", polls, &[&polls, &1]);
        let rest = self.t.r("and.b32", &[&polls, &31]);
        let often = self.t.p("setp.ne.u32", &[&rest, &0]);
        self.t.branch_if(often, again);
        rarely(self);
        let word = self.t.d("ld.relaxed.sys.global.u64", &[&format_args!("[{}]", self.fixed.abort)]);
        let aborted = self.t.p("setp.ne.u64", &[&word, &0]);
        self.t.branch_if(aborted, over);
        let now = self.t.d("mov.u64", &[&"%globaltimer"]);
        let waited = self.t.d("sub.u64", &[&now, &started]);
        self.t.op("setp.ge.u64", mark.is_set, &[&waited, &abi::STALLED_AFTER]);
        let which = self.t.d("add.u64", &[&mark.param, &1]);
        let which = self.t.d("shl.b64", &[&which, &abi::STALL_SHIFT]);
        let time = self.t.d("and.b64", &[&now, &Hex((1 << abi::STALL_SHIFT) - 1)]);
        let word = self.t.d("or.b64", &[&which, &time]);
        let place = format!("[{}+{}]", self.fixed.report, 8 * abi::STALL);
        self.t.line(format_args!("@{} st.relaxed.sys.global.u64 {place}, {word};", mark.is_set));
        let early = self.t.p("setp.lt.u64", &[&waited, &self.fixed.deadline]);
        self.t.branch_if(early, again);
        over
    }

    /// The guard of an access of `bytes` bytes at place `at`, whose index counts units of `unit` bytes. It is `active`
    /// and, if bounds are checked, the access being inside. A lane whose access is outside reports it and has failed.
    pub fn bounded(
        &mut self,
        inst: Inst,
        at: &Place,
        index: Reg,
        (unit, bytes): (u32, u64),
        active: Option<Reg>,
    ) -> Option<Reg> {
        if !self.options.bounds {
            return active;
        }
        let size = self.kernel.base_type(at.base).map_or(1, |ty| ty.size() as u64);
        let all = self.kernel.base_len(at.base).unwrap_or(0).saturating_mul(size);
        let (inside, most) = match all.checked_sub(bytes) {
            Some(room) => {
                let most = self.t.d_const(room / u64::from(unit));
                (self.t.p("setp.le.u64", &[&index, &most]), most)
            }
            None => (self.t.p("mov.pred", &[&0]), self.t.d_const(0)),
        };
        let (may, fine) = match active {
            Some(active) => {
                let idle = self.t.p("not.pred", &[&active]);
                (self.t.p("and.pred", &[&active, &inside]), self.t.p("or.pred", &[&idle, &inside]))
            }
            None => (inside, inside),
        };
        let done = self.t.label();
        self.t.branch_if(fine, done);
        let param = match at.base {
            Base::Param(p) => p.index(),
            Base::Scratch(s) => self.kernel.params.len() + s.index(),
        };
        let seen = self.t.d_const(0);
        let what = self.awaited(inst, (param, at.bank), index, most, seen);
        self.report(what, &abi::OUTSIDE);
        self.t.op("mov.pred", self.fixed.failed, &[&-1]);
        self.t.at(done);
        Some(may)
    }

    /// The object of a wait, at an index of a bank of a parameter.
    pub fn awaited(
        &mut self,
        inst: Inst,
        (param, bank): (usize, Option<Value>),
        index: Reg,
        expected: Reg,
        seen: Reg,
    ) -> Awaited {
        let [inst, param] = [inst.index(), param].map(|n| self.t.d_const(n as u64));
        let bank = match bank {
            Some(bank) => self.value(bank),
            None => self.t.d_const(0),
        };
        Awaited { inst, param, bank, index, expected, seen }
    }

    /// Reports; aborted waits join after the report. Both have failed.
    pub fn give_up(&mut self, what: Awaited, state: &dyn Display, over: Label) {
        self.report(what, state);
        self.t.at(over);
        self.t.op("mov.pred", self.fixed.failed, &[&-1]);
    }

    /// Goes on if the condition holds. Otherwise the leader reports, and the role copy ends. The condition is uniform,
    /// so all lanes take the same way, and no barrier is needed.
    pub fn require(&mut self, inst: Inst, cond: Value, span: Option<&RequiredSpan>) {
        let (cond, holds) = (self.value(cond), self.t.label());
        self.t.jump_if(cond, holds);
        self.t.branch_unless(self.fixed.leader, self.exit);
        let numbers = match span {
            Some(RequiredSpan { rank, offset, bytes, size }) => [*rank, *offset, *bytes, *size].map(|v| self.value(v)),
            None => [0; 4].map(|zero| self.t.d_const(zero)),
        };
        let [rank, offset, bytes, size] = numbers;
        let [inst, has_span] = [inst.index() as u64, span.is_some().into()].map(|n| self.t.d_const(n));
        let what = Awaited { inst, param: rank, bank: bytes, index: offset, expected: size, seen: has_span };
        self.report(what, &abi::REQUIRED);
        self.t.jump(self.exit);
        self.t.at(holds);
    }

    /// Fills the report unless it is taken, and sets the abort word unless it is set.
    pub fn report(&mut self, what: Awaited, state: &dyn Display) {
        let (report, taken) = (self.fixed.report, self.t.label());
        let before = self.t.d("atom.relaxed.sys.global.cas.b64", &[&format_args!("[{report}]"), &0, &1]);
        let other = self.t.p("setp.ne.u64", &[&before, &0]);
        self.t.branch_if(other, taken);
        let block = self.t.r("mov.u32", &[&"%ctaid.x"]);
        let block = self.t.d("cvt.u64.u32", &[&block]);
        let copy = self.t.d("cvt.u64.u32", &[&self.fixed.copy]);
        let role = self.t.d_const(self.role.index() as u64);
        let Awaited { inst, param, bank, index, expected, seen } = what;
        let words: [&dyn Display; abi::REPORT_WORDS - 1] =
            [&role, &block, &copy, &inst, &param, &bank, &index, &expected, &seen];
        for (i, word) in words.into_iter().enumerate() {
            self.t.line(format_args!("st.relaxed.sys.global.u64 [{report}+{}], {word};", 8 * (i + 1)));
        }
        self.t.line(format_args!("st.release.sys.global.u64 [{report}], {state};"));
        self.t.at(taken);
        let place = format!("[{}]", self.fixed.abort);
        self.t.d("atom.relaxed.sys.global.cas.b64", &[&place, &0, &Hex(abi::ABORTED_BY_TIMEOUT)]);
    }

    /// A wait, test or signal has succeeded: restarts the deadline of failed tests.
    pub fn progress(&mut self) {
        self.t.op("mov.b64", self.fixed.since, &[&0]);
    }
}
