//! Plans an `each`: which ops are needed, which are fused into others, at what rate each value is computed, which
//! accesses become pointers into tensors, and how the elements are cut into strips.

use super::super::code::{Each, MAX_COUNTS, Opcode};
use super::super::error::PrepareError;
use super::super::lane::{arithmetic, convert};
use super::RoleLowering;
use super::lanes::Lanes;
use super::strip::Strip;
use crate::ir::access::{Analysis, Class, MemoryAccess, place};
use crate::ir::{Affine, BinaryOp, GroupOp, Inst, Op, Place, QuickMap, Region, Shape, Type, UnaryOp, Uniform, Value};

/// Elements in a strip if nothing else limits it. Longer strips do not make dispatch any cheaper.
const STRIP: u64 = 4096;
/// Bytes a strip may touch, tensors included: three quarters of the smallest L1 in use (32 KiB).
const STRIP_BYTES: u64 = 24 << 10;
/// The longest strip that group sizes may force.
const MAX_STRIP: u64 = 1 << 20;

/// How the elements of an `each` are walked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// Strips along the innermost axis, one row at a time.
    Rows,
    /// Rows are adjacent in memory and are walked as one long row.
    Flat,
    /// Rectangles, packed row by row in strip memory, if an access is contiguous along the other axis or rows are
    /// short.
    Tiles { rows: u32, cols: u64 },
}

const TILES: Mode = Mode::Tiles { rows: 32, cols: 64 };

/// How often a lane value is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rate {
    /// Once per element.
    Lane,
    /// Once per group of neighbours of this size.
    Group(u32),
}

/// How an op of the body is emitted.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Form {
    /// Unchanged.
    Plain,
    /// A conversion fused into the op after it: `f32 op f32(narrow)`; `b` is the narrow value.
    Widen { op: BinaryOp, a: Value, b: Value },
    /// A conversion fused with the op before it: `narrow(a op b)`.
    Narrow { op: BinaryOp, a: Value, b: Value },
    /// Largest magnitude of a group.
    MaxAbs { x: Value },
    /// A gather by 32-bit indices, without widening them first.
    GatherNarrow { index: Value },
    /// A store by the first element of each group.
    Leader { size: u32 },
    /// A load and the store that is its only use: one move.
    Move { load: Inst },
}

/// An op of the body that will be emitted.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub inst: Inst,
    pub form: Form,
    /// The lane values it reads as data, bit casts looked through.
    pub reads: Vec<Value>,
}

/// The plan.
pub(super) struct Plan<'k> {
    pub mode: Mode,
    pub steps: Vec<Step>,
    pub accesses: QuickMap<Inst, MemoryAccess>,
    pub rates: QuickMap<Value, Rate>,
    /// The value behind a bit cast.
    pub roots: QuickMap<Value, Value>,
    /// Index values used as data.
    pub indices: Vec<(Value, usize)>,
    /// Position of the last step that reads a value.
    pub last_use: QuickMap<Value, usize>,
    /// Loads that become pointers.
    pub bound_loads: Vec<Inst>,
    /// Values that are written straight to memory: value → (store, whether it may stream).
    pub bound_stores: QuickMap<Value, (Inst, bool)>,
    /// Stores that copy a value around the cache.
    pub streamed_copies: Vec<Inst>,
    /// Group sizes; the first is 1.
    pub groups: Vec<u32>,
    analysis: Analysis<'k>,
}

