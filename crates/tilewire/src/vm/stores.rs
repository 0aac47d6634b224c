//! Which stores go around the cache: decided here, from the sizes of what a launch moves and from the processor it runs on.
//!
//! Results do not depend on it, and it changes no bytes between ranks, so every rank decides for itself.

use super::copy;
use super::pace::Puts;
use super::processor::is_intel;

/// How many times as much as is sent around the cache is still kept in it, of two copies in turns (`vm/copy/two.rs`).
pub(super) const KEPT_IN_CACHE: usize = 4;

/// Chunks of at least this size are kept while they are sent. A rank reads smaller ones from its nearest cache a second time, and need not wait
/// for its peer before it keeps them.
const KEPT_FROM: usize = 8 << 10;

/// Smaller outputs stay in the cache on any processor: a copy of what another core has just written, and one read of it, was as fast both
/// ways there (Intel).
const LARGE_OUTPUT: usize = 8 << 20;

/// Which stores of a launch go around the cache (non-temporal stores).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorePolicy {
    /// From how many bytes on an `each` stores around the cache.
    pub from: usize,
    /// The same for roles that put nothing into a region of other ranks; `None`: no other number.
    pub own_from: Option<usize>,
    /// The same for what a role copies into tensors of this rank beside what it puts into others' regions; `None`: no other number.
    pub kept_from: Option<usize>,
    /// How what is put into regions of other ranks is written.
    pub puts: Puts,
}

impl Default for StorePolicy {
    fn default() -> Self {
        StorePolicy { from: copy::stream_from(), own_from: None, kept_from: None, puts: Puts::default() }
    }
}

/// What a launch of one rank moves, in sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Chunks that it writes, each by an `each` of its own: they share the cache.
    pub chunks: usize,
    /// Whether it reads several chunks for each one it writes, which fills the cache as well.
    pub reads_more: bool,
    /// Bytes of the output, where that arrives through staging: in pieces, so that only the whole tells how much is written.
    pub staged_output: Option<usize>,
    /// Whether it writes staging of other ranks, for which the faster way can be measured. Windows stay with their readers: nothing goes
    /// back and forth, and nothing could tell where they are.
    pub stages: bool,
    /// What it copies for itself beside what it sends.
    pub kept: Option<Kept>,
}

/// What a role keeps of the chunk it sends, or beside it: two copies in turns (`vm/copy/two.rs` has what that takes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// What it sends, which it so reads once.
    Same,
    /// Another chunk.
    Other,
}

impl Kept {
    /// Whether keeping a chunk of this size while one is sent is faster than doing one after the other.
    pub(crate) fn pays(self, bytes: usize) -> bool {
        let from = match self {
            Kept::Same => KEPT_FROM,
            Kept::Other => copy::stream_from() / 3,
        };
        // Intel's processors stream by other loops, and were not measured.
        bytes >= from && !is_intel()
    }
}

impl StorePolicy {
    /// For a launch that moves this.
    pub(crate) fn of(traffic: &Traffic) -> StorePolicy {
        let usual = copy::stream_from();
        // What is kept stays in the cache for longer than what is sent (`vm/copy/two.rs` has both, of 8 and of 10 MiB): sizes are of the two
        // together.
        let (from, kept_from) = match traffic.kept {
            Some(Kept::Same) => (usual, Some(KEPT_IN_CACHE * usual)),
            Some(Kept::Other) => (usual / 3 * 2, Some(usual / 3 * 5)),
            None => (usual, None),
        };
        let from = if traffic.reads_more { from / 2 } else { from };
        let large = traffic.staged_output.is_some_and(|bytes| bytes >= usual.max(LARGE_OUTPUT));
        StorePolicy {
            from: from / traffic.chunks.max(1),
            own_from: large.then_some(1),
            kept_from,
            puts: if traffic.stages { Puts::Measured } else { Puts::ThroughCache },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Traffic = Traffic { chunks: 1, reads_more: false, staged_output: None, stages: true, kept: None };

    #[test]
    fn a_launch_that_moves_one_chunk_has_the_usual_policy() {
        assert_eq!(StorePolicy::of(&PLAIN), StorePolicy::default());
        assert_eq!(StorePolicy::of(&Traffic { chunks: 0, ..PLAIN }), StorePolicy::default());
    }

    #[test]
    fn chunks_share_the_cache_and_what_is_kept_stays_in_it_longer() {
        let usual = copy::stream_from();
        let policy = |traffic: Traffic| StorePolicy::of(&traffic);
        assert_eq!(policy(Traffic { chunks: 4, ..PLAIN }).from, usual / 4);
        assert_eq!(policy(Traffic { reads_more: true, ..PLAIN }).from, usual / 2);
        for kept in [Kept::Same, Kept::Other] {
            let StorePolicy { from, kept_from, .. } = policy(Traffic { kept: Some(kept), ..PLAIN });
            assert!(kept_from.is_some_and(|kept_from| kept_from > from), "{kept:?}");
        }
    }

    #[test]
    fn only_large_outputs_that_come_in_pieces_go_around_the_cache_from_the_first_byte_on() {
        let own_from = |bytes| StorePolicy::of(&Traffic { staged_output: bytes, ..PLAIN }).own_from;
        let large = copy::stream_from().max(LARGE_OUTPUT);
        assert_eq!([None, Some(large - 1), Some(large)].map(own_from), [None, None, Some(1)]);
    }

    #[test]
    fn windows_are_written_through_the_cache() {
        assert_eq!(StorePolicy::of(&Traffic { stages: false, ..PLAIN }).puts, Puts::ThroughCache);
    }
}
