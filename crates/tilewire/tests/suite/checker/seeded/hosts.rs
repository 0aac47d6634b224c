//! Tensors of one rank that another rank reaches by plain loads and stores. Between launches the owner's host rewrites
//! every input and reads every output. So the owner's kernel must know that the peer is done.

use super::Expect::{AnyFault, Fault};
use super::{Seen, check, one};
use tilewire::hook::{RoleCtx, Slots, View};
use tilewire::ir::Access;
use tilewire::{Memory, Tensor, Traced, kernel};

seeds! {
    input_loaded_by_a_peer_without_order: Fault("race"),
    input_loaded_by_a_peer_that_does_not_answer: Fault("race"),
    input_loaded_by_a_peer_before_it_is_ready: Fault("race"),
    input_loaded_by_two_peers_of_which_one_answers: Fault("race"),
    input_loaded_by_a_peer_after_it_answered: Fault("race"),
    input_loaded_by_another_block_of_the_peer: Fault("race"),
    tensor_stored_by_a_peer_without_order: AnyFault,
    tensor_stored_by_a_peer_that_does_not_say_so: AnyFault,
    slice_loaded_by_a_peer_without_order: Fault("race"),
    window_stored_by_a_peer_without_order: Fault("race"),
}

fn slots() -> Memory {
    Memory::zeroed(4 * 128)
}

/// A rank whose input is the tensor.
fn owner(x: &Tensor<u64>, slots: &Memory, body: impl for<'t> Fn(&RoleCtx<'t>, Slots<'t>)) -> Traced {
    let traced = kernel("owner", |k| {
        let (_, slots) = (k.input(x).named("x"), k.slots("slots", one(slots), 128));
        k.main(|r| {
            r.barrier();
            body(r, slots);
        });
    });
    traced.unwrap()
}

/// A rank that has the owner's memory as words, and a separate output.
fn peer(
    x: &Memory,
    slots: &Memory,
    body: impl for<'t> Fn(&RoleCtx<'t>, Slots<'t>, View<'t, u64>, View<'t, u64>),
) -> Traced {
    let out = Tensor::<u64>::zeros(4);
    let traced = kernel("peer", |k| {
        let theirs = k.buffer::<u64>("theirs", one(x), Access::InOut).bank(0);
        let (slots, out) = (k.slots("slots", one(slots), 128), k.output(&out));
        k.main(|r| body(r, slots, theirs, out));
    });
    traced.unwrap()
}

/// There are no signals. The host rewrites the input while the peer reads it.
fn input_loaded_by_a_peer_without_order() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), slots());
    let owner = owner(&x, &slots, |_, _| {});
    let load = line!() + 1;
    let peer = peer(x.memory(), &slots, |r, _, theirs, out| r.each(4, |i| out.store(i, theirs.load(i))));
    check(&[vec![owner.clone(), peer.clone()], vec![owner, peer]]).at(&[load])
}

/// The peer knows that the input is ready. The owner does not know that it has been read.
fn input_loaded_by_a_peer_that_does_not_answer() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), slots());
    let load = line!() + 5;
    let launch = |n: i64| {
        let owner = owner(&x, &slots, move |r, slots| r.signal(slots.slot(0, 0), n + 1));
        let peer = peer(x.memory(), &slots, move |r, slots, theirs, out| {
            r.wait(slots.slot(0, 0), n + 1);
            r.each(4, |i| out.store(i, theirs.load(i)));
        });
        vec![owner, peer]
    };
    check(&[launch(0), launch(1)]).at(&[load])
}

/// The owner waits for the answer. The peer does not wait for the host's writes of this launch.
fn input_loaded_by_a_peer_before_it_is_ready() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), slots());
    let load = line!() + 4;
    let launch = |n: i64| {
        let owner = owner(&x, &slots, move |r, slots| r.wait(slots.slot(0, 1), n + 1));
        let peer = peer(x.memory(), &slots, move |r, slots, theirs, out| {
            r.each(4, |i| out.store(i, theirs.load(i)));
            r.signal(slots.slot(0, 1), n + 1);
        });
        vec![owner, peer]
    };
    check(&[launch(0), launch(1)]).at(&[load])
}

/// Both readers get a signal, and one answers.
fn input_loaded_by_two_peers_of_which_one_answers() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), slots());
    let launch = |n: i64| {
        let owner = owner(&x, &slots, move |r, slots| {
            r.signal(slots.slot(0, 0), n + 1);
            r.wait(slots.slot(0, 1), n + 1);
        });
        let peer = |answers: bool| {
            peer(x.memory(), &slots, move |r, slots, theirs, out| {
                r.wait(slots.slot(0, 0), n + 1);
                r.each(4, |i| out.store(i, theirs.load(i)));
                if answers {
                    r.signal(slots.slot(0, 1), n + 1);
                }
            })
        };
        vec![owner, peer(true), peer(false)]
    };
    check(&[launch(0), launch(1)])
}

