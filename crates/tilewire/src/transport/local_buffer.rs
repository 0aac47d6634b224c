//! Buffers of this rank that code in other languages, and kernels made elsewhere, identify by a single number.
//!
//! A handle is the address of a [`LocalBuffer`], in memory that the kernels of the rank read: on a GPU in that of the
//! device. When a buffer is deregistered, its struct is emptied and kept until the transport is gone, so its address is
//! never given out again. An old handle is therefore an error here and an empty buffer to foreign code, never another
//! buffer.
#![forbid(unsafe_code)]

use super::proxy::PostedSource;
use super::rendezvous::TransportError;
use crate::tensor::{AccessError, Memory, Tensor};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// What a handle points to. The layout is fixed, because code in other languages reads it.
///
/// ```text
///  0      8      16       24          28          32
///  ├ base ┼ size ┼ window ┼ local_key ┼ (padding) ┤
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalBuffer {
    /// Address of the first byte, where kernels of this rank run; 0 when deregistered.
    pub base: u64,
    /// Size in bytes; 0 when deregistered.
    pub size: u64,
    /// The number by which operations that put take the buffer as their source: never 0, and never given again. 0 when
    /// deregistered.
    pub window: u64,
    /// The key that a network card needs with it; 0 if there is none.
    pub local_key: u32,
}

const _: () = {
    assert!(std::mem::offset_of!(LocalBuffer, base) == 0);
    assert!(std::mem::offset_of!(LocalBuffer, size) == 8);
    assert!(std::mem::offset_of!(LocalBuffer, window) == 16);
    assert!(std::mem::offset_of!(LocalBuffer, local_key) == 24);
    assert!(size_of::<LocalBuffer>() == 32 && align_of::<LocalBuffer>() == 8);
};

/// Words of 8 bytes in a struct.
const WORDS: usize = size_of::<LocalBuffer>() / 8;
/// Bytes of memory that are taken for structs at a time.
const SLAB: usize = 64 << 10;

impl LocalBuffer {
    fn words(self) -> [u64; WORDS] {
        [self.base, self.size, self.window, self.local_key.into()]
    }
}

/// The registered buffers of a transport.
#[derive(Default)]
pub struct LocalBuffers(RefCell<State>);

#[derive(Default)]
struct State {
    /// Structs, one after the other. The last slab has room, if any has.
    slabs: Vec<Tensor<u64>>,
    /// Structs in the last slab.
    taken: usize,
    entries: HashMap<u64, Entry>,
    /// Buffers that were ever registered.
    count: u64,
}

struct Entry {
    /// The words of the struct.
    words: Tensor<u64>,
    /// `None` when deregistered.
    live: Option<Live>,
}

struct Live {
    buffer: LocalBuffer,
    memory: Memory,
    /// Lets posts read the memory, if there are far ranks and it can be read in place.
    #[expect(dead_code, reason = "deregistered when it is dropped")]
    source: Option<PostedSource>,
}

impl LocalBuffers {
    /// Registers memory, which is kept alive. `source` lets posts read it. `make` returns zeroed memory of this many
    /// bytes that kernels of the rank read.
    pub(crate) fn register(
        &self,
        memory: &Memory,
        source: Option<PostedSource>,
        make: impl FnOnce(usize) -> Result<Memory, TransportError>,
    ) -> Result<u64, TransportError> {
        let state = &mut *self.0.borrow_mut();
        if state.slabs.is_empty() || (state.taken + 1) * WORDS > SLAB / 8 {
            state.slabs.push(Tensor::over(make(SLAB)?, SLAB / 8));
            state.taken = 0;
        }
        let at = state.taken * WORDS;
        let words = state.slabs.last().expect("there is one").slice(at..at + WORDS);
        let (base, size) = (memory.start().addr().get() as u64, memory.bytes() as u64);
        let buffer = LocalBuffer { base, size, window: state.count + 1, local_key: 0 };
        words.try_copy_from(&buffer.words()).map_err(copied)?;
        (state.taken, state.count) = (state.taken + 1, state.count + 1);
        let handle = words.memory().start().as_ptr().expose_provenance() as u64;
        let live = Some(Live { buffer, memory: memory.clone(), source });
        state.entries.insert(handle, Entry { words, live });
        Ok(handle)
    }

