//! Emits the lane ops of an `each` as planned.

use super::super::code::{Code, Kind, Opcode};
use super::super::lane::arithmetic;
use super::RoleLowering;
use super::each::{Form, Mode, Plan, Rate, Step};
use super::lanes::Lanes;
use crate::ir::access::{Class, place};
use crate::ir::{BinaryOp, CompareOp, GroupOp, Inst, Op, QuickMap, Shape, Type, Uniform, Value};

/// The code of one strip under construction. Address registers are computed by the role's code before the `each`; fills
/// and the strip's own code are kept apart until the end.
pub(super) struct Strip<'l, 'k, 'p> {
    low: &'l mut RoleLowering<'k>,
    plan: &'p Plan<'k>,
    pub lanes: Lanes,
    /// Bytes stored per element through streaming stores.
    pub stream_bytes: u32,
    /// The number of ops that walk over the data.
    pub passes: usize,
    fills: Vec<Code>,
    body: Vec<Code>,
    lane_of: QuickMap<Value, u16>,
    /// Group values spread over their elements.
    expanded: QuickMap<Value, u16>,
    /// Uniform values spread over a strip: (register, element size).
    filled: QuickMap<(u16, u8), u16>,
}

/// Where the `EachBegin` is and where the code of a strip starts.
pub(super) struct Begin {
    pub each: usize,
    pub top: usize,
}

impl<'l, 'k, 'p> Strip<'l, 'k, 'p> {
    pub(super) fn new(low: &'l mut RoleLowering<'k>, plan: &'p Plan<'k>, lanes: Lanes) -> Self {
        Strip {
            low,
            plan,
            lanes,
            stream_bytes: 0,
            passes: 0,
            fills: Vec::new(),
            body: Vec::new(),
            lane_of: QuickMap::default(),
            expanded: QuickMap::default(),
            filled: QuickMap::default(),
        }
    }

    /// Emits the whole `each` except its `EachNext`.
    pub(super) fn emit_all(&mut self, index: usize) -> Begin {
        for (k, step) in self.plan.steps.iter().enumerate() {
            self.step(step);
            self.release_dead(k, step);
        }
        let each = self.low.emit(Opcode::EachBegin, [0; 4], index as i32);
        let fills = std::mem::take(&mut self.fills);
        let body = std::mem::take(&mut self.body);
        self.low.code.code.extend(fills);
        let top = self.low.code.code.len();
        self.low.code.code.extend(body);
        Begin { each, top }
    }

