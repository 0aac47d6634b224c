//! The checker on a schedule of one's own: the ring of example 05, all ranks on one thread, every order of events in one run.
//!
//! A race shows once in a million launches, on somebody else's machine. The checker runs the real kernels of all ranks under a scheduler
//! of its own and says whether *any* order of events goes wrong, with the source lines of both who take part.
//!
//! Run it with `cargo run -p tilewire --example 07_checking_your_own_schedule`.

#[allow(dead_code)] // only the kernel is used
#[path = "05_ring_all_gather.rs"]
pub mod ring;

use tilewire::check::{Mutation, Plan, Report, Settings};
use tilewire::rehearsal::Rehearsal;
use tilewire::transport::layout::Geometry;
use tilewire::{RunError, Tensor};

/// A plan of some launches of the ring, back to back: what only breaks on the second launch breaks here.
pub fn plan(ranks: usize, len: usize, launches: usize) -> Result<Plan, RunError> {
    // A transport without a wire: the ranks' kernels share memory as over a real one, but nothing is launched.
    // Small, so that slots come round often.
    let geometry = Geometry {
        world_size: ranks,
        per_peer_bytes: 4 << 10,
        max_blocks_per_peer: 1,
        max_slots: 4,
        max_copies: 1,
        packet_bytes: 0,
    };
    let links = Rehearsal::new(geometry).ranks();
    let mut plan = Plan::new(ranks as u32);
    for _ in 0..launches {
        let trace = |link| {
            let (out, inp) = (Tensor::<f32>::zeros(ranks * len), Tensor::<f32>::zeros(len));
            ring::trace(link, &out, &inp)
        };
        let traced = links.iter().map(trace).collect::<Result<Vec<_>, _>>()?;
        let kernels: Vec<_> = traced.iter().map(|traced| (&traced.kernel, &traced.args[..])).collect();
        plan.launch(&kernels);
    }
    Ok(plan)
}

/// The report on the ring as it is, and on the ring with a mistake: a sender that signals before its data is there.
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
