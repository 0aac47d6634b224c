//! Addresses, loads and stores: of one element, or of neighbours up to 16 bytes at a time.

use super::ARGS;
use super::role::RoleCode;
use super::text::{Reg, Text};
use crate::ir::{Access, Base, Order, Param, ParamId, Place, Scope, Type, Value};

/// Inputs and outputs of at least this size leave the cache first, so that staged data, which is read again
/// immediately, stays. Not for `direct`, where nothing is staged (docs/decisions/0014, point 7).
const STREAM_FROM: u64 = 16 << 20;

/// An address and the state space it is in.
#[derive(Clone, Copy)]
pub(super) struct Address {
    /// Global (64 bits) or shared (32 bits).
    pub reg: Reg,
    /// Constant byte offset, which the instruction adds at no cost.
    pub offset: i64,
    /// True if nothing writes there during the launch.
    input: bool,
    /// True if the buffer is so large that its content leaves the cache before it is accessed again.
    pub streams: bool,
}

impl Address {
    /// In shared memory.
    pub fn shared(reg: Reg) -> Address {
        Address { reg, offset: 0, input: false, streams: false }
    }

    /// The same place, through another register.
    pub fn at(self, reg: Reg) -> Address {
        Address { reg, ..self }
    }

    /// The address `bytes` bytes further.
    pub fn plus(self, bytes: i64) -> Address {
        Address { offset: self.offset + bytes, ..self }
    }

    /// As an operand.
    pub fn place(self) -> String {
        if self.offset == 0 { format!("[{}]", self.reg) } else { format!("[{}+{}]", self.reg, self.offset) }
    }

    pub fn space(self) -> &'static str {
        if let Reg::D(_) = self.reg { "global" } else { "shared" }
    }

    /// The cache hint for an access by this many instructions. Several instructions of a warp touch the same lines, and
    /// the first must not evict them.
    fn hint(self, instructions: usize) -> &'static str {
        if self.streams && instructions == 1 { ".cs" } else { "" }
    }

    fn load_space(self) -> &'static str {
        if self.input { "global.nc" } else { self.space() }
    }
}

