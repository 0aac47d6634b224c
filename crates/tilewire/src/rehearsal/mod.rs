//! Collectives without a wire: all ranks on one thread, so that the checker can have every rank's kernel.
//!
//! - **In**: the constants of a transport. **Out**: a [`RehearsalRank`] for each rank, which collectives and schedules
//!   take as their transport. The traced kernels share memory as on a real transport. Nothing is ever launched.
//! - **Invariants**: the memory between ranks is laid out by [`Layout`], as in every transport of this crate.
//! - **Must not know**: engines, and what the checker does with it.
//!
//! ```
//! use tilewire::rehearsal::Rehearsal;
//! use tilewire::{Rank, Tensor, sendrecv};
//!
//! // Once per rank, as in a program: new tensors in every launch would hide what one launch does to the next.
//! let tensors = || -> Vec<Tensor<f32>> { (0..2).map(|_| Tensor::zeros(102)).collect() };
//! let (x, y) = (tensors(), tensors());
//! let report = Rehearsal::small(2, 1).check(3, |link, launch| {
//!     let (rank, len) = (link.number() as usize, 100 + launch); // another geometry each time
//!     let (x, y) = (x[rank].slice(0..len), y[rank].slice(0..len));
//!     let peer = Rank::new(1 - link.number());
//!     sendrecv(link, &y, &x, peer, peer).produce(|c| c.input.load(c.pos()) * 0.5).trace()
//! })?;
//! assert!(report.is_clean() && report.is_decided(), "{report}");
//! # Ok::<(), tilewire::RunError>(())
//! ```
#![forbid(unsafe_code)]

use crate::check::{Plan, Report, RouteSlots, Settings};
use crate::hook::Traced;
use crate::ir::scalar::Element;
use crate::link::{LineSet, PostFrom, Transport, Window};
use crate::tensor::{Memory, Queue, Tensor};
use crate::transport::layout::{Geometry, LINE, Layout, Side, StartWord};
use crate::transport::proxy::{PostedRegion, PostedSource};
use crate::transport::{LinkKind, LinkShape, Pairing, PeerEndpoint, PostedPeer, Rank, Ticket, TransportError};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

/// The windows, and the outboxes of `direct` to far peers. They stay while launches are traced, so that one launch
/// finds what another left.
#[derive(Debug, Default)]
struct Direct {
    /// The memories of all ranks, by window; the region of the first is number 1.
    windows: Vec<Vec<Memory>>,
    /// By rank and peer.
    outboxes: HashMap<(Rank, Rank), Memory>,
}

/// The memory between the ranks of a world, on one thread.
#[derive(Clone, Debug)]
pub struct Rehearsal {
    layout: Layout,
    segments: Rc<[Tensor<u64>]>,
    /// By rank: the number of its domain. Ranks of different domains reach each other by posts.
    domains: Rc<[usize]>,
    /// By rank: its ring of descriptors, and the outboxes for all ranks.
    posts: Rc<[(Memory, Vec<Memory>)]>,
    /// What `direct` reaches by posts.
    direct: Rc<RefCell<Direct>>,
    copies: u32,
    settings: Settings,
}

impl Rehearsal {
    /// A world with these constants.
    ///
    /// # Panics
    /// If its memory does not fit the address space.
    pub fn new(geometry: Geometry) -> Rehearsal {
        let layout = Layout::new(geometry).expect("the layout fits the address space");
        let segments = (0..geometry.world_size).map(|_| Tensor::zeros(layout.bytes().div_ceil(8))).collect();
        let domains = vec![0; geometry.world_size].into();
        let (posts, direct) = (Rc::new([]), Rc::default());
        Rehearsal { layout, segments, domains, posts, direct, copies: 1, settings: Settings::default() }
    }

