//! Arithmetic and conversions, as the PTX manual defines them. Registers hold bits, zero-extended to 64.

use tilewire::ir::scalar::{Bf16, F8E4M3, F8E5M2, F16};

/// The result of an instruction that only computes.
pub fn compute(parts: &[String], x: &[u64]) -> Result<u64, String> {
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let ty = *parts.last().expect("an opcode");
    let unknown = || Err(format!("unknown instruction {}", parts.join(".")));
    let f32 = |k: usize| f32::from_bits(x[k] as u32);
    let f64 = |k: usize| f64::from_bits(x[k]);
    let single = |x: f32| u64::from(x.to_bits());
    let (bits, signed) = (ty[1..].parse::<u32>().unwrap_or(1), ty.starts_with('s'));
    let mask = |x: u64| if bits >= 64 { x } else { x & ((1 << bits) - 1) };
    // The value of an operand.
    let int = |k: usize| {
        let x = mask(x[k]);
        if signed && bits < 64 {
            i128::from((x << (64 - bits)) as i64 >> (64 - bits))
        } else if signed {
            i128::from(x as i64)
        } else {
            i128::from(x)
        }
    };
    let float = ty.starts_with('f');
    Ok(match parts[0] {
        // Cache hints change no number.
        "createpolicy" => 0,
        "mov" if ty == "pred" => x[0] & 1,
        "mov" => mask(x[0]),
        "not" => mask(!x[0]),
        "and" => mask(x[0] & x[1]),
        "or" => mask(x[0] | x[1]),
        "xor" => mask(x[0] ^ x[1]),
        "selp" => mask(if x[2] & 1 == 1 { x[0] } else { x[1] }),
        "setp" => u64::from(compare(parts[1], ty, x, int(0), int(1))?),
        "cvt" => return convert(&parts[1..], x),
        "abs" if ty == "f64" => f64(0).abs().to_bits(),
        "neg" if ty == "f64" => (-f64(0)).to_bits(),
        "neg" => mask(0u64.wrapping_sub(x[0])),
        "add" | "sub" | "mul" | "div" | "fma" | "sqrt" | "rcp" if float => {
            if parts[1] != "rn" {
                return unknown();
            }
            match (parts[0], ty) {
                ("add", "f32") => single(f32(0) + f32(1)),
                ("sub", "f32") => single(f32(0) - f32(1)),
                ("mul", "f32") => single(f32(0) * f32(1)),
                ("div", "f32") => single(f32(0) / f32(1)),
                ("fma", "f32") => single(f32(0).mul_add(f32(1), f32(2))),
                ("sqrt", "f32") => single(f32(0).sqrt()),
                ("rcp", "f32") => single(1.0 / f32(0)),
                ("add", _) => (f64(0) + f64(1)).to_bits(),
                ("sub", _) => (f64(0) - f64(1)).to_bits(),
                ("mul", _) => (f64(0) * f64(1)).to_bits(),
                ("div", _) => (f64(0) / f64(1)).to_bits(),
                ("fma", _) => f64(0).mul_add(f64(1), f64(2)).to_bits(),
                ("sqrt", _) => f64(0).sqrt().to_bits(),
                _ => (1.0 / f64(0)).to_bits(),
            }
        }
        "min" | "max" if ty.ends_with("16x2") => extremes(parts[0] == "min", ty == "bf16x2", x),
        "min" | "max" if float => extreme(parts[0] == "min", ty == "f64", x),
        "min" => mask(int(0).min(int(1)) as u64),
        "max" => mask(int(0).max(int(1)) as u64),
        "add" => mask(x[0].wrapping_add(x[1])),
        "sub" => mask(x[0].wrapping_sub(x[1])),
        "mul" if parts[1] == "lo" => mask(x[0].wrapping_mul(x[1])),
        "mul" if parts[1] == "wide" => int(0).wrapping_mul(int(1)) as u64,
        "mul" if parts[1] == "hi" => mask((int(0).wrapping_mul(int(1)) >> bits) as u64),
        "mad" if parts[1] == "lo" => mask(x[0].wrapping_mul(x[1]).wrapping_add(x[2])),
        "div" | "rem" if int(1) == 0 => return Err("division by zero is not defined".into()),
        "div" | "rem" if signed && int(1) == -1 => return Err("the least number by -1 is not defined".into()),
        "div" => mask((int(0) / int(1)) as u64),
        "rem" => mask((int(0) % int(1)) as u64),
        // Shift amounts have 32 bits, and clamp to the width.
        "shl" if x[1] as u32 >= bits => 0,
        "shl" => mask(x[0] << (x[1] as u32)),
        "shr" => mask((int(0) >> (x[1] as u32).min(bits)) as u64),
        "bfe" => {
            let (at, len) = (x[1] as u32, x[2] as u32);
            let field = x[0] >> at & ((1 << len) - 1);
            let field = if signed { (field << (64 - len)) as i64 >> (64 - len) } else { field as i64 };
            u64::from(field as u32)
        }
        "prmt" => {
            let all = x[0] & 0xffff_ffff | x[1] << 32;
            (0..4).map(|k| (all >> (8 * (x[2] >> (4 * k) & 7)) & 0xff) << (8 * k)).sum()
        }
        _ => return unknown(),
    })
}

