//! Ranks of one process that share a device start together.
//!
//! While anything runs on a stream of a context, the driver lets some calls wait until it has ended: loading and unloading a module, freeing
//! memory, pinned memory too (measured: `cuModuleLoadData`, `cuModuleUnload`, `cuMemFree`, `cuMemFreeHost`). A kernel that waits for a rank
//! whose thread is in such a call would never end. So no launch starts before all are there that it could wait for:
//!
//! ```text
//!   rank 0  run() ──▶ ┐                     0 → 1 → 2 → 3 → 0, a ring: 0 waits for 1 and 3, they wait for 2
//!   rank 1  run() ──▶ ├ pending
//!   rank 3  run() ──▶ ┘
//!   rank 2  loads a module, run() ──▶ the last one: it puts all four on their streams
//! ```
//!
//! A launch says which legs it has: from which rank to which. Both ends of a leg count their launches, and the launches of one number belong
//! together. Whoever comes looks for all that its launch depends on, over legs and over launches that came before on the same streams;
//! if none is missing, it starts them all. Nobody waits in `run()`: what needs the order of a stream ([`Muster::settle`]) does, and after
//! the deadline it starts what is there, so that the kernel itself says for whom it waited.

use super::device::held;
use super::error::CudaError;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A direction between two ranks, and which end of it a launch is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LegEnd {
    /// Who sends.
    pub from: u32,
    /// Who receives.
    pub to: u32,
    /// Whether this is the sender's end.
    pub sends: bool,
}

impl LegEnd {
    fn other(self) -> LegEnd {
        LegEnd { sends: !self.sends, ..self }
    }
}

/// A launch that can be put on its stream by any thread.
pub(super) trait Order: Send {
    /// Its stream, as a number.
    fn stream(&self) -> usize;
    /// How long its waits may last.
    fn deadline(&self) -> Option<Duration>;
    /// Puts it there. `late`: its deadline has passed already.
    fn submit(self, late: bool) -> Result<(), CudaError>;
}

/// How putting a launch on its stream went, where that went wrong.
#[derive(Default)]
pub(super) struct Fate(Mutex<Option<CudaError>>);

impl Fate {
    /// What went wrong, once.
    pub(super) fn check(&self) -> Result<(), CudaError> {
        held(&self.0).take().map_or(Ok(()), Err)
    }
}

/// Where launches of ranks that share a device wait for each other.
pub(super) struct Muster<O> {
    state: Mutex<State<O>>,
    changed: Condvar,
}

struct State<O> {
    /// Launches so far of each end of a leg.
    counts: HashMap<LegEnd, u64>,
    /// By number of arrival.
    pending: BTreeMap<u64, Pending<O>>,
    /// Which of the pending launches is number so and so of an end.
    ends: HashMap<(LegEnd, u64), u64>,
    next: u64,
    /// Whether launches start at once: the ranks are told to give up.
    open: bool,
}

struct Pending<O> {
    order: O,
    ends: Vec<(LegEnd, u64)>,
    since: Instant,
    fate: Arc<Fate>,
}

impl<O> Default for Muster<O> {
    fn default() -> Self {
        let (counts, pending, ends) = (HashMap::new(), BTreeMap::new(), HashMap::new());
        Muster { state: Mutex::new(State { counts, pending, ends, next: 0, open: false }), changed: Condvar::new() }
    }
}

impl<O: Order> Muster<O> {
    /// A launch is ready to start. It does when all are there that it depends on.
    pub(super) fn arrive(&self, ends: &[LegEnd], order: O, fate: &Arc<Fate>) {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let numbered = ends.iter().map(|&end| {
            let count = state.counts.entry(end).or_default();
            *count += 1;
            (end, *count)
        });
        let ends: Vec<_> = numbered.collect();
        state.ends.extend(ends.iter().map(|&end| (end, number)));
        state.pending.insert(number, Pending { order, ends, since: Instant::now(), fate: fate.clone() });
        let ready = if state.open { Some(state.pending.keys().copied().collect()) } else { state.needed_by(number) };
        if let Some(ready) = ready {
            state.start(ready, false);
            self.changed.notify_all();
        }
    }

