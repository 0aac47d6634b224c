//! Choosing a provider, connecting, and what is refused.

use super::*;

#[test]
fn without_a_name_the_first_provider_that_passes_its_trial_is_taken() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let mut options = FabricOptions::default().library(library).address("127.0.0.1");
    options.provider = None;
    let (carrier, _) = FabricCarrier::open(options, 0, 2).unwrap();
    let choice = carrier.choice();
    // No machine of the tests has another one at the loopback address; shm is never taken.
    assert!(choice.provider.starts_with("tcp") && choice.device == "lo" && !choice.named, "{choice}");
    let over: Vec<&str> = choice.passed_over.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(over, ["verbs", "efa", "cxi"]);
    assert!(choice.passed_over.iter().all(|(_, why)| why.contains("no provider")), "{:?}", choice.passed_over);
    assert!(choice.to_string().ends_with("(after verbs, efa, cxi failed)"), "{choice}");
    assert_eq!((choice.numbers, choice.confirmation), (Numbers::Guarded, Confirmation::Provider));
}

#[test]
fn a_network_that_is_not_there_says_what_was_tried() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let open = |options: FabricOptions| FabricCarrier::open(options, 0, 2).map(|_| ()).unwrap_err();
    let error = open(options(library, "nonesuch"));
    assert!(matches!(&error, NetworkError::NoProvider { tried } if tried[0].0 == "nonesuch"), "{error}");
    let error = open(options(library, "tcp").address("nonesuch0"));
    assert!(error.to_string().contains("no device \"nonesuch0\"; it has") && error.to_string().contains("\"lo\""));
    let error = open(options(library, "tcp").library("/nowhere/libfabric.so.1"));
    assert!(matches!(error, NetworkError::Fabric(_)) && error.to_string().contains("libfabric1"), "{error}");
    // Numbers without cookies need a provider that confirms, because an echo must say whose it is.
    let bare = FabricOptions { is_bare: true, ..options(library, "tcp") };
    let error = open(bare.confirmation(Confirmation::Echo));
    assert!(error.to_string().contains("no room for a confirmation by the peer"), "{error}");
    // An interface instead of an address.
    let (carrier, _) = FabricCarrier::open(options(library, "tcp").address("lo"), 0, 2).unwrap();
    assert_eq!(carrier.choice().device, "lo");
    assert!(carrier.choice().to_string().ends_with("(as named)"));
}

#[test]
fn ranks_that_cannot_meet_are_named() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let open = |provider: &str, rank| {
        FabricCarrier::open(options(library, provider).hello(Duration::from_millis(300)), rank, 3).unwrap()
    };
    let ((mut tcp, card), (_shm, other)) = (open("tcp", 0), open("shm", 1));
    let error = tcp.connect(&[Some(card.clone()), Some(other), None]).unwrap_err();
    let NetworkError::Differ { own: (0, own), other: (1, other) } = &error else { panic!("{error}") };
    assert!(own.starts_with("tcp") && other.starts_with("shm"), "{error}");

    // Rank 1 is there and never says hello; rank 2 is not to be connected.
    for provider in ["tcp", "shm"] {
        let ((mut carrier, own), (_silent, card)) = (open(provider, 0), open(provider, 1));
        let error = carrier.connect(&[Some(own), Some(card), None]).unwrap_err();
        let NetworkError::Silent { unheard, unconfirmed, waited: 300, .. } = &error else { panic!("{error}") };
        assert_eq!((&unheard[..], &unconfirmed[..]), (&[1][..], &[1][..]), "{error}");
    }

    let damaged = tcp.connect(&[None, Some(card[..20].to_vec())]).unwrap_err();
    assert!(matches!(damaged, NetworkError::Card { rank: 1, .. }), "{damaged}");
}