impl<'k> RoleLowering<'k> {
    /// Lowers an `each`.
    pub(super) fn each(&mut self, inst: Inst, extent: &[Value], body: Region) -> Result<(), PrepareError> {
        let kernel = self.kernel;
        // Uniform ops do not depend on the element, so they run once, before the `each`.
        for &i in &kernel.regions[body] {
            let uniform = kernel.insts[i].result.is_some_and(|r| kernel.shape(r) == Shape::Uniform);
            if uniform {
                self.inst(i)?;
            }
        }
        let plan = self.plan(inst, extent, body);
        if plan.steps.is_empty() {
            return Ok(());
        }
        let at = kernel.line(inst).clone();
        let too_many = |sizes: &[u32]| PrepareError::Groups { sizes: sizes[1..].to_vec(), at: at.clone() };
        let common = plan.groups.iter().try_fold(1u64, |a, &b| lcm(a, u64::from(b)).filter(|&n| n <= MAX_STRIP));
        let Some(common) = common.filter(|_| plan.groups.len() <= MAX_COUNTS) else {
            return Err(too_many(&plan.groups));
        };

        let (rows, cols) = match (plan.mode, extent) {
            (_, [cols]) => (None, self.reg(*cols)),
            (_, [rows, cols]) => (Some(self.reg(*rows)), self.reg(*cols)),
            _ => unreachable!("the IR verifier checked the extents"),
        };
        let index = self.code.eaches.len();
        let mut strip = Strip::new(self, &plan, Lanes::new(self.code.lanes.len()));
        let begin = strip.emit_all(index);
        let (lanes, stream_bytes, passes) = (strip.lanes, strip.stream_bytes, strip.passes);

        // A single pass over the data needs no strips. With several passes, the data should stay in L1 between them.
        let whole = !lanes.any_strip() && passes <= 1;
        let fitting = (STRIP_BYTES * 128 / lanes.weight().max(1)).clamp(256, STRIP);
        let length = (fitting / common * common).max(common);
        let (tile_rows, tile_cols) = match plan.mode {
            Mode::Tiles { .. } if whole => (u32::MAX, u64::MAX),
            Mode::Tiles { rows, cols } => (rows, cols),
            _ if whole => (1, u64::MAX),
            _ => (1, length),
        };
        let capacity = if whole { 0 } else { u64::from(tile_rows) * tile_cols };
        let (infos, bytes) = lanes.settle(capacity);
        if bytes > u64::from(u32::MAX) {
            return Err(too_many(&plan.groups));
        }
        self.code.lanes.extend(infos);
        self.code.strip_bytes = self.code.strip_bytes.max(bytes as u32);
        let next = self.emit(Opcode::EachNext, [0; 4], index as i32);
        let end = (next + 1) as i32 - begin.each as i32;
        let top = begin.top as i32 - next as i32;
        let (flat, groups) = (plan.mode == Mode::Flat, plan.groups.clone());
        let known = match extent {
            [cols] if groups.len() == 1 => kernel.as_const(*cols).map_or(0, |c| c.bits),
            _ => 0,
        };
        let one_strip = u32::try_from(known).ok().filter(|_| known <= tile_cols).unwrap_or(0);
        self.code.eaches.push(Each {
            rows,
            flat,
            cols,
            tile_rows,
            tile_cols,
            stream_bytes,
            store_bytes: self.store_bytes(&plan),
            may_stream: self.stores_once(&plan),
            groups,
            one_strip,
            end,
            top,
        });
        Ok(())
    }

