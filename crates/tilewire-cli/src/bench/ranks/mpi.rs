//! MPI as a side: separate processes, driven line by line, that time and probe themselves.
//!
//! The program (`mpi_peer.c`) is compiled here with every installed MPI, Open MPI and MPICH. Between its turns its
//! processes sleep.

use anyhow::{Context, Result, anyhow, bail, ensure};
use std::ffi::CString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const PROGRAM: &str = include_str!("mpi_peer.c");
/// Bytes of a shared word's line in `mpi_peer.c`.
const LINE: usize = 128;
/// How long an answer may take. The first one includes the start of the job.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the job may take to end.
const GRACE: Duration = Duration::from_secs(3);

/// MPI programs, ready to be measured, or why there is none.
pub enum Peer {
    /// The running ones, with their names in reports.
    Running(Vec<(&'static str, Job)>),
    /// The text of reports instead of figures.
    Missing(String),
}

impl Peer {
    /// Starts all installed ones. Must run before this thread is tied to a core: processes it starts would be tied to
    /// it too.
    pub fn start(ranks: usize) -> Peer {
        let (mut jobs, mut last) = (Vec::new(), "not installed".to_string());
        for mpi in Mpi::installed() {
            match mpi.start(ranks) {
                Ok(started) => jobs.extend(started),
                Err(error) => last = format!("does not run: {error:#}"),
            }
        }
        if jobs.is_empty() { Peer::Missing(last) } else { Peer::Running(jobs) }
    }
}

/// A way that messages of Open MPI take: its name in reports, and the arguments of `mpirun` that choose it.
pub type Way = (&'static str, &'static [&'static str]);

/// Starts a job of Open MPI for every one of these ways, or says why it does not run. As for [`Peer::start`].
pub fn open_mpi(ranks: usize, ways: &[Way]) -> Vec<(&'static str, Result<Job>)> {
    let is_open = |mpi: &Mpi| matches!(mpi.make, Make::OpenMpi(_));
    let compiled = Mpi::installed().into_iter().find(is_open).context("not installed").and_then(|mpi| {
        let folder = Folder::new()?;
        mpi.compile(&folder.0)?;
        Ok((mpi, folder))
    });
    let start = |(_, words): &Way| {
        let (mpi, folder) = compiled.as_ref().map_err(|error| anyhow!("{error:#}"))?;
        Job::start(folder, &mpi.launcher, ranks, &[OVERSUBSCRIBED, *words].concat())
    };
    ways.iter().map(|way| (way.0, start(way))).collect()
}

/// Open MPI refuses to run more ranks than cores without this option; MPICH does not.
const OVERSUBSCRIBED: &[&str] = &["--oversubscribe", "--bind-to", "none"];

/// The implementation of an `mpirun`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Make {
    /// Open MPI, with its major version.
    OpenMpi(u32),
    Mpich,
}

impl Make {
    /// `mpirun (Open MPI) 4.1.4` is 4; MPICH's is called Hydra.
    fn parse(text: &str) -> Option<Make> {
        let first = text.lines().next()?;
        if first.starts_with("HYDRA") {
            return Some(Make::Mpich);
        }
        let (_, number) = first.split_once("(Open MPI) ")?;
        Some(Make::OpenMpi(number.split('.').next()?.parse().ok()?))
    }
}

/// An MPI that can compile and run.
struct Mpi {
    make: Make,
    compiler: String,
    launcher: String,
}

impl Mpi {
    /// The first of each implementation: the system's default, then Debian's names.
    fn installed() -> Vec<Mpi> {
        let mut found: Vec<Mpi> = Vec::new();
        for suffix in ["", ".openmpi", ".mpich"] {
            let (compiler, launcher) = (format!("mpicc{suffix}"), format!("mpirun{suffix}"));
            let output = |program: &str| Command::new(program).arg("--version").stdin(Stdio::null()).output().ok();
            let said = output(&compiler).and_then(|_| output(&launcher));
            let Some(make) = said.and_then(|said| Make::parse(&String::from_utf8_lossy(&said.stdout))) else {
                continue;
            };
            if found.iter().all(|mpi| mem::discriminant(&mpi.make) != mem::discriminant(&make)) {
                found.push(Mpi { make, compiler, launcher });
            }
        }
        found
    }

    /// Compiles the program and starts a job for every way that messages can take.
    fn start(&self, ranks: usize) -> Result<Vec<(&'static str, Job)>> {
        let folder = Folder::new()?;
        self.compile(&folder.0)?;
        let open = OVERSUBSCRIBED;
        let ways: &[(&str, &[&str], &[&str])] = match self.make {
            Make::OpenMpi(0..=4) => &[
                ("Open MPI, CMA", open, &[]),
                ("Open MPI, no CMA", open, &["--mca", "btl_vader_single_copy_mechanism", "none"]),
            ],
            Make::OpenMpi(_) => {
                &[("Open MPI, CMA", open, &[]), ("Open MPI, no CMA", open, &["--mca", "smsc", "^cma,xpmem,knem"])]
            }
            Make::Mpich => &[("MPICH", &["-bind-to", "none"], &[])],
        };
        ways.iter()
            .map(|(name, usual, more)| {
                Ok((*name, Job::start(&folder, &self.launcher, ranks, &[*usual, *more].concat())?))
            })
            .collect()
    }

    fn compile(&self, folder: &Path) -> Result<()> {
        fs::write(folder.join("peer.c"), PROGRAM)?;
        let words = ["-O3", "-march=native", "-o", "peer", "peer.c"];
        let output = Command::new(&self.compiler).args(words).current_dir(folder).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", self.compiler, said.lines().next().unwrap_or("failed"));
        Ok(())
    }
}

/// The answer to a command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// The time of all steps together.
    pub took: Duration,
    /// The time of a cache line, before and after.
    pub probes_ns: (f64, f64),
}

impl Answer {
    /// Reads `ok NANOSECONDS PROBE PROBE`.
    fn parse(line: &str) -> Result<Answer> {
        let numbers = line.strip_prefix("ok ").with_context(|| format!("the MPI side says: {}", line.trim()))?;
        let numbers: Vec<f64> = numbers.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [ns, before, after] = numbers[..] else { bail!("the MPI side says '{}', which is no time", line.trim()) };
        ensure!((0.0..1e18).contains(&ns), "the MPI side says {ns} ns");
        Ok(Answer { took: Duration::from_nanos(ns as u64), probes_ns: (before, after) })
    }
}

/// Ranks under one `mpirun`.
pub struct Job {
    child: Child,
    /// Closed to end the job. Not its standard input, which launchers forward in different ways.
    commands: Option<File>,
    answers: Receiver<String>,
    /// The file with the job's error output.
    complaints: PathBuf,
    /// True after a wrong answer, or none.
    pub has_failed: bool,
    _folder: Folder,
}

impl Job {
    fn start(program: &Folder, launcher: &str, ranks: usize, options: &[&str]) -> Result<Job> {
        let folder = Folder::new()?;
        let [fifo, page, complaints] = ["commands", "page", "stderr"].map(|name| folder.0.join(name));
        // Three words of each rank and two of probes, each on its own line.
        fs::write(&page, vec![0; (3 * ranks + 2) * LINE])?;
        for rank in 0..ranks {
            make_fifo(&folder.0.join(format!("commands{rank}")))?;
        }
        // A separate copy, since the jobs end in any order.
        fs::copy(program.0.join("peer"), folder.0.join("peer"))?;
        let mut command = Command::new(launcher);
        command.args(["-np", &ranks.to_string()]).args(options);
        command.arg(folder.0.join("peer")).args([&fifo, &page]);
        // Open MPI refuses to run as root without both variables, and in containers there is often no other user.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&complaints)?);
        let mut child = command.spawn().with_context(|| launcher.to_string())?;
        let output = child.stdout.take().expect("piped");
        // For reading too: opening a FIFO only for writing would wait for a reader, and the job may never become one.
        let commands = OpenOptions::new().read(true).write(true).open(folder.0.join("commands0"))?;
        let (sender, answers) = channel();
        let listen = move || {
            // Ends when the job does, or when the receiver is gone.
            BufReader::new(output).lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        };
        let mut job = Job { child, commands: Some(commands), answers, complaints, has_failed: false, _folder: folder };
        std::thread::Builder::new().spawn(listen).context("no thread for what MPI says")?;
        job.check("all_to_all", 8)?;
        Ok(job)
    }

    /// Checks every word that some steps move.
    pub fn check(&mut self, work: &str, bytes: usize) -> Result<()> {
        self.ask(&format!("check {work} {bytes}")).map(|_| ())
    }

    /// Times some steps, after some that warm up.
    pub fn run(&mut self, work: &str, bytes: usize, warm_up: u64, steps: u64) -> Result<Answer> {
        self.ask(&format!("{work} {bytes} {warm_up} {steps}"))
    }

    fn ask(&mut self, command: &str) -> Result<Answer> {
        let commands = self.commands.as_mut().expect("open until it is dropped");
        let said = writeln!(commands, "{command}").and_then(|()| commands.flush());
        let answer = said.ok().and_then(|()| self.answers.recv_timeout(PATIENCE).ok());
        let Some(answer) = answer else {
            let complaints = fs::read_to_string(&self.complaints).unwrap_or_default();
            let last = complaints.lines().map(str::trim).rfind(|line| line.chars().any(char::is_alphabetic));
            bail!("the MPI side does not answer to '{command}'; it said: {}", last.unwrap_or("nothing"));
        };
        Answer::parse(&answer)
    }
}

impl Drop for Job {
    /// Lets the job end by itself, so that it leaves nothing behind; waits only briefly.
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

/// A folder for this user alone that is removed when it is dropped, or when this process ends in any way.
struct Folder(PathBuf, Janitor);

impl Folder {
    fn new() -> Result<Folder> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        // Relaxed: only its being different each time matters.
        let name = format!("tilewire-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        // This happens only once the folder is known to belong to this process.
        let janitor = Janitor::of(&path).inspect_err(|_| _ = fs::remove_dir(&path))?;
        Ok(Folder(path, janitor))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.1.clean();
    }
}

/// A process that waits for the end of this one, however it comes, and then removes a folder. The kernel closes the
/// janitor's input, which only this process holds open. It is in its own process group, so that Ctrl-C does not reach
/// it.
struct Janitor(Child);

impl Janitor {
    fn of(folder: &Path) -> Result<Janitor> {
        let mut command = Command::new("sh");
        command.args(["-c", "cat > /dev/null; rm -rf -- \"$1\"", "sh"]).arg(folder);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(Janitor(command.spawn().context("nobody to clean up: sh does not start")?))
    }

    /// Returns when the folder is gone.
    fn clean(&mut self) {
        drop(self.0.stdin.take());
        _ = self.0.wait();
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
    use crate::bench::ranks::collectives::SUBJECTS;

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
    fn makes_are_told_by_what_they_say() {
        assert_eq!(Make::parse("mpirun (Open MPI) 4.1.4\n\nReport bugs to\n"), Some(Make::OpenMpi(4)));
        assert_eq!(Make::parse("mpirun (Open MPI) 5.0.6"), Some(Make::OpenMpi(5)));
        assert_eq!(Make::parse("HYDRA build details:\n"), Some(Make::Mpich));
        assert_eq!(Make::parse("mpirun of nobody"), None);
        assert_eq!(Make::parse(""), None);
    }

    /// The test starts itself again, and that process is killed by a signal while it has a folder.
    #[test]
    fn a_folder_goes_with_the_process_that_has_it_however_that_ends() {
        const TOLD: &str = "TILEWIRE_TEST_FOLDER";
        if std::env::var_os(TOLD).is_some() {
            // SAFETY: `signal` takes plain numbers. A shell's background jobs inherit that SIGINT is ignored.
            unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
            let folder = Folder::new().unwrap();
            fs::write(folder.0.join("page"), [0; 100]).unwrap();
            println!("folder {}", folder.0.display());
            std::io::stdout().flush().unwrap();
            loop {
                std::thread::park();
            }
        }
        let own = std::env::current_exe().unwrap();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
            let name = "bench::ranks::mpi::tests::a_folder_goes_with_the_process_that_has_it_however_that_ends";
            let mut command = Command::new(&own);
            command.args([name, "--exact", "--nocapture"]).env(TOLD, "1").stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
            let folder =
                lines.find_map(|line| line.split_once("folder ").map(|(_, path)| PathBuf::from(path))).unwrap();
            assert!(folder.join("page").exists());
            // SAFETY: `kill` takes plain numbers, and the child is not reaped yet.
            assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
            child.wait().unwrap();
            let until = Instant::now() + Duration::from_secs(20);
            while folder.exists() {
                assert!(Instant::now() < until, "{} is left behind", folder.display());
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// If MPI is installed, its side moves what it claims to move.
    #[test]
    fn the_program_answers_where_it_can_run() {
        let all = [&SUBJECTS[..], &["transposing"]].concat();
        for (ranks, works) in [(2, [&["stream", "pingpong", "both"], &all[..]].concat()), (3, all)] {
            let mut jobs = match Peer::start(ranks) {
                Peer::Missing(why) => return println!("SKIP: MPI {why}"),
                Peer::Running(jobs) => jobs,
            };
            for (name, job) in &mut jobs {
                for work in &works {
                    for bytes in [8, 96_000] {
                        job.check(work, bytes).unwrap_or_else(|error| panic!("{name}, {work}: {error}"));
                    }
                    let answer = job.run(work, 96_000, 16, 3).unwrap();
                    assert!(answer.took > Duration::ZERO && answer.probes_ns.0 > 0.0);
                }
                assert!(job.ask("fly").unwrap_err().to_string().contains("a command that is none"));
                assert!(job.run("all_to_all", 8, 1, 1).is_ok());
            }
        }
    }
}
