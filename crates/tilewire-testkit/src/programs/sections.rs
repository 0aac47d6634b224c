//! Sections that one role runs alone: element-wise code, scratch, loops, turns.

use super::data::{element, indices};
use super::expression::{GROUPS, Pool};
use super::writer::{Writer, at, here};
use super::{Maker, Wish};
use crate::random::Random;
use tilewire::ir::{
    Access, BinaryOp, CompareOp, Mask, Op, ParamId, Place, RequiredSpan, RoleId, Special, Type, Value, VarId,
};

/// A part of a program. Its parameters are declared when it is planned. Then every role emits its own code.
pub trait Section {
    /// The least number of warps that a role should have.
    fn warps(&self, _role: u32) -> u32 {
        1
    }

    fn emit(&self, maker: &mut Maker, role: u32, id: RoleId, random: &mut Random);
}

/// The elements of an `each`.
#[derive(Clone, Copy)]
pub struct Extent {
    /// `None` in one dimension.
    pub rows: Option<u64>,
    pub cols: u64,
    /// A scalar parameter that holds `cols`, if it is not a constant.
    pub runtime: Option<ParamId>,
}

impl Extent {
    pub fn plan(maker: &mut Maker, random: &mut Random) -> Self {
        let (rows, cols) = match random.below_u64(3) {
            0 => {
                let shapes = [(3, 5), (7, 64), (33, 17), (64, 64), (3, 1), (0, 5), (2, 0), (1, 4097), (7, 64), (3, 5)];
                let (rows, cols) = random.pick(&shapes);
                (Some(rows), cols)
            }
            _ => (None, random.pick(&[0, 1, 1, 7, 7, 31, 31, 64, 64, 100, 100, 4097])),
        };
        let runtime = random.once_in(3).then(|| maker.scalar(Type::I64, cols));
        Extent { rows, cols, runtime }
    }

    pub fn count(&self) -> u64 {
        self.rows.unwrap_or(1) * self.cols
    }

    /// Emits an `each` over the elements. The body gets the row (0 in one dimension), the column and the row-major
    /// number.
    pub fn each(&self, c: &mut Writer, body: impl FnOnce(&mut Writer, Value, Value, Value)) {
        let cols = match self.runtime {
            Some(param) => c.op(Op::Scalar(param)),
            None => c.i64(self.cols as i64),
        };
        if self.runtime.is_some() && self.cols % 2 == 1 {
            // It always holds, and no engine can know that before the launch.
            let (rank, offset, size) = (c.special(Special::Rank), c.i64(0), c.i64(self.cols as i64));
            let cond = c.op(Op::Compare { op: CompareOp::Le, a: cols, b: size });
            c.run(Op::Require { cond, span: Some(RequiredSpan { rank, offset, bytes: cols, size }) });
        }
        match self.rows {
            None => c.each(cols, |c, i| {
                let zero = c.i64(0);
                body(c, zero, i, i);
            }),
            Some(rows) => {
                let rows = c.i64(rows as i64);
                c.each2(rows, cols, |c, row, col| {
                    let number = c.scale(row, self.cols as i64, col);
                    body(c, row, col, number);
                });
            }
        }
    }

    /// The column-major number of an element.
    fn transposed(&self, c: &mut Writer, row: Value, col: Value) -> Value {
        c.scale(col, self.rows.unwrap_or(1) as i64, row)
    }
}

/// `block * span`, the first element of this block.
pub fn block_start(c: &mut Writer, span: u64) -> Value {
    let (block, zero) = (c.special(Special::Block), c.i64(0));
    c.scale(block, span as i64, zero)
}

/// Loads in many patterns, a random expression, stores in many patterns.
pub struct Elementwise {
    role: u32,
    extent: Extent,
    scalar: ParamId,
    inputs: Vec<(ParamId, Pattern)>,
    outputs: Vec<(ParamId, Type, Pattern)>,
    /// One u64 per element that depends on all computed values.
    digests: ParamId,
}

