//! Bytes that no rank sends. They end the connection on which they came, and nothing else.
//!
//! `tests/corpus/bootstrap/` keeps the bytes that every run sends: `stranger-*` in place of a proof, `proven-*` there
//! and after a proof in place of a join, `member-*` from a rank that has joined. If a random case finds something, add
//! it there.

use crate::bootstrap::raw::{self, GET, SET, is_closed, member, message, named, proven, stranger};
use crate::bootstrap::{at_once, connect, long, rank, server};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;
use tilewire::transport::{Bootstrap, BootstrapError, Limits, StoreServer, TcpBootstrap};

/// A store with one rank in it. The rank's requests show that the store still serves.
struct Victim {
    witness: TcpBootstrap,
    server: StoreServer,
}

impl Victim {
    fn new(limits: Limits) -> Victim {
        let server = server(2, limits);
        Victim { witness: connect(&server, 0, 2), server }
    }

    fn address(&self) -> SocketAddr {
        self.server.address()
    }

    fn still_serves(&self) {
        at_once(|| {
            self.witness.set("alive", b"yes", long()).unwrap();
            assert_eq!(self.witness.take("alive", long()).unwrap(), b"yes");
        });
    }

    /// Both ranks can still meet.
    fn still_joins(self) {
        let other = connect(&self.server, 1, 2);
        std::thread::scope(|scope| {
            scope.spawn(|| other.barrier("b", long()).unwrap());
            self.witness.barrier("b", long()).unwrap();
        });
    }
}

/// Sends all bytes and the end of the stream, then waits until the store has closed its end, too. The store may close
/// first.
fn send(mut stream: TcpStream, bytes: &[u8]) {
    _ = stream.write_all(bytes);
    _ = stream.shutdown(Shutdown::Write);
    assert!(is_closed(&mut stream), "the store holds on to a connection that has ended");
}

/// A rank misbehaves. The other rank learns immediately that it is gone.
fn misbehave(bytes: &[u8]) {
    let victim = Victim::new(Limits::default());
    let stream = member(victim.address(), 1, 2);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| at_once(|| victim.witness.barrier("never complete", long())));
        send(stream, bytes);
        match waiter.join().unwrap() {
            Err(BootstrapError::PeerGone { peer, .. }) => assert_eq!(peer, rank(1)),
            other => panic!("{other:?} after {bytes:?}"),
        }
    });
    victim.still_serves();
}

#[test]
fn the_corpus_harms_nobody() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/bootstrap");
    let victim = Victim::new(Limits::default());
    let mut tried = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        match path.file_name().unwrap().to_string_lossy().split('-').next() {
            Some("stranger") => send(stranger(victim.address()), &bytes),
            Some("proven") => {
                send(stranger(victim.address()), &bytes);
                send(proven(victim.address()), &bytes);
            }
            Some("member") => misbehave(&bytes),
            other => panic!("{other:?} is neither stranger, proven nor member"),
        }
        victim.still_serves();
        tried += 1;
    }
    assert!(tried >= 10, "{tried} files: the test looks in the wrong place");
    victim.still_joins();
}

#[test]
fn random_bytes_of_strangers_harm_nobody() {
    let victim = Victim::new(Limits::default());
    let bytes = (0..4usize, prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(head, tail)| {
        // Some begin like a proof, so that the store reads the rest.
        [&b"tilewire\x02"[..[0, 4, 8, 9][head]], &tail].concat()
    });
    check(200, bytes, |bytes| {
        send(stranger(victim.address()), &bytes);
        victim.still_serves();
    });
    victim.still_joins();
}

#[test]
fn a_proof_with_any_bit_changed_or_any_part_missing_is_none() {
    let victim = Victim::new(Limits::default());
    check(200, (0..73usize, 0..8u32, any::<bool>()), |(at, bit, cut)| {
        let mut stream = stranger(victim.address());
        let mut challenge = [0; 41];
        stream.read_exact(&mut challenge).unwrap();
        let mut proof = raw::proof(&challenge[9..]);
        if cut {
            proof.truncate(at)
        } else {
            proof[at] ^= 1 << bit
        }
        _ = stream.write_all(&proof);
        _ = stream.shutdown(Shutdown::Write);
        let mut verdict = Vec::new();
        _ = stream.read_to_end(&mut verdict);
        assert!(verdict.first().is_none_or(|verdict| *verdict != 0), "welcomed");
    });
    victim.still_joins();
}

#[test]
fn random_messages_of_ranks_end_their_connection_only() {
    let body = prop::collection::vec(any::<u8>(), 0..60);
    let named = ("[a-c]{0,3}", any::<u64>(), body.clone()).prop_map(|(name, left, rest)| {
        [&left.to_le_bytes()[..], &(name.len() as u32).to_le_bytes(), name.as_bytes(), &rest].concat()
    });
    let any_message = (0..10u8, 0..3u64, prop_oneof![body.clone(), named]).prop_map(|(kind, number, body)| {
        let mut bytes = message(kind, number, &body);
        // Some lie about their length.
        if body.len() % 7 == 0 {
            bytes[9] ^= body.first().copied().unwrap_or(1);
        }
        bytes
    });
    let messages = prop::collection::vec(prop_oneof![4 => any_message, 1 => body], 0..8);
    check(150, messages, |messages| misbehave(&messages.concat()));
}

