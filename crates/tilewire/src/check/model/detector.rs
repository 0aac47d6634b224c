//! The observer with vector clocks: turns the events of a run into faults.

use super::clock::{Clock, Knowledge, PartyId};
use super::credits::Credits;
use super::finds::Found;
use super::log::{Deed, Log};
use super::outside::{Incomplete, Outside};
use super::packets::Packets;
use super::party::{Copying, Party, PartyName};
use super::posted::{RouteKey, Told};
use super::promises::Promises;
use super::shadow::{Atomicity, Elements, Met, Shadow, Touch, writes};
use super::sighting::{Seen, Sighting};
use super::slot_places::SlotPlaces;
use super::slots::{Signalled, SlotKey, Slots};
use crate::check::memory::MemoryId;
use crate::check::network::Descriptor;
use crate::check::observer::{Access, AccessKind, Actor, Observer, SlotRef, SlotSet, Wanted};
use crate::check::world::StreamId;
use crate::ir::{BulkDone, Inst, Kernel, Op, Scope};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

/// Settings of the detector.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// A wait may be satisfied by a larger value than it names.
    pub cumulative: bool,
    /// A signal may be left for a later launch to wait for.
    pub across_launches: bool,
    /// Waits that do not acquire, as (launch, rank, instruction): a mutation.
    pub relaxed: HashSet<(u32, u32, Inst)>,
    /// `each`s that do not end with a barrier, likewise: a mutation.
    pub unbarriered: HashSet<(u32, u32, Inst)>,
    /// Posted signals and flushes that cover no earlier posts, likewise: mutations.
    pub uncovered: HashSet<(u32, u32, Inst)>,
    /// Notices that do not wait for earlier ones for their slot, likewise: a mutation.
    pub unheld: HashSet<(u32, u32, Inst)>,
}

/// Neighbouring accesses of one instruction that are not in the shadow yet.
struct Run {
    who: Actor,
    party: PartyId,
    inst: Inst,
    kind: AccessKind,
    memory: MemoryId,
    bytes: Range<u64>,
    size: u64,
    first: Option<u64>,
    next: u64,
    many: bool,
}

/// The observer.
pub struct Detector<'k> {
    /// By launch, then by rank.
    pub(super) kernels: Vec<Vec<&'k Kernel>>,
    /// The bytes that are slots.
    pub(super) places: &'k SlotPlaces,
    /// By launch, rank and parameter: the ring of a queue.
    pub(super) rings: &'k [Vec<Vec<usize>>],
    pub(super) watch: Watch,
    /// All parties.
    pub parties: Vec<Party>,
    pub(super) hosts: Vec<PartyId>,
    roles: HashMap<Actor, PartyId>,
    pub(super) streams: HashMap<StreamId, PartyId>,
    /// By role copy, ring and peer: the posted data, which a later signal shows, and true if no signal has followed it.
    /// A post reads its source in one epoch of its party and writes in the next: these are the epochs of the writes.
    pub(super) routes: HashMap<RouteKey, (Clock, bool)>,
    /// By ring and peer: the puts of all role copies.
    pub(super) lanes_to: HashMap<(usize, u32), Vec<PartyId>>,
    /// By slot: the proxy's notices for it.
    pub(super) notices: HashMap<(RouteKey, SlotKey), PartyId>,
    /// By the party and the value of a notice that was posted: what it tells.
    pub(super) told: HashMap<(PartyId, u64), Told>,
    shadows: Vec<Shadow>,
    /// All slots.
    pub slots: Slots,
    pub(super) credits: Credits,
    pub(super) packets: Packets,
    pub(super) atomics: HashMap<(MemoryId, u64), Vec<(Atomicity, Knowledge)>>,
    run: Option<Run>,
    /// The events between parties.
    pub log: Log,
    pub(super) sightings: Vec<Sighting>,
    pub(super) known: HashMap<(u8, Option<Inst>, Option<Inst>), usize>,
    /// Ops that one run does not decide, as (launch, rank, instruction).
    pub outside: BTreeMap<(u32, u32, Inst), Outside>,
    /// The other writer of bytes that are slots: a copy engine, or a host.
    pub slot_written_by: Option<&'static str>,
    /// Why running every schedule would not be enough, if it is not.
    pub incomplete: Option<Incomplete>,
    /// By (launch, rank, instruction): true if the result of an atomic is used.
    pub(super) used: HashMap<(u32, u32, Inst), bool>,
    /// The bytes that launches bind as inputs.
    pub promises: Promises,
    /// By rank: its host's knowledge when the current launch began.
    pub(super) begun: Vec<Rc<Knowledge>>,
    /// By rank and launch: the epoch of its host when the launch was over.
    pub(super) over: Vec<Vec<u32>>,
    /// Ops with an effect that ran, as (launch, rank, instruction), and the last block that ran them.
    pub ran: HashMap<(u32, u32, Inst), u32>,
    /// The last test that failed, or atomic that changed nothing, until it is taken: its party may only be polling.
    pub failed_test: Option<Inst>,
    /// Slots and packets that were set, by their first byte, until they are taken: a party that waits for one of them
    /// may continue.
    pub set: Vec<(MemoryId, u64)>,
    /// Signals, posts, atomics that change something and (runs of) writes so far: a failed test fails again until this
    /// has grown.
    pub deeds: u64,
}

