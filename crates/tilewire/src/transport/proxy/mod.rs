//! The proxy of a rank: it drains the ring that kernels post to into a carrier, and turns arrivals into slot values.
//!
//! ```text
//!  kernel                    proxy of this rank                              proxy of the peer
//!  put ──▶ outbox
//!  post ─▶ ring entry ──▶ checked ──▶ held until it may go ──▶ Carrier ═══▶ Carrier ──▶ counted ──▶ slot := value
//!                                          ▲                      │                       (release) ──▶ doorbell
//!                                          └──── delivered ◀──────┘
//! ```
//! - **In**: descriptors ([`ir::ring`](crate::ir::ring)), which are not trusted: every field is compared with the
//!   regions, control lines and sources that were registered. **Out**: writes to a [`Carrier`], and this rank's slots.
//! - **Order** is by count, never by the carrier (`wire.rs`). The proxy holds a signal until all earlier posts to its
//!   peer are delivered, and a notice until the previous delivery for its control line is complete. Credits and
//!   deliveries overtake a held signal. A held post waits only for the carrier, never for a kernel, so holding cannot
//!   deadlock.
//! - **A flush** is held like a signal. Then the proxy sends nothing, and moves a slot of its own rank instead. The
//!   carrier has read the source of every write that it reports as delivered. The proxy takes those reports before the
//!   release store of the slot, so all earlier posts to the peer are read before the waiting role overwrites their
//!   sources.
//! - **Waiting threads drive the proxy**: any thread of the rank calls [`Proxy::step`] in every unready round of a
//!   wait. The call returns immediately if another thread is inside (`turns.rs`). A launch ends with `Proxy::leave`,
//!   and a transport with [`Proxy::drain`].
//!   `Proxy::settle` runs before a wait is judged to be in vain, because a post reaches the peer's slots only when both
//!   proxies have run.
//! - **A thread of the rank** (`thread.rs`) drives the proxy when no waiting thread does: while kernels of a GPU wait,
//!   while a launch on a CPU computes after it has posted, and for waiting threads that sleep (`duty.rs`).
//! - **Must not know**: kernels, or the type of its carrier.

mod carrier;
mod drain;
mod duty;
mod error;
mod leave;
mod loop_carrier;
mod registered;
mod thread;
mod turns;
mod wire;

pub use carrier::{Carrier, Event, Source, Write};
pub use error::ProxyError;
pub(crate) use loop_carrier::{LoopCarrier, LoopEnd};
pub use registered::{PostedRegion, PostedSource};
#[cfg(test)]
pub(crate) use thread::NO_THREADS;
pub(crate) use thread::{ProxyThread, ThreadWork};
pub(crate) use wire::{Lines, MOST_LINES};

use super::abort::{Abort, AbortCode, Cause};
use super::deadline::Deadline;
use super::departures::Departures;
use super::doorbell::Doorbell;
use crate::sync::{Arc, AtomicUsize, Ordering, sleep};
use crate::tensor::{Memory, NoticeKind, Posted, PostedNotice, PostedSpan, Ring};
use drain::NAP;
use duty::Duty;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::OnceLock;
use std::time::Duration;
use turns::{Inside, Panicked, Turns};
use wire::{Announced, Announcement, Arrivals};

/// The most entries taken from the ring in one step, before the proxy polls for arrivals again.
const BATCH: usize = 64;
/// The most steps that `Proxy::settle` makes to take everything that has arrived.
const MOST_PORTIONS: usize = 1000;
/// With this many held posts to one peer, the proxy takes nothing from the ring. The ring fills up, and kernels wait.
const MOST_HELD: usize = 1024;
/// See [`Proxy::behind`].
const UNKNOWN: usize = usize::MAX;

/// How long to wait for the reason of a carrier's failure. The reason arrives within milliseconds, or within a second
/// or two where many ranks share a processor.
const REASON: Duration = Duration::from_secs(3);

