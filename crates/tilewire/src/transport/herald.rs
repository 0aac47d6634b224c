//! Tells ranks of other domains how this rank ended, and learns how they ended.
//!
//! Within a domain, shared memory and control sockets carry this news ([`abort`](super::abort),
//! [`monitor`](super::monitor)). Between domains there is only the bootstrap. There the ranks of one transport keep a
//! log that all of them read:
//!
//! ```text
//!  any rank: set(log/k) ── taken? k + 1 ──▶ bootstrap store ──▶ every rank: get(log/0), get(log/1), ...
//!
//!  entry     a rank adds it when                         a rank that reads it
//!  Failed    its abort word is set, by any rank          sets the abort words of its domain, rings their bells
//!  Closes    it has called `close` on the transport      writes it into the rank's shadow line
//!  Left      it has dropped the transport unclosed       notes the departure: a wait for the rank is now in vain
//! ```
//! A key is set only once, so the log has one order for all ranks, and the order of a rank's own entries is the order
//! in which it added them. **The first cause counts**: an abort word never changes once it is set. If two domains fail
//! independently, before either has heard of the other, each keeps its own cause. Every further domain gets the cause
//! that comes first in the log.
//!
//! **Deaths.** When a process dies, its connection to the store is closed. The store then refuses every wait, and names
//! the rank. TCP keep-alive notices a host that is cut off (`bootstrap/keepalive.rs`). Deaths within this domain are
//! left to the monitor, which also receives goodbyes. If the store itself is gone, no more news of other domains can
//! arrive. Then the waits of this domain end with [`AbortCode::Cut`], or with the death of the rank that hosts the
//! store.
//!
//! **A slow rank is never taken for a failed one.** No deadline here breaks a transport: a store that does not answer
//! is asked again, and only an entry in the log counts as an event.
//!
//! **What a rank did before an entry is visible after it.** A rank adds `Closes` and `Left` when its launches are over
//! and it has drained its proxy: everything that it posted is confirmed, unless the drain failed. So a reader that
//! polls its carrier after reading the entry finds all of it there.
#![forbid(unsafe_code)]

use super::abort::{Abort, AbortCode, Cause};
use super::bootstrap::{BootstrapError, Departure};
use super::deadline::Deadline;
use super::departures::Departures;
use super::error::SegmentError;
use super::rendezvous::Shared;
use super::segment::SegmentSet;
use super::status::{Status, Verdict};
use super::threads::start_thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long one query to the store lasts. It ends earlier with the answer, or when a rank is lost.
const LISTENS: Duration = Duration::from_secs(1);
/// How long adding one entry may take.
const TELLS: Duration = Duration::from_secs(1);
/// The time between two looks at this rank's abort word. The thread does not sleep on the doorbell, because a sleeper
/// there makes every signal of a near peer a system call.
const LOOKS: Duration = Duration::from_millis(5);
/// The time between two queries to a store that refuses to wait because some rank is gone.
const ASKS_AGAIN: Duration = Duration::from_millis(20);

/// A rank's connection to the ranks of other domains. Its threads run until it is dropped.
pub(super) struct Herald {
    log: Arc<Log>,
    /// The thread that reads the log; `None` once it has been joined.
    hears: Option<JoinHandle<()>>,
    /// The thread that adds this rank's failure to the log; `None` once it has been joined.
    tells: Option<JoinHandle<()>>,
    /// True once all ranks have closed. Then no rank needs to hear that this one leaves.
    is_closed: bool,
}

struct Log {
    world: Shared,
    /// The prefix of the log's keys.
    name: String,
    rank: usize,
    ranks: usize,
    /// For each rank, true if it is in this domain.
    is_near: Vec<bool>,
    aborts: Vec<Abort>,
    status: Status,
    departures: Departures,
    /// The number of entries that this rank has read.
    read: AtomicU64,
    /// True if a cause is in the log.
    has_failed: AtomicBool,
    ends: AtomicBool,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    from: u32,
    news: News,
}

#[derive(Debug, PartialEq, Eq)]
enum News {
    Failed(Cause, Option<Verdict>),
    Closes,
    Left,
}

