//! An exchange that is ready: compared with its peers by the first launch, then launched any number of times.

use super::RunError;
use super::error::Timeout;
use super::link::{Launch, Link};
use super::pair::{Card, Pending};
use crate::cuda::{CudaError, Stopped};
use crate::transport::layout::Side;
use crate::transport::{AbortCode, Cause, Rank};
use crate::vm::LaunchError;
use std::fmt;
use std::time::Duration;

/// A [`send`](super::send), [`recv`](super::recv) or [`sendrecv`](super::sendrecv) that is compiled.
///
/// It borrows its transport and keeps its tensors alive. Launches of one transport run one after the other, on the thread that has it.
pub struct PreparedExchange<'l, L: Link> {
    link: &'l L,
    launch: Launch<'l>,
    peers: Peers,
    deadline: Option<Duration>,
    to: Option<Rank>,
    from: Option<Rank>,
}

/// What is known of the other sides.
enum Peers {
    /// All agree.
    Agree,
    /// They have been told, and not been heard yet.
    Pending(Vec<Pending>),
    /// They do not agree, and will not.
    Refused(RunError),
}

impl<'l, L: Link> PreparedExchange<'l, L> {
    pub(super) fn new(
        link: &'l L,
        launch: Launch<'l>,
        deadline: Option<Duration>,
        to: Option<Rank>,
        from: Option<Rank>,
    ) -> Self {
        PreparedExchange { link, launch, peers: Peers::Pending(Vec::new()), deadline, to, from }
    }

    /// Tells a peer of one leg.
    pub(super) fn tell(&mut self, side: Side, peer: Rank, card: Card) -> Result<(), RunError> {
        if let Peers::Pending(pending) = &mut self.peers {
            pending.push(Pending::tell(self.link, side, peer, card)?);
        }
        Ok(())
    }

    /// Runs the transfer to the end: what is sent may be overwritten then, and what is received is there. On a GPU the launch is only
    /// started: what comes next on the rank's stream, and host access to its tensors, waits for it, and [`sync`](Self::sync) or the
    /// next call says how it ended.
    #[inline]
    pub fn run(&mut self) -> Result<(), RunError> {
        if !matches!(self.peers, Peers::Agree) {
            self.meet()?;
        }
        self.launch.run().map_err(|error| self.name_peer(error))
    }

    /// Waits until all launches have ended, and says how. On the CPU they have.
    pub fn sync(&mut self) -> Result<(), RunError> {
        self.launch.sync().map_err(|error| self.name_peer(error))
    }

    /// The bytecode, or the PTX, for people.
    pub fn disassembly(&self) -> String {
        self.launch.disassembly()
    }

    /// Compares with all peers. All are heard even if the first differs: each has told something that must be taken.
    #[cold]
    fn meet(&mut self) -> Result<(), RunError> {
        if let Peers::Pending(pending) = &self.peers {
            let mut first = Ok(());
            for side in pending {
                first = first.and(side.meet(self.link, self.deadline));
            }
            if first.is_err() && pending.len() > 1 {
                // The peer of the other leg may agree, launch, and count a step that this rank does not.
                self.give_up();
            }
            self.peers = first.map_or_else(Peers::Refused, |()| Peers::Agree);
        }
        match &self.peers {
            Peers::Refused(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Breaks the transport: a peer may have launched what this rank will not.
    fn give_up(&self) {
        self.link.fail(Cause { code: AbortCode::Failed, rank: self.link.rank().index(), reason: 0 });
    }

    /// Says for whom a wait was.
    #[cold]
    fn name_peer(&self, error: RunError) -> RunError {
        let (what, block, role, slot, expected, seen, after, at) = match error {
            RunError::Launch(LaunchError::Timeout { what, index, expected, seen, after, by, at, .. }) => {
                (what, by.block, by.role, index.unwrap_or(0), expected, seen, after, at)
            }
            RunError::Cuda(CudaError::Timeout(stopped)) => {
                let Stopped { block, role, param, index, expected, seen, at, .. } = *stopped;
                let what = format!("{param}[{index}]");
                (what, block as usize, role, index as i64, expected, seen, self.deadline.unwrap_or_default(), at)
            }
            other => return other,
        };
        // Credits and permissions come from whom this rank sends to, everything else from whom it receives from.
        let for_credit = what.contains("head") || what.contains("ready");
        let peer = if for_credit { self.to } else { self.from };
        let peer = peer.or(self.to).or(self.from).expect("an exchange has a peer");
        let rank = self.link.rank();
        let timeout = Timeout { rank, peer, block, role, op: what, slot, expected, seen, after, at };
        RunError::Timeout(Box::new(timeout))
    }
}

impl<L: Link> Drop for PreparedExchange<'_, L> {
    fn drop(&mut self) {
        if matches!(&self.peers, Peers::Pending(told) if !told.is_empty()) {
            self.give_up();
        }
    }
}

impl<L: Link> fmt::Debug for PreparedExchange<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PreparedExchange(to {:?}, from {:?}, {:?})", self.to, self.from, self.launch)
    }
}
