//! Plans for an all-to-all of columns: chunks of several rows that lie beside each other in a larger matrix, on both
//! sides, through staging and into windows.

use super::{Cases, World, before};
use tilewire::check::Plan;
use tilewire::link::Transport;
use tilewire::rehearsal::RehearsalRank;
use tilewire::tensor::Axis;
use tilewire::{Knobs, Primitive, RunError, Tensor, Traced, all_to_all};

/// The cases of columns.
pub(super) fn cases(cases: &mut Cases, world: &World) {
    for (name, primitive) in [("staged, columns", Primitive::Staged), (DIRECT, Primitive::Direct)] {
        let world = world.clone();
        cases.add("all_to_all", name, move || plan(&world, primitive));
    }
}

/// The case of windows. Columns for far peers go through slots, because a post is one run of bytes.
pub(super) const DIRECT: &str = "direct, columns";

/// The number of columns of a chunk. Four rows fill a slot.
const COLS: usize = 4;
const LAUNCHES: usize = 3;

/// The number of rows of a chunk. It gives every block several steps, and the last block fewer.
fn rows(blocks: usize) -> usize {
    blocks * 11 - 1
}

fn plan(world: &World, primitive: Primitive) -> Result<Plan, RunError> {
    let &World { ranks, blocks, .. } = world;
    let windows: Vec<Tensor<f32>> = (0..ranks).map(|_| Tensor::zeros(ranks * rows(blocks) * COLS)).collect();
    let is_direct = primitive == Primitive::Direct;
    // Writes windows twice, because the first launch cannot overwrite anything too early.
    let is_window = is_direct && !world.posts();
    let others = if is_window { 2 } else { 1 };
    let mut plan = world.small().plan(others + LAUNCHES, |link, n| match n {
        n if n >= others => trace(world, link, primitive, &windows),
        _ if is_window => before::direct(link, blocks, &link.window(&windows), rows(blocks) * COLS),
        _ => before::staged(link, blocks, before::SLOTS),
    })?;
    for (rank, window) in windows.iter().enumerate() {
        plan.host_reads(rank as u32, window.memory());
    }
    Ok(plan)
}

fn trace(
    world: &World,
    link: &RehearsalRank,
    primitive: Primitive,
    windows: &[Tensor<f32>],
) -> Result<Traced, RunError> {
    let blocks = world.blocks;
    let (rows, width) = (rows(blocks), link.world_size() * COLS);
    let matrix = |stride: usize| Tensor::<f32>::zeros(rows * stride).reshape(rows, stride).expect("as many elements");
    let inp = matrix(width + 3).columns(2..2 + width);
    let is_direct = primitive == Primitive::Direct;
    // The far peers of a direct exchange need this, too.
    let has_slots = !is_direct || world.posts();
    let out = match is_direct {
        true => windows[link.number() as usize].reshape(rows, width).expect("as many elements"),
        false => matrix(width + 1).columns(1..1 + width),
    };
    let exchange = all_to_all(link, &out, &inp).along(Axis::Cols);
    let exchange = if is_direct { exchange.window(&link.window(windows)) } else { exchange };
    let config = Knobs {
        primitive: Some(primitive),
        blocks: Some(blocks),
        slot_bytes: has_slots.then_some(before::SLOTS.0),
        depth: has_slots.then_some(before::SLOTS.1),
        granule: Some(1),
        ..Knobs::default()
    };
    exchange.config(config).produce(|c| c.input.load(c.pos()) * 0.5).trace()
}
