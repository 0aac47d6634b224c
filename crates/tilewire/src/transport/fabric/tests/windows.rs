//! Windows of far peers and memory that is read in place, which come and go.

use super::*;
use crate::transport::proxy::{PostedRegion, PostedSource};

const BYTES: usize = 70_000;

/// A window of both ranks under one number.
struct Windows {
    regions: [PostedRegion; 2],
    memories: [Memory; 2],
}

impl Windows {
    fn open(rig: &Rig, number: u16) -> Windows {
        let memories = [(); 2].map(|()| Memory::zeroed_shared(BYTES));
        let regions = [0, 1].map(|rank| {
            let Node { proxy, queue, .. } = &rig.nodes[rank];
            let bytes = (0..2).map(|peer| (peer != rank).then_some(BYTES)).collect();
            PostedRegion::register(proxy, queue, number, &memories[rank], bytes).unwrap()
        });
        let places: Vec<Vec<u8>> = regions.iter().map(|region| region.place().unwrap()).collect();
        regions.iter().for_each(|region| region.reach(&places).unwrap());
        Windows { regions, memories }
    }
}

fn bytes(memory: &Memory) -> Vec<u8> {
    crate::tensor::bytes_of(memory).unwrap()
}

/// A user's memory, filled with this value.
fn input(x: u8) -> Memory {
    let memory = Memory::zeroed_shared(BYTES);
    // SAFETY: there is no other handle of the memory yet.
    unsafe { std::ptr::write_bytes(memory.start().as_ptr(), x, BYTES) };
    memory
}

/// Posts `bytes` bytes from the beginning of a memory of rank 0 to a window of rank 1.
fn post(rig: &Rig, number: u16, from: &Memory, (at, bytes): (usize, usize), count: u64) {
    let span = PostedSpan { source: from.start().as_ptr() as u64, destination: at as u64, bytes: bytes as u64 };
    let notice = PostedNotice { slot: 1, value: matched(count), parts: 1, kind: NoticeKind::Data };
    rig.post(0, Posted { peer: 1, target: number, span: Some(span), notice: Some(notice) }, || ());
}

#[test]
fn windows_are_written_exactly_from_memory_that_was_lent() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for provider in ["tcp", "shm"] {
        let rig = Rig::new(2, 8, 512, &options(library, provider));
        let mut count = 0;
        for round in 0..12u16 {
            let (number, x) = (1 + round % 3, round as u8 + 1);
            let windows = Windows::open(&rig, number);
            let from = input(x);
            let lent = [(); 2].map(|()| PostedSource::register(&rig.nodes[0].proxy, &from).unwrap());
            for (at, len) in [(0, 8), (100, 50_000), (BYTES - 3, 3)] {
                count += 1;
                post(&rig, number, &from, (at, len), count);
                rig.until("a write to a window", || rig.slot(1, 1) == matched(count));
                rig.settle();
                let there = bytes(&windows.memories[1]);
                assert_eq!(there[at..at + len], vec![x; len], "{provider}: {len} bytes at {at}");
            }
            let there = bytes(&windows.memories[1]);
            let wrong = (8..100).chain(50_100..BYTES - 3).find(|&at| there[at] != 0);
            assert_eq!(wrong, None, "{provider}");
            assert_eq!(bytes(&windows.memories[0]), vec![0; BYTES], "{provider}: that of rank 0");
            drop(lent);
            drop(windows);
        }
        assert!(rig.nodes.iter().all(|node| node.proxy.error().is_none()));
    }
}

#[test]
fn a_window_that_its_rank_has_dropped_is_never_written() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for provider in ["tcp", "shm"] {
        let rig = Rig::new(2, 8, 512, &options(library, provider));
        let Windows { regions: [own, other], memories } = Windows::open(&rig, 4);
        let from = input(7);
        let _lent = PostedSource::register(&rig.nodes[0].proxy, &from).unwrap();
        post(&rig, 4, &from, (0, 8), 1);
        rig.until("the first write", || rig.slot(1, 1) == matched(1));
        rig.settle();
        drop(other);
        post(&rig, 4, &from, (100, 50_000), 2);
        let since = Instant::now();
        let limit = if provider == "tcp" { PATIENCE } else { Duration::from_millis(300) };
        while rig.nodes[0].proxy.error().is_none() && since.elapsed() < limit {
            rig.nodes.iter().for_each(|node| _ = node.proxy.step());
        }
        // The shm provider says nothing: the drain of the launch ends by its deadline.
        let error = rig.nodes[0].proxy.error();
        match provider {
            "tcp" => assert!(matches!(error, Some(ProxyError::Carrier { peer: Some(1), .. })), "{error:?}"),
            _ => assert!(rig.nodes[0].proxy.settle(), "it is never delivered"),
        }
        let there = bytes(&memories[1]);
        assert_eq!(there[..8], [7; 8], "{provider}");
        assert!(there[8..].iter().all(|&x| x == 0), "{provider}: written after it was dropped");
        assert_eq!(rig.slot(1, 1), matched(1), "{provider}");
        drop(own);
    }
}

