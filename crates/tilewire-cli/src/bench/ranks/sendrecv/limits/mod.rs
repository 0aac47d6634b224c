//! Hand-written limits: transfers between two ranks as tight as they can be written. The fastest variant is the limit.
//!
//! | limit | how a message goes | variants |
//! |---|---|---|
//! | [`cache_line`] | is one word, and its own flag | |
//! | [`flagged`] | 12 bytes and a flag at a time | |
//! | [`ring`] | copied into a slot and out of it, pipelined | size and number of slots; stores cached or streamed |
//! | [`one_copy`] | written to its destination, then a signal | 32 or 64 bytes at a time, cached or streamed |
//! | | | by the sender, or half by each rank; stored and not read |

mod cache_line;
#[cfg(target_arch = "x86_64")]
mod flagged;
mod one_copy;
mod ring;

use super::messages::{Half, Pattern, Patterned, Payload};
use crate::bench::Size;
use crate::bench::ranks::copy::Copy;
use crate::bench::ranks::links::Links;
use crate::bench::ranks::side::{Limit, Side};
use crate::bench::ranks::words::Words;
use anyhow::Result;
use cache_line::CacheLine;
use one_copy::{OneCopy, Share};
use ring::Ring;
use tilewire::Tensor;
use tilewire::link::{ShmTransport, Transport, Window};
use tilewire::transport::Rank;

/// Slots of the rings that are tried: bytes and number.
const SLOTS: [(usize, usize); 11] = [
    (16 << 10, 4),
    (16 << 10, 8),
    (32 << 10, 32),
    (32 << 10, 64),
    (64 << 10, 2),
    (64 << 10, 4),
    (64 << 10, 8),
    (64 << 10, 16),
    (64 << 10, 32),
    (256 << 10, 2),
    (256 << 10, 4),
];
/// How a chunk is copied into a slot and out of it. Streaming into it is for ranks far apart: the sender need not fetch
/// back the lines that the receiver has read.
const WAYS: [(&str, (Copy, Copy)); 4] = [
    ("", (Copy::Cached, Copy::Cached)),
    (", streamed", (Copy::Cached, Copy::Streamed)),
    (", streamed in", (Copy::Streamed, Copy::Cached)),
    (", streamed twice", (Copy::Streamed, Copy::Streamed)),
];
/// Below this, streamed results lose by far: the receiver would fetch data from memory that could have come from a
/// cache.
const STREAMED_FROM: usize = 512 << 10;

/// The memory that the sides of one contest share, so that none gets luckier pages.
pub struct Buffers<'l> {
    /// The transport of the limits.
    pub link: &'l ShmTransport,
    /// The transport of our sides.
    pub ours: &'l dyn Transport,
    /// The direction of messages.
    pub pattern: Pattern,
    words: Words<'l>,
    /// Memory private to this rank.
    pub private: Payload,
    /// Memory that the other rank can reach.
    pub sources: Window<u64>,
    /// More memory that the other rank can reach, to receive into.
    pub targets: Window<u64>,
}

impl<'l> Buffers<'l> {
    /// For messages of `bytes` bytes, rounded up to whole words. Collective.
    pub fn allocate(links: &'l Links, pattern: Pattern, bytes: usize) -> Result<Buffers<'l>> {
        let link = &links.shm;
        let len = bytes.div_ceil(8).max(1);
        // `flagged` reads and writes a unit's flag beyond the end of the message.
        let tensor = || Tensor::<u64>::zeros(len + 2).slice(0..len);
        Ok(Buffers {
            link,
            ours: links.ours(),
            pattern,
            words: Words::allocate(link)?,
            private: Payload { source: tensor(), target: tensor() },
            sources: Window::allocate(link, len)?,
            targets: Window::allocate(link, len)?,
        })
    }

    /// The payload of transfers into memory that the other rank reaches. The source is private unless that rank reads
    /// it itself.
    fn through_windows(&self, share: Share) -> Payload {
        let source = if share == Share::Halves { self.sources.tensor() } else { &self.private.source };
        Payload { source: source.clone(), target: self.targets.tensor().clone() }
    }

    fn rank(&self) -> usize {
        self.link.rank().index()
    }

    fn side<H: Half + 'l>(&self, name: String, limit: Limit, half: H, payload: Payload) -> Side<'l> {
        Side::limit(name, limit, Patterned::new(half, self.pattern, self.rank(), payload))
    }

    /// The limit of a single word.
    pub fn cache_line(&self) -> Side<'l> {
        let half = CacheLine::new(self.rank(), [self.words.next(), self.words.next()], self.private.clone());
        self.side("one word".into(), Limit::CacheLine, half, self.private.clone())
    }

