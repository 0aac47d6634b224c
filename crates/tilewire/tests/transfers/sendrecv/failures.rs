//! Nothing hangs. A rank that waits in vain gets an error that names the other rank. A rank that waits for one that has
//! failed hears of it immediately. A broken transport says so in every call.

use crate::case::{LONG, SMALL, Shift, Way, seed, threads};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tilewire::collective::{Launch, Stage, Timeout};
use tilewire::ir::matching;
use tilewire::link::{ShmTransport, Transport, Window};
use tilewire::transport::{
    AbortCode, Cause, Doorbell, Pairing, PeerEndpoint, Rank, RankError, Signals, Ticket, TransportError, World,
};
use tilewire::{LaunchError, Memory, RunError, Tensor, kernel, recv, send, sendrecv};
use tilewire_testkit::ranks::words;

const SHORT: Duration = Duration::from_millis(200);
const FIRST: Rank = Rank::new(0);
const SECOND: Rank = Rank::new(1);

/// Two ranks. When rank 1 has built, rank 0 runs `waits`, which must fail. After that rank 1 runs `late`, which must
/// fail, too.
fn in_vain<'l, P>(
    deadline: Duration,
    build: impl Fn(&'l ShmTransport, &Window<u32>) -> Result<P, RunError> + Sync,
    waits: impl Fn(&ShmTransport, &Window<u32>) -> RunError + Sync,
    late: impl Fn(P) -> RunError + Sync,
) -> [RunError; 2] {
    let errors = World::threads(2).deadline(deadline).run(|world| {
        // The transport must outlive what is built on it, so the test leaks it.
        let link: &'l ShmTransport = Box::leak(Box::new(ShmTransport::rendezvous(&world, SMALL)?));
        let window = Window::<u32>::allocate(link, 100)?;
        let meet = |name: &str| world.bootstrap().barrier(name, LONG.into());
        if world.rank() == FIRST {
            meet("built")?;
            let error = waits(link, &window);
            meet("failed")?;
            Ok(error)
        } else {
            let built = build(link, &window)?;
            meet("built")?;
            meet("failed")?;
            Ok(late(built))
        }
    });
    errors.unwrap().try_into().expect("two ranks")
}

fn timeout(error: RunError) -> Timeout {
    match error {
        RunError::Timeout(timeout) => *timeout,
        other => panic!("{other}"),
    }
}

#[track_caller]
fn assert_broken(error: &RunError, code: AbortCode, rank: Rank) {
    let RunError::PeerFailed { rank: failed, cause, .. } = error else { panic!("{error}") };
    assert_eq!((*failed, cause.code, cause.rank), (rank, code, rank.index()), "{error}");
}

/// The line of the schedule that contains a wait.
#[track_caller]
fn line_of(timeout: &Timeout) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let at = timeout.at.as_ref().expect("a wait in a launch has a line");
    let text = std::fs::read_to_string(root.join(at.file)).unwrap();
    text.lines().nth(at.line as usize - 1).expect("the file has the line").to_string()
}

/// The error contains the user's line: a call in this file.
#[track_caller]
fn assert_called(timeout: &Timeout, operation: &str) {
    let call = timeout.call.as_ref().expect("the call is known");
    assert_eq!((&*call.operation, call.at.file), (operation, file!()));
    assert!(timeout.to_string().contains(&call.to_string()), "{timeout}");
}

/// A receiver that waits for a sender that has built but does not run. `sent` is what the sender has done by hand
/// before.
fn receiver_waits(way: Way, blocks: usize, sent: impl Fn(&Signals) + Sync) -> Timeout {
    let [first, second] = in_vain(
        LONG,
        |link, window| {
            sent(&link.endpoint_of(FIRST, window.lines()).unwrap().mapped().unwrap().signals);
            let x = Tensor::<u32>::zeros(100);
            let give = send(link, &x, FIRST).config(way.config(blocks));
            if way == Way::Direct { give.window(window).build() } else { give.build() }
        },
        |link, window| {
            let take = recv(link, window.tensor(), SECOND).config(way.config(blocks)).deadline(SHORT);
            if way == Way::Direct { take.window(window).run().unwrap_err() } else { take.run().unwrap_err() }
        },
        |mut give| give.run().unwrap_err(),
    );
    assert_broken(&second, AbortCode::TimedOut, FIRST);
    timeout(first)
}

