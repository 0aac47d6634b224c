//! The canonical text of a kernel. Values, variables and scratch are numbered in order of first appearance, so two
//! traces of one program print alike whatever else their arenas hold. Any kernel prints, even a malformed one: an id
//! that is not in the kernel is shown raw, with a question mark.
//!
//! ```text
//! kernel scale blocks 1
//! param p0 x: in f32[1024] align 64
//! role r0 main warps 4 copies 1 {
//!   v0: i64 = const 1024
//!   each v1 in v0 {
//!     v2: lane f32 = load p0[v1]
//!   }
//! }
//! ```

use super::entity::{Entity, Inst, Region, RoleId, ScratchId, Value, VarId};
use super::kernel::{Access, Kernel, Param};
use super::op::{Base, Mask, Notice, Op, Place, PostSpan, RequiredSpan, Slot};
use super::ring::NoticeKind;
use super::types::Shape;
use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write};
use std::hash::Hash;

/// Regions nested deeper than this are refused by the verifier and not printed, so that neither can exhaust the stack.
pub(super) const MAX_DEPTH: usize = 128;

/// `{}` is the canonical text; `{:#}` adds the source line of every instruction as a comment.
impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Names::of(self);
        writeln!(f, "kernel {} blocks {}", word(&self.name), self.blocks)?;
        for (id, param) in self.params.iter() {
            let matched = if self.is_matched(id) { " matched" } else { "" };
            writeln!(f, "param {id} {}{matched}", declaration(param))?;
        }
        let lines = f.alternate();
        let mut printer = Printer { kernel: self, names: &names, lines, seen: HashSet::new(), out: f };
        self.roles.keys().try_for_each(|role| printer.role(role))
    }
}

/// One instruction on one line, as in the text of its kernel; regions are abbreviated to `{..}`. For messages.
pub fn inst_text(kernel: &Kernel, inst: Inst) -> String {
    Names::of(kernel).inst_text(kernel, inst)
}

/// A hash of the canonical text (FNV-1a, 64 bits): equal for two traces of one program, stable between runs and
/// machines. Source lines are not part of it, so anything that reports lines must not be shared by fingerprint alone.
pub fn fingerprint(kernel: &Kernel) -> u64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    write!(hash, "{kernel}").expect("hashing does not fail");
    hash.0
}

struct Fnv(u64);

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        Ok(())
    }
}

struct Printer<'k, 'f, 'o> {
    kernel: &'k Kernel,
    names: &'k Names,
    lines: bool,
    seen: HashSet<Region>,
    out: &'f mut fmt::Formatter<'o>,
}

impl Printer<'_, '_, '_> {
    fn role(&mut self, id: RoleId) -> fmt::Result {
        let role = &self.kernel.roles[id];
        write!(self.out, "role {id} {} warps {} copies {} {{", word(&role.name), role.warps, role.copies)?;
        self.comment(self.kernel.sites.get(role.site))?;
        for &(_, var) in self.names.vars.order.iter().filter(|&&(user, _)| user == id) {
            if let Some(data) = self.kernel.vars.get(var) {
                writeln!(self.out, "  var {}: {}", self.names.var(var), data.ty)?;
            }
        }
        for &(_, scratch) in self.names.scratches.order.iter().filter(|&&(user, _)| user == id) {
            if let Some(data) = self.kernel.scratches.get(scratch) {
                writeln!(self.out, "  scratch {}: {}[{}]", self.names.scratch(scratch), data.ty, data.len)?;
            }
        }
        self.region(role.body, 1)?;
        writeln!(self.out, "}}")
    }

    fn region(&mut self, region: Region, depth: usize) -> fmt::Result {
        let indent = depth * 2;
        let Some(insts) = self.kernel.regions.get(region) else {
            return writeln!(self.out, "{:indent$}?{region}", "");
        };
        if !self.seen.insert(region) || depth > MAX_DEPTH {
            return writeln!(self.out, "{:indent$}...", "");
        }
        for &inst in insts {
            let Some(data) = self.kernel.insts.get(inst) else {
                writeln!(self.out, "{:indent$}?{inst}", "")?;
                continue;
            };
            let pieces = self.names.pieces(self.kernel, inst);
            write!(self.out, "{:indent$}{}", "", pieces[0])?;
            let regions = data.op.regions();
            if !regions.is_empty() {
                self.out.write_str(" {")?;
            }
            self.comment(self.kernel.sites.get(data.site))?;
            for (at, &inner) in regions.iter().enumerate() {
                if at > 0 {
                    if matches!(data.op, Op::If { .. }) && self.kernel.regions.get(inner).is_some_and(Vec::is_empty) {
                        continue; // an empty `else` is omitted
                    }
                    writeln!(self.out, "{:indent$}}} {} {{", "", pieces[at])?;
                }
                self.region(inner, depth + 1)?;
            }
            if !regions.is_empty() {
                writeln!(self.out, "{:indent$}}}", "")?;
            }
        }
        Ok(())
    }

    /// Ends a line, with its place in the source if requested.
    fn comment(&mut self, at: Option<&super::SourceLine>) -> fmt::Result {
        match at {
            Some(at) if self.lines => writeln!(self.out, " ; {}:{}", at.file, at.line),
            _ => writeln!(self.out),
        }
    }
}

