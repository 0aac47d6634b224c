//! Plans for the exchanges of all ranks: by every protocol, with every way to share a launch, and several kinds in a
//! row.

use super::{Cases, MESSAGES, World, before};
use tilewire::check::Plan;
use tilewire::collective::{Exchange, Rounds};
use tilewire::link::Transport;
use tilewire::rehearsal::RehearsalRank;
use tilewire::{Knobs, Primitive, Rank, RunError, Tensor, Traced, all_gather, all_to_all, broadcast, gather, scatter};

/// An exchange of all ranks.
#[derive(Clone, Copy)]
enum Kind {
    AllToAll,
    AllGather,
    Broadcast,
    Gather,
    Scatter,
}

/// The form of one launch.
#[derive(Clone, Copy)]
struct Form {
    kind: Kind,
    primitive: Primitive,
    rounds: Rounds,
    /// Slot bytes and depth, for `staged` and `bulk`.
    slots: (usize, usize),
    /// True for a plain copy that keeps its own chunk while it sends another one.
    keeps: bool,
}

/// The cases of all exchanges of all ranks.
pub(super) fn cases(cases: &mut Cases, world: &World) {
    let mut case = |collective, name: &str, forms: Vec<Form>| {
        let world = world.clone();
        cases.add(collective, name, move || plan(&world, &forms));
    };
    case("all_to_all", "staged", staged(Kind::AllToAll, Rounds::Roles));
    case("all_to_all", "staged, in groups", in_groups(Kind::AllToAll));
    case("all_to_all", "staged, rounds as blocks", staged(Kind::AllToAll, Rounds::Blocks));
    case("all_to_all", "staged, legs as blocks", staged(Kind::AllToAll, Rounds::Legs));
    case("all_to_all", "packet", repeated(Kind::AllToAll, Primitive::Packet, Rounds::Roles, MESSAGES));
    case(
        "all_to_all",
        "packet, rounds as blocks",
        repeated(Kind::AllToAll, Primitive::Packet, Rounds::Blocks, MESSAGES),
    );
    case("all_to_all", "direct", repeated(Kind::AllToAll, Primitive::Direct, Rounds::Roles, 3));
    case("all_to_all", "direct, rounds as blocks", repeated(Kind::AllToAll, Primitive::Direct, Rounds::Blocks, 3));
    case("all_to_all", "packet, legs as blocks", repeated(Kind::AllToAll, Primitive::Packet, Rounds::Legs, MESSAGES));
    case("all_to_all", "direct, legs as blocks", repeated(Kind::AllToAll, Primitive::Direct, Rounds::Legs, 3));
    case("all_to_all", "bulk", bulk(Kind::AllToAll, Rounds::Roles));
    case("all_to_all", "bulk, rounds as blocks", bulk(Kind::AllToAll, Rounds::Blocks));
    case("all_to_all", "bulk, legs as blocks", bulk(Kind::AllToAll, Rounds::Legs));
    for (collective, kind) in [
        ("all_gather", Kind::AllGather),
        ("broadcast", Kind::Broadcast),
        ("gather", Kind::Gather),
        ("scatter", Kind::Scatter),
    ] {
        case(collective, "staged", staged(kind, Rounds::Roles));
        case(collective, "staged, legs as blocks", staged(kind, Rounds::Legs));
        case(collective, "bulk", bulk(kind, Rounds::Roles));
        case(collective, "packet", repeated(kind, Primitive::Packet, Rounds::Roles, MESSAGES));
        case(collective, "direct", repeated(kind, Primitive::Direct, Rounds::Roles, 3));
    }
    case("all_to_all", MEDLEY, medley());
    for (collective, kind) in [("all_to_all", Kind::AllToAll), ("all_gather", Kind::AllGather)] {
        // The usual form, by one block.
        let world = World { blocks: 1, ..world.clone() };
        cases.add(collective, "direct, kept while sent", move || plan(&world, &keeping(kind)));
    }
    let world = World { blocks: 1, ..world.clone() };
    cases.add("barrier", "packet", move || barriers(&world));
}

