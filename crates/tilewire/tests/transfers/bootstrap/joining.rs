//! Who may join the store, and the errors about ranks that do not join or that go.

use crate::bootstrap::raw::{self, message, named};
use crate::bootstrap::{SHORT, at_once, connect, long, rank, secret, server};
use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::time::Duration;
use tilewire::transport::bootstrap::Departure;
use tilewire::transport::{
    Bootstrap, BootstrapError, Deadline, Limits, Secret, SegmentError, StoreServer, TcpBootstrap, TransportError,
    WorldError,
};

fn join(address: &str, number: u32, size: usize, secret: &Secret) -> BootstrapError {
    let joined = at_once(|| TcpBootstrap::connect(address, rank(number), size, secret, long()));
    joined.err().expect("it may not join")
}

#[test]
fn ranks_that_start_before_the_store_wait_for_it() {
    // A free port: nothing listens on it now, and the kernel does not give it out again soon.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        let early = scope.spawn(|| TcpBootstrap::connect(&address, rank(1), 2, &secret(), long()).unwrap());
        let host = TcpBootstrap::host(&address, 2, &secret(), long()).unwrap();
        assert_eq!(host.hosts_at().unwrap().to_string(), address);
        let early = early.join().unwrap();
        scope.spawn(move || early.barrier("b", long()).unwrap());
        host.barrier("b", long()).unwrap();
    });
}

#[test]
fn a_store_that_is_not_there_is_an_error_at_the_deadline() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let joined = at_once(|| TcpBootstrap::connect(&address, rank(1), 2, &secret(), Deadline::after(SHORT)));
    let error = joined.err().unwrap();
    assert!(error.to_string().contains(&address) && error.to_string().contains("rank 0"), "{error}");
    assert!(matches!(error, BootstrapError::Unreachable { .. }));
}

#[test]
fn ranks_that_never_connect_are_named() {
    let server = server(4, Limits::default());
    let (zero, two) = (connect(&server, 0, 4), connect(&server, 2, 4));
    let error = zero.barrier("start", Deadline::after(SHORT)).unwrap_err();
    let text = error.to_string();
    let BootstrapError::Timeout { late, absent, .. } = error else { panic!("{text}") };
    assert_eq!((late, absent), (vec![rank(2)], vec![rank(1), rank(3)]));
    assert!(text.contains("never connected: ranks 1, 3"), "{text}");
    let error = two.get("key", Deadline::after(SHORT)).unwrap_err();
    assert!(error.to_string().contains("never connected: ranks 1, 3"), "{error}");
}

#[test]
fn a_wrong_secret_is_refused_at_once_and_the_place_stays_free() {
    let server = server(1, Limits::default());
    let address = server.address().to_string();
    let error = join(&address, 0, 1, &Secret::random().unwrap());
    assert!(matches!(error, BootstrapError::SecretMismatch { .. }), "{error}");
    assert!(error.to_string().contains("TILEWIRE_SECRET"), "{error}");
    connect(&server, 0, 1).barrier("b", long()).unwrap();
}

#[test]
fn a_store_that_does_not_know_the_secret_is_refused() {
    // It welcomes everybody, and cannot prove itself.
    let error = raw::against(
        |mut stream| {
            stream.write_all(&[b"tilewire\x02", &[1; 32][..]].concat()).unwrap();
            stream.read_exact(&mut [0; 73]).unwrap();
            stream.write_all(&[&[0, 2], &[2; 32][..]].concat()).unwrap();
            assert!(raw::is_closed(&mut stream), "the rank says nothing more");
        },
        Duration::from_secs(60),
    );
    assert!(matches!(error, BootstrapError::SecretMismatch { .. }), "{error}");
}

#[test]
fn another_version_is_refused_by_both_ends() {
    let error = raw::against(|mut stream| stream.write_all(b"tilewire\x07").unwrap(), Duration::from_secs(60));
    let BootstrapError::VersionMismatch { ours: 2, theirs: 7, .. } = error else { panic!("{error}") };

    let server = server(1, Limits::default());
    let mut stream = raw::stranger(server.address());
    stream.read_exact(&mut [0; 41]).unwrap();
    stream.write_all(b"tilewire\x01").unwrap();
    let mut verdict = [0; 34];
    stream.read_exact(&mut verdict).unwrap();
    assert_eq!(verdict[..2], [2, 2], "wrong version, and ours");
    assert!(raw::is_closed(&mut stream));
}

#[test]
fn what_is_no_store_is_not_taken_for_one() {
    let greeting = b"220 mail.example.org ready\r\n";
    let error = raw::against(|mut stream| stream.write_all(greeting).unwrap(), Duration::from_secs(60));
    assert!(matches!(error, BootstrapError::NotAStore { .. }), "{error}");
    // One that sends nothing costs no more than the deadline.
    let error = at_once(|| raw::against(|mut stream| _ = raw::is_closed(&mut stream), SHORT));
    assert!(matches!(error, BootstrapError::Unreachable { .. }), "{error}");
}

