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
