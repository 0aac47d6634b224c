//! Every hook of the library gives the documented bits: on the CPU engine, in the evaluator and as PTX, and in a
//! transfer.

use tilewire::check::{Plan, Settings};
use tilewire::collective::{Exchange, PreparedExchange};
use tilewire::hooks::{self, Compose};
use tilewire::ir::scalar::{Element, dynamic};
use tilewire::link::{ShmOptions, ShmTransport};
use tilewire::ptx::Target;
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::tensor::bytes_of;
use tilewire::{
    Bf16, F8E4M3, F8E5M2, Knobs, LaunchError, Prepared, Primitive, Rank, RunError, Scalar, Tensor, Value, World,
    all_gather, all_to_all, broadcast, check, map, sendrecv,
};
use tilewire_testkit::hook_samples::{self, quantised_and_back};
use tilewire_testkit::simulated::simulate_world;

#[test]
fn hooks_do_on_every_engine_what_plain_loops_do() {
    for (k, sample) in hook_samples::all().into_iter().enumerate() {
        let (traced, param, name) = (&sample.traced, sample.param(), &sample.name);
        let judge = |engine: &str, bytes: &[u8]| {
            if let Some(fault) = sample.fault(bytes) {
                panic!("{engine}: {fault}\n{}", traced.kernel);
            }
        };
        let defined = check::evaluate(&traced.kernel, &traced.args, (0, 1), check::Options::default());
        judge("evaluator", &defined.unwrap_or_else(|e| panic!("{name}: {e}"))[param][0]);
        let target = Target::ALL[k % Target::ALL.len()];
        let ptx = simulate_world(std::slice::from_ref(traced), target);
        judge(target.name(), &ptx.unwrap_or_else(|fault| panic!("{name}: {}", fault.0))[0][param][0]);
        // Last, because this one writes the tensor itself.
        Prepared::new(&traced.kernel, &traced.args).unwrap().run().unwrap();
        judge("engine", &bytes_of(&sample.out).unwrap());
    }
}

#[test]
fn one_wrong_bit_is_seen() {
    let sample = &hook_samples::all()[3];
    let mut bytes: Vec<u8> = sample.expected.iter().flat_map(|bits| (*bits as u32).to_le_bytes()).collect();
    assert_eq!(sample.fault(&bytes), None);
    bytes[17] ^= 4;
    assert!(sample.fault(&bytes).unwrap().contains("element 4"));
}

// ---- over a wire --------------------------------------------------------------------------------------------------

/// The ranks exchange `inp`; the second rank's is larger by one. Rank 0 must receive `expected` of what rank 1 sent.
fn over_a_wire<In: Element, Out: Element>(
    name: &str,
    inp: impl Fn(usize, usize) -> In + Sync,
    (sent, received): (usize, usize),
    build: impl for<'l> Fn(Exchange<'l, 'l, In, Out, In>) -> Result<PreparedExchange<'l>, RunError> + Sync,
    expected: impl Fn(&[In]) -> Vec<Out>,
) {
    // A message in packets must fit their area as a whole.
    let primitives = if sent <= 100 { &[Primitive::Staged, Primitive::Packet][..] } else { &[Primitive::Staged] };
    for &primitive in primitives {
        let got = World::threads(2).run(|world| {
            let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
            let (me, peer) = (world.rank().index(), world.rank().after(1, 2));
            let (x, y) = (Tensor::from_fn(sent, |i| inp(me, i)), Tensor::<Out>::zeros(received));
            let mut exchange = build(sendrecv(&link, &y, &x, peer, peer).primitive(primitive))?;
            exchange.run()?;
            drop(exchange);
            link.close()?;
            Ok(y.to_vec())
        });
        let got = got.unwrap_or_else(|error| panic!("{name}, {primitive:?}: {error}"));
        for rank in 0..2 {
            let sent: Vec<In> = (0..sent).map(|i| inp(1 - rank, i)).collect();
            let bits = |x: &Out| dynamic::canonical_nan(Out::TYPE, x.to_bits());
            let (got, must) = (got[rank].iter().map(bits), expected(&sent));
            assert!(got.eq(must.iter().map(bits)), "{name}, {primitive:?}, rank {rank}: {must:?}");
        }
    }
}

fn number(rank: usize, i: usize) -> f32 {
    ((i * 37 + rank * 11) % 101) as f32 / 7.0 - 6.0
}

