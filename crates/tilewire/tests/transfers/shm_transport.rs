//! The transport of ranks on one machine, among threads and among real processes.
#![cfg(target_os = "linux")]

use std::slice::from_ref;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tilewire::ir::Type;
use tilewire::link::{ShmOptions, ShmTransport, Transport, Window, check_transfer};
use tilewire::tensor::bytes_of;
use tilewire::transport::layout::{LINE, StartWord};
use tilewire::transport::{
    AbortCode, Cause, LinkKind, PeerEndpoint, Protocol, Rank, RankError, Transfer, TransferError, TransportError, World,
};
use tilewire::vm::Settings;
use tilewire::{Memory, Prepared, Tensor, kernel};
use tilewire_testkit::job::{Job, Member};
use tilewire_testkit::ranks::{in_processes, in_threads, join, peers, start, words};

const SMALL: ShmOptions = ShmOptions {
    per_peer_bytes: Some(8192),
    max_blocks_per_peer: Some(2),
    max_slots: Some(4),
    max_copies: 1,
    packet_bytes: Some(1024),
    window_sets: None,
    populate: false,
};

// ---- memory ---------------------------------------------------------------------------------------------------------

/// A rank's memory for sending to a peer, and that peer's for receiving: pairs that must be the same memory, in one
/// order.
fn ways_out(endpoint: &PeerEndpoint) -> [&Memory; 7] {
    let there = endpoint.mapped().unwrap();
    let (here, signals) = (&endpoint.here.signals, &there.signals);
    [&there.staging, &there.packets, &signals.tail, &signals.done, &here.head, &here.packet_head, &here.ready]
}

fn ways_in(endpoint: &PeerEndpoint) -> [&Memory; 7] {
    let (here, there) = (&endpoint.here, &endpoint.mapped().unwrap().signals);
    let signals = &here.signals;
    [&here.staging, &here.packets, &signals.tail, &signals.done, &there.head, &there.packet_head, &there.ready]
}

/// Every rank fills every word that it sends through, for every peer, with a separate value. It then finds the values
/// of all its peers.
fn everything_arrives(world: &World) -> Result<(), RankError> {
    let transport = ShmTransport::rendezvous(world, SMALL)?;
    let small = SMALL.geometry(world.size());
    let value = |from: Rank, to: Rank, kind: usize, at: usize| {
        ((from.number() as u64 + 1) << 48) | ((to.number() as u64 + 1) << 32) | ((kind as u64) << 24) | at as u64
    };
    let me = world.rank();
    for peer in peers(world) {
        let endpoint = transport.endpoint(peer).unwrap();
        assert_eq!(endpoint.mapped().unwrap().staging.bytes(), small.per_peer_bytes);
        assert_eq!(endpoint.mapped().unwrap().signals.tail.bytes(), small.max_blocks_per_peer * small.max_slots * LINE);
        assert_eq!(transport.link(peer).kind, LinkKind::Shm);
        for (kind, memory) in ways_out(&endpoint).into_iter().enumerate() {
            words(memory)
                .iter()
                .enumerate()
                .for_each(|(at, word)| word.store(value(me, peer, kind, at), Ordering::Release));
        }
        let starts = words(&endpoint.starts);
        starts[StartWord::Step.index()].store(value(me, peer, 99, 0), Ordering::Release);
    }
    world.bootstrap().barrier("written", world.deadline())?;
    for peer in peers(world) {
        let endpoint = transport.endpoint(peer).unwrap();
        for (kind, memory) in ways_in(&endpoint).into_iter().enumerate() {
            for (at, word) in words(memory).iter().enumerate() {
                assert_eq!(word.load(Ordering::Acquire), value(peer, me, kind, at), "kind {kind} from {peer} to {me}");
            }
        }
        assert_eq!(words(&endpoint.starts)[0].load(Ordering::Acquire), value(me, peer, 99, 0), "mine alone");
    }
    // The parts of this rank for itself belong to no peer.
    let own = transport.endpoint(me).unwrap();
    for memory in [&own.here.staging, &own.here.signals.tail] {
        assert!(bytes_of(memory).unwrap().iter().all(|&byte| byte == 0));
    }
    // The table is the same memory, in rank order.
    let (table, layout) = (transport.table(), transport.layout());
    for peer in peers(world) {
        let offset = table.staging_offset(me);
        let endpoint = transport.endpoint(peer).unwrap();
        assert!(table.staging[peer.index()].part(offset, small.per_peer_bytes).is(&endpoint.mapped().unwrap().staging));
        let tail = table.slots[peer.index()].tail.part(layout.slot_index(me.index(), 1, 2) * LINE, 8);
        assert!(tail.is(&endpoint.mapped().unwrap().signals.tail.part((small.max_slots + 2) * LINE, 8)));
    }
    world.bootstrap().barrier("read", world.deadline())?;
    Ok(transport.close()?)
}

