//! The transport seam: everything a schedule does to reach one peer. A transport implements [`Reach`]; a schedule holds
//! a [`Peer`].

use crate::hook::{AnyValue, Block, Lines, Region, RoleCtx, Slots, Value, View};
use crate::ir::scalar::Element;
use crate::ir::{Access, Part, SourceLine, Type};
use crate::tensor::Memory;
use crate::transport::{PeerEndpoint, PeerMemory, Protocol};
use std::rc::Rc;

pub(super) const NO_PACKETS: &str = "packets do not travel by posts";

/// How a transport reaches one peer: the only code of a kernel that differs from link to link. Implement it for your
/// own transport.
///
/// It is bound when the kernel is traced. One kernel may thus use loads and stores for one peer and a network for
/// another, and no engine decides anything at run time. Offsets count bytes in this sender's part of the receiver's
/// staging (in the window, for `direct`). Packets are numbered within this sender's part of the receiver's packets.
/// Values are untyped, so that schedules are compiled once. Code traced in these methods is reported at the line that
/// called [`Peer`].
pub trait Reach<'t> {
    /// Writes a value for the peer.
    fn put(&self, offset: Value<'t, i64>, x: AnyValue<'t>);

    /// Writes a value for the peer where `condition` holds.
    fn put_if(&self, condition: Value<'t, bool>, offset: Value<'t, i64>, x: AnyValue<'t>);

    /// Reads a value of type `ty` that the peer wrote here.
    fn get(&self, offset: Value<'t, i64>, ty: Type) -> AnyValue<'t>;

    /// Lets the peer have the bytes of all `spans`, which this role has just put, and then sets `word` of the peer to
    /// `x`. A load/store link has nothing to do for the bytes, and does not ask for the spans. A network starts moving
    /// them here. There are one to three spans.
    fn deliver(&self, r: &RoleCtx<'t>, spans: Spans<'_, 't>, word: Word<'t>, x: Value<'t, u64>);

    /// Sets `word` of the peer to `x`, after everything this role did before.
    fn signal(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>);

    /// Sets `word` of the peer to `x`, after the earlier reads of this role; publishes no data.
    fn credit(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>);

    /// Sets this rank's own `word` to `x` when the bytes of all earlier deliveries of this role to the peer have been
    /// read where they were. Only for links that post memory in place.
    ///
    /// # Panics
    /// On all other links: what they deliver they have read.
    fn flush(&self, _: &RoleCtx<'t>, _: Word<'t>, _: Value<'t, u64>) {
        panic!("this link has read what it delivers: there is nothing to flush");
    }

    /// Waits until this rank's `word` is at least `x`.
    fn wait(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>);

    /// Writes a packet for the peer. Only in an `each`.
    ///
    /// # Panics
    /// Unless a link implements it, as `packet_get` and `packet_clear`: posts carry no packets, and transfers to such
    /// peers are refused before.
    fn packet_put(&self, _index: Value<'t, i64>, _x: Value<'t, u64>, _flag: Value<'t, u32>) {
        panic!("{NO_PACKETS}");
    }

    /// Waits for a packet from the peer. Only in an `each`.
    fn packet_get(&self, _index: Value<'t, i64>, _flag: Value<'t, u32>) -> Value<'t, u64> {
        panic!("{NO_PACKETS}");
    }

    /// Clears the flag of a packet that the peer wrote here. Only in an `each`.
    fn packet_clear(&self, _index: Value<'t, i64>) {
        panic!("{NO_PACKETS}");
    }

    /// Starts a bulk copy of `bytes` bytes for the peer, from the start of `from`, which is scratch, to `offset`,
    /// counted as in `put`. The caller fences before it, and waits for it before delivering.
    fn bulk_put(&self, r: &RoleCtx<'t>, offset: Value<'t, i64>, from: View<'t, u8>, bytes: Value<'t, i64>) {
        match self.region() {
            Some(region) => r.bulk_copy(region.bank(0).part(offset, from.len()), from, bytes),
            // There is no memory that a copy could reach, so store byte by byte.
            None => r.each(bytes, |i| self.put(offset + i, from.load(i).into())),
        }
    }

    /// Starts a bulk copy of `bytes` bytes the peer wrote here, from `offset` to the start of `to`, which is scratch.
    fn bulk_get(&self, r: &RoleCtx<'t>, to: View<'t, u8>, offset: Value<'t, i64>, bytes: Value<'t, i64>) {
        match self.region() {
            Some(region) => r.bulk_copy(to, region.bank(0).part(offset, to.len()), bytes),
            None => r.each(bytes, |i| to.store(i, self.get(offset + i, Type::U8).typed::<u8>())),
        }
    }

    /// This rank's own counters for the peer: see [`PeerEndpoint::starts`].
    fn starts(&self) -> View<'t, u64>;

    /// The memory that `put` writes or `get` reads, if it is memory of the kernel. Hooks see it as their region.
    fn region(&self) -> Option<Region<'t>> {
        None
    }

    /// True if tiles in slots have no gaps between their rows, so that a delivery is exactly what was put. The same for
    /// all ranks of a transport.
    fn is_dense(&self) -> bool {
        false
    }
}

