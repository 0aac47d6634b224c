//! Collectives by default in one hop: ranks that reach each other's tensors write them directly, and nobody writes them
//! after a launch has failed.

use crate::case::{LONG, SMALL, among, seed, threads};
use std::time::{Duration, Instant};
use tilewire::collective::PreparedExchange;
use tilewire::link::{ShmTransport, Tensors, Transport, Window};
use tilewire::tensor::Axis;
use tilewire::transport::{Rank, RankError, World};
use tilewire::{
    Primitive, RunError, Tensor, all_gather, all_reduce, all_to_all, broadcast, gather, recv, reduce_scatter, scatter,
    send, sendrecv,
};
use tilewire_testkit::random::Random;

/// Elements of a chunk: 24 KiB of f32.
const LEN: usize = 6000;

/// Small whole numbers, so that sums are exact.
fn value(rank: usize, turn: usize, i: usize) -> f32 {
    ((rank * 31 + turn * 57 + i * 7) % 251) as f32
}

fn fill(tensor: &Tensor<f32>, rank: usize, turn: usize) {
    (0..tensor.len()).for_each(|i| tensor.set(i, value(rank, turn, i)));
}

#[track_caller]
fn same(is: &Tensor<f32>, must: impl Fn(usize) -> f32, what: &str) {
    let wrong = (0..is.len()).find(|&i| is.get(i) != must(i));
    assert!(wrong.is_none(), "{what}: element {wrong:?} is {}", is.get(wrong.unwrap_or(0)));
}

#[track_caller]
fn goes(op: &PreparedExchange<'_>, hop: bool, what: &str) {
    assert_eq!(op.explain().contains("  in one hop:"), hop, "{what}: {}", op.explain());
}

