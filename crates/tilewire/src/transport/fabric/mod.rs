//! The carrier over libfabric, through which the proxies of ranks on several hosts write to each other.
//!
//! ```text
//!   open(options, rank, ranks) ──▶ carrier, card ──── cards of all ranks, over the authenticated bootstrap ──┐
//!                                     │                                                                       ▼
//!                register(memory) ──▶ place ─── places, over the same ──▶ accept(peer, target, place)   connect(cards)
//!                                                                                                             │
//!   proxy: write ──▶ cut ──▶ posts of the peer ──▶ provider ═══▶ provider ──▶ poll: Arrived ──▶ proxy of the peer
//!                                                      │
//!                   poll: Delivered ◀── confirmed by the provider or by an echo, or counted and released
//! ```
//! Every rank uses the carrier in these steps:
//! 1. [`FabricCarrier::open`] chooses a provider by a trial (`trial.rs`), and returns a *card*: bytes that say how this
//!    rank is reached. The caller carries the cards of all ranks to all ranks.
//! 2. [`connect`](FabricCarrier::connect), on all ranks simultaneously: the ranks say hello to each other by a write
//!    with a number. This also tries the connection between the hosts. The call returns when every hello has arrived
//!    and is confirmed.
//! 3. [`register`](FabricCarrier::register), for the segment (the target of posts) and for outboxes,
//!    returns a *place*: bytes for the peers that write there. Each of them [`accept`](FabricCarrier::accept)s the
//!    place under the name that its posts use. Sources of writes are registered as well, but nobody needs their places.
//!    Windows, and memory that is read in place, are registered and removed through the proxy ([`Carrier::open`],
//!    [`Carrier::place`], [`Carrier::reach`], [`Carrier::lend`]).
//! 4. A [`Proxy`](super::proxy::Proxy) takes the carrier. [`choice`](FabricCarrier::choice) says which provider was
//!    chosen, and why.
//! 5. At the end each rank drains its proxy, and then *goes on polling* until all other ranks have drained theirs. A
//!    rank that drops its carrier earlier drops confirmations with it, and its peers see failed writes.
//!
//! - **In**: [`Write`]s. **Out**: [`Event`]s, on this rank and on the receiver.
//! - **Invariants**: a notice is reported after the bytes of its own write. [`Event::Delivered`] is reported when a
//!   write is *confirmed*: the bytes are in the receiver's memory, and its next poll reports the arrival. Where numbers
//!   are counted (`number.rs`), most writes are reported when they are *released*: the provider no longer reads their
//!   source, and no later write is reported before them. The peer confirms those when it is asked
//!   ([`Carrier::unconfirmed`]). A write that is cut into messages has one notice, which travels with the last message
//!   after all others were confirmed. So no byte depends on the order in which the provider delivers: where numbers are
//!   counted, another order is an error. A write without bytes writes eight bytes that nobody reads, because providers
//!   disagree about empty writes.
//! - **Progress** is manual, and happens in [`poll`](Carrier::poll): writes of peers to this rank make progress only
//!   during that call. A write that the provider refuses for now is posted again by the next poll. If a peer takes and
//!   completes nothing for [`FabricOptions::patience`], the carrier reports an error. Time in which this rank did not
//!   poll does not count.
//! - **Trust**: keys are random where the provider lets us choose, and travel only over the bootstrap. Where numbers
//!   have room for a cookie (`number.rs`), numbers of strangers are dropped and counted. Where they have none
//!   ([`Numbers::Bare`]: verbs, efa) **the network must be private**. A failure that the provider reports without one
//!   of this rank's writes is a stranger's, who may have connected and sent anything. It is counted, too.
//! - **The carrier does not watch for dead peers**, because providers tell an idle rank nothing about a peer that died.
//!   A failed write is an error that names the peer.
//! - **Must not know**: the meaning of a notice, segments, kernels.

mod card;
mod choice;
mod closing;
mod devices;
mod error;
mod number;
mod options;
mod posts;
#[cfg(test)]
mod tests;
mod trial;

pub use choice::{Choice, Confirmation, Numbers};
pub use devices::DeviceMemory;
pub(crate) use devices::NetworkDevice;
#[cfg(feature = "cuda")]
pub(crate) use devices::{Abilities, Exported};
pub use error::NetworkError;
pub use options::FabricOptions;

