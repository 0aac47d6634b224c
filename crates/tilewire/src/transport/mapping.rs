//! Zeroed memory that several ranks can reach: a block of this process if ranks are threads, a mapped memfd if they are
//! processes. It begins with the header that keeps waits from hanging.
//!
//! ```text
//!  0            128           256          4096                       4096 + bytes
//!  ├ abort word ┼ doorbell    ┼ status     ┼ the segment's bytes ─────┤
//! ```
//! The abort word and the doorbell each have a line of their own (128 bytes: the pair of lines that prefetchers fetch).
//! Every wait polls the first and every signal looks at the second. Both stay in every rank's cache because they hardly
//! ever change.

use super::status::StatusWords;
use crate::tensor::Block;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes before the user's: one page, so that the segment's own bytes begin on a page.
pub(super) const HEADER: usize = 4096;

/// The version of this layout. It changes whenever the header or the meaning of its words changes. Ranks compare it
/// before they share a segment, because two builds of one version may differ. 3: the windows that a rank has called
/// for, in its status line, and a kernel's dealings with all its peers. 4: whether those are credits alone. 5: a window
/// that a rank called for in vain. 6: the late rank, in the reason of a wait that expired, and two ranks that differ,
/// as a verdict. 7: whether a rank's host waits for its kernels, and whether its GPU has work. 8: a rank that lost the
/// store, or its network to another rank, in the abort word. 9: whether a rank is in a launch that may write others'
/// tensors.
pub(super) const LAYOUT: u32 = 9;

/// The start of every segment. All zeros is its initial state: no abort, nobody asleep.
#[repr(C)]
pub(super) struct Header {
    pub(super) abort: Line<AtomicU64>,
    pub(super) doorbell: Line<AtomicU32>,
    pub(super) status: StatusWords,
    /// Nonzero while the rank is in a launch that may write tensors of others: see [`super::loans`].
    pub(super) borrows: Line<AtomicU64>,
}

/// A value on cache lines of its own.
#[repr(C, align(128))]
pub(super) struct Line<T>(pub(super) T);

/// Header and bytes of one rank's segment, freed or unmapped when dropped.
pub(super) struct Mapping {
    start: NonNull<u8>,
    release: Release,
    /// The file that holds the bytes, if this process made it: peers map it, too.
    #[cfg(target_os = "linux")]
    file: Option<(std::os::fd::OwnedFd, usize)>,
}

enum Release {
    /// Frees itself.
    Free(Block),
    #[cfg(target_os = "linux")]
    Unmap { total: usize },
}

// SAFETY: the header consists of atomics, and the bytes after it are only handed out as raw addresses. Freeing or
// unmapping may happen on any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Size of a segment including its header, if it fits the address space.
    pub(super) fn total(bytes: usize) -> Option<usize> {
        let total = bytes.checked_next_multiple_of(HEADER)?.checked_add(HEADER)?;
        (total <= isize::MAX as usize).then_some(total)
    }

    /// Memory of this process. Each page (`huge` or not) is taken when it is first touched, or all of them now if
    /// `populate` is set. `None` if there is not enough.
    pub(super) fn own(total: usize, populate: bool, huge: bool) -> Option<Mapping> {
        assert!(total >= HEADER, "a segment has a header");
        let mut block = Block::untouched(total, HEADER, huge)?;
        if populate {
            block.touch();
        }
        Some(Mapping {
            start: block.start(),
            release: Release::Free(block),
            #[cfg(target_os = "linux")]
            file: None,
        })
    }

    /// Takes over a mapping.
    ///
    /// # Safety
    /// `start..start + total` was mapped readable and writable by `mmap`, is page-aligned, holds at least a header,
    /// cannot be truncated, and nobody else unmaps it.
    #[cfg(target_os = "linux")]
    pub(super) unsafe fn mapped(start: NonNull<u8>, total: usize) -> Mapping {
        Mapping { start, release: Release::Unmap { total }, file: None }
    }

    /// The same mapping, with its file of `total` bytes, which stays open as long as the mapping.
    #[cfg(target_os = "linux")]
    pub(super) fn with_file(self, file: std::os::fd::OwnedFd, total: usize) -> Mapping {
        let mut mapping = self;
        mapping.file = Some((file, total));
        mapping
    }

    /// The file that holds the bytes, and its size, if this process made it.
    #[cfg(target_os = "linux")]
    pub(super) fn file(&self) -> Option<(std::os::fd::BorrowedFd<'_>, usize)> {
        use std::os::fd::AsFd;
        self.file.as_ref().map(|(file, total)| (file.as_fd(), *total))
    }

    #[inline]
    pub(super) fn header(&self) -> &Header {
        // SAFETY: both constructors provide at least `HEADER` valid bytes, page-aligned, initialised (zeros at first),
        // alive as long as `self`. All fields are atomics, so any bytes are valid values and other writers (threads,
        // processes) do no harm.
        unsafe { self.start.cast::<Header>().as_ref() }
    }

    /// First byte of the header.
    #[cfg(target_os = "linux")]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// First byte after the header.
    pub(super) fn bytes(&self) -> NonNull<u8> {
        // SAFETY: a mapping holds at least a header, so the result is inside it or one past its end.
        unsafe { self.start.add(HEADER) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match &self.release {
            Release::Free(_block) => {}
            #[cfg(target_os = "linux")]
            Release::Unmap { total } => {
                // SAFETY: `mapped` took over exactly this range. All users of its addresses hold a handle, and the last
                // handle is gone.
                let result = unsafe { libc::munmap(self.start.as_ptr().cast(), *total) };
                debug_assert_eq!(result, 0, "unmapping a whole mapping cannot fail");
            }
        }
    }
}

const _: () = assert!(size_of::<Header>() <= HEADER);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_where_the_picture_says() {
        assert_eq!(std::mem::offset_of!(Header, abort), 0);
        assert_eq!(std::mem::offset_of!(Header, doorbell), 128);
        assert_eq!(std::mem::offset_of!(Header, status), 256);
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        assert_eq!(Mapping::total(0), Some(HEADER));
        assert_eq!(Mapping::total(1), Some(2 * HEADER));
        assert_eq!(Mapping::total(usize::MAX), None);
        assert_eq!(Mapping::total(isize::MAX as usize), None);
    }
}
