//! The checker's executor and the CPU engine compute the same bytes, so the checked program is the one that runs.

use std::time::Duration;
use tilewire::check::{Plan, Settings};
use tilewire::link::{ShmOptions, ShmTransport, Transport, Window};
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::schedule::{Tiling, recv_direct, send_direct};
use tilewire::transport::{Protocol, Rank, World};
use tilewire::{Knobs, Memory, Primitive, RunError, Tensor, Traced, kernel, sendrecv};

/// One launch of a ring: every rank sends to the next.
#[derive(Clone, Copy, Debug)]
struct Shift {
    way: Primitive,
    len: usize,
    /// Slot bytes and depth.
    slots: Option<(usize, usize)>,
}

impl Shift {
    /// Launches by one primitive, with another length each time. Staged launches also change their slots. There are
    /// enough launches of packets to reuse places.
    fn sequence(way: Primitive, blocks: usize) -> Vec<Shift> {
        match way {
            Primitive::Staged | Primitive::Bulk => [(128, 4, 400), (256, 8, 391), (128, 2, 7), (128, 4, 400)]
                .map(|(bytes, depth, len)| Shift { way, len: blocks * len, slots: Some((bytes, depth)) })
                .to_vec(),
            Primitive::Packet => {
                (0..11).map(|launch| Shift { way, len: blocks * (16 - launch % 3), slots: None }).collect()
            }
            _ => (0..4).map(|launch| Shift { way, len: blocks * 48 - launch % 3 * 7, slots: None }).collect(),
        }
    }

    fn config(&self, blocks: usize) -> Knobs {
        Knobs {
            primitive: Some(self.way),
            blocks: Some(blocks),
            slot_bytes: self.slots.map(|(bytes, _)| bytes),
            depth: self.slots.map(|(_, depth)| depth),
            granule: Some(1),
            ..Knobs::default()
        }
    }

    /// The numbers that a rank sends in a launch. No number is sent twice.
    fn input(&self, rank: Rank, launch: usize) -> Tensor<f32> {
        Tensor::from_fn(self.len, |i| (rank.number() as usize * 100_003 + launch * 5009 + i * 7) as f32 * 0.37)
    }

    /// The expected result, computed without the framework.
    fn expected(&self, from: Rank, launch: usize) -> Vec<u8> {
        let sent = self.input(from, launch).to_vec();
        let consumed = |x: f32| if self.way == Primitive::Direct { x } else { x - 1.5 };
        sent.iter().flat_map(|x| consumed(x * 0.3 + 2.0).to_le_bytes()).collect()
    }

    /// Both hooks. With a window there is no consume hook, so `direct` has one hook.
    fn trace(&self, link: &RehearsalRank, launch: usize, blocks: usize, outs: &[Memory]) -> Result<Traced, RunError> {
        let ((to, from), me) = (link.neighbours(), link.rank());
        let x = self.input(me, launch);
        if self.way != Primitive::Direct {
            let y = Tensor::<f32>::zeros(self.len);
            let traced = sendrecv(link, &y, &x, to, from)
                .config(self.config(blocks))
                .produce(|c| c.input.load(c.pos()) * 0.3 + 2.0)
                .consume(|c, x| c.output.store(c.pos(), x - 1.5));
            return traced.trace();
        }
        let (protocol, max_blocks) =
            (Protocol::Direct { window_bytes: self.len * 4 }, link.link(link.rank()).max_blocks);
        let tiling = Tiling::flat(self.len, 1, blocks).bands(1);
        Ok(kernel("direct", |k| {
            k.blocks(blocks as u32);
            let x = k.input(&x).named("input");
            let tx = link.sender(k, to, protocol, Some(&outs[to.index()]));
            let rx = link.receiver(k, from, protocol);
            k.role("send", 4).run(|r| {
                send_direct::<f32>(r, &tx, max_blocks, tiling, |at| x.load(at.pos) * 0.3 + 2.0);
            });
            k.role("receive", 4).run(|r| recv_direct(r, &rx, max_blocks, blocks));
        })?)
    }
}

/// The outputs by launch, then by rank.
type Outputs = Vec<Vec<Vec<u8>>>;

