//! The checker, as a specification: litmus tests of its memory model, bugs it must find and programs it must pass.

mod beside_copies;
mod brute;
mod bugs;
mod collectives;
mod copy_engine;
mod differential;
mod engines;
mod expected;
mod explored;
mod leftovers;
mod links;
mod litmus;
mod mutations;
mod puts;
mod residency;
mod seeded;
mod shared_values;
mod shipped;
mod size;

use tilewire::Traced;
use tilewire::check::{Fault, Plan, Report, Settings};

/// Checks launches: `launches[l][r]` is what rank `r` launches in launch `l`.
fn check(launches: &[Vec<Traced>]) -> Report {
    check_with(launches, &Settings::default())
}

fn check_with(launches: &[Vec<Traced>], settings: &Settings) -> Report {
    plan(launches).verify(settings)
}

fn plan(launches: &[Vec<Traced>]) -> Plan {
    let mut plan = Plan::new(launches[0].len() as u32);
    for ranks in launches {
        let ranks: Vec<_> = ranks.iter().map(|traced| (&traced.kernel, &traced.args[..])).collect();
        plan.launch(&ranks);
    }
    plan
}

/// The kinds of all faults, in order.
fn kinds(report: &Report) -> Vec<&'static str> {
    report.faults.iter().map(|found| found.fault.kind()).collect()
}

/// Asserts that there is a fault of this kind, with exactly these lines of this test's sources.
#[track_caller]
fn expect<'r>(report: &'r Report, kind: &str, lines: &[u32]) -> &'r Fault {
    let of_kind = |fault: &&Fault| fault.kind() == kind;
    let mut all = report.faults.iter().map(|found| &found.fault).filter(of_kind);
    let hit = all.find(|fault| {
        let mut named: Vec<u32> = fault.lines().iter().map(|at| at.line).collect();
        let mut wanted = lines.to_vec();
        named.sort_unstable();
        wanted.sort_unstable();
        lines.is_empty() || named == wanted
    });
    hit.unwrap_or_else(|| panic!("no {kind} of lines {lines:?} in:\n{report}"))
}

#[track_caller]
fn clean(report: &Report) {
    assert!(report.is_clean() && report.is_decided(), "{report}");
}
