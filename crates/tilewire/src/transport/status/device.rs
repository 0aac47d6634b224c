//! Status lines of kernels on a GPU, and how they are judged.

use super::Status;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Something that passes from one rank to another in a launch: an operation's data, or a credit for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The rank that sends the data.
    pub from: usize,
    /// The operation; `None` for a credit.
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

/// What a rank's launch exchanges with one peer: operations whose data goes to or comes from the peer, and credits for
/// such data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dealings {
    /// The peer.
    pub peer: usize,
    /// Operations whose data this rank sends to the peer.
    pub sent: Operations,
    /// Operations whose data this rank receives from the peer.
    pub received: Operations,
}

/// The operations of a launch in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// No operation.
    None,
    /// No data, only credits: the launch only returns, or waits for, slots that earlier launches filled.
    Credits,
    /// Exactly this operation.
    One(u16),
    /// Several operations; which ones is not recorded.
    Several,
}

impl Operations {
    /// Adds an operation, or credits if `None`. Launches that have data may give credits in any case.
    pub fn and(self, operation: Option<u16>) -> Operations {
        match (self, operation) {
            (Operations::None, None) => Operations::Credits,
            (_, None) => self,
            (Operations::None | Operations::Credits, Some(operation)) => Operations::One(operation),
            (Operations::One(same), Some(operation)) if same == operation => self,
            _ => Operations::Several,
        }
    }

    /// True if these may give data of this operation, or a credit. Any receiver of data may give a credit for earlier
    /// data.
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

    /// Sixteen bits, since an operation has fifteen.
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

/// A wait of a rank's kernels.
#[derive(Clone, Debug)]
pub struct DeviceWait<'a> {
    /// The rank that would have to provide the missing signal.
    pub peer: usize,
    /// What is needed. `None`: a launch of that rank must come before this one starts.
    pub needs: Option<Crossing>,
    /// What the waiting launch exchanges with all its peers.
    pub has: &'a [Dealings],
    /// Description of the launch.
    pub doing: &'a str,
    /// Identifies the launch, and how many of its waits have already ended.
    pub since: (u64, u64),
    /// The number of the host's wait for this launch; 0 if it is in none, or not known to be.
    pub host_waits: u64,
}

/// The published wait of a rank's kernels.
#[repr(C)]
pub(super) struct DeviceLine {
    /// Same meaning as in the host's line.
    epoch: AtomicU64,
    peer: AtomicU64,
    /// The launch, and how many of its waits have ended: observations of two launches are never taken for one wait.
    since: [AtomicU64; 2],
    /// What is needed, encoded as in [`Crossing`]; 0: the launch needs to start.
    needs: AtomicU64,
    /// The number of the host's wait for the launch, or 0.
    host_waits: AtomicU64,
    pub(super) probe: AtomicU64,
    pub(super) looked: AtomicU64,
    /// Epoch of the host's last wait in which the rank had nothing on its GPU.
    pub(super) idle_in: AtomicU64,
    /// Number of peers that the launch exchanges data with. The line lists as many of them as fit.
    peers: AtomicU64,
    has: [AtomicU64; MOST_PEERS],
}

/// Peers of a launch that fit in its line. With more, the rest is unknown, and the launch is taken to have everything
/// for them.
const MOST_PEERS: usize = 32;

/// The contents of a kernel line at one moment.
pub(super) struct DeviceSeen {
    pub(super) epoch: u64,
    pub(super) peer: usize,
    pub(super) needs: Option<Crossing>,
    /// True if the rank's host waits until its kernels have ended.
    pub(super) host_waits: bool,
    /// Number of peers the launch exchanges data with; not all of them may be listed.
    peers: usize,
    has: Vec<Dealings>,
}

impl DeviceSeen {
    /// True if this launch, of rank `own`, may give what a launch of rank `to` needs.
    pub(super) fn may_give(&self, own: usize, to: usize, needs: Crossing) -> bool {
        match self.has.iter().find(|with| with.peer == to) {
            Some(with) if needs.from == own => with.sent.may_give(needs.operation),
            Some(with) => with.received.may_give(needs.operation),
            None => self.is_pending() || self.peers > self.has.len(),
        }
    }

    /// True if the launch is still waiting to start. What it exchanges is not published then.
    pub(super) fn is_pending(&self) -> bool {
        self.needs.is_none()
    }
}

impl Status {
    /// Like [`Status::probe`], for waits of kernels.
    pub(crate) fn device_probe(&self) -> u64 {
        self.words(self.rank).device.0.probe.load(Ordering::Acquire)
    }

    /// Publishes that kernels of this rank wait, and that they looked after the host read `probe`.
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

    /// The epoch of the wait that this rank's host is in, if it is in one.
    pub(crate) fn host_waits_since(&self) -> Option<u64> {
        // Acquire: whatever is checked next is checked during that wait, or later.
        Some(self.words(self.rank).line.0.epoch.load(Ordering::Acquire)).filter(|epoch| epoch % 2 == 1)
    }

    /// Records that this rank had nothing on its GPU at a moment after the host was seen in this wait. If the host is
    /// still in it, nothing will be there until it ends: the waiting thread is the only one that can launch.
    pub(crate) fn device_is_idle(&self, since: u64) {
        if self.is_still(self.rank, since) {
            // Release: the end of all launches, and what they gave, come before this store.
            self.words(self.rank).device.0.idle_in.store(since, Ordering::Release);
        }
    }

    /// The wait of a rank's kernels, if they wait.
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
