//! The command line as its users and their scripts meet it: words in, text and exit status out.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output, Stdio};

fn tilewire(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
    command.args(line.split_whitespace());
    command
}

fn run(line: &str) -> (i32, String, String) {
    let Output { status, stdout, stderr } = tilewire(line).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().expect("no signal ended it"), text(stdout), text(stderr))
}

/// The output of a command that succeeds and prints no error.
#[track_caller]
fn succeeds(line: &str) -> String {
    let (code, out, err) = run(line);
    assert_eq!((code, err.as_str()), (0, ""), "tilewire {line}");
    out
}

/// Asserts that a command is refused with status 2 and a message that has all these words, and that nothing goes to
/// stdout.
#[track_caller]
fn refuses(line: &str, words: &[&str]) {
    let (code, out, err) = run(line);
    assert_eq!((code, out.as_str()), (2, ""), "tilewire {line}");
    for word in words {
        assert!(err.contains(word), "tilewire {line}: no '{word}' in\n{err}");
    }
}

#[track_caller]
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no '{word}' in\n{text}");
    }
}

#[test]
fn help_and_version() {
    for line in ["--help", "-h", "help"] {
        has(&succeeds(line), &["Usage: tilewire [COMMAND]", "emit", "bench", "Exit status"]);
    }
    has(
        &succeeds("bench kernels --help"),
        &["Usage: tilewire bench kernels [OPTIONS]", "--sizes <LIST>", "--json <FILE>"],
    );
    has(&succeeds("bench --help"), &["all_to_all", "sendrecv", "kernels"]);
    has(
        &succeeds("run --help"),
        &["Usage: tilewire run [OPTIONS] <COLLECTIVE>", "--hook <HOOK>", "bias-gelu", "f8e4m3"],
    );
    assert_eq!(succeeds("--version"), format!("tilewire {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn what_is_not_understood_is_a_usage_error() {
    refuses("fly", &["unrecognized subcommand 'fly'", "Usage: tilewire", "'--help'"]);
    refuses("bnech kernels", &["similar subcommand", "'bench'"]);
    refuses("run all_to_all --hooks scale", &["similar argument", "'--hook'"]);
    refuses("emit copy", &["--ir", "--bytecode"]);
    refuses("emit copy --ptx --arch sm_70", &["'sm_70'", "sm_90a"]);
    refuses("verify --engine tpu", &["'tpu'", "cpu, cuda"]);
    refuses("bench", &["kernels"]);
    refuses("bench kernels --cases copy,fly", &["'fly'", "accumulate", "transpose", "build"]);
}

#[test]
fn checks_hold_and_mutations_are_caught() {
    let all = tilewire_testkit::shipped::shipped(2, 1).len() + tilewire_testkit::shipped::posted(2, 1).len();
    let summary = format!("schedules checked: {all}, decided: {all}, not clean: 0");
    let shown = succeeds("check all --ranks 2 --blocks 1");
    has(&shown, &["sendrecv staged: clean, decided", "sendrecv direct: clean", &summary]);
    // More ranks than a block of 2 KiB has slots for in a ring. Only the named schedule is built.
    has(&succeeds("check barrier --ranks 20"), &["20 ranks", "schedules checked: 3, decided: 3"]);
    let out = succeeds("check sendrecv --mutate drop-credit-wait --blocks 1");
    has(&out, &["drop-credit-wait at", "staged.rs", "race"]);
    let json = succeeds("check sendrecv --blocks 1 --json -");
    has(&json, &["{\"schema\":1,\"machine\":", "\"verdict\":\"clean\",\"certainty\":\"decided\""]);
    let (code, out, err) = run("check sendrecv --blocks 1 --steps 50");
    assert_eq!((code, err.as_str()), (3, ""), "{out}");
    has(&out, &["could not be checked: ", "not clean: 0"]);
    let (code, out, _) = run("check barrier --mutate drop-wait --steps 50");
    assert_eq!(code, 3, "{out}");
    refuses("check", &["<COLLECTIVE>"]);
    refuses("check all_too_all", &["'all_too_all'", "sendrecv", "'all_to_all'"]);
    refuses("check all --mutate fly", &["'fly'", "drop-wait", "reused-flag"]);
}

const KERNELS: [(&str, &[&str]); 8] = [
    ("copy", &["kernel copy blocks 1", "each", "load p0", "store p1"]),
    ("scale", &["scalar", "mul", "load", "store"]),
    ("accumulate", &["inout f32", "bf16", "cast", "add"]),
    ("quantise", &["group_max", "abs", "div", "rcp", "to f8e4m3", "select"]),
    ("gather", &["i32", "cast", "load"]),
    ("transpose", &["each", "input", "output", "mul"]),
    ("rmsnorm", &["group_sum", "rsqrt"]),
    ("message", &["role r0 send", "role r1 receive", "put", "get", "signal", "wait", "signal_credit"]),
];

#[test]
fn every_kernel_is_emitted() {
    for (kernel, words) in KERNELS {
        let traced = succeeds(&format!("emit {kernel} --ir"));
        has(&traced, words);
        assert!(traced.starts_with("kernel ") && !traced.contains(".rs:"), "{traced}");
        has(&succeeds(&format!("emit {kernel} --ir --lines")), &["kernels.rs:"]);
        has(&succeeds(&format!("emit {kernel} --simplified --ir")), &["kernel "]);
        let bytecode = succeeds(&format!("emit {kernel} --bytecode"));
        assert!(!bytecode.is_empty() && !bytecode.contains("kernel "), "{bytecode}");
        assert_eq!(succeeds(&format!("emit {kernel} --ir --bytecode")), traced + &bytecode);
        has(&succeeds(&format!("emit {kernel} --ptx --arch sm_80")), &[".target sm_80", ".visible .entry"]);
    }
}

#[test]
fn engines_are_verified() {
    let shown = succeeds("verify --programs 20 --quick --ranks 1,3");
    has(&shown, &["cpu, random programs", "differ", "all_to_all", "all_reduce", "scatter"]);
    // With a GPU it succeeds. Without one, it says so.
    match run("verify --engine cuda --programs 2 --ranks 1") {
        (0, out, _) => has(&out, &["cuda, random programs", "virtual ranks"]),
        (code, _, err) => {
            assert_eq!(code, 1);
            has(&err, &["CUDA driver"]);
        }
    }
}

#[test]
fn an_unknown_kernel_is_answered_with_those_there_are() {
    let names = KERNELS.map(|(name, _)| name);
    refuses("emit nothing --ir", &[&["no kernel 'nothing'"], &names[..]].concat());
    refuses("emit --ir", &[&["name a kernel"], &names[..]].concat());
}

/// The figures are not always short; `table.rs` has tests of real rows.
#[test]
fn what_is_printed_fits_a_hundred_columns() {
    for line in [
        "topo",
        "doctor",
        "check sendrecv",
        "check reduce_scatter",
        "verify sendrecv --sample 3 --ranks 2 --quick",
        "run reduce_scatter --world processes --launches 2 --hook accumulate",
        "soak --minutes 0.001 --ranks 2",
        "bench kernels --quick --sizes 64KiB",
        "bench sendrecv --quick --world threads",
        "bench all_to_all --quick --sizes 8,64KiB",
    ] {
        let (_, out, _) = run(line);
        assert!(!out.is_empty(), "{line}");
        out.lines().for_each(|text| assert!(text.chars().count() <= 100, "tilewire {line}:\n{text}"));
    }
}

#[test]
fn completions_are_printed_for_every_shell() {
    for (shell, word) in [("bash", "_tilewire"), ("zsh", "#compdef tilewire"), ("fish", "complete -c tilewire")] {
        has(&succeeds(&format!("completions {shell}")), &[word, "all_to_all", "completions"]);
    }
    refuses("completions tcsh", &["'tcsh'", "bash", "fish"]);
}

#[test]
fn a_size_that_is_none_is_named() {
    for size in ["64KB", "MiB", "-1", "1.5MiB", "0", "0KiB", "5GiB", "99999999999999999999"] {
        refuses(&format!("bench kernels --sizes 64KiB,{size}"), &[size.trim_end_matches("KiB")]);
    }
    refuses("bench kernels --sizes", &["a value is required", "--sizes"]);
}

#[test]
fn a_small_bench_reports_every_case() {
    let table = succeeds("bench kernels --sizes 1,5000 --cases copy,scale,accumulate,quantise,gather,empty,one,build");
    has(&table, &["copy", "scale f32", "f32 += bf16", "quantise f8e4m3", "gather f32", "empty launch", "one element"]);
    has(&table, &["trace + build", "ratio", "target", "5000B", "peak resident memory"]);
}

#[test]
fn the_json_report_has_the_documented_fields() {
    let json = succeeds("bench kernels --sizes 4KiB --cases copy,empty --json -");
    has(&json, &["\"schema\": \"tilewire-bench-1\"", "\"machine\": {", "\"rows\": ["]);
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["rows"].as_array().unwrap().len(), 2, "{json}");
    let rows: Vec<&str> =
        json.split_once("\"rows\": [").unwrap().1.split('}').filter(|row| row.contains('{')).collect();
    assert_eq!(rows.len(), 2, "{json}");
    let fields = "name engine transport protocol ranks blocks bytes place median_us gbps limit ratio samples spread_us target each";
    for row in rows {
        let mut rest = row;
        for field in fields.split(' ') {
            let key = format!("\"{field}\": ");
            let at = rest.find(&key).unwrap_or_else(|| panic!("no {field} at its place in {row}"));
            rest = &rest[at + key.len()..];
        }
    }
    let file = std::env::temp_dir().join(format!("tilewire-cli-{}.json", std::process::id()));
    has(&succeeds(&format!("bench kernels --sizes 4KiB --cases copy --json {}", file.display())), &["copy", "4KiB"]);
    has(&std::fs::read_to_string(&file).unwrap(), &["tilewire-bench-1", "\"bytes\": 4096"]);
    std::fs::remove_file(&file).unwrap();
    // The same rows for spreadsheets.
    let csv = succeeds("bench kernels --sizes 4KiB --cases copy,empty --csv -");
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, fields.replace(' ', ",").as_str()), "{csv}");
    assert!(lines[1].starts_with("copy,cpu,none,none,1,1,4096,local,"), "{csv}");
    for option in ["--json", "--csv"] {
        let (code, out, err) = run(&format!("bench kernels --cases empty {option} /nowhere/at/all"));
        assert_eq!((code, out.as_str()), (1, ""));
        has(&err, &["cannot write /nowhere/at/all"]);
    }
}

