//! Tensors of rows and columns with a row stride, in every collective, compared with plain loops over matrices.
//! Everything beside the tensors is a guard.

use crate::case::{SMALL, TYPES, Way, assert_same, bits, data, everything, joined, seed, threads};
use std::ops::Range;
use tilewire::collective::{Collective, Rounds, Travels};
use tilewire::hook::Regs;
use tilewire::ir::Type;
use tilewire::ir::scalar::{Element, Number};
use tilewire::link::{Transport, Window};
use tilewire::tensor::Axis;
use tilewire::transport::{Rank, RankError, TransferError, World};
use tilewire::{
    Bf16, F8E4M3, F8E5M2, F16, RunError, Tensor, all_gather, all_reduce, all_to_all, broadcast, gather, map, recv,
    reduce_scatter, scatter, send, sendrecv,
};
use tilewire_testkit::random::Random;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    AllToAll,
    AllGather,
    Broadcast,
    Gather,
    Scatter,
    SendRecv,
    /// Every second rank sends to the next one.
    Pairs,
    /// One rank without others.
    Map,
    ReduceScatter,
    AllReduce,
}

const KINDS: [Kind; 10] = [
    Kind::AllToAll,
    Kind::AllGather,
    Kind::Broadcast,
    Kind::Gather,
    Kind::Scatter,
    Kind::SendRecv,
    Kind::Pairs,
    Kind::Map,
    Kind::ReduceScatter,
    Kind::AllReduce,
];

/// The place of a matrix in a larger one.
#[derive(Clone, Copy, Debug)]
struct Place {
    first_row: usize,
    left: usize,
    right: usize,
}

/// Chunks of `rows` rows of `cols` columns.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    root: Rank,
    rows: usize,
    cols: usize,
    axes: [Axis; 2],
    places: [Place; 2],
    /// True if the rows of the input are one row of memory.
    is_expanded: bool,
    way: Way,
    blocks: usize,
    rounds: Rounds,
}

/// The filler beside a tensor.
const GUARD: u64 = 0x5c5c_5c5c_5c5c_5c5c;

impl Case {
    fn random(numbers: &mut Random, kind: Kind, ranks: usize) -> Case {
        let moves = ![Kind::ReduceScatter, Kind::AllReduce].contains(&kind);
        let mut way = numbers.pick(&[Way::Chosen, Way::Packet, Way::staged(256, 2), Way::staged(512, 7), Way::Direct]);
        if moves && numbers.below(6) == 0 {
            way = Way::bulk(256, 4);
        }
        let (rows, cols) = match way {
            // 512 bytes a block.
            Way::Packet => numbers.pick(&[(1, 1), (3, 1), (2, 5), (7, 3), (1, 9), (4, 4), (0, 3)]),
            _ => {
                numbers.pick(&[(1, 1), (5, 1), (64, 1), (2, 5), (7, 33), (33, 7), (3, 1000), (40, 16), (1, 77), (0, 4)])
            }
        };
        let mut axes = [Axis::Rows, Axis::Cols].map(|_| numbers.pick(&[Axis::Rows, Axis::Cols]));
        if way == Way::Direct && kind == Kind::Gather {
            axes[1] = Axis::Rows;
        }
        if way == Way::Direct && kind == Kind::ReduceScatter {
            axes[0] = Axis::Rows;
        }
        let place = || (numbers.below(3), numbers.pick(&[0, 0, 1, 5]), numbers.pick(&[0, 1, 8]));
        let mut place = place;
        let mut places = [(), ()].map(|()| {
            let (first_row, left, right) = place();
            Place { first_row, left, right }
        });
        // Windows are contiguous.
        let whole = Place { first_row: 0, left: 0, right: 0 };
        match (way, kind) {
            (Way::Direct, Kind::ReduceScatter) => places[0] = whole,
            (Way::Direct, Kind::AllReduce) => places = [whole; 2],
            (Way::Direct, _) => places[1] = whole,
            _ => {}
        }
        let root = Rank::new(numbers.below(ranks) as u32);
        let (blocks, rounds) =
            (numbers.pick(&[1, 1, 2, 3]), numbers.pick(&[Rounds::Roles, Rounds::Blocks, Rounds::Legs]));
        let from_window = way == Way::Direct && !moves;
        let is_expanded = numbers.below(5) == 0 && !from_window;
        Case { kind, root, rows, cols, axes, places, is_expanded, way, blocks, rounds }
    }

