//! Domains of ranks that map each other's memory, joined by posts.

use super::window::{WindowCall, WindowParts};
use super::{PostFrom, ShmOptions, ShmTransport, Transport};
use crate::tensor::{Memory, Queue, Ring};
use crate::transport::layout::{LINE, Layout};
use crate::transport::proxy::{
    Lines, LoopCarrier, LoopEnd, MOST_LINES, PostedRegion, PostedSource, PostedTo, Proxy, ProxyParts, Target,
};
use crate::transport::rendezvous::{Parameters, Shared};
use crate::transport::{
    Cause, Door, LinkKind, LinkShape, Pairing, PeerEndpoint, PostedPeer, Rank, SegmentSet, Ticket,
    TransportError, World,
};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How large a [`MeshTransport`] is, and which ranks map each other's memory. The same on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeshOptions {
    /// The ranks of each domain. Every rank is in exactly one. `None`: all ranks of a process are one domain.
    pub domains: Option<Vec<Vec<u32>>>,
    /// Sizes of staging and slots, for near and far peers alike.
    pub sizes: ShmOptions,
    /// Descriptors that the ring of posts holds; 1024 by default.
    pub ring: Option<usize>,
    /// Makes the carrier between domains delay and reorder writes, from this seed: for tests.
    pub seed: Option<u64>,
}

/// The largest ring: 64 MiB.
const MOST_DESCRIPTORS: usize = 1 << 20;

impl MeshOptions {
    /// Every rank is a domain of its own: all peers are reached by posts.
    pub fn alone(ranks: usize) -> MeshOptions {
        MeshOptions { domains: Some((0..ranks as u32).map(|rank| vec![rank]).collect()), ..MeshOptions::default() }
    }
}

/// Ranks in domains. Peers of the same domain are *near*: kernels load and store in their memory. All others are *far*:
/// kernels fill an outbox and post it, and a proxy carries it to the peer.
///
/// Ranks are threads of one process here, and the carrier between domains copies.
///
/// ```
/// use tilewire::link::{MeshOptions, MeshTransport};
/// use tilewire::{Tensor, World, all_gather};
///
/// World::threads(4).run(|world| {
///     let domains = Some(vec![vec![0, 1], vec![2, 3]]);
///     let link = MeshTransport::rendezvous(&world, MeshOptions { domains, ..Default::default() })?;
///     let (inp, out) = (Tensor::from_slice(&[world.rank().number()]), Tensor::<u32>::zeros(4));
///     all_gather(&link, &out, &inp).run()?;
///     assert_eq!(out.to_vec(), [0, 1, 2, 3]);
///     Ok(link.close()?)
/// })?;
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
pub struct MeshTransport {
    near: ShmTransport,
    domains: Vec<Vec<u32>>,
    /// By rank: what is put for a far peer; `None` for near ones.
    outboxes: Vec<Option<Memory>>,
    /// What kernels bind to post.
    queue: Queue,
    door: Door,
    ends: Vec<Arc<LoopEnd>>,
}

impl MeshTransport {
    /// Makes a transport. Collective: every rank of the world calls it, with the same options.
    pub fn rendezvous(world: &World, options: MeshOptions) -> Result<MeshTransport, TransportError> {
        let MeshOptions { domains, sizes, ring, seed } = options;
        let (shared, deadline, ranks) = (Shared::of(world), world.deadline(), Shared::of(world).size());
        let domains = domains.unwrap_or_else(|| vec![(0..ranks as u32).collect()]);
        let objection = (check_domains(&domains, ranks).err())
            .or_else(|| (!shared.are_threads()).then_some(not_threads()))
            .or_else(|| too_many_lines(&sizes, ranks))
            .or_else(|| ring.and_then(bad_ring));
        Parameters::new("mesh")
            .with("domains", format!("{domains:?}"))
            .with("ring", format!("{ring:?}"))
            .with("seed", format!("{seed:?}"))
            .object(objection)
            .agree(&shared, &[], deadline)?;
        let near = ShmTransport::rendezvous(world, sizes)?;
        let (me, layout, segments) = (world.rank(), near.layout().clone(), near.segments());
        let is_far = |peer: Rank| domain_of(&domains, peer) != domain_of(&domains, me);
        let outboxes: Vec<Option<Memory>> = Rank::all(ranks)
            .map(|peer| is_far(peer).then(|| Memory::zeroed_shared(layout.geometry().per_peer_bytes)))
            .collect();
        let end = Arc::new(LoopEnd::new(targets(&layout, segments, me), segments.doorbell(me.index())));
        let ends = shared.show("mesh", end, deadline)?.expect("ranks are threads");
        let ring = Ring::new(ring.unwrap_or(1024));
        let queue = ring.queue(0);
        let lines = |rank: Rank| lines_of(&layout, rank);
        let to = |peer: Rank| {
            is_far(peer).then(|| PostedTo { regions: vec![Some(layout.geometry().per_peer_bytes as u64)], lines: lines(me) })
        };
        let proxy = Arc::new(Proxy::new(ProxyParts {
            rank: me.index(),
            ring,
            carrier: Box::new(LoopCarrier::new(me.index(), ends.clone(), seed)),
            peers: Rank::all(ranks).map(to).collect(),
            sources: outboxes.iter().flatten().cloned().collect(),
            segment: segments.segment(me.index()),
            inbound: Rank::all(ranks).filter(|&peer| is_far(peer)).flat_map(lines).collect(),
            flushed: vec![sent_lines(&layout)],
            doorbell: segments.doorbell(me.index()),
            aborts: segments.aborts(),
        }));
        let door = near.door().expect("shared memory has a door").clone().with_proxy(proxy);
        Ok(MeshTransport { near, domains, outboxes, queue, door, ends })
    }

