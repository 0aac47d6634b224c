//! The verifier: which kernels are legal. Kernel in, all its errors out. Every later stage may rely on a verified
//! kernel and need not check again.
//!
//! A legal kernel is a tree: every role's body, every region and every instruction stands in exactly one place. A value
//! may be used from its definition to the end of the region it is defined in, including the regions inside that one.
//! The head of a `while` stays open for its condition and its body. A variable is written on every path before it is
//! read.
//!
//! A malformed kernel never makes the verifier panic or loop: every id is looked up with [`Table::get`] first, and a
//! region is entered once. Unreachable arena entries are dead and are not checked.
//!
//! [`Table::get`]: super::Table::get

mod bounds;
mod declarations;
mod fault;

pub use fault::{Fault, VerifyError, VerifyErrors};

use super::entity::{Entity, Inst, Region, RoleId, Value, VarId};
use super::kernel::{Def, InstData, Kernel};
use super::op::{Base, Op};
use super::print::{MAX_DEPTH, Names};
use super::types::{Shape, Type};
use super::typing;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::mem::replace;

/// Checks a kernel and reports all its errors together.
///
/// ```
/// use tilewire::ir::{Builder, verify};
///
/// let errors = verify(&Builder::new("empty", 1).finish()).unwrap_err();
/// assert_eq!(errors.to_string(), "error: the kernel has no role\n  in kernel empty");
/// ```
pub fn verify(kernel: &Kernel) -> Result<(), VerifyErrors> {
    let mut verifier = Verifier::new(kernel);
    verifier.declarations();
    for (id, role) in kernel.roles.iter() {
        verifier.role = Some(id);
        verifier.assigned.clear();
        let context = Context { depth: 1, in_each: false, trusted: true, live: true };
        verifier.scope(false, |v| v.region(role.body, context));
    }
    if verifier.errors.is_empty() { Ok(()) } else { Err(VerifyErrors(verifier.errors)) }
}

struct Verifier<'k> {
    kernel: &'k Kernel,
    errors: Vec<VerifyError>,
    /// Names of the text form, computed when the first error needs them.
    names: OnceCell<Names>,
    /// The position of the walk, for messages.
    role: Option<RoleId>,
    inst: Option<Inst>,
    /// Regions and instructions visited, to find those that stand in two places.
    regions: Vec<bool>,
    insts: Vec<bool>,
    /// The role that defines each value, for all roles from the start.
    homes: Vec<Option<RoleId>>,
    /// The state of each value visited so far, and the values of each open scope, innermost last.
    state: Vec<Option<State>>,
    open: Vec<Vec<Value>>,
    /// Variables written on every path to here.
    assigned: BTreeSet<VarId>,
}

/// The state of a value whose definition has been passed.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Live,
    Ended { with_each: bool },
}

/// The surroundings of an instruction.
#[derive(Clone, Copy)]
struct Context {
    depth: usize,
    in_each: bool,
    /// False inside control flow that an `each` must not hold: it is unclear if the results there should be lane
    /// values, and the control flow itself has been reported.
    trusted: bool,
    /// False if constants show that the code never runs, so that a guarded access is not reported as out of bounds.
    live: bool,
}

impl<'k> Verifier<'k> {
    fn new(kernel: &'k Kernel) -> Self {
        Verifier {
            kernel,
            errors: Vec::new(),
            names: OnceCell::new(),
            role: None,
            inst: None,
            regions: vec![false; kernel.regions.len()],
            insts: vec![false; kernel.insts.len()],
            homes: homes(kernel),
            state: vec![None; kernel.values.len()],
            open: Vec::new(),
            assigned: BTreeSet::new(),
        }
    }

    fn region(&mut self, region: Region, context: Context) {
        let kernel = self.kernel;
        let Some(insts) = kernel.regions.get(region) else {
            return self.fault(Fault::Dangling { id: region.to_string() });
        };
        if replace(&mut self.regions[region.index()], true) {
            return self.fault(Fault::RegionShared { region: region.to_string() });
        }
        if context.depth > MAX_DEPTH {
            return self.fault(Fault::TooDeep { limit: MAX_DEPTH });
        }
        for &inst in insts {
            match kernel.insts.get(inst) {
                Some(data) => {
                    let outer = self.inst.replace(inst);
                    self.inst(inst, data, context);
                    self.inst = outer;
                }
                None => self.fault(Fault::Dangling { id: inst.to_string() }),
            }
        }
    }