/// Every collective, three times each. `hop(needs)`: whether it goes in one hop, if these ranks' outputs are written.
fn every_kind(
    world: &World,
    link: &dyn Transport,
    zeros: &dyn Fn(usize) -> Result<Tensor<f32>, RankError>,
    hop: &dyn Fn(&[usize]) -> bool,
) -> Result<(), RankError> {
    let (me, ranks) = (world.rank().index(), world.size());
    let all: Vec<usize> = (0..ranks).collect();
    let root = Rank::new(ranks as u32 - 1);
    let leaves = &all[..ranks - 1];
    let run = |name: &str,
               [out, inp]: [&Tensor<f32>; 2],
               mut op: PreparedExchange<'_>,
               writes: &[usize],
               must: &dyn Fn(usize, usize) -> Option<f32>| {
        for turn in 0..3 {
            fill(inp, me, turn);
            op.run()?;
            let what = format!("{name}, rank {me} of {ranks}, turn {turn}");
            goes(&op, hop(writes), &what);
            if must(turn, 0).is_some() {
                same(out, |i| must(turn, i).unwrap(), &what);
            }
        }
        Ok::<(), RankError>(())
    };
    let sum = |turn: usize, i: usize| (0..ranks).map(|rank| value(rank, turn, i)).sum::<f32>();
    {
        let (out, inp) = (zeros(ranks * LEN)?, zeros(ranks * LEN)?);
        let op = all_to_all(link, &out, &inp).build()?;
        run("all_to_all", [&out, &inp], op, &all, &|turn, i| Some(value(i / LEN, turn, me * LEN + i % LEN)))?;
        let op = all_to_all(link, &out, &inp).produce(|c| c.input.load(c.pos()) * 2.0).build()?;
        run("doubling", [&out, &inp], op, &all, &|turn, i| Some(2.0 * value(i / LEN, turn, me * LEN + i % LEN)))?;
    }
    {
        let (out, inp) = (zeros(ranks * LEN)?, zeros(LEN)?);
        let op = all_gather(link, &out, &inp).build()?;
        run("all_gather", [&out, &inp], op, &all, &|turn, i| Some(value(i / LEN, turn, i % LEN)))?;
        let op = gather(link, &out, &inp, root).build()?;
        let is_root = me == root.index();
        run("gather", [&out, &inp], op, &[root.index()], &|turn, i| is_root.then(|| value(i / LEN, turn, i % LEN)))?;
        // In place: the input is this rank's chunk of the output.
        let mine = out.slice(me * LEN..(me + 1) * LEN);
        let op = all_gather(link, &out, &mine).build()?;
        run("all_gather in place", [&out, &mine], op, &all, &|turn, i| Some(value(i / LEN, turn, i % LEN)))?;
    }
    {
        let (out, inp) = (zeros(LEN)?, zeros(LEN)?);
        let op = broadcast(link, &out, &inp, root).build()?;
        run("broadcast", [&out, &inp], op, leaves, &|turn, i| Some(value(root.index(), turn, i)))?;
    }
    {
        let (out, inp) = (zeros(LEN)?, zeros(ranks * LEN)?);
        let op = scatter(link, &out, &inp, root).build()?;
        run("scatter", [&out, &inp], op, leaves, &|turn, i| Some(value(root.index(), turn, me * LEN + i)))?;
        let op = reduce_scatter(link, &out, &inp).build()?;
        run("reduce_scatter", [&out, &inp], op, &all, &|turn, i| Some(sum(turn, me * LEN + i)))?;
        let mine = inp.slice(me * LEN..(me + 1) * LEN);
        let op = reduce_scatter(link, &mine, &inp).build()?;
        run("reduce_scatter in place", [&mine, &inp], op, &all, &|turn, i| Some(sum(turn, me * LEN + i)))?;
    }
    {
        let (out, inp) = (zeros(ranks * LEN + 1)?, zeros(ranks * LEN + 1)?);
        let op = all_reduce(link, &out, &inp).build()?;
        run("all_reduce", [&out, &inp], op, &all, &|turn, i| Some(sum(turn, i)))?;
        let op = all_reduce(link, &out, &out).build()?;
        run("all_reduce in place", [&out, &out], op, &all, &|turn, i| Some(sum(turn, i)))?;
    }
    // Every direction of a ring is decided by its two ranks. Messages have lengths of their own.
    let (to, from) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    let (out, inp) = (zeros(LEN + from)?, zeros(LEN + me)?);
    let mut op = sendrecv(link, &out, &inp, Rank::new(to as u32), Rank::new(from as u32)).build()?;
    for turn in 0..3 {
        fill(&inp, me, turn);
        op.run()?;
        let way = match (hop(&[to]), hop(&[me])) {
            (true, true) => "in one hop: all ranks reach",
            (true, false) => "in one hop: what it sends;",
            (false, true) => "in one hop: what it receives;",
            (false, false) => "not in one hop:",
        };
        assert!(op.explain().contains(way), "sendrecv, rank {me} of {ranks}: {}", op.explain());
        same(&out, |i| value(from, turn, i), "sendrecv");
    }
    Ok(())
}

#[test]
fn threads_write_any_memory_of_each_other() {
    for ranks in [2, 3] {
        threads(ranks, "threads", |world| {
            let link = ShmTransport::rendezvous(world, SMALL)?;
            every_kind(world, &link, &|len| Ok(Tensor::zeros(len)), &|_| true)?;
            every_kind(world, &link, &|len| Ok(link.zeros(len)?), &|_| true)?;
            Ok(link.close()?)
        });
    }
}

#[cfg(target_os = "linux")]
mod processes {
    use super::*;
    use tilewire_testkit::job::Member;
    use tilewire_testkit::ranks::{in_worlds, join_within, start};

    #[test]
    fn processes_write_memory_of_the_transport() {
        let test = "collectives::one_hop::processes::processes_write_memory_of_the_transport";
        in_worlds(test, [2, 3], |world| {
            let link = ShmTransport::rendezvous(world, SMALL)?;
            every_kind(world, &link, &|len| Ok(link.zeros(len)?), &|_| true)?;
            // Ordinary memory is out of reach.
            every_kind(world, &link, &|len| Ok(Tensor::zeros(len)), &|_| false)?;
            // A part of a window, which the call does not name.
            let (window, used) = (Window::<f32>::allocate(&link, 60 * LEN)?, std::cell::Cell::new(7));
            let part = |len: usize| {
                let first = used.replace(used.get() + len);
                Ok(window.tensor().slice(first..first + len))
            };
            every_kind(world, &link, &part, &|_| true)?;
            Ok(link.close()?)
        });
    }

