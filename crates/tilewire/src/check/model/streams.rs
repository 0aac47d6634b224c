//! A copy engine in the model: a party in the order of its stream, with words that it writes and waits for.

use super::clock::PartyId;
use super::detector::Detector;
use super::log::Deed;
use super::party::PartyName;
use super::shadow::Elements;
use super::sighting::Seen;
use super::slots::{Signalled, SlotKey};
use crate::check::memory::MemoryId;
use crate::check::observer::{AccessKind, SlotRef};
use crate::check::world::{Span, StreamId};
use crate::ir::{Entity, Inst, ParamId, Scope};

/// Operations of a stream have an `Inst` in the model: their number in the stream.
impl Detector<'_> {
    /// The party of a stream.
    pub(super) fn stream(&mut self, id: StreamId) -> PartyId {
        if let Some(&party) = self.streams.get(&id) {
            return party;
        }
        let party = self.join(PartyName::Stream(id));
        self.streams.insert(id, party);
        party
    }

    /// A stream of a launch begins with its host's knowledge.
    pub fn begin_stream(&mut self, id: StreamId, launch: u32) {
        self.flush();
        let host = self.hosts[id.rank as usize];
        let told = self.parties[host as usize].release(host);
        let id = self.stream(id);
        let party = &mut self.parties[id as usize];
        party.knowledge.join(&told);
        party.tick(id);
        party.launch = launch;
    }

    /// A copy: read, then written, both over before the next operation.
    pub fn stream_copy(&mut self, id: StreamId, inst: Inst, from: &Span, to: &Span) {
        self.flush();
        self.deeds += 1;
        let party = self.stream(id);
        for (kind, (memory, bytes)) in [(AccessKind::Read, from), (AccessKind::Write, to)] {
            let touch = self.touched(party, Some(inst), kind, Elements::Outside);
            if kind == AccessKind::Write && self.overwritten(*memory, bytes) {
                self.slot_written_by.get_or_insert("a copy engine");
            }
            self.check(*memory, bytes.clone(), touch);
        }
    }

    /// A word is set: release.
    pub fn stream_write(&mut self, id: StreamId, inst: Inst, at: (MemoryId, u64), before: u64, value: u64) {
        self.flush();
        self.deeds += 1;
        let (party, slot) = (self.stream(id), word(at));
        self.set.push(at);
        self.word_touch(party, inst, at, AccessKind::Atomic);
        let knowledge = self.parties[party as usize].knowledge.clone();
        let (epoch, launch) = (self.parties[party as usize].epoch, self.parties[party as usize].launch);
        let published = self.parties[party as usize].release(party);
        let entry = self.log.push(party, launch, epoch, Some(inst), Deed::Signal { slot, value, credit: false });
        let (credit, hides, atomic, operation) = (false, false, None, None);
        let signal =
            Signalled { value, published, credit, hides, atomic, operation, party, epoch, launch, inst, entry };
        let key = SlotKey { memory: at.0, byte: at.1 };
        if let Some(first) = self.slots.write(key, before, signal.clone(), &knowledge) {
            let parties = [first.party, party];
            self.report(Seen::TwoWriters { slot: key, first, second: signal }, &parties);
        }
    }

    /// A word was found to equal the value: acquires from the write that is there.
    pub fn stream_wait(&mut self, id: StreamId, inst: Inst, at: (MemoryId, u64), value: u64) {
        self.flush();
        let party = self.stream(id);
        let (epoch, launch) = (self.parties[party as usize].epoch, self.parties[party as usize].launch);
        let key = SlotKey { memory: at.0, byte: at.1 };
        let last = self.slots.get(key).and_then(|slot| slot.last()).cloned();
        if let Some(last) = &last {
            self.parties[party as usize].knowledge.join(&last.published);
        }
        let from = last.map(|last| last.entry);
        self.log.push(party, launch, epoch, Some(inst), Deed::Wait { slot: word(at), value, from });
        self.word_touch(party, inst, at, AccessKind::Look);
    }

    /// Words are bytes too: a plain access to them that nothing orders is a race.
    fn word_touch(&mut self, party: PartyId, inst: Inst, (memory, byte): (MemoryId, u64), kind: AccessKind) {
        let touch = self.atomically(party, inst, kind, Scope::System, byte..byte + 8, Elements::Outside);
        self.check(memory, byte..byte + 8, touch);
    }
}

/// A word in the form of a slot for the log. It is no parameter of a kernel: only its bytes are meaningful.
fn word((memory, byte): (MemoryId, u64)) -> SlotRef {
    SlotRef { param: ParamId::new(0), bank: 0, index: 0, memory, byte }
}
