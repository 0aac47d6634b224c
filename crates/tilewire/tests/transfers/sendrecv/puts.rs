//! Stores around the cache, through a transport: a reader of a slot or a window finds the written bytes after the
//! signal, whichever way they were written.
//!
//! Pieces are long enough to go around the cache, and every launch brings new data into slots that were just read. (A
//! missing fence before a signal does not show here, because whole lines leave the processor long before they are read.
//! Reviews must check that it is there.)

use crate::case::{Way, assert_same, data, floats, poison, seed, threads};
use tilewire::link::{ShmOptions, ShmTransport, Window};
use tilewire::transport::{Rank, RankError, World};
use tilewire::vm::Puts;
use tilewire::{Tensor, all_to_all, sendrecv};
use tilewire_testkit::random::Random;

/// Room for slots of a few KiB.
const OPTIONS: ShmOptions = ShmOptions {
    per_peer_bytes: Some(512 << 10),
    max_blocks_per_peer: Some(2),
    max_slots: Some(8),
    max_copies: 1,
    packet_bytes: Some(64 << 10),
    window_sets: None,
    populate: false,
};

/// Fixed ways alternate, and the last one is measured.
const PUTS: [Puts; 4] = [Puts::AroundCache, Puts::ThroughCache, Puts::AroundCache, Puts::Measured];

const LAUNCHES: u64 = 60;

fn neighbours(world: &World) -> (Rank, Rank) {
    let (me, size) = (world.rank(), world.size());
    (me.after(1, size), me.after(size - 1, size))
}

#[test]
fn slots_are_written_around_the_cache_in_turn_with_other_ways() {
    threads(2, "slots", |world| {
        let link = ShmTransport::rendezvous(world, OPTIONS)?;
        let (to, from) = neighbours(world);
        let mut numbers = Random::new(seed());
        for (way, len) in [(Way::staged(4 << 10, 8), 40_000), (Way::staged(24_000, 4), 70_001), (Way::Chosen, 65_536)] {
            let (inp, out) = (Tensor::<u32>::zeros(len), Tensor::<u32>::zeros(len));
            let prepare = |puts| sendrecv(&link, &out, &inp, to, from).config(way.config(1)).puts(puts).build();
            let mut ways = PUTS.map(prepare).into_iter().collect::<Result<Vec<_>, _>>()?;
            for launch in 0..LAUNCHES {
                let (which, seed) = (numbers.below(ways.len()), seed() ^ launch << 8);
                inp.copy_from(&data(seed, world.rank(), len));
                poison(&out);
                ways[which].run()?;
                assert_same(&out.to_vec(), &data::<u32>(seed, from, len), (way, PUTS[which], launch));
            }
        }
        Ok(link.close()?)
    });
}

#[test]
fn hooks_write_slots_around_the_cache() {
    threads(3, "hooks", |world| {
        let link = ShmTransport::rendezvous(world, OPTIONS)?;
        let ((to, from), (rows, cols)) = (neighbours(world), (96, 160));
        let (inp, out) = (Tensor::<f32>::zeros(rows * cols), Tensor::<f32>::zeros(rows * cols));
        for launch in 0..LAUNCHES / 4 {
            for (puts, blocks) in PUTS.into_iter().zip([1, 2, 2, 1]) {
                let seed = seed() ^ launch;
                inp.copy_from(&floats(seed, world.rank(), rows * cols));
                let theirs = floats(seed, from, rows * cols);
                let config = Way::staged(16 << 10, 4).config(blocks);
                let exchange = || sendrecv(&link, &out, &inp, to, from).config(config).puts(puts);
                exchange().produce(|c| c.input.load(c.pos()) * 0.5).run()?;
                let must: Vec<f32> = theirs.iter().map(|x| x * 0.5).collect();
                assert_same(&out.to_vec(), &must, ("scaled", puts, blocks));
                exchange()
                    .chunk_shape(rows, cols)
                    .output_shape(cols, rows)
                    .produce(|c| c.input.at(c.col(), c.row()))
                    .run()?;
                let must: Vec<f32> = (0..rows * cols).map(|k| theirs[k % rows * cols + k / rows]).collect();
                assert_same(&out.to_vec(), &must, ("transposed", puts, blocks));
            }
        }
        Ok(link.close()?)
    });
}

#[test]
fn windows_are_written_around_the_cache_where_one_says_so() {
    let body = |world: &World| -> Result<(), RankError> {
        let link = ShmTransport::rendezvous(world, OPTIONS)?;
        let (chunk, size) = (20_011, world.size());
        let (inp, window) = (Tensor::<u32>::zeros(size * chunk), Window::<u32>::allocate(&link, size * chunk)?);
        let prepare = |puts| all_to_all(&link, window.tensor(), &inp).window(&window).puts(puts).build();
        let mut ways = PUTS.map(prepare).into_iter().collect::<Result<Vec<_>, _>>()?;
        for launch in 0..LAUNCHES {
            let (which, seed) = (launch as usize % ways.len(), seed() ^ launch << 8);
            inp.copy_from(&data(seed, world.rank(), size * chunk));
            ways[which].run()?;
            let of =
                |from: Rank| data::<u32>(seed, from, size * chunk)[world.rank().index() * chunk..][..chunk].to_vec();
            let must: Vec<u32> = Rank::all(size).flat_map(of).collect();
            assert_same(&window.tensor().to_vec(), &must, (PUTS[which], launch));
        }
        drop(ways);
        Ok(link.close()?)
    };
    [2, 4].into_iter().for_each(|ranks| _ = threads(ranks, "windows", body));
}
