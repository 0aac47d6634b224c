//! Impossible requests are refused with an error that names the values, on every rank, and the transport stays usable.

use crate::case::{LONG, SMALL, Way, seed, threads};
use crate::collectives::exchange::{Case, Kind, Ready};
use std::time::Duration;
use tilewire::collective::{Mismatch, Rounds};
use tilewire::hook::{Misuse, MisuseKind};
use tilewire::link::{ShmTransport, Window};
use tilewire::transport::{Protocol, Rank, TransferError, World};
use tilewire::{
    Algorithm, BuildError, Knobs, Primitive, ReduceOp, RunError, Tensor, all_gather, all_reduce, all_to_all, broadcast,
    gather, reduce_scatter, scatter,
};

/// Runs `body` in three ranks. All must fail. Checks that the transport is as good as before, and returns the errors by
/// rank.
fn refused(body: impl Fn(&World, &ShmTransport) -> Result<(), RunError> + Sync) -> Vec<RunError> {
    threads(3, "refusals", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let error = body(world, &link).expect_err("must be refused");
        let (kind, root, way) = (Kind::AllToAll, Rank::new(0), Way::staged(256, 2));
        let case = Case { kind, root, chunk: 100, way, blocks: 1, rounds: Rounds::Roles };
        Ready::<u32>::build(case, &link)?.turn(seed())?;
        link.close()?;
        Ok(error)
    })
}

fn transfer_errors(errors: Vec<RunError>) -> Vec<TransferError> {
    let transfer = |error| match error {
        RunError::Transfer(error) => error,
        other => panic!("{other}"),
    };
    errors.into_iter().map(transfer).collect()
}

fn zeros(len: usize) -> Tensor<f32> {
    Tensor::zeros(len)
}

#[test]
fn tensors_that_do_not_split_into_equal_chunks() {
    for (errors, what, len) in [
        (refused(|_, link| all_to_all(link, &zeros(10), &zeros(9)).run()), "the output", 10),
        (refused(|_, link| all_to_all(link, &zeros(9), &zeros(11)).run()), "the input", 11),
        (refused(|_, link| all_gather(link, &zeros(7), &zeros(2)).run()), "the output", 7),
    ] {
        assert_eq!(transfer_errors(errors), vec![TransferError::Uneven { what, len, ranks: 3 }; 3]);
    }
    let text = TransferError::Uneven { what: "the input", len: 11, ranks: 3 }.to_string();
    assert!(text.contains("11 elements") && text.contains("3 equal chunks") && text.contains("pad it to 12"), "{text}");
}

#[test]
fn an_input_chunk_of_another_length_needs_a_hook() {
    for error in refused(|_, link| all_gather(link, &zeros(9), &zeros(2)).run()) {
        let RunError::Build(BuildError::Misuse { errors, .. }) = &error else { panic!("{error}") };
        assert!(matches!(errors[0].kind, MisuseKind::Length { is: 2, must: 3, .. }), "{error}");
    }
}

#[test]
fn a_root_that_is_not_there() {
    let root = Rank::new(3);
    for errors in [
        refused(|_, link| broadcast(link, &zeros(4), &zeros(4), root).run()),
        refused(|_, link| gather(link, &zeros(12), &zeros(4), root).run()),
        refused(|_, link| scatter(link, &zeros(4), &zeros(12), root).run()),
    ] {
        assert_eq!(transfer_errors(errors), vec![TransferError::NoSuchPeer { peer: root, world_size: 3 }; 3]);
    }
}