use super::deadline::Deadline;
use super::proxy::{Carrier, Event, ProxyError, Source, Write};
use super::socket;
use crate::tensor::Memory;
use card::{Card, Place};
use closing::{Closing, WORD_BYTES, Word};
use number::{Heard, Kind, Read};
use posts::{Bytes, Post, Posts};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use tilewire_fabric::{Completion, Region};

/// The size of a peer's part of a rank's hall in bytes: its greeting, the target of writes without bytes, and the words
/// about closed memory.
const HALL_BYTES: usize = WORDS + 2 * WORD_BYTES;
/// The offset of the words about closed memory.
const WORDS: usize = 16;
/// While this rank has closed nothing, it looks for closings of peers once in this many polls.
const LOOK: u32 = 16;
/// The pause between two polls of a rank that waits for hellos.
const NAP: Duration = Duration::from_micros(50);

/// One rank's end of the network.
pub struct FabricCarrier {
    rank: usize,
    /// Registered memory. It is dropped before the endpoint, because some providers require that order.
    regions: Vec<Registered>,
    /// This rank's memory that peers write, and its place, by the number of the region.
    opened: HashMap<u16, (Memory, Vec<u8>)>,
    /// Memory of closed regions. The provider may still be receiving into it.
    closing: Closing,
    /// The number of polls, modulo [`LOOK`].
    polls: u32,
    _hall: Region,
    hall_memory: Memory,
    posts: Posts,
    choice: Choice,
    card: Card,
    numbers: number::Reader,
    /// The peers by rank; `None` for ranks that are not connected.
    peers: Vec<Option<Known>>,
    targets: HashMap<(usize, u16), Place>,
    completions: Vec<Completion>,
    /// Events that arrived while this rank was still connecting to other ranks.
    early: Vec<Event>,
    /// How many numbers of strangers have arrived, and how many of their operations have failed.
    strangers: u64,
    options: FabricOptions,
    /// The device of this rank, if its memory is registered.
    device: Option<Arc<dyn NetworkDevice>>,
}

/// The card of each rank; `None` for ranks that are not connected.
type Cards = Vec<Option<Vec<u8>>>;

/// Registered memory.
struct Registered {
    region: Region,
    /// How often it was registered and not unregistered.
    uses: usize,
    /// True if a window of it was opened: peers may have writes to it under way.
    is_target: bool,
    /// True if the memory is a device's.
    is_on_device: bool,
}

/// A connected peer.
struct Known {
    hall: Place,
    /// How the peer's writes are confirmed.
    confirmation: Confirmation,
    greeting: u64,
    /// True once the peer's hello has arrived.
    heard: bool,
    /// True once the peer has confirmed this rank's hello.
    confirmed: bool,
}

impl Known {
    /// The place at the peer that nobody reads, for writes without bytes: eight bytes behind the greeting.
    fn nowhere(&self) -> Place {
        Place { base: self.hall.base + 8, ..self.hall }
    }
}

impl FabricCarrier {
    /// Chooses a provider and opens an endpoint. Also returns the card of this rank, which all other ranks need.
    ///
    /// # Errors
    /// If libfabric is absent, or no provider passes its trial.
    pub fn open(options: FabricOptions, rank: usize, ranks: usize) -> Result<(FabricCarrier, Vec<u8>), NetworkError> {
        FabricCarrier::open_for(None, options, rank, ranks)
    }

