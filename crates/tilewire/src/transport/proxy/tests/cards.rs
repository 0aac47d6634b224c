//! What cards write into memory of devices: it is flushed before slots move for it.

use super::*;

/// The flushes since the last call: the rank, and two of its slots at that time.
fn flushes(net: &Net, lines: [usize; 2]) -> Vec<(usize, [u64; 2])> {
    let flushes = std::mem::take(&mut net.lock().flushes);
    flushes.into_iter().map(|(rank, slots)| (rank, lines.map(|line| slots[line]))).collect()
}

#[test]
fn all_arrivals_of_a_poll_are_flushed_once_before_any_slot_moves() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    rig.deliver(0, 1, (0, 8), (1, matched(1), 1));
    rig.deliver(0, 1, (8, 8), (3, matched(1), 2));
    rig.deliver(0, 1, (16, 8), (3, matched(1), 2));
    rig.step(0);
    assert_eq!(net.lines(), [1, 3, 3]);
    rig.step(1);
    assert_eq!(flushes(&net, [1, 3]), [], "nothing has arrived");
    // One whole delivery, and a part of another: one flush, when neither slot has moved.
    (0..2).for_each(|_| net.deliver(0));
    rig.step(1);
    assert_eq!(flushes(&net, [1, 3]), [(1, [0, 0])]);
    assert_eq!([1, 3].map(|line| rig.slot(1, line)), [matched(1), 0]);
    // The last part is flushed again: it may have arrived after the first flush.
    net.deliver(0);
    rig.step(1);
    assert_eq!(flushes(&net, [1, 3]), [(1, [matched(1), 0])]);
    assert_eq!(rig.slot(1, 3), matched(1));
    // Two whole deliveries in one poll.
    rig.deliver(0, 1, (0, 8), (1, matched(2), 1));
    rig.signal(0, 1, (3, matched(2)), NoticeKind::Credit);
    rig.step(0);
    (0..2).for_each(|_| net.deliver(0));
    rig.step(1);
    assert_eq!(flushes(&net, [1, 3]), [(1, [matched(1), matched(1)])]);
    assert_eq!([1, 3].map(|line| rig.slot(1, line)), [matched(2), matched(2)]);
    // The sender only learns that its writes are delivered.
    rig.nodes[0].proxy.drain(None).unwrap();
    rig.step(1);
    assert_eq!(flushes(&net, [1, 3]), []);
}

#[test]
fn no_slot_moves_if_the_flush_fails() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    rig.deliver(0, 1, (0, 8), (1, matched(1), 1));
    rig.step(0);
    net.deliver(0);
    net.lock().no_flush = true;
    rig.nodes[1].proxy.step();
    let error = rig.nodes[1].proxy.error().expect("it failed").to_string();
    assert!(error.contains("the card does not flush"), "{error}");
    assert_eq!(rig.slot(1, 1), 0);
    rig.assert_all_told(1);
}
