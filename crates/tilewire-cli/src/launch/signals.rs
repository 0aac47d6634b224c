//! SIGINT, SIGTERM and SIGHUP as events, and the meaning of several in a row.

use super::Event;
use anyhow::{Context, Result, anyhow};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// One request often arrives as several signals: `timeout` signals its child and then its group, and a terminal and a
/// supervisor both announce the end. Signals this soon after the first repeat it.
const SAME: Duration = Duration::from_millis(500);

/// The meaning of a signal after earlier ones.
#[derive(Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The first: passed on to the ranks, which decide what to do.
    PassOn,
    /// A repetition of the first.
    Repeated,
    /// Another one: the sender insists.
    Insists,
}

/// The signals so far.
#[derive(Default)]
pub struct Signals {
    first: Option<Instant>,
}

impl Signals {
    pub fn meaning(&mut self, at: Instant) -> Meaning {
        match self.first {
            None => {
                self.first = Some(at);
                Meaning::PassOn
            }
            Some(first) if at.saturating_duration_since(first) < SAME => Meaning::Repeated,
            Some(_) => Meaning::Insists,
        }
    }
}

/// The pipe to which the handler writes the signal's number.
static PIPE: AtomicI32 = AtomicI32::new(-1);
/// The process whose signals become events. A rank that was forked and has not executed its program yet also has this
/// handler.
static LAUNCHER: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_signal(signal: libc::c_int) {
    let byte = signal as u8;
    // SAFETY: a handler may only use async-signal-safe functions: atomic loads, `getpid`, `signal`, `raise` and `write`
    // are. The byte lives through the call, and the descriptor is never closed. If the pipe is full, enough signals are
    // pending. errno, which `write` may change under the interrupted code, is restored.
    unsafe {
        if libc::getpid() != LAUNCHER.load(Ordering::Relaxed) {
            // A rank before its program runs: the signal was meant for it, and ends it as soon as the handler returns.
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
            return;
        }
        let errno = libc::__errno_location();
        let before = *errno;
        libc::write(PIPE.load(Ordering::Relaxed), (&raw const byte).cast(), 1);
        *errno = before;
    }
}

/// Turns SIGINT, SIGTERM and SIGHUP into events.
pub fn listen(events: Sender<Event>) -> Result<()> {
    let (mut source, sink) = io::pipe().context("no pipe for signals")?;
    let sink = OwnedFd::from(sink);
    // SAFETY: `fcntl` takes plain numbers, and the descriptor is open. The handler must not block.
    unsafe { libc::fcntl(sink.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    PIPE.store(sink.as_raw_fd(), Ordering::Relaxed);
    LAUNCHER.store(std::process::id() as libc::pid_t, Ordering::Relaxed);
    // It must stay open as long as a signal can come: to the end of the process.
    std::mem::forget(sink);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: both structures are plain data for which zeros are a value (no flags, empty mask), and live through
        // the calls. The handler is async-signal-safe, see there, and what it uses is set up above.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            // A process started by nohup must survive the end of its terminal.
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
    let watch = move || {
        let mut byte = [0];
        while source.read_exact(&mut byte).is_ok()
            && events.send(Event::Signal { number: byte[0].into(), at: Instant::now() }).is_ok()
        {}
    };
    super::spawn(watch).map_err(|error| anyhow!(super::no_thread("signals", &error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;
    use std::sync::mpsc::channel;

    #[test]
    fn signals_close_together_are_one() {
        let (mut signals, start) = (Signals::default(), Instant::now());
        assert_eq!(signals.meaning(start), Meaning::PassOn);
        assert_eq!(signals.meaning(start), Meaning::Repeated);
        assert_eq!(signals.meaning(start + SAME - Duration::from_millis(1)), Meaning::Repeated);
        assert_eq!(signals.meaning(start + SAME), Meaning::Insists);
        assert_eq!(signals.meaning(start + 2 * SAME), Meaning::Insists);
    }

    #[test]
    fn a_signal_between_fork_and_exec_is_the_ranks_and_not_the_launchers() {
        let (events, inbox) = channel();
        listen(events).unwrap();
        let mut command = Command::new("true");
        // SAFETY: `raise` is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                libc::raise(libc::SIGTERM);
                Ok(())
            });
        }
        assert_eq!(command.status().unwrap().signal(), Some(libc::SIGTERM));
        // SAFETY: the handler is in place.
        unsafe { libc::raise(libc::SIGINT) };
        let Event::Signal { number, .. } = inbox.recv().unwrap() else { panic!("another event") };
        assert_eq!(number, libc::SIGINT, "the first that the launcher hears of is its own");
    }
}
