//! Status lines: what each rank is waiting for, published where the other ranks can read it.
//!
//! ```text
//!   header of a rank's segment     written by                       read by
//!   ├ epoch, kind                  the rank, when one of its waits  ranks whose own waits have
//!   ├ the ranks it waits for       stops spinning, and when it      stopped spinning
//!   ├ what it is doing, in words   continues
//!   ├ windows it has called for    the rank                         ranks in such a call (`gathering.rs`)
//!   ├ probe                        a rank suspecting a deadlock     the rank, in every round of such a wait
//!   ├ looked                       the rank, in every such round    the suspecting rank
//!   └ verdict                      the first rank to find one       the rank, when its abort word says so
//! ```
//! A wait that is satisfied soon touches none of this. A wait that has stopped spinning pays a few loads every twenty
//! milliseconds.
//!
//! **When it is a deadlock.** A rank whose status says that it waits may already have what it waits for without having
//! noticed: it may be asleep or descheduled. So a suspicion is confirmed in two steps.
//! 1. A waiting rank reads all lines. From the set of waiting ranks it removes each one that waits for a rank outside
//!    the set, until nothing more can be removed. If the reader itself remains, it suspects the others that remain. Any
//!    peer of a launch may end its wait, so a launch is removed as soon as one of its peers is not waiting. A call that
//!    all ranks make needs every missing rank, so it is removed only when none of the missing ranks remains. On a GPU,
//!    hosts and kernels are removed separately; see below.
//! 2. It raises the probe of each suspect. A rank reads its probe, *then* checks for what it waits for, and if nothing
//!    is there, records that it has looked since that probe. When all suspects have done so and no epoch has changed,
//!    it is a deadlock. Each of them has waited without a break since before the first probe, and each has looked after
//!    it and found nothing. What a rank waits for does not go away once it is there. So just before the first probe
//!    each of them was waiting, and none had what it waits for. The first of them to continue would need something that
//!    another of them does later, and that other rank would have to continue first.
//!
//! A slow rank is never among the suspects that are confirmed: either it does not say that it waits, or it does not
//! answer until it has looked again. No time-out decides anything here. The period only says how often a rank looks.
//!
//! **Calls that all ranks make** on a transport ([`Kind::Gathering`]: a window). What such a call first waits for is
//! also in the lines. A rank counts the windows it has called for in its own line, before anything else. A rank in its
//! n-th call waits until all lines say n ([`super::gathering`]). So it can look after a probe just as a launch does,
//! and the argument above holds. The count of a waiting rank does not change: only the thread that owns the transport
//! can call for a window or launch on it (transports do not leave their thread), and that thread is waiting. A look
//! after a probe sees every count that the suspect stored before it began to wait. The order is: the count, the odd
//! epoch (release), the suspecting rank's read (acquire), the probe (release), the look (acquire). A rank whose call
//! expires takes its count back and records which call it gave up. It does so when it is no longer waiting.
//!
//! **On a GPU** it is not the host that waits, and parts of a launch may wait while others work. So kernels mark waits
//! that last, and a host thread writes a separate line for them. Ranks waiting for each other is not enough here. The
//! chain must be: rank i waits for something that rank j's running launch *does not have*, j for something that k's
//! launch does not have, and so on until the chain closes. Launches of a rank run one after another. So j's earlier
//! launches are over, and what they gave is there; what i needs is in a launch of j that begins after the running one
//! has ended. That holds for every rank of the chain, and the first of these launches to end would need one that begins
//! after the end of another. A launch that may have what is needed breaks the chain: the part that gives it may still
//! be at work, whatever other parts wait for. Probes confirm it as above.
//!
//! **Kernels and hosts** are judged together (`judge.rs`). A kernel of rank i may wait for a rank j whose *host* waits,
//! in a first launch or in a call for a window. What the kernel needs is then in a launch that j's host has yet to
//! make, if two things hold. Each is recorded in the lines, and together they join the two kinds of waits:
//! - *Nothing of j is on its GPU.* The thread that watches j's kernels sees the host in a wait. It then asks the driver
//!   whether all launches have ended, including replays and launches that wait to start. If the host is still in that
//!   wait, it writes the wait's epoch into the line (`idle_in`). The waiting thread is the only one that can launch on
//!   the transport. So from that moment nothing is on the GPU until that wait ends. This needs no probe, because the
//!   epoch of the host's wait proves it. Launches that ended before gave everything they had before any probe was
//!   raised.
//! - *The host of i waits for its kernels* (`host_waits`: it is in `sync`, in `close`, or reads a tensor), so it cannot
//!   do what j's host waits for. Each such wait has a number, which the line of i's kernels publishes. The watching
//!   thread reads it before and after the kernel's mark, and publishes it only if both are equal: the host could launch
//!   nothing in between, so its wait covers that kernel and ends after it. The number is read again before a probe is
//!   answered. If it has changed, the line changes, and with it the epoch.
//!
//! So a host in `sync` depends on its own kernels, and a kernel depends on its peer's host if that peer has nothing on
//! its GPU. The argument stays the same: all parties of the cycle have waited without a break since before the first
//! probe, each in one wait, and the first to continue would need something that another does only after continuing.
//! Some hosts publish none of this: a host that computes, one that waits for a graph on one of the user's own streams,
//! and one in a driver call that happens to wait for kernels. There only the deadline ends the wait.
//!
//! Ranks of one process that share a GPU start their launches together (`cuda/gang.rs`). A launch that waits to start
//! is also a party, and depends on the host that has yet to arrive. A cycle through it is not a verdict, since its
//! kernel may need nobody: its own rank starts it.
//!
//! A rank that closes ([`Kind::Closing`]) cannot answer probes, and need not. It never launches on the transport or
//! asks for a window again, so any rank waiting for it waits in vain, whatever others do.
//!
//! **Which rank is late.** When a wait expires, its rank follows the lines from the rank it waits for to the one that
//! does not wait. So the line of a failed wait stays until the rank has set all abort words; otherwise a rank whose
//! wait expires at the same time would stop at this one. A rank that finds the line gone also finds the cause, because
//! it checks for the cause afterwards.
//!
//! **Ranks of other domains** have shadows here, whose lines nobody writes but this process's herald. A silent line
//! means that nothing is known of the rank, which every judgement above reads as "it does not wait":
//! - A rank that waits for a far rank is removed from every suspected set, however slow the far rank is. So a cycle
//!   that leads through another domain is not found, and the deadline ends it. A cycle within a domain is found as
//!   before.
//! - Calls that all ranks make count the ranks of the domain in their lines; far ranks are met at the bootstrap.
//! - A far rank is known to *close* or to have *let go* only when its herald has said so, which the bootstrap orders
//!   after everything that the rank did before. The herald writes that into the shadow ([`Status::far_closes`]). What
//!   the rank had posted until then was confirmed, so a look that follows the reading of its line finds it, as for a
//!   near rank.
//! - The late rank at the end of a chain is the last one that is known: a chain ends at a far rank.
//! - A verdict is written for the ranks of the domain. The herald carries it to other domains.
//!
//! **What is not judged.** A rank that makes a second transport writes nothing into the lines of the first. That call
//! belongs to the world, not to a transport, and any thread of the peer may make it: one peer thread waiting in a
//! launch does not show that no other thread will come. There, and in a bootstrap's own barriers, only the deadline
//! ends the wait.

