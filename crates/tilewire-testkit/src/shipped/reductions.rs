//! Plans for the reductions, and for all schedules of rings.

use super::{Cases, MESSAGES, World, before};
use tilewire::check::Plan;
use tilewire::collective::{Reduction, Rounds};
use tilewire::link::Transport;
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::transport::layout::Geometry;
use tilewire::{Algorithm, Knobs, Primitive, RunError, Tensor, Traced, all_gather, all_reduce, reduce_scatter};

/// The cases of all reductions, and of rings.
pub(super) fn cases(cases: &mut Cases, world: &World) {
    use Algorithm::{OneShot, Ring, TwoPhase};
    let blocks = world.blocks;
    let mut cases = Of { cases, world };
    let staged = Shape {
        primitive: Primitive::Staged,
        copies: false,
        launches: 3,
        before_others: 0,
        slots_of_others: before::SLOTS,
    };
    let ring = Shape { before_others: 1, ..staged };
    let packets = Shape { primitive: Primitive::Packet, launches: MESSAGES, ..staged };
    cases.add("all_gather", "ring", ring, move |link, n| ring_gather(link, blocks, slots(link, Ring, n)));
    let two_parts = Shape { slots_of_others: SHARED_SLOTS, ..ring };
    cases.add("all_gather", "ring, two values, one shared", two_parts, move |link, n| {
        shared_ring_gather(link, blocks, n)
    });
    let scatter = move |link: &RehearsalRank, n: usize, way: (Algorithm, Primitive), rounds| {
        let one = chunk(blocks);
        let (inp, out) = (Tensor::<f32>::zeros(link.world_size() * one), Tensor::<f32>::zeros(one));
        reduce(reduce_scatter(link, &out, &inp), link, way, rounds, (blocks, n))
    };
    cases.add("reduce_scatter", "staged", staged, move |l, n| {
        scatter(l, n, (OneShot, Primitive::Staged), Rounds::Roles)
    });
    let name = "staged, rounds as blocks";
    cases.add("reduce_scatter", name, staged, move |l, n| scatter(l, n, (OneShot, Primitive::Staged), Rounds::Blocks));
    let name = "staged, legs as blocks";
    cases.add("reduce_scatter", name, staged, move |l, n| scatter(l, n, (OneShot, Primitive::Staged), Rounds::Legs));
    cases.add("reduce_scatter", "packet", packets, move |l, n| {
        scatter(l, n, (OneShot, Primitive::Packet), Rounds::Roles)
    });
    cases.add("reduce_scatter", "ring", ring, move |l, n| scatter(l, n, (Ring, Primitive::Staged), Rounds::Roles));
    let all = move |link: &RehearsalRank, n: usize, way: (Algorithm, Primitive), rounds, in_place: bool| {
        // The shards have different lengths.
        let inp = Tensor::<f32>::zeros(link.world_size() * chunk(blocks) - 1);
        let out = if in_place { inp.clone() } else { Tensor::zeros(inp.len()) };
        reduce(all_reduce(link, &out, &inp), link, way, rounds, (blocks, n))
    };
    let two = (TwoPhase, Primitive::Staged);
    cases.add("all_reduce", "two-phase", staged, move |l, n| all(l, n, two, Rounds::Roles, false));
    cases.add("all_reduce", "two-phase, rounds as blocks", staged, move |l, n| all(l, n, two, Rounds::Blocks, false));
    cases.add("all_reduce", "two-phase, legs as blocks", staged, move |l, n| all(l, n, two, Rounds::Legs, false));
    cases.add("all_reduce", "two-phase, in place", staged, move |l, n| all(l, n, two, Rounds::Roles, true));
    cases.add("all_reduce", "ring", ring, move |l, n| all(l, n, (Ring, Primitive::Staged), Rounds::Roles, false));
    cases.add("all_reduce", "ring, in place", ring, move |l, n| {
        all(l, n, (Ring, Primitive::Staged), Rounds::Roles, true)
    });
    cases.add("all_reduce", "one-shot", packets, move |link, _| one_shot(link, blocks, 21, false));
    // On transports where other collectives use copies of their roles.
    let copied = Shape { copies: true, ..staged };
    let around = Shape { copies: true, ..ring };
    let in_one_pass = Shape { copies: true, ..packets };
    cases.add("all_reduce", "one-shot, in one pass", in_one_pass, move |link, _| one_shot(link, blocks, 20, false));
    cases.add("all_reduce", "one-shot, in one pass, in place", in_one_pass, move |link, _| {
        one_shot(link, blocks, 20, true)
    });
    cases.plan("all_reduce", "one-shot, in one pass, last flags", last_flags);
    cases.add("all_gather", "ring, beside copies", around, move |link, n| {
        ring_gather(link, blocks, slots(link, Ring, n))
    });
    let name = "staged, beside copies";
    cases.add("reduce_scatter", name, copied, move |l, n| scatter(l, n, (OneShot, Primitive::Staged), Rounds::Roles));
    let name = "two-phase, beside copies";
    cases.add("all_reduce", name, copied, move |l, n| all(l, n, two, Rounds::Roles, false));
    let name = "ring, beside copies";
    cases.add("all_reduce", name, around, move |l, n| all(l, n, (Ring, Primitive::Staged), Rounds::Roles, false));
    cases.plan("reduce_scatter", "direct", |world| in_windows(world, Windows::Scatter));
    cases.plan("all_reduce", "direct", |world| in_windows(world, Windows::All));
    cases.plan("all_reduce", "direct, one-shot", |world| in_windows(world, Windows::OneShot));
    cases.plan("all_reduce", "direct, in place", |world| in_windows(world, Windows::InPlace));
}

