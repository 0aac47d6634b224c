//! Status lines: what each rank waits for, where the others can see it.
//!
//! ```text
//!   header of a rank's segment     written by                       read by
//!   ├ epoch, kind                  the rank, when a wait of it      ranks whose own waits have
//!   ├ the ranks it waits for       stops spinning, and when it      stopped spinning
//!   ├ what it is doing, in words   goes on
//!   ├ probe                        whoever suspects a deadlock      the rank, in every round of such a wait
//!   ├ looked                       the rank, in every such round    whoever suspects
//!   └ verdict                      whoever finds one, once          the rank, when its abort word says so
//! ```
//! No wait that is satisfied soon touches any of this: it costs waits that have stopped spinning a few loads every twenty milliseconds.
//!
//! **When it is a deadlock.** A rank whose status says that it waits may have what it waits for and not have noticed: it may sleep, or the
//! system may run others. So a suspicion is confirmed in two steps.
//! 1. A rank that waits reads all lines. Of the ranks that wait it strikes out who waits for a rank that does not, until none is left to
//!    strike out. If it remains itself, it suspects the others that remain.
//! 2. It raises the probe of each of them. A rank reads its probe, *then* looks at what it waits for, and if nothing is there says that it
//!    has looked since that probe. When all have, and no epoch has changed, it is a deadlock: every one of them has waited
//!    without a break since before the first probe, and every one has looked after it and found nothing. What a rank waits for does not
//!    go away once it is there. So at the moment before the first probe each of them was waiting, for ranks of which each was waiting,
//!    and nobody was left to end it.
//!
//! A slow rank is none of them: it does not say that it waits, or it does not answer until it has looked again.
//!
//! **On a GPU** it is not the host that waits, and of a launch some parts may wait while others work. So kernels mark waits that last, a
//! thread of the host writes a line of its own for them, and only pairs are judged: rank i waits for something of rank j that j's launch
//! does not have, and j for something that i's launch does not have. What either had launched before is over, and what it gave is there; so what
//! they need is in launches that come after these, on both sides.
//!
//! A rank that closes ([`Kind::Closing`]) cannot answer probes, and need not: it never launches again on the transport, so whoever waits for it
//! waits in vain, whatever others do. Ranks in other calls that all ranks make (a window, a second transport) say nothing: one that is
//! satisfied and has not noticed could not be told from one that waits.

use super::abort::{Abort, AbortCode, Cause};
use super::mapping::{Line, Mapping};
use super::segment::SegmentSet;
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

/// What the kernels of a rank wait for.
#[repr(C)]
struct DeviceLine {
    /// As of the host's line.
    epoch: AtomicU64,
    peer: AtomicU64,
    /// Which launch, and how many of its waits have gone on: what is seen of two launches is never taken for one wait.
    since: [AtomicU64; 2],
    /// What is needed, and what the launch has with the peer from this rank and to it: see [`Crossing`].
    needs: AtomicU64,
    has: [AtomicU64; 2],
    probe: AtomicU64,
    looked: AtomicU64,
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
}

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
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Launch, Kind::Meeting, Kind::Closing];

    /// Whether the rank looks at probes in such a wait.
    fn answers(self) -> bool {
        matches!(self, Kind::Launch | Kind::Meeting)
    }
}

/// What crosses from one rank to another in a launch: an operation's data, or a credit for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// Who sends the data.
    pub from: usize,
    /// The operation; of a credit none.
    pub operation: Option<u16>,
}

impl Crossing {
    /// Never 0.
    fn to_word(self) -> u64 {
        let operation = self.operation.map_or(0, |operation| u64::from(operation) + 1);
        (self.from as u64 + 1) << 32 | operation
    }

    fn from_word(word: u64) -> Option<Crossing> {
        let from = (word >> 32).checked_sub(1)? as usize;
        Some(Crossing { from, operation: (word as u32).checked_sub(1).map(|operation| operation as u16) })
    }

    /// Whether a launch that has these gives it. Any receiver of the data may give a credit for what came before.
    fn is_given_by(self, has: &[Option<Crossing>]) -> bool {
        has.iter()
            .flatten()
            .any(|it| it.from == self.from && (self.operation.is_none() || it.operation == self.operation))
    }
}

/// What the kernels of a rank wait for.
#[derive(Clone, Debug)]
pub struct DeviceWait<'a> {
    /// The rank that would have to give it.
    pub peer: usize,
    /// What is needed.
    pub needs: Crossing,
    /// What their launch has with that peer: from this rank, and to it.
    pub has: [Option<Crossing>; 2],
    /// What the launch is.
    pub doing: &'a str,
    /// Which launch it is, and how many of its waits have gone on before.
    pub since: (u64, u64),
}

