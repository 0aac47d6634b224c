//! The steps of small programs: their effects, and the knowledge of parties afterwards.

use super::events::{By, Catalogue, Event, Events, Kind, bytes};
use super::interleave::{Reads, Shown};
use super::posted::tellers;
use super::program::{PACKETS, Place, Program, SLOTS, Small, Touch, WORDS};
use tilewire::ir::{Access, Order};

/// The knowledge of a party.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Known {
    pub visible: Events,
    pub over: Events,
    /// The visible events, without those learnt from packets.
    pub without_packets: Events,
}

impl Known {
    pub fn join(&mut self, other: Known) {
        self.visible |= other.visible;
        self.over |= other.over;
        self.without_packets |= other.without_packets;
    }

    pub fn own(&mut self, event: usize) {
        self.visible |= 1 << event;
        self.over |= 1 << event;
        self.without_packets |= 1 << event;
    }
}

/// The position of a party: the op, and how much of it is done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct At {
    op: usize,
    /// True if the conditional touch is next.
    then: bool,
    /// The packets that were put and got, by element.
    put: u8,
    got: u8,
}

/// A write of a slot or a word, and what it publishes to its readers.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Trail {
    /// The event; `None` for the initial value.
    pub by: Option<usize>,
    pub value: u64,
    /// For each event that released: what it published.
    pub releases: Vec<(usize, Known)>,
    /// For a credit: the last signal of its party before it. A wait for that signal learns it from the credit.
    pub carried: Option<(u64, Known)>,
}

/// A post of a party, and what the party knew at that time.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Posted {
    pub op: usize,
    pub known: Known,
}

/// A possible step of a party: an event, and the write of a slot that it reads.
#[derive(Clone, Copy)]
pub struct Step {
    pub party: usize,
    pub event: usize,
    read: usize,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    at: Vec<At>,
    pub(super) words: [u64; WORDS],
    /// All writes of each slot.
    slots: [Vec<Trail>; SLOTS],
    flags: [u32; PACKETS],
    pub(super) done: Events,
    pub(super) known: Vec<Known>,
    /// The last write of words, and of their halves.
    trails: Vec<Trail>,
    /// For each slot: the parties that set it since the last plain write, and the last value.
    setters: [(Events, Option<u64>); SLOTS],
    /// The waits and tests, each with the writes of its slot up to the one that it found. A party that knows such a
    /// poll to be over comes after those writes.
    finds: Vec<(usize, Events)>,
    /// For each party and slot: the value of its last signal, and what that published.
    own_signals: Vec<(u64, Known)>,
    /// For each packet: what a getter knows of its bytes.
    packets: [Known; PACKETS],
    /// For each party: its posts, in order.
    pub(super) posted: Vec<Vec<Posted>>,
}

pub struct World<'p> {
    pub(super) program: &'p Program,
    pub events: Catalogue,
    reads: Reads,
    /// The parties that set slots over the network: the poster, the peer and the slot of each.
    pub(super) tellers: Vec<(usize, usize, usize)>,
}

impl<'p> World<'p> {
    pub fn new(program: &'p Program, reads: Reads) -> Self {
        World { program, events: Catalogue::of(program), reads, tellers: tellers(program) }
    }

    pub fn start(&self) -> State {
        let parties = &self.program.parties;
        // The parties, then those that set slots for them over the network.
        let mut known = vec![Known::default(); parties.len() + self.tellers.len()];
        let mut done = 0;
        if let Some(event) = self.events.host_write {
            done = 1 << event;
            let rank = self.events.all[event].rank;
            known.iter_mut().zip(parties).filter(|(_, party)| party.rank == rank).for_each(|(k, _)| k.own(event));
        }
        State {
            at: vec![At::default(); parties.len()],
            words: [0; WORDS],
            slots: std::array::from_fn(|_| vec![Trail::default()]),
            flags: [0; PACKETS],
            done,
            known,
            trails: vec![Trail::default(); WORDS * 3],
            setters: [(0, None); SLOTS],
            finds: Vec::new(),
            own_signals: vec![(0, Known::default()); SLOTS * parties.len() + self.tellers.len()],
            packets: [Known::default(); PACKETS],
            posted: vec![Vec::new(); parties.len()],
        }
    }