#[test]
fn blocks_packets_and_windows_are_checked_as_in_a_transfer() {
    let errors = refused(|_, link| all_to_all(link, &zeros(9), &zeros(9)).blocks(9).run());
    assert_eq!(transfer_errors(errors), vec![TransferError::Blocks { blocks: 9, max: 8 }; 3]);
    let large = |link: &ShmTransport| all_to_all(link, &zeros(3000), &zeros(3000)).primitive(Primitive::Packet).run();
    for error in transfer_errors(refused(|_, link| large(link))) {
        assert!(matches!(error, TransferError::TooLarge { bytes: 4000, region: 512, .. }), "{error}");
    }
    let unable = |errors: Vec<RunError>, word: &str| {
        for error in transfer_errors(errors) {
            assert!(matches!(error, TransferError::Unable { .. }) && error.to_string().contains(word), "{error}");
        }
    };
    unable(refused(|_, link| all_to_all(link, &zeros(9), &zeros(9)).primitive(Primitive::Direct).run()), "window");
    unable(
        refused(|_, link| {
            let window = Window::<f32>::allocate(link, 9)?;
            all_to_all(link, window.tensor(), &zeros(9))
                .window(&window)
                .consume(|c, x| c.output.store(c.pos(), x + 1.0))
                .run()
        }),
        "consume hook",
    );
    unable(
        refused(|_, link| {
            let window = Window::<f32>::allocate(link, 9)?;
            all_to_all(link, &zeros(9), &zeros(9)).window(&window).run()
        }),
        "window.tensor()",
    );
}

#[test]
fn a_window_too_small_for_what_lands_in_it() {
    // Rank 2 has room for a chunk and a half. The rank whose chunk lies behind the first reports it.
    let errors = threads(3, "small window", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let len = if world.rank() == Rank::new(2) { 15 } else { 30 };
        let window = Window::<f32>::allocate(&link, len)?;
        let built = all_to_all(&link, window.tensor(), &zeros(30)).window(&window).build();
        // Only after all have built, because dropping what was built breaks the transport.
        world.bootstrap().barrier("built", LONG.into())?;
        Ok(built.err())
    });
    let Some(RunError::Transfer(TransferError::WindowTooShort { rank, bytes, needed })) = &errors[1] else {
        panic!("{errors:?}");
    };
    assert_eq!((rank.index(), *bytes, *needed), (2, 60, 80));
}

/// One rank of three gives another value. All must hear which rank differs.
#[track_caller]
fn differs(what: &str, values: [&str; 2], body: impl Fn(&World, &ShmTransport, bool) -> Result<(), RunError> + Sync) {
    let odd = Rank::new(1);
    let errors = refused(|world, link| body(world, link, world.rank() == odd));
    for (rank, error) in Rank::all(3).zip(errors) {
        let RunError::Mismatch(mismatch) = error else { panic!("{error}") };
        let Mismatch { rank: me, peer, what: is, mine, theirs, calls } = *mismatch;
        // Both calls are lines of this file.
        assert!(calls.iter().all(|call| call.contains(file!())), "{calls:?}");
        assert_eq!((me, &*is), (rank, what));
        if rank == odd {
            assert_eq!((&*mine, &*theirs), (values[1], values[0]));
        } else {
            assert_eq!((peer, &*mine, &*theirs), (odd, values[0], values[1]));
        }
    }
}

#[test]
fn a_rank_that_wants_something_else_is_named_on_all() {
    differs("the number of elements", ["3", "4"], |_, link, odd| {
        let len = if odd { 12 } else { 9 };
        all_to_all(link, &zeros(len), &zeros(len)).run()
    });
    differs("the collective", ["all_to_all", "all_gather"], |_, link, odd| {
        if odd { all_gather(link, &zeros(9), &zeros(3)).run() } else { all_to_all(link, &zeros(9), &zeros(9)).run() }
    });
    differs("the collective", ["broadcast with root 0", "broadcast with root 1"], |_, link, odd| {
        broadcast(link, &zeros(9), &zeros(9), Rank::new(u32::from(odd))).run()
    });
    differs("the element types on the wire", ["f32", "f64"], |_, link, odd| {
        if odd {
            all_to_all(link, &Tensor::<f64>::zeros(9), &Tensor::<f64>::zeros(9)).run()
        } else {
            all_to_all(link, &zeros(9), &zeros(9)).run()
        }
    });
    differs("the protocol", ["staged", "packet"], |_, link, odd| {
        let primitive = if odd { Primitive::Packet } else { Primitive::Staged };
        all_to_all(link, &zeros(9), &zeros(9)).primitive(primitive).run()
    });
    differs("the number of blocks", ["1", "2"], |_, link, odd| {
        all_to_all(link, &zeros(900), &zeros(900)).blocks(1 + usize::from(odd)).run()
    });
}

