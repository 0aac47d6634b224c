//! Access analysis: how the memory ops in the body of an `each` walk through memory, as a function of the element's
//! index. All code generators rely on it to place vector loads, broadcasts, transposes and gathers.
//!
//! In: a verified kernel and one `each` of it. Out: a class, an index formula and an alignment for every memory op,
//! and for any value how many neighbouring elements share it. The analysis is one pass over the body in program
//! order: every value gets its affine form from those of its operands.
//!
//! Exactness. Indices wrap mod 2^64 and affine forms are equations mod 2^64, so sums, differences and products with
//! uniform factors need no proof. Quotients and shifts do. They are split (`(base + i) / g = base / g + i / g`) only if
//! the facts (`facts.rs`) show that `g` divides the base and that the sum neither wraps nor is negative.

mod form;

use super::entity::{Inst, Value};
use super::facts::{Facts, gcd, number};
use super::kernel::{Access, Kernel, Param};
use super::op::{Base, CompareOp, GroupOp, Op, Place};
use super::quick_map::QuickMap;
use super::types::{Shape, Type};

pub use super::affine::{Affine, Uniform};

/// Alignment of every scratch, in bytes; a bulk copy needs 128.
pub const SCRATCH_ALIGN: u32 = 128;

/// One memory op of an `each` body.
#[derive(Clone, PartialEq, Debug)]
pub struct MemoryAccess {
    /// The op: Load, Store, AtomicAdd, Put, Get, PacketPut or PacketGet.
    pub inst: Inst,
    /// The pattern of neighbours on the innermost axis. Masks do not change it.
    pub class: Class,
    /// The index, in the op's own unit: elements, bytes (Put and Get) or packets. `None` exactly for [`Class::Gather`].
    pub index: Option<Affine>,
    /// A power of two, in bytes, that divides the address of every element whose **innermost** index is 0 (the start of
    /// every row), for any bank and outer index. So a vector of `w` contiguous elements of `s` bytes that starts at a
    /// multiple of `w` of the innermost axis is aligned to `min(align, w * s)`. For other axes see [`align_along`].
    pub align: u32,
}

/// How an access moves along the innermost axis. The strides describe the other axis of a two-dimensional `each`: a
/// [`Class::Strided`] access whose `stride[0]` is one unit is contiguous along that axis (a transpose).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The same place for all elements of a row (innermost stride 0, no group).
    Broadcast,
    /// Neighbours are adjacent in memory: innermost stride 1 element or packet; for Put and Get the value's size.
    Contiguous,
    /// Any other innermost stride, perhaps not a constant.
    Strided,
    /// The same place for the elements of each group of `size` neighbours (the last may be shorter), a constant step
    /// from one group to the next.
    Grouped {
        /// Elements in a group, ≥ 2.
        size: u32,
    },
    /// Anything else.
    Gather,
}

/// How many neighbours on the innermost axis are known to have the same value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granularity {
    /// All elements of the `each`.
    Uniform,
    /// All elements of a row: the value depends on the outer index only.
    Row,
    /// The elements `[k * size, (k + 1) * size)` of every row, size ≥ 2.
    Group(u32),
    /// Nothing is known to be shared.
    Lane,
}

/// The memory ops of an `each`, in program order.
///
/// ```
/// use tilewire::ir::{access::{self, Class}, *};
/// let at = SourceLine::caller();
/// let mut b = Builder::new("scale", 1);
/// let buffer = |name: &str| Param::Buffer {
///     name: name.into(), ty: Type::F32, len: 4096, banks: 1, access: Access::In, align: 16,
/// };
/// let scales = b.param(buffer("scales"));
/// b.open_role("role", 1, 1, &at);
/// let extent = vec![b.constant(Type::I64, 4096, &at)];
/// let body = b.open(true);
/// let (each, index) = b.loop_head(Op::Each { extent, body }, &at);
/// let size = b.constant(Type::I64, 128, &at);
/// let index = b.value(Op::Binary { op: BinaryOp::Div, a: index[0], b: size }, &at);
/// b.value(Op::Load { at: Place { base: Base::Param(scales), bank: None, index }, mask: None }, &at);
/// b.close();
/// b.place(each);
/// b.close();
///
/// let found = access::accesses(b.kernel(), each);
/// assert_eq!(found[0].class, Class::Grouped { size: 128 });
/// ```
pub fn accesses(kernel: &Kernel, each: Inst) -> Vec<MemoryAccess> {
    Analysis::new(kernel, each).accesses()
}

