//! Scratch that nobody touches: what a lane of one `each` puts there and the same lane of a later one gets, it holds in a register.
//!
//! Packets are such: one pass makes elements, which may be small, and another sends them, eight bytes at a time.
//!
//! ```text
//!   elements      0 1 2 3 | 4 5 6 7 | 8 …      put by one `each`, so many neighbours in a vector as fill a word
//!   lane             0    |    1    | 2 …
//!   words            0    |    1    | 2 …      got by the other, which has one for each lane, or some for all
//! ```
//!
//! Nobody waits at a barrier then until all have put theirs, and what the elements are made of is on its way until the first word is sent.
//! So it must not be given back meanwhile: a credit is no release, and a barrier does not wait for loads that nobody has used yet.

use super::batch::Batch;
use super::loops::{Turns, turns};
use super::place::pack;
use super::role::RoleCode;
use super::text::Reg;
use crate::ir::access::{Analysis, Class, place};
use crate::ir::{Base, Facts, Inst, Kernel, Op, Region, RoleId, ScratchId};

/// Bytes of a word.
const WORD: usize = 8;
/// Words of a lane: more of them, each with its packets, are too many registers.
const MOST: u64 = 2;

/// What one `each` puts and another gets.
pub(super) struct Held {
    /// The `each` that puts, and its op.
    producer: Inst,
    put: Inst,
    /// The `each` that gets, and its op.
    consumer: Inst,
    get: Inst,
    /// Elements of a word.
    width: usize,
    /// Words of a lane.
    count: u32,
    /// Where they are held, from the producer on.
    words: Vec<Reg>,
}

/// An access to scratch, or a credit.
struct Touch {
    /// Which scratch.
    scratch: Option<ScratchId>,
    inst: Inst,
    /// The `each` that it is in, where that runs at most once.
    each: Option<Inst>,
}

impl Held {
    /// All of a role with so many lanes, of scratch that nobody else touches.
    pub fn of(kernel: &Kernel, role: RoleId, lanes: u32) -> Vec<Held> {
        let mut touched = Vec::new();
        walk(kernel, &mut Facts::default(), kernel.roles[role].body, (None, true), &mut touched);
        let of = |scratch: ScratchId| Held::pair(kernel, &touched, scratch, lanes);
        kernel.scratches.iter().filter_map(|(scratch, _)| of(scratch)).collect()
    }

    fn pair(kernel: &Kernel, touched: &[Touch], scratch: ScratchId, lanes: u32) -> Option<Held> {
        let here: Vec<usize> = (0..touched.len()).filter(|&k| touched[k].scratch == Some(scratch)).collect();
        let [first, last] = here[..] else { return None };
        if touched[first..last].iter().any(|touch| touch.scratch.is_none()) {
            return None;
        }
        let (Touch { inst: put, each: Some(producer), .. }, Touch { inst: get, each: Some(consumer), .. }) =
            (&touched[first], &touched[last])
        else {
            return None;
        };
        let (Op::Put { x, mask: None, .. }, Op::Get { to, mask: None, .. }) =
            (&kernel.insts[*put].op, &kernel.insts[*get].op)
        else {
            return None;
        };
        let size = kernel.ty(*x).size();
        let filled = side_by_side(kernel, *producer, *put)?.checked_mul(size as u64)?;
        let words = side_by_side(kernel, *consumer, *get)?;
        let lanes = u64::from(lanes);
        let whole = words <= lanes || words.is_multiple_of(lanes) && words / lanes <= MOST;
        let all = to.size() == WORD && whole && filled == words * WORD as u64;
        let Op::Each { body, .. } = kernel.insts[*producer].op else { return None };
        // Lanes that make elements do nothing else, and look at no others.
        let makes = kernel.regions[body].iter().all(|inst| match &kernel.insts[*inst].op {
            Op::Load { .. } | Op::Get { .. } => true,
            Op::Group { .. } => false,
            op => inst == put || op.is_pure(),
        });
        let Op::Each { body, .. } = kernel.insts[*consumer].op else { return None };
        // What is sent in packets is one word of a lane at a time, unless lanes look at each other's.
        let any = |is: fn(&Op) -> bool| kernel.regions[body].iter().any(|&inst| is(&kernel.insts[inst].op));
        let sends = any(|op| matches!(op, Op::PacketPut { .. })) && !any(|op| matches!(op, Op::Group { .. }));
        let (width, count) = (WORD / size, words.div_ceil(lanes) as u32);
        let held =
            Held { producer: *producer, put: *put, consumer: *consumer, get: *get, width, count, words: Vec::new() };
        (all && makes && sends && producer != consumer).then_some(held)
    }
}

