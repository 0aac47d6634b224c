//! Ranks on devices. There is no card here, so what a card would do is not tried: what is refused, and why, and which
//! arrivals are flushed.

use super::*;
use crate::tensor::DeviceBytes;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use tilewire_fabric::FabricError;

/// A device whose driver can do everything.
#[derive(Default)]
struct Able {
    flushes: AtomicUsize,
    fails: AtomicBool,
}

impl NetworkDevice for Able {
    fn abilities(&self) -> devices::Abilities {
        devices::Abilities { dma_bufs: true, needs_flush: true, host_flushes: true }
    }

    fn dma_buf(&self, memory: &Memory) -> Result<devices::Exported, String> {
        let descriptor = std::fs::File::open("/dev/null").map_err(|error| error.to_string())?.into();
        Ok(devices::Exported { descriptor, base: memory.start().as_ptr() as u64, offset: 0, device: 0 })
    }

    fn flush(&self) -> Result<(), String> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        if self.fails.load(Ordering::Relaxed) { Err("the device is gone".to_string()) } else { Ok(()) }
    }

    fn sample(&self, bytes: usize) -> Result<Memory, String> {
        Ok(out_of_reach(bytes))
    }

    fn read(&self, _: &Memory) -> Result<Vec<u8>, String> {
        unreachable!("no card has written it")
    }
}

/// Bytes that the host does not reach.
struct Nowhere;

impl DeviceBytes for Nowhere {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        unreachable!()
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        unreachable!()
    }
}

fn out_of_reach(bytes: usize) -> Memory {
    // SAFETY: nobody touches these bytes: no provider of these tests registers them, and the host cannot reach them.
    unsafe { Memory::on_device(1 << 40, bytes, vec![0], Arc::new(Nowhere)) }
}

fn opened(library: &Path, device: &Arc<Able>) -> FabricCarrier {
    FabricCarrier::open_for(Some(device.clone()), options(library, "tcp"), 0, 2).unwrap().0
}

#[test]
fn a_provider_without_a_card_takes_host_memory_and_says_why() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let device = Arc::new(Able::default());
    let mut carrier = opened(library, &device);
    let Some(DeviceMemory::HostMemory { why }) = &carrier.choice().device_memory else { panic!("{carrier:?}") };
    assert!(why.starts_with("tcp") && why.ends_with("is no network card that could write it"), "{why}");
    let said = carrier.choice().to_string();
    assert!(said.contains("(as named); through host memory, because tcp"), "{said}");
    carrier.register(&Memory::zeroed_shared(64)).unwrap();
    assert_eq!(carrier.register(&out_of_reach(64)), Err(NetworkError::Device));
    // Ranks on CPUs say nothing of it.
    let (on_cpu, _) = FabricCarrier::open(options(library, "tcp"), 0, 2).unwrap();
    assert!(on_cpu.choice().device_memory.is_none() && on_cpu.choice().to_string().ends_with("(as named)"));
}

#[test]
fn a_provider_that_was_not_asked_for_memory_of_devices_gets_none() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let device = Arc::new(Able::default());
    let mut carrier = opened(library, &device);
    carrier.device = Some(device.clone());
    let error = carrier.register(&out_of_reach(64)).unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, NetworkError::DeviceMemory { bytes: 64, .. }), "{said}");
    assert!(said.contains("was not opened for memory of devices: register memory of the host"), "{said}");
    // The trial finds the same.
    let library = Library::open_at(library).unwrap();
    let query = Query { provider: Some("tcp".to_string()), address: Some("127.0.0.1".to_string()), ..Query::default() };
    let provider = Arc::new(Provider::list(library, &query).unwrap().remove(0));
    let domain = Domain::open(provider.clone()).unwrap();
    let mut endpoint = Endpoint::open(&domain, &EndpointOptions::default()).unwrap();
    let tried = trial::Trial::run(&mut endpoint, Confirmation::Provider, Numbers::Guarded, usize::MAX, Some(&*device));
    assert!(tried.unwrap_err().contains("was not opened for memory of devices"));
    assert_eq!(device.flushes.load(Ordering::Relaxed), 0);
    // An old library is asked for nothing that it does not know.
    if !library.knows_dma_bufs() {
        let (major, minor) = library.version();
        let error = Provider::list(library, &Query { device_memory: true, ..query }).unwrap_err();
        assert_eq!(error, FabricError::NoDmaBufs { version: (major, minor) });
        let words = devices::same_with_device_memory(library, &provider).unwrap_err();
        let expected = format!("libfabric {major}.{minor} cannot register memory of devices by dma-bufs");
        assert!(words.contains(&expected) && words.contains("1.20"), "{words}");
    }
}

#[test]
fn arrivals_are_flushed_while_a_window_is_in_memory_of_the_device() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let device = Arc::new(Able::default());
    let mut carrier = opened(library, &device);
    let flushes =
        |carrier: &mut FabricCarrier| carrier.flush_arrivals().map(|()| device.flushes.swap(0, Ordering::Relaxed));
    assert_eq!(flushes(&mut carrier), Ok(0), "there is no device");
    carrier.device = Some(device.clone());
    carrier.choice.device_memory = Some(DeviceMemory::Registered { flushed: true });
    assert_eq!(flushes(&mut carrier), Ok(0), "no window");
    let (in_host, window) = (Memory::zeroed_shared(64), Memory::zeroed_shared(64));
    carrier.open(1, &in_host, &[1]).unwrap();
    assert_eq!(flushes(&mut carrier), Ok(0), "a window in host memory");
    carrier.open(2, &window, &[1]).unwrap();
    carrier.regions.last_mut().unwrap().is_on_device = true;
    assert_eq!(flushes(&mut carrier), Ok(1));
    carrier.choice.device_memory = Some(DeviceMemory::Registered { flushed: false });
    assert_eq!(flushes(&mut carrier), Ok(0), "the device orders them itself");
    carrier.choice.device_memory = Some(DeviceMemory::Registered { flushed: true });
    device.fails.store(true, Ordering::Relaxed);
    let error = flushes(&mut carrier).unwrap_err().to_string();
    assert!(error.contains("the device is gone, over tcp"), "{error}");
    carrier.close(2);
    assert!(carrier.flush_arrivals().is_ok(), "the window is closed");
}
