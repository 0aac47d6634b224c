//! Puts into windows as PTX: vector stores straight into a near window, and the same bytes as the definition says,
//! on a machine that runs PTX as its manual defines it. The texts assemble for every target.

use tilewire::ir::simplify;
use tilewire::link::Puts;
use tilewire::ptx::{Options, Target, emit};
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::{Knobs, Primitive, Scalar, Tensor, Traced, kernel, sendrecv};
use tilewire_testkit::ptxas;
use tilewire_testkit::simulated::simulate_world;

/// What a kernel puts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Direct,
    Block,
    Chunks(u32),
}

/// Every rank puts the elements of its block to the next rank, from a run-time offset on, and reads what it gets.
fn shift(link: &RehearsalRank, windows: &[Tensor<u32>], how: How, computed: bool, first: &Scalar<i64>) -> Traced {
    let len = windows[0].len() as i64;
    let (window, (to, from)) = (link.window(windows), link.neighbours());
    let puts = Puts::new(link, &window).unwrap();
    let me = link.number();
    let (x, y) = (Tensor::from_fn(len as usize, |i| i as u32 * 3 + me * 1000), Tensor::<u32>::zeros(len as usize));
    let (source, next) = (puts.source(&x).unwrap(), Tensor::from_slice(&[i64::from(to.number())]));
    let copies = if let How::Chunks(copies) = how { copies } else { 1 };
    kernel("shift", |k| {
        let (ops, source, y, next) = (puts.ops(k), source.bind(k), k.output(&y).named("y"), k.input(&next));
        k.role("put", 2).copies(copies, |r| {
            let first = r.scalar(first);
            let put = match computed {
                true => ops.to(next.load(0), first).from(source, first, r.constant(len * 4) - first),
                false => ops.to(to.number(), first).from(source, first, r.constant(len * 4) - first),
            };
            match how {
                How::Direct => put.signal(3).put_block_direct(r),
                How::Block => put.signal(3).counter(3).put_block(r),
                How::Chunks(_) => put.signal(3).put_warp_chunked_direct(r, 48),
            }
        });
        k.role("receive", 1).run(|r| {
            ops.wait_signal_from(r, from.number(), 3);
            r.each(len, |i| y.store(i, ops.own().get::<u32>(0, i * 4)));
        });
    })
    .unwrap()
}

fn windows(ranks: usize, len: usize) -> Vec<Tensor<u32>> {
    (0..ranks).map(|_| Tensor::zeros(len)).collect()
}

#[test]
fn all_ways_of_putting_move_the_same_bytes_on_the_machine() {
    const LEN: usize = 150;
    for how in [How::Direct, How::Block, How::Chunks(1), How::Chunks(3)] {
        for (computed, first) in [(false, 0i64), (true, 0), (true, 4), (true, 18), (true, 600)] {
            let (links, windows, at) = (Rehearsal::small(2, 1).ranks(), windows(2, LEN), Scalar::new(first));
            let ranks: Vec<Traced> = links.iter().map(|link| shift(link, &windows, how, computed, &at)).collect();
            let after = simulate_world(&ranks, Target::Sm90a).unwrap_or_else(|fault| panic!("{how:?}: {}", fault.0));
            for (rank, (params, traced)) in after.iter().zip(&ranks).enumerate() {
                let output = traced.kernel.params.values().position(|param| param.name() == "y").expect("it is named");
                let bytes = &params[output][0];
                let from = 1 - rank as u32;
                let must: Vec<u8> = (0..4 * LEN)
                    .map(|i| if (i as i64) < first { 0 } else { (i as u32 / 4 * 3 + from * 1000).to_le_bytes()[i % 4] })
                    .collect();
                assert!(*bytes == must, "{how:?}, computed: {computed}, from byte {first}, rank {rank}");
            }
        }
    }
}

/// As wide as the stores of `direct`, whatever is known about the offset while tracing.
#[test]
fn puts_to_a_near_peer_are_the_vector_stores_of_direct() {
    let (links, windows) = (Rehearsal::small(2, 1).ranks(), windows(2, 1 << 16));
    let text = |traced: &Traced| emit(&simplify(&traced.kernel), Options::new(Target::Sm90a)).unwrap().text;
    let (link, peer) = (&links[0], links[0].neighbours().0);
    let config = Knobs { primitive: Some(Primitive::Direct), blocks: Some(1), ..Knobs::default() };
    let (window, x) = (link.window(&windows), Tensor::<u32>::zeros(1 << 16));
    let direct = sendrecv(link, window.tensor(), &x, peer, peer).window(&window).config(config).trace().unwrap();
    let direct = text(&direct);
    for vector in ["ld.global.v4.b32", "st.global.v4.b32"] {
        assert!(direct.contains(vector), "direct has no {vector}\n{direct}");
        for how in [How::Direct, How::Block, How::Chunks(4)] {
            for computed in [false, true] {
                let put = text(&shift(link, &windows, how, computed, &Scalar::new(0)));
                assert!(put.contains(vector), "{how:?} has no {vector}\n{put}");
            }
        }
    }
}

#[test]
fn puts_to_near_and_far_peers_assemble_for_every_target() {
    let assembles = ptxas::find().is_some();
    for domains in [&[&[0usize, 1, 2][..]][..], &[&[0, 2], &[1]], &[&[0], &[1], &[2]]] {
        let (links, windows) = (Rehearsal::small(3, 1).mesh(domains).ranks(), windows(3, 1 << 16));
        for how in [How::Direct, How::Block, How::Chunks(4)] {
            for computed in [false, true] {
                let traced = shift(&links[0], &windows, how, computed, &Scalar::new(0));
                for target in Target::ALL {
                    let module = emit(&simplify(&traced.kernel), Options::new(target)).unwrap();
                    if assembles {
                        let usage = ptxas::assemble(&module.text, target).unwrap_or_else(|said| panic!("{said}"));
                        assert_eq!(usage.spills, 0, "{how:?} for {target}: {usage:?}");
                    }
                }
            }
        }
    }
}

/// A rank of windows that differ in size is looked up; one of equal windows is not.
#[test]
fn a_table_is_read_only_where_ranks_differ() {
    let (even, first) = (windows(3, 256), Scalar::new(0));
    let uneven: Vec<_> = even.iter().enumerate().map(|(rank, window)| window.slice(0..200 + rank % 2)).collect();
    let loads = |domains: &[&[usize]], windows: &[Tensor<u32>], computed| {
        let links = Rehearsal::small(3, 1).mesh(domains).ranks();
        let traced = shift(&links[0], windows, How::Direct, computed, &first);
        traced.kernel.to_string().matches("if ").count()
    };
    let near: &[&[usize]] = &[&[0, 1, 2]];
    assert_eq!(loads(near, &even, true), loads(near, &even, false), "equal windows need no branch");
    assert!(loads(near, &uneven, true) > loads(near, &uneven, false));
    assert!(loads(&[&[0, 1], &[2]], &even, true) > loads(&[&[0, 1], &[2]], &even, false));
}