impl RoleCode<'_> {
    /// `base[bank] + index * unit`.
    pub fn address(&mut self, at: &Place, index: Reg, unit: u32) -> Address {
        match at.base {
            Base::Param(p) => {
                let base = self.bank(p, at.bank);
                let reg = match unit {
                    1 => self.t.d("add.s64", &[&base, &index]),
                    _ => self.t.d("mad.lo.s64", &[&index, &unit, &base]),
                };
                let (input, streams) = match &self.kernel.params[p] {
                    Param::Buffer { access, len, ty, .. } if *access != Access::InOut => {
                        let bytes = len.saturating_mul(ty.size() as u64);
                        (*access == Access::In, self.takes_staged && bytes >= STREAM_FROM)
                    }
                    _ => (false, false),
                };
                Address { reg, offset: 0, input, streams }
            }
            Base::Scratch(s) => {
                let base = self.scratch(s);
                let index = self.t.r("cvt.u32.u64", &[&index]);
                Address::shared(self.t.r("mad.lo.u32", &[&index, &unit, &base]))
            }
        }
    }

    /// The address of a bank.
    pub fn bank(&mut self, p: ParamId, bank: Option<Value>) -> Reg {
        self.entry(self.params.offset(p), bank)
    }

    /// The stamp of a bank, if the parameter is matched.
    pub fn stamp(&mut self, p: ParamId, bank: Option<Value>) -> Option<Reg> {
        self.params.stamp_offset(p).map(|offset| self.entry(offset, bank))
    }

    /// The entry of a bank in the table at this offset of the parameter block.
    fn entry(&mut self, offset: u32, bank: Option<Value>) -> Reg {
        match bank.map(|bank| (bank, self.kernel.as_const(bank))) {
            None => self.argument(offset),
            Some((_, Some(bank))) => self.argument(offset + bank.bits as u32 * 8),
            Some((bank, None)) => {
                let bank = self.value(bank);
                let start = self.t.d("mov.b64", &[&ARGS]);
                let entry = self.t.d("mad.lo.s64", &[&bank, &8, &start]);
                self.t.d("ld.param.u64", &[&format_args!("[{entry}+{offset}]")])
            }
        }
    }

    /// One element; with a mask, `other` if the condition does not hold.
    pub fn load(&mut self, from: Address, ty: Type, mask: Option<(Reg, Reg)>) -> Reg {
        let t = &mut self.t;
        let op = format!("ld.{}.{}", from.load_space(), memory_type(ty));
        let place = from.place();
        if ty == Type::Bool {
            let byte = match mask {
                Some((cond, other)) => {
                    let byte = t.r("selp.b32", &[&1, &0, &other]);
                    t.line(format_args!("@{cond} {op} {byte}, {place};"));
                    byte
                }
                None => t.r(&op, &[&place]),
            };
            return t.p("setp.ne.u32", &[&byte, &0]);
        }
        match mask {
            Some((cond, other)) => {
                let x = t.copy(other);
                t.line(format_args!("@{cond} {op} {x}, {place};"));
                x
            }
            None => {
                let x = t.new_of(ty);
                t.op(&op, x, &[&place])
            }
        }
    }

    /// Writes one element if the guard holds.
    pub fn store(&mut self, to: Address, ty: Type, x: Reg, guard: Option<Reg>) {
        let x = byte_of(&mut self.t, x);
        let guard = guard.map_or(String::new(), |guard| format!("@{guard} "));
        self.t.line(format_args!("{guard}st.{}.b{} {}, {x};", to.space(), ty.bits(), to.place()));
    }

    /// Loads neighbours, `width` bytes at a time. Not through the read-only path: ptxas moves such loads behind stores
    /// to save registers, and fewer are in flight (docs/decisions/0014, point 12).
    pub fn load_wide(&mut self, from: Address, ty: Type, count: usize, width: u32, guard: Option<Reg>) -> Vec<Reg> {
        let words = self.load_words(from, ty, count, width, guard);
        unpack(&mut self.t, ty, &words, width)
    }

    /// The same, as the loaded words, in which elements of 1 and 2 bytes are packed.
    pub fn load_words(&mut self, from: Address, ty: Type, count: usize, width: u32, guard: Option<Reg>) -> Vec<Reg> {
        let mut out = Vec::new();
        let guard = guard.map_or(String::new(), |guard| format!("@{guard} "));
        let space = from.space();
        let chunks = (count * ty.size()) as u32 / width;
        let hint = from.hint(chunks as usize);
        for chunk in 0..chunks {
            let place = from.plus(i64::from(chunk * width)).place();
            let words = words(&mut self.t, ty, width);
            self.t.line(format_args!("{guard}ld.{space}{hint}{} {}, {place};", vector(ty, width), list(&words)));
            out.extend(words);
        }
        out
    }

    /// Writes neighbours, `width` bytes at a time.
    pub fn store_wide(&mut self, to: Address, ty: Type, x: &[Reg], width: u32, guard: Option<Reg>) {
        let words: Vec<Reg> = match ty.size() {
            1 | 2 => x.chunks(width.min(4) as usize / ty.size()).map(|x| pack(&mut self.t, ty, x)).collect(),
            _ => x.to_vec(),
        };
        self.store_words(to, ty, &words, width, guard);
    }

    /// The same, from words in which elements of 1 and 2 bytes are packed.
    pub fn store_words(&mut self, to: Address, ty: Type, words: &[Reg], width: u32, guard: Option<Reg>) {
        let guard = guard.map_or(String::new(), |guard| format!("@{guard} "));
        let at_once = if ty.size() == 8 { width / 8 } else { width.div_ceil(4) };
        let hint = to.hint(words.len().div_ceil(at_once as usize));
        for (chunk, words) in words.chunks(at_once as usize).enumerate() {
            let place = to.plus(chunk as i64 * i64::from(width)).place();
            self.t.line(format_args!("{guard}st.{}{hint}{} {place}, {};", to.space(), vector(ty, width), list(words)));
        }
    }

    /// Adds and returns the old value; 0 if the guard does not hold.
    pub fn atomic_add(&mut self, to: Address, ty: Type, x: Reg, guard: Option<Reg>, order: Order, scope: Scope) -> Reg {
        let order = match order {
            Order::Relaxed => "relaxed",
            Order::Acquire => "acquire",
            Order::Release => "release",
            Order::AcqRel => "acq_rel",
        };
        let scope = match scope {
            Scope::Block => "cta",
            Scope::Device => "gpu",
            Scope::System => "sys",
        };
        let old = self.t.constant(ty, 0);
        let guard = guard.map_or(String::new(), |guard| format!("@{guard} "));
        let op = format!("atom.{order}.{scope}.{}.add.u{}", to.space(), ty.bits());
        self.t.line(format_args!("{guard}{op} {old}, {}, {x};", to.place()));
        old
    }
}

