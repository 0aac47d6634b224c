//! The payload from `produce` to `consume`: one value, or several together (a value and its scale).

use super::value::{AnyValue, Value};
use crate::ir::Type;
use crate::ir::scalar::Element;

/// The types of the values one element carries over the wire: `T` for one value, `(A, B)` or `(A, B, C)` for several.
///
/// It names only the types, so that it can be inferred and stored in builders; `Regs::Of<'t>` are the values of one
/// build. Schedules and transports see a [`Payload`] instead, and are compiled once.
pub trait Regs: 'static {
    /// The values: `Value<'t, T>`, or a tuple of values.
    type Of<'t>: Copy;

    /// Types of the parts, in order.
    const TYPES: &'static [Type];

    /// The values without their types.
    fn erase<'t>(regs: Self::Of<'t>) -> Payload<'t>;

    /// The values with their types.
    ///
    /// # Panics
    /// If their types differ.
    fn restore<'t>(payload: Payload<'t>) -> Self::Of<'t>;
}

/// The values that travel for one element; their types are known only while tracing.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'t> {
    /// If there are fewer than three, the first is repeated.
    parts: [AnyValue<'t>; 3],
    len: usize,
}

impl<'t> Payload<'t> {
    /// These parts, in order.
    ///
    /// # Panics
    /// If there are no values, or more than three.
    pub fn new(parts: &[AnyValue<'t>]) -> Payload<'t> {
        assert!((1..=3).contains(&parts.len()), "{} parts, of one to three", parts.len());
        let mut all = [parts[0]; 3];
        all[..parts.len()].copy_from_slice(parts);
        Payload { parts: all, len: parts.len() }
    }

    /// The parts, in order.
    pub fn parts(&self) -> &[AnyValue<'t>] {
        &self.parts[..self.len]
    }

    /// The only part.
    ///
    /// # Panics
    /// If there are several.
    pub(crate) fn only(self) -> AnyValue<'t> {
        assert_eq!(self.len, 1, "one value");
        self.parts[0]
    }
}

impl<'t> From<AnyValue<'t>> for Payload<'t> {
    fn from(value: AnyValue<'t>) -> Self {
        Payload { parts: [value; 3], len: 1 }
    }
}

impl<T: Element> Regs for T {
    type Of<'t> = Value<'t, T>;
    const TYPES: &'static [Type] = &[T::TYPE];

    fn erase<'t>(regs: Self::Of<'t>) -> Payload<'t> {
        AnyValue::from(regs).into()
    }

    fn restore<'t>(payload: Payload<'t>) -> Value<'t, T> {
        payload.only().typed()
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),*))*) => {$(
        impl<$($name: Element),*> Regs for ($($name,)*) {
            type Of<'t> = ($(Value<'t, $name>,)*);
            const TYPES: &'static [Type] = &[$($name::TYPE),*];

            fn erase<'t>(regs: Self::Of<'t>) -> Payload<'t> {
                Payload::new(&[$(regs.$index.into()),*])
            }

            fn restore<'t>(payload: Payload<'t>) -> Self::Of<'t> {
                assert_eq!(payload.len, Self::TYPES.len(), "as many values");
                ($(payload.parts[$index].typed::<$name>(),)*)
            }
        }
    )*};
}

tuples! {
    (A 0, B 1)
    (A 0, B 1, C 2)
}