    /// Waits until all launches of a stream are on it, as long as their deadlines allow; those that are not by then start all the same.
    pub(super) fn settle(&self, stream: usize) {
        let mut state = self.state();
        loop {
            let of_stream = |state: &State<O>| -> BTreeSet<u64> {
                state
                    .pending
                    .iter()
                    .filter(|(_, one)| one.order.stream() == stream)
                    .map(|(&number, _)| number)
                    .collect()
            };
            let mine = of_stream(&state);
            let Some(first) = mine.first().map(|number| &state.pending[number]) else { return };
            let waited = first.since.elapsed();
            state = match first.order.deadline().map(|deadline| deadline.saturating_sub(waited)) {
                Some(Duration::ZERO) => {
                    state.start(mine, true);
                    self.changed.notify_all();
                    return;
                }
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Launches of these ends have started without being asked for: a replay has them.
    pub(super) fn passed(&self, ends: &[LegEnd]) {
        let mut state = self.state();
        let mut met = BTreeSet::new();
        for end in ends {
            let count = state.counts.entry(*end).or_default();
            *count += 1;
            let count = *count;
            met.extend(state.ends.get(&(end.other(), count)).copied());
        }
        for number in met {
            if let Some(ready) = state.pending.contains_key(&number).then(|| state.needed_by(number)).flatten() {
                state.start(ready, false);
            }
        }
        self.changed.notify_all();
    }

    /// From now on launches start at once: their waits end, whoever is missing.
    pub(super) fn open(&self) {
        let mut state = self.state();
        state.open = true;
        let all = state.pending.keys().copied().collect();
        state.start(all, false);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State<O>> {
        held(&self.state)
    }
}

impl<O: Order> State<O> {
    /// All pending launches that one depends on, itself included; `None` if one has not come.
    fn needed_by(&self, number: u64) -> Option<BTreeSet<u64>> {
        let (mut needed, mut open) = (BTreeSet::from([number]), vec![number]);
        while let Some(number) = open.pop() {
            let one = &self.pending[&number];
            let mut also: Vec<u64> = Vec::new();
            for &(end, count) in &one.ends {
                let other = end.other();
                if self.counts.get(&other).copied().unwrap_or(0) < count {
                    return None;
                }
                // Where it is not pending, it has started.
                also.extend(self.ends.get(&(other, count)));
            }
            let before = self.pending.range(..number).filter(|(_, other)| other.order.stream() == one.order.stream());
            also.extend(before.map(|(&number, _)| number));
            open.extend(also.into_iter().filter(|&number| needed.insert(number)));
        }
        Some(needed)
    }

    /// In the order in which they came: those of one stream stay in theirs.
    fn start(&mut self, numbers: BTreeSet<u64>, late: bool) {
        for number in numbers {
            let Some(one) = self.pending.remove(&number) else { continue };
            one.ends.iter().for_each(|end| _ = self.ends.remove(end));
            if let Err(error) = one.order.submit(late) {
                *held(&one.fate.0) = Some(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Log = Arc<Mutex<Vec<(usize, bool)>>>;

    struct Noted {
        stream: usize,
        deadline: Option<Duration>,
        log: Log,
    }

    impl Order for Noted {
        fn stream(&self) -> usize {
            self.stream
        }

        fn deadline(&self) -> Option<Duration> {
            self.deadline
        }

        fn submit(self, late: bool) -> Result<(), CudaError> {
            held(&self.log).push((self.stream, late));
            Ok(())
        }
    }

    #[derive(Default)]
    struct Ranks {
        muster: Muster<Noted>,
        log: Log,
    }

    impl Ranks {
        /// A launch of a rank on its own stream that sends to one rank and receives from another.
        fn run(&self, rank: u32, to: Option<u32>, from: Option<u32>) {
            let send = to.map(|to| LegEnd { from: rank, to, sends: true });
            let receive = from.map(|from| LegEnd { from, to: rank, sends: false });
            let ends: Vec<_> = send.into_iter().chain(receive).collect();
            let order =
                Noted { stream: rank as usize, deadline: Some(Duration::from_millis(20)), log: self.log.clone() };
            self.muster.arrive(&ends, order, &Arc::default());
        }

        fn shift(&self, rank: u32, ranks: u32) {
            self.run(rank, Some((rank + 1) % ranks), Some((rank + ranks - 1) % ranks));
        }

        fn started(&self) -> Vec<usize> {
            std::mem::take(&mut *held(&self.log)).into_iter().map(|(stream, _)| stream).collect()
        }
    }

    #[test]
    fn a_ring_starts_when_the_last_one_comes() {
        let ranks = Ranks::default();
        for turn in 0..3 {
            for rank in [turn, turn + 1, turn + 3].map(|rank| rank % 4) {
                ranks.shift(rank, 4);
                assert_eq!(ranks.started(), []);
            }
            ranks.shift((turn + 2) % 4, 4);
            assert_eq!(ranks.started().len(), 4);
        }
    }

    #[test]
    fn a_pair_does_not_wait_for_others() {
        let ranks = Ranks::default();
        ranks.run(2, Some(3), None);
        ranks.run(0, Some(1), None);
        ranks.run(1, None, Some(0));
        assert_eq!(ranks.started(), [0, 1]);
        ranks.run(3, None, Some(2));
        assert_eq!(ranks.started(), [2, 3]);
    }

    #[test]
    fn a_launch_waits_for_those_before_it_on_its_stream_and_on_that_of_its_peer() {
        let ranks = Ranks::default();
        ranks.run(1, None, Some(0));
        ranks.run(1, Some(2), None);
        ranks.run(2, None, Some(1));
        // 2 waits for the second launch of 1, which comes after its first, which waits for 0.
        assert_eq!(ranks.started(), []);
        ranks.run(0, Some(1), None);
        assert_eq!(ranks.started(), [1, 1, 2, 0]);
    }

    #[test]
    fn launches_of_a_leg_are_counted() {
        let ranks = Ranks::default();
        ranks.run(0, Some(1), None);
        ranks.run(0, Some(1), None);
        ranks.run(1, None, Some(0));
        assert_eq!(ranks.started(), [0, 1]);
        ranks.run(1, None, Some(0));
        assert_eq!(ranks.started(), [0, 1]);
    }

    #[test]
    fn after_its_deadline_a_launch_starts_alone_and_is_told_so() {
        let ranks = Ranks::default();
        ranks.run(0, Some(1), None);
        ranks.muster.settle(7);
        assert_eq!(ranks.started(), []);
        ranks.muster.settle(0);
        assert_eq!(*held(&ranks.log), [(0, true)]);
        ranks.run(1, None, Some(0));
        assert_eq!(*held(&ranks.log), [(0, true), (1, false)]);
    }

    #[test]
    fn whoever_settles_is_woken_by_the_last_one() {
        let ranks = Ranks::default();
        let send = [LegEnd { from: 0, to: 1, sends: true }];
        ranks.muster.arrive(&send, Noted { stream: 0, deadline: None, log: ranks.log.clone() }, &Arc::default());
        std::thread::scope(|scope| {
            scope.spawn(|| ranks.muster.settle(0));
            ranks.run(1, None, Some(0));
        });
        assert_eq!(ranks.started(), [0, 1]);
    }

    #[test]
    fn a_launch_whose_peer_is_replayed_starts() {
        let ranks = Ranks::default();
        ranks.run(0, Some(1), None);
        ranks.muster.passed(&[LegEnd { from: 0, to: 1, sends: false }]);
        assert_eq!(ranks.started(), [0]);
        ranks.muster.passed(&[LegEnd { from: 0, to: 1, sends: true }]);
        ranks.run(1, None, Some(0));
        assert_eq!(ranks.started(), [1]);
    }

    #[test]
    fn once_open_nothing_waits() {
        let ranks = Ranks::default();
        ranks.shift(0, 3);
        ranks.muster.open();
        assert_eq!(ranks.started(), [0]);
        ranks.shift(1, 3);
        assert_eq!(ranks.started(), [1]);
    }
}
