//! `tilewire launch`: starts the ranks of a job on this host and stays with them to the end.
//!
//! ```text
//!   main thread:  spawn ranks ──▶ events ──▶ kill the rest, or go on ──▶ first failing status
//!                                   ▲
//!   one thread per rank: it ended ──┤     one per stream: whole lines, prefixed by [rank] ──▶ stdout, stderr
//!   one thread: a signal came ──────┘
//! ```
//!
//! Each rank leads a process group of its own, so that what it starts can be ended with it, and so that the terminal's Ctrl-C
//! reaches it once, through the launcher. The kernel kills a rank when the launcher dies (`PR_SET_PDEATHSIG`). What a rank
//! moves into another session or group, nobody here can find again.

use anyhow::{Context, Result};
use std::io::{self, BufRead, BufReader, Read, Write, stderr, stdout};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tilewire::transport::{Limits, Secret, StoreServer};

/// Between asking the rest to end (SIGTERM) and ending them (SIGKILL).
const GRACE: Duration = Duration::from_secs(2);
/// After the last rank, how long output is waited for that something it left behind could still write.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// A line longer than this is printed in pieces, so that output without line ends needs no more memory.
const LONGEST_LINE: u64 = 1 << 20;

/// What to launch.
#[derive(Debug, PartialEq, Eq)]
pub struct Job {
    /// How many ranks.
    pub ranks: usize,
    /// What `TILEWIRE_DEADLINE` says, where it is not what it says here.
    pub deadline: Option<String>,
    /// The program and its arguments.
    pub program: Vec<String>,
    /// Whether lines of output are prefixed by `[rank]`.
    pub prefixed: bool,
}

/// Runs a job; gives the first failing status, 128 + the number where a signal ended a rank.
pub fn launch(job: &Job) -> Result<ExitCode> {
    let secret = Secret::random()?;
    let store = StoreServer::start("127.0.0.1:0", job.ranks, &secret, Limits::default())?;
    let (events, inbox) = channel();
    listen_for_signals(events.clone())?;
    let mut running = Running { ranks: Vec::new(), failed: None, kill_at: None };
    for rank in 0..job.ranks {
        let mut command = Command::new(&job.program[0]);
        command.args(&job.program[1..]);
        command.env("TILEWIRE_RANK", rank.to_string()).env("TILEWIRE_LOCAL_RANK", rank.to_string());
        command.env("TILEWIRE_WORLD_SIZE", job.ranks.to_string()).env("TILEWIRE_STORE", store.address().to_string());
        command.env("TILEWIRE_SECRET", secret.expose()).env_remove("TILEWIRE_STORE_HOST");
        command.envs(job.deadline.iter().map(|deadline| ("TILEWIRE_DEADLINE", deadline)));
        let prefix = if job.prefixed { format!("[{rank}] ") } else { String::new() };
        match start(command, rank, &prefix, &events) {
            Ok(child) => running.ranks.push(Some(child)),
            Err(error) => {
                _ = writeln!(stderr(), "tilewire: cannot start '{}' as rank {rank}: {error}", job.program[0]);
                // As shells say it: not found, or not to be executed.
                running.fail(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 });
                break;
            }
        }
    }
    let streams = 2 * running.ranks.len();
    Ok(ExitCode::from(running.stay_with(&inbox, streams)))
}

enum Event {
    /// A rank has ended and is not reaped yet.
    Ended(usize),
    /// A stream of a rank has ended.
    Drained,
    /// The launcher got a signal.
    Signal(i32),
}

struct Running {
    /// `None` once reaped.
    ranks: Vec<Option<Child>>,
    /// The first failing status.
    failed: Option<u8>,
    /// When those who were asked to end will be killed.
    kill_at: Option<Instant>,
}

impl Running {
    fn stay_with(mut self, inbox: &Receiver<Event>, mut streams: usize) -> u8 {
        let mut signals = 0;
        while self.ranks.iter().any(Option::is_some) {
            match self.next(inbox) {
                Some(Event::Ended(rank)) => self.reap(rank),
                Some(Event::Drained) => streams -= 1,
                Some(Event::Signal(signal)) => {
                    // The first is passed on, for the ranks to do with as they like. Who sends a second means it.
                    signals += 1;
                    self.signal_all(if signals == 1 { signal } else { libc::SIGKILL });
                }
                None => {
                    self.signal_all(libc::SIGKILL);
                    self.kill_at = None;
                }
            }
        }
        let last = Instant::now() + LAST_WORDS;
        while streams > 0 {
            match inbox.recv_timeout(last.saturating_duration_since(Instant::now())) {
                Ok(Event::Drained) => streams -= 1,
                Ok(_) => {}
                Err(_) => break,
            }
        }
        self.failed.unwrap_or(0)
    }

