//! Domains of processes, or of threads that ask for it, joined by a network.
//!
//! ```text
//!  every rank: opens a carrier ── card, places of each peer's staging ────────────▶ all ranks, over the bootstrap
//!              connects to all far ranks, accepts their places ──▶ "connected" from all ──▶ the carrier drives a proxy
//! ```
//! A rank that fails in any step still takes part in the exchange that follows, so that all ranks get an error.
#![forbid(unsafe_code)]

use super::{Half, Joint, MeshTransport};
use crate::tensor::Memory;
#[cfg(feature = "cuda")]
use crate::transport::fabric::connect_all;
use crate::transport::fabric::{Choice, DeviceMemory, FabricCarrier, FabricOptions as NetworkOptions, NetworkError};
use crate::transport::proxy::{Carrier, Event, ProxyError, Write};
use crate::transport::rendezvous::Shared;
use crate::transport::{Deadline, Rank, TransportError};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The network that was chosen, as all ranks agreed, and the number of bytes that this rank has sent.
pub(super) struct Chosen {
    choice: Choice,
    bytes: Arc<AtomicU64>,
}

impl Chosen {
    pub(super) fn choice(&self) -> &Choice {
        &self.choice
    }

    /// True if the network registers memory of the devices of all ranks, so that it reaches their windows.
    #[cfg(feature = "cuda")]
    pub(super) fn reaches_devices(&self) -> bool {
        matches!(self.choice.device_memory, Some(DeviceMemory::Registered { .. }))
    }