#[test]
fn what_a_rank_writes_its_peer_finds_among_threads() {
    (2..=4).for_each(|ranks| in_threads(ranks, everything_arrives));
}

#[test]
fn what_a_rank_writes_its_peer_finds_among_processes() {
    in_processes("shm_transport::what_a_rank_writes_its_peer_finds_among_processes", 3, everything_arrives);
}

#[test]
fn a_world_of_one_has_a_transport() {
    in_threads(1, everything_arrives);
}

// ---- agreement ------------------------------------------------------------------------------------------------------

/// Every rank hears which rank gave which value, for every parameter. The world stays usable.
fn differences_are_named(world: &World) -> Result<(), RankError> {
    let odd = world.rank() == Rank::new(1);
    let cases = [
        ("per_peer_bytes", 8192, 4096, ShmOptions { per_peer_bytes: Some(4096), ..SMALL }),
        ("max_blocks_per_peer", 2, 3, ShmOptions { max_blocks_per_peer: Some(3), ..SMALL }),
        ("max_slots", 4, 8, ShmOptions { max_slots: Some(8), ..SMALL }),
        ("max_copies", 1, 2, ShmOptions { max_copies: 2, ..SMALL }),
        ("packet_bytes", 1024, 0, ShmOptions { packet_bytes: Some(0), ..SMALL }),
    ];
    for (name, usual, other, options) in cases {
        let error = ShmTransport::rendezvous(world, if odd { options } else { SMALL }).unwrap_err();
        let expected = format!(
            "the ranks disagree about {name}; pass the same on all: ranks 0, 2 say {usual}; rank 1 says {other};"
        );
        assert_eq!(error.to_string(), expected);
        assert!(matches!(error, TransportError::Mismatch { values, .. } if values[1] == other.to_string()));
    }
    // An impossible option. The rank that gave it gets the option in its error. The others get that rank.
    let error =
        ShmTransport::rendezvous(world, ShmOptions { max_slots: Some(if odd { 1 } else { 4 }), ..SMALL }).unwrap_err();
    match error {
        TransportError::BadOption { option: "max_slots", value: 1, .. } => assert!(odd),
        TransportError::Mismatch { parameter, values } => {
            assert!(!odd);
            assert_eq!((&*parameter, &*values.concat()), ("max_slots", "414"));
        }
        other => panic!("{other}"),
    }
    let error =
        ShmTransport::rendezvous(world, ShmOptions { per_peer_bytes: Some(usize::MAX / 2), ..SMALL }).unwrap_err();
    assert!(matches!(error, TransportError::TooLarge), "{error}");
    everything_arrives(world)
}

#[test]
fn a_rank_with_other_options_is_named_on_every_rank_among_threads() {
    in_threads(3, differences_are_named);
}

#[test]
fn a_rank_with_other_options_is_named_on_every_rank_among_processes() {
    in_processes(
        "shm_transport::a_rank_with_other_options_is_named_on_every_rank_among_processes",
        3,
        differences_are_named,
    );
}

