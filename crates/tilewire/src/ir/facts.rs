//! Static knowledge about integer values: bounds and a divisor. The code generators (for alignment) and the simplifier
//! (for dividends that are never negative) rely on it.

use super::affine::Uniform;
use super::entity::Value;
use super::kernel::{Def, Kernel};
use super::op::{BinaryOp, GroupOp, Op, Special, UnaryOp};
use super::quick_map::QuickMap;
use super::types::Type;

/// `lo ≤ x ≤ hi` and `multiple` divides `x`, for the number `x` the bits stand for in the value's type. `multiple` is 0
/// exactly when `x` is known to be 0 (so that `gcd` needs no special case).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fact {
    pub lo: i128,
    pub hi: i128,
    pub multiple: u64,
}

/// The facts of one kernel, computed on demand. The kernel may grow between two queries (the simplifier asks while it
/// builds). A fact stays true as long as the value's definition, the number of blocks and the copies of roles stay.
#[derive(Default)]
pub(crate) struct Facts {
    known: QuickMap<Value, Fact>,
}

/// Longest chain of definitions that is followed; anything deeper counts as unknown.
const DEEPEST: u32 = 48;

impl Fact {
    /// A value of which only the type is known.
    pub fn of_type(ty: Type) -> Fact {
        let (lo, hi) = range(ty);
        Fact { lo, hi, multiple: 1 }
    }

    /// A number.
    pub fn number(n: i128) -> Fact {
        Fact { lo: n, hi: n, multiple: u64::try_from(n.unsigned_abs()).unwrap_or(1) }
    }

    /// The largest power of two that is known to divide the value, at most 2^31.
    pub fn power_of_two(&self) -> u32 {
        1 << self.multiple.trailing_zeros().min(31)
    }

    /// The result of an op that computes `exact` and then wraps to the type. If the exact result may not fit, its
    /// bounds are unknown. Divisors that divide 2^bits remain: reduction mod 2^bits keeps them.
    fn wrapped(exact: Option<(i128, i128)>, multiple: u64, ty: Type) -> Fact {
        let (lo, hi) = range(ty);
        match exact {
            Some((a, b)) if lo <= a && b <= hi => Fact { lo: a, hi: b, multiple },
            _ => Fact { lo, hi, multiple: 1 << multiple.trailing_zeros().min(ty.bits() - 1) },
        }
    }

    pub fn add(self, other: Fact, ty: Type) -> Fact {
        let exact = self.lo.checked_add(other.lo).zip(self.hi.checked_add(other.hi));
        Fact::wrapped(exact, gcd(self.multiple, other.multiple), ty)
    }

    fn sub(self, other: Fact, ty: Type) -> Fact {
        let exact = self.lo.checked_sub(other.hi).zip(self.hi.checked_sub(other.lo));
        Fact::wrapped(exact, gcd(self.multiple, other.multiple), ty)
    }

    pub fn mul(self, other: Fact, ty: Type) -> Fact {
        let multiple = match self.multiple.checked_mul(other.multiple) {
            Some(m) => m,
            // Only the power of two survives the overflow.
            None => 1 << (self.multiple.trailing_zeros() + other.multiple.trailing_zeros()).min(63),
        };
        Fact::wrapped(self.product(other), multiple, ty)
    }

    /// Bounds of the exact product.
    pub fn product(self, other: Fact) -> Option<(i128, i128)> {
        let corners = [(self.lo, other.lo), (self.lo, other.hi), (self.hi, other.lo), (self.hi, other.hi)];
        let mut bounds: Option<(i128, i128)> = None;
        for (a, b) in corners {
            let p = a.checked_mul(b)?;
            bounds = Some(bounds.map_or((p, p), |(lo, hi)| (lo.min(p), hi.max(p))));
        }
        bounds
    }

    /// Quotient by a positive number, truncating or (for shifts) flooring.
    fn div(self, c: i128, floor: bool) -> Fact {
        let quotient = |x: i128| if floor { x.div_euclid(c) } else { x / c };
        let multiple = match u64::try_from(c) {
            Ok(c) if self.multiple.is_multiple_of(c) => self.multiple / c,
            _ => 1,
        };
        Fact { lo: quotient(self.lo), hi: quotient(self.hi), multiple }.zero_aware()
    }

