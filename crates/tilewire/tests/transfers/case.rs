//! One transfer of the tests: how it travels, its data, and whether the right bytes arrived.

use crate::untouched;
use std::cell::Cell;
use std::time::Duration;
use tilewire::ir::scalar::Element;
use tilewire::link::{AnyTransport, MeshOptions, MeshTransport, ShmOptions, ShmTransport, Transport, Window};
use tilewire::transport::{LinkKind, Rank, RankError, TransportError, World, WorldError};
use tilewire::{Knobs, Primitive, Tensor, sendrecv};
use tilewire_testkit::random::{Random, mixed};

/// So small that messages of a few KiB take many steps. A block has 4 KiB of staging, and messages of 512 bytes in
/// packets.
pub const SMALL: ShmOptions = ShmOptions {
    per_peer_bytes: Some(32 << 10),
    max_blocks_per_peer: Some(8),
    max_slots: Some(8),
    max_copies: 1,
    packet_bytes: Some(64 << 10),
    window_sets: None,
    populate: false,
};

/// Long enough for a machine with other work: only a hang waits this long.
pub const LONG: Duration = Duration::from_secs(120);

/// True if everything is to run, and false for a sample.
pub fn everything() -> bool {
    std::env::var("TILEWIRE_SENDRECV").is_ok_and(|value| value == "full")
}

/// The seed of all random choices of a run.
pub fn seed() -> u64 {
    std::env::var("TILEWIRE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_115)
}

/// The way in which the ranks of a test reach each other. One source of tests serves all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// They share memory.
    Shm,
    /// They post to each other.
    Alone,
    /// Two domains: the first half of the ranks, and the second.
    Halves,
    /// The first rank is alone in its domain, and the others share memory.
    First,
    /// Even and odd ranks: domains that are not contiguous.
    Interleaved,
    /// They post to each other over `tcp`.
    #[cfg(feature = "fabric")]
    Tcp,
    /// Two domains as `Halves`, joined by `tcp`.
    #[cfg(feature = "fabric")]
    TcpHalves,
    /// They post to each other over `shm`, which keeps no order.
    #[cfg(feature = "fabric")]
    Unordered,
}

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::Shm) };
}

impl Place {
    /// Runs a test among ranks that reach each other in this way.
    #[track_caller]
    pub fn hosts(self, test: fn()) {
        #[cfg(feature = "fabric")]
        if self.provider().is_some() && tilewire_testkit::libfabric::find().is_none() {
            return;
        }
        PLACE.set(self);
        test();
    }

    /// The domains of this many ranks. None is empty.
    fn domains(self, ranks: u32) -> Vec<Vec<u32>> {
        let domains: Vec<Vec<u32>> = match self {
            Place::Shm => vec![(0..ranks).collect()],
            Place::Alone => (0..ranks).map(|rank| vec![rank]).collect(),
            Place::Halves => vec![(0..ranks.div_ceil(2)).collect(), (ranks.div_ceil(2)..ranks).collect()],
            Place::First => vec![vec![0], (1..ranks).collect()],
            Place::Interleaved => [0, 1].map(|first| (first..ranks).step_by(2).collect()).to_vec(),
            #[cfg(feature = "fabric")]
            Place::Tcp | Place::Unordered => return Place::Alone.domains(ranks),
            #[cfg(feature = "fabric")]
            Place::TcpHalves => return Place::Halves.domains(ranks),
        };
        domains.into_iter().filter(|domain| !domain.is_empty()).collect()
    }

    /// The provider of its network.
    #[cfg(feature = "fabric")]
    fn provider(self) -> Option<&'static str> {
        match self {
            Place::Tcp | Place::TcpHalves => Some("tcp"),
            Place::Unordered => Some("shm"),
            _ => None,
        }
    }
}

/// A transport for the way in which the test runs. Collective. Posts are delayed and reordered by the seed of the run.
pub fn joined(world: &World, sizes: ShmOptions) -> Result<AnyTransport, TransportError> {
    match PLACE.get() {
        Place::Shm => Ok(ShmTransport::rendezvous(world, sizes)?.into()),
        place => {
            let (domains, seed) = (Some(place.domains(world.size() as u32)), Some(seed()));
            let options = MeshOptions { domains, sizes, seed, ..MeshOptions::default() };
            #[cfg(feature = "fabric")]
            let options = match place.provider() {
                Some(provider) => MeshOptions { network: network(provider), over_network: true, ..options },
                None => options,
            };
            Ok(MeshTransport::rendezvous(world, options)?.into())
        }
    }
}

