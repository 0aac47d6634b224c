//! Plans of schedules that travel by posts: in a world where all peers are far, and in one where some are.

use super::{Cases, GEOMETRIES, before, in_slots};
use tilewire::check::Plan;
use tilewire::collective::Rounds;
use tilewire::link::{Staged, Transport, Window};
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::transport::layout::Geometry;
use tilewire::{
    Algorithm, Knobs, Primitive, Rank, RunError, Tensor, Traced, all_gather, all_reduce, all_to_all, broadcast, gather,
    kernel, reduce_scatter, scatter, sendrecv,
};

/// The cases of everything that posts carry, in worlds that together have every kind of pair.
pub(super) fn cases(cases: &mut Cases, ranks: usize, blocks: usize) {
    let alone: Vec<Vec<usize>> = (0..ranks).map(|rank| vec![rank]).collect();
    // Domains that are not contiguous, each with near peers where there are enough ranks.
    let mixed = [0, 1].map(|first| (first..ranks).step_by(2).collect::<Vec<_>>()).to_vec();
    let mut worlds = vec![("posted", alone)];
    if ranks > 2 {
        worlds.push(("mixed", mixed));
    }
    for (links, domains) in worlds {
        cases_in(cases, (ranks, blocks), links, &domains);
    }
}

/// The same in a world with these domains, which `links` names.
pub(super) fn cases_in(cases: &mut Cases, (ranks, blocks): (usize, usize), links: &str, domains: &[Vec<usize>]) {
    for (&(collective, trace), in_place) in DIRECT.iter().flat_map(|case| [(case, false), (case, true)]) {
        let (domains, is_scatter) = (domains.to_vec(), collective == "scatter");
        let how = if in_place { "in place" } else { "through an outbox" };
        cases.add(collective, format!("direct {how}, {links}"), move || {
            direct(&domains, blocks, (in_place, is_scatter), trace)
        });
    }
    for &(collective, what, copies, trace) in ALL {
        let domains = domains.to_vec();
        cases.add(collective, format!("{what}, {links}"), move || {
            after_neighbours(&world(ranks, blocks, &domains).with_copies(copies), blocks, trace)
        });
    }
}

/// The cases of what goes in two levels, over domains that are equal, of one rank, or not contiguous.
pub(super) fn two_level_cases(cases: &mut Cases, ranks: usize, blocks: usize) {
    for (name, domains) in two_level_worlds(ranks) {
        two_level_cases_in(cases, (ranks, blocks), &name, &domains);
    }
}

/// The same in a world with these domains, if it has near and far peers.
pub(super) fn two_level_cases_in(
    cases: &mut Cases,
    (ranks, blocks): (usize, usize),
    links: &str,
    domains: &[Vec<usize>],
) {
    if domains.len() < 2 || domains.iter().all(|domain| domain.len() < 2) {
        return;
    }
    for &(collective, what, copies, trace) in TWO_LEVEL {
        let domains = domains.to_vec();
        let goes_ahead = what.contains("last") && passes_on(ranks - 1, &domains);
        cases.add(collective, format!("two-level{what}, {links}"), move || {
            let world = world(ranks, blocks, &domains).with_copies(copies);
            if !goes_ahead {
                return plan(&world, blocks, trace);
            }
            world.plan(1 + GEOMETRIES.len(), |link, launch| match launch {
                0 => ahead(link, blocks, &domains),
                _ => trace(link, blocks, launch - 1),
            })
        });
    }
}

/// True if rank 0 passes on what `origin` sends, to several near peers.
fn passes_on(origin: usize, domains: &[Vec<usize>]) -> bool {
    let of = |rank: usize| domains.iter().find(|domain| domain.contains(&rank));
    let (Some(near), Some(far)) = (of(0), of(origin)) else { return false };
    // A domain's ranks count in rank order.
    let number = far.iter().filter(|&&rank| rank < origin).count();
    near != far && near.len() > 2 && number % near.len() == 0
}

