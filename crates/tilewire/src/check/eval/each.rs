//! The body of an `each`.
//!
//! Ops run one after the other, each for all elements in the chosen order before the next op begins. The language
//! orders the ops of one element and nothing between two elements, so every interleaving of the elements' op sequences
//! is allowed; running op by op is one of them. It is the one chosen for two reasons. A `Group` needs its operand from
//! every element of its group. And a missing packet then holds back no other element's earlier ops.
//!
//! For a one-dimensional `each` that puts packets and gets others the language promises more, since ranks that took its
//! elements in different orders would wait for each other forever: a waiting element holds back none with a smaller
//! number. There the order that holds back most is run: element after element, each to its end.

use super::{Awaited, Blocked, ElementOrder, Frame, FrameKind, Instance};
use crate::check::error::EvalError;
use crate::check::memory::World;
use crate::check::observer::{AccessKind, Observer};
use crate::check::random::Random;
use crate::ir::matching::{self, Look};
use crate::ir::scalar::dynamic;
use crate::ir::{Base, BinaryOp, Entity, GroupOp, Inst, Op, Place, Region, Shape, Type, Value};
use std::ops::Range;

/// An `each` in progress.
pub(super) struct EachState {
    /// The `Each`.
    pub inst: Inst,
    /// Length of the innermost axis.
    row: usize,
    /// Number of elements.
    elements: usize,
    /// The elements (row-major numbers) that run together, in their order.
    order: Vec<usize>,
    /// The elements that run after them, one by one.
    later: Range<usize>,
    /// Lane values, by the number of the value.
    lanes: Vec<Vec<u64>>,
    /// Packets taken by the current `PacketGet`; empty if none is in progress.
    taken: Vec<Option<u64>>,
}

impl EachState {
    /// Continues with the next element, if one is left.
    pub fn next(&mut self) -> bool {
        let next = self.later.next();
        self.order = next.into_iter().collect();
        next.is_some()
    }

    pub fn value(&self, v: Value, element: usize) -> u64 {
        self.lanes[v.index()][element]
    }
}

/// More elements than any test or check needs: a larger extent is a mistake, and memory would run out.
const MOST_ELEMENTS: u64 = 1 << 28;

