//! Inputs and outputs that another party writes during the launch. Nobody may write an input ([`Access::In`]), and only
//! plain stores of its own kernel may write an output ([`Access::Out`]). Engines may read them early, or around the
//! caches. So these are faults although every access is signalled.

use super::Expect::{AnyFault, CleanDecided};
use super::{Seen, check, one};
use tilewire::hook::{Block, Captured, RoleCtx};
use tilewire::ir::{Access, BulkDone, Order, Scope};
use tilewire::{Memory, Tensor, Traced, kernel};

seeds! {
    input_put_by_a_peer: AnyFault,
    input_stored_by_a_peer: AnyFault,
    input_added_to_by_a_peer: AnyFault,
    input_bulk_copied_by_a_peer: AnyFault,
    input_posted_by_a_peer: AnyFault,
    input_written_in_the_second_launch: AnyFault,
    input_of_which_a_peer_writes_a_part: AnyFault,
    slice_of_an_input_a_peer_writes: AnyFault,
    captured_tensor_put_by_a_peer: AnyFault,
    banked_input_put_by_a_peer: AnyFault,
    // Memory that one kernel has under two names, and writes, is bound as read and written under both names. The
    // promise concerns other kernels.
    input_written_under_another_name: CleanDecided,
    input_written_by_another_role: CleanDecided,
    input_written_by_another_block: CleanDecided,
    input_written_by_a_rank_that_never_meets_the_owner: AnyFault,
    output_put_by_a_peer: AnyFault,
    output_stored_by_a_peer: AnyFault,
    output_written_under_another_name: CleanDecided,
}

/// The owner says that it is ready, waits until the peer is done, and reads. The fault has the line of the caller's
/// `read`.
fn owner<'t>(r: &RoleCtx<'t>, k: &Block<'t>, slots: &Memory, n: i64, read: impl FnOnce()) {
    let slots = k.slots("slots", one(slots), 128);
    r.signal(slots.slot(0, 0), n + 1);
    r.wait(slots.slot(0, 1), n + 1);
    read();
}

/// A peer that waits until the owner is ready, writes, and says that it is done.
fn peer(slots: &Memory, n: i64, write: impl for<'t> Fn(&Block<'t>, &RoleCtx<'t>)) -> Traced {
    let traced = kernel("peer", |k| {
        let slots = k.slots("slots", one(slots), 128);
        k.main(|r| {
            r.wait(slots.slot(0, 0), n + 1);
            write(k, r);
            r.signal(slots.slot(0, 1), n + 1);
        });
    });
    traced.unwrap()
}

/// An owner that reads all of its input, and the line of the read.
fn reader(x: &Tensor<u64>, slots: &Memory, n: i64) -> (Traced, u32) {
    let out = Tensor::<u64>::zeros(x.len());
    let load = line!() + 4;
    let traced = kernel("owner", |k| {
        let (x, out) = (k.input(x).named("x"), k.output(&out));
        k.main(|r| {
            owner(r, k, slots, n, || r.each(x.len(), |i| out.store(i, x.load(i))));
        });
    });
    (traced.unwrap(), load)
}

fn slots() -> Memory {
    Memory::zeroed(4 * 128)
}

fn input_put_by_a_peer() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), slots());
    let (owner, load) = reader(&x, &slots, 0);
    let put = line!() + 3;
    let peer = peer(&slots, 0, |k, r| {
        let theirs = k.region("theirs", one(x.memory()));
        r.each(4, |i| theirs.put(0, i * 8, 7u64));
    });
    check(&[vec![owner, peer]]).at(&[put, load])
}

fn input_stored_by_a_peer() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), slots());
    let (owner, load) = reader(&x, &slots, 0);
    let store = line!() + 3;
    let peer = peer(&slots, 0, |k, r| {
        let theirs = k.buffer::<u64>("theirs", one(x.memory()), Access::InOut).bank(0);
        r.each(4, |i| theirs.store(i, 7u64));
    });
    check(&[vec![owner, peer]]).at(&[store, load])
}

