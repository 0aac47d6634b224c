//! An end with memory, and the library.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewire_fabric::{
    Completion, Domain, Endpoint, EndpointOptions, Library, Posted, Provider, Query, Region, Remote,
};

/// Everything here takes far less.
pub const LONG: Duration = Duration::from_secs(30);

/// The library, or `None` after a visible SKIP.
pub fn library() -> Option<Library> {
    let path = crate::libfabric::find()?;
    Some(Library::open_at(path).expect("what was found can be opened"))
}

/// The software providers that must be in every libfabric.
pub const PROVIDERS: [&str; 2] = ["tcp", "shm"];

pub fn query(name: &str) -> Query {
    let address = (name != "shm").then(|| "127.0.0.1".to_string());
    Query { provider: Some(name.to_string()), address, ..Query::default() }
}

pub fn provider(library: Library, name: &str) -> Provider {
    Provider::list(library, &query(name)).expect("a provider of every libfabric").remove(0)
}

/// Memory that two ends write and tests read, by single bytes.
pub struct Block {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is touched by volatile accesses to single bytes alone, and by the provider.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    pub fn new(bytes: usize) -> Arc<Block> {
        // SAFETY: not empty.
        let start = unsafe { alloc_zeroed(Block::layout(bytes)) };
        Arc::new(Block { start: NonNull::new(start).expect("enough memory"), bytes })
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 4096).unwrap()
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub fn set(&self, at: usize, x: u8) {
        assert!(at < self.bytes);
        // SAFETY: inside.
        unsafe { self.start.as_ptr().add(at).write_volatile(x) }
    }

    pub fn get(&self, at: usize) -> u8 {
        assert!(at < self.bytes);
        // SAFETY: inside.
        unsafe { self.start.as_ptr().add(at).read_volatile() }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout.
        unsafe { dealloc(self.start.as_ptr(), Block::layout(self.bytes)) }
    }
}

/// An endpoint with one region. Closed in this order.
pub struct End {
    pub region: Region,
    pub endpoint: Endpoint,
    pub memory: Arc<Block>,
    pub got: Vec<Completion>,
}

impl End {
    pub fn open(library: Library, name: &str, bytes: usize, options: &EndpointOptions) -> End {
        let domain = Domain::open(Arc::new(provider(library, name))).unwrap();
        let endpoint = Endpoint::open(&domain, options).unwrap();
        let memory = Block::new(bytes);
        // SAFETY: the block is kept, and nobody makes a reference to its bytes.
        let region = unsafe { endpoint.register(memory.start, bytes, KEY, memory.clone()) }.unwrap();
        End { region, endpoint, memory, got: Vec::new() }
    }

    pub fn pair(library: Library, name: &str, bytes: usize) -> [End; 2] {
        [(); 2].map(|()| End::open(library, name, bytes, &EndpointOptions::default()))
    }

    /// What the other end needs, as text: address, base and key.
    pub fn card(&self) -> String {
        let hex: String = self.endpoint.address().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{hex} {} {}", self.region.base(), self.region.key())
    }

    /// The first byte of the other end's region.
    pub fn meet(&mut self, card: &str) -> Remote {
        let words: Vec<&str> = card.split_whitespace().collect();
        let byte = |at: usize| u8::from_str_radix(&words[0][at..at + 2], 16).unwrap();
        let address: Vec<u8> = (0..words[0].len()).step_by(2).map(byte).collect();
        let peer = self.endpoint.peers().insert(&address).unwrap();
        Remote { peer, address: words[1].parse().unwrap(), key: words[2].parse().unwrap() }
    }

    pub fn poll(&mut self) {
        if !self.endpoint.poll(&mut self.got).unwrap() {
            // The other end may want this core.
            std::thread::yield_now();
        }
    }

    /// Takes a completion out of what has come; false if it is not there.
    pub fn take(&mut self, completion: &Completion) -> bool {
        let at = self.got.iter().position(|is| is == completion);
        at.map(|at| self.got.remove(at)).is_some()
    }
}

pub const KEY: u64 = 0x0123_4567_89ab_cdef;

/// Posts until it is taken. Both ends make progress.
#[track_caller]
pub fn post(ends: &mut [End], from: usize, mut write: impl FnMut(&mut End) -> Posted) {
    let since = Instant::now();
    while write(&mut ends[from]) == Posted::Again {
        ends.iter_mut().for_each(End::poll);
        assert!(since.elapsed() < LONG, "it is never taken");
    }
}

/// Polls all ends until `done`.
#[track_caller]
pub fn drive(ends: &mut [End], mut done: impl FnMut(&mut [End]) -> bool) {
    let since = Instant::now();
    while !done(ends) {
        ends.iter_mut().for_each(End::poll);
        assert!(since.elapsed() < LONG, "still {:?}", ends.iter().map(|end| &end.got).collect::<Vec<_>>());
    }
}
