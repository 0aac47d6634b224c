//! Kernels over transports: how one is bound to a peer, and how it is launched so that nothing hangs.

use super::RunError;
use super::wait_host::waits_of;
use crate::cuda::{self, CudaError, LegEnd, Seat};
use crate::hook::{Block, Traced};
use crate::ir::{Kernel, simplify};
use crate::schedule::{LoadStore, Ops};
use crate::tensor::{Arg, Memory};
use crate::transport::layout::Side;
use crate::transport::{
    AbortCode, Cause, Departures, NvlTransport, P2pTransport, PeerEndpoint, Protocol, Rank, SegmentSet, ShmTransport,
    Signals, Ticket, TransferError, TransportError,
};
use crate::vm::{LaunchError, Prepared, Puts, Settings};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A transport whose launches can sleep, and end when a rank fails.
pub trait Host: P2pTransport {
    /// The memory that holds the transport's abort words and doorbells; none: its launches poll, and only a deadline ends a wait.
    fn segments(&self) -> Option<&SegmentSet> {
        None
    }

    /// Who has let go of the transport already, where that is noticed: waits for what they have not sent end at once.
    fn departures(&self) -> Option<&Departures> {
        None
    }

    /// How long a wait may last; `None`: without end.
    fn deadline(&self) -> Option<Duration> {
        Some(Duration::from_secs(30))
    }

    /// Where its kernels run, if that is on a GPU; none: on the CPU.
    fn seat(&self) -> Option<&Seat> {
        None
    }

    /// A launch of this rank has failed: ends the waits of all ranks on this transport, and makes later calls fail.
    fn fail(&self, cause: Cause) {
        if let Some(segments) = self.segments() {
            segments.abort_all(cause);
        }
    }
}

/// A transport that the collectives of this crate can use. Implement it for a transport of your own.
pub trait Link: Host {
    /// What its kernels reach a peer with.
    type Ops<'t>: Ops<'t>;

    /// Binds a kernel to a peer it sends to. `window` is the peer's, for `direct`.
    fn sender<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol, window: Option<&Memory>) -> Self::Ops<'t>;

    /// Binds a kernel to a peer it receives from.
    fn receiver<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol) -> Self::Ops<'t>;

    /// Tells a peer what this rank is about to do with it; see [`ShmTransport::tell`].
    fn tell(&self, side: Side, peer: Rank, card: &[u8]) -> Result<Ticket, TransportError>;

    /// Waits for what the peer told, at most so long; see [`ShmTransport::hear`].
    fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError>;

    /// Compiles a kernel of your own that is bound to this transport. Ranks of one process that share a GPU start together: there a launch
    /// belongs to the one of the peer that has the same number, counted for every direction between two ranks.
    fn prepare(&self, traced: &Traced) -> Result<Launch<'_>, RunError>
    where
        Self: Sized,
    {
        Launch::over(&[self], traced)
    }
}

impl Host for ShmTransport {
    fn segments(&self) -> Option<&SegmentSet> {
        Some(ShmTransport::segments(self))
    }

    fn departures(&self) -> Option<&Departures> {
        Some(ShmTransport::departures(self))
    }

    fn deadline(&self) -> Option<Duration> {
        ShmTransport::deadline(self)
    }

    fn fail(&self, cause: Cause) {
        self.mark_broken(cause);
    }
}

impl Link for ShmTransport {
    type Ops<'t> = LoadStore<'t>;

    fn sender<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol, window: Option<&Memory>) -> LoadStore<'t> {
        LoadStore::sender(k, &self.endpoint(peer), protocol, window)
    }

    fn receiver<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol) -> LoadStore<'t> {
        LoadStore::receiver(k, &self.endpoint(peer), protocol)
    }

    fn tell(&self, side: Side, peer: Rank, card: &[u8]) -> Result<Ticket, TransportError> {
        ShmTransport::tell(self, side, peer, card)
    }

    fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError> {
        ShmTransport::hear(self, ticket, deadline)
    }
}

impl Host for NvlTransport {
    fn deadline(&self) -> Option<Duration> {
        NvlTransport::deadline(self)
    }

    fn seat(&self) -> Option<&Seat> {
        Some(NvlTransport::seat(self))
    }

    fn fail(&self, cause: Cause) {
        self.mark_broken(cause);
    }
}

impl Link for NvlTransport {
    type Ops<'t> = LoadStore<'t>;

