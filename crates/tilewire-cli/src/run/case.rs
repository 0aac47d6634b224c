//! One transfer, prepared for any element type: tensors, hook, launches, checks.

use super::data::{Data, F8_MAX, GROUP, POISON};
use super::place::Wire;
use std::fmt;
use tilewire::collective::{Exchange, PreparedExchange, Rounds};
use tilewire::ir::Type;
use tilewire::ir::scalar::{Element, Number};
use tilewire::transport::{P2pTransport, Rank, Window};
use tilewire::{Bf16, Config, F8E4M3, F8E5M2, F16, Primitive, RunError, Scalar, Tensor, Value, recv, send, sendrecv};

/// What happens to the elements on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Nothing.
    Copy,
    /// They are multiplied by a factor that is read at launch.
    Scale,
    /// A chunk arrives transposed.
    Transpose,
    /// They travel as f8e4m3, with one scale for 32 neighbours.
    Quantise,
}

impl Hook {
    /// All, in the order of the help text.
    pub const ALL: [Hook; 4] = [Hook::Copy, Hook::Scale, Hook::Transpose, Hook::Quantise];

    /// As the command line has it.
    pub fn name(self) -> &'static str {
        ["copy", "scale", "transpose", "quantise"][self as usize]
    }

    /// Whether it is defined for elements of this type.
    pub fn takes(self, ty: Type) -> bool {
        match self {
            Hook::Copy | Hook::Transpose => true,
            Hook::Scale => ty != Type::Bool,
            Hook::Quantise => ty.is_float() && ty.size() > 1,
        }
    }
}

/// How a transfer can travel: as is chosen for it, or as is said.
pub const PROTOCOLS: [Option<Primitive>; 5] =
    [None, Some(Primitive::Packet), Some(Primitive::Staged), Some(Primitive::Bulk), Some(Primitive::Direct)];

/// A transfer, the same on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Type of the elements.
    pub dtype: Type,
    /// What happens to them.
    pub hook: Hook,
    /// How many there are.
    pub len: usize,
    /// How they travel.
    pub config: Config,
    /// How the rounds share a launch, where it is said.
    pub rounds: Option<Rounds>,
}

impl Case {
    /// Rows and columns of the chunk that `transpose` sends: as square as the number of elements allows.
    pub fn shape(&self) -> (usize, usize) {
        let rows = (1..=self.len.isqrt()).rev().find(|rows| self.len.is_multiple_of(*rows)).unwrap_or(1);
        (rows, self.len / rows)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { dtype, hook, len, config, rounds } = self;
        let Config { primitive, blocks, slot_bytes, depth, .. } = config;
        let protocol = protocol_name(*primitive);
        write!(f, "{len} x {dtype}, {}, {protocol}, {} blocks", hook.name(), blocks.unwrap_or(1))?;
        slot_bytes.map_or(Ok(()), |bytes| write!(f, ", slots of {bytes} bytes"))?;
        depth.map_or(Ok(()), |depth| write!(f, ", depth {depth}"))?;
        rounds.map_or(Ok(()), |rounds| write!(f, ", rounds as {}", rounds_name(rounds)))
    }
}

/// As the command line has it.
pub(super) fn rounds_name(rounds: Rounds) -> &'static str {
    match rounds {
        Rounds::Roles => "roles",
        Rounds::Blocks => "blocks",
        Rounds::Legs => "legs",
    }
}

/// As the command line has it.
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

/// Whom a rank sends to and receives from; with neither it sits out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// Whom it sends to.
    pub to: Option<Rank>,
    /// Whom it receives from.
    pub from: Option<Rank>,
}

/// A transfer that is ready. A turn is fill, launch, check.
pub trait Transfer {
    /// New data for this turn; poisons the output.
    fn fill(&self, turn: u64);
    /// Sends and receives.
    fn launch(&mut self) -> Result<(), RunError>;
    /// Compares what has arrived, and what stands around it.
    fn check(&self, turn: u64) -> Result<(), Wrong>;
}

/// The first thing that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub(super) what: &'static str,
    pub(super) at: usize,
    pub(super) is: u64,
    pub(super) must: u64,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { what, at, is, must } = self;
        write!(f, "{what} {at} has the bits {is:#x}, and should have {must:#x}")
    }
}

