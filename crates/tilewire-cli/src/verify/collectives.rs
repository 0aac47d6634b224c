//! Every collective × hook × element type × protocol × algorithm × size, among threads or processes, against plain
//! computations on the host.

use super::COPIES;
use super::fields::fields;
use super::meets::meets;
use super::unequal::unequal;
use crate::progress::Progress;
use crate::run::{Case, Collective, Hook, Mesh, PROTOCOLS, Peers, Plan, ROUNDS, prepare, prepare_all};
use anyhow::Result;
use std::io::{Write, stderr};
use std::sync::Arc;
use tilewire::cuda::Device;
use tilewire::ir::Type;
use tilewire::link::{AnyTransport, NvlOptions, NvlTransport, ShmOptions, ShmTransport};
use tilewire::transport::{RankError, World};
use tilewire::{Algorithm, Knobs, Primitive, ReduceOp, RunError};
use tilewire_testkit::random::Random;

/// The results of all plans of one collective.
#[derive(Default)]
pub struct Outcome {
    /// Right, to the bit.
    pub agree: u64,
    /// Rightly refused: the reasons.
    pub refused: Vec<String>,
    /// Refused, though README says that they work: the plans and reasons.
    pub denied: Vec<String>,
    /// Wrong: the plans and places.
    pub differ: Vec<String>,
}

/// Small enough that a mebibyte goes through it many times.
const OPTIONS: ShmOptions = ShmOptions {
    per_peer_bytes: Some(256 << 10),
    max_blocks_per_peer: Some(8),
    max_slots: Some(8),
    max_copies: 1,
    packet_bytes: Some(256 << 10),
    window_sets: None,
    populate: false,
};

/// The request for the collectives in one world.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// True if few types and sizes are enough.
    pub quick: bool,
    /// These collectives; all if empty.
    pub only: &'a [Collective],
    /// A random sample of this many plans, chosen by the seed.
    pub sample: Option<usize>,
    /// A part of all plans: those whose number leaves the first as remainder when divided by the second.
    pub share: (usize, usize),
    pub seed: u64,
    /// True to report progress in lines on stderr.
    pub progress: bool,
    /// The device; the CPU if `None`.
    pub device: Option<&'a Arc<Device>>,
    /// The domains of ranks that post to each other, if they do.
    pub mesh: Option<&'a Mesh>,
    /// True to run every schedule instead, with many small slots: one of many seeds.
    pub schedules: bool,
    /// Copies of a role on a device.
    pub copies: usize,
}

#[cfg(test)]
impl Asked<'static> {
    /// All plans of a quick run.
    pub const QUICK: Asked<'static> = Asked {
        quick: true,
        only: &[],
        sample: None,
        share: (0, 1),
        seed: 1,
        progress: false,
        device: None,
        mesh: None,
        schedules: false,
        copies: COPIES,
    };
}

impl Asked<'_> {
    /// True if some of `ranks` ranks post to each other.
    pub fn has_far(&self, ranks: usize) -> bool {
        self.mesh.is_some_and(|mesh| mesh.has_far(ranks))
    }

    /// Why this many ranks must refuse a plan, if so.
    fn refuses(&self, ranks: usize, plan: &Plan) -> Option<&'static str> {
        if plan.tears_groups(ranks) {
            return Some("it tears groups apart");
        }
        let packets = (plan.collective, plan.algorithm) == (Collective::AllReduce, Some(Algorithm::OneShot));
        (packets && self.has_far(ranks)).then_some("far peers take no packets")
    }

    /// The ranks, for reports.
    pub fn among(&self, ranks: usize) -> String {
        let over = self.mesh.map_or(String::new(), |mesh| format!(" over {}", mesh.describe(ranks)));
        format!("{ranks} ranks{over}")
    }
}

/// Runs the plans in a world of `ranks` threads; returns the outcomes by collective, in the order of
/// [`Collective::ALL`].
pub fn collectives(ranks: usize, asked: Asked<'_>) -> Result<Vec<Outcome>> {
    outcomes_of(ranks, &plans(ranks, asked), asked)
}

fn outcomes_of(ranks: usize, plans: &[Plan], asked: Asked<'_>) -> Result<Vec<Outcome>> {
    let of_ranks = World::threads(ranks).run(|world| verdicts(&world, plans, asked))?;
    Ok(outcomes(ranks, plans, &of_ranks, asked))
}

