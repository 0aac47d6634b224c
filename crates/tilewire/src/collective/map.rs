//! `map`: a collective of one rank. There is no wire; the rank's own chunk passes both hooks, as in every collective.

use super::{RunError, prepare};
use crate::hook::{BuildError, Chunk, Ctx, MisuseKind, Regs, RoleCtx, Traced, Value, kernel};
use crate::ir::SourceLine;
use crate::ir::scalar::Element;
use crate::tensor::Tensor;
use crate::vm::Prepared;
use std::rc::Rc;

/// Applies hooks to a whole tensor. Without hooks it copies.
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
    let at = SourceLine::caller();
    let line = at.clone();
    Map {
        out: out.clone(),
        inp: inp.clone(),
        input_shape: None,
        output_shape: None,
        blocks: 1,
        produce: Rc::new(move |c| c.input.load_line(c.pos_line(&line), &line)),
        copies_input: true,
        consume: None,
        faults: Vec::new(),
        at,
    }
}

/// A [`map`] being built. `R` is what `produce` gives to `consume`.
#[must_use = "nothing happens before run(), build() or trace()"]
pub struct Map<'h, In: Element, Out: Element, R: Regs = In> {
    out: Tensor<Out>,
    inp: Tensor<In>,
    input_shape: Option<Shape>,
    output_shape: Option<Shape>,
    blocks: u32,
    produce: Rc<ProduceHook<'h, In, Out, R>>,
    /// Whether `produce` is the default, which needs an input as long as the output.
    copies_input: bool,
    consume: Option<Rc<ConsumeHook<'h, In, Out, R>>>,
    faults: Vec<(SourceLine, MisuseKind)>,
    at: SourceLine,
}

