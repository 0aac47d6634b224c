//! Tests of the proxy: over a network that a test moves by hand, and over loop carriers that delay, refuse and fail.

mod arrivals;
mod cards;
mod distrust;
mod failures;
mod flushes;
mod lateness;
mod leaving;
mod loops;
mod regions;
mod threads;

use super::*;
use crate::sync::{Arc, Mutex, MutexGuard};
use crate::tensor::{COUNT_SHIFT, Queue, WORDS, push};
use crate::transport::layout::LINE;
use crate::transport::{SegmentSet, TransportError};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

// ---- ranks ----------------------------------------------------------------------------------------------------------

const RANKS: usize = 3;
/// Lines that a sender moves in every other rank's segment: the first half carries an operation.
const EACH: usize = 8;
const REGION: usize = 512;
/// The number of bytes before and after a region that must never be written.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;
const PLACE: usize = REGION + 2 * GUARD;
const LINES_END: usize = RANKS * EACH * LINE;
const SEGMENT: usize = LINES_END + RANKS * PLACE;

/// A rank: its proxy, what its kernels post to, and where their bytes are.
struct Node {
    proxy: Proxy,
    queue: Queue,
    outbox: Memory,
}

struct Rig {
    nodes: Vec<Node>,
    segments: Vec<SegmentSet>,
}

fn lines(sender: usize) -> Vec<Lines> {
    let first = (sender * EACH) as u64;
    let (middle, end) = (first + EACH as u64 / 2, first + EACH as u64);
    vec![Lines { numbers: first..middle, matched: true }, Lines { numbers: middle..end, matched: false }]
}

/// The lines that flushes of a rank's posts to a peer move in the rank's own segment, where no other rank moves them:
/// the even ones for the next rank, and the odd ones for the one before.
fn own_lines(rank: usize, peer: usize) -> Vec<Lines> {
    let first = (rank * EACH + (peer + RANKS - rank) % RANKS - 1) as u64;
    let line = |number| Lines { numbers: number..number + 1, matched: false };
    (first..first + EACH as u64 - 1).step_by(2).map(line).collect()
}

impl Rig {
    /// Ranks whose posts go through the carriers that `carrier` makes, given the ends of all ranks.
    fn new(capacity: usize, mut carrier: impl FnMut(usize, &[Arc<LoopEnd>]) -> Box<dyn Carrier>) -> Rig {
        let segments = SegmentSet::threads(RANKS, SEGMENT).unwrap();
        let others = |rank: usize| (0..RANKS).filter(move |&other| other != rank);
        let end = |rank: usize| {
            let segment = segments[rank].segment(rank);
            let of = |s: usize| ((s, 0), place(&segment, s));
            Arc::new(LoopEnd::new(others(rank).map(of).collect(), segments[rank].doorbell(rank)))
        };
        let ends: Vec<Arc<LoopEnd>> = (0..RANKS).map(end).collect();
        let node = |rank: usize| {
            let (ring, outbox) = (Ring::new(capacity), Memory::zeroed_shared(REGION));
            let queue = ring.queue(0);
            let to = |peer: usize| {
                let regions = vec![Some(REGION as u64)];
                (peer != rank).then(|| PostedTo { regions, lines: lines(rank), flushed: own_lines(rank, peer) })
            };
            let proxy = Proxy::new(ProxyParts {
                rank,
                ring,
                carrier: carrier(rank, &ends),
                peers: (0..RANKS).map(to).collect(),
                sources: vec![outbox.clone()],
                segment: segments[rank].segment(rank),
                inbound: others(rank).flat_map(lines).collect(),
                doorbell: segments[rank].doorbell(rank),
                aborts: segments[rank].aborts(),
            });
            Node { proxy, queue, outbox }
        };
        let rig = Rig { nodes: (0..RANKS).map(node).collect(), segments };
        (0..RANKS).for_each(|rank| guards().for_each(|at| rig.byte(rank, at).store(GUARD_BYTE, Ordering::Relaxed)));
        rig
    }

    /// Over a network that the test moves by hand.
    fn by_hand(net: &Net) -> Rig {
        let rig = Rig::new(64, |rank, _| Box::new(NetCarrier { rank, net: net.clone() }));
        net.lock().segments = (0..RANKS).map(|rank| rig.segments[rank].segment(rank)).collect();
        rig
    }