/// Runs the plans in an existing world; every rank gets the outcomes of all.
pub fn collectives_of(world: &World, asked: Asked<'_>) -> Result<Vec<Outcome>, RankError> {
    let plans = plans(world.size(), asked);
    let own = verdicts(world, &plans, asked)?;
    let all = world.bootstrap().all_gather("verify/verdicts", &Verdict::to_bytes(&own), world.deadline())?;
    let of_ranks: Vec<_> = all.iter().map(|bytes| Verdict::from_bytes(bytes, plans.len())).collect();
    Ok(outcomes(world.size(), &plans, &of_ranks, asked))
}

/// The verdicts of one rank.
fn verdicts(world: &World, plans: &[Plan], asked: Asked<'_>) -> Result<Vec<Verdict>, RankError> {
    let link = match (asked.device, asked.mesh) {
        (None, Some(mesh)) => mesh.rendezvous(world, OPTIONS)?,
        (None, None) => AnyTransport::from(ShmTransport::rendezvous(world, OPTIONS)?),
        (Some(device), mesh) => {
            let options = NvlOptions {
                per_peer_bytes: OPTIONS.per_peer_bytes,
                max_blocks_per_peer: OPTIONS.max_blocks_per_peer,
                max_slots: OPTIONS.max_slots,
                packet_bytes: OPTIONS.packet_bytes,
                copies: asked.copies,
                ..NvlOptions::default()
            };
            match mesh {
                Some(mesh) => mesh.rendezvous_on(world, device, options)?,
                None => AnyTransport::from(NvlTransport::rendezvous(world, device, options)?),
            }
        }
    };
    let verdicts = judge(world, plans, asked, &link)?;
    meets(world, &link, asked.seed)?;
    if !asked.schedules {
        fields(world, &link, asked)?;
        unequal(world, &link, asked.seed)?;
    }
    link.close()?;
    Ok(verdicts)
}

/// The verdicts of all ranks combined: a plan that is wrong on one is wrong; a refused one is refused by all. Plans
/// consist of combinations that README's table of collectives allows, so a refusal is a fault unless the plan's size
/// or its far peers justify it.
fn outcomes(ranks: usize, plans: &[Plan], of_ranks: &[Vec<Verdict>], asked: Asked<'_>) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = Collective::ALL.iter().map(|_| Outcome::default()).collect();
    for (number, plan) in plans.iter().enumerate() {
        let outcome = &mut outcomes[plan.collective as usize];
        let verdicts = of_ranks.iter().map(|verdicts| &verdicts[number]);
        let verdict = verdicts.max_by_key(|verdict| verdict.weight()).expect("at least one rank");
        let among = || asked.among(ranks);
        match (verdict, asked.refuses(ranks, plan)) {
            (Verdict::Agrees, Some(why)) => {
                outcome.differ.push(format!("{}, {plan}: not refused, though {why}", among()));
            }
            (Verdict::Agrees, None) => outcome.agree += 1,
            (Verdict::Refused(why), Some(_)) => outcome.refused.push(why.clone()),
            (Verdict::Refused(why), None) => outcome.denied.push(format!("{}, {plan}: {why}", among())),
            (Verdict::Differs(what), _) => outcome.differ.push(format!("{}, {plan}: {what}", among())),
        }
    }
    outcomes
}

/// The verdict of one rank on one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Agrees,
    Refused(String),
    Differs(String),
}

impl Verdict {
    fn weight(&self) -> u32 {
        match self {
            Verdict::Agrees => 0,
            Verdict::Refused(_) => 1,
            Verdict::Differs(_) => 2,
        }
    }

    /// For other processes: a line for each plan that does not agree, with its number, its weight and its text.
    fn to_bytes(verdicts: &[Verdict]) -> Vec<u8> {
        let mut text = String::new();
        for (number, verdict) in verdicts.iter().enumerate() {
            if let Verdict::Refused(what) | Verdict::Differs(what) = verdict {
                text.push_str(&format!("{number} {} {}\n", verdict.weight(), what.replace('\n', "; ")));
            }
        }
        text.into_bytes()
    }

