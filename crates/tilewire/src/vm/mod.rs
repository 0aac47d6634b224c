//! The CPU engine.
#![allow(dead_code)]

mod address;
mod code;
mod control;
pub(crate) mod copy;
mod handlers;
mod lane;
pub(crate) mod level;
mod machine;
mod queue;
mod scalar_op;
pub(crate) mod transpose;
mod uniform;
