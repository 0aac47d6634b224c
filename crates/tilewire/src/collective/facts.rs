//! The facts about a world's machines: everything that decisions depend on besides the message, the knobs and the link.

use crate::link::{Machine, Transport};
use crate::schedule::BulkPlan;
use crate::transport::{LinkKind, Rank};

/// The facts that decisions may depend on if all ranks must agree on them. They are plain data, and all ranks hold the
/// same values:
/// - `ranks`, `machine` and `copies` come from what the ranks told each other at the rendezvous.
/// - `in_memory` and `has_far` are about the ranks of a domain and those outside of it. If there is more than one
///   domain, every rank has a peer outside of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorldFacts {
    pub ranks: usize,
    /// What the machines of all ranks have in common.
    pub machine: Machine,
    /// True if all ranks reach each other through the memory of one host, or are threads of hosts.
    pub in_memory: bool,
    /// True if some ranks reach each other by posts.
    pub has_far: bool,
    /// Number of copies of a role that share the steps of a leg.
    pub copies: u32,
}

impl WorldFacts {
    pub(super) fn of(link: &dyn Transport) -> WorldFacts {
        let (me, ranks) = (link.rank(), link.world_size());
        let machine = Machine::of_all(&link.machines());
        // Posts leave a processor's threads as they are: one thread still runs all roles.
        let on_host = matches!(machine, Machine::Cpu(_));
        let is_memory = |kind: LinkKind| kind == LinkKind::Shm || on_host && kind == LinkKind::Fabric;
        let in_memory = Rank::all(ranks).all(|rank| rank == me || is_memory(link.link(rank).kind));
        let has_far = Rank::all(ranks).any(|rank| link.link(rank).kind == LinkKind::Fabric);
        WorldFacts { ranks, machine, in_memory, has_far, copies: link.copies() }
    }

    pub(super) fn on_gpu(&self) -> bool {
        matches!(self.machine, Machine::Gpu { .. })
    }

    /// True if kernels take the form that suits a GPU: on a GPU, and in rehearsals of one.
    pub(super) fn for_gpu(&self) -> bool {
        self.on_gpu() || self.copies > 1
    }

    /// True in a world of GPUs, or in the rehearsal of one, some of which reach each other by posts.
    pub(super) fn is_gpu_mesh(&self) -> bool {
        self.has_far && self.for_gpu()
    }

    /// Bytes of scratch for the bulk copies of a role. Each of a block's two roles has whole slots of the largest size
    /// in its half of the shared memory. The rest is left for the values that their hooks exchange.
    pub(super) fn bulk_scratch(&self) -> usize {
        match self.machine {
            Machine::Cpu(_) => BulkPlan::SCRATCH,
            Machine::Gpu { shared_bytes, .. } => shared_bytes / 2 / BulkPlan::LARGEST_SLOT * BulkPlan::LARGEST_SLOT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, all_gather, all_reduce, all_to_all, broadcast, reduce_scatter, sendrecv};
    use super::*;
    use crate::link::{AnyTransport, MeshOptions, MeshTransport, Processor, ShmOptions, ShmTransport};
    use crate::tensor::Tensor;
    use crate::transport::{RankError, World};
    use proptest::prelude::*;

    fn processors() -> impl Strategy<Value = Processor> {
        (any::<bool>(), (512usize << 10)..=(2 << 20))
            .prop_map(|(intel, second_level)| Processor { intel, second_level })
    }

    /// Runs ranks that claim to have these processors, near each other or far.
    fn claiming(
        claims: &[Processor],
        is_far: bool,
        body: impl Fn(&AnyTransport) -> Result<(), RankError> + Sync,
    ) -> Result<(), TestCaseError> {
        let ran = World::threads(claims.len()).run(|world| {
            claims[world.rank().index()].claim();
            let link = match is_far {
                true => MeshTransport::rendezvous(&world, MeshOptions::alone(world.size()))?.into(),
                false => AnyTransport::from(ShmTransport::rendezvous(&world, ShmOptions::default())?),
            };
            body(&link)?;
            Ok(link.close()?)
        });
        ran.map(|_| ()).map_err(|error| TestCaseError::fail(error.to_string()))
    }

    fn values(rank: usize, len: usize) -> Vec<f32> {
        (0..len).map(|i| (rank * 31 + i % 97) as f32).collect()
    }

    /// Runs every collective with default settings. Ranks that choose differently get a mismatch at their first launch.
    fn all_defaults(link: &AnyTransport, len: usize) -> Result<(), RankError> {
        let (me, ranks) = (link.rank().index(), link.world_size());
        let (one, all) = (Tensor::from_slice(&values(me, len)), Tensor::from_slice(&values(me, len * ranks)));
        let (short, long) = (Tensor::<f32>::zeros(len), Tensor::<f32>::zeros(len * ranks));
        let before = (me + ranks - 1) % ranks;
        sendrecv(link, &short, &one, link.rank().after(1, ranks), Rank::new(before as u32)).run()?;
        assert_eq!(short.to_vec(), values(before, len));
        all_to_all(link, &long, &all).run()?;
        all_gather(link, &long, &one).run()?;
        assert_eq!(long.to_vec(), (0..ranks).flat_map(|rank| values(rank, len)).collect::<Vec<_>>());
        broadcast(link, &short, &one, Rank::new(0)).run()?;
        reduce_scatter(link, &short, &all).run()?;
        all_reduce(link, &short, &one).run()?;
        all_reduce(link, &short, &one).algorithm(Algorithm::Ring).run()?;
        // Two parts for each element, the last of them shared.
        sendrecv(link, &short, &one, link.rank().after(1, ranks), Rank::new(before as u32))
            .produce2(|c| (c.input.load(c.pos()).cast::<i8>(), c.input.load(c.pos())))
            .consume(|c, (_, x)| c.output.store(c.pos(), x))
            .run()?;
        assert_eq!(short.to_vec(), values(before, len));
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn ranks_on_different_processors_choose_alike(
            claims in prop::collection::vec(processors(), 2..4),
            len in prop_oneof![0usize..2000, 2000usize..300_000],
            is_far: bool,
        ) {
            claiming(&claims, is_far, |link| {
                let facts = WorldFacts::of(link);
                let second_level = claims.iter().map(|claim| claim.second_level).min().unwrap();
                let intel = claims.iter().any(|claim| claim.intel);
                assert_eq!(facts.machine, Machine::Cpu(Processor { intel, second_level }));
                all_defaults(link, len)
            })?;
        }
    }

    #[test]
    fn every_rank_knows_the_machine_of_each() {
        let claims = [(true, 1 << 20), (false, 512 << 10), (false, 2 << 20)];
        let claims = claims.map(|(intel, second_level)| Processor { intel, second_level });
        for is_far in [false, true] {
            claiming(&claims, is_far, |link| {
                assert_eq!(link.machines(), claims.map(Machine::Cpu));
                Ok(())
            })
            .unwrap();
        }
    }

    #[test]
    fn one_kind_of_machine_keeps_its_own_choices() {
        let claim = Processor { intel: false, second_level: 1 << 20 };
        claiming(&[claim; 3], false, |link| {
            assert_eq!(WorldFacts::of(link).machine, Machine::Cpu(claim));
            Ok(())
        })
        .unwrap();
    }
}
