//! Unix sockets between the ranks of one machine: sequenced packets, so that a message is one call and never arrives in
//! pieces, and abstract names, so that nothing stays in the file system. Only [`wait`] blocks, and it has a deadline.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// The result of reading a connection.
pub(super) enum Heard {
    /// Nothing yet.
    Nothing,
    /// The other side is gone.
    End,
    /// A packet of this many bytes, truncated to the buffer's length, and a descriptor if one was sent and asked for.
    Packet(usize, Option<OwnedFd>),
}

/// Listens at an abstract name.
pub(super) fn listen(name: &[u8], backlog: usize) -> io::Result<OwnedFd> {
    let socket = open()?;
    let (address, len) = abstract_address(name)?;
    // SAFETY: the address is valid for `len` bytes.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    // SAFETY: our own socket; touches no memory.
    check(unsafe { libc::listen(socket.as_raw_fd(), backlog.try_into().unwrap_or(i32::MAX)) })?;
    Ok(socket)
}

/// Connects to an abstract name; `WouldBlock` if its queue is full.
pub(super) fn connect(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = open()?;
    let (address, len) = abstract_address(name)?;
    // SAFETY: the address is valid for `len` bytes.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(socket)
}

/// Takes the next connection, if there is one.
pub(super) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for; touches no memory.
    let socket = unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    match check(socket) {
        // SAFETY: a fresh descriptor that nobody else knows.
        Ok(socket) => Ok(Some(unsafe { OwnedFd::from_raw_fd(socket) })),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        // The connection came and went, or a signal came: the caller's loop will be back soon.
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if the other side is a process of this user.
pub(super) fn is_same_user(socket: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: cannot fail and touches no memory.
    Ok(other_side(socket)?.uid == unsafe { libc::geteuid() })
}

/// Who made the connection at the other side.
fn other_side(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: `peer` is writable for `len` bytes.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut peer).cast(), &raw mut len) })?;
    Ok(peer)
}

/// The process at the other side of a connection.
pub(super) enum Process {
    /// All its threads have ended.
    Ended,
    /// It runs. [`has_ended`] says when it does not any more, and [`wait`] waits for that.
    Runs(OwnedFd),
    /// The system does not say.
    Unknown,
}

/// The process at the other side, also after it has closed the connection.
pub(super) fn process_of(socket: BorrowedFd<'_>) -> Process {
    // 0 for a process that this one cannot see.
    let Some(pid) = other_side(socket).ok().map(|peer| peer.pid).filter(|&pid| pid > 0) else {
        return Process::Unknown;
    };
    // SAFETY: touches no memory. The result is -1 or a descriptor.
    match check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32) {
        // SAFETY: a fresh descriptor that nobody else knows.
        Ok(process) => Process::Runs(unsafe { OwnedFd::from_raw_fd(process) }),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Process::Ended,
        Err(_) => Process::Unknown,
    }
}

/// True if a process that ran has ended.
pub(super) fn has_ended(process: BorrowedFd<'_>) -> bool {
    let mut entry = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, valid and writable for the call.
    unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
}

/// Sends one packet, with a descriptor if there is one to pass. Returns false if the other side is gone; its last words
/// may still be unread.
pub(super) fn send(socket: BorrowedFd<'_>, packet: &[u8], pass: Option<BorrowedFd<'_>>) -> io::Result<bool> {
    let mut part = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
    let mut control = Control::new();
    // SAFETY: all zeros is a valid value of this plain C struct.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(file) = pass {
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = Control::LEN as _;
        // SAFETY: the control buffer is aligned for a header and has room for one descriptor (`Control::LEN`), so both
        // macros stay inside it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<i32>() as u32) as _;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(file.as_raw_fd());
        }
    }
    loop {
        // SAFETY: the message's parts are valid for the call, which only reads them.
        let sent =
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        match check(sent as i32) {
            Ok(_) => return Ok(true),
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected => {
                    return Ok(false);
                }
                _ => return Err(error),
            },
        }
    }
}

