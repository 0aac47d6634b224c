//! The trial of a provider: an endpoint writes to itself in the way that carriers write to each other.

use super::choice::{Confirmation, Numbers};
use super::devices::{Exported, NetworkDevice};
use crate::tensor::Memory;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewire_fabric::{Completion, DmaBuf, Endpoint, FabricError, Posted, Region, Remote, Source};

/// How long one write may take. Connecting takes about 30 ms over tcp.
const PATIENCE: Duration = Duration::from_secs(3);
/// The sizes of the writes in bytes: one that fits a single packet, and one that needs many.
const SIZES: [usize; 2] = [8, 100_000];
/// The number of bytes of a write that the provider copies when it takes it.
const COPIED: usize = 8;

pub(super) struct Trial;

impl Trial {
    /// Writes with numbers, from registered memory and bytes that the provider copies, and checks the bytes and numbers
    /// that arrive. `inject_bytes` is the most that carriers let the provider copy. The target is memory of the host,
    /// or of the device if there is one. Returns the number of writes. The error says what does not work.
    pub fn run(
        endpoint: &mut Endpoint,
        confirmation: Confirmation,
        numbers: Numbers,
        inject_bytes: usize,
        device: Option<&dyn NetworkDevice>,
    ) -> Result<usize, String> {
        let most = SIZES[1];
        let memory = Memory::zeroed_shared(2 * most);
        let key = u64::from_le_bytes(super::random().map_err(|error| error.to_string())?);
        let region = register(endpoint, &memory, key).map_err(|error| error.to_string())?;
        // On the device, the target is memory of its own.
        let on_device = device.map(|device| {
            let sample = device.sample(most)?;
            let key = u64::from_le_bytes(super::random().map_err(|error| error.to_string())?);
            let region = register_on(endpoint, device, &sample, key)?;
            Ok::<_, String>((device, sample, region))
        });
        let on_device = on_device.transpose()?;
        let (target, first) = on_device.as_ref().map_or((&region, most as u64), |(_, _, target)| (target, 0));
        let address = endpoint.address().to_vec();
        let peer = endpoint.peers().insert(&address).map_err(|error| error.to_string())?;
        // Carriers let the provider copy what is small, if it copies anything.
        let copies = endpoint.provider().inject_bytes().min(inject_bytes) >= COPIED;
        let sizes: Vec<(usize, bool)> =
            SIZES.map(|bytes| (bytes, false)).into_iter().chain(copies.then_some((COPIED, true))).collect();
        for (k, &(bytes, is_copied)) in sizes.iter().enumerate() {
            let to = Remote { peer, address: target.base() + first, key: target.key() };
            let x = 0x51 + k as u8;
            fill(&memory.part(0, bytes), x);
            let data = match numbers {
                Numbers::Guarded => 0xa1b2_c3d4_e5f6_0718 ^ k as u64,
                Numbers::Bare => 0xe5f6_0718 ^ k as u64,
            };
            let mut got = Vec::new();
            let since = Instant::now();
            let late = |what: &str| format!("{what} within {} s", PATIENCE.as_secs());
            loop {
                let source = match is_copied {
                    true => Source::Copied(&[x; COPIED]),
                    false => Source::Region { region: &region, offset: 0, bytes },
                };
                let posted = match confirmation {
                    Confirmation::Provider => endpoint.write_delivered(to, source, Some(data), 1),
                    Confirmation::Echo if is_copied => endpoint.write_copied(to, source, data, 1),
                    Confirmation::Echo => endpoint.writedata(to, (&region, 0, bytes), data, 1),
                };
                if posted.map_err(|error| error.to_string())? == Posted::Taken {
                    break;
                }
                endpoint.poll(&mut got).map_err(|error| error.to_string())?;
                if since.elapsed() > PATIENCE {
                    return Err(late("a write to itself was not taken"));
                }
            }
            let wanted = [Completion::Arrived { data }, Completion::Done { token: 1 }];
            while !wanted.iter().all(|completion| got.contains(completion)) {
                endpoint.poll(&mut got).map_err(|error| error.to_string())?;
                let other = got.iter().find(|completion| !wanted.contains(completion));
                match other {
                    Some(Completion::Failed { error, .. }) => return Err(format!("a write to itself failed: {error}")),
                    Some(other) => return Err(format!("a write with the number {data:#x} brought {other:x?}")),
                    None if since.elapsed() > PATIENCE && !got.contains(&wanted[0]) => {
                        return Err(late("the number of a write did not arrive"));
                    }
                    None if since.elapsed() > PATIENCE => return Err(late("a write to itself was not confirmed")),
                    None => {}
                }
            }
            let is_there = match &on_device {
                None => holds(&memory.part(most, bytes), x),
                Some((device, sample, _)) => {
                    if device.abilities().needs_flush {
                        device.flush()?;
                    }
                    device.read(&sample.part(0, bytes))?.iter().all(|&byte| byte == x)
                }
            };
            if !is_there {
                let copied = if is_copied { "copied " } else { "" };
                return Err(format!("{bytes} {copied}bytes were not there when their number was"));
            }
        }
        Ok(sizes.len())
    }
}

/// Registers memory, which the region keeps.
pub(super) fn register(endpoint: &Endpoint, memory: &Memory, key: u64) -> Result<Region, FabricError> {
    // SAFETY: the handle is kept until the region is gone, and keeps its bytes. Memory is only ever accessed through
    // raw pointers, so no reference to its bytes exists while peers and kernels may write them.
    unsafe { endpoint.register(memory.start(), memory.bytes(), key, Arc::new(memory.clone())) }
}

/// Registers memory of a device, which the region keeps. The error is text for the user.
pub(super) fn register_on(
    endpoint: &Endpoint,
    device: &dyn NetworkDevice,
    memory: &Memory,
    key: u64,
) -> Result<Region, String> {
    let Exported { descriptor, base, offset, device } = device.dma_buf(memory)?;
    let descriptor = Arc::new(descriptor);
    let (bytes, keep) = (memory.bytes(), Arc::new((memory.clone(), descriptor.clone())));
    let dma_buf = DmaBuf { descriptor: descriptor.as_fd(), base, offset, bytes, device };
    // SAFETY: the device has exported these bytes, which the handle keeps until the region is gone. Host code never
    // refers to bytes of a device.
    unsafe { endpoint.register_dma_buf(dma_buf, key, keep) }.map_err(|error| error.to_string())
}

/// Copies bytes to memory that only the caller writes.
pub(super) fn copy(bytes: &[u8], memory: &Memory) {
    assert_eq!(bytes.len(), memory.bytes());
    // SAFETY: both are equally long, and they do not overlap: there are no references to the bytes of a `Memory`, so
    // the slice is no part of it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.start().as_ptr(), bytes.len()) };
}

fn fill(memory: &Memory, x: u8) {
    // SAFETY: this is the trial's own memory, which nothing else writes now.
    unsafe { std::ptr::write_bytes(memory.start().as_ptr(), x, memory.bytes()) };
}

fn holds(memory: &Memory, x: u8) -> bool {
    // SAFETY: this is the trial's own memory. The write that filled it is complete, and no other write is under way.
    (0..memory.bytes()).all(|at| unsafe { memory.start().as_ptr().add(at).read_volatile() } == x)
}
