//! The kernels of shipped transfers as PTX: those of every protocol and hook assemble for every target, without spills.

use tilewire::collective::Rounds;
use tilewire::ir::{BinaryOp, Kernel, Op, Shape, simplify};
use tilewire::link::{NvlOptions, ShmOptions, ShmTransport, Transport, Window};
use tilewire::ptx::{Options, Target, emit};
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::tensor::Axis;
use tilewire::transport::layout::Geometry;
use tilewire::transport::{Rank, World};
use tilewire::{
    Algorithm, Bf16, F8E4M3, Knobs, Primitive, RunError, Tensor, Traced, all_gather, all_reduce, all_to_all, broadcast,
    hooks, map, reduce_scatter, send, sendrecv,
};
use tilewire_testkit::ptxas;

/// The kernels of rank 0 of two that exchange tensors, with their names.
fn kernels() -> Vec<(&'static str, Kernel)> {
    let all = World::threads(2).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let peer = world.rank().after(1, 2);
        let mut kernels = Vec::new();
        let (small_in, small_out) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(64));
        let traced = sendrecv(&link, &small_out, &small_in, peer, peer).trace()?;
        kernels.push(("packets", traced.kernel));
        let (inp, out) = (Tensor::<f32>::zeros(1 << 18), Tensor::<f32>::zeros(1 << 18));
        let traced = sendrecv(&link, &out, &inp, peer, peer).blocks(4).trace()?;
        kernels.push(("staged", traced.kernel));
        // The shared memory of the smallest target has room for such slots in both roles, with four stages each.
        let bulk = Knobs { primitive: Some(Primitive::Bulk), slot_bytes: Some(8 << 10), ..Knobs::default() };
        let traced = sendrecv(&link, &out, &inp, peer, peer).config(bulk).trace()?;
        kernels.push(("bulk", traced.kernel));
        let scaled = sendrecv(&link, &out, &inp, peer, peer).config(Knobs { blocks: Some(4), ..bulk });
        let traced = scaled.produce(|c| c.input.load(c.pos()) * 0.5).consume(|c, x| c.output.store(c.pos(), x + 1.0));
        kernels.push(("bulk with hooks", traced.trace()?.kernel));
        let traced = sendrecv(&link, &out, &inp, peer, peer).produce(|c| c.input.load(c.pos()) * 0.5).trace()?;
        kernels.push(("scaled", traced.kernel));
        let (inp, out) = (Tensor::<Bf16>::zeros(1 << 18), Tensor::<Bf16>::zeros(1 << 18));
        let transposed = sendrecv(&link, &out, &inp, peer, peer).chunk_shape(512, 512);
        let traced = transposed.produce(|c| c.input.at(c.col(), c.row())).trace()?;
        kernels.push(("transposed", traced.kernel));
        // A block of 1024 threads leaves 64 registers for each.
        let full = Knobs { primitive: Some(Primitive::Staged), blocks: Some(4), ..Knobs::warps(32) };
        let transposed = || send(&link, &inp, peer).chunk_shape(512, 512).config(full);
        let traced = transposed().produce(|c| c.input.at(c.col(), c.row())).trace()?;
        kernels.push(("transposed by 32 warps", traced.kernel));
        let half = Bf16::from_f32(0.5);
        let traced = transposed().produce(|c| c.input.at(c.col(), c.row()) * half + half).trace()?;
        kernels.push(("transposed and scaled by 32 warps", traced.kernel));
        let (inp, out) = (Tensor::<f32>::zeros(1 << 16), Tensor::<F8E4M3>::zeros(1 << 16));
        let narrow = sendrecv(&link, &out, &inp, peer, peer).carries::<F8E4M3>();
        let traced = narrow.produce(|c| c.input.load(c.pos()).cast::<F8E4M3>()).trace()?;
        kernels.push(("narrowed", traced.kernel));
        let (inp, out) = (Tensor::<Bf16>::zeros(1 << 16), Tensor::<Bf16>::zeros(1 << 16));
        let squeezed =
            sendrecv(&link, &out, &inp, peer, peer).produce2(hooks::quantise(F8E4M3::MAX, 128)).last_per(128);
        kernels.push(("quantised", squeezed.consume(hooks::dequantise()).trace()?.kernel));
        link.close()?;
        Ok(kernels)
    });
    all.unwrap().swap_remove(0)
}

