//! The transposing all-to-all: every rank has a `[rows, cols]` matrix for every rank, and each matrix arrives
//! transposed. There is no second pass over the data and no buffer in between, because the transpose is part of the
//! kernel that sends.
//!
//! Run it with `cargo run -p tilewire --example 03_transposing_all_to_all`.

use tilewire::link::{ShmOptions, ShmTransport};
use tilewire::transport::WorldError;
use tilewire::{Tensor, World, all_to_all};

/// Runs it among `ranks` ranks, and returns what each of them has afterwards.
pub fn run(ranks: usize, rows: usize, cols: usize) -> Result<Vec<Vec<f32>>, WorldError> {
    World::threads(ranks).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let inp = Tensor::from_fn(ranks * rows * cols, |i| element(world.rank().index(), i));
        let out = Tensor::<f32>::zeros(ranks * rows * cols);

        all_to_all(&link, &out, &inp)
            .chunk_shape(rows, cols)
            .output_shape(cols, rows)
            .produce(|c| c.input.at(c.col(), c.row())) // or hooks::transpose()
            .run()?;

        link.close()?;
        Ok(out.to_vec())
    })
}

/// Element `i` of the input of a rank.
pub fn element(rank: usize, i: usize) -> f32 {
    (rank * 1_000_000 + i) as f32
}

#[allow(dead_code)] // the tests call `run`
fn main() -> Result<(), WorldError> {
    for (rank, out) in run(3, 2, 3)?.iter().enumerate() {
        println!("rank {rank} has {out:?}");
    }
    Ok(())
}