#[test]
fn a_rank_of_another_version_is_named_and_garbage_is_no_harm() {
    in_threads(2, |world| {
        let cards: [(&[u8], &str); 4] = [
            (b"version=9.9.9\nper_peer_bytes=8192\nobjection=", "rank 1 says 9.9.9;"),
            (b"", "rank 1 says not said;"),
            (b"\xff\xfe\n\n=\n", "rank 1 says not said;"),
            (b"a version that puts other things first\nversion=0.1.0", "rank 1 says not said;"),
        ];
        for (card, expected) in cards {
            if world.rank() == Rank::new(1) {
                // The behaviour of a library of another version.
                world.bootstrap().all_gather("tilewire/shm/parameters", card, world.deadline())?;
                continue;
            }
            let error = ShmTransport::rendezvous(world, SMALL).unwrap_err();
            assert!(matches!(&error, TransportError::Mismatch { parameter, .. } if parameter == "version"), "{error}");
            assert!(error.to_string().ends_with(expected), "{error}");
        }
        Ok(())
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let result = World::threads(2).deadline(Duration::from_millis(100)).run(|world| {
        if world.rank() == Rank::new(0) {
            let error = ShmTransport::rendezvous(&world, SMALL).unwrap_err();
            assert!(matches!(&error, TransportError::Bootstrap(_)) && error.to_string().contains("rank 1"), "{error}");
            world.bootstrap().set("over", b"", world.deadline())?;
        } else {
            world.bootstrap().get("over", Duration::from_secs(20).into())?;
        }
        Ok(())
    });
    result.unwrap();
}

// ---- ends -----------------------------------------------------------------------------------------------------------

fn open_and_mapped() -> (usize, usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let segments = maps.lines().filter(|line| line.contains("memfd:tilewire")).count();
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), segments, maps.lines().count())
}

fn a_hundred_cycles(world: &World) -> Result<(), RankError> {
    let mut first = None;
    for _ in 0..100 {
        let transport = ShmTransport::rendezvous(world, SMALL)?;
        let window = Window::<f32>::allocate(&transport, 5000)?;
        transport.close()?;
        drop(window);
        // Threads count each other's files and memory, so they must be at the same point.
        world.bootstrap().barrier("closed", world.deadline())?;
        // One at a time, because counting opens a file.
        let counts = !world.are_threads() || world.rank() == Rank::new(0);
        let now = if counts { open_and_mapped() } else { (0, 0, 0) };
        world.bootstrap().barrier("counted", world.deadline())?;
        let start = *first.get_or_insert(now);
        assert_eq!((now.0, now.1), (start.0, 0));
        // The allocator may map a little. Growth with every cycle would be hundreds.
        assert!(now.2 < start.2 + 20, "{} mappings, at first {}", now.2, start.2);
    }
    Ok(())
}

#[test]
fn a_hundred_cycles_leave_nothing_behind_among_threads() {
    // In a separate process, because other tests open and map as well.
    if let Some(mut member) = Member::of_this_process() {
        in_threads(2, a_hundred_cycles);
        return member.report("done");
    }
    let mut job = Job::start("shm_transport::a_hundred_cycles_leave_nothing_behind_among_threads", 1);
    job.expect([0], "done");
    job.finish();
}

#[test]
fn a_hundred_cycles_leave_nothing_behind_among_processes() {
    in_processes("shm_transport::a_hundred_cycles_leave_nothing_behind_among_processes", 2, a_hundred_cycles);
}

/// One rank marks the transport as broken. Every rank's next call says so.
fn a_break_is_told(world: &World) -> Result<(), RankError> {
    let transport = ShmTransport::rendezvous(world, SMALL)?;
    let peer = world.rank().after(1, world.size());
    let x = Tensor::<f32>::zeros(16);
    let transfer = Transfer {
        peer,
        bytes: 64,
        dtype: Type::F32,
        blocks: 1,
        protocol: Protocol::Staged { slot_bytes: 64, depth: 2 },
    };
    check_transfer(&transport, &transfer, &[x.memory()])?;
    assert!(!transport.is_broken());
    world.bootstrap().barrier("whole", world.deadline())?;
    let cause = Cause { code: AbortCode::TimedOut, rank: 1, reason: 7 };
    if world.rank() == Rank::new(1) {
        transport.mark_broken(cause);
        // The first cause stays.
        transport.mark_broken(Cause { code: AbortCode::Failed, rank: 0, reason: 0 });
    }
    world.bootstrap().barrier("broken", world.deadline())?;
    assert_eq!((transport.is_broken(), transport.broken()), (true, Some(cause)));
    assert_eq!(check_transfer(&transport, &transfer, &[x.memory()]), Err(TransferError::Broken { cause }));
    let is_broken = |error: TransportError| matches!(error, TransportError::Broken { cause: seen } if seen == cause);
    assert!(is_broken(Window::<f32>::allocate(&transport, 4).unwrap_err()));
    assert!(is_broken(transport.close().unwrap_err()));
    // A new rendezvous recovers.
    everything_arrives(world)
}