impl Herald {
    /// Starts the herald of a transport with this name, which is the same on all ranks and was never used before.
    /// Returns `None` if all ranks are in one domain.
    pub(super) fn start(
        world: &Shared,
        name: &str,
        segments: &SegmentSet,
        departures: Departures,
    ) -> Result<Option<Herald>, SegmentError> {
        let is_near: Vec<bool> = (0..segments.world_size()).map(|rank| segments.is_mapped(rank)).collect();
        if is_near.iter().all(|is_near| *is_near) {
            return Ok(None);
        }
        let log = Arc::new(Log {
            world: world.clone(),
            name: format!("{name}/log"),
            rank: segments.rank(),
            ranks: segments.world_size(),
            is_near,
            aborts: segments.aborts(),
            status: Status::of(segments),
            departures,
            read: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            ends: AtomicBool::new(false),
        });
        let mut herald = Herald { log, hears: None, tells: None, is_closed: false };
        let thread = |name: &str, log: &Arc<Log>, run: fn(&Log)| {
            let (thread, log) = (std::thread::Builder::new().name(format!("tilewire-{name}")), log.clone());
            start_thread(thread, move || run(&log)).map_err(SegmentError::system("starting a thread"))
        };
        herald.hears = Some(thread("hears", &herald.log, Log::hear)?);
        herald.tells = Some(thread("tells", &herald.log, Log::watch)?);
        Ok(Some(herald))
    }

    /// Tells the other domains without delay that this rank's abort word was set.
    pub(super) fn fails(&self) {
        if let Some(thread) = &self.tells {
            thread.thread().unpark();
        }
    }

    /// Tells the other domains that this rank has called `close`. The status lines show which other ranks have.
    pub(super) fn closes(&self) {
        // If this fails, the other ranks wait until their deadline, or learn from the store that this rank is gone.
        self.log.tell(News::Closes);
    }

    /// Waits until the log of a transport that all ranks are closing is read to its end. Returns earlier if the
    /// transport fails, a rank leaves, or the deadline passes.
    pub(super) fn reads_to_the_end(&self, deadline: Deadline) {
        let is_reading = || self.hears.as_ref().is_some_and(|thread| !thread.is_finished());
        while is_reading() && self.log.own().get().is_none() && !self.log.departures.any() && !deadline.is_over() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Says that all ranks have closed and none reads the log any more. Rank 0 then removes the log.
    pub(super) fn all_closed(&mut self) {
        self.is_closed = true;
        if self.log.rank == 0 {
            // Without this, a program that keeps making transports would fill the store.
            for at in 0..self.log.read.load(Ordering::Relaxed) {
                let soon = Deadline::after(TELLS);
                _ = self.log.world.look(&self.log.key(at), soon, soon);
            }
        }
    }
}

impl Drop for Herald {
    /// Takes a few seconds at most, if the store does not answer.
    fn drop(&mut self) {
        let log = &self.log;
        log.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.tells.take() {
            thread.thread().unpark();
            _ = thread.join();
        }
        if std::thread::panicking() {
            log.own().set(Cause { code: AbortCode::Panicked, rank: log.rank, reason: 0 });
        }
        if !self.is_closed {
            // The cause is told first, because otherwise other ranks could take the leaving for the cause.
            log.tell_cause();
            // This also ends the question that the reading thread waits in.
            log.tell(News::Left);
        }
        if let Some(thread) = self.hears.take() {
            _ = thread.join();
        }
    }
}

impl Log {
    /// This rank's abort word.
    fn own(&self) -> &Abort {
        &self.aborts[self.rank]
    }

    fn key(&self, at: u64) -> String {
        format!("{}/{at}", self.name)
    }

    /// Adds an entry to the end of the log. Returns false if the store did not take it.
    fn tell(&self, news: News) -> bool {
        let (entry, until) = (Entry { from: self.rank as u32, news }.encode(), Deadline::after(TELLS));
        // Relaxed: an old value only costs some more attempts.
        let mut at = self.read.load(Ordering::Relaxed);
        while !until.is_over() {
            match self.world.set(&self.key(at), &entry, until) {
                Ok(()) => return true,
                Err(BootstrapError::KeyTaken { .. }) => at += 1,
                Err(_) => return false,
            }
        }
        false
    }

    /// Adds the cause that ended this rank's waits, if there is one and the log has none yet.
    fn tell_cause(&self) {
        if let Some(cause) = self.own().get()
            && !self.has_failed.load(Ordering::Relaxed)
        {
            self.has_failed.store(self.tell(News::Failed(cause, self.status.verdict(cause))), Ordering::Relaxed);
        }
    }

    /// The work of the thread that writes the log.
    fn watch(&self) {
        while !self.ends.load(Ordering::Relaxed) {
            if self.own().get().is_some() {
                return self.tell_cause();
            }
            std::thread::park_timeout(LOOKS);
        }
    }

