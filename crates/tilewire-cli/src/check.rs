//! `tilewire check`: races and deadlocks of the shipped schedules, and whether the checker would see mistakes in them.

use anyhow::{Context, Result};
use std::fs;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Instant;
use tilewire::check::{Mutation, Report, Settings};
use tilewire::rehearsal::{Case, shipped};

/// What to check.
#[derive(Debug, PartialEq, Eq)]
pub struct Task {
    /// The collective; `None`: all.
    pub collective: Option<String>,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Mistakes to make first; empty: none.
    pub mutations: Vec<Mutation>,
    /// Seed of random schedules.
    pub seed: u64,
    /// Where the JSON report goes; `-` is stdout.
    pub json: Option<String>,
    /// Where a picture of the first fault goes.
    pub svg: Option<String>,
}

/// The collectives there are.
pub const COLLECTIVES: &[&str] = &[
    "sendrecv",
    "all_to_all",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "broadcast",
    "gather",
    "scatter",
    "barrier",
];

/// Checks, prints, and says whether all holds.
pub fn check(task: &Task) -> Result<ExitCode> {
    let wanted = |case: &Case| task.collective.as_deref().is_none_or(|name| case.collective == name);
    let cases: Vec<Case> = shipped(task.ranks, task.blocks)?.into_iter().filter(wanted).collect();
    let settings = Settings { seed: task.seed, ..Settings::default() };
    let holds =
        if task.mutations.is_empty() { plain(task, &cases, &settings)? } else { mutated(task, &cases, &settings)? };
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn plain(task: &Task, cases: &[Case], settings: &Settings) -> Result<bool> {
    let (mut holds, mut rows) = (true, Vec::new());
    let quiet = task.json.as_deref() == Some("-");
    for case in cases {
        let began = Instant::now();
        let report = case.plan.verify(settings);
        holds &= report.is_clean();
        if !quiet {
            let milliseconds = began.elapsed().as_millis();
            writeln!(stdout(), "{} {}: {report} ({milliseconds} ms)", case.collective, case.name)?;
        }
        picture(task, &report)?;
        rows.push(format!(
            "{{\"collective\":\"{}\",\"schedule\":\"{}\",\"blocks\":{},\"report\":{}}}",
            case.collective,
            case.name,
            task.blocks,
            report.to_json()
        ));
    }
    json(task, &rows)?;
    Ok(holds)
}

fn mutated(task: &Task, cases: &[Case], settings: &Settings) -> Result<bool> {
    let (mut holds, mut rows) = (true, Vec::new());
    let quiet = task.json.as_deref() == Some("-");
    for &mutation in &task.mutations {
        let mut applied = 0;
        for case in cases {
            for mutant in case.plan.mutants(mutation) {
                applied += 1;
                let report = mutant.verify(settings);
                holds &= !report.is_clean();
                let kind = report.faults.first().map_or("NOT CAUGHT", |found| found.fault.kind());
                if !quiet {
                    let schedules = report.schedules.max(1);
                    let many = if schedules == 1 { "schedule" } else { "schedules" };
                    writeln!(stdout(), "{mutant}, {} {}: {kind} ({schedules} {many})", case.collective, case.name)?;
                    // Who asks for one mutation wants to see what is said about it.
                    if task.mutations.len() == 1 {
                        writeln!(stdout(), "{report}\n")?;
                    }
                }
                picture(task, &report)?;
                rows.push(format!(
                    "{{\"collective\":\"{}\",\"schedule\":\"{}\",\"mutation\":\"{mutation}\",\"caught\":{},\"report\":{}}}",
                    case.collective,
                    case.name,
                    !report.is_clean(),
                    report.to_json()
                ));
            }
        }
        if applied == 0 && !quiet {
            writeln!(stdout(), "{mutation}: applies to nothing here ({})", mutation.describe())?;
        }
    }
    json(task, &rows)?;
    Ok(holds)
}

fn json(task: &Task, rows: &[String]) -> Result<()> {
    let Some(file) = &task.json else { return Ok(()) };
    let machine = std::env::consts::ARCH;
    let text = format!("{{\"schema\":1,\"machine\":\"{machine}\",\"rows\":[{}]}}\n", rows.join(",\n"));
    if file == "-" {
        return Ok(stdout().write_all(text.as_bytes())?);
    }
    fs::write(file, text).with_context(|| format!("writing {file}"))
}

/// Draws the first fault there is.
fn picture(task: &Task, report: &Report) -> Result<()> {
    let (Some(file), Some(found)) = (&task.svg, report.faults.first()) else { return Ok(()) };
    fs::write(file, found.to_svg()).with_context(|| format!("writing {file}"))
}