    /// Makes ranks of different domains reach each other by posts, as in a
    /// [`MeshTransport`](crate::link::MeshTransport).
    ///
    /// ```
    /// use tilewire::rehearsal::Rehearsal;
    /// use tilewire::{Tensor, all_gather};
    /// let tensors = |len: usize| -> Vec<Tensor<f32>> { (0..3).map(|_| Tensor::zeros(len)).collect() };
    /// let (x, y) = (tensors(10), tensors(30));
    /// let report = Rehearsal::small(3, 1).mesh(&[&[0, 2], &[1]]).check(2, |link, _| {
    ///     let rank = link.number() as usize;
    ///     all_gather(link, &y[rank], &x[rank]).trace()
    /// })?;
    /// assert!(report.is_clean() && report.is_decided(), "{report}");
    /// # Ok::<(), tilewire::RunError>(())
    /// ```
    ///
    /// # Panics
    /// If a rank is not in exactly one domain.
    pub fn mesh(self, domains: &[&[usize]]) -> Rehearsal {
        let ranks = self.segments.len();
        let of = |rank: usize| {
            let mut mine = (0..domains.len()).filter(|&domain| domains[domain].contains(&rank));
            let (first, second) = (mine.next(), mine.next());
            assert!(second.is_none(), "rank {rank} is in several domains");
            first.unwrap_or_else(|| panic!("rank {rank} is in no domain"))
        };
        let outbox = || Memory::zeroed(self.layout.geometry().per_peer_bytes);
        let posts = (0..ranks).map(|_| (Memory::zeroed(64), (0..ranks).map(|_| outbox()).collect())).collect();
        Rehearsal { domains: (0..ranks).map(of).collect(), posts, direct: Rc::default(), ..self }
    }

    /// True if two ranks reach each other by posts.
    fn is_far(&self, a: Rank, b: Rank) -> bool {
        self.domains[a.index()] != self.domains[b.index()]
    }

    /// The routes of all posts.
    fn add_routes(&self, plan: &mut Plan) {
        let ranks = || Rank::all(self.segments.len());
        for rank in ranks().filter(|&rank| ranks().any(|peer| self.is_far(rank, peer))) {
            // A rank posts nothing to itself. Its flushes of posts to others move its own lines.
            let segment = self.segments[rank.index()].memory();
            let (nothing, lines) = (segment.part(0, 0), segment.part(0, self.layout.lines().len()));
            let ring = Queue::from(&self.posts[rank.index()].0);
            for number in 0..=self.direct.borrow().windows.len() as u16 {
                let queue = ring.clone().for_region(number);
                plan.route(queue, rank.number(), &nothing, &lines, LINE as u32).moves_only(RouteSlots::default());
            }
        }
        for (from, to) in ranks().flat_map(|from| ranks().map(move |to| (from, to))) {
            if self.is_far(from, to) {
                let (segment, staging) = (self.segments[to.index()].memory(), self.layout.peer_staging(from.index()));
                let region = segment.part(staging.start, staging.len());
                let lines = segment.part(0, self.layout.lines().len());
                let ring = Queue::from(&self.posts[from.index()].0);
                // The proxies of a mesh move exactly these lines.
                let slots = RouteSlots {
                    moved: self.layout.moved_lines(from.index()).map(|(numbers, _)| numbers).into(),
                    flushed: self.layout.flushed_lines(to.index()).into(),
                };
                plan.route(&ring, to.number(), &region, &lines, LINE as u32).moves_only(slots.clone());
                for (number, window) in (1..).zip(&self.direct.borrow().windows) {
                    let queue = ring.clone().for_region(number);
                    plan.route(&queue, to.number(), &window[to.index()], &lines, LINE as u32).moves_only(slots.clone());
                }
            }
        }
    }

    /// Makes this many copies of a role take slots alternately, as transports between GPUs do.
    ///
    /// # Panics
    /// If it is 0, or the geometry has counters for fewer copies.
    pub fn with_copies(self, copies: usize) -> Rehearsal {
        let most = self.layout.geometry().max_copies;
        assert!((1..=most).contains(&copies), "{copies} copies: the geometry has counters for 1 to {most}");
        Rehearsal { copies: copies as u32, ..self }
    }

    /// Uses these settings in [`Rehearsal::check`] instead of the default ones.
    pub fn settings(self, settings: Settings) -> Rehearsal {
        Rehearsal { settings, ..self }
    }

    /// A world of small regions, in which slots are reused often: 2 KiB of staging and 4 KiB of packets for each peer
    /// and block, and at most eight slots. From 17 ranks on, staging has 128 bytes for each rank.
    pub fn small(ranks: usize, blocks: usize) -> Rehearsal {
        Rehearsal::new(Geometry {
            world_size: ranks,
            // A ring of many ranks has two slots of 64 bytes for each rank.
            per_peer_bytes: 2048.max(128 * ranks) * blocks,
            max_blocks_per_peer: blocks,
            max_slots: 8,
            max_copies: 4,
            packet_bytes: 4096 * blocks,
            window_sets: 2,
        })
    }

