//! Evaluates a launch on a copy of host tensors.

use super::error::EvalError;
use super::memory::{Bank, Binding, Bound, Memories, MemoryId};
use super::run::{Options, run};
use crate::ir::{Kernel, Param};
use crate::tensor::{AccessError, Arg, Memory, bytes_of};

/// Runs one launch of `kernel` on a copy of the memory that `args` name and returns the bytes afterwards: for every
/// parameter one vector per bank (a scalar has one bank, a queue has none), without gaps between rows. The tensors
/// themselves are not touched. Arguments that share memory share it in the copy too. A queue reaches no peer.
///
/// `rank` is (this rank, number of ranks).
pub fn evaluate(
    kernel: &Kernel,
    args: &[Arg],
    rank: (u32, u32),
    options: Options,
) -> Result<Vec<Vec<Vec<u8>>>, EvalError> {
    let unread = |error: AccessError| EvalError::Binding { kernel: kernel.name.clone(), message: error.to_string() };
    let snapshot = Snapshot::of(args.iter().flat_map(memories_of).collect()).map_err(unread)?;
    let mut rows_of = Vec::new();
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
        rows_of.push(memories_of(arg).iter().map(|memory| snapshot.rows(memory).collect()).collect::<Vec<Vec<_>>>());
    }
    let binding = Binding { rank: rank.0, world_size: rank.1, params, operations: operations_of(args) };
    let after = run(kernel, &binding, snapshot.memories, options)?;
    let bytes = |rows: &Vec<Bank>| rows.iter().flat_map(|&row| after.bank(row).to_vec()).collect();
    Ok(rows_of.iter().map(|banks| banks.iter().map(bytes).collect()).collect())
}

/// Copies of pieces of the address space: memories that overlap or touch are one piece.
pub(super) struct Snapshot {
    pub(super) memories: Memories,
    pieces: Vec<Piece>,
}

struct Piece {
    /// First and last address of the arguments in it.
    start: usize,
    end: usize,
    /// Address of the copy's byte 0: `start`, rounded down so that offsets in the copy are aligned like the addresses.
    base: usize,
    copy: MemoryId,
}

impl Snapshot {
    /// Copies these memories.
    pub(super) fn of(mut all: Vec<Memory>) -> Result<Self, AccessError> {
        all.sort_by_key(address);
        let mut memories = Memories::new();
        let mut pieces = Vec::new();
        let mut rest = &all[..];
        while let Some(first) = rest.first() {
            let start = address(first);
            let base = start / Memory::ALIGN * Memory::ALIGN;
            let (mut end, mut bytes) = (start, vec![0; start - base]);
            while let Some((memory, others)) = rest.split_first().filter(|(memory, _)| address(memory) <= end) {
                end = end.max(address(memory) + memory.bytes());
                bytes.resize(end - base, 0);
                // The bytes between rows belong to no tensor. No index reaches them, and the copy has zeros there.
                for (_, row) in memory.runs() {
                    bytes[address(&row) - base..][..row.bytes()].copy_from_slice(&bytes_of(&row)?);
                }
                rest = others;
            }
            pieces.push(Piece { start, end, base, copy: memories.add(bytes) });
        }
        Ok(Snapshot { memories, pieces })
    }

    /// The places of a copied memory's rows in the copy.
    pub(super) fn rows(&self, memory: &Memory) -> impl Iterator<Item = Bank> {
        let (Bank { memory: copy, offset, .. }, of) = (self.bank(memory), memory.rows());
        (0..of.count).map(move |row| Bank {
            memory: copy,
            offset: offset + (row * of.stride) as u64,
            len: of.width as u64,
        })
    }

    /// The place of a copied memory in the copy, gaps included.
    pub(super) fn bank(&self, memory: &Memory) -> Bank {
        let (start, bytes) = (address(memory), memory.bytes());
        let piece = self.pieces.iter().find(|piece| piece.start <= start && start + bytes <= piece.end);
        let piece = piece.expect("every argument was copied");
        Bank { memory: piece.copy, offset: (start - piece.base) as u64, len: bytes as u64 }
    }
}

fn address(memory: &Memory) -> usize {
    memory.start().as_ptr() as usize
}

/// The operation of every bank of every argument.
pub(super) fn operations_of(args: &[Arg]) -> Vec<Vec<u16>> {
    let of = |memory: &Memory| memory.operation().unwrap_or(0);
    let operations = |arg: &Arg| match arg {
        Arg::Queue(queue) => vec![of(queue.entries())],
        arg => memories_of(arg).iter().map(of).collect(),
    };
    args.iter().map(operations).collect()
}

/// The memories an argument names.
pub(super) fn memories_of(arg: &Arg) -> Vec<Memory> {
    match arg {
        Arg::Buffer(banks) | Arg::Slots(banks) => banks.clone(),
        Arg::Scalar(memory) => vec![memory.clone()],
        Arg::Queue(_) => Vec::new(),
    }
}