    fn byte(&self, rank: usize, at: usize) -> &AtomicU8 {
        assert!(at < SEGMENT);
        // SAFETY: the byte is inside a segment that `self` keeps alive, and tests touch it only by atomics.
        unsafe { AtomicU8::from_ptr(self.segments[rank].segment(rank).start().as_ptr().add(at)) }
    }

    /// Byte `at` of the region that `sender` has at `rank`.
    fn arrived(&self, rank: usize, sender: usize, at: usize) -> u8 {
        self.byte(rank, LINES_END + sender * PLACE + GUARD + at).load(Ordering::Relaxed)
    }

    fn slot(&self, rank: usize, line: usize) -> u64 {
        assert!((line + 1) * LINE <= LINES_END);
        // SAFETY: as above, and the word is aligned.
        let word =
            unsafe { AtomicU64::from_ptr(self.segments[rank].segment(rank).start().as_ptr().add(line * LINE).cast()) };
        word.load(Ordering::Acquire)
    }

    /// Writes a byte of a rank's outbox, as a kernel's put.
    fn put(&self, rank: usize, at: usize, x: u8) {
        assert!(at < REGION);
        // SAFETY: the byte is inside the outbox.
        unsafe { AtomicU8::from_ptr(self.nodes[rank].outbox.start().as_ptr().add(at)) }.store(x, Ordering::Relaxed);
    }

    fn push(&self, rank: usize, words: &[u64; WORDS]) -> bool {
        let queue = &self.nodes[rank].queue;
        let [entries, tickets] = [0, 1].map(|k: usize| queue.memories[k].start().as_ptr());
        // SAFETY: this is the memory of a ring.
        unsafe { push(entries, tickets, queue.capacity().unwrap(), words) }
    }

    /// Posts `bytes` bytes of a rank's outbox to the same place at the peer, as one of `parts` parts.
    fn deliver(&self, rank: usize, peer: usize, (at, bytes): (usize, usize), (line, word, parts): (usize, u64, u8)) {
        let source = self.nodes[rank].outbox.start().as_ptr() as u64 + at as u64;
        let span = PostedSpan { source, destination: at as u64, bytes: bytes as u64 };
        let notice = PostedNotice { slot: line as u64, value: word, parts, kind: NoticeKind::Data };
        self.post(rank, Posted { peer: peer as u32, target: 0, span: Some(span), notice: Some(notice) });
    }

    fn signal(&self, rank: usize, peer: usize, (line, word): (usize, u64), kind: NoticeKind) {
        let notice = PostedNotice { slot: line as u64, value: word, parts: 1, kind };
        self.post(rank, Posted { peer: peer as u32, target: 0, span: None, notice: Some(notice) });
    }

    fn post(&self, rank: usize, post: Posted) {
        assert!(self.push(rank, &post.words()), "the ring is full");
    }

    fn step(&self, rank: usize) -> bool {
        let progress = self.nodes[rank].proxy.step();
        assert_eq!(self.nodes[rank].proxy.error(), None);
        progress
    }

    /// All ranks have been told that `rank` failed.
    fn assert_all_told(&self, rank: usize) {
        self.assert_all_told_of(Cause { code: AbortCode::Failed, rank, reason: 0 });
    }

    fn assert_all_told_of(&self, cause: Cause) {
        assert!(self.segments[0].aborts().iter().all(|abort| abort.get() == Some(cause)));
    }

    fn assert_guards(&self) {
        for rank in 0..RANKS {
            let spoilt = guards().find(|&at| self.byte(rank, at).load(Ordering::Relaxed) != GUARD_BYTE);
            assert_eq!(spoilt, None, "a byte beside a region of rank {rank}");
        }
    }
}

/// The part of a segment that a sender may write.
fn place(segment: &Memory, sender: usize) -> Memory {
    segment.part(LINES_END + sender * PLACE + GUARD, REGION)
}

