//! Your own schedule (layer 3): a ring all-gather, made of the two ends of a staged pipeline.
//!
//! ```text
//!   round 0     every rank sends its own chunk to the next rank
//!   round k     what arrives from the previous rank is stored, and goes on to the next in the same pass
//!   round n-2   … and stops: all have all
//! ```
//! The rounds of one tile follow each other, so a tile is on its way round the ring while the next one starts.
//!
//! Run it with `cargo run -p tilewire --example 05_ring_all_gather`.

use tilewire::collective::Launch;
use tilewire::link::{ShmOptions, ShmTransport, Staged, Transport};
use tilewire::transport::WorldError;
use tilewire::{RunError, Tensor, Traced, World, kernel};

/// The number of elements of a tile. One step carries one tile.
const TILE: usize = 256;
/// The number of steps that may be under way.
const DEPTH: usize = 4;

/// Gathers the inputs of all ranks, at least two, in rank order. It works over any transport.
pub fn ring_all_gather<'l>(
    link: &'l dyn Transport,
    out: &Tensor<f32>,
    inp: &Tensor<f32>,
) -> Result<Launch<'l>, RunError> {
    Launch::over(&[link], &trace(link, out, inp)?)
}

/// The kernel of a rank: for launches, and for the checker (07_checking_your_own_schedule).
pub fn trace(link: &dyn Transport, out: &Tensor<f32>, inp: &Tensor<f32>) -> Result<Traced, RunError> {
    let (me, ranks, len) = (link.rank(), link.world_size(), inp.len());
    assert_eq!(out.len(), ranks * len, "the output holds the inputs of all ranks");
    let (next, previous) = (me.after(1, ranks), me.after(ranks - 1, ranks));
    let (rounds, tiles) = (ranks - 1, len.div_ceil(TILE));

    // Numbers that would corrupt data or hang are refused here. Nothing compares the two sides of your own schedule:
    // all ranks must run the same one.
    let staged = Staged::<f32>::new(link, len).tile(TILE).depth(DEPTH);
    let (to, from) = (staged.with(next)?, staged.with(previous)?);

    Ok(kernel("ring all-gather", |k| {
        let (inp, out) = (k.input(inp), k.output(out));
        let (tx, rx) = (to.sender(k), from.receiver(k));
        k.main(|r| {
            let (send, receive) = (tx.begin(r), rx.begin(r));
            r.for_(0..tiles, |tile| {
                let first = tile * TILE as i64;
                let elements = (r.constant(len as i64) - first).min(TILE as i64);
                let place = |owner: tilewire::Rank| first + (owner.index() * len) as i64;
                let step = tile * rounds as i64;
                send.step(step, elements * 4, |to| {
                    r.each(elements, |i| {
                        let x = inp.load(first + i);
                        out.store(place(me) + i, x);
                        tx.put(to.offset + i * 4, x);
                    });
                });
                for round in 0..rounds {
                    let (step, place) = (step + round as i64, place(me.after(ranks - 1 - round, ranks)));
                    receive.step(step, |from| {
                        let x = |i| rx.get::<f32>(from.offset + i * 4);
                        if round + 1 == rounds {
                            return r.each(elements, |i| out.store(place + i, x(i)));
                        }
                        send.step(step + 1, elements * 4, |to| {
                            r.each(elements, |i| {
                                let x = x(i);
                                out.store(place + i, x);
                                tx.put(to.offset + i * 4, x);
                            });
                        });
                    });
                }
            });
            let steps = r.constant((tiles * rounds) as i64);
            send.end(steps);
            receive.end(steps);
        });
    })?)
}

/// Gathers `len` elements of each rank, twice, and checks what every rank has then. Returns what rank 0 has.
pub fn run(ranks: usize, len: usize) -> Result<Vec<f32>, WorldError> {
    let gathered = World::threads(ranks).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let (inp, out) = (Tensor::<f32>::zeros(len), Tensor::<f32>::zeros(ranks * len));
        let mut gather = ring_all_gather(&link, &out, &inp)?;
        for launch in 0..2 {
            let element = |rank: usize, i: usize| (rank * 1000 + i) as f32 + launch as f32 / 2.0;
            (0..len).for_each(|i| inp.set(i, element(world.rank().index(), i)));
            gather.run()?;
            (0..ranks * len).for_each(|i| assert_eq!(out.get(i), element(i / len, i % len), "element {i}"));
        }
        drop(gather);
        link.close()?;
        Ok(out.to_vec())
    })?;
    Ok(gathered.into_iter().next().unwrap_or_default())
}

#[allow(dead_code)] // the tests call `run`
fn main() -> Result<(), WorldError> {
    let gathered = run(4, 1000)?;
    println!("4 ranks gathered {} elements: {:?} … {:?}", gathered.len(), &gathered[..3], gathered.last());
    Ok(())
}
