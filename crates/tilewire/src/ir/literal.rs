//! The text of constants: every bit pattern of a type has its own text, and a number has the fewest digits that
//! identify it within its type.

use super::op::Const;
use super::types::Type;
use std::fmt;

impl fmt::Display for Const {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bits, width) = (self.bits, self.ty.bits());
        // Not a value of its type; the verifier reports it.
        if width < 64 && bits >> width != 0 || self.ty == Type::Bool && bits > 1 {
            return write!(f, "{bits:#x}");
        }
        match self.ty {
            Type::Bool => write!(f, "{}", bits == 1),
            Type::F32 => {
                float(f, f64::from(f32::from_bits(bits as u32)), bits, || format!("{:?}", f32::from_bits(bits as u32)))
            }
            Type::F64 => float(f, f64::from_bits(bits), bits, || format!("{:?}", f64::from_bits(bits))),
            Type::F16 | Type::BF16 | Type::F8E4M3 | Type::F8E5M2 => {
                float(f, widen(self.ty, bits), bits, || shortest(self.ty, bits))
            }
            ty if ty.is_signed_int() => write!(f, "{}", (bits << (64 - width)) as i64 >> (64 - width)),
            _ => write!(f, "{bits}"),
        }
    }
}

/// Writes a float: `x` is its value, `bits` distinguish NaNs, `finite` is the text of a finite one.
fn float(f: &mut fmt::Formatter<'_>, x: f64, bits: u64, finite: impl Fn() -> String) -> fmt::Result {
    if x.is_nan() {
        write!(f, "nan({bits:#x})")
    } else if x.is_infinite() {
        f.write_str(if x > 0.0 { "inf" } else { "-inf" })
    } else {
        f.write_str(&finite())
    }
}

/// The fewest digits that are nearer to this narrow float than to its neighbours.
fn shortest(ty: Type, bits: u64) -> String {
    let sign_bit = 1 << (ty.bits() - 1);
    let magnitude = bits & (sign_bit - 1);
    let sign = if bits & sign_bit != 0 { "-" } else { "" };
    let x = widen(ty, magnitude);
    if x == 0.0 {
        return format!("{sign}0.0");
    }
    let below = widen(ty, magnitude - 1);
    let above = match widen(ty, magnitude + 1) {
        next if next.is_finite() => next,
        _ => x + (x - below), // x is the largest: act as if the spacing continued
    };
    for digits in 0.. {
        let text = format!("{x:.digits$e}");
        let near: f64 = text.parse().unwrap_or(x);
        // Sums of two narrow floats are exact in f64, so these are exact tests against the midpoints.
        if below + x < near * 2.0 && near * 2.0 < x + above {
            return format!("{sign}{near:?}");
        }
    }
    unreachable!("an exact decimal exists")
}

/// The value of a float narrower than f32, exactly.
fn widen(ty: Type, bits: u64) -> f64 {
    let (exponent_bits, mantissa_bits) = match ty {
        Type::F16 => (5, 10),
        Type::BF16 => (8, 7),
        Type::F8E4M3 => (4, 3),
        _ => (5, 2),
    };
    let mantissa = (bits & ((1 << mantissa_bits) - 1)) as f64 / f64::from(1 << mantissa_bits);
    let all_ones = (1 << exponent_bits) - 1;
    let exponent = (bits >> mantissa_bits & all_ones) as i32;
    let bias = (1 << (exponent_bits - 1)) - 1;
    let special = exponent == all_ones as i32;
    let magnitude = match ty {
        // f8e4m3 has no infinity: only the all-ones pattern is special, and it is NaN.
        Type::F8E4M3 if bits & 0x7f == 0x7f => f64::NAN,
        Type::F8E4M3 => scaled(mantissa, exponent, bias),
        _ if special && mantissa == 0.0 => f64::INFINITY,
        _ if special => f64::NAN,
        _ => scaled(mantissa, exponent, bias),
    };
    if bits >> (exponent_bits + mantissa_bits) & 1 != 0 { -magnitude } else { magnitude }
}

fn scaled(mantissa: f64, exponent: i32, bias: i32) -> f64 {
    if exponent == 0 { mantissa * 2f64.powi(1 - bias) } else { (1.0 + mantissa) * 2f64.powi(exponent - bias) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn text(ty: Type, bits: u64) -> String {
        Const { ty, bits }.to_string()
    }

    #[test]
    fn numbers_read_as_a_person_would_write_them() {
        assert_eq!(text(Type::I8, 0xff), "-1");
        assert_eq!(text(Type::U8, 0xff), "255");
        assert_eq!(text(Type::I64, i64::MIN as u64), "-9223372036854775808");
        assert_eq!(text(Type::U64, u64::MAX), "18446744073709551615");
        assert_eq!(text(Type::Bool, 1), "true");
        assert_eq!(text(Type::F32, 0.1f32.to_bits().into()), "0.1");
        assert_eq!(text(Type::F64, (-0.0f64).to_bits()), "-0.0");
        assert_eq!(text(Type::F16, 0x2e66), "0.1");
        assert_eq!(text(Type::F16, 0x7bff), "65500.0");
        assert_eq!(text(Type::F16, 0x0001), "6e-8");
        assert_eq!(text(Type::BF16, 0x3f80), "1.0");
        assert_eq!(text(Type::F8E4M3, 0xfe), "-450.0");
        assert_eq!(text(Type::F8E5M2, 0x7b), "60000.0");
    }

    #[test]
    fn what_is_no_number_keeps_its_bits() {
        assert_eq!(text(Type::F32, 0x7fc0_0000), "nan(0x7fc00000)");
        assert_eq!(text(Type::F32, 0xff80_0000), "-inf");
        assert_eq!(text(Type::F8E5M2, 0x7c), "inf");
        assert_eq!(text(Type::F8E4M3, 0x7f), "nan(0x7f)");
        assert_eq!(text(Type::U8, 0x100), "0x100");
        assert_eq!(text(Type::Bool, 2), "0x2");
    }

    #[test]
    fn no_two_narrow_values_share_a_text() {
        for ty in [Type::F16, Type::BF16, Type::F8E4M3, Type::F8E5M2] {
            let texts: HashSet<String> = (0..1u64 << ty.bits()).map(|bits| text(ty, bits)).collect();
            assert_eq!(texts.len(), 1 << ty.bits(), "{ty}");
        }
    }
}
