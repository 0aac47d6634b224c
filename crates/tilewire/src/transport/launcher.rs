//! The environment variables of each launcher: which rank this process is, and where the store is.
//!
//! A launcher is recognised by its variable for the rank ([`TABLE`], first match). What it does not specify must come
//! from `TILEWIRE_STORE` and `TILEWIRE_SECRET`, which apply under every launcher. Users read `docs/guide/launching.md`.
#![forbid(unsafe_code)]

use super::{Deadline, Rank, Secret, WorldError};
use std::cell::Cell;
use std::fmt;
use std::time::Duration;

/// The program that started the processes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// `tilewire launch`, or `TILEWIRE_RANK` set by hand.
    Tilewire,
    /// `torchrun`, or another launcher that sets `RANK` and `MASTER_ADDR`.
    Torchrun,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's `mpiexec`, and others that speak PMI.
    Pmi,
    /// Slurm's `srun`.
    Slurm,
}

/// A process's place in a job, as its launcher describes it.
///
/// ```
/// use tilewire::transport::{Launcher, Placement, Rank};
/// let variables = |name: &str| match name {
///     "RANK" => Some("1".to_string()),
///     "WORLD_SIZE" => Some("2".to_string()),
///     "MASTER_ADDR" => Some("node7".to_string()),
///     "MASTER_PORT" => Some("29500".to_string()),
///     "TILEWIRE_SECRET" => Some("correct horse battery staple".to_string()),
///     _ => None,
/// };
/// let placement = Placement::from_vars(&variables)?;
/// assert_eq!((placement.launcher, placement.rank, placement.world_size), (Launcher::Torchrun, Rank::new(1), 2));
/// assert_eq!(placement.store.unwrap().address, "node7:29501");
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Placement {
    /// The launcher whose variables were found.
    pub launcher: Launcher,
    /// This rank.
    pub rank: Rank,
    /// The number of ranks.
    pub world_size: usize,
    /// The number of this rank among the ranks of its host, if the launcher specifies it.
    pub local_rank: Option<usize>,
    /// Where the ranks meet; `None` for a world of one.
    pub store: Option<StorePlace>,
    /// How long a wait lasts by default; `None`: forever.
    pub deadline: Option<Duration>,
}

/// Where the ranks of a job meet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StorePlace {
    /// `host:port`.
    pub address: String,
    /// The secret that ranks must prove to be let in.
    pub secret: Secret,
    /// True if rank 0 hosts the store, false if the launcher does.
    pub hosted_by_rank_0: bool,
}

/// The names of one launcher's variables. In a list, the first that is set counts.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    size: &'static [&'static str],
    local: &'static [&'static str],
}

/// Inner launchers first: `torchrun` and `mpirun` are often started inside a Slurm job, never the other way round.
const TABLE: &[Names] = &[
    Names {
        launcher: Launcher::Tilewire,
        rank: "TILEWIRE_RANK",
        size: &["TILEWIRE_WORLD_SIZE"],
        local: &["TILEWIRE_LOCAL_RANK"],
    },
    Names { launcher: Launcher::Torchrun, rank: "RANK", size: &["WORLD_SIZE"], local: &["LOCAL_RANK"] },
    Names {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: &["OMPI_COMM_WORLD_SIZE"],
        local: &["OMPI_COMM_WORLD_LOCAL_RANK"],
    },
    Names {
        launcher: Launcher::Pmi,
        rank: "PMI_RANK",
        size: &["PMI_SIZE"],
        local: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
    },
    Names {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local: &["SLURM_LOCALID"],
    },
];

