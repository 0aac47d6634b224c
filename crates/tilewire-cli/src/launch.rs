//! `tilewire launch`: starts the ranks of a job, on this host or on others (`hosts.rs`), and watches them to the end.
//!
//! ```text
//!   main thread:  spawn ranks ──▶ events ──▶ kill the rest, or go on ──▶ first failing status
//!                                   ▲
//!   one thread per rank: it ended ──┤     one per stream: whole lines, prefixed by [rank] ──▶ stdout, stderr
//!   one thread: a signal came ──────┘
//! ```
//!
//! Each rank leads its own process group, so that its children can be ended with it, and so that the terminal's Ctrl-C
//! reaches it once, through the launcher. The kernel kills a rank when the launcher dies (`PR_SET_PDEATHSIG`).
//! Processes that a rank moves into another session or group cannot be found again here.
//!
//! A reader that stops reading makes the ranks wait, as it would without a launcher, but not the main thread, which
//! never prints.

mod hosts;
mod output;
mod signals;

use crate::file_limit;
use anyhow::{Result, anyhow};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use output::{Sink, Stream, Voice};
use signals::{Meaning, Signals};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tilewire::transport::{Deadline, Limits, Secret, StoreServer, reserve_descriptors, start_thread};

/// Between asking the remaining ranks to end (SIGTERM) and killing them (SIGKILL).
const GRACE: Duration = Duration::from_secs(2);
/// After the last rank has ended, how long to wait for output of processes it left behind.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// After the last rank has ended, how long to wait for a reader that does not read their output. A signal shortens it.
const STALLED: Duration = Duration::from_secs(10);
/// Between two checks that it reads.
const LOOK: Duration = Duration::from_millis(50);
/// The stack of a thread that waits, or copies lines; with the default of 2 MiB fewer ranks would fit a limit on
/// memory.
const SMALL_STACK: usize = 128 << 10;

/// The most ranks that can be started: each costs the launcher three threads and two pipes.
pub const MOST_RANKS: u64 = 1024;

/// What to launch.
#[derive(Args, Debug, PartialEq, Eq)]
pub struct Job {
    /// Number of ranks
    #[arg(short = 'n', value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=MOST_RANKS))]
    pub ranks: usize,
    /// How long ranks wait for each other: 500ms, 30s, 2m, or off
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    pub deadline: Option<String>,
    /// Hosts to start the ranks on through ssh, in equal parts [default: this one]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = hosts::host)]
    pub hosts: Vec<String>,
    /// Address or interface at which the hosts reach this machine [default: found]
    #[arg(long, value_name = "ADDRESS", requires = "hosts")]
    pub address: Option<String>,
    /// The program and its arguments, passed on as they are
    #[arg(last = true, required = true)]
    pub program: Vec<OsString>,
    /// True if lines of output begin with `[rank]`.
    #[arg(skip = true)]
    pub prefixed: bool,
}

/// A time in the format of the ranks.
fn deadline(text: &str) -> Result<String, String> {
    let is_time = Deadline::parse_length(text).is_some();
    if is_time { Ok(text.to_string()) } else { Err("not a time: write 500ms, 30s, 2m or off".into()) }
}

