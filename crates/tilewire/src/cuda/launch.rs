//! A program with its arguments.

use super::buffer::Buffer;
use super::busy::{BusyLaunch, BusyWord};
use super::device::{Device, held};
use super::error::Called;
use super::error::CudaError;
use super::event::Event;
use super::foreign_stream::{BesideCaptures, ForeignStream, drop_let_go};
use super::gang::{GangLaunch, LaunchOutcome, LegEnd, Order};
use super::program::Program;
use super::replaced::Replaced;
use super::report::Report;
use super::residency::Need;
use super::stall::{Launches, ObservedLaunch};
use super::stream::Stream;
use crate::ir::{Kernel, Param, Type};
use crate::ptx::{self, abi};
use crate::tensor::{Arg, Memory, MixedBanks, bytes_of};
use cudarc::driver::{result, sys};
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a launch besides its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// This rank.
    pub rank: u32,
    /// Ranks in the world.
    pub world_size: u32,
    /// How long a wait may take; `None`: no limit.
    pub deadline: Option<Duration>,
    /// See [`ptx::Options::unroll`]; 0 leaves it to the generator.
    pub unroll: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { rank: 0, world_size: 1, deadline: Some(Duration::from_secs(30)), unroll: 0 }
    }
}

/// A word on a device that ends the waits of its launches when it is not 0.
#[derive(Clone)]
pub struct AbortWord(Arc<Buffer>);

impl AbortWord {
    /// A word that is 0.
    pub fn new(device: &Arc<Device>) -> Result<AbortWord, CudaError> {
        Ok(AbortWord(Arc::new(Buffer::zeroed(device, 8)?)))
    }

    /// Ends the waits. Running launches see it.
    pub fn set(&self, word: u64) -> Result<(), CudaError> {
        self.0.write(0, &word.to_le_bytes())
    }

    /// Its value.
    pub fn get(&self) -> Result<u64, CudaError> {
        Ok(u64::from_le_bytes(self.0.read()?.try_into().expect("eight bytes")))
    }
}

/// The place where launches run.
#[derive(Clone)]
pub struct Seat {
    /// Their order.
    pub stream: Arc<Stream>,
    /// The word that ends their waits.
    pub abort: AbortWord,
    /// Launches of this kind that must run simultaneously on a device, including this one. It is the largest number of
    /// ranks that share any device, so that all ranks choose alike.
    pub sharers: u32,
    /// The launches that can be observed.
    pub launches: Launches,
    /// Lets others capture its launches: launches and replays that overlap find each other by this word.
    pub busy: Option<BusyWord>,
}

impl Seat {
    /// A seat with its own stream and abort word.
    pub fn new(device: &Arc<Device>) -> Result<Seat, CudaError> {
        Ok(Seat {
            stream: Stream::new(device)?,
            abort: AbortWord::new(device)?,
            sharers: 1,
            launches: Launches::default(),
            busy: None,
        })
    }

    /// For launches of this thread that wait for nobody, with a stream that the thread has for all of them: they run in
    /// the order of the thread's calls, also with its launches on other streams.
    pub fn of_thread(device: &Arc<Device>) -> Result<Seat, CudaError> {
        Ok(Seat { stream: Stream::of_thread(device)?, ..Seat::new(device)? })
    }

    /// Ends the waits of its launches, and of those that have not started yet.
    pub(crate) fn give_up(&self, word: u64) -> Result<(), CudaError> {
        let told = self.abort.set(word);
        if let Some(gang) = self.stream.gang() {
            gang.open();
        }
        told
    }
}

/// A program bound to memory: start it any number of times, from any thread if no scalar is another thread's own.
///
/// Host access to tensors waits only for the launches of its own thread: a thread that starts one for another must also
/// call [`Launch::sync`].
/// Dropping it waits until its launches are done.
pub struct Launch {
    stream: Arc<Stream>,
    /// The parameters, in the driver's format.
    block: Vec<u64>,
    scalars: Vec<ScalarWord>,
    /// The blocks that must run simultaneously, for kernels that wait.
    need: Option<Need>,
    deadline: Option<Duration>,
    /// The outcome of starting together with others.
    outcome: Arc<LaunchOutcome>,
    kept: Arc<Kept>,
    launches: Launches,
    in_flight: bool,
    /// What the launches in flight use that were started before the last [`rebind`](Launch::rebind).
    replaced: Replaced<Arc<Kept>, Event>,
}

/// A scalar, read when a launch starts.
struct ScalarWord {
    /// Name of the parameter.
    param: String,
    /// Its index in the parameter block, in words.
    word: usize,
    ty: Type,
    memory: Memory,
}

