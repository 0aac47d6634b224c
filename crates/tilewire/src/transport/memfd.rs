//! Anonymous files: memory with a descriptor that can be passed to another process, and no name that could be left
//! behind.

use super::error::SegmentError;
use super::mapping::Mapping;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// A file that shrinks while mapped kills its users with SIGBUS, so its size is sealed, and so are the seals.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A zeroed, sealed file of `total` bytes with all its memory allocated.
///
/// The caller has compared `total` with what is left: allocating more would wake the out-of-memory killer rather than
/// fail.
pub(super) fn create(total: usize) -> Result<OwnedFd, SegmentError> {
    within_file_limit(total)?;
    let file = open().map_err(SegmentError::system("memfd_create"))?;
    let size = i64::try_from(total).map_err(|_| SegmentError::TooLarge { bytes: total })?;
    let no_memory = |call| {
        move |source: io::Error| match source.raw_os_error() {
            Some(libc::ENOMEM | libc::ENOSPC | libc::EFBIG) => SegmentError::NoMemory { bytes: total, shortage: None },
            _ => SegmentError::System { call, source },
        }
    };
    // SAFETY: changes the size of our own file; touches no memory.
    check(|| unsafe { libc::ftruncate(file.as_raw_fd(), size) }).map_err(no_memory("ftruncate"))?;
    // A hole would be filled at first touch, and on a full machine that would be a SIGBUS. Filling it now gives an
    // error instead.
    // SAFETY: allocates pages of our own file; touches no memory.
    check(|| unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size) }).map_err(no_memory("fallocate"))?;
    // SAFETY: seals our own file; touches no memory.
    check(|| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })
        .map_err(SegmentError::system("fcntl(F_ADD_SEALS)"))?;
    Ok(file)
}

/// Maps a file that [`create`] made, here or in another process. Refuses any other file, so that accesses to the
/// mapping can never fault.
pub(super) fn map(file: BorrowedFd<'_>, total: usize, populate: bool) -> Result<Mapping, SegmentError> {
    // SAFETY: reads the seals of an open descriptor; touches no memory. A descriptor that is not a memfd gives an
    // error.
    let seals = check(|| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })
        .map_err(SegmentError::system("fcntl(F_GET_SEALS)"))?;
    // SAFETY: all zeros is a valid value of this plain C struct.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable for the call.
    check(|| unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) }).map_err(SegmentError::system("fstat"))?;
    if seals & SEALS != SEALS || stat.st_size as u64 != total as u64 {
        let what =
            format!("a segment of {} bytes with seals {seals:#x}: expected {total} and {SEALS:#x}", stat.st_size);
        return Err(SegmentError::Usage { what });
    }
    let flags = libc::MAP_SHARED | if populate { libc::MAP_POPULATE } else { 0 };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address the kernel chooses; it replaces nothing.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), total, access, flags, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        let source = io::Error::last_os_error();
        return Err(match source.raw_os_error() {
            Some(libc::ENOMEM) => SegmentError::NoMemory { bytes: total, shortage: None },
            _ => SegmentError::System { call: "mmap", source },
        });
    }
    let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
    // SAFETY: just mapped; `total` bytes, at least a header (the caller's size, compared with the file's); sealed
    // against shrinking; nobody else knows the address.
    Ok(unsafe { Mapping::mapped(start, total) })
}

/// Beyond the limit on file sizes (`ulimit -f`) the system calls of `create` would not just fail: the kernel would end
/// the process with SIGXFSZ.
fn within_file_limit(total: usize) -> Result<(), SegmentError> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable for the call.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    if known && limit.rlim_cur != libc::RLIM_INFINITY && total as u64 > limit.rlim_cur {
        return Err(SegmentError::FileLimit { bytes: total, allowed: limit.rlim_cur });
    }
    Ok(())
}

/// Opens an anonymous file: not executable if the kernel supports that (since 6.3; some systems insist on it).
fn open() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name (shown to people in /proc) ends with a zero.
    let memfd = |flags| check(|| unsafe { libc::memfd_create(c"tilewire".as_ptr(), flags) });
    let file = match memfd(flags | libc::MFD_NOEXEC_SEAL) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => memfd(flags)?,
        file => file?,
    };
    // SAFETY: a fresh descriptor that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// The result of a system call, repeated when a signal interrupts it.
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
}
