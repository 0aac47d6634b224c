//! The two hooks of a collective and the shape of its chunks: what every builder collects.

use crate::hook::{
    Block, BuildError, Chunk, Ctx, Holds, HookLeg, MisuseKind, Overlap, PutParts, Regs, Value, View, kernel_at,
};
use crate::ir::scalar::Element;
use crate::ir::{self, SourceLine};
use crate::tensor::{Memory, Tensor};
use crate::transport::TransferError;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

pub(super) type ProduceHook<'h, In, Out, R> = dyn for<'t> Fn(&Ctx<'t, In, Out>) -> <R as Regs>::Of<'t> + 'h;
pub(super) type ConsumeHook<'h, In, Out, R> = dyn for<'t> Fn(&Ctx<'t, In, Out>, <R as Regs>::Of<'t>) + 'h;

/// Rows and columns, and who said so.
#[derive(Clone)]
pub(super) struct Shape {
    pub rows: usize,
    pub cols: usize,
    pub at: SourceLine,
}

/// What a user said about the elements of a collective. `R` is what `produce` gives to `consume`.
pub struct Hooks<'h, In: Element, Out: Element, R: Regs> {
    produce: Rc<ProduceHook<'h, In, Out, R>>,
    /// Where the hooks were given: a mistake in one of the library's is reported there.
    given_at: [SourceLine; 2],
    /// Whether `produce` is the default: it copies the input.
    pub(super) copies: bool,
    consume: Option<Rc<ConsumeHook<'h, In, Out, R>>>,
    pub(super) input_shape: Option<Shape>,
    pub(super) output_shape: Option<Shape>,
    /// How many neighbours share the last of several values.
    pub(super) last_per: usize,
    pub(super) faults: Vec<(SourceLine, MisuseKind)>,
    /// Where the collective is called.
    pub(super) at: SourceLine,
}

impl<'h, In: Element, Out: Element> Hooks<'h, In, Out, In> {
    /// No hooks: the input is copied.
    pub(super) fn copy(at: SourceLine) -> Self {
        let line = at.clone();
        Hooks {
            produce: Rc::new(move |c| c.input.load_line(c.pos_line(&line), &line)),
            given_at: [at.clone(), at.clone()],
            copies: true,
            consume: None,
            input_shape: None,
            output_shape: None,
            last_per: 1,
            faults: Vec::new(),
            at,
        }
    }
}

impl<'h, In: Element, Out: Element, R: Regs> Hooks<'h, In, Out, R> {
    #[track_caller]
    pub(super) fn with_produce<Q: Regs>(self, produce: Rc<ProduceHook<'h, In, Out, Q>>) -> Hooks<'h, In, Out, Q> {
        let mut faults = self.faults;
        if self.consume.is_some() {
            faults.push((SourceLine::caller(), MisuseKind::HookOrder));
        }
        let (input_shape, output_shape, at) = (self.input_shape, self.output_shape, self.at);
        let (given_at, last_per) = ([SourceLine::caller(), at.clone()], self.last_per);
        Hooks { produce, given_at, copies: false, consume: None, input_shape, output_shape, last_per, faults, at }
    }

    #[track_caller]
    pub(super) fn with_consume(mut self, consume: Rc<ConsumeHook<'h, In, Out, R>>) -> Self {
        self.given_at[1] = SourceLine::caller();
        Hooks { consume: Some(consume), ..self }
    }

    #[track_caller]
    pub(super) fn with_chunk_shape(mut self, rows: usize, cols: usize) -> Self {
        let at = SourceLine::caller();
        self.output_shape.get_or_insert(Shape { rows: cols, cols: rows, at: at.clone() });
        self.input_shape = Some(Shape { rows, cols, at });
        self
    }

    #[track_caller]
    pub(super) fn with_output_shape(mut self, rows: usize, cols: usize) -> Self {
        self.output_shape = Some(Shape { rows, cols, at: SourceLine::caller() });
        self
    }

    /// Whether `consume` is the default: it stores.
    pub(super) fn stores(&self) -> bool {
        self.consume.is_none()
    }

    pub(super) fn produce<'t>(&self, c: &Ctx<'t, In, Out>) -> R::Of<'t> {
        let regs = c.run_hook(HookLeg::Produce, &self.given_at[0], || (self.produce)(c));
        if self.last_per > 1 && R::TYPES.len() > 1 {
            let last = LastPart::default();
            R::put(regs, &last);
            let last = last.0.get().expect("regs have a last part");
            c.shared_by(last, self.last_per, &self.given_at[0]);
        }
        regs
    }

    pub(super) fn consume<'t>(&self, c: &Ctx<'t, In, Out>, regs: R::Of<'t>) {
        match &self.consume {
            Some(consume) => c.run_hook(HookLeg::Consume, &self.given_at[1], || consume(c, regs)),
            None => c.run_hook(HookLeg::Consume, &self.at, || R::store(regs, c, &self.at)),
        }
    }
}

