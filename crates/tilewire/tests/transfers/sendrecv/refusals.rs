//! Impossible requests are refused on every rank, with a separate error that names the values. Nothing is written:
//! neither outputs and windows nor staging and signals. The transport stays usable.

use crate::case::{LONG, SMALL, Shift, Way, seed, threads};
use crate::untouched::{self, output};
use std::time::Duration;
use tilewire::collective::{Launch, Mismatch};
use tilewire::hook::MisuseKind;
use tilewire::ir::{Access, Type};
use tilewire::link::{ShmOptions, ShmTransport, Transport, Window};
use tilewire::transport::{Protocol, Rank, RankError, TransferError, TransportError, World};
use tilewire::{
    Bf16, BuildError, F8E4M3, Knobs, PrepareError, Primitive, RunError, Tensor, hooks, kernel, recv, send, sendrecv,
};

/// Runs `body` in two ranks. Both must fail and write nothing. Checks that the transport is as good as before, and
/// returns the errors by rank.
fn refused(body: impl Fn(&World, &ShmTransport) -> Result<(), RunError> + Sync) -> [RunError; 2] {
    let both = threads(2, "refusals", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        untouched::transport(world, &link)?;
        let error = body(world, &link).expect_err("must be refused");
        // Late writes of a peer would be noticed, too.
        world.bootstrap().barrier("refused", world.deadline())?;
        untouched::assert_untouched(&error);
        world.bootstrap().barrier("looked at", world.deadline())?;
        for way in [Way::Packet, Way::staged(128, 2)] {
            Shift { len: 100, by: 1, blocks: 1, way }.run::<i32>(world, &link, seed())?;
        }
        link.close()?;
        Ok(error)
    });
    both.try_into().expect("two ranks")
}

fn transfer_errors(errors: [RunError; 2]) -> [TransferError; 2] {
    errors.map(|error| match error {
        RunError::Transfer(error) => error,
        other => panic!("{other}"),
    })
}

/// Like `refused`, for errors of the transport itself, which are the same on both ranks.
#[track_caller]
fn transport_refuses(
    body: impl Fn(&World, &ShmTransport) -> Result<(), RunError> + Sync,
    expected: impl Fn(Rank) -> TransferError,
) {
    let errors = transfer_errors(refused(body));
    assert_eq!(errors, [0, 1].map(|rank| expected(Rank::new(rank))));
}

fn swap(world: &World, link: &ShmTransport, len: usize, config: Knobs) -> Result<(), RunError> {
    let peer = world.rank().after(1, 2);
    let (inp, out) = (Tensor::<f32>::zeros(len), output::<f32>(len));
    sendrecv(link, &out, &inp, peer, peer).config(config).run()
}

// ---- what the transport has no room for -----------------------------------------------------------------------------

#[test]
fn a_message_too_large_for_packets() {
    for (len, blocks, bytes, region) in [(129, 1, 516, 512), (1000, 2, 4000, 1024)] {
        transport_refuses(
            |world, link| swap(world, link, len, Way::Packet.config(blocks)),
            |_| TransferError::TooLarge { protocol: Protocol::Packet, bytes, region },
        );
    }
}

#[test]
fn rows_too_large_for_packets() {
    // Three rows of 65 elements for two blocks. The first block has two rows, in 65 packets of eight bytes.
    transport_refuses(
        |world, link| {
            let (peer, x, y) = (world.rank().after(1, 2), Tensor::<f32>::zeros(195), output::<f32>(195));
            let swap = sendrecv(link, &y, &x, peer, peer).config(Way::Packet.config(2));
            swap.chunk_shape(65, 3).output_shape(3, 65).produce(|c| c.input.at(c.col(), c.row())).run()
        },
        |_| TransferError::TooLarge { protocol: Protocol::Packet, bytes: 2 * 520, region: 2 * 512 },
    );
}

#[test]
fn slots_larger_than_the_staging() {
    for (slot_bytes, depth) in [(2052, 2), (1024, 5), (1 << 40, 2)] {
        transport_refuses(
            |world, link| swap(world, link, 10, Way::staged(slot_bytes, depth).config(1)),
            |_| TransferError::SlotTooLarge { slot_bytes, depth, block_bytes: 4096, per_peer_bytes: 32 << 10 },
        );
    }
}

