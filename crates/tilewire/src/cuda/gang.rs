//! Gang launch: ranks of one process that share a device start together.
//!
//! While anything runs on a stream of a context, some driver calls block until it has ended: loading and unloading a
//! module, and freeing memory, even pinned memory (docs/decisions/0013 lists them). A kernel that waits for a rank
//! whose thread is in such a call would never end. So no launch starts before all launches that it could wait for have
//! arrived:
//!
//! ```text
//!   rank 0  run() ──▶ ┐                     0 → 1 → 2 → 3 → 0, a ring: 0 waits for 1 and 3, they wait for 2
//!   rank 1  run() ──▶ ├ pending
//!   rank 3  run() ──▶ ┘
//!   rank 2  loads a module, run() ──▶ the last one: it puts all four on their streams
//! ```
//!
//! A launch names its legs: from which rank to which. Both ends of a leg count their launches, and launches with equal
//! numbers belong together. A launch starts when all launches that it depends on have arrived, over legs and over
//! earlier launches on the same streams.
//!
//! No thread waits in `run()`. Code that needs the order of a stream ([`GangLaunch::flush`]) waits until the stream's
//! launches have started. Two things end that wait early and start what has arrived:
//!
//! - All missing launches would come from ranks that are themselves flushing, and so would everything that those lack.
//!   Then none of them would ever arrive.
//! - [`GRACE`] has passed. A rank may wait on the host for something that another does after its launch. Kernels that
//!   start this way wait for the missing rank as kernels do, and report whom they waited for.
//!
//! While a thread is in a driver call that may take long (it loads a program, or waits for a copy) the grace does not
//! run. The missing rank may be in that call, on a busy machine for seconds, and a started kernel could keep it from
//! ever arriving: loads wait for kernels, and a copy may be queued behind one in the hardware.

use super::device::held;
use super::error::CudaError;
use crate::ir::{Kernel, Purpose};
use crate::sync::{Arc, AtomicUsize, Condvar, Instant, Mutex, MutexGuard, Ordering, PoisonError};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// A direction between two ranks, and the end of it that a launch is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct LegEnd {
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// True for the sender's end.
    pub sends: bool,
}

impl LegEnd {
    /// The ends of a kernel of rank `me`, by peer, from the purposes of its parameters.
    pub(super) fn of(kernel: &Kernel, me: u32) -> Vec<LegEnd> {
        let end = |purpose: &Purpose| match *purpose {
            // What a rank tells itself needs nobody else's launch.
            Purpose::Transfer { from, to, .. } if (from == me) != (to == me) => {
                Some(LegEnd { from, to, sends: from == me })
            }
            _ => None,
        };
        let mut ends: Vec<LegEnd> = kernel.purposes.values().flatten().filter_map(end).collect();
        ends.sort_unstable_by_key(|end| (if end.sends { end.to } else { end.from }, !end.sends));
        ends.dedup();
        ends
    }

    fn other(self) -> LegEnd {
        LegEnd { sends: !self.sends, ..self }
    }

    /// The rank of this end.
    fn rank(self) -> u32 {
        if self.sends { self.from } else { self.to }
    }
}

/// The longest time that a flush waits for other ranks; half the deadline if that is less.
const GRACE: Duration = Duration::from_secs(2);
/// The same, including the time in which the clock stood still; three quarters of the deadline if that is less.
const MOST_GRACE: Duration = Duration::from_secs(20);

/// The ends whose other ends are not among these. The others start together with their peers.
pub(super) fn open_ends(ends: impl Iterator<Item = LegEnd>) -> Vec<LegEnd> {
    let mut open: Vec<LegEnd> = Vec::new();
    for end in ends {
        match open.iter().position(|other| *other == end.other()) {
            Some(met) => _ = open.swap_remove(met),
            None => open.push(end),
        }
    }
    open
}

/// A launch that can be put on its stream by any thread.
pub(super) trait Order: Send {
    /// Its stream, as a number.
    fn stream(&self) -> usize;
    /// How long its waits may last.
    fn deadline(&self) -> Option<Duration>;
    /// The total time that threads have spent in long calls on its device.
    fn busy(&self) -> Duration;
    /// Puts it on its stream.
    fn submit(self) -> Result<(), CudaError>;
}

/// The error of putting a launch on its stream, if there was one.
#[derive(Default)]
pub(super) struct LaunchOutcome(Mutex<Option<CudaError>>);