/// Prepares a transfer. Where it goes through windows this is collective: ranks that sit out call it too.
pub fn prepare<'l>(link: &'l Wire, case: &Case, peers: Peers, seed: u64) -> Result<Box<dyn Transfer + 'l>, RunError> {
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

fn typed<'l, T: Scaled>(
    link: &'l Wire,
    case: &Case,
    peers: Peers,
    seed: u64,
) -> Result<Box<dyn Transfer + 'l>, RunError> {
    let direct = case.config.primitive == Some(Primitive::Direct);
    let window = if direct { Some(link.window::<T>(case.len)?) } else { None };
    let (around, guard) = guarded(link, window.as_ref(), case.len)?;
    let (out, inp) = (around.slice(guard..guard + case.len), link.zeros(case.len)?);
    let exchange = match peers {
        Peers { to: Some(to), from: Some(from) } => Some(sendrecv(link, &out, &inp, to, from)),
        Peers { to: Some(to), from: None } => Some(send(link, &inp, to)),
        Peers { to: None, from: Some(from) } => Some(recv(link, &out, from)),
        Peers { to: None, from: None } => None,
    };
    let exchange = exchange.map(|exchange| {
        let exchange = exchange.config(case.config);
        window.iter().fold(exchange, |exchange, window| exchange.window(window))
    });
    let op = exchange.map(|exchange| hooked(exchange, case)).transpose()?;
    Ok(Box::new(Typed { case: *case, seed, me: link.rank(), from: peers.from, op, inp, around, guard }))
}

/// An output of `len` elements with its guards, and how long those are. Windows are received into as a whole; elsewhere elements before
/// and after tell of a write outside.
pub(super) fn guarded<T: Element>(
    link: &Wire,
    window: Option<&Window<T>>,
    len: usize,
) -> Result<(Tensor<T>, usize), RunError> {
    Ok(match window {
        Some(window) => (window.tensor().clone(), 0),
        None => (link.zeros(len + 2 * GUARD)?, GUARD),
    })
}

/// The exchange with its hook. A side that does not send never calls `produce`, so both sides say the same.
pub(super) fn hooked<'l, T: Scaled>(
    exchange: Exchange<'_, 'l, Wire, T, T>,
    case: &Case,
) -> Result<PreparedExchange<'l, Wire>, RunError> {
    let exchange = case.rounds.into_iter().fold(exchange, |exchange, rounds| exchange.rounds(rounds));
    match case.hook {
        Hook::Copy => exchange.build(),
        Hook::Scale => {
            let factor = Scalar::new(Data::factor::<T>());
            exchange.produce(move |c| T::scaled(c.input.load(c.pos()), &factor)).build()
        }
        Hook::Transpose => {
            let (rows, cols) = case.shape();
            exchange.chunk_shape(rows, cols).produce(|c| c.input.at(c.col(), c.row())).build()
        }
        Hook::Quantise => exchange
            .produce2(|c| {
                let x = c.input.load(c.pos()).cast::<f32>();
                let most = x.abs().group_max(GROUP as u32);
                let scale: Value<f32> = most.eq(0.0).select(1.0, most / F8_MAX);
                ((x / scale).cast::<F8E4M3>(), scale)
            })
            .consume(|c, (x, scale)| c.output.store(c.pos(), (x.cast::<f32>() * scale).cast::<T>()))
            .build(),
    }
}

/// Elements that can be multiplied by a factor; `bool` stands here only so that there is one list of types.
pub(super) trait Scaled: Element {
    fn scaled<'t>(x: Value<'t, Self>, factor: &Scalar<Self>) -> Value<'t, Self>;
    /// The same on the host.
    fn times(self, factor: Self) -> Self;
}

macro_rules! scaled {
    ($($number:ty)*) => {$(
        impl Scaled for $number {
            fn scaled<'t>(x: Value<'t, Self>, factor: &Scalar<Self>) -> Value<'t, Self> {
                product(x, factor)
            }

            fn times(self, factor: Self) -> Self {
                Number::mul(self, factor)
            }
        }
    )*};
}

scaled!(i8 i16 i32 i64 u8 u16 u32 u64 F16 Bf16 f32 f64 F8E4M3 F8E5M2);

