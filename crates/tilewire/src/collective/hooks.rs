//! The two hooks of a collective and the shape of its chunks: what every builder collects.

use crate::hook::{AnyCtx, Block, BuildError, Chunk, Holds, HookLeg, MisuseKind, Overlap, Payload, View, kernel_at};
use crate::ir::{self, SourceLine, Type};
use crate::tensor::{AnyTensor, Memory};
use crate::transport::TransferError;
use std::cell::RefCell;
use std::rc::Rc;

/// A produce hook: the user's closure behind one type, so that nothing below the builders is compiled for it.
pub(super) type ProduceHook<'h> = dyn for<'t> Fn(&AnyCtx<'t>) -> Payload<'t> + 'h;
/// A consume hook.
pub(super) type ConsumeHook<'h> = dyn for<'t> Fn(&AnyCtx<'t>, Payload<'t>) + 'h;

/// Rows and columns, and who said so.
#[derive(Clone)]
pub(super) struct Shape {
    pub rows: usize,
    pub cols: usize,
    pub at: SourceLine,
}

/// What a user said about the elements of a collective.
pub(super) struct Hooks<'h> {
    produce: Rc<ProduceHook<'h>>,
    /// The types of what `produce` gives to `consume`.
    pub types: &'static [Type],
    /// The element types of the input and the output.
    elements: [Type; 2],
    /// Where the hooks were given: a mistake in one of the library's is reported there.
    given_at: [SourceLine; 2],
    /// Whether `produce` is the default: it copies the input.
    pub copies: bool,
    consume: Option<Rc<ConsumeHook<'h>>>,
    pub input_shape: Option<Shape>,
    pub output_shape: Option<Shape>,
    /// How many neighbours share the last of several values.
    pub last_per: usize,
    pub faults: Vec<(SourceLine, MisuseKind)>,
    /// Where the collective is called.
    pub at: SourceLine,
}

impl<'h> Hooks<'h> {
    /// No hooks: the input, of elements of `types`, is copied.
    pub(super) fn copy(types: &'static [Type], output: Type, at: SourceLine) -> Self {
        let line = at.clone();
        Hooks {
            produce: Rc::new(move |c: &AnyCtx<'_>| c.load_input(&line).into()),
            types,
            elements: [types[0], output],
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

    #[track_caller]
    pub(super) fn set_produce(&mut self, types: &'static [Type], produce: Rc<ProduceHook<'h>>) {
        if self.consume.take().is_some() {
            self.faults.push((SourceLine::caller(), MisuseKind::HookOrder));
        }
        (self.produce, self.types, self.copies) = (produce, types, false);
        self.given_at = [SourceLine::caller(), self.at.clone()];
    }

    #[track_caller]
    pub(super) fn set_consume(&mut self, consume: Rc<ConsumeHook<'h>>) {
        self.given_at[1] = SourceLine::caller();
        self.consume = Some(consume);
    }

    #[track_caller]
    pub(super) fn set_chunk_shape(&mut self, rows: usize, cols: usize) {
        let shape = Shape { rows, cols, at: SourceLine::caller() };
        self.output_shape.get_or_insert(shape.clone());
        self.input_shape = Some(shape);
    }

    #[track_caller]
    pub(super) fn set_output_shape(&mut self, rows: usize, cols: usize) {
        self.output_shape = Some(Shape { rows, cols, at: SourceLine::caller() });
    }

    /// Whether `consume` is the default: it stores.
    pub(super) fn stores(&self) -> bool {
        self.consume.is_none()
    }

    pub(super) fn produce<'t>(&self, c: &AnyCtx<'t>) -> Payload<'t> {
        let payload = c.run_hook(HookLeg::Produce, &self.given_at[0], || (self.produce)(c));
        if let ([.., last], true) = (payload.parts(), self.last_per > 1 && self.types.len() > 1) {
            c.shared_by(last.ir, self.last_per, &self.given_at[0]);
        }
        payload
    }

    pub(super) fn consume<'t>(&self, c: &AnyCtx<'t>, payload: Payload<'t>) {
        match &self.consume {
            Some(consume) => c.run_hook(HookLeg::Consume, &self.given_at[1], || consume(c, payload)),
            None => {
                let [_, output] = self.elements;
                c.run_hook(HookLeg::Consume, &self.at, || c.store_output(payload, output, &self.at));
            }
        }
    }

    /// A hash of what the hooks do to one chunk, as `map` would run them: the same on all ranks whose hooks are the same program with the same
    /// constants, whatever the collective's algorithm, protocol and length.
    pub(super) fn hash(&self) -> Result<u64, BuildError> {
        // Stands for the length of a chunk that has no shape.
        const LEN: usize = 1 << 12;
        let len = |shape: &Option<Shape>| shape.as_ref().map_or(LEN, |shape| shape.rows * shape.cols);
        let [input, output] = self.elements;
        let (inp, out) =
            (AnyTensor::zeros(input, len(&self.input_shape)), AnyTensor::zeros(output, len(&self.output_shape)));
        let traced = kernel_at("hooks", self.at.clone(), |k| {
            let (input, output) = (k.any_input(&inp).named("input"), k.any_output(&out).named("output"));
            let (input, output) =
                (chunk(input, Holds::Input, &self.input_shape), chunk(output, Holds::Output, &self.output_shape));
            let element = |c: AnyCtx<'_>| self.consume(&c, self.produce(&c));
            k.main(|r| match self.output_shape {
                Some(_) => r.each2(output.rows(), output.cols(), |row, col| {
                    let pos = row * output.cols() as i64 + col;
                    element(AnyCtx::new(r, input, output).row(row).col(col).pos(pos).build());
                }),
                None => r.each(output.len(), |i| element(AnyCtx::new(r, input, output).pos(i).build())),
            });
        })?;
        Ok(ir::fingerprint(&traced.kernel))
    }
}