    /// The place of the last signal of a party to a slot.
    fn own(&self, party: usize, slot: usize) -> usize {
        let parties = self.program.parties.len();
        party.checked_sub(parties).map_or(party * SLOTS + slot, |teller| parties * SLOTS + teller)
    }

    pub fn is_done(&self, state: &State, party: usize) -> bool {
        state.at[party].op == self.program.parties[party].ops.len()
    }

    /// The possible steps of a party. There are several only if it gets packets, or may find one of several values. The
    /// posts of each party come after the parties.
    pub fn steps(&self, state: &State, party: usize) -> Vec<Step> {
        if let Some(of) = party.checked_sub(self.program.parties.len()) {
            return self.posted_steps(state, of).into_iter().map(|event| Step { party, event, read: 0 }).collect();
        }
        let at = state.at[party];
        let Some(op) = self.program.parties[party].ops.get(at.op) else { return Vec::new() };
        let first = self.events.first[party][at.op];
        let step = |event| Step { party, event, read: 0 };
        let finds = |slot: usize| self.not_hidden(state, party, slot).map(|read| Step { read, ..step(first) });
        match *op {
            Small::Wait { slot, value } => {
                finds(slot).filter(|step| state.slots[slot][step.read].value >= value).collect()
            }
            Small::Test { slot, .. } if !at.then => finds(slot).collect(),
            Small::Packets { count, put, get, get_first } => {
                let can_get = |i: usize| get.is_some_and(|(from, flag)| state.flags[from + i] == flag);
                let gets = first + if put.is_some() { count } else { 0 };
                let has = |mask: u8, i: usize| mask & 1 << i != 0;
                let next: Vec<usize> = match (put, get) {
                    // The elements take the packets that have arrived, in any order.
                    (None, _) => (0..count).filter(|&i| !has(at.got, i) && can_get(i)).map(|i| gets + i).collect(),
                    (_, None) => vec![first + at.put.count_ones() as usize],
                    // The elements run one after the other. The language allows this order, and it holds back most.
                    _ => {
                        let i = at.put.count_ones().min(at.got.count_ones()) as usize;
                        let puts = if get_first { has(at.got, i) } else { !has(at.put, i) };
                        match puts {
                            true => vec![first + i],
                            false => (i..=i).filter(|&i| can_get(i)).map(|i| gets + i).collect(),
                        }
                    }
                };
                next.into_iter().map(step).collect()
            }
            _ => vec![step(first + usize::from(at.then))],
        }
    }

    /// The writes of a slot that a party may find: none older than one that it knows.
    fn not_hidden(&self, state: &State, party: usize, slot: usize) -> std::ops::Range<usize> {
        let all = &state.slots[slot];
        let is_known = |write: &Trail| write.by.is_some_and(|by| state.known[party].visible & 1 << by != 0);
        match self.reads {
            Reads::Latest => all.len() - 1..all.len(),
            Reads::AnyNotHidden => all.iter().rposition(is_known).unwrap_or(0)..all.len(),
        }
    }

