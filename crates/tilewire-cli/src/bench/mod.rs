//! Benchmarks that print ratios to a limit measured in the same run.
//!
//! In: sizes and places to write to. Out: a table, and a JSON report on request. Nothing here knows how a kernel works:
//! a case hands over closures, [`interleaved`] times them, [`report`] writes them down.

mod buffer;
mod contest;
mod gpu;
mod interleaved;
mod kernels;
mod machine;
mod pair;
mod progress;
mod report;
mod size;

pub use gpu::{Plan as GpuPlan, check_key as check_gpu_key};
use interleaved::Effort;
pub use kernels::check_key;
pub use pair::{Kind as WorldKind, Plan as PairPlan, check_key as check_pair_key};
pub use progress::Progress;
pub use size::Size;

use anyhow::{Context, Result};
use kernels::Plan;
use std::fs::File;
use std::io::{Write, stdout};

/// Runs `tilewire bench kernels`. Without `cases` all are measured. With `json` a report goes to that file, or
/// instead of the table to stdout for `-`.
pub fn kernels(sizes: Option<&[Size]>, cases: &[String], json: Option<&str>) -> Result<()> {
    let mut file = open(json)?;
    let before = machine::peak_resident();
    let rows = kernels::run(&Plan { sizes: sizes.unwrap_or(&kernels::SIZES), cases, effort: Effort::default() })?;
    let report = report::json(&machine::Machine::read(), &rows);
    if json == Some("-") {
        stdout().write_all(report.as_bytes())?;
        return Ok(());
    }
    let mut out = stdout().lock();
    out.write_all(report::table(&rows).as_bytes())?;
    if let (Some(before), Some(after)) = (before, machine::peak_resident()) {
        let mib = (after - before) as f64 / f64::from(1 << 20);
        writeln!(out, "peak resident memory grew by {mib:.1} MiB, buffers of the cases included")?;
    }
    if let Some(file) = &mut file {
        file.write_all(report.as_bytes())?;
    }
    Ok(())
}

/// Runs `tilewire bench sendrecv`; with `json` as for [`kernels`].
pub fn sendrecv(plan: &PairPlan, json: Option<&str>) -> Result<()> {
    let mut file = open(json)?;
    let heats = pair::run(plan)?;
    // Another rank than the first has nothing to say.
    if heats.is_empty() {
        return Ok(());
    }
    let report = report::json(&machine::Machine::read(), &pair::rows(&heats));
    if json == Some("-") {
        stdout().write_all(report.as_bytes())?;
        return Ok(());
    }
    stdout().write_all(pair::table(&heats).as_bytes())?;
    if let Some(file) = &mut file {
        file.write_all(report.as_bytes())?;
    }
    Ok(())
}

/// Runs `tilewire bench sendrecv --engine cuda`; with `json` as for [`kernels`].
pub fn gpu(plan: &GpuPlan, json: Option<&str>) -> Result<()> {
    let mut file = open(json)?;
    let rows = gpu::run(plan)?;
    let report = report::json(&machine::Machine::read(), &rows);
    if json == Some("-") {
        stdout().write_all(report.as_bytes())?;
        return Ok(());
    }
    stdout().write_all(report::table(&rows).as_bytes())?;
    if let Some(file) = &mut file {
        file.write_all(report.as_bytes())?;
    }
    Ok(())
}

/// Opens the file of a report, before anything is measured: a path that cannot be written should not cost a minute.
fn open(json: Option<&str>) -> Result<Option<File>> {
    match json {
        Some(path) if path != "-" => Ok(Some(File::create(path).with_context(|| format!("cannot write {path}"))?)),
        _ => Ok(None),
    }
}
