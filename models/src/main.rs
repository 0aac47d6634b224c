//! The lock-free files of tilewire in all orders that the memory model allows:
//! `cargo run --manifest-path models/Cargo.toml`, with a model's name to run that one alone.
//!
//! The files are the library's own, compiled here a second time: `crate::sync` is loom's in this program ([`sync`]),
//! and what surrounds the files is as small as they allow ([`vm`], [`transport`], [`cuda`], [`ir`], [`tensor`]). Every
//! model is bounded: two or three threads, one or two rounds, and a bound on the preemptions: the least with which all
//! of its planted bugs are found.
//!
//! | model | shows |
//! |---|---|
//! | `ring` | two producers, one consumer, a ring of one entry: what arrives is whole, arrives once, and comes after the bytes it names |
//! | `laps` | the same with three entries in rings of one and two: an entry is written again only after it was read |
//! | `empty` | a ring with room takes an entry; one that says it is not empty gives an entry, one that is empty gives none |
//! | `launch` | two launches of a job with a helper: every instance runs once, and the launcher sees all that the helper wrote |
//! | `stalled` | the host is told that all wait only when all do |
//! | `doorbell` | a sleeper and a signaller with a full fence: no wake-up is lost, and nobody stays counted |
//! | `sleepers` | two sleepers, each with a signal of its own: a late riser takes no sleeper away |
//! | `without_fence` | without the fence a wake-up can be lost: why naps are bounded |
//! | `hand_over`, `hand_over_again` | a waiting thread that sleeps hands its posts to the proxy's thread: it is woken, every time |
//! | `ended` | the proxy's thread hears that it is to end |
//! | `gang` | two ranks that need each other: both start, once, and nobody stays in `flush` |
//! | `flushing` | a rank that flushes before it comes again lets the other start |
//!
//! `models/mutants` lists planted bugs, each with the model that must find it; `.ci/models --mutants` plants them one
//! by one.
//!
//! What loom cannot show: a load that sees a store which comes later in another thread's program (load buffering). That
//! the release and acquire of `taken` in the ring keep a producer's stores behind the consumer's loads is therefore not
//! judged directly. They are needed for the order of two producers' stores to an entry as well, and that is judged. Nor
//! can it show orders of `SeqCst` accesses, of which there are none, and anything between processes.
#![allow(dead_code)] // parts of the files have no use here

mod cuda;
mod ir;
mod sync;
mod tensor;
mod transport;
mod vm;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A name, and a model that panics when it finds a fault.
type Model = (&'static str, fn(&Bounds));

const MODELS: &[Model] = &[
    ("ring", tensor::models::ring),
    ("laps", tensor::models::laps),
    ("empty", tensor::models::empty),
    ("launch", vm::models::launch),
    ("stalled", vm::models::stalled),
    ("doorbell", transport::models::doorbell),
    ("sleepers", transport::models::sleepers),
    ("without_fence", transport::models::without_fence),
    ("hand_over", transport::models::hand_over),
    ("hand_over_again", transport::models::hand_over_again),
    ("ended", transport::models::ended),
    ("gang", cuda::models::gang),
    ("flushing", cuda::models::flushing),
];

/// How far a model is explored, and how many orders that were.
struct Bounds {
    orders: AtomicUsize,
}

impl Bounds {
    /// Runs a model in all orders with at most so many preemptions.
    fn check(&self, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        static ORDERS: AtomicUsize = AtomicUsize::new(0);
        let before = ORDERS.load(Ordering::Relaxed);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(move || {
            ORDERS.fetch_add(1, Ordering::Relaxed);
            model();
        });
        self.orders.fetch_add(ORDERS.load(Ordering::Relaxed) - before, Ordering::Relaxed);
    }
}

/// Not one of the above: it must fail.
const LOST: Model = ("lost_wake_up", transport::models::lost_wake_up);

fn main() {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let known: Vec<Model> = MODELS.iter().copied().chain([LOST]).collect();
    if let Some(name) = named.iter().find(|name| known.iter().all(|(known, _)| known != name)) {
        eprintln!("no model {name}; there are {}", MODELS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "));
        std::process::exit(2);
    }
    let chosen = |name: &str| if named.is_empty() { name != LOST.0 } else { named.iter().any(|n| n == name) };
    for (name, model) in known.into_iter().filter(|(name, _)| chosen(name)) {
        let (start, bounds) = (Instant::now(), Bounds { orders: AtomicUsize::new(0) });
        model(&bounds);
        println!("{name}: ok, {} orders in {:.1?}", bounds.orders.load(Ordering::Relaxed), start.elapsed());
    }
}
