//! Flushes: a slot of the posting rank moves when the sources of its posts have been read.

use super::*;

#[test]
fn a_flush_waits_for_all_earlier_posts_to_its_peer_and_moves_a_line_of_its_own_rank() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    let flush = |peer: usize, line: usize, word: u64| rig.signal(0, peer, (line, word), NoticeKind::Flush);
    flush(2, 3, 1);
    rig.step(0);
    assert_eq!((rig.slot(0, 3), net.len()), (1, 0), "nothing was posted, and nothing is sent");
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    // The post is held because of its line.
    rig.deliver(0, 1, (8, 8), (0, matched(2), 1));
    flush(1, 4, 1);
    flush(1, 4, 2);
    flush(2, 5, 1);
    rig.deliver(0, 1, (16, 8), (1, matched(1), 1));
    rig.step(0);
    assert_eq!(net.lines(), [0, 1], "a later delivery overtakes a flush");
    assert_eq!([3, 4, 5].map(|line| rig.slot(0, line)), [1, 0, 1], "another peer's flush does not wait");
    net.deliver(0);
    rig.step(0);
    assert_eq!((rig.slot(0, 4), net.lines()), (0, vec![1, 0]), "the second delivery is on its way, and still read");
    // Its bytes have arrived at the peer before this rank knows.
    net.deliver(1);
    assert_eq!(rig.slot(0, 4), 0);
    // The third delivery went before the second, and may be taken for an earlier one.
    net.deliver(0);
    rig.step(0);
    assert_eq!(rig.slot(0, 4), 2, "both flushes");
    rig.deliver(0, 1, (0, 8), (0, matched(3), 1));
    flush(1, 4, 3);
    rig.deliver(0, 1, (16, 8), (1, matched(2), 1));
    rig.step(0);
    net.deliver(0);
    rig.step(0);
    assert_eq!((rig.slot(0, 4), net.lines()), (3, vec![1]), "a flush waits for no later post");
    net.deliver(0);
    rig.nodes[0].proxy.drain(None).unwrap();
    assert_eq!([3, 4, 5].map(|line| rig.slot(1, line)), [0; 3], "nothing has moved at a peer");
}

#[test]
fn a_flush_waits_for_a_post_that_a_full_carrier_refused_before_it_and_a_drain_for_the_flush() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    net.lock().room = Some(0);
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    rig.signal(0, 1, (4, 1), NoticeKind::Flush);
    // Nor does a later signal overtake a flush.
    rig.signal(0, 1, (6, 1), NoticeKind::Data);
    rig.step(0);
    net.lock().room = None;
    rig.step(0);
    assert_eq!((net.lines(), rig.slot(0, 4)), (vec![0], 0));
    let late = rig.nodes[0].proxy.drain(Some(Duration::from_millis(2))).unwrap_err();
    assert!(late.to_string().contains("3 posts to rank 1"), "{late}");
}

#[test]
fn flushes_of_lines_that_are_not_ones_own_or_do_not_grow_are_refused() {
    let refused = |line: usize, words: &[u64]| {
        let rig = Rig::by_hand(&Net::default());
        words.iter().for_each(|&word| rig.signal(0, 1, (line, word), NoticeKind::Flush));
        rig.nodes[0].proxy.step();
        rig.nodes[0].proxy.error().cloned()
    };
    assert_eq!(refused(4, &[1, 2, 7]), None);
    // Line 5 says that posts to rank 2 have been read.
    for line in [5, EACH, 1 << 40] {
        assert_eq!(refused(line, &[1]), Some(ProxyError::OwnLine { peer: 1, line: line as u64 }));
    }
    for word in [3, 2, 0] {
        assert_eq!(refused(4, &[3, word]), Some(ProxyError::Backwards { peer: 1, line: 4, word, last: 3 }));
    }
}