    pub fn take(&self, state: &mut State, Step { party, event, read }: Step, shown: &mut Shown) {
        if let Some(of) = party.checked_sub(self.program.parties.len()) {
            return self.deliver(state, of, event, shown);
        }
        let op = self.program.parties[party].ops[state.at[party].op];
        let first = self.events.first[party][state.at[party].op];
        let mut over = true;
        match op {
            Small::Plain(touch) => self.plain(state, party, event, touch, shown),
            Small::Add { then: Some((_, touch)), .. } | Small::Test { then: touch, .. } if state.at[party].then => {
                self.plain(state, party, event, touch, shown);
            }
            Small::Add { at, x, order, then, .. } => {
                let old = self.add(state, party, event, (at, x, order), shown);
                over = then.is_none_or(|(value, _)| value != old);
            }
            Small::Signal { slot, value, credit } => self.signal(state, party, event, (slot, value, credit), shown),
            Small::Post { .. } => {
                let (op, known) = (state.at[party].op, state.known[party]);
                state.posted[party].push(Posted { op, known });
            }
            Small::Wait { slot, value } => self.wait(state, Step { party, event, read }, (slot, value), shown),
            Small::Test { slot, value, there, .. } => {
                let found = state.slots[slot][read].value >= value;
                match found {
                    true => self.wait(state, Step { party, event, read }, (slot, value), shown),
                    false => {
                        let write = state.slots[slot][read].clone();
                        self.happens(state, party, event, shown);
                        self.found(state, party, &write);
                    }
                }
                over = found != there;
            }
            Small::Packets { count, put, get, .. } => {
                let puts = if put.is_some() { count } else { 0 };
                let i = event - first;
                let at = &mut state.at[party];
                match (i < puts, put, get) {
                    (true, Some((from, flag)), _) => {
                        at.put |= 1 << i;
                        self.put(state, party, event, (from + i, flag), shown);
                    }
                    (_, _, Some((from, _))) => {
                        at.got |= 1 << (i - puts);
                        self.happens(state, party, event, shown);
                        state.known[party].join(state.packets[from + i - puts]);
                    }
                    _ => unreachable!("an `each` that neither puts nor gets"),
                }
                let full = |mask: u8| mask.count_ones() as usize == count;
                let at = state.at[party];
                over = (put.is_none() || full(at.put)) && (get.is_none() || full(at.got));
            }
        }
        let at = &mut state.at[party];
        match over {
            true => *at = At { op: at.op + 1, ..At::default() },
            false => at.then = !matches!(op, Small::Packets { .. }),
        }
        self.end_launch(state, shown);
    }

    /// The host reads the output when all parties of its rank are done.
    pub fn end_launch(&self, state: &mut State, shown: &mut Shown) {
        let Some(event) = self.events.host_read.filter(|&event| state.done & 1 << event == 0) else { return };
        let rank = self.events.all[event].rank;
        let of_rank = || (0..state.at.len()).filter(|&p| self.program.parties[p].rank == rank);
        if !of_rank().all(|p| self.is_done(state, p)) {
            return;
        }
        let mut known = Known::default();
        of_rank().for_each(|p| known.join(state.known[p]));
        self.judge(state, &known, event, shown);
        state.done |= 1 << event;
    }

    /// An event happens. It is judged against all earlier events.
    fn happens(&self, state: &mut State, party: usize, event: usize, shown: &mut Shown) {
        let mut known = state.known[party];
        self.happens_to(state, &mut known, event, shown);
        state.known[party] = known;
    }

    /// The same, by a party with this knowledge.
    pub(super) fn happens_to(&self, state: &mut State, known: &mut Known, event: usize, shown: &mut Shown) {
        self.judge(state, known, event, shown);
        state.done |= 1 << event;
        known.own(event);
    }

    fn happened(&self, state: &State) -> impl Iterator<Item = usize> {
        let done = state.done;
        (0..self.events.all.len()).filter(move |&event| done & 1 << event != 0)
    }

    fn judge(&self, state: &State, known: &Known, event: usize, shown: &mut Shown) {
        let me = &self.events.all[event];
        // All of a launch counts as one time, because nothing orders the launches of two ranks. An input is promised
        // even if its owner does not touch it. Of an output only the touched bytes are promised.
        let of_tensor = |event: &Event| event.bytes == bytes(Place::Tensor) && matches!(event.by, By::Party(_));
        if let Some((owner, access)) = self.program.tensor.filter(|_| of_tensor(me)) {
            let foreign = |event: &Event| event.rank != owner && event.writes();
            let others = || self.happened(state).map(|other| &self.events.all[other]).filter(|other| of_tensor(other));
            let touched = || others().any(|other| other.rank == owner);
            shown.promise |= foreign(me) && (access == Access::In || touched());
            shown.promise |= me.rank == owner && others().any(foreign);
        }
        for earlier in self.happened(state) {
            let other = &self.events.all[earlier];
            let is_known = if other.writes() { known.visible } else { known.over } & 1 << earlier != 0;
            let got = |read: &usize| {
                let read = &self.events.all[*read];
                read.by == me.by && read.kind == Kind::PacketRead && read.meets(me)
            };
            let by_packet = other.writes() && me.conflicts(other) && known.without_packets & 1 << earlier == 0;
            shown.stricter |= by_packet && is_known && !self.happened(state).any(|event| got(&event));
            shown.stricter |= me.may_be_said_to_race(other) && known.visible & 1 << earlier == 0;
            if me.conflicts(other) && !is_known {
                shown.race = true;
                shown.control |= me.controls() || other.controls();
            }
        }
    }

