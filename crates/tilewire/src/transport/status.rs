//! Status lines: what each rank waits for, where the others can see it.
//!
//! ```text
//!   header of a rank's segment     written by                       read by
//!   ├ epoch, kind                  the rank, when a wait of it      ranks whose own waits have
//!   ├ the ranks it waits for       stops spinning, and when it      stopped spinning
//!   ├ what it is doing, in words   goes on
//!   ├ windows it has called for    the rank                         ranks in such a call (`gathering.rs`)
//!   ├ probe                        whoever suspects a deadlock      the rank, in every round of such a wait
//!   ├ looked                       the rank, in every such round    whoever suspects
//!   └ verdict                      whoever finds one, once          the rank, when its abort word says so
//! ```
//! No wait that is satisfied soon touches any of this: it costs waits that have stopped spinning a few loads every twenty milliseconds.
//!
//! **When it is a deadlock.** A rank whose status says that it waits may have what it waits for and not have noticed: it may sleep, or the
//! system may run others. So a suspicion is confirmed in two steps.
//! 1. A rank that waits reads all lines. Of the ranks that wait it strikes out who waits for a rank that does not, until none is left to
//!    strike out. If it remains itself, it suspects the others that remain. Any of its peers may end the wait of a launch, so it is struck out
//!    for one that does not wait. A call that all ranks make needs every rank that is missing, so it is struck out only when none of these
//!    remains. On a GPU hosts and kernels are struck out by themselves, see below.
//! 2. It raises the probe of each of them. A rank reads its probe, *then* looks at what it waits for, and if nothing is there says that it
//!    has looked since that probe. When all have, and no epoch has changed, it is a deadlock: every one of them has waited
//!    without a break since before the first probe, and every one has looked after it and found nothing. What a rank waits for does not
//!    go away once it is there. So at the moment before the first probe each of them was waiting, and none had what it waits for. The first
//!    of them to go on would need something that another of them does later, which has to go on before.
//!
//! A slow rank is none of them: it does not say that it waits, or it does not answer until it has looked again. No time-out decides
//! anything here; a period only says how often a rank looks.
//!
//! **Calls that all ranks make** on a transport ([`Kind::Gathering`]: a window). What such a call waits for first is in the lines, too: a
//! rank counts the windows it has called for in its own line, before anything else, and a rank in its n-th call waits until all lines say n
//! ([`super::gathering`]). So it can look after a probe as a launch does, and the argument above holds for it: the count of a rank that
//! waits does not change, because the thread that has the transport is the only one that can call for a window or launch on it (transports
//! do not leave their thread), and it waits. A look after a probe sees every count that the suspect stored before it began to wait: the
//! count, then the odd epoch (release), then whoever suspects (acquire), then the probe (release), then the look (acquire). A rank whose
//! call expires takes its count back, and says which call it gave up. That is an act of a rank that does not wait any more.
//!
//! **On a GPU** it is not the host that waits, and of a launch some parts may wait while others work. So kernels mark waits that last, a
//! thread of the host writes a line of its own for them, and it is not enough that ranks wait for each other: rank i waits for something of
//! rank j that j's launch *does not have*, j for something that k's launch does not have, and so on until the chain comes round. Launches of a
//! rank run one after another. So what j had launched before is over, and what it gave is there; what i needs is in a launch of j that
//! begins when the one that runs has ended. That holds for every rank of the chain, and the first of these launches to end would need one that
//! begins after the end of another. A launch that may have what is needed breaks the chain: the part of it that gives it may still be at
//! work, whatever other parts wait for. Probes confirm it as above.
//!
//! **Kernels and hosts** are judged together (`judge.rs`). A kernel of rank i may wait for a rank j whose *host* waits, in a first launch or in
//! a call for a window. What it needs is then in a launch that j's host has yet to make, if two things hold. Each is a fact in the lines, and
//! together they join the two kinds of waits:
//! - *Nothing of j is on its GPU.* The thread that watches j's kernels sees the host in a wait, asks the driver whether all launches have ended,
//!   replays and launches that wait to start included, and if the host is still in that wait writes its epoch into the line (`idle_in`). The
//!   thread that waits is the only one that can launch on the transport. So from that moment nothing is on the GPU until that wait ends, and
//!   this needs no probe: the epoch of the host's wait says it. What ended before gave what it gave before any probe was raised.
//! - *The host of i waits for its kernels* (`host_waits`: it is in `sync`, in `close`, or reads a tensor), and so cannot do what j's host waits for.
//!   Each such wait has a number, which the line of i's kernels tells. The watching thread reads it before and after the mark of the kernel,
//!   and tells it if it is the same: the host could launch nothing in between, so its wait covers that kernel, and ends after it. It is read
//!   again before a probe is answered. Where it has changed, the line changes, and with it the epoch.
//!
//! So a host in `sync` hangs on its own kernels, a kernel on the host of its peer if that has nothing on its GPU, and the argument stays what it
//! was: all parties of the cycle have waited without a break since before the first probe, each in one wait, and the first to go on would
//! need something that another does after it has gone on. A host that computes says none of this, nor does one that waits for a graph on a
//! stream of the user's own, or in a call of the driver that happens to wait for kernels: there only the deadline tells.
//!
//! Ranks of one process that share a GPU start their launches together (`cuda/gang.rs`). A launch that waits to start is such a party, too,
//! and hangs on the host that has to come. A cycle through it is no verdict, since its kernel may need nobody: its rank starts it.
//!
//! A rank that closes ([`Kind::Closing`]) cannot answer probes, and need not: it never launches again on the transport, nor asks for a window,
//! so whoever waits for it waits in vain, whatever others do.
//!
//! **Who is late.** When a wait expires, its rank follows the lines from the rank it waits for to the one that does not wait. So a line stands, if
//! its wait has failed, until the rank has set all abort words: a rank whose wait expires at the same time would otherwise stop at this one.
//! If it finds the line gone, it finds the cause, because it looks for that afterwards.
//!
//! **What is not judged.** A rank that makes a second transport says nothing in the lines of the first. That call belongs to the world, not
//! to a transport, and any thread of the peer may make it: a thread of the peer that waits in a launch does not show that no other will
//! come. There, and in a bootstrap's own barriers, only the deadline tells.

