//! The meaning of the calls: one suite for threads and for TCP.

use crate::bootstrap::{Make, SHORT, at_once, long, rank};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tilewire::transport::bootstrap::{Departure, Limit, Operation};
use tilewire::transport::{Bootstrap, BootstrapError, Deadline, Limits};

macro_rules! suite {
    ($($test:ident)*) => {
        mod threads { $(#[test] fn $test() { super::$test(crate::bootstrap::threads) })* }
        mod tcp { $(#[test] fn $test() { super::$test(crate::bootstrap::tcp) })* }
    };
}

suite! {
    no_rank_leaves_a_barrier_before_the_last_comes
    all_gather_gives_every_value_by_rank_whatever_their_sizes
    a_get_waits_for_its_set
    a_key_is_set_once_and_taken_once
    values_and_keys_of_the_largest_size_pass_and_larger_ones_are_refused
    a_full_store_says_so_and_takes_more_when_keys_are_taken
    a_rank_that_does_not_come_is_named_at_the_deadline
    a_barrier_that_timed_out_can_be_entered_again
    a_key_that_nobody_sets_is_named_at_the_deadline
    a_rank_that_left_ends_barriers_at_once_but_not_gets
    a_rank_that_aborts_ends_every_wait_at_once_with_its_reason
    threads_of_one_rank_wait_independently
    too_many_waits_of_one_rank_are_refused
}

fn no_rank_leaves_a_barrier_before_the_last_comes(make: Make) {
    let came = AtomicUsize::new(0);
    make(8, Limits::default()).run(|bootstrap| {
        for round in 0..100 {
            came.fetch_add(1, Ordering::SeqCst);
            bootstrap.barrier("round", long()).unwrap();
            assert!(came.load(Ordering::SeqCst) >= 8 * (round + 1));
        }
    });
}

fn all_gather_gives_every_value_by_rank_whatever_their_sizes(make: Make) {
    let value = |rank: usize, round: usize| vec![(rank * 16 + round) as u8; rank * rank * 1000 + round];
    make(6, Limits::default()).run(|bootstrap| {
        for round in 0..10 {
            let all = bootstrap.all_gather("sizes", &value(bootstrap.rank().index(), round), long()).unwrap();
            assert_eq!(all, (0..6).map(|rank| value(rank, round)).collect::<Vec<_>>());
        }
    });
}

fn a_get_waits_for_its_set(make: Make) {
    make(4, Limits::default()).run(|bootstrap| {
        // Each rank waits for the one above it, and the last rank starts the chain. So every get but one comes before
        // its set.
        let number = bootstrap.rank().number();
        if number < 3 {
            assert_eq!(bootstrap.get(&format!("key {}", number + 1), long()).unwrap(), [number as u8 + 1]);
        }
        bootstrap.set(&format!("key {number}"), &[number as u8], long()).unwrap();
    });
}

fn a_key_is_set_once_and_taken_once(make: Make) {
    let world = make(2, Limits::default());
    let [one, two] = [&world.ranks[0], &world.ranks[1]];
    one.set("key", b"first", long()).unwrap();
    two.set("key", b"first", long()).unwrap();
    let error = two.set("key", b"second", long()).unwrap_err();
    assert!(matches!(&error, BootstrapError::KeyTaken { key } if key == "key"), "{error}");
    assert_eq!(two.get("key", long()).unwrap(), b"first");
    assert_eq!(two.take("key", long()).unwrap(), b"first");
    // Two takers that wait for one key get one value each.
    let mut taken = world.run(|bootstrap| {
        bootstrap.set(&format!("ready {}", bootstrap.rank()), b"", long()).unwrap();
        if bootstrap.rank() == rank(0) {
            let first = std::thread::scope(|scope| {
                let taker = scope.spawn(|| bootstrap.take("key", long()).unwrap());
                bootstrap.set("key", b"second", long()).unwrap();
                taker.join().unwrap()
            });
            bootstrap.set("first is taken", b"", long()).unwrap();
            bootstrap.set("other key", b"third", long()).unwrap();
            first
        } else {
            bootstrap.get("first is taken", long()).unwrap();
            bootstrap.take("other key", long()).unwrap()
        }
    });
    taken.sort();
    assert_eq!(taken, [b"second".to_vec(), b"third".to_vec()]);
}

fn values_and_keys_of_the_largest_size_pass_and_larger_ones_are_refused(make: Make) {
    let limits = Limits::default();
    let (key, value) = ("k".repeat(limits.key_bytes), vec![42; limits.value_bytes]);
    make(3, limits).run(|bootstrap| {
        if bootstrap.rank() == rank(0) {
            bootstrap.set(&key, &value, long()).unwrap();
        }
        assert!(bootstrap.get(&key, long()).unwrap() == value);
        let all = bootstrap.all_gather(&key, &value, long()).unwrap();
        assert!(all.len() == 3 && all.iter().all(|one| *one == value));

        let too_large = |result: Result<(), BootstrapError>, limit| match result {
            Err(BootstrapError::TooLarge { what, .. }) => assert_eq!(what, limit),
            other => panic!("{other:?}"),
        };
        too_large(bootstrap.set("key", &[&value[..], b"x"].concat(), long()), Limit::ValueBytes);
        too_large(bootstrap.all_gather("key", &[&value[..], b"x"].concat(), long()).map(drop), Limit::ValueBytes);
        too_large(bootstrap.barrier(&format!("{key}x"), long()), Limit::KeyBytes);
        too_large(bootstrap.get(&format!("{key}x"), long()).map(drop), Limit::KeyBytes);
        bootstrap.barrier("and all goes on", long()).unwrap();
    });
}

fn a_full_store_says_so_and_takes_more_when_keys_are_taken(make: Make) {
    let mut limits = Limits::default();
    (limits.keys, limits.total_bytes) = (3, 1000);
    let world = make(1, limits);
    let bootstrap = &world.ranks[0];
    for key in ["a", "b", "c"] {
        bootstrap.set(key, &[0; 100], long()).unwrap();
    }
    let full = |result| match result {
        Err(BootstrapError::Full { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(full(bootstrap.set("d", b"", long())), Limit::Keys);
    bootstrap.take("a", long()).unwrap();
    assert_eq!(full(bootstrap.set("d", &[0; 900], long())), Limit::TotalBytes);
    assert_eq!(full(bootstrap.all_gather("g", &[0; 900], long()).map(drop)), Limit::TotalBytes);
    // The store counts freed bytes exactly: 2 × 101 bytes are held, 798 are free.
    for _ in 0..10 {
        bootstrap.all_gather("g", &[0; 797], long()).unwrap();
        bootstrap.set("d", &[0; 797], long()).unwrap();
        bootstrap.take("d", long()).unwrap();
    }
}

fn a_rank_that_does_not_come_is_named_at_the_deadline(make: Make) {
    let world = make(4, Limits::default());
    world.run(|bootstrap| {
        if bootstrap.rank() == rank(2) {
            return;
        }
        let began = Instant::now();
        let error = at_once(|| bootstrap.barrier("start", Deadline::after(SHORT)).unwrap_err());
        assert!(began.elapsed() >= SHORT);
        let text = error.to_string();
        let BootstrapError::Timeout { operation, name, late, waited, .. } = error else { panic!("{text}") };
        assert_eq!((operation, name.as_str()), (Operation::Barrier, "start"));
        // Each rank whose time is over has left when the last one's time is over.
        assert!(late.contains(&rank(2)) && waited >= SHORT, "{text}");
        assert!(text.contains("barrier 'start'") && text.contains("2"), "{text}");
    });
}

fn a_barrier_that_timed_out_can_be_entered_again(make: Make) {
    let world = make(2, Limits::default());
    world.ranks[0].barrier("b", Deadline::after(SHORT)).unwrap_err();
    world.run(|bootstrap| bootstrap.barrier("b", long()).unwrap());
}

fn a_key_that_nobody_sets_is_named_at_the_deadline(make: Make) {
    let world = make(2, Limits::default());
    let error = at_once(|| world.ranks[1].get("port", Deadline::after(SHORT)).unwrap_err());
    assert!(matches!(&error, BootstrapError::KeyNotSet { key, .. } if key == "port"), "{error}");
    let error = world.ranks[1].take("port", Deadline::after(std::time::Duration::ZERO)).unwrap_err();
    assert!(matches!(error, BootstrapError::KeyNotSet { .. }), "{error}");
}

fn a_rank_that_left_ends_barriers_at_once_but_not_gets(make: Make) {
    let mut world = make(3, Limits::default());
    let leaver = world.ranks.remove(1);
    std::thread::scope(|scope| {
        let getter = scope.spawn(|| world.ranks[0].get("key", long()));
        let waiter = scope.spawn(|| at_once(|| world.ranks[1].barrier("b", long()).unwrap_err()));
        drop(leaver);
        let error = waiter.join().unwrap();
        let BootstrapError::PeerGone { peer, departure, .. } = error else { panic!("{error}") };
        assert_eq!((peer, departure), (rank(1), Departure::Left));
        world.ranks[1].set("key", b"value", long()).unwrap();
        assert_eq!(getter.join().unwrap().unwrap(), b"value");
    });
}

fn a_rank_that_aborts_ends_every_wait_at_once_with_its_reason(make: Make) {
    let world = make(4, Limits::default());
    let errors = world.run(|bootstrap| {
        at_once(|| match bootstrap.rank().number() {
            0 => bootstrap.barrier("b", long()).unwrap_err(),
            1 => bootstrap.all_gather("g", b"mine", long()).unwrap_err(),
            2 => bootstrap.get("k", long()).unwrap_err(),
            _ => {
                bootstrap.abort("the disk is full");
                bootstrap.barrier("later", long()).unwrap_err()
            }
        })
    });
    for error in errors {
        assert!(error.to_string().contains("rank 3 failed (the disk is full)"), "{error}");
        let BootstrapError::PeerGone { peer, .. } = error else { panic!("{error}") };
        assert_eq!(peer, rank(3));
    }
}

fn threads_of_one_rank_wait_independently(make: Make) {
    let world = make(2, Limits::default());
    let bootstrap = &world.ranks[0];
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| bootstrap.get("from the other thread", long()).unwrap());
        bootstrap.set("from the other thread", b"hello", long()).unwrap();
        assert_eq!(waiter.join().unwrap(), b"hello");

        // Of two threads in one barrier, one is refused. Which one depends on the order. The other rank releases the
        // one that waits.
        let enter = || {
            let result = bootstrap.barrier("twice", long());
            bootstrap.set(&format!("over {}", result.is_ok()), b"", long()).unwrap();
            result
        };
        let both = [scope.spawn(enter), scope.spawn(enter)];
        bootstrap.get("over false", long()).unwrap();
        world.ranks[1].barrier("twice", long()).unwrap();
        let results = both.map(|thread| thread.join().unwrap());
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
        let refused = results.into_iter().find_map(Result::err).unwrap();
        assert!(matches!(refused, BootstrapError::AlreadyWaiting { .. }), "{refused}");
    });
}

fn too_many_waits_of_one_rank_are_refused(make: Make) {
    let mut limits = Limits::default();
    limits.waiting = 1;
    let world = make(1, limits);
    let bootstrap: &dyn Bootstrap = &*world.ranks[0];
    std::thread::scope(|scope| {
        let both = [scope.spawn(|| bootstrap.get("a", long())), scope.spawn(|| bootstrap.get("a", long()))];
        // One of them cannot wait. Its error shows that the other one does.
        while !both.iter().any(|thread| thread.is_finished()) {
            std::thread::yield_now();
        }
        bootstrap.set("a", b"", long()).unwrap();
        let results = both.map(|thread| thread.join().unwrap());
        let refused = results.into_iter().find_map(Result::err).unwrap();
        assert!(matches!(refused, BootstrapError::Full { what: Limit::Waiting, .. }), "{refused}");
    });
}

/// A connection between a rank and its store that holds answers back from now on, until `slow` has passed.
fn through_a_slow_line(
    slow: std::time::Duration,
) -> (tilewire::transport::TcpBootstrap, tilewire::transport::StoreServer) {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    let server = crate::bootstrap::server(1, Limits::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, store) = (listener.local_addr().unwrap().to_string(), server.address());
    std::thread::spawn(move || {
        let (rank, store) = (listener.accept().unwrap().0, TcpStream::connect(store).unwrap());
        let pass = |mut from: TcpStream, mut to: TcpStream, held: Option<std::time::Duration>| {
            let (mut bytes, began) = ([0; 4096], Instant::now());
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                // The exchange of proofs is over well before, because a rank has little patience with it.
                if let Some(held) = held.filter(|_| began.elapsed() > SHORT) {
                    std::thread::sleep(held);
                }
                if to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            _ = to.shutdown(std::net::Shutdown::Both);
        };
        let (from, to) = (rank.try_clone().unwrap(), store.try_clone().unwrap());
        let questions = std::thread::spawn(move || pass(from, to, None));
        pass(store, rank, Some(slow));
        questions.join().unwrap();
    });
    let secret = crate::bootstrap::secret();
    let rank = tilewire::transport::TcpBootstrap::connect(&address, rank(0), 1, &secret, long()).unwrap();
    std::thread::sleep(2 * SHORT);
    (rank, server)
}

#[test]
fn who_looks_is_patient_with_a_store_that_gets_no_processor() {
    let slow = std::time::Duration::from_millis(1500);
    let (rank, _server) = through_a_slow_line(slow);
    let soon = || Deadline::after(std::time::Duration::from_millis(20));
    let began = Instant::now();
    let error = rank.look("card", soon(), long()).unwrap_err();
    assert!(matches!(error, BootstrapError::KeyNotSet { .. }), "{error}");
    assert!(began.elapsed() >= slow);
    rank.set("card", b"told", long()).unwrap();
    assert_eq!(rank.look("card", soon(), long()).unwrap(), b"told");
    // Without patience, it counts as gone.
    let error = rank.take("card", soon()).unwrap_err();
    assert!(matches!(error, BootstrapError::StoreSilent { .. }), "{error}");
}
