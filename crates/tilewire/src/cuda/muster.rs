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
//! together. A launch starts when all are there that it depends on, over legs and over launches that came before on the same streams.
//!
//! Nobody waits in `run()`. What needs the order of a stream ([`Muster::settle`]) waits until its launches have started. Two things end that
//! early, with what is there: when all that is missing would come from ranks that settle themselves, and so would all that these lack, since
//! nobody would ever come then;
//! and [`GRACE`], since a rank may wait on the host for what another does after its launch. Kernels that start so wait for the missing
//! rank as kernels do, and say whom they waited for. While a thread is in a call that the driver may take long for (it loads a program, it
//! waits for a copy) the grace does not run: who is missing may be in it, on a busy machine for seconds, and a kernel that started could keep
//! it from ever coming: loads wait for kernels, and a copy may have its place behind one in a queue of the hardware.

use super::device::held;
use super::error::CudaError;
use crate::ir::{Kernel, Purpose};
use crate::sync::{Arc, AtomicUsize, Condvar, Instant, Mutex, MutexGuard, Ordering, PoisonError};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// A direction between two ranks, and which end of it a launch is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct LegEnd {
    /// Who sends.
    pub from: u32,
    /// Who receives.
    pub to: u32,
    /// Whether this is the sender's end.
    pub sends: bool,
}

