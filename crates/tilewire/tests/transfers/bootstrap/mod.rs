//! How ranks find each other: the meaning of the calls, who may join, hostile bytes, and launchers.

mod hostile;
#[cfg(target_os = "linux")]
mod hosting;
mod joining;
mod launchers;
#[cfg(target_os = "linux")]
mod memory;
mod raw;
mod semantics;
mod worlds;

use std::time::{Duration, Instant};
use tilewire::transport::{Bootstrap, Deadline, Limits, LocalBootstrap, Rank, Secret, StoreServer, TcpBootstrap};

/// Longer than any passing test takes.
fn long() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Long enough to notice a wait, and short enough for a test.
const SHORT: Duration = Duration::from_millis(150);

/// A wait that ends immediately ends far from the minute of its deadline.
const AT_ONCE: Duration = Duration::from_secs(10);

fn rank(number: u32) -> Rank {
    Rank::new(number)
}

fn secret() -> Secret {
    Secret::new("the secret of these tests").unwrap()
}

fn server(world_size: usize, limits: Limits) -> StoreServer {
    StoreServer::start("127.0.0.1:0", world_size, &secret(), limits).unwrap()
}

fn connect(server: &StoreServer, number: u32, world_size: usize) -> TcpBootstrap {
    TcpBootstrap::connect(&server.address().to_string(), rank(number), world_size, &secret(), long()).unwrap()
}

/// The ranks of a world, and everything that must live as long as they do.
struct Ranks {
    ranks: Vec<Box<dyn Bootstrap>>,
    _server: Option<StoreServer>,
}

/// The maker of a world. One suite runs with each.
type Make = fn(usize, Limits) -> Ranks;

fn threads(size: usize, limits: Limits) -> Ranks {
    let ranks = LocalBootstrap::with_limits(size, limits).into_iter().map(|rank| Box::new(rank) as _).collect();
    Ranks { ranks, _server: None }
}

fn tcp(size: usize, limits: Limits) -> Ranks {
    let server = server(size, limits);
    let ranks = (0..size as u32).map(|number| Box::new(connect(&server, number, size)) as _).collect();
    Ranks { ranks, _server: Some(server) }
}

impl Ranks {
    /// Runs a body for each rank, each in a thread, and returns the results.
    fn run<R: Send>(&self, body: impl Fn(&dyn Bootstrap) -> R + Sync) -> Vec<R> {
        std::thread::scope(|scope| {
            let body = &body;
            let threads: Vec<_> = self.ranks.iter().map(|rank| scope.spawn(move || body(&**rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}

#[track_caller]
fn at_once<R>(body: impl FnOnce() -> R) -> R {
    let began = Instant::now();
    let result = body();
    assert!(began.elapsed() < AT_ONCE, "took {:?}", began.elapsed());
    result
}
