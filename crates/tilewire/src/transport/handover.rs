//! Passing every rank's segment to every other rank, and to nobody else.
//!
//! Every rank listens, and every rank opens a connection to every other rank. Through it the listener passes its
//! segment to the opener ([`Packet`] shows the order). So each pair has two connections, which ensures that a death is
//! seen: a rank that dies closes its listener, and opening a connection to it, or reading from an open one, fails
//! immediately. Afterwards one of the two connections stays as the pair's control socket: the one that the higher rank
//! opened.
//!
//! A connection is ignored until it has shown the token of the rank it connects to. That token is on the card that came
//! through the bootstrap. The connection must also come from a process of the same user. Strangers are dropped without
//! a reply.
//!
//! No rank is done until all are: a rank that has mapped all segments says Ready to all, and leaves when all have said
//! so. A rank that cannot go on says why, so that the error on every rank names the rank at fault.

use super::error::SegmentError;
use super::mapping::Mapping;
use super::memfd;
use super::message::{Door, PACKET, Packet, same};
use super::socket::{self, Heard};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Strangers that may hold a connection open at a time; the oldest is dropped first. A rank sends its hello right after
/// connecting, so no rank is ever among the oldest of this many.
const MAX_STRANGERS: usize = 64;

/// Connections that may wait in a rank's queue: all ranks, and some strangers, may connect before the rank accepts any.
pub(super) fn backlog(world_size: usize) -> usize {
    world_size + 128
}

/// The most descriptors that a handover has open: two connections to each peer, strangers, this rank's segment and
/// listener, and some for temporary use.
pub(super) fn descriptors(world_size: usize) -> usize {
    2 * world_size + MAX_STRANGERS + 16
}

/// How soon to connect again to a rank whose queue is full.
const KNOCK_AGAIN: Duration = Duration::from_millis(5);

/// What a rank brings to the handover.
pub(super) struct Handover<'a> {
    pub(super) rank: usize,
    /// From the cards of all ranks, after checking. `None` for ranks of other domains, which take no part.
    pub(super) doors: &'a [Option<Door>],
    pub(super) total: usize,
    pub(super) populate: bool,
    pub(super) listener: OwnedFd,
}

/// The segments of the other ranks, and a control socket to each. Indexed by rank; `None` for this rank and for those
/// of other domains.
pub(super) type Handed = Vec<Option<(Mapping, OwnedFd)>>;

impl Handover<'_> {
    /// Runs the whole handover, which ends within the deadline. A rank that has no segment tells the others why.
    pub(super) fn run(
        self,
        segment: Result<OwnedFd, SegmentError>,
        deadline: Duration,
    ) -> Result<Handed, SegmentError> {
        let (rank, doors) = (self.rank, self.doors);
        let peers = self.doors.iter().map(|_| Peer::default()).collect();
        let mut table = Table { strangers: Vec::new(), peers, own: self, segment: None };
        let shared = segment.and_then(|segment| {
            table.segment = Some(segment);
            table.share(deadline)
        });
        if let Err(error) = shared {
            table.tell_failure(&error);
            return Err(error);
        }
        let take = |(index, peer): (usize, Peer)| {
            let control = if rank > index { peer.opened } else { peer.accepted };
            let both = peer.mapping.zip(control);
            assert_eq!(both.is_none(), index == rank || doors[index].is_none(), "everybody has met everybody");
            both
        };
        Ok(table.peers.into_iter().enumerate().map(take).collect())
    }
}

/// The state of the handover.
struct Table<'a> {
    own: Handover<'a>,
    /// This rank's segment, passed to every peer that is admitted.
    segment: Option<OwnedFd>,
    peers: Vec<Peer>,
    /// Connections that have not sent a hello yet.
    strangers: Vec<OwnedFd>,
}

#[derive(Default)]
struct Peer {
    /// The connection from this rank to the peer.
    opened: Option<OwnedFd>,
    /// The connection from the peer to this rank, once it has shown the token.
    accepted: Option<OwnedFd>,
    mapping: Option<Mapping>,
    ready: bool,
}

impl Peer {
    /// True if each has what the other has to give. Once true it stays true: a peer that is ready has been accepted,
    /// even if it has left since and that connection is closed.
    fn has_met(&self) -> bool {
        self.mapping.is_some() && (self.accepted.is_some() || self.ready)
    }
}

