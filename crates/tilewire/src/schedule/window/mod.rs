//! Operations on windows for kernels of your own: puts, signals, counters, a flush and a barrier. They are a library
//! over stores, posts and signals.
//!
//! ```text
//!   this rank                                               the peer
//!   require: the bytes lie inside the peer's window
//!   near:  vector stores ─────────────────────────────────▶ window
//!          signal ────────────────────────────────────────▶ SIGNAL[this rank][id] ──▶ wait_signal_from
//!   far:   post of the source, with a notice ══ network ══▶ window, then SIGNAL[this rank][id]
//!          flush, by the own proxy ──▶ COUNTER[peer][id] ──▶ wait_counter: the source may be overwritten
//! ```
//! - **Reachability.** A peer that is known while tracing costs no branch. A peer that is a value of the kernel is
//!   looked up in a table of sizes and reachability, and the role copy branches on it. If all ranks are near and their
//!   windows have one size, there is no table and no branch either.
//! - **A line has one writer.** There is a SIGNAL line for each source rank and id, and a COUNTER line for each peer
//!   and id. So in one launch only one role copy signals a peer under an id, only one waits for an id of a source, and
//!   only one uses an id as a counter for a peer. Two role copies that share an id race, and the checker reports it.
//! - **Counts stay.** A signal raises its line by one, and a wait takes one signal. Both sides keep their counts in
//!   memory of their own, the *tallies*. So a launch may be repeated or replayed, and nothing is reset.
//! - **Nothing of a put that leaves the window is written.** Its requirement comes first, and ends the launch on all
//!   ranks.
//! - **No permission.** A put writes when it runs. The receiver must not use those bytes then: let it signal first.

mod copy;
mod put;
mod signals;

pub use put::{Put, PutTo};
pub(crate) use signals::take_all_signals;

use crate::hook::{Banks, Block, IntoIndex, Known, Lines, Queue, Region, RoleCtx, Slots, Value, View};
use crate::ir::{Access, Purpose, SourceLine};
use crate::tensor::{self, Memory, Tensor};
use crate::transport::layout::{LINE, SIGNALS};
use std::rc::Rc;

/// The ids of a window: the signals that a rank has for every source, and the counters that it has for every peer.
pub const WINDOW_IDS: usize = SIGNALS;

/// The roles whose copies may meet, the copies of each, and the bytes of a word where they do.
const MOST_ROLES: usize = 8;
const MOST_COPIES: usize = 16;
const WORD: usize = 32;

/// The window of one rank, as another rank reaches it.
#[derive(Clone, Debug)]
pub struct WindowAt {
    /// Its size in bytes.
    pub bytes: usize,
    /// How it is reached.
    pub reach: WindowReach,
    /// SIGNALs in this rank's memory: the other rank moves them.
    pub signals: Memory,
    /// This rank's counts of SIGNALs and COUNTERs: a line for every id.
    pub tallies: Memory,
}

/// How a window is reached.
#[derive(Clone, Debug)]
pub enum WindowReach {
    /// By loads and stores.
    Near {
        /// The window.
        window: Memory,
        /// SIGNALs at the other rank, which this rank moves.
        signals: Memory,
    },
    /// By posts.
    Far {
        /// The number of the first SIGNAL line at the other rank that this rank moves.
        signal: u64,
        /// COUNTERs for the other rank, in this rank's memory.
        counters: Memory,
        /// The number of their first line.
        counter: u64,
    },
}

/// The windows of all ranks, as one rank reaches them: what [`WindowOps`] binds.
#[derive(Clone, Debug)]
pub struct WindowWorld {
    /// This rank.
    pub rank: usize,
    /// By rank.
    pub windows: Vec<WindowAt>,
    /// The queue that posts to far windows.
    pub queue: Option<tensor::Queue>,
    /// The numbers of [`WindowWorld::table`], where kernels read them.
    pub table: Tensor<i64>,
    /// Blocks in which the copies of a role may meet.
    pub blocks: usize,
    /// Staging of `put_block` to far peers: `piece` bytes for each far rank and id. `None` without far peers.
    pub outbox: Option<Memory>,
    /// See `outbox`.
    pub piece: usize,
}

