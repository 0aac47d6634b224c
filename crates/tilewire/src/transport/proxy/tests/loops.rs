//! The carrier between ranks of one process: from a seed it shows everything that a network may do.

use super::*;

fn ends(segments: &[SegmentSet]) -> Vec<Arc<LoopEnd>> {
    let end = |rank: usize| {
        let segment = segments[rank].segment(rank);
        let regions = (0..2).map(|sender| ((sender, 0), segment.part(0, 64))).collect();
        Arc::new(LoopEnd::new(regions, segments[rank].doorbell(rank)))
    };
    (0..2).map(end).collect()
}

/// What happened to one write: the number of attempts before it was taken, and the polls in which it arrived and was
/// confirmed.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    refusals: usize,
    arrived: Option<usize>,
    confirmed: Option<usize>,
}

/// Starts this many writes from rank 0 to rank 1, and polls both until all are confirmed.
fn carry(writes: usize, seed: Option<u64>) -> Vec<Seen> {
    let segments = SegmentSet::threads(2, 64).unwrap();
    let ends = ends(&segments);
    let [mut from, mut to] = [0, 1].map(|rank: usize| LoopCarrier::new(rank, ends.clone(), seed));
    let mut seen = vec![Seen::default(); writes];
    let (source, mut next) = (Source::Inline(&[]), 0);
    for poll in 0..10_000 {
        // The receiver polls first, so that a confirmation which came before the arrival would be seen.
        let (mut at_receiver, mut at_sender) = (Vec::new(), Vec::new());
        to.poll(&mut at_receiver).unwrap();
        for event in at_receiver {
            let Event::Arrived { notice } = event else { panic!("the receiver has written nothing") };
            assert!(seen[notice as usize].arrived.replace(poll).is_none());
        }
        from.poll(&mut at_sender).unwrap();
        for event in at_sender {
            let Event::Delivered { id } = event else { panic!("nobody writes to the sender") };
            assert!(seen[id as usize].confirmed.replace(poll).is_none());
        }
        while next < writes {
            let (id, target, notice) = (next as u64, 0, Some(next as u32));
            if !from.write(&Write { id, peer: 1, source, target, offset: 0, notice }).unwrap() {
                seen[next].refusals += 1;
                break;
            }
            next += 1;
        }
        if seen.iter().all(|seen| seen.arrived.is_some() && seen.confirmed.is_some()) {
            return seen;
        }
    }
    panic!("the carrier never completes a write: {seen:?}");
}

#[test]
fn a_seed_delays_reorders_and_refuses_writes_and_delays_their_confirmations() {
    for seed in 0..20 {
        let seen = carry(100, Some(seed));
        let arrived = |k: usize| seen[k].arrived.unwrap();
        assert!((1..100).any(|k| arrived(k) < arrived(k - 1)), "seed {seed}: nothing overtakes");
        assert!(seen.iter().any(|seen| seen.refusals > 0), "seed {seed}: everything is taken");
        assert!(seen.iter().any(|seen| seen.refusals > 1), "seed {seed}: no row of refusals");
        assert!(seen.iter().all(|seen| seen.refusals <= 9), "seed {seed}: {seen:?}");
        // An arrival that the receiver polls for before the sender's next poll is one poll behind its confirmation.
        let late = |seen: &&Seen| seen.confirmed.unwrap() > seen.arrived.unwrap();
        assert!(seen.iter().filter(late).count() > 10, "seed {seed}: confirmations come with the arrivals");
        let order = |k: usize| seen[k].confirmed.unwrap();
        assert!((0..100).any(|j| (0..100).any(|k| arrived(j) < arrived(k) && order(j) > order(k))), "seed {seed}");
    }
}

#[test]
fn without_a_seed_everything_is_delivered_at_once_and_in_order() {
    let seen = carry(100, None);
    assert!(seen.iter().all(|seen| (seen.refusals, seen.arrived, seen.confirmed) == (0, Some(1), Some(1))));
}
