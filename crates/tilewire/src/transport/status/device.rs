//! Lines of kernels on a GPU, and what is judged of them.

use super::{Kind, Status, Verdict, Waiting};
use std::sync::atomic::{AtomicU64, Ordering, fence};

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
}

/// What a launch of a rank has with one peer: operations whose data goes there, and comes from there, and credits for such data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dealings {
    /// The peer.
    pub peer: usize,
    /// Of data that this rank sends to it.
    pub sent: Operations,
    /// Of data that it receives.
    pub received: Operations,
}

/// Operations of a launch in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// There is none.
    None,
    /// There is no data, but credits for some: of a launch that only gives back, or waits for, slots that earlier launches filled.
    Credits,
    /// It is this one.
    One(u16),
    /// There are several: which, is not told.
    Several,
}

impl Operations {
    /// With one more, or with credits. Launches that have data may give credits in any case.
    pub fn and(self, operation: Option<u16>) -> Operations {
        match (self, operation) {
            (Operations::None, None) => Operations::Credits,
            (_, None) => self,
            (Operations::None | Operations::Credits, Some(operation)) => Operations::One(operation),
            (Operations::One(same), Some(operation)) if same == operation => self,
            _ => Operations::Several,
        }
    }

    /// Whether something of them may be given: of this operation, or a credit, which any receiver of data may give for what came before.
    fn may_give(self, operation: Option<u16>) -> bool {
        match self {
            Operations::None => false,
            Operations::Credits => operation.is_none(),
            Operations::One(own) => operation.is_none_or(|operation| operation == own),
            Operations::Several => true,
        }
    }

    const SEVERAL: u64 = 0xffff;
    const CREDITS: u64 = 0xfffe;

    /// Sixteen bits: operations have fifteen.
    fn to_bits(self) -> u64 {
        match self {
            Operations::None => 0,
            Operations::Credits => Self::CREDITS,
            Operations::One(operation) => u64::from(operation & 0x7fff) + 1,
            Operations::Several => Self::SEVERAL,
        }
    }

    fn from_bits(bits: u64) -> Operations {
        match bits & Self::SEVERAL {
            0 => Operations::None,
            Self::SEVERAL => Operations::Several,
            Self::CREDITS => Operations::Credits,
            one => Operations::One(one as u16 - 1),
        }
    }
}

impl Dealings {
    pub(super) fn to_word(self) -> u64 {
        (self.peer as u64) << 32 | self.sent.to_bits() << 16 | self.received.to_bits()
    }

    pub(super) fn from_word(word: u64) -> Dealings {
        let [sent, received] = [word >> 16, word].map(Operations::from_bits);
        Dealings { peer: (word >> 32) as usize, sent, received }
    }
}

/// What the kernels of a rank wait for.
#[derive(Clone, Debug)]
pub struct DeviceWait<'a> {
    /// The rank that would have to give it.
    pub peer: usize,
    /// What is needed.
    pub needs: Crossing,
    /// What their launch has with all its peers.
    pub has: &'a [Dealings],
    /// What the launch is.
    pub doing: &'a str,
    /// Which launch it is, and how many of its waits have gone on before.
    pub since: (u64, u64),
}

/// What the kernels of a rank wait for.
#[repr(C)]
pub(super) struct DeviceLine {
    /// As of the host's line.
    epoch: AtomicU64,
    peer: AtomicU64,
    /// Which launch, and how many of its waits have gone on: what is seen of two launches is never taken for one wait.
    since: [AtomicU64; 2],
    /// What is needed: see [`Crossing`].
    needs: AtomicU64,
    probe: AtomicU64,
    looked: AtomicU64,
    /// With how many peers the launch has dealings, of which as many as there is room for are told.
    peers: AtomicU64,
    has: [AtomicU64; MOST_PEERS],
}

/// Peers of a launch that its line has room for. With more, what it has with the rest is not told, and it is taken to have everything.
const MOST_PEERS: usize = 32;

/// Kernels that may wait for each other for ever.
pub(super) struct DeviceSuspicion {
    of: Vec<Suspect>,
    /// The rank at the end of the chain, where that closes.
    closing: Option<usize>,
}

struct Suspect {
    rank: usize,
    /// Of its line.
    epoch: u64,
    /// For whom its kernels wait.
    peer: usize,
    /// What it has to answer.
    probe: u64,
}

/// What a line of kernels said at one moment.
struct DeviceSeen {
    epoch: u64,
    peer: usize,
    needs: Crossing,
    /// With how many peers it has dealings, and those that it tells of.
    peers: usize,
    has: Vec<Dealings>,
}

impl DeviceSeen {
    /// Whether this launch, of rank `own`, may give what the launch of another rank needs.
    fn may_give(&self, own: usize, to: usize, needs: Crossing) -> bool {
        match self.has.iter().find(|with| with.peer == to) {
            Some(with) if needs.from == own => with.sent.may_give(needs.operation),
            Some(with) => with.received.may_give(needs.operation),
            None => self.peers > self.has.len(),
        }
    }
}

impl Status {
    /// As [`Status::probe`], for what kernels wait for.
    pub(crate) fn device_probe(&self) -> u64 {
        self.words(self.rank).device.0.probe.load(Ordering::Acquire)
    }