/// The numbers of a rank in the table.
const COLUMNS: usize = 5;
/// The columns: bytes of the window; the group of near windows, or -1 for a far one; the bank in that group; the bank
/// among all near ranks, or among all far ones; the number of the first COUNTER line.
const SIZE: usize = 0;
const GROUP: usize = 1;
const BANK: usize = 2;
const AMONG: usize = 3;
const COUNTER: usize = 4;

/// Where a rank's window is found among the parameters of a kernel.
#[derive(Clone, Copy)]
struct Found {
    size: i64,
    group: Option<usize>,
    bank: i64,
    among: i64,
    counter: i64,
}

impl WindowWorld {
    /// The bytes of the memory where the copies of a role meet.
    pub fn meeting_bytes(&self) -> usize {
        2 * self.blocks * MOST_ROLES * MOST_COPIES * WORD
    }

    /// The numbers that kernels look up for a peer which is not known while tracing.
    pub fn table(windows: &[WindowAt]) -> Vec<i64> {
        let row = |found: Found| {
            let group = found.group.map_or(-1, |group| group as i64);
            [found.size, group, found.bank, found.among, found.counter]
        };
        find_all(windows).into_iter().flat_map(row).collect()
    }
}

/// Finds all ranks. Near windows of one size are the banks of one parameter.
fn find_all(windows: &[WindowAt]) -> Vec<Found> {
    let sizes = sizes(windows);
    let is_near = |at: &&WindowAt| matches!(at.reach, WindowReach::Near { .. });
    let find = |(rank, at): (usize, &WindowAt)| {
        let before = &windows[..rank];
        let near = before.iter().filter(is_near).count();
        let same = before.iter().filter(is_near).filter(|other| other.bytes == at.bytes).count();
        let size = at.bytes as i64;
        match at.reach {
            WindowReach::Near { .. } => {
                let group = sizes.iter().position(|size| *size == at.bytes);
                Found { size, group, bank: same as i64, among: near as i64, counter: 0 }
            }
            WindowReach::Far { counter, .. } => {
                Found { size, group: None, bank: 0, among: (rank - near) as i64, counter: counter as i64 }
            }
        }
    };
    windows.iter().enumerate().map(find).collect()
}

/// The sizes of near windows, each once.
fn sizes(windows: &[WindowAt]) -> Vec<usize> {
    let mut sizes = Vec::new();
    for at in windows.iter().filter(|at| matches!(at.reach, WindowReach::Near { .. })) {
        if !sizes.contains(&at.bytes) {
            sizes.push(at.bytes);
        }
    }
    sizes
}

/// The windows of all ranks in a kernel being traced.
///
/// [`link::Puts`](crate::link::Puts) makes it, and has an example.
#[derive(Clone)]
pub struct WindowOps<'t> {
    bound: Rc<Bound<'t>>,
}

/// What the operations use.
struct Bound<'t> {
    rank: usize,
    lines: Lines<'t>,
    found: Vec<Found>,
    /// Near windows, by group, and their common size.
    near: Vec<Region<'t>>,
    /// SIGNALs at near ranks.
    there: Option<Slots<'t>>,
    far: Option<Far<'t>>,
    table: Option<View<'t, i64>>,
    /// SIGNALs here, by source.
    signals: Slots<'t>,
    /// By rank.
    tallies: Banks<'t, u64>,
    own: Region<'t>,
    meeting: Slots<'t>,
    met: View<'t, u64>,
    blocks: usize,
}

/// What posts need.
#[derive(Clone, Copy)]
struct Far<'t> {
    queue: Queue<'t>,
    /// The number of the first SIGNAL line of this rank at every far rank.
    signal: i64,
    /// COUNTERs, by far rank.
    counters: Slots<'t>,
    outbox: Region<'t>,
    piece: i64,
}

/// Memory that puts read, in a kernel being traced.
#[derive(Clone, Copy)]
pub struct Source<'t> {
    bytes: Region<'t>,
    is_registered: bool,
}

