use super::super::bootstrap::{Bootstrap, LocalBootstrap};
use super::super::meeting::Meeting;
use super::super::status::{Kind, Waiting};
use super::*;
use std::time::Instant;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The ranks of a world in two domains, each with its herald; their stores are threads' stores.
struct World {
    stores: Vec<Arc<LocalBootstrap>>,
    sets: Vec<SegmentSet>,
    left: Vec<Departures>,
    heralds: Vec<Option<Herald>>,
}

fn world(domains: &[&[u32]]) -> World {
    let domains: Vec<Vec<u32>> = domains.iter().map(|domain| domain.to_vec()).collect();
    let sets = SegmentSet::threads_in_domains(&domains, 64);
    let stores: Vec<Arc<LocalBootstrap>> = LocalBootstrap::world(sets.len()).into_iter().map(Arc::new).collect();
    let left: Vec<Departures> = sets.iter().map(|_| Departures::new(sets.len())).collect();
    let herald = |rank: usize| {
        let store: Arc<dyn Bootstrap> = stores[rank].clone();
        let world = Shared::alone(store, Arc::new(Meeting::default()), Some(PATIENCE));
        Herald::start(&world, "test/7", &sets[rank], left[rank].clone()).unwrap()
    };
    let heralds = (0..sets.len()).map(herald).collect();
    World { stores, sets, left, heralds }
}

#[track_caller]
fn soon(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < PATIENCE, "it does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn cause(code: AbortCode, rank: usize) -> Cause {
    Cause { code, rank, reason: 3 }
}

impl World {
    fn causes(&self) -> Vec<Option<Cause>> {
        self.sets.iter().map(|set| set.abort(set.rank()).get()).collect()
    }

    fn own(&self, rank: usize) -> Abort {
        self.sets[rank].abort(rank)
    }
}

#[test]
fn a_world_of_one_domain_needs_no_herald() {
    assert!(world(&[&[0, 1]]).heralds.iter().all(Option::is_none));
}

#[test]
fn a_cause_reaches_all_domains_with_its_details() {
    let world = world(&[&[0, 2], &[1, 3]]);
    let first = cause(AbortCode::TimedOut, 2);
    // A launch of rank 2 does this, since it knows the ranks of its own domain.
    world.sets[2].abort_all(first);
    assert_eq!(world.own(1).get(), None, "its memory is not mapped by rank 2");
    soon(|| world.causes().iter().all(|cause| *cause == Some(first)));
    // A later cause changes nothing.
    world.sets[1].abort_all(cause(AbortCode::Failed, 1));
    std::thread::sleep(LOOKS * 4);
    assert!(world.causes().iter().all(|cause| *cause == Some(first)));
}

#[test]
fn a_verdict_is_told_in_words() {
    let world = world(&[&[0], &[1, 2]]);
    let waiting = |rank, peer| Waiting { rank, peers: vec![peer], doing: format!("a call of rank {rank}") };
    let verdict = Verdict::Deadlock(vec![waiting(1, 2), waiting(2, 1)]);
    Status::of(&world.sets[2]).tell_all(&verdict);
    soon(|| world.own(0).get().is_some());
    let heard = world.own(0).get().unwrap();
    assert_eq!((heard.code, heard.rank), (AbortCode::Deadlocked, 2));
    assert_eq!(Status::of(&world.sets[0]).verdict(heard), Some(verdict));
}

#[test]
fn a_rank_that_leaves_is_noticed_in_other_domains_and_is_no_failure() {
    let mut world = world(&[&[0, 1], &[2]]);
    drop(world.heralds[2].take());
    soon(|| world.left[0].has_left(2) && world.left[1].has_left(2));
    assert_eq!(world.causes(), [None; 3]);
    drop(world.heralds[1].take());
    // Rank 0 would learn of rank 1's death from its monitor, but there is no monitor here.
    std::thread::sleep(LOOKS * 4);
    assert!(!world.left[0].has_left(1) && !world.left[0].has_left(0));
}

#[test]
fn a_rank_that_leaves_after_a_failure_is_known_by_the_failure() {
    for _ in 0..20 {
        let mut world = world(&[&[0], &[1]]);
        let cause = cause(AbortCode::Dropped, 1);
        world.own(1).set(cause);
        drop(world.heralds[1].take());
        soon(|| world.own(0).get() == Some(cause));
        assert!(!world.left[0].has_left(1));
    }
}

#[test]
fn a_panic_is_told() {
    let mut world = world(&[&[0], &[1]]);
    let herald = world.heralds[1].take();
    let panicked = std::thread::spawn(move || {
        let _herald = herald;
        std::panic::resume_unwind(Box::new("without a message"));
    });
    assert!(panicked.join().is_err());
    soon(|| world.own(0).get().is_some_and(|cause| (cause.code, cause.rank) == (AbortCode::Panicked, 1)));
}