fn compare(op: &str, ty: &str, x: &[u64], a: i128, b: i128) -> Result<bool, String> {
    use std::cmp::Ordering::*;
    let order = match ty {
        "f32" => f32::from_bits(x[0] as u32).partial_cmp(&f32::from_bits(x[1] as u32)),
        "f64" => f64::from_bits(x[0]).partial_cmp(&f64::from_bits(x[1])),
        _ => Some(a.cmp(&b)),
    };
    Ok(match op {
        "eq" => order == Some(Equal),
        "ne" => order.is_some_and(|order| order != Equal),
        "neu" => order != Some(Equal),
        "lt" => order == Some(Less),
        "le" => order.is_some_and(|order| order != Greater),
        "gt" => order == Some(Greater),
        "ge" => order.is_some_and(|order| order != Less),
        "nan" => order.is_none(),
        _ => return Err(format!("unknown comparison {op}")),
    })
}

/// Minimum or maximum: the other operand wins over NaN, and -0 < +0.
fn extreme(least: bool, wide: bool, x: &[u64]) -> u64 {
    let number = |bits: u64| if wide { f64::from_bits(bits) } else { f64::from(f32::from_bits(bits as u32)) };
    let (a, b) = (number(x[0]), number(x[1]));
    match (a.is_nan(), b.is_nan()) {
        (true, true) if wide => f64::NAN.to_bits(),
        (true, true) => 0x7fff_ffff,
        (true, false) => x[1],
        (false, true) => x[0],
        _ => x[usize::from((a.total_cmp(&b) == std::cmp::Ordering::Less) != least)],
    }
}

/// Does the same with two pairs, half by half.
fn extremes(least: bool, bf16: bool, x: &[u64]) -> u64 {
    let half = |shift: u32| {
        let single = |x: u64| {
            let bits = (x >> shift) as u16;
            let number = if bf16 { Bf16::from_bits(bits).to_f32() } else { F16::from_bits(bits).to_f32() };
            u64::from(number.to_bits())
        };
        let number = f32::from_bits(extreme(least, false, &[single(x[0]), single(x[1])]) as u32);
        u64::from(if bf16 { Bf16::from_f32(number).to_bits() } else { F16::from_f32(number).to_bits() }) << shift
    };
    half(0) | half(16)
}

