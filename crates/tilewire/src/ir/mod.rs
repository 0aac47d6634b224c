//! The intermediate representation: the definition of a kernel, independent of its author and of the engine that runs
//! it.
//!
//! ```text
//!  Builder ──▶ Kernel ──verify──▶ legal kernel ──simplify──▶ smaller kernel ──access──▶ what code generators need
//!                 └──print──▶ text                                  scalar: what one op does to one element
//! ```
//!
//! - **In**: ops, one by one, through a [`Builder`]. **Out**: a [`Kernel`], plain data. From it come all its errors
//!   ([`verify`]), a smaller kernel with the same effects ([`simplify`]), its text (`Display`), how its accesses walk
//!   through memory ([`access`]), and the meaning of its arithmetic, bit for bit ([`scalar`]).
//! - **Invariants**: a verified kernel needs no further check by any stage. Control flow is on uniform values only.
//!   There is no barrier wider than a role copy. Every op states its meaning and its ordering at [`Op`]. Two traces of
//!   one program print alike.
//! - **Must not know**: every other stage. Nothing here knows the tracing code or the engine, or what a peer is beyond
//!   a number.
//!
//! | file | holds |
//! |---|---|
//! | `types.rs` | [`Type`], [`Shape`]: element types, uniform or lane |
//! | `op.rs` | [`Op`]: the whole vocabulary |
//! | `entity.rs` | typed indices and the tables they index |
//! | `kernel.rs` | [`Kernel`]: parameters, roles and the arenas of their code |
//! | `builder.rs`, `typing.rs` | building kernels; the type of an op's result |
//! | `purpose.rs` | [`Purpose`]: what the memory of a parameter is for |
//! | `matching.rs` | words and flags that carry the number of an operation |
//! | `ring.rs` | the ring of descriptors that posts fill |
//! | `verify/` | [`verify`]: which kernels are legal |
//! | `names.rs`, `literal.rs`, `print.rs` | the text form |
//! | `quick_map.rs` | maps of ids, used while building kernels |
//! | `scalar/` | what one op does to one element |
//! | `affine.rs`, `facts.rs`, `access/` | static knowledge about indices and accesses |
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
mod requirement;
pub mod ring;
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
    Base, BinaryOp, BulkDone, CompareOp, Const, GroupOp, Mask, Notice, Op, Order, Place, PostSpan, RequiredSpan, Scope,
    Slot, Special, UnaryOp,
};
pub use print::{fingerprint, inst_text};
pub use purpose::{Part, Purpose};
pub(crate) use quick_map::QuickMap;
pub use requirement::RequiredBytes;
pub use ring::NoticeKind;
pub use simplify::simplify;
pub use types::{Shape, Type};
pub use verify::{Fault, VerifyError, VerifyErrors, verify};
