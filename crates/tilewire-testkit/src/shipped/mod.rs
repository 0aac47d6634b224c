//! Plans for the checker: every schedule of the library, launched several times, with another geometry each time.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | [`shipped`]: all of them, and those of [`sendrecv`] |
//! | `before.rs` | what was launched before the schedule that is checked |
//! | `exchanges.rs` | the exchanges of all ranks |
//! | `columns.rs` | an all-to-all of columns of a larger matrix |
//! | `reductions.rs` | the reductions, and what goes round a ring |
//! | `posted.rs` | [`posted`], [`posted_in`]: those that travel by posts, through slots |
//! | `windows.rs` | what posts carry into windows |
//! | `puts.rs` | puts into windows by kernels of one's own |
//! | `by_hand.rs` | posts in kernels that use no schedule |
//! | `two_level.rs` | what goes from domain to domain, and on within them |

mod before;
mod by_hand;
mod columns;
mod exchanges;
mod posted;
pub mod puts;
mod reductions;
mod two_level;
mod windows;

use std::rc::Rc;
use tilewire::check::Plan;
use tilewire::collective::Rounds;
use tilewire::hook::Regs;
use tilewire::link::Transport;
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::schedule::{BulkPlan, Packing, StagedPlan, Tiling, recv_bulk, recv_tiles, send_bulk, send_tiles};
use tilewire::transport::Protocol;
use tilewire::{Knobs, Primitive, RunError, Tensor, kernel, sendrecv};

/// A schedule to be checked.
pub struct Case {
    /// The collective it belongs to.
    pub collective: &'static str,
    /// The name of the schedule within its collective.
    pub name: String,
    build: Box<dyn Fn() -> Result<Plan, RunError>>,
}

impl Case {
    /// Traces its launches. This takes time and memory.
    pub fn plan(&self) -> Result<Plan, RunError> {
        (self.build)()
    }
}

/// The list of cases.
#[derive(Default)]
struct Cases(pub Vec<Case>);

impl Cases {
    /// Adds a case whose plan `build` traces.
    pub fn add(
        &mut self,
        collective: &'static str,
        name: impl Into<String>,
        build: impl Fn() -> Result<Plan, RunError> + 'static,
    ) {
        self.0.push(Case { collective, name: name.into(), build: Box::new(build) });
    }
}

/// The ranks of a case, and how they reach each other.
#[derive(Clone)]
struct World {
    ranks: usize,
    blocks: usize,
    /// Ranks of different domains post to each other. If there are no domains, all ranks share memory.
    domains: Option<Rc<[Vec<usize>]>>,
}

impl World {
    fn posts(&self) -> bool {
        self.domains.is_some()
    }

    /// True if the world has both near and far pairs.
    fn is_mixed(&self) -> bool {
        self.domains.iter().any(|domains| domains.iter().any(|domain| domain.len() > 1))
    }

    /// See [`Rehearsal::small`].
    fn small(&self) -> Rehearsal {
        self.joined(Rehearsal::small(self.ranks, self.blocks))
    }

    fn joined(&self, rehearsal: Rehearsal) -> Rehearsal {
        match &self.domains {
            Some(domains) => rehearsal.mesh(&domains.iter().map(Vec::as_slice).collect::<Vec<_>>()),
            None => rehearsal,
        }
    }
}

/// The cases of all collectives, for a number of ranks and blocks. A case is traced only by [`Case::plan`].
pub fn shipped(ranks: usize, blocks: usize) -> Vec<Case> {
    shipped_in(&World { ranks, blocks, domains: None })
}

/// Does the same in a world with these links.
fn shipped_in(world: &World) -> Vec<Case> {
    let mut cases = Cases::default();
    let add = |cases: &mut Cases, name: &str, plan: fn(&World) -> Result<Plan, RunError>| {
        let world = world.clone();
        cases.add("sendrecv", name, move || plan(&world));
    };
    add(&mut cases, "staged", |world| staged(world, [Primitive::Staged; 3]));
    add(&mut cases, "staged, legs as blocks", split);
    add(&mut cases, "bulk", |world| staged(world, [Primitive::Bulk; 3]));
    add(&mut cases, "staged between bulk", |world| {
        staged(world, [Primitive::Bulk, Primitive::Staged, Primitive::Bulk])
    });
    add(&mut cases, "staged and bulk, in groups", in_groups);
    add(&mut cases, "bulk, two values", packed_bulk);
    for copies in 1..=4 {
        for (name, primitive) in [("staged", Primitive::Staged), ("bulk", Primitive::Bulk)] {
            let world = world.clone();
            cases.add("sendrecv", format!("{name}, {copies} copies"), move || copies_of(primitive, &world, copies));
        }
    }
    add(&mut cases, "packet", |world| packets(world, 0, MESSAGES));
    // Sixteen messages before the flags wrap around. So every place is used twice before and once after that.
    add(&mut cases, "packet, last flags", |world| packets(world, (1 << 16) - 16, MESSAGES + 8));
    add(&mut cases, "packet, two values", packed_packets);
    add(&mut cases, "direct", direct);
    exchanges::cases(&mut cases, world);
    reductions::cases(&mut cases, world);
    columns::cases(&mut cases, world);
    puts::cases(&mut cases, world);
    cases.0
}

