//! The smallest program with two ranks: one sends a tensor, the other receives it.
//!
//! Run it with `cargo run -p tilewire --example 01_first_send`.

use tilewire::link::{ShmOptions, ShmTransport};
use tilewire::transport::{Rank, WorldError};
use tilewire::{Tensor, World, recv, send};

/// Sends `len` numbers from rank 0 to rank 1, and returns what arrived.
pub fn run(len: usize) -> Result<Vec<f32>, WorldError> {
    let (first, second) = (Rank::new(0), Rank::new(1));

    // Two ranks as threads of this process. With `World::from_env()` the same code runs as processes (see
    // 08_processes).
    let arrived = World::threads(2).run(|world| {
        // All ranks meet once. The call returns the transport: memory that the ranks share, and counters to signal
        // with.
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let tensor = if world.rank() == first {
            let x = Tensor::from_fn(len, |i| i as f32);
            send(&link, &x, second).run()?;
            x
        } else {
            let y = Tensor::<f32>::zeros(len);
            recv(&link, &y, first).run()?;
            y
        };
        // Closing is collective, too: no rank unmaps memory that another one still reads.
        link.close()?;
        Ok(tensor.to_vec())
    })?;
    Ok(arrived.into_iter().nth(1).unwrap_or_default())
}

#[allow(dead_code)] // the tests call `run`
fn main() -> Result<(), WorldError> {
    println!("rank 1 received {:?}", run(5)?);
    Ok(())
}