/// Drains the ring of one rank, and moves its slots when deliveries arrive.
pub struct Proxy {
    rank: usize,
    state: Turns<State>,
    /// The error that stopped the proxy, if any.
    error: OnceLock<ProxyError>,
    /// 0 if all posts of this rank were delivered when a thread was last inside. Otherwise the peer with the oldest
    /// undelivered post, plus 1; [`UNKNOWN`] if there are only entries in the ring.
    behind: AtomicUsize,
    /// The doorbell of this rank, whose waiting threads watch the slots that the proxy moves.
    doorbell: Doorbell,
    /// The abort words of all ranks that are mapped here.
    aborts: Vec<Abort>,
    /// The ranks that have left, if ranks are processes.
    departures: Option<Departures>,
    /// The duty of the rank's thread, if it has one.
    duty: OnceLock<Arc<Duty>>,
    /// Counts the steps of all threads but the rank's own thread.
    driven: AtomicUsize,
}

/// The parts of a rank from which its proxy is made.
pub(crate) struct ProxyParts {
    pub rank: usize,
    pub ring: Ring,
    pub carrier: Box<dyn Carrier>,
    /// The memory that posts to each rank may touch; `None` for a rank that this one never posts to.
    pub peers: Vec<Option<PostedTo>>,
    /// Memory that posts may read.
    pub sources: Vec<Memory>,
    /// This rank's segment.
    pub segment: Memory,
    /// The control lines of the segment that posts of other ranks may move.
    pub inbound: Vec<Lines>,
    pub doorbell: Doorbell,
    pub aborts: Vec<Abort>,
}

/// The memory that posts to one peer may touch.
pub(crate) struct PostedTo {
    /// The size of each region in bytes, by number; `None` if there is no region with this number.
    pub regions: Vec<Option<u64>>,
    /// The control lines of the peer that this rank moves.
    pub lines: Vec<Lines>,
    /// The control lines of this rank's own segment that flushes of its posts to the peer move.
    pub flushed: Vec<Lines>,
}

struct State {
    ring: Ring,
    carrier: Box<dyn Carrier>,
    peers: Vec<Option<Peer>>,
    sources: Vec<Registered>,
    next_source: u64,
    arrivals: Arrivals,
    events: Vec<Event>,
    /// The peer of each write under way, and the control line of its delivery if it has one.
    writes: HashMap<u64, (usize, Option<u64>)>,
    next: u64,
    /// True once [`Proxy::halt`] was called: the proxy moves nothing any more.
    is_halted: bool,
}

/// Memory that posts may read.
struct Registered {
    /// The number by which the memory is removed; `None` if it stays registered as long as the proxy lives.
    id: Option<u64>,
    memory: Memory,
}

struct Peer {
    to: PostedTo,
    announced: Announced,
    held: VecDeque<Held>,
    /// Writes to this peer that are not delivered yet, each with the number of its post.
    under_way: BTreeMap<u64, u64>,
    /// The delivery under way for each control line.
    deliveries: HashMap<u64, Delivery>,
    /// Grows when the carrier takes or confirms writes to this peer, and with every flush.
    progress: u64,
    /// The number of writes that were reported as delivered and not confirmed, when a drain last asked.
    unconfirmed: usize,
}

/// A checked post that waits for its turn.
#[derive(Clone, Copy)]
struct Held {
    post: Posted,
    /// Its number among posts and writes, which says how old it is.
    number: u64,
    /// A signal or a flush may go only when all writes with smaller numbers are delivered.
    after: u64,
}

/// A delivery whose parts are not all delivered yet.
struct Delivery {
    word: u64,
    /// The number of parts. All posts of the delivery agree about it, about the word, and about having bytes.
    parts: u8,
    has_bytes: bool,
    /// How the word travels.
    told: Announcement,
    /// The number of digits that the carrier has taken.
    digits: u8,
    /// The number of posts that the carrier has not taken yet.
    missing: u8,
    /// The number of parts that the carrier has taken and not delivered.
    under_way: u32,
}

