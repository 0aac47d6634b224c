//! Arithmetic on traced values: Rust's operators, and methods for ops without an operator.
//!
//! An op exists only for types where it has a meaning, so most mistakes do not compile. The exact result of each op is
//! defined at [`UnaryOp`], [`BinaryOp`], [`CompareOp`], [`GroupOp`](crate::ir::GroupOp) and [`Op::Cast`].

use super::error::MisuseKind;
use super::value::{IntoValue, Value};
use crate::ir::scalar::{Bf16, Element, F8E4M3, F8E5M2, F16, Float, Integer, Number};
use crate::ir::{BinaryOp, CompareOp, GroupOp, Op, SourceLine, UnaryOp};
use crate::tensor::Scalar;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

/// Types with bitwise (integers) or logical (bool) `&`, `|`, `^` and `!`.
pub trait Bits: Element {}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self) -> Value<'t, T> {
            self.unary(UnaryOp::$op)
        }
    )*};
}

macro_rules! methods_of_two {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self, other: impl IntoValue<'t, T>) -> Value<'t, T> {
            self.binary(BinaryOp::$op, other)
        }
    )*};
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self, other: impl IntoValue<'t, T>) -> Value<'t, bool> {
            self.compare(CompareOp::$op, other)
        }
    )*};
}

macro_rules! group_methods {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self, size: u32) -> Value<'t, T> {
            self.group(GroupOp::$op, stringify!($name), size)
        }
    )*};
}

impl<'t, T: Element> Value<'t, T> {
    comparisons! {
        /// True if the two are equal (floats as IEEE: NaN equals nothing).
        eq => Eq;
        /// True if the two differ (floats as IEEE: NaN differs from everything).
        ne => Ne;
    }

    /// Conversion with defined rounding; see [`Op::Cast`].
    #[track_caller]
    pub fn cast<U: Element>(self) -> Value<'t, U> {
        if T::TYPE == U::TYPE {
            return Value::new(self.trace, self.ir);
        }
        self.trace.value(Op::Cast { x: self.ir, to: U::TYPE }, &SourceLine::caller())
    }

    #[track_caller]
    fn unary(self, op: UnaryOp) -> Value<'t, T> {
        self.trace.value(Op::Unary { op, x: self.ir }, &SourceLine::caller())
    }

    #[track_caller]
    fn binary(self, op: BinaryOp, other: impl IntoValue<'t, T>) -> Value<'t, T> {
        let at = SourceLine::caller();
        let b = other.into_ir(self.trace, &at);
        self.trace.value(Op::Binary { op, a: self.ir, b }, &at)
    }

    #[track_caller]
    fn compare(self, op: CompareOp, other: impl IntoValue<'t, T>) -> Value<'t, bool> {
        let at = SourceLine::caller();
        let b = other.into_ir(self.trace, &at);
        self.trace.value(Op::Compare { op, a: self.ir, b }, &at)
    }
}

impl<'t, T: Number> Value<'t, T> {
    comparisons! {
        /// True if this is less than the other.
        lt => Lt;
        /// True if this is less than the other or equal.
        le => Le;
        /// True if this is greater than the other.
        gt => Gt;
        /// True if this is greater than the other or equal.
        ge => Ge;
    }

    methods_of_two! {
        /// The smaller; NaN loses.
        min => Min;
        /// The larger; NaN loses.
        max => Max;
    }

    methods! {
        /// Absolute value.
        abs => Abs;
    }

    /// The same bits as another type of the same size; other sizes do not compile.
    ///
    /// ```compile_fail
    /// # use tilewire::kernel;
    /// let _ = kernel("k", |k| k.main(|r| { r.rank().bitcast::<f32>(); }));
    /// ```
    #[track_caller]
    pub fn bitcast<U: Number>(self) -> Value<'t, U> {
        const { assert!(T::TYPE.size() == U::TYPE.size(), "bit cast between types of different size") };
        self.trace.value(Op::Bitcast { x: self.ir, to: U::TYPE }, &SourceLine::caller())
    }

    group_methods! {
        /// Largest of each group of `size` neighbouring elements; only in an `each`.
        group_max => Max;
        /// Smallest of each group of `size` neighbouring elements; only in an `each`.
        group_min => Min;
        /// Sum of each group of `size` neighbouring elements, neighbours paired first; only in an `each`.
        group_sum => Sum;
        /// Inclusive prefix sum in each group of `size` neighbouring elements; only in an `each`.
        group_scan => Scan;
    }

    #[track_caller]
    fn group(self, op: GroupOp, name: &'static str, size: u32) -> Value<'t, T> {
        let at = SourceLine::caller();
        if size == 0 {
            self.trace.report(&at, MisuseKind::ZeroGroup);
            return self;
        }
        if !self.trace.only_in_each(name, &at) {
            return self;
        }
        self.trace.value(Op::Group { op, x: self.ir, size }, &at)
    }
}

impl<'t, T: Integer> Value<'t, T> {
    methods_of_two! {
        /// High half of the double-width product.
        mul_hi => MulHi;
    }
}

impl<'t, T: Float> Value<'t, T> {
    methods! {
        /// Square root, correctly rounded.
        sqrt => Sqrt;
        /// `1 / sqrt(x)`: a correctly rounded root, then a correctly rounded division.
        rsqrt => Rsqrt;
        /// `1 / x`, correctly rounded.
        rcp => Rcp;
        /// `e^x`, the same bits on every engine. In f32 at most 1.06 ulp from the exact value.
        exp => Exp;
        /// Natural logarithm, the same bits on every engine. In f32 at most 0.86 ulp from the exact value.
        log => Log;
        /// Hyperbolic tangent, the same bits on every engine. In f32 at most 2.42 ulp from the exact value.
        tanh => Tanh;
        /// Rounded down to an integral value.
        floor => Floor;
        /// Rounded up to an integral value.
        ceil => Ceil;
        /// Rounded towards zero to an integral value.
        trunc => Trunc;
        /// Rounded to the nearest integral value, ties to even.
        round_even => RoundEven;
    }

    /// `self * b + c`, rounded once.
    #[track_caller]
    pub fn fma(self, b: impl IntoValue<'t, T>, c: impl IntoValue<'t, T>) -> Value<'t, T> {
        let at = SourceLine::caller();
        let (b, c) = (b.into_ir(self.trace, &at), c.into_ir(self.trace, &at));
        self.trace.value(Op::Fma { a: self.ir, b, c }, &at)
    }
}