    #[test]
    fn one_rank_out_of_reach_sends_all_through_staging() {
        let test = "collectives::one_hop::processes::one_rank_out_of_reach_sends_all_through_staging";
        in_worlds(test, [3], |world| {
            let link = ShmTransport::rendezvous(world, SMALL)?;
            let me = world.rank().index();
            let zeros = |len: usize| match me {
                0 => Ok(Tensor::zeros(len)),
                _ => Ok(link.zeros(len)?),
            };
            every_kind(world, &link, &zeros, &|writes| !writes.contains(&0))?;
            Ok(link.close()?)
        });
    }

    /// Rank 1 can open no more files, so it cannot map what the others offer.
    #[test]
    fn a_rank_that_cannot_map_memory_sends_all_through_staging() {
        let test = "collectives::one_hop::processes::a_rank_that_cannot_map_memory_sends_all_through_staging";
        in_worlds(test, [3], |world| {
            let link = ShmTransport::rendezvous(world, SMALL)?;
            let (out, inp) = (link.zeros::<f32>(3 * LEN)?, link.zeros::<f32>(LEN)?);
            fill(&inp, world.rank().index(), 0);
            let mut op = all_gather(&link, &out, &inp).build()?;
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: `limit` is writable for the call.
            assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
            let allow = |files: libc::rlim_t| {
                let allowed = libc::rlimit { rlim_cur: files, ..limit };
                // SAFETY: `allowed` is readable for the call.
                assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const allowed) }, 0);
            };
            if world.rank() == Rank::new(1) {
                use std::os::fd::AsRawFd;
                let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
                allow(next as libc::rlim_t);
            }
            op.run()?;
            allow(limit.rlim_cur);
            goes(&op, false, "a rank without descriptors");
            assert!(op.explain().contains("rank 1 cannot map") || world.rank() == Rank::new(1), "{}", op.explain());
            same(&out, |i| value(i / LEN, 0, i % LEN), "all_gather");
            drop(op);
            // The next one finds what it needs.
            let mut op = all_gather(&link, &out, &inp).build()?;
            op.run()?;
            goes(&op, true, "with descriptors");
            drop(op);
            Ok(link.close()?)
        });
    }

    /// Runs exchanges until one fails. Then the output belongs to this rank alone.
    fn until_it_fails(member: &mut Member, world: &World, deadline: Duration) {
        let link = ShmTransport::rendezvous(world, SMALL).unwrap();
        let (ranks, len) = (world.size(), 300_000);
        let (out, inp) = (link.zeros::<u32>(ranks * len).unwrap(), link.zeros::<u32>(ranks * len).unwrap());
        inp.fill(7);
        let mut op = all_to_all(&link, &out, &inp).deadline(deadline).build().unwrap();
        op.run().unwrap();
        assert!(op.explain().contains("  in one hop:"), "{}", op.explain());
        member.report("under way");
        let error = loop {
            if let Err(error) = op.run() {
                break error;
            }
        };
        let is_mine = !out.memory().is_shared();
        out.fill(0xabcd);
        member.report(format!("{is_mine} {error}"));
        // All others have failed, too, and those that were stopped go on.
        member.hear();
        std::thread::sleep(Duration::from_millis(5));
        assert!(!is_mine || out.to_vec().iter().all(|&x| x == 0xabcd), "written after the launch had failed");
        member.report("intact");
    }

    fn rounds() -> u64 {
        std::env::var("TILEWIRE_KILLS").map_or(12, |kills| kills.parse().unwrap())
    }

    #[test]
    fn nobody_writes_an_output_after_a_peer_was_killed() {
        let test = "collectives::one_hop::processes::nobody_writes_an_output_after_a_peer_was_killed";
        if let Some(mut member) = Member::of_this_process() {
            let world = join_within(&mut member, "60s");
            return until_it_fails(&mut member, &world, LONG);
        }
        let mut random = Random::new(seed());
        for round in 0..rounds() {
            let (ranks, victim) = (3, random.below(3));
            let (mut job, _store) = start(test, ranks);
            job.expect(0..ranks, "under way");
            spin(Duration::from_micros(random.below(3000) as u64));
            job.kill(victim);
            let others: Vec<usize> = (0..ranks).filter(|&rank| rank != victim).collect();
            for &rank in &others {
                let told = job.report(rank);
                assert!(told.starts_with("true") && told.contains(&format!("rank {victim} died")), "{round}: {told}");
            }
            others.iter().for_each(|&rank| job.tell(rank, b"look"));
            others.iter().for_each(|&rank| assert_eq!(job.report(rank), "intact", "round {round}, seed {}", seed()));
        }
    }

    #[test]
    fn an_output_comes_back_when_a_stopped_peer_goes_on() {
        let test = "collectives::one_hop::processes::an_output_comes_back_when_a_stopped_peer_goes_on";
        if let Some(mut member) = Member::of_this_process() {
            let world = join_within(&mut member, "60s");
            return until_it_fails(&mut member, &world, Duration::from_millis(200));
        }
        let mut random = Random::new(seed());
        for round in 0..rounds().div_ceil(3) {
            let (ranks, victim) = (2, random.below(2));
            let (mut job, _store) = start(test, ranks);
            job.expect(0..ranks, "under way");
            spin(Duration::from_micros(random.below(3000) as u64));
            // SAFETY: stops and continues a child of this process.
            let signal = |signal| assert_eq!(unsafe { libc::kill(job.pid(victim), signal) }, 0);
            signal(libc::SIGSTOP);
            std::thread::sleep(Duration::from_millis(500));
            signal(libc::SIGCONT);
            (0..ranks).for_each(|rank| _ = job.report(rank));
            (0..ranks).for_each(|rank| job.tell(rank, b"look"));
            (0..ranks).for_each(|rank| assert_eq!(job.report(rank), "intact", "round {round}, seed {}", seed()));
        }
    }

    #[test]
    fn an_output_that_does_not_come_back_is_not_lent_again() {
        let test = "collectives::one_hop::processes::an_output_that_does_not_come_back_is_not_lent_again";
        if let Some(mut member) = Member::of_this_process() {
            let world = join_within(&mut member, "60s");
            let link = ShmTransport::rendezvous(&world, SMALL).unwrap();
            let len = 300_000;
            let (out, inp) = (link.zeros::<u32>(2 * len).unwrap(), link.zeros::<u32>(2 * len).unwrap());
            let mut op = all_to_all(&link, &out, &inp).deadline(Duration::from_millis(100)).build().unwrap();
            op.run().unwrap();
            assert!(link.offer(out.memory()).is_some());
            member.report("under way");
            let error = loop {
                if let Err(error) = op.run() {
                    break error.to_string();
                }
            };
            let is_mine = !out.memory().is_shared();
            assert_eq!(is_mine, !error.contains("drop them, and make others"), "{error}");
            // Either host code may have its elements, or a peer may still write them.
            let cells = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| _ = out.cells()));
            assert_eq!(cells.is_ok(), is_mine);
            assert!(link.offer(out.memory()).is_none());
            return member.report(is_mine.to_string());
        }
        // Rank 1 is seldom stopped between two launches.
        let kept = (0..8).find(|round| {
            let (mut job, _store) = start(test, 2);
            job.expect(0..2, "under way");
            spin(Duration::from_micros(400 * round));
            // SAFETY: stops and continues a child of this process.
            let signal = |signal| assert_eq!(unsafe { libc::kill(job.pid(1), signal) }, 0);
            signal(libc::SIGSTOP);
            let is_mine = job.report(0) == "true";
            // SAFETY: as above.
            assert_eq!(unsafe { libc::kill(job.pid(1), libc::SIGCONT) }, 0);
            _ = job.report(1);
            !is_mine
        });
        assert!(kept.is_some());
    }

    fn spin(time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn what_peers_cannot_reach_goes_through_staging() {
    threads(2, "staging", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let me = world.rank().index();
        let inp = Tensor::<f32>::zeros(LEN);
        fill(&inp, me, 0);
        let right = |out: &Tensor<f32>| same(out, |i| value(i / LEN, 0, i % LEN), "all_gather");
        // Lent on one rank.
        let mut borrowed = vec![0.0f32; 2 * LEN];
        Tensor::lend(&mut borrowed, |lent| {
            let own = Tensor::zeros(2 * LEN);
            let out = if me == 0 { lent } else { &own };
            let mut op = all_gather(&link, out, &inp).build()?;
            op.run()?;
            goes(&op, false, "lent");
            right(out);
            Ok::<(), RunError>(())
        })?;
        // With gaps between its rows on both.
        let wide = Tensor::<f32>::zeros(120 * 100).reshape(120, 100).unwrap();
        let (columns, rows) = (wide.columns(0..100), Tensor::<f32>::zeros(60 * 100).reshape(60, 100).unwrap());
        fill(&rows, me, 1);
        let gapped = Tensor::<f32>::zeros(120 * 110).reshape(120, 110).unwrap().columns(5..105);
        for (out, hop) in [(&columns, true), (&gapped, false)] {
            let mut op = all_gather(&link, out, &rows).build()?;
            op.run()?;
            goes(&op, hop, "rows");
            same(out, |i| value(i / 6000, 1, i % 6000), "rows");
        }
        // Columns of a whole matrix.
        let part = Tensor::<f32>::zeros(120 * 50).reshape(120, 50).unwrap();
        fill(&part, me, 2);
        let mut op = all_gather(&link, &wide, &part).along(Axis::Cols).build()?;
        op.run()?;
        goes(&op, true, "columns");
        same(&wide, |i| value(i % 100 / 50, 2, i / 100 * 50 + i % 50), "columns");
        drop(op);
        // A hook where it arrives, a choice of the caller, a small message, and calls of one side each.
        let out = Tensor::<f32>::zeros(2 * LEN);
        let mut ops = [
            all_gather(&link, &out, &inp)
                .produce(|c| c.input.load(c.pos()))
                .consume(|c, x| c.output.store(c.pos(), x))
                .build()?,
            all_gather(&link, &out, &inp).primitive(Primitive::Staged).build()?,
            all_gather(&link, &out, &inp).depth(4).build()?,
        ];
        for op in &mut ops {
            fill(&out, 9, 9);
            op.run()?;
            goes(op, false, "chosen");
            right(&out);
        }
        drop(ops);
        // One rank has a hook where it arrives, the other has not.
        let gather = all_gather(&link, &out, &inp).produce(|c| c.input.load(c.pos()));
        let mut op =
            if me == 0 { gather.consume(|c, x| c.output.store(c.pos(), x)).build()? } else { gather.build()? };
        op.run()?;
        goes(&op, false, "a hook on one side");
        right(&out);
        drop(op);
        let (first, second) = (Rank::new(0), Rank::new(1));
        let got = Tensor::<f32>::zeros(LEN);
        // A sendrecv that meets a send and a receive.
        if me == 0 {
            let mut both = sendrecv(&link, &got, &inp, second, second).build()?;
            both.run()?;
            goes(&both, false, "a sendrecv with a send and a receive");
            same(&got, |i| value(1, 0, i), "sendrecv");
        } else {
            // As rank 0 does, both at the same time.
            let (mut to, mut from) = (send(&link, &inp, first).build()?, recv(&link, &got, first).build()?);
            to.run()?;
            from.run()?;
            goes(&to, false, "a send");
            same(&got, |i| value(0, 0, i), "recv");
        }
        Ok(link.close()?)
    });
}