/// A rank that waits, in a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The rank.
    pub rank: usize,
    /// For these; none where it waits for all others.
    pub peers: Vec<usize>,
    /// What it is doing: the operation and its source line.
    pub doing: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waiting { rank, peers, doing } = self;
        write!(f, "rank {rank} waits for ")?;
        match &peers[..] {
            [] => f.write_str("all others")?,
            [peer] => write!(f, "rank {peer}")?,
            peers => {
                let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
                write!(f, "ranks {}", peers.join(", "))?;
            }
        }
        write!(f, " in {doing}")
    }
}

/// What was found: no launch on this transport can go on after it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// These ranks wait for each other.
    Deadlock(Vec<Waiting>),
    /// Two ranks launched different operations, one in place of the other.
    OtherOperation {
        /// The rank that found out, and its operation.
        here: (usize, String),
        /// The other.
        there: (usize, String),
    },
}

impl Verdict {
    fn to_text(&self) -> String {
        let list = |waiting: &Waiting| {
            let peers: Vec<String> = waiting.peers.iter().map(ToString::to_string).collect();
            format!("{}\t{}\t{}", waiting.rank, peers.join(","), one_line(&waiting.doing))
        };
        match self {
            Verdict::Deadlock(all) => {
                let lines: Vec<String> = all.iter().map(list).collect();
                format!("deadlock\n{}", lines.join("\n"))
            }
            Verdict::OtherOperation { here, there } => {
                let [this, other] = [&here.1, &there.1].map(|text| one_line(text));
                format!("operation\n{}\t\t{this}\n{}\t\t{other}", here.0, there.0)
            }
        }
    }

    fn from_text(text: &str) -> Option<Verdict> {
        let mut lines = text.lines();
        let kind = lines.next()?;
        let mut waiting = lines.filter_map(|line| {
            let mut parts = line.splitn(3, '\t');
            let rank = parts.next()?.parse().ok()?;
            let peers = parts.next()?.split(',').filter_map(|peer| peer.parse().ok()).collect();
            Some(Waiting { rank, peers, doing: parts.next()?.to_string() })
        });
        match kind {
            "deadlock" => Some(Verdict::Deadlock(waiting.collect())),
            "operation" => {
                let mut end = || waiting.next().map(|it| (it.rank, it.doing));
                Some(Verdict::OtherOperation { here: end()?, there: end()? })
            }
            _ => None,
        }
    }

    /// The code under which ranks are told of it.
    fn code(&self) -> AbortCode {
        match self {
            Verdict::Deadlock(_) => AbortCode::Deadlocked,
            Verdict::OtherOperation { .. } => AbortCode::Mismatched,
        }
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\t'], " ")
}

/// The status lines of a world, as one rank sees them. A handle; clones are the same lines.
#[derive(Clone)]
pub struct Status {
    rank: usize,
    segments: Arc<[Arc<Mapping>]>,
    suspicion: Arc<Mutex<Option<Suspicion>>>,
    device_suspicion: Arc<Mutex<Option<DeviceSuspicion>>>,
}

/// A peer whose kernels may wait for this rank's, and these for its.
struct DeviceSuspicion {
    peer: usize,
    /// Epochs of this rank's line and of the peer's, and the probes they have to answer; none of a peer that closes.
    own: (u64, u64),
    other: Option<(u64, u64)>,
}

/// Ranks that may wait for each other for ever.
struct Suspicion {
    /// Rank, epoch, kind, and the probe it has to answer.
    of: Vec<(usize, u64, Kind, u64)>,
}

/// What a line said at one moment.
struct Seen {
    epoch: u64,
    kind: Kind,
    peers: Vec<usize>,
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
        let seen = Seen { epoch, kind, peers: peers.collect() };
        self.is_still(rank, epoch).then_some(seen)
    }

    /// Whether all that was read of a line so far is of this epoch.
    fn is_still(&self, rank: usize, epoch: u64) -> bool {
        fence(Ordering::Acquire);
        self.words(rank).line.0.epoch.load(Ordering::Relaxed) == epoch
    }

