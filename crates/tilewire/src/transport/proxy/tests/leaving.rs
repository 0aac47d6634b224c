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

/// A rank that says it only waits must have nothing on its way: a verdict about a deadlock rests on this.
#[test]
fn a_rank_has_settled_when_everything_is_confirmed() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    let proxy = &rig.nodes[0].proxy;
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    net.lock().unconfirmed[1] = 1;
    rig.step(0);
    assert!(proxy.settle(), "on its way");
    net.deliver(0);
    assert_eq!((proxy.settle(), proxy.is_busy()), (true, false), "delivered, and not confirmed");
    net.lock().unconfirmed[1] = 0;
    assert!(!proxy.settle());
    let failure = || ProxyError::Carrier { peer: Some(1), what: "it is gone".to_string() };
    net.lock().fails = Some(failure);
    proxy.settle();
    assert_eq!(proxy.error(), Some(&failure()));
    rig.assert_all_told(0);
}

/// What the peer has not confirmed, nobody will read. Other ranks must not suffer for it.
#[test]
fn nobody_waits_for_confirmations_of_a_peer_that_has_left() {
    let net = Net::default();
    let mut rig = Rig::by_hand(&net);
    let departures = Departures::new(RANKS);
    let node = rig.nodes.remove(0);
    rig.nodes.insert(0, Node { proxy: node.proxy.with_departures(departures.clone()), ..node });
    net.lock().unconfirmed = [0, 3, 0];
    let proxy = &rig.nodes[0].proxy;
    assert!(proxy.settle());
    departures.note(1);
    proxy.drain(Some(Duration::from_secs(30))).unwrap();
    assert!(!proxy.settle());
    // The others are waited for.
    net.lock().unconfirmed = [0, 3, 1];
    let late = proxy.drain(soon()).unwrap_err();
    assert!(late.to_string().contains("posts to rank 2"), "{late}");
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
