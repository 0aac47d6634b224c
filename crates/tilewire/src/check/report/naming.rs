//! From parties, instructions and bytes to names.

use super::fault::{Event, Fault, Found, Moment};
use crate::check::memory::{Bank, Bound, MemoryId};
use crate::check::model::{
    Ahead, Deed, Detector, PartyId, PartyName, Promise, Seen, Sighting, Signalled, SlotKey, Touch, Untaken, writes,
};
use crate::check::observer::{AccessKind, Actor};
use crate::check::world::{BoundOp, Plan, Span, Stage, StreamId, StreamOp, Wrong};
use crate::ir::{Access, Entity, Inst, Param, SourceLine, inst_text};
use std::ops::Range;

/// Names the objects of one plan.
pub(in crate::check) struct Namer<'p> {
    pub plan: &'p Plan,
    pub stage: &'p Stage,
}

impl Namer<'_> {
    /// A fault of the model, with names.
    pub fn found(&self, detector: &Detector<'_>, sighting: &Sighting) -> Found {
        let prefix = sighting.prefix.iter().map(|&place| {
            let entry = detector.log.get(place);
            let event = self.event(detector, entry.party, entry.launch, entry.inst, None);
            let (rank, launch) = (event.rank, entry.launch);
            let slot = |slot: &crate::check::SlotRef| {
                self.slot(rank, launch, SlotKey { memory: slot.memory, byte: slot.byte })
            };
            let (deed, from) = match &entry.deed {
                Deed::Signal { slot: s, value, credit: true } => (format!("credits {} = {value}", slot(s)), None),
                Deed::Signal { slot: s, value, .. } => (format!("signals {} = {value}", slot(s)), None),
                Deed::Wait { slot: s, value, from } => {
                    let from = from.and_then(|from| sighting.prefix.iter().position(|&place| place == from));
                    (format!("waited for {} ≥ {value}", slot(s)), from)
                }
            };
            Moment { event, deed, from }
        });
        let prefix = prefix.collect();
        Found { fault: self.fault(detector, &sighting.seen), times: sighting.times, prefix, with_one_copy: false }
    }

    /// Elements that differ from a host's expectation.
    pub fn wrong(&self, wrong: &Wrong) -> Fault {
        let Wrong { rank, launch, span: (memory, bytes), element, expected, found, count, at } = wrong.clone();
        let (tensor, _) = self.bytes(rank, launch, memory, &bytes);
        Fault::WrongValue { rank, launch, tensor, element, expected, found, count, at }
    }

    fn fault(&self, detector: &Detector<'_>, seen: &Seen) -> Fault {
        let touch = |touch: &Touch| self.event(detector, touch.party, touch.launch, touch.inst, Some(touch.kind));
        let signal = |s: &Signalled| self.event(detector, s.party, s.launch, Some(s.inst), None);
        let slot = |event: &Event, key: SlotKey| self.slot(event.rank, event.launch, key);
        match seen {
            Seen::Race { conflict, first, second, memory, bytes } => {
                let (first, second) = (touch(first), touch(second));
                let (memory, bytes) = self.bytes(second.rank, second.launch, *memory, bytes);
                Fault::Race { conflict: *conflict, first, second, memory, bytes }
            }
            Seen::Promised { first, second, memory, bytes } => {
                let promised = if first.promise.is_some() { first } else { second };
                let rank = promised.rank;
                let input = promised.promise == Some(Access::In);
                let (memory, bytes) = self.bytes(rank, promised.launch, *memory, bytes);
                let (first, second) = (touch(first), touch(second));
                Fault::Promised { first, second, memory, bytes, input, rank }
            }
            Seen::Bound { promise, by, memory, bytes } => {
                let Promise { rank, launch, param, .. } = *promise;
                let kernel = self.plan.kernel(launch, rank);
                let role = kernel.roles.values().find_map(|role| kernel.sites.get(role.site));
                let at = kernel.declared.get(&param).or(role).cloned();
                let op = format!("{} is an input of the launch", kernel.params[param].name());
                let (party, block) = (Some("the kernel"), None);
                let owner = Event { rank, launch, block, role: None, copy: None, party, at, role_at: None, op };
                let (memory, bytes) = self.bytes(rank, launch, *memory, bytes);
                Fault::Promised { first: owner, second: touch(by), memory, bytes, input: true, rank }
            }
            Seen::OtherOperation { slot: key, party, launch, inst, expected, signal: s } => {
                let wait = self.event(detector, *party, *launch, Some(*inst), None);
                let (expected, seen) = (*expected, s.operation);
                Fault::OtherOperation { slot: slot(&wait, *key), wait, expected, signal: signal(s), seen }
            }
            Seen::Unwritten { by, memory, bytes } => {
                let by = touch(by);
                let (memory, bytes) = self.bytes(by.rank, by.launch, *memory, bytes);
                Fault::Unwritten { by, memory, bytes }
            }
            Seen::TwoWriters { slot: key, first, second } => {
                let (first, second) = (signal(first), signal(second));
                Fault::TwoWriters { slot: slot(&second, *key), first, second }
            }
            Seen::NotGrowing { slot: key, first, second } => {
                let (before, value) = (first.value, second.value);
                let (first, second) = (signal(first), signal(second));
                Fault::NotGrowing { slot: slot(&second, *key), first, before, second, value }
            }
            Seen::BelowStart { slot: key, before, signal: s } => {
                let event = signal(s);
                Fault::BelowStart { slot: slot(&event, *key), before: *before, signal: event, value: s.value }
            }
            Seen::Skipped { slot: key, party, launch, inst, expected, signal: s } => {
                let wait = self.event(detector, *party, *launch, Some(*inst), None);
                Fault::Skipped { slot: slot(&wait, *key), wait, expected: *expected, signal: signal(s), value: s.value }
            }
            Seen::StaleFlag { by, memory, byte, before, flag } => {
                let by = touch(by);
                let (memory, bytes) = self.bytes(by.rank, by.launch, *memory, &(*byte..*byte + 16));
                Fault::StaleFlag { by, memory, byte: bytes.start, before: *before, flag: *flag }
            }
            Seen::Ahead(Ahead { head, credit, tail, known }) => {
                let wait = detector.log.wait_for(credit.entry);
                let wait = wait.map(|entry| self.event(detector, entry.party, entry.launch, entry.inst, None));
                let event = signal(credit);
                let (slot, tail) = (slot(&event, *head), slot(&event, *tail));
                Fault::OverCredit { slot, credit: event, value: credit.value, tail, known: *known, wait }
            }
            Seen::Untaken(Untaken { by, memory, byte, flag }) => {
                let by = touch(by);
                let (memory, bytes) = self.bytes(by.rank, by.launch, *memory, &(*byte..*byte + 16));
                Fault::Untaken { by, memory, byte: bytes.start, flag: *flag }
            }
            Seen::NotReset { slot: key, signal: s } => {
                let event = signal(s);
                Fault::NotReset { slot: slot(&event, *key), write: event, value: s.value }
            }
            Seen::Leftover { slot: key, signal: s, waited } => {
                let event = signal(s);
                Fault::Leftover { slot: slot(&event, *key), signal: event, value: s.value, waited: *waited }
            }
        }
    }

    fn event(
        &self,
        detector: &Detector<'_>,
        party: PartyId,
        launch: u32,
        inst: Option<Inst>,
        kind: Option<AccessKind>,
    ) -> Event {
        let (who, party) = match detector.parties[party as usize].name {
            PartyName::Host { rank } => {
                let wrote = kind.is_some_and(writes);
                let op = if wrote { "writes an input" } else { "reads an output" };
                let (party, op) = (Some("the host"), op.to_string());
                return Event { rank, launch, block: None, role: None, copy: None, party, at: None, role_at: None, op };
            }
            PartyName::Stream(id) => return self.stream(id, launch, inst),
            PartyName::Role(who) => (who, None),
            PartyName::Bulk(who) => (who, Some("a bulk copy")),
            PartyName::Post(who) => (who, Some("a network put")),
            PartyName::Proxy(who) => (who, Some("the proxy")),
        };
        Event { party, ..self.actor(who, launch, inst) }
    }

    /// An event of a copy engine; its instructions are the operations of the stream.
    pub fn stream(&self, id: StreamId, launch: u32, inst: Option<Inst>) -> Event {
        let StreamId { rank, number } = id;
        let stream = self.plan.streams(launch, rank).get(number as usize);
        let op = stream.zip(inst).and_then(|(stream, inst)| stream.ops.get(inst.index()));
        let (at, op) = op.map_or((None, String::new()), |(op, at)| (Some(at.clone()), op.text()));
        Event {
            rank,
            launch,
            block: None,
            role: None,
            copy: None,
            party: Some("the copy engine"),
            at,
            role_at: None,
            op,
        }
    }

    /// An event of a role copy.
    pub fn actor(&self, who: Actor, launch: u32, inst: Option<Inst>) -> Event {
        let kernel = self.plan.kernel(launch, who.rank);
        let at = inst.map(|inst| kernel.line(inst).clone());
        let role_at = kernel.roles.get(who.role).and_then(|role| kernel.sites.get(role.site)).cloned();
        let role_at = role_at.filter(|role| at.as_ref().is_some_and(|at| at.file != role.file));
        Event {
            rank: who.rank,
            launch,
            block: Some(who.block),
            role: kernel.roles.get(who.role).map(|role| role.name.clone()),
            copy: Some(who.copy),
            party: None,
            at,
            role_at,
            op: inst.map_or_else(String::new, |inst| inst_text(kernel, inst)),
        }
    }

    /// The name of a slot in the kernel of this rank and launch.
    pub fn slot(&self, rank: u32, launch: u32, key: SlotKey) -> String {
        let named = self.bindings(rank, launch).find_map(|(rank, launch)| {
            let params = self.plan.kernel(launch, rank).params.values();
            let bound = &self.stage.bindings[launch as usize][rank as usize].params;
            params.zip(bound).find_map(|(param, bound)| match (param, bound) {
                (Param::Slots { name, stride, .. }, Bound::Slots(banks)) => {
                    let bank = banks.iter().position(|bank| holds(bank, key.memory, &(key.byte..key.byte + 8)))?;
                    Some(format!("{name}[{bank}][{}]", (key.byte - banks[bank].offset) / u64::from(*stride)))
                }
                _ => None,
            })
        });
        let named = named.or_else(|| self.word(key));
        named.unwrap_or_else(|| format!("the slot at byte {} of memory {}", key.byte, key.memory.0))
    }

    /// The name of bytes: the smallest buffer that contains them, of this rank and launch if it has one.
    fn bytes(&self, rank: u32, launch: u32, memory: MemoryId, bytes: &Range<u64>) -> (String, Range<u64>) {
        for (of, launch) in self.bindings(rank, launch) {
            let params = self.plan.kernel(launch, of).params.values();
            let bound = &self.stage.bindings[launch as usize][of as usize].params;
            let mut best: Option<(u64, String, u64)> = None;
            for (param, bound) in params.zip(bound) {
                let (Bound::Buffer(banks) | Bound::Slots(banks)) = bound else { continue };
                for (i, bank) in banks.iter().enumerate().filter(|(_, bank)| holds(bank, memory, bytes)) {
                    if best.as_ref().is_none_or(|best| bank.len < best.0) {
                        let bank_of = if banks.len() > 1 { format!("[{i}]") } else { String::new() };
                        let rank_of = if of == rank { String::new() } else { format!(" of rank {of}") };
                        best = Some((bank.len, format!("{}{bank_of}{rank_of}", param.name()), bank.offset));
                    }
                }
            }
            if let Some((_, name, offset)) = best {
                return (name, bytes.start - offset..bytes.end - offset);
            }
        }
        if let Some((name, offset)) = self.copied(memory, bytes) {
            return (name, bytes.start - offset..bytes.end - offset);
        }
        ("scratch".to_string(), bytes.clone())
    }

    /// Operations of all streams, with their bytes.
    fn stream_ops(&self) -> impl Iterator<Item = (&(StreamOp, SourceLine), &BoundOp)> {
        let plans = self.plan.launches.iter().flatten().flat_map(|job| &job.streams).flat_map(|stream| &stream.ops);
        plans.zip(self.stage.streams.iter().flatten().flatten().flatten())
    }

    /// The name of a word of a handshake.
    fn word(&self, key: SlotKey) -> Option<String> {
        self.stream_ops().find_map(|((op, _), bound)| match op {
            StreamOp::Write { word, .. } | StreamOp::Wait { word, .. } => {
                let (memory, bytes) = bound.word()?;
                (*memory == key.memory && bytes.start == key.byte).then(|| word.name.clone())
            }
            StreamOp::Copy { .. } => None,
        })
    }

    /// The name of bytes that only a copy engine touches, and their start.
    fn copied(&self, memory: MemoryId, bytes: &Range<u64>) -> Option<(String, u64)> {
        let holds = |span: &Span| span.0 == memory && span.1.start <= bytes.start && bytes.end <= span.1.end;
        self.stream_ops().find_map(|((_, at), bound)| match bound {
            BoundOp::Copy { to, .. } if holds(to) => Some((format!("the destination of the copy at {at}"), to.1.start)),
            BoundOp::Copy { from, .. } if holds(from) => {
                Some((format!("the source of the copy at {at}"), from.1.start))
            }
            _ => None,
        })
    }

    /// Every (rank, launch), this one first.
    fn bindings(&self, rank: u32, launch: u32) -> impl Iterator<Item = (u32, u32)> {
        let launches = self.plan.launches() as u32;
        let launch = launch.min(launches.saturating_sub(1));
        let all = (0..self.plan.ranks()).flat_map(move |rank| (0..launches).map(move |launch| (rank, launch)));
        std::iter::once((rank, launch)).chain(all)
    }
}

pub(super) fn holds(bank: &Bank, memory: MemoryId, bytes: &Range<u64>) -> bool {
    bank.memory == memory && bank.offset <= bytes.start && bytes.end <= bank.offset + bank.len
}
