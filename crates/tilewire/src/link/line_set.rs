//! Sets of control lines: those of the transport, and those of each window.
//!
//! A set is in use as long as something holds its [`LineSet`]: the window, what was built with it, and every handle to
//! the memory of its lines. So a captured graph keeps its set, too. A new window gets a set that no rank uses.

use crate::tensor::{Guard, Memory};
use crate::transport::{PeerEndpoint, PeerMemory, PostedPeer, Signals, There, TransportError, WindowLines};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A set of control lines, the same on all ranks: READY, DONE, SENT and the counters of `direct`, and for windows
/// SIGNAL and COUNTER. [`Transport::endpoint_of`](super::Transport::endpoint_of) has the memory of its lines.
///
/// The default is the set of the transport itself, which launches without a window use. Launches that use only the sets
/// of different windows share no line.
#[derive(Clone, Default)]
pub struct LineSet {
    number: usize,
    /// Marks the set as used.
    used: Option<Arc<Used>>,
    /// The number of the [`LineSets`] that it is of. 0: of none.
    of: usize,
}

struct Used;

impl LineSet {
    /// The set with this number, for a transport that itself keeps account of which sets are in use. Number 0 is the
    /// transport's own.
    pub fn numbered(number: usize) -> LineSet {
        LineSet { number, used: None, of: 0 }
    }

    /// Its number. 0 for that of the transport.
    pub fn number(&self) -> usize {
        self.number
    }

    /// True if it is that of the transport.
    pub fn is_own(&self) -> bool {
        self.number == 0
    }

    /// This set on a transport with these sets. On another transport than its window's, it is that of the transport:
    /// nothing is known there about which numbers are in use.
    pub(super) fn on(&self, sets: &LineSets) -> LineSet {
        if self.of == sets.serial { self.clone() } else { LineSet::default() }
    }

    /// This endpoint, where the handles of the set's own lines keep the set in use.
    pub(super) fn held_by(&self, endpoint: PeerEndpoint) -> PeerEndpoint {
        let Some(used) = &self.used else { return endpoint };
        let hold = |memory: Memory| memory.holding(used.clone() as Guard);
        let side = |of: PeerMemory| {
            let Signals { ready, done, signals, .. } = of.signals.clone();
            let lines = Signals { ready: hold(ready), done: hold(done), signals: hold(signals), ..of.signals };
            PeerMemory { signals: lines, ..of }
        };
        let PeerEndpoint { here, there, starts, window: WindowLines { counters, tallies } } = endpoint;
        let there = match there {
            There::Mapped(there) => There::Mapped(side(there)),
            There::Posted(peer) => There::Posted(PostedPeer { sent: hold(peer.sent.clone()), ..peer }),
        };
        let window = WindowLines { counters: hold(counters), tallies: hold(tallies) };
        PeerEndpoint { here: side(here), there, starts: hold(starts), window }
    }
}

impl fmt::Debug for LineSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LineSet({})", self.number)
    }
}

/// Which sets a rank uses.
pub(super) struct LineSets {
    /// By number, from 1 on.
    used: Mutex<Vec<Weak<Used>>>,
    /// Tells them from those of other transports of this process.
    serial: usize,
}

/// Line sets that were made in this process.
static MADE: AtomicUsize = AtomicUsize::new(0);

impl LineSets {
    /// None of `count` sets is used.
    pub(super) fn new(count: usize) -> LineSets {
        // Relaxed: it only has to differ each time. From 1 on.
        let serial = MADE.fetch_add(1, Ordering::Relaxed) + 1;
        LineSets { used: Mutex::new((0..count).map(|_| Weak::new()).collect()), serial }
    }

    /// The numbers of the sets in use, in words.
    pub(super) fn said(&self) -> String {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = (1..).zip(used.iter()).filter(|(_, used)| used.strong_count() > 0);
        numbers.map(|(number, _): (usize, _)| number.to_string()).collect::<Vec<_>>().join(" ")
    }

    /// The first set that is in none of these lists, which have what [`said`](LineSets::said) returned on every rank.
    /// That of the transport if it has no others. From now on it is used.
    pub(super) fn take<'a>(&self, said: impl IntoIterator<Item = &'a str>) -> Result<LineSet, TransportError> {
        let taken: Vec<usize> =
            said.into_iter().flat_map(|said| said.split(' ')).filter_map(|number| number.parse().ok()).collect();
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.is_empty() {
            return Ok(LineSet::default());
        }
        let number = (1..=used.len()).find(|number| !taken.contains(number));
        let number = number.ok_or(TransportError::NoLineSet { sets: used.len() })?;
        let mark = Arc::new(Used);
        used[number - 1] = Arc::downgrade(&mark);
        Ok(LineSet { number, used: Some(mark), of: self.serial })
    }

    /// As [`take`](LineSets::take), for all ranks of one thread.
    #[cfg(feature = "cuda")]
    pub(super) fn take_all(ranks: &[&LineSets]) -> Result<Vec<LineSet>, TransportError> {
        let said: Vec<String> = ranks.iter().map(|sets| sets.said()).collect();
        ranks.iter().map(|sets| sets.take(said.iter().map(String::as_str))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Rank;
    use crate::transport::layout::{Geometry, Layout};

    #[test]
    fn a_set_is_given_again_when_no_rank_and_no_memory_holds_it() {
        let ranks = [LineSets::new(2), LineSets::new(2)];
        let take = || {
            let said = [ranks[0].said(), ranks[1].said()];
            let take = |rank: &LineSets| rank.take(said.iter().map(String::as_str));
            Ok::<_, TransportError>([take(&ranks[0])?, take(&ranks[1])?])
        };
        let numbers = |sets: &[LineSet; 2]| [sets[0].number(), sets[1].number()];
        let (first, second) = (take().unwrap(), take().unwrap());
        assert_eq!((numbers(&first), numbers(&second)), ([1, 1], [2, 2]));
        assert!(matches!(take(), Err(TransportError::NoLineSet { sets: 2 })));
        // The memory of one rank's lines still holds it, and other memory of the endpoint does not.
        let [here, there] = first;
        let geometry = Geometry {
            world_size: 2,
            per_peer_bytes: 64,
            max_blocks_per_peer: 1,
            max_slots: 1,
            max_copies: 1,
            packet_bytes: 0,
            window_sets: 2,
        };
        let layout = Layout::new(geometry).unwrap();
        let segment = Memory::zeroed_shared(layout.bytes());
        let [mine, theirs] = [0, 1].map(|rank| (Rank::new(rank), &segment));
        let PeerEndpoint { here: at, starts, .. } = there.held_by(PeerEndpoint::between_in(&layout, 1, mine, theirs));
        let (lines, _other) = (starts.part(0, 64), (at.staging, at.signals.tail));
        drop(starts);
        drop(at.signals.ready);
        drop((at.signals.done, at.signals.signals));
        drop((here, there));
        let error = take().unwrap_err().to_string();
        assert!(error.contains("window_sets"), "{error}");
        drop(lines);
        assert_eq!(numbers(&take().unwrap()), [1, 1]);
        drop(second);
        assert_eq!(LineSets::new(0).take([]).unwrap().number(), 0, "without sets all windows share the transport's");
    }
}