    /// As [`open`](FabricCarrier::open), for a rank on a device. [`Choice::device_memory`] says whether memory of the
    /// device can be registered.
    pub(crate) fn open_for(
        device: Option<Arc<dyn NetworkDevice>>,
        options: FabricOptions,
        rank: usize,
        ranks: usize,
    ) -> Result<(FabricCarrier, Vec<u8>), NetworkError> {
        let (endpoint, choice) = choice::choose(&options, device.as_ref())?;
        let device = device.filter(|_| matches!(choice.device_memory, Some(DeviceMemory::Registered { .. })));
        let hall_memory = Memory::zeroed_shared(ranks.max(1) * HALL_BYTES);
        let hall = trial::register(&endpoint, &hall_memory, u64::from_le_bytes(random()?))?;
        // All cookies differ in their upper part, because a cookie also identifies the sender.
        let mut cookies: Vec<u32> = Vec::new();
        while cookies.len() < ranks {
            let cookie = number::cookie(u32::from_le_bytes(random()?));
            if !cookies.iter().any(|&other| number::identity(other) == number::identity(cookie)) {
                cookies.push(cookie);
            }
        }
        let card = Card {
            provider: choice.provider.clone(),
            confirmation: choice.confirmation,
            number_bytes: if choice.numbers == Numbers::Guarded { 8 } else { 4 },
            counts: choice.counted,
            address: endpoint.address().to_vec(),
            hall: place(&hall),
            greeting: u64::from_le_bytes(random()?),
            cookies,
        };
        let numbers = number::Reader::new(choice.numbers, &card.cookies);
        let posts = Posts::new(endpoint, &choice, ranks, &options)?;
        let bytes = card.to_bytes();
        let (regions, targets, completions) = (Vec::new(), HashMap::new(), Vec::new());
        let (opened, closing) = (HashMap::new(), Closing::default());
        let peers = (0..ranks).map(|_| None).collect();
        let carrier = FabricCarrier {
            rank,
            regions,
            opened,
            closing,
            polls: 0,
            _hall: hall,
            hall_memory,
            posts,
            choice,
            card,
            numbers,
            peers,
            targets,
            completions,
            early: Vec::new(),
            strangers: 0,
            options,
            device,
        };
        Ok((carrier, bytes))
    }

    /// Connects to the ranks whose cards are given, and waits until all of them have answered. Ranks without a card,
    /// and this rank itself, are not connected. All connected ranks must call it simultaneously.
    ///
    /// # Errors
    /// If a card is malformed, if ranks chose different providers, or if some ranks did not answer in time.
    pub fn connect(&mut self, cards: &[Option<Vec<u8>>]) -> Result<(), NetworkError> {
        connect_all(&mut [(self, cards.to_vec())])
    }

    /// Says hello to the ranks whose cards are given.
    fn greet(&mut self, cards: &[Option<Vec<u8>>]) -> Result<(), NetworkError> {
        for (rank, card) in cards.iter().enumerate().take(self.peers.len()) {
            let Some(card) = card.as_ref().filter(|_| rank != self.rank) else { continue };
            let card = Card::parse(rank, card)?;
            let own = (&self.card.provider, self.card.number_bytes);
            if own != (&card.provider, card.number_bytes) {
                let own = (self.rank, self.choice.to_string());
                let other = format!("{} with numbers of {} bytes", card.provider, card.number_bytes);
                return Err(NetworkError::Differ { own, other: (rank, other) });
            }
            let wrong = |what| NetworkError::Card { rank, what };
            let cookie = *card.cookies.get(self.rank).ok_or(wrong("a world of another size"))?;
            let hall_end = (self.rank as u64 + 1) * HALL_BYTES as u64;
            if card.hall.bytes < hall_end {
                return Err(wrong("a hall of another size"));
            }
            self.posts.insert(rank, &card.address, cookie)?;
            if card.counts {
                self.numbers.counts(rank);
            }
            let hall = Place {
                base: card.hall.base + self.rank as u64 * HALL_BYTES as u64,
                bytes: HALL_BYTES as u64,
                ..card.hall
            };
            let Card { confirmation, greeting, .. } = card;
            self.peers[rank] = Some(Known { hall, confirmation, greeting, heard: false, confirmed: false });
            self.closing.connect(rank);
        }
        for rank in 0..self.peers.len() {
            let Some(known) = &self.peers[rank] else { continue };
            let bytes = Bytes::copied(&self.card.greeting.to_le_bytes());
            let (place, kind) = (known.hall, Kind::Hello);
            self.posts.push(rank, Post { bytes, place, offset: 0, kind, value: 0, id: None, is_lasting: false });
        }
        Ok(())
    }