mod device;
mod judge;
mod verdict;

pub use device::{Crossing, Dealings, DeviceWait, Operations};
pub(crate) use judge::Found;
pub use verdict::{Difference, Verdict, Waiting};
pub(crate) use verdict::{deadlock, mismatch, other_operation};

use super::abort::{Abort, AbortCode, Cause};
use super::mapping::{Line, Mapping};
use super::segment::SegmentSet;
use device::DeviceLine;
use judge::Suspicion;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Ranks that a status line can name. In larger worlds only a deadline ends a wait for a rank that waits itself.
const MOST_RANKS: usize = 1024;
/// Words of what a rank is doing.
const TEXT: usize = 64;
/// Words of a verdict.
const VERDICT: usize = 256;
/// Words of what its kernels are doing.
const DEVICE_TEXT: usize = 32;

/// The part of a segment's header that this file is about. All zeros: the rank does not wait, and nothing was found.
#[repr(C)]
pub(super) struct StatusWords {
    line: Line<StatusLine>,
    peers: Line<[AtomicU64; MOST_RANKS / 64]>,
    text: Text<TEXT>,
    verdict: Text<VERDICT>,
    device: Line<DeviceLine>,
    device_text: Text<DEVICE_TEXT>,
}

#[repr(C)]
struct StatusLine {
    /// Odd while the rank waits; another number whenever anything about that changes.
    epoch: AtomicU64,
    kind: AtomicU64,
    probe: AtomicU64,
    looked: AtomicU64,
    /// 0: no verdict, 1: one is being written, 2: it is there.
    judged: AtomicU64,
    /// The windows that the rank has called for on this transport; [`LET_GO`] when it never will again.
    windows: AtomicU64,
    /// The last window that it called for in vain: its deadline passed, and its count was taken back.
    gave_up: AtomicU64,
    /// Not 0 while the thread of this rank that has the transport is in such a call on another one.
    elsewhere: AtomicU64,
}

