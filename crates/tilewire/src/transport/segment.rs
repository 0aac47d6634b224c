//! Segments: memory of every rank that every rank can reach.
//!
//! Threads share their process's memory, in which each page is taken when it is first touched. Processes share sealed
//! anonymous files, whose memory is all taken at the start. The files are passed through sockets that have no name in
//! the file system. When the last process that maps a segment ends, however it ends, nothing is left of the segment.
//!
//! Before anything is taken, the total need of all ranks is compared with what the machine and their control groups
//! have left. Beyond that, Linux would end a process rather than refuse.
//!
//! A set always has an entry for every rank of the world. Ranks of another [domain](Domains) cannot be mapped, and have
//! a *shadow* instead: a header in this process's own memory, and no bytes after it. So the abort words, doorbells and
//! status lines of all ranks exist, whatever code loops over them. What each of them means for a shadow:
//!
//! | of a shadow | meaning |
//! |---|---|
//! | abort word | setting it does nothing elsewhere; [`herald`](super::herald) tells the rank |
//! | doorbell | nobody sleeps on it |
//! | status line | silent: not known whether the rank waits, unless the herald has heard that it closes |
//! | bytes | there are none: [`SegmentSet::mapped`] is `None` |

use super::abort::{Abort, Cause, PanicGuard};
use super::domains::{Domains, domain_of};
use super::doorbell::Doorbell;
use super::error::SegmentError;
use super::mapping::{HEADER, Mapping};
use crate::tensor::{Memory, MemoryLeft, ReachableFrom};
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// An all-gather of small byte strings: takes this rank's, returns those of all ranks, in rank order.
pub type Exchange<'a, E> = dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>, E> + 'a;

/// How segments are created.
#[derive(Clone, Debug)]
pub struct SegmentOptions {
    /// How long the ranks may take to share their segments, not counting the exchange (which has its own deadline).
    pub deadline: Duration,
    /// True to enter all pages into the page tables immediately rather than at first touch. Pages of processes are
    /// *allocated* in any case, pages of threads only if this is set.
    pub populate: bool,
    /// True if segments of threads ask for huge pages. They are faster to walk through, but a page is taken as a whole
    /// when any part of it is touched. So they do not suit small parts for many peers.
    pub huge_pages: bool,
    /// Which ranks map each other's segments, if they are processes.
    pub domains: Domains,
    /// True if this process keeps the file of its own segment open, so that peers find tensors in it.
    pub keeps_file: bool,
}

impl Default for SegmentOptions {
    fn default() -> Self {
        SegmentOptions {
            deadline: Duration::from_secs(30),
            populate: false,
            huge_pages: true,
            domains: Domains::One,
            keeps_file: false,
        }
    }
}

/// The segments of all ranks of a world, as one rank sees them: the same number of bytes from each, initially zero.
///
/// Dropping the set lets go of the segments, but each stays mapped until its last [`Memory`], [`Abort`] and
/// [`Doorbell`] are gone.
pub struct SegmentSet {
    rank: usize,
    bytes: usize,
    /// By rank. Those of ranks outside of this rank's domain are shadows.
    segments: Vec<Arc<Mapping>>,
    domains: Arc<[Vec<u32>]>,
    #[cfg(target_os = "linux")]
    control: ControlSockets,
}

impl SegmentSet {
    /// Segments for ranks that are threads of this process: one set for each, to be moved to its thread.
    ///
    /// ```
    /// use tilewire::transport::SegmentSet;
    /// let ranks = SegmentSet::threads(2, 1000)?;
    /// assert!(ranks[0].segment(1).is(&ranks[1].segment(1)));
    /// # Ok::<(), tilewire::transport::SegmentError>(())
    /// ```
    pub fn threads(world_size: usize, bytes: usize) -> Result<Vec<SegmentSet>, SegmentError> {
        SegmentSet::threads_with(world_size, bytes, &SegmentOptions::default())
    }