    /// Looks for a deadlock that this rank, which waits, is part of. A first call may suspect one, and a later one confirm it.
    pub fn judge(&self) -> Option<Verdict> {
        let mut suspicion = self.suspicion.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(suspects) = &*suspicion else {
            *suspicion = self.suspect();
            return None;
        };
        let is_same = |(rank, epoch, ..): &(usize, u64, Kind, u64)| self.is_still(*rank, *epoch);
        if !suspects.of.iter().all(is_same) {
            *suspicion = None;
            return None;
        }
        let answered = |&(rank, _, kind, probe): &(usize, u64, Kind, u64)| {
            // Acquire: the epochs that are read again below are not read before.
            !kind.answers() || self.words(rank).line.0.looked.load(Ordering::Acquire) >= probe
        };
        if !suspects.of.iter().all(answered) {
            return None;
        }
        let mut waiting = Vec::new();
        for &(rank, epoch, kind, _) in &suspects.of {
            let seen = self.seen(rank).filter(|seen| seen.epoch == epoch);
            let doing = self.words(rank).text.read();
            let Some(seen) = seen.filter(|_| self.is_still(rank, epoch)) else {
                *suspicion = None;
                return None;
            };
            let peers = if kind.answers() { seen.peers } else { Vec::new() };
            waiting.push(Waiting { rank, peers, doing });
        }
        *suspicion = None;
        Some(Verdict::Deadlock(waiting))
    }

    /// The ranks that may wait for each other for ever, if this rank is one, with the probes they have to answer.
    fn suspect(&self) -> Option<Suspicion> {
        let all: Vec<Option<Seen>> = (0..self.segments.len()).map(|rank| self.seen(rank)).collect();
        let mut remain: Vec<bool> = all.iter().map(Option::is_some).collect();
        loop {
            let before = remain.clone();
            for (rank, seen) in all.iter().enumerate() {
                let Some(seen) = seen.as_ref().filter(|_| remain[rank]) else { continue };
                remain[rank] = match seen.kind {
                    Kind::Closing => true,
                    _ => !seen.peers.is_empty() && seen.peers.iter().all(|&peer| before[peer]),
                };
            }
            if remain == before {
                break;
            }
        }
        let own = all[self.rank].as_ref().filter(|seen| remain[self.rank] && seen.kind.answers())?;
        // Only those that this rank's wait hangs on: others may have a deadlock of their own, which they find.
        let mut of = vec![self.rank];
        let mut next = own.peers.clone();
        while let Some(rank) = next.pop() {
            if !of.contains(&rank) {
                of.push(rank);
                let seen = all[rank].as_ref().expect("it remains");
                let hangs_on = seen.peers.iter().copied().filter(|&peer| remain[peer]);
                next.extend(hangs_on.filter(|_| seen.kind.answers()));
            }
        }
        of.sort_unstable();
        let probed = of.into_iter().map(|rank| {
            let Seen { epoch, kind, .. } = all[rank].as_ref().expect("it remains");
            // Release and acquire: all lines were read before, and what the rank looks at, it looks at after.
            let probe = self.words(rank).line.0.probe.fetch_add(1, Ordering::AcqRel) + 1;
            (rank, *epoch, *kind, probe)
        });
        Some(Suspicion { of: probed.collect() })
    }

    /// The rank at the end of the chain of those that wait: the one that is late. `peer`, if that does not wait itself.
    pub fn late(&self, peer: usize) -> usize {
        let (mut late, mut passed) = (peer, vec![self.rank]);
        while !passed.contains(&late) {
            passed.push(late);
            let seen = self.seen(late).filter(|seen| seen.kind.answers());
            match seen.and_then(|seen| seen.peers.into_iter().find(|next| !passed.contains(next))) {
                Some(next) => late = next,
                None => break,
            }
        }
        late
    }

    // ---- kernels on a GPU -------------------------------------------------------------------------------------------

    /// As [`Status::probe`], for what kernels wait for.
    pub(super) fn device_probe(&self) -> u64 {
        self.words(self.rank).device.0.probe.load(Ordering::Acquire)
    }

    /// Kernels of this rank wait, and looked after the host read `probe`.
    pub(super) fn device_waits(&self, wait: &DeviceWait<'_>, probe: u64) {
        let (line, words) = (&self.words(self.rank).device.0, self.words(self.rank));
        let epoch = line.epoch.load(Ordering::Relaxed);
        let has = wait.has.map(|has| has.map_or(0, Crossing::to_word));
        let is = |word: &AtomicU64, x: u64| word.load(Ordering::Relaxed) == x;
        let is_same = epoch % 2 == 1
            && is(&line.peer, wait.peer as u64)
            && is(&line.since[0], wait.since.0)
            && is(&line.since[1], wait.since.1)
            && is(&line.needs, wait.needs.to_word())
            && line.has.iter().zip(has).all(|(word, x)| is(word, x));
        if !is_same {
            line.epoch.store((epoch + 1) & !1, Ordering::Relaxed);
            fence(Ordering::Release);
            line.peer.store(wait.peer as u64, Ordering::Relaxed);
            line.since[0].store(wait.since.0, Ordering::Relaxed);
            line.since[1].store(wait.since.1, Ordering::Relaxed);
            line.needs.store(wait.needs.to_word(), Ordering::Relaxed);
            line.has.iter().zip(has).for_each(|(word, x)| word.store(x, Ordering::Relaxed));
            words.device_text.write(wait.doing);
            line.epoch.store((epoch + 1) | 1, Ordering::Release);
        }
        line.looked.fetch_max(probe, Ordering::Release);
    }