    /// The work of the thread that reads the log. It ends when the transport is broken, or all ranks have closed it.
    fn hear(&self) {
        let mut closing = vec![false; self.ranks];
        while !self.ends.load(Ordering::Relaxed) && self.own().get().is_none() {
            let at = self.read.load(Ordering::Relaxed);
            match self.world.get(&self.key(at), Deadline::after(LISTENS)) {
                Ok(entry) => {
                    self.read.store(at + 1, Ordering::Relaxed);
                    // An entry always decodes, since all ranks run the same version: they have compared it.
                    let Some(Entry { from, news }) = Entry::decode(&entry, self.ranks) else { return self.cut() };
                    if news == News::Closes {
                        closing[from as usize] = true;
                    }
                    self.take(from as usize, news);
                    if closing.iter().all(|closes| *closes) {
                        return;
                    }
                }
                Err(BootstrapError::KeyNotSet { .. } | BootstrapError::StoreSilent { .. }) => {}
                Err(BootstrapError::PeerGone { peer, departure, .. }) => {
                    self.gone(peer.index(), &departure);
                    std::thread::park_timeout(ASKS_AGAIN);
                }
                Err(_) => return self.cut(),
            }
        }
    }

    fn take(&self, from: usize, news: News) {
        match news {
            News::Failed(cause, verdict) => {
                self.has_failed.store(true, Ordering::Relaxed);
                match verdict {
                    // Other ranks of this domain may do the same, with the same verdict.
                    Some(verdict) => self.status.spread(&verdict, cause),
                    None => self.fail(cause),
                }
            }
            // Near ranks have status lines of their own, and say goodbye to the monitor.
            _ if self.is_near[from] => {}
            News::Closes => self.status.far_closes(from),
            News::Left => {
                self.status.far_let_go(from);
                self.departures.note(from);
                self.own().wake();
            }
        }
    }

    /// Handles the store's refusal to wait: the given rank is gone, or the store is gone with it.
    fn gone(&self, rank: usize, departure: &Departure) {
        let code = match departure {
            Departure::Left => return,
            Departure::Lost => AbortCode::Died,
            Departure::Failed(_) => AbortCode::Failed,
        };
        if self.departures.has_left(rank) {
            // The rank had left this transport before, so its end does not concern the transport. But the store may be
            // gone with it.
            let here = format!("{}/here/{}", self.name, self.rank);
            if self.world.set(&here, b"", Deadline::after(TELLS)).is_err() {
                self.cut();
            }
            return;
        }
        // The monitor reports the death of a near rank. It also receives a goodbye that came first.
        if !(self.is_near[rank] && code == AbortCode::Died) {
            // The thread that writes the log adds this cause as well. The monitor of the lost rank's neighbour may be
            // slow, and the neighbour must not hear first that this rank leaves.
            self.fail(Cause { code, rank, reason: 0 });
        }
    }

    /// Breaks the transport because no more news of other domains can arrive.
    fn cut(&self) {
        self.fail(Cause { code: AbortCode::Cut, rank: self.rank, reason: 0 });
    }

    /// Ends the waits of all ranks of the domain. This rank's own come last.
    fn fail(&self, cause: Cause) {
        let others = self.aborts.iter().enumerate().filter(|&(rank, _)| rank != self.rank);
        others.for_each(|(_, abort)| _ = abort.set(cause));
        self.own().set(cause);
    }
}

impl Entry {
    fn encode(&self) -> Vec<u8> {
        let (kind, rest) = match &self.news {
            News::Failed(cause, verdict) => {
                let mut rest = cause.to_word().to_le_bytes().to_vec();
                rest.extend(verdict.iter().flat_map(|verdict| verdict.to_text().into_bytes()));
                (b'F', rest)
            }
            News::Closes => (b'C', Vec::new()),
            News::Left => (b'L', Vec::new()),
        };
        [&[kind][..], &self.from.to_le_bytes(), &rest].concat()
    }

    /// Decodes an entry. `None` if the bytes are not an entry of a world of this many ranks.
    fn decode(bytes: &[u8], ranks: usize) -> Option<Entry> {
        let (kind, rest) = bytes.split_first()?;
        let (from, rest) = rest.split_first_chunk()?;
        let from = Some(u32::from_le_bytes(*from)).filter(|&from| (from as usize) < ranks)?;
        let news = match (kind, rest) {
            (b'F', _) => {
                let (word, text) = rest.split_first_chunk()?;
                let verdict = Verdict::from_text(&String::from_utf8_lossy(text));
                News::Failed(Cause::from_word(u64::from_le_bytes(*word))?, verdict)
            }
            (b'C', []) => News::Closes,
            (b'L', []) => News::Left,
            _ => return None,
        };
        Some(Entry { from, news })
    }
}

#[cfg(test)]
mod tests;
