//! What set, get, barrier and all-gather mean, without sockets, threads or clocks.
//!
//! A request is submitted under a [`Ticket`]; its [`Answer`] appears under the same ticket, immediately or once other
//! ranks have acted. A wait stays in `waiting` until it is answered. Three things answer it: the event it waits for,
//! [`Store::expire`], and [`Store::depart`]. The waits of a rank that left or was lost are dropped unanswered: nobody
//! is there to read the answers.
//!
//! ```text
//!   get 'k'      waits ──▶ set 'k' answers all of them, up to and including the first take
//!   barrier 'b'  waits ──▶ the last rank's arrival answers all; the name is then free for the next round
//! ```
#![forbid(unsafe_code)]

use super::{BootstrapError, Departure, Limit, Limits, Operation};
use crate::transport::Rank;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shared, since one value may be in transit to every rank.
pub(super) type Bytes = Arc<[u8]>;

/// Identifies the asker, and which of its questions this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ticket {
    /// The connection, or the rank if there are no connections.
    pub(super) asker: u64,
    /// The number the asker gave.
    pub(super) number: u64,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Any operation but `Join`.
    pub(super) operation: Operation,
    /// The key, or the name of the barrier or all-gather.
    pub(super) name: String,
    /// The value of a `set` or `all_gather`; empty for the rest.
    pub(super) value: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Value(Bytes),
    Values(Arc<[Bytes]>),
    Refused(Refusal),
}

/// An error, without the parts that the asker already knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Late { late: Vec<Rank>, absent: Vec<Rank> },
    NotSet { absent: Vec<Rank> },
    Gone { peer: Rank, departure: Departure },
    KeyTaken,
    AlreadyWaiting,
    TooLarge { what: Limit, size: usize, limit: usize },
    Full { what: Limit, limit: usize },
}

pub(super) struct Store {
    limits: Limits,
    ranks: Vec<Presence>,
    /// The first rank that was lost or failed: the cause, if others follow.
    broken: Option<(Rank, Departure)>,
    keys: HashMap<String, Bytes>,
    waiting: HashMap<Ticket, Waiting>,
    /// The tickets in `waiting`, by what they wait for. No queue is empty.
    queues: HashMap<(Operation, String), Queue>,
    /// The tickets in `waiting` that have a deadline.
    expiries: BTreeSet<(Instant, Ticket)>,
    /// Bytes of all keys and values, and of the names and values of waiting barriers and all-gathers.
    held: usize,
    answers: Vec<(Ticket, Answer)>,
}

/// The waits for one thing.
#[derive(Default)]
struct Queue {
    /// In order of arrival.
    tickets: Vec<Ticket>,
    /// The ranks that came to a barrier or all-gather, but whose waits expired while others still waited, in that
    /// order. The others do not wait in vain because of them.
    gave_up: Vec<Rank>,
}

struct Waiting {
    rank: Rank,
    until: Option<Instant>,
    request: Request,
}

#[derive(Clone, PartialEq, Eq)]
enum Presence {
    Absent,
    Here,
    Gone(Departure),
}

impl Store {
    pub(super) fn new(world_size: usize, limits: Limits) -> Store {
        Store {
            limits,
            ranks: vec![Presence::Absent; world_size],
            broken: None,
            keys: HashMap::new(),
            waiting: HashMap::new(),
            queues: HashMap::new(),
            expiries: BTreeSet::new(),
            held: 0,
            answers: Vec::new(),
        }
    }

    pub(super) fn world_size(&self) -> usize {
        self.ranks.len()
    }

    /// True if a rank has failed or was lost.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Takes a rank's place; returns false if it is taken, even by a rank that is gone.
    pub(super) fn join(&mut self, rank: Rank) -> bool {
        let free = self.ranks[rank.index()] == Presence::Absent;
        if free {
            self.ranks[rank.index()] = Presence::Here;
        }
        free
    }

    /// Records that a rank departs, and ends the waits that need it.
    pub(super) fn depart(&mut self, rank: Rank, departure: Departure) {
        // A rank that failed and then loses its connection has failed.
        if matches!(self.ranks[rank.index()], Presence::Gone(_)) {
            return;
        }
        self.ranks[rank.index()] = Presence::Gone(departure.clone());
        if departure != Departure::Left {
            self.broken.get_or_insert((rank, departure.clone()));
        }
        for ticket in self.waiting.keys().copied().collect::<Vec<_>>() {
            let waiting = &self.waiting[&ticket];
            // A failed rank is still there to read that its own waits have ended; a rank that left or was lost is not.
            if waiting.rank == rank && !matches!(departure, Departure::Failed(_)) {
                self.settle(ticket, None);
            } else if departure != Departure::Left || is_gather(waiting.request.operation) {
                let gone = Refusal::Gone { peer: rank, departure: departure.clone() };
                self.settle(ticket, Some(Answer::Refused(gone)));
            }
        }
    }

