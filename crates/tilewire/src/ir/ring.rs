//! The ring of descriptors between kernels and a network proxy, which [`Op::Post`](super::Op::Post) fills on every
//! engine. This file has only the layout; the memory is in `tensor/ring.rs`.
//!
//! ```text
//!  entries, in memory that the host reads       tickets, in memory where the kernels run
//!  byte 0    taken: u64     entries that        byte 0   tickets: u64   entries that producers have begun
//!                           the proxy is        byte 8   seen: u64      a value that `taken` had; a GPU reads `taken`
//!                           done with                                   itself only if this says that the ring is full
//!  byte 64   entry 0, entry 1, …: 64 bytes each: turn, head, source, destination, bytes, slot, value, 0
//! ```
//! The capacity is a power of two. A producer takes ticket t when t − taken < capacity, fills entry t mod capacity, and
//! publishes it by storing turn = t + 1 (release). The proxy reads an entry when its turn is taken + 1 (acquire), and
//! frees it by storing `taken` (release). All counters only grow, so an entry of an earlier lap is never taken for one
//! of this lap.
//!
//! The head of an entry:
//!
//! ```text
//!   63 ─ 60 │ 59 flush │ 58 credit │ 57 notice │ 56 has bytes │ 55 ─ parts ─ 48 │ 47 ─ target ─ 32 │ 31 ─ peer ─ 0
//! ```
//! The proxy holds a flush until all earlier posts of this rank to the peer are delivered. Then it moves a slot of its
//! own rank, and sends nothing.

/// The most posts that make up one delivery. The wire has room for 4, and one may be needed for a large value.
pub const MAX_PARTS: u8 = 3;

/// The offset, in the entries' memory, of the number of entries that the proxy is done with.
pub const TAKEN: usize = 0;
/// The offset of the first entry.
pub const ENTRIES: usize = 64;
/// The size of an entry in bytes.
pub const ENTRY: usize = 64;
/// The number of words in an entry after the turn, which the producer writes.
pub const WORDS: usize = 6;

/// The offset, in the tickets' memory, of the number of entries that producers have begun.
pub const TICKETS: usize = 0;
/// The offset, in the tickets' memory, of an earlier value of [`TAKEN`].
pub const SEEN: usize = 8;
/// The size of the tickets' memory in bytes.
pub const TICKETS_BYTES: usize = 128;

/// The size of the entries' memory of a ring in bytes.
pub const fn entries_bytes(capacity: u64) -> u64 {
    (ENTRIES as u64).saturating_add(capacity.saturating_mul(ENTRY as u64))
}

/// One entry, as the proxy reads it. Nothing in it has been checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Posted {
    /// The destination rank.
    pub peer: u32,
    /// The number of the region at the peer.
    pub target: u16,
    /// The bytes.
    pub span: Option<PostedSpan>,
    /// The notice.
    pub notice: Option<PostedNotice>,
}

/// The bytes of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PostedSpan {
    /// The address of the first byte. It may be any address if there are no bytes.
    pub source: u64,
    /// The offset of the first byte in the target.
    pub destination: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// The notice of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PostedNotice {
    /// The number of the peer's slot. For a flush, the number of a slot of this rank.
    pub slot: u64,
    /// The new word of the slot.
    pub value: u64,
    /// The number of posts that make up the delivery.
    pub parts: u8,
    /// The kind of notice.
    pub kind: NoticeKind,
}

/// The meaning of a notice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoticeKind {
    /// Data has arrived: the bytes of its delivery or, without bytes, of all earlier posts to the peer.
    Data,
    /// Earlier reads are over. The post has no bytes.
    Credit,
    /// The sources of all earlier posts to the peer have been read. The post has no bytes, and the slot is the poster's
    /// own.
    Flush,
}

/// The bits of an entry's head that are known in advance: everything but the peer.
pub const fn head(target: u16, has_bytes: bool, notice: Option<(u8, NoticeKind)>) -> u64 {
    let (parts, flags) = match notice {
        Some((parts, NoticeKind::Data)) => (parts, 2),
        Some((parts, NoticeKind::Credit)) => (parts, 2 | 4),
        Some((parts, NoticeKind::Flush)) => (parts, 2 | 8),
        None => (0, 0),
    };
    (flags | has_bytes as u64) << 56 | (parts as u64) << 48 | (target as u64) << 32
}

impl Posted {
    /// The words of the entry after its turn.
    pub fn words(&self) -> [u64; WORDS] {
        let notice = self.notice.map(|notice| (notice.parts, notice.kind));
        let head = head(self.target, self.span.is_some(), notice) | u64::from(self.peer);
        let PostedSpan { source, destination, bytes } =
            self.span.unwrap_or(PostedSpan { source: 0, destination: 0, bytes: 0 });
        let (slot, value) = self.notice.map_or((0, 0), |notice| (notice.slot, notice.value));
        [head, source, destination, bytes, slot, value]
    }

    /// The entry with these words; `None` if no producer writes such a head.
    pub fn of_words([head, source, destination, bytes, slot, value]: [u64; WORDS]) -> Option<Posted> {
        let (flags, parts) = (head >> 56, (head >> 48) as u8);
        let has_bytes = flags & 1 != 0;
        let (has_notice, kind) = (
            flags & 2 != 0,
            match flags >> 2 {
                0 => NoticeKind::Data,
                1 => NoticeKind::Credit,
                2 => NoticeKind::Flush,
                _ => return None,
            },
        );
        let legal = match (has_bytes, has_notice) {
            (true, true) => (1..=MAX_PARTS).contains(&parts) && kind == NoticeKind::Data,
            (true, false) => parts == 0 && kind == NoticeKind::Data,
            (false, true) => parts == 1,
            (false, false) => false,
        };
        legal.then_some(Posted {
            peer: head as u32,
            target: (head >> 32) as u16,
            span: has_bytes.then_some(PostedSpan { source, destination, bytes }),
            notice: has_notice.then_some(PostedNotice { slot, value, parts, kind }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// An entry that is read from words writes the same words.
        #[test]
        fn entries_survive_their_words(words in any::<[u64; WORDS]>(), flags in 0..32u64, parts in 0..8u64) {
            let mut words = words;
            words[0] = words[0] & 0xffff_ffff_ffff | flags << 56 | parts << 48;
            if let Some(posted) = Posted::of_words(words) {
                prop_assert_eq!(Posted::of_words(posted.words()), Some(posted));
                prop_assert_eq!(posted.words()[0], words[0]);
            }
        }
    }

    #[test]
    fn a_head_that_no_producer_writes_is_refused() {
        let of = |flags: u64, parts: u64| Posted::of_words([flags << 56 | parts << 48 | 7, 0, 0, 0, 0, 0]).is_some();
        let legal = [(1, 0), (2, 1), (6, 1), (10, 1)];
        for flags in 0..256 {
            for parts in 0..8 {
                let expected =
                    legal.contains(&(flags, parts)) || flags == 3 && (1..=u64::from(MAX_PARTS)).contains(&parts);
                assert_eq!(of(flags, parts), expected, "flags {flags}, {parts} parts");
            }
        }
    }
}
