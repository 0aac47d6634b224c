//! A kernel: parameters, roles, and the arenas that hold their code.

use super::entity::{Inst, ParamId, Region, RoleId, ScratchId, Site, Table, Value, VarId};
use super::op::{Base, Const, Mask, Notice, Op, Place, PostSpan, RequiredSpan, Slot};
use super::purpose::Purpose;
use super::types::{Shape, Type};
use std::collections::BTreeMap;

/// A whole kernel: what every block of a launch runs. Plain data: build it with [`super::Builder`], check it with
/// [`super::verify`], print it with `Display`.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Name, for messages.
    pub name: String,
    /// Number of blocks of a launch, ≥ 1.
    pub blocks: u32,
    /// The parameters that a launch binds, in order.
    pub params: Table<ParamId, Param>,
    /// The roles of a block; each runs its own body.
    pub roles: Table<RoleId, Role>,
    /// Mutable uniform variables; each belongs to one role.
    pub vars: Table<VarId, Var>,
    /// Role-private scratch.
    pub scratches: Table<ScratchId, Scratch>,
    /// All values.
    pub values: Table<Value, ValueData>,
    /// All instructions. One that no region lists is dead.
    pub insts: Table<Inst, InstData>,
    /// All regions.
    pub regions: Table<Region, Vec<Inst>>,
    /// Source lines the instructions refer to.
    pub sites: Table<Site, SourceLine>,
    /// The purpose of every bank of a parameter; all are [`Purpose::Own`] if there is no entry. The text shows only
    /// `matched`.
    pub purposes: BTreeMap<ParamId, Vec<Purpose>>,
    /// Where buffers were declared, if known. Engines ignore this; the checker reports it.
    pub declared: BTreeMap<ParamId, SourceLine>,
}

/// A parameter: what a launch binds to a kernel.
#[derive(Clone, PartialEq, Debug)]
pub enum Param {
    /// Memory of `len` elements in each of `banks` places (`banks` > 1: one place per peer).
    Buffer {
        /// Name, for messages.
        name: String,
        /// Element type.
        ty: Type,
        /// Elements in each bank.
        len: u64,
        /// Number of banks, ≥ 1.
        banks: u32,
        /// What the kernel may do with the buffer.
        access: Access,
        /// Alignment of each bank's first byte, a power of two ≥ the element size.
        align: u32,
    },
    /// A number read when the launch starts.
    Scalar {
        /// Name, for messages.
        name: String,
        /// Its type.
        ty: Type,
    },
    /// Signal slots: `len` u64 counters, `stride` bytes apart, in each bank.
    Slots {
        /// Name, for messages.
        name: String,
        /// Slots in each bank.
        len: u64,
        /// Bytes from one slot to the next, a multiple of 8.
        stride: u32,
        /// Number of banks, ≥ 1.
        banks: u32,
    },
    /// A descriptor queue to a network proxy.
    Queue {
        /// Name, for messages.
        name: String,
    },
}

impl Param {
    /// Name, as its declaration states it. Messages to a rank have [`Kernel::name_for`].
    pub fn name(&self) -> &str {
        match self {
            Param::Buffer { name, .. }
            | Param::Scalar { name, .. }
            | Param::Slots { name, .. }
            | Param::Queue { name } => name,
        }
    }

    /// Gives it another name.
    pub(super) fn rename(&mut self, to: &str) {
        let (Param::Buffer { name, .. }
        | Param::Scalar { name, .. }
        | Param::Slots { name, .. }
        | Param::Queue { name }) = self;
        *name = to.to_string();
    }
}

/// What a kernel may do with a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Only read, and not written by anyone during the launch.
    In,
    /// Only written by plain stores of this kernel (reading back what it wrote is allowed).
    Out,
    /// Read and written, possibly by peers during the launch too (regions, windows, counters).
    InOut,
}

/// A group of lanes of every block that runs one body.
#[derive(Clone, Debug)]
pub struct Role {
    /// Name, unique in the kernel.
    pub name: String,
    /// Warps of 32 lanes of one copy on a GPU, ≥ 1.
    pub warps: u32,
    /// Copies that take turns, ≥ 1. The CPU engine runs one.
    pub copies: u32,
    /// The body.
    pub body: Region,
    /// Where it was declared.
    pub site: Site,
}