#[test]
fn hooks_that_choose_work_between_ranks() {
    over_a_wire("copy", number, (47, 47), |x| x.produce(hooks::copy()).build(), |x| x.to_vec());
    over_a_wire(
        "transpose",
        number,
        (45, 45),
        |x| x.chunk_shape(5, 9).output_shape(9, 5).produce(hooks::transpose()).build(),
        |x| (0..45).map(|k| x[k % 5 * 9 + k / 5]).collect(),
    );
    over_a_wire(
        "transpose, many tiles",
        number,
        (301 * 257, 301 * 257),
        |x| x.chunk_shape(301, 257).output_shape(257, 301).blocks(3).produce(hooks::transpose()).build(),
        |x| (0..301 * 257).map(|k| x[k % 301 * 257 + k / 301]).collect(),
    );
    over_a_wire(
        "permute",
        number,
        (30, 30),
        |x| x.produce(hooks::permute([2, 3, 5], [1, 2, 0])).build(),
        |x| (0..30).map(|k| x[k % 2 * 15 + k / 10 * 5 + k / 2 % 5]).collect(),
    );
    over_a_wire(
        "gather, longer than the input",
        number,
        (20, 33),
        |x| {
            let index = Tensor::from_fn(33, |i| (i * 7 % 20) as i32);
            x.send_len(33).produce(hooks::gather_by(&index)).build()
        },
        |x| (0..33).map(|k| x[k * 7 % 20]).collect(),
    );
    over_a_wire(
        "scatter",
        number,
        (33, 33),
        |x| {
            let index = Tensor::from_fn(33, |i| (i * 5 % 33) as u32);
            x.consume(hooks::scatter_by(&index)).build()
        },
        |x| {
            let mut y = vec![0.0; 33];
            x.iter().enumerate().for_each(|(i, &x)| y[i * 5 % 33] = x);
            y
        },
    );
    over_a_wire(
        "mask and keep",
        number,
        (35, 35),
        |x| {
            let masked = x.produce(hooks::mask(|c| (c.pos() % 5).ne(0), -1.0));
            masked.consume(hooks::keep(|c| c.pos().lt(30))).build()
        },
        |x| {
            (0..35)
                .map(|k| {
                    if k >= 30 {
                        0.0
                    } else if k % 5 != 0 {
                        x[k]
                    } else {
                        -1.0
                    }
                })
                .collect()
        },
    );
}

#[test]
fn hooks_that_compute_work_between_ranks() {
    over_a_wire(
        "scale, bias and cast",
        number,
        (41, 41),
        |x| {
            let factor = Scalar::new(1.7f32);
            x.produce(hooks::scale(&factor).then(|x| (x + 0.25).cast::<Bf16>())).consume(hooks::store()).build()
        },
        |x| x.iter().map(|x| Bf16::from_f32(x * 1.7 + 0.25)).collect(),
    );
    over_a_wire(
        "accumulate",
        |rank, i| Bf16::from_f32(number(rank, i)),
        (50, 50),
        |x| x.consume(hooks::accumulate()).build(),
        |x| x.iter().map(|x| 0.0 + x.to_f32()).collect::<Vec<f32>>(),
    );
    over_a_wire(
        "swiglu",
        number,
        (24, 12),
        |x| x.chunk_shape(2, 12).output_shape(2, 6).produce(hooks::swiglu()).build(),
        |x| {
            let silu = |x: f32| x / (tilewire::ir::scalar::Float::exp(-x) + 1.0);
            (0..12).map(|k| silu(x[k / 6 * 12 + k % 6]) * x[k / 6 * 12 + 6 + k % 6]).collect()
        },
    );
    over_a_wire(
        "rms_norm",
        number,
        (32, 32),
        |x| {
            let weight = Tensor::from_fn(8, |i| i as f32);
            x.granule(8).produce(hooks::rms_norm(&weight, 0.0)).build()
        },
        |x| {
            let norm = |row: &[f32]| {
                let q: Vec<f32> = row.iter().map(|x| x * x).collect();
                let mean = (((q[0] + q[1]) + (q[2] + q[3])) + ((q[4] + q[5]) + (q[6] + q[7]))) / 8.0;
                let factor = 1.0 / mean.sqrt();
                row.iter().enumerate().map(|(k, x)| x * factor * k as f32).collect::<Vec<f32>>()
            };
            x.chunks(8).flat_map(norm).collect()
        },
    );
}