mod device;
mod judge;
mod verdict;

pub use device::{Crossing, Dealings, DeviceWait, Operations};
pub(crate) use judge::Found;
pub use verdict::{Difference, Unmet, Verdict, Waiting};
pub(crate) use verdict::{deadlock, mismatch, other_operation, required};

use super::abort::{Abort, AbortCode, Cause};
use super::mapping::{Line, Mapping};
use super::segment::SegmentSet;
use device::DeviceLine;
use judge::Suspicion;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Largest world whose ranks a status line can name. In larger worlds only a deadline ends a wait for a rank that is
/// itself waiting.
const MOST_RANKS: usize = 1024;
/// Words for the description of what a rank is doing.
const TEXT: usize = 64;
/// Words for a verdict.
const VERDICT: usize = 256;
/// Words for the description of what a rank's kernels are doing.
const DEVICE_TEXT: usize = 32;

/// The status part of a segment's header. All zeros means that the rank does not wait and nothing was found.
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
    /// Odd while the rank waits. Changes whenever anything about the wait changes.
    epoch: AtomicU64,
    kind: AtomicU64,
    probe: AtomicU64,
    looked: AtomicU64,
    /// 0: no verdict. 1: one is being written. 2: it is complete.
    judged: AtomicU64,
    /// Number of windows that the rank has called for on this transport; [`LET_GO`] once it will never call again.
    windows: AtomicU64,
    /// The last window call that failed: its deadline passed, and its count was taken back.
    gave_up: AtomicU64,
    /// Nonzero while this rank's thread that owns the transport is in a window call on another transport.
    elsewhere: AtomicU64,
}