    /// True if a ticket is in use.
    pub(super) fn is_waiting(&self, ticket: Ticket) -> bool {
        self.waiting.contains_key(&ticket)
    }

    /// When [`Store::expire`] next has something to do.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.expiries.first().map(|(at, _)| *at)
    }

    /// Ends the waits whose deadlines have passed.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(&(at, ticket)) = self.expiries.first()
            && at <= now
        {
            let Waiting { rank, request, .. } = &self.waiting[&ticket];
            let refusal = if is_gather(request.operation) {
                let (rank, key) = (*rank, queue_of(request));
                let missing = self.missing(&self.queues[&key]);
                let gave_up = &mut self.queues.get_mut(&key).expect("it has this ticket").gave_up;
                if !gave_up.contains(&rank) {
                    gave_up.push(rank);
                }
                let (absent, late) = missing.into_iter().partition(|rank| self.is_absent(*rank));
                Refusal::Late { late, absent }
            } else {
                Refusal::NotSet { absent: Rank::all(self.world_size()).filter(|rank| self.is_absent(*rank)).collect() }
            };
            self.settle(ticket, Some(Answer::Refused(refusal)));
        }
    }

    /// The ranks that keep a queue waiting: those that never came. If all have come, it is the first one that has given
    /// up since (the others may have given up because of it). Looks at each rank a fixed number of times, since this is
    /// called for each wait when all waits of a barrier expire.
    fn missing(&self, queue: &Queue) -> Vec<Rank> {
        let mut came = vec![false; self.world_size()];
        queue.tickets.iter().for_each(|ticket| came[self.waiting[ticket].rank.index()] = true);
        let first_gone = queue.gave_up.iter().copied().find(|rank| !came[rank.index()]);
        queue.gave_up.iter().for_each(|rank| came[rank.index()] = true);
        let never: Vec<Rank> = Rank::all(self.world_size()).filter(|rank| !came[rank.index()]).collect();
        if never.is_empty() { first_gone.into_iter().collect() } else { never }
    }

    fn is_absent(&self, rank: Rank) -> bool {
        self.ranks[rank.index()] == Presence::Absent
    }

    /// The answers since the last call.
    pub(super) fn answers(&mut self) -> Vec<(Ticket, Answer)> {
        std::mem::take(&mut self.answers)
    }

    /// Accepts a request from a rank that has joined.
    pub(super) fn submit(&mut self, ticket: Ticket, rank: Rank, request: Request, until: Option<Instant>) {
        let answer = match self.limits.admit(&request.name, &request.value) {
            Err(refusal) => Some(Answer::Refused(refusal)),
            Ok(()) => match request.operation {
                Operation::Set => Some(self.set(&request)),
                Operation::Get | Operation::Take => self.get(ticket, rank, request, until),
                _ => self.gather(ticket, rank, request, until),
            },
        };
        self.answers.extend(answer.map(|answer| (ticket, answer)));
    }

    fn set(&mut self, request: &Request) -> Answer {
        let Request { name, value, .. } = request;
        match self.keys.get(name) {
            Some(old) if old == value => return Answer::Done,
            Some(_) => return Answer::Refused(Refusal::KeyTaken),
            None => {}
        }
        if self.keys.len() >= self.limits.keys {
            return Answer::Refused(Refusal::Full { what: Limit::Keys, limit: self.limits.keys });
        }
        if let Err(refusal) = self.hold(name.len() + value.len()) {
            return Answer::Refused(refusal);
        }
        self.keys.insert(name.clone(), value.clone());
        let waiting = self.queues.get(&(Operation::Get, name.clone())).map(|queue| queue.tickets.clone());
        for ticket in waiting.unwrap_or_default() {
            let takes = self.waiting[&ticket].request.operation == Operation::Take;
            self.settle(ticket, Some(Answer::Value(value.clone())));
            if takes {
                self.remove(name);
                break;
            }
        }
        Answer::Done
    }

    fn get(&mut self, ticket: Ticket, rank: Rank, request: Request, until: Option<Instant>) -> Option<Answer> {
        if let Some(value) = self.keys.get(&request.name).cloned() {
            if request.operation == Operation::Take {
                self.remove(&request.name);
            }
            return Some(Answer::Value(value));
        }
        if let Some((peer, departure)) = self.broken.clone() {
            return Some(Answer::Refused(Refusal::Gone { peer, departure }));
        }
        self.wait(ticket, rank, request, until)
    }

    fn gather(&mut self, ticket: Ticket, rank: Rank, request: Request, until: Option<Instant>) -> Option<Answer> {
        if let Some((peer, departure)) = self.broken.clone().or_else(|| self.any_gone()) {
            return Some(Answer::Refused(Refusal::Gone { peer, departure }));
        }
        if self.queue(&request).iter().any(|t| self.waiting[t].rank == rank) {
            return Some(Answer::Refused(Refusal::AlreadyWaiting));
        }
        if let Err(refusal) = self.hold(request.name.len() + request.value.len()) {
            return Some(Answer::Refused(refusal));
        }
        let held = request.name.len() + request.value.len();
        if let Some(refused) = self.wait(ticket, rank, request.clone(), until) {
            self.held -= held;
            return Some(refused);
        }
        let mut came = self.queue(&request).to_vec();
        if came.len() == self.world_size() {
            came.sort_by_key(|ticket| self.waiting[ticket].rank);
            let answer = match request.operation {
                Operation::Barrier => Answer::Done,
                _ => Answer::Values(came.iter().map(|ticket| self.waiting[ticket].request.value.clone()).collect()),
            };
            for ticket in came {
                self.settle(ticket, Some(answer.clone()));
            }
        }
        None
    }

    fn wait(&mut self, ticket: Ticket, rank: Rank, request: Request, until: Option<Instant>) -> Option<Answer> {
        if self.waiting.values().filter(|waiting| waiting.rank == rank).count() >= self.limits.waiting {
            return Some(Answer::Refused(Refusal::Full { what: Limit::Waiting, limit: self.limits.waiting }));
        }
        self.queues.entry(queue_of(&request)).or_default().tickets.push(ticket);
        self.expiries.extend(until.map(|at| (at, ticket)));
        self.waiting.insert(ticket, Waiting { rank, until, request });
        None
    }

    /// Ends a wait, with an answer if anybody is there to read it.
    fn settle(&mut self, ticket: Ticket, answer: Option<Answer>) {
        let Some(Waiting { until, request, .. }) = self.waiting.remove(&ticket) else { return };
        if let Some(at) = until {
            self.expiries.remove(&(at, ticket));
        }
        let queue = queue_of(&request);
        if let Some(Queue { tickets, .. }) = self.queues.get_mut(&queue) {
            tickets.retain(|t| *t != ticket);
            if tickets.is_empty() {
                self.queues.remove(&queue);
            }
        }
        if is_gather(request.operation) {
            self.held -= request.name.len() + request.value.len();
        }
        self.answers.extend(answer.map(|answer| (ticket, answer)));
    }

    fn hold(&mut self, bytes: usize) -> Result<(), Refusal> {
        let limit = self.limits.total_bytes;
        if bytes > limit - self.held {
            return Err(Refusal::Full { what: Limit::TotalBytes, limit });
        }
        self.held += bytes;
        Ok(())
    }

    fn remove(&mut self, key: &str) {
        if let Some(value) = self.keys.remove(key) {
            self.held -= key.len() + value.len();
        }
    }

    fn queue(&self, request: &Request) -> &[Ticket] {
        self.queues.get(&queue_of(request)).map_or(&[], |queue| &queue.tickets)
    }

    fn any_gone(&self) -> Option<(Rank, Departure)> {
        Rank::all(self.world_size()).find_map(|rank| match &self.ranks[rank.index()] {
            Presence::Gone(departure) => Some((rank, departure.clone())),
            _ => None,
        })
    }
}