#[test]
fn two_ranks_of_one_number_are_refused_also_after_the_first_has_gone() {
    let server = server(2, Limits::default());
    let first = connect(&server, 1, 2);
    let address = server.address().to_string();
    let error = join(&address, 1, 2, &secret());
    assert!(matches!(error, BootstrapError::RankTaken { .. }), "{error}");
    first.set("still", b"here", long()).unwrap();
    drop(first);
    assert!(server.wait_until_left(long()));
    assert!(matches!(join(&address, 1, 2, &secret()), BootstrapError::RankTaken { .. }));
}

#[test]
fn another_world_size_is_an_error_of_that_rank_and_of_those_who_wait() {
    let server = server(3, Limits::default());
    let zero = connect(&server, 0, 3);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| at_once(|| zero.barrier("start", long()).unwrap_err()));
        let error = join(&server.address().to_string(), 1, 5, &secret());
        let BootstrapError::WorldSizeMismatch { ours: 5, theirs: 3, .. } = error else { panic!("{error}") };
        let error = waiter.join().unwrap();
        assert!(error.to_string().contains("rank 1 failed (it was started for 5 ranks, the store for 3)"), "{error}");
    });
}

/// Programs print an error with all its sources, so each fact must appear once.
#[test]
fn no_error_says_what_its_source_says() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let unreachable = TcpBootstrap::connect(&address, rank(1), 2, &secret(), Deadline::after(SHORT)).err().unwrap();
    let taken = server(1, Limits::default());
    let bind = StoreServer::start(&taken.address().to_string(), 1, &secret(), Limits::default()).err().unwrap();
    let unanswered = raw::against(|mut stream| raw::welcome(&mut stream), Duration::from_secs(60));
    let system = || std::io::Error::from_raw_os_error(24);
    let errors: [Box<dyn Error>; 8] = [
        Box::new(unreachable),
        Box::new(bind),
        Box::new(unanswered),
        Box::new(BootstrapError::Resources(system())),
        Box::new(BootstrapError::Random(system())),
        Box::new(WorldError::Bootstrap(BootstrapError::Resources(system()))),
        Box::new(TransportError::Segment(SegmentError::System { call: "mmap", source: system() })),
        Box::new(SegmentError::Exchange(Box::new(system()))),
    ];
    for error in &errors {
        let (text, mut source) = (error.to_string(), error.source());
        while let Some(cause) = source {
            assert!(!text.contains(&cause.to_string()), "'{text}' has '{cause}'");
            source = cause.source();
        }
    }
    assert!(errors[0].to_string().contains("os error"), "what the system says is said: {}", errors[0]);
}

#[test]
fn a_number_outside_the_world_is_refused() {
    let server = server(2, Limits::default());
    let error = join(&server.address().to_string(), 2, 2, &secret());
    assert!(matches!(error, BootstrapError::RankOutOfRange { world_size: 2, .. }), "{error}");
}

#[test]
fn a_rank_that_dies_is_named_at_once_to_those_who_wait() {
    let server = server(3, Limits::default());
    let (zero, two) = (connect(&server, 0, 3), connect(&server, 2, 3));
    let mut dying = raw::member(server.address(), 1, 3);
    std::thread::scope(|scope| {
        // It dies inside the barrier. That it has come does not help the ranks that wait for the third one.
        dying.write_all(&message(raw::BARRIER, 1, &named("b"))).unwrap();
        let barrier = scope.spawn(|| at_once(|| zero.barrier("b", long()).unwrap_err()));
        let get = scope.spawn(|| at_once(|| two.get("key", long()).unwrap_err()));
        drop(dying);
        for error in [barrier.join().unwrap(), get.join().unwrap()] {
            let text = error.to_string();
            let BootstrapError::PeerGone { peer, departure, .. } = error else { panic!("{text}") };
            assert_eq!((peer, departure), (rank(1), Departure::Lost), "{text}");
        }
        // Later calls report it, too. Calls that need no other rank still work.
        let error = at_once(|| zero.all_gather("g", b"", long()).unwrap_err());
        assert!(matches!(error, BootstrapError::PeerGone { .. }), "{error}");
        zero.set("key", b"value", long()).unwrap();
        assert_eq!(two.get("key", long()).unwrap(), b"value");
    });
}