/// The numbers entities have in the text.
pub(super) struct Names {
    values: Numbers<Value>,
    vars: Numbers<VarId>,
    scratches: Numbers<ScratchId>,
}

/// Entities of one kind in order of first appearance, each with the role it first appears in.
struct Numbers<K> {
    order: Vec<(RoleId, K)>,
    number: HashMap<K, usize>,
}

impl<K: Entity + Hash + fmt::Display> Numbers<K> {
    fn new() -> Self {
        Numbers { order: Vec::new(), number: HashMap::new() }
    }

    fn see(&mut self, role: RoleId, key: K) {
        let next = self.order.len();
        self.number.entry(key).or_insert_with(|| {
            self.order.push((role, key));
            next
        });
    }

    /// The name in the text; `?` and the raw name for ids that do not appear in the kernel.
    fn name(&self, key: K) -> String {
        match self.number.get(&key) {
            Some(&number) => K::new(number).to_string(),
            None => format!("?{key}"),
        }
    }
}

impl Names {
    /// Numbers everything the roles reach, in the order of the text.
    pub(super) fn of(kernel: &Kernel) -> Names {
        let mut names = Names { values: Numbers::new(), vars: Numbers::new(), scratches: Numbers::new() };
        let mut seen = HashSet::new();
        for (role, data) in kernel.roles.iter() {
            names.region(kernel, role, data.body, &mut seen, 1);
        }
        names
    }

    fn region(&mut self, kernel: &Kernel, role: RoleId, region: Region, seen: &mut HashSet<Region>, depth: usize) {
        if depth > MAX_DEPTH || !seen.insert(region) {
            return;
        }
        let insts = kernel.regions.get(region).into_iter().flatten();
        for data in insts.filter_map(|&inst| kernel.insts.get(inst)) {
            let defined: Vec<Value> = data.result.into_iter().chain(data.indices.iter().copied()).collect();
            self.values(kernel, role, &defined);
            let mut inner = data.op.regions().into_iter();
            if let Op::While { .. } = data.op {
                // The text names the condition after the head that computes it.
                inner.by_ref().take(1).for_each(|head| self.region(kernel, role, head, seen, depth + 1));
            }
            self.values(kernel, role, &data.op.operands());
            match data.op {
                Op::ReadVar(var) | Op::WriteVar { var, .. } if kernel.vars.get(var).is_some() => {
                    self.vars.see(role, var)
                }
                _ => {}
            }
            for at in data.op.places() {
                if let Base::Scratch(scratch) = at.base
                    && kernel.scratches.get(scratch).is_some()
                {
                    self.scratches.see(role, scratch);
                }
            }
            inner.for_each(|body| self.region(kernel, role, body, seen, depth + 1));
        }
    }

    fn values(&mut self, kernel: &Kernel, role: RoleId, values: &[Value]) {
        for &v in values.iter().filter(|&&v| kernel.values.get(v).is_some()) {
            self.values.see(role, v);
        }
    }

