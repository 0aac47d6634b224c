//! Descriptors that no kernel of ours writes, rings and queues at their limits: nothing stray is written or lost.

use super::*;

#[test]
fn no_descriptor_writes_outside_of_its_region_and_lines() {
    let mut random = Random(1);
    let mut kinds = [0u64; 8];
    for _ in 0..1000 {
        let rig = Rig::new(1, |rank, ends| Box::new(LoopCarrier::new(rank, ends.to_vec(), None)));
        let start = rig.nodes[0].outbox.start().as_ptr() as u64;
        let segment = rig.segments[0].segment(1).start().as_ptr() as u64;
        for number in 0..1000 {
            let words = match number % 4 {
                // Anything.
                0 => std::array::from_fn(|_| random.next()),
                // Near the limits of every field.
                _ => {
                    let good = [(1, 0), (2, 1), (6, 1), (3, 1), (3, 1), (3, 2), (3, 3)];
                    let bad = [(0, 0), (1, 1), (2, 2), (3, 0), (3, 4), (3, 255), (7, 1), (8, 0), (255, 1)];
                    let (flags, parts) = if random.below(10) == 0 { random.pick(&bad) } else { random.pick(&good) };
                    let target = random.pick(&[0, 0, 0, 0, 0, 0, 1, 0xffff]);
                    let peer = random.pick(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 0, 3, u64::from(u32::MAX)]);
                    let region = REGION as u64;
                    let bytes = random.pick(&[0, 1, 8, region - 1, region, region + 1, u64::MAX, u64::MAX - start + 1]);
                    let destination =
                        random.pick(&[0, 1, region - 8, region - 1, region, region + 1, u64::MAX - 7, u64::MAX]);
                    let source = random.pick(&[start, start, start + 1, start + region - 1, start + region, start - 1]);
                    let source = random.pick(&[source, source, source, 0, segment, u64::MAX, u64::MAX - 7]);
                    let line = random.pick(&[0, 3, 4, 7, 0, 3, 4, 7, 8, 23, 24, (1 << 20) - 1, 1 << 20, u64::MAX]);
                    let count = number + random.below(3);
                    let value = random.pick(&[matched(count), count, matched(count) | 5, 0, matched(count * 9)]);
                    let value = if random.below(500) == 0 { random.pick(&[u64::MAX, u64::MAX >> 1]) } else { value };
                    [flags << 56 | parts << 48 | target << 32 | peer, source, destination, bytes, line, value]
                }
            };
            assert!(rig.push(0, &words));
            // The state itself: a proxy would stop at the first error.
            let mut state = rig.nodes[0].proxy.enter().unwrap();
            let kind = match state.step(&mut false, &mut false) {
                Ok(()) => 0,
                Err(ProxyError::Entry { .. }) => 1,
                Err(ProxyError::Peer { .. }) => 2,
                Err(ProxyError::Destination { .. }) => 3,
                Err(ProxyError::Source { .. }) => 4,
                Err(ProxyError::Line { .. }) => 5,
                Err(ProxyError::Backwards { .. }) => 6,
                Err(ProxyError::Parts { .. }) => 7,
                Err(error) => panic!("{error}"),
            };
            kinds[kind] += 1;
        }
        // The receivers may take or refuse what arrives.
        (1..RANKS).for_each(|rank| _ = rig.nodes[rank].proxy.step());
        rig.assert_guards();
        for rank in 1..RANKS {
            let stranger = (0..RANKS * EACH).find(|&line| line >= EACH && rig.slot(rank, line) != 0);
            assert_eq!(stranger, None, "a line that rank 0 does not move, of rank {rank}");
            assert!((0..REGION).all(|at| rig.arrived(rank, 0, at) == 0), "the outbox has only zeros");
        }
    }
    assert!(kinds.iter().all(|&kind| kind > 1000), "{kinds:?}");
}

#[test]
fn a_bad_descriptor_stops_the_proxy_with_its_cause() {
    let rig = Rig::by_hand(&Net::default());
    rig.deliver(0, 1, (0, 8), (EACH, matched(1), 1));
    rig.nodes[0].proxy.step();
    let error = ProxyError::Line { peer: 1, line: EACH as u64 };
    assert_eq!(rig.nodes[0].proxy.error(), Some(&error));
    assert!(!rig.nodes[0].proxy.step());
    let drained = rig.nodes[0].proxy.drain(None);
    assert!(matches!(drained, Err(TransportError::Proxy(e)) if e == error));
    rig.assert_all_told(0);
}

#[test]
fn a_ring_of_one_descriptor_is_enough() {
    let rig = Rig::new(1, |rank, ends| Box::new(LoopCarrier::new(rank, ends.to_vec(), None)));
    for count in 1..100 {
        rig.deliver(0, 1, (0, 8), (0, matched(count), 1));
        let other = Posted { peer: 1, target: 0, span: None, notice: None };
        assert!(!rig.push(0, &other.words()), "it is full");
        rig.step(0);
        rig.step(1);
        assert_eq!(rig.slot(1, 0), matched(count));
    }
}

#[test]
fn kernels_wait_when_too_much_is_held() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    net.lock().room = Some(0);
    let (mut posts, post) = (0u64, |count| {
        let notice = PostedNotice { slot: 4, value: count, parts: 1, kind: NoticeKind::Credit };
        rig.push(0, &Posted { peer: 1, target: 0, span: None, notice: Some(notice) }.words())
    });
    while post(posts + 1) || rig.step(0) {
        posts = posts.max(rig.nodes[0].proxy.enter().unwrap().peers[1].as_ref().unwrap().held.len() as u64);
        assert!(posts < 10 * MOST_HELD as u64, "nothing ends it");
    }
    assert!(posts >= MOST_HELD as u64);
}
