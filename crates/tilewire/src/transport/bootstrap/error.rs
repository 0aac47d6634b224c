//! What can go wrong while ranks find each other.
#![forbid(unsafe_code)]

use super::{Limit, Secret};
use crate::transport::{DescriptorLimit, Rank};
use std::fmt;
use std::io;
use std::time::Duration;

/// Why a call on a bootstrap failed. Errors about peers name them.
#[non_exhaustive]
pub enum BootstrapError {
    /// Not all ranks came to a barrier or all-gather in time.
    Timeout {
        /// The rank that waited.
        rank: Rank,
        /// The call it waited in.
        operation: Operation,
        /// The name of the barrier or all-gather.
        name: String,
        /// The ranks that are connected but did not come. If all came, the first one whose wait expired.
        late: Vec<Rank>,
        /// The ranks that never connected at all.
        absent: Vec<Rank>,
        /// How long it waited.
        waited: Duration,
    },
    /// No rank set a key in time.
    KeyNotSet {
        /// The rank that waited.
        rank: Rank,
        /// The key.
        key: String,
        /// The ranks that never connected.
        absent: Vec<Rank>,
        /// How long it waited.
        waited: Duration,
    },
    /// A rank that the call needs is gone.
    PeerGone {
        /// The rank that is gone.
        peer: Rank,
        /// How it departed.
        departure: Departure,
        /// The call that needed it.
        operation: Operation,
        /// The key, or the name of the barrier or all-gather.
        name: String,
    },
    /// The key already has another value.
    KeyTaken {
        /// The key.
        key: String,
    },
    /// Another thread of this rank is in the same barrier or all-gather.
    AlreadyWaiting {
        /// This rank.
        rank: Rank,
        /// The call it is in.
        operation: Operation,
        /// The name.
        name: String,
    },
    /// A key, a name or a value is larger than the store accepts.
    TooLarge {
        /// The limit.
        what: Limit,
        /// The size that was given.
        size: usize,
        /// The largest size that is allowed.
        limit: usize,
    },
    /// The store is full.
    Full {
        /// The limit.
        what: Limit,
        /// The limit's value.
        limit: usize,
    },
    /// Nothing listens at the store's address, or not yet.
    Unreachable {
        /// The address.
        address: String,
        /// How long this rank tried.
        waited: Duration,
        /// The error of the last attempt.
        source: io::Error,
    },
    /// The store cannot listen at its address.
    Bind {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The two ends have different secrets.
    SecretMismatch {
        /// The store's address.
        address: String,
    },
    /// The two ends speak different versions of the protocol.
    VersionMismatch {
        /// The store's address.
        address: String,
        /// The version of this rank.
        ours: u8,
        /// The version of the store.
        theirs: u8,
    },
    /// Something else answers at the address.
    NotAStore {
        /// The address.
        address: String,
    },
    /// This rank was started for a world of another size than the store's.
    WorldSizeMismatch {
        /// This rank.
        rank: Rank,
        /// The size this rank was told.
        ours: usize,
        /// The size the store was told.
        theirs: usize,
    },
    /// The number of this rank is not below the world's size.
    RankOutOfRange {
        /// The rank.
        rank: Rank,
        /// The world's size.
        world_size: usize,
    },
    /// Another process has joined with this number, now or earlier.
    RankTaken {
        /// The number.
        rank: Rank,
    },
    /// The store disconnected or was silent after this rank asked to join. It may have joined, so it cannot try again.
    JoinUnanswered {
        /// The store's address.
        address: String,
        /// This rank.
        rank: Rank,
        /// What happened instead of the answer.
        source: io::Error,
    },
    /// The connection to the store broke: its host has ended, or the network failed.
    StoreGone {
        /// The store's address.
        address: String,
        /// The call in progress.
        operation: Operation,
        /// The key, or the name of the barrier or all-gather.
        name: String,
    },
    /// The store did not answer, not even to report that the deadline had passed.
    StoreSilent {
        /// The store's address.
        address: String,
        /// The rank that hosts it, if known.
        host: Option<Rank>,
        /// The call in progress.
        operation: Operation,
        /// The key, or the name of the barrier or all-gather.
        name: String,
        /// How long this rank waited.
        waited: Duration,
    },
    /// The secret is too short.
    ShortSecret {
        /// Its length.
        bytes: usize,
        /// The shortest length that is allowed.
        shortest: usize,
    },
    /// The operating system provided no random bytes.
    Random(io::Error),
    /// The process may not open enough descriptors for a connection to each rank.
    Descriptors(DescriptorLimit),
    /// The operating system provided no thread or socket for the store or for a connection to it.
    Resources(io::Error),
}

/// A call on a bootstrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Connecting to the store.
    Join,
    /// `set`.
    Set,
    /// `get`.
    Get,
    /// `take`.
    Take,
    /// `barrier`.
    Barrier,
    /// `all_gather`.
    AllGather,
}

/// How a rank departed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Departure {
    /// It finished and left in the regular way: its bootstrap was dropped.
    Left,
    /// Its connection broke without notice: the process died, was killed, or lost its network.
    Lost,
    /// It reported that it failed, and why.
    Failed(String),
}

