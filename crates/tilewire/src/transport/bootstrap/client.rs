//! A rank's connection to the store.
//!
//! A call sends its question and sleeps. One thread reads the answers and wakes the callers. So several threads of a
//! rank can wait simultaneously, and the loss of the store is noticed immediately.
#![forbid(unsafe_code)]

use super::secret::{End, Secret};
use super::store::{Answer, Request};
use super::wire::{self, HEADER, MAGIC, NotJoined, Question, Reply, VERSION, Verdict};
use super::{Bootstrap, BootstrapError, Departure, Limits, Operation, StoreServer, keepalive, lingering};
use crate::transport::{Deadline, Rank, start_thread};
use std::collections::HashMap;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The store itself reports that a deadline has passed, since it knows which ranks are missing. If it has not done so
/// this long after the deadline, we assume that it will not answer at all.
const GRACE: Duration = Duration::from_secs(1);
/// Time limit for one attempt to connect, and for the handshake that follows.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Pause between attempts: doubles from the first value up to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// A rank that is a process.
///
/// Dropping it means leaving the world, or failing if in a panic. A process that ends without dropping it is lost.
pub struct TcpBootstrap {
    rank: Rank,
    world_size: usize,
    address: String,
    limits: Limits,
    next: AtomicU64,
    writer: Writer,
    inbox: Arc<Inbox>,
    reader: Option<JoinHandle<()>>,
    hosted: Option<Hosted>,
    /// The rank whose process hosts the store, if known: if the store is gone, so is that rank.
    host: Option<Rank>,
    /// True if the job has failed, as far as this rank knows.
    has_failed: AtomicBool,
    lost: OnceLock<Rank>,
}

/// A store that this process hosts.
struct Hosted {
    server: StoreServer,
    /// How long it continues to serve after this rank has left; `None`: forever.
    patience: Option<Duration>,
}

/// The sending end of the connection. Threads take turns, and wait for them no longer than for the store.
struct Writer {
    stream: TcpStream,
    busy: Mutex<bool>,
    free: Condvar,
}

/// Where the reading thread leaves answers for the callers.
struct Inbox {
    state: Mutex<Mail>,
    changed: Condvar,
}

#[derive(Default)]
struct Mail {
    /// Numbers of the questions that callers wait on, and the answers that have arrived.
    expected: HashMap<u64, Option<Answer>>,
    /// True once the connection has ended.
    ended: bool,
}

impl TcpBootstrap {
    /// Connects to the store at `host:port`. Retries until the deadline, since the store may start later than the rank.
    /// The system's resolver, which turns a name into addresses, has its own time limit.
    pub fn connect(
        address: &str,
        rank: Rank,
        world_size: usize,
        secret: &Secret,
        deadline: Deadline,
    ) -> Result<TcpBootstrap, BootstrapError> {
        TcpBootstrap::connect_to(None, address, rank, world_size, secret, deadline)
    }

