//! Two endpoints of one process.

use crate::ends::{Block, End, KEY, LONG, PROVIDERS, drive, library, post, provider, query};
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewire_fabric::{Completion, DmaBuf, Domain, Endpoint, EndpointOptions, FabricError, Library, Posted, Provider};
use tilewire_fabric::{Query, Region, Remote, Source};

/// Guard bytes before and after what is written.
const GUARD: usize = 64;

fn pattern(at: usize, seed: usize) -> u8 {
    (at.wrapping_mul(131) ^ (at >> 8).wrapping_mul(29) ^ seed) as u8 | 1
}

#[test]
fn bytes_arrive_before_their_numbers_and_nothing_beside_them() {
    let Some(library) = library() else { return };
    for name in PROVIDERS {
        let most = 64 << 20;
        let mut ends = End::pair(library, name, most + 2 * GUARD);
        let cards = [ends[0].card(), ends[1].card()];
        let to = [ends[0].meet(&cards[1]), ends[1].meet(&cards[0])];
        for (k, bytes) in [1, 8, 63, 64, 65, 4096, 4097, 65536, 1 << 20, most].into_iter().enumerate() {
            for from in [0, 1] {
                let (here, there) = (ends[from].memory.clone(), ends[1 - from].memory.clone());
                // Every byte of the small ones.
                let places = || (0..bytes).step_by(if bytes > 1 << 17 { 253 } else { 1 }).chain([bytes - 1]);
                let outside = || (0..GUARD).chain(GUARD + bytes..bytes + 2 * GUARD);
                places().for_each(|at| here.set(GUARD + at, pattern(at, k)));
                places().for_each(|at| there.set(GUARD + at, 0));
                outside().for_each(|at| there.set(at, 0));
                let place = Remote { address: to[from].address + GUARD as u64, ..to[from] };
                let (data, token) = (0xfeed_0000_0000_0000 | k as u64, k as u64);
                post(&mut ends, from, |end| {
                    let region = end.region.clone();
                    end.endpoint.writedata(place, (&region, GUARD, bytes), data, token).unwrap()
                });
                drive(&mut ends, |ends| ends[1 - from].take(&Completion::Arrived { data }));
                let wrong = places().find(|&at| there.get(GUARD + at) != pattern(at, k));
                assert_eq!(wrong, None, "{name}: byte of {bytes} when their number is there");
                assert_eq!(outside().find(|&at| there.get(at) != 0), None, "{name}: beside {bytes} bytes");
                drive(&mut ends, |ends| ends[from].take(&Completion::Done { token }));
            }
        }
        assert!(ends.iter().all(|end| end.got.is_empty() && end.endpoint.under_way() == 0), "{name}: nothing else");
    }
}

#[test]
fn a_delivered_write_is_in_the_peers_memory_and_its_next_poll_says_so() {
    let Some(library) = library() else { return };
    for name in PROVIDERS {
        let mut ends = End::pair(library, name, 1 << 20);
        assert!(ends[0].endpoint.provider().confirms_delivery(), "{name}");
        let card = ends[1].card();
        let to = ends[0].meet(&card);
        for round in 0..300u64 {
            let bytes = [1, 8, 64, 4096, 100_000][round as usize % 5];
            let x = round as u8 | 1;
            ends[0].memory.set(bytes - 1, x);
            ends[1].memory.set(bytes - 1, 0);
            let copied = vec![x; bytes];
            let is_copied = bytes <= 64 && round % 2 == 0;
            let data = (round % 3 > 0).then_some(round | 0xabcd << 48);
            post(&mut ends, 0, |end| {
                let region = end.region.clone();
                let source = match is_copied {
                    true => Source::Copied(&copied),
                    false => Source::Region { region: &region, offset: 0, bytes },
                };
                end.endpoint.write_delivered(to, source, data, round).unwrap()
            });
            drive(&mut ends, |ends| ends[0].take(&Completion::Done { token: round }));
            assert_eq!(ends[1].memory.get(bytes - 1), x, "{name}: {bytes} bytes");
            ends[1].poll();
            if let Some(data) = data {
                assert!(ends[1].take(&Completion::Arrived { data }), "{name}: after one poll");
            }
        }
    }
}

#[test]
fn a_few_bytes_are_copied_when_they_are_posted() {
    let Some(library) = library() else { return };
    for name in PROVIDERS {
        let mut ends = End::pair(library, name, 4096);
        let card = ends[1].card();
        let to = ends[0].meet(&card);
        for k in 0..100u64 {
            let mut bytes = k.to_le_bytes();
            post(&mut ends, 0, |end| end.endpoint.inject_writedata(to, Source::Copied(&bytes), !k).unwrap());
            bytes.fill(0xff);
            drive(&mut ends, |ends| ends[1].take(&Completion::Arrived { data: !k }));
            let got = std::array::from_fn(|at| ends[1].memory.get(at));
            assert_eq!(u64::from_le_bytes(got), k, "{name}");
        }
        post(&mut ends, 0, |end| end.endpoint.inject_write(to, Source::Copied(&[7; 8])).unwrap());
        drive(&mut ends, |ends| ends[1].memory.get(7) == 7);
    }
}

