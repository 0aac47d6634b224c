//! Every collective × hook × element type × protocol × algorithm × size, among threads or processes, against plain computations on the host.

use crate::bench::Progress;
use crate::run::{Case, Collective, Hook, PROTOCOLS, Peers, Plan, Random, Wire, gpu_options, prepare, prepare_all};
use anyhow::Result;
use std::sync::Arc;
use tilewire::cuda::Device;
use tilewire::ir::Type;
use tilewire::transport::{NvlOptions, NvlTransport, RankError, ShmOptions, ShmTransport, TransferError, World};
use tilewire::{Config, Primitive, ReduceOp, RunError};

/// What came of all plans of one collective.
#[derive(Default)]
pub struct Outcome {
    /// Right, to the bit.
    pub agree: u64,
    /// Refused: why.
    pub refused: Vec<String>,
    /// Wrong: what, and where.
    pub differ: Vec<String>,
}

/// Small enough that a mebibyte goes many times through it.
const OPTIONS: ShmOptions = ShmOptions {
    per_peer_bytes: 256 << 10,
    max_blocks_per_peer: 8,
    max_slots: 8,
    max_copies: 1,
    packet_bytes: 256 << 10,
    populate: false,
};

/// What is asked of the collectives in one world.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Whether few types and sizes are enough.
    pub quick: bool,
    /// These collectives; none named: all.
    pub only: &'a [Collective],
    /// Of all plans, so many, chosen by the seed.
    pub sample: Option<usize>,
    /// Of all plans, those whose number leaves the first when divided by the second.
    pub share: (usize, usize),
    pub seed: u64,
    /// The device, or the CPU where there is none.
    pub device: Option<&'a Arc<Device>>,
}

/// Runs the plans in a world of so many threads; the outcomes by collective, in the order of [`Collective::ALL`].
pub fn collectives(ranks: usize, asked: Asked<'_>) -> Result<Vec<Outcome>> {
    let plans = plans(ranks, asked);
    let of_ranks = World::threads(ranks).run(|world| verdicts(&world, &plans, asked))?;
    Ok(outcomes(ranks, &plans, &of_ranks))
}

/// Runs the plans in a world that is there already; every rank gets the outcomes of all.
pub fn collectives_of(world: &World, asked: Asked<'_>) -> Result<Vec<Outcome>, RankError> {
    let plans = plans(world.size(), asked);
    let own = verdicts(world, &plans, asked)?;
    let all = world.bootstrap().all_gather("verify/verdicts", &Verdict::to_bytes(&own), world.deadline())?;
    let of_ranks: Vec<_> = all.iter().map(|bytes| Verdict::from_bytes(bytes, plans.len())).collect();
    Ok(outcomes(world.size(), &plans, &of_ranks))
}

/// What one rank finds.
fn verdicts(world: &World, plans: &[Plan], asked: Asked<'_>) -> Result<Vec<Verdict>, RankError> {
    let Some(device) = asked.device else {
        let link = Wire::Shm(ShmTransport::rendezvous(world, OPTIONS)?);
        let verdicts = judge(world, plans, asked.seed, |_| &link)?;
        link.close()?;
        return Ok(verdicts);
    };
    // What goes round a ring or is reduced takes its steps in one role.
    let options = |copies| NvlOptions {
        per_peer_bytes: OPTIONS.per_peer_bytes,
        max_blocks_per_peer: OPTIONS.max_blocks_per_peer,
        max_slots: OPTIONS.max_slots,
        packet_bytes: OPTIONS.packet_bytes,
        copies,
    };
    let alone = Wire::Nvl(NvlTransport::rendezvous(world, device, options(1))?);
    let copied = Wire::Nvl(NvlTransport::rendezvous(world, device, options(4))?);
    let which = |plan: &Plan| if gpu_options(plan).copies == 1 { &alone } else { &copied };
    let verdicts = judge(world, plans, asked.seed, which)?;
    alone.close()?;
    copied.close()?;
    Ok(verdicts)
}

/// What the ranks find together: what one finds wrong is wrong; what is refused is refused by all.
fn outcomes(ranks: usize, plans: &[Plan], of_ranks: &[Vec<Verdict>]) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = Collective::ALL.iter().map(|_| Outcome::default()).collect();
    for (number, plan) in plans.iter().enumerate() {
        let outcome = &mut outcomes[plan.collective as usize];
        let verdicts = of_ranks.iter().map(|verdicts| &verdicts[number]);
        match verdicts.max_by_key(|verdict| verdict.weight()).expect("at least one rank") {
            Verdict::Agrees => outcome.agree += 1,
            Verdict::Refused(why) => outcome.refused.push(why.clone()),
            Verdict::Differs(what) => outcome.differ.push(format!("{ranks} ranks, {plan}: {what}")),
        }
    }
    outcomes
}

/// What one rank says of one plan.
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

    /// For other processes: a line for each that does not agree, its number, its weight and what it says.
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