#[test]
fn the_end_of_the_store_is_seen_at_once() {
    let server = server(2, Limits::default());
    let zero = connect(&server, 0, 2);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| at_once(|| zero.barrier("b", long()).unwrap_err()));
        drop(server);
        let error = waiter.join().unwrap();
        assert!(matches!(error, BootstrapError::StoreGone { .. }), "{error}");
    });
    assert!(matches!(zero.set("k", b"", long()).unwrap_err(), BootstrapError::StoreGone { .. }));
}

#[test]
fn a_store_cannot_take_a_port_that_is_taken() {
    let server = server(1, Limits::default());
    let second = StoreServer::start(&server.address().to_string(), 1, &secret(), Limits::default());
    let error = second.err().unwrap();
    assert!(matches!(&error, BootstrapError::Bind { .. }) && error.to_string().contains("TILEWIRE_STORE"), "{error}");
}

#[test]
fn the_store_of_a_rank_that_has_left_serves_until_the_others_have() {
    let host = TcpBootstrap::host("127.0.0.1:0", 2, &secret(), long()).unwrap();
    let address = host.hosts_at().unwrap().to_string();
    let other = TcpBootstrap::connect(&address, rank(1), 2, &secret(), long()).unwrap();
    host.set("key", b"value", long()).unwrap();
    at_once(|| drop(host));
    assert_eq!(other.get("key", long()).unwrap(), b"value");
    let error = other.barrier("b", long()).unwrap_err();
    assert!(error.to_string().contains("rank 0 has left"), "{error}");
    drop(other);
    // The next world may use the same address.
    let again = at_once(|| TcpBootstrap::host(&address, 1, &secret(), long()).unwrap());
    again.barrier("b", long()).unwrap();
}

#[test]
fn a_store_that_stops_answering_is_an_error_soon_after_the_deadline() {
    let error = raw::joined_to(
        |mut stream| _ = raw::is_closed(&mut stream),
        |bootstrap| at_once(|| bootstrap.barrier("b", Deadline::after(SHORT)).unwrap_err()),
    );
    assert!(matches!(error, BootstrapError::StoreSilent { .. }), "{error}");
}

#[test]
fn a_store_that_breaks_off_after_the_join_is_not_asked_again() {
    let error = at_once(|| raw::against(|mut stream| raw::welcome(&mut stream), Duration::from_secs(60)));
    assert!(matches!(&error, BootstrapError::JoinUnanswered { .. }), "{error}");
    assert!(error.to_string().contains("rank 0") && error.to_string().contains("cannot join twice"), "{error}");
}

#[test]
fn who_waits_for_another_thread_to_send_waits_no_longer_than_its_deadline() {
    let (over, end) = channel();
    let serve = move |stream| {
        // It reads nothing, so that a sender of much data is held up.
        _ = end.recv();
        drop(stream);
    };
    raw::joined_to(serve, move |bootstrap| {
        std::thread::scope(|scope| {
            let much = vec![0; raw::VALUE_BYTES as usize];
            let bootstrap = &bootstrap;
            let sender = scope.spawn(move || bootstrap.set("much", &much, long()));
            // Until the sender holds the line, calls are sent, and stay unanswered as well.
            for _ in 0..3 {
                let error = at_once(|| bootstrap.barrier("b", Deadline::after(SHORT)).unwrap_err());
                assert!(matches!(error, BootstrapError::StoreSilent { .. }), "{error}");
            }
            assert!(!sender.is_finished(), "a wait for the line does not end the connection of who has it");
            // A rank that has failed does not wait for the line either. The end of the connection tells the store.
            at_once(|| bootstrap.abort("tired"));
            let error = at_once(|| sender.join().unwrap().unwrap_err());
            assert!(matches!(error, BootstrapError::StoreGone { .. }), "{error}");
        });
        over.send(()).unwrap();
    });
}

#[test]
fn an_address_of_all_interfaces_is_reached_though_only_ipv4_is() {
    let server = server(1, Limits::default());
    let address = format!("[::]:{}", server.address().port());
    let joined = TcpBootstrap::connect(&address, rank(0), 1, &secret(), Deadline::after(Duration::from_secs(5)));
    joined.unwrap().barrier("b", long()).unwrap();
}

#[test]
fn a_proof_of_another_version_proves_nothing() {
    // Like an attacker in between: the words of this version, and the proof of the last one.
    let server = server(1, Limits::default());
    let mut stream = raw::stranger(server.address());
    let mut challenge = [0; 41];
    stream.read_exact(&mut challenge).unwrap();
    let proof = raw::mac_of(1, b"tilewire bootstrap rank ", &challenge[9..], &[7; 32]);
    stream.write_all(&[b"tilewire\x02", &[7; 32][..], &proof].concat()).unwrap();
    let mut verdict = [0; 34];
    stream.read_exact(&mut verdict).unwrap();
    assert_eq!(verdict[..2], [1, 2], "wrong secret");
}
