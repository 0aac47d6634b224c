//! The thread that serves the store over TCP.
//!
//! There is one thread, whose only blocking call is `poll`. So [`Limits`] bound what a connection can cost, whatever it
//! sends or does not send. Each turn drops connections that took too long, ends expired waits, hands out answers, and
//! then waits for events.
#![forbid(unsafe_code)]

use super::connection::{Closed, Connection};
use super::poll::{Polled, poll};
use super::store::{Store, Ticket};
use super::wire::{NotJoined, Question, Reply};
use super::{BootstrapError, Departure, Limits, Secret, keepalive};
use crate::transport::{Deadline, Rank, reserve_descriptors, start_thread};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One turn accepts at most [`Limits::strangers`] divided by this. So an accepted connection gets this many turns
/// before a flood can make it the oldest.
const TURNS: usize = 4;
/// How long we accept no connections after the process has run out of descriptors.
const REST: Duration = Duration::from_millis(50);

/// Hosts the store of a job, in the launcher or in rank 0.
///
/// It serves until it is dropped. Dropping does not wait for the ranks: see [`StoreServer::wait_until_left`].
///
/// ```
/// use std::time::Duration;
/// use tilewire::transport::{Bootstrap, Deadline, Limits, Rank, Secret, StoreServer, TcpBootstrap};
///
/// let secret = Secret::random()?;
/// let server = StoreServer::start("127.0.0.1:0", 1, &secret, Limits::default())?;
/// let address = server.address().to_string();
/// let rank = TcpBootstrap::connect(&address, Rank::new(0), 1, &secret, Deadline::after(Duration::from_secs(10)))?;
/// rank.barrier("alone", Deadline::default())?;
/// # Ok::<(), tilewire::transport::BootstrapError>(())
/// ```
pub struct StoreServer {
    address: SocketAddr,
    members: Arc<Members>,
    /// Closing it wakes the thread, which then ends.
    lifeline: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// Which ranks are present, for threads that wait for them to leave.
#[derive(Default)]
struct Members {
    state: Mutex<Attendance>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Attendance {
    /// Number of connected ranks.
    count: usize,
    /// True if a rank has failed or was lost: the job cannot continue.
    is_broken: bool,
}

impl StoreServer {
    /// Listens at an address (`host:port`; port 0 picks a free one) for a world of this size.
    pub fn start(
        address: &str,
        world_size: usize,
        secret: &Secret,
        limits: Limits,
    ) -> Result<StoreServer, BootstrapError> {
        let bind = |source| BootstrapError::Bind { address: address.to_string(), source };
        let listener = TcpListener::bind(address).map_err(bind)?;
        StoreServer::serve(listener, world_size, secret, limits)
    }

    /// Serves on an existing listener.
    pub(super) fn serve(
        listener: TcpListener,
        world_size: usize,
        secret: &Secret,
        limits: Limits,
    ) -> Result<StoreServer, BootstrapError> {
        // A connection to each rank and stranger; then the listener, and what a rank that hosts the store opens next.
        let descriptors = world_size.saturating_add(limits.strangers).saturating_add(16);
        reserve_descriptors(descriptors).map_err(BootstrapError::Descriptors)?;
        listener.set_nonblocking(true).map_err(BootstrapError::Resources)?;
        let address = listener.local_addr().map_err(BootstrapError::Resources)?;
        let (lifeline, end) = UnixStream::pair().map_err(BootstrapError::Resources)?;
        let (members, limits) = (Arc::new(Members::default()), limits.clamped());
        let mut serving = Serving {
            listener,
            lifeline: end,
            store: Store::new(world_size, limits),
            secret: secret.clone(),
            limits,
            guests: BTreeMap::new(),
            next: 0,
            members: members.clone(),
            resting: None,
        };
        let thread = std::thread::Builder::new().name("tilewire store".into());
        let thread = start_thread(thread, move || serving.run()).map_err(BootstrapError::Resources)?;
        Ok(StoreServer { address, members, lifeline: Some(lifeline), thread: Some(thread) })
    }

    /// The address it listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until no rank is connected; false if the deadline came first. Does not wait for ranks that never came.
    pub fn wait_until_left(&self, deadline: Deadline) -> bool {
        self.wait_while(deadline, |now| now.count > 0).count == 0
    }

    /// The same, but for at most `grace` once a rank has failed: the failed rank may never leave.
    pub(super) fn wait_for_the_well(&self, deadline: Deadline, grace: Duration) {
        if self.wait_while(deadline, |now| now.count > 0 && !now.is_broken).count > 0 {
            let grace = deadline.remaining().map_or(grace, |left| left.min(grace));
            self.wait_until_left(Deadline::after(grace));
        }
    }