    /// Like [`SegmentSet::threads`], with options.
    pub fn threads_with(
        world_size: usize,
        bytes: usize,
        options: &SegmentOptions,
    ) -> Result<Vec<SegmentSet>, SegmentError> {
        check_world(0, world_size)?;
        let total = Mapping::total(bytes).ok_or(SegmentError::TooLarge { bytes })?;
        let no_memory = |shortage| SegmentError::NoMemory { bytes: total, shortage };
        let all = (total as u64).saturating_mul(world_size as u64);
        // For small segments, reading the system's files is not worth it.
        if all >= COMPARED {
            MemoryLeft::now().check(all).map_err(|shortage| no_memory(Some(shortage)))?;
        }
        let (populate, huge) = (options.populate, options.huge_pages);
        let segment = |_| Mapping::own(total, populate, huge).map(Arc::new).ok_or_else(|| no_memory(None));
        let segments = (0..world_size).map(segment).collect::<Result<Vec<_>, _>>()?;
        Ok((0..world_size).map(|rank| SegmentSet::new(rank, bytes, segments.clone())).collect())
    }

    /// Segments for ranks that are processes of one machine. A collective call: every rank makes it, with the same
    /// size.
    ///
    /// `exchange` is an all-gather of small byte strings, in rank order; it is called once, or twice if the ranks are
    /// to [find](Domains::Found) their domains. A process can get at the segments only if it has the result of the
    /// exchange and runs as the same user.
    ///
    /// ```
    /// use tilewire::transport::SegmentSet;
    /// // A world of one: what it put in is all there is to gather.
    /// let set = SegmentSet::create(0, 1, 1 << 20, &mut |mine: &[u8]| Ok::<_, std::io::Error>(vec![mine.to_vec()]))?;
    /// assert_eq!(set.segment(0).bytes(), 1 << 20);
    /// # Ok::<(), tilewire::transport::SegmentError>(())
    /// ```
    pub fn create<E: Into<Box<dyn Error + Send + Sync>>>(
        rank: usize,
        world_size: usize,
        bytes: usize,
        exchange: &mut Exchange<'_, E>,
    ) -> Result<SegmentSet, SegmentError> {
        SegmentSet::create_with(rank, world_size, bytes, &SegmentOptions::default(), exchange)
    }

    /// Like [`SegmentSet::create`], with options.
    pub fn create_with<E: Into<Box<dyn Error + Send + Sync>>>(
        rank: usize,
        world_size: usize,
        bytes: usize,
        options: &SegmentOptions,
        exchange: &mut Exchange<'_, E>,
    ) -> Result<SegmentSet, SegmentError> {
        check_world(rank, world_size)?;
        let mut exchange = |mine: &[u8]| exchange(mine).map_err(|error| SegmentError::Exchange(error.into()));
        processes::create((rank, world_size), bytes, options, &mut exchange)
    }

    /// The bytes of a rank's segment, page-aligned. Peers may write them at any time; kernels use signals to order
    /// that.
    ///
    /// # Panics
    /// If there is no such rank, or its segment is not [mapped](Self::mapped) here.
    pub fn segment(&self, rank: usize) -> Memory {
        let memory = self.mapped(rank);
        memory.unwrap_or_else(|| panic!("the segment of rank {rank} is not mapped by rank {}", self.rank))
    }

