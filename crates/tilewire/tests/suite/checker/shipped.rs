//! Every shipped schedule is clean and decided in all small worlds, and every mutation of every schedule is caught at
//! the right lines.

use crate::checker::clean;
use crate::checker::mutations::OF_POSTS;
use std::collections::HashMap;
use std::path::Path;
use tilewire::check::{Event, Mutation, Settings};
use tilewire::rehearsal::Rehearsal;
use tilewire::{Tensor, all_gather, all_to_all};
use tilewire_testkit::shipped::{posted, shipped};

/// Checks with all copies of a role, and with the one that the CPU engine runs.
fn all_clean(ranks: usize, blocks: usize) {
    let (mut copied, mut cases) = (0, 0);
    // In larger worlds, too.
    let settings = Settings { one_copy_ranks: u32::MAX, ..Settings::default() };
    for case in shipped(ranks, blocks) {
        println!("{} {}: {ranks} ranks, {blocks} blocks", case.collective, case.name);
        let plan = case.plan().unwrap();
        assert!(plan.launches() >= 3, "launched too seldom");
        let report = plan.verify(&settings);
        clean(&report);
        // Most plans have one copy of every role anyway. A second run would be the same.
        assert_eq!(report.schedules, if plan.most_copies() > 1 { 2 } else { 1 });
        (copied, cases) = (copied + u32::from(plan.most_copies() > 1), cases + 1);
    }
    println!("{cases} cases of {ranks} ranks and {blocks} blocks are decided");
    assert!(copied > 0, "nothing has copies");
    assert_eq!(cases, CASES, "a case was added or lost: say so here");
}

/// The number of shipped schedules, all of them decided.
const CASES: u32 = 86;

#[test]
fn every_schedule_is_clean_and_decided() {
    for (ranks, blocks) in (2..=5).flat_map(|ranks| (1..=3).map(move |blocks| (ranks, blocks))) {
        all_clean(ranks, blocks);
    }
}

