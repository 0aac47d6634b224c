//! Random expressions.
//!
//! The sign and payload of a NaN made by arithmetic are unspecified, so no program may turn them into a number: a value
//! is *exact* when its bits are specified even if it is a NaN (it comes straight from memory that was initialised, or
//! is not a float at all), and only exact values are bit-cast or change type through memory.

use super::data::{element, small};
use super::writer::Writer;
use crate::random::Random;
use tilewire::ir::{BinaryOp, CompareOp, GroupOp, Op, Shape, Type, UnaryOp, Value};

/// A value and its known properties.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub v: Value,
    pub ty: Type,
    pub exact: bool,
}

/// The values in scope, and random steps that add to them.
#[derive(Clone, Default)]
pub struct Pool {
    pub all: Vec<Known>,
}

pub const GROUPS: [u32; 6] = [1, 2, 7, 32, 128, 3];

impl Pool {
    pub fn add(&mut self, c: &Writer, v: Value, exact: bool) -> Known {
        let ty = c.b.kernel().ty(v);
        let known = Known { v, ty, exact: exact || !ty.is_float() };
        self.all.push(known);
        known
    }

    /// Any value. The latest are chosen most often, so that chains grow.
    pub fn any(&self, random: &mut Random) -> Known {
        let n = self.all.len() as u64;
        let back = random.below_u64(n).min(random.below_u64(n));
        self.all[(n - 1 - back) as usize]
    }

    /// One of the latest lane values, for a store.
    pub fn latest_lane(&self, c: &Writer, random: &mut Random) -> Known {
        let lanes: Vec<Known> =
            self.all.iter().copied().filter(|known| c.b.kernel().shape(known.v) == Shape::Lane).collect();
        match lanes.len() {
            0 => self.any(random),
            n => lanes[n - 1 - random.below_u64(n.min(4) as u64) as usize],
        }
    }

    /// A value of a type: one in scope, a constant, or a converted value of another type.
    pub fn of(&mut self, c: &mut Writer, ty: Type, random: &mut Random) -> Known {
        let fitting: Vec<Known> = self.all.iter().copied().filter(|known| known.ty == ty).collect();
        match random.below_u64(8) {
            0 => {
                let v = c.bits(ty, element(ty, random));
                self.add(c, v, true)
            }
            1..=6 if !fitting.is_empty() => {
                let n = fitting.len() as u64;
                fitting[(n - 1 - random.below_u64(n).min(random.below_u64(n))) as usize]
            }
            _ => {
                let from = self.any(random);
                let v = c.cast(from.v, ty);
                self.add(c, v, false)
            }
        }
    }

    /// A value of the type of `a`, seldom `a` itself: `min(x, x)` tells little.
    fn partner(&mut self, c: &mut Writer, a: Known, random: &mut Random) -> Known {
        let b = self.of(c, a.ty, random);
        if b.v == a.v { self.of(c, a.ty, random) } else { b }
    }

    /// A bool for a mask or a condition.
    pub fn condition(&mut self, c: &mut Writer, random: &mut Random) -> Value {
        let a = self.any(random);
        if a.ty == Type::Bool {
            return a.v;
        }
        let b = self.of(c, a.ty, random);
        let op = random.pick(&COMPARES);
        c.compare(op, a.v, b.v)
    }

    /// Adds `steps` random ops. Groups only in an `each`.
    pub fn grow(&mut self, c: &mut Writer, steps: u64, random: &mut Random) {
        for _ in 0..steps {
            self.step(c, random);
        }
    }

    fn step(&mut self, c: &mut Writer, random: &mut Random) {
        let a = self.any(random);
        let in_each = c.b.in_each();
        let (v, exact) = match random.below_u64(14) {
            0 | 1 => self.unary(c, a, random),
            2..=4 => {
                let ops: &[BinaryOp] = match a.ty {
                    Type::Bool => &[BinaryOp::And, BinaryOp::Or, BinaryOp::Xor],
                    ty if ty.is_float() => &FLOAT_BINARIES,
                    _ => &INT_BINARIES,
                };
                let (op, b) = (random.pick(ops), self.partner(c, a, random));
                (c.binary(op, a.v, b.v), false)
            }
            5 => {
                let b = self.partner(c, a, random);
                let ops: &[CompareOp] = if a.ty == Type::Bool { &COMPARES[..2] } else { &COMPARES };
                let op = random.pick(ops);
                (c.compare(op, a.v, b.v), false)
            }
            6 => {
                let (cond, b) = (self.condition(c, random), self.partner(c, a, random));
                (c.op(Op::Select { cond, a: a.v, b: b.v }), a.exact && b.exact)
            }
            7 if a.ty.is_float() => {
                let (b, d) = (self.of(c, a.ty, random), self.of(c, a.ty, random));
                (c.op(Op::Fma { a: a.v, b: b.v, c: d.v }), false)
            }
            8 if a.exact && a.ty != Type::Bool => {
                let same_size = |ty: &Type| ty.size() == a.ty.size() && *ty != Type::Bool;
                let all: Vec<Type> = Type::ALL.into_iter().filter(same_size).collect();
                (c.op(Op::Bitcast { x: a.v, to: random.pick(&all) }), true)
            }
            9 | 10 if in_each && a.ty != Type::Bool => {
                let op = random.pick(&[GroupOp::Max, GroupOp::Min, GroupOp::Sum, GroupOp::Scan]);
                (c.group(op, a.v, random.pick(&GROUPS)), false)
            }
            // Floats have four times as many ops of one operand as integers.
            11..=13 if a.ty.is_float() => self.unary(c, a, random),
            _ => (c.cast(a.v, random.pick(&Type::ALL)), false),
        };
        self.add(c, v, exact);
    }

