//! `tilewire launch --hosts`, with a stand-in for `ssh` in the path: it runs the command here, or in a network
//! namespace of the host's name. It shows every argument that it gets, so that the tests can look for secrets there.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A folder with the stand-in, removed at the end.
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

/// Status, output and complaints of a command.
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
struct Namespaces([String; 2]);

impl Namespaces {
    /// `None` where that is not allowed.
    fn new(addresses: [&str; 2], prefix: u8) -> Option<Namespaces> {
        let pid = std::process::id();
        let kind = if addresses[0].contains(':') { 6 } else { 4 };
        let pair = Namespaces([0, 1].map(|host| format!("tw-h{kind}-{pid}-{host}")));
        let [a, b] = &pair.0;
        let mut commands = vec![
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add tw0 type veth peer name tw0 netns {b}"),
        ];
        for (name, address) in pair.0.iter().zip(addresses) {
            // No waiting for duplicates of an IPv6 address.
            let nodad = if kind == 6 { " nodad" } else { "" };
            commands.push(format!("-n {name} addr add {address}/{prefix} dev tw0{nodad}"));
            commands.push(format!("-n {name} link set lo up"));
            commands.push(format!("-n {name} link set tw0 up"));
        }
        for command in commands {
            let output = Command::new("ip").args(command.split(' ')).output();
            if !output.as_ref().is_ok_and(|output| output.status.success()) {
                println!("SKIP: no network namespaces: ip {command}: {output:?}");
                return None;
            }
        }
        Some(pair)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| _ = Command::new("ip").args(["netns", "del", name]).output());
    }
}

/// The launcher runs on the first host, and meets the ranks of both: the store, and the result of a program.
fn launches_over(
    addresses: [&str; 2],
    prefix: u8,
    program: &[&str],
    env: &[(&str, String)],
) -> Option<(i32, String, String)> {
    let namespaces = Namespaces::new(addresses, prefix)?;
    let [a, b] = &namespaces.0;
    let enter = format!("if [ \"$host\" = {} ]; then ns={a}; else ns={b}; fi\nexec ip netns exec $ns", addresses[0]);
    let fake = Fake::new(&format!("netns{prefix}"), &enter);
    let hosts = addresses.join(",");
    let inner = fake.launch(&[&["--hosts", &hosts, "-n", "4", "--deadline", "60s", "--"], program].concat());
    let mut command = Command::new("ip");
    command.args(["netns", "exec", a]).arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.envs(env.iter().map(|(name, value)| (name, value)));
    Some(run(command))
}

const PLACE: [&str; 3] = ["sh", "-c", "echo $TILEWIRE_RANK at $TILEWIRE_STORE; ip -o addr show tw0 | grep -c inet"];

#[test]
fn each_host_is_told_an_address_that_it_reaches() {
    let Some((code, out, err)) = launches_over(["10.79.3.1", "10.79.3.2"], 24, &PLACE, &[]) else { return };
    assert_eq!(code, 0, "{err}");
    assert!((0..4).all(|rank| out.contains(&format!("[{rank}] {rank} at 10.79.3.1:"))), "{out}");
}

#[test]
fn hosts_are_reached_over_ipv6_alone() {
    let Some((code, out, err)) = launches_over(["fd79::1", "fd79::2"], 64, &PLACE, &[]) else { return };
    assert_eq!(code, 0, "{err}");
    assert!((0..4).all(|rank| out.contains(&format!("[{rank}] {rank} at [fd79::1]:"))), "{out}");
}

/// The whole way: two hosts with two ranks each run a collective over the network, and every byte is right.
#[test]
#[ignore = "since the last merges ranks of two hosts do not hear each other when launch --hosts starts them: cause not found"]
fn a_collective_runs_on_two_hosts() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let library = [("TILEWIRE_LIBFABRIC", library.display().to_string())];
    for (addresses, prefix) in [(["10.79.4.1", "10.79.4.2"], 25), (["fd80::1", "fd80::2"], 65)] {
        let program = [env!("CARGO_BIN_EXE_tilewire"), "run", "all_reduce", "--transport", "mesh", "--bytes", "64KiB"];
        let Some((code, out, err)) = launches_over(addresses, prefix, &program, &library) else { return };
        assert_eq!(code, 0, "{out}{err}");
        assert!(err.contains("domains [0, 1] [2, 3], joined by tcp"), "{err}");
    }
}
