//! The trace: the kernel under construction, and the bookkeeping beyond the IR that tracing needs to report misuse at
//! the user's line.
//!
//! Invariant: after a misuse the op that caused it yields a *poison* (a constant 0 of the right type, computed at the
//! current place). So tracing continues, and one build reports every mistake. A trace with a misuse never becomes a
//! kernel.

use super::error::{Misuse, MisuseKind, ScopeKind};
use super::legs::{Holds, HookCall, HookLeg};
use super::value::{IntoIndex, Known, Value};
use super::view::Touch;
use crate::ir::scalar::Element;
use crate::ir::{
    self, Access, Builder, Const, Entity, GroupOp, Inst, Op, Param, ParamId, Purpose, Region, RoleId, Shape,
    SourceLine, Type,
};
use crate::tensor::{Arg, Memory};
use std::borrow::Cow;
use std::cell::{Ref, RefCell, RefMut};
use std::collections::HashSet;
use std::marker::PhantomData;

/// A kernel being traced. Values hold a reference to it.
pub struct Trace {
    state: RefCell<State>,
}

/// Makes a type invariant in `'t`. Everything that leads to values has it: if one type were covariant, the brands of
/// two builds could shrink to a common lifetime and their values mix.
pub(super) type Brand<'t> = PhantomData<fn(&'t ()) -> &'t ()>;

/// Sets the caller's line for traced ops. A method that is called through a table does not know its caller in spite of
/// `#[track_caller]`, so its caller sets the line first.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'t> {
    pub(super) trace: &'t Trace,
    pub(super) brand: Brand<'t>,
}

impl<'t> Lines<'t> {
    /// An index that must be uniform: a lane value is a misuse of `what`.
    pub(crate) fn known(&self, what: &'static str, index: impl IntoIndex<'t>, at: &SourceLine) -> Known<'t> {
        Known::uniform(self.trace, what, index, at)
    }

    /// Everything that `body` traces gets this line, unless an outer caller has set another.
    pub(crate) fn on_behalf_of(&self, at: SourceLine, body: &mut dyn FnMut()) {
        let is_first = self.trace.state().caller.is_none();
        if is_first {
            self.trace.state().caller = Some(at);
        }
        body();
        if is_first {
            self.trace.state().caller = None;
        }
    }
}

/// The result of a trace.
pub(super) struct Outcome {
    pub(super) kernel: ir::Kernel,
    pub(super) args: Vec<Arg>,
    pub(super) errors: Vec<Misuse>,
}

struct State {
    builder: Builder,
    /// One per parameter, in order.
    args: Vec<Arg>,
    errors: Vec<Misuse>,
    /// Every body ever opened; a value remembers the one it was computed in.
    scopes: Vec<ScopeData>,
    /// The bodies open now, outermost first.
    open: Vec<ScopeId>,
    /// The scope of each IR value.
    home: Vec<ScopeId>,
    /// The role whose body is being traced.
    role: Option<RoleId>,
    /// The hook that is being traced.
    hook: Option<HookLeg>,
    /// The line that gave the hook being traced: lines in the library of hooks are reported as this one.
    user: Option<SourceLine>,
    /// The line of the caller, if it was set: see [`Lines`].
    caller: Option<SourceLine>,
    /// The calls of hooks that have been traced.
    calls: Vec<HookCall>,
    /// The shared scratch of each role: see [`RoleCtx::passing_region`](super::RoleCtx::passing_region).
    passing: Vec<(RoleId, ir::ScratchId)>,
    /// Values that are known to be less than a number, and not negative.
    columns: Vec<(ir::Value, usize)>,
}

type ScopeId = u32;

struct ScopeData {
    kind: ScopeKind,
    role: Option<RoleId>,
    began: SourceLine,
}

