//! Runs launches to their end under a scheduler.

use super::error::{EvalError, Location, Stuck};
use super::eval::{Blocked, Instance, InstanceOptions, Step};
use super::memory::{Binding, Memories, World};
use super::observer::{Actor, Observer, Unobserved};
use super::random::Random;
use crate::ir::Kernel;

/// The scheduler's choice of the next step.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Schedule {
    /// One step of each in turn.
    #[default]
    RoundRobin,
    /// Each runs until it blocks or is done, in turn, like an engine with one thread.
    ToBlock,
    /// A random one, from this seed.
    Random(u64),
}

/// How a run uses the freedom of the language.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The scheduler.
    pub schedule: Schedule,
    /// Order of elements, time of bulk copies.
    pub instance: InstanceOptions,
    /// Most copies run of a role. 1 is the CPU engine's number; `u32::MAX` runs the kernel's own.
    pub most_copies: u32,
    /// Steps after which a run is abandoned.
    pub step_limit: u64,
}

impl Default for Options {
    fn default() -> Self {
        let (schedule, instance) = (Schedule::default(), InstanceOptions::default());
        Options { schedule, instance, most_copies: 1, step_limit: 100_000_000 }
    }
}

/// Runs one launch of a single rank to its end.
///
/// ```
/// use tilewire::check::{self, Bank, Binding, Bound, Memories, Options};
/// use tilewire::ir::{Access, Base, Builder, Op, Param, Place, SourceLine, Type};
///
/// let at = SourceLine::caller();
/// let mut b = Builder::new("store_seven", 1);
/// let out = b.param(Param::Buffer {
///     name: "out".into(), ty: Type::U8, len: 1, banks: 1, access: Access::Out, align: 1,
/// });
/// b.open_role("main", 1, 1, &at);
/// let (index, x) = (b.constant(Type::I64, 0, &at), b.constant(Type::U8, 7, &at));
/// b.push(Op::Store { at: Place { base: Base::Param(out), bank: None, index }, x, mask: None }, &at);
/// b.close();
///
/// let mut memories = Memories::new();
/// let memory = memories.add(vec![0]);
/// let binding = Binding::alone(vec![Bound::Buffer(vec![Bank { memory, offset: 0, len: 1 }])]);
/// let after = check::run(&b.finish(), &binding, memories, Options::default()).unwrap();
/// assert_eq!(after.bytes(memory), [7]);
/// ```
pub fn run(kernel: &Kernel, binding: &Binding, memories: Memories, options: Options) -> Result<Memories, EvalError> {
    run_world(&[(kernel, binding)], memories, options)
}

/// Runs one launch of every rank at the same time; ranks meet in the memory their bindings share.
pub fn run_world(ranks: &[(&Kernel, &Binding)], memories: Memories, options: Options) -> Result<Memories, EvalError> {
    let mut world = World::new(memories);
    launch(ranks, &mut world, &mut Unobserved, options)?;
    Ok(world.memories)
}

/// As [`run_world`], in a world that outlives the launch and with an observer.
pub fn launch(
    ranks: &[(&Kernel, &Binding)],
    world: &mut World,
    observer: &mut dyn Observer,
    options: Options,
) -> Result<(), EvalError> {
    let mut all = instances(ranks, world, options)?;
    let mut random = Random::new(match options.schedule {
        Schedule::Random(seed) => seed,
        _ => 0,
    });
    let mut live: Vec<usize> = (0..all.len()).collect();
    // What each instance waits for, and the progress counter at that time: older findings are outdated.
    let mut blocked: Vec<Option<(u64, Blocked)>> = vec![None; all.len()];
    let (mut progress, mut stuck) = (0, 0);
    let (mut turn, mut steps) = (0, 0);
    while !live.is_empty() {
        if stuck == live.len() {
            // Everybody waits: nothing will change unless the network delivers.
            if !world.network.progress(&mut world.memories, observer) {
                return Err(deadlock(&all, blocked));
            }
            (progress, stuck) = (progress + 1, 0);
        }
        let place = match options.schedule {
            Schedule::Random(_) => random.below(live.len()),
            _ => turn % live.len(),
        };
        let who = live[place];
        turn = place + 1;
        if blocked[who].as_ref().is_some_and(|(since, _)| *since == progress) {
            continue;
        }
        steps += 1;
        if steps > options.step_limit {
            let by = all[who].location_now();
            return Err(EvalError::StepLimit { limit: options.step_limit, by });
        }
        match all[who].step(world, observer)? {
            Step::Ran => {
                (progress, stuck) = (progress + 1, 0);
                blocked[who] = None;
                if options.schedule == Schedule::ToBlock {
                    turn = place;
                }
            }
            Step::Blocked(on) => {
                blocked[who] = Some((progress, on));
                stuck += 1;
            }
            Step::Done => {
                live.remove(place);
                turn = place;
            }
        }
    }
    while world.network.progress(&mut world.memories, observer) {}
    Ok(())
}

/// The instances of one launch of every rank, in the order rank, block, role, copy; their bindings are checked.
pub fn instances<'k>(
    ranks: &[(&'k Kernel, &'k Binding)],
    world: &mut World,
    options: Options,
) -> Result<Vec<Instance<'k>>, EvalError> {
    let mut all = Vec::new();
    for &(kernel, binding) in ranks {
        binding.check(kernel, &world.memories)?;
        for block in 0..kernel.blocks {
            for (role, data) in kernel.roles.iter() {
                let copies = data.copies.min(options.most_copies);
                for copy in 0..copies {
                    let who = Actor { rank: binding.rank, block, role, copy };
                    all.push(Instance::new(kernel, binding, who, copies, options.instance, world));
                }
            }
        }
    }
    Ok(all)
}

fn deadlock(all: &[Instance<'_>], blocked: Vec<Option<(u64, Blocked)>>) -> EvalError {
    let stuck = all.iter().zip(blocked).filter_map(|(instance, on)| {
        let (_, on) = on?;
        Some(Stuck { by: Location::new(instance.kernel(), instance.actor(), &on.at), on })
    });
    EvalError::Deadlock { blocked: stuck.collect() }
}
