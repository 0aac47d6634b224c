//! `tilewire launch --hosts` with a substitute for `ssh` in the path. It runs the command here, or in a network
//! namespace with the host's name. It records every argument, so that the tests can look for secrets there.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tilewire_testkit::skip::skip;

/// A folder with the substitute, removed at the end.
struct Fake {
    folder: PathBuf,
}

impl Fake {
    /// `enter` is the beginning of the command that runs a shell on host `$host`.
    fn new(name: &str, enter: &str) -> Fake {
        let folder = std::env::temp_dir().join(format!("tilewire-hosts-{name}-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let script = format!(
            "#!/bin/sh\necho \"$*\" >> '{}'\nwhile [ \"$1\" != \"${{1#-}}\" ]; do [ \"$1\" = -o ] && shift; shift; done\n\
             host=$1\nshift\n[ \"$host\" = broken ] && {{ echo 'ssh: no route to broken' >&2; exit 255; }}\n\
             {enter} sh -c \"$*\"\n",
            folder.join("arguments").display()
        );
        std::fs::write(folder.join("ssh"), script).unwrap();
        assert!(Command::new("chmod").arg("+x").arg(folder.join("ssh")).status().unwrap().success());
        Fake { folder }
    }

    fn launch(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tilewire"));
        let path = format!("{}:{}", self.folder.display(), std::env::var("PATH").unwrap());
        command.arg("launch").args(arguments).env("PATH", path).stdin(Stdio::null());
        command
    }

    fn arguments(&self) -> String {
        std::fs::read_to_string(self.folder.join("arguments")).unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The status, output and errors of a command.
fn run(mut command: Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().expect("no signal ended it"), text(output.stdout), text(output.stderr))
}

#[test]
fn ranks_start_on_their_hosts_with_all_they_need_and_no_secret_in_any_list() {
    let fake = Fake::new("secret", "exec");
    // A rank prints its place, and whether any process of the machine shows the job's secret in its arguments.
    let rank = "echo \"$TILEWIRE_RANK/$TILEWIRE_WORLD_SIZE $TILEWIRE_LOCAL_RANK $1 $(pwd)\"; \
                all=$(mktemp); cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' > $all; \
                echo \"$TILEWIRE_SECRET\" | grep -c -F -f - $all; rm $all";
    let words =
        ["--hosts", "127.0.0.1,me@localhost", "--address", "127.0.0.1", "-n", "4", "--", "sh", "-c", rank, "sh"];
    let words: Vec<&str> = words.into_iter().chain(["it's"]).collect();
    let (code, out, err) = run(fake.launch(&words));
    let here = std::env::current_dir().unwrap();
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    let expected: Vec<String> = (0..4)
        .flat_map(|rank| [format!("[{rank}] 0"), format!("[{rank}] {rank}/4 {} it's {}", rank % 2, here.display())])
        .collect();
    assert_eq!((code, lines), (0, expected.iter().map(String::as_str).collect()), "{err}");
    let arguments = fake.arguments();
    let hosts: Vec<&str> = arguments.lines().collect();
    let of = |host: &str| format!("-T -o BatchMode=yes {host} exec sh -s");
    let first = hosts.iter().filter(|line| **line == of("127.0.0.1")).count();
    let second = hosts.iter().filter(|line| **line == of("me@localhost")).count();
    assert_eq!((first, second), (2, 2), "{arguments}");
}

#[test]
fn a_failing_rank_ends_the_others_on_all_hosts() {
    let fake = Fake::new("fails", "exec");
    let began = Instant::now();
    let rank = "[ $TILEWIRE_RANK = 2 ] && exit 9; sleep 1000";
    let (code, _, err) = run(fake.launch(&["--hosts", "127.0.0.1,localhost", "-n", "3", "--", "sh", "-c", rank]));
    assert_eq!(code, 9, "{err}");
    assert!(err.contains("rank 2 ended with status 9; ending the others"), "{err}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_host_that_cannot_be_reached_ends_the_job_with_the_words_of_ssh() {
    let fake = Fake::new("broken", "exec");
    let words = ["--hosts", "127.0.0.1,broken", "--address", "lo", "-n", "2", "--", "sleep", "1000"];
    let (code, _, err) = run(fake.launch(&words));
    assert_eq!(code, 255, "{err}");
    assert!(err.contains("[1] ssh: no route to broken") && err.contains("rank 1 ended with status 255"), "{err}");
}

#[test]
fn an_address_that_is_not_known_is_asked_for() {
    let fake = Fake::new("unknown", "exec");
    let (code, _, err) = run(fake.launch(&["--hosts", "nowhere.invalid", "-n", "2", "--", "true"]));
    assert!(code != 0 && err.contains("nowhere.invalid") && err.contains("--address"), "{code}: {err}");
    let (code, _, err) = run(fake.launch(&["--hosts", "x", "--address", "no0", "-n", "2", "--", "true"]));
    assert!(code != 0 && err.contains("--address no0") && err.contains("lo"), "{code}: {err}");
}

/// Two namespaces joined by a pair of interfaces, removed at the end.
struct Namespaces {
    names: [String; 2],
    addresses: [&'static str; 2],
}

/// The number of the next pair, because tests of this program run side by side.
static NEXT: AtomicU32 = AtomicU32::new(0);

impl Namespaces {
    /// `None` where that is not allowed, with the reason printed.
    fn new(addresses: [&'static str; 2]) -> Option<Namespaces> {
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let pair = Namespaces { names: [0, 1].map(|host| format!("tw-h{pid}-{number}-{host}")), addresses };
        let [a, b] = &pair.names;
        let made = ip(&format!("netns add {a}")).and_then(|()| ip(&format!("netns add {b}")));
        let made = made
            .and_then(|()| pair.join("tw0", addresses))
            .and_then(|()| pair.names.iter().try_for_each(|name| ip(&format!("-n {name} link set lo up"))));
        if let Err(why) = made {
            skip("namespaces", why);
            return None;
        }
        Some(pair)
    }

    /// Joins the hosts by a pair of interfaces of this name.
    fn join(&self, interface: &str, addresses: [&str; 2]) -> Result<(), String> {
        let [a, b] = &self.names;
        ip(&format!("-n {a} link add {interface} type veth peer name {interface} netns {b}"))?;
        for (name, address) in self.names.iter().zip(addresses) {
            // Does not wait for duplicates of an IPv6 address.
            let rest = if address.contains(':') { "/64 nodad" } else { "/24" };
            let (prefix, nodad) = rest.split_once(' ').unwrap_or((rest, ""));
            ip(format!("-n {name} addr add {address}{prefix} dev {interface} {nodad}").trim_end())?;
            ip(&format!("-n {name} link set {interface} up"))?;
        }
        Ok(())
    }

    /// The launcher runs on the first host and starts four ranks of the program on both hosts.
    fn launch(&self, program: &[&str], env: &[(&str, String)]) -> (i32, String, String) {
        let ([a, b], addresses) = (&self.names, self.addresses);
        let enter =
            format!("if [ \"$host\" = {} ]; then ns={a}; else ns={b}; fi\nexec ip netns exec $ns", addresses[0]);
        let fake = Fake::new(a, &enter);
        let hosts = addresses.join(",");
        let inner = fake.launch(&[&["--hosts", &hosts, "-n", "4", "--deadline", "60s", "--"], program].concat());
        let mut command = Command::new("ip");
        command.args(["netns", "exec", a]).arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.envs(env.iter().map(|(name, value)| (name, value)));
        run(command)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| _ = ip(&format!("netns del {name}")));
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {said}")) }
}

const PLACE: [&str; 3] = ["sh", "-c", "echo $TILEWIRE_RANK at $TILEWIRE_STORE; ip -o addr show tw0 | grep -c inet"];

#[test]
fn each_host_is_told_an_address_that_it_reaches() {
    let Some(hosts) = Namespaces::new(["10.79.3.1", "10.79.3.2"]) else { return };
    let (code, out, err) = hosts.launch(&PLACE, &[]);
    assert_eq!(code, 0, "{err}");
    assert!((0..4).all(|rank| out.contains(&format!("[{rank}] {rank} at 10.79.3.1:"))), "{out}");
}

#[test]
fn hosts_are_reached_over_ipv6_alone() {
    let Some(hosts) = Namespaces::new(["fd79::1", "fd79::2"]) else { return };
    let (code, out, err) = hosts.launch(&PLACE, &[]);
    assert_eq!(code, 0, "{err}");
    assert!((0..4).all(|rank| out.contains(&format!("[{rank}] {rank} at [fd79::1]:"))), "{out}");
}

/// Two ranks on each host run a collective over the network. Every byte is right, and no option says where the network
/// is.
fn reduces_over(hosts: &Namespaces, interface: &str) {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let library = [("TILEWIRE_LIBFABRIC", library.display().to_string())];
    let program = [env!("CARGO_BIN_EXE_tilewire"), "run", "all_reduce", "--transport", "mesh", "--bytes", "64KiB"];
    let (code, out, err) = hosts.launch(&program, &library);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("every byte right"), "{out}{err}");
    assert!(err.contains("domains [0, 1] [2, 3], joined by tcp"), "{err}");
    assert!(err.contains(&format!(" on {interface}, ")), "{err}");
}

#[test]
fn a_collective_runs_on_two_hosts() {
    let Some(hosts) = Namespaces::new(["10.79.4.1", "10.79.4.2"]) else { return };
    reduces_over(&hosts, "tw0");
}

/// Every interface also has an IPv6 address for its link only. That address cannot be used in its first second.
#[test]
fn a_collective_runs_on_two_hosts_over_ipv6_alone() {
    let Some(hosts) = Namespaces::new(["fd80::1", "fd80::2"]) else { return };
    reduces_over(&hosts, "tw0");
}

/// The hosts have another network, which is down on one of them and up on the other.
#[test]
fn a_network_that_is_down_is_not_taken() {
    let Some(hosts) = Namespaces::new(["10.79.5.1", "10.79.5.2"]) else { return };
    // Both orders in which the system may list the two.
    for wrong in ["tw1", "a0"] {
        hosts.join(wrong, ["10.79.6.1", "10.79.6.2"]).unwrap();
        ip(&format!("-n {} link set {wrong} down", hosts.names[1])).unwrap();
        reduces_over(&hosts, "tw0");
        ip(&format!("-n {} link del {wrong}", hosts.names[0])).unwrap();
    }
}

/// Open MPI itself starts the ranks of both hosts, with its own daemon on the second one.
#[test]
fn open_mpi_starts_ranks_on_two_hosts() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let version = Command::new("mpirun").arg("--version").output();
    if !version.is_ok_and(|version| String::from_utf8_lossy(&version.stdout).contains("Open MPI")) {
        return skip("openmpi", "mpirun is not Open MPI's, or not there");
    }
    let Some(hosts) = Namespaces::new(["10.79.7.1", "10.79.7.2"]) else { return };
    let ([a, b], fake) = (&hosts.names, Fake::new("mpirun", &format!("exec ip netns exec {}", hosts.names[1])));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", a, "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4"]);
    command.args(["--mca", "plm_rsh_agent"]).arg(fake.folder.join("ssh")).args(["--host", "10.79.7.1:2,10.79.7.2:2"]);
    command.args(["-x", "TILEWIRE_STORE", "-x", "TILEWIRE_SECRET", "-x", "TILEWIRE_LIBFABRIC"]);
    command.args([env!("CARGO_BIN_EXE_tilewire"), "run", "all_reduce", "--world", "env", "--transport", "mesh"]);
    command.args(["--bytes", "64KiB"]).env("TILEWIRE_STORE", "10.79.7.1:29400").env("TILEWIRE_LIBFABRIC", library);
    let secret = tilewire::transport::Secret::random().unwrap();
    command.env("TILEWIRE_SECRET", secret.expose()).stdin(Stdio::null());
    let (code, out, err) = run(command);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("every byte right over mesh 0,1|2,3"), "{b}: {out}{err}");
    assert!(fake.arguments().contains("10.79.7.2"), "{}", fake.arguments());
}
