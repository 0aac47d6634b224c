//! `tilewire check`: races and deadlocks of the shipped schedules, and whether the checker would detect mistakes in
//! them.

use crate::cli::{listing, one_of, underscored};
use crate::run::{Apart, CpuWire, Mesh, Shuffle};
use crate::table::hanging;
use anyhow::{Context, Result};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use serde_json::value::RawValue;
use std::fs;
use std::io::{Write, stderr, stdout};
use std::process::ExitCode;
use std::time::Instant;
use tilewire::check::{Mutation, Plan, Report, Settings};
use tilewire_testkit::shipped::{Case, posted, posted_in, shipped};

/// What to check.
#[derive(Args, Debug, PartialEq, Eq)]
pub struct Task {
    /// The collective
    #[arg(value_name = "COLLECTIVE", hide_possible_values = true, value_parser = underscored(subjects()),
        help = listing("What to check", &subjects().collect::<Vec<_>>()))]
    pub collective: String,
    /// Number of ranks [default: 2, or as many as --domains has]
    #[arg(long, value_name = "N", value_parser = at_most(FEWEST as u64))]
    pub ranks: Option<usize>,
    /// Number of blocks
    #[arg(long, value_name = "B", default_value_t = 2, value_parser = at_most(1))]
    pub blocks: usize,
    /// Mistake to make at every possible place, one at a time: each must be found
    #[arg(long, value_name = "NAME", hide_possible_values = true, value_parser = one_of(mistakes().map(|name| (name, name))),
        help = listing("Mistake to make wherever possible; each must be found", &mistakes().collect::<Vec<_>>()))]
    pub mutate: Option<&'static str>,
    /// The transport [default: shm, loop, and from 3 ranks on a mesh]
    #[command(flatten)]
    pub wire: CpuWire,
    /// The domains of a mesh
    #[command(flatten)]
    pub apart: Apart,
    /// Seed of random schedules
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Steps after which a run is abandoned [default: the checker's own limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Write the JSON report to this file; - is stdout, instead of the lines
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    /// Draw the first fault to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<String>,
}

/// The word for every collective, and for every mistake.
const ALL: &str = "all";
/// The limit of ranks or blocks: the checker is for small worlds.
const MOST: u64 = 64;
/// A single rank has no peer to race with.
const FEWEST: usize = 2;

fn at_most(least: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=MOST)
}

fn subjects() -> impl Iterator<Item = &'static str> {
    [ALL].into_iter().chain(COLLECTIVES.iter().copied())
}

fn mistakes() -> impl Iterator<Item = &'static str> {
    [ALL].into_iter().chain(Mutation::all().iter().map(|mutation| mutation.name()))
}

