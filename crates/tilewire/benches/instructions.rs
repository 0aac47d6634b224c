//! Instructions of a transfer: the ranks take turns, so no wait spins, and the count is the same in every run.
//!
//! `.ci/instructions` runs this under callgrind, which counts the instructions inside [`transfers`], and compares them
//! with a committed baseline. Run by itself, it only shows that the bytes arrive: `cargo bench -p tilewire --bench
//! instructions -- 64KiB 10`.
//!
//! The sender is launched first. It finds room and returns. The receiver, launched after it, finds everything there. 8
//! bytes go through a user's whole `run`. 64 KiB are launched by the engine alone. It must be told to write through the
//! cache: otherwise it measures which way is faster, and counts would depend on the clock.

use std::time::Duration;
use tilewire::link::{ShmOptions, ShmTransport};
use tilewire::transport::{Rank, World};
use tilewire::vm::{Prepared, Puts, Settings, StorePolicy};
use tilewire::{Tensor, Traced, recv, send};

fn main() {
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let (size, count) = (words.next().unwrap_or("8B".into()), words.next().unwrap_or("10".into()));
    let bytes = match &*size {
        "8B" => 8,
        "64KiB" => 64 << 10,
        other => panic!("{other}: 8B or 64KiB"),
    };
    let count: usize = count.parse().expect("a number of transfers");
    let [first, second] = [0, 1].map(Rank::new);
    let ran = World::threads(2).deadline(Duration::from_secs(60)).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        // Not counted.
        let next = || world.bootstrap().barrier("turn", world.deadline());
        let rounds = FIRST + count;
        if world.rank() == first {
            let x = Tensor::from_fn(bytes, |i| i as u8);
            let mut give = send(&link, &x, second).blocks(1).build()?;
            let mut engine_gives = engine(&send(&link, &x, second).blocks(1).trace()?, first);
            for round in 0..rounds {
                turn(&mut || give.run().unwrap(), &mut || engine_gives.run().unwrap(), bytes, round);
                next()?;
                next()?;
            }
        } else {
            let y = Tensor::<u8>::zeros(bytes);
            let mut take = recv(&link, &y, first).blocks(1).build()?;
            let mut engine_takes = engine(&recv(&link, &y, first).blocks(1).trace()?, second);
            for round in 0..rounds {
                next()?;
                turn(&mut || take.run().unwrap(), &mut || engine_takes.run().unwrap(), bytes, round);
                next()?;
            }
            assert!(y.to_vec().iter().enumerate().all(|(i, &byte)| byte == i as u8), "the bytes have arrived");
        }
        Ok(link.close()?)
    });
    ran.unwrap();
    println!("{count} transfers of {size}");
}

fn engine(traced: &Traced, rank: Rank) -> Prepared {
    let (rank, world_size) = (rank.index(), 2);
    let settings = Settings {
        rank,
        world_size,
        stores: StorePolicy { puts: Puts::ThroughCache, ..StorePolicy::default() },
        ..Settings::default()
    };
    Prepared::with(&traced.kernel, &traced.args, settings).unwrap()
}

/// Transfers that are not counted. What was built must run once, and this prepares what later launches find.
const FIRST: usize = 32;

/// A rank's part of a transfer.
fn turn(run: &mut dyn FnMut(), engine: &mut dyn FnMut(), bytes: usize, round: usize) {
    match bytes {
        _ if round < FIRST => run(),
        8 => transfers(run),
        _ => transfers(engine),
    }
}

/// The counted part. `.ci/instructions` uses this name.
#[inline(never)]
fn transfers(launch: &mut dyn FnMut()) {
    launch();
}
