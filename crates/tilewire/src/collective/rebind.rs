//! Rebinding: other tensors take the place of those that a prepared kernel uses. This file finds which arguments lie in
//! the old tensors and where they lie in the new ones, and refuses tensors that do not fit.
//!
//! A prepared kernel was lowered for its arguments: their rows, their alignment, and which of them share bytes. Tensors
//! that agree in all of these properties can take their place.

use crate::ir::Type;
use crate::tensor::{AnyTensor, Arg, Grid, Memory, ReachableFrom};

/// The tensors that a kernel is bound to.
#[derive(Clone)]
pub(super) struct Bound {
    /// The output and the input.
    pub tensors: [AnyTensor; 2],
    /// True for each of them that peers reach because they have its address.
    pub reached: [bool; 2],
}

/// The reason why other tensors cannot take the place of those that a kernel was prepared for. The kernel still uses
/// the old tensors.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RebindError {
    /// The new tensor has elements of another type.
    #[non_exhaustive]
    Type {
        /// `output` or `input`.
        tensor: &'static str,
        /// The type of the new tensor.
        is: Type,
        /// The type of the old tensor.
        must: Type,
    },
    /// The new tensor has other rows, columns or another row stride.
    #[non_exhaustive]
    Shape {
        /// `output` or `input`.
        tensor: &'static str,
        /// The rows, columns and row stride of the new tensor.
        is: [usize; 3],
        /// The rows, columns and row stride of the old tensor.
        must: [usize; 3],
    },
    /// The new tensor's address is less aligned than the kernel relies on.
    #[non_exhaustive]
    Alignment {
        /// `output` or `input`.
        tensor: &'static str,
        /// The alignment of the new address, at most 64.
        is: usize,
        /// The alignment that the kernel relies on.
        must: usize,
    },
    /// The new tensor's memory is reached from other places.
    #[non_exhaustive]
    Reach {
        /// `output` or `input`.
        tensor: &'static str,
        /// The places from which the new tensor can be reached.
        is: ReachableFrom,
        /// The places from which the old tensor could be reached.
        must: ReachableFrom,
    },
    /// The new tensors do not share bytes in the way that the old ones did.
    #[non_exhaustive]
    Overlap {
        /// `output` or `input`.
        tensor: &'static str,
        /// The other tensor, or the argument.
        with: String,
        /// True if the old tensors shared bytes.
        did: bool,
    },
    /// Peers have the address of the old tensor.
    #[non_exhaustive]
    Reached {
        /// `output` or `input`.
        tensor: &'static str,
    },
}

errors! {
    enum RebindError {
        Type { tensor, is, must } =>
            "the {tensor} has elements of {is}, but the kernel was built for {must}: build the collective again",
        Shape { tensor, is: [rows, cols, stride], must: [had_rows, had_cols, had_stride] } =>
            "the {tensor} is [{rows}, {cols}] with rows {stride} apart, but the kernel was built for \
             [{had_rows}, {had_cols}] with rows {had_stride} apart: build the collective again",
        Alignment { tensor, is, must } =>
            "the {tensor} is aligned to {is} bytes where the kernel relies on {must}: align the buffer to {must} bytes, \
             or build the collective again",
        Reach { tensor, is, must } =>
            "the {tensor} is reached from {is}, but the kernel was built for memory reached from {must}: build the \
             collective again",
        Overlap { tensor, with, did: true } =>
            "the {tensor} must overlap {with} exactly as the old one did, because the kernel was built for that: pass \
             tensors that overlap in the same way, or build the collective again",
        Overlap { tensor, with, did: false } =>
            "the {tensor} shares bytes with {with}, but the kernel was built for tensors that do not: pass tensors that \
             do not overlap, or build the collective again",
        Reached { tensor } =>
            "the {tensor} cannot be replaced, because it is in a window or posts read it in place, and other ranks or \
             the proxy know its address: build the collective again on all ranks",
    }
}

const NAMES: [&str; 2] = ["output", "input"];

impl Bound {
    /// The arguments with these tensors in place of the old ones. `aligned` says that the kernel relies on the
    /// alignment of the old tensors. `name` returns the name of an argument.
    pub(super) fn moved(
        &self,
        args: &[Arg],
        to: &[AnyTensor; 2],
        aligned: bool,
        name: &dyn Fn(usize) -> String,
    ) -> Result<Vec<Arg>, RebindError> {
        for (k, new) in to.iter().enumerate() {
            self.alike(k, new)?;
        }
        let [(out, inp), (new_out, new_inp)] = [&self.tensors, to].map(|[out, inp]| (out.memory(), inp.memory()));
        if !share_alike([out, inp], [new_out, new_inp]) {
            return Err(RebindError::Overlap { tensor: NAMES[0], with: "the input".into(), did: out.overlaps(inp) });
        }
        let mut moved = Vec::with_capacity(args.len());
        for (k, arg) in args.iter().enumerate() {
            moved.push(match arg {
                Arg::Buffer(banks) => {
                    let bank = |memory: &Memory| self.bank(memory, to, aligned, || name(k));
                    Arg::Buffer(banks.iter().map(bank).collect::<Result<_, _>>()?)
                }
                arg => arg.clone(),
            });
        }
        Ok(moved)
    }

