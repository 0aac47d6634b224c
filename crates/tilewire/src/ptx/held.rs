//! Scratch that is no memory: what a lane of one `each` puts there and the same lane of a later one gets, it holds in a register.
//!
//! Packets are such: one pass makes elements, which may be small, and another sends them, eight bytes at a time.
//!
//! ```text
//!   elements      0 1 2 3 | 4 5 6 7 | 8 …      put by one `each`, so many neighbours in a vector as fill a word
//!   lane             0    |    1    | 2 …
//!   words            0    |    1    | 2 …      got by the other, which has at most one for each lane
//! ```
//!
//! Nobody waits at a barrier then until all have put theirs, and what the elements are made of is on its way until the first word is sent.

use super::batch::Batch;
use super::place::pack;
use super::role::RoleCode;
use super::text::Reg;
use crate::ir::access::{Analysis, Class, place};
use crate::ir::{Base, Facts, Inst, Kernel, Op, Region, RoleId, ScratchId, Value};

/// Bytes of a word.
const WORD: usize = 8;

/// What one `each` puts and another gets.
pub(super) struct Held {
    /// The `each` that puts, and its op.
    producer: Inst,
    put: Inst,
    /// The op that gets.
    get: Inst,
    /// Elements of a word.
    pub width: usize,
    /// Where it is held, from the producer on.
    word: Option<Reg>,
}

/// An access to scratch.
struct Touch {
    inst: Inst,
    /// The `each` that it is in, where that runs at most once.
    each: Option<Inst>,
}

impl Held {
    /// All of a role with so many lanes, of scratch that nobody else touches.
    pub fn of(kernel: &Kernel, role: RoleId, lanes: u32) -> Vec<Held> {
        let mut touched: Vec<(ScratchId, Vec<Touch>)> = Vec::new();
        let mut touch = |scratch, inst, each| {
            let one = Touch { inst, each };
            match touched.iter_mut().find(|(id, _)| *id == scratch) {
                Some((_, all)) => all.push(one),
                None => touched.push((scratch, vec![one])),
            }
        };
        walk(kernel, &mut Facts::default(), kernel.roles[role].body, (None, true), &mut touch);
        touched.iter().filter_map(|(_, all)| Held::pair(kernel, all, lanes)).collect()
    }

    fn pair(kernel: &Kernel, touched: &[Touch], lanes: u32) -> Option<Held> {
        let [Touch { inst: put, each: Some(producer) }, Touch { inst: get, each: Some(consumer) }] = touched else {
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
        let all = to.size() == WORD && words <= u64::from(lanes) && filled == words * WORD as u64;
        let Op::Each { body, .. } = kernel.insts[*producer].op else { return None };
        // Lanes that make elements do nothing else, and look at no others.
        let makes = kernel.regions[body].iter().all(|inst| match &kernel.insts[*inst].op {
            Op::Load { .. } | Op::Get { .. } => true,
            Op::Group { .. } => false,
            op => inst == put || op.is_pure(),
        });
        let Op::Each { body, .. } = kernel.insts[*consumer].op else { return None };
        // What is sent in packets is one word of a lane at a time.
        let sends = kernel.regions[body].iter().any(|&inst| matches!(kernel.insts[inst].op, Op::PacketPut { .. }));
        let held = Held { producer: *producer, put: *put, get: *get, width: WORD / size, word: None };
        (all && makes && sends && producer != consumer).then_some(held)
    }
}

/// All accesses to scratch below a region, in order: in which `each`, and whether that runs at most once.
fn walk(
    kernel: &Kernel,
    facts: &mut Facts,
    region: Region,
    (each, once): (Option<Inst>, bool),
    touch: &mut dyn FnMut(ScratchId, Inst, Option<Inst>),
) {
    for &inst in &kernel.regions[region] {
        let op = &kernel.insts[inst].op;
        let mut at = |base: Base| {
            if let Base::Scratch(scratch) = base {
                touch(scratch, inst, each.filter(|_| once));
            }
        };
        match op {
            Op::BulkCopy { dst, src, .. } => [dst, src].into_iter().for_each(|place| at(place.base)),
            Op::Post { src, .. } => at(src.base),
            op => place(op).into_iter().for_each(|place| at(place.base)),
        }
        let inside = match op {
            Op::Each { .. } => (Some(inst), once),
            _ => (each, once && runs_once(kernel, facts, op)),
        };
        op.regions().iter().for_each(|&region| walk(kernel, facts, region, inside, touch));
    }
}

/// Whether an op is a loop that has one turn at most.
pub(super) fn runs_once(kernel: &Kernel, facts: &mut Facts, op: &Op) -> bool {
    let Op::For { start, end, step, .. } = op else { return false };
    let number = |v: Value| kernel.as_const(v).map(|c| i128::from(c.bits as i64));
    let second = number(*start).zip(number(*step).filter(|&step| step > 0)).map(|(start, step)| start + step);
    second.is_some_and(|second| facts.of(kernel, *end).hi <= second)
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

impl RoleCode<'_> {
    /// What an `each` makes words of, and a register for each of them.
    pub fn holds(&mut self, each: Inst) -> Option<usize> {
        let k = self.held.iter().position(|held| held.producer == each)?;
        self.held[k].word = Some(self.t.d_const(0));
        Some(self.held[k].width)
    }

    /// Whether an `each` makes words that are held.
    pub fn is_held_by(&self, each: Inst) -> bool {
        self.held.iter().any(|held| held.producer == each)
    }

    /// Whether an op puts what is held, or gets it, and does so.
    pub fn in_hand(&mut self, batch: &mut Batch, inst: Inst) -> bool {
        let held = |held: &&Held| held.word.is_some() && [held.put, held.get].contains(&inst);
        let Some(&Held { put, word: Some(word), .. }) = self.held.iter().find(held) else { return false };
        debug_assert_eq!(batch.groups, 1, "a lane has one word");
        if inst != put {
            self.set(batch, inst, vec![word]);
            return true;
        }
        let Op::Put { x, .. } = self.kernel.insts[inst].op else { unreachable!("a put") };
        let ty = self.kernel.ty(x);
        let halves = match batch.words.get(&x) {
            Some(words) => words.clone(),
            None => {
                self.spread(batch, x);
                let elements: Vec<Reg> = (0..batch.count()).map(|k| self.of(batch, x, k)).collect();
                match ty.size() {
                    1 | 2 => elements.chunks(4 / ty.size()).map(|few| pack(&mut self.t, ty, few)).collect(),
                    _ => elements,
                }
            }
        };
        match halves[..] {
            [low, high] => self.t.line(format_args!("mov.b64 {word}, {{{low}, {high}}};")),
            _ => self.t.assign(word, halves[0]),
        }
        true
    }
}
