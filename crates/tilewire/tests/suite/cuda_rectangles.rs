//! Rows, columns, foreign memory and rebinding on a GPU. Without a GPU these tests say so and pass.

use std::sync::Arc;
use std::time::Duration;
use tilewire::collective::RebindError;
use tilewire::cuda::{CudaError, Device};
use tilewire::link::{NvlOptions, NvlTransport, Window};
use tilewire::tensor::{Axis, Foreign};
use tilewire::transport::World;
use tilewire::{Primitive, Rank, RunError, Tensor, all_gather, all_reduce, all_to_all, map, recv, send};

fn device() -> Option<Arc<Device>> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            tilewire_testkit::skip::skip("cuda", error);
            None
        }
    }
}

/// A matrix on the device whose element `i` is `first + i`.
fn matrix(device: &Arc<Device>, rows: usize, cols: usize, first: usize) -> Result<Tensor<f32>, CudaError> {
    let data: Vec<f32> = (0..rows * cols).map(|i| ((first + i) % 65_536) as f32).collect();
    Ok(device.tensor(&data)?.reshape(rows, cols).expect("as many elements"))
}

#[test]
fn columns_on_a_gpu_are_those_of_the_host_and_their_neighbours_stay() {
    let Some(device) = device() else { return };
    for (rows, stride, from, to, cols) in
        [(1, 8, 0, 3, 5), (33, 64, 16, 32, 16), (300, 77, 5, 40, 31), (64, 4096, 1024, 2048, 1024), (5000, 3, 1, 2, 1)]
    {
        let (x, y) = (matrix(&device, rows, stride, 1).unwrap(), matrix(&device, rows, stride, 50_000).unwrap());
        let scale = matrix(&device, rows, stride, 7).unwrap().columns(from..from + cols);
        let before = y.to_vec();
        map(&y.columns(to..to + cols), &x.columns(from..from + cols))
            // A captured tensor that is strided as well.
            .produce(|c| c.input.load(c.pos()) + c.captured(&scale).matrix().at(c.row(), c.col()))
            .chunk_shape(rows, cols)
            .run()
            .unwrap();
        let (x, after, scale) = (x.to_vec(), y.to_vec(), scale.to_vec());
        for i in 0..rows * stride {
            let (row, col) = (i / stride, i % stride);
            let must = match (to..to + cols).contains(&col) {
                true => x[row * stride + from + col - to] + scale[row * cols + col - to],
                false => before[i],
            };
            assert_eq!(after[i], must, "row {row}, column {col} of {rows} rows {stride} apart");
        }
    }
}

#[test]
fn ranks_on_a_gpu_send_columns_by_every_protocol() {
    let Some(device) = device() else { return };
    let (ranks, rows, cols) = (3, 70, 24);
    let world = World::threads(ranks).deadline(Duration::from_secs(60));
    let result = world.run(|world| {
        let link = NvlTransport::rendezvous(&world, &device, NvlOptions::default())?;
        let me = world.rank().index();
        let wide = 3 * ranks * cols;
        let inp = matrix(&device, rows, wide, 1000 * me)?.columns(ranks * cols..2 * ranks * cols);
        let element =
            |rank: usize, row: usize, col: usize| ((1000 * rank + row * wide + ranks * cols + col) % 65_536) as f32;
        for primitive in
            [None, Some(Primitive::Packet), Some(Primitive::Staged), Some(Primitive::Bulk), Some(Primitive::Direct)]
        {
            let len = ranks * rows * cols;
            let window = Window::<f32>::allocate(&link, len)?;
            let out = match primitive {
                Some(Primitive::Direct) => window.tensor().clone(),
                _ => device.zeros::<f32>(len)?,
            };
            let out = out.reshape(rows, ranks * cols)?;
            let mut op = all_to_all(&link, &out, &inp).along(Axis::Cols);
            if let Some(primitive) = primitive {
                op = op.primitive(primitive);
            }
            if primitive == Some(Primitive::Direct) {
                op = op.window(&window);
            }
            let mut op = op.build()?;
            for _ in 0..3 {
                op.run()?;
            }
            op.sync()?;
            drop(op);
            for (i, got) in out.to_vec().into_iter().enumerate() {
                let (row, col) = (i / (ranks * cols), i % (ranks * cols));
                let must = element(col / cols, row, me * cols + col % cols);
                assert_eq!(got, must, "{primitive:?}: row {row}, column {col} of rank {me}");
            }
            // In place along columns.
            let mine = out.columns(me * cols..(me + 1) * cols);
            mine.fill(me as f32 + 1.0);
            if primitive != Some(Primitive::Direct) {
                all_gather(&link, &out, &mine).along(Axis::Cols).run()?;
                assert_eq!(out.rows(7..8).to_vec()[cols..2 * cols], vec![2.0; cols]);
            }
        }
        let (x, y) = (inp.columns(0..cols), device.zeros::<f32>(rows * cols)?.reshape(rows, cols)?);
        all_reduce(&link, &y, &x).run()?;
        let must: f32 = (0..ranks).map(|rank| element(rank, 3, 5)).sum();
        assert_eq!(y.get(3 * cols + 5), must);
        Ok(link.close()?)
    });
    result.unwrap();
}