/// Everything that must live until the launches are done.
pub(super) struct Kept {
    program: Arc<Program>,
    abort: AbortWord,
    observed: Arc<ObservedLaunch>,
    /// The legs of the kernel, if ranks of this process share the device.
    ends: Vec<LegEnd>,
    gang: Option<Arc<GangLaunch<KernelOrder>>>,
    busy: Option<Arc<BusyLaunch>>,
    _args: Vec<Arg>,
}

/// A launch in the driver's format. Its [`Launch`] keeps what it names, and is not dropped before it is done.
pub(super) struct KernelOrder {
    device: Arc<Device>,
    stream: Arc<Stream>,
    /// The stream of others that captures it.
    captured_on: Option<ForeignStream>,
    function: sys::CUfunction,
    blocks: u32,
    threads: u32,
    shared_bytes: u32,
    /// The parameters.
    block: Vec<u64>,
    deadline: Option<Duration>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for KernelOrder {}

impl Order for KernelOrder {
    fn stream(&self) -> usize {
        self.stream.handle() as usize
    }

    fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    fn busy(&self) -> Duration {
        self.device.calls.busy()
    }

    fn submit(mut self) -> Result<(), CudaError> {
        self.device.bind()?;
        let mut params = [self.block.as_mut_ptr().cast::<c_void>()];
        // SAFETY: the function takes one parameter, whose size is the block's; the driver copies it during the call.
        // The addresses in it are of memory that the launch's `Kept` keeps alive: the launch waits for its stream
        // before it drops it, and a graph that captures it shares ownership. The stream lives, whosever it is.
        unsafe {
            result::launch_kernel(
                self.function,
                (self.blocks, 1, 1),
                (self.threads, 1, 1),
                self.shared_bytes,
                self.captured_on.as_ref().map_or(self.stream.handle(), ForeignStream::handle),
                &mut params,
            )
        }
        .called("cuLaunchKernel")
    }
}

/// Lets this thread's capture keep what a launch or replay in it uses, and record the streams of the launches.
pub(super) fn keep_captured(kept: &[Arc<Kept>], streams: &[Arc<Stream>]) -> Result<(), CudaError> {
    CAPTURED.with_borrow_mut(|captured| match captured {
        Some(captured) => {
            captured.kept.extend_from_slice(kept);
            captured.streams.extend_from_slice(streams);
            Ok(())
        }
        None => Err(CudaError::Capturing { what: "another thread launches on the stream" }),
    })
}

/// The state of a capture so far.
#[derive(Default)]
pub(super) struct Captured {
    /// The memory that its launches keep.
    pub(super) kept: Vec<Arc<Kept>>,
    /// Their streams. No other launch of these may run beside the graph, since counters are shared.
    pub(super) streams: Vec<Arc<Stream>>,
}

thread_local! {
    /// The capture of this thread; `None` outside a capture.
    pub(super) static CAPTURED: RefCell<Option<Captured>> = const { RefCell::new(None) };
}

impl Launch {
    /// Binds a kernel, assembled if necessary, to memory of the seat's device.
    pub fn new(kernel: &Kernel, args: &[Arg], seat: &Seat, settings: Settings) -> Result<Launch, CudaError> {
        let device = seat.stream.device();
        device.calls.during(drop_let_go);
        let busy = seat.busy.is_some();
        let options = ptx::Options { unroll: settings.unroll, busy, ..ptx::Options::new(device.target()) };
        let program = Program::load_with(device, kernel, options)?;
        let need = if waits(kernel) {
            let need =
                Need { blocks: program.module().blocks, per_multiprocessor: program.blocks_per_multiprocessor()? };
            super::residency::all_resident(need, seat.sharers, device.multiprocessors())?;
            Some(need)
        } else {
            None
        };
        let report = Report::new(device)?;
        let mut block = vec![0; program.module().params.bytes().div_ceil(8) as usize];
        let deadline = settings.deadline.map_or(u64::MAX, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        for (offset, word) in [
            (abi::RANK, settings.rank.into()),
            (abi::WORLD_SIZE, settings.world_size.into()),
            (abi::ABORT, seat.abort.0.address()),
            (abi::REPORT, report.address()),
            (abi::DEADLINE, deadline),
        ] {
            block[offset as usize / 8] = word;
        }
        let busy = seat.busy.as_ref().map(|word| word.of(kernel, &program)).transpose()?.map(Arc::new);
        if let Some(busy) = &busy {
            busy.bind(&mut block);
        }
        let (rank, abort) = (settings.rank, seat.abort.clone());
        let scalars = bind(&program, kernel, rank, args, &mut block)?;
        let stream = seat.stream.clone();
        let ends = LegEnd::of(kernel, rank);
        let gang = stream.gang().filter(|_| !ends.is_empty()).cloned();
        let observed = Arc::new(ObservedLaunch::new(report, kernel, rank, args));
        seat.launches.watch(&observed);
        let kept = Kept { program, abort, observed, ends, gang, busy, _args: args.to_vec() };
        let (outcome, deadline) = (Arc::default(), settings.deadline);
        Ok(Launch {
            stream,
            block,
            scalars,
            need,
            deadline,
            outcome,
            kept: Arc::new(kept),
            launches: seat.launches.clone(),
            in_flight: false,
            replaced: Replaced::default(),
        })
    }

    /// Binds other arguments: later launches use them. Launches in flight keep the old ones alive and use them, because
    /// the driver has copied their parameters; so do graphs that were captured. It waits for launches only if the old
    /// arguments of [`Replaced::MOST`] bindings are still in use. If it fails, nothing has changed.
    pub(crate) fn rebind(&mut self, kernel: &Kernel, args: &[Arg]) -> Result<(), CudaError> {
        let mut block = self.block.clone();
        let scalars = bind(&self.kept.program, kernel, self.kept.observed.rank, args, &mut block)?;
        let _calls = BesideCaptures::now()?;
        self.replaced.trim(|mark| mark.has_happened().unwrap_or(false));
        if self.in_flight && self.replaced.is_full() {
            self.stream.sync()?;
            self.ended();
        }
        let Kept { program, abort, observed, ends, gang, busy, .. } = &*self.kept;
        let kept = Arc::new(Kept {
            program: program.clone(),
            abort: abort.clone(),
            observed: observed.clone(),
            ends: ends.clone(),
            gang: gang.clone(),
            busy: busy.clone(),
            _args: args.to_vec(),
        });
        let old = std::mem::replace(&mut self.kept, kept);
        if self.in_flight {
            self.replaced.keep(old);
        }
        (self.block, self.scalars) = (block, scalars);
        Ok(())
    }

    /// All launches have ended.
    fn ended(&mut self) {
        self.in_flight = false;
        self.replaced.clear();
    }

    /// Puts a launch on the stream; returns immediately. The error of an earlier launch, if known by now, is returned
    /// first.
    pub fn start(&mut self) -> Result<(), CudaError> {
        let own = self.stream.handle() as usize;
        self.start_for(own)
    }

    /// True if a launch on a stream of others would be captured, not run.
    pub(crate) fn is_captured_by(&self, on: &ForeignStream) -> Result<bool, CudaError> {
        on.is_capturing(self.stream.device())
    }

    /// Puts a launch on a stream of others. Outside of a capture, it runs on the stream of its seat, between the
    /// earlier and the later work on theirs, and this returns when all launches of ranks that share the device and that
    /// it waits for have arrived. In a capture of theirs, their graph has the launch.
    pub(crate) fn start_on(&mut self, on: &ForeignStream) -> Result<(), CudaError> {
        let device = self.stream.device().clone();
        let _calls = BesideCaptures::now()?;
        let captured = on.is_capturing(&device)?;
        if self.stream.is_capturing()? || CAPTURED.with_borrow(Option::is_some) {
            return Err(CudaError::Capturing { what: "a launch on a stream of others comes" });
        }
        if captured {
            return self.capture_on(on);
        }
        self.stream.after_foreign(on)?;
        self.start_for(on.number())?;
        self.stream.before_foreign(on)
    }

    /// Puts a launch into the graph that others capture from their stream.
    fn capture_on(&mut self, on: &ForeignStream) -> Result<(), CudaError> {
        self.ready()?;
        self.claim()?;
        let (stream, kept) = (&self.stream, &self.kept);
        let mut block = self.block.clone();
        let turn = match &kept.busy {
            Some(busy) => {
                busy.capture(&mut block);
                // Not while the streams' users are locked: it may wait for other ranks.
                stream.ordered();
                let begin = || {
                    let turn = Event::untimed(stream.device())?;
                    // Replays of this transport's own graphs come before it, too.
                    stream.catch_up()?;
                    turn.record(stream)?;
                    Ok(turn)
                };
                stream.guests.captures(on.number(), begin)?
            }
            // Nothing is shared by launches that wait for nobody.
            None if stream.is_of_thread() => None,
            None => {
                return Err(CudaError::Stream {
                    what: "others capture this launch, and its transport could not tell if its replays overlap: make it \
                           with NvlOptions { foreign_captures: true, .. }",
                });
            }
        };
        on.graph_keeps(kept.clone())?;
        turn.map_or(Ok(()), |turn| on.wait_in_graph(turn))?;
        self.order(block, Some(on.clone())).submit()?;
        turn.map_or(Ok(()), |turn| on.record_in_graph(turn))
    }

    /// Returns the error of an earlier launch, if it is known by now, and reads the scalars.
    fn ready(&mut self) -> Result<(), CudaError> {
        self.outcome.check()?;
        self.kept.reported()?;
        for scalar in &self.scalars {
            self.block[scalar.word] = scalar.bits()?;
        }
        Ok(())
    }

    /// Claims the multiprocessors that the blocks must have.
    fn claim(&self) -> Result<(), CudaError> {
        let Some(need) = self.need else { return Ok(()) };
        held(&self.stream.device().residency).claim(self.stream.handle() as usize, need)
    }

    fn order(&self, block: Vec<u64>, captured_on: Option<ForeignStream>) -> KernelOrder {
        let program = &self.kept.program;
        let module = program.module();
        KernelOrder {
            device: program.device().clone(),
            stream: self.stream.clone(),
            captured_on,
            function: program.function(),
            blocks: module.blocks,
            threads: module.threads,
            shared_bytes: module.shared_bytes,
            block,
            deadline: self.deadline,
        }
    }

    /// Puts a launch on the stream for a stream, its own or another one that waits for it.
    fn start_for(&mut self, user: usize) -> Result<(), CudaError> {
        self.ready()?;
        let stream = &self.stream;
        stream.device().bind()?;
        stream.own();
        let capturing = stream.is_capturing()?;
        let mut turn = None;
        if capturing {
            keep_captured(std::slice::from_ref(&self.kept), std::slice::from_ref(stream))?;
        } else {
            turn = stream.guests.launches(user)?;
            self.replaced.trim(|mark| mark.has_happened().unwrap_or(false));
            if self.replaced.wants_mark() && !stream.has_pending() {
                let mark = Event::untimed(stream.device())?;
                mark.record_on(stream.handle())?;
                self.replaced.mark(mark);
            }
            stream.catch_up()?;
            stream.follow_thread()?;
            turn.map_or(Ok(()), |turn| stream.after_event(turn))?;
            self.in_flight = true;
        }
        self.claim()?;
        stream.busy();
        let order = self.order(self.block.clone(), None);
        match &self.kept.gang {
            Some(gang) if !capturing => {
                gang.arrive(&self.kept.ends, order, &self.outcome);
                self.outcome.check()?;
            }
            _ => {
                // Launches with legs may still be waiting to be put on the stream.
                stream.ordered();
                order.submit()?;
            }
        }
        turn.map_or(Ok(()), |turn| turn.record(stream))
    }

    /// Waits for the launches and returns their result.
    pub fn sync(&mut self) -> Result<(), CudaError> {
        self.stream.sync()?;
        self.ended();
        self.outcome.check()?;
        self.kept.reported()?;
        match self.kept.abort.get()? {
            0 => Ok(()),
            // A wait of this rank gave up in another launch, which has the details.
            cause if cause == abi::ABORTED_BY_TIMEOUT => {
                Err(self.launches.reported().unwrap_or(CudaError::Aborted { word: cause }))
            }
            cause => Err(CudaError::Aborted { word: cause }),
        }
    }

    /// Names the launch, for messages of others.
    pub fn name(&self, name: String) {
        self.kept.observed.name(name);
    }

    /// The PTX.
    pub fn text(&self) -> &str {
        &self.kept.program.module().text
    }
}

impl Kept {
    /// The gang it starts with, and its legs.
    pub(super) fn together(&self) -> Option<(&Arc<GangLaunch<KernelOrder>>, &[LegEnd])> {
        self.gang.as_ref().map(|gang| (gang, &self.ends[..]))
    }

