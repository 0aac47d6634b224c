//! Tests of collectives over carriers that fail, refuse or stop: every rank gets a typed error that names the peer, and
//! none hangs.

use super::error::RunError;
use super::reductions::all_reduce;
use crate::link::{MeshTransport, ShmOptions};
use crate::tensor::{Memory, Tensor};
use crate::transport::proxy::{Carrier, Event, LoopCarrier, ProxyError, Write};
use crate::transport::{Cause, Rank, TransportError, World};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The fault of rank 1's carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Writes fail.
    Fails,
    /// Polls fail, and the carrier does not know the peer.
    FailsToPoll,
    /// Writes are not taken any more.
    Refuses,
    /// Writes are taken and never confirmed.
    Forgets,
    /// The proxy stops inside the carrier, for longer than the deadline.
    Stops,
}

/// A carrier that shows its fault after some writes.
struct Faulty {
    inner: LoopCarrier,
    fault: Fault,
    writes: usize,
}

const DEADLINE: Duration = Duration::from_millis(400);

impl Fault {
    /// A failure ends all waits by itself, however busy the machine is.
    fn deadline(self) -> Duration {
        if matches!(self, Fault::Fails | Fault::FailsToPoll) { Duration::from_secs(60) } else { DEADLINE }
    }
}

const SICK: Rank = Rank::new(1);

impl Carrier for Faulty {
    fn open(&mut self, region: u16, memory: &Memory, senders: &[usize]) -> Result<(), ProxyError> {
        self.inner.open(region, memory, senders)
    }

    fn close(&mut self, region: u16) {
        self.inner.close(region);
    }

    fn place(&self, region: u16) -> Vec<u8> {
        self.inner.place(region)
    }

    fn reach(&mut self, peer: usize, region: u16, place: &[u8]) -> Result<(), ProxyError> {
        self.inner.reach(peer, region, place)
    }

    fn reads(&self, memory: &Memory) -> bool {
        self.inner.reads(memory)
    }

    fn lend(&mut self, memory: &Memory) -> Result<(), ProxyError> {
        self.inner.lend(memory)
    }

    fn give_back(&mut self, memory: &Memory) {
        self.inner.give_back(memory);
    }