/// The bytes of a segment that must never be written.
fn guards() -> impl Iterator<Item = usize> {
    let of = |sender: usize| LINES_END + sender * PLACE;
    (0..RANKS).flat_map(move |s| (of(s)..of(s) + GUARD).chain(of(s) + GUARD + REGION..of(s) + PLACE))
}

/// A word with a count and an operation.
fn matched(count: u64) -> u64 {
    count << COUNT_SHIFT
}

// ---- a network that is moved by hand --------------------------------------------------------------------------------

/// The writes that the carriers have taken and not delivered, in the order of taking.
#[derive(Clone, Default)]
struct Net(Arc<Mutex<Wires>>);

#[derive(Default)]
struct Wires {
    segments: Vec<Memory>,
    taken: Vec<Taken>,
    events: [Vec<Event>; RANKS],
    /// Writes it still takes before it is full; `None`: it is never full.
    room: Option<usize>,
    /// The fault that the next call shows instead of its work.
    fails: Option<fn() -> ProxyError>,
    /// The number of writes to each rank that were delivered and not confirmed.
    unconfirmed: [usize; RANKS],
    /// The flushes of arrivals: the rank, and its slots at that time.
    flushes: Vec<(usize, Vec<u64>)>,
    /// True if they fail.
    no_flush: bool,
}

struct Taken {
    from: usize,
    id: u64,
    peer: usize,
    bytes: Vec<u8>,
    to: Memory,
    notice: Option<u32>,
}

impl Net {
    fn lock(&self) -> MutexGuard<'_, Wires> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The number of writes that are taken and not delivered.
    fn len(&self) -> usize {
        self.lock().taken.len()
    }

    /// The control lines of the writes that were taken and not delivered.
    fn lines(&self) -> Vec<usize> {
        self.lock()
            .taken
            .iter()
            .map(|taken| taken.notice.map_or(usize::MAX, |notice| (notice >> 12) as usize))
            .collect()
    }

    /// Delivers the n-th write that was taken and not delivered.
    fn deliver(&self, n: usize) {
        let mut wires = self.lock();
        let Taken { from, id, peer, bytes, to, notice, .. } = wires.taken.remove(n);
        assert_eq!(bytes.len(), to.bytes());
        // SAFETY: equally long, in memory that the handle keeps alive; the receiver does not look before the notice.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.start().as_ptr(), bytes.len()) };
        wires.events[peer].extend(notice.map(|notice| Event::Arrived { notice }));
        wires.events[from].push(Event::Delivered { id });
    }
}

struct NetCarrier {
    rank: usize,
    net: Net,
}

impl Carrier for NetCarrier {
    fn open(&mut self, _: u16, _: &Memory, _: &[usize]) -> Result<(), ProxyError> {
        Ok(())
    }

    fn close(&mut self, _: u16) {}

    fn place(&self, _: u16) -> Vec<u8> {
        Vec::new()
    }

    fn reach(&mut self, _: usize, _: u16, _: &[u8]) -> Result<(), ProxyError> {
        Ok(())
    }

    fn reads(&self, memory: &Memory) -> bool {
        memory.reachable_from().host
    }

    fn lend(&mut self, _: &Memory) -> Result<(), ProxyError> {
        Ok(())
    }

    fn give_back(&mut self, _: &Memory) {}

    fn write(&mut self, write: &Write<'_>) -> Result<bool, ProxyError> {
        let mut wires = self.net.lock();
        if let Some(fails) = wires.fails {
            drop(wires);
            return Err(fails());
        }
        match &mut wires.room {
            Some(0) => return Ok(false),
            Some(room) => *room -= 1,
            None => {}
        }
        let to = place(&wires.segments[write.peer], self.rank).part(write.offset as usize, write.source.bytes());
        let bytes = match write.source {
            Source::Memory(memory) => crate::tensor::bytes_of(memory).unwrap(),
            Source::Inline(bytes) => bytes.to_vec(),
        };
        let &Write { id, peer, notice, .. } = write;
        assert_eq!(write.target, 0, "these ranks have no windows");
        wires.taken.push(Taken { from: self.rank, id, peer, bytes, to, notice });
        Ok(true)
    }

    fn unconfirmed(&mut self, peer: usize) -> Result<usize, ProxyError> {
        let wires = self.net.lock();
        wires.fails.map_or(Ok(wires.unconfirmed[peer]), |fails| Err(fails()))
    }

