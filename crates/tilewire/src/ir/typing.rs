//! The type of an op's result and of its operands: the single definition, used by the builder (to type values) and the
//! verifier (to reject).

use super::entity::Value;
use super::kernel::{Access, Kernel, Param};
use super::op::{Base, BinaryOp, CompareOp, Notice, Op, Place, PostSpan, RequiredSpan, Slot, UnaryOp};
use super::ring::{MAX_PARTS, NoticeKind};
use super::types::{Shape, Type};

/// The type and shape of an op's result; `None` for ops that define nothing.
///
/// `in_each` is true if the op stands in the body of an `each`. Never panics: a type that an unknown id would decide is
/// `i64` and uniform, and the verifier reports the id.
pub fn result(kernel: &Kernel, op: &Op, in_each: bool) -> Option<(Type, Shape)> {
    let of = |v: &Value| kernel.values.get(*v).map_or(Type::I64, |data| data.ty);
    let ty = match op {
        Op::Const(c) => c.ty,
        Op::Special(_) => Type::I64,
        Op::Scalar(p) => match kernel.params.get(*p) {
            Some(Param::Scalar { ty, .. }) => *ty,
            _ => Type::I64, // the verifier reports it
        },
        Op::Unary { x, .. } | Op::Group { x, .. } => of(x),
        Op::Binary { a, .. } | Op::Select { a, .. } | Op::Fma { a, .. } => of(a),
        Op::Compare { .. } | Op::Test { .. } => Type::Bool,
        Op::Cast { to, .. } | Op::Bitcast { to, .. } | Op::Get { to, .. } => *to,
        Op::ReadVar(var) => kernel.vars.get(*var).map_or(Type::I64, |data| data.ty),
        Op::Load { at, .. } => kernel.base_type(at.base).unwrap_or(Type::U8),
        Op::AtomicAdd { x, .. } => of(x),
        Op::PacketGet { .. } => Type::U64,
        _ => return None,
    };
    let memory =
        matches!(op, Op::Load { .. } | Op::Get { .. } | Op::AtomicAdd { .. } | Op::PacketGet { .. } | Op::Group { .. });
    let mut lane = memory && in_each;
    if !memory {
        op.for_each_operand(|v| lane |= is_lane(kernel, v));
    }
    Some((ty, if lane { Shape::Lane } else { Shape::Uniform }))
}

/// The errors in the types and shapes of one op's operands, in words; empty if there are none. Scoping, position (what
/// may stand where) and unknown values and variables are left to the verifier.
pub fn complaints(kernel: &Kernel, op: &Op) -> Vec<String> {
    let mut check = Check { kernel, found: Vec::new() };
    check.op(op);
    check.found
}

fn is_lane(kernel: &Kernel, v: Value) -> bool {
    kernel.values.get(v).is_some_and(|data| data.shape == Shape::Lane)
}

struct Check<'k> {
    kernel: &'k Kernel,
    found: Vec<String>,
}

