//! A machine that runs tilewire's PTX thread by thread, as the PTX manual defines it. With it, machines without a GPU
//! can compare the effect of the text with the meaning of the kernel.
//!
//! Threads run independently until they meet, at named barriers or in the warp's collectives, which need all 32 lanes
//! at the same instruction. Errors are: a thread that waits at a barrier to which no other thread comes, an access
//! outside its memory or alignment, and an unknown instruction. Memory is sequentially consistent: missing fences and
//! acquires are *not* found here.
//!
//! | file | holds |
//! |---|---|
//! | `parse.rs` | text → instructions |
//! | `execute.rs` | the effect of one instruction on one thread |
//! | `arith.rs` | arithmetic and conversions |
//! | `bulk.rs` | asynchronous copies, done as late as possible | | `trace.rs` | the accesses of a run in order, for
//! tests that judge more than results |

mod arith;
mod bulk;
mod execute;
mod parse;
mod trace;

use bulk::Shared;
use execute::Thread;
use tilewire::ptx::Module;

pub use parse::{Code, Instr, Operand};
pub use trace::{Access, Event, Space, Trace};

/// The memory of a machine: pieces that are far apart.
#[derive(Default)]
pub struct Memory {
    pub pieces: Vec<Vec<u8>>,
    /// The trace of a run; `None` if no trace is wanted.
    pub trace: Option<Trace>,
}

/// The distance between two pieces.
const FAR: u64 = 1 << 36;

impl Memory {
    /// Adds a piece; gives its address.
    pub fn add(&mut self, bytes: Vec<u8>) -> u64 {
        self.pieces.push(bytes);
        FAR * self.pieces.len() as u64
    }

    /// The word of 8 bytes at an offset of a piece.
    pub fn word(&self, piece: usize, offset: usize) -> u64 {
        u64::from_le_bytes(self.pieces[piece][offset..offset + 8].try_into().expect("eight bytes"))
    }

