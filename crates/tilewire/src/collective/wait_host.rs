//! Launches that wait on the segments of a world. They sleep on the rank's doorbell, ring those of its peers, and end
//! when its abort word is set.
//!
//! This code is here because `vm` does not know transports and `transport` does not know kernels: the two meet here.

use super::call::Call;
use crate::link::Transport;
use crate::transport::proxy::Proxy;
use crate::transport::{Abort, AbortCode, Cause, Departures, Door, Doorbell, SegmentSet, Status, WaitKind};
use crate::vm::{Awaited, Bell, WaitHost, Waits};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How the launches of a rank wait: a value for [`Settings::waits`](crate::vm::Settings).
///
/// ```
/// use std::time::Duration;
/// use tilewire::collective::waits_over;
/// use tilewire::transport::{AbortCode, Cause, SegmentSet};
/// use tilewire::vm::Settings;
/// use tilewire::{LaunchError, Prepared, kernel};
///
/// let ranks = SegmentSet::threads(2, 64)?;
/// let traced = kernel("patient", |k| {
///     let slots = k.slots("ready", &[ranks[0].segment(0)], 64);
///     k.main(|r| r.wait(slots.slot(0i64, 0i64), 1i64));
/// })?;
/// let settings = Settings { world_size: 2, waits: waits_over(&ranks[0]), ..Settings::default() };
/// let mut patient = Prepared::with(&traced.kernel, &traced.args, settings)?;
///
/// ranks[1].abort_all(Cause { code: AbortCode::Failed, rank: 1, reason: 0 });
/// let error = patient.run().unwrap_err();
/// assert!(matches!(error, LaunchError::Aborted { .. }));
/// assert!(error.to_string().contains("rank 1 gave up after an error"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn waits_over(segments: &SegmentSet) -> Waits {
    waits_over_all(&[segments])
}

/// Like [`waits_over`], for a kernel that waits through several sets of segments. With no sets, only a deadline ends
/// its waits.
pub fn waits_over_all(sets: &[&SegmentSet]) -> Waits {
    let doors: Vec<Door> = sets.iter().map(|set| Door::of(set)).collect();
    if doors.is_empty() {
        Waits::alone()
    } else {
        Waits::on(Arc::new(SegmentWaits::new(&doors.iter().collect::<Vec<_>>())))
    }
}

/// Like [`waits_over_all`], for a kernel over these transports. Waits for a rank that has left also end.
pub(super) fn waits_of(hosts: &[&dyn Transport], call: &Call) -> Waits {
    let doors: Vec<&Door> = hosts.iter().filter_map(|host| host.door()).collect();
    if doors.is_empty() {
        return Waits::alone();
    }
    let mut waits = SegmentWaits::new(&doors);
    waits.leaving = doors.iter().filter_map(|door| Leaving::of(door)).collect();
    if let ([_], [door]) = (hosts, &doors[..]) {
        waits.told = door.status().map(|status| Told { status: status.clone(), call: call.to_string() });
    }
    Waits::on(Arc::new(waits))
}

/// The ranks that have left a transport, and the segment where this rank waits for those that have not.
struct Leaving {
    departures: Departures,
    own_segment: Range<usize>,
}

impl Leaving {
    /// `None` if no rank's departure would be noticed.
    fn of(door: &Door) -> Option<Leaving> {
        let departures = door.departures().filter(|departures| departures.are_noticed())?.clone();
        let (_, own_segment) = door.doorbells().nth(door.own())?;
        Some(Leaving { departures, own_segment: own_segment.clone() })
    }

    #[cold]
    fn in_vain(&self, at: Awaited) -> Option<u64> {
        let cause = Cause { code: AbortCode::Left, rank: at.rank, reason: 0 };
        // A rank may have left one transport of a launch but not another.
        (self.own_segment.contains(&at.address) && self.departures.has_left(at.rank)).then(|| cause.to_word())
    }
}

/// Lets other ranks see what a launch waits for. A kernel over several transports has none.
struct Told {
    status: Status,
    /// A description of the launch.
    call: String,
}

/// The wait host of a rank with one or more [`Door`]s. The engine identifies a rank behind a door by its index in the
/// lists below.
struct SegmentWaits {
    /// This rank, behind the first door.
    own: usize,
    /// This rank's abort word, for each door.
    aborts: Vec<Abort>,
    /// The doorbells of every rank behind every door.
    doorbells: Vec<Doorbell>,
    /// The address range where each rank's segment is mapped here.
    places: Vec<Range<usize>>,
    leaving: Vec<Leaving>,
    told: Option<Told>,
    /// They carry what this rank posts, and move the slots it waits for.
    proxies: Vec<Arc<Proxy>>,
}

