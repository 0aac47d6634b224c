//! The network between ranks as the language sees it: descriptors that are delivered later.

use super::memory::{Memories, MemoryId};
use super::observer::{Access, AccessKind, Actor, Observer, SlotRef, SlotSet};
use crate::ir::{Inst, NoticeKind, ParamId, matching};
use std::collections::{HashMap, VecDeque};

/// A request from a kernel to the proxy behind a queue. Bounds were checked when it was posted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// The poster.
    pub who: Actor,
    /// The `Post`.
    pub inst: Inst,
    /// The queue.
    pub queue: ParamId,
    /// Destination rank.
    pub peer: u32,
    /// Bytes to copy.
    pub span: Option<NetworkSpan>,
    /// The slot to set.
    pub notice: Option<NetworkNotice>,
}

/// Bytes to copy to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkSpan {
    /// First byte read.
    pub from: (MemoryId, u64),
    /// First byte written.
    pub to: (MemoryId, u64),
    /// The number of bytes.
    pub bytes: u64,
}

/// A slot of a peer to set, when all parts of the delivery have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkNotice {
    /// The slot at the peer; at the poster for a flush.
    pub slot: SlotRef,
    /// Its new value, without the operation.
    pub value: u64,
    /// The operation that its word carries, if any.
    pub operation: Option<u16>,
    /// The number of parts.
    pub parts: u8,
    /// What it says.
    pub kind: NoticeKind,
}

/// Deliveries that are not complete. By poster, queue, peer and slot, in the order of their first parts.
#[derive(Clone, Default, Debug)]
pub struct Arrivals(HashMap<(Actor, ParamId, u32, MemoryId, u64), VecDeque<Delivery>>);

/// A delivery, a signal or a credit.
#[derive(Clone, Debug)]
struct Delivery {
    notice: NetworkNotice,
    /// The last of its parts.
    inst: Inst,
    arrived: u8,
}

impl Descriptor {
    /// Carries out the descriptor. A notice for a slot that waits for an earlier delivery of its poster is held.
    pub fn deliver(&self, arrivals: &mut Arrivals, memories: &mut Memories, observer: &mut dyn Observer) {
        let Descriptor { who, inst, queue, peer, .. } = *self;
        observer.delivered(self);
        if let Some(NetworkSpan { from, to, bytes }) = self.span {
            for (kind, (memory, first)) in [(AccessKind::NetworkRead, from), (AccessKind::NetworkWrite, to)] {
                observer.access(who, &Access { inst, element: None, kind, memory, bytes: first..first + bytes });
            }
            let data = memories.bytes(from.0)[from.1 as usize..][..bytes as usize].to_vec();
            memories.bytes_mut(to.0)[to.1 as usize..][..bytes as usize].copy_from_slice(&data);
        }
        let Some(notice) = self.notice else { return };
        let line = arrivals.0.entry((who, queue, peer, notice.slot.memory, notice.slot.byte)).or_default();
        match line.iter_mut().find(|delivery| delivery.notice == notice && !delivery.is_complete()) {
            Some(delivery) => (delivery.arrived, delivery.inst) = (delivery.arrived + 1, inst),
            None => line.push_back(Delivery { notice, inst, arrived: 1 }),
        }
        while line.front().is_some_and(Delivery::is_complete) {
            let Some(delivery) = line.pop_front() else { return };
            delivery.tell((who, peer), memories, observer);
        }
    }
}

impl Delivery {
    fn is_complete(&self) -> bool {
        self.arrived >= self.notice.parts
    }

    /// Sets the slot.
    fn tell(&self, (who, peer): (Actor, u32), memories: &mut Memories, observer: &mut dyn Observer) {
        let NetworkNotice { slot, value, operation, kind, .. } = self.notice;
        let before = memories.read(slot.memory, slot.byte, 8);
        let (before, word) = match operation {
            Some(operation) => (before >> matching::COUNT_SHIFT, matching::word(value, operation)),
            None => (before, value),
        };
        // A flush shows as little as a credit; the observer knows of the post what it covers.
        let credit = kind != NoticeKind::Data;
        observer.signal(who, self.inst, &slot, &SlotSet { before, value, credit, operation, posted_to: Some(peer) });
        memories.write(slot.memory, slot.byte, 8, word);
    }
}

/// Decides when descriptors are delivered, and in which of the allowed orders.
pub trait Network {
    /// Takes a descriptor; may deliver it, or others, now.
    fn post(&mut self, descriptor: Descriptor, memories: &mut Memories, observer: &mut dyn Observer);

    /// Delivers a pending descriptor; `false` if there is none. Called when every instance is blocked or done.
    fn progress(&mut self, memories: &mut Memories, observer: &mut dyn Observer) -> bool;
}

/// Delivers every descriptor when it is posted: the order of posts is one of the allowed orders.
#[derive(Clone, Default, Debug)]
pub struct AtOnce {
    arrivals: Arrivals,
}

impl Network for AtOnce {
    fn post(&mut self, descriptor: Descriptor, memories: &mut Memories, observer: &mut dyn Observer) {
        descriptor.deliver(&mut self.arrivals, memories, observer);
    }

    fn progress(&mut self, _: &mut Memories, _: &mut dyn Observer) -> bool {
        false
    }
}
