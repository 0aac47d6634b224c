//! The transports by name, and the options of those on which ranks post to each other.

use crate::cli::one_of;
use crate::verify::Engine;
use clap::Args;
use std::fmt;
use std::sync::Arc;
use tilewire::cuda::Device;
use tilewire::link::{AnyTransport, MeshOptions, MeshTransport, NetworkOptions, NvlOptions, ShmOptions, Transport};
use tilewire::transport::{TransportError, World};

/// The values of `--transport`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Memory that all ranks map.
    Shm,
    /// GPUs.
    Nvl,
    /// Every rank posts to every other.
    Loop,
    /// Ranks of a domain map each other's memory, and post to all others.
    Mesh,
    /// Every rank posts to every other over a network. Ranks on CPUs are processes.
    Fabric,
}

impl Wire {
    /// All, in the order of the help text.
    pub const ALL: [Wire; 5] = [Wire::Shm, Wire::Nvl, Wire::Loop, Wire::Mesh, Wire::Fabric];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        ["shm", "nvl", "loop", "mesh", "fabric"][self as usize]
    }

    /// The engines whose kernels use it, the default first.
    pub fn engines(self) -> &'static [Engine] {
        match self {
            Wire::Shm => &[Engine::Cpu],
            Wire::Nvl => &[Engine::Cuda],
            Wire::Loop | Wire::Mesh | Wire::Fabric => &[Engine::Cpu, Engine::Cuda],
        }
    }
}

/// The transports of the CPU engine, and those that both engines have.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuWire {
    /// The transport [default: shm, on a GPU nvl]
    #[arg(long, value_parser = one_of([Wire::Shm, Wire::Loop, Wire::Mesh, Wire::Fabric].map(|wire| (wire.name(), wire))))]
    pub transport: Option<Wire>,
}

/// The domains of `--transport mesh`.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Apart {
    /// The ranks of each domain of --transport mesh, as 0,1|2,3; ranks of one domain map each other's memory
    #[arg(long, value_name = "LISTS", value_parser = Domains::parse,
        help = "Domains of --transport mesh, as '0,1|2,3' [default: two halves]")]
    pub domains: Option<Domains>,
}

/// The network between ranks.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// The provider of --transport fabric, as tcp or shm. With --transport mesh, threads are joined by it, too
    #[arg(
        long,
        value_name = "NAME",
        help = "The provider of --transport fabric or mesh, as tcp or shm [default: chosen]"
    )]
    pub provider: Option<String>,
}

impl Network {
    /// This mesh over the network, if there is a mesh.
    pub fn of(&self, mesh: Option<Mesh>) -> Result<Option<Mesh>, String> {
        match (mesh, &self.provider) {
            (Some(mesh), _) => mesh.joined(self).map(Some),
            (None, Some(name)) => Err(format!("--provider {name} is for --transport fabric or mesh, not shm")),
            (None, None) => Ok(None),
        }
    }
}

/// The reordering of posts.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shuffle {
    /// Delay and reorder posts by this seed, over --transport loop or mesh
    #[arg(long, value_name = "SEED")]
    pub shuffle: Option<u64>,
}

/// Ranks that share memory within their domain. Every rank is listed once, and no domain is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domains(Vec<Vec<u32>>);

/// The most ranks that a command starts as threads.
const MOST_RANKS: usize = 64;

impl Domains {
    /// Parses `0,1|2,3`.
    pub fn parse(text: &str) -> Result<Domains, String> {
        let how = "list every rank once, as 0,1|2,3";
        let mut domains = Vec::new();
        let mut listed = Vec::new();
        for domain in text.split('|') {
            let mut ranks = Vec::new();
            for word in domain.split(',').map(str::trim) {
                let rank: u32 = match word.parse() {
                    Ok(rank) if (rank as usize) < MOST_RANKS => rank,
                    _ if word.is_empty() => return Err(format!("a rank is missing in '{domain}': {how}")),
                    _ => return Err(format!("'{word}' is not a rank from 0 to {}: {how}", MOST_RANKS - 1)),
                };
                if listed.contains(&rank) {
                    return Err(format!("rank {rank} is listed twice: {how}"));
                }
                listed.push(rank);
                ranks.push(rank);
            }
            domains.push(ranks);
        }
        Ok(Domains(domains))
    }

