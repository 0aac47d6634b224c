//! Proxies over carriers of libfabric's software providers, in one process: `tcp`, and `shm` in its fast mode, which keeps no
//! order. Everything is tried with confirmations by the provider and by echo.

use super::*;
use crate::ir::ring::WORDS;
use crate::tensor::{COUNT_SHIFT, Posted, PostedNotice, PostedSpan, Queue, Ring, push};
use crate::transport::layout::LINE;
use crate::transport::proxy::{Lines, PostedTo, Proxy, ProxyParts};
use crate::transport::{Deadline, SegmentSet, TransportError};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Instant;
use tilewire_fabric::{Domain, Endpoint, EndpointOptions, Library, Posted as Taken, Provider, Query, Remote};
use tilewire_testkit::random::Random;

// ---- ranks ------------------------------------------------------------------------------------------------------------

/// Lines that a sender moves in every other rank's segment: the first half carries an operation.
const EACH: usize = 8;
/// Bytes before and after a region that nobody may write.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;
const PATIENCE: Duration = Duration::from_secs(30);

fn options(library: &Path, provider: &str) -> FabricOptions {
    let options = FabricOptions::default().library(library).provider(provider).patience(PATIENCE);
    if provider == "shm" { options } else { options.address("127.0.0.1") }
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
    proxy: Proxy,
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
        let rig_place = |rank: usize, sender: usize, target| {
            let segment = segments[rank].segment(rank);
            match target {
                Target::Lines => segment.part(0, lines_end),
                Target::Region(_) => segment.part(lines_end + sender * (region + 2 * GUARD) + GUARD, region),
            }
        };
        for rank in 0..ranks {
            // Everything below is a part of it.
            carriers[rank].register(&segments[rank].segment(rank)).unwrap();
            for sender in (0..ranks).filter(|&sender| sender != rank) {
                for target in [Target::Region(0), Target::Lines] {
                    let place = carriers[rank].register(&rig_place(rank, sender, target)).unwrap();
                    carriers[sender].accept(rank, target, &place).unwrap();
                }
            }
        }
        let node = |(rank, mut carrier): (usize, FabricCarrier)| {
            let (ring, outbox) = (Ring::new(capacity), Memory::zeroed_shared(region));
            carrier.register(&outbox).unwrap();
            let queue = ring.queue(0);
            let to =
                |peer: usize| (peer != rank).then(|| PostedTo { regions: vec![region as u64], lines: lines(rank) });
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
            Node { proxy, queue, outbox }
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
        // SAFETY: inside a segment that `self` keeps alive; tests touch its bytes by atomics.
        unsafe { AtomicU8::from_ptr(segment.start().as_ptr().add(at)) }
    }

    /// Byte `at` of the region that `sender` has at `rank`.
    fn arrived(&self, rank: usize, sender: usize, at: usize) -> u8 {
        self.byte(rank, self.first(sender) + at).load(Ordering::Relaxed)
    }

    fn slot(&self, rank: usize, line: usize) -> u64 {
        let segment = self.segments[rank].segment(rank);
        assert!((line + 1) * LINE <= segment.bytes());
        // SAFETY: as above, and aligned.
        unsafe { AtomicU64::from_ptr(segment.start().as_ptr().add(line * LINE).cast()) }.load(Ordering::Acquire)
    }

    /// Writes a byte of a rank's outbox, as a kernel's put.
    fn put(&self, rank: usize, at: usize, x: u8) {
        assert!(at < self.region);
        // SAFETY: inside the outbox.
        unsafe { AtomicU8::from_ptr(self.nodes[rank].outbox.start().as_ptr().add(at)) }.store(x, Ordering::Relaxed);
    }

    fn push(&self, rank: usize, words: &[u64; WORDS]) -> bool {
        let queue = &self.nodes[rank].queue;
        let [entries, tickets] = [0, 1].map(|k: usize| queue.memories[k].start().as_ptr());
        // SAFETY: the memory of a ring.
        unsafe { push(entries, tickets, queue.capacity().unwrap(), words) }
    }

    /// Posts, while all ranks make progress and `seen` looks at them.
    fn post(&self, rank: usize, post: Posted, seen: impl Fn()) {
        let since = Instant::now();
        while !self.push(rank, &post.words()) {
            self.step();
            seen();
            assert!(since.elapsed() < PATIENCE, "the ring stays full");
        }
    }

    /// Bytes of a rank's outbox for the same place at the peer, as one of `parts` parts.
    fn delivery(&self, rank: usize, peer: usize, (at, bytes): (usize, usize), line: (usize, u64, u8)) -> Posted {
        let source = self.nodes[rank].outbox.start().as_ptr() as u64 + at as u64;
        let span = PostedSpan { source, destination: at as u64, bytes: bytes as u64 };
        let notice = PostedNotice { slot: line.0 as u64, value: line.1, parts: line.2, credit: false };
        Posted { peer: peer as u32, target: 0, span: Some(span), notice: Some(notice) }
    }

    fn signal(&self, peer: usize, line: usize, word: u64) -> Posted {
        let notice = PostedNotice { slot: line as u64, value: word, parts: 1, credit: false };
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
        let busy = || self.nodes.iter().fold(false, |busy, node| node.proxy.settle() || busy);
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
        for confirmation in [Confirmation::Provider, Confirmation::Echo] {
            let options = options(library, provider).confirmation(confirmation);
            ways.push((format!("{provider}, {confirmation:?}"), options.clone()));
            // Cut into messages of three bytes, and copied by us.
            ways.push((format!("{provider}, {confirmation:?}, cut"), options.message_bytes(3).inject_bytes(0)));
        }
    }
    ways
}

