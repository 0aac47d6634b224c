//! Windows and buffers with handles on a GPU; without one these tests say so and pass.

use cudarc::driver::sys;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;
use tilewire::cuda::{CudaError, Device};
use tilewire::link::{NvlOptions, NvlTransport, Tensors, Transport, Window};
use tilewire::transport::{RankError, TransportError, World};
use tilewire::{RunError, Tensor, all_gather};

fn device() -> Option<Arc<Device>> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            tilewire_testkit::skip::skip("cuda", error);
            None
        }
    }
}

/// Runs a body in two ranks that share the GPU.
fn in_threads(body: impl Fn(&World, &Arc<Device>, &NvlTransport) -> Result<(), RankError> + Sync) {
    let Some(device) = device() else { return };
    let small = NvlOptions { per_peer_bytes: Some(1 << 20), packet_bytes: Some(1 << 20), ..NvlOptions::default() };
    let run = |world: World| {
        let link = NvlTransport::rendezvous(&world, &device, small)?;
        body(&world, &device, &link)?;
        Ok(link.close()?)
    };
    World::threads(2).deadline(Duration::from_secs(60)).run(run).unwrap();
}

fn gathers(link: &NvlTransport, out: &Tensor<u32>, window: &Window<u32>, seed: u32) -> Result<(), RunError> {
    let (me, len) = (link.rank().number(), out.len() / 2);
    let of = |rank: u32| (0..len).map(move |i| seed + 1000 * rank + i as u32);
    let inp = link.tensor(&of(me).collect::<Vec<_>>())?;
    let mut gather = all_gather(link, out, &inp).window(window).build()?;
    gather.run()?;
    gather.sync()?;
    assert_eq!(out.to_vec(), of(0).chain(of(1)).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn tensors_of_the_device_become_windows() {
    in_threads(|world, device, link| {
        // From the driver's allocator, and memory that can be passed on; and parts of both.
        let (plain, shareable) = (device.zeros::<u32>(5000)?, link.zeros::<u32>(5000)?);
        for out in [plain.clone(), shareable.slice(8..4008), shareable.clone(), plain.slice(3..5)] {
            let window = Window::register(link, &out)?;
            let peer = world.next();
            assert_eq!(window.address(peer), window.view().peers[peer.index()].address);
            assert_ne!(window.address(peer), 0);
            gathers(link, &out, &window, 7)?;
            window.deregister(link)?;
            let error = all_gather(link, &out, &out.slice(0..out.len() / 2)).window(&window).build().map(|_| ());
            assert!(error.unwrap_err().to_string().contains("was deregistered"));
        }
        let host = Window::register(link, &Tensor::<u32>::zeros(4)).unwrap_err();
        assert!(host.to_string().contains("link.zeros()"), "{host}");
        Ok(())
    });
}

#[test]
fn two_windows_take_turns_on_lines_of_their_own() {
    in_threads(|_, _, link| {
        let inputs = [link.zeros::<u32>(600)?, link.zeros::<u32>(600)?];
        let outs = [link.zeros::<u32>(1200)?, link.zeros::<u32>(1200)?];
        for life in 0..20u32 {
            let windows = [Window::register(link, &outs[0])?, Window::register(link, &outs[1])?];
            assert_ne!(windows[0].lines().number(), windows[1].lines().number());
            let me = link.rank().number();
            let build = |k: usize| all_gather(link, &outs[k], &inputs[k]).window(&windows[k]).build();
            let mut gathers = [build(0)?, build(1)?];
            for (k, inp) in inputs.iter().enumerate() {
                inp.fill(life * 10 + k as u32 * 4 + me);
            }
            // Several launches ahead of their results.
            for _ in 0..5 {
                gathers.iter_mut().try_for_each(|gather| gather.run())?;
            }
            gathers.iter_mut().try_for_each(|gather| gather.sync())?;
            for (k, out) in outs.iter().enumerate() {
                let base = life * 10 + k as u32 * 4;
                assert_eq!((out.get(3), out.get(1199)), (base, base + 1), "life {life}");
            }
        }
        Ok(())
    });
}

#[test]
fn a_window_is_not_deregistered_while_its_launch_waits() {
    in_threads(|world, _, link| {
        let (inp, out) = (link.zeros::<u32>(64)?, link.zeros::<u32>(128)?);
        let window = Window::register(link, &out)?;
        let mut gather = all_gather(link, &out, &inp).window(&window).build()?;
        // Both have met.
        gather.run()?;
        gather.sync()?;
        if world.rank().index() == 0 {
            gather.run()?;
            let error = window.deregister(link).unwrap_err();
            assert!(matches!(error, TransportError::InFlight), "{error}");
        }
        world.bootstrap().barrier("waiting", Duration::from_secs(60).into())?;
        if world.rank().index() == 1 {
            gather.run()?;
        }
        gather.sync()?;
        window.deregister(link)?;
        let error = gather.run().unwrap_err();
        assert!(error.to_string().contains("was deregistered"), "{error}");
        Ok(())
    });
}

#[test]
fn no_window_is_registered_in_a_capture() {
    in_threads(|_, _, link| {
        let out = link.zeros::<u32>(16)?;
        let captured = link.seat().stream.capture(&[], || Window::register(link, &out).map(|_| ()));
        let error: TransportError = captured.err().expect("it is refused");
        assert!(error.to_string().contains("registering a window"), "{error}");
        gathers(link, &out, &Window::register(link, &out)?, 3)?;
        Ok(())
    });
}

/// The kernel in `copy_by_handle.ptx`.
struct Foreign(sys::CUfunction);

impl Foreign {
    fn load() -> Foreign {
        let text = CString::new(include_str!("copy_by_handle.ptx")).unwrap();
        let (mut module, mut function) = (null_mut(), null_mut());
        // SAFETY: the text ends with a zero; the module stays loaded as long as the process.
        unsafe {
            sys::cuModuleLoadData(&mut module, text.as_ptr().cast()).result().unwrap();
            sys::cuModuleGetFunction(&mut function, module, c"copy_by_handle".as_ptr()).result().unwrap();
        }
        Foreign(function)
    }

    /// Copies what `handle` names to an address, and returns the size that it has read.
    fn copy(&self, handle: u64, to: u64, seen: &Tensor<u64>) -> u64 {
        let mut values = [handle, to, seen.memory().start().addr().get() as u64];
        let mut params = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
        // SAFETY: three parameters of 8 bytes; the memory lives until the context is synchronised.
        unsafe {
            sys::cuLaunchKernel(self.0, 1, 1, 1, 1, 1, 1, 0, null_mut(), params.as_mut_ptr(), null_mut())
                .result()
                .unwrap();
            sys::cuCtxSynchronize().result().unwrap();
        }
        seen.get(0)
    }
}

#[test]
fn a_kernel_made_elsewhere_copies_by_numbers_alone() {
    in_threads(|world, device, link| {
        let foreign = Foreign::load();
        let data: Vec<u8> = (0..3001u32).map(|i| (i * 7 + world.rank().number() * 13) as u8).collect();
        let (source, seen) = (device.tensor(&data)?, device.zeros::<u64>(1)?);
        let landing = device.zeros::<u8>(4000)?;
        let window = Window::register(link, &landing)?;
        let handle = link.register_local_buffer(source.memory())?;
        let buffer = link.local_buffer(handle)?;
        assert_eq!((buffer.base, buffer.size), (source.memory().start().addr().get() as u64, 3001));
        assert!(buffer.window != 0 && link.source_of(buffer.window).unwrap().is(source.memory()));
        assert_eq!(link.buffer_view(handle)?.address, buffer.base);
        assert_eq!(foreign.copy(handle, window.address(world.next()), &seen), 3001);
        world.bootstrap().barrier("copied", Duration::from_secs(60).into())?;
        let must: Vec<u8> = (0..3001u32).map(|i| (i * 7 + world.next().number() * 13) as u8).collect();
        let (got, guard) = (landing.to_vec()[..3001].to_vec(), landing.to_vec()[3001..].to_vec());
        assert_eq!((got, guard), (must, vec![0; 999]));
        world.bootstrap().barrier("read", Duration::from_secs(60).into())?;
        link.deregister_local_buffer(handle)?;
        drop(source);
        assert_eq!(foreign.copy(handle, window.address(world.next()), &seen), 0);
        assert!(matches!(link.local_buffer(handle), Err(TransportError::Buffer(_))));
        let other = link.register_local_buffer(landing.memory())?;
        assert!(other != handle && link.local_buffer(other)?.window != buffer.window);
        Ok(())
    });
}

/// The error names the capture, also without a GPU.
#[test]
fn a_capture_is_named_in_the_error() {
    let error = TransportError::from(CudaError::Capturing { what: "registering a window" });
    assert!(error.to_string().contains("registering a window"), "{error}");
}
