//! Ranks that describe one operation differently. All participants hear of it, however fast each of them is.

use super::outcomes;
use crate::case::{pause, seed};
use tilewire::collective::Mismatch;
use tilewire::link::{ShmTransport, Transport};
use tilewire::transport::Rank;
use tilewire::{Primitive, RunError, Tensor, all_gather, all_to_all, sendrecv};
use tilewire_testkit::random::Random;

/// The errors of each rank, many times, with different ranks late.
#[track_caller]
fn all_hear(ranks: usize, body: impl Fn(&ShmTransport, Primitive) -> Result<(), RunError> + Sync) {
    for turn in 0..40 {
        let outcomes = outcomes(ranks, |world, link| {
            pause(&mut Random::new(seed() ^ turn << 8 ^ world.rank().index() as u64));
            body(link, if world.rank() == Rank::new(0) { Primitive::Packet } else { Primitive::Staged })
        });
        for outcome in &outcomes {
            let Err(RunError::Mismatch(mismatch)) = outcome else { panic!("turn {turn}: {outcomes:?}") };
            let Mismatch { rank, peer, what, mine, theirs, calls } = &**mismatch;
            assert!(what == "the protocol" && (rank.index() == 0) != (peer.index() == 0), "{mismatch}");
            let [of_first, of_other] = if rank.index() == 0 { [mine, theirs] } else { [theirs, mine] };
            assert!(of_first.contains("packet") && of_other.contains("staged"), "{mismatch}");
            assert!(calls.iter().all(|call| call.contains(file!())), "{mismatch}");
        }
    }
}

#[test]
fn a_ring_of_transfers_is_a_mismatch_on_all_ranks_also_on_those_whose_neighbours_agree() {
    for ranks in [2, 3, 4, 5] {
        all_hear(ranks, |link, primitive| {
            let (me, x) = (link.rank(), Tensor::<f32>::zeros(64));
            let (to, from) = (me.after(1, ranks), me.after(ranks - 1, ranks));
            sendrecv(link, &Tensor::<f32>::zeros(64), &x, to, from).primitive(primitive).run()
        });
    }
}

/// Ranks 0 and 1 do not wait for rank 2. It runs only after both have heard of the difference, and hears of it then.
#[test]
fn a_ring_of_transfers_is_a_mismatch_also_while_a_rank_is_late() {
    let both_have_heard = std::sync::Barrier::new(3);
    all_hear(3, |link, primitive| {
        let (me, x) = (link.rank(), Tensor::<f32>::zeros(64));
        let ring = || {
            let (to, from) = (me.after(1, 3), me.after(2, 3));
            sendrecv(link, &Tensor::<f32>::zeros(64), &x, to, from).primitive(primitive).run()
        };
        let heard = if me == Rank::new(2) { None } else { Some(ring()) };
        both_have_heard.wait();
        heard.unwrap_or_else(ring)
    });
}

#[test]
fn a_collective_is_a_mismatch_on_all_ranks_and_the_transport_can_still_be_used() {
    all_hear(3, |link, primitive| {
        let x = Tensor::<u32>::from_fn(30, |i| i as u32);
        let differing = all_to_all(link, &Tensor::<u32>::zeros(30), &x).primitive(primitive).run();
        let out = Tensor::<u32>::zeros(90);
        all_gather(link, &out, &x).run().expect("nothing was launched");
        assert_eq!(out.get(89), 29);
        differing
    });
}

/// A rank that returns its error leaves. A rank that has not heard of the difference must hear of it, and not that the
/// other has left.
#[test]
fn a_rank_that_leaves_with_its_error_is_heard_by_the_others() {
    use crate::case::LONG;
    use std::sync::Mutex;
    use tilewire::link::ShmOptions;
    use tilewire::transport::World;
    for turn in 0..20 {
        let heard = Mutex::new(Vec::new());
        let failed = World::threads(3).deadline(LONG).run(|world| {
            let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
            let len = if world.rank() == Rank::new(0) { 8 } else { 9 };
            let mut op = all_gather(&link, &Tensor::<f32>::zeros(3 * len), &Tensor::<f32>::zeros(len)).build()?;
            world.bootstrap().barrier("all have built", LONG.into())?;
            pause(&mut Random::new(seed() ^ turn << 8 ^ world.rank().index() as u64));
            let error = op.run().unwrap_err();
            heard.lock().unwrap().push(error.clone());
            Err::<(), _>(error.into())
        });
        assert!(failed.is_err());
        for error in heard.into_inner().unwrap() {
            assert!(matches!(error, RunError::Mismatch(_)), "turn {turn}: {error}");
        }
    }
}
