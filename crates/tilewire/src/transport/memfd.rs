//! Anonymous files: memory with a descriptor that can be passed to another process, and with no name that could stay behind.

use super::error::SegmentError;
use super::mapping::Mapping;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// A mapped file that shrinks under its mappers kills them with SIGBUS, so its size is sealed, and the seals too.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A zeroed file of `total` bytes with all its memory allocated, sealed.
pub(super) fn create(total: usize) -> Result<OwnedFd, SegmentError> {
    within_file_limit(total)?;
    // Allocating far more than there is would wake the out-of-memory killer rather than fail.
    if let Some(available) = available()
        && total as u64 > available
    {
        return Err(SegmentError::NoMemory { bytes: total, available: Some(available) });
    }
    let file = open().map_err(SegmentError::system("memfd_create"))?;
    let size = i64::try_from(total).map_err(|_| SegmentError::TooLarge { bytes: total })?;
    let no_memory = |call| {
        move |source: io::Error| match source.raw_os_error() {
            Some(libc::ENOMEM | libc::ENOSPC | libc::EFBIG) => SegmentError::NoMemory { bytes: total, available: None },
            _ => SegmentError::System { call, source },
        }
    };
    // SAFETY: changes the size of a file of our own; touches no memory.
    check(|| unsafe { libc::ftruncate(file.as_raw_fd(), size) }).map_err(no_memory("ftruncate"))?;
    // A hole would be filled at first touch, and a full machine would then kill with SIGBUS: fill it now, when it is an error.
    // SAFETY: allocates pages of a file of our own; touches no memory.
    check(|| unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size) }).map_err(no_memory("fallocate"))?;
    // SAFETY: seals a file of our own; touches no memory.
    check(|| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })
        .map_err(SegmentError::system("fcntl(F_ADD_SEALS)"))?;
    Ok(file)
}

/// Maps a file that [`create`] made, here or in another process. Refuses any other: what it maps can never fault.
pub(super) fn map(file: BorrowedFd<'_>, total: usize, populate: bool) -> Result<Mapping, SegmentError> {
    // SAFETY: asks for the seals of an open descriptor; touches no memory. A descriptor that is no memfd gives an error.
    let seals = check(|| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })
        .map_err(SegmentError::system("fcntl(F_GET_SEALS)"))?;
    // SAFETY: all zeros is a value of this plain C struct.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable for the call.
    check(|| unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) }).map_err(SegmentError::system("fstat"))?;
    if seals & SEALS != SEALS || stat.st_size as u64 != total as u64 {
        let what =
            format!("a segment of {} bytes with seals {seals:#x} where {total} and {SEALS:#x} were due", stat.st_size);
        return Err(SegmentError::Usage { what });
    }
    let flags = libc::MAP_SHARED | if populate { libc::MAP_POPULATE } else { 0 };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address the kernel chooses; it replaces nothing.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), total, access, flags, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        let source = io::Error::last_os_error();
        return Err(match source.raw_os_error() {
            Some(libc::ENOMEM) => SegmentError::NoMemory { bytes: total, available: None },
            _ => SegmentError::System { call: "mmap", source },
        });
    }
    let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
    // SAFETY: just mapped, `total` bytes, at least a header (the caller's size, compared with the file's), sealed against shrinking;
    // the address is known here alone.
    Ok(unsafe { Mapping::mapped(start, total) })
}

/// Beyond the limit on the size of files (`ulimit -f`), the system calls below would not only fail: the kernel would end the process
/// with SIGXFSZ.
fn within_file_limit(total: usize) -> Result<(), SegmentError> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable for the call.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    if known && limit.rlim_cur != libc::RLIM_INFINITY && total as u64 > limit.rlim_cur {
        return Err(SegmentError::FileLimit { bytes: total, allowed: limit.rlim_cur });
    }
    Ok(())
}

/// Opens an anonymous file: not executable where the kernel knows that (6.3; some systems insist on it).
fn open() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name (for people, in /proc) ends with a zero.
    let memfd = |flags| check(|| unsafe { libc::memfd_create(c"tilewire".as_ptr(), flags) });
    let file = match memfd(flags | libc::MFD_NOEXEC_SEAL) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => memfd(flags)?,
        file => file?,
    };
    // SAFETY: a fresh descriptor that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// Bytes that could be allocated without swapping, where the system says.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The result of a system call, called again when a signal interrupts it.
fn check(mut call: impl FnMut() -> i32) -> io::Result<i32> {
    loop {
        match call() {
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            result => return Ok(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_segment_is_allocated_and_its_size_is_sealed() {
        let total = 64 * 4096;
        let file = std::fs::File::from(create(total).unwrap());
        assert!(file.metadata().unwrap().blocks() * 512 >= total as u64, "not all of it is allocated");
        assert_eq!(file.set_len(4096).unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert_eq!(file.set_len(2 * total as u64).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn a_file_that_could_shrink_is_not_mapped() {
        let file = std::fs::File::from(open().unwrap());
        file.set_len(8192).unwrap();
        assert!(matches!(map(file.as_fd(), 8192, false), Err(SegmentError::Usage { .. })));
        let sealed = create(8192).unwrap();
        assert!(matches!(map(sealed.as_fd(), 4096, false), Err(SegmentError::Usage { .. })));
        assert!(map(sealed.as_fd(), 8192, true).is_ok());
        let pipe = std::io::pipe().unwrap().0;
        assert!(map(pipe.as_fd(), 8192, false).is_err());
    }

    #[test]
    fn more_than_there_is_is_an_error_that_names_the_bytes() {
        let bytes = 1 << 50;
        match create(bytes) {
            Err(error @ SegmentError::NoMemory { .. }) => assert!(error.to_string().contains(&bytes.to_string())),
            other => panic!("{other:?}"),
        }
    }
}