    /// The number of bytes that this rank has sent.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Joins this rank to its far peers. Collective.
pub(super) fn join(half: Half, world: &Shared, options: &NetworkOptions) -> Result<MeshTransport, TransportError> {
    let deadline = world.deadline();
    let near = near(world, deadline)?;
    let options = options.clone().near(near).within(world.length(), deadline.remaining());
    let own = Arc::new(Together::default());
    let shown = world.show("mesh/together", own.clone(), deadline)?;
    let together = shown.and_then(|shown| shown.into_iter().next()).unwrap_or(own);
    let opened = Opened::new(&half, world.size(), options, &together);
    let card = opened.as_ref().map(|opened| opened.told.to_bytes()).unwrap_or_default();
    let card = world.all_have("mesh/opened", opened.map(|opened| (opened, card)), deadline);
    let (mut opened, card) = card?;
    let cards = world.gather("mesh/cards", &card, deadline)?;
    let connected = opened.connect(&half, &cards);
    world.all_have("mesh/connected", connected, deadline)?;
    let choice =
        agreed(opened.carrier.choice().clone(), |why| Ok(world.gather("mesh/device memory", why, deadline)?))?;
    world.all_have("mesh/driven", opened.join(half, choice), deadline)
}

/// The choice of this rank, with memory of devices only if the networks of all ranks register it: a window is posted to
/// by all of them or by none. `gather` exchanges the reasons against it, which are empty on ranks that have none. Ranks
/// on CPUs exchange nothing.
fn agreed(
    mut choice: Choice,
    gather: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>, TransportError>,
) -> Result<Choice, TransportError> {
    let why = match &choice.device_memory {
        None => return Ok(choice),
        Some(DeviceMemory::HostMemory { why }) => why.as_bytes(),
        Some(_) => &[],
    };
    let said = gather(why)?;
    let other = said.iter().position(|why| !why.is_empty());
    if let (Some(DeviceMemory::Registered { .. }), Some(rank)) = (&choice.device_memory, other) {
        let why = format!("of rank {rank}: {}", String::from_utf8_lossy(&said[rank]));
        choice.device_memory = Some(DeviceMemory::HostMemory { why });
    }
    Ok(choice)
}

/// Joins ranks that are all played by this thread.
#[cfg(feature = "cuda")]
pub(super) fn join_all(halves: Vec<Half>, options: &NetworkOptions) -> Result<Vec<MeshTransport>, TransportError> {
    let options = options.clone().near(Some(HERE)).within(Some(Deadline::DEFAULT), Some(Deadline::DEFAULT));
    let together = Arc::new(Together::default());
    let open = |half: &Half| Opened::new(half, halves.len(), options.clone(), &together);
    let mut opened = halves.iter().map(open).collect::<Result<Vec<Opened>, _>>()?;
    let cards: Vec<Vec<u8>> = opened.iter().map(|opened| opened.told.to_bytes()).collect();
    let far = halves.iter().map(|half| heard(half, &cards)).collect::<Result<Vec<_>, _>>()?;
    let carriers = opened.iter_mut().zip(&far).map(|(opened, far)| (&mut *opened.carrier, cards_of(far)));
    connect_all(&mut carriers.collect::<Vec<_>>())?;
    for ((opened, half), far) in opened.iter_mut().zip(&halves).zip(&far) {
        opened.accept(half, far)?;
    }
    // Their windows are reached without a network (`Window::on_virtual_ranks`).
    let join = |(half, opened): (Half, Opened)| {
        let choice = agreed(opened.carrier.choice().clone(), |_| Ok(vec![b"one thread plays all ranks".to_vec()]))?;
        opened.join(half, choice)
    };
    halves.into_iter().zip(opened).map(join).collect()
}

/// Where ranks that are threads reach each other.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The address at which the other ranks probably reach this one: that of its connection to the store. Collective.
fn near(world: &Shared, deadline: Deadline) -> Result<Option<IpAddr>, TransportError> {
    if world.are_threads() {
        return Ok(Some(HERE));
    }
    let text = world.addresses().map_or(String::new(), |[own, store]| format!("{own} {store}"));
    let said = world.gather("mesh/addresses", text.as_bytes(), deadline)?;
    let parse = |text: &Vec<u8>| {
        let (own, store) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        Some([own.parse().ok()?, store.parse().ok()?])
    };
    Ok(near_of(world.rank().index(), &said.iter().map(parse).collect::<Vec<_>>()))
}

/// The address of `rank`, where each rank has said its own address and that of the store. A rank that reaches the store
/// at a loopback address is on the store's host, and the ranks of other hosts know an address of that host.
fn near_of(rank: usize, said: &[Option<[IpAddr; 2]>]) -> Option<IpAddr> {
    match said.get(rank).copied().flatten()? {
        [own, _] if !own.is_loopback() => Some(own),
        _ => {
            let known = said.iter().flatten();
            let from_outside = known.clone().find(|[own, _]| !own.is_loopback()).map(|[_, store]| *store);
            // Some hosts have two loopback addresses. All ranks take the same one.
            from_outside.or_else(|| known.map(|[own, _]| *own).next())
        }
    }
}

/// The carriers of ranks of one process that have left. They are closed together, when the last rank has left: some
/// providers use the memory of other endpoints of their process directly, and a rank that still polls must find it.
#[derive(Default)]
struct Together(Mutex<Vec<FabricCarrier>>);

/// A carrier that is closed together with those of the other ranks of its process.
struct Kept {
    /// There until it is dropped.
    carrier: Option<FabricCarrier>,
    together: Arc<Together>,
}

impl Deref for Kept {
    type Target = FabricCarrier;

    fn deref(&self) -> &FabricCarrier {
        self.carrier.as_ref().expect("it is not dropped")
    }
}

impl DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut FabricCarrier {
        self.carrier.as_mut().expect("it is not dropped")
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.together.0.lock().unwrap_or_else(PoisonError::into_inner).extend(self.carrier.take());
    }
}

/// A carrier that is not connected.
struct Opened {
    carrier: Kept,
    told: Told,
}

/// The description of its memory that a rank sends to all others.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    /// The card of the rank's carrier.
    card: Vec<u8>,
    /// The place where each rank's posts arrive; empty for near ranks.
    staging: Vec<Vec<u8>>,
}

impl Opened {
    fn new(
        half: &Half,
        ranks: usize,
        options: NetworkOptions,
        together: &Arc<Together>,
    ) -> Result<Opened, TransportError> {
        let (carrier, card) = FabricCarrier::open_for(half.near.network_device(), options, half.rank().index(), ranks)?;
        let mut carrier = Kept { carrier: Some(carrier), together: together.clone() };
        let mut place = |memory: &Memory| carrier.register(memory);
        let staging = half.far.peers.iter().map(|peer| match peer {
            // A peer needs only the key of its own staging.
            Some(peer) => place(&peer.staging),
            None => Ok(Vec::new()),
        });
        let staging = staging.collect::<Result<Vec<_>, NetworkError>>()?;
        for outbox in half.far.outboxes() {
            carrier.register(&outbox)?;
        }
        Ok(Opened { carrier, told: Told { card, staging } })
    }