#[test]
fn a_receiver_says_what_it_waits_for() {
    for (way, op, expected, line) in [
        (Way::Packet, "packet", 1 << 31, "packet_get("),
        (Way::staged(128, 2), "tail", 1, ".step("),
        (Way::bulk(128, 2), "tail", 1, ".wait_filled("),
        (Way::Direct, "done", 1, "recv_direct("),
    ] {
        for blocks in [1, 3] {
            let error = receiver_waits(way, blocks, |_| ());
            assert_eq!((error.rank, error.peer, error.late), (FIRST, Some(SECOND), Some(SECOND)));
            assert_eq!((error.stage, &*error.role, error.after), (Stage::Launch, "receive", SHORT));
            assert_eq!((error.block, error.slot, error.expected, error.seen), (0, 0, expected, 0), "{error}");
            assert!(error.op.contains(op) && line_of(&error).contains(line), "{error}: {}", line_of(&error));
            assert!(error.to_string().contains(error.at.as_ref().unwrap().file), "{error}");
            assert_called(&error, "recv of 100 u32");
        }
    }
}

#[test]
fn a_receiver_says_which_block_and_slot_it_waits_for() {
    // A signal of the sender's first transfer to the receiver, by hand.
    let operation = Ticket { rank: SECOND, peer: FIRST, pairing: Pairing::Send, number: 0 }.operation();
    let signal = |memory: &Memory, slot: usize, value, in_step: u16| {
        let word = matching::word(value, operation | in_step);
        words(memory)[slot * PeerEndpoint::SLOT_STRIDE as usize / 8].store(word, Ordering::Release)
    };
    let slots = SMALL.geometry(2).max_slots;
    // Four tiles for two blocks. The first block has both of its tiles. The second has one and waits for its last, in
    // slot 1 of its eight.
    let of_slot = |send: &Signals| {
        for (slot, value) in [(0, 1), (1, 2), (slots, 1)] {
            signal(&send.tail, slot, value, matching::IN_STEP);
        }
    };
    let error = receiver_waits(Way::staged(128, 2), 2, of_slot);
    let slot = slots as i64 + 1;
    assert_eq!((error.block, error.slot, error.expected, error.seen), (1, slot, 2, 0), "{error}");
    assert!(error.op.contains(&format!("[{slot}]")), "{error}");
    // A window that the first two blocks of the sender have written.
    let error =
        receiver_waits(Way::Direct, 3, |send| [0, 1].into_iter().for_each(|block| signal(&send.done, block, 1, 0)));
    assert_eq!((error.block, error.slot, error.expected, error.seen), (2, 2, 1, 0), "{error}");
}

#[test]
fn what_a_wait_has_seen_is_of_the_launches_before() {
    // Five steps in each of three launches. The next is number 15, which lies in slot 1. Step 13 signalled that slot
    // last.
    let errors = World::threads(2).deadline(LONG).run(|world| {
        let link = ShmTransport::rendezvous(&world, SMALL)?;
        let (x, config) = (Tensor::<u32>::zeros(160), Way::staged(128, 2).config(1));
        let build = |deadline| {
            let first = world.rank() == FIRST;
            let leg = if first { recv(&link, &x, SECOND) } else { send(&link, &x, FIRST) };
            leg.config(config).deadline(deadline).build()
        };
        let mut before = build(LONG)?;
        (0..3).try_for_each(|_| before.run())?;
        let mut last = build(SHORT)?;
        world.bootstrap().barrier("built", LONG.into())?;
        let early = (world.rank() == FIRST).then(|| last.run().unwrap_err());
        world.bootstrap().barrier("failed", LONG.into())?;
        Ok(early.unwrap_or_else(|| last.run().unwrap_err()))
    });
    let [first, second] = errors.unwrap().try_into().expect("two ranks");
    assert_broken(&second, AbortCode::TimedOut, FIRST);
    let error = timeout(first);
    assert_eq!((error.slot, error.expected, error.seen), (1, 16, 14), "{error}");
}