    /// Chunks of the input and of the output.
    fn chunks(&self, ranks: usize) -> [usize; 2] {
        match self.kind {
            Kind::AllToAll => [ranks, ranks],
            Kind::AllGather | Kind::Gather => [1, ranks],
            Kind::Scatter | Kind::ReduceScatter => [ranks, 1],
            Kind::Broadcast | Kind::SendRecv | Kind::Pairs | Kind::Map | Kind::AllReduce => [1, 1],
        }
    }

    /// Rows and columns of a tensor of chunks along an axis.
    fn shape(&self, which: usize, ranks: usize) -> (usize, usize) {
        let chunks = self.chunks(ranks)[which];
        match self.axes[which] {
            Axis::Rows => (self.rows * chunks, self.cols),
            Axis::Cols => (self.rows, self.cols * chunks),
        }
    }

    /// The place of position (row, col) of chunk `k` in its tensor.
    fn at(&self, which: usize, ranks: usize, k: usize, row: usize, col: usize) -> usize {
        let (_, cols) = self.shape(which, ranks);
        match self.axes[which] {
            Axis::Rows => (k * self.rows + row) * cols + col,
            Axis::Cols => row * cols + k * self.cols + col,
        }
    }

    /// The elements of an input. `row` computes one row of the given number of elements.
    fn input<T: Element>(&self, ranks: usize, row: impl Fn(usize) -> Vec<T>) -> Vec<T> {
        let (rows, cols) = self.shape(0, ranks);
        if self.is_expanded { row(cols).repeat(rows) } else { row(rows * cols) }
    }

    /// The chunk of the input of rank `from` that becomes chunk `k` of the output of rank `me`.
    fn source(&self, me: Rank, k: usize, ranks: usize) -> Option<(Rank, usize)> {
        let rank = Rank::new(k as u32);
        match self.kind {
            Kind::AllToAll => Some((rank, me.index())),
            Kind::AllGather => Some((rank, 0)),
            Kind::Broadcast => Some((self.root, 0)),
            Kind::Gather => (me == self.root).then_some((rank, 0)),
            Kind::Scatter => Some((self.root, me.index())),
            Kind::SendRecv => Some((me.after(ranks - 1, ranks), 0)),
            Kind::Pairs => (me.index() % 2 == 1).then(|| (me.after(ranks - 1, ranks), 0)),
            Kind::Map => Some((me, 0)),
            Kind::ReduceScatter | Kind::AllReduce => unreachable!("several sources"),
        }
    }
}

/// A tensor in a larger matrix full of guards.
struct Guarded<T> {
    whole: Tensor<T>,
    tensor: Tensor<T>,
    inside: Vec<Range<usize>>,
}

impl<T: Element> Guarded<T> {
    /// The input of a case, with these elements.
    fn input(case: &Case, ranks: usize, elements: &[T]) -> Guarded<T> {
        let (rows, cols) = case.shape(0, ranks);
        let Place { left, right, .. } = case.places[0];
        if !case.is_expanded || rows * cols == 0 {
            let guarded = Guarded::new((rows, cols), case.places[0]);
            guarded.tensor.copy_from(elements);
            return guarded;
        }
        // The same row again and again, between guards.
        let whole = Tensor::zeros(left + cols + right);
        whole.fill(T::from_bits(GUARD));
        let row = whole.slice(left..left + cols);
        row.copy_from(&elements[..cols]);
        let tensor = row.strided(rows, cols, 0).expect("a row");
        let inside = std::iter::once(left..left + cols).collect();
        Guarded { whole, tensor, inside }
    }