    fn connect(&mut self, half: &Half, cards: &[Vec<u8>]) -> Result<(), TransportError> {
        let far = heard(half, cards)?;
        self.carrier.connect(&cards_of(&far))?;
        self.accept(half, &far)
    }

    /// Takes the places of far ranks.
    fn accept(&mut self, half: &Half, far: &[Option<Told>]) -> Result<(), TransportError> {
        for (peer, told) in far.iter().enumerate() {
            let Some(told) = told else { continue };
            self.carrier.accept(peer, 0, &told.staging[half.rank().index()])?;
        }
        Ok(())
    }

    fn join(self, half: Half, choice: Choice) -> Result<MeshTransport, TransportError> {
        let Opened { carrier, .. } = self;
        let chosen = Chosen { choice, bytes: Arc::default() };
        let counted = Counted { carrier, bytes: chosen.bytes.clone() };
        half.over(Box::new(counted), Joint::Network(chosen), true)
    }
}

/// The descriptions of far ranks; `None` for near ones.
fn heard(half: &Half, cards: &[Vec<u8>]) -> Result<Vec<Option<Told>>, TransportError> {
    let told = |(rank, card): (Rank, &Vec<u8>)| {
        if half.far.peers[rank.index()].is_none() {
            return Ok(None);
        }
        let told = Told::parse(card).filter(|told| told.staging.len() == cards.len());
        let what = || "its network description is malformed: do all ranks run the same version?".to_string();
        told.map(Some).ok_or_else(|| TransportError::Peer { rank, what: what() })
    };
    Rank::all(cards.len()).zip(cards).map(told).collect()
}

/// The cards of the carriers of far ranks.
fn cards_of(far: &[Option<Told>]) -> Vec<Option<Vec<u8>>> {
    far.iter().map(|told| Some(told.as_ref()?.card.clone())).collect()
}

impl Told {
    fn to_bytes(&self) -> Vec<u8> {
        let parts = std::iter::once(&self.card).chain(&self.staging);
        parts.flat_map(|part| [&(part.len() as u32).to_le_bytes()[..], part].concat()).collect()
    }

    fn parse(mut rest: &[u8]) -> Option<Told> {
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let len = u32::from_le_bytes(rest.split_off(..4)?.try_into().ok()?);
            parts.push(rest.split_off(..len as usize)?.to_vec());
        }
        let mut parts = parts.into_iter();
        Some(Told { card: parts.next()?, staging: parts.collect() })
    }
}

/// A carrier that counts the bytes it sends.
struct Counted {
    carrier: Kept,
    bytes: Arc<AtomicU64>,
}

impl Carrier for Counted {
    fn write(&mut self, write: &Write<'_>) -> Result<bool, ProxyError> {
        let taken = self.carrier.write(write)?;
        if taken {
            self.bytes.fetch_add(write.source.bytes() as u64, Ordering::Relaxed);
        }
        Ok(taken)
    }

    fn open(&mut self, region: u16, memory: &Memory, senders: &[usize]) -> Result<(), ProxyError> {
        self.carrier.open(region, memory, senders)
    }

    fn close(&mut self, region: u16) {
        self.carrier.close(region);
    }

    fn place(&self, region: u16) -> Vec<u8> {
        self.carrier.place(region)
    }

    fn reach(&mut self, peer: usize, region: u16, place: &[u8]) -> Result<(), ProxyError> {
        self.carrier.reach(peer, region, place)
    }

    fn reads(&self, memory: &Memory) -> bool {
        self.carrier.reads(memory)
    }

    fn lend(&mut self, memory: &Memory) -> Result<(), ProxyError> {
        self.carrier.lend(memory)
    }

    fn give_back(&mut self, memory: &Memory) {
        self.carrier.give_back(memory);
    }

    fn unconfirmed(&mut self, peer: usize) -> Result<usize, ProxyError> {
        self.carrier.unconfirmed(peer)
    }

