//! One run of a plan.

use super::choose::Chooser;
use super::plan::{Plan, Stage};
use crate::check::error::EvalError;
use crate::check::eval::{Blocked, Instance, InstanceOptions, Step};
use crate::check::memory::{Memories, World};
use crate::check::model::{Detector, Watch};
use crate::check::observer::{AccessKind, Actor};
use crate::ir::{Kernel, Op};

/// Limits of a run.
#[derive(Clone, Copy, Debug)]
pub(in crate::check) struct Limits {
    /// Most copies run of a role.
    pub most_copies: u32,
    /// Steps after which a run is given up.
    pub steps: u64,
    /// Whether the run ends at the first fault.
    pub first_fault: bool,
}

/// What came of a run.
pub struct Outcome<'p> {
    /// What was seen on the way.
    pub detector: Detector<'p>,
    /// How it ended.
    pub ending: Ending,
    /// Choices made.
    pub choices: u64,
    /// Steps taken.
    pub steps: u64,
    /// All memory as the run left it.
    pub memories: Memories,
}

/// How a run ended.
#[derive(Debug)]
pub enum Ending {
    /// Every launch of every rank came to its end.
    Complete,
    /// A fault was seen and the run was asked to stop there.
    Stopped,
    /// The chooser gave it up.
    Abandoned,
    /// Nobody can run.
    Deadlock(Vec<Waiting>),
    /// An op that has no meaning.
    Error(EvalError),
}

/// Somebody who waits for ever.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Who.
    pub who: Actor,
    /// In which launch.
    pub launch: u32,
    /// For what.
    pub on: Blocked,
}

/// A role copy of the launch its rank is in.
struct Live<'p> {
    instance: Instance<'p>,
    launch: u32,
    /// What it waits for, and after how much progress of anybody it found that.
    blocked: Option<(u64, Blocked)>,
    /// After how many deeds of anybody a test of it failed: it lets others run first.
    yielded: Option<u64>,
}

/// Runs a plan once.
pub(in crate::check) fn execute<'p>(
    plan: &'p Plan,
    stage: &'p Stage,
    watch: Watch,
    limits: Limits,
    chooser: &mut dyn Chooser,
) -> Outcome<'p> {
    let mut detector = Detector::new(plan.kernels(), watch);
    stage.given.iter().for_each(|(memory, bytes)| detector.given(*memory, bytes.clone()));
    let world = World::new(stage.snapshot.memories.clone());
    let ranks = (0..plan.ranks()).map(|_| RankState::default()).collect();
    let run = Run {
        plan,
        stage,
        limits,
        world,
        detector,
        live: Vec::new(),
        ranks,
        progress: 0,
        choices: 0,
        steps: 0,
        polled: 0,
    };
    run.finish(chooser)
}

/// Where a rank is.
#[derive(Default)]
struct RankState {
    /// Launches begun.
    begun: u32,
    /// Role copies of the launch that are not done.
    running: usize,
    /// All role copies of the launch.
    actors: Vec<Actor>,
}

struct Run<'p> {
    plan: &'p Plan,
    stage: &'p Stage,
    limits: Limits,
    world: World,
    detector: Detector<'p>,
    /// By party number: the same in every run of a plan, whatever the schedule.
    live: Vec<Option<Live<'p>>>,
    ranks: Vec<RankState>,
    progress: u64,
    choices: u64,
    steps: u64,
    /// Choices since anybody did anything but poll.
    polled: u64,
}

/// Choices after which a world that only polls is given up.
const MOST_POLLS: u64 = 10_000;