#[test]
fn more_than_fits_is_told_to_come_again_and_nothing_is_lost() {
    let Some(library) = library() else { return };
    for name in PROVIDERS {
        const WRITES: usize = 3000;
        let options = EndpointOptions { under_way: 16, ..EndpointOptions::default() };
        let mut ends = [(); 2].map(|()| End::open(library, name, WRITES * 8, &options));
        let card = ends[1].card();
        let to = ends[0].meet(&card);
        let (mut again, mut arrived) = (0, vec![false; WRITES]);
        (0..WRITES * 8).for_each(|at| ends[0].memory.set(at, pattern(at, 5)));
        let since = Instant::now();
        for k in 0..WRITES {
            let place = Remote { address: to.address + 8 * k as u64, ..to };
            loop {
                let region = ends[0].region.clone();
                match ends[0].endpoint.writedata(place, (&region, 8 * k, 8), k as u64, k as u64).unwrap() {
                    Posted::Taken => break,
                    Posted::Again => again += 1,
                }
                ends.iter_mut().for_each(End::poll);
                assert!(since.elapsed() < LONG);
            }
        }
        drive(&mut ends, |ends| {
            for completion in ends[1].got.drain(..) {
                let Completion::Arrived { data } = completion else { panic!("{completion:?}") };
                assert!(!std::mem::replace(&mut arrived[data as usize], true), "{name}: number {data} twice");
            }
            arrived.iter().all(|&is| is) && ends[0].endpoint.under_way() == 0
        });
        assert!(again > 0, "{name}");
        assert_eq!(ends[0].got.len(), WRITES, "{name}: every write is complete once");
        assert_eq!((0..WRITES * 8).find(|&at| ends[1].memory.get(at) != pattern(at, 5)), None, "{name}");
    }
}

#[test]
fn a_wrong_key_writes_nothing() {
    let Some(library) = library() else { return };
    for name in PROVIDERS {
        let mut ends = End::pair(library, name, 4096);
        assert_eq!(ends[1].region.key(), KEY, "{name}: the key that was chosen");
        let card = ends[1].card();
        let to = ends[0].meet(&card);
        ends[0].memory.set(0, 9);
        // Connected, with the right key.
        post(&mut ends, 0, |end| end.endpoint.inject_writedata(to, Source::Copied(&[1]), 1).unwrap());
        drive(&mut ends, |ends| ends[1].take(&Completion::Arrived { data: 1 }));
        let wrong = Remote { key: to.key ^ 0x10, ..to };
        post(&mut ends, 0, |end| {
            let region = end.region.clone();
            end.endpoint
                .write_delivered(wrong, Source::Region { region: &region, offset: 0, bytes: 8 }, None, 5)
                .unwrap()
        });
        let since = Instant::now();
        let waits = if name == "tcp" { LONG } else { Duration::from_millis(300) };
        let failed = loop {
            ends.iter_mut().for_each(End::poll);
            let failed = ends[0].got.iter().find_map(|completion| match completion {
                Completion::Failed { token: Some(5), error } => Some(error.clone()),
                _ => None,
            });
            if failed.is_some() || since.elapsed() > waits {
                break failed;
            }
        };
        assert_eq!(ends[1].memory.get(0), 1, "{name}: nothing was written");
        // The shm provider of all versions seen so far says nothing.
        if name == "tcp" {
            let text = failed.expect("an error").to_string();
            assert!(text.contains("anceled") || text.contains("rejected") || text.contains("denied"), "{name}: {text}");
        }
    }
}

