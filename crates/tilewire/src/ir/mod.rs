//! The intermediate representation.
#![forbid(unsafe_code)]

mod entity;
mod op;
pub mod scalar;
mod types;

pub use entity::{Entity, Inst, ParamId, Region, RoleId, ScratchId, Site, Table, Value, VarId};
pub use op::{
    Base, BinaryOp, BulkDone, CompareOp, Const, GroupOp, Mask, Op, Order, Place, Scope, Slot, Special, UnaryOp,
};
pub use types::{Shape, Type};