#[test]
fn a_broken_transport_says_so_with_the_cause_among_threads() {
    in_threads(3, a_break_is_told);
}

#[test]
fn a_broken_transport_says_so_with_the_cause_among_processes() {
    in_processes("shm_transport::a_broken_transport_says_so_with_the_cause_among_processes", 2, a_break_is_told);
}

#[test]
fn a_killed_rank_breaks_the_transport_of_the_others_at_once() {
    let test = "shm_transport::a_killed_rank_breaks_the_transport_of_the_others_at_once";
    if let Some(mut member) = Member::of_this_process() {
        let world = join(&mut member);
        let transport = ShmTransport::rendezvous(&world, SMALL).unwrap();
        member.report("met");
        // Far longer than the parent waits for a report. Only the news of the death can end it in time.
        transport.doorbell(world.rank()).sleep(|| transport.is_broken(), Duration::from_secs(600));
        return member.report(transport.close().unwrap_err().to_string());
    }
    let (mut job, _store) = start(test, 3);
    job.expect(0..3, "met");
    job.kill(1);
    job.expect([0, 2], "the transport is broken: rank 1 died; only a new rendezvous of all ranks recovers");
}

#[test]
fn a_thread_that_panics_breaks_the_transport_of_the_others() {
    let result = World::threads(2).deadline(Duration::from_secs(20)).run(|world| {
        let transport = ShmTransport::rendezvous(&world, SMALL)?;
        if world.rank() == Rank::new(1) {
            std::panic::resume_unwind(Box::new("as a test"));
        }
        transport.doorbell(world.rank()).sleep(|| transport.is_broken(), Duration::from_secs(10));
        assert_eq!(transport.broken(), Some(Cause { code: AbortCode::Panicked, rank: 1, reason: 0 }));
        Ok(())
    });
    assert_eq!(result.unwrap_err().to_string(), "rank 1 panicked: as a test");
}

#[test]
fn a_thread_that_returns_an_error_breaks_the_transport_of_the_others() {
    let result = World::threads(2).deadline(Duration::from_secs(20)).run(|world| {
        let transport = ShmTransport::rendezvous(&world, SMALL)?;
        if world.rank() == Rank::new(1) {
            return Err("as a test".into());
        }
        transport.doorbell(world.rank()).sleep(|| transport.is_broken(), Duration::from_secs(10));
        assert_eq!(transport.broken(), Some(Cause { code: AbortCode::Failed, rank: 1, reason: 0 }));
        Ok(transport.close()?)
    });
    assert_eq!(result.unwrap_err().to_string(), "rank 1 failed: as a test");
}