#[test]
fn a_rebind_on_a_gpu_patches_parameters_and_graphs_keep_theirs() {
    let Some(device) = device() else { return };
    let tensors: Vec<Tensor<f32>> = (0..4).map(|k| matrix(&device, 64, 64, 1000 * k).unwrap()).collect();
    let out = device.zeros::<f32>(64 * 64).unwrap().reshape(64, 64).unwrap();
    let mut op = map(&out, &tensors[0]).produce(|c| c.input.load(c.pos()) * 2.0).build().unwrap();
    for k in 0..10_000 {
        op.rebind(&out, &tensors[k % 4]).unwrap();
        if k % 50 == 0 {
            op.run().unwrap();
            assert_eq!(out.get(5), 2.0 * (1000 * (k % 4) + 5) as f32);
        }
    }
    // Two launches with two bindings are in flight while the owner of a tensor lets go of it.
    let other = device.zeros::<f32>(64 * 64).unwrap().reshape(64, 64).unwrap();
    op.run().unwrap();
    op.rebind(&other, &matrix(&device, 64, 64, 7).unwrap()).unwrap();
    op.run().unwrap();
    op.sync().unwrap();
    assert_eq!(other.get(1), 16.0);
    let odd = device.zeros::<f32>(64 * 64 + 1).unwrap().slice(1..64 * 64 + 1).reshape(64, 64).unwrap();
    let error = op.rebind(&out, &odd).unwrap_err();
    assert!(matches!(error, RunError::Rebind(RebindError::Alignment { .. })), "{error}");
    let host = Tensor::<f32>::zeros(64 * 64).reshape(64, 64).unwrap();
    assert!(matches!(op.rebind(&out, &host), Err(RunError::Rebind(RebindError::Reach { .. }))));

    // A captured launch keeps the tensors that it was captured with.
    let world = World::threads(1);
    let result = world.run(|world| {
        let link = NvlTransport::rendezvous(&world, &device, NvlOptions::default())?;
        let stream = &link.seat().stream.clone();
        let (first, second) = (matrix(&device, 8, 8, 0)?.columns(2..6), matrix(&device, 8, 8, 500)?.columns(2..6));
        let out = device.zeros::<f32>(32)?.reshape(8, 4)?;
        let mut op = all_gather(&link, &out, &first).build()?;
        op.run()?;
        let graph = stream.capture(&[], || op.run())?;
        op.rebind(&out, &second)?;
        op.run()?;
        op.sync()?;
        assert_eq!(out.get(0), 502.0);
        first.set(0, 77.0);
        for k in 0..1000 {
            first.set(1, k as f32);
            graph.replay(stream)?;
            stream.sync()?;
            if k % 100 == 0 {
                assert_eq!((out.get(0), out.get(1)), (77.0, k as f32));
            }
        }
        drop((graph, op));
        Ok(link.close()?)
    });
    result.unwrap();
}

/// One thread plays both ranks, so a rebind that waited for the launch in flight would wait for a launch that this
/// thread has yet to make.
#[test]
fn a_rebind_beside_a_launch_in_flight_waits_for_nothing_and_changes_nothing_of_it() {
    let Some(device) = device() else { return };
    let ranks = NvlTransport::virtual_ranks(&device, 2, NvlOptions::default()).unwrap();
    let (len, rounds) = (1 << 16, 300);
    let into = device.zeros::<f32>(len).unwrap();
    let numbered = |k: usize| device.tensor(&vec![k as f32; len]).unwrap();
    let first = numbered(0);
    let mut give = send(&ranks[0], &first, Rank::new(1)).build().unwrap();
    let mut take = recv(&ranks[1], &into, Rank::new(0)).build().unwrap();
    // More than are kept without a wait: the launches that they belong to have been made by then.
    for k in 0..rounds {
        give.run().unwrap();
        // Its owner has nothing left of the tensor that the launch sends.
        let next = numbered(k + 1);
        give.rebind(&next, &next).unwrap();
        take.run().unwrap();
        if k % 37 == 0 {
            assert_eq!((into.get(0), into.get(len - 1)), (k as f32, k as f32));
        }
    }
    give.sync().unwrap();
    take.sync().unwrap();
    assert_eq!(into.get(5), (rounds - 1) as f32);
}