impl<In: Element, Out: Element, R: Regs> Hooks<'_, In, Out, R> {
    /// A hash of what the hooks do to one chunk, as `map` would run them: the same on all ranks whose hooks are the same program with the same
    /// constants, whatever the collective's algorithm, protocol and length.
    pub(super) fn hash(&self) -> Result<u64, BuildError> {
        // Stands for the length of a chunk that has no shape.
        const LEN: usize = 1 << 12;
        let len = |shape: &Option<Shape>| shape.as_ref().map_or(LEN, |shape| shape.rows * shape.cols);
        let (inp, out) = (Tensor::<In>::zeros(len(&self.input_shape)), Tensor::<Out>::zeros(len(&self.output_shape)));
        let traced = kernel_at("hooks", self.at.clone(), |k| {
            let (input, output) = (k.input(&inp).named("input"), k.output(&out).named("output"));
            let (input, output) =
                (chunk(input, Holds::Input, &self.input_shape), chunk(output, Holds::Output, &self.output_shape));
            let element = |c: Ctx<'_, In, Out>| self.consume(&c, self.produce(&c));
            k.main(|r| match self.output_shape {
                Some(_) => r.each2(output.rows(), output.cols(), |row, col| {
                    let pos = row * output.cols() as i64 + col;
                    element(Ctx::new(r, input, output).row(row).col(col).pos(pos).build());
                }),
                None => r.each(output.len(), |i| element(Ctx::new(r, input, output).pos(i).build())),
            });
        })?;
        Ok(ir::fingerprint(&traced.kernel))
    }
}

/// The last of some parts.
#[derive(Default)]
struct LastPart(Cell<Option<ir::Value>>);

impl<'t> PutParts<'t> for LastPart {
    fn put<T: Element>(&self, _: usize, x: Value<'t, T>) {
        self.0.set(Some(x.id()));
    }
}

/// A view of the input or the output with its shape, if it has one.
pub(super) fn chunk<'t, T: Element>(view: View<'t, T>, holds: Holds, shape: &Option<Shape>) -> Chunk<'t, T> {
    let (view, of) = (view.held_as(holds), if holds == Holds::Output { "output" } else { "input" });
    match shape {
        Some(shape) => view.chunk_shape(of, (shape.rows, shape.cols), &shape.at).into(),
        None => view.into(),
    }
}

/// Looks, in a kernel whose hooks are traced, for reads of memory that is written meanwhile.
#[derive(Default)]
pub(super) struct OverlapCheck(RefCell<Option<Overlap>>);

impl OverlapCheck {
    /// `output`: what the kernel, or a peer, writes during the launch.
    pub(super) fn look(&self, k: &Block<'_>, output: &Memory) {
        self.0.replace(k.overlap(output));
    }

    pub(super) fn result(self) -> Result<(), TransferError> {
        match self.0.into_inner() {
            Some(Overlap { what, bytes }) => Err(TransferError::Overlap { what, bytes }),
            None => Ok(()),
        }
    }
}

