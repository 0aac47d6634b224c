//! Transfers made from a seed: the ranks, the data, and the expected result. Every rank makes the same list.

use crate::untouched;
use tilewire::collective::PreparedExchange;
use tilewire::link::{ShmTransport, Transport, Window};
use tilewire::transport::RankError;
use tilewire::{F8E4M3, Knobs, Memory, Primitive, Rank, RunError, Tensor, sendrecv};
use tilewire_testkit::random::Random;

/// The number of elements before and after an output. They must not change.
pub const GUARD: usize = 32;
const POISON: f32 = -77.5;
/// The number of neighbours that share a scale.
const GROUP: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hook {
    Copy,
    Scale,
    Transpose,
    Quantise,
}

/// Every rank sends to the rank `shift` after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    pub hook: Hook,
    pub rows: usize,
    pub cols: usize,
    pub shift: usize,
    pub config: Knobs,
}

impl Case {
    /// A case of a world of `ranks`.
    pub fn random(random: &mut Random, ranks: usize) -> Case {
        let primitive = random.pick(&[
            None,
            Some(Primitive::Packet),
            Some(Primitive::Staged),
            Some(Primitive::Bulk),
            Some(Primitive::Direct),
        ]);
        let hooks = [Hook::Copy, Hook::Scale, Hook::Transpose, Hook::Quantise];
        // Quantised data is stored by a consume hook, which `direct` does not have.
        let hook = random.pick(if primitive == Some(Primitive::Direct) { &hooks[..3] } else { &hooks });
        let (rows, cols) = match primitive {
            Some(Primitive::Packet) => {
                random.pick(&[(0, 1), (1, 1), (1, 15), (4, 4), (1, 17), (3, 6), (3, 43), (10, 20)])
            }
            _ => random.pick(&[(0, 1), (1, 1), (1, 17), (31, 33), (128, 65), (1, 20_000), (301, 257)]),
        };
        let mut config = Knobs { primitive, blocks: Some(1 + random.below(8)), ..Knobs::default() };
        config.granule = (hook == Hook::Quantise).then_some(GROUP);
        if matches!(primitive, Some(Primitive::Staged | Primitive::Bulk)) && random.below(2) == 0 {
            config.slot_bytes = Some(random.pick(&[512, 2048, 16384]));
            config.depth = Some(random.pick(&[2, 3, 8]));
        }
        Case { hook, rows, cols, shift: 1 + random.below(ranks - 1), config }
    }

    pub fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// Element `i` of what `rank` sends in this turn.
    pub fn sent(&self, turn: u64, rank: usize, i: usize) -> f32 {
        let x = Random::new(turn << 40 ^ (rank as u64) << 32 ^ i as u64).next();
        (x % 4001) as f32 / 4.0 - 500.0
    }

    /// The expected bits of everything that arrives from `rank`.
    pub fn arrives(&self, turn: u64, rank: usize) -> Vec<u32> {
        let sent: Vec<f32> = (0..self.len()).map(|i| self.sent(turn, rank, i)).collect();
        let arrived: Vec<f32> = match self.hook {
            Hook::Copy => sent,
            Hook::Scale => sent.iter().map(|x| x * 1.7).collect(),
            Hook::Transpose => {
                let at = |i: usize| sent[i % self.rows * self.cols + i / self.rows];
                (0..self.len()).map(at).collect()
            }
            Hook::Quantise => sent.chunks(GROUP).flat_map(quantised).collect(),
        };
        arrived.into_iter().map(f32::to_bits).collect()
    }
}

fn quantised(group: &[f32]) -> Vec<f32> {
    let most = group.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let scale = if most == 0.0 { 1.0 } else { most / 448.0 };
    group.iter().map(|x| F8E4M3::from_f32(x / scale).to_f32() * scale).collect()
}

/// A case that is built, with its tensors.
pub struct Ready<'l> {
    case: Case,
    me: Rank,
    from: Rank,
    op: PreparedExchange<'l>,
    inp: Tensor<f32>,
    around: Tensor<f32>,
    /// No guards around a window. Bytes lie behind it instead.
    guard: usize,
    behind: Option<Memory>,
}