#[derive(Clone, Copy)]
enum Pattern {
    /// Element `shift + stride * number`.
    Linear { stride: u64, shift: u64 },
    /// Column-major.
    Transposed,
    /// At the index that an index buffer has. For stores, it has a permutation.
    Indexed { by: ParamId },
    /// The same element for all lanes.
    Broadcast { index: u64 },
    /// As linear, but masked off from `limit` on, where the buffer ends.
    Ragged { limit: u64 },
    /// One store per group of columns.
    Leader { size: u32 },
    /// Bank `bank` of two.
    Banked { bank: u64 },
    /// An output that is also an input, under the same or another name, at the same index only.
    InPlace,
}

impl Pattern {
    fn banks(self) -> u32 {
        if matches!(self, Pattern::Banked { .. }) { 2 } else { 1 }
    }

    fn place(self, c: &mut Writer, param: ParamId, index: Value) -> Place {
        let mut place = at(param, index);
        if let Pattern::Banked { bank } = self {
            place.bank = Some(c.i64(bank as i64));
        }
        place
    }
}

impl Elementwise {
    pub fn plan(maker: &mut Maker, random: &mut Random) -> Self {
        let extent = Extent::plan(maker, random);
        let (n, blocks) = (extent.count(), maker.blocks);
        let scalar_type = random.pick(&Type::ALL);
        let mut plan = Elementwise {
            role: random.below_u64(u64::from(maker.roles)) as u32,
            extent,
            scalar: maker.scalar(scalar_type, element(scalar_type, random)),
            inputs: Vec::new(),
            outputs: Vec::new(),
            digests: maker.random_buffer(Type::U64, n * blocks, Wish::new(Access::Out), random),
        };
        for _ in 0..1 + random.below_u64(3) {
            let ty = random.pick(&Type::ALL);
            let pattern = match random.below_u64(7) {
                0 => Pattern::Transposed,
                1 => {
                    let to = (0..blocks * n).map(|_| random.below_u64(n.max(1))).collect::<Vec<_>>();
                    Pattern::Indexed { by: index_buffer(maker, &to, random) }
                }
                2 => Pattern::Broadcast { index: random.below_u64(n.max(1)) },
                3 => Pattern::Ragged { limit: random.below_u64(n + 1) },
                4 => Pattern::Banked { bank: random.below_u64(2) },
                _ => Pattern::Linear { stride: random.pick(&[1, 1, 2, 3]), shift: random.below_u64(3) },
            };
            let wish = Wish { banks: pattern.banks(), ..IN };
            let param = maker.random_buffer(ty, plan.len(pattern) * blocks, wish, random);
            plan.inputs.push((param, pattern));
        }
        if random.once_in(3) {
            let ty = random.pick(&Type::ALL);
            let param = maker.random_buffer(ty, n * blocks, Wish::new(Access::InOut), random);
            let other = if random.once_in(2) { maker.alias(param) } else { param };
            plan.inputs.push((param, Pattern::InPlace));
            plan.outputs.push((other, ty, Pattern::InPlace));
        }
        for _ in 0..1 + random.below_u64(2) {
            let ty = random.pick(&Type::ALL);
            let pattern = match random.below_u64(7) {
                0 => Pattern::Transposed,
                4 => Pattern::Banked { bank: random.below_u64(2) },
                1 => {
                    let to = (0..blocks).flat_map(|_| random.permutation(n)).collect::<Vec<_>>();
                    Pattern::Indexed { by: index_buffer(maker, &to, random) }
                }
                2 => Pattern::Leader { size: random.pick(&GROUPS) },
                3 => Pattern::Ragged { limit: random.below_u64(n + 1) },
                _ => Pattern::Linear { stride: random.pick(&[1, 1, 2, 3]), shift: random.below_u64(3) },
            };
            let wish = Wish { access: Access::Out, banks: pattern.banks(), ..IN };
            let param = maker.random_buffer(ty, plan.len(pattern) * blocks, wish, random);
            plan.outputs.push((param, ty, pattern));
        }
        plan
    }

    /// The number of elements that a block needs.
    fn len(&self, pattern: Pattern) -> u64 {
        let n = self.extent.count();
        match pattern {
            Pattern::Linear { stride, shift } => n * stride + shift,
            Pattern::Broadcast { .. } => n.max(1),
            Pattern::Ragged { limit } => limit,
            Pattern::Leader { size } => self.extent.rows.unwrap_or(1) * self.extent.cols.div_ceil(u64::from(size)),
            _ => n,
        }
    }

