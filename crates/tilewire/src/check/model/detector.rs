//! The observer with vector clocks: turns what a run does into faults.

use super::clock::{Knowledge, PartyId};
use super::credits::Credits;
use super::log::{Deed, Log};
use super::packets::Packets;
use super::party::{Copying, Party, PartyName};
use super::shadow::{Elements, Met, Shadow, Touch, writes};
use super::sighting::{Seen, Sighting};
use super::slots::{BadSignal, Signalled, SlotKey, Slots};
use crate::check::memory::MemoryId;
use crate::check::network::Descriptor;
use crate::check::observer::{Access, AccessKind, Actor, Observer, SlotRef};
use crate::check::world::StreamId;
use crate::ir::{BulkDone, Inst, Kernel, Op, Order, ParamId};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

/// What the detector is told to look for.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// A wait may be satisfied by a value larger than the one it names.
    pub cumulative: bool,
    /// A signal may be left for a later launch to wait for.
    pub across_launches: bool,
    /// Waits that do not acquire, as (launch, rank, instruction): a mutation.
    pub relaxed: HashSet<(u32, u32, Inst)>,
    /// `each`s that do not end with a barrier, likewise: a mutation.
    pub unbarriered: HashSet<(u32, u32, Inst)>,
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
    kernels: Vec<Vec<&'k Kernel>>,
    pub(super) watch: Watch,
    /// Everybody.
    pub parties: Vec<Party>,
    pub(super) hosts: Vec<PartyId>,
    roles: HashMap<Actor, PartyId>,
    pub(super) streams: HashMap<StreamId, PartyId>,
    proxies: HashMap<(PartyId, ParamId, u32), PartyId>,
    /// Proxies with data that no signal has followed yet.
    posted: HashSet<PartyId>,
    shadows: Vec<Shadow>,
    /// All slots.
    pub slots: Slots,
    pub(super) credits: Credits,
    pub(super) packets: Packets,
    atomics: HashMap<(MemoryId, u64), Knowledge>,
    run: Option<Run>,
    /// What happened between parties.
    pub log: Log,
    pub(super) sightings: Vec<Sighting>,
    pub(super) known: HashMap<(u8, Option<Inst>, Option<Inst>), usize>,
    /// Ops whose result may depend on the schedule, as (rank, launch, instruction).
    pub outside: HashSet<(u32, u32, Inst)>,
    /// Ops with an effect that ran, as (launch, rank, instruction), and the last block that ran them.
    pub ran: HashMap<(u32, u32, Inst), u32>,
    /// The test that failed last, until it is taken: its party should let others run.
    pub failed_test: Option<Inst>,
    /// Signals, posts and (runs of) writes so far: a test that failed fails again until this has grown.
    pub deeds: u64,
}

impl<'k> Detector<'k> {
    /// A detector for launches of these kernels: by launch, then by rank.
    pub fn new(kernels: Vec<Vec<&'k Kernel>>, watch: Watch) -> Self {
        let ranks = kernels.first().map_or(0, Vec::len) as u32;
        let hosts: Vec<PartyId> = (0..ranks).collect();
        let parties = hosts.iter().map(|&rank| Party::new(rank, PartyName::Host { rank })).collect();
        Detector {
            kernels,
            watch,
            parties,
            hosts,
            roles: HashMap::new(),
            streams: HashMap::new(),
            proxies: HashMap::new(),
            posted: HashSet::new(),
            shadows: Vec::new(),
            slots: Slots::default(),
            credits: Credits::default(),
            packets: Packets::default(),
            atomics: HashMap::new(),
            run: None,
            log: Log::default(),
            sightings: Vec::new(),
            known: HashMap::new(),
            outside: HashSet::new(),
            ran: HashMap::new(),
            failed_test: None,
            deeds: 0,
        }
    }