#[test]
fn a_group_of_zeros_stays_zeros() {
    // 8 zeros, then the largest number for which the scale is its minimum, and zeros again.
    let inp = Tensor::from_fn(24, |i| if i == 8 { f32::MIN_POSITIVE } else { 0.0 });
    let zeros = |out: &Tensor<f32>, what: &str| {
        let others: Vec<f32> = (0..24).filter(|&i| i != 8).map(|i| out.get(i)).collect();
        assert_eq!(others, [0.0; 23], "{what}");
        assert!(out.get(8).is_finite(), "{what}: {}", out.get(8));
    };
    let out = Tensor::<f32>::from_slice(&[f32::NAN; 24]);
    map(&out, &inp).produce2(hooks::quantise(F8E4M3::MAX, 8)).consume(hooks::dequantise()).run().unwrap();
    zeros(&out, "fp8");
    out.fill(f32::NAN);
    map(&out, &inp).produce2(hooks::quantise(F8E5M2::MAX, 8)).last_per(8).consume(hooks::dequantise()).run().unwrap();
    zeros(&out, "fp8, wide range");
    out.fill(f32::NAN);
    map(&out, &inp).produce2(hooks::quantise(i8::MAX, 8)).consume(hooks::dequantise()).run().unwrap();
    zeros(&out, "int8");
    out.fill(f32::NAN);
    let weight = Tensor::from_slice(&[1.0f32; 8]);
    map(&out, &inp).produce(hooks::rms_norm(&weight, 1e-9)).run().unwrap();
    zeros(&out, "rms_norm");
}

#[test]
fn what_is_quantised_travels_and_is_restored() {
    over_a_wire(
        "f8e4m3, many tiles, the last group cut",
        number,
        (40_077, 40_077),
        |x| x.produce2(hooks::quantise(F8E4M3::MAX, 128)).consume(hooks::dequantise()).build(),
        |x| quantised_and_back::<f32, f32, _>(x, F8E4M3::MAX, 128),
    );
    // A scale that travels once for each group.
    for len in [1, 47, 96, 40_077] {
        over_a_wire(
            "bf16 as f8e4m3, packed",
            |rank, i| Bf16::from_f32(number(rank, i)),
            (len, len),
            |x| {
                let squeezed = x.blocks(2).granule(96).produce2(hooks::quantise(F8E4M3::MAX, 96)).last_per(96);
                squeezed.consume(hooks::dequantise()).build()
            },
            |x| quantised_and_back::<Bf16, Bf16, _>(x, F8E4M3::MAX, 96),
        );
    }
    over_a_wire(
        "transposed and packed, many tiles",
        number,
        (256 * 192, 256 * 192),
        |x| {
            let squeezed = x
                .chunk_shape(256, 192)
                .output_shape(192, 256)
                .produce2(hooks::transpose().quantised(i8::MAX, 64))
                .last_per(64);
            squeezed.consume(hooks::dequantise()).build()
        },
        |x| {
            let moved: Vec<f32> = (0..256 * 192).map(|k| x[k % 256 * 192 + k / 256]).collect();
            quantised_and_back::<f32, f32, _>(&moved, i8::MAX, 64)
        },
    );
    over_a_wire(
        "f8e4m3",
        number,
        (96, 96),
        |x| x.granule(32).produce2(hooks::quantise(F8E4M3::MAX, 32)).consume(hooks::dequantise()).build(),
        |x| quantised_and_back::<f32, f32, _>(x, F8E4M3::MAX, 32),
    );
    over_a_wire(
        "i8, of bf16, with a cut group",
        |rank, i| Bf16::from_f32(number(rank, i)),
        (77, 77),
        |x| x.granule(16).produce2(hooks::quantise(i8::MAX, 16)).consume(hooks::dequantise()).build(),
        |x| quantised_and_back::<Bf16, Bf16, _>(x, i8::MAX, 16),
    );
    over_a_wire(
        "transposed",
        number,
        (64, 64),
        |x| {
            let squeezed =
                x.chunk_shape(16, 4).output_shape(4, 16).produce2(hooks::transpose().quantised(F8E4M3::MAX, 16));
            squeezed.consume(hooks::dequantise()).build()
        },
        |x| {
            let moved: Vec<f32> = (0..64).map(|k| x[k % 16 * 4 + k / 16]).collect();
            quantised_and_back::<f32, f32, _>(&moved, F8E4M3::MAX, 16)
        },
    );
}

