//! Traced values, and the types that convert to them.

use super::error::MisuseKind;
use super::trace::{Brand, Trace};
use crate::ir::scalar::{Element, Integer};
use crate::ir::{self, BinaryOp, Op, SourceLine, Type};
use crate::tensor::Scalar;
use std::fmt;
use std::marker::PhantomData;

/// A value of type `T` in the kernel being traced: not a number, but a placeholder for one when the kernel runs.
///
/// `'t` is the brand of one build. It is invariant and every build has its own, so a value can neither leave its build
/// nor meet a value of another:
///
/// ```compile_fail
/// use tilewire::{Value, kernel};
/// let escaped: std::cell::Cell<Option<Value<'_, i64>>> = Default::default();
/// let _ = kernel("k", |k| k.main(|r| escaped.set(Some(r.rank()))));
/// ```
///
/// ```compile_fail
/// use tilewire::kernel;
/// let _ = kernel("outer", |k| {
///     k.main(|r| {
///         let outer = r.rank();
///         let _ = kernel("inner", |k| k.main(|r| { let _ = r.rank() + outer; }));
///     })
/// });
/// ```
///
/// Comparisons are methods that return a `Value<bool>`. There is no `==`, `<` or `if` on traced values, because the
/// host cannot know the answer while tracing:
///
/// ```compile_fail
/// use tilewire::kernel;
/// let _ = kernel("k", |k| k.main(|r| { let _ = r.rank() == r.block(); }));
/// ```
///
/// ```
/// use tilewire::kernel;
/// let traced = kernel("k", |k| {
///     k.main(|r| r.if_(r.rank().eq(0), || r.barrier()));
/// })?;
/// assert_eq!(traced.kernel.roles.len(), 1);
/// # Ok::<(), tilewire::BuildError>(())
/// ```
pub struct Value<'t, T> {
    pub(crate) trace: &'t Trace,
    pub(crate) ir: ir::Value,
    brand: Brand<'t>,
    element: PhantomData<T>,
}

impl<'t, T: Element> Value<'t, T> {
    pub(crate) fn new(trace: &'t Trace, ir: ir::Value) -> Self {
        Value { trace, ir, brand: PhantomData, element: PhantomData }
    }

    /// The value's name in the IR, to find it there.
    pub fn id(self) -> ir::Value {
        self.ir
    }
}

impl<T> Clone for Value<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Value<'_, T> {}

impl<T: Element> fmt::Debug for Value<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.ir, T::TYPE)
    }
}

/// A traced value whose type is known only while tracing, for schedules and transports. Like [`Value`] it has the brand
/// of its build:
///
/// ```compile_fail
/// use tilewire::hook::AnyValue;
/// use tilewire::kernel;
/// let escaped: std::cell::Cell<Option<AnyValue<'_>>> = Default::default();
/// let _ = kernel("k", |k| k.main(|r| escaped.set(Some(r.rank().into()))));
/// ```
///
/// ```compile_fail
/// use tilewire::hook::AnyValue;
/// fn shrinks<'long: 'short, 'short>(x: AnyValue<'long>) -> AnyValue<'short> {
///     x // invariant: a brand does not shrink
/// }
/// ```
#[derive(Clone, Copy)]
pub struct AnyValue<'t> {
    pub(crate) trace: &'t Trace,
    pub(crate) ir: ir::Value,
    brand: Brand<'t>,
}

impl<'t> AnyValue<'t> {
    pub(crate) fn new(trace: &'t Trace, ir: ir::Value) -> Self {
        AnyValue { trace, ir, brand: PhantomData }
    }

    /// Its type.
    pub fn ty(self) -> Type {
        self.trace.kernel().ty(self.ir)
    }

