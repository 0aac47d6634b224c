//! One transfer, prepared for any element type: tensors, hook, launches, checks.

use super::data::{Data, POISON};
use super::hook::Hook;
use super::library::{Given, Sample, cast_exchange};
use std::fmt;
use tilewire::collective::{Exchange, PreparedExchange, Rounds};
use tilewire::ir::Type;
use tilewire::ir::scalar::Element;
use tilewire::link::{AnyTransport, Tensors, Transport, Window};
use tilewire::tensor::AccessError;
use tilewire::transport::Rank;
use tilewire::{Bf16, F8E4M3, F8E5M2, F16, Knobs, Primitive, RunError, Tensor, recv, send, sendrecv};

/// The protocols of a transfer: chosen automatically, or given.
pub const PROTOCOLS: [Option<Primitive>; 5] =
    [None, Some(Primitive::Packet), Some(Primitive::Staged), Some(Primitive::Bulk), Some(Primitive::Direct)];

/// A transfer, equal on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Type of the elements.
    pub dtype: Type,
    /// The hook.
    pub hook: Hook,
    /// Number of elements.
    pub len: usize,
    /// The protocol and its settings.
    pub config: Knobs,
    /// How the rounds share a launch, if given.
    pub rounds: Option<Rounds>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { dtype, hook, len, config, rounds } = self;
        let Knobs { primitive, blocks, slot_bytes, depth, .. } = config;
        let protocol = protocol_name(*primitive);
        write!(f, "{len} x {dtype}, {}, {protocol}, {} blocks", hook.name(), blocks.unwrap_or(1))?;
        slot_bytes.map_or(Ok(()), |bytes| write!(f, ", slots of {bytes} bytes"))?;
        depth.map_or(Ok(()), |depth| write!(f, ", depth {depth}"))?;
        rounds.map_or(Ok(()), |rounds| write!(f, ", rounds as {}", rounds_name(rounds)))
    }
}

/// Its name on the command line.
pub(super) fn rounds_name(rounds: Rounds) -> &'static str {
    match rounds {
        Rounds::Roles => "roles",
        Rounds::Blocks => "blocks",
        Rounds::Legs => "legs",
    }
}

/// Its name on the command line.
pub fn protocol_name(primitive: Option<Primitive>) -> &'static str {
    match primitive {
        None => "auto",
        Some(Primitive::Packet) => "packet",
        Some(Primitive::Staged) => "staged",
        Some(Primitive::Bulk) => "bulk",
        Some(Primitive::Direct) => "direct",
        Some(_) => "other",
    }
}

/// The peers of a rank; with neither it sits out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// The receiver of its data.
    pub to: Option<Rank>,
    /// The sender of its output.
    pub from: Option<Rank>,
}

/// A prepared transfer. A turn is fill, launch, check.
pub trait Transfer {
    /// New data for this turn; poisons the output.
    fn fill(&self, turn: u64) -> Result<(), AccessError>;
    /// Sends and receives.
    fn launch(&mut self) -> Result<(), RunError>;
    /// Compares the output, and the memory around it.
    fn check(&self, turn: u64) -> Result<(), Wrong>;
    /// The launch, if this rank has one.
    fn prepared(&self) -> Option<&PreparedExchange<'_>>;
}

/// The first error in an output.
#[derive(Debug)]
pub enum Wrong {
    /// An element.
    Bits { what: &'static str, at: usize, is: u64, must: u64 },
    /// The output cannot be read.
    Unread(AccessError),
}

impl From<AccessError> for Wrong {
    fn from(error: AccessError) -> Self {
        Wrong::Unread(error)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Bits { what, at, is, must } => {
                write!(f, "{what} {at} has the bits {is:#x}, and should have {must:#x}")
            }
            Wrong::Unread(error) => error.fmt(f),
        }
    }
}

/// Prepares a transfer. If it goes through windows this is collective: ranks that sit out call it too.
pub fn prepare<'l>(
    link: &'l AnyTransport,
    case: &Case,
    peers: Peers,
    seed: u64,
) -> Result<Box<dyn Transfer + 'l>, RunError> {
    match case.dtype {
        Type::Bool => typed::<bool>(link, case, peers, seed),
        Type::I8 => typed::<i8>(link, case, peers, seed),
        Type::I16 => typed::<i16>(link, case, peers, seed),
        Type::I32 => typed::<i32>(link, case, peers, seed),
        Type::I64 => typed::<i64>(link, case, peers, seed),
        Type::U8 => typed::<u8>(link, case, peers, seed),
        Type::U16 => typed::<u16>(link, case, peers, seed),
        Type::U32 => typed::<u32>(link, case, peers, seed),
        Type::U64 => typed::<u64>(link, case, peers, seed),
        Type::F16 => typed::<F16>(link, case, peers, seed),
        Type::BF16 => typed::<Bf16>(link, case, peers, seed),
        Type::F32 => typed::<f32>(link, case, peers, seed),
        Type::F64 => typed::<f64>(link, case, peers, seed),
        Type::F8E4M3 => typed::<F8E4M3>(link, case, peers, seed),
        Type::F8E5M2 => typed::<F8E5M2>(link, case, peers, seed),
    }
}

