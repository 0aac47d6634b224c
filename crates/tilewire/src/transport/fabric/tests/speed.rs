//! The time of a carrier beside a plain loop over the same provider.

use super::*;

/// Prints the time of a carrier and of a plain loop over the same provider, in one run.
#[test]
#[ignore = "measures: run it alone, on idle cores"]
fn measure() {
    let Some(library) = tilewire_testkit::libfabric::find() else { return };
    const ROUNDS: u64 = 20_000;
    const STREAM: usize = 1 << 20;
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    for provider in ["tcp", "shm"] {
        for confirmation in [Confirmation::Provider, Confirmation::Echo] {
            let (mut small, mut large, mut plain_small, mut plain_large) = (vec![], vec![], vec![], vec![]);
            for _ in 0..7 {
                let options = options(library, provider).confirmation(confirmation);
                let mut pair = carriers(2, &options);
                let memories = [Memory::zeroed_shared(8 * STREAM), Memory::zeroed_shared(8 * STREAM)];
                for rank in [0, 1] {
                    let place = pair[rank].register(&memories[rank]).unwrap();
                    pair[1 - rank].accept(rank, Target::Region(0), &place).unwrap();
                }
                let [one, two] = [1, 0].map(|rank| ping_pong(pair.remove(rank), rank, ROUNDS, &memories[rank]));
                let (ends, times) = std::thread::scope(|scope| {
                    let other = scope.spawn(one);
                    let (a, time) = two();
                    ([a, other.join().unwrap().0], time)
                });
                small.push(times[0]);
                large.push(times[1]);
                drop(ends);
                let [a, b] = plain(library, provider, ROUNDS as u32, STREAM);
                plain_small.push(a);
                plain_large.push(b);
            }
            let [small, large, plain_small, plain_large] = [small, large, plain_small, plain_large].map(median);
            println!(
                "{provider}, {confirmation:?}: 8 bytes {:.2} us, plain {:.2} us, ratio {:.2}; 1 MiB {:.2} GB/s, plain \
                 {:.2} GB/s, ratio {:.2}",
                small * 1e6,
                plain_small * 1e6,
                small / plain_small,
                STREAM as f64 / large / 1e9,
                STREAM as f64 / plain_large / 1e9,
                plain_large / large
            );
        }
    }
}

/// One end of small writes that are answered, and of a stream: seconds of one way, and of one large write.
fn ping_pong(
    mut carrier: FabricCarrier,
    rank: usize,
    rounds: u64,
    memory: &Memory,
) -> impl FnOnce() -> (FabricCarrier, [f64; 2]) + Send {
    let memory = memory.clone();
    move || {
        let (peer, mut events, mut id) = (1 - rank, Vec::new(), 0);
        let mut arrived = 0u64;
        let mut delivered = 0u64;
        let write = |carrier: &mut FabricCarrier, id: u64, source: Source<'_>, offset| {
            let write = Write { id, peer, source, target: Target::Region(0), offset, notice: Some(1) };
            carrier.write(&write).unwrap()
        };
        let mut poll = |carrier: &mut FabricCarrier, arrived: &mut u64, delivered: &mut u64| {
            carrier.poll(&mut events).unwrap();
            for event in events.drain(..) {
                match event {
                    Event::Arrived { .. } => *arrived += 1,
                    Event::Delivered { .. } => *delivered += 1,
                }
            }
        };
        let since = Instant::now();
        for round in 0..rounds {
            if rank == 0 {
                while !write(&mut carrier, id, Source::Inline(&[7; 8]), 0) {
                    poll(&mut carrier, &mut arrived, &mut delivered);
                }
            }
            while arrived <= round {
                poll(&mut carrier, &mut arrived, &mut delivered);
            }
            if rank == 1 {
                while !write(&mut carrier, id, Source::Inline(&[7; 8]), 0) {
                    poll(&mut carrier, &mut arrived, &mut delivered);
                }
            }
            id += 1;
        }
        while delivered < rounds {
            poll(&mut carrier, &mut arrived, &mut delivered);
        }
        let one_way = since.elapsed().as_secs_f64() / (2 * rounds) as f64;
        const LARGE: u64 = 300;
        let part = memory.bytes() / 8;
        let since = Instant::now();
        if rank == 0 {
            for k in 0..LARGE {
                while delivered + 4 <= id
                    || !write(&mut carrier, id, Source::Memory(&memory.part(k as usize % 8 * part, part)), 0)
                {
                    poll(&mut carrier, &mut arrived, &mut delivered);
                }
                id += 1;
            }
            while delivered < id || arrived < rounds + 1 {
                poll(&mut carrier, &mut arrived, &mut delivered);
            }
        } else {
            while arrived < rounds + LARGE {
                poll(&mut carrier, &mut arrived, &mut delivered);
            }
            while !write(&mut carrier, id, Source::Inline(&[7; 8]), 0) {}
            while delivered < id + 1 {
                poll(&mut carrier, &mut arrived, &mut delivered);
            }
        }
        let large = since.elapsed().as_secs_f64() / LARGE as f64;
        (carrier, [one_way, large])
    }
}

/// The times of a plain loop.
fn plain(library: &Path, provider: &str, rounds: u32, bytes: usize) -> [f64; 2] {
    let address = (provider != "shm").then(|| "127.0.0.1".to_string());
    let query = Query { provider: Some(provider.to_string()), address, ordered: false };
    let open = || {
        let provider = Provider::list(Library::open_at(library).unwrap(), &query).unwrap().remove(0);
        tilewire_fabric::Plain::open(Arc::new(provider), 8 * bytes, 5).unwrap()
    };
    let ((mut one, card), (mut two, other)) = (open(), open());
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            two.connect(&card).unwrap();
            two.ping_pong(8, false, rounds).unwrap();
            two.stream(bytes, false, 300, 4).unwrap();
        });
        one.connect(&other).unwrap();
        let small = one.ping_pong(8, true, rounds).unwrap();
        let large = one.stream(bytes, true, 300, 4).unwrap();
        second.join().unwrap();
        [small.as_secs_f64(), large.as_secs_f64() / 300.0]
    })
}