/// So what is checked of collectives through windows holds for those that take one hop by default.
#[test]
fn the_kernel_in_one_hop_is_that_of_windows() {
    threads(3, "kernels", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let window = |len: usize| Window::<f32>::allocate(&link, len);
        let (wide, other, narrow) = (window(3 * LEN)?, window(3 * LEN)?, window(LEN)?);
        let zeros = |len: usize| Tensor::<f32>::zeros(len);
        let (out, inp, part) = (zeros(3 * LEN), zeros(3 * LEN), zeros(LEN));
        let root = Rank::new(1);
        let (x, y, z) = (wide.tensor(), other.tensor(), narrow.tensor());
        let pairs = [
            [all_to_all(&link, x, &inp).window(&wide).build()?, all_to_all(&link, &out, &inp).build()?],
            [all_gather(&link, x, &part).window(&wide).build()?, all_gather(&link, &out, &part).build()?],
            [broadcast(&link, z, &inp.slice(0..LEN), root).window(&narrow).build()?, {
                broadcast(&link, &part, &inp.slice(0..LEN), root).build()?
            }],
            [gather(&link, x, &part, root).window(&wide).build()?, gather(&link, &out, &part, root).build()?],
            [scatter(&link, z, &inp, root).window(&narrow).build()?, scatter(&link, &part, &inp, root).build()?],
            [reduce_scatter(&link, &part, x).window(&wide).build()?, reduce_scatter(&link, &part, &inp).build()?],
            [all_reduce(&link, x, y).window(&wide).window(&other).build()?, all_reduce(&link, &out, &inp).build()?],
            [all_reduce(&link, x, x).window(&wide).build()?, all_reduce(&link, &out, &out).build()?],
        ];
        for [mut windows, mut default] in pairs {
            windows.run()?;
            default.run()?;
            goes(&default, true, "the default");
            assert_eq!(default.kernel().to_string(), windows.kernel().to_string());
        }
        Ok(link.close()?)
    });
}

