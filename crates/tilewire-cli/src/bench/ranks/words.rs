//! Words that all ranks see, each on its own cache lines, and waiting for them.

use super::pin::cores;
use anyhow::{Result, bail};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Acquire};
use std::time::{Duration, Instant};
use tilewire::Memory;
use tilewire::link::{ShmTransport, Transport, Window};
use tilewire::transport::Rank;

/// Words of one line. Two cache lines, since the adjacent-line prefetcher would make neighbours interfere.
const STRIDE: usize = 16;
/// Lines for the sides of one contest: one side of 16 ranks takes 272 of them.
const LINES: usize = 4096;
/// Polls between two reads of the clock: about 100 µs.
const SPINS: u32 = 1 << 16;
/// The same limit, if the awaited rank may need this rank's core.
const CROWDED_SPINS: u32 = 1 << 6;
const SHORTEST_NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_millis(2);
/// A rank that takes longer than this has failed unnoticed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Sleeping ranks wait longer: in the meantime an MPI program may be abandoned, which must be the reported error.
const LONGER: u32 = 3;

/// Allocates words of shared memory, initially zero. All ranks ask in the same order, so they get the same ones.
pub struct Words<'l> {
    link: &'l ShmTransport,
    memory: Memory,
    next: Cell<usize>,
}

impl<'l> Words<'l> {
    /// Collective.
    pub fn allocate(link: &'l ShmTransport) -> Result<Words<'l>> {
        let window = Window::<u64>::allocate(link, LINES * STRIDE)?;
        Ok(Words {
            link,
            memory: window.peer(Rank::new(0)).expect("ranks of one machine reach each other").clone(),
            next: Cell::new(0),
        })
    }

    /// A fresh word.
    pub fn next(&self) -> Word<'l> {
        let line = self.next.replace(self.next.get() + 1);
        // `part` panics when there is no such line.
        let memory = self.memory.part(line * STRIDE * 8, STRIDE * 8);
        Word { at: memory.start().cast(), _keep: memory, link: self.link }
    }
}

/// A word of shared memory, alone on its line.
pub struct Word<'l> {
    at: NonNull<AtomicU64>,
    _keep: Memory,
    link: &'l ShmTransport,
}

impl std::ops::Deref for Word<'_> {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        // SAFETY: the line is inside a segment that `_keep` holds, aligned to 128 bytes and initialised. Everyone in
        // this process or another reaches it through a `Word` too, so only by atomics.
        unsafe { self.at.as_ref() }
    }
}

impl Word<'_> {
    /// The next word of the same line: a value stored there first arrives with this one.
    pub fn beside(&self) -> &AtomicU64 {
        // SAFETY: as for `deref`; a line has `STRIDE` words.
        unsafe { self.at.add(1).as_ref() }
    }

    /// Spins until the word is at least `value`; sees everything published with it. An error if the other rank is gone.
    #[inline]
    pub fn wait(&self, value: u64) -> Result<()> {
        until(self.link, || self.load(Acquire) >= value)
    }

    /// As [`wait`](Word::wait), but leaves the processor to others, in naps that get longer, since each costs the
    /// measured program several µs.
    pub fn wait_asleep(&self, value: u64) -> Result<()> {
        let mut waiting = Waiting { patience: LONGER * PATIENCE, ..Waiting::new(self.link) };
        for _ in 0..spins(self.link) / 4 {
            if self.load(Acquire) >= value {
                return Ok(());
            }
        }
        let mut nap = SHORTEST_NAP;
        while self.load(Acquire) < value {
            waiting.look()?;
            std::thread::sleep(nap);
            nap = (nap * 2).min(LONGEST_NAP);
        }
        Ok(())
    }
}

/// Spins until a condition holds. Without a pause instruction, which delays observation by up to 40 ns.
#[inline]
pub fn until(link: &ShmTransport, mut ready: impl FnMut() -> bool) -> Result<()> {
    let mut waiting = Waiting::new(link);
    let spins = spins(link);
    loop {
        for _ in 0..spins {
            if ready() {
                return Ok(());
            }
        }
        waiting.look()?;
    }
}

fn spins(link: &ShmTransport) -> u32 {
    if link.world_size() > cores() { CROWDED_SPINS } else { SPINS }
}

struct Waiting<'l> {
    link: &'l ShmTransport,
    since: Option<Instant>,
    patience: Duration,
}

impl<'l> Waiting<'l> {
    fn new(link: &'l ShmTransport) -> Waiting<'l> {
        Waiting { link, since: None, patience: PATIENCE }
    }

    /// An error if waiting has become pointless. On a busy machine the other rank may need this one's processor.
    #[cold]
    fn look(&mut self) -> Result<()> {
        self.link.check()?;
        if self.since.get_or_insert_with(Instant::now).elapsed() > self.patience {
            bail!("another rank did not answer for {:?}", self.patience);
        }
        std::thread::yield_now();
        Ok(())
    }
}
