//! A test and a child process that it starts: this program again, with a part to play.

use crate::ends::{End, LONG, PROVIDERS, library, provider};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewire_fabric::{Completion, Endpoint, EndpointOptions, Plain, PlainError, Posted, Source};

/// Names the part of a child, and what it is about.
const PART: &str = "FABRIC_TEST_PART";

struct Helper {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Helper {
    fn start(part: &str, about: &str) -> Helper {
        let path = crate::libfabric::find().expect("found before");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "two_processes::part_of_a_child", "--nocapture", "--include-ignored"])
            .env(PART, format!("{part} {about}"))
            .env("TILEWIRE_LIBFABRIC", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Helper { child, to, from }
    }

    /// The next line that begins with `:`; the test harness prints others.
    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.from.read_line(&mut line).unwrap() > 0, "the child has ended");
            // The harness prints the name of the test without an end of line.
            if let Some((_, said)) = line.trim_end().split_once(':').filter(|(_, said)| said.starts_with('=')) {
                return said[1..].to_string();
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(mut self) {
        drop(self.to);
        assert!(self.child.wait().unwrap().success());
    }
}

fn say(line: &str) {
    println!(":={line}");
}

fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_string()
}

/// What children do.
#[test]
#[ignore = "a part of a child, which other tests start"]
fn part_of_a_child() {
    let Ok(part) = std::env::var(PART) else { return };
    let (part, about) = part.split_once(' ').unwrap();
    match part {
        "echo" => echo(about),
        "idle" => idle(about),
        "rest" => rest(about),
        "signals" => signals(),
        "leave" => leave(about),
        "plain" => plain(about),
        other => panic!("no part {other}"),
    }
}

/// Sends every number back, with the bytes that came with it.
fn echo(name: &str) {
    let mut end = End::open(library().unwrap(), name, BYTES, &EndpointOptions::default());
    say(&end.card());
    let to = end.meet(&hear());
    let (mut numbers, since) = (0, Instant::now());
    while numbers < ROUNDS as u64 {
        end.poll();
        assert!(since.elapsed() < LONG);
        for completion in std::mem::take(&mut end.got) {
            let Completion::Arrived { data } = completion else { continue };
            let bytes = (data >> 32) as usize;
            let region = end.region.clone();
            while end.endpoint.writedata(to, (&region, 0, bytes), data + 1, 0).unwrap() == Posted::Again {
                end.poll();
            }
            numbers += 1;
        }
    }
    while end.endpoint.under_way() > 0 {
        end.poll();
    }
    assert_eq!(hear(), "", "until the parent has read everything");
}

const BYTES: usize = 4 << 20;
const ROUNDS: usize = 30;

#[test]
fn bytes_go_to_another_process_and_come_back() {
    if library().is_none() {
        return;
    }
    for name in PROVIDERS {
        let mut helper = Helper::start("echo", name);
        let mut end = End::open(library().unwrap(), name, BYTES, &EndpointOptions::default());
        let to = end.meet(&helper.hear());
        helper.tell(&end.card());
        for round in 0..ROUNDS {
            let bytes = [8, 4096, 65536, 1 << 20, BYTES][round % 5];
            let x = |at: usize| (at ^ round) as u8 | 1;
            (0..bytes).step_by(61).for_each(|at| end.memory.set(at, x(at)));
            let data = (bytes as u64) << 32 | (round as u64) << 1;
            let region = end.region.clone();
            let since = Instant::now();
            while end.endpoint.writedata(to, (&region, 0, bytes), data, 0).unwrap() == Posted::Again {
                end.poll();
                assert!(since.elapsed() < LONG);
            }
            while !end.take(&Completion::Done { token: 0 }) {
                end.poll();
                assert!(since.elapsed() < LONG);
            }
            // What comes back must come from there.
            while !end.take(&Completion::Arrived { data: data + 1 }) {
                end.poll();
                assert!(since.elapsed() < LONG, "{name}: {bytes} bytes: {:?}", end.got);
            }
            assert_eq!((0..bytes).step_by(61).find(|&at| end.memory.get(at) != x(at)), None, "{name}: {bytes}");
        }
        helper.end();
    }
}