/// A network on this host.
#[cfg(feature = "fabric")]
pub fn network(provider: &str) -> tilewire::link::NetworkOptions {
    let library = tilewire_testkit::libfabric::find().expect("looked for before");
    let provider = tilewire_testkit::libfabric::in_place_of(provider);
    let options = tilewire::link::NetworkOptions::default().provider(&provider).library(library);
    if provider == "tcp" { options.address("127.0.0.1") } else { options }
}

/// True if a rank has peers that it posts to. Plans that need packets are refused then.
pub fn has_far(link: &dyn Transport) -> bool {
    Rank::all(link.world_size()).any(|rank| link.link(rank).kind == LinkKind::Fabric)
}

/// Runs `body` in threads. A failure is printed with `what`, which says how to repeat it.
#[track_caller]
pub fn threads<R: Send>(
    ranks: usize,
    what: impl std::fmt::Debug,
    body: impl Fn(&World) -> Result<R, RankError> + Sync,
) -> Vec<R> {
    let place = PLACE.get();
    among(ranks, LONG, |world| body(&world))
        .unwrap_or_else(|error| panic!("{error}\nin {what:?} at {place:?}, seed {}", seed()))
}

/// Runs `body` in threads with a separate deadline. Returns a failure.
pub fn among<R: Send>(
    ranks: usize,
    deadline: Duration,
    body: impl Fn(World) -> Result<R, RankError> + Sync,
) -> Result<Vec<R>, WorldError> {
    let place = PLACE.get();
    World::threads(ranks).deadline(deadline).run(|world| {
        PLACE.set(place);
        body(world)
    })
}

/// Sometimes makes a rank late.
pub fn pause(numbers: &mut Random) {
    if numbers.below(4) == 0 {
        std::thread::sleep(Duration::from_micros(numbers.next() % 1000));
    }
}

/// Element `i` of the data of `rank`: any bits, including NaNs.
pub fn element<T: Element>(seed: u64, rank: Rank, i: usize) -> T {
    T::from_bits(mixed(seed ^ ((u64::from(rank.number()) + 1) << 40) ^ i as u64))
}

/// The data of a rank.
pub fn data<T: Element>(seed: u64, rank: Rank, len: usize) -> Vec<T> {
    (0..len).map(|i| element(seed, rank, i)).collect()
}

/// The filler of outputs, which no sender sends on purpose.
pub fn poison<T: Element>(tensor: &Tensor<T>) {
    tensor.fill(T::from_bits(0xa5a5_a5a5_a5a5_a5a5));
}

pub fn bits<T: Element>(values: &[T]) -> Vec<u64> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Numbers whose arithmetic gives no NaN.
pub fn floats(seed: u64, rank: Rank, len: usize) -> Vec<f32> {
    let number = |i| (element::<i32>(seed, rank, i) >> 8) as f32 / 1024.0;
    (0..len).map(number).collect()
}

/// Compares bits, and names the first element that differs.
#[track_caller]
pub fn assert_same<T: Element>(is: &[T], must: &[T], what: impl std::fmt::Debug) {
    assert_eq!(is.len(), must.len(), "{what:?}");
    if let Some(i) = (0..is.len()).find(|&i| is[i].to_bits() != must[i].to_bits()) {
        let (is, must) = (is[i].to_bits(), must[i].to_bits());
        panic!("element {i} of {} is {is:#x}, must be {must:#x}: {what:?}", T::TYPE);
    }
}

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The library chooses.
    Chosen,
    Packet,
    Staged {
        slot_bytes: usize,
        depth: usize,
    },
    Bulk {
        slot_bytes: usize,
        depth: usize,
    },
    Direct,
}

impl Way {
    pub const fn bulk(slot_bytes: usize, depth: usize) -> Way {
        Way::Bulk { slot_bytes, depth }
    }

    pub const fn staged(slot_bytes: usize, depth: usize) -> Way {
        Way::Staged { slot_bytes, depth }
    }

