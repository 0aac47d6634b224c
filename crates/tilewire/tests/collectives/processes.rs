//! The same among processes: a named part.
#![cfg(target_os = "linux")]

use crate::exchanges::back_to_back;
use crate::ranks::in_processes;

#[test]
fn alternating_exchanges_between_two_processes() {
    in_processes("processes::alternating_exchanges_between_two_processes", 2, back_to_back);
}

#[test]
fn alternating_exchanges_among_four_processes() {
    in_processes("processes::alternating_exchanges_among_four_processes", 4, back_to_back);
}