impl<'t> Source<'t> {
    /// Binds memory of this rank. `is_registered` says that posts may read it where it is.
    pub fn bind(k: &Block<'t>, memory: &Memory, is_registered: bool) -> Source<'t> {
        let memory = memory.clone().for_purpose(Purpose::Tensor);
        Source { bytes: k.region("source of puts", &[memory]), is_registered }
    }
}

impl<'t> WindowOps<'t> {
    /// Binds the windows of all ranks to a kernel. `meeting` are [`WindowWorld::meeting_bytes`] bytes of this rank,
    /// zeros at first, for this kernel alone.
    pub fn bind(k: &Block<'t>, world: &WindowWorld, meeting: &Memory) -> WindowOps<'t> {
        let WindowWorld { rank, windows, queue, table, blocks, outbox, piece } = world;
        let found = find_all(windows);
        let near = |group: usize| {
            let banks = windows.iter().zip(&found).filter(|(_, found)| found.group == Some(group));
            let memory = |(at, _): (&WindowAt, &Found)| match &at.reach {
                WindowReach::Near { window, .. } => Some(window.clone()),
                WindowReach::Far { .. } => None,
            };
            k.region("windows", &banks.filter_map(memory).collect::<Vec<_>>())
        };
        let slots = |name: &str, banks: Vec<Memory>| (!banks.is_empty()).then(|| k.slots(name, &banks, LINE as u32));
        let there = windows.iter().filter_map(|at| match &at.reach {
            WindowReach::Near { signals, .. } => Some(signals.clone()),
            WindowReach::Far { .. } => None,
        });
        let counters = windows.iter().filter_map(|at| match &at.reach {
            WindowReach::Far { counters, .. } => Some(counters.clone()),
            WindowReach::Near { .. } => None,
        });
        let signal = windows.iter().find_map(|at| match at.reach {
            WindowReach::Far { signal, .. } => Some(signal as i64),
            WindowReach::Near { .. } => None,
        });
        let counters = slots("counters", counters.collect());
        let far = signal.zip(counters).zip(queue.clone().zip(outbox.as_ref()));
        let far = far.map(|((signal, counters), (queue, outbox))| Far {
            queue: k.queue("posts", queue),
            signal,
            counters,
            outbox: k.region("outbox of puts", std::slice::from_ref(outbox)),
            piece: *piece as i64,
        });
        let all = |of: fn(&WindowAt) -> &Memory| windows.iter().map(|at| of(at).clone()).collect::<Vec<_>>();
        let own = match &windows[*rank].reach {
            WindowReach::Near { window, .. } => window,
            WindowReach::Far { .. } => panic!("rank {rank} reaches its own window by loads and stores"),
        };
        let (words, counts) = (meeting.part(0, meeting.bytes() / 2), meeting.bytes() / 2);
        let counts = meeting.part(counts, meeting.bytes() - counts);
        let bound = Bound {
            rank: *rank,
            lines: k.lines(),
            near: (0..sizes(windows).len()).map(near).collect(),
            there: slots("signals there", there.collect()),
            table: (!is_uniform(&found)).then(|| k.input(table)),
            found,
            far,
            signals: k.slots("signals", &all(|at| &at.signals), LINE as u32),
            tallies: k.buffer("tallies", &all(|at| &at.tallies), Access::InOut),
            own: k.region("own window", std::slice::from_ref(own)),
            meeting: k.slots("meeting", &[words], WORD as u32),
            met: k.buffer("met", &[counts], Access::InOut).bank(0),
            blocks: *blocks,
        };
        WindowOps { bound: Rc::new(bound) }
    }

    /// Begins a put of bytes into the window of a peer, from byte `offset` of it on. The peer may be a value of the
    /// kernel; it and the offset are uniform.
    #[track_caller]
    pub fn to(&self, peer: impl IntoIndex<'t>, offset: impl IntoIndex<'t>) -> PutTo<'t> {
        let (lines, at) = (&self.bound.lines, SourceLine::caller());
        let peer = lines.known("the peer of a put", peer, &at);
        PutTo::new(self.clone(), peer, lines.known("the offset of a put", offset, &at))
    }