impl<'k> Detector<'k> {
    /// A detector for launches of these kernels: by launch, then by rank.
    pub fn new(
        kernels: Vec<Vec<&'k Kernel>>,
        places: &'k SlotPlaces,
        rings: &'k [Vec<Vec<usize>>],
        watch: Watch,
    ) -> Self {
        let ranks = kernels.first().map_or(0, Vec::len) as u32;
        let hosts: Vec<PartyId> = (0..ranks).collect();
        let parties = hosts.iter().map(|&rank| Party::new(rank, PartyName::Host { rank })).collect();
        Detector {
            kernels,
            places,
            rings,
            watch,
            parties,
            hosts,
            roles: HashMap::new(),
            streams: HashMap::new(),
            routes: HashMap::new(),
            lanes_to: HashMap::new(),
            notices: HashMap::new(),
            told: HashMap::new(),
            shadows: Vec::new(),
            slots: Slots::default(),
            credits: Credits::default(),
            packets: Packets::default(),
            atomics: HashMap::new(),
            run: None,
            log: Log::default(),
            sightings: Vec::new(),
            known: HashMap::new(),
            outside: BTreeMap::new(),
            slot_written_by: None,
            incomplete: None,
            used: HashMap::new(),
            promises: Promises::default(),
            begun: vec![Rc::default(); ranks as usize],
            over: vec![Vec::new(); ranks as usize],
            ran: HashMap::new(),
            failed_test: None,
            set: Vec::new(),
            deeds: 0,
        }
    }

    /// Bytes that are written before anything begins.
    pub fn given(&mut self, memory: MemoryId, bytes: Range<u64>) {
        let touch = Touch {
            // Everybody knows epoch 0 of every party.
            party: 0,
            epoch: 0,
            phase: 0,
            launch: 0,
            inst: None,
            kind: AccessKind::Write,
            elements: Elements::Outside,
            rank: 0,
            promise: None,
            atomic: None,
            is_used: false,
        };
        self.shadow(memory).touch(bytes, &touch, &Knowledge::default());
    }

    /// The host of a rank touches bytes before or after a launch.
    pub fn host(&mut self, rank: u32, kind: AccessKind, memory: MemoryId, bytes: Range<u64>) {
        self.flush();
        let party = self.hosts[rank as usize];
        let touch = self.touched(party, None, kind, Elements::Outside);
        self.check(memory, bytes, touch);
    }

    /// The host of a rank puts values into a tensor.
    pub fn host_sets(&mut self, rank: u32, memory: MemoryId, bytes: Range<u64>) {
        self.host(rank, AccessKind::Write, memory, bytes.clone());
        if self.overwritten(memory, &bytes) {
            self.slot_written_by.get_or_insert("a host");
        }
    }

    /// The first of these bytes that nobody wrote.
    pub fn unwritten(&mut self, memory: MemoryId, bytes: Range<u64>) -> Option<Range<u64>> {
        self.flush();
        self.shadow(memory).unwritten(bytes)
    }

    /// A launch of a rank begins for one of its role copies.
    pub fn begin(&mut self, who: Actor, launch: u32) {
        self.flush();
        let host = self.hosts[who.rank as usize];
        self.begins_promised(who.rank, launch, host);
        let told = self.parties[host as usize].release(host);
        self.begun[who.rank as usize] = told.clone();
        let party = self.role(who);
        self.credits.begin(party);
        let role = &mut self.parties[party as usize];
        role.knowledge.join(&told);
        role.fenced = role.knowledge.clone();
        role.tick(party);
        role.launch = launch;
        role.phase += 1;
    }