/// `get` and `take` of a key share one queue.
fn queue_of(request: &Request) -> (Operation, String) {
    let operation = if request.operation == Operation::Take { Operation::Get } else { request.operation };
    (operation, request.name.clone())
}

fn is_gather(operation: Operation) -> bool {
    matches!(operation, Operation::Barrier | Operation::AllGather)
}

impl Refusal {
    /// The error the asker sees.
    pub(super) fn error(self, rank: Rank, operation: Operation, name: &str, waited: Duration) -> BootstrapError {
        let name = name.to_string();
        match self {
            Refusal::Late { late, absent } => BootstrapError::Timeout { rank, operation, name, late, absent, waited },
            Refusal::NotSet { absent } => BootstrapError::KeyNotSet { rank, key: name, absent, waited },
            Refusal::Gone { peer, departure } => BootstrapError::PeerGone { peer, departure, operation, name },
            Refusal::KeyTaken => BootstrapError::KeyTaken { key: name },
            Refusal::AlreadyWaiting => BootstrapError::AlreadyWaiting { rank, operation, name },
            Refusal::TooLarge { what, size, limit } => BootstrapError::TooLarge { what, size, limit },
            Refusal::Full { what, limit } => BootstrapError::Full { what, limit },
        }
    }
}

impl Answer {
    /// The value that answers a `get` or `take`.
    pub(super) fn into_value(self) -> Vec<u8> {
        match self {
            Answer::Value(value) => value.to_vec(),
            other => unreachable!("get is answered with a value, not {other:?}"),
        }
    }

