//! Memory of this process that tilewire allocates itself, in huge pages if the system provides them.
//!
//! A core that streams through 16 MiB in 4 KiB pages walks the page tables 4096 times, and its prefetchers stop at the
//! end of every page. In pages of 2 MiB the same reads are much faster (docs/decisions/0004). Unless set to `never`
//! (`/sys/kernel/mm/transparent_hugepage/enabled`), Linux provides huge pages on request when an aligned stretch of
//! that size is first touched. So blocks are aligned to it, and the request comes before the zeroing.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

/// Size and alignment of a huge page, and the smallest allocation that requests them.
const HUGE: usize = 2 << 20;

/// True if the system can be asked for huge pages.
const ASKS: bool = cfg!(target_os = "linux");

/// Zeroed bytes, freed when dropped.
pub(crate) struct Block {
    start: NonNull<u8>,
    layout: Layout,
    /// The first byte and length of its mapping, if it does not come from the heap.
    #[cfg(target_os = "linux")]
    mapped: Option<(NonNull<u8>, usize)>,
}

// SAFETY: a block owns its bytes and exposes only their address, through a shared reference. Any thread may free or
// unmap them.
unsafe impl Send for Block {}
// SAFETY: as above; `touch`, which writes the bytes, takes the block exclusively.
unsafe impl Sync for Block {}

