//! Segments among the threads of one process: shared memory, refusals, and strangers that disturb nobody.
#![cfg(target_os = "linux")]

use crate::stranger;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};
use stranger::{Stranger, doors};
use tilewire::Memory;
use tilewire::tensor::{MemoryLeft, bytes_of};
use tilewire::transport::{AbortCode, Cause, Exchange, SegmentError, SegmentOptions, SegmentSet};

/// An all-gather among threads.
struct Gather {
    parts: Mutex<Vec<Vec<u8>>>,
    barrier: Barrier,
}

impl Gather {
    fn new(size: usize) -> Gather {
        Gather { parts: Mutex::new(vec![Vec::new(); size]), barrier: Barrier::new(size) }
    }

    fn exchange(&self, rank: usize, mine: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.parts.lock().unwrap()[rank] = mine.to_vec();
        self.barrier.wait();
        let parts = self.parts.lock().unwrap().clone();
        self.barrier.wait();
        Ok(parts)
    }
}

/// Calls `create` on `size` threads simultaneously. `meddle` may change the parts that a rank gathers.
fn create_all(
    size: usize,
    bytes: impl Fn(usize) -> usize + Sync,
    meddle: impl Fn(usize, &mut Vec<Vec<u8>>) + Sync,
) -> Vec<Result<SegmentSet, SegmentError>> {
    let gather = Gather::new(size);
    let create = |rank: usize| {
        let mut exchange = |mine: &[u8]| {
            let mut parts = gather.exchange(rank, mine)?;
            meddle(rank, &mut parts);
            Ok::<_, io::Error>(parts)
        };
        let populate = rank.is_multiple_of(2);
        let options = SegmentOptions { deadline: Duration::from_secs(10), populate, ..SegmentOptions::default() };
        SegmentSet::create_with(rank, size, bytes(rank), &options, &mut exchange)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || create(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn word(memory: &Memory, index: usize) -> &AtomicU64 {
    assert!((index + 1) * 8 <= memory.bytes());
    // SAFETY: inside, aligned (segments begin on a page), alive as long as the handle; only touched by atomics in these
    // tests.
    unsafe { AtomicU64::from_ptr(memory.start().as_ptr().cast::<u64>().add(index)) }
}

/// Every rank writes a word into every segment, and every rank sees all of them.
fn all_see_all(sets: &[SegmentSet]) {
    for set in sets {
        for segment in 0..sets.len() {
            word(&set.segment(segment), set.rank()).store((1000 * segment + set.rank()) as u64, Ordering::Relaxed);
        }
    }
    for set in sets {
        for segment in 0..sets.len() {
            for writer in 0..sets.len() {
                let seen = word(&set.segment(segment), writer).load(Ordering::Relaxed);
                assert_eq!(seen, (1000 * segment + writer) as u64);
            }
        }
    }
}

#[test]
fn threads_share_every_segment() {
    let sets = SegmentSet::threads(4, 12345).unwrap();
    for (rank, set) in sets.iter().enumerate() {
        assert_eq!((set.rank(), set.world_size(), set.bytes()), (rank, 4, 12345));
        assert!(bytes_of(&set.segment(rank)).unwrap().iter().all(|&byte| byte == 0));
        assert!((set.segment(rank).start().as_ptr() as usize).is_multiple_of(Memory::ALIGN));
    }
    all_see_all(&sets);
}

#[test]
fn mapped_segments_are_shared_both_ways() {
    for size in [1, 2, 3, 8] {
        let sets: Vec<_> = create_all(size, |_| 4096, |_, _| {}).into_iter().map(Result::unwrap).collect();
        for set in &sets {
            assert!(bytes_of(&set.segment(set.rank())).unwrap().iter().all(|&byte| byte == 0));
        }
        all_see_all(&sets);
    }
}

#[test]
fn a_mapping_lives_as_long_as_its_last_handle() {
    let mut sets = create_all(2, |_| 64, |_, _| {}).into_iter().map(Result::unwrap);
    let (zero, one) = (sets.next().unwrap(), sets.next().unwrap());
    let (from_zero, from_one) = (zero.segment(1).part(8, 8), one.segment(1));
    drop((zero, one, sets));
    word(&from_one, 1).store(7, Ordering::Relaxed);
    assert_eq!(bytes_of(&from_zero).unwrap(), 7u64.to_ne_bytes());
}

#[test]
fn an_empty_segment_still_has_its_abort_word() {
    let sets: Vec<_> = create_all(2, |_| 0, |_, _| {}).into_iter().map(Result::unwrap).collect();
    assert_eq!(sets[0].segment(1).bytes(), 0);
    let cause = Cause { code: AbortCode::Failed, rank: 0, reason: 9 };
    sets[0].abort_all(cause);
    assert_eq!(sets[1].abort(1).get(), Some(cause));
    assert!(!sets[1].abort(1).set(Cause { code: AbortCode::Died, rank: 1, reason: 0 }), "the first cause stays");
    assert_eq!(sets[0].abort(1).get(), Some(cause));
}

#[test]
fn sizes_that_differ_are_an_error_on_every_rank() {
    for result in create_all(3, |rank| 4096 * (1 + rank / 2), |_, _| {}) {
        let error = result.unwrap_err();
        assert!(matches!(&error, SegmentError::Sizes { bytes } if bytes == &[4096, 4096, 8192]), "{error}");
        assert!(error.to_string().contains("rank 2: 8192 bytes"));
    }
}

#[test]
fn a_rank_without_memory_fails_all_and_says_so() {
    let results = create_all(3, |rank| if rank == 1 { 1 << 50 } else { 4096 }, |_, _| {});
    for (rank, result) in results.into_iter().enumerate() {
        match result.unwrap_err() {
            SegmentError::NoMemory { bytes, .. } if rank == 1 => assert_eq!(bytes, (1 << 50) + 4096),
            SegmentError::Sizes { .. } if rank != 1 => {}
            other => panic!("rank {rank}: {other}"),
        }
    }
    // The same with equal sizes: rank 1's card says that it has no segment (byte 40), and the reason.
    let failed = |rank: usize, parts: &mut Vec<Vec<u8>>| {
        if rank != 1 {
            parts[1].truncate(40);
            parts[1].extend(b"\0no memory");
        }
    };
    for (rank, result) in create_all(2, |_| 4096, failed).into_iter().enumerate() {
        let error = result.unwrap_err();
        assert!(rank == 1 || matches!(&error, SegmentError::Peer { rank: 1, what } if what == "no memory"), "{error}");
    }
    let error = SegmentSet::threads(2, usize::MAX).unwrap_err();
    assert!(matches!(error, SegmentError::TooLarge { bytes: usize::MAX }));
}

/// So large that one segment fits the memory that is left and three do not, whatever other programs do meanwhile.
fn most_of_what_is_left() -> Option<usize> {
    let left = MemoryLeft::now().bytes()?;
    Some(usize::try_from(left / 10 * 7).unwrap())
}

fn assert_sum_is_refused(error: &SegmentError, bytes: usize) {
    let words = error.to_string();
    match error {
        SegmentError::NoMemory { bytes: of_one, shortage: Some(shortage) } => {
            assert!((bytes..bytes + 8192 + 1).contains(of_one), "{words}");
            assert!(shortage.needed > shortage.left && words.contains("left"), "{words}");
            let numbers = [*of_one as u64, shortage.needed, shortage.left];
            assert!(numbers.iter().all(|number| words.contains(&number.to_string())), "{words}");
            assert!(words.contains("start fewer ranks"), "{words}");
        }
        // Another rank refused first, and told the others the reason.
        SegmentError::Peer { what, .. } => assert!(what.contains("no memory for a segment"), "{words}"),
        _ => panic!("{error:?}"),
    }
}

#[test]
fn what_all_ranks_need_together_is_compared_with_what_is_left_before_any_is_taken() {
    let Some(bytes) = most_of_what_is_left() else {
        return tilewire_testkit::skip::skip("limit of memory", "nobody says what is left");
    };
    assert_sum_is_refused(&SegmentSet::threads(3, bytes).unwrap_err(), bytes);
    let results = create_all(3, |_| bytes, |_, _| {});
    let errors: Vec<_> = results.into_iter().map(|result| result.unwrap_err()).collect();
    errors.iter().for_each(|error| assert_sum_is_refused(error, bytes));
    assert!(errors.iter().any(|error| matches!(error, SegmentError::NoMemory { .. })), "{errors:?}");
}

/// Pages of this process that are in memory, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn segments_of_threads_take_memory_when_they_are_touched() {
    const EACH: usize = 256 << 20;
    let before = resident();
    let sets = SegmentSet::threads(2, EACH).unwrap();
    let taken = resident().saturating_sub(before);
    // Other tests of this program take some memory meanwhile.
    assert!(taken < EACH / 2, "{taken} bytes");
    drop(sets);
    let options = SegmentOptions { populate: true, ..SegmentOptions::default() };
    let before = resident();
    let _sets = SegmentSet::threads_with(2, EACH / 4, &options).unwrap();
    let taken = resident().saturating_sub(before);
    assert!(taken >= EACH / 4, "{taken} of {} bytes", EACH / 2);
}

#[test]
fn a_gather_that_is_none_is_refused() {
    let create = |rank, size, exchange: &mut Exchange<'_, &'static str>| {
        SegmentSet::create(rank, size, 8, exchange).unwrap_err()
    };
    assert!(matches!(create(2, 2, &mut |_| Ok(vec![])), SegmentError::Usage { .. }));
    assert!(create(0, 2, &mut |_| Err("the store is gone")).to_string().contains("the store is gone"));
    for parts in [vec![], vec![vec![]; 2], vec![vec![0; 100]; 2]] {
        let error = create(0, 2, &mut |_| Ok(parts.clone()));
        assert!(matches!(error, SegmentError::Malformed { .. }), "{error}");
    }
    // A rank passes on another rank's part instead of its own.
    let error = create(0, 2, &mut |mine| {
        let mut other = mine.to_vec();
        *other.last_mut().unwrap() ^= 1;
        Ok(vec![other, mine.to_vec()])
    });
    assert!(matches!(error, SegmentError::Malformed { rank: None, .. }), "{error}");
    // A rank on another machine: the part begins with 8 bytes of version and 8 of size, then the machine.
    let error = create(0, 2, &mut |mine| {
        let mut other = mine.to_vec();
        other[16] ^= 1;
        Ok(vec![mine.to_vec(), other])
    });
    assert!(matches!(&error, SegmentError::OtherHost { ranks } if ranks == &[1]), "{error}");
    // A rank whose socket is gone counts as dead.
    let error = create(0, 2, &mut |mine| {
        let mut other = mine.to_vec();
        *other.last_mut().unwrap() ^= 1;
        Ok(vec![mine.to_vec(), other])
    });
    assert!(matches!(error, SegmentError::Died { rank: 1 }), "{error}");
}

#[test]
fn strangers_are_refused_and_disturb_nobody() {
    let strangers = Mutex::new(Vec::new());
    let results = create_all(
        3,
        |_| 4096,
        |rank, parts| {
            // Before any rank knocks at rank 0, a crowd of strangers does: silent ones, ones with noise, and ones with
            // a hello that has a wrong token.
            if rank != 0 {
                return;
            }
            for (name, token) in doors(parts) {
                let mut wrong = token;
                wrong[15] ^= 1;
                let mut crowd: Vec<Stranger> = (0..70).map(|_| Stranger::connect(&name).unwrap()).collect();
                crowd[0].send(b"GET / HTTP/1.1\r\n\r\n");
                crowd[1].send(&[0xff; 2000]);
                crowd[2].send_hello(1, &wrong);
                crowd[3].send_hello(u32::MAX, &token);
                strangers.lock().unwrap().append(&mut crowd);
            }
        },
    );
    let sets: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    all_see_all(&sets);
    for stranger in strangers.into_inner().unwrap() {
        assert_eq!(stranger.hear(), None, "a stranger got an answer");
    }
}

#[test]
fn a_hello_with_the_wrong_token_is_refused_while_the_listener_is_there() {
    let (mine, heard) = (Gather::new(1), Mutex::new(None));
    let mut exchange = |part: &[u8]| {
        let parts = mine.exchange(0, part)?;
        let (name, token) = doors(&parts).remove(0);
        // Rank 1 is simulated: it has a card, and a listener that never answers.
        let (listener, mock) = Stranger::listen();
        let mut parts = parts;
        let mut card = parts[0].clone();
        let at = card.len() - name.len();
        card.truncate(at);
        card.extend(mock);
        parts.push(card);
        let (liar, honest) = (Stranger::connect(&name).unwrap(), Stranger::connect(&name).unwrap());
        liar.send_hello(1, &[0; 16]);
        honest.send_hello(1, &token);
        *heard.lock().unwrap() = Some((liar, honest, listener));
        Ok::<_, io::Error>(parts)
    };
    let options = SegmentOptions { deadline: Duration::from_millis(200), ..SegmentOptions::default() };
    let start = Instant::now();
    let error = SegmentSet::create_with(0, 2, 64, &options, &mut exchange).unwrap_err();
    assert!(matches!(&error, SegmentError::Missing { ranks, .. } if ranks == &[1]), "{error}");
    // The listener never answers, so without the deadline this would never end. How late it may be depends on the
    // machine.
    assert!(start.elapsed() >= options.deadline, "{:?}", start.elapsed());
    let (liar, honest, _listener) = heard.into_inner().unwrap().unwrap();
    assert_eq!(liar.hear(), None);
    assert_eq!(honest.hear().map(|packet| packet[8]), Some(b'W'), "who shows the token is welcome");
    assert_eq!(honest.hear().map(|packet| packet[8]), Some(b'F'), "and learns that it came to nothing");
}

#[test]
fn a_peer_that_gives_up_because_of_a_rank_that_cannot_be_is_taken_by_its_words() {
    // In a world of two, rank 1 tells rank 0 that a rank beyond the world died, and that rank 0 itself did.
    for dead in [2u32, 1 << 30, 0] {
        let (mine, held) = (Gather::new(1), Mutex::new(None));
        let mut exchange = |part: &[u8]| {
            let mut parts = mine.exchange(0, part)?;
            let (name, token) = doors(&parts).remove(0);
            let (listener, mock) = Stranger::listen();
            let mut card = parts[0].clone();
            card.truncate(card.len() - name.len());
            card.extend(mock);
            parts.push(card);
            let peer = Stranger::connect(&name).unwrap();
            peer.send_hello(1, &token);
            peer.send(&[b"TWSEGM02F".as_slice(), &dead.to_le_bytes(), b"it is all over"].concat());
            *held.lock().unwrap() = Some((peer, listener));
            Ok::<_, io::Error>(parts)
        };
        let error = SegmentSet::create(0, 2, 64, &mut exchange).unwrap_err();
        assert!(matches!(&error, SegmentError::Peer { rank: 1, what } if what == "it is all over"), "{error}");
    }
}

#[test]
fn a_panic_wakes_the_peers() {
    let mut sets = SegmentSet::threads(3, 0).unwrap();
    let culprit = sets.pop().unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let sleepers: Vec<_> = sets
            .iter()
            .map(|set| {
                let (abort, bell) = (set.abort(set.rank()), set.doorbell(set.rank()));
                scope.spawn(move || bell.sleep(|| abort.get().is_some(), Duration::from_secs(10)))
            })
            .collect();
        let guarded = scope.spawn(move || {
            let _guard = culprit.panic_guard();
            std::panic::resume_unwind(Box::new("without a message"));
        });
        assert!(guarded.join().is_err());
        assert!(sleepers.into_iter().all(|sleeper| sleeper.join().unwrap()));
    });
    assert!(start.elapsed() < Duration::from_secs(8), "they slept on");
    for set in &sets {
        let cause = set.abort(set.rank()).get().unwrap();
        assert_eq!((cause.code, cause.rank), (AbortCode::Panicked, 2));
        assert_eq!(cause.to_string(), "rank 2 panicked");
    }
}

#[test]
fn a_guard_that_is_dropped_in_peace_does_nothing() {
    let sets = SegmentSet::threads(2, 0).unwrap();
    drop(sets[0].panic_guard());
    assert_eq!(sets[1].abort(1).get(), None);
}