    /// The element's index and, where the pattern has one, its mask.
    fn index(&self, c: &mut Writer, pattern: Pattern, [row, col, number]: [Value; 3]) -> (Value, Option<Value>) {
        let start = block_start(c, self.len(pattern));
        match pattern {
            Pattern::Linear { stride, shift } => {
                let shift = c.i64(shift as i64);
                let start = c.add(start, shift);
                (c.scale(number, stride as i64, start), None)
            }
            Pattern::Transposed => {
                let index = self.extent.transposed(c, row, col);
                (c.add(start, index), None)
            }
            Pattern::Indexed { by } => {
                let place = c.add(start, number);
                let index = c.load(by, place);
                let index = c.cast(index, Type::I64);
                (c.add(start, index), None)
            }
            Pattern::Broadcast { index } => {
                let index = c.i64(index as i64);
                (c.add(start, index), None)
            }
            Pattern::Ragged { limit } => {
                let limit = c.i64(limit as i64);
                let inside = c.compare(CompareOp::Lt, number, limit);
                // Masked-off elements point far outside, so no access may be evaluated there.
                let (beyond, index) = (c.i64(-1 << 40), c.add(start, number));
                (c.op(Op::Select { cond: inside, a: index, b: beyond }), Some(inside))
            }
            Pattern::Leader { size } => {
                let (by, zero) = (c.i64(i64::from(size)), c.i64(0));
                let group = c.binary(BinaryOp::Div, col, by);
                let rest = c.binary(BinaryOp::Rem, col, by);
                let leads = c.compare(CompareOp::Eq, rest, zero);
                let groups = self.extent.cols.div_ceil(u64::from(size));
                let index = c.scale(row, groups as i64, group);
                (c.add(start, index), Some(leads))
            }
            Pattern::Banked { .. } | Pattern::InPlace => (c.add(start, number), None),
        }
    }
}

const IN: Wish = Wish { access: Access::In, align: 0, banks: 1, compare: true };

/// A read-only buffer of indices, in a type that holds them.
fn index_buffer(maker: &mut Maker, all: &[u64], random: &mut Random) -> ParamId {
    let ty = random.pick(&[Type::I64, Type::I32, Type::U32, Type::U64, Type::U16]);
    maker.buffer(ty, vec![indices(ty, all)], IN, random)
}

impl Section for Elementwise {
    fn emit(&self, maker: &mut Maker, role: u32, _: RoleId, random: &mut Random) {
        if role != self.role {
            return;
        }
        let mut pool = maker.uniform_pool(Some(self.scalar), random);
        let steps = random.below_u64(3);
        pool.grow(&mut maker.c, steps, random);
        self.extent.each(&mut maker.c, |c, row, col, number| {
            pool.add(c, number, true);
            for &(param, pattern) in &self.inputs {
                let (index, inside) = self.index(c, pattern, [row, col, number]);
                let place = pattern.place(c, param, index);
                let mask = inside.map(|cond| {
                    let ty = c.b.kernel().base_type(place.base).expect("a buffer");
                    Mask { cond, other: c.bits(ty, element(ty, random)) }
                });
                let v = c.op(Op::Load { at: place, mask });
                pool.add(c, v, true);
            }
            let (grown, steps) = (pool.all.len(), 1 + random.below_u64(10));
            pool.grow(c, steps, random);
            let digest = pool.digest(c, grown);
            let (index, _) = self.index(c, Pattern::InPlace, [row, col, number]);
            c.store(self.digests, index, digest);
            for &(param, ty, pattern) in &self.outputs {
                let (index, inside) = self.index(c, pattern, [row, col, number]);
                let x = pool.latest_lane(c, random);
                let x = if x.ty == ty { x.v } else { c.cast(x.v, ty) };
                let mask = match inside {
                    Some(inside) => Some(inside),
                    None if random.once_in(4) => Some(pool.condition(c, random)),
                    None => None,
                };
                let place = pattern.place(c, param, index);
                c.run(Op::Store { at: place, x, mask });
            }
        });
    }
}