/// Everything that travels by posts, among far peers and among near and far ones.
#[test]
fn every_posted_schedule_is_clean_and_decided() {
    for (ranks, blocks) in [(2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (5, 1)] {
        let cases = posted(ranks, blocks);
        let worlds = [(1, 0), (2, if ranks == 3 { 3 } else { 4 })][usize::from(ranks > 2)];
        let must = POSTED * worlds.0 + TWO_LEVEL * worlds.1;
        assert_eq!(cases.len(), must, "a case was added or lost: say so here");
        for case in cases {
            println!("{} {}: {ranks} ranks, {blocks} blocks", case.collective, case.name);
            clean(&case.plan().unwrap().verify(&Settings::default()));
        }
    }
}

/// A new schedule gets such cases automatically, or `posted.rs` says why not.
#[test]
fn every_schedule_has_a_posted_and_a_mixed_case() {
    let posted: Vec<(&str, String)> = posted(3, 1).into_iter().map(|case| (case.collective, case.name)).collect();
    let mut without = Vec::new();
    for case in shipped(3, 1) {
        // Schedules into windows have two cases: in place, and through an outbox.
        let names = [case.name.clone(), format!("{} in place", case.name), format!("{}, in place", case.name)];
        let is_there =
            |links: &str| names.iter().any(|name| posted.contains(&(case.collective, format!("{name}, {links}"))));
        if !is_there("posted") || !is_there("mixed") {
            without.push(format!("{} {}", case.collective, case.name));
        }
    }
    let must = [
        // Far peers take no packets and map no windows. These schedules are refused, or have no flags.
        "sendrecv packet, last flags",
        "all_reduce one-shot",
        "all_reduce one-shot, in one pass",
        "all_reduce one-shot, in one pass, in place",
        "all_reduce one-shot, in one pass, last flags",
        "all_reduce direct, one-shot",
    ];
    assert_eq!(without, must);
}

/// Everything that posts carry between two ranks. With more blocks or ranks: `direct` into windows of far peers,
/// through outboxes and from inputs, a staged schedule, and the ones written by hand. `tilewire check all --mutate all`
/// has the others.
#[test]
fn mutations_of_posted_schedules_are_caught() {
    let (mut missed, mut seen) = (Vec::new(), Vec::new());
    let settings = Settings { first_fault: true, ..Settings::default() };
    for (ranks, blocks) in [(2, 1), (2, 2), (3, 1)] {
        let is_small = (ranks, blocks) == (2, 1);
        let larger = ["direct through", "direct in place", "staged, posted", "staged, mixed", "by hand"];
        let is_wanted = |name: &str| is_small || larger.iter().any(|larger| name.starts_with(larger));
        for case in posted(ranks, blocks).into_iter().filter(|case| is_wanted(&case.name)) {
            let plan = case.plan().unwrap();
            for &mutation in Mutation::all() {
                for mutant in plan.mutants(mutation) {
                    seen.push(mutation);
                    if mutant.verify(&settings).is_clean() {
                        missed.push(format!(
                            "{} {} ({ranks} ranks, {blocks} blocks): {mutant}",
                            case.collective, case.name
                        ));
                    }
                }
            }
        }
    }
    assert!(missed.is_empty(), "{} made, not caught:\n{}", seen.len(), missed.join("\n"));
    for wanted in OF_POSTS {
        assert!(seen.contains(&wanted), "{wanted} applies nowhere");
    }
}

/// The number of schedules that posts carry, and of those in two levels for each arrangement of domains.
const POSTED: usize = 93;
const TWO_LEVEL: usize = 6;

/// Two domains of three ranks. Each relay passes on several chunks in one lane.
#[test]
fn two_levels_of_six_and_seven_ranks_are_clean_and_decided() {
    for (ranks, blocks) in [(6, 1), (7, 2)] {
        for case in posted(ranks, blocks).into_iter().filter(|case| case.name.starts_with("two-level")) {
            println!("{} {}: {ranks} ranks, {blocks} blocks", case.collective, case.name);
            clean(&case.plan().unwrap().verify(&Settings::default()));
        }
    }
}

/// `check all --ranks N --mutate all` does so for everything that posts carry.
#[test]
fn every_mutation_of_two_levels_is_caught() {
    let mut made = 0;
    for case in posted(4, 1).into_iter().filter(|case| case.name.starts_with("two-level")) {
        let plan = case.plan().unwrap();
        for mutant in Mutation::all().iter().flat_map(|&mutation| plan.mutants(mutation)) {
            made += 1;
            let report = mutant.verify(&Settings::default());
            assert!(!report.faults.is_empty(), "{} {}: {mutant} is missed", case.collective, case.name);
        }
    }
    assert!(made > 100, "{made} mistakes");
}

#[test]
fn eight_ranks_are_clean() {
    (1..=3).for_each(|blocks| all_clean(8, blocks));
}

#[test]
fn every_mutation_of_every_schedule_is_caught() {
    let (mut missed, mut wrong, mut sources) = (Vec::new(), Vec::new(), Sources::default());
    let mut counts = vec![0; Mutation::all().len()];
    for (ranks, blocks) in [(2, 1), (2, 2), (3, 2)] {
        for case in shipped(ranks, blocks) {
            let plan = case.plan().unwrap();
            for (i, &mutation) in Mutation::all().iter().enumerate() {
                for mutant in plan.mutants(mutation) {
                    counts[i] += 1;
                    let report = mutant.verify(&Settings::default());
                    let Some(found) = report.faults.first() else {
                        missed.push(format!("{} ({ranks} ranks, {blocks} blocks): {mutant}", case.name));
                        continue;
                    };
                    let others = found.fault.events().into_iter().filter(|event| !sources.says(event));
                    wrong.extend(others.map(|event| format!("{mutant}: {event}")));
                    println!("{}: {mutant}: {} ({} schedules)", case.name, found.fault.kind(), report.schedules);
                }
            }
        }
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "another op stands at the line of:\n{}", wrong.join("\n"));
    assert!(missed.is_empty(), "not caught:\n{}", missed.join("\n"));
    for (mutation, count) in Mutation::all().iter().zip(counts) {
        println!("{mutation}: {count} mutants");
        // These rehearsals reach every peer by stores.
        assert_eq!(count > 0, !OF_POSTS.contains(mutation), "{mutation} applies to nothing that ships, or should not");
    }
}

/// Larger worlds with a few schedules: rings, trees and all-to-all, of odd and even numbers of ranks. `tilewire check
/// all --ranks N --mutate all` runs all of them.
#[test]
fn mutations_of_five_and_of_eight_ranks_are_caught() {
    let (mut made, mut missed) = (0, Vec::new());
    let settings = Settings { first_fault: true, ..Settings::default() };
    for (ranks, wanted) in [(5, ["barrier", "all_gather", "broadcast"]), (8, ["barrier", "sendrecv", "scatter"])] {
        for collective in wanted {
            let case = shipped(ranks, 1).into_iter().find(|case| case.collective == collective).expect("it ships");
            let plan = case.plan().unwrap();
            for mutant in Mutation::all().iter().flat_map(|&mutation| plan.mutants(mutation)) {
                made += 1;
                if mutant.verify(&settings).is_clean() {
                    missed.push(format!("{} ({ranks} ranks): {mutant}", case.name));
                }
            }
        }
    }
    println!("{made} mutants");
    assert!(made > 50 && missed.is_empty(), "{made} made, not caught:\n{}", missed.join("\n"));
}

/// The source files of this crate.
#[derive(Default)]
struct Sources(HashMap<&'static str, String>);

impl Sources {
    /// True if an event's op is the one that its source line names. Hosts have no line. A schedule's signals and waits
    /// have the line that runs a step of it, or, if it has one step only, the line that calls it.
    fn says(&mut self, event: &Event) -> bool {
        let Some(at) = &event.at else { return event.party == Some("the host") };
        let text = self.0.entry(at.file).or_insert_with(|| {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
            std::fs::read_to_string(root.join(at.file)).unwrap_or_else(|error| panic!("{}: {error}", at.file))
        });
        let line = text.lines().nth(at.line as usize - 1).unwrap_or_default();
        // The most specific come first: a credit is a signal, and a packet is put.
        let words: [(&str, &[&str]); 12] = [
            ("signal_credit", &["credit(", "emptied(", "pipeline.step(", "receive.step("]),
            ("signal", &["signal(", "filled", "pipeline.step", "send.step", "send_direct", "recv_direct"]),
            ("wait", &["wait(", "free(", "wait_filled(", "arrived(", ".step", "send_direct", "recv_direct"]),
            ("bulk_copy", &["stages.put(", "stages.get("]),
            ("packet_put", &["packet_put("]),
            ("packet_get", &["packet_get("]),
            ("atomic_add", &["atomic_add("]),
            ("put", &["put(", "put_any(", "put_in(", "packet_clear("]),
            ("get", &["get(", "get_any(", "get_in("]),
            // A hook that was not given has the line of the call.
            ("load", &["load(", "reduce_scatter(", "all_reduce("]),
            ("store", &["store(", "all_to_all("]),
            ("each", &["each"]),
        ];
        if at.file.ends_with("shipped/puts.rs") && line.contains("ops.") {
            // A window operation is several ops: it also counts.
            return true;
        }
        let op = words.iter().find(|(op, _)| event.op.split([' ', '=']).any(|word| word == *op));
        op.is_some_and(|(_, written)| written.iter().any(|word| line.contains(word)))
    }
}

/// On any processor. The own chunk has no role, and is stored in the pass that sends.
#[test]
fn what_is_kept_while_it_is_sent_has_no_role_of_its_own() {
    let (ranks, one) = (3, 41);
    let link = &Rehearsal::small(ranks, 1).ranks()[0];
    let windows: Vec<Tensor<f32>> = (0..ranks).map(|_| Tensor::zeros(ranks * one)).collect();
    let (window, one, all) = (link.window(&windows), Tensor::<f32>::zeros(one), Tensor::<f32>::zeros(ranks * one));
    for keeps in [false, true] {
        for exchange in [all_gather(link, &windows[0], &one), all_to_all(link, &windows[0], &all)] {
            let exchange = exchange.window(&window).blocks(1);
            let traced = if keeps { exchange.keep_while_sending() } else { exchange }.trace().unwrap();
            let has_role = traced.kernel.roles.values().any(|role| role.name == "own");
            assert_eq!(has_role, !keeps, "{}", traced.kernel.name);
        }
    }
}