/// A view of the input or the output with its shape, if it has one.
pub(super) fn chunk<'t>(view: View<'t, ()>, holds: Holds, shape: &Option<Shape>) -> Chunk<'t, ()> {
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

/// The methods of a typed builder over one that has `hooks: Hooks<'h>`: `$Builder { any, types }`.
macro_rules! hook_methods {
    ($Builder:ident<$($life:lifetime),*>) => {
        /// The same builder, for a payload of other types.
        #[track_caller]
        fn with<Q: Regs>(mut self, produce: Rc<super::hooks::ProduceHook<'h>>) -> $Builder<$($life,)* In, Out, Q> {
            self.any.hooks.set_produce(Q::TYPES, produce);
            $Builder { any: self.any, types: PhantomData }
        }

        /// Gives the chunks a shape: input and output chunk have `rows` rows of `cols` elements, unless
        /// [`output_shape`](Self::output_shape) says otherwise for the output. Hooks are called for every position of the output.
        ///
        /// ```
        /// use tilewire::{Tensor, map};
        /// let (out, inp) = (Tensor::<f32>::zeros(6), Tensor::<f32>::zeros(6));
        /// map(&out, &inp).chunk_shape(2, 3).produce(|c| -c.input.at(c.row(), c.col())).trace()?;
        /// # Ok::<(), tilewire::RunError>(())
        /// ```
        #[track_caller]
        pub fn chunk_shape(mut self, rows: usize, cols: usize) -> Self {
            self.any.hooks.set_chunk_shape(rows, cols);
            self
        }

        /// Gives the output chunk a shape of its own: that of a transpose, say.
        ///
        /// ```text
        ///   chunk_shape(2, 3)       a  b  c                 a  d         output (row, col)
        ///   output_shape(3, 2)      d  e  f       ──▶       b  e           = input (col, row)
        ///                                                   c  f
        /// ```
        ///
        /// ```
        /// use tilewire::{Tensor, map};
        /// let (out, inp) = (Tensor::<i32>::zeros(6), Tensor::from_slice(&[1, 2, 3, 4, 5, 6]));
        /// map(&out, &inp).chunk_shape(2, 3).output_shape(3, 2).produce(|c| c.input.at(c.col(), c.row())).run()?;
        /// assert_eq!(out.to_vec(), [1, 4, 2, 5, 3, 6]);
        /// # Ok::<(), tilewire::RunError>(())
        /// ```
        #[track_caller]
        pub fn output_shape(mut self, rows: usize, cols: usize) -> Self {
            self.any.hooks.set_output_shape(rows, cols);
            self
        }

        /// What is sent for a position of the output chunk. Without a consume hook it is stored there.
        #[track_caller]
        pub fn produce<Q: Element>(
            self,
            hook: impl for<'t> Fn(&Ctx<'t, In, Out>) -> Value<'t, Q> + 'h,
        ) -> $Builder<$($life,)* In, Out, Q> {
            self.with::<Q>(Rc::new(move |c: &AnyCtx<'_>| AnyValue::from(hook(&c.typed())).into()))
        }

        /// What happens with what arrives for a position of the output chunk; give it after `produce`.
        #[track_caller]
        pub fn consume(mut self, hook: impl for<'t> Fn(&Ctx<'t, In, Out>, R::Of<'t>) + 'h) -> Self {
            self.any.hooks.set_consume(Rc::new(move |c, payload| hook(&c.typed(), R::restore(payload))));
            self
        }
    };
}
pub(super) use hook_methods;

/// The methods of a builder whose payload may be a tuple. A reduction combines single values, and has none of them.
macro_rules! tuple_methods {
    ($Builder:ident<$($life:lifetime),*>) => {
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
        ) -> $Builder<$($life,)* In, Out, (A, B)> {
            self.with::<(A, B)>(Rc::new(move |c: &AnyCtx<'_>| {
                let (a, b) = hook(&c.typed());
                Payload::new(&[a.into(), b.into()])
            }))
        }

        /// Like `produce`, for three values that travel side by side.
        #[track_caller]
        pub fn produce3<A: Element, B: Element, C: Element>(
            self,
            hook: impl for<'t> Fn(&Ctx<'t, In, Out>) -> (Value<'t, A>, Value<'t, B>, Value<'t, C>) + 'h,
        ) -> $Builder<$($life,)* In, Out, (A, B, C)> {
            self.with::<(A, B, C)>(Rc::new(move |c: &AnyCtx<'_>| {
                let (a, b, d) = hook(&c.typed());
                Payload::new(&[a.into(), b.into(), d.into()])
            }))
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
            self.any.hooks.last_per = group.max(1);
            self
        }
    };
}
pub(super) use tuple_methods;