type ProduceHook<'h, In, Out, R> = dyn for<'t> Fn(&Ctx<'t, In, Out>) -> <R as Regs>::Of<'t> + 'h;
type ConsumeHook<'h, In, Out, R> = dyn for<'t> Fn(&Ctx<'t, In, Out>, <R as Regs>::Of<'t>) + 'h;

#[derive(Clone)]
struct Shape {
    rows: usize,
    cols: usize,
    at: SourceLine,
}

impl<'h, In: Element, Out: Element, R: Regs> Map<'h, In, Out, R> {
    /// Gives the chunks a shape: the input chunk is `[rows, cols]` and the output chunk is `[cols, rows]`, so that
    /// `produce(|c| c.input.at(c.col(), c.row()))` sends every `[rows, cols]` chunk transposed. Hooks are called for every
    /// position of the output:
    ///
    /// ```text
    ///   chunk_shape(2, 3)      input [2, 3]            output [3, 2]
    ///
    ///                           a  b  c                 a  d         output (row, col)
    ///                           d  e  f       ──▶       b  e           = input (col, row)
    ///                                                   c  f
    /// ```
    ///
    /// For an output that keeps the orientation say `output_shape(rows, cols)` too.
    ///
    /// ```
    /// use tilewire::{Tensor, map};
    /// let (out, inp) = (Tensor::<f32>::zeros(6), Tensor::<f32>::zeros(6));
    /// map(&out, &inp).chunk_shape(2, 3).produce(|c| c.input.at(c.col(), c.row())).trace()?;
    /// map(&out, &inp).chunk_shape(2, 3).output_shape(2, 3).produce(|c| -c.input.at(c.row(), c.col())).trace()?;
    /// # Ok::<(), tilewire::BuildError>(())
    /// ```
    #[track_caller]
    pub fn chunk_shape(mut self, rows: usize, cols: usize) -> Self {
        let at = SourceLine::caller();
        self.output_shape.get_or_insert(Shape { rows: cols, cols: rows, at: at.clone() });
        self.input_shape = Some(Shape { rows, cols, at });
        self
    }

    /// Gives the output chunk a shape of its own.
    #[track_caller]
    pub fn output_shape(mut self, rows: usize, cols: usize) -> Self {
        self.output_shape = Some(Shape { rows, cols, at: SourceLine::caller() });
        self
    }

    /// Number of blocks that share the work; 1 unless said.
    pub fn blocks(mut self, blocks: u32) -> Self {
        self.blocks = blocks;
        self
    }

    /// What is sent for a position of the output chunk. Without a consume hook it is stored there.
    #[track_caller]
    pub fn produce<Q: Element>(
        self,
        hook: impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, Q> + 'h,
    ) -> Map<'h, In, Out, Q> {
        self.produce_any(Rc::new(hook))
    }

    /// Like [`Map::produce`], for two values that travel side by side, such as a payload and its scale.
    ///
    /// ```
    /// use tilewire::{F8E4M3, Tensor, map};
    /// let (out, inp) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(64));
    /// map(&out, &inp)
    ///     .produce2(|c| {
    ///         let x = c.input.load(c.pos());
    ///         let scale = x.abs().group_max(32) / 448.0;
    ///         ((x / scale).cast::<F8E4M3>(), scale)
    ///     })
    ///     .consume(|c, (payload, scale)| c.output.store(c.pos(), payload.cast::<f32>() * scale))
    ///     .trace()?;
    /// # Ok::<(), tilewire::BuildError>(())
    /// ```
    #[track_caller]
    pub fn produce2<A: Element, B: Element>(
        self,
        hook: impl for<'t> Fn(&Ctx<'t, In, Out>) -> (Value<'t, A>, Value<'t, B>) + 'h,
    ) -> Map<'h, In, Out, (A, B)> {
        self.produce_any(Rc::new(hook))
    }

    /// Like [`Map::produce`], for three values that travel side by side.
    #[track_caller]
    pub fn produce3<A: Element, B: Element, C: Element>(
        self,
        hook: impl for<'t> Fn(&Ctx<'t, In, Out>) -> (Value<'t, A>, Value<'t, B>, Value<'t, C>) + 'h,
    ) -> Map<'h, In, Out, (A, B, C)> {
        self.produce_any(Rc::new(hook))
    }

    #[track_caller]
    fn produce_any<Q: Regs>(self, produce: Rc<ProduceHook<'h, In, Out, Q>>) -> Map<'h, In, Out, Q> {
        let mut faults = self.faults;
        if self.consume.is_some() {
            faults.push((SourceLine::caller(), MisuseKind::HookOrder));
        }
        Map {
            out: self.out,
            inp: self.inp,
            input_shape: self.input_shape,
            output_shape: self.output_shape,
            blocks: self.blocks,
            produce,
            copies_input: false,
            consume: None,
            faults,
            at: self.at,
        }
    }

    /// What happens with what arrives for a position of the output chunk; give it after `produce`.
    pub fn consume(mut self, hook: impl for<'t> Fn(&Ctx<'t, In, Out>, R::Of<'t>) + 'h) -> Self {
        self.consume = Some(Rc::new(hook));
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

    /// Builds and launches once.
    ///
    /// ```
    /// use tilewire::{Tensor, map};
    /// let (out, inp) = (Tensor::<i32>::zeros(6), Tensor::from_slice(&[1, 2, 3, 4, 5, 6]));
    /// map(&out, &inp).chunk_shape(2, 3).produce(|c| c.input.at(c.col(), c.row())).run()?;
    /// assert_eq!(out.to_vec(), [1, 4, 2, 5, 3, 6]);
    /// # Ok::<(), tilewire::RunError>(())
    /// ```
    pub fn run(self) -> Result<(), RunError> {
        Ok(self.build()?.run()?)
    }

    /// Traces the kernel and stops there: for printing its IR, for the reference evaluator, for another engine.
    pub fn trace(self) -> Result<Traced, BuildError> {
        kernel("map", |k| {
            for (at, fault) in &self.faults {
                k.report(at, fault.clone());
            }
            if self.blocks == 0 {
                k.report(&self.at, MisuseKind::TooSmall { what: "the number of blocks", is: 0 });
            }
            if self.copies_input && self.inp.len() != self.out.len() {
                let (is, must) = (self.inp.len(), self.out.len());
                k.report(&self.at, MisuseKind::Length { what: "the input of a map without produce hook", is, must });
            }
            k.blocks(self.blocks.max(1));
            let (input, output) = (k.input(&self.inp).named("input"), k.output(&self.out).named("output"));
            let input: Chunk<'_, In> = match &self.input_shape {
                Some(shape) => input.shape_line(shape.rows, shape.cols, &shape.at).into(),
                None => input.into(),
            };
            let output: Chunk<'_, Out> = match &self.output_shape {
                Some(shape) => output.shape_line(shape.rows, shape.cols, &shape.at).into(),
                None => output.into(),
            };
            k.main(|r| self.body(r, input, output));
        })
    }

    fn body<'t>(&self, r: &RoleCtx<'t>, input: Chunk<'t, In>, output: Chunk<'t, Out>) {
        // Blocks share the outermost axis of the output: its rows, or its elements.
        let shaped = self.output_shape.is_some();
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
                self.element(Ctx::new(r, input, output).row(row).col(col).pos(pos).build());
            });
        } else {
            r.each(extent, |i| self.element(Ctx::new(r, input, output).pos(offset(i)).build()));
        }
    }

    fn element<'t>(&self, c: Ctx<'t, In, Out>) {
        let regs = (self.produce)(&c);
        match &self.consume {
            Some(consume) => consume(&c, regs),
            None => R::store(regs, &c, &self.at),
        }
    }
}
