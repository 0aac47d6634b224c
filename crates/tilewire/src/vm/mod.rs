//! The CPU engine: byte movers and the instruction-set level they run at.
#![allow(dead_code)] // the interpreter that calls them is not here yet

pub(crate) mod copy;
pub(crate) mod level;
pub(crate) mod transpose;