    fn flush_arrivals(&mut self) -> Result<(), ProxyError> {
        let mut wires = self.net.lock();
        let slots = crate::tensor::bytes_of(&wires.segments[self.rank]).unwrap();
        let slots = slots[..LINES_END].chunks(LINE).map(|line| u64::from_ne_bytes(line[..8].try_into().unwrap()));
        let flush = (self.rank, slots.collect());
        wires.flushes.push(flush);
        let what = || "the card does not flush".to_string();
        if wires.no_flush { Err(ProxyError::Carrier { peer: None, what: what() }) } else { Ok(()) }
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), ProxyError> {
        events.append(&mut self.net.lock().events[self.rank]);
        Ok(())
    }
}

/// All orders of `n` things, as the positions to take them from what is left.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let rest = orders(n - 1);
    (0..n).flat_map(|first| rest.iter().map(move |rest| [&[first], &rest[..]].concat())).collect()
}

// ---- order ----------------------------------------------------------------------------------------------------------

#[test]
fn a_slot_moves_when_all_parts_have_arrived_in_whatever_order() {
    // The word of another operation does not fit into one notice, so there are digits as well.
    for (parts, word) in [1, 2, 3].into_iter().flat_map(|parts| [(parts, matched(1)), (parts, matched(2) | 5)]) {
        let writes = usize::from(parts) + if word == matched(1) { 0 } else { 2 };
        for order in orders(writes) {
            let net = Net::default();
            let rig = Rig::by_hand(&net);
            for part in 0..usize::from(parts) {
                rig.put(0, part, 7 + part as u8);
                rig.deliver(0, 1, (part, 1), (2, word, parts));
            }
            rig.step(0);
            assert_eq!(net.len(), writes);
            for (k, &n) in order.iter().enumerate() {
                assert_eq!(rig.slot(1, 2), 0, "after {k} of {writes} writes, in order {order:?}");
                net.deliver(n);
                rig.step(1);
            }
            assert_eq!(rig.slot(1, 2), word, "{parts} parts, in order {order:?}");
            assert!((0..usize::from(parts)).all(|part| rig.arrived(1, 0, part) == 7 + part as u8));
            rig.nodes[0].proxy.drain(None).unwrap();
        }
    }
}

#[test]
fn notices_on_one_line_go_one_after_the_other_and_those_on_other_lines_overtake_them() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    for count in 1..=3 {
        rig.deliver(0, 1, (0, 8), (1, matched(count), 2));
        rig.deliver(0, 1, (8, 8), (1, matched(count), 2));
    }
    rig.deliver(0, 1, (16, 8), (3, matched(1), 1));
    rig.deliver(0, 2, (16, 8), (1, matched(1), 1));
    rig.step(0);
    assert_eq!(net.lines(), [1, 1, 3, 1], "both parts of the first, another line, and another peer");
    for count in 1..=3 {
        net.deliver(1);
        rig.step(0);
        assert!(net.lines().iter().filter(|&&line| line == 1).count() <= 2, "one part is still on its way");
        assert_eq!(rig.slot(1, 1), matched(count - 1));
        net.deliver(0);
        rig.step(0);
        rig.step(1);
        assert_eq!(rig.slot(1, 1), matched(count));
        // The next two parts come behind those that were there.
        let mut wires = net.lock();
        wires.taken.sort_by_key(|taken| (taken.peer != 1, taken.notice.map(|notice| notice >> 12)));
    }
}