    fn plain(&self, state: &mut State, party: usize, event: usize, touch: Touch, shown: &mut Shown) {
        self.happens(state, party, event, shown);
        let Some(x) = touch.write else { return };
        self.written(state, touch.at, Trail { by: Some(event), value: x, ..Trail::default() });
        match touch.at {
            Place::Word(i) => state.words[i] = x,
            Place::Half(i) => set_half(&mut state.words, i, x),
            Place::Slot(i) => state.setters[i] = (0, None),
            Place::Tensor => {}
        }
    }

    /// Bytes are written. What other names of these bytes published is no longer published.
    pub(super) fn written(&self, state: &mut State, at: Place, write: Trail) {
        let overlaps = |other: &Place| {
            let (a, b) = (bytes(at), bytes(*other));
            *other != at && a.start < b.end && b.start < a.end
        };
        words().filter(overlaps).for_each(|other| state.trails[number(other)] = Trail::default());
        match at {
            Place::Slot(slot) => state.slots[slot].push(write),
            Place::Tensor => {}
            word => state.trails[number(word)] = write,
        }
    }

    /// What a reader learns from a write, if it acquires.
    fn published(&self, write: &Trail, reader: usize) -> Known {
        let (all, mut learnt) = (&self.events.all, Known::default());
        if write.by.is_some_and(|by| all[by].agrees(&all[reader])) {
            let agrees = |(by, _): &&(usize, Known)| all[*by].agrees(&all[reader]);
            write.releases.iter().filter(agrees).for_each(|(_, known)| learnt.join(*known));
        }
        learnt
    }

    fn add(
        &self,
        state: &mut State,
        party: usize,
        event: usize,
        (at, x, order): (Place, u64, Order),
        shown: &mut Shown,
    ) -> u64 {
        let mut write = match at {
            Place::Slot(i) => state.slots[i].last().cloned().unwrap_or_default(),
            Place::Tensor => Trail::default(),
            word => state.trails[number(word)].clone(),
        };
        let old = match at {
            Place::Word(i) => state.words[i],
            Place::Half(i) => state.words[i / 2] >> (32 * (i % 2)) & 0xffff_ffff,
            _ => write.value,
        };
        if matches!(order, Order::Acquire | Order::AcqRel) {
            let learnt = self.published(&write, event);
            state.known[party].join(learnt);
        }
        self.happens(state, party, event, shown);
        // An atomic continues what those before it published, if it is atomic together with the last of them.
        if write.by.is_some_and(|by| !self.events.all[by].agrees(&self.events.all[event])) {
            (write.releases, write.carried) = (Vec::new(), None);
        }
        let (known, new) = (state.known[party], old.wrapping_add(x));
        if matches!(order, Order::Release | Order::AcqRel) {
            write.releases.push((event, known));
            write.releases.sort_unstable();
        }
        self.written(state, at, Trail { by: Some(event), value: new, ..write });
        match at {
            Place::Word(i) => state.words[i] = new,
            Place::Half(i) => set_half(&mut state.words, i, new),
            Place::Slot(i) if x != 0 => {
                self.sets(state, party, event, (i, new), shown);
                if matches!(order, Order::Release | Order::AcqRel) {
                    state.own_signals[self.own(party, i)] = (new, known);
                }
            }
            _ => {}
        }
        old
    }

    /// Somebody sets a slot.
    fn sets(&self, state: &mut State, party: usize, event: usize, (slot, value): (usize, u64), shown: &mut Shown) {
        let is_atomic = |event: usize| matches!(self.events.all[event].kind, Kind::Atomic(_));
        let known = state.known[party];
        let is_found = |other: usize| {
            state.finds.iter().any(|(look, found)| known.over & 1 << look != 0 && found & 1 << other != 0)
        };
        let is_before = |other: usize| known.visible & 1 << other != 0 || is_found(other);
        let (setters, last) = &mut state.setters[slot];
        let others = (0..self.events.all.len()).filter(|&other| *setters & 1 << other != 0);
        shown.writers |= others
            .filter(|&other| self.events.all[other].by != self.events.all[event].by)
            .any(|other| !(is_before(other) || is_atomic(other) && is_atomic(event)));
        shown.shrinks |= last.is_some_and(|last| value <= last);
        *setters |= 1 << event;
        *last = Some(value);
    }

