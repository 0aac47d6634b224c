//! A stranger who connects to a rank's socket. It speaks the format as written here, so a change of the format is
//! noticed.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The socket at which a rank listens, and its token.
pub type Door = (Vec<u8>, [u8; 16]);

/// The doors on the gathered cards: version 8, size 8, machine 24, one byte, token 16, the number of control groups and
/// 8 for each, name.
pub fn doors(parts: &[Vec<u8>]) -> Vec<Door> {
    let name = |part: &Vec<u8>| part[58 + 8 * usize::from(part[57])..].to_vec();
    parts.iter().map(|part| (name(part), part[41..57].try_into().unwrap())).collect()
}

pub struct Stranger(OwnedFd);

impl Stranger {
    pub fn connect(name: &[u8]) -> io::Result<Stranger> {
        let stranger = Stranger::open();
        let (address, len) = address(name);
        // SAFETY: the address is valid for `len` bytes.
        match unsafe { libc::connect(stranger.0.as_raw_fd(), (&raw const address).cast(), len) } {
            0 => Ok(stranger),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// A listener that never accepts, and its name.
    pub fn listen() -> (Stranger, Vec<u8>) {
        let stranger = Stranger::open();
        let name = format!("tilewire-test-{}-{}", std::process::id(), stranger.0.as_raw_fd()).into_bytes();
        let (address, len) = address(&name);
        // SAFETY: the address is valid for `len` bytes.
        assert_eq!(unsafe { libc::bind(stranger.0.as_raw_fd(), (&raw const address).cast(), len) }, 0);
        // SAFETY: touches no memory.
        assert_eq!(unsafe { libc::listen(stranger.0.as_raw_fd(), 8) }, 0);
        (stranger, name)
    }

    pub fn send(&self, packet: &[u8]) {
        let (start, len) = (packet.as_ptr().cast(), packet.len());
        // SAFETY: the packet is readable for `len` bytes.
        unsafe { libc::send(self.0.as_raw_fd(), start, len, libc::MSG_NOSIGNAL) };
    }

    pub fn send_hello(&self, from: u32, token: &[u8; 16]) {
        self.send(&[b"TWSEGM02H".as_slice(), &from.to_le_bytes(), token].concat());
    }

    /// The next packet; `None` at the end. Waits.
    pub fn hear(&self) -> Option<Vec<u8>> {
        let mut buffer = [0; 1024];
        loop {
            // SAFETY: the buffer is writable for its length.
            let len = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            match len {
                1.. => return Some(buffer[..len as usize].to_vec()),
                // A reset is reported once, before the bytes that can still be read.
                -1 if io::Error::last_os_error().raw_os_error() == Some(libc::ECONNRESET) => {}
                _ => return None,
            }
        }
    }

    fn open() -> Stranger {
        // SAFETY: touches no memory; the descriptor is fresh.
        unsafe {
            let socket = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
            assert!(socket >= 0);
            Stranger(OwnedFd::from_raw_fd(socket))
        }
    }
}

fn address(name: &[u8]) -> (libc::sockaddr_un, libc::socklen_t) {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as _, sun_path: [0; 108] };
    address.sun_path[1..].iter_mut().zip(name).for_each(|(to, &from)| *to = from as libc::c_char);
    (address, (3 + name.len()) as libc::socklen_t)
}