#[test]
fn slots_and_depths_that_make_no_pipeline() {
    let staged = |slot_bytes, depth| Protocol::Staged { slot_bytes, depth };
    for depth in [0, 1, 9] {
        transport_refuses(
            |world, link| swap(world, link, 10, Way::staged(64, depth).config(1)),
            |_| TransferError::Depth { protocol: staged(64, depth), depth, min: 2, max: 8 },
        );
    }
    transport_refuses(|world, link| swap(world, link, 10, Way::staged(0, 2).config(1)), |_| TransferError::EmptySlot);
    transport_refuses(|world, link| swap(world, link, 10, Way::bulk(0, 2).config(1)), |_| TransferError::EmptySlot);
    transport_refuses(
        |world, link| swap(world, link, 10, Way::bulk(72, 2).config(1)),
        |_| TransferError::Unable {
            protocol: Protocol::Bulk { slot_bytes: 72, depth: 2 },
            why: "its copies begin on 16 bytes: use slots of a multiple of 16, or staged",
        },
    );
    transport_refuses(
        |world, link| swap(world, link, 10, Way::staged(130, 2).config(1)),
        |_| TransferError::NotElements { what: "slot", bytes: 130, dtype: Type::F32 },
    );
}

#[test]
fn no_blocks_and_too_many() {
    for way in [Way::Chosen, Way::Packet, Way::staged(64, 2)] {
        for blocks in [0, 9, usize::MAX] {
            transport_refuses(
                |world, link| swap(world, link, 10, way.config(blocks)),
                |_| TransferError::Blocks { blocks, max: 8 },
            );
        }
    }
}

#[test]
fn peers_that_are_not_there_and_oneself() {
    let x = || Tensor::<f32>::zeros(4);
    let (stranger, world_size) = (Rank::new(2), 2);
    transport_refuses(
        |_, link| send(link, &x(), stranger).run(),
        |_| TransferError::NoSuchPeer { peer: stranger, world_size },
    );
    transport_refuses(
        |_, link| recv(link, &output::<f32>(4), stranger).run(),
        |_| TransferError::NoSuchPeer { peer: stranger, world_size },
    );
    let itself = |rank| TransferError::SelfTransfer { rank };
    transport_refuses(|world, link| recv(link, &output::<f32>(4), world.rank()).run(), itself);
    transport_refuses(
        |world, link| sendrecv(link, &output::<f32>(4), &x(), world.rank(), world.rank().after(1, 2)).run(),
        itself,
    );
}

// ---- what a protocol cannot do --------------------------------------------------------------------------------------

/// A rank's own window, and a swap through it.
fn through_window(
    world: &World,
    link: &ShmTransport,
    body: impl Fn(&Window<f32>, Rank) -> Result<(), RunError>,
) -> Result<(), RunError> {
    let window = untouched::window(world, link, 16).expect("a window");
    body(&window, world.rank().after(1, 2))
}

