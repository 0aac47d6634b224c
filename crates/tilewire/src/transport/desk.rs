//! Where the two sides of a transfer meet: each tells the other, through the bootstrap, what it is about to do.
#![forbid(unsafe_code)]

use super::abort::{Abort, AbortCode, Cause};
use super::bootstrap::{BootstrapError, Departure};
use super::deadline::Deadline;
use super::departures::Departures;
use super::door::Door;
use super::gathering::{enlist, strike};
use super::pairing::{Names, Pairing, Pairings, Ticket};
use super::rank::Rank;
use super::rendezvous::{Shared, TransportError};
use super::segment::SegmentSet;
use super::status::{Kind, Status};
use super::watch::Watch;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// One rank's place at a transport's desk.
pub struct Desk {
    pub(crate) world: Shared,
    /// The transport's kind and which of rank 0's rendezvous made it, so that ranks do not confuse transports.
    pub(crate) name: String,
    pairings: Pairings,
    /// This rank's abort word. Kept here because every launch checks it, and making a handle changes a reference count.
    pub(crate) abort: Abort,
    pub(crate) departures: Departures,
    pub(crate) status: Status,
    /// True if the store did not answer a last look on the broken transport: no more looks, for any peer.
    silent: AtomicBool,
    /// Keeps the desk, and with it every transport, on its thread. The judgement of status lines relies on that.
    _stays: PhantomData<*const ()>,
}

impl Desk {
    pub(crate) fn new(world: Shared, name: String, segments: &SegmentSet, departures: Departures) -> Desk {
        let (abort, status) = (segments.abort(segments.rank()), Status::of(segments));
        enlist(&status);
        let (pairings, silent) = (Pairings::default(), AtomicBool::new(false));
        Desk { world, name, pairings, abort, departures, status, silent, _stays: PhantomData }
    }

    /// The door of this desk's rank over these segments.
    pub(crate) fn door(&self, segments: &SegmentSet) -> Door {
        let door = Door::of(segments).with_deadline(self.world.length());
        door.with_news(self.departures.clone(), self.status.clone())
    }

    /// `Err` if the transport is broken: with the verdict if there is one, otherwise with the cause.
    pub(crate) fn check(&self) -> Result<(), TransportError> {
        self.broken().map_or(Ok(()), |cause| {
            let verdict = self.status.verdict(cause);
            Err(verdict.map_or(TransportError::Broken { cause }, TransportError::Judged))
        })
    }

    #[inline]
    pub(crate) fn broken(&self) -> Option<Cause> {
        self.abort.get()
    }

    /// The next ticket of a kind with a peer. It stays the same until it is told.
    pub(crate) fn ticket(&self, pairing: Pairing, peer: Rank) -> Ticket {
        self.pairings.next(self.world.rank(), pairing, peer)
    }

    /// Tells the peer about an operation. The first line of a card describes it for people.
    pub(crate) fn tell(&self, ticket: &Ticket, card: &[u8]) -> Result<(), TransportError> {
        self.check()?;
        let told = self.world.set(&ticket.mine(&self.name), card, self.world.deadline());
        told.map_err(|error| self.lost(error.into()))?;
        if ticket.is_answer() {
            return Ok(());
        }
        self.pairings.take(ticket);
        self.pairings.name(ticket, &first_line(card));
        Ok(())
    }

    /// The names of operations.
    pub(crate) fn names(&self) -> &Names {
        self.pairings.names()
    }

    /// A description of an operation with a peer.
    pub(crate) fn describe(&self, peer: Rank, operation: u16) -> Option<String> {
        self.names().of(peer, operation)
    }

    /// Waits for the peer's card. Meanwhile the other ranks can see which peer this rank waits for. They still see it
    /// after `NotMet`, until the caller has set the abort words and calls [`Status::goes_on`]: otherwise a rank whose
    /// deadline passes in between would take this rank for the late one.
    pub(crate) fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError> {
        // This does not continue a wait that a caller left published: a suspicion holds for one wait only.
        self.status.goes_on();
        let heard = self.look_for(ticket, deadline);
        if !matches!(heard, Err(TransportError::NotMet { .. })) {
            self.status.goes_on();
        }
        if let (Ok(card), false) = (&heard, ticket.is_answer()) {
            self.pairings.name(ticket, &first_line(card));
        }
        heard
    }

