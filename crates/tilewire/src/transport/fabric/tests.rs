//! Proxies over carriers of libfabric's software providers, in one process: `tcp`, and `shm` in its fast mode, which
//! keeps no order. Everything is tried with confirmations by the provider and by echo.

mod counts;
mod limits;
mod on_devices;
mod opening;
mod strangers;
mod windows;

use super::*;
use crate::tensor::{COUNT_SHIFT, NoticeKind, Posted, PostedNotice, PostedSpan, Queue, Ring, push};
use crate::transport::layout::LINE;
use crate::transport::proxy::{Lines, PostedTo, Proxy, ProxyParts};
use crate::transport::{SegmentSet, TransportError};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Instant;
use tilewire_fabric::{Domain, Endpoint, EndpointOptions, Library, Posted as Taken, Provider, Query};
use tilewire_testkit::random::Random;

// ---- ranks ----------------------------------------------------------------------------------------------------------

/// Lines that a sender moves in every other rank's segment: the first half carries an operation.
const EACH: usize = 8;
/// The number of bytes before and after a region that must never be written.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;
const PATIENCE: Duration = Duration::from_secs(30);

fn options(library: &Path, provider: &str) -> FabricOptions {
    let options = FabricOptions::default().library(library).provider(provider).patience(PATIENCE);
    // Ignored by shm.
    options.address("127.0.0.1")
}

/// Connected carriers of ranks of this process.
fn carriers(ranks: usize, options: &FabricOptions) -> Vec<FabricCarrier> {
    let opened: Vec<_> = (0..ranks).map(|rank| FabricCarrier::open(options.clone(), rank, ranks).unwrap()).collect();
    let cards: Vec<Option<Vec<u8>>> = opened.iter().map(|(_, card)| Some(card.clone())).collect();
    let mut carriers: Vec<FabricCarrier> = opened.into_iter().map(|(carrier, _)| carrier).collect();
    std::thread::scope(|scope| {
        let all: Vec<_> = carriers.iter_mut().map(|carrier| scope.spawn(|| carrier.connect(&cards))).collect();
        all.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    });
    carriers
}

/// A rank: its proxy, what its kernels post to, and where their bytes are.
struct Node {
    proxy: Arc<Proxy>,
    queue: Queue,
    outbox: Memory,
}

struct Rig {
    nodes: Vec<Node>,
    segments: Vec<SegmentSet>,
    /// Bytes of a region.
    region: usize,
}

fn lines(sender: usize) -> Vec<Lines> {
    let first = (sender * EACH) as u64;
    let (middle, end) = (first + EACH as u64 / 2, first + EACH as u64);
    vec![Lines { numbers: first..middle, matched: true }, Lines { numbers: middle..end, matched: false }]
}

impl Rig {
    fn new(ranks: usize, capacity: usize, region: usize, options: &FabricOptions) -> Rig {
        let lines_end = ranks * EACH * LINE;
        let segments = SegmentSet::threads(ranks, lines_end + ranks * (region + 2 * GUARD)).unwrap();
        let mut carriers = carriers(ranks, options);
        let rig_place = |rank: usize, sender: usize| {
            segments[rank].segment(rank).part(lines_end + sender * (region + 2 * GUARD) + GUARD, region)
        };
        for rank in 0..ranks {
            // Everything below is a part of it.
            carriers[rank].register(&segments[rank].segment(rank)).unwrap();
            for sender in (0..ranks).filter(|&sender| sender != rank) {
                let place = carriers[rank].register(&rig_place(rank, sender)).unwrap();
                carriers[sender].accept(rank, 0, &place).unwrap();
            }
        }
        let node = |(rank, mut carrier): (usize, FabricCarrier)| {
            let (ring, outbox) = (Ring::new(capacity), Memory::zeroed_shared(region));
            carrier.register(&outbox).unwrap();
            let queue = ring.queue(0);
            let to = |peer: usize| {
                (peer != rank).then(|| PostedTo {
                    regions: vec![Some(region as u64)],
                    lines: lines(rank),
                    flushed: Vec::new(),
                })
            };
            let proxy = Proxy::new(ProxyParts {
                rank,
                ring,
                carrier: Box::new(carrier),
                peers: (0..ranks).map(to).collect(),
                sources: vec![outbox.clone()],
                segment: segments[rank].segment(rank),
                inbound: (0..ranks).filter(|&other| other != rank).flat_map(lines).collect(),
                doorbell: segments[rank].doorbell(rank),
                aborts: segments[rank].aborts(),
            });
            Node { proxy: Arc::new(proxy), queue, outbox }
        };
        let nodes = carriers.into_iter().enumerate().map(node).collect();
        let rig = Rig { nodes, segments, region };
        rig.guards().for_each(|(rank, at)| rig.byte(rank, at).store(GUARD_BYTE, Ordering::Relaxed));
        rig
    }

