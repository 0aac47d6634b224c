//! Numbers that outgrow small ones: many posts through a small ring, large counts, and large offsets.

use super::*;

/// The peer takes posts as slowly as it likes: none is lost, and all arrive in order.
#[test]
fn fifteen_hundred_posts_pass_a_ring_of_sixteen() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    const POSTS: u64 = 1500;
    for provider in ["tcp", "shm"] {
        let rig = Rig::new(2, 16, POSTS as usize * 8, &options(library, provider));
        for count in 1..=POSTS {
            let at = (count as usize - 1) * 8;
            (at..at + 8).for_each(|at| rig.put(0, at, (at % 251) as u8));
            let last = rig.slot(1, 0);
            rig.post(0, rig.delivery(0, 1, (at, 8), (0, matched(count), 1)), || assert!(rig.slot(1, 0) >= last));
        }
        rig.until("the last post", || rig.slot(1, 0) == matched(POSTS));
        let wrong = (0..POSTS as usize * 8).find(|&at| rig.arrived(1, 0, at) != (at % 251) as u8);
        assert_eq!(wrong, None, "{provider}");
        rig.settle();
    }
}

/// A count goes on over the ends of 31 and 32 bits, in lines with and without an operation.
#[test]
fn counts_pass_two_to_the_31_and_32() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for (name, options) in ways(library) {
        let rig = Rig::new(2, 4, 64, &options);
        for (line, shift) in [(0, COUNT_SHIFT), (EACH - 1, 0)] {
            for end in [1u64 << 31, 1 << 32] {
                for count in (end - 3..end + 4).chain([end + 1000, end + 1001]) {
                    rig.put(0, 0, count as u8);
                    rig.post(0, rig.delivery(0, 1, (0, 1), (line, count << shift, 1)), || ());
                    rig.until("a large count", || rig.slot(1, line) == count << shift);
                    assert_eq!(rig.arrived(1, 0, 0), count as u8, "{name}, line {line}, count {count:#x}");
                }
            }
        }
        rig.settle();
    }
}

/// The pages that nobody touches take no memory.
#[test]
fn bytes_beyond_four_gibibytes_are_written_where_they_belong() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    const FAR: usize = (4 << 30) + 12_345;
    const BYTES: usize = FAR + 8192;
    for provider in ["tcp", "shm"] {
        let mut carriers = carriers(2, &options(library, provider));
        let (source, target) = (Memory::zeroed_shared(BYTES), Memory::zeroed_shared(BYTES));
        let byte = |memory: &Memory, at: usize| {
            assert!(at < BYTES);
            // SAFETY: the byte is inside the memory, which lives until the end of the test, and is read by atomics.
            unsafe { AtomicU8::from_ptr(memory.start().as_ptr().add(at)) }.load(Ordering::Relaxed)
        };
        // SAFETY: the range is inside the memory, and nobody else has it yet.
        unsafe { std::ptr::write_bytes(source.start().as_ptr().add(FAR), 7, 4096) };
        let place = carriers[1].register(&target).unwrap();
        carriers[0].register(&source).unwrap();
        carriers[0].accept(1, 0, &place).unwrap();
        let part = source.part(FAR, 4096);
        let write =
            Write { id: 1, peer: 1, source: Source::Memory(&part), target: 0, offset: FAR as u64, notice: Some(5) };
        let (since, mut events) = (Instant::now(), Vec::new());
        while !carriers[0].write(&write).unwrap() {
            assert!(since.elapsed() < PATIENCE);
        }
        while !events.contains(&Event::Arrived { notice: 5 }) {
            assert!(since.elapsed() < PATIENCE, "{provider}: {events:?}");
            for carrier in &mut carriers {
                carrier.poll(&mut events).unwrap();
            }
        }
        let wrong = (FAR - 64..FAR + 4096 + 64)
            .find(|&at| byte(&target, at) != if (FAR..FAR + 4096).contains(&at) { 7 } else { 0 });
        assert_eq!(wrong, None, "{provider}");
        // An offset that lost its upper half would have written here.
        let low = FAR % (1 << 32);
        assert!((low - 64..low + 4096 + 64).all(|at| byte(&target, at) == 0), "{provider}");
    }
}

/// A change of a descriptor.
type Damage = dyn Fn(&mut Posted);

/// What a kernel must not post: the rank breaks with a cause that says what, and no byte of the peer changes.
#[test]
fn a_damaged_descriptor_breaks_the_rank_and_writes_nothing() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let of = |rig: &Rig, change: &dyn Fn(&mut Posted)| {
        let mut post = rig.delivery(0, 1, (0, 8), (0, matched(1), 1));
        change(&mut post);
        post
    };
    let span = |change: &'static dyn Fn(&mut PostedSpan)| {
        move |post: &mut Posted| change(post.span.as_mut().expect("a delivery has bytes"))
    };
    let beyond = span(&|span| span.destination = 1 << 33);
    let wraps = span(&|span| span.destination = u64::MAX - 3);
    let large = span(&|span| span.bytes = 1 << 40);
    let foreign = span(&|span| span.source = 4096);
    let damages: [(&str, &Damage); 7] = [
        ("beyond the region", &beyond),
        ("wraps around", &wraps),
        ("more than everything", &large),
        ("not this rank's memory", &foreign),
        ("no such peer", &|post| post.peer = 9),
        ("itself", &|post| post.peer = 0),
        ("another's line", &|post| post.notice.as_mut().expect("it has one").slot = EACH as u64),
    ];
    for provider in ["tcp", "shm"] {
        for (name, damage) in damages {
            let rig = Rig::new(2, 16, 256, &options(library, provider));
            (0..8).for_each(|at| rig.put(0, at, 9));
            assert!(rig.push(0, &of(&rig, damage)));
            let since = Instant::now();
            while rig.nodes[0].proxy.error().is_none() {
                rig.nodes[0].proxy.step();
                assert!(since.elapsed() < PATIENCE, "{provider}: {name} is not refused");
            }
            for _ in 0..1000 {
                rig.nodes[1].proxy.step();
            }
            assert_eq!(rig.nodes[1].proxy.error(), None, "{provider}: {name}");
            assert!((0..256).all(|at| rig.arrived(1, 0, at) == 0), "{provider}: {name}");
            assert!((0..2 * EACH).all(|line| rig.slot(1, line) == 0), "{provider}: {name}");
            let spoilt = rig.guards().find(|&(rank, at)| rig.byte(rank, at).load(Ordering::Relaxed) != GUARD_BYTE);
            assert_eq!(spoilt, None, "{provider}: {name}");
        }
    }
}
