//! Small edits of a kernel.

use crate::ir::{
    BinaryOp, CompareOp, Const, Def, Entity, Inst, InstData, Kernel, Op, Region, Special, Type, Value, ValueData,
    typing,
};

/// A kernel being edited.
pub(super) struct Edit<'k> {
    pub kernel: &'k mut Kernel,
}

impl Edit<'_> {
    /// The region that lists an instruction, and its index there.
    pub fn position(&self, inst: Inst) -> Option<(Region, usize)> {
        self.kernel.regions.iter().find_map(|(region, insts)| {
            let place = insts.iter().position(|&other| other == inst)?;
            Some((region, place))
        })
    }

    /// Removes an instruction that defines no value from its region.
    pub fn remove(&mut self, inst: Inst) {
        if let Some((region, place)) = self.position(inst) {
            self.kernel.regions[region].remove(place);
        }
    }

    /// Moves an instruction before or after another one of the same region.
    pub fn shift(&mut self, inst: Inst, to: Inst, after: bool) {
        self.remove(inst);
        if let Some((region, place)) = self.position(to) {
            self.kernel.regions[region].insert(place + usize::from(after), inst);
        }
    }

    /// Inserts an op before an instruction, on its line; returns the value it defines.
    pub fn before(&mut self, inst: Inst, op: Op) -> Value {
        let (region, place) = self.position(inst).expect("the instruction is listed");
        let new = self.add(inst, op, self.is_each(region));
        self.kernel.regions[region].insert(place, new);
        self.kernel.insts[new].result.expect("the op defines a value")
    }

    /// Inserts an op that defines no value before an instruction, on its line.
    pub fn insert(&mut self, inst: Inst, op: Op) {
        let (region, place) = self.position(inst).expect("the instruction is listed");
        let new = self.add(inst, op, false);
        self.kernel.regions[region].insert(place, new);
    }

    /// `x + by` before an instruction.
    pub fn plus(&mut self, inst: Inst, x: Value, by: i64) -> Value {
        let ty = self.kernel.ty(x);
        let by = self.before(inst, Op::Const(Const { ty, bits: by as u64 }));
        self.before(inst, Op::Binary { op: BinaryOp::Add, a: x, b: by })
    }

    /// `max(x, 1) - 1` before an instruction.
    pub fn one_less(&mut self, inst: Inst, x: Value) -> Value {
        let ty = self.kernel.ty(x);
        let one = self.before(inst, Op::Const(Const { ty, bits: 1 }));
        let least = self.before(inst, Op::Binary { op: BinaryOp::Max, a: x, b: one });
        self.before(inst, Op::Binary { op: BinaryOp::Sub, a: least, b: one })
    }

    /// `x - copy` before an instruction.
    pub fn minus_copy(&mut self, inst: Inst, x: Value) -> Value {
        let copy = self.before(inst, Op::Special(Special::Copy));
        self.before(inst, Op::Binary { op: BinaryOp::Sub, a: x, b: copy })
    }

    /// Makes only block 0 run an instruction.
    pub fn only_block_0(&mut self, inst: Inst) {
        let block = self.before(inst, Op::Special(Special::Block));
        let zero = self.before(inst, Op::Const(Const { ty: Type::I64, bits: 0 }));
        let cond = self.before(inst, Op::Compare { op: CompareOp::Eq, a: block, b: zero });
        let (region, place) = self.position(inst).expect("the instruction is listed");
        let then = self.kernel.regions.push(vec![inst]);
        let otherwise = self.kernel.regions.push(Vec::new());
        let new = self.add(inst, Op::If { cond, then, otherwise }, false);
        self.kernel.regions[region][place] = new;
    }

    fn add(&mut self, like: Inst, op: Op, in_each: bool) -> Inst {
        let site = self.kernel.insts[like].site;
        let result = typing::result(self.kernel, &op, in_each);
        let inst = self.kernel.insts.push(InstData { op, result: None, indices: Vec::new(), site });
        if let Some((ty, shape)) = result {
            let value = self.kernel.values.push(ValueData { ty, shape, def: Def::Result(inst) });
            self.kernel.insts[inst].result = Some(value);
        }
        inst
    }

    fn is_each(&self, region: Region) -> bool {
        let is_body = |data: &InstData| matches!(&data.op, Op::Each { body, .. } if body.index() == region.index());
        self.kernel.insts.values().any(is_body)
    }
}