/// The cases of one world.
struct Of<'c> {
    cases: &'c mut Cases,
    world: &'c World,
}

impl Of<'_> {
    /// Adds a case whose launches run over a transport of this shape.
    fn add(
        &mut self,
        collective: &'static str,
        name: &str,
        shape: Shape,
        trace: impl Fn(&RehearsalRank, usize) -> Result<Traced, RunError> + 'static,
    ) {
        let world = self.world.clone();
        self.cases.add(collective, name, move || plan(&world, shape, &trace));
    }

    fn plan(&mut self, collective: &'static str, name: &str, plan: fn(&World) -> Result<Plan, RunError>) {
        let world = self.world.clone();
        self.cases.add(collective, name, move || plan(&world));
    }
}

/// Reductions through windows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Windows {
    Scatter,
    All,
    OneShot,
    InPlace,
}

/// Every rank writes its window before and after these reductions, and its neighbour's between two of them. A rank that
/// reads too early, or that nobody waits for, reads bytes that are being written.
fn in_windows(world: &World, what: Windows) -> Result<Plan, RunError> {
    let &World { ranks, blocks, .. } = world;
    // The shards of the all-reduce have different lengths.
    let one = chunk(blocks);
    let len = if what == Windows::Scatter { ranks * one } else { ranks * one - 1 };
    let windows = || -> Vec<Tensor<f32>> { (0..ranks).map(|_| Tensor::zeros(len)).collect() };
    let inputs = windows();
    let outputs = match what {
        Windows::Scatter => (0..ranks).map(|_| Tensor::zeros(one)).collect(),
        Windows::All | Windows::OneShot => windows(),
        Windows::InPlace => inputs.clone(),
    };
    // Ranks that do not map each other's windows use slots instead.
    let rehearsal = if world.posts() { two_way(world) } else { world.small() };
    rehearsal.plan(3 * 5, |link, n| {
        let (inp, out) = (&inputs[link.number() as usize], &outputs[link.number() as usize]);
        match n % 5 {
            0 | 3 => before::fill(inp),
            1 => {
                let reduction = match what {
                    Windows::Scatter => reduce_scatter(link, out, inp),
                    Windows::OneShot => all_reduce(link, out, inp).algorithm(Algorithm::OneShot),
                    _ => all_reduce(link, out, inp).algorithm(Algorithm::TwoPhase).window(&link.window(&outputs)),
                };
                let likewise = if world.posts() { Primitive::Staged } else { Primitive::Direct };
                let config = Knobs { primitive: Some(Primitive::Direct), ..config(likewise, blocks, SLOTS[n / 5]) };
                reduction.window(&link.window(&inputs)).config(config).trace()
            }
            2 => before::fill(out),
            _ if world.posts() => before::staged(link, 2 * blocks, before::SLOTS),
            _ => before::direct(link, blocks, &link.window(&inputs), len),
        }
    })
}

