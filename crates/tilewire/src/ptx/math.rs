//! The arithmetic with which `ir/scalar/math.rs` writes PTX: its expansions of exp, log and tanh become instructions.

use super::text::{Hex, Reg, Text};
use crate::ir::scalar::math::{FloatOps, Format};

/// Arithmetic of f32 that appends to a text.
pub(super) struct Ops32<'t>(pub &'t mut Text);

/// Arithmetic of f64 that appends to a text.
pub(super) struct Ops64<'t>(pub &'t mut Text);

macro_rules! ops {
    ($($name:ident, $new:ident, $float:literal, $int:literal, $bits:literal, $format:ident, |$x:ident| $constant:expr, |$i:ident| $integer:expr;)*) => {$(
        impl FloatOps for $name<'_> {
            type F = Reg;
            type I = Reg;
            type B = Reg;
            const FORMAT: Format = Format::$format;

            fn float(&mut self, $x: f64) -> Reg {
                self.0.$new(concat!("mov.", $bits), &[&Hex($constant)])
            }
            fn add(&mut self, a: Reg, b: Reg) -> Reg {
                self.0.$new(concat!("add.rn.", $float), &[&a, &b])
            }
            fn sub(&mut self, a: Reg, b: Reg) -> Reg {
                self.0.$new(concat!("sub.rn.", $float), &[&a, &b])
            }
            fn mul(&mut self, a: Reg, b: Reg) -> Reg {
                self.0.$new(concat!("mul.rn.", $float), &[&a, &b])
            }
            fn div(&mut self, a: Reg, b: Reg) -> Reg {
                self.0.$new(concat!("div.rn.", $float), &[&a, &b])
            }
            fn fma(&mut self, a: Reg, b: Reg, c: Reg) -> Reg {
                self.0.$new(concat!("fma.rn.", $float), &[&a, &b, &c])
            }
            fn equal(&mut self, a: Reg, b: Reg) -> Reg {
                self.0.p(concat!("setp.eq.", $float), &[&a, &b])
            }
            fn less(&mut self, a: Reg, b: Reg) -> Reg {
                self.0.p(concat!("setp.lt.", $float), &[&a, &b])
            }
            fn select(&mut self, condition: Reg, a: Reg, b: Reg) -> Reg {
                self.0.$new(concat!("selp.", $bits), &[&a, &b, &condition])
            }
            fn bits_of(&mut self, x: Reg) -> Reg {
                x
            }
            fn float_of(&mut self, x: Reg) -> Reg {
                x
            }
            fn integer(&mut self, $i: i64) -> Reg {
                self.0.$new(concat!("mov.", $bits), &[&Hex($integer)])
            }
            fn integer_add(&mut self, a: Reg, b: Reg) -> Reg {
                self.0.$new(concat!("add.s", $int), &[&a, &b])
            }
            fn integer_sub(&mut self, a: Reg, b: Reg) -> Reg {
                self.0.$new(concat!("sub.s", $int), &[&a, &b])
            }
            fn integer_and(&mut self, a: Reg, b: Reg) -> Reg {
                self.0.$new(concat!("and.", $bits), &[&a, &b])
            }
            fn integer_or(&mut self, a: Reg, b: Reg) -> Reg {
                self.0.$new(concat!("or.", $bits), &[&a, &b])
            }
            fn shift_left(&mut self, x: Reg, amount: u32) -> Reg {
                self.0.$new(concat!("shl.", $bits), &[&x, &amount])
            }
            fn shift_right(&mut self, x: Reg, amount: u32) -> Reg {
                self.0.$new(concat!("shr.s", $int), &[&x, &amount])
            }
        }
    )*};
}

ops! {
    Ops32, r, "f32", "32", "b32", F32, |x| u64::from((x as f32).to_bits()), |x| u64::from(x as u32);
    Ops64, d, "f64", "64", "b64", F64, |x| x.to_bits(), |x| x as u64;
}
