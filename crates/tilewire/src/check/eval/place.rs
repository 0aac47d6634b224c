//! From places and slots of a kernel to bytes of model memory, with bounds checks; and the ops on slots and queues.

use super::{Awaited, Blocked, Instance};
use crate::check::error::EvalError;
use crate::check::memory::{Bank, Bound, MemoryId, World};
use crate::check::network::{Descriptor, NetworkNotice, NetworkSpan};
use crate::check::observer::{Access, AccessKind, Observer, SlotRef, SlotSet, Wanted};
use crate::ir::matching::{self, Look};
use crate::ir::{Base, Entity, Inst, Notice, NoticeKind, Op, Param, ParamId, Place, PostSpan, Slot, Value};
use std::ops::Range;

impl Instance<'_> {
    /// The `bytes` bytes from place `at`, whose index counts units of `scale` bytes.
    pub(super) fn span(
        &self,
        inst: Inst,
        at: &Place,
        element: Option<usize>,
        scale: u64,
        bytes: u64,
    ) -> Result<(MemoryId, Range<u64>), EvalError> {
        let len = match (self.kernel.base_len(at.base), self.kernel.base_type(at.base)) {
            (Some(len), Some(ty)) => len * ty.size() as u64,
            _ => return Err(self.malformed(inst, "the base is not a buffer")),
        };
        let (memory, first) = match at.base {
            Base::Param(param) => {
                let Bound::Buffer(banks) = self.binding.get(param) else {
                    return Err(self.malformed(inst, "the parameter is not bound to a buffer"));
                };
                let (_, bank) = self.bank(inst, param, banks, at.bank)?;
                (bank.memory, bank.offset)
            }
            Base::Scratch(scratch) => match self.scratches[scratch.index()] {
                Some(memory) => (memory, 0),
                None => return Err(self.malformed(inst, "the scratch belongs to another role")),
            },
        };
        let index = self.value(at.index, element) as i64;
        let start = u64::try_from(index).ok().and_then(|index| index.checked_mul(scale));
        match start.and_then(|start| Some((start, start.checked_add(bytes)?))) {
            Some((start, end)) if end <= len => Ok((memory, first + start..first + end)),
            _ => {
                let by = self.location(inst);
                Err(EvalError::OutOfBounds { what: self.base_name(at.base), index, len: len / scale, by })
            }
        }
    }

    /// As `span` for `put` and `get`: the index counts bytes and must be a multiple of the value's size.
    pub(super) fn aligned_span(
        &self,
        inst: Inst,
        at: &Place,
        element: Option<usize>,
        size: u64,
    ) -> Result<(MemoryId, Range<u64>), EvalError> {
        let offset = self.value(at.index, element) as i64;
        if offset.rem_euclid(size as i64) != 0 {
            let what = self.base_name(at.base);
            return Err(EvalError::Misaligned { what, offset, size, by: self.location(inst) });
        }
        self.span(inst, at, element, 1, size)
    }

    /// Reports an access to the observer.
    pub(super) fn touch(
        &self,
        inst: Inst,
        element: Option<usize>,
        kind: AccessKind,
        memory: MemoryId,
        bytes: Range<u64>,
        observer: &mut dyn Observer,
    ) {
        let element = element.map(|element| element as u64);
        observer.access(self.who, &Access { inst, element, kind, memory, bytes });
    }

    pub(super) fn base_name(&self, base: Base) -> String {
        match base {
            Base::Param(param) => self.kernel.params[param].name().to_string(),
            Base::Scratch(scratch) => format!("scratch {scratch}"),
        }
    }

    fn bank<'b>(
        &self,
        inst: Inst,
        param: ParamId,
        banks: &'b [Bank],
        bank: Option<Value>,
    ) -> Result<(u32, &'b Bank), EvalError> {
        let index = bank.map_or(0, |bank| self.uniform(bank) as i64);
        match usize::try_from(index).ok().and_then(|index| banks.get(index)) {
            Some(bank) => Ok((index as u32, bank)),
            None => {
                let what = format!("the banks of {}", self.kernel.params[param].name());
                Err(EvalError::OutOfBounds { what, index, len: banks.len() as u64, by: self.location(inst) })
            }
        }
    }

    pub(super) fn slot(&self, inst: Inst, slot: &Slot) -> Result<SlotRef, EvalError> {
        let param = slot.slots;
        let (Some(Param::Slots { name, len, stride, .. }), Bound::Slots(banks)) =
            (self.kernel.params.get(param), self.binding.get(param))
        else {
            return Err(self.malformed(inst, "the parameter is not bound to slots"));
        };
        let (bank, place) = self.bank(inst, param, banks, slot.bank)?;
        let index = self.uniform(slot.index) as i64;
        match u64::try_from(index) {
            Ok(i) if i < *len => {
                let byte = place.offset + i * u64::from(*stride);
                Ok(SlotRef { param, bank, index: i, memory: place.memory, byte })
            }
            _ => {
                let (what, by) = (name.clone(), self.location(inst));
                Err(EvalError::OutOfBounds { what, index, len: *len, by })
            }
        }
    }

    /// The bytes of the slot, the packets or the atomics that an op may touch; `None` if unknown.
    pub(in crate::check) fn shared_spans(&self, inst: Inst) -> Option<Vec<(MemoryId, Range<u64>)>> {
        match &self.kernel.insts[inst].op {
            Op::Signal { slot, .. } | Op::SignalCredit { slot, .. } | Op::Wait { slot, .. } | Op::Test { slot, .. } => {
                let slot = self.slot(inst, slot).ok()?;
                Some(vec![(slot.memory, slot.byte..slot.byte + 8)])
            }
            Op::AtomicAdd { at, .. } | Op::PacketPut { at, .. } | Op::PacketGet { at, .. } => match at.base {
                Base::Param(param) => match self.binding.get(param) {
                    Bound::Buffer(banks) => {
                        Some(banks.iter().map(|bank| (bank.memory, bank.offset..bank.offset + bank.len)).collect())
                    }
                    _ => None,
                },
                Base::Scratch(_) => Some(Vec::new()),
            },
            _ => None,
        }
    }

    pub(super) fn wait(
        &self,
        inst: Inst,
        slot: &Slot,
        expected: u64,
        world: &World,
        observer: &mut dyn Observer,
    ) -> Result<Option<Blocked>, EvalError> {
        let slot = self.slot(inst, slot)?;
        let seen = self.count(inst, &slot, expected, world)?;
        if seen < expected {
            let on = Awaited::Slot { name: self.kernel.params[slot.param].name().to_string(), slot };
            return Ok(Some(Blocked { inst, at: self.kernel.line(inst).clone(), on, expected, seen }));
        }
        let operation = self.operation(slot.param, slot.bank);
        observer.wait(self.who, inst, &slot, &Wanted { value: expected, seen, operation });
        Ok(None)
    }

    /// The count of a slot; an error if it is the awaited one, but from another operation.
    pub(super) fn count(&self, inst: Inst, slot: &SlotRef, wanted: u64, world: &World) -> Result<u64, EvalError> {
        let seen = world.memories.read(slot.memory, slot.byte, 8);
        let Some(operation) = self.operation(slot.param, slot.bank) else { return Ok(seen) };
        if matching::look_at_word(seen, matching::word(wanted, operation)) == Look::Other {
            let what = format!("{}[{}]", self.kernel.params[slot.param].name(), slot.index);
            let [expected, seen] = [operation.into(), seen].map(matching::operation_of_word);
            return Err(EvalError::OtherOperation { what, expected, seen, by: self.location(inst) });
        }
        Ok(seen >> matching::COUNT_SHIFT)
    }

    /// The operation that words or flags in a bank carry, if any.
    pub(super) fn operation(&self, param: ParamId, bank: u32) -> Option<u16> {
        self.kernel.is_matched(param).then(|| self.binding.operation(param, bank as usize))
    }

    pub(super) fn signal(
        &self,
        inst: Inst,
        slot: &Slot,
        value: u64,
        credit: bool,
        world: &mut World,
        observer: &mut dyn Observer,
    ) -> Result<(), EvalError> {
        let slot = self.slot(inst, slot)?;
        let before = world.memories.read(slot.memory, slot.byte, 8);
        let operation = self.operation(slot.param, slot.bank);
        let (before, word) = match operation {
            Some(operation) => (before >> matching::COUNT_SHIFT, matching::word(value, operation)),
            None => (before, value),
        };
        observer.signal(self.who, inst, &slot, &SlotSet { before, value, credit, operation, posted_to: None });
        world.memories.write(slot.memory, slot.byte, 8, word);
        Ok(())
    }

    /// `Post`. Bounds are checked here, where the user's line is known, not at delivery.
    pub(super) fn post(&self, inst: Inst, world: &mut World, observer: &mut dyn Observer) -> Result<(), EvalError> {
        let Op::Post { queue, peer, span, notice } = &self.kernel.insts[inst].op else {
            return Err(self.malformed(inst, "not a post"));
        };
        let (queue, peer) = (*queue, self.uniform(*peer) as i64);
        let outside = |what: &str, index: i64, len: u64| {
            let what = format!("{what} of {}", self.kernel.params[queue].name());
            EvalError::OutOfBounds { what, index, len, by: self.location(inst) }
        };
        let Bound::Queue(routes) = self.binding.get(queue) else {
            return Err(self.malformed(inst, "the parameter is not bound to a queue"));
        };
        let of_rank = |rank: usize| routes.get(rank).and_then(Option::as_ref);
        let route = usize::try_from(peer).ok().and_then(of_rank);
        let route = route.ok_or_else(|| outside("the peers", peer, routes.len() as u64))?;
        let (peer, own, moves) = (peer as u32, of_rank(self.binding.rank as usize), route.moves.as_deref());
        let posted = |&PostSpan { src, dst, bytes }: &PostSpan| {
            let (dst, bytes) = (self.uniform(dst) as i64, self.uniform(bytes) as i64);
            let (Ok(first), Ok(bytes)) = (u64::try_from(dst), u64::try_from(bytes)) else {
                return Err(outside("the peer's region", dst.min(bytes), route.region.len));
            };
            let (memory, from) = self.span(inst, &src, None, 1, bytes)?;
            if first.checked_add(bytes).is_none_or(|end| end > route.region.len) {
                return Err(outside("the peer's region", dst, route.region.len));
            }
            let to = (route.region.memory, route.region.offset + first);
            Ok(NetworkSpan { from: (memory, from.start), to, bytes })
        };
        let told = |&Notice { slot, x, parts, kind }: &Notice| {
            // The slots of this rank are those that its own posts would move there.
            let (owner, route, whose) = match kind {
                NoticeKind::Flush => {
                    let (rank, ranks) = (self.binding.rank, routes.len() as u64);
                    (rank, own.ok_or_else(|| outside("the routes to itself", rank.into(), ranks))?, "this rank's slots")
                }
                NoticeKind::Data | NoticeKind::Credit => (peer, route, "the peer's slots"),
            };
            let of_route = moves.map(|slots| if kind == NoticeKind::Flush { &slots.flushed } else { &slots.moved });
            let (stride, index) = (u64::from(route.stride), self.uniform(slot) as i64);
            let start = u64::try_from(index).ok().and_then(|index| index.checked_mul(stride));
            match start {
                Some(start) if start.checked_add(8).is_some_and(|end| end <= route.slots.len) => {
                    if of_route.is_some_and(|ranges| !ranges.iter().any(|range| range.contains(&(index as u64)))) {
                        return Err(EvalError::ForeignSlot { what: whose.to_string(), index, by: self.location(inst) });
                    }
                    let (memory, byte) = (route.slots.memory, route.slots.offset + start);
                    let slot = SlotRef { param: queue, bank: owner, index: index as u64, memory, byte };
                    let operation = self.operation(queue, 0).filter(|_| kind == NoticeKind::Data);
                    Ok(NetworkNotice { slot, value: self.uniform(x), operation, parts, kind })
                }
                _ => Err(outside(whose, index, route.slots.len / stride.max(1))),
            }
        };
        let (span, notice) = (span.as_ref().map(posted).transpose()?, notice.as_ref().map(told).transpose()?);
        let descriptor = Descriptor { who: self.who, inst, queue, peer, span, notice };
        observer.post(&descriptor);
        world.network.post(descriptor, &mut world.memories, observer);
        Ok(())
    }
}