impl<'a> Table<'a> {
    fn share(&mut self, deadline: Duration) -> Result<(), SegmentError> {
        // A deadline that the clock cannot express counts as no deadline.
        let until = Instant::now().checked_add(deadline);
        let mut told = false;
        loop {
            let again = self.open_all()?;
            self.accept()?;
            self.greet()?;
            for peer in self.others() {
                self.hear(peer)?;
            }
            if !told && self.others().all(|p| self.peers[p].has_met()) {
                self.tell_ready();
                told = true;
            }
            if told && self.others().all(|p| self.peers[p].ready) {
                return Ok(());
            }
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return Err(SegmentError::Missing { ranks: self.missing(), after: deadline });
            }
            let knock = again.then(|| now + KNOCK_AGAIN);
            let wake = until.into_iter().chain(knock).min();
            socket::wait(self.sockets(), wake).map_err(SegmentError::system("poll"))?;
        }
    }

    /// The ranks that hold up the handover: those that did not meet this rank, or else those that met it but not all
    /// others.
    fn missing(&self) -> Vec<usize> {
        let (met, strange): (Vec<_>, Vec<_>) = self.others().partition(|&p| self.peers[p].has_met());
        if strange.is_empty() { met.into_iter().filter(|&p| !self.peers[p].ready).collect() } else { strange }
    }

    /// The other ranks of the domain.
    fn others(&self) -> impl Iterator<Item = usize> + use<'a> {
        let (rank, doors) = (self.own.rank, self.own.doors);
        (0..self.peers.len()).filter(move |&peer| peer != rank && doors[peer].is_some())
    }

    /// The door of a rank of this domain.
    fn door(&self, rank: usize) -> &'a Door {
        self.own.doors[rank].as_ref().expect("ranks of this domain have doors")
    }

    /// The sockets that can have news: all but the control sockets of peers that are ready, whose news is for the
    /// monitor.
    fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let of = |rank: usize| {
            let peer = &self.peers[rank];
            let (control, other) = self.connections(rank);
            control.iter().filter(|_| !peer.ready).chain(other)
        };
        self.others().flat_map(of).chain(&self.strangers).chain([&self.own.listener]).map(OwnedFd::as_fd)
    }

    /// The control socket to a peer, and the other connection.
    fn connections(&self, rank: usize) -> (&Option<OwnedFd>, &Option<OwnedFd>) {
        let Peer { opened, accepted, .. } = &self.peers[rank];
        if self.own.rank > rank { (opened, accepted) } else { (accepted, opened) }
    }

    /// Opens the connections that are not open; true if some could not be opened yet.
    fn open_all(&mut self) -> Result<bool, SegmentError> {
        let mut again = false;
        for rank in self.others() {
            // If the peer is ready, it was closed on purpose.
            if self.peers[rank].opened.is_some() || self.peers[rank].ready {
                continue;
            }
            match self.open(rank) {
                Ok(Some(opened)) => self.peers[rank].opened = Some(opened),
                // A rank binds and listens before it hands out its card, so if nobody is there, the rank has gone.
                Ok(None) => self.last_words(rank)?,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    again = true
                }
                Err(source) => return Err(SegmentError::System { call: "connect", source }),
            }
        }
        Ok(again)
    }

    /// Opens the connection to a peer and says hello; `None` if there is no such rank (any more).
    fn open(&self, rank: usize) -> io::Result<Option<OwnedFd>> {
        let Door { name, token, .. } = self.door(rank);
        let opened = match socket::connect(name) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            opened => opened?,
        };
        // A name becomes free when its owner dies; another user may have taken it.
        if !socket::is_same_user(opened.as_fd())? {
            return Ok(None);
        }
        let hello = Packet::Hello { from: self.own.rank as u32, token: *token }.encode();
        socket::send(opened.as_fd(), &hello, None)?;
        Ok(Some(opened))
    }

    /// Accepts the connections in the queue: at most as many as fit into it, so that this ends even if others connect
    /// faster than it accepts.
    fn accept(&mut self) -> Result<(), SegmentError> {
        // The kernel queues one more than it was told.
        for _ in 0..=backlog(self.peers.len()) {
            let accepted = socket::accept(self.own.listener.as_fd()).map_err(SegmentError::system("accept4"))?;
            let Some(connection) = accepted else { break };
            if socket::is_same_user(connection.as_fd()).unwrap_or(false) {
                self.strangers.push(connection);
            }
            if self.strangers.len() > MAX_STRANGERS {
                // A connection with a hello waiting is no stranger.
                self.greet()?;
            }
        }
        Ok(())
    }

    /// Passes the segment to every connection that shows the token; drops those that cannot.
    fn greet(&mut self) -> Result<(), SegmentError> {
        for connection in std::mem::take(&mut self.strangers) {
            let mut buffer = [0; PACKET];
            match socket::receive(connection.as_fd(), &mut buffer, false) {
                Ok(Heard::Packet(len, _)) => self.admit(connection, &buffer[..len])?,
                Ok(Heard::Nothing) => self.strangers.push(connection),
                Ok(Heard::End) | Err(_) => {}
            }
        }
        let surplus = self.strangers.len().saturating_sub(MAX_STRANGERS);
        self.strangers.drain(..surplus);
        Ok(())
    }

    fn admit(&mut self, connection: OwnedFd, packet: &[u8]) -> Result<(), SegmentError> {
        let Some(Packet::Hello { from, token }) = Packet::decode(packet) else { return Ok(()) };
        let from = from as usize;
        let known = self.others().any(|other| other == from) && self.peers[from].accepted.is_none();
        if !known || !same(&token, &self.door(self.own.rank).token) {
            return Ok(());
        }
        let welcome = Packet::Welcome { token: self.door(from).token }.encode();
        // If the peer is gone already, reading will tell.
        socket::send(connection.as_fd(), &welcome, self.segment.as_ref().map(OwnedFd::as_fd))
            .map_err(SegmentError::system("sendmsg"))?;
        self.peers[from].accepted = Some(connection);
        Ok(())
    }

    /// Reads the messages of a peer from both of its connections.
    fn hear(&mut self, rank: usize) -> Result<(), SegmentError> {
        let control_ended = self.hear_on(rank, true)?;
        let other_ended = self.hear_on(rank, false)?;
        if (control_ended || other_ended) && !self.peers[rank].ready { self.last_words(rank) } else { Ok(()) }
    }

    /// Reads what a peer that is gone said before it went, on either connection: Ready (it is done and has closed the
    /// connection that is not the control socket), or why it gave up. If it said nothing, it died.
    ///
    /// A rank says so before it closes anything, so a rank that has seen something closed finds the words in its
    /// queues.
    fn last_words(&mut self, rank: usize) -> Result<(), SegmentError> {
        self.accept()?;
        self.greet()?;
        self.hear_on(rank, true)?;
        self.hear_on(rank, false)?;
        if self.peers[rank].ready { Ok(()) } else { Err(SegmentError::Died { rank }) }
    }

    /// Reads one connection of a peer: the control socket or the other one. Returns true if it has ended; then it is
    /// closed. The control socket of a peer that is ready is left alone: what its end means is up to the monitor.
    fn hear_on(&mut self, rank: usize, control: bool) -> Result<bool, SegmentError> {
        loop {
            let is_opened = (self.own.rank > rank) == control;
            let peer = &mut self.peers[rank];
            let connection = if is_opened { &mut peer.opened } else { &mut peer.accepted };
            // After Ready the control socket belongs to the monitor. Later messages are not for the handover.
            let Some(socket) = connection.as_ref().filter(|_| !(control && peer.ready)) else { return Ok(false) };
            let mut buffer = [0; PACKET];
            match socket::receive(socket.as_fd(), &mut buffer, is_opened).map_err(SegmentError::system("recvmsg"))? {
                Heard::Nothing => return Ok(false),
                Heard::End => {
                    *connection = None;
                    return Ok(true);
                }
                Heard::Packet(len, file) => self.take(rank, is_opened, &buffer[..len], file)?,
            }
        }
    }

    fn take(&mut self, rank: usize, is_opened: bool, packet: &[u8], file: Option<OwnedFd>) -> Result<(), SegmentError> {
        let own_token = self.door(self.own.rank).token;
        let peer = &mut self.peers[rank];
        match Packet::decode(packet) {
            Some(Packet::Welcome { token }) if is_opened && peer.mapping.is_none() && same(&token, &own_token) => {
                let Some(file) = file else {
                    // The kernel drops descriptors for which the process has no room.
                    return Err(SegmentError::System {
                        call: "recvmsg(SCM_RIGHTS)",
                        source: io::Error::from_raw_os_error(libc::EMFILE),
                    });
                };
                peer.mapping = Some(memfd::map(file.as_fd(), self.own.total, self.own.populate)?);
                Ok(())
            }
            // Only on the control socket: a peer that is ready has one.
            Some(Packet::Ready) if is_opened == (self.own.rank > rank) => {
                peer.ready = true;
                Ok(())
            }
            Some(Packet::Failed { dead: Some(dead), .. }) if self.others().any(|other| other == dead as usize) => {
                Err(SegmentError::Died { rank: dead as usize })
            }
            // It gave up for another reason, or it calls this rank dead, or one that does not exist. Then its own words
            // must do.
            Some(Packet::Failed { what, .. }) => Err(SegmentError::Peer { rank, what }),
            // The process at the other end is not the rank that it should be.
            _ => Err(SegmentError::Died { rank }),
        }
    }

    /// Tells every peer on its control socket.
    fn tell_ready(&self) {
        for socket in self.others().filter_map(|rank| self.connections(rank).0.as_ref()) {
            // If a peer is gone, reading its words will show it; a queue of two packets is never full.
            let _ = socket::send(socket.as_fd(), &Packet::Ready.encode(), None);
        }
    }

    /// Tells every peer, on every open connection, why this rank gives up. Opens a connection to those that have none,
    /// so that nobody takes this rank for the dead one.
    fn tell_failure(&mut self, error: &SegmentError) {
        let dead = if let SegmentError::Died { rank } = error { Some(*rank) } else { None };
        let packet = Packet::Failed { dead: dead.map(|rank| rank as u32), what: error.to_string() }.encode();
        for rank in self.others().filter(|&rank| Some(rank) != dead) {
            if self.peers[rank].opened.is_none() {
                self.peers[rank].opened = self.open(rank).unwrap_or(None);
            }
            for socket in self.peers[rank].opened.iter().chain(&self.peers[rank].accepted) {
                // If this fails, there is nobody left to tell.
                let _ = socket::send(socket.as_fd(), &packet, None);
            }
        }
    }
}