    /// Like [`TcpBootstrap::connect`]. The loss of the store is reported as the loss of `host`, if that is given.
    pub(in crate::transport) fn connect_to(
        host: Option<Rank>,
        address: &str,
        rank: Rank,
        world_size: usize,
        secret: &Secret,
        deadline: Deadline,
    ) -> Result<TcpBootstrap, BootstrapError> {
        let (began, mut pause) = (Instant::now(), PAUSES.0);
        let silence = keepalive::silence(deadline.remaining());
        loop {
            let source = match attempt(address, rank, world_size, secret, deadline, silence) {
                Ok((stream, limits)) => return TcpBootstrap::new(stream, limits, address, rank, world_size, host),
                Err(Attempt::Final(error)) => return Err(blamed(host, error)),
                Err(Attempt::Again(source)) => source,
            };
            if deadline.remaining().is_some_and(|left| left <= pause) {
                let address = address.to_string();
                return Err(BootstrapError::Unreachable { address, waited: began.elapsed(), source });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Hosts the store at `host:port` in this process and connects to it, as rank 0 does without a launcher.
    ///
    /// If the host is an IP address or `localhost`, the store listens there. For any other name it listens on all
    /// interfaces, since the name a host has for itself is often not the one its peers reach it by.
    ///
    /// The other ranks may need the store longer than this one. Dropping the bootstrap does not wait for them: the
    /// store continues to serve in the background until they have left, and the process does not end before that. This
    /// lasts at most as long as `deadline` was away in this call, or one second if this rank knows that the job failed.
    pub fn host(
        address: &str,
        world_size: usize,
        secret: &Secret,
        deadline: Deadline,
    ) -> Result<TcpBootstrap, BootstrapError> {
        let bind = |source| BootstrapError::Bind { address: address.to_string(), source };
        let patience = deadline.remaining();
        let listener = match listen(address) {
            // The port may still belong to the store of a world that this process was in before.
            Err(error) if error.kind() == ErrorKind::AddrInUse && lingering::wait(deadline) => listen(address),
            listener => listener,
        };
        let limits = Limits::default().within(patience);
        let server = StoreServer::serve(listener.map_err(bind)?, world_size, secret, limits)?;
        let own = server.address().to_string();
        let mut bootstrap = TcpBootstrap::connect(&own, Rank::new(0), world_size, secret, deadline)?;
        bootstrap.hosted = Some(Hosted { server, patience });
        Ok(bootstrap)
    }

    /// The address of the store, if this rank hosts it.
    pub fn hosts_at(&self) -> Option<std::net::SocketAddr> {
        self.hosted.as_ref().map(|hosted| hosted.server.address())
    }

    fn new(
        stream: TcpStream,
        limits: Limits,
        address: &str,
        rank: Rank,
        world_size: usize,
        host: Option<Rank>,
    ) -> Result<TcpBootstrap, BootstrapError> {
        let inbox = Arc::new(Inbox { state: Mutex::default(), changed: Condvar::new() });
        // No read timeout: callers have their own deadlines, and the end of the connection wakes the reading thread.
        stream.set_read_timeout(None).map_err(BootstrapError::Resources)?;
        let (incoming, mail) = (stream.try_clone().map_err(BootstrapError::Resources)?, inbox.clone());
        let longest = wire::longest_answer(&limits, world_size);
        let thread = std::thread::Builder::new().name(format!("tilewire rank {rank} store"));
        let reader = start_thread(thread, move || mail.fill(incoming, longest)).map_err(BootstrapError::Resources)?;
        Ok(TcpBootstrap {
            rank,
            world_size,
            address: address.to_string(),
            limits,
            next: AtomicU64::new(1),
            writer: Writer { stream, busy: Mutex::new(false), free: Condvar::new() },
            inbox,
            reader: Some(reader),
            hosted: None,
            host,
            has_failed: AtomicBool::new(false),
            lost: OnceLock::new(),
        })
    }

    fn call(
        &self,
        operation: Operation,
        name: &str,
        value: &[u8],
        deadline: Deadline,
    ) -> Result<Answer, BootstrapError> {
        self.call_patiently(operation, name, value, deadline, deadline)
    }

    /// A call whose answer may arrive after its deadline: the store is assumed to be alive until `patience`.
    fn call_patiently(
        &self,
        operation: Operation,
        name: &str,
        value: &[u8],
        deadline: Deadline,
        patience: Deadline,
    ) -> Result<Answer, BootstrapError> {
        let result = self.ask(operation, name, value, deadline, patience);
        // Relaxed: the flag guards no other data.
        match &result {
            // All ranks have come, so the job has recovered from any earlier failure.
            Ok(_) if matches!(operation, Operation::Barrier | Operation::AllGather) => {
                self.has_failed.store(false, Ordering::Relaxed);
            }
            Err(BootstrapError::PeerGone { peer, departure, .. }) if *departure != Departure::Left => {
                if *departure == Departure::Lost {
                    _ = self.lost.set(*peer);
                }
                self.has_failed.store(true, Ordering::Relaxed);
            }
            Err(BootstrapError::Timeout { .. }) => self.has_failed.store(true, Ordering::Relaxed),
            _ => {}
        }
        result
    }

    fn ask(
        &self,
        operation: Operation,
        name: &str,
        value: &[u8],
        deadline: Deadline,
        patience: Deadline,
    ) -> Result<Answer, BootstrapError> {
        let began = Instant::now();
        let refused = |refusal: super::store::Refusal| refusal.error(self.rank, operation, name, began.elapsed());
        self.limits.admit(name, value).map_err(refused)?;
        let gone = || match (self.host, name.to_string()) {
            (Some(peer), name) => BootstrapError::PeerGone { peer, departure: Departure::Lost, operation, name },
            (None, name) => BootstrapError::StoreGone { address: self.address.clone(), operation, name },
        };

        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let request = Request { operation, name: name.to_string(), value: value.into() };
        let question = Question::Ask { request, left: deadline.remaining() }.encode(number);
        self.inbox.lock().expected.insert(number, None);
        // If this fails, the wait ends soon. An answer the store gave before it went says more than that it is gone.
        self.writer.send(&question, patience);
        match self.inbox.wait(number, patience) {
            Some(Answer::Refused(refusal)) => Err(refused(refusal)),
            Some(answer) if is_answer_to(&answer, operation) => Ok(answer),
            Some(_) => Err(gone()),
            None if self.inbox.lock().ended => Err(gone()),
            None => Err(BootstrapError::StoreSilent {
                address: self.address.clone(),
                host: self.host,
                operation,
                name: name.to_string(),
                waited: began.elapsed(),
            }),
        }
    }
}

impl Writer {
    /// Sends a message; returns false if it could not be sent until shortly after the deadline. A connection with half
    /// a message on it is useless, so it is ended. One that is merely busy with other messages stays open.
    fn send(&self, message: &[u8], deadline: Deadline) -> bool {
        let until = deadline.instant().and_then(|at| at.checked_add(GRACE));
        let Some(_turn) = self.turn(until) else { return false };
        let sent = InTime { stream: &self.stream, until }.write_all(message).is_ok();
        if !sent {
            self.end();
        }
        sent
    }

    fn turn(&self, until: Option<Instant>) -> Option<Turn<'_>> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        while *busy {
            let left = until.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            (busy, _) = self.free.wait_timeout(busy, left).unwrap_or_else(PoisonError::into_inner);
        }
        *busy = true;
        Some(Turn(self))
    }

    /// Ends the connection, and with it the reading thread and any send in progress.
    fn end(&self) {
        _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// The right to send; dropping it passes it on.
struct Turn<'w>(&'w Writer);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.busy.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.free.notify_one();
    }
}

