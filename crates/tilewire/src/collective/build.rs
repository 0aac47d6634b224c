//! Turns a request into a prepared kernel: plan, trace, check, compile, tell the other ranks.

use super::agreement::Cards;
use super::error::RunError;
use super::exchange_kernel::{self, ExchangeKernel};
use super::hooks::OverlapCheck;
use super::itinerary::{Itinerary, Work};
use super::launch::{Launch, LaunchOptions};
use super::one_hop::{self, OneHop};
use super::operation::{Kind, Operation};
use super::prepared::{PreparedExchange, Registered};
use super::request::Request;
use super::settle::torn;
use super::windows::WindowOf;
use super::{exchange_plan, map_kernel, reduction_kernel, reduction_plan};
use crate::cuda::{Device, Seat};
use crate::hook::{Traced, kernel_at};
use crate::ir::Op;
use crate::schedule::Tiling;
use crate::transport::TransferError;
use crate::vm::StorePolicy;

impl<'l> Request<'_, 'l> {
    pub(super) fn plan(&self) -> Result<Itinerary, RunError> {
        self.windows.iter().try_for_each(WindowOf::check)?;
        match self.operation {
            Operation::Map => self.in_whole_groups(map_kernel::plan(self)?),
            Operation::Exchange(pattern) => exchange_plan::plan(self, pattern),
            Operation::Reduction(kind, op) => reduction_plan::plan(self, (kind, op)),
        }
    }

    /// A map whose blocks do not split groups of neighbours. How large groups are is known once the hooks are traced.
    fn in_whole_groups(&self, plan: Itinerary) -> Result<Itinerary, RunError> {
        let Work::Map { blocks, share } = plan.work else { return Ok(plan) };
        if blocks <= 1 || self.hooks.output_shape.is_some() || plan.out.len() == 0 || !plan.faults.is_empty() {
            return Ok(plan);
        }
        let len = plan.out.len();
        let whole =
            groups(&self.trace(&plan)?).into_iter().fold(1, |whole, group| map_kernel::common(whole, group, len));
        let share = share.next_multiple_of(whole).min(len);
        Ok(Itinerary { work: Work::Map { blocks: len.div_ceil(share), share }, ..plan })
    }

    pub(super) fn build(mut self) -> Result<PreparedExchange<'l>, RunError> {
        let plan = self.plan()?;
        let traced = self.trace(&plan)?;
        if let Work::Map { .. } = plan.work {
            let unroll = self.config.unroll.unwrap_or(0);
            let device =
                [&plan.out, &plan.inp].into_iter().find_map(|tensor| tensor.memory().reachable_from().device_only());
            let seat = device.map(|number| Seat::of_thread(&Device::open(number)?)).transpose()?;
            let bound = plan.bound();
            return Ok(PreparedExchange::alone(Launch::alone(traced, seat.as_ref(), unroll, plan.call)?, bound));
        }
        let (options, hop) = (self.options(&plan), self.in_one_hop(&plan));
        let hash = self.same_hooks.then(|| self.hooks.hash()).transpose()?;
        let cards = Cards::of(&plan, &self.hooks, hash);
        let (posted, bound) = (self.registered(&plan), plan.bound());
        let prepared = PreparedExchange::over(self.link(), traced, cards, options, (plan.call, bound), hop);
        Ok(prepared?.keeping(posted))
    }

    fn options(&self, plan: &Itinerary) -> LaunchOptions {
        let stores = StorePolicy::of(&plan.traffic);
        let stores = StorePolicy { puts: self.puts.unwrap_or(stores.puts), ..stores };
        let unroll = self.config.unroll.unwrap_or(0);
        LaunchOptions { deadline: self.deadline, watched: self.watched, stores, unroll }
    }

    /// The kernel that takes one hop if all ranks reach the tensors it needs, or why there is none.
    fn in_one_hop(&mut self, staged: &Itinerary) -> Result<OneHop, String> {
        let candidate = one_hop::candidate(self, staged)?;
        let mut made = Vec::new();
        for sides in candidate.sides() {
            self.windows = candidate.windows(sides);
            let traced = self.plan().and_then(|plan| Ok((self.trace(&plan)?, plan)));
            self.windows.clear();
            let (traced, plan) = traced.map_err(|error| format!("one hop cannot do it: {error}"))?;
            let options = self.options(&plan);
            made.push((sides, plan, traced, options));
        }
        candidate.traced(made)
    }

    /// What must stay registered while the collective can be launched: what its posts write and read, and this rank's
    /// own windows, which posts of others write.
    fn registered(&self, plan: &Itinerary) -> Registered {
        let regions = self.windows.iter().filter_map(|window| window.posted.clone()).collect();
        Registered { posted: plan.posted(), regions }
    }

    pub(super) fn explain(&self) -> Result<String, RunError> {
        let plan = self.plan()?;
        let hop = match &plan.work {
            Work::Map { .. } => String::new(),
            _ => match one_hop::candidate(self, &plan) {
                Ok(candidate) => {
                    format!("\n  in one hop, if the others agree at the first launch: {}", candidate.describe())
                }
                Err(why) => format!("\n  not in one hop: {why}"),
            },
        };
        Ok(format!("{}{hop}\n  hooks {:016x}", plan.explain(), self.hooks.hash()?))
    }

    pub(super) fn trace(&self, plan: &Itinerary) -> Result<Traced, RunError> {
        let (hooks, overlap) = (&self.hooks, OverlapCheck::default());
        if let Work::Legs(_) = plan.work {
            plan.register_sources(self.link())?;
        }
        let traced = kernel_at(plan.operation.name(), hooks.at.clone(), |k| {
            for (at, fault) in hooks.faults.iter().chain(&plan.faults) {
                k.report(at, fault.clone());
            }
            let writes = match (&plan.work, plan.operation) {
                (Work::Legs(legs), Operation::Exchange(pattern)) => {
                    let (flow, link) = (pattern.flow(), self.link());
                    exchange_kernel::roles(ExchangeKernel { plan, legs, flow, hooks, link }, k);
                    !hooks.is_copy() && legs.all().any(|leg| leg.out.is_some())
                }
                // With faulty lengths, the reduction's roles would reach beyond its input.
                (Work::Shards(_), _) if !plan.faults.is_empty() => return k.main(|_| {}),
                (Work::Shards(of), Operation::Reduction(kind, _)) => {
                    reduction_kernel::roles(plan, of, hooks, self.link(), k);
                    // An in-place all-reduce has already been checked as a map. A reduce-scatter writes its chunk while
                    // it is still sending others, so its hooks may read only the position of the output that they
                    // write.
                    !(hooks.is_copy() || plan.in_place && kind == Kind::AllReduce)
                }
                (Work::Map { blocks, share }, _) => {
                    map_kernel::role(plan, (*blocks, *share), hooks, k);
                    true
                }
                (Work::Legs(_) | Work::Shards(_), _) => unreachable!("exchanges have legs, reductions have shards"),
            };
            if writes {
                overlap.look(k, plan.out.memory());
            }
        })?;
        overlap.result()?;
        self.check_groups(plan, &traced)?;
        Ok(traced)
    }

    /// Neither tiles nor shards may split groups of neighbours.
    fn check_groups(&self, plan: &Itinerary, traced: &Traced) -> Result<(), TransferError> {
        let groups = groups(traced);
        let is_torn = |tiling: &Tiling, group: usize| {
            let tile = tiling.tile_cols();
            tiling.tiles() > 1 && tile < tiling.cols() && !tile.is_multiple_of(group)
        };
        for (tiling, protocol, link) in plan.tilings() {
            if let Some(&group) = groups.iter().find(|&&group| is_torn(&tiling, group)) {
                return Err(torn(&link, (group, tiling.tile_cols()), protocol, plan.payload));
            }
        }
        // Groups are counted from the start of a shard. If a shard started in the middle of a group, its groups would
        // contain the wrong neighbours.
        let Work::Shards(of) = &plan.work else { return Ok(()) };
        let begins_within = |group: usize| {
            of.shards.iter().any(|shard| !shard.range.is_empty() && !shard.range.start.is_multiple_of(group))
        };
        match groups.into_iter().find(|&group| begins_within(group)) {
            Some(group) => {
                let shard = of.shards[0].range.len();
                let padded = shard.next_multiple_of(group) * of.shards.len();
                Err(TransferError::TornShard { group, shard, padded })
            }
            None => Ok(()),
        }
    }
}

/// The sizes of the groups of neighbours that the hooks of a kernel combine.
fn groups(traced: &Traced) -> Vec<usize> {
    let group = |op: &Op| if let Op::Group { size, .. } = op { Some(*size as usize) } else { None };
    traced.kernel.insts.values().filter_map(|inst| group(&inst.op)).collect()
}
