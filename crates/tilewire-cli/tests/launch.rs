//! `tilewire launch` as users meet it: real processes, their output, and how they end.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tilewire::transport::World;

/// Far less than the 1000 s for which the programs here sleep, and far longer than anything takes.
const AT_ONCE: Duration = Duration::from_secs(10);

fn launch(ranks: usize, script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
    command.args(["launch", "-n", &ranks.to_string(), "--", "sh", "-c", script]);
    command
}

/// The status and output of a job that ends by itself.
#[track_caller]
fn run(mut command: Command) -> (i32, String, String) {
    let began = Instant::now();
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    assert!(began.elapsed() < AT_ONCE, "took {:?}", began.elapsed());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().expect("no signal ended the launcher"), text(stdout), text(stderr))
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort();
    lines
}

/// A named pipe that ranks hold open for writing. It ends when the last process that has it is gone.
struct Lifeline {
    folder: PathBuf,
}

impl Lifeline {
    fn new(name: &str) -> Lifeline {
        let folder = std::env::temp_dir().join(format!("tilewire-launch-{name}-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let lifeline = Lifeline { folder };
        assert!(Command::new("mkfifo").arg(lifeline.path()).status().unwrap().success());
        lifeline
    }

    fn path(&self) -> PathBuf {
        self.folder.join("lifeline")
    }

    /// The script, with the pipe open in it and in everything that it starts.
    fn held_by(&self, script: &str) -> String {
        format!("exec 9>'{}'; {script}", self.path().display())
    }

    /// A second pipe, for ranks to wait for each other or for the test.
    fn gate(&self) -> PathBuf {
        let gate = self.folder.join("gate");
        assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
        gate
    }
}

/// Waits until no process holds the other end.
fn wait_for_the_end_of(mut lifeline: File) {
    let (done, ended) = channel();
    std::thread::spawn(move || {
        _ = lifeline.read_to_end(&mut Vec::new());
        _ = done.send(());
    });
    ended.recv_timeout(AT_ONCE).expect("a process was left behind");
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A running job.
struct Job {
    launcher: Child,
    out: BufReader<ChildStdout>,
    lifeline: File,
}

/// A job in which this many ranks print `ready`. Returns when they have done so.
fn started(mut command: Command, ready: usize, lifeline: &Lifeline) -> Job {
    let mut launcher = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // Opening the pipe for writing waits for a reader, which is this process.
    let reader = File::open(lifeline.path()).unwrap();
    let mut out = BufReader::new(launcher.stdout.take().unwrap());
    for _ in 0..ready {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert!(line.ends_with("ready\n"), "{line}");
    }
    Job { launcher, out, lifeline: reader }
}

fn send(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

#[test]
fn every_rank_is_told_who_it_is() {
    let script =
        "echo $TILEWIRE_RANK/$TILEWIRE_WORLD_SIZE $TILEWIRE_LOCAL_RANK ${TILEWIRE_STORE%:*} ${#TILEWIRE_SECRET}";
    let (code, out, err) = run(launch(3, script));
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(sorted(&out), ["[0] 0/3 0 127.0.0.1 64", "[1] 1/3 1 127.0.0.1 64", "[2] 2/3 2 127.0.0.1 64"]);
}

#[test]
fn two_jobs_have_two_secrets() {
    let secret = || run(launch(1, "echo $TILEWIRE_SECRET")).1;
    assert_ne!(secret(), secret());
}

#[test]
fn lines_are_prefixed_and_never_torn() {
    // 4 ranks write 300 lines each, in pieces, to both streams.
    let script = "i=0; while [ $i -lt 300 ]; do printf 'line '; printf \"$i of $TILEWIRE_RANK\\n\"; \
                  printf 'err '; echo $i; i=$((i+1)); done | tee /dev/stderr; printf 'no end'";
    let (code, out, err) = run(launch(4, script));
    assert_eq!(code, 0);
    for (text, lines) in [(&out, 4 * 601), (&err, 4 * 600)] {
        assert_eq!(text.lines().count(), lines);
        for line in text.lines() {
            let (rank, rest) = line.split_once(' ').unwrap();
            let rank = rank.trim_matches(['[', ']']);
            let whole = rest == "no end" || rest.starts_with("err ") || rest.ends_with(&format!(" of {rank}"));
            assert!(whole && rest.split(' ').count() <= 4, "{line}");
        }
    }
    // Each rank's lines are in its order.
    let first: Vec<_> = out.lines().filter(|line| line.starts_with("[2] line")).collect();
    assert_eq!(first, (0..300).map(|i| format!("[2] line {i} of 2")).collect::<Vec<_>>());
}

#[test]
fn the_status_is_that_of_the_first_rank_that_fails() {
    assert_eq!(run(launch(3, "exit 0")).0, 0);
    assert_eq!(run(launch(1, "exit 7")).0, 7);
    let (code, _, err) = run(launch(4, "[ $TILEWIRE_RANK = 2 ] && exit 42; exec sleep 1000"));
    assert_eq!(code, 42);
    assert!(err.contains("rank 2 ended with status 42"), "{err}");
    let (code, _, err) = run(launch(3, "[ $TILEWIRE_RANK = 1 ] && kill -9 $$; exec sleep 1000"));
    assert_eq!(code, 128 + 9);
    assert!(err.contains("rank 1 was ended by signal 9"), "{err}");
    // Ranks that end earlier without a fault do not end the others.
    let (code, out, _) = run(launch(2, "[ $TILEWIRE_RANK = 0 ] && exit 0; echo stays; exit 3"));
    assert_eq!((code, out.as_str()), (3, "[1] stays\n"));
}

#[test]
fn ranks_that_ignore_being_asked_are_killed() {
    let lifeline = Lifeline::new("ignore");
    let mut command = launch(
        2,
        "if [ $TILEWIRE_RANK = 0 ]; then read line < \"$GATE\"; exit 5; fi; \
         trap '' TERM; echo 'trap is set' > \"$GATE\"; while :; do sleep 1000; done",
    );
    command.env("GATE", lifeline.gate());
    assert_eq!(run(command).0, 5);
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
    command.args(["launch", "-n", "2", "--", "no-such-program"]);
    let (code, _, err) = run(command);
    assert_eq!(code, 127);
    assert!(err.contains("no-such-program"), "{err}");
}

#[test]
fn when_one_is_killed_nothing_is_left_of_the_others() {
    let lifeline = Lifeline::new("fails");
    // The other ranks have child processes.
    let script = "[ $TILEWIRE_RANK = 0 ] && read line < \"$GATE\" && kill -9 $$; sleep 1000 & echo ready; wait";
    let (mut command, gate) = (launch(3, &lifeline.held_by(script)), lifeline.gate());
    command.env("GATE", &gate);
    let mut job = started(command, 2, &lifeline);
    std::fs::write(&gate, "go\n").unwrap();
    wait_for_the_end_of(job.lifeline);
    assert_eq!(job.launcher.wait().unwrap().code(), Some(128 + 9));
}

#[test]
fn what_a_rank_leaves_behind_ends_with_it() {
    let lifeline = Lifeline::new("leaves");
    let mut job = started(launch(2, &lifeline.held_by("sleep 1000 & echo ready")), 2, &lifeline);
    wait_for_the_end_of(job.lifeline);
    assert_eq!(job.launcher.wait().unwrap().code(), Some(0));
}

#[test]
fn signals_reach_the_ranks() {
    let lifeline = Lifeline::new("signals");
    let script = "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 1000 & wait; done";
    let mut job = started(launch(2, &lifeline.held_by(script)), 2, &lifeline);
    send("-TERM", job.launcher.id());
    let mut rest = String::new();
    job.out.read_to_string(&mut rest).unwrap();
    assert_eq!(job.launcher.wait().unwrap().code(), Some(9));
    // A rank that exits slowly may get the signal once more, when the launcher sees that the other has ended.
    let mut caught = sorted(&rest);
    caught.dedup();
    assert_eq!(caught, ["[0] caught", "[1] caught"]);
    wait_for_the_end_of(job.lifeline);

    let mut job = started(launch(2, &lifeline.held_by("echo ready; exec sleep 1000")), 2, &lifeline);
    send("-INT", job.launcher.id());
    assert_eq!(job.launcher.wait().unwrap().code(), Some(128 + 2));
    wait_for_the_end_of(job.lifeline);
}

#[test]
fn a_second_signal_ends_ranks_that_ignore_the_first() {
    let lifeline = Lifeline::new("second");
    let script = "trap 'echo caught' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let mut job = started(launch(1, &lifeline.held_by(script)), 1, &lifeline);
    send("-TERM", job.launcher.id());
    let mut line = String::new();
    job.out.read_line(&mut line).unwrap();
    assert_eq!(line, "[0] caught\n");
    // A signal that comes sooner counts as the first one, repeated.
    std::thread::sleep(Duration::from_millis(600));
    send("-TERM", job.launcher.id());
    assert_eq!(job.launcher.wait().unwrap().code(), Some(128 + 9));
    wait_for_the_end_of(job.lifeline);
}

#[test]
fn signals_in_quick_succession_are_one() {
    let lifeline = Lifeline::new("quick");
    let script = "trap 'sleep 1; echo saved; exit 9' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let mut job = started(launch(1, &lifeline.held_by(script)), 1, &lifeline);
    let launcher = job.launcher.id() as libc::pid_t;
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGTERM] {
        // SAFETY: `kill` takes plain numbers, and the launcher is not reaped yet.
        assert_eq!(unsafe { libc::kill(launcher, signal) }, 0);
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut rest = String::new();
    job.out.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), job.launcher.wait().unwrap().code()), ("[0] saved\n", Some(9)));
    wait_for_the_end_of(job.lifeline);
}

/// A job of one rank that has printed more than a pipe holds, and has ended, while nobody reads. Its output is 1500
/// lines.
fn unread(lifeline: &Lifeline) -> Job {
    let line = "x".repeat(60);
    let script = format!("i=0; while [ $i -lt 1500 ]; do echo $i {line}; i=$((i+1)); done");
    let mut command = launch(1, &lifeline.held_by(&script));
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut launcher = command.spawn().unwrap();
    let reader = File::open(lifeline.path()).unwrap();
    wait_for_the_end_of(reader.try_clone().unwrap());
    let out = BufReader::new(launcher.stdout.take().unwrap());
    Job { launcher, out, lifeline: reader }
}

#[test]
fn a_reader_that_pauses_gets_everything() {
    let lifeline = Lifeline::new("pauses");
    let mut job = unread(&lifeline);
    // Longer than the launcher waits for what a rank leaves behind.
    std::thread::sleep(Duration::from_secs(2));
    let lines = job.out.by_ref().lines().map(Result::unwrap);
    assert_eq!(lines.enumerate().filter(|(at, line)| line.starts_with(&format!("[0] {at} x"))).count(), 1500);
    assert_eq!(job.launcher.wait().unwrap().code(), Some(0));
    assert_eq!(std::io::read_to_string(job.launcher.stderr.take().unwrap()).unwrap(), "");
}

#[test]
fn what_nobody_reads_is_given_up_after_a_signal_and_the_loss_is_said() {
    let lifeline = Lifeline::new("unread");
    let mut job = unread(&lifeline);
    send("-TERM", job.launcher.id());
    assert_eq!(job.launcher.wait().unwrap().code(), Some(0));
    let err = std::io::read_to_string(job.launcher.stderr.take().unwrap()).unwrap();
    assert!(err.contains("nobody reads stdout of rank 0: its last "), "{err}");
    // The output that could be written is there: whole lines, except for the last.
    let lines = job.out.by_ref().lines().map(Result::unwrap).count();
    assert!((700..1500).contains(&lines), "{lines}");
}

#[test]
fn a_limit_on_open_files_is_raised_or_named() {
    let limited = |limit: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_tilewire")]);
        command.args(["launch", "-n", "24", "--", "true"]);
        run(command)
    };
    let (code, _, err) = limited("-Sn 40");
    assert_eq!((code, err.as_str()), (0, ""));
    let (code, _, err) = limited("-n 100");
    assert_ne!(code, 0);
    assert!(err.contains("open files in a process that may have 100"), "{err}");
}