    pub(super) fn value(&self, v: Value) -> String {
        self.values.name(v)
    }

    pub(super) fn var(&self, var: VarId) -> String {
        self.vars.name(var)
    }

    pub(super) fn scratch(&self, scratch: ScratchId) -> String {
        self.scratches.name(scratch)
    }

    pub(super) fn inst_text(&self, kernel: &Kernel, inst: Inst) -> String {
        let Some(data) = kernel.insts.get(inst) else {
            return format!("?{inst}");
        };
        let pieces = self.pieces(kernel, inst);
        match data.op {
            Op::If { .. } | Op::For { .. } | Op::Each { .. } => format!("{} {{..}}", pieces[0]),
            Op::While { .. } => format!("{} {{..}} {} {{..}}", pieces[0], pieces[1]),
            _ => pieces[0].clone(),
        }
    }

    /// The text of an instruction: the part before each of its regions, or its one line.
    fn pieces(&self, kernel: &Kernel, inst: Inst) -> Vec<String> {
        let data = &kernel.insts[inst];
        let v = |v: Value| self.value(v);
        let list = |values: &[Value]| values.iter().map(|&v| self.value(v)).collect::<Vec<_>>().join(", ");
        match &data.op {
            Op::If { cond, .. } => vec![format!("if {}", v(*cond)), "else".into()],
            Op::For { start, end, step, .. } => {
                vec![format!("for {} in {}..{} step {}", list(&data.indices), v(*start), v(*end), v(*step))]
            }
            Op::While { cond, .. } => vec!["while".into(), format!("when {}", v(*cond))],
            Op::Each { extent, .. } => vec![format!("each {} in {}", list(&data.indices), list(extent))],
            op => match data.result {
                Some(result) => {
                    let kind = match kernel.values.get(result) {
                        Some(data) if data.shape == Shape::Lane => format!("lane {}", data.ty),
                        Some(data) => data.ty.to_string(),
                        None => "?".into(),
                    };
                    vec![format!("{}: {kind} = {}", v(result), self.op(op))]
                }
                None => vec![self.op(op)],
            },
        }
    }