/// Larger than any real count of windows: the rank has let go of the transport.
const LET_GO: u64 = u64::MAX;

/// A text with one writer and many readers: its length in bytes, then the bytes.
#[repr(C)]
struct Text<const WORDS: usize> {
    len: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Text<WORDS> {
    /// Writes the text, cut to what fits.
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

/// The kind of wait a rank is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole launch waits for these ranks.
    Launch,
    /// A first launch waits for a peer to build its side.
    Meeting,
    /// The rank will do nothing more on this transport.
    Closing,
    /// A call that all ranks make waits for every one of these ranks.
    Gathering,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Launch, Kind::Meeting, Kind::Closing, Kind::Gathering];

    /// True if the rank checks its probe in this kind of wait.
    fn answers(self) -> bool {
        self != Kind::Closing
    }
}

/// The status lines of a world, as seen by one rank. This is a handle: clones refer to the same lines.
#[derive(Clone)]
pub struct Status {
    rank: usize,
    /// By rank. Those that are not mapped here are shadows.
    segments: Arc<[Arc<Mapping>]>,
    /// The ranks that are mapped here, in rank order.
    domain: Arc<[usize]>,
    suspicion: Arc<Mutex<Option<Suspicion>>>,
    device_suspicion: Arc<Mutex<Option<Suspicion>>>,
}

/// The contents of a line at one moment.
struct Seen {
    epoch: u64,
    kind: Kind,
    peers: Vec<usize>,
    /// True if the rank had nothing on its GPU at some moment of this wait, and therefore has nothing there until the
    /// wait ends.
    is_idle: bool,
}

impl Status {
    /// The status lines in the headers of these segments.
    pub fn of(segments: &SegmentSet) -> Status {
        Status {
            rank: segments.rank(),
            segments: segments.mappings().into(),
            domain: (0..segments.world_size()).filter(|&rank| segments.is_mapped(rank)).collect(),
            suspicion: Arc::default(),
            device_suspicion: Arc::default(),
        }
    }

    /// True if both handles belong to the same transport and rank.
    pub(super) fn is(&self, other: &Status) -> bool {
        Arc::ptr_eq(&self.segments, &other.segments)
    }

    fn words(&self, rank: usize) -> &StatusWords {
        &self.segments[rank].header().status
    }

    /// Reads the probe. Call this before checking for what is waited for, and pass the value to [`Status::waits`] if it
    /// is not there.
    pub fn probe(&self) -> u64 {
        // Acquire: the check that follows must not move before this load.
        self.words(self.rank).line.0.probe.load(Ordering::Acquire)
    }

    /// Publishes that this rank waits for `peers`, and that it checked for what it waits for after it read `probe`.
    /// Call it in every round of such a wait; it writes only what has changed.
    pub fn waits(&self, kind: Kind, peers: &[usize], doing: &dyn fmt::Display, probe: u64) {
        let mut mask = [0u64; MOST_RANKS / 64];
        for &peer in peers {
            if peer >= MOST_RANKS {
                return self.goes_on();
            }
            mask[peer / 64] |= 1 << (peer % 64);
        }
        self.write(self.rank, kind, mask, doing);
        self.words(self.rank).line.0.looked.fetch_max(probe, Ordering::Release);
    }

