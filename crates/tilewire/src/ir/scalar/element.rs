//! The Rust type of each element type.

use super::super::types::Type;
use super::narrow::{Bf16, F8E4M3, F8E5M2, F16};
use std::fmt::Debug;

/// A Rust type that represents a [`Type`]. Implemented for exactly the fifteen of them.
///
/// ```
/// use tilewire::ir::{Type, scalar::Element};
/// assert_eq!(<i8 as Element>::TYPE, Type::I8);
/// assert_eq!(Element::to_bits(-1i8), 0xff);
/// assert_eq!(<i8 as Element>::from_bits(0xff), -1);
/// ```
pub trait Element: Copy + Default + Debug + Send + Sync + sealed::Sealed + 'static {
    /// The element type this represents.
    const TYPE: Type;

    /// The element with the low bits of `bits`. A `bool` is true if any bit of the low byte is set.
    fn from_bits(bits: u64) -> Self;

    /// The bits, zero-extended.
    fn to_bits(self) -> u64;
}

/// An [`Element`] of which every bit pattern is a value: all but `bool`. Only such elements may be read in place,
/// because a kernel or a peer may have left any bytes there.
pub trait AnyBits: Element {}

mod sealed {
    /// Keeps the set of element types closed: every engine must know all of them.
    pub trait Sealed {}
}

impl sealed::Sealed for bool {}
impl Element for bool {
    const TYPE: Type = Type::Bool;

    #[inline(always)]
    fn from_bits(bits: u64) -> bool {
        bits as u8 != 0
    }

    #[inline(always)]
    fn to_bits(self) -> u64 {
        u64::from(self)
    }
}

macro_rules! integer_element {
    ($($name:ident as $unsigned:ident = $ty:ident),*) => {$(
        impl sealed::Sealed for $name {}
        impl AnyBits for $name {}
        impl Element for $name {
            const TYPE: Type = Type::$ty;

            #[inline(always)]
            fn from_bits(bits: u64) -> $name {
                bits as $name
            }

            #[inline(always)]
            fn to_bits(self) -> u64 {
                self as $unsigned as u64
            }
        }
    )*};
}

integer_element!(i8 as u8 = I8, i16 as u16 = I16, i32 as u32 = I32, i64 as u64 = I64);
integer_element!(u8 as u8 = U8, u16 as u16 = U16, u32 as u32 = U32, u64 as u64 = U64);

macro_rules! float_element {
    ($($name:ident as $bits:ident = $ty:ident),*) => {$(
        impl sealed::Sealed for $name {}
        impl AnyBits for $name {}
        impl Element for $name {
            const TYPE: Type = Type::$ty;

            #[inline(always)]
            fn from_bits(bits: u64) -> $name {
                $name::from_bits(bits as $bits)
            }

            #[inline(always)]
            fn to_bits(self) -> u64 {
                u64::from($name::to_bits(self))
            }
        }
    )*};
}

float_element!(F16 as u16 = F16, Bf16 as u16 = BF16, f32 as u32 = F32, f64 as u64 = F64);
float_element!(F8E4M3 as u8 = F8E4M3, F8E5M2 as u8 = F8E5M2);