    fn from_bytes(bytes: &[u8], plans: usize) -> Vec<Verdict> {
        let mut verdicts = vec![Verdict::Agrees; plans];
        for line in String::from_utf8_lossy(bytes).lines() {
            let mut words = line.splitn(3, ' ');
            let (number, weight, what) = (words.next(), words.next(), words.next().unwrap_or_default().to_string());
            let number: usize = number.and_then(|n| n.parse().ok()).expect("every rank runs this version");
            verdicts[number] = if weight == Some("1") { Verdict::Refused(what) } else { Verdict::Differs(what) };
        }
        verdicts
    }
}

fn judge(world: &World, plans: &[Plan], asked: Asked<'_>, link: &AnyTransport) -> Result<Vec<Verdict>, RankError> {
    let (me, size) = (world.rank(), world.size());
    let seed = asked.seed;
    let start = if asked.progress { Progress::in_lines } else { Progress::new };
    let mut progress = (me.index() == 0).then(|| start(plans.len()));
    let mut verdicts = Vec::with_capacity(plans.len());
    for plan in plans {
        if let Some(progress) = &mut progress {
            progress.step(&format!("{size} ranks, {plan}"));
        }
        let prepared = match plan.collective {
            Collective::Sendrecv => {
                let peers = Peers { to: Some(me.after(1, size)), from: Some(me.after(size - 1, size)) };
                prepare(link, &plan.case, peers, seed)
            }
            _ => prepare_all(link, plan, seed),
        };
        let mut op = match prepared {
            Ok(op) => op,
            Err(RunError::Transfer(error)) => {
                verdicts.push(Verdict::Refused(error.to_string()));
                continue;
            }
            Err(error) => return Err(format!("{plan}: {error}").into()),
        };
        let mut verdict = Verdict::Agrees;
        for turn in 0..2 {
            op.fill(turn)?;
            op.launch().map_err(|error| {
                // The world reports the first failure; another rank may know which one gave up waiting, and where.
                _ = writeln!(stderr(), "rank {me}, {plan}: {error}");
                format!("{plan}: {error}")
            })?;
            if let Err(wrong) = op.check(turn) {
                verdict = Verdict::Differs(format!("rank {me}, launch {turn}: {wrong}"));
            }
        }
        verdicts.push(verdict);
    }
    drop(progress);
    Ok(verdicts)
}

/// The plans of `verify --quick` for a number of ranks, and the options of their transport.
pub fn quick_plans(ranks: usize) -> (ShmOptions, Vec<Plan>) {
    (OPTIONS, all_plans(ranks, false, true, 1))
}

/// The plans for a world of `ranks` ranks, the same on all of them.
fn plans(ranks: usize, asked: Asked<'_>) -> Vec<Plan> {
    let (share, shares) = asked.share;
    let named = |plan: &Plan| asked.only.is_empty() || asked.only.contains(&plan.collective);
    let has_far = asked.has_far(ranks);
    let all = match asked.schedules {
        true => schedules(ranks, has_far),
        false => all_plans(ranks, has_far, asked.quick, asked.seed),
    };
    let all = all.into_iter().filter(named);
    let mut plans: Vec<Plan> = all.skip(share).step_by(shares).collect();
    let mut random = Random::new(asked.seed ^ (ranks as u64) << 32);
    while plans.len() > asked.sample.unwrap_or(usize::MAX) {
        plans.swap_remove(random.below(plans.len()));
    }
    if asked.device.is_some() && asked.has_far(ranks) {
        // Once is enough.
        let large = if asked.copies == COPIES { large_plans(ranks) } else { Vec::new() };
        plans.extend(large.into_iter().filter(named));
        plans.iter_mut().enumerate().for_each(|(n, plan)| set_warps(&mut plan.case.config, asked.copies, n));
    }
    plans
}

/// Gives the roles of the n-th plan their numbers of warps, another pair in every plan: as many as fit a block of 32
/// with two roles of this many copies.
fn set_warps(knobs: &mut Knobs, copies: usize, n: usize) {
    let numbers: Vec<u32> = [1, 2, 4, 8, 16].into_iter().filter(|warps| *warps as usize * copies <= 16).collect();
    let of = |n: usize| Some(numbers[n % numbers.len()]);
    (knobs.send_warps, knobs.recv_warps) = (of(n), of(n / numbers.len()));
    // Both sides of a one-shot all-reduce use one number.
    if knobs.primitive == Some(Primitive::Packet) {
        knobs.recv_warps = knobs.send_warps;
    }
}