#[test]
fn ways_that_a_collective_cannot_go() {
    let none = |errors: Vec<RunError>, algorithm: &'static str, collective: &'static str| {
        assert_eq!(transfer_errors(errors), vec![TransferError::NoAlgorithm { algorithm, collective }; 3]);
    };
    none(refused(|_, l| all_to_all(l, &zeros(9), &zeros(9)).algorithm(Algorithm::Ring).run()), "ring", "all_to_all");
    none(
        refused(|_, l| reduce_scatter(l, &zeros(3), &zeros(9)).algorithm(Algorithm::TwoPhase).run()),
        "two-phase",
        "reduce_scatter",
    );
    let unable = |errors: Vec<RunError>, word: &str| {
        for error in transfer_errors(errors) {
            assert!(matches!(error, TransferError::Unable { .. }) && error.to_string().contains(word), "{error}");
        }
    };
    let packet = Primitive::Packet;
    unable(
        refused(|_, l| all_gather(l, &zeros(9), &zeros(3)).algorithm(Algorithm::Ring).primitive(packet).run()),
        "a ring",
    );
    unable(
        refused(|_, l| all_reduce(l, &zeros(9), &zeros(9)).algorithm(Algorithm::TwoPhase).primitive(packet).run()),
        "two phases",
    );
    let (one_shot, staged) = (Algorithm::OneShot, Primitive::Staged);
    unable(refused(|_, l| all_reduce(l, &zeros(9), &zeros(9)).algorithm(one_shot).primitive(staged).run()), "one-shot");
    unable(refused(|_, l| all_reduce(l, &zeros(9), &zeros(9)).primitive(Primitive::Bulk).run()), "combines");
    let blocks = refused(|_, l| all_reduce(l, &zeros(900), &zeros(900)).blocks(5).run());
    assert_eq!(transfer_errors(blocks), vec![TransferError::Blocks { blocks: 10, max: 8 }; 3]);
}

/// Shards of 30. The second one would begin within a group of 4, whose first half belongs to another role.
#[test]
fn an_all_reduce_whose_shards_tear_groups_apart() {
    let torn = TransferError::TornShard { group: 4, shard: 30, padded: 96 };
    for algorithm in [Algorithm::OneShot, Algorithm::TwoPhase, Algorithm::Ring] {
        let errors = refused(|_, l| {
            let reduction = all_reduce(l, &zeros(90), &zeros(90)).algorithm(algorithm);
            reduction.produce(|c| c.input.load(c.pos()).group_max(4)).run()
        });
        assert_eq!(transfer_errors(errors), vec![torn.clone(); 3], "{algorithm:?}");
    }
}