// ---- the rules of posts -----------------------------------------------------------------------------------------------

/// Random posts of two ranks to each other: no notice is seen before what it covers.
#[test]
fn the_rules_of_posts_hold_over_every_provider() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for (number, (name, options)) in ways(library).into_iter().enumerate() {
        println!("{name}");
        let region = 2048;
        let rig = Rig::new(2, [1, 4, 64][number % 3], region, &options);
        let mut random = Random::new(number as u64);
        // Every delivery has bytes of its own, so whoever sees its notice can say whether they are there.
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
            let jump = [1, 1, 2, 1023, 5000][random.below(5)];
            let (line, parts) = (random.below(EACH), 1 + random.below(3));
            // Mail has one place per line: the word after a mailed one waits for the first.
            let last = words[from][line];
            if jump > 1023 {
                rig.until("a slot that is to be mailed", || rig.slot(1 - from, from * EACH + line) == last);
            }
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
    const COUNT: u64 = 200;
    for (name, options) in ways(library).into_iter().step_by(2) {
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
                            while !rig.push(rank, &post.words()) {
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
                    rig.nodes[rank].proxy.drain(Deadline::after(PATIENCE)).unwrap();
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

// ---- strangers, and ranks that are gone -----------------------------------------------------------------------------------

/// An endpoint that is no rank's, and where it reaches a carrier. It even knows a key, which no stranger does.
struct Stranger {
    endpoint: Endpoint,
    to: Remote,
}

impl Stranger {
    fn new(library: &Path, provider: &str, card: &[u8]) -> Stranger {
        let card = Card::parse(0, card).unwrap();
        let address = (provider != "shm").then(|| "127.0.0.1".to_string());
        let query = Query { provider: Some(provider.to_string()), address, ordered: false };
        let provider = Provider::list(Library::open_at(library).unwrap(), &query).unwrap().remove(0);
        let domain = Domain::open(Arc::new(provider)).unwrap();
        let mut endpoint = Endpoint::open(&domain, &EndpointOptions::default()).unwrap();
        let peer = endpoint.peers().insert(&card.address).unwrap();
        // Where the carrier's own rank would be: nobody reads it.
        Stranger { endpoint, to: Remote { peer, address: card.hall.base + 8, key: card.hall.key } }
    }
}

#[test]
fn numbers_of_strangers_are_dropped_and_counted() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for provider in ["tcp", "shm"] {
        let options = options(library, provider);
        let mut carriers = carriers(2, &options);
        let mut memories = Vec::new();
        for rank in [0, 1] {
            let memory = Memory::zeroed_shared(4096);
            let place = carriers[rank].register(&memory).unwrap();
            carriers[1 - rank].accept(rank, Target::Region(0), &place).unwrap();
            memories.push(memory);
        }
        let mut stranger = Stranger::new(library, provider, &carriers[0].card.to_bytes());
        let mut random = Random::new(1);
        let own = carriers[0].card.cookies.clone();
        let (mut events, mut got, mut sent) = (Vec::new(), Vec::new(), 0);
        let since = Instant::now();
        while sent < 1000 {
            // Notices that would fit a line, with a cookie that was guessed: near a good one, or none.
            let guess = match sent % 4 {
                0 => 0,
                1 => u64::from(own[1]) ^ 1 << (3 + random.below(29)),
                2 => u64::from(own[1]) | 7,
                _ => random.next() >> 32 << 3,
            };
            let number = guess << 32 | random.below_u64(1 << 20) << 12 | 1;
            let source = tilewire_fabric::Source::Copied(&[0xee; 8]);
            if stranger.endpoint.inject_writedata(stranger.to, source, number).unwrap() == Taken::Taken {
                sent += 1;
            }
            stranger.endpoint.poll(&mut got).unwrap();
            carriers[0].poll(&mut events).unwrap();
            assert!(since.elapsed() < PATIENCE);
        }
        while carriers[0].strangers() < sent {
            carriers[0].poll(&mut events).unwrap();
            stranger.endpoint.poll(&mut got).unwrap();
            assert!(since.elapsed() < PATIENCE, "{} of {sent}", carriers[0].strangers());
        }
        assert_eq!(events, [], "{provider}");
        // And those of the peer still arrive.
        let write = Write {
            id: 9,
            peer: 0,
            source: Source::Inline(&[1, 2, 3]),
            target: Target::Region(0),
            offset: 5,
            notice: Some(77),
        };
        assert!(carriers[1].write(&write).unwrap());
        let mut delivered = Vec::new();
        while delivered.is_empty() || events.is_empty() {
            carriers[0].poll(&mut events).unwrap();
            carriers[1].poll(&mut delivered).unwrap();
            assert!(since.elapsed() < PATIENCE);
        }
        assert_eq!(
            (&events[..], &delivered[..]),
            (&[Event::Arrived { notice: 77 }][..], &[Event::Delivered { id: 9 }][..])
        );
        assert_eq!(crate::tensor::bytes_of(&memories[0]).unwrap()[4..9], [0, 1, 2, 3, 0], "{provider}");
        assert_eq!(carriers[0].strangers(), sent, "{provider}");
    }
}

#[test]
fn a_rank_that_is_gone_is_an_error_with_its_number() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for confirmation in [Confirmation::Provider, Confirmation::Echo] {
        let limit = Duration::from_millis(700);
        let options = options(library, "tcp").confirmation(confirmation).patience(limit);
        let rig = Rig::new(2, 64, 512, &options);
        let Rig { mut nodes, segments, region } = rig;
        nodes.truncate(1);
        let rig = Rig { nodes, segments, region };
        let since = Instant::now();
        let mut count = 0u64;
        // A drain ends with the error as well; the deadline is much later.
        while rig.nodes[0].proxy.error().is_none() {
            count += 1;
            let post = rig.delivery(0, 1, (0, 512), (count as usize % 4, matched(count.div_ceil(4)), 1));
            rig.push(0, &post.words());
            rig.nodes[0].proxy.step();
            assert!(since.elapsed() < PATIENCE, "{confirmation:?}: no error");
        }
        let error = rig.nodes[0].proxy.error().unwrap();
        assert!(matches!(error, ProxyError::Carrier { peer: Some(1), .. }), "{confirmation:?}: {error}");
        assert!(error.to_string().contains("rank 1 failed"), "{error}");
        let drained = rig.nodes[0].proxy.drain(Deadline::never());
        assert!(matches!(drained, Err(TransportError::Proxy(_))));
    }
}

#[test]
fn a_rank_that_never_polls_exhausts_the_patience_of_its_peer() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for provider in ["tcp", "shm"] {
        let options = options(library, provider).patience(Duration::from_millis(500)).under_way(1 << 14);
        let mut carriers = carriers(2, &options);
        let (here, there) = (Memory::zeroed_shared(1 << 20), Memory::zeroed_shared(1 << 20));
        carriers[0].register(&here).unwrap();
        let place = carriers[1].register(&there).unwrap();
        carriers[0].accept(1, Target::Region(0), &place).unwrap();
        let (since, mut id, mut events) = (Instant::now(), 0, Vec::new());
        let error = loop {
            let write = Write {
                id,
                peer: 1,
                source: Source::Memory(&here),
                target: Target::Region(0),
                offset: 0,
                notice: Some(1),
            };
            let took = carriers[0].write(&write).and_then(|took| carriers[0].poll(&mut events).map(|()| took));
            match took {
                Ok(took) => id += u64::from(took),
                Err(error) => break error,
            }
            assert!(since.elapsed() < PATIENCE, "{provider}: {id} writes, and no error");
        };
        assert!(
            matches!(&error, ProxyError::Carrier { peer: Some(1), what } if what.contains("took none of")),
            "{error}"
        );
        assert!(since.elapsed() >= Duration::from_millis(500));
    }
}