    /// The ranks of each.
    pub fn lists(&self) -> Vec<Vec<usize>> {
        self.0.iter().map(|domain| domain.iter().map(|&rank| rank as usize).collect()).collect()
    }

    /// The number of listed ranks.
    pub fn ranks(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// Checks that exactly the ranks of a world of this size are listed.
    pub fn check(&self, ranks: usize) -> Result<(), String> {
        let listed = |rank: &u32| self.0.iter().flatten().any(|listed| listed == rank);
        let missing: Vec<u32> = (0..ranks as u32).filter(|rank| !listed(rank)).collect();
        let unknown: Vec<u32> = self.0.iter().flatten().copied().filter(|rank| *rank as usize >= ranks).collect();
        let some = |ranks: &[u32], what| (!ranks.is_empty()).then(|| format!("{what} {}", list(ranks)));
        let wrong: Vec<String> =
            [some(&missing, "does not list"), some(&unknown, "lists")].into_iter().flatten().collect();
        if wrong.is_empty() {
            return Ok(());
        }
        let last = ranks.saturating_sub(1);
        Err(format!("--domains {self} {}: {ranks} ranks are 0 to {last}, each in one domain", wrong.join(" and ")))
    }
}

fn list(ranks: &[u32]) -> String {
    ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

impl fmt::Display for Domains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.iter().map(|domain| list(domain)).collect::<Vec<_>>().join("|"))
    }
}

/// Says which network was chosen, on one rank. On stderr: reports are the same over any network.
fn announced(link: MeshTransport) -> MeshTransport {
    if link.rank().index() == 0 && link.network().is_some() {
        eprintln!("tilewire: {link}");
    }
    link
}

/// Ranks that post to each other: threads of this process, or processes joined by a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// `Loop`, `Mesh` or `Fabric`.
    wire: Wire,
    domains: Option<Domains>,
    /// The seed that delays and reorders posts, if any.
    shuffle: Option<u64>,
    /// The provider of the network, if it is named.
    provider: Option<String>,
}

impl Mesh {
    /// The requested one; `None` for another transport. The error names the options that do not fit each other.
    pub fn of(wire: Option<Wire>, apart: Apart, shuffle: Shuffle) -> Result<Option<Mesh>, String> {
        let (wire, Apart { domains }, Shuffle { shuffle }) = (wire.unwrap_or(Wire::Shm), apart, shuffle);
        let posts = matches!(wire, Wire::Loop | Wire::Mesh | Wire::Fabric);
        match (&domains, shuffle) {
            (Some(domains), _) if wire != Wire::Mesh => {
                Err(format!("--domains {domains} is for --transport mesh, not {}", wire.name()))
            }
            (_, Some(seed)) if !posts => {
                Err(format!("--shuffle {seed} is for --transport loop or mesh: {} has no posts", wire.name()))
            }
            (_, Some(seed)) if wire == Wire::Fabric => {
                Err(format!("--shuffle {seed} is for --transport loop or mesh: a network has an order of its own"))
            }
            _ => Ok(posts.then_some(Mesh { wire, domains, shuffle, provider: None })),
        }
    }

    /// The same mesh with posts reordered by this seed.
    pub fn shuffled(&self, seed: u64) -> Mesh {
        Mesh { shuffle: Some(seed), ..self.clone() }
    }

    /// The same mesh over this provider of libfabric, if one is named.
    pub fn over(&self, provider: Option<String>) -> Mesh {
        Mesh { provider, ..self.clone() }
    }

    /// The same mesh over the named network, or the reason why it has none.
    pub fn joined(&self, Network { provider }: &Network) -> Result<Mesh, String> {
        match (provider, self.shuffle, self.wire) {
            (Some(name), _, Wire::Loop) => {
                Err(format!("--provider {name} is for --transport fabric or mesh, not loop"))
            }
            (Some(name), Some(seed), _) => {
                Err(format!("--provider {name} --shuffle {seed}: a network has an order of its own"))
            }
            _ => Ok(self.over(provider.clone())),
        }
    }

