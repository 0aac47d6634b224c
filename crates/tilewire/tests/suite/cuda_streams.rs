//! Launches on streams of others, in order and captured; without a GPU these tests say so and pass, but for those that
//! need none.

use cudarc::driver::sys;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;
use tilewire::cuda::{CudaError, Device, ForeignStream};
use tilewire::link::{NvlOptions, NvlTransport};
use tilewire::transport::World;
use tilewire::{Rank, RunError, Tensor, all_gather, all_reduce, map, recv, send};

fn device() -> Option<Arc<Device>> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            tilewire_testkit::skip::skip("cuda", error);
            None
        }
    }
}

/// A stream that tilewire did not make, with the calls that its owner makes.
struct Theirs {
    stream: Arc<cudarc::driver::CudaStream>,
}

impl Theirs {
    fn new() -> Self {
        Theirs { stream: cudarc::driver::CudaContext::new(0).unwrap().new_stream().unwrap() }
    }

    fn handle(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    fn foreign(&self) -> ForeignStream {
        // SAFETY: the stream is kept; its graphs go before the transports.
        unsafe { ForeignStream::new(self.handle().cast(), Arc::new(self.stream.clone())) }
    }

    fn sync(&self) {
        self.stream.synchronize().unwrap();
    }

    fn fill(&self, tensor: &Tensor<f32>, with: f32) {
        // SAFETY: the tensor's bytes, which the caller keeps until the stream is done.
        unsafe { sys::cuMemsetD32Async(address(tensor), with.to_bits(), tensor.len(), self.handle()) }
            .result()
            .unwrap();
    }

    fn copy(&self, to: &Tensor<f32>, from: &Tensor<f32>) {
        assert_eq!(to.len(), from.len());
        // SAFETY: as above.
        unsafe { sys::cuMemcpyDtoDAsync_v2(address(to), address(from), 4 * to.len(), self.handle()) }.result().unwrap();
    }

    /// Later work here comes after the current work there.
    fn after(&self, other: &Theirs) {
        self.stream.join(&other.stream).unwrap();
    }

    /// Records what `body` puts on the stream, as others do: their mode forbids unsafe calls to all threads.
    fn capture(&self, body: impl FnOnce()) -> Replay {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        let (mut graph, mut exec) = (null_mut(), null_mut());
        // SAFETY: the stream lives; the graph is destroyed once it is instantiated.
        unsafe {
            sys::cuStreamBeginCapture_v2(self.handle(), mode).result().unwrap();
            body();
            sys::cuStreamEndCapture(self.handle(), &mut graph).result().unwrap();
            sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0).result().unwrap();
            sys::cuGraphDestroy(graph).result().unwrap();
        }
        Replay(exec)
    }
}

/// A graph of others.
struct Replay(sys::CUgraphExec);

