//! The two hooks of a collective and the shape of its chunks, as every builder collects them.

use super::error::RunError;
use crate::hook::{
    AnyCtx, Block, BuildError, Chunk, Holds, HookLeg, MisuseKind, Overlap, Payload, RoleCtx, Value, View, kernel_at,
};
use crate::ir::{self, SourceLine, Type};
use crate::tensor::{AnyTensor, Grid, Memory};
use crate::transport::TransferError;
use std::cell::RefCell;
use std::rc::Rc;

/// A produce hook: the user's closure behind one type, so that nothing below the builders is compiled per closure.
pub(super) type ProduceHook<'h> = dyn for<'t> Fn(&AnyCtx<'t>) -> Payload<'t> + 'h;
/// A consume hook.
pub(super) type ConsumeHook<'h> = dyn for<'t> Fn(&AnyCtx<'t>, Payload<'t>) + 'h;

/// Rows and columns, and the line that specified them.
#[derive(Clone)]
pub(super) struct Shape {
    pub rows: usize,
    pub cols: usize,
    pub at: SourceLine,
    /// True if the user did not say it: a tensor has these rows. Its tiles are whole rows, since nothing says that
    /// columns are read.
    pub is_of_tensor: bool,
}

/// A chunk of a tensor, before it is cut: its length, and its rows and columns if the tensor has several rows.
#[derive(Clone, Copy)]
pub(super) struct ChunkForm {
    pub len: usize,
    pub grid: Option<Grid>,
}

/// What the user specified for the elements of a collective: hooks, types and shapes.
pub(super) struct Hooks<'h> {
    produce: Rc<ProduceHook<'h>>,
    /// The types that `produce` passes to `consume`.
    pub types: &'static [Type],
    /// The element types of the input and the output.
    elements: [Type; 2],
    /// The lines where `produce` and `consume` were set. A mistake inside a hook of the library's own is reported
    /// there.
    given_at: [SourceLine; 2],
    /// True if `produce` is the default, which copies the input.
    pub copies: bool,
    consume: Option<Rc<ConsumeHook<'h>>>,
    /// The shapes that the user gave the chunks of the input and the output.
    said: [Option<Shape>; 2],
    /// The shapes of the chunks: the user's, or those of tensors that have several rows.
    pub input_shape: Option<Shape>,
    pub output_shape: Option<Shape>,
    /// How many neighbours share the last of several values.
    pub last_per: usize,
    pub faults: Vec<(SourceLine, MisuseKind)>,
    /// Where the collective is called.
    pub at: SourceLine,
}

