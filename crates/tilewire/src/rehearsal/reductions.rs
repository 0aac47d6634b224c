//! Plans for the reductions, and for what goes round a ring.

use super::shipped::{Case, launch};
use super::{Rehearsal, RehearsalRank};
use crate::check::{Mutation, Plan};
use crate::collective::{
    Algorithm, Config, Primitive, Reduction, Rounds, RunError, all_gather, all_reduce, reduce_scatter,
};
use crate::hook::Traced;
use crate::tensor::Tensor;
use crate::transport::P2pTransport;

/// The cases of all reductions, and of rings.
pub(super) fn cases(ranks: usize, blocks: usize) -> Result<Vec<Case>, RunError> {
    use Algorithm::{OneShot, Ring, TwoPhase};
    let mut cases = Vec::new();
    let mut case = |collective, name: &str, plan: Plan| {
        let answers = name.starts_with("ring") || name.starts_with("two-phase");
        let exempt = if answers { Mutation::all() } else { &[Mutation::SwappedPeers] };
        cases.push(Case { collective, name: name.to_string(), plan, exempt });
    };
    let staged = Shape { ranks, blocks, launches: SLOTS.len() };
    let packets = Shape { ranks, blocks, launches: 9 };
    case("all_gather", "ring", plan(staged, |link, n| ring_gather(link, blocks, SLOTS[n]))?);
    let scatter = |link: &RehearsalRank, n: usize, way, rounds| {
        let (inp, out) = (Tensor::<f32>::zeros(link.world_size() * chunk(blocks)), Tensor::<f32>::zeros(chunk(blocks)));
        reduce(reduce_scatter(link, &out, &inp), way, rounds, blocks, SLOTS[n % SLOTS.len()])
    };
    case("reduce_scatter", "staged", plan(staged, |l, n| scatter(l, n, (OneShot, Primitive::Staged), Rounds::Roles))?);
    let name = "staged, rounds as blocks";
    case("reduce_scatter", name, plan(staged, |l, n| scatter(l, n, (OneShot, Primitive::Staged), Rounds::Blocks))?);
    case("reduce_scatter", "packet", plan(packets, |l, n| scatter(l, n, (OneShot, Primitive::Packet), Rounds::Roles))?);
    case("reduce_scatter", "ring", plan(staged, |l, n| scatter(l, n, (Ring, Primitive::Staged), Rounds::Roles))?);
    let all = |link: &RehearsalRank, n: usize, way, rounds, in_place: bool| {
        // Shards that are not all of one length.
        let inp = Tensor::<f32>::zeros(link.world_size() * chunk(blocks) - 1);
        let out = if in_place { inp.clone() } else { Tensor::zeros(inp.len()) };
        reduce(all_reduce(link, &out, &inp), way, rounds, blocks, SLOTS[n % SLOTS.len()])
    };
    let two = (TwoPhase, Primitive::Staged);
    case("all_reduce", "two-phase", plan(staged, |l, n| all(l, n, two, Rounds::Roles, false))?);
    case("all_reduce", "two-phase, rounds as blocks", plan(staged, |l, n| all(l, n, two, Rounds::Blocks, false))?);
    case("all_reduce", "two-phase, in place", plan(staged, |l, n| all(l, n, two, Rounds::Roles, true))?);
    case("all_reduce", "ring", plan(staged, |l, n| all(l, n, (Ring, Primitive::Staged), Rounds::Roles, false))?);
    case(
        "all_reduce",
        "ring, in place",
        plan(staged, |l, n| all(l, n, (Ring, Primitive::Staged), Rounds::Roles, true))?,
    );
    case("all_reduce", "one-shot", plan(packets, |link, _| one_shot(link, blocks))?);
    Ok(cases)
}

#[derive(Clone, Copy)]
struct Shape {
    ranks: usize,
    blocks: usize,
    launches: usize,
}

/// Slot bytes and depths of the launches.
const SLOTS: [(usize, usize); 3] = [(64, 2), (128, 4), (64, 2)];

/// Elements of a chunk: some steps for every block, of which the last has less to do.
fn chunk(blocks: usize) -> usize {
    blocks * 40 - 3
}

/// Launches over a transport that has two channels for every block: what comes back has one of its own.
fn plan(shape: Shape, trace: impl Fn(&RehearsalRank, usize) -> Result<Traced, RunError>) -> Result<Plan, RunError> {
    let Shape { ranks, blocks, launches } = shape;
    let (links, mut plan) = (Rehearsal::small(ranks, 2 * blocks).ranks(), Plan::new(ranks as u32));
    for number in 0..launches {
        launch(&mut plan, &links, |link| trace(link, number))?;
    }
    Ok(plan)
}

fn config(primitive: Primitive, blocks: usize, (slot_bytes, depth): (usize, usize)) -> Config {
    let staged = primitive == Primitive::Staged;
    Config {
        primitive: Some(primitive),
        blocks: Some(blocks),
        slot_bytes: staged.then_some(slot_bytes),
        depth: staged.then_some(depth),
        granule: Some(1),
        ..Config::default()
    }
}

fn reduce(
    reduction: Reduction<'_, '_, RehearsalRank, f32, f32>,
    (algorithm, primitive): (Algorithm, Primitive),
    rounds: Rounds,
    blocks: usize,
    slots: (usize, usize),
) -> Result<Traced, RunError> {
    reduction.algorithm(algorithm).rounds(rounds).config(config(primitive, blocks, slots)).trace()
}

/// A few elements for every block, of which several share a packet.
fn one_shot(link: &RehearsalRank, blocks: usize) -> Result<Traced, RunError> {
    let (inp, out) = (Tensor::<i16>::zeros(blocks * 21), Tensor::<i16>::zeros(blocks * 21));
    let config = config(Primitive::Packet, blocks, (0, 0));
    all_reduce(link, &out, &inp).algorithm(Algorithm::OneShot).config(config).trace()
}

fn ring_gather(link: &RehearsalRank, blocks: usize, slots: (usize, usize)) -> Result<Traced, RunError> {
    let (inp, out) = (Tensor::<f32>::zeros(chunk(blocks)), Tensor::<f32>::zeros(link.world_size() * chunk(blocks)));
    let config = config(Primitive::Staged, blocks, slots);
    all_gather(link, &out, &inp).algorithm(Algorithm::Ring).config(config).trace()
}