    /// An op without regions.
    fn op(&self, op: &Op) -> String {
        let v = |v: &Value| self.value(*v);
        let at = |place: &Place| self.place(place);
        let masked = |mask: &Option<Mask>| {
            mask.map_or(String::new(), |m| format!(" if {} else {}", self.value(m.cond), self.value(m.other)))
        };
        let when = |mask: &Option<Value>| mask.map_or(String::new(), |m| format!(" if {}", self.value(m)));
        match op {
            Op::Const(c) => format!("const {c}"),
            Op::Special(special) => special.to_string(),
            Op::Scalar(p) => format!("scalar {p}"),
            Op::Unary { op, x } => format!("{op} {}", v(x)),
            Op::Binary { op, a, b } => format!("{op} {}, {}", v(a), v(b)),
            Op::Compare { op, a, b } => format!("{op} {}, {}", v(a), v(b)),
            Op::Select { cond, a, b } => format!("select {}, {}, {}", v(cond), v(a), v(b)),
            Op::Fma { a, b, c } => format!("fma {}, {}, {}", v(a), v(b), v(c)),
            Op::Cast { x, to } => format!("cast {} to {to}", v(x)),
            Op::Bitcast { x, to } => format!("bitcast {} to {to}", v(x)),
            Op::Group { op, x, size } => format!("{op} {} of {size}", v(x)),
            Op::ReadVar(var) => format!("read {}", self.var(*var)),
            Op::WriteVar { var, x } => format!("write {}, {}", self.var(*var), v(x)),
            Op::Load { at: from, mask } => format!("load {}{}", at(from), masked(mask)),
            Op::Store { at: to, x, mask } => format!("store {}, {}{}", at(to), v(x), when(mask)),
            Op::AtomicAdd { at: to, x, mask, order, scope } => {
                format!("atomic_add {order} {scope} {}, {}{}", at(to), v(x), when(mask))
            }
            Op::Put { at: to, x, mask } => format!("put {}, {}{}", at(to), v(x), when(mask)),
            Op::Get { at: from, to, mask } => format!("get {} to {to}{}", at(from), masked(mask)),
            Op::Signal { slot, x } => format!("signal {}, {}", self.slot(slot), v(x)),
            Op::SignalCredit { slot, x } => format!("signal_credit {}, {}", self.slot(slot), v(x)),
            Op::Wait { slot, x } => format!("wait {}, {}", self.slot(slot), v(x)),
            Op::Test { slot, x } => format!("test {}, {}", self.slot(slot), v(x)),
            Op::PacketPut { at: to, x, flag } => format!("packet_put {}, {} flag {}", at(to), v(x), v(flag)),
            Op::PacketGet { at: from, flag } => format!("packet_get {} flag {}", at(from), v(flag)),
            Op::BulkCopy { dst, src, count } => format!("bulk_copy {} from {} count {}", at(dst), at(src), v(count)),
            Op::BulkWait { pending, done } => format!("bulk_wait {done} pending {pending}"),
            Op::ProxyFence => "proxy_fence".into(),
            Op::Barrier => "barrier".into(),
            Op::Post { queue, peer, span: Some(PostSpan { src, dst, bytes }), notice } => {
                let post =
                    format!("post {queue} peer {} offset {} from {} bytes {}", v(peer), v(dst), at(src), v(bytes));
                match notice {
                    Some(Notice { slot, x, parts, .. }) => format!("{post} parts {parts} slot {}, {}", v(slot), v(x)),
                    None => post,
                }
            }
            Op::Post { queue, peer, span: None, notice: Some(Notice { slot, x, kind, .. }) } => {
                let name = match kind {
                    NoticeKind::Data => "post_signal",
                    NoticeKind::Credit => "post_credit",
                    NoticeKind::Flush => "post_flush",
                };
                format!("{name} {queue} peer {} slot {}, {}", v(peer), v(slot), v(x))
            }
            Op::Post { queue, peer, span: None, notice: None } => format!("post {queue} peer {} nothing", v(peer)),
            Op::Require { cond, span: None } => format!("require {}", v(cond)),
            Op::Require { cond, span: Some(RequiredSpan { rank, offset, bytes, size }) } => {
                let [rank, offset, bytes, size] = [rank, offset, bytes, size].map(v);
                format!("require {} of rank {rank} offset {offset} bytes {bytes} in {size}", v(cond))
            }
            Op::If { .. } | Op::For { .. } | Op::While { .. } | Op::Each { .. } => unreachable!("has regions"),
        }
    }

    fn place(&self, at: &Place) -> String {
        let base = match at.base {
            Base::Param(p) => p.to_string(),
            Base::Scratch(s) => self.scratch(s),
        };
        format!("{base}{}[{}]", self.bank(at.bank), self.value(at.index))
    }

    fn slot(&self, slot: &Slot) -> String {
        format!("{}{}[{}]", slot.slots, self.bank(slot.bank), self.value(slot.index))
    }

    fn bank(&self, bank: Option<Value>) -> String {
        bank.map_or(String::new(), |bank| format!("[bank {}]", self.value(bank)))
    }
}

fn declaration(param: &Param) -> String {
    let name = word(param.name());
    let many = |banks: u32| if banks == 1 { String::new() } else { format!(" banks {banks}") };
    match param {
        Param::Buffer { ty, len, banks, access, align, .. } => {
            let access = match access {
                Access::In => "in",
                Access::Out => "out",
                Access::InOut => "inout",
            };
            format!("{name}: {access} {ty}[{len}]{} align {align}", many(*banks))
        }
        Param::Scalar { ty, .. } => format!("{name}: scalar {ty}"),
        Param::Slots { len, stride, banks, .. } => format!("{name}: slots[{len}] stride {stride}{}", many(*banks)),
        Param::Queue { .. } => format!("{name}: queue"),
    }
}

/// A name as it appears in the text: quoted if it could be misread.
fn word(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    if !name.is_empty() && name.chars().all(plain) { name.to_string() } else { format!("{name:?}") }
}