impl Proxy {
    pub(crate) fn new(parts: ProxyParts) -> Proxy {
        let ProxyParts { rank, ring, carrier, peers, sources, segment, inbound, doorbell, aborts } = parts;
        let peer = |to: PostedTo| Peer {
            to,
            announced: Announced::default(),
            held: VecDeque::new(),
            under_way: BTreeMap::new(),
            deliveries: HashMap::new(),
            progress: 0,
            unconfirmed: 0,
        };
        let state = State {
            ring,
            carrier,
            peers: peers.into_iter().map(|to| to.map(peer)).collect(),
            sources: sources.into_iter().map(|memory| Registered { id: None, memory }).collect(),
            next_source: 0,
            arrivals: Arrivals::new(segment, inbound),
            events: Vec::new(),
            writes: HashMap::new(),
            next: 0,
            is_halted: false,
        };
        Proxy {
            rank,
            state: Turns::new(state, doorbell.clone()),
            error: OnceLock::new(),
            behind: AtomicUsize::new(0),
            doorbell,
            aborts,
            departures: None,
            duty: OnceLock::new(),
            driven: AtomicUsize::new(0),
        }
    }

    /// For ranks that are processes: if a carrier fails because its peer is gone, the peer's end is reported as the
    /// cause.
    pub(crate) fn with_departures(self, departures: Departures) -> Proxy {
        Proxy { departures: Some(departures), ..self }
    }

    /// Says that a launch starts on a GPU, which cannot drive the proxy.
    pub(crate) fn launched(&self) {
        self.duty.get().iter().for_each(|duty| duty.launched());
    }

    /// Says that the last [`launched`](Self::launched) was premature: that launch did not start.
    pub(crate) fn launched_not(&self) {
        self.duty.get().iter().for_each(|duty| duty.launched_not());
    }

    /// Says that a launch on the CPU starts. Its threads may post and then compute for long without a wait, and the
    /// rank's thread carries these posts.
    #[inline]
    pub(crate) fn runs(&self) {
        self.duty.get().iter().for_each(|duty| duty.runs());
    }

    /// Says that a launch on the CPU has ended.
    #[inline]
    pub(crate) fn ran(&self) {
        self.duty.get().iter().for_each(|duty| duty.ran());
    }

    /// Says that all launches on a GPU have ended.
    pub(crate) fn landed(&self) {
        self.duty.get().iter().for_each(|duty| duty.landed());
    }

    /// Says that a launch was recorded in a graph. Replays of the graph are not reported.
    pub(crate) fn captured(&self) {
        self.duty.get().iter().for_each(|duty| duty.captured());
    }

    /// Says that a waiting thread is about to sleep. Returns true if the rank's thread drives the proxy meanwhile. In
    /// that case the caller must call [`take_back`](Self::take_back) afterwards.
    pub(crate) fn hand_over(&self) -> bool {
        self.duty.get().is_some_and(|duty| duty.hand_over())
    }

    /// Says that the waiting thread is awake again.
    pub(crate) fn take_back(&self) {
        self.duty.get().iter().for_each(|duty| duty.take_back());
    }

    fn relieved_by(&self, duty: Arc<Duty>) {
        assert!(self.duty.set(duty).is_ok(), "a proxy has one thread");
    }

    /// True if the proxy has failed or its rank was aborted: nothing will be delivered any more.
    fn is_stopped(&self) -> bool {
        self.error().is_some() || self.aborts.get(self.rank).is_some_and(|abort| abort.get().is_some())
    }

    /// Makes progress, unless another thread is already doing so. Returns true if this call made any.
    #[inline]
    pub fn step(&self) -> bool {
        self.drives();
        self.step_uncounted()
    }

    /// As [`step`](Self::step), for the rank's own thread.
    fn step_uncounted(&self) -> bool {
        match self.state.try_enter() {
            Ok(inside) => inside.is_some_and(|mut state| self.step_inside(&mut state)),
            Err(Panicked) => {
                self.fail(ProxyError::Panicked);
                false
            }
        }
    }