    fn plan(&self, each: Inst, extent: &[Value], body: Region) -> Plan<'k> {
        let kernel = self.kernel;
        let mut analysis = Analysis::new(kernel, each);
        let accesses: QuickMap<Inst, MemoryAccess> =
            analysis.accesses().into_iter().map(|access| (access.inst, access)).collect();
        let mut plan = Plan {
            mode: Mode::Rows,
            steps: Vec::new(),
            accesses,
            rates: QuickMap::default(),
            roots: QuickMap::default(),
            indices: Vec::new(),
            last_use: QuickMap::default(),
            bound_loads: Vec::new(),
            bound_stores: QuickMap::default(),
            streamed_copies: Vec::new(),
            groups: vec![1],
            analysis,
        };
        for &inst in &kernel.regions[body] {
            if let (Op::Bitcast { x, .. }, Some(result)) = (&kernel.insts[inst].op, kernel.insts[inst].result) {
                let root = plan.root(*x);
                plan.roots.insert(result, root);
            }
        }
        self.choose_steps(&mut plan, each, body);
        plan.mode = self.choose_mode(&plan, extent);
        self.choose_rates(&mut plan);
        self.choose_moves(&mut plan, extent);
        plan.find_last_uses();
        if !matches!(plan.mode, Mode::Tiles { .. }) {
            let known = if let [cols] = extent { kernel.as_const(*cols).map_or(0, |c| c.bits) } else { 0 };
            self.bind(&mut plan, known);
        }
        plan
    }

    /// Chooses which ops are needed and which are fused, working backwards from the effects.
    fn choose_steps(&self, plan: &mut Plan<'k>, each: Inst, body: Region) {
        let kernel = self.kernel;
        let insts = &kernel.regions[body];
        let mut uses: QuickMap<Value, u32> = QuickMap::default();
        for &inst in insts {
            kernel.insts[inst].op.for_each_operand(|v| *uses.entry(plan.root(v)).or_default() += 1);
        }
        let mut needed: QuickMap<Value, ()> = QuickMap::default();
        let mut steps = Vec::new();
        for &inst in insts.iter().rev() {
            let data = &kernel.insts[inst];
            let effect = matches!(
                data.op,
                Op::Store { .. } | Op::Put { .. } | Op::AtomicAdd { .. } | Op::PacketPut { .. } | Op::PacketGet { .. }
            );
            let wanted = data.result.is_some_and(|r| needed.contains_key(&r));
            if !effect && !wanted || matches!(data.op, Op::Bitcast { .. }) {
                continue;
            }
            let form = self.form(plan, inst, &uses);
            let reads = self.reads(plan, inst, &form);
            for &v in &reads {
                needed.insert(v, ());
            }
            steps.push(Step { inst, form, reads });
        }
        steps.reverse();
        let axes = &kernel.insts[each].indices;
        // A one-dimensional each is one row: its index is the column.
        plan.indices = axes
            .iter()
            .enumerate()
            .filter(|(_, v)| needed.contains_key(v))
            .map(|(axis, &v)| (v, axis + 2 - axes.len()))
            .collect();
        plan.steps = steps;
    }

    fn form(&self, plan: &Plan<'k>, inst: Inst, uses: &QuickMap<Value, u32>) -> Form {
        let kernel = self.kernel;
        let lane = |v: Value| kernel.shape(v) == Shape::Lane;
        let once = |v: Value| uses.get(&plan.root(v)) == Some(&1) && plan.root(v) == v;
        let narrow_source = |v: Value, op: BinaryOp| match kernel.def(v) {
            Some(Op::Cast { x, to: Type::F32 })
                if lane(*x) && once(v) && convert::has_widen_form(op, kernel.ty(*x)) =>
            {
                Some(*x)
            }
            _ => None,
        };
        match &kernel.insts[inst].op {
            Op::Binary { op, a, b } if kernel.ty(*a) == Type::F32 && lane(*a) && lane(*b) && a != b => {
                if let Some(narrow) = narrow_source(*b, *op) {
                    return Form::Widen { op: *op, a: *a, b: narrow };
                }
                if let Some(narrow) = narrow_source(*a, *op).filter(|_| op.commutes()) {
                    return Form::Widen { op: *op, a: *b, b: narrow };
                }
                Form::Plain
            }
            Op::Cast { x, to } if kernel.ty(*x) == Type::F32 && once(*x) => match kernel.def(*x) {
                Some(Op::Binary { op, a, b }) if convert::has_narrow_form(*op, *to) && lane(*a) => {
                    Form::Narrow { op: *op, a: *a, b: *b }
                }
                _ => Form::Plain,
            },
            Op::Group { op: GroupOp::Max, x, .. } if kernel.ty(*x) == Type::F32 && once(*x) => match kernel.def(*x) {
                Some(Op::Unary { op: UnaryOp::Abs, x }) if lane(*x) => Form::MaxAbs { x: *x },
                _ => Form::Plain,
            },
            Op::Load { at, mask: None } if plan.accesses[&inst].class == Class::Gather => match kernel.def(at.index) {
                Some(Op::Cast { x, to: Type::I64 }) if kernel.ty(*x) == Type::I32 && lane(*x) => {
                    Form::GatherNarrow { index: *x }
                }
                _ => Form::Plain,
            },
            Op::Store { mask: Some(mask), x, .. } | Op::Put { mask: Some(mask), x, .. } => {
                match (plan.analysis.group_leader(*mask), plan.accesses[&inst].class) {
                    (Some(g), Class::Grouped { size }) if g == size && self.grouped(plan, *x, g) => {
                        Form::Leader { size }
                    }
                    _ => Form::Plain,
                }
            }
            _ => Form::Plain,
        }
    }

    /// Whether a value can be computed once per group of `size`.
    fn grouped(&self, plan: &Plan<'k>, v: Value, size: u32) -> bool {
        let kernel = self.kernel;
        if kernel.shape(v) == Shape::Uniform {
            return true;
        }
        let crate::ir::Def::Result(inst) = kernel.values[v].def else { return false };
        match &kernel.insts[inst].op {
            Op::Group { op, size: of, .. } => *op != GroupOp::Scan && *of == size,
            Op::Load { mask: None, .. } | Op::Get { mask: None, .. } => {
                plan.accesses[&inst].class == Class::Grouped { size }
            }
            op if op.is_pure() => op.operands().iter().all(|&x| self.grouped(plan, x, size)),
            _ => false,
        }
    }

    /// The lane values a step reads as data.
    fn reads(&self, plan: &Plan<'k>, inst: Inst, form: &Form) -> Vec<Value> {
        let op = &self.kernel.insts[inst].op;
        let mut reads = match form {
            Form::Widen { a, b, .. } | Form::Narrow { a, b, .. } => vec![*a, *b],
            Form::MaxAbs { x } => vec![*x],
            Form::GatherNarrow { index } => vec![*index],
            Form::Leader { .. } => match op {
                Op::Store { x, .. } | Op::Put { x, .. } => vec![*x],
                _ => unreachable!("only stores have leaders"),
            },
            Form::Plain | Form::Move { .. } => match place(op) {
                // An affine index is computed from the strip's position.
                Some(at) if plan.accesses[&inst].class != Class::Gather => {
                    let mut rest = op.operands();
                    let skip = at.bank.is_some() as usize + 1;
                    rest.drain(..skip);
                    rest
                }
                _ => op.operands(),
            },
        };
        reads.retain(|&v| self.kernel.shape(v) == Shape::Lane);
        reads.iter_mut().for_each(|v| *v = plan.root(*v));
        reads
    }

    fn choose_mode(&self, plan: &Plan<'k>, extent: &[Value]) -> Mode {
        let kernel = self.kernel;
        let [_, cols] = extent else { return Mode::Rows };
        let number = kernel.as_const(*cols).map(|c| c.bits as i64);
        let cols = number.map_or(Uniform::Value(*cols), Uniform::Const);
        let accesses = || plan.steps.iter().filter_map(|step| plan.accesses.get(&step.inst).map(|a| (step, a)));
        let grouped = plan.steps.iter().any(|s| matches!(kernel.insts[s.inst].op, Op::Group { .. }))
            || accesses().any(|(_, a)| matches!(a.class, Class::Grouped { .. }));
        let follows = |index: &Affine| index.stride[1].mul(&cols) == index.stride[0];
        let flat = !grouped && plan.indices.is_empty() && accesses().all(|(_, a)| a.index.as_ref().is_none_or(follows));
        if flat {
            return Mode::Flat;
        }
        if grouped {
            return Mode::Rows;
        }
        let transposed = accesses().any(|(step, a)| {
            let unit = i64::from(self.widths(step.inst).1 / self.widths(step.inst).0);
            a.class == Class::Strided && a.index.as_ref().is_some_and(|index| index.stride[0].is_const(unit))
        });
        match number {
            Some(cols) if (1..64).contains(&cols) => Mode::Tiles { rows: (1024 / cols) as u32, cols: cols as u64 },
            _ if transposed => TILES,
            _ => Mode::Rows,
        }
    }

    /// Chooses the rate at which each value is computed. An `each` with groups always goes by rows (`choose_mode`).
    fn choose_rates(&self, plan: &mut Plan<'k>) {
        let kernel = self.kernel;
        for k in 0..plan.steps.len() {
            let Step { inst, form, reads } = plan.steps[k].clone();
            let data = &kernel.insts[inst];
            let class = plan.accesses.get(&inst).map(|a| a.class);
            let rate = match (&data.op, class) {
                (Op::Group { op: GroupOp::Scan, size, .. }, _) => {
                    plan.group(*size);
                    Rate::Lane
                }
                (Op::Group { size, .. }, _) => Rate::Group(*size),
                (Op::Load { mask: None, .. } | Op::Get { mask: None, .. }, Some(Class::Grouped { size })) => {
                    Rate::Group(size)
                }
                (op, None) if op.is_pure() && !reads.is_empty() => {
                    let first = plan.rate(reads[0]);
                    if reads.iter().all(|&v| plan.rate(v) == first) { first } else { Rate::Lane }
                }
                _ => Rate::Lane,
            };
            if let Rate::Group(size) = rate {
                plan.group(size);
            }
            if let Form::Leader { size } = form {
                plan.group(size);
            }
            if let Some(result) = data.result {
                plan.rates.insert(result, rate);
            }
        }
    }

    /// Turns a load whose only use is a plain store into one tile move, and drops the load. An `each` by rows that only
    /// moves elements goes by tiles too, because its rows may be short.
    fn choose_moves(&self, plan: &mut Plan<'k>, extent: &[Value]) {
        let tiled = matches!(plan.mode, Mode::Tiles { .. });
        if !tiled && (plan.mode == Mode::Flat || extent.len() == 1) {
            return;
        }
        let kernel = self.kernel;
        let mut readers: QuickMap<Value, u32> = QuickMap::default();
        for step in &plan.steps {
            step.reads.iter().for_each(|&v| *readers.entry(v).or_default() += 1);
        }
        let affine = |plan: &Plan<'_>, inst: Inst| {
            let MemoryAccess { index, class, .. } = &plan.accesses[&inst];
            index.is_some() && !matches!(class, Class::Grouped { .. })
        };
        let mut moves = Vec::new();
        for k in 0..plan.steps.len() {
            let store = plan.steps[k].inst;
            let (Op::Store { at, x, mask: None } | Op::Put { at, x, mask: None }) = &kernel.insts[store].op else {
                continue;
            };
            let source = plan.root(*x);
            let Some((j, load)) = plan.steps[..k]
                .iter()
                .map(|s| s.inst)
                .enumerate()
                .find(|&(_, i)| kernel.insts[i].result == Some(source))
            else {
                continue;
            };
            let (Op::Load { at: from, mask: None } | Op::Get { at: from, mask: None, .. }) = &kernel.insts[load].op
            else {
                continue;
            };
            let between = plan.steps[j + 1..k].iter().any(|s| self.is_write(s.inst));
            let simple = readers[&source] == 1
                && plan.steps[j].form == Form::Plain
                && affine(plan, load)
                && affine(plan, store)
                && !between
                && kernel.ty(source) != Type::Bool
                && !self.may_overlap(at.base, from.base);
            if simple {
                moves.push((k, load));
            }
        }
        if !tiled {
            if 2 * moves.len() < plan.steps.len() {
                return;
            }
            plan.mode = TILES;
        }
        for &(k, load) in &moves {
            plan.steps[k].form = Form::Move { load };
            plan.steps[k].reads.clear();
        }
        plan.steps.retain(|step| moves.iter().all(|&(_, load)| load != step.inst));
    }

    /// Decides which loads and stores become pointers. See docs/decisions/0020. `known` is the number of elements of
    /// the `each`, or 0 if it is unknown.
    fn bind(&self, plan: &mut Plan<'k>, known: u64) {
        let kernel = self.kernel;
        let position: QuickMap<Inst, usize> = plan.steps.iter().enumerate().map(|(k, s)| (s.inst, k)).collect();
        let defined: QuickMap<Value, usize> =
            plan.steps.iter().enumerate().filter_map(|(k, s)| Some((kernel.insts[s.inst].result?, k))).collect();

        // Stores first: a value may be written to its destination where it is defined, if nothing disturbs those bytes.
        for (k, step) in plan.steps.iter().enumerate() {
            let (Op::Store { at, x, mask: None } | Op::Put { at, x, mask: None }) = &kernel.insts[step.inst].op else {
                continue;
            };
            let value = plan.root(*x);
            let Some(&d) = defined.get(&value) else { continue };
            let maker = plan.steps[d].inst;
            let straight = plan.accesses[&step.inst].class == Class::Contiguous
                && plan.rate(value) == Rate::Lane
                && !plan.bound_stores.contains_key(&value)
                && self.writes_anywhere(plan, maker, at);
            let end = plan.last_use.get(&value).copied().unwrap_or(k).max(k);
            let disturbed = plan.steps[d + 1..=end].iter().enumerate().any(|(j, other)| {
                let inst = other.inst;
                let at_k = d + 1 + j == k;
                let touches = place(&kernel.insts[inst].op).is_some_and(|p| self.may_overlap(p.base, at.base));
                // Before the store no other access is allowed; after it, no other write while the value is still read.
                !at_k && touches && (d + 1 + j < k || self.is_write(inst))
            });
            // Nor may it overwrite a value that is already bound to those bytes and still read.
            let overwrites = plan.bound_stores.iter().any(|(other, &(store, _))| {
                let to = place(&kernel.insts[store].op).expect("a store has a place");
                let last = plan.last_use.get(other).copied().unwrap_or(0);
                let in_place = last == d && self.same_elements(plan, store, step.inst);
                self.may_overlap(to.base, at.base) && defined[other] < d && last >= d && !in_place
            });
            if straight && !disturbed && !overwrites {
                let readers: Vec<Inst> =
                    plan.steps.iter().filter(|s| s.reads.contains(&value)).map(|s| s.inst).collect();
                if readers.len() > 1 {
                    // Streamed bytes must not be read back, but the other readers would do that. If the value is large,
                    // it stays in strip memory instead, and every store streams a copy.
                    let bytes = known.saturating_mul((kernel.ty(value).size() * readers.len()) as u64);
                    let large = bytes >= self.stream_from as u64;
                    let free = |&reader: &Inst| self.may_stream(plan, reader) && !self.is_written_twice(plan, reader);
                    if large && readers.iter().all(free) {
                        plan.streamed_copies.extend(readers);
                    } else {
                        plan.bound_stores.insert(value, (step.inst, false));
                    }
                    continue;
                }
                let has_loops = arithmetic::streams(kernel.ty(value)) && place(&kernel.insts[maker].op).is_none();
                plan.bound_stores.insert(value, (step.inst, has_loops && self.may_stream(plan, step.inst)));
            }
        }

        // Then loads: a pointer is as good as the value as long as nobody writes those bytes.
        for (k, step) in plan.steps.iter().enumerate() {
            let data = &kernel.insts[step.inst];
            let (Op::Load { at, mask: None } | Op::Get { at, mask: None, .. }) = &data.op else { continue };
            let value = data.result.expect("a load defines a value");
            let access = &plan.accesses[&step.inst];
            let step_units = i64::from(self.widths(step.inst).1 / self.widths(step.inst).0);
            let straight = match (access.class, &access.index) {
                (Class::Contiguous, _) => true,
                (Class::Grouped { .. }, Some(index)) => {
                    index.group.as_ref().is_some_and(|(_, s)| s.is_const(step_units))
                }
                _ => false,
            };
            if !straight || kernel.ty(value) == Type::Bool {
                continue;
            }
            let last = plan.last_use.get(&value).copied().unwrap_or(k);
            let disturbed = plan.steps.iter().any(|other| {
                if !self.is_write(other.inst) {
                    return false;
                }
                let to = place(&kernel.insts[other.inst].op).expect("a write has a place");
                if !self.may_overlap(to.base, at.base) {
                    return false;
                }
                let bound = plan.bound_stores.values().any(|&(store, _)| store == other.inst);
                let written = match (&kernel.insts[other.inst].op, bound) {
                    (Op::Store { x, .. } | Op::Put { x, .. }, true) => defined[&plan.root(*x)],
                    _ => position[&other.inst],
                };
                if written <= k || written > last {
                    return false;
                }
                // The op that reads the element last may write it: it goes element by element and reads before it
                // writes.
                !(written == last && self.same_elements(plan, step.inst, other.inst))
            });
            if !disturbed {
                plan.bound_loads.push(step.inst);
            }
        }
    }

    /// True if this is an unmasked, contiguous store to an argument that nothing in this `each` reads.
    fn may_stream(&self, plan: &Plan<'k>, inst: Inst) -> bool {
        let kernel = self.kernel;
        let (Op::Store { at, mask: None, .. } | Op::Put { at, mask: None, .. }) = &kernel.insts[inst].op else {
            return false;
        };
        let read_back = self.is_read_back(plan, Some(at.base));
        plan.accesses[&inst].class == Class::Contiguous && !read_back && matches!(at.base, crate::ir::Base::Param(_))
    }

    /// True if something in this `each` may load from `memory`.
    fn is_read_back(&self, plan: &Plan<'k>, memory: Option<crate::ir::Base>) -> bool {
        let loads = plan.steps.iter().map(|step| match step.form {
            Form::Move { load } => load,
            _ => step.inst,
        });
        let overlaps = |from| memory.is_some_and(|memory| self.may_overlap(from, memory));
        let is_load = |op: &Op| matches!(op, Op::Load { .. } | Op::Get { .. } | Op::PacketGet { .. });
        let mut loads = loads.map(|inst| &self.kernel.insts[inst].op).filter(|op| is_load(op));
        loads.any(|op| place(op).is_some_and(|place| overlaps(place.base)))
    }

    /// True if another op may write the same bytes.
    fn is_written_twice(&self, plan: &Plan<'k>, inst: Inst) -> bool {
        let base = |inst: Inst| place(&self.kernel.insts[inst].op).map(|place| place.base);
        let overlap = |other: Inst| base(other).zip(base(inst)).is_some_and(|(a, b)| self.may_overlap(a, b));
        plan.steps.iter().any(|step| step.inst != inst && self.is_write(step.inst) && overlap(step.inst))
    }

    /// True if the op that makes a value can write it to any place. Arithmetic can, and so can a gather, a strided load
    /// or a packet read from other memory. A load that may itself become a pointer cannot, nor can ops that need their
    /// result in strip memory.
    fn writes_anywhere(&self, plan: &Plan<'k>, maker: Inst, to: &Place) -> bool {
        match (&self.kernel.insts[maker].op, plan.accesses.get(&maker).map(|a| a.class)) {
            (Op::Load { at, mask: None } | Op::Get { at, mask: None, .. }, Some(Class::Gather | Class::Strided)) => {
                let bool = self.kernel.insts[maker].result.is_some_and(|r| self.kernel.ty(r) == Type::Bool);
                !bool && !self.may_overlap(at.base, to.base)
            }
            (Op::PacketGet { at, .. }, Some(Class::Contiguous)) => !self.may_overlap(at.base, to.base),
            (op, _) => place(op).is_none(),
        }
    }

    /// Whether two accesses touch, for every element, exactly the same bytes.
    fn same_elements(&self, plan: &Plan<'k>, a: Inst, b: Inst) -> bool {
        let (Some(p), Some(q)) = (place(&self.kernel.insts[a].op), place(&self.kernel.insts[b].op)) else {
            return false;
        };
        self.same_start(p.base, q.base)
            && p.bank == q.bank
            && self.widths(a) == self.widths(b)
            && plan.accesses[&a].class == Class::Contiguous
            && plan.accesses[&a].index == plan.accesses[&b].index
    }

    /// True if every write goes to memory of an argument that nothing in this `each` reads or writes again: bytes on
    /// their way around the cache must be left alone.
    fn stores_once(&self, plan: &Plan<'k>) -> bool {
        let kernel = self.kernel;
        let is_free = |inst: Inst| {
            let base = place(&kernel.insts[inst].op).map(|place| place.base);
            let is_param = matches!(base, Some(crate::ir::Base::Param(_)));
            is_param && !self.is_read_back(plan, base) && !self.is_written_twice(plan, inst)
        };
        plan.steps.iter().filter(|step| self.is_write(step.inst)).all(|step| is_free(step.inst))
    }

    /// Bytes stored per element.
    fn store_bytes(&self, plan: &Plan<'k>) -> u32 {
        plan.steps.iter().filter(|step| self.is_write(step.inst)).map(|step| self.widths(step.inst).1).sum()
    }

    pub(super) fn is_write(&self, inst: Inst) -> bool {
        matches!(
            self.kernel.insts[inst].op,
            Op::Store { .. } | Op::Put { .. } | Op::AtomicAdd { .. } | Op::PacketPut { .. }
        )
    }

    /// Bytes per index step and bytes per element of a memory op.
    pub(super) fn widths(&self, inst: Inst) -> (u32, u32) {
        let kernel = self.kernel;
        let data = &kernel.insts[inst];
        let element = |base| kernel.base_type(base).map_or(1, Type::size) as u32;
        match &data.op {
            Op::Load { at, .. } | Op::Store { at, .. } | Op::AtomicAdd { at, .. } => {
                (element(at.base), element(at.base))
            }
            Op::Put { x, .. } => (1, kernel.ty(*x).size() as u32),
            Op::Get { to, .. } => (1, to.size() as u32),
            Op::PacketPut { .. } | Op::PacketGet { .. } => (16, 16),
            op => unreachable!("{op:?} is no lane access"),
        }
    }
}

impl Plan<'_> {
    /// The value that `v` is a bit cast of, or `v` itself.
    pub(super) fn root(&self, v: Value) -> Value {
        self.roots.get(&v).copied().unwrap_or(v)
    }

    /// The rate of a lane value. Indices and values not computed here have one per element.
    pub(super) fn rate(&self, v: Value) -> Rate {
        self.rates.get(&self.root(v)).copied().unwrap_or(Rate::Lane)
    }

    /// The index of a rate's element count.
    pub(super) fn count(&self, rate: Rate) -> u16 {
        match rate {
            Rate::Lane => 0,
            Rate::Group(size) => self.groups.iter().skip(1).position(|&g| g == size).map_or(0, |k| k as u16 + 1),
        }
    }

    fn group(&mut self, size: u32) {
        if !self.groups.iter().skip(1).any(|&g| g == size) {
            self.groups.push(size);
        }
    }

    fn find_last_uses(&mut self) {
        for (k, step) in self.steps.iter().enumerate() {
            for &v in &step.reads {
                self.last_use.insert(v, k);
            }
        }
    }
}

fn lcm(a: u64, b: u64) -> Option<u64> {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (a / gcd(a, b)).checked_mul(b)
}
