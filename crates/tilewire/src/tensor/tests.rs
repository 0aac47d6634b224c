//! Tensors on a device that this file simulates, and which threads may touch which memory.

use super::*;
use std::error::Error;
use std::sync::Mutex;

/// A simulated device's bytes. Copies fail if `fails` is set.
struct Played {
    bytes: Mutex<Vec<u8>>,
    fails: bool,
}

/// The address of the simulated device's bytes.
const AT: u64 = 1 << 20;

impl Played {
    fn copied(
        &self,
        address: u64,
        bytes: usize,
        copy: impl FnOnce(&mut [u8]),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        if self.fails {
            return Err("the driver is gone".into());
        }
        copy(&mut self.bytes.lock().unwrap()[(address - AT) as usize..][..bytes]);
        Ok(())
    }
}

impl DeviceBytes for Played {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.copied(address, out.len(), |bytes| out.copy_from_slice(bytes))
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.copied(address, from.len(), |bytes| bytes.copy_from_slice(from))
    }
}

fn on_played<T: Element>(len: usize, fails: bool) -> Tensor<T> {
    let bytes = len * size_of::<T>();
    let keep = Arc::new(Played { bytes: Mutex::new(vec![0; bytes]), fails });
    // SAFETY: no kernel gets it, and `Played`, which has this many bytes, makes the copies.
    Tensor::over(unsafe { Memory::on_device(AT, bytes, vec![3], keep) }, len)
}

#[test]
fn elements_on_a_device_are_copied() {
    let x = on_played::<u16>(5, false);
    x.fill(7);
    x.set(1, 0x102);
    x.slice(2..4).copy_from(&[8, 9]);
    assert_eq!((x.get(1), x.to_vec()), (0x102, vec![7, 0x102, 8, 9, 7]));
    assert_eq!(bytes_of(x.slice(1..3).memory()).unwrap(), [2, 1, 8, 0]);
    assert!(!x.memory().reachable_from().host && x.memory().reachable_from().is_device(3));
    assert!(std::panic::catch_unwind(|| on_played::<u16>(5, false).cells().len()).is_err());
    let flags = on_played::<bool>(2, false);
    flags.set(1, true);
    assert_eq!(flags.to_vec(), [false, true]);
}

#[test]
fn a_copy_that_fails_is_an_error_with_its_values() {
    let x = on_played::<u32>(4, true);
    let all: [(Result<(), AccessError>, bool, usize); 5] = [
        (x.try_get(0).map(|_| ()), false, 4),
        (x.try_to_vec().map(|_| ()), false, 16),
        (x.try_set(3, 1), true, 4),
        (x.try_fill(1), true, 16),
        (x.slice(1..3).try_copy_from(&[1, 2]), true, 8),
    ];
    for (result, to, size) in all {
        let error = result.unwrap_err();
        let text = error.to_string();
        let AccessError::Copy { to_device, bytes, memory, .. } = &error else { panic!("{error}") };
        assert_eq!((*to_device, *bytes, &memory.devices[..]), (to, size, &[3][..]));
        assert_eq!(error.source().unwrap().to_string(), "the driver is gone");
        let direction = if to { "to" } else { "from" };
        assert!(text.contains(&format!("{size} bytes {direction} GPU 3 failed: the driver is gone")), "{text}");
    }
    let panic = std::panic::catch_unwind(|| on_played::<u32>(4, true).to_vec()).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().contains("16 bytes from GPU 3 failed"));
}

#[test]
fn memory_goes_to_other_threads_and_a_threads_own_bytes_do_not() {
    const fn goes_anywhere<T: Send + Sync>() {}
    goes_anywhere::<Memory>();
    goes_anywhere::<Arg>();
    let (own, shared) = (Tensor::from_slice(&[1u8, 2]), Memory::zeroed_shared(2));
    let handles = (own.memory().clone(), shared.clone());
    let elsewhere = std::thread::spawn(move || (bytes_of(&handles.0), bytes_of(&handles.1).unwrap(), handles));
    let (refused, zeros, back) = elsewhere.join().unwrap();
    assert!(matches!(refused, Err(AccessError::OtherThread { bytes: 2, .. })));
    assert_eq!((zeros, bytes_of(&back.0).unwrap()), (vec![0, 0], vec![1, 2]));
    let foreign = std::thread::spawn(|| Memory::zeroed(8)).join().unwrap();
    assert!(
        std::thread::spawn(|| _ = Tensor::<u8>::over(foreign, 8)).join().is_err(),
        "a tensor of another thread's memory"
    );
    assert!(back.1.is_shared() && back.1.part(1, 1).is_shared() && !back.0.is_shared());
}

#[test]
fn the_last_handle_drops_the_keep_alive_wherever_it_is() {
    let keep = Arc::new([const { AtomicU64::new(0) }; 4]);
    // SAFETY: `keep` keeps these four writable words alive, and nobody else touches them.
    let x = unsafe { Tensor::<u64>::from_raw(NonNull::from(&*keep).cast(), 4, keep.clone()) };
    let part = x.memory().part(8, 8);
    drop(x);
    assert_eq!(Arc::strong_count(&keep), 2);
    std::thread::spawn(move || drop(part)).join().unwrap();
    assert_eq!(Arc::strong_count(&keep), 1);
}