/// The same hooks in collectives of all ranks. Each rank sends a separate chunk to every rank.
#[test]
fn hooks_work_in_collectives() {
    const RANKS: usize = 3;
    const LEN: usize = 2048 + 384;
    let (rows, cols) = (LEN / 128, 128);
    World::threads(RANKS)
        .run(|world| {
            let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
            let me = world.rank().index();
            let inp = Tensor::from_fn(RANKS * LEN, |i| number(me, i));
            let out = Tensor::<f32>::zeros(RANKS * LEN);
            // The chunk of rank `from` for this rank.
            let sent = |from: usize| (0..LEN).map(move |i| number(from, me * LEN + i)).collect::<Vec<f32>>();
            let arrived = |what: &str, expected: &dyn Fn(usize) -> Vec<f32>| {
                for from in 0..RANKS {
                    let got = out.to_vec()[from * LEN..][..LEN].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert!(got.iter().copied().eq(expected(from).iter().map(|x| x.to_bits())), "{what} {me} {from}");
                }
            };

            let shaped = all_to_all(&link, &out, &inp).chunk_shape(rows, cols).output_shape(cols, rows);
            shaped.produce(hooks::transpose().then(|x| x * 2.0)).run()?;
            let moved = |from: usize| (0..LEN).map(|k| sent(from)[k % rows * cols + k / rows]).collect::<Vec<f32>>();
            arrived("transpose", &|from| moved(from).iter().map(|x| x * 2.0).collect());

            let squeezed = all_to_all(&link, &out, &inp).produce2(hooks::quantise(F8E4M3::MAX, 128)).last_per(128);
            squeezed.consume(hooks::dequantise()).run()?;
            arrived("quantise", &|from| quantised_and_back(&sent(from), F8E4M3::MAX, 128));

            out.fill(1.0);
            all_to_all(&link, &out, &inp).consume(hooks::accumulate()).run()?;
            arrived("accumulate", &|from| sent(from).iter().map(|x| 1.0 + x).collect());

            let mine = inp.slice(0..LEN);
            all_gather(&link, &out, &mine).produce(hooks::scale(3.0)).run()?;
            arrived("all_gather", &|from| (0..LEN).map(|i| number(from, i) * 3.0).collect());

            let root = Rank::new(1);
            let y = Tensor::<Bf16>::zeros(LEN);
            broadcast(&link, &y, &mine, root).produce(hooks::cast()).run()?;
            assert!((0..LEN).all(|i| y.get(i) == Bf16::from_f32(number(1, i))));
            Ok(link.close()?)
        })
        .unwrap();
}

// ---- what does not fit --------------------------------------------------------------------------------------------

#[test]
fn hooks_refuse_chunks_they_cannot_work_with() {
    let (out, inp) = (Tensor::<f32>::zeros(12), Tensor::<f32>::zeros(12));
    let (five, six) = (Tensor::<f32>::zeros(5), Tensor::<f32>::zeros(6));
    let says = |result: Result<tilewire::Traced, RunError>, words: &str| {
        let error = result.expect_err(words);
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.misuses().iter().all(|misuse| misuse.at.file.ends_with("hook_library.rs")), "{error}");
    };
    says(map(&out, &inp).produce(hooks::permute([3, 4], [0, 0])).trace(), "is not a permutation of the axes");
    says(map(&out, &inp).produce(hooks::permute([3, 5], [1, 0])).trace(), "a chunk of 12 elements");
    says(map(&out, &inp).produce(hooks::transpose()).trace(), "call chunk_shape");
    says(map(&out, &inp).produce(hooks::rms_norm(&five, 0.0)).trace(), "are not a multiple of 5");
    says(map(&out, &inp).produce(hooks::bias(hooks::per_element(&five))).trace(), "an output chunk of 12 elements");
    let square = || map(&out, &inp).chunk_shape(2, 6);
    says(square().produce(hooks::swiglu()).trace(), "the input must be twice as wide");
    says(square().produce(hooks::scale(hooks::per_row(&six))).trace(), "6 numbers for an output chunk of");
    says(square().produce(hooks::scale(hooks::per_col(&five))).trace(), "give one number for each column");
    says(map(&out, &inp).produce2(hooks::quantise(i8::MAX, 0)).consume(hooks::dequantise()).trace(), "a group of 0");
}

#[test]
fn only_a_value_that_neighbours_share_travels_once_for_them() {
    let (out, inp) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(64));
    let factor = Scalar::new(2.0f32);
    let squeezed = || map(&out, &inp).produce2(hooks::quantise(F8E4M3::MAX, 32));
    for group in [1, 8, 16, 32] {
        squeezed().last_per(group).consume(hooks::dequantise()).trace().unwrap();
    }
    let error = squeezed().last_per(64).consume(hooks::dequantise()).trace().unwrap_err();
    assert!(error.to_string().contains("not known to be the same for all of 64 neighbours"), "{error}");
    type Pair<'t> = (Value<'t, f32>, Value<'t, f32>);
    let traces = |hook: &dyn for<'t> Fn(Value<'t, f32>) -> Pair<'t>| {
        let pairs = map(&out, &inp).produce2(|c| hook(c.input.load(c.pos())));
        pairs.last_per(16).consume(|c, (x, y)| c.output.store(c.pos(), x + y)).trace().is_ok()
    };
    assert!(traces(&|x| (x, (x.group_sum(16) * &factor + 1.0).max(0.0))));
    assert!(!traces(&|x| (x, x)));
    assert!(!traces(&|x| (x, x.group_scan(16))));
    assert!(!traces(&|x| (x, x.group_max(16) + x)));
}

