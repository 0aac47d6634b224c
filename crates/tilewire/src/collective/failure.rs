//! Maps the errors of engines and transports to the two variants of [`RunError`] for a peer's failure and a timeout.
//!
//! ```text
//!   LaunchError::Aborted    TransferError::Broken
//!   CudaError::Aborted      TransportError::Broken, ::Peer        ──▶ RunError::PeerFailed
//!   LaunchError::Timeout
//!   CudaError::Timeout      TransportError::NotMet, ::NotClosed   ──▶ RunError::Timeout
//! ```
//! The same errors inside `TransportError::Segment`, `::Bootstrap` and `::Device` map the same way. Elsewhere in this
//! folder only `agreement.rs` looks at the left column, to tell the other ranks. The launch or meeting that the error
//! ended adds what the error itself does not know: the late rank and the user's call.

use super::call::Call;
use super::error::{Deadlock, During, Mismatch, OtherOperation, Requirement, RunError, Stage, Timeout};
use crate::cuda::{CudaError, Stopped};
use crate::ir::{RequiredBytes, SourceLine};
use crate::transport::bootstrap::{BootstrapError, Departure};
use crate::transport::{
    AbortCode, Cause, Difference, Rank, SegmentError, TransferError, TransportError, Unmet, Verdict,
};
use crate::vm::{LaunchError, QUEUE_ROOM};
use std::sync::Arc;
use std::time::Duration;

impl RunError {
    /// The failure that a cause describes.
    fn peer_failed(cause: Cause, what: String) -> RunError {
        let during = (!what.is_empty()).then(|| Box::new(During { call: None, what, still_lent: false }));
        RunError::PeerFailed { rank: Rank::new(cause.rank as u32), cause, during }
    }

    /// Adds the user's call, if the error ended a wait.
    pub(super) fn during(mut self, made: &Call) -> RunError {
        match &mut self {
            RunError::Timeout(timeout) => {
                timeout.call.get_or_insert_with(|| made.clone());
            }
            RunError::PeerFailed { during: Some(during), .. } => {
                during.call.get_or_insert_with(|| made.clone());
            }
            RunError::PeerFailed { during, .. } => {
                *during = Some(Box::new(During { call: Some(made.clone()), what: String::new(), still_lent: false }));
            }
            _ => {}
        }
        self
    }

    /// The same failure, after which a peer may still use tensors of the call.
    pub(super) fn while_lent(mut self) -> RunError {
        match &mut self {
            RunError::Timeout(timeout) => timeout.still_lent = true,
            RunError::PeerFailed { during: Some(during), .. } => during.still_lent = true,
            _ => {}
        }
        self
    }
}

impl Timeout {
    /// A timeout without the details of the wait in a kernel.
    fn new(stage: Stage, rank: Rank, peer: Option<Rank>, op: String, after: Duration) -> Timeout {
        Timeout {
            rank,
            peer,
            late: peer,
            stage,
            op,
            block: 0,
            role: String::new(),
            bank: None,
            slot: 0,
            expected: 1,
            seen: 0,
            after,
            at: None,
            call: None,
            still_lent: false,
        }
    }
}

impl Mismatch {
    /// The same difference in the form that is announced to all ranks of a transport.
    pub(super) fn verdict(&self) -> Verdict {
        let Mismatch { rank, peer, what, mine, theirs, calls: [here, there] } = self.clone();
        let (here, there) = ((rank.index(), [mine, here]), (peer.index(), [theirs, there]));
        Verdict::Mismatch(Box::new(Difference { what, here, there }))
    }
}

impl From<Verdict> for RunError {
    fn from(verdict: Verdict) -> Self {
        let rank = |rank: usize| Rank::new(rank as u32);
        match verdict {
            Verdict::Deadlock(waiting) => RunError::Deadlock(Box::new(Deadlock { waiting })),
            Verdict::Mismatch(difference) => {
                let Difference { what, here, there } = *difference;
                let ([mine, call], [theirs, called]) = (here.1, there.1);
                let (rank, peer, calls) = (rank(here.0), rank(there.0), [call, called]);
                RunError::Mismatch(Box::new(Mismatch { rank, peer, what, mine, theirs, calls }))
            }
            Verdict::Required(unmet) => {
                let Unmet { rank: by, span, at, launch } = *unmet;
                let (rank, span) = (rank(by), span.map(RequiredBytes::of));
                RunError::Required(Box::new(Requirement { rank, span, at, launch }))
            }
            Verdict::OtherOperation { here, there } => {
                let (here, there, rank, peer) = (here.1, there.1, rank(here.0), rank(there.0));
                RunError::OtherOperation(Box::new(OtherOperation { rank, here, peer, there }))
            }
        }
    }
}