/// Makes progress until the parent is gone, and nothing else.
fn idle(name: &str) {
    let mut end = End::open(library().unwrap(), name, 1 << 20, &EndpointOptions::default());
    say(&end.card());
    let _ = end.meet(&hear());
    let since = Instant::now();
    while since.elapsed() < LONG {
        end.poll();
    }
}

#[test]
fn a_killed_peer_is_an_error_or_silence_and_never_a_hang() {
    if library().is_none() {
        return;
    }
    // Not shm: its memory has spin locks, and a peer that dies with one of them leaves it locked forever.
    let name = "tcp";
    let mut helper = Helper::start("idle", name);
    let mut end = End::open(library().unwrap(), name, 1 << 20, &EndpointOptions::default());
    let to = end.meet(&helper.hear());
    helper.tell(&end.card());
    let region = end.region.clone();
    let write = |end: &mut End| {
        let source = Source::Region { region: &region, offset: 0, bytes: 1 << 16 };
        end.endpoint.write_delivered(to, source, Some(1), 7)
    };
    let since = Instant::now();
    while !end.take(&Completion::Done { token: 7 }) {
        let _ = write(&mut end).unwrap();
        end.poll();
        assert!(since.elapsed() < LONG);
    }
    helper.kill();
    // Writes that are under way now, and new ones.
    let (since, mut failed, mut again) = (Instant::now(), Vec::new(), 0u64);
    while since.elapsed() < Duration::from_millis(700) {
        match write(&mut end) {
            Ok(Posted::Taken) => {}
            Ok(Posted::Again) => again += 1,
            Err(error) => failed.push(error.to_string()),
        }
        end.poll();
        for completion in end.got.drain(..) {
            if let Completion::Failed { error, .. } = completion {
                failed.push(error.to_string());
            }
        }
    }
    println!("{name}: again {again} times, {} errors: {:?}", failed.len(), failed.first());
    assert!(again > 0 || !failed.is_empty(), "it does not go on as before");
    assert!(failed.iter().all(|words| !words.is_empty()));
}

/// Connects, and then touches the provider's memory no more until it is killed.
fn rest(name: &str) {
    let mut end = End::open(library().unwrap(), name, 4096, &EndpointOptions::default());
    say(&end.card());
    let _ = end.meet(&hear());
    say("resting");
    hear();
}

/// Nobody else can remove the file of a process that was killed by `SIGKILL`.
#[test]
fn the_survivors_of_a_killed_peer_remove_its_file() {
    if library().is_none() {
        return;
    }
    let mut helper = Helper::start("rest", "shm");
    let mut end = End::open(library().unwrap(), "shm", 4096, &EndpointOptions::default());
    let _ = end.meet(&helper.hear());
    helper.tell(&end.card());
    assert_eq!(helper.hear(), "resting");
    let process = helper.child.id();
    helper.kill();
    assert_eq!(left_by(process).len(), 1, "what the process left is found");
    drop(end);
    assert_eq!(files_of(process), Vec::<PathBuf>::new());
}

/// The second end of plain loops.
fn plain(name: &str) {
    let (mut end, card) = open_plain(name);
    say(&hex(&card));
    end.connect(&bytes(&hear())).unwrap();
    end.ping_pong(8, false, PINGS).unwrap();
    end.stream(MOST, false, 8, 4).unwrap();
    assert_eq!(hear(), "", "until the parent has read everything");
}

const PINGS: u32 = 200;
const MOST: usize = 1 << 20;

