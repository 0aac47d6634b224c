//! `tilewire emit`: the text of a kernel at each stage on its way to an engine.

use crate::cli::one_of;
use crate::kernels::Named;
use crate::run::{Options, Run, text_of};
use anyhow::Result;
use clap::Args;
use std::io::{Write, stdout};
use tilewire::ir;
use tilewire::ptx::{self, Target};
use tilewire::vm::Prepared;

/// Elements of the tensors that kernels are traced for: whole tiles, groups and rows of every kernel.
const COUNT: usize = 4096;

/// The words after `emit`.
#[derive(Args)]
pub struct Words {
    /// A kernel, or a collective with options of `run`; gather without any is the kernel
    #[arg(value_name = "KERNEL|COLLECTIVE")]
    pub name: Option<String>,
    /// The intermediate representation
    #[arg(long)]
    ir: bool,
    /// The representation after simplification instead of as traced
    #[arg(long)]
    simplified: bool,
    /// The representation with the source line of every instruction
    #[arg(long)]
    lines: bool,
    /// The bytecode that the CPU engine runs
    #[arg(long)]
    bytecode: bool,
    /// The PTX that a GPU runs
    #[arg(long)]
    ptx: bool,
    /// The GPU of --ptx [default: sm_90a]
    #[arg(long, value_parser = one_of(Target::ALL.map(|target| (target.name(), target))))]
    arch: Option<Target>,
    /// Options of a collective, whose rank 0 is shown; with --transport nvl as a GPU here runs it.
    #[command(flatten, next_help_heading = "Options of a collective")]
    pub how: Options,
}

impl Words {
    /// The parts to print, or why they cannot be.
    pub fn parts(&self) -> Result<Parts, String> {
        let Words { ir, simplified, lines, bytecode, ptx, arch, .. } = *self;
        let needs = |option: &str, of: &str| Err(format!("{option} is for {of}"));
        match (ir || bytecode || ptx, ir, ptx) {
            (false, ..) => Err("say what to print: --ir, --bytecode or --ptx".into()),
            (_, false, _) if simplified => needs("--simplified", "--ir"),
            (_, false, _) if lines => needs("--lines", "--ir"),
            (.., false) if arch.is_some() => needs("--arch", "--ptx"),
            _ => Ok(Parts { ir, simplified, lines, bytecode, ptx: ptx.then(|| arch.unwrap_or(Target::Sm90a)) }),
        }
    }
}

/// The parts to print.
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

/// Prints the kernel that rank 0 launches for a collective.
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
