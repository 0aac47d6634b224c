//! The GPU engine on a GPU; without one these tests say so and pass. `TILEWIRE_REQUIRE=cuda` makes a missing GPU a
//! failure.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewire::check::{self, Options};
use tilewire::collective::{Map, PreparedExchange, Rounds};
use tilewire::cuda::{CudaError, Device};
use tilewire::hooks::Compose;
use tilewire::ir::RequiredBytes;
use tilewire::ir::scalar::Element;
use tilewire::link::{NvlOptions, NvlTransport};
use tilewire::transport::World;
use tilewire::{Bf16, F8E4M3, Memory, RunError, Scalar, Tensor, all_reduce, barrier, hooks, kernel, map};
use tilewire_testkit::copied::evaluate;
use tilewire_testkit::hook_samples;
use tilewire_testkit::programs::{Hosted, Program};
use tilewire_testkit::random::Random;

fn device() -> Option<Arc<Device>> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            skip(&error);
            None
        }
    }
}

fn skip(error: &CudaError) {
    tilewire_testkit::skip::skip("cuda", error);
}

#[test]
fn a_gpu_and_the_evaluator_agree() {
    let Some(device) = device() else { return };
    let cases = std::env::var("TILEWIRE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    let mut random = Random::new(7);
    for _ in 0..cases {
        let program = Program::new(random.next(), 1 + random.below_u64(5));
        let (binding, memories) = program.bind();
        let after = check::run(&program.kernel, &binding, memories, Options::default()).unwrap();
        let expected = program.results(&binding, &after);
        let hosted = Hosted::new(&program);
        match evaluate(&device, &program.kernel, &hosted.args, Some(Duration::from_secs(10))) {
            Ok(mut got) => {
                // Scalars are arguments, so they are no results.
                let scalars = expected.iter().enumerate().filter(|(_, banks)| banks.is_empty());
                scalars.for_each(|(p, _)| got[p].clear());
                assert!(program.comparable(got) == expected, "{program:?}");
            }
            Err(CudaError::Ptx(_)) => {}
            Err(error) => panic!("{error}\n{program:?}"),
        }
    }
}

#[test]
fn a_wait_in_vain_ends_with_who_waited_for_what() {
    let Some(device) = device() else { return };
    let (slots, y) = ([Memory::zeroed(4 * 64)], Tensor::<u32>::zeros(4));
    let traced = kernel("lonely", |k| {
        let (slots, y) = (k.slots("slots", &slots, 64), k.output(&y));
        k.role("waiter", 2).run(|r| {
            r.wait(slots.slot(0, 3), 5);
            r.each(4, |i| y.store(i, 1u32));
        });
    })
    .unwrap();
    let start = Instant::now();
    let error = evaluate(&device, &traced.kernel, &traced.args, Some(Duration::from_millis(100))).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(20), "{error}");
    let CudaError::Timeout(stopped) = &error else { panic!("{error}") };
    assert_eq!((stopped.role.as_str(), stopped.param.as_str(), stopped.index), ("waiter", "slots", 3));
    assert_eq!((stopped.expected, stopped.seen), (5, 0));
    assert!(error.to_string().contains("cuda_engine.rs"), "{error}");
    // The device stays usable.
    let x = Tensor::from_fn(1000, |i| i as f32);
    let traced = kernel("double", |k| {
        let x = k.inout(&x);
        k.main(|r| r.each(x.len(), |i| x.store(i, x.load(i) * 2.0)));
    })
    .unwrap();
    let results = evaluate(&device, &traced.kernel, &traced.args, None).unwrap();
    let wanted: Vec<u8> = (0..1000).flat_map(|i| (i as f32 * 2.0).to_le_bytes()).collect();
    assert_eq!(results[0][0], wanted);
}

#[test]
fn a_requirement_that_does_not_hold_ends_the_launch_before_anything_is_written() {
    let Some(device) = device() else { return };
    for bytes in [64, 65] {
        let (y, count) = (Tensor::<u8>::zeros(64), Scalar::new(bytes));
        let traced = kernel("fill", |k| {
            k.blocks(4);
            let y = k.output(&y);
            k.role("fill", 4).copies(2, |r| {
                r.if_(r.block().eq(2) & r.copy().eq(1), || {
                    let count = r.scalar(&count);
                    r.require_inside(3, 0, count, 64);
                    r.each(64, |i| y.store(i, 1u8));
                });
            });
        })
        .unwrap();
        let result = evaluate(&device, &traced.kernel, &traced.args, Some(Duration::from_secs(10)));
        if bytes == 64 {
            assert_eq!(result.unwrap()[0][0], [1; 64]);
            continue;
        }
        let Err(CudaError::Required(unmet)) = &result else { panic!("{result:?}") };
        assert_eq!((unmet.block, unmet.role.as_str(), unmet.copy), (2, "fill", 1));
        assert_eq!(unmet.span, Some(RequiredBytes { rank: 3, offset: 0, bytes: 65, size: 64 }));
        assert!(unmet.at.file.ends_with("cuda_engine.rs"), "{unmet}");
    }
}