/// The type of a load that normalises an element into the form that registers have.
fn memory_type(ty: Type) -> &'static str {
    match (ty, ty.size()) {
        (Type::I8, _) => "s8",
        (Type::I16, _) => "s16",
        (_, 1) => "u8",
        (_, 2) => "u16",
        (_, 4) => "b32",
        _ => "b64",
    }
}

/// The instruction suffix for `width` bytes.
fn vector(ty: Type, width: u32) -> &'static str {
    match (ty.size(), width) {
        (8, 16) => ".v2.b64",
        (8, _) => ".b64",
        (_, 16) => ".v4.b32",
        (_, 8) => ".v2.b32",
        (_, 4) => ".b32",
        _ => ".b16",
    }
}

fn words(t: &mut Text, ty: Type, width: u32) -> Vec<Reg> {
    match ty.size() {
        8 => (0..width / 8).map(|_| t.new_d()).collect(),
        _ => (0..width.div_ceil(4)).map(|_| t.new_r()).collect(),
    }
}

fn list(words: &[Reg]) -> String {
    match words {
        [word] => word.to_string(),
        _ => format!("{{{}}}", words.iter().map(Reg::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// The elements of words that were loaded `width` bytes at a time.
pub(super) fn unpack(t: &mut Text, ty: Type, words: &[Reg], width: u32) -> Vec<Reg> {
    if ty.size() >= 4 {
        return words.to_vec();
    }
    let mut out = Vec::new();
    for word in words {
        for k in 0..width.min(4) / ty.size() as u32 {
            let op = if ty.is_signed_int() { "bfe.s32" } else { "bfe.u32" };
            let x = t.r(op, &[word, &(k * ty.bits()), &ty.bits()]);
            out.push(if ty == Type::Bool { t.p("setp.ne.u32", &[&x, &0]) } else { x });
        }
    }
    out
}

/// Packs elements of 8 or 16 bits into one word.
pub(super) fn pack(t: &mut Text, ty: Type, x: &[Reg]) -> Reg {
    let x: Vec<Reg> = x.iter().map(|&x| byte_of(t, x)).collect();
    match (ty.size(), &x[..]) {
        (2, &[a, b]) => t.r("prmt.b32", &[&a, &b, &"0x5410"]),
        (1, &[a, b]) => t.r("prmt.b32", &[&a, &b, &"0x0040"]),
        (1, &[a, b, c, d]) => {
            let (low, high) = (t.r("prmt.b32", &[&a, &b, &"0x0040"]), t.r("prmt.b32", &[&c, &d, &"0x0040"]));
            t.r("prmt.b32", &[&low, &high, &"0x5410"])
        }
        _ => x[0],
    }
}

/// A bool as its byte in memory; other values are returned as they are.
pub(super) fn byte_of(t: &mut Text, x: Reg) -> Reg {
    match x {
        Reg::P(_) => t.r("selp.b32", &[&1, &0, &x]),
        _ => x,
    }
}