    pub fn config(self, blocks: usize) -> Knobs {
        let config = Knobs { blocks: Some(blocks), ..Knobs::default() };
        match self {
            Way::Chosen => config,
            Way::Packet => Knobs { primitive: Some(Primitive::Packet), ..config },
            Way::Direct => Knobs { primitive: Some(Primitive::Direct), ..config },
            Way::Staged { slot_bytes, depth } | Way::Bulk { slot_bytes, depth } => {
                let bulk = matches!(self, Way::Bulk { .. });
                let primitive = Some(if bulk { Primitive::Bulk } else { Primitive::Staged });
                Knobs { primitive, slot_bytes: Some(slot_bytes), depth: Some(depth), ..config }
            }
        }
    }
}

type Run = fn(&Shift, &World, &dyn Transport, u64) -> Result<(), RankError>;

/// One shift around a ring: every rank sends `len` elements to the rank `by` after it.
#[derive(Clone, Copy, Debug)]
pub struct Shift {
    pub len: usize,
    pub by: usize,
    pub blocks: usize,
    pub way: Way,
}

impl Shift {
    /// A transfer that any transport with the options of `SMALL` can do.
    pub fn any(numbers: &mut Random, ranks: usize) -> Shift {
        let way = match numbers.below(5) {
            0 => Way::Packet,
            1 => Way::Direct,
            2 => Way::Chosen,
            3 => {
                let depth = 2 + numbers.below(7);
                Way::bulk(16 * (1 + numbers.below((4096 / depth / 16).min(50))), depth)
            }
            _ => {
                let depth = 2 + numbers.below(7);
                // A multiple of every element's size.
                Way::staged(8 * (1 + numbers.below((4096 / depth / 8).min(100))), depth)
            }
        };
        let blocks = 1 + numbers.below(8);
        // 512 bytes of packets for each block.
        let most = if way == Way::Packet { 64 } else { numbers.pick(&[20, 200, 5000]) };
        Shift { len: numbers.below(most + 1), by: 1 + numbers.below(ranks - 1), blocks, way }
    }

    pub fn peers(&self, world: &World) -> (Rank, Rank) {
        let (me, size) = (world.rank(), world.size());
        (me.after(self.by, size), me.after(size - self.by, size))
    }

    /// Builds, runs once, and checks that the right bytes arrived and that nothing was written around them.
    pub fn run<T: Element>(&self, world: &World, link: &dyn Transport, seed: u64) -> Result<(), RankError> {
        let (to, from) = self.peers(world);
        let inp = Tensor::from_slice(&data::<T>(seed, world.rank(), self.len));
        let config = self.way.config(self.blocks);
        let out = if self.way == Way::Direct {
            let window = Window::<T>::allocate(link, self.len)?;
            poison(window.tensor());
            let behind = untouched::behind(window.tensor().memory());
            untouched::poison(&behind);
            sendrecv(link, window.tensor(), &inp, to, from).window(&window).config(config).run()?;
            let spoilt = untouched::spoilt(&behind);
            assert_eq!(spoilt, None, "a byte behind the window was written: {:?}", (T::TYPE, self, seed));
            window.tensor().to_vec()
        } else {
            let all = untouched::guarded::<T>(self.len);
            let out = untouched::inside(&all);
            sendrecv(link, &out, &inp, to, from).config(config).run()?;
            let spoilt = untouched::spoilt_guard(&all);
            assert_eq!(spoilt, None, "an element beside the output was written: {:?}", (T::TYPE, self, seed));
            out.to_vec()
        };
        assert_same(&out, &data::<T>(seed, from, self.len), (T::TYPE, self, seed));
        Ok(())
    }

    /// As `run`, for the type of this number.
    pub fn run_as(&self, ty: usize, world: &World, link: &dyn Transport, seed: u64) -> Result<(), RankError> {
        use tilewire::{Bf16, F8E4M3, F8E5M2, F16};
        let runs: [Run; TYPES] = [
            Shift::run::<i8>,
            Shift::run::<i16>,
            Shift::run::<i32>,
            Shift::run::<i64>,
            Shift::run::<u8>,
            Shift::run::<u16>,
            Shift::run::<u32>,
            Shift::run::<u64>,
            Shift::run::<F16>,
            Shift::run::<Bf16>,
            Shift::run::<f32>,
            Shift::run::<f64>,
            Shift::run::<F8E4M3>,
            Shift::run::<F8E5M2>,
            Shift::run::<bool>,
        ];
        runs[ty](self, world, link, seed)
    }
}

/// The number of element types.
pub const TYPES: usize = 15;
