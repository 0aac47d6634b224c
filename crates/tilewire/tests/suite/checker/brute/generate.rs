//! Random small programs. A program is told as a story: parties touch memory in some order. If an access must come
//! after one of another party, the generator usually adds a handover between the two. So most programs are almost
//! right.

use super::program::{Cut, PACKETS, Party, Place, Program, SLOTS, Small, Span, Told, Touch, WORDS};
use tilewire::ir::{Access, NoticeKind, Order, Scope};
use tilewire_testkit::random::Random;

/// The features of a program besides loads, stores, signals and waits.
#[derive(Clone, Copy, Default, Debug)]
pub struct Features {
    pub atomics: bool,
    /// The results of atomics are used, and atomics acquire.
    pub used: bool,
    /// Atomics and plain stores also go to slots.
    pub raw_slots: bool,
    pub credits: bool,
    pub packets: bool,
    pub tests: bool,
    pub tensor: bool,
    /// Slots may have several writers.
    pub several: bool,
    /// Chains of parties that signal each other through a few slots.
    pub relays: bool,
    /// Signals may go through a network proxy.
    pub posts: bool,
    /// Words may go through it, too.
    pub data: bool,
}

impl Features {
    pub fn random(random: &mut Random) -> Features {
        let (atomics, several) = (random.once_in(2), random.once_in(4));
        Features {
            atomics,
            used: atomics && random.once_in(3),
            raw_slots: random.once_in(8),
            credits: random.once_in(3),
            packets: random.once_in(4),
            tests: random.once_in(5),
            tensor: random.once_in(6),
            several,
            relays: random.once_in(4),
            posts: random.once_in(4),
            data: random.once_in(2),
        }
    }
}

/// A rank: the number of its blocks, and the copies of each role.
type Shape = (usize, &'static [usize]);

/// The ranks, and the number of accesses of the story.
const SHAPES: [(&[Shape], usize); 17] = [
    (&[(1, &[1]), (1, &[1])], 4),
    (&[(1, &[1]), (1, &[1])], 6),
    (&[(1, &[1]), (1, &[1]), (1, &[1])], 4),
    (&[(1, &[1, 1]), (1, &[1])], 4),
    (&[(2, &[1])], 4),
    (&[(2, &[1]), (1, &[1])], 4),
    (&[(1, &[2])], 4),
    (&[(1, &[2]), (1, &[1])], 4),
    (&[(1, &[3])], 4),
    (&[(1, &[4])], 4),
    (&[(1, &[1, 2])], 4),
    (&[(1, &[1]), (1, &[1]), (1, &[1])], 7),
    (&[(2, &[1]), (2, &[1])], 4),
    (&[(1, &[1, 1]), (1, &[1, 1])], 5),
    (&[(1, &[1]), (1, &[1]), (1, &[1]), (1, &[1])], 3),
    (&[(1, &[1]), (1, &[1]), (1, &[1]), (1, &[1])], 5),
    (&[(1, &[1, 1]), (1, &[1]), (1, &[1]), (1, &[1])], 3),
];

/// The shapes of programs with relays, because chains need parties.
const LONG: [(&[Shape], usize); 5] = [
    (&[(1, &[1]), (1, &[1]), (1, &[1])], 1),
    (&[(1, &[1]), (1, &[1]), (1, &[1]), (1, &[1])], 1),
    (&[(1, &[1]), (1, &[1]), (1, &[1]), (1, &[1])], 2),
    (&[(1, &[1, 1]), (1, &[1]), (1, &[1])], 2),
    (&[(1, &[1]), (1, &[1]), (1, &[1]), (1, &[1]), (1, &[1])], 1),
];

struct Story<'r> {
    random: &'r mut Random,
    features: Features,
    parties: Vec<Party>,
    tensor: Option<(usize, Access)>,
    /// For each slot and each packet, the last value of the story so far.
    slots: [u64; SLOTS],
    flags: [u32; PACKETS],
    /// For each word, the tensor last: the last writer, and the parties that have touched the word since.
    touched: [Vec<usize>; WORDS + 1],
}

