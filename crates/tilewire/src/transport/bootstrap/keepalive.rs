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

/// The time after which a connection counts as cut off. Shorter than the usual deadline, so that waits end with the
/// rank that was lost; longer than an interface takes to come up again.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(super) const SILENCE: Duration = Duration::from_secs(14);

/// Asks the system to end this connection when the other end is cut off.
pub(super) fn enable(stream: &TcpStream) -> io::Result<()> {
    set(stream, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    #[cfg(target_os = "linux")]
    {
        // The first probe after 4 s of silence, then one every 2 s: the fifth without an answer ends it.
        set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 4)?;
        set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 2)?;
        set(stream, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 5)?;
        // What was sent and not acknowledged would otherwise be sent again for a quarter of an hour, without any
        // probes.
        set(stream, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, SILENCE.as_millis() as i32)?;
    }
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
    fn both_ends_are_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        enable(&stream).unwrap();
        let read = |level, option| {
            let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
            // SAFETY: both are writable, and `len` is the size of the first.
            let result =
                unsafe { libc::getsockopt(stream.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut len) };
            assert_eq!(result, 0);
            value
        };
        assert_eq!(read(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        let [idle, every, probes] =
            [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT].map(|option| read(libc::IPPROTO_TCP, option));
        assert_eq!((idle + every * probes) as u64, SILENCE.as_secs());
        assert_eq!(read(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) as u128, SILENCE.as_millis());
    }
}
