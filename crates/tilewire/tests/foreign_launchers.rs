//! Ranks that another project's launcher starts, by the commands of docs/guide/launching.md. `World::from_env()` finds
//! its place, and data arrive. Launchers that are not installed are skipped; `TILEWIRE_REQUIRE=openmpi,mpich` makes
//! that a failure.
#![cfg(target_os = "linux")]

#[path = "../examples/08_processes.rs"]
mod processes;

use std::process::{Command, Output, Stdio};
use tilewire::World;
use tilewire::transport::{Launcher, Placement, Secret};

const RANKS: usize = 3;

/// A launcher: its name for `TILEWIRE_REQUIRE`, the possible names of its program, a word that only its version text
/// contains, and its options. The options pass the two variables on, and allow more ranks than cores, and the user
/// root.
struct Foreign {
    launcher: Launcher,
    name: &'static str,
    programs: &'static [&'static str],
    says: &'static str,
    flags: &'static [&'static str],
}

const OPEN_MPI: Foreign = Foreign {
    launcher: Launcher::OpenMpi,
    name: "openmpi",
    programs: &["mpirun", "mpirun.openmpi", "orterun"],
    says: "Open MPI",
    flags: &["--oversubscribe", "--allow-run-as-root", "-x", "TILEWIRE_STORE", "-x", "TILEWIRE_SECRET"],
};

const MPICH: Foreign = Foreign {
    launcher: Launcher::Pmi,
    name: "mpich",
    programs: &["mpiexec.hydra", "mpiexec.mpich", "mpiexec"],
    says: "HYDRA",
    flags: &["-genvlist", "TILEWIRE_STORE,TILEWIRE_SECRET,TILEWIRE_TEST_LAUNCHER,TILEWIRE_DEADLINE"],
};

impl Foreign {
    /// The program, or `None` with the reason printed.
    fn program(&self) -> Option<&'static str> {
        let found = self.programs.iter().find(|program| {
            let version = Command::new(program).arg("--version").stdin(Stdio::null()).output();
            version.is_ok_and(|version| String::from_utf8_lossy(&version.stdout).contains(self.says))
        });
        if found.is_none() {
            tilewire_testkit::skip::skip(self.name, format!("none of {:?} is it", self.programs));
        }
        found.copied()
    }

    /// Starts this program again as ranks, with these variables; `None` without the launcher.
    fn start(&self, variables: &[(&str, &str)]) -> Option<Output> {
        let mut command = Command::new(self.program()?);
        command.arg("-n").arg(RANKS.to_string()).args(self.flags);
        command.arg(std::env::current_exe().unwrap()).args(["as_a_rank", "--exact", "--nocapture"]);
        // Variables that this process may have been given itself.
        for name in ["TILEWIRE_RANK", "RANK", "TILEWIRE_STORE", "TILEWIRE_SECRET"] {
            command.env_remove(name);
        }
        command.env("TILEWIRE_TEST_LAUNCHER", self.launcher.to_string()).env("TILEWIRE_DEADLINE", "20s");
        command.envs(variables.iter().copied()).stdin(Stdio::null());
        Some(command.output().unwrap())
    }

    #[track_caller]
    fn ranks_meet(&self) {
        // A port that is free now. Another program may take it before rank 0 does. This is rare, and is reported.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (store, secret) = (format!("127.0.0.1:{port}"), Secret::random().unwrap());
        let variables = [("TILEWIRE_STORE", store.as_str()), ("TILEWIRE_SECRET", secret.expose())];
        let Some(output) = self.start(&variables) else { return };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}\n{text}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        for rank in 0..RANKS {
            let previous = (rank + RANKS - 1) % RANKS;
            let said = format!("rank {rank} of {RANKS} received 100000 numbers from rank {previous}, all right");
            assert!(text.contains(&said), "'{said}' is not in\n{text}");
        }
    }

    #[track_caller]
    fn says_what_is_missing(&self, how: &str) {
        let Some(output) = self.start(&[]) else { return };
        assert!(!output.status.success());
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("TILEWIRE_STORE") && text.contains(how), "'{how}' is not in\n{text}");
    }
}

/// Not a separate test: the launchers start it as a rank.
#[test]
fn as_a_rank() {
    let Ok(launcher) = std::env::var("TILEWIRE_TEST_LAUNCHER") else { return };
    let placement = Placement::from_env().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(placement.launcher.to_string(), launcher);
    processes::rank(&World::from_env().unwrap()).unwrap();
}

#[test]
fn ranks_that_open_mpi_starts_meet() {
    OPEN_MPI.ranks_meet();
}

#[test]
fn ranks_that_mpich_starts_meet() {
    MPICH.ranks_meet();
}

#[test]
fn ranks_that_open_mpi_starts_say_what_is_missing() {
    OPEN_MPI.says_what_is_missing("mpirun -x TILEWIRE_STORE -x TILEWIRE_SECRET");
}

#[test]
fn ranks_that_mpich_starts_say_what_is_missing() {
    MPICH.says_what_is_missing("mpiexec -genvlist TILEWIRE_STORE,TILEWIRE_SECRET");
}
