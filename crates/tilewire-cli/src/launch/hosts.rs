//! Ranks on other hosts: each is started by a plain `ssh`, which runs a shell there.
//!
//! ```text
//!  launcher ── ssh -T HOST 'exec sh -s' ──▶ shell of the host ── reads the script from its standard input:
//!     │                                       export TILEWIRE_RANK, ..., TILEWIRE_SECRET; cd; starts the program
//!     └── keeps that input open ────────────▶ its end means that the launcher is gone: ends the program
//! ```
//! The program leads a session of its own where the host has `setsid`, as every Linux has. So whatever it has started
//! is ended with it, except what has moved to another group.
//!
//! The secret travels inside the connection, so it is in no list of processes, here or there. The program is looked for
//! at the same path, in the same folder. Whoever starts a job this way can log in to the hosts without a password.

use anyhow::{Context, Result, anyhow, bail};
use std::ffi::{CStr, OsStr, OsString};
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

/// Larger scripts would fill the pipe before anybody reads it.
const LONGEST: usize = 60 << 10;

/// A host's name as `ssh` takes it.
pub fn host(text: &str) -> Result<String, String> {
    match text {
        "" => Err("a host is missing: write a,b".into()),
        // It would be an option.
        _ if text.starts_with('-') => Err(format!("'{text}' is not a host")),
        _ => Ok(text.to_string()),
    }
}

/// The host of each rank, and its number among the ranks there: neighbours share a host.
pub fn places(ranks: usize, hosts: &[String]) -> Vec<(&str, usize)> {
    let share = |host: usize| host * ranks / hosts.len()..(host + 1) * ranks / hosts.len();
    let of = |host: usize| share(host).enumerate().map(move |(local, _)| (hosts[host].as_str(), local));
    (0..hosts.len()).flat_map(of).collect()
}

/// The addresses of this machine that the ranks of each host are told, by host, and where to listen for them.
pub struct Reached {
    /// The address of the store. Port 0 picks a free port.
    pub listen: String,
    addresses: Vec<IpAddr>,
}

impl Reached {
    /// `asked` is an address or an interface of this machine. Without it, each host is told the address from which
    /// packets to it leave.
    pub fn of(hosts: &[String], asked: Option<&str>) -> Result<Reached> {
        if let Some(asked) = asked {
            let address = asked.parse().ok().map_or_else(|| of_interface(asked), Ok)?;
            return Ok(Reached { listen: with_port(address, 0), addresses: vec![address; hosts.len()] });
        }
        let addresses = hosts.iter().map(|host| towards(host)).collect::<Result<Vec<_>>>()?;
        let first = addresses[0];
        let listen = match addresses.iter().all(|address| *address == first) {
            true => with_port(first, 0),
            false if Path::new("/proc/net/if_inet6").exists() => "[::]:0".to_string(),
            false => "0.0.0.0:0".to_string(),
        };
        Ok(Reached { listen, addresses })
    }

    /// The store's address for the ranks of a host.
    pub fn store(&self, host: usize, port: u16) -> String {
        with_port(self.addresses[host], port)
    }
}

fn with_port(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

/// The address from which this machine sends to a host. Nothing is sent.
fn towards(host: &str) -> Result<IpAddr> {
    // ssh also takes user@host.
    let name = host.rsplit('@').next().unwrap_or(host);
    let found = (name, 9u16).to_socket_addrs();
    let how = "say with --address which address or interface of this machine the hosts reach";
    let addresses = found.with_context(|| format!("the address of host '{name}' is not known here; {how}"))?;
    for address in addresses {
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let local = UdpSocket::bind(any).and_then(|socket| socket.connect(address).and_then(|()| socket.local_addr()));
        if let Ok(local) = local {
            return Ok(local.ip());
        }
    }
    bail!("there is no way to host '{name}' from here; {how}")
}

/// An address of an interface: IPv4 if it has one.
fn of_interface(name: &str) -> Result<IpAddr> {
    let all = interfaces().context("the interfaces of this machine are not known")?;
    let of = |wanted: fn(&IpAddr) -> bool| all.iter().find(|(of, address)| of == name && wanted(address));
    let is_link_local = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.segments()[0] & 0xffc0 == 0xfe80);
    let found =
        of(IpAddr::is_ipv4).or_else(|| all.iter().find(|(of, a)| of == name && a.is_ipv6() && !is_link_local(a)));
    let mut names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    let names = names.join(", ");
    found
        .map(|(_, address)| *address)
        .ok_or_else(|| anyhow!("--address {name}: neither an address nor an interface with one; there are {names}"))
}