fn typed<'l, T: Sample>(
    link: &'l AnyTransport,
    case: &Case,
    peers: Peers,
    seed: u64,
) -> Result<Box<dyn Transfer + 'l>, RunError> {
    if case.hook == Hook::Cast {
        let Peers { to: Some(to), from: Some(from) } = peers else {
            unreachable!("{:?} is not for one side alone, whose tensors are of one type", case.hook)
        };
        return pair::<T, T::Other>(link, case, peers, seed, |tensors| {
            cast_exchange::<T>(tensors.known(sendrecv(link, &tensors.out, &tensors.inp, to, from), case)).map(Some)
        });
    }
    pair::<T, T>(link, case, peers, seed, |tensors| {
        let exchange = match peers {
            Peers { to: Some(to), from: Some(from) } => sendrecv(link, &tensors.out, &tensors.inp, to, from),
            Peers { to: Some(to), from: None } => send(link, &tensors.inp, to),
            Peers { to: None, from: Some(from) } => recv(link, &tensors.out, from),
            Peers { to: None, from: None } => return Ok(None),
        };
        // A side that does not send never calls `produce`, so both sides give the same hooks.
        T::exchange(tensors.known(exchange, case), &Given { link, case }).map(Some)
    })
}

/// The tensors of a pair's transfer.
struct Pair<In: Element, Out: Element> {
    window: Option<Window<Out>>,
    out: Tensor<Out>,
    inp: Tensor<In>,
}

impl<In: Element, Out: Element> Pair<In, Out> {
    /// The exchange without its hook.
    fn known<'h, 'l>(&self, exchange: Exchange<'h, 'l, In, Out>, case: &Case) -> Exchange<'h, 'l, In, Out> {
        let exchange = self.window.iter().fold(exchange.config(case.config), |exchange, w| exchange.window(w));
        case.rounds.into_iter().fold(exchange, |exchange, rounds| exchange.rounds(rounds))
    }
}

fn pair<'l, In: Sample, Out: Sample>(
    link: &'l AnyTransport,
    case: &Case,
    peers: Peers,
    seed: u64,
    build: impl FnOnce(&Pair<In, Out>) -> Result<Option<PreparedExchange<'l>>, RunError>,
) -> Result<Box<dyn Transfer + 'l>, RunError> {
    let direct = case.config.primitive == Some(Primitive::Direct);
    let window = if direct { Some(Window::<Out>::allocate(link, case.len)?) } else { None };
    let (around, guard) = guarded(link, window.as_ref(), case.len)?;
    let (out, inp) = (around.slice(guard..guard + case.len), link.zeros(case.len * case.hook.inputs())?);
    let tensors = Pair { window, out, inp };
    let op = build(&tensors)?;
    Ok(Box::new(Typed { case: *case, seed, me: link.rank(), from: peers.from, op, inp: tensors.inp, around, guard }))
}

/// An output of `len` elements with its guards, and the length of those. Windows are received into as a whole;
/// elsewhere elements before and after detect a write out of bounds.
pub(super) fn guarded<T: Element>(
    link: &AnyTransport,
    window: Option<&Window<T>>,
    len: usize,
) -> Result<(Tensor<T>, usize), RunError> {
    Ok(match window {
        Some(window) => (window.tensor().clone(), 0),
        None => (link.zeros(len + 2 * GUARD)?, GUARD),
    })
}

/// Elements before and after an output.
const GUARD: usize = 64;

struct Typed<'l, In: Sample, Out: Sample> {
    case: Case,
    seed: u64,
    me: Rank,
    from: Option<Rank>,
    op: Option<PreparedExchange<'l>>,
    inp: Tensor<In>,
    /// The output with its guards.
    around: Tensor<Out>,
    guard: usize,
}

