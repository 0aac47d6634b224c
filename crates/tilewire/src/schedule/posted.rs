//! The ops for a peer whose memory this rank cannot map. `put` fills an outbox and `deliver` posts it; `signal` and
//! `credit` are posts without bytes. Data from the peer arrives in this rank's own memory, as from any other peer.
//!
//! If `direct` copies an input unchanged, there is no outbox. The kernel posts the input itself, and a flush tells when
//! it has been read.

use super::peer::{NO_PACKETS, Reach, Spans, Word};
use crate::hook::{AnyValue, Block, Queue, Region, RoleCtx, Slots, Value, View};
use crate::ir::{Access, Part, Type};
use crate::tensor::Memory;
use crate::transport::proxy::{PostedRegion, PostedSource};
use crate::transport::{PeerEndpoint, PostedLines, PostedPeer, Protocol, There};

/// Ops over posts, for one kernel and one peer.
#[derive(Clone, Copy)]
pub struct PostedReach<'t> {
    bytes: Bytes<'t>,
    queue: Queue<'t>,
    peer: i64,
    lines: PostedLines,
    /// The slots this side waits for.
    takes: Slots<'t>,
    /// The slots that this side's flushes move, if it makes any.
    sent: Option<Slots<'t>>,
    starts: View<'t, u64>,
    /// The byte of the peer's region where the spans begin.
    first: i64,
}

