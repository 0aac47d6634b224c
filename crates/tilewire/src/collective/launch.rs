//! Launches kernels over transports so that no failure leaves a rank hanging.

use super::call::Call;
use super::error::RunError;
use super::wait_host::waits_of;
use crate::cuda::{self, CudaError, Seat};
use crate::hook::Traced;
use crate::ir::{Kernel, Param, RequiredBytes, SourceLine, simplify, verify};
use crate::link::Transport;
use crate::tensor::{Arg, Memory};
use crate::transport::loans::Loan;
use crate::transport::proxy::Proxy;
use crate::transport::{Abort, AbortCode, Cause, Door, Rank, TransferError, TransportError, Unmet, Verdict};
use crate::vm::copy;
use crate::vm::{LaunchError, PrepareError, Prepared, Settings, StorePolicy};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A kernel compiled for launches over transports. A failed launch breaks all of them, because their counters are then
/// undefined.
///
/// It borrows the transports, so none can be closed while it exists.
pub struct Launch<'l> {
    hosts: Vec<&'l dyn Transport>,
    engine: Engine,
    /// The kernel as it was traced, for printing, for tools and for other arguments.
    kernel: Box<Kernel>,
    args: Vec<Arg>,
    /// The user's call, for errors.
    call: Call,
    deadline: Option<Duration>,
    /// The abort words of this rank. They are polled before every launch, so they are looked up only once.
    aborts: Vec<Abort>,
    /// In one hop: what peers touch in a launch.
    lent: Option<Loan>,
}

/// The engine that runs the kernel.
#[allow(clippy::large_enum_variant)] // boxing it would cost small messages on a CPU one more pointer
enum Engine {
    Cpu(Prepared),
    Gpu(Box<cuda::Launch>),
}

/// How a kernel is launched.
#[derive(Clone, Copy)]
pub(super) struct LaunchOptions {
    pub deadline: Option<Duration>,
    /// True if waits observe the abort word and sleep on doorbells.
    pub watched: bool,
    /// Which stores bypass the cache on a CPU.
    pub stores: StorePolicy,
    /// See [`ptx::Options::unroll`](crate::ptx::Options::unroll).
    pub unroll: u32,
}