    /// Kernels of this rank no longer wait.
    pub(super) fn device_goes_on(&self) {
        let line = &self.words(self.rank).device.0;
        let epoch = line.epoch.load(Ordering::Relaxed);
        if epoch % 2 == 1 {
            line.epoch.store(epoch + 1, Ordering::Release);
        }
    }

    /// What a rank's kernels wait for, if they do: the epoch, for whom, what for, what they have.
    fn device_seen(&self, rank: usize) -> Option<(u64, usize, Crossing, [Option<Crossing>; 2])> {
        let line = &self.words(rank).device.0;
        let epoch = line.epoch.load(Ordering::Acquire);
        if epoch.is_multiple_of(2) {
            return None;
        }
        let needs = Crossing::from_word(line.needs.load(Ordering::Relaxed))?;
        let has = [0, 1].map(|k| Crossing::from_word(line.has[k].load(Ordering::Relaxed)));
        let peer = line.peer.load(Ordering::Relaxed) as usize;
        self.device_is_still(rank, epoch).then_some((epoch, peer, needs, has))
    }

    fn device_is_still(&self, rank: usize, epoch: u64) -> bool {
        fence(Ordering::Acquire);
        self.words(rank).device.0.epoch.load(Ordering::Relaxed) == epoch
    }

    /// As [`Status::judge`], for kernels of this rank that wait.
    pub(super) fn judge_device(&self) -> Option<Verdict> {
        let mut suspicion = self.device_suspicion.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(DeviceSuspicion { peer, own, other }) = &*suspicion else {
            *suspicion = self.suspect_device();
            return None;
        };
        let is_same = |rank: usize, epoch: u64| self.device_is_still(rank, epoch);
        if !is_same(self.rank, own.0) || !other.is_none_or(|(epoch, _)| is_same(*peer, epoch)) {
            *suspicion = None;
            return None;
        }
        let answered = |rank: usize, probe: u64| self.words(rank).device.0.looked.load(Ordering::Acquire) >= probe;
        if !answered(self.rank, own.1) || !other.is_none_or(|(_, probe)| answered(*peer, probe)) {
            return None;
        }
        let doing = |rank: usize| self.words(rank).device_text.read();
        let here = Waiting { rank: self.rank, peers: vec![*peer], doing: doing(self.rank) };
        let there = match other {
            Some(_) => Waiting { rank: *peer, peers: vec![self.rank], doing: doing(*peer) },
            None => Waiting { rank: *peer, peers: Vec::new(), doing: self.words(*peer).text.read() },
        };
        let unchanged = is_same(self.rank, own.0) && other.is_none_or(|(epoch, _)| is_same(*peer, epoch));
        *suspicion = None;
        let mut both = vec![here, there];
        both.sort_by_key(|waiting| waiting.rank);
        unchanged.then_some(Verdict::Deadlock(both))
    }

    fn suspect_device(&self) -> Option<DeviceSuspicion> {
        let (epoch, peer, needs, has) = self.device_seen(self.rank)?;
        let probe = |rank: usize| self.words(rank).device.0.probe.fetch_add(1, Ordering::AcqRel) + 1;
        if self.seen(peer).is_some_and(|seen| seen.kind == Kind::Closing) {
            return Some(DeviceSuspicion { peer, own: (epoch, probe(self.rank)), other: None });
        }
        let (other, waits_for, wanted, there) = self.device_seen(peer)?;
        let is_deadlock = waits_for == self.rank && !needs.is_given_by(&there) && !wanted.is_given_by(&has);
        is_deadlock.then(|| {
            let (own, other) = ((epoch, probe(self.rank)), Some((other, probe(peer))));
            DeviceSuspicion { peer, own, other }
        })
    }

    /// Ends the waits of all ranks with a verdict; the first one stays.
    pub fn tell_all(&self, verdict: &Verdict) {
        let first = &self.words(0).line.0.judged;
        // Ranks may find out at the same time: whose text all have is decided in rank 0's header.
        if first.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            self.wait_judged(0);
            return;
        }
        let text = verdict.to_text();
        for rank in (0..self.segments.len()).rev() {
            self.words(rank).verdict.write(&text);
            self.words(rank).line.0.judged.store(2, Ordering::Release);
        }
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