impl From<Timeout> for RunError {
    fn from(timeout: Timeout) -> Self {
        RunError::Timeout(Box::new(timeout))
    }
}

impl From<LaunchError> for RunError {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::Timeout { what, bank, peer, index, expected, seen, after, by, at } => {
                let (rank, slot) = (Rank::new(by.rank as u32), index.unwrap_or(0));
                let timeout = Timeout::new(Stage::Launch, rank, peer.map(Rank::new), what, after);
                let (block, role, bank, at) = (by.block, by.role, bank.map(i64::from), Some(at));
                Timeout { block, role, bank, slot, expected, seen, at, ..timeout }.into()
            }
            LaunchError::Aborted { word, what, by, at, .. } => {
                RunError::peer_failed(cause_of(word, by.rank), stopped_in(&what, by.block, &by.role, &at))
            }
            error => RunError::Launch(error),
        }
    }
}

impl From<CudaError> for RunError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Timeout(stopped) => {
                let Stopped { rank, block, role, param, bank, index, expected, seen, at, peer, for_room, .. } =
                    *stopped;
                let op = if for_room { QUEUE_ROOM.to_string() } else { format!("{param}[{index}]") };
                let timeout = Timeout::new(Stage::Launch, Rank::new(rank), peer.map(Rank::new), op, Duration::ZERO);
                let (block, slot, bank, at) = (block as usize, index as i64, Some(bank as i64), Some(at));
                Timeout { block, role, bank, slot, expected, seen, at, ..timeout }.into()
            }
            CudaError::Aborted { word } => RunError::peer_failed(cause_of(word, 0), String::new()),
            error => RunError::Cuda(error),
        }
    }
}

impl From<TransferError> for RunError {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Broken { cause } => RunError::peer_failed(cause, String::new()),
            error => RunError::Transfer(error),
        }
    }
}

impl From<TransportError> for RunError {
    fn from(error: TransportError) -> Self {
        let of = |code, rank: Rank| Cause { code, rank: rank.index(), reason: 0 };
        match error {
            TransportError::Broken { cause } => RunError::peer_failed(cause, String::new()),
            TransportError::Judged(verdict) => verdict.into(),
            TransportError::Peer { rank, what } => RunError::peer_failed(of(AbortCode::Failed, rank), what),
            TransportError::Segment(SegmentError::Peer { rank, what }) => {
                RunError::peer_failed(of(AbortCode::Failed, Rank::new(rank as u32)), what)
            }
            TransportError::Segment(SegmentError::Died { rank }) => {
                let what = "while the ranks shared their memory".to_string();
                RunError::peer_failed(of(AbortCode::Died, Rank::new(rank as u32)), what)
            }
            TransportError::Bootstrap(BootstrapError::PeerGone { peer, departure, operation, name }) => {
                let code = match departure {
                    Departure::Left => AbortCode::Left,
                    Departure::Failed(_) => AbortCode::Failed,
                    _ => AbortCode::Died,
                };
                RunError::peer_failed(of(code, peer), format!("{operation} '{name}': rank {peer} {departure}"))
            }
            TransportError::NotMet { ticket, late, after } => {
                let timeout = Timeout::new(Stage::Meeting, ticket.rank, Some(ticket.peer), ticket.to_string(), after);
                Timeout { slot: ticket.number as i64, late: Some(late), ..timeout }.into()
            }
            TransportError::NotClosed { rank, ranks, after } => {
                let late = ranks.first().map(|&late| Rank::new(late as u32));
                let list: Vec<String> = ranks.iter().map(|rank| format!("rank {rank}")).collect();
                Timeout::new(Stage::Closing, rank, late, format!("close of {}", list.join(", ")), after).into()
            }
            TransportError::Bootstrap(BootstrapError::Timeout { rank, operation, name, late, absent, waited }) => {
                let first = absent.first().or(late.first()).copied();
                Timeout::new(Stage::Meeting, rank, first, format!("{operation} '{name}'"), waited).into()
            }
            TransportError::Device(error) => match error.downcast_ref::<CudaError>() {
                Some(cuda @ (CudaError::Timeout(_) | CudaError::Aborted { .. })) => cuda.clone().into(),
                _ => RunError::Transport(Arc::new(TransportError::Device(error))),
            },
            error => RunError::Transport(Arc::new(error)),
        }
    }
}

/// The cause in an abort word. A word that names no rank is blamed on the rank that saw it.
fn cause_of(word: u64, rank: usize) -> Cause {
    Cause::from_word(word).unwrap_or(Cause { code: AbortCode::Failed, rank, reason: 0 })
}