/// Kernels of a rank of four, in blocks as large as on a GPU: up to 1024 threads, which have 64 registers each.
fn collectives() -> Vec<(&'static str, Kernel)> {
    let geometry = |max_copies| Geometry {
        world_size: 4,
        per_peer_bytes: 8 << 20,
        max_blocks_per_peer: 32,
        max_slots: 8,
        max_copies,
        packet_bytes: 8 << 20,
        window_sets: 2,
    };
    let (copied, alone) = (Rehearsal::new(geometry(4)).with_copies(4), Rehearsal::new(geometry(1)));
    let (copied, alone) = (copied.ranks().swap_remove(1), alone.ranks().swap_remove(1));
    let (inp, out) = (Tensor::<f32>::zeros(1 << 20), Tensor::<f32>::zeros(1 << 20));
    let part = Tensor::<f32>::zeros(1 << 18);
    let (halves, sums) = (Tensor::<Bf16>::zeros(1 << 20), Tensor::<Bf16>::zeros(1 << 20));
    let (few, few_out) = (Tensor::<f32>::zeros(1 << 10), Tensor::<f32>::zeros(1 << 10));
    // The tensor is so large that it leaves the cache first. Its tiles are not whole turns.
    let (much, much_out) = (Tensor::<Bf16>::zeros(9_000_000 * 4), Tensor::<Bf16>::zeros(9_000_000 * 4));
    let config = |primitive, warps| Knobs { primitive: Some(primitive), blocks: Some(4), ..Knobs::warps(warps) };
    let staged = |warps| config(Primitive::Staged, warps);
    let quantised = |out: &Tensor<Bf16>, inp: &Tensor<Bf16>| {
        let exchange = all_to_all(&copied, out, inp).config(Knobs { granule: Some(128), ..staged(4) });
        let squeezed = exchange.rounds(Rounds::Blocks).produce2(hooks::quantise(F8E4M3::MAX, 128)).last_per(128);
        squeezed.consume(hooks::dequantise()).trace()
    };
    let traced = [
        ("all-to-all", all_to_all(&copied, &out, &inp).config(staged(4)).rounds(Rounds::Blocks).trace()),
        ("all-to-all, quantised", quantised(&sums, &halves)),
        ("all-to-all, much", all_to_all(&copied, &much_out, &much).config(staged(4)).rounds(Rounds::Blocks).trace()),
        ("all-to-all, much, quantised", quantised(&much_out, &much)),
        ("all-to-all, transposed", {
            let exchange = all_to_all(&copied, &sums, &halves).config(staged(4)).rounds(Rounds::Blocks);
            exchange.chunk_shape(512, 512).produce(|c| c.input.at(c.col(), c.row())).trace()
        }),
        ("all-to-all, legs", all_to_all(&copied, &out, &inp).config(staged(8)).rounds(Rounds::Legs).trace()),
        ("all-to-all, bulk", {
            let bulk = Knobs { slot_bytes: Some(1 << 10), ..config(Primitive::Bulk, 4) };
            all_to_all(&copied, &out, &inp).config(bulk).rounds(Rounds::Blocks).trace()
        }),
        ("all-to-all, packets", {
            all_to_all(&copied, &few_out, &few).config(config(Primitive::Packet, 16)).rounds(Rounds::Blocks).trace()
        }),
        ("ring all-gather", all_gather(&alone, &out, &part).config(staged(16)).algorithm(Algorithm::Ring).trace()),
        ("reduce-scatter", reduce_scatter(&alone, &part, &inp).config(staged(8)).rounds(Rounds::Blocks).trace()),
        ("ring reduce-scatter", {
            reduce_scatter(&alone, &part, &inp).config(staged(16)).algorithm(Algorithm::Ring).trace()
        }),
        ("one-shot all-reduce", all_reduce(&alone, &few_out, &few).algorithm(Algorithm::OneShot).trace()),
        ("two-phase all-reduce", all_reduce(&alone, &sums, &halves).config(staged(8)).rounds(Rounds::Blocks).trace()),
        ("ring all-reduce", all_reduce(&alone, &sums, &halves).config(staged(16)).algorithm(Algorithm::Ring).trace()),
    ];
    traced.map(|(name, traced)| (name, traced.unwrap_or_else(|e| panic!("{name}: {e}")).kernel)).into()
}

