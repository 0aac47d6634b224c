//! Rings of a payload and a value that neighbours share. A slot holds the value once. Code that forgets this writes
//! into the next slot.

use crate::checker::{clean, kinds};
use tilewire::check::Report;
use tilewire::hook::Regs;
use tilewire::link::Transport;
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::schedule::{Packing, Ring, StagedPlan, Tiling, ring_gather};
use tilewire::transport::Protocol;
use tilewire::{RunError, Tensor, Traced, kernel};
use tilewire_testkit::shipped::shipped;

/// The number of neighbours that share a scale, and of elements of a tile.
const SHARERS: usize = 32;
/// The bytes of a tile: 32 bytes and one scale, each from a multiple of 64 on.
const SLOT: usize = 128;

/// The kernel that `all_gather` launches round a ring, with a given packing.
fn gather(link: &RehearsalRank, depth: usize, packing: Packing) -> Result<Traced, RunError> {
    let (ranks, len) = (link.world_size(), 4 * SHARERS - 3);
    let (x, y) = (Tensor::<f32>::zeros(len), Tensor::<f32>::zeros(ranks * len));
    let ((to, from), protocol) = (link.neighbours(), Protocol::Staged { slot_bytes: SLOT, depth });
    let (plan, tiling) =
        (StagedPlan::new(&link.link(link.rank()), SLOT, depth, 1).unwrap(), Tiling::flat(len, SHARERS, 1));
    let me = link.number() as usize;
    Ok(kernel("ring", |k| {
        let (x, y) = (k.input(&x).named("input"), k.output(&y).named("output"));
        let (next, previous) = (link.sender(k, to, protocol, None), link.receiver(k, from, protocol));
        k.main(|r| {
            let ring = Ring { next: &next, previous: &previous, plan, tiling, ranks };
            ring_gather::<(i8, f32)>(
                r,
                &ring,
                packing,
                |at| {
                    let x = x.load(at.pos);
                    (x.cast::<i8>(), x.abs().group_max(SHARERS as u32))
                },
                |before, at, (payload, scale)| {
                    let chunk = ((me + ranks - before) % ranks * len) as i64;
                    y.store(at.pos + chunk, payload.cast::<f32>() * scale);
                },
            );
        });
    })?)
}

fn report(ranks: usize, depth: usize, packing: Packing) -> Report {
    Rehearsal::small(ranks, 1).check(3, |link, _| gather(link, depth, packing)).unwrap()
}

#[test]
fn a_scale_that_lies_once_for_its_group_stays_in_its_slot() {
    let one_each = Packing::new(<(i8, f32) as Regs>::TYPES, SHARERS);
    let shared = one_each.last_per(SHARERS);
    assert!(shared.bytes() <= SLOT && one_each.bytes() > SLOT);
    for (ranks, depth) in [(2, 2), (2, 4), (3, 2), (3, 8)] {
        clean(&report(ranks, depth, shared));
        let torn = report(ranks, depth, one_each);
        assert!(kinds(&torn).contains(&"race"), "{ranks} ranks, {depth} slots: {torn}");
    }
}

/// This includes worlds where a block has fewer than two slots of staging for each rank.
#[test]
fn such_a_ring_is_among_what_ships() {
    for ranks in [2, 3, 9] {
        let cases = shipped(ranks, 1);
        let rings =
            cases.iter().filter(|case| case.collective == "all_gather" && case.name.starts_with("ring, two values"));
        assert_eq!(rings.count(), 1, "{ranks} ranks");
    }
}