impl Block {
    /// Allocates `bytes` bytes, aligned to at least `align`. `None` if there is not enough memory or address space.
    pub(crate) fn zeroed(bytes: usize, align: usize) -> Option<Block> {
        let align = if ASKS && bytes >= HUGE { align.max(HUGE) } else { align };
        let layout = Layout::from_size_align(bytes.max(1), align).ok()?;
        // SAFETY: the layout has a size of at least one byte.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        let mut block = Block {
            start,
            layout,
            #[cfg(target_os = "linux")]
            mapped: None,
        };
        block.ask_for_huge_pages();
        block.touch();
        Some(block)
    }

    /// Like `zeroed`, but a page takes memory only when first touched. A huge page is taken as a whole, so pass `false`
    /// for `huge` if that would be too much. On systems other than Linux all pages are touched.
    pub(crate) fn untouched(bytes: usize, align: usize, huge: bool) -> Option<Block> {
        #[cfg(target_os = "linux")]
        let block = Block::mapped(bytes, align, huge);
        #[cfg(not(target_os = "linux"))]
        let (block, _) = (Block::zeroed(bytes, align), huge);
        block
    }

    /// Touches every page by writing zeros. Must be called before the block's address is given out.
    pub(crate) fn touch(&mut self) {
        // SAFETY: the block has this many bytes, valid for writes, and nobody else knows their address yet.
        unsafe { self.start.write_bytes(0, self.layout.size()) };
    }

    #[cfg(target_os = "linux")]
    fn mapped(bytes: usize, align: usize, huge: bool) -> Option<Block> {
        let align = if bytes >= HUGE { align.max(HUGE) } else { align };
        let layout = Layout::from_size_align(bytes.max(1), align).ok()?;
        // Large enough to contain an aligned block. The bytes around it are never touched, so they cost address space
        // only.
        let length = layout.size().checked_add(align)?;
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address the kernel chooses; it replaces nothing.
        let first = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
        if first == libc::MAP_FAILED {
            return None;
        }
        let first = NonNull::new(first.cast::<u8>()).expect("the kernel maps nothing at address 0");
        let skipped = first.addr().get().next_multiple_of(align) - first.addr().get();
        // SAFETY: `skipped` is less than `align`, and the mapping is `align` bytes longer than the block.
        let start = unsafe { first.add(skipped) };
        let block = Block { start, layout, mapped: Some((first, length)) };
        if huge {
            block.ask_for_huge_pages();
        } else {
            // SAFETY: advice about this mapping alone, which changes how its bytes are mapped, not their values. The
            // result does not matter.
            unsafe { libc::madvise(first.as_ptr().cast(), length, libc::MADV_NOHUGEPAGE) };
        }
        Some(block)
    }

    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Requests huge pages for the part of the block that consists of whole ones. The remainder may share its page with
    /// other allocations.
    ///
    /// The result does not matter: without huge pages, the block stays in small ones.
    fn ask_for_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        if let whole @ 1.. = self.layout.size() / HUGE * HUGE {
            // SAFETY: advice about whole pages of this block, which changes how its bytes are mapped, not their values.
            // The block is at least `HUGE` bytes, so `zeroed` or `mapped` aligned it to `HUGE`.
            unsafe { libc::madvise(self.start.as_ptr().cast(), whole, libc::MADV_HUGEPAGE) };
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some((first, length)) = self.mapped {
            // SAFETY: `mapped` mapped it with this length, and it is unmapped once. Everyone holding its addresses also
            // held the block.
            let result = unsafe { libc::munmap(first.as_ptr().cast(), length) };
            debug_assert_eq!(result, 0, "unmapping a whole mapping cannot fail");
            return;
        }
        // SAFETY: `zeroed` allocated it with this layout, and it is freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_zeroed_and_aligned() {
        let huge = if ASKS { HUGE } else { 64 };
        let sizes = [(0, 64, 64), (1, 64, 64), (HUGE - 1, 4096, 4096), (HUGE, 64, huge), (HUGE + 1, 4096, huge)];
        for (bytes, asked, align) in sizes {
            // The second round reuses the memory that the first left behind.
            for _ in 0..2 {
                for block in [Block::zeroed(bytes, asked), Block::untouched(bytes, asked, true)] {
                    let block = block.unwrap();
                    assert!(block.start().addr().get().is_multiple_of(align), "{bytes} bytes at {:p}", block.start());
                    // SAFETY: the block has this many bytes and outlives the slice; nobody else has its address.
                    let bytes = unsafe { std::slice::from_raw_parts_mut(block.start().as_ptr(), bytes) };
                    assert!(bytes.iter().all(|&byte| byte == 0));
                    bytes.fill(7);
                }
            }
        }
    }

    #[test]
    fn too_much_is_refused() {
        for bytes in [isize::MAX as usize / 2, isize::MAX as usize, usize::MAX] {
            // The compiler may remove an allocation that is never observed.
            assert!(std::hint::black_box(Block::zeroed(bytes, 4096)).is_none());
            assert!(std::hint::black_box(Block::untouched(bytes, 4096, true)).is_none());
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_not_touched_takes_no_memory() {
        let resident = |block: &Block| {
            let mut pages = vec![0u8; block.layout.size() / 4096];
            // SAFETY: the block is mapped, and the vector has a byte for each of its pages.
            let result =
                unsafe { libc::mincore(block.start().as_ptr().cast(), block.layout.size(), pages.as_mut_ptr()) };
            assert_eq!(result, 0);
            pages.iter().filter(|page| **page & 1 == 1).count()
        };
        for (huge, most) in [(true, HUGE / 4096), (false, 1)] {
            let mut block = Block::untouched(16 * HUGE, 4096, huge).unwrap();
            assert_eq!(resident(&block), 0);
            // SAFETY: the address is inside the block, and nobody else knows it.
            unsafe { block.start().add(3 * HUGE).write(1) };
            assert!((1..=most).contains(&resident(&block)), "one page");
            block.touch();
            assert_eq!(resident(&block), 16 * HUGE / 4096);
        }
    }

    /// The system decides whether pages are huge, but the mapping's flags show that they were requested.
    #[cfg(target_os = "linux")]
    #[test]
    fn huge_pages_are_asked_for() {
        let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        if enabled.is_err() {
            eprintln!("this system has no transparent huge pages");
            return;
        }
        for block in [Block::zeroed(2 * HUGE + 4096, 4096), Block::untouched(2 * HUGE + 4096, 4096, true)] {
            let at = block.as_ref().unwrap().start().addr().get();
            assert!(is_advised(at) && is_advised(at + 2 * HUGE - 1));
        }
    }

    /// True if huge pages were requested at an address: flag `hg` of its mapping in `/proc/self/smaps`.
    #[cfg(target_os = "linux")]
    fn is_advised(at: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            if let Some((from, to)) =
                range.filter(|_| line.starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_lowercase()))
            {
                let address = |text| usize::from_str_radix(text, 16).unwrap();
                inside = (address(from)..address(to)).contains(&at);
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                return flags.split_whitespace().any(|flag| flag == "hg");
            }
        }
        panic!("{at:#x} is not mapped");
    }
}