impl LaunchOutcome {
    /// Returns the error, once.
    pub(super) fn check(&self) -> Result<(), CudaError> {
        held(&self.0).take().map_or(Ok(()), Err)
    }
}

/// Where launches of ranks that share a device wait for each other.
pub(super) struct GangLaunch<O> {
    state: Mutex<State<O>>,
    changed: Condvar,
    /// Number of pending launches: a thread that has put none on its own stream need not check further.
    waiting: AtomicUsize,
    /// True if one thread plays all the ranks: while it flushes, no other launch can arrive.
    alone: bool,
}

struct State<O> {
    /// Launches so far of each end of a leg.
    counts: HashMap<LegEnd, u64>,
    /// Pending launches by order of arrival.
    pending: BTreeMap<u64, Pending<O>>,
    /// The pending launches of each stream.
    streams: BTreeMap<usize, BTreeSet<u64>>,
    /// The pending launch with a given number at an end.
    ends: HashMap<(LegEnd, u64), u64>,
    next: u64,
    /// Ranks whose thread is in [`GangLaunch::flush`], each with its stream.
    flushing: Vec<(u32, usize)>,
    /// True if launches start immediately, because the ranks were told to give up.
    open: bool,
}

struct Pending<O> {
    order: O,
    ends: Vec<(LegEnd, u64)>,
    since: Instant,
    /// [`Order::busy`] at that time.
    busy: Duration,
    outcome: Arc<LaunchOutcome>,
}

impl<O: Order> Pending<O> {
    /// The remaining time that it waits for others. Long calls stop the clock, but not forever.
    fn grace(&self) -> Duration {
        let (deadline, waited) = (self.order.deadline(), self.since.elapsed());
        let grace = deadline.map_or(GRACE, |deadline| GRACE.min(deadline / 2));
        let most = deadline.map_or(MOST_GRACE, |deadline| MOST_GRACE.min(deadline / 4 * 3));
        let busy = self.order.busy().saturating_sub(self.busy);
        grace.saturating_sub(waited.saturating_sub(busy)).min(most.saturating_sub(waited))
    }
}

/// The dependencies of a launch.
struct Needed {
    /// Pending launches, including itself.
    pending: BTreeSet<u64>,
    /// Ranks whose launch has not arrived.
    missing: BTreeSet<u32>,
}

impl<O: Order> GangLaunch<O> {
    /// For ranks on several threads, or all on one (`alone`).
    pub(super) fn new(alone: bool) -> Self {
        let (counts, pending, ends) = (HashMap::new(), BTreeMap::new(), HashMap::new());
        let (streams, flushing) = (BTreeMap::new(), Vec::new());
        let state = State { counts, pending, streams, ends, next: 0, flushing, open: false };
        GangLaunch { state: Mutex::new(state), changed: Condvar::new(), waiting: AtomicUsize::new(0), alone }
    }

    /// A launch is ready. It starts when all launches that it depends on have arrived.
    pub(super) fn arrive(&self, ends: &[LegEnd], order: O, outcome: &Arc<LaunchOutcome>) {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let ends: Vec<_> = ends.iter().map(|&end| (end, state.count(end))).collect();
        state.ends.extend(ends.iter().map(|&end| (end, number)));
        state.streams.entry(order.stream()).or_default().insert(number);
        state.pending.insert(
            number,
            Pending { since: Instant::now(), busy: order.busy(), order, ends, outcome: outcome.clone() },
        );
        state.start_ready();
        self.tell(&state);
    }

    /// Launches of these ends have started without arriving here: a replay contains them.
    pub(super) fn passed(&self, ends: &[LegEnd]) {
        let mut state = self.state();
        for &end in ends {
            state.count(end);
        }
        state.start_ready();
        self.tell(&state);
    }