impl Trace {
    pub(super) fn new(name: &str) -> Trace {
        Trace {
            state: RefCell::new(State {
                builder: Builder::new(name, 1),
                args: Vec::new(),
                errors: Vec::new(),
                scopes: Vec::new(),
                open: Vec::new(),
                home: Vec::with_capacity(64),
                role: None,
                hook: None,
                user: None,
                caller: None,
                calls: Vec::new(),
                passing: Vec::new(),
                columns: Vec::new(),
            }),
        }
    }

    pub(super) fn finish(self) -> Outcome {
        let State { mut builder, args, errors, .. } = self.state.into_inner();
        mark_overlaps(&mut builder, &args);
        Outcome { kernel: builder.finish(), args, errors }
    }

    /// Traces a hook that was given at this line. Misuse inside the library of hooks is reported there: the user knows
    /// that line, not the library's.
    pub(super) fn run_hook<T>(&self, leg: HookLeg, given_at: &SourceLine, hook: impl FnOnce() -> T) -> T {
        let begin = |state: &mut State| {
            (state.hook, state.user) = (Some(leg), Some(given_at.clone()));
            state.builder.kernel().insts.len()
        };
        let first = begin(&mut self.state());
        let result = hook();
        let mut state = self.state();
        (state.hook, state.user) = (None, None);
        let end = state.builder.kernel().insts.len();
        state.calls.push(HookCall { insts: first..end });
        result
    }

    /// Reports an access that a hook must not make to memory of the collective.
    pub(super) fn touches(&self, holds: Holds, touch: Touch, at: &SourceLine) -> bool {
        let mut state = self.state();
        match state.hook.and_then(|leg| leg.refuses(holds, touch)) {
            Some(misuse) => state.report(at, misuse),
            None => return true,
        }
        false
    }

    /// The kernel so far, its arguments and the calls of hooks in it.
    pub(super) fn with_calls<T>(&self, f: impl FnOnce(&ir::Kernel, &[Arg], &[HookCall]) -> T) -> T {
        let state = self.state.borrow();
        f(state.builder.kernel(), &state.args, &state.calls)
    }

    // ---- ops ----------------------------------------------------------------------------------------------------

    /// Appends an op, after checking that its operands are visible here.
    pub(crate) fn emit(&self, op: Op, at: &SourceLine) -> Option<ir::Value> {
        self.state().emit(op, at)
    }

