//! The output of the ranks: whole lines, each with its rank, as far as somebody reads them; and the launcher's own
//! messages.
//!
//! Writing may block for as long as the reader likes, so it happens on threads that are never waited for without a
//! limit.

use super::Event;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write, stderr, stdout};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A longer line is printed in pieces, so that output without line ends needs no more memory.
const LONGEST_LINE: u64 = 1 << 20;

/// The destination of a rank's output.
#[derive(Clone, Copy)]
pub enum Sink {
    Stdout,
    Stderr,
}

/// One stream of a rank, copied to the launcher's.
pub struct Stream {
    rank: usize,
    sink: Sink,
    passed: Arc<Passed>,
    /// Dead when the copying has ended.
    source: Weak<File>,
}

/// Byte counts of the rank's output, without prefixes.
#[derive(Default)]
struct Passed {
    read: AtomicU64,
    written: AtomicU64,
}

impl Stream {
    /// Copies on a separate thread, which sends an event when everything is done.
    pub fn copy(rank: usize, prefix: &str, source: OwnedFd, sink: Sink, events: Sender<Event>) -> io::Result<Stream> {
        let source = Arc::new(File::from(source));
        let stream = Stream { rank, sink, passed: Arc::default(), source: Arc::downgrade(&source) };
        let (passed, prefix, name) = (stream.passed.clone(), prefix.as_bytes().to_vec(), stream.name());
        super::spawn(move || {
            let copied = match sink {
                Sink::Stdout => prefix_lines(&prefix, &source, stdout, &passed),
                Sink::Stderr => prefix_lines(&prefix, &source, stderr, &passed),
            };
            // A reader that has closed its end has seen enough: the rank gets a broken pipe, as it would without a
            // launcher. Any other failure is reported before the pipe ends, which may end the rank.
            if let Err(error) = copied
                && error.kind() != io::ErrorKind::BrokenPipe
            {
                _ = events.send(Event::Unwritten(name, error));
            }
            drop(source);
            _ = events.send(Event::Drained);
        })?;
        Ok(stream)
    }

    /// Bytes of the rank that have been printed.
    pub fn written(&self) -> u64 {
        // Relaxed, like everything here: these numbers are only compared and guard nothing.
        self.passed.written.load(Ordering::Relaxed)
    }

    /// Bytes the rank has printed so far, including those in its pipe.
    pub fn printed(&self) -> u64 {
        let Some(source) = self.source.upgrade() else { return self.written() };
        let read = self.passed.read.load(Ordering::Relaxed);
        let mut waiting: libc::c_int = 0;
        // SAFETY: the call writes one number, which lives through it; the descriptor is open while `source` is held.
        let known = unsafe { libc::ioctl(source.as_raw_fd(), libc::FIONREAD, &raw mut waiting) } == 0;
        read + if known { waiting as u64 } else { 0 }
    }

    /// True if the copying has ended: everything is written, or will never be read.
    pub fn has_ended(&self) -> bool {
        self.source.strong_count() == 0
    }

    /// A name of the stream for messages.
    pub fn name(&self) -> String {
        let name = match self.sink {
            Sink::Stdout => "stdout",
            Sink::Stderr => "stderr",
        };
        format!("{name} of rank {}", self.rank)
    }
}

/// Copies a rank's output line by line, each in one write, until it ends or cannot be written.
fn prefix_lines<W: Write>(prefix: &[u8], source: &File, sink: impl Fn() -> W, passed: &Passed) -> io::Result<()> {
    let mut source = BufReader::new(Counted { source, read: &passed.read });
    loop {
        let mut line = prefix.to_vec();
        let length = source.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)?;
        if length == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        let mut sink = sink();
        sink.write_all(&line)?;
        sink.flush()?;
        passed.written.fetch_add(length as u64, Ordering::Relaxed);
    }
}

struct Counted<'p> {
    source: &'p File,
    read: &'p AtomicU64,
}

impl Read for Counted<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(bytes)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// The launcher's messages on stderr. Sending one never waits.
pub struct Voice {
    lines: Sender<String>,
    said: Receiver<()>,
}

impl Voice {
    pub fn new() -> io::Result<Voice> {
        let ((lines, to_say), (done, said)) = (channel::<String>(), channel());
        super::spawn(move || {
            for line in to_say {
                _ = writeln!(stderr(), "tilewire: {line}");
            }
            _ = done.send(());
        })?;
        Ok(Voice { lines, said })
    }

    pub fn say(&self, line: String) {
        _ = self.lines.send(line);
    }

    /// Waits a while for messages that are not written yet.
    pub fn end(self, patience: Duration) {
        drop(self.lines);
        _ = self.said.recv_timeout(patience);
    }
}
