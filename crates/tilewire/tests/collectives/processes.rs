//! The same among processes: a named part.
#![cfg(target_os = "linux")]

use crate::exchanges::back_to_back;
use crate::ranks::in_processes;
use crate::reductions;

#[test]
fn alternating_exchanges_between_two_processes() {
    in_processes("processes::alternating_exchanges_between_two_processes", 2, back_to_back);
}

#[test]
fn alternating_exchanges_among_four_processes() {
    in_processes("processes::alternating_exchanges_among_four_processes", 4, back_to_back);
}

#[test]
fn random_reductions_among_three_processes() {
    in_processes("processes::random_reductions_among_three_processes", 3, reductions::back_to_back);
}