    /// The values that answer an `all_gather`.
    pub(super) fn into_values(self) -> Vec<Vec<u8>> {
        match self {
            Answer::Values(values) => values.iter().map(|value| value.to_vec()).collect(),
            other => unreachable!("all_gather is answered with values, not {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn barrier(store: &mut Store, rank: u32, until: Instant) {
        let request = Request { operation: Operation::Barrier, name: "b".into(), value: Bytes::default() };
        store.submit(Ticket { asker: rank.into(), number: 0 }, Rank::new(rank), request, Some(until));
    }

    fn world(size: usize) -> Store {
        let mut store = Store::new(size, Limits::default());
        assert!(Rank::all(size).all(|rank| store.join(rank)));
        store
    }

    /// The askers that were answered, and the ranks that were late for each.
    fn late(store: &mut Store) -> Vec<(u64, Vec<u32>)> {
        let late = |(ticket, answer): (Ticket, Answer)| match answer {
            Answer::Refused(Refusal::Late { late, .. }) => {
                (ticket.asker, late.iter().map(|rank| rank.number()).collect())
            }
            other => panic!("{other:?}"),
        };
        store.answers().into_iter().map(late).collect()
    }

    #[test]
    fn ranks_whose_own_time_was_over_are_not_late() {
        let (mut store, start) = (world(4), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        barrier(&mut store, 0, after(10));
        barrier(&mut store, 1, after(10));
        barrier(&mut store, 3, after(20));
        store.expire(after(10));
        assert_eq!(late(&mut store), [(0, vec![2]), (1, vec![2])]);
        store.expire(after(20));
        assert_eq!(late(&mut store), [(3, vec![2])]);

        // If all have come and some have given up since, the first of those is named: the error should name some rank.
        barrier(&mut store, 0, after(30));
        (1..4).for_each(|rank| barrier(&mut store, rank, after(if rank == 1 { 35 } else { 40 })));
        assert_eq!(store.answers().len(), 4, "the round is complete, and nothing of the last one is remembered");
        barrier(&mut store, 0, after(30));
        barrier(&mut store, 1, after(40));
        store.expire(after(30));
        barrier(&mut store, 2, after(40));
        barrier(&mut store, 3, after(40));
        store.expire(after(40));
        assert_eq!(late(&mut store), [(0, vec![2, 3]), (1, vec![0]), (2, vec![0]), (3, vec![0])]);
        // A rank that comes again counts as having come.
        (0..3).for_each(|rank| barrier(&mut store, rank, after(if rank == 0 { 50 } else { 60 })));
        store.expire(after(50));
        barrier(&mut store, 0, after(60));
        store.expire(after(60));
        assert_eq!(late(&mut store), [(0, vec![3]), (0, vec![3]), (1, vec![3]), (2, vec![3])]);
    }

    #[test]
    fn the_waits_of_a_thousand_ranks_expire_together() {
        let (mut store, now) = (world(2000), Instant::now());
        (0..1000).for_each(|rank| barrier(&mut store, rank, now));
        store.expire(now);
        // Searching the queue for every rank, once per expired wait, would take 10⁹ steps, which is some minutes.
        assert!(now.elapsed() < Duration::from_secs(60), "took {:?}", now.elapsed());
        let answers = late(&mut store);
        assert_eq!(answers.len(), 1000);
        assert!(answers.iter().all(|(_, late)| late.iter().copied().eq(1000..2000)));
    }
}