#[test]
fn who_closes_alone_is_told_who_does_not() {
    let (closed, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let result = World::threads(2).deadline(Duration::from_secs(2)).run(|world| {
        let transport = ShmTransport::rendezvous(&world, SMALL)?;
        if world.rank() == Rank::new(1) {
            // In another call, until the other rank has given up.
            _ = wait.lock().unwrap().recv_timeout(Duration::from_secs(20));
            return Ok(());
        }
        let error = transport.close().unwrap_err();
        let TransportError::NotClosed { ranks, after, .. } = &error else { panic!("{error}") };
        assert!(*ranks == [1] && *after >= Duration::from_secs(2), "{error}");
        assert!(error.to_string().starts_with("rank 1 did not close within "), "{error}");
        closed.send(())?;
        Err(error.into())
    });
    assert!(result.unwrap_err().to_string().starts_with("rank 0 failed: rank 1 did not close"));
}

#[test]
fn of_several_that_close_nobody_is_told_of_the_others() {
    let result = World::threads(3).deadline(Duration::from_secs(1)).run(|world| {
        let transport = ShmTransport::rendezvous(&world, SMALL)?;
        if world.rank() != Rank::new(2) {
            // Their deadlines pass one after the other, before either has heard of the other's error.
            std::thread::sleep(Duration::from_millis(50) * world.rank().number());
            let error = transport.close().unwrap_err();
            let TransportError::NotClosed { ranks, .. } = &error else { panic!("{error}") };
            assert_eq!(*ranks, [2], "{error}");
        }
        Ok(world.bootstrap().barrier("all were told", Duration::from_secs(20).into())?)
    });
    result.unwrap();
}

#[test]
fn memory_of_a_rank_that_dropped_its_transport_stays_until_the_peer_lets_go() {
    in_threads(2, |world| {
        let transport = ShmTransport::rendezvous(world, SMALL)?;
        let there = transport.endpoint(world.rank().after(1, 2)).unwrap().mapped().unwrap().staging.clone();
        drop(transport);
        world.bootstrap().barrier("dropped", world.deadline())?;
        words(&there)[0].store(1, Ordering::Relaxed);
        Ok(())
    });
}

// ---- kernels --------------------------------------------------------------------------------------------------------

/// Every rank sends a tile round the ring, launch after launch, through two slots with credits.
fn tiles_travel(world: &World) -> Result<(), RankError> {
    const ELEMENTS: usize = 256;
    const LAUNCHES: u64 = 20;
    let transport = ShmTransport::rendezvous(world, SMALL)?;
    let (me, size) = (world.rank(), world.size());
    let (to, from) = (me.after(1, size), me.after(size - 1, size));
    let (out, back) = (transport.endpoint(to).unwrap(), transport.endpoint(from).unwrap());
    let (x, y) = (Tensor::<f32>::zeros(ELEMENTS), Tensor::<f32>::zeros(ELEMENTS));
    let stride = PeerEndpoint::SLOT_STRIDE;
    for launch in 0..LAUNCHES {
        let data = |rank: Rank, i: usize| (rank.number() as f32 + 1.0) * 1000.0 + (launch * 7) as f32 + i as f32 / 3.0;
        x.copy_from(&(0..ELEMENTS).map(|i| data(me, i)).collect::<Vec<_>>());
        y.fill(f32::NAN);
        let (slot, offset) = ((launch % 2) as usize, (launch % 2) as i64 * ELEMENTS as i64 * 4);
        let traced = kernel("tile", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            let (dst, src) = (
                k.region("dst", from_ref(&out.mapped().unwrap().staging)),
                k.region("src", from_ref(&back.here.staging)),
            );
            let slots = |name: &str, memory: &Memory| k.slots(name, from_ref(memory), stride);
            let (sent, credit) =
                (slots("sent", &out.mapped().unwrap().signals.tail), slots("credit", &out.here.signals.head));
            let (arrived, free) =
                (slots("arrived", &back.here.signals.tail), slots("free", &back.mapped().unwrap().signals.head));
            k.role("send", 1).run(|r| {
                r.wait(credit.slot(0, slot), (launch + 1).saturating_sub(2));
                r.each(ELEMENTS, |i| dst.put(0, i * 4 + offset, x.load(i)));
                r.signal(sent.slot(0, slot), launch + 1);
            });
            k.role("receive", 1).run(|r| {
                r.wait(arrived.slot(0, slot), launch + 1);
                r.each(ELEMENTS, |i| y.store(i, src.get::<f32>(0, i * 4 + offset) * 2.0));
                r.signal_credit(free.slot(0, slot), launch + 1);
            });
        })?;
        let settings = Settings { rank: me.index(), world_size: size, ..Settings::default() };
        Prepared::with(&traced.kernel, &traced.args, settings)?.run()?;
        let expected: Vec<f32> = (0..ELEMENTS).map(|i| data(from, i) * 2.0).collect();
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&y.to_vec()), bits(&expected), "launch {launch}");
    }
    Ok(transport.close()?)
}

#[test]
fn tiles_travel_through_the_transport_bit_for_bit_among_threads() {
    (2..=4).for_each(|ranks| in_threads(ranks, tiles_travel));
}

#[test]
fn tiles_travel_through_the_transport_bit_for_bit_among_processes() {
    in_processes("shm_transport::tiles_travel_through_the_transport_bit_for_bit_among_processes", 2, tiles_travel);
}

