//! Division and remainder of integers by constants, without dividing.
//!
//! Notation: w bits, divisor d, `>>` keeps the sign of signed types. References: Granlund & Montgomery, "Division by
//! invariant integers using multiplication" (1994); Warren, "Hacker's Delight", chapter 10.
//!
//! One case is left alone: an index of an `each` divided by a constant that is not a power of two. Access analysis
//! finds the groups of neighbours by the quotient, which a multiplication's high half would hide. (It recognises
//! shifts, which powers of two become: [`super::super::access`].)

use super::super::entity::Value;
use super::super::facts::number;
use super::super::kernel::{Def, Kernel};
use super::super::op::{BinaryOp, CompareOp, Op, UnaryOp};
use super::super::types::{Shape, Type};
use super::rewrite::Rewriter;

/// The quotient or remainder by a constant as simpler ops.
pub(super) fn expand(r: &mut Rewriter, op: &Op) -> Option<Value> {
    let &Op::Binary { op: op @ (BinaryOp::Div | BinaryOp::Rem), a: n, b } = op else { return None };
    let ty = r.kernel.ty(n);
    let d = r.kernel.as_const(b).filter(|c| c.ty == ty && ty.is_int())?;
    let d = number(d.bits, ty);
    let mut by = Division { positive: r.fact(n).lo >= 0, r, ty, n };
    if op == BinaryOp::Rem { by.remainder(d) } else { by.quotient(d) }
}

struct Division<'r, 'k> {
    r: &'r mut Rewriter<'k>,
    ty: Type,
    n: Value,
    /// The dividend is known to be ≥ 0.
    positive: bool,
}

impl Division<'_, '_> {
    fn quotient(&mut self, d: i128) -> Option<Value> {
        let size = d.unsigned_abs();
        match d {
            0 => Some(self.int(0)), // n / 0 = 0
            1 => Some(self.n),
            -1 => Some(self.neg(self.n)), // and MIN / -1 = MIN = -MIN
            // Only MIN has a magnitude large enough for a quotient of 1.
            _ if d < 0 && size == 1 << (self.ty.bits() - 1) => {
                let is_least = self.equals(d);
                Some(self.r.value(Op::Cast { x: is_least, to: self.ty }))
            }
            _ if size.is_power_of_two() => {
                let k = size.trailing_zeros();
                let biased = self.biased(k);
                let q = self.shr(biased, k);
                Some(if d < 0 { self.neg(q) } else { q })
            }
            _ if is_index(&self.r.kernel, self.n, 8) => None,
            _ if self.ty.is_signed_int() => {
                let q = self.signed(size);
                Some(if d < 0 { self.neg(q) } else { q })
            }
            _ => Some(self.unsigned(size)),
        }
    }

    /// The remainder has the dividend's sign; the divisor's sign does not matter.
    fn remainder(&mut self, d: i128) -> Option<Value> {
        let size = d.unsigned_abs();
        match d {
            0 => Some(self.n), // n % 0 = n
            1 | -1 => Some(self.int(0)),
            _ if d < 0 && size == 1 << (self.ty.bits() - 1) => {
                let (cond, a) = (self.equals(d), self.int(0));
                Some(self.r.value(Op::Select { cond, a, b: self.n }))
            }
            _ if size.is_power_of_two() => {
                // With bias 2^k - 1 for negative n: n % 2^k = ((n + bias) & (2^k - 1)) - bias, because n + bias is (n /
                // 2^k) * 2^k plus its own low bits.
                let k = size.trailing_zeros();
                let biased = self.biased(k);
                let mask = self.int(size as i128 - 1);
                let low = self.binary(BinaryOp::And, biased, mask);
                match self.bias(k) {
                    None => Some(low),
                    Some(bias) => Some(self.binary(BinaryOp::Sub, low, bias)),
                }
            }
            _ => {
                let q = self.quotient(size as i128)?;
                let d = self.int(size as i128);
                let product = self.binary(BinaryOp::Mul, q, d);
                Some(self.binary(BinaryOp::Sub, self.n, product))
            }
        }
    }

    /// `n`, plus 2^k - 1 if negative: a shift right by k then rounds towards zero. The sum cannot overflow.
    fn biased(&mut self, k: u32) -> Value {
        match self.bias(k) {
            None => self.n,
            Some(bias) => self.binary(BinaryOp::Add, self.n, bias),
        }
    }

    fn bias(&mut self, k: u32) -> Option<Value> {
        if self.positive {
            return None;
        }
        let sign = self.shr(self.n, self.ty.bits() - 1);
        let mask = self.int((1 << k) - 1);
        Some(self.binary(BinaryOp::And, sign, mask))
    }