    /// Says that the calling thread, which is not the rank's own, drives the proxy.
    #[inline]
    fn drives(&self) {
        // Relaxed: the number only tells the rank's thread to stay out of the way. Two threads that add at the same
        // time may count once, which changes the number all the same.
        self.driven.store(self.driven.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// A number that changes whenever a thread other than the rank's own makes a step.
    fn driven(&self) -> usize {
        self.driven.load(Ordering::Relaxed)
    }

    /// Takes everything that has arrived so far, and waits for its turn if another thread is inside. Returns true if
    /// some posts of this rank may not be where peers see them, and asks for their confirmation.
    pub(crate) fn settle(&self) -> bool {
        // A carrier may report arrivals in portions. The loop is bounded because peers may send without a pause.
        for _ in 0..MOST_PORTIONS {
            let progress = self.enter().is_ok_and(|mut state| self.step_inside(&mut state));
            if !progress {
                break;
            }
        }
        self.is_busy() || self.is_unconfirmed()
    }

    /// True if some posts of this rank were not delivered when a thread was last inside. Deliveries ring no doorbell.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        // Relaxed: the word only decides how long to sleep. In `settle` this same thread has stored it.
        self.behind.load(Ordering::Relaxed) != 0
    }

    /// The peer with the oldest undelivered post of this rank, when a thread was last inside. Never waits: another
    /// thread may be inside the carrier for long.
    pub(crate) fn behind(&self) -> Option<usize> {
        // Relaxed: only for a message.
        let word = self.behind.load(Ordering::Relaxed);
        (word != UNKNOWN).then_some(word).and_then(|word| word.checked_sub(1))
    }

    /// The error that stopped this proxy, if any.
    pub fn error(&self) -> Option<&ProxyError> {
        self.error.get()
    }

    /// Locks the state, and waits if another thread is inside. Fails if a thread panicked inside, because it may have
    /// left posts half done.
    fn enter(&self) -> Result<Inside<'_, State>, ProxyError> {
        self.state.enter().map_err(|Panicked| self.fail(ProxyError::Panicked))
    }

    fn step_inside(&self, state: &mut State) -> bool {
        if self.error().is_some() || state.is_halted {
            return false;
        }
        let (mut progress, mut moved) = (false, false);
        let result = state.step(&mut progress, &mut moved);
        self.note(state);
        if moved {
            // Rings after the slots have moved, because a waiting thread of this rank may be asleep.
            self.doorbell.ring();
        }
        if let Err(error) = result {
            self.fail(error);
        }
        progress
    }

    /// Lets threads that are not inside know whether posts are left.
    fn note(&self, state: &State) {
        let behind = match state.behind() {
            Some(peer) => peer + 1,
            None if state.ring.is_empty() => 0,
            None => UNKNOWN,
        };
        // Relaxed: the word only decides how long to sleep, and names a peer in messages.
        self.behind.store(behind, Ordering::Relaxed);
    }

    /// Stops the proxy and breaks the transport on all ranks.
    fn fail(&self, error: ProxyError) -> ProxyError {
        let error = self.error.get_or_init(|| error).clone();
        let cause = match error {
            // The cause names the peer for the other ranks.
            ProxyError::Late { peer, .. } => Cause::timed_out(self.rank, Some(peer)),
            ProxyError::Carrier { peer, .. } if self.departures.is_some() => {
                let own = Cause { code: AbortCode::Failed, rank: self.rank, reason: 0 };
                self.end_of(peer).unwrap_or(peer.map_or(own, |peer| Cause::severed(self.rank, peer)))
            }
            _ => Cause { code: AbortCode::Failed, rank: self.rank, reason: 0 },
        };
        self.aborts.iter().for_each(|abort| _ = abort.set(cause));
        error
    }

    /// The reason why a peer is gone, if it arrives within [`REASON`]. The network notices that a peer is gone before
    /// the reason arrives, and the reason says more than the network's error. `None` if the network did not say which
    /// peer it is: then the reason is that of any of them.
    fn end_of(&self, peer: Option<usize>) -> Option<Cause> {
        let until = Deadline::after(REASON);
        let others = || (0..self.aborts.len()).filter(|&rank| rank != self.rank);
        loop {
            let told = self.aborts.get(self.rank).and_then(Abort::get);
            let gone = others().filter(|&rank| peer.is_none_or(|peer| peer == rank)).find(|&rank| self.has_left(rank));
            let left = gone.map(|rank| Cause { code: AbortCode::Left, rank, reason: 0 });
            if let Some(cause) = told.or(left) {
                return Some(cause);
            }
            if until.is_over() {
                return None;
            }
            sleep(NAP);
        }
    }

    /// True if it is known that a rank has left the transport.
    fn has_left(&self, rank: usize) -> bool {
        self.departures.as_ref().is_some_and(|departures| departures.has_left(rank))
    }