    /// True if this rank maps a rank's segment: if they are in one domain.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn is_mapped(&self, rank: usize) -> bool {
        assert!(rank < self.world_size(), "rank {rank} of {}", self.world_size());
        domain_of(&self.domains, self.rank).contains(&(rank as u32))
    }

    /// The domains of all ranks. Every rank is in exactly one.
    pub fn domains(&self) -> &[Vec<u32>] {
        &self.domains
    }

    /// The bytes of a rank's segment; `None` if the rank is in another domain.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn mapped(&self, rank: usize) -> Option<Memory> {
        if !self.is_mapped(rank) {
            return None;
        }
        let segment = self.segments[rank].clone();
        // SAFETY: the mapping holds a header and at least `bytes` more, initialised, and lives as long as the handle
        // that is passed along. (A shadow holds a header only, and was excluded above.) Nobody holds references into
        // the bytes: they are only handed out as `Memory`.
        Some(unsafe { Memory::shared(segment.bytes(), self.bytes, ReachableFrom::HOST, segment) })
    }

    /// Zeroed memory of this process that could be passed to others: a mapped file without a name. So far only its
    /// owner has it.
    #[cfg(target_os = "linux")]
    pub(crate) fn exportable(bytes: usize) -> Result<Memory, SegmentError> {
        processes::exportable(bytes)
    }

    /// Ordinary memory, since there are no processes to pass it to.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn exportable(bytes: usize) -> Result<Memory, SegmentError> {
        Memory::try_zeroed(bytes).map_err(|error| SegmentError::NoMemory { bytes, shortage: error.shortage })
    }

    /// True if other processes can map this memory: it is part of memory that [`exportable`](Self::exportable) made.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_exportable(memory: &Memory) -> bool {
        processes::Export::of(memory).is_some()
    }

    /// No memory is.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn is_exportable(_: &Memory) -> bool {
        false
    }

    /// What the others need to know to map this memory, in words.
    #[cfg(target_os = "linux")]
    pub(crate) fn export_said(memory: &Memory) -> String {
        processes::Export::of(memory).map_or_else(String::new, |export| export.said())
    }

    /// There are no processes.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn export_said(_: &Memory) -> String {
        String::new()
    }

    /// Passes this rank's exportable memory to every process of its domain, and maps theirs, of which each has said
    /// where it is. Collective.
    #[cfg(target_os = "linux")]
    pub(crate) fn swap_exports(
        &mut self,
        own: &Memory,
        said: &[Vec<u8>],
        deadline: super::deadline::Deadline,
    ) -> Result<Vec<Option<Memory>>, SegmentError> {
        processes::swap_exports(&self.control.sockets, own, said, deadline)
    }

    /// There are no processes.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn swap_exports(
        &mut self,
        _: &Memory,
        _: &[Vec<u8>],
        _: super::deadline::Deadline,
    ) -> Result<Vec<Option<Memory>>, SegmentError> {
        Err(SegmentError::Unsupported)
    }

    /// The abort word of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn abort(&self, rank: usize) -> Abort {
        Abort::new(self.segments[rank].clone())
    }

    /// The abort words of all ranks, in rank order.
    pub fn aborts(&self) -> Vec<Abort> {
        self.segments.iter().map(|segment| Abort::new(segment.clone())).collect()
    }

    /// The doorbell of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn doorbell(&self, rank: usize) -> Doorbell {
        Doorbell::new(self.segments[rank].clone())
    }

    /// The segments of all ranks, with the shadows of those that are not mapped here.
    pub(super) fn mappings(&self) -> Vec<Arc<Mapping>> {
        self.segments.clone()
    }

    /// The segments of all ranks, without keeping them alive.
    pub(super) fn weak(&self) -> impl Iterator<Item = Weak<Mapping>> {
        self.segments.iter().map(Arc::downgrade)
    }

    /// Ends the waits of all ranks that are mapped here, including this one's.
    pub fn abort_all(&self, cause: Cause) {
        self.aborts().iter().for_each(|abort| _ = abort.set(cause));
    }

    /// A guard that ends the peers' waits if this rank panics.
    pub fn panic_guard(&self) -> PanicGuard {
        let peers = (0..self.world_size()).filter(|&rank| rank != self.rank);
        PanicGuard::new(self.rank, peers.map(|rank| self.abort(rank)).collect())
    }

    /// The sockets to the other ranks, for a [`Monitor`](super::Monitor). They can be taken once; there are none if
    /// ranks are threads.
    #[cfg(target_os = "linux")]
    pub fn take_control(&mut self) -> ControlSockets {
        std::mem::take(&mut self.control)
    }

    /// Passes a descriptor to every other rank of the domain over its control socket, and takes the one that each
    /// passes. Collective; must come before a monitor has the sockets. Indexed by rank; `None` for this rank and other
    /// domains.
    #[cfg(target_os = "linux")]
    pub(crate) fn swap_descriptors(
        &mut self,
        own: std::os::fd::BorrowedFd<'_>,
        deadline: super::deadline::Deadline,
    ) -> Result<Vec<Option<std::os::fd::OwnedFd>>, SegmentError> {
        processes::swap_descriptors(&self.control.sockets, own, deadline)
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks in the world.
    pub fn world_size(&self) -> usize {
        self.segments.len()
    }

    /// Bytes of each segment.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn new(rank: usize, bytes: usize, segments: Vec<Arc<Mapping>>) -> SegmentSet {
        let all = (0..segments.len() as u32).collect();
        SegmentSet {
            rank,
            bytes,
            segments,
            domains: Arc::new([all]),
            #[cfg(target_os = "linux")]
            control: ControlSockets::default(),
        }
    }

    /// Sets of threads that play ranks in several domains, for tests: each maps its own domain, and has shadows of the
    /// other ranks.
    #[cfg(test)]
    pub(crate) fn threads_in_domains(domains: &[Vec<u32>], bytes: usize) -> Vec<SegmentSet> {
        let world_size = domains.iter().map(Vec::len).sum();
        let sets = SegmentSet::threads(world_size, bytes).unwrap();
        let shadows = |mut set: SegmentSet| {
            set.domains = domains.into();
            let is_mapped: Vec<bool> = (0..world_size).map(|rank| set.is_mapped(rank)).collect();
            let all = set.segments.iter_mut().zip(is_mapped);
            all.filter(|(_, is_mapped)| !is_mapped).for_each(|(segment, _)| *segment = shadow().unwrap());
            set
        };
        sets.into_iter().map(shadows).collect()
    }
}

