//! The intermediate representation.
#![forbid(unsafe_code)]

mod builder;
mod entity;
mod kernel;
mod literal;
mod names;
mod op;
mod print;
pub mod scalar;
mod types;
pub mod typing;
mod verify;

pub use builder::Builder;
pub use entity::{Entity, Inst, ParamId, Region, RoleId, ScratchId, Site, Table, Value, VarId};
pub use kernel::{Access, Def, InstData, Kernel, Param, Role, Scratch, SourceLine, ValueData, Var};
pub use op::{
    Base, BinaryOp, BulkDone, CompareOp, Const, GroupOp, Mask, Op, Order, Place, Scope, Slot, Special, UnaryOp,
};
pub use print::{fingerprint, inst_text};
pub use types::{Shape, Type};
pub use verify::{Fault, VerifyError, VerifyErrors, verify};
