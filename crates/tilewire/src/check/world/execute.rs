//! One run of a plan.

use super::choose::Chooser;
use super::footprint::{Footprint, is_visible};
use super::plan::{Plan, Stage, span};
use super::ready::Ready;
use super::stream::{StreamId, StreamRun};
use super::values::{Values, Wrong};
use crate::check::error::{EvalError, Location};
use crate::check::eval::{Blocked, Instance, InstanceOptions, Step};
use crate::check::memory::{Memories, World};
use crate::check::model::{Detector, Incomplete, Watch};
use crate::check::observer::{AccessKind, Actor};
use crate::ir::{Inst, Kernel, Op};

/// Limits of a run.
#[derive(Clone, Copy, Debug)]
pub(in crate::check) struct Limits {
    /// Most copies run of a role.
    pub most_copies: u32,
    /// Steps after which a run is abandoned.
    pub steps: u64,
    /// True if the run ends at the first fault.
    pub first_fault: bool,
}

/// The result of a run.
pub struct Outcome<'p> {
    /// The detector, with everything it saw.
    pub detector: Detector<'p>,
    /// How it ended.
    pub ending: Ending,
    /// Choices made.
    pub choices: u64,
    /// Steps taken.
    pub steps: u64,
    /// All memory as the run left it.
    pub memories: Memories,
    /// Elements that differ from their expected values.
    pub wrong: Vec<Wrong>,
}

/// How a run ended.
#[derive(Debug)]
pub enum Ending {
    /// Every launch of every rank came to its end.
    Complete,
    /// A fault was found and the run was asked to stop there.
    Stopped,
    /// The chooser abandoned it.
    Abandoned,
    /// No party can run.
    Deadlock(Vec<Waiting>),
    /// A meaningless op.
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

/// A party that waits forever.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The party.
    pub who: Who,
    /// The launch.
    pub launch: u32,
    /// What it waits for.
    pub on: Blocked,
}

/// A party's state machine.
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

    /// Its state, if its next step may turn out to be a poll.
    fn polled_state(&self) -> Option<u64> {
        let Runner::Role(instance) = self else { return None };
        let op = &instance.kernel().insts[instance.next_inst()?].op;
        matches!(op, Op::Test { .. } | Op::AtomicAdd { .. }).then(|| instance.state())
    }

    /// Its place.
    fn location(&self) -> Location {
        match self {
            Runner::Role(instance) => instance.location_now(),
            Runner::Stream(stream) => stream.location(),
        }
    }

    /// True if the order of its next step among those of others can matter beyond what vector clocks see.
    fn is_visible(&self) -> bool {
        match self {
            Runner::Role(instance) => {
                instance.next_inst().is_some_and(|inst| is_visible(&instance.kernel().insts[inst].op))
            }
            Runner::Stream(_) => true,
        }
    }
}

/// A party of its rank's current launch.
struct Live<'p> {
    runner: Runner<'p>,
    launch: u32,
    /// What it waits for, and the progress counter when it found that.
    blocked: Option<(u64, Blocked)>,
    polls: Polls,
}

/// How a party polls: failed tests, and atomics that changed nothing, since the last deed of anybody.
#[derive(Default)]
struct Polls {
    /// The number of deeds at that time.
    deeds: u64,
    /// By instruction: the state of the party before it, as a hash.
    states: Vec<(Inst, u64)>,
    /// Number of polls.
    count: u64,
}

impl Polls {
    /// A poll failed.
    fn failed(&mut self, inst: Inst, state: u64, deeds: u64) {
        if self.deeds != deeds {
            *self = Polls { deeds, ..Polls::default() };
        }
        self.count += 1;
        self.states.retain(|&(other, _)| other != inst);
        self.states.push((inst, state));
    }
}

/// How a party would continue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Going {
    /// It does something.
    On,
    /// It has polled very often since the last deed.
    Round,
    /// There was no deed since it was in this very state: it would return to it forever.
    Nowhere,
}

impl Live<'_> {
    fn going(&self, deeds: u64) -> Going {
        let Runner::Role(instance) = &self.runner else { return Going::On };
        let Some(next) = instance.next_inst().filter(|_| self.polls.deeds == deeds) else { return Going::On };
        match self.polls.states.iter().find(|(inst, _)| *inst == next) {
            Some(&(_, state)) if state == instance.state() => Going::Nowhere,
            Some(_) if self.polls.count >= PATIENCE => Going::Round,
            _ => Going::On,
        }
    }
}

