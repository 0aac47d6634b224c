//! A bootstrap for ranks that are threads of one process.
#![forbid(unsafe_code)]

use super::store::{Answer, Request, Store, Ticket};
use super::{Bootstrap, BootstrapError, Departure, Limits, Operation};
use crate::transport::{Deadline, Rank};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// One rank of a world of threads.
///
/// Dropping it means leaving the world; dropping it in a panic means failing.
pub struct LocalBootstrap {
    rank: Rank,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Indexed by rank.
    answered: Vec<Condvar>,
}

struct State {
    store: Store,
    answers: HashMap<Ticket, Answer>,
    next: u64,
}

impl LocalBootstrap {
    /// Creates a world of this size and returns one bootstrap per rank, in order.
    pub fn world(world_size: usize) -> Vec<LocalBootstrap> {
        LocalBootstrap::with_limits(world_size, Limits::default())
    }

    /// Like [`LocalBootstrap::world`], with custom limits.
    pub fn with_limits(world_size: usize, limits: Limits) -> Vec<LocalBootstrap> {
        let mut store = Store::new(world_size, limits.clamped());
        for rank in Rank::all(world_size) {
            store.join(rank);
        }
        let state = Mutex::new(State { store, answers: HashMap::new(), next: 0 });
        let answered = Rank::all(world_size).map(|_| Condvar::new()).collect();
        let shared = Arc::new(Shared { state, answered });
        Rank::all(world_size).map(|rank| LocalBootstrap { rank, shared: shared.clone() }).collect()
    }

    fn call(
        &self,
        operation: Operation,
        name: &str,
        value: &[u8],
        deadline: Deadline,
    ) -> Result<Answer, BootstrapError> {
        let began = Instant::now();
        let mut state = self.shared.lock();
        state.next += 1;
        let ticket = Ticket { asker: self.rank.number().into(), number: state.next };
        let request = Request { operation, name: name.to_string(), value: value.into() };
        state.store.submit(ticket, self.rank, request, deadline.instant());
        loop {
            self.shared.deliver(&mut state);
            match state.answers.remove(&ticket) {
                Some(Answer::Refused(refusal)) => {
                    return Err(refusal.error(self.rank, operation, name, began.elapsed()));
                }
                Some(answer) => return Ok(answer),
                None => {}
            }
            let answered = &self.shared.answered[self.rank.index()];
            state = match deadline.remaining() {
                None => answered.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let (state, _) = answered.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
                    state
                }
            };
            state.store.expire(Instant::now());
        }
    }

    /// As if this rank were a process that was killed.
    #[cfg(test)]
    pub(in crate::transport) fn is_lost(&self) {
        self.depart(Departure::Lost);
    }

    fn depart(&self, departure: Departure) {
        let mut state = self.shared.lock();
        state.store.depart(self.rank, departure);
        self.shared.deliver(&mut state);
    }
}

impl Shared {
    /// A panic while the lock is held can only be a bug in the store; the other ranks still get answers, or time out.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deliver(&self, state: &mut State) {
        let answers = state.store.answers();
        for (ticket, answer) in answers {
            // Wakes only the rank that asked: with 64 waiting ranks, waking all of them for every answer takes seconds.
            self.answered[ticket.asker as usize].notify_all();
            state.answers.insert(ticket, answer);
        }
    }
}

impl Bootstrap for LocalBootstrap {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.shared.lock().store.world_size()
    }

    fn set(&self, key: &str, value: &[u8], deadline: Deadline) -> Result<(), BootstrapError> {
        self.call(Operation::Set, key, value, deadline).map(drop)
    }

    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        self.call(Operation::Get, key, &[], deadline).map(Answer::into_value)
    }

    fn take(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        self.call(Operation::Take, key, &[], deadline).map(Answer::into_value)
    }

    fn barrier(&self, name: &str, deadline: Deadline) -> Result<(), BootstrapError> {
        self.call(Operation::Barrier, name, &[], deadline).map(drop)
    }

    fn all_gather(&self, name: &str, value: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.call(Operation::AllGather, name, value, deadline).map(Answer::into_values)
    }

    fn abort(&self, reason: &str) {
        self.depart(Departure::Failed(reason.to_string()));
    }
}

impl Drop for LocalBootstrap {
    fn drop(&mut self) {
        self.depart(match std::thread::panicking() {
            true => Departure::Failed("panicked".to_string()),
            false => Departure::Left,
        });
    }
}