    /// Makes progress. Returns true if all connected ranks have answered.
    fn meet(&mut self) -> Result<bool, NetworkError> {
        // A peer that has already connected to all ranks may write now.
        let mut events = std::mem::take(&mut self.early);
        let stepped = self.step(&mut events);
        self.early = events;
        stepped.map_err(|error| match error {
            ProxyError::Carrier { peer, what } => NetworkError::Failed { peer, what },
            other => NetworkError::Failed { peer: None, what: other.to_string() },
        })?;
        let has_met = self.peers.iter().flatten().all(|known| known.heard && known.confirmed);
        // This rank may stop polling only after its echoes have been posted.
        Ok(has_met && !self.posts.is_waiting())
    }

    /// The error for ranks that did not answer in time.
    fn silent(&self, waited: Duration) -> NetworkError {
        let lacks = |what: fn(&Known) -> bool| -> Vec<usize> {
            let of = |(rank, known): (usize, &Option<Known>)| known.as_ref().filter(|k| !what(k)).map(|_| rank);
            self.peers.iter().enumerate().filter_map(of).collect()
        };
        let (unheard, unconfirmed) = (lacks(|known| known.heard), lacks(|known| known.confirmed));
        let (waited, provider) = (waited.as_millis() as u64, self.choice.to_string());
        NetworkError::Silent { unheard, unconfirmed, waited, provider }
    }

    /// Registers memory that this rank's writes read, or that peers write. Returns its place, for peers. A part of
    /// registered memory shares that registration. So register a segment first, and then the parts that peers write.
    ///
    /// # Errors
    /// If neither the host nor a card reaches the memory, or the provider refuses it.
    pub fn register(&mut self, memory: &Memory) -> Result<Vec<u8>, NetworkError> {
        let device = match (&self.device, memory.reachable_from().host) {
            (_, true) => None,
            (Some(device), false) => Some(device.clone()),
            (None, false) => return Err(NetworkError::Device),
        };
        if memory.bytes() == 0 {
            // There is nothing to register. Nobody writes to this place.
            return Ok(Place { base: 0, key: 0, bytes: 0 }.to_bytes());
        }
        if let Some((number, offset)) = self.registered(memory) {
            let Registered { region, uses, .. } = &mut self.regions[number];
            *uses += 1;
            let base = region.base() + offset as u64;
            return Ok(Place { base, bytes: memory.bytes() as u64, ..place(region) }.to_bytes());
        }
        let (endpoint, key) = (self.posts.endpoint(), u64::from_le_bytes(random()?));
        let region = match &device {
            None => trial::register(endpoint, memory, key)?,
            Some(device) => trial::register_on(endpoint, &**device, memory, key)
                .map_err(|what| NetworkError::DeviceMemory { bytes: memory.bytes(), what })?,
        };
        let bytes = place(&region).to_bytes();
        self.regions.push(Registered { region, uses: 1, is_target: false, is_on_device: device.is_some() });
        Ok(bytes)
    }

    /// Takes one `register` back. Returns true if it was the last one for this memory. Then later writes of peers to
    /// the memory fail, and the registration ends when this rank's writes from it are complete.
    pub fn unregister(&mut self, memory: &Memory) -> bool {
        self.end_use(memory).is_some()
    }

    /// Takes one `register` back. Returns the registration if that was the last one.
    fn end_use(&mut self, memory: &Memory) -> Option<Registered> {
        if memory.bytes() == 0 {
            return None;
        }
        let (number, _) = self.registered(memory)?;
        self.regions[number].uses -= 1;
        (self.regions[number].uses == 0).then(|| self.regions.remove(number))
    }

    /// Lets this rank write to a peer's memory, at the place that the peer's `register` returned.
    ///
    /// # Errors
    /// If the place is malformed, or the peer is not connected.
    pub fn accept(&mut self, peer: usize, target: u16, place: &[u8]) -> Result<(), NetworkError> {
        if self.peers.get(peer).is_none_or(Option::is_none) {
            return Err(NetworkError::Unconnected { peer });
        }
        let place = Place::parse(peer, place)?;
        self.targets.insert((peer, target), place);
        Ok(())
    }

    /// The provider, and the reason for its choice.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// How many numbers of strangers have arrived here and were dropped, and how many operations of strangers failed.
    pub fn strangers(&self) -> u64 {
        self.strangers
    }

