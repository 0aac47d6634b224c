//! The element types and shapes of the language.

use std::fmt;

/// The type of one element. `Bool` occupies one byte in memory: 0 is false, any other byte reads as true, and a
/// store writes 0 or 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[allow(missing_docs)] // the names say it all
pub enum Type {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    BF16,
    F32,
    F64,
    F8E4M3,
    F8E5M2,
}

impl Type {
    /// Every type, in declaration order.
    pub const ALL: [Type; 15] = [
        Type::Bool,
        Type::I8,
        Type::I16,
        Type::I32,
        Type::I64,
        Type::U8,
        Type::U16,
        Type::U32,
        Type::U64,
        Type::F16,
        Type::BF16,
        Type::F32,
        Type::F64,
        Type::F8E4M3,
        Type::F8E5M2,
    ];

    /// A slice of only this type.
    pub(crate) fn alone(self) -> &'static [Type] {
        static ALL: [Type; 15] = Type::ALL;
        let is = ALL.iter().position(|&ty| ty == self).expect("all types are listed");
        &ALL[is..=is]
    }

    /// Size in memory, in bytes; also the natural alignment.
    pub const fn size(self) -> usize {
        match self {
            Type::Bool | Type::I8 | Type::U8 | Type::F8E4M3 | Type::F8E5M2 => 1,
            Type::I16 | Type::U16 | Type::F16 | Type::BF16 => 2,
            Type::I32 | Type::U32 | Type::F32 => 4,
            Type::I64 | Type::U64 | Type::F64 => 8,
        }
    }

    /// Width in bits. A `Bool` is one byte wide in memory and in bit casts.
    pub const fn bits(self) -> u32 {
        self.size() as u32 * 8
    }

    /// True for the six floating-point types.
    pub const fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::BF16 | Type::F32 | Type::F64 | Type::F8E4M3 | Type::F8E5M2)
    }

    /// True for the eight integer types (`Bool` is not one).
    pub const fn is_int(self) -> bool {
        !self.is_float() && !matches!(self, Type::Bool)
    }

    /// True for the signed integer types.
    pub const fn is_signed_int(self) -> bool {
        matches!(self, Type::I8 | Type::I16 | Type::I32 | Type::I64)
    }

    /// Name in the text form of the IR.
    pub const fn name(self) -> &'static str {
        match self {
            Type::Bool => "bool",
            Type::I8 => "i8",
            Type::I16 => "i16",
            Type::I32 => "i32",
            Type::I64 => "i64",
            Type::U8 => "u8",
            Type::U16 => "u16",
            Type::U32 => "u32",
            Type::U64 => "u64",
            Type::F16 => "f16",
            Type::BF16 => "bf16",
            Type::F32 => "f32",
            Type::F64 => "f64",
            Type::F8E4M3 => "f8e4m3",
            Type::F8E5M2 => "f8e5m2",
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a value exists once per role copy or once per element of an `each`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    /// One value for the whole group of lanes. All control flow is on uniform values.
    Uniform,
    /// One value per element of the enclosing `each`.
    Lane,
}
