//! Launches on a device copy of host tensors, for tests and for trying a kernel.

use std::sync::Arc;
use std::time::Duration;
use tilewire::cuda::{AbortWord, Buffer, CudaError, Device, Launch, Seat, Settings};
use tilewire::ir::{self, Kernel, Param};
use tilewire::tensor::bytes_of;
use tilewire::{Arg, Memory};

/// One rank of a launch.
#[derive(Clone, Copy)]
pub struct RankLaunch<'a> {
    /// Its kernel.
    pub kernel: &'a Kernel,
    /// Its arguments; ranks share the memory that several of them name.
    pub args: &'a [Arg],
}

/// The bytes of every bank, for each parameter.
type Results = Vec<Vec<Vec<u8>>>;

/// Runs one launch of a kernel on a copy of the memory that `args` name and returns the bytes afterwards: for every
/// parameter one vector per bank. The tensors are not touched. This is the GPU's counterpart of `check::evaluate`.
pub fn evaluate(
    device: &Arc<Device>,
    kernel: &Kernel,
    args: &[Arg],
    deadline: Option<Duration>,
) -> Result<Results, CudaError> {
    let mut results = evaluate_world(device, &[RankLaunch { kernel, args }], deadline)?;
    Ok(results.swap_remove(0))
}

/// Runs one launch of every rank at the same time, each on its own stream. All programs are loaded before the first
/// launch. (The caller must ensure that all blocks fit on the device simultaneously; otherwise waits end by their
/// deadline.)
pub fn evaluate_world(
    device: &Arc<Device>,
    ranks: &[RankLaunch<'_>],
    deadline: Option<Duration>,
) -> Result<Vec<Results>, CudaError> {
    let copies = Copies::take(device, ranks)?;
    // All ranks have the same abort word: the first rank that gives up ends the others, and reports the reason.
    let abort = AbortWord::new(device)?;
    let mut launches = Vec::new();
    for (rank, RankLaunch { kernel, args }) in ranks.iter().enumerate() {
        let settings = Settings { rank: rank as u32, world_size: ranks.len() as u32, deadline, ..Settings::default() };
        let args: Vec<Arg> = args.iter().map(|arg| copies.arg(arg)).collect();
        let seat = Seat { abort: abort.clone(), ..Seat::new(device)? };
        launches.push(Launch::new(&ir::simplify(kernel), &args, &seat, settings)?);
    }
    let mut started = Ok(());
    for (k, launch) in launches.iter_mut().enumerate() {
        started = launch.start();
        if started.is_err() {
            // Otherwise the running kernels would wait for one that never starts.
            abort.set(1)?;
            launches.truncate(k);
            break;
        }
    }
    // Waits for all ranks, whatever the first returns. The error of a rank that reports more than the set word has the
    // cause.
    let ends: Vec<Result<(), CudaError>> = launches.iter_mut().map(Launch::sync).collect();
    started?;
    let (aborted, others): (Vec<_>, Vec<_>) =
        ends.into_iter().partition(|end| matches!(end, Err(CudaError::Aborted { .. })));
    others.into_iter().chain(aborted).collect::<Result<(), _>>()?;
    let bytes = copies.read()?;
    Ok(ranks.iter().map(|rank| rank.args.iter().map(|arg| copies.results(arg, &bytes)).collect()).collect())
}

/// Device copies of pieces of host memory. Memories that overlap become one piece.
struct Copies {
    pieces: Vec<Piece>,
}

struct Piece {
    start: usize,
    end: usize,
    /// The offset of `start` in the copy, which keeps the alignment of the host.
    skew: usize,
    buffer: Arc<Buffer>,
}

/// The alignment that a copy keeps.
const ALIGN: usize = 256;

impl Copies {
    fn take(device: &Arc<Device>, ranks: &[RankLaunch<'_>]) -> Result<Self, CudaError> {
        let named = ranks.iter().flat_map(|RankLaunch { kernel, args }| {
            kernel.params.values().map(Param::name).chain(std::iter::repeat("beyond the last")).zip(*args)
        });
        let mut all: Vec<(&str, Memory)> =
            named.flat_map(|(param, arg)| memories(arg).into_iter().map(move |memory| (param, memory))).collect();
        all.sort_by_key(|(_, memory)| address(memory));
        let mut pieces: Vec<Piece> = Vec::new();
        let mut rest = &all[..];
        while let Some((_, first)) = rest.first() {
            let start = address(first);
            let (mut end, skew) = (start + first.bytes(), start % ALIGN);
            let mut bytes = vec![0; skew];
            while let Some(((param, memory), others)) =
                rest.split_first().filter(|((_, m), _)| address(m) < end || address(m) == start)
            {
                end = end.max(address(memory) + memory.bytes());
                bytes.resize(end - start + skew, 0);
                let copy = bytes_of(memory)
                    .map_err(|error| CudaError::Argument { param: param.to_string(), what: error.to_string() })?;
                bytes[address(memory) - start + skew..][..memory.bytes()].copy_from_slice(&copy);
                rest = others;
            }
            pieces.push(Piece { start, end, skew, buffer: Arc::new(Buffer::from_bytes(device, &bytes)?) });
        }
        Ok(Copies { pieces })
    }

    fn find(&self, memory: &Memory) -> usize {
        let (start, end) = (address(memory), address(memory) + memory.bytes());
        let inside = |piece: &Piece| piece.start <= start && end <= piece.end;
        self.pieces.iter().position(inside).expect("every argument was copied")
    }

    /// The argument with its memories replaced by their copies.
    fn arg(&self, arg: &Arg) -> Arg {
        let place = |memory: &Memory| {
            let piece = &self.pieces[self.find(memory)];
            let copy = piece.buffer.memory().part(address(memory) - piece.start + piece.skew, memory.bytes());
            copy.stands_for(memory)
        };
        match arg {
            Arg::Buffer(banks) => Arg::Buffer(banks.iter().map(place).collect()),
            Arg::Slots(banks) => Arg::Slots(banks.iter().map(place).collect()),
            other => other.clone(),
        }
    }

    fn read(&self) -> Result<Vec<Vec<u8>>, CudaError> {
        self.pieces.iter().map(|piece| piece.buffer.read()).collect()
    }

    fn results(&self, arg: &Arg, bytes: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let of = |memory: &Memory| {
            let k = self.find(memory);
            let first = address(memory) - self.pieces[k].start + self.pieces[k].skew;
            bytes[k][first..first + memory.bytes()].to_vec()
        };
        memories(arg).iter().map(of).collect()
    }
}

fn address(memory: &Memory) -> usize {
    memory.start().as_ptr() as usize
}

fn memories(arg: &Arg) -> Vec<Memory> {
    match arg {
        Arg::Buffer(banks) | Arg::Slots(banks) => banks.clone(),
        Arg::Scalar(memory) => vec![memory.clone()],
        Arg::Queue(_) => Vec::new(),
    }
}