/// Messages of 64 MiB and one element, in as many steps as staging makes of them.
fn large_plans(ranks: usize) -> Vec<Plan> {
    let of = |collective| {
        let config = Knobs { primitive: Some(Primitive::Staged), blocks: Some(2), ..Knobs::default() };
        let case = Case { dtype: Type::F32, hook: Hook::Copy, len: (64 << 20) / 4 + 1, config, rounds: None };
        Plan { collective, case, op: ReduceOp::Sum, algorithm: None }
    };
    let all = [Collective::Sendrecv, Collective::Broadcast, Collective::AllReduce].map(of);
    all.into_iter().filter(|plan| ranks > 1 || plan.collective != Collective::Sendrecv).collect()
}

/// The plans of one collective, hook, type, protocol and algorithm.
struct Cell {
    collective: Collective,
    hook: Hook,
    dtype: Type,
    primitive: Option<Primitive>,
    algorithm: Option<Algorithm>,
}

/// Every hook with every type and protocol in every collective that supports them, in some sizes each: all sizes for
/// copies, and for the others as many as keep a full run to minutes, a different one in every cell.
fn all_plans(ranks: usize, has_far: bool, quick: bool, seed: u64) -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut random = Random::new(seed ^ (ranks as u64) << 32);
    for cell in cells(ranks, has_far, quick) {
        let Cell { collective, hook, dtype, primitive, algorithm } = cell;
        let (small, large) = lens(hook.travels(dtype), dtype, primitive, quick);
        let one_of = |lens: &[usize], random: &mut Random| lens.get(random.below(lens.len().max(1))).copied();
        let chosen = match (hook, quick) {
            (Hook::Copy, _) => [small, large].concat(),
            (_, true) => one_of(&small, &mut random).into_iter().collect(),
            (_, false) => {
                // Exchanges of the first kind have all small sizes. Computing results on the host takes time, so large
                // ones are few.
                let small = if collective == Collective::AllToAll {
                    small
                } else {
                    one_of(&small, &mut random).into_iter().collect()
                };
                let every = if hook.is_costly() { 12 } else { 4 };
                let large = one_of(&large, &mut random).filter(|_| random.below(every) == 0);
                small.into_iter().chain(large).collect()
            }
        };
        for len in chosen {
            // Two blocks in every second size, each op in turn.
            let number = plans.len();
            let config = Knobs { primitive, blocks: Some(1 + number % 2), ..Knobs::default() };
            let case = Case { dtype, hook, len, config, rounds: None };
            plans.push(Plan { collective, case, op: ReduceOp::ALL[number % ReduceOp::ALL.len()], algorithm });
        }
    }
    plans
}

/// Every collective with every algorithm and protocol, in many small slots where there are slots: copies, and values of
/// two parts. Each with the layout that is chosen, and once more with one of the three.
fn schedules(ranks: usize, has_far: bool) -> Vec<Plan> {
    let is_kept = |cell: &Cell| cell.dtype == Type::F32 && matches!(cell.hook, Hook::Copy | Hook::Quantise);
    let plans = |(number, cell): (usize, Cell)| {
        let Cell { collective, hook, dtype, primitive, algorithm } = cell;
        let slots = matches!(primitive, Some(Primitive::Staged | Primitive::Bulk));
        let (slot_bytes, depth) = if slots { (Some(1024), Some(4)) } else { (None, None) };
        let config = Knobs { primitive, blocks: Some(1 + number % 2), slot_bytes, depth, ..Knobs::default() };
        let len = if primitive == Some(Primitive::Packet) { 31 } else { 4001 };
        let op = ReduceOp::ALL[number % ReduceOp::ALL.len()];
        [None, Some(ROUNDS[number % ROUNDS.len()])].map(|rounds| {
            let case = Case { dtype, hook, len, config, rounds };
            Plan { collective, case, op, algorithm }
        })
    };
    cells(ranks, has_far, false).into_iter().filter(is_kept).enumerate().flat_map(plans).collect()
}