/// All accesses to scratch below a region, and all credits, in order.
fn walk(
    kernel: &Kernel,
    facts: &mut Facts,
    region: Region,
    (each, once): (Option<Inst>, bool),
    touched: &mut Vec<Touch>,
) {
    for &inst in &kernel.regions[region] {
        let op = &kernel.insts[inst].op;
        let mut touch = |scratch| touched.push(Touch { scratch, inst, each: each.filter(|_| once) });
        let mut at = |base: Base| {
            if let Base::Scratch(scratch) = base {
                touch(Some(scratch));
            }
        };
        match op {
            Op::SignalCredit { .. } => touch(None),
            Op::BulkCopy { dst, src, .. } => [dst, src].into_iter().for_each(|place| at(place.base)),
            Op::Post { src, .. } => at(src.base),
            op => place(op).into_iter().for_each(|place| at(place.base)),
        }
        let inside = match op {
            Op::Each { .. } => (Some(inst), once),
            _ => (each, once && turns(kernel, facts, op) != Turns::Any),
        };
        op.regions().iter().for_each(|&region| walk(kernel, facts, region, inside, touched));
    }
}

/// How many elements an `each` has, in one dimension, where this op of it accesses one after the other from the first byte on.
fn side_by_side(kernel: &Kernel, each: Inst, inst: Inst) -> Option<u64> {
    let Op::Each { extent, .. } = &kernel.insts[each].op else { return None };
    let [extent] = extent[..] else { return None };
    let accesses = Analysis::new(kernel, each).accesses();
    let access = accesses.iter().find(|access| access.inst == inst)?;
    let from_start = access.index.as_ref().is_some_and(|index| index.base.is_const(0));
    let bank =
        place(&kernel.insts[inst].op)?.bank.is_none_or(|bank| kernel.as_const(bank).is_some_and(|c| c.bits == 0));
    let count = kernel.as_const(extent)?.bits as i64;
    (access.class == Class::Contiguous && from_start && bank && count > 0).then_some(count as u64)
}

/// How an `each` has to go about its elements: neighbours in a vector, and vectors of a lane, all of them at once.
#[derive(Clone, Copy)]
pub(super) struct Grip {
    pub width: usize,
    pub unroll: u32,
    /// Whether it puts what is held; or gets it.
    pub puts: bool,
}

impl RoleCode<'_> {
    /// What is held between this `each` and another asks of it.
    pub fn grip(&self, each: Inst) -> Option<Grip> {
        self.held.iter().find_map(|held| match each {
            each if each == held.producer => Some(Grip { width: held.width, unroll: held.count, puts: true }),
            each if each == held.consumer => Some(Grip { width: 1, unroll: held.count, puts: false }),
            _ => None,
        })
    }

    /// Registers for what an `each` puts.
    pub fn hold(&mut self, each: Inst) {
        if let Some(held) = self.held.iter_mut().find(|held| held.producer == each) {
            held.words = (0..held.count).map(|_| self.t.d_const(0)).collect();
        }
    }

    /// Whether an op puts what is held, or gets it, and does so.
    pub fn in_hand(&mut self, batch: &mut Batch, inst: Inst) -> bool {
        let Some(held) = self.held.iter().find(|held| [held.put, held.get].contains(&inst)) else { return false };
        let (words, puts) = (held.words.clone(), held.put == inst);
        debug_assert_eq!(batch.groups, words.len(), "all words of a lane");
        if !puts {
            self.set(batch, inst, words);
            return true;
        }
        let Op::Put { x, .. } = self.kernel.insts[inst].op else { unreachable!("a put") };
        let ty = self.kernel.ty(x);
        let parts: Vec<Reg> = match batch.words.get(&x) {
            Some(parts) => parts.clone(),
            None => {
                self.spread(batch, x);
                let elements: Vec<Reg> = (0..batch.count()).map(|k| self.of(batch, x, k)).collect();
                match ty.size() {
                    1 | 2 => elements.chunks(4 / ty.size()).map(|few| pack(&mut self.t, ty, few)).collect(),
                    _ => elements,
                }
            }
        };
        for (&word, parts) in words.iter().zip(parts.chunks(parts.len() / words.len())) {
            match parts {
                [low, high] => self.t.line(format_args!("mov.b64 {word}, {{{low}, {high}}};")),
                _ => self.t.assign(word, parts[0]),
            }
        }
        true
    }
}