fn open_plain(name: &str) -> (Plain, Vec<u8>) {
    Plain::open(Arc::new(provider(library().unwrap(), name)), MOST, 0x5eed).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn plain_loops_run_between_two_processes() {
    if library().is_none() {
        return;
    }
    for name in PROVIDERS {
        let mut helper = Helper::start("plain", name);
        let (mut end, card) = open_plain(name);
        let other = bytes(&helper.hear());
        assert_eq!(end.ping_pong(8, true, 1), Err(PlainError::Card), "not connected");
        assert_eq!(end.connect(&other[..20]), Err(PlainError::Card));
        helper.tell(&hex(&card));
        end.connect(&other).unwrap();
        let one_way = end.ping_pong(8, true, PINGS).unwrap();
        let streamed = end.stream(MOST, true, 8, 4).unwrap();
        assert_eq!(end.stream(MOST + 1, true, 1, 1), Err(PlainError::Bytes { bytes: MOST + 1, most: MOST }));
        println!("{name}: 8 bytes one way {one_way:?}, 8 MiB in {streamed:?}");
        assert!(one_way > Duration::ZERO && streamed > Duration::ZERO);
        helper.end();
    }
}

fn files_of(process: u32) -> Vec<PathBuf> {
    let all = std::fs::read_dir("/dev/shm").unwrap().map(|file| file.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    all.filter(|path| name(path).starts_with(&format!("{process}:"))).collect()
}

fn left_by(process: u32) -> Vec<PathBuf> {
    let known = files_of(process);
    tilewire_fabric::left_behind().into_iter().filter(|path| known.contains(path)).collect()
}

/// Has handlers of its own, loads the library, opens endpoints, and looks at its handlers.
fn signals() {
    extern "C" fn own(_: i32) {}
    let all = [libc::SIGINT, libc::SIGILL, libc::SIGABRT, libc::SIGBUS, libc::SIGSEGV, libc::SIGTERM];
    let handler = |signal: i32| {
        // SAFETY: zeroed is a valid structure, and the call only writes it.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            assert_eq!(libc::sigaction(signal, std::ptr::null(), &mut action), 0);
            action.sa_sigaction
        }
    };
    // One that is not handled stays so.
    let mut expected = all.map(|signal| (signal, own as extern "C" fn(i32) as usize));
    expected[0].1 = libc::SIG_IGN;
    for (signal, action) in expected {
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(signal, action) };
    }
    let library = library().unwrap();
    for name in PROVIDERS {
        let end = End::open(library, name, 4096, &EndpointOptions::default());
        assert_eq!(all.map(|signal| (signal, handler(signal))), expected, "{name}");
        drop(end);
        assert_eq!(all.map(|signal| (signal, handler(signal))), expected, "{name}, closed");
    }
    say("kept");
}

#[test]
fn the_users_signal_handlers_survive() {
    if library().is_none() {
        return;
    }
    let mut helper = Helper::start("signals", "-");
    assert_eq!(helper.hear(), "kept");
    helper.end();
}

/// Ends with an open endpoint, in one of several ways.
fn leave(how: &str) {
    let end = End::open(library().unwrap(), "shm", 4096, &EndpointOptions::default());
    assert_eq!(files_of(std::process::id()).len(), 1);
    say("open");
    match how {
        "drop" => drop(end),
        "exit" => {
            std::mem::forget(end);
            std::process::exit(0);
        }
        other => panic!("no way {other}"),
    }
}

#[test]
fn nothing_is_left_in_shared_memory() {
    if library().is_none() {
        return;
    }
    for how in ["drop", "exit"] {
        let mut helper = Helper::start("leave", how);
        assert_eq!(helper.hear(), "open");
        let process = helper.child.id();
        helper.end();
        assert_eq!(files_of(process), Vec::<PathBuf>::new(), "{how}");
    }
}

/// A waiter that sleeps on the descriptor is woken by a number.
#[test]
fn a_descriptor_wakes_its_sleeper() {
    let Some(library) = library() else { return };
    let options = EndpointOptions { descriptor: true, ..EndpointOptions::default() };
    let mut helper = Helper::start("echo", "tcp");
    let mut end = End::open(library, "tcp", BYTES, &options);
    let to = end.meet(&helper.hear());
    helper.tell(&end.card());
    let mut slept = 0;
    for round in 0..ROUNDS as u64 {
        let data = 8 << 32 | round << 1;
        let since = Instant::now();
        while end.endpoint.inject_writedata(to, Source::Copied(&[1; 8]), data).unwrap() == Posted::Again {
            end.poll();
            assert!(since.elapsed() < LONG);
        }
        while !end.take(&Completion::Arrived { data: data + 1 }) {
            slept += usize::from(sleep(&end.endpoint));
            end.poll();
            assert!(since.elapsed() < LONG);
        }
    }
    assert!(slept > 0);
    helper.end();
}

/// Sleeps until the endpoint has something. False if it has already.
fn sleep(endpoint: &Endpoint) -> bool {
    use std::os::fd::AsRawFd;
    if !endpoint.may_sleep() {
        return false;
    }
    let mut poll = libc::pollfd { fd: endpoint.descriptor().unwrap().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid structure.
    unsafe { libc::poll(&mut poll, 1, 1000) };
    true
}