#[test]
fn a_promised_length_beyond_the_limits_is_not_waited_for() {
    let victim = Victim::new(Limits::default());
    let mut lengths = vec![proven(victim.address()), member(victim.address(), 1, 2)];
    for stream in &mut lengths {
        stream.write_all(&[&[SET][..], &[0; 8], &[0xff; 4]].concat()).unwrap();
        at_once(|| assert!(is_closed(stream)));
    }
    victim.still_serves();
}

#[test]
fn connections_that_stand_still_are_closed_and_ranks_served_meanwhile() {
    let mut limits = Limits::default();
    limits.join_time = Duration::from_millis(300);
    limits.stall_time = Duration::from_millis(300);
    let victim = Victim::new(limits);
    let mut standing = Vec::new();
    for sent in 0..20 {
        let mut stream = if sent % 2 == 0 { stranger(victim.address()) } else { proven(victim.address()) };
        stream.write_all(&b"tilewire\x02"[..sent % 9]).unwrap();
        standing.push(stream);
    }
    // A rank that stops in the middle of a message. Only the limit on time ends it.
    let mut amid = member(victim.address(), 1, 2);
    amid.write_all(&message(SET, 1, &[0; 100])[..50]).unwrap();
    victim.still_serves();
    for stream in &mut standing {
        at_once(|| assert!(is_closed(stream)));
    }
    at_once(|| assert!(is_closed(&mut amid)));
    victim.still_serves();
    let error = victim.witness.barrier("b", long()).unwrap_err();
    assert!(matches!(error, BootstrapError::PeerGone { .. }), "{error}");
}

#[test]
fn a_flood_of_connections_closes_its_own_oldest_and_keeps_no_rank_out() {
    let mut limits = Limits::default();
    limits.strangers = 8;
    // No connection is closed for being slow here, only for being one too many.
    limits.join_time = Duration::from_secs(600);
    let victim = Victim::new(limits);
    let mut flood: Vec<TcpStream> = (0..300).map(|_| stranger(victim.address())).collect();
    victim.still_serves();
    for stream in &mut flood[..292] {
        at_once(|| assert!(is_closed(stream)));
    }
    victim.still_joins();
}

#[test]
fn a_flood_does_not_close_who_has_proven_the_secret() {
    let mut limits = Limits::default();
    limits.strangers = 4;
    limits.join_time = Duration::from_secs(600);
    let victim = Victim::new(limits);
    let mut rank = proven(victim.address());
    let mut flood: Vec<TcpStream> = (0..100).map(|_| stranger(victim.address())).collect();
    for stream in &mut flood[..96] {
        at_once(|| assert!(is_closed(stream)));
    }
    rank.write_all(&message(raw::JOIN, 0, &[1u32.to_le_bytes(), 2u32.to_le_bytes()].concat())).unwrap();
    let mut joined = [0; 13 + 16];
    rank.read_exact(&mut joined).unwrap();
    assert_eq!(joined[0], 1, "joined");
}

#[test]
fn a_rank_can_join_while_the_flood_goes_on() {
    let mut limits = Limits::default();
    limits.strangers = 8;
    let victim = Victim::new(limits);
    let address = victim.address();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                _ = TcpStream::connect(address).and_then(|mut stream| stream.write_all(b"tile"));
            }
        });
        at_once(|| victim.still_joins());
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_rank_that_asks_and_never_reads_is_dropped_and_costs_little() {
    let mut limits = Limits::default();
    limits.stall_time = Duration::from_millis(300);
    let victim = Victim::new(limits);
    victim.witness.set("large", &vec![1; limits.value_bytes], long()).unwrap();
    let mut greedy = member(victim.address(), 1, 2);
    // All answers together would be a terabyte. The rank stops asking when the store stops reading, and the test ends
    // when the store closes.
    let question = message(GET, 1, &named("large")).repeat(1000);
    let asked = (0..1000).take_while(|_| greedy.write_all(&question).is_ok()).count();
    assert!(asked < 1000, "the store read a million questions whose answers nobody reads");
    victim.still_serves();
}

#[test]
fn a_number_that_is_in_use_ends_the_connection() {
    misbehave(&[message(GET, 5, &named("a")), message(GET, 5, &named("b"))].concat());
}

#[test]
fn whatever_a_store_answers_a_call_ends() {
    let body = prop::collection::vec(any::<u8>(), 0..40);
    let reply = (0..24u8, 0..3u64, body.clone()).prop_map(|(kind, number, body)| message(kind, number, &body));
    let replies = prop::collection::vec(prop_oneof![6 => reply, 1 => body], 0..6);
    check(100, (replies, 0..4u8), |(replies, call)| {
        let serve = |mut stream: TcpStream| {
            // The question has arrived, so the store waits for the rest.
            stream.read_exact(&mut [0; 13]).unwrap();
            send(stream, &replies.concat());
        };
        raw::joined_to(serve, |bootstrap| {
            at_once(|| match call {
                0 => bootstrap.set("k", b"v", long()).is_ok(),
                1 => bootstrap.get("k", long()).is_ok(),
                2 => bootstrap.barrier("k", long()).is_ok(),
                _ => bootstrap.all_gather("k", b"v", long()).is_ok(),
            });
        });
    });
}

/// Runs a property over values of a strategy, and shrinks failures.
fn check<S: Strategy>(cases: u32, strategy: S, property: impl Fn(S::Value)) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&strategy, |value| {
            property(value);
            Ok(())
        })
        .unwrap();
}
