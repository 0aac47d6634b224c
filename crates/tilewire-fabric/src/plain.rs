//! Plain loops over a provider, as a baseline for everything built on it, in the same run and between the same
//! processes.

use crate::domain::{Domain, Region};
use crate::endpoint::{Completion, Endpoint, EndpointOptions, Posted, Remote, Source};
use crate::error::{CompletionError, FabricError};
use crate::provider::Provider;
use std::alloc::{Layout, alloc, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One of two ends that write to each other as fast as the provider can, without any protocol.
///
/// Both ends call [`open`](Plain::open), exchange the bytes that it returns, and call [`connect`](Plain::connect). Then
/// both call the same loops with the same arguments simultaneously, one of them as the first end.
pub struct Plain {
    region: Region,
    endpoint: Endpoint,
    to: Option<Remote>,
    bytes: usize,
    completions: Vec<Completion>,
    arrived: u64,
    done: u64,
    /// A message that does not arrive within this time is an error.
    patience: Duration,
}

/// The reason why a loop failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PlainError {
    /// A call failed.
    Fabric(FabricError),
    /// A write failed.
    Write(CompletionError),
    /// The address of the other end is malformed.
    Card,
    /// The memory of the ends is too small for the bytes asked for.
    Bytes {
        /// The number of bytes asked for.
        bytes: usize,
        /// The number of bytes that the memory has.
        most: usize,
    },
    /// Nothing arrived in time.
    Late,
}

impl fmt::Display for PlainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlainError::Fabric(error) => error.fmt(f),
            PlainError::Write(error) => write!(f, "a write failed: {error}"),
            PlainError::Card => f.write_str("the other end's description is not understood, or it is not connected"),
            PlainError::Bytes { bytes, most } => write!(f, "{bytes} bytes: both ends were opened with {most}"),
            PlainError::Late => f.write_str("the other end does not answer: does it run the same loop?"),
        }
    }
}

impl std::error::Error for PlainError {}

impl From<FabricError> for PlainError {
    fn from(error: FabricError) -> PlainError {
        PlainError::Fabric(error)
    }
}

/// The byte that the memory of an end is filled with.
const FILLED: u8 = 0x5a;

/// A block of memory.
struct Block(NonNull<u8>, Layout);

// SAFETY: only the provider touches the bytes.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the block was allocated with this layout, and it is no longer registered.
        unsafe { dealloc(self.0.as_ptr(), self.1) };
    }
}