/// Limited memory, in which stacks count. The limit on threads (`ulimit -u`) does not apply to root.
#[test]
fn a_thread_that_cannot_be_had_is_an_error_that_names_the_limits() {
    let limited = |mib: usize, words: &[&str]| {
        let mut command = Command::new("sh");
        let script = format!("ulimit -v {} && exec \"$0\" \"$@\"", mib << 10);
        command.args(["-c", &script, env!("CARGO_BIN_EXE_tilewire")]).args(words).stdin(Stdio::null());
        // Otherwise glibc reserves 64 MiB for a thread's heap, or does without if there is no room.
        command.env("MALLOC_ARENA_MAX", "1");
        let Output { status, stderr, .. } = command.output().unwrap();
        (status, String::from_utf8_lossy(&stderr).into_owned())
    };
    // The least memory with which the program itself runs.
    let (mut too_little, mut enough) = (1, 4096);
    while enough - too_little > 1 {
        let mib = (too_little + enough) / 2;
        let runs = limited(mib, &["--version"]).0.success();
        *(if runs { &mut enough } else { &mut too_little }) = mib;
    }
    // 60 ranks take 180 threads of 128 KiB and more; the store takes one of 2 MiB.
    let mut named = 0;
    for mib in [enough, enough + 1, enough + 4, enough + 8, enough + 16] {
        let (status, err) = limited(mib, &["launch", "-n", "60", "--", "sleep", "5"]);
        assert!(!err.contains("panicked"), "with {mib} MiB: {err}");
        if err.contains("no thread to watch") {
            assert_eq!(status.code(), Some(1), "with {mib} MiB: {err}");
            assert!(err.contains("(ulimit -u, ulimit -v)"), "{err}");
            named += 1;
        }
    }
    assert!(named > 0, "from {enough} MiB on, no limit was too little for threads alone");
}

