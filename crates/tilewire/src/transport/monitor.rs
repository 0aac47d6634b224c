//! The monitor: notices that a peer's process is gone, and ends the waits of all ranks.
//!
//! One thread per set of segments holds a control socket to every other rank of its domain. (Of ranks of other domains
//! it knows nothing, and says nothing: [`herald`](super::herald) does.) The kernel closes a process's sockets
//! however it ends, SIGKILL included; an end without a goodbye is a death. Every rank has its own monitor. A rank that
//! hears of a death tells all ranks. So does a rank that leaves because of any failure, before it says goodbye:
//! otherwise its leaving could be heard before the failure.
//!
//! ```text
//!  a rank says          when                            its peers' monitors
//!  Goodbye              it closes, or is dropped        note that it has left: a wait for it is in vain from now on
//!  Panicked             it is dropped by a panic        set the abort words of all ranks, ring their doorbells
//!  (end of file)        its process ended               after a Goodbye nothing, else as above
//! ```
//!
//! Whether a rank can still touch memory of others is another question: launches that have failed ask it
//! ([`loans`](super::loans)). It cannot when the system says that its process has ended, or when a panic has dropped
//! its transport.
//!
//! If waiting on the sockets fails again and again, the rank can no longer see its peers. It then sets its own abort
//! word, and the monitor ends: better no waits than waits that nothing ends.
//!
//! A process that was forked but has not called exec keeps its parent's sockets open: while such a child lives, its
//! parent's death is not seen. (Exec closes them.)

use super::abort::{Abort, AbortCode, Cause};
use super::departures::Departures;
use super::error::{SegmentError, those};
use super::segment::ControlSockets;
use super::socket::{self, Heard, Process};
use super::threads::start_thread;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const GOODBYE: &[u8] = b"TWGOODBY";
const PANICKED: &[u8] = b"TWPANICK";

/// Consecutive failed waits after which the monitor gives up. A wait that failed for lack of memory may soon succeed.
const FAILURES: u32 = 100;
/// The pause after each.
const REST: Duration = Duration::from_millis(10);

/// Watches the other ranks for as long as it lives.
///
/// Dropping it says goodbye and waits for nobody. If a panic drops it, it tells the peers of the panic.
#[derive(Debug)]
pub struct Monitor {
    watch: Arc<Watch>,
    /// Its other end belongs to the thread; closing it ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Starts watching. `aborts` are the abort words of all ranks.
    ///
    /// # Panics
    /// If there is not one abort word for every rank, or there are no sockets: ranks are threads, or the sockets were
    /// already taken.
    pub fn start(control: ControlSockets, aborts: Vec<Abort>) -> Result<Monitor, SegmentError> {
        assert_eq!(aborts.len(), control.sockets.len(), "one abort word for every rank, and sockets to all others");
        let ControlSockets { rank, sockets } = control;
        assert!(sockets.get(rank).is_some_and(Option::is_none), "the sockets were taken, or ranks are threads");
        let state = |(other, socket): (usize, &Option<OwnedFd>)| match socket {
            Some(_) => Peer::Here,
            None if other == rank => Peer::Left,
            None => Peer::Elsewhere,
        };
        let peers = sockets.iter().enumerate().map(state).collect();
        let (departures, peers) = (Departures::new(sockets.len()), Mutex::new(peers));
        let watch = Arc::new(Watch { rank, sockets, aborts, peers, departures, change: Condvar::new() });
        if watch.sockets.iter().all(Option::is_none) {
            return Ok(Monitor { watch, stop: None, thread: None });
        }
        let (stop, stopped) = socket::pair().map_err(SegmentError::system("socketpair"))?;
        let seen = watch.clone();
        let thread = std::thread::Builder::new().name("tilewire-monitor".to_string());
        let thread =
            start_thread(thread, move || seen.run(&stopped)).map_err(SegmentError::system("starting a thread"))?;
        Ok(Monitor { watch, stop: Some(stop), thread: Some(thread) })
    }

    /// True if a rank has said goodbye: it will signal no more.
    pub fn has_left(&self, rank: usize) -> bool {
        self.watch.peers().get(rank) == Some(&Peer::Left)
    }

    /// The ranks that have left, for waits to check.
    pub fn departures(&self) -> Departures {
        self.watch.departures.clone()
    }