    /// A descriptor that is readable when there is something to poll. `None` if the options did not ask for it, or the
    /// provider has none. Sleep on it only while [`may_sleep`](FabricCarrier::may_sleep) returns true.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.posts.endpoint().descriptor()
    }

    /// True if there is nothing to poll and nothing to post, and the descriptor will become readable when there is.
    pub fn may_sleep(&self) -> bool {
        !self.posts.is_waiting() && self.posts.endpoint().may_sleep()
    }

    /// Handles a hello. `sender` is `None` if the hello does not say where it came from; then all halls are looked at.
    fn hear(&mut self, sender: Option<usize>) -> Result<(), ProxyError> {
        for (rank, known) in self.peers.iter_mut().enumerate() {
            let Some(known) = known.as_mut().filter(|_| sender.is_none_or(|sender| sender == rank)) else { continue };
            // A torn greeting differs from the expected one.
            known.heard |= u64::from_le_bytes(read(&self.hall_memory, rank * HALL_BYTES)) == known.greeting;
            if sender.is_some() && !known.heard {
                let what = format!("the bytes of its hello were not there when the number was, over {}", self.choice);
                return Err(ProxyError::Carrier { peer: sender, what });
            }
        }
        Ok(())
    }

    /// The place of a write at its receiver.
    fn target(&self, write: &Write<'_>) -> Result<Place, ProxyError> {
        let refused = |what: String| ProxyError::Carrier { peer: Some(write.peer), what };
        let known = self.peers.get(write.peer).and_then(Option::as_ref);
        let known = known.ok_or_else(|| refused("it is not connected".to_string()))?;
        let bytes = write.source.bytes() as u64;
        if bytes == 0 {
            return Ok(known.nowhere());
        }
        let place = self.targets.get(&(write.peer, write.target));
        let place = *place.ok_or_else(|| refused(format!("it has not told where its region {} is", write.target)))?;
        match write.offset.checked_add(bytes).is_some_and(|end| end <= place.bytes) {
            true => Ok(place),
            false => Err(refused(format!(
                "{bytes} bytes at byte {} of its region {}, which has {} bytes",
                write.offset, write.target, place.bytes
            ))),
        }
    }

    /// The bytes of a write.
    fn source(&self, write: &Write<'_>) -> Result<Bytes, ProxyError> {
        match write.source {
            Source::Inline([]) => Ok(Bytes::copied(&[0; 8])),
            Source::Inline(bytes) if bytes.len() <= Bytes::MOST_COPIED => Ok(Bytes::copied(bytes)),
            Source::Inline(bytes) => Err(ProxyError::Carrier {
                peer: Some(write.peer),
                what: format!("{} bytes to be copied: at most {}", bytes.len(), Bytes::MOST_COPIED),
            }),
            Source::Memory(memory) if memory.bytes() == 0 => Ok(Bytes::copied(&[0; 8])),
            Source::Memory(memory) => {
                let bytes = memory.bytes();
                let (number, offset) = self.registered(memory).ok_or_else(|| ProxyError::Carrier {
                    peer: Some(write.peer),
                    what: format!("{bytes} bytes at {:p} are not registered with the network", memory.start()),
                })?;
                Ok(Bytes::Region { region: self.regions[number].region.clone(), offset, bytes })
            }
        }
    }

    /// The number of the region that contains a memory, and the offset of the memory in it.
    fn registered(&self, memory: &Memory) -> Option<(usize, usize)> {
        let (start, bytes) = (memory.start().as_ptr().cast_const(), memory.bytes());
        let offset = |(number, known): (usize, &Registered)| Some((number, known.region.offset_of(start, bytes)?));
        self.regions.iter().enumerate().find_map(offset)
    }

    /// Handles all completions since the last call, and posts everything that may go now.
    fn step(&mut self, events: &mut Vec<Event>) -> Result<(), ProxyError> {
        let mut completions = std::mem::take(&mut self.completions);
        self.posts.poll(&mut completions)?;
        for completion in completions.drain(..) {
            match completion {
                Completion::Arrived { data } => self.arrived(data, events)?,
                Completion::Done { token } => {
                    if let Some(done) = self.posts.done(token) {
                        self.confirmed(done, events);
                    }
                }
                Completion::Failed { token: Some(token), error } => self.posts.failed(token, &error)?,
                // Not of a write of this rank: a stranger's.
                Completion::Failed { token: None, .. } => self.strangers += 1,
            }
        }
        self.completions = completions;
        self.settle();
        self.posts.advance()?;
        for (rank, known) in self.peers.iter().enumerate() {
            if let Some(known) = known {
                self.posts.ask_if_idle(rank, known.nowhere())?;
            }
        }
        Ok(())
    }

    /// Exchanges words about closed memory with the peers.
    fn settle(&mut self) {
        self.polls = (self.polls + 1) % LOOK;
        if self.polls != 0 && !self.closing.keeps() {
            return;
        }
        let hall = &self.hall_memory;
        let said = |rank: usize, word: Word| closing::number_of(read(hall, rank * HALL_BYTES + WORDS + word.offset()));
        for (rank, word, number) in self.closing.step(said) {
            let place = self.peers[rank].as_ref().expect("a connected peer").hall;
            let (bytes, offset) = (Bytes::copied(&closing::sealed(number)), (WORDS + word.offset()) as u64);
            let kind = Kind::Silent;
            self.posts.push(rank, Post { bytes, place, offset, kind, value: 0, id: None, is_lasting: false });
        }
    }

    fn arrived(&mut self, number: u64, events: &mut Vec<Event>) -> Result<(), ProxyError> {
        let known = |sender: usize| self.peers.get(sender).is_some_and(Option::is_some);
        let Read { sender, kind, value } = match self.numbers.read(number) {
            Heard::Read(read) if read.sender.is_none_or(known) => read,
            Heard::Lost { sender } if known(sender) => {
                let what = format!("writes of it are missing: the connection to it was lost, over {}", self.choice);
                return Err(ProxyError::Carrier { peer: Some(sender), what });
            }
            _ => {
                self.strangers += 1;
                return Ok(());
            }
        };
        match kind {
            Kind::Notice => events.push(Event::Arrived { notice: value }),
            Kind::Hello => self.hear(sender)?,
            _ => {}
        }
        let Some(sender) = sender else { return Ok(()) };
        let known = self.peers[sender].as_ref().expect("just looked at");
        if let Some(echo) = kind.echo() {
            if known.confirmation == Confirmation::Echo || kind == Kind::Count {
                let (place, bytes, kind) = (known.nowhere(), Bytes::copied(&[0; 8]), echo);
                self.posts.push(sender, Post { bytes, place, offset: 0, kind, value, id: None, is_lasting: false });
            }
        } else if let Some(of) = kind.confirms() {
            for confirmed in self.posts.echoed(sender, of, value) {
                self.confirmed(confirmed, events);
            }
        }
        Ok(())
    }

    /// Handles the confirmation of a write or of a hello.
    fn confirmed(&mut self, done: posts::Done, events: &mut Vec<Event>) {
        match done {
            posts::Done::Write { id } => {
                self.closing.delivered(id);
                events.push(Event::Delivered { id });
            }
            posts::Done::Hello { peer } => {
                if let Some(known) = &mut self.peers[peer] {
                    known.confirmed = true;
                }
            }
        }
    }
}

