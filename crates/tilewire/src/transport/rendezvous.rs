//! How ranks come to share memory: they compare what each asks for, then create it, then learn that all have it.
//!
//! ```text
//!  all ranks                                                      fails on every rank when
//!  1  all-gather version, parameters, own objection, if any       they differ, or one objects
//!  2  create the segments (threads: rank 0, processes: each)      one cannot
//!  3  all-gather "I have it", or why not                          one has not
//! ```
//! A rank with an objection still takes part, so that the others hear it and do not wait.
#![forbid(unsafe_code)]

use super::abort::Cause;
use super::bootstrap::BootstrapError;
use super::deadline::Deadline;
use super::error::{SegmentError, those};
use super::layout::{Geometry, LINE, Layout, block_share};
use super::local_buffer::LocalBufferError;
use super::mapping::LAYOUT;
use super::pairing::Ticket;
use super::proxy::ProxyError;
use super::rank::Rank;
use super::segment::{SegmentOptions, SegmentSet};
use super::status::Verdict;
use super::world::World;
use crate::tensor::{Memory, NoMemory};
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// What all ranks must agree on, by name. The first is always the version of the library and of a segment's header.
pub(crate) struct Parameters {
    /// What the ranks meet for; part of the names under which they meet.
    what: &'static str,
    values: Vec<(&'static str, String)>,
    objection: Option<TransportError>,
}

/// The values of each rank, by rank, in the order of the parameters.
pub(crate) type Said = Vec<Vec<String>>;

impl Parameters {
    pub(crate) fn new(what: &'static str) -> Parameters {
        let version = format!("{} (layout {LAYOUT})", env!("CARGO_PKG_VERSION"));
        Parameters { what, values: vec![("version", version)], objection: None }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl ToString) -> Parameters {
        self.values.push((name, value.to_string()));
        self
    }

    /// This rank cannot go on, and tells all ranks.
    pub(crate) fn object(mut self, objection: Option<TransportError>) -> Parameters {
        self.objection = objection;
        self
    }

    /// Step 1. The values named in `free` may differ.
    pub(crate) fn agree(self, world: &Shared, free: &[&str], deadline: Deadline) -> Result<Said, TransportError> {
        let lines: Vec<String> = self.values.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        let objection = self.objection.as_ref().map(ToString::to_string).unwrap_or_default();
        // The objection may contain any character, so it comes last.
        let card = format!("{}objection={objection}", lines.concat());
        let cards = world.gather(&format!("{}/parameters", self.what), card.as_bytes(), deadline)?;
        if let Some(objection) = self.objection {
            return Err(objection);
        }
        let cards: Vec<String> = cards.iter().map(|card| String::from_utf8_lossy(card).into_owned()).collect();
        let mut said = vec![Vec::new(); cards.len()];
        for (index, (name, _)) in self.values.iter().enumerate() {
            let value = |card: &String| {
                let line = card.lines().nth(index).and_then(|line| line.strip_prefix(*name)?.strip_prefix('='));
                line.unwrap_or("not said").to_string()
            };
            let values: Vec<String> = cards.iter().map(value).collect();
            if !free.contains(name) && values.iter().any(|value| *value != values[0]) {
                return Err(TransportError::Mismatch { parameter: name.to_string(), values });
            }
            values.into_iter().zip(&mut said).for_each(|(value, of_rank)| of_rank.push(value));
        }
        for (rank, card) in Rank::all(cards.len()).zip(&cards) {
            let what = card
                .split_once("objection=")
                .map_or("its parameters are malformed: do all ranks run the same version?", |(_, what)| what);
            if !what.is_empty() {
                return Err(TransportError::Peer { rank, what: what.to_string() });
            }
        }
        Ok(said)
    }
}

/// The layout for a transport's constants, if they make sense.
pub(crate) fn layout_of(geometry: Geometry) -> Result<Layout, TransportError> {
    let Geometry { per_peer_bytes, max_blocks_per_peer, max_slots, max_copies, .. } = geometry;
    let bad =
        |option, value, expected: &str| TransportError::BadOption { option, value, expected: expected.to_string() };
    let at_least = |option: &'static str, value: usize, least: usize, expected: &str| {
        if value >= least { Ok(()) } else { Err(bad(option, value, expected)) }
    };
    at_least("max_blocks_per_peer", max_blocks_per_peer, 1, "at least 1")?;
    at_least("max_slots", max_slots, 2, "at least 2, so that one slot is filled while another is emptied")?;
    at_least("max_copies", max_copies, 1, "at least 1")?;
    if max_slots > usize::from(u16::MAX) {
        return Err(bad("max_slots", max_slots, "at most 65535"));
    }
    if block_share(per_peer_bytes, max_blocks_per_peer) < LINE {
        let least = max_blocks_per_peer.saturating_mul(LINE);
        let expected = format!("at least {least}, {LINE} bytes for each of {max_blocks_per_peer} max_blocks_per_peer");
        return Err(bad("per_peer_bytes", per_peer_bytes, &expected));
    }
    Layout::new(geometry).ok_or(TransportError::TooLarge)
}