#[test]
fn a_wait_of_ones_own_kernel_names_the_line_of_the_user() {
    let result = World::threads(2).deadline(Duration::from_secs(1)).run(|world| {
        let link = ShmTransport::rendezvous(&world, SMALL)?;
        let (peer, line) = (world.rank().after(1, 2), Cell::new(0));
        let tail = [link.endpoint(peer).unwrap().here.signals.tail];
        let traced = kernel("own", |k| {
            let tail = k.slots("tail", &tail, PeerEndpoint::SLOT_STRIDE);
            k.role("watch", 1).run(|r| {
                line.set(line!() + 1);
                r.wait(tail.slot(0, 5), 7);
            });
        })?;
        if world.rank() == FIRST {
            let error = Launch::new(&link, &traced)?.run().unwrap_err();
            let prepared = line!() - 1;
            let error = timeout(error);
            assert_eq!((error.rank, error.peer, error.slot), (FIRST, Some(SECOND), 5), "{error}");
            assert_eq!((error.expected, error.seen, error.block, &*error.role), (7, 0, 0, "watch"), "{error}");
            let at = error.at.clone().unwrap();
            assert_eq!((at.file, at.line), (file!(), line.get()), "{error}");
            assert_called(&error, "kernel own");
            assert_eq!(error.call.unwrap().at.line, prepared);
        }
        world.bootstrap().barrier("failed", LONG.into())?;
        assert!(link.is_broken());
        Ok(())
    });
    result.unwrap();
}

/// A sender that waits for a receiver that has built but does not run.
fn sender_waits(way: Way, launches: usize) -> Timeout {
    let [first, second] = in_vain(
        LONG,
        |link, window| {
            let take = recv(link, window.tensor(), FIRST).config(way.config(1));
            if way == Way::Direct { take.window(window).build() } else { take.build() }
        },
        |link, window| {
            let x = Tensor::<u32>::zeros(100);
            let give = send(link, &x, SECOND).config(way.config(1)).deadline(SHORT);
            let mut give = if way == Way::Direct { give.window(window).build() } else { give.build() }.unwrap();
            (1..launches).for_each(|_| give.run().unwrap());
            give.run().unwrap_err()
        },
        |mut take| take.run().unwrap_err(),
    );
    assert_broken(&second, AbortCode::TimedOut, FIRST);
    timeout(first)
}

#[test]
fn a_sender_says_what_it_waits_for() {
    // Two of the four steps find a free slot. Eight messages find room in packets. A window must be offered first.
    for (way, launches, op, expected, line) in [
        (Way::staged(128, 2), 1, "head", 1, ".wait("),
        (Way::bulk(128, 2), 1, "head", 1, ".wait("),
        (Way::Packet, 9, "packet head", 4, ".wait("),
        (Way::Direct, 1, "ready", 1, "send_direct"),
    ] {
        let error = sender_waits(way, launches);
        assert_eq!((error.rank, error.peer, error.late), (FIRST, Some(SECOND), Some(SECOND)));
        assert_eq!((error.stage, &*error.role, error.after), (Stage::Launch, "send", SHORT));
        assert_called(&error, "send of 100 u32");
        assert_eq!((error.block, error.slot, error.expected, error.seen), (0, 0, expected, 0), "{error}");
        assert!(error.op.contains(op) && line_of(&error).contains(line), "{error}: {}", line_of(&error));
    }
}

#[test]
fn the_deadline_of_a_transfer_may_differ_from_that_of_the_world() {
    threads(2, "own deadline", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (peer, x, y) = (world.rank().after(1, 2), Tensor::<u32>::zeros(4), Tensor::<u32>::zeros(4));
        let mut swap = sendrecv(&link, &y, &x, peer, peer).deadline(SHORT).build()?;
        world.bootstrap().barrier("built", world.deadline())?;
        if world.rank() == FIRST {
            assert_eq!(timeout(swap.run().unwrap_err()).after, SHORT);
        }
        world.bootstrap().barrier("failed", world.deadline())?;
        assert_broken(&swap.run().unwrap_err(), AbortCode::TimedOut, FIRST);
        Ok(())
    });
}

