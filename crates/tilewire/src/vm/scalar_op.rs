//! Scalar functions as types, so that a loop can be compiled for each (op, type), and the macros that map the IR's op
//! and type to them.

use crate::ir::scalar::{Arithmetic, Float, Integer};

/// A function of one element.
pub(crate) trait Unary<T> {
    fn apply(x: T) -> T;
}

/// A function of two elements.
pub(crate) trait Binary<T> {
    fn apply(a: T, b: T) -> T;
}

/// A predicate of two elements.
pub(crate) trait Compare<T> {
    fn apply(a: T, b: T) -> bool;
}

macro_rules! unary {
    ($($name:ident: $bound:ident = $method:ident;)*) => {$(
        pub(crate) struct $name;
        impl<T: $bound> Unary<T> for $name {
            #[inline(always)]
            fn apply(x: T) -> T {
                $bound::$method(x)
            }
        }
    )*};
}

macro_rules! binary {
    ($($name:ident: $bound:ident = $method:ident;)*) => {$(
        pub(crate) struct $name;
        impl<T: $bound> Binary<T> for $name {
            #[inline(always)]
            fn apply(a: T, b: T) -> T {
                $bound::$method(a, b)
            }
        }
    )*};
}

unary! {
    Neg: Arithmetic = neg; Abs: Arithmetic = abs; Not: Integer = not;
    Sqrt: Float = sqrt; Rsqrt: Float = rsqrt; Rcp: Float = rcp; Exp: Float = exp; Log: Float = log; Tanh: Float = tanh;
    Floor: Float = floor; Ceil: Float = ceil; Trunc: Float = trunc; RoundEven: Float = round_even;
}

binary! {
    Add: Arithmetic = add; Sub: Arithmetic = sub; Mul: Arithmetic = mul; Div: Arithmetic = div;
    Min: Arithmetic = min; Max: Arithmetic = max;
    Rem: Integer = rem; MulHi: Integer = mul_hi; And: Integer = and; Or: Integer = or; Xor: Integer = xor;
    Shl: Integer = shl; Shr: Integer = shr;
}

/// Logical not of a bool stored as a byte 0 or 1.
pub(crate) struct NotBool;

impl Unary<u8> for NotBool {
    #[inline(always)]
    fn apply(x: u8) -> u8 {
        x ^ 1
    }
}

macro_rules! compare {
    ($($name:ident = |$a:ident, $b:ident| $body:expr;)*) => {$(
        pub(crate) struct $name;
        impl<T: Arithmetic> Compare<T> for $name {
            #[inline(always)]
            fn apply($a: T, $b: T) -> bool {
                $body
            }
        }
    )*};
}

compare! {
    Eq = |a, b| a.equal(b);
    Ne = |a, b| !a.equal(b);
    Lt = |a, b| a.less(b);
    Le = |a, b| a.less_equal(b);
    Gt = |a, b| b.less(a);
    Ge = |a, b| b.less_equal(a);
}

/// `by_type!(float ty, T => expr)`: the expression with `T` the Rust type of `ty`.
macro_rules! by_type {
    (float $ty:expr, $T:ident => $body:expr) => {{
        use $crate::ir::Type as Ty;
        use $crate::ir::scalar::{Bf16, F8E4M3, F8E5M2, F16};
        match $ty {
            Ty::F16 => { type $T = F16; $body }
            Ty::BF16 => { type $T = Bf16; $body }
            Ty::F32 => { type $T = f32; $body }
            Ty::F64 => { type $T = f64; $body }
            Ty::F8E4M3 => { type $T = F8E4M3; $body }
            Ty::F8E5M2 => { type $T = F8E5M2; $body }
            other => unreachable!("{other} is no float; the IR verifier let it pass"),
        }
    }};
    (int $ty:expr, $T:ident => $body:expr) => {{
        use $crate::ir::Type as Ty;
        match $ty {
            Ty::I8 => { type $T = i8; $body }
            Ty::I16 => { type $T = i16; $body }
            Ty::I32 => { type $T = i32; $body }
            Ty::I64 => { type $T = i64; $body }
            // A bool is a byte 0 or 1: and, or, xor, == and != of such bytes are those of bools.
            Ty::U8 | Ty::Bool => { type $T = u8; $body }
            Ty::U16 => { type $T = u16; $body }
            Ty::U32 => { type $T = u32; $body }
            Ty::U64 => { type $T = u64; $body }
            other => unreachable!("{other} is no integer; the IR verifier let it pass"),
        }
    }};
    (number $ty:expr, $T:ident => $body:expr) => {
        if $ty.is_float() {
            by_type!(float $ty, $T => $body)
        } else {
            by_type!(int $ty, $T => $body)
        }
    };
}
pub(crate) use by_type;