/// What a transport keeps of its world: enough for the ranks to meet again.
#[derive(Clone)]
pub struct Shared {
    bootstrap: std::sync::Arc<dyn super::Bootstrap>,
    meeting: Option<std::sync::Arc<super::meeting::Meeting>>,
    /// How long waits last; `None`: forever.
    length: Option<Duration>,
}

impl Shared {
    pub(crate) fn of(world: &World) -> Shared {
        let (bootstrap, meeting) = (world.bootstrap().clone(), world.meeting().cloned());
        Shared { bootstrap, meeting, length: world.deadline_length() }
    }

    /// For ranks of one thread: each has its bootstrap, and none waits for another.
    pub(crate) fn alone(
        bootstrap: std::sync::Arc<dyn super::Bootstrap>,
        meeting: std::sync::Arc<super::meeting::Meeting>,
        length: Option<Duration>,
    ) -> Shared {
        Shared { bootstrap, meeting: Some(meeting), length }
    }

    pub(crate) fn rank(&self) -> Rank {
        self.bootstrap.rank()
    }

    /// If ranks are threads, gives all ranks what each brings, in rank order; `None` if they are processes. Collective.
    pub(crate) fn show<T: Send + Sync + 'static>(
        &self,
        what: &str,
        mine: std::sync::Arc<T>,
        deadline: Deadline,
    ) -> Result<Option<Vec<std::sync::Arc<T>>>, TransportError> {
        let Some(meeting) = &self.meeting else { return Ok(None) };
        let ticket = meeting.show(mine, self.size());
        let cards = self.gather(&format!("{what}/shown"), &ticket.to_le_bytes(), deadline)?;
        let see = |(rank, card): (Rank, &Vec<u8>)| {
            let ticket = <[u8; 8]>::try_from(&card[..]).ok().map(u64::from_le_bytes);
            let shown = ticket.and_then(|ticket| meeting.see(ticket)).and_then(|shown| shown.downcast::<T>().ok());
            shown.ok_or_else(|| TransportError::Peer { rank, what: "it offered nothing to share".to_string() })
        };
        Rank::all(self.size()).zip(&cards).map(see).collect::<Result<Vec<_>, _>>().map(Some)
    }

    pub(crate) fn size(&self) -> usize {
        self.bootstrap.world_size()
    }

    /// The meeting, if ranks are threads.
    pub(crate) fn meeting(&self) -> Option<&super::meeting::Meeting> {
        self.meeting.as_deref()
    }

    /// The meeting as a handle, if ranks are threads.
    pub(super) fn meeting_handle(&self) -> Option<std::sync::Arc<super::meeting::Meeting>> {
        self.meeting.clone()
    }

    pub(crate) fn are_threads(&self) -> bool {
        self.meeting.is_some()
    }

    /// A rank that the bootstrap knows to be lost.
    pub(crate) fn lost(&self) -> Option<Rank> {
        self.bootstrap.lost()
    }

    /// The addresses of the connection to the store, as [`Bootstrap::addresses`](super::Bootstrap::addresses).
    pub(crate) fn addresses(&self) -> Option<[IpAddr; 2]> {
        self.bootstrap.addresses()
    }

    pub(crate) fn note_failure(&self) {
        self.bootstrap.note_failure();
    }

    pub(crate) fn deadline(&self) -> Deadline {
        self.length.map_or(Deadline::never(), Deadline::after)
    }

    pub(crate) fn length(&self) -> Option<Duration> {
        self.length
    }

    pub(crate) fn set(&self, key: &str, value: &[u8], deadline: Deadline) -> Result<(), BootstrapError> {
        self.bootstrap.set(&format!("tilewire/{key}"), value, deadline)
    }

    pub(super) fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        self.bootstrap.get(&format!("tilewire/{key}"), deadline)
    }

    pub(crate) fn look(&self, key: &str, look: Deadline, patience: Deadline) -> Result<Vec<u8>, BootstrapError> {
        self.bootstrap.look(&format!("tilewire/{key}"), look, patience)
    }

    pub(crate) fn barrier(&self, name: &str, deadline: Deadline) -> Result<(), TransportError> {
        Ok(self.bootstrap.barrier(&format!("tilewire/{name}"), deadline)?)
    }

    /// What each rank puts in, by rank. Collective.
    pub(crate) fn gather(&self, name: &str, value: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.bootstrap.all_gather(&format!("tilewire/{name}"), value, deadline)
    }

    /// Step 2. Collective; `bytes` is the same on all ranks.
    pub(crate) fn segments(
        &self,
        what: &str,
        bytes: usize,
        options: SegmentOptions,
        deadline: Deadline,
    ) -> Result<SegmentSet, TransportError> {
        let (rank, name) = (self.rank().index(), format!("{what}/segments"));
        let Some(meeting) = &self.meeting else {
            let options = SegmentOptions { deadline: deadline.remaining().unwrap_or(Duration::MAX), ..options };
            let mut exchange = |mine: &[u8]| self.gather(&name, mine, deadline);
            return Ok(SegmentSet::create_with(rank, self.size(), bytes, &options, &mut exchange)?);
        };
        // One rank creates for all: threads share their memory, so only handles need to be passed.
        let (mut card, mut failure) = (Vec::new(), None);
        if rank == 0 {
            match SegmentSet::threads_with(self.size(), bytes, &options) {
                Ok(sets) => card = meeting.leave(sets).to_le_bytes().to_vec(),
                Err(error) => (card, failure) = (format!("{error}").into_bytes(), Some(error)),
            }
        }
        let cards = self.gather(&name, &card, deadline)?;
        if let Some(error) = failure {
            return Err(error.into());
        }
        let ticket = <[u8; 8]>::try_from(&cards[0][..]).ok().map(u64::from_le_bytes);
        let set = ticket.and_then(|ticket| meeting.take(ticket, rank));
        let what = || String::from_utf8_lossy(&cards[0]).into_owned();
        set.ok_or_else(|| TransportError::Peer { rank: Rank::new(0), what: what() })
    }

    /// The memory of all ranks that map each other's, except this rank's: each gives what it has in a file of its own
    /// ([`SegmentSet::exportable`]). Collective among processes.
    pub(crate) fn exported(
        &self,
        own: &Memory,
        options: SegmentOptions,
    ) -> Result<Vec<Option<Memory>>, TransportError> {
        let deadline = self.deadline();
        let said = self.gather("window/exports", SegmentSet::export_said(own).as_bytes(), deadline)?;
        // The transport's sockets belong to its monitor, so open others for this one exchange.
        let mut control = self.segments("window exports", 0, options, deadline)?;
        Ok(control.swap_exports(own, &said, deadline)?)
    }

    /// Step 3: returns what this rank has, once every rank has it.
    pub(crate) fn all_have<T>(
        &self,
        what: &str,
        have: Result<T, TransportError>,
        deadline: Deadline,
    ) -> Result<T, TransportError> {
        let card = have.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let cards = self.gather(&format!("{what}/ready"), card.as_bytes(), deadline);
        let have = have?;
        for (rank, card) in Rank::all(self.size()).zip(cards?) {
            if !card.is_empty() {
                return Err(TransportError::Peer { rank, what: String::from_utf8_lossy(&card).into_owned() });
            }
        }
        Ok(have)
    }
}

