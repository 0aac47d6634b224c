//! The errors that can occur between the call of a collective and its result.

use super::call::Call;
use super::rebind::RebindError;
use crate::cuda::CudaError;
use crate::hook::{BuildError, Misuse};
use crate::ir::{RequiredBytes, SourceLine};
use crate::transport::{
    Cause, Rank, TransferError, TransportError, Waiting, deadlock, mismatch, other_operation, required,
};
use crate::vm::{LaunchError, PrepareError};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a collective failed; one variant per stage.
///
/// ```
/// use tilewire::{RunError, Tensor, map};
/// let (out, inp) = (Tensor::<f32>::zeros(4), Tensor::<f32>::zeros(4));
/// let error = map(&out, &inp).produce(|c| c.input.load(c.pos() + 1)).run().unwrap_err();
/// assert!(matches!(error, RunError::Launch(_)), "element 4 is known to be missing only when it is read");
/// assert!(error.to_string().contains("input"));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum RunError {
    /// Tracing the hooks found a misuse, or a hook panicked.
    Build(BuildError),
    /// The kernel cannot be compiled for the engine, or its arguments do not fit it.
    Prepare(PrepareError),
    /// A launch failed; anything it wrote before that stays written. A failed wait is [`PeerFailed`](Self::PeerFailed)
    /// or [`Timeout`](Self::Timeout) instead.
    Launch(LaunchError),
    /// The GPU engine cannot run the kernel, or a launch on a GPU failed.
    Cuda(CudaError),
    /// The transport cannot perform the transfer.
    Transfer(TransferError),
    /// Other tensors cannot take the place of those that the kernel was built for.
    Rebind(RebindError),
    /// The ranks could not meet.
    Transport(Arc<TransportError>),
    /// Two ranks describe one operation differently. Neither of them has launched it.
    ///
    /// After a collective, a `send` or a `recv`, the transport remains usable if all participants have arrived: each
    /// finds the difference by itself, and nothing was sent. A rank that does not arrive within the deadline breaks the
    /// transport. So does a difference in a `sendrecv`: its two legs meet different peers, and a peer that agrees may
    /// already have launched. All other ranks of the transport are then told which two ranks differ, in this and in
    /// every later call. If several pairs differ, each rank that finds a difference itself names its own pair.
    Mismatch(Box<Mismatch>),
    /// A rank failed, died or left, and the others were told. This variant covers all engines and transports. The
    /// transport is broken. `rank` is this rank itself if an earlier call failed here.
    #[non_exhaustive]
    PeerFailed {
        /// The rank that failed.
        rank: Rank,
        /// What happened to it.
        cause: Cause,
        /// What this rank was doing, if known.
        during: Option<Box<During>>,
    },
    /// A peer launched a different operation where it should have launched the same one as this rank. All ranks are
    /// told. The transport is broken.
    OtherOperation(Box<OtherOperation>),
    /// A kernel of a rank required something that does not hold, such as that a put stays inside its window
    /// ([`RoleCtx::require`](crate::hook::RoleCtx::require)). All ranks are told. The transport is broken.
    Required(Box<Requirement>),
    /// These ranks wait for each other, in launches or before their first launches. All ranks are told. The transport
    /// is broken.
    Deadlock(Box<Deadlock>),
    /// A wait for a peer expired: in a launch, at the meeting before it, or in `close`. This variant covers all engines
    /// and transports. The transport is broken.
    Timeout(Box<Timeout>),
}

/// A difference between how two ranks describe a transfer or a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The rank that found the difference. This is another rank if this one agrees with its own peers and was told.
    pub rank: Rank,
    /// The other rank.
    pub peer: Rank,
    /// The property in which they differ.
    pub what: String,
    /// Its value on the rank that found the difference.
    pub mine: String,
    /// Its value on the other rank.
    pub theirs: String,
    /// The calls of the rank that found the difference and of the other, with their source lines.
    pub calls: [String; 2],
}

/// The operations of two ranks that launched different ones where they should have launched the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OtherOperation {
    /// The rank that noticed.
    pub rank: Rank,
    /// The operation it launched, with its source line.
    pub here: String,
    /// The other rank.
    pub peer: Rank,
    /// The operation that the other rank launched, with its source line if known.
    pub there: String,
}

/// A requirement of a kernel that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requirement {
    /// The rank whose kernel found it.
    pub rank: Rank,
    /// The bytes it is about, if it is about bytes.
    pub span: Option<RequiredBytes>,
    /// Its source line.
    pub at: String,
    /// The launch, with its source line.
    pub launch: String,
}

/// Ranks that wait for each other.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deadlock {
    /// What each of them is doing, and which rank it waits for.
    pub waiting: Vec<Waiting>,
}

/// What a rank was doing when it was told of a failure.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct During {
    /// The user's call.
    pub call: Option<Call>,
    /// The wait that ended, or the failed rank's own description; empty if nothing is known.
    pub what: String,
    /// True if a peer may still use tensors of the call: do not use them again.
    pub still_lent: bool,
}

