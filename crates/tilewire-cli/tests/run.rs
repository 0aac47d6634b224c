//! `tilewire run` and `tilewire soak` as users meet them: threads, processes, launchers, and refusals.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// No command here takes this long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The status, stdout and stderr of a command, outside any launcher.
#[track_caller]
fn run(line: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
    let own =
        |word: &str| if word == "tilewire" { env!("CARGO_BIN_EXE_tilewire").to_string() } else { word.to_string() };
    command.args(line.split_whitespace().map(own)).stdin(Stdio::null());
    for variable in ["TILEWIRE_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"] {
        command.env_remove(variable);
    }
    let began = Instant::now();
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(began.elapsed() < PATIENCE, "tilewire {line} took {:?}", began.elapsed());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().expect("no signal ended it"), text(stdout), text(stderr))
}

/// The words of the table's second line, for a command that succeeds.
#[track_caller]
fn row(line: &str) -> String {
    let (code, out, err) = run(line);
    assert_eq!((code, err.as_str()), (0, ""), "tilewire {line}\n{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 3, "a head, a row and the result:\n{out}");
    assert_eq!(lines[2], "every byte right", "{out}");
    lines[1].split_whitespace().collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn refuses(line: &str, words: &[&str]) {
    let (code, out, err) = run(line);
    assert_eq!((code, out.as_str()), (2, ""), "tilewire {line}\n{err}");
    for word in words {
        assert!(err.contains(word), "tilewire {line}: no '{word}' in\n{err}");
    }
}

#[test]
fn a_ring_of_threads_is_run_and_checked() {
    let shown =
        row("run sendrecv --ranks 3 --bytes 64KiB --dtype bf16 --hook transpose --protocol staged --launches 5");
    assert!(shown.starts_with("sendrecv 3 threads 64KiB bf16 transpose staged 1 5 "), "{shown}");
    assert!(row("run sendrecv --launches=2").starts_with("sendrecv 2 threads 1MiB f32 copy auto 1 2 "));
}

#[test]
fn a_ring_of_processes_is_run_and_checked() {
    let shown = row("run sendrecv --ranks 4 --bytes 100KiB --hook scale --blocks 3 --launches 20 --world processes");
    assert!(shown.starts_with("sendrecv 4 processes 100KiB f32 scale auto 3 20 "), "{shown}");
}

#[test]
fn every_hook_and_protocol_is_run_in_both_worlds() {
    for world in ["threads", "processes"] {
        for protocol in ["packet", "staged", "direct"] {
            for hook in ["copy", "scale", "transpose", "quantise"] {
                if (protocol, hook) != ("direct", "quantise") {
                    let how = format!("--hook {hook} --protocol {protocol} --world {world}");
                    row(&format!("run sendrecv --ranks 2 --bytes 1000 --dtype f32 --launches 3 {how}"));
                }
            }
        }
    }
}

/// The hooks that the test above lacks, each with a protocol and a collective.
#[test]
fn every_hook_of_the_library_is_run() {
    let hooks = "quantise-i8 cast narrow permute gather scatter accumulate bias-gelu swiglu rms-norm mask keep compose";
    let how = [("all_to_all", "staged"), ("sendrecv", "packet"), ("broadcast", "bulk"), ("all_gather", "auto")];
    for (k, hook) in hooks.split(' ').enumerate() {
        let (collective, protocol) = how[k % how.len()];
        let protocol = if protocol == "auto" { String::new() } else { format!("--protocol {protocol}") };
        let shown = row(&format!("run {collective} --ranks 2 --bytes 1004 --hook {hook} {protocol} --launches 2"));
        assert!(shown.contains(&format!(" {hook} ")), "{shown}");
    }
    row("run all_to_all --ranks 3 --bytes 4096 --hook swiglu --protocol direct --launches 2");
    row("run reduce_scatter --ranks 3 --bytes 4096 --hook accumulate --protocol direct --launches 2");
    row("run all_reduce --ranks 2 --bytes 4096 --hook rms-norm --algorithm ring --launches 2");
    refuses("run all_to_all --hook scatter --protocol direct", &["nobody runs a consume hook"]);
    refuses("run all_reduce --hook quantise-i8", &["values of one type"]);
    refuses("run all_to_all --hook fly", &["'fly'", "rms-norm"]);
}

/// A sample with two numbers of processes. Its progress passes through the launcher.
#[test]
fn collectives_are_verified_among_processes() {
    let line = "verify all_to_all all_reduce --world processes --ranks 2,3 --quick --sample 10 --progress";
    let (code, out, err) = run(line);
    assert_eq!(code, 0, "{out}{err}");
    for word in ["2 processes", "3 processes", "all_to_all", "all_reduce"] {
        assert!(out.contains(word), "no '{word}' in\n{out}");
    }
    assert!(err.contains("[1/10] 2 ranks, all_") && err.contains("[1/10] 3 ranks, all_"), "{err}");
    let (_, _, quiet) = run(&line.replace(" --progress", ""));
    assert_eq!(quiet, "");
}

#[test]
fn every_element_type_is_run() {
    for dtype in "bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2".split(' ') {
        let hook = if dtype == "bool" { "copy" } else { "scale" };
        row(&format!("run sendrecv --bytes 4104 --dtype {dtype} --hook {hook} --launches 2"));
    }
}

#[test]
fn every_collective_is_run_in_both_worlds() {
    for collective in "all_to_all all_gather reduce_scatter all_reduce broadcast gather scatter".split(' ') {
        for (world, ranks) in [("threads", 1), ("threads", 3), ("processes", 4)] {
            let how = format!("--ranks {ranks} --world {world} --dtype bf16 --hook scale --launches 3");
            for bytes in [10, 100_000] {
                let shown = row(&format!("run {collective} --bytes {bytes} {how}"));
                assert!(shown.starts_with(&format!("{collective} {ranks} {world}")), "{shown}");
            }
        }
    }
    row("run all_to_all --ranks 3 --hook transpose --protocol direct --blocks 2 --launches 3");
    row("run all_gather --ranks 3 --hook quantise --algorithm ring --launches 3");
    row("run all_reduce --ranks 3 --op average --algorithm ring --dtype f8e4m3 --launches 3");
}

#[test]
fn nothing_and_little_is_sent_too() {
    for bytes in [0, 4, 60, 64, 68] {
        row(&format!("run sendrecv --bytes {bytes} --blocks 2 --launches 2"));
    }
}

/// Starts one command on rank 0 and another on rank 1. Both values must be named, with status 2, long before the
/// deadline.
#[track_caller]
fn told_apart(lines: [&str; 2], words: [&str; 2]) {
    let [first, second] = lines;
    let script = format!("[ $TILEWIRE_RANK = 0 ] && exec \"$TILEWIRE\" {first}; exec \"$TILEWIRE\" {second}");
    let began = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
    command.args(["launch", "-n", "2", "--", "sh", "-c", &script]).env("TILEWIRE", env!("CARGO_BIN_EXE_tilewire"));
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert!(began.elapsed() < Duration::from_secs(20), "{lines:?} waited for the deadline: {said}");
    assert_eq!((status.code(), stdout.as_slice()), (Some(2), &b""[..]), "{lines:?}: {said}");
    assert!(words.iter().all(|word| said.contains(word)), "{lines:?}: no {words:?} in {said}");
}

#[test]
fn ranks_that_were_started_with_different_commands_are_told() {
    told_apart(["run all_reduce", "soak --minutes 1"], ["rank 0 runs `tilewire run`", "rank 1 runs `tilewire soak`"]);
    let verify = "verify all_reduce --world env --quick --sample 2";
    told_apart([verify, "run all_reduce"], ["rank 0 runs `tilewire verify`", "rank 1 runs `tilewire run`"]);
}

#[test]
fn ranks_that_were_started_with_different_words_are_told() {
    told_apart(["run sendrecv --protocol direct", "run sendrecv"], ["--protocol direct", "--protocol auto"]);
    told_apart(["run all_to_all", "run all_to_all --protocol direct"], ["--protocol auto", "--protocol direct"]);
    told_apart(["run all_reduce --launches 5", "run all_reduce --launches 6"], ["--launches 5", "--launches 6"]);
    told_apart(["run all_reduce", "run all_gather"], ["all_reduce", "all_gather"]);
    told_apart(["run all_reduce", "run all_reduce --ranks 3"], ["rank 0 was started with `no --ranks`", "`--ranks 3`"]);
    told_apart(["run all_reduce --ranks 3", "run all_reduce --ranks 2"], ["`--ranks 3`", "`--ranks 2`"]);
    told_apart(["run all_reduce", "run all_reduce --seed 9"], ["--seed 1", "--seed 9"]);
    told_apart(["run all_reduce", "run all_reduce --hook scale"], ["--hook copy", "--hook scale"]);
    told_apart(["run all_reduce", "run all_reduce --bytes 4KiB"], ["--bytes 1MiB", "--bytes 4KiB"]);
    told_apart(["soak --minutes 0.02 --seed 3", "soak --minutes 0.02 --seed 4"], ["--seed 3", "--seed 4"]);
    told_apart(["soak --minutes 0.02", "soak --minutes 0.03"], ["--minutes 0.02", "--minutes 0.03"]);
    let verify = "verify all_reduce --world env --quick --sample 2 --seed";
    told_apart([&format!("{verify} 3"), &format!("{verify} 4")], ["--seed 3", "--seed 4"]);
}

/// Without `--world env`, every process verifies for itself.
#[test]
fn all_ranks_of_a_launcher_may_verify() {
    let (code, out, err) = run("launch -n 2 -- tilewire verify all_gather --ranks 2 --quick --sample 2");
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("[0] ") && out.contains("[1] "), "{out}");
}

/// A rank joins its job once. A command that needs no other rank does not join, so any number of them may follow each
/// other, and a command that joins may come after them.
#[test]
fn commands_may_follow_each_other_in_one_launch() {
    let verify = "\"$TILEWIRE\" verify all_gather --ranks 2 --quick --sample 2";
    let script = format!("{verify} && {verify} && \"$TILEWIRE\" run sendrecv --bytes 64 --launches 1");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
    command.args(["launch", "-n", "2", "--", "sh", "-c", &script]).env("TILEWIRE", env!("CARGO_BIN_EXE_tilewire"));
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!((status.code(), &*err), (Some(0), ""), "{out}");
    assert!(out.contains("every byte right"), "{out}");
}

/// Ranks that are threads obey the variable, as ranks that are processes do. A value that is no duration is an error.
#[test]
fn the_deadline_of_the_environment_counts_for_threads_too() {
    let with = |deadline: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
        command.args(["run", "sendrecv", "--bytes", "64", "--launches", "1"]).env("TILEWIRE_DEADLINE", deadline);
        let Output { status, stderr, .. } = command.stdin(Stdio::null()).output().unwrap();
        (status.code(), String::from_utf8(stderr).unwrap())
    };
    let (code, err) = with("soon");
    assert!(code == Some(1) && err.contains("TILEWIRE_DEADLINE is 'soon'") && err.contains("500ms"), "{code:?}: {err}");
    let (code, err) = with("0ms");
    assert!(code == Some(1) && err.contains("waited"), "{code:?}: {err}");
    assert_eq!(with("30s"), (Some(0), String::new()));
    assert_eq!(with("off"), (Some(0), String::new()));
    assert_eq!(with(""), (Some(0), String::new()), "set but empty counts as unset");
}

