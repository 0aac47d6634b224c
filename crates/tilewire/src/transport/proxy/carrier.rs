//! The trait of carriers, which move bytes and notices between ranks that do not share memory.

use super::error::ProxyError;
use crate::tensor::Memory;

/// A network, as the proxy of one rank sees it. A carrier must not lose, change or duplicate anything without reporting
/// an error. It may delay everything, and reorder all writes that are under way together.
///
/// It must keep one order: a write that starts after [`Event::Delivered`] of another write is reported to its receiver
/// after the other one. Receivers count arrivals and depend on this, since a line's next delivery starts when the
/// previous one is delivered (`wire.rs`). A provider whose two ends complete independently does not keep the order by
/// itself. The carrier over such a provider reports `Delivered` only when the receiver's end has the arrival.
///
/// No method has a default: a carrier that wraps another one forwards all of them.
pub trait Carrier: Send {
    /// Starts a write. Returns false if the carrier cannot take the write now; the proxy tries again later.
    fn write(&mut self, write: &Write<'_>) -> Result<bool, ProxyError>;

    /// Lets the ranks of `senders` write this memory of this rank, as one of its regions.
    fn open(&mut self, region: u16, memory: &Memory, senders: &[usize]) -> Result<(), ProxyError>;

    /// Closes a region that `open` has opened. Writes that start later are refused, and the sender's carrier reports an
    /// error. A write that is under way may still arrive: the carrier keeps the memory until none can.
    fn close(&mut self, region: u16);

    /// The bytes that the carriers of peers need to write to a region which this rank has opened. The caller carries
    /// them to the peers and passes them to `reach` there. They are empty if peers need nothing.
    fn place(&self, region: u16) -> Vec<u8>;

    /// Takes the bytes that a peer's `place` returned. Afterwards this rank may write to that region.
    fn reach(&mut self, peer: usize, region: u16, place: &[u8]) -> Result<(), ProxyError>;

    /// True if the carrier can read these bytes in place.
    fn reads(&self, memory: &Memory) -> bool;

    /// Lets the carrier read these bytes, until `give_back` has been called as often as `lend`.
    fn lend(&mut self, memory: &Memory) -> Result<(), ProxyError>;

    /// Takes one `lend` back. Writes under way may still read the bytes, or write them if they are part of a region
    /// that was closed, so the carrier keeps them alive until then.
    fn give_back(&mut self, memory: &Memory);

    /// The number of writes to a peer that were reported as delivered and that the peer's carrier has not confirmed. If
    /// there are any, this carrier asks the peer, and the number becomes 0 while both ranks poll. The peer's carrier
    /// confirms a write when it has accepted its notice: the step of the peer's proxy which polled it moves the slot.
    fn unconfirmed(&mut self, peer: usize) -> Result<usize, ProxyError>;

    /// Makes the bytes of all arrivals that `poll` has reported visible to the kernels of this rank. The proxy calls it
    /// once after a poll that reported arrivals, before it moves any slot for them. Nothing is to be done where the
    /// bytes are in host memory.
    ///
    /// A card that writes into memory of a device reports the arrival in host memory, after the bytes. But kernels of
    /// the device may see the bytes later than the host sees the report, and later than a slot that the host then
    /// moves. So the flush comes between the two: it covers all writes whose reports the host has seen, and the slots
    /// move after it. It also covers what arrived before and moved no slot: other parts of a delivery, and writes
    /// without a notice, which a later signal covers.
    fn flush_arrivals(&mut self) -> Result<(), ProxyError>;

    /// Adds the events since the last call. Also makes progress if the carrier has no thread of its own.
    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), ProxyError>;
}

/// Bytes for a peer, with an optional notice.
#[derive(Clone, Copy)]
pub struct Write<'w> {
    /// Names the write in [`Event::Delivered`].
    pub id: u64,
    /// The receiver.
    pub peer: usize,
    /// The bytes.
    pub source: Source<'w>,
    /// The number of the receiver's region for this sender that the bytes go to. Number 0 is staging, and all others
    /// are windows. Control lines are never written: words travel in notices (`wire.rs`).
    pub target: u16,
    /// The offset of the first byte in the target.
    pub offset: u64,
    /// The notice that the receiver's carrier reports after the bytes.
    pub notice: Option<u32>,
}

/// The bytes of a write.
#[derive(Clone, Copy)]
pub enum Source<'w> {
    /// In registered memory, which does not change until the receiver's carrier has reported the arrival of this write.
    /// For a write without a notice, it does not change until a later write, which starts when this one is delivered,
    /// has arrived. The receiver may then credit the memory, and a kernel may overwrite it before this carrier reports
    /// [`Event::Delivered`]. So a carrier that may read the bytes again after they have arrived must copy them.
    Memory(&'w Memory),
    /// In this slice, which the carrier copies before it returns.
    Inline(&'w [u8]),
}

impl Source<'_> {
    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Source::Memory(memory) => memory.bytes(),
            Source::Inline(bytes) => bytes.len(),
        }
    }
}

/// An event that a carrier reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A write from a peer has arrived with all its bytes.
    Arrived {
        /// The notice that it carried.
        notice: u32,
    },
    /// A write of this rank is in the receiver's memory. If the write has a notice, the next poll there reports the
    /// arrival, before any write that starts from now on.
    ///
    /// A carrier that keeps the order of writes to a peer, and that finds every loss, may report the event before: when
    /// a write to staging, or one without bytes, is *released*, which means that the carrier no longer reads its bytes.
    /// The write is then in the receiver's memory, and reported there, before any write that starts from now on. If it
    /// is lost, the receiver's carrier reports an error instead of any later arrival. [`Carrier::unconfirmed`] counts
    /// such writes until they are *confirmed*.
    Delivered {
        /// The number of the write.
        id: u64,
    },
}
