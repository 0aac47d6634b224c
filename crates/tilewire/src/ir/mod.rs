//! The intermediate representation: what a kernel is, whoever wrote it and whatever runs it.
//!
//! ```text
//!  Builder ──▶ Kernel ──verify──▶ legal kernel ──simplify──▶ smaller kernel ──access──▶ what code generators need
//!                 └──print──▶ text                                  scalar: what one op does to one element
//! ```
//!
//! - **In**: ops, one by one, through a [`Builder`]. **Out**: a [`Kernel`], plain data, with everything that is wrong with it
//!   ([`verify`]), a smaller one with the same effects ([`simplify`]), its text (`Display`), how its accesses walk through memory
//!   ([`access`]), and the meaning of its arithmetic, bit for bit ([`scalar`]).
//! - **Invariants**: a verified kernel needs no further check by any stage; control flow is on uniform values only; there is
//!   no barrier wider than a role copy; every op states its meaning and its ordering at [`Op`]; two traces of one program
//!   print alike.
//! - **Must not know**: every other stage. Nothing here knows who traces, which engine runs, or what a peer is beyond a number.
//!
//! | file | holds |
//! |---|---|
//! | `types.rs` | [`Type`], [`Shape`]: element types, uniform or lane |
//! | `op.rs` | [`Op`]: the whole vocabulary |
//! | `entity.rs` | typed indices and the tables they index |
//! | `kernel.rs` | [`Kernel`]: parameters, roles and the arenas of their code |
//! | `builder.rs`, `typing.rs` | building kernels; what type an op's result has |
//! | `purpose.rs` | [`Purpose`]: what the memory of a parameter is for |
//! | `matching.rs` | words and flags that carry the number of an operation |
//! | `verify/` | [`verify`]: which kernels are legal |
//! | `names.rs`, `literal.rs`, `print.rs` | the text form |
//! | `quick_map.rs` | maps of ids, for all who build |
//! | `scalar/` | what one op does to one element |
//! | `affine.rs`, `facts.rs`, `access/` | what is known of indices and accesses before the kernel runs |
//! | `simplify/` | [`simplify`]: folding, sharing, hoisting, division by constants, dead code |
//!
//! ```
//! use tilewire::ir::{simplify, verify};
//! use tilewire::{Tensor, kernel};
//! let x = Tensor::<f32>::zeros(64);
//! let traced = kernel("halve", |k| {
//!     let x = k.inout(&x);
//!     k.main(|r| r.each(x.len(), |i| x.store(i, x.load(i) * 0.5)));
//! })?;
//! verify(&traced.kernel).expect("a traced kernel is legal");
//! println!("{}", simplify(&traced.kernel));
//! # Ok::<(), tilewire::BuildError>(())
//! ```
#![forbid(unsafe_code)]

pub mod access;
mod affine;
mod builder;
mod entity;
mod facts;
mod kernel;
mod literal;
pub mod matching;
mod names;
mod op;
mod print;
mod purpose;
mod quick_map;
pub mod scalar;
mod simplify;
mod types;
pub mod typing;
mod verify;

pub use affine::{Affine, Uniform};
pub use builder::Builder;
pub use entity::{Entity, Inst, ParamId, Region, RoleId, ScratchId, Site, Table, Value, VarId};
pub(crate) use facts::Facts;
pub use kernel::{Access, Def, InstData, Kernel, Param, Role, Scratch, SourceLine, ValueData, Var};
pub use op::{
    Base, BinaryOp, BulkDone, CompareOp, Const, GroupOp, Mask, Op, Order, Place, Scope, Slot, Special, UnaryOp,
};
pub use print::{fingerprint, inst_text};
pub use purpose::{Part, Purpose};
pub(crate) use quick_map::QuickMap;
pub use simplify::simplify;
pub use types::{Shape, Type};
pub use verify::{Fault, VerifyError, VerifyErrors, verify};