#[test]
fn packed_groups_must_fit_tiles() {
    let links = Rehearsal::small(2, 1).ranks();
    let (out, inp, peer) = (Tensor::<f32>::zeros(960), Tensor::<f32>::zeros(960), Rank::new(1));
    let refused = |config: Knobs, shape: Option<(usize, usize)>, group: usize| {
        let exchange = sendrecv(&links[0], &out, &inp, peer, peer).config(config);
        let exchange =
            shape.iter().fold(exchange, |e, &(rows, cols)| e.chunk_shape(cols, rows).output_shape(rows, cols));
        let squeezed = exchange.produce2(hooks::quantise(i8::MAX, group)).last_per(group);
        squeezed.consume(hooks::dequantise()).trace().err().map(|error| error.to_string())
    };
    let staged =
        Knobs { primitive: Some(Primitive::Staged), slot_bytes: Some(512), depth: Some(2), ..Knobs::default() };
    assert_eq!(refused(staged, None, 24), None);
    assert_eq!(refused(staged, Some((20, 48)), 16), None);
    // Tiles have 16 columns, or all 12. A group of 24 does not fit either, and a group of 500 does not fit a slot.
    assert!(refused(staged, Some((24, 40)), 24).unwrap().contains("groups of 24 elements do not fit tiles of 16"));
    assert!(refused(staged, Some((80, 12)), 24).unwrap().contains("groups of 24 elements do not fit tiles of 12"));
    assert!(refused(staged, None, 500).unwrap().contains("not one element fits a slot, with those that share"));
}

#[test]
fn a_packed_scale_is_written_by_one_of_its_group() {
    let ranks = Rehearsal::small(2, 1).ranks();
    let mut plan = Plan::new(2);
    for len in [400, 384, 400] {
        let trace = |link: &RehearsalRank| {
            let (out, inp) = (Tensor::<f32>::zeros(len), Tensor::<f32>::zeros(len));
            let (to, from) = link.neighbours();
            let config =
                Knobs { primitive: Some(Primitive::Staged), slot_bytes: Some(256), depth: Some(4), ..Knobs::default() };
            let squeezed = sendrecv(link, &out, &inp, to, from).config(config);
            squeezed.produce2(hooks::quantise(i8::MAX, 32)).last_per(32).consume(hooks::dequantise()).trace().unwrap()
        };
        let traced: Vec<_> = ranks.iter().map(trace).collect();
        plan.launch(&[(&traced[0].kernel, &traced[0].args), (&traced[1].kernel, &traced[1].args)]);
    }
    let report = plan.verify(&Settings::default());
    assert!(report.is_clean() && report.is_decided(), "{report}");
}

/// A mistake in a hook of the library is reported at the line where the user gave the hook.
#[test]
fn mistakes_name_the_line_that_gave_the_hook() {
    let (out, inp, index) = (Tensor::<f32>::zeros(4), Tensor::<f32>::zeros(4), Tensor::from_slice(&[0, 1, 9, 2]));
    let given = line!() + 1;
    let error = map(&out, &inp).produce(hooks::transpose()).trace().unwrap_err();
    assert_eq!(error.misuses().iter().map(|m| m.at.line).collect::<Vec<_>>(), vec![given; error.misuses().len()]);

    let at = |result: Result<(), RunError>| match result.unwrap_err() {
        RunError::Launch(LaunchError::OutOfBounds { index: 9, at, .. }) => {
            (at.file.ends_with("hook_library.rs"), at.line)
        }
        other => panic!("{other}"),
    };
    let given = line!() + 1;
    assert_eq!(at(map(&out, &inp).produce(hooks::gather_by(&index)).run()), (true, given));
    let given = line!() + 1;
    assert_eq!(at(map(&out, &inp).consume(hooks::scatter_by(&index)).run()), (true, given));

    // A line of the user's code stays as it is.
    let hook = hooks::copy().then(|x| {
        x.group_max(0) // here
    });
    let here = line!() - 2;
    let error = map(&out, &inp).produce(hook).trace().unwrap_err();
    assert_eq!(error.misuses()[0].at.line, here);
}
