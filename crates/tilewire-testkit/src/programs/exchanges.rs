//! Sections where roles, blocks or elements meet: atomics, regions, packets, bulk copies, messages.

use super::data::elements;
use super::expression::Pool;
use super::sections::{Section, block_start};
use super::writer::{Writer, at, in_scratch};
use super::{Maker, Wish};
use crate::random::Random;
use tilewire::ir::{
    Access, BinaryOp, BulkDone, CompareOp, Mask, Op, Order, ParamId, Place, RoleId, Scope, Special, Type, Value,
};

const IN: Wish = Wish { access: Access::In, align: 0, banks: 1, compare: true };
const SHARED: Wish = Wish { access: Access::InOut, align: 0, banks: 1, compare: true };

/// The roles that send and receive. They are the same role if the kernel has only one.
#[derive(Clone, Copy)]
struct Pair {
    sender: u32,
    receiver: u32,
}

impl Pair {
    fn plan(maker: &Maker, random: &mut Random) -> Self {
        let roles = u64::from(maker.roles);
        let sender = random.below_u64(roles);
        let receiver = if roles == 1 { 0 } else { (sender + 1 + random.below_u64(roles - 1)) % roles };
        Pair { sender: sender as u32, receiver: receiver as u32 }
    }
}

/// Sums into a few counters from all roles and blocks, and tickets that pick places for equal values.
pub struct Atomics {
    ty: Type,
    len: u64,
    extent: u64,
    addends: ParamId,
    counters: ParamId,
    ticket: ParamId,
    marks: ParamId,
}

impl Atomics {
    pub fn plan(maker: &mut Maker, random: &mut Random) -> Self {
        let ty = random.pick(&[Type::I32, Type::U32, Type::I64, Type::U64]);
        let (len, extent) = (1 + random.below_u64(5), random.pick(&[0, 1, 7, 100]));
        let everybody = extent * maker.blocks * u64::from(maker.roles);
        Atomics {
            ty,
            len,
            extent,
            addends: maker.random_buffer(ty, extent.max(1), IN, random),
            counters: maker.random_buffer(ty, len, SHARED, random),
            ticket: maker.buffer(ty, vec![vec![0; ty.size()]], SHARED, random),
            marks: maker.random_buffer(Type::U16, everybody, SHARED, random),
        }
    }
}

impl Section for Atomics {
    /// Every role of every block takes part.
    fn emit(&self, maker: &mut Maker, _: u32, _: RoleId, random: &mut Random) {
        let c = &mut maker.c;
        let order = random.pick(&[Order::Relaxed, Order::Acquire, Order::Release, Order::AcqRel]);
        let scope = random.pick(&[Scope::Device, Scope::System]);
        let (extent, masked) = (c.i64(self.extent as i64), random.once_in(2));
        c.each(extent, |c, i| {
            let x = c.load(self.addends, i);
            let len = c.i64(self.len as i64);
            let index = c.binary(BinaryOp::Rem, i, len);
            let mut pool = Pool::default();
            pool.add(c, x, true);
            let mask = masked.then(|| pool.condition(c, random));
            c.op(Op::AtomicAdd { at: at(self.counters, index), x, mask, order, scope });
            let (zero, one, mark) = (c.i64(0), c.bits(self.ty, 1), c.bits(Type::U16, 0x1234));
            let place = c.atomic_add(self.ticket, zero, one, None);
            let place = c.cast(place, Type::I64);
            c.store(self.marks, place, mark);
        });
        let (zero, x) = (c.i64(0), c.bits(self.ty, 3));
        c.atomic_add(self.counters, zero, x, None);
    }
}

/// Values of any type through a byte region.
pub struct PutGet {
    pair: Pair,
    ty: Type,
    read_as: Type,
    extent: u64,
    exact: bool,
    /// Elements from this number on are masked off.
    limit: Option<u64>,
    input: ParamId,
    region: ParamId,
    output: ParamId,
    slots: ParamId,
}

