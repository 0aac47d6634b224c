//! Several ranks, the network, the observer, and host tensors.

use super::{bytes, elements};
use tilewire::check::{
    self, Access as Touch, AccessKind, Actor, Arrivals, Bank, Binding, Bound, Descriptor, EvalError, Memories,
    MemoryId, Network, Observer, Options, PeerRoute, Plan, Settings, SlotRef, SlotSet, Wanted, World,
};
use tilewire::ir::{Access, Inst, Kernel, Notice, NoticeKind, Op, PostSpan, Special, Type};
use tilewire::{Arg, Memory, Tensor};
use tilewire_testkit::programs::Writer;
use tilewire_testkit::programs::writer::at;

/// Sends this rank's number to the other rank by the network and stores what arrives.
fn exchange() -> Kernel {
    let mut c = Writer::new("exchange", 1);
    let queue = c.b.param(tilewire::ir::Param::Queue { name: "queue".into() });
    let (staging, region) = (c.region("staging", 16), c.region("region", 16));
    let slots = c.slots("slots", 2, 8);
    let out = c.buffer("out", Type::U64, 1, Access::Out);
    c.role("main", |c, _| {
        let (rank, one, zero, eight, value) = (c.special(Special::Rank), c.i64(1), c.i64(0), c.i64(8), c.u64(1));
        let x = c.cast(rank, Type::U64);
        let ten = c.u64(10);
        let x = c.add(x, ten);
        c.put(staging, eight, x);
        let peer = c.binary(tilewire::ir::BinaryOp::Sub, one, rank);
        let span = Some(PostSpan { src: at(staging, eight), dst: zero, bytes: eight });
        c.run(Op::Post { queue, peer, span, notice: None });
        let notice = Some(Notice { slot: one, x: value, parts: 1, kind: NoticeKind::Data });
        c.run(Op::Post { queue, peer, span: None, notice });
        c.wait(slots, one, value);
        let x = c.get(region, zero, Type::U64);
        c.store(out, zero, x);
    });
    c.finish()
}

fn two_ranks() -> (Vec<Binding>, Memories, Vec<MemoryId>) {
    let mut memories = Memories::new();
    let mut bank = |len| Bank { memory: memories.add(vec![0; len]), offset: 0, len: len as u64 };
    let own: Vec<[Bank; 4]> = (0..2).map(|_| [bank(16), bank(16), bank(16), bank(8)]).collect();
    let routes: Vec<_> =
        own.iter().map(|&[_, region, slots, _]| Some(PeerRoute { region, slots, stride: 8, moves: None })).collect();
    let bindings = own.iter().zip(0..).map(|(&[staging, region, slots, out], rank)| {
        let buffers = [staging, region].map(|bank| Bound::Buffer(vec![bank]));
        let [staging, region] = buffers;
        let params =
            vec![Bound::Queue(routes.clone()), staging, region, Bound::Slots(vec![slots]), Bound::Buffer(vec![out])];
        Binding { rank, world_size: 2, params, operations: Vec::new() }
    });
    let bindings = bindings.collect();
    (bindings, memories, own.iter().map(|banks| banks[3].memory).collect())
}

#[test]
fn posts_arrive_before_the_signal_posted_after_them() {
    let (kernel, (bindings, memories, outs)) = (exchange(), two_ranks());
    let after =
        check::run_world(&[(&kernel, &bindings[0]), (&kernel, &bindings[1])], memories, Options::default()).unwrap();
    assert_eq!(outs.iter().map(|&out| elements::<u64>(after.bytes(out))[0]).collect::<Vec<_>>(), [11, 10]);
}

/// Delivers nothing until all parties wait.
#[derive(Default)]
struct Lazy(Vec<Descriptor>, Arrivals);

impl Network for Lazy {
    fn post(&mut self, descriptor: Descriptor, _: &mut Memories, _: &mut dyn Observer) {
        self.0.push(descriptor);
    }
    fn progress(&mut self, memories: &mut Memories, observer: &mut dyn Observer) -> bool {
        if self.0.is_empty() {
            return false;
        }
        self.0.remove(0).deliver(&mut self.1, memories, observer);
        true
    }
}

#[test]
fn a_network_may_take_its_time() {
    let (kernel, (bindings, memories, outs)) = (exchange(), two_ranks());
    let mut world = World { memories, network: Box::new(Lazy::default()) };
    let ranks = [(&kernel, &bindings[0]), (&kernel, &bindings[1])];
    check::launch(&ranks, &mut world, &mut check::Unobserved, Options::default()).unwrap();
    let seen = outs.iter().map(|&out| elements::<u64>(world.memories.bytes(out))[0]).collect::<Vec<_>>();
    assert_eq!(seen, [11, 10]);
}

