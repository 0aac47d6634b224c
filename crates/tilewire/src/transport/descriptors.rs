//! Raises the limit on open files if many ranks need more than it initially allows.

/// Makes sure that this process may open `more` additional files, including sockets and pipes. If the soft limit is too
/// low, raises it, up to the hard limit. Programs that the process starts afterwards inherit the higher limit.
///
/// ```
/// use tilewire::transport::reserve_descriptors;
/// reserve_descriptors(10)?;
/// let error = reserve_descriptors(usize::MAX).unwrap_err();
/// assert!(error.needed > error.allowed);
/// # Ok::<(), tilewire::transport::DescriptorLimit>(())
/// ```
pub fn reserve_descriptors(more: usize) -> Result<(), DescriptorLimit> {
    let needed = open().saturating_add(more as u64);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable for the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 || needed <= limit.rlim_cur {
        // If the limit is unknown, opening the files will show whether it suffices.
        return Ok(());
    }
    if needed > limit.rlim_max {
        return Err(DescriptorLimit { needed, allowed: limit.rlim_max });
    }
    let allowed = limit.rlim_cur;
    // At most twice what is needed: children inherit the limit, and some close every descriptor up to it.
    limit.rlim_cur = needed.saturating_mul(2).min(limit.rlim_max);
    // SAFETY: the call only reads `limit`, which lives through it.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(DescriptorLimit { needed, allowed }),
    }
}

/// Number of files open now; a guess if the system does not say.
fn open() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(64, |entries| entries.count() as u64)
}

/// This process needs more open files than it may have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// Number of files needed, including those already open.
    pub needed: u64,
    /// Number of files allowed.
    pub allowed: u64,
}

errors! {
    struct DescriptorLimit {
        DescriptorLimit { needed, allowed } =>
            "this many ranks need {needed} open files in a process that may have {allowed}: raise the hard limit \
             (ulimit -Hn), or start fewer ranks on this machine",
    }
}
