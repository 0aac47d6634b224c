//! The end of launches: what a rank with a thread that polls leaves to it, and what a drain waits for.

use super::*;
use crate::transport::doorbell::Doorbell;

/// Ranks of which rank 0 has a thread that polls, as far as its proxy knows. The test plays that thread.
fn with_thread(net: &Net) -> Rig {
    let rig = Rig::by_hand(net);
    rig.nodes[0].proxy.relieved_by(Arc::new(Duty::new(Doorbell::alone().unwrap()).that_polls()));
    rig
}

fn soon() -> Option<Duration> {
    Some(Duration::from_millis(2))
}

#[test]
fn a_launch_leaves_what_the_carrier_has_taken_to_a_thread_that_polls() {
    let net = Net::default();
    let rig = with_thread(&net);
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    rig.nodes[0].proxy.leave(None).unwrap();
    assert_eq!(net.lines(), [0]);
    assert!(rig.nodes[0].proxy.is_busy(), "a drain would wait");
    assert!(rig.nodes[0].proxy.drain(soon()).is_err());

    // Without such a thread, nobody would see to it.
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    assert!(rig.nodes[0].proxy.leave(soon()).is_err());
}

#[test]
fn a_launch_waits_for_what_the_carrier_has_not_taken() {
    let net = Net::default();
    let rig = with_thread(&net);
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    // Held until the delivery is confirmed.
    rig.signal(0, 1, (1, matched(1)), NoticeKind::Data);
    let late = rig.nodes[0].proxy.leave(soon()).unwrap_err();
    // The one that is held, and the one that it waits for.
    assert!(late.to_string().contains("2 posts to rank 1"), "{late}");
}

#[test]
fn a_single_credit_goes_with_the_next_step_and_after_the_bytes_of_the_next_launch() {
    let net = Net::default();
    let rig = with_thread(&net);
    let credit = |line: usize, word: u64| rig.signal(0, 1, (line, word), NoticeKind::Credit);
    credit(4, 1);
    rig.nodes[0].proxy.leave(None).unwrap();
    assert_eq!((net.len(), rig.nodes[0].proxy.is_busy()), (0, true));
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    rig.nodes[0].proxy.leave(None).unwrap();
    assert_eq!(net.lines(), [0, 4], "bytes first");
    // If there is no next launch, the thread's step takes it.
    credit(5, 1);
    rig.nodes[0].proxy.leave(None).unwrap();
    assert_eq!(net.len(), 2);
    rig.step(0);
    assert_eq!(net.lines(), [0, 4, 5]);
    // Two are not kept back.
    credit(6, 1);
    credit(7, 1);
    rig.nodes[0].proxy.leave(None).unwrap();
    assert_eq!(net.lines(), [0, 4, 5, 6, 7]);
}

#[test]
fn bytes_overtake_credits_but_no_signal_and_no_bytes() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    rig.signal(0, 1, (4, 1), NoticeKind::Credit);
    rig.signal(0, 1, (5, 1), NoticeKind::Credit);
    rig.deliver(0, 1, (8, 8), (1, matched(1), 1));
    rig.step(0);
    assert_eq!(net.lines(), [0, 1, 4, 5]);
    (0..4).for_each(|_| net.deliver(0));
    rig.step(0);
    // A flush is no credit: it covers what was posted before it, and nothing after it.
    rig.signal(0, 1, (4, 1), NoticeKind::Flush);
    rig.signal(0, 1, (6, 1), NoticeKind::Credit);
    rig.deliver(0, 1, (16, 8), (2, matched(1), 1));
    rig.step(0);
    assert_eq!((net.lines(), rig.slot(0, 4)), (vec![2, 6], 1));
    (0..2).for_each(|_| net.deliver(0));
    rig.step(0);
    // Words of one line keep their order.
    rig.signal(0, 1, (7, 1), NoticeKind::Credit);
    rig.deliver(0, 1, (24, 8), (7, 2, 1));
    rig.step(0);
    assert_eq!((net.lines(), rig.nodes[0].proxy.error()), (vec![7], None));
}
