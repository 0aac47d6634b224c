//! Column slices of a larger matrix, sent from where they lie. Every rank has some rows of a matrix and gets all rows
//! of some columns, as tensor-parallel layers do. Neither side copies anything into a contiguous buffer first.
//!
//! Run it with `cargo run -p tilewire --example 09_column_slices`.

use tilewire::link::{ShmOptions, ShmTransport};
use tilewire::tensor::Axis;
use tilewire::transport::WorldError;
use tilewire::{Tensor, World, all_to_all};

/// Runs it with `rows` rows and `cols` columns for each pair of ranks. Returns what each of them has afterwards.
pub fn run(ranks: usize, rows: usize, cols: usize) -> Result<Vec<Vec<f32>>, WorldError> {
    World::threads(ranks).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        // Three tensors lie side by side in one matrix, as queries, keys and values do. The middle one is sent.
        let width = ranks * cols;
        let all = Tensor::from_fn(rows * 3 * width, |i| element(world.rank().index(), i));
        let keys = all.reshape(rows, 3 * width)?.columns(width..2 * width);
        let out = Tensor::<f32>::zeros(ranks * rows * cols).reshape(ranks * rows, cols)?;

        all_to_all(&link, &out, &keys).along(Axis::Cols).output_along(Axis::Rows).run()?;

        link.close()?;
        Ok(out.to_vec())
    })
}

/// Element `i` of the matrix of a rank.
pub fn element(rank: usize, i: usize) -> f32 {
    (rank * 1_000_000 + i) as f32
}

#[allow(dead_code)] // the tests call `run`
fn main() -> Result<(), WorldError> {
    for (rank, out) in run(2, 2, 3)?.iter().enumerate() {
        println!("rank {rank} has {out:?}");
    }
    Ok(())
}
