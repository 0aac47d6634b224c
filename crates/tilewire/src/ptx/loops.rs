//! Loops of uniform code; a loop of one turn is emitted without a jump.

use super::PtxError;
use super::role::RoleCode;
use super::text::Reg;
use crate::ir::{Entity, Facts, Inst, Kernel, Op, Region, Value};

/// How many turns a loop has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turns {
    One,
    /// One, or none.
    AtMostOne,
    Any,
}

/// The number of turns of an op, as far as known; only a `for` has few.
pub(super) fn turns(kernel: &Kernel, facts: &mut Facts, op: &Op) -> Turns {
    let Op::For { start, end, step, .. } = op else { return Turns::Any };
    let number = |v: Value| kernel.as_const(v).map(|c| i128::from(c.bits as i64));
    let (Some(start), Some(step)) = (number(*start), number(*step)) else { return Turns::Any };
    let end = facts.of(kernel, *end);
    match step > 0 && end.hi <= start + step {
        true if end.lo > start => Turns::One,
        true => Turns::AtMostOne,
        false => Turns::Any,
    }
}

impl RoleCode<'_> {
    /// A loop, or its body alone if it has one turn.
    pub fn for_loop(&mut self, inst: Inst, [start, end, step]: [Value; 3], body: Region) -> Result<(), PtxError> {
        let turns = turns(self.kernel, &mut self.facts, &self.kernel.insts[inst].op);
        let [start, end, step] = [start, end, step].map(|v| self.value(v));
        let counter = self.kernel.insts[inst].indices[0];
        if turns != Turns::Any {
            return self.one_turn((counter, start, end), turns, body);
        }
        self.mailed |= self.mails(body);
        self.unsynced |= self.writes_alone(body);
        let before = (self.unsynced, self.reading);
        let index = match self.fits_word(counter) {
            true => self.t.r("cvt.u32.u64", &[&start]),
            false => self.t.copy(start),
        };
        let (again, done) = (self.t.label(), self.t.label());
        let runs = self.t.p("setp.gt.s64", &[&step, &0]);
        self.t.jump_unless(runs, done);
        let runs = self.t.p("setp.lt.s64", &[&start, &end]);
        self.t.jump_unless(runs, done);
        self.t.at(again);
        let here = match index {
            Reg::R(_) => self.t.d("cvt.u64.u32", &[&index]),
            _ => index,
        };
        self.values[counter.index()] = Some(here);
        self.region(body)?;
        // The remainder is at least 1, so the sum cannot wrap if the step is smaller.
        let left = self.t.d("sub.s64", &[&end, &here]);
        let more = self.t.p("setp.lt.u64", &[&step, &left]);
        match index {
            Reg::R(_) => {
                let step = self.t.r("cvt.u32.u64", &[&step]);
                self.t.op("add.u32", index, &[&index, &step]);
            }
            _ => _ = self.t.op("add.s64", index, &[&index, &step]),
        }
        self.t.jump_if(more, again);
        self.t.at(done);
        self.unsynced = before.0;
        self.reading |= before.1;
        Ok(())
    }

    /// A loop of at most one turn, emitted without a jump back.
    fn one_turn(
        &mut self,
        (counter, start, end): (Value, Reg, Reg),
        turns: Turns,
        body: Region,
    ) -> Result<(), PtxError> {
        let (done, before) = (self.t.label(), (self.unsynced, self.reading));
        if turns != Turns::One {
            let runs = self.t.p("setp.lt.s64", &[&start, &end]);
            self.t.jump_unless(runs, done);
        }
        self.values[counter.index()] = Some(start);
        self.region(body)?;
        self.t.at(done);
        if turns != Turns::One {
            self.unsynced |= before.0;
            self.reading |= before.1;
        }
        Ok(())
    }
}
