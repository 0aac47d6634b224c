//! The checker's entry: one run decides where it can, many schedules are run where it cannot.

use super::fixed::{beyond_device, waits_without_producer};
use super::model::{Detector, Watch};
use super::report::{Certainty, Fault, Found, Namer, Report};
use super::residency::Residence;
use super::world::{Chooser, Ending, Exhaustive, Limits, Outcome, Plan, Priorities, Stage, StreamOp, ToBlock, execute};
use crate::ir::{Inst, Kernel, Op};
use crate::tensor::Arg;

/// How a plan is checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Seed of random schedules, where there are any.
    pub seed: u64,
    /// Most schedules run in turn outside of the monotone fragment.
    pub exhaustive: u64,
    /// Random schedules run after that.
    pub random: u64,
    /// Whether schedules that differ only by the order of steps that commute count as one; `false` is for judging that.
    pub reduces: bool,
    /// Most copies run of a role; 1 is what the CPU engine does.
    pub most_copies: u32,
    /// Steps after which a run is given up.
    pub step_limit: u64,
    /// A wait may be met by a value larger than the one it names (counters that are signalled in batches).
    pub cumulative: bool,
    /// A signal of data may be left for a later launch to wait for; otherwise that is a fault, at the end of its launch.
    pub across_launches: bool,
    /// Whether a check ends at its first fault.
    pub first_fault: bool,
    /// The device that all ranks share, where they do: a launch it cannot hold at once is a fault.
    pub device: Option<Residence>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 1,
            exhaustive: 2000,
            random: 200,
            reduces: true,
            most_copies: u32::MAX,
            step_limit: 200_000_000,
            cumulative: false,
            across_launches: false,
            first_fault: false,
            device: None,
        }
    }
}

impl Settings {
    /// What a detector looks for, beside the mistakes of a mutation.
    pub(super) fn watch(&self, mistakes: Watch) -> Watch {
        Watch { cumulative: self.cumulative, across_launches: self.across_launches, ..mistakes }
    }
}

/// Checks launches of several ranks: `launches[l][r]` is what rank `r` launches in its launch `l`. See [`Plan`] for more.
pub fn verify_world(launches: &[Vec<(&Kernel, &[Arg])>], settings: &Settings) -> Report {
    let ranks = launches.first().map_or(0, Vec::len);
    let mut plan = Plan::new(ranks as u32);
    launches.iter().for_each(|ranks| _ = plan.launch(ranks));
    plan.verify(settings)
}

impl Plan {
    /// Checks the plan: see the head of [`crate::check`] for what that means.
    pub fn verify(&self, settings: &Settings) -> Report {
        self.verify_watching(settings, &settings.watch(Watch::default()))
    }

    pub(super) fn verify_watching(&self, settings: &Settings, watch: &Watch) -> Report {
        let mut report = Report {
            ranks: self.ranks(),
            launches: self.launches() as u32,
            faults: Vec::new(),
            certainty: Certainty::Decided,
            schedules: 0,
            steps: 0,
        };
        if self.ranks() == 0 {
            return report;
        }
        let stage = match self.stage() {
            Ok(stage) => stage,
            Err(error) => {
                report.faults.push(Found { fault: Fault::Error(error), times: 1, prefix: Vec::new() });
                return report;
            }
        };
        let check = Check { plan: self, stage: &stage, settings, watch, namer: Namer { plan: self, stage: &stage } };
        report.faults = check.fixed();
        if !settings.first_fault || report.is_clean() {
            check.run(&mut report);
        }
        report
    }
}

struct Check<'p> {
    plan: &'p Plan,
    stage: &'p Stage,
    settings: &'p Settings,
    watch: &'p Watch,
    namer: Namer<'p>,
}

impl<'p> Check<'p> {
    fn fixed(&self) -> Vec<Found> {
        let mut faults = waits_without_producer(&self.namer);
        faults.extend(self.settings.device.and_then(|device| beyond_device(&self.namer, &device)));
        faults.into_iter().map(|fault| Found { fault, times: 1, prefix: Vec::new() }).collect()
    }

    fn run(&self, report: &mut Report) {
        let first = self.execute(&mut ToBlock, report);
        let Some(why) = self.outside(&first.detector) else { return };
        let seed = self.settings.seed;
        let mut certainty = |exhausted| report.certainty = Certainty::Sampled { why: why.clone(), seed, exhausted };
        certainty(false);
        if !report.is_clean() {
            return;
        }
        let mut all = Exhaustive::new(self.settings.reduces);
        for _ in 0..self.settings.exhaustive {
            self.execute(&mut all, report);
            if !report.is_clean() {
                return;
            }
            if !all.advance() {
                report.certainty = Certainty::Sampled { why, seed, exhausted: true };
                return;
            }
        }
        for i in 0..self.settings.random {
            // Depths 1 to 4: most bugs need few orderings.
            let mut some = Priorities::new(seed.wrapping_add(i), first.choices.max(8), (i % 4) as usize);
            self.execute(&mut some, report);
            if !report.is_clean() {
                return;
            }
        }
    }

    fn execute(&self, chooser: &mut dyn Chooser, report: &mut Report) -> Outcome<'p> {
        let Settings { most_copies, step_limit: steps, first_fault, .. } = *self.settings;
        let limits = Limits { most_copies, steps, first_fault };
        let outcome = execute(self.plan, self.stage, self.watch.clone(), limits, chooser);
        report.schedules += 1;
        report.steps += outcome.steps;
        let seen = outcome.detector.sightings().iter().map(|sighting| self.namer.found(&outcome.detector, sighting));
        report.faults.extend(seen);
        let ended = match &outcome.ending {
            Ending::Deadlock(stuck) => Some(self.namer.deadlock(&outcome.detector, stuck)),
            Ending::Error(error) => Some(Fault::Error(error.clone())),
            _ => None,
        };
        report.faults.extend(ended.map(|fault| Found { fault, times: 1, prefix: Vec::new() }));
        outcome
    }

    /// Why the program is not in the monotone fragment, if it is not. Several writers of a slot, and counters that do not
    /// grow, are faults; what is left are ops that give a counter's value to the program.
    fn outside(&self, detector: &Detector<'_>) -> Option<String> {
        let mut found: Vec<_> = detector.outside.iter().collect();
        found.sort_by_key(|&&(rank, launch, inst)| (launch, rank, inst));
        let streams = self.plan.launches.iter().flatten().flat_map(|job| &job.streams);
        let handshake = streams.flat_map(|stream| &stream.ops).find(|(op, _)| !matches!(op, StreamOp::Copy { .. }));
        if let Some((op, at)) = handshake {
            return Some(format!("a handshake of copy engines, {} at {at}", op.text()));
        }
        found.into_iter().find_map(|&(rank, launch, inst)| {
            let kernel = self.plan.kernel(launch, rank);
            let what = match kernel.insts[inst].op {
                Op::Test { .. } => "a test",
                Op::AtomicAdd { .. } if is_used(kernel, inst) => "an atomic whose result is used",
                _ => return None,
            };
            Some(format!("{what} at {}", kernel.line(inst)))
        })
    }
}

fn is_used(kernel: &Kernel, inst: Inst) -> bool {
    let Some(result) = kernel.insts[inst].result else { return false };
    let mut used = false;
    for role in kernel.roles.values() {
        kernel.walk(role.body, &mut |other| used |= kernel.insts[other].op.operands().contains(&result));
    }
    used
}