impl Plain {
    /// Opens an end whose loops write up to `bytes` bytes. Also returns the bytes that the other end needs to connect.
    ///
    /// # Errors
    /// If the provider reports an error.
    pub fn open(provider: Arc<Provider>, bytes: usize, key: u64) -> Result<(Plain, Vec<u8>), PlainError> {
        let endpoint = Endpoint::open(&Domain::open(provider)?, &EndpointOptions::default())?;
        let layout = Layout::from_size_align(bytes.max(8), 4096).map_err(|_| PlainError::Bytes { bytes, most: 0 })?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc(layout) }).ok_or(PlainError::Bytes { bytes, most: 0 })?;
        // Memory that was never written is one page of zeros again and again, which would stay in the nearest cache.
        // SAFETY: the block has this size, and nobody else knows it yet.
        unsafe { start.write_bytes(FILLED, layout.size()) };
        let block = Arc::new(Block(start, layout));
        // SAFETY: the region keeps the block, and no reference to its bytes is ever made.
        let region = unsafe { endpoint.register(start, layout.size(), key, block)? };
        let mut card = Vec::new();
        [region.base(), region.key(), layout.size() as u64].iter().for_each(|x| card.extend(x.to_le_bytes()));
        card.extend(endpoint.address());
        let (completions, patience) = (Vec::new(), Duration::from_secs(30));
        let plain =
            Plain { region, endpoint, to: None, bytes: layout.size(), completions, arrived: 0, done: 0, patience };
        Ok((plain, card))
    }

    /// Connects to the other end with the bytes that its `open` returned. Both ends call it simultaneously.
    ///
    /// # Errors
    /// If the bytes are malformed, or the other end does not connect.
    pub fn connect(&mut self, card: &[u8]) -> Result<(), PlainError> {
        let (numbers, address) = card.split_at_checked(24).ok_or(PlainError::Card)?;
        let number = |k: usize| u64::from_le_bytes(numbers[8 * k..8 * k + 8].try_into().expect("eight bytes"));
        if number(2) != self.bytes as u64 {
            return Err(PlainError::Card);
        }
        let peer = self.endpoint.peers().insert(address)?;
        self.to = Some(Remote { peer, address: number(0), key: number(1) });
        // Providers connect with the first writes, fastest if both ends begin.
        self.post_small(8)?;
        self.wait(|end| end.arrived >= 1)?;
        self.arrived -= 1;
        Ok(())
    }

    /// Sends small writes and waits for the answer to each, `rounds` times. Returns the time of one direction.
    ///
    /// # Errors
    /// If a write fails or the other end is gone.
    pub fn ping_pong(&mut self, bytes: usize, is_first: bool, rounds: u32) -> Result<Duration, PlainError> {
        self.check(bytes)?;
        let since = Instant::now();
        for _ in 0..rounds {
            if is_first {
                self.post_small(bytes)?;
            }
            self.wait(|end| end.arrived >= 1)?;
            self.arrived -= 1;
            if !is_first {
                self.post_small(bytes)?;
            }
        }
        Ok(since.elapsed() / (2 * rounds.max(1)))
    }

    /// Runs a loop of `fi_writedata`: the first end writes `bytes` bytes `count` times, with at most `window` writes
    /// under way, and waits for one answer. Returns the time until the answer.
    ///
    /// # Errors
    /// As for [`ping_pong`](Plain::ping_pong).
    pub fn stream(&mut self, bytes: usize, is_first: bool, count: u64, window: u64) -> Result<Duration, PlainError> {
        self.check(bytes)?;
        let since = Instant::now();
        if is_first {
            let before = self.done;
            // The writes go to different places as long as the memory has room.
            let places = (self.bytes / bytes.max(1)).max(1) as u64;
            for number in 0..count {
                self.wait(|end| number - (end.done - before) < window.max(1))?;
                self.post(bytes, (number % places) as usize * bytes)?;
            }
            self.wait(|end| end.done - before == count && end.arrived >= 1)?;
            self.arrived -= 1;
        } else {
            self.wait(|end| end.arrived >= count)?;
            self.arrived -= count;
            self.post_small(8)?;
        }
        Ok(since.elapsed())
    }

    fn check(&self, bytes: usize) -> Result<(), PlainError> {
        match bytes <= self.bytes {
            true => Ok(()),
            false => Err(PlainError::Bytes { bytes, most: self.bytes }),
        }
    }

    /// The provider copies the bytes if they are few enough.
    fn post_small(&mut self, bytes: usize) -> Result<(), PlainError> {
        let to = self.to.ok_or(PlainError::Card)?;
        if bytes > self.endpoint.provider().inject_bytes() {
            let before = self.done;
            self.post(bytes, 0)?;
            return self.wait(|end| end.done > before);
        }
        let region = self.region.clone();
        let source = Source::Region { region: &region, offset: 0, bytes };
        self.until_taken(|end| end.inject_writedata(to, source, 1))
    }

    fn post(&mut self, bytes: usize, at: usize) -> Result<(), PlainError> {
        let to = self.to.ok_or(PlainError::Card)?;
        let (region, place) = (self.region.clone(), Remote { address: to.address + at as u64, ..to });
        self.until_taken(|end| end.writedata(place, (&region, at, bytes), 1, 0))
    }

    fn until_taken(
        &mut self,
        mut post: impl FnMut(&mut Endpoint) -> Result<Posted, FabricError>,
    ) -> Result<(), PlainError> {
        let mut since = None;
        while post(&mut self.endpoint)? == Posted::Again {
            self.poll()?;
            if since.get_or_insert_with(Instant::now).elapsed() > self.patience {
                return Err(PlainError::Late);
            }
        }
        Ok(())
    }

    fn wait(&mut self, done: impl Fn(&Plain) -> bool) -> Result<(), PlainError> {
        let (mut since, mut rounds) = (None, 0u32);
        while !done(self) {
            self.poll()?;
            rounds = rounds.wrapping_add(1);
            // Reading the clock is slower than polling, so it is read rarely.
            if rounds.is_multiple_of(1024) {
                if since.get_or_insert_with(Instant::now).elapsed() > self.patience {
                    return Err(PlainError::Late);
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<(), PlainError> {
        let mut completions = std::mem::take(&mut self.completions);
        self.endpoint.poll(&mut completions)?;
        for completion in completions.drain(..) {
            match completion {
                Completion::Arrived { .. } => self.arrived += 1,
                Completion::Done { .. } => self.done += 1,
                Completion::Failed { error, .. } => return Err(PlainError::Write(error)),
            }
        }
        self.completions = completions;
        Ok(())
    }
}

impl fmt::Debug for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plain over {}", self.endpoint.provider())
    }
}