    /// This proxy's error, unless a cause from another rank broke the transport first.
    pub(crate) fn broke(&self) -> Option<&ProxyError> {
        let is_own = |cause: Cause| cause.rank == self.rank;
        self.error().filter(|_| self.aborts.get(self.rank).and_then(Abort::get).is_none_or(is_own))
    }
}

impl State {
    fn step(&mut self, progress: &mut bool, moved: &mut bool) -> Result<(), ProxyError> {
        // New posts go before arrivals are looked at: a peer waits for them.
        self.take(progress)?;
        self.advance_all(progress, moved)?;
        self.poll(progress, moved)?;
        self.advance_all(progress, moved)
    }

    /// Takes posts from the ring.
    fn take(&mut self, progress: &mut bool) -> Result<(), ProxyError> {
        // Held posts wait only for the carrier, so leaving other posts in the ring cannot deadlock.
        let room = !self.peers.iter().flatten().any(|peer| peer.held.len() >= MOST_HELD);
        for _ in 0..if room { BATCH } else { 0 } {
            let Some(entry) = self.ring.pop() else { break };
            *progress = true;
            let post = entry.map_err(|bad| ProxyError::Entry { head: bad.head })?;
            let peer = self.check(&post)?;
            let held = Held { post, number: self.next, after: self.next };
            self.next += 1;
            let queue = &mut self.peers[peer].as_mut().expect("checked").held;
            // Bytes go before credits: a peer waits for bytes, and rarely for the last credit. Credits cannot starve,
            // because bytes need credits of the peer, too.
            let credits =
                queue.iter().rev().take_while(|credit| credit.is_credit() && credit.line() != held.line()).count();
            queue.insert(queue.len() - if held.is_delivery() { credits } else { 0 }, held);
        }
        Ok(())
    }

    fn advance_all(&mut self, progress: &mut bool, moved: &mut bool) -> Result<(), ProxyError> {
        (0..self.peers.len()).try_for_each(|peer| self.advance(peer, progress, moved))
    }

    /// Takes the events that the carrier reports.
    fn poll(&mut self, progress: &mut bool, moved: &mut bool) -> Result<(), ProxyError> {
        let mut events = std::mem::take(&mut self.events);
        self.carrier.poll(&mut events)?;
        // Once for all of them, when their reports were seen and before the first slot moves: `Carrier` says why.
        if events.iter().any(|event| matches!(event, Event::Arrived { .. })) {
            self.carrier.flush_arrivals()?;
        }
        for event in events.drain(..) {
            *progress = true;
            match event {
                Event::Arrived { notice } => *moved |= self.arrivals.arrived(notice)?,
                Event::Delivered { id } => self.delivered(id),
            }
        }
        self.events = events;
        Ok(())
    }

    fn delivered(&mut self, id: u64) {
        let Some((peer, line)) = self.writes.remove(&id) else { return };
        let Some(peer) = &mut self.peers[peer] else { return };
        peer.under_way.remove(&id);
        peer.progress += 1;
        let Some(line) = line else { return };
        if let Some(delivery) = peer.deliveries.get_mut(&line) {
            delivery.under_way -= 1;
            if delivery.under_way == 0 && delivery.missing == 0 {
                peer.deliveries.remove(&line);
            }
        }
    }

    /// Compares every field of a descriptor with the registered regions, lines and sources. Returns the peer.
    fn check(&self, post: &Posted) -> Result<usize, ProxyError> {
        let number = post.peer as usize;
        let peer = self.peers.get(number).and_then(Option::as_ref).ok_or(ProxyError::Peer { peer: number })?;
        self.destination(number, post)?;
        self.source(number, post)?;
        match post.notice {
            Some(PostedNotice { slot, kind: NoticeKind::Flush, .. })
                if Lines::find(&peer.to.flushed, slot).is_none() =>
            {
                Err(ProxyError::OwnLine { peer: number, line: slot })
            }
            Some(PostedNotice { slot, kind: NoticeKind::Data | NoticeKind::Credit, .. })
                if Lines::find(&peer.to.lines, slot).is_none() =>
            {
                Err(ProxyError::Line { peer: number, line: slot })
            }
            _ => Ok(number),
        }
    }