    fn ranks(&self) -> usize {
        self.nodes.len()
    }

    /// The first byte of the region that `sender` has in every segment.
    fn first(&self, sender: usize) -> usize {
        self.ranks() * EACH * LINE + sender * (self.region + 2 * GUARD) + GUARD
    }

    /// The bytes beside the regions.
    fn guards(&self) -> impl Iterator<Item = (usize, usize)> {
        let beside = |sender: usize| {
            let (first, end) = (self.first(sender), self.first(sender) + self.region);
            (first - GUARD..first).chain(end..end + GUARD)
        };
        (0..self.ranks()).flat_map(move |rank| (0..self.ranks()).flat_map(beside).map(move |at| (rank, at)))
    }

    fn byte(&self, rank: usize, at: usize) -> &AtomicU8 {
        let segment = self.segments[rank].segment(rank);
        assert!(at < segment.bytes());
        // SAFETY: the byte is inside a segment that `self` keeps alive, and tests touch it only by atomics.
        unsafe { AtomicU8::from_ptr(segment.start().as_ptr().add(at)) }
    }

    /// Byte `at` of the region that `sender` has at `rank`.
    fn arrived(&self, rank: usize, sender: usize, at: usize) -> u8 {
        self.byte(rank, self.first(sender) + at).load(Ordering::Relaxed)
    }

    fn slot(&self, rank: usize, line: usize) -> u64 {
        let segment = self.segments[rank].segment(rank);
        assert!((line + 1) * LINE <= segment.bytes());
        // SAFETY: as above, and the word is aligned.
        unsafe { AtomicU64::from_ptr(segment.start().as_ptr().add(line * LINE).cast()) }.load(Ordering::Acquire)
    }

    /// Writes a byte of a rank's outbox, as a kernel's put.
    fn put(&self, rank: usize, at: usize, x: u8) {
        assert!(at < self.region);
        // SAFETY: the byte is inside the outbox.
        unsafe { AtomicU8::from_ptr(self.nodes[rank].outbox.start().as_ptr().add(at)) }.store(x, Ordering::Relaxed);
    }

    fn push(&self, rank: usize, post: &Posted) -> bool {
        let queue = &self.nodes[rank].queue;
        let [entries, tickets] = [0, 1].map(|k: usize| queue.memories[k].start().as_ptr());
        // SAFETY: this is the memory of a ring.
        unsafe { push(entries, tickets, queue.capacity().unwrap(), &post.words()) }
    }

    /// Posts, while all ranks make progress and `seen` looks at them.
    fn post(&self, rank: usize, post: Posted, seen: impl Fn()) {
        let since = Instant::now();
        while !self.push(rank, &post) {
            self.step();
            seen();
            assert!(since.elapsed() < PATIENCE, "the ring stays full");
        }
    }

    /// Bytes of a rank's outbox for the same place at the peer, as one of `parts` parts.
    fn delivery(&self, rank: usize, peer: usize, (at, bytes): (usize, usize), line: (usize, u64, u8)) -> Posted {
        let source = self.nodes[rank].outbox.start().as_ptr() as u64 + at as u64;
        let span = PostedSpan { source, destination: at as u64, bytes: bytes as u64 };
        let notice = PostedNotice { slot: line.0 as u64, value: line.1, parts: line.2, kind: NoticeKind::Data };
        Posted { peer: peer as u32, target: 0, span: Some(span), notice: Some(notice) }
    }

