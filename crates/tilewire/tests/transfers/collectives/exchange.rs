//! One exchange of all ranks: its form, its data, and whether the right bytes arrived.

use crate::case::{Way, assert_same, data, poison};
use tilewire::collective::{Exchange, PreparedExchange, Rounds};
use tilewire::ir::scalar::Element;
use tilewire::link::{Transport, Window};
use tilewire::transport::{Rank, RankError};
use tilewire::{RunError, Tensor, all_gather, all_to_all, broadcast, gather, scatter};
use tilewire_testkit::random::Random;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    AllToAll,
    AllGather,
    Broadcast,
    Gather,
    Scatter,
}

pub const KINDS: [Kind; 5] = [Kind::AllToAll, Kind::AllGather, Kind::Broadcast, Kind::Gather, Kind::Scatter];

/// An exchange of chunks of `chunk` elements.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub kind: Kind,
    pub root: Rank,
    pub chunk: usize,
    pub way: Way,
    pub blocks: usize,
    pub rounds: Rounds,
}

impl Case {
    /// One of the cases of a world of this many ranks.
    pub fn random(numbers: &mut Random, kind: Kind, ranks: usize) -> Case {
        let ways = [Way::Chosen, Way::Packet, Way::staged(256, 2), Way::staged(512, 7), Way::Direct];
        let way = numbers.pick(&ways);
        // A block of the small transport has messages of 512 bytes in packets and 4 KiB of staging.
        let chunk = match way {
            Way::Packet => numbers.pick(&[0, 1, 7, 60, 64]),
            _ => numbers.pick(&[0, 1, 7, 61, 256, 1023, 9001]),
        };
        let root = Rank::new(numbers.below(ranks) as u32);
        let (blocks, rounds) =
            (numbers.pick(&[1, 1, 2, 3]), numbers.pick(&[Rounds::Roles, Rounds::Blocks, Rounds::Legs]));
        Case { kind, root, chunk, way, blocks, rounds }
    }

    /// Elements of an input and of an output.
    pub fn lens(&self, ranks: usize) -> (usize, usize) {
        let all = ranks * self.chunk;
        match self.kind {
            Kind::AllToAll => (all, all),
            Kind::AllGather | Kind::Gather => (self.chunk, all),
            Kind::Broadcast => (self.chunk, self.chunk),
            Kind::Scatter => (all, self.chunk),
        }
    }

    /// The builder.
    pub fn of<'h, 'l, In: Element, Out: Element>(
        &self,
        link: &'l dyn Transport,
        out: &Tensor<Out>,
        inp: &Tensor<In>,
    ) -> Exchange<'h, 'l, In, Out> {
        let exchange = match self.kind {
            Kind::AllToAll => all_to_all(link, out, inp),
            Kind::AllGather => all_gather(link, out, inp),
            Kind::Broadcast => broadcast(link, out, inp, self.root),
            Kind::Gather => gather(link, out, inp, self.root),
            Kind::Scatter => scatter(link, out, inp, self.root),
        };
        exchange.config(self.way.config(self.blocks)).rounds(self.rounds)
    }

    /// The expected output of a rank. `input` returns the input of each rank, and `hook` the effect of the hooks on a
    /// chunk. `None` if the rank has no output.
    pub fn expected<In: Element, Out>(
        &self,
        me: Rank,
        ranks: usize,
        input: impl Fn(Rank) -> Vec<In>,
        hook: impl Fn(&[In]) -> Vec<Out>,
    ) -> Option<Vec<Out>> {
        let chunk = |of: &[In], k: Rank| hook(&of[k.index() * self.chunk..][..self.chunk]);
        match self.kind {
            Kind::AllToAll => Some(Rank::all(ranks).flat_map(|p| chunk(&input(p), me)).collect()),
            Kind::Gather if me != self.root => None,
            Kind::AllGather | Kind::Gather => Some(Rank::all(ranks).flat_map(|p| hook(&input(p))).collect()),
            Kind::Broadcast => Some(hook(&input(self.root))),
            Kind::Scatter => Some(chunk(&input(self.root), me)),
        }
    }
}

/// A case that is built without hooks, with its tensors.
pub struct Ready<'l, T: Element> {
    pub case: Case,
    link: &'l dyn Transport,
    inp: Tensor<T>,
    out: Tensor<T>,
    op: PreparedExchange<'l>,
}

impl<'l, T: Element> Ready<'l, T> {
    pub fn build(case: Case, link: &'l dyn Transport) -> Result<Self, RunError> {
        let (sent, received) = case.lens(link.world_size());
        let window = if case.way == Way::Direct { Some(Window::<T>::allocate(link, received)?) } else { None };
        let out = window.as_ref().map_or_else(|| Tensor::zeros(received), |window| window.tensor().clone());
        let inp = Tensor::zeros(sent);
        let exchange = case.of(link, &out, &inp);
        let exchange = window.iter().fold(exchange, |exchange, window| exchange.window(window));
        Ok(Ready { case, link, inp, out, op: exchange.build()? })
    }

    /// Launches with new data and checks every bit.
    pub fn turn(&mut self, seed: u64) -> Result<(), RankError> {
        let (me, ranks) = (self.link.rank(), self.link.world_size());
        let input = |rank| data::<T>(seed, rank, self.inp.len());
        self.inp.copy_from(&input(me));
        poison(&self.out);
        let before = self.out.to_vec();
        self.op.run()?;
        let must = self.case.expected(me, ranks, input, <[T]>::to_vec).unwrap_or(before);
        assert_same(&self.out.to_vec(), &must, (self.case, me, ranks, seed));
        assert_same(&self.inp.to_vec(), &input(me), ("the input", self.case));
        Ok(())
    }
}