/// Failed polls after which a party lets others run first.
const PATIENCE: u64 = 1000;
/// Choices in a row after which it does so anyway: for example ops that alternate in a lock forever.
const LONGEST_TURN: u64 = 20_000;

/// Runs a plan once.
pub(in crate::check) fn execute<'p>(
    plan: &'p Plan,
    stage: &'p Stage,
    watch: Watch,
    limits: Limits,
    chooser: &mut dyn Chooser,
) -> Outcome<'p> {
    let mut detector = Detector::new(plan.kernels(), &stage.slots, &stage.rings, watch);
    detector.promises.all = stage.promises.clone();
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
        rounds: 0,
        turn: (0, 0),
        wrong: Vec::new(),
        ready: Ready::default(),
        fine: chooser.is_fine(),
    };
    run.finish(chooser)
}

/// The progress of a rank.
#[derive(Default)]
struct RankState {
    /// Launches begun.
    begun: u32,
    /// Role copies and streams of the launch that are not done.
    running: usize,
    /// All role copies of the launch.
    actors: Vec<Actor>,
    /// Number of its streams.
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
    rounds: u64,
    wrong: Vec<Wrong>,
    /// The parties that can run, if each runs until it waits.
    ready: Ready,
    /// True if every op that others can see is a choice.
    fine: bool,
    /// The party that ran last, and how many ops that others can see it ran since another one did.
    turn: (usize, u64),
}