#[test]
fn a_peer_that_never_builds_is_named() {
    let deadline = Duration::from_secs(1);
    let [first, second] = in_vain(
        deadline,
        |link, _| Ok(link),
        |link, _| {
            let x = Tensor::<u32>::zeros(4);
            let error = send(link, &x, SECOND).run().unwrap_err();
            assert_broken(&send(link, &x, SECOND).run().unwrap_err(), AbortCode::TimedOut, FIRST);
            error
        },
        |link| recv(link, &Tensor::<u32>::zeros(4), FIRST).run().unwrap_err(),
    );
    let first = timeout(first);
    assert_eq!((first.rank, first.peer, first.late, first.slot), (FIRST, Some(SECOND), Some(SECOND), 0));
    assert_eq!(first.stage, Stage::Meeting);
    assert!(first.after >= deadline && first.op.contains("send number 0"), "{first}");
    assert_called(&first, "send of 4 u32");
    assert_broken(&second, AbortCode::TimedOut, FIRST);
}

/// Rank 1 ends as `ends` says while the launches of all others sleep until it sends. Returns their errors, and the
/// world's.
fn while_waiting(ends: impl Fn(&World, &ShmTransport) -> Result<(), RankError> + Sync) -> (Vec<RunError>, String) {
    let errors = Mutex::new(Vec::new());
    let result = World::threads(4).deadline(Duration::from_secs(600)).run(|world| {
        let link = ShmTransport::rendezvous(&world, SMALL)?;
        let way = [Way::Packet, Way::Chosen, Way::staged(128, 2), Way::staged(64, 2)][world.rank().index()];
        if world.rank() == SECOND {
            let x = Tensor::<u32>::zeros(100);
            for (from, way) in [(0, Way::Packet), (2, Way::staged(128, 2)), (3, Way::staged(64, 2))] {
                std::mem::forget(send(&link, &x, Rank::new(from)).config(way.config(1)).build()?);
            }
            world.bootstrap().barrier("built", LONG.into())?;
            // All have built. So a rank that sleeps on its doorbell sleeps in a launch.
            let sleeps = |rank| link.doorbell(Rank::new(rank)).word().load(Ordering::Relaxed) & Doorbell::SLEEPERS != 0;
            while ![0, 2, 3].into_iter().all(sleeps) {
                std::thread::yield_now();
            }
            return ends(&world, &link);
        }
        let out = Tensor::<u32>::zeros(100);
        let mut take = recv(&link, &out, SECOND).config(way.config(1)).build()?;
        world.bootstrap().barrier("built", LONG.into())?;
        let error = take.run().unwrap_err();
        errors.lock().unwrap().push(error.clone());
        Err(error.into())
    });
    (errors.into_inner().unwrap(), result.unwrap_err().to_string())
}

#[track_caller]
fn assert_all_aborted(errors: &[RunError], because: &str) {
    assert_eq!(errors.len(), 3);
    for error in errors {
        let RunError::PeerFailed { rank: SECOND, during: Some(during), .. } = error else { panic!("{error}") };
        // A launch that had not waited would have found the transport broken, and would not mention a wait.
        assert!(during.what.contains("role receive, waiting at "), "{error}");
        assert!(error.to_string().contains(because), "{error}");
    }
}

#[test]
fn waits_end_when_a_rank_returns_an_error() {
    let (errors, world) = while_waiting(|_, _| Err("no more".into()));
    assert_all_aborted(&errors, "rank 1 gave up after an error");
    assert_eq!(world, "rank 1 failed: no more");
}

#[test]
fn waits_end_when_a_rank_panics() {
    let (errors, world) = while_waiting(|_, _| panic!("as a test"));
    assert_all_aborted(&errors, "rank 1 panicked");
    assert_eq!(world, "rank 1 panicked: as a test");
}