/// Slot bytes and depth of a launch.
fn slots(link: &RehearsalRank, algorithm: Algorithm, launch: usize) -> (usize, usize) {
    let all = if algorithm == Algorithm::Ring { ring_slots(link.world_size()) } else { SLOTS };
    all[launch % all.len()]
}

#[derive(Clone, Copy)]
struct Shape {
    primitive: Primitive,
    /// True if the transport deals its slots to copies of roles.
    copies: bool,
    launches: usize,
    /// The number of launches before the launch of another collective.
    before_others: usize,
    /// Slot bytes and depth of that other launch.
    slots_of_others: (usize, usize),
}

/// Slot bytes and depths of the launches. The bytes of the first one lie where the launch before left some that have
/// not been read.
const SLOTS: [(usize, usize); 3] = [(128, 2), (64, 4), (64, 2)];

/// The same for rings, where the launch of another collective comes after the first one. In a ring of at most as many
/// ranks as slots, a rank that has received something knows that its next slot is free. Therefore:
///
/// - The first launch has a slot for every step of a tile, and nothing was written there before. So bytes that are put
///   elsewhere are found.
/// - The second launch has the geometry of the other collective before it. So credits are needed for the bytes which
///   that one left behind.
/// - The second launch has an even number of steps, as all of them have. So the third one begins at its last step. A
///   ring of two ranks does not know that this step has been read, and needs the drain.
fn ring_slots(ranks: usize) -> [(usize, usize); 3] {
    [(64, 2 * ranks), before::SLOTS, (128, 2)]
}

/// The number of elements of a chunk. It gives an even number of tiles for every block, and the last block has fewer
/// elements.
fn chunk(blocks: usize) -> usize {
    blocks * 64 - 3
}

/// A transport with two channels for every block. Results come back on the second one.
fn two_way(world: &World) -> Rehearsal {
    let &World { ranks, blocks, .. } = world;
    world.joined(Rehearsal::new(Geometry {
        world_size: ranks,
        // A ring of many ranks has two slots of 64 bytes for each.
        per_peer_bytes: 2048.max(128 * ranks) * 2 * blocks,
        max_blocks_per_peer: 2 * blocks,
        max_slots: 8.max(2 * ranks),
        max_copies: 4,
        packet_bytes: 4096 * 2 * blocks,
        window_sets: 2,
    }))
}

/// Builds a plan whose launches run over this transport.
fn plan(
    world: &World,
    shape: Shape,
    trace: impl Fn(&RehearsalRank, usize) -> Result<Traced, RunError>,
) -> Result<Plan, RunError> {
    let (blocks, rehearsal) = (world.blocks, two_way(world));
    let Shape { primitive, copies, launches, before_others, slots_of_others } = shape;
    // There are two copies, and as few slots as otherwise, so that each slot is soon needed again.
    rehearsal.with_copies(if copies { 2 } else { 1 }).plan(1 + launches, |link, n| match (n, primitive) {
        (n, Primitive::Packet) if n == before_others && !world.posts() => before::packet(link, blocks),
        (n, _) if n == before_others => before::staged(link, 2 * blocks, slots_of_others),
        (n, _) => trace(link, if n < before_others { n } else { n - 1 }),
    })
}