    /// The error that the launches have reported so far.
    #[inline]
    pub(super) fn reported(&self) -> Result<(), CudaError> {
        self.observed.reported().map_or(Ok(()), Err)
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        if !self.in_flight {
            return;
        }
        if std::thread::panicking() {
            // The peers learn of the panic only after this, and the launch may wait for them.
            _ = self.kept.abort.set(abi::ABORTED_BY_PANIC);
            if let Some(gang) = &self.kept.gang {
                gang.withdraw(self.stream.handle() as usize);
            }
        }
        if self.stream.sync().is_err() {
            // It is unknown if the kernels are done: leaking the memory is better than reusing it.
            std::mem::forget((self.kept.clone(), std::mem::take(&mut self.replaced)));
        }
    }
}

/// Checks that memory fits the parameters, and writes its addresses into the parameter block; returns the scalars.
fn bind(
    program: &Program,
    kernel: &Kernel,
    me: u32,
    args: &[Arg],
    block: &mut [u64],
) -> Result<Vec<ScalarWord>, CudaError> {
    let wrong = |param: String, what: String| Err(CudaError::Argument { param, what });
    if args.len() != kernel.params.len() {
        return wrong(kernel.name.clone(), format!("{} arguments for {} parameters", args.len(), kernel.params.len()));
    }
    let (packets, device, mut scalars) = (kernel.packet_areas(), program.device().ordinal(), Vec::new());
    for ((id, param), arg) in kernel.params.iter().zip(args) {
        let first = program.module().params.offset(id) as usize / 8;
        let wrong = |what: String| wrong(kernel.name_for(id, me), what);
        let (banks, bytes, align) = match param {
            Param::Buffer { ty, len, banks, align, .. } => {
                let align = if packets.contains(&id) { (*align).max(16) } else { *align };
                (*banks, len.saturating_mul(ty.size() as u64), align)
            }
            Param::Slots { len, stride, banks, .. } => (
                *banks,
                len.checked_sub(1).map_or(0, |last| last.saturating_mul(u64::from(*stride)).saturating_add(8)),
                8,
            ),
            Param::Scalar { ty, .. } => match arg {
                Arg::Scalar(memory) if memory.reachable_from().host && memory.bytes() >= ty.size() => {
                    let memory = memory.part(0, ty.size());
                    scalars.push(ScalarWord { param: param.name().to_string(), word: first, ty: *ty, memory });
                    continue;
                }
                arg => return wrong(format!("{arg:?} is bound to a scalar")),
            },
            Param::Queue { .. } => {
                let Arg::Queue(queue) = arg else { return wrong(format!("{arg:?} is bound to a queue")) };
                let Some(capacity) = queue.device_capacity(device) else {
                    return wrong(format!("its memory is no ring that kernels of GPU {device} can fill"));
                };
                let [entries, tickets] = [0, 1].map(|k: usize| queue.memories[k].start().addr().get() as u64);
                block[first..first + 4].copy_from_slice(&[entries, tickets, capacity, u64::from(queue.target()) << 32]);
                if let Some(stamp) = program.module().params.stamp_offset(id) {
                    block[stamp as usize / 8] = abi::stamp(param, queue.entries().operation().unwrap_or(0));
                }
                continue;
            }
        };
        let (Arg::Buffer(places) | Arg::Slots(places)) = arg else {
            return wrong(format!("{arg:?} is bound to memory"));
        };
        if places.len() != banks as usize {
            return wrong(format!("{} memories for {banks} banks", places.len()));
        }
        if let Some(what) = MixedBanks::objection(places, kernel.is_matched(id)) {
            return wrong(what);
        }
        for (k, memory) in places.iter().enumerate() {
            if (memory.bytes() as u64) < bytes {
                return wrong(format!("{} bytes of memory where the kernel uses {bytes}", memory.bytes()));
            }
            let reach = memory.reachable_from();
            if !reach.is_device(device) {
                return wrong(format!(
                    "it is reached from {reach}, not from kernels of GPU {device}: make it on that device, as by Device::tensor"
                ));
            }
            let address = memory.start().addr().get() as u64;
            if bytes > 0 && !address.is_multiple_of(align.into()) {
                return wrong(format!("its address {address:#x} is no multiple of {align}"));
            }
            block[first + k] = address;
            if let Some(stamps) = program.module().params.stamp_offset(id) {
                let operation = memory.operation().unwrap_or(0);
                block[stamps as usize / 8 + k] = abi::stamp(param, operation);
            }
        }
    }
    Ok(scalars)
}

/// True if a kernel contains an op that may block.
fn waits(kernel: &Kernel) -> bool {
    kernel.insts.values().any(|inst| inst.op.may_block())
}

impl ScalarWord {
    /// Its bits now, zero-extended.
    fn bits(&self) -> Result<u64, CudaError> {
        let bytes = bytes_of(&self.memory);
        let bytes =
            bytes.map_err(|error| CudaError::Argument { param: self.param.clone(), what: error.to_string() })?;
        let mut bits = [0; 8];
        bits[..bytes.len()].copy_from_slice(&bytes);
        let bits = u64::from_le_bytes(bits);
        Ok(if self.ty == Type::Bool { u64::from(bits != 0) } else { bits })
    }
}
