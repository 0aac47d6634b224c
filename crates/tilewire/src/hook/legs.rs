//! The two hooks of a collective: the memory each may touch, and how a read that may be overwritten is detected.
//!
//! ```text
//!                     produce                               consume
//!   c.input           read                                  read: this rank's own, if it has one
//!   c.output          length and shape only                 written; read if this element writes it
//!   captured tensor   read; not memory of the output,       read; memory of the output only where this
//!                     except in `map`                       element writes it
//!   c.region          nothing                               read
//! ```
//! The table is enforced while a hook is traced ([`HookLeg::refuses`]), with the user's line. Memory that overlaps the
//! output is checked once the kernel is traced ([`Trace::overlap`]): an element may read it only at the place that it
//! writes itself, before it writes. Then no other element touches that place, since no two elements write one place
//! (the rule of `consume`).

use super::error::MisuseKind;
use super::trace::Trace;
use super::view::Touch;
use crate::ir::access::Analysis;
use crate::ir::{Base, Entity, Inst, Kernel, Op, Param, ParamId, Place, Region, SourceLine, Value};
use crate::tensor::{Arg, Memory};
use std::ops::Range;

/// The hook that is being traced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HookLeg {
    Produce,
    Consume,
}

/// The role of a view for the hooks of a collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holds {
    /// None: a captured tensor, or memory of the user's own kernel.
    Other,
    Input,
    /// A placeholder, with a length, for an input that this rank does not have.
    NoInput,
    Output,
    /// The current tile of the transport's region.
    Staging,
}

impl HookLeg {
    fn name(self) -> &'static str {
        match self {
            HookLeg::Produce => "produce",
            HookLeg::Consume => "consume",
        }
    }

    /// The misuse of this access, if any.
    pub(crate) fn refuses(self, holds: Holds, touch: Touch) -> Option<MisuseKind> {
        let writes = touch.writes();
        let what = match (self, holds) {
            (_, Holds::Other) => return None,
            (_, Holds::Input) if !writes => return None,
            (HookLeg::Consume, Holds::Output) => return None,
            (HookLeg::Consume, Holds::Staging) if !writes => return None,
            (_, Holds::Input | Holds::NoInput) => "c.input",
            (_, Holds::Output) => "c.output",
            (_, Holds::Staging) => "c.region",
        };
        Some(MisuseKind::WrongLeg { hook: self.name(), what, writes })
    }
}

/// One call of a hook, as instructions of the kernel.
pub(super) struct HookCall {
    pub(super) insts: Range<usize>,
}

/// A read of memory that may be overwritten before the read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Overlap {
    /// The memory and the place of the read, in words.
    pub(crate) what: String,
    pub(crate) bytes: usize,
}

impl Trace {
    /// The first read of a hook from memory of `output` that another element, another leg or a peer may be writing.
    pub(crate) fn overlap(&self, output: &Memory) -> Option<Overlap> {
        self.with_calls(|kernel, args, calls| Reads { kernel, args, calls, output }.first_unsafe())
    }
}

/// The hooks of a kernel that write `output`.
struct Reads<'k> {
    kernel: &'k Kernel,
    args: &'k [Arg],
    calls: &'k [HookCall],
    output: &'k Memory,
}

/// Steps after which two indices are assumed to differ.
const STEPS: usize = 10_000;