pub fn program(random: &mut Random, features: Features) -> Program {
    let (shape, accesses) = if features.relays { random.pick(&LONG) } else { random.pick(&SHAPES) };
    let posts = features.posts && shape.len() > 1;
    let features = Features { posts, data: posts && features.data, ..features };
    let mut parties = Vec::new();
    for (rank, (blocks, roles)) in shape.iter().enumerate() {
        for block in 0..*blocks {
            for (role, copies) in roles.iter().enumerate() {
                parties.extend((0..*copies).map(|copy| Party { rank, block, role, copy, ops: Vec::new() }));
            }
        }
    }
    let owner = features.tensor.then(|| (random.below(shape.len()), random.pick(&[Access::In, Access::Out])));
    let mut story = Story {
        random,
        features,
        parties,
        tensor: owner,
        slots: [0; SLOTS],
        flags: [0; PACKETS],
        touched: Default::default(),
    };
    if features.relays {
        story.relay();
    }
    for _ in 0..accesses {
        story.go_on();
    }
    story.mistake();
    story.take_what_is_left();
    Program { parties: story.parties, tensor: owner }
}

impl Story<'_> {
    fn go_on(&mut self) {
        let party = self.random.below(self.parties.len());
        match self.random.below(8) {
            0 if self.features.packets => self.exchange(party),
            1 if self.features.tests => {
                let (slot, value) = (self.random.below(self.parties.len().min(SLOTS)), 1 + self.random.below(2) as u64);
                let (there, then) = (!self.random.once_in(3), self.touch(party).1);
                self.push(party, Small::Test { slot, value, there, then });
            }
            2 if self.features.tests && self.random.once_in(4) => self.look(party),
            2 if self.random.once_in(2) => {
                let slot = self.random.below(SLOTS);
                let value = self.slots[slot].max(1) + self.random.below(2) as u64;
                self.push(party, Small::Wait { slot, value });
            }
            3 if self.random.once_in(2) => self.signal(party, None),
            4 if self.features.raw_slots => {
                let (at, write) = (Place::Slot(self.random.below(SLOTS)), self.random.once_in(2).then_some(2));
                let op = match self.random.once_in(2) {
                    true => Small::Plain(Touch { at, write }),
                    false => self.atomic(at),
                };
                self.push(party, op);
            }
            5 | 6 if self.features.data => self.send(party),
            _ => self.access(party),
        }
    }

    /// A party posts a word to another word, and some party waits for it.
    fn send(&mut self, party: usize) {
        let from = self.random.below(WORDS);
        let cut = if self.random.once_in(3) { Cut::Halves } else { Cut::Whole };
        let span = Span { from, to: (from + 1) % WORDS, cut };
        // The read comes after the writes of the word that is read. The write comes after all accesses.
        for word in [span.from, span.to] {
            let others: Vec<usize> = self.touched[word].iter().copied().filter(|&other| other != party).collect();
            for other in others {
                if !self.random.once_in(8) {
                    self.handover(other, party);
                }
            }
        }
        let to = self.random.below(self.parties.len());
        match self.random.once_in(3) {
            // The two halves are posted separately. A party that waits for the second one may forget the first.
            true => {
                let halves = [0, 1].map(|half| self.post(party, Span { cut: Cut::Half(half), ..span }));
                let forgets = self.random.once_in(2);
                let waited = halves.into_iter().skip(usize::from(forgets));
                waited.for_each(|Told { slot, value, .. }| self.push(to, Small::Wait { slot, value }));
            }
            false => {
                let Told { slot, value, .. } = self.post(party, span);
                if !self.random.once_in(8) {
                    self.push(to, Small::Wait { slot, value });
                }
            }
        }
        if self.random.once_in(2) {
            self.push(to, Small::Plain(Touch { at: Place::Word(span.to), write: None }));
        }
        if self.random.once_in(3) {
            self.refill(party, span.from);
        }
        // A later access comes after the copy if it comes after the party that waited for it.
        self.touched[span.from].push(to);
        self.touched[span.to] = vec![to];
    }

    /// A party flushes its posts, usually waits for the flush, and overwrites a word.
    fn refill(&mut self, party: usize, word: usize) {
        let slot = self.random.below(SLOTS);
        self.slots[slot] += 1;
        let told = Told { slot, value: self.slots[slot], kind: NoticeKind::Flush };
        let peer = self.peer();
        self.push(party, Small::Post { peer, span: None, notice: Some(told) });
        if !self.random.once_in(6) {
            // Sometimes another party waits, and overwrites the word.
            let to = if self.random.once_in(4) { self.random.below(self.parties.len()) } else { party };
            self.push(to, Small::Wait { slot, value: told.value });
            self.push(to, Small::Plain(Touch { at: Place::Word(word), write: Some(9) }));
        }
    }

    /// A party posts bytes and their notice.
    fn post(&mut self, party: usize, span: Span) -> Told {
        let mut peer = self.peer();
        let slot = if self.random.once_in(2) { self.random.below(SLOTS) } else { party % SLOTS };
        self.slots[slot] += 1;
        let mut told = Told { slot, value: self.slots[slot], kind: NoticeKind::Data };
        if !self.random.once_in(3) {
            self.push(party, Small::Post { peer, span: Some(span), notice: Some(told) });
            return told;
        }
        // It posts bytes alone, and a signal later. In rare cases the signal goes to another peer, or is a credit.
        self.push(party, Small::Post { peer, span: Some(span), notice: None });
        if self.random.once_in(3) {
            self.access(party);
        }
        if self.random.once_in(8) {
            peer = self.peer();
        }
        match self.random.below(12) {
            0 | 1 => told.kind = NoticeKind::Credit,
            2 => told.kind = NoticeKind::Flush,
            _ => {}
        }
        self.push(party, Small::Post { peer, span: None, notice: Some(told) });
        told
    }

    /// A rank to post to. It is usually the same one.
    fn peer(&mut self) -> usize {
        let ranks = self.parties.iter().map(|party| party.rank + 1).max().unwrap_or(1);
        if self.random.once_in(4) { self.random.below(ranks) } else { 0 }
    }

    /// An access. Usually there is a handover from every party whose access must come earlier.
    fn access(&mut self, party: usize) {
        let (place, touch) = self.touch(party);
        let atomic = self.features.atomics && place < WORDS && self.random.once_in(2);
        let others: Vec<usize> = self.touched[place].iter().copied().filter(|&other| other != party).collect();
        for other in others {
            let needed = match atomic {
                true => self.random.once_in(3),
                false => touch.write.is_some() || !self.random.once_in(3),
            };
            if needed && !self.random.once_in(6) {
                self.handover(other, party);
            }
        }
        let op = if atomic { self.atomic(touch.at) } else { Small::Plain(touch) };
        self.push(party, op);
        if touch.write.is_some() && !atomic {
            self.touched[place].clear();
        }
        self.touched[place].push(party);
    }

    /// A place, as a number, and a plain access to it that the party may make.
    fn touch(&mut self, party: usize) -> (usize, Touch) {
        let write = self.random.once_in(2).then(|| self.random.below(2) as u64);
        if self.features.tensor && self.random.once_in(2) {
            let access = self.tensor.filter(|(owner, _)| *owner == self.parties[party].rank).map(|(_, access)| access);
            let write = match access {
                Some(Access::In) => None,
                Some(Access::Out) => Some(1),
                _ => write,
            };
            return (WORDS, Touch { at: Place::Tensor, write });
        }
        let word = self.random.below(WORDS);
        let half = self.random.once_in(12);
        (word, Touch { at: if half { Place::Half(word * 2) } else { Place::Word(word) }, write })
    }

    fn atomic(&mut self, at: Place) -> Small {
        let used = self.features.used && self.random.once_in(2);
        let order = match self.features.used {
            true => self.random.pick(&[Order::Relaxed, Order::Acquire, Order::Release, Order::AcqRel]),
            false => self.random.pick(&[Order::Relaxed, Order::Relaxed, Order::Release, Order::AcqRel]),
        };
        let scope = self.random.pick(&[Scope::System, Scope::System, Scope::Device, Scope::Block]);
        let then = used.then(|| {
            let write = self.random.once_in(2).then_some(1);
            (self.random.below(2) as u64, Touch { at: Place::Word(self.random.below(WORDS)), write })
        });
        Small::Add { at, x: 1 + self.random.below(2) as u64, order, scope, then }
    }

    /// A handover: the earlier actions of one party come before the later ones of the other.
    fn handover(&mut self, from: usize, to: usize) {
        let kind = self.random.below(8);
        match kind {
            0 if self.features.used => {
                let (at, scope) =
                    (Place::Word(self.random.below(WORDS)), self.random.pick(&[Scope::System, Scope::Device]));
                let add = |order, then| Small::Add { at, x: 1, order, scope, then };
                let touch = self.touch(to).1;
                self.push(from, add(Order::Release, None));
                self.push(to, add(Order::AcqRel, Some((1, touch))));
            }
            1 if self.features.packets => {
                let (packet, count) = (self.random.below(PACKETS), 1);
                self.flags[packet] += 1;
                let wire = Some((packet, self.flags[packet]));
                self.push(from, Small::Packets { count, put: wire, get: None, get_first: false });
                self.push(to, Small::Packets { count, put: None, get: wire, get_first: false });
            }
            2 if self.features.raw_slots => {
                let slot = self.random.below(SLOTS);
                self.slots[slot] += 1;
                let (at, then) = (Place::Slot(slot), None);
                let order = self.random.pick(&[Order::Release, Order::Release, Order::Relaxed]);
                self.push(from, Small::Add { at, x: 1, order, scope: Scope::System, then });
                self.push(to, Small::Wait { slot, value: self.slots[slot] });
            }
            _ => self.signal(from, Some(to)),
        }
    }

    /// One party touches a word and signals the next, which signals the next, through two slots. The last one touches
    /// the word. Some poll twice, and some wait for an earlier signal than the intended one.
    fn relay(&mut self) {
        let mut chain: Vec<usize> = (0..self.parties.len()).collect();
        (1..chain.len()).for_each(|i| chain.swap(i, self.random.below(i + 1)));
        chain.truncate(3 + self.random.below(chain.len().max(3) - 2));
        let word = self.random.below(WORDS);
        let touch = |write: bool| Small::Plain(Touch { at: Place::Word(word), write: write.then_some(1) });
        let first = self.random.below(4) > 0;
        self.push(chain[0], touch(first));
        for pair in chain.windows(2) {
            let slot = self.random.below(2);
            self.slots[slot] += 1;
            let value = self.slots[slot];
            let signal = self.signalling(slot, value);
            self.push(pair[0], signal);
            let wanted = if value > 1 && self.random.once_in(3) { value - 1 } else { value };
            self.push(pair[1], Small::Wait { slot, value: wanted });
            if self.random.once_in(8) {
                self.push(pair[1], Small::Wait { slot, value: wanted });
            }
        }
        let last = chain[chain.len() - 1];
        let write = !first || self.random.once_in(4);
        self.push(last, touch(write));
        if self.random.once_in(2) {
            let party = self.random.below(self.parties.len());
            let slot = self.random.below(2);
            self.push(party, Small::Wait { slot, value: self.slots[slot].max(1) });
        }
    }

    /// A signal, a credit, or one of them through the network.
    fn signalling(&mut self, slot: usize, value: u64) -> Small {
        match self.features.posts && self.random.once_in(4) {
            true => {
                let kind = match self.features.credits && self.random.once_in(2) {
                    true if self.random.once_in(3) => NoticeKind::Flush,
                    true => NoticeKind::Credit,
                    false => NoticeKind::Data,
                };
                Small::Post { peer: self.peer(), span: None, notice: Some(Told { slot, value, kind }) }
            }
            false => Small::Signal { slot, value, credit: self.features.credits && self.random.once_in(2) },
        }
    }

    /// A party signals, and another one may wait for it.
    fn signal(&mut self, from: usize, to: Option<usize>) {
        let several = self.features.several && self.random.once_in(2);
        let slot = if several { self.random.below(2) } else { from % SLOTS };
        let value = self.slots[slot] + 1;
        self.slots[slot] = value;
        let signal = self.signalling(slot, value);
        self.push(from, signal);
        if let Some(to) = to {
            // Sometimes for an earlier signal.
            let value = if self.random.once_in(if several { 3 } else { 8 }) { value.max(2) - 1 } else { value };
            self.push(to, Small::Wait { slot, value });
        }
    }

    /// Packets go from one party to another, or both ways.
    fn exchange(&mut self, party: usize) {
        let other = (party + 1 + self.random.below(self.parties.len().max(2) - 1)) % self.parties.len();
        let (count, first, second) = (1 + self.random.below(2), 0, 2);
        let mut flag = |first: usize| {
            let next = 1 + (first..first + count).map(|packet| self.flags[packet]).max().unwrap_or(0);
            self.flags[first..first + count].fill(next);
            next
        };
        let forth = Some((first, flag(first)));
        if self.random.once_in(2) {
            self.push(party, Small::Packets { count, put: forth, get: None, get_first: false });
            self.push(other, Small::Packets { count, put: None, get: forth, get_first: false });
            // A packet does not publish the signals before it.
            let value = self.slots[party % SLOTS];
            if value > 0 && self.random.once_in(2) {
                let value = 1 + self.random.below(value as usize) as u64;
                self.push(other, Small::Wait { slot: party % SLOTS, value });
            }
        } else {
            let back = Some((second, flag(second)));
            let get_first = self.random.once_in(3);
            self.push(party, Small::Packets { count, put: forth, get: back, get_first: false });
            self.push(other, Small::Packets { count, put: back, get: forth, get_first });
        }
    }

    /// Two parties announce themselves, and each continues if the other has not announced itself. On real machines both
    /// may continue.
    fn look(&mut self, party: usize) {
        let other = (party + 1) % self.parties.len();
        let at = Place::Word(self.random.below(WORDS));
        for (me, they) in [(party, other), (other, party)] {
            let value = self.slots[they % SLOTS] + 1;
            self.signal(me, None);
            self.push(me, Small::Test { slot: they % SLOTS, value, there: false, then: Touch { at, write: Some(1) } });
        }
    }

    fn push(&mut self, party: usize, op: Small) {
        self.parties[party].ops.push(op);
    }

    /// In one of three programs an op is left out or comes too early.
    fn mistake(&mut self) {
        let party = self.random.below(self.parties.len());
        let ops = &mut self.parties[party].ops;
        if ops.len() > 1 && self.random.once_in(3) {
            let at = self.random.below(ops.len() - 1);
            match self.random.once_in(2) {
                true => _ = ops.remove(at),
                false => ops.swap(at, at + 1),
            }
        }
    }

    /// A counter that nobody waits for is another kind of fault.
    fn take_what_is_left(&mut self) {
        let all = || self.parties.iter().flat_map(|party| &party.ops);
        let signalled = |slot| {
            all().any(|op| match op {
                Small::Signal { slot: at, .. } | Small::Post { notice: Some(Told { slot: at, .. }), .. } => *at == slot,
                _ => false,
            })
        };
        let waited = |slot| all().any(|op| matches!(op, Small::Wait { slot: at, .. } if *at == slot));
        let left: Vec<usize> = (0..SLOTS).filter(|&slot| signalled(slot) && !waited(slot)).collect();
        left.into_iter().for_each(|slot| self.push(0, Small::Wait { slot, value: 1 }));
    }
}
