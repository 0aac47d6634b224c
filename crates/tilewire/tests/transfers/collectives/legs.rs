//! What the hooks of each leg may read and write, in `map` and in every collective. Memory of the output may be read
//! only by the element that writes it. The build decides all of this, and only correct in-place kernels are launched.

use crate::case::{SMALL, threads};
use tilewire::hook::MisuseKind;
use tilewire::link::{ShmTransport, Window};
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::transport::{Rank, TransferError};
use tilewire::{
    Algorithm, Knobs, Primitive, RunError, Tensor, Traced, all_gather, all_reduce, all_to_all, broadcast, gather, map,
    prelude::*, recv, reduce_scatter, scatter, send, sendrecv,
};

const CHUNK: usize = 64;

type Built = (&'static str, Result<Traced, RunError>);

fn zeros(len: usize) -> Tensor<f32> {
    Tensor::zeros(len)
}

fn link() -> RehearsalRank {
    Rehearsal::small(2, 2).ranks().remove(0)
}

/// Gives hooks to `map` and to every collective, where `$out` is the output and `$inp` the input, and traces them. Rank
/// 0 of two ranks is every root, so both hooks run there.
macro_rules! every {
    (|$builder:ident, $out:ident, $inp:ident| $with:expr) => {{
        let (link, me, peer) = (&link(), Rank::new(0), Rank::new(1));
        let mut all: Vec<Built> = Vec::new();
        macro_rules! one {
            ($name:expr, $out_len:expr, $inp_len:expr, $make:expr) => {{
                let ($out, $inp) = (&zeros($out_len), &zeros($inp_len));
                let $builder = $make($out, $inp);
                all.push(($name, $with.trace()));
            }};
        }
        one!("map", CHUNK, CHUNK, |out, inp| map(out, inp));
        one!("sendrecv", CHUNK, CHUNK, |out, inp| sendrecv(link, out, inp, peer, peer));
        one!("all_to_all", 2 * CHUNK, 2 * CHUNK, |out, inp| all_to_all(link, out, inp));
        one!("all_gather", 2 * CHUNK, CHUNK, |out, inp| all_gather(link, out, inp));
        one!("ring all_gather", 2 * CHUNK, CHUNK, |out, inp| all_gather(link, out, inp).algorithm(Algorithm::Ring));
        one!("broadcast", CHUNK, CHUNK, |out, inp| broadcast(link, out, inp, me));
        one!("gather", 2 * CHUNK, CHUNK, |out, inp| gather(link, out, inp, me));
        one!("scatter", CHUNK, 2 * CHUNK, |out, inp| scatter(link, out, inp, me));
        for algorithm in [Algorithm::OneShot, Algorithm::Ring] {
            one!("reduce_scatter", CHUNK, 2 * CHUNK, |out, inp| reduce_scatter(link, out, inp).algorithm(algorithm));
        }
        for algorithm in [Algorithm::OneShot, Algorithm::TwoPhase, Algorithm::Ring] {
            one!("all_reduce", CHUNK, CHUNK, |out, inp| all_reduce(link, out, inp).algorithm(algorithm));
        }
        assert_eq!(all.len(), 13);
        all
    }};
}

/// Asserts that the build was refused with one misuse, on this line of this file.
#[track_caller]
fn wrong_leg((name, result): Built, line: u32, hook: &'static str, what: &'static str, writes: bool) {
    let Err(RunError::Build(error)) = &result else { panic!("{name}: {:?}", result.map(|_| "built")) };
    let [misuse] = error.misuses() else { panic!("{name}: {error}") };
    assert_eq!(misuse.kind, MisuseKind::WrongLeg { hook, what, writes }, "{name}");
    assert!(misuse.at.file.ends_with("legs.rs") && misuse.at.line == line, "{name}: {error}");
    assert!(error.to_string().contains(what) && error.to_string().contains(hook), "{error}");
}

#[track_caller]
fn overlaps((name, result): Built, must: usize) {
    let Err(RunError::Transfer(TransferError::Overlap { what, bytes })) = &result else {
        panic!("{name}: {:?}", result.map(|_| "built"))
    };
    assert_eq!(*bytes, must, "{name}: {what}");
    assert!(what.contains("read at") && what.contains("legs.rs"), "{name}: {what}");
}

#[track_caller]
fn builds((name, result): Built) {
    if let Err(error) = result {
        panic!("{name}: {error}");
    }
}

#[test]
fn produce_does_not_write_the_output() {
    // For code inside a macro, the compiler reports the macro's line.
    let line = line!() + 1;
    for built in every!(|x, _out, _inp| {
        x.produce(|c| {
            c.output.store(c.pos(), 1.0);
            c.input.load(c.pos())
        })
    }) {
        wrong_leg(built, line, "produce", "c.output", true);
    }
    // Nor in another way, nor if there is no input.
    let (link, out, inp) = (link(), zeros(CHUNK), zeros(CHUNK));
    let line = line!() + 2;
    let masked = map(&out, &inp).produce(|c| {
        c.output.flat().part(8, 8).store_if(c.pos().lt(8), c.pos(), 1.0);
        c.input.load(c.pos())
    });
    wrong_leg(("masked", masked.trace()), line, "produce", "c.output", true);
    let line = line!() + 2;
    let sent = send(&link, &inp, Rank::new(1)).produce(|c| {
        c.output.store(c.pos(), 1.0);
        c.input.load(c.pos())
    });
    wrong_leg(("send", sent.trace()), line, "produce", "c.output", true);
}

#[test]
fn produce_does_not_read_the_output() {
    let line = line!() + 1;
    for built in every!(|x, _out, _inp| x.produce(|c| c.input.load(c.pos()) + c.output.load(c.pos()))) {
        wrong_leg(built, line, "produce", "c.output", false);
    }
    // Its length and its shape are known, though.
    for built in every!(|x, _out, _inp| x.produce(|c| c.input.load(c.pos()) * c.output.len() as f32)) {
        builds(built);
    }
}

#[test]
fn no_hook_writes_the_input() {
    // For code inside a macro, the compiler reports the macro's line.
    let line = line!() + 1;
    for built in every!(|x, _out, _inp| {
        x.consume(|c, x| {
            c.input.store(c.pos(), x);
            c.output.store(c.pos(), x);
        })
    }) {
        wrong_leg(built, line, "consume", "c.input", true);
    }
}

#[test]
fn consume_reads_the_ranks_own_input_where_it_has_one() {
    for built in every!(|x, _out, _inp| x.consume(|c, x| c.output.store(c.pos(), x + c.input.load(c.pos())))) {
        builds(built);
    }
    let (out, inp, other, link) = (zeros(CHUNK), zeros(CHUNK), Rank::new(1), &link());
    let line = line!() + 1;
    let received = recv(link, &out, other).consume(|c, x| c.output.store(c.pos(), x + c.input.load(c.pos())));
    wrong_leg(("recv", received.trace()), line, "consume", "c.input", false);
    let line = line!() + 2;
    let received = broadcast(link, &out, &inp, other);
    let received = received.consume(|c, x| c.output.store(c.pos(), x + c.input.load(c.pos())));
    wrong_leg(("broadcast", received.trace()), line, "consume", "c.input", false);

    // It is this rank's own input, not the other rank's.
    threads(2, "own input", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (me, peer) = (world.rank().number() as f32, world.rank().after(1, 2));
        let (out, inp) = (zeros(CHUNK), Tensor::from_fn(CHUNK, |i| 100.0 * me + i as f32));
        let swap = sendrecv(&link, &out, &inp, peer, peer);
        swap.consume(|c, x| c.output.store(c.pos(), x * 1000.0 + c.input.load(c.pos()))).run()?;
        let must: Vec<f32> =
            (0..CHUNK).map(|i| (100.0 * (1.0 - me) + i as f32) * 1000.0 + 100.0 * me + i as f32).collect();
        assert_eq!(out.to_vec(), must);
        Ok(link.close()?)
    });
}