#[test]
fn foreign_device_memory_is_used_in_place_and_kept_alive() {
    let Some(device) = device() else { return };
    // A matrix of another library on the device: its address and its keep-alive.
    let theirs = matrix(&device, 16, 32, 0).unwrap();
    let (address, keep) = (theirs.memory().start().addr().get() as u64, Arc::new(theirs.memory().clone()));
    let at = Foreign::Device { address: address + 4 * 8, device: 0, copies: device.copies() };
    // SAFETY: `keep` keeps the memory, and only this thread uses it.
    let columns = unsafe { Tensor::<f32>::foreign(at, &[16, 4], &[32, 1], keep.clone()) }.unwrap();
    drop(theirs);
    assert_eq!(columns.get(5), 41.0);
    columns.set(5, -1.0);
    let out = device.zeros::<f32>(64).unwrap().reshape(16, 4).unwrap();
    let mut op = map(&out, &columns).produce(|c| c.input.load(c.pos()) + 1.0).build().unwrap();
    drop(columns);
    op.run().unwrap();
    assert_eq!(Arc::strong_count(&keep), 2, "the prepared call keeps it");
    assert_eq!((out.get(0), out.get(5)), (9.0, 0.0));
    drop(op);
    assert_eq!(Arc::strong_count(&keep), 1);
}

/// Everything except the launch lets go of the memory while the launch may be running.
#[test]
fn memory_that_its_owner_frees_lives_while_a_launch_is_in_flight() {
    let Some(device) = device() else { return };
    let out = device.zeros::<f32>(4 << 20).unwrap();
    for round in 0..20 {
        let theirs = matrix(&device, 1, 4 << 20, round).unwrap();
        let (address, keep) = (theirs.memory().start().addr().get() as u64, Arc::new(theirs.memory().clone()));
        let alive = Arc::downgrade(&keep);
        drop(theirs);
        let at = Foreign::Device { address, device: 0, copies: device.copies() };
        // SAFETY: `keep` keeps the memory, and only this thread uses it.
        let inp = unsafe { Tensor::<f32>::foreign(at, &[4 << 20], &[1], keep) }.unwrap();
        let mut op = map(&out, &inp).produce(|c| c.input.load(c.pos()) + 1.0).build().unwrap();
        op.run().unwrap();
        drop(inp);
        assert!(alive.upgrade().is_some(), "the launch is in flight");
        // New allocations must not get the bytes that the launch reads.
        let other = device.zeros::<f32>(4 << 20).unwrap();
        other.fill(-1.0);
        op.sync().unwrap();
        drop(op);
        assert!(alive.upgrade().is_none());
        assert_eq!(
            (out.get(0), out.get((4 << 20) - 1)),
            ((round + 1) as f32, ((round + (4 << 20) - 1) % 65_536 + 1) as f32)
        );
    }
}

#[test]
fn a_slice_of_cudarc_is_a_tensor_in_place() {
    let Some(device) = device() else { return };
    let context = cudarc::driver::CudaContext::new(0).unwrap();
    let numbers: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let slice = context.default_stream().clone_htod(&numbers).unwrap();
    let x = Tensor::<f32>::try_from(slice).unwrap();
    assert!(x.memory().reachable_from().device_only() == Some(0) && x.to_vec() == numbers);
    let matrix = x.reshape(10, 100).unwrap();
    let out = device.zeros::<f32>(30).unwrap().reshape(10, 3).unwrap();
    map(&out, &matrix.columns(97..100)).produce(|c| c.input.load(c.pos()) * 2.0).run().unwrap();
    assert_eq!((out.get(0), out.get(29)), (194.0, 1998.0));
    matrix.columns(4..6).copy_from(&[-1.0; 20]);
    assert_eq!((x.get(3), x.get(4), x.get(905), x.get(906)), (3.0, -1.0, -1.0, 906.0));
}

