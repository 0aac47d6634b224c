//! Numbers that are counted, so that small writes need no confirmation.

use super::*;

/// A rank's memory that the other rank writes as staging.
fn staged(carriers: &mut [FabricCarrier]) -> Memory {
    let memory = Memory::zeroed_shared(4096);
    let place = carriers[1].register(&memory).unwrap();
    carriers[0].accept(1, 0, &place).unwrap();
    memory
}

fn write(id: u64) -> Write<'static> {
    let (source, target) = (Source::Inline(&[7; 8]), 0);
    Write { id, peer: 1, source, target, offset: 0, notice: Some(id as u32) }
}

/// Polls both until `done` looks at the events of each.
#[track_caller]
fn until(
    carriers: &mut [FabricCarrier],
    what: &str,
    mut done: impl FnMut(&mut [FabricCarrier], &[Vec<Event>]) -> bool,
) {
    let (mut events, since) = (vec![Vec::new(); 2], Instant::now());
    while !done(carriers, &events) {
        for rank in [0, 1] {
            carriers[rank].poll(&mut events[rank]).unwrap();
        }
        assert!(since.elapsed() < PATIENCE, "{what}: {events:?}");
    }
}

#[test]
fn small_writes_over_tcp_are_delivered_before_the_peer_has_polled_and_confirmed_when_asked() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let mut carriers = carriers(2, &options(library, "tcp"));
    assert!(carriers[0].choice().counted, "{}", carriers[0].choice().description);
    let memory = staged(&mut carriers);
    let (mut events, since) = (Vec::new(), Instant::now());
    for id in 0..5 {
        assert!(carriers[0].write(&write(id)).unwrap());
    }
    while events.len() < 5 {
        carriers[0].poll(&mut events).unwrap();
        assert!(since.elapsed() < PATIENCE, "{events:?}");
    }
    assert!(events.iter().all(|event| matches!(event, Event::Delivered { .. })));
    assert!(carriers[0].unconfirmed(1).unwrap() >= 5, "the peer has not polled");
    until(&mut carriers, "arrivals", |_, events| events[1].len() == 5);
    until(&mut carriers, "a confirmation", |carriers, _| carriers[0].unconfirmed(1).unwrap() == 0);
    assert_eq!(crate::tensor::bytes_of(&memory).unwrap()[..9], [7, 7, 7, 7, 7, 7, 7, 7, 0]);
    assert_eq!([0, 1].map(|rank: usize| carriers[rank].strangers()), [0, 0]);
}

/// The bound on unconfirmed numbers is what tells a loss from none. The peer does not poll meanwhile.
#[test]
fn fewer_numbers_than_a_count_tells_apart_are_under_way() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let mut carriers = carriers(2, &options(library, "tcp"));
    let _memory = staged(&mut carriers);
    let (mut events, mut taken) = (Vec::new(), 0);
    for _ in 0..1000 {
        taken += u64::from(carriers[0].write(&write(taken)).unwrap());
        carriers[0].poll(&mut events).unwrap();
    }
    assert_eq!(carriers[0].posts.unproven(1), number::COUNTS - 1, "of {taken} that were taken");
    until(&mut carriers, "arrivals", |_, events| events[1].len() as u64 == taken);
    until(&mut carriers, "a confirmation", |carriers, _| carriers[0].unconfirmed(1).unwrap() == 0);
}

#[test]
fn a_lost_write_is_an_error_of_the_receiver_that_names_the_sender() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for lost in [1, 2, number::COUNTS - 4] {
        let mut carriers = carriers(2, &options(library, "tcp"));
        let _memory = staged(&mut carriers);
        assert!(carriers[0].write(&write(1)).unwrap());
        until(&mut carriers, "the first", |_, events| events[1].len() == 1);
        carriers[0].posts.lose(1, lost);
        assert!(carriers[0].write(&write(2)).unwrap());
        let (mut events, since) = (Vec::new(), Instant::now());
        let error = loop {
            carriers[0].poll(&mut events).unwrap();
            events.clear();
            match carriers[1].poll(&mut events) {
                Ok(()) => assert_eq!(events, [], "{lost} are lost"),
                Err(error) => break error,
            }
            assert!(since.elapsed() < PATIENCE);
        };
        assert_eq!(events, []);
        let ProxyError::Carrier { peer: Some(0), what } = error else { panic!("{error}") };
        assert!(what.starts_with("writes of it are missing: the connection to it was lost, over tcp"), "{what}");
        // The provider confirms what the receiver does not accept. The sender is not told that it has arrived.
        for _ in 0..1000 {
            assert!(carriers[0].unconfirmed(1).unwrap() > 0, "{lost} are lost");
            carriers[0].poll(&mut events).unwrap();
            _ = carriers[1].poll(&mut events);
        }
    }
}

