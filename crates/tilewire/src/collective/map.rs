//! `map`: a collective of one rank. There is no wire; the rank's own chunk passes both hooks, as in every collective.

use super::hooks::{Hooks, OverlapCheck, chunk, hook_methods, tuple_methods};
use super::{RunError, prepare};
use crate::hook::{AnyCtx, AnyValue, Chunk, Ctx, Holds, MisuseKind, Payload, Regs, RoleCtx, Traced, Value, kernel_at};
use crate::ir::SourceLine;
use crate::ir::scalar::Element;
use crate::tensor::{AnyTensor, Tensor};
use crate::vm::Prepared;
use std::marker::PhantomData;
use std::rc::Rc;

/// Applies hooks to a whole tensor. Without hooks it copies. In place, with one tensor as input and output, where every element reads only
/// the position that it writes; any other overlap is an error of the build.
///
/// ```
/// use tilewire::{Tensor, map};
/// let (out, inp) = (Tensor::<f32>::zeros(3), Tensor::from_slice(&[1.0f32, 2.0, 3.0]));
/// map(&out, &inp).produce(|c| c.input.load(c.pos()) * 2.0).run()?;
/// assert_eq!(out.to_vec(), [2.0, 4.0, 6.0]);
/// # Ok::<(), tilewire::RunError>(())
/// ```
#[track_caller]
pub fn map<'h, In: Element, Out: Element>(out: &Tensor<Out>, inp: &Tensor<In>) -> Map<'h, In, Out> {
    let hooks = Hooks::copy(<In as Regs>::TYPES, Out::TYPE, SourceLine::caller());
    Map { any: AnyMap { out: out.into(), inp: inp.into(), blocks: 1, hooks }, types: PhantomData }
}

/// A [`map`] being built. `R` is what `produce` gives to `consume`.
#[must_use = "nothing happens before run(), build() or trace()"]
pub struct Map<'h, In: Element, Out: Element, R: Regs = In> {
    any: AnyMap<'h>,
    types: PhantomData<fn(In, R) -> Out>,
}

/// A [`Map`] whose types are values.
struct AnyMap<'h> {
    out: AnyTensor,
    inp: AnyTensor,
    blocks: u32,
    hooks: Hooks<'h>,
}

impl<'h, In: Element, Out: Element, R: Regs> Map<'h, In, Out, R> {
    hook_methods!(Map<'h>);
    tuple_methods!(Map<'h>);

    /// Number of blocks that share the work; 1 unless said.
    pub fn blocks(mut self, blocks: u32) -> Self {
        self.any.blocks = blocks;
        self
    }

    /// Traces, verifies and compiles; the result is launched any number of times and reads its tensors at every launch.
    ///
    /// ```
    /// use tilewire::{Tensor, map};
    /// let (out, inp) = (Tensor::<i32>::zeros(2), Tensor::from_slice(&[1, 2]));
    /// let mut negate = map(&out, &inp).produce(|c| -c.input.load(c.pos())).build()?;
    /// negate.run()?;
    /// assert_eq!(out.to_vec(), [-1, -2]);
    /// inp.set(0, 7);
    /// negate.run()?;
    /// assert_eq!(out.to_vec(), [-7, -2]);
    /// # Ok::<(), tilewire::RunError>(())
    /// ```
    pub fn build(self) -> Result<Prepared, RunError> {
        Ok(prepare(&self.trace()?)?)
    }

    /// Builds and launches once. It builds at every call, which takes far longer than a small launch: in a loop, call
    /// [`build`](Map::build) once, and `run` what it gives as often as you like.
    ///
    /// ```
    /// use tilewire::{Tensor, map};
    /// let (out, inp) = (Tensor::<i32>::zeros(6), Tensor::from_slice(&[1, 2, 3, 4, 5, 6]));
    /// map(&out, &inp).chunk_shape(2, 3).output_shape(3, 2).produce(|c| c.input.at(c.col(), c.row())).run()?;
    /// assert_eq!(out.to_vec(), [1, 4, 2, 5, 3, 6]);
    /// # Ok::<(), tilewire::RunError>(())
    /// ```
    pub fn run(self) -> Result<(), RunError> {
        Ok(self.build()?.run()?)
    }

    /// Traces the kernel and stops there: for printing its IR, for the reference evaluator, for another engine.
    pub fn trace(self) -> Result<Traced, RunError> {
        self.any.trace()
    }
}

impl AnyMap<'_> {
    fn trace(self) -> Result<Traced, RunError> {
        let overlap = OverlapCheck::default();
        let traced = kernel_at("map", self.hooks.at.clone(), |k| {
            let hooks = &self.hooks;
            for (at, fault) in &hooks.faults {
                k.report(at, fault.clone());
            }
            if self.blocks == 0 {
                k.report(&hooks.at, MisuseKind::TooSmall { what: "the number of blocks", is: 0 });
            }
            if hooks.copies && self.inp.len() != self.out.len() {
                let (is, must) = (self.inp.len(), self.out.len());
                k.report(&hooks.at, MisuseKind::Length { what: "the input of a map without produce hook", is, must });
            }
            k.blocks(self.blocks.max(1));
            let (input, output) = (k.any_input(&self.inp).named("input"), k.any_output(&self.out).named("output"));
            let (input, output) =
                (chunk(input, Holds::Input, &hooks.input_shape), chunk(output, Holds::Output, &hooks.output_shape));
            k.main(|r| self.body(r, input, output));
            overlap.look(k, self.out.memory());
        })?;
        overlap.result()?;
        Ok(traced)
    }

    fn body<'t>(&self, r: &RoleCtx<'t>, input: Chunk<'t, ()>, output: Chunk<'t, ()>) {
        // Blocks share the outermost axis of the output: its rows, or its elements.
        let shaped = self.hooks.output_shape.is_some();
        let outer = if shaped { output.rows() } else { output.len() };
        let share = outer.div_ceil(self.blocks.max(1) as usize) as i64;
        let outer = outer as i64;
        let start = (self.blocks > 1).then(|| r.block() * share);
        let extent = match start {
            Some(start) => (outer - start).min(share),
            None => r.constant(outer),
        };
        let offset = |i: Value<'t, i64>| start.map_or(i, |start| start + i);
        if shaped {
            r.each2(extent, output.cols(), |row, col| {
                let row = offset(row);
                let pos = row * output.cols() as i64 + col;
                self.element(AnyCtx::new(r, input, output).row(row).col(col).pos(pos).build());
            });
        } else {
            r.each(extent, |i| self.element(AnyCtx::new(r, input, output).pos(offset(i)).build()));
        }
    }

    fn element<'t>(&self, c: AnyCtx<'t>) {
        self.hooks.consume(&c, self.hooks.produce(&c));
    }
}
