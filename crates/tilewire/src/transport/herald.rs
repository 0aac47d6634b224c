//! Tells ranks of other domains how this rank ends, and hears how they end.
//!
//! Within a domain, shared memory and control sockets do that ([`abort`](super::abort), [`monitor`](super::monitor)).
//! Between domains there is only the bootstrap. There the ranks of one transport keep a log that all of them read:
//!
//! ```text
//!  any rank: set(log/k) ── taken? k + 1 ──▶ bootstrap store ──▶ every rank: get(log/0), get(log/1), ...
//!
//!  entry     a rank adds it when                         a rank that reads it
//!  Failed    its abort word is set, whoever set it       sets the abort words of its domain, rings their bells
//!  Closes    it has come to close the transport          writes it into the rank's shadow line
//!  Left      it has let go without closing               notes the departure: a wait for the rank is now in vain
//! ```
//! A key is set only once, so the log has one order for all ranks, and the order of a rank's own entries is the order
//! in which it added them. **The first cause counts**: a word that is set stays. Two domains that fail independently,
//! before either has heard of the other, keep a cause each; every further domain gets the one that the log has first.
//!
//! **Deaths.** A process that ends without a word closes its connection to the store, which then refuses every wait
//! with the rank's number. A host that is cut off is noticed by TCP keep-alive, in `bootstrap/keepalive.rs`. A rank of
//! this domain is left to the monitor, which also hears goodbyes. If the store itself is gone, nothing more will be
//! heard of other domains, so the waits of this domain end with [`AbortCode::Cut`], or with the death of the rank that
//! hosts it.
//!
//! **A slow rank is never taken for a failed one.** Nothing here has a deadline that breaks a transport: a store that
//! does not answer is asked again, and what is not in the log has not happened.
//!
//! **What a rank did before an entry is visible after it.** It adds `Closes` and `Left` when its launches are over.
//! Those ended only when everything they posted was delivered, so a reader that polls its carrier afterwards finds it
//! there.
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

/// How long one question to the store lasts. It ends earlier with the answer, or when a rank is lost.
const LISTENS: Duration = Duration::from_secs(1);
/// How long telling something may take.
const TELLS: Duration = Duration::from_secs(1);
/// Time between two looks at the own abort word. Not the doorbell: a sleeper there makes every signal of a near peer a
/// system call.
const LOOKS: Duration = Duration::from_millis(5);
/// Time between two questions to a store that refuses to wait, because some rank is gone.
const ASKS_AGAIN: Duration = Duration::from_millis(20);

/// A rank's connection to the ranks of other domains, as long as it lives.
pub(super) struct Herald {
    log: Arc<Log>,
    /// They read and write the log; `None` once they have ended.
    hears: Option<JoinHandle<()>>,
    tells: Option<JoinHandle<()>>,
    /// True once all ranks have closed: nobody needs to hear that this one leaves.
    is_closed: bool,
}

struct Log {
    world: Shared,
    /// What its keys begin with.
    name: String,
    rank: usize,
    ranks: usize,
    /// By rank: true for the ranks of this domain.
    is_near: Vec<bool>,
    aborts: Vec<Abort>,
    status: Status,
    departures: Departures,
    /// Entries that were read.
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
    /// Starts telling for a transport of this name, which is the same on all ranks and was never used before. `None`
    /// if all ranks are in one domain.
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

    /// This rank's abort word was set: tells so without delay.
    pub(super) fn fails(&self) {
        if let Some(thread) = &self.tells {
            thread.thread().unpark();
        }
    }

    /// This rank has come to close. The lines of all ranks say in time who else has.
    pub(super) fn closes(&self) {
        // If this fails, the others wait until their deadline, or hear from the store that this rank is gone.
        self.log.tell(News::Closes);
    }