    /// Checks that a tensor is like the old one.
    fn alike(&self, k: usize, new: &AnyTensor) -> Result<(), RebindError> {
        let (old, tensor) = (&self.tensors[k], NAMES[k]);
        if old.ty() != new.ty() {
            return Err(RebindError::Type { tensor, is: new.ty(), must: old.ty() });
        }
        if old.grid() != new.grid() {
            let of = |Grid { rows, cols, stride }: Grid| [rows, cols, stride];
            return Err(RebindError::Shape { tensor, is: of(new.grid()), must: of(old.grid()) });
        }
        let reach = |tensor: &AnyTensor| tensor.memory().reachable_from().clone();
        if reach(old) != reach(new) {
            return Err(RebindError::Reach { tensor, is: reach(new), must: reach(old) });
        }
        match self.reached[k] && !old.memory().is(new.memory()) {
            true => Err(RebindError::Reached { tensor }),
            false => Ok(()),
        }
    }

    /// The memory that takes the place of this one: the same part of a new tensor, or the old memory if it is no part
    /// of a tensor.
    fn bank(
        &self,
        memory: &Memory,
        to: &[AnyTensor; 2],
        aligned: bool,
        name: impl Fn() -> String,
    ) -> Result<Memory, RebindError> {
        for k in 0..2 {
            let (old, new) = (self.tensors[k].memory(), to[k].memory());
            let Some(offset) = old.offset_of(memory).filter(|_| memory.covered() > 0) else { continue };
            let part = new.part_like(memory, offset);
            let (is, must) = (alignment(&part), alignment(memory));
            if aligned && is < must {
                return Err(RebindError::Alignment { tensor: NAMES[k], is, must });
            }
            return Ok(part);
        }
        // The memory is no part of the tensors, so it stays. It must share with the new tensors the bytes that it
        // shared with the old ones.
        for k in 0..2 {
            let (old, new) = (self.tensors[k].memory(), to[k].memory());
            if !share_alike([old, memory], [new, memory]) {
                return Err(RebindError::Overlap { tensor: NAMES[k], with: name(), did: old.overlaps(memory) });
            }
        }
        Ok(memory.clone())
    }
}

/// True if the second pair of memories overlaps exactly like the first pair, or neither pair overlaps.
fn share_alike([a, b]: [&Memory; 2], [x, y]: [&Memory; 2]) -> bool {
    let distance = |a: &Memory, b: &Memory| a.start().addr().get().wrapping_sub(b.start().addr().get());
    match (a.overlaps(b), x.overlaps(y)) {
        (true, true) => distance(a, b) == distance(x, y),
        (did, does) => did == does,
    }
}

/// The alignment of a memory, as far as kernels rely on it: at most 64.
fn alignment(memory: &Memory) -> usize {
    1 << memory.start().addr().get().trailing_zeros().min(6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;

    #[test]
    fn parts_of_tensors_move_and_alignment_counts_where_it_is_relied_on() {
        let tensor = |len: usize| Tensor::<f32>::zeros(len);
        let (out, inp, other) = (tensor(64), tensor(64), tensor(64));
        let bound = Bound { tensors: [(&out).into(), (&inp).into()], reached: [false; 2] };
        let buffer = |memory: Memory| Arg::Buffer(vec![memory]);
        let args = [&out, &inp].map(|x| buffer(x.slice(16..32).memory().clone()));
        let moved = |to: &Tensor<f32>, aligned| {
            bound.moved(&args, &[(&other).into(), to.into()], aligned, &|k| format!("argument {k}"))
        };
        let off = tensor(65).slice(1..65);
        let error = moved(&off, true).unwrap_err();
        assert_eq!(error, RebindError::Alignment { tensor: "input", is: 4, must: 64 });
        assert!(error.to_string().contains("aligned to 4 bytes where the kernel relies on 64"));
        let [Arg::Buffer(out), Arg::Buffer(inp)] = &moved(&off, false).unwrap()[..] else { panic!("two buffers") };
        assert!(out[0].is(other.slice(16..32).memory()) && inp[0].is(off.slice(16..32).memory()));
    }
}
