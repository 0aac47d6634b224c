//! Small programs as data: the ops of each role copy, one after the other, and the kernels made of them.

use super::events::bytes;
use std::fmt;
use tilewire::check::Plan;
use tilewire::hook::{Queue, Region, RoleCtx, Slots, Value, View};
use tilewire::ir::{Access, NoticeKind, Order, Scope};
use tilewire::{Memory, Traced, kernel};

pub const WORDS: usize = 2;
pub const SLOTS: usize = 4;
pub const PACKETS: usize = 4;
/// The number of places where a party records values.
const RECORDS: usize = 64;

/// The place of a plain access or an atomic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// One of the shared words, 8 bytes.
    Word(usize),
    /// Half of one, 4 bytes.
    Half(usize),
    /// The 8 bytes of a slot.
    Slot(usize),
    /// A word that one rank may bind as its input or its output.
    Tensor,
}

/// A plain access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    pub at: Place,
    /// The written value; `None` for a read.
    pub write: Option<u64>,
}

/// The bytes of a post: one word is copied to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub from: usize,
    pub to: usize,
    pub cut: Cut,
}

/// The way in which a word is posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    Whole,
    /// In two parts.
    Halves,
    /// Only one half of it.
    Half(usize),
}

/// A notice that is posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    pub slot: usize,
    pub value: u64,
    pub kind: NoticeKind,
}

impl Span {
    /// The places between which its parts are copied.
    pub fn parts(self) -> Vec<(Place, Place)> {
        let Span { from, to, cut } = self;
        let half = |half: usize| (Place::Half(from * 2 + half), Place::Half(to * 2 + half));
        match cut {
            Cut::Whole => vec![(Place::Word(from), Place::Word(to))],
            Cut::Halves => vec![half(0), half(1)],
            Cut::Half(number) => vec![half(number)],
        }
    }
}

/// One op of a small program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Small {
    Plain(Touch),
    /// An atomic addition. `then` uses its result: the touch happens if the old value equals the given one.
    Add {
        at: Place,
        x: u64,
        order: Order,
        scope: Scope,
        then: Option<(u64, Touch)>,
    },
    Signal {
        slot: usize,
        value: u64,
        credit: bool,
    },
    /// A post through the network proxy, to a rank.
    Post {
        peer: usize,
        span: Option<Span>,
        notice: Option<Told>,
    },
    Wait {
        slot: usize,
        value: u64,
    },
    /// A test of a slot. The touch happens if the result equals `there`.
    Test {
        slot: usize,
        value: u64,
        there: bool,
        then: Touch,
    },
    /// An `each` of this many elements that puts packets, gets packets, or both: from which element on, and with which
    /// flag.
    Packets {
        count: usize,
        put: Option<(usize, u32)>,
        get: Option<(usize, u32)>,
        get_first: bool,
    },
}

/// A role copy and its ops.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Party {
    pub rank: usize,
    pub block: usize,
    pub role: usize,
    pub copy: usize,
    pub ops: Vec<Small>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Every (rank, block, role, copy), in order.
    pub parties: Vec<Party>,
    /// The rank that has bound [`Place::Tensor`] as its input or its output, and which of the two. Other ranks bind it
    /// `InOut`.
    pub tensor: Option<(usize, Access)>,
}

/// The kernels, the memory that they share, and the memory of each rank.
type Recording = (Vec<Traced>, Vec<Memory>, Vec<Vec<Memory>>);

/// One kernel for each rank, and the wires of their posts.
pub struct Launch {
    pub kernels: Vec<Traced>,
    /// The rings, and the memory and the slots of every peer. They are the same for all.
    rings: Vec<Memory>,
    region: Memory,
    slots: Memory,
}

impl Launch {
    pub fn plan(self) -> Plan {
        let mut plan = crate::checker::plan(&[self.kernels]);
        for (ring, peer) in self.rings.iter().flat_map(|ring| (0..self.rings.len()).map(move |peer| (ring, peer))) {
            plan.route(ring, peer as u32, &self.region, &self.slots, 8);
        }
        plan
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((rank, access)) = self.tensor {
            writeln!(f, "the tensor is {access:?} on rank {rank}")?;
        }
        for Party { rank, block, role, copy, ops } in &self.parties {
            writeln!(f, "rank {rank} block {block} role {role} copy {copy}:")?;
            ops.iter().try_for_each(|op| writeln!(f, "    {op:?}"))?;
        }
        Ok(())
    }
}

impl Program {
    pub fn ranks(&self) -> usize {
        self.parties.iter().map(|party| party.rank + 1).max().unwrap_or(0)
    }