/// A mutable uniform variable.
#[derive(Clone, Debug)]
pub struct Var {
    /// Type of its value.
    pub ty: Type,
    /// The role it belongs to.
    pub role: RoleId,
}

/// Scratch private to a (block, role, copy); its contents are undefined at launch.
#[derive(Clone, Debug)]
pub struct Scratch {
    /// Element type.
    pub ty: Type,
    /// Number of elements.
    pub len: u64,
    /// The role it belongs to.
    pub role: RoleId,
}

/// An instruction: an op, the value it defines if any, and the source line it came from.
#[derive(Clone, Debug)]
pub struct InstData {
    /// The op.
    pub op: Op,
    /// The value it defines.
    pub result: Option<Value>,
    /// Index values of a `For` (1) or an `Each` (1 or 2), outermost axis first; empty otherwise.
    pub indices: Vec<Value>,
    /// Where the user wrote it.
    pub site: Site,
}

/// A value.
#[derive(Clone, Debug)]
pub struct ValueData {
    /// Its type.
    pub ty: Type,
    /// Uniform or lane.
    pub shape: Shape,
    /// What defines it.
    pub def: Def,
}

/// What defines a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Def {
    /// The result of an instruction.
    Result(Inst),
    /// The index of a `For` or `Each` on one axis.
    Index {
        /// The loop.
        inst: Inst,
        /// Axis, from 0.
        axis: usize,
    },
}

/// A place in the user's source.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SourceLine {
    /// File as the compiler names it.
    pub file: &'static str,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

impl SourceLine {
    /// The caller's line (that of the nearest function that is not `#[track_caller]`).
    #[track_caller]
    pub fn caller() -> Self {
        std::panic::Location::caller().into()
    }
}

impl From<&'static std::panic::Location<'static>> for SourceLine {
    fn from(at: &'static std::panic::Location<'static>) -> Self {
        SourceLine { file: at.file(), line: at.line(), column: at.column() }
    }
}

impl std::fmt::Display for SourceLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

impl Kernel {
    /// Type of a value.
    pub fn ty(&self, v: Value) -> Type {
        self.values[v].ty
    }

    /// Shape of a value.
    pub fn shape(&self, v: Value) -> Shape {
        self.values[v].shape
    }

    /// The op that defines a value, or `None` for a loop index (and for an id that is not in this kernel).
    pub fn def(&self, v: Value) -> Option<&Op> {
        match self.values.get(v)?.def {
            Def::Result(inst) => Some(&self.insts.get(inst)?.op),
            Def::Index { .. } => None,
        }
    }

    /// The constant of a value, if it is one.
    pub fn as_const(&self, v: Value) -> Option<Const> {
        match self.def(v) {
            Some(Op::Const(c)) => Some(*c),
            _ => None,
        }
    }

    /// A bound that a value stays below and never goes under 0: that of the index of an `each` of a constant extent, or
    /// of a constant itself.
    pub fn runs_to(&self, v: Value) -> Option<u64> {
        let bits = |v: Value| self.as_const(v).map(|c| c.bits).filter(|&bits| bits <= i64::MAX as u64);
        match self.values[v].def {
            Def::Index { inst, axis } => match &self.insts[inst].op {
                Op::Each { extent, .. } => bits(extent[axis]),
                _ => None,
            },
            Def::Result(_) => bits(v).map(|bits| bits + 1),
        }
    }

    /// Element type of a base. `None` if the parameter is not a buffer.
    pub fn base_type(&self, base: Base) -> Option<Type> {
        match base {
            Base::Param(p) => match self.params.get(p)? {
                Param::Buffer { ty, .. } => Some(*ty),
                _ => None,
            },
            Base::Scratch(s) => Some(self.scratches.get(s)?.ty),
        }
    }

    /// Elements in one bank of a base. `None` if the parameter is not a buffer.
    pub fn base_len(&self, base: Base) -> Option<u64> {
        match base {
            Base::Param(p) => match self.params.get(p)? {
                Param::Buffer { len, .. } => Some(*len),
                _ => None,
            },
            Base::Scratch(s) => Some(self.scratches.get(s)?.len),
        }
    }