    fn step(&mut self, step: &Step) {
        let kernel = self.low.kernel;
        let inst = step.inst;
        let op = &kernel.insts[inst].op;
        match (&step.form, op) {
            (Form::Widen { op, a, b }, _) => {
                let rate = self.result_rate(inst);
                let (a, narrow) = (self.lane(*a, rate), self.lane(*b, rate));
                self.define(inst, Opcode::LBinaryWiden(*op, kernel.ty(*b)), [a, narrow], 0);
            }
            (Form::Narrow { op, a, b }, Op::Cast { to, .. }) => {
                let (a, b, kind, size) = self.pair(inst, *a, *b, true);
                self.define(inst, Opcode::LBinaryNarrow(*op, *to, kind), [a, b], size);
            }
            (Form::MaxAbs { x }, Op::Group { size, .. }) => {
                let x = self.lane(*x, Rate::Lane);
                self.define(inst, Opcode::LGroupMaxAbs(Type::F32), [x, 0], *size as i32);
            }
            (Form::GatherNarrow { index }, Op::Load { .. }) => {
                let index = self.lane(*index, Rate::Lane);
                let access = self.access(inst);
                self.gather(inst, index, Type::I32, access);
            }
            (Form::Leader { size }, Op::Store { x, .. } | Op::Put { x, .. }) => self.store_groups(inst, *x, *size),
            (Form::Move { load }, _) => {
                let from = self.access(*load);
                let to = self.access(inst);
                debug_assert_eq!(to, from + 1);
                let size = self.low.widths(inst).1 as u8;
                self.push(Opcode::MoveTile(size), [0, 0, 0, 0], from);
            }
            (_, Op::Unary { op, x }) => {
                let x_lane = self.lane(*x, self.result_rate(inst));
                self.define(inst, Opcode::LUnary(*op, kernel.ty(*x)), [x_lane, 0], 0);
            }
            (_, Op::Binary { op, a, b }) => self.binary(inst, *op, *a, *b),
            (_, Op::Compare { op, a, b }) => self.compare(inst, *op, *a, *b),
            (_, Op::Select { cond, a, b }) => {
                let rate = self.result_rate(inst);
                let (cond, a_lane, b_lane) = (self.lane(*cond, rate), self.lane(*a, rate), self.lane(*b, rate));
                let size = kernel.ty(*a).size() as u8;
                self.define(inst, Opcode::LSelect(size), [cond, a_lane], i32::from(b_lane));
            }
            (_, Op::Fma { a, b, c }) => {
                let (rate, ty) = (self.result_rate(inst), kernel.ty(*a));
                let (a, b, c) = (self.lane(*a, rate), self.lane(*b, rate), self.lane(*c, rate));
                self.define(inst, Opcode::LFma(ty), [a, b], i32::from(c));
            }
            (_, Op::Cast { x, to }) => {
                let x_lane = self.lane(*x, self.result_rate(inst));
                self.define(inst, Opcode::LCast(kernel.ty(*x), *to), [x_lane, 0], 0);
            }
            (_, Op::Group { op, x, size }) => {
                let (ty, x) = (kernel.ty(*x), self.lane(*x, Rate::Lane));
                let op = if *op == GroupOp::Scan { Opcode::LScan(ty) } else { Opcode::LGroup(*op, ty) };
                self.define(inst, op, [x, 0], *size as i32);
            }
            (_, Op::Load { mask, .. } | Op::Get { mask, .. }) => self.load(inst, mask),
            (_, Op::Store { x, mask, .. } | Op::Put { x, mask, .. }) => self.store(inst, *x, *mask),
            (_, Op::AtomicAdd { x, mask, .. }) => {
                let access = self.access(inst);
                let (index, owned) = self.index(inst, access);
                let size = kernel.ty(*x).size() as u8;
                let x = self.lane(*x, Rate::Lane);
                let mask = mask.map_or(u16::MAX, |m| self.lane(m, Rate::Lane));
                let dst = self.lanes.strip(size, 1);
                self.lane_of.insert(kernel.insts[inst].result.expect("an atomic defines a value"), dst);
                self.push(Opcode::AtomicLanes(size), [dst, x, index, mask], access);
                self.drop_index(index, owned);
            }
            (_, Op::PacketPut { x, flag, .. }) if self.is_row(inst) => {
                let (access, flag) = (self.access(inst), self.low.reg(*flag));
                let x = self.lane(*x, Rate::Lane);
                self.push(Opcode::PacketPutRow, [x, 0, flag, 0], access);
            }
            (_, Op::PacketPut { x, flag, .. }) => {
                let access = self.access(inst);
                let (index, owned) = self.index(inst, access);
                let (x, flag) = (self.lane(*x, Rate::Lane), self.low.reg(*flag));
                self.push(Opcode::PacketPut, [x, index, flag, 0], access);
                self.drop_index(index, owned);
            }
            (_, Op::PacketGet { flag, .. }) if self.is_row(inst) => {
                let (access, c) = (self.access(inst), self.low.reg(*flag));
                let result = kernel.insts[inst].result.expect("a packet defines a value");
                let op = Opcode::PacketGetRow;
                self.write(result, 8, Rate::Lane, |dst| Code { op, a: dst, b: 0, c, d: 0, e: access });
            }
            (_, Op::PacketGet { flag, .. }) => {
                let access = self.access(inst);
                let (index, owned) = self.index(inst, access);
                let c = self.low.reg(*flag);
                let result = kernel.insts[inst].result.expect("a packet defines a value");
                let op = Opcode::PacketGet;
                self.write(result, 8, Rate::Lane, |dst| Code { op, a: dst, b: index, c, d: 0, e: access });
                self.drop_index(index, owned);
            }
            (form, op) => unreachable!("no lane form of {op:?} as {form:?}"),
        }
    }

    /// Whether the elements of a strip lie next to each other.
    fn is_row(&self, inst: Inst) -> bool {
        self.plan.accesses[&inst].class == Class::Contiguous && !matches!(self.plan.mode, Mode::Tiles { .. })
    }

