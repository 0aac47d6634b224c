//! The fields of a hook's context that say *which* value a hook handles. The hooks here write these fields in any
//! collective. The definitions here say what they must have written, whatever algorithm and protocol carried the value.

use std::fmt;
use tilewire::collective::{Reducible, Rounds};
use tilewire::hook::Ctx;
use tilewire::link::{Transport, Window};
use tilewire::transport::Rank;
use tilewire::{
    Algorithm, Knobs, Primitive, RunError, Tensor, Traced, Value, all_gather, all_reduce, all_to_all, broadcast,
    gather, recv, reduce_scatter, scatter, send, sendrecv,
};

/// The collectives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collective {
    /// Rank 0 sends to rank 1.
    Send,
    /// Every rank sends to the next one.
    Sendrecv,
    AllToAll,
    AllGather,
    /// The root is the last rank.
    Broadcast,
    /// The root is the last rank.
    Gather,
    /// The root is the last rank.
    Scatter,
    ReduceScatter,
    AllReduce,
}

impl Collective {
    pub const ALL: [Collective; 9] = [
        Collective::Send,
        Collective::Sendrecv,
        Collective::AllToAll,
        Collective::AllGather,
        Collective::Broadcast,
        Collective::Gather,
        Collective::Scatter,
        Collective::ReduceScatter,
        Collective::AllReduce,
    ];

    /// True if every produced value ends in the output of one rank.
    pub fn ends_in_one(self) -> bool {
        !matches!(self, Collective::AllGather | Collective::Broadcast | Collective::AllReduce)
    }

    /// True if every consumed value comes from the input of one rank.
    pub fn comes_from_one(self) -> bool {
        !self.reduces()
    }

    pub fn reduces(self) -> bool {
        matches!(self, Collective::ReduceScatter | Collective::AllReduce)
    }

    pub fn algorithms(self) -> &'static [Option<Algorithm>] {
        match self {
            Collective::AllGather | Collective::ReduceScatter => {
                &[None, Some(Algorithm::OneShot), Some(Algorithm::Ring)]
            }
            Collective::AllReduce => {
                &[None, Some(Algorithm::OneShot), Some(Algorithm::TwoPhase), Some(Algorithm::Ring)]
            }
            _ => &[None],
        }
    }

    /// The number of chunks in the input and in the output of a rank, in a world of this size.
    pub fn chunks(self, me: usize, ranks: usize) -> (usize, usize) {
        match self {
            Collective::AllToAll => (ranks, ranks),
            Collective::AllGather => (1, ranks),
            Collective::Gather => (1, if me + 1 == ranks { ranks } else { 0 }),
            Collective::Scatter | Collective::ReduceScatter => (ranks, 1),
            _ => (1, 1),
        }
    }

    /// The shard of a position on its way from one rank to another.
    fn shard(self, (from, to): (usize, usize), pos: usize, share: usize) -> usize {
        match self {
            Collective::Scatter | Collective::ReduceScatter => to,
            Collective::AllReduce => pos / share,
            _ => from,
        }
    }
}

/// A collective, its algorithm and its protocol.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Form {
    pub collective: Collective,
    pub algorithm: Option<Algorithm>,
    pub primitive: Option<Primitive>,
    pub rounds: Option<Rounds>,
    pub blocks: Option<usize>,
    /// The number of positions of a chunk, at most [`Form::LONGEST`].
    pub len: usize,
    /// True if the chunk has a shape.
    pub shaped: bool,
    /// True if there is a consume hook.
    pub consumes: bool,
    /// The hook that asks for `peer()` and `recv_peer()` even where the collective refuses one of them.
    pub insists: Option<Leg>,
}

/// The kind of hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leg {
    Produce,
    Consume,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The fields: rank, world_size, shard, peer, recv_peer, pos, row, col, rows, cols, chunk.
type Fields<X> = [Option<X>; 11];

/// The lowest bit of each field, so that one word holds all fields.
const BITS: [u32; 11] = [0, 4, 8, 12, 16, 20, 30, 35, 40, 45, 55];
const NAMES: [&str; 11] =
    ["rank", "world_size", "shard", "peer", "recv_peer", "pos", "row", "col", "rows", "cols", "chunk"];

/// The factor by which a consume hook multiplies an arriving value before it adds its own fields.
const SENT: i64 = 31;

impl Form {
    pub const LONGEST: usize = 600;

    /// The rows and columns of the chunk, if it has a shape.
    pub fn shape(&self) -> Option<(usize, usize)> {
        let rows = (1..=20).rev().find(|rows| self.len.is_multiple_of(*rows)).expect("one row");
        self.shaped.then_some((rows, self.len / rows))
    }

    /// True if there is a produce hook. Peers that read an input in place run none.
    pub fn produces(&self) -> bool {
        !(self.collective.reduces() && self.primitive == Some(Primitive::Direct))
    }

