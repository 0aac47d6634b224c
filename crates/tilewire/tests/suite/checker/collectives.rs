//! Like `differential.rs`, for the collectives of all ranks: the checker checks the programs that the CPU engine runs.

use std::time::Duration;
use tilewire::check::{Plan, Settings};
use tilewire::collective::{Algorithm, Rounds};
use tilewire::link::{ShmOptions, ShmTransport, Transport};
use tilewire::rehearsal::{Rehearsal, RehearsalRank};
use tilewire::transport::{Rank, World};
use tilewire::{
    Knobs, Primitive, RunError, Tensor, Traced, all_gather, all_reduce, all_to_all, broadcast, gather, reduce_scatter,
    scatter,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    AllToAll,
    AllGather,
    Broadcast,
    Gather,
    Scatter,
    ReduceScatter,
    AllReduce,
}

/// A collective and its form.
#[derive(Clone, Copy, Debug)]
struct Form {
    kind: Kind,
    algorithm: Option<Algorithm>,
    primitive: Primitive,
    rounds: Rounds,
}

fn forms() -> Vec<Form> {
    use Algorithm::{OneShot, Ring, TwoPhase};
    use Kind::{AllGather, AllReduce, AllToAll, Broadcast, Gather, ReduceScatter, Scatter};
    use Primitive::{Packet, Staged};
    let all = [
        (AllToAll, None, Staged),
        (AllToAll, None, Packet),
        (AllGather, None, Staged),
        (AllGather, None, Packet),
        (AllGather, Some(Ring), Staged),
        (Broadcast, None, Staged),
        (Gather, None, Staged),
        (Scatter, None, Staged),
        (ReduceScatter, Some(OneShot), Staged),
        (ReduceScatter, Some(OneShot), Packet),
        (ReduceScatter, Some(Ring), Staged),
        (AllReduce, Some(TwoPhase), Staged),
        (AllReduce, Some(Ring), Staged),
        (AllReduce, Some(OneShot), Packet),
    ];
    let form = |rounds| move |(kind, algorithm, primitive)| Form { kind, algorithm, primitive, rounds };
    all.into_iter().map(form(Rounds::Roles)).chain(all[..1].iter().copied().map(form(Rounds::Blocks))).collect()
}

impl Form {
    /// The numbers of elements of input and output.
    fn lens(&self, ranks: usize, blocks: usize) -> (usize, usize) {
        let (one, all) = (blocks * 36 - 3, ranks * (blocks * 36 - 3));
        match self.kind {
            Kind::AllToAll => (all, all),
            Kind::AllGather | Kind::Gather => (one, all),
            Kind::Broadcast | Kind::AllReduce => (one, one),
            Kind::Scatter | Kind::ReduceScatter => (all, one),
        }
    }

    fn config(&self, blocks: usize, launch: usize) -> Knobs {
        let staged = self.primitive == Primitive::Staged;
        // The last forms have enough slots for a sender to wait for several together.
        let (slot_bytes, depth) = [(64, 2), (128, 4), (64, 2), (8, 8), (8, 8), (8, 8)][launch];
        Knobs {
            primitive: Some(self.primitive),
            blocks: Some(blocks),
            slot_bytes: staged.then_some(slot_bytes),
            depth: staged.then_some(depth),
            granule: Some(1),
            ..Knobs::default()
        }
    }

    /// One rank's part: traced for the checker, or run.
    fn launch<L: Transport>(
        &self,
        link: &L,
        (blocks, launch): (usize, usize),
        out: &Tensor<f32>,
        runs: bool,
    ) -> Result<Option<Traced>, RunError> {
        let (len, _) = self.lens(link.world_size(), blocks);
        // No number is sent twice.
        let seed = link.rank().index() * 10_007 + launch * 5009;
        let inp = Tensor::from_fn(len, |i| (seed + i * 7) as f32 * 0.37);
        let (config, root) = (self.config(blocks, launch), Rank::new(0));
        let exchange = match self.kind {
            Kind::AllToAll => all_to_all(link, out, &inp),
            Kind::AllGather => all_gather(link, out, &inp),
            Kind::Broadcast => broadcast(link, out, &inp, root),
            Kind::Gather => gather(link, out, &inp, root),
            Kind::Scatter => scatter(link, out, &inp, root),
            Kind::ReduceScatter | Kind::AllReduce => {
                let reduction = match self.kind {
                    Kind::AllReduce => all_reduce(link, out, &inp),
                    _ => reduce_scatter(link, out, &inp),
                };
                let reduction = reduction.algorithm(self.algorithm.expect("a reduction names one"));
                let reduction = reduction.rounds(self.rounds).config(config);
                return if runs { reduction.run().map(|()| None) } else { reduction.trace().map(Some) };
            }
        };
        let exchange = match self.algorithm {
            Some(algorithm) => exchange.algorithm(algorithm),
            None => exchange,
        };
        let exchange = exchange.rounds(self.rounds).config(config).produce(|c| c.input.load(c.pos()) * 0.3 + 2.0);
        if runs { exchange.run().map(|()| None) } else { exchange.trace().map(Some) }
    }
}

