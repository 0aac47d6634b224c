//! Plans and traces `map`: hooks over a whole tensor, on the engine where its tensors are.

use super::error::RunError;
use super::exchange_plan::expanded;
use super::facts::WorldFacts;
use super::hooks::Hooks;
use super::itinerary::{Itinerary, Work};
use super::request::Request;
use crate::cuda::Device;
use crate::hook::{Block, MisuseKind};
use crate::link::Machine;

/// Minimum number of elements per GPU block. Shares are multiples of it, so that blocks begin on whole vectors.
const GPU_SHARE: usize = 4096;
/// Default number of blocks per GPU multiprocessor, and of warps per block.
const GPU_BLOCKS: usize = 4;
const WARPS: u32 = 8;

/// Plans a `map`.
pub(super) fn plan(request: &Request<'_, '_>) -> Result<Itinerary, RunError> {
    let (Request { inp, out, hooks, config, .. }, mut faults) = (request, Vec::new());
    let machine = match [out, inp].into_iter().find_map(|tensor| tensor.memory().reachable_from().device_only()) {
        Some(number) => Machine::of_device(&*Device::open(number)?, 1),
        None => Machine::here(None),
    };
    // Blocks share the outermost axis of the output: its rows, or its elements.
    let (outer, least) = match &hooks.output_shape {
        Some(shape) => (shape.rows, 1),
        None => (out.len(), GPU_SHARE),
    };
    let (blocks, share) = match (config.near.blocks, machine) {
        (None, Machine::Gpu { multiprocessors, .. }) => {
            let share = outer.div_ceil(GPU_BLOCKS * multiprocessors).next_multiple_of(least).max(1);
            (outer.div_ceil(share).max(1), share)
        }
        (said, _) => {
            let blocks = said.unwrap_or(1);
            (blocks.max(1), outer.div_ceil(blocks.max(1)))
        }
    };
    if config.near.blocks == Some(0) {
        faults.push((hooks.at.clone(), MisuseKind::TooSmall { what: "the number of blocks", is: 0 }));
    }
    if hooks.copies && inp.len() != out.len() {
        let (is, must) = (inp.len(), out.len());
        let what = "the input of a map without produce hook";
        faults.push((hooks.at.clone(), MisuseKind::Length { what, is, must }));
    }
    faults.extend(expanded(request, true));
    let facts = WorldFacts { ranks: 1, machine, in_memory: true, has_far: false, copies: 1 };
    Ok(Itinerary { faults, ..Itinerary::of(request, facts, out.len(), Work::Map { blocks, share }) })
}

/// Declares the parameters and the one role.
pub(super) fn role(plan: &Itinerary, (blocks, share): (usize, usize), hooks: &Hooks<'_>, k: &Block<'_>) {
    k.blocks(u32::try_from(blocks).unwrap_or(u32::MAX));
    let (chunks, share) = (hooks.chunks(k, &plan.inp, &plan.out), (blocks > 1).then_some(share));
    k.role("main", plan.warps.both().unwrap_or(WARPS)).run(|r| hooks.pass(r, chunks, share));
}

/// The least common multiple of two sizes, or `most` if that is less.
pub(super) fn common(a: usize, b: usize, most: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).checked_mul(b).map_or(most, |common| common.min(most)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::map;
    use crate::tensor::Tensor;

    #[test]
    fn sizes_have_a_common_multiple_up_to_a_limit() {
        let cases = [((1, 120), 120), ((120, 16), 240), ((7, 11), 77), ((1 << 40, (1 << 40) - 1), 1000), ((1, 0), 1)];
        for ((a, b), must) in cases {
            assert_eq!(common(a, b, 1000), must, "{a}, {b}");
        }
    }

    /// Shares of blocks that were not whole groups gave sums of parts of groups.
    #[test]
    fn blocks_of_a_map_do_not_split_groups() {
        const LEN: usize = 257 * 120;
        let inp = Tensor::from_slice(&(0..LEN).map(|i| ((i * 37) % 1013) as f32 - 500.0).collect::<Vec<_>>());
        let of = |blocks: usize| {
            let out = Tensor::<f32>::zeros(LEN);
            let call = map(&out, &inp).blocks(blocks);
            call.produce(|c| c.input.load(c.pos()) / c.input.load(c.pos()).group_sum(120)).run().unwrap();
            out.to_vec()
        };
        let must = of(1);
        for blocks in [2, 3, 7, 8, 64, 257, 300] {
            assert!(of(blocks) == must, "{blocks} blocks");
        }
        let (nothing, none) = (Tensor::<f32>::zeros(0), Tensor::<f32>::zeros(0));
        map(&none, &nothing).blocks(3).produce(|c| c.input.load(c.pos()).group_sum(8)).run().unwrap();
        // Groups of two sizes in one hook. The shares of blocks must be multiples of both.
        let two = |blocks: usize, size: u32| {
            let out = Tensor::<f32>::zeros(LEN);
            let call = map(&out, &inp).blocks(blocks);
            let call = call.produce(move |c| {
                let x = c.input.load(c.pos());
                x.group_max(16) + x.group_max(size)
            });
            call.run().unwrap();
            out.to_vec()
        };
        for size in [24, 120] {
            assert!(two(5, size) == two(1, size), "groups of {size}");
        }
    }
}