impl<'t> Value<'t, bool> {
    /// `a` if true, `b` if false; both are computed.
    #[track_caller]
    pub fn select<T: Element>(self, a: impl IntoValue<'t, T>, b: impl IntoValue<'t, T>) -> Value<'t, T> {
        let at = SourceLine::caller();
        let (a, b) = (a.into_ir(self.trace, &at), b.into_ir(self.trace, &at));
        self.trace.value(Op::Select { cond: self.ir, a, b }, &at)
    }

    /// True if both are true; both are computed.
    #[track_caller]
    pub fn and(self, other: impl IntoValue<'t, bool>) -> Value<'t, bool> {
        self.binary(BinaryOp::And, other)
    }

    /// True if at least one is true; both are computed.
    #[track_caller]
    pub fn or(self, other: impl IntoValue<'t, bool>) -> Value<'t, bool> {
        self.binary(BinaryOp::Or, other)
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident $bound:ident;)*) => {$(
        impl<'t, T: $bound, R: IntoValue<'t, T>> $trait<R> for Value<'t, T> {
            type Output = Value<'t, T>;
            #[track_caller]
            fn $method(self, other: R) -> Value<'t, T> {
                self.binary(BinaryOp::$op, other)
            }
        }

        impl<'t, T: $bound> $trait<Value<'t, T>> for &Scalar<T> {
            type Output = Value<'t, T>;
            #[track_caller]
            fn $method(self, other: Value<'t, T>) -> Value<'t, T> {
                left(self, other).binary(BinaryOp::$op, other)
            }
        }
    )*};
}

operators! {
    Add add Add Number;
    Sub sub Sub Number;
    Mul mul Mul Number;
    Div div Div Number;
    Rem rem Rem Integer;
    BitAnd bitand And Bits;
    BitOr bitor Or Bits;
    BitXor bitxor Xor Bits;
    Shl shl Shl Integer;
    Shr shr Shr Integer;
}

macro_rules! number_on_the_left {
    ($name:ident: $($trait:ident $method:ident $op:ident)*) => {$(
        impl<'t> $trait<Value<'t, $name>> for $name {
            type Output = Value<'t, $name>;
            #[track_caller]
            fn $method(self, other: Value<'t, $name>) -> Value<'t, $name> {
                left(self, other).binary(BinaryOp::$op, other)
            }
        }
    )*};
}

macro_rules! floats_on_the_left {
    ($($name:ident)*) => {$(
        number_on_the_left!($name: Add add Add Sub sub Sub Mul mul Mul Div div Div);
    )*};
}

macro_rules! integers_on_the_left {
    ($($name:ident)*) => {$(
        impl Bits for $name {}
        number_on_the_left!($name: Add add Add Sub sub Sub Mul mul Mul Div div Div Rem rem Rem Shl shl Shl Shr shr Shr);
        number_on_the_left!($name: BitAnd bitand And BitOr bitor Or BitXor bitxor Xor);
    )*};
}

floats_on_the_left!(F16 Bf16 f32 f64 F8E4M3 F8E5M2);
integers_on_the_left!(i8 i16 i32 i64 u8 u16 u32 u64);
impl Bits for bool {}

/// Makes a left operand that is not a traced value yet one in the trace of the right operand.
#[track_caller]
fn left<'t, T: Element>(number: impl IntoValue<'t, T>, other: Value<'t, T>) -> Value<'t, T> {
    Value::new(other.trace, number.into_ir(other.trace, &SourceLine::caller()))
}

impl<'t, T: Number> Neg for Value<'t, T> {
    type Output = Value<'t, T>;
    #[track_caller]
    fn neg(self) -> Value<'t, T> {
        self.unary(UnaryOp::Neg)
    }
}

impl<'t, T: Bits> Not for Value<'t, T> {
    type Output = Value<'t, T>;
    #[track_caller]
    fn not(self) -> Value<'t, T> {
        self.unary(UnaryOp::Not)
    }
}
