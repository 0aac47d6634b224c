//! Carriers that fail, keep posts for too long or panic, and transports that break: the proxy stops, and all ranks get
//! the cause.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

const SOON: Option<Duration> = Some(Duration::from_millis(30));

#[track_caller]
fn assert_stopped(rig: &Rig, drained: Result<(), TransportError>, must: ProxyError) {
    assert!(
        matches!(&drained, Err(TransportError::Proxy(is)) if *is == must),
        "{:?}",
        drained.err().map(|e| e.to_string())
    );
    assert_eq!(rig.nodes[0].proxy.error(), Some(&must));
    match must {
        ProxyError::Late { peer, .. } => rig.assert_all_told_of(Cause::timed_out(0, Some(peer))),
        _ => rig.assert_all_told(0),
    }
}

#[test]
fn a_carrier_that_fails_is_reported_with_the_peer() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    let failure = || ProxyError::Carrier { peer: Some(1), what: "unplugged".to_string() };
    net.lock().fails = Some(failure);
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    let drained = rig.nodes[0].proxy.drain(None);
    assert!(drained.as_ref().unwrap_err().to_string().contains("the network to rank 1 failed: unplugged"));
    assert_stopped(&rig, drained, failure());
}

/// Ranks that are processes notice who leaves: the survivor of a peer's death does not blame itself.
#[test]
fn a_carrier_that_fails_names_the_peer_that_has_left() {
    for (peer, gone) in [(None, 1), (None, 2), (Some(1), 1)] {
        let net = Net::default();
        let mut rig = Rig::by_hand(&net);
        let departures = Departures::new(RANKS);
        let proxy = rig.nodes.remove(0);
        let proxy = Node { proxy: proxy.proxy.with_departures(departures.clone()), ..proxy };
        rig.nodes.insert(0, proxy);
        net.lock().fails = Some(match peer {
            None => || ProxyError::Carrier { peer: None, what: "the adapter says nothing".to_string() },
            Some(_) => || ProxyError::Carrier { peer: Some(1), what: "unplugged".to_string() },
        });
        departures.note(gone);
        rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
        assert!(rig.nodes[0].proxy.drain(None).is_err());
        rig.assert_all_told_of(Cause { code: AbortCode::Left, rank: gone, reason: 0 });
    }
}

#[test]
fn posts_that_are_never_confirmed_or_never_taken_are_late() {
    for (room, count, posts) in [(None, 1, 2), (Some(0), 1, 2), (Some(0), 5000, 2), (Some(1), 5000, 3)] {
        let net = Net::default();
        let rig = Rig::by_hand(&net);
        net.lock().room = room;
        rig.deliver(0, 1, (0, 8), (0, matched(count), 1));
        rig.signal(0, 1, (4, 1), NoticeKind::Data);
        let drained = rig.nodes[0].proxy.drain(SOON);
        assert_stopped(&rig, drained, ProxyError::Late { peer: 1, posts });
    }
}

#[test]
fn a_panic_inside_stops_the_proxy_and_tells_all_ranks() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    net.lock().fails = Some(|| panic!("as planned"));
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    assert!(catch_unwind(AssertUnwindSafe(|| rig.nodes[0].proxy.step())).is_err());
    assert!(!rig.nodes[0].proxy.step());
    rig.assert_all_told(0);
    assert_stopped(&rig, rig.nodes[0].proxy.drain(None), ProxyError::Panicked);
}

#[test]
fn a_broken_transport_ends_a_drain_with_the_cause() {
    let rig = Rig::by_hand(&Net::default());
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    let cause = Cause { code: AbortCode::Panicked, rank: 2, reason: 0 };
    rig.segments[2].abort_all(cause);
    let drained = rig.nodes[0].proxy.drain(None);
    assert!(matches!(drained, Err(TransportError::Broken { cause: is }) if is == cause));
    assert_eq!(rig.nodes[0].proxy.error(), None);
}

#[test]
fn a_peer_may_be_dropped_while_its_posts_are_on_their_way() {
    let rig = Rig::new(64, |rank, ends| Box::new(LoopCarrier::new(rank, ends.to_vec(), Some(3))));
    rig.deliver(0, 1, (0, REGION), (0, matched(1), 1));
    let Rig { mut nodes, mut segments } = rig;
    nodes[0].proxy.step();
    nodes.truncate(1);
    segments.truncate(0);
    nodes[0].proxy.drain(None).unwrap();
}