    /// What happens next; `None` is that it is time to kill.
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
        let Some(mut child) = self.ranks[rank].take() else { return };
        // Before the rank is reaped, so that its number is still its own: what it has left behind in its group.
        signal_group(&child, libc::SIGKILL);
        let status = child.wait();
        let (code, how) =
            status.as_ref().map_or((1, "could not be waited for".to_string()), |&status| described(status));
        if code != 0 && self.failed.is_none() {
            // First the deed: a reader of stderr that has stopped must not keep the others alive.
            self.fail(code);
            _ = writeln!(stderr(), "tilewire: rank {rank} {how}; ending the others");
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
        (None, None) => (1, "ended, nobody knows how".to_string()),
    }
}

/// Starts one rank, and the threads that watch it. Called on the main thread: the kernel ties a rank's life to the thread that
/// started it.
fn start(mut command: Command, rank: usize, prefix: &str, events: &Sender<Event>) -> io::Result<Child> {
    let launcher = std::process::id();
    // Which of the ranks would get the terminal's input? None of them.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    // SAFETY: between fork and exec only async-signal-safe functions may run. `prctl` and `getppid` are system calls that take
    // plain numbers; `last_os_error` and `from_raw_os_error` read errno and make a value that owns no memory.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) != 0 {
                return Err(io::Error::last_os_error());
            }
            // A launcher that died before the line above is not told of by the kernel any more.
            if libc::getppid() as u32 != launcher {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
    let mut child = command.spawn()?;
    let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let (pid, ended) = (child.id(), events.clone());
    thread::spawn(move || {
        wait_unreaped(pid);
        _ = ended.send(Event::Ended(rank));
    });
    let drained = [events.clone(), events.clone()];
    let [out_drained, err_drained] = drained;
    let [out_prefix, err_prefix] = [prefix.as_bytes().to_vec(), prefix.as_bytes().to_vec()];
    thread::spawn(move || {
        _ = prefix_lines(&out_prefix, out, stdout);
        _ = out_drained.send(Event::Drained);
    });
    thread::spawn(move || {
        _ = prefix_lines(&err_prefix, err, stderr);
        _ = err_drained.send(Event::Drained);
    });
    Ok(child)
}

/// Copies a rank's output, line by line, each in one write. When nobody reads what the launcher prints, it stops, and the rank
/// meets a broken pipe, as it would without a launcher.
fn prefix_lines<W: Write>(prefix: &[u8], source: impl Read, sink: impl Fn() -> W) -> io::Result<()> {
    let mut source = BufReader::new(source);
    loop {
        let mut line = prefix.to_vec();
        source.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)?;
        if line.len() == prefix.len() {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        let mut sink = sink();
        sink.write_all(&line)?;
        sink.flush()?;
    }
}

/// Returns when a child has ended, and leaves it to be reaped: until then its number, and its group's, is not given out again.
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

/// Sends a signal to a rank and all it has started, as far as it has stayed in its group.
fn signal_group(child: &Child, signal: i32) {
    // SAFETY: `kill` takes plain numbers. The child is not reaped while a `Child` is in `Running::ranks`, so its number names
    // its group and no stranger's; it fits, since it came from a pid_t. A group that is gone is an error nobody needs.
    unsafe { libc::kill(-(child.id() as libc::pid_t), signal) };
}

/// Where the handler writes the number of the signal.
static SIGNAL_PIPE: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_signal(signal: libc::c_int) {
    let byte = signal as u8;
    // SAFETY: a handler may only do what is async-signal-safe: an atomic load and `write` are. The byte lives through the call,
    // and the descriptor is never closed. If the pipe is full, signals enough are under way. errno, which `write` may change
    // under the code that was interrupted, is put back.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        libc::write(SIGNAL_PIPE.load(Ordering::Relaxed), (&raw const byte).cast(), 1);
        *errno = before;
    }
}

/// Turns SIGINT, SIGTERM and SIGHUP into events.
fn listen_for_signals(events: Sender<Event>) -> Result<()> {
    let (mut source, sink) = io::pipe().context("no pipe for signals")?;
    let sink = OwnedFd::from(sink);
    // SAFETY: `fcntl` takes plain numbers, and the descriptor is open. Not to block in the handler.
    unsafe { libc::fcntl(sink.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    SIGNAL_PIPE.store(sink.as_raw_fd(), Ordering::Relaxed);
    // It must stay open as long as a signal can come: to the end of the process.
    std::mem::forget(sink);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: both structures are plain data for which zeros are a value (no flags, empty mask), and live through the
        // calls. The handler is async-signal-safe, see there, and what it uses is set up above.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            // Who is started by nohup is to go on when the terminal goes.
            if signal == libc::SIGHUP
                && libc::sigaction(signal, std::ptr::null(), &mut old) == 0
                && old.sa_sigaction == libc::SIG_IGN
            {
                continue;
            }
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
            new.sa_flags = libc::SA_RESTART;
            if libc::sigaction(signal, &new, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error()).context("no handler for signals");
            }
        }
    }
    thread::spawn(move || {
        let mut byte = [0];
        while source.read_exact(&mut byte).is_ok() && events.send(Event::Signal(byte[0].into())).is_ok() {}
    });
    Ok(())
}
