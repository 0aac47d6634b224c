//! An all-to-all of `bf16` that travels as fp8 with a scale for every 128 neighbours, and is restored on arrival.
//!
//! Run it with `cargo run -p tilewire --example 04_quantised_all_to_all`.

use tilewire::link::{ShmOptions, ShmTransport};
use tilewire::transport::WorldError;
use tilewire::{Bf16, F8E4M3, Tensor, World, all_to_all, hooks};

/// The number of neighbours that share a scale.
pub const GROUP: usize = 128;

/// Runs it among `ranks` ranks, with `len` elements from each rank to each. Returns the largest error, relative to the
/// largest magnitude.
pub fn run(ranks: usize, len: usize) -> Result<f32, WorldError> {
    let errors = World::threads(ranks).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let me = world.rank().index();
        let inp = Tensor::from_fn(ranks * len, |i| element(me, i));
        let out = Tensor::<Bf16>::zeros(ranks * len);

        all_to_all(&link, &out, &inp)
            .produce2(hooks::quantise(F8E4M3::MAX, GROUP))
            .last_per(GROUP)
            .consume(hooks::dequantise())
            .run()?;

        link.close()?;
        let sent = |i: usize| element(i / len, me * len + i % len).to_f32();
        Ok((0..ranks * len).map(|i| (out.get(i).to_f32() - sent(i)).abs()).fold(0.0, f32::max))
    })?;
    Ok(errors.into_iter().fold(0.0, f32::max) / LARGEST)
}

const LARGEST: f32 = 50.0;

/// Element `i` of the input of a rank. Its magnitude varies.
fn element(rank: usize, i: usize) -> Bf16 {
    Bf16::from_f32(((rank * 7919 + i * 104_729) % 1001) as f32 / 1000.0 * 2.0 * LARGEST - LARGEST)
}

#[allow(dead_code)] // the tests call `run`
fn main() -> Result<(), WorldError> {
    println!("4 ranks: the largest error is {:.1}% of the largest element", run(4, 10_000)? * 100.0);
    Ok(())
}