/// The memory that a sender posts, or that a receiver reads.
#[derive(Clone, Copy)]
enum Bytes<'t> {
    /// The outbox of a sender, or the staging of a receiver.
    Own(Region<'t>),
    /// A sender's input, which is posted in place.
    Input(View<'t, u8>),
}

/// A part of a far peer's window, and the source of its bytes.
#[derive(Clone, Debug)]
pub struct PostedWindow {
    /// The window.
    pub region: PostedRegion,
    /// The first byte of the window that may be written.
    pub first: usize,
    /// The memory that is posted. It has as many bytes as may be written.
    pub source: PostedSource,
    /// True if the source is the input itself, false if it is an outbox that hooks fill.
    pub in_place: bool,
}

impl<'t> PostedReach<'t> {
    /// The sender's side.
    ///
    /// # Panics
    /// If the peer is not reached by posts, or the protocol cannot travel by posts. Transports refuse both earlier.
    pub fn sender(k: &Block<'t>, endpoint: &PeerEndpoint, protocol: Protocol) -> Self {
        let (posted, here) = (posted(endpoint), &endpoint.here.signals);
        let (part, takes) = match protocol {
            Protocol::Direct { .. } => (Part::Done, ("ready", &here.ready)),
            Protocol::Staged { .. } | Protocol::Bulk { .. } => (Part::Tail, ("head", &here.head)),
            Protocol::Packet => panic!("{NO_PACKETS}"),
        };
        let outbox = Bytes::Own(k.region("outbox", std::slice::from_ref(&posted.outbox)));
        Self::bind(k, endpoint, outbox, posted.queue_for(part), takes)
    }

    /// The sender's side of `direct`, into a part of the peer's window.
    ///
    /// # Panics
    /// If the peer is not reached by posts.
    pub fn into_window(k: &Block<'t>, endpoint: &PeerEndpoint, window: &PostedWindow) -> Self {
        let (posted, memory) = (posted(endpoint), std::slice::from_ref(window.source.memory()));
        let bytes = match window.in_place {
            true => Bytes::Input(k.buffer("posted input", memory, Access::In).bank(0)),
            false => Bytes::Own(k.region("outbox", memory)),
        };
        let queue = window.region.queue().clone().for_purpose(posted.sent.purpose().with_part(Part::Done));
        let ready = ("ready", &endpoint.here.signals.ready);
        let reach = Self::bind(k, endpoint, bytes, queue, ready);
        let sent = || k.slots("sent", std::slice::from_ref(&posted.sent), PeerEndpoint::SLOT_STRIDE);
        PostedReach { sent: window.in_place.then(sent), first: window.first as i64, ..reach }
    }

    /// The receiver's side.
    ///
    /// # Panics
    /// As [`sender`](Self::sender).
    pub fn receiver(k: &Block<'t>, endpoint: &PeerEndpoint, protocol: Protocol) -> Self {
        let (posted, here) = (posted(endpoint), &endpoint.here);
        let takes = match protocol {
            Protocol::Direct { .. } => ("done", &here.signals.done),
            Protocol::Staged { .. } | Protocol::Bulk { .. } => ("tail", &here.signals.tail),
            Protocol::Packet => panic!("{NO_PACKETS}"),
        };
        let staging = Bytes::Own(k.region("staging", std::slice::from_ref(&here.staging)));
        Self::bind(k, endpoint, staging, posted.queue_for(Part::Ready), takes)
    }

    fn bind(
        k: &Block<'t>,
        endpoint: &PeerEndpoint,
        bytes: Bytes<'t>,
        queue: crate::tensor::Queue,
        (name, takes): (&str, &Memory),
    ) -> Self {
        let posted = posted(endpoint);
        PostedReach {
            bytes,
            queue: k.queue("posts", queue),
            peer: i64::from(posted.peer),
            lines: posted.lines,
            takes: k.slots(name, std::slice::from_ref(takes), PeerEndpoint::SLOT_STRIDE),
            sent: None,
            starts: k.buffer("starts", std::slice::from_ref(&endpoint.starts), Access::InOut).bank(0),
            first: 0,
        }
    }

    /// The outbox or the staging.
    fn own(&self) -> Region<'t> {
        match self.bytes {
            Bytes::Own(region) => region,
            Bytes::Input(_) => panic!("an input that is posted as it is takes no puts"),
        }
    }

    /// The number of a word's control line in the peer's segment. The word of a flush is in this rank's own segment.
    fn line(&self, word: Word<'t>) -> Value<'t, i64> {
        let first = match word {
            Word::Tail(_) => self.lines.tail,
            Word::Head(_) => self.lines.head,
            Word::Ready(_) => self.lines.ready,
            Word::Done(_) => self.lines.done,
            Word::Sent(_) => self.lines.sent,
            Word::PacketHead(_) => panic!("{NO_PACKETS}"),
        };
        word.index() + first as i64
    }
}

fn posted(endpoint: &PeerEndpoint) -> &PostedPeer {
    match &endpoint.there {
        There::Posted(posted) => posted,
        There::Mapped(_) => panic!("posts go to peers whose memory is not mapped here"),
    }
}

impl<'t> Reach<'t> for PostedReach<'t> {
    fn put(&self, offset: Value<'t, i64>, x: AnyValue<'t>) {
        self.own().put_any(0, offset, x);
    }

    fn put_if(&self, condition: Value<'t, bool>, offset: Value<'t, i64>, x: AnyValue<'t>) {
        self.own().put_any_if(condition, 0, offset, x);
    }

    fn get(&self, offset: Value<'t, i64>, ty: Type) -> AnyValue<'t> {
        self.own().get_any(0, offset, ty)
    }

    fn deliver(&self, r: &RoleCtx<'t>, spans: Spans<'_, 't>, word: Word<'t>, x: Value<'t, u64>) {
        let source = match self.bytes {
            Bytes::Own(region) => region.bank(0),
            Bytes::Input(input) => input,
        };
        let there = |offset: Value<'t, i64>| if self.first == 0 { offset } else { offset + self.first };
        // A source names only its first byte, because its length may be known only when the kernel runs.
        let spans: Vec<_> =
            spans().into_iter().map(|span| (source.part(span.offset, 1), there(span.offset), span.bytes)).collect();
        r.deliver(self.queue, self.peer, &spans, self.line(word), x);
    }

    fn signal(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        r.post_signal(self.queue, self.peer, self.line(word), x);
    }

    fn credit(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        r.post_credit(self.queue, self.peer, self.line(word), x);
    }

    fn flush(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        r.post_flush(self.queue, self.peer, self.line(word), x);
    }

    fn wait(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        let slots = match word {
            Word::Sent(_) => self.sent.expect("only inputs that are posted as they are have been sent"),
            _ => self.takes,
        };
        r.wait(slots.slot(0, word.index()), x);
    }

    fn starts(&self) -> View<'t, u64> {
        self.starts
    }

    fn region(&self) -> Option<Region<'t>> {
        match self.bytes {
            Bytes::Own(region) => Some(region),
            Bytes::Input(_) => None,
        }
    }

    fn is_dense(&self) -> bool {
        true
    }
}