impl PutGet {
    pub fn plan(maker: &mut Maker, random: &mut Random) -> Self {
        let (ty, exact) = (random.pick(&Type::ALL), random.once_in(2));
        // Other types may read the bytes only if none of them can come from an arithmetic NaN.
        let smaller = |other: &Type| other.size() <= ty.size();
        let readers: Vec<Type> = Type::ALL.into_iter().filter(smaller).collect();
        let read_as = if exact { random.pick(&readers) } else { ty };
        let extent = random.pick(&[0, 1, 7, 31, 64, 100]);
        let (len, bytes) = (extent * maker.blocks, extent * 16 * maker.blocks);
        let wish = Wish { align: 16, compare: exact || !ty.is_float(), ..SHARED };
        PutGet {
            pair: Pair::plan(maker, random),
            ty,
            read_as,
            extent,
            exact,
            limit: random.once_in(3).then(|| random.below_u64(extent + 1)),
            input: maker.random_buffer(ty, len, IN, random),
            region: maker.random_buffer(Type::U8, bytes, wish, random),
            output: maker.random_buffer(read_as, len, Wish::new(Access::Out), random),
            slots: maker.slots(maker.blocks, random),
        }
    }
}

impl PutGet {
    /// The mask of an element, if the section has a limit.
    fn inside(&self, c: &mut Writer, i: Value) -> Option<Value> {
        let limit = c.i64(self.limit? as i64);
        Some(c.compare(CompareOp::Lt, i, limit))
    }
}

impl Section for PutGet {
    fn emit(&self, maker: &mut Maker, role: u32, _: RoleId, random: &mut Random) {
        let n = self.extent;
        // Values are packed, or spread over 16 bytes each. Both roles must agree.
        let width = if n.is_multiple_of(2) { self.ty.size() as i64 } else { 16 };
        let c = &mut maker.c;
        let (extent, start, block) = (c.i64(n as i64), block_start(c, n), c.special(Special::Block));
        let (bytes, seven) = (block_start(c, n * 16), c.u64(7));
        if role == self.pair.sender {
            c.each(extent, |c, i| {
                let index = c.add(start, i);
                let mut x = c.load(self.input, index);
                if !self.exact {
                    let mut pool = Pool::default();
                    pool.add(c, x, true);
                    pool.grow(c, 3, random);
                    x = pool.of(c, self.ty, random).v;
                }
                let byte = c.scale(i, width, bytes);
                let mask = self.inside(c, i);
                c.run(Op::Put { at: at(self.region, byte), x, mask });
            });
            c.signal(self.slots, block, seven);
        }
        if role == self.pair.receiver {
            c.wait(self.slots, block, seven);
            c.each(extent, |c, i| {
                let byte = c.scale(i, width, bytes);
                let mask = self.inside(c, i).map(|cond| Mask { cond, other: c.bits(self.read_as, 1) });
                let x = c.op(Op::Get { at: at(self.region, byte), to: self.read_as, mask });
                let index = c.add(start, i);
                c.store(self.output, index, x);
            });
        }
    }
}

/// Packets with credits, in several rounds through the same area.
pub struct Packets {
    pair: Pair,
    extent: u64,
    rounds: u64,
    input: ParamId,
    area: ParamId,
    output: ParamId,
    credits: ParamId,
}

impl Packets {
    pub fn plan(maker: &mut Maker, random: &mut Random) -> Self {
        let (extent, rounds) = (random.pick(&[0, 1, 7, 31, 64]), 1 + random.below_u64(3));
        let len = extent * maker.blocks;
        Packets {
            pair: Pair::plan(maker, random),
            extent,
            rounds,
            input: maker.random_buffer(Type::U64, len, IN, random),
            // Flag 0 means empty.
            area: maker.buffer(Type::U8, vec![vec![0; len as usize * 16]], Wish { align: 16, ..SHARED }, random),
            output: maker.random_buffer(Type::U64, len * rounds, Wish::new(Access::Out), random),
            credits: maker.slots(maker.blocks, random),
        }
    }

    fn send(&self, c: &mut Writer, round: Value) {
        let (extent, start) = (c.i64(self.extent as i64), block_start(c, self.extent));
        let block = c.special(Special::Block);
        let taken = c.cast(round, Type::U64);
        c.wait(self.credits, block, taken);
        let flag = self.flag(c, round);
        c.each(extent, |c, i| {
            let index = c.add(start, i);
            let x = c.load(self.input, index);
            let salt = c.cast(round, Type::U64);
            let x = c.binary(BinaryOp::Xor, x, salt);
            c.run(Op::PacketPut { at: at(self.area, index), x, flag });
        });
    }

