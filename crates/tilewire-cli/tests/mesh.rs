//! `--transport loop` and `--transport mesh` as users meet them: ranks that post to each other.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The status, stdout and stderr of a command, outside any launcher.
fn tilewire(line: &str) -> (i32, String, String) {
    tilewire_with(line, &[])
}

/// The same with more variables in the environment.
fn tilewire_with(line: &str, variables: &[(&str, &Path)]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
    command.args(line.split_whitespace()).envs(variables.iter().copied()).stdin(Stdio::null());
    for variable in ["TILEWIRE_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"] {
        command.env_remove(variable);
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().expect("no signal ended it"), text(stdout), text(stderr))
}

/// The output of a command that succeeds and prints nothing else.
#[track_caller]
fn holds(line: &str) -> String {
    let (code, out, err) = tilewire(line);
    assert_eq!((code, err.as_str()), (0, ""), "tilewire {line}\n{out}");
    out
}

#[test]
fn collectives_are_run_over_every_arrangement_of_domains() {
    for (line, over) in [
        ("run all_to_all --transport loop --ranks 3 --hook transpose --bytes 4KiB", "loop"),
        ("run all_reduce --transport mesh --ranks 4 --dtype bf16 --bytes 100KiB", "mesh 0,1|2,3"),
        ("run all_gather --transport mesh --domains 0,2|1,3 --hook quantise --bytes 4KiB", "mesh 0,2|1,3"),
        ("run all_gather --transport mesh --domains 0|1,2 --algorithm two-level --bytes 64KiB", "mesh 0|1,2"),
        (
            "run broadcast --transport mesh --ranks 4 --algorithm two-level --hook transpose --bytes 4KiB",
            "mesh 0,1|2,3",
        ),
        ("run sendrecv --transport mesh --domains 1|0 --protocol direct --bytes 1MiB", "mesh 1|0"),
        ("run gather --transport mesh --domains 0|1,2 --protocol packet --bytes 64", "mesh 0|1,2"),
        ("run scatter --transport loop --ranks 2 --shuffle 8 --bytes 64KiB", "loop, shuffled by 8"),
    ] {
        let out = holds(&format!("{line} --launches 3"));
        assert!(out.ends_with(&format!("every byte right over {over}\n")), "{line}: {out}");
    }
}

/// Plans that ask for packets or windows use slots instead. Among all collectives, only one form of all-reduce needs
/// packets.
#[test]
fn collectives_are_verified_over_a_mesh() {
    let out = holds("verify --transport mesh --domains 0,2|1,3 --quick --sample 60");
    for name in ["all_to_all", "all_reduce", "scatter"] {
        assert!(out.lines().any(|line| line.starts_with(name)), "no {name} in\n{out}");
    }
    assert!(!out.contains("random programs"), "those know no transport:\n{out}");
    let out = holds("verify all_reduce --transport loop --ranks 2 --quick --sample 40");
    assert!(out.contains("times, as in: ") && out.contains("far peers take none: use two-phase or ring"), "{out}");
}

/// The first of the thousand seeds of `tilewire verify --transport mesh --seeds 1000`.
#[test]
fn every_schedule_holds_with_reordered_posts() {
    let out = holds("verify --transport mesh --domains 0,2|1 --seeds 20");
    let again = holds("verify --transport loop --ranks 2 --shuffle 21 --seeds 10");
    for name in "sendrecv all_to_all all_gather reduce_scatter all_reduce broadcast gather scatter".split(' ') {
        for out in [&out, &again] {
            assert!(out.lines().any(|line| line.starts_with(name)), "no {name} in\n{out}");
        }
    }
}