    /// Refuses bytes outside the peer's region that the post names.
    fn destination(&self, number: usize, post: &Posted) -> Result<(), ProxyError> {
        // A post without bytes is an empty write at the beginning of its region.
        let (destination, bytes) = post.span.map_or((0, 0), |span| (span.destination, span.bytes));
        let regions = self.peers[number].as_ref().map_or(&[][..], |peer| &peer.to.regions);
        let len = regions.get(usize::from(post.target)).copied().flatten();
        let fits = |len: u64| destination.checked_add(bytes).is_some_and(|end| end <= len);
        match len.is_some_and(fits) {
            true => Ok(()),
            false => Err(ProxyError::Destination { peer: number, target: post.target, destination, bytes, len }),
        }
    }

    /// The registered memory that a post reads; `None` if it reads nothing.
    fn source(&self, peer: usize, post: &Posted) -> Result<Option<Memory>, ProxyError> {
        let Some(PostedSpan { source, bytes, .. }) = post.span.filter(|span| span.bytes > 0) else { return Ok(None) };
        let inside = |memory: &&Memory| {
            let first = memory.start().as_ptr() as u64;
            source >= first && source.checked_add(bytes).is_some_and(|end| end <= first + memory.bytes() as u64)
        };
        let memory = self.sources.iter().map(|source| &source.memory).find(inside);
        let memory = memory.ok_or(ProxyError::Source { peer, address: source, bytes })?;
        Ok(Some(memory.part((source - memory.start().as_ptr() as u64) as usize, bytes as usize)))
    }

    /// Gives the carrier all held posts to a peer that may go now.
    fn advance(&mut self, number: usize, progress: &mut bool, moved: &mut bool) -> Result<(), ProxyError> {
        let Some(peer) = &mut self.peers[number] else { return Ok(()) };
        if peer.held.is_empty() {
            return Ok(());
        }
        let mut held = std::mem::take(&mut peer.held);
        let mut kept = VecDeque::new();
        // `lines`: control lines with a held notice, which later notices for the same line must not overtake.
        let (mut lines, mut full, mut started) = (HashSet::new(), false, false);
        while let Some(mut next) = held.pop_front() {
            if started {
                // A signal also covers earlier posts that were still held when the signal was taken from the ring.
                // Later posts that have overtaken the signal may be among these writes. It then waits for them as well.
                next.after = self.next;
            }
            if let Some(PostedNotice { slot: line, value: word, kind: NoticeKind::Flush, .. }) = next.post.notice {
                match self.is_covered(number, &next, kept.is_empty()) {
                    true => {
                        self.arrivals.flush(number, line, word)?;
                        self.peers[number].as_mut().expect("as above").progress += 1;
                        (*progress, *moved) = (true, true);
                    }
                    // A held flush holds back only later signals and flushes, because its line is not the peer's.
                    false => kept.push_back(next),
                }
                continue;
            }
            let line = next.post.notice.map(|notice| notice.slot);
            let may = !full
                && !line.is_some_and(|line| lines.contains(&line))
                && self.may_go(number, &next, kept.is_empty())?;
            if may && self.write(number, &next)? {
                (*progress, started) = (true, true);
                continue;
            }
            full |= may;
            lines.extend(line);
            kept.push_back(next);
        }
        self.peers[number].as_mut().expect("as above").held = kept;
        Ok(())
    }

    /// True if the carrier may have a post now. `is_first` says that no earlier post to this peer is held.
    fn may_go(&self, number: usize, held: &Held, is_first: bool) -> Result<bool, ProxyError> {
        let peer = self.peers[number].as_ref().expect("a peer with held posts");
        let Some(PostedNotice { slot: line, value: word, parts, kind }) = held.post.notice else { return Ok(true) };
        let has_bytes = held.post.span.is_some();
        match peer.deliveries.get(&line) {
            Some(delivery) if delivery.missing == 0 => return Ok(false),
            // The next part of the delivery, or a post whose digits were taken before the carrier was full.
            Some(delivery) if (delivery.word, delivery.parts, delivery.has_bytes) == (word, parts, has_bytes) => {}
            Some(&Delivery { missing, .. }) => return Err(ProxyError::Parts { peer: number, line, word, missing }),
            None => {}
        }
        let is_begun = || peer.deliveries.contains_key(&line);
        Ok(has_bytes || kind == NoticeKind::Credit || is_begun() || self.is_covered(number, held, is_first))
    }