    /// Says goodbye to all ranks of the domain and waits until all have done the same. A collective call: when it
    /// returns `Ok`, none of them will touch another's segment again.
    pub fn goodbye(self, deadline: Duration) -> Result<(), GoodbyeError> {
        self.say(GOODBYE);
        let until = Instant::now().checked_add(deadline);
        let mut peers = self.watch.peers();
        loop {
            let of = |state| peers.iter().enumerate().filter(move |(_, p)| **p == state).map(|(rank, _)| rank);
            if let Some(rank) = of(Peer::Dead).next() {
                return Err(GoodbyeError::Died { rank });
            }
            let unseen: Vec<usize> = of(Peer::Unseen).collect();
            if !unseen.is_empty() {
                return Err(GoodbyeError::Unseen { ranks: unseen });
            }
            let missing: Vec<usize> = of(Peer::Here).collect();
            if missing.is_empty() {
                return Ok(());
            }
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(GoodbyeError::Missing { ranks: missing, after: deadline });
            }
            peers = self.watch.change.wait_timeout(peers, left).expect("the monitor does not panic").0;
        }
    }

    fn say(&self, what: &[u8]) {
        if let Some(cause) = self.watch.own().get() {
            self.watch.tell(cause);
        }
        for socket in self.watch.sockets.iter().flatten() {
            // A rank that is gone needs no goodbye, and a few bytes do not fill a socket's queue.
            let _ = socket::send(socket.as_fd(), what, None);
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // A second goodbye does no harm.
        self.say(if std::thread::panicking() { PANICKED } else { GOODBYE });
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Why a goodbye was incomplete.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GoodbyeError {
    /// A rank died, or panicked, before it said goodbye.
    Died {
        /// That rank.
        rank: usize,
    },
    /// This rank cannot see whether some ranks say goodbye; see [`AbortCode::Blind`].
    Unseen {
        /// Those ranks.
        ranks: Vec<usize>,
    },
    /// Some ranks did not say goodbye within the deadline.
    Missing {
        /// Those ranks.
        ranks: Vec<usize>,
        /// The deadline.
        after: Duration,
    },
}

errors! {
    enum GoodbyeError {
        Died { rank } => "rank {rank} died before it closed",
        Unseen { ranks } => (
            "this rank cannot see whether {} closed: waiting for them (poll) fails",
            those(ranks, "has", "have")
        ),
        Missing { ranks, after } => (
            "{} not close within {after:?}: closing is collective, call it on every rank",
            those(ranks, "did", "did")
        ),
    }
}

/// What the thread and the handle share.
#[derive(Debug)]
struct Watch {
    /// This rank.
    rank: usize,
    sockets: Vec<Option<OwnedFd>>,
    /// By rank.
    aborts: Vec<Abort>,
    /// By rank.
    peers: Mutex<Vec<Peer>>,
    departures: Departures,
    /// Signalled when a peer's state has changed.
    change: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Here,
    /// It said goodbye (or is this rank itself).
    Left,
    Dead,
    /// It was here when the monitor gave up.
    Unseen,
    /// It is in another domain. It never counts as having left, and no goodbye of it is waited for.
    Elsewhere,
}

impl Watch {
    fn run(&self, stopped: &OwnedFd) {
        let mut failures = 0;
        // Ranks that have closed their sockets, and whose processes still run.
        let mut ending: Vec<(usize, OwnedFd)> = Vec::new();
        loop {
            let (mut here, mut ended) = (Vec::new(), Vec::new());
            for (rank, socket) in self.sockets.iter().enumerate() {
                let Some(socket) = socket.as_ref().filter(|_| self.peers()[rank] == Peer::Here) else { continue };
                match hear(socket) {
                    Some(end) => ended.push((rank, end)),
                    None => here.push(socket.as_fd()),
                }
            }
            // Failures come first, because they may be the reason for the goodbyes of others.
            ended.sort_by_key(|(_, end)| *end == End::Goodbye);
            for (rank, end) in ended {
                self.note(rank, end);
                let socket = self.sockets[rank].as_ref().filter(|_| end == End::Closed);
                match socket.map(|socket| socket::process_of(socket.as_fd())) {
                    Some(Process::Ended) => self.departures.note_death(rank),
                    Some(Process::Runs(process)) => ending.push((rank, process)),
                    Some(Process::Unknown) | None => {}
                }
            }
            ending.retain(|(rank, process)| {
                let has_ended = socket::has_ended(process.as_fd());
                if has_ended {
                    self.departures.note_death(*rank);
                }
                !has_ended
            });
            let processes = ending.iter().map(|(_, process)| process.as_fd());
            let sockets = here.into_iter().chain(processes).chain([stopped.as_fd()]);
            match socket::wait(sockets, None) {
                Ok(()) => failures = 0,
                Err(error) if failures == FAILURES => return self.give_up(&error),
                Err(_) => {
                    failures += 1;
                    std::thread::sleep(REST);
                }
            }
            if matches!(socket::receive(stopped.as_fd(), &mut [0], false), Ok(Heard::End)) {
                return;
            }
        }
    }

    /// Ends this rank's waits, with the system's error number as the reason.
    fn give_up(&self, error: &io::Error) {
        let reason = error.raw_os_error().map_or(0, i32::unsigned_abs);
        self.own().set(Cause { code: AbortCode::Blind, rank: self.rank, reason });
        self.peers().iter_mut().filter(|peer| **peer == Peer::Here).for_each(|peer| *peer = Peer::Unseen);
        self.change.notify_all();
    }

    /// Acts on a peer's end.
    fn note(&self, rank: usize, end: End) {
        match end {
            End::Goodbye => {
                self.departures.note(rank);
                self.own().wake();
            }
            End::Panicked => {
                // A transport is dropped when no launch uses it.
                self.departures.note_death(rank);
                self.tell(Cause { code: AbortCode::Panicked, rank, reason: 0 });
            }
            // The process may still run, and a launch with it.
            End::Closed | End::Unclear => self.tell(Cause { code: AbortCode::Died, rank, reason: 0 }),
        }
        self.peers()[rank] = if end == End::Goodbye { Peer::Left } else { Peer::Dead };
        self.change.notify_all();
    }

    /// Ends the waits of all ranks, this rank's last: when it acts on the cause, all have it.
    fn tell(&self, cause: Cause) {
        let others = self.aborts.iter().enumerate().filter(|&(rank, _)| rank != self.rank);
        others.for_each(|(_, abort)| _ = abort.set(cause));
        self.own().set(cause);
    }

    /// The abort word of this rank.
    fn own(&self) -> &Abort {
        &self.aborts[self.rank]
    }

    fn peers(&self) -> MutexGuard<'_, Vec<Peer>> {
        self.peers.lock().expect("nobody panics with the lock")
    }
}

/// How a peer ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Goodbye,
    /// A panic dropped its transport.
    Panicked,
    /// End of file.
    Closed,
    /// An error of the system, or words that this version does not say.
    Unclear,
}

