//! Plans of schedules that travel by posts: in a world of far peers only, and in a world of near and far peers.

use super::exchanges::MEDLEY;
use super::{Case, Cases, GEOMETRIES, World, before, by_hand, columns, in_slots, shipped_in, windows};
use tilewire::check::Plan;
use tilewire::collective::Rounds;
use tilewire::link::Transport;
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::transport::layout::Geometry;
use tilewire::{
    Algorithm, Knobs, Primitive, Rank, RunError, Tensor, Traced, all_gather, all_reduce, all_to_all, broadcast, gather,
    reduce_scatter, scatter, sendrecv,
};

/// The cases of everything that posts carry, in worlds that together have every kind of pair of ranks.
pub(super) fn cases(cases: &mut Cases, ranks: usize, blocks: usize) {
    let alone: Vec<Vec<usize>> = (0..ranks).map(|rank| vec![rank]).collect();
    // Domains that are not contiguous. Each has near peers if there are enough ranks.
    let mixed = [0, 1].map(|first| (first..ranks).step_by(2).collect::<Vec<_>>()).to_vec();
    let mut worlds = vec![("posted", alone)];
    if ranks > 2 {
        worlds.push(("mixed", mixed));
    }
    for (links, domains) in worlds {
        cases_in(cases, (ranks, blocks), links, &domains);
    }
}

/// Does the same in a world with these domains. `links` is the name of this arrangement.
pub(super) fn cases_in(cases: &mut Cases, (ranks, blocks): (usize, usize), links: &str, domains: &[Vec<usize>]) {
    windows::cases_in(cases, blocks, links, domains);
    by_hand::cases_in(cases, (ranks, blocks), links, domains);
    for &(collective, what, copies, trace) in ALL {
        let domains = domains.to_vec();
        cases.add(collective, format!("{what}, {links}"), move || {
            after_neighbours(&world(ranks, blocks, &domains).with_copies(copies), blocks, trace)
        });
    }
    let world = World { ranks, blocks, domains: Some(domains.into()) };
    for case in shipped_in(&world).into_iter().filter(is_own) {
        let name = format!("{}, {links}", case.name);
        // The cases above are stricter with posts.
        if !cases.0.iter().any(|other| (other.collective, &other.name) == (case.collective, &name)) {
            cases.0.push(Case { name, ..case });
        }
    }
}

/// True for a schedule for shared memory that can also run among far peers, and that tests something there.
fn is_own(case: &Case) -> bool {
    // Far peers take no packets and map no windows, so one-shot is refused. Other schedules fall back to slots, where
    // the numbers of packets mean nothing.
    let is_one_shot = case.collective == "all_reduce" && case.name.contains("one-shot");
    // Schedules for windows have separate cases, in place and through an outbox. Reductions fall back to slots.
    let is_reduction = matches!(case.collective, "all_reduce" | "reduce_scatter");
    let is_window = (case.name.starts_with("direct") && case.name != columns::DIRECT) || case.name == MEDLEY;
    let is_window = is_window && !is_reduction;
    !is_one_shot && !is_window && !case.name.ends_with("last flags")
}

/// Traces one launch of a schedule. A case has three launches.
pub(super) type Trace = fn(&RehearsalRank, blocks: usize, launch: usize) -> Result<Traced, RunError>;