/// Rank 0 passes something on to its first near peer. Its counters then differ from near peer to near peer, or to
/// mistake one for the other would be no mistake.
fn ahead(link: &RehearsalRank, blocks: usize, domains: &[Vec<usize>]) -> Result<Traced, RunError> {
    let near = domains.iter().find(|domain| domain.contains(&0));
    let near = near.and_then(|domain| domain.iter().filter(|&&rank| rank > 0).min());
    let (slot_bytes, depth) = before::SLOTS;
    let (len, tile) = (blocks * depth * slot_bytes / 4, slot_bytes / 4);
    let staged = Staged::<f32>::new(link, len).tile(tile).depth(depth).blocks(blocks).from_block(blocks);
    let (first, near) = (Rank::new(0), near.map(|&rank| Rank::new(rank as u32)));
    let x = floats(len);
    Ok(match near {
        Some(near) if link.rank() == first => {
            let leg = staged.with(near)?;
            kernel("ahead", |k| {
                k.blocks(blocks as u32);
                let (x, tx) = (k.input(&x).named("input"), leg.sender(k));
                k.role("send", 4).run(|r| tx.send(r, |at| x.load(at.pos)));
            })?
        }
        Some(near) if link.rank() == near => {
            let leg = staged.with(first)?;
            kernel("ahead", |k| {
                k.blocks(blocks as u32);
                let (x, rx) = (k.output(&x).named("output"), leg.receiver(k));
                k.role("receive", 4).run(|r| rx.recv(r, |at, v| x.store(at.pos, v)));
            })?
        }
        _ => kernel("nothing", |k| k.main(|_| {}))?,
    })
}

/// Pairs of domains, by name, of at least three ranks.
fn two_level_worlds(ranks: usize) -> Vec<(String, Vec<Vec<usize>>)> {
    let cut = |at: usize| (format!("{at}+{}", ranks - at), vec![(0..at).collect(), (at..ranks).collect()]);
    let cuts = [1, ranks / 2, ranks - 1].map(cut);
    let mut worlds: Vec<(String, Vec<Vec<usize>>)> = Vec::new();
    for world in cuts {
        if !worlds.contains(&world) {
            worlds.push(world);
        }
    }
    worlds.push(("interleaved".into(), [0, 1].map(|first| (first..ranks).step_by(2).collect()).to_vec()));
    worlds
}

/// As [`ALL`], in two levels.
const TWO_LEVEL: &[(&str, &str, usize, Trace)] = &[
    ("all_gather", "", 1, |link, blocks, n| gathered(link, slots(blocks, n), blocks)),
    ("all_gather", ", 2 copies", 2, |link, blocks, n| gathered(link, slots(blocks, n), blocks)),
    ("all_gather", ", 2 copies in shared roles", 2, |link, blocks, n| {
        gathered(link, Knobs { send_warps: Some(2), recv_warps: Some(2), ..slots(blocks, n) }, blocks)
    }),
    // The same root in all launches: a pipeline that is used once shows no mistake about its counters.
    ("broadcast", " from the first rank", 1, |link, blocks, n| spread(link, Rank::new(0), blocks, n)),
    ("broadcast", " from the last rank", 1, |link, blocks, n| {
        spread(link, Rank::new(link.world_size() as u32 - 1), blocks, n)
    }),
    // Not in two levels, but between the same domains: legs that have different numbers of blocks.
    ("all_to_all", " world, fewer blocks for far peers", 1, |link, blocks, n| {
        let (out, inp) = (floats(link.world_size() * len(blocks)), floats(link.world_size() * len(blocks)));
        let near = Knobs { blocks: Some(2 * blocks), ..slots(blocks, n) };
        all_to_all(link, &out, &inp).config(near).far(slots(blocks, n)).rounds(Rounds::Blocks).trace()
    }),
];

