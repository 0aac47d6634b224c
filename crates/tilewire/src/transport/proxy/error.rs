//! Why a proxy stopped.
#![forbid(unsafe_code)]

/// A descriptor that no kernel of ours writes, a notice that no sender of ours sends, or a carrier that failed. The
/// transport is broken afterwards, on all ranks.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProxyError {
    /// A descriptor without meaning.
    Entry {
        /// Its first word.
        head: u64,
    },
    /// A descriptor for a rank that no posts go to.
    Peer {
        /// The rank.
        peer: usize,
    },
    /// Bytes outside of the peer's region.
    Destination {
        /// The peer.
        peer: usize,
        /// The number of the region.
        target: u16,
        /// First byte.
        destination: u64,
        /// How many.
        bytes: u64,
        /// Bytes of the region; `None` if there is no such region.
        len: Option<u64>,
    },
    /// A region that the peer has removed, or never had.
    Region {
        /// The peer.
        peer: usize,
        /// The number of the region.
        target: u16,
    },
    /// Bytes that are not registered with the proxy.
    Source {
        /// The peer that they were for.
        peer: usize,
        /// Address of the first.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// A control line that is not this rank's to move.
    Line {
        /// The peer.
        peer: usize,
        /// The line.
        line: u64,
    },
    /// A flush for a control line of this rank that flushes may not move.
    OwnLine {
        /// The line.
        line: u64,
    },
    /// A word that does not grow.
    Backwards {
        /// The peer.
        peer: usize,
        /// The line.
        line: u64,
        /// The word.
        word: u64,
        /// The last one announced.
        last: u64,
    },
    /// A post for a control line whose last delivery still lacks parts, and which is none of them.
    Parts {
        /// The peer.
        peer: usize,
        /// The line.
        line: u64,
        /// The word that was posted.
        word: u64,
        /// Parts that the last delivery lacks.
        missing: u8,
    },
    /// A notice that names no line of this rank, or that does not fit what has arrived for its line.
    Notice {
        /// The notice.
        notice: u32,
    },
    /// The carrier failed.
    Carrier {
        /// The peer, if it is known.
        peer: Option<usize>,
        /// What it says.
        what: String,
    },
    /// A thread panicked inside the proxy, in the carrier or because of a bug.
    Panicked,
    /// Posts that the carrier did not take, or did not confirm, in time.
    Late {
        /// The peer.
        peer: usize,
        /// How many.
        posts: usize,
    },
}

errors! {
    enum ProxyError {
        Entry { head } => "a descriptor in the ring of the network proxy has no meaning (its head is {head:#x}): a \
             kernel has overwritten the ring",
        Peer { peer } => "a kernel posted to rank {peer}, to which no posts go",
        Destination { peer, target, destination, bytes, len: Some(len) } =>
            "a kernel posted {bytes} bytes to byte {destination} of region {target} of rank {peer}, which has {len} \
             bytes",
        Destination { peer, target, len: None, .. } =>
            "a kernel posted to region {target} of rank {peer}, which does not exist, or no longer: keep a window as long \
             as anything that writes it",
        Region { peer, target } => "a kernel posted to region {target} of rank {peer}, which has dropped that window, and \
             everything built with it: drop a window when no rank launches what writes it any more",
        Source { peer, address, bytes } =>
            "a kernel posted {bytes} bytes at {address:#x} to rank {peer}, which are not in the outbox: post from the \
             outbox, or from registered memory",
        Line { peer, line } => "a kernel posted a notice for control line {line} of rank {peer}, which is not its own",
        OwnLine { line } => "a kernel posted a flush for control line {line} of its own rank, which no flush may move",
        Backwards { peer, line, word, last } =>
            "a kernel posted the word {word:#x} for control line {line} of rank {peer}, after {last:#x}: words only \
             grow",
        Parts { peer, line, word, missing } =>
            "a kernel posted the word {word:#x} for control line {line} of rank {peer}, where the last delivery still \
             lacks {missing} parts: post all parts of a delivery before the next",
        Notice { notice } => "a notice arrived that fits no delivery to this rank ({notice:#010x}): do all ranks run \
             the same version?",
        Carrier { peer: Some(peer), what } => "the network to rank {peer} failed: {what}",
        Carrier { peer: None, what } => "the network failed: {what}",
        Panicked => "a thread panicked inside the network proxy: its message was printed before",
        Late { peer, posts } => "{posts} posts to rank {peer} were not delivered before the deadline",
    }
}