impl SegmentWaits {
    /// A thread can sleep on only one doorbell. This is how long it sleeps before it checks for events that would ring
    /// the others.
    const NAP: Duration = Duration::from_micros(50);

    fn new(doors: &[&Door]) -> SegmentWaits {
        let ranks = || doors.iter().flat_map(|door| door.doorbells());
        SegmentWaits {
            own: doors[0].own(),
            aborts: doors.iter().map(|door| door.abort().clone()).collect(),
            doorbells: ranks().map(|(doorbell, _)| doorbell.clone()).collect(),
            places: ranks().map(|(_, place)| place.clone()).collect(),
            leaving: Vec::new(),
            told: None,
            proxies: doors.iter().filter_map(|door| door.proxy().cloned()).collect(),
        }
    }

    /// Takes everything that has arrived by posts. Returns true if posts of this rank are on their way: not confirmed.
    fn settle(&self) -> bool {
        self.proxies.iter().filter(|proxy| proxy.settle()).count() > 0
    }
}

impl WaitHost for SegmentWaits {
    #[inline]
    fn aborted(&self) -> Option<u64> {
        // Relaxed: the word itself carries all the information, see `Abort`.
        let word = |abort: &Abort| abort.word().load(std::sync::atomic::Ordering::Relaxed);
        self.aborts.iter().map(word).find(|&word| word != 0)
    }

    #[inline]
    fn in_vain(&self, at: Awaited) -> Option<u64> {
        let known = self.leaving.iter().filter(|leaving| leaving.departures.any());
        let word = known.filter_map(|leaving| leaving.in_vain(at)).next()?;
        // What the rank posted before it left was confirmed, and may still have to be taken. While posts of this rank
        // are on their way, their delivery may end a wait, too: a flush of what the rank has received before it left.
        let is_busy = self.settle();
        (!is_busy).then_some(word)
    }

    fn probe(&self) -> u64 {
        let probe = self.told.as_ref().map_or(0, |told| told.status.probe());
        // What arrived before the probe must be visible to the look that follows.
        self.settle();
        probe
    }

    fn stalled(&self, at: &[Option<Awaited>], probe: u64) -> Option<u64> {
        let told = self.told.as_ref()?;
        // Any rank may end a wait on memory that no rank is known to signal, or that belongs to another transport.
        let peer = |at: &Option<Awaited>| at.filter(|at| self.places[self.own].contains(&at.address)).map(|at| at.rank);
        let peers = at.iter().map(peer).collect::<Option<Vec<usize>>>();
        // Posts that are not confirmed may end the wait of another rank although this one waits.
        let Some(mut peers) = peers.filter(|_| !self.settle()) else {
            told.status.goes_on();
            return None;
        };
        peers.sort_unstable();
        peers.dedup();
        told.status.waits(WaitKind::Launch, &peers, &told.call, probe);
        told.status.tell_all(&told.status.judge()?);
        self.aborted()
    }

    fn resumed(&self) {
        if let Some(told) = &self.told {
            told.status.goes_on();
        }
    }

    #[inline]
    fn progress(&self) -> bool {
        self.proxies.iter().filter(|proxy| proxy.step()).count() > 0
    }

    fn is_slow(&self) -> bool {
        self.proxies.iter().any(|proxy| proxy.is_polled())
    }

    fn behind(&self) -> Option<usize> {
        self.proxies.iter().find_map(|proxy| proxy.behind())
    }

    fn explain(&self, word: u64) -> String {
        Cause::from_word(word).map_or_else(|| "of an abort without a cause".to_string(), |cause| cause.to_string())
    }

    fn sleep(&self, ready: &mut dyn FnMut() -> bool, timeout: Duration) -> bool {
        // Driven by the rank's thread from now on, if there is one.
        let handed: Vec<&Arc<Proxy>> = self.proxies.iter().filter(|proxy| proxy.hand_over()).collect();
        let is_own = |proxy: &&Arc<Proxy>| !handed.iter().any(|other| Arc::ptr_eq(other, proxy));
        // Nobody rings when a post is delivered, and others may be held until then.
        let is_busy = || self.proxies.iter().filter(is_own).any(|proxy| proxy.is_busy());
        let was_busy = is_busy();
        let timeout = if self.aborts.len() == 1 && !was_busy { timeout } else { timeout.min(Self::NAP) };
        // A carrier rings this bell when something arrives, which is then still to be taken.
        let ready = || {
            self.progress();
            ready() || is_busy() && !was_busy
        };
        let is_ready = self.doorbells[self.own].sleep(ready, timeout);
        handed.iter().for_each(|proxy| proxy.take_back());
        is_ready
    }