impl Replay {
    fn on(&self, stream: &Theirs) {
        // SAFETY: both live.
        unsafe { sys::cuGraphLaunch(self.0, stream.handle()) }.result().unwrap();
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // SAFETY: instantiated once; the tests have waited for its replays.
        _ = unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}

fn address(tensor: &Tensor<f32>) -> u64 {
    tensor.memory().start().addr().get() as u64
}

fn options() -> NvlOptions {
    NvlOptions { foreign_captures: true, ..NvlOptions::default() }
}

/// No GPU is needed to say that there is none.
#[test]
fn a_stream_of_a_gpu_is_refused_by_a_kernel_on_the_cpu() {
    // SAFETY: the default stream always lives.
    let stream = unsafe { ForeignStream::new(null_mut(), Arc::new(())) };
    let (x, y) = (Tensor::<f32>::from_fn(8, |i| i as f32), Tensor::<f32>::zeros(8));
    let mut double = map(&y, &x).produce(|c| c.input.load(c.pos()) * 2.0).build().unwrap();
    let error = double.run_on(&stream).unwrap_err();
    assert!(matches!(error, RunError::Cuda(CudaError::Stream { .. })), "{error:?}");
    assert!(error.to_string().contains("this kernel runs on the CPU: call run()"), "{error}");
    assert_eq!(y.get(3), 0.0);
    double.run().unwrap();
    assert_eq!(y.get(3), 6.0);
    let result = World::threads(2).run(|world| {
        let link = tilewire::link::ShmTransport::rendezvous(&world, Default::default())?;
        let (x, y) = (Tensor::from_fn(4, |_| world.rank().number()), Tensor::<u32>::zeros(8));
        let mut gather = all_gather(&link, &y, &x).build()?;
        // SAFETY: as above.
        let stream = unsafe { ForeignStream::new(null_mut(), Arc::new(())) };
        assert!(matches!(gather.run_on(&stream), Err(RunError::Cuda(CudaError::Stream { .. }))));
        // Nothing was started, so nothing is broken.
        gather.run()?;
        assert_eq!(y.to_vec(), [0, 0, 0, 0, 1, 1, 1, 1]);
        drop(gather);
        Ok(link.close()?)
    });
    result.unwrap();
}

/// Each rank has two streams in turn: what is on them before and after a launch is ordered with it, and launches for
/// different streams with each other.
#[test]
fn launches_on_streams_of_others_are_between_their_work() {
    let Some(device) = device() else { return };
    let world = World::threads(2).deadline(Duration::from_secs(60));
    let result = world.run(|world| {
        let link = NvlTransport::rendezvous(&world, &device, NvlOptions::default())?;
        let (me, len, rounds) = (world.rank().index(), 50_000, 100);
        let theirs = [Theirs::new(), Theirs::new()];
        let zeros = |len| device.zeros::<f32>(len);
        let (x, y) = ([zeros(len)?, zeros(len)?], [zeros(2 * len)?, zeros(2 * len)?]);
        let logs = [zeros(2 * len * rounds)?, zeros(2 * len * rounds)?];
        let mut gathers = (0..2).map(|k| all_gather(&link, &y[k], &x[k]).build()).collect::<Result<Vec<_>, _>>()?;
        for round in 0..rounds {
            for (k, theirs) in theirs.iter().enumerate() {
                theirs.fill(&x[k], (1000 * k + 10 * round + me) as f32);
                gathers[k].run_on(&theirs.foreign())?;
                theirs.copy(&logs[k].slice(2 * len * round..2 * len * (round + 1)), &y[k]);
            }
            // A launch of the transport's own, between those.
            if round % 10 == 0 {
                let (x, y) = (device.tensor(&[me as f32])?, zeros(1)?);
                let mut sum = all_reduce(&link, &y, &x).build()?;
                sum.run()?;
                assert_eq!(y.get(0), 1.0);
            }
        }
        theirs.iter().for_each(Theirs::sync);
        for (k, gather) in gathers.iter_mut().enumerate() {
            gather.sync()?;
            let log = logs[k].to_vec();
            for (i, got) in log.iter().enumerate().step_by(997) {
                let (round, rank) = (i / (2 * len), i / len % 2);
                assert_eq!(*got, (1000 * k + 10 * round + rank) as f32, "element {i}, stream {k}");
            }
        }
        drop(gathers);
        Ok(link.close()?)
    });
    result.unwrap();
}

/// Two ranks of one thread in one graph of theirs, on forked streams, replayed with changing data; with launches of the
/// transports' own in between, and without.
#[test]
fn a_capture_of_others_is_replayed_a_thousand_times_with_changing_data() {
    let Some(device) = device() else { return };
    for is_mixed in [false, true] {
        let ranks = NvlTransport::virtual_ranks(&device, 2, options()).unwrap();
        let (len, rounds) = (5000, 1000);
        let zeros = |len| device.zeros::<f32>(len).unwrap();
        let (x, y) = ([zeros(len), zeros(len)], [zeros(len), zeros(len)]);
        let log = zeros(len * rounds);
        let mut sums: Vec<_> = (0..2).map(|k| all_reduce(&ranks[k], &y[k], &x[k]).build().unwrap()).collect();
        let (main, side) = (Theirs::new(), Theirs::new());
        let streams = [&main, &side];
        // Before the capture, as its users do. If both ranks' streams are the only ones, no event nodes are needed.
        for (sum, stream) in sums.iter_mut().zip(streams) {
            match is_mixed {
                true => sum.run().unwrap(),
                false => sum.run_on(&stream.foreign()).unwrap(),
            }
        }
        streams.iter().for_each(|stream| stream.sync());
        sums.iter_mut().for_each(|sum| sum.sync().unwrap());
        let graph = main.capture(|| {
            side.after(&main);
            for (sum, stream) in sums.iter_mut().zip(streams) {
                sum.run_on(&stream.foreign()).unwrap();
            }
            main.after(&side);
        });
        for round in 0..rounds {
            main.fill(&x[0], round as f32);
            main.fill(&x[1], 3.0);
            graph.on(&main);
            main.copy(&log.slice(len * round..len * (round + 1)), &y[1]);
            if is_mixed && round % 3 == 0 {
                // Without a wait before or after: none of the three may run beside another. They have the same input
                // and output, so this is all that counts.
                let plain: Result<(), RunError> = sums.iter_mut().try_for_each(|sum| sum.run());
                plain.unwrap();
                graph.on(&main);
            }
            if is_mixed {
                // The plain launches read what is filled next.
                sums.iter_mut().for_each(|sum| sum.sync().unwrap());
            }
        }
        main.sync();
        let log = log.to_vec();
        for (i, got) in log.iter().enumerate().step_by(331) {
            assert_eq!(*got, (i / len) as f32 + 3.0, "element {i}, mixed: {is_mixed}");
        }
        sums.iter_mut().for_each(|sum| sum.sync().unwrap());
        // The graph alone keeps what its launches use.
        let refused = sums[0].run();
        assert_eq!(is_mixed, refused.is_ok(), "{refused:?}");
        if is_mixed {
            sums[1].run().unwrap();
            sums.iter_mut().for_each(|sum| sum.sync().unwrap());
        }
        drop(sums);
        main.fill(&x[0], -1.0);
        graph.on(&main);
        main.sync();
        assert_eq!(y[0].get(len - 1), 2.0);
        drop(graph);
    }
}

/// Two graphs without event nodes, replayed on different streams: the launches of both end, and it is said why.
#[test]
fn replays_that_overlap_end_with_an_error() {
    let Some(device) = device() else { return };
    let ranks = NvlTransport::virtual_ranks(&device, 2, options()).unwrap();
    let (x, y) = (device.zeros::<f32>(100).unwrap(), device.zeros::<f32>(100).unwrap());
    // The other rank never launches, so each replay waits until something ends it.
    let mut take = recv(&ranks[0], &y, Rank::new(1)).build().unwrap();
    let give = send(&ranks[1], &x, Rank::new(0)).build().unwrap();
    let (first, second) = (Theirs::new(), Theirs::new());
    let graphs = [0, 1].map(|_| first.capture(|| take.run_on(&first.foreign()).unwrap()));
    let start = std::time::Instant::now();
    graphs[0].on(&first);
    graphs[1].on(&second);
    first.sync();
    second.sync();
    assert!(start.elapsed() < Duration::from_secs(20), "the deadline has not ended them");
    let error = take.sync().unwrap_err();
    assert!(matches!(error, RunError::Cuda(CudaError::Overlapped { .. })), "{error:?}");
    assert!(error.to_string().contains("another launch or replay"), "{error}");
    assert!(take.run_on(&first.foreign()).is_err(), "the transport is broken");
    drop((graphs, take, give));
}

#[test]
fn streams_that_cannot_be_ordered_are_refused_and_nothing_is_lost() {
    let Some(device) = device() else { return };
    let (theirs, others) = (Theirs::new(), Theirs::new());
    let (x, y) = (device.tensor(&[1.0f32, 2.0]).unwrap(), device.zeros::<f32>(2).unwrap());
    let is_refused = |result: Result<(), RunError>, why: &str| {
        let error = result.unwrap_err();
        assert!(matches!(error, RunError::Cuda(CudaError::Stream { .. } | CudaError::Capturing { .. })), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
    };
    // A transport that finds no overlap may not be captured.
    let ranks = NvlTransport::virtual_ranks(&device, 1, NvlOptions::default()).unwrap();
    let mut op = all_gather(&ranks[0], &y, &x).build().unwrap();
    op.run_on(&theirs.foreign()).unwrap();
    theirs.sync();
    drop(theirs.capture(|| is_refused(op.run_on(&theirs.foreign()), "foreign_captures")));
    op.run_on(&theirs.foreign()).unwrap();
    theirs.sync();
    assert_eq!(y.to_vec(), [1.0, 2.0]);
    // In a capture of one's own, `run` is the way.
    let stream = ranks[0].seat().stream.clone();
    let captured = stream.capture(&[], || {
        is_refused(op.run_on(&theirs.foreign()), "while launches are recorded");
        op.run()
    });
    drop(captured.unwrap());
    drop(op);
    drop(ranks);
    // Captured alone: other streams would not be ordered with the replays.
    let ranks = NvlTransport::virtual_ranks(&device, 1, options()).unwrap();
    let mut op = all_gather(&ranks[0], &y, &x).build().unwrap();
    op.run_on(&theirs.foreign()).unwrap();
    let graph = theirs.capture(|| op.run_on(&theirs.foreign()).unwrap());
    is_refused(op.run(), "run_on(..) on that stream");
    is_refused(op.run_on(&others.foreign()), "run_on(..) on that stream");
    drop(others.capture(|| is_refused(op.run_on(&others.foreign()), "capture from that stream")));
    theirs.fill(&x, 7.0);
    graph.on(&theirs);
    op.run_on(&theirs.foreign()).unwrap();
    theirs.sync();
    op.sync().unwrap();
    assert_eq!(y.to_vec(), [7.0, 7.0]);
    // A map shares nothing with other launches, and may be captured anywhere.
    let mut double = map(&y, &x).produce(|c| c.input.load(c.pos()) * 2.0).build().unwrap();
    double.run_on(&others.foreign()).unwrap();
    others.sync();
    let doubles = others.capture(|| double.run_on(&others.foreign()).unwrap());
    drop(double);
    others.fill(&x, 4.0);
    doubles.on(&others);
    others.sync();
    assert_eq!(y.to_vec(), [8.0, 8.0]);
}