    fn binary(&mut self, inst: Inst, op: BinaryOp, a: Value, b: Value) {
        let kernel = self.low.kernel;
        let ty = kernel.ty(a);
        // Uniforms and groups go to the right, where the handlers have forms for them.
        let order = |v: Value| match (kernel.shape(v), self.plan.rate(v)) {
            (Shape::Uniform, _) => 2,
            (_, Rate::Group(_)) => 1,
            _ => 0,
        };
        let (a, b) = if op.commutes() && order(a) > order(b) { (b, a) } else { (a, b) };
        let (a, b, kind, size) = self.pair(inst, a, b, arithmetic::has_group_form(op, ty));
        self.define(inst, Opcode::LBinary(op, ty, kind), [a, b], size);
    }

    /// Operands of a two-operand op, how the second is laid out, and its group size.
    fn pair(&mut self, inst: Inst, a: Value, b: Value, group_form: bool) -> (u16, u16, Kind, i32) {
        let rate = self.result_rate(inst);
        let a_lane = self.lane(a, rate);
        if self.low.kernel.shape(b) == Shape::Uniform {
            return (a_lane, self.low.reg(b), Kind::Uniform, 0);
        }
        match (rate, self.plan.rate(b)) {
            (Rate::Lane, Rate::Group(size)) if group_form => {
                (a_lane, self.lane_of[&self.plan.root(b)], Kind::Group, size as i32)
            }
            _ => (a_lane, self.lane(b, rate), Kind::Lane, 0),
        }
    }

    fn compare(&mut self, inst: Inst, op: CompareOp, a: Value, b: Value) {
        let kernel = self.low.kernel;
        let (op, a, b) = if kernel.shape(a) == Shape::Uniform { (mirrored(op), b, a) } else { (op, a, b) };
        let ty = kernel.ty(a);
        let (a, b, kind, size) = self.pair(inst, a, b, false);
        self.define(inst, Opcode::LCompare(op, ty, kind), [a, b], size);
    }

    fn load(&mut self, inst: Inst, mask: &Option<crate::ir::Mask>) {
        let kernel = self.low.kernel;
        let result = kernel.insts[inst].result.expect("a load defines a value");
        let size = kernel.ty(result).size() as u8;
        let access = self.access(inst);
        let rate = self.result_rate(inst);
        if self.plan.bound_loads.contains(&inst) {
            let lane = self.lanes.bound(size);
            self.lane_of.insert(result, lane);
            self.push_free(Opcode::Bind, [lane, 0, 0, self.plan.count(rate)], access);
            return;
        }
        if let Some(mask) = mask {
            let (index, owned) = self.index(inst, access);
            let (cond, other) = (self.lane(mask.cond, Rate::Lane), self.lane(mask.other, Rate::Lane));
            let dst = self.lanes.strip(size, 1);
            self.lane_of.insert(result, dst);
            self.push(Opcode::GatherMasked(size), [dst, index, cond, other], access);
            self.drop_index(index, owned);
        } else if self.plan.accesses[&inst].class == Class::Gather {
            let (index, owned) = self.index(inst, access);
            self.gather(inst, index, Type::I64, access);
            self.drop_index(index, owned);
        } else {
            let packed = matches!(self.plan.mode, Mode::Tiles { .. });
            let contiguous = self.plan.accesses[&inst].class == Class::Contiguous && rate == Rate::Lane;
            let op = if packed || contiguous { Opcode::LoadTile(size) } else { Opcode::LoadStrided(size) };
            let d = self.plan.count(rate);
            self.write(result, size, rate, |dst| Code { op, a: dst, b: 0, c: 0, d, e: access });
        }
        self.normalise(result);
    }

    fn gather(&mut self, inst: Inst, index: u16, ty: Type, access: i32) {
        let result = self.low.kernel.insts[inst].result.expect("a load defines a value");
        let size = self.low.kernel.ty(result).size() as u8;
        let op = Opcode::Gather(size, ty);
        self.write(result, size, Rate::Lane, |dst| Code { op, a: dst, b: index, c: 0, d: 0, e: access });
        if ty == Type::I32 {
            self.normalise(result);
        }
    }

    /// A bool from memory may be any byte; from here on it is 0 or 1.
    fn normalise(&mut self, loaded: Value) {
        if self.low.kernel.ty(loaded) == Type::Bool {
            let lane = self.lane_of[&loaded];
            let count = self.plan.count(self.plan.rate(loaded));
            self.push(Opcode::LCast(Type::U8, Type::Bool), [lane, lane, 0, count], 0);
        }
    }

