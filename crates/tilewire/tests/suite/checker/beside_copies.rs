//! Rings and reductions take all steps in one role. Transfers share their steps among copies of a role. Both use one
//! transport, in any order.

use crate::checker::clean;
use tilewire::check::Plan;
use tilewire::collective::{Knobs, Primitive, Rounds};
use tilewire::link::Transport;
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::transport::layout::Geometry;
use tilewire::{Algorithm, RunError, Tensor, Traced, all_gather, all_reduce, reduce_scatter, sendrecv};

const BLOCKS: usize = 2;

fn world(ranks: usize, max_copies: usize) -> Rehearsal {
    let geometry = Geometry {
        world_size: ranks,
        per_peer_bytes: 2048 * 2 * BLOCKS,
        max_blocks_per_peer: 2 * BLOCKS,
        max_slots: 16,
        max_copies,
        packet_bytes: 4096 * 2 * BLOCKS,
        window_sets: 2,
    };
    Rehearsal::new(geometry).with_copies(max_copies)
}

fn staged(link: &RehearsalRank, slot_bytes: usize) -> Knobs {
    let depth = Some(2 * link.copies() as usize);
    let (primitive, blocks, slot_bytes) = (Some(Primitive::Staged), Some(BLOCKS), Some(slot_bytes));
    Knobs { primitive, blocks, slot_bytes, depth, granule: Some(1), ..Knobs::default() }
}

/// Sends this many steps for every block round the ring.
fn shift(link: &RehearsalRank, steps: usize, slot_bytes: usize) -> Result<Traced, RunError> {
    let len = BLOCKS * steps * slot_bytes / 4;
    let (x, y) = (Tensor::<f32>::zeros(len), Tensor::<f32>::zeros(len));
    let (to, from) = link.neighbours();
    sendrecv(link, &y, &x, to, from).config(staged(link, slot_bytes)).trace()
}

fn whole(link: &RehearsalRank, which: usize, slot_bytes: usize) -> Result<Traced, RunError> {
    let (ranks, one, config) = (link.world_size(), BLOCKS * 48 - 3, staged(link, slot_bytes));
    let zeros = |chunks: usize| Tensor::<f32>::zeros(chunks * one);
    let (part, all, out) = (zeros(1), zeros(ranks), zeros(ranks));
    match which {
        0 => all_gather(link, &out, &part).algorithm(Algorithm::Ring).config(config).trace(),
        1 => all_reduce(link, &out, &all).algorithm(Algorithm::TwoPhase).config(config).trace(),
        2 => reduce_scatter(link, &part, &all).rounds(Rounds::Blocks).config(config).trace(),
        3 => all_reduce(link, &out, &all).rounds(Rounds::Blocks).config(config).trace(),
        _ => all_reduce(link, &out, &all).algorithm(Algorithm::Ring).config(config).trace(),
    }
}

#[test]
fn one_role_and_copies_take_turns() {
    for (ranks, copies) in [(2, 2), (2, 4), (3, 2), (3, 3)] {
        for first in 0..5 {
            let links = world(ranks, copies).ranks();
            let mut plan = Plan::new(ranks as u32);
            // The numbers of steps are odd, so the copies begin at different places each time. The slots change once,
            // in the middle.
            for (number, slot_bytes) in [(0, 64), (1, 64), (2, 64), (3, 128), (4, 128), (5, 64)] {
                let trace = |link: &RehearsalRank| match number % 2 {
                    0 => whole(link, (first + number / 2) % 5, slot_bytes),
                    _ => shift(link, 3 + number, slot_bytes),
                };
                let traced: Vec<_> = links.iter().map(|link| trace(link).unwrap()).collect();
                let all: Vec<_> = traced.iter().map(|traced| (&traced.kernel, &traced.args[..])).collect();
                plan.launch(&all);
            }
            clean(&plan.verify(&Default::default()));
        }
    }
}

/// One leg goes in packets, which one copy of a role sends. The other goes in slots, which all copies send.
#[test]
fn legs_that_go_in_other_ways_keep_apart() {
    for ranks in [2, 4] {
        let plan = world(ranks, 4).plan(9, |link, launch| {
            // Even ranks send much and odd ones little, and then the other way round.
            let long = |number: u32| if (number as usize + launch).is_multiple_of(2) { 700 } else { 6 };
            let (to, from) = link.neighbours();
            let (x, y) = (Tensor::<f32>::zeros(long(link.number())), Tensor::<f32>::zeros(long(from.number())));
            sendrecv(link, &y, &x, to, from).trace()
        });
        clean(&plan.unwrap().verify(&Default::default()));
    }
}