#[test]
fn a_signal_waits_for_all_earlier_posts_and_lets_later_ones_overtake_it() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    // The post is held because of its line.
    rig.deliver(0, 1, (8, 8), (0, matched(2), 1));
    rig.signal(0, 1, (4, 1), NoticeKind::Data);
    rig.deliver(0, 1, (16, 8), (1, matched(1), 1));
    rig.signal(0, 1, (5, 1), NoticeKind::Credit);
    rig.signal(0, 2, (4, 1), NoticeKind::Data);
    rig.step(0);
    assert_eq!(net.lines(), [0, 1, 5, 4], "a later delivery, a credit, and a signal to another peer");
    (0..3).for_each(|_| net.deliver(1));
    rig.step(0);
    assert_eq!(net.lines(), [0], "the first delivery is still on its way");
    net.deliver(0);
    rig.step(0);
    assert_eq!(net.lines(), [0], "the second delivery was held when the signal was posted, and is now on its way");
    net.deliver(0);
    rig.step(0);
    assert_eq!(net.lines(), [4]);
    net.deliver(0);
    rig.step(1);
    rig.step(2);
    assert_eq!([0, 1, 4, 5].map(|line| rig.slot(1, line)), [matched(2), matched(1), 1, 1]);
    rig.nodes[0].proxy.drain(None).unwrap();
}

#[test]
fn a_signal_waits_for_a_post_that_a_full_carrier_refused_before_it() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    net.lock().room = Some(0);
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    rig.signal(0, 1, (4, 1), NoticeKind::Data);
    rig.step(0);
    net.lock().room = None;
    rig.step(0);
    assert_eq!(net.lines(), [0]);
    net.deliver(0);
    rig.step(0);
    assert_eq!(net.lines(), [4]);
}

#[test]
fn posts_of_every_kind_survive_a_full_carrier() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    net.lock().room = Some(0);
    rig.signal(0, 1, (4, 1), NoticeKind::Data);
    rig.signal(0, 1, (5, 5000), NoticeKind::Credit);
    rig.deliver(0, 1, (0, 8), (0, matched(1) | 9, 2));
    rig.deliver(0, 1, (8, 8), (0, matched(1) | 9, 2));
    // One more write each time: the signal, two digits and both parts, two digits and the credit that they belong to.
    // Bytes go before credits.
    for writes in 0..=8 {
        assert_eq!(net.len(), writes);
        rig.step(0);
        rig.step(0);
        assert_eq!(net.len(), writes);
        net.lock().room = Some(1);
        rig.step(0);
    }
    assert_eq!(net.lines(), [4, 0, 0, 0, 0, 5, 5, 5]);
    (0..8).for_each(|_| net.deliver(0));
    rig.step(1);
    assert_eq!([0, 4, 5].map(|line| rig.slot(1, line)), [matched(1) | 9, 1, 5000]);
    rig.nodes[0].proxy.drain(None).unwrap();
}

#[test]
fn large_jumps_and_other_operations_travel_as_digits() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    for (word, digits) in [
        (matched(511), 0),
        (matched(511 + 512), 8),
        (matched(511 + 512 + 511), 0),
        (matched(1600) | 9, 8),
        (matched(1601) | 9, 0),
        (matched(1602), 2),
        (matched(1 << 47) | 0xffff, 8),
    ] {
        rig.deliver(0, 1, (0, 8), (0, word, 1));
        rig.step(0);
        assert_eq!(net.len(), 1 + digits, "{word:#x}");
        (0..net.len()).for_each(|_| net.deliver(0));
        rig.step(1);
        rig.step(0);
        assert_eq!(rig.slot(1, 0), word);
    }
}