impl fmt::Debug for SegmentSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SegmentSet(rank {} of {}, {} bytes each)", self.rank, self.world_size(), self.bytes)
    }
}

/// What stands for a rank that is not mapped here: a header that only this process writes.
fn shadow() -> Result<Arc<Mapping>, SegmentError> {
    let bytes = HEADER;
    Mapping::own(bytes, false, false).map(Arc::new).ok_or(SegmentError::NoMemory { bytes, shortage: None })
}

/// A socket to every other rank of the domain that closes when that rank dies.
#[cfg(target_os = "linux")]
#[derive(Debug, Default)]
pub struct ControlSockets {
    /// This rank.
    pub(super) rank: usize,
    /// Indexed by rank; `None` for this rank and those of other domains.
    pub(super) sockets: Vec<Option<std::os::fd::OwnedFd>>,
}

/// If all ranks together ask for this many bytes or more, the sum is compared with what is left.
const COMPARED: u64 = 1 << 20;

fn check_world(rank: usize, world_size: usize) -> Result<(), SegmentError> {
    // An abort word has 24 bits for the rank.
    if rank < world_size && world_size <= 1 << 24 {
        return Ok(());
    }
    Err(SegmentError::Usage { what: format!("rank {rank} of {world_size}: a rank is less than the world's size") })
}

#[cfg(target_os = "linux")]
mod processes {
    use super::super::deadline::Deadline;
    use super::super::domains::{self, Domains, domain_of};
    use super::super::handover::{self, Handover};
    use super::super::message::{self, Card, Door, Token};
    use super::super::socket::Heard;
    use super::super::{memfd, reserve_descriptors, socket};
    use super::{
        Arc, COMPARED, ControlSockets, Exchange, HEADER, Mapping, Memory, MemoryLeft, ReachableFrom, SegmentError,
        SegmentOptions, SegmentSet, shadow,
    };
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    pub(super) fn create(
        (rank, world_size): (usize, usize),
        bytes: usize,
        options: &SegmentOptions,
        exchange: &mut Exchange<'_, SegmentError>,
    ) -> Result<SegmentSet, SegmentError> {
        // A rank that fails here still takes part in the exchange, so that the others do not wait for it in vain.
        let own = Own::open(world_size, bytes);
        let total = Mapping::total(bytes).unwrap_or(usize::MAX);
        // We read what is left before the exchange and take memory after it, so no rank takes memory before all have
        // counted.
        let left = if total as u64 >= COMPARED / world_size as u64 { MemoryLeft::now() } else { MemoryLeft::default() };
        let alone = left
            .check(total as u64)
            .map_err(|shortage| SegmentError::NoMemory { bytes: total, shortage: Some(shortage) });
        let objection = options.domains.objection(world_size).map(|what| SegmentError::Usage { what });
        let own = own.and_then(|own| alone.map(|()| own)).and_then(|own| objection.map_or(Ok(own), Err));
        let groups = left.group_ids(Door::MAX_GROUPS);
        let door = own.as_ref().map(|own| Door { name: own.name.clone(), token: own.token, groups });
        let card = Card { total: total as u64, host: message::host(), door: door.map_err(SegmentError::to_string) };
        let cards = exchange(&card.encode());
        let Own { listener, .. } = own?;
        let cards = checked(rank, world_size, &card, &cards?)?;
        let domains = meet(rank, &cards, &options.domains, exchange)?;
        let machine = cards.iter().filter(|other| other.machine() == card.machine());
        let machine: Vec<&Door> = machine.filter_map(|card| card.door.as_ref().ok()).collect();
        let mut own = None;
        let segment = take(total, &left, &machine, options).map(|(file, mapping)| {
            own = Some(Arc::new(mapping));
            file
        });
        let domain = domain_of(&domains, rank);
        let door = |(rank, card): (usize, Card)| card.door.ok().filter(|_| domain.contains(&(rank as u32)));
        let doors: Vec<Option<Door>> = cards.into_iter().enumerate().map(door).collect();
        let handover = Handover { rank, doors: &doors, total, populate: options.populate, listener };
        let handed = handover.run(segment, options.deadline)?.into_iter().enumerate().map(|(of, peer)| match peer {
            Some((mapping, socket)) => Ok((Arc::new(mapping), Some(socket))),
            None if of == rank => Ok((own.clone().expect("a rank without a segment has failed above"), None)),
            None => Ok((shadow()?, None)),
        });
        let (segments, sockets) = handed.collect::<Result<Vec<_>, SegmentError>>()?.into_iter().unzip();
        Ok(SegmentSet { rank, bytes, segments, domains: domains.into(), control: ControlSockets { rank, sockets } })
    }