impl From<LocalBufferError> for TransportError {
    fn from(error: LocalBufferError) -> Self {
        TransportError::Buffer(error)
    }
}

/// Why a transport or a window could not be made, used or closed.
#[non_exhaustive]
pub enum TransportError {
    /// A parameter that makes no sense.
    BadOption {
        /// Its name.
        option: &'static str,
        /// Its value.
        value: usize,
        /// What it should be.
        expected: String,
    },
    /// The parameters together need more memory than the address space has.
    TooLarge,
    /// The ranks ask for different things.
    Mismatch {
        /// The parameter.
        parameter: String,
        /// The value of each rank, by rank.
        values: Vec<String>,
    },
    /// Another rank cannot go on, and reported why.
    Peer {
        /// That rank.
        rank: Rank,
        /// Its message.
        what: String,
    },
    /// The ranks could not talk to each other.
    Bootstrap(BootstrapError),
    /// The memory could not be shared.
    Segment(SegmentError),
    /// There is not enough memory for what was asked for.
    NoMemory(NoMemory),
    /// This rank's device failed: its engine's error, in the engine's own type.
    Device(Arc<dyn Error + Send + Sync>),
    /// The transport has no windows.
    NoWindows,
    /// Kernels of this rank reach the window of a rank neither by loads and stores nor by posts.
    WindowUnreached {
        /// This rank.
        rank: Rank,
        /// The rank whose window it is.
        peer: Rank,
    },
    /// Windows have no signals, because they have no control lines of their own.
    NoSignals,
    /// The transport broke before.
    Broken {
        /// Why.
        cause: Cause,
    },
    /// The ranks made different calls: they wait for each other, or one launched a different operation than another.
    /// All ranks hear of it, and the transport is broken.
    Judged(Verdict),
    /// The other side of a transfer did not come.
    NotMet {
        /// This rank's side of the transfer.
        ticket: Ticket,
        /// The late rank: the one at the end of the chain of waiting ranks, or the ticket's peer if that is not known.
        late: Rank,
        /// How long this rank waited.
        after: Duration,
    },
    /// Domains that are not a partition of the ranks.
    Domains {
        /// The ranks of each.
        domains: Vec<Vec<u32>>,
        /// Ranks in the world.
        ranks: usize,
    },
    /// More windows at the same time than posts can name.
    TooManyWindows,
    /// Memory that cannot be registered as a window.
    NotRegistrable {
        /// Why, and what to do.
        why: &'static str,
    },
    /// Memory that shares bytes with a window, but is not the same.
    OverlapsWindow {
        /// The first byte and the end of the memory.
        range: [usize; 2],
        /// Those of the window.
        window: [usize; 2],
    },
    /// A handle that names no buffer.
    Buffer(LocalBufferError),
    /// A window that was deregistered.
    Deregistered {
        /// Its number.
        number: String,
    },
    /// Launches that may still use what is to be deregistered.
    InFlight,
    /// More windows at the same time than the transport has sets of control lines.
    NoLineSet {
        /// Its sets.
        sets: usize,
    },
    /// The proxy that carries posts has stopped.
    Proxy(ProxyError),
    /// There is no network between the domains: the error of the network's own type.
    Network(Arc<dyn Error + Send + Sync>),
    /// The library was built without networks.
    NoNetwork,
    /// Some ranks did not close in time.
    NotClosed {
        /// The rank that waited.
        rank: Rank,
        /// Those ranks.
        ranks: Vec<usize>,
        /// How long this rank waited.
        after: Duration,
    },
}