impl LegEnd {
    /// Those of a kernel of rank `me`, by peer, as the purposes of its parameters say.
    pub(super) fn of(kernel: &Kernel, me: u32) -> Vec<LegEnd> {
        let end = |purpose: &Purpose| match *purpose {
            Purpose::Transfer { from, to, .. } if from == me || to == me => {
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

    /// Whose end it is.
    fn rank(self) -> u32 {
        if self.sends { self.from } else { self.to }
    }
}

/// How long what needs the order of a stream waits for other ranks, at most; half the deadline where that is less.
const GRACE: Duration = Duration::from_secs(2);
/// The same with the time in which the clock stood; three quarters of the deadline where that is less.
const MOST_GRACE: Duration = Duration::from_secs(20);

/// The ends among these whose other ends are not: of what starts at once, the rest starts with its peers.
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
    /// How long threads have been in long calls on its device, all in all.
    fn busy(&self) -> Duration;
    /// Puts it there.
    fn submit(self) -> Result<(), CudaError>;
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
    /// How many are pending: a thread that has put none on a stream of its own need not look further.
    waiting: AtomicUsize,
    /// Whether one thread plays all the ranks: while it settles, nobody comes.
    alone: bool,
}

struct State<O> {
    /// Launches so far of each end of a leg.
    counts: HashMap<LegEnd, u64>,
    /// By number of arrival.
    pending: BTreeMap<u64, Pending<O>>,
    /// The numbers of each stream.
    streams: BTreeMap<usize, BTreeSet<u64>>,
    /// Which of the pending launches is number so and so of an end.
    ends: HashMap<(LegEnd, u64), u64>,
    next: u64,
    /// Ranks whose thread is in [`Muster::settle`], each with its stream.
    settling: Vec<(u32, usize)>,
    /// Whether launches start at once: the ranks are told to give up.
    open: bool,
}

struct Pending<O> {
    order: O,
    ends: Vec<(LegEnd, u64)>,
    since: Instant,
    /// What [`Order::busy`] said then.
    busy: Duration,
    fate: Arc<Fate>,
}

impl<O: Order> Pending<O> {
    /// How much longer it waits for others: long calls stop the clock, but not for ever.
    fn grace(&self) -> Duration {
        let (deadline, waited) = (self.order.deadline(), self.since.elapsed());
        let grace = deadline.map_or(GRACE, |deadline| GRACE.min(deadline / 2));
        let most = deadline.map_or(MOST_GRACE, |deadline| MOST_GRACE.min(deadline / 4 * 3));
        let busy = self.order.busy().saturating_sub(self.busy);
        grace.saturating_sub(waited.saturating_sub(busy)).min(most.saturating_sub(waited))
    }
}

/// What a launch depends on.
struct Needed {
    /// Those that are pending, itself included.
    pending: BTreeSet<u64>,
    /// Ranks from which one has not come.
    missing: BTreeSet<u32>,
}

impl<O: Order> Muster<O> {
    /// For ranks of several threads, or of one.
    pub(super) fn new(alone: bool) -> Self {
        let (counts, pending, ends) = (HashMap::new(), BTreeMap::new(), HashMap::new());
        let (streams, settling) = (BTreeMap::new(), Vec::new());
        let state = State { counts, pending, streams, ends, next: 0, settling, open: false };
        Muster { state: Mutex::new(state), changed: Condvar::new(), waiting: AtomicUsize::new(0), alone }
    }

    /// A launch is ready to start. It does when all are there that it depends on.
    pub(super) fn arrive(&self, ends: &[LegEnd], order: O, fate: &Arc<Fate>) {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let ends: Vec<_> = ends.iter().map(|&end| (end, state.count(end))).collect();
        state.ends.extend(ends.iter().map(|&end| (end, number)));
        state.streams.entry(order.stream()).or_default().insert(number);
        state
            .pending
            .insert(number, Pending { since: Instant::now(), busy: order.busy(), order, ends, fate: fate.clone() });
        state.start_ready();
        self.tell(&state);
    }

    /// Launches of these ends have started without being asked for: a replay has them.
    pub(super) fn passed(&self, ends: &[LegEnd]) {
        let mut state = self.state();
        for &end in ends {
            state.count(end);
        }
        state.start_ready();
        self.tell(&state);
    }

    /// Waits until all launches of a stream have started; see the head of this file.
    pub(super) fn settle(&self, stream: usize) {
        // Relaxed: a stream's launches are its own thread's, or ordered by whoever shares it.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut state = self.state();
        let mut settles: Option<u32> = None;
        while let Some((number, first)) = state.first(stream) {
            let rank = first.ends.first().map(|(end, _)| end.rank());
            let left = first.grace();
            if let (None, Some(rank)) = (settles, rank) {
                settles = Some(rank);
                state.settling.push((rank, stream));
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
        if let Some(place) = settles.and_then(|rank| state.settling.iter().position(|&other| other == (rank, stream))) {
            state.settling.swap_remove(place);
        }
    }

    /// Whether launches of a stream wait to start.
    pub(super) fn has_pending(&self, stream: usize) -> bool {
        self.state().streams.contains_key(&stream)
    }

    /// The first launch of a stream that waits to start, and a rank that has not come for it.
    pub(super) fn lacks(&self, stream: usize) -> Option<(u64, u32)> {
        let state = self.state();
        let (number, _) = state.first(stream)?;
        Some((number, *state.needed_by(number).missing.first()?))
    }

    /// Nobody comes for this launch of a stream, if it still waits: starts it with what is there.
    pub(super) fn start_without(&self, stream: usize, number: u64) {
        let mut state = self.state();
        if state.first(stream).is_some_and(|(first, _)| first == number) {
            let needed = state.needed_by(number);
            state.start(needed.pending);
            state.start_ready();
            self.tell(&state);
        }
    }

    /// Forgets the launches of a stream that have not started.
    pub(super) fn withdraw(&self, stream: usize) {
        let mut state = self.state();
        while let Some((number, _)) = state.first(stream) {
            state.take(number);
        }
        self.tell(&state);
    }

    /// From now on launches start at once: their waits end, whoever is missing.
    pub(super) fn open(&self) {
        let mut state = self.state();
        state.open = true;
        state.start_ready();
        self.tell(&state);
    }

    /// Something has changed.
    fn tell(&self, state: &State<O>) {
        self.waiting.store(state.pending.len(), Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State<O>> {
        held(&self.state)
    }
}

impl<O: Order> State<O> {
    /// One more launch of an end; gives its number.
    fn count(&mut self, end: LegEnd) -> u64 {
        let count = self.counts.entry(end).or_default();
        *count += 1;
        *count
    }

    /// Whether nothing would ever come from these ranks: each waits for a launch of its own to start, and so do all ranks that one lacks.
    fn nobody_comes(&self, missing: &BTreeSet<u32>) -> bool {
        let (mut seen, mut open) = (missing.clone(), Vec::from_iter(missing.iter().copied()));
        while let Some(rank) = open.pop() {
            let Some(number) = self.settles_on(rank) else { return false };
            open.extend(self.needed_by(number).missing.into_iter().filter(|&rank| seen.insert(rank)));
        }
        true
    }

    /// The launch that a rank waits for in `settle`. None when it has started: the thread may still be there, on a busy machine for long,
    /// but it is about to go on.
    fn settles_on(&self, rank: u32) -> Option<u64> {
        let streams = self.settling.iter().filter(|(other, _)| *other == rank).map(|&(_, stream)| stream);
        streams.filter_map(|stream| self.first(stream)).map(|(number, _)| number).next()
    }

    /// The first pending launch of a stream.
    fn first(&self, stream: usize) -> Option<(u64, &Pending<O>)> {
        let &number = self.streams.get(&stream)?.first()?;
        Some((number, &self.pending[&number]))
    }

    /// What a pending launch depends on.
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
                // Where it has come and is not pending, it has started.
                also.extend(self.ends.get(&(other, count)));
            }
            // And the one before it on its stream, which needs the one before that.
            also.extend(self.streams[&one.order.stream()].range(..number).next_back());
            open.extend(also.into_iter().filter(|&number| needed.pending.insert(number)));
        }
        needed
    }

    /// Starts all that depends on nobody who has not come: a newcomer may be all that several have waited for. Of a stream only the first needs a look, however far its
    /// rank is ahead: all others need it.
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

    /// In the order in which they came: those of one stream stay in theirs.
    fn start(&mut self, numbers: BTreeSet<u64>) {
        for number in numbers {
            let Some(one) = self.take(number) else { continue };
            if let Err(error) = one.order.submit() {
                *held(&one.fate.0) = Some(error);
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
        muster: Muster<Noted>,
        calls: Arc<Calls>,
        log: Log,
    }

    impl Ranks {
        fn new() -> Ranks {
            Ranks { muster: Muster::new(false), calls: Arc::default(), log: Log::default() }
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
            self.muster.arrive(&ends, order, &Arc::default());
        }

        fn shift(&self, rank: u32, ranks: u32) {
            self.run(rank, Some((rank + 1) % ranks), Some((rank + ranks - 1) % ranks));
        }

        fn started(&self) -> Vec<usize> {
            std::mem::take(&mut *held(&self.log))
        }
    }

    /// Looking through all that is pending for each arrival, this would take hours.
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
            let settled = scope.spawn(|| {
                ranks.muster.settle(0);
                ranks.started()
            });
            ranks.calls.during(|| {
                std::thread::sleep(GRACE * 5 / 4);
                assert_eq!(ranks.started(), [0usize; 0], "longer than the grace, and nobody started");
                ranks.run_until(1, Some(0), Some(0), Some(deadline));
            });
            let mut started = settled.join().unwrap();
            started.sort_unstable();
            assert_eq!(started, [0, 1]);
        });
        // A call that does not end is not waited for for ever.
        ranks.run_until(0, Some(1), Some(1), Some(Duration::from_millis(20)));
        ranks.calls.during(|| ranks.muster.settle(0));
        assert_eq!(ranks.started(), [0]);
    }

    #[test]
    fn who_is_still_in_settle_though_its_launches_have_started_is_waited_for() {
        let (ranks, deadline) = (Ranks::new(), Duration::from_millis(200));
        // As a thread that the system has not let run since.
        ranks.muster.state().settling.push((1, 1));
        let start = Instant::now();
        ranks.run_until(0, Some(1), Some(1), Some(deadline));
        ranks.muster.settle(0);
        assert!(start.elapsed() >= deadline / 2, "rank 0 has started without rank 1 after {:?}", start.elapsed());
    }

    #[test]
    fn who_settles_is_waited_for_while_somebody_may_let_it_go_on() {
        let (ranks, deadline) = (Ranks::new(), Duration::from_millis(200));
        // 1 waits for 2, which has not come and does not settle; when it comes, 1 goes on and comes for 0.
        ranks.run_until(1, Some(2), None, None);
        ranks.muster.state().settling.push((1, 1));
        let start = Instant::now();
        ranks.run_until(0, Some(1), None, Some(deadline));
        ranks.muster.settle(0);
        assert!(start.elapsed() >= deadline / 2, "rank 0 has started without rank 1 after {:?}", start.elapsed());
        assert_eq!(ranks.started(), [0]);
        // When 2 settles as well, for a launch that 1 would have to come for, nobody ever comes.
        ranks.run_until(2, None, Some(1), None);
        assert_eq!(ranks.started(), [1, 2]);
        ranks.run_until(1, Some(2), None, None);
        ranks.run_until(2, Some(0), None, None);
        ranks.muster.state().settling.push((2, 2));
        let start = Instant::now();
        ranks.run_until(0, Some(2), None, Some(Duration::from_secs(600)));
        ranks.muster.settle(0);
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
        ranks.muster.settle(7);
        assert_eq!(ranks.started(), []);
        ranks.muster.settle(0);
        assert_eq!(ranks.started(), [0, 1]);
        ranks.shift(2, 3);
        assert_eq!(ranks.started(), [2]);
    }

    #[test]
    fn whoever_settles_is_woken_by_the_last_one() {
        let ranks = Ranks::new();
        ranks.run_until(0, Some(1), None, None);
        std::thread::scope(|scope| {
            scope.spawn(|| ranks.muster.settle(0));
            ranks.run(1, None, Some(0));
        });
        assert_eq!(ranks.started(), [0, 1]);
    }

    #[test]
    fn when_all_that_is_missing_settles_nobody_waits() {
        let ranks = Ranks::new();
        // 0 sends, settles and then receives; 1 does both at once. Without end, were it not for what is seen here.
        ranks.run_until(1, Some(0), Some(0), None);
        ranks.run_until(0, Some(1), None, None);
        ranks.muster.settle(0);
        assert_eq!(ranks.started(), [1, 0]);
        ranks.run_until(0, None, Some(1), None);
        assert_eq!(ranks.started(), [0]);
    }

    #[test]
    fn a_launch_for_which_nobody_comes_starts_when_it_is_told_so() {
        let ranks = Ranks::new();
        ranks.run(0, Some(1), None);
        ranks.run(0, Some(1), None);
        let (first, missing) = ranks.muster.lacks(0).unwrap();
        assert!(missing == 1 && ranks.muster.has_pending(0) && !ranks.muster.has_pending(1));
        ranks.muster.start_without(0, first + 1);
        ranks.muster.start_without(1, first);
        assert_eq!(ranks.started(), [], "neither is the first of its stream");
        ranks.muster.start_without(0, first);
        assert_eq!(ranks.started(), [0]);
        assert_eq!(ranks.muster.lacks(0), Some((first + 1, 1)));
        ranks.run(1, None, Some(0));
        assert_eq!(ranks.started(), [1], "it belongs to the first");
        ranks.run(1, None, Some(0));
        assert_eq!(ranks.started(), [0, 1]);
        assert_eq!((ranks.muster.lacks(0), ranks.muster.has_pending(0)), (None, false));
    }

    #[test]
    fn one_thread_that_plays_all_ranks_does_not_wait_for_itself() {
        let ranks = Ranks { muster: Muster::new(true), ..Ranks::new() };
        ranks.run_until(0, Some(1), None, None);
        assert_eq!(ranks.started(), []);
        ranks.muster.settle(0);
        assert_eq!(ranks.started(), [0]);
    }

    #[test]
    fn what_is_withdrawn_does_not_start() {
        let ranks = Ranks::new();
        ranks.run(0, Some(1), None);
        ranks.muster.withdraw(0);
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
        ranks.muster.passed(&[LegEnd { from: 0, to: 1, sends: false }]);
        assert_eq!(ranks.started(), [0]);
        ranks.muster.passed(&[LegEnd { from: 0, to: 1, sends: true }]);
        ranks.run(1, None, Some(0));
        assert_eq!(ranks.started(), [1]);
    }

    #[test]
    fn once_open_nothing_waits() {
        let ranks = Ranks::new();
        ranks.shift(0, 3);
        ranks.muster.open();
        assert_eq!(ranks.started(), [0]);
        ranks.shift(1, 3);
        assert_eq!(ranks.started(), [1]);
    }
}
