//! Evaluates a launch on a copy of host tensors.

use super::error::EvalError;
use super::memory::{Bank, Binding, Bound, Memories, MemoryId};
use super::run::{Options, run};
use crate::ir::{Kernel, Param};
use crate::tensor::{Arg, Memory};

/// Runs one launch of `kernel` on a copy of what `args` name and gives the bytes afterwards: for every parameter one vector
/// per bank (a scalar has one bank, a queue has none). The tensors themselves are not touched. Arguments that share
/// memory share it in the copy too. A queue reaches no peer.
///
/// `rank` is (this rank, number of ranks).
pub fn evaluate(
    kernel: &Kernel,
    args: &[Arg],
    rank: (u32, u32),
    options: Options,
) -> Result<Vec<Vec<Vec<u8>>>, EvalError> {
    let mut snapshot = Snapshot::take(args);
    let mut banks_of = Vec::new();
    let mut params = Vec::new();
    for (i, arg) in args.iter().enumerate() {
        let banks: Vec<Bank> = memories_of(arg).iter().map(|memory| snapshot.bank(memory)).collect();
        params.push(match arg {
            Arg::Buffer(_) => Bound::Buffer(banks.clone()),
            Arg::Slots(_) => Bound::Slots(banks.clone()),
            Arg::Scalar(_) => {
                let ty = match kernel.params.values().nth(i) {
                    Some(Param::Scalar { ty, .. }) if ty.size() as u64 <= banks[0].len => *ty,
                    _ => {
                        let message = format!("argument {i} is a scalar; the parameter is not, or is wider");
                        return Err(EvalError::Binding { kernel: kernel.name.clone(), message });
                    }
                };
                Bound::Scalar(snapshot.memories.read_element(banks[0].memory, banks[0].offset, ty))
            }
            Arg::Queue(_) => Bound::Queue(Vec::new()),
        });
        banks_of.push(banks);
    }
    let binding = Binding { rank: rank.0, world_size: rank.1, params };
    let after = run(kernel, &binding, snapshot.memories, options)?;
    Ok(banks_of.iter().map(|banks| banks.iter().map(|&bank| after.bank(bank).to_vec()).collect()).collect())
}

/// Copies of pieces of the address space: memories that overlap or touch are one piece.
struct Snapshot {
    memories: Memories,
    /// First address (rounded down) and end of every piece.
    pieces: Vec<(usize, usize, MemoryId)>,
}

/// Pieces begin at a multiple of this, so that offsets in a piece are aligned as the addresses are.
const GRAIN: usize = Memory::ALIGN;

impl Snapshot {
    fn take(args: &[Arg]) -> Self {
        let mut all: Vec<Memory> = args.iter().flat_map(memories_of).collect();
        all.sort_by_key(address);
        let mut pieces: Vec<(usize, Vec<u8>)> = Vec::new();
        for memory in &all {
            let (start, end) = (address(memory), address(memory) + memory.bytes());
            let base = match pieces.last() {
                Some((base, bytes)) if start <= base + bytes.len() => *base,
                _ => {
                    let base = start / GRAIN * GRAIN;
                    pieces.push((base, vec![0; start - base]));
                    base
                }
            };
            let (_, bytes) = pieces.last_mut().expect("pushed above");
            bytes.resize(bytes.len().max(end - base), 0);
            bytes[start - base..end - base].copy_from_slice(&memory.read());
        }
        let mut memories = Memories::new();
        let add = |(base, bytes): (usize, Vec<u8>)| (base, base + bytes.len(), memories.add(bytes));
        let pieces = pieces.into_iter().map(add).collect();
        Snapshot { memories, pieces }
    }

    fn bank(&self, memory: &Memory) -> Bank {
        let start = address(memory);
        let holds = |(base, end, _): &&(usize, usize, MemoryId)| *base <= start && start + memory.bytes() <= *end;
        // The piece that begins last: an earlier one can only touch it.
        let &(base, _, id) = self.pieces.iter().rev().find(holds).expect("every argument was copied");
        Bank { memory: id, offset: (start - base) as u64, len: memory.bytes() as u64 }
    }
}

fn address(memory: &Memory) -> usize {
    memory.start().as_ptr() as usize
}

fn memories_of(arg: &Arg) -> Vec<Memory> {
    match arg {
        Arg::Buffer(banks) | Arg::Slots(banks) => banks.clone(),
        Arg::Scalar(memory) => vec![memory.clone()],
        Arg::Queue(_) => Vec::new(),
    }
}