    /// The domains of all ranks, the same on each.
    fn meet(
        rank: usize,
        cards: &[Card],
        domains: &Domains,
        exchange: &mut Exchange<'_, SegmentError>,
    ) -> Result<Vec<Vec<u32>>, SegmentError> {
        let all = || 0..cards.len();
        match domains {
            Domains::One => {
                let elsewhere: Vec<usize> = all().filter(|&other| cards[other].host != cards[rank].host).collect();
                match elsewhere.is_empty() {
                    true => Ok(vec![all().map(|rank| rank as u32).collect()]),
                    false => Err(SegmentError::OtherHost { ranks: elsewhere }),
                }
            }
            Domains::Given(domains) => {
                let host = |rank: &u32| cards[*rank as usize].host;
                let is_torn = |domain: &&Vec<u32>| domain.iter().any(|rank| host(rank) != host(&domain[0]));
                match domains.iter().find(is_torn) {
                    None => Ok(domains.clone()),
                    Some(domain) => {
                        let elsewhere = domain.iter().copied().find(|rank| host(rank) != host(&domain[0]));
                        let ranks = (domain[0] as usize, elsewhere.expect("it is torn") as usize);
                        Err(SegmentError::TornDomain { domain: domain.clone(), ranks })
                    }
                }
            }
            Domains::Found => {
                // Every rank has listened since before it handed out its card, so a door that does not open now is out
                // of reach: another namespace, another user, or a policy.
                let reaches = |other: usize| other == rank || knock(&cards[rank], &cards[other]);
                let mine: Vec<u8> = all().map(|other| reaches(other).into()).collect();
                let said = exchange(&mine)?;
                let row = |(rank, row): (usize, &Vec<u8>)| {
                    let what = || format!("what it reaches has {} entries for {} ranks", row.len(), cards.len());
                    let is_whole = row.len() == cards.len();
                    let row = is_whole.then(|| row.iter().map(|&reached| reached == 1).collect::<Vec<bool>>());
                    row.ok_or_else(|| SegmentError::Malformed { rank: Some(rank), what: what() })
                };
                let table = said.iter().enumerate().map(row).collect::<Result<Vec<_>, _>>()?;
                if table.len() != cards.len() {
                    let what = format!("{} parts for {} ranks", table.len(), cards.len());
                    return Err(SegmentError::Malformed { rank: None, what });
                }
                Ok(domains::grouped(table.len(), |a, b| table[a][b]))
            }
        }
    }