    fn sender<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol, window: Option<&Memory>) -> LoadStore<'t> {
        LoadStore::sender(k, &self.endpoint(peer), protocol, window)
    }

    fn receiver<'t>(&self, k: &Block<'t>, peer: Rank, protocol: Protocol) -> LoadStore<'t> {
        LoadStore::receiver(k, &self.endpoint(peer), protocol)
    }

    fn tell(&self, side: Side, peer: Rank, card: &[u8]) -> Result<Ticket, TransportError> {
        NvlTransport::tell(self, side, peer, card)
    }

    fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError> {
        NvlTransport::hear(self, ticket, deadline)
    }
}

/// A kernel compiled for launches over transports. A launch that fails breaks them all: their counters are undefined then.
///
/// It borrows the transports, so none can be closed under it.
pub struct Launch<'l> {
    hosts: Vec<&'l dyn Host>,
    engine: Engine,
    /// What was compiled: for people and tools.
    kernel: Box<Kernel>,
}

/// What runs the kernel.
enum Engine {
    Cpu(Prepared),
    Gpu(Box<cuda::Launch>),
}

/// How a kernel is launched.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub deadline: Option<Duration>,
    pub streams: Streams,
    /// Waits see the abort word, and sleep on doorbells.
    pub watched: bool,
}

/// What is written around the cache, on a CPU.
#[derive(Clone, Copy)]
pub(super) struct Streams {
    /// An `each` that stores so many bytes.
    pub from: usize,
    /// In roles that write for this rank alone so many, where that differs.
    pub own_from: Option<usize>,
    /// What is kept beside what is sent, in one role: so many, where that differs.
    pub kept_from: Option<usize>,
    /// What goes into regions of other ranks.
    pub puts: Puts,
}

impl Default for Streams {
    fn default() -> Self {
        Streams { from: Settings::default().stream_from, own_from: None, kept_from: None, puts: Puts::default() }
    }
}