// ---- opening and connecting -------------------------------------------------------------------------------------------------

#[test]
fn without_a_name_the_first_provider_that_passes_its_trial_is_taken() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let mut options = FabricOptions::default().library(library).address("127.0.0.1");
    options.provider = None;
    let (carrier, _) = FabricCarrier::open(options, 0, 2).unwrap();
    let choice = carrier.choice();
    // No machine of the tests has another one at the loopback address; shm is never taken.
    assert!(choice.provider.starts_with("tcp") && choice.device == "lo" && !choice.named, "{choice}");
    let over: Vec<&str> = choice.passed_over.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(over, ["verbs", "efa", "cxi"]);
    assert!(choice.passed_over.iter().all(|(_, why)| why.contains("no provider")), "{:?}", choice.passed_over);
    assert!(choice.to_string().ends_with("(after verbs, efa, cxi failed)"), "{choice}");
    assert_eq!((choice.numbers, choice.confirmation), (Numbers::Guarded, Confirmation::Provider));
}

#[test]
fn a_network_that_is_not_there_says_what_was_tried() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let open = |options: FabricOptions| FabricCarrier::open(options, 0, 2).map(|_| ()).unwrap_err();
    let error = open(options(library, "nonesuch"));
    assert!(matches!(&error, NetworkError::NoProvider { tried } if tried[0].0 == "nonesuch"), "{error}");
    let error = open(options(library, "tcp").address("nonesuch0"));
    assert!(error.to_string().contains("no device \"nonesuch0\"; it has") && error.to_string().contains("\"lo\""));
    let error = open(options(library, "tcp").library("/nowhere/libfabric.so.1"));
    assert!(matches!(error, NetworkError::Fabric(_)) && error.to_string().contains("libfabric1"), "{error}");
    // An interface instead of an address.
    let (carrier, _) = FabricCarrier::open(options(library, "tcp").address("lo"), 0, 2).unwrap();
    assert_eq!(carrier.choice().device, "lo");
    assert!(carrier.choice().to_string().ends_with("(as named)"));
}

