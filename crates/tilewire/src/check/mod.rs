//! The checker, and the reference evaluator that it runs: the meaning of kernels, and whether they can go wrong.
//!
//! - **In**: verified kernels of one or more ranks and the arguments of their launches. Ranks share bytes by naming the
//!   same addresses ([`Plan`]) or the same [`MemoryId`] ([`Binding`]).
//! - **Out**: a [`Report`]: clean, or faults with the source lines of all parties involved, *decided* or *sampled*. The
//!   evaluator alone ([`run`], [`evaluate`]) returns the bytes afterwards, or an [`EvalError`].
//! - **How**: every (rank, block, role, copy) is an [`Instance`]: a state machine that does one op per
//!   [`step`](Instance::step) and returns [`Step::Blocked`] where it would wait, so that a scheduler decides every
//!   interleaving. An [`Observer`] sees each access, signal and wait: the checker is an observer with vector clocks.
//! - **Invariants**: a blocked step changes nothing that another instance can see and can be repeated. A run depends on
//!   nothing but its arguments (schedules and element orders come from printed seeds).
//! - **Must not know**: devices, engines, transports. They are judged against it, so it shares no code with them but
//!   [`crate::ir::scalar`].
//!
//! # The memory model
//!
//! Parties are role copies, the host thread of each rank, its copy engines' streams, and everything that works
//! asynchronously for a role copy: each bulk copy, the bytes of each post, and the notices for each slot of a peer. For
//! a party an access is *visible* or not, and *over* or not; visible implies over. Two accesses to one byte, one of
//! them a write, **race** unless the earlier is visible (over, if it is a read) to the party of the later.
//!
//! - **Program order** orders all accesses of one party, except as below.
//! - **`each`** orders the ops of one element, and nothing between two elements. It begins after the uniform ops before
//!   it and ends with a barrier of the role copy.
//! - **A role barrier** orders the lanes of one role copy. There is no wider barrier.
//! - **`signal` → `wait`**: release and acquire at system scope, cumulative. Everything visible to the signaller
//!   becomes visible to the waiter, and everything over becomes over.
//! - **`signal_credit` → `wait`**: everything over for the signaller becomes over for the waiter. The waiter may
//!   overwrite what was read, and sees nothing new.
//! - **A launch**: the host's earlier effects are visible to the role copies. When all are done, their effects are
//!   visible to the host. Nothing orders the launches of two ranks but their signals.
//! - **`bulk_copy`** begins after the last `proxy_fence` and the copies waited for, not after plain accesses since. It
//!   reads, then writes. It is over for its role copy (`Read`) or visible (`Complete`) only after a `bulk_wait` that
//!   covers it, or the end of the role.
//! - **A packet**: its bytes are visible to the party that got its flag; nothing else is. A packet may be overwritten
//!   only when its reads are over.
//! - **The bytes of a post** are read, and then written, at any time after the post, by a party that begins with what
//!   is visible to the poster. Two posts are not ordered, even to one place, unless the first is over for the poster,
//!   its write included. Then the first comes before the second, also if another role copy of that rank posted the
//!   first, to the same peer over the same ring.
//! - **A notice of a post** sets its slot once what it covers has arrived, and once the poster's earlier notices for
//!   that slot have come. Notices for different slots are not ordered. It covers, of the poster's posts to that peer
//!   over that ring: its own parts if it has bytes (a *delivery*), all earlier ones if it has none (a *signal*), none
//!   if it is a credit. For the waiter the covered bytes are visible, and everything that was visible to the poster
//!   when it posted is too; everything over is over. The poster's other posts are not, unless they were over for the
//!   poster and went to that peer. A post of another role copy is not, even if it was over for the poster: only the
//!   waiter for its own notice sees it. (A rank with one proxy shows it too. A kernel must not build on that.) A credit
//!   shows nothing: what was over for the poster is over.
//! - **A flush** is a notice for a slot of the poster's own. It comes once the sources of all the poster's earlier
//!   posts to that peer over that ring have been read, and once the poster's earlier notices for that slot have come.
//!   For the waiter those reads are over, and what was over for the poster. It shows nothing, and nothing is known of
//!   the writes: they may come later. (The proxy waits for more, until the bytes are with the peer. A kernel must not
//!   build on that.)
//! - **Atomics**: two of them race as plain accesses do, unless they touch the same bytes and the scope of each
//!   contains the other's party (a rank is a device). One that acquires sees what every earlier releasing one
//!   published. On the bytes of a slot an atomic is a signal that adds.
//! - **A copy engine**: a stream is its own party, in the order of its operations, from the launch to its end. A
//!   written value publishes everything before it. A wait for a value sees what the write it finds there published.
//!   Values go back to 0, so such plans are outside the fragment below.
//!
//! A counter takes the values that signals give it, so a wait is *for* the **first** signal that suffices, and what was
//! over for that signaller is over for the waiter. In a run it may find a later signal, which need not show as much. A
//! later signal of data shows what an earlier one showed if its signaller has *seen* that; it is not enough that the
//! earlier one is over for it. A later credit does if it is of the same party (on a GPU a relaxed store continues the
//! same thread's earlier release to the same place). A role copy is the same party in a later launch, although another
//! thread may run it there, because the end of a launch flushes. The notices of one poster for one slot are one party
//! too. So a wait learns the **least** that any signal shows that it may find (`model/finds.rs`). Non-temporal stores
//! need no rule: the engine ends them with a fence before it signals.
//!
//! **Promises of parameters.** Some bytes must not be written, during a launch, by a kernel of another rank or by
//! anything that works for one, even if signals order the write. They are the bytes that the launch binds as an `In`,
//! and those that its kernel reaches through an `Out` (`model/promises.rs`): engines keep what they have read. Copy
//! engines are held to this only for bytes that the kernel touches.
//!
//! Between launches the hosts act like a user: they read every output, rewrite every input, and do both for tensors
//! that a kernel reads and writes. Bytes between ranks begin undefined; counters and user tensors do not. An outbox is
//! bytes between ranks, too: no host touches it, so a post that reads more than a kernel has put or copied there reads
//! bytes that nobody wrote. In worlds of up to four ranks ([`Settings::one_copy_ranks`]) every role runs with all its
//! copies and with one, as the CPU engine runs it.
//!
//! A notice may move the slots that the proxies of a transport move for its poster and peer, and no others
//! ([`Plan::moves_only`]). The real proxy stops at such a notice, so the model ends the run there with an error.
//!
//! # What one run decides
//!
//! A program is in the **monotone fragment** if
//!
//! - the signals to each slot are ordered (visibly, or through a wait that found the earlier one there), their values
//!   only grow, the first is no less than the slot's initial value (a wait that this value satisfies has found no
//!   signal), and nothing but signals changes a slot: no atomic, no plain write, no copy engine;
//! - no op gives a counter's or another party's progress to the program: no `test`, no atomic whose result is used;
//! - no atomic acquires: what it would see depends on which came before;
//! - no signal shows less than an earlier one in its slot and less than a wait for that one has learnt, unless that
//!   wait is over for its signaller or came after it in the run (the wait could find the later signal instead).
//!
//! Ordered signals and growing values are checked in the run (a violation is a fault). The rest is checked on the ops
//! that ran, and a program with one of them is *sampled*, with the op and its line as the reason.
//!
//! *Claim.* For such a program, launched as planned, one run decides for all schedules whether one of them has a race
//! or a deadlock. (The argument is that of Thornley and Chandy for monotonic counters, 2000, with clocks in place of
//! locks.)
//!
//! 1. *Steps commute.* Let no access race. Then two steps that parties p ≠ q can take in one state can be taken in
//!    either order with the same result. Plain accesses do not meet. Two atomics whose results nobody uses add up to
//!    the same. A signal and a wait on one slot commute if the wait can already continue, and a growing counter never
//!    takes that away again. Two signals to one slot are ordered, so they are never both next. A packet is overwritten
//!    only when its reads are over, or that is a race. So whatever can run stays able to run, and all maximal runs have
//!    the same steps with the same values (Newman's lemma): either all complete or all end in the same deadlock.
//! 2. *Minimal happens-before.* Let H be the order that the clocks compute: program order, launches, first sufficient
//!    signal → wait; the visible accesses are a part of it. By 1 its steps and edges are the same in every run. Every
//!    linear extension of a down-closed part of H is a run: each wait in it has a sufficient signal before it. In each
//!    run a wait comes after its first sufficient signal, so accesses that are over by H are over. The wait finds that
//!    signal or a later one that H does not order after the wait. What those before it in our run show was intersected,
//!    and those after it in our run show no less than that (the last premise). So accesses that are visible by H are
//!    visible in every run.
//! 3. *Races.* If H leaves two conflicting accesses a, b unordered, run everything below either of them, then a, then
//!    b: they meet with nothing between, a race of a real run. If b comes after a and a is not visible to it, a wait
//!    between them may find a signal that does not show a: let it find that one. (If several waits have to, no single
//!    run need do so for all of them. There the checker is stricter than the runs.) Conversely take the first race of
//!    any run. Up to there the run is race-free, so by 1 it is part of the one we ran, and by 2 what H orders is
//!    ordered in it; so H does not order the two. The same argument finds every race, even those behind the first as
//!    long as values do not depend on it.
//! 4. *Weak memory.* In the fragment a party learns of others only by waits that succeed, and each wait has a least
//!    signal that it needs. So memory that is weaker than interleavings (release and acquire) shows a race-free program
//!    nothing else. Accesses that a credit orders without making them visible count as unordered. This needs the second
//!    premise: a test that *fails* may be older than in any interleaving.
//! 5. *Asynchronous parties* take their steps at any time between their begin and the wait that covers them, so they
//!    are parties with exactly those edges, and 1 to 3 hold for them.
//! 6. *Posts* are such parties. The bytes of a post have an edge from the post, and nothing holds them back: they
//!    commute with every step that they do not race with. A notice has edges from its own post, from the bytes that it
//!    covers, and from the notice before it for its slot. All of these are fixed by what the poster posted, so in every
//!    run the same notice comes after the same parts, whatever order they arrive in. It is a wait for those parts,
//!    which no step takes away again, followed by a signal: one step that stays enabled once it is. Its slot grows and
//!    has one writer as any other does, so 1 covers it. That we deliver in the order of the posts is one of the linear
//!    extensions of 2. A flush is the same with other edges: from its own post, from the *reads* of the earlier posts
//!    to its peer, which are steps before their writes, and from the notice before it for its slot. These too are fixed
//!    by what the poster posted. The reads and the write of a post are two epochs of its party, so that a clock can
//!    hold the one without the other. A delivery whose parts do not all come holds its slot in every run: that is the
//!    same deadlock in all.
//!
//! `tests/suite/checker/brute` compares the claim with all interleavings of small random programs, with a definition of
//! races that uses no clock. Outside the fragment every order of signals, waits, tests, packets and atomics is run, up
//! to the order of steps that commute (sleep sets, `world/explore.rs`) and to a budget, then random priorities (PCT)
//! from a printed seed. Such a report is *sampled*. It says *every schedule run* only if no budget cut the exploration
//! short and interleavings are all there is. That is not so if
//!
//! - posts are delivered whenever the network chooses,
//! - elements of one `each` race for an atomic,
//! - a party polls a thousand times, or
//! - a test fails, or the result of an atomic is used, after the party has signalled or waited (weak memory).
//!
//! A party that would only repeat a poll in a state that it has been in, with no deed by anybody since, is not run
//! again. If all remaining parties do that, it is a deadlock.
//!
//! # What it cannot see
//!
//! - Other sizes, block counts and launch sequences than those planned, and branches that the planned inputs do not
//!   take.
//! - Wrong *values* (an ordered read of the wrong bytes), unless [`Plan::expect`] states the right ones.
//! - The engines' own code, host threads that use a tensor during a launch, and deadlines.
//! - Ranks of one world that run different numbers of copies.
//! - Shared-memory bank conflicts. (Races inside scratch that two elements share are seen.)
//!
//! A run has all blocks of a launch resident; whether a GPU does is computed if [`Settings::device`] names one.
//!
//! | file | holds |
//! |---|---|
//! | `verify.rs` | [`verify_world`], [`Settings`]: one run or many |
//! | `world/` | [`Plan`]; runs of a whole world under a chooser |
//! | `model/` | the memory model: clocks, shadow memory, slots |
//! | `report/` | [`Report`]: text, JSON, SVG |
//! | `mutation/` | [`Mutation`]: mistakes that must be detected |
//! | `fixed.rs` | facts about all kernels together, without a run |
//! | `residency.rs` | [`co_resident`], [`Residence`]: whether a device holds all blocks simultaneously |
//! | `run.rs` | [`run`], [`run_world`], [`launch`]: schedulers of the evaluator alone, deadlock, step limit |
//! | `snapshot.rs` | [`evaluate`]: the same for host tensors, without touching them |
//! | `memory.rs` | [`Memories`], [`Binding`]: the bindings of parameters |
//! | `network.rs` | [`Network`]: when the proxy behind a queue delivers |
//! | `observer.rs` | [`Observer`], [`Actor`]: the events of a run |
//! | `error.rs` | [`EvalError`] |
//! | `eval/` | [`Instance`]: control flow, value ops, memory ops, `each` |
#![forbid(unsafe_code)]

mod error;
mod eval;
mod fixed;
mod memory;
mod model;
mod mutation;
mod network;
mod observer;
mod random;
mod report;
mod residency;
mod run;
mod snapshot;
mod verify;
mod world;

pub use error::{EvalError, Location, Stuck};
pub use eval::{Awaited, Blocked, BulkTiming, ElementOrder, Instance, InstanceOptions, Step};
pub use memory::{Bank, Binding, Bound, Memories, MemoryId, PeerRoute, RouteSlots, World};
pub use model::Conflict;
pub use mutation::{Mutant, Mutation};
pub use network::{Arrivals, AtOnce, Descriptor, Network, NetworkNotice, NetworkSpan};
pub use observer::{Access, AccessKind, Actor, Observer, SlotRef, SlotSet, Unobserved, Wanted};
pub use report::{Certainty, Event, Fault, Found, Moment, Report, Waiter};
pub use residency::{BlockNeeds, DeviceLimits, NotResident, Residence, Scarce, blocks_per_multiprocessor, co_resident};
pub use run::{Options, Schedule, instances, launch, run, run_world};
pub use snapshot::evaluate;
pub use verify::{Settings, verify_world};
pub use world::{After, CopyStream, Plan, Values, Word};