/// A stream whose calls must all end by one moment. A socket's timeout applies to each call separately, so a peer that
/// sends or accepts byte by byte could stretch it.
struct InTime<'s> {
    stream: &'s TcpStream,
    until: Option<Instant>,
}

impl InTime<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for InTime<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for InTime<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reading thread: runs until the connection ends or something arrives that is not an answer.
    fn fill(&self, stream: TcpStream, longest: usize) {
        let mut stream = BufReader::new(stream);
        while let Some((number, answer)) = next_answer(&mut stream, longest) {
            if let Some(slot) = self.lock().expected.get_mut(&number) {
                *slot = Some(answer);
                self.changed.notify_all();
            }
        }
        _ = stream.get_ref().shutdown(Shutdown::Both);
        self.lock().ended = true;
        self.changed.notify_all();
    }

    fn wait(&self, number: u64, deadline: Deadline) -> Option<Answer> {
        let mut mail = self.lock();
        loop {
            if mail.expected.get(&number).is_some_and(Option::is_some) || mail.ended {
                return mail.expected.remove(&number).flatten();
            }
            let until = deadline.instant().and_then(|at| at.checked_add(GRACE));
            let left = until.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                mail.expected.remove(&number);
                return None;
            }
            (mail, _) = self.changed.wait_timeout(mail, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn next_answer(stream: &mut impl Read, longest: usize) -> Option<(u64, Answer)> {
    match next_reply(stream, longest).ok()? {
        (number, Reply::Answer(answer)) => Some((number, answer)),
        _ => None,
    }
}

fn next_reply(stream: &mut impl Read, longest: usize) -> io::Result<(u64, Reply)> {
    let mut head = [0; HEADER];
    stream.read_exact(&mut head)?;
    let (kind, number, length) = wire::header(&head);
    if length > longest {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut body = Vec::new();
    stream.take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Reply::decode(kind, &body).map(|reply| (number, reply)).ok_or_else(|| ErrorKind::InvalidData.into())
}

fn is_answer_to(answer: &Answer, operation: Operation) -> bool {
    match answer {
        Answer::Done => matches!(operation, Operation::Set | Operation::Barrier),
        Answer::Value(_) => matches!(operation, Operation::Get | Operation::Take),
        Answer::Values(_) => operation == Operation::AllGather,
        Answer::Refused(_) => true,
    }
}

/// Why one attempt failed, and whether another may succeed.
enum Attempt {
    Again(io::Error),
    Final(BootstrapError),
}

/// If the store is gone, and not just silent, after a rank has asked to join, the rank hosting it (if any) is gone too.
fn blamed(host: Option<Rank>, error: BootstrapError) -> BootstrapError {
    let is_end = |error: &io::Error| {
        matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
    };
    match (host, error) {
        (Some(peer), BootstrapError::JoinUnanswered { address, source, .. }) if is_end(&source) => {
            let (departure, operation) = (Departure::Lost, Operation::Join);
            BootstrapError::PeerGone { peer, departure, operation, name: address }
        }
        (_, error) => error,
    }
}

impl From<io::Error> for Attempt {
    fn from(error: io::Error) -> Self {
        Attempt::Again(error)
    }
}

fn attempt(
    address: &str,
    rank: Rank,
    world_size: usize,
    secret: &Secret,
    deadline: Deadline,
    silence: Duration,
) -> Result<(TcpStream, Limits), Attempt> {
    let refused = |error| Err(Attempt::Final(error));
    let named = || address.to_string();
    let stream = open(address, deadline)?;
    stream.set_nodelay(true)?;
    keepalive::enable(&stream, silence)?;
    let mut store = InTime { stream: &stream, until: Instant::now().checked_add(step(deadline)) };

    let mut challenge = [0; wire::CHALLENGE];
    store.read_exact(&mut challenge[..MAGIC.len() + 1])?;
    if challenge[..MAGIC.len()] != MAGIC {
        return refused(BootstrapError::NotAStore { address: named() });
    }
    let mismatch = |theirs| BootstrapError::VersionMismatch { address: named(), ours: VERSION, theirs };
    if challenge[MAGIC.len()] != VERSION {
        return refused(mismatch(challenge[MAGIC.len()]));
    }
    store.read_exact(&mut challenge[MAGIC.len() + 1..])?;
    let theirs = challenge[MAGIC.len() + 1..].try_into().expect("32 bytes");
    let ours = super::secret::nonce().map_err(Attempt::Final)?;
    store.write_all(&wire::proof(&ours, &secret.proof(End::Rank, &theirs, &ours)))?;

    let mut verdict = [0; wire::VERDICT];
    store.read_exact(&mut verdict)?;
    let proof = verdict[2..].try_into().expect("32 bytes");
    if verdict[0] == Verdict::WrongVersion as u8 {
        return refused(mismatch(verdict[1]));
    }
    if verdict[0] != Verdict::Welcome as u8 || !secret.proves(End::Store, &theirs, &ours, &proof) {
        return refused(BootstrapError::SecretMismatch { address: named() });
    }

    store.write_all(&Question::Join { rank, world_size }.encode(0))?;
    // From here on the rank may have joined even if the answer never arrives, and no rank can join twice.
    let unanswered = |source| Attempt::Final(BootstrapError::JoinUnanswered { address: named(), rank, source });
    match next_reply(&mut store, 64).map_err(unanswered)?.1 {
        Reply::Joined(limits) => Ok((stream, limits)),
        Reply::NotJoined(NotJoined::WorldSize(theirs)) => {
            refused(BootstrapError::WorldSizeMismatch { rank, ours: world_size, theirs })
        }
        Reply::NotJoined(NotJoined::Taken) => refused(BootstrapError::RankTaken { rank }),
        Reply::NotJoined(NotJoined::OutOfRange) => refused(BootstrapError::RankOutOfRange { rank, world_size }),
        Reply::Answer(_) => refused(BootstrapError::NotAStore { address: named() }),
    }
}

fn open(address: &str, deadline: Deadline) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::AddrNotAvailable, "the name has no address");
    for address in address.to_socket_addrs()?.flat_map(reached_at) {
        match TcpStream::connect_timeout(&address, step(deadline)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Where this host reaches a listener: at the listener's own address, or at loopback if it listens on all interfaces. A
/// listener on `[::]` usually accepts IPv4 as well, and a host may have IPv6 without having `::1`.
fn reached_at(address: SocketAddr) -> Vec<SocketAddr> {
    let (v4, v6) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST));
    let ips = match address.ip() {
        ip if !ip.is_unspecified() => return vec![address],
        IpAddr::V4(_) => vec![v4],
        IpAddr::V6(_) => vec![v4, v6],
    };
    ips.into_iter().map(|ip| SocketAddr::new(ip, address.port())).collect()
}

/// The time limit for one step; never zero, which is not a valid timeout.
fn step(deadline: Deadline) -> Duration {
    deadline.remaining().unwrap_or(ATTEMPT).clamp(Duration::from_millis(1), ATTEMPT)
}

fn listen(address: &str) -> io::Result<TcpListener> {
    let Some((host, port)) = address.rsplit_once(':') else {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the address is not host:port"));
    };
    let literal = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    if literal || host == "localhost" {
        return TcpListener::bind(address);
    }
    // `[::]` also accepts IPv4, if the host has IPv6 at all.
    TcpListener::bind(format!("[::]:{port}")).or_else(|_| TcpListener::bind(format!("0.0.0.0:{port}")))
}

impl Bootstrap for TcpBootstrap {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
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

    fn look(&self, key: &str, look: Deadline, patience: Deadline) -> Result<Vec<u8>, BootstrapError> {
        self.call_patiently(Operation::Take, key, &[], look, patience).map(Answer::into_value)
    }

    fn barrier(&self, name: &str, deadline: Deadline) -> Result<(), BootstrapError> {
        self.call(Operation::Barrier, name, &[], deadline).map(drop)
    }

    fn all_gather(&self, name: &str, value: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.call(Operation::AllGather, name, value, deadline).map(Answer::into_values)
    }

    fn abort(&self, reason: &str) {
        self.note_failure();
        let abort = Question::Abort { reason: reason.to_string() }.encode(0);
        if !self.writer.send(&abort, Deadline::after(Duration::ZERO)) {
            // Then the store learns it from the closed connection.
            self.writer.end();
        }
    }

    fn note_failure(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    fn addresses(&self) -> Option<[IpAddr; 2]> {
        let ends = [self.writer.stream.local_addr(), self.writer.stream.peer_addr()];
        let [own, store] = ends.map(|end| end.ok().map(|end| end.ip().to_canonical()));
        Some([own?, store?])
    }

    fn lost(&self) -> Option<Rank> {
        self.lost.get().copied()
    }
}

impl Drop for TcpBootstrap {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort("panicked");
        } else {
            _ = self.writer.send(&Question::Leave.encode(0), Deadline::after(Duration::ZERO));
        }
        self.writer.end();
        if let Some(reader) = self.reader.take() {
            _ = reader.join();
        }
        if let Some(Hosted { server, patience }) = self.hosted.take() {
            // After a failure the others only have to hear of it, and the failed rank may never leave.
            let grace = self.has_failed.load(Ordering::Relaxed).then_some(GRACE);
            let patience = grace.map_or(patience, |grace| Some(patience.map_or(grace, |all| all.min(grace))));
            lingering::keep(server, patience.map_or(Deadline::never(), Deadline::after), GRACE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_on_all_interfaces_is_reached_at_either_loopback() {
        let at = |text: &str| reached_at(text.parse().unwrap()).iter().map(SocketAddr::to_string).collect::<Vec<_>>();
        assert_eq!(at("[::]:7"), ["127.0.0.1:7", "[::1]:7"]);
        assert_eq!(at("0.0.0.0:7"), ["127.0.0.1:7"]);
        assert_eq!(at("[::1]:7"), ["[::1]:7"]);
        assert_eq!(at("192.0.2.1:7"), ["192.0.2.1:7"]);
    }
}