    pub fn copies(&self) -> usize {
        self.parties.iter().map(|party| party.copy + 1).max().unwrap_or(0)
    }

    pub fn ops(&self) -> impl Iterator<Item = &Small> {
        self.parties.iter().flat_map(|party| &party.ops)
    }

    /// The program that is left if every role has one copy.
    pub fn with_one_copy(&self) -> Program {
        let parties = self.parties.iter().filter(|party| party.copy == 0).cloned().collect();
        Program { parties, ..self.clone() }
    }

    pub fn posts(&self) -> bool {
        self.ops().any(|op| matches!(op, Small::Post { .. }))
    }

    /// One kernel for each rank. All of them bind all memory, so that no host takes it for its own.
    pub fn trace(&self) -> Result<Launch, tilewire::BuildError> {
        let rings: Vec<Memory> = (0..self.ranks()).filter(|_| self.posts()).map(|_| Memory::zeroed(64)).collect();
        let (kernels, shared, _) = self.traced(false, &Memory::zeroed, &rings)?;
        let [region, slots] = [0, 1].map(|i| shared[i].clone());
        Ok(Launch { kernels, rings, region, slots })
    }

    /// The same, with parties that record the values they load and get, each in a separate place. Returns the memory of
    /// all ranks, which `shared` makes, and that of each rank.
    pub fn trace_recording(&self, shared: &dyn Fn(usize) -> Memory) -> Result<Recording, tilewire::BuildError> {
        self.traced(true, shared, &[])
    }

    fn traced(
        &self,
        records: bool,
        shared: &dyn Fn(usize) -> Memory,
        rings: &[Memory],
    ) -> Result<Recording, tilewire::BuildError> {
        let memory = |bytes| [shared(bytes)];
        let (words, slots, tensor, packets) = (memory(WORDS * 8), memory(SLOTS * 8), memory(8), memory(PACKETS * 16));
        let records: Vec<Memory> =
            (0..self.ranks()).filter(|_| records).map(|_| Memory::zeroed(8 * RECORDS * self.parties.len())).collect();
        let rank = |rank: usize| {
            let parties: Vec<&Party> = self.parties.iter().filter(|party| party.rank == rank).collect();
            let most = |of: fn(&Party) -> usize| parties.iter().map(|party| of(party) + 1).max().unwrap_or(1);
            let access = self.tensor.filter(|(owner, _)| *owner == rank).map_or(Access::InOut, |(_, access)| access);
            kernel("small", |k| {
                k.blocks(most(|party| party.block) as u32);
                let at = Memories {
                    words: k.buffer("words", &words, Access::InOut).bank(0),
                    halves: k.buffer("halves", &words, Access::InOut).bank(0),
                    raw: k.buffer("raw slots", &slots, Access::InOut).bank(0),
                    tensor: k.buffer("tensor", &tensor, access).bank(0),
                    packets: k.region("packets", &packets),
                    slots: k.slots("slots", &slots, 8),
                    wire: rings.get(rank).map(|ring| (k.queue("wire", ring), k.region("source", &words).bank(0))),
                    record: records
                        .get(rank)
                        .map(|record| k.buffer("record", std::slice::from_ref(record), Access::InOut).bank(0)),
                };
                for role in 0..most(|party| party.role) {
                    let of_role: Vec<&&Party> = parties.iter().filter(|party| party.role == role).collect();
                    let copies = of_role.iter().map(|party| party.copy + 1).max().unwrap_or(1);
                    k.role(format!("role {role}"), 1).copies(copies as u32, |r| {
                        r.barrier();
                        for party in of_role {
                            let me = r.copy().eq(party.copy as i64) & r.block().eq(party.block as i64);
                            let number = self.parties.iter().position(|other| other == *party).unwrap_or(0);
                            let ops = || (number * RECORDS..).step_by(2).zip(&party.ops);
                            r.if_(me, || ops().for_each(|(place, op)| at.op(r, op, place as i64)));
                        }
                    });
                }
            })
        };
        let kernels = (0..self.ranks()).map(rank).collect::<Result<_, _>>()?;
        let shared = [words, slots, tensor, packets].into_iter().flatten().collect();
        Ok((kernels, shared, records.into_iter().map(|record| vec![record]).collect()))
    }
}

struct Memories<'t> {
    words: View<'t, u64>,
    halves: View<'t, u32>,
    raw: View<'t, u64>,
    tensor: View<'t, u64>,
    packets: Region<'t>,
    slots: Slots<'t>,
    wire: Option<(Queue<'t>, View<'t, u8>)>,
    record: Option<View<'t, u64>>,
}

