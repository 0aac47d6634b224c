//! Register-allocated scratch: elements that a lane puts in one `each` and that the same lane gets in a later one stay
//! in a register.
//!
//! Packets use such scratch: one pass makes elements, which may be small, and another sends them, eight bytes at a
//! time.
//!
//! ```text
//!   elements      0 1 2 3 | 4 5 6 7 | 8 …      put by the producer `each`; a vector fills one word
//!   lane             0    |    1    | 2 …
//!   words            0    |    1    | 2 …      got by the consumer `each`, which has at most a few for each lane
//! ```
//!
//! No barrier is then needed until all lanes have put theirs, and the loads that the elements are made of may still be
//! in flight when the first word is sent. Their source must not be given back in the meantime: a credit is not a
//! release, and a barrier does not wait for loads whose results are not used yet.

use super::batch::Batch;
use super::loops::{Turns, turns};
use super::place::pack;
use super::role::RoleCode;
use super::text::Reg;
use crate::ir::access::{Analysis, Class, place};
use crate::ir::{Base, Facts, Inst, Kernel, Op, Region, RoleId, ScratchId};

/// Bytes of a word.
const WORD: usize = 8;
/// Words of a lane: more of them, each with its packets, would take too many registers.
const MOST: u64 = 2;

/// Scratch that one `each` fills and another reads.
pub(super) struct RegisterScratch {
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
    /// The registers, from the producer on.
    words: Vec<Reg>,
}

/// An access to scratch, or a credit (`scratch` is `None`).
struct Touch {
    /// The scratch.
    scratch: Option<ScratchId>,
    inst: Inst,
    /// The `each` around it, if that runs at most once.
    each: Option<Inst>,
}

impl RegisterScratch {
    /// The register scratch of a role with `lanes` lanes: scratch that no other op touches.
    pub fn of(kernel: &Kernel, role: RoleId, lanes: u32) -> Vec<RegisterScratch> {
        let mut touched = Vec::new();
        walk(kernel, &mut Facts::default(), kernel.roles[role].body, (None, true), &mut touched);
        let of = |scratch: ScratchId| RegisterScratch::pair(kernel, &touched, scratch, lanes);
        kernel.scratches.iter().filter_map(|(scratch, _)| of(scratch)).collect()
    }

    fn pair(kernel: &Kernel, touched: &[Touch], scratch: ScratchId, lanes: u32) -> Option<RegisterScratch> {
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
        // The producer must only compute its own elements: no other effects, no group ops.
        let makes = kernel.regions[body].iter().all(|inst| match &kernel.insts[*inst].op {
            Op::Load { .. } | Op::Get { .. } => true,
            Op::Group { .. } => false,
            op => inst == put || op.is_pure(),
        });
        let Op::Each { body, .. } = kernel.insts[*consumer].op else { return None };
        // The consumer must send its words in packets, one per lane at a time, and not combine lanes.
        let any = |is: fn(&Op) -> bool| kernel.regions[body].iter().any(|&inst| is(&kernel.insts[inst].op));
        let sends = any(|op| matches!(op, Op::PacketPut { .. })) && !any(|op| matches!(op, Op::Group { .. }));
        let (width, count) = (WORD / size, words.div_ceil(lanes) as u32);
        let held = RegisterScratch {
            producer: *producer,
            put: *put,
            consumer: *consumer,
            get: *get,
            width,
            count,
            words: Vec::new(),
        };
        (all && makes && sends && producer != consumer).then_some(held)
    }
}

/// All accesses to scratch and all credits in a region, in order.
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
            Op::Post { span: Some(span), .. } => at(span.src.base),
            op => place(op).into_iter().for_each(|place| at(place.base)),
        }
        let inside = match op {
            Op::Each { .. } => (Some(inst), once),
            _ => (each, once && turns(kernel, facts, op) != Turns::Any),
        };
        op.regions().iter().for_each(|&region| walk(kernel, facts, region, inside, touched));
    }
}

/// The number of elements of a one-dimensional `each`, if this op accesses them contiguously from the first byte on.
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

/// The vector shape that register scratch demands of an `each`; all vectors of a lane are processed in one turn.
#[derive(Clone, Copy)]
pub(super) struct RequiredShape {
    pub width: usize,
    pub unroll: u32,
    /// True for the producer.
    pub puts: bool,
}

impl RoleCode<'_> {
    /// The vector shape that register scratch demands of an `each`, if it fills or reads any.
    pub fn required_shape(&self, each: Inst) -> Option<RequiredShape> {
        self.register_scratch.iter().find_map(|held| match each {
            each if each == held.producer => Some(RequiredShape { width: held.width, unroll: held.count, puts: true }),
            each if each == held.consumer => Some(RequiredShape { width: 1, unroll: held.count, puts: false }),
            _ => None,
        })
    }

    /// Allocates the registers that an `each` fills.
    pub fn allocate_words(&mut self, each: Inst) {
        if let Some(held) = self.register_scratch.iter_mut().find(|held| held.producer == each) {
            held.words = (0..held.count).map(|_| self.t.d_const(0)).collect();
        }
    }

    /// Handles a put to or a get from register scratch. Returns false for any other op.
    pub fn through_registers(&mut self, batch: &mut Batch, inst: Inst) -> bool {
        let Some(held) = self.register_scratch.iter().find(|held| [held.put, held.get].contains(&inst)) else {
            return false;
        };
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