    fn inst(&mut self, inst: Inst, data: &'k InstData, context: Context) {
        if replace(&mut self.insts[inst.index()], true) {
            return self.fault(Fault::InstShared { inst: inst.to_string() });
        }
        if self.kernel.sites.get(data.site).is_none() {
            self.fault(Fault::Dangling { id: data.site.to_string() });
        }
        self.position(&data.op, context);
        if !matches!(data.op, Op::While { .. }) {
            let mut all_live = true;
            data.op.for_each_operand(|v| all_live &= self.is_live(v));
            if !all_live {
                self.uses(&data.op.operands());
            }
        }
        self.ownership(&data.op);
        for complaint in typing::complaints(self.kernel, &data.op) {
            self.fault(Fault::Types(complaint));
        }
        self.result(inst, data, context);
        self.indices(inst, data);
        if context.live {
            for fault in bounds::faults(self.kernel, &data.op) {
                self.fault(fault);
            }
        }
        self.inner(data, context);
        if let Some(result) = data.result {
            self.define(result);
        }
    }

    /// Checks that an op may stand here.
    fn position(&mut self, op: &Op, context: Context) {
        match op {
            Op::If { .. } | Op::For { .. } | Op::While { .. } if context.in_each => self.fault(Fault::ControlInEach),
            Op::Each { .. } if context.in_each => self.fault(Fault::NestedEach),
            Op::WriteVar { .. }
            | Op::Signal { .. }
            | Op::SignalCredit { .. }
            | Op::Wait { .. }
            | Op::Test { .. }
            | Op::BulkCopy { .. }
            | Op::BulkWait { .. }
            | Op::ProxyFence
            | Op::Barrier
            | Op::Post { .. }
            | Op::Require { .. }
                if context.in_each =>
            {
                self.fault(Fault::SyncInEach)
            }
            Op::Group { .. } | Op::PacketPut { .. } | Op::PacketGet { .. } if !context.in_each => {
                self.fault(Fault::OutsideEach)
            }
            _ => {}
        }
    }

    /// True if a value is defined earlier, in a region of this role that is still open.
    fn is_live(&self, v: Value) -> bool {
        let is_here = self.homes.get(v.index()).is_some_and(|home| home.is_some() && *home == self.role);
        is_here && self.state[v.index()] == Some(State::Live)
    }

    /// Checks that every operand is defined earlier, in a region that is still open.
    fn uses(&mut self, operands: &[Value]) {
        let distinct: BTreeSet<Value> = operands.iter().copied().collect();
        for v in distinct {
            let Some(data) = self.kernel.values.get(v) else {
                self.fault(Fault::Dangling { id: v.to_string() });
                continue;
            };
            let value = || self.names().value(v);
            let fault = match (self.state[v.index()], self.homes[v.index()]) {
                (_, None) => Fault::Unplaced { value: value() },
                (_, Some(home)) if Some(home) != self.role => {
                    Fault::WrongRole { what: value(), owner: self.role_name(home) }
                }
                (Some(State::Live), _) => continue,
                (Some(State::Ended { with_each: true }), _) if data.shape == Shape::Lane => {
                    Fault::Escapes { value: value() }
                }
                (Some(State::Ended { .. }), _) => Fault::NotDominated { value: value() },
                (None, _) => Fault::UseBeforeDef { value: value() },
            };
            self.fault(fault);
        }
    }

    /// Checks that variables and scratch belong to the role that uses them, and that a variable has a value when it is
    /// read.
    fn ownership(&mut self, op: &Op) {
        if let Op::ReadVar(var) | Op::WriteVar { var, .. } = *op {
            let name = || self.names().var(var);
            match self.kernel.vars.get(var) {
                None => self.fault(Fault::Dangling { id: var.to_string() }),
                Some(data) if Some(data.role) != self.role => {
                    self.fault(Fault::WrongRole { what: name(), owner: self.role_name(data.role) })
                }
                Some(_) if matches!(op, Op::WriteVar { .. }) => drop(self.assigned.insert(var)),
                Some(_) if !self.assigned.contains(&var) => self.fault(Fault::Unassigned { var: name() }),
                Some(_) => {}
            }
        }
        for at in op.places() {
            if let Base::Scratch(scratch) = at.base
                && let Some(data) = self.kernel.scratches.get(scratch)
                && Some(data.role) != self.role
            {
                let what = self.names().scratch(scratch);
                self.fault(Fault::WrongRole { what, owner: self.role_name(data.role) });
            }
        }
    }