#[test]
fn ranks_that_cannot_meet_are_named() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let open = |provider: &str, rank| {
        FabricCarrier::open(options(library, provider).hello(Duration::from_millis(300)), rank, 3).unwrap()
    };
    let ((mut tcp, card), (_shm, other)) = (open("tcp", 0), open("shm", 1));
    let error = tcp.connect(&[Some(card.clone()), Some(other), None]).unwrap_err();
    let NetworkError::Differ { own: (0, own), other: (1, other) } = &error else { panic!("{error}") };
    assert!(own.starts_with("tcp") && other.starts_with("shm"), "{error}");

    // Rank 1 is there and never says hello; rank 2 is not to be connected.
    for provider in ["tcp", "shm"] {
        let ((mut carrier, own), (_silent, card)) = (open(provider, 0), open(provider, 1));
        let error = carrier.connect(&[Some(own), Some(card), None]).unwrap_err();
        let NetworkError::Silent { unheard, unconfirmed, waited: 300, .. } = &error else { panic!("{error}") };
        assert_eq!((&unheard[..], &unconfirmed[..]), (&[1][..], &[1][..]), "{error}");
    }

    let damaged = tcp.connect(&[None, Some(card[..20].to_vec())]).unwrap_err();
    assert!(matches!(damaged, NetworkError::Card { rank: 1, .. }), "{damaged}");
}