/// Runs a job; returns the first failing status, 128 + the number if a signal ended a rank.
pub fn launch(job: &Job) -> Result<ExitCode> {
    // Ranks without an option have the deadline of this environment.
    let given = job.deadline.clone().or_else(|| std::env::var("TILEWIRE_DEADLINE").ok());
    let length = given.and_then(|text| Deadline::parse_length(&text)).unwrap_or(Some(Deadline::DEFAULT));
    let (secret, limits) = (Secret::random()?, Limits::default().within(length));
    // For each rank two pipes and a connection to the store; strangers; and the descriptors for starting a process.
    reserve_descriptors(job.ranks.saturating_mul(3).saturating_add(limits.strangers + 32))?;
    let (own, hosts) = (["this host".to_string()], &job.hosts);
    let places = hosts::places(job.ranks, if hosts.is_empty() { &own } else { hosts });
    let reached = if hosts.is_empty() { None } else { Some(hosts::Reached::of(hosts, job.address.as_deref())?) };
    let listen = reached.as_ref().map_or("127.0.0.1:0", |reached| &reached.listen);
    let store = StoreServer::start(listen, job.ranks, &secret, limits)?;
    let (events, inbox) = channel();
    signals::listen(events.clone())?;
    let mut running = Running::new()?;
    for (rank, &(host, local)) in places.iter().enumerate() {
        let address = match &reached {
            Some(reached) => {
                let number = hosts.iter().position(|known| known == host).expect("a rank's place is one of the hosts");
                reached.store(number, store.address().port())
            }
            None => store.address().to_string(),
        };
        let mut variables = vec![
            ("TILEWIRE_RANK", rank.to_string()),
            ("TILEWIRE_LOCAL_RANK", local.to_string()),
            ("TILEWIRE_WORLD_SIZE", job.ranks.to_string()),
            ("TILEWIRE_STORE", address),
            ("TILEWIRE_SECRET", secret.expose().to_string()),
        ];
        variables.extend(job.deadline.iter().map(|deadline| ("TILEWIRE_DEADLINE", deadline.clone())));
        let (command, script) = match &reached {
            Some(_) => (hosts::ssh(host), Some(hosts::script(&variables, &job.program)?)),
            None => {
                let mut command = Command::new(&job.program[0]);
                command.args(&job.program[1..]).envs(variables).env_remove("TILEWIRE_STORE_HOST");
                (command, None)
            }
        };
        let prefix = if job.prefixed { format!("[{rank}] ") } else { String::new() };
        match running.start(command, script, rank, &prefix, &events) {
            Ok(()) => continue,
            Err(Unstarted::Program(error)) => {
                let program = job.program[0].to_string_lossy();
                let through = if reached.is_some() { " through ssh" } else { "" };
                running.voice.say(format!("cannot start '{program}' as rank {rank}{through}: {error}"));
                // The same codes as in shells: not found, or not executable.
                running.fail(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 });
            }
            Err(Unstarted::Thread(error)) => {
                running.voice.say(no_thread(&format!("rank {rank}"), &error));
                running.fail(1);
            }
        }
        break;
    }
    Ok(ExitCode::from(running.stay_with(&inbox)))
}

/// Why a rank was not started.
enum Unstarted {
    /// Its program cannot be started.
    Program(io::Error),
    /// There is no thread to watch it.
    Thread(io::Error),
}

fn no_thread(what: &str, error: &io::Error) -> String {
    format!(
        "no thread to watch {what}: {error}; start fewer ranks, or raise the limits on threads and memory (ulimit -u, ulimit -v)"
    )
}

/// Starts a thread that watches something.
fn spawn(body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    start_thread(thread::Builder::new().stack_size(SMALL_STACK), body).map(drop)
}

enum Event {
    /// A rank has ended and is not reaped yet.
    Ended(usize),
    /// Output of a rank cannot be written and is lost: the stream and the error.
    Unwritten(String, io::Error),
    /// A stream of a rank has ended.
    Drained,
    /// The launcher received a signal.
    Signal { number: i32, at: Instant },
}

struct Running {
    /// `None` once reaped.
    ranks: Vec<Option<Child>>,
    /// The input of each rank's shell on another host. Closing it ends the rank there.
    lifelines: Vec<Option<ChildStdin>>,
    streams: Vec<Stream>,
    /// Streams that have ended.
    drained: usize,
    signals: Signals,
    voice: Voice,
    /// The first failing status.
    failed: Option<u8>,
    /// When the ranks that were asked to end will be killed.
    kill_at: Option<Instant>,
}

impl Running {
    fn new() -> Result<Running> {
        Ok(Running {
            ranks: Vec::new(),
            lifelines: Vec::new(),
            streams: Vec::new(),
            drained: 0,
            signals: Signals::default(),
            voice: Voice::new().map_err(|error| anyhow!(no_thread("the job", &error)))?,
            failed: None,
            kill_at: None,
        })
    }