#[test]
fn waits_end_when_a_launch_of_a_rank_fails() {
    let (errors, _) = while_waiting(|_, link| {
        // Towards a rank that no longer waits, the failure is on this side.
        let (x, index) = (Tensor::<u32>::zeros(4), Tensor::from_slice(&[0u32, 1, 9, 2]));
        use tilewire::hook::Captured;
        let give = send(link, &x, FIRST).produce(|c| c.input.load(index.at(c.pos())));
        let traced = give.trace()?;
        let error = Launch::new(link, &traced)?.run().unwrap_err();
        let RunError::Launch(LaunchError::OutOfBounds { name, index, len, .. }) = &error else { panic!("{error}") };
        assert_eq!((&**name, *index, *len), ("input", 9, 4));
        assert_broken(&send(link, &x, FIRST).run().unwrap_err(), AbortCode::Failed, SECOND);
        Ok(())
    });
    assert_all_aborted(&errors, "rank 1 gave up after an error");
}

#[test]
fn waits_for_a_peer_that_builds_nothing_end_when_it_fails() {
    // Rank 1 cannot see whether rank 0 waits already. So it waits longer and longer until rank 0 does.
    let waited = |pause: Duration| {
        let (called, failed, heard) = (Mutex::new(None), Mutex::new(None), Mutex::new(None));
        let result = World::threads(2).deadline(Duration::from_secs(600)).run(|world| {
            let link = ShmTransport::rendezvous(&world, SMALL)?;
            if world.rank() == SECOND {
                std::thread::sleep(pause);
                *failed.lock().unwrap() = Some(Instant::now());
                return Err("nothing to send".into());
            }
            *called.lock().unwrap() = Some(Instant::now());
            let error = recv(&link, &Tensor::<u32>::zeros(4), SECOND).run().unwrap_err();
            *heard.lock().unwrap() = Some(error.clone());
            Err::<(), _>(error.into())
        });
        assert_eq!(result.unwrap_err().to_string(), "rank 1 failed: nothing to send");
        assert_broken(&heard.into_inner().unwrap().expect("rank 0 has an error"), AbortCode::Failed, SECOND);
        let [called, failed] = [called, failed].map(|at| at.into_inner().unwrap().expect("both ranks were there"));
        // Tracing takes microseconds. The rest of the time is the wait.
        failed.saturating_duration_since(called) > Duration::from_millis(20)
    };
    assert!((2..9).any(|n| waited(Duration::from_millis(10 << n))), "rank 0 never waited for the meeting");
}

#[test]
fn a_broken_transport_says_so_on_every_call_until_a_new_rendezvous() {
    threads(3, "broken", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (me, to, from) = (world.rank(), world.rank().after(1, 3), world.rank().after(2, 3));
        let (inp, out) = (Tensor::<u32>::zeros(4), Tensor::<u32>::zeros(4));
        let mut shift = sendrecv(&link, &out, &inp, to, from).build()?;
        shift.run()?;
        let built = sendrecv(&link, &out, &inp, to, from).build()?;
        world.bootstrap().barrier("built", world.deadline())?;
        if me == SECOND {
            link.mark_broken(Cause { code: AbortCode::Failed, rank: 1, reason: 0 });
        }
        world.bootstrap().barrier("broken", world.deadline())?;
        for mut built in [shift, built] {
            for _ in 0..2 {
                assert_broken(&built.run().unwrap_err(), AbortCode::Failed, SECOND);
            }
        }
        assert_broken(&send(&link, &inp, to).build().unwrap_err(), AbortCode::Failed, SECOND);
        assert_broken(&recv(&link, &out, from).run().unwrap_err(), AbortCode::Failed, SECOND);
        let closed = link.close().unwrap_err();
        assert!(matches!(closed, TransportError::Broken { .. }), "{closed}");
        assert_broken(&closed.into(), AbortCode::Failed, SECOND);
        let link = ShmTransport::rendezvous(world, SMALL)?;
        Shift { len: 50, by: 1, blocks: 2, way: Way::staged(64, 2) }.run::<i8>(world, &link, seed())?;
        Ok(link.close()?)
    });
}