    /// Appends an op that defines a value of type `T`.
    pub(crate) fn value<T: Element>(&self, op: Op, at: &SourceLine) -> Value<'_, T> {
        let value = self.raw(op, at);
        debug_assert_eq!(self.state.borrow().builder.kernel().ty(value), T::TYPE);
        Value::new(self, value)
    }

    /// Appends an op that defines a value.
    pub(crate) fn raw(&self, op: Op, at: &SourceLine) -> ir::Value {
        self.emit(op, at).expect("the op defines a value")
    }

    /// Appends a constant.
    pub(crate) fn constant(&self, ty: Type, bits: u64, at: &SourceLine) -> ir::Value {
        self.raw(Op::Const(Const { ty, bits }), at)
    }

    /// The value itself if it is uniform and visible here, otherwise a poison and a misuse.
    pub(crate) fn uniform(&self, what: &'static str, value: ir::Value, at: &SourceLine) -> ir::Value {
        let mut state = self.state();
        let value = state.visible(value, at);
        if state.builder.kernel().shape(value) == Shape::Uniform {
            return value;
        }
        state.report(at, MisuseKind::LaneInUniform { what });
        state.poison(value, at)
    }

    // ---- misuse -------------------------------------------------------------------------------------------------

    /// True if a value is known to be the same for all of every group of `group` neighbours: uniform, a reduction over
    /// the group (or over several), or computed from such values.
    pub(crate) fn same_in_groups(&self, value: ir::Value, group: usize) -> bool {
        let kernel = self.kernel();
        let (mut open, mut seen) = (vec![value], HashSet::new());
        while let Some(value) = open.pop() {
            if kernel.shape(value) == Shape::Uniform || !seen.insert(value) {
                continue;
            }
            match kernel.def(value) {
                Some(Op::Group { op, size, .. }) if *op != GroupOp::Scan && (*size as usize).is_multiple_of(group) => {}
                Some(
                    op @ (Op::Unary { .. }
                    | Op::Binary { .. }
                    | Op::Compare { .. }
                    | Op::Fma { .. }
                    | Op::Select { .. }
                    | Op::Cast { .. }
                    | Op::Bitcast { .. }),
                ) => open.extend(op.operands()),
                _ => return false,
            }
        }
        true
    }

    /// True if a value is known to be one of `0..extent`: the index of an `each` that runs no further, or
    /// declared so by the code that makes it.
    pub(crate) fn is_below(&self, value: ir::Value, extent: usize) -> bool {
        let state = self.state.borrow();
        let kernel = state.builder.kernel();
        let is_declared = || state.columns.iter().any(|&(of, bound)| of == value && bound <= extent);
        kernel.runs_to(value).is_some_and(|to| to <= extent as u64) || is_declared()
    }

    /// Records that a value is one of `0..extent`.
    pub(crate) fn declare_below(&self, value: ir::Value, extent: usize) {
        self.state().columns.push((value, extent));
    }

    pub(crate) fn report(&self, at: &SourceLine, kind: MisuseKind) {
        self.state().report(at, kind);
    }

    /// The start of the `each` around the current place.
    pub(crate) fn each(&self) -> Option<SourceLine> {
        self.state().open_each()
    }

    /// True if the current place is outside every `each`; reports `what` if not.
    pub(crate) fn not_in_each(&self, what: &'static str, at: &SourceLine) -> bool {
        let each = self.state().open_each();
        match each {
            Some(each) => self.report(at, MisuseKind::InsideEach { what, each }),
            None => return true,
        }
        false
    }

    /// Reports `what` unless the current place is inside an `each`.
    pub(crate) fn only_in_each(&self, what: &'static str, at: &SourceLine) -> bool {
        let inside = self.state().open_each().is_some();
        if !inside {
            self.report(at, MisuseKind::OutsideEach { what });
        }
        inside
    }

    /// Reports the use of a role's private object in another role.
    pub(crate) fn own(&self, what: &'static str, owner: RoleId, at: &SourceLine) -> bool {
        let mut state = self.state();
        if state.role == Some(owner) {
            return true;
        }
        let misuse = match state.role {
            Some(user) => MisuseKind::OtherRole { what, owner: state.role_name(owner), user: state.role_name(user) },
            None => MisuseKind::OutsideRole,
        };
        state.report(at, misuse);
        false
    }

    // ---- bodies -------------------------------------------------------------------------------------------------

    /// Opens a role's body. `None` inside another role, which is reported.
    pub(super) fn open_role(&self, name: &str, warps: u32, copies: u32, at: &SourceLine) -> Option<RoleId> {
        let mut state = self.state();
        if let Some(outer) = state.role {
            let outer = state.role_name(outer);
            state.report(at, MisuseKind::NestedRole { outer });
            return None;
        }
        let kernel = state.builder.kernel();
        if let Some(first) = kernel.roles.values().find(|role| role.name == name) {
            let (name, first) = (name.to_string(), kernel.sites[first.site].clone());
            state.report(at, MisuseKind::DuplicateRole { name, first });
        }
        let role = state.builder.open_role(name, warps, copies, at);
        state.role = Some(role);
        state.enter(ScopeKind::Role, at);
        Some(role)
    }

    pub(super) fn copies_of(&self, role: RoleId) -> u32 {
        self.state().builder.kernel().roles[role].copies
    }

    pub(super) fn close_role(&self) {
        let mut state = self.state();
        state.leave();
        state.role = None;
    }

    /// Opens a body; ops go there until [`Trace::close`].
    pub(crate) fn open(&self, kind: ScopeKind, at: &SourceLine) -> Region {
        let mut state = self.state();
        let region = state.builder.open(kind == ScopeKind::Each);
        state.enter(kind, at);
        region
    }

    pub(crate) fn close(&self) {
        self.state().leave();
    }

    /// Opens the body of a loop that `make` builds around it; returns the loop and its index values, which live in the
    /// body.
    pub(crate) fn open_loop(
        &self,
        kind: ScopeKind,
        at: &SourceLine,
        make: &dyn Fn(Region) -> Op,
    ) -> (Inst, [ir::Value; 2]) {
        let mut state = self.state();
        let at = &*state.user_line(at);
        let region = state.builder.open(kind == ScopeKind::Each);
        state.enter(kind, at);
        let (inst, indices) = state.builder.loop_head(make(region), at);
        let scope = *state.open.last().expect("just entered");
        debug_assert_eq!(state.home.len(), indices[0].index());
        indices.iter().for_each(|_| state.home.push(scope));
        (inst, [indices[0], *indices.last().expect("one or two")])
    }

    /// Closes the body of a loop and places the loop.
    pub(crate) fn close_loop(&self, inst: Inst) {
        let mut state = self.state();
        state.leave();
        state.builder.place(inst);
    }

    /// Places an op around closed bodies; its operands were checked before.
    pub(crate) fn place(&self, op: Op, at: &SourceLine) {
        let mut state = self.state();
        let at = state.user_line(at);
        state.builder.push(op, &at);
    }

    // ---- parameters ---------------------------------------------------------------------------------------------

    /// The parameter for this memory: the existing one (with its access widened), or a new one. `len` counts elements
    /// in each bank.
    #[track_caller]
    pub(crate) fn buffer(&self, name: &str, ty: Type, memories: &[Memory], len: usize, access: Access) -> ParamId {
        let at = SourceLine::caller();
        let param = self.known_or_new(name, ty, memories, len, access);
        self.state().builder.set_declared(param, at);
        param
    }

    fn known_or_new(&self, name: &str, ty: Type, memories: &[Memory], len: usize, access: Access) -> ParamId {
        let mut state = self.state();
        let same = |(_, arg): &(ParamId, &Arg)| matches!(arg, Arg::Buffer(m) if all_same(m, memories));
        let known = state
            .params()
            .filter(same)
            .map(|(id, _)| id)
            .find(|&id| matches!(state.builder.kernel().params[id], Param::Buffer { ty: is, .. } if is == ty));
        if let Some(id) = known {
            if let Param::Buffer { access: is, .. } = state.builder.param_mut(id) {
                *is = if *is == access { access } else { Access::InOut };
            }
            return id;
        }
        let align = memories.iter().map(alignment).min().unwrap_or(1).max(ty.size() as u32);
        let name = if name.is_empty() { format!("arg{}", state.args.len()) } else { name.to_string() };
        let banks = memories.len() as u32;
        let param = Param::Buffer { name, ty, len: len as u64, banks, access, align };
        state.param(param, Arg::Buffer(memories.to_vec()))
    }

    /// Marks a buffer as a tensor of the caller.
    pub(crate) fn mark_tensor(&self, param: ParamId) {
        self.state().builder.set_purposes(param, vec![Purpose::Tensor]);
    }

    pub(crate) fn scalar(&self, ty: Type, memory: &Memory) -> ParamId {
        let mut state = self.state();
        let same = |(_, arg): &(ParamId, &Arg)| matches!(arg, Arg::Scalar(m) if m.is(memory));
        if let Some((id, _)) = state.params().find(same) {
            return id;
        }
        let name = format!("arg{}", state.args.len());
        state.param(Param::Scalar { name, ty }, Arg::Scalar(memory.clone()))
    }

    /// The parameter with this description and argument; one parameter per memory.
    pub(crate) fn param(&self, param: Param, arg: Arg) -> ParamId {
        let mut state = self.state();
        let same = |(_, is): &(ParamId, &Arg)| match (is, &arg) {
            (Arg::Slots(a), Arg::Slots(b)) => all_same(a, b),
            // Two legs of one ring may belong to different operations.
            (Arg::Queue(a), Arg::Queue(b)) => a.is(b) && a.entries().between() == b.entries().between(),
            _ => false,
        };
        let known = state.params().find(same).map(|(id, _)| id);
        known.unwrap_or_else(|| state.param(param, arg))
    }

    pub(crate) fn rename(&self, param: ParamId, to: &str) {
        self.state().builder.rename(param, to);
    }

    pub(super) fn set_blocks(&self, blocks: u32) {
        self.state().builder.set_blocks(blocks);
    }

    pub(super) fn new_var(&self, role: RoleId, ty: Type) -> ir::VarId {
        self.state().builder.var(role, ty)
    }

    pub(super) fn new_scratch(&self, role: RoleId, ty: Type, len: u64) -> ir::ScratchId {
        self.state().builder.scratch(role, ty, len)
    }

    /// The scratch of a role that schedules share, of at least `bytes` bytes.
    pub(super) fn passing_scratch(&self, role: RoleId, bytes: u64) -> ir::ScratchId {
        let mut state = self.state();
        let known = state.passing.iter().find(|&&(of, _)| of == role).map(|&(_, id)| id);
        let id = known.unwrap_or_else(|| {
            let id = state.builder.scratch(role, Type::U8, bytes);
            state.passing.push((role, id));
            id
        });
        state.builder.widen_scratch(id, bytes);
        id
    }

    /// The kernel so far.
    pub(crate) fn kernel(&self) -> Ref<'_, ir::Kernel> {
        Ref::map(self.state.borrow(), |state| state.builder.kernel())
    }

    fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }
}