    fn new((rows, cols): (usize, usize), place: Place) -> Guarded<T> {
        let Place { first_row, left, right } = place;
        let (stride, all) = (left + cols + right, first_row + rows + 1);
        let whole = Tensor::zeros(all * stride);
        whole.fill(T::from_bits(GUARD));
        let matrix = whole.reshape(all, stride).expect("as many elements");
        let tensor = matrix.columns(left..left + cols).rows(first_row..first_row + rows);
        let inside = (first_row..first_row + rows).map(|row| row * stride + left..row * stride + left + cols).collect();
        // A part of one row, or an empty part, has no axes.
        let tensor = if rows > 1 { tensor } else { tensor.reshape(rows, cols).unwrap_or(tensor) };
        Guarded { whole, tensor, inside }
    }

    #[track_caller]
    fn check(&self, what: impl std::fmt::Debug) {
        for (i, x) in self.whole.to_vec().into_iter().enumerate() {
            let is_inside = self.inside.iter().any(|inside| inside.contains(&i));
            let guard = T::from_bits(GUARD).to_bits();
            assert!(is_inside || x.to_bits() == guard, "element {i} beside the tensor was written: {what:?}");
        }
    }
}

fn configured<'h, 'l, In: Element, Out: Element, R: Regs, K: Travels>(
    of: Collective<'h, 'l, In, Out, R, K>,
    case: &Case,
) -> Collective<'h, 'l, In, Out, R, K> {
    of.config(case.way.config(case.blocks)).rounds(case.rounds).along(case.axes[0]).output_along(case.axes[1])
}

/// The expected output of a rank, or `None` if it has none.
fn expected<T: Element>(case: &Case, me: Rank, ranks: usize, input: &dyn Fn(Rank) -> Vec<T>) -> Option<Vec<T>> {
    let (rows, cols) = case.shape(1, ranks);
    let mut out = vec![T::from_bits(0); rows * cols];
    for k in 0..case.chunks(ranks)[1] {
        let (from, chunk) = case.source(me, k, ranks)?;
        let data = input(from);
        for (row, col) in (0..case.rows).flat_map(|row| (0..case.cols).map(move |col| (row, col))) {
            out[case.at(1, ranks, k, row, col)] = data[case.at(0, ranks, chunk, row, col)];
        }
    }
    Some(out)
}

fn moves<T: Element>(case: &Case, world: &World, link: &dyn Transport, seed: u64) -> Result<(), RankError> {
    let (me, ranks) = (world.rank(), world.size());
    let elements = |rank: Rank| case.input(ranks, |len| data::<T>(seed, rank, len));
    let inp = Guarded::<T>::input(case, ranks, &elements(me));
    let shape = case.shape(1, ranks);
    let out = Guarded::<T>::new(shape, case.places[1]);
    let is_direct = case.way == Way::Direct && case.kind != Kind::Map;
    let window = if is_direct { Some(Window::<T>::allocate(link, shape.0 * shape.1)?) } else { None };
    let to = window.as_ref().map(|window| window.tensor().reshape(shape.0, shape.1).expect("a shape of it"));
    let to = to.as_ref().unwrap_or(&out.tensor);
    let (next, before) = (me.after(1, ranks), me.after(ranks - 1, ranks));
    let op = match case.kind {
        Kind::Map => None,
        Kind::Pairs if me.index() % 2 == 1 => Some(recv(link, to, before)),
        Kind::Pairs if next.index() == 0 => None,
        Kind::Pairs => Some(send(link, &inp.tensor, next)),
        Kind::AllToAll => Some(all_to_all(link, to, &inp.tensor)),
        Kind::AllGather => Some(all_gather(link, to, &inp.tensor)),
        Kind::Broadcast => Some(broadcast(link, to, &inp.tensor, case.root)),
        Kind::Gather => Some(gather(link, to, &inp.tensor, case.root)),
        Kind::Scatter => Some(scatter(link, to, &inp.tensor, case.root)),
        _ => Some(sendrecv(link, to, &inp.tensor, next, before)),
    };
    let mut op = match (op.map(|op| configured(op, case)), &window) {
        (Some(op), Some(window)) => Some(op.window(window).build()?),
        (Some(op), None) => Some(op.build()?),
        (None, _) if case.kind == Kind::Map => Some(map(to, &inp.tensor).build()?),
        (None, _) => None,
    };
    for _ in 0..2 {
        op.iter_mut().try_for_each(|op| op.run())?;
    }
    let what = (T::TYPE, case, me, seed);
    if let Some(must) = expected(case, me, ranks, &elements) {
        same(&to.to_vec(), &must, what);
    }
    same(&inp.tensor.to_vec(), &elements(me), what);
    inp.check(what);
    out.check(what);
    Ok(())
}