#[test]
fn other_tensors_may_be_bound_on_one_rank_alone() {
    threads(2, "rebind", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let me = world.rank().index();
        let tensors = |k: usize| {
            let (out, inp) = (Tensor::<f32>::zeros(2 * LEN), Tensor::<f32>::zeros(2 * LEN));
            fill(&out, 5, k);
            fill(&inp, me, k);
            (out, inp)
        };
        let turned = |k: usize| move |i: usize| value(i / LEN, k, me * LEN + i % LEN);
        for before in [false, true] {
            let (old, mine) = tensors(0);
            let mut op = all_to_all(&link, &old, &mine).build()?;
            let mut now = old.clone();
            for k in 1..6 {
                // Rank 1 also binds its first output again, and another input alone. Rank 0 rebinds every other time.
                let (out, inp) = tensors(k);
                let out = if me == 1 && k % 2 == 0 { old.clone() } else { out };
                fill(&mine, me, k);
                fill(&old, 6, 6);
                if me == 1 || k % 2 == 1 {
                    op.rebind(&out, &inp)?;
                    now = out;
                } else {
                    op.rebind(&now, &mine)?;
                }
                if before || k > 1 {
                    op.run()?;
                    same(&now, turned(k), &format!("rebound {k} on rank {me}"));
                    if !std::ptr::eq(now.memory().start().as_ptr(), old.memory().start().as_ptr()) {
                        same(&old, |i| value(6, 6, i), "the first output is left alone");
                    }
                }
            }
        }
        // To and fro: the new input is the old output.
        let (x, y) = tensors(0);
        let mut op = all_to_all(&link, &x, &y).build()?;
        let mut both = [x, y];
        for k in 0..5 {
            fill(&both[1], me, k);
            op.rebind(&both[0], &both[1])?;
            op.run()?;
            same(&both[0], turned(k), "to and fro");
            same(&both[1], |i| value(me, k, i), "the input stays");
            both.swap(0, 1);
        }
        drop(op);
        // An input that was lent when the collective was built, and that its owner has back.
        let mut borrowed = vec![1.0f32; 2 * LEN];
        let out = Tensor::<f32>::zeros(2 * LEN);
        let mut op = Tensor::lend(&mut borrowed, |lent| {
            let mut op = all_to_all(&link, &out, lent).build()?;
            op.run()?;
            goes(&op, true, "a lent input");
            Ok::<_, RunError>(op)
        })?;
        let (other, inp) = tensors(3);
        op.rebind(&other, &inp)?;
        op.run()?;
        same(&other, turned(3), "after the loan");
        assert!(borrowed.iter().all(|&x| x == 1.0));
        drop(op);
        // Reductions, whose inputs are reached.
        let sum = |k: usize| move |i: usize| value(0, k, i) + value(1, k, i);
        let (out, inp) = tensors(0);
        let mut op = all_reduce(&link, &out, &inp).build()?;
        let mut part = reduce_scatter(&link, &out.slice(0..LEN), &inp).build()?;
        let mut placed = all_reduce(&link, &out, &out).build()?;
        for k in 1..4 {
            let (other, inp) = tensors(k);
            op.rebind(&other, &inp)?;
            op.run()?;
            same(&other, sum(k), "all_reduce");
            part.rebind(&other.slice(0..LEN), &inp)?;
            part.run()?;
            same(&other.slice(0..LEN), |i| sum(k)(me * LEN + i), "reduce_scatter");
            placed.rebind(&inp, &inp)?;
            placed.run()?;
            same(&inp, sum(k), "in place");
        }
        drop((op, part, placed));
        Ok(link.close()?)
    });
}

