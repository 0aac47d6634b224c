//! Ranks as processes: the test binary runs itself again, once per rank, and talks to the children through their
//! standard input.
//!
//! The parent is a script. It says when the ranks gather and when one is killed, and it reads the report of each.
//! Reading has a deadline, so a rank that hangs is a failure.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(15);

/// The ranks of a job, as their parent sees them.
pub struct Job {
    children: Vec<Child>,
    lines: Vec<UnixStream>,
}

impl Job {
    /// Runs the test of this name again in `ranks` processes.
    pub fn start(test: &str, ranks: usize) -> Job {
        Job::start_with(test, ranks, |_, command| command)
    }

    /// Does the same. `adapt` may change a rank's command.
    pub fn start_with(test: &str, ranks: usize, adapt: impl Fn(usize, &mut Command) -> &mut Command) -> Job {
        let mut job = Job { children: Vec::new(), lines: Vec::new() };
        for rank in 0..ranks {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
            command.env("TILEWIRE_TEST_MEMBER", format!("{rank}/{ranks}"));
            command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
            job.children.push(adapt(rank, &mut command).spawn().unwrap());
            job.lines.push(ours);
        }
        job
    }

    /// Sets how long a rank may take to report from now on.
    pub fn allow(&self, patience: Duration) {
        self.lines.iter().for_each(|line| line.set_read_timeout(Some(patience)).unwrap());
    }

    /// Runs one all-gather among all ranks, and returns the gathered values.
    pub fn gather(&mut self) -> Vec<Vec<u8>> {
        let parts: Vec<Vec<u8>> =
            self.lines.iter_mut().map(|line| receive(line).expect("every rank gathers")).collect();
        for line in &mut self.lines {
            // A rank that was told to die may be gone.
            let _ = parts.iter().try_for_each(|part| send(line, part));
        }
        parts
    }

    /// The values that these ranks give to an all-gather. The caller finishes it with `tell`.
    pub fn collect(&mut self, ranks: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
        ranks.into_iter().map(|rank| receive(&mut self.lines[rank]).expect("every rank gathers")).collect()
    }

    /// The next report of a rank.
    #[track_caller]
    pub fn report(&mut self, rank: usize) -> String {
        match receive(&mut self.lines[rank]) {
            Ok(text) => String::from_utf8(text).unwrap(),
            Err(error) => panic!("no report of rank {rank}: {error}"),
        }
    }

    /// Asserts the next report of all these ranks.
    #[track_caller]
    pub fn expect(&mut self, ranks: impl IntoIterator<Item = usize>, text: &str) {
        for rank in ranks {
            assert_eq!(self.report(rank), text, "rank {rank}");
        }
    }

    /// Tells a rank something.
    pub fn tell(&mut self, rank: usize, text: &[u8]) {
        send(&mut self.lines[rank], text).unwrap();
    }

    /// Ends a rank with SIGKILL and waits until it is gone.
    pub fn kill(&mut self, rank: usize) {
        self.children[rank].kill().unwrap();
        self.children[rank].wait().unwrap();
    }

    /// Waits for a rank to end.
    pub fn ends(&mut self, rank: usize) -> std::process::ExitStatus {
        self.children[rank].wait().unwrap()
    }

    /// The process of a rank.
    pub fn pid(&self, rank: usize) -> i32 {
        self.children[rank].id() as i32
    }

    /// Waits for all ranks to end well.
    #[track_caller]
    pub fn finish(mut self) {
        for (rank, child) in self.children.iter_mut().enumerate() {
            assert!(child.wait().unwrap().success(), "rank {rank} failed; its panic is above");
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One rank in its own process.
pub struct Member {
    pub rank: usize,
    pub size: usize,
    line: UnixStream,
}

impl Member {
    /// `None` in the parent.
    pub fn of_this_process() -> Option<Member> {
        let member = std::env::var("TILEWIRE_TEST_MEMBER").ok()?;
        let (rank, size) = member.split_once('/')?;
        let line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
        line.set_read_timeout(Some(PATIENCE)).unwrap();
        Some(Member { rank: rank.parse().unwrap(), size: size.parse().unwrap(), line })
    }

    /// The all-gather that runs through the parent.
    pub fn exchange(&mut self, mine: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        send(&mut self.line, mine)?;
        (0..self.size).map(|_| receive(&mut self.line)).collect()
    }

    pub fn report(&mut self, text: impl AsRef<str>) {
        send(&mut self.line, text.as_ref().as_bytes()).unwrap();
    }

    /// The next line from the parent.
    pub fn hear(&mut self) -> Vec<u8> {
        receive(&mut self.line).expect("the parent says something")
    }
}

fn send(line: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    line.write_all(&(bytes.len() as u32).to_le_bytes())?;
    line.write_all(bytes)
}

fn receive(line: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    line.read_exact(&mut len)?;
    let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
    line.read_exact(&mut bytes)?;
    Ok(bytes)
}