    /// A launch of a rank is over: its host knows the effects of all its role copies and streams.
    pub fn end(&mut self, rank: u32, who: &[Actor], streams: u32, next: u32) {
        self.flush();
        let host = self.hosts[rank as usize];
        let mut ended: Vec<PartyId> = who.iter().map(|&who| self.role(who)).collect();
        ended.extend((0..streams).map(|number| self.stream(StreamId { rank, number })));
        for party in ended {
            let told = self.parties[party as usize].release(party);
            self.parties[host as usize].knowledge.join(&told);
        }
        let host = &mut self.parties[host as usize];
        if next > host.launch {
            self.over[rank as usize].push(host.epoch);
        }
        host.launch = next;
    }

    // ---- accesses -------------------------------------------------------------------------------------------------

    fn shadow(&mut self, memory: MemoryId) -> &mut Shadow {
        let place = memory.0 as usize;
        if self.shadows.len() <= place {
            self.shadows.resize_with(place + 1, Shadow::default);
        }
        &mut self.shadows[place]
    }

    pub(super) fn touched(&self, party: PartyId, inst: Option<Inst>, kind: AccessKind, elements: Elements) -> Touch {
        let Party { epoch, phase, launch, name, .. } = self.parties[party as usize];
        let rank = name.rank();
        let promise = inst.filter(|_| name.is_kernel()).and_then(|inst| self.promise(launch, rank, inst, kind));
        Touch { party, epoch, phase, launch, inst, kind, elements, rank, promise, atomic: None, is_used: false }
    }

    pub(super) fn check(&mut self, memory: MemoryId, bytes: Range<u64>, touch: Touch) {
        if touch.inst.is_some() && writes(touch.kind) && self.parties[touch.party as usize].name.is_kernel() {
            self.writes_promised(memory, &bytes, &touch);
        }
        self.shadow(memory);
        let knowledge = &self.parties[touch.party as usize].knowledge;
        let met = self.shadows[memory.0 as usize].touch(bytes, &touch, knowledge);
        for met in met {
            match met {
                // A host may read an output that the kernel does not write.
                Met::Unwritten(_) if touch.inst.is_none() => {}
                Met::Unwritten(bytes) => {
                    let by = touch.clone();
                    self.report(Seen::Unwritten { by, memory, bytes }, &[touch.party]);
                }
                Met::Promised(first, bytes) => {
                    if self.is_broken(&first, &touch) {
                        let (parties, second) = ([first.party, touch.party], touch.clone());
                        self.report(Seen::Promised { first, second, memory, bytes }, &parties);
                    }
                }
                Met::Race(conflict, first, bytes) => {
                    let parties = [first.party, touch.party];
                    let second = touch.clone();
                    self.report(Seen::Race { conflict, first, second, memory, bytes }, &parties);
                }
            }
        }
    }

    /// Moves the pending run into the shadow.
    pub(super) fn flush(&mut self) {
        let Some(run) = self.run.take() else { return };
        let elements = match run.first {
            None => Elements::Outside,
            Some(_) if run.many => Elements::Many,
            Some(first) => Elements::Line { first, start: run.bytes.start, size: run.size },
        };
        let touch = self.touched(run.party, Some(run.inst), run.kind, elements);
        self.has_run(run.who, touch.launch, run.inst);
        if writes(run.kind) {
            self.overwrites(run.memory, &run.bytes, &touch);
        }
        self.check(run.memory, run.bytes, touch);
    }

    fn has_run(&mut self, who: Actor, launch: u32, inst: Inst) {
        let last = self.ran.entry((launch, who.rank, inst)).or_default();
        *last = who.block.max(*last);
    }

    pub(super) fn role(&mut self, who: Actor) -> PartyId {
        if let Some(&party) = self.roles.get(&who) {
            return party;
        }
        let party = self.join(PartyName::Role(who));
        self.roles.insert(who, party);
        party
    }

    pub(super) fn join(&mut self, name: PartyName) -> PartyId {
        let id = self.parties.len() as PartyId;
        self.parties.push(Party::new(id, name));
        id
    }

