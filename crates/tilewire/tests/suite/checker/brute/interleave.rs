//! All interleavings of a small program, and their results.
//!
//! The few lines below run the steps, not the evaluator. States that are equal, including everything that is known in
//! them, are continued only once. Races are judged in two ways:
//!
//! - **By meeting**: a state in which two parties can each take a step, and the two steps conflict. This needs no
//!   notion of order. It is the definition of a race if all order comes from signals, waits and tests, because these
//!   hold the later access back until it is ordered.
//! - **By order**: an access conflicts with an earlier one that is not *known* to its party. The known events follow
//!   from the rules of the memory model (`posted.rs` has those of posts): a party knows all of its own events; a reader
//!   of a signal knows what the signal published; a credit shows that events are over, not their effects; a packet
//!   shows its own put and nothing before it; atomics that release show it to those that acquire, along a chain of
//!   atomics on the same bytes that agree in scope. A wait learns from the signal **that it reads**, whichever that is.
//!   Other interleavings read other signals. Judging by meeting misses races if steps are held back by something that
//!   orders nothing: packets, credits, and atomics that are relaxed or of too small a scope.
//!
//! Two accesses that meet are never known to each other. So a race by meeting is always a race by order. Without
//! credits, packets and atomics that synchronise, the two are the same. `search` checks the first statement, the test
//! the second.
//!
//! Memory is of two kinds ([`Reads`]). In the first kind a wait or a test finds the latest value. In the second kind it
//! finds any value that is not older than one its party knows. Real machines are of the second kind. The checker claims
//! that programs it *decides* behave the same in both. Of other programs it runs interleavings of the first kind. Two
//! effects are left out: atomics of one party on different bytes that change places (load buffering), and gets of a
//! packet that was overwritten, which is a race anyway.

use super::events::Event;
use super::program::Program;
use super::steps::{Step, World};
use std::collections::HashSet;

/// The values that waits and tests may find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    Latest,
    /// Any value that is not older than one the party knows.
    AnyNotHidden,
}

/// The results of all interleavings.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Shown {
    pub race: bool,
    /// The races, judged by meeting.
    pub met: bool,
    /// Two accesses that are no race but that the checker may call one: see [`Event::may_be_said_to_race`], and packets
    /// whose bytes are known only by a signal of the party that got them.
    pub stricter: bool,
    pub deadlock: bool,
    /// Two parties set one slot, and nothing orders them.
    pub writers: bool,
    /// A slot or a flag that does not grow.
    pub shrinks: bool,
    /// A rank writes memory that another rank has bound as its input or its output.
    pub promise: bool,
    /// A race for bytes that decide which party continues. The rest of the program then depends on the schedule.
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

/// The result of running every interleaving, with all copies of the roles and with one. `None` if there are more than
/// this many states.
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