/// A flush moves a slot of the poster after its earlier posts to that peer were carried out.
#[test]
fn a_flush_moves_a_slot_of_its_own_rank() {
    let traced = |source: &Memory, ring: &Memory, own: &Memory| {
        tilewire::kernel("flush", |k| {
            let (queue, source) = (k.queue("wire", ring), k.region("source", std::slice::from_ref(source)));
            let sent = k.slots("sent", std::slice::from_ref(own), 8);
            k.main(|r| {
                source.put(0, 0, 7u64);
                r.post(queue, 1, source.bank(0), 0, 8);
                r.post_flush(queue, 1, 1, 5);
                r.wait(sent.slot(0, 1), 5);
                source.put(0, 0, 8u64);
            });
        })
        .unwrap()
    };
    let [source, ring, own, far, theirs] = [8, 64, 16, 8, 16].map(Memory::zeroed);
    let idle = tilewire::kernel("idle", |k| k.main(|_| {})).unwrap();
    let plan = |is_routed: bool| {
        let traced = traced(&source, &ring, &own);
        let mut plan = Plan::new(2);
        plan.launch(&[(&traced.kernel, &traced.args[..]), (&idle.kernel, &idle.args[..])]);
        plan.route(&ring, 1, &far, &theirs, 8);
        if is_routed {
            plan.route(&ring, 0, &far.part(0, 0), &own, 8);
        }
        plan.verify(&Settings::default())
    };
    assert!(plan(true).is_clean(), "{}", plan(true));
    let without = plan(false).to_string();
    assert!(without.contains("routes to itself"), "{without}");
}

#[test]
fn a_peer_without_a_route_cannot_be_posted_to() {
    let (kernel, (mut bindings, memories, _)) = (exchange(), two_ranks());
    bindings[0].params[0] = Bound::Queue(Vec::new());
    let error = check::run(&kernel, &bindings[0], memories, Options::default()).unwrap_err();
    assert!(matches!(error, EvalError::OutOfBounds { index: 1, len: 0, .. }), "{error}");
}

#[derive(Default)]
struct Log {
    touched: Vec<(u32, AccessKind, MemoryId, std::ops::Range<u64>)>,
    signals: Vec<(u32, u64, u64)>,
    waits: Vec<(u32, u64, u64)>,
    done: Vec<u32>,
}

impl Observer for Log {
    fn access(&mut self, who: Actor, access: &Touch) {
        self.touched.push((who.rank, access.kind, access.memory, access.bytes.clone()));
    }
    fn signal(&mut self, who: Actor, _: Inst, _: &SlotRef, set: &SlotSet) {
        self.signals.push((who.rank, set.before, set.value));
    }
    fn wait(&mut self, who: Actor, _: Inst, _: &SlotRef, wanted: &Wanted) {
        self.waits.push((who.rank, wanted.value, wanted.seen));
    }
    fn done(&mut self, who: Actor) {
        self.done.push(who.rank);
    }
}

#[test]
fn an_observer_sees_every_access_signal_and_wait() {
    let (kernel, (bindings, memories, outs)) = (exchange(), two_ranks());
    let (mut world, mut log) = (World::new(memories), Log::default());
    let ranks = [(&kernel, &bindings[0]), (&kernel, &bindings[1])];
    check::launch(&ranks, &mut world, &mut log, Options::default()).unwrap();
    let of_rank_0: Vec<_> = log.touched.iter().filter(|touch| touch.0 == 0).cloned().collect();
    let m = |i| MemoryId(i);
    let want = [
        (0, AccessKind::Write, m(0), 8..16),
        (0, AccessKind::NetworkRead, m(0), 8..16),
        (0, AccessKind::NetworkWrite, m(5), 0..8),
        (0, AccessKind::Read, m(1), 0..8),
        (0, AccessKind::Write, outs[0], 0..8),
    ];
    assert_eq!(of_rank_0, want);
    log.signals.sort();
    log.waits.sort();
    assert_eq!(log.signals, [(0, 0, 1), (1, 0, 1)]);
    assert_eq!(log.waits, [(0, 1, 1), (1, 1, 1)]);
    assert_eq!(log.done.len(), 2);
}

#[test]
fn host_tensors_are_evaluated_on_a_copy_that_keeps_their_overlap() {
    let mut c = Writer::new("shift", 1);
    let (scale, src) = (c.scalar("scale", Type::I32), c.buffer("in", Type::I32, 3, Access::InOut));
    let out = c.buffer("out", Type::I32, 2, Access::InOut);
    c.role("main", |c, _| {
        let (zero, one) = (c.i64(0), c.i64(1));
        let (by, x) = (c.op(Op::Scalar(scale)), c.load(src, zero));
        let x = c.mul(by, x);
        c.store(out, one, x);
    });
    let kernel = c.finish();
    let all = Tensor::from_slice(&[5i32, 6, 7, 8]);
    let (src, out) = (all.slice(0..3), all.slice(1..3));
    let scale = tilewire::Scalar::new(-3i32);
    let args = [
        Arg::Scalar(scale.memory().clone()),
        Arg::Buffer(vec![src.memory().clone()]),
        Arg::Buffer(vec![out.memory().clone()]),
    ];
    let after = check::evaluate(&kernel, &args, (0, 1), Options::default()).unwrap();
    assert_eq!(after[1], [bytes(&[5i32, 6, -15])]);
    assert_eq!(after[2], [bytes(&[6i32, -15])]);
    assert_eq!(all.to_vec(), [5, 6, 7, 8], "the tensors are not touched");
}