    fn receive(&self, c: &mut Writer, round: Value) {
        let (extent, start) = (c.i64(self.extent as i64), block_start(c, self.extent));
        let (block, first) = (c.special(Special::Block), block_start(c, self.extent * self.rounds));
        let flag = self.flag(c, round);
        c.each(extent, |c, i| {
            let index = c.add(start, i);
            let x = c.op(Op::PacketGet { at: at(self.area, index), flag });
            let place = c.scale(round, self.extent as i64, i);
            let place = c.add(first, place);
            c.store(self.output, place, x);
        });
        let (taken, one) = (c.cast(round, Type::U64), c.u64(1));
        let taken = c.add(taken, one);
        c.credit(self.credits, block, taken);
    }

    fn flag(&self, c: &mut Writer, round: Value) -> Value {
        let (round, base) = (c.cast(round, Type::U32), c.bits(Type::U32, 0x8000_0001));
        c.add(round, base)
    }
}

impl Section for Packets {
    fn emit(&self, maker: &mut Maker, role: u32, _: RoleId, _: &mut Random) {
        let c = &mut maker.c;
        let [zero, one, end] = [0, 1, self.rounds as i64].map(|x| c.i64(x));
        c.for_step(zero, end, one, |c, round| {
            if role == self.pair.sender {
                self.send(c, round);
            }
            if role == self.pair.receiver {
                self.receive(c, round);
            }
        });
    }
}

/// Bulk copies in, through scratch, out, and straight from buffer to buffer.
pub struct Bulk {
    role: u32,
    ty: Type,
    len: u64,
    input: ParamId,
    output: ParamId,
    straight: ParamId,
}

impl Bulk {
    pub fn plan(maker: &mut Maker, random: &mut Random) -> Self {
        let ty = random.pick(&Type::ALL);
        // The sizes are multiples of 16 bytes, because the hardware's bulk copies move only those.
        let len = 16 / ty.size() as u64 * random.pick(&[0, 1, 2, 7, 33]);
        let (all, wish) = (len * maker.blocks, Wish { align: 16, ..SHARED });
        // Copies move bytes: a bool that is neither 0 nor 1 stays as it is.
        let first = vec![elements(ty, all, random)];
        Bulk {
            role: random.below_u64(u64::from(maker.roles)) as u32,
            ty,
            len,
            input: maker.buffer(ty, first, wish, random),
            output: maker.random_buffer(ty, all, wish, random),
            straight: maker.random_buffer(ty, all, wish, random),
        }
    }
}

impl Section for Bulk {
    fn emit(&self, maker: &mut Maker, role: u32, id: RoleId, random: &mut Random) {
        if role != self.role {
            return;
        }
        let c = &mut maker.c;
        let [from, to] = [0; 2].map(|_| c.b.scratch(id, self.ty, self.len));
        let (zero, count, start) = (c.i64(0), c.i64(self.len as i64), block_start(c, self.len));
        let copy = |c: &mut Writer, dst: Place, src: Place| c.run(Op::BulkCopy { dst, src, count });
        let wait = |c: &mut Writer, pending, done| c.run(Op::BulkWait { pending, done });
        c.run(Op::ProxyFence);
        copy(c, in_scratch(from, zero), at(self.input, start));
        copy(c, at(self.straight, start), at(self.input, start));
        wait(c, random.pick(&[0, 1]), BulkDone::Complete);
        c.each(count, |c, i| {
            let x = c.load_scratch(from, i);
            let mut pool = Pool::default();
            pool.add(c, x, true);
            pool.grow(c, 3, random);
            let x = pool.of(c, self.ty, random);
            c.store_scratch(to, i, x.v);
        });
        c.run(Op::ProxyFence);
        copy(c, at(self.output, start), in_scratch(to, zero));
        wait(c, 0, BulkDone::Read);
        // The source may be overwritten now; the copy must have taken the old bytes.
        c.each(count, |c, i| {
            let x = c.bits(self.ty, 0);
            c.store_scratch(to, i, x);
        });
        wait(c, 0, BulkDone::Complete);
    }
}

