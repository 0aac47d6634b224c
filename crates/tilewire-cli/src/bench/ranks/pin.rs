//! Keeping rank k on the k-th core that this process may use.

use std::mem;
use std::sync::OnceLock;

/// The number of cores before any thread was tied to one. With more ranks than cores, ranks share them.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| allowed_cores().len())
}

/// The calling thread, tied to the core of a rank. When this is dropped, by that thread, it may run where it could
/// before. Otherwise everything it starts later, other ranks and MPI programs, would share that one core.
pub struct Pinned {
    before: Vec<usize>,
}

impl Pinned {
    /// Ties the calling thread. If the system refuses, it stays where it is, which only makes the samples noisier.
    pub fn to_core_of(rank: usize) -> Pinned {
        cores();
        let before = allowed_cores();
        if let Some(&core) = before.get(rank % before.len().max(1)) {
            allow(&[core]);
        }
        Pinned { before }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        allow(&self.before);
    }
}

/// Restricts the calling thread to these cores, if the system agrees.
fn allow(cores: &[usize]) {
    // SAFETY: the set is plain data for which zeros are a value, the cores were found by `CPU_ISSET` and so are in
    // range, and the set lives through the call, which changes the calling thread only.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        cores.iter().for_each(|&core| libc::CPU_SET(core, &mut set));
        libc::sched_setaffinity(0, mem::size_of_val(&set), &set);
    }
}

/// The cores that the calling thread may run on.
fn allowed_cores() -> Vec<usize> {
    // SAFETY: as above; the call fills the set or leaves it empty, and every number asked for is below its size.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set);
        (0..libc::CPU_SETSIZE as usize).filter(|&core| libc::CPU_ISSET(core, &set)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_on_its_core_until_its_work_is_over() {
        let before = allowed_cores();
        for rank in 0..3 {
            let pinned = Pinned::to_core_of(rank);
            assert_eq!(allowed_cores(), [before[rank % before.len()]]);
            drop(pinned);
            assert_eq!(allowed_cores(), before);
        }
    }
}