    /// Checks that the recorded result is the one the op defines.
    fn result(&mut self, inst: Inst, data: &InstData, context: Context) {
        let recorded = match data.result {
            None => None,
            Some(v) => match self.kernel.values.get(v) {
                None => return self.fault(Fault::Dangling { id: v.to_string() }),
                Some(value) => {
                    if value.def != Def::Result(inst) {
                        self.fault(Fault::WrongDef { value: self.names().value(v) });
                    }
                    Some((value.ty, value.shape))
                }
            },
        };
        let expected = typing::result(self.kernel, &data.op, context.in_each);
        if recorded == expected {
            return;
        }
        // With an unknown operand the type is unknown too, and the operand has been reported.
        let known = data.op.operands().iter().all(|&v| self.kernel.values.get(v).is_some())
            && !matches!(data.op, Op::ReadVar(var) if self.kernel.vars.get(var).is_none());
        if recorded.is_some() != expected.is_some() || known && context.trusted {
            self.fault(Fault::WrongResult { expected, recorded });
        }
    }

    /// Checks that a loop records its index values, and other ops none.
    fn indices(&mut self, inst: Inst, data: &InstData) {
        let (axes, shape) = match &data.op {
            Op::For { .. } => (1, Shape::Uniform),
            Op::Each { extent, .. } => (extent.len(), Shape::Lane),
            _ => (0, Shape::Uniform),
        };
        if data.indices.len() != axes {
            self.fault(Fault::WrongIndices { expected: axes, recorded: data.indices.len() });
        }
        for (axis, &v) in data.indices.iter().enumerate() {
            let Some(value) = self.kernel.values.get(v) else {
                self.fault(Fault::Dangling { id: v.to_string() });
                continue;
            };
            if value.def != (Def::Index { inst, axis }) {
                self.fault(Fault::WrongDef { value: self.names().value(v) });
            }
            let (expected, recorded) = ((Type::I64, shape), (value.ty, value.shape));
            if recorded != expected {
                self.fault(Fault::WrongResult { expected: Some(expected), recorded: Some(recorded) });
            }
        }
    }

    /// The regions inside an op. Assignments in a region count after it only if the region always runs.
    fn inner(&mut self, data: &InstData, context: Context) {
        let inside = Context { depth: context.depth + 1, trusted: context.trusted && !context.in_each, ..context };
        match &data.op {
            Op::If { cond, then, otherwise } => {
                let before = self.assigned.clone();
                let known = bounds::constant_bool(self.kernel, *cond);
                let live = context.live && known != Some(false);
                self.scope(false, |v| v.region(*then, Context { live, ..inside }));
                let after_then = replace(&mut self.assigned, before);
                let live = context.live && known != Some(true);
                self.scope(false, |v| v.region(*otherwise, Context { live, ..inside }));
                match known {
                    Some(true) => self.assigned = after_then,
                    Some(false) => {}
                    None => self.assigned.retain(|var| after_then.contains(var)),
                }
            }
            Op::For { start, end, body, .. } => {
                let before = self.assigned.clone();
                let bound = |v: Value| bounds::constant(self.kernel, v);
                let empty = matches!((bound(*start), bound(*end)), (Some(start), Some(end)) if start >= end);
                self.body(data, false, *body, Context { live: context.live && !empty, ..inside });
                self.assigned = before;
            }
            Op::While { head, cond, body } => self.scope(false, |v| {
                v.region(*head, inside);
                v.uses(&[*cond]);
                let after_head = v.assigned.clone();
                let live = context.live && bounds::constant_bool(v.kernel, *cond) != Some(false);
                v.scope(false, |v| v.region(*body, Context { live, ..inside }));
                v.assigned = after_head;
            }),
            Op::Each { extent, body } => {
                let before = self.assigned.clone();
                let empty = extent.iter().any(|&e| bounds::constant(self.kernel, e).is_some_and(|e| e <= 0));
                let live = context.live && !empty;
                self.body(data, true, *body, Context { in_each: true, live, ..inside });
                self.assigned = before;
                self.swaps(extent.len(), *body);
            }
            _ => {}
        }
    }