/// Compares bits, except for bools, whose loads normalise them.
#[track_caller]
fn same<T: Element>(is: &[T], must: &[T], what: impl std::fmt::Debug) {
    if T::TYPE == Type::Bool {
        let truth = |values: &[T]| bits(values).into_iter().map(|bits| bits != 0).collect::<Vec<_>>();
        assert_eq!(truth(is), truth(must), "{what:?}");
    } else {
        assert_same(is, must, what);
    }
}

/// `number` makes a small whole number of the type, so that sums are exact in any order.
fn reduces<T: Number>(
    case: &Case,
    world: &World,
    link: &dyn Transport,
    seed: u64,
    number: fn(u8) -> T,
) -> Result<(), RankError> {
    let (me, ranks) = (world.rank(), world.size());
    let [(inp_rows, inp_cols), (out_rows, out_cols)] = [0, 1].map(|which| case.shape(which, ranks));
    let digits = |rank: Rank| case.input(ranks, |len| data::<u8>(seed, rank, len).iter().map(|x| x % 4).collect());
    let elements = |rank: Rank| digits(rank).into_iter().map(number).collect::<Vec<T>>();
    let inp = Guarded::<T>::input(case, ranks, &elements(me));
    let out = Guarded::<T>::new((out_rows, out_cols), case.places[1]);
    let windows = match case.way {
        Way::Direct => {
            Some([Window::<T>::allocate(link, inp_rows * inp_cols)?, Window::allocate(link, out_rows * out_cols)?])
        }
        _ => None,
    };
    let from = windows.as_ref().map(|[window, _]| window.tensor().reshape(inp_rows, inp_cols).expect("a shape of it"));
    let to = windows.as_ref().filter(|_| case.kind == Kind::AllReduce);
    let to = to.map(|[_, window]| window.tensor().reshape(out_rows, out_cols).expect("a shape of it"));
    if let Some(from) = &from {
        from.copy_from(&elements(me));
    }
    let (from, to) = (from.as_ref().unwrap_or(&inp.tensor), to.as_ref().unwrap_or(&out.tensor));
    let op = match case.kind {
        Kind::AllReduce => all_reduce(link, to, from),
        _ => reduce_scatter(link, to, from),
    };
    let mut op = configured(op, case);
    if let Some([first, second]) = &windows {
        op = if case.kind == Kind::AllReduce { op.window(first).window(second) } else { op.window(first) };
    }
    op.run()?;
    let mut must = vec![0; out_rows * out_cols];
    let chunk = if case.kind == Kind::AllReduce { 0 } else { me.index() };
    for rank in Rank::all(ranks) {
        let digits = digits(rank);
        for (row, col) in (0..case.rows).flat_map(|row| (0..case.cols).map(move |col| (row, col))) {
            must[case.at(1, ranks, 0, row, col)] += digits[case.at(0, ranks, chunk, row, col)];
        }
    }
    let what = (T::TYPE, case, me, seed);
    assert_same(&to.to_vec(), &must.into_iter().map(number).collect::<Vec<T>>(), what);
    inp.check(what);
    out.check(what);
    Ok(())
}

type Moves = fn(&Case, &World, &dyn Transport, u64) -> Result<(), RankError>;

/// Runs the test for every element type.
const MOVES: [Moves; TYPES] = [
    moves::<i8>,
    moves::<i16>,
    moves::<i32>,
    moves::<i64>,
    moves::<u8>,
    moves::<u16>,
    moves::<u32>,
    moves::<u64>,
    moves::<F16>,
    moves::<Bf16>,
    moves::<f32>,
    moves::<f64>,
    moves::<F8E4M3>,
    moves::<F8E5M2>,
    moves::<bool>,
];