#[track_caller]
fn unable(words: &str, body: impl Fn(&World, &ShmTransport) -> Result<(), RunError> + Sync) {
    for error in transfer_errors(refused(body)) {
        assert!(matches!(error, TransferError::Unable { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn what_direct_cannot_do() {
    let x = || Tensor::<f32>::zeros(16);
    unable("direct cannot do this: it writes a window", |world, link| {
        swap(world, link, 10, Knobs { primitive: Some(Primitive::Direct), ..Knobs::default() })
    });
    // The message must not suggest a window, which would not help.
    unable("direct cannot do this: nobody runs a consume hook", |world, link| {
        let (peer, config) =
            (world.rank().after(1, 2), Knobs { primitive: Some(Primitive::Direct), ..Knobs::default() });
        let swap = sendrecv(link, &output::<f32>(16), &x(), peer, peer).config(config);
        swap.consume(|c, x| c.output.store(c.pos(), x * 2.0)).run()
    });
    unable("direct cannot do this: nobody runs a consume hook", |world, link| {
        through_window(world, link, |window, peer| {
            let swap = sendrecv(link, window.tensor(), &x(), peer, peer).window(window);
            swap.consume(|c, x| c.output.store(c.pos(), x * 2.0)).run()
        })
    });
    unable("direct cannot do this: it stores one value of the window's type", |world, link| {
        through_window(world, link, |window, peer| {
            let swap = sendrecv(link, window.tensor(), &x(), peer, peer).window(window);
            swap.produce(|c| c.input.load(c.pos()).cast::<Bf16>()).run()
        })
    });
    unable("direct cannot do this: the output is not this rank's part of the window", |world, link| {
        through_window(world, link, |window, peer| {
            sendrecv(link, &output::<f32>(16), &x(), peer, peer).window(window).run()
        })
    });
    unable("direct cannot do this: the output is not this rank's part of the window", |world, link| {
        through_window(world, link, |window, peer| {
            sendrecv(link, &window.tensor().slice(0..8), &x().slice(0..8), peer, peer).window(window).run()
        })
    });
}

#[test]
fn slots_of_several_parts_that_begin_anywhere() {
    unable("staged cannot do this: the parts of a slot begin on 64 bytes", |world, link| {
        let (peer, x, y) = (world.rank().after(1, 2), Tensor::<f32>::zeros(64), output::<f32>(64));
        sendrecv(link, &y, &x, peer, peer)
            .config(Way::staged(1001, 2).config(1))
            .produce2(|c| (c.input.load(c.pos()), c.input.load(c.pos())))
            .consume(|c, (a, _)| c.output.store(c.pos(), a))
            .run()
    });
}

#[test]
fn an_output_that_lies_over_the_input() {
    transport_refuses(
        |world, link| {
            let (peer, x) = (world.rank().after(1, 2), output::<f32>(64));
            sendrecv(link, &x.slice(32..64), &x.slice(0..33), peer, peer).run()
        },
        |_| TransferError::Overlap { what: "the input".to_string(), bytes: 33 * 4 },
    );
}

#[test]
fn an_output_that_is_longer_than_its_shape() {
    threads(2, "long output", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (peer, x, y) = (world.rank().after(1, 2), Tensor::<f32>::zeros(8), output::<f32>(16));
        let error = sendrecv(&link, &y, &x, peer, peer).chunk_shape(2, 4).output_shape(4, 2).run().unwrap_err();
        untouched::assert_untouched(&error);
        assert!(matches!(error, RunError::Build(_)), "{error}");
        Ok(link.close()?)
    });
}

#[test]
fn one_leg_that_is_refused_breaks_the_transport_of_the_other() {
    threads(2, "half refused", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (peer, x, y) = (world.rank().after(1, 2), Tensor::<u64>::zeros(4), output::<u64>(4));
        if world.rank() == Rank::new(0) {
            // Its send agrees and needs no other rank. If its step were counted on this side only, every later message
            // would be the wrong one.
            let sent = send(&link, &x, peer).run();
            let received = recv(&link, &output::<u64>(5), peer).run();
            assert!(sent.is_ok() || matches!(sent, Err(RunError::Mismatch(_))), "{sent:?}");
            assert!(received.is_err());
        } else {
            let error = sendrecv(&link, &y, &x, peer, peer).run().unwrap_err();
            assert!(matches!(error, RunError::Mismatch(_)), "{error}");
        }
        world.bootstrap().barrier("refused", world.deadline())?;
        let again =
            if world.rank() == Rank::new(0) { send(&link, &x, peer).run() } else { recv(&link, &y, peer).run() };
        assert!(matches!(again.unwrap_err(), RunError::Mismatch(_)), "all hear why it is broken");
        untouched::assert_untouched("half refused");
        Ok(())
    });
}

#[test]
fn a_transfer_that_is_dropped_before_its_launch_breaks_the_transport() {
    threads(2, "dropped", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let (peer, x, y) = (world.rank().after(1, 2), Tensor::<u64>::zeros(4), Tensor::<u64>::zeros(4));
        if world.rank() == Rank::new(0) {
            drop(recv(&link, &y, peer).build()?);
        }
        world.bootstrap().barrier("dropped", world.deadline())?;
        assert!(link.is_broken());
        let error = send(&link, &x, peer).run().unwrap_err();
        assert!(error.to_string().contains("rank 0 dropped a transfer before it was run"), "{error}");
        Ok(())
    });
}

#[test]
fn slots_that_hold_no_element() {
    unable("staged cannot do this: not one element fits a slot", |world, link| {
        let (peer, x, y) = (world.rank().after(1, 2), Tensor::<f32>::zeros(64), output::<f32>(64));
        sendrecv(link, &y, &x, peer, peer)
            .config(Way::staged(64, 2).config(1))
            .produce2(|c| (c.input.load(c.pos()), c.input.load(c.pos())))
            .consume(|c, (a, _)| c.output.store(c.pos(), a))
            .run()
    });
}

#[test]
fn groups_that_tiles_would_tear_apart() {
    let largest = |world: &World, link: &ShmTransport, len: usize, config: Knobs| {
        let peer = world.rank().after(1, 2);
        let (inp, out) = (Tensor::<f32>::zeros(len), Tensor::<f32>::zeros(len));
        sendrecv(link, &out, &inp, peer, peer)
            .config(config)
            .produce(|c| c.input.load(c.pos()).abs().group_max(32))
            .run()
    };
    // Ten elements in a slot.
    transport_refuses(
        |world, link| largest(world, link, 90, Way::staged(40, 2).config(1)),
        |_| TransferError::GroupTooLarge { group: 32, slot_bytes: 40, needed: 128, depth: 2, per_peer_bytes: None },
    );
    // 45 elements for each of two blocks, in groups of sixteen.
    transport_refuses(
        |world, link| largest(world, link, 90, Knobs { granule: Some(16), ..Way::Packet.config(2) }),
        |_| TransferError::TornGroup { group: 32, tile: 48 },
    );
    // With the granule that the message asks for, the call builds.
    threads(2, "granule", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        largest(world, &link, 90, Knobs { granule: Some(32), ..Way::Packet.config(2) })?;
        largest(world, &link, 300, Knobs { granule: Some(32), ..Way::staged(160, 2).config(2) })?;
        Ok(link.close()?)
    });
}

// ---- two sides that differ ------------------------------------------------------------------------------------------

/// Rank 0 sends as `give` says, and rank 1 receives as `take` says. Both hear how they differ.
#[track_caller]
fn differ(
    expected: (&str, &str, &str),
    give: impl Fn(&ShmTransport, Rank) -> Result<(), RunError> + Sync,
    take: impl Fn(&ShmTransport, Rank) -> Result<(), RunError> + Sync,
) {
    let [first, second] = [0, 1].map(Rank::new);
    let errors = refused(|world, link| if world.rank() == first { give(link, second) } else { take(link, first) });
    let (what, of_sender, of_receiver) = expected;
    let of = |rank, peer, mine: &str, theirs: &str| {
        let (mine, theirs) = (mine.to_string(), theirs.to_string());
        Mismatch { rank, peer, what: what.to_string(), mine, theirs, calls: Default::default() }
    };
    let expected = [of(first, second, of_sender, of_receiver), of(second, first, of_receiver, of_sender)];
    for (error, expected) in errors.into_iter().zip(expected) {
        assert!(error.to_string().contains(&format!("rank {} says {}", expected.rank, expected.mine)), "{error}");
        let RunError::Mismatch(is) = &error else { panic!("{error}, not {expected}") };
        assert_eq!(Mismatch { calls: Default::default(), ..*is.clone() }, expected);
        // Both calls are lines of this file, this rank's first.
        let kind = |rank: Rank| if rank == first { "send of" } else { "recv of" };
        for (call, rank) in is.calls.iter().zip([is.rank, is.peer]) {
            let named = call.contains(kind(rank)) && call.contains(file!()) && error.to_string().contains(call);
            assert!(named, "{call}: {error}");
        }
    }
}

#[test]
fn two_sides_that_mean_different_messages() {
    let x = Tensor::<f32>::zeros;
    let size = "the number of elements";
    differ(
        (size, "10", "11"),
        |link, to| send(link, &x(10), to).run(),
        |link, from| recv(link, &output::<f32>(11), from).run(),
    );
    let types = "the element types on the wire";
    differ(
        (types, "f32", "i32"),
        |link, to| send(link, &x(10), to).run(),
        |link, from| recv(link, &output::<i32>(10), from).run(),
    );
    differ(
        (types, "bf16", "f32 and bf16"),
        |link, to| send(link, &x(10), to).produce(|c| c.input.load(c.pos()).cast::<Bf16>()).run(),
        |link, from| {
            let take = recv(link, &output::<f32>(10), from).carries::<(f32, Bf16)>();
            take.consume(|c, (x, _)| c.output.store(c.pos(), x)).run()
        },
    );
    // Staged or packets is a consequence of it, and must not be the reported difference.
    differ(
        ("the neighbours that share the last value (last_per)", "32", "1"),
        |link, to| send(link, &x(64), to).produce2(hooks::quantise(F8E4M3::MAX, 32)).last_per(32).run(),
        |link, from| recv(link, &output::<f32>(64), from).carries::<(F8E4M3, f32)>().consume(hooks::dequantise()).run(),
    );
    let shape = "the shape of the output chunk";
    differ(
        (shape, "[5, 2]", "[2, 5]"),
        |link, to| {
            send(link, &x(10), to).chunk_shape(2, 5).output_shape(5, 2).produce(|c| c.input.at(c.col(), c.row())).run()
        },
        |link, from| recv(link, &output::<f32>(10), from).chunk_shape(5, 2).output_shape(2, 5).run(),
    );
}

#[test]
fn two_sides_that_mean_different_ways() {
    let differ = |expected, [give, take]: [Knobs; 2]| {
        let x = || Tensor::<f32>::zeros(100);
        differ(
            expected,
            move |link, to| send(link, &x(), to).config(give).run(),
            move |link, from| recv(link, &output::<f32>(100), from).config(take).run(),
        );
    };
    let staged = |slot_bytes, depth, blocks| Way::staged(slot_bytes, depth).config(blocks);
    differ(("the protocol", "packet", "staged"), [Way::Packet.config(1), staged(128, 2, 1)]);
    differ(("the number of blocks", "2", "3"), [staged(128, 2, 2), staged(128, 2, 3)]);
    differ(("the number of blocks", "1", "2"), [Way::Packet.config(1), Way::Packet.config(2)]);
    differ(("the bytes of a slot", "128", "256"), [staged(128, 2, 1), staged(256, 2, 1)]);
    differ(("the depth", "2", "3"), [staged(128, 2, 1), staged(128, 3, 1)]);
    let granule = |granule| Knobs { granule: Some(granule), ..staged(128, 2, 1) };
    differ(("the tile", "[1, 20]", "[1, 32]"), [granule(20), granule(32)]);
}

#[test]
fn a_rank_with_another_region_is_named_by_all() {
    threads(3, "regions", |world| {
        let odd = world.rank() == Rank::new(1);
        let per_peer_bytes = if odd { 64 << 10 } else { 32 << 10 };
        let error =
            ShmTransport::rendezvous(world, ShmOptions { per_peer_bytes: Some(per_peer_bytes), ..SMALL }).unwrap_err();
        let values = ["32768", "65536", "32768"].map(String::from).to_vec();
        assert!(
            matches!(&error, TransportError::Mismatch { parameter, values: is } if parameter == "per_peer_bytes" && *is == values),
            "{error}"
        );
        Ok(())
    });
}

// ---- hooks and tensors ----------------------------------------------------------------------------------------------

#[test]
fn hooks_that_cannot_be_meant() {
    let misuse = |error: RunError| match error {
        RunError::Build(error) => error.misuses()[0].kind.clone(),
        other => panic!("{other}"),
    };
    let x = Tensor::<f32>::zeros;
    for error in refused(|world, link| {
        let peer = world.rank().after(1, 2);
        sendrecv(link, &output::<f32>(4), &x(5), peer, peer).send_len(4).run()
    }) {
        assert_eq!(
            misuse(error),
            MisuseKind::Length { what: "the input of a send without produce hook", is: 5, must: 4 }
        );
    }
    for error in refused(|world, link| {
        let peer = world.rank().after(1, 2);
        sendrecv(link, &output::<f32>(4), &x(4), peer, peer).produce(|c| c.input.load(c.pos()).cast::<Bf16>()).run()
    }) {
        assert_eq!(misuse(error), MisuseKind::NeedsConsume { carries: vec![Type::BF16], output: Type::F32 });
    }
    for error in refused(|world, link| {
        let peer = world.rank().after(1, 2);
        let store = |c: &tilewire::hook::Ctx<'_, f32, f32>| c.output.store(c.pos(), 0.0);
        send(link, &x(4), peer)
            .produce(|c| {
                store(c);
                c.input.load(c.pos())
            })
            .run()
    }) {
        assert_eq!(misuse(error), MisuseKind::WrongLeg { hook: "produce", what: "c.output", writes: true });
    }
    for error in refused(|world, link| {
        let peer = world.rank().after(1, 2);
        sendrecv(link, &output::<f32>(6), &x(6), peer, peer).chunk_shape(2, 4).output_shape(4, 2).run()
    }) {
        let RunError::Build(error) = error else { panic!("{error}") };
        let shape = |kind: &MisuseKind| matches!(kind, MisuseKind::ChunkShape { elements: 8, len: 6, .. });
        assert!(error.misuses().iter().any(|misuse| shape(&misuse.kind)), "{error}");
    }
}

#[test]
fn memory_that_is_not_aligned_for_its_elements() {
    let errors = refused(|world, link| {
        let peer = world.rank().after(1, 2);
        let odd = Tensor::<u8>::zeros(64).memory().part(1, 40);
        let traced = kernel("odd", |k| {
            let x = k.buffer::<f32>("odd", std::slice::from_ref(&odd), Access::In).bank(0);
            let tx = link.sender(k, peer, Protocol::Packet, None);
            k.main(|r| {
                _ = &tx;
                r.each(10, |i| _ = x.load(i));
            });
        })?;
        Launch::new(link, &traced)?.run()
    });
    for error in errors {
        let RunError::Prepare(PrepareError::Unaligned { param, ty, align, address }) = error else { panic!("{error}") };
        assert_eq!((&*param, ty, align, address % 2), ("odd", Type::F32, 4, 1));
    }
    // A tensor reports it when it is made, before any rank can wait for it.
    let result = World::threads(2).run(|_| -> Result<(), RankError> {
        let bytes = std::sync::Arc::new([0u64; 4]);
        let start = std::ptr::NonNull::from(&*bytes).cast::<u8>();
        // SAFETY: 24 bytes from the first are inside what `bytes` keeps alive, and nobody else has it. That they are
        // not aligned is what the call is to refuse.
        let _ = unsafe { Tensor::<f32>::from_raw(start.add(1).cast(), 6, bytes) };
        Ok(())
    });
    assert!(result.unwrap_err().to_string().contains("is not aligned for f32"));
}

// ---- one side is refused, the other must not wait -------------------------------------------------------------------

/// Rank 0 fails by itself. Rank 1, which waits for it, hears that it does not come.
fn alone(give: impl Fn(&ShmTransport, &Window<f32>, Rank) -> Result<(), RunError> + Sync) -> RunError {
    let deadline = Duration::from_secs(1);
    let world = World::threads(2).deadline(deadline);
    let mut errors = world
        .run(|world| {
            let link = ShmTransport::rendezvous(&world, SMALL)?;
            let window = untouched::window(&world, &link, if world.rank().index() == 0 { 100 } else { 50 })?;
            let error = match world.rank().index() {
                0 => give(&link, &window, Rank::new(1)).unwrap_err(),
                _ => {
                    let from = Rank::new(0);
                    let error = recv(&link, window.tensor(), from).window(&window).run().unwrap_err();
                    let RunError::Timeout(it) = &error else { panic!("{error}") };
                    assert!((it.rank, it.peer) == (world.rank(), Some(from)) && it.after >= deadline, "{error}");
                    error
                }
            };
            // No rank leaves before the other has heard.
            world.bootstrap().barrier("over", LONG.into())?;
            untouched::assert_untouched(&error);
            Ok(error)
        })
        .unwrap();
    errors.remove(0)
}

#[test]
fn a_message_larger_than_the_window_of_the_peer() {
    // The receiver's window is half as long as the sender's.
    let error = alone(|link, window, to| send(link, &Tensor::<f32>::zeros(100), to).window(window).run());
    let RunError::Transfer(short) = error else { panic!("{error}") };
    assert_eq!(short, TransferError::WindowTooShort { rank: Rank::new(1), bytes: 200, needed: 400 });
    assert!(short.to_string().contains("the window of rank 1 has 200 bytes, and 400 are needed"), "{short}");
}

#[test]
fn windows_of_different_lengths() {
    let windows = |lengths: [usize; 2]| {
        threads(2, "windows of different lengths", |world| {
            let link = ShmTransport::rendezvous(world, SMALL)?;
            let len = lengths[world.rank().index()];
            let (window, peer) = (Window::<f32>::allocate(&link, len)?, world.rank().after(1, 2));
            let longest = Tensor::<f32>::zeros(lengths[0].max(lengths[1]));
            let swap =
                sendrecv(&link, window.tensor(), &longest, peer, peer).primitive(Primitive::Direct).window(&window);
            let built = swap.build();
            // Only after both have built, because dropping what was built breaks the transport.
            world.bootstrap().barrier("built", LONG.into())?;
            Ok(built.err())
        })
    };
    // The rank with the longer window is not told about its own.
    for (lengths, rank, bytes, needed) in [([100, 200], 0, 400, 800), ([50, 0], 1, 0, 200)] {
        let errors = windows(lengths);
        let Some(RunError::Transfer(short)) = &errors[1 - rank as usize] else { panic!("{errors:?}") };
        assert_eq!(*short, TransferError::WindowTooShort { rank: Rank::new(rank), bytes, needed });
        assert!(errors[rank as usize].is_none(), "its own messages fit: {errors:?}");
    }
}

#[test]
fn a_hook_that_panics() {
    let error =
        alone(|link, _, to| send(link, &Tensor::<f32>::zeros(50), to).produce::<f32>(|_| panic!("as a test")).run());
    let RunError::Build(BuildError::Panicked { kernel, message, at, .. }) = error else { panic!("{error}") };
    // The line is the user's, not that of the library, which calls the hook.
    assert_eq!((&*kernel, &*message, at.file), ("send", "as a test", file!()));
}

#[test]
#[cfg(feature = "check")]
fn plans_of_schedules_that_do_not_fit_are_refused_with_their_numbers() {
    use tilewire::link::Staged;
    use tilewire::rehearsal::Rehearsal;
    use tilewire::schedule::{BulkPlan, StagedPlan};
    use tilewire::transport::layout::Geometry;
    let geometry = Geometry {
        world_size: 2,
        per_peer_bytes: 1 << 20,
        max_blocks_per_peer: 2,
        max_slots: 4,
        max_copies: 1,
        packet_bytes: 4096,
        window_sets: 0,
    };
    let link = &Rehearsal::new(geometry).ranks()[0];
    let plan = |slot_bytes, depth, blocks| StagedPlan::new(&link.link(Rank::new(1)), slot_bytes, depth, blocks);
    let errors = [plan(1 << 30, 2, 1), plan(0, 2, 1), plan(64, 5, 1), plan(64, 2, 3)].map(|plan| plan.unwrap_err());
    assert!(
        matches!(errors[0], TransferError::SlotTooLarge { slot_bytes: 0x4000_0000, depth: 2, .. }),
        "{}",
        errors[0]
    );
    assert_eq!(errors[1], TransferError::EmptySlot);
    assert!(matches!(errors[2], TransferError::Depth { depth: 5, min: 2, max: 4, .. }), "{}", errors[2]);
    assert_eq!(errors[3], TransferError::Blocks { blocks: 3, max: 2 });
    let two = plan(64, 2, 2).unwrap();
    assert!(two.from_block(0).is_ok());
    assert_eq!(two.from_block(1).unwrap_err(), TransferError::Blocks { blocks: 3, max: 2 });
    for (slot_bytes, says) in [(40, "multiple of 16"), (64 << 10, "at most 32 KiB")] {
        let error = BulkPlan::new(plan(slot_bytes, 2, 1).unwrap()).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    // The same for the numbers of a whole pipeline.
    let staged = Staged::<(i8, f32)>::new(link, 1000);
    let error = |staged: Staged<'_, (i8, f32)>, peer| staged.with(Rank::new(peer)).err().expect("it does not fit");
    for tile in [1 << 30, usize::MAX] {
        let error = error(staged.tile(tile), 1);
        assert!(matches!(error, TransferError::SlotTooLarge { depth: 4, .. }), "{error}");
    }
    assert!(matches!(error(staged.depth(5), 1), TransferError::Depth { depth: 5, min: 2, max: 4, .. }));
    assert_eq!(error(staged.blocks(3), 1), TransferError::Blocks { blocks: 3, max: 2 });
    assert_eq!(error(staged.from_block(2), 1), TransferError::Blocks { blocks: 3, max: 2 });
    assert_eq!(error(staged, 0), TransferError::SelfTransfer { rank: Rank::new(0) });
    assert_eq!(error(staged, 7), TransferError::NoSuchPeer { peer: Rank::new(7), world_size: 2 });
    assert!(staged.with(Rank::new(1)).is_ok());
}

#[test]
fn what_is_wrong_in_a_schedule_has_the_line_of_the_kernel_that_uses_it() {
    use tilewire::schedule::StagedPlan;
    let errors = refused(|_, link| {
        let built = kernel("own", |k| {
            StagedPlan::new(&link.link(Rank::new(1)), 1 << 30, 2, 1).expect("a plan that does not fit");
            k.main(|_| {});
        });
        Ok(_ = built?)
    });
    for error in errors {
        let RunError::Build(BuildError::Panicked { at, .. }) = &error else { panic!("{error}") };
        assert!(at.file == file!() && error.to_string().contains(file!()), "{error}");
    }
    // A misuse by the library's own hook or schedule is listed with the library's line, under the line of the user's
    // call.
    let errors = refused(|world, link| {
        let peer = world.rank().after(1, 2);
        let x = Tensor::<f32>::zeros(6);
        sendrecv(link, &output::<f32>(6), &x, peer, peer).chunk_shape(2, 4).output_shape(4, 2).run()
    });
    for error in errors {
        let RunError::Build(BuildError::Misuse { built_at, .. }) = &error else { panic!("{error}") };
        assert!(built_at.file == file!() && error.to_string().contains(&built_at.to_string()), "{error}");
    }
}

/// Follows the advice of a message until the call builds.
#[test]
fn the_advice_of_a_refused_transfer_leads_to_one_that_is_built() {
    let starts = [
        (9000, None, 2048, Knobs::default()),
        (9000, None, 2048, Way::Packet.config(2)),
        (9000, None, 100, Way::staged(40, 2).config(1)),
        (9000, None, 100, Way::bulk(64, 2).config(1)),
        (90, None, 32, Knobs { granule: Some(16), ..Way::Packet.config(2) }),
        (9000, Some((9, 1000)), 48, Way::staged(512, 2).config(1)),
        (9000, Some((9, 1000)), 300, Way::staged(512, 2).config(1)),
    ];
    for (len, shape, group, mut config) in starts {
        let (mut options, mut said) = (SMALL, Vec::new());
        loop {
            let errors = World::threads(2).deadline(LONG).run(|world| {
                let link = ShmTransport::rendezvous(&world, options)?;
                let (inp, out) = (Tensor::<f32>::zeros(len), Tensor::<f32>::zeros(len));
                let peer = world.rank().after(1, 2);
                let swap = sendrecv(&link, &out, &inp, peer, peer).config(config);
                let swap = match shape {
                    Some((rows, cols)) => swap.chunk_shape(rows, cols),
                    None => swap,
                };
                let ran = swap.produce(|c| c.input.load(c.pos()).abs().group_max(group)).run();
                Ok(ran.err().map(|error| error.to_string()))
            });
            let Some(error) = errors.unwrap().swap_remove(0) else { break };
            let number = |key: &str| {
                let rest = &error[error.find(key)? + key.len()..];
                rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse::<usize>().ok()
            };
            let before = (config, options.per_peer_bytes);
            options.per_peer_bytes = number("per_peer_bytes = ").or(options.per_peer_bytes);
            config.slot_bytes = number("slot_bytes = ").or(config.slot_bytes);
            config.depth = number("depth = ").or(config.depth);
            config.granule = number("granule(").or(config.granule);
            if error.contains("use staged") {
                config.primitive = Some(Primitive::Staged);
            }
            assert!(before != (config, options.per_peer_bytes), "no advice, or advice followed already: {error}");
            assert!(said.len() < 5, "the advice goes round in circles: {said:#?}, {error}");
            said.push(error);
        }
    }
}
