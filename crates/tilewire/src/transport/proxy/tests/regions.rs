//! Regions and sources that come and go: what is registered is written exactly, and what is removed never again.

use super::*;
use crate::sync::yield_now;

/// The region that rank 1 opens, and bytes beside it that must never be written.
struct Opened {
    all: Memory,
}

impl Opened {
    /// Opens region `number` of rank 1 for the others, and lets rank 0 post to it.
    fn at(rig: &Rig, number: u16) -> Opened {
        let opened = Opened { all: Memory::zeroed_shared(REGION + 2 * GUARD) };
        opened.set(GUARD_BYTE);
        let own = opened.all.part(GUARD, REGION);
        rig.nodes[1].proxy.add_region(number, &own, &[None, None, None]).unwrap();
        rig.nodes[0].proxy.add_region(number, &own, &[None, Some(REGION), None]).unwrap();
        opened
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.all.bytes());
        // SAFETY: the byte is inside memory that the handle keeps alive, and tests touch it only by atomics.
        unsafe { AtomicU8::from_ptr(self.all.start().as_ptr().add(at)) }
    }

    fn set(&self, x: u8) {
        (0..self.all.bytes()).for_each(|at| self.byte(at).store(x, Ordering::Relaxed));
    }

    /// The bytes of the region that were written. Checks that no bytes beside it were.
    fn written(&self) -> Vec<usize> {
        let is_written = |at: &usize| self.byte(*at).load(Ordering::Relaxed) != GUARD_BYTE;
        let written: Vec<usize> = (0..self.all.bytes()).filter(is_written).collect();
        assert!(written.iter().all(|at| (GUARD..GUARD + REGION).contains(at)), "{written:?}");
        written.into_iter().map(|at| at - GUARD).collect()
    }
}

/// Posts bytes of rank 0's outbox to a region of rank 1, with word `count` for line 1.
fn post(rig: &Rig, target: u16, (destination, bytes): (u64, u64), count: u64) {
    let source = rig.nodes[0].outbox.start().as_ptr() as u64;
    let span = Some(PostedSpan { source, destination, bytes });
    let notice = Some(PostedNotice { slot: 1, value: matched(count), parts: 1, kind: NoticeKind::Data });
    rig.post(0, Posted { peer: 1, target, span, notice });
}

fn loops(seed: Option<u64>) -> Rig {
    Rig::new(64, |rank, ends| Box::new(LoopCarrier::new(rank, ends.to_vec(), seed)))
}

fn error(rig: &Rig) -> Option<ProxyError> {
    (0..50).for_each(|_| _ = rig.nodes[0].proxy.step());
    rig.nodes[0].proxy.error().cloned()
}

#[test]
fn bytes_arrive_in_the_region_that_is_named_and_nowhere_else() {
    let rig = loops(None);
    let (first, second) = (Opened::at(&rig, 1), Opened::at(&rig, 7));
    assert_eq!(rig.nodes[0].proxy.regions().unwrap(), [1, 7]);
    post(&rig, 1, (0, REGION as u64), 1);
    post(&rig, 7, (REGION as u64 - 3, 3), 2);
    assert_eq!(error(&rig), None);
    rig.step(1);
    assert_eq!(rig.slot(1, 1), matched(2));
    assert_eq!(first.written(), (0..REGION).collect::<Vec<_>>());
    assert_eq!(second.written(), [REGION - 3, REGION - 2, REGION - 1]);
    rig.assert_guards();
}

#[test]
fn posts_beyond_a_region_or_to_none_are_refused() {
    let len = REGION as u64;
    for (target, destination, bytes) in [(1, len, 1), (1, 1, len), (1, u64::MAX, 2), (2, 0, 8), (65535, 0, 0)] {
        let rig = loops(None);
        let opened = Opened::at(&rig, 1);
        post(&rig, target, (destination, bytes), 1);
        let len = (target == 1).then_some(len);
        assert_eq!(error(&rig), Some(ProxyError::Destination { peer: 1, target, destination, bytes, len }));
        assert!(opened.written().is_empty());
        rig.assert_all_told(0);
    }
}

#[test]
fn a_post_to_a_region_that_its_rank_has_removed_is_an_error_and_writes_nothing() {
    for seed in [None, Some(3), Some(4), Some(5)] {
        let rig = loops(seed);
        let opened = Opened::at(&rig, 4);
        // With a seed the carrier has taken it, and delivers it later.
        let is_under_way = seed.is_some();
        if is_under_way {
            post(&rig, 4, (0, 8), 1);
            rig.step(0);
        }
        // It may have gone before.
        let before = opened.written();
        rig.nodes[1].proxy.remove_region(4);
        if !is_under_way {
            post(&rig, 4, (0, 8), 1);
        }
        let is_there = !before.is_empty();
        let region = ProxyError::Region { peer: 1, target: 4 };
        assert_eq!(error(&rig), (!is_there).then_some(region), "seed {seed:?}");
        assert_eq!(opened.written(), before);
    }
}