    pub(super) fn signal(
        &self,
        state: &mut State,
        party: usize,
        event: usize,
        (slot, value, credit): (usize, u64, bool),
        shown: &mut Shown,
    ) {
        self.happens(state, party, event, shown);
        self.sets(state, party, event, (slot, value), shown);
        let own = &mut state.own_signals[self.own(party, slot)];
        let (mut known, carried) = (state.known[party], credit.then_some(*own));
        match credit {
            true => known = Known { over: known.over, ..Known::default() },
            false => *own = (value, known),
        }
        let write = Trail { by: Some(event), value, releases: vec![(event, known)], carried };
        self.written(state, Place::Slot(slot), write);
    }

    fn wait(
        &self,
        state: &mut State,
        Step { party, event, read }: Step,
        (slot, value): (usize, u64),
        shown: &mut Shown,
    ) {
        let write = state.slots[slot][read].clone();
        let mut learnt = self.published(&write, event);
        // A credit publishes nothing. But a wait for a signal also learns that signal's data if it finds a later credit
        // of the same party. A wait for a credit that comes first and suffices does not.
        let agrees = |by: usize| self.events.all[by].agrees(&self.events.all[event]);
        // An addition continues what a credit before it carries, and is no credit itself.
        let is_addition = |by: usize| matches!(self.events.all[by].kind, Kind::Atomic(_));
        let is_credit = |write: &Trail| write.carried.is_some() && !write.by.is_some_and(is_addition);
        let for_credit = state.slots[slot].iter().find(|write| write.value >= value).is_some_and(is_credit);
        let carried = write.carried.filter(|(signalled, _)| *signalled >= value && !for_credit);
        if let Some((_, known)) = carried.filter(|_| write.by.is_some_and(agrees)) {
            learnt.join(known);
        }
        state.known[party].join(learnt);
        self.happens(state, party, event, shown);
        self.found(state, party, &write);
        let up_to = state.slots[slot][..=read].iter().filter_map(|write| write.by);
        let found = up_to.fold(0, |all: Events, by| all | 1 << by);
        state.finds.push((event, found));
        state.finds.sort_unstable();
    }

    /// A found write hides the older ones.
    fn found(&self, state: &mut State, party: usize, write: &Trail) {
        state.known[party].visible |= write.by.map_or(0, |by| 1 << by);
    }

    fn put(&self, state: &mut State, party: usize, event: usize, (packet, flag): (usize, u32), shown: &mut Shown) {
        self.happens(state, party, event, shown);
        shown.shrinks |= state.flags[packet] != 0 && flag <= state.flags[packet];
        state.flags[packet] = flag;
        let here = |known: Events| {
            let meets = |other: &usize| self.events.all[*other].meets(&self.events.all[event]);
            (0..self.events.all.len()).filter(meets).fold(0, |all, other| all | known & 1 << other)
        };
        let Known { visible, over, .. } = state.known[party];
        state.packets[packet] = Known { visible: here(visible), over: here(over), without_packets: 0 };
    }
}

pub(super) fn set_half(words: &mut [u64; WORDS], half: usize, x: u64) {
    let shift = 32 * (half % 2);
    let word = &mut words[half / 2];
    *word = *word & !(0xffff_ffff << shift) | (x & 0xffff_ffff) << shift;
}

fn words() -> impl Iterator<Item = Place> {
    (0..WORDS).map(Place::Word).chain((0..WORDS * 2).map(Place::Half))
}

/// The number of a word's trail.
fn number(at: Place) -> usize {
    match at {
        Place::Word(i) => i,
        Place::Half(i) => WORDS + i,
        Place::Slot(_) | Place::Tensor => unreachable!("no word"),
    }
}