impl Carrier for FabricCarrier {
    fn write(&mut self, write: &Write<'_>) -> Result<bool, ProxyError> {
        let place = self.target(write)?;
        let bytes = self.source(write)?;
        let offset = if write.source.bytes() == 0 { 0 } else { write.offset };
        let (kind, value) = write.notice.map_or((Kind::Silent, 0), |notice| (Kind::Notice, notice));
        // Staging, and the place of writes without bytes, are never closed.
        let is_lasting = kind == Kind::Notice && (write.source.bytes() == 0 || write.target == 0);
        let post = Post { bytes, place, offset, kind, value, id: Some(write.id), is_lasting };
        let taken = self.posts.take(write.peer, post)?;
        if taken && !is_lasting {
            self.closing.begun(write.id, write.peer);
        }
        Ok(taken)
    }

    fn open(&mut self, region: u16, memory: &Memory, _senders: &[usize]) -> Result<(), ProxyError> {
        let place = self.register(memory).map_err(refused)?;
        if let Some((number, _)) = self.registered(memory) {
            self.regions[number].is_target = true;
        }
        self.opened.insert(region, (memory.clone(), place));
        Ok(())
    }

    /// Makes later writes of peers fail. The provider may still be receiving a write, whose bytes may arrive during a
    /// later poll. So the carrier keeps the memory until all peers have said that theirs have ended (`closing.rs`).
    fn close(&mut self, region: u16) {
        if let Some((memory, _)) = self.opened.remove(&region)
            && self.end_use(&memory).is_some()
        {
            self.closing.keep(memory);
        }
    }