fn judge<'l>(
    world: &World,
    plans: &[Plan],
    seed: u64,
    link_of: impl Fn(&Plan) -> &'l Wire,
) -> Result<Vec<Verdict>, RankError> {
    let (me, size) = (world.rank(), world.size());
    let mut progress = (me.index() == 0).then(|| Progress::new(plans.len()));
    let mut verdicts = Vec::with_capacity(plans.len());
    for plan in plans {
        if let Some(progress) = &mut progress {
            progress.step(&format!("{size} ranks, {plan}"));
        }
        let link = link_of(plan);
        let prepared = match plan.collective {
            Collective::Sendrecv => {
                let peers = Peers { to: Some(me.after(1, size)), from: Some(me.after(size - 1, size)) };
                prepare(link, &plan.case, peers, seed)
            }
            _ => prepare_all(link, plan, seed),
        };
        let mut op = match prepared {
            Ok(op) => op,
            Err(RunError::Transfer(error)) if !matches!(error, TransferError::Broken { .. }) => {
                verdicts.push(Verdict::Refused(error.to_string()));
                continue;
            }
            Err(error) => return Err(format!("{plan}: {error}").into()),
        };
        let mut verdict = Verdict::Agrees;
        for turn in 0..2 {
            op.fill(turn);
            op.launch().map_err(|error| {
                // The world reports who fails first; who waited in vain, and where, another rank may know.
                eprintln!("rank {me}, {plan}: {error}");
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

/// The plans for a world of so many ranks, the same on all of them.
fn plans(ranks: usize, asked: Asked<'_>) -> Vec<Plan> {
    let (share, shares) = asked.share;
    let named = |plan: &Plan| asked.only.is_empty() || asked.only.contains(&plan.collective);
    let all = all_plans(ranks, asked.quick).into_iter().filter(named);
    let mut plans: Vec<Plan> = all.skip(share).step_by(shares).collect();
    let mut random = Random::new(asked.seed ^ (ranks as u64) << 32);
    while plans.len() > asked.sample.unwrap_or(usize::MAX) {
        plans.swap_remove(random.below(plans.len()));
    }
    plans
}

fn all_plans(ranks: usize, quick: bool) -> Vec<Plan> {
    let dtypes: &[Type] = if quick { &[Type::F32, Type::BF16, Type::U8] } else { &Type::ALL };
    let mut plans = Vec::new();
    for collective in Collective::ALL.into_iter().filter(|&c| ranks > 1 || c != Collective::Sendrecv) {
        for (&dtype, hook) in dtypes.iter().flat_map(|dtype| Hook::ALL.map(|hook| (dtype, hook))) {
            for primitive in PROTOCOLS {
                for &algorithm in collective.algorithms() {
                    for len in lens(dtype, primitive, quick) {
                        // Two blocks in every second size, each op in turn.
                        let number = plans.len();
                        let config = Config { primitive, blocks: Some(1 + number % 2), ..Config::default() };
                        let case = Case { dtype, hook, len, config, rounds: None };
                        let op = ReduceOp::ALL[number % ReduceOp::ALL.len()];
                        let algorithm = Some(algorithm).filter(|_| collective.algorithms().len() > 1);
                        let plan = Plan { collective, case, op, algorithm };
                        if hook.takes(dtype) && collective.refuses(&case).is_none() && plan.is_possible() {
                            plans.push(plan);
                        }
                    }
                }
            }
        }
    }
    plans
}

/// Elements of a message: none, one, odd, a kibibyte, a mebibyte, and above the staging.
fn lens(dtype: Type, primitive: Option<Primitive>, quick: bool) -> Vec<usize> {
    let size = dtype.size();
    match (primitive, quick) {
        (Some(Primitive::Packet), true) => vec![1, 31],
        (Some(Primitive::Packet), false) => vec![0, 1, 31, 512 / size],
        (_, true) => vec![0, 1001],
        (_, false) => vec![0, 1, 1001, 1024 / size, (300 << 10) / size + 1, (1 << 20) / size],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_travel() {
        let verdicts =
            vec![Verdict::Agrees, Verdict::Refused("too\nlarge".into()), Verdict::Differs("rank 1: 3".into())];
        let mut arrived = Verdict::from_bytes(&Verdict::to_bytes(&verdicts), 3);
        assert_eq!(arrived[1], Verdict::Refused("too; large".into()));
        arrived[1] = verdicts[1].clone();
        assert_eq!(arrived, verdicts);
    }

    const ALL: Asked<'static> = Asked { quick: true, only: &[], sample: None, share: (0, 1), seed: 1, device: None };

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

    #[test]
    fn shares_are_all_plans_once() {
        let of = |share| plans(2, Asked { share, ..ALL });
        let shares: usize = (0..7).map(|k| of((k, 7)).len()).sum();
        assert_eq!(shares, of((0, 1)).len());
        assert_eq!((of((3, 7))[0], of((3, 7))[1]), (of((0, 1))[3], of((0, 1))[10]));
    }
}