/// One `each` writes scratch, and the next reads it from other elements. The section does this more than once, so that
/// the second round overwrites the first.
pub struct ThroughScratch {
    role: u32,
    extent: Extent,
    ty: Type,
    input: ParamId,
    output: ParamId,
    rounds: u64,
}

impl ThroughScratch {
    pub fn plan(maker: &mut Maker, random: &mut Random) -> Self {
        let extent = Extent::plan(maker, random);
        let (ty, from) = (random.pick(&Type::ALL), random.pick(&Type::ALL));
        let rounds = 1 + random.below_u64(3);
        let len = extent.count() * maker.blocks;
        ThroughScratch {
            role: random.below_u64(u64::from(maker.roles)) as u32,
            extent,
            ty,
            input: maker.random_buffer(from, len, IN, random),
            output: maker.random_buffer(ty, len * rounds, Wish::new(Access::Out), random),
            rounds,
        }
    }
}

impl Section for ThroughScratch {
    fn emit(&self, maker: &mut Maker, role: u32, id: RoleId, random: &mut Random) {
        if role != self.role {
            return;
        }
        let n = self.extent.count();
        let scratch = maker.c.b.scratch(id, self.ty, n);
        let pool = maker.uniform_pool(None, random);
        let c = &mut maker.c;
        let [zero, one, end] = [0, 1, self.rounds as i64].map(|x| c.i64(x));
        let start = block_start(c, n);
        let first = block_start(c, n * self.rounds);
        let barrier = random.once_in(2);
        c.for_step(zero, end, one, |c, round| {
            let mut inner = pool.clone();
            inner.add(c, round, true);
            self.extent.each(c, |c, _, _, number| {
                let mut pool = inner.clone();
                let index = c.add(start, number);
                let x = c.load(self.input, index);
                pool.add(c, number, true);
                pool.add(c, x, true);
                let steps = 1 + random.below_u64(4);
                pool.grow(c, steps, random);
                let x = pool.latest_lane(c, random);
                let x = c.cast(x.v, self.ty);
                c.store_scratch(scratch, number, x);
            });
            if barrier {
                c.run(Op::Barrier);
            }
            self.extent.each(c, |c, row, col, number| {
                let from = if self.extent.rows.is_some() {
                    self.extent.transposed(c, row, col)
                } else {
                    let last = c.i64(n as i64 - 1);
                    c.binary(BinaryOp::Sub, last, number)
                };
                let x = c.load_scratch(scratch, from);
                let index = c.scale(round, n as i64, number);
                let index = c.add(first, index);
                c.store(self.output, index, x);
            });
        });
    }
}

/// Uniform control flow with variables: for, if, while, an `each` inside, uniform loads and stores.
pub struct Loops {
    role: u32,
    extent: Extent,
    turns: u64,
    step: i64,
    input: ParamId,
    output: ParamId,
    output_type: Type,
    sum: ParamId,
    sum_type: Type,
}

impl Loops {
    pub fn plan(maker: &mut Maker, random: &mut Random) -> Self {
        let extent = Extent::plan(maker, random);
        let turns = random.below_u64(6);
        let [input_type, other_type, sum_type] = [0; 3].map(|_| random.pick(&Type::ALL));
        let output_type = random.pick(&[other_type, Type::U64]);
        let len = extent.count() * turns * maker.blocks;
        Loops {
            role: random.below_u64(u64::from(maker.roles)) as u32,
            extent,
            turns,
            step: random.pick(&[1, 1, 2, 3, 0, -1]),
            input: maker.random_buffer(input_type, turns.max(1), IN, random),
            output: maker.random_buffer(output_type, len, Wish::new(Access::Out), random),
            output_type,
            sum: maker.random_buffer(sum_type, 2 * maker.blocks, Wish::new(Access::Out), random),
            sum_type,
        }
    }