#[test]
fn what_is_not_registered_or_outside_is_refused() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let mut carriers = carriers(2, &options(library, "shm"));
    let memory = Memory::zeroed_shared(4096);
    let place = carriers[1].register(&memory).unwrap();
    carriers[0].accept(1, 3, &place).unwrap();
    let own = Memory::zeroed_shared(4096);
    let write = |peer, source, target, offset| Write { id: 1, peer, source, target, offset, notice: None };
    let mut refused = |write: Write<'_>, words: &str| {
        let error = carriers[0].write(&write).unwrap_err();
        let ProxyError::Carrier { peer: Some(peer), what } = &error else { panic!("{error}") };
        assert!(*peer == write.peer && what.contains(words), "{error}");
    };
    refused(write(1, Source::Memory(&own), 3, 0), "not registered");
    refused(write(1, Source::Inline(&[1; 8]), 3, 4089), "8 bytes at byte 4089");
    refused(write(1, Source::Inline(&[1; 8]), 3, u64::MAX), "which has 4096 bytes");
    refused(write(1, Source::Inline(&[1; 8]), 0, 0), "has not told");
    refused(write(1, Source::Inline(&[1; 65]), 3, 0), "at most 64");
    refused(write(0, Source::Inline(&[1; 8]), 3, 0), "not connected");
    refused(write(7, Source::Inline(&[1; 8]), 3, 0), "not connected");
    let unconnected = carriers[0].accept(0, 9, &place).unwrap_err();
    assert_eq!(unconnected, NetworkError::Unconnected { peer: 0 });
    carriers[0].register(&own).unwrap();
    assert!(carriers[0].write(&write(1, Source::Memory(&own), 3, 0)).unwrap());
    let (whole, part) = (carriers[0].register(&own).unwrap(), carriers[0].register(&own.part(100, 50)).unwrap());
    let [whole, part] = [whole, part].map(|place| Place::parse(0, &place).unwrap());
    assert_eq!(part, Place { base: whole.base + 100, bytes: 50, ..whole });
    // The memory is unregistered as often as it was registered.
    let ends = [&own.part(100, 50), &own, &own].map(|memory| carriers[0].unregister(memory));
    assert_eq!(ends, [false, false, true]);
    assert!(carriers[0].write(&write(1, Source::Memory(&own), 3, 0)).is_err());
}

#[test]
fn a_rank_sleeps_on_its_descriptor_until_a_write_comes() {
    use std::os::fd::AsRawFd;
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    let mut carriers = carriers(2, &options(library, "tcp").descriptor(true));
    let place = carriers[1].register(&Memory::zeroed_shared(64)).unwrap();
    carriers[0].accept(1, 0, &place).unwrap();
    let mut sleeper = carriers.pop().unwrap();
    let mut writer = carriers.pop().unwrap();
    // The first write waits until the other side is about to sleep: it might find all of them before otherwise.
    let (tired, is_tired) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let asleep = scope.spawn(move || {
            let (mut slept, mut events, since) = (0, Vec::new(), Instant::now());
            while events.len() < 20 {
                assert!(since.elapsed() < PATIENCE);
                if sleeper.may_sleep() {
                    // The other end is gone if that side failed, which its thread reports.
                    let _ = tired.send(());
                    let fd = sleeper.descriptor().expect("asked for").as_raw_fd();
                    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                    // SAFETY: one valid structure.
                    unsafe { libc::poll(&mut poll, 1, 1000) };
                    slept += 1;
                }
                sleeper.poll(&mut events).unwrap();
            }
            // Closed later: the last write must be confirmed before.
            (slept, sleeper)
        });
        is_tired.recv().expect("the other side sleeps at some time");
        let since = Instant::now();
        for id in 0..20 {
            let write =
                Write { id, peer: 1, source: Source::Inline(&[7; 8]), target: 0, offset: 0, notice: Some(id as u32) };
            assert!(writer.write(&write).unwrap());
            let mut events = Vec::new();
            while events.is_empty() {
                writer.poll(&mut events).unwrap();
                assert!(since.elapsed() < PATIENCE);
            }
        }
        assert!(asleep.join().unwrap().0 > 0);
    });
}

/// What carriers let the provider copy goes another way than registered memory, so the trial tries that, too.
#[test]
fn a_trial_tries_every_way_in_which_carriers_write() {
    use super::super::trial::Trial;
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    for name in ["tcp", "shm"] {
        let address = (name == "tcp").then(|| "127.0.0.1".to_string());
        let query = Query { provider: Some(name.to_string()), address, ..Query::default() };
        let provider = Provider::list(Library::open_at(library).unwrap(), &query).unwrap().remove(0);
        let domain = Domain::open(Arc::new(provider)).unwrap();
        for confirmation in [Confirmation::Provider, Confirmation::Echo] {
            for (inject_bytes, writes) in [(usize::MAX, 3), (0, 2)] {
                let mut endpoint = Endpoint::open(&domain, &EndpointOptions::default()).unwrap();
                let tried = Trial::run(&mut endpoint, confirmation, Numbers::Guarded, inject_bytes, None);
                assert_eq!(tried, Ok(writes), "{name}, {confirmation:?}");
            }
        }
    }
}
