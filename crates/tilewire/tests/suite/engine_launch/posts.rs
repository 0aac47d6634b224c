//! Posts of the CPU engine: the contents of an entry, the refused spans, and a full ring.

use crate::engine_launch::{SOON, impatient, prepared};
use std::sync::atomic::{AtomicBool, Ordering};
use tilewire::hook::Traced;
use tilewire::ir::ring::{Posted, PostedNotice, PostedSpan};
use tilewire::ir::{NoticeKind, matching};
use tilewire::tensor::{Between, Part, Purpose, Ring};
use tilewire::vm::{LaunchError, Prepared};
use tilewire::{Memory, Scalar, kernel};

/// All entries in the ring.
fn taken(ring: &Ring) -> Vec<Posted> {
    std::iter::from_fn(|| ring.pop()).map(|entry| entry.expect("an entry that producers write")).collect()
}

fn address(memory: &Memory) -> u64 {
    memory.start().as_ptr() as u64
}

fn notice(slot: u64, value: u64, parts: u8, kind: NoticeKind) -> Option<PostedNotice> {
    Some(PostedNotice { slot, value, parts, kind })
}

#[test]
fn every_field_of_a_post_is_in_its_entry() {
    let (ring, banks) = (Ring::new(8), [Memory::zeroed(256), Memory::zeroed(256)]);
    let peer = Scalar::new(7i64);
    let traced = kernel("all", |k| {
        let (queue, source) = (k.queue("wire", ring.queue(0xabcd)), k.region("source", &banks));
        k.main(|r| {
            let (peer, bank) = (r.scalar(&peer), r.scalar(&peer) - 6);
            r.post(queue, peer, source.bank(0).part(16, 16), 1i64 << 40, 13);
            let (first, second) = (source.bank(bank), source.bank(1).part(200, 8));
            let [zero, eight, far] = [0, 8, 4096i64].map(|x| r.constant(x));
            r.deliver(queue, peer + 1, &[(first, zero, r.constant(256)), (second, far, eight)], 21, 1i64 << 50);
            r.deliver(queue, peer, &[(second, zero, eight)], 22, 3);
            r.post_signal(queue, peer, 23, 4);
            r.post_credit(queue, peer, 24, 5);
            r.post_flush(queue, peer, 25, 6);
        });
    });
    prepared(&traced.expect("traces")).run().expect("runs");
    let [first, second] = [0, 1].map(|k: usize| address(&banks[k]));
    let span = |source, destination, bytes| Some(PostedSpan { source, destination, bytes });
    let entry = |peer, span, notice| Posted { peer, target: 0xabcd, span, notice };
    assert_eq!(
        taken(&ring),
        [
            entry(7, span(first + 16, 1 << 40, 13), None),
            entry(8, span(second, 0, 256), notice(21, 1 << 50, 2, NoticeKind::Data)),
            entry(8, span(second + 200, 4096, 8), notice(21, 1 << 50, 2, NoticeKind::Data)),
            entry(7, span(second + 200, 0, 8), notice(22, 3, 1, NoticeKind::Data)),
            entry(7, None, notice(23, 4, 1, NoticeKind::Data)),
            entry(7, None, notice(24, 5, 1, NoticeKind::Credit)),
            entry(7, None, notice(25, 6, 1, NoticeKind::Flush)),
        ]
    );
}

/// Also a number with more bits than the field for it.
#[test]
fn a_peer_that_does_not_exist_reaches_the_proxy_as_such() {
    let (ring, peer) = (Ring::new(1), Scalar::new(0i64));
    let traced = kernel("nobody", |k| {
        let queue = k.queue("wire", ring.queue(9));
        k.main(|r| r.post_signal(queue, r.scalar(&peer), 3, 4));
    });
    let mut op = prepared(&traced.expect("traces"));
    for (number, is) in
        NOBODY.into_iter().map(|number| (number, u32::MAX)).chain([(1, 1), (i64::from(u32::MAX) - 1, u32::MAX - 1)])
    {
        peer.set(number);
        op.run().expect("runs");
        let posted = Posted { peer: is, target: 9, span: None, notice: notice(3, 4, 1, NoticeKind::Data) };
        assert_eq!(taken(&ring), [posted], "peer {number}");
    }
}

const NOBODY: [i64; 6] = [1 << 32, (1 << 32) + 1, i64::MAX, i64::MIN, i64::MIN + 1, -1];

/// Posts `count` bytes from byte `start` of 100.
fn span_of((start, count): (i64, i64), ring: &Ring) -> (Result<(), LaunchError>, u64) {
    let (source, start, count) = (Memory::zeroed(100), Scalar::new(start), Scalar::new(count));
    let traced = kernel("span", |k| {
        let (queue, source) = (k.queue("wire", ring.queue(1)), k.region("source", std::slice::from_ref(&source)));
        k.main(|r| r.post(queue, 1, source.bank(0).part(r.scalar(&start), 1), 0, r.scalar(&count)));
    });
    (prepared(&traced.expect("traces")).run(), address(&source))
}

#[test]
fn a_span_inside_its_source_is_posted() {
    for (start, count) in [(0, 1), (0, 100), (99, 1), (40, 60)] {
        let ring = Ring::new(1);
        let (result, source) = span_of((start, count), &ring);
        result.expect("runs");
        let span = Some(PostedSpan { source: source + start as u64, destination: 0, bytes: count as u64 });
        assert_eq!(taken(&ring), [Posted { peer: 1, target: 1, span, notice: None }]);
    }
}

