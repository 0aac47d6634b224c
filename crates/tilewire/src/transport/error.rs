//! Errors of sharing memory between ranks.

use super::descriptors::DescriptorLimit;
use crate::tensor::Shortage;
use std::error::Error;
use std::io;
use std::time::Duration;

/// Why the segments of a world could not be created. Every rank that is still running gets one of these within the
/// deadline.
#[non_exhaustive]
pub enum SegmentError {
    /// The arguments contradict each other.
    Usage {
        /// What is wrong, with the values.
        what: String,
    },
    /// Processes can share memory only on Linux.
    Unsupported,
    /// The segment is larger than the address space.
    TooLarge {
        /// The requested bytes.
        bytes: usize,
    },
    /// There is not enough memory.
    NoMemory {
        /// Bytes of one rank's segment, including its header.
        bytes: usize,
        /// The memory that all ranks of this machine need and the memory that is left, if the allocation was not even
        /// tried because of that.
        shortage: Option<Shortage>,
    },
    /// A segment is an unnamed file, and this process may not have files of that size.
    FileLimit {
        /// The requested bytes, including the header.
        bytes: usize,
        /// The largest file size allowed, in bytes.
        allowed: u64,
    },
    /// The process may not open enough files for this many ranks.
    Descriptors(DescriptorLimit),
    /// A system call failed.
    System {
        /// The call.
        call: &'static str,
        /// How it failed.
        source: io::Error,
    },
    /// The caller's all-gather failed.
    Exchange(Box<dyn Error + Send + Sync>),
    /// The all-gather did not return what the ranks put in.
    Malformed {
        /// The rank whose part is wrong; `None` if the result as a whole is wrong.
        rank: Option<usize>,
        /// What is wrong.
        what: String,
    },
    /// The ranks asked for segments of different sizes.
    Sizes {
        /// Bytes by rank.
        bytes: Vec<u64>,
    },
    /// Some ranks are on another machine than this one, or in another network namespace.
    OtherHost {
        /// Those ranks.
        ranks: Vec<usize>,
    },
    /// The ranks of a given domain are on several hosts.
    TornDomain {
        /// The domain.
        domain: Vec<u32>,
        /// Two of its ranks that cannot share memory.
        ranks: (usize, usize),
    },
    /// A rank died, or closed its sockets without a message.
    Died {
        /// That rank.
        rank: usize,
    },
    /// Some ranks did not get this far within the deadline.
    Missing {
        /// Those ranks.
        ranks: Vec<usize>,
        /// The deadline.
        after: Duration,
    },
    /// A rank gave up and reported why.
    Peer {
        /// That rank.
        rank: usize,
        /// Its error.
        what: String,
    },
}

impl SegmentError {
    /// Wraps the error of a system call, for `map_err(SegmentError::system("call"))`.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    pub(super) fn system(call: &'static str) -> impl FnOnce(io::Error) -> SegmentError {
        move |source| SegmentError::System { call, source }
    }
}

errors! {
    enum SegmentError {
        Usage { what } => "{what}",
        Unsupported => "ranks that are processes share memory on Linux only: use ranks that are threads here",
        TooLarge { bytes } => "a segment of {bytes} bytes does not fit the address space: ask for less per peer",
        NoMemory { bytes, shortage } => { |f|
            write!(f, "no memory for a segment of {bytes} bytes")?;
            if let Some(shortage) = shortage {
                let ranks = (shortage.needed / (*bytes as u64).max(1)).max(1);
                if ranks > 1 {
                    write!(f, " on each of {ranks} ranks")?;
                }
                write!(f, " ({shortage}: at most {} for each rank)", shortage.left / ranks)?;
            }
            write!(f, ": ask for less per peer, start fewer ranks on this machine, or raise its memory limit")
        },
        FileLimit { bytes, allowed } =>
            "a segment of {bytes} bytes is a file in memory, and this process may not have files larger than \
             {allowed} bytes: raise the limit (ulimit -f), or ask for less per peer",
        Descriptors(limit) => "{limit}",
        System { call, source } => { |f|
            write!(f, "{call} failed: {source}")?;
            hint(source).map_or(Ok(()), |hint| write!(f, ": {hint}"))
        },
        Exchange(source) => "the ranks could not exchange their addresses: {source}",
        Malformed { rank: Some(rank), what } =>
            "what rank {rank} sent through the bootstrap is wrong: {what}; do all ranks run the same version?",
        Malformed { rank: None, what } => "the bootstrap's all-gather is wrong: {what}",
        Sizes { bytes } => { |f|
            write!(f, "the ranks ask for segments of different sizes; pass the same on all:")?;
            bytes.iter().enumerate().try_for_each(|(rank, bytes)| write!(f, " rank {rank}: {bytes} bytes;",))
        },
        OtherHost { ranks } => (
            "{} on another machine or in another network namespace and cannot share memory with this rank: use a \
             network transport, or start the containers with one network namespace",
            those(ranks, "is", "are")
        ),
        TornDomain { domain, ranks: (one, other) } =>
            "the domain {domain:?} is on several hosts, or in several network namespaces: ranks {one} and {other} cannot \
             share memory; give each host a domain of its own, or let the ranks find their domains",
        Died { rank } => "rank {rank} died while the ranks shared their segments",
        Missing { ranks, after } => (
            "{} not share memory within {after:?}: find out what is holding it up, or allow more time",
            those(ranks, "did", "did")
        ),
        Peer { rank, what } => "rank {rank} gave up: {what}",
    }
    source { System { source, .. } => source.source(), Exchange(source) => source.source() }
}

/// "rank 3 is", "ranks 1, 2 are".
pub(super) fn those(ranks: &[usize], one: &str, many: &str) -> String {
    let list = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    if ranks.len() == 1 { format!("rank {list} {one}") } else { format!("ranks {list} {many}") }
}

/// Advice for some system errors.
#[cfg(target_os = "linux")]
fn hint(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EMFILE | libc::ETOOMANYREFS => Some("too many open files; raise the limit (ulimit -n)"),
        libc::ENFILE => Some("too many open files on this machine; raise fs.file-max"),
        libc::ENOMEM => Some("out of memory or of mappings; ask for less, or raise vm.max_map_count"),
        libc::EPERM | libc::EACCES => Some("a security policy forbids it (seccomp, vm.memfd_noexec)"),
        libc::ENOSYS => Some("this kernel is too old; memfd needs Linux 3.17"),
        _ => None,
    }
}

#[cfg(not(target_os = "linux"))]
fn hint(_: &io::Error) -> Option<&'static str> {
    None
}