    /// The ranks of each domain.
    pub fn domains(&self) -> &[Vec<u32>] {
        &self.domains
    }

    /// True if the peer is reached by posts.
    pub fn is_far(&self, peer: Rank) -> bool {
        self.outboxes.get(peer.index()).is_some_and(Option::is_some)
    }

    fn proxy(&self) -> &Arc<Proxy> {
        self.door.proxy().expect("a mesh has a proxy")
    }

    /// Bytes that have come to this rank by posts.
    pub fn carried_bytes(&self) -> u64 {
        self.ends[self.rank().index()].bytes()
    }

    /// Ends it, when all ranks have come to do so. Collective, as [`ShmTransport::close`].
    pub fn close(self) -> Result<(), TransportError> {
        self.near.close()
    }
}

fn domain_of(domains: &[Vec<u32>], rank: Rank) -> Option<usize> {
    domains.iter().position(|domain| domain.contains(&rank.number()))
}

/// Every rank is in exactly one domain.
fn check_domains(domains: &[Vec<u32>], ranks: usize) -> Result<(), TransportError> {
    let mut all: Vec<u32> = domains.iter().flatten().copied().collect();
    all.sort_unstable();
    if all.iter().copied().eq(0..ranks as u32) && domains.iter().all(|domain| !domain.is_empty()) {
        return Ok(());
    }
    Err(TransportError::Domains { domains: domains.to_vec(), ranks })
}

fn not_threads() -> TransportError {
    let what = "a mesh joins ranks of one process so far: use World::threads".to_string();
    TransportError::Peer { rank: Rank::new(0), what }
}

fn bad_ring(ring: usize) -> Option<TransportError> {
    let expected = format!("1 to {MOST_DESCRIPTORS} descriptors");
    let is_good = (1..=MOST_DESCRIPTORS).contains(&ring);
    (!is_good).then_some(TransportError::BadOption { option: "ring", value: ring, expected })
}

/// Notices name control lines by 20 bits.
fn too_many_lines(sizes: &ShmOptions, ranks: usize) -> Option<TransportError> {
    let layout = Layout::new(sizes.geometry(ranks))?;
    let lines = layout.lines().len() / LINE;
    (lines > MOST_LINES).then(|| TransportError::BadOption {
        option: "max_slots",
        value: sizes.geometry(ranks).max_slots,
        expected: format!("small enough that a rank has at most {MOST_LINES} control lines; it has {lines}"),
    })
}

/// The lines that a rank moves in any other rank's segment.
fn lines_of(layout: &Layout, writer: Rank) -> Vec<Lines> {
    let of = |area: Range<usize>, matched: bool| {
        let part = layout.of_peer(&area, writer.index());
        Lines { numbers: (part.start / LINE) as u64..(part.end / LINE) as u64, matched }
    };
    vec![of(layout.tails(), true), of(layout.heads(), false), of(layout.ready(), true), of(layout.done(), true)]
}

/// The lines of a rank's own segment that its flushes move.
fn sent_lines(layout: &Layout) -> Lines {
    let area = layout.sent();
    Lines { numbers: (area.start / LINE) as u64..(area.end / LINE) as u64, matched: false }
}

/// What each sender may write of this rank's segment.
fn targets(layout: &Layout, segments: &SegmentSet, me: Rank) -> HashMap<(usize, Target), Memory> {
    let segment = segments.segment(me.index());
    let of = |sender: usize| {
        let (staging, lines) = (layout.peer_staging(sender), layout.lines());
        let part = |range: Range<usize>| segment.part(range.start, range.len());
        [((sender, Target::Region(0)), part(staging)), ((sender, Target::Lines), part(lines))]
    };
    (0..segments.world_size()).flat_map(of).collect()
}