    fn flush_arrivals(&mut self) -> Result<(), ProxyError> {
        self.carrier.flush_arrivals()
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), ProxyError> {
        self.carrier.poll(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::fabric::{Confirmation, Numbers};

    #[test]
    fn ranks_are_looked_for_where_they_reach_the_store() {
        let ends = |own: &str, store: &str| Some([own, store].map(|address| address.parse::<IpAddr>().unwrap()));
        let near = |said: &[Option<[IpAddr; 2]>]| -> Vec<String> {
            (0..said.len())
                .map(|rank| near_of(rank, said).map_or("none".to_string(), |near| near.to_string()))
                .collect()
        };
        let (here, there) = (ends("10.0.0.1", "10.0.0.1"), ends("10.0.0.2", "10.0.0.1"));
        assert_eq!(near(&[here, here, there]), ["10.0.0.1", "10.0.0.1", "10.0.0.2"]);
        // Rank 0 hosts the store at a name, and its host calls itself 127.0.1.1.
        let (host, named) = (ends("127.0.0.1", "127.0.0.1"), ends("127.0.0.1", "127.0.1.1"));
        assert_eq!(near(&[host, named, there]), ["10.0.0.1", "10.0.0.1", "10.0.0.2"]);
        assert_eq!(near(&[host, ends("::1", "::1")]), ["127.0.0.1", "127.0.0.1"], "one host");
        assert_eq!(near(&[None, there]), ["none", "10.0.0.2"]);
    }

    /// Ranks agree on memory of devices, and say whose network is in the way.
    #[test]
    fn windows_on_devices_are_posted_to_only_if_the_networks_of_all_ranks_register_them() {
        let registered = || Some(DeviceMemory::Registered { flushed: true });
        let host = |why: &str| Some(DeviceMemory::HostMemory { why: why.to_string() });
        let of = |device_memory: Option<DeviceMemory>, others: &[&str]| {
            let choice = Choice {
                provider: "verbs;ofi_rxm".to_string(),
                device: "mlx5_0".to_string(),
                description: String::new(),
                library: (1, 20),
                confirmation: Confirmation::Provider,
                numbers: Numbers::Bare,
                counted: false,
                named: true,
                passed_over: Vec::new(),
                device_memory,
            };
            let others = others.iter().map(|why| why.as_bytes().to_vec());
            let gather = |own: &[u8]| Ok([own.to_vec()].into_iter().chain(others).collect());
            agreed(choice, gather).unwrap()
        };
        assert_eq!(of(registered(), &["", ""]).device_memory, registered());
        let other = of(registered(), &["", "it has no FI_HMEM"]);
        assert_eq!(other.device_memory, host("of rank 2: it has no FI_HMEM"));
        let chosen = "verbs;ofi_rxm on mlx5_0, libfabric 1.20, for private networks only (as named)";
        let said = format!("{chosen}; through host memory, because of rank 2: it has no FI_HMEM");
        assert_eq!(other.to_string(), said);
        assert_eq!(of(host("no card"), &["", "it has no FI_HMEM"]).device_memory, host("no card"), "its own reason");
        let on_cpu = Choice { device_memory: None, ..other };
        let unasked = agreed(on_cpu, |_| panic!("ranks on CPUs exchange nothing")).unwrap();
        assert!(unasked.device_memory.is_none() && unasked.to_string().ends_with("(as named)"), "{unasked}");
    }

    /// libfabric makes progress with the writes of peers only while a rank polls, and nothing rings for an arrival.
    #[test]
    fn a_rank_over_a_network_has_a_thread_that_polls() {
        let Some(library) = tilewire_testkit::libfabric::find() else { return };
        let polls = crate::transport::World::threads(2).run(|world| {
            let network = NetworkOptions::default().library(library).provider("tcp").address("127.0.0.1");
            let options =
                crate::link::MeshOptions { network, over_network: true, ..crate::link::MeshOptions::alone(2) };
            let link = MeshTransport::rendezvous(&world, options)?;
            let polls = link.thread.as_ref().is_some_and(|thread| thread.polls());
            link.close()?;
            Ok(polls)
        });
        assert_eq!(polls.unwrap(), [true, true]);
    }

    #[test]
    fn what_a_rank_tells_survives_and_damage_is_refused() {
        let told = Told { card: vec![1, 2, 3], staging: vec![vec![], vec![5; 300]] };
        let bytes = told.to_bytes();
        assert_eq!(Told::parse(&bytes), Some(told));
        assert_eq!(Told::parse(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Told::parse(&u32::MAX.to_le_bytes()), None, "no length decides what is allocated");
    }
}