/// The same for everything that posts can carry.
pub fn posted(ranks: usize, blocks: usize) -> Vec<Case> {
    let mut cases = Cases::default();
    if ranks > 1 {
        posted::cases(&mut cases, ranks, blocks);
    }
    if ranks > 2 {
        two_level::cases(&mut cases, ranks, blocks);
    }
    cases.0
}

/// Does the same in a world with these domains of ranks. `links` is the name of this arrangement.
///
/// # Panics
/// When a case is traced, if some rank is not in exactly one domain.
pub fn posted_in(ranks: usize, blocks: usize, links: &str, domains: &[Vec<usize>]) -> Vec<Case> {
    let mut cases = Cases::default();
    posted::cases_in(&mut cases, (ranks, blocks), links, domains);
    two_level::cases_in(&mut cases, (ranks, blocks), links, domains);
    cases.0
}

/// Slot bytes and depths of three launches. The second has smaller slots, and the third has the first one's slot size.
const GEOMETRIES: [(usize, usize); 3] = [(128, 4), (256, 8), (128, 4)];

fn in_slots(primitive: Primitive, blocks: usize, (slot_bytes, depth): (usize, usize)) -> Knobs {
    Knobs {
        primitive: Some(primitive),
        blocks: Some(blocks),
        slot_bytes: Some(slot_bytes),
        depth: Some(depth),
        granule: Some(1),
        ..Knobs::default()
    }
}

/// Launches through the same slots, each with its own primitive.
fn staged(world: &World, primitives: [Primitive; 3]) -> Result<Plan, RunError> {
    let blocks = world.blocks;
    world.small().plan(GEOMETRIES.len(), |link, launch| {
        // Every launch has more steps than slots. Otherwise a wait for a credit would be satisfied from the beginning.
        let (x, y) = (Tensor::<f32>::zeros(blocks * 560), Tensor::<f32>::zeros(blocks * 560));
        let (to, from) = link.neighbours();
        let config = in_slots(primitives[launch], blocks, GEOMETRIES[launch]);
        sendrecv(link, &y, &x, to, from).config(config).trace()
    })
}

/// Sending and receiving roles run in separate blocks.
fn split(world: &World) -> Result<Plan, RunError> {
    let blocks = world.blocks;
    world.small().plan(GEOMETRIES.len(), |link, launch| {
        let (x, y) = (Tensor::<f32>::zeros(blocks * 560), Tensor::<f32>::zeros(blocks * 560));
        let (to, from) = link.neighbours();
        let config = in_slots(Primitive::Staged, blocks, GEOMETRIES[launch]);
        sendrecv(link, &y, &x, to, from).config(config).rounds(Rounds::Legs).trace()
    })
}

/// Launches of one geometry that begin and end within a group of steps whose slots are waited for together.
fn in_groups(world: &World) -> Result<Plan, RunError> {
    let blocks = world.blocks;
    let steps = [11, 6, 7, 9];
    let primitives = [Primitive::Staged, Primitive::Bulk, Primitive::Staged, Primitive::Staged];
    world.small().plan(steps.len(), |link, launch| {
        let len = blocks * steps[launch] * 16;
        let (x, y) = (Tensor::<f32>::zeros(len), Tensor::<f32>::zeros(len));
        let (to, from) = link.neighbours();
        sendrecv(link, &y, &x, to, from).config(in_slots(primitives[launch], blocks, (64, 8))).trace()
    })
}

/// Tiles of two parts that are narrower at the edge. A step has as many bulk copies as there are parts.
fn packed_bulk(world: &World) -> Result<Plan, RunError> {
    let blocks = world.blocks;
    world.small().plan(3, |link, launch| {
        let (rows, cols) = (blocks * 5, 23);
        let (x, y) = (Tensor::<f32>::zeros(rows * cols), Tensor::<f32>::zeros(rows * cols));
        let (to, from) = link.neighbours();
        let config = in_slots(Primitive::Bulk, blocks, [(256, 8), (192, 5), (256, 8)][launch]);
        sendrecv(link, &y, &x, to, from)
            .config(config)
            .chunk_shape(cols, rows)
            .output_shape(rows, cols)
            .produce2(|c| {
                let x = c.input.at(c.col(), c.row());
                (x.cast::<i8>(), x)
            })
            .consume(|c, (sign, x)| c.output.store(c.pos(), sign.cast::<f32>() * x))
            .trace()
    })
}