    /// An asynchronous party that begins with `base`. An earlier one is reused if its last work is known to be over in
    /// `base`: then its own order adds nothing.
    pub(super) fn lane(
        &mut self,
        of: PartyId,
        name: PartyName,
        route: Option<(usize, u32)>,
        base: &Knowledge,
    ) -> PartyId {
        let free = self.parties[of as usize].lanes.iter().copied().find(|&lane| {
            let party = &self.parties[lane as usize];
            party.name == name && party.route == route && base.visible.covers(lane, party.epoch)
        });
        let lane = free.unwrap_or_else(|| {
            let lane = self.join(name);
            self.parties[lane as usize].route = route;
            self.parties[of as usize].lanes.push(lane);
            if let Some(route) = route {
                self.lanes_to.entry(route).or_default().push(lane);
            }
            lane
        });
        let launch = self.parties[of as usize].launch;
        let party = &mut self.parties[lane as usize];
        party.knowledge.join(base);
        // Twice: an empty copy announced a write in the epoch after its read and never wrote.
        party.tick(lane);
        party.tick(lane);
        (party.launch, party.phase) = (launch, party.phase + 1);
        self.parties[of as usize].current = Some(lane);
        lane
    }

    fn acquire(&mut self, who: Actor, inst: Inst, slot: &SlotRef, wanted: &Wanted) {
        let Wanted { value, seen, operation } = *wanted;
        let party = self.role(who);
        let key = SlotKey { memory: slot.memory, byte: slot.byte };
        let role = &self.parties[party as usize];
        let (launch, epoch) = (role.launch, role.epoch);
        let me = self.system_wide(party, slot.byte..slot.byte + 8);
        let signal = self.slots.wait(key, launch, value, seen).cloned();
        // An addition at a scope that does not contain this party shows it nothing, and is a race.
        let agrees = signal.as_ref().is_none_or(|signal| self.slots.agree(key, signal, &me));
        self.credits.wait(party, who.rank, key, value);
        self.has_run(who, launch, inst);
        let relaxed = self.watch.relaxed.contains(&(launch, who.rank, inst));
        let (mut wanted, mut shown) = (0, Clock::default());
        if let Some(signal) = signal.as_ref().filter(|_| agrees && !relaxed) {
            let knowledge = &mut self.parties[party as usize].knowledge;
            (wanted, shown) = self.slots.shown(key, signal, &knowledge.visible);
            knowledge.visible.join(&shown);
            knowledge.over.join(&signal.published.over);
        }
        // It has found at least the first signal that suffices. If the slot's initial value suffices, it need not have
        // found any.
        if let Some(Signalled { value, .. }) = signal {
            self.slots.waited(key, party, Found { epoch, value, wanted, shown });
        }
        self.parties[party as usize].has_met = true;
        let from = signal.as_ref().map(|signal| signal.entry);
        self.log.push(party, launch, epoch, Some(inst), Deed::Wait { slot: *slot, value, from });
        // The run may have found a later word of the right operation; another run finds this one.
        let other = |signal: &&Signalled| signal.value == value && signal.operation != operation;
        if let Some(signal) = signal.as_ref().filter(other).cloned() {
            let seen = Seen::OtherOperation { slot: key, party, launch, inst, expected: operation, signal };
            self.report(seen, &[party]);
        }
        if let Some(signal) = signal.filter(|signal| signal.value > value && !self.watch.cumulative) {
            let seen = Seen::Skipped { slot: key, party, launch, inst, expected: value, signal };
            self.report(seen, &[party]);
        }
        self.slot_touch(party, inst, slot, AccessKind::Look);
        self.parties[party as usize].phase += 1;
    }

    /// Slots are bytes too: a plain access to them that nothing orders is a race.
    fn slot_touch(&mut self, party: PartyId, inst: Inst, slot: &SlotRef, kind: AccessKind) {
        let bytes = slot.byte..slot.byte + 8;
        let touch = self.atomically(party, inst, kind, Scope::System, bytes.clone(), Elements::Outside);
        self.check(slot.memory, bytes, touch);
    }

    /// The default atomicity of a party: with all others.
    pub(super) fn system_wide(&self, party: PartyId, bytes: Range<u64>) -> Atomicity {
        let (rank, block) = (self.parties[party as usize].name.rank(), self.parties[party as usize].name.block());
        Atomicity { rank, block, scope: Scope::System, bytes }
    }