/// Figures depend on the machine. A busy one may produce no row.
#[test]
fn benchmarks_say_their_transport() {
    for (line, words) in [
        ("bench all_gather --transport mesh --domains 0|1 --sizes 8,64KiB --quick", "64KiB on 2 ranks over mesh"),
        ("bench all_gather --transport mesh --domains 0,1|2 --sizes 64KiB --quick", "64KiB on 3 ranks over mesh"),
        ("bench all_reduce --transport loop --sizes 8,64KiB --quick", "64KiB on 2 ranks over loop"),
        ("bench sendrecv --transport loop --sizes 64KiB --quick", "64KiB between threads over loop"),
    ] {
        let (code, out, err) = tilewire(line);
        assert_eq!(code, 0, "tilewire {line}: {err}");
        assert!(out.contains(words) && !out.contains("direct"), "{out}");
    }
}

/// Threads, each with an endpoint of its own, as ranks on a GPU are joined.
#[test]
fn threads_are_joined_by_the_provider_that_is_named() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for (line, over) in [
        (
            "run all_to_all --transport mesh --domains 0,1|2,3 --provider tcp --bytes 64KiB",
            "mesh 0,1|2,3 by tcp, 4 threads",
        ),
        (
            "run all_reduce --transport mesh --domains 0|1|2 --provider shm --bytes 64KiB",
            "mesh 0|1|2 by shm, 3 threads",
        ),
        ("run sendrecv --transport mesh --domains 1|0 --protocol direct --provider tcp", "mesh 1|0 by tcp, 2 threads"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
        command.args(line.split_whitespace()).args(["--launches", "3"]).env("TILEWIRE_LIBFABRIC", library);
        let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
        let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        let (over, threads) = over.split_once(", ").unwrap();
        assert!(status.success() && out.ends_with(&format!("every byte right over {over}\n")), "{line}: {out}{err}");
        let provider = over.rsplit(' ').next().unwrap();
        assert!(out.contains(threads) && err.contains(&format!("joined by {provider}")), "{line}: {out}{err}");
    }
}