fn spread(link: &RehearsalRank, root: Rank, blocks: usize, launch: usize) -> Result<Traced, RunError> {
    broadcast(link, &floats(len(blocks)), &floats(len(blocks)), root)
        .algorithm(Algorithm::TwoLevel)
        .config(slots(blocks, launch))
        .produce(|c| c.input.load(c.pos()) * 0.5)
        .consume(|c, x| c.output.store(c.pos(), x + 1.0))
        .trace()
}

fn gathered(link: &RehearsalRank, knobs: Knobs, blocks: usize) -> Result<Traced, RunError> {
    all_gather(link, &floats(link.world_size() * len(blocks)), &floats(len(blocks)))
        .algorithm(Algorithm::TwoLevel)
        .config(knobs)
        .produce(|c| c.input.load(c.pos()) * 0.5)
        .consume(|c, x| c.output.store(c.pos(), x + 1.0))
        .trace()
}

/// A launch of a schedule, as a case has three of them.
type Trace = fn(&RehearsalRank, blocks: usize, launch: usize) -> Result<Traced, RunError>;

/// By collective: a name, the copies of roles, and a launch.
const ALL: &[(&str, &str, usize, Trace)] = &[
    ("sendrecv", "staged", 1, |link, blocks, n| exchange(link, blocks, Primitive::Staged, n)),
    ("sendrecv", "staged, 2 copies", 2, |link, blocks, n| exchange(link, blocks, Primitive::Staged, n)),
    ("sendrecv", "bulk", 1, |link, blocks, n| exchange(link, blocks, Primitive::Bulk, n)),
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
];

/// A launch of an exchange into windows: the output and the window, the input, and the knobs.
type Direct = fn(&RehearsalRank, (&Tensor<f32>, &Window<f32>), &Tensor<f32>, Knobs, bool) -> Result<Traced, RunError>;

macro_rules! hooked {
    ($exchange:expr, $window:expr, $knobs:expr, $in_place:expr) => {{
        let exchange = $exchange.window($window).config($knobs);
        match $in_place {
            true => exchange.trace(),
            false => exchange.produce(|c| c.input.load(c.pos()) * 2.0).trace(),
        }
    }};
}

/// By collective.
const DIRECT: &[(&str, Direct)] = &[
    ("sendrecv", |link, (out, window), inp, knobs, in_place| {
        let (to, from) = link.neighbours();
        hooked!(sendrecv(link, out, &inp.slice(0..out.len()), to, from), window, knobs, in_place)
    }),
    ("all_to_all", |link, (out, window), inp, knobs, in_place| {
        hooked!(all_to_all(link, out, inp), window, knobs, in_place)
    }),
    ("all_gather", |link, (out, window), inp, knobs, in_place| {
        hooked!(all_gather(link, out, &inp.slice(0..out.len() / link.world_size())), window, knobs, in_place)
    }),
    ("broadcast", |link, (out, window), inp, knobs, in_place| {
        hooked!(broadcast(link, out, inp, Rank::new(1)), window, knobs, in_place)
    }),
    ("gather", |link, (out, window), inp, knobs, in_place| {
        hooked!(gather(link, out, &inp.slice(0..out.len() / link.world_size()), Rank::new(1)), window, knobs, in_place)
    }),
    ("scatter", |link, (out, window), inp, knobs, in_place| {
        // An output is a whole window, so the input of the root is as long as all of them.
        hooked!(scatter(link, out, inp, Rank::new(1)), window, knobs, in_place)
    }),
];

/// To the previous rank.
const BACK: Direct = |link, (out, window), inp, knobs, in_place| {
    let (to, from) = link.neighbours();
    hooked!(sendrecv(link, out, &inp.slice(0..out.len()), from, to), window, knobs, in_place)
};