/// The interfaces that are up, with their addresses.
fn interfaces() -> std::io::Result<Vec<(String, IpAddr)>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `first` is writable for the call, which makes a list that `freeifaddrs` below takes back.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let (mut all, mut next) = (Vec::new(), first);
    while !next.is_null() {
        // SAFETY: the list is whole until it is freed: each entry, its name (a C string) and its address, if there is
        // one, are valid, and the address has the size that its family says.
        unsafe {
            let entry = &*next;
            next = entry.ifa_next;
            if entry.ifa_addr.is_null() || entry.ifa_flags & libc::IFF_UP as u32 == 0 {
                continue;
            }
            let address = match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let v4 = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes())
                }
                libc::AF_INET6 => {
                    let v6 = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    IpAddr::from(v6.sin6_addr.s6_addr)
                }
                _ => continue,
            };
            all.push((CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned(), address));
        }
    }
    // SAFETY: the list of above, freed once, and nothing of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(all)
}

/// The command that reaches a host. It shows no secret.
pub fn ssh(host: &str) -> Command {
    let mut command = Command::new("ssh");
    // A job that asks for passwords would wait for them.
    command.args(["-T", "-o", "BatchMode=yes", host, "exec sh -s"]);
    command
}

/// The input for the shell of a host: variables, folder, program. `TILEWIRE_` and `FI_` variables of this process go
/// along.
pub fn script(variables: &[(&str, String)], program: &[OsString]) -> Result<Vec<u8>> {
    let own = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        let is_set = variables.iter().any(|(set, _)| *set == name);
        !is_set && (name.starts_with("TILEWIRE_") || name.starts_with("FI_")) && name != "TILEWIRE_STORE_HOST"
    });
    // In braces: the shell reads all of it before it runs any of it, so nothing of it is left for others to read.
    let mut script = b"{\nexec 3<&0 </dev/null\n".to_vec();
    let mut export = |name: &OsStr, value: &OsStr| {
        let name = name.as_bytes();
        // Others cannot be set by a shell.
        if name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_') {
            script.extend([b"export ", name, b"=", &quoted(value), b"\n"].concat());
        }
    };
    variables.iter().for_each(|(name, value)| export(OsStr::new(name), OsStr::new(value)));
    own.for_each(|(name, value)| export(&name, &value));
    let folder = std::env::current_dir().context("the folder of this program is not known")?;
    let here = quoted(folder.as_os_str());
    script.extend([b"cd ", &here[..], b" || exit 1\n"].concat());
    let path = Path::new(&program[0]);
    let path = match path.components().count() {
        1 => path.to_path_buf(),
        _ => std::path::absolute(path).context("the path of the program")?,
    };
    // Without `setsid`, the word is empty, and only the program itself can be ended.
    script.extend(b"own=$(command -v setsid)\n$own ");
    script.extend(quoted(path.as_os_str()));
    for argument in &program[1..] {
        script.push(b' ');
        script.extend(quoted(argument));
    }
    // The program, and beside it a process that waits for the end of the input: then the launcher is gone, or wants the
    // rank to end. A signal goes to the rank's group, or to the rank alone if it leads none. At the end, what the rank
    // has left in its group is ended.
    script.extend(
        b" 3<&- &\nrank=$!\n\
          end() { kill -$1 -$rank || kill -$1 $rank; }\n\
          { cat <&3; end TERM; sleep 2; end KILL; } >/dev/null 2>&1 &\nguard=$!\nexec 3<&-\n\
          wait $rank\nstatus=$?\nkill $guard 2>/dev/null\n\
          [ -z \"$own\" ] || kill -KILL -$rank 2>/dev/null\nexit $status\n}\n",
    );
    if script.len() > LONGEST {
        bail!("the program's arguments and the TILEWIRE_ variables have {} bytes: at most {LONGEST}", script.len());
    }
    Ok(script)
}