const LAUNCHES: usize = 6;

/// The outputs by rank, then by launch.
type Outputs = Vec<Vec<Vec<u8>>>;

/// Run with every seed. The plan is always the same, so it is checked once.
fn checked(form: Form, ranks: usize, blocks: usize, seeds: &[Option<u64>]) -> Vec<Outputs> {
    let (links, mut plan) = (Rehearsal::small(ranks, 2 * blocks).ranks(), Plan::new(ranks as u32));
    let (_, len) = form.lens(ranks, blocks);
    let outs: Vec<Vec<Tensor<f32>>> =
        links.iter().map(|_| (0..LAUNCHES).map(|_| Tensor::zeros(len)).collect()).collect();
    for launch in 0..LAUNCHES {
        let trace = |(link, outs): (&RehearsalRank, &Vec<Tensor<f32>>)| {
            form.launch(link, (blocks, launch), &outs[launch], false).unwrap().expect("traced")
        };
        let traced: Vec<Traced> = links.iter().zip(&outs).map(trace).collect();
        plan.launch(&traced.iter().map(|traced| (&traced.kernel, &traced.args[..])).collect::<Vec<_>>());
    }
    let settings = Settings::default();
    let report = plan.verify(&settings);
    assert!(report.is_clean() && report.is_decided(), "{form:?}: {report}");
    let computed = |&seed: &Option<u64>| -> Outputs {
        let after = plan.run(&settings, seed).unwrap();
        outs.iter().map(|outs| outs.iter().map(|out| after.bytes(out.memory())).collect()).collect()
    };
    seeds.iter().map(computed).collect()
}

fn engine(form: Form, ranks: usize, blocks: usize) -> Outputs {
    let options = ShmOptions {
        per_peer_bytes: Some(4096 * blocks),
        max_blocks_per_peer: Some(2 * blocks),
        max_slots: Some(8),
        max_copies: 4,
        packet_bytes: Some(8192 * blocks),
        window_sets: Some(2),
        populate: false,
    };
    let world = World::threads(ranks).deadline(Duration::from_secs(120));
    let ran = world.run(|world| {
        let link = ShmTransport::rendezvous(&world, options)?;
        let (_, len) = form.lens(ranks, blocks);
        let mut outputs = Vec::new();
        for launch in 0..LAUNCHES {
            let out = Tensor::<f32>::zeros(len);
            form.launch(&link, (blocks, launch), &out, true)?;
            outputs.push(out.to_vec().iter().flat_map(|x| x.to_le_bytes()).collect());
        }
        link.close()?;
        Ok(outputs)
    });
    ran.unwrap()
}

#[test]
fn the_checker_and_the_cpu_engine_compute_the_same_bytes_for_every_collective() {
    for form in forms() {
        for (ranks, blocks) in [(2, 1), (3, 1), (3, 2), (4, 1)] {
            let ran = engine(form, ranks, blocks);
            assert!(ran[0].iter().flatten().any(|&byte| byte != 0), "{form:?}: nothing arrived");
            let seeds = [None, Some(1)];
            for (seed, computed) in seeds.iter().zip(checked(form, ranks, blocks, &seeds)) {
                assert!(computed == ran, "{form:?}, {ranks} ranks, {blocks} blocks, seed {seed:?}");
            }
        }
    }
}

/// In place with hooks, which read only the position that they write. A result may be stored only where its input has
/// been read.
#[test]
fn reductions_in_place_with_hooks_are_free_of_races() {
    let reductions = forms().into_iter().filter(|form| matches!(form.kind, Kind::ReduceScatter | Kind::AllReduce));
    for (form, (ranks, blocks)) in reductions.flat_map(|form| [(2, 1), (3, 2), (4, 1)].map(|world| (form, world))) {
        let (links, mut plan) = (Rehearsal::small(ranks, 2 * blocks).ranks(), Plan::new(ranks as u32));
        let (len, chunk) = form.lens(ranks, blocks);
        for launch in 0..2 {
            let trace = |link: &RehearsalRank| {
                let inp = Tensor::<f32>::zeros(len);
                let first = if form.kind == Kind::AllReduce { 0 } else { link.rank().index() * chunk };
                let out = inp.slice(first..first + chunk);
                let reduction = match form.kind {
                    Kind::AllReduce => all_reduce(link, &out, &inp),
                    _ => reduce_scatter(link, &out, &inp),
                };
                reduction
                    .algorithm(form.algorithm.expect("a reduction names one"))
                    .config(form.config(blocks, launch))
                    .produce(|c| c.input.load(c.pos()) * 0.5)
                    .consume(|c, x| c.output.store(c.pos(), x + c.output.load(c.pos())))
                    .trace()
                    .unwrap()
            };
            let traced: Vec<Traced> = links.iter().map(trace).collect();
            plan.launch(&traced.iter().map(|traced| (&traced.kernel, &traced.args[..])).collect::<Vec<_>>());
        }
        let report = plan.verify(&Settings::default());
        assert!(report.is_clean() && report.is_decided(), "{form:?} of {ranks} ranks: {report}");
    }
}