    /// Changes the word of 8 bytes at an offset of a piece.
    pub fn set_word(&mut self, piece: usize, offset: usize, word: u64) {
        self.pieces[piece][offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// The number of the piece that an address lies in.
    pub fn piece_of(address: u64) -> Option<usize> {
        ((address / FAR) as usize).checked_sub(1)
    }

    /// The byte of its piece that an address is.
    pub fn offset_of(address: u64) -> u64 {
        address % FAR
    }

    fn at(&mut self, address: u64, bytes: u64) -> Result<&mut [u8], String> {
        let offset = address % FAR;
        let found = Memory::piece_of(address).and_then(|piece| self.pieces.get_mut(piece));
        let range = offset as usize..(offset + bytes) as usize;
        found.and_then(|piece| piece.get_mut(range)).ok_or_else(|| format!("no memory at {address:#x}, {bytes} bytes"))
    }
}

/// The error that ended a run, and its line.
#[derive(Debug)]
pub struct Fault(pub String);

/// The number of steps of one thread before the next one has its turn.
const QUANTUM: u32 = 4000;
/// A run is given up after this many turns in which no thread gets past a meeting or ends.
const PATIENCE: u32 = 3000;

/// Runs one launch; the parameter block is `args`.
pub fn run(module: &Module, args: &[u8], memory: &mut Memory) -> Result<(), Fault> {
    run_world(&[(module, args)], memory)
}

/// Runs one launch of every rank at the same time.
pub fn run_world(ranks: &[(&Module, &[u8])], memory: &mut Memory) -> Result<(), Fault> {
    run_beside(ranks, memory, &mut |_| {})
}

/// Does the same, beside a host that has its turn after all threads had theirs.
pub fn run_beside(
    ranks: &[(&Module, &[u8])],
    memory: &mut Memory,
    host: &mut dyn FnMut(&mut Memory),
) -> Result<(), Fault> {
    let codes =
        ranks.iter().map(|(module, _)| Code::parse(&module.text)).collect::<Result<Vec<Code>, _>>().map_err(Fault)?;
    let mut blocks = Vec::new();
    for (rank, (module, _)) in ranks.iter().enumerate() {
        blocks.extend((0..module.blocks).map(|block| (rank, Block::new(&codes[rank], module, block))));
    }
    let (mut clock, mut idle) = (0u64, 0);
    loop {
        let (mut live, mut moved) = (false, false);
        for (rank, block) in &mut blocks {
            let (code, args) = (&codes[*rank], ranks[*rank].1);
            if let Some(trace) = &mut memory.trace {
                trace.rank = *rank;
            }
            for thread in &mut block.threads {
                if !thread.is_running() {
                    continue;
                }
                clock += 1000;
                thread
                    .run(code, args, memory, &mut block.shared, clock, QUANTUM)
                    .map_err(|what| Fault(format!("{what}\nat {}", code.lines[thread.at.min(code.lines.len() - 1)])))?;
                moved |= !thread.is_running();
            }
            moved |= block.meet(code, memory.trace.as_mut()).map_err(Fault)?;
            live |= block.threads.iter().any(|thread| !thread.is_done());
        }
        host(memory);
        if !live {
            let quiet = blocks.iter().all(|(_, block)| block.shared.is_quiet());
            return if quiet { Ok(()) } else { Err(Fault("a block ends with copies under way".into())) };
        }
        idle = if moved { 0 } else { idle + 1 };
        let running = blocks.iter().any(|(_, block)| block.threads.iter().any(Thread::is_running));
        if idle > PATIENCE || (!moved && !running) {
            let threads =
                blocks.iter().flat_map(|(rank, block)| block.threads.iter().map(move |thread| (*rank, thread)));
            let stuck: Vec<String> = threads
                .filter(|(_, thread)| !thread.is_done())
                .take(3)
                .map(|(rank, thread)| {
                    format!("rank {rank}, thread {} at {}", thread.number, codes[rank].lines[thread.at])
                })
                .collect();
            return Err(Fault(format!("no progress: {}", stuck.join("; "))));
        }
    }
}

struct Block {
    threads: Vec<Thread>,
    shared: Shared,
}

impl Block {
    fn new(code: &Code, module: &Module, block: u32) -> Self {
        let threads = (0..module.threads).map(|number| Thread::new(code, number, block)).collect();
        Block { threads, shared: Shared::new(module.shared_bytes as usize) }
    }

    /// Releases the threads that have met at a barrier or in a collective of their warp.
    fn meet(&mut self, code: &Code, mut trace: Option<&mut Trace>) -> Result<bool, String> {
        let mut met = false;
        for warp in self.threads.chunks_mut(32) {
            if warp.iter().all(|thread| thread.waits_for_warp()) {
                let at = warp[0].at;
                if let Some(other) = warp.iter().find(|thread| thread.at != at) {
                    return Err(format!("a warp diverges: {} and {}", code.lines[at], code.lines[other.at]));
                }
                execute::collective(code, warp)?;
                if let Some(trace) = &mut trace {
                    trace.met(warp.iter());
                }
                met = true;
            }
        }
        for number in 0..16 {
            let waiting: Vec<usize> = (0..self.threads.len())
                .filter(|&t| self.threads[t].barrier().is_some_and(|(n, _)| n == number))
                .collect();
            let Some(&first) = waiting.first() else { continue };
            let count = self.threads[first].barrier().expect("waiting").1;
            if waiting.len() as u64 > count {
                return Err(format!("{} threads at barrier {number} for {count}", waiting.len()));
            }
            if waiting.len() as u64 == count {
                let any = waiting.iter().any(|&t| self.threads[t].offers(code));
                waiting.iter().for_each(|&t| self.threads[t].pass(code, any));
                if let Some(trace) = &mut trace {
                    trace.met(waiting.iter().map(|&t| &self.threads[t]));
                }
                met = true;
            }
        }
        Ok(met)
    }
}
