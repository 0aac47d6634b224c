//! A hook that captures a tensor: every row of a `[rows, cols]` chunk is scaled by a factor of that row, on its way
//! round a ring.
//!
//! The closure runs once, when the kernel is built. The tensor and the scalar that it captures become arguments of the
//! kernel, which reads them at every launch. So you can change them and launch again, and nothing is compiled anew.
//!
//! Run it with `cargo run -p tilewire --example 02_hook_with_a_captured_tensor`.

use tilewire::link::{ShmOptions, ShmTransport};
use tilewire::prelude::*;
use tilewire::transport::WorldError;
use tilewire::{World, hooks, sendrecv};

/// Launches twice among two or more ranks, and checks each launch. Returns what rank 0 has after the second one.
pub fn run(ranks: usize, rows: usize, cols: usize) -> Result<Vec<f32>, WorldError> {
    let received = World::threads(ranks).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let (next, previous) = (world.next(), world.previous());
        let (inp, out) = (Tensor::from_fn(rows * cols, |i| i as f32), Tensor::<f32>::zeros(rows * cols));
        let (factors, shift) = (Tensor::<f32>::zeros(rows), Scalar::new(0.0f32));

        let mut exchange = sendrecv(&link, &out, &inp, next, previous)
            .chunk_shape(rows, cols)
            .produce(|c| c.input.at(c.row(), c.col()) * factors.at(c.row()) + &shift)
            .build()?;

        for launch in 1..=2 {
            // What this rank sends is scaled by the factors of this rank.
            let factor = |rank: usize, row: usize| ((rank + 1) * (row + 1) * launch) as f32;
            (0..rows).for_each(|row| factors.set(row, factor(world.rank().index(), row)));
            shift.set(launch as f32 / 2.0);
            exchange.run()?;
            for i in 0..rows * cols {
                assert_eq!(
                    out.get(i),
                    i as f32 * factor(previous.index(), i / cols) + launch as f32 / 2.0,
                    "element {i}"
                );
            }
        }

        // The same from the library, without the shift.
        sendrecv(&link, &out, &inp, next, previous)
            .chunk_shape(rows, cols)
            .produce(hooks::scale(hooks::per_row(&factors)))
            .run()?;
        drop(exchange);
        link.close()?;
        Ok(out.to_vec())
    })?;
    Ok(received.into_iter().next().unwrap_or_default())
}

#[allow(dead_code)] // the tests call `run`
fn main() -> Result<(), WorldError> {
    println!("rank 0 of 3 received {:?}", run(3, 2, 4)?);
    Ok(())
}
