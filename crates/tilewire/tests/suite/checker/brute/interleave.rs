//! All interleavings of a small program, and what they show.
//!
//! The steps are run by the few lines below, not by the evaluator. States that are equal, with all that is known in
//! them, are gone on from once. Races are judged in two ways:
//!
//! - **By meeting**: a state in which two parties can each take a step, and the two conflict. This needs no notion of
//!   order at all. It is what a race is where all order comes from signals, waits and tests: those hold the later
//!   access back until it is ordered.
//! - **By order**: an access conflicts with an earlier one that is not *known* to its party. What is known is a set of
//!   events, made by the rules of the memory model (those of posts are in `posted.rs`): all of one's own; what a signal
//!   published to whoever reads it; what a credit says to be over, not visible; of a packet the put itself and nothing
//!   before it; what atomics release to those that acquire, along a chain of atomics on the same bytes that agree in
//!   scope. A wait learns from the signal **that it reads**, whichever that is: other interleavings read others.
//!   Meeting sees too little where steps are held back by something that orders nothing: packets, credits, atomics that
//!   are relaxed or of too small a scope.
//!
//! Two accesses that meet are never known to each other, so the first kind of race is one of the second kind, always;
//! without credits, packets and atomics that synchronise, both are the same. `search` checks the one, the test the
//! other.
//!
//! And memory is of two kinds ([`Reads`]): one in which a wait or a test finds the latest value, and one in which it
//! finds any value that is not older than one its party knows of. The second is what machines do. The checker claims
//! that programs it *decides* are the same in both; of others it runs interleavings of the first kind. Two things are
//! left out: atomics of one party on different bytes that change places (load buffering), and gets of a packet that was
//! overwritten, which is a race anyway.

use super::events::Event;
use super::program::Program;
use super::steps::{Step, World};
use std::collections::HashSet;

/// Which values waits and tests may find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    Latest,
    /// Any that is not older than one the party knows of.
    AnyNotHidden,
}

/// What all interleavings show.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Shown {
    pub race: bool,
    /// The same, judged by meeting.
    pub met: bool,
    /// Two accesses that are no race, and that the checker may call one: see [`Event::may_be_said_to_race`], and
    /// packets whose bytes are known only by a signal of the party that got them.
    pub stricter: bool,
    pub deadlock: bool,
    /// Two who set one slot, and nothing orders them.
    pub writers: bool,
    /// A slot or a flag that does not grow.
    pub shrinks: bool,
    /// A rank writes what another has bound as its input or its output.
    pub promise: bool,
    /// A race for bytes that decide who goes on: what the rest of the program does depends on the schedule.
    pub control: bool,
}

impl Shown {
    pub fn is_clean(&self) -> bool {
        Shown { stricter: false, ..*self } == Shown::default()
    }

    fn join(&mut self, other: Shown) {
        self.race |= other.race;
        self.met |= other.met;
        self.stricter |= other.stricter;
        self.deadlock |= other.deadlock;
        self.writers |= other.writers;
        self.shrinks |= other.shrinks;
        self.promise |= other.promise;
        self.control |= other.control;
    }
}

/// What running every interleaving shows, with all copies of the roles and with one; nothing where there are more than
/// so many states.
pub fn all_interleavings(program: &Program, reads: Reads, most: usize) -> Option<Shown> {
    let mut shown = search(program, reads, most)?;
    if program.copies() > 1 {
        shown.join(search(&program.with_one_copy(), reads, most)?);
    }
    Some(shown)
}

fn search(program: &Program, reads: Reads, most: usize) -> Option<Shown> {
    let world = World::new(program, reads);
    let (mut shown, mut first) = (Shown::default(), world.start());
    world.end_launch(&mut first, &mut shown);
    let (mut seen, mut open) = (HashSet::from([first.clone()]), vec![first]);
    while let Some(state) = open.pop() {
        let steps: Vec<Step> = (0..program.parties.len() * 2).flat_map(|party| world.steps(&state, party)).collect();
        let event = |step: &Step| &world.events.all[step.event];
        let meet = |a: &Event, b: &Event| a.conflicts(b) || b.conflicts(a);
        shown.met |= (0..steps.len()).any(|i| steps[..i].iter().any(|b| meet(event(&steps[i]), event(b))));
        if steps.is_empty() {
            shown.deadlock |= !(0..program.parties.len()).all(|party| world.is_done(&state, party));
        }
        for step in steps {
            let mut next = state.clone();
            world.take(&mut next, step, &mut shown);
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
        if seen.len() > most {
            return None;
        }
    }
    assert!(shown.race || !shown.met, "accesses that meet are not ordered: {program:?}");
    Some(shown)
}