    /// The buffer of a handle, and its memory.
    pub(crate) fn buffer(&self, handle: u64) -> Result<(LocalBuffer, Memory), LocalBufferError> {
        match self.0.borrow().entries.get(&handle) {
            None => Err(LocalBufferError::Unknown { handle }),
            Some(Entry { live: None, .. }) => Err(LocalBufferError::Deregistered { handle }),
            Some(Entry { live: Some(Live { buffer, memory, .. }), .. }) => Ok((*buffer, memory.clone())),
        }
    }

    /// The memory of the buffer with this [`window`](LocalBuffer::window) number.
    pub(crate) fn source(&self, window: u64) -> Option<Memory> {
        let state = self.0.borrow();
        let mut live = state.entries.values().filter_map(|entry| entry.live.as_ref());
        live.find(|live| live.buffer.window == window).map(|live| live.memory.clone())
    }

    pub(crate) fn deregister(&self, handle: u64) -> Result<(), TransportError> {
        let state = &mut *self.0.borrow_mut();
        let entry = state.entries.get_mut(&handle).ok_or(LocalBufferError::Unknown { handle })?;
        if entry.live.is_none() {
            return Err(LocalBufferError::Deregistered { handle }.into());
        }
        entry.words.try_copy_from(&[0; WORDS]).map_err(copied)?;
        entry.live = None;
        Ok(())
    }
}

fn copied(error: AccessError) -> TransportError {
    TransportError::Device(Arc::new(error))
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
    use crate::tensor::bytes_of;
    use std::collections::HashSet;

    fn register(buffers: &LocalBuffers, memory: &Memory) -> u64 {
        buffers.register(memory, None, |bytes| Ok(Memory::zeroed(bytes))).unwrap()
    }

    /// What foreign code reads at a handle.
    fn seen(buffers: &LocalBuffers, handle: u64) -> Vec<u8> {
        let state = buffers.0.borrow();
        let slab = state.slabs.iter().map(Tensor::memory).find_map(|slab| {
            let offset = handle.checked_sub(slab.start().addr().get() as u64)? as usize;
            (offset < slab.bytes()).then(|| slab.part(offset, 32))
        });
        bytes_of(&slab.unwrap()).unwrap()
    }

    #[test]
    fn a_handle_is_the_address_of_the_struct() {
        let (buffers, memory) = (LocalBuffers::default(), Memory::zeroed(100));
        register(&buffers, &memory.part(0, 8));
        let handle = register(&buffers, &memory);
        let bytes = seen(&buffers, handle);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!([word(0), word(8), word(16)], [memory.start().as_ptr() as u64, 100, 2]);
        assert_eq!(bytes[24..28], buffers.buffer(handle).unwrap().0.local_key.to_le_bytes());
        assert!(buffers.source(2).unwrap().is(&memory) && buffers.source(3).is_none());
        buffers.deregister(handle).unwrap();
        assert_eq!(seen(&buffers, handle), [0; 32]);
        assert!(buffers.source(2).is_none());
    }

    #[test]
    fn handles_are_never_reused_and_old_ones_are_errors() {
        let (buffers, memory) = (LocalBuffers::default(), Memory::zeroed(8));
        let (mut seen, mut windows) = (HashSet::new(), HashSet::new());
        // More than one slab.
        for _ in 0..5000 {
            let handle = register(&buffers, &memory);
            assert!(seen.insert(handle) && windows.insert(buffers.buffer(handle).unwrap().0.window));
            buffers.deregister(handle).unwrap();
            let again = buffers.deregister(handle).unwrap_err().to_string();
            assert_eq!(again, LocalBufferError::Deregistered { handle }.to_string());
            assert_eq!(buffers.buffer(handle).unwrap_err(), LocalBufferError::Deregistered { handle });
        }
        assert!(!windows.contains(&0));
        assert!(matches!(buffers.deregister(7), Err(TransportError::Buffer(LocalBufferError::Unknown { handle: 7 }))));
    }
}