    /// Kernels of this rank wait, and looked after the host read `probe`.
    pub(crate) fn device_waits(&self, wait: &DeviceWait<'_>, probe: u64) {
        let (line, words) = (&self.words(self.rank).device.0, self.words(self.rank));
        let epoch = line.epoch.load(Ordering::Relaxed);
        let is = |word: &AtomicU64, x: u64| word.load(Ordering::Relaxed) == x;
        let has = || line.has.iter().zip(wait.has);
        let is_same = epoch % 2 == 1
            && is(&line.peer, wait.peer as u64)
            && is(&line.since[0], wait.since.0)
            && is(&line.since[1], wait.since.1)
            && is(&line.needs, wait.needs.to_word())
            && is(&line.peers, wait.has.len() as u64)
            && has().all(|(word, with)| is(word, with.to_word()));
        if !is_same {
            line.epoch.store((epoch + 1) & !1, Ordering::Relaxed);
            fence(Ordering::Release);
            line.peer.store(wait.peer as u64, Ordering::Relaxed);
            line.since[0].store(wait.since.0, Ordering::Relaxed);
            line.since[1].store(wait.since.1, Ordering::Relaxed);
            line.needs.store(wait.needs.to_word(), Ordering::Relaxed);
            line.peers.store(wait.has.len() as u64, Ordering::Relaxed);
            has().for_each(|(word, with)| word.store(with.to_word(), Ordering::Relaxed));
            words.device_text.write(wait.doing);
            line.epoch.store((epoch + 1) | 1, Ordering::Release);
        }
        line.looked.fetch_max(probe, Ordering::Release);
    }

    /// Kernels of this rank no longer wait.
    pub(crate) fn device_goes_on(&self) {
        let line = &self.words(self.rank).device.0;
        let epoch = line.epoch.load(Ordering::Relaxed);
        if epoch % 2 == 1 {
            line.epoch.store(epoch + 1, Ordering::Release);
        }
    }

    /// What a rank's kernels wait for, if they do.
    fn device_seen(&self, rank: usize) -> Option<DeviceSeen> {
        let line = &self.words(rank).device.0;
        let epoch = line.epoch.load(Ordering::Acquire);
        if epoch.is_multiple_of(2) {
            return None;
        }
        let needs = Crossing::from_word(line.needs.load(Ordering::Relaxed))?;
        let peer = line.peer.load(Ordering::Relaxed) as usize;
        let peers = line.peers.load(Ordering::Relaxed) as usize;
        let has = line.has.iter().take(peers).map(|word| Dealings::from_word(word.load(Ordering::Relaxed)));
        let seen = DeviceSeen { epoch, peer, needs, peers, has: has.collect() };
        self.device_is_still(rank, epoch).then_some(seen)
    }

    fn device_is_still(&self, rank: usize, epoch: u64) -> bool {
        fence(Ordering::Acquire);
        self.words(rank).device.0.epoch.load(Ordering::Relaxed) == epoch
    }

    /// As [`Status::judge`], for kernels of this rank that wait.
    pub(crate) fn judge_device(&self) -> Option<Verdict> {
        let mut suspicion = self.device_suspicion.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(DeviceSuspicion { of, closing }) = &*suspicion else {
            *suspicion = self.suspect_device();
            return None;
        };
        let unchanged = || of.iter().all(|it| self.device_is_still(it.rank, it.epoch));
        if !unchanged() {
            *suspicion = None;
            return None;
        }
        // Acquire: the epochs that are read again below are not read before.
        let answered = |it: &Suspect| self.words(it.rank).device.0.looked.load(Ordering::Acquire) >= it.probe;
        if !of.iter().all(answered) {
            return None;
        }
        let waiting = |it: &Suspect| {
            let doing = self.words(it.rank).device_text.read();
            Waiting { rank: it.rank, peers: vec![it.peer], doing }
        };
        let closes = |rank: usize| Waiting { rank, peers: Vec::new(), doing: self.words(rank).text.read() };
        let mut all: Vec<Waiting> = of.iter().map(waiting).chain(closing.map(closes)).collect();
        all.sort_by_key(|waiting| waiting.rank);
        let is_so = unchanged();
        *suspicion = None;
        is_so.then_some(Verdict::Deadlock(all))
    }

    /// The ranks whose kernels may wait for each other for ever, if this rank's are among them: each waits for the next, whose launch does not
    /// have what it needs, until one comes that was there before or closes.
    fn suspect_device(&self) -> Option<DeviceSuspicion> {
        let (mut chain, mut closing) = (vec![(self.rank, self.device_seen(self.rank)?)], None);
        loop {
            let (rank, seen) = chain.last().expect("this rank is in it");
            let (rank, peer, needs) = (*rank, seen.peer, seen.needs);
            if peer >= self.segments.len() {
                return None;
            }
            if self.seen(peer).is_some_and(|seen| seen.kind == Kind::Closing) {
                closing = Some(peer);
                break;
            }
            let known = chain.iter().position(|(before, _)| *before == peer);
            if known.is_none() {
                chain.push((peer, self.device_seen(peer)?));
            }
            let (_, there) = &chain[known.unwrap_or(chain.len() - 1)];
            if there.may_give(peer, rank, needs) {
                return None;
            }
            if known.is_some() {
                break;
            }
        }
        let suspect = |(rank, seen): (usize, DeviceSeen)| {
            // Release and acquire: all lines were read before, and what the kernels look at, they look at after.
            let probe = self.words(rank).device.0.probe.fetch_add(1, Ordering::AcqRel) + 1;
            Suspect { rank, epoch: seen.epoch, peer: seen.peer, probe }
        };
        Some(DeviceSuspicion { of: chain.into_iter().map(suspect).collect(), closing })
    }
}
