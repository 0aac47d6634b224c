//! A user's tables whose banks are counted in two ways are refused. Those that are counted in one way work, whoever
//! made them.

use super::{assert_all_failed, outcomes};
use tilewire::collective::Launch;
use tilewire::hook::MisuseKind;
use tilewire::link::{ShmTransport, Transport};
use tilewire::transport::{PeerEndpoint, Rank};
use tilewire::vm::{PrepareError, Prepared};
use tilewire::{Memory, RunError, Tensor, kernel};

const STRIDE: u32 = PeerEndpoint::SLOT_STRIDE;

#[test]
fn a_table_of_credits_and_data_is_refused_when_it_is_built() {
    let refused = outcomes(2, |world, link| {
        let end = link.endpoint(world.rank().after(1, 2)).unwrap();
        let own = Tensor::<u64>::zeros(end.here.signals.tail.bytes() / 8);
        let tables = [
            ("signals", [end.mapped().unwrap().signals.head.clone(), end.here.signals.tail.clone()], [1, 0]),
            ("filled", [end.here.signals.tail.clone(), own.memory().clone()], [0, 1]),
        ];
        for (name, banks, [carries, bare]) in tables {
            let line = line!() + 2;
            let traced = kernel("mixed", |k| {
                let slots = k.slots(name, &banks, STRIDE);
                k.main(|r| r.wait(slots.slot(1, 0), 1));
            });
            let error = traced.expect_err("credits would be shifted");
            let [misuse] = error.misuses() else { panic!("{error}") };
            let MisuseKind::MixedBanks { name: table, mixed } = &misuse.kind else { panic!("{error}") };
            assert_eq!(
                (&**table, mixed.carries.0, mixed.bare.0, misuse.at.line),
                (name, carries, bare, line),
                "{error}"
            );
            let text = error.to_string();
            assert!(
                [name, "data from rank", "Declare a table for each kind"].iter().all(|it| text.contains(it)),
                "{text}"
            );
        }
        Ok(())
    });
    assert!(refused.iter().all(Result::is_ok), "{refused:?}");
}

#[test]
fn arguments_that_were_replaced_are_compared_with_the_kernel() {
    let outcomes = outcomes(2, |world, link| {
        let end = link.endpoint(world.rank().after(1, 2)).unwrap();
        let trace = |banks: &[Memory]| {
            kernel("replaced", |k| {
                let slots = k.slots("signals", banks, STRIDE);
                k.main(|r| r.wait(slots.slot(1, 0), 1));
            })
        };
        let (heads, tails) = (
            [&end.mapped().unwrap().signals.head; 2].map(Memory::clone),
            [&end.here.signals.tail; 2].map(Memory::clone),
        );
        let mixed = [heads[0].clone(), tails[0].clone()];
        for (traced, banks, words) in [
            (trace(&heads)?, &mixed, "bank 1 carries the number of its operation"),
            (trace(&tails)?, &mixed, "bank 1 carries the number of its operation"),
            (trace(&heads)?, &tails, "the kernel was traced without"),
            (trace(&tails)?, &heads, "its words are credits"),
        ] {
            let args = [tilewire::Arg::Slots(banks.to_vec())];
            let error = Prepared::new(&traced.kernel, &args).expect_err("one of them would be counted wrongly");
            let PrepareError::Argument { param, what } = &error else { panic!("{error}") };
            assert!(param == "signals" && what.contains(words), "{error}");
        }
        assert!(trace(&tails)?.kernel.to_string().contains("matched"));
        // This rank's memory in place of a peer's. Both sides of it have operation 0.
        let own = Tensor::<u64>::zeros(end.here.signals.tail.bytes() / 8);
        let args = [tilewire::Arg::Slots(vec![own.memory().clone(); 2])];
        Prepared::new(&trace(&tails)?.kernel, &args).expect("plain memory takes any words");
        Ok(())
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

/// One rank signals through its endpoint, and the other waits in the table of all ranks. Both count in the same way.
#[test]
fn a_table_of_all_ranks_counts_as_endpoints_do() {
    let signal = |link: &ShmTransport, count: i64| {
        let tail = link.endpoint(Rank::new(1)).unwrap().mapped().unwrap().signals.tail.clone();
        let traced = kernel("signal", |k| {
            let tail = k.slots("tail", std::slice::from_ref(&tail), STRIDE);
            k.main(|r| r.signal(tail.slot(0, 0), count));
        })?;
        Launch::new(link, &traced)?.run()
    };
    let wait = |link: &ShmTransport, count: i64| {
        let tails = link.table().slot_banks(|of_rank| &of_rank.tail);
        let traced = kernel("wait", |k| {
            let tails = k.slots("tails", &tails, STRIDE);
            k.main(|r| r.wait(tails.slot(1, link.layout().slot_index(0, 0, 0)), count));
        })?;
        Launch::new(link, &traced)?.run()
    };
    let once = |count| {
        outcomes(2, move |world, link| -> Result<(), RunError> {
            if world.rank() == Rank::new(0) { signal(link, 1) } else { wait(link, count) }
        })
    };
    assert!(once(1).iter().all(Result::is_ok));
    // A second signal never comes. If the word of the first were read as a bare number, 65,536, the wait would end.
    assert_all_failed(&once(2), "a second signal");
}

/// The same for packets, in both directions. One side of each uses its endpoint, and the other the table.
#[test]
fn packets_of_the_table_carry_what_those_of_endpoints_do() {
    const LEN: i64 = 4;
    let put = |link: &ShmTransport, banks: &[Memory], (bank, first): (i64, i64)| {
        let traced = kernel("put", |k| {
            let packets = k.region("packets", banks);
            k.main(|r| r.each(LEN, |i| packets.packet_put(bank, i + first, (i + 70).cast::<u64>(), 9u32)));
        })?;
        Launch::new(link, &traced)?.run()
    };
    let get = |link: &ShmTransport, banks: &[Memory], (bank, first): (i64, i64)| {
        let y = Tensor::<u64>::zeros(LEN as usize);
        let traced = kernel("get", |k| {
            let (packets, y) = (k.region("packets", banks), k.output(&y));
            k.main(|r| r.each(LEN, |i| y.store(i, packets.packet_get(bank, i + first, 9u32))));
        })?;
        Launch::new(link, &traced)?.run()?;
        assert_eq!(y.to_vec(), [70, 71, 72, 73]);
        Ok(())
    };
    let outcomes = outcomes(2, |world, link| -> Result<(), RunError> {
        let (table, end) = (link.table(), link.endpoint(world.rank().after(1, 2)).unwrap());
        // Sixteen bytes each.
        let of_rank = |rank: u32| table.packet_offset(Rank::new(rank)) as i64 / 16;
        if world.rank() == Rank::new(0) {
            put(link, &[end.mapped().unwrap().packets.clone()], (0, 0))?;
            get(link, &[end.here.packets], (0, 0))
        } else {
            get(link, &table.packets, (1, of_rank(0)))?;
            put(link, &table.packets, (0, of_rank(1)))
        }
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}