    /// A value that is either of the two.
    fn join(self, other: Fact) -> Fact {
        Fact { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi), multiple: gcd(self.multiple, other.multiple) }
    }

    fn zero_aware(mut self) -> Fact {
        if self.lo == 0 && self.hi == 0 {
            self.multiple = 0;
        }
        self
    }
}

impl Facts {
    /// The fact of an integer value.
    pub fn of(&mut self, kernel: &Kernel, v: Value) -> Fact {
        self.find(kernel, v, DEEPEST)
    }

    /// The fact of a uniform expression.
    pub fn of_uniform(&mut self, kernel: &Kernel, x: &Uniform) -> Fact {
        match x {
            Uniform::Const(n) => Fact::number(i128::from(*n)),
            // A u64 value stands for the same bits read as i64.
            Uniform::Value(v) => cast(self.of(kernel, *v), Type::I64),
            Uniform::Add(a, b) => self.of_uniform(kernel, a).add(self.of_uniform(kernel, b), Type::I64),
            Uniform::Mul(a, b) => self.of_uniform(kernel, a).mul(self.of_uniform(kernel, b), Type::I64),
            Uniform::Div(x, c) => self.of_uniform(kernel, x).div(i128::from(*c), false),
        }
    }

    fn find(&mut self, kernel: &Kernel, v: Value, depth: u32) -> Fact {
        let Some(data) = kernel.values.get(v) else { return Fact::of_type(Type::I64) };
        let unknown = Fact::of_type(data.ty);
        if !data.ty.is_int() || depth == 0 {
            return unknown;
        }
        if let Some(fact) = self.known.get(&v) {
            return *fact;
        }
        let fact = match data.def {
            Def::Result(inst) => self.result(kernel, &kernel.insts[inst].op, data.ty, depth - 1).unwrap_or(unknown),
            Def::Index { inst, axis } => self.index(kernel, &kernel.insts[inst].op, axis, depth - 1).unwrap_or(unknown),
        };
        self.known.insert(v, fact);
        fact
    }

    /// The index of a loop lies between its bounds: it takes the values `start + k * step` below `end`.
    fn index(&mut self, kernel: &Kernel, op: &Op, axis: usize, depth: u32) -> Option<Fact> {
        let (lo, end, multiple) = match op {
            Op::Each { extent, .. } => (0, self.find(kernel, *extent.get(axis)?, depth).hi, 1),
            Op::For { start, end, step, .. } => {
                let (start, step) = (self.find(kernel, *start, depth), self.find(kernel, *step, depth));
                (start.lo, self.find(kernel, *end, depth).hi, gcd(start.multiple, step.multiple))
            }
            _ => return None,
        };
        Some(Fact { lo, hi: (end - 1).max(lo), multiple }.zero_aware())
    }

    fn result(&mut self, kernel: &Kernel, op: &Op, ty: Type, depth: u32) -> Option<Fact> {
        let fact = match op {
            Op::Const(c) => Fact::number(number(c.bits, ty)),
            Op::Special(special) => {
                let copies = kernel.roles.values().map(|role| role.copies).max().unwrap_or(1);
                let most = match special {
                    Special::Rank | Special::WorldSize => u32::MAX,
                    Special::Block | Special::Blocks => kernel.blocks,
                    Special::Copy | Special::Copies => copies,
                };
                let hi = i128::from(most.max(1));
                match special {
                    Special::Rank | Special::Block | Special::Copy => {
                        Fact { lo: 0, hi: hi - 1, multiple: 1 }.zero_aware()
                    }
                    Special::WorldSize | Special::Blocks | Special::Copies => Fact { lo: 1, hi, multiple: 1 },
                }
            }
            Op::Unary { op: UnaryOp::Neg, x } => Fact::number(0).sub(self.find(kernel, *x, depth), ty),
            Op::Binary { op, a, b } => {
                let (a, b) = (self.find(kernel, *a, depth), self.find(kernel, *b, depth));
                return binary(*op, a, b, ty);
            }
            Op::Select { a, b, .. } => self.find(kernel, *a, depth).join(self.find(kernel, *b, depth)),
            Op::Cast { x, .. } | Op::Bitcast { x, .. } => match kernel.ty(*x) {
                Type::Bool => Fact { lo: 0, hi: 1, multiple: 1 },
                from if from.is_int() => cast(self.find(kernel, *x, depth), ty),
                _ => return None,
            },
            Op::Group { op: GroupOp::Max | GroupOp::Min, x, .. } => self.find(kernel, *x, depth),
            _ => return None,
        };
        Some(fact)
    }
}

