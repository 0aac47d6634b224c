//! Buffers of this rank that non-Rust code identifies by a single number.
//!
//! A handle is the address of a [`LocalBuffer`], so that a kernel or a foreign function can read it directly. When a
//! buffer is deregistered, its struct is emptied and kept until the transport is gone, so its address is never given
//! out again. An old handle is therefore an error here and an empty buffer to foreign code, never another buffer.

use crate::tensor::Memory;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr::NonNull;

/// What a handle points to. The layout is fixed, because code in other languages reads it.
///
/// ```text
///  0      8      16               24          28          32
///  ├ base ┼ size ┼ backend_window ┼ local_key ┼ (padding) ┤
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalBuffer {
    /// First byte; null when deregistered.
    pub base: *mut u8,
    /// Size in bytes; 0 when deregistered.
    pub size: u64,
    /// The transport's own name for the memory; 0 if it needs none.
    pub backend_window: u64,
    /// The key that a network card needs with it; 0 if there is none.
    pub local_key: u32,
}

const _: () = {
    assert!(std::mem::offset_of!(LocalBuffer, base) == 0);
    assert!(std::mem::offset_of!(LocalBuffer, size) == 8);
    assert!(std::mem::offset_of!(LocalBuffer, backend_window) == 16);
    assert!(std::mem::offset_of!(LocalBuffer, local_key) == 24);
    assert!(size_of::<LocalBuffer>() == 32 && align_of::<LocalBuffer>() == 8);
};

impl LocalBuffer {
    const EMPTY: LocalBuffer = LocalBuffer { base: std::ptr::null_mut(), size: 0, backend_window: 0, local_key: 0 };
}

/// The registered buffers of a transport.
#[derive(Default)]
pub(crate) struct LocalBuffers {
    entries: RefCell<HashMap<u64, Entry>>,
}

struct Entry {
    /// From `Box::into_raw`; freed only by `LocalBuffers::drop`.
    buffer: NonNull<LocalBuffer>,
    /// `None` when deregistered.
    memory: Option<Memory>,
}

impl LocalBuffers {
    pub(crate) fn register(&self, memory: &Memory) -> u64 {
        let base = memory.start().as_ptr();
        let buffer = LocalBuffer { base, size: memory.bytes() as u64, ..LocalBuffer::EMPTY };
        let buffer = NonNull::from(Box::leak(Box::new(buffer)));
        let handle = buffer.as_ptr().expose_provenance() as u64;
        self.entries.borrow_mut().insert(handle, Entry { buffer, memory: Some(memory.clone()) });
        handle
    }

    pub(crate) fn buffer(&self, handle: u64) -> Result<LocalBuffer, LocalBufferError> {
        match self.entries.borrow().get(&handle) {
            None => Err(LocalBufferError::Unknown { handle }),
            Some(Entry { memory: None, .. }) => Err(LocalBufferError::Deregistered { handle }),
            // SAFETY: allocated in `register` and freed only when `self` is dropped; foreign code may read it but not
            // write it.
            Some(entry) => Ok(unsafe { entry.buffer.read() }),
        }
    }

    pub(crate) fn deregister(&self, handle: u64) -> Result<(), LocalBufferError> {
        let mut entries = self.entries.borrow_mut();
        let entry = entries.get_mut(&handle).ok_or(LocalBufferError::Unknown { handle })?;
        if entry.memory.take().is_none() {
            return Err(LocalBufferError::Deregistered { handle });
        }
        // SAFETY: as in `buffer`. No reference to it exists, since it is only ever read and written as a whole.
        unsafe { entry.buffer.write(LocalBuffer::EMPTY) };
        Ok(())
    }
}

impl Drop for LocalBuffers {
    fn drop(&mut self) {
        for entry in self.entries.get_mut().values() {
            // SAFETY: from a `Box` in `register`, taken back once, here.
            drop(unsafe { Box::from_raw(entry.buffer.as_ptr()) });
        }
    }
}

/// Why a handle names no buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocalBufferError {
    /// This transport never issued it.
    Unknown {
        /// The handle.
        handle: u64,
    },
    /// Its buffer was already deregistered.
    Deregistered {
        /// The handle.
        handle: u64,
    },
}

errors! {
    enum LocalBufferError {
        Unknown { handle } => "{handle:#x} names no buffer: this transport never gave it out",
        Deregistered { handle } => "the buffer of handle {handle:#x} was deregistered before: register it again",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_the_address_of_the_struct() {
        let (buffers, memory) = (LocalBuffers::default(), Memory::zeroed(100));
        let handle = buffers.register(&memory);
        let words: *const u64 = std::ptr::with_exposed_provenance(handle as usize);
        // SAFETY: the struct has 32 bytes, of which the first 24 are these three words, and it is alive while
        // registered.
        let seen = unsafe { [words.read(), words.add(1).read(), words.add(2).read()] };
        assert_eq!(seen, [memory.start().as_ptr() as u64, 100, 0]);
        // SAFETY: the key is at byte 24.
        assert_eq!(unsafe { words.add(3).cast::<u32>().read() }, buffers.buffer(handle).unwrap().local_key);
        buffers.deregister(handle).unwrap();
        // SAFETY: as above; the struct is kept after deregistering.
        assert_eq!(unsafe { [words.read(), words.add(1).read()] }, [0, 0]);
    }

    #[test]
    fn handles_are_never_reused_and_old_ones_are_errors() {
        let (buffers, memory) = (LocalBuffers::default(), Memory::zeroed(8));
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            let handle = buffers.register(&memory);
            assert!(seen.insert(handle));
            assert_eq!(buffers.deregister(handle), Ok(()));
            assert_eq!(buffers.deregister(handle), Err(LocalBufferError::Deregistered { handle }));
            assert_eq!(buffers.buffer(handle), Err(LocalBufferError::Deregistered { handle }));
        }
        assert_eq!(buffers.deregister(7), Err(LocalBufferError::Unknown { handle: 7 }));
    }
}