/// A rank with a short deadline gives up while the others are still copying into its output, which takes them longer.
#[test]
fn nobody_writes_an_output_after_its_launch_has_expired() {
    let rounds = std::env::var("TILEWIRE_KILLS").map_or(8, |kills| kills.parse().unwrap());
    for round in 0..rounds {
        let len = (1 << 20) + round * 99_991 % (1 << 20);
        let errors = among(3, LONG, |world| {
            let link = ShmTransport::rendezvous(&world, SMALL)?;
            let (out, inp) = (Tensor::<u32>::zeros(3 * len), Tensor::<u32>::zeros(3 * len));
            let is_short = world.rank() == Rank::new(0);
            let deadline = if is_short { Duration::from_millis(1) } else { LONG };
            let meet = |name: &str| world.bootstrap().barrier(name, LONG.into());
            let met = all_to_all(&link, &out, &inp).build()?.run();
            met?;
            let mut op = all_to_all(&link, &out, &inp).deadline(deadline).build()?;
            meet("built")?;
            let mut failed = None;
            for _ in 0..50 {
                if let Err(error) = op.run() {
                    failed = Some(error.to_string());
                    break;
                }
            }
            let is_mine = !out.memory().is_shared();
            out.fill(0xabcd);
            meet("over")?;
            assert!(!is_mine || out.to_vec().iter().all(|&x| x == 0xabcd), "written after the launch had failed");
            Ok((failed, is_mine))
        });
        let errors = errors.unwrap();
        assert!(errors.iter().all(|(_, is_mine)| *is_mine), "{errors:?}");
    }
}

