//! Ranks as threads of this process, or as processes.

use anyhow::{Context, Error, Result, anyhow};
use clap::ValueEnum;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tilewire::transport::{Limits, Placement, Secret, StoreServer, World};

/// How long the other ranks may take to end after rank 0.
const GRACE: Duration = Duration::from_secs(5);
/// The limit after rank 0 has failed. It is long enough to report why another rank failed first, if one did. The error
/// is printed after that.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The kind of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Threads of one process.
    Threads,
    /// Processes.
    Processes,
}

impl Kind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Threads => "threads",
            Kind::Processes => "processes",
        }
    }
}

/// True if this process was started as a rank, by [`processes`] or by a launcher.
pub fn is_rank() -> bool {
    std::env::var_os("TILEWIRE_RANK").is_some()
}

/// Runs `ranks` ranks as threads; returns the result of rank 0.
pub fn threads<R: Send>(ranks: usize, body: impl Fn(&World) -> Result<R> + Sync) -> Result<R> {
    let first = Mutex::new(None);
    let ran = World::threads(ranks).run(|world| {
        let result = body(&world)?;
        if world.rank().index() == 0 {
            *first.lock().expect("rank 0 alone locks it") = Some(result);
        }
        Ok(())
    });
    ran.map_err(|error| anyhow!(error))?;
    first.into_inner().expect("rank 0 alone locks it").context("rank 0 returned nothing")
}

/// Runs this rank, if this process is one. Otherwise this process is rank 0, and the other ranks are this program,
/// started with `words`.
pub fn processes<R>(ranks: usize, words: &[String], body: impl Fn(&World) -> Result<R>) -> Result<R> {
    if is_rank() {
        return body(&World::from_env()?);
    }
    let secret = Secret::random()?;
    let store = StoreServer::start("127.0.0.1:0", ranks, &secret, Limits::default())?;
    let address = store.address().to_string();
    let variables = |rank: usize| {
        let (secret, address) = (secret.expose().to_string(), address.clone());
        [
            ("TILEWIRE_RANK", rank.to_string()),
            ("TILEWIRE_LOCAL_RANK", rank.to_string()),
            ("TILEWIRE_WORLD_SIZE", ranks.to_string()),
            ("TILEWIRE_STORE", address),
            ("TILEWIRE_SECRET", secret),
        ]
    };
    let program = std::env::current_exe().context("this program cannot find itself to start other ranks")?;
    let start = |rank: usize| {
        let mut command = Command::new(&program);
        command.args(words).envs(variables(rank)).env_remove("TILEWIRE_STORE_HOST");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(Started { child: child.with_context(|| format!("rank {rank} does not start"))?, grace: GRACE })
    };
    let mut others = (1..ranks).map(start).collect::<Result<Vec<Started>>>()?;
    let own = variables(0);
    let placement =
        Placement::from_vars(&|name| own.iter().find(|(own, _)| *own == name).map(|(_, value)| value.clone()))?;
    let result = World::join(&placement).map_err(Error::from).and_then(|world| body(&world));
    if result.is_err() {
        others.iter_mut().for_each(|rank| rank.grace = LAST_WORDS);
    }
    result
}

/// A process that ends soon after this handle is dropped: without rank 0 it ends by itself.
struct Started {
    child: Child,
    grace: Duration,
}

impl Drop for Started {
    fn drop(&mut self) {
        let until = Instant::now() + self.grace;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