/// A word for a shell.
fn quoted(text: &OsStr) -> Vec<u8> {
    let inside = text.as_bytes().iter().flat_map(|byte| match byte {
        b'\'' => b"'\\''".to_vec(),
        byte => vec![*byte],
    });
    [b'\''].into_iter().chain(inside).chain([b'\'']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, Write};
    use std::process::Stdio;

    #[test]
    fn neighbours_share_a_host_and_every_rank_has_one() {
        let hosts = ["a", "b", "c"].map(String::from);
        assert_eq!(places(4, &hosts[..2]), [("a", 0), ("a", 1), ("b", 0), ("b", 1)]);
        assert_eq!(places(5, &hosts[..2]), [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]);
        assert_eq!(places(3, &hosts), [("a", 0), ("b", 0), ("c", 0)]);
        assert_eq!(places(2, &hosts).len(), 2);
    }

    #[test]
    fn hosts_that_would_be_options_are_refused() {
        assert!(host("-oProxyCommand=x").is_err() && host("").is_err());
        assert_eq!(host("user@node7"), Ok("user@node7".to_string()));
    }

    #[test]
    fn this_machine_is_reached_at_the_address_that_leads_to_the_host() {
        let of = |hosts: &[&str], asked| {
            let hosts: Vec<String> = hosts.iter().map(|host| host.to_string()).collect();
            Reached::of(&hosts, asked).map(|reached| (reached.listen.clone(), reached.store(0, 7)))
        };
        let local = ("127.0.0.1:0".to_string(), "127.0.0.1:7".to_string());
        assert_eq!(of(&["127.0.0.1", "me@127.0.0.1"], None).unwrap(), local);
        assert_eq!(of(&["nowhere.invalid"], Some("127.0.0.1")).unwrap(), local);
        assert_eq!(of(&["nowhere.invalid"], Some("lo")).unwrap(), local);
        assert_eq!(of(&["x"], Some("::1")).unwrap().1, "[::1]:7");
        assert!(of(&["nowhere.invalid"], None).unwrap_err().to_string().contains("--address"));
        assert!(of(&["x"], Some("no0")).unwrap_err().to_string().contains("lo"), "those that there are");
    }

    /// Through a real shell, as a host runs it.
    fn run(program: &[&str], keep: bool) -> std::process::Output {
        let program: Vec<OsString> = program.iter().map(OsString::from).collect();
        let script = script(&[("TILEWIRE_RANK", "it's 3".to_string())], &program).unwrap();
        let mut shell = Command::new("sh");
        shell.arg("-s").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut input = shell.stdin.take().unwrap();
        input.write_all(&script).unwrap();
        let input = keep.then_some(input);
        let output = shell.wait_with_output().unwrap();
        drop(input);
        output
    }

    #[test]
    fn a_shell_gets_the_variables_and_the_arguments_as_they_are() {
        let output = run(&["sh", "-c", "echo \"$TILEWIRE_RANK|$1|$2\"; exit 7", "sh", "a b'c", "$HOME*\n\""], true);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "it's 3|a b'c|$HOME*\n\"\n");
        assert_eq!(output.status.code(), Some(7));
    }

    #[test]
    fn a_program_ends_when_its_launcher_is_gone() {
        let start = std::time::Instant::now();
        let output = run(&["sleep", "60"], false);
        assert_eq!(output.status.code(), Some(128 + libc::SIGTERM), "{output:?}");
        assert!(start.elapsed().as_secs() < 30);
    }

    /// A process ends soon.
    fn ends(number: &str) {
        let number: u32 = number.trim().parse().unwrap();
        let start = std::time::Instant::now();
        // A process that has ended may stay as a zombie, where nobody reaps it.
        let state = || std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        while state().rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.starts_with(" Z")) {
            assert!(start.elapsed().as_secs() < 30, "{}", state());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    #[test]
    fn children_of_a_program_end_with_it() {
        // The child ignores the polite signal. Its program ends by itself, or the launcher is gone.
        for (end, status) in [("exit 7", 7), ("wait", 128 + libc::SIGTERM)] {
            let text = format!("(trap '' TERM; exec sleep 61) >/dev/null & echo $!; {end}");
            let script = script(&[], &["sh".into(), "-c".into(), text.into()]).unwrap();
            let mut shell = Command::new("sh");
            let mut shell = shell.arg("-s").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut input = shell.stdin.take().unwrap();
            input.write_all(&script).unwrap();
            let mut number = String::new();
            std::io::BufReader::new(shell.stdout.take().unwrap()).read_line(&mut number).unwrap();
            let input = (status == 7).then_some(input);
            assert_eq!(shell.wait().unwrap().code(), Some(status));
            ends(&number);
            drop(input);
        }
    }

    #[test]
    fn too_long_a_command_is_refused() {
        let long = OsString::from("x".repeat(LONGEST));
        assert!(script(&[], &["true".into(), long]).unwrap_err().to_string().contains("at most"));
    }
}
