//! A requirement that does not hold ends the launch on all ranks, each with the same typed error.

use crate::case::{Place, SMALL, joined, threads};
use tilewire::collective::Launch;
use tilewire::ir::RequiredBytes;
use tilewire::link::Transport;
use tilewire::transport::{AbortCode, PeerEndpoint};
use tilewire::{RunError, Scalar, Tensor, kernel};

const RANKS: usize = 3;
/// The rank whose requirement does not hold.
const BY: usize = 1;

/// Every rank but one waits for signals that never come.
fn ends_on_all_ranks() {
    let heard = threads(RANKS, "requirements", |world| {
        let link = joined(world, SMALL)?;
        let me = link.rank().index();
        let (y, first) = (Tensor::<u8>::zeros(64), Scalar::new(if me == BY { 61i64 } else { 60 }));
        let here = link.endpoint(world.next()).expect("it is reached").here;
        let traced = kernel("own puts", |k| {
            let (y, tail) =
                (k.output(&y), k.slots("tail", std::slice::from_ref(&here.signals.tail), PeerEndpoint::SLOT_STRIDE));
            k.main(|r| {
                let first = r.scalar(&first);
                r.require_inside(0, first, 4, 64);
                r.each(4, |i| y.store(first + i, 1u8));
                if me != BY {
                    r.wait(tail.slot(0, 0), 1);
                }
            });
        })?;
        let mut launch = Launch::new(&link, &traced)?;
        let error = launch.run().unwrap_err();
        assert!(me != BY || y.to_vec() == [0; 64], "nothing of that put was written");
        assert_eq!(link.broken().map(|cause| (cause.code, cause.rank)), Some((AbortCode::Required, BY)));
        // Later calls return the same error.
        let again = launch.run().unwrap_err();
        Ok([error, again])
    });
    assert_eq!(heard.len(), RANKS);
    for error in heard.iter().flatten() {
        let RunError::Required(it) = error else { panic!("{error}") };
        assert_eq!(it.span, Some(RequiredBytes { rank: 0, offset: 61, bytes: 4, size: 64 }), "{error}");
        assert!(it.rank.index() == BY && it.at.contains("requirements.rs:"), "{error}");
        assert!(it.launch.contains("own puts"), "{error}");
        let text = error.to_string();
        assert!(text.contains("4 bytes at offset 61 do not lie inside the 64 bytes of rank 0"), "{text}");
    }
}

#[test]
fn ends_on_all_ranks_that_share_memory() {
    Place::Shm.hosts(ends_on_all_ranks);
}

#[test]
fn ends_on_all_ranks_that_post() {
    Place::Alone.hosts(ends_on_all_ranks);
}

#[test]
fn ends_on_all_ranks_of_two_domains() {
    Place::First.hosts(ends_on_all_ranks);
    Place::Interleaved.hosts(ends_on_all_ranks);
}