    /// The purpose of a bank of a parameter.
    pub fn purpose(&self, param: ParamId, bank: usize) -> Purpose {
        self.purposes.get(&param).and_then(|banks| banks.get(bank)).copied().unwrap_or_default()
    }

    /// True if words and flags of a parameter carry the number of the launch's operation, which is an argument
    /// ([`matching`](super::matching)). A launch that waits for this operation ends with an error if it finds a signal
    /// or packet of another one.
    pub fn is_matched(&self, param: ParamId) -> bool {
        self.purposes.get(&param).is_some_and(|banks| banks.iter().any(|bank| bank.is_matched()))
    }

    /// The name of a parameter in messages to rank `me`: with the rank that it waits for in the parameter, if that is
    /// one other rank.
    pub fn name_for(&self, param: ParamId, me: u32) -> String {
        let name = self.params[param].name();
        let peer = match self.purposes.get(&param).map(Vec::as_slice) {
            Some([purpose @ Purpose::Transfer { .. }]) => purpose.signaller(0, 1).filter(|&by| by != me),
            _ => None,
        };
        peer.map_or_else(|| name.to_string(), |peer| format!("{name} of rank {peer}"))
    }

    /// The parameters that hold packets. Both halves of a packet are read together, so these must be aligned to it,
    /// whatever their purpose.
    pub fn packet_areas(&self) -> Vec<ParamId> {
        let mut found = Vec::new();
        for role in self.roles.values() {
            self.walk(role.body, &mut |inst| {
                if let Op::PacketPut { at, .. } | Op::PacketGet { at, .. } = &self.insts[inst].op
                    && let Base::Param(p) = at.base
                {
                    found.push(p);
                }
            });
        }
        found
    }

    /// Source line of an instruction.
    pub fn line(&self, inst: Inst) -> &SourceLine {
        &self.sites[self.insts[inst].site]
    }

    /// Calls `f` for every instruction of a region and of the regions inside it, outer first, in program order.
    pub fn walk(&self, region: Region, f: &mut dyn FnMut(Inst)) {
        for &inst in &self.regions[region] {
            f(inst);
            for inner in self.insts[inst].op.regions() {
                self.walk(inner, f);
            }
        }
    }

    /// Number of instructions that the roles reach.
    pub fn reachable_insts(&self) -> usize {
        let mut count = 0;
        for role in self.roles.values() {
            self.walk(role.body, &mut |_| count += 1);
        }
        count
    }
}

/// Hands every operand of an op to the macro `visit`, in the order of the fields: by reference, mutable if the op is.
/// This is the only code that knows where operands are.
macro_rules! visit_operands {
    ($op:expr, $visit:ident) => {{
        macro_rules! indexed {
            ($kind:ident, $at:expr) => {{
                let $kind { bank, index, .. } = $at;
                if let Some(bank) = bank {
                    $visit!(bank);
                }
                $visit!(index);
            }};
        }
        match $op {
            Op::Const(_)
            | Op::Special(_)
            | Op::Scalar(_)
            | Op::ReadVar(_)
            | Op::BulkWait { .. }
            | Op::ProxyFence
            | Op::Barrier => {}
            Op::Unary { x, .. }
            | Op::Cast { x, .. }
            | Op::Bitcast { x, .. }
            | Op::Group { x, .. }
            | Op::WriteVar { x, .. } => $visit!(x),
            Op::Binary { a, b, .. } | Op::Compare { a, b, .. } => {
                $visit!(a);
                $visit!(b);
            }
            Op::Select { cond: a, a: b, b: c } | Op::Fma { a, b, c } => {
                $visit!(a);
                $visit!(b);
                $visit!(c);
            }
            Op::Load { at, mask } | Op::Get { at, mask, .. } => {
                indexed!(Place, at);
                if let Some(Mask { cond, other }) = mask {
                    $visit!(cond);
                    $visit!(other);
                }
            }
            Op::Store { at, x, mask } | Op::Put { at, x, mask } | Op::AtomicAdd { at, x, mask, .. } => {
                indexed!(Place, at);
                $visit!(x);
                if let Some(mask) = mask {
                    $visit!(mask);
                }
            }
            Op::Signal { slot: at, x }
            | Op::SignalCredit { slot: at, x }
            | Op::Wait { slot: at, x }
            | Op::Test { slot: at, x } => {
                indexed!(Slot, at);
                $visit!(x);
            }
            Op::PacketPut { at, x, flag } => {
                indexed!(Place, at);
                $visit!(x);
                $visit!(flag);
            }
            Op::PacketGet { at, flag } => {
                indexed!(Place, at);
                $visit!(flag);
            }
            Op::BulkCopy { dst, src, count } => {
                indexed!(Place, dst);
                indexed!(Place, src);
                $visit!(count);
            }
            Op::Post { peer, span, notice, .. } => {
                $visit!(peer);
                if let Some(PostSpan { src, dst, bytes }) = span {
                    indexed!(Place, src);
                    $visit!(dst);
                    $visit!(bytes);
                }
                if let Some(Notice { slot, x, .. }) = notice {
                    $visit!(slot);
                    $visit!(x);
                }
            }
            Op::Require { cond, span } => {
                $visit!(cond);
                if let Some(RequiredSpan { rank, offset, bytes, size }) = span {
                    $visit!(rank);
                    $visit!(offset);
                    $visit!(bytes);
                    $visit!(size);
                }
            }
            Op::If { cond, .. } | Op::While { cond, .. } => $visit!(cond),
            Op::For { start, end, step, .. } => {
                $visit!(start);
                $visit!(end);
                $visit!(step);
            }
            Op::Each { extent, .. } => {
                for extent in extent {
                    $visit!(extent);
                }
            }
        }
    }};
}