pub(super) const MEDLEY: &str = "after and before others";

fn staged(kind: Kind, rounds: Rounds) -> Vec<Form> {
    in_slots(kind, Primitive::Staged, rounds)
}

fn bulk(kind: Kind, rounds: Rounds) -> Vec<Form> {
    in_slots(kind, Primitive::Bulk, rounds)
}

fn in_slots(kind: Kind, primitive: Primitive, rounds: Rounds) -> Vec<Form> {
    let form = |slots| Form { kind, primitive, rounds, slots, keeps: false };
    [(64, 2), (128, 2), (64, 4)].map(form).to_vec()
}

/// Plain copies into windows. The own chunk is stored together with the first one.
fn keeping(kind: Kind) -> Vec<Form> {
    vec![Form { kind, primitive: Primitive::Direct, rounds: Rounds::Roles, slots: (64, 2), keeps: true }; 3]
}

/// There are enough slots for a sender to wait for several together. The launches end within such a group.
fn in_groups(kind: Kind) -> Vec<Form> {
    vec![Form { kind, primitive: Primitive::Staged, rounds: Rounds::Roles, slots: (16, 8), keeps: false }; 3]
}

fn repeated(kind: Kind, primitive: Primitive, rounds: Rounds, launches: usize) -> Vec<Form> {
    vec![Form { kind, primitive, rounds, slots: (64, 2), keeps: false }; launches]
}

/// All kinds one after the other, staged and direct, over one transport, and then all of them again. So each kind also
/// begins where it left off.
fn medley() -> Vec<Form> {
    let kinds = [Kind::AllToAll, Kind::Broadcast, Kind::AllGather, Kind::Scatter, Kind::Gather, Kind::AllToAll];
    let form = |(i, kind)| Form {
        kind,
        primitive: if i % 3 == 1 { Primitive::Direct } else { Primitive::Staged },
        rounds: if i % 2 == 0 { Rounds::Roles } else { Rounds::Blocks },
        slots: if i % 2 == 0 { (64, 2) } else { (128, 4) },
        keeps: false,
    };
    let turn: Vec<Form> = kinds.into_iter().enumerate().map(form).collect();
    [&turn[..], &turn].concat()
}

/// What `barrier` launches.
fn barriers(world: &World) -> Result<Plan, RunError> {
    // Ranks that answer each other know that slots are free, unless another launch has just filled them.
    let others = match (world.posts(), world.is_mixed()) {
        (false, _) => 1,
        (true, false) => 2,
        // Two launches in slots: the near peer's credit is for the second one.
        (true, true) => 3 + MESSAGES,
    };
    world.small().plan(others + MESSAGES, |link, n| match n {
        0 => before::packet(link, 1),
        n if n < others && n <= MESSAGES && world.is_mixed() => before::packet_within(link, 1),
        n if n < others => before::staged(link, 1, before::SLOTS),
        _ => {
            let (inp, out) = (Tensor::<u64>::zeros(1), Tensor::<u64>::zeros(world.ranks));
            let exchange = all_gather(link, &out, &inp);
            match world.posts() {
                true => exchange.slot_bytes(before::SLOTS.0).depth(before::SLOTS.1).trace(),
                false => exchange.trace(),
            }
        }
    })
}

/// A launch of a plan.
enum Step<'f> {
    /// Only the neighbours exchange, in this way.
    Before(Primitive),
    /// Only the neighbours exchange, in windows of this many elements.
    BeforeDirect(usize),
    /// Packets within the domains.
    Within,
    Form(&'f Form),
}