    /// An atomic access of a scope.
    pub(super) fn atomically(
        &self,
        party: PartyId,
        inst: Inst,
        kind: AccessKind,
        scope: Scope,
        bytes: Range<u64>,
        elements: Elements,
    ) -> Touch {
        let atomic = Some(Atomicity { scope, ..self.system_wide(party, bytes) });
        Touch { atomic, ..self.touched(party, Some(inst), kind, elements) }
    }
}

impl Observer for Detector<'_> {
    fn access(&mut self, who: Actor, access: &Access) {
        let Access { inst, element, kind, memory, ref bytes } = *access;
        if kind == AccessKind::PacketRead {
            let party = self.role(who);
            self.parties[party as usize].has_met = true;
            self.packets.get((memory, bytes.start), self.parties[party as usize].launch);
        }
        if let Some(run) = &mut self.run
            && run.who == who
            && run.inst == inst
            && run.memory == memory
            && run.kind == kind
            && element.is_some()
        {
            if run.bytes.end == bytes.start && element == Some(run.next) && !run.many {
                run.bytes.end = bytes.end;
                run.next += 1;
                return;
            }
            // Elements that read one place do no harm; elements that write one place meet in the shadow.
            if run.bytes == *bytes && !writes(kind) {
                run.many = true;
                return;
            }
        }
        self.flush();
        self.deeds += u64::from(writes(kind) && kind != AccessKind::Atomic);
        let mut party = self.role(who);
        match kind {
            AccessKind::BulkRead | AccessKind::BulkWrite | AccessKind::NetworkRead | AccessKind::NetworkWrite => {
                party = self.parties[party as usize].current.expect("an asynchronous access has a party");
                if matches!(kind, AccessKind::BulkWrite | AccessKind::NetworkWrite) {
                    self.parties[party as usize].tick(party);
                }
            }
            // Its effect on the value is reported separately.
            AccessKind::Atomic => return,
            _ => {}
        }
        let (bytes, size) = (bytes.clone(), bytes.end - bytes.start);
        let next = element.map_or(0, |element| element + 1);
        self.run = Some(Run { who, party, inst, kind, memory, bytes, size, first: element, next, many: false });
    }

    fn atomic(&mut self, who: Actor, access: &Access, before: u64, after: u64) {
        self.flush();
        self.deeds += u64::from(before != after);
        if before == after && access.element.is_none() {
            self.failed_test = Some(access.inst);
        }
        let party = self.role(who);
        let launch = self.parties[party as usize].launch;
        let kernel = self.kernels[launch as usize][who.rank as usize];
        let Op::AtomicAdd { order, scope, .. } = kernel.insts[access.inst].op else { return };
        self.has_run(who, launch, access.inst);
        self.add(party, access, (order, scope), (before, after));
    }

    fn packet(&mut self, who: Actor, inst: Inst, memory: MemoryId, byte: u64, before: u64, flag: u64) {
        let party = self.role(who);
        let by = self.touched(party, Some(inst), AccessKind::PacketWrite, Elements::Outside);
        self.set.push((memory, byte));
        self.parties[party as usize].has_met = true;
        self.packets.put((memory, byte), by.clone(), flag);
        if before != 0 && flag <= before {
            self.flush();
            self.report(Seen::StaleFlag { by, memory, byte, before, flag }, &[party]);
        }
    }

    fn signal(&mut self, who: Actor, inst: Inst, slot: &SlotRef, set: &SlotSet) {
        let SlotSet { before, value, credit, operation, posted_to } = *set;
        self.flush();
        self.set.push((slot.memory, slot.byte));
        self.deeds += 1;
        let role = self.role(who);
        self.parties[role as usize].has_met = true;
        let key = SlotKey { memory: slot.memory, byte: slot.byte };
        let mut shows_data = !credit;
        let launch = self.parties[role as usize].launch;
        let party = match self.kernels[launch as usize][who.rank as usize].insts[inst].op {
            Op::Post { queue, .. } => {
                let peer = posted_to.unwrap_or(slot.bank);
                let party = self.notifier(self.route((role, queue, peer), who), key, who);
                let told = self.told.remove(&(party, value)).unwrap_or_default();
                shows_data = told.shows_data;
                let notifier = &mut self.parties[party as usize];
                notifier.knowledge.join(&told.knowledge);
                notifier.launch = launch;
                party
            }
            _ => role,
        };
        self.slot_touch(party, inst, slot, AccessKind::Atomic);
        let epoch = self.parties[party as usize].epoch;
        let knowledge = self.parties[party as usize].knowledge.clone();
        let all = self.parties[party as usize].release(party);
        let published = if credit { Rc::new(all.credit()) } else { all };
        self.has_run(who, launch, inst);
        let entry = self.log.push(party, launch, epoch, Some(inst), Deed::Signal { slot: *slot, value, credit });
        let (hides, credit) = (credit, !shows_data);
        if !credit {
            self.credits.signal(role, key, before, value);
        }
        let atomic = None;
        let signal =
            Signalled { value, published, credit, hides, atomic, operation, party, epoch, launch, inst, entry };
        let judged = self.slots.signal(key, before, signal.clone(), &knowledge);
        if judged.undecided {
            self.outside.entry((launch, who.rank, inst)).or_insert(Outside::ShowsLess);
        }
        self.bad_signal(key, judged.bad, signal);
        self.parties[role as usize].phase += 1;
    }

    fn wait(&mut self, who: Actor, inst: Inst, slot: &SlotRef, wanted: &Wanted) {
        self.flush();
        self.acquire(who, inst, slot, wanted);
    }

    fn test(&mut self, who: Actor, inst: Inst, slot: &SlotRef, wanted: &Wanted) {
        let Wanted { value, seen, .. } = *wanted;
        self.flush();
        let party = self.role(who);
        let launch = self.parties[party as usize].launch;
        self.outside.insert((launch, who.rank, inst), Outside::Test);
        self.failed_test = (seen < value).then_some(inst);
        self.sees_less(party);
        if seen >= value {
            self.acquire(who, inst, slot, wanted);
        } else {
            self.slot_touch(party, inst, slot, AccessKind::Look);
            self.parties[party as usize].phase += 1;
        }
    }

    fn barrier(&mut self, who: Actor, inst: Inst) {
        self.flush();
        let id = self.role(who);
        self.has_run(who, self.parties[id as usize].launch, inst);
        let party = &mut self.parties[id as usize];
        if !self.watch.unbarriered.contains(&(party.launch, who.rank, inst)) {
            party.phase += 1;
        }
    }

    fn proxy_fence(&mut self, who: Actor, inst: Inst) {
        self.flush();
        let id = self.role(who);
        self.has_run(who, self.parties[id as usize].launch, inst);
        let party = &mut self.parties[id as usize];
        let told = party.release(id);
        party.fenced.join(&told);
        party.phase += 1;
    }

    fn bulk_copy(&mut self, who: Actor, _: Inst, number: u64) {
        self.flush();
        let role = self.role(who);
        let base = self.parties[role as usize].fenced.clone();
        let lane = self.lane(role, PartyName::Bulk(who), None, &base);
        // It reads in one epoch and writes in the next; the second begins when the write is observed.
        let party = &self.parties[lane as usize];
        let read = party.knowledge.clone();
        let mut complete = read.clone();
        complete.set_own(lane, party.epoch + 1);
        let copy = Copying { number, read: Rc::new(read), complete: Rc::new(complete) };
        self.parties[role as usize].copies.push_back(copy);
    }

    fn bulk_wait(&mut self, who: Actor, inst: Inst, covered: u64, done: BulkDone) {
        self.flush();
        let id = self.role(who);
        self.has_run(who, self.parties[id as usize].launch, inst);
        let party = &mut self.parties[id as usize];
        for copy in party.copies.iter().filter(|copy| copy.number < covered) {
            let told = if done == BulkDone::Complete { &copy.complete } else { &copy.read };
            party.knowledge.join(told);
            party.fenced.join(told);
        }
        if done == BulkDone::Complete {
            party.copies.retain(|copy| copy.number >= covered);
        }
        party.phase += 1;
    }

    fn post(&mut self, descriptor: &Descriptor) {
        self.posts(descriptor);
    }

    fn done(&mut self, who: Actor) {
        self.flush();
        let id = self.role(who);
        let party = &mut self.parties[id as usize];
        for copy in std::mem::take(&mut party.copies) {
            party.knowledge.join(&copy.complete);
        }
        party.phase += 1;
    }
}