/// Pinned memory of another owner. Kernels of the GPU and of the CPU use it in place.
#[test]
fn foreign_pinned_memory_is_used_by_both_engines() {
    let Some(device) = device() else { return };
    let theirs = device.host_memory(64 * 4).unwrap();
    let at = Foreign::Pinned { start: theirs.start().cast::<f32>(), devices: vec![0] };
    // SAFETY: the keep-alive keeps the memory, which kernels of device 0 reach by this address; only this thread uses
    // it.
    let pinned = unsafe { Tensor::<f32>::foreign(at, &[8, 4], &[8, 1], Arc::new(theirs)) }.unwrap();
    pinned.copy_from(&(0..32).map(|i| i as f32).collect::<Vec<_>>());
    let out = device.zeros::<f32>(32).unwrap().reshape(8, 4).unwrap();
    let mut op = map(&out, &pinned).produce(|c| c.input.load(c.pos()) + 1.0).build().unwrap();
    op.run().unwrap();
    op.sync().unwrap();
    assert_eq!((out.get(0), out.get(31)), (1.0, 32.0));
    let host = Tensor::<f32>::zeros(32).reshape(8, 4).unwrap();
    map(&host, &pinned).produce(|c| c.input.load(c.pos()) + 2.0).run().unwrap();
    assert_eq!((host.get(0), host.get(31)), (2.0, 33.0));
}

/// Rows of every width and distance are copied by one copy, in both directions. The bytes between them stay.
#[test]
fn strided_tensors_are_copied_to_and_from_a_gpu() {
    let Some(device) = device() else { return };
    for (rows, stride, from, cols) in [(1, 9, 2, 5), (7, 9, 0, 1), (1000, 64, 16, 32), (4096, 4099, 1, 4097)] {
        let whole = matrix(&device, rows, stride, 3).unwrap();
        let columns = whole.columns(from..from + cols);
        let number = |i: usize| ((3 + i) % 65_536) as f32;
        let must: Vec<f32> = (0..rows * cols).map(|i| number(i / cols * stride + from + i % cols)).collect();
        assert!(columns.to_vec() == must, "{rows} rows of {cols} columns, {stride} apart");
        columns.fill(-5.0);
        let is_inside = |i: usize| (from..from + cols).contains(&(i % stride));
        let must = (0..rows * stride).map(|i| if is_inside(i) { -5.0 } else { number(i) });
        assert!(whole.to_vec().into_iter().eq(must), "beside {rows} rows of {cols} columns, {stride} apart");
    }
}

/// Windows that take turns. Graphs keep theirs.
#[test]
fn ranks_on_a_gpu_rebind_their_windows_together() {
    let Some(device) = device() else { return };
    let world = World::threads(2).deadline(Duration::from_secs(60));
    let result = world.run(|world| {
        let link = NvlTransport::rendezvous(&world, &device, NvlOptions::default())?;
        let (me, len) = (world.rank().index(), 4096);
        let windows = [Window::<f32>::allocate(&link, 2 * len)?, Window::allocate(&link, 2 * len)?];
        let inp = matrix(&device, 1, len, 10_000 * me)?;
        let mut gather = all_gather(&link, windows[0].tensor(), &inp).window(&windows[0]).build()?;
        let sums = [Window::<f32>::allocate(&link, len)?, Window::allocate(&link, len)?];
        let mut reduce =
            all_reduce(&link, sums[0].tensor(), sums[1].tensor()).window(&sums[0]).window(&sums[1]).build()?;
        for step in 0..100 {
            let window = &windows[step % 2];
            gather.rebind_window(window, &inp)?;
            gather.run()?;
            gather.sync()?;
            let out = window.tensor();
            assert_eq!((out.get(5), out.get(len + 5)), (5.0, 10_005.0), "step {step}");
            window.tensor().fill(-1.0);
            let [out, from] = if step % 2 == 0 { [&sums[0], &sums[1]] } else { [&sums[1], &sums[0]] };
            from.tensor().fill((step + me) as f32);
            reduce.rebind_windows(out, from)?;
            reduce.run()?;
            reduce.sync()?;
            assert_eq!(out.tensor().get(len - 1), (2 * step + 1) as f32, "step {step}");
        }
        drop((gather, reduce));
        Ok(link.close()?)
    });
    result.unwrap();
}