fn stopped_in(what: &str, block: usize, role: &str, at: &SourceLine) -> String {
    format!("{what} (block {block}, role {role}, waiting at {at})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::bootstrap::Operation;
    use crate::transport::{Pairing, Ticket};
    use crate::vm::Who;

    const CAUSE: Cause = Cause { code: AbortCode::Died, rank: 3, reason: 0 };

    fn line() -> SourceLine {
        SourceLine::caller()
    }

    #[test]
    fn a_peers_failure_is_one_error_whoever_noticed_it() {
        let by = Box::new(Who { rank: 1, block: 2, role: "receive".into() });
        let (what, cause) = ("wait tail of rank 3[0]".to_string(), CAUSE.to_string());
        let gone = BootstrapError::PeerGone {
            peer: Rank::new(3),
            departure: Departure::Lost,
            operation: Operation::Barrier,
            name: "closed".into(),
        };
        let noticed: [RunError; 7] = [
            LaunchError::Aborted { cause, word: CAUSE.to_word(), what, by, at: line() }.into(),
            CudaError::Aborted { word: CAUSE.to_word() }.into(),
            TransferError::Broken { cause: CAUSE }.into(),
            TransportError::Broken { cause: CAUSE }.into(),
            TransportError::from(CudaError::Aborted { word: CAUSE.to_word() }).into(),
            TransportError::Segment(SegmentError::Died { rank: 3 }).into(),
            TransportError::Bootstrap(gone).into(),
        ];
        for error in noticed {
            let RunError::PeerFailed { rank, cause, .. } = &error else { panic!("{error}") };
            assert_eq!((*rank, *cause), (Rank::new(3), CAUSE), "{error}");
            assert!(error.to_string().contains("rank 3 died"), "{error}");
        }
        let error: RunError = TransportError::Peer { rank: Rank::new(2), what: "no room".into() }.into();
        let RunError::PeerFailed { rank, cause, .. } = &error else { panic!("{error}") };
        assert_eq!((*rank, cause.code), (Rank::new(2), AbortCode::Failed));
        assert!(error.to_string().contains("no room"), "{error}");
    }

    #[test]
    fn a_timeout_is_one_error_whoever_waited() {
        let by = Box::new(Who { rank: 1, block: 0, role: "receive".into() });
        let after = Duration::from_secs(2);
        let (what, at) = ("wait tail of rank 3[4]".to_string(), line());
        let stopped = Stopped {
            rank: 1,
            block: 0,
            role: "receive".into(),
            copy: 0,
            param: "tail of rank 3".into(),
            bank: 0,
            index: 4,
            expected: 7,
            seen: 5,
            at: at.clone(),
            peer: Some(3),
            for_room: false,
            launch: String::new(),
        };
        let launches: [RunError; 2] = [
            LaunchError::Timeout {
                what,
                bank: None,
                peer: Some(3),
                index: Some(4),
                expected: 7,
                seen: 5,
                after,
                by,
                at,
            }
            .into(),
            CudaError::Timeout(Box::new(stopped)).into(),
        ];
        for error in launches {
            let RunError::Timeout(it) = &error else { panic!("{error}") };
            assert_eq!((it.stage, it.rank, it.block, &*it.role), (Stage::Launch, Rank::new(1), 0, "receive"));
            assert_eq!((it.peer, it.slot, it.expected, it.seen), (Some(Rank::new(3)), 4, 7, 5));
        }
        let ticket = Ticket { rank: Rank::new(1), peer: Rank::new(3), pairing: Pairing::Send, number: 9 };
        let late = BootstrapError::Timeout {
            rank: Rank::new(1),
            operation: Operation::Barrier,
            name: "ready".into(),
            late: vec![Rank::new(3)],
            absent: Vec::new(),
            waited: after,
        };
        let meetings: [(RunError, Stage); 3] = [
            (TransportError::NotMet { ticket, late: ticket.peer, after }.into(), Stage::Meeting),
            (TransportError::Bootstrap(late).into(), Stage::Meeting),
            (TransportError::NotClosed { rank: Rank::new(1), ranks: vec![3, 4], after }.into(), Stage::Closing),
        ];
        for (error, stage) in meetings {
            let RunError::Timeout(it) = &error else { panic!("{error}") };
            assert_eq!((it.stage, it.rank, it.peer, it.late), (stage, Rank::new(1), it.late, Some(Rank::new(3))));
            assert_eq!(it.after, after);
            assert!(error.to_string().contains("rank 1 waited 2.0s for rank 3"), "{error}");
        }
    }
}
