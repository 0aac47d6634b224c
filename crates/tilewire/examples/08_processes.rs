//! Ranks as processes: every rank runs this program, and receives the tensor of the previous rank.
//!
//! ```text
//! cargo build -p tilewire --example 08_processes
//! cargo run --release -- launch -n 4 -- target/debug/examples/08_processes
//! ```
//! torchrun, mpirun and srun start it as well: see `docs/guide/launching.md`. Without a launcher, the program prints an
//! error that says so.

use tilewire::link::{ShmOptions, ShmTransport};
use tilewire::transport::RankError;
use tilewire::{Tensor, World, hooks, sendrecv};

/// The work of one rank. It is the same in a world of threads.
pub fn rank(world: &World) -> Result<(), RankError> {
    let (me, ranks, len) = (world.rank(), world.size(), 100_000);
    let link = ShmTransport::rendezvous(world, ShmOptions::default())?;
    let (inp, out) = (Tensor::from_fn(len, |i| (me.index() * len + i) as f32), Tensor::<f32>::zeros(len));
    let (next, previous) = (world.next(), world.previous());
    sendrecv(&link, &out, &inp, next, previous).produce(hooks::scale(0.5)).run()?;

    let expected = |i: usize| (previous.index() * len + i) as f32 * 0.5;
    match (0..len).find(|&i| out.get(i) != expected(i)) {
        Some(i) => return Err(format!("element {i} is {}, must be {}", out.get(i), expected(i)).into()),
        None => println!("rank {me} of {ranks} received {len} numbers from rank {previous}, all right"),
    }
    Ok(link.close()?)
}

#[allow(dead_code)] // the tests call `rank`
fn main() -> Result<(), RankError> {
    // Reads the launcher's variables; returns when all ranks have joined.
    rank(&World::from_env()?)
}