    /// Publishes that this rank waits for a ticket's peer, and that it looked for the card after it read `probe`.
    fn waits_for(&self, ticket: &Ticket, probe: u64) {
        let doing = self.describe(ticket.peer, ticket.operation()).unwrap_or_else(|| ticket.to_string());
        self.status.waits(Kind::Meeting, &[ticket.peer.index()], &doing, probe);
        if let Some(verdict) = self.status.judge() {
            self.status.tell_all(&verdict);
        }
    }

    fn look_for(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError> {
        // The store knows nothing about this transport, so the abort word is checked between two looks at the store.
        const LOOK: Duration = Duration::from_millis(20);
        let (key, start) = (ticket.theirs(&self.name), Instant::now());
        // How long a machine with more ranks than processors may keep the store from answering. It is no longer than
        // that, because aborts and departures are seen only between two looks.
        const PATIENCE: Duration = Duration::from_secs(10);
        let patience = deadline.map_or(PATIENCE, |deadline| deadline.min(PATIENCE));
        // How long the last look may take once the transport is broken.
        const MOMENT: Duration = Duration::from_secs(1);
        loop {
            // Checked before the look: whatever the peer told, it told before it failed or left. The reason why a rank
            // gave up may be in its card, and then this rank finds the same. A launch will see that the transport is
            // broken.
            let broken = self.check().err();
            // Relaxed: the flag guards no other data.
            let broken = match broken {
                Some(broken) if self.silent.load(Ordering::Relaxed) => return Err(broken),
                broken => broken,
            };
            let gone = self.departures.has_left(ticket.peer.index());
            let probe = self.status.probe();
            let left = deadline.map_or(LOOK, |deadline| deadline.saturating_sub(start.elapsed()).min(LOOK));
            let (left, patience) =
                if broken.is_some() { (Duration::ZERO, patience.min(MOMENT)) } else { (left, patience) };
            match (self.world.look(&key, Deadline::after(left), Deadline::after(patience)), broken) {
                (Ok(card), _) => return Ok(card),
                // The store did answer, but only about one peer.
                (Err(BootstrapError::KeyNotSet { .. } | BootstrapError::PeerGone { .. }), Some(broken)) => {
                    return Err(broken);
                }
                (Err(_), Some(broken)) => {
                    self.silent.store(true, Ordering::Relaxed);
                    return Err(broken);
                }
                (Err(BootstrapError::KeyNotSet { .. }), None) if gone => {
                    self.check()?;
                    let cause = Cause { code: AbortCode::Left, rank: ticket.peer.index(), reason: 0 };
                    return Err(TransportError::Broken { cause });
                }
                (Err(BootstrapError::KeyNotSet { .. }), None) if deadline.is_none_or(|all| start.elapsed() < all) => {
                    self.waits_for(ticket, probe);
                }
                (Err(BootstrapError::KeyNotSet { .. }), None) => {
                    // Look for the late rank before any rank is told and continues. A rank that gave up withdraws its
                    // line only after it has set the abort words. So if its line (acquire) is gone, the cause is there.
                    let late = Rank::new(self.status.late(ticket.peer.index()) as u32);
                    self.check()?;
                    return Err(TransportError::NotMet { ticket: *ticket, late, after: start.elapsed() });
                }
                (Err(error), None) => {
                    // The abort word explains best why a wait will never be satisfied.
                    self.check()?;
                    return Err(self.lost(error.into()));
                }
            }
        }
    }

    /// The first step of a collective close: returns when all ranks have come to it. `watch` tells other domains of it,
    /// if there are any.
    pub(crate) fn closed(&self, watch: &Watch) -> Result<(), TransportError> {
        self.check()?;
        self.status.closes();
        watch.closes();
        let (deadline, start) = (self.world.deadline(), Instant::now());
        let not_closed = |ranks: Vec<usize>| {
            let (rank, after) = (self.world.rank(), start.elapsed());
            TransportError::NotClosed { rank, ranks, after }
        };
        let open = self.wait_closing(deadline)?;
        if !open.is_empty() {
            return Err(not_closed(open));
        }
        watch.all_close(deadline);
        let closed = self.world.barrier(&format!("{}/closed", self.name), deadline);
        // The abort word explains best why a wait will never be satisfied. The barrier only knows that some rank is
        // gone.
        self.check()?;
        closed.map_err(|error| match self.lost(error) {
            TransportError::Bootstrap(BootstrapError::Timeout { late, absent, .. }) => {
                not_closed(late.iter().chain(&absent).map(|rank| rank.index()).collect())
            }
            error => error,
        })
    }

    /// What to tell the others when this rank gives up: the first cause known here, or else its own.
    pub(crate) fn first(&self, cause: Cause) -> Cause {
        self.broken().or_else(|| self.death()).unwrap_or(cause)
    }

    /// A death that the store reported and the monitor may not have seen yet. A death after a goodbye does not count.
    fn death(&self) -> Option<Cause> {
        let lost = self.world.lost().filter(|rank| !self.departures.has_left(rank.index()));
        lost.map(|rank| Cause { code: AbortCode::Died, rank: rank.index(), reason: 0 })
    }

    /// The store may hear of a death before this rank's monitor. That is then the cause, for this rank and all it
    /// tells.
    fn lost(&self, error: TransportError) -> TransportError {
        match error {
            // A death after a goodbye does not count.
            TransportError::Bootstrap(BootstrapError::PeerGone { peer, departure: Departure::Lost, .. })
                if !self.departures.has_left(peer.index()) =>
            {
                let died = Cause { code: AbortCode::Died, rank: peer.index(), reason: 0 };
                self.abort.set(died);
                TransportError::Broken { cause: self.broken().unwrap_or(died) }
            }
            error => error,
        }
    }
}

impl Drop for Desk {
    /// After this, the transport's monitor says goodbye. It first tells the others of the cause, if there is one:
    /// otherwise they could take the goodbye for the cause.
    fn drop(&mut self) {
        strike(&self.status);
        if let Some(died) = self.death() {
            self.abort.set(died);
        }
        if self.broken().is_some() {
            self.world.note_failure();
        }
    }
}

fn first_line(card: &[u8]) -> String {
    String::from_utf8_lossy(card.split(|&byte| byte == b'\n').next().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::bootstrap::{Bootstrap, LocalBootstrap, Operation};
    use super::super::meeting::Meeting;
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    /// Ambiguous, and so a compile error here, for a type that can move to another thread.
    trait Stays<How> {
        fn stays() {}
    }
    impl<T> Stays<()> for T {}
    impl<T: Send> Stays<u8> for T {}
    const _: fn() = <Desk as Stays<_>>::stays;

    /// A store that never answers a look, or always answers that nothing is there.
    struct Mute {
        inner: LocalBootstrap,
        answers: bool,
        looks: AtomicUsize,
    }

    impl Bootstrap for Mute {
        fn rank(&self) -> Rank {
            self.inner.rank()
        }

        fn world_size(&self) -> usize {
            self.inner.world_size()
        }

        fn set(&self, key: &str, value: &[u8], deadline: Deadline) -> Result<(), BootstrapError> {
            self.inner.set(key, value, deadline)
        }

        fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
            self.inner.get(key, deadline)
        }

        fn take(&self, key: &str, _: Deadline) -> Result<Vec<u8>, BootstrapError> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            let (rank, waited, name) = (self.rank(), Duration::ZERO, key.to_string());
            Err(if self.answers {
                BootstrapError::KeyNotSet { rank, key: name, absent: Vec::new(), waited }
            } else {
                let address = "nowhere".to_string();
                BootstrapError::StoreSilent { address, host: None, operation: Operation::Take, name, waited }
            })
        }

        fn barrier(&self, name: &str, deadline: Deadline) -> Result<(), BootstrapError> {
            self.inner.barrier(name, deadline)
        }

        fn all_gather(&self, name: &str, value: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>, BootstrapError> {
            self.inner.all_gather(name, value, deadline)
        }

        fn abort(&self, reason: &str) {
            self.inner.abort(reason);
        }
    }

    #[test]
    fn a_store_that_does_not_answer_is_asked_once_on_a_broken_transport() {
        for (answers, expected) in [(true, 2), (false, 1)] {
            let inner = LocalBootstrap::world(3).remove(0);
            let store = Arc::new(Mute { inner, answers, looks: AtomicUsize::new(0) });
            let world = Shared::alone(store.clone(), Arc::new(Meeting::of(3)), None);
            let segments = SegmentSet::threads(3, 0).unwrap().remove(0);
            let desk = Desk::new(world, "test".to_string(), &segments, Departures::new(3));
            desk.abort.set(Cause { code: AbortCode::Failed, rank: 1, reason: 0 });
            for peer in [1, 2].map(Rank::new) {
                let heard = desk.hear(&desk.ticket(Pairing::Together, peer), None);
                assert!(matches!(heard, Err(TransportError::Broken { .. })), "{heard:?}");
            }
            assert_eq!(store.looks.load(Ordering::Relaxed), expected);
        }
    }
}
