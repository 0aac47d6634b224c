//! Dead code elimination: marks backwards from the effects, then copies the marked code into fresh, dense arenas.

use super::super::entity::{Entity, Inst, Region, Table, Value};
use super::super::kernel::{Def, InstData, Kernel, ValueData};
use super::super::op::Op;

/// The kernel without code that no effect needs: unused values and loads, variables that are never read, branches and
/// counted loops without effects. A `while` may not end, so it stays. An `each` without effects is still a barrier and
/// becomes one.
pub(super) fn compact(mut kernel: Kernel) -> Kernel {
    let live = Mark::run(&kernel);
    // Everything but the code is moved unchanged.
    let new = Kernel {
        name: std::mem::take(&mut kernel.name),
        blocks: kernel.blocks,
        params: std::mem::take(&mut kernel.params),
        roles: std::mem::take(&mut kernel.roles),
        vars: std::mem::take(&mut kernel.vars),
        scratches: std::mem::take(&mut kernel.scratches),
        values: Table::with_capacity(kernel.values.len()),
        insts: Table::with_capacity(kernel.insts.len()),
        regions: Table::with_capacity(kernel.regions.len()),
        sites: std::mem::take(&mut kernel.sites),
        purposes: std::mem::take(&mut kernel.purposes),
        declared: std::mem::take(&mut kernel.declared),
    };
    let mut copy = Copy { live, values: vec![None; kernel.values.len()], old: &kernel, kernel: new };
    for id in copy.kernel.roles.keys() {
        let body = copy.region(copy.kernel.roles[id].body);
        copy.kernel.roles[id].body = body;
    }
    copy.kernel
}

/// How much of an instruction is needed.
#[derive(Clone, Copy, PartialEq)]
enum Need {
    Nothing,
    /// An `each` without effects: only its barrier.
    Barrier,
    All,
}

struct Mark<'k> {
    kernel: &'k Kernel,
    need: Vec<Need>,
    /// The control op around each instruction.
    around: Vec<Option<Inst>>,
    /// Assignments of each variable, until a read of it is found.
    writes: Vec<Vec<Inst>>,
    work: Vec<Inst>,
}

impl<'k> Mark<'k> {
    fn run(kernel: &'k Kernel) -> Vec<Need> {
        let mut mark = Mark {
            kernel,
            need: vec![Need::Nothing; kernel.insts.len()],
            around: vec![None; kernel.insts.len()],
            writes: vec![Vec::new(); kernel.vars.len()],
            work: Vec::new(),
        };
        for role in kernel.roles.values() {
            mark.enter(role.body, None);
        }
        while let Some(inst) = mark.work.pop() {
            mark.spread(inst);
        }
        mark.need
    }

    /// Finds the effects of a region.
    fn enter(&mut self, region: Region, around: Option<Inst>) {
        let kernel = self.kernel;
        for &inst in &kernel.regions[region] {
            self.around[inst.index()] = around;
            let op = &kernel.insts[inst].op;
            match op {
                Op::WriteVar { var, .. } => self.writes[var.index()].push(inst),
                Op::Load { .. } | Op::Get { .. } | Op::ReadVar(_) | Op::If { .. } | Op::For { .. } => {}
                Op::Each { .. } => {
                    self.need[inst.index()] = Need::Barrier;
                    self.work.extend(around.filter(|a| self.need[a.index()] != Need::All));
                }
                op if op.is_pure() => {}
                _ => self.work.push(inst),
            }
            for inner in op.regions() {
                self.enter(inner, Some(inst));
            }
        }
    }

    /// A needed instruction needs its operands and the control ops around it.
    fn spread(&mut self, inst: Inst) {
        if self.need[inst.index()] == Need::All {
            return;
        }
        self.need[inst.index()] = Need::All;
        self.work.extend(self.around[inst.index()]);
        let op = &self.kernel.insts[inst].op;
        op.for_each_operand(|v| match self.kernel.values[v].def {
            Def::Result(inst) | Def::Index { inst, .. } => self.work.push(inst),
        });
        if let Op::ReadVar(var) = op {
            self.work.append(&mut self.writes[var.index()]);
        }
    }
}

struct Copy<'k> {
    old: &'k Kernel,
    live: Vec<Need>,
    values: Vec<Option<Value>>,
    kernel: Kernel,
}

impl Copy<'_> {
    fn region(&mut self, region: Region) -> Region {
        let old = self.old;
        let new = self.kernel.regions.push(Vec::new());
        for &inst in &old.regions[region] {
            let copied = match self.live[inst.index()] {
                Need::Nothing => continue,
                Need::Barrier => self.barrier(inst),
                Need::All => self.inst(inst),
            };
            self.kernel.regions[new].push(copied);
        }
        new
    }

    fn barrier(&mut self, inst: Inst) -> Inst {
        let site = self.old.insts[inst].site;
        self.kernel.insts.push(InstData { op: Op::Barrier, result: None, indices: Vec::new(), site })
    }

    fn inst(&mut self, inst: Inst) -> Inst {
        let data = &self.old.insts[inst];
        let new = self.kernel.insts.push(InstData {
            op: data.op.clone(),
            result: None,
            indices: Vec::with_capacity(data.indices.len()),
            site: data.site,
        });
        if let Some(v) = data.result {
            self.kernel.insts[new].result = Some(self.define(v, Def::Result(new)));
        }
        for (axis, &v) in data.indices.iter().enumerate() {
            let index = self.define(v, Def::Index { inst: new, axis });
            self.kernel.insts[new].indices.push(index);
        }
        // Inner regions first: the condition of a `while` may be computed in its head.
        let mut op = data.op.clone();
        match &mut op {
            Op::If { then, otherwise, .. } => (*then, *otherwise) = (self.region(*then), self.region(*otherwise)),
            Op::While { head, body, .. } => (*head, *body) = (self.region(*head), self.region(*body)),
            Op::For { body, .. } | Op::Each { body, .. } => *body = self.region(*body),
            _ => {}
        }
        op.map_operands(&mut |v| self.values[v.index()].expect("operands of needed ops are needed"));
        self.kernel.insts[new].op = op;
        new
    }

    fn define(&mut self, v: Value, def: Def) -> Value {
        let ValueData { ty, shape, .. } = self.old.values[v];
        let new = self.kernel.values.push(ValueData { ty, shape, def });
        self.values[v.index()] = Some(new);
        new
    }
}