impl State {
    fn emit(&mut self, mut op: Op, at: &SourceLine) -> Option<ir::Value> {
        self.in_role(at);
        op.map_operands(&mut |v| self.visible(v, at));
        self.push(op, at)
    }

    fn push(&mut self, op: Op, at: &SourceLine) -> Option<ir::Value> {
        let at = self.user_line(at);
        let value = self.builder.push(op, &at)?;
        let scope = *self.open.last().expect("in a role");
        // Values come in order. A gap cannot occur because loops record their indices themselves.
        debug_assert_eq!(self.home.len(), value.index());
        self.home.push(scope);
        Some(value)
    }

    /// Gives ops a place to go: outside of roles they go to a body that no role has.
    fn in_role(&mut self, at: &SourceLine) {
        if self.role.is_none() {
            self.report(at, MisuseKind::OutsideRole);
            if self.open.is_empty() {
                self.builder.open(false);
                self.enter(ScopeKind::Role, at);
            }
        }
    }

    /// The value, or a poison and a misuse if the body that computed it is closed.
    fn visible(&mut self, value: ir::Value, at: &SourceLine) -> ir::Value {
        let home = self.home[value.index()];
        if self.open.iter().rev().any(|&scope| scope == home) {
            return value;
        }
        let scope = &self.scopes[home as usize];
        let misuse = match (scope.role, self.role) {
            (Some(owner), Some(user)) if owner != user => {
                MisuseKind::OtherRole { what: "value", owner: self.role_name(owner), user: self.role_name(user) }
            }
            (_, None) => MisuseKind::OutsideRole,
            _ => MisuseKind::Escaped { from: scope.kind, began: scope.began.clone() },
        };
        self.report(at, misuse);
        self.poison(value, at)
    }

