//! Every launch meets its peers' launch of the same operation. Ranks that launch in another order, too often or too
//! seldom get right bytes or an error on all of them, and none waits for a deadline.

mod cycles;
mod differing;
mod gatherings;
mod mixed;
mod random;
mod swapped;

use crate::case::LONG;
use std::time::{Duration, Instant};
use tilewire::link::{ShmOptions, ShmTransport};
use tilewire::transport::{Rank, RankError, World};
use tilewire::{RunError, Tensor};

/// Far below every deadline here, and far above the time that a busy machine needs.
const SOON: Duration = Duration::from_secs(20);

const OPTIONS: ShmOptions = ShmOptions {
    per_peer_bytes: Some(1 << 20),
    max_slots: Some(16),
    max_blocks_per_peer: None,
    max_copies: 1,
    packet_bytes: None,
    window_sets: None,
    populate: false,
};

/// The results of each rank's launches. The ranks meet before they drop their transports.
fn outcomes(
    ranks: usize,
    body: impl Fn(&World, &ShmTransport) -> Result<(), RunError> + Sync,
) -> Vec<Result<(), RunError>> {
    let start = Instant::now();
    let run = |world: World| -> Result<_, RankError> {
        let link = ShmTransport::rendezvous(&world, OPTIONS)?;
        let launched = body(&world, &link);
        // A rank that has launched everything may hear of it here.
        let closed = link.close();
        Ok(launched.and(closed.map_err(RunError::from)))
    };
    let outcomes = World::threads(ranks).deadline(LONG).run(run).unwrap();
    assert!(start.elapsed() < SOON, "{:?}: {outcomes:?}", start.elapsed());
    outcomes
}

/// The tensor of a rank.
fn ramp(rank: Rank, len: usize) -> Tensor<f32> {
    Tensor::from_fn(len, |i| (i + 1) as f32 * (rank.number() + 1) as f32)
}

/// Asserts that no rank succeeded, and that none failed because a deadline passed.
fn assert_all_failed(outcomes: &[Result<(), RunError>], what: &str) {
    for (rank, outcome) in outcomes.iter().enumerate() {
        let error = outcome.as_ref().expect_err(&format!("{what}: rank {rank} heard of nothing: {outcomes:?}"));
        assert!(!matches!(error, RunError::Timeout(_)), "{what}: rank {rank}: {error}");
    }
}
