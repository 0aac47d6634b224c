//! Raw put, get, signal and wait (layer 4): every rank of a ring sends its edges to its two neighbours, through a hook
//! that scales them.
//!
//! ```text
//!    halo │ cells                    │ halo        what goes to the right uses block 1 of the receiver's staging,
//!         ├ edge ┤            ├ edge ┤             what goes to the left block 0; two slots each, used in turns,
//!  ◀──────┘ block 0    block 1 └──────▶            so that a launch may put before the last one was read
//! ```
//! Run it with `cargo run -p tilewire --example 06_own_kernel_from_raw_ops`.

use tilewire::collective::Launch;
use tilewire::link::{ShmOptions, ShmTransport, Transport};
use tilewire::transport::{PeerEndpoint, WorldError};
use tilewire::{RunError, Scalar, Tensor, Value, World, kernel};

const CELLS: usize = 1000;
const EDGE: usize = 64;

/// The hook: it computes what is sent for an element.
fn scaled<'t>(x: Value<'t, f32>) -> Value<'t, f32> {
    x * 0.5
}

/// Fills `halo` (left, then right) with the neighbours' edges, as `hook` computes them. `launch` counts the launches,
/// from 0, on every rank.
pub fn neighbour_exchange<'l>(
    link: &'l ShmTransport,
    halo: &Tensor<f32>,
    cells: &Tensor<f32>,
    launch: &Scalar<i64>,
    hook: impl for<'t> Fn(Value<'t, f32>) -> Value<'t, f32>,
) -> Result<Launch<'l>, RunError> {
    let (me, ranks) = (link.rank(), link.world_size());
    let neighbours = [me.after(ranks - 1, ranks), me.after(1, ranks)];
    let shape = link.link(neighbours[0]);
    let (staging, slots) = (shape.block_bytes() as i64, shape.max_slots as i64);
    let traced = kernel("neighbour exchange", |k| {
        let (cells, halo) = (k.input(cells), k.output(halo));
        // Everything between this rank and a neighbour is memory. A kernel names it as regions and slots.
        let sides = neighbours.map(|peer| {
            let endpoint = link.endpoint(peer).expect("ranks of one machine reach each other");
            let (here, there) = (endpoint.here.clone(), endpoint.mapped().expect("by loads and stores").clone());
            let region = |name: &str, memory| k.region(name, &[memory]);
            let words = |name: &str, memory| k.slots(name, &[memory], PeerEndpoint::SLOT_STRIDE);
            let (tails, heads) = ((there.signals.tail, here.signals.tail), (here.signals.head, there.signals.head));
            let out = (region("to the peer", there.staging), words("sent", tails.0), words("free", heads.0));
            let inp = (region("from the peer", here.staging), words("arrived", tails.1), words("read", heads.1));
            (out, inp)
        });
        k.main(|r| {
            let next = r.scalar(launch) + 1;
            let turn = next % 2;
            for (side, ((to, sent, free), _)) in sides.into_iter().enumerate() {
                let (slot, offset) = (turn + side as i64 * slots, turn * (EDGE * 4) as i64 + side as i64 * staging);
                let edge = if side == 0 { 0 } else { CELLS - EDGE } as i64;
                r.wait(free.slot(0, slot), (next - 2).max(0)); // the launch before the last has been read
                r.each(EDGE, |i| to.put(0, i * 4 + offset, hook(cells.load(i + edge))));
                r.signal(sent.slot(0, slot), next);
            }
            for (side, (_, (from, arrived, read))) in sides.into_iter().enumerate() {
                // The neighbour on the left sent this to its right.
                let block = 1 - side as i64;
                let (slot, offset) = (turn + block * slots, turn * (EDGE * 4) as i64 + block * staging);
                r.wait(arrived.slot(0, slot), next);
                r.each(EDGE, |i| halo.store(i + (side * EDGE) as i64, from.get::<f32>(0, i * 4 + offset)));
                r.signal_credit(read.slot(0, slot), next);
            }
        });
    })?;
    Launch::new(link, &traced)
}

/// Exchanges edges a few times among two or more ranks, and checks every halo. Returns that of rank 0.
pub fn run(ranks: usize) -> Result<Vec<f32>, WorldError> {
    let halos = World::threads(ranks).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let (cells, halo) = (Tensor::<f32>::zeros(CELLS), Tensor::<f32>::zeros(2 * EDGE));
        let launch = Scalar::new(0i64);
        let mut exchange = neighbour_exchange(&link, &halo, &cells, &launch, scaled)?;
        let (me, last) = (world.rank(), CELLS - EDGE);
        for n in 0..5 {
            let cell = |rank: tilewire::Rank, i: usize| (rank.index() * 10_000 + i) as f32 + n as f32 * 0.25;
            (0..CELLS).for_each(|i| cells.set(i, cell(me, i)));
            launch.set(n);
            exchange.run()?;
            for i in 0..EDGE {
                assert_eq!(halo.get(i), cell(world.previous(), last + i) * 0.5, "left {i}, launch {n}");
                assert_eq!(halo.get(EDGE + i), cell(world.next(), i) * 0.5, "right {i}, launch {n}");
            }
        }
        drop(exchange);
        link.close()?;
        Ok(halo.to_vec())
    })?;
    Ok(halos.into_iter().next().unwrap_or_default())
}

#[allow(dead_code)] // the tests call `run`
fn main() -> Result<(), WorldError> {
    let halo = run(4)?;
    println!("rank 0 of 4 has {:?} … {:?} of its neighbours' edges", &halo[..2], &halo[EDGE..EDGE + 2]);
    Ok(())
}
