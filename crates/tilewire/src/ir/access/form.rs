//! The affine form of every op of a body, and why each is exact.

use super::super::affine::{Affine, Uniform};
use super::super::entity::{Inst, Value};
use super::super::op::{BinaryOp, Op, UnaryOp};
use super::super::types::Type;
use super::Analysis;

impl Analysis<'_> {
    /// The affine form of the result of an op in the body.
    pub(super) fn form(&mut self, inst: Inst, result: Value) -> Option<Affine> {
        if !matches!(self.kernel.ty(result), Type::I64 | Type::U64) {
            return None;
        }
        match &self.kernel.insts[inst].op {
            Op::Unary { op: UnaryOp::Neg, x } => self.affine(*x)?.scale(&Uniform::Const(-1)),
            // ~x = -x - 1
            Op::Unary { op: UnaryOp::Not, x } => {
                Affine::uniform(Uniform::Const(-1), self.axes()).sub(&self.affine(*x)?)
            }
            // A conversion between 64-bit integers keeps the bits. A narrower integer has wrapped at its own width,
            // which no form mod 2^64 can express, so it has none.
            Op::Cast { x, .. } | Op::Bitcast { x, .. } => self.affine(*x),
            Op::Binary { op, a, b } => {
                let (x, y) = (self.affine(*a)?, self.affine(*b)?);
                let signed = self.kernel.ty(result) == Type::I64;
                match op {
                    BinaryOp::Add => x.add(&y),
                    BinaryOp::Sub => x.sub(&y),
                    BinaryOp::Mul => match (x.as_uniform(), y.as_uniform()) {
                        (_, Some(factor)) => x.scale(factor),
                        (Some(factor), _) => y.scale(factor),
                        _ => None,
                    },
                    BinaryOp::Shl => match y.as_uniform()?.as_const()? {
                        k @ 0..64 => x.scale(&Uniform::Const(1 << k)),
                        _ => None,
                    },
                    BinaryOp::Shr => match y.as_uniform()?.as_const()? {
                        k @ 0..31 => self.quotient(&x, 1 << k, signed),
                        _ => None,
                    },
                    BinaryOp::Div => self.quotient(&x, positive(&y)?, false),
                    BinaryOp::Rem => {
                        let divisor = positive(&y)?;
                        let quotient = self.quotient(&x, divisor, false)?;
                        x.sub(&quotient.scale(&Uniform::Const(i64::from(divisor)))?)
                    }
                    BinaryOp::And => match (x.as_uniform(), y.as_uniform()) {
                        (_, Some(mask)) => self.low_bits(&x, mask),
                        (Some(mask), _) => self.low_bits(&y, mask),
                        _ => None,
                    },
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// `x / divisor`. Splitting it is exact if no part wraps and the divisor divides all parts but the innermost one.
    /// With `floor` it rounds down. Otherwise it rounds towards zero and `x` has to be ≥ 0, which makes both the same.
    fn quotient(&mut self, x: &Affine, divisor: u32, floor: bool) -> Option<Affine> {
        if !self.in_range(x, floor)? {
            return None;
        }
        let mut divide = |part: &Uniform| {
            let fact = self.facts.of_uniform(self.kernel, part);
            fact.multiple.is_multiple_of(u64::from(divisor)).then(|| part.div_exact(divisor))
        };
        let base = divide(&x.base)?;
        let mut stride = Vec::with_capacity(x.stride.len());
        let (innermost, outer) = x.stride.split_last()?;
        for part in outer {
            stride.push(divide(part)?);
        }
        // The divisor divides the innermost parts too: nothing is rounded.
        let group = x.group.as_ref().map(|(size, step)| (*size, divide(step)));
        if let Some(step) = divide(innermost) {
            match group {
                None => {
                    stride.push(step);
                    return Some(Affine { base, stride, group: None });
                }
                Some((size, Some(group))) => {
                    stride.push(step);
                    return Some(Affine { base, stride, group: Some((size, group)) });
                }
                Some((_, None)) => {}
            }
        }
        // The remaining part is floor(step * floor(i / size) / divisor) with a step that divides the divisor: for i ≥ 0
        // that is floor(i / (size * divisor / step)).
        let (size, step) = match &x.group {
            None => (1, innermost.as_const()?),
            Some((size, step)) if innermost.is_const(0) => (*size, step.as_const()?),
            Some(_) => return None,
        };
        let step = u32::try_from(step).ok().filter(|s| *s > 0 && divisor.is_multiple_of(*s))?;
        let size = size.checked_mul(divisor / step)?;
        stride.push(Uniform::Const(0));
        Some(Affine { base, stride, group: Some((size, Uniform::Const(1))) })
    }

    /// `x & mask` for a mask of low bits: multiples of `mask + 1` drop out, even if they wrap.
    fn low_bits(&mut self, x: &Affine, mask: &Uniform) -> Option<Affine> {
        let size = u32::try_from(mask.as_const()?).ok()?.checked_add(1).filter(|s| s.is_power_of_two() && *s >= 2)?;
        let mut drops =
            |part: &Uniform| self.facts.of_uniform(self.kernel, part).multiple.is_multiple_of(u64::from(size));
        let (innermost, outer) = x.stride.split_last()?;
        if x.group.is_some() || !drops(&x.base) || !outer.iter().all(&mut drops) {
            return None;
        }
        let step = u32::try_from(innermost.as_const()?).ok().filter(|s| s.is_power_of_two() && *s < size)?;
        // (step * i) & (size - 1) = step * i - size * floor(i / (size / step))
        let mut form = Affine::uniform(Uniform::Const(0), self.axes());
        *form.stride.last_mut()? = Uniform::Const(i64::from(step));
        form.group = Some((size / step, Uniform::Const(-i64::from(size))));
        Some(form)
    }

    /// True if the form, computed without wrapping, fits `i64` for all elements (and is ≥ 0, unless `negative`).
    fn in_range(&mut self, x: &Affine, negative: bool) -> Option<bool> {
        let base = self.facts.of_uniform(self.kernel, &x.base);
        let (mut lo, mut hi) = (base.lo, base.hi);
        let indices = &self.kernel.insts[self.each].indices;
        for (stride, &index) in x.stride.iter().zip(indices) {
            let term = self.facts.of_uniform(self.kernel, stride).product(self.facts.of(self.kernel, index))?;
            (lo, hi) = (lo.checked_add(term.0)?, hi.checked_add(term.1)?);
        }
        if let Some((size, stride)) = &x.group {
            let mut groups = self.facts.of(self.kernel, *indices.last()?);
            groups.hi /= i128::from(*size);
            let term = self.facts.of_uniform(self.kernel, stride).product(groups)?;
            (lo, hi) = (lo.checked_add(term.0)?, hi.checked_add(term.1)?);
        }
        let least = if negative { i128::from(i64::MIN) } else { 0 };
        Some(least <= lo && hi <= i128::from(i64::MAX))
    }
}

/// A constant divisor that forms can be split by.
fn positive(x: &Affine) -> Option<u32> {
    u32::try_from(x.as_uniform()?.as_const()?).ok().filter(|c| *c > 0)
}