#[test]
fn a_device_that_is_not_there_is_named() {
    match Device::open(1000) {
        Err(error @ CudaError::NoDevice { ordinal, .. }) => {
            assert_eq!(ordinal, 1000);
            assert!(error.to_string().starts_with("there is no GPU 1000; the driver knows "), "{error}");
        }
        // Without a usable driver there is nothing to ask.
        Err(error) if Device::count().is_err() => skip(&error),
        other => panic!("{other:?}"),
    }
}

/// Tensors on the device, and equal tensors on the host.
#[test]
fn a_map_runs_where_its_tensors_lie() {
    let Some(device) = device() else { return };
    for len in [0, 1, 31, 1000, 100_000, 3_000_001] {
        let data: Vec<f32> = (0..len).map(|i| (i % 1000) as f32 - 500.0).collect();
        let (x, y) = (device.tensor(&data).unwrap(), device.zeros::<f32>(len).unwrap());
        let (host_x, host_y) = (Tensor::from_slice(&data), Tensor::<f32>::zeros(len));
        let mut on_gpu = map(&y, &x).produce(|c| hooks::gelu(c.input.load(c.pos()))).build().unwrap();
        map(&host_y, &host_x).produce(|c| hooks::gelu(c.input.load(c.pos()))).run().unwrap();
        for _ in 0..3 {
            on_gpu.run().unwrap();
        }
        on_gpu.sync().unwrap();
        assert!(y.to_vec() == host_y.to_vec(), "{len} elements");
        assert!(on_gpu.disassembly().contains(".visible .entry"), "PTX");
        // In place, with separate knobs.
        map(&y, &y).produce(|c| c.input.load(c.pos()) * 2.0).blocks(3).warps(4).unroll(2).run().unwrap();
        map(&host_y, &host_y).produce(|c| c.input.load(c.pos()) * 2.0).run().unwrap();
        assert!(y.to_vec() == host_y.to_vec(), "{len} elements in place");
    }
    let (rows, cols) = (300, 500);
    let data: Vec<i32> = (0..rows * cols).collect();
    let (x, y) = (device.tensor(&data).unwrap(), device.zeros::<i32>(data.len()).unwrap());
    let turned = map(&y, &x).chunk_shape(300, 500).output_shape(500, 300).produce(|c| c.input.at(c.col(), c.row()));
    assert!(turned.explain().unwrap().contains("on a GPU"));
    turned.run().unwrap();
    assert_eq!(y.get(1), 500);
    // One tensor lies on the host, the other on the device.
    let error = map(&y, &Tensor::<i32>::zeros(data.len())).run().unwrap_err();
    assert!(matches!(error, RunError::Cuda(CudaError::Argument { .. })), "{error}");
}

/// Every hook with every type, on numbers of all kinds. Each is a kernel on copies of its tensors.
#[test]
fn every_hook_of_the_library_gives_its_bits_on_a_gpu() {
    let Some(device) = device() else { return };
    for sample in hook_samples::all() {
        let (traced, name) = (&sample.traced, &sample.name);
        let results = evaluate(&device, &traced.kernel, &traced.args, Some(Duration::from_secs(10)));
        let results = results.unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Some(fault) = sample.fault(&results[sample.param()][0]) {
            panic!("{fault}\n{}", traced.kernel);
        }
    }
}

/// The place of a map's tensors: a GPU or the host.
#[derive(Clone, Copy)]
struct Place<'d>(Option<&'d Arc<Device>>);

impl Place<'_> {
    fn tensor<T: Element>(&self, len: usize, of: impl Fn(usize) -> T) -> Tensor<T> {
        let data: Vec<T> = (0..len).map(of).collect();
        self.0.map_or_else(|| Tensor::from_slice(&data), |device| device.tensor(&data).unwrap())
    }
}

/// A map on the device gives the same result as on the host. Its hooks capture tensors of the same place.
fn maps_alike<In: Element, Out: Element>(
    gpu: Place<'_>,
    name: &str,
    (sent, inp): (usize, fn(usize) -> In),
    (received, out): (usize, fn(usize) -> Out),
    build: impl for<'h> Fn(Map<'h, In, Out>, &Place<'_>) -> Result<PreparedExchange<'static>, RunError>,
) {
    let [on_gpu, on_host] = [gpu, Place(None)].map(|place| {
        let (x, y) = (place.tensor(sent, inp), place.tensor(received, out));
        let run = || -> Result<(), RunError> {
            let mut map = build(map(&y, &x), &place)?;
            // The second launch sees the results of the first one.
            (0..2).try_for_each(|_| map.run())?;
            map.sync()
        };
        run().unwrap_or_else(|error| panic!("{name}: {error}"));
        y.to_vec()
    });
    let wrong = (0..received).find(|&i| on_gpu[i].to_bits() != on_host[i].to_bits());
    let of = |i: usize| (i, on_gpu[i].to_bits(), on_host[i].to_bits());
    assert_eq!(wrong.map(of), None, "{name}: (position, bits on the GPU, on the host)");
}