/// For each collective: a name, the copies of roles, and a launch.
const ALL: &[(&str, &str, usize, Trace)] = &[
    ("sendrecv", "staged", 1, |link, blocks, n| exchange(link, blocks, Primitive::Staged, n)),
    ("sendrecv", "staged, 2 copies", 2, |link, blocks, n| exchange(link, blocks, Primitive::Staged, n)),
    ("sendrecv", "bulk", 1, |link, blocks, n| exchange(link, blocks, Primitive::Bulk, n)),
    // Bulk in larger slots comes first, because a post that goes too far is found only where nothing was written
    // before.
    ("sendrecv", "staged between bulk", 1, |link, blocks, n| {
        let primitive = if n == 1 { Primitive::Staged } else { Primitive::Bulk };
        exchange(link, blocks, primitive, 1 - n % 2)
    }),
    ("sendrecv", "two values, narrow tiles", 1, two_values),
    ("all_to_all", "staged", 1, |link, blocks, n| {
        let (out, inp) = (floats(link.world_size() * len(blocks)), floats(link.world_size() * len(blocks)));
        all_to_all(link, &out, &inp).config(slots(blocks, n)).trace()
    }),
    ("all_gather", "staged", 1, |link, blocks, n| {
        all_gather(link, &floats(link.world_size() * len(blocks)), &floats(len(blocks)))
            .config(slots(blocks, n))
            .trace()
    }),
    ("all_gather", "ring", 1, |link, blocks, n| {
        all_gather(link, &floats(link.world_size() * len(blocks)), &floats(len(blocks)))
            .algorithm(Algorithm::Ring)
            .config(slots(blocks, n))
            .trace()
    }),
    ("broadcast", "staged", 1, |link, blocks, n| {
        broadcast(link, &floats(len(blocks)), &floats(len(blocks)), Rank::new(1)).config(slots(blocks, n)).trace()
    }),
    ("gather", "staged", 1, |link, blocks, n| {
        gather(link, &floats(link.world_size() * len(blocks)), &floats(len(blocks)), Rank::new(1))
            .config(slots(blocks, n))
            .trace()
    }),
    ("scatter", "staged", 1, |link, blocks, n| {
        scatter(link, &floats(len(blocks)), &floats(link.world_size() * len(blocks)), Rank::new(1))
            .config(slots(blocks, n))
            .trace()
    }),
    ("reduce_scatter", "staged", 1, |link, blocks, n| scattered(link, blocks, Algorithm::OneShot, n)),
    ("reduce_scatter", "ring", 1, |link, blocks, n| scattered(link, blocks, Algorithm::Ring, n)),
    ("all_reduce", "two-phase", 1, |link, blocks, n| reduced(link, blocks, Algorithm::TwoPhase, n)),
    ("all_reduce", "ring", 1, |link, blocks, n| reduced(link, blocks, Algorithm::Ring, n)),
    ("all_to_all", "bulk", 1, |link, blocks, n| bulk("all_to_all", link, blocks, (Rounds::Roles, n))),
    ("all_to_all", "bulk, rounds as blocks", 1, |link, blocks, n| {
        bulk("all_to_all", link, blocks, (Rounds::Blocks, n))
    }),
    ("all_to_all", "bulk, legs as blocks", 1, |link, blocks, n| bulk("all_to_all", link, blocks, (Rounds::Legs, n))),
    ("all_gather", "bulk", 1, |link, blocks, n| bulk("all_gather", link, blocks, (Rounds::Roles, n))),
    ("broadcast", "bulk", 1, |link, blocks, n| bulk("broadcast", link, blocks, (Rounds::Roles, n))),
    ("gather", "bulk", 1, |link, blocks, n| bulk("gather", link, blocks, (Rounds::Roles, n))),
    ("scatter", "bulk", 1, |link, blocks, n| bulk("scatter", link, blocks, (Rounds::Roles, n))),
];

/// Bulk copies go into the slots of an outbox.
fn bulk(
    collective: &str,
    link: &RehearsalRank,
    blocks: usize,
    (rounds, launch): (Rounds, usize),
) -> Result<Traced, RunError> {
    let (one, all, root) = (floats(len(blocks)), floats(link.world_size() * len(blocks)), Rank::new(1));
    let other = floats(all.len());
    let exchange = match collective {
        "all_to_all" => all_to_all(link, &all, &other),
        "all_gather" => all_gather(link, &all, &one),
        "broadcast" => broadcast(link, &one, &other.slice(0..one.len()), root),
        "gather" => gather(link, &all, &one, root),
        _ => scatter(link, &one, &all, root),
    };
    exchange.config(in_slots(Primitive::Bulk, blocks, GEOMETRIES[launch])).rounds(rounds).trace()
}