/// The expression with `O` the type of a unary op and `T` the Rust type of its element.
macro_rules! by_unary {
    ($op:expr, $ty:expr, ($O:ident, $T:ident) => $body:expr) => {{
        use $crate::ir::UnaryOp as Op;
        use $crate::vm::scalar_op as so;
        match $op {
            Op::Neg => { type $O = so::Neg; so::by_type!(number $ty, $T => $body) }
            Op::Abs => { type $O = so::Abs; so::by_type!(number $ty, $T => $body) }
            Op::Not if $ty == $crate::ir::Type::Bool => { type $O = so::NotBool; type $T = u8; $body }
            Op::Not => { type $O = so::Not; so::by_type!(int $ty, $T => $body) }
            Op::Sqrt => { type $O = so::Sqrt; so::by_type!(float $ty, $T => $body) }
            Op::Rsqrt => { type $O = so::Rsqrt; so::by_type!(float $ty, $T => $body) }
            Op::Rcp => { type $O = so::Rcp; so::by_type!(float $ty, $T => $body) }
            Op::Exp => { type $O = so::Exp; so::by_type!(float $ty, $T => $body) }
            Op::Log => { type $O = so::Log; so::by_type!(float $ty, $T => $body) }
            Op::Tanh => { type $O = so::Tanh; so::by_type!(float $ty, $T => $body) }
            Op::Floor => { type $O = so::Floor; so::by_type!(float $ty, $T => $body) }
            Op::Ceil => { type $O = so::Ceil; so::by_type!(float $ty, $T => $body) }
            Op::Trunc => { type $O = so::Trunc; so::by_type!(float $ty, $T => $body) }
            Op::RoundEven => { type $O = so::RoundEven; so::by_type!(float $ty, $T => $body) }
        }
    }};
}
pub(crate) use by_unary;

/// The expression with `O` the type of a binary op and `T` the Rust type of its elements.
macro_rules! by_binary {
    ($op:expr, $ty:expr, ($O:ident, $T:ident) => $body:expr) => {{
        use $crate::ir::BinaryOp as Op;
        use $crate::vm::scalar_op as so;
        match $op {
            Op::Add => { type $O = so::Add; so::by_type!(number $ty, $T => $body) }
            Op::Sub => { type $O = so::Sub; so::by_type!(number $ty, $T => $body) }
            Op::Mul => { type $O = so::Mul; so::by_type!(number $ty, $T => $body) }
            Op::Div => { type $O = so::Div; so::by_type!(number $ty, $T => $body) }
            Op::Min => { type $O = so::Min; so::by_type!(number $ty, $T => $body) }
            Op::Max => { type $O = so::Max; so::by_type!(number $ty, $T => $body) }
            Op::Rem => { type $O = so::Rem; so::by_type!(int $ty, $T => $body) }
            Op::MulHi => { type $O = so::MulHi; so::by_type!(int $ty, $T => $body) }
            Op::And => { type $O = so::And; so::by_type!(int $ty, $T => $body) }
            Op::Or => { type $O = so::Or; so::by_type!(int $ty, $T => $body) }
            Op::Xor => { type $O = so::Xor; so::by_type!(int $ty, $T => $body) }
            Op::Shl => { type $O = so::Shl; so::by_type!(int $ty, $T => $body) }
            Op::Shr => { type $O = so::Shr; so::by_type!(int $ty, $T => $body) }
        }
    }};
}
pub(crate) use by_binary;

/// The expression with `O` the type of a comparison and `T` the Rust type of its elements.
macro_rules! by_compare {
    ($op:expr, $ty:expr, ($O:ident, $T:ident) => $body:expr) => {{
        use $crate::ir::CompareOp as Op;
        use $crate::vm::scalar_op as so;
        match $op {
            Op::Eq => { type $O = so::Eq; so::by_type!(number $ty, $T => $body) }
            Op::Ne => { type $O = so::Ne; so::by_type!(number $ty, $T => $body) }
            Op::Lt => { type $O = so::Lt; so::by_type!(number $ty, $T => $body) }
            Op::Le => { type $O = so::Le; so::by_type!(number $ty, $T => $body) }
            Op::Gt => { type $O = so::Gt; so::by_type!(number $ty, $T => $body) }
            Op::Ge => { type $O = so::Ge; so::by_type!(number $ty, $T => $body) }
        }
    }};
}
pub(crate) use by_compare;