/// A wait for a peer that expired.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Timeout {
    /// The rank that waited.
    pub rank: Rank,
    /// The rank it waited for. `None` if a user's own kernel waits on memory that no peer is known to signal.
    pub peer: Option<Rank>,
    /// The late rank: the one at the end of the chain of waiting ranks.
    pub late: Option<Rank>,
    /// Where it waited. For a meeting or a close, the fields from `block` to `seen` carry no information (except `slot`
    /// for a meeting); `op` still does.
    pub stage: Stage,
    /// What it waited for: the op, and the slot or packet.
    pub op: String,
    /// The block that waited.
    pub block: usize,
    /// The role that waited.
    pub role: String,
    /// The bank of the slot or packet, if there are several.
    pub bank: Option<i64>,
    /// The number of the slot or packet among those of the peer. For a meeting, the number of the transfer between the
    /// two ranks.
    pub slot: i64,
    /// The expected value.
    pub expected: u64,
    /// The last value seen.
    pub seen: u64,
    /// How long it waited without any progress.
    pub after: Duration,
    /// Source line of the wait in the kernel. In a collective, this is a line of the library.
    pub at: Option<SourceLine>,
    /// The user's call that waited.
    pub call: Option<Call>,
    /// True if a peer may still use tensors of the call: do not use them again.
    pub still_lent: bool,
}

/// Where a wait for a peer expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Before the first launch, where the ranks compare what they are about to do.
    Meeting,
    /// In a launch.
    Launch,
    /// In `close`, which all ranks call.
    Closing,
}

messages! {
    struct Mismatch {
        Mismatch { rank, peer, what, mine, theirs, calls: [here, there] } => { |f|
            mismatch(f, what, (rank, mine, here), (peer, theirs, there))
        },
    }
}

messages! {
    struct OtherOperation {
        OtherOperation { rank, here, peer, there } => { |f| other_operation(f, (rank, here), (peer, there)) },
    }
}

messages! {
    struct Requirement {
        Requirement { rank, span, at, launch } => { |f|
            let span = span.map(|RequiredBytes { rank, offset, bytes, size }| [rank, offset, bytes, size]);
            required(f, rank, span, (at, launch))
        },
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        deadlock(f, &self.waiting)
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Timeout { rank, peer, late, stage, op, block, role, expected, seen, after, at, call, still_lent, .. } =
            self;
        write!(f, "rank {rank} waited {after:.1?}")?;
        match peer {
            Some(peer) => write!(f, " for rank {peer}")?,
            None => write!(f, " for a signal")?,
        }
        call.iter().try_for_each(|call| write!(f, " in {call}"))?;
        match stage {
            Stage::Launch => {
                write!(f, ": {op} is {seen}, {expected} is needed (block {block}, role {role}")?;
                at.iter().try_for_each(|at| write!(f, ", waiting at {at}"))?;
                write!(f, ")")?;
            }
            Stage::Meeting | Stage::Closing => write!(f, ": {op}")?,
        }
        if *still_lent {
            write!(f, "; {STILL_LENT}")?;
        }
        let Some(late) = late else {
            return write!(f, "; see what the rank that signals it is doing, or allow a longer deadline");
        };
        if *peer != Some(*late) {
            write!(f, "; rank {late} is the one that is late")?;
        }
        match stage {
            Stage::Launch => write!(f, "; see what rank {late} is doing, or allow a longer deadline"),
            Stage::Meeting => write!(
                f,
                "; see whether rank {late} makes the same call, in the same order, or allow a longer deadline"
            ),
            Stage::Closing => {
                write!(
                    f,
                    "; closing is collective: see whether rank {late} closes, or is in a call that this one left out"
                )
            }
        }
    }
}

/// What to do with tensors that do not come back.
const STILL_LENT: &str = "a peer may still use the tensors of this call: drop them, and make others";

/// The message of [`RunError::PeerFailed`].
fn peer_failed(f: &mut fmt::Formatter<'_>, cause: &Cause, during: Option<&During>) -> fmt::Result {
    write!(f, "the transport is broken: {cause}")?;
    if let Some(During { call, what, still_lent }) = during {
        if *still_lent {
            write!(f, "; {STILL_LENT}")?;
        }
        call.iter().try_for_each(|call| write!(f, "; this rank was in {call}"))?;
        if !what.is_empty() {
            write!(f, "; {what}")?;
        }
    }
    write!(f, "; look into rank {}; only a new rendezvous of all ranks recovers", cause.late().unwrap_or(cause.rank))
}

errors! {
    enum RunError {
        Build(error) => "{error}",
        Prepare(error) => "{error}",
        Launch(error) => "{error}",
        Cuda(error) => "{error}",
        Transfer(error) => "{error}",
        Rebind(error) => "{error}",
        Transport(error) => "{error}",
        Mismatch(error) => "{error}",
        PeerFailed { cause, during, .. } => { |f| peer_failed(f, cause, during.as_deref()) },
        OtherOperation(error) => "{error}",
        Required(error) => "{error}",
        Deadlock(error) => "{error}",
        Timeout(error) => "{error}",
    }
    source {
        Build(error) => error.source(),
        Prepare(error) => error.source(),
        Launch(error) => error.source(),
        Cuda(error) => error.source(),
        Transfer(error) => error.source(),
        Transport(error) => error.source(),
    }
    from { BuildError => Build, PrepareError => Prepare, RebindError => Rebind }
}

impl RunError {
    /// The misuses that this error lists, each with the user's source line. Empty for other kinds of errors.
    pub fn misuses(&self) -> &[Misuse] {
        match self {
            RunError::Build(error) => error.misuses(),
            _ => &[],
        }
    }
}