/// Kernels of a rank of GPUs in two domains, with the sizes that transports between GPUs have.
fn meshes() -> [Vec<(&'static str, Kernel)>; 2] {
    let of = |of_domain: usize| {
        let (ranks, options) = (2 * of_domain, NvlOptions::default());
        let domains: [Vec<usize>; 2] = [(0..of_domain).collect(), (of_domain..ranks).collect()];
        let domains = domains.each_ref().map(Vec::as_slice);
        Rehearsal::new(options.geometry(ranks)).with_copies(options.copies).mesh(&domains).ranks().swap_remove(1)
    };
    let (pairs, fours) = (of(2), of(4));
    let (long, one) = (Tensor::<f32>::zeros(8 << 20), Tensor::<f32>::zeros(1 << 20));
    let (halves, sums) = (Tensor::<Bf16>::zeros(8 << 20), Tensor::<Bf16>::zeros(8 << 20));
    let (wide, inp) = (Tensor::<f32>::zeros(8 << 20), Tensor::<f32>::zeros(8 << 20));
    let quantised = |link| {
        let squeezed = all_to_all(link, &sums, &halves).produce2(hooks::quantise(F8E4M3::MAX, 128)).last_per(128);
        squeezed.consume(hooks::dequantise()).trace()
    };
    let gathered = |link: &RehearsalRank| all_gather(link, &long.slice(0..link.world_size() << 20), &one).trace();
    let scaled = |link: &RehearsalRank, accumulates: bool| {
        let gather = all_gather(link, &long.slice(0..link.world_size() << 20), &one);
        let scaled = gather.produce(|c| c.input.load(c.pos()) * 0.5);
        match accumulates {
            true => scaled.consume(|c, x| c.output.store(c.pos(), x + c.output.load(c.pos()))).trace(),
            false => scaled.consume(|c, x| c.output.store(c.pos(), x + 1.0)).trace(),
        }
    };
    let light = vec![
        ("mixed 2 x 2 all-to-all", all_to_all(&pairs, &wide, &inp).trace()),
        ("mixed 2 x 4 all-to-all", all_to_all(&fours, &wide, &inp).trace()),
        ("mixed 2 x 2 all-to-all, quantised", quantised(&pairs)),
        ("mixed 2 x 2 all-to-all, shared roles", all_to_all(&pairs, &wide, &inp).config(Knobs::warps(3)).trace()),
        ("two-level 2 x 2 all-gather", gathered(&pairs)),
        ("two-level 2 x 4 all-gather", gathered(&fours)),
        ("two-level 2 x 2 all-gather, hooks", scaled(&pairs, false)),
        ("two-level 2 x 4 all-gather, hooks", scaled(&fours, false)),
        ("two-level 2 x 4 all-gather, shared roles", {
            let gather = all_gather(&fours, &long, &one).algorithm(Algorithm::TwoLevel);
            gather.config(Knobs::warps(2)).trace()
        }),
        ("two-level 2 x 4 broadcast", broadcast(&fours, &one, &one, Rank::new(4)).trace()),
        ("mixed 2 x 4 all-reduce", all_reduce(&fours, &wide, &inp).trace()),
    ];
    // Hooks that hold many values, or that load what they add to once more.
    let heavy = vec![
        ("mixed 2 x 4 all-to-all, quantised", quantised(&fours)),
        ("mixed 2 x 4 all-to-all, transposed", {
            let exchange = all_to_all(&fours, &sums, &halves).chunk_shape(1024, 1024);
            exchange.produce(|c| c.input.at(c.col(), c.row())).trace()
        }),
        ("two-level 2 x 2 all-gather, accumulating", scaled(&pairs, true)),
    ];
    [light, heavy].map(|traced| {
        let kernel = |(name, traced): (_, Result<Traced, RunError>)| {
            (name, traced.unwrap_or_else(|e| panic!("{name}: {e}")).kernel)
        };
        traced.into_iter().map(kernel).collect()
    })
}

#[test]
fn collectives_among_near_and_far_peers_assemble_for_every_target() {
    let [light, heavy] = meshes();
    assemble(light);
    assemble_with(heavy, 300);
}

#[test]
fn shipped_transfers_assemble_for_every_target() {
    assemble(kernels());
}

/// A block serves one peer after the other, so the number of peers must not change its resources.
#[test]
fn shared_memory_does_not_grow_with_the_world() {
    for primitive in [Primitive::Bulk, Primitive::Packet] {
        let shared = [2, 3, 8, 16].map(|ranks| {
            let geometry = Geometry {
                world_size: ranks,
                per_peer_bytes: 1 << 20,
                max_blocks_per_peer: 8,
                max_slots: 8,
                max_copies: 2,
                packet_bytes: 1 << 20,
                window_sets: 2,
            };
            let link = Rehearsal::new(geometry).with_copies(2).ranks().swap_remove(1);
            let (inp, out) = (Tensor::<Bf16>::zeros(ranks << 10), Tensor::<Bf16>::zeros(ranks << 10));
            let config = Knobs { primitive: Some(primitive), ..Knobs::warps(4) };
            let exchange = all_to_all(&link, &out, &inp).config(config).rounds(Rounds::Blocks);
            let squeezed = exchange.produce2(hooks::quantise(F8E4M3::MAX, 128)).consume(hooks::dequantise());
            emit(&simplify(&squeezed.trace().unwrap().kernel), Options::new(Target::Sm90a)).unwrap().shared_bytes
        });
        assert_eq!(shared, [shared[0]; 4], "{primitive:?}");
    }
}

#[test]
fn shipped_collectives_assemble_for_every_target() {
    assemble(collectives());
}

/// The windows are real ones, of ranks that are threads. Blocks are as large as a GPU has them for reductions.
fn reductions_through_windows() -> Vec<(&'static str, Kernel)> {
    let of_ranks = World::threads(4).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let (x, y) = (Window::<f32>::allocate(&link, 300_000)?, Window::<f32>::allocate(&link, 300_000)?);
        let (halves, part) = (Window::<Bf16>::allocate(&link, 300_000)?, Tensor::<Bf16>::zeros(75_000));
        let config = Knobs { blocks: Some(4), ..Knobs::warps(16) };
        let traced = [
            ("direct all-reduce", {
                all_reduce(&link, y.tensor(), x.tensor()).window(&x).window(&y).config(config).trace()
            }),
            ("direct all-reduce, in place", {
                all_reduce(&link, halves.tensor(), halves.tensor()).window(&halves).config(config).trace()
            }),
            (
                "direct reduce-scatter",
                reduce_scatter(&link, &part, halves.tensor()).window(&halves).config(config).trace(),
            ),
        ];
        let mut kernels = Vec::new();
        for (name, traced) in traced {
            kernels.push((name, traced?.kernel));
        }
        link.close()?;
        Ok(kernels)
    });
    of_ranks.unwrap().swap_remove(1)
}

