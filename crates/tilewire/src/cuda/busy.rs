//! The word by which launches and replays of a transport find out that they run at the same time; see [`abi`].

use super::buffer::Buffer;
use super::device::Device;
use super::error::CudaError;
use super::program::Program;
use crate::ir::Kernel;
use crate::ptx::abi::{self, BusyEntry};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A word on a device, and the numbers of the graphs that others captured.
#[derive(Clone)]
pub struct BusyWord(Arc<Busy>);

struct Busy {
    word: Buffer,
    captures: AtomicU64,
}

impl BusyWord {
    /// A word that no launch has entered.
    pub fn new(device: &Arc<Device>) -> Result<BusyWord, CudaError> {
        Ok(BusyWord(Arc::new(Busy { word: Buffer::zeroed(device, 8)?, captures: AtomicU64::new(0) })))
    }

    /// What launches of a program do with it.
    pub(super) fn of(&self, kernel: &Kernel, program: &Program) -> Result<BusyLaunch, CudaError> {
        let role_copies = role_copies(kernel, program.module().blocks)?;
        Ok(BusyLaunch { word: self.clone(), role_copies })
    }

    /// A tag for a launch in a capture of others. That of launches in the order of the transport's own stream is 1. Two
    /// captured launches have the same tag only if 65,534 others were captured in between.
    fn captured_tag(&self) -> u16 {
        // Relaxed: the numbers only have to differ.
        2 + (self.0.captures.fetch_add(1, Ordering::Relaxed) % u64::from(u16::MAX - 1)) as u16
    }
}

/// The role copies of all blocks.
fn role_copies(kernel: &Kernel, blocks: u32) -> Result<u16, CudaError> {
    let of_block: u64 = kernel.roles.values().map(|role| u64::from(role.copies)).sum();
    let all = of_block * u64::from(blocks);
    u16::try_from(all).map_err(|_| CudaError::Argument {
        param: kernel.name.clone(),
        what: format!(
            "{all} role copies in {blocks} blocks: a transport with foreign_captures takes at most {}; lower .blocks(..)",
            BusyEntry::MOST_ROLE_COPIES
        ),
    })
}

/// A program's use of the word.
pub(super) struct BusyLaunch {
    word: BusyWord,
    role_copies: u16,
}

impl BusyLaunch {
    /// Writes address and entry into a parameter block, for launches in the order of the transport's own stream.
    pub(super) fn bind(&self, block: &mut [u64]) {
        block[abi::BUSY as usize / 8] = self.word.0.word.address();
        self.enter_as(1, block);
    }

    /// Writes the entry of a launch in a capture of others.
    pub(super) fn capture(&self, block: &mut [u64]) {
        self.enter_as(self.word.captured_tag(), block);
    }

    fn enter_as(&self, tag: u16, block: &mut [u64]) {
        let first = abi::BUSY_ENTRY as usize / 8;
        block[first..first + 3].copy_from_slice(&BusyEntry::new(tag, self.role_copies).words());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Builder, SourceLine};

    #[test]
    fn too_many_role_copies_for_the_word_are_refused() {
        let mut builder = Builder::new("many", 1);
        builder.open_role("a", 1, 3, &SourceLine::caller());
        builder.close();
        let kernel = builder.finish();
        assert_eq!(role_copies(&kernel, 21_845).unwrap(), 65_535);
        let error = role_copies(&kernel, 21_846).unwrap_err();
        assert!(error.to_string().contains("65538 role copies in 21846 blocks"), "{error}");
    }
}
