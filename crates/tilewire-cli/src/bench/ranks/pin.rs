//! Keeping rank k on the k-th core that this process may use.

use std::mem;
use std::sync::OnceLock;

/// How many cores there were before any thread was tied to one: with fewer than ranks, ranks share them.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| allowed_cores().len())
}

/// Ties the calling thread to the core of a rank. A system that refuses leaves the thread where it is, which only makes the samples noisier.
pub fn pin_to_core_of(rank: usize) {
    cores();
    let cores = allowed_cores();
    if let Some(&core) = cores.get(rank % cores.len().max(1)) {
        // SAFETY: the set is plain data for which zeros are a value, `core` was found by `CPU_ISSET` and so is in range, and the
        // set lives through the call, which changes the calling thread only.
        unsafe {
            let mut set: libc::cpu_set_t = mem::zeroed();
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, mem::size_of_val(&set), &set);
        }
    }
}

/// The cores that the calling thread may run on.
pub fn allowed_cores() -> Vec<usize> {
    // SAFETY: as above; the call fills the set or leaves it empty, and every number asked for is below its size.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set);
        (0..libc::CPU_SETSIZE as usize).filter(|&core| libc::CPU_ISSET(core, &set)).collect()
    }
}
