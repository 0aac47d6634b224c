//! The walk that rebuilds a kernel, op by op.

use super::super::entity::{Entity, Inst, Region, Site, Table, Value};
use super::super::facts::{Fact, Facts};
use super::super::kernel::{Access, Def, InstData, Kernel, Param, ValueData};
use super::super::op::{Base, Const, Op};
use super::super::quick_map::QuickMap;
use super::super::types::{Shape, Type};
use super::super::typing;
use super::share::Key;
use super::{divide, fold};

/// Rebuilds a kernel; returns true if anything but the placement of constants changed.
pub(super) fn rewrite(old: &Kernel) -> (Kernel, bool) {
    let mut walk = Rewriter {
        old,
        kernel: Kernel {
            name: old.name.clone(),
            blocks: old.blocks,
            params: old.params.clone(),
            roles: old.roles.clone(),
            vars: old.vars.clone(),
            scratches: old.scratches.clone(),
            values: Table::with_capacity(old.values.len()),
            insts: Table::with_capacity(old.insts.len()),
            regions: Table::with_capacity(old.regions.len()),
            sites: old.sites.clone(),
            purposes: old.purposes.clone(),
            declared: old.declared.clone(),
        },
        new: vec![None; old.values.len()],
        depth: Vec::with_capacity(old.values.len()),
        levels: Vec::new(),
        shared: QuickMap::with_capacity_and_hasher(old.insts.len(), Default::default()),
        loads: QuickMap::default(),
        facts: Facts::default(),
        site: Site::new(0),
        changed: false,
    };
    for (id, role) in old.roles.iter() {
        walk.site = role.site;
        let body = walk.open(false, false);
        walk.region(role.body);
        walk.close();
        walk.kernel.roles[id].body = body;
    }
    (walk.kernel, walk.changed)
}

/// The kernel under construction and the regions open around the position of the walk.
pub(super) struct Rewriter<'k> {
    old: &'k Kernel,
    pub kernel: Kernel,
    /// New values by old value.
    new: Vec<Option<Value>>,
    /// For every new value, the level it is defined at.
    depth: Vec<u32>,
    pub levels: Vec<Level>,
    /// Pure ops (and loads of buffers that nothing writes) visible here.
    pub shared: QuickMap<Key, Value>,
    /// Loads of the current `each` since its last write.
    loads: QuickMap<Key, Value>,
    facts: Facts,
    site: Site,
    pub changed: bool,
}

/// An open region.
pub(super) struct Level {
    pub region: Region,
    /// True if it runs any number of times for each run of the region around it.
    pub repeats: bool,
    /// Whether it is the body of an `each`.
    pub each: bool,
    /// The keys it added to the table of shared ops.
    pub scope: Vec<Key>,
}

impl<'k> Rewriter<'k> {
    /// Appends an op, simplified, and returns its value. Operands are new values. Everything that makes ops calls this.
    pub fn value(&mut self, op: Op) -> Value {
        self.pure(op)
    }

    /// A constant, as a number wrapped to the type.
    pub fn int(&mut self, ty: Type, n: i128) -> Value {
        let bits = n as u64;
        self.constant(ty, if ty.bits() == 64 { bits } else { bits & ((1 << ty.bits()) - 1) })
    }

    pub fn constant(&mut self, ty: Type, bits: u64) -> Value {
        self.pure(Op::Const(Const { ty, bits }))
    }

    /// The fact of an integer value.
    pub fn fact(&mut self, v: Value) -> Fact {
        self.facts.of(&self.kernel, v)
    }

    pub fn depth(&self, v: Value) -> usize {
        self.depth[v.index()] as usize
    }

    fn here(&self) -> usize {
        self.levels.len() - 1
    }

    fn in_each(&self) -> bool {
        self.levels[self.here()].each
    }