/// A pipeline of slots with data and credit signals.
pub struct Messages {
    pair: Pair,
    ty: Type,
    extent: u64,
    turns: u64,
    depth: u64,
    staging: ParamId,
    output: ParamId,
    tails: ParamId,
    heads: ParamId,
    seen: ParamId,
}

impl Messages {
    pub fn plan(maker: &mut Maker, random: &mut Random) -> Self {
        let (ty, extent) = (random.pick(&Type::ALL), random.pick(&[0, 1, 7, 31, 64, 100]));
        let (turns, depth) = (random.below_u64(6), 1 + random.below_u64(3));
        let (blocks, access) = (maker.blocks, Access::Out);
        Messages {
            pair: Pair::plan(maker, random),
            ty,
            extent,
            turns,
            depth,
            staging: maker.random_buffer(ty, extent * depth * blocks, SHARED, random),
            output: maker.random_buffer(ty, extent * turns * blocks, Wish::new(access), random),
            tails: maker.slots(depth * blocks, random),
            heads: maker.slots(depth * blocks, random),
            seen: maker.random_buffer(Type::Bool, 2 * turns * blocks, Wish::new(access), random),
        }
    }

    fn send(&self, c: &mut Writer, [turn, slot, value]: [Value; 3], random: &mut Random) {
        // A slot is free when the turn `depth` turns earlier was credited. The first turns need no credit.
        let (depth, one, zero) = (c.i64(self.depth as i64), c.i64(1), c.i64(0));
        let next = c.add(turn, one);
        let before = c.binary(BinaryOp::Sub, next, depth);
        let before = c.binary(BinaryOp::Max, before, zero);
        let credit = c.cast(before, Type::U64);
        c.wait(self.heads, slot, credit);
        let extent = c.i64(self.extent as i64);
        c.each(extent, |c, i| {
            let mut pool = Pool::default();
            pool.add(c, turn, true);
            pool.add(c, i, true);
            pool.grow(c, 4, random);
            let x = pool.latest_lane(c, random);
            let x = c.cast(x.v, self.ty);
            let index = c.scale(slot, self.extent as i64, i);
            c.store(self.staging, index, x);
        });
        c.signal(self.tails, slot, value);
    }

    fn receive(&self, c: &mut Writer, [turn, slot, value]: [Value; 3]) {
        let never = c.u64(u64::MAX);
        c.wait(self.tails, slot, value);
        // Tests only conditions whose answer is the same in every schedule.
        for (i, (least, seen)) in [(value, 0), (never, 1)].into_iter().enumerate() {
            let test = c.test(self.tails, slot, least);
            let (start, offset) = (block_start(c, 2 * self.turns), c.i64(seen));
            let index = c.scale(turn, 2, offset);
            let index = c.add(start, index);
            debug_assert_eq!(i as i64, seen);
            c.store(self.seen, index, test);
        }
        let (extent, first) = (c.i64(self.extent as i64), block_start(c, self.extent * self.turns));
        c.each(extent, |c, i| {
            let from = c.scale(slot, self.extent as i64, i);
            let x = c.load(self.staging, from);
            let to = c.scale(turn, self.extent as i64, i);
            let to = c.add(first, to);
            c.store(self.output, to, x);
        });
        c.credit(self.heads, slot, value);
    }
}

impl Section for Messages {
    fn emit(&self, maker: &mut Maker, role: u32, _: RoleId, random: &mut Random) {
        let c = &mut maker.c;
        let [zero, one, end, depth] = [0, 1, self.turns as i64, self.depth as i64].map(|x| c.i64(x));
        let start = block_start(c, self.depth);
        c.for_step(zero, end, one, |c, turn| {
            let slot = c.binary(BinaryOp::Rem, turn, depth);
            let slot = c.add(start, slot);
            let value = c.add(turn, one);
            let value = c.cast(value, Type::U64);
            if role == self.pair.sender {
                self.send(c, [turn, slot, value], random);
            }
            if role == self.pair.receiver {
                self.receive(c, [turn, slot, value]);
            }
        });
    }
}