#[test]
fn reductions_through_windows_say_what_is_missing() {
    type Body<'b> = dyn Fn(&ShmTransport, &Window<f32>) -> Result<(), RunError> + Sync + 'b;
    let unable = |word: &str, body: &Body<'_>| {
        let errors = refused(|_, link| body(link, &Window::<f32>::allocate(link, 9).unwrap()));
        for error in transfer_errors(errors) {
            let unable = matches!(error, TransferError::Unable { protocol: Protocol::Direct { .. }, .. });
            assert!(unable && error.to_string().contains(word), "{error}");
        }
    };
    let direct = Primitive::Direct;
    unable("the input is not", &|l, _| all_reduce(l, &zeros(9), &zeros(9)).primitive(direct).run());
    unable("the input is not", &|l, w| reduce_scatter(l, &zeros(3), &zeros(9)).window(w).run());
    unable("the input is not", &|l, w| reduce_scatter(l, &zeros(2), &w.tensor().slice(0..6)).window(w).run());
    unable("the output is not", &|l, w| {
        all_reduce(l, &zeros(9), w.tensor()).window(w).algorithm(Algorithm::TwoPhase).run()
    });
    unable("in one shot peers read", &|l, w| {
        all_reduce(l, w.tensor(), w.tensor()).window(w).algorithm(Algorithm::OneShot).run()
    });
    unable("produce hook", &|l, w| {
        reduce_scatter(l, &zeros(3), w.tensor()).window(w).produce(|c| c.input.load(c.pos()) * 2.0).run()
    });
    unable("consume hook", &|l, w| {
        let outputs = Window::<f32>::allocate(l, 9).unwrap();
        let reduction = all_reduce(l, outputs.tensor(), w.tensor()).window(w).window(&outputs);
        let reduction = reduction.algorithm(Algorithm::TwoPhase);
        reduction.consume(|c, x| c.output.store(c.pos(), x * 2.0)).run()
    });
    unable("two phases", &|l, w| all_reduce(l, w.tensor(), w.tensor()).window(w).algorithm(Algorithm::Ring).run());
    unable("one shot", &|l, w| reduce_scatter(l, &zeros(3), w.tensor()).window(w).algorithm(Algorithm::Ring).run());
    // Windows of different lengths: every rank sees all of them.
    let uneven = refused(|world, link| {
        let window = Window::<f32>::allocate(link, 9 + 3 * world.rank().index()).unwrap();
        all_reduce(link, window.tensor(), window.tensor()).window(&window).run()
    });
    let short = TransferError::WindowTooShort { rank: Rank::new(0), bytes: 36, needed: 60 };
    assert_eq!(transfer_errors(uneven), vec![short; 3]);
}

#[test]
fn a_window_that_is_no_multiple_of_the_output_is_a_misuse_on_all_ranks() {
    for error in refused(|_, link| {
        let window = Window::<f32>::allocate(link, 12).unwrap();
        reduce_scatter(link, &zeros(7), window.tensor()).window(&window).run()
    }) {
        let RunError::Build(BuildError::Misuse { errors, .. }) = &error else { panic!("{error}") };
        assert!(matches!(errors[..], [Misuse { kind: MisuseKind::Length { is: 12, must: 21, .. }, .. }]), "{error}");
    }
}

#[test]
fn reductions_through_different_windows_are_refused_by_all() {
    for error in refused(|world, link| {
        let windows = [Window::<f32>::allocate(link, 9).unwrap(), Window::<f32>::allocate(link, 9).unwrap()];
        let window = &windows[usize::from(world.rank() == Rank::new(1))];
        all_reduce(link, window.tensor(), window.tensor()).window(window).run()
    }) {
        let RunError::Mismatch(mismatch) = &error else { panic!("{error}") };
        assert_eq!(mismatch.what, "the window", "{error}");
    }
}

#[test]
fn reductions_compare_what_they_compute_and_how() {
    let said = ["all_reduce of sum", "all_reduce of max"];
    differs("the collective", said, |_, link, odd| {
        let op = if odd { ReduceOp::Max } else { ReduceOp::Sum };
        all_reduce(link, &zeros(900), &zeros(900)).op(op).run()
    });
    differs("the algorithm", ["ring", "two-phase"], |_, link, odd| {
        let algorithm = if odd { Algorithm::TwoPhase } else { Algorithm::Ring };
        all_reduce(link, &zeros(900), &zeros(900)).algorithm(algorithm).run()
    });
    // The first call is one shot, and the second two phases.
    differs("the number of elements", ["60", "600"], |_, link, odd| {
        let len = if odd { 600 } else { 60 };
        all_reduce(link, &zeros(len), &zeros(len)).run()
    });
    differs("the number of elements", ["900", "903"], |_, link, odd| {
        let len = if odd { 903 } else { 900 };
        all_reduce(link, &zeros(len), &zeros(len)).algorithm(Algorithm::Ring).run()
    });
    let uneven = refused(|_, link| reduce_scatter(link, &zeros(3), &zeros(10)).run());
    assert_eq!(transfer_errors(uneven), vec![TransferError::Uneven { what: "the input", len: 10, ranks: 3 }; 3]);
}