    /// A chain of ops on f32s, most of them cheap. Each op takes the result of the one before.
    pub fn chain(&mut self, c: &mut Writer, mut x: Known, steps: u64, random: &mut Random) -> Known {
        for _ in 0..steps {
            let [a, b] = [0; 2].map(|_| self.number(c, random));
            let v = match random.below_u64(32) {
                0..=15 => c.binary(random.pick(&CHEAP_BINARIES), x.v, a),
                16..=22 => c.op(Op::Fma { a: x.v, b: a, c: b }),
                23..=26 => {
                    let cond = c.compare(random.pick(&COMPARES), x.v, a);
                    c.op(Op::Select { cond, a: x.v, b })
                }
                27..=30 => c.unary(random.pick(&[UnaryOp::Neg, UnaryOp::Abs, UnaryOp::Floor]), x.v),
                _ => c.unary(random.pick(&[UnaryOp::Sqrt, UnaryOp::Rcp, UnaryOp::Exp]), x.v),
            };
            x = self.add(c, v, false);
        }
        x
    }

    /// An f32 for a chain: one in scope, or a constant, a special one once in a while.
    fn number(&self, c: &mut Writer, random: &mut Random) -> Value {
        let fitting: Vec<Known> = self.all.iter().copied().filter(|known| known.ty == Type::F32).collect();
        match random.below_u64(16) {
            0 => c.bits(Type::F32, element(Type::F32, random)),
            1..=7 if !fitting.is_empty() => random.pick(&fitting).v,
            _ => c.f32(small(random) as f32),
        }
    }

    /// A u64 that depends on every bit of the values from number `from` on, so that no later op can hide a mistake in
    /// one of them. The bits of a NaN do not count: where `x != x`, a select replaces the bit cast.
    pub fn digest(&self, c: &mut Writer, from: usize) -> Value {
        let (mut digest, odd) = (c.u64(0x1234_5678), c.u64(0x9e37_79b9_7f4a_7c15));
        for &Known { v, ty, .. } in &self.all[from..] {
            let bits = if ty.is_float() {
                let to = match ty.size() {
                    1 => Type::U8,
                    2 => Type::U16,
                    4 => Type::U32,
                    _ => Type::U64,
                };
                let (cond, nan) = (c.compare(CompareOp::Ne, v, v), c.bits(to, 0x55));
                let bits = c.op(Op::Bitcast { x: v, to });
                c.op(Op::Select { cond, a: nan, b: bits })
            } else {
                v
            };
            let bits = c.cast(bits, Type::U64);
            digest = c.mul(digest, odd);
            digest = c.binary(BinaryOp::Xor, digest, bits);
        }
        digest
    }

    fn unary(&mut self, c: &mut Writer, a: Known, random: &mut Random) -> (Value, bool) {
        let op = match a.ty {
            Type::Bool => UnaryOp::Not,
            ty if ty.is_float() => random.pick(&FLOAT_UNARIES),
            _ => random.pick(&[UnaryOp::Neg, UnaryOp::Abs, UnaryOp::Not]),
        };
        // Neg and Abs change only the sign bit, even of a NaN.
        (c.unary(op, a.v), a.exact && matches!(op, UnaryOp::Neg | UnaryOp::Abs))
    }
}

const COMPARES: [CompareOp; 6] =
    [CompareOp::Eq, CompareOp::Ne, CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge];

const FLOAT_BINARIES: [BinaryOp; 6] =
    [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Div, BinaryOp::Min, BinaryOp::Max];

const CHEAP_BINARIES: [BinaryOp; 8] = [
    BinaryOp::Add,
    BinaryOp::Add,
    BinaryOp::Sub,
    BinaryOp::Sub,
    BinaryOp::Mul,
    BinaryOp::Mul,
    BinaryOp::Min,
    BinaryOp::Max,
];

const INT_BINARIES: [BinaryOp; 13] = [
    BinaryOp::Add,
    BinaryOp::Sub,
    BinaryOp::Mul,
    BinaryOp::Div,
    BinaryOp::Rem,
    BinaryOp::MulHi,
    BinaryOp::Min,
    BinaryOp::Max,
    BinaryOp::And,
    BinaryOp::Or,
    BinaryOp::Xor,
    BinaryOp::Shl,
    BinaryOp::Shr,
];

const FLOAT_UNARIES: [UnaryOp; 12] = [
    UnaryOp::Neg,
    UnaryOp::Abs,
    UnaryOp::Sqrt,
    UnaryOp::Rsqrt,
    UnaryOp::Rcp,
    UnaryOp::Exp,
    UnaryOp::Log,
    UnaryOp::Tanh,
    UnaryOp::Floor,
    UnaryOp::Ceil,
    UnaryOp::Trunc,
    UnaryOp::RoundEven,
];
