//! Draining: nothing is left behind, a deadline runs from the last progress of each peer, and the peer that is late is
//! the one that is named.

use super::*;
use std::time::Instant;

/// A carrier that confirms one write to rank 1 every few milliseconds, and none to rank 2. Every poll reports an event,
/// as if something arrived without a pause.
struct Slow {
    taken: VecDeque<u64>,
    last: Instant,
}

const PACE: Duration = Duration::from_millis(3);
const PATIENCE: Duration = Duration::from_millis(60);

impl Carrier for Slow {
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

    fn lend(&mut self, _: &Memory) -> Result<(), ProxyError> {
        Ok(())
    }

    fn give_back(&mut self, _: &Memory) {}

    fn reads(&self, _: &Memory) -> bool {
        false
    }

    fn write(&mut self, write: &Write<'_>) -> Result<bool, ProxyError> {
        if write.peer == 1 {
            self.taken.push_back(write.id);
        }
        Ok(true)
    }

    fn unconfirmed(&mut self, _: usize) -> Result<usize, ProxyError> {
        Ok(0)
    }

    fn flush_arrivals(&mut self) -> Result<(), ProxyError> {
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), ProxyError> {
        events.push(Event::Delivered { id: u64::MAX });
        if self.last.elapsed() >= PACE {
            self.last = Instant::now();
            events.extend(self.taken.pop_front().map(|id| Event::Delivered { id }));
        }
        Ok(())
    }
}

fn slow() -> Rig {
    Rig::new(64, |_, _| Box::new(Slow { taken: VecDeque::new(), last: Instant::now() }))
}

#[test]
fn a_drain_lasts_as_long_as_every_peer_makes_progress() {
    let rig = slow();
    for count in 1..=50 {
        rig.signal(0, 1, (4, count), NoticeKind::Credit);
    }
    let start = Instant::now();
    rig.nodes[0].proxy.drain(Some(PATIENCE)).unwrap();
    assert!(start.elapsed() > PATIENCE, "otherwise this shows nothing");
}

/// Otherwise a drain with many writes to be confirmed would be late.
#[test]
fn a_confirmation_is_progress() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    let mut progress = |unconfirmed: usize| {
        net.lock().unconfirmed[1] = unconfirmed;
        let mut state = rig.nodes[0].proxy.enter().unwrap();
        assert_eq!(state.is_confirmed(|_| false).unwrap(), unconfirmed == 0);
        state.peers[1].as_ref().unwrap().progress
    };
    assert_eq!([3, 3, 2, 5, 0, 0].map(&mut progress), [0, 0, 1, 1, 2, 2]);
}

#[test]
fn the_late_peer_is_the_one_without_progress_whatever_else_happens() {
    let rig = slow();
    for count in 1..=60 {
        rig.signal(0, 1, (4, count), NoticeKind::Credit);
    }
    rig.signal(0, 2, (4, 1), NoticeKind::Credit);
    rig.signal(0, 2, (5, 1), NoticeKind::Credit);
    let late = rig.nodes[0].proxy.drain(Some(PATIENCE));
    assert!(matches!(late, Err(TransportError::Proxy(ProxyError::Late { peer: 2, posts: 2 }))), "{:?}", late.err());
    rig.assert_all_told_of(Cause::timed_out(0, Some(2)));
}

#[test]
fn of_two_late_peers_the_one_with_the_oldest_post_is_named() {
    for first in [1, 2] {
        let net = Net::default();
        let rig = Rig::by_hand(&net);
        for peer in [first, 3 - first] {
            rig.deliver(0, peer, (0, 8), (0, matched(1), 1));
        }
        rig.step(0);
        assert_eq!(rig.nodes[0].proxy.behind(), Some(first));
        let late = rig.nodes[0].proxy.drain(Some(Duration::from_millis(5)));
        let is_first =
            |e: &TransportError| matches!(e, TransportError::Proxy(ProxyError::Late { peer, .. }) if *peer == first);
        assert!(late.as_ref().is_err_and(is_first), "{:?}", late.err());
    }
}

#[test]
fn a_peer_is_behind_until_all_its_posts_are_delivered() {
    let net = Net::default();
    let rig = Rig::by_hand(&net);
    let proxy = &rig.nodes[0].proxy;
    assert_eq!((proxy.behind(), proxy.is_busy()), (None, false));
    net.lock().room = Some(0);
    rig.deliver(0, 2, (0, 8), (0, matched(1), 1));
    rig.step(0);
    assert_eq!((proxy.behind(), proxy.is_busy()), (Some(2), true), "held");
    net.lock().room = None;
    rig.step(0);
    assert_eq!(proxy.behind(), Some(2), "on its way");
    net.deliver(0);
    rig.step(0);
    assert_eq!((proxy.behind(), proxy.is_busy()), (None, false));
}

/// A step takes a limited number of entries. A flush is over as soon as it is taken.
#[test]
fn a_drain_leaves_no_entry_in_the_ring() {
    let rig = Rig::new(1024, |rank, ends| Box::new(LoopCarrier::new(rank, ends.to_vec(), None)));
    let entries = 3 * BATCH as u64 + 1;
    for count in 1..=entries {
        rig.signal(0, 1, (4, count), NoticeKind::Flush);
    }
    rig.step(0);
    assert!(rig.nodes[0].proxy.is_busy(), "entries are left");
    rig.nodes[0].proxy.drain(None).unwrap();
    assert_eq!(rig.slot(0, 4), entries);
}

#[test]
fn a_drain_of_a_halted_proxy_fails_if_anything_is_left() {
    let rig = Rig::new(64, |rank, ends| Box::new(LoopCarrier::new(rank, ends.to_vec(), None)));
    rig.nodes[0].proxy.halt();
    rig.nodes[0].proxy.drain(None).unwrap();
    rig.deliver(0, 1, (0, 8), (0, matched(1), 1));
    let left = rig.nodes[0].proxy.drain(None);
    assert!(matches!(left, Err(TransportError::Proxy(ProxyError::Halted))), "{:?}", left.err());
}

/// Not every provider reports that a peer is gone.
#[test]
fn a_peer_that_has_left_is_not_waited_for() {
    let mut rig = slow();
    let departures = Departures::new(RANKS);
    let node = rig.nodes.remove(0);
    rig.nodes.insert(0, Node { proxy: node.proxy.with_departures(departures.clone()), ..node });
    departures.note(2);
    rig.signal(0, 2, (4, 1), NoticeKind::Credit);
    let error = rig.nodes[0].proxy.drain(None).unwrap_err();
    let left = Cause { code: AbortCode::Left, rank: 2, reason: 0 };
    assert!(matches!(error, TransportError::Broken { cause } if cause == left), "{error}");
    rig.assert_all_told_of(left);
}