#[test]
fn under_a_launcher_its_ranks_are_used() {
    let (code, out, err) = run("launch -n 3 -- tilewire run sendrecv --bytes 4KiB --launches 2");
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.lines().all(|line| line.starts_with("[0] ")) && out.contains("sendrecv    3 processes  4KiB"), "{out}");
}

#[test]
fn what_cannot_be_is_refused_with_its_value() {
    refuses("run sendrecv --ranks 1", &["--ranks 1", "2 to 64", "Usage: tilewire run", "'--help'"]);
    refuses("run sendrecv --bytes 10 --dtype f64", &["--bytes 10B", "f64"]);
    refuses("run sendrecv --hook quantise --dtype i32", &["quantise", "i32"]);
    refuses("run reduce", &["'reduce'"]);
    // Only the transport knows this.
    refuses("run sendrecv --blocks 9", &["9 blocks", "1 to 8"]);
    refuses("run sendrecv --bytes 1MiB --protocol packet", &["1048576 bytes", "staged"]);
    refuses("run sendrecv --bytes 1MiB --protocol packet --world processes", &["1048576 bytes", "staged"]);
    refuses("launch -n 3 -- tilewire run sendrecv --ranks 4", &["--ranks 4", "started 3"]);
    refuses("soak --minutes never", &["'never'"]);
}

