//! What moves bytes and notices between ranks that do not share memory.

use super::error::ProxyError;
use crate::tensor::Memory;

/// A network, as the proxy of one rank sees it. It must not lose, change or duplicate anything without reporting an
/// error. It may delay everything, and reorder all writes that are under way together. One order it keeps: a write that
/// was started after [`Event::Delivered`] of another is reported to its receiver after the other. Receivers count
/// arrivals, and a line's next delivery starts when the last one is delivered (`wire.rs`). A provider whose two ends
/// complete independently does not keep it: its carrier reports `Delivered` when the receiver's end has the arrival.
pub trait Carrier: Send {
    /// Starts a write. Returns false if it cannot take one now: the proxy tries again later.
    fn write(&mut self, write: &Write<'_>) -> Result<bool, ProxyError>;

    /// Lets the ranks of `senders` write this memory of this rank, as one of its regions.
    fn open(&mut self, region: u16, memory: &Memory, senders: &[usize]) -> Result<(), ProxyError>;

    /// Ends that. When it returns, no write to the region is under way. Later ones are refused: their sender's carrier
    /// reports [`ProxyError::Region`].
    fn close(&mut self, region: u16);

    /// What carriers of peers need to write to a region that this rank has opened: their `reach` takes it, and the
    /// caller carries it there. Nothing, where they reach it anyway.
    fn place(&self, _region: u16) -> Vec<u8> {
        Vec::new()
    }

    /// Takes what a peer's `place` returned. Afterwards this rank may write to that region.
    fn reach(&mut self, _peer: usize, _region: u16, _place: &[u8]) -> Result<(), ProxyError> {
        Ok(())
    }

    /// True if it can read these bytes where they are.
    fn reads(&self, memory: &Memory) -> bool;

    /// Lets it read these bytes, until `give_back` is called as often.
    fn lend(&mut self, _memory: &Memory) -> Result<(), ProxyError> {
        Ok(())
    }

    /// Ends that. Writes that are under way may still read them: the carrier then keeps them alive.
    fn give_back(&mut self, _memory: &Memory) {}

    /// Adds what has happened since the last call. Also makes progress, where nobody else does.
    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), ProxyError>;
}

/// Bytes for a peer, with an optional notice.
#[derive(Clone, Copy)]
pub struct Write<'w> {
    /// Names the write in [`Event::Delivered`].
    pub id: u64,
    /// The receiver.
    pub peer: usize,
    /// Where the bytes are.
    pub source: Source<'w>,
    /// The receiver's memory they go to.
    pub target: Target,
    /// The first byte there.
    pub offset: u64,
    /// What the receiver's carrier reports after the bytes.
    pub notice: Option<u32>,
}

/// Where the bytes of a write are.
#[derive(Clone, Copy)]
pub enum Source<'w> {
    /// In registered memory, which stays as it is until the receiver's carrier has reported the arrival: of this write,
    /// or, if it has no notice, of a later one that starts when this one is delivered. The receiver may then give the
    /// memory back, and a kernel overwrites it, before this carrier reports [`Event::Delivered`]. A carrier that may
    /// read the bytes once more after they arrived copies them.
    Memory(&'w Memory),
    /// Here: the carrier copies them before it returns.
    Inline(&'w [u8]),
}

impl Source<'_> {
    /// How many.
    pub fn bytes(&self) -> usize {
        match self {
            Source::Memory(memory) => memory.bytes(),
            Source::Inline(bytes) => bytes.len(),
        }
    }
}

/// Memory of a receiver that writes may go to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// Its control lines.
    Lines,
    /// One of its regions for this sender. Number 0 is staging, and the others are windows.
    Region(u16),
}

/// What a carrier reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A write from a peer has arrived, its bytes included.
    Arrived {
        /// What it carried.
        notice: u32,
    },
    /// A write of this rank is in the receiver's memory. The next poll there reports its arrival, if it has a notice,
    /// and reports it before any write that starts from now on.
    Delivered {
        /// Which.
        id: u64,
    },
}