impl<'t> Memories<'t> {
    /// Emits an op. It records a loaded value at this place, and packets from this place on.
    fn op(&self, r: &RoleCtx<'t>, op: &Small, place: i64) {
        let slot = |slot: usize| self.slots.slot(0, slot as i64);
        match *op {
            Small::Plain(touch) => self.touch(&touch, place),
            Small::Add { at, x, order, scope, then } => {
                let found = self.add(at, x, order, scope, then.map(|(value, _)| value));
                if let (Some(found), Some((_, touch))) = (found, then) {
                    r.if_(found, || self.touch(&touch, place));
                }
            }
            Small::Signal { slot: at, value, credit: false } => r.signal(slot(at), value as i64),
            Small::Signal { slot: at, value, credit: true } => r.signal_credit(slot(at), value as i64),
            Small::Post { peer, span, notice } => self.post(r, peer as i64, span, notice),
            Small::Wait { slot: at, value } => r.wait(slot(at), value as i64),
            Small::Test { slot: at, value, there, then } => {
                let found = r.test(slot(at), value as i64).eq(there);
                r.if_(found, || self.touch(&then, place));
            }
            Small::Packets { count, put, get, get_first } => r.each(count, |i| {
                let put = || {
                    if let Some((first, flag)) = put {
                        self.packets.packet_put(0, i + first as i64, i.cast::<u64>() + u64::from(flag) * 10, flag);
                    }
                };
                if !get_first {
                    put();
                }
                if let Some((first, flag)) = get {
                    let x = self.packets.packet_get(0, i + first as i64, flag);
                    self.record.iter().for_each(|record| record.store(i + place, x));
                }
                if get_first {
                    put();
                }
            }),
        }
    }

    fn post(&self, r: &RoleCtx<'t>, peer: i64, span: Option<Span>, notice: Option<Told>) {
        let (wire, source) = self.wire.expect("a program that posts has wires");
        let parts: Vec<(View<'t, u8>, i64, i64)> = span
            .map_or(Vec::new(), Span::parts)
            .into_iter()
            .map(|(from, to)| {
                let (from, to) = (bytes(from), bytes(to));
                (source.part(from.start as i64, from.len()), to.start as i64, to.len() as i64)
            })
            .collect();
        match notice {
            Some(Told { slot, value, kind: NoticeKind::Credit }) => {
                r.post_credit(wire, peer, slot as i64, value as i64);
            }
            Some(Told { slot, value, kind: NoticeKind::Flush }) => {
                r.post_flush(wire, peer, slot as i64, value as i64);
            }
            Some(Told { slot, value, .. }) if parts.is_empty() => r.post_signal(wire, peer, slot as i64, value as i64),
            Some(Told { slot, value, .. }) => {
                let parts: Vec<_> =
                    parts.into_iter().map(|(source, to, bytes)| (source, r.constant(to), r.constant(bytes))).collect();
                r.deliver(wire, peer, &parts, slot as i64, value as i64);
            }
            None => parts.into_iter().for_each(|(source, to, bytes)| r.post(wire, peer, source, to, bytes)),
        }
    }

    fn touch(&self, touch: &Touch, place: i64) {
        let keep = |x: Value<'t, u64>| self.record.iter().for_each(|record| record.store(place, x));
        match (touch.at, touch.write) {
            (Place::Word(i), None) => keep(self.words.load(i as i64)),
            (Place::Word(i), Some(x)) => self.words.store(i as i64, x),
            (Place::Half(i), None) => {
                let x = self.halves.load(i as i64);
                self.record.iter().for_each(|record| record.store(place, x.cast::<u64>()));
            }
            (Place::Half(i), Some(x)) => self.halves.store(i as i64, x as u32),
            (Place::Slot(i), None) => keep(self.raw.load(i as i64)),
            (Place::Slot(i), Some(x)) => self.raw.store(i as i64, x),
            (Place::Tensor, None) => keep(self.tensor.load(0)),
            (Place::Tensor, Some(x)) => self.tensor.store(0, x),
        }
    }

    /// True if the old value is the expected one. If no value is expected, nothing uses the result.
    fn add(&self, at: Place, x: u64, order: Order, scope: Scope, is: Option<u64>) -> Option<Value<'t, bool>> {
        let wide = |view: &View<'t, u64>, i: usize| {
            let old = view.atomic_add(i as i64, x, order, scope);
            is.map(|value| old.eq(value))
        };
        match at {
            Place::Word(i) => wide(&self.words, i),
            Place::Slot(i) => wide(&self.raw, i),
            Place::Tensor => wide(&self.tensor, 0),
            Place::Half(i) => {
                let old = self.halves.atomic_add(i as i64, x as u32, order, scope);
                is.map(|value| old.eq(value as u32))
            }
        }
    }
}