/// Run with every seed. The plan is always the same, and its check depends on no seed, so it is checked once.
fn checked(shifts: &[Shift], ranks: usize, blocks: usize, seeds: &[Option<u64>]) -> Vec<Outputs> {
    let (links, mut plan) = (Rehearsal::small(ranks, blocks).ranks(), Plan::new(ranks as u32));
    let mut outs: Vec<Vec<Memory>> = Vec::new();
    for (launch, shift) in shifts.iter().enumerate() {
        let mut out: Vec<Memory> = (0..ranks).map(|_| Memory::zeroed(shift.len * 4)).collect();
        let traced: Vec<_> = links.iter().map(|link| shift.trace(link, launch, blocks, &out).unwrap()).collect();
        let all: Vec<_> = traced.iter().map(|traced| (&traced.kernel, &traced.args[..])).collect();
        plan.launch(&all);
        if shift.way == Primitive::Direct {
            (0..).zip(&out).for_each(|(rank, window)| _ = plan.host_reads(rank, window));
        } else {
            out = traced.iter().map(output).collect();
        }
        outs.push(out);
    }
    let settings = Settings::default();
    let report = plan.verify(&settings);
    assert!(report.is_clean() && report.is_decided(), "{report}");
    let computed = |&seed: &Option<u64>| -> Outputs {
        let after = plan.run(&settings, seed).unwrap();
        outs.iter().map(|out| out.iter().map(|memory| after.bytes(memory)).collect()).collect()
    };
    seeds.iter().map(computed).collect()
}

/// The memory of the one output of a kernel.
fn output(traced: &Traced) -> Memory {
    use tilewire::ir::{Access, Param};
    let is_output = |param: &Param| matches!(param, Param::Buffer { access: Access::Out, .. });
    let place = traced.kernel.params.values().position(is_output).expect("an output");
    match &traced.args[place] {
        tilewire::Arg::Buffer(banks) => banks[0].clone(),
        other => panic!("{other:?} is no buffer"),
    }
}

fn engine(shifts: &[Shift], ranks: usize, blocks: usize) -> Outputs {
    let options = ShmOptions {
        per_peer_bytes: Some(2048 * blocks),
        max_blocks_per_peer: Some(blocks),
        max_slots: Some(8),
        max_copies: 4,
        packet_bytes: Some(4096 * blocks),
        window_sets: Some(2),
        populate: false,
    };
    let world = World::threads(ranks).deadline(Duration::from_secs(120));
    let by_rank = world.run(|world| {
        let link = ShmTransport::rendezvous(&world, options)?;
        let (me, size) = (world.rank(), world.size());
        let (to, from) = (me.after(1, size), me.after(size - 1, size));
        let mut outputs = Vec::new();
        for (launch, shift) in shifts.iter().enumerate() {
            let (x, config) = (shift.input(me, launch), shift.config(blocks));
            let y = match shift.way {
                Primitive::Direct => {
                    let window = Window::<f32>::allocate(&link, shift.len)?;
                    let y = window.tensor().clone();
                    let shift = sendrecv(&link, &y, &x, to, from).config(config).window(&window);
                    shift.produce(|c| c.input.load(c.pos()) * 0.3 + 2.0).run()?;
                    y
                }
                _ => {
                    let y = Tensor::<f32>::zeros(shift.len);
                    let shift = sendrecv(&link, &y, &x, to, from).config(config);
                    let shift = shift.produce(|c| c.input.load(c.pos()) * 0.3 + 2.0);
                    shift.consume(|c, x| c.output.store(c.pos(), x - 1.5)).run()?;
                    y
                }
            };
            outputs.push(y.to_vec().iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        }
        link.close()?;
        Ok(outputs)
    });
    let by_rank = by_rank.unwrap();
    (0..shifts.len()).map(|launch| by_rank.iter().map(|outputs| outputs[launch].clone()).collect()).collect()
}

#[test]
fn the_checker_and_the_cpu_engine_compute_the_same_bytes() {
    for ranks in 2..=4 {
        for blocks in 1..=2 {
            for way in [Primitive::Staged, Primitive::Bulk, Primitive::Packet, Primitive::Direct] {
                let shifts = Shift::sequence(way, blocks);
                let ran = engine(&shifts, ranks, blocks);
                let seeds = [None, Some(1), Some(2)];
                for (seed, computed) in seeds.iter().zip(checked(&shifts, ranks, blocks, &seeds)) {
                    assert!(computed == ran, "{way:?}, {ranks} ranks, {blocks} blocks, seed {seed:?}");
                }
                for (launch, shift) in shifts.iter().enumerate() {
                    for (rank, bytes) in ran[launch].iter().enumerate() {
                        let from = Rank::new(rank as u32).after(ranks - 1, ranks);
                        assert!(*bytes == shift.expected(from, launch), "{shift:?}, launch {launch}, rank {rank}");
                    }
                }
            }
        }
    }
}
