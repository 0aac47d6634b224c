//! What travels from `produce` to `consume`: one value, or several side by side (a payload and its scale).

use super::ctx::Ctx;
use super::error::MisuseKind;
use super::value::Value;
use crate::ir::scalar::Element;
use crate::ir::{SourceLine, Type};

/// The types of the values one element carries over the wire: `T` for one value, `(A, B)` or `(A, B, C)` for several.
///
/// It names the types only, so that it can be inferred and stored in builders; `Regs::Of<'t>` are the values of one build.
pub trait Regs: 'static {
    /// The values: `Value<'t, T>`, or a tuple of values.
    type Of<'t>: Copy;

    /// Types of the parts, in order.
    const TYPES: &'static [Type];

    /// Hands every part to `to`.
    #[track_caller]
    fn put<'t>(regs: Self::Of<'t>, to: &impl PutParts<'t>);

    /// Takes every part from `from`.
    #[track_caller]
    fn get<'t>(from: &impl GetParts<'t>) -> Self::Of<'t>;

    /// What `consume` does when the user gives none: stores the value at its position. Several values, or one of another type
    /// than the output's, are a misuse at `at`.
    #[doc(hidden)]
    fn store<'t, In: Element, Out: Element>(regs: Self::Of<'t>, c: &Ctx<'t, In, Out>, at: &SourceLine);
}

/// Where the parts of one element go: whoever sends it knows at which byte part `k` lies, and how it is written.
pub trait PutParts<'t> {
    /// Writes part `part`.
    #[track_caller]
    fn put<T: Element>(&self, part: usize, x: Value<'t, T>);
}

/// Where the parts of one element come from.
pub trait GetParts<'t> {
    /// Reads part `part`.
    #[track_caller]
    fn get<T: Element>(&self, part: usize) -> Value<'t, T>;
}

impl<T: Element> Regs for T {
    type Of<'t> = Value<'t, T>;
    const TYPES: &'static [Type] = &[T::TYPE];

    #[track_caller]
    fn put<'t>(regs: Value<'t, T>, to: &impl PutParts<'t>) {
        to.put(0, regs);
    }

    #[track_caller]
    fn get<'t>(from: &impl GetParts<'t>) -> Value<'t, T> {
        from.get(0)
    }

    fn store<'t, In: Element, Out: Element>(regs: Value<'t, T>, c: &Ctx<'t, In, Out>, at: &SourceLine) {
        if T::TYPE == Out::TYPE {
            c.output.store_line(c.pos_line(at), Value::<Out>::new(regs.trace, regs.ir), at);
        } else {
            regs.trace.report(at, MisuseKind::NeedsConsume { carries: Self::TYPES, output: Out::TYPE });
        }
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),*))*) => {$(
        impl<$($name: Element),*> Regs for ($($name,)*) {
            type Of<'t> = ($(Value<'t, $name>,)*);
            const TYPES: &'static [Type] = &[$($name::TYPE),*];

            #[track_caller]
            fn put<'t>(regs: Self::Of<'t>, to: &impl PutParts<'t>) {
                $(to.put($index, regs.$index);)*
            }

            #[track_caller]
            fn get<'t>(from: &impl GetParts<'t>) -> Self::Of<'t> {
                ($(from.get::<$name>($index),)*)
            }

            fn store<'t, In: Element, Out: Element>(regs: Self::Of<'t>, _: &Ctx<'t, In, Out>, at: &SourceLine) {
                regs.0.trace.report(at, MisuseKind::NeedsConsume { carries: Self::TYPES, output: Out::TYPE });
            }
        }
    )*};
}

tuples! {
    (A 0, B 1)
    (A 0, B 1, C 2)
}