/// A peer, in a kernel being traced. Everything a schedule does to reach it goes through here to the [`Reach`] of its
/// transport, and is reported at the caller's line. It carries the brand of its build:
///
/// ```compile_fail
/// use tilewire::schedule::Peer;
/// fn shrinks<'long: 'short, 'short>(peer: Peer<'long>) -> Peer<'short> {
///     peer // invariant: a brand does not shrink
/// }
/// ```
#[derive(Clone)]
pub struct Peer<'t> {
    lines: Lines<'t>,
    reach: Rc<dyn Reach<'t> + 't>,
}

impl<'t> Peer<'t> {
    /// A peer for the kernel of this block, reached through `reach`.
    pub fn new(k: &Block<'t>, reach: impl Reach<'t> + 't) -> Peer<'t> {
        Peer { lines: k.lines(), reach: Rc::new(reach) }
    }

    /// Writes a value for the peer.
    #[track_caller]
    pub fn put<T: Element>(&self, offset: Value<'t, i64>, x: Value<'t, T>) {
        self.put_any(offset, x.into());
    }

    /// As [`put`](Self::put), for a value whose type is known only while tracing.
    #[track_caller]
    pub fn put_any(&self, offset: Value<'t, i64>, x: AnyValue<'t>) {
        self.on(SourceLine::caller(), &mut |reach| reach.put(offset, x));
    }

    /// As [`put_any`](Self::put_any), where `condition` holds.
    #[track_caller]
    pub fn put_any_if(&self, condition: Value<'t, bool>, offset: Value<'t, i64>, x: AnyValue<'t>) {
        self.on(SourceLine::caller(), &mut |reach| reach.put_if(condition, offset, x));
    }

    /// Reads a value the peer wrote here.
    #[track_caller]
    pub fn get<T: Element>(&self, offset: Value<'t, i64>) -> Value<'t, T> {
        self.get_any(offset, T::TYPE).typed()
    }

    /// As [`get`](Self::get), for a type that is known only while tracing.
    #[track_caller]
    pub fn get_any(&self, offset: Value<'t, i64>, ty: Type) -> AnyValue<'t> {
        let mut value = None;
        self.on(SourceLine::caller(), &mut |reach| value = Some(reach.get(offset, ty)));
        value.expect("it was read")
    }

    /// As [`Reach::deliver`].
    #[track_caller]
    pub fn deliver(&self, r: &RoleCtx<'t>, spans: Spans<'_, 't>, word: Word<'t>, x: Value<'t, u64>) {
        self.on(SourceLine::caller(), &mut |reach| reach.deliver(r, spans, word, x));
    }

    /// As [`Reach::signal`].
    #[track_caller]
    pub fn signal(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        self.on(SourceLine::caller(), &mut |reach| reach.signal(r, word, x));
    }

    /// As [`Reach::credit`].
    #[track_caller]
    pub fn credit(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        self.on(SourceLine::caller(), &mut |reach| reach.credit(r, word, x));
    }

    /// As [`Reach::flush`].
    #[track_caller]
    pub fn flush(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        self.on(SourceLine::caller(), &mut |reach| reach.flush(r, word, x));
    }

    /// As [`Reach::wait`].
    #[track_caller]
    pub fn wait(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        self.on(SourceLine::caller(), &mut |reach| reach.wait(r, word, x));
    }

    /// As [`Reach::packet_put`].
    #[track_caller]
    pub fn packet_put(&self, index: Value<'t, i64>, x: Value<'t, u64>, flag: Value<'t, u32>) {
        self.on(SourceLine::caller(), &mut |reach| reach.packet_put(index, x, flag));
    }

    /// As [`Reach::packet_get`].
    #[track_caller]
    pub fn packet_get(&self, index: Value<'t, i64>, flag: Value<'t, u32>) -> Value<'t, u64> {
        let mut value = None;
        self.on(SourceLine::caller(), &mut |reach| value = Some(reach.packet_get(index, flag)));
        value.expect("it was read")
    }

    /// As [`Reach::packet_clear`].
    #[track_caller]
    pub fn packet_clear(&self, index: Value<'t, i64>) {
        self.on(SourceLine::caller(), &mut |reach| reach.packet_clear(index));
    }

    /// As [`Reach::bulk_put`].
    #[track_caller]
    pub fn bulk_put(&self, r: &RoleCtx<'t>, offset: Value<'t, i64>, from: View<'t, u8>, bytes: Value<'t, i64>) {
        self.on(SourceLine::caller(), &mut |reach| reach.bulk_put(r, offset, from, bytes));
    }

    /// As [`Reach::bulk_get`].
    #[track_caller]
    pub fn bulk_get(&self, r: &RoleCtx<'t>, to: View<'t, u8>, offset: Value<'t, i64>, bytes: Value<'t, i64>) {
        self.on(SourceLine::caller(), &mut |reach| reach.bulk_get(r, to, offset, bytes));
    }

    /// As [`Reach::starts`].
    pub fn starts(&self) -> View<'t, u64> {
        self.reach.starts()
    }

    /// As [`Reach::region`].
    pub fn region(&self) -> Option<Region<'t>> {
        self.reach.region()
    }

