//! The lock-free files of tilewire in all orders that the memory model allows:
//! `cargo run --manifest-path models/Cargo.toml`, with a model's name to run that one alone.
//!
//! The files are the library's own, compiled here a second time: `crate::sync` is loom's in this program ([`sync`]),
//! and the code around the files is as small as possible ([`vm`], [`transport`], [`cuda`], [`ir`], [`tensor`]). Every
//! model is bounded: two or three threads, one or two rounds, and the lowest limit on preemptions with which all of its
//! planted bugs are found.
//!
//! | model | shows |
//! |---|---|
//! | `ring` | two producers, a ring of one entry: each entry is whole, arrives once, and after the bytes it names |
//! | `laps` | the same with three entries in rings of one and two: an entry is written again only after it was read |
//! | `empty` | a ring with room takes an entry; a ring gives an entry exactly if it says that it is not empty |
//! | `launch` | two launches with a helper: every instance runs once, and the launcher sees what the helper wrote |
//! | `stalled` | the host hears that all instances wait only when all do |
//! | `doorbell` | a sleeper and a signaller with a full fence: no wake-up is lost, and no sleeper stays counted |
//! | `sleepers` | two sleepers, each with its signal: one that wakes late does not remove the other from the count |
//! | `without_fence` | without the fence a wake-up can be lost, which is why naps are bounded |
//! | `hand_over`, `hand_over_again` | a thread that falls asleep hands its posts over: the proxy's thread wakes |
//! | `ended` | the proxy's thread learns that it must end |
//! | `two_steppers`, `three_steppers` | waiting threads drive one proxy: each arrival is taken once, and rings |
//! | `gang` | two ranks that need each other: both start, once, and none stays in `flush` |
//! | `flushing` | a rank that flushes before it comes again lets the other start |
//!
//! `models/mutants` lists planted bugs, each with the model that must find it; `.ci/models --mutants` plants them one
//! by one.
//!
//! Loom cannot show a load that sees a store which comes later in another thread's program (load buffering). So no
//! model tests directly that the release and acquire of `taken` keep a producer's stores behind the consumer's loads.
//! These orders also keep two producers' stores to an entry in order, and that is tested. Loom cannot show orders of
//! `SeqCst` accesses either, of which there are none, nor anything between processes.
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
    ("two_steppers", transport::models::two_steppers),
    ("three_steppers", transport::models::three_steppers),
    ("gang", cuda::models::gang),
    ("flushing", cuda::models::flushing),
];

/// Explores models with bounded preemptions, and counts the orders that were explored.
struct Bounds {
    orders: AtomicUsize,
}

impl Bounds {
    /// Runs a model in all orders with at most this many preemptions.
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

/// A model that must fail, so it is not in the list above.
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