#[test]
fn offsets_above_4_gib_are_exact() {
    let Some(library) = library() else { return };
    const BYTES: usize = 5 << 30;
    // SAFETY: new memory, without swap behind it: pages come when they are touched.
    let start = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(std::ptr::null_mut(), BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    let start = std::ptr::NonNull::new(start.cast::<u8>()).unwrap();
    for name in PROVIDERS {
        let mut ends = End::pair(library, name, 4096);
        // SAFETY: mapped until the process ends.
        ends[1].region = unsafe { ends[1].endpoint.register(start, BYTES, KEY + 1, Arc::new(())) }.unwrap();
        let card = ends[1].card();
        let to = ends[0].meet(&card);
        let at = (4 << 30) + 77;
        let place = Remote { address: to.address + at as u64, ..to };
        post(&mut ends, 0, |end| end.endpoint.inject_writedata(place, Source::Copied(&[0xa7; 3]), 3).unwrap());
        drive(&mut ends, |ends| ends[1].take(&Completion::Arrived { data: 3 }));
        // SAFETY: inside; nobody writes there now.
        let read = |at: usize| unsafe { start.as_ptr().add(at).read_volatile() };
        assert_eq!([at - 1, at, at + 2, at + 3].map(read), [0, 0xa7, 0xa7, 0], "{name}");
        assert_eq!(read(77), 0, "{name}: not modulo 4 GiB");
        // SAFETY: as above.
        (at..at + 3).for_each(|at| unsafe { start.as_ptr().add(at).write_volatile(0) });
    }
    // SAFETY: mapped above, and no region of it is left.
    unsafe { libc::munmap(start.as_ptr().cast(), BYTES) };
}

/// Keys of few bytes collide even if they are random.
#[test]
fn regions_with_the_same_key_get_different_ones() {
    let Some(library) = library() else { return };
    for name in PROVIDERS {
        let mut ends = End::pair(library, name, 4096);
        let others: Vec<(Region, Arc<Block>)> = (0..20)
            .map(|_| {
                let memory = Block::new(4096);
                // SAFETY: the block is kept, and nobody makes a reference to its bytes.
                let region = unsafe { ends[1].endpoint.register(memory.start(), 4096, KEY, memory.clone()) };
                (region.unwrap(), memory)
            })
            .collect();
        let all: HashSet<u64> = others.iter().map(|(region, _)| region.key()).chain([ends[1].region.key()]).collect();
        assert_eq!(all.len(), 21, "{name}");
        // Each key is that of its own memory.
        let card = ends[1].card();
        let peer = ends[0].meet(&card).peer;
        for (x, (region, memory)) in others.iter().enumerate() {
            let x = x as u8 + 1;
            ends[0].memory.set(0, x);
            let to = Remote { peer, address: region.base(), key: region.key() };
            post(&mut ends, 0, |end| {
                let own = end.region.clone();
                end.endpoint.writedata(to, (&own, 0, 1), x.into(), x.into()).unwrap()
            });
            drive(&mut ends, |ends| ends[1].take(&Completion::Arrived { data: x.into() }));
            assert_eq!(memory.get(0), x, "{name}");
            drive(&mut ends, |ends| ends[0].take(&Completion::Done { token: x.into() }));
        }
    }
}

#[test]
fn regions_outlive_the_writes_from_them() {
    let Some(library) = library() else { return };
    for name in PROVIDERS {
        const BYTES: usize = 8 << 20;
        let mut ends = End::pair(library, name, BYTES);
        let card = ends[1].card();
        let to = ends[0].meet(&card);
        let extra = Block::new(BYTES);
        (0..BYTES).for_each(|at| extra.set(at, pattern(at, 3)));
        let watch = Arc::downgrade(&extra);
        // SAFETY: the block is kept by the region, and nobody makes a reference to its bytes.
        let region = unsafe { ends[0].endpoint.register(extra.start(), BYTES, 77, extra.clone()) }.unwrap();
        drop(extra);
        post(&mut ends, 0, |end| end.endpoint.writedata(to, (&region, 0, BYTES), 1, 1).unwrap());
        drop(region);
        assert!(watch.upgrade().is_some() || ends[0].got.len() == 1, "{name}: kept while it is read");
        drive(&mut ends, |ends| ends[1].take(&Completion::Arrived { data: 1 }));
        assert_eq!((0..BYTES).find(|&at| ends[1].memory.get(at) != pattern(at, 3)), None, "{name}");
        drive(&mut ends, |ends| ends[0].take(&Completion::Done { token: 1 }));
        assert!(watch.upgrade().is_none(), "{name}: and no longer");
    }
}

#[test]
fn misuse_is_an_error_with_values() {
    let Some(library) = library() else { return };
    for name in PROVIDERS {
        let mut ends = End::pair(library, name, 4096);
        let card = ends[1].card();
        let to = ends[0].meet(&card);
        let region = ends[0].region.clone();
        let refused = ends[0].endpoint.write(to, (&region, 4000, 97), 0).unwrap_err();
        assert_eq!(refused, FabricError::Range { offset: 4000, bytes: 97, region: 4096 });
        assert!(ends[0].endpoint.write(to, (&region, usize::MAX, 2), 0).is_err());
        let most = ends[0].endpoint.provider().inject_bytes();
        let refused = ends[0].endpoint.inject_write(to, Source::Copied(&vec![0; most + 1])).unwrap_err();
        assert_eq!(refused, FabricError::TooLong { bytes: most + 1, most });
        // A peer and a region of the other end.
        let region = ends[1].region.clone();
        assert_eq!(ends[0].endpoint.write(to, (&region, 0, 8), 0), Err(FabricError::Foreign));
        assert_eq!(ends[1].endpoint.write(to, (&region, 0, 8), 0), Err(FabricError::Foreign));
        for bad in [&b""[..], &[7; 5000]] {
            let refused = ends[0].endpoint.peers().insert(bad).unwrap_err();
            assert_eq!(refused, FabricError::Address { provider: provider(library, name).name(), bytes: bad.len() });
        }
        if name == "tcp" {
            assert!(ends[0].endpoint.peers().insert(&[2; 5]).is_err(), "not as long as its own");
        }
    }
}

#[test]
fn a_library_that_is_absent_or_another_is_named_with_the_remedy() {
    let absent = Library::open_at(Path::new("/nowhere/libfabric.so.1")).unwrap_err();
    let text = absent.to_string();
    for word in ["/nowhere/libfabric.so.1", "libfabric1", "dnf", "conda", "TILEWIRE_LIBFABRIC"] {
        assert!(text.contains(word), "{text}");
    }
    let other = Library::open_at(Path::new("libc.so.6")).unwrap_err();
    assert_eq!(other, FabricError::Symbol { library: "libc.so.6".to_string(), name: "fi_version" });
    let zero = Library::open_at(Path::new("a\0b")).unwrap_err();
    assert!(matches!(zero, FabricError::Absent { .. }), "{zero}");
}

#[test]
fn providers_say_what_they_are() {
    let Some(library) = library() else { return };
    assert!(library.version() >= (1, 11), "{library:?}");
    let all = Provider::list(library, &Query::default()).unwrap();
    println!("{library:?}");
    all.iter().for_each(|provider| println!("  {provider}"));
    let tcp = provider(library, "tcp");
    assert!(tcp.name().starts_with("tcp") && tcp.device() == "lo", "{tcp}");
    assert_eq!((tcp.data_bytes(), tcp.has_chosen_keys(), tcp.key_bytes()), (8, true, 8), "{tcp}");
    assert!(tcp.inject_bytes() >= 64 && tcp.keeps_write_order() && tcp.confirms_delivery(), "{tcp}");
    let shm = provider(library, "shm");
    assert!(!shm.keeps_write_order(), "the fast mode: {shm}");
    let ordered = Provider::list(library, &Query { ordered: true, ..query("shm") }).unwrap();
    assert!(ordered[0].keeps_write_order(), "{}", ordered[0]);
    let none = Provider::list(library, &query("nonesuch")).unwrap_err();
    assert!(none.to_string().contains("nonesuch at 127.0.0.1"), "{none}");
    assert!(Provider::list(library, &query("a\0b")).is_err());
}

/// Memory of devices is registered only by providers that were asked for it, in a library that knows how.
#[test]
fn memory_of_devices_needs_a_provider_that_was_asked_for_it() {
    let Some(library) = library() else { return };
    for name in PROVIDERS {
        let asked = Provider::list(library, &Query { device_memory: true, ..query(name) });
        match asked {
            // Whatever software providers say: nobody asks them for memory of devices.
            Ok(all) => assert!(library.knows_dma_bufs() && all.iter().all(Provider::registers_device_memory)),
            Err(error) if library.knows_dma_bufs() => assert!(error.code().is_some(), "{error}"),
            Err(error) => {
                assert_eq!(error, FabricError::NoDmaBufs { version: library.version() });
                assert!(error.to_string().ends_with("at least 1.20 is needed"), "{error}");
            }
        }
        let provider = provider(library, name);
        assert!(!provider.registers_device_memory(), "{provider}");
        let endpoint = Endpoint::open(&Domain::open(Arc::new(provider)).unwrap(), &EndpointOptions::default()).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let dma_buf = DmaBuf { descriptor: file.as_fd(), base: 1 << 40, offset: 0, bytes: 64, device: 0 };
        // SAFETY: it is refused, so nobody touches these bytes.
        let refused = unsafe { endpoint.register_dma_buf(dma_buf, 1, Arc::new(())) }.unwrap_err();
        assert!(matches!(refused, FabricError::NoDeviceMemory { .. }), "{refused}");
    }
}

#[test]
fn endpoints_come_and_go() {
    let Some(library) = library() else { return };
    for name in PROVIDERS {
        let domain = Domain::open(Arc::new(provider(library, name))).unwrap();
        let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let mut before = None;
        for round in 0..20 {
            let mut one = Endpoint::open(&domain, &EndpointOptions { descriptor: true, ..Default::default() }).unwrap();
            assert_eq!(one.descriptor().is_some(), name == "tcp", "{name}");
            let _ = one.poll(&mut Vec::new()).unwrap();
            drop(one);
            // Other tests of this process open files as well.
            match before {
                None if round == 10 => before = Some(files()),
                Some(before) => assert!(files() < before + 400, "{name}: descriptors are lost"),
                None => {}
            }
        }
    }
}
