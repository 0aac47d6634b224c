//! `tilewire emit`: the text of a kernel on its way to an engine.

use crate::kernels::Named;
use anyhow::Result;
use std::io::{Write, stdout};
use tilewire::ir;
use tilewire::ptx::{self, Target};
use tilewire::vm::Prepared;

/// Elements of the tensors that kernels are traced for: whole tiles, groups and rows of every kernel.
const COUNT: usize = 4096;

/// What to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The intermediate representation.
    pub ir: bool,
    /// The representation after simplification instead of as traced.
    pub simplified: bool,
    /// With the source line of every instruction.
    pub lines: bool,
    /// The bytecode of the CPU engine.
    pub bytecode: bool,
    /// The PTX for a GPU.
    pub ptx: Option<Target>,
}

/// Prints a kernel to stdout.
pub fn emit(kernel: &Named, parts: Parts) -> Result<()> {
    let traced = (kernel.build)(COUNT)?;
    let mut text = String::new();
    if parts.ir {
        let simplified = parts.simplified.then(|| ir::simplify(&traced.kernel));
        let kernel = simplified.as_ref().unwrap_or(&traced.kernel);
        text += &if parts.lines { format!("{kernel:#}") } else { kernel.to_string() };
    }
    if parts.bytecode {
        text += &Prepared::new(&traced.kernel, &traced.args)?.disassembly();
    }
    if let Some(target) = parts.ptx {
        text += &ptx::emit(&ir::simplify(&traced.kernel), ptx::Options::new(target))?.text;
    }
    Ok(stdout().write_all(text.as_bytes())?)
}