/// Receives one packet into `buffer`. The kernel closes descriptors that nobody asked for.
pub(super) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], with_file: bool) -> io::Result<Heard> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = Control::new();
    let mut ended = false;
    loop {
        // SAFETY: all zeros is a valid value of this plain C struct.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if with_file {
            message.msg_control = control.0.as_mut_ptr().cast();
            // Not the whole buffer: rounded up to the header's alignment it would have room for a second descriptor,
            // which nobody would close.
            // SAFETY: arithmetic only.
            message.msg_controllen = unsafe { libc::CMSG_LEN(size_of::<i32>() as u32) } as _;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the buffer and the control buffer are writable for the lengths given.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
        match check(received as i32) {
            // Nobody here sends empty packets, so this is the end. But Linux first looks into the queue and then checks
            // whether the other side is gone. A packet sent in between is there, and only a second look finds it.
            // Nothing comes after an end, so two looks are enough.
            Ok(0) if ended => return Ok(Heard::End),
            Ok(0) => ended = true,
            Ok(len) => return Ok(Heard::Packet(len as usize, passed(&message))),
            Err(error) => match error.kind() {
                // A reset is reported once, before what is still queued: look again.
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionReset => {}
                io::ErrorKind::WouldBlock => return Ok(Heard::Nothing),
                io::ErrorKind::NotConnected => return Ok(Heard::End),
                _ => return Err(error),
            },
        }
    }
}

/// Waits until one of the sockets has news, or until `until`.
pub(super) fn wait<'a>(sockets: impl Iterator<Item = BorrowedFd<'a>>, until: Option<Instant>) -> io::Result<()> {
    let entry = |socket: BorrowedFd<'_>| libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut entries: Vec<libc::pollfd> = sockets.map(entry).collect();
    let timeout = match until {
        None => -1,
        // Rounded up: a wait that ends just before its time would be repeated immediately.
        Some(until) => {
            let left = until.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
            left.as_millis().try_into().unwrap_or(i32::MAX)
        }
    };
    // SAFETY: the entries are valid and writable for the call.
    match check(unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, timeout) }) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// Two connected sockets.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut pair = [0; 2];
    // SAFETY: the array is writable for two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, KIND, 0, pair.as_mut_ptr()) })?;
    // SAFETY: two fresh descriptors that nobody else knows.
    Ok(unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) })
}

/// Bytes that nobody can guess.
pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the array is writable for N bytes. Requests of up to 256 bytes are answered in full.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    check(got as i32)?;
    assert_eq!(got as usize, N, "short requests are answered whole");
    Ok(bytes)
}

const KIND: i32 = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;

fn open() -> io::Result<OwnedFd> {
    // SAFETY: touches no memory.
    let socket = check(unsafe { libc::socket(libc::AF_UNIX, KIND, 0) })?;
    // SAFETY: a fresh descriptor that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// An address that begins with a zero byte exists only in the kernel.
fn abstract_address(name: &[u8]) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as _, sun_path: [0; 108] };
    if name.is_empty() || name.len() >= address.sun_path.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket's name has 1 to 107 bytes"));
    }
    for (to, &from) in address.sun_path[1..].iter_mut().zip(name) {
        *to = from as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    Ok((address, len as libc::socklen_t))
}

/// The descriptor that came with a message.
fn passed(message: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the kernel filled the control buffer and recorded how much of it; the macros stay inside that. `receive`
    // leaves room for one descriptor, so there is at most one header with at most one descriptor, which we own from now
    // on.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        if header.is_null() || (*header).cmsg_level != libc::SOL_SOCKET || (*header).cmsg_type != libc::SCM_RIGHTS {
            return None;
        }
        let one = libc::CMSG_LEN(size_of::<i32>() as u32) as usize;
        let file = libc::CMSG_DATA(header).cast::<i32>().read_unaligned();
        ((*header).cmsg_len as usize >= one).then(|| OwnedFd::from_raw_fd(file))
    }
}

