//! TCP keep-alive: a connection whose other end was cut off ends, although nothing is sent on it.
//!
//! A process that ends closes its connections, whatever ended it: its system says so. A host that loses its network or
//! its power says nothing, and a rank that waits for an answer would wait until its own deadline. So the system probes
//! silent connections, and gives up after [`SILENCE`] without an answer. Probes are answered by the other end's system:
//! a process that is stopped, or a machine that is merely busy, is not taken for one that is cut off.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The time after which a connection counts as cut off, if waits may be longer. It is longer than an interface takes to
/// come up again.
pub(super) const SILENCE: Duration = Duration::from_secs(14);
/// The shortest silence that the system can be asked for: it counts probes in seconds.
const SHORTEST: Duration = Duration::from_secs(2);

/// How long a connection may be silent in a job whose waits last for `deadline`, or forever. It is shorter than a wait,
/// so that a wait ends with the rank that was lost. A process that is stopped for longer may be taken for lost if its
/// system cannot take what is sent to it, so it is not much shorter.
pub(super) fn silence(deadline: Option<Duration>) -> Duration {
    let before = |deadline: Duration| deadline.saturating_sub((deadline / 8).max(Duration::from_millis(500)));
    deadline.map_or(SILENCE, |deadline| before(deadline).clamp(SHORTEST, SILENCE))
}

/// Asks the system to end this connection when the other end is cut off, after `silence`.
pub(super) fn enable(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    set(stream, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    #[cfg(target_os = "linux")]
    {
        // Of the usual 14 s, the first probe after 4 s of silence, and then one every 2 s.
        let seconds = silence.as_secs().max(SHORTEST.as_secs()) as i32;
        let every = (seconds / 7).max(1);
        let idle = (seconds * 2 / 7).max(1);
        set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle)?;
        set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, every)?;
        set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, ((seconds - idle) / every).max(1))?;
        // What was sent and not acknowledged would otherwise be sent again for a quarter of an hour, without any
        // probes. The same limit also ends the probes.
        set(stream, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, silence.as_millis() as i32)?;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = silence;
    Ok(())
}

fn set(stream: &TcpStream, level: i32, option: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` is readable for `len` bytes during the call, which only copies it; the descriptor is open, since
    // the stream is borrowed.
    let result = unsafe { libc::setsockopt(stream.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// The probes themselves need a network that is cut: the test of two network namespaces does that.
    #[test]
    #[cfg(target_os = "linux")]
    fn both_ends_are_probed_within_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let read = |level, option| {
            let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
            // SAFETY: both are writable, and `len` is the size of the first.
            let result =
                unsafe { libc::getsockopt(stream.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut len) };
            assert_eq!(result, 0);
            value as u64
        };
        for (deadline, longest) in
            [(None, 14), (Some(600), 14), (Some(30), 14), (Some(12), 12), (Some(6), 6), (Some(3), 3), (Some(1), 2)]
        {
            let deadline = deadline.map(Duration::from_secs);
            enable(&stream, silence(deadline)).unwrap();
            assert_eq!(read(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
            let [idle, every, probes] = [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT]
                .map(|option| read(libc::IPPROTO_TCP, option));
            assert!(idle + every * probes <= longest, "{deadline:?}: {idle} + {every} x {probes}");
            let limit = read(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT);
            assert!(limit <= longest * 1000, "{deadline:?}: {limit} ms");
            // A process may be stopped for 10 s where waits last for 12.
            assert!(
                deadline.is_some_and(|deadline| deadline.as_secs() < 12) || limit > 10_000,
                "{deadline:?}: {limit}"
            );
        }
        assert_eq!(silence(None), SILENCE);
    }
}