    /// Waits until all launches of a stream have started; see the head of this file.
    pub(super) fn flush(&self, stream: usize) {
        // Relaxed: a stream's launches are made by its own thread, or ordered by the threads that share it.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut state = self.state();
        let mut flushes: Option<u32> = None;
        while let Some((number, first)) = state.first(stream) {
            let rank = first.ends.first().map(|(end, _)| end.rank());
            let left = first.grace();
            if let (None, Some(rank)) = (flushes, rank) {
                flushes = Some(rank);
                state.flushing.push((rank, stream));
                self.changed.notify_all();
            }
            let needed = state.needed_by(number);
            if self.alone || left.is_zero() || state.nobody_comes(&needed.missing) {
                state.start(needed.pending);
                state.start_ready();
                self.tell(&state);
                continue;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(place) = flushes.and_then(|rank| state.flushing.iter().position(|&other| other == (rank, stream))) {
            state.flushing.swap_remove(place);
        }
    }

    /// True if launches of a stream wait to start.
    pub(super) fn has_pending(&self, stream: usize) -> bool {
        self.state().streams.contains_key(&stream)
    }

    /// The first launch of a stream that waits to start, and a rank whose launch has not arrived for it.
    pub(super) fn lacks(&self, stream: usize) -> Option<(u64, u32)> {
        let state = self.state();
        let (number, _) = state.first(stream)?;
        Some((number, *state.needed_by(number).missing.first()?))
    }

    /// Starts this launch of a stream, if it still waits, with what has arrived: the missing ranks never will.
    pub(super) fn start_without(&self, stream: usize, number: u64) {
        let mut state = self.state();
        if state.first(stream).is_some_and(|(first, _)| first == number) {
            let needed = state.needed_by(number);
            state.start(needed.pending);
            state.start_ready();
            self.tell(&state);
        }
    }

    /// Drops the launches of a stream that have not started.
    pub(super) fn withdraw(&self, stream: usize) {
        let mut state = self.state();
        while let Some((number, _)) = state.first(stream) {
            state.take(number);
        }
        self.tell(&state);
    }

    /// From now on launches start immediately: their waits end, whichever rank is missing.
    pub(super) fn open(&self) {
        let mut state = self.state();
        state.open = true;
        state.start_ready();
        self.tell(&state);
    }

    /// Wakes the waiting threads after a change.
    fn tell(&self, state: &State<O>) {
        self.waiting.store(state.pending.len(), Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State<O>> {
        held(&self.state)
    }
}

impl<O: Order> State<O> {
    /// Counts one more launch of an end and returns its number.
    fn count(&mut self, end: LegEnd) -> u64 {
        let count = self.counts.entry(end).or_default();
        *count += 1;
        *count
    }

    /// True if no launch can arrive from these ranks: each waits for a launch of its own to start, and so do all ranks
    /// that those lack.
    fn nobody_comes(&self, missing: &BTreeSet<u32>) -> bool {
        let (mut seen, mut open) = (missing.clone(), Vec::from_iter(missing.iter().copied()));
        while let Some(rank) = open.pop() {
            let Some(number) = self.flushes_on(rank) else { return false };
            open.extend(self.needed_by(number).missing.into_iter().filter(|&rank| seen.insert(rank)));
        }
        true
    }

    /// The launch that a rank waits for in `flush`. `None` once it has started: the thread may still be there, on a
    /// busy machine for long, but it is about to continue.
    fn flushes_on(&self, rank: u32) -> Option<u64> {
        let streams = self.flushing.iter().filter(|(other, _)| *other == rank).map(|&(_, stream)| stream);
        streams.filter_map(|stream| self.first(stream)).map(|(number, _)| number).next()
    }

    /// The first pending launch of a stream.
    fn first(&self, stream: usize) -> Option<(u64, &Pending<O>)> {
        let &number = self.streams.get(&stream)?.first()?;
        Some((number, &self.pending[&number]))
    }

    /// The dependencies of a pending launch.
    fn needed_by(&self, number: u64) -> Needed {
        let mut needed = Needed { pending: BTreeSet::from([number]), missing: BTreeSet::new() };
        let mut open = vec![number];
        while let Some(number) = open.pop() {
            let one = &self.pending[&number];
            let mut also: Vec<u64> = Vec::new();
            for &(end, count) in &one.ends {
                let other = end.other();
                if self.counts.get(&other).copied().unwrap_or(0) < count {
                    needed.missing.insert(other.rank());
                }
                // If it has arrived and is not pending, it has started.
                also.extend(self.ends.get(&(other, count)));
            }
            // And the one before it on its stream, which needs the one before that.
            also.extend(self.streams[&one.order.stream()].range(..number).next_back());
            open.extend(also.into_iter().filter(|&number| needed.pending.insert(number)));
        }
        needed
    }

    /// Starts everything that depends on no missing launch: a new arrival may be all that several have waited for. Only
    /// the first launch of a stream needs checking, however far its rank is ahead: all others need it.
    fn start_ready(&mut self) {
        if self.open {
            return self.start(self.pending.keys().copied().collect());
        }
        loop {
            let first = |stream: &BTreeSet<u64>| stream.first().map(|&number| self.needed_by(number));
            let ready = self.streams.values().filter_map(first).find(|needed| needed.missing.is_empty());
            let Some(ready) = ready else { return };
            self.start(ready.pending);
        }
    }

    /// Starts launches in the order of arrival, which is also the order of each stream.
    fn start(&mut self, numbers: BTreeSet<u64>) {
        for number in numbers {
            let Some(one) = self.take(number) else { continue };
            if let Err(error) = one.order.submit() {
                *held(&one.outcome.0) = Some(error);
            }
        }
    }

    fn take(&mut self, number: u64) -> Option<Pending<O>> {
        let one = self.pending.remove(&number)?;
        one.ends.iter().for_each(|end| _ = self.ends.remove(end));
        let stream = one.order.stream();
        if let Some(numbers) = self.streams.get_mut(&stream) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.streams.remove(&stream);
            }
        }
        Some(one)
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::Calls;
    use super::*;
    use crate::ir::{Builder, Param, Part};

    type Log = Arc<Mutex<Vec<usize>>>;

    struct Noted {
        stream: usize,
        deadline: Option<Duration>,
        calls: Arc<Calls>,
        log: Log,
    }

    impl Order for Noted {
        fn stream(&self) -> usize {
            self.stream
        }

        fn deadline(&self) -> Option<Duration> {
            self.deadline
        }

        fn busy(&self) -> Duration {
            self.calls.busy()
        }

        fn submit(self) -> Result<(), CudaError> {
            held(&self.log).push(self.stream);
            Ok(())
        }
    }

    struct Ranks {
        gang: GangLaunch<Noted>,
        calls: Arc<Calls>,
        log: Log,
    }

    impl Ranks {
        fn new() -> Ranks {
            Ranks { gang: GangLaunch::new(false), calls: Arc::default(), log: Log::default() }
        }

        /// A launch of a rank on its own stream that sends to one rank and receives from another.
        fn run(&self, rank: u32, to: Option<u32>, from: Option<u32>) {
            self.run_until(rank, to, from, Some(Duration::from_millis(20)));
        }

        fn run_until(&self, rank: u32, to: Option<u32>, from: Option<u32>, deadline: Option<Duration>) {
            let send = to.map(|to| LegEnd { from: rank, to, sends: true });
            let receive = from.map(|from| LegEnd { from, to: rank, sends: false });
            let ends: Vec<_> = send.into_iter().chain(receive).collect();
            let order = Noted { stream: rank as usize, deadline, calls: self.calls.clone(), log: self.log.clone() };
            self.gang.arrive(&ends, order, &Arc::default());
        }

        fn shift(&self, rank: u32, ranks: u32) {
            self.run(rank, Some((rank + 1) % ranks), Some((rank + ranks - 1) % ranks));
        }

        fn started(&self) -> Vec<usize> {
            std::mem::take(&mut *held(&self.log))
        }
    }

    /// This would take hours if every arrival searched all pending launches.
    #[test]
    fn a_rank_may_be_far_ahead() {
        let (ranks, launches) = (Ranks::new(), 3000);
        for rank in [0, 2, 1] {
            assert_eq!(ranks.started(), [0usize; 0]);
            (0..launches).for_each(|_| ranks.shift(rank, 3));
        }
        let started = ranks.started();
        assert_eq!(started.len(), 3 * launches);
        for turn in started.chunks(3) {
            assert_eq!(BTreeSet::from_iter(turn), BTreeSet::from([&0, &1, &2]));
        }
    }

    #[test]
    fn a_long_call_stops_the_clock() {
        let (ranks, deadline) = (Ranks::new(), Duration::from_secs(20));
        ranks.run_until(0, Some(1), Some(1), Some(deadline));
        std::thread::scope(|scope| {
            let flushed = scope.spawn(|| {
                ranks.gang.flush(0);
                ranks.started()
            });
            ranks.calls.during(|| {
                std::thread::sleep(GRACE * 5 / 4);
                assert_eq!(ranks.started(), [0usize; 0], "longer than the grace, and nobody started");
                ranks.run_until(1, Some(0), Some(0), Some(deadline));
            });
            let mut started = flushed.join().unwrap();
            started.sort_unstable();
            assert_eq!(started, [0, 1]);
        });
        // A call that does not end is not waited for forever.
        ranks.run_until(0, Some(1), Some(1), Some(Duration::from_millis(20)));
        ranks.calls.during(|| ranks.gang.flush(0));
        assert_eq!(ranks.started(), [0]);
    }

    #[test]
    fn a_rank_still_in_flush_after_its_launches_started_is_waited_for() {
        let (ranks, deadline) = (Ranks::new(), Duration::from_millis(200));
        // Like a thread that the system has not scheduled since.
        ranks.gang.state().flushing.push((1, 1));
        let start = Instant::now();
        ranks.run_until(0, Some(1), Some(1), Some(deadline));
        ranks.gang.flush(0);
        assert!(start.elapsed() >= deadline / 2, "rank 0 has started without rank 1 after {:?}", start.elapsed());
    }

    #[test]
    fn a_flushing_rank_is_waited_for_while_another_may_release_it() {
        let (ranks, deadline) = (Ranks::new(), Duration::from_millis(200));
        // 1 waits for 2, which has not arrived and does not flush. When it arrives, 1 continues and arrives for 0.
        ranks.run_until(1, Some(2), None, None);
        ranks.gang.state().flushing.push((1, 1));
        let start = Instant::now();
        ranks.run_until(0, Some(1), None, Some(deadline));
        ranks.gang.flush(0);
        assert!(start.elapsed() >= deadline / 2, "rank 0 has started without rank 1 after {:?}", start.elapsed());
        assert_eq!(ranks.started(), [0]);
        // If 2 flushes as well, for a launch that 1 would have to make, none of them ever arrives.
        ranks.run_until(2, None, Some(1), None);
        assert_eq!(ranks.started(), [1, 2]);
        ranks.run_until(1, Some(2), None, None);
        ranks.run_until(2, Some(0), None, None);
        ranks.gang.state().flushing.push((2, 2));
        let start = Instant::now();
        ranks.run_until(0, Some(2), None, Some(Duration::from_secs(600)));
        ranks.gang.flush(0);
        assert!(start.elapsed() < Duration::from_secs(100));
        assert_eq!(ranks.started(), [0]);
    }

    #[test]
    fn a_ring_starts_when_the_last_one_comes() {
        let ranks = Ranks::new();
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
        let ranks = Ranks::new();
        ranks.run(2, Some(3), None);
        ranks.run(0, Some(1), None);
        ranks.run(1, None, Some(0));
        assert_eq!(ranks.started(), [0, 1]);
        ranks.run(3, None, Some(2));
        assert_eq!(ranks.started(), [2, 3]);
    }

    #[test]
    fn a_launch_waits_for_those_before_it_on_its_stream_and_on_that_of_its_peer() {
        let ranks = Ranks::new();
        ranks.run(1, None, Some(0));
        ranks.run(1, Some(2), None);
        ranks.run(2, None, Some(1));
        // 2 waits for the second launch of 1, which comes after its first, which waits for 0.
        assert_eq!(ranks.started(), []);
        ranks.run(0, Some(1), None);
        assert_eq!(ranks.started(), [1, 0, 1, 2]);
    }

    #[test]
    fn launches_of_a_leg_are_counted() {
        let ranks = Ranks::new();
        ranks.run(0, Some(1), None);
        ranks.run(0, Some(1), None);
        ranks.run(1, None, Some(0));
        assert_eq!(ranks.started(), [0, 1]);
        ranks.run(1, None, Some(0));
        assert_eq!(ranks.started(), [0, 1]);
    }

    #[test]
    fn after_its_grace_a_launch_starts_with_those_that_are_there() {
        let ranks = Ranks::new();
        ranks.shift(0, 3);
        ranks.shift(1, 3);
        ranks.gang.flush(7);
        assert_eq!(ranks.started(), []);
        ranks.gang.flush(0);
        assert_eq!(ranks.started(), [0, 1]);
        ranks.shift(2, 3);
        assert_eq!(ranks.started(), [2]);
    }

    #[test]
    fn a_flushing_rank_is_woken_by_the_last_one() {
        let ranks = Ranks::new();
        ranks.run_until(0, Some(1), None, None);
        std::thread::scope(|scope| {
            scope.spawn(|| ranks.gang.flush(0));
            ranks.run(1, None, Some(0));
        });
        assert_eq!(ranks.started(), [0, 1]);
    }

    #[test]
    fn when_all_missing_ranks_flush_nobody_waits() {
        let ranks = Ranks::new();
        // 0 sends, flushes and then receives; 1 does both in one launch. Without the check this would never end.
        ranks.run_until(1, Some(0), Some(0), None);
        ranks.run_until(0, Some(1), None, None);
        ranks.gang.flush(0);
        assert_eq!(ranks.started(), [1, 0]);
        ranks.run_until(0, None, Some(1), None);
        assert_eq!(ranks.started(), [0]);
    }

    #[test]
    fn a_launch_for_which_nobody_comes_starts_when_it_is_told_so() {
        let ranks = Ranks::new();
        ranks.run(0, Some(1), None);
        ranks.run(0, Some(1), None);
        let (first, missing) = ranks.gang.lacks(0).unwrap();
        assert!(missing == 1 && ranks.gang.has_pending(0) && !ranks.gang.has_pending(1));
        ranks.gang.start_without(0, first + 1);
        ranks.gang.start_without(1, first);
        assert_eq!(ranks.started(), [], "neither is the first of its stream");
        ranks.gang.start_without(0, first);
        assert_eq!(ranks.started(), [0]);
        assert_eq!(ranks.gang.lacks(0), Some((first + 1, 1)));
        ranks.run(1, None, Some(0));
        assert_eq!(ranks.started(), [1], "it belongs to the first");
        ranks.run(1, None, Some(0));
        assert_eq!(ranks.started(), [0, 1]);
        assert_eq!((ranks.gang.lacks(0), ranks.gang.has_pending(0)), (None, false));
    }

    #[test]
    fn one_thread_that_plays_all_ranks_does_not_wait_for_itself() {
        let ranks = Ranks { gang: GangLaunch::new(true), ..Ranks::new() };
        ranks.run_until(0, Some(1), None, None);
        assert_eq!(ranks.started(), []);
        ranks.gang.flush(0);
        assert_eq!(ranks.started(), [0]);
    }

    #[test]
    fn a_withdrawn_launch_does_not_start() {
        let ranks = Ranks::new();
        ranks.run(0, Some(1), None);
        ranks.gang.withdraw(0);
        ranks.run(1, None, Some(0));
        assert_eq!(ranks.started(), [1]);
    }

    #[test]
    fn a_kernel_has_an_end_of_every_transfer_that_it_has_a_part_of() {
        let mut builder = Builder::new("a ring of three", 1);
        let of = |part, from, to| Purpose::Transfer { part, from, to };
        let banks = [
            vec![of(Part::Staging, 1, 2), of(Part::Staging, 0, 1)],
            vec![of(Part::Head, 1, 2)],
            vec![Purpose::Tensor, Purpose::Own, Purpose::Starts { peer: 2 }, of(Part::Tail, 0, 2)],
            // A window's own line.
            vec![of(Part::Signal, 1, 1)],
        ];
        for purposes in banks {
            let slots = Param::Slots { name: "words".into(), len: 1, stride: 8, banks: purposes.len() as u32 };
            let param = builder.param(slots);
            builder.set_purposes(param, purposes);
        }
        let [receive, send] = [(0, 1, false), (1, 2, true)].map(|(from, to, sends)| LegEnd { from, to, sends });
        assert_eq!(LegEnd::of(&builder.finish(), 1), [receive, send]);
    }

    #[test]
    fn ends_that_meet_are_not_open() {
        let [send, receive] = [true, false].map(|sends| LegEnd { from: 0, to: 1, sends });
        assert_eq!(open_ends([send, receive, send].into_iter()), [send]);
        assert_eq!(open_ends([receive, send].into_iter()), []);
    }

    #[test]
    fn a_launch_whose_peer_is_replayed_starts() {
        let ranks = Ranks::new();
        ranks.run(0, Some(1), None);
        ranks.gang.passed(&[LegEnd { from: 0, to: 1, sends: false }]);
        assert_eq!(ranks.started(), [0]);
        ranks.gang.passed(&[LegEnd { from: 0, to: 1, sends: true }]);
        ranks.run(1, None, Some(0));
        assert_eq!(ranks.started(), [1]);
    }

    #[test]
    fn once_open_nothing_waits() {
        let ranks = Ranks::new();
        ranks.shift(0, 3);
        ranks.gang.open();
        assert_eq!(ranks.started(), [0]);
        ranks.shift(1, 3);
        assert_eq!(ranks.started(), [1]);
    }
}