errors! {
    enum BootstrapError {
        Timeout { rank, operation, name, late, absent, waited } => { |f|
            write!(f, "rank {rank} waited {} in {operation} '{name}'", seconds(*waited))?;
            if !absent.is_empty() {
                write!(f, "; never connected: {}: see whether they were started", Ranks(absent))?;
            }
            if !late.is_empty() {
                write!(f, "; connected but did not come: {}: see what they are doing instead", Ranks(late))?;
            }
            write!(f, "; or give a longer deadline")
        },
        KeyNotSet { rank, key, absent, waited } => { |f|
            write!(f, "rank {rank} waited {} for key '{key}', which no rank set", seconds(*waited))?;
            if !absent.is_empty() {
                write!(f, "; never connected: {}: see whether they were started", Ranks(absent))?;
            }
            write!(f, "; see whether both sides spell the key alike, or give a longer deadline")
        },
        PeerGone { peer, departure, operation, name } => { |f|
            write!(f, "rank {peer} {departure}, and {operation} '{name}' needs it: ")?;
            match departure {
                Departure::Left => write!(f, "let all ranks make the same calls before they end"),
                _ => write!(f, "see what rank {peer} printed, then start the job again"),
            }
        },
        KeyTaken { key } =>
            "key '{key}' has another value already: a key is set once; use another name, or take it first",
        AlreadyWaiting { rank, operation, name } =>
            "rank {rank} is already in {operation} '{name}', in another thread: give each simultaneous use a name of \
             its own",
        TooLarge { what, size, limit } =>
            "{size} is more than the {limit} that the store's limit '{what}' allows: send less, or raise \
             Limits::{what}",
        Full { what, limit } =>
            "the store is full ({what} = {limit}): take keys that were read, or raise Limits::{what}",
        Unreachable { address, waited, source } => (
            "no store answers at {address} after {} ({source}): see whether rank 0 runs and the address is its own",
            seconds(*waited)
        ),
        Bind { address, source } =>
            "cannot host the store at {address} ({source}): set TILEWIRE_STORE=host:port to a free port of rank 0's \
             host",
        SecretMismatch { address } =>
            "the store at {address} has another secret: start all ranks with the same TILEWIRE_SECRET",
        VersionMismatch { address, ours, theirs } =>
            "the store at {address} speaks version {theirs}, this rank version {ours}: use one version of tilewire on \
             all ranks",
        NotAStore { address } =>
            "the program that answers at {address} is not a tilewire store: set TILEWIRE_STORE=host:port to another \
             port",
        WorldSizeMismatch { rank, ours, theirs } =>
            "rank {rank} was started for {ours} ranks, the store for {theirs}: start all ranks with the same world \
             size",
        RankOutOfRange { rank, world_size } => "there is no rank {rank} in a world of {world_size}: ranks count from 0",
        RankTaken { rank } =>
            "rank {rank} has joined already: give each process a number of its own; a rank cannot come back",
        JoinUnanswered { address, rank, source } =>
            "the store at {address} did not answer rank {rank}, which asked to join ({source}): it may have joined, \
             and cannot join twice; see what the store's host (the launcher, or rank 0) printed, then start the job \
             again",
        StoreGone { address, operation, name } =>
            "lost the store at {address} during {operation} '{name}': see what its host (the launcher, or rank 0) \
             printed",
        StoreSilent { address, host, operation, name, waited } => { |f|
            write!(f, "the store at {address} did not answer {operation} '{name}' within {}: ", seconds(*waited))?;
            match host {
                Some(host) => write!(f, "see whether rank {host}, which hosts it, is stopped or cut off"),
                None => write!(f, "see whether its host is stopped or cut off"),
            }
        },
        ShortSecret { bytes, shortest } => (
            "a secret of {bytes} bytes can be guessed, give {shortest} or more: TILEWIRE_SECRET=$({})",
            Secret::RECIPE
        ),
        Random(source) => "no random bytes from /dev/urandom: {source}",
        Descriptors(limit) => "{limit}",
        Resources(source) => "the store cannot run: {source}; see the limits on threads and open files (ulimit -a)",
    }
    source {
        Unreachable { source, .. } | Bind { source, .. } | JoinUnanswered { source, .. } => source.source(),
        Random(source) | Resources(source) => source.source(),
    }
}

messages! {
    enum Operation {
        Join => "join",
        Set => "set",
        Get => "get",
        Take => "take",
        Barrier => "barrier",
        AllGather => "all_gather",
    }
}

messages! {
    enum Departure {
        Left => "has left",
        Lost => "died or lost its connection",
        Failed(reason) => "failed ({reason})",
    }
}

/// A readable list: `ranks 1, 3, 4 and 60 more`.
struct Ranks<'a>(&'a [Rank]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        f.write_str(if self.0.len() == 1 { "rank " } else { "ranks " })?;
        for (at, rank) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{rank}", if at == 0 { "" } else { ", " })?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

fn seconds(length: Duration) -> String {
    format!("{:.1} s", length.as_secs_f64())
}