impl<'p> Run<'p> {
    fn finish(mut self, chooser: &mut dyn Chooser) -> Outcome<'p> {
        let ending = match self.drive(chooser) {
            Ok(ending) => ending,
            Err(error) => Ending::Error(error),
        };
        self.detector.finish(matches!(ending, Ending::Complete));
        let Run { detector, choices, steps, world, .. } = self;
        Outcome { detector, ending, choices, steps, memories: world.memories }
    }

    fn drive(&mut self, chooser: &mut dyn Chooser) -> Result<Ending, EvalError> {
        let mut runnable = Vec::new();
        loop {
            for rank in 0..self.ranks.len() {
                while self.ranks[rank].running == 0 && (self.ranks[rank].begun as usize) < self.plan.launches() {
                    self.begin(rank as u32)?;
                }
            }
            if self.limits.first_fault && !self.detector.sightings().is_empty() {
                return Ok(Ending::Stopped);
            }
            runnable.clear();
            let waits = |live: &Live<'_>| live.blocked.as_ref().is_some_and(|(since, _)| *since == self.progress);
            let can_run = |(_, live): &(usize, &Option<Live<'_>>)| live.as_ref().is_some_and(|live| !waits(live));
            runnable.extend(self.live.iter().enumerate().filter(can_run).map(|(party, _)| party));
            if runnable.is_empty() {
                return Ok(self.nobody_runs());
            }
            let polls = |&party: &usize| {
                self.live[party].as_ref().is_some_and(|live| live.yielded == Some(self.detector.deeds))
            };
            match runnable.iter().all(polls) {
                // Everybody polls: each once more in turn, but not for ever.
                true => {
                    runnable = vec![runnable[self.polled as usize % runnable.len()]];
                    self.polled += 1;
                }
                false => {
                    runnable.retain(|party| !polls(party));
                    self.polled = 0;
                }
            }
            if self.polled > MOST_POLLS {
                return Err(EvalError::StepLimit { limit: self.steps });
            }
            let Some(party) = chooser.choose(&runnable) else { return Ok(Ending::Abandoned) };
            self.choices += 1;
            if !self.run_party(party, chooser.is_fine())? {
                self.choices -= 1;
                chooser.blocked();
            }
        }
    }

    /// Runs a party to its next choice; `false` when it could not take a single step.
    fn run_party(&mut self, party: usize, fine: bool) -> Result<bool, EvalError> {
        let mut ran = false;
        loop {
            self.steps += 1;
            if self.steps > self.limits.steps {
                return Err(EvalError::StepLimit { limit: self.limits.steps });
            }
            let live = self.live[party].as_mut().expect("a runnable party is live");
            self.detector.yielded = false;
            match live.instance.step(&mut self.world, &mut self.detector)? {
                Step::Ran => {
                    ran = true;
                    self.progress += 1;
                    live.blocked = None;
                }
                Step::Blocked(on) => {
                    live.blocked = Some((self.progress, on));
                    return Ok(ran);
                }
                Step::Done => {
                    let rank = live.instance.actor().rank;
                    self.live[party] = None;
                    self.done(rank);
                    return Ok(true);
                }
            }
            let live = self.live[party].as_ref().expect("not done");
            let next = live.instance.next_inst();
            let visible = next.is_some_and(|inst| is_visible(&live.instance.kernel().insts[inst].op));
            if self.detector.yielded {
                self.live[party].as_mut().expect("not done").yielded = Some(self.detector.deeds);
            }
            if self.detector.yielded || fine && visible {
                return Ok(true);
            }
        }
    }

    /// The host of a rank rewrites the inputs of its next launch and launches.
    fn begin(&mut self, rank: u32) -> Result<(), EvalError> {
        let launch = self.ranks[rank as usize].begun;
        let (kernel, binding): (&'p Kernel, _) =
            (self.plan.kernel(launch, rank), &self.stage.bindings[launch as usize][rank as usize]);
        binding.check(kernel, &self.world.memories)?;
        for (memory, bytes) in &self.stage.hosts[launch as usize][rank as usize].writes {
            self.detector.host(rank, AccessKind::Write, *memory, bytes.clone());
        }
        if self.plan.resets_counters && launch > 0 {
            self.reset(launch, rank);
        }
        let mut actors = Vec::new();
        for block in 0..kernel.blocks {
            for (role, data) in kernel.roles.iter() {
                let copies = data.copies.min(self.limits.most_copies);
                for copy in 0..copies {
                    let who = Actor { rank, block, role, copy };
                    let options = InstanceOptions::default();
                    let instance = Instance::new(kernel, binding, who, copies, options, &mut self.world);
                    self.detector.begin(who, launch);
                    let party = self.place(rank, actors.len());
                    self.live[party] = Some(Live { instance, launch, blocked: None, yielded: None });
                    actors.push(who);
                }
            }
        }
        self.progress += 1;
        self.ranks[rank as usize] = RankState { begun: launch + 1, running: actors.len(), actors };
        Ok(())
    }

    /// The number of a role copy: ranks take turns, so that it does not depend on who launched first.
    fn place(&mut self, rank: u32, index: usize) -> usize {
        let party = index * self.ranks.len() + rank as usize;
        if self.live.len() <= party {
            self.live.resize_with(party + 1, || None);
        }
        party
    }

    /// A mutation: the counters this rank waits on are set to 0 by its host.
    fn reset(&mut self, launch: u32, rank: u32) {
        use crate::check::memory::Bound;
        for bound in &self.stage.bindings[launch as usize][rank as usize].params {
            let Bound::Slots(banks) = bound else { continue };
            for bank in banks {
                let bytes = bank.offset..bank.offset + bank.len;
                self.detector.host(rank, AccessKind::Write, bank.memory, bytes.clone());
                self.world.memories.bytes_mut(bank.memory)[bytes.start as usize..bytes.end as usize].fill(0);
            }
        }
    }

    /// A role copy is done; with the last one its rank's launch is, and the host reads the outputs.
    fn done(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        state.running -= 1;
        if state.running == 0 {
            let launch = state.begun - 1;
            self.detector.end(rank, &state.actors, launch);
            for (memory, bytes) in &self.stage.hosts[launch as usize][rank as usize].reads {
                self.detector.host(rank, AccessKind::Read, *memory, bytes.clone());
            }
            // What the host does next belongs to the next launch.
            self.detector.end(rank, &[], launch + 1);
        }
    }

    fn nobody_runs(&self) -> Ending {
        let stuck = self.live.iter().flatten().filter_map(|live| {
            let (_, on) = live.blocked.clone()?;
            Some(Waiting { who: live.instance.actor(), launch: live.launch, on })
        });
        let stuck: Vec<Waiting> = stuck.collect();
        if stuck.is_empty() { Ending::Complete } else { Ending::Deadlock(stuck) }
    }
}

/// Whether the order of this op among those of other parties can matter beyond what vector clocks see.
fn is_visible(op: &Op) -> bool {
    matches!(
        op,
        Op::Signal { .. }
            | Op::SignalCredit { .. }
            | Op::Wait { .. }
            | Op::Test { .. }
            | Op::AtomicAdd { .. }
            | Op::PacketPut { .. }
            | Op::PacketGet { .. }
            | Op::Post { .. }
            | Op::PostSignal { .. }
    )
}