impl Op {
    /// The values this op reads, in the order of its fields.
    pub fn operands(&self) -> Vec<Value> {
        let mut out = Vec::new();
        self.for_each_operand(|v| out.push(v));
        out
    }

    /// Calls `f` for every value this op reads, in the order of its fields.
    pub fn for_each_operand(&self, mut f: impl FnMut(Value)) {
        macro_rules! visit {
            ($x:expr) => {
                f(*$x)
            };
        }
        visit_operands!(self, visit);
    }

    /// Replaces every operand by `f(operand)`, in the order of the fields.
    pub fn map_operands(&mut self, f: &mut dyn FnMut(Value) -> Value) {
        macro_rules! visit {
            ($x:expr) => {
                *$x = f(*$x)
            };
        }
        visit_operands!(self, visit);
    }

    /// The places in memory this op accesses, the one written first.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        let places = match self {
            Op::Load { at, .. }
            | Op::Store { at, .. }
            | Op::AtomicAdd { at, .. }
            | Op::Put { at, .. }
            | Op::Get { at, .. }
            | Op::PacketPut { at, .. }
            | Op::PacketGet { at, .. } => [Some(at), None],
            Op::Post { span, .. } => [span.as_ref().map(|span| &span.src), None],
            Op::BulkCopy { dst, src, .. } => [Some(dst), Some(src)],
            _ => [None, None],
        };
        places.into_iter().flatten()
    }

    /// The regions inside this op, in order of execution.
    pub fn regions(&self) -> Vec<Region> {
        match self {
            Op::If { then, otherwise, .. } => vec![*then, *otherwise],
            Op::For { body, .. } | Op::Each { body, .. } => vec![*body],
            Op::While { head, body, .. } => vec![*head, *body],
            _ => Vec::new(),
        }
    }

    /// True if the op may wait for another rank, or for a network proxy.
    pub fn may_block(&self) -> bool {
        matches!(self, Op::Wait { .. } | Op::Test { .. } | Op::PacketGet { .. } | Op::Post { .. })
    }

    /// True if the op only computes its result from its operands, so that it can be moved, shared and dropped.
    pub fn is_pure(&self) -> bool {
        matches!(
            self,
            Op::Const(_)
                | Op::Special(_)
                | Op::Scalar(_)
                | Op::Unary { .. }
                | Op::Binary { .. }
                | Op::Compare { .. }
                | Op::Select { .. }
                | Op::Fma { .. }
                | Op::Cast { .. }
                | Op::Bitcast { .. }
                | Op::Group { .. }
        )
    }
}