/// The affine form of an `i64` (or `u64`) value that is visible in the body of an `each`; `None` if it has none.
pub fn affine(kernel: &Kernel, each: Inst, value: Value) -> Option<Affine> {
    Analysis::new(kernel, each).affine(value)
}

/// The group size `g`, if a bool value is true exactly for the first element of each group of `g` neighbours of every
/// row: `i % g == 0` in any form. It guards the single store of a value that a group shares.
pub fn group_leader(kernel: &Kernel, each: Inst, cond: Value) -> Option<u32> {
    Analysis::new(kernel, each).group_leader(cond)
}

/// How many neighbours share a value.
pub fn granularity(kernel: &Kernel, each: Inst, value: Value) -> Granularity {
    Analysis::new(kernel, each).granularity(value)
}

/// As [`MemoryAccess::align`], for the elements whose index on `axis` is 0: the alignment of vectors along that axis.
pub fn align_along(kernel: &Kernel, each: Inst, access: &MemoryAccess, axis: usize) -> u32 {
    Analysis::new(kernel, each).align(access.inst, access.index.as_ref(), axis)
}

/// The analysis of one `each`, for several queries.
pub struct Analysis<'k> {
    kernel: &'k Kernel,
    each: Inst,
    facts: Facts,
    /// Affine forms of the lane values of the body that have one.
    forms: QuickMap<Value, Affine>,
    /// Granularity of the lane values of the body.
    grains: QuickMap<Value, Granularity>,
}

impl<'k> Analysis<'k> {
    /// Analyses the body of an `each`.
    pub fn new(kernel: &'k Kernel, each: Inst) -> Self {
        let mut analysis =
            Analysis { kernel, each, facts: Facts::default(), forms: QuickMap::default(), grains: QuickMap::default() };
        let indices = &kernel.insts[each].indices;
        for (axis, &index) in indices.iter().enumerate() {
            analysis.forms.insert(index, Affine::index(axis, indices.len()));
            let innermost = axis + 1 == indices.len();
            analysis.grains.insert(index, if innermost { Granularity::Lane } else { Granularity::Row });
        }
        let written = written(kernel, analysis.body());
        for &inst in analysis.body() {
            let Some(result) = kernel.insts[inst].result else { continue };
            if kernel.shape(result) == Shape::Uniform {
                continue;
            }
            if let Some(form) = analysis.form(inst, result) {
                analysis.forms.insert(result, form);
            }
            let grain = analysis.grain(inst, result, &written);
            analysis.grains.insert(result, grain);
        }
        analysis
    }

    /// The memory ops, in program order.
    pub fn accesses(&mut self) -> Vec<MemoryAccess> {
        let memory = |&inst: &Inst| Some((inst, place(&self.kernel.insts[inst].op)?.index));
        let found: Vec<(Inst, Value)> = self.body().iter().filter_map(memory).collect();
        found.into_iter().map(|(inst, index)| self.access(inst, index)).collect()
    }

    /// See [`affine`].
    pub fn affine(&self, v: Value) -> Option<Affine> {
        if !matches!(self.kernel.ty(v), Type::I64 | Type::U64) {
            return None;
        }
        match self.kernel.shape(v) {
            Shape::Uniform => Some(Affine::uniform(self.uniform(v), self.axes())),
            Shape::Lane => self.forms.get(&v).cloned(),
        }
    }

