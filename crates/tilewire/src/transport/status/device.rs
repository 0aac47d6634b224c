//! Lines of kernels on a GPU, and what is judged of them.

use super::Status;
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
    /// What is needed. None: a launch of that rank must come before this one starts.
    pub needs: Option<Crossing>,
    /// What their launch has with all its peers.
    pub has: &'a [Dealings],
    /// What the launch is.
    pub doing: &'a str,
    /// Which launch it is, and how many of its waits have gone on before.
    pub since: (u64, u64),
    /// Which of its waits for this launch the host is in; 0: it is in none, or not known to be.
    pub host_waits: u64,
}

/// What the kernels of a rank wait for.
#[repr(C)]
pub(super) struct DeviceLine {
    /// As of the host's line.
    epoch: AtomicU64,
    peer: AtomicU64,
    /// Which launch, and how many of its waits have gone on: what is seen of two launches is never taken for one wait.
    since: [AtomicU64; 2],
    /// What is needed: see [`Crossing`]; 0: that the launch starts.
    needs: AtomicU64,
    /// In which of its waits for the launch the host is, if it is in one.
    host_waits: AtomicU64,
    pub(super) probe: AtomicU64,
    pub(super) looked: AtomicU64,
    /// The last wait of the host, by its epoch, in which nothing of the rank was on its GPU.
    pub(super) idle_in: AtomicU64,
    /// With how many peers the launch has dealings, of which as many as there is room for are told.
    peers: AtomicU64,
    has: [AtomicU64; MOST_PEERS],
}

/// Peers of a launch that its line has room for. With more, what it has with the rest is not told, and it is taken to have everything.
const MOST_PEERS: usize = 32;

/// What a line of kernels said at one moment.
pub(super) struct DeviceSeen {
    pub(super) epoch: u64,
    pub(super) peer: usize,
    pub(super) needs: Option<Crossing>,
    /// Whether the host of the rank waits until its kernels have ended.
    pub(super) host_waits: bool,
    /// With how many peers it has dealings, and those that it tells of.
    peers: usize,
    has: Vec<Dealings>,
}

impl DeviceSeen {
    /// Whether this launch, of rank `own`, may give what the launch of another rank needs.
    pub(super) fn may_give(&self, own: usize, to: usize, needs: Crossing) -> bool {
        match self.has.iter().find(|with| with.peer == to) {
            Some(with) if needs.from == own => with.sent.may_give(needs.operation),
            Some(with) => with.received.may_give(needs.operation),
            None => self.is_pending() || self.peers > self.has.len(),
        }
    }

    /// Whether the launch waits before it starts. What it has is not told then.
    pub(super) fn is_pending(&self) -> bool {
        self.needs.is_none()
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
        let needs = wait.needs.map_or(0, Crossing::to_word);
        let is_same = epoch % 2 == 1
            && is(&line.peer, wait.peer as u64)
            && is(&line.since[0], wait.since.0)
            && is(&line.since[1], wait.since.1)
            && is(&line.needs, needs)
            && is(&line.host_waits, wait.host_waits)
            && is(&line.peers, wait.has.len() as u64)
            && has().all(|(word, with)| is(word, with.to_word()));
        if !is_same {
            line.epoch.store((epoch + 1) & !1, Ordering::Relaxed);
            fence(Ordering::Release);
            line.peer.store(wait.peer as u64, Ordering::Relaxed);
            line.since[0].store(wait.since.0, Ordering::Relaxed);
            line.since[1].store(wait.since.1, Ordering::Relaxed);
            line.needs.store(needs, Ordering::Relaxed);
            line.host_waits.store(wait.host_waits, Ordering::Relaxed);
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

    /// The wait that this rank's host is in, by its epoch, if it is in one.
    pub(crate) fn host_waits_since(&self) -> Option<u64> {
        // Acquire: what is looked at next is looked at in that wait, or later.
        Some(self.words(self.rank).line.0.epoch.load(Ordering::Acquire)).filter(|epoch| epoch % 2 == 1)
    }

    /// Nothing of this rank was on its GPU at a moment after the host was seen in this wait. If it still is, nothing will be until that ends: the
    /// thread that waits is the only one that can launch.
    pub(crate) fn device_is_idle(&self, since: u64) {
        if self.is_still(self.rank, since) {
            // Release: that all launches have ended, and what they gave, comes before.
            self.words(self.rank).device.0.idle_in.store(since, Ordering::Release);
        }
    }

    /// What a rank's kernels wait for, if they do.
    pub(super) fn device_seen(&self, rank: usize) -> Option<DeviceSeen> {
        let line = &self.words(rank).device.0;
        let epoch = line.epoch.load(Ordering::Acquire);
        if epoch.is_multiple_of(2) {
            return None;
        }
        let needs = Crossing::from_word(line.needs.load(Ordering::Relaxed));
        let host_waits = line.host_waits.load(Ordering::Relaxed) != 0;
        let peer = line.peer.load(Ordering::Relaxed) as usize;
        let peers = line.peers.load(Ordering::Relaxed) as usize;
        let has = line.has.iter().take(peers).map(|word| Dealings::from_word(word.load(Ordering::Relaxed)));
        let seen = DeviceSeen { epoch, peer, needs, host_waits, peers, has: has.collect() };
        self.device_is_still(rank, epoch).then_some(seen)
    }

    pub(super) fn device_is_still(&self, rank: usize, epoch: u64) -> bool {
        fence(Ordering::Acquire);
        self.words(rank).device.0.epoch.load(Ordering::Relaxed) == epoch
    }
}