/// Between processes. Rivals that are not installed have their rows, too.
#[test]
fn benchmarks_over_a_network_have_a_row_for_every_rival() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let both = ["Open MPI, TCP", "Open MPI, libfabric"];
    for (line, words) in [
        (
            "bench sendrecv --transport fabric --sizes 256KiB --quick",
            &[
                "ping-pong, 8B among 2 processes over tcp",
                "one way, 256KiB among 2 processes over tcp",
                "direct",
                "staged",
                "fi_inject_writedata",
                "fi_writedata, 8 under way",
                "raw TCP",
            ][..],
        ),
        ("bench sendrecv --transport fabric --provider shm --sizes 64KiB --quick", &["over shm", "staged"]),
        (
            "bench all_reduce --transport fabric --ranks 3 --sizes 64KiB --quick",
            &["all_reduce, 64KiB among 3 processes"],
        ),
        (
            "bench all_to_all --transport fabric --sizes 64KiB --quick",
            &["all_to_all, 64KiB among 2 processes", "direct"],
        ),
    ] {
        let (code, out, err) = tilewire_with(line, &[("TILEWIRE_LIBFABRIC", library)]);
        assert_eq!(code, 0, "tilewire {line}: {err}");
        for word in words.iter().chain(&both) {
            assert!(out.contains(word), "tilewire {line}: no '{word}' in\n{out}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_with_its_values() {
    for (line, word) in [
        ("run all_to_all --transport mesh --domains 0,1|1,2", "rank 1 is listed twice"),
        ("run all_to_all --transport mesh --domains 0,1|5 --ranks 3", "--domains 0,1|5 does not list 2 and lists 5"),
        ("verify --transport mesh --domains zero|1", "'zero' is not a rank"),
        ("bench all_gather --transport loop --domains 0|1", "--domains 0|1 is for --transport mesh, not loop"),
        ("run all_reduce --transport loop --world processes", "--world processes: --transport loop joins threads"),
        ("run all_reduce --transport loop --ranks 2 --bytes 64 --algorithm one-shot", "far peers take none"),
        ("run all_gather --ranks 2 --bytes 64 --algorithm two-level", "a two-level all_gather is not possible here"),
        (
            "run gather --transport mesh --ranks 4 --algorithm two-level",
            "there is no two-level gather; there are one-shot",
        ),
        ("check all --domains 0|1", "--domains 0|1 is for --transport mesh, not shm"),
        ("check all --transport nvl", "invalid value 'nvl' for '--transport"),
        ("launch -n 2 -- tilewire run all_gather --transport loop", "--world env: --transport loop joins threads"),
    ] {
        let line = line.replace("-- tilewire", &format!("-- {}", env!("CARGO_BIN_EXE_tilewire")));
        let (code, _, err) = tilewire(&line);
        assert_eq!(code, 2, "tilewire {line}: {err}");
        assert!(err.contains(word), "tilewire {line}: no '{word}' in\n{err}");
    }
}

/// Commands that take domains, without them.
const WITH_DOMAINS: [&str; 4] = [
    "run all_gather --bytes 64",
    "verify all_gather --quick",
    "check all_gather",
    "bench all_gather --sizes 8 --quick",
];

#[test]
fn domains_that_are_no_partition_are_refused_by_every_command() {
    for (domains, word) in [
        ("--domains 0,1|1,2", "rank 1 is listed twice"),
        ("--domains 0,1|3", "--domains 0,1|3 does not list 2 and lists 3"),
        ("--domains 0,1|", "a rank is missing in ''"),
        ("--domains 0,,1", "a rank is missing in '0,,1'"),
        ("--domains 0,1|2,3 --ranks 3", "--domains 0,1|2,3 lists 3: 3 ranks are 0 to 2"),
        ("--domains 0,1|2 --ranks 4", "--domains 0,1|2 does not list 3: 4 ranks are 0 to 3"),
        ("--domains 0;1", "'0;1' is not a rank"),
        ("--domains 0|64", "'64' is not a rank from 0 to 63"),
    ] {
        for command in WITH_DOMAINS {
            let line = format!("{command} --transport mesh {domains}");
            let (code, out, err) = tilewire(&line);
            assert_eq!((code, out.as_str()), (2, ""), "tilewire {line}: {err}");
            assert!(err.contains(word), "tilewire {line}: no '{word}' in\n{err}");
        }
    }
}

#[test]
fn schedules_are_checked_over_the_domains_that_are_given() {
    for (line, over) in [
        ("check all --transport loop", "sendrecv two values, narrow tiles, loop: clean, decided"),
        ("check all --transport mesh --domains 0,2|1 --blocks 1", "all_reduce ring, mesh 0,2|1: clean, decided"),
        (
            "check all_gather --transport mesh --ranks 4 --blocks 1",
            "all_gather two-level, mesh 0,1|2,3: clean, decided",
        ),
        ("check all_gather --transport mesh --domains 0,1 --blocks 1", "all_gather ring, mesh 0,1: clean, decided"),
    ] {
        let out = holds(line);
        assert!(out.contains(over), "{line}: no '{over}' in\n{out}");
        let count = out.lines().filter(|line| line.contains(": clean, decided")).count();
        let sums = format!("schedules checked: {count}, decided: {count}, not clean: 0\n");
        assert!(count > 1 && out.ends_with(&sums), "{line}: {out}");
    }
    // Only mistakes that need no posts. Without a transport, both kinds.
    let (near, all) = (holds("check broadcast --transport shm --blocks 1"), holds("check broadcast --blocks 1"));
    assert!(!near.contains("posted") && all.contains("broadcast staged, posted: clean"), "{near}\n{all}");
    // Mistakes that only posts can have.
    let mutated = holds("check sendrecv --transport loop --blocks 1 --mutate wrong-line");
    assert!(mutated.contains("sendrecv staged, loop: ") && mutated.contains(", not found: 0\n"), "{mutated}");
    let (code, _, err) = tilewire("check all --transport mesh --domains 0");
    assert!(code == 2 && err.contains("--domains 0: the checker is for 2 to 64 ranks"), "{err}");
}