    /// As [`Reach::is_dense`].
    pub fn is_dense(&self) -> bool {
        self.reach.is_dense()
    }

    /// A call through a vtable loses the caller's line, so it is recorded beforehand.
    fn on(&self, at: SourceLine, call: &mut dyn FnMut(&dyn Reach<'t>)) {
        self.lines.on_behalf_of(at, &mut || call(&*self.reach));
    }
}

/// The bytes of a delivery, computed only where a link asks for them.
pub type Spans<'s, 't> = &'s dyn Fn() -> Vec<Span<'t>>;

/// Bytes of a sender's staging.
#[derive(Clone, Copy)]
pub struct Span<'t> {
    /// The first byte.
    pub offset: Value<'t, i64>,
    /// Number of bytes.
    pub bytes: Value<'t, i64>,
}

/// A slot of a peer or of this rank, numbered as [`PeerEndpoint`] says: by block and slot, or by block alone.
#[derive(Clone, Copy)]
pub enum Word<'t> {
    /// The data of a step has arrived.
    Tail(Value<'t, i64>),
    /// A slot of staging is free.
    Head(Value<'t, i64>),
    /// Packets have been read.
    PacketHead(Value<'t, i64>),
    /// A window may be written.
    Ready(Value<'t, i64>),
    /// A window has been written.
    Done(Value<'t, i64>),
    /// Posted bytes have been read where they were. This rank's own.
    Sent(Value<'t, i64>),
}

/// A peer whose memory both ranks map: `put` is a store, `signal` a release store, `wait` an acquire poll.
#[derive(Clone, Copy)]
pub struct LoadStore<'t> {
    bytes: Region<'t>,
    packets: Region<'t>,
    /// The slots this side signals and those it waits for. A protocol has at most one of each.
    gives: Slots<'t>,
    takes: Slots<'t>,
    starts: View<'t, u64>,
    dense: bool,
}

fn mapped(endpoint: &PeerEndpoint) -> &PeerMemory {
    endpoint.mapped().expect("loads and stores need memory that is mapped here")
}

impl<'t> LoadStore<'t> {
    /// The sender's side: binds what a protocol needs to send to the peer of an endpoint. `window` is the peer's
    /// window, for `direct`.
    ///
    /// # Panics
    /// If the peer's memory is not mapped here.
    pub fn sender(k: &Block<'t>, endpoint: &PeerEndpoint, protocol: Protocol, window: Option<&Memory>) -> Self {
        let (PeerMemory { staging, packets, signals: there }, here) = (mapped(endpoint), &endpoint.here.signals);
        let (gives, takes) = match protocol {
            Protocol::Direct { .. } => (("done", &there.done), ("ready", &here.ready)),
            // Packets carry their flag and need no other signal, but a binding takes one anyway.
            Protocol::Packet => (("tail", &there.tail), ("packet head", &here.packet_head)),
            Protocol::Staged { .. } | Protocol::Bulk { .. } => (("tail", &there.tail), ("head", &here.head)),
        };
        let bytes = match window {
            Some(window) => {
                let purpose = staging.purpose().with_part(Part::Window);
                k.region("window", &[window.clone().for_purpose(purpose)])
            }
            None => k.region("staging of the peer", std::slice::from_ref(staging)),
        };
        Self::bind(k, bytes, ("packets of the peer", packets), gives, takes, &endpoint.starts)
    }

    /// The receiver's side.
    ///
    /// # Panics
    /// If the peer's memory is not mapped here.
    pub fn receiver(k: &Block<'t>, endpoint: &PeerEndpoint, protocol: Protocol) -> Self {
        let (PeerMemory { staging, packets, signals: here }, there) = (&endpoint.here, &mapped(endpoint).signals);
        let (gives, takes) = match protocol {
            Protocol::Direct { .. } => (("ready", &there.ready), ("done", &here.done)),
            Protocol::Packet => (("packet head", &there.packet_head), ("tail", &here.tail)),
            Protocol::Staged { .. } | Protocol::Bulk { .. } => (("head", &there.head), ("tail", &here.tail)),
        };
        let bytes = k.region("staging", std::slice::from_ref(staging));
        Self::bind(k, bytes, ("packets", packets), gives, takes, &endpoint.starts)
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
            dense: false,
        }
    }

    /// The same peer in a world where tiles in slots have no gaps: see [`Reach::is_dense`].
    pub fn dense(self, dense: bool) -> Self {
        LoadStore { dense, ..self }
    }
}

impl<'t> Word<'t> {
    pub(super) fn index(self) -> Value<'t, i64> {
        let (Word::Tail(k) | Word::Head(k) | Word::PacketHead(k) | Word::Ready(k) | Word::Done(k) | Word::Sent(k)) =
            self;
        k
    }
}

impl<'t> Reach<'t> for LoadStore<'t> {
    fn put(&self, offset: Value<'t, i64>, x: AnyValue<'t>) {
        self.bytes.put_any(0, offset, x);
    }

    fn put_if(&self, condition: Value<'t, bool>, offset: Value<'t, i64>, x: AnyValue<'t>) {
        self.bytes.put_any_if(condition, 0, offset, x);
    }

    fn get(&self, offset: Value<'t, i64>, ty: Type) -> AnyValue<'t> {
        self.bytes.get_any(0, offset, ty)
    }

    fn deliver(&self, r: &RoleCtx<'t>, _: Spans<'_, 't>, word: Word<'t>, x: Value<'t, u64>) {
        self.signal(r, word, x);
    }

    fn signal(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        r.signal(self.gives.slot(0, word.index()), x);
    }

    fn credit(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        r.signal_credit(self.gives.slot(0, word.index()), x);
    }

    fn wait(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        r.wait(self.takes.slot(0, word.index()), x);
    }

    fn packet_put(&self, index: Value<'t, i64>, x: Value<'t, u64>, flag: Value<'t, u32>) {
        self.packets.packet_put(0, index, x, flag);
    }

    fn packet_get(&self, index: Value<'t, i64>, flag: Value<'t, u32>) -> Value<'t, u64> {
        self.packets.packet_get(0, index, flag)
    }

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

    fn is_dense(&self) -> bool {
        self.dense
    }
}