/// Room for the header and one descriptor, aligned for the header.
struct Control([u64; Control::LEN / 8]);

impl Control {
    // SAFETY: arithmetic only; the function is unsafe merely because of its C origin.
    const LEN: usize = unsafe { libc::CMSG_SPACE(size_of::<i32>() as u32) } as usize;

    fn new() -> Control {
        Control([0; Control::LEN / 8])
    }
}

fn check(result: i32) -> io::Result<i32> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_was_said_before_the_end_is_heard() {
        let (ours, theirs) = pair().unwrap();
        assert!(send(ours.as_fd(), b"unread", None).unwrap());
        assert!(send(theirs.as_fd(), b"last words", None).unwrap());
        drop(theirs); // with a packet unread: a reset
        assert!(!send(ours.as_fd(), b"more", None).unwrap_or(false));
        let mut buffer = [0; 64];
        let Heard::Packet(len, None) = receive(ours.as_fd(), &mut buffer, true).unwrap() else { panic!("no packet") };
        assert_eq!(&buffer[..len], b"last words");
        assert!(matches!(receive(ours.as_fd(), &mut buffer, false).unwrap(), Heard::End));
    }

    #[test]
    fn a_process_that_closes_a_connection_has_not_ended() {
        let (ours, theirs) = pair().unwrap();
        drop(theirs);
        // The other side is this process.
        let Process::Runs(process) = process_of(ours.as_fd()) else { panic!("it runs") };
        assert!(!has_ended(process.as_fd()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        // SAFETY: touches no memory.
        let opened = check(unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) } as i32).unwrap();
        // SAFETY: a fresh descriptor that nobody else knows.
        let process = unsafe { OwnedFd::from_raw_fd(opened) };
        wait([process.as_fd()].into_iter(), Some(Instant::now() + Duration::from_secs(60))).unwrap();
        // It has not been waited for yet.
        assert!(has_ended(process.as_fd()));
        child.wait().unwrap();
    }

    #[test]
    fn a_descriptor_comes_along_only_where_it_is_asked_for() {
        let (ours, theirs) = pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let mut buffer = [0; 8];
        assert!(matches!(receive(theirs.as_fd(), &mut buffer, true).unwrap(), Heard::Nothing));
        send(ours.as_fd(), b"1", Some(writer.as_fd())).unwrap();
        send(ours.as_fd(), b"2", Some(writer.as_fd())).unwrap();
        drop(writer);
        assert!(matches!(receive(theirs.as_fd(), &mut buffer, true).unwrap(), Heard::Packet(1, Some(_))));
        assert!(matches!(receive(theirs.as_fd(), &mut buffer, false).unwrap(), Heard::Packet(1, None)));
        // Every copy of the writing end is closed again, so the pipe is at its end.
        assert_eq!(std::io::read_to_string(reader).unwrap(), "");
    }

    /// A rank says its last word and closes immediately, while another looks. (With only one look at an end, 200 of
    /// 500,000 words were lost.)
    #[test]
    fn a_last_word_is_heard_whenever_it_comes() {
        let (to, from) = std::sync::mpsc::sync_channel::<OwnedFd>(0);
        let sender = std::thread::spawn(move || {
            for socket in from {
                send(socket.as_fd(), b"ready", None).unwrap();
            }
        });
        for turn in 0..30_000 {
            let (here, there) = pair().unwrap();
            to.send(there).unwrap();
            let mut buffer = [0; 16];
            loop {
                match receive(here.as_fd(), &mut buffer, false).unwrap() {
                    Heard::Nothing => {}
                    Heard::End => panic!("turn {turn}: the end, and no word before it"),
                    Heard::Packet(len, _) => break assert_eq!(&buffer[..len], b"ready"),
                }
            }
        }
        drop(to);
        sender.join().unwrap();
    }
}
