//! Values that groups of neighbours share (`last_per`), over meshes. Every element gets the scale of its own group. A
//! scale travels once for its group, if no row of a slot begins inside another row's group.

use crate::case::SMALL;
use crate::posts::{alone, mesh, neighbours, run, staged};
use tilewire::hooks::{dequantise, quantise};
use tilewire::link::{ShmTransport, Transport};
use tilewire::{Algorithm, Config, Knobs, Rank, RunError, Tensor, all_gather, all_to_all, broadcast, sendrecv};

/// A chunk, with or without a shape, and the number of neighbours that share a scale.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    shape: Option<(usize, usize)>,
    len: usize,
    group: usize,
}

impl Chunk {
    const fn flat(len: usize, group: usize) -> Chunk {
        Chunk { shape: None, len, group }
    }

    const fn shaped(rows: usize, cols: usize, group: usize) -> Chunk {
        Chunk { shape: Some((rows, cols)), len: rows * cols, group }
    }

    /// The number of scales that a far peer gets with a chunk.
    fn scales(self) -> usize {
        match self.shape {
            // Rows follow each other without gaps, so they could begin inside a group.
            Some((rows, cols)) if rows > 1 && !cols.is_multiple_of(self.group) => self.len,
            _ => self.len.div_ceil(self.group),
        }
    }

    fn knobs(self) -> Knobs {
        // Slots hold few groups, so there are many tiles. Tiles of shaped chunks are at most two groups wide.
        let slot_bytes = if self.group > 16 { 1024 } else { 512 };
        Knobs { granule: Some(self.group), blocks: None, ..staged(slot_bytes, 4) }
    }

    /// The n-th chunk that a rank sends. No two groups have the same scale.
    fn sent(self, rank: usize, nth: usize) -> impl Iterator<Item = f32> {
        (0..self.len).map(move |i| ((i * i * 37 + rank * 11 + nth * 101) % 1013) as f32 - 300.0 + i as f32)
    }

    /// The expected result, computed separately: every row has groups from its beginning on.
    fn arrives(self, rank: usize, nth: usize) -> Vec<u32> {
        let all: Vec<f32> = self.sent(rank, nth).collect();
        let rows = all.chunks(self.shape.map_or(self.len, |(_, cols)| cols));
        let of_group = |group: &[f32]| {
            let largest = group.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let scale = (largest * (1.0 / 127.0)).max(f32::MIN_POSITIVE);
            // Saturates, and drops the sign of zero.
            let narrow = |x: &f32| f32::from((x * (1.0 / scale)).round_ties_even() as i8);
            group.iter().map(|x| (narrow(x) * scale).to_bits()).collect::<Vec<_>>()
        };
        rows.flat_map(|row| row.chunks(self.group)).flat_map(of_group).collect()
    }
}

const CHUNKS: [Chunk; 13] = [
    Chunk::shaped(24, 40, 16),
    Chunk::shaped(7, 33, 8),
    Chunk::shaped(30, 20, 16),
    Chunk::shaped(3, 100, 32),
    Chunk::shaped(5, 3, 16),
    Chunk::shaped(1, 45, 16),
    // Rows are whole groups, in tiles of one width and of two.
    Chunk::shaped(9, 32, 16),
    Chunk::shaped(20, 48, 16),
    Chunk::flat(1, 16),
    Chunk::flat(45, 16),
    Chunk::flat(15, 32),
    Chunk::flat(1000, 16),
    Chunk::flat(1023, 32),
];

/// How chunks travel.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Pairs,
    Swap,
    Gather(Option<Algorithm>),
    Spread(Option<Algorithm>),
}

const WAYS: [Way; 7] = [
    Way::Pairs,
    Way::Swap,
    Way::Gather(Some(Algorithm::OneShot)),
    Way::Gather(Some(Algorithm::Ring)),
    Way::Gather(Some(Algorithm::TwoLevel)),
    Way::Spread(None),
    Way::Spread(Some(Algorithm::TwoLevel)),
];