/// All possible cells: [`Collective::refuses`] and similar functions define which combinations are impossible.
fn cells(ranks: usize, has_far: bool, quick: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    // Only worlds of several domains have two levels.
    let algorithms = |collective: Collective| {
        let all = collective.algorithms().iter().copied();
        all.filter(|&algorithm| has_far || algorithm != Algorithm::TwoLevel).collect::<Vec<_>>()
    };
    for collective in Collective::ALL.into_iter().filter(|&c| ranks > 1 || c != Collective::Sendrecv) {
        for (hook, dtype) in Hook::ALL.into_iter().flat_map(|hook| Type::ALL.map(|dtype| (hook, dtype))) {
            for (p, primitive) in PROTOCOLS.into_iter().enumerate() {
                let ways = algorithms(collective);
                for &algorithm in &ways {
                    let algorithm = Some(algorithm).filter(|_| ways.len() > 1);
                    let config = Knobs { primitive, ..Knobs::default() };
                    let case = Case { dtype, hook, len: 0, config, rounds: None };
                    let plan = Plan { collective, case, op: ReduceOp::Sum, algorithm };
                    let is_possible = hook.takes(dtype) && collective.refuses(&case).is_none() && plan.is_possible();
                    // Quick: two types for the original hooks, and one for the others, a different one with every
                    // protocol.
                    let types = &[Type::F32, Type::BF16, Type::U8, Type::F16][..];
                    let few = [types[p % 2], types[2 + (p + hook as usize) % 2]];
                    let few = if Hook::FEW.contains(&hook) { &few[..] } else { &few[..1] };
                    if is_possible && (!quick || few.contains(&dtype)) {
                        cells.push(Cell { collective, hook, dtype, primitive, algorithm });
                    }
                }
            }
        }
    }
    cells
}