#[test]
fn a_span_that_leaves_its_source_is_an_error_and_no_entry() {
    let max = i64::MAX;
    for span in [(0, 101), (100, 1), (99, 2), (-1, 1), (-1, 200), (max, 1), (max, max), (5, max), (i64::MIN, max)] {
        let ring = Ring::new(1);
        match span_of(span, &ring).0 {
            Err(LaunchError::OutOfBounds { name, len, by, .. }) => {
                assert_eq!((name.as_str(), len, by.role.as_str()), ("source", 100, "main"), "{span:?}");
            }
            other => panic!("{span:?}: {other:?}"),
        }
        assert!(ring.is_empty(), "{span:?}");
    }
}

#[test]
fn a_negative_number_of_bytes_is_an_error_and_no_entry() {
    for count in [-1, i64::MIN] {
        let ring = Ring::new(1);
        match span_of((0, count), &ring).0 {
            Err(LaunchError::NegativeCount { count: is, .. }) => assert_eq!(is, count),
            other => panic!("{other:?}"),
        }
        assert!(ring.is_empty());
    }
}

/// Nothing is read, so it may begin anywhere. A sender with nothing left to send is at the end of its source.
#[test]
fn no_bytes_are_posted_from_anywhere() {
    for start in [0, 100, -1, i64::MAX] {
        let ring = Ring::new(1);
        span_of((start, 0), &ring).0.expect("runs");
        let entries = taken(&ring);
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].span.map(|span| (span.destination, span.bytes)), Some((0, 0)));
    }
}

/// Each of this many blocks signals with the values 0 to 9.
fn ten_signals(blocks: u32, ring: &Ring) -> Traced {
    let traced = kernel("ten", |k| {
        k.blocks(blocks);
        let queue = k.queue("wire", ring.queue(2));
        k.main(|r| r.for_(0..10, |turn| r.post_signal(queue, r.block(), 3, turn)));
    });
    traced.expect("traces")
}

#[test]
fn a_full_ring_ends_the_launch_at_its_deadline_and_takes_posts_when_it_is_emptied() {
    let ring = Ring::new(4);
    let traced = ten_signals(1, &ring);
    let mut op = Prepared::with(&traced.kernel, &traced.args, impatient()).expect("prepares");
    for _ in 0..2 {
        match op.run() {
            Err(LaunchError::Timeout { what, after, by, index, .. }) => {
                assert_eq!((what.as_str(), after, index), ("room in the queue of the network proxy", SOON, None));
                assert_eq!((by.block, by.role.as_str()), (0, "main"));
            }
            other => panic!("{other:?}"),
        }
        // No post was lost, and posts that found no room left no gap.
        let values: Vec<_> = taken(&ring).iter().map(|entry| entry.notice.map(|notice| notice.value)).collect();
        assert_eq!(values, [0, 1, 2, 3].map(Some));
    }
}

#[test]
fn posts_to_a_full_ring_go_on_when_it_is_emptied() {
    for (blocks, capacity) in [(1, 1), (1, 4), (3, 1), (3, 4)] {
        let ring = Ring::new(capacity);
        let mut op = prepared(&ten_signals(blocks, &ring));
        let done = AtomicBool::new(false);
        let entries = std::thread::scope(|threads| {
            let proxy = threads.spawn(|| {
                let mut entries = Vec::new();
                while !done.load(Ordering::Acquire) || !ring.is_empty() {
                    entries.extend(taken(&ring));
                    std::thread::yield_now();
                }
                entries
            });
            let ran = op.run();
            done.store(true, Ordering::Release);
            ran.expect("runs");
            proxy.join().expect("takes")
        });
        assert_eq!(entries.len(), 10 * blocks as usize);
        for block in 0..blocks {
            let of_block = entries.iter().filter(|entry| entry.peer == block);
            let values: Vec<u64> = of_block.map(|entry| entry.notice.expect("a notice").value).collect();
            assert_eq!(values, (0..10).collect::<Vec<u64>>(), "block {block} of {blocks}");
        }
    }
}

/// Like the word of a signal. Credits and flushes carry no operation, and neither does a queue without a transport.
#[test]
fn notices_of_a_matched_queue_carry_the_operation_of_the_launch() {
    let purpose = Purpose::Transfer { part: Part::Tail, from: 0, to: 1 };
    let own = Between::OWN;
    for (operation, stamp) in [(None, None), (Some(5), Some(5)), (Some(own + 3), Some((own + 3) | matching::IN_STEP))] {
        let ring = Ring::new(8);
        let matched = |memory: &Memory| match operation {
            Some(operation) => memory.clone().for_purpose(purpose).for_operation(operation),
            None => memory.clone(),
        };
        let ring = Ring::over(matched(ring.entries()), matched(ring.queue(0).tickets())).expect("a ring");
        let source = Memory::zeroed(64);
        let traced = kernel("stamped", |k| {
            let (queue, source) = (k.queue("wire", ring.queue(1)), k.region("source", std::slice::from_ref(&source)));
            k.main(|r| {
                r.deliver(queue, 1, &[(source.bank(0), r.constant(0), r.constant(8))], 6, 11);
                r.post_signal(queue, 1, 6, 12);
                r.post_credit(queue, 1, 6, 13);
                r.post_flush(queue, 1, 7, 14);
            });
        });
        prepared(&traced.expect("traces")).run().expect("runs");
        let values: Vec<u64> = taken(&ring).iter().map(|entry| entry.notice.expect("a notice").value).collect();
        let word = |count: u64| stamp.map_or(count, |stamp| matching::word(count, stamp));
        assert_eq!(values, [word(11), word(12), 13, 14], "operation {operation:?}");
    }
}
