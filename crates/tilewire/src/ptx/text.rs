//! PTX under construction: lines, registers and labels.

use super::target::Target;
use crate::ir::Type;
use std::fmt::{self, Display, Write};

/// A virtual register. Every value of the IR lives in one:
///
/// | type | register |
/// |---|---|
/// | bool | predicate |
/// | i8, i16, i32 | 32 bits, sign-extended |
/// | u8, u16, u32 | 32 bits, zero-extended |
/// | f16, bf16, f8 | 32 bits: the bits of the element, zero-extended |
/// | f32 | 32 bits |
/// | i64, u64, f64 | 64 bits |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reg {
    /// Predicate.
    P(u32),
    /// 16 bits: only used inside a conversion.
    H(u32),
    /// 32 bits.
    R(u32),
    /// 64 bits.
    D(u32),
}

impl Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reg::P(n) => write!(f, "%p{n}"),
            Reg::H(n) => write!(f, "%h{n}"),
            Reg::R(n) => write!(f, "%r{n}"),
            Reg::D(n) => write!(f, "%d{n}"),
        }
    }
}

/// A place to jump to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Label(u32);

impl Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}", self.0)
    }
}

/// The body of an entry.
pub(super) struct Text {
    pub target: Target,
    lines: String,
    /// Registers allocated: predicates, 16, 32, 64 bits.
    counts: [u32; 4],
    labels: u32,
}

impl Text {
    pub fn new(target: Target) -> Self {
        Text { target, lines: String::new(), counts: [0; 4], labels: 0 }
    }

    /// Appends a line.
    pub fn line(&mut self, line: impl Display) {
        writeln!(self.lines, "\t{line}").expect("writing to a string");
    }

    pub fn comment(&mut self, text: impl Display) {
        self.line(format_args!("// {text}"));
    }

    pub fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    /// Places the label here.
    pub fn at(&mut self, label: Label) {
        writeln!(self.lines, "{label}:").expect("writing to a string");
    }

    pub fn new_p(&mut self) -> Reg {
        Reg::P(self.count(0))
    }

    pub fn new_r(&mut self) -> Reg {
        Reg::R(self.count(2))
    }

    pub fn new_d(&mut self) -> Reg {
        Reg::D(self.count(3))
    }

    /// A register for a value of this type.
    pub fn new_of(&mut self, ty: Type) -> Reg {
        match (ty, ty.size()) {
            (Type::Bool, _) => self.new_p(),
            (_, 8) => self.new_d(),
            _ => self.new_r(),
        }
    }

    fn count(&mut self, class: usize) -> u32 {
        self.counts[class] += 1;
        self.counts[class] - 1
    }

    /// `op new, args…` with a new predicate.
    pub fn p(&mut self, op: &str, args: &[&dyn Display]) -> Reg {
        let new = self.new_p();
        self.op(op, new, args)
    }

    /// With a new 16-bit register.
    pub fn h(&mut self, op: &str, args: &[&dyn Display]) -> Reg {
        let new = Reg::H(self.count(1));
        self.op(op, new, args)
    }

    /// With a new 32-bit register.
    pub fn r(&mut self, op: &str, args: &[&dyn Display]) -> Reg {
        let new = self.new_r();
        self.op(op, new, args)
    }

    /// With a new 64-bit register.
    pub fn d(&mut self, op: &str, args: &[&dyn Display]) -> Reg {
        let new = self.new_d();
        self.op(op, new, args)
    }

    /// `op to, args…`.
    pub fn op(&mut self, op: &str, to: Reg, args: &[&dyn Display]) -> Reg {
        write!(self.lines, "\t{op} {to}").expect("writing to a string");
        for arg in args {
            write!(self.lines, ", {arg}").expect("writing to a string");
        }
        self.lines.push_str(";\n");
        to
    }

    /// A 32-bit constant.
    pub fn r_const(&mut self, bits: u32) -> Reg {
        self.r("mov.b32", &[&bits])
    }

    /// A 64-bit constant.
    pub fn d_const(&mut self, bits: u64) -> Reg {
        self.d("mov.b64", &[&Hex(bits)])
    }

    /// A constant of a type, in the form of its register.
    pub fn constant(&mut self, ty: Type, bits: u64) -> Reg {
        match ty {
            Type::Bool => self.p("mov.pred", &[if bits != 0 { &-1 } else { &0 }]),
            Type::I8 => self.r("mov.b32", &[&(bits as i8)]),
            Type::I16 => self.r("mov.b32", &[&(bits as i16)]),
            Type::I32 => self.r("mov.b32", &[&(bits as i32)]),
            Type::I64 => self.d("mov.b64", &[&(bits as i64)]),
            _ if ty.size() == 8 => self.d("mov.b64", &[&Hex(bits)]),
            _ if ty.is_float() => self.r("mov.b32", &[&Hex(bits)]),
            _ => self.r("mov.b32", &[&(bits as u32)]),
        }
    }

    /// The halves of a word, the low one first.
    pub fn halves(&mut self, word: Reg) -> [Reg; 2] {
        let [low, high] = [(); 2].map(|()| Reg::H(self.count(1)));
        self.line(format_args!("mov.b32 {{{low}, {high}}}, {word};"));
        [low, high]
    }

    /// A copy in a new register.
    pub fn copy(&mut self, x: Reg) -> Reg {
        let new = self.like(x);
        self.assign(new, x);
        new
    }

    /// A new register of the same kind.
    pub fn like(&mut self, x: Reg) -> Reg {
        match x {
            Reg::P(_) => self.new_p(),
            Reg::H(_) => Reg::H(self.count(1)),
            Reg::R(_) => self.new_r(),
            Reg::D(_) => self.new_d(),
        }
    }

    /// `to = x`.
    pub fn assign(&mut self, to: Reg, x: Reg) {
        let op = match to {
            Reg::P(_) => "mov.pred",
            Reg::H(_) => "mov.b16",
            Reg::R(_) => "mov.b32",
            Reg::D(_) => "mov.b64",
        };
        self.op(op, to, &[&x]);
    }

    /// Jumps if the predicate holds, which must be the same for every lane of a warp.
    pub fn jump_if(&mut self, p: Reg, to: Label) {
        self.line(format_args!("@{p} bra.uni {to};"));
    }

    pub fn jump_unless(&mut self, p: Reg, to: Label) {
        self.line(format_args!("@!{p} bra.uni {to};"));
    }

    /// Jumps if the lane's predicate holds.
    pub fn branch_if(&mut self, p: Reg, to: Label) {
        self.line(format_args!("@{p} bra {to};"));
    }

    pub fn branch_unless(&mut self, p: Reg, to: Label) {
        self.line(format_args!("@!{p} bra {to};"));
    }

    pub fn jump(&mut self, to: Label) {
        self.line(format_args!("bra.uni {to};"));
    }

    /// Takes the lines written so far.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.lines)
    }

    /// The declarations of all allocated registers.
    pub fn declarations(&self) -> String {
        let mut text = String::new();
        for (kind, name, count) in [
            ("pred", "p", self.counts[0]),
            ("b16", "h", self.counts[1]),
            ("b32", "r", self.counts[2]),
            ("b64", "d", self.counts[3]),
        ] {
            if count > 0 {
                writeln!(text, "\t.reg .{kind} %{name}<{count}>;").expect("writing to a string");
            }
        }
        text
    }
}

/// A number formatted as PTX writes bits.
pub(super) struct Hex(pub u64);

impl Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
