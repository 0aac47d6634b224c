//! Benchmarks that print ratios to a limit measured in the same run.
//!
//! In: what to measure and places to write to. Out: a table, and a JSON report and a plot on request. Nothing here
//! knows how a kernel works: a case passes closures, [`interleaved`] times them, [`report`] prints them.

mod buffer;
mod contest;
mod gpu;
mod interleaved;
mod kernels;
pub mod machine;
mod plot;
mod ranks;
mod report;
mod size;
mod words;

pub use report::duration;
pub use size::Size;
pub use words::{Reports, Words};

use crate::memory::{self, TooMuch};
use anyhow::{Context, Result};
use interleaved::Effort;
use plot::Panel;
use ranks::{COLLECTIVES, CollectivePlan, Heat, NetworkPlan, PairPlan};
use report::Row;
use std::fs::File;
use std::io::{Write, stdout};

/// A request of `tilewire bench`.
#[derive(Debug, PartialEq)]
pub struct Bench {
    /// What to measure.
    pub subject: Subject,
    /// Destinations of the figures.
    pub reports: Reports,
    /// Destination of the plot.
    pub plot: Option<String>,
}

/// The subjects of measurements.
#[derive(Debug, PartialEq)]
pub enum Subject {
    /// The CPU engine's kernels.
    Kernels {
        /// Input sizes, if not the defaults.
        sizes: Option<Vec<Size>>,
        /// Keys of the cases, if not all.
        cases: Vec<String>,
        /// True to only test that it works.
        quick: bool,
    },
    /// Transfers between two ranks.
    Sendrecv(PairPlan),
    /// Transfers between two ranks of a GPU.
    Gpu(gpu::Plan),
    /// Collectives.
    Collectives(CollectivePlan),
    /// Processes that are joined by a network.
    Network(NetworkPlan),
    /// Everything on the CPU.
    All {
        /// True to only test that it works.
        quick: bool,
    },
}

/// The results.
#[derive(Default)]
struct Measured {
    rows: Vec<Row>,
    table: String,
    panels: Vec<Panel>,
}

impl Bench {
    /// Measures and reports.
    pub fn run(&self) -> Result<()> {
        // Before anything is measured: a path that cannot be written should not cost a minute.
        let Reports { json, csv } = &self.reports;
        let (mut json, mut csv) = (Sink::open(json.as_deref())?, Sink::open(csv.as_deref())?);
        let mut plot = Sink::open(self.plot.as_deref())?;
        let is_quiet = [&json, &csv, &plot].into_iter().any(Sink::is_stdout);
        let (mut rows, mut panels) = (Vec::new(), Vec::new());
        for subject in self.subject.parts() {
            // Ranks started by others were checked already, and some may have allocated their memory.
            if !ranks::is_rank() {
                subject.enough_memory()?;
            }
            let mut measured = measure(&subject)?;
            if !is_quiet {
                stdout().write_all(measured.table.as_bytes())?;
            }
            rows.append(&mut measured.rows);
            panels.append(&mut measured.panels);
        }
        // Only the first rank reports.
        if rows.is_empty() && ranks::is_rank() {
            return Ok(());
        }
        json.write(|| report::json(&machine::Machine::read(), &rows))?;
        csv.write(|| report::csv(&rows))?;
        plot.write(|| Ok(plot::svg(&panels, self.subject.undrawn()).into_bytes()))
    }
}

impl Subject {
    /// Checks that there is memory for the largest requested size.
    fn enough_memory(&self) -> Result<(), TooMuch> {
        let (sizes, ranks) = match self {
            Subject::Kernels { sizes, .. } => (sizes, 1),
            Subject::Sendrecv(plan) => (&plan.sizes, 2),
            Subject::Collectives(plan) => (&plan.sizes, plan.ranks),
            Subject::Network(plan) => (&plan.sizes, plan.ranks),
            Subject::Gpu(_) | Subject::All { .. } => return Ok(()),
        };
        let largest = sizes.iter().flatten().map(|size| size.0).max().unwrap_or(0);
        // At least an input and an output for us, and the same for the competition.
        let needed = (largest as u64).saturating_mul(4 * ranks as u64);
        memory::check(needed, "--sizes", || format!("buffers of {} on each of {ranks} ranks", Size(largest)))
    }

