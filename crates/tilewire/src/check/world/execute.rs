//! One run of a plan.

use super::choose::Chooser;
use super::footprint::{Footprint, is_visible};
use super::plan::{Plan, Stage};
use super::stream::{StreamId, StreamRun};
use crate::check::error::EvalError;
use crate::check::eval::{Blocked, Instance, InstanceOptions, Step};
use crate::check::memory::{Memories, World};
use crate::check::model::{Detector, Watch};
use crate::check::observer::{AccessKind, Actor};
use crate::ir::{Inst, Kernel};

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

/// A party that takes steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// A role copy.
    Role(Actor),
    /// A copy engine.
    Stream(StreamId),
}

/// Somebody who waits for ever.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Who.
    pub who: Who,
    /// In which launch.
    pub launch: u32,
    /// For what.
    pub on: Blocked,
}

/// Whoever takes steps.
enum Runner<'p> {
    Role(Box<Instance<'p>>),
    Stream(StreamRun<'p>),
}

impl Runner<'_> {
    fn who(&self) -> Who {
        match self {
            Runner::Role(instance) => Who::Role(instance.actor()),
            Runner::Stream(stream) => Who::Stream(stream.id),
        }
    }

    fn rank(&self) -> u32 {
        match self.who() {
            Who::Role(who) => who.rank,
            Who::Stream(id) => id.rank,
        }
    }

    fn step(&mut self, world: &mut World, detector: &mut Detector<'_>) -> Result<Step, EvalError> {
        match self {
            Runner::Role(instance) => instance.step(world, detector),
            Runner::Stream(stream) => Ok(stream.step(world, detector)),
        }
    }

    fn footprint(&self) -> Footprint {
        match self {
            Runner::Role(instance) => Footprint::of(instance),
            Runner::Stream(stream) => stream.footprint(),
        }
    }

    /// Whether the order of its next step among those of others can matter beyond what vector clocks see.
    fn is_visible(&self) -> bool {
        match self {
            Runner::Role(instance) => {
                instance.next_inst().is_some_and(|inst| is_visible(&instance.kernel().insts[inst].op))
            }
            Runner::Stream(_) => true,
        }
    }
}

/// A party of the launch its rank is in.
struct Live<'p> {
    runner: Runner<'p>,
    launch: u32,
    /// What it waits for, and after how much progress of anybody it found that.
    blocked: Option<(u64, Blocked)>,
    /// Its tests that failed, each after how many deeds of anybody.
    failed: Vec<(Inst, u64)>,
}

impl Live<'_> {
    /// Whether it would only repeat a test that failed and of which nothing has changed: it lets others run first. (A loop that gives up
    /// after so many tries is not run through its tries before anybody else does something.)
    fn polls(&self, deeds: u64) -> bool {
        let next = match &self.runner {
            Runner::Role(instance) => instance.next_inst(),
            Runner::Stream(_) => None,
        };
        next.is_some_and(|next| self.failed.contains(&(next, deeds)))
    }
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
    /// Role copies and streams of the launch that are not done.
    running: usize,
    /// All role copies of the launch.
    actors: Vec<Actor>,
    /// How many streams it has.
    streams: u32,
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
        let ended = self.ranks.iter().map(|rank| rank.begun - u32::from(rank.running > 0)).min().unwrap_or(0);
        self.detector.finish(ended, matches!(ending, Ending::Complete));
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
            let polls = |&party: &usize| self.live[party].as_ref().is_some_and(|live| live.polls(self.detector.deeds));
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
            let touches = |party: usize| match &self.live[party] {
                // Hosts that set counters do so between any two steps.
                _ if self.plan.resets_counters => Footprint::Anything,
                Some(live) => live.runner.footprint(),
                None => Footprint::Nothing,
            };
            let Some(party) = chooser.choose(&runnable, &touches) else { return Ok(Ending::Abandoned) };
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
            self.detector.failed_test = None;
            match live.runner.step(&mut self.world, &mut self.detector)? {
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
                    let rank = live.runner.rank();
                    self.live[party] = None;
                    self.ranks[rank as usize].running -= 1;
                    if self.ranks[rank as usize].running == 0 {
                        self.end(rank);
                    }
                    return Ok(true);
                }
            }
            let live = self.live[party].as_mut().expect("not done");
            if let Some(inst) = self.detector.failed_test {
                live.failed.retain(|&(other, _)| other != inst);
                live.failed.push((inst, self.detector.deeds));
            }
            if fine && live.runner.is_visible() || live.polls(self.detector.deeds) {
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
                    self.enter(rank, actors.len(), Runner::Role(Box::new(instance)), launch);
                    actors.push(who);
                }
            }
        }
        let (streams, bound) = (self.plan.streams(launch, rank), &self.stage.streams[launch as usize][rank as usize]);
        for (number, (stream, bound)) in (0..).zip(streams.iter().zip(bound)) {
            let id = StreamId { rank, number };
            self.detector.begin_stream(id, launch);
            let runner = Runner::Stream(StreamRun::new(id, stream, bound));
            self.enter(rank, actors.len() + number as usize, runner, launch);
        }
        self.progress += 1;
        let (running, streams) = (actors.len() + streams.len(), streams.len() as u32);
        self.ranks[rank as usize] = RankState { begun: launch + 1, running, actors, streams };
        if running == 0 {
            self.end(rank);
        }
        Ok(())
    }

    /// A party begins. Ranks take turns in the numbers of parties, so that those do not depend on who launched first.
    fn enter(&mut self, rank: u32, index: usize, runner: Runner<'p>, launch: u32) {
        let party = index * self.ranks.len() + rank as usize;
        if self.live.len() <= party {
            self.live.resize_with(party + 1, || None);
        }
        self.live[party] = Some(Live { runner, launch, blocked: None, failed: Vec::new() });
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

    /// A rank's launch is over: its host reads the outputs.
    fn end(&mut self, rank: u32) {
        let RankState { begun, actors, streams, .. } = &self.ranks[rank as usize];
        let launch = begun - 1;
        self.detector.end(rank, actors, *streams, launch);
        for (memory, bytes) in &self.stage.hosts[launch as usize][rank as usize].reads {
            self.detector.host(rank, AccessKind::Read, *memory, bytes.clone());
        }
        // What the host does next belongs to the next launch.
        self.detector.end(rank, &[], 0, launch + 1);
    }

    fn nobody_runs(&self) -> Ending {
        let stuck = self.live.iter().flatten().filter_map(|live| {
            let (_, on) = live.blocked.clone()?;
            Some(Waiting { who: live.runner.who(), launch: live.launch, on })
        });
        let stuck: Vec<Waiting> = stuck.collect();
        if stuck.is_empty() { Ending::Complete } else { Ending::Deadlock(stuck) }
    }
}