/// The kernel chooses the peer from the table of all peers. The data goes straight into the peer's window.
fn windows_are_written(world: &World) -> Result<(), RankError> {
    const ELEMENTS: usize = 100;
    let transport = ShmTransport::rendezvous(world, SMALL)?;
    let (me, size) = (world.rank().index(), world.size());
    let window = Window::<f32>::allocate(&transport, ELEMENTS * size)?;
    let x = Tensor::from_fn(ELEMENTS, |i| (me * 1000 + i) as f32);
    let (table, layout) = (transport.table(), transport.layout());
    let done = table.slot_banks(|of_rank| &of_rank.done);
    let blocks = layout.geometry().max_blocks_per_peer;
    let traced = kernel("gather", |k| {
        let (x, windows) = (k.input(&x), k.region("window", &window.banks().unwrap()));
        let done = k.slots("done", &done, PeerEndpoint::SLOT_STRIDE);
        k.main(|r| {
            for peer in 0..size {
                r.each(ELEMENTS, |i| windows.put(peer, i * 4 + (me * ELEMENTS * 4) as i64, x.load(i)));
                r.signal(done.slot(peer, layout.block_index(me, 0)), 1);
            }
            r.for_(0..size, |sender| r.wait(done.slot(me, sender * blocks as i64), 1));
        });
    })?;
    let settings = Settings { rank: me, world_size: size, ..Settings::default() };
    Prepared::with(&traced.kernel, &traced.args, settings)?.run()?;
    let expected: Vec<f32> = (0..size * ELEMENTS).map(|i| (i / ELEMENTS * 1000 + i % ELEMENTS) as f32).collect();
    assert_eq!(window.tensor().to_vec(), expected);
    Ok(transport.close()?)
}

#[test]
fn windows_are_written_by_all_peers() {
    (1..=4).for_each(|ranks| in_threads(ranks, windows_are_written));
}

#[test]
fn windows_are_written_by_all_peers_among_processes() {
    in_processes("shm_transport::windows_are_written_by_all_peers_among_processes", 3, windows_are_written);
}

#[test]
fn windows_may_differ_in_length_but_not_in_type() {
    in_threads(2, |world| {
        let transport = ShmTransport::rendezvous(world, SMALL)?;
        let window = Window::<u8>::allocate(&transport, 10 + 5000 * world.rank().index())?;
        assert_eq!(window.peers().iter().flatten().map(Memory::bytes).collect::<Vec<_>>(), [10, 5010]);
        let error = if world.rank().index() == 0 {
            Window::<f32>::allocate(&transport, 1).unwrap_err()
        } else {
            Window::<bool>::allocate(&transport, 1).unwrap_err()
        };
        let expected =
            "the ranks disagree about element type; pass the same on all: rank 0 says f32; rank 1 says bool;";
        assert_eq!(error.to_string(), expected);
        Ok(transport.close()?)
    });
}

// ---- bad input ------------------------------------------------------------------------------------------------------

#[test]
fn what_would_corrupt_or_hang_is_refused_with_its_values() {
    in_threads(2, |world| {
        let transport = ShmTransport::rendezvous(world, SMALL)?;
        let (me, peer) = (world.rank(), world.rank().after(1, 2));
        let x = Tensor::<u8>::zeros(1 << 20);
        let staged = |slot_bytes, depth| Protocol::Staged { slot_bytes, depth };
        let good = Transfer { peer, bytes: 1 << 20, dtype: Type::F32, blocks: 2, protocol: staged(1024, 4) };
        let check = |transfer: Transfer| check_transfer(&transport, &transfer, &[x.memory()]);
        let packet = Protocol::Packet;
        let direct = Protocol::Direct { window_bytes: 4096 };
        assert_eq!(check(good), Ok(()));
        assert_eq!(check(Transfer { protocol: staged(2048, 2), ..good }), Ok(()), "as much as a block has");
        // 1024 bytes of packets, two blocks, eight messages simultaneously: 8 bytes of 16 are data.
        assert_eq!(check(Transfer { bytes: 64, protocol: packet, ..good }), Ok(()));
        assert_eq!(check(Transfer { bytes: 4096, protocol: direct, ..good }), Ok(()));
        assert_eq!(check(Transfer { bytes: 0, ..good }), Ok(()));

        let stranger = Rank::new(2);
        let too_large = |protocol, bytes, region| Err(TransferError::TooLarge { protocol, bytes, region });
        let depth = |protocol, depth, min, max| Err(TransferError::Depth { protocol, depth, min, max });
        let no_fit = |slot_bytes, depth| {
            Err(TransferError::SlotTooLarge { slot_bytes, depth, block_bytes: 4096, per_peer_bytes: 8192 })
        };
        let not_elements = |what, bytes| Err(TransferError::NotElements { what, bytes, dtype: Type::F32 });
        for (transfer, expected) in [
            (Transfer { peer: stranger, ..good }, Err(TransferError::NoSuchPeer { peer: stranger, world_size: 2 })),
            (Transfer { peer: me, ..good }, Err(TransferError::SelfTransfer { rank: me })),
            (Transfer { blocks: 0, ..good }, Err(TransferError::Blocks { blocks: 0, max: 2 })),
            (Transfer { blocks: 3, ..good }, Err(TransferError::Blocks { blocks: 3, max: 2 })),
            (Transfer { protocol: staged(64, 1), ..good }, depth(staged(64, 1), 1, 2, 4)),
            (Transfer { protocol: staged(64, 5), ..good }, depth(staged(64, 5), 5, 2, 4)),
            (Transfer { protocol: staged(2052, 2), ..good }, no_fit(2052, 2)),
            (Transfer { protocol: staged(usize::MAX - 3, 2), ..good }, no_fit(usize::MAX - 3, 2)),
            (Transfer { protocol: staged(0, 2), ..good }, Err(TransferError::EmptySlot)),
            (Transfer { protocol: staged(1022, 2), ..good }, not_elements("slot", 1022)),
            (Transfer { bytes: 1023, ..good }, not_elements("message", 1023)),
            (Transfer { bytes: 68, protocol: packet, ..good }, too_large(packet, 68, 64)),
            (Transfer { bytes: 4100, protocol: direct, ..good }, too_large(direct, 4100, 4096)),
            (
                Transfer { bytes: 2 << 20, ..good },
                Err(TransferError::BufferTooSmall { bytes: 2 << 20, buffer: 1 << 20 }),
            ),
        ] {
            assert_eq!(check(transfer), expected);
        }
        let odd = x.memory().part(2, 1024);
        let address = odd.start().as_ptr() as usize;
        let error = check_transfer(&transport, &Transfer { bytes: 1024, ..good }, &[&odd]).unwrap_err();
        assert_eq!(error, TransferError::Unaligned { address, dtype: Type::F32 });
        assert!(error.to_string().contains(&format!("{address:#x}")));
        Ok(transport.close()?)
    });
}