    /// True if this rank can open a connection to another one. The other one takes it for a stranger, and drops it.
    fn knock(own: &Card, other: &Card) -> bool {
        let Some(door) = other.door.as_ref().ok().filter(|_| own.host == other.host) else { return false };
        match socket::connect(&door.name) {
            Ok(connection) => socket::is_same_user(connection.as_fd()).unwrap_or(false),
            // Its queue is full of others that knock.
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }

    /// Takes the memory of this rank's segment, if there is enough for the segments of all ranks of its machine,
    /// whatever their domains.
    fn take(
        total: usize,
        left: &MemoryLeft,
        doors: &[&Door],
        options: &SegmentOptions,
    ) -> Result<(OwnedFd, Mapping), SegmentError> {
        let of = |ranks: usize| (total as u64).saturating_mul(ranks as u64);
        // A control group pays for the segments of its own ranks, the machine for all.
        let in_group = |group: u64| of(doors.iter().filter(|door| door.groups.contains(&group)).count());
        left.check_shared(of(doors.len()), in_group)
            .map_err(|shortage| SegmentError::NoMemory { bytes: total, shortage: Some(shortage) })?;
        let file = memfd::create(total)?;
        let mapping = memfd::map(file.as_fd(), total, options.populate)?;
        // Without it, peers do not find tensors in it, and nothing else is lost.
        let mapping = match options.keeps_file.then(|| file.try_clone()) {
            Some(Ok(kept)) => mapping.with_file(kept, total),
            _ => mapping,
        };
        Ok((file, mapping))
    }

    /// Zeroed memory in a file of its own, whose descriptor stays open as long as the memory.
    pub(super) fn exportable(bytes: usize) -> Result<Memory, SegmentError> {
        let total = Mapping::total(bytes).ok_or(SegmentError::TooLarge { bytes })?;
        let no_memory = |shortage| SegmentError::NoMemory { bytes: total, shortage: Some(shortage) };
        if total as u64 >= COMPARED {
            MemoryLeft::now().check(total as u64).map_err(no_memory)?;
        }
        let file = memfd::create(total)?;
        let mapping = memfd::map(file.as_fd(), total, false)?;
        let start = mapping.bytes();
        // SAFETY: the mapping holds a header and at least `bytes` more, initialised (zeros), sealed against shrinking,
        // and lives as long as the keep-alive that is passed along. It was made here, so nobody else has its address or
        // descriptor.
        Ok(unsafe { Memory::foreign(start, bytes, Arc::new(mapping.with_file(file, total))) })
    }

    /// A part of a file that this process has open.
    pub(super) struct Export<'m> {
        file: BorrowedFd<'m>,
        /// Bytes of the file.
        total: usize,
        /// The first byte, counted from the header's end.
        offset: usize,
        bytes: usize,
    }

