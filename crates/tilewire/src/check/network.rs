//! The network between ranks as the language sees it: descriptors that are delivered later.

use super::memory::{Memories, MemoryId};
use super::observer::{Access, AccessKind, Actor, Observer, SlotRef, SlotSet};
use crate::ir::{Inst, ParamId};

/// A request from a kernel to the proxy behind a queue. Bounds were checked when it was posted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Descriptor {
    /// Copy bytes to a peer.
    Write {
        /// The poster.
        who: Actor,
        /// The `Post`.
        inst: Inst,
        /// The queue.
        queue: ParamId,
        /// Destination rank.
        peer: u32,
        /// First byte read.
        from: (MemoryId, u64),
        /// First byte written.
        to: (MemoryId, u64),
        /// The number of bytes.
        bytes: u64,
    },
    /// Set a slot of a peer after the data of earlier posts of the same actor to it.
    Signal {
        /// The poster.
        who: Actor,
        /// The `PostSignal`.
        inst: Inst,
        /// The queue.
        queue: ParamId,
        /// Destination rank.
        peer: u32,
        /// The slot at the peer.
        slot: SlotRef,
        /// Its new value.
        value: u64,
    },
}

impl Descriptor {
    /// Carries out the descriptor.
    pub fn deliver(&self, memories: &mut Memories, observer: &mut dyn Observer) {
        observer.delivered(self);
        match *self {
            Descriptor::Write { who, inst, from, to, bytes, .. } => {
                for (kind, (memory, first)) in [(AccessKind::NetworkRead, from), (AccessKind::NetworkWrite, to)] {
                    observer.access(who, &Access { inst, element: None, kind, memory, bytes: first..first + bytes });
                }
                let data = memories.bytes(from.0)[from.1 as usize..][..bytes as usize].to_vec();
                memories.bytes_mut(to.0)[to.1 as usize..][..bytes as usize].copy_from_slice(&data);
            }
            Descriptor::Signal { who, inst, slot, value, .. } => {
                let before = memories.read(slot.memory, slot.byte, 8);
                observer.signal(who, inst, &slot, &SlotSet { before, value, credit: false, operation: None });
                memories.write(slot.memory, slot.byte, 8, value);
            }
        }
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
#[derive(Clone, Copy, Default, Debug)]
pub struct AtOnce;

impl Network for AtOnce {
    fn post(&mut self, descriptor: Descriptor, memories: &mut Memories, observer: &mut dyn Observer) {
        descriptor.deliver(memories, observer);
    }

    fn progress(&mut self, _: &mut Memories, _: &mut dyn Observer) -> bool {
        false
    }
}