    fn pure(&mut self, mut op: Op) -> Value {
        fold::constants_right(&self.kernel, &mut op);
        if let Some(v) = fold::fold(self, &op).or_else(|| divide::expand(self, &op)) {
            self.changed = true;
            return v;
        }
        let key = Key::of(&op).expect("the op is pure");
        if let Some(&v) = self.shared.get(&key) {
            return v;
        }
        let level = self.level(&op);
        let v = self.add(op, level).expect("a pure op defines a value");
        self.shared.insert(key, v);
        self.levels[level].scope.push(key);
        v
    }

    /// Appends an instruction at the end of an open region.
    fn add(&mut self, op: Op, level: usize) -> Option<Value> {
        let result = typing::result(&self.kernel, &op, self.levels[level].each);
        let inst = self.inst(op);
        if let Some((ty, shape)) = result {
            let v = self.define(ty, shape, Def::Result(inst), level);
            self.kernel.insts[inst].result = Some(v);
        }
        self.kernel.regions[self.levels[level].region].push(inst);
        self.kernel.insts[inst].result
    }

    fn inst(&mut self, op: Op) -> Inst {
        self.kernel.insts.push(InstData { op, result: None, indices: Vec::new(), site: self.site })
    }

    fn define(&mut self, ty: Type, shape: Shape, def: Def, level: usize) -> Value {
        self.depth.push(level as u32);
        self.kernel.values.push(ValueData { ty, shape, def })
    }

    fn open(&mut self, repeats: bool, each: bool) -> Region {
        let region = self.kernel.regions.push(Vec::new());
        self.levels.push(Level { region, repeats, each, scope: Vec::new() });
        region
    }

    fn close(&mut self) {
        let level = self.levels.pop().expect("a region is open");
        for key in level.scope {
            self.shared.remove(&key);
        }
        self.loads.clear();
    }

    fn region(&mut self, region: Region) {
        let old = self.old;
        for &inst in &old.regions[region] {
            self.visit(inst);
        }
    }

    fn visit(&mut self, inst: Inst) {
        let data = &self.old.insts[inst];
        self.site = data.site;
        let mut op = data.op.clone();
        if !matches!(op, Op::While { .. }) {
            op.map_operands(&mut |v| self.new[v.index()].expect("operands are defined before their uses"));
        }
        let result = match op {
            Op::If { .. } | Op::For { .. } | Op::While { .. } | Op::Each { .. } => {
                self.control(inst, op);
                None
            }
            op if op.is_pure() => Some(self.pure(op)),
            op => self.effect(op),
        };
        if let (Some(old), Some(new)) = (data.result, result) {
            self.new[old.index()] = Some(new);
        }
    }

    /// Ops that touch memory, slots or variables keep their order.
    fn effect(&mut self, mut op: Op) -> Option<Value> {
        let here = self.here();
        match &mut op {
            // No variable changes during an `each`.
            Op::ReadVar(_) if self.in_each() => return self.add(op, here - 1),
            Op::Load { mask, .. } | Op::Get { mask, .. } => {
                if let Some(m) = mask {
                    match self.kernel.as_const(m.cond).map(|c| c.bits != 0) {
                        Some(true) => *mask = None,
                        Some(false) => return Some(m.other),
                        None => {}
                    }
                }
                return Some(self.load(op));
            }
            Op::Store { mask, .. } | Op::Put { mask, .. } | Op::AtomicAdd { mask, .. } => {
                let known = mask.and_then(|m| self.kernel.as_const(m)).map(|c| c.bits != 0);
                match (known, &op) {
                    (Some(false), Op::AtomicAdd { x, .. }) => return Some(self.constant(self.kernel.ty(*x), 0)),
                    (Some(false), _) => return None,
                    (Some(true), _) => {
                        if let Op::Store { mask, .. } | Op::Put { mask, .. } | Op::AtomicAdd { mask, .. } = &mut op {
                            *mask = None;
                        }
                    }
                    (None, _) => {}
                }
                self.loads.clear();
            }
            Op::PacketPut { .. } | Op::PacketGet { .. } => self.loads.clear(),
            Op::Require { cond, .. } if self.kernel.as_const(*cond).is_some_and(|c| c.bits != 0) => {
                self.changed = true;
                return None;
            }
            _ => {}
        }
        self.add(op, here)
    }