#[test]
fn arguments_that_are_not_text_reach_the_program() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
    command.args(["launch", "-n", "1", "--", "printf", "%s\\n"]).arg(OsStr::from_bytes(b"gr\xfc\xdfe"));
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(status.code(), Some(0), "{}", String::from_utf8_lossy(&stderr));
    assert_eq!(stdout, b"[0] gr\xfc\xdfe\n");
    // The launcher's own arguments must be text. A program that does not exist is named as well as possible.
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
    let Output { status, stderr, .. } =
        command.args(["launch", "-n"]).arg(OsStr::from_bytes(b"\xff2")).output().unwrap();
    assert_eq!(status.code(), Some(2));
    assert!(String::from_utf8(stderr).unwrap().contains("'\u{fffd}2' is not UTF-8"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
    command.args(["launch", "-n", "1", "--"]).arg(OsStr::from_bytes(b"no-such-\xff"));
    let (code, _, err) = run(command);
    assert_eq!(code, 127);
    assert!(err.contains("cannot start 'no-such-\u{fffd}'"), "{err}");
}

#[test]
fn output_for_which_there_is_no_room_is_a_failure() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let lifeline = Lifeline::new("full");
    // This holds whether the ranks have ended by then or not.
    for script in ["echo hello", "echo hello; exec sleep 1000"] {
        let mut command = launch(2, &lifeline.held_by(script));
        let mut launcher = command.stdin(Stdio::null()).stdout(full()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_the_end_of(File::open(lifeline.path()).unwrap());
        let err = std::io::read_to_string(launcher.stderr.take().unwrap()).unwrap();
        assert_eq!(launcher.wait().unwrap().code(), Some(1), "{script}: {err}");
        assert!(err.contains("cannot write stdout of rank") && err.contains("No space left"), "{script}: {err}");
    }
    // The launcher cannot say what is lost of stderr.
    let mut command = launch(1, "echo hello >&2");
    assert_eq!(command.stdin(Stdio::null()).stderr(full()).status().unwrap().code(), Some(1));
}

/// The launcher itself ignores the signal of the limit on file sizes, so that it can report the error.
#[test]
fn a_rank_finds_the_signals_as_the_launcher_did() {
    let script = "grep SigIgn /proc/self/status";
    // The C library reserves the signals above those with names. The launcher handles SIGINT even in a shell's
    // background job, which would ignore it: bit 1.
    let ignored = |text: &str| u64::from_str_radix(text.split_whitespace().last().unwrap(), 16).unwrap() & 0x7fff_fffd;
    let alone = String::from_utf8(Command::new("sh").args(["-c", script]).output().unwrap().stdout).unwrap();
    let (_, ranks, _) = run(launch(1, script));
    assert_eq!(ignored(&ranks), ignored(&alone), "{ranks}{alone}");
}

#[test]
fn ranks_do_not_outlive_a_launcher_that_is_killed() {
    let lifeline = Lifeline::new("killed");
    let mut job = started(launch(3, &lifeline.held_by("echo ready; exec sleep 1000")), 3, &lifeline);
    job.launcher.kill().unwrap();
    job.launcher.wait().unwrap();
    wait_for_the_end_of(job.lifeline);
}

/// Not a separate test: `ranks_find_each_other` starts it as a rank.
#[test]
fn as_a_rank() {
    let Ok(task) = std::env::var("LAUNCH_TEST_TASK") else { return };
    let world = World::from_env().unwrap();
    let number = [world.rank().number() as u8];
    if task == "die" && number == [2] {
        std::process::abort();
    }
    match world.bootstrap().all_gather("numbers", &number, world.deadline()) {
        Ok(all) => println!("all: {all:?}"),
        Err(error) => println!("error: {error}"),
    }
}

fn ranks(count: usize, task: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
    command.args(["launch", "-n", &count.to_string(), "--deadline", "20s", "--"]);
    command.arg(std::env::current_exe().unwrap()).args(["as_a_rank", "--exact", "--nocapture"]);
    command.env("LAUNCH_TEST_TASK", task);
    run(command)
}

#[test]
fn ranks_find_each_other() {
    let (code, out, err) = ranks(4, "gather");
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!(out.matches("all: [[0], [1], [2], [3]]").count(), 4, "{out}");
}

#[test]
fn a_rank_that_dies_ends_the_job_with_its_status() {
    let (code, out, err) = ranks(3, "die");
    assert_eq!(code, 128 + 6, "{out}{err}");
    assert!(err.contains("rank 2 was ended by signal 6"), "{err}");
}

#[path = "../../tilewire/examples/08_processes.rs"]
mod example;

const EXAMPLE: &str = "the_example_of_processes_runs_under_the_launcher";

/// The last example, started as its first lines say. `cargo test --workspace` builds it. If only this package is
/// tested, this program runs again as every rank and does the same.
#[test]
fn the_example_of_processes_runs_under_the_launcher() {
    if std::env::var_os("TILEWIRE_RANK").is_some() {
        example::rank(&World::from_env().unwrap()).unwrap();
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_tilewire"));
    let built = program.parent().expect("a program lies in a folder").join("examples/08_processes");
    let mut command = Command::new(program);
    command.args(["launch", "-n", "4", "--"]);
    if built.exists() {
        command.arg(built);
    } else {
        command.arg(std::env::current_exe().unwrap()).args(["--exact", EXAMPLE, "--nocapture"]);
    }
    let (code, out, err) = run(command);
    assert_eq!(code, 0, "{out}{err}");
    for rank in 0..4 {
        let line = format!("rank {rank} of 4 received 100000 numbers from rank {}, all right", (rank + 3) % 4);
        assert!(out.lines().any(|said| said.starts_with(&format!("[{rank}] ")) && said.contains(&line)), "{out}");
    }
}