    fn write(&mut self, write: &Write<'_>) -> Result<bool, ProxyError> {
        if self.writes > 0 {
            self.writes -= 1;
            return self.inner.write(write);
        }
        match self.fault {
            Fault::Fails => Err(ProxyError::Carrier { peer: Some(write.peer), what: "the cable is out".to_string() }),
            Fault::Refuses => Ok(false),
            Fault::Forgets => Ok(true),
            Fault::FailsToPoll | Fault::Stops => self.inner.write(write),
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), ProxyError> {
        match (self.fault, self.writes) {
            (Fault::FailsToPoll, 0) => {
                return Err(ProxyError::Carrier { peer: None, what: "the adapter is gone".to_string() });
            }
            (Fault::Stops, 0) => {
                self.fault = Fault::FailsToPoll;
                self.writes = usize::MAX;
                std::thread::sleep(4 * DEADLINE);
            }
            _ => {}
        }
        self.inner.poll(events)
    }
}

/// The error that each of three ranks gets, if any.
fn errors(fault: Fault, writes: usize) -> Vec<Option<RunError>> {
    let errors = Mutex::new(vec![None, None, None]);
    let ran = World::threads(3).deadline(fault.deadline()).run(|world| {
        let wrap = |inner| -> Box<dyn Carrier> {
            if world.rank() == SICK { Box::new(Faulty { inner, fault, writes }) } else { Box::new(inner) }
        };
        let sizes = ShmOptions { per_peer_bytes: Some(64 << 10), ..ShmOptions::default() };
        let link = MeshTransport::over_carriers(&world, sizes, wrap)?;
        let (inp, out) = (Tensor::<f32>::zeros(9000), Tensor::<f32>::zeros(9000));
        // The launches make more writes than the carrier takes. A rank that is slow to build gets the error there.
        let error = match all_reduce(&link, &out, &inp).build() {
            Ok(mut sum) => (0..100).find_map(|_| sum.run().err()),
            Err(error) => Some(error),
        };
        errors.lock().unwrap()[world.rank().index()] = error;
        // No rank leaves before all have their errors, because leaving would be a cause of its own.
        world.bootstrap().barrier("all have theirs", Duration::from_secs(60).into())?;
        Ok(())
    });
    ran.unwrap();
    errors.into_inner().unwrap()
}

fn of_proxy(error: &RunError) -> Option<&ProxyError> {
    let RunError::Transport(error) = error else { return None };
    if let TransportError::Proxy(error) = &**error { Some(error) } else { None }
}

/// The ranks that a typed error names.
fn named(error: &RunError) -> Vec<usize> {
    let of_cause = |cause: &Cause| [Some(cause.rank), cause.late()].into_iter().flatten().collect();
    match (error, of_proxy(error)) {
        (RunError::PeerFailed { cause, .. }, _) => of_cause(cause),
        (RunError::Timeout(timeout), _) => timeout.late.into_iter().map(Rank::index).collect(),
        (_, Some(ProxyError::Carrier { peer, .. })) => peer.iter().copied().collect(),
        (_, Some(ProxyError::Late { peer, .. })) => vec![*peer],
        (other, _) if other.to_string().contains("rank 1 gave up after an error") => vec![SICK.index()],
        (other, _) => panic!("{other}"),
    }
}

/// Checks that ranks 0 and 2 name rank 1. Returns the error of rank 1 itself.
#[track_caller]
fn others_name_the_sick_rank(fault: Fault, writes: usize) -> RunError {
    let start = Instant::now();
    let [first, sick, last] = <[_; 3]>::try_from(errors(fault, writes)).unwrap();
    assert!(start.elapsed() < Duration::from_secs(60), "{fault:?}, {writes} writes");
    for error in [first, last] {
        let error = error.unwrap_or_else(|| panic!("{fault:?}, {writes} writes: a rank ran all launches"));
        assert!(named(&error).contains(&SICK.index()), "{fault:?}, {writes} writes: {error}");
    }
    sick.unwrap_or_else(|| panic!("{fault:?}, {writes} writes: rank 1 ran all launches"))
}

#[test]
fn a_carrier_that_fails_is_told_to_all_ranks_with_the_peer() {
    for writes in [0, 1, 2, 7, 60, 200] {
        let sick = others_name_the_sick_rank(Fault::Fails, writes);
        // The failure may have happened anywhere: in a launch, before one, or during a build. Any rank may have
        // reported it first.
        let Some(ProxyError::Carrier { peer: Some(0 | 2), what }) = of_proxy(&sick) else { panic!("{sick}") };
        assert_eq!(what, "the cable is out");
        let sick = others_name_the_sick_rank(Fault::FailsToPoll, writes);
        let Some(ProxyError::Carrier { peer: None, what }) = of_proxy(&sick) else { panic!("{sick}") };
        assert_eq!(what, "the adapter is gone");
    }
}

#[test]
fn posts_that_a_carrier_keeps_beyond_the_deadline_are_told_to_all_ranks_with_a_peer() {
    for (fault, writes) in [(Fault::Refuses, 0), (Fault::Refuses, 5), (Fault::Forgets, 0), (Fault::Forgets, 40)] {
        let sick = others_name_the_sick_rank(fault, writes);
        // Rank 1 names the peer that its posts do not reach, or the rank that gave up because of them.
        assert!(!named(&sick).is_empty(), "{fault:?}, {writes} writes: {sick}");
    }
}

#[test]
fn a_proxy_that_stops_for_longer_than_the_deadline_is_named_by_all_ranks() {
    for writes in [0, 9] {
        let sick = others_name_the_sick_rank(Fault::Stops, writes);
        assert!(named(&sick).iter().any(|&rank| rank != SICK.index()), "it hears who gave up waiting for it: {sick}");
    }
}