/// The allocator would end the process, or the kernel would. So it is refused before a rank is started.
#[test]
fn more_than_there_is_memory_for_is_refused_with_what_is_left() {
    for world in ["threads", "processes"] {
        let line = format!("run all_to_all --ranks 64 --bytes 8GiB --world {world}");
        refuses(&line, &["no memory for", "by 64 ranks", "bytes are needed", "are left", "--bytes"]);
    }
    refuses("run sendrecv --bytes 8GiB --ranks 64", &["no memory for", "are left"]);
}

/// Arguments are read before anything is started. The missing GPU is found afterwards, and is no usage error.
#[test]
fn a_transport_is_said_and_fits_its_engine() {
    row("run all_to_all --transport shm --bytes 4KiB --launches 2");
    row("run all_reduce --transport=shm --engine cpu --bytes 4KiB --launches 2 --world processes");
    refuses("run sendrecv --transport nvl --engine cpu", &["--transport nvl", "--engine cpu", "cuda goes over nvl"]);
    refuses("run sendrecv --transport ether", &["'ether'", "shm, nvl", "'--help'"]);
    match run("run sendrecv --transport nvl --bytes 4KiB --launches 2") {
        (0, out, _) => assert!(out.contains("every byte right"), "{out}"),
        (code, _, err) => assert!(code == 1 && err.contains("CUDA driver"), "{code}: {err}"),
    }
}