impl<'l> Ready<'l> {
    /// Builds it. Collective if it goes through windows.
    pub fn build(link: &'l ShmTransport, case: Case) -> Result<Ready<'l>, RunError> {
        let (me, size) = (link.rank(), link.world_size());
        let (to, from) = (me.after(case.shift, size), me.after(size - case.shift, size));
        let direct = case.config.primitive == Some(Primitive::Direct);
        let window = if direct { Some(Window::<f32>::allocate(link, case.len())?) } else { None };
        let guard = if direct { 0 } else { GUARD };
        let around = window.as_ref().map_or_else(|| Tensor::zeros(case.len() + 2 * guard), |w| w.tensor().clone());
        let (out, inp) = (around.slice(guard..guard + case.len()), Tensor::zeros(case.len()));
        let behind = window.as_ref().map(|window| untouched::behind(window.tensor().memory()));
        let exchange = sendrecv(link, &out, &inp, to, from).config(case.config);
        let exchange = window.iter().fold(exchange, |exchange, window| exchange.window(window));
        let op = match case.hook {
            Hook::Copy => exchange.build(),
            Hook::Scale => exchange.produce(|c| c.input.load(c.pos()) * 1.7).build(),
            Hook::Transpose => exchange
                .chunk_shape(case.rows, case.cols)
                .output_shape(case.cols, case.rows)
                .produce(|c| c.input.at(c.col(), c.row()))
                .build(),
            Hook::Quantise => exchange
                .produce2(|c| {
                    let x = c.input.load(c.pos());
                    let most = x.abs().group_max(GROUP as u32);
                    let scale = most.eq(0.0).select(1.0f32, most / 448.0);
                    ((x / scale).cast::<F8E4M3>(), scale)
                })
                .consume(|c, (x, scale)| c.output.store(c.pos(), x.cast::<f32>() * scale))
                .build(),
        }?;
        Ok(Ready { case, me, from, op, inp, around, guard, behind })
    }

    /// New data, and an output of poison.
    pub fn fill(&self, turn: u64) {
        (0..self.case.len()).for_each(|i| self.inp.set(i, self.case.sent(turn, self.me.index(), i)));
        self.around.fill(POISON);
        self.behind.iter().for_each(untouched::poison);
    }

    pub fn launch(&mut self) -> Result<(), RunError> {
        self.op.run()
    }

    /// The bits that have arrived.
    pub fn arrived(&self) -> Vec<u32> {
        let all = self.around.to_vec();
        all[self.guard..all.len() - self.guard].iter().map(|x| x.to_bits()).collect()
    }

    /// True if everything is right after a launch.
    pub fn check(&self, turn: u64) -> Result<(), RankError> {
        let (is, must) = (self.arrived(), self.case.arrives(turn, self.from.index()));
        if let Some(i) = (0..must.len()).find(|&i| is[i] != must[i]) {
            return Err(format!("turn {turn}: element {i} is {:#x}, must be {:#x}", is[i], must[i]).into());
        }
        self.check_outside(turn)
    }

    /// True if everything outside the message is unchanged, also after a launch that failed: the guards, and the input.
    pub fn check_outside(&self, turn: u64) -> Result<(), RankError> {
        let all = self.around.to_vec();
        let guards = all[..self.guard].iter().chain(&all[all.len() - self.guard..]);
        if let Some(x) = guards.copied().find(|x| x.to_bits() != POISON.to_bits()) {
            return Err(format!("turn {turn}: a guard is {x}").into());
        }
        if let Some(at) = self.behind.as_ref().and_then(untouched::spoilt) {
            return Err(format!("turn {turn}: byte {at} behind the window was written").into());
        }
        match (0..self.case.len()).find(|&i| self.inp.get(i) != self.case.sent(turn, self.me.index(), i)) {
            Some(i) => Err(format!("turn {turn}: element {i} of the input has changed").into()),
            None => Ok(()),
        }
    }

    /// True if every element of a failed launch is either the poison or the expected value.
    pub fn check_partial(&self, turn: u64) -> Result<(), RankError> {
        let (is, must) = (self.arrived(), self.case.arrives(turn, self.from.index()));
        let odd = (0..must.len()).find(|&i| is[i] != must[i] && is[i] != POISON.to_bits());
        odd.map_or(Ok(()), |i| Err(format!("turn {turn}: element {i} is neither old nor new: {:#x}", is[i]).into()))
    }
}