    fn signal(&self, peer: usize, line: usize, word: u64) -> Posted {
        let notice = PostedNotice { slot: line as u64, value: word, parts: 1, kind: NoticeKind::Data };
        Posted { peer: peer as u32, target: 0, span: None, notice: Some(notice) }
    }

    fn step(&self) {
        for node in &self.nodes {
            node.proxy.step();
            assert_eq!(node.proxy.error(), None);
        }
    }

    /// All ranks make progress until `done`.
    #[track_caller]
    fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let since = Instant::now();
        while !done() {
            self.step();
            assert!(since.elapsed() < PATIENCE, "{what}");
        }
    }

    #[track_caller]
    fn settle(&self) {
        // All of them make progress, whatever the first one says.
        let busy = || self.nodes.iter().filter(|node| node.proxy.settle()).count() > 0;
        self.until("posts are not delivered", || !busy());
        let spoilt = self.guards().find(|&(rank, at)| self.byte(rank, at).load(Ordering::Relaxed) != GUARD_BYTE);
        assert_eq!(spoilt, None, "a byte beside a region");
    }
}

/// A word with a count and an operation.
fn matched(count: u64) -> u64 {
    count << COUNT_SHIFT
}

/// Every way that a software provider is used.
fn ways(library: &Path) -> Vec<(String, FabricOptions)> {
    let mut ways = Vec::new();
    for provider in ["tcp", "shm"] {
        // Numbers without cookies, as with verbs and efa.
        ways.push((format!("{provider}, bare"), FabricOptions { is_bare: true, ..options(library, provider) }));
        for confirmation in [Confirmation::Provider, Confirmation::Echo] {
            let options = options(library, provider).confirmation(confirmation);
            ways.push((format!("{provider}, {confirmation:?}"), options.clone()));
            // Cut into messages of three bytes, and copied by us.
            ways.push((format!("{provider}, {confirmation:?}, cut"), options.message_bytes(3).inject_bytes(0)));
        }
    }
    ways
}

// ---- the rules of posts ---------------------------------------------------------------------------------------------

/// Random posts of two ranks to each other: no notice is seen before what it covers.
#[test]
fn the_rules_of_posts_hold_over_every_provider() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for (number, (name, options)) in ways(library).into_iter().enumerate() {
        println!("{name}");
        let region = 1024;
        let rig = Rig::new(2, [1, 4, 64][number % 3], region, &options);
        let mut random = Random::new(number as u64);
        // Every delivery has its own bytes, so a receiver that sees the notice can check them.
        let (mut at, mut words, mut posted) = ([0; 2], [[0u64; EACH]; 2], Vec::new());
        let seen = |posted: &[(usize, usize, u64, usize, usize)]| {
            for &(from, line, word, begin, end) in posted {
                if rig.slot(1 - from, from * EACH + line) >= word {
                    let missing = (begin..end).find(|&at| rig.arrived(1 - from, from, at) != at as u8 | 1);
                    assert_eq!(missing, None, "{name}: line {line} of rank {from} is {word:#x}");
                }
            }
        };
        while at[0] + 45 <= region && at[1] + 45 <= region {
            let from = random.below(2);
            let jump = [1, 1, 2, 1023, 5000, 1 << 40][random.below(6)];
            let (line, parts) = (random.below(EACH), 1 + random.below(3));
            let shift = if line < EACH / 2 { COUNT_SHIFT } else { 0 };
            words[from][line] += jump << shift;
            let word = words[from][line];
            if random.below(4) == 0 {
                rig.post(from, rig.signal(1 - from, from * EACH + line, word), || seen(&posted));
                posted.push((from, line, word, 0, at[from]));
                continue;
            }
            let begin = at[from];
            for _ in 0..parts {
                let bytes = 1 + random.below(15);
                (at[from]..at[from] + bytes).for_each(|at| rig.put(from, at, at as u8 | 1));
                let post = rig.delivery(from, 1 - from, (at[from], bytes), (from * EACH + line, word, parts as u8));
                rig.post(from, post, || seen(&posted));
                at[from] += bytes;
            }
            posted.push((from, line, word, begin, at[from]));
        }
        rig.settle();
        rig.step();
        seen(&posted);
        for from in [0, 1] {
            let slots: [u64; EACH] = std::array::from_fn(|line| rig.slot(1 - from, from * EACH + line));
            assert_eq!(slots, words[from], "{name}");
        }
    }
}