/// Peers write only memory that nobody else can touch: a launch that makes a detour through it restores its bytes.
#[test]
fn memory_that_others_may_touch_is_not_offered() {
    threads(2, "foreign", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let me = world.rank().index();
        let inp = Tensor::<f32>::zeros(LEN);
        fill(&inp, me, 0);
        let mut bytes = vec![0.0f32; 2 * LEN];
        let start = std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the vector outlives the tensor and the exchange, and nobody else uses it until they are gone.
        let foreign = unsafe { Tensor::from_raw(start, bytes.len(), std::sync::Arc::new(())) };
        let window = Window::<f32>::allocate(&link, 2 * LEN)?;
        let registered = Tensor::<f32>::zeros(2 * LEN);
        let _registered = Window::register(&link, &registered)?;
        let own = Tensor::<f32>::zeros(2 * LEN);
        // References to elements stay on the thread, so they do not matter among threads.
        own.cells();
        for (out, hop) in [(&foreign, false), (window.tensor(), false), (&registered, false), (&own, true)] {
            let mut op = all_gather(&link, out, &inp).build()?;
            op.run()?;
            goes(&op, hop, "memory of others");
            same(out, |i| value(i / LEN, 0, i % LEN), "all_gather");
        }
        Ok(link.close()?)
    });
}

