//! Worlds: ranks as threads, and ranks at a place that a launcher gives them.

use crate::bootstrap::{SHORT, at_once, rank, secret};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use tilewire::transport::{BootstrapError, Placement, TransportError, World, WorldError};

#[test]
fn threads_give_their_results_by_rank() {
    let results = World::threads(5).run(|world| {
        assert_eq!((world.size(), world.local_rank()), (5, Some(world.rank().index())));
        world.bootstrap().barrier("b", world.deadline())?;
        Ok(world.rank().number() * 10)
    });
    assert_eq!(results.unwrap(), [0, 10, 20, 30, 40]);
    let error = World::threads(0).run(|_| Ok(())).unwrap_err();
    assert!(matches!(error, WorldError::BadSize { count: 0 }), "{error}");
}

#[test]
fn an_error_of_one_rank_is_the_error_of_the_world_and_ends_the_others() {
    let ended = AtomicUsize::new(0);
    let error = at_once(|| {
        World::threads(4).deadline(None).run(|world| {
            if world.rank() == rank(2) {
                return Err("it rained".into());
            }
            let waited = world.bootstrap().get("never set", world.deadline());
            ended.fetch_add(1, Ordering::SeqCst);
            waited?;
            Ok(())
        })
    });
    let error = error.unwrap_err();
    assert_eq!(error.to_string(), "rank 2 failed: it rained");
    assert!(matches!(error, WorldError::RankFailed { rank, .. } if rank == crate::bootstrap::rank(2)));
    assert_eq!(ended.load(Ordering::SeqCst), 3);
}

#[test]
fn an_error_that_all_ranks_have_is_no_rank_s() {
    // No rank waits for another, so each comes to its own error.
    let error = World::threads(3).run::<()>(|_| Err("the input has 10 elements".into())).unwrap_err();
    assert_eq!(error.to_string(), "all 3 ranks failed: the input has 10 elements");
    assert!(matches!(error, WorldError::AllFailed { count: 3, .. }));
    // Not if the words differ, and not with one rank.
    let error = World::threads(3).run::<()>(|world| Err(format!("rank {} it is", world.rank()).into())).unwrap_err();
    assert!(
        matches!(&error, WorldError::RankFailed { rank, source } if source.to_string() == format!("rank {rank} it is"))
    );
    let error = World::threads(1).run::<()>(|_| Err("alone".into())).unwrap_err();
    assert_eq!(error.to_string(), "rank 0 failed: alone");
}

#[test]
fn a_panic_of_one_rank_is_reported_with_its_words_and_ends_the_others() {
    let error = at_once(|| {
        World::threads(3).deadline(None).run(|world| {
            assert!(world.rank() != rank(1), "rank {} is unlucky", world.rank());
            world.bootstrap().barrier("never complete", world.deadline())?;
            Ok(())
        })
    });
    let error = error.unwrap_err();
    assert!(matches!(&error, WorldError::RankPanicked { message, .. } if message == "rank 1 is unlucky"), "{error}");
    assert_eq!(error.to_string(), "rank 1 panicked: rank 1 is unlucky");
}

#[test]
fn a_rank_that_returns_early_does_not_leave_the_others_waiting() {
    let error = at_once(|| {
        World::threads(3).deadline(None).run(|world| {
            if world.rank() != rank(0) {
                world.bootstrap().barrier("b", world.deadline())?;
            }
            Ok(())
        })
    });
    let text = error.unwrap_err().to_string();
    assert!(text.contains("rank 0 has left, and barrier 'b' needs it"), "{text}");
}

/// In a separate process, because the limit is one of a process, and other tests have threads, too.
#[cfg(target_os = "linux")]
#[test]
fn a_rank_for_which_there_is_no_thread_is_named_and_ends_the_others() {
    use tilewire_testkit::job::{Job, Member};
    let test = "bootstrap::worlds::a_rank_for_which_there_is_no_thread_is_named_and_ends_the_others";
    if let Some(mut member) = Member::of_this_process() {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is writable for the first call, and only read by the second.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &raw mut limit), 0);
            // 16 MiB more, which is a few stacks.
            limit.rlim_cur = pages * libc::sysconf(libc::_SC_PAGESIZE) as u64 + (16 << 20);
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &raw const limit), 0);
        }
        let joined = World::threads(64).run(|world| Ok(world.bootstrap().barrier("b", world.deadline())?));
        let error = joined.unwrap_err();
        assert!(matches!(error, WorldError::NoThread { count: 64, .. }), "{error}");
        return member.report(error.to_string());
    }
    let mut job = Job::start(test, 1);
    let error = job.report(0);
    assert!(error.contains("no thread for rank ") && error.contains("(ulimit -u, ulimit -v)"), "{error}");
    job.finish();
}

fn placement(number: u32, size: usize, address: &str) -> Placement {
    let variables = [
        ("RANK", number.to_string()),
        ("WORLD_SIZE", size.to_string()),
        ("TILEWIRE_STORE", address.to_string()),
        ("TILEWIRE_SECRET", secret().expose().to_string()),
    ];
    let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    Placement::from_vars(&value).unwrap()
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn ranks_meet_at_the_store_that_rank_0_hosts() {
    let address = free_address();
    std::thread::scope(|scope| {
        for number in [3, 1, 0, 2] {
            let address = &address;
            scope.spawn(move || {
                let world = World::join(&placement(number, 4, address)).unwrap();
                let all = world.bootstrap().all_gather("all", &[number as u8], world.deadline()).unwrap();
                assert_eq!(all, [[0], [1], [2], [3]]);
            });
        }
    });
}

/// Rank 2 hears of rank 0's error, and returns before rank 0 does.
#[test]
fn the_rank_whose_error_it_is_is_named_and_not_the_one_that_was_told_of_it() {
    let failed = World::threads(3).run(|world| {
        let told = || TransportError::Peer { rank: rank(0), what: "no memory".into() };
        match world.rank().index() {
            // It ends when rank 2 fails.
            0 => Err(world
                .bootstrap()
                .barrier("never complete", world.deadline())
                .map_or("no memory", |()| "met")
                .into()),
            1 => Ok(_ = world.bootstrap().barrier("never complete", world.deadline())),
            _ => Err::<(), _>(told().into()),
        }
    });
    assert_eq!(failed.unwrap_err().to_string(), "rank 0 failed: no memory");
}

#[test]
fn a_rank_that_never_starts_is_named_when_the_others_join() {
    let address = free_address();
    std::thread::scope(|scope| {
        for number in [0, 2] {
            let address = &address;
            scope.spawn(move || {
                let mut placement = placement(number, 3, address);
                placement.deadline = Some(4 * SHORT);
                let error = at_once(|| World::join(&placement)).err().unwrap();
                let text = error.to_string();
                match error {
                    WorldError::Bootstrap(BootstrapError::Timeout { absent, .. }) => assert_eq!(absent, [rank(1)]),
                    // The first rank to give up leaves, and the other one hears that.
                    WorldError::Bootstrap(BootstrapError::PeerGone { .. }) => {}
                    _ => panic!("{text}"),
                }
            });
        }
    });
}

#[test]
fn a_world_of_one_needs_nobody() {
    let variables =
        |name: &str| ["PMI_RANK=0", "PMI_SIZE=1"].iter().find_map(|v| v.strip_prefix(name)?.strip_prefix('='));
    let placement = Placement::from_vars(&|name| variables(name).map(String::from)).unwrap();
    let world = World::join(&placement).unwrap();
    world.bootstrap().barrier("alone", world.deadline()).unwrap();
}
