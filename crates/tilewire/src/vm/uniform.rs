//! Uniform ops: one value per instance, held in a register. Each takes one or two nanoseconds.

use super::address::{bank, element, fault};
use super::lane::memory::FetchAdd;
use super::machine::{Handler, Inst, Machine};
use super::scalar_op::{self, Binary, Compare, Unary, by_binary, by_compare, by_type, by_unary};
use crate::ir::scalar::{CastTo, Element, Float};
use crate::ir::{BinaryOp, CompareOp, Type, UnaryOp};

/// Handler of `UUnary`.
pub(crate) fn unary(op: UnaryOp, ty: Type) -> Handler {
    by_unary!(op, ty, (O, T) => unary_of::<O, T>)
}

/// Handler of `UBinary`.
pub(crate) fn binary(op: BinaryOp, ty: Type) -> Handler {
    by_binary!(op, ty, (O, T) => binary_of::<O, T>)
}

/// Handler of `UCompare`.
pub(crate) fn compare(op: CompareOp, ty: Type) -> Handler {
    by_compare!(op, ty, (O, T) => compare_of::<O, T>)
}

/// Handler of `UFma`: floats, and `i64` for addresses.
pub(crate) fn fma(ty: Type) -> Handler {
    if ty == Type::I64 { multiply_add } else { by_type!(float ty, T => fma_of::<T>) }
}

/// Handler of `UCast`.
pub(crate) fn cast(from: Type, to: Type) -> Handler {
    match (from, to) {
        (Type::Bool, Type::Bool) => cast_of::<bool, bool>,
        (Type::Bool, _) => by_type!(number to, T => cast_of::<bool, T>),
        (_, Type::Bool) => by_type!(number from, F => cast_of::<F, bool>),
        _ => by_type!(number from, F => by_type!(number to, T => cast_of::<F, T>)),
    }
}

/// Handler of `ULoad`.
pub(crate) fn load(ty: Type) -> Handler {
    match ty {
        Type::Bool => load_of::<u8, true>,
        _ => match ty.size() {
            1 => load_of::<u8, false>,
            2 => load_of::<u16, false>,
            4 => load_of::<u32, false>,
            _ => load_of::<u64, false>,
        },
    }
}

/// Handler of `UStore`.
pub(crate) fn store(ty: Type) -> Handler {
    match ty.size() {
        1 => store_of::<u8>,
        2 => store_of::<u16>,
        4 => store_of::<u32>,
        _ => store_of::<u64>,
    }
}

/// Handler of `UAtomicAdd`.
pub(crate) fn atomic_add(ty: Type) -> Handler {
    if ty.size() == 4 { atomic_add_of::<u32> } else { atomic_add_of::<u64> }
}

/// The element at an address as register bits.
///
/// # Safety
/// `from` is valid for reads of the type's size.
pub(crate) unsafe fn read(from: *const u8, ty: Type) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        match ty.size() {
            1 if ty == Type::Bool => (from.read() != 0) as u64,
            1 => from.read() as u64,
            2 => from.cast::<u16>().read_unaligned() as u64,
            4 => from.cast::<u32>().read_unaligned() as u64,
            _ => from.cast::<u64>().read_unaligned(),
        }
    }
}

// SAFETY, for every `unsafe` below: operands are registers and accesses of a verified program; memory addresses are
// checked.

unsafe fn unary_of<O: Unary<T>, T: Element>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        m.set_reg(i.a, O::apply(T::from_bits(m.reg(i.b))).to_bits());
        pc.add(1)
    }
}

unsafe fn binary_of<O: Binary<T>, T: Element>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        m.set_reg(i.a, O::apply(T::from_bits(m.reg(i.b)), T::from_bits(m.reg(i.c))).to_bits());
        pc.add(1)
    }
}

/// `UBinary(Add, U64)`
pub(crate) unsafe fn add_u64(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe { binary_of::<scalar_op::Add, u64>(m, pc) }
}

/// `UBinary(Or, U64)`
pub(crate) unsafe fn or_u64(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe { binary_of::<scalar_op::Or, u64>(m, pc) }
}

unsafe fn compare_of<O: Compare<T>, T: Element>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        m.set_reg(i.a, O::apply(T::from_bits(m.reg(i.b)), T::from_bits(m.reg(i.c))) as u64);
        pc.add(1)
    }
}

unsafe fn fma_of<T: Float>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        let (a, b, c) = (T::from_bits(m.reg(i.b)), T::from_bits(m.reg(i.c)), T::from_bits(m.reg(i.d)));
        m.set_reg(i.a, a.fma(b, c).to_bits());
        pc.add(1)
    }
}