/// The answer comes before the last load.
fn input_loaded_by_a_peer_after_it_answered() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), slots());
    let load = line!() + 10;
    let launch = |n: i64| {
        let owner = owner(&x, &slots, move |r, slots| {
            r.signal(slots.slot(0, 0), n + 1);
            r.wait(slots.slot(0, 1), n + 1);
        });
        let peer = peer(x.memory(), &slots, move |r, slots, theirs, out| {
            r.wait(slots.slot(0, 0), n + 1);
            r.each(3, |i| out.store(i, theirs.load(i)));
            r.signal(slots.slot(0, 1), n + 1);
            out.store(3, theirs.load(3));
        });
        vec![owner, peer]
    };
    check(&[launch(0), launch(1)]).at(&[load])
}

/// Block 0 of the peer waits and answers; block 1 reads without either.
fn input_loaded_by_another_block_of_the_peer() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), slots());
    let launch = |n: i64| {
        let owner = owner(&x, &slots, move |r, slots| {
            r.signal(slots.slot(0, 0), n + 1);
            r.wait(slots.slot(0, 1), n + 1);
        });
        let out = Tensor::<u64>::zeros(4);
        let peer = kernel("peer", |k| {
            k.blocks(2);
            let theirs = k.buffer::<u64>("theirs", one(x.memory()), Access::InOut).bank(0);
            let (slots, out) = (k.slots("slots", one(&slots), 128), k.output(&out));
            k.main(|r| {
                r.if_(r.block().eq(0), || r.wait(slots.slot(0, 0), n + 1));
                r.each(2, |i| out.store(r.block() * 2 + i, theirs.load(r.block() * 2 + i)));
                r.if_(r.block().eq(0), || r.signal(slots.slot(0, 1), n + 1));
            });
        });
        vec![owner, peer.unwrap()]
    };
    check(&[launch(0), launch(1)])
}

/// The owner binds the tensor for reading and writing, and the peer stores into it at any time.
fn tensor_stored_by_a_peer_without_order() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), slots());
    let owner = kernel("owner", |k| {
        let _x = k.inout(&x).named("x");
        k.main(|r| r.barrier());
    });
    let peer = peer(x.memory(), &slots, |r, _, theirs, _| r.each(4, |i| theirs.store(i, 7u64)));
    let launch = vec![owner.unwrap(), peer];
    check(&[launch.clone(), launch])
}

/// The owner permits the stores and does not wait for them: its host reads too early.
fn tensor_stored_by_a_peer_that_does_not_say_so() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), slots());
    let launch = |n: i64| {
        let owner = kernel("owner", |k| {
            let (_, slots) = (k.inout(&x).named("x"), k.slots("slots", one(&slots), 128));
            k.main(|r| r.signal(slots.slot(0, 0), n + 1));
        });
        let peer = peer(x.memory(), &slots, move |r, slots, theirs, _| {
            r.wait(slots.slot(0, 0), n + 1);
            r.each(4, |i| theirs.store(i, 7u64));
        });
        vec![owner.unwrap(), peer]
    };
    check(&[launch(0), launch(1)])
}

/// The owner binds the second half of a tensor. The peer reads the whole tensor.
fn slice_loaded_by_a_peer_without_order() -> Seen {
    let (whole, slots) = (Tensor::<u64>::zeros(4), slots());
    let owner = owner(&whole.slice(2..4), &slots, |_, _| {});
    let load = line!() + 1;
    let peer = peer(whole.memory(), &slots, |r, _, theirs, out| r.each(2, |i| out.store(i, theirs.load(i + 2))));
    check(&[vec![owner.clone(), peer.clone()], vec![owner, peer]]).at(&[load])
}

/// The plan says that the host reads the window after every launch. The peer stores into it, and nobody waits.
fn window_stored_by_a_peer_without_order() -> Seen {
    let (window, slots) = (Memory::zeroed(32), slots());
    let idle = kernel("owner", |k| k.main(|r| r.barrier()));
    let store = line!() + 1;
    let peer = peer(&window, &slots, |r, _, theirs, _| r.each(4, |i| theirs.store(i, 7u64)));
    let mut plan = super::plan(&[vec![idle.unwrap(), peer]]);
    let report = plan.host_reads(0, &window).verify(&super::settings());
    Seen::from(report).at(&[store])
}
