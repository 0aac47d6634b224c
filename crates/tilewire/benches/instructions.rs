//! Instructions of a transfer: one thread plays both ranks, so no wait spins, and the count is the same in every run.
//!
//! `.ci/instructions` runs this under callgrind, which counts what happens inside [`transfers`], and compares with a committed baseline.
//! Run alone it only shows that the bytes arrive: `cargo bench -p tilewire --bench instructions -- 64KiB 10`.
//!
//! The sender is launched first. It finds room and returns; the receiver, launched by the same thread, finds everything there. 8 bytes go
//! through all of a user's `run`. 64 KiB are launched by the engine alone: it must be told to write through the cache, because otherwise it
//! measures which way is faster, and counts would depend on the clock.

use std::sync::Mutex;
use std::time::Duration;
use tilewire::collective::PreparedExchange;
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
    let lent = Mutex::new(None);
    let [first, second] = [0, 1].map(Rank::new);
    let ran = World::threads(2).deadline(Duration::from_secs(60)).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let meet = |name: &str| world.bootstrap().barrier(name, world.deadline());
        if world.rank() == first {
            let x = Tensor::from_fn(bytes, |i| i as u8);
            let mut give = send(&link, &x, second).blocks(1).build()?;
            let mut engine_gives = engine(&send(&link, &x, second).blocks(1).trace()?, first);
            *lent.lock().unwrap() = Some(Lent((&raw mut give).cast(), &raw mut engine_gives));
            meet("lent")?;
            meet("given back")?;
        } else {
            let y = Tensor::<u8>::zeros(bytes);
            let mut take = recv(&link, &y, first).blocks(1).build()?;
            let mut engine_takes = engine(&recv(&link, &y, first).blocks(1).trace()?, second);
            meet("lent")?;
            let Lent(give, engine_gives) = lent.lock().unwrap().take().expect("rank 0 has lent them");
            // SAFETY: they live until rank 0 has met us again, and until then rank 0 touches neither them nor its transport.
            let (give, engine_gives) = unsafe { (&mut *give, &mut *engine_gives) };
            // What was built must run; it also prepares what later launches find.
            for _ in 0..32 {
                give.run().unwrap();
                take.run().unwrap();
            }
            if bytes == 8 {
                transfers(&mut || give.run().unwrap(), &mut || take.run().unwrap(), count);
            } else {
                transfers(&mut || engine_gives.run().unwrap(), &mut || engine_takes.run().unwrap(), count);
            }
            assert!(y.to_vec().iter().enumerate().all(|(i, &byte)| byte == i as u8), "the bytes have arrived");
            meet("given back")?;
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

/// What is counted; `.ci/instructions` names it.
#[inline(never)]
fn transfers(give: &mut dyn FnMut(), take: &mut dyn FnMut(), count: usize) {
    for _ in 0..count {
        give();
        take();
    }
}

/// The launches of a rank that waits while another thread runs them. They borrow what that rank holds, and no longer than it is held.
struct Lent(*mut PreparedExchange<'static>, *mut Prepared);

// SAFETY: the owner waits at a barrier from before they are taken until after the last use, so two threads never use them, and
// nothing in a launch belongs to the thread that built it.
unsafe impl Send for Lent {}