impl Transport for MeshTransport {
    fn rank(&self) -> Rank {
        self.near.rank()
    }

    fn world_size(&self) -> usize {
        self.near.world_size()
    }

    fn link(&self, peer: Rank) -> LinkShape {
        let shape = self.near.link(peer);
        match self.is_far(peer) {
            true => LinkShape { kind: LinkKind::Fabric, packet_bytes: 0, ..shape },
            false => shape,
        }
    }

    fn endpoint(&self, peer: Rank) -> Option<PeerEndpoint> {
        let Some(outbox) = &self.outboxes[peer.index()] else { return self.near.endpoint(peer) };
        let (layout, me) = (self.near.layout(), self.rank());
        let mine = self.near.segments().segment(me.index());
        let posted = PostedPeer::of(layout, (me, &mine), peer, self.queue.clone(), outbox.clone());
        Some(PeerEndpoint::posted(layout, (me, &mine), posted))
    }

    #[inline]
    fn door(&self) -> Option<&Door> {
        Some(&self.door)
    }

    fn fail(&self, cause: Cause) {
        self.near.fail(cause);
    }

    fn ticket(&self, pairing: Pairing, peer: Rank) -> Ticket {
        self.near.ticket(pairing, peer)
    }

    fn tell(&self, ticket: &Ticket, card: &[u8]) -> Result<(), TransportError> {
        self.near.tell(ticket, card)
    }

    fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError> {
        self.near.hear(ticket, deadline)
    }

    fn describe(&self, peer: Rank, operation: u16) -> Option<String> {
        self.near.describe(peer, operation)
    }

    fn is_dense(&self) -> bool {
        self.outboxes.iter().any(Option::is_some)
    }

    fn memory(&self, bytes: usize) -> Result<Memory, TransportError> {
        self.near.memory(bytes)
    }

    fn window_memory(&self, call: &WindowCall) -> Result<WindowParts, TransportError> {
        let parts = self.near.window_memory(call)?;
        if self.domains.len() == 1 {
            return Ok(parts);
        }
        let (world, proxy) = (self.near.shared(), self.proxy());
        // A number that no rank has, neither for a window nor for posts to one.
        let (mine, deadline) = (proxy.regions().map_err(TransportError::from), world.deadline());
        let list = |used: &[u16]| used.iter().map(u16::to_string).collect::<Vec<_>>().join(" ");
        let said = Parameters::new("window regions")
            .with("used", mine.as_deref().map(list).unwrap_or_default())
            .object(mine.err())
            .agree(world, &["used"], deadline)?;
        let used = said.iter().filter_map(|values| values.last()).flat_map(|used| used.split(' '));
        let used: Vec<u16> = used.filter_map(|number| number.parse().ok()).collect();
        let number = (1..=u16::MAX).find(|number| !used.contains(number)).ok_or(TransportError::TooManyWindows);
        let far = |(rank, memory): (Rank, &Option<Memory>)| memory.as_ref().filter(|_| self.is_far(rank)).map(Memory::bytes);
        let bytes = Rank::all(self.world_size()).zip(&parts.peers).map(far).collect();
        let own = parts.peers[self.rank().index()].as_ref().expect("a rank reaches itself");
        let region = number.and_then(|number| Ok(PostedRegion::register(proxy, &self.queue, number, own, bytes)?));
        // No rank posts to a peer that does not have the region yet.
        Ok(parts.with_posted(world.all_have("window regions", region, deadline)?))
    }

    fn posts_windows(&self) -> bool {
        true
    }

    fn reads_in_place(&self, peer: Rank, memory: &Memory) -> bool {
        self.is_far(peer) && self.proxy().reads_in_place(memory)
    }

    fn post_source(&self, _: Rank, from: PostFrom<'_>) -> Result<PostedSource, TransportError> {
        let outbox;
        let memory = match from {
            PostFrom::Memory(memory) => memory,
            PostFrom::Outbox(bytes) => {
                outbox = self.memory(bytes.max(1))?.part(0, bytes);
                &outbox
            }
        };
        Ok(PostedSource::register(self.proxy(), memory)?)
    }

    fn close(self: Box<Self>) -> Result<(), TransportError> {
        MeshTransport::close(*self)
    }
}

impl fmt::Debug for MeshTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeshTransport(rank {} of {}, domains {:?})", self.rank(), self.world_size(), self.domains)
    }
}