/// Runs the test for a type of every size, and for every float format but one.
const REDUCES: [Moves; 8] = [
    |case, world, link, seed| reduces::<i8>(case, world, link, seed, |x| x as i8),
    |case, world, link, seed| reduces::<u16>(case, world, link, seed, u16::from),
    |case, world, link, seed| reduces::<u32>(case, world, link, seed, u32::from),
    |case, world, link, seed| reduces::<i64>(case, world, link, seed, i64::from),
    |case, world, link, seed| reduces::<F8E4M3>(case, world, link, seed, |x| F8E4M3::from_f32(x.into())),
    |case, world, link, seed| reduces::<F16>(case, world, link, seed, |x| F16::from_f32(x.into())),
    |case, world, link, seed| reduces::<Bf16>(case, world, link, seed, |x| Bf16::from_f32(x.into())),
    |case, world, link, seed| reduces::<f64>(case, world, link, seed, f64::from),
];

#[test]
pub fn random_rectangles_arrive_as_plain_loops_say_and_nothing_else_is_written() {
    let cases = if everything() { 400 } else { 40 };
    for ranks in [1, 2, 3, 4] {
        threads(ranks, ("rectangles", ranks), |world| {
            let link = joined(world, SMALL)?;
            let mut numbers = Random::new(seed() ^ ranks as u64);
            for _ in 0..cases {
                let kind = numbers.pick(&KINDS);
                let (mut case, ty, seed) = (Case::random(&mut numbers, kind, ranks), numbers.next(), numbers.next());
                if ranks == 1 && [Kind::SendRecv, Kind::Pairs].contains(&kind) {
                    continue;
                }
                let reduces = [Kind::ReduceScatter, Kind::AllReduce].contains(&kind);
                let of_types = if reduces { &REDUCES[..] } else { &MOVES };
                let ty = ty as usize % of_types.len();
                // A message in packets must be small.
                if case.way == Way::Packet && case.rows * case.cols > 16 {
                    case.way = Way::Chosen;
                }
                of_types[ty](&case, world, &link, seed)?;
            }
            Ok(link.close()?)
        });
    }
}

#[test]
pub fn hooks_of_rectangles_have_rows_and_columns_without_being_told() {
    threads(2, "hooks", |world| {
        let link = joined(world, SMALL)?;
        let me = world.rank();
        let matrix = Tensor::from_fn(5 * 12, |i| i as f32 + 1000.0 * me.number() as f32).reshape(5, 12).unwrap();
        // Columns 2..8 are two chunks of [5, 3]. The output has each of them transposed, in a separate matrix.
        let out = Tensor::<f32>::zeros(6 * 7).reshape(6, 7).unwrap();
        all_to_all(&link, &out.columns(1..6), &matrix.columns(2..8))
            .along(Axis::Cols)
            .output_along(Axis::Rows)
            .produce(|c| c.input.at(c.col(), c.row()) * 2.0)
            .consume(|c, x| c.output.store_at(c.row(), c.col(), x + (c.row() * 100 + c.col()).cast::<f32>()))
            .run()?;
        for (row, col) in (0..6).flat_map(|row| (0..7).map(move |col| (row, col))) {
            let (from, r, c) = (row / 3, row % 3, col as i64 - 1);
            let source = (c * 12 + 2 + 3 * me.index() as i64 + r as i64) as f32 + 1000.0 * from as f32;
            let must = if (0..5).contains(&c) { 2.0 * source + (r * 100) as f32 + c as f32 } else { 0.0 };
            assert_eq!(out.get(row * 7 + col), must, "row {row}, column {col} of rank {me}");
        }
        // A hook that uses positions works, and so does one that reads another element.
        let out = Tensor::<f32>::zeros(30);
        all_to_all(&link, &out, &matrix.columns(2..8))
            .along(Axis::Cols)
            .produce(|c| c.input.load(c.pos()) + c.input.load((c.pos() + 7) % 15))
            .run()?;
        let element =
            |from: usize, pos: usize| (pos / 3 * 12 + 2 + 3 * me.index() + pos % 3) as f32 + 1000.0 * from as f32;
        let of = |i: usize| element(i / 15, i % 15) + element(i / 15, (i % 15 + 7) % 15);
        assert_eq!(out.to_vec(), (0..30).map(of).collect::<Vec<f32>>());
        Ok(link.close()?)
    });
}

