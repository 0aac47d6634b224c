//! A program with its arguments.

use super::buffer::Buffer;
use super::error::Called;
use super::error::{CudaError, Stopped};
use super::program::Program;
use super::stream::Stream;
use crate::ir::{Entity, Inst, Param, RoleId, Type};
use crate::ptx::abi;
use cudarc::driver::result;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// What a launch knows besides its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// This rank.
    pub rank: u32,
    /// Ranks in the world.
    pub world_size: u32,
    /// How long a wait may take; `None`: for ever.
    pub deadline: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { rank: 0, world_size: 1, deadline: Some(Duration::from_secs(30)) }
    }
}

/// What is bound to one parameter, in the order of the parameters.
#[derive(Clone, Debug)]
pub enum Bound {
    /// Buffer or slots: for every bank the memory that holds it, and its first byte there.
    Banks(Vec<(Arc<Buffer>, usize)>),
    /// The bits of a scalar, zero-extended.
    Scalar(u64),
}

/// A program bound to memory: run it any number of times.
pub struct Launch {
    program: Arc<Program>,
    settings: Settings,
    block: Vec<u64>,
    abort: Arc<Buffer>,
    report: Buffer,
    _memory: Vec<Bound>,
}

impl Launch {
    /// Binds a program. `abort` is the abort word of the rank (8 bytes), which other launches may share.
    pub fn new(
        program: &Arc<Program>,
        memory: Vec<Bound>,
        abort: &Arc<Buffer>,
        settings: Settings,
    ) -> Result<Launch, CudaError> {
        let report = Buffer::zeroed(program.device(), abi::REPORT_WORDS * 8)?;
        let mut block = vec![0; program.module().params.bytes().div_ceil(8) as usize];
        let deadline = settings.deadline.map_or(u64::MAX, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        for (offset, word) in [
            (abi::RANK, settings.rank.into()),
            (abi::WORLD_SIZE, settings.world_size.into()),
            (abi::ABORT, abort.address()),
            (abi::REPORT, report.address()),
            (abi::DEADLINE, deadline),
        ] {
            block[offset as usize / 8] = word;
        }
        bind(program, &memory, &mut block)?;
        Ok(Launch { program: program.clone(), settings, block, abort: abort.clone(), report, _memory: memory })
    }

    /// Puts a launch on a stream; returns at once.
    pub fn start(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let module = self.program.module();
        self.program.device().bind()?;
        let mut params = [self.block.as_mut_ptr().cast::<c_void>()];
        // SAFETY: the function takes one parameter, whose size is the block's; the driver copies it during the call. The
        // addresses in it are of memory that this launch keeps.
        unsafe {
            result::launch_kernel(
                self.program.function(),
                (module.blocks, 1, 1),
                (module.threads, 1, 1),
                module.shared_bytes,
                stream.handle(),
                &mut params,
            )
        }
        .called("cuLaunchKernel")
    }

    /// Waits for the stream and says how the launches on it ended.
    pub fn finish(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.sync()?;
        let words = words(&self.report.read()?);
        match words[0] {
            0 => {}
            abi::OUTSIDE => return Err(CudaError::OutOfBounds(Box::new(self.stopped(&words)))),
            _ => return Err(CudaError::Timeout(Box::new(self.stopped(&words)))),
        }
        match word(&self.abort.read()?) {
            0 => Ok(()),
            cause => Err(CudaError::Aborted { word: cause }),
        }
    }

    fn stopped(&self, words: &[u64]) -> Stopped {
        let kernel = self.program.kernel();
        let &[_, role, block, copy, inst, param, bank, index, expected, seen] = words else {
            unreachable!("a report has as many words")
        };
        let name = kernel.params.values().nth(param as usize).map_or("scratch", Param::name);
        Stopped {
            rank: self.settings.rank,
            block,
            role: kernel.roles[RoleId::new(role as usize)].name.clone(),
            copy,
            param: name.to_string(),
            bank,
            index,
            expected,
            seen,
            at: kernel.line(Inst::new(inst as usize)).clone(),
        }
    }
}

/// Checks that memory fits the parameters, and writes its addresses into the parameter block.
fn bind(program: &Program, memory: &[Bound], block: &mut [u64]) -> Result<(), CudaError> {
    let kernel = program.kernel();
    let wrong = |param: &str, what: String| Err(CudaError::Argument { param: param.to_string(), what });
    if memory.len() != kernel.params.len() {
        return wrong(&kernel.name, format!("{} arguments for {} parameters", memory.len(), kernel.params.len()));
    }
    for ((id, param), bound) in kernel.params.iter().zip(memory) {
        let (name, first) = (param.name(), program.module().params.offset(id) as usize / 8);
        let (banks, bytes, align) = match param {
            Param::Buffer { ty, len, banks, align, .. } => (*banks, len.saturating_mul(ty.size() as u64), *align),
            Param::Slots { len, stride, banks, .. } => (
                *banks,
                len.checked_sub(1).map_or(0, |last| last.saturating_mul(u64::from(*stride)).saturating_add(8)),
                8,
            ),
            Param::Scalar { ty, .. } => match bound {
                Bound::Scalar(bits) => {
                    block[first] = if *ty == Type::Bool { u64::from(*bits != 0) } else { *bits };
                    continue;
                }
                Bound::Banks(_) => return wrong(name, "memory is bound to a scalar".into()),
            },
            Param::Queue { .. } => return wrong(name, "the GPU engine has no network queue yet".into()),
        };
        let Bound::Banks(places) = bound else { return wrong(name, "a scalar is bound to memory".into()) };
        if places.len() != banks as usize {
            return wrong(name, format!("{} memories for {banks} banks", places.len()));
        }
        for (k, (buffer, offset)) in places.iter().enumerate() {
            let room = buffer.bytes().saturating_sub(*offset) as u64;
            if room < bytes {
                return wrong(name, format!("{room} bytes of memory where the kernel uses {bytes}"));
            }
            let address = buffer.address() + *offset as u64;
            if bytes > 0 && !address.is_multiple_of(align.into()) {
                return wrong(name, format!("its address {address:#x} is no multiple of {align}"));
            }
            block[first + k] = address;
        }
    }
    Ok(())
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(word).collect()
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}