fn plan(world: &World, forms: &[Form]) -> Result<Plan, RunError> {
    let &World { ranks, blocks, .. } = world;
    let windows: Vec<Tensor<f32>> = (0..ranks).map(|_| Tensor::zeros(ranks * chunk(blocks))).collect();
    // One launch before for each way of sending that the forms use, and for each window: it has lines of its own.
    let (mut sent, mut steps) = (Vec::new(), Vec::new());
    for form in forms {
        let window = (form.primitive == Primitive::Direct).then(|| form.received(ranks, blocks));
        if !sent.contains(&(form.primitive, window)) {
            sent.push((form.primitive, window));
            match window {
                // Twice, because the first launch cannot overwrite anything too early.
                Some(len) => steps.extend([Step::BeforeDirect(len), Step::BeforeDirect(len)]),
                None => steps.push(Step::Before(form.primitive)),
            }
            if form.primitive == Primitive::Packet && world.is_mixed() {
                steps.extend((0..MESSAGES).map(|_| Step::Within));
            }
        }
        steps.push(Step::Form(form));
    }
    let mut plan = world.small().plan(steps.len(), |link, n| match steps[n] {
        Step::Before(Primitive::Packet) => before::packet(link, blocks),
        Step::BeforeDirect(len) => before::direct(link, blocks, &link.window(&parts(&windows, len)), chunk(blocks)),
        Step::Before(_) => before::staged(link, blocks, before::SLOTS),
        Step::Within => before::packet_within(link, blocks),
        Step::Form(form) => trace(link, blocks, *form, &windows),
    })?;
    for (rank, window) in windows.iter().enumerate() {
        plan.host_reads(rank as u32, window.memory());
    }
    Ok(plan)
}

impl Form {
    /// Elements that a rank receives.
    fn received(&self, ranks: usize, blocks: usize) -> usize {
        match self.kind {
            Kind::AllToAll | Kind::AllGather | Kind::Gather => ranks * chunk(blocks),
            Kind::Broadcast | Kind::Scatter => chunk(blocks),
        }
    }
}

/// The first elements of every window.
fn parts(windows: &[Tensor<f32>], len: usize) -> Vec<Tensor<f32>> {
    windows.iter().map(|window| window.slice(0..len)).collect()
}

/// The number of elements of a chunk. It gives every block several steps, and the last block fewer.
fn chunk(blocks: usize) -> usize {
    blocks * 44 - 3
}

fn trace(link: &RehearsalRank, blocks: usize, form: Form, windows: &[Tensor<f32>]) -> Result<Traced, RunError> {
    let (ranks, window) = (link.world_size(), &windows[link.number() as usize]);
    let (one, all) = (chunk(blocks), ranks * chunk(blocks));
    let sent = if matches!(form.kind, Kind::AllToAll | Kind::Scatter) { all } else { one };
    let received = form.received(ranks, blocks);
    let direct = form.primitive == Primitive::Direct;
    // A window is always a whole output. If the output is only one chunk, the rest of the window is unused.
    let windows = parts(windows, received);
    let out = if direct { window.slice(0..received) } else { Tensor::zeros(received) };
    let inp = Tensor::<f32>::zeros(sent);
    let exchange = of_kind(form.kind, link, &out, &inp);
    let exchange = if direct { exchange.window(&link.window(&windows)) } else { exchange };
    let (slot_bytes, depth) = form.slots;
    // Posts carry no packets. The message goes through slots instead.
    let staged = form.primitive != Primitive::Direct && (form.primitive != Primitive::Packet || link.is_dense());
    let config = Knobs {
        primitive: Some(form.primitive),
        blocks: Some(blocks),
        slot_bytes: staged.then_some(slot_bytes),
        depth: staged.then_some(depth),
        granule: Some(1),
        ..Knobs::default()
    };
    let exchange = exchange.config(config).rounds(form.rounds);
    if form.keeps {
        return exchange.keep_while_sending().trace();
    }
    exchange.produce(|c| c.input.load(c.pos()) * 0.5).trace()
}

fn of_kind<'h, 'l>(
    kind: Kind,
    link: &'l RehearsalRank,
    out: &Tensor<f32>,
    inp: &Tensor<f32>,
) -> Exchange<'h, 'l, f32, f32> {
    let root = Rank::new(0);
    match kind {
        Kind::AllToAll => all_to_all(link, out, inp),
        Kind::AllGather => all_gather(link, out, inp),
        Kind::Broadcast => broadcast(link, out, inp, root),
        Kind::Gather => gather(link, out, inp, root),
        Kind::Scatter => scatter(link, out, inp, root),
    }
}