    /// An `each` that puts packets and gets others has a defined order of elements, so that ranks that swap packets
    /// make progress. That order exists only for one-dimensional bodies that put first and combine no neighbours.
    fn swaps(&mut self, axes: usize, body: Region) {
        let insts = self.kernel.regions.get(body).into_iter().flatten().copied();
        let ops: Vec<(Inst, &Op)> = insts.filter_map(|inst| Some((inst, &self.kernel.insts.get(inst)?.op))).collect();
        let Some(first) = ops.iter().position(|(_, op)| matches!(op, Op::PacketGet { .. })) else { return };
        let is_put = |(_, op): &(Inst, &Op)| matches!(op, Op::PacketPut { .. });
        let (late, early) = (ops[first..].iter().find(|op| is_put(op)), ops[..first].iter().find(|op| is_put(op)));
        let combines = ops.iter().any(|(_, op)| matches!(op, Op::Group { .. }));
        let (inst, fault) = match (late, early) {
            (Some((inst, _)), _) => (*inst, Fault::PutAfterGet),
            (None, Some(_)) if axes > 1 => (ops[first].0, Fault::SwapInTwoDimensions),
            (None, Some(_)) if combines => (ops[first].0, Fault::SwapInGroups),
            _ => return,
        };
        let here = self.inst.replace(inst);
        self.fault(fault);
        self.inst = here;
    }

    fn body(&mut self, data: &InstData, is_each: bool, body: Region, context: Context) {
        self.scope(is_each, |v| {
            data.indices.iter().for_each(|&index| v.define(index));
            v.region(body, context);
        });
    }

    /// Runs `f`, then ends the values it defined.
    fn scope(&mut self, is_each: bool, f: impl FnOnce(&mut Self)) {
        self.open.push(Vec::new());
        f(self);
        for v in self.open.pop().unwrap_or_default() {
            self.become_state(v, State::Ended { with_each: is_each });
        }
    }

    fn become_state(&mut self, v: Value, state: State) {
        // A value that is not in the kernel has been reported.
        if let Some(is) = self.state.get_mut(v.index()) {
            *is = Some(state);
        }
    }

    fn define(&mut self, v: Value) {
        self.become_state(v, State::Live);
        if let Some(scope) = self.open.last_mut() {
            scope.push(v);
        }
    }

    fn names(&self) -> &Names {
        self.names.get_or_init(|| Names::of(self.kernel))
    }

    fn role_name(&self, role: RoleId) -> String {
        self.kernel.roles.get(role).map_or_else(|| format!("?{role}"), |role| role.name.clone())
    }

    fn fault(&mut self, fault: Fault) {
        let inst = self.inst.map(|inst| self.names().inst_text(self.kernel, inst));
        let site = match (self.inst, self.role) {
            (Some(inst), _) => self.kernel.insts.get(inst).map(|data| data.site),
            (None, Some(role)) => self.kernel.roles.get(role).map(|role| role.site),
            (None, None) => None,
        };
        let at = site.and_then(|site| self.kernel.sites.get(site)).cloned();
        let role = self.role.map(|role| self.role_name(role));
        self.errors.push(VerifyError { kernel: self.kernel.name.clone(), role, inst, fault, at });
    }
}

/// The role that defines each value: the first one whose body reaches an instruction that records it.
fn homes(kernel: &Kernel) -> Vec<Option<RoleId>> {
    let (mut homes, mut seen) = (vec![None; kernel.values.len()], vec![false; kernel.regions.len()]);
    for (role, data) in kernel.roles.iter() {
        let mut todo = vec![data.body];
        while let Some(region) = todo.pop() {
            let Some(insts) = kernel.regions.get(region) else { continue };
            if replace(&mut seen[region.index()], true) {
                continue;
            }
            for data in insts.iter().filter_map(|&inst| kernel.insts.get(inst)) {
                for &v in data.result.iter().chain(&data.indices) {
                    if let Some(home) = homes.get_mut(v.index()) {
                        home.get_or_insert(role);
                    }
                }
                todo.extend(data.op.regions());
            }
        }
    }
    homes
}