    /// A plan of launches. `trace` returns the kernel of a rank in a launch: a collective's, or your own.
    pub fn plan<E>(
        &self,
        launches: usize,
        trace: impl Fn(&RehearsalRank, usize) -> Result<Traced, E>,
    ) -> Result<Plan, E> {
        let (links, mut plan) = (self.ranks(), Plan::new(self.segments.len() as u32));
        for launch in 0..launches {
            let traced = links.iter().map(|link| trace(link, launch)).collect::<Result<Vec<_>, _>>()?;
            let all: Vec<_> = traced.iter().map(|traced| (&traced.kernel, &traced.args[..])).collect();
            plan.launch(&all);
        }
        self.add_routes(&mut plan);
        Ok(plan)
    }

    /// Checks such a plan as [`Plan::verify`] does, with [`Rehearsal::settings`]: one line in a user's test. To specify
    /// the tensors' contents before and after each launch, make a [`Rehearsal::plan`] and see [`Plan::expect`].
    ///
    /// Make tensors once for each rank, outside of `trace`. Tensors made in `trace` are new in every launch, so nothing
    /// can overwrite data that an earlier launch still reads, and such bugs stay hidden.
    pub fn check<E>(
        &self,
        launches: usize,
        trace: impl Fn(&RehearsalRank, usize) -> Result<Traced, E>,
    ) -> Result<Report, E> {
        Ok(self.plan(launches, trace)?.verify(&self.settings))
    }

    /// Makes the next packet message between any two ranks number `number`, a multiple of 8: flags repeat after 2¹⁶.
    pub fn at_message(&self, number: u64) {
        let Geometry { world_size, max_blocks_per_peer, .. } = *self.layout.geometry();
        for segment in self.segments.iter() {
            let set = |byte: usize| segment.set(byte / 8, number);
            for (peer, block) in (0..world_size).flat_map(|p| (0..max_blocks_per_peer).map(move |b| (p, b))) {
                set(self.layout.packet_heads().start + self.layout.block_index(peer, block) * LINE);
                for side in [Side::Send, Side::Receive] {
                    let line = self.layout.starts().start + self.layout.start_index(peer, block, side, 0) * LINE;
                    set(line + StartWord::Packet.index() * 8);
                }
            }
        }
    }

    /// The links of all ranks.
    pub fn ranks(&self) -> Vec<RehearsalRank> {
        let rank = |number: usize| RehearsalRank { world: self.clone(), rank: Rank::new(number as u32) };
        (0..self.segments.len()).map(rank).collect()
    }
}

/// One rank's link to the others.
#[derive(Clone, Debug)]
pub struct RehearsalRank {
    world: Rehearsal,
    rank: Rank,
}

impl RehearsalRank {
    /// Number of this rank.
    pub fn number(&self) -> u32 {
        self.rank.number()
    }

    /// This rank's window over tensors of all ranks, in rank order, like that of [`Window::allocate`] on a transport.
    /// With more windows than the geometry has sets of control lines, the sets are given again from the first one on.
    ///
    /// ```
    /// use tilewire::rehearsal::Rehearsal;
    /// use tilewire::{Tensor, all_gather};
    /// let windows: Vec<Tensor<f32>> = (0..2).map(|_| Tensor::zeros(8)).collect();
    /// let report = Rehearsal::small(2, 1).check(2, |link, _| {
    ///     let out = &windows[link.number() as usize];
    ///     all_gather(link, out, &Tensor::<f32>::zeros(4)).window(&link.window(&windows)).trace()
    /// })?;
    /// assert!(report.is_clean(), "{report}");
    /// # Ok::<(), tilewire::RunError>(())
    /// ```
    ///
    /// # Panics
    /// If there is not one tensor for each rank.
    pub fn window<T: Element>(&self, tensors: &[Tensor<T>]) -> Window<T> {
        assert_eq!(tensors.len(), self.world_size(), "a window has one tensor for each rank");
        let is_far = |rank: Rank| self.world.is_far(self.rank, rank);
        let ranks = || Rank::all(self.world_size());
        let memories: Vec<Memory> = tensors.iter().map(|tensor| tensor.memory().clone()).collect();
        let windows = &mut self.world.direct.borrow_mut().windows;
        let same = |window: &Vec<Memory>| window.iter().zip(&memories).all(|(a, b)| a.is(b));
        let place = windows.iter().position(same).unwrap_or_else(|| {
            windows.push(memories.clone());
            windows.len() - 1
        });
        let set = place.checked_rem(self.world.layout.geometry().window_sets).map_or(0, |nth| nth + 1);
        let posted = ranks().any(is_far).then(|| {
            let queue = Queue::from(&self.world.posts[self.rank.index()].0).for_region(place as u16 + 1);
            let bytes = ranks().zip(&memories).map(|(rank, memory)| is_far(rank).then(|| memory.bytes()));
            PostedRegion::unregistered(queue, bytes.collect())
        });
        Window::of_tensors(tensors, self.rank, (posted, LineSet::numbered(set)))
    }