#[test]
fn what_is_not_registered_or_outside_is_refused() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let mut carriers = carriers(2, &options(library, "shm"));
    let memory = Memory::zeroed_shared(4096);
    let place = carriers[1].register(&memory).unwrap();
    carriers[0].accept(1, Target::Region(3), &place).unwrap();
    let own = Memory::zeroed_shared(4096);
    let write = |peer, source, target, offset| Write { id: 1, peer, source, target, offset, notice: None };
    let mut refused = |write: Write<'_>, words: &str| {
        let error = carriers[0].write(&write).unwrap_err();
        let ProxyError::Carrier { peer: Some(peer), what } = &error else { panic!("{error}") };
        assert!(*peer == write.peer && what.contains(words), "{error}");
    };
    refused(write(1, Source::Memory(&own), Target::Region(3), 0), "not registered");
    refused(write(1, Source::Inline(&[1; 8]), Target::Region(3), 4089), "8 bytes at byte 4089");
    refused(write(1, Source::Inline(&[1; 8]), Target::Region(3), u64::MAX), "which has 4096 bytes");
    refused(write(1, Source::Inline(&[1; 8]), Target::Region(0), 0), "has not told");
    refused(write(1, Source::Inline(&[1; 65]), Target::Region(3), 0), "at most 64");
    refused(write(0, Source::Inline(&[1; 8]), Target::Region(3), 0), "not connected");
    refused(write(7, Source::Inline(&[1; 8]), Target::Region(3), 0), "not connected");
    let unconnected = carriers[0].accept(0, Target::Lines, &place).unwrap_err();
    assert_eq!(unconnected, NetworkError::Unconnected { peer: 0 });
    carriers[0].register(&own).unwrap();
    assert!(carriers[0].write(&write(1, Source::Memory(&own), Target::Region(3), 0)).unwrap());
    let (whole, part) = (carriers[0].register(&own).unwrap(), carriers[0].register(&own.part(100, 50)).unwrap());
    let [whole, part] = [whole, part].map(|place| Place::parse(0, &place).unwrap());
    assert_eq!(part, Place { base: whole.base + 100, bytes: 50, ..whole });
    carriers[0].unregister(&own);
    assert!(carriers[0].write(&write(1, Source::Memory(&own), Target::Region(3), 0)).is_err());
}

#[test]
fn a_rank_sleeps_on_its_descriptor_until_a_write_comes() {
    use std::os::fd::AsRawFd;
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let mut carriers = carriers(2, &options(library, "tcp").descriptor(true));
    let place = carriers[1].register(&Memory::zeroed_shared(64)).unwrap();
    carriers[0].accept(1, Target::Region(0), &place).unwrap();
    let mut sleeper = carriers.pop().unwrap();
    let mut writer = carriers.pop().unwrap();
    std::thread::scope(|scope| {
        let asleep = scope.spawn(move || {
            let (mut slept, mut events, since) = (0, Vec::new(), Instant::now());
            while events.len() < 20 {
                assert!(since.elapsed() < PATIENCE);
                if sleeper.may_sleep() {
                    let fd = sleeper.descriptor().expect("asked for").as_raw_fd();
                    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                    // SAFETY: one valid structure.
                    unsafe { libc::poll(&mut poll, 1, 1000) };
                    slept += 1;
                }
                sleeper.poll(&mut events).unwrap();
            }
            // Closed later: the last write must be confirmed before.
            (slept, sleeper)
        });
        let since = Instant::now();
        for id in 0..20 {
            let write = Write {
                id,
                peer: 1,
                source: Source::Inline(&[7; 8]),
                target: Target::Region(0),
                offset: 0,
                notice: Some(id as u32),
            };
            assert!(writer.write(&write).unwrap());
            let mut events = Vec::new();
            while events.is_empty() {
                writer.poll(&mut events).unwrap();
                assert!(since.elapsed() < PATIENCE);
            }
        }
        assert!(asleep.join().unwrap().0 > 0);
    });
}