#[test]
fn reductions_through_windows_assemble_for_every_target() {
    assemble(reductions_through_windows());
}

/// An all-to-all of columns that lie in a larger matrix: its rows keep vectors of 16 bytes on both legs, and no lane
/// divides.
#[test]
fn column_slices_keep_their_vectors_in_every_protocol() {
    let (ranks, rows, cols) = (4, 1024, 256);
    let geometry = Geometry {
        world_size: ranks,
        per_peer_bytes: 8 << 20,
        max_blocks_per_peer: 32,
        max_slots: 8,
        max_copies: 4,
        packet_bytes: 8 << 20,
        window_sets: 2,
    };
    let links = Rehearsal::new(geometry).with_copies(4).ranks();
    let width = ranks * cols;
    let inp = Tensor::<f32>::zeros(rows * 3 * width).reshape(rows, 3 * width).unwrap().columns(width..2 * width);
    let outs: Vec<_> = (0..ranks).map(|_| Tensor::<f32>::zeros(rows * width)).collect();
    let window = links[1].window(&outs);
    for (name, primitive) in [("staged", Primitive::Staged), ("direct", Primitive::Direct)] {
        // Into rows of the output, and into its columns.
        for (axis, shape) in [(Axis::Rows, [ranks * rows, cols]), (Axis::Cols, [rows, width])] {
            let out = window.tensor().reshape(shape[0], shape[1]).unwrap();
            let config = Knobs { primitive: Some(primitive), blocks: Some(4), ..Knobs::warps(4) };
            let op = all_to_all(&links[1], &out, &inp).along(Axis::Cols).output_along(axis);
            let op = op.config(config).rounds(Rounds::Blocks);
            let op = if primitive == Primitive::Direct { op.window(&window) } else { op };
            let kernel = simplify(&op.trace().unwrap().kernel);
            let text = emit(&kernel, Options::new(Target::Sm90a)).unwrap().text;
            let name = format!("{name} to {axis}");
            for vector in ["ld.global.v4.b32", "st.global.v4.b32"] {
                assert!(text.contains(vector), "{name}: no {vector}\n{text}");
            }
            assert_eq!(lanes_that_divide(&kernel), 0, "{name}\n{kernel}");
            assemble(vec![(name.leak(), kernel)]);
        }
    }
}