    /// With m = floor(2^(w+s) / d) + 1 and 0 < m d - 2^(w+s) ≤ 2^(s+1), floor(m n / 2^(w+s)) is the quotient of n ≥ 0
    /// and one less than that of n < 0. The loop ends by s = ceil(log2 d) - 1, where m d - 2^(w+s) ≤ d ≤ 2^(s+1); m <
    /// 2^w.
    fn signed(&mut self, d: u128) -> Value {
        let w = self.ty.bits();
        let fits = |s: u32| (((1u128 << (w + s)) / d) + 1) * d - (1 << (w + s)) <= 1 << (s + 1);
        let s = (0..w - 1).find(|&s| fits(s)).expect("a multiplier exists");
        let m = (1u128 << (w + s)) / d + 1;
        // As a signed number the multiplier may be m - 2^w; the missing 2^w n / 2^w = n is added.
        let factor = self.int(m as i128);
        let mut q = self.binary(BinaryOp::MulHi, self.n, factor);
        if m >= 1 << (w - 1) {
            q = self.binary(BinaryOp::Add, q, self.n);
        }
        q = self.shr(q, s);
        if self.positive {
            return q;
        }
        let sign = self.shr(self.n, w - 1);
        self.binary(BinaryOp::Sub, q, sign)
    }

    /// With m = ceil(2^(w+s) / d) and m d - 2^(w+s) ≤ 2^s, the quotient is floor(m n / 2^(w+s)). Such an m always
    /// exists for s = ceil(log2 d), but may need w + 1 bits; then `n + mulhi(m - 2^w, n)` is computed without its
    /// carry.
    fn unsigned(&mut self, d: u128) -> Value {
        let w = self.ty.bits();
        let log = 128 - (d - 1).leading_zeros();
        for s in 0..log {
            let m = (1u128 << (w + s)).div_ceil(d);
            if m < 1 << w && m * d - (1 << (w + s)) <= 1 << s {
                let factor = self.int(m as i128);
                let q = self.binary(BinaryOp::MulHi, self.n, factor);
                return self.shr(q, s);
            }
        }
        // m - 2^w = floor(2^w (2^log - d) / d) + 1; (n + t) >> log = (((n - t) >> 1) + t) >> (log - 1), as t ≤ n.
        let factor = self.int((((1u128 << log) - d) * (1 << w) / d + 1) as i128);
        let t = self.binary(BinaryOp::MulHi, self.n, factor);
        let rest = self.binary(BinaryOp::Sub, self.n, t);
        let half = self.shr(rest, 1);
        let sum = self.binary(BinaryOp::Add, half, t);
        self.shr(sum, log - 1)
    }

    fn int(&mut self, n: i128) -> Value {
        self.r.int(self.ty, n)
    }

    fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        self.r.value(Op::Binary { op, a, b })
    }

    fn shr(&mut self, x: Value, k: u32) -> Value {
        let k = self.int(i128::from(k));
        self.binary(BinaryOp::Shr, x, k)
    }

    fn neg(&mut self, x: Value) -> Value {
        self.r.value(Op::Unary { op: UnaryOp::Neg, x })
    }

    fn equals(&mut self, d: i128) -> Value {
        let b = self.int(d);
        self.r.value(Op::Compare { op: CompareOp::Eq, a: self.n, b })
    }
}

/// True if a lane value is computed from indices of the `each` in a way that access analysis can follow.
fn is_index(kernel: &Kernel, v: Value, depth: u32) -> bool {
    if kernel.shape(v) == Shape::Uniform || depth == 0 || !matches!(kernel.ty(v), Type::I64 | Type::U64) {
        return false;
    }
    let either = |a: Value, b: Value| {
        let index = |v| kernel.shape(v) == Shape::Uniform || is_index(kernel, v, depth - 1);
        index(a) && index(b)
    };
    match (kernel.values[v].def, kernel.def(v)) {
        (Def::Index { .. }, _) => true,
        (_, Some(Op::Cast { x, .. } | Op::Bitcast { x, .. } | Op::Unary { op: UnaryOp::Neg, x })) => {
            is_index(kernel, *x, depth - 1)
        }
        (_, Some(Op::Binary { op, a, b })) => {
            use BinaryOp::*;
            matches!(op, Add | Sub | Mul | Shl | Shr | Div | Rem | And) && either(*a, *b)
        }
        _ => false,
    }
}