/// Looks a variable up.
type Vars<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Placement {
    /// Reads the variables of this process.
    pub fn from_env() -> Result<Placement, WorldError> {
        of_environment(|vars| Placement::from_vars(vars))
    }

    /// Reads variables through a function, which tests can replace.
    pub fn from_vars(vars: Vars) -> Result<Placement, WorldError> {
        // Shells leave a variable empty that was meant to be unset.
        let vars = |name: &str| vars(name).filter(|value| !value.is_empty());
        let names = TABLE.iter().find(|names| is_found(names, &vars)).ok_or(WorldError::NoLauncher)?;
        let rank = number(&vars, &[names.rank])?.ok_or(WorldError::NoLauncher)?;
        let size = number(&vars, names.size)?;
        let size = size.ok_or_else(|| missing(names.launcher, names.size[0], "the number of ranks, on every rank"))?;
        if rank >= size {
            let expected = format!("a number below the world's size, which is {size}");
            return Err(WorldError::BadVariable { variable: names.rank.into(), value: rank.to_string(), expected });
        }
        Ok(Placement {
            launcher: names.launcher,
            rank: Rank::new(rank),
            world_size: size as usize,
            local_rank: number(&vars, names.local)?.map(|local| local as usize),
            store: if size == 1 { None } else { Some(store_place(names.launcher, &vars)?) },
            deadline: deadline(&vars)?,
        })
    }
}

/// Reads something from the variables of this process.
fn of_environment<T>(read: impl FnOnce(Vars) -> Result<T, WorldError>) -> Result<T, WorldError> {
    // A value that is not text is invalid, and must not pass for unset.
    let garbled = Cell::new(None);
    let vars = |name: &str| {
        std::env::var_os(name)?.into_string().map_err(|value| garbled.set(Some((name.to_string(), value)))).ok()
    };
    let said = read(&vars);
    match garbled.take() {
        None => said,
        Some((variable, value)) => {
            let (value, expected) = (value.to_string_lossy().into_owned(), "UTF-8 text".to_string());
            Err(WorldError::BadVariable { variable, value, expected })
        }
    }
}

/// How long waits last in this process by default.
pub(super) fn deadline_of_environment() -> Result<Option<Duration>, WorldError> {
    of_environment(|vars| deadline(&|name| vars(name).filter(|value| !value.is_empty())))
}

fn deadline(vars: Vars) -> Result<Option<Duration>, WorldError> {
    let Some(text) = vars("TILEWIRE_DEADLINE") else { return Ok(Some(Deadline::DEFAULT)) };
    Deadline::parse_length(&text).ok_or_else(|| WorldError::BadVariable {
        variable: "TILEWIRE_DEADLINE".into(),
        value: text,
        expected: "a length of time such as 500ms, 30s or 2m, or off".into(),
    })
}

/// `RANK` alone is too common a name to indicate a launcher.
fn is_found(names: &Names, vars: Vars) -> bool {
    vars(names.rank).is_some() && (names.launcher != Launcher::Torchrun || vars(names.size[0]).is_some())
}

fn store_place(launcher: Launcher, vars: Vars) -> Result<StorePlace, WorldError> {
    let address = match vars("TILEWIRE_STORE") {
        Some(address) => host_and_port(address)?,
        None => match launcher {
            Launcher::Torchrun => torchrun_address(vars)?,
            Launcher::Slurm => slurm_address(vars)?,
            _ => None,
        }
        .ok_or_else(|| missing(launcher, "TILEWIRE_STORE", "host:port, a free port of rank 0's host"))?,
    };
    let secret = vars("TILEWIRE_SECRET").ok_or_else(|| {
        missing(
            launcher,
            "TILEWIRE_SECRET",
            &format!("the same on every rank, such as the output of: {}", Secret::RECIPE),
        )
    })?;
    let said = match vars("TILEWIRE_STORE_HOST").as_deref() {
        None => false,
        Some("rank0") => true,
        Some(value) => {
            let expected = "rank0, or unset where the launcher hosts the store".to_string();
            return Err(WorldError::BadVariable {
                variable: "TILEWIRE_STORE_HOST".into(),
                value: value.into(),
                expected,
            });
        }
    };
    let by_rank_0 = launcher != Launcher::Tilewire || said;
    Ok(StorePlace { address, secret: Secret::new(secret)?, hosted_by_rank_0: by_rank_0 })
}