fn config(primitive: Primitive, blocks: usize, (slot_bytes, depth): (usize, usize)) -> Knobs {
    let staged = primitive == Primitive::Staged;
    Knobs {
        primitive: Some(primitive),
        blocks: Some(blocks),
        slot_bytes: staged.then_some(slot_bytes),
        depth: staged.then_some(depth),
        granule: Some(1),
        ..Knobs::default()
    }
}

fn reduce(
    reduction: Reduction<'_, '_, f32, f32>,
    link: &RehearsalRank,
    (algorithm, primitive): (Algorithm, Primitive),
    rounds: Rounds,
    (blocks, launch): (usize, usize),
) -> Result<Traced, RunError> {
    let slots = slots(link, algorithm, launch);
    let knobs = config(primitive, blocks, slots);
    // Posts carry no packets. The message goes through slots instead.
    let knobs = match link.is_dense() {
        true => Knobs { slot_bytes: Some(slots.0), depth: Some(slots.1), ..knobs },
        false => knobs,
    };
    reduction.algorithm(algorithm).rounds(rounds).config(knobs).trace()
}

/// Every block has a few elements. Several of them share a packet, or fill it.
fn one_shot(link: &RehearsalRank, blocks: usize, each: usize, in_place: bool) -> Result<Traced, RunError> {
    let inp = Tensor::<i16>::zeros(blocks * each);
    let out = if in_place { inp.clone() } else { Tensor::zeros(inp.len()) };
    let config = config(Primitive::Packet, blocks, (0, 0));
    all_reduce(link, &out, &inp).algorithm(Algorithm::OneShot).config(config).trace()
}

/// Messages whose flags wrap around, after messages to one neighbour only: some of several messages are the last ones,
/// not all.
fn last_flags(world: &World) -> Result<Plan, RunError> {
    let (world, blocks) = (world.small().with_copies(4), world.blocks);
    world.at_message((1 << 16) - 16);
    world.plan(21, |link, n| match n {
        0 => before::packet(link, blocks),
        _ => one_shot(link, blocks, 20, false),
    })
}

fn ring_gather(link: &RehearsalRank, blocks: usize, slots: (usize, usize)) -> Result<Traced, RunError> {
    let one = chunk(blocks);
    let (inp, out) = (Tensor::<f32>::zeros(one), Tensor::<f32>::zeros(link.world_size() * one));
    let config = config(Primitive::Staged, blocks, slots);
    all_gather(link, &out, &inp).algorithm(Algorithm::Ring).config(config).trace()
}

/// The number of neighbours that share the second value. It is so large that a tile fits its slot only if they share
/// it.
const SHARERS: usize = 32;

/// The smallest slots for two values. Each value begins at a multiple of 64 bytes, and a slot holds one group of 16-bit
/// payloads.
const SHARED_SLOTS: (usize, usize) = (128, 2);

/// A payload and a value that neighbours share, as in a quantised gather.
fn shared_ring_gather(link: &RehearsalRank, blocks: usize, launch: usize) -> Result<Traced, RunError> {
    // The slots of all rings; a block's staging has 16 of them here. The tiles of the third launch are two groups.
    // Their shared values lie where the second launch left its last payload.
    let slots = [(128, (2 * link.world_size()).min(16)), SHARED_SLOTS, (320, 2)][launch];
    // Again an even number of tiles for every block. The last group is not whole.
    let one = blocks * 4 * SHARERS - 3;
    let (inp, out) = (Tensor::<f32>::zeros(one), Tensor::<f32>::zeros(link.world_size() * one));
    let config = Knobs { granule: Some(SHARERS), ..config(Primitive::Staged, blocks, slots) };
    all_gather(link, &out, &inp)
        .algorithm(Algorithm::Ring)
        .config(config)
        .produce2(|c| {
            let x = c.input.load(c.pos());
            (x.cast::<i16>(), x.abs().group_max(SHARERS as u32))
        })
        .last_per(SHARERS)
        .consume(|c, (payload, scale)| c.output.store(c.pos(), payload.cast::<f32>() * scale))
        .trace()
}