#[test]
fn staging_is_read_by_consume_alone_and_written_by_none() {
    let (link, out, inp, peer) = (&link(), zeros(CHUNK), zeros(CHUNK), Rank::new(1));
    let config =
        Knobs { primitive: Some(Primitive::Staged), slot_bytes: Some(256), depth: Some(2), ..Knobs::default() };
    let swap = || sendrecv(link, &out, &inp, peer, peer).config(config);
    let line = line!() + 3;
    let written = swap().produce(|c| {
        let tile = c.region.expect("it is staged");
        tile.region.put(tile.bank, tile.offset, 1.0f32);
        c.input.load(c.pos())
    });
    wrong_leg(("produce, put", written.trace()), line, "produce", "c.region", true);
    let line = line!() + 3;
    let read = swap().produce(|c| {
        let tile = c.region.expect("it is staged");
        tile.region.get::<f32>(tile.bank, tile.offset)
    });
    wrong_leg(("produce, get", read.trace()), line, "produce", "c.region", false);
    let line = line!() + 3;
    let written = swap().consume(|c, x| {
        let tile = c.region.expect("it is staged");
        tile.region.put(tile.bank, tile.offset, x);
    });
    wrong_leg(("consume, put", written.trace()), line, "consume", "c.region", true);
    let read = swap().consume(|c, x| {
        let tile = c.region.expect("it is staged");
        c.output.store(c.pos(), x + tile.region.get::<f32>(tile.bank, tile.offset));
    });
    builds(("consume, get", read.trace()));
}