impl Scaled for bool {
    fn scaled<'t>(_: Value<'t, bool>, _: &Scalar<bool>) -> Value<'t, bool> {
        unreachable!("{:?} does not take bool, and whoever makes a case asks", Hook::Scale)
    }

    fn times(self, _: bool) -> bool {
        unreachable!("{:?} does not take bool, and whoever makes a case asks", Hook::Scale)
    }
}

fn product<'t, T: Number>(x: Value<'t, T>, factor: &Scalar<T>) -> Value<'t, T> {
    x * factor
}

/// Elements before and after an output.
const GUARD: usize = 64;

struct Typed<'l, T: Scaled> {
    case: Case,
    seed: u64,
    me: Rank,
    from: Option<Rank>,
    op: Option<PreparedExchange<'l, Wire>>,
    inp: Tensor<T>,
    /// The output with its guards.
    around: Tensor<T>,
    guard: usize,
}

impl<T: Scaled> Typed<'_, T> {
    fn data(&self, turn: u64, rank: Rank) -> Data {
        Data::new(self.case, self.seed, turn, rank.index())
    }
}

impl<T: Scaled> Transfer for Typed<'_, T> {
    fn fill(&self, turn: u64) {
        self.inp.copy_from(&self.data(turn, self.me).sent::<T>());
        self.around.fill(T::from_bits(POISON));
    }

    fn launch(&mut self) -> Result<(), RunError> {
        let Some(op) = &mut self.op else { return Ok(()) };
        op.run()?;
        op.sync()
    }

    fn check(&self, turn: u64) -> Result<(), Wrong> {
        let around = self.around.to_vec();
        let arrived = inside(&around, self.guard)?;
        match self.from {
            None => untouched("element of an output nobody writes", arrived),
            Some(from) => chunk("element", 0, arrived, self.data(turn, from)),
        }
    }
}

/// The output between its guards, which must be as they were.
pub(super) fn inside<T: Element>(around: &[T], guard: usize) -> Result<&[T], Wrong> {
    let (before, rest) = around.split_at(guard);
    let (inside, after) = rest.split_at(rest.len() - guard);
    untouched("guard before the output", before)?;
    untouched("guard after the output", after)?;
    Ok(inside)
}

/// Nobody may have written here.
pub(super) fn untouched<T: Element>(what: &'static str, part: &[T]) -> Result<(), Wrong> {
    let must = T::from_bits(POISON).to_bits();
    let at = part.iter().position(|x| x.to_bits() != must);
    at.map_or(Ok(()), |at| Err(Wrong { what, at, is: part[at].to_bits(), must }))
}

/// A chunk must have arrived as this data says; it starts at this element of the output.
pub(super) fn chunk<T: Scaled>(what: &'static str, start: usize, arrived: &[T], data: Data) -> Result<(), Wrong> {
    let differs = data.differs(arrived);
    differs.map_or(Ok(()), |(i, must)| Err(Wrong { what, at: start + i, is: arrived[i].to_bits(), must }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewire::World;
    use tilewire::transport::{ShmOptions, ShmTransport};

    #[test]
    fn one_wrong_bit_is_seen_and_so_is_one_outside() {
        let case = Case { dtype: Type::F32, hook: Hook::Scale, len: 100, config: Config::default(), rounds: None };
        let ring = |world: World| {
            let link = Wire::Shm(ShmTransport::rendezvous(&world, ShmOptions::default())?);
            let peer = world.rank().after(1, 2);
            let peers = Peers { to: Some(peer), from: Some(peer) };
            let around = Tensor::<f32>::zeros(case.len + 2 * GUARD);
            let (out, inp) = (around.slice(GUARD..GUARD + case.len), Tensor::zeros(case.len));
            let op = Some(hooked(sendrecv(&link, &out, &inp, peer, peer), &case)?);
            let mut turn = Typed { case, seed: 1, me: world.rank(), from: peers.from, op, inp, around, guard: GUARD };
            turn.fill(7);
            turn.launch()?;
            assert_eq!(turn.check(7), Ok(()));
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

    #[test]
    fn a_chunk_is_as_square_as_it_can_be() {
        let (dtype, config) = (Type::F32, Config::default());
        let shape = |len| Case { dtype, hook: Hook::Transpose, len, config, rounds: None }.shape();
        assert_eq!(
            (shape(0), shape(1), shape(7), shape(12), shape(1 << 20)),
            ((1, 0), (1, 1), (1, 7), (3, 4), (1024, 1024))
        );
    }
}