#[test]
pub fn in_place_along_columns() {
    for ranks in [2, 3] {
        threads(ranks, "in place along columns", |world| {
            let link = joined(world, SMALL)?;
            let (me, cols) = (world.rank(), 5);
            for way in [Way::staged(256, 2), Way::Packet, Way::Direct] {
                let window = Window::<u16>::allocate(&link, 4 * cols * ranks)?;
                let whole = match way {
                    Way::Direct => window.tensor().clone(),
                    _ => Tensor::zeros(4 * cols * ranks),
                };
                let whole = whole.reshape(4, cols * ranks).unwrap();
                let mine = whole.columns(me.index() * cols..(me.index() + 1) * cols);
                mine.copy_from(&data(seed(), me, 4 * cols));
                let op = all_gather(&link, &whole, &mine).along(Axis::Cols).config(way.config(1));
                if way == Way::Direct {
                    op.window(&window).run()?
                } else {
                    op.run()?
                }
                for rank in Rank::all(ranks) {
                    let theirs = whole.columns(rank.index() * cols..(rank.index() + 1) * cols);
                    assert_same(&theirs.to_vec(), &data::<u16>(seed(), rank, 4 * cols), (way, me, rank));
                }
            }
            // Shifted by one column, the input and the output overlap.
            let whole = Tensor::<u16>::zeros(4 * 16).reshape(4, 16).unwrap();
            let error = all_gather(&link, &whole.columns(0..2 * ranks), &whole.columns(1..3)).along(Axis::Cols).run();
            assert!(matches!(error, Err(RunError::Transfer(TransferError::Overlap { .. }))), "{error:?}");
            // Side by side they do not.
            all_gather(&link, &whole.columns(0..2 * ranks), &whole.columns(2 * ranks..2 * ranks + 2))
                .along(Axis::Cols)
                .run()?;
            all_reduce(&link, &whole.columns(0..2), &whole.columns(0..2)).run()?;
            Ok(link.close()?)
        });
    }
}

#[test]
pub fn one_side_may_be_strided_and_both_must_say_the_same_shape() {
    threads(2, "one side", |world| {
        let link = joined(world, SMALL)?;
        let (first, second) = (Rank::new(0), Rank::new(1));
        let matrix = Tensor::from_fn(6 * 10, |i| i as u32).reshape(6, 10).unwrap();
        let must: Vec<u32> = (0..24).map(|i| i / 4 * 10 + 3 + i % 4).collect();
        if world.rank() == first {
            send(&link, &matrix.columns(3..7), second).run()?;
            send(&link, &matrix.columns(3..7), second).chunk_shape(6, 4).run()?;
            send(&link, &matrix.columns(3..7), second).run()?;
        } else {
            let (rows, flat) = (Tensor::<u32>::zeros(24).reshape(6, 4).unwrap(), Tensor::<u32>::zeros(24));
            recv(&link, &rows, first).run()?;
            recv(&link, &flat, first).chunk_shape(6, 4).run()?;
            assert_eq!((rows.to_vec(), flat.to_vec()), (must.clone(), must.clone()));
            // Into columns of a wider matrix, whose other columns stay.
            let wide = Tensor::from_fn(6 * 9, |_| 7u32).reshape(6, 9).unwrap();
            recv(&link, &wide.columns(2..6), first).run()?;
            let inside = |i: usize| (2..6).contains(&(i % 9)).then(|| must[i / 9 * 4 + i % 9 - 2]);
            assert_eq!(wide.to_vec(), (0..54).map(|i| inside(i).unwrap_or(7)).collect::<Vec<_>>());
        }
        Ok(link.close()?)
    });
    let errors = threads(2, "shapes differ", |world| {
        let link = joined(world, SMALL)?;
        let (first, second) = (Rank::new(0), Rank::new(1));
        let matrix = Tensor::<u32>::zeros(60).reshape(6, 10).unwrap();
        let result = match world.rank() == first {
            true => send(&link, &matrix.columns(3..7), second).run(),
            false => recv(&link, &Tensor::<u32>::zeros(24), first).run(),
        };
        Ok(result.unwrap_err().to_string())
    });
    assert!(errors.iter().any(|text| text.contains("shape") && text.contains("[6, 4]")), "{errors:?}");
}