    /// The next and the previous rank in the ring.
    pub fn neighbours(&self) -> (Rank, Rank) {
        let ranks = self.world_size();
        (self.rank.after(1, ranks), self.rank.after(ranks - 1, ranks))
    }
}

impl Transport for RehearsalRank {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world.segments.len()
    }

    fn link(&self, peer: Rank) -> LinkShape {
        let shape = |kind| LinkShape::of(self.world.layout.geometry(), kind, self.world.copies);
        match peer {
            peer if peer == self.rank => shape(LinkKind::SameDevice),
            peer if self.world.is_far(self.rank, peer) => LinkShape { packet_bytes: 0, ..shape(LinkKind::Fabric) },
            _ => shape(LinkKind::Shm),
        }
    }

    fn endpoint(&self, peer: Rank) -> Option<PeerEndpoint> {
        self.endpoint_of(peer, &LineSet::default())
    }

    fn endpoint_of(&self, peer: Rank, lines: &LineSet) -> Option<PeerEndpoint> {
        let (of, set) = (|rank: Rank| self.world.segments[rank.index()].memory(), lines.number());
        if set > self.world.layout.geometry().window_sets {
            return None;
        }
        if self.world.is_far(self.rank, peer) {
            let (ring, outboxes) = &self.world.posts[self.rank.index()];
            let (layout, mine) = (&self.world.layout, (self.rank, of(self.rank)));
            let outbox = outboxes[peer.index()].clone();
            let posted = PostedPeer::of(layout, set, mine, peer, (Queue::from(ring), outbox));
            return Some(PeerEndpoint::posted(layout, set, mine, posted));
        }
        Some(PeerEndpoint::between_in(&self.world.layout, set, (self.rank, of(self.rank)), (peer, of(peer))))
    }

    fn domain(&self, rank: Rank) -> Option<usize> {
        self.world.domains.get(rank.index()).copied()
    }

    fn is_dense(&self) -> bool {
        self.world.domains.iter().any(|domain| *domain != self.world.domains[0])
    }

    fn posts_windows(&self) -> bool {
        true
    }

    fn reads_in_place(&self, peer: Rank, _: &Memory) -> bool {
        self.world.is_far(self.rank, peer)
    }

    /// The outbox for a peer is the same in all launches, as far as it reaches: what a launch does to it, another sees.
    fn post_source(&self, peer: Rank, from: PostFrom<'_>) -> Result<PostedSource, TransportError> {
        let memory = match from {
            PostFrom::Memory(memory) => memory.clone(),
            PostFrom::Outbox(bytes) => {
                let outboxes = &mut self.world.direct.borrow_mut().outboxes;
                let outbox = outboxes.entry((self.rank, peer)).or_insert_with(|| Memory::zeroed(bytes));
                if outbox.bytes() < bytes {
                    *outbox = Memory::zeroed(bytes);
                }
                outbox.part(0, bytes)
            }
        };
        Ok(PostedSource::unregistered(memory))
    }

    /// Nobody listens: a rehearsal is traced, never launched.
    fn ticket(&self, pairing: Pairing, peer: Rank) -> Ticket {
        Ticket { rank: self.rank, peer, pairing, number: 0 }
    }

    fn tell(&self, _: &Ticket, _: &[u8]) -> Result<(), TransportError> {
        Ok(())
    }

    fn hear(&self, ticket: &Ticket, _: Option<Duration>) -> Result<Vec<u8>, TransportError> {
        unreachable!("{ticket}: a rehearsal is traced, never launched")
    }
}
