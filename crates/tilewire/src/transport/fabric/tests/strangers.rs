//! Endpoints that are no rank's, and ranks that are gone.

use super::*;
use tilewire_fabric::Remote;

/// An endpoint that is no rank's, and where it reaches a carrier. It even knows a key, which no stranger does.
struct Stranger {
    endpoint: Endpoint,
    to: Remote,
}

impl Stranger {
    fn new(library: &Path, provider: &str, card: &[u8]) -> Stranger {
        let card = Card::parse(0, card).unwrap();
        let address = (provider != "shm").then(|| "127.0.0.1".to_string());
        let query = Query { provider: Some(provider.to_string()), address, ..Query::default() };
        let provider = Provider::list(Library::open_at(library).unwrap(), &query).unwrap().remove(0);
        let domain = Domain::open(Arc::new(provider)).unwrap();
        let mut endpoint = Endpoint::open(&domain, &EndpointOptions::default()).unwrap();
        let peer = endpoint.peers().insert(&card.address).unwrap();
        // The place of the carrier's own rank, which is never read.
        Stranger { endpoint, to: Remote { peer, address: card.hall.base + 8, key: card.hall.key } }
    }
}

#[test]
fn numbers_of_strangers_are_dropped_and_counted() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for provider in ["tcp", "shm"] {
        let options = options(library, provider);
        let mut carriers = carriers(2, &options);
        let mut memories = Vec::new();
        for rank in [0, 1] {
            let memory = Memory::zeroed_shared(4096);
            let place = carriers[rank].register(&memory).unwrap();
            carriers[1 - rank].accept(rank, 0, &place).unwrap();
            memories.push(memory);
        }
        let mut stranger = Stranger::new(library, provider, &carriers[0].card.to_bytes());
        let mut random = Random::new(1);
        let own = carriers[0].card.cookies.clone();
        let (mut events, mut got, mut sent) = (Vec::new(), Vec::new(), 0);
        let since = Instant::now();
        while sent < 1000 {
            // Notices that would fit a line, with a cookie that was guessed: near a good one, or none. Where numbers
            // are counted, one with the identity of a good one is a loss (`counts.rs`).
            let guess = match sent % 3 {
                0 => 0,
                1 => u64::from(own[1]) ^ 1 << (9 + random.below(23)),
                _ => random.next() >> 32 << 3,
            };
            let number = guess << 32 | random.below_u64(1 << 20) << 12 | 1;
            let source = tilewire_fabric::Source::Copied(&[0xee; 8]);
            if stranger.endpoint.inject_writedata(stranger.to, source, number).unwrap() == Taken::Taken {
                sent += 1;
            }
            stranger.endpoint.poll(&mut got).unwrap();
            carriers[0].poll(&mut events).unwrap();
            assert!(since.elapsed() < PATIENCE);
        }
        while carriers[0].strangers() < sent {
            carriers[0].poll(&mut events).unwrap();
            stranger.endpoint.poll(&mut got).unwrap();
            assert!(since.elapsed() < PATIENCE, "{} of {sent}", carriers[0].strangers());
        }
        assert_eq!(events, [], "{provider}");
        // And those of the peer still arrive.
        let write =
            Write { id: 9, peer: 0, source: Source::Inline(&[1, 2, 3]), target: 0, offset: 5, notice: Some(77) };
        assert!(carriers[1].write(&write).unwrap());
        let mut delivered = Vec::new();
        while delivered.is_empty() || events.is_empty() {
            carriers[0].poll(&mut events).unwrap();
            carriers[1].poll(&mut delivered).unwrap();
            assert!(since.elapsed() < PATIENCE);
        }
        assert_eq!(
            (&events[..], &delivered[..]),
            (&[Event::Arrived { notice: 77 }][..], &[Event::Delivered { id: 9 }][..])
        );
        assert_eq!(crate::tensor::bytes_of(&memories[0]).unwrap()[4..9], [0, 1, 2, 3, 0], "{provider}");
        assert_eq!(carriers[0].strangers(), sent, "{provider}");
    }
}