    /// The limit of small messages. Collective.
    pub fn small_message(&self) -> Result<Vec<Side<'l>>> {
        let mut sides = vec![self.one_copy_side(Limit::SmallMessage, Copy::Cached, Share::Sender)];
        #[cfg(target_arch = "x86_64")]
        {
            let half = flagged::Flagged::new(self.link, self.private.clone())?;
            sides.push(self.side("flags in data".into(), Limit::SmallMessage, half, self.private.clone()));
        }
        Ok(sides)
    }

    /// Rings of several forms. Collective.
    pub fn two_copy(&self) -> Result<Vec<Side<'l>>> {
        let largest = SLOTS.iter().map(|(bytes, slots)| bytes * slots).max().unwrap_or(0);
        let staging = Window::<u64>::allocate(self.link, largest / 8)?;
        let mut sides = Vec::new();
        for &(slot, slots) in SLOTS.iter().filter(|(slot, _)| *slot <= self.private.bytes().max(16 << 10)) {
            for (name, copies) in WAYS {
                if copies.1 == Copy::Streamed && self.private.bytes() < STREAMED_FROM {
                    continue;
                }
                let words = [(); 2].map(|()| ring::Signals { tail: self.words.next(), head: self.words.next() });
                let half = Ring::new(self.link, words, &staging, (slot, slots), copies, self.private.clone());
                let name = format!("{} x {slots}{name}", Size(slot));
                sides.push(self.side(name, Limit::TwoCopy, half, self.private.clone()));
            }
        }
        Ok(sides)
    }

    /// One copy by the sender, in several forms.
    pub fn one_copy(&self) -> Vec<Side<'l>> {
        self.copies().map(|copy| self.one_copy_side(Limit::OneCopy, copy, Share::Sender)).collect()
    }

    /// One copy, half by each rank, in several forms. It is not a limit for judging others: the receiver finds its half
    /// of a repeated message in its own cache, except for the words that changed.
    pub fn half_each(&self) -> Vec<Side<'l>> {
        self.copies().map(|copy| self.one_copy_side(Limit::HalfEach, copy, Share::Halves)).collect()
    }

    /// Stores as many bytes as a message has where one copy writes them, and reads nothing. Not a limit to judge others
    /// by.
    pub fn stores_alone(&self) -> Vec<Side<'l>> {
        let streams = self.copies().filter(|copy| copy.streams());
        streams.map(|copy| self.one_copy_side(Limit::Stores, copy, Share::Nobody)).collect()
    }

    fn copies(&self) -> impl Iterator<Item = Copy> {
        let streamed = self.private.bytes() >= STREAMED_FROM;
        Copy::available().into_iter().filter(move |copy| streamed || !copy.streams())
    }

    fn one_copy_side(&self, limit: Limit, copy: Copy, share: Share) -> Side<'l> {
        let words = [(); 2].map(|()| one_copy::Signals {
            ready: self.words.next(),
            go: self.words.next(),
            done: self.words.next(),
            taken: self.words.next(),
        });
        let peer = Rank::new(1 - self.rank() as u32);
        let payload = self.through_windows(share);
        let half = OneCopy::new(self.rank(), words, (copy, share), payload.clone(), |window| {
            let window = if window == one_copy::Of::Source { &self.sources } else { &self.targets };
            window.peer(peer).expect("ranks of one machine reach each other").clone()
        });
        self.side(format!("{share}{}", copy.suffix()), limit, half, payload)
    }
}