/// A sender does not learn when the receiver has looked. It may be many words ahead of a rank that does something else.
#[test]
fn words_that_nobody_has_looked_at_are_not_overwritten() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    let words = [5000, 10_000, 10_001, 1 << 40, (1 << 40) + 2000, u64::MAX >> 1];
    for word in words {
        rig.put(0, 0, word as u8 | 1);
        rig.deliver(0, 1, (0, 8), (4, word, 1));
        rig.signal(0, 1, (5, word), NoticeKind::Credit);
        rig.step(0);
        (0..net.len()).for_each(|_| net.deliver(0));
        rig.step(0);
    }
    rig.nodes[0].proxy.drain(None).unwrap();
    assert_eq!([4, 5].map(|line| rig.slot(1, line)), [0, 0], "rank 1 has not looked");
    rig.step(1);
    assert_eq!([4, 5].map(|line| rig.slot(1, line)), [words[5]; 2]);
    assert_eq!(rig.arrived(1, 0, 0), words[5] as u8 | 1);
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Random posts over carriers that delay, reorder and refuse: no notice is seen before what it covers.
#[test]
fn the_rules_of_posts_hold_in_any_order_of_a_carrier() {
    for seed in 0..40 {
        let carrier = |rank, ends: &[Arc<LoopEnd>]| -> Box<dyn Carrier> {
            Box::new(LoopCarrier::new(rank, ends.to_vec(), Some(seed)))
        };
        let rig = Rig::new([1, 4, 64][seed as usize % 3], carrier);
        let mut random = Random(seed);
        // Every delivery has its own bytes, so a receiver that sees the notice can check them.
        let (mut at, mut words, mut posted) = (0, [0u64; EACH], Vec::new());
        let seen = |posted: &[(usize, u64, usize, usize)]| {
            for &(line, word, from, to) in posted {
                if rig.slot(1, line) >= word {
                    let missing = (from..to).find(|&at| rig.arrived(1, 0, at) != at as u8 | 1);
                    assert_eq!(
                        missing, None,
                        "seed {seed}: line {line} is {word:#x}, and bytes {from} to {to} are not there"
                    );
                }
            }
        };
        while at + 12 <= REGION {
            let jump = random.pick(&[1, 1, 2, 511, 2000, 1 << 40]);
            let (line, parts) = (random.below(EACH as u64) as usize, 1 + random.below(3) as usize);
            let shift = if line < EACH / 2 { COUNT_SHIFT } else { 0 };
            words[line] += jump << shift;
            if shift > 0 && random.below(4) == 0 {
                // The word of another operation.
                words[line] = words[line] >> shift << shift | random.below(1 << shift);
            }
            let push = |post: &dyn Fn()| {
                while !rig.nodes[0].queue_has_room() {
                    rig.step(0);
                    rig.step(1);
                    seen(&posted);
                }
                post();
            };
            if random.below(4) == 0 {
                push(&|| rig.signal(0, 1, (line, words[line]), NoticeKind::Data));
                posted.push((line, words[line], 0, at));
                continue;
            }
            let from = at;
            for _ in 0..parts {
                (at..at + 4).for_each(|at| rig.put(0, at, at as u8 | 1));
                push(&|| rig.deliver(0, 1, (at, 4), (line, words[line], parts as u8)));
                at += 4;
            }
            posted.push((line, words[line], from, at));
        }
        while rig.nodes[0].proxy.settle() {
            rig.step(1);
            seen(&posted);
        }
        rig.step(1);
        seen(&posted);
        assert_eq!(std::array::from_fn(|line| rig.slot(1, line)), words, "seed {seed}");
        rig.assert_guards();
    }
}

impl Node {
    fn queue_has_room(&self) -> bool {
        // A ring of any capacity has room when it is empty.
        self.proxy.enter().unwrap().ring.is_empty()
    }
}

#[test]
fn several_threads_of_a_rank_may_drive_its_proxy() {
    const COUNT: u64 = 3000;
    let rig = Rig::new(4, |rank, ends| Box::new(LoopCarrier::new(rank, ends.to_vec(), Some(5))));
    let is_done = || rig.slot(1, 4) == COUNT && rig.slot(0, EACH + 4) == COUNT;
    std::thread::scope(|scope| {
        for rank in [0, 1] {
            let rig = &rig;
            scope.spawn(move || {
                for count in 1..=COUNT {
                    let notice =
                        PostedNotice { slot: (rank * EACH + 4) as u64, value: count, parts: 1, kind: NoticeKind::Data };
                    let post = Posted { peer: 1 - rank as u32, target: 0, span: None, notice: Some(notice) };
                    while !rig.push(rank, &post.words()) {
                        rig.nodes[rank].proxy.step();
                    }
                }
                rig.nodes[rank].proxy.drain(Some(Duration::from_secs(60))).unwrap();
            });
            for _ in 0..2 {
                scope.spawn(move || {
                    // Drives, looks and sleeps, as a wait does.
                    while !is_done() {
                        let ready = || {
                            rig.nodes[rank].proxy.step();
                            is_done()
                        };
                        rig.segments[rank].doorbell(rank).sleep(ready, Duration::from_millis(20));
                    }
                });
            }
        }
    });
    assert!(is_done() && rig.nodes.iter().all(|node| node.proxy.error().is_none()));
}
