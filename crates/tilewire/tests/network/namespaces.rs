//! Two hosts, as far as the network is concerned: two namespaces joined by a pair of virtual interfaces, with two ranks
//! in each. The tests print SKIP where the system does not let this process make namespaces. A test removes everything
//! that it made, even when it fails.

use super::suite::{PATIENCE, SMALL, all, digest, expected, network, staged};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tilewire::link::{MeshOptions, MeshTransport, Transport};
use tilewire::transport::{Placement, Secret, TransportError, World};
use tilewire::{Tensor, all_gather, all_reduce};
use tilewire_testkit::job::{Job, Member};
use tilewire_testkit::libfabric;
use tilewire_testkit::ranks::join_hosted_within;

/// Two namespaces and the interfaces that join them.
struct Hosts {
    names: [String; 2],
    /// The second number of their addresses, so that tests can run side by side.
    net: u32,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Hosts {
    /// `None` where this is not allowed, with the reason printed.
    fn new() -> Option<Hosts> {
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let net = (pid * 7 + number) % 250 + 1;
        let hosts = Hosts { names: [0, 1].map(|host| format!("tw-{pid}-{number}-{host}")), net };
        let made = hosts.make();
        if let Err(why) = made {
            let required =
                std::env::var("TILEWIRE_REQUIRE").is_ok_and(|list| list.split(',').any(|word| word == "namespaces"));
            assert!(!required, "namespaces are required: {why}");
            println!("SKIP: no network namespaces: {why}");
            return None;
        }
        Some(hosts)
    }

    fn make(&self) -> Result<(), String> {
        let [a, b] = &self.names;
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&["-n", a, "link", "add", "tw0", "type", "veth", "peer", "name", "tw0", "netns", b])?;
        for host in 0..2 {
            let name = &self.names[host];
            ip(&["-n", name, "addr", "add", &format!("{}/24", self.address(host)), "dev", "tw0"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "link", "set", "tw0", "up"])?;
        }
        Ok(())
    }

    fn address(&self, host: usize) -> String {
        format!("10.77.{}.{}", self.net, host + 1)
    }

    /// Takes the interface of the second host down, or up again.
    fn cut(&self, is_cut: bool) {
        ip(&["-n", &self.names[1], "link", "set", "tw0", if is_cut { "down" } else { "up" }]).unwrap();
    }

    /// Runs the test of this name again, with the rank of each place on that host. Rank 0 hosts the store.
    fn start(&self, test: &str, places: &[usize], deadline: &str) -> Job {
        self.start_by("", test, places, deadline)
    }

    /// The same, with the variables of this launcher.
    fn start_by(&self, launcher: &str, test: &str, places: &[usize], deadline: &str) -> Job {
        let open = |name: &String| OwnedFd::from(std::fs::File::open(format!("/run/netns/{name}")).unwrap());
        let namespaces = Arc::new(self.names.each_ref().map(open));
        let mut job = Job::start_with(test, places.len(), |rank, command: &mut Command| {
            let (namespaces, host) = (namespaces.clone(), places[rank]);
            command.env("TILEWIRE_TEST_ADDRESS", self.address(host)).env("TILEWIRE_TEST_DEADLINE", deadline);
            command.env("TILEWIRE_TEST_LAUNCHER", launcher);
            // SAFETY: between fork and exec, `setns` is a system call that takes plain numbers, and the descriptor is
            // open in the child: it was copied by the fork.
            unsafe {
                command.pre_exec(move || match libc::setns(namespaces[host].as_raw_fd(), libc::CLONE_NEWNET) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                })
            }
        });
        job.allow(PATIENCE);
        let secret = Secret::random().unwrap();
        let port = 20_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 10_000;
        for rank in 0..places.len() {
            job.tell(rank, format!("{}:{port}", self.address(places[0])).as_bytes());
            job.tell(rank, secret.expose().as_bytes());
        }
        job
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // The interfaces go with them.
        self.names.iter().for_each(|name| _ = ip(&["netns", "del", name]));
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if output.status.success() { Ok(()) } else { Err(format!("ip {}: {said}", arguments.join(" "))) }
}