    /// Writes a line, if it does not say the same already. Only its rank does that, or this process if it is a shadow.
    fn write(&self, rank: usize, kind: Kind, mask: [u64; MOST_RANKS / 64], doing: &dyn fmt::Display) {
        let words = self.words(rank);
        let line = &words.line.0;
        // Relaxed: nobody else writes the epoch.
        let epoch = line.epoch.load(Ordering::Relaxed);
        let is_same = epoch % 2 == 1
            && line.kind.load(Ordering::Relaxed) == kind as u64
            && words.peers.0.iter().zip(&mask).all(|(word, bits)| word.load(Ordering::Relaxed) == *bits);
        if !is_same {
            // Written like a sequence lock: no reader attributes what lies between two odd epochs to either of them.
            line.epoch.store((epoch + 1) & !1, Ordering::Relaxed);
            fence(Ordering::Release);
            line.kind.store(kind as u64, Ordering::Relaxed);
            words.peers.0.iter().zip(mask).for_each(|(word, bits)| word.store(bits, Ordering::Relaxed));
            words.text.write(&doing.to_string());
            line.epoch.store((epoch + 1) | 1, Ordering::Release);
        }
    }

    /// This rank no longer waits.
    pub fn goes_on(&self) {
        let line = &self.words(self.rank).line.0;
        let epoch = line.epoch.load(Ordering::Relaxed);
        if epoch % 2 == 1 {
            line.epoch.store(epoch + 1, Ordering::Release);
        }
    }

    /// This rank has done everything it will do, and waits for all others.
    pub(super) fn closes(&self) {
        self.closes_of(self.rank);
    }

    fn closes_of(&self, rank: usize) {
        let mut mask = [0u64; MOST_RANKS / 64];
        // In larger worlds a line names nobody.
        if self.segments.len() <= MOST_RANKS {
            (0..self.segments.len())
                .filter(|&other| other != rank)
                .for_each(|peer| mask[peer / 64] |= 1 << (peer % 64));
            self.write(rank, Kind::Closing, mask, &"close()");
        }
    }

    /// A rank of another domain has come to close. Called by this process's herald alone.
    pub(super) fn far_closes(&self, rank: usize) {
        if !self.domain.contains(&rank) {
            self.closes_of(rank);
        }
    }

    /// A rank of another domain has let go of the transport. Called by this process's herald alone.
    pub(super) fn far_let_go(&self, rank: usize) {
        if !self.domain.contains(&rank) {
            self.words(rank).line.0.windows.store(LET_GO, Ordering::Release);
        }
    }

    /// Counts one more window call of this rank and returns its number, starting at 1.
    pub(super) fn calls_for_window(&self) -> u64 {
        // Release: a rank that sees the count also sees that this rank's last wait is over.
        self.words(self.rank).line.0.windows.fetch_add(1, Ordering::Release) + 1
    }

    /// Takes the last window call back, so that it can be made again.
    pub(super) fn calls_no_more(&self) {
        let line = &self.words(self.rank).line.0;
        // Relaxed: only this rank writes both. A rank that sees the smaller count sees that the call was given up.
        line.gave_up.store(line.windows.load(Ordering::Relaxed), Ordering::Relaxed);
        line.windows.fetch_sub(1, Ordering::Release);
    }

    /// This rank will do nothing more on the transport, and waits for no one.
    pub(super) fn lets_go(&self) {
        self.words(self.rank).line.0.windows.store(LET_GO, Ordering::Release);
    }

    /// Records whether the thread that owns this transport is in a window call on another transport.
    pub(super) fn is_elsewhere(&self, elsewhere: bool) {
        self.words(self.rank).line.0.elsewhere.store(elsewhere.into(), Ordering::Release);
    }

    /// The ranks of this domain that have not called for the n-th window. A rank in a window call on another transport
    /// counts as having come: the two calls meet and compare their transports.
    pub(super) fn missing(&self, nth: u64) -> Vec<usize> {
        // Acquire: this look comes after the earlier read of the probe, and before its result is published.
        let came = |line: &StatusLine| {
            line.windows.load(Ordering::Acquire) >= nth || line.elsewhere.load(Ordering::Acquire) != 0
        };
        self.domain.iter().copied().filter(|&rank| !came(&self.words(rank).line.0)).collect()
    }

    /// Which of the `missing` ranks are to blame for the n-th window. Ranks that called and gave up are left out,
    /// unless there are no others.
    pub(super) fn late_for(&self, nth: u64, missing: Vec<usize>) -> Vec<usize> {
        let gave_up = |rank: &usize| self.words(*rank).line.0.gave_up.load(Ordering::Acquire) >= nth;
        let (came, late): (Vec<usize>, Vec<usize>) = missing.into_iter().partition(gave_up);
        if late.is_empty() { came } else { late }
    }