    /// The provider, if it is named.
    pub fn provider(&self) -> Option<&str> {
        self.provider.as_deref()
    }

    /// True if its ranks on CPUs are always processes.
    pub fn is_of_processes(&self) -> bool {
        self.wire == Wire::Fabric
    }

    /// True if threads are joined by a network, too.
    pub fn is_over_network(&self) -> bool {
        self.wire == Wire::Fabric || self.wire == Wire::Mesh && self.provider.is_some()
    }

    /// Refuses ranks of the wrong kind. `world` is the name of their kind.
    pub fn fits(&self, are_threads: bool, world: &str, engine: Engine) -> Result<(), String> {
        let name = self.name();
        match (are_threads, self.wire, self.shuffle) {
            (true, Wire::Fabric, _) if engine == Engine::Cpu => Err(format!(
                "--world {world}: --transport {name} joins processes; use --world processes, or a launcher"
            )),
            (false, Wire::Loop, _) => {
                Err(format!("--world {world}: --transport {name} joins threads of one process; use --world threads"))
            }
            (false, ..) if engine == Engine::Cuda => Err(format!(
                "--world {world}: on GPUs, --transport {name} joins threads of one process; use --world threads"
            )),
            (false, _, Some(seed)) => {
                Err(format!("--world {world}: --shuffle {seed} is for threads: a network has an order of its own"))
            }
            _ => Ok(()),
        }
    }

    /// Further arguments for ranks that this program starts as processes: without them they would find that they are
    /// one domain.
    pub fn words_of_processes(&self, ranks: usize) -> Vec<String> {
        let is_open = self.wire == Wire::Mesh && self.domains.is_none();
        if is_open { vec!["--domains".to_string(), self.domains(ranks).to_string()] } else { Vec::new() }
    }

    /// The arguments that name it.
    pub fn words(&self, ranks: usize) -> Vec<String> {
        let name = ["--transport".to_string(), self.name().to_string()];
        let domains = ["--domains".to_string(), self.domains(ranks).to_string()];
        let provider = self.provider.iter().flat_map(|provider| ["--provider".to_string(), provider.clone()]);
        name.into_iter().chain(domains.into_iter().filter(|_| self.wire == Wire::Mesh)).chain(provider).collect()
    }

    /// The number of ranks: the given one, or as many as the domains list.
    pub fn count(&self, given: Option<usize>) -> Result<Option<usize>, String> {
        let Some(domains) = &self.domains else { return Ok(given) };
        let count = given.unwrap_or(domains.ranks());
        domains.check(count).map(|()| Some(count))
    }