/// What a rebinding refuses leaves the kernel and its tensors as they are, and what it accepts works.
#[test]
fn a_detour_binds_what_it_may_and_refuses_by_halves_nothing() {
    threads(2, "detours", |world| {
        let link = ShmTransport::rendezvous(world, SMALL)?;
        let me = world.rank().index();
        let turned = |k: usize| move |i: usize| value(i / LEN, k, me * LEN + i % LEN);
        // The input is a part of a tensor that the hook captures.
        let whole = Tensor::<f32>::zeros(2 * LEN + 1);
        let inp = whole.slice(0..2 * LEN);
        let (old, other, third) = (Tensor::zeros(2 * LEN), Tensor::<f32>::zeros(2 * LEN), Tensor::zeros(2 * LEN));
        let twice = |k: usize| move |i: usize| 2.0 * turned(k)(i);
        for before in [true, false] {
            let mut op = all_to_all(&link, &old, &inp)
                .produce(|c| c.input.load(c.pos()) + c.captured(&whole).load(c.pos()) * 0.0 + c.input.load(c.pos()))
                .build()?;
            fill(&inp, me, 1);
            if before {
                op.run()?;
                goes(&op, true, "captured");
            }
            fill(&old, 7, 7);
            op.rebind(&other, &inp)?;
            op.run()?;
            assert!(op.explain().contains("with copies"), "{}", op.explain());
            same(&other, twice(1), "captured");
            same(&old, |i| value(7, 7, i), "the first output");
            // It would not overlap what is captured.
            fill(&other, 8, 8);
            let error = op.rebind(&third, &Tensor::<f32>::zeros(2 * LEN)).unwrap_err();
            assert!(matches!(error, RunError::Rebind(_)), "{error}");
            // Neither the old output nor the refused one is written.
            fill(&third, 9, 9);
            op.run()?;
            same(&other, twice(1), "after a refusal");
            same(&third, |i| value(9, 9, i), "the refused output");
            same(&old, |i| value(7, 7, i), "the first output");
        }
        // The new output overlaps the old input, and the new input the old output: only then there is a copy of both.
        let both = Tensor::<f32>::zeros(4 * LEN);
        let (out, inp) = (both.slice(0..2 * LEN), both.slice(2 * LEN..4 * LEN));
        let mut op = all_to_all(&link, &out, &inp).build()?;
        op.run()?;
        let (out, inp) = (both.slice(LEN..3 * LEN), Tensor::<f32>::zeros(2 * LEN));
        fill(&inp, me, 2);
        op.rebind(&out, &inp)?;
        op.run()?;
        same(&out, turned(2), "an output across both");
        drop(op);
        Ok(link.close()?)
    });
}

/// A detour that cannot begin ends the launches of the peers: they have launched, or will.
#[test]
fn a_detour_that_cannot_begin_tells_the_peers() {
    let errors = among(2, LONG, |world| {
        let link = ShmTransport::rendezvous(&world, SMALL)?;
        let me = world.rank().index();
        let tensor = || Tensor::<f32>::zeros(2 * LEN);
        let mut op = all_to_all(&link, &tensor(), &tensor()).build()?;
        op.run()?;
        if me == 0 {
            let mut borrowed = vec![1.0f32; 2 * LEN];
            Tensor::lend(&mut borrowed, |lent| op.rebind(lent, &tensor()))?;
        }
        let start = Instant::now();
        let error = op.run().unwrap_err();
        assert!(start.elapsed() < LONG / 2, "{error}");
        Ok(error.to_string())
    });
    let errors = errors.unwrap();
    assert!(errors[0].contains("was lent"), "{errors:?}");
    assert!(errors[1].contains("rank 0"), "{errors:?}");
}