impl Reads<'_> {
    fn first_unsafe(&self) -> Option<Overlap> {
        let read = |inst: &Inst| matches!(self.kernel.insts[*inst].op, Op::Load { .. } | Op::Get { .. });
        let reads = self.insts().filter(read).filter_map(|inst| Some((inst, self.written_param(inst)?)));
        let mut unsafe_reads = reads.filter(|&(inst, param)| !self.is_written_here(inst, param));
        let (inst, param) = unsafe_reads.next()?;
        Some(Overlap { what: self.describe(param, self.kernel.line(inst)), bytes: self.memory(param)?.bytes() })
    }

    /// The instructions of hooks.
    fn insts(&self) -> impl Iterator<Item = Inst> {
        self.calls.iter().flat_map(|call| call.insts.clone()).map(Inst::new)
    }

    fn place(&self, inst: Inst) -> Option<&Place> {
        crate::ir::access::place(&self.kernel.insts[inst].op)
    }

    /// The parameter that an instruction accesses, if it overlaps the output.
    fn written_param(&self, inst: Inst) -> Option<ParamId> {
        let Base::Param(param) = self.place(inst)?.base else { return None };
        self.memory(param).map(|_| param)
    }

    /// The memory of a buffer that overlaps the output.
    fn memory(&self, param: ParamId) -> Option<&Memory> {
        match &self.args[param.index()] {
            Arg::Buffer(memories) => memories.iter().find(|memory| memory.overlaps(self.output)),
            _ => None,
        }
    }

    /// True if the reading element itself writes this very place, after the read.
    fn is_written_here(&self, read: Inst, param: ParamId) -> bool {
        let Some((body, from)) = self.body_of(read).zip(self.place(read)) else { return false };
        let writes = |inst: &Inst| matches!(self.kernel.insts[*inst].op, Op::Store { .. } | Op::AtomicAdd { .. });
        self.insts().filter(writes).any(|write| {
            let Some((to, other)) = self.place(write).zip(self.written_param(write)) else { return false };
            let same_memory = param == other || (self.lies_equally(param, other) && read.index() < write.index());
            same_memory
                && self.writes_when_read(read, write)
                && self.kernel.regions[body].contains(&write)
                && to.bank == from.bank
                && self.same_index(body, from.index, to.index)
        })
    }

    /// True if a write happens in every element that reads: it has no mask, or that of the read.
    fn writes_when_read(&self, read: Inst, write: Inst) -> bool {
        let cond = |inst: Inst| match &self.kernel.insts[inst].op {
            Op::Load { mask, .. } => mask.map(|mask| mask.cond),
            Op::Store { mask, .. } | Op::AtomicAdd { mask, .. } => *mask,
            _ => None,
        };
        cond(write).is_none_or(|when| cond(read) == Some(when))
    }

    /// True if element `i` of two buffers is the same bytes.
    fn lies_equally(&self, a: ParamId, b: ParamId) -> bool {
        let size = |param| self.kernel.base_type(Base::Param(param)).map(|ty| ty.size());
        let is = |(a, b): (&Memory, &Memory)| a.is(b);
        self.memory(a).zip(self.memory(b)).is_some_and(is) && size(a) == size(b)
    }

    fn body_of(&self, inst: Inst) -> Option<Region> {
        self.kernel.regions.iter().find(|(_, insts)| insts.contains(&inst)).map(|(region, _)| region)
    }

    /// True if two indices in the body of an `each` are known to be equal: computed alike, or equal as affine forms.
    fn same_index(&self, body: Region, a: Value, b: Value) -> bool {
        if self.computed_alike(a, b, &mut STEPS.clone()) {
            return true;
        }
        let each = |inst: &Inst| matches!(self.kernel.insts[*inst].op, Op::Each { body: of, .. } if of == body);
        let Some(each) = self.kernel.insts.keys().find(each) else { return false };
        let analysis = Analysis::new(self.kernel, each);
        let distance = analysis.affine(a).zip(analysis.affine(b)).and_then(|(a, b)| a.sub(&b));
        distance.is_some_and(|distance| distance.as_uniform().is_some_and(|by| by.is_const(0)))
    }

    /// True if two values are made by the same ops from the same values. Loads count only from memory that nothing
    /// writes.
    fn computed_alike(&self, a: Value, b: Value, steps: &mut usize) -> bool {
        if a == b {
            return true;
        }
        let (Some(x), Some(y)) = (self.kernel.def(a), self.kernel.def(b)) else { return false };
        let constant = |op: &Op| match op {
            Op::Load { at: Place { base: Base::Param(param), .. }, .. } => self.memory(*param).is_none(),
            op => op.is_pure(),
        };
        *steps = steps.saturating_sub(1);
        if *steps == 0 || !constant(x) || !constant(y) {
            return false;
        }
        let bare = |op: &Op| {
            let mut bare = op.clone();
            bare.map_operands(&mut |_| Value::new(0));
            bare
        };
        let (of_x, of_y) = (x.operands(), y.operands());
        bare(x) == bare(y)
            && of_x.len() == of_y.len()
            && of_x.into_iter().zip(of_y).all(|(a, b)| self.computed_alike(a, b, steps))
    }

    fn describe(&self, param: ParamId, at: &SourceLine) -> String {
        let name = match &self.kernel.params[param] {
            Param::Buffer { name, .. } => name.as_str(),
            _ => "",
        };
        match name {
            "input" => format!("the input, read at {at}"),
            "output" => format!("what is read at {at}"),
            "captured" => format!("the captured tensor read at {at}"),
            name => format!("{name}, read at {at}"),
        }
    }
}