fn binary(op: BinaryOp, a: Fact, b: Fact, ty: Type) -> Option<Fact> {
    let exactly = |f: Fact| (f.lo == f.hi).then_some(f.lo);
    let fact = match op {
        BinaryOp::Add => a.add(b, ty),
        BinaryOp::Sub => a.sub(b, ty),
        BinaryOp::Mul => a.mul(b, ty),
        BinaryOp::Shl => match exactly(b)? {
            k if (0..i128::from(ty.bits())).contains(&k) => a.mul(Fact::number(1 << k), ty),
            _ => return None,
        },
        BinaryOp::Shr => match exactly(b)? {
            k if (0..i128::from(ty.bits())).contains(&k) => a.div(1 << k, true),
            _ => return None,
        },
        BinaryOp::Div => match exactly(b)? {
            c if c > 0 => a.div(c, false),
            _ => return None,
        },
        BinaryOp::Rem if b.lo > 0 => Fact {
            lo: if a.lo >= 0 { 0 } else { (1 - b.hi).max(a.lo) },
            hi: if a.hi <= 0 { 0 } else { (b.hi - 1).min(a.hi) },
            multiple: gcd(a.multiple, b.multiple),
        }
        .zero_aware(),
        BinaryOp::Min => Fact { lo: a.lo.min(b.lo), hi: a.hi.min(b.hi), ..a.join(b) }.zero_aware(),
        BinaryOp::Max => Fact { lo: a.lo.max(b.lo), hi: a.hi.max(b.hi), ..a.join(b) }.zero_aware(),
        BinaryOp::And => {
            // A bit of the result is set in both operands: an operand that is never negative bounds the result, which
            // has at least the trailing zeros of the more even operand.
            let hi = match (a.lo >= 0, b.lo >= 0) {
                (true, true) => a.hi.min(b.hi),
                (true, false) => a.hi,
                (false, true) => b.hi,
                (false, false) => return None,
            };
            let zeros = a.multiple.trailing_zeros().max(b.multiple.trailing_zeros());
            Fact { lo: 0, hi, multiple: 1u64.checked_shl(zeros).unwrap_or(0) }.zero_aware()
        }
        BinaryOp::Or | BinaryOp::Xor if a.lo >= 0 && b.lo >= 0 => {
            let zeros = a.multiple.trailing_zeros().min(b.multiple.trailing_zeros());
            let bits = 128 - (a.hi | b.hi).leading_zeros();
            Fact { lo: 0, hi: (1 << bits) - 1, multiple: 1u64.checked_shl(zeros).unwrap_or(0) }.zero_aware()
        }
        _ => return None,
    };
    Some(fact)
}

/// Conversion between integer types keeps a number that fits, and always the low bits.
fn cast(x: Fact, to: Type) -> Fact {
    Fact::wrapped(Some((x.lo, x.hi)), x.multiple, to)
}

/// The number that bits represent in an integer type.
pub(super) fn number(bits: u64, ty: Type) -> i128 {
    let unused = 64 - ty.bits();
    if ty.is_signed_int() {
        i128::from((bits << unused) as i64 >> unused)
    } else {
        i128::from(bits << unused >> unused)
    }
}

/// Smallest and largest number of an integer type.
fn range(ty: Type) -> (i128, i128) {
    match (ty.is_signed_int(), ty.bits()) {
        (true, bits) => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        (false, bits) => (0, (1 << bits) - 1),
    }
}

/// Greatest common divisor; `gcd(0, x) = x`.
pub(super) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
