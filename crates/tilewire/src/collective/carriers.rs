//! Tests of collectives over carriers that fail, refuse or stop: every rank gets a typed error that names the peer, and
//! none hangs.

use super::error::RunError;
use super::launch::Launch;
use super::reductions::all_reduce;
use crate::hook::kernel;
use crate::link::{MeshOptions, MeshTransport, ShmOptions, Transport};
use crate::tensor::{Memory, Queue, Tensor, bytes_of};
use crate::transport::proxy::{Carrier, Event, LoopCarrier, NO_THREADS, ProxyError, Write};
use crate::transport::{Cause, Rank, There, TransportError, World};
use crate::vm::Prepared;
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

    fn unconfirmed(&mut self, peer: usize) -> Result<usize, ProxyError> {
        self.inner.unconfirmed(peer)
    }

    fn flush_arrivals(&mut self) -> Result<(), ProxyError> {
        self.inner.flush_arrivals()
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
fn errors(fault: Fault, writes: usize, ring: usize) -> Vec<Option<RunError>> {
    let errors = Mutex::new(vec![None, None, None]);
    let ran = World::threads(3).deadline(fault.deadline()).run(|world| {
        let wrap = |inner| -> Box<dyn Carrier> {
            if world.rank() == SICK { Box::new(Faulty { inner, fault, writes }) } else { Box::new(inner) }
        };
        let sizes = ShmOptions { per_peer_bytes: Some(64 << 10), ..ShmOptions::default() };
        let link = MeshTransport::over_carriers(&world, sizes, ring, wrap)?;
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
    others_name_it_over_a_ring(fault, writes, 1024)
}

#[track_caller]
fn others_name_it_over_a_ring(fault: Fault, writes: usize, ring: usize) -> RunError {
    let start = Instant::now();
    let [first, sick, last] = <[_; 3]>::try_from(errors(fault, writes, ring)).unwrap();
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

/// The proxy's thread may find the failure before the rank makes its first call.
#[test]
fn a_rank_whose_proxy_has_stopped_before_its_first_call_gets_the_cause() {
    let ran = World::threads(2).run(|world| {
        let wrap = |inner| -> Box<dyn Carrier> { Box::new(Faulty { inner, fault: Fault::FailsToPoll, writes: 0 }) };
        let link = MeshTransport::over_carriers(&world, ShmOptions::default(), 16, wrap)?;
        let start = Instant::now();
        while link.broken().is_none() {
            assert!(start.elapsed() < Duration::from_secs(30), "nobody polls");
            std::thread::yield_now();
        }
        let (inp, out) = (Tensor::<f32>::zeros(100), Tensor::<f32>::zeros(100));
        let error = match all_reduce(&link, &out, &inp).build() {
            Ok(mut sum) => sum.run().unwrap_err(),
            Err(error) => error,
        };
        // Both ranks have such a carrier. Whichever told the other first has the error of its own proxy.
        let cause = link.broken().expect("as before");
        let is_own = matches!(of_proxy(&error), Some(ProxyError::Carrier { peer: None, .. }));
        assert_eq!(is_own, cause.rank == world.rank().index(), "{cause}: {error}");
        world.bootstrap().barrier("all have theirs", Duration::from_secs(60).into())?;
        Ok(())
    });
    ran.unwrap();
}

#[test]
fn posts_that_a_carrier_keeps_beyond_the_deadline_are_told_to_all_ranks_with_a_peer() {
    for (fault, writes) in [(Fault::Refuses, 0), (Fault::Refuses, 5), (Fault::Forgets, 0), (Fault::Forgets, 40)] {
        let sick = others_name_the_sick_rank(fault, writes);
        // Rank 1 names the peer that its posts do not reach, or the rank that gave up because of them.
        assert!(!named(&sick).is_empty(), "{fault:?}, {writes} writes: {sick}");
    }
}

/// A ring of one entry is full most of the time, so kernels wait for room.
#[test]
fn faults_are_told_likewise_where_kernels_wait_for_room_in_a_ring() {
    for (fault, writes) in [(Fault::Fails, 7), (Fault::Refuses, 0), (Fault::Refuses, 5), (Fault::Forgets, 40)] {
        let sick = others_name_it_over_a_ring(fault, writes, 1);
        assert!(fault == Fault::Fails || !named(&sick).is_empty(), "{fault:?}, {writes} writes: {sick}");
    }
}

/// A rank posts more than its ring and its proxy hold to a peer that its carrier does not reach.
#[test]
fn a_wait_for_room_in_the_ring_names_the_peer_that_keeps_it_full() {
    for ring in [1, 64] {
        let error = Mutex::new(None);
        let ran = World::threads(3).deadline(DEADLINE).run(|world| {
            let wrap = |inner| -> Box<dyn Carrier> { Box::new(Faulty { inner, fault: Fault::Refuses, writes: 0 }) };
            let link = MeshTransport::over_carriers(&world, ShmOptions::default(), ring, wrap)?;
            if world.rank() == SICK {
                let (queue, line) = posts_to(&link, Rank::new(2));
                let traced = kernel("many posts", |k| {
                    let queue = k.queue("posts", queue.clone());
                    // One after the other: the proxy holds 1024 of them.
                    k.main(|r| r.for_step(0i64, 1200i64, 1i64, |i| r.post_credit(queue, 2, line, i + 1i64)));
                });
                *error.lock().unwrap() = Launch::new(&link, &traced.unwrap())?.run().err();
            }
            world.bootstrap().barrier("it has its error", Duration::from_secs(60).into())?;
            Ok(())
        });
        ran.unwrap();
        let error = error.into_inner().unwrap().expect("nothing is delivered");
        let RunError::Timeout(timeout) = &error else { panic!("{error}") };
        assert_eq!((timeout.peer, timeout.late), (Some(Rank::new(2)), Some(Rank::new(2))), "{error}");
        assert!(error.to_string().contains("for rank 2") && error.to_string().contains("room in the queue"), "{error}");
    }
}

/// The queue of posts to a peer, and a control line of the peer that this rank's credits move.
fn posts_to(link: &MeshTransport, peer: Rank) -> (Queue, i64) {
    let There::Posted(posted) = link.endpoint(peer).unwrap().there else { panic!("rank {peer} is reached by posts") };
    (posted.queue.clone(), posted.lines.head as i64)
}

/// A rank whose proxy cannot have a thread fails, and no other rank goes on without it.
#[test]
fn a_rank_that_cannot_drive_its_proxy_is_named_by_all_ranks() {
    let errors = Mutex::new(Vec::new());
    let ran = World::threads(3).run(|world| {
        NO_THREADS.set(world.rank() == SICK);
        let made = MeshTransport::rendezvous(&world, MeshOptions::alone(3));
        let error = made.err().map(|error| error.to_string()).unwrap_or_default();
        errors.lock().unwrap().push((world.rank(), error));
        world.bootstrap().barrier("all have theirs", Duration::from_secs(60).into())?;
        Ok(())
    });
    ran.unwrap();
    for (rank, error) in errors.into_inner().unwrap() {
        assert!(error.contains("no more threads"), "rank {rank}: {error}");
        assert!(rank == SICK || error.contains("rank 1"), "rank {rank}: {error}");
    }
}

/// A kernel that posts, without the waits that would drive the proxy: it stands for one that then computes for long.
#[test]
fn what_a_rank_posts_leaves_although_it_does_not_wait() {
    World::threads(2)
        .run(|world| {
            let link = MeshTransport::rendezvous(&world, MeshOptions::alone(2))?;
            if world.rank() == Rank::new(0) {
                let (queue, line) = posts_to(&link, SICK);
                let traced = kernel("posts and computes", |k| {
                    let queue = k.queue("posts", queue.clone());
                    k.main(|r| r.post_credit(queue, 1, line, 1i64));
                });
                let traced = traced.unwrap();
                Prepared::new(&traced.kernel, &traced.args).unwrap().run().unwrap();
            } else {
                let (start, head) = (Instant::now(), link.endpoint(Rank::new(0)).unwrap().here.signals.head);
                while bytes_of(&head).unwrap()[0] != 1 {
                    assert!(start.elapsed() < Duration::from_secs(30), "rank 0 keeps its posts");
                    std::thread::yield_now();
                }
            }
            Ok(link.close()?)
        })
        .unwrap();
}

#[test]
fn a_proxy_that_stops_for_longer_than_the_deadline_is_named_by_all_ranks() {
    for writes in [0, 9] {
        let sick = others_name_the_sick_rank(Fault::Stops, writes);
        assert!(named(&sick).iter().any(|&rank| rank != SICK.index()), "it hears who gave up waiting for it: {sick}");
    }
}