    /// Bytes that are written before anything begins.
    pub fn given(&mut self, memory: MemoryId, bytes: Range<u64>) {
        let touch = Touch {
            // Epoch 0 of anybody is known to all.
            party: 0,
            epoch: 0,
            phase: 0,
            launch: 0,
            inst: None,
            kind: AccessKind::Write,
            elements: Elements::Outside,
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

    /// A launch of a rank begins for one of its role copies.
    pub fn begin(&mut self, who: Actor, launch: u32) {
        self.flush();
        let host = self.hosts[who.rank as usize];
        let told = self.parties[host as usize].release(host);
        let party = self.role(who);
        self.credits.begin(party);
        let role = &mut self.parties[party as usize];
        role.knowledge.join(&told);
        role.fenced = role.knowledge.clone();
        role.tick(party);
        role.launch = launch;
        role.phase += 1;
    }

    /// A launch of a rank is over: its host knows what all its role copies and streams did.
    pub fn end(&mut self, rank: u32, who: &[Actor], streams: u32, next: u32) {
        self.flush();
        let host = self.hosts[rank as usize];
        let mut ended: Vec<PartyId> = who.iter().map(|&who| self.role(who)).collect();
        ended.extend((0..streams).map(|number| self.stream(StreamId { rank, number })));
        for party in ended {
            let told = self.parties[party as usize].release(party);
            self.parties[host as usize].knowledge.join(&told);
        }
        self.parties[host as usize].launch = next;
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
        let Party { epoch, phase, launch, .. } = self.parties[party as usize];
        Touch { party, epoch, phase, launch, inst, kind, elements }
    }

    pub(super) fn check(&mut self, memory: MemoryId, bytes: Range<u64>, touch: Touch) {
        self.shadow(memory);
        let knowledge = &self.parties[touch.party as usize].knowledge;
        let met = self.shadows[memory.0 as usize].touch(bytes, &touch, knowledge);
        for met in met {
            match met {
                // What a host reads of an output that the kernel leaves alone is its own business.
                Met::Unwritten(_) if touch.inst.is_none() => {}
                Met::Unwritten(bytes) => {
                    let by = touch.clone();
                    self.report(Seen::Unwritten { by, memory, bytes }, &[touch.party]);
                }
                Met::Race(conflict, first, bytes) => {
                    let parties = [first.party, touch.party];
                    let second = touch.clone();
                    self.report(Seen::Race { conflict, first, second, memory, bytes }, &parties);
                }
            }
        }
    }

    /// Takes the pending run into the shadow.
    pub(super) fn flush(&mut self) {
        let Some(run) = self.run.take() else { return };
        let elements = match run.first {
            None => Elements::Outside,
            Some(_) if run.many => Elements::Many,
            Some(first) => Elements::Line { first, start: run.bytes.start, size: run.size },
        };
        let touch = self.touched(run.party, Some(run.inst), run.kind, elements);
        self.has_run(run.who, touch.launch, run.inst);
        self.check(run.memory, run.bytes, touch);
    }

    fn has_run(&mut self, who: Actor, launch: u32, inst: Inst) {
        let last = self.ran.entry((launch, who.rank, inst)).or_default();
        *last = who.block.max(*last);
    }

    fn role(&mut self, who: Actor) -> PartyId {
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

    /// An asynchronous party that begins with `base`. One that worked before is taken again where its last work is known to
    /// be over in `base`: then its own order adds nothing.
    fn lane(&mut self, of: PartyId, name: PartyName, base: &Knowledge) -> PartyId {
        let free = self.parties[of as usize].lanes.iter().copied().find(|&lane| {
            let party = &self.parties[lane as usize];
            party.name == name && base.visible.covers(lane, party.epoch)
        });
        let lane = free.unwrap_or_else(|| {
            let lane = self.join(name);
            self.parties[of as usize].lanes.push(lane);
            lane
        });
        let launch = self.parties[of as usize].launch;
        let party = &mut self.parties[lane as usize];
        party.knowledge.join(base);
        // Twice: a copy of nothing was said to write in the epoch after its read and never did.
        party.tick(lane);
        party.tick(lane);
        (party.launch, party.phase) = (launch, party.phase + 1);
        self.parties[of as usize].current = Some(lane);
        lane
    }

    fn atomic(&mut self, who: Actor, access: &Access) {
        let party = self.role(who);
        let Access { inst, element, memory, ref bytes, .. } = *access;
        let launch = self.parties[party as usize].launch;
        let kernel = self.kernels[launch as usize][who.rank as usize];
        let Op::AtomicAdd { order, .. } = kernel.insts[inst].op else { return };
        self.outside.insert((who.rank, launch, inst));
        let at = (memory, bytes.start);
        if matches!(order, Order::Acquire | Order::AcqRel) {
            let met = self.atomics.entry(at).or_default();
            self.parties[party as usize].knowledge.join(met);
        }
        let (start, size) = (bytes.start, bytes.end - bytes.start);
        let elements = element.map_or(Elements::Outside, |first| Elements::Line { first, start, size });
        let touch = self.touched(party, Some(inst), AccessKind::Atomic, elements);
        self.check(memory, bytes.clone(), touch);
        if matches!(order, Order::Release | Order::AcqRel) {
            let told = self.parties[party as usize].release(party);
            self.atomics.entry(at).or_default().join(&told);
        }
    }

    fn acquire(&mut self, who: Actor, inst: Inst, slot: &SlotRef, value: u64, seen: u64) {
        let party = self.role(who);
        let key = SlotKey { memory: slot.memory, byte: slot.byte };
        let role = &self.parties[party as usize];
        let (launch, epoch) = (role.launch, role.epoch);
        let signal = self.slots.wait(key, launch, value, seen).cloned();
        self.credits.wait(party, who.rank, key, value);
        self.has_run(who, launch, inst);
        let relaxed = self.watch.relaxed.contains(&(launch, who.rank, inst));
        if let Some(signal) = signal.as_ref().filter(|_| !relaxed) {
            self.parties[party as usize].knowledge.join(&signal.published);
        }
        let from = signal.as_ref().map(|signal| signal.entry);
        self.log.push(party, launch, epoch, Some(inst), Deed::Wait { slot: *slot, value, from });
        if let Some(signal) = signal.filter(|signal| signal.value > value && !self.watch.cumulative) {
            let seen = Seen::Skipped { slot: key, party, launch, inst, expected: value, signal };
            self.report(seen, &[party]);
        }
        self.slot_touch(party, inst, slot);
        self.parties[party as usize].phase += 1;
    }

    /// Slots are bytes too: a plain access to them that nothing orders is a race.
    fn slot_touch(&mut self, party: PartyId, inst: Inst, slot: &SlotRef) {
        let touch = self.touched(party, Some(inst), AccessKind::Atomic, Elements::Outside);
        self.check(slot.memory, slot.byte..slot.byte + 8, touch);
    }
}

impl Observer for Detector<'_> {
    fn access(&mut self, who: Actor, access: &Access) {
        let Access { inst, element, kind, memory, ref bytes } = *access;
        if kind == AccessKind::PacketRead {
            let party = self.role(who);
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
            // Elements that read one place do no harm; those that write one meet in the shadow.
            if run.bytes == *bytes && !writes(kind) {
                run.many = true;
                return;
            }
        }
        self.flush();
        self.deeds += u64::from(writes(kind));
        let mut party = self.role(who);
        match kind {
            AccessKind::BulkRead | AccessKind::BulkWrite | AccessKind::NetworkRead | AccessKind::NetworkWrite => {
                party = self.parties[party as usize].current.expect("an asynchronous access has a party");
                if kind == AccessKind::BulkWrite {
                    self.parties[party as usize].tick(party);
                }
            }
            AccessKind::Atomic => return self.atomic(who, access),
            _ => {}
        }
        let (bytes, size) = (bytes.clone(), bytes.end - bytes.start);
        let next = element.map_or(0, |element| element + 1);
        self.run = Some(Run { who, party, inst, kind, memory, bytes, size, first: element, next, many: false });
    }

    fn packet(&mut self, who: Actor, inst: Inst, memory: MemoryId, byte: u64, before: u64, flag: u64) {
        let party = self.role(who);
        let by = self.touched(party, Some(inst), AccessKind::PacketWrite, Elements::Outside);
        self.packets.put((memory, byte), by.clone(), flag);
        if before != 0 && flag <= before {
            self.flush();
            self.report(Seen::StaleFlag { by, memory, byte, before, flag }, &[party]);
        }
    }

    fn signal(&mut self, who: Actor, inst: Inst, slot: &SlotRef, before: u64, value: u64, credit: bool) {
        self.flush();
        self.deeds += 1;
        let role = self.role(who);
        let posted = match self.kernels[self.parties[role as usize].launch as usize][who.rank as usize].insts[inst].op {
            Op::PostSignal { queue, .. } => Some((role, queue, slot.bank)),
            _ => None,
        };
        let party = match posted {
            // Over the network a signal shows the data posted before it, and says that the poster's own accesses are over.
            Some(route) => {
                let proxy = self.proxy(route, who);
                let over = self.parties[role as usize].knowledge.over.clone();
                let launch = self.parties[role as usize].launch;
                self.parties[role as usize].tick(role);
                let party = &mut self.parties[proxy as usize];
                party.knowledge.over.join(&over);
                party.launch = launch;
                proxy
            }
            None => role,
        };
        self.slot_touch(party, inst, slot);
        let (epoch, launch) = (self.parties[party as usize].epoch, self.parties[party as usize].launch);
        let knowledge = self.parties[party as usize].knowledge.clone();
        let all = self.parties[party as usize].release(party);
        let published = if credit { Rc::new(all.credit()) } else { all };
        self.has_run(who, launch, inst);
        let entry = self.log.push(party, launch, epoch, Some(inst), Deed::Signal { slot: *slot, value, credit });
        let key = SlotKey { memory: slot.memory, byte: slot.byte };
        let credit = credit || posted.is_some() && !self.posted.remove(&party);
        if !credit {
            self.credits.signal(role, key, before, value);
        }
        let signal = Signalled { value, published, credit, party, epoch, launch, inst, entry };
        match self.slots.signal(key, before, signal.clone(), &knowledge) {
            Some(BadSignal::TwoWriters(first)) => {
                let parties = [first.party, party];
                self.report(Seen::TwoWriters { slot: key, first, second: signal }, &parties);
            }
            Some(BadSignal::NotGrowing(first)) => {
                self.report(Seen::NotGrowing { slot: key, first, second: signal }, &[party]);
            }
            None => {}
        }
        self.parties[role as usize].phase += 1;
    }

    fn wait(&mut self, who: Actor, inst: Inst, slot: &SlotRef, value: u64, seen: u64) {
        self.flush();
        self.acquire(who, inst, slot, value, seen);
    }

    fn test(&mut self, who: Actor, inst: Inst, slot: &SlotRef, value: u64, seen: u64) {
        self.flush();
        let party = self.role(who);
        let launch = self.parties[party as usize].launch;
        self.outside.insert((who.rank, launch, inst));
        self.failed_test = (seen < value).then_some(inst);
        if seen >= value {
            self.acquire(who, inst, slot, value, seen);
        } else {
            self.slot_touch(party, inst, slot);
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
        let lane = self.lane(role, PartyName::Bulk(who), &base);
        // It reads in one epoch and writes in the next; the second begins when the write is seen.
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
        self.flush();
        let Descriptor::Write { who, queue, peer, .. } = *descriptor else { return };
        let role = self.role(who);
        let mut base = Knowledge::clone(&self.parties[role as usize].release(role));
        // Whoever told the poster that an earlier put of its own is over has seen the data: the next one comes after it.
        for &lane in &self.parties[role as usize].lanes {
            let epoch = self.parties[lane as usize].epoch;
            if base.over.covers(lane, epoch) {
                base.visible.set(lane, epoch);
            }
        }
        let lane = self.lane(role, PartyName::Post(who), &base);
        let told = self.parties[lane as usize].knowledge.clone();
        let proxy = self.proxy((role, queue, peer), who);
        self.parties[proxy as usize].knowledge.join(&told);
        self.posted.insert(proxy);
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

impl Detector<'_> {
    fn proxy(&mut self, route: (PartyId, ParamId, u32), who: Actor) -> PartyId {
        if let Some(&proxy) = self.proxies.get(&route) {
            return proxy;
        }
        let proxy = self.join(PartyName::Proxy(who));
        self.proxies.insert(route, proxy);
        proxy
    }
}
