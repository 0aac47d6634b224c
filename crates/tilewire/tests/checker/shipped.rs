//! Every schedule that ships: clean, decided, for all small worlds; and every mutation of every one is caught.

use crate::clean;
use tilewire::check::{Mutation, Settings};
use tilewire::rehearsal::shipped;

#[test]
fn every_schedule_is_clean_and_decided() {
    for ranks in 2..=5 {
        for blocks in 1..=3 {
            for case in shipped(ranks, blocks).unwrap() {
                println!("{} {}: {ranks} ranks, {blocks} blocks", case.collective, case.name);
                clean(&case.plan.verify(&Settings::default()));
                let one_copy = Settings { most_copies: 1, ..Settings::default() };
                clean(&case.plan.verify(&one_copy));
            }
        }
    }
}

#[test]
fn eight_ranks_are_clean() {
    for case in shipped(8, 1).unwrap() {
        clean(&case.plan.verify(&Settings::default()));
    }
}

#[test]
fn every_mutation_of_every_schedule_is_caught() {
    let mut missed = Vec::new();
    let mut counts = vec![0; Mutation::all().len()];
    for (ranks, blocks) in [(2, 1), (2, 2), (3, 2)] {
        for case in shipped(ranks, blocks).unwrap() {
            let exempt = |mutation: &Mutation| case.exempt.contains(mutation);
            for (i, &mutation) in Mutation::all().iter().enumerate().filter(|(_, mutation)| !exempt(mutation)) {
                for mutant in case.plan.mutants(mutation) {
                    counts[i] += 1;
                    let report = mutant.verify(&Settings::default());
                    if report.is_clean() {
                        missed.push(format!("{} ({ranks} ranks, {blocks} blocks): {mutant}", case.name));
                    } else {
                        println!("{}: {mutant}: {}", case.name, report.faults[0].fault.kind());
                    }
                }
            }
        }
    }
    for (mutation, count) in Mutation::all().iter().zip(counts) {
        println!("{mutation}: {count} mutants");
    }
    assert!(missed.is_empty(), "not caught:\n{}", missed.join("\n"));
}