/// A write of each rank to the other, while both poll and `meanwhile` happens.
#[track_caller]
fn exchange(carriers: &mut [FabricCarrier], id: u64, mut meanwhile: impl FnMut()) {
    let (mut events, since) = (vec![Vec::new(); 2], Instant::now());
    for rank in [0, 1] {
        let (source, target) = (Source::Inline(&[7; 8]), 0);
        let write = Write { id, peer: 1 - rank, source, target, offset: 0, notice: Some(id as u32) };
        assert!(carriers[rank].write(&write).unwrap());
    }
    while events.iter().any(|events| events.len() < 2) {
        for rank in [0, 1] {
            carriers[rank].poll(&mut events[rank]).unwrap();
        }
        meanwhile();
        assert!(since.elapsed() < PATIENCE, "{events:?}");
    }
    for events in events {
        assert!(events.contains(&Event::Arrived { notice: id as u32 }) && events.contains(&Event::Delivered { id }));
    }
}

/// Memory of two ranks that each writes to the other.
fn shared(carriers: &mut [FabricCarrier]) -> [Memory; 2] {
    [0, 1].map(|rank: usize| {
        let memory = Memory::zeroed_shared(4096);
        let place = carriers[rank].register(&memory).unwrap();
        carriers[1 - rank].accept(rank, 0, &place).unwrap();
        memory
    })
}

/// Where a carrier listens, from its address: a `sockaddr_in`.
fn port(card: &[u8]) -> std::net::SocketAddr {
    let address = Card::parse(0, card).unwrap().address;
    assert_eq!(u16::from_ne_bytes([address[0], address[1]]), libc::AF_INET as u16);
    let port = u16::from_be_bytes([address[2], address[3]]);
    ([address[4], address[5], address[6], address[7]], port).into()
}

#[test]
fn garbage_on_the_port_of_a_provider_disturbs_nobody() {
    use std::io::Write as _;
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for confirmation in [Confirmation::Provider, Confirmation::Echo] {
        let mut carriers = carriers(2, &options(library, "tcp").confirmation(confirmation));
        let memories = shared(&mut carriers);
        let address = port(&carriers[0].card.to_bytes());
        let mut random = Random::new(3);
        let mut open = Vec::new();
        for id in 1..=60u64 {
            let mut stranger = std::net::TcpStream::connect(address).unwrap();
            // Nothing, a few bytes, and more than any header; some stay connected.
            let bytes: Vec<u8> = (0..[0, 1, 17, 200, 5000][id as usize % 5]).map(|_| random.next() as u8).collect();
            // The provider may close the connection at any time.
            _ = stranger.write_all(&bytes);
            if id.is_multiple_of(2) {
                open.push(stranger);
            }
            exchange(&mut carriers, id, || ());
        }
        assert_eq!(crate::tensor::bytes_of(&memories[0]).unwrap()[..9], [7, 7, 7, 7, 7, 7, 7, 7, 0]);
    }
}

