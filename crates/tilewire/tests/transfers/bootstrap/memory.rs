//! Hostile bytes cost a fixed amount of memory, whatever sizes they announce and however many come.
//!
//! A separate process is measured, in which nothing else happens.

use crate::bootstrap::raw::{self, SET, is_closed, member, message, named, proven, stranger};
use crate::bootstrap::{connect, long, server};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use tilewire::transport::{Bootstrap, Limits};
use tilewire_testkit::job::{Job, Member};

/// The answer to a set.
const DONE: u8 = 5;
/// The number of connections of each kind that are open simultaneously.
const AT_ONCE: usize = 150;
/// The announced sizes: the largest that the header can say, the largest of a value, and a large one.
const LENGTHS: [u32; 3] = [u32::MAX, 1 << 20, 1 << 30];
/// Far above the buffers of that many connections, and far below any announced size.
const RESIDENT: usize = 16 << 20;
/// The same for memory that is reserved and never touched. The allocator reserves 64 MiB for each new thread.
const RESERVED: usize = 512 << 20;

/// The most memory that this process has had so far: touched, and reserved.
fn peaks() -> [usize; 2] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    ["VmHWM:", "VmPeak:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    })
}

/// The header of a question. Its body of `length` bytes does not follow.
fn announced(length: u32) -> Vec<u8> {
    [&[SET][..], &0u64.to_le_bytes(), &length.to_le_bytes()].concat()
}

/// Strangers who send more than a proof, or begin one, and some who know the secret and announce sizes. All stay until
/// the end.
fn flood(address: SocketAddr, connections: usize) {
    let mut all: Vec<TcpStream> = Vec::new();
    for number in 0..connections {
        let mut one = stranger(address);
        // The store may have closed it by then.
        _ = one.write_all(&[&b"tilewire\x02"[..number % 10], &[0xff; 60_000]].concat());
        all.push(one);
        let mut one = proven(address);
        _ = one.write_all(&announced(LENGTHS[number % 3]));
        // A part of the announced bytes, so that the store begins to keep them.
        _ = one.write_all(&[0; 100]);
        all.push(one);
    }
}

/// A rank that announces values, sends a hundredth of each, and leaves.
fn announce_as_a_rank(limits: Limits) {
    for length in LENGTHS {
        let server = server(2, limits);
        let _witness = connect(&server, 0, 2);
        let mut rank = member(server.address(), 1, 2);
        rank.write_all(&announced(length)).unwrap();
        _ = rank.write_all(&vec![0; 10_000]);
    }
}

/// A rank that sets more and more keys, up to the limit and far beyond it.
fn fill(limits: Limits, values: usize) {
    let server = server(2, limits);
    let witness = connect(&server, 0, 2);
    let mut rank = member(server.address(), 1, 2);
    let value = vec![7; 1 << 20];
    let mut kept = 0;
    for number in 0..values {
        // The body of a set contains no time to wait.
        let body = [&named(&format!("key {number}"))[8..], &value].concat();
        rank.write_all(&message(SET, number as u64, &body)).unwrap();
        let mut header = [0; 13];
        rank.read_exact(&mut header).unwrap();
        let length = u32::from_le_bytes(header[9..].try_into().unwrap());
        rank.read_exact(&mut vec![0; length as usize]).unwrap();
        kept += usize::from(header[0] == DONE);
    }
    assert_eq!(kept, limits.total_bytes / value.len() - 1, "as many as fit with their names");
    // The store still serves.
    witness.set("alive", b"yes", long()).unwrap();
}

/// A store that announces more bytes than it sends.
fn announce_as_a_store() {
    for length in LENGTHS {
        let serve = |mut stream: TcpStream| {
            stream.read_exact(&mut [0; 13]).unwrap();
            _ = stream.write_all(&[&[6][..], &1u64.to_le_bytes(), &length.to_le_bytes(), &[0; 100]].concat());
        };
        raw::joined_to(serve, |bootstrap| assert!(bootstrap.get("k", long()).is_err()));
    }
}

#[test]
fn memory_is_bounded_whatever_is_announced() {
    if let Some(mut said) = Member::of_this_process() {
        let mut limits = Limits::default();
        limits.total_bytes = 4 << 20;
        limits.join_time = Duration::from_secs(600);
        let server = server(2, limits);
        let witness = connect(&server, 0, 2);
        // Everything that exists once exists now: threads, arenas, the buffers of a few connections.
        flood(server.address(), 5);
        fill(limits, 8);
        announce_as_a_rank(limits);
        announce_as_a_store();
        let before = peaks();
        flood(server.address(), AT_ONCE);
        fill(limits, 200);
        for _ in 0..10 {
            announce_as_a_rank(limits);
            announce_as_a_store();
        }
        let grown: Vec<usize> = peaks().iter().zip(before).map(|(now, before)| now - before).collect();
        let context = format!("grew by {} KiB, and by {} KiB reserved", grown[0] >> 10, grown[1] >> 10);
        assert!(grown[0] < RESIDENT && grown[1] < RESERVED, "{context}");
        witness.set("alive", b"yes", long()).unwrap();
        assert!(is_closed(&mut stranger_that_babbles(server.address())), "the store holds on to garbage");
        eprintln!("{context}");
        return said.report("bounded");
    }
    let mut job = Job::start("bootstrap::memory::memory_is_bounded_whatever_is_announced", 1);
    job.allow(Duration::from_secs(120));
    job.expect([0], "bounded");
    job.finish();
}

fn stranger_that_babbles(address: SocketAddr) -> TcpStream {
    let mut one = stranger(address);
    _ = one.write_all(&[0xff; 1000]);
    one
}