    /// See [`group_leader`].
    pub fn group_leader(&self, cond: Value) -> Option<u32> {
        match self.kernel.def(cond)? {
            Op::Compare { op: CompareOp::Eq, a, b } => {
                let distance = self.affine(*a)?.sub(&self.affine(*b)?)?;
                let (size, step) = distance.group.as_ref()?;
                let outer = &distance.stride[..self.axes() - 1];
                // ±(i - size * floor(i / size)), which is 0 exactly if size divides i.
                let sign = distance.innermost().as_const().filter(|s| s.abs() == 1)?;
                let remainder = step.is_const(-sign * i64::from(*size))
                    && distance.base.is_const(0)
                    && outer.iter().all(|s| s.is_const(0));
                remainder.then_some(*size)
            }
            _ => None,
        }
    }

    /// See [`granularity`].
    pub fn granularity(&self, v: Value) -> Granularity {
        match self.kernel.shape(v) {
            Shape::Uniform => Granularity::Uniform,
            Shape::Lane => self.grains.get(&v).copied().unwrap_or(Granularity::Lane),
        }
    }

    fn body(&self) -> &'k [Inst] {
        match &self.kernel.insts[self.each].op {
            Op::Each { body, .. } => &self.kernel.regions[*body],
            _ => &[],
        }
    }

    fn axes(&self) -> usize {
        self.kernel.insts[self.each].indices.len()
    }

    fn uniform(&self, v: Value) -> Uniform {
        match self.constant(v) {
            Some(n) => Uniform::Const(n),
            None => Uniform::Value(v),
        }
    }

    /// The bits of a 64-bit constant.
    fn constant(&self, v: Value) -> Option<i64> {
        self.kernel.as_const(v).map(|c| number(c.bits, c.ty) as i64)
    }

    fn access(&mut self, inst: Inst, index: Value) -> MemoryAccess {
        let form = self.affine(index);
        let (unit, _) = units(self.kernel, &self.kernel.insts[inst].op);
        let class = match &form {
            None => Class::Gather,
            Some(form) => match (&form.group, form.innermost().as_const()) {
                (Some((size, _)), Some(0)) => Class::Grouped { size: *size },
                (Some(_), _) => Class::Gather,
                (None, Some(0)) => Class::Broadcast,
                (None, Some(step)) if step == unit => Class::Contiguous,
                (None, _) => Class::Strided,
            },
        };
        let index = form.filter(|_| class != Class::Gather);
        let align = self.align(inst, index.as_ref(), self.axes() - 1);
        MemoryAccess { inst, class, index, align }
    }

    fn align(&mut self, inst: Inst, index: Option<&Affine>, axis: usize) -> u32 {
        let op = &self.kernel.insts[inst].op;
        let Some(at) = place(op) else { return 1 };
        let start = match at.base {
            Base::Param(p) => match self.kernel.params.get(p) {
                Some(Param::Buffer { align, .. }) => *align,
                _ => 1,
            },
            Base::Scratch(_) => SCRATCH_ALIGN,
        };
        let (unit, bytes) = units(self.kernel, op);
        // Even an unknown index counts whole elements, packets, or (by the rule of Put and Get) multiples of the value.
        let least = start.min((unit * bytes) as u32);
        let Some(form) = index else { return least };
        let mut align = u64::from(start);
        let bytes = bytes as u64;
        let mut step = |multiple: u64| align = gcd(align, multiple.wrapping_mul(bytes));
        step(u64::from(self.facts.of_uniform(self.kernel, &form.base).power_of_two()));
        for (other, stride) in form.stride.iter().enumerate() {
            if other != axis && !stride.is_const(0) {
                step(u64::from(self.facts.of_uniform(self.kernel, stride).power_of_two()));
            }
        }
        // A step along an outer axis also crosses the groups of the innermost one.
        if let (Some((_, stride)), true) = (&form.group, axis + 1 != self.axes()) {
            step(u64::from(self.facts.of_uniform(self.kernel, stride).power_of_two()));
        }
        (align as u32).max(least)
    }

    /// The granularity of the result of an op in the body.
    fn grain(&self, inst: Inst, result: Value, written: &[Base]) -> Granularity {
        if let Some(form) = self.forms.get(&result) {
            return match (&form.group, form.innermost().is_const(0)) {
                (_, false) => Granularity::Lane,
                (Some((size, _)), true) => Granularity::Group(*size),
                (None, true) if form.as_uniform().is_some() => Granularity::Uniform,
                (None, true) => Granularity::Row,
            };
        }
        let op = &self.kernel.insts[inst].op;
        let mut operands = Granularity::Uniform;
        op.for_each_operand(|v| operands = operands.and(self.granularity(v)));
        match op {
            Op::Group { op: GroupOp::Scan, .. } => Granularity::Lane,
            Op::Group { op: GroupOp::Max | GroupOp::Min, .. }
                if matches!(operands, Granularity::Uniform | Granularity::Row) =>
            {
                operands
            }
            Op::Group { size: 0 | 1, .. } => operands,
            // The last group of a row may be shorter, with a different sum even of equal operands.
            Op::Group { size, .. } => Granularity::Group(*size),
            Op::Load { at, .. } | Op::Get { at, .. } if readable(self.kernel, at.base, written) => operands,
            Op::PacketGet { .. } => operands,
            op if op.is_pure() => operands,
            _ => Granularity::Lane,
        }
    }
}