    /// Starts one rank, and the threads that watch it. Must be called on the main thread: the kernel ties a rank's life
    /// to the thread that started it. `script` is what it reads first, if anything.
    fn start(
        &mut self,
        command: Command,
        script: Option<Vec<u8>>,
        rank: usize,
        prefix: &str,
        events: &Sender<Event>,
    ) -> Result<(), Unstarted> {
        let mut child = spawned(command, script.is_some()).map_err(Unstarted::Program)?;
        let mut lifeline = child.stdin.take();
        if let (Some(line), Some(script)) = (&mut lifeline, script) {
            // The text fits the pipe. If no process reads it, the rank's end is reported soon.
            _ = line.write_all(&script);
        }
        self.lifelines.push(lifeline);
        let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let (pid, ended) = (child.id(), events.clone());
        let watched = spawn(move || {
            wait_unreaped(pid);
            _ = ended.send(Event::Ended(rank));
        });
        if let Err(error) = watched {
            // No thread would report its end.
            signal_group(&child, libc::SIGKILL);
            _ = child.wait();
            return Err(Unstarted::Thread(error));
        }
        self.ranks.push(Some(child));
        for (source, sink) in [(out.into(), Sink::Stdout), (err.into(), Sink::Stderr)] {
            let stream = Stream::copy(rank, prefix, source, sink, events.clone());
            self.streams.push(stream.map_err(Unstarted::Thread)?);
        }
        Ok(())
    }

    fn stay_with(mut self, inbox: &Receiver<Event>) -> u8 {
        while self.ranks.iter().any(Option::is_some) {
            match self.next(inbox) {
                Some(Event::Ended(rank)) => self.reap(rank),
                Some(Event::Drained) => self.drained += 1,
                Some(Event::Unwritten(stream, error)) => self.lose(&stream, &error),
                Some(Event::Signal { number, at }) => match self.signals.meaning(at) {
                    Meaning::PassOn => self.signal_all(number),
                    Meaning::Repeated => {}
                    Meaning::Insists => self.signal_all(libc::SIGKILL),
                },
                None => {
                    self.signal_all(libc::SIGKILL);
                    self.kill_at = None;
                }
            }
        }
        for (stream, lost) in self.write_the_rest(inbox) {
            self.voice.say(format!("nobody reads {stream}: its last {lost} bytes are lost, or some of them"));
        }
        self.voice.end(LAST_WORDS);
        self.failed.unwrap_or(0)
    }

    /// Waits until the ranks' output is written; returns the unwritten rest as streams and numbers of bytes.
    ///
    /// Processes they left behind may hold their streams open, and even continue to print: those are waited for only
    /// briefly.
    fn write_the_rest(&mut self, inbox: &Receiver<Event>) -> Vec<(String, u64)> {
        let printed: Vec<u64> = self.streams.iter().map(Stream::printed).collect();
        let ended = Instant::now();
        let (mut written, mut moved) = (0, ended);
        while self.drained < self.streams.len() {
            match inbox.recv_timeout(LOOK) {
                Ok(Event::Drained) => self.drained += 1,
                Ok(Event::Unwritten(stream, error)) => self.lose(&stream, &error),
                // No rank is left to pass it on to: it is meant for the launcher.
                Ok(Event::Signal { at, .. }) if self.signals.meaning(at) != Meaning::Repeated => break,
                _ => {}
            }
            let now = self.streams.iter().map(Stream::written).sum();
            if now != written {
                (written, moved) = (now, Instant::now());
            }
            let is_due = self.unwritten(&printed).next().is_some();
            let is_over = if is_due { moved.elapsed() >= STALLED } else { ended.elapsed() >= LAST_WORDS };
            if is_over {
                break;
            }
        }
        self.unwritten(&printed).map(|(stream, bytes)| (stream.name(), bytes)).collect()
    }

    /// The streams whose output up to `printed` is not completely written, and the missing bytes.
    fn unwritten(&self, printed: &[u64]) -> impl Iterator<Item = (&Stream, u64)> {
        let missing =
            self.streams.iter().zip(printed).map(|(stream, all)| (stream, all.saturating_sub(stream.written())));
        missing.filter(|(stream, bytes)| *bytes > 0 && !stream.has_ended())
    }