#[test]
fn large_deliveries_arrive_exactly_in_messages_of_any_size() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    const MOST: usize = 4 << 20;
    for provider in ["tcp", "shm"] {
        for (confirmation, most) in [
            (Confirmation::Provider, usize::MAX),
            (Confirmation::Provider, 1 << 20),
            (Confirmation::Echo, usize::MAX),
            (Confirmation::Echo, 100_001),
        ] {
            let options = options(library, provider).confirmation(confirmation).message_bytes(most);
            let rig = Rig::new(2, 64, MOST, &options);
            let mut count = 0;
            for bytes in [4096, 65536, 65537, 1 << 20, MOST] {
                let x = |at: usize| (at ^ at >> 9 ^ bytes >> 12) as u8 | 1;
                (0..bytes).step_by(61).chain([bytes - 1]).for_each(|at| rig.put(0, at, x(at)));
                count += 1;
                // Two parts of one delivery, of different lengths.
                for (at, len) in [(0, bytes / 3), (bytes / 3, bytes - bytes / 3)] {
                    rig.post(0, rig.delivery(0, 1, (at, len), (2, matched(count), 2)), || ());
                }
                rig.until("a large delivery", || rig.slot(1, 2) == matched(count));
                let wrong = (0..bytes).step_by(61).chain([bytes - 1]).find(|&at| rig.arrived(1, 0, at) != x(at));
                assert_eq!(wrong, None, "{provider}, {confirmation:?}, {most}: byte of {bytes}");
                rig.settle();
            }
        }
    }
}

#[test]
fn three_ranks_post_to_each_other_simultaneously() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    const COUNT: u64 = 150;
    for (name, options) in ways(library).into_iter().filter(|(name, _)| !name.ends_with("cut")) {
        let rig = Rig::new(3, 8, 512, &options);
        // Each in a thread of its own, as a rank drives its proxy.
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let rig = &rig;
                scope.spawn(move || {
                    let others: Vec<usize> = (0..3).filter(|&other| other != rank).collect();
                    let since = Instant::now();
                    let drive = || {
                        if !rig.nodes[rank].proxy.step() {
                            std::thread::yield_now();
                        }
                        assert!(since.elapsed() < PATIENCE, "rank {rank}: {:?}", rig.nodes[rank].proxy.error());
                    };
                    for count in 1..=COUNT {
                        for &other in &others {
                            // A slot of the outbox is free when the peer has seen what was in it.
                            rig.put(rank, other * 8, count as u8);
                            let post = rig.delivery(rank, other, (other * 8, 8), (rank * EACH, matched(count), 1));
                            while !rig.push(rank, &post) {
                                drive();
                            }
                        }
                        for &other in &others {
                            while rig.slot(rank, other * EACH) < matched(count) {
                                drive();
                            }
                            assert!(rig.slot(rank, other * EACH) <= matched(count + 1));
                        }
                        // Everybody has read it before anybody writes it again.
                        others.iter().for_each(|&other| {
                            let x = rig.arrived(rank, other, rank * 8);
                            assert!([count as u8, (count + 1) as u8].contains(&x), "count {count}: {x}");
                        });
                    }
                    rig.nodes[rank].proxy.drain(Some(PATIENCE)).unwrap();
                    // Others may still need this rank's progress.
                    while (0..3).any(|r| others.iter().any(|&o| r != o && rig.slot(r, o * EACH) < matched(COUNT))) {
                        drive();
                    }
                    let until = Instant::now() + Duration::from_millis(200);
                    while Instant::now() < until {
                        drive();
                    }
                });
            }
        });
        assert!(rig.nodes.iter().all(|node| node.proxy.error().is_none()), "{name}");
    }
}