    /// Why a plot of it would be empty.
    fn undrawn(&self) -> &'static str {
        match self {
            Subject::Gpu(_) => "nothing was measured that goes by sizes",
            _ => "nothing was measured at a known place: the machine was too busy",
        }
    }

    /// The subjects measured one after the other.
    fn parts(&self) -> Vec<Subject> {
        match self {
            Subject::All { quick } => vec![
                Subject::Kernels { sizes: None, cases: Vec::new(), quick: *quick },
                Subject::Sendrecv(PairPlan { quick: *quick, ..PairPlan::default() }),
                Subject::Collectives(CollectivePlan { quick: *quick, ..CollectivePlan::of(&COLLECTIVES) }),
            ],
            Subject::Kernels { sizes, cases, quick } => {
                vec![Subject::Kernels { sizes: sizes.clone(), cases: cases.clone(), quick: *quick }]
            }
            Subject::Sendrecv(plan) => vec![Subject::Sendrecv(plan.clone())],
            Subject::Gpu(plan) => vec![Subject::Gpu(plan.clone())],
            Subject::Collectives(plan) => vec![Subject::Collectives(plan.clone())],
            Subject::Network(plan) => vec![Subject::Network(plan.clone())],
        }
    }
}

fn measure(subject: &Subject) -> Result<Measured> {
    let of_heats = |heats: Vec<Heat>, table: fn(&[Heat]) -> String| Measured {
        rows: ranks::rows(&heats),
        table: if heats.is_empty() { String::new() } else { table(&heats) },
        panels: ranks::panels(&heats),
    };
    match subject {
        Subject::Kernels { sizes, cases, quick } => measure_kernels(sizes.as_deref(), cases, *quick),
        Subject::Sendrecv(plan) => Ok(of_heats(ranks::sendrecv(plan)?, ranks::pair_table)),
        Subject::Collectives(plan) => Ok(of_heats(ranks::collectives(plan)?, ranks::collective_table)),
        Subject::Network(plan) => {
            let contests = ranks::network(plan)?;
            // Only rank 0 has results.
            let table = if contests.is_empty() { String::new() } else { ranks::network_table(&contests) };
            Ok(Measured { table, rows: ranks::network_rows(&contests), panels: ranks::network_panels(&contests) })
        }
        Subject::Gpu(plan) => {
            let rows = gpu::run(plan)?;
            Ok(Measured { table: report::table(&rows), panels: gpu::panels(&rows), rows })
        }
        Subject::All { .. } => unreachable!("has parts"),
    }
}

fn measure_kernels(sizes: Option<&[Size]>, cases: &[String], quick: bool) -> Result<Measured> {
    let before = machine::peak_resident();
    let effort = if quick { Effort::QUICK } else { Effort::default() };
    let rows = kernels::run(&kernels::Plan { sizes: sizes.unwrap_or(&kernels::SIZES), cases, effort })?;
    let mut table = report::table(&rows);
    if let (Some(before), Some(after)) = (before, machine::peak_resident()) {
        let mib = (after - before) as f64 / f64::from(1 << 20);
        table.push_str(&format!("peak resident memory grew by {mib:.1} MiB, buffers of the cases included\n"));
    }
    Ok(Measured { rows, table, panels: Vec::new() })
}

/// The destination of a report.
enum Sink {
    Nowhere,
    Stdout,
    File(File, String),
}

impl Sink {
    /// `-` is stdout.
    fn open(path: Option<&str>) -> Result<Sink> {
        Ok(match path {
            None => Sink::Nowhere,
            Some("-") => Sink::Stdout,
            Some(path) => Sink::File(File::create(path).with_context(|| unwritten(path))?, path.to_string()),
        })
    }

    fn is_stdout(&self) -> bool {
        matches!(self, Sink::Stdout)
    }

    fn write(&mut self, report: impl FnOnce() -> Result<Vec<u8>>) -> Result<()> {
        match self {
            Sink::Nowhere => Ok(()),
            Sink::Stdout => Ok(stdout().write_all(&report()?)?),
            Sink::File(file, path) => file.write_all(&report()?).with_context(|| unwritten(path)),
        }
    }
}

fn unwritten(path: &str) -> String {
    format!("cannot write {path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_has_memory_for_is_not_measured() {
        let sizes = Some(vec![Size(8), Size(1 << 40)]);
        let pair = Subject::Sendrecv(PairPlan { sizes: sizes.clone(), ..PairPlan::default() });
        let collective = Subject::Collectives(CollectivePlan { sizes, ..CollectivePlan::of(&["all_reduce"]) });
        for subject in [pair, collective] {
            let words = subject.enough_memory().unwrap_err().to_string();
            assert!(words.contains("1024GiB") && words.contains("left") && words.contains("--sizes"), "{words}");
        }
        Subject::All { quick: true }.parts().iter().for_each(|subject| subject.enough_memory().unwrap());
    }
}