/// More windows than anybody calls for: the rank has let go of the transport.
const LET_GO: u64 = u64::MAX;

/// A text that one writes and others read: its length in bytes, then the bytes.
#[repr(C)]
struct Text<const WORDS: usize> {
    len: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Text<WORDS> {
    /// As much of it as fits.
    fn write(&self, text: &str) {
        let mut len = text.len().min(WORDS * 8);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        for (word, bytes) in self.words.iter().zip(text.as_bytes()[..len].chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
        self.len.store(len as u64, Ordering::Relaxed);
    }

    fn read(&self) -> String {
        let len = (self.len.load(Ordering::Relaxed) as usize).min(WORDS * 8);
        let words = self.words.iter().take(len.div_ceil(8));
        let mut bytes: Vec<u8> = words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        bytes.truncate(len);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// What kind of wait a rank is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All of a launch waits for these ranks.
    Launch,
    /// A first launch waits for a peer to build its side.
    Meeting,
    /// The rank has done all it will do on this transport.
    Closing,
    /// A call that all ranks make waits for these ranks, for every one of them.
    Gathering,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Launch, Kind::Meeting, Kind::Closing, Kind::Gathering];

    /// Whether the rank looks at probes in such a wait.
    fn answers(self) -> bool {
        self != Kind::Closing
    }
}

/// The status lines of a world, as one rank sees them. A handle; clones are the same lines.
#[derive(Clone)]
pub struct Status {
    rank: usize,
    segments: Arc<[Arc<Mapping>]>,
    suspicion: Arc<Mutex<Option<Suspicion>>>,
    device_suspicion: Arc<Mutex<Option<Suspicion>>>,
}

/// What a line said at one moment.
struct Seen {
    epoch: u64,
    kind: Kind,
    peers: Vec<usize>,
    /// Whether nothing of the rank was on its GPU at some moment of this wait, and so nothing is until it ends.
    is_idle: bool,
}

impl Status {
    /// The lines of these segments.
    pub fn of(segments: &SegmentSet) -> Status {
        Status {
            rank: segments.rank(),
            segments: segments.mappings().into(),
            suspicion: Arc::default(),
            device_suspicion: Arc::default(),
        }
    }

    /// Whether both are lines of one transport, of one rank.
    pub(super) fn is(&self, other: &Status) -> bool {
        Arc::ptr_eq(&self.segments, &other.segments)
    }

    fn words(&self, rank: usize) -> &StatusWords {
        &self.segments[rank].header().status
    }

    /// To be read before a look at what is waited for, and given to [`Status::waits`] when it is not there.
    pub fn probe(&self) -> u64 {
        // Acquire: the look that follows is not done before.
        self.words(self.rank).line.0.probe.load(Ordering::Acquire)
    }

    /// This rank waits for these ranks, and looked for what it waits for after it read `probe`. Call it in every round of such a wait;
    /// it writes only what has changed.
    pub fn waits(&self, kind: Kind, peers: &[usize], doing: &dyn fmt::Display, probe: u64) {
        let mut mask = [0u64; MOST_RANKS / 64];
        for &peer in peers {
            if peer >= MOST_RANKS {
                return self.goes_on();
            }
            mask[peer / 64] |= 1 << (peer % 64);
        }
        let words = self.words(self.rank);
        let line = &words.line.0;
        // Relaxed: this rank alone writes its epoch.
        let epoch = line.epoch.load(Ordering::Relaxed);
        let is_same = epoch % 2 == 1
            && line.kind.load(Ordering::Relaxed) == kind as u64
            && words.peers.0.iter().zip(&mask).all(|(word, bits)| word.load(Ordering::Relaxed) == *bits);
        if !is_same {
            // As a sequence lock is written: nobody takes what lies between two odd epochs for either.
            line.epoch.store((epoch + 1) & !1, Ordering::Relaxed);
            fence(Ordering::Release);
            line.kind.store(kind as u64, Ordering::Relaxed);
            words.peers.0.iter().zip(mask).for_each(|(word, bits)| word.store(bits, Ordering::Relaxed));
            words.text.write(&doing.to_string());
            line.epoch.store((epoch + 1) | 1, Ordering::Release);
        }
        line.looked.fetch_max(probe, Ordering::Release);
    }

    /// This rank no longer waits.
    pub fn goes_on(&self) {
        let line = &self.words(self.rank).line.0;
        let epoch = line.epoch.load(Ordering::Relaxed);
        if epoch % 2 == 1 {
            line.epoch.store(epoch + 1, Ordering::Release);
        }
    }

    /// This rank has done all that it will do, and waits for all others.
    pub(super) fn closes(&self) {
        let others: Vec<usize> = (0..self.segments.len()).filter(|&rank| rank != self.rank).collect();
        self.waits(Kind::Closing, &others, &"close()", 0);
    }

    /// This rank calls for one more window; gives the how many-th it is.
    pub(super) fn calls_for_window(&self) -> u64 {
        // Release: whoever sees the count sees that this rank's last wait is over.
        self.words(self.rank).line.0.windows.fetch_add(1, Ordering::Release) + 1
    }

    /// The last call for a window is taken back, so that it can be made again.
    pub(super) fn calls_no_more(&self) {
        let line = &self.words(self.rank).line.0;
        // Relaxed: this rank alone writes both. Who sees the smaller count sees that the call was given up.
        line.gave_up.store(line.windows.load(Ordering::Relaxed), Ordering::Relaxed);
        line.windows.fetch_sub(1, Ordering::Release);
    }

    /// This rank will do nothing more on the transport, and waits for nobody.
    pub(super) fn lets_go(&self) {
        self.words(self.rank).line.0.windows.store(LET_GO, Ordering::Release);
    }

    /// Whether the thread that has this transport is in a call for a window on another one.
    pub(super) fn is_elsewhere(&self, elsewhere: bool) {
        self.words(self.rank).line.0.elsewhere.store(elsewhere.into(), Ordering::Release);
    }

    /// The ranks that have not called for the n-th window. One that calls for a window on another transport counts as having come: the two
    /// calls meet, and compare their transports.
    pub(super) fn missing(&self, nth: u64) -> Vec<usize> {
        // Acquire: after the probe, which is read before, and before what is told of this look.
        let came = |line: &StatusLine| {
            line.windows.load(Ordering::Acquire) >= nth || line.elsewhere.load(Ordering::Acquire) != 0
        };
        (0..self.segments.len()).filter(|&rank| !came(&self.words(rank).line.0)).collect()
    }

    /// Of these ranks that have not called for the n-th window those that are to blame: not the ones that called and gave up before, unless
    /// there are no others.
    pub(super) fn late_for(&self, nth: u64, missing: Vec<usize>) -> Vec<usize> {
        let gave_up = |rank: &usize| self.words(*rank).line.0.gave_up.load(Ordering::Acquire) >= nth;
        let (came, late): (Vec<usize>, Vec<usize>) = missing.into_iter().partition(gave_up);
        if late.is_empty() { came } else { late }
    }

    /// The ranks that neither close the transport nor have let go of it.
    pub(super) fn open(&self) -> Vec<usize> {
        let closes = |rank: usize| self.seen(rank).is_some_and(|seen| seen.kind == Kind::Closing);
        // Who closes says so by naming all others.
        let ranks = if self.segments.len() > MOST_RANKS { 0 } else { self.segments.len() };
        (0..ranks).filter(|&rank| !self.has_let_go(rank) && !closes(rank)).collect()
    }

    fn has_let_go(&self, rank: usize) -> bool {
        self.words(rank).line.0.windows.load(Ordering::Acquire) == LET_GO
    }

    /// The ranks that will do nothing more on the transport.
    pub(super) fn let_go(&self) -> Vec<usize> {
        (0..self.segments.len()).filter(|&rank| self.has_let_go(rank)).collect()
    }

    /// Whether a rank has called for more windows here than this rank, and so waits for it.
    pub(super) fn calls_for_more(&self, rank: usize) -> bool {
        let windows = |rank: usize| self.words(rank).line.0.windows.load(Ordering::Acquire);
        rank < self.segments.len() && !self.has_let_go(rank) && windows(rank) > windows(self.rank)
    }

    /// What a rank's line says, if it waits.
    fn seen(&self, rank: usize) -> Option<Seen> {
        let words = self.words(rank);
        let epoch = words.line.0.epoch.load(Ordering::Acquire);
        if epoch.is_multiple_of(2) {
            return None;
        }
        let kind = *Kind::ALL.get(words.line.0.kind.load(Ordering::Relaxed) as usize)?;
        let mask: Vec<u64> = words.peers.0.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let peers = (0..self.segments.len().min(MOST_RANKS)).filter(|&peer| mask[peer / 64] >> (peer % 64) & 1 == 1);
        // Acquire: what was on the GPU before has ended, and what it gave is there.
        let is_idle = words.device.0.idle_in.load(Ordering::Acquire) == epoch;
        let seen = Seen { epoch, kind, peers: peers.collect(), is_idle };
        self.is_still(rank, epoch).then_some(seen)
    }

    /// Whether all that was read of a line so far is of this epoch.
    fn is_still(&self, rank: usize, epoch: u64) -> bool {
        fence(Ordering::Acquire);
        self.words(rank).line.0.epoch.load(Ordering::Relaxed) == epoch
    }

    /// The rank at the end of the chain of those that wait: the one that is late. `peer`, if that does not wait itself.
    pub fn late(&self, peer: usize) -> usize {
        let (mut late, mut passed) = (peer, vec![self.rank]);
        while !passed.contains(&late) {
            passed.push(late);
            let peers = match self.seen(late).filter(|seen| seen.kind.answers()) {
                Some(seen) => seen.peers,
                None => self.device_seen(late).map(|seen| seen.peer).into_iter().collect(),
            };
            match peers.into_iter().find(|next| *next < self.segments.len() && !passed.contains(next)) {
                Some(next) => late = next,
                None => break,
            }
        }
        late
    }

    /// Ends the waits of all ranks with a verdict; the first one stays.
    pub fn tell_all(&self, verdict: &Verdict) {
        let first = &self.words(0).line.0.judged;
        // Ranks may find out at the same time: whose text all have is decided in rank 0's header.
        if first.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let text = verdict.to_text();
            for rank in (0..self.segments.len()).rev() {
                self.words(rank).verdict.write(&text);
                self.words(rank).line.0.judged.store(2, Ordering::Release);
            }
        } else {
            self.wait_judged(0);
        }
        // By both, since the one that wrote the texts may be interrupted here, and the other is about to break the transport with a cause
        // that has no verdict. Rank 0's text is written last, so all are there when it is: they come before its mark (release), that
        // before the end of the wait (acquire), and that before the words (release).
        let cause = Cause { code: verdict.code(), rank: self.rank, reason: 0 };
        self.segments.iter().for_each(|segment| _ = Abort::new(segment.clone()).set(cause));
    }

    /// Waits until a rank's verdict is written, if somebody is at it; not for long: who writes it may be gone.
    fn wait_judged(&self, rank: usize) {
        let judged = &self.words(rank).line.0.judged;
        let start = Instant::now();
        while judged.load(Ordering::Acquire) == 1 && start.elapsed() < Duration::from_millis(500) {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// The verdict that this rank was told, if a cause says that there is one.
    pub fn verdict(&self, cause: Cause) -> Option<Verdict> {
        if !matches!(cause.code, AbortCode::Deadlocked | AbortCode::Mismatched) {
            return None;
        }
        // The abort word was read without order; what was written before it is to be seen.
        fence(Ordering::Acquire);
        self.wait_judged(self.rank);
        let words = self.words(self.rank);
        let is_there = words.line.0.judged.load(Ordering::Acquire) == 2;
        is_there.then(|| Verdict::from_text(&words.verdict.read())).flatten()
    }
}

#[cfg(test)]
mod tests;
