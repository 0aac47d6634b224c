//! The end of a launch.
//!
//! Without a thread of the rank that polls, a launch returns when everything that it posted is confirmed: nobody would
//! carry it afterwards. With such a thread, it returns when the carrier has taken everything. The thread then carries
//! it, and a drain waits for its confirmation.
//!
//! **What is under way then reads no memory of the user.** A role that posts an input in place waits for a flush of its
//! own. An outbox is written again only when its receiver has credited it, or is ready for the next launch, and it
//! stays alive as long as writes read it. Before a transport closes, it drains its proxy.
//!
//! **A single credit stays where it is**: the next step takes it along, in this rank's next launch or in its thread.
//! The receiver of a small message can then answer before it returns the slot. More than one credit is not kept back,
//! so a stream of messages never waits for them.
#![forbid(unsafe_code)]

use super::{Held, NoticeKind, Proxy, State};
use crate::transport::TransportError;
use std::time::Duration;

impl Proxy {
    /// Makes progress until a launch of this rank may return. Fails as [`drain`](Self::drain) does.
    pub(crate) fn leave(&self, patience: Option<Duration>) -> Result<(), TransportError> {
        if !self.is_polled() {
            return self.drain(patience);
        }
        if self.has_only_a_credit()? {
            return Ok(());
        }
        self.drive_until(patience, |state| Ok(state.is_taken()))
    }

    /// True if nothing rings for arrivals, because they come over a network.
    #[inline]
    pub(crate) fn is_polled(&self) -> bool {
        self.duty.get().is_some_and(|duty| duty.polls())
    }

    /// True if the rank has no post, or a single credit, that the carrier has not taken.
    fn has_only_a_credit(&self) -> Result<bool, TransportError> {
        let mut state = self.enter()?;
        if self.error().is_some() || state.is_halted {
            return Ok(false);
        }
        state.take(&mut false).map_err(|error| self.fail(error))?;
        self.note(&state);
        let mut held = state.peers.iter().flatten().flat_map(|peer| &peer.held);
        let is_so = held.next().is_none_or(Held::is_credit) && held.next().is_none();
        Ok(is_so && state.ring.is_empty())
    }
}

impl State {
    /// True if the carrier has taken everything that kernels have posted.
    fn is_taken(&self) -> bool {
        self.ring.is_empty() && self.peers.iter().flatten().all(|peer| peer.held.is_empty())
    }
}

impl Held {
    pub(super) fn is_credit(&self) -> bool {
        self.post.span.is_none() && self.is_of(NoticeKind::Credit)
    }

    /// The control line of its notice.
    pub(super) fn line(&self) -> Option<u64> {
        self.post.notice.map(|notice| notice.slot)
    }

    pub(super) fn is_delivery(&self) -> bool {
        self.post.span.is_some() && self.is_of(NoticeKind::Data)
    }

    fn is_of(&self, kind: NoticeKind) -> bool {
        self.post.notice.is_some_and(|notice| notice.kind == kind)
    }
}