    /// The same value with its type.
    ///
    /// # Panics
    /// If it has another type: a build error, in a kernel being traced.
    pub fn typed<T: Element>(self) -> Value<'t, T> {
        assert_eq!(self.ty(), T::TYPE, "the type of {}", self.ir);
        Value::new(self.trace, self.ir)
    }

    /// As [`Value::cast`].
    #[track_caller]
    pub(crate) fn cast(self, to: Type) -> AnyValue<'t> {
        match self.ty() == to {
            true => self,
            false => self.then(Op::Cast { x: self.ir, to }, &SourceLine::caller()),
        }
    }

    /// A binary op on two values of one type.
    #[track_caller]
    pub(crate) fn binary(self, op: BinaryOp, other: AnyValue<'t>) -> AnyValue<'t> {
        self.then(Op::Binary { op, a: self.ir, b: other.ir }, &SourceLine::caller())
    }

    /// `a` if the condition holds, otherwise `b`.
    #[track_caller]
    pub(crate) fn select(condition: Value<'t, bool>, a: AnyValue<'t>, b: AnyValue<'t>) -> AnyValue<'t> {
        a.then(Op::Select { cond: condition.ir, a: a.ir, b: b.ir }, &SourceLine::caller())
    }

    /// The bits of an eight-byte value as a `u64`.
    pub(crate) fn to_word(self, at: &SourceLine) -> Value<'t, u64> {
        Value::new(self.trace, self.reinterpret(Type::U64, at).ir)
    }

    /// A value of an eight-byte type with these bits.
    pub(crate) fn from_word(word: Value<'t, u64>, ty: Type, at: &SourceLine) -> AnyValue<'t> {
        AnyValue::from(word).reinterpret(ty, at)
    }

    /// Value `k` of those of this type that are packed in a word, the first in its lowest bits.
    #[track_caller]
    pub(crate) fn in_word(word: Value<'t, u64>, ty: Type, k: usize) -> AnyValue<'t> {
        let at = SourceLine::caller();
        let low = if k == 0 { word } else { word >> (8 * ty.size() * k) as u64 };
        let bits = match ty.size() {
            1 => AnyValue::from(low.cast::<u8>()),
            2 => AnyValue::from(low.cast::<u16>()),
            4 => AnyValue::from(low.cast::<u32>()),
            _ => AnyValue::from(low),
        };
        bits.reinterpret(ty, &at)
    }

    fn reinterpret(self, to: Type, at: &SourceLine) -> AnyValue<'t> {
        if self.ty() == to { self } else { self.then(Op::Bitcast { x: self.ir, to }, at) }
    }

    fn then(self, op: Op, at: &SourceLine) -> AnyValue<'t> {
        AnyValue::new(self.trace, self.trace.raw(op, at))
    }
}

impl<'t, T: Element> From<Value<'t, T>> for AnyValue<'t> {
    fn from(value: Value<'t, T>) -> Self {
        AnyValue::new(value.trace, value.ir)
    }
}

impl fmt::Debug for AnyValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.ir, self.ty())
    }
}

/// Types that can be used as a value of type `T`: a traced value, a Rust number (a constant of the kernel), or a
/// `&Scalar<T>` (read when a launch starts).
pub trait IntoValue<'t, T: Element> {
    #[doc(hidden)]
    fn into_ir(self, trace: &'t Trace, at: &SourceLine) -> ir::Value;
}

impl<'t, T: Element> IntoValue<'t, T> for Value<'t, T> {
    fn into_ir(self, _: &'t Trace, _: &SourceLine) -> ir::Value {
        self.ir
    }
}

impl<'t, T: Element> IntoValue<'t, T> for T {
    fn into_ir(self, trace: &'t Trace, at: &SourceLine) -> ir::Value {
        trace.constant(T::TYPE, self.to_bits(), at)
    }
}

impl<'t, T: Element> IntoValue<'t, T> for &Scalar<T> {
    fn into_ir(self, trace: &'t Trace, at: &SourceLine) -> ir::Value {
        let param = trace.scalar(T::TYPE, self.memory());
        trace.raw(Op::Scalar(param), at)
    }
}

/// Types that can be used as an index, an extent, a peer or a signal value: a traced integer of any type, a Rust
/// integer, or a `&Scalar` of an integer.
pub trait IntoIndex<'t> {
    /// The number, if known while tracing.
    #[doc(hidden)]
    fn number(&self) -> Option<i128>;
    /// The traced value, if it is one of type `i64`.
    #[doc(hidden)]
    fn id(&self) -> Option<ir::Value> {
        None
    }
    /// A value of type `ty` (`I64` or `U64`).
    #[doc(hidden)]
    fn into_index(self, trace: &'t Trace, ty: Type, at: &SourceLine) -> ir::Value;
}