    fn place(&self, region: u16) -> Vec<u8> {
        self.opened.get(&region).map(|(_, place)| place.clone()).unwrap_or_default()
    }

    fn reach(&mut self, peer: usize, region: u16, place: &[u8]) -> Result<(), ProxyError> {
        self.accept(peer, region, place).map_err(refused)
    }

    fn reads(&self, memory: &Memory) -> bool {
        memory.reachable_from().host
    }

    fn lend(&mut self, memory: &Memory) -> Result<(), ProxyError> {
        self.register(memory).map(|_| ()).map_err(refused)
    }

    fn give_back(&mut self, memory: &Memory) {
        // Peers may still be writing to a window that was closed while it was lent.
        if self.end_use(memory).is_some_and(|region| region.is_target) {
            self.closing.keep(memory.clone());
        }
    }

    fn unconfirmed(&mut self, peer: usize) -> Result<usize, ProxyError> {
        match self.peers.get(peer).and_then(Option::as_ref) {
            Some(known) => self.posts.unconfirmed(peer, known.nowhere()),
            None => Ok(0),
        }
    }

    /// Any arrival may cover bytes in a window: a signal covers writes that came without a notice of their own. So all
    /// arrivals are flushed while this rank has a window in memory of its device.
    fn flush_arrivals(&mut self) -> Result<(), ProxyError> {
        let is_flushed = matches!(self.choice.device_memory, Some(DeviceMemory::Registered { flushed: true }));
        let Some(device) = self.device.as_ref().filter(|_| is_flushed) else { return Ok(()) };
        if !self.regions.iter().any(|known| known.is_target && known.is_on_device) {
            return Ok(());
        }
        let failed = |what: String| ProxyError::Carrier { peer: None, what: format!("{what}, over {}", self.choice) };
        device.flush().map_err(failed)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), ProxyError> {
        events.append(&mut self.early);
        self.step(events)
    }
}

impl std::fmt::Debug for FabricCarrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FabricCarrier of rank {} over {}", self.rank, self.choice)
    }
}

/// Connects several ranks of this process to the ranks whose cards are given beside each. As
/// [`FabricCarrier::connect`], for a thread that plays several ranks.
///
/// # Errors
/// As there.
pub(crate) fn connect_all(carriers: &mut [(&mut FabricCarrier, Cards)]) -> Result<(), NetworkError> {
    for (carrier, cards) in carriers.iter_mut() {
        carrier.greet(cards)?;
    }
    let hello = carriers.iter().map(|(carrier, _)| carrier.options.hello_or_default()).max().unwrap_or_default();
    let deadline = Deadline::after(hello);
    loop {
        let mut late = None;
        for (carrier, _) in carriers.iter_mut() {
            if !carrier.meet()? {
                late = Some(&**carrier);
            }
        }
        match late {
            None => return Ok(()),
            Some(late) if deadline.is_over() => return Err(late.silent(hello)),
            Some(_) => std::thread::sleep(NAP),
        }
    }
}

fn refused(error: NetworkError) -> ProxyError {
    ProxyError::Carrier { peer: None, what: error.to_string() }
}

fn place(region: &Region) -> Place {
    Place { base: region.base(), key: region.key(), bytes: region.bytes() as u64 }
}

/// Bytes of a carrier's own memory.
fn read<const N: usize>(memory: &Memory, at: usize) -> [u8; N] {
    let place = memory.part(at, N);
    // SAFETY: these are bytes inside the memory, which the handle keeps alive. A peer may be writing them, so the read
    // is volatile, and callers expect torn values.
    unsafe { place.start().cast::<[u8; N]>().read_volatile() }
}

fn random<const N: usize>() -> Result<[u8; N], NetworkError> {
    socket::random().map_err(|error| NetworkError::Random { what: error.to_string() })
}
