//! Checks that a barrier holds every rank until the last has come.

use std::time::Duration;
use tilewire::barrier;
use tilewire::link::AnyTransport;
use tilewire::transport::{RankError, World};
use tilewire_testkit::random::Random;

/// Number of meetings: more than there can be messages in flight.
const ROUNDS: usize = 12;

/// Meets the other ranks, after its own delays in every round: none may leave before the last has come. All ranks see
/// the same clock.
pub fn meets(world: &World, link: &AnyTransport, seed: u64) -> Result<(), RankError> {
    let me = world.rank().index();
    let mut random = Random::new(seed ^ me as u64);
    let mut meet = barrier(link).build()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        std::thread::sleep(Duration::from_micros(random.below(1500) as u64));
        let came = now();
        meet.run()?;
        meet.sync()?;
        times.extend([came, now()].into_iter().flat_map(u64::to_le_bytes));
    }
    let all = world.bootstrap().all_gather("verify/meets", &times, world.deadline())?;
    match too_early(&all) {
        Some(why) => Err(why.into()),
        None => Ok(()),
    }
}

/// The first rank that left before another had come, from the arrival and departure times of all ranks in every round.
fn too_early(all: &[Vec<u8>]) -> Option<String> {
    let time = |rank: usize, k: usize| u64::from_le_bytes(all[rank][8 * k..][..8].try_into().expect("eight bytes"));
    let pairs = (0..all.len()).flat_map(|a| (0..all.len()).map(move |b| (a, b)));
    (0..ROUNDS).flat_map(|round| pairs.clone().map(move |(a, b)| (round, a, b))).find_map(|(round, gone, coming)| {
        let (went, came) = (time(gone, 2 * round + 1), time(coming, 2 * round));
        (went < came).then(|| {
            let early = came - went;
            format!("barrier, round {round}: rank {gone} went {early} ns before rank {coming} came")
        })
    })
}

/// Nanoseconds of the clock that all processes of a machine share.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes the timespec, which lives longer than the call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    assert_eq!(failed, 0, "every Linux has this clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_too_early_is_named() {
        let rank = |went: u64| -> Vec<u8> {
            (0..ROUNDS as u64).flat_map(|k| [100 * k, 100 * k + went].map(u64::to_le_bytes).concat()).collect()
        };
        assert_eq!(too_early(&[rank(10), rank(20)]), None);
        let mut late = rank(20);
        late[16 * 3..][..8].copy_from_slice(&345u64.to_le_bytes());
        let why = "barrier, round 3: rank 0 went 35 ns before rank 1 came";
        assert_eq!(too_early(&[rank(10), late]).as_deref(), Some(why));
    }
}