fn input_added_to_by_a_peer() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), slots());
    let (owner, load) = reader(&x, &slots, 0);
    let add = line!() + 3;
    let peer = peer(&slots, 0, |k, _| {
        let theirs = k.buffer::<u64>("theirs", one(x.memory()), Access::InOut).bank(0);
        theirs.atomic_add(0, 1u64, Order::Relaxed, Scope::System);
    });
    check(&[vec![owner, peer]]).at(&[add, load])
}

fn input_bulk_copied_by_a_peer() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), slots());
    let (owner, load) = reader(&x, &slots, 0);
    let copy = line!() + 6;
    let peer = peer(&slots, 0, |k, r| {
        let theirs = k.region("theirs", one(x.memory()));
        let tile = r.scratch::<u8>(32);
        r.each(32, |i| tile.store(i, 7u8));
        r.proxy_fence();
        r.bulk_copy(theirs.bank(0), tile, 32);
        r.bulk_wait(0, BulkDone::Complete);
    });
    check(&[vec![owner, peer]]).at(&[copy, load])
}

/// The peer's proxy writes the owner's input.
fn input_posted_by_a_peer() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), slots());
    let (ring, source) = (Memory::zeroed(64), Memory::zeroed(64));
    let (owner, load) = reader(&x, &slots, 0);
    let post = line!() + 7;
    let peer = kernel("peer", |k| {
        let (queue, source) = (k.queue("wire", &ring), k.region("source", one(&source)));
        let slots = k.slots("slots", one(&slots), 128);
        k.main(|r| {
            r.wait(slots.slot(0, 0), 1);
            r.each(4, |i| source.put(0, i * 8, 7u64));
            r.post(queue, 0, source.bank(0), 0, 32);
            r.post_signal(queue, 0, 1, 1);
        });
    });
    let mut plan = super::plan(&[vec![owner, peer.unwrap()]]);
    plan.route(&ring, 0, x.memory(), &slots, 128);
    Seen::from(plan.verify(&super::settings())).at(&[post, load])
}

/// The peer reads the input in the first launch and writes it in the second.
fn input_written_in_the_second_launch() -> Seen {
    let (x, slots, out) = (Tensor::<u64>::zeros(4), slots(), Tensor::<u64>::zeros(4));
    let reads = peer(&slots, 0, |k, r| {
        let (theirs, out) = (k.region("theirs", one(x.memory())), k.output(&out));
        r.each(4, |i| out.store(i, theirs.get::<u64>(0, i * 8)));
    });
    let put = line!() + 3;
    let writes = peer(&slots, 1, |k, r| {
        let theirs = k.region("theirs", one(x.memory()));
        r.each(4, |i| theirs.put(0, i * 8, 7u64));
    });
    let ((first, _), (second, load)) = (reader(&x, &slots, 0), reader(&x, &slots, 1));
    check(&[vec![first, reads], vec![second, writes]]).at(&[put, load])
}

/// Only the last element of the input lies in the region of the peer.
fn input_of_which_a_peer_writes_a_part() -> Seen {
    let (x, slots) = (Tensor::<u64>::zeros(4), slots());
    let (owner, load) = reader(&x, &slots, 0);
    let put = line!() + 3;
    let peer = peer(&slots, 0, |k, _| {
        let theirs = k.region("theirs", &[x.memory().part(24, 8)]);
        theirs.put(0, 0, 7u64);
    });
    check(&[vec![owner, peer]]).at(&[put, load])
}

/// The input is the second half of a tensor. The peer writes the whole tensor.
fn slice_of_an_input_a_peer_writes() -> Seen {
    let (whole, slots) = (Tensor::<u64>::zeros(8), slots());
    let (owner, load) = reader(&whole.slice(4..8), &slots, 0);
    let put = line!() + 3;
    let peer = peer(&slots, 0, |k, r| {
        let theirs = k.region("theirs", one(whole.memory()));
        r.each(8, |i| theirs.put(0, i * 8, 7u64));
    });
    check(&[vec![owner, peer]]).at(&[put, load])
}