#[test]
fn a_held_post_finds_that_its_own_rank_has_removed_the_region_or_the_source() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    net.lock().room = Some(0);
    let opened = Opened::at(&rig, 2);
    post(&rig, 2, (0, 8), 1);
    rig.step(0);
    rig.nodes[0].proxy.remove_region(2);
    net.lock().room = None;
    let removed = ProxyError::Destination { peer: 1, target: 2, destination: 0, bytes: 8, len: None };
    assert_eq!(error(&rig), Some(removed));
    assert!(opened.written().is_empty() && net.len() == 0);

    let (net, input) = (Net::default(), Memory::zeroed_shared(64));
    let rig = Rig::by_hand(&net);
    net.lock().room = Some(0);
    let id = rig.nodes[0].proxy.add_source(&input).unwrap();
    let address = input.start().as_ptr() as u64 + 8;
    let span = Some(PostedSpan { source: address, destination: 0, bytes: 56 });
    rig.post(0, Posted { peer: 1, target: 0, span, notice: None });
    assert!(rig.step(0) && net.len() == 0, "it is taken from the ring, and held");
    rig.nodes[0].proxy.remove_source(id);
    net.lock().room = None;
    assert_eq!(error(&rig), Some(ProxyError::Source { peer: 1, address, bytes: 56 }));
    assert_eq!(net.len(), 0);
}

#[test]
fn a_source_is_read_while_it_is_registered_and_by_as_many_as_registered_it() {
    let (rig, input) = (loops(None), Memory::zeroed_shared(64));
    let proxy = &rig.nodes[0].proxy;
    let [first, second] = [(); 2].map(|()| proxy.add_source(&input).unwrap());
    let address = input.start().as_ptr() as u64;
    let send = |bytes: u64| {
        let span = Some(PostedSpan { source: address, destination: 0, bytes });
        rig.post(0, Posted { peer: 1, target: 0, span, notice: None });
        error(&rig)
    };
    assert_eq!(send(64), None);
    proxy.remove_source(first);
    assert_eq!(send(64), None);
    assert_eq!(send(65), Some(ProxyError::Source { peer: 1, address, bytes: 65 }));
    let rig = loops(None);
    let proxy = &rig.nodes[0].proxy;
    proxy.remove_source(second);
    let span = Some(PostedSpan { source: address, destination: 0, bytes: 1 });
    rig.post(0, Posted { peer: 1, target: 0, span, notice: None });
    assert_eq!(error(&rig), Some(ProxyError::Source { peer: 1, address, bytes: 1 }));
}

#[test]
fn nothing_moves_in_a_proxy_that_was_halted() {
    let rig = loops(Some(9));
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    rig.nodes[0].proxy.halt();
    rig.deliver(0, 1, (8, 8), (1, matched(1), 1));
    assert_eq!((0..100).filter(|_| rig.nodes[0].proxy.step()).count(), 0);
    rig.step(1);
    assert_eq!([0, 1].map(|line| rig.slot(1, line)), [0, 0]);
}

/// One thread writes without a pause, another removes: when the removal has returned, no byte changes any more.
#[test]
fn a_removal_does_not_race_with_writes_under_way() {
    for round in 0..16 {
        let rig = loops((round % 2 == 0).then_some(round));
        let opened = Opened::at(&rig, 3);
        let (removed, stopped) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut count = 0;
                while rig.nodes[0].proxy.error().is_none() && count < 1 << 20 {
                    if rig.nodes[0].queue_has_room() {
                        count += 1;
                        (0..REGION).step_by(97).for_each(|at| rig.put(0, at, count as u8));
                        post(&rig, 3, (0, REGION as u64), count);
                    }
                    rig.nodes[0].proxy.step();
                    rig.nodes[1].proxy.step();
                }
                stopped.store(true, Ordering::Release);
            });
            (0..round * 7).for_each(|_| yield_now());
            rig.nodes[1].proxy.remove_region(3);
            opened.set(GUARD_BYTE);
            removed.store(true, Ordering::Release);
            while !stopped.load(Ordering::Acquire) {
                assert!(opened.written().is_empty(), "round {round}");
                yield_now();
            }
        });
        assert!(removed.load(Ordering::Acquire) && opened.written().is_empty());
        assert_eq!(rig.nodes[0].proxy.error(), Some(&ProxyError::Region { peer: 1, target: 3 }), "round {round}");
    }
}