    /// Returns when everything is read that comes before the end of a transport that all ranks are closing; or earlier,
    /// if they will not get that far.
    pub(super) fn reads_to_the_end(&self, deadline: Deadline) {
        let is_reading = || self.hears.as_ref().is_some_and(|thread| !thread.is_finished());
        while is_reading() && self.log.own().get().is_none() && !self.log.departures.any() && !deadline.is_over() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// All ranks have closed, and none reads the log any more.
    pub(super) fn all_closed(&mut self) {
        self.is_closed = true;
        if self.log.rank == 0 {
            // So that a program may make transports for as long as it runs.
            for at in 0..self.log.read.load(Ordering::Relaxed) {
                let soon = Deadline::after(TELLS);
                _ = self.log.world.look(&self.log.key(at), soon, soon);
            }
        }
    }
}

impl Drop for Herald {
    /// Takes at most some seconds, if the store does not answer.
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
            // The cause first: otherwise others could take the leaving for the cause.
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

    /// Adds to the log, after everything that is there. False if the store did not take it.
    fn tell(&self, news: News) -> bool {
        let (entry, until) = (Entry { from: self.rank as u32, news }.encode(), Deadline::after(TELLS));
        // Relaxed: it only saves some attempts.
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

    /// Adds why this rank's waits have ended, if they have and it is not known.
    fn tell_cause(&self) {
        if let Some(cause) = self.own().get()
            && !self.has_failed.load(Ordering::Relaxed)
        {
            self.has_failed.store(self.tell(News::Failed(cause, self.status.verdict(cause))), Ordering::Relaxed);
        }
    }

    /// The thread that tells.
    fn watch(&self) {
        while !self.ends.load(Ordering::Relaxed) {
            if self.own().get().is_some() {
                return self.tell_cause();
            }
            std::thread::park_timeout(LOOKS);
        }
    }

    /// The thread that hears. It ends when the transport is broken, or all ranks have closed it.
    fn hear(&self) {
        let mut closing = vec![false; self.ranks];
        while !self.ends.load(Ordering::Relaxed) && self.own().get().is_none() {
            let at = self.read.load(Ordering::Relaxed);
            match self.world.get(&self.key(at), Deadline::after(LISTENS)) {
                Ok(entry) => {
                    self.read.store(at + 1, Ordering::Relaxed);
                    // All ranks run one version: they have compared it.
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
                    // Ranks of this domain may do the same: the domain has one verdict.
                    Some(verdict) => self.status.spread(&verdict, cause),
                    None => self.fail(cause),
                }
            }
            // Near ranks have lines, and say goodbye to the monitor.
            _ if self.is_near[from] => {}
            News::Closes => self.status.far_closes(from),
            News::Left => {
                self.status.far_let_go(from);
                self.departures.note(from);
                self.own().wake();
            }
        }
    }

    /// The store refuses to wait for anything, because this rank is gone, or because the store is.
    fn gone(&self, rank: usize, departure: &Departure) {
        let code = match departure {
            Departure::Left => return,
            Departure::Lost => AbortCode::Died,
            Departure::Failed(_) => AbortCode::Failed,
        };
        if self.departures.has_left(rank) {
            // It had let go of this transport before, which then has nothing to do with it. But with it the store may
            // be gone.
            let here = format!("{}/here/{}", self.name, self.rank);
            if self.world.set(&here, b"", Deadline::after(TELLS)).is_err() {
                self.cut();
            }
            return;
        }
        // Of the death of a near rank the monitor hears, which would also hear a goodbye before it.
        if !(self.is_near[rank] && code == AbortCode::Died) {
            // It goes into the log as well: the monitor of the lost rank's neighbour may be slow, and must not hear of
            // this rank's leaving first.
            self.fail(Cause { code, rank, reason: 0 });
        }
    }

    /// Nothing more will be heard of other domains.
    fn cut(&self) {
        self.fail(Cause { code: AbortCode::Cut, rank: self.rank, reason: 0 });
    }

    /// Ends the waits of all ranks of the domain, this rank's last.
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

    /// `None`: not an entry of a world of this many ranks.
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