/// The number of divisions and remainders of lane values.
fn lanes_that_divide(kernel: &Kernel) -> usize {
    let mut count = 0;
    for role in kernel.roles.values() {
        kernel.walk(role.body, &mut |inst| {
            let inst = &kernel.insts[inst];
            let divides = matches!(&inst.op, Op::Binary { op: BinaryOp::Div | BinaryOp::Rem, .. });
            count += usize::from(divides && inst.result.is_some_and(|value| kernel.values[value].shape == Shape::Lane));
        });
    }
    count
}

/// Staged bytes stay in the cache. Large tensors that are read or written once leave it first.
#[test]
fn much_that_is_staged_streams() {
    let geometry = Geometry {
        world_size: 2,
        per_peer_bytes: 8 << 20,
        max_blocks_per_peer: 32,
        max_slots: 8,
        max_copies: 4,
        packet_bytes: 8 << 20,
        window_sets: 2,
    };
    let (link, peer) = (Rehearsal::new(geometry).ranks().swap_remove(0), Rank::new(1));
    for (bytes, streams) in [(8 << 20, false), (16 << 20, true)] {
        let (inp, out) = (Tensor::<u8>::zeros(bytes), Tensor::<u8>::zeros(bytes));
        let staged = Knobs { primitive: Some(Primitive::Staged), ..Knobs::default() };
        let traced = sendrecv(&link, &out, &inp, peer, peer).config(staged).trace().unwrap();
        let text = emit(&simplify(&traced.kernel), Options::new(Target::Sm90a)).unwrap().text;
        for hinted in ["ld.global.cs.v4.b32", "st.global.cs.v4.b32"] {
            assert_eq!(text.contains(hinted), streams, "{bytes} bytes: {hinted}\n{text}");
        }
        assert!(text.contains("ld.global.v4.b32") && text.contains("st.global.v4.b32"), "what is staged\n{text}");
        assemble(vec![("staged", traced.kernel)]);
        // Nothing is staged, so nothing has to stay in the cache.
        let traced = map(&out, &inp).trace().unwrap();
        assert!(!emit(&simplify(&traced.kernel), Options::new(Target::Sm90a)).unwrap().text.contains(".cs."));
    }
}

fn assemble(kernels: Vec<(&'static str, Kernel)>) {
    assemble_with(kernels, 0);
}

/// Asserts that at most this many bytes are spilled.
fn assemble_with(kernels: Vec<(&'static str, Kernel)>, most_spills: u32) {
    let (assembles, mut spilled) = (ptxas::find().is_some(), Vec::new());
    for (name, kernel) in kernels {
        for target in Target::ALL {
            let module =
                emit(&simplify(&kernel), Options::new(target)).unwrap_or_else(|e| panic!("{name} for {target}: {e}"));
            if assembles {
                let usage =
                    ptxas::assemble(&module.text, target).unwrap_or_else(|said| panic!("{name} for {target}: {said}"));
                if usage.spills > most_spills {
                    spilled.push(format!("{name} for {target}: {usage:?}"));
                }
            }
        }
    }
    assert!(spilled.is_empty(), "{}", spilled.join("\n"));
}