/// The peer takes a write, and leaves later. Nobody asked whether it has arrived.
#[test]
fn a_rank_asks_by_itself_so_it_needs_no_peer_that_left_later() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let mut carriers = carriers(2, &options(library, "tcp"));
    let _memory = staged(&mut carriers);
    assert!(carriers[0].write(&write(1)).unwrap());
    until(&mut carriers, "an answer", |carriers, _| carriers[0].posts.unanswered(1) == 0);
    carriers.pop();
    let mut events = Vec::new();
    for _ in 0..100 {
        assert_eq!(carriers[0].unconfirmed(1).unwrap(), 0);
        carriers[0].poll(&mut events).unwrap();
    }
}

/// The peer leaves before it could answer. This rank works on with other ranks, until it needs that peer.
#[test]
fn a_question_that_cannot_be_asked_is_an_error_only_for_a_rank_that_needs_the_peer() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let mut carriers = carriers(2, &options(library, "tcp"));
    let _memory = staged(&mut carriers);
    assert!(carriers[0].write(&write(1)).unwrap());
    let (mut events, since) = (Vec::new(), Instant::now());
    while events.is_empty() {
        carriers[0].poll(&mut events).unwrap();
        assert!(since.elapsed() < PATIENCE);
    }
    carriers.pop();
    let names_it = |error: ProxyError| matches!(error, ProxyError::Carrier { peer: Some(1), .. });
    let error = loop {
        carriers[0].poll(&mut events).unwrap();
        match carriers[0].unconfirmed(1) {
            Ok(left) => assert!(left > 0, "it has not answered"),
            Err(error) => break error,
        }
        assert!(since.elapsed() < 2 * PATIENCE);
    };
    assert!(names_it(error));
    carriers[0].poll(&mut events).unwrap();
    assert!(carriers[0].write(&write(2)).is_err_and(names_it));
}

/// Echoes are numbers, too. A rank that only sends echoes has nothing to wait for.
#[test]
fn echoes_and_answers_need_no_confirmation() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let of = |rank: usize| {
        let way = [Confirmation::Provider, Confirmation::Echo][rank];
        FabricCarrier::open(options(library, "tcp").confirmation(way), rank, 2).unwrap()
    };
    let (mut carriers, cards): (Vec<_>, Vec<_>) = (0..2).map(of).unzip();
    let cards: Cards = cards.into_iter().map(Some).collect();
    connect_all(&mut carriers.iter_mut().map(|carrier| (carrier, cards.clone())).collect::<Vec<_>>()).unwrap();
    assert_eq!([0, 1].map(|rank: usize| carriers[rank].choice().counted), [true, false]);
    let memory = Memory::zeroed_shared(4096);
    let place = carriers[0].register(&memory).unwrap();
    carriers[1].accept(0, 0, &place).unwrap();
    for id in 0..5 {
        assert!(carriers[1].write(&Write { peer: 0, ..write(id) }).unwrap());
    }
    until(&mut carriers, "echoes", |carriers, events| {
        assert_eq!(carriers[0].unconfirmed(1).unwrap(), 0, "it has posted nothing");
        events[0].len() == 5 && events[1].len() == 5
    });
}

/// A drain waits for the confirmation, and names the peer that does not give it.
#[test]
fn a_drain_waits_for_confirmations() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let rig = Rig::new(2, 64, 64, &options(library, "tcp"));
    let at_most = Duration::from_millis(300);
    let post = |count: u64| assert!(rig.push(0, &rig.delivery(0, 1, (0, 8), (0, matched(count), 1))));
    post(1);
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let since = Instant::now();
            while rig.slot(1, 0) < matched(1) || since.elapsed() < at_most {
                rig.nodes[1].proxy.step();
                assert!(since.elapsed() < PATIENCE);
            }
        });
        rig.nodes[0].proxy.drain(Some(PATIENCE)).unwrap();
        peer.join().unwrap();
    });
    assert_eq!(rig.slot(1, 0), matched(1));
    post(2);
    let late = rig.nodes[0].proxy.drain(Some(at_most));
    let late = late.expect_err("the peer does not poll");
    assert!(matches!(late, TransportError::Proxy(ProxyError::Late { peer: 1, posts: 1.. })), "{late}");
}