fn copies_of(primitive: Primitive, world: &World, copies: u32) -> Result<Plan, RunError> {
    let (blocks, bulk) = (world.blocks, primitive == Primitive::Bulk);
    if world.posts() {
        // The builder decides, as for users: a far peer gets staged instead of bulk, and near and far peers have
        // separate plans.
        return world.small().with_copies(copies as usize).plan(GEOMETRIES.len(), |link, launch| {
            let (slot_bytes, depth) = GEOMETRIES[launch];
            let slots = (slot_bytes, depth - depth % copies as usize);
            let (x, y) = (Tensor::<f32>::zeros(blocks * 360), Tensor::<f32>::zeros(blocks * 360));
            let (to, from) = link.neighbours();
            sendrecv(link, &y, &x, to, from).config(in_slots(primitive, blocks, slots)).trace()
        });
    }
    world.small().plan(GEOMETRIES.len(), |link, launch| {
        let (slot_bytes, depth) = GEOMETRIES[launch];
        // Each slot belongs to one of the copies.
        let depth = depth - depth % copies as usize;
        // The number of steps is odd, so the copies begin at different places in each launch.
        let (x, y) = (Tensor::<f32>::zeros(blocks * 360), Tensor::<f32>::zeros(blocks * 360));
        let ((to, from), protocol) = (link.neighbours(), Protocol::Staged { slot_bytes, depth });
        let staged = StagedPlan { copies, ..StagedPlan::new(&link.link(link.rank()), slot_bytes, depth, blocks)? };
        let bulked = BulkPlan::new(staged)?;
        let packing = Packing::new(<f32 as Regs>::TYPES, slot_bytes / 4);
        let tiling = Tiling::flat(x.len(), slot_bytes / 4, blocks);
        Ok(kernel(if bulk { "bulk" } else { "staged" }, |k| {
            k.blocks(blocks as u32);
            let (x, y) = (k.input(&x).named("input"), k.output(&y).named("output"));
            let (tx, rx) = (link.sender(k, to, protocol, None), link.receiver(k, from, protocol));
            k.role("send", 4).copies(copies, |r| match bulk {
                false => send_tiles::<f32>(r, &tx, staged, tiling, packing, |at| x.load(at.pos)),
                true => send_bulk::<f32>(r, &tx, bulked, tiling, packing, |at| x.load(at.pos)),
            });
            k.role("receive", 4).copies(copies, |r| match bulk {
                false => recv_tiles::<f32>(r, &rx, staged, tiling, packing, |at, v| y.store(at.pos, v)),
                true => {
                    recv_bulk::<f32>(r, &rx, bulked, tiling, packing, |at, v| y.store(at.pos, v));
                }
            });
        })?)
    })
}

/// The number of launches of packets. Places are reused after eight messages, and so are slots where packets fall back
/// to staged.
const MESSAGES: usize = 13;

fn packets(world: &World, first: u64, messages: usize) -> Result<Plan, RunError> {
    let (rehearsal, blocks) = (world.small(), world.blocks);
    rehearsal.at_message(first);
    let within = if world.is_mixed() { MESSAGES } else { 0 };
    rehearsal.plan(within + messages, |link, message| {
        if message < within {
            return before::packet_within(link, blocks);
        }
        let len = blocks * (16 - message % 3);
        let (x, y) = (Tensor::<u64>::zeros(len), Tensor::<u64>::zeros(len));
        let (to, from) = link.neighbours();
        sendrecv(link, &y, &x, to, from).config(packet_knobs(link, blocks, (64, 2))).trace()
    })
}

/// Knobs for packets, and for the small slots that posts use instead.
fn packet_knobs(link: &RehearsalRank, blocks: usize, (slot_bytes, depth): (usize, usize)) -> Knobs {
    let posts = link.is_dense();
    Knobs {
        primitive: Some(Primitive::Packet),
        blocks: Some(blocks),
        granule: Some(1),
        slot_bytes: posts.then_some(slot_bytes),
        depth: posts.then_some(depth),
        ..Knobs::default()
    }
}

fn packed_packets(world: &World) -> Result<Plan, RunError> {
    let (blocks, within) = (world.blocks, if world.is_mixed() { MESSAGES } else { 0 });
    world.small().plan(within + MESSAGES, |link, message| {
        if message < within {
            return before::packet_within(link, blocks);
        }
        let (x, y) = (Tensor::<f32>::zeros(blocks * 11), Tensor::<f32>::zeros(blocks * 11));
        let (to, from) = link.neighbours();
        sendrecv(link, &y, &x, to, from)
            .config(packet_knobs(link, blocks, (128, 2)))
            .produce2(|c| {
                let x = c.input.load(c.pos());
                (x.cast::<i8>(), x)
            })
            .consume(|c, (sign, x)| c.output.store(c.pos(), sign.cast::<f32>() * x))
            .trace()
    })
}

fn direct(world: &World) -> Result<Plan, RunError> {
    let blocks = world.blocks;
    let len = blocks * 48;
    let windows: Vec<Tensor<f32>> = (0..world.ranks).map(|_| Tensor::zeros(len)).collect();
    // The last block has fewer elements, and still fewer in the second launch.
    let mut plan = world
        .small()
        .plan(3, |link, launch| before::direct(link, blocks, &link.window(&windows), len - launch % 2 * 7))?;
    for (rank, window) in windows.iter().enumerate() {
        plan.host_reads(rank as u32, window.memory());
    }
    Ok(plan)
}
