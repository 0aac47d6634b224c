//! Decides which stores bypass the cache, from the sizes of the data that a launch moves and from the processor.
//!
//! The decision affects neither results nor the bytes exchanged between ranks, so every rank decides for itself.

use super::copy;
use super::pace::Puts;
use crate::processor::is_intel;

/// For two interleaved copies (`vm/copy/two.rs`), the kept copy stays in the cache up to this multiple of the size from
/// which the sent copy bypasses it.
pub(super) const KEPT_IN_CACHE: usize = 4;

/// Chunks of at least this size are kept while they are sent. A rank reads a smaller chunk again from its nearest
/// cache, and can keep it without waiting for its peer first.
const KEPT_FROM: usize = 8 << 10;

/// Smaller outputs stay in the cache on any processor. Below this size, a copy of data that another core has just
/// written, plus one read of it, was equally fast both ways (Intel).
const LARGE_OUTPUT: usize = 8 << 20;

/// Which stores of a launch bypass the cache (non-temporal stores).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorePolicy {
    /// The number of bytes from which an `each` bypasses the cache.
    pub from: usize,
    /// The same for roles that put nothing into other ranks' regions; `None` means the same number.
    pub own_from: Option<usize>,
    /// The same for data that a role copies into tensors of this rank while it also puts data into other ranks'
    /// regions; `None` means the same number.
    pub kept_from: Option<usize>,
    /// How data put into regions of other ranks is written.
    pub puts: Puts,
}

impl Default for StorePolicy {
    fn default() -> Self {
        StorePolicy { from: copy::stream_from(), own_from: None, kept_from: None, puts: Puts::default() }
    }
}

/// The sizes of the data that a launch of one rank moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// The number of chunks it writes, each by an `each` of its own: they share the cache.
    pub chunks: usize,
    /// True if it reads several chunks for each one it writes, which also fills the cache.
    pub reads_more: bool,
    /// Bytes of the output if it arrives through staging. It then arrives in pieces, so only the total says how much is
    /// written.
    pub staged_output: Option<usize>,
    /// True if it writes staging of other ranks, for which the faster way can be measured. Windows stay with their
    /// readers: nothing goes back and forth, and nothing could tell where they are.
    pub stages: bool,
    /// The copies it makes for itself while sending.
    pub kept: Option<Kept>,
}

/// Data that a role keeps while it sends a chunk: two interleaved copies (`vm/copy/two.rs` states the requirements).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The chunk it sends, which it then reads only once.
    Same,
    /// Another chunk.
    Other,
}

impl Kept {
    /// True if keeping a chunk of this size while sending one is faster than doing one after the other.
    pub(crate) fn pays(self, bytes: usize) -> bool {
        let from = match self {
            Kept::Same => KEPT_FROM,
            Kept::Other => copy::stream_from() / 3,
        };
        // Intel's processors stream with different loops, and were not measured.
        bytes >= from && !is_intel()
    }
}

impl StorePolicy {
    /// The policy for a launch with this traffic.
    pub(crate) fn of(traffic: &Traffic) -> StorePolicy {
        let usual = copy::stream_from();
        // The kept copy stays in the cache for longer than the sent one (`vm/copy/two.rs` has figures for both, at 8
        // and at 10 MiB). Sizes are those of the two together.
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