    /// An equal load that dominates this one has the same result in two cases. Nothing writes the buffer during the
    /// launch, or, in an `each`, the element has not written since (other elements' writes to the place would race).
    fn load(&mut self, op: Op) -> Value {
        let here = self.here();
        let Some(key) = Key::of_load(&op) else { return self.add(op, here).expect("a load defines a value") };
        if let Some(&v) = self.shared.get(&key).or_else(|| self.loads.get(&key)) {
            self.changed = true;
            return v;
        }
        let constant = match &op {
            Op::Load { at, .. } | Op::Get { at, .. } => self.never_written(at.base),
            _ => false,
        };
        let v = self.add(op, here).expect("a load defines a value");
        if constant {
            self.shared.insert(key, v);
            self.levels[here].scope.push(key);
        } else if self.in_each() {
            self.loads.insert(key, v);
        }
        v
    }

    fn never_written(&self, base: Base) -> bool {
        match base {
            Base::Param(p) => matches!(self.kernel.params.get(p), Some(Param::Buffer { access: Access::In, .. })),
            Base::Scratch(_) => false,
        }
    }

    fn control(&mut self, inst: Inst, op: Op) {
        let number = |walk: &Self, v: Value| walk.kernel.as_const(v).map(|c| c.bits as i64);
        match op {
            Op::If { cond, then, otherwise } => match number(self, cond) {
                Some(taken) => {
                    self.changed = true;
                    self.region(if taken != 0 { then } else { otherwise });
                }
                None => {
                    let site = self.site;
                    let then = self.nested(then, false);
                    let otherwise = self.nested(otherwise, false);
                    self.site = site;
                    self.add(Op::If { cond, then, otherwise }, self.here());
                }
            },
            Op::For { start, end, step, body } => {
                if let (Some(first), Some(end), Some(step)) =
                    (number(self, start), number(self, end), number(self, step))
                {
                    if step <= 0 || first >= end {
                        self.changed = true;
                        return;
                    }
                    // One turn: the body itself.
                    if first.checked_add(step).is_none_or(|second| second >= end) {
                        self.changed = true;
                        self.new[self.old.insts[inst].indices[0].index()] = Some(start);
                        return self.region(body);
                    }
                }
                self.counted(inst, Op::For { start, end, step, body }, body, false);
            }
            Op::Each { extent, body } => {
                if extent.iter().any(|&e| number(self, e).is_some_and(|e| e <= 0)) {
                    // No element runs, but an `each` is also a barrier.
                    self.changed = true;
                    self.add(Op::Barrier, self.here());
                    return;
                }
                self.counted(inst, Op::Each { extent, body }, body, true);
            }
            Op::While { head, cond, body } => {
                let site = self.site;
                let head = self.nested(head, true);
                let body = self.nested(body, true);
                self.site = site;
                let cond = self.new[cond.index()].expect("the condition is defined before or in the head");
                self.add(Op::While { head, cond, body }, self.here());
            }
            _ => unreachable!("not control flow"),
        }
    }

    fn nested(&mut self, region: Region, repeats: bool) -> Region {
        let new = self.open(repeats, false);
        self.region(region);
        self.close();
        new
    }

    /// A `For` or `Each`: created before its body, for its index values, and placed after it.
    fn counted(&mut self, old: Inst, op: Op, old_body: Region, each: bool) {
        let around = self.here();
        let inst = self.inst(op);
        let new_body = self.open(true, each);
        match &mut self.kernel.insts[inst].op {
            Op::For { body, .. } | Op::Each { body, .. } => *body = new_body,
            _ => unreachable!("only For and Each are counted"),
        }
        let shape = if each { Shape::Lane } else { Shape::Uniform };
        let indices = &self.old.insts[old].indices;
        for (axis, index) in indices.iter().enumerate() {
            let v = self.define(Type::I64, shape, Def::Index { inst, axis }, around + 1);
            self.new[index.index()] = Some(v);
            self.kernel.insts[inst].indices.push(v);
        }
        self.region(old_body);
        self.close();
        self.kernel.regions[self.levels[around].region].push(inst);
    }
}
