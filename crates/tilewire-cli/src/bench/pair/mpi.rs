//! Open MPI as a side: two processes of its own, driven line by line, that time and probe themselves.
//!
//! The program (`mpi_peer.c`) is compiled here when `mpirun` and `mpicc` are found. Between its turns its processes sleep.

use super::side::Pattern;
use anyhow::{Context, Result, bail, ensure};
use std::ffi::CString;
use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const PROGRAM: &str = include_str!("mpi_peer.c");
/// How long an answer may take: the first one includes the start of the job.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the job may take to end.
const GRACE: Duration = Duration::from_secs(3);

/// Open MPI, ready to be measured, or why it is not.
pub enum Peer {
    /// Jobs with cross-process copies (CMA) and without.
    Running {
        /// With.
        cma: Box<Job>,
        /// Without.
        shm: Box<Job>,
    },
    /// What reports say in place of figures.
    Missing(String),
}

impl Peer {
    /// Starts it where it is installed. Before this thread is tied to a core: what it starts would be tied to it too.
    pub fn start() -> Peer {
        let Some(version) = version() else { return Peer::Missing("not installed".into()) };
        let single_copy: &[&str] = match version {
            0..=4 => &["--mca", "btl_vader_single_copy_mechanism", "none"],
            _ => &["--mca", "smsc", "^cma,xpmem,knem"],
        };
        let jobs = Folder::new().and_then(|folder| {
            compile(&folder.0)?;
            Ok((Box::new(Job::start(&folder, &[])?), Box::new(Job::start(&folder, single_copy)?)))
        });
        match jobs {
            Ok((cma, shm)) => Peer::Running { cma, shm },
            Err(error) => Peer::Missing(format!("does not run: {error:#}")),
        }
    }
}

/// The major version, if `mpirun` is Open MPI's and there is an `mpicc`.
fn version() -> Option<u32> {
    let output = |program: &str| Command::new(program).arg("--version").stdin(Stdio::null()).output().ok();
    output("mpicc")?;
    parse_version(&String::from_utf8_lossy(&output("mpirun")?.stdout))
}

/// `mpirun (Open MPI) 4.1.4` is 4.
fn parse_version(text: &str) -> Option<u32> {
    let (_, number) = text.lines().next()?.split_once("(Open MPI) ")?;
    number.split('.').next()?.parse().ok()
}

fn compile(folder: &Path) -> Result<()> {
    fs::write(folder.join("peer.c"), PROGRAM)?;
    let output = Command::new("mpicc").args(["-O3", "-o", "peer", "peer.c"]).current_dir(folder).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "mpicc: {}", said.lines().next().unwrap_or("failed"));
    Ok(())
}

/// What a command was answered with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// All steps together.
    pub took: Duration,
    /// A cache line's way before and after.
    pub probes_ns: (f64, f64),
}

impl Answer {
    /// Reads `ok NANOSECONDS PROBE PROBE`.
    fn parse(line: &str) -> Result<Answer> {
        let numbers = line.strip_prefix("ok ").with_context(|| format!("Open MPI's side says: {}", line.trim()))?;
        let numbers: Vec<f64> = numbers.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [ns, before, after] = numbers[..] else {
            bail!("Open MPI's side says '{}', which is no time", line.trim())
        };
        ensure!((0.0..1e18).contains(&ns), "Open MPI's side says {ns} ns");
        Ok(Answer { took: Duration::from_nanos(ns as u64), probes_ns: (before, after) })
    }
}

/// Two ranks under one `mpirun`.
pub struct Job {
    child: Child,
    /// Closed to end the job.
    commands: Option<ChildStdin>,
    answers: Receiver<String>,
    /// What the job complained of.
    complaints: PathBuf,
    _folder: Folder,
}