impl<'l> Launch<'l> {
    /// Compiles a kernel that is bound to these transports, at least one, all of the same world.
    ///
    /// # Panics
    /// Without a transport.
    pub fn over(hosts: &[&'l dyn Host], traced: &Traced) -> Result<Launch<'l>, RunError> {
        let deadline = hosts.iter().map(|host| host.deadline()).min_by_key(|d| d.unwrap_or(Duration::MAX));
        Launch::with_deadline(hosts, traced, deadline.flatten())
    }

    /// As [`Launch::over`], with a deadline of its own.
    ///
    /// # Panics
    /// Without a transport.
    pub fn with_deadline(
        hosts: &[&'l dyn Host],
        traced: &Traced,
        deadline: Option<Duration>,
    ) -> Result<Launch<'l>, RunError> {
        Launch::with(hosts, traced, How { deadline, streams: Streams::default(), watched: true })
    }

    pub(super) fn with(hosts: &[&'l dyn Host], traced: &Traced, how: How) -> Result<Launch<'l>, RunError> {
        let How { deadline, streams, watched } = how;
        let first = hosts.first().expect("a launch over at least one transport");
        let kernel = Box::new(traced.kernel.clone());
        if let Some(seat) = first.seat() {
            // A launch has one stream, one abort word and one order of launches.
            let same = |host: &&dyn Host| host.seat().is_some_and(|other| Arc::ptr_eq(&other.stream, &seat.stream));
            if !hosts.iter().all(same) {
                let what = "a kernel over several transports: on a GPU it can use one".to_string();
                return Err(CudaError::Argument { param: traced.kernel.name.clone(), what }.into());
            }
            let settings = cuda::Settings {
                rank: first.rank().number(),
                world_size: first.world_size() as u32,
                deadline: deadline.filter(|_| watched),
            };
            let ends = leg_ends(*first, &traced.args);
            let launch = cuda::Launch::new(&simplify(&traced.kernel), &traced.args, seat, settings, &ends)?;
            return Ok(Launch { hosts: hosts.to_vec(), engine: Engine::Gpu(Box::new(launch)), kernel });
        }
        let watching = if watched { hosts } else { &[] };
        let settings = Settings {
            rank: first.rank().index(),
            world_size: first.world_size(),
            deadline,
            waits: waits_of(watching),
            stream_from: streams.from,
            stream_own_from: streams.own_from,
            stream_kept_from: streams.kept_from,
            puts: streams.puts,
            ..Settings::default()
        };
        let prepared = Prepared::with(&traced.kernel, &traced.args, settings)?;
        Ok(Launch { hosts: hosts.to_vec(), engine: Engine::Cpu(prepared), kernel })
    }

    /// Runs the kernel: on the CPU to the end; on a GPU it is started, and [`Launch::sync`] or a later call says how it ended.
    #[inline]
    pub fn run(&mut self) -> Result<(), RunError> {
        if self.takes_shortcut() { Ok(()) } else { self.run_through() }
    }

    /// As [`Prepared::takes_shortcut`]; over a broken transport there is none.
    #[inline]
    pub(super) fn takes_shortcut(&mut self) -> bool {
        match &mut self.engine {
            Engine::Cpu(prepared) => self.hosts.iter().all(|host| host.broken().is_none()) && prepared.takes_shortcut(),
            Engine::Gpu(_) => false,
        }
    }

    pub(super) fn run_through(&mut self) -> Result<(), RunError> {
        for host in &self.hosts {
            if let Some(cause) = host.broken() {
                return Err(TransferError::Broken { cause }.into());
            }
        }
        match &mut self.engine {
            Engine::Cpu(prepared) => prepared.run_through().map_err(|error| self.failed(error)),
            Engine::Gpu(launch) => launch.start().map_err(|error| self.gpu_failed(error)),
        }
    }

    /// Waits until all launches have ended, and says how. On the CPU they have.
    pub fn sync(&mut self) -> Result<(), RunError> {
        match &mut self.engine {
            Engine::Cpu(_) => Ok(()),
            Engine::Gpu(launch) => launch.sync().map_err(|error| self.gpu_failed(error)),
        }
    }

    /// The kernel as it was traced.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The bytecode, or the PTX, for people.
    pub fn disassembly(&self) -> String {
        match &self.engine {
            Engine::Cpu(prepared) => prepared.disassembly(),
            Engine::Gpu(launch) => launch.text().to_string(),
        }
    }

    #[cold]
    fn gpu_failed(&self, error: CudaError) -> RunError {
        let rank = self.hosts[0].rank().index();
        let own = |code| Cause { code, rank, reason: 0 };
        let cause = match &error {
            CudaError::Timeout(_) => own(AbortCode::TimedOut),
            CudaError::Aborted { word } => Cause::from_word(*word).unwrap_or(own(AbortCode::Failed)),
            // Nothing was started, and nothing is lost.
            CudaError::NotResident { .. } | CudaError::Capturing { .. } => return error.into(),
            _ => own(AbortCode::Failed),
        };
        self.hosts.iter().for_each(|host| host.fail(cause));
        match error {
            // What ended the waits of this rank is for the transport to say.
            CudaError::Aborted { .. } => TransferError::Broken { cause }.into(),
            error => error.into(),
        }
    }

    #[cold]
    fn failed(&self, error: LaunchError) -> RunError {
        let rank = self.hosts[0].rank().index();
        let own = |code| Cause { code, rank, reason: 0 };
        let cause = match &error {
            LaunchError::Timeout { .. } => own(AbortCode::TimedOut),
            // Who is told of it must hear what happened first, and not that this rank heard of it.
            LaunchError::Aborted { word, .. } => Cause::from_word(*word).unwrap_or(own(AbortCode::Failed)),
            _ => own(AbortCode::Failed),
        };
        self.hosts.iter().for_each(|host| host.fail(cause));
        error.into()
    }
}

/// Whom a kernel talks to, as the memory it is bound to says.
fn leg_ends(host: &dyn Host, args: &[Arg]) -> Vec<LegEnd> {
    let me = host.rank();
    let bound: Vec<&Memory> = args
        .iter()
        .filter_map(|arg| match arg {
            Arg::Slots(banks) | Arg::Buffer(banks) => Some(banks),
            _ => None,
        })
        .flatten()
        .filter(|memory| memory.bytes() > 0)
        .collect();
    let uses = |data: [&Memory; 2], Signals { tail, head, packet_head, ready, done }: &Signals| {
        let all = data.into_iter().chain([tail, head, packet_head, ready, done]);
        all.into_iter().any(|memory| bound.iter().any(|bound| bound.overlaps(memory)))
    };
    let peers = Rank::all(host.world_size()).filter(|&peer| peer != me && host.reaches(peer));
    let ends = peers.flat_map(|peer| {
        let PeerEndpoint { send_dst, recv_src, send_packets, recv_packets, send, recv, .. } = host.endpoint(peer);
        let to = LegEnd { from: me.number(), to: peer.number(), sends: true };
        let from = LegEnd { from: peer.number(), to: me.number(), sends: false };
        let [sends, receives] = [uses([&send_dst, &send_packets], &send), uses([&recv_src, &recv_packets], &recv)];
        [sends.then_some(to), receives.then_some(from)].into_iter().flatten()
    });
    ends.collect()
}

impl fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.engine {
            Engine::Cpu(prepared) => write!(f, "Launch({prepared:?} over {} transports)", self.hosts.len()),
            Engine::Gpu(_) => write!(f, "Launch(on a GPU, over {} transports)", self.hosts.len()),
        }
    }
}
