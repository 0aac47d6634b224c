//! The names of ops in the text form and in messages.

use super::op::{BinaryOp, BulkDone, CompareOp, GroupOp, Order, Scope, Special, UnaryOp};

/// Gives an enum a `name` method and a `Display` that prints it.
macro_rules! names {
    ($($kind:ident { $($variant:ident => $name:literal),* $(,)? })*) => {$(
        impl $kind {
            /// Name in the text form of the IR.
            pub const fn name(self) -> &'static str {
                match self { $($kind::$variant => $name),* }
            }
        }

        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    )*};
}

names! {
    Special {
        Rank => "rank", WorldSize => "world_size", Block => "block", Blocks => "blocks", Copy => "copy",
        Copies => "copies",
    }
    UnaryOp {
        Neg => "neg", Abs => "abs", Not => "not", Sqrt => "sqrt", Rsqrt => "rsqrt", Rcp => "rcp", Exp => "exp",
        Log => "log", Tanh => "tanh", Floor => "floor", Ceil => "ceil", Trunc => "trunc", RoundEven => "round_even",
    }
    BinaryOp {
        Add => "add", Sub => "sub", Mul => "mul", Div => "div", Rem => "rem", MulHi => "mul_hi", Min => "min",
        Max => "max", And => "and", Or => "or", Xor => "xor", Shl => "shl", Shr => "shr",
    }
    CompareOp { Eq => "eq", Ne => "ne", Lt => "lt", Le => "le", Gt => "gt", Ge => "ge" }
    GroupOp { Max => "group_max", Min => "group_min", Sum => "group_sum", Scan => "group_scan" }
    Order { Relaxed => "relaxed", Acquire => "acquire", Release => "release", AcqRel => "acq_rel" }
    Scope { Block => "block", Device => "device", System => "system" }
    BulkDone { Read => "read", Complete => "complete" }
}