type Build = dyn for<'h> Fn(Map<'h, f32, f32>, &Place<'_>) -> Result<PreparedExchange<'static>, RunError>;

#[test]
fn maps_of_every_hook_agree_on_device_tensors() {
    let Some(device) = device() else { return };
    let gpu = Place(Some(&device));
    fn number(i: usize) -> f32 {
        ((i * 37) % 1013) as f32 / 7.0 - 60.0
    }
    const N: usize = 120 * 257;
    let like = |name: &str, build: &Build| {
        maps_alike(gpu, name, (N, number), (N, |_| 0.0), build);
    };
    like("copy", &|map, _| map.produce(hooks::copy()).build());
    like("gelu", &|map, _| map.produce(hooks::copy().then(hooks::gelu)).build());
    like("silu", &|map, _| map.produce(hooks::copy().then(hooks::silu)).build());
    like("transpose", &|map, _| map.chunk_shape(120, 257).output_shape(257, 120).produce(hooks::transpose()).build());
    like("permute", &|map, _| map.produce(hooks::permute([8, 257, 15], [2, 0, 1])).build());
    like("gather_by", &|map, place| {
        let index = place.tensor(N, |i| (i * 7 % N) as i32);
        map.produce(hooks::gather_by(&index)).build()
    });
    like("scatter_by", &|map, place| {
        // 7 has no common divisor with the length.
        let index = place.tensor(N, |i| (i * 7 % N) as u32);
        map.consume(hooks::scatter_by(&index)).build()
    });
    like("mask and keep", &|map, _| {
        let masked = map.produce(hooks::mask(|c| (c.pos() % 5).ne(0), -1.0));
        masked.consume(hooks::keep(|c| c.pos().lt(30_000))).build()
    });
    like("scale", &|map, _| {
        let factor = Scalar::new(1.7f32);
        map.produce(hooks::scale(&factor)).build()
    });
    like("bias", &|map, place| {
        let columns = place.tensor(257, number);
        map.chunk_shape(120, 257).produce(hooks::bias(hooks::per_col(&columns))).consume(hooks::accumulate()).build()
    });
    like("rms_norm", &|map, place| {
        let weight = place.tensor(120, number);
        map.produce(hooks::rms_norm(&weight, 1e-5)).build()
    });
    like("quantise and dequantise", &|map, _| {
        map.produce2(hooks::quantise(F8E4M3::MAX, 24)).consume(hooks::dequantise()).build()
    });
    like("quantise to integers, with a shared scale", &|map, _| {
        map.produce2(hooks::quantise(i8::MAX, 8)).last_per(8).consume(hooks::dequantise()).build()
    });
    maps_alike(gpu, "swiglu", (N, number), (N / 2, |_| 0.0f32), |map, _| {
        map.chunk_shape(257, 120).output_shape(257, 60).produce(hooks::swiglu()).build()
    });
    maps_alike(gpu, "cast and store", (N, number), (N, |_| 0i16), |map, _| {
        map.produce(hooks::copy().then(|x| x.cast::<Bf16>())).consume(hooks::store()).build()
    });
    maps_alike(gpu, "accumulate", (N, |i| Bf16::from_f32(number(i))), (N, number), |map, _| {
        map.consume(hooks::accumulate()).build()
    });
}

/// Maps and collectives of a thread run in the order of its calls, although they use different streams.
#[test]
fn maps_and_collectives_on_a_gpu_keep_their_order() {
    let Some(device) = device() else { return };
    const LEN: usize = 1 << 20;
    let world = World::threads(2).deadline(Duration::from_secs(60));
    let ends = world.run(|world| {
        let link = NvlTransport::rendezvous(&world, &device, NvlOptions::default())?;
        barrier(&link).run()?;
        let (x, y) = (device.tensor(&vec![1.0f32; LEN])?, device.zeros::<f32>(LEN)?);
        let mut double = map(&x, &y).produce(|c| c.input.load(c.pos()) * 2.0).build()?;
        let mut reduce = all_reduce(&link, &y, &x).rounds(Rounds::Blocks).build()?;
        for _ in 0..8 {
            reduce.run()?; // y = 2 x
            double.run()?; // x = 2 y
        }
        reduce.sync()?;
        double.sync()?;
        drop((double, reduce));
        let end = (x.get(0), x.get(LEN - 1));
        link.close()?;
        Ok(end)
    });
    let must = 4.0f32.powi(8);
    assert_eq!(ends.unwrap(), [(must, must); 2]);
}