#[test]
fn a_barrier_is_called_a_barrier() {
    differs("the collective", ["barrier", "all_gather"], |_, link, odd| {
        if odd { all_gather(link, &zeros(3), &zeros(1)).run() } else { tilewire::barrier(link).run() }
    });
    let result = World::threads(2).deadline(Duration::from_millis(300)).run(|world| {
        let link = ShmTransport::rendezvous(&world, SMALL)?;
        let mut meet = tilewire::barrier(&link).build()?;
        world.bootstrap().barrier("built", LONG.into())?;
        let error = (world.rank() == Rank::new(0)).then(|| meet.run().unwrap_err());
        world.bootstrap().barrier("over", LONG.into())?;
        if let Some(RunError::Timeout(timeout)) = &error {
            let call = timeout.call.as_ref().unwrap();
            assert_eq!((&*call.operation, call.at.file), ("barrier", file!()));
        } else {
            assert!(error.is_none(), "{error:?}");
        }
        let text = meet.kernel().to_string();
        assert!(text.contains("barrier") && !text.contains("all_gather"), "{text}");
        meet.run().unwrap_err();
        Ok(())
    });
    result.unwrap();
}

/// Follows the advice of a message until the call builds.
#[test]
fn the_advice_of_a_refused_reduction_leads_to_one_that_is_built() {
    let starts = [
        (3000, 1, Some(Algorithm::OneShot), None),
        (3000, 1, Some(Algorithm::OneShot), Some(Primitive::Staged)),
        (3000, 1, Some(Algorithm::OneShot), Some(Primitive::Packet)),
        (3000, 1, Some(Algorithm::TwoPhase), Some(Primitive::Packet)),
        (3000, 1, Some(Algorithm::Ring), Some(Primitive::Packet)),
        (90, 4, None, None),
        (9000, 2048, Some(Algorithm::TwoPhase), None),
        (9000, 2048, Some(Algorithm::Ring), None),
    ];
    for (len, group, algorithm, primitive) in starts {
        let mut plan = Advised { len, options: SMALL, algorithm, config: Knobs { primitive, ..Knobs::default() } };
        let mut said = Vec::new();
        loop {
            let errors = World::threads(3).deadline(LONG).run(|world| {
                let link = ShmTransport::rendezvous(&world, plan.options)?;
                let (inp, out) = (Tensor::<f32>::zeros(plan.len), Tensor::<f32>::zeros(plan.len));
                let reduction = all_reduce(&link, &out, &inp).config(plan.config);
                let reduction = match plan.algorithm {
                    Some(algorithm) => reduction.algorithm(algorithm),
                    None => reduction,
                };
                let ran = reduction.produce(|c| c.input.load(c.pos()).group_max(group)).run();
                Ok(ran.err().map(|error| error.to_string()))
            });
            let Some(error) = errors.unwrap().swap_remove(0) else { break };
            assert!(said.len() < 5, "the advice goes round in circles: {said:#?}, {error}");
            plan.follow(&error);
            said.push(error);
        }
    }
}

/// The settings of a collective that advice may change.
struct Advised {
    len: usize,
    options: tilewire::link::ShmOptions,
    algorithm: Option<Algorithm>,
    config: Knobs,
}

impl Advised {
    /// Follows the advice of a message: the first one, if there are several.
    fn follow(&mut self, message: &str) {
        let number = |key: &str| {
            let rest = &message[message.find(key)? + key.len()..];
            rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse::<usize>().ok()
        };
        let before = (self.len, self.options.per_peer_bytes, self.algorithm, self.config);
        self.len = number("pad the tensor to ").unwrap_or(self.len);
        self.options.per_peer_bytes = number("per_peer_bytes = ").or(self.options.per_peer_bytes);
        self.config.slot_bytes = number("slot_bytes = ").or(self.config.slot_bytes);
        self.config.depth = number("depth = ").or(self.config.depth);
        self.config.granule = number("granule(").or(self.config.granule);
        if message.contains("use two-phase") {
            self.algorithm = Some(Algorithm::TwoPhase);
        }
        if message.contains("use staged") {
            self.config.primitive = Some(Primitive::Staged);
        }
        let after = (self.len, self.options.per_peer_bytes, self.algorithm, self.config);
        assert!(before != after, "no advice, or advice that was followed already: {message}");
    }
}
