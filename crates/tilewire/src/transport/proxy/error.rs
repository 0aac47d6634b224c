//! The errors that stop a proxy.
#![forbid(unsafe_code)]

/// The error that stopped a proxy: a descriptor that no kernel of ours writes, a notice that no sender of ours sends,
/// posts that were not delivered in time, or a carrier that failed. The transport is broken afterwards, on all ranks.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProxyError {
    /// A descriptor that has no meaning.
    Entry {
        /// The first word of the descriptor.
        head: u64,
    },
    /// A descriptor for a rank that this rank does not post to.
    Peer {
        /// The rank.
        peer: usize,
    },
    /// A post to bytes outside the peer's region.
    Destination {
        /// The peer.
        peer: usize,
        /// The number of the region.
        target: u16,
        /// The offset of the first byte in the region.
        destination: u64,
        /// The number of bytes.
        bytes: u64,
        /// The size of the region in bytes; `None` if there is no such region.
        len: Option<u64>,
    },
    /// A post to a region that the peer has removed, or never had.
    Region {
        /// The peer.
        peer: usize,
        /// The number of the region.
        target: u16,
    },
    /// A post of bytes that are not registered with the proxy.
    Source {
        /// The peer that the bytes were for.
        peer: usize,
        /// The address of the first byte.
        address: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// A notice for a control line that this rank may not move.
    Line {
        /// The peer.
        peer: usize,
        /// The line.
        line: u64,
    },
    /// A flush for a control line of this rank that flushes of posts to this peer may not move.
    OwnLine {
        /// The peer whose posts the flush covers.
        peer: usize,
        /// The line.
        line: u64,
    },
    /// A notice whose word is not larger than the previous one.
    Backwards {
        /// The peer.
        peer: usize,
        /// The line.
        line: u64,
        /// The word that was posted.
        word: u64,
        /// The previous word for this line.
        last: u64,
    },
    /// A post for a control line whose last delivery still lacks parts, where the post is not one of them.
    Parts {
        /// The peer.
        peer: usize,
        /// The line.
        line: u64,
        /// The word that was posted.
        word: u64,
        /// The number of parts that the last delivery lacks.
        missing: u8,
    },
    /// A notice that names no control line of this rank, or contradicts what has arrived for its line.
    Notice {
        /// The notice.
        notice: u32,
    },
    /// The carrier failed.
    Carrier {
        /// The peer, if it is known.
        peer: Option<usize>,
        /// The message of the carrier.
        what: String,
    },
    /// A thread panicked inside the proxy, in the carrier or through a bug of the proxy.
    Panicked,
    /// Posts to a peer of which the carrier took and confirmed none for as long as the deadline.
    Late {
        /// The peer. If there are several, the one that has made no progress for the longest time.
        peer: usize,
        /// The number of posts to it that are not delivered.
        posts: usize,
    },
    /// Posts that were left when a launch had failed. They are not delivered.
    Halted,
}

errors! {
    enum ProxyError {
        Entry { head } => "a descriptor in the ring of the network proxy has no meaning (its head is {head:#x}): a \
             kernel has overwritten the ring",
        Peer { peer } => "a kernel posted to rank {peer}, which this rank does not post to",
        Destination { peer, target, destination, bytes, len: Some(len) } =>
            "a kernel posted {bytes} bytes to byte {destination} of region {target} of rank {peer}, which has {len} \
             bytes",
        Destination { peer, target, len: None, .. } =>
            "a kernel posted to region {target} of rank {peer}, which does not exist or was dropped: keep the window \
             alive while any collective that writes it exists",
        Region { peer, target } => "a kernel posted to region {target} of rank {peer}, which has dropped that \
             window and everything built with it: keep the window alive on all ranks while any rank still launches a \
             collective that writes it",
        Source { peer, address, bytes } =>
            "a kernel posted {bytes} bytes at {address:#x} to rank {peer}, which are neither in the outbox nor \
             registered: post from the outbox, or from registered memory",
        Line { peer, line } => "a kernel posted a notice for control line {line} of rank {peer}, which this rank may not \
             move",
        OwnLine { peer, line } => "a kernel posted a flush of its posts to rank {peer} for control line {line} of its \
             own rank, which such a flush may not move",
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
        Panicked => "a thread panicked inside the network proxy: look for the panic's message above",
        Late { peer, posts } => "none of {posts} posts to rank {peer} was taken or delivered before the deadline: see \
             what rank {peer} is doing, or allow a longer deadline",
        Halted => "the network proxy was stopped by a launch that failed, with posts left: make a new transport",
    }
}