    /// True if all earlier posts to the peer are delivered.
    fn is_covered(&self, number: usize, held: &Held, is_first: bool) -> bool {
        let peer = self.peers[number].as_ref().expect("a peer with held posts");
        is_first && peer.under_way.first_key_value().is_none_or(|(&first, _)| first >= held.after)
    }

    /// Gives a post to the carrier, after the digits of its delivery. Returns false if the carrier cannot take it now.
    /// Digits that it has taken already are not sent again.
    fn write(&mut self, number: usize, held: &Held) -> Result<bool, ProxyError> {
        let Held { post, number: age, .. } = held;
        // Checked again, because the region or the source may have been removed while the post was held.
        self.destination(number, post)?;
        let memory = self.source(number, post)?;
        let source = memory.as_ref().map_or(Source::Inline(&[]), Source::Memory);
        let (target, offset) = (post.target, post.span.map_or(0, |span| span.destination));
        let Some(PostedNotice { slot: line, value: word, parts, .. }) = post.notice else {
            return self.start((number, *age), source, (target, offset), None);
        };
        let Peer { to, announced, deliveries, .. } = self.peers[number].as_mut().expect("checked");
        let delivery = match deliveries.entry(line) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let told = announced.next(&to.lines, (number, line), word, parts)?;
                let has_bytes = post.span.is_some();
                entry.insert(Delivery { word, parts, has_bytes, told, digits: 0, missing: parts, under_way: 0 })
            }
        };
        let (told, taken) = (delivery.told, delivery.digits);
        for index in taken..told.digits {
            let nothing = (Source::Inline(&[]), (post.target, 0));
            if !self.start((number, *age), nothing.0, nothing.1, Some((line, told.digit(index))))? {
                return Ok(false);
            }
            self.delivery(number, line).digits += 1;
        }
        let went = self.start((number, *age), source, (target, offset), Some((line, told.notice)))?;
        if went {
            self.delivery(number, line).missing -= 1;
        }
        Ok(went)
    }

    /// The delivery under way for a control line.
    fn delivery(&mut self, peer: usize, line: u64) -> &mut Delivery {
        let peer = self.peers[peer].as_mut().expect("checked");
        peer.deliveries.get_mut(&line).expect("begun before its parts")
    }

    fn start(
        &mut self,
        (peer, age): (usize, u64),
        source: Source<'_>,
        (target, offset): (u16, u64),
        line: Option<(u64, u32)>,
    ) -> Result<bool, ProxyError> {
        let (id, notice) = (self.next, line.map(|(_, notice)| notice));
        let write = Write { id, peer, source, target, offset, notice };
        if !self.carrier.write(&write)? {
            return Ok(false);
        }
        self.next += 1;
        self.writes.insert(id, (peer, line.map(|(line, _)| line)));
        let to = self.peers[peer].as_mut().expect("checked");
        to.under_way.insert(id, age);
        to.progress += 1;
        if let Some((line, _)) = line {
            self.delivery(peer, line).under_way += 1;
        }
        Ok(true)
    }

    /// True if everything that kernels have posted is delivered, and no entry is left in the ring.
    fn is_empty(&self) -> bool {
        self.behind().is_none() && self.ring.is_empty()
    }

    /// The peer with the oldest undelivered post.
    fn behind(&self) -> Option<usize> {
        let left = self.peers.iter().enumerate().filter_map(|(number, peer)| Some((peer.as_ref()?.oldest()?, number)));
        left.min().map(|(_, number)| number)
    }
}

impl Peer {
    /// The number of posts that are not delivered yet, with the digits of their steps.
    fn left(&self) -> usize {
        self.held.len() + self.under_way.len() + self.unconfirmed
    }

    /// A number that says how old the oldest undelivered post is; `None` if all are delivered.
    fn oldest(&self) -> Option<u64> {
        let held = self.held.front().map(|held| held.number);
        held.into_iter().chain(self.under_way.first_key_value().map(|(_, &age)| age)).min()
    }
}

#[cfg(test)]
mod tests;