impl<'p> Run<'p> {
    fn finish(mut self, chooser: &mut dyn Chooser) -> Outcome<'p> {
        let ending = match self.drive(chooser) {
            Ok(ending) => ending,
            Err(error) => Ending::Error(error),
        };
        let ended = self.ranks.iter().map(|rank| rank.begun - u32::from(rank.running > 0)).min().unwrap_or(0);
        self.detector.finish(ended, matches!(ending, Ending::Complete));
        let Run { detector, choices, steps, world, wrong, .. } = self;
        Outcome { detector, ending, choices, steps, memories: world.memories, wrong }
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
            if let Some(party) = self.ready.next() {
                // It may already have been found, and run, when everybody was asked.
                if self.live[party].is_some() {
                    self.choices += 1;
                    self.run_party(party)?;
                    self.settle(party);
                }
                continue;
            }
            runnable.clear();
            let waits = |live: &Live<'_>| live.blocked.as_ref().is_some_and(|(since, _)| *since == self.progress);
            let can_run = |(_, live): &(usize, &Option<Live<'_>>)| live.as_ref().is_some_and(|live| !waits(live));
            runnable.extend(self.live.iter().enumerate().filter(can_run).map(|(party, _)| party));
            if runnable.is_empty() {
                return Ok(self.nobody_runs());
            }
            if let Some(ending) = self.polling(&mut runnable) {
                return Ok(ending);
            }
            let touches = |party: usize| match &self.live[party] {
                // Hosts that set counters do so between any two steps.
                _ if self.plan.resets_counters => Footprint::Anything,
                Some(live) => live.runner.footprint(),
                None => Footprint::Nothing,
            };
            let Some(party) = chooser.choose(&runnable, &touches) else { return Ok(Ending::Abandoned) };
            self.choices += 1;
            if !self.run_party(party)? {
                self.choices -= 1;
                chooser.blocked();
            }
            if self.fine {
                self.detector.set.clear();
            } else {
                self.settle(party);
            }
        }
    }

    /// A party has run as far as it can, or as is fair. It is tried again in its turn, or when what it waits for is
    /// set. A polling party is found when nobody else can run.
    fn settle(&mut self, party: usize) {
        self.ready.wake(&mut self.detector.set);
        let Some(live) = &self.live[party] else { return };
        match &live.blocked {
            Some((_, on)) => self.ready.wait(party, on),
            None if live.going(self.detector.deeds) == Going::On => self.ready.add(party),
            None => {}
        }
    }

    /// Sets aside those that would only poll. If nobody else is left and they would poll forever, that is a deadlock.
    fn polling(&mut self, runnable: &mut Vec<usize>) -> Option<Ending> {
        let deeds = self.detector.deeds;
        let going = |party: usize| self.live[party].as_ref().map_or(Going::Nowhere, |live| live.going(deeds));
        let of = |wanted: Going| runnable.iter().copied().filter(|&party| going(party) == wanted).collect::<Vec<_>>();
        let (mut on, round) = (of(Going::On), of(Going::Round));
        if on.is_empty() && round.is_empty() {
            return Some(self.nobody_runs());
        }
        if !round.is_empty() && !on.is_empty() {
            self.detector.incomplete.get_or_insert(Incomplete::Patience);
        }
        if on.is_empty() {
            // All poll, and some of them count: each once more in turn, until one gives up or the steps are spent.
            self.rounds += 1;
            on = vec![round[self.rounds as usize % round.len()]];
        }
        if on.len() > 1 && self.turn.1 > LONGEST_TURN {
            self.detector.incomplete.get_or_insert(Incomplete::Patience);
            on.retain(|&party| party != self.turn.0);
        }
        *runnable = on;
        None
    }

    /// Runs a party to its next choice; `false` if it could not take a single step.
    fn run_party(&mut self, party: usize) -> Result<bool, EvalError> {
        let mut ran = false;
        if self.turn.0 != party {
            self.turn = (party, 0);
        }
        loop {
            self.steps += 1;
            let live = self.live[party].as_mut().expect("a runnable party is live");
            if self.steps > self.limits.steps {
                let by = live.runner.location();
                return Err(EvalError::StepLimit { limit: self.limits.steps, by });
            }
            self.detector.failed_test = None;
            let state = live.runner.polled_state();
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
            if let (Some(inst), Some(state)) = (self.detector.failed_test, state) {
                live.polls.failed(inst, state, self.detector.deeds);
            }
            let visible = live.runner.is_visible();
            self.turn.1 += u64::from(visible);
            let ends = self.fine && visible || self.turn.1 > LONGEST_TURN && self.turn.1.is_multiple_of(LONGEST_TURN);
            if ends || live.going(self.detector.deeds) != Going::On {
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
        for values in self.plan.sets.get(launch as usize).map_or(&[][..], |ranks| &ranks[rank as usize]) {
            let (memory, bytes) = span(&self.stage.snapshot.bank(&values.memory));
            self.detector.host_sets(rank, memory, bytes.clone());
            self.world.memories.bytes_mut(memory)[bytes.start as usize..bytes.end as usize]
                .copy_from_slice(&values.bytes);
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

    /// A party begins. Party numbers are interleaved by rank, so that they do not depend on which rank launched first.
    fn enter(&mut self, rank: u32, index: usize, runner: Runner<'p>, launch: u32) {
        let party = index * self.ranks.len() + rank as usize;
        if self.live.len() <= party {
            self.live.resize_with(party + 1, || None);
        }
        self.live[party] = Some(Live { runner, launch, blocked: None, polls: Polls::default() });
        if !self.fine {
            self.ready.add(party);
        }
    }

    /// A mutation: the host of this rank sets the counters it waits on to 0.
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
        for values in self.plan.expected.get(launch as usize).map_or(&[][..], |ranks| &ranks[rank as usize]) {
            self.expects(rank, launch, values);
        }
        // The host's next actions belong to the next launch.
        self.detector.end(rank, &[], 0, launch + 1);
    }

    /// The host checks the expected values.
    fn expects(&mut self, rank: u32, launch: u32, values: &Values) {
        let at = span(&self.stage.snapshot.bank(&values.memory));
        let (memory, bytes) = at.clone();
        self.detector.host(rank, AccessKind::Read, memory, bytes.clone());
        let is_unwritten = self.detector.unwritten(memory, bytes.clone());
        let found = &self.world.memories.bytes(memory)[bytes.start as usize..bytes.end as usize];
        let size = values.ty.size() as u64;
        let wrong = match is_unwritten {
            Some(gap) => Some(((gap.start - bytes.start) / size, "a value".into(), None, (gap.end - gap.start) / size)),
            None => values.differ(found).map(|(element, expected, found, n)| (element, expected, Some(found), n)),
        };
        self.wrong.extend(wrong.map(|(element, expected, found, count)| Wrong {
            rank,
            launch,
            span: at,
            element,
            expected,
            found,
            count,
            at: values.at.clone(),
        }));
    }

    /// Everybody who is left waits, or polls forever.
    fn nobody_runs(&self) -> Ending {
        let stuck = self.live.iter().flatten().filter_map(|live| {
            let polls = || match &live.runner {
                Runner::Role(instance) => instance.polls_for(&self.world),
                Runner::Stream(_) => None,
            };
            let on = live.blocked.clone().map(|(_, on)| on).or_else(polls)?;
            Some(Waiting { who: live.runner.who(), launch: live.launch, on })
        });
        let stuck: Vec<Waiting> = stuck.collect();
        debug_assert_eq!(stuck.len(), self.live.iter().flatten().count(), "who is left waits or polls");
        if stuck.is_empty() { Ending::Complete } else { Ending::Deadlock(stuck) }
    }
}