    fn store(&mut self, inst: Inst, x: Value, mask: Option<Value>) {
        let root = self.plan.root(x);
        if self.plan.bound_stores.get(&root).is_some_and(|&(store, _)| store == inst) {
            return; // written where it was computed
        }
        let size = self.low.widths(inst).1 as u8;
        let access = self.access(inst);
        let x = self.lane(x, Rate::Lane);
        let class = self.plan.accesses[&inst].class;
        if let Some(mask) = mask {
            let (index, owned) = self.index(inst, access);
            let mask = self.lane(mask, Rate::Lane);
            self.push(Opcode::ScatterMasked(size), [x, index, mask, 0], access);
            self.drop_index(index, owned);
        } else if matches!(class, Class::Gather | Class::Grouped { .. }) {
            let (index, owned) = self.index(inst, access);
            self.push(Opcode::Scatter(size), [x, index, 0, 0], access);
            self.drop_index(index, owned);
        } else {
            let op = match (self.plan.mode, class) {
                (Mode::Tiles { .. }, _) => Opcode::StoreTile(size),
                (_, Class::Contiguous) if self.plan.streamed_copies.contains(&inst) => {
                    self.stream_bytes += u32::from(size);
                    Opcode::StreamOut(size)
                }
                (_, Class::Contiguous) => Opcode::CopyOut(size),
                _ => Opcode::StoreStrided(size),
            };
            let is_put = matches!(self.low.kernel.insts[inst].op, Op::Put { .. });
            let b = u16::from(is_put && matches!(op, Opcode::CopyOut(_)));
            self.push(op, [x, b, 0, 0], access);
        }
    }

    /// The first element of each group stores the group's value.
    fn store_groups(&mut self, inst: Inst, x: Value, size: u32) {
        let (unit, width) = self.low.widths(inst);
        let access = self.access(inst);
        let x = self.lane(x, Rate::Group(size));
        let index = self.plan.accesses[&inst].index.as_ref();
        let step = index.and_then(|index| index.group.as_ref()).map(|(_, step)| step);
        let contiguous = step.is_some_and(|step| step.is_const(i64::from(width / unit)));
        let op = if contiguous { Opcode::CopyOut(width as u8) } else { Opcode::StoreStrided(width as u8) };
        self.push(op, [x, 0, 0, self.plan.count(Rate::Group(size))], access);
    }

    /// Returns a lane with the element indices of an access, and whether the lane was allocated here.
    fn index(&mut self, inst: Inst, access: i32) -> (u16, bool) {
        if self.plan.accesses[&inst].class == Class::Gather {
            let at = place(&self.low.kernel.insts[inst].op).expect("an access has a place").index;
            return (self.lane(at, Rate::Lane), false);
        }
        let lane = self.lanes.strip(8, 1);
        self.push(Opcode::AffineIndex, [lane, 0, 0, 0], access);
        (lane, true)
    }

    fn drop_index(&mut self, lane: u16, owned: bool) {
        if owned {
            self.lanes.release(lane);
        }
    }

    /// The access of a memory op; its address registers are computed before the `each`.
    fn access(&mut self, inst: Inst) -> i32 {
        let kernel = self.low.kernel;
        let at = *place(&kernel.insts[inst].op).expect("an access has a place");
        let (unit, width) = self.low.widths(inst);
        let zero = Uniform::Const(0);
        let (base, row, col, group) = match &self.plan.accesses[&inst].index {
            None => (zero.clone(), zero.clone(), zero, None),
            Some(index) => {
                let (row, col) = match (self.plan.mode, &index.stride[..]) {
                    (_, [col]) | (Mode::Flat, [_, col]) => (zero, col.clone()),
                    (_, [row, col]) => (row.clone(), col.clone()),
                    _ => unreachable!("an each has one or two axes"),
                };
                (index.base.clone(), row, col, index.group.clone())
            }
        };
        let base = self.low.uniform(&base);
        let strides = [self.low.uniform(&row), self.low.uniform(&col)];
        let group = group.map(|(size, step)| (size, self.low.uniform(&step)));
        self.low.access(inst, &at, unit, width, base, strides, group)
    }

    /// Emits an op whose result is a lane value: `[dst, operands.., count] e`.
    fn define(&mut self, inst: Inst, op: Opcode, [b, c]: [u16; 2], e: i32) {
        let kernel = self.low.kernel;
        let result = kernel.insts[inst].result.expect("the op defines a value");
        let size = kernel.ty(result).size() as u8;
        let rate = self.result_rate(inst);
        // A reduction counts the elements it reads, every other op those it writes.
        let count = match op {
            Opcode::LGroup(..) | Opcode::LGroupMaxAbs(_) => 0,
            _ => self.plan.count(rate),
        };
        self.write(result, size, rate, |dst| Code { op, a: dst, b, c, d: count, e });
    }

