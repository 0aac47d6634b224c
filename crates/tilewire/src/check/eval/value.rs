//! The effect of one op on one element (or once, outside of an `each`): arithmetic and plain memory.

use super::Instance;
use crate::check::error::EvalError;
use crate::check::memory::{Bound, World};
use crate::check::observer::{Access, AccessKind, Observer};
use crate::ir::scalar::dynamic;
use crate::ir::{Entity, Inst, Mask, Op, Place, Special, Type, Value};

impl Instance<'_> {
    /// Runs an op for one element and returns the value it defines. Control flow, signals, `Group`, packets, bulk and
    /// network ops are not per element and are handled elsewhere.
    pub(super) fn element_op(
        &self,
        inst: Inst,
        op: &Op,
        element: Option<usize>,
        world: &mut World,
        observer: &mut dyn Observer,
    ) -> Result<Option<u64>, EvalError> {
        let kernel = self.kernel;
        let get = |v: Value| self.value(v, element);
        let ty = |v: Value| kernel.ty(v);
        let bits = match op {
            Op::Const(c) => c.bits,
            Op::Special(special) => self.special(*special),
            Op::Scalar(param) => match self.binding.get(*param) {
                Bound::Scalar(bits) => *bits,
                _ => return Err(self.malformed(inst, "the parameter is not a scalar")),
            },
            Op::Unary { op, x } => dynamic::unary(*op, ty(*x), get(*x)),
            Op::Binary { op, a, b } => dynamic::binary(*op, ty(*a), get(*a), get(*b)),
            Op::Compare { op, a, b } => u64::from(dynamic::compare(*op, ty(*a), get(*a), get(*b))),
            Op::Select { cond, a, b } => get(if get(*cond) != 0 { *a } else { *b }),
            Op::Fma { a, b, c } => dynamic::fma(ty(*a), get(*a), get(*b), get(*c)),
            Op::Cast { x, to } => dynamic::cast(ty(*x), *to, get(*x)),
            Op::Bitcast { x, .. } => get(*x),
            Op::ReadVar(var) => self.vars[var.index()],
            Op::Load { at, mask } => {
                let ty = kernel.base_type(at.base).ok_or_else(|| self.malformed(inst, "load from a non-buffer"))?;
                self.masked_read(inst, at, ty, ty.size() as u64, mask, element, world, observer)?
            }
            Op::Get { at, to, mask } => self.masked_read(inst, at, *to, 1, mask, element, world, observer)?,
            Op::Store { at, x, mask } => {
                if mask.is_none_or(|mask| get(mask) != 0) {
                    let size = ty(*x).size() as u64;
                    let (memory, bytes) = self.span(inst, at, element, size, size)?;
                    self.touch(inst, element, AccessKind::Write, memory, bytes.clone(), observer);
                    world.memories.write_element(memory, bytes.start, ty(*x), get(*x));
                }
                return Ok(None);
            }
            Op::Put { at, x, mask } => {
                if mask.is_none_or(|mask| get(mask) != 0) {
                    let size = ty(*x).size() as u64;
                    let (memory, bytes) = self.aligned_span(inst, at, element, size)?;
                    self.touch(inst, element, AccessKind::Write, memory, bytes.clone(), observer);
                    world.memories.write_element(memory, bytes.start, ty(*x), get(*x));
                }
                return Ok(None);
            }
            Op::AtomicAdd { at, x, mask, .. } => {
                if mask.is_some_and(|mask| get(mask) == 0) {
                    0
                } else {
                    let size = ty(*x).size();
                    let (memory, bytes) = self.span(inst, at, element, size as u64, size as u64)?;
                    let old = world.memories.read(memory, bytes.start, size);
                    // Only the low `size` bytes are written: the sum wraps to the type.
                    world.memories.write(memory, bytes.start, size, old.wrapping_add(get(*x)));
                    let new = world.memories.read(memory, bytes.start, size);
                    let element = element.map(|element| element as u64);
                    let access = Access { inst, element, kind: AccessKind::Atomic, memory, bytes };
                    observer.access(self.who, &access);
                    observer.atomic(self.who, &access, old, new);
                    old
                }
            }
            _ => return Err(self.malformed(inst, "the op must not stand here")),
        };
        Ok(Some(bits))
    }

    /// Reads one value, or returns `other` if masked off. `scale` is the number of bytes per index.
    #[allow(clippy::too_many_arguments)] // one call site each for Load and Get; a struct would be the same list twice
    fn masked_read(
        &self,
        inst: Inst,
        at: &Place,
        ty: Type,
        scale: u64,
        mask: &Option<Mask>,
        element: Option<usize>,
        world: &World,
        observer: &mut dyn Observer,
    ) -> Result<u64, EvalError> {
        if let Some(mask) = mask
            && self.value(mask.cond, element) == 0
        {
            return Ok(self.value(mask.other, element));
        }
        let size = ty.size() as u64;
        let (memory, bytes) = match scale {
            1 => self.aligned_span(inst, at, element, size)?,
            _ => self.span(inst, at, element, scale, size)?,
        };
        self.touch(inst, element, AccessKind::Read, memory, bytes.clone(), observer);
        Ok(world.memories.read_element(memory, bytes.start, ty))
    }

    fn special(&self, special: Special) -> u64 {
        u64::from(match special {
            Special::Rank => self.binding.rank,
            Special::WorldSize => self.binding.world_size,
            Special::Block => self.who.block,
            Special::Blocks => self.kernel.blocks,
            Special::Copy => self.who.copy,
            Special::Copies => self.copies,
        })
    }
}