    fn poison(&mut self, value: ir::Value, at: &SourceLine) -> ir::Value {
        let ty = self.builder.kernel().ty(value);
        if self.open.is_empty() {
            self.builder.open(false);
            self.enter(ScopeKind::Role, at);
        }
        self.push(Op::Const(Const { ty, bits: 0 }), at).expect("a constant is a value")
    }

    fn enter(&mut self, kind: ScopeKind, at: &SourceLine) {
        self.open.push(self.scopes.len() as ScopeId);
        self.scopes.push(ScopeData { kind, role: self.role, began: at.clone() });
    }

    fn leave(&mut self) {
        self.builder.close();
        self.open.pop().expect("a body is open");
    }

    fn open_each(&self) -> Option<SourceLine> {
        let scope = &self.scopes[*self.open.last()? as usize];
        (scope.kind == ScopeKind::Each).then(|| scope.began.clone())
    }

    fn params(&self) -> impl Iterator<Item = (ParamId, &Arg)> {
        self.args.iter().enumerate().map(|(i, arg)| (ParamId::new(i), arg))
    }

    fn param(&mut self, param: Param, arg: Arg) -> ParamId {
        let banks = match &arg {
            Arg::Slots(banks) | Arg::Buffer(banks) => &banks[..],
            Arg::Queue(queue) => std::slice::from_ref(queue.entries()),
            Arg::Scalar(_) => &[],
        };
        let purposes: Vec<Purpose> = banks.iter().map(Memory::purpose).collect();
        self.args.push(arg);
        let id = self.builder.param(param);
        if purposes.iter().any(|&purpose| purpose != Purpose::Own) {
            self.builder.set_purposes(id, purposes);
        }
        id
    }