/// Two processes, so this also tests how the program starts its second rank. On a busy machine, all samples may be
/// rejected, so no figure is required.
#[test]
fn a_quick_bench_of_two_processes_reports_every_case() {
    let table = succeeds("bench sendrecv --quick --world processes --sizes 4KiB");
    has(&table, &["one way", "both ways", "ping-pong", "processes", "4KiB", "two-copy limit", "one-copy limit", "MPI"]);
    let json = succeeds("bench sendrecv --quick --world threads --cases latency --json -");
    has(&json, &["\"schema\": \"tilewire-bench-1\"", "\"rows\": ["]);
    refuses("bench sendrecv --cases fly", &["'fly'", "stream", "both", "latency"]);
}

#[test]
fn without_words_there_is_a_demonstration() {
    let text = succeeds("");
    has(
        &text,
        &[
            ".produce(|c| c.input.at(c.col(), c.row()))",
            "4194304 elements: every one equals a plain loop's, to the bit",
            "with the hook",
            "two passes",
            "clean, decided: 4 ranks, 3 launches",
            "race",
            "docs/README.md",
        ],
    );
}

/// A reader that stops early (`| head -1`) causes no error and no panic.
#[test]
fn a_closed_pipe_ends_it_quietly() {
    for line in ["emit quantise --ir", "--help", "", "bench kernels --sizes 64 --cases copy"] {
        let mut child = tilewire(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(0), ""), "tilewire {line}");
    }
    let mut child = tilewire("").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with("tilewire"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn output_for_which_there_is_no_room_is_a_failure_of_every_command() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let fails = |command: &mut Command, what: &str| {
        let Output { status, stderr, .. } = command.output().unwrap();
        let err = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(1), "{what}: {err}");
        assert!(err.contains("No space left on device") && !err.contains("panicked"), "{what}: {err}");
        assert_eq!(err.matches("os error 28").count(), 1, "{what}: {err}");
    };
    for line in [
        "--help",
        "--version",
        "completions bash",
        "topo",
        "doctor",
        "emit copy --ir",
        "emit sendrecv --bytecode --bytes 4KiB",
        "check sendrecv --blocks 1",
        "check sendrecv --blocks 1 --json -",
        "run sendrecv --bytes 64 --launches 1",
        "run sendrecv --bytes 64 --launches 1 --world processes",
        "verify sendrecv --sample 1 --ranks 2 --quick",
        "verify sendrecv --sample 1 --ranks 2 --quick --world processes",
        "soak --minutes 0.001 --ranks 2",
        "bench kernels --sizes 64 --cases copy --quick",
        "bench kernels --sizes 64 --cases copy --quick --json -",
        "bench kernels --sizes 64 --cases copy --quick --csv -",
    ] {
        fails(tilewire(line).stdout(full()), line);
    }
    // The error names the file.
    for line in [
        "bench kernels --sizes 64 --cases copy --quick --json /dev/full",
        "bench kernels --sizes 64 --cases copy --quick --csv /dev/full",
        "bench sendrecv --quick --world threads --cases latency --plot /dev/full",
        "check sendrecv --blocks 1 --json /dev/full",
        "check sendrecv --blocks 1 --mutate drop-credit-wait --svg /dev/full",
    ] {
        fails(&mut tilewire(line), line);
        assert!(run(line).2.contains("/dev/full"), "{line}");
    }
}