impl Job {
    fn start(program: &Folder, options: &[&str]) -> Result<Job> {
        let folder = Folder::new()?;
        let [fifo, page, complaints] = ["commands", "page", "stderr"].map(|name| folder.0.join(name));
        fs::write(&page, [0; 4096])?;
        make_fifo(&fifo)?;
        // To a copy of its own, since the jobs end in any order.
        fs::copy(program.0.join("peer"), folder.0.join("peer"))?;
        let mut command = Command::new("mpirun");
        command.args(["-np", "2", "--oversubscribe", "--bind-to", "none"]).args(options);
        command.arg(folder.0.join("peer")).args([&fifo, &page]);
        // It refuses to run as root unless told twice; in containers there is often nobody else.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&complaints)?);
        let mut child = command.spawn().context("mpirun")?;
        let (commands, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            // Ends when the job does, or when nobody listens.
            BufReader::new(output).lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        let mut job = Job { child, commands, answers, complaints, _folder: folder };
        job.check(Pattern::Stream, 8)?;
        Ok(job)
    }

    /// Checks every word of some messages.
    pub fn check(&mut self, pattern: Pattern, bytes: usize) -> Result<()> {
        self.ask(&format!("check {} {bytes}", pattern.name())).map(|_| ())
    }

    /// Times some steps.
    pub fn run(&mut self, pattern: Pattern, bytes: usize, steps: u64) -> Result<Answer> {
        self.ask(&command(pattern, bytes, steps))
    }

    fn ask(&mut self, command: &str) -> Result<Answer> {
        let commands = self.commands.as_mut().expect("open until it is dropped");
        let said = writeln!(commands, "{command}").and_then(|()| commands.flush());
        let answer = said.ok().and_then(|()| self.answers.recv_timeout(PATIENCE).ok());
        let Some(answer) = answer else {
            let complaints = fs::read_to_string(&self.complaints).unwrap_or_default();
            let last = complaints.lines().map(str::trim).rfind(|line| line.chars().any(char::is_alphabetic));
            bail!("Open MPI's side does not answer to '{command}'; it said: {}", last.unwrap_or("nothing"));
        };
        Answer::parse(&answer)
    }
}

fn command(pattern: Pattern, bytes: usize, steps: u64) -> String {
    format!("{} {bytes} {steps}", pattern.name())
}

impl Drop for Job {
    /// Lets the job end by itself, since then nothing of it stays; not for long.
    fn drop(&mut self) {
        self.commands = None;
        let until = Instant::now() + GRACE;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A folder for this user alone that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        // Relaxed: only its being different each time matters.
        let name = format!("tilewire-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn make_fifo(path: &Path) -> Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the name ends with a zero and lives through the call.
    ensure!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) } == 0, "mkfifo: {}", std::io::Error::last_os_error());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_lines_that_the_program_reads() {
        assert_eq!(command(Pattern::Stream, 65536, 12), "stream 65536 12");
        assert_eq!(command(Pattern::PingPong, 8, 1), "pingpong 8 1");
        assert_eq!(command(Pattern::Both, 1, 3), "both 1 3");
        // The program tells the patterns apart by their first letters.
        for pattern in [Pattern::Stream, Pattern::PingPong, Pattern::Both] {
            assert!(PROGRAM.contains(pattern.name()));
        }
    }

    #[test]
    fn answers_are_read_and_refusals_are_passed_on() {
        let answer = Answer::parse("ok 1234.5 60.25 61.00\n").unwrap();
        assert_eq!(answer, Answer { took: Duration::from_nanos(1234), probes_ns: (60.25, 61.0) });
        for (line, reason) in [
            ("wrong message", "says: wrong message"),
            ("", "says: "),
            ("ok 1 2", "no time"),
            ("ok x 1 2", "no time"),
            ("ok -1 2 3", "says -1 ns"),
        ] {
            let error = Answer::parse(line).unwrap_err().to_string();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn only_open_mpi_counts() {
        assert_eq!(parse_version("mpirun (Open MPI) 4.1.4\n\nReport bugs to\n"), Some(4));
        assert_eq!(parse_version("mpirun (Open MPI) 5.0.6"), Some(5));
        assert_eq!(parse_version("HYDRA build details:\n"), None);
        assert_eq!(parse_version(""), None);
    }

    /// Where Open MPI is installed, its side moves what it says it moves.
    #[test]
    fn the_program_answers_where_it_can_run() {
        match Peer::start() {
            Peer::Missing(why) => println!("SKIP: Open MPI {why}"),
            Peer::Running { mut cma, mut shm } => {
                for job in [&mut cma, &mut shm] {
                    for pattern in [Pattern::Stream, Pattern::PingPong, Pattern::Both] {
                        job.check(pattern, 100_000).unwrap();
                        let answer = job.run(pattern, 100_000, 3).unwrap();
                        assert!(answer.took > Duration::ZERO && answer.probes_ns.0 > 0.0);
                    }
                }
                assert!(cma.ask("fly").unwrap_err().to_string().contains("a command that is none"));
                assert!(cma.run(Pattern::Stream, 8, 1).is_ok());
            }
        }
    }
}