fn hosts() -> Option<Hosts> {
    libfabric::find().and_then(|_| Hosts::new())
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

fn joined(member: &mut Member) -> World {
    join_hosted_within(member, &variable("TILEWIRE_TEST_DEADLINE"))
}

/// Domains are found by the ranks, over tcp at this host's address.
fn found(world: &World) -> Result<MeshTransport, TransportError> {
    let network = network("tcp").address(&variable("TILEWIRE_TEST_ADDRESS"));
    MeshTransport::rendezvous(world, MeshOptions { sizes: SMALL, network, ..MeshOptions::default() })
}

#[test]
fn everything_arrives_between_two_hosts() {
    let test = "namespaces::everything_arrives_between_two_hosts";
    if let Some(mut member) = Member::of_this_process() {
        let world = joined(&mut member);
        let link = found(&world).unwrap();
        let result = digest(&all(&link).unwrap());
        let domains = format!("{:?} {result}", link.domains());
        link.close().unwrap();
        return member.report(domains);
    }
    let Some(hosts) = hosts() else { return };
    let expected = expected(4);
    for (places, domains) in [([0, 0, 1, 1], "[[0, 1], [2, 3]]"), ([0, 1, 0, 1], "[[0, 2], [1, 3]]")] {
        let mut job = hosts.start(test, &places, "60s");
        for (rank, digest) in expected.iter().enumerate() {
            assert_eq!(job.report(rank), format!("{domains} {digest}"), "rank {rank}");
        }
        job.finish();
    }
}

/// The world as `launcher` describes it. This description says only where rank 0 is.
fn launched(member: &mut Member, launcher: &str) -> World {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (address, secret) = (text(member.hear()), text(member.hear()));
    let (host, port) = address.rsplit_once(':').unwrap();
    let (rank, size) = (member.rank.to_string(), member.size.to_string());
    let mut variables = match launcher {
        "torchrun" => {
            vec![("RANK", rank), ("WORLD_SIZE", size), ("MASTER_ADDR", host.into()), ("MASTER_PORT", port.into())]
        }
        "mpirun" => {
            vec![("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", size), ("TILEWIRE_STORE", address.clone())]
        }
        "srun" => {
            let nodes = format!("{host},other[1-3]");
            vec![
                ("SLURM_PROCID", rank),
                ("SLURM_NTASKS", size),
                ("SLURM_NODELIST", nodes),
                ("SLURM_JOB_ID", port.into()),
            ]
        }
        other => panic!("{other}"),
    };
    variables.extend([("TILEWIRE_SECRET", secret), ("TILEWIRE_DEADLINE", variable("TILEWIRE_TEST_DEADLINE"))]);
    let of = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    World::join(&Placement::from_vars(&of).unwrap()).unwrap()
}

#[test]
fn the_launchers_of_others_join_two_hosts() {
    let test = "namespaces::the_launchers_of_others_join_two_hosts";
    if let Some(mut member) = Member::of_this_process() {
        let world = launched(&mut member, &variable("TILEWIRE_TEST_LAUNCHER"));
        let link = found(&world).unwrap();
        let (one, all) = (Tensor::from_slice(&[world.rank().number()]), Tensor::<u32>::zeros(3));
        all_gather(&link, &all, &one).run().unwrap();
        link.close().unwrap();
        return member.report(format!("{:?}", all.to_vec()));
    }
    let Some(hosts) = hosts() else { return };
    for launcher in ["torchrun", "mpirun", "srun"] {
        let mut job = hosts.start_by(launcher, test, &[0, 1, 1], "30s");
        job.expect(0..3, "[0, 1, 2]");
        job.finish();
    }
}

/// Launches until a launch fails, and reports how.
fn reduces(member: &mut Member) {
    let world = joined(member);
    let link = found(&world).unwrap();
    let (x, y) = (Tensor::from_slice(&[1.0f32; 3000]), Tensor::<f32>::zeros(3000));
    let mut sum = all_reduce(&link, &y, &x).config(staged(512, 4)).build().unwrap();
    for turn in 0.. {
        if let Err(error) = sum.run() {
            return member.report(error.to_string());
        }
        assert!(y.to_vec().iter().all(|y| *y == 4.0), "turn {turn}");
        if turn == 0 {
            member.report("under way");
        }
    }
}

#[test]
fn a_kill_on_one_host_is_told_on_the_other() {
    let test = "namespaces::a_kill_on_one_host_is_told_on_the_other";
    if let Some(mut member) = Member::of_this_process() {
        return reduces(&mut member);
    }
    let Some(hosts) = hosts() else { return };
    for (victim, survivors) in [(3, [0, 1, 2]), (1, [0, 2, 3])] {
        let mut job = hosts.start(test, &[0, 0, 1, 1], "60s");
        job.expect(0..4, "under way");
        job.kill(victim);
        let killed = Instant::now();
        for rank in survivors {
            let said = job.report(rank);
            assert!(said.contains(&format!("rank {victim} died")), "rank {rank}: {said}");
        }
        assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
    }
}

/// One host is cut off in mid-transfer. All ranks get an error that names a rank of the other host, within the
/// deadline. When the interface is up again, a new job works.
#[test]
fn a_host_that_is_cut_off_is_an_error_on_both_sides() {
    let test = "namespaces::a_host_that_is_cut_off_is_an_error_on_both_sides";
    if let Some(mut member) = Member::of_this_process() {
        return reduces(&mut member);
    }
    let Some(hosts) = hosts() else { return };
    let mut job = hosts.start(test, &[0, 0, 1, 1], "6s");
    job.expect(0..4, "under way");
    hosts.cut(true);
    let cut = Instant::now();
    for rank in 0..4 {
        let said = job.report(rank);
        assert!((0..4).any(|other| other != rank && said.contains(&format!("rank {other}"))), "rank {rank}: {said}");
    }
    // The deadline, and some more time for a busy machine.
    assert!(cut.elapsed() < Duration::from_secs(20), "{:?}", cut.elapsed());
    drop(job);
    hosts.cut(false);
    let mut job = hosts.start(test, &[0, 0, 1, 1], "20s");
    job.expect(0..4, "under way");
}

/// Nothing is sent and nobody waits for the other host. Only keep-alive notices that it is gone.
#[test]
fn a_silent_host_that_is_cut_off_is_noticed() {
    let test = "namespaces::a_silent_host_that_is_cut_off_is_noticed";
    if let Some(mut member) = Member::of_this_process() {
        let world = joined(&mut member);
        let link = found(&world).unwrap();
        member.report("here");
        let start = Instant::now();
        while link.broken().is_none() && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let seconds = start.elapsed().as_secs();
        return member.report(format!("{}, {seconds}", link.broken().map_or("nothing".to_string(), |c| c.to_string())));
    }
    let Some(hosts) = hosts() else { return };
    let mut job = hosts.start(test, &[0, 1], "60s");
    job.expect(0..2, "here");
    hosts.cut(true);
    for rank in 0..2 {
        let said = job.report(rank);
        assert!(said.starts_with(&format!("rank {} died", 1 - rank)), "rank {rank}: {said}");
    }
}