impl Granularity {
    /// The granularity of a value computed from values of these two granularities.
    pub fn and(self, other: Granularity) -> Granularity {
        match (self, other) {
            (Granularity::Uniform, x) | (x, Granularity::Uniform) => x,
            (Granularity::Row, x) | (x, Granularity::Row) => x,
            // Aligned groups of g lie in one group of a and in one of b if g divides both.
            (Granularity::Group(a), Granularity::Group(b)) => match gcd(u64::from(a), u64::from(b)) as u32 {
                1 => Granularity::Lane,
                g => Granularity::Group(g),
            },
            _ => Granularity::Lane,
        }
    }
}

/// The place that an op of an `each` body accesses.
pub fn place(op: &Op) -> Option<&Place> {
    match op {
        Op::Load { at, .. }
        | Op::Store { at, .. }
        | Op::AtomicAdd { at, .. }
        | Op::Put { at, .. }
        | Op::Get { at, .. }
        | Op::PacketPut { at, .. }
        | Op::PacketGet { at, .. } => Some(at),
        _ => None,
    }
}

/// The index step from one value to the adjacent one, and the bytes per index step.
fn units(kernel: &Kernel, op: &Op) -> (i64, i64) {
    match op {
        Op::Put { x, .. } => (kernel.ty(*x).size() as i64, 1),
        Op::Get { to, .. } => (to.size() as i64, 1),
        Op::PacketPut { .. } | Op::PacketGet { .. } => (1, 16),
        _ => (1, place(op).and_then(|at| kernel.base_type(at.base)).map_or(1, |ty| ty.size() as i64)),
    }
}

/// The bases a body writes to.
fn written(kernel: &Kernel, body: &[Inst]) -> Vec<Base> {
    let write = |op: &Op| match op {
        Op::Store { at, .. } | Op::Put { at, .. } | Op::PacketPut { at, .. } | Op::AtomicAdd { at, .. } => {
            Some(at.base)
        }
        _ => None,
    };
    let mut bases: Vec<Base> = Vec::new();
    for base in body.iter().filter_map(|&inst| write(&kernel.insts[inst].op)) {
        if !bases.contains(&base) {
            bases.push(base);
        }
    }
    bases
}

/// True if two loads of one place in one `each` return the same value: nothing in it writes the base. (Writes through
/// another parameter bound to the same memory would race with the other elements' loads.)
fn readable(kernel: &Kernel, base: Base, written: &[Base]) -> bool {
    let input = match base {
        Base::Param(p) => matches!(kernel.params.get(p), Some(Param::Buffer { access: Access::In, .. })),
        Base::Scratch(_) => false,
    };
    input || !written.contains(&base)
}
