//! A peer whose memory this rank cannot map: `put` fills an outbox, `deliver` posts it, `signal` and `credit` are posts
//! without bytes. What the peer sends arrives in this rank's own memory, as from any other.

use super::peer::{Reach, Spans, Word};
use crate::hook::{AnyValue, Block, Queue, Region, RoleCtx, Slots, Value, View};
use crate::ir::{Access, Part, Purpose, Type};
use crate::tensor::Memory;
use crate::transport::{PeerEndpoint, PostedLines, PostedPeer, Protocol, There};

/// Ops over posts, for one kernel and one peer.
#[derive(Clone, Copy)]
pub struct PostedReach<'t> {
    /// The outbox of a sender, the staging of a receiver.
    bytes: Region<'t>,
    queue: Queue<'t>,
    peer: i64,
    lines: PostedLines,
    /// The slots this side waits for.
    takes: Slots<'t>,
    starts: View<'t, u64>,
}

impl<'t> PostedReach<'t> {
    /// The sender's side.
    ///
    /// # Panics
    /// If no posts go to the peer, or the protocol cannot travel by posts: transports refuse it before.
    pub fn sender(k: &Block<'t>, endpoint: &PeerEndpoint, protocol: Protocol) -> Self {
        let (posted, here) = (posted(endpoint), &endpoint.here.signals);
        let (part, takes) = match protocol {
            Protocol::Direct { .. } => (Part::Done, ("ready", &here.ready)),
            Protocol::Staged { .. } | Protocol::Bulk { .. } => (Part::Tail, ("head", &here.head)),
            Protocol::Packet => panic!("packets do not travel by posts"),
        };
        let outbox = k.region("outbox", std::slice::from_ref(&posted.outbox));
        let purpose = endpoint.here.staging.purpose().turned().with_part(part);
        Self::bind(k, endpoint, outbox, (purpose, posted), takes)
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
            Protocol::Packet => panic!("packets do not travel by posts"),
        };
        let staging = k.region("staging", std::slice::from_ref(&here.staging));
        let purpose = here.staging.purpose().with_part(Part::Ready);
        Self::bind(k, endpoint, staging, (purpose, posted), takes)
    }

    fn bind(
        k: &Block<'t>,
        endpoint: &PeerEndpoint,
        bytes: Region<'t>,
        (purpose, posted): (Purpose, &PostedPeer),
        (name, takes): (&str, &Memory),
    ) -> Self {
        // Its notices carry the operation of this leg.
        let queue = posted.queue.clone().for_purpose(purpose);
        PostedReach {
            bytes,
            queue: k.queue("posts", queue),
            peer: i64::from(posted.peer),
            lines: posted.lines,
            takes: k.slots(name, std::slice::from_ref(takes), PeerEndpoint::SLOT_STRIDE),
            starts: k.buffer("starts", std::slice::from_ref(&endpoint.starts), Access::InOut).bank(0),
        }
    }

    /// The number of a word among the control lines of the peer's segment.
    fn line(&self, word: Word<'t>) -> Value<'t, i64> {
        let first = match word {
            Word::Tail(_) => self.lines.tail,
            Word::Head(_) => self.lines.head,
            Word::Ready(_) => self.lines.ready,
            Word::Done(_) => self.lines.done,
            Word::PacketHead(_) => panic!("packets do not travel by posts"),
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
        self.bytes.put_any(0, offset, x);
    }

    fn put_if(&self, condition: Value<'t, bool>, offset: Value<'t, i64>, x: AnyValue<'t>) {
        self.bytes.put_any_if(condition, 0, offset, x);
    }

    fn get(&self, offset: Value<'t, i64>, ty: Type) -> AnyValue<'t> {
        self.bytes.get_any(0, offset, ty)
    }

    fn deliver(&self, r: &RoleCtx<'t>, spans: Spans<'_, 't>, word: Word<'t>, x: Value<'t, u64>) {
        let outbox = self.bytes.bank(0);
        // The first byte of each; its number of bytes may be known only when the kernel runs.
        let spans: Vec<_> =
            spans().into_iter().map(|span| (outbox.part(span.offset, 1), span.offset, span.bytes)).collect();
        r.deliver(self.queue, self.peer, &spans, self.line(word), x);
    }

    fn signal(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        r.post_signal(self.queue, self.peer, self.line(word), x);
    }

    fn credit(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        r.post_credit(self.queue, self.peer, self.line(word), x);
    }

    fn wait(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        r.wait(self.takes.slot(0, word.index()), x);
    }

    fn packet_put(&self, _: Value<'t, i64>, _: Value<'t, u64>, _: Value<'t, u32>) {
        panic!("packets do not travel by posts");
    }

    fn packet_get(&self, _: Value<'t, i64>, _: Value<'t, u32>) -> Value<'t, u64> {
        panic!("packets do not travel by posts");
    }

    fn packet_clear(&self, _: Value<'t, i64>) {
        panic!("packets do not travel by posts");
    }

    fn starts(&self) -> View<'t, u64> {
        self.starts
    }

    fn region(&self) -> Option<Region<'t>> {
        Some(self.bytes)
    }

    fn is_dense(&self) -> bool {
        true
    }
}
