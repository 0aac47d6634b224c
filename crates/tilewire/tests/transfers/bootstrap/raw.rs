//! The protocol, written a second time from its description: a peer that can misbehave.

use crate::bootstrap::{rank, secret};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use tilewire::transport::{BootstrapError, Deadline, TcpBootstrap};

pub const VERSION: u8 = 2;
pub const JOIN: u8 = 1;
pub const SET: u8 = 2;
pub const GET: u8 = 3;
pub const BARRIER: u8 = 5;
/// The limit of the store of `joined_to`: more than all buffers between the two hold.
pub const VALUE_BYTES: u32 = 64 << 20;

/// Connects and does nothing. Reads end after ten seconds, so that a test fails instead of hanging.
pub fn stranger(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// A rank that has joined, without the library.
pub fn member(address: SocketAddr, number: u32, world_size: u32) -> TcpStream {
    let mut stream = proven(address);
    stream.write_all(&message(JOIN, 0, &[number.to_le_bytes(), world_size.to_le_bytes()].concat())).unwrap();
    let mut joined = [0; 13 + 16];
    stream.read_exact(&mut joined).unwrap();
    assert_eq!(joined[0], 1, "joined");
    stream
}

/// A peer that knows the secret and has not joined.
pub fn proven(address: SocketAddr) -> TcpStream {
    let mut stream = stranger(address);
    let mut challenge = [0; 41];
    stream.read_exact(&mut challenge).unwrap();
    assert_eq!(&challenge[..9], b"tilewire\x02");
    stream.write_all(&proof(&challenge[9..])).unwrap();
    let mut verdict = [0; 34];
    stream.read_exact(&mut verdict).unwrap();
    assert_eq!(verdict[..2], [0, 2]);
    assert_eq!(verdict[2..], mac(b"tilewire bootstrap store", &challenge[9..], &[7; 32]));
    stream
}

/// The proof for a challenge, with a nonce that is less fresh than it should be.
pub fn proof(store_nonce: &[u8]) -> Vec<u8> {
    let mac = mac(b"tilewire bootstrap rank ", store_nonce, &[7; 32]);
    [b"tilewire\x02", &[7; 32][..], &mac].concat()
}

pub fn message(kind: u8, number: u64, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &number.to_le_bytes(), &(body.len() as u32).to_le_bytes(), body].concat()
}

/// The body of a question that waits forever.
pub fn named(name: &str) -> Vec<u8> {
    [&u64::MAX.to_le_bytes()[..], &(name.len() as u32).to_le_bytes(), name.as_bytes()].concat()
}

/// Reads until the store closes the connection; false if it does not.
pub fn is_closed(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }
}

/// The bytes of a rank, if this answers in place of the store.
pub fn against(serve: impl FnOnce(TcpStream) + Send, deadline: Duration) -> BootstrapError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        scope.spawn(move || serve(listener.accept().unwrap().0));
        let joined = TcpBootstrap::connect(&address, rank(0), 1, &secret(), Deadline::after(deadline));
        joined.err().expect("this is no store")
    })
}

/// The bytes of a store that knows the secret, up to the rank's question to join. The question has arrived when this
/// returns.
pub fn welcome(stream: &mut TcpStream) {
    stream.write_all(&[b"tilewire\x02", &[9; 32][..]].concat()).unwrap();
    let mut proof = [0; 73];
    stream.read_exact(&mut proof).unwrap();
    let own = mac(b"tilewire bootstrap store", &[9; 32], &proof[9..41]);
    stream.write_all(&[&[0, 2], &own[..]].concat()).unwrap();
    stream.read_exact(&mut [0; 13 + 8]).unwrap();
}

/// A store for one rank that knows the secret, and the rank's result. `serve` continues after the join.
pub fn joined_to<R>(serve: impl FnOnce(TcpStream) + Send, rank_side: impl FnOnce(TcpBootstrap) -> R) -> R {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            welcome(&mut stream);
            let limits = [256u32.to_le_bytes(), VALUE_BYTES.to_le_bytes()].concat();
            let limits = [limits, (2 * u64::from(VALUE_BYTES)).to_le_bytes().to_vec()].concat();
            stream.write_all(&message(1, 0, &limits)).unwrap();
            serve(stream);
        });
        rank_side(TcpBootstrap::connect(&address, rank(0), 1, &secret(), Deadline::default()).unwrap())
    })
}

fn mac(who: &[u8; 24], store: &[u8], rank: &[u8]) -> [u8; 32] {
    mac_of(VERSION, who, store, rank)
}

pub fn mac_of(version: u8, who: &[u8; 24], store: &[u8], rank: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret().expose().as_bytes()).unwrap();
    [&who[..], &[version], store, rank].iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}