impl<'l> Launch<'l> {
    /// Compiles a user's own kernel that is bound to this transport. Ranks of one process that share a GPU start
    /// together. There, a launch pairs with the peer's launch of the same number, counted for each direction between
    /// two ranks.
    #[track_caller]
    pub fn new(transport: &'l dyn Transport, traced: &Traced) -> Result<Launch<'l>, RunError> {
        Launch::over(&[transport], traced)
    }

    /// Compiles a kernel that is bound to these transports. There must be at least one, and all must belong to the same
    /// world.
    ///
    /// # Panics
    /// If there is no transport.
    #[track_caller]
    pub fn over(hosts: &[&'l dyn Transport], traced: &Traced) -> Result<Launch<'l>, RunError> {
        let deadline = hosts.iter().map(|host| host.deadline()).min_by_key(|d| d.unwrap_or(Duration::MAX));
        Launch::with_deadline(hosts, traced, deadline.flatten())
    }

    /// Like [`Launch::over`], with its own deadline.
    ///
    /// # Panics
    /// If there is no transport.
    #[track_caller]
    pub fn with_deadline(
        hosts: &[&'l dyn Transport],
        traced: &Traced,
        deadline: Option<Duration>,
    ) -> Result<Launch<'l>, RunError> {
        // The caller may have changed the kernel since it was traced.
        verify(&traced.kernel).map_err(|errors| PrepareError::Invalid(errors.to_string()))?;
        let call = Call::of_kernel(&traced.kernel.name, SourceLine::caller());
        let options = LaunchOptions { deadline, watched: true, stores: StorePolicy::default(), unroll: 0 };
        Launch::with(hosts, traced.clone(), options, call)
    }

    /// Compiles a kernel that is unchanged since it was traced.
    pub(super) fn with(
        hosts: &[&'l dyn Transport],
        traced: Traced,
        options: LaunchOptions,
        call: Call,
    ) -> Result<Launch<'l>, RunError> {
        let LaunchOptions { deadline, watched, stores, unroll } = options;
        let first = hosts.first().expect("a launch over at least one transport");
        let Traced { kernel, args } = traced;
        let kernel = Box::new(kernel);
        // Waits drive the proxy: without them, posts would stay in their ring.
        let watched = watched || hosts.iter().any(|host| host.door().is_some_and(|door| door.proxy().is_some()));
        let (waits, name) = (waits_of(if watched { hosts } else { &[] }, &call), call.to_string());
        let aborts = hosts.iter().filter_map(|host| Some(host.door()?.abort().clone())).collect();
        let ready = |engine, kernel| {
            Ok(Launch { hosts: hosts.to_vec(), engine, kernel, args: args.clone(), call, deadline, aborts, lent: None })
        };
        if let Some(seat) = first.seat() {
            // A launch has one stream, one abort word and one launch order.
            let same =
                |host: &&dyn Transport| host.seat().is_some_and(|other| Arc::ptr_eq(&other.stream, &seat.stream));
            if !hosts.iter().all(same) {
                let what = "a kernel over several transports: on a GPU it can use one".to_string();
                return Err(CudaError::Argument { param: kernel.name.clone(), what }.into());
            }
            let settings = cuda::Settings {
                rank: first.rank().number(),
                world_size: first.world_size() as u32,
                deadline: deadline.filter(|_| watched),
                unroll,
            };
            let launch = cuda::Launch::new(&simplify(&kernel), &args, seat, settings)?;
            launch.name(name);
            return ready(Engine::Gpu(Box::new(launch)), kernel);
        }
        let settings = Settings {
            rank: first.rank().index(),
            world_size: first.world_size(),
            deadline,
            waits,
            stores,
            ..Settings::default()
        };
        let prepared = Prepared::of_verified(&kernel, &args, settings)?;
        ready(Engine::Cpu(prepared), kernel)
    }

    /// Compiles a kernel that waits for no other rank: for the CPU, or for the GPU of this seat.
    pub(super) fn alone(traced: Traced, seat: Option<&Seat>, unroll: u32, call: Call) -> Result<Launch<'l>, RunError> {
        let Traced { kernel, args } = traced;
        let engine = match seat {
            Some(seat) => {
                let settings = cuda::Settings { deadline: None, unroll, ..cuda::Settings::default() };
                let launch = cuda::Launch::new(&simplify(&kernel), &args, seat, settings)?;
                launch.name(call.to_string());
                Engine::Gpu(Box::new(launch))
            }
            None => Engine::Cpu(Prepared::of_verified(&kernel, &args, Settings::default())?),
        };
        let (hosts, aborts) = (Vec::new(), Vec::new());
        Ok(Launch { hosts, engine, kernel: Box::new(kernel), args, call, deadline: None, aborts, lent: None })
    }

    /// Runs the kernel. On the CPU, this returns when it has finished. On a GPU, this only starts it, and
    /// [`Launch::sync`] or a later call reports how it ended. Over a network, what a kernel of your own posted without
    /// a flush may still be read from its source until `sync` returns.
    #[inline]
    pub fn run(&mut self) -> Result<(), RunError> {
        if self.takes_shortcut() { Ok(()) } else { self.run_through() }
    }

    /// Like [`Prepared::takes_shortcut`]. A broken transport has no shortcut.
    #[inline]
    pub(super) fn takes_shortcut(&mut self) -> bool {
        match &mut self.engine {
            Engine::Cpu(prepared) => {
                let does = !self.aborts.iter().any(Abort::is_set) && prepared.takes_shortcut();
                debug_assert!(!does || self.lent.is_none(), "a launch that lends says so first");
                does
            }
            Engine::Gpu(_) => false,
        }
    }

    pub(super) fn run_through(&mut self) -> Result<(), RunError> {
        if let Some(cause) = self.aborts.iter().find_map(Abort::get) {
            return Err(self.judged(TransferError::Broken { cause }.into()).during(&self.call));
        }
        let is_announced = match &self.engine {
            Engine::Cpu(_) => false,
            Engine::Gpu(_) => {
                let is_captured = self.captures().map_err(|error| self.failed(error.into()))?;
                self.announce(is_captured);
                !is_captured
            }
        };
        match &mut self.engine {
            Engine::Cpu(prepared) => {
                let running = Running::over(&self.hosts);
                let borrowing = self.lent.as_ref().and_then(|loan| Some(self.hosts.first()?.door()?.borrows(loan)));
                // Once more: a peer whose launch has failed counts on it, if it has not seen that this rank borrows.
                if let (Some(_), Some(cause)) = (&borrowing, self.aborts.iter().find_map(Abort::get)) {
                    drop(borrowing);
                    return Err(self.judged(TransferError::Broken { cause }.into()).during(&self.call));
                }
                let mut stopped = Stopped { early: true };
                let ran = prepared.run_through();
                stopped.early = ran.is_err();
                drop(stopped);
                drop(borrowing);
                drop(running);
                match ran {
                    Ok(()) => self.after_posts(Proxy::leave),
                    Err(error) => Err(self.fails(error.into())),
                }
            }
            Engine::Gpu(launch) => launch.start().map_err(|error| self.not_started(is_announced, error)),
        }
    }

    /// The same launch, which permits peers to touch these tensors of this rank, and touches theirs.
    pub(super) fn lending(self, lent: Vec<Memory>, to_processes: bool) -> Self {
        let mut launch = self;
        launch.lent = Some(Loan::of(lent, to_processes, launch.deadline));
        launch.takes_the_long_way();
        launch
    }

    /// A launch that lends says so before it begins, and a shortcut would not.
    fn takes_the_long_way(&mut self) {
        if let (Engine::Cpu(prepared), true) = (&mut self.engine, self.lent.is_some()) {
            prepared.takes_the_long_way();
        }
    }

    /// Breaks the transports because of this error, and has back what it lent. Returns the error, with what is known.
    #[cold]
    pub(super) fn fails(&self, error: RunError) -> RunError {
        let error = self.failed(error);
        match (&self.lent, self.hosts.first().and_then(|host| host.door())) {
            (Some(loan), Some(door)) if !loan.comes_back(door) => error.while_lent(),
            _ => error,
        }
    }

    /// As [`PreparedExchange::run_on`](super::PreparedExchange::run_on).
    #[cfg(feature = "cuda")]
    pub fn run_on(&mut self, stream: &cuda::ForeignStream) -> Result<(), RunError> {
        if let Some(cause) = self.aborts.iter().find_map(Abort::get) {
            return Err(self.judged(TransferError::Broken { cause }.into()).during(&self.call));
        }
        let is_captured = match &self.engine {
            Engine::Cpu(_) => Err(CudaError::Stream {
                what: "run_on(..) launches on a stream of a GPU, and this kernel runs on the CPU: call run()",
            }),
            Engine::Gpu(launch) => launch.is_captured_by(stream),
        };
        // Nothing was started, and nothing is lost.
        let is_captured = is_captured.map_err(|error| RunError::from(error).during(&self.call))?;
        self.announce(is_captured);
        match &mut self.engine {
            Engine::Gpu(launch) => launch.start_on(stream).map_err(|error| self.not_started(!is_captured, error)),
            Engine::Cpu(_) => Ok(()),
        }
    }

    /// The error of a launch that did not start. Earlier launches, which may still be on the stream, stay announced.
    fn not_started(&self, is_announced: bool, error: CudaError) -> RunError {
        if is_announced {
            self.proxies().for_each(|proxy| proxy.launched_not());
        }
        self.failed(self.of_gpu(error))
    }

    /// True if its code relies on the alignment of its arguments.
    pub(super) fn relies_on_alignment(&self) -> bool {
        matches!(self.engine, Engine::Gpu(_))
    }

    /// The arguments it is bound to.
    pub(super) fn args(&self) -> &[Arg] {
        &self.args
    }

    /// The name of a parameter, for messages.
    pub(super) fn param_name(&self, k: usize) -> String {
        let me = self.hosts.first().map_or(0, |host| host.rank().number());
        self.kernel.params.keys().nth(k).map_or(String::new(), |param| self.kernel.name_for(param, me))
    }

    /// Binds other arguments, which are like the old ones: on the CPU the kernel is lowered again, on a GPU its
    /// parameters change. Graphs that were captured keep the old ones. If it fails, the old ones stay.
    pub(super) fn rebind(&mut self, args: Vec<Arg>) -> Result<(), RunError> {
        match &mut self.engine {
            Engine::Cpu(prepared) => {
                let mut kernel = self.kernel.clone();
                realign(&mut kernel, &args);
                prepared.rebind(&kernel, &args)?;
                self.kernel = kernel;
            }
            Engine::Gpu(launch) => launch.rebind(&self.kernel, &args)?,
        }
        self.args = args;
        self.takes_the_long_way();
        Ok(())
    }

    /// True if there are proxies, and a launch would be captured, not run.
    fn captures(&self) -> Result<bool, CudaError> {
        if self.proxies().next().is_none() {
            return Ok(false);
        }
        self.hosts[0].seat().map_or(Ok(false), |seat| seat.stream.is_capturing())
    }

    /// Tells the proxies' threads of a launch on a GPU: its kernels post, and nobody else takes what they post.
    fn announce(&self, is_captured: bool) {
        for proxy in self.proxies() {
            if is_captured { proxy.captured() } else { proxy.launched() }
        }
    }

    /// Waits for what the launch posted.
    fn after_posts(&self, wait: fn(&Proxy, Option<Duration>) -> Result<(), TransportError>) -> Result<(), RunError> {
        for proxy in self.proxies() {
            wait(proxy, self.deadline).map_err(|error| self.failed(error.into()))?;
        }
        Ok(())
    }

    fn proxies(&self) -> impl Iterator<Item = &Arc<Proxy>> {
        proxies_of(&self.hosts)
    }

    /// Waits until all launches have ended and what they posted is delivered, and reports how they ended. On the CPU
    /// they ended when they returned, but over a network their posts may still be on their way.
    pub fn sync(&mut self) -> Result<(), RunError> {
        let Engine::Gpu(launch) = &mut self.engine else { return self.after_posts(Proxy::drain) };
        let ended = launch.sync();
        // The stream is empty: whichever launches of this rank there were, they are over.
        self.proxies().for_each(|proxy| proxy.landed());
        ended.map_err(|error| self.failed(self.of_gpu(error)))?;
        self.after_posts(Proxy::drain)
    }

    /// The kernel as it was traced. The names of the memory it waits on say which rank it waits for.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The bytecode or the PTX, as text to read.
    pub fn disassembly(&self) -> String {
        match &self.engine {
            Engine::Cpu(prepared) => prepared.disassembly(),
            Engine::Gpu(launch) => launch.text().to_string(),
        }
    }

    /// The user's call.
    pub(super) fn call(&self) -> &Call {
        &self.call
    }

    /// The error of a launch on a GPU. A wait for room in the queue is a wait for the peer that keeps it full, which
    /// only the proxy knows.
    fn of_gpu(&self, mut error: CudaError) -> RunError {
        if let CudaError::Timeout(stopped) = &mut error
            && stopped.for_room
        {
            stopped.peer = self.proxies().find_map(|proxy| proxy.behind()).map(|peer| peer as u32);
        }
        error.into()
    }

    /// Breaks the transports, and adds the facts that the engine does not know to the error.
    #[cold]
    fn failed(&self, mut error: RunError) -> RunError {
        let Some(first) = self.hosts.first() else { return error };
        let own = |code| Cause { code, rank: first.rank().index(), reason: 0 };
        if let Some(stopped) = self.proxies().find_map(|proxy| proxy.broke()) {
            error = TransportError::from(stopped.clone()).into();
        } else if let (RunError::Transport(stopped), Some(cause)) = (&error, self.broken_by_others())
            && matches!(**stopped, TransportError::Proxy(_))
        {
            error = TransferError::Broken { cause }.into();
        }
        let late = self.late(&error);
        // This must come after reading the status lines. A rank whose launch failed still shows as waiting until it has
        // set the abort words. So if its line (acquire) was already gone, the cause is visible here, and `late` may be
        // that rank.
        if let (RunError::Timeout(_), Some(cause)) = (&error, self.broken_by_others()) {
            error = TransferError::Broken { cause }.into();
        }
        if let Some(verdict) = self.other_operation(&error) {
            let host = self.hosts[0];
            match host.door().and_then(Door::status) {
                Some(status) => status.tell_all(&verdict),
                None => host.fail(own(AbortCode::Mismatched)),
            }
            error = verdict.into();
        }
        if let Some(verdict) = self.unmet(&error) {
            // A kernel over several transports ends the launches of all of them.
            for host in &self.hosts {
                match host.door().and_then(Door::status) {
                    Some(status) => status.tell_all(&verdict),
                    None => host.fail(own(AbortCode::Required)),
                }
            }
            error = verdict.into();
        }
        let cause = match &error {
            RunError::Timeout(_) => Cause::timed_out(self.hosts[0].rank().index(), late.map(Rank::index)),
            RunError::OtherOperation(_) => own(AbortCode::Mismatched),
            RunError::Required(_) => own(AbortCode::Required),
            // Other ranks must be told the original cause, not that this rank was told of it.
            RunError::PeerFailed { cause, .. } => *cause,
            // Nothing was started, and nothing is lost.
            RunError::Cuda(CudaError::NotResident { .. } | CudaError::Capturing { .. } | CudaError::Stream { .. }) => {
                return error;
            }
            _ => own(AbortCode::Failed),
        };
        self.hosts.iter().for_each(|host| host.fail(cause));
        // The caller may overwrite the inputs now, and posts may still read them.
        self.proxies().for_each(|proxy| proxy.halt());
        // Not any earlier: until the abort words are set, the other ranks must see that this rank is waiting and is not
        // the late one.
        self.hosts.iter().filter_map(|host| host.door()?.status()).for_each(|status| status.goes_on());
        if let RunError::Timeout(timeout) = &mut error {
            timeout.late = late.or(timeout.peer);
            timeout.after = self.deadline.unwrap_or(timeout.after);
        }
        self.judged(error).during(&self.call)
    }

    /// Why a transport is broken, unless a failure of this rank broke it.
    fn broken_by_others(&self) -> Option<Cause> {
        let is_verdict =
            |cause: &Cause| matches!(cause.code, AbortCode::Deadlocked | AbortCode::Mismatched | AbortCode::Required);
        let by_others = |host: &&dyn Transport| {
            host.broken().filter(|cause| is_verdict(cause) || cause.rank != host.rank().index())
        };
        self.hosts.iter().find_map(by_others)
    }

    /// Replaces the error by the verdict on all ranks, if that verdict ended this rank's wait.
    pub(super) fn judged(&self, error: RunError) -> RunError {
        self.hosts.iter().fold(error, |error, host| judged(*host, error))
    }

    /// The rank at the end of the chain of waiting ranks, after a wait has expired. Call this before any rank is told
    /// of the failure, since it then stops waiting.
    fn late(&self, error: &RunError) -> Option<Rank> {
        let RunError::Timeout(timeout) = error else { return None };
        let late = self.hosts[0].door()?.status()?.late(timeout.peer?.index());
        Some(Rank::new(late as u32))
    }

    /// The requirement of this rank's kernel that does not hold, if that ended the launch.
    fn unmet(&self, error: &RunError) -> Option<Verdict> {
        let (rank, span, at) = match error {
            RunError::Launch(LaunchError::Required { span, by, at }) => (by.rank, span, at),
            RunError::Cuda(CudaError::Required(unmet)) => (unmet.rank as usize, &unmet.span, &unmet.at),
            _ => return None,
        };
        let span = span.map(|RequiredBytes { rank, offset, bytes, size }| [rank, offset, bytes, size]);
        Some(Verdict::Required(Box::new(Unmet { rank, span, at: at.to_string(), launch: self.call.to_string() })))
    }

    /// The two operations, if a wait found a different one from its own.
    fn other_operation(&self, error: &RunError) -> Option<Verdict> {
        let (host, me) = (self.hosts[0], self.hosts[0].rank());
        let (peer, seen, here) = match error {
            RunError::Launch(LaunchError::OtherOperation { peer, seen, .. }) => {
                (Rank::new((*peer)?), *seen, self.call.to_string())
            }
            // The launch that noticed the difference may not be this one.
            RunError::Cuda(CudaError::OtherOperation(by)) => (Rank::new(by.peer?), by.seen as u16, by.launch.clone()),
            _ => return None,
        };
        let there = host.describe(peer, seen).unwrap_or_else(|| format!("its operation {seen}"));
        Some(Verdict::OtherOperation { here: (me.index(), here), there: (peer.index(), there) })
    }
}

fn proxies_of<'h>(hosts: &'h [&dyn Transport]) -> impl Iterator<Item = &'h Arc<Proxy>> {
    hosts.iter().filter_map(|host| host.door()?.proxy())
}