    /// This rank's window. Other ranks write it while the kernel runs.
    pub fn own(&self) -> Region<'t> {
        self.bound.own
    }
}

/// True if all ranks are near and have windows of one size: no table is needed.
fn is_uniform(found: &[Found]) -> bool {
    found.iter().all(|found| found.group == Some(0))
}

/// A peer's window, as the code of one branch reaches it.
#[derive(Clone, Copy)]
enum There<'t> {
    Near { window: Region<'t>, bank: Known<'t>, signals: Slots<'t>, among: Known<'t> },
    Far { far: Far<'t>, among: Known<'t>, counter: Known<'t> },
}

impl<'t> Bound<'t> {
    /// Runs `body` for the peer's reachability: once if it is known while tracing, otherwise in branches.
    fn reach(&self, r: &RoleCtx<'t>, peer: Known<'t>, body: &dyn Fn(There<'t>)) {
        let rank = match peer {
            Known::Number(peer) => return body(self.there(self.found[peer as usize])),
            Known::Value(rank) => rank,
        };
        let Some(table) = self.table else {
            let (window, signals) = (self.near[0], self.signals_there());
            return body(There::Near { window, bank: peer, signals, among: peer });
        };
        let number = |column: usize| Known::Value(table.load(rank * COLUMNS as i64 + column as i64));
        let Known::Value(group) = number(GROUP) else { unreachable!("it was loaded") };
        let far = || {
            if let Some(far) = self.far {
                body(There::Far { far, among: number(AMONG), counter: number(COUNTER) });
            }
        };
        self.branches(
            r,
            group,
            0,
            &|k| {
                let (bank, signals, among) = (number(BANK), self.signals_there(), number(AMONG));
                body(There::Near { window: self.near[k], bank, signals, among });
            },
            &far,
        );
    }

    /// A chain of branches over the groups of near windows from `first` on, and over far ones.
    fn branches(&self, r: &RoleCtx<'t>, group: Value<'t, i64>, first: usize, near: &dyn Fn(usize), far: &dyn Fn()) {
        match (first + 1 == self.near.len(), self.far.is_some()) {
            (true, false) => near(first),
            (true, true) => r.if_else(group.ge(0), || near(first), far),
            (false, _) => {
                r.if_else(group.eq(first as i64), || near(first), || self.branches(r, group, first + 1, near, far));
            }
        }
    }

    fn there(&self, found: Found) -> There<'t> {
        let (bank, among) = (Known::Number(found.bank), Known::Number(found.among));
        match (found.group, self.far) {
            (Some(group), _) => There::Near { window: self.near[group], bank, signals: self.signals_there(), among },
            (None, Some(far)) => There::Far { far, among, counter: Known::Number(found.counter) },
            (None, None) => panic!("posts need a queue and an outbox"),
        }
    }

    fn signals_there(&self) -> Slots<'t> {
        self.there.expect("a rank reaches itself")
    }

    /// Checks that a peer is a rank. One that is a value is required to be.
    ///
    /// # Panics
    /// If it is known to be none.
    fn check_rank(&self, r: &RoleCtx<'t>, peer: Known<'t>) {
        let ranks = self.found.len();
        match peer {
            Known::Number(peer) => assert!((0..ranks as i64).contains(&peer), "rank {peer} of {ranks}"),
            Known::Value(peer) => r.require(peer.cast::<u64>().lt(ranks as u64)),
        }
    }

    /// The size of a peer's window.
    fn size(&self, peer: Known<'t>) -> Known<'t> {
        match (peer, self.table) {
            (Known::Number(peer), _) => Known::Number(self.found[peer as usize].size),
            (Known::Value(_), None) => Known::Number(self.found[0].size),
            (Known::Value(peer), Some(table)) => Known::Value(table.load(peer * COLUMNS as i64 + SIZE as i64)),
        }
    }
}

/// An index as a value.
fn value<'t>(r: &RoleCtx<'t>, x: Known<'t>) -> Value<'t, i64> {
    match x {
        Known::Number(number) => r.constant(number),
        Known::Value(value) => value,
    }
}