impl Instance<'_> {
    pub(super) fn open_each(
        &mut self,
        inst: Inst,
        extent: &[i64],
        body: Region,
        observer: &mut dyn Observer,
    ) -> Result<(), EvalError> {
        let (rows, row) = match *extent {
            [row] => (1, row),
            [rows, row] => (rows, row),
            _ => return Err(self.malformed(inst, "an `each` has one or two extents")),
        };
        if rows <= 0 || row <= 0 {
            return Ok(());
        }
        let elements = (rows as u64).saturating_mul(row as u64);
        if elements > MOST_ELEMENTS {
            let what = "the elements of one `each` that the evaluator runs".to_string();
            let (index, by) = (i64::try_from(elements).unwrap_or(i64::MAX), self.location(inst));
            return Err(EvalError::OutOfBounds { what, index, len: MOST_ELEMENTS, by });
        }
        let (elements, row) = (elements as usize, row as usize);
        observer.each(self.who, inst, elements as u64);
        let mut lanes = vec![Vec::new(); self.kernel.values.len()];
        for (axis, v) in self.kernel.insts[inst].indices.iter().enumerate() {
            let of = |e: usize| if extent.len() == 2 && axis == 0 { e / row } else { e % row };
            lanes[v.index()] = (0..elements).map(|e| of(e) as u64).collect();
        }
        let (order, later) = match extent.len() == 1 && self.swaps(body) {
            true => (vec![0], 1..elements),
            false => (self.element_order(elements), 0..0),
        };
        self.eaches += 1;
        let state = EachState { inst, row, elements, order, later, lanes, taken: Vec::new() };
        self.frames.push(Frame { region: body, next: 0, kind: FrameKind::Each(Box::new(state)) });
        Ok(())
    }

    /// True if a body puts packets and gets others. A body that combines neighbours runs all elements together.
    fn swaps(&self, body: Region) -> bool {
        let has =
            |wanted: fn(&Op) -> bool| self.kernel.regions[body].iter().any(|&inst| wanted(&self.kernel.insts[inst].op));
        has(|op| matches!(op, Op::PacketPut { .. }))
            && has(|op| matches!(op, Op::PacketGet { .. }))
            && !has(|op| matches!(op, Op::Group { .. }))
    }

    /// One op of the body, for all elements that run together. Returns what it waits for, if it does.
    pub(super) fn each_op(
        &mut self,
        inst: Inst,
        world: &mut World,
        observer: &mut dyn Observer,
    ) -> Result<Option<Blocked>, EvalError> {
        let kernel = self.kernel;
        let result = kernel.insts[inst].result;
        match &kernel.insts[inst].op {
            Op::PacketGet { at, flag } => return self.packet_get(inst, at, *flag, world, observer),
            Op::PacketPut { at, x, flag } => {
                let flag = self.flag(inst, at, *flag)?;
                for i in 0..self.each().order.len() {
                    let element = Some(self.each().order[i]);
                    let (memory, bytes) = self.span(inst, at, element, 16, 16)?;
                    self.touch(inst, element, AccessKind::PacketWrite, memory, bytes.clone(), observer);
                    let old = [0, 8].map(|half| world.memories.read(memory, bytes.start + half, 8) >> 32);
                    let [before, bare] = [old[0].max(old[1]), flag].map(|flag| self.bare(at, flag));
                    observer.packet(self.who, inst, memory, bytes.start, before, bare);
                    let data = self.value(*x, element);
                    for (half, d32) in [(0, data & 0xffff_ffff), (8, data >> 32)] {
                        world.memories.write(memory, bytes.start + half, 8, d32 | flag << 32);
                    }
                }
            }
            Op::Group { op, x, size } => {
                let each = self.each();
                let values: Vec<u64> = (0..each.elements).map(|e| self.value(*x, Some(e))).collect();
                let (size, ty) = (*size as usize, kernel.ty(*x));
                // The last group of a row may be shorter: rows are cut first.
                let groups = values.chunks(each.row).flat_map(|row| row.chunks(size.max(1)));
                let reduced = groups.flat_map(|group| reduce(*op, ty, group)).collect();
                self.set_lanes(inst, reduced);
            }
            // A uniform value is computed once.
            op if result.is_some_and(|v| kernel.shape(v) == Shape::Uniform) => {
                if let Some(bits) = self.element_op(inst, op, None, world, observer)? {
                    self.set_result(inst, bits);
                }
            }
            op => {
                let mut results = self.lanes_for(inst);
                for i in 0..self.each().order.len() {
                    let element = self.each().order[i];
                    if let Some(bits) = self.element_op(inst, op, Some(element), world, observer)? {
                        results[element] = bits;
                    }
                }
                if result.is_some() {
                    self.set_lanes(inst, results);
                }
            }
        }
        Ok(None)
    }

    /// Takes the packets that have arrived. Blocks while one is missing and keeps those it has.
    fn packet_get(
        &mut self,
        inst: Inst,
        at: &Place,
        flag: Value,
        world: &World,
        observer: &mut dyn Observer,
    ) -> Result<Option<Blocked>, EvalError> {
        let flag = self.flag(inst, at, flag)?;
        let mut taken = std::mem::take(&mut self.each_mut().taken);
        taken.resize(self.each().elements, None);
        let mut missing = None;
        for i in 0..self.each().order.len() {
            let element = self.each().order[i];
            if taken[element].is_some() {
                continue;
            }
            let (memory, bytes) = self.span(inst, at, Some(element), 16, 16)?;
            let halves = [0, 8].map(|half| world.memories.read(memory, bytes.start + half, 8));
            match halves.iter().find(|&&half| half >> 32 != flag) {
                None => {
                    self.touch(inst, Some(element), AccessKind::PacketRead, memory, bytes, observer);
                    taken[element] = Some(halves[0] & 0xffff_ffff | halves[1] << 32);
                }
                Some(half) if self.is_other(at, half >> 32, flag) => {
                    let what = format!("packet {} of {}", self.value(at.index, Some(element)), self.base_name(at.base));
                    let [expected, seen] = [flag, half >> 32].map(|flag| matching::operation_of_flag(flag as u32));
                    return Err(EvalError::OtherOperation { what, expected, seen, by: self.location(inst) });
                }
                Some(half) if missing.is_none() => {
                    let index = self.value(at.index, Some(element));
                    let on = Awaited::Packet { name: self.base_name(at.base), index, memory, byte: bytes.start };
                    let at = self.kernel.line(inst).clone();
                    missing = Some(Blocked { inst, at, on, expected: flag, seen: half >> 32 });
                }
                Some(_) => {}
            }
        }
        if missing.is_some() {
            self.each_mut().taken = taken;
        } else {
            let mut lanes = self.lanes_for(inst);
            for &element in &self.each().order {
                lanes[element] = taken[element].expect("none is missing");
            }
            self.set_lanes(inst, lanes);
        }
        Ok(missing)
    }

    /// The flag on the wire.
    fn flag(&self, inst: Inst, at: &Place, flag: Value) -> Result<u64, EvalError> {
        match (self.uniform(flag), self.operation_at(at)) {
            (0, _) => Err(EvalError::ZeroFlag { by: self.location(inst) }),
            (flag, None) => Ok(flag),
            (flag, Some(operation)) => Ok(matching::flag(flag as u32, operation).into()),
        }
    }

    /// True if a flag is the awaited one, but from another operation.
    fn is_other(&self, at: &Place, seen: u64, wanted: u64) -> bool {
        let look = || matching::look_at_flag(seen as u32, wanted as u32);
        self.operation_at(at).is_some() && look() == Look::Other
    }

    /// The operation that flags at a place carry, if any.
    fn operation_at(&self, at: &Place) -> Option<u16> {
        let Base::Param(param) = at.base else { return None };
        self.operation(param, at.bank.map_or(0, |bank| self.uniform(bank) as u32))
    }

    /// A flag without the number of the operation: the flags of one place grow.
    fn bare(&self, at: &Place, flag: u64) -> u64 {
        if self.operation_at(at).is_some() { flag & u64::from(matching::FLAG_BITS) } else { flag }
    }

    fn element_order(&self, elements: usize) -> Vec<usize> {
        match self.options.order {
            ElementOrder::Forward => (0..elements).collect(),
            ElementOrder::Reverse => (0..elements).rev().collect(),
            ElementOrder::Shuffled(seed) => {
                let mut order: Vec<usize> = (0..elements).collect();
                let who = u64::from(self.who.rank) << 40 | u64::from(self.who.block) << 20 | u64::from(self.who.copy);
                Random::new(seed ^ who.rotate_left(8) ^ self.eaches).shuffle(&mut order);
                order
            }
        }
    }

    fn each(&self) -> &EachState {
        match self.frames.last() {
            Some(Frame { kind: FrameKind::Each(state), .. }) => state,
            _ => unreachable!("an op of an `each` runs only with its frame on top"),
        }
    }

    fn each_mut(&mut self) -> &mut EachState {
        match self.frames.last_mut() {
            Some(Frame { kind: FrameKind::Each(state), .. }) => state,
            _ => unreachable!("an op of an `each` runs only with its frame on top"),
        }
    }

    /// Storage for an op's results, with those of elements that ran before.
    fn lanes_for(&mut self, inst: Inst) -> Vec<u64> {
        let Some(result) = self.kernel.insts[inst].result else { return Vec::new() };
        let each = self.each_mut();
        let mut lanes = std::mem::take(&mut each.lanes[result.index()]);
        lanes.resize(each.elements, 0);
        lanes
    }

    fn set_lanes(&mut self, inst: Inst, lanes: Vec<u64>) {
        let result = self.kernel.insts[inst].result.expect("the op defines a value");
        self.each_mut().lanes[result.index()] = lanes;
    }
}

/// The result for every element of one group.
fn reduce(op: GroupOp, ty: Type, group: &[u64]) -> Vec<u64> {
    let fold = |op| {
        let all = group.iter().copied().reduce(|a, b| dynamic::binary(op, ty, a, b));
        vec![all.expect("a group has an element"); group.len()]
    };
    let add = |a, b| dynamic::binary(BinaryOp::Add, ty, a, b);
    match op {
        GroupOp::Max => fold(BinaryOp::Max),
        GroupOp::Min => fold(BinaryOp::Min),
        GroupOp::Sum => {
            let mut level = group.to_vec();
            while level.len() > 1 {
                level = level.chunks(2).map(|pair| if let [a, b] = *pair { add(a, b) } else { pair[0] }).collect();
            }
            vec![level[0]; group.len()]
        }
        GroupOp::Scan => {
            let mut sums = group.to_vec();
            let mut distance = 1;
            while distance < group.len() {
                let before = sums.clone();
                for k in distance..sums.len() {
                    sums[k] = add(before[k - distance], before[k]);
                }
                distance *= 2;
            }
            sums
        }
    }
}