#[test]
fn a_rank_that_is_lost_or_gives_up_is_told_by_the_store() {
    for (gives_up, code) in [(true, AbortCode::Failed), (false, AbortCode::Died)] {
        let mut world = world(&[&[0], &[1, 2]]);
        if gives_up {
            world.stores[1].abort("no memory");
        } else {
            // It ends without a word.
            let mut herald = world.heralds[1].take().unwrap();
            herald.is_closed = true;
            drop(herald);
            world.stores[1].is_lost();
        }
        let told = Some(Cause { code, rank: 1, reason: 0 });
        soon(|| world.own(0).get() == told);
        // Rank 2 leaves the death of rank 1 to its monitor, until it reads in the log that rank 0 has failed for it.
        soon(|| world.own(2).get() == told);
        world.heralds.clear();
    }
}

#[test]
fn a_rank_that_was_done_before_it_died_is_no_failure() {
    let mut world = world(&[&[0], &[1], &[2]]);
    drop(world.heralds[2].take());
    soon(|| world.left[0].has_left(2));
    world.stores[2].is_lost();
    // Entries that are added afterwards are still read, because the store answers for keys that it has.
    drop(world.heralds[1].take());
    soon(|| world.left[0].has_left(1));
    assert_eq!(world.own(0).get(), None);
}

#[test]
fn ranks_that_close_are_seen_by_all_and_nothing_stays_in_the_store() {
    let mut world = world(&[&[0, 1], &[2, 3]]);
    let open = |rank: usize| Status::of(&world.sets[rank]).open();
    assert_eq!(open(0), [0, 1, 2, 3], "silent lines do not close");
    for rank in [2, 0, 1] {
        Status::of(&world.sets[rank]).closes();
        world.heralds[rank].as_ref().unwrap().closes();
    }
    soon(|| open(0) == [3] && open(3) == [3]);
    Status::of(&world.sets[3]).closes();
    world.heralds[3].as_ref().unwrap().closes();
    soon(|| (0..4).all(|rank| open(rank).is_empty()));
    let until = || Deadline::after(PATIENCE);
    world.heralds.iter().flatten().for_each(|herald| herald.reads_to_the_end(until()));
    for herald in world.heralds.iter_mut().flatten() {
        assert!(herald.hears.as_ref().unwrap().is_finished(), "it has heard of all");
        herald.all_closed();
    }
    world.heralds.clear();
    assert_eq!(world.causes(), [None; 4]);
    for at in 0..6 {
        let key = format!("tilewire/test/7/log/{at}");
        assert!(world.stores[0].get(&key, Deadline::after(Duration::ZERO)).is_err(), "{key}");
    }
}

#[test]
fn a_slow_rank_of_another_domain_is_never_called_a_deadlock_or_a_departed_rank() {
    let world = world(&[&[0, 1], &[2]]);
    let lines: Vec<Status> = world.sets.iter().map(Status::of).collect();
    // Rank 1 waits for rank 2, and rank 0 for rank 1. In truth rank 2 waits for rank 0, which no rank here can know.
    for _ in 0..100 {
        for (rank, peer) in [(1, 2), (0, 1), (2, 0)] {
            let probe = lines[rank].probe();
            lines[rank].waits(Kind::Launch, &[peer], &"a launch", probe);
            assert_eq!(lines[rank].judge(), None, "rank {rank}");
        }
    }
    assert_eq!((lines[0].late(1), lines[0].missing(0), lines[0].let_go()), (2, vec![], vec![]));
    assert!(world.left.iter().all(|left| !left.any()));
    // A cycle within the domain is found.
    let judged = (0..10).find_map(|_| {
        for (rank, peer) in [(0, 1), (1, 0)] {
            let probe = lines[rank].probe();
            lines[rank].waits(Kind::Launch, &[peer], &"a launch", probe);
        }
        lines[0].judge()
    });
    assert!(matches!(judged, Some(Verdict::Deadlock(ref waiting)) if waiting.len() == 2), "{judged:?}");
}

#[test]
fn who_waits_for_a_closing_rank_of_another_domain_waits_in_vain() {
    let world = world(&[&[0, 1], &[2]]);
    world.heralds[2].as_ref().unwrap().closes();
    let line = Status::of(&world.sets[0]);
    soon(|| line.open() == [0, 1]);
    let judged = (0..10).find_map(|_| {
        let probe = line.probe();
        line.waits(Kind::Launch, &[2], &"a launch", probe);
        line.judge()
    });
    assert!(matches!(judged, Some(Verdict::Deadlock(ref waiting)) if waiting.len() == 2), "{judged:?}");
}

#[test]
fn what_no_rank_says_is_not_taken_for_an_entry() {
    let entries = [
        News::Failed(cause(AbortCode::Cut, 1), None),
        News::Failed(cause(AbortCode::Deadlocked, 1), Some(Verdict::Deadlock(Vec::new()))),
        News::Closes,
        News::Left,
    ];
    for news in entries {
        let entry = Entry { from: 1, news };
        let bytes = entry.encode();
        assert_eq!(Entry::decode(&bytes, 2), Some(entry));
        assert_eq!(Entry::decode(&bytes, 1), None, "there is no such rank");
        (0..bytes.len().min(13)).for_each(|len| assert_eq!(Entry::decode(&bytes[..len], 1), None));
    }
    for bad in [&b"X\0\0\0\0"[..], b"C\0\0\0\0C", b"L\0\0\0\0\0", b"F\0\0\0\0\0\0\0\0\0\0\0\0"] {
        assert_eq!(Entry::decode(bad, 9), None, "{bad:?}");
    }
}