/// A window may be lent as well, for a collective that reads it in place. Whichever ends last, the memory stays until
/// peers can no longer write to it.
#[test]
fn the_memory_of_a_window_that_was_lent_is_kept_when_its_last_use_ends() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let mut carriers = carriers(2, &options(library, "tcp"));
    let (mut events, since) = (Vec::new(), Instant::now());
    let mut let_go = |carriers: &mut [FabricCarrier], what: &str| {
        assert!(carriers[1].closing.keeps(), "{what}: the peer has not said that its writes have ended");
        while carriers[1].closing.keeps() {
            carriers.iter_mut().for_each(|carrier| carrier.poll(&mut events).unwrap());
            assert!(since.elapsed() < PATIENCE, "{what}: the memory stays");
        }
    };
    let memory = Memory::zeroed_shared(BYTES);
    // A part of the window is enough.
    for lent in [memory.clone(), memory.part(64, 64)] {
        carriers[1].open(1, &memory, &[0]).unwrap();
        carriers[1].lend(&lent).unwrap();
        carriers[1].close(1);
        assert!(!carriers[1].closing.keeps(), "it is still registered");
        carriers[1].give_back(&lent);
        let_go(&mut carriers, "lent for longer");
        carriers[1].open(1, &memory, &[0]).unwrap();
        carriers[1].lend(&lent).unwrap();
        carriers[1].give_back(&lent);
        carriers[1].close(1);
        let_go(&mut carriers, "open for longer");
    }
    carriers[1].lend(&memory).unwrap();
    carriers[1].give_back(&memory);
    assert!(!carriers[1].closing.keeps(), "no peer ever wrote there");
}

/// The memory of a dropped window goes back to its owner while the transport lives.
#[test]
fn the_memory_of_a_closed_window_is_let_go_when_no_write_can_reach_it() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let bare = |options: FabricOptions| FabricOptions { is_bare: true, ..options };
    for (provider, ways) in [("tcp", 3), ("shm", 3)] {
        for way in 0..ways {
            let options = options(library, provider);
            let options = match way {
                0 => options.confirmation(Confirmation::Provider),
                1 => options.confirmation(Confirmation::Echo),
                _ => bare(options),
            };
            let mut carriers = carriers(3, &options);
            let (mut events, since) = (vec![Vec::new(); 3], Instant::now());
            for round in 0..5u16 {
                let (memory, own) = (Memory::zeroed_shared(BYTES), input(round as u8 + 1));
                carriers[2].open(round + 1, &memory, &[0, 1]).unwrap();
                let place = carriers[2].place(round + 1);
                let target = round + 1;
                for rank in [0, 1] {
                    carriers[rank].reach(2, round + 1, &place).unwrap();
                    carriers[rank].lend(&own).unwrap();
                    let (id, source) = (u64::from(round) + 1, Source::Memory(&own));
                    let write = Write { id, peer: 2, source, target, offset: 0, notice: Some(id as u32) };
                    assert!(carriers[rank].write(&write).unwrap());
                }
                // Without their progress, the writes of the others may be under way.
                let mut poll = |ranks: &[usize], carriers: &mut [FabricCarrier]| {
                    ranks.iter().for_each(|&rank| carriers[rank].poll(&mut events[rank]).unwrap());
                    events.iter().map(Vec::len).collect::<Vec<_>>()
                };
                let done = usize::from(round) + 1;
                while poll(&[0, 1, 2], &mut carriers) != [done, done, 2 * done] {
                    assert!(since.elapsed() < PATIENCE, "{provider}, {way}");
                }
                carriers[2].close(round + 1);
                (0..100).for_each(|_| _ = poll(&[0, 2], &mut carriers));
                assert!(carriers[2].closing.keeps(), "rank 1 has not said that its writes have ended");
                while carriers[2].closing.keeps() {
                    poll(&[0, 1, 2], &mut carriers);
                    assert!(since.elapsed() < PATIENCE, "{provider}, {way}: the memory stays");
                }
                carriers[..2].iter_mut().for_each(|carrier| carrier.give_back(&own));
                assert_eq!(bytes(&memory), vec![round as u8 + 1; BYTES]);
            }
        }
    }
}