/// One port above `MASTER_PORT`: torchrun's agent, or PyTorch in rank 0, listens at `MASTER_PORT` itself.
fn torchrun_address(vars: Vars) -> Result<Option<String>, WorldError> {
    let (Some(host), Some(port)) = (vars("MASTER_ADDR"), number(vars, &["MASTER_PORT"])?) else { return Ok(None) };
    match u16::try_from(port).ok().and_then(|port| port.checked_add(1)) {
        Some(port) => Ok(Some(with_port(&host, port))),
        None => Err(WorldError::BadVariable {
            variable: "MASTER_PORT".into(),
            value: port.to_string(),
            expected: "a port below 65535, since the store listens one above it; or set TILEWIRE_STORE=host:port"
                .into(),
        }),
    }
}

/// The first host of the step, where rank 0 runs under Slurm's own distributions. The port is one reserved for the
/// step, or else derived from the job's number, so that jobs on one host seldom collide (below 32768, where Linux
/// begins to give ports to clients).
fn slurm_address(vars: Vars) -> Result<Option<String>, WorldError> {
    let bad = |variable: &str, value: &str, expected: &str| WorldError::BadVariable {
        variable: variable.into(),
        value: value.into(),
        expected: format!("{expected}; or set TILEWIRE_STORE=host:port"),
    };
    let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let Some((list, nodes)) = lists.iter().find_map(|name| Some((name, vars(name)?))) else { return Ok(None) };
    let host = first_host(&nodes).ok_or_else(|| bad(list, &nodes, "a list of hosts, such as node[03-05]"))?;
    let port = |ports: &str| ports.split(['-', ',']).next().and_then(|port| port.parse::<u16>().ok());
    let reserved = match vars("SLURM_STEP_RESV_PORTS") {
        None => None,
        Some(ports) => {
            Some(port(&ports).ok_or_else(|| bad("SLURM_STEP_RESV_PORTS", &ports, "ports, such as 12000-12001"))?)
        }
    };
    let job = number(vars, &["SLURM_JOB_ID", "SLURM_JOBID"])?;
    let step = number(vars, &["SLURM_STEP_ID"])?.map_or(0, u64::from);
    let made = job.map(|job| 15_000 + ((u64::from(job) * 31 + step) % 15_000) as u16);
    Ok(reserved.or(made).map(|port: u16| with_port(&host, port)))
}

/// The first host of Slurm's compressed list: `node[03-05,9],login` is `node03`.
fn first_host(list: &str) -> Option<String> {
    let (mut host, mut rest) = (String::new(), list);
    loop {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        if !rest[end..].starts_with('[') {
            return Some(host).filter(|host| !host.is_empty());
        }
        let (inside, after) = rest[end + 1..].split_once(']')?;
        host.push_str(inside.split([',', '-']).next()?);
        rest = after;
    }
}

fn with_port(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn host_and_port(address: String) -> Result<String, WorldError> {
    let valid = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0));
    if valid {
        return Ok(address);
    }
    let expected = "host:port, with a port from 1 to 65535".into();
    Err(WorldError::BadVariable { variable: "TILEWIRE_STORE".into(), value: address, expected })
}

/// The value of the first of these variables that is set.
fn number(vars: Vars, names: &[&str]) -> Result<Option<u32>, WorldError> {
    let Some((name, value)) = names.iter().find_map(|name| vars(name).map(|value| (name, value))) else {
        return Ok(None);
    };
    value.trim().parse().map(Some).map_err(|_| WorldError::BadVariable {
        variable: name.to_string(),
        value,
        expected: "a whole number from 0".into(),
    })
}

fn missing(launcher: Launcher, variable: &str, value: &str) -> WorldError {
    let passing = match launcher {
        Launcher::Tilewire | Launcher::Torchrun => "export it where you start the ranks, on every host",
        Launcher::OpenMpi => "export it, and pass it on with: mpirun -x TILEWIRE_STORE -x TILEWIRE_SECRET ...",
        Launcher::Pmi => "export it, and pass it on with: mpiexec -genvlist TILEWIRE_STORE,TILEWIRE_SECRET ...",
        Launcher::Slurm => "export it before srun, which passes the environment on",
    };
    WorldError::MissingVariable { launcher, variable: variable.into(), value: value.into(), how: passing.into() }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Tilewire => "tilewire launch",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Pmi => "MPICH (PMI)",
            Launcher::Slurm => "Slurm",
        })
    }
}