    /// Emits the op that makes a value, into strip memory or straight to its destination.
    fn write(&mut self, result: Value, size: u8, rate: Rate, op: impl FnOnce(u16) -> Code) {
        self.passes += 1;
        let Some(&(store, streams)) = self.plan.bound_stores.get(&result) else {
            let dst = self.strip_for(result, size, rate);
            self.body.push(op(dst));
            return;
        };
        let access = self.access(store);
        let dst = self.lanes.bound(size);
        self.lane_of.insert(result, dst);
        self.stream_bytes += if streams { u32::from(size) } else { 0 };
        let bind = if streams { Opcode::BindStore } else { Opcode::Bind };
        self.push_free(bind, [dst, 0, 0, 0], access);
        self.body.push(op(dst));
    }

    fn strip_for(&mut self, value: Value, size: u8, rate: Rate) -> u16 {
        let group = match rate {
            Rate::Lane => 1,
            Rate::Group(size) => size,
        };
        let lane = self.lanes.strip(size, group);
        self.lane_of.insert(value, lane);
        lane
    }

    /// A lane that holds a value at a rate: the value's own lane, an index counted out, a group's value spread over its
    /// elements, or a uniform spread over the strip.
    fn lane(&mut self, v: Value, rate: Rate) -> u16 {
        let kernel = self.low.kernel;
        let size = kernel.ty(v).size() as u8;
        if kernel.shape(v) == Shape::Uniform {
            let reg = self.low.reg(v);
            if let Some(&lane) = self.filled.get(&(reg, size)) {
                return lane;
            }
            let lane = self.lanes.pinned(size);
            self.filled.insert((reg, size), lane);
            self.fills.push(Code { op: Opcode::Fill(size), a: lane, b: reg, c: 0, d: 0, e: 0 });
            return lane;
        }
        let v = self.plan.root(v);
        if let Some(&(_, axis)) = self.plan.indices.iter().find(|(index, _)| *index == v) {
            if let Some(&lane) = self.lane_of.get(&v) {
                return lane;
            }
            let lane = self.strip_for(v, 8, Rate::Lane);
            self.push(Opcode::Iota, [lane, axis as u16, 0, 0], 0);
            return lane;
        }
        match (self.plan.rate(v), rate) {
            (Rate::Group(group), Rate::Lane) => {
                if let Some(&lane) = self.expanded.get(&v) {
                    return lane;
                }
                let from = self.lane_of[&v];
                let lane = self.lanes.strip(size, 1);
                self.expanded.insert(v, lane);
                self.push(Opcode::Expand(size), [lane, from, 0, 0], group as i32);
                lane
            }
            _ => self.lane_of[&v],
        }
    }

    fn result_rate(&self, inst: Inst) -> Rate {
        self.low.kernel.insts[inst].result.map_or(Rate::Lane, |r| self.plan.rate(r))
    }

    /// Gives back the strip memory of values that nothing reads any more.
    fn release_dead(&mut self, k: usize, step: &Step) {
        let mut dead: Vec<Value> = step.reads.iter().copied().filter(|v| self.plan.last_use[v] == k).collect();
        dead.extend(self.low.kernel.insts[step.inst].result.filter(|r| !self.plan.last_use.contains_key(r)));
        dead.sort();
        dead.dedup();
        for v in dead {
            for lane in [self.lane_of.remove(&v), self.expanded.remove(&v)].into_iter().flatten() {
                self.lanes.release(lane);
            }
        }
    }

    /// Emits an op that walks over the data.
    fn push(&mut self, op: Opcode, operands: [u16; 4], e: i32) {
        self.passes += 1;
        self.push_free(op, operands, e);
    }

    fn push_free(&mut self, op: Opcode, [a, b, c, d]: [u16; 4], e: i32) {
        self.body.push(Code { op, a, b, c, d, e });
    }
}

/// The comparison with its operands exchanged.
fn mirrored(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Eq | CompareOp::Ne => op,
        CompareOp::Lt => CompareOp::Gt,
        CompareOp::Le => CompareOp::Ge,
        CompareOp::Gt => CompareOp::Lt,
        CompareOp::Ge => CompareOp::Le,
    }
}