    /// The forms that the library supports.
    pub fn is_possible(&self) -> bool {
        let Form { collective, algorithm, primitive, consumes, .. } = *self;
        let carried = match algorithm {
            Some(Algorithm::Ring) => matches!(primitive, None | Some(Primitive::Staged)),
            Some(Algorithm::TwoPhase) => matches!(primitive, None | Some(Primitive::Staged)),
            Some(Algorithm::OneShot) if collective == Collective::AllReduce => {
                matches!(primitive, Some(Primitive::Packet | Primitive::Direct))
            }
            _ => true,
        };
        let combined = match (collective, primitive) {
            (Collective::ReduceScatter | Collective::AllReduce, Some(Primitive::Bulk)) => false,
            (Collective::AllReduce, Some(Primitive::Packet)) => algorithm != Some(Algorithm::TwoPhase),
            (Collective::ReduceScatter | Collective::AllReduce, Some(Primitive::Direct)) => consumes,
            (_, Some(Primitive::Direct)) => !consumes,
            _ => true,
        };
        carried && combined
    }

    /// Builds one rank's part, and launches or traces it.
    pub fn part<T: Reducible>(
        &self,
        link: &dyn Transport,
        (out, inp): (&Tensor<T>, &Tensor<T>),
        window: Option<&Window<T>>,
        runs: bool,
    ) -> Result<Option<Traced>, RunError> {
        let (form, ranks) = (*self, link.world_size());
        let config = Knobs { primitive: form.primitive, blocks: form.blocks, ..Knobs::default() };
        macro_rules! hooked {
            ($builder:expr) => {{
                let builder = $builder.config(config);
                let builder = form.rounds.into_iter().fold(builder, |builder, rounds| builder.rounds(rounds));
                let builder = form.algorithm.into_iter().fold(builder, |builder, way| builder.algorithm(way));
                let builder = window.into_iter().fold(builder, |builder, window| builder.window(window));
                let builder = form.shape().into_iter().fold(builder, |b, (rows, cols)| b.output_shape(rows, cols));
                let builder = match form.produces() {
                    true => builder.produce(move |c: &Ctx<'_, T, T>| form.produced(c)),
                    false => builder,
                };
                let builder = match form.consumes {
                    true => builder.consume(move |c: &Ctx<'_, T, T>, x| form.consume(c, x)),
                    false => builder,
                };
                if !runs {
                    return builder.trace().map(Some);
                }
                let mut prepared = builder.build()?;
                prepared.run()?;
                prepared.sync()?;
                Ok(None)
            }};
        }
        let (me, root) = (link.rank(), Rank::new(ranks as u32 - 1));
        match form.collective {
            Collective::Send if me.index() == 0 => hooked!(send(link, inp, Rank::new(1))),
            Collective::Send if me.index() == 1 => hooked!(recv(link, out, Rank::new(0))),
            Collective::Send => Ok(None),
            Collective::Sendrecv => hooked!(sendrecv(link, out, inp, me.after(1, ranks), me.after(ranks - 1, ranks))),
            Collective::AllToAll => hooked!(all_to_all(link, out, inp)),
            Collective::AllGather => hooked!(all_gather(link, out, inp)),
            Collective::Broadcast => hooked!(broadcast(link, out, inp, root)),
            Collective::Gather => hooked!(gather(link, out, inp, root)),
            Collective::Scatter => hooked!(scatter(link, out, inp, root)),
            Collective::ReduceScatter => hooked!(reduce_scatter(link, out, inp)),
            Collective::AllReduce => hooked!(all_reduce(link, out, inp)),
        }
    }

    fn produced<'t, T: Reducible>(&self, c: &Ctx<'t, T, T>) -> Value<'t, T> {
        let peer = self.collective.ends_in_one() || self.insists == Some(Leg::Produce);
        self.written(c, peer, true).cast::<T>()
    }