    fn owner(&self, address: usize) -> usize {
        self.places.iter().position(|place| place.contains(&address)).unwrap_or(self.own)
    }

    fn bell(&self, rank: usize) -> Bell<'_> {
        Bell { word: self.doorbells[rank].word(), sleepers: Doorbell::SLEEPERS }
    }

    fn ring(&self, rank: usize) {
        self.doorbells[rank].ring();
    }

    fn wake(&self) {
        self.doorbells[self.own].ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hook::kernel;
    use crate::ir::{Part, Purpose};
    use crate::tensor::{Memory, Queue, Ring, bytes_of};
    use crate::transport::layout::LINE;
    use crate::transport::proxy::{Carrier, Event, Lines, PostedTo, ProxyError, ProxyParts, Write};
    use crate::vm::{LaunchError, Prepared, Settings};
    use std::sync::Mutex;

    #[test]
    fn memory_belongs_to_the_rank_whose_segment_it_is_in_and_the_rest_to_oneself() {
        let ranks = SegmentSet::threads(3, 4096).unwrap();
        let waits = SegmentWaits::new(&[&Door::of(&ranks[1])]);
        for rank in 0..3 {
            let start = ranks[1].segment(rank).start().as_ptr() as usize;
            assert_eq!(waits.owner(start), rank);
            assert_eq!(waits.owner(start + 4095), rank);
        }
        let elsewhere = 0u64;
        assert_eq!(waits.owner(&raw const elsewhere as usize), 1);
    }

    /// Rank 1 waits for rank 2 in a launch of `blocks` blocks, and its deadline passes. Another rank may look for the
    /// late one before rank 1 has set the abort words.
    #[test]
    fn a_launch_that_expires_is_seen_to_wait_until_its_caller_says_otherwise() {
        for blocks in [1, 3] {
            let ranks = SegmentSet::threads(3, 4096).unwrap();
            let purpose = Purpose::Transfer { part: Part::Done, from: 2, to: 1 };
            let own = ranks[1].segment(1).for_purpose(purpose);
            let traced = kernel("patient", |k| {
                k.blocks(blocks);
                let slots = k.slots("ready", std::slice::from_ref(&own), 64);
                k.main(|r| r.wait(slots.slot(0i64, 0i64), 1i64));
            });
            let mut waits = SegmentWaits::new(&[&Door::of(&ranks[1])]);
            waits.told = Some(Told { status: Status::of(&ranks[1]), call: "a launch".to_string() });
            let waits = Waits::on(Arc::new(waits));
            let deadline = Some(Duration::from_millis(50));
            let settings = Settings { rank: 1, world_size: 3, deadline, waits, ..Settings::default() };
            let traced = traced.unwrap();
            let error = Prepared::with(&traced.kernel, &traced.args, settings).unwrap().run().unwrap_err();
            assert!(matches!(error, LaunchError::Timeout { .. }), "{error}");
            let seen_by_others = Status::of(&ranks[0]);
            assert_eq!(seen_by_others.late(1), 2, "{blocks} blocks");
            Status::of(&ranks[1]).goes_on();
            assert_eq!(seen_by_others.late(1), 1);
        }
    }

    /// A carrier of signals between two ranks that keeps them until the test lets them go.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Wires>>);

    #[derive(Default)]
    struct Wires {
        /// The sender, the write, the receiver and the notice.
        taken: Vec<(usize, u64, usize, u32)>,
        events: [Vec<Event>; 2],
    }

    impl Kept {
        fn let_go(&self) {
            let mut wires = self.0.lock().unwrap();
            for (from, id, peer, notice) in std::mem::take(&mut wires.taken) {
                wires.events[peer].push(Event::Arrived { notice });
                wires.events[from].push(Event::Delivered { id });
            }
        }
    }

    struct KeptCarrier(usize, Kept);

    impl Carrier for KeptCarrier {
        fn open(&mut self, _: u16, _: &Memory, _: &[usize]) -> Result<(), ProxyError> {
            Ok(())
        }

        fn close(&mut self, _: u16) {}

        fn place(&self, _: u16) -> Vec<u8> {
            Vec::new()
        }

        fn reach(&mut self, _: usize, _: u16, _: &[u8]) -> Result<(), ProxyError> {
            Ok(())
        }

        fn reads(&self, _: &Memory) -> bool {
            false
        }

        fn lend(&mut self, _: &Memory) -> Result<(), ProxyError> {
            Ok(())
        }

        fn give_back(&mut self, _: &Memory) {}

        fn write(&mut self, write: &Write<'_>) -> Result<bool, ProxyError> {
            let taken = (self.0, write.id, write.peer, write.notice.expect("a signal"));
            self.1.0.lock().unwrap().taken.push(taken);
            Ok(true)
        }

        fn unconfirmed(&mut self, _: usize) -> Result<usize, ProxyError> {
            Ok(0)
        }

        fn flush_arrivals(&mut self) -> Result<(), ProxyError> {
            Ok(())
        }

        fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), ProxyError> {
            events.append(&mut self.1.0.lock().unwrap().events[self.0]);
            Ok(())
        }
    }

    /// A rank whose only launch waits for line 1 of its segment, which the other rank moves by posts.
    struct Waiter {
        waits: SegmentWaits,
        queue: Queue,
        own: Memory,
    }

    const AWAITED: usize = 1;

    impl Waiter {
        fn new(ranks: &SegmentSet, kept: &Kept) -> Waiter {
            let rank = ranks.rank();
            let lines = || vec![Lines { numbers: 0..4, matched: false }];
            let to = |peer: usize| {
                (peer != rank).then(|| PostedTo { regions: vec![Some(0)], lines: lines(), flushed: Vec::new() })
            };
            let (ring, own) = (Ring::new(4), ranks.segment(rank));
            let queue = ring.queue(0);
            let proxy = Proxy::new(ProxyParts {
                rank,
                ring,
                carrier: Box::new(KeptCarrier(rank, kept.clone())),
                peers: (0..2).map(to).collect(),
                sources: Vec::new(),
                segment: own.clone(),
                inbound: lines(),
                doorbell: ranks.doorbell(rank),
                aborts: ranks.aborts(),
            });
            let mut waits = SegmentWaits::new(&[&Door::of(ranks).with_proxy(Arc::new(proxy))]);
            waits.told = Some(Told { status: Status::of(ranks), call: "a launch".to_string() });
            Waiter { waits, queue, own }
        }

        /// Posts a signal for a line of the other rank.
        fn post(&self, line: usize) {
            let peer = 1 - self.waits.own as i64;
            let traced = kernel("post", |k| {
                let queue = k.queue("posts", self.queue.clone());
                k.main(|r| r.post_signal(queue, peer, line as i64, 1i64));
            });
            let traced = traced.unwrap();
            Prepared::new(&traced.kernel, &traced.args).unwrap().run().unwrap();
        }

        fn is_ready(&self) -> bool {
            bytes_of(&self.own).unwrap()[AWAITED * LINE] == 1
        }

        /// A round of the wait, as the engine makes it. Returns the verdict.
        fn round(&self) -> Option<u64> {
            let probe = self.waits.probe();
            if self.is_ready() {
                self.waits.resumed();
                return None;
            }
            let address = self.own.start().as_ptr() as usize + AWAITED * LINE;
            self.waits.stalled(&[Some(Awaited { rank: 1 - self.waits.own, address })], probe)
        }
    }

    fn waiters() -> ([Waiter; 2], Kept) {
        let (ranks, kept) = (SegmentSet::threads(2, 4096).unwrap(), Kept::default());
        ([0, 1].map(|rank: usize| Waiter::new(&ranks[rank], &kept)), kept)
    }

    fn verdict(waiters: &[Waiter; 2]) -> Option<u64> {
        (0..50).find_map(|_| waiters.iter().find_map(Waiter::round))
    }

    /// Two ranks wait for each other, and a post is on its way, however long. It is no deadlock before it has arrived,
    /// and it is one if it then turns out to be for something else.
    #[test]
    fn a_post_on_its_way_is_no_deadlock() {
        for sender in [0, 1] {
            let (waiters, kept) = waiters();
            waiters[sender].post(AWAITED + 1);
            assert_eq!(verdict(&waiters), None);
            kept.let_go();
            let word = verdict(&waiters).expect("they wait for each other, and nothing is on its way");
            assert_eq!(Cause::from_word(word).map(|cause| cause.code), Some(AbortCode::Deadlocked));
        }
    }

    /// A rank that is asked whether it still waits looks at everything that had arrived by then.
    #[test]
    fn a_post_that_has_arrived_is_seen_by_the_look_after_a_probe() {
        for sender in [0, 1] {
            let (waiters, kept) = waiters();
            waiters[sender].post(AWAITED);
            assert_eq!(verdict(&waiters), None);
            // The sender learns that it is delivered before the receiver has looked.
            kept.let_go();
            assert_eq!(waiters[sender].round(), None);
            assert!(!waiters[1 - sender].is_ready());
            assert_eq!(verdict(&waiters), None);
            assert!(waiters[1 - sender].is_ready());
        }
    }
}