/// The collectives.
const COLLECTIVES: &[&str] = &[
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

/// Exit status if a plan could not be built or did not finish: nothing was shown either way.
const NOT_JUDGED: u8 = 3;

/// The results of all plans.
#[derive(Default)]
struct Tally {
    /// Number checked.
    checked: usize,
    /// Number of those decided for every schedule.
    decided: usize,
    /// Number that do not hold.
    failed: usize,
    /// Number that could not be judged.
    unjudged: usize,
}

impl Tally {
    fn exit_code(&self) -> ExitCode {
        match (self.failed, self.unjudged) {
            (0, 0) => ExitCode::SUCCESS,
            (0, _) => ExitCode::from(NOT_JUDGED),
            _ => ExitCode::FAILURE,
        }
    }
}

/// Checks, prints, and returns success if everything holds.
pub fn check(task: &Task) -> Result<ExitCode> {
    let wanted = |case: &Case| task.collective == ALL || case.collective == task.collective;
    let cases: Vec<Case> = task.cases().into_iter().filter(wanted).collect();
    let settings = Settings { seed: task.seed, ..Settings::default() };
    let settings = Settings { step_limit: task.steps.unwrap_or(settings.step_limit), ..settings };
    let (mut tally, mut rows) = (Tally::default(), Vec::new());
    for case in &cases {
        match case.plan() {
            Ok(plan) if task.mutate.is_none() => plain(task, case, &plan, &settings, &mut tally, &mut rows)?,
            Ok(plan) => mutated(task, case, &plan, &settings, &mut tally, &mut rows)?,
            Err(error) => {
                tally.unjudged += 1;
                writeln!(stderr(), "{} {}: could not be checked: {error}", case.collective, case.name)?;
            }
        }
    }
    if !task.is_quiet() {
        let Tally { checked, decided, failed, unjudged } = tally;
        match task.mutate.is_none() {
            true => writeln!(stdout(), "schedules checked: {checked}, decided: {decided}, not clean: {failed}")?,
            false => writeln!(stdout(), "mistakes made: {checked}, not found: {failed}")?,
        }
        if unjudged > 0 {
            writeln!(stdout(), "could not be checked: {unjudged}")?;
        }
    }
    json(task, &rows)?;
    Ok(tally.exit_code())
}

impl Task {
    /// The task, or why it is impossible.
    pub fn checked(self) -> Result<Task, String> {
        let count = match self.mesh()? {
            Some(mesh) => mesh.count(self.ranks)?,
            None => self.ranks,
        };
        let count = count.unwrap_or(FEWEST);
        let told = || self.apart.domains.as_ref().map_or(String::new(), |domains| format!("--domains {domains}: "));
        if count < FEWEST {
            return Err(format!("{}the checker is for {FEWEST} to {MOST} ranks", told()));
        }
        Ok(Task { ranks: Some(count), ..self })
    }

    /// The domains of ranks that post to each other, if they do.
    fn mesh(&self) -> Result<Option<Mesh>, String> {
        Mesh::of(self.wire.transport, self.apart.clone(), Shuffle::default())
    }

    /// The schedules of the transport, or of all of them if none is named.
    fn cases(&self) -> Vec<Case> {
        let (ranks, blocks) = (self.ranks.expect("a checked task"), self.blocks);
        match (self.mesh().expect("a checked task"), self.wire.transport) {
            (Some(mesh), _) => posted_in(ranks, blocks, &mesh.describe(ranks), &mesh.domains(ranks).lists()),
            (None, Some(_)) => shipped(ranks, blocks),
            (None, None) => shipped(ranks, blocks).into_iter().chain(posted(ranks, blocks)).collect(),
        }
    }

    /// True if stdout is for the JSON report.
    fn is_quiet(&self) -> bool {
        self.json.as_deref() == Some("-")
    }

    /// The mistakes to make.
    fn mutations(&self) -> Vec<Mutation> {
        match self.mutate {
            Some(ALL) => Mutation::all().to_vec(),
            name => name.and_then(Mutation::named).into_iter().collect(),
        }
    }
}

/// True if a report says nothing about the program because a run was abandoned.
fn is_unjudged(report: &Report) -> bool {
    !report.is_clean() && report.faults.iter().all(|found| matches!(found.fault.kind(), "step-limit" | "error"))
}

/// True if a run did not end within the allowed steps. (A mistake may well be a meaningless op.)
fn is_given_up(report: &Report) -> bool {
    !report.is_clean() && report.faults.iter().all(|found| found.fault.kind() == "step-limit")
}

fn plain(
    task: &Task,
    case: &Case,
    plan: &Plan,
    settings: &Settings,
    tally: &mut Tally,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let began = Instant::now();
    let report = plan.verify(settings);
    tally.checked += 1;
    tally.decided += usize::from(report.is_decided());
    tally.unjudged += usize::from(is_unjudged(&report));
    tally.failed += usize::from(!report.is_clean() && !is_unjudged(&report));
    if !task.is_quiet() {
        let milliseconds = began.elapsed().as_millis();
        let (start, text) = (format!("{} {}: ", case.collective, case.name), format!("{report} ({milliseconds} ms)"));
        // Faults have their own lines.
        let shown = if report.is_clean() { hanging(&start, &text) } else { start + &text };
        writeln!(stdout(), "{shown}")?;
    }
    picture(task, &report)?;
    rows.push(Row { blocks: Some(task.blocks), ..Row::of(case, &report)? });
    Ok(())
}

fn mutated(
    task: &Task,
    case: &Case,
    plan: &Plan,
    settings: &Settings,
    tally: &mut Tally,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let mutations = task.mutations();
    for &mutation in &mutations {
        for mutant in plan.mutants(mutation) {
            tally.checked += 1;
            let report = mutant.verify(settings);
            // A run that was abandoned has found nothing.
            tally.unjudged += usize::from(is_given_up(&report));
            tally.failed += usize::from(report.is_clean());
            let kind = report.faults.first().map_or("NOT CAUGHT", |found| found.fault.kind());
            if !task.is_quiet() {
                let schedules = report.schedules.max(1);
                let many = if schedules == 1 { "schedule" } else { "schedules" };
                writeln!(stdout(), "{mutant}, {} {}: {kind} ({schedules} {many})", case.collective, case.name)?;
                // A user who asks for one mutation wants to see its report.
                if mutations.len() == 1 {
                    writeln!(stdout(), "{report}\n")?;
                }
            }
            picture(task, &report)?;
            let (mutation, caught) = (Some(mutation.to_string()), Some(!report.is_clean()));
            rows.push(Row { mutation, caught, ..Row::of(case, &report)? });
        }
    }
    Ok(())
}

/// The report for programs.
#[derive(Serialize)]
struct Summary<'r> {
    schema: u32,
    machine: &'static str,
    rows: &'r [Row],
}

/// The result of one plan, or of one mistake in it.
#[derive(Serialize)]
struct Row {
    collective: String,
    schedule: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mutation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caught: Option<bool>,
    /// The report as the checker prints it.
    report: Box<RawValue>,
}

impl Row {
    fn of(case: &Case, report: &Report) -> Result<Row> {
        Ok(Row {
            collective: case.collective.to_string(),
            schedule: case.name.to_string(),
            blocks: None,
            mutation: None,
            caught: None,
            report: RawValue::from_string(report.to_json())?,
        })
    }
}

fn json(task: &Task, rows: &[Row]) -> Result<()> {
    let Some(file) = &task.json else { return Ok(()) };
    let text = serde_json::to_string(&Summary { schema: 1, machine: std::env::consts::ARCH, rows })? + "\n";
    if file == "-" {
        return Ok(stdout().write_all(text.as_bytes())?);
    }
    fs::write(file, text).with_context(|| format!("writing {file}"))
}

/// Draws the first fault, if there is one.
fn picture(task: &Task, report: &Report) -> Result<()> {
    let (Some(file), Some(found)) = (&task.svg, report.faults.first()) else { return Ok(()) };
    fs::write(file, found.to_svg()).with_context(|| format!("writing {file}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_checked_is_neither_right_nor_wrong() {
        let code = |failed, unjudged| format!("{:?}", Tally { failed, unjudged, ..Tally::default() }.exit_code());
        let is = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(
            [code(0, 0), code(1, 0), code(0, 1), code(1, 1)],
            [is(0), is(1), is(NOT_JUDGED), is(1)],
            "a fault that was found counts more than what could not be checked"
        );
    }

    #[test]
    fn a_run_that_was_given_up_is_not_judged() {
        let case = &shipped(2, 1)[0];
        let plan = case.plan().unwrap();
        assert!(is_unjudged(&plan.verify(&Settings { step_limit: 10, ..Settings::default() })));
        assert!(!is_unjudged(&plan.verify(&Settings::default())));
    }
}