impl<'t, I: Integer> IntoIndex<'t> for Value<'t, I> {
    fn number(&self) -> Option<i128> {
        None
    }
    fn id(&self) -> Option<ir::Value> {
        (I::TYPE == Type::I64).then_some(self.ir)
    }
    fn into_index(self, trace: &'t Trace, ty: Type, at: &SourceLine) -> ir::Value {
        if I::TYPE == ty { self.ir } else { trace.raw(Op::Cast { x: self.ir, to: ty }, at) }
    }
}

impl<'t, I: Integer> IntoIndex<'t> for &Scalar<I> {
    fn number(&self) -> Option<i128> {
        None
    }
    fn into_index(self, trace: &'t Trace, ty: Type, at: &SourceLine) -> ir::Value {
        Value::<I>::new(trace, self.into_ir(trace, at)).into_index(trace, ty, at)
    }
}

macro_rules! rust_integers {
    ($($name:ident)*) => {$(
        impl<'t> IntoIndex<'t> for $name {
            fn number(&self) -> Option<i128> {
                Some(*self as i128)
            }
            fn into_index(self, trace: &'t Trace, ty: Type, at: &SourceLine) -> ir::Value {
                number(trace, self as i128, ty, at)
            }
        }
    )*};
}

rust_integers!(i8 i16 i32 i64 isize u8 u16 u32 u64 usize);

/// A constant of type `I64` or `U64`; a number that does not fit is a misuse.
pub(crate) fn number(trace: &Trace, number: i128, ty: Type, at: &SourceLine) -> ir::Value {
    let bits = match ty {
        Type::U64 => u64::try_from(number).ok(),
        _ => i64::try_from(number).ok().map(|n| n as u64),
    };
    let bits = bits.unwrap_or_else(|| {
        trace.report(at, MisuseKind::ConstantRange { number, ty });
        0
    });
    trace.constant(ty, bits, at)
}

impl<'t> Value<'t, i64> {
    /// This value, which the caller knows to be one of `0..extent`.
    pub(crate) fn within(self, extent: usize) -> Self {
        self.trace.declare_below(self.ir, extent);
        self
    }
}

/// An `i64` that may be known while tracing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Known<'t> {
    Number(i64),
    Value(Value<'t, i64>),
}

impl<'t> Known<'t> {
    /// A uniform index; a lane value is a misuse of `what`.
    pub(crate) fn uniform(
        trace: &'t Trace,
        what: &'static str,
        index: impl IntoIndex<'t>,
        at: &SourceLine,
    ) -> Known<'t> {
        Known::any(trace, index, at).uniform_or_report(trace, what, at)
    }

    fn uniform_or_report(self, trace: &'t Trace, what: &'static str, at: &SourceLine) -> Known<'t> {
        match self {
            Known::Value(v) => Known::Value(Value::new(trace, trace.uniform(what, v.ir, at))),
            number => number,
        }
    }

    /// The value, which must be uniform: a lane value is a misuse of `what`.
    pub(crate) fn as_uniform(self, trace: &'t Trace, what: &'static str, at: &SourceLine) -> ir::Value {
        self.uniform_or_report(trace, what, at).ir(trace, at)
    }

    /// An index, uniform or lane.
    pub(crate) fn any(trace: &'t Trace, index: impl IntoIndex<'t>, at: &SourceLine) -> Known<'t> {
        match index.number().map(i64::try_from) {
            Some(Ok(number)) => Known::Number(number),
            _ => Known::Value(Value::new(trace, index.into_index(trace, Type::I64, at))),
        }
    }

    pub(crate) fn ir(self, trace: &'t Trace, at: &SourceLine) -> ir::Value {
        match self {
            Known::Number(n) => trace.constant(Type::I64, n as u64, at),
            Known::Value(v) => v.ir,
        }
    }
}

impl<'t> IntoIndex<'t> for Known<'t> {
    fn number(&self) -> Option<i128> {
        match self {
            Known::Number(number) => Some((*number).into()),
            Known::Value(_) => None,
        }
    }
    fn id(&self) -> Option<ir::Value> {
        match self {
            Known::Number(_) => None,
            Known::Value(value) => Some(value.ir),
        }
    }
    fn into_index(self, trace: &'t Trace, ty: Type, at: &SourceLine) -> ir::Value {
        match self {
            Known::Number(n) => number(trace, n.into(), ty, at),
            Known::Value(value) => value.into_index(trace, ty, at),
        }
    }
}