/// A stranger that knows the address of a rank, guesses a key and goes away: while ranks connect, and afterwards.
#[test]
fn guessed_keys_disturb_nobody() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for provider in ["tcp", "shm"] {
        let options = options(library, provider);
        let opened: Vec<_> = (0..2).map(|rank| FabricCarrier::open(options.clone(), rank, 2).unwrap()).collect();
        let cards: Vec<Option<Vec<u8>>> = opened.iter().map(|(_, card)| Some(card.clone())).collect();
        let mut carriers: Vec<FabricCarrier> = opened.into_iter().map(|(carrier, _)| carrier).collect();
        let mut random = Random::new(5);
        // Over shm, endpoints of one process use each other's memory directly, so these go at the end.
        let mut strangers = Vec::new();
        let mut guess = |carriers: &mut [FabricCarrier], polls: usize| {
            let mut stranger = Stranger::new(library, provider, &cards[0].clone().unwrap());
            stranger.to.key ^= 1 + (random.next() >> 1);
            let (mut got, mut is_sent) = (Vec::new(), false);
            for _ in 0..polls {
                // One write: version 1.17 crashes in a stranger that goes on after its connection has ended. Whatever
                // the provider says, it says it to the stranger.
                let source = tilewire_fabric::Source::Copied(&[0xee; 8]);
                is_sent = is_sent
                    || stranger.endpoint.write_delivered(stranger.to, source, Some(random.next()), 1)
                        != Ok(Taken::Again);
                _ = stranger.endpoint.poll(&mut got);
                for carrier in carriers.iter_mut() {
                    carrier.poll(&mut Vec::new()).unwrap();
                }
            }
            strangers.extend((provider == "shm").then_some(stranger));
        };
        // Rank 0 is listening, and rank 1 has not begun.
        (0..3).for_each(|round| guess(&mut carriers, 1 + 50 * round));
        let mut both: Vec<_> = carriers.iter_mut().map(|carrier| (carrier, cards.clone())).collect();
        connect_all(&mut both).unwrap_or_else(|error| panic!("{provider}: {error}"));
        let _memories = shared(&mut carriers);
        for id in 1..=5 {
            guess(&mut carriers, 40 * id as usize);
            exchange(&mut carriers, id, || ());
        }
    }
}

#[test]
fn a_rank_that_is_gone_is_an_error_with_its_number() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for confirmation in [Confirmation::Provider, Confirmation::Echo] {
        let limit = Duration::from_millis(700);
        let options = options(library, "tcp").confirmation(confirmation).patience(limit);
        let rig = Rig::new(2, 64, 512, &options);
        let Rig { mut nodes, segments, region } = rig;
        nodes.truncate(1);
        let rig = Rig { nodes, segments, region };
        let since = Instant::now();
        let mut count = 0u64;
        // A drain ends with the error as well; the deadline is much later.
        while rig.nodes[0].proxy.error().is_none() {
            count += 1;
            let post = rig.delivery(0, 1, (0, 512), (count as usize % 4, matched(count.div_ceil(4)), 1));
            rig.push(0, &post);
            rig.nodes[0].proxy.step();
            assert!(since.elapsed() < PATIENCE, "{confirmation:?}: no error");
        }
        let error = rig.nodes[0].proxy.error().unwrap();
        assert!(matches!(error, ProxyError::Carrier { peer: Some(1), .. }), "{confirmation:?}: {error}");
        assert!(error.to_string().contains("rank 1 failed"), "{error}");
        let drained = rig.nodes[0].proxy.drain(None);
        assert!(matches!(drained, Err(TransportError::Proxy(_))));
    }
}

#[test]
fn a_rank_that_never_polls_exhausts_the_patience_of_its_peer() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for provider in ["tcp", "shm"] {
        let options = options(library, provider).patience(Duration::from_millis(500)).under_way(1 << 14);
        let mut carriers = carriers(2, &options);
        let (here, there) = (Memory::zeroed_shared(1 << 20), Memory::zeroed_shared(1 << 20));
        carriers[0].register(&here).unwrap();
        let place = carriers[1].register(&there).unwrap();
        carriers[0].accept(1, 0, &place).unwrap();
        let (since, mut id, mut events) = (Instant::now(), 0, Vec::new());
        let error = loop {
            let write = Write { id, peer: 1, source: Source::Memory(&here), target: 0, offset: 0, notice: Some(1) };
            let took = carriers[0].write(&write).and_then(|took| carriers[0].poll(&mut events).map(|()| took));
            match took {
                Ok(took) => id += u64::from(took),
                Err(error) => break error,
            }
            assert!(since.elapsed() < PATIENCE, "{provider}: {id} writes, and no error");
        };
        assert!(
            matches!(&error, ProxyError::Carrier { peer: Some(1), what } if what.contains("took none of")),
            "{error}"
        );
        assert!(since.elapsed() >= Duration::from_millis(500));
    }
}
