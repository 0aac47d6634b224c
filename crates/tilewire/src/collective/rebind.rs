//! Other tensors for a kernel that is prepared: which arguments lie in the old ones, where they lie in the new ones,
//! and what makes that impossible.
//!
//! A prepared kernel was lowered for its arguments: their rows, their alignment, and which of them share bytes. Tensors
//! that are alike in all of that can take their place.

use crate::ir::Type;
use crate::tensor::{AnyTensor, Arg, Grid, Memory, ReachableFrom};

/// The tensors that a kernel is bound to.
#[derive(Clone)]
pub(super) struct Bound {
    /// The output and the input.
    pub tensors: [AnyTensor; 2],
    /// Which of them peers reach: they have its address.
    pub reached: [bool; 2],
}

/// Why other tensors cannot take the place of those that a kernel was prepared for. Nothing has changed: the kernel
/// still uses the old ones.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RebindError {
    /// Elements of another type.
    #[non_exhaustive]
    Type {
        /// `output` or `input`.
        tensor: &'static str,
        /// The type that was given.
        is: Type,
        /// The type of the old tensor.
        must: Type,
    },
    /// Other rows, columns or row stride.
    #[non_exhaustive]
    Shape {
        /// `output` or `input`.
        tensor: &'static str,
        /// Rows, columns and row stride that were given.
        is: [usize; 3],
        /// Those of the old tensor.
        must: [usize; 3],
    },
    /// An address that is less aligned than the one the kernel was made for.
    #[non_exhaustive]
    Alignment {
        /// `output` or `input`.
        tensor: &'static str,
        /// The alignment of its address, up to 64.
        is: usize,
        /// The alignment that the kernel needs there.
        must: usize,
    },
    /// Memory of another place.
    #[non_exhaustive]
    Reach {
        /// `output` or `input`.
        tensor: &'static str,
        /// Where it can be reached from.
        is: ReachableFrom,
        /// Where the old tensor could be reached from.
        must: ReachableFrom,
    },
    /// Tensors that share other bytes than before.
    #[non_exhaustive]
    Overlap {
        /// `output` or `input`.
        tensor: &'static str,
        /// The other one, or the argument.
        with: String,
        /// True if the old ones shared bytes.
        did: bool,
    },
    /// A tensor that peers reach.
    #[non_exhaustive]
    Reached {
        /// `output` or `input`.
        tensor: &'static str,
    },
}

errors! {
    enum RebindError {
        Type { tensor, is, must } => "the {tensor} has elements of {is}, but the kernel was built for {must}: build it again",
        Shape { tensor, is: [rows, cols, stride], must: [had_rows, had_cols, had_stride] } =>
            "the {tensor} is [{rows}, {cols}] with rows {stride} apart, but the kernel was built for \
             [{had_rows}, {had_cols}] with rows {had_stride} apart: build it again",
        Alignment { tensor, is, must } =>
            "the {tensor} is aligned to {is} bytes where the kernel relies on {must}: align its buffer alike, or build it \
             again",
        Reach { tensor, is, must } =>
            "the {tensor} is reached from {is}, but the kernel was built for memory reached from {must}: build it again",
        Overlap { tensor, with, did: true } =>
            "the {tensor} does not share the bytes with {with} that the old one shared, and the kernel was built for that: \
             give tensors that overlap alike, or build it again",
        Overlap { tensor, with, did: false } =>
            "the {tensor} shares bytes with {with}, and the kernel was built for tensors that do not: give others, or \
             build it again",
        Reached { tensor } =>
            "the {tensor} is in a window, whose address the peers have: all ranks build the collective again with another \
             window",
    }
}

const NAMES: [&str; 2] = ["output", "input"];

impl Bound {
    /// The arguments with these tensors in place of the old ones. `aligned`: the kernel relies on the alignment of the
    /// old ones. `name`: the names of the arguments.
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

    /// The memory that takes the place of this one: the same part of a new tensor, or itself.
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
        // Not a part of them: it stays, and must share with the new tensors what it shared with the old ones.
        for k in 0..2 {
            let (old, new) = (self.tensors[k].memory(), to[k].memory());
            if !share_alike([old, memory], [new, memory]) {
                return Err(RebindError::Overlap { tensor: NAMES[k], with: name(), did: old.overlaps(memory) });
            }
        }
        Ok(memory.clone())
    }
}

/// True if the second two memories share what the first two share: nothing, or the same bytes of each.
fn share_alike([a, b]: [&Memory; 2], [x, y]: [&Memory; 2]) -> bool {
    let distance = |a: &Memory, b: &Memory| a.start().addr().get().wrapping_sub(b.start().addr().get());
    match (a.overlaps(b), x.overlaps(y)) {
        (true, true) => distance(a, b) == distance(x, y),
        (did, does) => did == does,
    }
}

/// The alignment that kernels rely on.
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