/// A captured tensor is an input, too.
fn captured_tensor_put_by_a_peer() -> Seen {
    let (x, slots, out) = (Tensor::<u64>::zeros(4), slots(), Tensor::<u64>::zeros(4));
    let load = line!() + 3;
    let reads = kernel("owner", |k| {
        let out = k.output(&out);
        k.main(|r| owner(r, k, &slots, 0, || r.each(4, |i| out.store(i, Captured::at(&x, i)))));
    });
    let put = line!() + 3;
    let peer = peer(&slots, 0, |k, r| {
        let theirs = k.region("theirs", one(x.memory()));
        r.each(4, |i| theirs.put(0, i * 8, 7u64));
    });
    check(&[vec![reads.unwrap(), peer]]).at(&[put, load])
}

/// Memory of a transport that a reader declares as an input.
fn banked_input_put_by_a_peer() -> Seen {
    let (banks, slots) = ([Memory::zeroed(32), Memory::zeroed(32)], slots());
    let out = Tensor::<u64>::zeros(4);
    let load = line!() + 3;
    let reads = kernel("owner", |k| {
        let (banks, out) = (k.buffer::<u64>("banks", &banks, Access::In), k.output(&out));
        k.main(|r| owner(r, k, &slots, 0, || r.each(4, |i| out.store(i, banks.bank(1).load(i)))));
    });
    let store = line!() + 3;
    let peer = peer(&slots, 0, |k, r| {
        let theirs = k.buffer::<u64>("theirs", one(&banks[1]), Access::InOut).bank(0);
        r.each(4, |i| theirs.store(i, 7u64));
    });
    check(&[vec![reads.unwrap(), peer]]).at(&[store, load])
}

/// One role also has its input as a region, and writes the region before it reads.
fn input_written_under_another_name() -> Seen {
    let (x, out) = (Tensor::<u64>::zeros(4), Tensor::<u64>::zeros(4));
    let put = line!() + 4;
    let traced = kernel("two names", |k| {
        let (x, again, out) = (k.input(&x), k.region("again", one(x.memory())), k.output(&out));
        k.main(|r| {
            r.each(4, |i| again.put(0, i * 8, 7u64));
            r.each(4, |i| out.store(i, x.load(i)));
        });
    });
    check(&[vec![traced.unwrap()]]).at(&[put, put + 1])
}

/// The other role signals after it has written the region that is the input.
fn input_written_by_another_role() -> Seen {
    let (x, out, slots) = (Tensor::<u64>::zeros(4), Tensor::<u64>::zeros(4), slots());
    let put = line!() + 5;
    let traced = kernel("two roles", |k| {
        let (x, again, out) = (k.input(&x), k.region("again", one(x.memory())), k.output(&out));
        let slots = k.slots("slots", one(&slots), 128);
        k.role("write", 1).run(|r| {
            r.each(4, |i| again.put(0, i * 8, 7u64));
            r.signal(slots.slot(0, 0), 1);
        });
        k.role("read", 1).run(|r| {
            r.wait(slots.slot(0, 0), 1);
            r.each(4, |i| out.store(i, x.load(i)));
        });
    });
    check(&[vec![traced.unwrap()]]).at(&[put, put + 5])
}

fn input_written_by_another_block() -> Seen {
    let (x, out, slots) = (Tensor::<u64>::zeros(4), Tensor::<u64>::zeros(4), slots());
    let put = line!() + 8;
    let traced = kernel("two blocks", |k| {
        k.blocks(2);
        let (x, again, out) = (k.input(&x), k.region("again", one(x.memory())), k.output(&out));
        let slots = k.slots("slots", one(&slots), 128);
        k.main(|r| {
            let (first, second) = (r.block().eq(0), r.block().eq(1));
            r.if_(first, || {
                r.each(4, |i| again.put(0, i * 8, 7u64));
                r.signal(slots.slot(0, 0), 1);
            });
            r.if_(second, || {
                r.wait(slots.slot(0, 0), 1);
                r.each(4, |i| out.store(i, x.load(i)));
            });
        });
    });
    check(&[vec![traced.unwrap()]]).at(&[put, put + 5])
}