/// Sends chunks, and compares what arrives.
fn travels(link: &dyn Transport, chunk: Chunk, way: Way) -> Result<(), RunError> {
    let Chunk { len, group, .. } = chunk;
    let (me, ranks) = (link.rank().index(), link.world_size());
    let (next, before) = neighbours(link);
    let inp = Tensor::from_slice(&(0..ranks).flat_map(|nth| chunk.sent(me, nth)).collect::<Vec<_>>());
    let (one, long, short) = (inp.slice(0..len), Tensor::<f32>::zeros(len * ranks), Tensor::<f32>::zeros(len));
    let config = Config { far: Some(chunk.knobs()), ..Config::from(chunk.knobs()) };
    macro_rules! run {
        ($builder:expr, $algorithm:expr) => {{
            let mut builder = $builder.config(config);
            if let Some((rows, cols)) = chunk.shape {
                builder = builder.chunk_shape(rows, cols);
            }
            if let Some(algorithm) = $algorithm {
                builder = builder.algorithm(algorithm);
            }
            builder.produce2(quantise(i8::MAX, group)).last_per(group).consume(dequantise()).run()?
        }};
    }
    // The sender of each chunk that arrives, and its number there.
    let (out, came): (&Tensor<f32>, Vec<(usize, usize)>) = match way {
        Way::Pairs => {
            run!(sendrecv(link, &short, &one, next, before), None::<Algorithm>);
            (&short, vec![(before.index(), 0)])
        }
        Way::Swap => {
            run!(all_to_all(link, &long, &inp), None::<Algorithm>);
            (&long, (0..ranks).map(|rank| (rank, me)).collect())
        }
        Way::Gather(algorithm) => {
            run!(all_gather(link, &long, &one), algorithm);
            (&long, (0..ranks).map(|rank| (rank, 0)).collect())
        }
        Way::Spread(algorithm) => {
            run!(broadcast(link, &short, &one, Rank::new(1)), algorithm);
            (&short, vec![(1, 0)])
        }
    };
    for (which, (sender, nth)) in came.into_iter().enumerate() {
        let (is, must) = (out.slice(which * len..(which + 1) * len).to_vec(), chunk.arrives(sender, nth));
        let wrong = is.iter().zip(&must).filter(|(is, must)| is.to_bits() != **must).count();
        assert_eq!(wrong, 0, "of {chunk:?} from rank {sender} to rank {me}, {way:?}");
    }
    Ok(())
}

#[test]
fn every_element_gets_the_scale_of_its_own_group() {
    // Shared memory has gaps in slots, and a mesh none.
    run(3, |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        // There, several rows that are shorter than a group are refused.
        let fits = |chunk: &Chunk| chunk.shape.is_none_or(|(rows, cols)| rows == 1 || cols >= chunk.group);
        for way in WAYS.into_iter().filter(|way| !format!("{way:?}").contains("TwoLevel")) {
            CHUNKS.into_iter().filter(fits).try_for_each(|chunk| travels(&link, chunk, way))?;
        }
        Ok(link.close()?)
    });
    let domains: [&[&[u32]]; 4] = [&[&[0, 1], &[2]], &[&[0], &[1, 2]], &[&[0, 2], &[1]], &[&[0], &[1], &[2]]];
    for (seed, domains) in domains.into_iter().enumerate() {
        run(3, |world| {
            let link = mesh(world, domains, Some(seed as u64))?;
            for way in WAYS {
                CHUNKS.into_iter().try_for_each(|chunk| travels(&link, chunk, way))?;
            }
            Ok(link.close()?)
        });
    }
}

#[test]
fn a_scale_travels_once_for_its_group_where_rows_are_whole_groups() {
    const LAUNCHES: u64 = 3;
    for chunk in CHUNKS {
        let carried = run(2, |world| {
            let link = alone(world, Some(2))?;
            let (peer, inp, out) = (world.next(), Tensor::<f32>::zeros(chunk.len), Tensor::<f32>::zeros(chunk.len));
            let exchange = sendrecv(&link, &out, &inp, peer, peer).config(chunk.knobs());
            let exchange = match chunk.shape {
                Some((rows, cols)) => exchange.chunk_shape(rows, cols),
                None => exchange,
            };
            let hooked = exchange.produce2(quantise(i8::MAX, chunk.group)).last_per(chunk.group);
            let mut exchange = hooked.consume(dequantise()).build()?;
            // The first words of this operation travel as digits.
            (0..4).try_for_each(|_| exchange.run())?;
            world.bootstrap().barrier("warm", world.deadline())?;
            let before = link.carried_bytes();
            world.bootstrap().barrier("read", world.deadline())?;
            (0..LAUNCHES).try_for_each(|_| exchange.run())?;
            let carried = (link.carried_bytes() - before) / LAUNCHES;
            drop(exchange);
            link.close()?;
            Ok(carried)
        });
        assert_eq!(carried, [(chunk.len + 4 * chunk.scales()) as u64; 2], "{chunk:?}");
    }
}