    impl Export<'_> {
        pub(super) fn of(memory: &Memory) -> Option<Export<'_>> {
            let of = memory.kept_by::<Mapping>()?;
            let (file, total) = of.file()?;
            let offset = memory.start().addr().get().checked_sub(of.bytes().addr().get())?;
            Some(Export { file, total, offset, bytes: memory.bytes() })
        }

        pub(super) fn said(&self) -> String {
            format!("{} {} {}", self.total, self.offset, self.bytes)
        }
    }

    pub(super) fn swap_exports(
        sockets: &[Option<OwnedFd>],
        own: &Memory,
        said: &[Vec<u8>],
        deadline: Deadline,
    ) -> Result<Vec<Option<Memory>>, SegmentError> {
        // A rank that is alone in its domain shares nothing, whatever its memory is.
        if sockets.iter().all(Option::is_none) {
            return Ok(said.iter().map(|_| None).collect());
        }
        let usage = |what: String| SegmentError::Usage { what };
        let export = Export::of(own).ok_or_else(|| usage("memory that cannot be passed on".to_string()))?;
        let files = swap_descriptors(sockets, export.file, deadline)?;
        let map = |(file, said): (Option<OwnedFd>, &Vec<u8>)| {
            let Some(file) = file else { return Ok(None) };
            let text = String::from_utf8_lossy(said);
            let numbers: Vec<usize> = text.split(' ').filter_map(|number| number.parse().ok()).collect();
            let wrong = || usage(format!("memory {text:?} of another rank"));
            let [total, offset, bytes] = numbers[..] else { return Err(wrong()) };
            let end = offset.checked_add(bytes).and_then(|end| end.checked_add(HEADER));
            if end.is_none_or(|end| end > total) {
                return Err(wrong());
            }
            let mapping = memfd::map(file.as_fd(), total, false)?;
            let start = mapping.bytes();
            // SAFETY: the mapping holds a header and at least `offset + bytes` more (just compared with the size of the
            // file, which `map` has checked and which is sealed), initialised, and lives as long as the keep-alive.
            // Other processes write it, so it is shared, and nobody has a reference to it.
            let whole = unsafe { Memory::shared(start, offset + bytes, ReachableFrom::HOST, Arc::new(mapping)) };
            Ok(Some(whole.part(offset, bytes)))
        };
        files.into_iter().zip(said).map(map).collect()
    }

    /// The packet that accompanies a passed descriptor.
    const PASSED: &[u8] = b"TWHANDLE";

    pub(crate) fn swap_descriptors(
        sockets: &[Option<OwnedFd>],
        own: BorrowedFd<'_>,
        deadline: Deadline,
    ) -> Result<Vec<Option<OwnedFd>>, SegmentError> {
        let began = std::time::Instant::now();
        for (rank, socket) in sockets.iter().enumerate() {
            let Some(socket) = socket else { continue };
            let sent = socket::send(socket.as_fd(), PASSED, Some(own)).map_err(SegmentError::system("sendmsg"))?;
            if !sent {
                return Err(SegmentError::Died { rank });
            }
        }
        let mut taken: Vec<Option<OwnedFd>> = sockets.iter().map(|_| None).collect();
        loop {
            let mut missing = Vec::new();
            for (rank, socket) in sockets.iter().enumerate() {
                let Some(socket) = socket.as_ref().filter(|_| taken[rank].is_none()) else { continue };
                let mut buffer = [0; 16];
                match socket::receive(socket.as_fd(), &mut buffer, true).map_err(SegmentError::system("recvmsg"))? {
                    Heard::Packet(len, Some(file)) if buffer[..len] == *PASSED => taken[rank] = Some(file),
                    Heard::Nothing => missing.push(rank),
                    _ => return Err(SegmentError::Died { rank }),
                }
            }
            if missing.is_empty() {
                return Ok(taken);
            }
            if deadline.is_over() {
                return Err(SegmentError::Missing { ranks: missing, after: began.elapsed() });
            }
            let waiting = missing.iter().filter_map(|&rank| sockets[rank].as_ref()).map(OwnedFd::as_fd);
            socket::wait(waiting, deadline.instant()).map_err(SegmentError::system("poll"))?;
        }
    }

    /// What a rank needs before the others can connect to it.
    struct Own {
        listener: OwnedFd,
        name: Vec<u8>,
        token: Token,
    }

    impl Own {
        fn open(world_size: usize, bytes: usize) -> Result<Own, SegmentError> {
            Mapping::total(bytes).ok_or(SegmentError::TooLarge { bytes })?;
            reserve_descriptors(handover::descriptors(world_size)).map_err(SegmentError::Descriptors)?;
            let random = || socket::random::<16>().map_err(SegmentError::system("getrandom"));
            // A name that is recognisable in a list of sockets, and that nobody can have taken.
            let name = format!("tilewire-{:032x}", u128::from_ne_bytes(random()?)).into_bytes();
            let listener =
                socket::listen(&name, handover::backlog(world_size)).map_err(SegmentError::system("bind or listen"))?;
            Ok(Own { listener, name, token: random()? })
        }
    }

    /// Checks that the ranks agree and that each has a door; returns their cards.
    fn checked(rank: usize, world_size: usize, own: &Card, cards: &[Vec<u8>]) -> Result<Vec<Card>, SegmentError> {
        let malformed = |what: String| SegmentError::Malformed { rank: None, what };
        if cards.len() != world_size {
            return Err(malformed(format!("{} parts for {world_size} ranks", cards.len())));
        }
        let cards =
            cards.iter().enumerate().map(|(rank, card)| Card::decode(rank, card)).collect::<Result<Vec<_>, _>>()?;
        if cards[rank] != *own {
            return Err(malformed(format!("the part of rank {rank} is not what it put in")));
        }
        if cards.iter().any(|card| card.total != own.total) {
            let bytes = cards.iter().map(|card| card.total.saturating_sub(HEADER as u64));
            return Err(SegmentError::Sizes { bytes: bytes.collect() });
        }
        for (rank, card) in cards.iter().enumerate() {
            if let Err(what) = &card.door {
                return Err(SegmentError::Peer { rank, what: what.clone() });
            }
        }
        Ok(cards)
    }
}

#[cfg(not(target_os = "linux"))]
mod processes {
    use super::{Exchange, SegmentError, SegmentOptions, SegmentSet};

    pub(super) fn create(
        _: (usize, usize),
        _: usize,
        _: &SegmentOptions,
        _: &mut Exchange<'_, SegmentError>,
    ) -> Result<SegmentSet, SegmentError> {
        Err(SegmentError::Unsupported)
    }
}
