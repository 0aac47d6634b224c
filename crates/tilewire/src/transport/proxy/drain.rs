//! Draining: waiting until everything that was posted is delivered and confirmed, or taken by the carrier (`leave.rs`).
//!
//! A carrier may report a write as delivered when it is only released ([`Event::Delivered`](super::Event)). A drain
//! then asks for the confirmation, and each confirmation is progress.
//!
//! **The deadline runs per peer**, and from the last progress: a peer is late when the carrier has taken and confirmed
//! none of the posts to it for that long. Arrivals, and the progress of other peers, do not count. A drain cannot know
//! how long a peer was quiet before it began, so for each peer the time starts at the beginning of the drain. The
//! thread steps once more after it has looked at the clock, so that a rank which was suspended does not report as
//! missing a confirmation that arrived meanwhile.
//!
//! **A peer that has left** takes no more posts, and not every provider reports that. It gets [`GONE`] without
//! progress, because a peer that ends properly may leave a moment before its last confirmation arrives. Its
//! confirmations of released writes are not waited for: nobody reads them.
#![forbid(unsafe_code)]

use super::{Abort, Proxy, ProxyError, State};
use crate::sync::{Instant, sleep, yield_now};
use crate::transport::TransportError;
use std::cmp::Reverse;
use std::time::Duration;

/// A draining launch yields for this many idle rounds and then naps between rounds, because deliveries ring no
/// doorbell.
const YIELDS: u32 = 1000;
/// The patience with a peer that has left.
const GONE: Duration = Duration::from_secs(1);
pub(super) const NAP: Duration = Duration::from_micros(50);

impl Proxy {
    /// Makes progress until everything that this rank's kernels posted is confirmed. Fails if the transport breaks
    /// first, or if a peer with undelivered posts makes no progress for as long as `patience` (`None`: forever).
    pub fn drain(&self, patience: Option<Duration>) -> Result<(), TransportError> {
        self.drive_until(patience, |state| state.is_confirmed(|peer| self.has_left(peer)))
    }

    /// True if some posts of this rank may not have arrived, although the carrier has reported all of them as
    /// delivered. Also asks for their confirmation. Waits for its turn.
    pub(super) fn is_unconfirmed(&self) -> bool {
        let Ok(mut state) = self.enter() else { return false };
        if self.error().is_some() || state.is_halted {
            return false;
        }
        let is_confirmed = state.is_confirmed(|peer| self.has_left(peer));
        drop(state);
        match is_confirmed {
            Ok(is_confirmed) => !is_confirmed,
            Err(error) => {
                self.fail(error);
                false
            }
        }
    }

    /// As [`drain`](Self::drain), until `is_over`.
    pub(super) fn drive_until(
        &self,
        patience: Option<Duration>,
        is_over: impl Fn(&mut State) -> Result<bool, ProxyError>,
    ) -> Result<(), TransportError> {
        let (mut quiet, mut idle) = (Quiet::default(), 0);
        loop {
            self.drives();
            let mut state = self.enter()?;
            let progress = self.step_inside(&mut state);
            if let Some(error) = self.error() {
                return Err(self.told(error.clone()));
            }
            match is_over(&mut state) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    drop(state);
                    return Err(self.told(self.fail(error)));
                }
            }
            let patience = |peer: usize| match self.has_left(peer) {
                true => Some(patience.map_or(GONE, |patience| patience.min(GONE))),
                false => patience,
            };
            let (is_halted, late) = (state.is_halted, quiet.late(&state, patience));
            drop(state);
            if let Some(cause) = self.aborts.get(self.rank).and_then(Abort::get) {
                return Err(TransportError::Broken { cause });
            }
            if is_halted {
                return Err(ProxyError::Halted.into());
            }
            if let Some((peer, posts)) = late {
                let what = format!("it left, and {posts} posts to it are not delivered");
                let error = match self.has_left(peer) {
                    true => self.fail(ProxyError::Carrier { peer: Some(peer), what }),
                    false => self.fail(ProxyError::Late { peer, posts }),
                };
                return Err(self.told(error));
            }
            idle = if progress { 0 } else { idle + 1 };
            match idle {
                0 => {}
                1..YIELDS => yield_now(),
                _ => sleep(NAP),
            }
        }
    }

    /// This proxy's error, or what another rank did that counts for all ranks: the network to a peer fails because that
    /// peer has died, for example.
    fn told(&self, error: ProxyError) -> TransportError {
        let cause = self.aborts.get(self.rank).and_then(Abort::get).filter(|cause| cause.rank != self.rank);
        cause.map_or(error.into(), |cause| TransportError::Broken { cause })
    }
}

impl State {
    /// True if everything that kernels have posted is delivered, and confirmed where the carrier reports deliveries
    /// before that. Nobody reads what a peer that has left has not confirmed.
    pub(super) fn is_confirmed(&mut self, has_left: impl Fn(usize) -> bool) -> Result<bool, ProxyError> {
        let is_empty = self.is_empty();
        let mut left = 0;
        for (number, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            let unconfirmed = if is_empty && !has_left(number) { self.carrier.unconfirmed(number)? } else { 0 };
            peer.progress += u64::from(is_empty && unconfirmed < peer.unconfirmed);
            peer.unconfirmed = unconfirmed;
            left += unconfirmed;
        }
        Ok(is_empty && left == 0)
    }
}

/// For each peer with undelivered posts: its progress when it was last seen to make any, and the time of that look.
#[derive(Default)]
struct Quiet(Vec<Option<(u64, Instant)>>);

impl Quiet {
    /// Looks at all peers after a step. Returns the peer that has made no progress for the longest time, if that is its
    /// `patience` or longer, and the number of its posts. Of several such peers it is the one with the oldest post.
    fn late(&mut self, state: &State, patience: impl Fn(usize) -> Option<Duration>) -> Option<(usize, usize)> {
        self.0.resize(state.peers.len(), None);
        let now = Instant::now();
        let quiet = state.peers.iter().zip(&mut self.0).enumerate().filter_map(|(number, (peer, known))| {
            let peer = peer.as_ref().filter(|peer| peer.left() > 0);
            let since = known.filter(|(progress, _)| peer.is_some_and(|peer| peer.progress == *progress));
            *known = peer.map(|peer| since.unwrap_or((peer.progress, now)));
            let (peer, (_, since)) = (peer?, since?);
            let quiet = now.saturating_duration_since(since);
            patience(number)
                .is_some_and(|patience| quiet >= patience)
                .then(|| (quiet, Reverse(peer.oldest()), number, peer.left()))
        });
        quiet.max_by_key(|&(quiet, oldest, ..)| (quiet, oldest)).map(|(.., number, posts)| (number, posts))
    }
}
