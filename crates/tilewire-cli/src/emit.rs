//! `tilewire emit`: the text of a kernel on its way to an engine.

use crate::kernels::Named;
use crate::run::{Run, text_of};
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
    let bytecode = || Ok(Prepared::new(&traced.kernel, &traced.args)?.disassembly());
    Ok(stdout().write_all(text(&traced.kernel, parts, bytecode)?.as_bytes())?)
}

/// Prints what rank 0 launches for a collective.
pub fn emit_collective(run: &Run, parts: Parts) -> Result<()> {
    let text = text_of(run, |op| Ok(text(op.kernel(), parts, || Ok(op.disassembly()))?))?;
    Ok(stdout().write_all(text.as_bytes())?)
}

fn text(kernel: &ir::Kernel, parts: Parts, bytecode: impl FnOnce() -> Result<String>) -> Result<String> {
    let mut text = String::new();
    if parts.ir {
        let simplified = parts.simplified.then(|| ir::simplify(kernel));
        let kernel = simplified.as_ref().unwrap_or(kernel);
        text += &if parts.lines { format!("{kernel:#}") } else { kernel.to_string() };
    }
    if parts.bytecode {
        text += &bytecode()?;
    }
    if let Some(target) = parts.ptx {
        text += &ptx::emit(&ir::simplify(kernel), ptx::Options::new(target))?.text;
    }
    Ok(text)
}