impl Check<'_> {
    fn op(&mut self, op: &Op) {
        match op {
            Op::Const(c) => {
                if c.ty.bits() < 64 && c.bits >> c.ty.bits() != 0 {
                    self.say(format!("constant bits {:#x} do not fit {}", c.bits, c.ty));
                } else if c.ty == Type::Bool && c.bits > 1 {
                    self.say(format!("a bool constant is 0 or 1, not {}", c.bits));
                }
            }
            Op::Special(_) | Op::ReadVar(_) | Op::ProxyFence | Op::Barrier | Op::BulkWait { .. } => {}
            Op::Scalar(p) => {
                if !matches!(self.kernel.params.get(*p), Some(Param::Scalar { .. })) {
                    self.say(format!("{p} is not a scalar parameter"));
                }
            }
            Op::Unary { op, x } => self.unary(*op, *x),
            Op::Binary { op, a, b } => self.binary(*op, *a, *b),
            Op::Compare { op, a, b } => {
                self.same("comparison", *a, *b);
                if self.ty(*a) == Some(Type::Bool) && !matches!(op, CompareOp::Eq | CompareOp::Ne) {
                    self.say(format!("bool has no order: {op} takes numbers"));
                }
            }
            Op::Select { cond, a, b } => {
                self.expect("condition of select", *cond, Type::Bool);
                self.same("select", *a, *b);
            }
            Op::Fma { a, b, c } => {
                self.same("fma", *a, *b);
                self.same("fma", *a, *c);
                self.float("fma", *a);
            }
            Op::Cast { .. } => {}
            Op::Bitcast { x, to } => {
                let Some(from) = self.ty(*x) else { return };
                if from == Type::Bool || *to == Type::Bool || from.size() != to.size() {
                    self.say(format!("bit cast from {from} ({} bits) to {to} ({} bits)", from.bits(), to.bits()));
                }
            }
            Op::Group { x, size, .. } => {
                self.number("group reduction", *x);
                if *size == 0 {
                    self.say("group of 0 elements".into());
                }
            }
            Op::WriteVar { var, x } => {
                self.uniform("value of a variable", *x);
                if let Some(var) = self.kernel.vars.get(*var) {
                    self.expect("value of a variable", *x, var.ty);
                }
            }
            Op::Load { at, mask } => {
                self.place(at, false);
                if let (Some(mask), Some(ty)) = (mask, self.kernel.base_type(at.base)) {
                    self.expect("mask", mask.cond, Type::Bool);
                    self.expect("masked-off value", mask.other, ty);
                }
            }
            Op::Store { at, x, mask } => {
                self.place(at, true);
                if let Some(ty) = self.kernel.base_type(at.base) {
                    self.expect("stored value", *x, ty);
                }
                self.mask(mask);
            }
            Op::AtomicAdd { at, x, mask, .. } => {
                self.place(at, true);
                if let Some(ty) = self.kernel.base_type(at.base) {
                    self.expect("addend", *x, ty);
                    if !ty.is_int() || ty.size() < 4 {
                        self.say(format!("atomic_add takes 32- and 64-bit integers, not {ty}"));
                    }
                }
                self.shared("atomic_add", at, &[Access::Out]);
                self.mask(mask);
            }
            Op::Put { at, mask, .. } => {
                self.place(at, true);
                self.bytes("put", at);
                self.mask(mask);
            }
            Op::Get { at, to, mask } => {
                self.place(at, false);
                self.bytes("get", at);
                if let Some(mask) = mask {
                    self.expect("mask", mask.cond, Type::Bool);
                    self.expect("masked-off value", mask.other, *to);
                }
            }
            Op::Signal { slot, x } | Op::SignalCredit { slot, x } | Op::Wait { slot, x } | Op::Test { slot, x } => {
                self.slot(slot);
                self.uniform("signal value", *x);
                self.expect("signal value", *x, Type::U64);
            }
            Op::PacketPut { at, x, flag } => {
                self.place(at, true);
                self.bytes("packet_put", at);
                self.parameter("packet_put", at);
                self.shared("packet_put", at, &[Access::Out]);
                self.expect("packet data", *x, Type::U64);
                self.flag(*flag);
            }
            Op::PacketGet { at, flag } => {
                self.place(at, false);
                self.bytes("packet_get", at);
                self.parameter("packet_get", at);
                self.shared("packet_get", at, &[Access::In, Access::Out]);
                self.flag(*flag);
            }
            Op::BulkCopy { dst, src, count } => {
                self.place(dst, true);
                self.place(src, false);
                self.uniform("index of a bulk copy", dst.index);
                self.uniform("index of a bulk copy", src.index);
                self.index("count of a bulk copy", *count);
                self.not_negative("count of a bulk copy", *count);
                if let (Base::Scratch(_), Base::Scratch(_)) = (dst.base, src.base) {
                    self.say("bulk copy from scratch to scratch; one side must be a parameter".into());
                }
                if let (Some(d), Some(s)) = (self.kernel.base_type(dst.base), self.kernel.base_type(src.base))
                    && d != s
                {
                    self.say(format!("bulk copy from {s} to {d}"));
                }
            }
            Op::Post { queue, peer, span, notice } => {
                self.queue(*queue);
                self.index("peer", *peer);
                self.not_negative("peer", *peer);
                if let Some(PostSpan { src, dst, bytes }) = span {
                    self.place(src, false);
                    self.bytes("post", src);
                    self.parameter("post", src);
                    self.uniform("source of a post", src.index);
                    self.index("destination offset", *dst);
                    self.index("byte count", *bytes);
                    self.not_negative("destination offset", *dst);
                    self.not_negative("byte count", *bytes);
                }
                if let Some(Notice { slot, x, parts, kind }) = notice {
                    self.index("slot index", *slot);
                    self.not_negative("slot index", *slot);
                    self.uniform("signal value", *x);
                    self.expect("signal value", *x, Type::U64);
                    let most = if span.is_some() { MAX_PARTS } else { 1 };
                    if !(1..=most).contains(parts) {
                        self.say(format!("a notice of {parts} parts; here at most {most}"));
                    }
                    let named = match kind {
                        NoticeKind::Data => None,
                        NoticeKind::Credit => Some("a credit"),
                        NoticeKind::Flush => Some("a flush"),
                    };
                    if let Some(named) = named.filter(|_| span.is_some()) {
                        self.say(format!("{named} has no bytes"));
                    }
                }
                if span.is_none() && notice.is_none() {
                    self.say("a post without bytes and without a notice".into());
                }
            }
            Op::Require { cond, span } => {
                self.uniform("requirement", *cond);
                self.expect("requirement", *cond, Type::Bool);
                if let Some(RequiredSpan { rank, offset, bytes, size }) = span {
                    for v in [rank, offset, bytes, size] {
                        self.index("number of a requirement", *v);
                    }
                }
            }
            Op::If { cond, .. } | Op::While { cond, .. } => {
                self.uniform("condition", *cond);
                self.expect("condition", *cond, Type::Bool);
            }
            Op::For { start, end, step, .. } => {
                for (what, v) in [("loop start", start), ("loop end", end), ("loop step", step)] {
                    self.index(what, *v);
                }
            }
            Op::Each { extent, .. } => {
                if !(1..=2).contains(&extent.len()) {
                    self.say(format!("each has {} extents; one or two are allowed", extent.len()));
                }
                for v in extent {
                    self.index("extent", *v);
                }
            }
        }
    }

    fn unary(&mut self, op: UnaryOp, x: Value) {
        let Some(ty) = self.ty(x) else { return };
        match op {
            UnaryOp::Not if ty.is_float() => self.say(format!("not takes integers and bool, not {ty}")),
            UnaryOp::Not => {}
            UnaryOp::Neg | UnaryOp::Abs => self.number(op.name(), x),
            _ => self.float(op.name(), x),
        }
    }

    fn binary(&mut self, op: BinaryOp, a: Value, b: Value) {
        let name = op.name();
        self.same(name, a, b);
        let Some(ty) = self.ty(a) else { return };
        match op {
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Min | BinaryOp::Max => {
                self.number(name, a)
            }
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor if ty == Type::Bool => {}
            _ if !ty.is_int() => self.say(format!("{name} takes integers, not {ty}")),
            _ => {}
        }
    }

    fn place(&mut self, at: &Place, write: bool) {
        if let Some(ty) = self.ty(at.index).filter(|&ty| ty != Type::I64) {
            self.say(format!("index is {ty}; indices are i64"));
        }
        let kernel = self.kernel;
        match at.base {
            Base::Param(p) => match kernel.params.get(p) {
                Some(Param::Buffer { name, banks, access, .. }) => {
                    self.bank(name, *banks, at.bank);
                    if write && *access == Access::In {
                        self.say(format!("store into {name}, which is an input"));
                    }
                }
                _ => self.say(format!("{p} is not a buffer parameter")),
            },
            Base::Scratch(s) => {
                if self.kernel.scratches.get(s).is_none() {
                    self.say(format!("{s} is not declared"));
                }
                if at.bank.is_some() {
                    self.say("scratch has no banks".into());
                }
            }
        }
    }

    fn slot(&mut self, slot: &Slot) {
        self.index("slot index", slot.index);
        let kernel = self.kernel;
        match kernel.params.get(slot.slots) {
            Some(Param::Slots { name, banks, .. }) => self.bank(name, *banks, slot.bank),
            _ => self.say(format!("{} is not a slots parameter", slot.slots)),
        }
    }

    fn bank(&mut self, name: &str, banks: u32, bank: Option<Value>) {
        match bank {
            Some(bank) => self.index("bank", bank),
            None if banks > 1 => self.say(format!("{name} has {banks} banks: say which")),
            None => {}
        }
    }

    fn queue(&mut self, queue: super::entity::ParamId) {
        if !matches!(self.kernel.params.get(queue), Some(Param::Queue { .. })) {
            self.say(format!("{queue} is not a queue parameter"));
        }
    }

    fn flag(&mut self, flag: Value) {
        self.uniform("packet flag", flag);
        self.expect("packet flag", flag, Type::U32);
        if self.kernel.as_const(flag).is_some_and(|c| c.bits == 0) {
            self.say("packet flag is 0, which means empty".into());
        }
    }

    fn bytes(&mut self, what: &str, at: &Place) {
        match self.kernel.base_type(at.base) {
            Some(Type::U8) | None => {}
            Some(ty) => self.say(format!("{what} takes a byte region (u8), not {ty}")),
        }
    }

    /// For ops whose memory others must reach: scratch is private to its role copy.
    fn parameter(&mut self, what: &str, at: &Place) {
        if let Base::Scratch(_) = at.base {
            self.say(format!("{what} takes a buffer parameter; scratch is private to its role copy"));
        }
    }

    /// For ops that meet others' writes: `Access::Out` promises plain stores of this kernel only, and `Access::In` that
    /// nothing writes. (A write to an input is reported by `place`.)
    fn shared(&mut self, what: &str, at: &Place, refused: &[Access]) {
        if let Base::Param(p) = at.base
            && let Some(Param::Buffer { name, access, .. }) = self.kernel.params.get(p)
            && refused.contains(access)
        {
            self.say(format!("{what} on {name}, which is declared {access:?}; declare it InOut"));
        }
    }

    fn not_negative(&mut self, what: &str, v: Value) {
        match self.kernel.as_const(v) {
            Some(c) if c.ty == Type::I64 && (c.bits as i64) < 0 => self.say(format!("{what} is {c}, below 0")),
            _ => {}
        }
    }

    fn mask(&mut self, mask: &Option<Value>) {
        if let Some(mask) = mask {
            self.expect("mask", *mask, Type::Bool);
        }
    }

    fn index(&mut self, what: &str, v: Value) {
        self.uniform(what, v);
        self.expect(what, v, Type::I64);
    }

    fn uniform(&mut self, what: &str, v: Value) {
        if is_lane(self.kernel, v) {
            self.say(format!("{what} is a lane value (one per element); it must be uniform"));
        }
    }

    fn expect(&mut self, what: &str, v: Value, ty: Type) {
        if let Some(is) = self.ty(v).filter(|&is| is != ty) {
            self.say(format!("{what} is {is}; {ty} is needed"));
        }
    }

    fn same(&mut self, what: &str, a: Value, b: Value) {
        if let (Some(a), Some(b)) = (self.ty(a), self.ty(b))
            && a != b
        {
            self.say(format!("{what} of {a} and {b}; cast one of them"));
        }
    }

    fn number(&mut self, what: &str, x: Value) {
        if let Some(ty @ Type::Bool) = self.ty(x) {
            self.say(format!("{what} takes numbers, not {ty}"));
        }
    }

    fn float(&mut self, what: &str, x: Value) {
        if let Some(ty) = self.ty(x).filter(|ty| !ty.is_float()) {
            self.say(format!("{what} takes floats, not {ty}"));
        }
    }

    fn ty(&self, v: Value) -> Option<Type> {
        Some(self.kernel.values.get(v)?.ty)
    }

    fn say(&mut self, message: String) {
        self.found.push(message);
    }
}