    fn wait_while(&self, deadline: Deadline, waits: impl Fn(Attendance) -> bool) -> Attendance {
        let mut state = self.members.state.lock().unwrap_or_else(PoisonError::into_inner);
        while waits(*state) && !deadline.is_over() {
            let left = deadline.remaining().unwrap_or(Duration::MAX);
            (state, _) = self.members.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        *state
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        if let Some(thread) = self.thread.take() {
            // A panic there would be a bug in the store, and its message has already been printed.
            _ = thread.join();
        }
    }
}

/// The state that the thread owns.
struct Serving {
    listener: TcpListener,
    lifeline: UnixStream,
    store: Store,
    secret: Secret,
    limits: Limits,
    /// In order of arrival, so the first stranger is the oldest.
    guests: BTreeMap<u64, Guest>,
    next: u64,
    members: Arc<Members>,
    /// If set, no connections are accepted until then.
    resting: Option<Instant>,
}

struct Guest {
    stream: TcpStream,
    connection: Connection,
}

impl Serving {
    fn run(&mut self) {
        loop {
            let now = Instant::now();
            self.drop_the_slow(now);
            self.store.expire(now);
            self.hand_out_answers(now);
            let timeout = self.next_event(now).map(|at| at.saturating_duration_since(now));
            let Ok((ready, arrivals)) = self.wait(timeout) else { return };
            let now = Instant::now();
            for (id, readable) in ready {
                if readable {
                    self.read(id, now);
                }
                self.write(id, now);
            }
            if arrivals {
                self.accept(now);
            }
        }
    }

    /// The guests that are ready (and whether to read), and whether new ones are arriving. An error ends the server.
    fn wait(&self, timeout: Option<Duration>) -> io::Result<(Vec<(u64, bool)>, bool)> {
        let mut polled = vec![
            Polled::new(self.lifeline.as_fd(), true, false),
            Polled::new(self.listener.as_fd(), self.resting.is_none(), false),
        ];
        polled.extend(self.guests.values().map(|Guest { stream, connection }| {
            Polled::new(stream.as_fd(), connection.wants_to_read(), connection.wants_to_write())
        }));
        poll(&mut polled, timeout)?;
        if polled[0].is_readable() || polled[0].is_broken() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // A broken connection is read too: what it sent before it broke counts, and then reading reports the break.
        let guests = self.guests.keys().zip(&polled[2..]);
        let ready = guests.filter(|(_, p)| p.is_readable() || p.is_writable() || p.is_broken());
        Ok((ready.map(|(id, p)| (*id, p.is_readable() || p.is_broken())).collect(), polled[1].is_readable()))
    }

    fn accept(&mut self, now: Instant) {
        // Only a few at a time: a flood must not keep the ranks waiting.
        for _ in 0..self.limits.strangers.div_ceil(TURNS) {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The peer gave up before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(_) => {
                    // No descriptors left. A new stranger makes better use of one than the oldest does.
                    if !self.drop_oldest_stranger(now) {
                        self.resting = Some(now + REST);
                        return;
                    }
                    continue;
                }
            };
            if self.guests.values().filter(|guest| guest.connection.is_stranger()).count() >= self.limits.strangers {
                self.drop_oldest_stranger(now);
            }
            let Ok(connection) = Connection::new(now) else { continue };
            // Messages are small and wait for each other, so delaying them to fill packets only costs time.
            let prepared = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            if prepared.and_then(|()| keepalive::enable(&stream, self.limits.silence)).is_ok() {
                self.guests.insert(self.next, Guest { stream, connection });
                self.write(self.next, now);
                self.next += 1;
            }
        }
    }

    fn read(&mut self, id: u64, now: Instant) {
        let Some(Guest { stream, connection }) = self.guests.get_mut(&id) else { return };
        let events = match connection.read(stream, &self.secret, &self.limits, now) {
            Ok(events) => events,
            Err(Closed) => return self.remove(id),
        };
        for (number, question) in events {
            if self.handle(id, number, question, now).is_err() {
                return self.remove(id);
            }
        }
    }