    fn role_name(&self, role: RoleId) -> String {
        self.builder.kernel().roles[role].name.clone()
    }

    fn report(&mut self, at: &SourceLine, kind: MisuseKind) {
        let misuse = Misuse { at: self.user_line(at).into_owned(), kind };
        // One mistake is often met several times: in a host-language loop, or in several operands of one line.
        let same = |e: &Misuse| (e.at.file, e.at.line, &e.kind) == (misuse.at.file, misuse.at.line, &misuse.kind);
        if !self.errors.iter().any(same) {
            self.errors.push(misuse);
        }
    }

    /// The line to report for this one.
    fn user_line<'l>(&self, at: &'l SourceLine) -> Cow<'l, SourceLine> {
        match (&self.user, &self.caller) {
            (_, Some(caller)) => Cow::Owned(caller.clone()),
            (Some(user), _) if in_library(at) => Cow::Owned(user.clone()),
            _ => Cow::Borrowed(at),
        }
    }
}

/// True if the line is in the library of hooks, the folder beside this one.
fn in_library(at: &SourceLine) -> bool {
    let sources = file!().strip_suffix("hook/trace.rs");
    sources.and_then(|sources| at.file.strip_prefix(sources)).is_some_and(|file| file.starts_with("hooks/"))
}

fn all_same(a: &[Memory], b: &[Memory]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| a.is(b) && (a.between(), a.operation()) == (b.between(), b.operation()))
}

/// The alignment that an engine may rely on. At most 64, which every allocation of tilewire has: a larger number would
/// depend on luck, and ranks would build different kernels.
fn alignment(memory: &Memory) -> u32 {
    1 << (memory.start().as_ptr() as usize).trailing_zeros().min(6)
}

/// `In` promises that nothing writes the memory during the launch. Slices of one tensor can break that without being
/// the same parameter, so buffers that share bytes with a written one become `InOut`.
fn mark_overlaps(builder: &mut Builder, args: &[Arg]) {
    let access = |builder: &Builder, i: usize| match builder.kernel().params[ParamId::new(i)] {
        Param::Buffer { access, .. } => Some(access),
        _ => None,
    };
    let mut shared = Vec::new();
    for (i, a) in args.iter().enumerate() {
        for (j, b) in args.iter().enumerate().skip(i + 1) {
            let (Arg::Buffer(a), Arg::Buffer(b)) = (a, b) else { continue };
            let read_only = [i, j].iter().all(|&i| access(builder, i) == Some(Access::In));
            if !read_only && a.iter().any(|a| b.iter().any(|b| a.overlaps(b))) {
                shared.extend([i, j]);
            }
        }
    }
    for i in shared {
        if let Param::Buffer { access, .. } = builder.param_mut(ParamId::new(i)) {
            *access = Access::InOut;
        }
    }
}