/// What a peer says, if anything.
fn hear(socket: &OwnedFd) -> Option<End> {
    let mut buffer = [0; 16];
    match socket::receive(socket.as_fd(), &mut buffer, false) {
        Ok(Heard::Nothing) => None,
        Ok(Heard::Packet(len, _)) if &buffer[..len] == GOODBYE => Some(End::Goodbye),
        Ok(Heard::Packet(len, _)) if &buffer[..len] == PANICKED => Some(End::Panicked),
        Ok(Heard::End) => Some(End::Closed),
        // Treated as a death, but for what the rank may still do.
        Ok(Heard::Packet(..)) | Err(_) => Some(End::Unclear),
    }
}

#[cfg(test)]
mod tests {
    use super::super::segment::SegmentSet;
    use super::*;

    /// What a monitor makes of a peer that says this and closes its socket, while its process goes on.
    fn seen(words: &[u8]) -> (Option<AbortCode>, bool) {
        let ranks = SegmentSet::threads(2, 0).unwrap();
        let (ours, theirs) = socket::pair().unwrap();
        let control = ControlSockets { rank: 0, sockets: vec![None, Some(ours)] };
        let monitor = Monitor::start(control, ranks[0].aborts()).unwrap();
        let (departures, start) = (monitor.departures(), Instant::now());
        if !words.is_empty() {
            assert!(socket::send(theirs.as_fd(), words, None).unwrap());
        }
        drop(theirs);
        while monitor.watch.peers()[1] == Peer::Here {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
        // Its thread has ended.
        drop(monitor);
        (ranks[0].abort(0).get().map(|cause| cause.code), departures.is_gone(1))
    }

    #[test]
    fn a_peer_is_gone_only_if_it_can_touch_nothing_any_more() {
        assert_eq!(seen(GOODBYE), (None, true));
        assert_eq!(seen(PANICKED), (Some(AbortCode::Panicked), true));
        // This process is the peer's, and it goes on.
        assert_eq!(seen(b""), (Some(AbortCode::Died), false));
        assert_eq!(seen(b"other words"), (Some(AbortCode::Died), false));
    }
}