/// The methods of a builder that has `hooks: Hooks<'h, In, Out, R>` and `fn with<Q>(self, impl FnOnce(Hooks<R>) -> Hooks<Q>)`.
macro_rules! hook_methods {
    ($Builder:ident<$($life:lifetime),* ; $($extra:ident),*>) => {
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
        /// # Ok::<(), tilewire::RunError>(())
        /// ```
        #[track_caller]
        pub fn chunk_shape(mut self, rows: usize, cols: usize) -> Self {
            self.hooks = self.hooks.with_chunk_shape(rows, cols);
            self
        }

        /// Gives the output chunk a shape of its own.
        #[track_caller]
        pub fn output_shape(mut self, rows: usize, cols: usize) -> Self {
            self.hooks = self.hooks.with_output_shape(rows, cols);
            self
        }

        /// What is sent for a position of the output chunk. Without a consume hook it is stored there.
        #[track_caller]
        pub fn produce<Q: Element>(
            self,
            hook: impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, Q> + 'h,
        ) -> $Builder<$($life,)* $($extra,)* In, Out, Q> {
            self.with(std::rc::Rc::new(hook))
        }

        /// Like `produce`, for two values that travel side by side, such as a payload and its scale.
        ///
        /// ```
        /// use tilewire::{F8E4M3, Tensor, map};
        /// let (out, inp) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(64));
        /// map(&out, &inp)
        ///     .produce2(|c| {
        ///         let x = c.input.load(c.pos());
        ///         let scale = (x.abs().group_max(32) / 448.0).max(f32::MIN_POSITIVE); // never 0
        ///         ((x / scale).cast::<F8E4M3>(), scale)
        ///     })
        ///     .consume(|c, (payload, scale)| c.output.store(c.pos(), payload.cast::<f32>() * scale))
        ///     .run()?;
        /// assert_eq!(out.to_vec(), [0.0; 64]); // without the `max` a group of zeros would be 0 / 0
        /// # Ok::<(), tilewire::RunError>(())
        /// ```
        #[track_caller]
        pub fn produce2<A: Element, B: Element>(
            self,
            hook: impl for<'t> Fn(&Ctx<'t, In, Out>) -> (Value<'t, A>, Value<'t, B>) + 'h,
        ) -> $Builder<$($life,)* $($extra,)* In, Out, (A, B)> {
            self.with(std::rc::Rc::new(hook))
        }

        /// Like `produce`, for three values that travel side by side.
        #[track_caller]
        pub fn produce3<A: Element, B: Element, C: Element>(
            self,
            hook: impl for<'t> Fn(&Ctx<'t, In, Out>) -> (Value<'t, A>, Value<'t, B>, Value<'t, C>) + 'h,
        ) -> $Builder<$($life,)* $($extra,)* In, Out, (A, B, C)> {
            self.with(std::rc::Rc::new(hook))
        }

        /// Says that the last of the values that travel is the same for every `group` neighbouring positions (a scale), so that it travels
        /// once for them, beside the payload. Both sides say it. A value that is not seen to be so is a misuse.
        ///
        /// ```
        /// use tilewire::{F8E4M3, Tensor, hooks, map};
        /// let (out, inp) = (Tensor::<f32>::zeros(256), Tensor::<f32>::zeros(256));
        /// map(&out, &inp)
        ///     .produce2(hooks::quantise(F8E4M3::MAX, 128))
        ///     .last_per(128)
        ///     .consume(hooks::dequantise())
        ///     .run()?;
        /// # Ok::<(), tilewire::RunError>(())
        /// ```
        ///
        /// Packets are small, and carry all values for every position all the same.
        pub fn last_per(mut self, group: usize) -> Self {
            self.hooks.last_per = group.max(1);
            self
        }

        /// What happens with what arrives for a position of the output chunk; give it after `produce`.
        #[track_caller]
        pub fn consume(mut self, hook: impl for<'t> Fn(&Ctx<'t, In, Out>, R::Of<'t>) + 'h) -> Self {
            self.hooks = self.hooks.with_consume(std::rc::Rc::new(hook));
            self
        }
    };
}
pub(super) use hook_methods;
