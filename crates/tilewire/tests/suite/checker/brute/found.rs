//! Small programs written by hand, for the comparison: what all interleavings show of them, and what the checker says.

use super::program::{Party, Place, Program, Small, Touch};
use super::{MOST_STATES, Reads, Shown, all_interleavings, said};
use tilewire::check::{Certainty, Report, Settings};
use tilewire::ir::{Order, Scope};

const fn load(word: usize) -> Small {
    Small::Plain(Touch { at: Place::Word(word), write: None })
}

const fn store(word: usize) -> Small {
    Small::Plain(Touch { at: Place::Word(word), write: Some(1) })
}

const fn signal(slot: usize, value: u64) -> Small {
    Small::Signal { slot, value, credit: false }
}

const fn credit(slot: usize, value: u64) -> Small {
    Small::Signal { slot, value, credit: true }
}

const fn wait(slot: usize, value: u64) -> Small {
    Small::Wait { slot, value }
}

const fn store_unless(slot: usize, value: u64, word: usize) -> Small {
    Small::Test { slot, value, there: false, then: Touch { at: Place::Word(word), write: Some(1) } }
}

const fn put(packet: usize, flag: u32) -> Small {
    Small::Packets { count: 1, put: Some((packet, flag)), get: None, get_first: false }
}

const fn get(packet: usize, flag: u32) -> Small {
    Small::Packets { count: 1, put: None, get: Some((packet, flag)), get_first: false }
}

/// One rank for each of these lists of ops.
fn program(ranks: &[&[Small]]) -> Program {
    let party = |(rank, ops): (usize, &&[Small])| Party { rank, block: 0, role: 0, copy: 0, ops: ops.to_vec() };
    Program { parties: ranks.iter().enumerate().map(party).collect(), tensor: None }
}

fn judged(ranks: &[&[Small]]) -> (Report, [Shown; 2]) {
    let program = program(ranks);
    let settings = Settings { cumulative: true, across_launches: true, ..Settings::default() };
    let report = program.trace().unwrap().plan().verify(&settings);
    let reads = [Reads::Latest, Reads::AnyNotHidden];
    (report, reads.map(|reads| all_interleavings(&program, reads, MOST_STATES).expect("a small program")))
}

#[test]
fn a_wait_for_a_signal_may_find_the_credit_of_another() {
    let sender: &[Small] = &[store(0), signal(0, 1)];
    let (report, [latest, _]) = judged(&[sender, &[wait(0, 1), credit(0, 2)], &[wait(0, 1), load(0)]]);
    assert!(latest.race);
    assert!(said(&report).race, "{report}");
}

#[test]
fn a_wait_for_a_signal_may_find_one_that_only_a_credit_orders_after_it() {
    let sender: &[Small] = &[store(0), signal(0, 1), credit(1, 1)];
    let (report, [latest, _]) = judged(&[sender, &[wait(1, 1), signal(0, 2)], &[wait(0, 1), load(0)]]);
    assert!(latest.race);
    // Two writers that nothing orders, at the beginning.
    assert!(said(&report).writers, "{report}");
}

#[test]
fn two_who_signal_and_then_look_may_both_come_first() {
    let (report, [latest, any]) = judged(&[
        &[signal(0, 1), store_unless(1, 1, 0), wait(1, 1)],
        &[signal(1, 1), store_unless(0, 1, 0), wait(0, 1)],
    ]);
    assert!(latest.is_clean() && any.race, "{latest:?} {any:?}");
    // Interleavings do not show it. So the report must not claim that all interleavings are everything.
    assert!(matches!(report.certainty, Certainty::Sampled { exhausted: false, .. }), "{report}");
}

#[test]
fn a_packet_does_not_hurry_a_signal() {
    let sender: &[Small] = &[signal(0, 1), store(0), signal(0, 2), put(0, 1)];
    let (report, [latest, any]) = judged(&[sender, &[get(0, 1), wait(0, 1), load(0)]]);
    assert!(latest.is_clean() && any.race, "{latest:?} {any:?}");
    assert!(said(&report).race && report.is_decided(), "{report}");
}

#[test]
fn a_plain_read_of_a_slot_and_a_wait_are_two_reads() {
    let read = Small::Plain(Touch { at: Place::Slot(0), write: None });
    let (report, [latest, any]) = judged(&[&[read, signal(0, 1)], &[store_unless(0, 2, 0), wait(0, 1)]]);
    assert!(latest.is_clean() && any.is_clean());
    assert!(said(&report).is_clean(), "{report}");
}

#[test]
fn whoever_got_a_packet_may_tell_another_that_it_came() {
    let (report, [latest, any]) =
        judged(&[&[put(0, 1), get(0, 2)], &[get(0, 1), signal(0, 1)], &[wait(0, 1), put(0, 2)]]);
    assert!(latest.is_clean() && any.is_clean());
    assert!(said(&report).is_clean() && report.is_decided(), "{report}");
}

#[test]
fn a_wait_for_a_signal_may_find_that_of_one_who_saw_nothing_of_it() {
    let (report, [latest, _]) = judged(&[
        &[store(0), signal(0, 1)],
        &[wait(0, 1), credit(1, 1)],
        &[wait(1, 1), signal(0, 2)],
        &[wait(0, 1), load(0)],
    ]);
    assert!(latest.race);
    assert!(said(&report).race && report.is_decided(), "{report}");
}

#[test]
fn a_wait_that_is_repeated_keeps_what_the_first_one_found() {
    let waiter: &[Small] = &[wait(0, 1), signal(2, 1), wait(0, 1)];
    let (report, [latest, any]) = judged(&[&[credit(0, 1)], waiter, &[wait(2, 1), credit(0, 2)]]);
    assert!(latest.is_clean() && any.is_clean());
    assert!(said(&report).is_clean() && report.is_decided(), "{report}");
}

#[test]
fn a_release_shows_what_its_own_party_added_at_a_smaller_scope() {
    let add = |order, scope| Small::Add { at: Place::Slot(0), x: 1, order, scope, then: None };
    let adds = |order| [add(Order::Relaxed, Scope::Block), add(order, Scope::System)];
    let (report, [latest, any]) = judged(&[&adds(Order::Release), &[wait(0, 2)]]);
    assert!(latest.is_clean() && any.is_clean());
    assert!(said(&report).is_clean(), "{report}");
    let (report, [latest, _]) = judged(&[&adds(Order::Relaxed), &[wait(0, 2)]]);
    assert!(latest.race && said(&report).race, "{report}");
}