errors! {
    enum TransportError {
        BadOption { option, value, expected } => "{option} is {value}: it must be {expected}",
        TooLarge => "the segment of a rank does not fit the address space: ask for less per peer",
        Mismatch { parameter, values } => { |f|
            write!(f, "the ranks disagree about {parameter}; pass the same on all:")?;
            groups(values)
                .iter()
                .try_for_each(|(value, ranks)| write!(f, " {} {value};", those(ranks, "says", "say")))
        },
        Peer { rank, what } => "rank {rank} cannot go on: {what}",
        Bootstrap(error) => "{error}",
        Segment(error) => "{error}",
        NoMemory(error) => "{error}",
        Device(error) => "{error}",
        NoWindows => "this transport has no windows: use staged or packet",
        WindowUnreached { rank, peer } =>
            "kernels of rank {rank} reach the window of rank {peer} neither by loads and stores nor by posts: use a \
             collective or staged, which go through the transport's own memory",
        NoSignals =>
            "windows share the control lines of this transport, and so have no signals: join it with `window_sets` of 1 \
             or more",
        Broken { cause } => "the transport is broken: {cause}; only a new rendezvous of all ranks recovers",
        Judged(verdict) => "{verdict}",
        NotMet { ticket, late, after } => (
            "{ticket}: waited {:.1} s for the other side; collectives are made of such pairs: see whether rank {late} \
             makes the same call, in the same order, or allow a longer deadline",
            after.as_secs_f64()
        ),
        Domains { domains, ranks } =>
            "the domains {domains:?} do not contain each of the {ranks} ranks, counted from 0, exactly once",
        TooManyWindows => "there are 65535 windows already, as many as posts can name: drop windows on all ranks, or make \
             one large window and slice it",
        NotRegistrable { why } => "this memory cannot be registered as a window: {why}",
        OverlapsWindow { range: [start, end], window: [first, last] } =>
            "bytes {start:#x}..{end:#x} share some, but not all, with the window at {first:#x}..{last:#x}: register the \
             whole tensor, and use slices of it",
        Buffer(error) => "{error}",
        Deregistered { number } =>
            "window {number} was deregistered: register its tensor again on all ranks, and build the collective again",
        InFlight =>
            "launches of this rank may still use the window: wait for them (sync) before it is deregistered",
        NoLineSet { sets } =>
            "all {sets} sets of control lines for windows are in use: drop windows, and what was built with them, on all \
             ranks, or make the transport with a larger `window_sets`",
        Proxy(error) => "{error}; the transport is broken, and only a new rendezvous of all ranks recovers",
        Network(error) => "{error}",
        NoNetwork =>
            "ranks of several domains are processes, and this program was built without networks: build tilewire with \
             its feature `fabric`",
        NotClosed { ranks, after, .. } => (
            "{} not close within {:.1} s: closing is collective: see whether every rank closes, or is in a call that \
             this one left out",
            those(ranks, "did", "did"), after.as_secs_f64()
        ),
    }
    source { Bootstrap(error) => error.source(), Segment(error) => error.source() }
    from { BootstrapError => Bootstrap, SegmentError => Segment, NoMemory => NoMemory, ProxyError => Proxy }
}

#[cfg(feature = "fabric")]
impl From<super::fabric::NetworkError> for TransportError {
    fn from(error: super::fabric::NetworkError) -> Self {
        TransportError::Network(Arc::new(error))
    }
}

/// Groups the ranks by value, in the order in which the values first appear.
fn groups(values: &[String]) -> Vec<(&str, Vec<usize>)> {
    let mut found: Vec<(&str, Vec<usize>)> = Vec::new();
    for (rank, value) in values.iter().enumerate() {
        match found.iter_mut().find(|(known, _)| known == value) {
            Some((_, ranks)) => ranks.push(rank),
            None => found.push((value, vec![rank])),
        }
    }
    found
}