/// The number after these words in a message.
fn asked_for(words: &str, option: &str) -> usize {
    let (_, rest) = words.split_once(option).unwrap_or_else(|| panic!("{words} does not name {option}"));
    let digits: String = rest.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{words} has no number after {option}"))
}

/// With many ranks a transport is small by default. A message that does not fit gets an error that names the option and
/// its value.
#[test]
fn what_is_too_large_for_the_transport_is_refused_with_the_number_to_ask_for() {
    in_threads(13, |world| {
        let link = ShmTransport::rendezvous(world, ShmOptions::default())?;
        let peer = world.rank().after(1, 13);
        let staged = |slot_bytes, depth| Protocol::Staged { slot_bytes, depth };
        let good = Transfer { peer, bytes: 1 << 20, dtype: Type::F32, blocks: 2, protocol: staged(4096, 8) };
        let refused = |wrong: Transfer| check_transfer(&link, &wrong, &[]).unwrap_err().to_string();
        assert_eq!(check_transfer(&link, &good, &[]), Ok(()));
        let (blocks, slots, large, packets) = (
            Transfer { blocks: 5, ..good },
            Transfer { protocol: staged(4096, 65), ..good },
            Transfer { protocol: staged(1 << 20, 3), ..good },
            Transfer { bytes: 40_000, protocol: Protocol::Packet, ..good },
        );
        let usual = ShmOptions::default();
        let packet_bytes = asked_for(&refused(packets), "ask for") * link.link(link.rank()).packet_bytes;
        let cures = [
            (
                blocks,
                ShmOptions { max_blocks_per_peer: Some(asked_for(&refused(blocks), "max_blocks_per_peer")), ..usual },
            ),
            (slots, ShmOptions { max_slots: Some(asked_for(&refused(slots), "max_slots")), ..usual }),
            (large, ShmOptions { per_peer_bytes: Some(asked_for(&refused(large), "per_peer_bytes:")), ..usual }),
            (packets, ShmOptions { packet_bytes: Some(packet_bytes), ..usual }),
        ];
        for (transfer, options) in cures {
            let roomy = ShmTransport::rendezvous(world, options)?;
            assert_eq!(check_transfer(&roomy, &transfer, &[]), Ok(()), "{options:?}");
            roomy.close()?;
        }
        Ok(link.close()?)
    });
}