/// A launch on the CPU, until it is dropped: the proxies' threads carry what it posts while it computes.
struct Running<'h, 'l>(&'h [&'l dyn Transport]);

impl<'h, 'l> Running<'h, 'l> {
    fn over(hosts: &'h [&'l dyn Transport]) -> Self {
        proxies_of(hosts).for_each(|proxy| proxy.runs());
        Running(hosts)
    }
}

impl Drop for Running<'_, '_> {
    fn drop(&mut self) {
        proxies_of(self.0).for_each(|proxy| proxy.ran());
    }
}

/// A launch on the CPU, until it ends.
struct Stopped {
    /// True if it stopped before its end, or panicked.
    early: bool,
}

impl Drop for Stopped {
    #[inline]
    fn drop(&mut self) {
        // It may have stopped behind streamed stores. Those who lent it memory count on all of them being there.
        if self.early {
            copy::fence();
        }
    }
}

/// Declares the alignment of these arguments.
pub(super) fn realign(kernel: &mut Kernel, args: &[Arg]) {
    for (param, arg) in kernel.params.keys().zip(args) {
        if let (Param::Buffer { align, ty, .. }, Arg::Buffer(banks)) = (&mut kernel.params[param], arg) {
            let least = |memory: &Memory| 1 << memory.start().addr().get().trailing_zeros().min(6);
            *align = banks.iter().map(least).min().unwrap_or(1).max(ty.size() as u32);
        }
    }
}

/// Replaces an error that says only that the transport is broken by what broke it, where more is known: the verdict on
/// all ranks, or the error of this rank's own proxy.
pub(super) fn judged(host: &dyn Transport, error: RunError) -> RunError {
    let RunError::PeerFailed { cause, .. } = &error else { return error };
    let Some(door) = host.door() else { return error };
    if let Some(verdict) = door.status().and_then(|status| status.verdict(*cause)) {
        return verdict.into();
    }
    let stopped = door.proxy().filter(|_| cause.rank == host.rank().index()).and_then(|proxy| proxy.broke());
    stopped.map_or(error, |stopped| TransportError::from(stopped.clone()).into())
}

impl fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.engine {
            Engine::Cpu(prepared) => write!(f, "Launch({prepared:?} over {} transports)", self.hosts.len()),
            Engine::Gpu(_) => write!(f, "Launch(on a GPU, over {} transports)", self.hosts.len()),
        }
    }
}
