//! Plans of collectives in two levels: chunks cross once between domains, and relays pass them on within a domain.

use super::posted::{Trace, floats, len, plan, slots, world};
use super::{Cases, GEOMETRIES, before};
use tilewire::collective::Rounds;
use tilewire::link::{Staged, Transport};
use tilewire::rehearsal::RehearsalRank;
use tilewire::{Algorithm, Knobs, Rank, RunError, Traced, all_gather, all_to_all, broadcast, kernel};

/// The cases in two levels, over domains that are equal, that have one rank, or that are not contiguous.
pub(super) fn cases(cases: &mut Cases, ranks: usize, blocks: usize) {
    for (name, domains) in worlds(ranks) {
        cases_in(cases, (ranks, blocks), &name, &domains);
    }
}

/// The same in a world with these domains, if it has near and far peers.
pub(super) fn cases_in(cases: &mut Cases, (ranks, blocks): (usize, usize), links: &str, domains: &[Vec<usize>]) {
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

/// True if rank 0 passes the data of `origin` on to several near peers.
fn passes_on(origin: usize, domains: &[Vec<usize>]) -> bool {
    let of = |rank: usize| domains.iter().find(|domain| domain.contains(&rank));
    let (Some(near), Some(far)) = (of(0), of(origin)) else { return false };
    // Ranks of a domain are counted in rank order.
    let number = far.iter().filter(|&&rank| rank < origin).count();
    near != far && near.len() > 2 && number % near.len() == 0
}

/// Rank 0 passes something on to its first near peer. So its counters differ from near peer to near peer. Otherwise
/// taking one for the other would have no effect.
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

/// Pairs of domains of at least three ranks, with a name for each pair.
fn worlds(ranks: usize) -> Vec<(String, Vec<Vec<usize>>)> {
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

/// The entries of [`ALL`] that go in two levels.
const TWO_LEVEL: &[(&str, &str, usize, Trace)] = &[
    ("all_gather", "", 1, |link, blocks, n| gathered(link, slots(blocks, n), blocks)),
    ("all_gather", ", 2 copies", 2, |link, blocks, n| gathered(link, slots(blocks, n), blocks)),
    ("all_gather", ", 2 copies in shared roles", 2, |link, blocks, n| {
        gathered(link, Knobs { send_warps: Some(2), recv_warps: Some(2), ..slots(blocks, n) }, blocks)
    }),
    // All launches have the same root, because a mistake about a pipeline's counters shows only when the pipeline is
    // used again.
    ("broadcast", " from the first rank", 1, |link, blocks, n| spread(link, Rank::new(0), blocks, n)),
    ("broadcast", " from the last rank", 1, |link, blocks, n| {
        spread(link, Rank::new(link.world_size() as u32 - 1), blocks, n)
    }),
    // In one level, between the same domains: legs with different numbers of blocks.
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