#[test]
fn produce_captures_no_memory_of_the_output_where_another_leg_writes_it() {
    for built in every!(|x, out, _inp| x.produce(|c| c.input.load(c.pos()) + out.at(c.pos()))) {
        // In a map, the element that reads a position writes it afterwards.
        if built.0 == "map" {
            builds(built);
        } else {
            let whole =
                if matches!(built.0, "all_to_all" | "all_gather" | "ring all_gather" | "gather") { 2 } else { 1 };
            overlaps(built, whole * CHUNK * 4);
        }
    }
    for built in every!(|x, out, _inp| {
        let part = out.slice(1..CHUNK / 2).named("part");
        x.produce(move |c| c.input.load(c.pos()) + part.at(c.pos() % 8))
    }) {
        let what = built.1.as_ref().unwrap_err().to_string();
        assert!(what.contains("the output lies over part, read at") && what.contains("(124 bytes)"), "{what}");
        overlaps(built, (CHUNK / 2 - 1) * 4);
    }
}

#[test]
fn consume_reads_memory_of_the_output_only_where_it_writes_it() {
    // Every position is combined with its old value.
    for built in every!(|x, _out, _inp| x.consume(|c, x| c.output.store(c.pos(), c.output.load(c.pos()) + x))) {
        builds(built);
    }
    // The neighbour may already have been written.
    for built in every!(|x, _out, _inp| {
        x.consume(|c, x| c.output.store(c.pos(), c.output.load(CHUNK as i64 - 1 - c.pos()) + x))
    }) {
        overlaps(built, CHUNK * 4);
    }
    // The same through a captured tensor. If chunks are parts of the output, another leg writes other places of it.
    for built in every!(|x, out, _inp| x.consume(|c, x| c.output.store(c.pos(), out.at(c.pos()) + x))) {
        match built.0 {
            "all_to_all" | "all_gather" | "ring all_gather" | "gather" => overlaps(built, 2 * CHUNK * 4),
            _ => builds(built),
        }
    }
    for built in every!(|x, out, _inp| x.consume(|c, x| c.output.store(c.pos(), out.at(c.pos() ^ 1) + x))) {
        let whole = if matches!(built.0, "all_to_all" | "all_gather" | "ring all_gather" | "gather") { 2 } else { 1 };
        overlaps(built, whole * CHUNK * 4);
    }
    // Loaded indices are equal if they are loaded from the same place.
    let index = Tensor::from_fn(CHUNK, |i| (CHUNK - 1 - i) as i32);
    for built in every!(|x, _out, _inp| {
        let index = index.clone();
        x.consume(move |c, x| {
            let old = c.output.load(index.at(c.pos()));
            c.output.store(index.at(c.pos()), old + x);
        })
    }) {
        builds(built);
    }
}