/// Rank 0 owns the input, and rank 1 writes it. They signal each other only through rank 2.
fn input_written_by_a_rank_that_never_meets_the_owner() -> Seen {
    let (x, out, slots) = (Tensor::<u64>::zeros(4), Tensor::<u64>::zeros(4), slots());
    let load = line!() + 6;
    let reads = kernel("owner", |k| {
        let (x, out, slots) = (k.input(&x), k.output(&out), k.slots("slots", one(&slots), 128));
        k.main(|r| {
            r.signal(slots.slot(0, 0), 1);
            r.wait(slots.slot(0, 3), 1);
            r.each(4, |i| out.store(i, x.load(i)));
        });
    });
    let put = line!() + 5;
    let writes = kernel("writer", |k| {
        let (theirs, slots) = (k.region("theirs", one(x.memory())), k.slots("slots", one(&slots), 128));
        k.main(|r| {
            r.wait(slots.slot(0, 1), 1);
            r.each(4, |i| theirs.put(0, i * 8, 7u64));
            r.signal(slots.slot(0, 2), 1);
        });
    });
    let tells = kernel("between", |k| {
        let slots = k.slots("slots", one(&slots), 128);
        k.main(|r| {
            for (from, to) in [(0, 1), (2, 3)] {
                r.wait(slots.slot(0, from), 1);
                r.signal(slots.slot(0, to), 1);
            }
        });
    });
    check(&[vec![reads.unwrap(), writes.unwrap(), tells.unwrap()]]).at(&[put, load])
}

/// An owner that reads back its output after the peer is done, and the line of the read.
fn reads_back(y: &Tensor<u64>, slots: &Memory) -> (Traced, u32) {
    let out = Tensor::<u64>::zeros(y.len());
    let load = line!() + 5;
    let traced = kernel("owner", |k| {
        let (y, out) = (k.output(y).named("y"), k.output(&out));
        k.main(|r| {
            r.each(y.len(), |i| y.store(i, 1u64));
            owner(r, k, slots, 0, || r.each(y.len(), |i| out.store(i, y.load(i))));
        });
    });
    (traced.unwrap(), load)
}

fn output_put_by_a_peer() -> Seen {
    let (y, slots) = (Tensor::<u64>::zeros(4), slots());
    let (owner, load) = reads_back(&y, &slots);
    let put = line!() + 3;
    let peer = peer(&slots, 0, |k, r| {
        let theirs = k.region("theirs", one(y.memory()));
        r.each(4, |i| theirs.put(0, i * 8, 7u64));
    });
    check(&[vec![owner, peer]]).at(&[put, load])
}

/// The peer writes one of four elements, by a plain store.
fn output_stored_by_a_peer() -> Seen {
    let (y, slots) = (Tensor::<u64>::zeros(4), slots());
    let (owner, load) = reads_back(&y, &slots);
    let store = line!() + 3;
    let peer = peer(&slots, 0, |k, _| {
        let theirs = k.buffer::<u64>("theirs", one(y.memory()), Access::InOut).bank(0);
        theirs.store(2, 7u64);
    });
    check(&[vec![owner, peer]]).at(&[store, load])
}

/// One role also has its output as a region.
fn output_written_under_another_name() -> Seen {
    let (y, out) = (Tensor::<u64>::zeros(4), Tensor::<u64>::zeros(4));
    let put = line!() + 5;
    let traced = kernel("two names", |k| {
        let (y, again, out) = (k.output(&y), k.region("again", one(y.memory())), k.output(&out));
        k.main(|r| {
            r.each(4, |i| y.store(i, 1u64));
            r.each(4, |i| again.put(0, i * 8, 7u64));
            r.each(4, |i| out.store(i, y.load(i)));
        });
    });
    check(&[vec![traced.unwrap()]]).at(&[put, put + 1])
}