    /// Assigns a variable an expression of itself and of the values in scope.
    fn update(&self, c: &mut Writer, var: VarId, pool: &Pool, random: &mut Random) {
        let mut pool = pool.clone();
        let old = c.read(var);
        pool.add(c, old, false);
        let steps = 1 + random.below_u64(4);
        pool.grow(c, steps, random);
        let x = pool.of(c, self.sum_type, random);
        c.write(var, x.v);
    }
}

impl Section for Loops {
    fn emit(&self, maker: &mut Maker, role: u32, id: RoleId, random: &mut Random) {
        if role != self.role {
            return;
        }
        let n = self.extent.count();
        let pool = maker.uniform_pool(None, random);
        let c = &mut maker.c;
        let (var, counter) = (c.b.var(id, self.sum_type), c.b.var(id, Type::I64));
        let first = c.bits(self.sum_type, element(self.sum_type, random));
        c.write(var, first);
        let [zero, end, step] = [0, self.turns as i64, self.step].map(|x| c.i64(x));
        let start = block_start(c, n * self.turns);
        c.for_step(zero, end, step, |c, turn| {
            let mut pool = pool.clone();
            pool.add(c, turn, true);
            let x = c.load(self.input, turn);
            pool.add(c, x, true);
            let cond = pool.condition(c, random);
            let mut fork = random.clone();
            c.if_else(
                cond,
                |c| self.update(c, var, &pool, random),
                |c| {
                    if fork.once_in(2) {
                        self.update(c, var, &pool, &mut fork);
                    }
                },
            );
            self.extent.each(c, |c, _, _, number| {
                let mut pool = pool.clone();
                let sum = c.read(var);
                pool.add(c, sum, false);
                pool.add(c, number, true);
                let (grown, steps) = (pool.all.len(), 1 + random.below_u64(5));
                pool.grow(c, steps, random);
                let x = match self.output_type {
                    Type::U64 => pool.digest(c, grown),
                    ty => {
                        let x = pool.latest_lane(c, random);
                        c.cast(x.v, ty)
                    }
                };
                let index = c.scale(turn, n as i64, number);
                let index = c.add(start, index);
                c.store(self.output, index, x);
            });
        });
        c.write(counter, zero);
        c.while_loop(
            |c| {
                let so_far = c.read(counter);
                c.compare(CompareOp::Lt, so_far, end)
            },
            |c| {
                self.update(c, var, &pool, random);
                let (so_far, one) = (c.read(counter), c.i64(1));
                let next = c.add(so_far, one);
                c.write(counter, next);
            },
        );
        let (place, x) = (block_start(c, 2), c.read(var));
        c.store(self.sum, place, x);
        let (one, cond) = (c.i64(1), c.compare(CompareOp::Gt, end, zero));
        let place = c.add(place, one);
        c.store_if(self.sum, place, x, cond);
    }
}

/// A separate role with several copies that take turns. The result is the same for any number of copies that run.
pub fn turns(maker: &mut Maker, random: &mut Random) {
    let (turns, n) = (5, random.pick(&[1, 7, 64]));
    let ty = random.pick(&Type::ALL);
    let output = maker.random_buffer(ty, n * turns * maker.blocks, Wish::new(Access::Out), random);
    let id = maker.c.b.open_role("turns", 1, 1 + random.below_u64(3) as u32, &here());
    let scratch = maker.c.b.scratch(id, ty, n);
    let pool = maker.uniform_pool(None, random);
    let c = &mut maker.c;
    let (first, copies, end) = (c.special(Special::Copy), c.special(Special::Copies), c.i64(turns as i64));
    let start = block_start(c, n * turns);
    c.for_step(first, end, copies, |c, turn| {
        let extent = c.i64(n as i64);
        c.each(extent, |c, i| {
            let mut pool = pool.clone();
            pool.add(c, turn, true);
            pool.add(c, i, true);
            pool.grow(c, 4, random);
            let x = pool.latest_lane(c, random);
            let x = c.cast(x.v, ty);
            c.store_scratch(scratch, i, x);
        });
        c.each(extent, |c, i| {
            let x = c.load_scratch(scratch, i);
            let index = c.scale(turn, n as i64, i);
            let index = c.add(start, index);
            c.store(output, index, x);
        });
    });
    maker.c.b.close();
}