#[test]
fn what_a_peer_writes_into_a_window_is_not_read_meanwhile() {
    threads(2, "window", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (window, inp, peer) = (Window::<f32>::allocate(&link, CHUNK)?, zeros(CHUNK), world.rank().after(1, 2));
        let out = window.tensor();
        let swap = sendrecv(&link, out, &inp, peer, peer).window(&window).blocks(1);
        let swap = swap.config(Knobs { primitive: Some(Primitive::Direct), ..Knobs::default() });
        overlaps(("direct", swap.produce(|c| c.input.load(c.pos()) + out.at(c.pos())).trace()), CHUNK * 4);
        Ok(link.close()?)
    });
}

#[test]
fn a_map_in_place_reads_the_position_that_it_writes() {
    let numbers = || Tensor::from_fn(CHUNK, |i| i as f32);
    for blocks in [1, 3] {
        let x = numbers();
        map(&x, &x).blocks(blocks).produce(|c| c.input.load(c.pos()) * 2.0 + x.at(c.pos())).run().unwrap();
        assert_eq!(x.to_vec(), (0..CHUNK).map(|i| 3.0 * i as f32).collect::<Vec<_>>());
        // Groups are combined before anything is stored.
        let x = numbers();
        map(&x, &x).blocks(blocks).produce(|c| c.input.load(c.pos()).group_max(2)).run().unwrap();
        assert_eq!(x.to_vec(), (0..CHUNK).map(|i| (i | 1) as f32).collect::<Vec<_>>());
        // Also by rows and columns, and as another type of the same size.
        let x = numbers();
        let same = map(&x, &x).blocks(blocks).chunk_shape(8, 8);
        same.produce(|c| c.input.at(c.row(), c.col()) + 1.0).run().unwrap();
        assert_eq!(x.to_vec(), (0..CHUNK).map(|i| i as f32 + 1.0).collect::<Vec<_>>());
    }
    let x = numbers();
    map(&x, &x).run().unwrap();
    assert_eq!(x.to_vec(), numbers().to_vec());
}

#[test]
fn a_map_whose_output_lies_over_something_else_that_is_read_is_refused() {
    let x = Tensor::from_fn(CHUNK + 1, |i| i as f32);
    let (low, high) = (x.slice(0..CHUNK), x.slice(1..CHUNK + 1));
    overlaps(("copy", map(&high, &low).trace()), CHUNK * 4);
    overlaps(("halves", map(&x.slice(0..8), &x.slice(0..16)).produce(|c| c.input.load(c.pos())).trace()), 64);
    overlaps(("reversed", map(&low, &low).produce(|c| c.input.load(63 - c.pos())).trace()), CHUNK * 4);
    overlaps(("transposed", map(&low, &low).chunk_shape(8, 8).produce(|c| c.input.at(c.col(), c.row())).trace()), 256);
    overlaps(("captured", map(&low, &zeros(CHUNK)).produce(|c| c.input.load(c.pos()) + high.at(c.pos())).trace()), 256);
    overlaps(("neighbour", map(&low, &zeros(CHUNK)).produce(|c| low.at(c.pos() ^ 1)).trace()), 256);
    // After the position was written, it holds the new number.
    let error = map(&low, &low).consume(|c, x| c.output.store(c.pos() ^ 1, x)).run().unwrap_err();
    assert!(matches!(error, RunError::Transfer(TransferError::Overlap { .. })), "{error}");
    // Nothing was launched.
    assert_eq!(x.to_vec(), (0..=CHUNK).map(|i| i as f32).collect::<Vec<_>>());
    // Neighbouring tensors do not overlap.
    map(&x.slice(0..32), &x.slice(32..64)).run().unwrap();
    assert_eq!(x.get(0), 32.0);
}