#[test]
pub fn what_cannot_be_cut_or_written_is_refused_with_the_remedy() {
    threads(2, "refusals", |world| {
        let link = joined(world, SMALL)?;
        let (x, y) = (Tensor::<f32>::zeros(30).reshape(5, 6).unwrap(), Tensor::<f32>::zeros(30).reshape(5, 6).unwrap());
        let rows = all_to_all(&link, &y, &x).run().unwrap_err().to_string();
        assert!(rows.contains("the output has 5 rows") || rows.contains("the input has 5 rows"), "{rows}");
        assert!(rows.contains("along(..)"), "{rows}");
        all_to_all(&link, &y, &x).along(Axis::Cols).run()?;
        let expanded = Tensor::<f32>::zeros(6).strided(5, 6, 0).unwrap();
        let written = all_to_all(&link, &expanded, &x).along(Axis::Cols).run().unwrap_err().to_string();
        assert!(written.contains("row stride 0") && written.contains("strided.rs"), "{written}");
        // As an input it is allowed.
        expanded.strided(1, 6, 6).unwrap_or_else(|_| expanded.rows(0..1)).copy_from(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        all_to_all(&link, &y, &expanded).along(Axis::Cols).run()?;
        let first = 3.0 * world.rank().number() as f32;
        assert_eq!(y.get(29), first + 2.0);
        let reduced = all_reduce(&link, &expanded, &x).run().unwrap_err().to_string();
        assert!(reduced.contains("row stride 0"), "{reduced}");
        let mapped = map(&expanded, &x).run().unwrap_err().to_string();
        assert!(mapped.contains("row stride 0"), "{mapped}");
        // A shape other than that of the rows.
        let shaped = map(&y.columns(0..4), &x.columns(0..4)).chunk_shape(4, 5).run().unwrap_err().to_string();
        assert!(shaped.contains("[5, 4] only"), "{shaped}");
        Ok(link.close()?)
    });
}

#[test]
fn columns_reach_near_and_far_ranks_by_posts() {
    for (seed, domains) in [(1, [&[0, 2][..], &[1]]), (2, [&[0][..], &[1, 2]])] {
        threads(3, ("columns over a mesh", domains), |world| {
            let link = crate::posts::mesh(world, &domains, Some(seed))?;
            let (me, cols, rows) = (world.rank(), 5, 40);
            let whole = Tensor::<u32>::zeros(rows * 20).reshape(rows, 20).unwrap().columns(4..4 + 3 * cols);
            whole.copy_from(&data(seed, me, rows * 3 * cols));
            let must = |row: usize, col: usize| {
                let theirs = data::<u32>(seed, Rank::new((col / cols) as u32), rows * 3 * cols);
                theirs[row * 3 * cols + me.index() * cols + col % cols]
            };
            // Near ranks write a window. Far ranks go through staging, because a post is one run of bytes.
            let window = Window::<u32>::allocate(&link, rows * 3 * cols)?;
            let reached = window.tensor().reshape(rows, 3 * cols).unwrap();
            let private = Tensor::<u32>::zeros(rows * 3 * cols).reshape(rows, 3 * cols).unwrap();
            all_to_all(&link, &reached, &whole).along(Axis::Cols).window(&window).run()?;
            all_to_all(&link, &private, &whole).along(Axis::Cols).run()?;
            for (i, (x, y)) in reached.to_vec().into_iter().zip(private.to_vec()).enumerate() {
                let must = must(i / (3 * cols), i % (3 * cols));
                assert_eq!((x, y), (must, must), "element {i} of rank {me}");
            }
            let mine = private.columns(me.index() * cols..(me.index() + 1) * cols);
            mine.fill(me.number() + 1);
            all_gather(&link, &private, &mine).along(Axis::Cols).run()?;
            assert_eq!(private.rows(rows - 1..rows).to_vec()[cols - 1..=2 * cols], [1, 2, 2, 2, 2, 2, 3]);
            broadcast(&link, &mine, &mine, Rank::new(1)).run()?;
            assert_eq!(mine.to_vec(), vec![2; rows * cols]);
            Ok(link.close()?)
        });
    }
}
