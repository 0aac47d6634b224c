//! The events of a run, as a checker sees them.

use super::memory::MemoryId;
use super::network::Descriptor;
use crate::ir::{BulkDone, Inst, ParamId, RoleId};
use std::ops::Range;

/// The originator of an event: one copy of one role of one block of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Actor {
    /// The rank.
    pub rank: u32,
    /// The block.
    pub block: u32,
    /// The role.
    pub role: RoleId,
    /// The copy of the role.
    pub copy: u32,
}

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessKind {
    /// A plain read.
    Read,
    /// A plain write.
    Write,
    /// A read-modify-write that is atomic among its like.
    Atomic,
    /// A slot or a word that a wait or a test polls.
    Look,
    /// One packet, taken when both halves carried the flag.
    PacketRead,
    /// One packet.
    PacketWrite,
    /// The source of a bulk copy: happens at some time between the copy and the wait that covers it.
    BulkRead,
    /// The destination of a bulk copy: happens at some time between the copy and the wait that covers it.
    BulkWrite,
    /// The source of a network post: happens at some time after it.
    NetworkRead,
    /// The destination of a network post: happens at some time after it.
    NetworkWrite,
}

/// One access to memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// The instruction.
    pub inst: Inst,
    /// The element of the enclosing `each` (row-major), `None` outside one.
    pub element: Option<u64>,
    /// The kind of access.
    pub kind: AccessKind,
    /// The piece of memory.
    pub memory: MemoryId,
    /// The bytes of it.
    pub bytes: Range<u64>,
}

/// A signal slot, both as the kernel names it and as bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotRef {
    /// The `Slots` parameter (the `Queue` if the proxy sets it).
    pub param: ParamId,
    /// Bank (for a queue: the peer).
    pub bank: u32,
    /// Index in the bank.
    pub index: u64,
    /// Piece of memory that holds it: two names of one counter agree here and in `byte`.
    pub memory: MemoryId,
    /// First of its eight bytes.
    pub byte: u64,
}

/// A slot is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotSet {
    /// The count it had.
    pub before: u64,
    /// The count it gets.
    pub value: u64,
    /// True if it publishes no data.
    pub credit: bool,
    /// The operation that its word carries, if any.
    pub operation: Option<u16>,
    /// The rank that its notice was posted to, if it is one.
    pub posted_to: Option<u32>,
}

/// A slot is polled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The least count that is enough.
    pub value: u64,
    /// The count it has.
    pub seen: u64,
    /// The operation of the polling launch, if its words carry one.
    pub operation: Option<u16>,
}

/// Sees every event, in the order in which they happen. Every method does nothing by default.
#[allow(unused_variables)] // the names are documentation
pub trait Observer {
    /// Bytes are touched.
    fn access(&mut self, who: Actor, access: &Access) {}
    /// A packet is written over one that carried `before` (the larger flag of its halves; 0: empty).
    fn packet(&mut self, who: Actor, inst: Inst, memory: MemoryId, byte: u64, before: u64, flag: u64) {}
    /// An atomic changes the bytes it has touched from `before` to `after`.
    fn atomic(&mut self, who: Actor, access: &Access, before: u64, after: u64) {}
    /// A slot is set.
    fn signal(&mut self, who: Actor, inst: Inst, slot: &SlotRef, set: &SlotSet) {}
    /// A wait is over.
    fn wait(&mut self, who: Actor, inst: Inst, slot: &SlotRef, wanted: &Wanted) {}
    /// A slot is tested.
    fn test(&mut self, who: Actor, inst: Inst, slot: &SlotRef, wanted: &Wanted) {}
    /// A barrier of the role copy (also the one at the end of an `each`).
    fn barrier(&mut self, who: Actor, inst: Inst) {}
    /// An `each` over `elements` elements begins.
    fn each(&mut self, who: Actor, inst: Inst, elements: u64) {}
    /// A proxy fence.
    fn proxy_fence(&mut self, who: Actor, inst: Inst) {}
    /// A bulk copy starts; it is number `copy` of its role copy, from 0. Its accesses are reported when they happen.
    fn bulk_copy(&mut self, who: Actor, inst: Inst, copy: u64) {}
    /// A bulk wait is over: the copies before number `covered` are done to the extent of `done`.
    fn bulk_wait(&mut self, who: Actor, inst: Inst, covered: u64, done: BulkDone) {}
    /// A descriptor is handed to the network.
    fn post(&mut self, descriptor: &Descriptor) {}
    /// The network delivers a descriptor; its accesses or its signal follow.
    fn delivered(&mut self, descriptor: &Descriptor) {}
    /// The role copy has run to its end.
    fn done(&mut self, who: Actor) {}
}

/// An observer that ignores everything.
#[derive(Clone, Copy, Default, Debug)]
pub struct Unobserved;

impl Observer for Unobserved {}