/// Launches into the same windows from the same inputs and outboxes, with other blocks in one of them. The last block
/// has less to do.
fn direct(
    domains: &[Vec<usize>],
    blocks: usize,
    (in_place, is_scatter): (bool, bool),
    trace: Direct,
) -> Result<Plan, RunError> {
    let ranks: usize = domains.iter().map(Vec::len).sum();
    let len = ranks * (blocks * 37 - 3);
    let tensors = |len: usize| -> Vec<Tensor<f32>> { (0..ranks).map(|_| Tensor::zeros(len)).collect() };
    let (windows, inputs) = (tensors(len), tensors(if is_scatter { len * ranks } else { len }));
    world(ranks, blocks, domains).plan(6, |link, launch| {
        let (rank, blocks) = (link.number() as usize, if launch == 4 { 1 } else { blocks });
        let knobs =
            Knobs { primitive: Some(Primitive::Direct), blocks: Some(blocks), granule: Some(1), ..Knobs::default() };
        // First with the neighbours alone, as in `after_neighbours`. Twice to the next rank: a single launch finds
        // nothing that an earlier one left. Once the other way round: the next rank may be near, and far peers must
        // differ as well.
        let trace = match launch {
            0 | 1 => DIRECT[0].1,
            2 => BACK,
            _ => trace,
        };
        trace(link, (&windows[rank], &link.window(&windows)), &inputs[rank], knobs, in_place)
    })
}

fn plan(world: &Rehearsal, blocks: usize, trace: Trace) -> Result<Plan, RunError> {
    world.plan(GEOMETRIES.len(), |link, launch| trace(link, blocks, launch))
}

/// The same after and between exchanges with the neighbours alone. After the first one, counters that differ from peer
/// to peer show whether a rank takes the slots of one for those of another. The second one fills all bytes that the
/// last launch puts into, in other slots: nothing but the drain tells a ring that they have been read. It comes late,
/// because a put that goes too far is found where nothing was written before.
fn after_neighbours(world: &Rehearsal, blocks: usize, trace: Trace) -> Result<Plan, RunError> {
    world.plan(2 + GEOMETRIES.len(), |link, launch| match launch {
        0 => exchange(link, blocks, Primitive::Staged, 0),
        1 | 2 => trace(link, blocks, launch - 1),
        3 => before::staged(link, 2 * blocks, (64, 8)),
        _ => trace(link, blocks, launch - 2),
    })
}

/// As [`Rehearsal::small`], with a second channel for every block: results of two phases come back there.
fn world(ranks: usize, blocks: usize, domains: &[Vec<usize>]) -> Rehearsal {
    let domains: Vec<&[usize]> = domains.iter().map(Vec::as_slice).collect();
    let world = Rehearsal::new(Geometry {
        world_size: ranks,
        per_peer_bytes: 2048.max(128 * ranks) * 2 * blocks,
        max_blocks_per_peer: 2 * blocks,
        max_slots: 8.max(2 * ranks),
        max_copies: 4,
        packet_bytes: 0,
    });
    world.mesh(&domains)
}

/// Elements of a chunk: more steps than slots, and a last tile that is short.
fn len(blocks: usize) -> usize {
    blocks * 330 - 3
}

fn floats(len: usize) -> Tensor<f32> {
    Tensor::zeros(len)
}

fn slots(blocks: usize, launch: usize) -> Knobs {
    in_slots(Primitive::Staged, blocks, GEOMETRIES[launch])
}

fn exchange(link: &RehearsalRank, blocks: usize, primitive: Primitive, launch: usize) -> Result<Traced, RunError> {
    let (to, from) = link.neighbours();
    let config = in_slots(primitive, blocks, GEOMETRIES[launch]);
    sendrecv(link, &floats(len(blocks)), &floats(len(blocks)), to, from).config(config).trace()
}

/// Two parts, and tiles that are narrower at the edge: neither gaps nor padding may travel.
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
    // Shards that are not all of one length.
    let len = link.world_size() * len(blocks) - 1;
    all_reduce(link, &floats(len), &floats(len)).algorithm(algorithm).config(slots(blocks, launch)).trace()
}