/// `a = b * c + d`, wrapping: the address of a slot.
unsafe fn multiply_add(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        m.set_reg(i.a, m.reg(i.b).wrapping_mul(m.reg(i.c)).wrapping_add(m.reg(i.d)));
        pc.add(1)
    }
}

/// `UMaskScale`
pub(crate) unsafe fn mask_scale(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        let masked = m.reg(i.b) & m.reg(i.c);
        m.set_reg(i.a, masked);
        m.set_reg(i.d, masked.wrapping_mul(i.e as i64 as u64));
        pc.add(1)
    }
}

unsafe fn cast_of<F: CastTo<T>, T: Element>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        m.set_reg(i.a, F::from_bits(m.reg(i.b)).cast().to_bits());
        pc.add(1)
    }
}

/// `USelect`
pub(crate) unsafe fn select(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        m.set_reg(i.a, if m.reg(i.b) != 0 { m.reg(i.c) } else { m.reg(i.d) });
        pc.add(1)
    }
}

/// `UMove`
pub(crate) unsafe fn mov(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        m.set_reg(i.a, m.reg(i.b));
        pc.add(1)
    }
}

/// An unsigned integer that carries the bits of an element of its size.
trait Word: Copy + Into<u64> {
    fn cut(bits: u64) -> Self;
}

macro_rules! word {
    ($($name:ident)*) => {$(
        impl Word for $name {
            #[inline(always)]
            fn cut(bits: u64) -> $name {
                bits as $name
            }
        }
    )*};
}
word!(u8 u16 u32 u64);

/// `ULoadWord`
pub(crate) unsafe fn load_word(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above; the verifier checked that the word lies in the entry.
    unsafe {
        let i = *pc;
        m.set_reg(i.a, m.base(i.b as usize).add(i.e as usize).cast::<u64>().read_unaligned());
        pc.add(1)
    }
}

/// `UStoreWord`
pub(crate) unsafe fn store_word(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `load_word`.
    unsafe {
        let i = *pc;
        m.base(i.b as usize).add(i.e as usize).cast::<u64>().write_unaligned(m.reg(i.a));
        pc.add(1)
    }
}

/// `UAddStoreWord`
pub(crate) unsafe fn add_store_word(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: as for `load_word`.
    unsafe {
        let i = *pc;
        let sum = m.reg(i.c).wrapping_add(m.reg(i.d));
        m.set_reg(i.a, sum);
        m.base(i.b as usize).add(i.e as usize).cast::<u64>().write_unaligned(sum);
        pc.add(1)
    }
}

unsafe fn load_of<W: Word, const BOOL: bool>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        if i.d == 1 && m.reg(i.b) == 0 {
            m.set_reg(i.a, m.reg(i.c));
            return pc.add(1);
        }
        let access = m.access(i.e);
        match bank(m, access, i.e).and_then(|start| element(access, i.e, start, m.reg(access.base) as i64)) {
            Ok(from) => {
                let bits: u64 = from.cast::<W>().read_unaligned().into();
                m.set_reg(i.a, if BOOL { (bits != 0) as u64 } else { bits });
                pc.add(1)
            }
            Err(what) => fault(m, pc, what),
        }
    }
}

unsafe fn store_of<W: Word>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above.
    unsafe {
        let i = *pc;
        if i.d == 1 && m.reg(i.b) == 0 {
            return pc.add(1);
        }
        let access = m.access(i.e);
        match bank(m, access, i.e).and_then(|start| element(access, i.e, start, m.reg(access.base) as i64)) {
            Ok(to) => {
                to.cast::<W>().write_unaligned(W::cut(m.reg(i.a)));
                pc.add(1)
            }
            Err(what) => fault(m, pc, what),
        }
    }
}

unsafe fn atomic_add_of<W: FetchAdd + Word>(m: &mut Machine, pc: *const Inst) -> *const Inst {
    // SAFETY: see above; the launch checked that arguments of atomic ops are aligned for their element.
    unsafe {
        let i = *pc;
        if i.d == 1 && m.reg(i.c) == 0 {
            m.set_reg(i.a, 0);
            return pc.add(1);
        }
        if std::mem::take(&mut m.streamed) {
            super::copy::fence();
        }
        let access = m.access(i.e);
        match bank(m, access, i.e).and_then(|start| element(access, i.e, start, m.reg(access.base) as i64)) {
            Ok(at) => {
                m.set_reg(i.a, W::fetch_add(at, W::cut(m.reg(i.b))).into());
                pc.add(1)
            }
            Err(what) => fault(m, pc, what),
        }
    }
}