#[test]
fn an_argument_that_is_not_text_is_a_usage_error_that_names_it() {
    for line in
        ["", "run", "run sendrecv --bytes", "emit copy --ir", "bench kernels --json", "check", "verify --", "soak"]
    {
        let Output { status, stderr, .. } = tilewire(line).arg(OsStr::from_bytes(b"caf\xe9")).output().unwrap();
        let err = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(2), "{line}: {err}");
        assert!(err.contains("'caf\u{fffd}' is not UTF-8"), "{line}: {err}");
    }
}

/// The launched text of every collective in both forms. It contains the op of a hook.
#[test]
fn what_collectives_launch_is_emitted() {
    for collective in ["all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "scatter", "sendrecv"] {
        for (how, word) in [("--ir", "kernel "), ("--bytecode", "role "), ("--ptx", ".visible .entry")] {
            has(&succeeds(&format!("emit {collective} {how} --bytes 4KiB --ranks 3")), &[word]);
        }
    }
    let plain = succeeds("emit all_to_all --ir --bytes 64KiB");
    let scaled = succeeds("emit all_to_all --ir --bytes 64KiB --hook scale");
    assert!(!plain.contains("lane f32 = mul") && scaled.contains("lane f32 = mul"), "{scaled}");
    assert_eq!(succeeds("emit all_to_all --ir --bytes 64KiB --transport shm"), plain);
    has(&succeeds("emit all_to_all --ir --transport mesh --domains 0|1"), &["posts: queue"]);
    refuses("emit all_to_all --ir --transport nvl --engine cpu", &["--engine cpu", "--transport nvl"]);
    refuses("emit all_to_all --bytecode --transport nvl", &["--bytecode", "--ptx"]);
    // With a GPU it is the launched text. Without one, it says so.
    match run("emit all_to_all --ptx --bytes 4KiB --transport nvl") {
        (0, out, _) => has(&out, &[".visible .entry"]),
        (code, _, err) => {
            assert_eq!(code, 1);
            has(&err, &["CUDA driver"]);
        }
    }
}