impl<In: Sample, Out: Sample> Typed<'_, In, Out> {
    fn data(&self, turn: u64, rank: Rank) -> Data {
        Data::new(self.case, self.seed, turn, rank.index())
    }
}

impl<In: Sample, Out: Sample> Transfer for Typed<'_, In, Out> {
    fn fill(&self, turn: u64) -> Result<(), AccessError> {
        let data = self.data(turn, self.me);
        self.inp.try_copy_from(&data.sent::<In>())?;
        prepare_output(&self.around, self.guard, data, 1)
    }

    fn launch(&mut self) -> Result<(), RunError> {
        let Some(op) = &mut self.op else { return Ok(()) };
        op.run()?;
        op.sync()
    }

    fn check(&self, turn: u64) -> Result<(), Wrong> {
        let around = self.around.try_to_vec()?;
        let out = inside(&around, self.guard)?;
        match self.from {
            None => untouched("element of an output nobody writes", out),
            Some(from) => chunk::<In, Out>("element", 0, out, self.data(turn, from)),
        }
    }

    fn prepared(&self) -> Option<&PreparedExchange<'_>> {
        self.op.as_ref()
    }
}

/// Sets an output of some chunks to its state before a launch: poison, or the values to add to.
pub(super) fn prepare_output<Out: Element>(
    around: &Tensor<Out>,
    guard: usize,
    data: Data,
    chunks: usize,
) -> Result<(), AccessError> {
    around.try_fill(Out::from_bits(POISON))?;
    if data.accumulates() {
        let before = data.before::<Out>().repeat(chunks);
        around.slice(guard..guard + before.len()).try_copy_from(&before)?;
    }
    Ok(())
}

/// The output between its guards, which must be unchanged.
pub(super) fn inside<T: Element>(around: &[T], guard: usize) -> Result<&[T], Wrong> {
    let (before, rest) = around.split_at(guard);
    let (inside, after) = rest.split_at(rest.len() - guard);
    untouched("guard before the output", before)?;
    untouched("guard after the output", after)?;
    Ok(inside)
}

/// Checks that these bytes were never written.
pub(super) fn untouched<T: Element>(what: &'static str, part: &[T]) -> Result<(), Wrong> {
    let must = T::from_bits(POISON).to_bits();
    let at = part.iter().position(|x| x.to_bits() != must);
    at.map_or(Ok(()), |at| Err(Wrong::Bits { what, at, is: part[at].to_bits(), must }))
}

/// Checks a chunk of the output, which starts at element `start`, against the result of this data.
pub(super) fn chunk<In: Sample, Out: Sample>(
    what: &'static str,
    start: usize,
    out: &[Out],
    data: Data,
) -> Result<(), Wrong> {
    let differs = data.differs(out, data.arrives::<In, Out>(), data.is_exact());
    differs.map_or(Ok(()), |(i, must)| Err(Wrong::Bits { what, at: start + i, is: out[i].to_bits(), must }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewire::World;
    use tilewire::link::{ShmOptions, ShmTransport};

    #[test]
    fn one_wrong_bit_is_seen_and_so_is_one_outside() {
        let case = Case { dtype: Type::F32, hook: Hook::Scale, len: 100, config: Knobs::default(), rounds: None };
        let ring = |world: World| {
            let link = AnyTransport::from(ShmTransport::rendezvous(&world, ShmOptions::default())?);
            let peer = world.rank().after(1, 2);
            let peers = Peers { to: Some(peer), from: Some(peer) };
            let around = Tensor::<f32>::zeros(case.len + 2 * GUARD);
            let (out, inp) = (around.slice(GUARD..GUARD + case.len), Tensor::zeros(case.len));
            let op = Some(f32::exchange(sendrecv(&link, &out, &inp, peer, peer), &Given { link: &link, case: &case })?);
            let mut turn =
                Typed::<f32, f32> { case, seed: 1, me: world.rank(), from: peers.from, op, inp, around, guard: GUARD };
            turn.fill(7)?;
            turn.launch()?;
            turn.check(7).unwrap();
            assert!(turn.check(8).is_err(), "another turn has other data");
            let flip = |i: usize| turn.around.set(i, f32::from_bits(turn.around.get(i).to_bits() ^ 1));
            for (i, what) in [(GUARD + 99, "element 99"), (GUARD - 1, "guard before"), (GUARD + 100, "guard after")] {
                flip(i);
                let wrong = turn.check(7).unwrap_err().to_string();
                assert!(wrong.starts_with(what), "{wrong}");
                flip(i);
            }
            Ok(())
        };
        World::threads(2).run(ring).unwrap();
    }
}
