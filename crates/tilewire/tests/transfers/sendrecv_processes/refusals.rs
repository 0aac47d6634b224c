//! Differences between two processes, and impossible requests, are refused on both, with a separate error that names
//! the values. Nothing is written: neither outputs and windows nor staging and signals. The transport stays usable.

use crate::case::{SMALL, Shift, Way, seed};
use crate::untouched::{self, output};
use std::time::Duration;
use tilewire::collective::Mismatch;
use tilewire::link::ShmTransport;
use tilewire::transport::{Protocol, Rank, RankError, TransferError, World};
use tilewire::{Bf16, Knobs, RunError, Tensor, recv, send, sendrecv};
use tilewire_testkit::job::Member;
use tilewire_testkit::ranks::{in_worlds, join, start};

const FIRST: Rank = Rank::new(0);
const SECOND: Rank = Rank::new(1);

type Side = fn(&ShmTransport, Rank) -> Result<(), RunError>;

/// Rank 0's send, rank 1's receive, and the error of each.
struct Differ {
    what: &'static str,
    says: [&'static str; 2],
    give: Side,
    take: Side,
}

/// The error of `body`, which must leave everything as it was. Afterwards the transport is as good as before.
fn refused(world: &World, body: impl Fn(&ShmTransport) -> Result<(), RunError>) -> Result<RunError, RankError> {
    let link = ShmTransport::rendezvous(world, SMALL)?;
    untouched::transport(world, &link)?;
    let error = body(&link).expect_err("must be refused");
    // Late writes of a peer would be noticed, too.
    world.bootstrap().barrier("refused", world.deadline())?;
    untouched::assert_untouched(&error);
    world.bootstrap().barrier("looked at", world.deadline())?;
    for way in [Way::Packet, Way::staged(128, 2), Way::bulk(128, 2)] {
        Shift { len: 100, by: 1, blocks: 1, way }.run::<i32>(world, &link, seed())?;
    }
    link.close()?;
    Ok(error)
}

fn inp(len: usize) -> Tensor<f32> {
    Tensor::from_fn(len, |i| i as f32)
}

fn give(link: &ShmTransport, to: Rank, config: Knobs) -> Result<(), RunError> {
    send(link, &inp(100), to).config(config).run()
}

fn take(link: &ShmTransport, from: Rank, config: Knobs) -> Result<(), RunError> {
    recv(link, &output::<f32>(100), from).config(config).run()
}

const DIFFERENT: &[Differ] = &[
    Differ {
        what: "the number of elements",
        says: ["10", "11"],
        give: |link, to| send(link, &inp(10), to).run(),
        take: |link, from| recv(link, &output::<f32>(11), from).run(),
    },
    Differ {
        what: "the element types on the wire",
        says: ["f32", "i32"],
        give: |link, to| send(link, &inp(10), to).run(),
        take: |link, from| recv(link, &output::<i32>(10), from).run(),
    },
    Differ {
        what: "the element types on the wire",
        says: ["bf16", "f32"],
        give: |link, to| send(link, &inp(10), to).produce(|c| c.input.load(c.pos()).cast::<Bf16>()).run(),
        take: |link, from| recv(link, &output::<f32>(10), from).run(),
    },
    Differ {
        what: "the protocol",
        says: ["packet", "staged"],
        give: |link, to| give(link, to, Way::Packet.config(1)),
        take: |link, from| take(link, from, Way::staged(128, 2).config(1)),
    },
    Differ {
        what: "the protocol",
        says: ["staged", "bulk"],
        give: |link, to| give(link, to, Way::staged(128, 2).config(1)),
        take: |link, from| take(link, from, Way::bulk(128, 2).config(1)),
    },
    Differ {
        what: "the number of blocks",
        says: ["2", "3"],
        give: |link, to| give(link, to, Way::staged(128, 2).config(2)),
        take: |link, from| take(link, from, Way::staged(128, 2).config(3)),
    },
    Differ {
        what: "the bytes of a slot",
        says: ["128", "256"],
        give: |link, to| give(link, to, Way::bulk(128, 2).config(1)),
        take: |link, from| take(link, from, Way::bulk(256, 2).config(1)),
    },
    Differ {
        what: "the depth",
        says: ["2", "3"],
        give: |link, to| give(link, to, Way::staged(128, 2).config(1)),
        take: |link, from| take(link, from, Way::staged(128, 3).config(1)),
    },
];

#[test]
fn two_sides_that_differ_hear_how() {
    in_worlds("sendrecv_processes::refusals::two_sides_that_differ_hear_how", [2], |world| {
        for Differ { what, says, give, take } in DIFFERENT {
            let (rank, peer) = (world.rank(), world.rank().after(1, 2));
            let error = refused(world, |link| if rank == FIRST { give(link, peer) } else { take(link, peer) })?;
            let [mine, theirs] = [rank, peer].map(|rank| says[rank.index()].to_string());
            let RunError::Mismatch(is) = &error else { panic!("{error}") };
            let expected = Mismatch { rank, peer, what: what.to_string(), mine, theirs, calls: is.calls.clone() };
            assert_eq!(**is, expected);
            assert!(is.calls.iter().all(|call| call.contains(".rs:")), "{error}");
        }
        Ok(())
    });
}

#[test]
fn what_the_transport_has_no_room_for() {
    in_worlds("sendrecv_processes::refusals::what_the_transport_has_no_room_for", [2], |world| {
        let peer = world.rank().after(1, 2);
        let (stranger, world_size) = (Rank::new(2), 2);
        let packet = TransferError::TooLarge { protocol: Protocol::Packet, bytes: 516, region: 512 };
        let slot =
            TransferError::SlotTooLarge { slot_bytes: 1024, depth: 5, block_bytes: 4096, per_peer_bytes: 32 << 10 };
        let blocks = TransferError::Blocks { blocks: 9, max: 8 };
        for (to, len, config, expected) in [
            (peer, 129, Way::Packet.config(1), packet),
            (peer, 10, Way::staged(1024, 5).config(1), slot),
            (peer, 10, Way::Chosen.config(9), blocks),
            (stranger, 10, Knobs::default(), TransferError::NoSuchPeer { peer: stranger, world_size }),
            (world.rank(), 10, Knobs::default(), TransferError::SelfTransfer { rank: world.rank() }),
        ] {
            let error =
                refused(world, |link| sendrecv(link, &output::<f32>(len), &inp(len), to, to).config(config).run())?;
            assert!(matches!(&error, RunError::Transfer(is) if *is == expected), "{error}, not {expected}");
        }
        Ok(())
    });
}

#[test]
fn a_message_larger_than_the_window_of_the_peer() {
    let test = "sendrecv_processes::refusals::a_message_larger_than_the_window_of_the_peer";
    if let Some(mut member) = Member::of_this_process() {
        let world = join(&mut member);
        let link = ShmTransport::rendezvous(&world, SMALL).unwrap();
        untouched::transport(&world, &link).unwrap();
        // The receiver's window is half as long as the sender's.
        let window = untouched::window::<f32>(&world, &link, if world.rank() == FIRST { 100 } else { 50 }).unwrap();
        let error = if world.rank() == FIRST {
            send(&link, &inp(100), SECOND).window(&window).run().unwrap_err()
        } else {
            let short = Duration::from_millis(300);
            recv(&link, window.tensor(), FIRST).window(&window).deadline(short).run().unwrap_err()
        };
        member.report(match &error {
            RunError::Transfer(TransferError::WindowTooShort { rank, bytes, needed }) => {
                format!("rank {rank} has {bytes} of {needed}")
            }
            RunError::Timeout(timeout) => format!("{} has not met {}", timeout.rank, timeout.peer.unwrap()),
            other => panic!("{other}"),
        });
        world.bootstrap().barrier("over", world.deadline()).unwrap();
        untouched::assert_untouched(&error);
        return member.report("untouched");
    }
    let (mut job, _store) = start(test, 2);
    job.expect([0], "rank 1 has 200 of 400");
    job.expect([1], "1 has not met 0");
    job.expect(0..2, "untouched");
    job.finish();
}