    fn consume<'t, T: Reducible>(&self, c: &Ctx<'t, T, T>, x: Value<'t, T>) {
        let recv_peer = self.collective.comes_from_one() || self.insists == Some(Leg::Consume);
        let own = self.written(c, true, recv_peer);
        c.output.store(c.pos(), x * c.value(SENT).cast::<T>() + own.cast::<T>());
    }

    /// The fields of a context in one word.
    fn written<'t, T: Reducible>(&self, c: &Ctx<'t, T, T>, peer: bool, recv_peer: bool) -> Value<'t, i64> {
        let fields: Fields<Value<'t, i64>> = [
            Some(c.rank()),
            Some(c.world_size()),
            Some(c.shard()),
            peer.then(|| c.peer()),
            recv_peer.then(|| c.recv_peer()),
            Some(c.pos()),
            self.shaped.then(|| c.row()),
            self.shaped.then(|| c.col()),
            Some(c.rows()),
            Some(c.cols()),
            Some(c.chunk()),
        ];
        let word = |all: Value<'t, i64>, (field, bit): (Option<Value<'t, i64>>, u32)| match field {
            Some(field) => all + field * (1i64 << bit),
            None => all,
        };
        fields.into_iter().zip(BITS).fold(c.value(0i64), word)
    }

    /// The expected output of a rank after a launch, by position. Empty if nothing is written.
    pub fn must(&self, me: usize, ranks: usize) -> Vec<i64> {
        let (root, senders) = (
            ranks - 1,
            match self.collective {
                Collective::Send if me == 1 => vec![0],
                Collective::Send => vec![],
                Collective::Sendrecv => vec![(me + ranks - 1) % ranks],
                Collective::Broadcast | Collective::Scatter => vec![ranks - 1],
                Collective::Gather if me + 1 != ranks => vec![],
                _ => (0..ranks).collect(),
            },
        );
        debug_assert!(self.collective != Collective::Broadcast || senders == [root]);
        let at = |from: usize, pos: usize, sends: bool| self.fields((from, me), pos, ranks, sends);
        let sent = |from: usize, pos: usize| if self.produces() { packed(at(from, pos, true)) } else { 0 };
        let kept = |from: usize, pos: usize, x: i64| match self.consumes {
            true => x.wrapping_mul(SENT).wrapping_add(packed(at(from, pos, false))),
            false => x,
        };
        if self.collective.reduces() {
            let sum = |pos| senders.iter().fold(0i64, |sum, &from| sum.wrapping_add(sent(from, pos)));
            return (0..self.len).map(|pos| kept(me, pos, sum(pos))).collect();
        }
        let chunk = |&from: &usize| (0..self.len).map(move |pos| kept(from, pos, sent(from, pos)));
        senders.iter().flat_map(chunk).collect()
    }

    /// The definition of the expected fields.
    fn fields(&self, (from, to): (usize, usize), pos: usize, ranks: usize, sends: bool) -> Fields<i64> {
        let shard = self.collective.shard((from, to), pos, self.len.div_ceil(ranks).max(1));
        let (rows, cols) = self.shape().unwrap_or((1, self.len));
        [
            Some(if sends { from } else { to }),
            Some(ranks),
            Some(shard),
            Some(to).filter(|_| !sends || self.collective.ends_in_one()),
            Some(from).filter(|_| sends || self.collective.comes_from_one()),
            Some(pos),
            self.shaped.then_some(pos / cols),
            self.shaped.then_some(pos % cols),
            Some(rows),
            Some(cols),
            Some(self.len),
        ]
        .map(|field| field.map(|field| field as i64))
    }

    /// The first difference between an output and the expected one, with the names of the fields.
    pub fn fault<T: Reducible>(&self, me: usize, ranks: usize, out: &[T]) -> Option<String> {
        let must = self.must(me, ranks);
        let same = |at: usize| T::from_bits(must[at] as u64).to_bits() == out[at].to_bits();
        let at = (0..must.len()).find(|&at| !same(at))?;
        let (is, must) = (out[at].to_bits(), T::from_bits(must[at] as u64).to_bits());
        let hint = match (is, must) {
            _ if self.collective.reduces() || self.consumes => String::new(),
            (is, must) => format!(", the first field that differs is {}", first_difference(is, must)),
        };
        Some(format!("rank {me} of {ranks}, element {at}: {is:#x} instead of {must:#x}{hint}; {self}"))
    }
}

fn packed(fields: Fields<i64>) -> i64 {
    fields.into_iter().zip(BITS).fold(0i64, |all, (field, bit)| all.wrapping_add(field.unwrap_or(0) << bit))
}

fn first_difference(a: u64, b: u64) -> &'static str {
    let bit = (a ^ b).trailing_zeros();
    NAMES[BITS.iter().rposition(|&first| first <= bit).unwrap_or(0)]
}

/// Every collective in every algorithm and protocol that takes it, in two sizes, with and without a shape and a consume
/// hook.
pub fn all(blocks: &[Option<usize>], rounds: &[Option<Rounds>]) -> Vec<Form> {
    let primitives =
        [None, Some(Primitive::Packet), Some(Primitive::Staged), Some(Primitive::Bulk), Some(Primitive::Direct)];
    let mut forms = Vec::new();
    for collective in Collective::ALL {
        for (&algorithm, primitive) in
            collective.algorithms().iter().flat_map(|algorithm| primitives.map(|primitive| (algorithm, primitive)))
        {
            for (&blocks, &rounds) in blocks.iter().flat_map(|blocks| rounds.iter().map(move |way| (blocks, way))) {
                for (len, shaped) in [(60, false), (60, true), (Form::LONGEST, true), (Form::LONGEST, false)] {
                    let (consumes, insists) = (true, None);
                    let form =
                        Form { collective, algorithm, primitive, rounds, blocks, len, shaped, consumes, insists };
                    let both = [form, Form { consumes: false, ..form }];
                    forms.extend(both.into_iter().filter(Form::is_possible));
                }
            }
        }
    }
    forms
}