/// Rank 1 alone is told to use a protocol that its message is too large for. Rank 0 then sees only that rank 1 has
/// left.
#[test]
fn a_refusal_of_one_rank_is_what_the_job_says_and_its_status() {
    let script =
        "[ $TILEWIRE_RANK = 1 ] && set -- --protocol packet; exec \"$TILEWIRE\" run sendrecv --bytes 1MiB \"$@\"";
    for ranks in ["2", "3"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
        command.args(["launch", "-n", ranks, "--", "sh", "-c", script]).env("TILEWIRE", env!("CARGO_BIN_EXE_tilewire"));
        let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
        let err = String::from_utf8(stderr).unwrap();
        assert_eq!((status.code(), stdout.as_slice()), (Some(2), &b""[..]), "{err}");
        assert!(err.contains("rank 1: ") && err.contains("1048576 bytes"), "{err}");
        // The error appears once, without its consequences.
        assert_eq!(err.lines().filter(|line| line.contains("] tilewire: rank")).count(), 1, "{err}");
    }
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_that_names_it() {
    let mut command = Command::new("sh");
    // The shell counts in blocks of 512 or 1024 bytes.
    command.args(["-c", "ulimit -f 100 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tilewire")]);
    command.args(["run", "sendrecv", "--world", "processes", "--bytes", "64", "--launches", "1"]);
    let Output { status, stderr, .. } = command.stdin(Stdio::null()).output().unwrap();
    let err = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{err}");
    assert!(err.contains("(ulimit -f)") && !err.contains("signal"), "{err}");
    // The limit also applies to files that commands write.
    let file = std::env::temp_dir().join(format!("tilewire-limit-{}.svg", std::process::id()));
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 1 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tilewire")]);
    command.args("check sendrecv --blocks 1 --mutate drop-credit-wait --svg".split(' ')).arg(&file);
    let Output { status, stderr, .. } = command.stdin(Stdio::null()).output().unwrap();
    let err = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{err}");
    assert!(err.contains("File too large"), "{err}");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn an_error_of_the_system_is_printed_once() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
    command.args(["run", "sendrecv"]).env("TILEWIRE_RANK", "1").env("TILEWIRE_WORLD_SIZE", "2");
    // Nothing listens there.
    command
        .env("TILEWIRE_STORE", "127.0.0.1:1")
        .env("TILEWIRE_SECRET", "0123456789abcdef")
        .env("TILEWIRE_DEADLINE", "100ms");
    let Output { status, stderr, .. } = command.stdin(Stdio::null()).output().unwrap();
    let err = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{err}");
    assert_eq!(err.matches("os error").count(), 1, "{err}");
}

#[test]
fn a_short_soak_says_its_seed_and_what_every_rank_holds() {
    let (code, out, err) = run("soak --minutes 0.05 --ranks 3 --seed 5");
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("soak: 3 ranks, 0.05 minutes, seed 5\n"), "{out}");
    for word in ["every byte right", "resident MiB", "\n2 ", "nothing grew but perhaps memory"] {
        assert!(out.contains(word), "no '{word}' in\n{out}");
    }
}
