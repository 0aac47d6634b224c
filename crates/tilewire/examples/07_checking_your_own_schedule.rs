//! The checker on your own schedule: the ring of example 05, with all ranks on one thread and every order of events in
//! one run.
//!
//! A race may show only once in a million launches, on another machine. The checker runs the real kernels of all ranks
//! under its own scheduler. It says whether *any* order of events goes wrong, with the source lines of both parties.
//!
//! Run it with `cargo run -p tilewire --example 07_checking_your_own_schedule`.

#[allow(dead_code)] // only the kernel is used
#[path = "05_ring_all_gather.rs"]
pub mod ring;

use tilewire::check::{Mutation, Plan, Report, Settings, Values};
use tilewire::rehearsal::Rehearsal;
use tilewire::transport::layout::Geometry;
use tilewire::{RunError, Tensor};

/// A plan of some launches of the ring, back to back. So a mistake that shows only in the second launch shows here.
pub fn plan(ranks: usize, len: usize, launches: usize) -> Result<Plan, RunError> {
    // A transport without a wire: the ranks' kernels share memory as over a real one, but nothing is launched. It is
    // small, so that slots are soon used again.
    let geometry = Geometry {
        world_size: ranks,
        per_peer_bytes: 4 << 10,
        max_blocks_per_peer: 1,
        max_slots: 4,
        max_copies: 1,
        packet_bytes: 0,
        window_sets: 0,
    };
    // Each rank makes its tensors once, as a program would. New tensors for every launch would hide what one launch
    // does to the next.
    let tensors = |len: usize| -> Vec<Tensor<f32>> { (0..ranks).map(|_| Tensor::zeros(len)).collect() };
    let (out, inp) = (tensors(ranks * len), tensors(len));
    let mut plan = Rehearsal::new(geometry).plan(launches, |link, _| {
        let rank = link.number() as usize;
        ring::trace(link, &out[rank], &inp[rank])
    })?;
    // The values that the hosts put in and must find: the shards of all ranks, with other values in every launch.
    let shard = |rank: usize, launch: usize| (0..len).map(move |i| (100 * launch + 10 * rank + i) as f32);
    plan.inputs(|rank, launch| vec![Values::of(&inp[rank as usize], shard(rank as usize, launch))]);
    plan.expect(|rank, launch| vec![Values::of(&out[rank as usize], (0..ranks).flat_map(|from| shard(from, launch)))]);
    Ok(plan)
}

/// The reports on the ring as it is, and on the ring with a mistake: a sender that signals before its data is there.
pub fn run(ranks: usize, len: usize) -> Result<(Report, Report), RunError> {
    let (plan, settings) = (plan(ranks, len, 2)?, Settings::default());
    let mutants = plan.mutants(Mutation::SignalBeforePut);
    let mutant = mutants.first().expect("the ring signals");
    Ok((plan.verify(&settings), mutant.verify(&settings)))
}

#[allow(dead_code)] // the tests call `run`
fn main() -> Result<(), RunError> {
    let (as_it_is, too_early) = run(3, 600)?;
    println!("the ring of 3 ranks: {as_it_is}\n");
    println!("the same with a signal before the data: {too_early}");
    Ok(())
}
