//! How many cores this machine has.

/// Cores that are on, whichever of them this thread may use: ranks are often tied to one each.
pub fn online_cores() -> usize {
    // SAFETY: it takes a number and gives one.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(cores).unwrap_or(1).max(1)
}
