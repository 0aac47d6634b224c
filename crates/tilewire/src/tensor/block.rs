//! Memory of this process that tilewire allocates itself, in huge pages where the system gives them.
//!
//! A core that streams through 16 MiB in pages of 4 KiB walks the page tables 4096 times, and its prefetchers stop at every page's
//! end. In pages of 2 MiB the same reads took 0.8 instead of 1.3 ms (docs/measurements.md). Linux gives them to whoever asks,
//! unless told `never` (`/sys/kernel/mm/transparent_hugepage/enabled`), where an aligned stretch of that size is touched for the
//! first time: so blocks are aligned for it, and the question comes before the zeros.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

/// Size and alignment of a huge page, and the least that is asked for.
const HUGE: usize = 2 << 20;

/// Whether there is somebody to ask.
const ASKS: bool = cfg!(target_os = "linux");

/// Zeroed bytes, freed when dropped.
pub(crate) struct Block {
    start: NonNull<u8>,
    layout: Layout,
    /// What was mapped for it, where it does not come from the heap: first byte and length.
    #[cfg(target_os = "linux")]
    mapped: Option<(NonNull<u8>, usize)>,
}

// SAFETY: a block owns its bytes and gives out their address only, through a shared reference; freeing or unmapping them may happen on
// any thread.
unsafe impl Send for Block {}
// SAFETY: as above; what writes the bytes, `touch`, takes the block exclusively.
unsafe impl Sync for Block {}

impl Block {
    /// So many bytes, aligned at least as asked; `None` when there is not as much memory or address space.
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

    /// The same, but a page takes memory only when it is touched for the first time; a huge one as a whole, so not where that would be too
    /// much. Where the system has no such pages, all are touched.
    pub(crate) fn untouched(bytes: usize, align: usize, huge: bool) -> Option<Block> {
        #[cfg(target_os = "linux")]
        let block = Block::mapped(bytes, align, huge);
        #[cfg(not(target_os = "linux"))]
        let (block, _) = (Block::zeroed(bytes, align), huge);
        block
    }

    /// Touches every page. Before anybody else knows the block: it writes zeros.
    pub(crate) fn touch(&mut self) {
        // SAFETY: the block has that many bytes, valid for writes, and nobody else knows them yet.
        unsafe { self.start.write_bytes(0, self.layout.size()) };
    }

    #[cfg(target_os = "linux")]
    fn mapped(bytes: usize, align: usize, huge: bool) -> Option<Block> {
        let align = if bytes >= HUGE { align.max(HUGE) } else { align };
        let layout = Layout::from_size_align(bytes.max(1), align).ok()?;
        // Enough to find an aligned block inside. The bytes around it are never touched, so they cost addresses only.
        let length = layout.size().checked_add(align)?;
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address the kernel chooses; it replaces nothing.
        let first = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
        if first == libc::MAP_FAILED {
            return None;
        }
        let first = NonNull::new(first.cast::<u8>()).expect("the kernel maps nothing at address 0");
        let skipped = first.addr().get().next_multiple_of(align) - first.addr().get();
        // SAFETY: less than `align` bytes on, and the mapping has `align` more than the block.
        let start = unsafe { first.add(skipped) };
        let block = Block { start, layout, mapped: Some((first, length)) };
        if huge {
            block.ask_for_huge_pages();
        } else {
            // SAFETY: advice about this mapping alone, which changes how its bytes are mapped, not what they are. Its answer does not matter.
            unsafe { libc::madvise(first.as_ptr().cast(), length, libc::MADV_NOHUGEPAGE) };
        }
        Some(block)
    }

    /// First byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Asks for them in the whole huge pages of the block; what is left over at its end may share its page with others.
    ///
    /// The answer does not matter: where there are none, the block stays in small ones.
    fn ask_for_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        if let whole @ 1.. = self.layout.size() / HUGE * HUGE {
            // SAFETY: advice about whole pages of this block, which changes how its bytes are mapped, not what they are. `zeroed`
            // aligned it to `HUGE`, since it is no smaller.
            unsafe { libc::madvise(self.start.as_ptr().cast(), whole, libc::MADV_HUGEPAGE) };
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some((first, length)) = self.mapped {
            // SAFETY: mapped in `mapped`, of that length, unmapped once; every holder of its addresses held the block.
            let result = unsafe { libc::munmap(first.as_ptr().cast(), length) };
            debug_assert_eq!(result, 0, "unmapping a whole mapping cannot fail");
            return;
        }
        // SAFETY: allocated in `zeroed` with this layout, freed once.
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
            // The second finds what the first left behind.
            for _ in 0..2 {
                for block in [Block::zeroed(bytes, asked), Block::untouched(bytes, asked, true)] {
                    let block = block.unwrap();
                    assert!(block.start().addr().get().is_multiple_of(align), "{bytes} bytes at {:p}", block.start());
                    // SAFETY: the block has these bytes and lives on; nobody else has its address.
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
            // A compiler may leave out an allocation that nobody looks at.
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
            // SAFETY: inside the block, which nobody else knows.
            unsafe { block.start().add(3 * HUGE).write(1) };
            assert!((1..=most).contains(&resident(&block)), "one page");
            block.touch();
            assert_eq!(resident(&block), 16 * HUGE / 4096);
        }
    }

    /// Whether the pages are huge is the system's choice; that it was asked shows in the flags of the mapping.
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

    /// Whether huge pages were asked for at an address: flag `hg` of its mapping in `/proc/self/smaps`.
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