impl<'h> Hooks<'h> {
    /// No hooks: copies the input, whose elements are of `types`.
    pub(super) fn copy(types: &'static [Type], output: Type, at: SourceLine) -> Self {
        let line = at.clone();
        Hooks {
            produce: Rc::new(move |c: &AnyCtx<'_>| c.load_input(&line).into()),
            types,
            elements: [types[0], output],
            given_at: [at.clone(), at.clone()],
            copies: true,
            consume: None,
            said: [None, None],
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
        let shape = Shape { rows, cols, at: SourceLine::caller(), is_of_tensor: false };
        self.said[1].get_or_insert(shape.clone());
        self.said[0] = Some(shape);
    }

    #[track_caller]
    pub(super) fn set_output_shape(&mut self, rows: usize, cols: usize) {
        self.said[1] = Some(Shape { rows, cols, at: SourceLine::caller(), is_of_tensor: false });
    }

    /// Settles the shapes of the chunks of the input and the output, which may be absent. A tensor of several rows
    /// gives its chunks a shape, unless the user gave one. A chunk without a shape takes that of the other one, if it
    /// is as long.
    pub(super) fn shape_chunks(&mut self, [inp, out]: [Option<ChunkForm>; 2]) {
        let at = &self.at;
        let of = |chunk: Option<ChunkForm>| {
            let Grid { rows, cols, .. } = chunk?.grid?;
            Some(Shape { rows, cols, at: at.clone(), is_of_tensor: true })
        };
        let fits = |chunk: Option<ChunkForm>, shape: &Shape| {
            chunk.is_none_or(|chunk| chunk.grid.is_none() && chunk.len == shape.rows * shape.cols)
        };
        let [said_input, said_output] = self.said.clone();
        let (of_input, of_output) = (of(inp), of(out));
        let other = of_input.clone().filter(|shape| fits(out, shape));
        let output = said_output.or(of_output).or(other);
        let other = output.clone().filter(|shape| shape.is_of_tensor && fits(inp, shape));
        self.input_shape = said_input.or(of_input).or(other);
        self.output_shape = output;
    }

    /// The shape that tiles are cut from. One row of a tensor is cut like a chunk without a shape, since a rank may
    /// have it as a tensor of one dimension.
    pub(super) fn tiled_shape(&self) -> Option<&Shape> {
        self.output_shape.as_ref().filter(|shape| !shape.is_of_tensor || shape.rows > 1)
    }

    /// How many neighbours share one stored value of the last part on this link's way. Groups never cross rows. Slots
    /// without gaps (`is_dense`) hold a narrow tile's rows one right after another, so there a group could begin in the
    /// middle of another row's: every element then has a value of its own.
    pub(super) fn stored_per(&self, is_dense: bool) -> usize {
        let tears = |shape: &Shape| shape.rows > 1 && !shape.cols.is_multiple_of(self.last_per);
        if is_dense && self.output_shape.as_ref().is_some_and(tears) { 1 } else { self.last_per }
    }

    /// True if there are no hooks: the input is copied and stored.
    pub(super) fn is_copy(&self) -> bool {
        self.copies && self.stores()
    }

    /// True if `consume` is the default, which stores.
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

    /// A hash of what the hooks do to one chunk, as `map` would run them. It is the same on all ranks whose hooks are
    /// the same program with the same constants, whatever the collective's algorithm, protocol and length.
    pub(super) fn hash(&self) -> Result<u64, BuildError> {
        // Stands for the length of a chunk without a shape.
        const LEN: usize = 1 << 12;
        let len = |shape: &Option<Shape>| shape.as_ref().map_or(LEN, |shape| shape.rows * shape.cols);
        let [input, output] = self.elements;
        let (inp, out) =
            (AnyTensor::zeros(input, len(&self.input_shape)), AnyTensor::zeros(output, len(&self.output_shape)));
        let traced = kernel_at("hooks", self.at.clone(), |k| {
            let chunks = self.chunks(k, &inp, &out);
            k.main(|r| self.pass(r, chunks, None));
        })?;
        Ok(ir::fingerprint(&traced.kernel))
    }

    /// Checks that the hooks may use this tensor, or a chunk of the same length, as both input and output: every
    /// element must read only the position that it writes.
    pub(super) fn check_in_place(&self, x: &AnyTensor) -> Result<(), RunError> {
        let overlap = OverlapCheck::default();
        kernel_at("hooks", self.at.clone(), |k| {
            let chunks = self.chunks(k, x, x);
            k.main(|r| self.pass(r, chunks, None));
            overlap.look(k, x.memory());
        })?;
        Ok(overlap.result()?)
    }

    /// Whole tensors as the chunks of the hooks.
    pub(super) fn chunks<'t>(&self, k: &Block<'t>, inp: &AnyTensor, out: &AnyTensor) -> [Chunk<'t, ()>; 2] {
        let (input, output) = (k.any_input(inp).named("input"), k.any_output(out).named("output"));
        [chunk(input, Holds::Input, &self.input_shape), chunk(output, Holds::Output, &self.output_shape)]
    }

    /// Passes every element of the output, or a block's share of its rows or elements, through both hooks.
    pub(super) fn pass<'t>(&self, r: &RoleCtx<'t>, [input, output]: [Chunk<'t, ()>; 2], share: Option<usize>) {
        let shaped = self.output_shape.is_some();
        let outer = if shaped { output.rows() } else { output.len() } as i64;
        let start = share.map(|share| r.block() * share as i64);
        let extent = match start.zip(share) {
            Some((start, share)) => (outer - start).min(share as i64),
            None => r.constant(outer),
        };
        let offset = |i: Value<'t, i64>| start.map_or(i, |start| start + i);
        let element = |c: AnyCtx<'t>| self.consume(&c, self.produce(&c));
        if shaped {
            r.each2(extent, output.cols(), |row, col| {
                let row = offset(row).within(output.rows());
                let pos = row * output.cols() as i64 + col;
                element(AnyCtx::new(r, input, output).row(row).col(col).pos(pos).build());
            });
        } else {
            r.each(extent, |i| element(AnyCtx::new(r, input, output).pos(offset(i)).build()));
        }
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

/// While a kernel with hooks is traced, looks for reads of memory that the same launch writes.
#[derive(Default)]
pub(super) struct OverlapCheck(RefCell<Option<Overlap>>);

impl OverlapCheck {
    /// `output`: the memory that the kernel, or a peer, writes during the launch.
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