/// A conversion, from the parts of the instruction's name after `cvt`.
fn convert(parts: &[&str], x: &[u64]) -> Result<u64, String> {
    let [.., to, from] = parts else { return Err("cvt of what".into()) };
    let rounding = &parts[..parts.len() - 2];
    let a = x[0];
    Ok(match (*to, *from) {
        ("f32", "f16") => single(F16::from_bits(a as u16).to_f32()),
        ("f16x2", "e4m3x2") => halves(a, |byte| F8E4M3::from_bits(byte).to_f32()),
        ("f16x2", "e5m2x2") => halves(a, |byte| F8E5M2::from_bits(byte).to_f32()),
        // The first operand is the upper byte.
        ("e4m3x2", "f32") if rounding == ["rn", "satfinite"] => {
            bytes(x, |x| if x.is_nan() { 0x7f } else { F8E4M3::from_f32(x).to_bits() })
        }
        ("e5m2x2", "f32") if rounding == ["rn", "satfinite"] => {
            bytes(x, |x| if x.is_nan() { 0x7f } else { F8E5M2::from_f32(x).to_bits() })
        }
        ("f16x2", "f32") if rounding == ["rn"] => {
            pair(x, |x| if x.is_nan() { 0x7fff } else { F16::from_f32(x).to_bits() })
        }
        ("bf16x2", "f32") if rounding == ["rn"] => {
            pair(x, |x| if x.is_nan() { 0x7fff } else { Bf16::from_f32(x).to_bits() })
        }
        ("f16", "f32") if rounding == ["rn"] => {
            let x = f32::from_bits(a as u32);
            if x.is_nan() { 0x7fff } else { F16::from_f32(x).to_bits().into() }
        }
        ("bf16", "f32") if rounding == ["rn"] => {
            let x = f32::from_bits(a as u32);
            if x.is_nan() { 0x7fff } else { Bf16::from_f32(x).to_bits().into() }
        }
        ("f64", "f32") if rounding.is_empty() => f64::from(f32::from_bits(a as u32)).to_bits(),
        ("f32", "f64") if rounding == ["rn"] => single(f64::from_bits(a) as f32),
        ("f32", "f32") => single(integral(rounding, f32::from_bits(a as u32).into())? as f32),
        ("f64", "f64") => integral(rounding, f64::from_bits(a))?.to_bits(),
        (to, "f32" | "f64") if rounding == ["rzi"] => {
            let wide = *from == "f64" || to.ends_with("64");
            let x = if *from == "f64" { f64::from_bits(a) } else { f64::from(f32::from_bits(a as u32)) };
            match to {
                // The result for NaN if 64 bits are involved.
                _ if x.is_nan() && wide => 1 << (to[1..].parse::<u32>().map_err(|e| e.to_string())? - 1),
                "s32" => u64::from(x as i32 as u32),
                "u32" => u64::from(x as u32),
                "s64" => x as i64 as u64,
                _ => x as u64,
            }
        }
        ("f32", from) if rounding == ["rn"] => single(match from {
            "s32" => a as i32 as f32,
            "u32" => a as u32 as f32,
            "s64" => a as i64 as f32,
            "u64" => a as f32,
            _ => return Err(format!("cvt from {from}")),
        }),
        ("f64", from) if rounding == ["rn"] => match from {
            "s32" => f64::from(a as i32),
            "u32" => f64::from(a as u32),
            "s64" => a as i64 as f64,
            "u64" => a as f64,
            _ => return Err(format!("cvt from {from}")),
        }
        .to_bits(),
        (to, from) if rounding.is_empty() => {
            let number = match from {
                "s8" => i64::from(a as i8),
                "s16" => i64::from(a as i16),
                "s32" => i64::from(a as i32),
                "u16" => i64::from(a as u16),
                "u32" => i64::from(a as u32),
                "u64" | "s64" => a as i64,
                _ => return Err(format!("cvt from {from}")),
            };
            match to {
                "u16" => u64::from(number as u16),
                "s32" | "u32" => u64::from(number as u32),
                "s64" | "u64" => number as u64,
                _ => return Err(format!("cvt to {to}")),
            }
        }
        _ => return Err(format!("unknown cvt.{}", parts.join("."))),
    })
}

fn single(x: f32) -> u64 {
    u64::from(x.to_bits())
}

fn halves(x: u64, widen: impl Fn(u8) -> f32) -> u64 {
    let half = |byte: u8| u64::from(F16::from_f32(widen(byte)).to_bits());
    half(x as u8) | half((x >> 8) as u8) << 16
}

fn bytes(x: &[u64], narrow: impl Fn(f32) -> u8) -> u64 {
    let byte = |bits: u64| u64::from(narrow(f32::from_bits(bits as u32)));
    byte(x[0]) << 8 | byte(x[1])
}

fn pair(x: &[u64], narrow: impl Fn(f32) -> u16) -> u64 {
    let half = |bits: u64| u64::from(narrow(f32::from_bits(bits as u32)));
    half(x[0]) << 16 | half(x[1])
}

fn integral(rounding: &[&str], x: f64) -> Result<f64, String> {
    Ok(match rounding {
        ["rmi"] => x.floor(),
        ["rpi"] => x.ceil(),
        ["rzi"] => x.trunc(),
        ["rni"] => x.round_ties_even(),
        _ => return Err(format!("rounding {rounding:?}")),
    })
}
