//! The transport seam: everything a schedule does to reach one peer.

use crate::hook::{Block, Region, RoleCtx, Slots, Value, View};
use crate::ir::Access;
use crate::ir::scalar::Element;
use crate::tensor::Memory;
use crate::transport::{PeerEndpoint, Protocol, Signals};

/// What reaches one peer from a kernel, bound where the kernel is traced: so one kernel may use loads and stores for one peer and
/// a network for another, and no engine decides anything while it runs.
///
/// Implement it for a transport of your own. Offsets count bytes of this sender's part of the receiver's staging (of the window, for
/// `direct`); packets are numbered in this sender's part of the receiver's packets.
pub trait Ops<'t> {
    /// Writes a value for the peer.
    #[track_caller]
    fn put<T: Element>(&self, offset: Value<'t, i64>, x: Value<'t, T>);

    /// Writes a value for the peer where `condition` holds.
    #[track_caller]
    fn put_if<T: Element>(&self, condition: Value<'t, bool>, offset: Value<'t, i64>, x: Value<'t, T>);

    /// Reads a value the peer wrote here.
    #[track_caller]
    fn get<T: Element>(&self, offset: Value<'t, i64>) -> Value<'t, T>;

    /// Lets the peer have the bytes of `span`, which this role has just put, and then sets `word` of the peer to `x`. A link of loads
    /// and stores has nothing to do for the bytes; a network starts moving them here.
    #[track_caller]
    fn deliver(&self, r: &RoleCtx<'t>, span: Span<'t>, word: Word<'t>, x: Value<'t, u64>);

    /// Sets `word` of the peer to `x`, after everything this role did before.
    #[track_caller]
    fn signal(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>);

    /// Sets `word` of the peer to `x`, after the earlier reads of this role; publishes no data.
    #[track_caller]
    fn credit(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>);

    /// Waits until this rank's `word` is at least `x`.
    #[track_caller]
    fn wait(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>);

    /// Writes a packet for the peer. Only in an `each`.
    #[track_caller]
    fn packet_put(&self, index: Value<'t, i64>, x: Value<'t, u64>, flag: Value<'t, u32>);

    /// Waits for a packet of the peer. Only in an `each`.
    #[track_caller]
    fn packet_get(&self, index: Value<'t, i64>, flag: Value<'t, u32>) -> Value<'t, u64>;

    /// Makes a packet of the peer, here, one without a flag. Only in an `each`.
    #[track_caller]
    fn packet_clear(&self, index: Value<'t, i64>);

    /// Starts a bulk copy of `bytes` bytes for the peer, from the start of `from`, which is scratch, to `offset` as `put` counts it. The
    /// caller fences before it, and waits for it before it delivers.
    #[track_caller]
    fn bulk_put(&self, r: &RoleCtx<'t>, offset: Value<'t, i64>, from: View<'t, u8>, bytes: Value<'t, i64>) {
        match self.region() {
            Some(region) => r.bulk_copy(region.bank(0).part(offset, from.len()), from, bytes),
            // No memory that a copy could reach: byte by byte.
            None => r.each(bytes, |i| self.put(offset + i, from.load(i))),
        }
    }

    /// Starts a bulk copy of `bytes` bytes the peer wrote here, from `offset` to the start of `to`, which is scratch.
    #[track_caller]
    fn bulk_get(&self, r: &RoleCtx<'t>, to: View<'t, u8>, offset: Value<'t, i64>, bytes: Value<'t, i64>) {
        match self.region() {
            Some(region) => r.bulk_copy(to, region.bank(0).part(offset, to.len()), bytes),
            None => r.each(bytes, |i| to.store(i, self.get::<u8>(offset + i))),
        }
    }

    /// This rank's own counters for the peer: see [`PeerEndpoint::starts`].
    fn starts(&self) -> View<'t, u64>;

    /// The memory that `put` writes or `get` reads, where it is memory of the kernel: what a hook sees as its region.
    fn region(&self) -> Option<Region<'t>> {
        None
    }
}

/// Bytes of a sender's staging.
#[derive(Clone, Copy)]
pub struct Span<'t> {
    /// The first.
    pub offset: Value<'t, i64>,
    /// How many.
    pub bytes: Value<'t, i64>,
}

/// A slot of a peer or of this rank, numbered as [`PeerEndpoint`] says: by block and slot, or by block alone.
#[derive(Clone, Copy)]
pub enum Word<'t> {
    /// Data of a step is there.
    Tail(Value<'t, i64>),
    /// A slot of staging is free.
    Head(Value<'t, i64>),
    /// Packets are read.
    PacketHead(Value<'t, i64>),
    /// A window may be written.
    Ready(Value<'t, i64>),
    /// A window has been written.
    Done(Value<'t, i64>),
}

/// [`Ops`] over memory that both ranks map: `put` is a store, `signal` a release store, `wait` an acquire poll.
#[derive(Clone, Copy)]
pub struct LoadStore<'t> {
    bytes: Region<'t>,
    packets: Region<'t>,
    /// What this side signals and what it waits for. A protocol has at most one of each.
    gives: Slots<'t>,
    takes: Slots<'t>,
    starts: View<'t, u64>,
}

impl<'t> LoadStore<'t> {
    /// The sender's side: binds what a protocol needs to send to the peer of an endpoint. `window` is the peer's, for `direct`.
    pub fn sender(k: &Block<'t>, endpoint: &PeerEndpoint, protocol: Protocol, window: Option<&Memory>) -> Self {
        let Signals { tail, head, packet_head, ready, done } = &endpoint.send;
        let (gives, takes) = match protocol {
            Protocol::Direct { .. } => (("done", done), ("ready", ready)),
            // What travels with its flag needs no other signal; a binding takes one all the same.
            Protocol::Packet => (("tail", tail), ("packet head", packet_head)),
            Protocol::Staged { .. } | Protocol::Bulk { .. } => (("tail", tail), ("head", head)),
        };
        let bytes = match window {
            Some(window) => k.region("window", std::slice::from_ref(window)),
            None => k.region("staging of the peer", std::slice::from_ref(&endpoint.send_dst)),
        };
        Self::bind(k, bytes, ("packets of the peer", &endpoint.send_packets), gives, takes, &endpoint.starts)
    }

    /// The receiver's side.
    pub fn receiver(k: &Block<'t>, endpoint: &PeerEndpoint, protocol: Protocol) -> Self {
        let Signals { tail, head, packet_head, ready, done } = &endpoint.recv;
        let (gives, takes) = match protocol {
            Protocol::Direct { .. } => (("ready", ready), ("done", done)),
            Protocol::Packet => (("packet head", packet_head), ("tail", tail)),
            Protocol::Staged { .. } | Protocol::Bulk { .. } => (("head", head), ("tail", tail)),
        };
        let bytes = k.region("staging", std::slice::from_ref(&endpoint.recv_src));
        Self::bind(k, bytes, ("packets", &endpoint.recv_packets), gives, takes, &endpoint.starts)
    }

    fn bind(
        k: &Block<'t>,
        bytes: Region<'t>,
        packets: (&str, &Memory),
        gives: (&str, &Memory),
        takes: (&str, &Memory),
        starts: &Memory,
    ) -> Self {
        let slots =
            |(name, memory): (&str, &Memory)| k.slots(name, std::slice::from_ref(memory), PeerEndpoint::SLOT_STRIDE);
        LoadStore {
            bytes,
            packets: k.region(packets.0, std::slice::from_ref(packets.1)),
            gives: slots(gives),
            takes: slots(takes),
            starts: k.buffer("starts", std::slice::from_ref(starts), Access::InOut).bank(0),
        }
    }
}

impl<'t> Word<'t> {
    fn index(self) -> Value<'t, i64> {
        let (Word::Tail(k) | Word::Head(k) | Word::PacketHead(k) | Word::Ready(k) | Word::Done(k)) = self;
        k
    }
}

impl<'t> Ops<'t> for LoadStore<'t> {
    #[track_caller]
    fn put<T: Element>(&self, offset: Value<'t, i64>, x: Value<'t, T>) {
        self.bytes.put(0, offset, x);
    }

    #[track_caller]
    fn put_if<T: Element>(&self, condition: Value<'t, bool>, offset: Value<'t, i64>, x: Value<'t, T>) {
        self.bytes.put_if(condition, 0, offset, x);
    }

    #[track_caller]
    fn get<T: Element>(&self, offset: Value<'t, i64>) -> Value<'t, T> {
        self.bytes.get(0, offset)
    }

    #[track_caller]
    fn deliver(&self, r: &RoleCtx<'t>, _: Span<'t>, word: Word<'t>, x: Value<'t, u64>) {
        self.signal(r, word, x);
    }

    #[track_caller]
    fn signal(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        r.signal(self.gives.slot(0, word.index()), x);
    }

    #[track_caller]
    fn credit(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        r.signal_credit(self.gives.slot(0, word.index()), x);
    }

    #[track_caller]
    fn wait(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        r.wait(self.takes.slot(0, word.index()), x);
    }

    #[track_caller]
    fn packet_put(&self, index: Value<'t, i64>, x: Value<'t, u64>, flag: Value<'t, u32>) {
        self.packets.packet_put(0, index, x, flag);
    }

    #[track_caller]
    fn packet_get(&self, index: Value<'t, i64>, flag: Value<'t, u32>) -> Value<'t, u64> {
        self.packets.packet_get(0, index, flag)
    }

    #[track_caller]
    fn packet_clear(&self, index: Value<'t, i64>) {
        for half in [0, 8] {
            self.packets.put(0, index * 16 + half, 0u64);
        }
    }

    fn starts(&self) -> View<'t, u64> {
        self.starts
    }

    fn region(&self) -> Option<Region<'t>> {
        Some(self.bytes)
    }
}
