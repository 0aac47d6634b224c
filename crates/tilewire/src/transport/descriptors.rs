//! The limit on open files, raised where many ranks need more than it allows at first.

/// Makes sure that this process may open so many files more, sockets and pipes included: raises its limit (the soft one) as far
/// as it may (to the hard one) where it does not suffice. Programs it starts afterwards have the higher limit, too.
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
        // What cannot be known is found out by opening.
        return Ok(());
    }
    if needed > limit.rlim_max {
        return Err(DescriptorLimit { needed, allowed: limit.rlim_max });
    }
    let allowed = limit.rlim_cur;
    // No more than is needed, twice over: children inherit it, and some close every number up to the limit.
    limit.rlim_cur = needed.saturating_mul(2).min(limit.rlim_max);
    // SAFETY: the call only reads `limit`, which lives through it.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(DescriptorLimit { needed, allowed }),
    }
}

/// The files that are open now; a guess where nobody says.
fn open() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(64, |entries| entries.count() as u64)
}

/// More files have to be open than this process may open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// How many, those that are open already included.
    pub needed: u64,
    /// How many may be.
    pub allowed: u64,
}

errors! {
    struct DescriptorLimit {
        DescriptorLimit { needed, allowed } =>
            "so many ranks need {needed} open files in a process that may have {allowed}: raise the hard limit \
             (ulimit -Hn), or start fewer ranks on this machine",
    }
}
