//! Tensors of rows and columns with a row stride, in every collective: against plain loops over matrices. All that lies
//! beside the tensors is a guard.

use crate::case::{SMALL, Way, assert_same, data, everything, joined, seed, threads};
use std::ops::Range;
use tilewire::collective::{Collective, Rounds, Travels};
use tilewire::hook::Regs;
use tilewire::ir::scalar::Element;
use tilewire::link::{AnyTransport, Window};
use tilewire::tensor::Axis;
use tilewire::transport::{Rank, RankError, TransferError, World};
use tilewire::{
    Bf16, RunError, Tensor, all_gather, all_reduce, all_to_all, broadcast, gather, map, recv, reduce_scatter, scatter,
    send, sendrecv,
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
    ReduceScatter,
    AllReduce,
}

const KINDS: [Kind; 8] = [
    Kind::AllToAll,
    Kind::AllGather,
    Kind::Broadcast,
    Kind::Gather,
    Kind::Scatter,
    Kind::SendRecv,
    Kind::ReduceScatter,
    Kind::AllReduce,
];

/// Where a matrix lies in a larger one.
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
    way: Way,
    blocks: usize,
    rounds: Rounds,
}

/// What stands beside a tensor.
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
        // Windows are whole.
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
        Case { kind, root, rows, cols, axes, places, way, blocks, rounds }
    }

    /// Chunks of the input and of the output.
    fn chunks(&self, ranks: usize) -> [usize; 2] {
        match self.kind {
            Kind::AllToAll => [ranks, ranks],
            Kind::AllGather | Kind::Gather => [1, ranks],
            Kind::Scatter | Kind::ReduceScatter => [ranks, 1],
            Kind::Broadcast | Kind::SendRecv | Kind::AllReduce => [1, 1],
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
    fn new((rows, cols): (usize, usize), place: Place) -> Guarded<T> {
        let Place { first_row, left, right } = place;
        let (stride, all) = (left + cols + right, first_row + rows + 1);
        let whole = Tensor::zeros(all * stride);
        whole.fill(T::from_bits(GUARD));
        let matrix = whole.reshape(all, stride).expect("as many elements");
        let tensor = matrix.columns(left..left + cols).rows(first_row..first_row + rows);
        let inside = (first_row..first_row + rows).map(|row| row * stride + left..row * stride + left + cols).collect();
        // A part of one row, or nothing, has no axes.
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

/// What a rank must have in its output: `None` if it has none.
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

fn moves<T: Element>(case: &Case, world: &World, link: &AnyTransport, seed: u64) -> Result<(), RankError> {
    let (me, ranks) = (world.rank(), world.size());
    let [inp_len, out_len] = [0, 1].map(|which| {
        let (rows, cols) = case.shape(which, ranks);
        rows * cols
    });
    let inp = Guarded::<T>::new(case.shape(0, ranks), case.places[0]);
    inp.tensor.copy_from(&data(seed, me, inp_len));
    let out = Guarded::<T>::new(case.shape(1, ranks), case.places[1]);
    let window = if case.way == Way::Direct { Some(Window::<T>::allocate(link, out_len)?) } else { None };
    let shape = case.shape(1, ranks);
    let to = window.as_ref().map(|window| window.tensor().reshape(shape.0, shape.1).expect("a shape of it"));
    let to = to.as_ref().unwrap_or(&out.tensor);
    let op = match case.kind {
        Kind::AllToAll => all_to_all(link, to, &inp.tensor),
        Kind::AllGather => all_gather(link, to, &inp.tensor),
        Kind::Broadcast => broadcast(link, to, &inp.tensor, case.root),
        Kind::Gather => gather(link, to, &inp.tensor, case.root),
        Kind::Scatter => scatter(link, to, &inp.tensor, case.root),
        _ => sendrecv(link, to, &inp.tensor, me.after(1, ranks), me.after(ranks - 1, ranks)),
    };
    let op = configured(op, case);
    let mut op = match &window {
        Some(window) => op.window(window).build()?,
        None => op.build()?,
    };
    op.run()?;
    op.run()?;
    let what = (T::TYPE, case, me, seed);
    if let Some(must) = expected(case, me, ranks, &|rank| data::<T>(seed, rank, inp_len)) {
        assert_same(&to.to_vec(), &must, what);
    }
    assert_same(&inp.tensor.to_vec(), &data::<T>(seed, me, inp_len), what);
    inp.check(what);
    out.check(what);
    Ok(())
}

fn reduces(case: &Case, world: &World, link: &AnyTransport, seed: u64) -> Result<(), RankError> {
    let (me, ranks) = (world.rank(), world.size());
    let [(inp_rows, inp_cols), (out_rows, out_cols)] = [0, 1].map(|which| case.shape(which, ranks));
    let inp = Guarded::<u32>::new((inp_rows, inp_cols), case.places[0]);
    let out = Guarded::<u32>::new((out_rows, out_cols), case.places[1]);
    let direct = case.way == Way::Direct;
    let windows = match direct {
        true => {
            Some([Window::<u32>::allocate(link, inp_rows * inp_cols)?, Window::allocate(link, out_rows * out_cols)?])
        }
        false => None,
    };
    let from = windows.as_ref().map(|[window, _]| window.tensor().reshape(inp_rows, inp_cols).expect("a shape of it"));
    let to = windows.as_ref().filter(|_| case.kind == Kind::AllReduce);
    let to = to.map(|[_, window]| window.tensor().reshape(out_rows, out_cols).expect("a shape of it"));
    let (from, to) = (from.as_ref().unwrap_or(&inp.tensor), to.as_ref().unwrap_or(&out.tensor));
    from.copy_from(&data(seed, me, inp_rows * inp_cols));
    let op = match case.kind {
        Kind::AllReduce => all_reduce(link, to, from),
        _ => reduce_scatter(link, to, from),
    };
    let mut op = configured(op, case);
    if let Some([first, second]) = &windows {
        op = if case.kind == Kind::AllReduce { op.window(first).window(second) } else { op.window(first) };
    }
    op.run()?;
    let mut must = vec![0u32; out_rows * out_cols];
    let chunk = if case.kind == Kind::AllReduce { 0 } else { me.index() };
    for rank in Rank::all(ranks) {
        let data = data::<u32>(seed, rank, inp_rows * inp_cols);
        for (row, col) in (0..case.rows).flat_map(|row| (0..case.cols).map(move |col| (row, col))) {
            let sum = &mut must[case.at(1, ranks, 0, row, col)];
            *sum = sum.wrapping_add(data[case.at(0, ranks, chunk, row, col)]);
        }
    }
    let what = (case, me, seed);
    assert_same(&to.to_vec(), &must, what);
    inp.check(what);
    out.check(what);
    Ok(())
}

#[test]
pub fn random_rectangles_arrive_as_plain_loops_say_and_nothing_else_is_written() {
    let cases = if everything() { 400 } else { 40 };
    for ranks in [1, 2, 3, 4] {
        threads(ranks, ("rectangles", ranks), |world| {
            let link = joined(world, SMALL)?;
            let mut numbers = Random::new(seed() ^ ranks as u64);
            for _ in 0..cases {
                let kind = numbers.pick(&KINDS);
                let (mut case, ty, seed) = (Case::random(&mut numbers, kind, ranks), numbers.below(4), numbers.next());
                if kind == Kind::SendRecv && ranks == 1 {
                    continue;
                }
                // Tiles of 256 bytes, and one message in packets, are for narrow elements or few of them.
                if case.way == Way::Packet && case.rows * case.cols > 16 && ty == 3 {
                    case.way = Way::Chosen;
                }
                match kind {
                    Kind::ReduceScatter | Kind::AllReduce => {
                        if matches!(case.way, Way::Staged { .. }) && case.blocks > 1 {
                            case.blocks = 1;
                        }
                        reduces(&case, world, &link, seed)?;
                    }
                    _ => match ty {
                        0 => moves::<u8>(&case, world, &link, seed)?,
                        1 => moves::<Bf16>(&case, world, &link, seed)?,
                        2 => moves::<f32>(&case, world, &link, seed)?,
                        _ => moves::<u64>(&case, world, &link, seed)?,
                    },
                }
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
        // Columns 2..8 are two chunks of [5, 3]. The output has each of them transposed, in a matrix of its own.
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
        // A hook that asks for a position gets it, and so does one that reads another one.
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
            // Shifted by one column, input and output meet.
            let whole = Tensor::<u16>::zeros(4 * 16).reshape(4, 16).unwrap();
            let error = all_gather(&link, &whole.columns(0..2 * ranks), &whole.columns(1..3)).along(Axis::Cols).run();
            assert!(matches!(error, Err(RunError::Transfer(TransferError::Overlap { .. }))), "{error:?}");
            // Beside each other they do not.
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
        } else {
            let (rows, flat) = (Tensor::<u32>::zeros(24).reshape(6, 4).unwrap(), Tensor::<u32>::zeros(24));
            recv(&link, &rows, first).run()?;
            recv(&link, &flat, first).chunk_shape(6, 4).run()?;
            assert_eq!((rows.to_vec(), flat.to_vec()), (must.clone(), must));
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
        // As an input it is as good as any.
        expanded.strided(1, 6, 6).unwrap_or_else(|_| expanded.rows(0..1)).copy_from(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        all_to_all(&link, &y, &expanded).along(Axis::Cols).run()?;
        let first = 3.0 * world.rank().number() as f32;
        assert_eq!(y.get(29), first + 2.0);
        let reduced = all_reduce(&link, &expanded, &x).run().unwrap_err().to_string();
        assert!(reduced.contains("row stride 0"), "{reduced}");
        let mapped = map(&expanded, &x).run().unwrap_err().to_string();
        assert!(mapped.contains("row stride 0"), "{mapped}");
        // A shape that is not that of the rows.
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
            // With a window near ranks write it, and far ranks go through staging: a post is one run of bytes.
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