    /// Its name on the command line.
    pub fn name(&self) -> &'static str {
        self.wire.name()
    }

    /// The domains in a world of `ranks` ranks.
    pub fn domains(&self, ranks: usize) -> Domains {
        let all: Vec<u32> = (0..ranks as u32).collect();
        match (&self.domains, self.wire) {
            (Some(domains), _) => domains.clone(),
            (None, Wire::Loop | Wire::Fabric) => Domains(all.chunks(1).map(<[u32]>::to_vec).collect()),
            (None, _) => Domains(all.chunks(ranks.div_ceil(2).max(1)).map(<[u32]>::to_vec).collect()),
        }
    }

    /// True if some ranks post to each other.
    pub fn has_far(&self, ranks: usize) -> bool {
        self.domains(ranks).0.len() > 1
    }

    /// Joins a world. Collective.
    pub fn rendezvous(&self, world: &World, sizes: ShmOptions) -> Result<AnyTransport, TransportError> {
        Ok(self.transport(world, sizes)?.into())
    }

    /// The transport under its own type.
    pub fn transport(&self, world: &World, sizes: ShmOptions) -> Result<MeshTransport, TransportError> {
        let mut options = self.options(world.size(), sizes);
        if !world.are_threads() && self.wire == Wire::Mesh && self.domains.is_none() {
            // A launcher's ranks: those of each host are a domain.
            options.domains = None;
        }
        Ok(announced(MeshTransport::rendezvous(world, options)?))
    }

    /// Joins a world of ranks on GPUs. Collective.
    pub fn rendezvous_on(
        &self,
        world: &World,
        device: &Arc<Device>,
        sizes: NvlOptions,
    ) -> Result<AnyTransport, TransportError> {
        Ok(announced(MeshTransport::rendezvous_on(world, device, self.options(world.size(), sizes))?).into())
    }

    /// Ranks on a GPU, all played by this thread.
    pub fn virtual_ranks(
        &self,
        device: &Arc<Device>,
        ranks: usize,
        sizes: NvlOptions,
    ) -> Result<Vec<MeshTransport>, TransportError> {
        MeshTransport::virtual_ranks(device, ranks, self.options(ranks, sizes))
    }

    fn options<S: Default>(&self, ranks: usize, sizes: S) -> MeshOptions<S> {
        let domains = Some(self.domains(ranks).0);
        // Every second seed has a ring of one descriptor, so that roles also wait for room.
        let ring = self.shuffle.filter(|seed| seed % 2 == 1).map(|_| 1);
        // And every second pair of seeds a thread for the proxy of a CPU rank.
        let thread = self.shuffle.is_some_and(|seed| seed / 2 % 2 == 1);
        let network = NetworkOptions::default();
        let network = self.provider.iter().fold(network, |network, provider| network.provider(provider));
        let over_network = self.is_over_network();
        MeshOptions { domains, sizes, ring, seed: self.shuffle, thread, over_network, network }
    }

    /// For reports: the name, the domains, the seed.
    pub fn describe(&self, ranks: usize) -> String {
        let domains = if self.wire != Wire::Mesh { String::new() } else { format!(" {}", self.domains(ranks)) };
        let shuffled = self.shuffle.map_or(String::new(), |seed| format!(", shuffled by {seed}"));
        let provider = self.provider.as_ref().map_or(String::new(), |provider| format!(" by {provider}"));
        format!("{}{domains}{provider}{shuffled}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domains(text: &str) -> Domains {
        Domains::parse(text).unwrap()
    }

    #[test]
    fn domains_are_read_as_they_are_written() {
        for text in ["0", "0,1|2,3", "0,2|1,3", "2|0|1", "3,1,2|0"] {
            assert_eq!(domains(text).to_string(), text);
            assert_eq!(domains(text).check(domains(text).ranks()), Ok(()));
        }
        assert_eq!(domains(" 0, 1 | 2 ").to_string(), "0,1|2");
    }

    #[test]
    fn what_is_no_domain_is_named() {
        for (text, what) in [
            ("", "a rank is missing in ''"),
            ("0,1|", "a rank is missing in ''"),
            ("0,|1", "a rank is missing in '0,'"),
            ("0,x|1", "'x' is not a rank"),
            ("0,-1", "'-1' is not a rank"),
            ("0,4000000000", "'4000000000' is not a rank"),
            ("0,1|1", "rank 1 is listed twice"),
        ] {
            let why = Domains::parse(text).unwrap_err();
            assert!(why.contains(what) && why.contains("0,1|2,3"), "{text}: {why}");
        }
        let why = domains("0,2|1,7").check(4).unwrap_err();
        assert!(why.contains("--domains 0,2|1,7 does not list 3 and lists 7: 4 ranks are 0 to 3"), "{why}");
        assert!(domains("0,1|2").check(2).unwrap_err().contains("lists 2: 2 ranks"), "an unknown rank");
    }

    #[test]
    fn loops_have_ranks_alone_and_meshes_two_halves() {
        let of = |wire, ranks| Mesh { wire, domains: None, shuffle: None, provider: None }.domains(ranks).to_string();
        assert_eq!([of(Wire::Loop, 1), of(Wire::Loop, 3)], ["0", "0|1|2"]);
        assert_eq!([1, 2, 3, 4, 5].map(|ranks| of(Wire::Mesh, ranks)), ["0", "0|1", "0,1|2", "0,1|2,3", "0,1,2|3,4"]);
    }
}