    fn handle(&mut self, id: u64, number: u64, question: Question, now: Instant) -> Result<(), Closed> {
        let Some(Guest { connection, .. }) = self.guests.get_mut(&id) else { return Err(Closed) };
        let Some(member) = connection.member() else {
            let Question::Join { rank, world_size } = question else { return Err(Closed) };
            match admit(&mut self.store, rank, world_size) {
                Ok(()) => {
                    connection.admit(rank);
                    connection.reply(number, &Reply::Joined(self.limits));
                }
                Err(reason) => {
                    connection.reply(number, &Reply::NotJoined(reason));
                    connection.close_when_written();
                }
            }
            // Count the rank before it can read that it has joined: from then on we wait for it to leave.
            self.count_members();
            return Ok(());
        };
        match question {
            Question::Ask { request, left } => {
                let ticket = Ticket { asker: id, number };
                if self.store.is_waiting(ticket) {
                    return Err(Closed);
                }
                // A deadline beyond the clock's range is no deadline.
                let until = left.and_then(|left| now.checked_add(left));
                self.store.submit(ticket, member, request, until);
                Ok(())
            }
            Question::Abort { reason } => {
                self.store.depart(member, Departure::Failed(reason));
                self.count_members();
                Ok(())
            }
            Question::Leave => {
                self.store.depart(member, Departure::Left);
                Err(Closed)
            }
            Question::Join { .. } => Err(Closed),
        }
    }

    fn write(&mut self, id: u64, now: Instant) {
        if let Some(Guest { stream, connection }) = self.guests.get_mut(&id)
            && connection.write(stream, now).is_err()
        {
            self.remove(id);
        }
    }

    /// Ends a connection. A member that did not announce its departure is lost.
    fn remove(&mut self, id: u64) {
        if let Some(rank) = self.guests.remove(&id).and_then(|guest| guest.connection.member()) {
            self.store.depart(rank, Departure::Lost);
            self.count_members();
        }
    }

    /// Repeats until there are no more answers: writing may find a rank lost, which produces answers for others.
    fn hand_out_answers(&mut self, now: Instant) {
        loop {
            let answers = self.store.answers();
            if answers.is_empty() {
                return;
            }
            let mut ids = Vec::with_capacity(answers.len());
            for (Ticket { asker, number }, answer) in answers {
                if let Some(guest) = self.guests.get_mut(&asker) {
                    guest.connection.reply(number, &Reply::Answer(answer));
                    ids.push(asker);
                }
            }
            ids.into_iter().for_each(|id| self.write(id, now));
        }
    }

    fn drop_the_slow(&mut self, now: Instant) {
        self.resting = self.resting.filter(|until| *until > now);
        let slow: Vec<u64> = self
            .guests
            .iter()
            .filter(|(_, guest)| self.time_is_over_at(guest).is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        slow.into_iter().for_each(|id| self.remove(id));
    }

    fn time_is_over_at(&self, Guest { connection, .. }: &Guest) -> Option<Instant> {
        match connection.member() {
            None => connection.opened.checked_add(self.limits.join_time),
            Some(_) if connection.is_amid() => connection.moved.checked_add(self.limits.stall_time),
            Some(_) => None,
        }
    }

    fn next_event(&self, now: Instant) -> Option<Instant> {
        let slow = self.guests.values().filter_map(|guest| self.time_is_over_at(guest)).min();
        [slow, self.store.next_expiry(), self.resting].into_iter().flatten().min().map(|at| at.max(now))
    }

    fn is_stranger(&self, id: u64) -> bool {
        self.guests.get(&id).is_some_and(|guest| guest.connection.is_stranger())
    }

    /// Closes the connection of the oldest stranger; returns false if there is none.
    fn drop_oldest_stranger(&mut self, now: Instant) -> bool {
        while let Some(id) = self.guests.keys().copied().find(|id| self.is_stranger(*id)) {
            // Its proof may have arrived since we last read from it.
            if self.guests[&id].connection.wants_to_read() {
                self.read(id, now);
            }
            if self.is_stranger(id) {
                self.remove(id);
            }
            if !self.guests.contains_key(&id) {
                return true;
            }
        }
        false
    }

    fn count_members(&self) {
        let count = self.guests.values().filter(|guest| guest.connection.member().is_some()).count();
        let now = Attendance { count, is_broken: self.store.is_broken() };
        let mut state = self.members.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *state != now {
            *state = now;
            self.members.changed.notify_all();
        }
    }
}

fn admit(store: &mut Store, rank: Rank, world_size: usize) -> Result<(), NotJoined> {
    let size = store.world_size();
    if world_size != size {
        // The rank knows the secret, so it belongs to the job, and the job cannot continue. Tell the others now.
        if rank.index() < size && store.join(rank) {
            let reason = format!("it was started for {world_size} ranks, the store for {size}");
            store.depart(rank, Departure::Failed(reason));
        }
        return Err(NotJoined::WorldSize(size));
    }
    if rank.index() >= size {
        return Err(NotJoined::OutOfRange);
    }
    if store.join(rank) { Ok(()) } else { Err(NotJoined::Taken) }
}