    /// The ranks that are neither closing the transport nor have let go of it.
    pub(super) fn open(&self) -> Vec<usize> {
        let closes = |rank: usize| self.seen(rank).is_some_and(|seen| seen.kind == Kind::Closing);
        // A closing rank names all others in its line.
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

    /// True if a rank has called for more windows here than this rank, and so waits for it.
    pub(super) fn calls_for_more(&self, rank: usize) -> bool {
        let windows = |rank: usize| self.words(rank).line.0.windows.load(Ordering::Acquire);
        rank < self.segments.len() && !self.has_let_go(rank) && windows(rank) > windows(self.rank)
    }

    /// The contents of a rank's line, if it waits.
    fn seen(&self, rank: usize) -> Option<Seen> {
        let words = self.words(rank);
        let epoch = words.line.0.epoch.load(Ordering::Acquire);
        if epoch.is_multiple_of(2) {
            return None;
        }
        let kind = *Kind::ALL.get(words.line.0.kind.load(Ordering::Relaxed) as usize)?;
        let mask: Vec<u64> = words.peers.0.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let peers = (0..self.segments.len().min(MOST_RANKS)).filter(|&peer| mask[peer / 64] >> (peer % 64) & 1 == 1);
        // Acquire: what was on the GPU before has ended, and what it gave is visible.
        let is_idle = words.device.0.idle_in.load(Ordering::Acquire) == epoch;
        let seen = Seen { epoch, kind, peers: peers.collect(), is_idle };
        self.is_still(rank, epoch).then_some(seen)
    }

    /// True if everything read from a line so far belongs to this epoch.
    fn is_still(&self, rank: usize, epoch: u64) -> bool {
        fence(Ordering::Acquire);
        self.words(rank).line.0.epoch.load(Ordering::Relaxed) == epoch
    }

    /// The late rank: the one at the end of the chain of waiting ranks, starting at `peer`. That is `peer` if it does
    /// not wait itself.
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

    /// Ends the waits of all ranks with a verdict. If there are several, the first one stays.
    pub fn tell_all(&self, verdict: &Verdict) {
        self.spread(verdict, Cause { code: verdict.code(), rank: self.rank, reason: 0 });
    }

    /// The same for a verdict that another domain found, with the cause that came with it.
    pub(super) fn spread(&self, verdict: &Verdict, cause: Cause) {
        let arbiter = self.domain[0];
        let first = &self.words(arbiter).line.0.judged;
        // Several ranks may find out simultaneously. The header of the domain's first rank decides whose text all ranks
        // get: it is the same memory for all of them, which a shadow of rank 0 would not be.
        if first.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let text = verdict.to_text();
            for rank in self.domain.iter().copied().rev() {
                self.words(rank).verdict.write(&text);
                self.words(rank).line.0.judged.store(2, Ordering::Release);
            }
        } else {
            self.wait_judged(arbiter);
        }
        // Both ranks do this: the one that wrote the texts may be interrupted here, while the other is about to break
        // the transport with a cause that has no verdict. The arbiter's text is written last, so once it is there, all
        // are. The texts come before its mark (release), the mark before the end of this wait (acquire), and that
        // before the abort words (release).
        self.segments.iter().for_each(|segment| _ = Abort::new(segment.clone()).set(cause));
    }

    /// If a rank's verdict is being written, waits until it is complete; only briefly, since the writer may be gone.
    fn wait_judged(&self, rank: usize) {
        let judged = &self.words(rank).line.0.judged;
        let start = Instant::now();
        while judged.load(Ordering::Acquire) == 1 && start.elapsed() < Duration::from_millis(500) {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// The verdict that this rank was given, if the cause says that there is one.
    pub fn verdict(&self, cause: Cause) -> Option<Verdict> {
        if !matches!(cause.code, AbortCode::Deadlocked | AbortCode::Mismatched | AbortCode::Required) {
            return None;
        }
        // The abort word was read without ordering; the fence makes everything written before it visible.
        fence(Ordering::Acquire);
        self.wait_judged(self.rank);
        let words = self.words(self.rank);
        let is_there = words.line.0.judged.load(Ordering::Acquire) == 2;
        is_there.then(|| Verdict::from_text(&words.verdict.read())).flatten()
    }
}

#[cfg(test)]
mod tests;