pub(super) fn plan(world: &Rehearsal, blocks: usize, trace: Trace) -> Result<Plan, RunError> {
    world.plan(GEOMETRIES.len(), |link, launch| trace(link, blocks, launch))
}

/// The same, after and between exchanges of the neighbours alone. The first exchange makes counters differ from peer to
/// peer. So a rank that takes one peer's slots for another's is found. The second exchange fills all bytes that the
/// last launch writes, in other slots. So only the drain tells a ring that they have been read. The second exchange
/// comes late, because a put that goes too far is found only where nothing was written before.
pub(super) fn after_neighbours(world: &Rehearsal, blocks: usize, trace: Trace) -> Result<Plan, RunError> {
    world.plan(2 + GEOMETRIES.len(), |link, launch| match launch {
        0 => exchange(link, blocks, Primitive::Staged, 0),
        1 | 2 => trace(link, blocks, launch - 1),
        3 => before::staged(link, 2 * blocks, (64, 8)),
        _ => trace(link, blocks, launch - 2),
    })
}

/// Like [`Rehearsal::small`], with a second channel for every block, on which the results of two phases come back.
pub(super) fn world(ranks: usize, blocks: usize, domains: &[Vec<usize>]) -> Rehearsal {
    let domains: Vec<&[usize]> = domains.iter().map(Vec::as_slice).collect();
    let world = Rehearsal::new(Geometry {
        world_size: ranks,
        per_peer_bytes: 2048.max(128 * ranks) * 2 * blocks,
        max_blocks_per_peer: 2 * blocks,
        max_slots: 8.max(2 * ranks),
        max_copies: 4,
        packet_bytes: 0,
        window_sets: 2,
    });
    world.mesh(&domains)
}

/// The number of elements of a chunk. It gives more steps than slots, and a short last tile.
pub(super) fn len(blocks: usize) -> usize {
    blocks * 330 - 3
}

pub(super) fn floats(len: usize) -> Tensor<f32> {
    Tensor::zeros(len)
}

pub(super) fn slots(blocks: usize, launch: usize) -> Knobs {
    in_slots(Primitive::Staged, blocks, GEOMETRIES[launch])
}

pub(super) fn exchange(
    link: &RehearsalRank,
    blocks: usize,
    primitive: Primitive,
    launch: usize,
) -> Result<Traced, RunError> {
    let (to, from) = link.neighbours();
    let config = in_slots(primitive, blocks, GEOMETRIES[launch]);
    sendrecv(link, &floats(len(blocks)), &floats(len(blocks)), to, from).config(config).trace()
}

/// Two parts, and tiles that are narrower at the edge. Neither gaps nor padding may travel.
fn two_values(link: &RehearsalRank, blocks: usize, launch: usize) -> Result<Traced, RunError> {
    let (rows, cols) = (blocks * 5, 23);
    let (to, from) = link.neighbours();
    let config = in_slots(Primitive::Staged, blocks, [(256, 4), (192, 6), (256, 4)][launch]);
    sendrecv(link, &floats(rows * cols), &floats(rows * cols), to, from)
        .config(config)
        .chunk_shape(cols, rows)
        .output_shape(rows, cols)
        .produce2(|c| {
            let x = c.input.at(c.col(), c.row());
            (x.cast::<i8>(), x)
        })
        .consume(|c, (sign, x)| c.output.store(c.pos(), sign.cast::<f32>() * x))
        .trace()
}

fn scattered(link: &RehearsalRank, blocks: usize, algorithm: Algorithm, launch: usize) -> Result<Traced, RunError> {
    reduce_scatter(link, &floats(len(blocks)), &floats(link.world_size() * len(blocks)))
        .algorithm(algorithm)
        .config(slots(blocks, launch))
        .trace()
}

fn reduced(link: &RehearsalRank, blocks: usize, algorithm: Algorithm, launch: usize) -> Result<Traced, RunError> {
    // The shards have different lengths.
    let len = link.world_size() * len(blocks) - 1;
    all_reduce(link, &floats(len), &floats(len)).algorithm(algorithm).config(slots(blocks, launch)).trace()
}