/// Elements of a message: none, one, odd, a kibibyte; and above the staging, a mebibyte. Packets hold a message as a
/// whole, with `travels` bytes per element.
fn lens(travels: usize, dtype: Type, primitive: Option<Primitive>, quick: bool) -> (Vec<usize>, Vec<usize>) {
    let size = dtype.size();
    match (primitive, quick) {
        (Some(Primitive::Packet), true) => (vec![1, 31], vec![]),
        (Some(Primitive::Packet), false) => (vec![0, 1, 31, 512 / travels], vec![]),
        (_, true) => (vec![0, 1001], vec![]),
        (_, false) => (vec![0, 1, 1001, 1024 / size], vec![(300 << 10) / size + 1, (1 << 20) / size]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Apart, Shuffle, Wire};

    #[test]
    fn verdicts_travel() {
        let verdicts =
            vec![Verdict::Agrees, Verdict::Refused("too\nlarge".into()), Verdict::Differs("rank 1: 3".into())];
        let mut arrived = Verdict::from_bytes(&Verdict::to_bytes(&verdicts), 3);
        assert_eq!(arrived[1], Verdict::Refused("too; large".into()));
        arrived[1] = verdicts[1].clone();
        assert_eq!(arrived, verdicts);
    }

    const ALL: Asked<'static> = Asked::QUICK;

    #[test]
    fn those_that_are_named_keep_their_plans() {
        let only = [Collective::Gather, Collective::AllReduce];
        let mut of_all = plans(3, ALL);
        of_all.retain(|plan| only.contains(&plan.collective));
        assert_eq!(plans(3, Asked { only: &only, ..ALL }), of_all);
        assert!(!of_all.is_empty());
    }

    #[test]
    fn a_sample_is_the_same_on_every_rank_and_another_with_another_seed() {
        let sample = |seed| plans(3, Asked { sample: Some(40), quick: false, seed, ..ALL });
        assert_eq!((sample(1).len(), sample(1) == sample(1), sample(1) == sample(2)), (40, true, false));
    }

    /// More blocks than there is room for: as if a working combination were refused.
    #[test]
    fn a_plan_that_is_wrongly_refused_is_named_and_fails() {
        let mut plan = plans(2, ALL)[0];
        plan.case.config.blocks = OPTIONS.max_blocks_per_peer.map(|most| most + 1);
        let outcomes = outcomes_of(2, &[plan], ALL).unwrap();
        let mut tally = super::super::Tally::default();
        for (collective, outcome) in Collective::ALL.into_iter().zip(outcomes) {
            tally.collective(collective.name(), outcome);
        }
        let text = tally.text();
        assert!(!tally.holds(), "{text}");
        assert!(text.contains(&format!("REFUSED {}: 2 ranks, {plan}: ", plan.collective.name())), "{text}");
        assert!(text.contains("9 blocks"), "{text}");
    }

    /// Rows of 13 and shards of 334: refused. Rows of 64 and shards of 512: not.
    #[test]
    fn an_all_reduce_whose_shards_tear_rows_apart_must_be_refused() {
        let of = |len, ranks| {
            let config = Knobs { primitive: Some(Primitive::Staged), ..Knobs::default() };
            let case = Case { dtype: Type::F32, hook: Hook::RmsNorm, len, config, rounds: None };
            let plan = Plan { collective: Collective::AllReduce, case, op: ReduceOp::Sum, algorithm: None };
            let outcome = outcomes_of(ranks, &[plan], ALL).unwrap().swap_remove(Collective::AllReduce as usize);
            (outcome.agree, outcome.refused.len(), outcome.denied, outcome.differ)
        };
        assert_eq!(of(1001, 3), (0, 1, vec![], vec![]));
        assert_eq!(of(1024, 2), (1, 0, vec![], vec![]));
    }

    /// In a full run: every hook of the library with every type it takes and every protocol that allows it, whatever
    /// the seed.
    #[test]
    fn every_hook_type_and_protocol_is_met_in_every_world() {
        for (ranks, seed) in [(2, 1), (3, 9)] {
            let plans = plans(ranks, Asked { quick: false, seed, ..ALL });
            let met = |collective, hook, dtype, primitive| {
                plans.iter().any(|plan: &Plan| {
                    let Case { hook: h, dtype: t, config, .. } = plan.case;
                    (plan.collective, h, t, config.primitive) == (collective, hook, dtype, primitive)
                })
            };
            for (hook, dtype) in Hook::ALL.into_iter().flat_map(|hook| Type::ALL.map(|dtype| (hook, dtype))) {
                for primitive in PROTOCOLS {
                    let stored_as_sent = hook.refused_by_exchange(primitive).is_none();
                    let must = hook.takes(dtype) && stored_as_sent;
                    assert_eq!(
                        met(Collective::AllToAll, hook, dtype, primitive),
                        must,
                        "{hook:?} {dtype} {primitive:?}"
                    );
                }
                let reduces = !matches!(hook, Hook::Quantise | Hook::QuantiseI8 | Hook::Narrow);
                let must = hook.takes(dtype) && reduces && (dtype != Type::Bool || hook == Hook::Cast);
                assert_eq!(
                    met(Collective::ReduceScatter, hook, dtype, Some(Primitive::Staged)),
                    must,
                    "{hook:?} {dtype}"
                );
            }
        }
    }

    #[test]
    fn every_schedule_is_met_and_a_named_collective_keeps_only_its_own() {
        let mesh = Mesh::of(Some(Wire::Mesh), Apart::default(), Shuffle::default()).unwrap();
        let worlds = [None, mesh.as_ref()].map(|mesh| (mesh, plans(3, Asked { schedules: true, mesh, ..ALL })));
        let cells = Collective::ALL.into_iter().flat_map(|c| PROTOCOLS.map(|p| (c, p)));
        for ((mesh, all), (collective, primitive)) in worlds.iter().flat_map(|w| cells.clone().map(move |c| (w, c))) {
            for &algorithm in collective.algorithms() {
                let plan = Plan { algorithm: Some(algorithm), collective, ..all[0] };
                let config = Knobs { primitive, ..Knobs::default() };
                let plan = Plan { case: Case { config, ..plan.case }, ..plan };
                let must = plan.is_possible() && !(collective.reduces() && primitive == Some(Primitive::Bulk));
                let must = must && (mesh.is_some() || algorithm != Algorithm::TwoLevel);
                let is = |met: &Plan| {
                    let ways = met.algorithm.map_or(algorithm != Algorithm::TwoLevel, |way| way == algorithm);
                    ways && met.collective == collective && met.case.config.primitive == primitive
                };
                assert_eq!(all.iter().any(is), must, "{plan}");
            }
        }
        let only = [Collective::Gather];
        let some = plans(3, Asked { schedules: true, only: &only, ..ALL });
        assert!(!some.is_empty() && some.iter().all(|plan| plan.collective == Collective::Gather));
    }

    #[test]
    fn shares_are_all_plans_once() {
        let of = |share| plans(2, Asked { share, ..ALL });
        let shares: usize = (0..7).map(|k| of((k, 7)).len()).sum();
        assert_eq!(shares, of((0, 1)).len());
        assert_eq!((of((3, 7))[0], of((3, 7))[1]), (of((0, 1))[3], of((0, 1))[10]));
    }
}