    /// The next event; `None` when it is time to kill.
    fn next(&self, inbox: &Receiver<Event>) -> Option<Event> {
        let gone = "threads that send events outlive the ranks";
        let Some(at) = self.kill_at else { return Some(inbox.recv().expect(gone)) };
        match inbox.recv_timeout(at.saturating_duration_since(Instant::now())) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => unreachable!("{gone}"),
        }
    }

    fn reap(&mut self, rank: usize) {
        let Some(mut child) = self.ranks.get_mut(rank).and_then(Option::take) else { return };
        self.lifelines[rank] = None;
        // Kills what the rank has left behind in its group, before the rank is reaped: until then its number is still
        // its own.
        signal_group(&child, libc::SIGKILL);
        let status = child.wait();
        remove_shared_files(child.id());
        let (code, how) =
            status.as_ref().map_or((1, "could not be waited for".to_string()), |&status| described(status));
        if code != 0 && self.failed.is_none() {
            self.fail(code);
            self.voice.say(format!("rank {rank} {how}; ending the others"));
        }
    }

    /// Lost output is a failure, whatever the ranks return. One reason is enough: a full disk is full for all of them.
    fn lose(&mut self, stream: &str, error: &io::Error) {
        if self.failed.is_none() {
            self.voice.say(format!("cannot write {stream}: {error}; ending the job"));
            self.fail(1);
        }
    }

    fn fail(&mut self, code: u8) {
        self.failed = Some(code);
        self.kill_at = Some(Instant::now() + GRACE);
        self.signal_all(libc::SIGTERM);
    }

    fn signal_all(&self, signal: i32) {
        self.ranks.iter().flatten().for_each(|child| signal_group(child, signal));
    }
}

fn described(status: ExitStatus) -> (u8, String) {
    match (status.code(), status.signal()) {
        (Some(code), _) => (code as u8, format!("ended with status {code}")),
        (None, Some(signal)) => (128 + signal as u8, format!("was ended by signal {signal}")),
        (None, None) => (1, "ended for an unknown reason".to_string()),
    }
}

/// Removes what libfabric's shm provider leaves in shared memory for a process that did not end by itself: files of the
/// name `PID:USER:NUMBER`. The process was a child of this one and has ended, so nobody else has its number.
fn remove_shared_files(process: u32) {
    let Ok(folder) = std::fs::read_dir("/dev/shm") else { return };
    let is_its = |name: &str| {
        let mut numbers = name.split(':').map(|number| number.parse::<u32>().ok());
        numbers.next() == Some(Some(process)) && numbers.clone().count() == 2 && numbers.all(|number| number.is_some())
    };
    let of_process = |file: &std::fs::DirEntry| file.file_name().to_str().is_some_and(is_its);
    folder.filter_map(Result::ok).filter(of_process).for_each(|file| _ = std::fs::remove_file(file.path()));
}

/// Starts the program of a rank.
fn spawned(mut command: Command, reads: bool) -> io::Result<Child> {
    let launcher = std::process::id();
    // The terminal's input is for none of the ranks.
    command
        .stdin(if reads { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    // SAFETY: between fork and exec only async-signal-safe functions may run. `restore` is; `prctl` and `getppid` are
    // system calls that take plain numbers; `last_os_error` and `from_raw_os_error` read errno and make a value that
    // owns no memory.
    unsafe {
        command.pre_exec(move || {
            file_limit::restore();
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The kernel does not report a launcher that died before the line above.
            if libc::getppid() as u32 != launcher {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
    command.spawn()
}

/// Returns when a child has ended, without reaping it: until it is reaped, its number and its group's are not reused.
fn wait_unreaped(pid: u32) {
    loop {
        // SAFETY: `siginfo_t` is plain data for which zeros are a value, and lives through the call that fills it.
        let result = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOWAIT)
        };
        if result == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// Sends a signal to a rank and all processes it has started that are still in its group.
fn signal_group(child: &Child, signal: i32) {
    // SAFETY: `kill` takes plain numbers. The child is not reaped while a `Child` is in `Running::ranks`, so its number
    // names its group and no other; it fits, since it came from a pid_t. The error for a group that is gone does not
    // matter.
    unsafe { libc::kill(-(child.id() as libc::pid_t), signal) };
}
