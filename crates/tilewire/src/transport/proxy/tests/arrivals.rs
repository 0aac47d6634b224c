//! A receiver that polls late gets several deliveries for one line in one poll.

use super::*;

/// Deliveries of several parts and jumps for one line, one after the other, while the receiver does not look. A carrier
/// may report the parts of one delivery in any order, but those of the first before those of the second: the first was
/// in the receiver's memory when the second began.
#[test]
fn deliveries_that_arrived_while_nobody_looked_are_told_one_after_the_other() {
    let mut random = Random(5);
    for seed in 0..60 {
        let rig = Rig::new(64, |rank, ends| Box::new(LoopCarrier::new(rank, ends.to_vec(), Some(seed))));
        let (mut count, mut at) = (0, 0);
        while at < 120 {
            // Rank 1 looks only after some of them.
            let (from, deliveries) = (at, 1 + random.below(6));
            for _ in 0..deliveries {
                let parts = 1 + random.below(3) as u8;
                count += 1 + random.below(9);
                for _ in 0..parts {
                    rig.put(0, at, at as u8 | 1);
                    rig.deliver(0, 1, (at, 1), (2, matched(count), parts));
                    at += 1;
                }
                while rig.nodes[0].proxy.settle() {}
            }
            rig.step(1);
            assert_eq!(rig.slot(1, 2), matched(count), "seed {seed}, {deliveries} deliveries");
            assert!((from..at).all(|at| rig.arrived(1, 0, at) == at as u8 | 1));
        }
    }
}

/// A carrier that breaks its contract is found where the notices differ.
#[test]
fn arrivals_of_a_later_delivery_before_those_of_an_earlier_one_are_an_error() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    for (nth, count) in [1, 5].into_iter().enumerate() {
        for part in [0, 1] {
            rig.deliver(0, 1, (2 * nth + part, 1), (2, matched(count), 2));
        }
        rig.step(0);
        (0..2).for_each(|_| net.deliver(0));
        rig.step(0);
    }
    net.lock().events[1].swap(1, 2);
    rig.nodes[1].proxy.step();
    assert!(matches!(rig.nodes[1].proxy.error(), Some(ProxyError::Notice { .. })));
    assert_eq!(rig.slot(1, 2), 0);
    rig.assert_all_told(1);
}

/// Rank 0 stores into rank 2's memory, and posts to rank 1, which posts to rank 2. The notice to rank 2 covers rank 0's
/// stores, although rank 0 posted nothing to rank 2.
#[test]
fn a_notice_that_came_by_another_rank_covers_what_was_stored_before() {
    const TURNS: u64 = 300;
    const BYTES: usize = 64;
    for seed in [None, Some(1), Some(2)] {
        let rig = Rig::new(4, |rank, ends| Box::new(LoopCarrier::new(rank, ends.to_vec(), seed)));
        let old = AtomicU64::new(0);
        let line = |sender: usize| sender * EACH + 4;
        let place = |at: usize| rig.byte(2, LINES_END + GUARD + at);
        let until = |rank: usize, line: usize, count: u64| {
            while rig.slot(rank, line) < count {
                rig.step(rank);
                std::thread::yield_now();
            }
        };
        std::thread::scope(|ranks| {
            ranks.spawn(|| {
                for turn in 1..=TURNS {
                    // Relaxed, as plain stores: only the post says that they are there.
                    (0..BYTES).for_each(|at| place(at).store(turn as u8, Ordering::Relaxed));
                    rig.signal(0, 1, (line(0), turn), NoticeKind::Data);
                    until(0, line(2), turn);
                }
            });
            ranks.spawn(|| {
                for turn in 1..=TURNS {
                    until(1, line(0), turn);
                    rig.signal(1, 2, (line(1), turn), NoticeKind::Data);
                    rig.step(1);
                }
                rig.nodes[1].proxy.drain(Some(Duration::from_secs(60))).unwrap();
            });
            ranks.spawn(|| {
                for turn in 1..=TURNS {
                    until(2, line(1), turn);
                    let is_old = |at: &usize| place(*at).load(Ordering::Relaxed) != turn as u8;
                    old.fetch_add((0..BYTES).filter(is_old).count() as u64, Ordering::Relaxed);
                    // Then rank 0 may continue.
                    rig.signal(2, 0, (line(2), turn), NoticeKind::Credit);
                    rig.step(2);
                }
                rig.nodes[2].proxy.drain(Some(Duration::from_secs(60))).unwrap();
            });
        });
        assert_eq!(old.into_inner(), 0, "of {TURNS} times {BYTES} bytes, seed {seed:?}");
    }
}
