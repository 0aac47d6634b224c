//! A plan to check: launches of every rank, one after the other, and the hosts' accesses between them.

use super::stream::{BoundOp, CopyStream};
use super::values::Values;
use crate::check::error::EvalError;
use crate::check::memory::{Bank, Binding, Bound, MemoryId, PeerRoute, RouteSlots};
use crate::check::model::{Promise, SlotPlaces};
use crate::check::snapshot::{Snapshot, memories_of, operations_of};
use crate::ir::{Access, Base, Builder, Entity, Kernel, Op, Param, ParamId, Purpose};
use crate::tensor::{AccessError, Arg, Memory, Queue, bytes_of};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Launches of several ranks, to be checked together. Ranks share memory if their arguments name the same addresses, so
/// all of them are built in one process, on one thread.
///
/// ```
/// use tilewire::{Memory, Tensor, check::{Plan, Settings}, kernel};
/// let (staging, tail) = (Memory::zeroed(256), Memory::zeroed(128));
/// let (x, y) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(64));
/// let send = kernel("send", |k| {
///     let (x, staging) = (k.input(&x), k.region("staging", &[staging.clone()]));
///     let tail = k.slots("tail", &[tail.clone()], 128);
///     k.main(|r| {
///         r.each(64, |i| staging.put(0, i * 4, x.load(i)));
///         r.signal(tail.slot(0, 0), 1);
///     });
/// })?;
/// let receive = kernel("receive", |k| {
///     let (y, staging) = (k.output(&y), k.region("staging", &[staging.clone()]));
///     let tail = k.slots("tail", &[tail.clone()], 128);
///     k.main(|r| {
///         r.wait(tail.slot(0, 0), 1);
///         r.each(64, |i| y.store(i, staging.get::<f32>(0, i * 4)));
///     });
/// })?;
/// let mut plan = Plan::new(2);
/// plan.launch(&[(&send.kernel, &send.args), (&receive.kernel, &receive.args)]);
/// let report = plan.verify(&Settings::default());
/// assert!(report.is_clean() && report.is_decided(), "{report}");
/// # Ok::<(), tilewire::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    ranks: u32,
    /// By launch, then by rank.
    pub(in crate::check) launches: Vec<Vec<Job>>,
    /// Memory that hosts read after every launch beyond the outputs of their kernels.
    reads: Vec<(u32, Memory)>,
    /// Memory that they write before every launch beyond the inputs.
    writes: Vec<(u32, Memory)>,
    /// Memory that they leave alone although it is a tensor of their kernels.
    left: Vec<(u32, Memory)>,
    routes: Vec<Route>,
    /// By launch, then by rank: the values that hosts put into tensors before the launch, and those they must find
    /// after it. Empty if unspecified.
    pub(in crate::check) sets: Vec<Vec<Vec<Values>>>,
    pub(in crate::check) expected: Vec<Vec<Vec<Values>>>,
    /// Slots are set to 0 between launches: a mutation.
    pub(in crate::check) resets_counters: bool,
}

/// One launch of one rank.
#[derive(Clone, Debug)]
pub(in crate::check) struct Job {
    pub kernel: Kernel,
    pub args: Vec<Arg>,
    /// The bytes of scalars when the launch was planned.
    scalars: Vec<Option<Result<Vec<u8>, AccessError>>>,
    /// The copy engines beside the kernel.
    pub streams: Vec<CopyStream>,
}

#[derive(Clone, Debug)]
struct Route {
    queue: Queue,
    peer: u32,
    region: Memory,
    slots: Memory,
    stride: u32,
    moves: Option<Arc<RouteSlots>>,
}

impl Plan {
    /// A plan for `ranks` ranks, without a launch yet.
    pub fn new(ranks: u32) -> Plan {
        let (reads, writes) = (Vec::new(), Vec::new());
        let (left, routes, sets, expected) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Plan { ranks, launches: Vec::new(), reads, writes, left, routes, sets, expected, resets_counters: false }
    }

    /// Adds a launch: a kernel and its arguments for every rank, in order. Scalars are read now.
    ///
    /// # Panics
    /// If there is not one for each rank.
    pub fn launch(&mut self, ranks: &[(&Kernel, &[Arg])]) -> &mut Plan {
        assert_eq!(ranks.len(), self.ranks as usize, "one kernel for each of {} ranks", self.ranks);
        let job = |&(kernel, args): &(&Kernel, &[Arg])| {
            let scalars = args.iter().map(|arg| match arg {
                Arg::Scalar(memory) => Some(bytes_of(memory)),
                _ => None,
            });
            let scalars = scalars.collect();
            Job { kernel: kernel.clone(), args: args.to_vec(), scalars, streams: Vec::new() }
        };
        self.launches.push(ranks.iter().map(job).collect());
        self
    }

    /// Adds a launch without kernels: a stream of the copy engine for every rank, in order.
    ///
    /// # Panics
    /// If there is not one for each rank.
    pub fn launch_streams(&mut self, streams: &[CopyStream]) -> &mut Plan {
        let nothing = Builder::new("no kernel", 1).finish();
        self.launch(&vec![(&nothing, &[][..]); streams.len()]);
        (0..).zip(streams).for_each(|(rank, stream)| _ = self.beside(rank, stream.clone()));
        self
    }

    /// Adds a stream of a rank's copy engine to the last launch. It begins with the kernel, and the launch is over when
    /// both are.
    ///
    /// # Panics
    /// If there is no launch, or no such rank.
    pub fn beside(&mut self, rank: u32, stream: CopyStream) -> &mut Plan {
        let launch = self.launches.last_mut().expect("a launch to stand beside");
        launch[rank as usize].streams.push(stream);
        self
    }

    /// Makes the host of a rank write this memory before every launch, for example the source of a stream's copy.
    pub fn host_writes(&mut self, rank: u32, memory: &Memory) -> &mut Plan {
        self.writes.push((rank, memory.clone()));
        self
    }

    /// Makes the host of a rank read this memory after every launch, for example a window that peers write into.
    pub fn host_reads(&mut self, rank: u32, memory: &Memory) -> &mut Plan {
        self.reads.push((rank, memory.clone()));
        self
    }

    /// Makes the host of a rank neither read nor write this memory between launches, although it is a tensor of its
    /// kernels, for example one that they add to over many launches.
    pub fn host_leaves(&mut self, rank: u32, memory: &Memory) -> &mut Plan {
        self.left.push((rank, memory.clone()));
        self
    }

    /// Sets where the proxy behind this queue puts data and signals for a peer; slots are `stride` bytes apart.
    pub fn route(
        &mut self,
        queue: impl Into<Queue>,
        peer: u32,
        region: &Memory,
        slots: &Memory,
        stride: u32,
    ) -> &mut Plan {
        let (queue, region, slots) = (queue.into(), region.clone(), slots.clone());
        self.routes.push(Route { queue, peer, region, slots, stride, moves: None });
        self
    }

    /// Restricts the last [`route`](Self::route) as a proxy does: its posts move only these slots of the peer, and its
    /// flushes only those of the poster. Other notices are errors.
    ///
    /// # Panics
    /// If there is no route.
    pub fn moves_only(&mut self, slots: RouteSlots) -> &mut Plan {
        self.routes.last_mut().expect("a route to restrict").moves = Some(Arc::new(slots));
        self
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Number of launches.
    pub fn launches(&self) -> usize {
        self.launches.len()
    }

    /// The kernels of a launch and their arguments, in the order of the ranks.
    ///
    /// # Panics
    /// If there is no such launch.
    pub fn traced(&self, launch: usize) -> impl Iterator<Item = (&Kernel, &[Arg])> {
        self.launches[launch].iter().map(|job| (&job.kernel, &job.args[..]))
    }

    /// The largest number of copies of any role; a larger
    /// [`Settings::most_copies`](crate::check::Settings::most_copies) changes nothing.
    pub fn most_copies(&self) -> u32 {
        let roles = self.launches.iter().flatten().flat_map(|job| job.kernel.roles.values());
        roles.map(|role| role.copies).max().unwrap_or(0)
    }

    pub(in crate::check) fn kernel(&self, launch: u32, rank: u32) -> &Kernel {
        &self.launches[launch as usize][rank as usize].kernel
    }

    pub(in crate::check) fn streams(&self, launch: u32, rank: u32) -> &[CopyStream] {
        &self.launches[launch as usize][rank as usize].streams
    }

    pub(in crate::check) fn kernels(&self) -> Vec<Vec<&Kernel>> {
        self.launches.iter().map(|ranks| ranks.iter().map(|job| &job.kernel).collect()).collect()
    }

    /// Copies all memory and binds every launch to the copy.
    pub(in crate::check) fn stage(&self) -> Result<Stage, EvalError> {
        let jobs = || self.launches.iter().flatten();
        let mut all: Vec<Memory> = jobs().flat_map(|job| job.args.iter().flat_map(memories_of)).collect();
        all.extend(self.reads.iter().chain(&self.writes).chain(&self.left).map(|(_, memory)| memory.clone()));
        all.extend(jobs().flat_map(|job| &job.streams).flat_map(CopyStream::memories).cloned());
        all.extend(self.routes.iter().flat_map(|route| [route.region.clone(), route.slots.clone()]));
        let values = self.sets.iter().chain(&self.expected).flatten().flatten();
        all.extend(values.map(|values| values.memory.clone()));
        let kernel = || jobs().next().map_or_else(String::new, |job| job.kernel.name.clone());
        let snapshot =
            Snapshot::of(all).map_err(|error| EvalError::Binding { kernel: kernel(), message: error.to_string() })?;
        let bind = |rank: u32, job: &Job| {
            let params = job.args.iter().enumerate().map(|(i, arg)| self.bound(&snapshot, job, i, arg));
            let operations = operations_of(&job.args);
            Ok(Binding { rank, world_size: self.ranks, params: params.collect::<Result<_, _>>()?, operations })
        };
        let bindings = self.launches.iter().map(|ranks| (0..).zip(ranks).map(|(rank, job)| bind(rank, job)).collect());
        let bindings = bindings.collect::<Result<Vec<Vec<Binding>>, EvalError>>()?;
        let of = |memory: &Memory| span(&snapshot.bank(memory));
        let rows = |(rank, memory): &(u32, Memory)| {
            let rank = *rank;
            snapshot.rows(memory).map(move |row| (rank, span(&row))).collect::<Vec<_>>()
        };
        let named = |all: &[(u32, Memory)]| all.iter().flat_map(rows).collect();
        let (reads, writes): (Vec<_>, Vec<_>) = (named(&self.reads), named(&self.writes));
        let mut given: Vec<Span> = self.routes.iter().map(|route| of(&route.slots)).collect();
        given.extend(writes.iter().map(|(_, span)| span.clone()));
        let bound = |job: &Job| job.streams.iter().map(|stream| stream.bound(&of)).collect::<Vec<_>>();
        let streams: Vec<Vec<Vec<_>>> = self.launches.iter().map(|jobs| jobs.iter().map(bound).collect()).collect();
        let words = streams.iter().flatten().flatten().flatten().filter_map(BoundOp::word);
        given.extend(words.cloned());
        let mut slots = SlotPlaces::default();
        self.routes.iter().for_each(|route| slots.add(&snapshot.bank(&route.slots), route.stride));
        let mut known: Vec<Memory> = Vec::new();
        let mut ring = |arg: &Arg| match arg {
            Arg::Queue(queue) => known.iter().position(|known| known.is(queue.entries())).unwrap_or_else(|| {
                known.push(queue.entries().clone());
                known.len() - 1
            }),
            _ => 0,
        };
        let mut of = |job: &Job| -> Vec<usize> { job.args.iter().map(&mut ring).collect() };
        let rings = self.launches.iter().map(|jobs| jobs.iter().map(&mut of).collect()).collect();
        let mut stage =
            Stage { snapshot, bindings, streams, hosts: Vec::new(), given, slots, rings, promises: HashMap::new() };
        stage.assign(self, &reads, &writes);
        Ok(stage)
    }

    fn bound(&self, snapshot: &Snapshot, job: &Job, i: usize, arg: &Arg) -> Result<Bound, EvalError> {
        let banks = || memories_of(arg).iter().map(|memory| snapshot.bank(memory)).collect();
        Ok(match arg {
            Arg::Buffer(_) => Bound::Buffer(banks()),
            Arg::Slots(_) => Bound::Slots(banks()),
            Arg::Scalar(_) => {
                let mut bits = [0; 8];
                let wrong = |message| EvalError::Binding { kernel: job.kernel.name.clone(), message };
                let bytes = match &job.scalars[i] {
                    Some(Ok(bytes)) => &bytes[..],
                    Some(Err(error)) => return Err(wrong(error.to_string())),
                    None => &[],
                };
                let size = match job.kernel.params.values().nth(i) {
                    Some(Param::Scalar { ty, .. }) if ty.size() <= bytes.len() => ty.size(),
                    _ => {
                        return Err(wrong(format!("argument {i} is a scalar; the parameter is not, or is wider")));
                    }
                };
                bits[..size].copy_from_slice(&bytes[..size]);
                Bound::Scalar(u64::from_le_bytes(bits))
            }
            Arg::Queue(queue) => {
                let route = |peer: u32| {
                    let route = self.routes.iter().find(|route| route.peer == peer && route.queue.is(queue))?;
                    let (region, slots) = (snapshot.bank(&route.region), snapshot.bank(&route.slots));
                    Some(PeerRoute { region, slots, stride: route.stride, moves: route.moves.clone() })
                };
                Bound::Queue((0..self.ranks).map(route).collect())
            }
        })
    }
}

/// Bytes of a piece of memory.
pub(in crate::check) type Span = (MemoryId, Range<u64>);

pub(super) fn span(bank: &Bank) -> Span {
    (bank.memory, bank.offset..bank.offset + bank.len)
}

/// True if they have bytes in common.
pub(in crate::check) fn meets(a: &Span, b: &Span) -> bool {
    a.0 == b.0 && a.1.start < b.1.end && b.1.start < a.1.end
}

/// Memory and bindings of a plan, and the hosts' accesses.
pub(in crate::check) struct Stage {
    pub snapshot: Snapshot,
    /// By launch, then by rank.
    pub bindings: Vec<Vec<Binding>>,
    /// By launch, then by rank: the operations of its streams.
    pub streams: Vec<Vec<Vec<Vec<BoundOp>>>>,
    /// By launch, then by rank.
    pub hosts: Vec<Vec<HostWork>>,
    /// Bytes that are written before anything begins.
    pub given: Vec<Span>,
    /// The bytes that are slots.
    pub slots: SlotPlaces,
    /// By launch, rank and parameter: the number of a queue's ring; 0 for other parameters.
    pub rings: Vec<Vec<Vec<usize>>>,
    /// By memory: bytes that launches bind as inputs and that another rank has as well.
    pub promises: HashMap<MemoryId, Vec<Promise>>,
}

/// The accesses of a rank's host around a launch.
#[derive(Default)]
pub(in crate::check) struct HostWork {
    /// Inputs, rewritten before the launch.
    pub writes: Vec<Span>,
    /// Outputs, read after it.
    pub reads: Vec<Span>,
}

/// One bank of one buffer of one launch.
struct Use {
    launch: usize,
    rank: u32,
    param: ParamId,
    access: Access,
    /// True if kernels reach it by put, get or packets: bytes between ranks, which begin undefined.
    wire: bool,
    /// True if bulk copies reach it.
    copied: bool,
    /// True if bulk copies fill it and posts read it.
    filled: bool,
    /// True if it is the rank's own: a tensor of its caller, or an input or an output.
    own: bool,
    span: Span,
}

impl Stage {
    /// Decides which bytes are given, which are inputs and which outputs.
    fn assign(&mut self, plan: &Plan, reads: &[(u32, Span)], writes: &[(u32, Span)]) {
        let mut uses = Vec::new();
        for (launch, jobs) in plan.launches.iter().enumerate() {
            for (rank, job) in (0..).zip(jobs) {
                let (wires, copied, filled) = (wires(&job.kernel), copied(&job.kernel), filled(&job.kernel));
                let binding = &self.bindings[launch][rank as usize];
                for ((param, declared), bound) in job.kernel.params.iter().zip(&binding.params) {
                    match (declared, bound) {
                        (Param::Buffer { access, .. }, Bound::Buffer(_)) => {
                            // Memory with gaps is its rows.
                            let memories = memories_of(&job.args[param.index()]);
                            let rows = memories.iter().flat_map(|memory| self.snapshot.rows(memory));
                            uses.extend(rows.map(|row| {
                                let (access, span) = (*access, span(&row));
                                let [wire, copied, filled] = [&wires, &copied, &filled].map(|of| of.contains(&param));
                                // The bytes of a tensor are the host's, even if the kernel reads them as bytes.
                                let is_tensor = job.kernel.purpose(param, 0) == Purpose::Tensor;
                                let (wire, own) = (wire && !is_tensor, access != Access::InOut || is_tensor);
                                Use { launch, rank, param, access, wire, copied, filled, own, span }
                            }))
                        }
                        (Param::Slots { stride, .. }, Bound::Slots(banks)) => {
                            self.given.extend(banks.iter().map(span));
                            banks.iter().for_each(|bank| self.slots.add(bank, *stride));
                        }
                        _ => {}
                    }
                }
            }
        }
        // Bytes that several ranks have, or that posts write, and that bulk copies reach are also bytes between ranks.
        // So is an outbox that bulk copies fill: what a post reads there must have been copied there.
        let index = Index::of(&uses);
        let routed: Vec<Span> = plan.routes.iter().map(|route| span(&self.snapshot.bank(&route.region))).collect();
        let is_routed = |span: &Span| routed.iter().any(|to| meets(to, span));
        for u in uses.iter_mut().filter(|u| u.copied && !u.own) {
            u.wire |= u.filled || index.any(&u.span, |other| other.rank != u.rank) || is_routed(&u.span);
        }
        let index = Index::of(&uses);
        for u in uses.iter_mut().filter(|u| !u.own) {
            u.wire |= index.any(&u.span, |other| other.wire);
        }
        // Nobody else writes memory that nobody else has. (The proxy of another rank may, and copy engines do not
        // count.)
        for u in uses.iter().filter(|u| u.access == Access::In) {
            let Use { launch, rank, param, span: (memory, bytes), .. } = u;
            let is_shared = index.any(&u.span, |other| other.rank != *rank) || is_routed(&u.span);
            if is_shared {
                let (rank, launch, param) = (*rank, *launch as u32, *param);
                let promise = Promise { rank, launch, param, bytes: bytes.clone() };
                self.promises.entry(*memory).or_default().push(promise);
            }
        }
        self.given.extend(uses.iter().filter(|u| !u.wire && u.access != Access::Out).map(|u| u.span.clone()));
        self.given.sort_by_key(|(memory, bytes)| (*memory, bytes.start, bytes.end));
        self.given.dedup();
        self.hosts = plan.launches.iter().map(|jobs| jobs.iter().map(|_| HostWork::default()).collect()).collect();
        let (index, mut known) = (Index::of(&uses), HashSet::new());
        for u in uses.iter() {
            // An input that the kernel also writes, under another name, is an output.
            let first = known.insert((u.launch, u.rank, u.span.clone()));
            if u.wire || !first {
                continue;
            }
            // Memory that several ranks have as their own is no rank's to rewrite or to read back. Memory that is one
            // rank's tensor and that others reach as memory between ranks belongs to the first.
            let shared = index.any(&u.span, |other| other.rank != u.rank && !other.wire && (other.own || !u.own));
            let is_left = |(rank, memory): &(u32, Memory)| {
                let (left, bytes) = span(&self.snapshot.bank(memory));
                *rank == u.rank && left == u.span.0 && bytes.start <= u.span.1.start && u.span.1.end <= bytes.end
            };
            let is_left = plan.left.iter().any(is_left);
            let work = &mut self.hosts[u.launch][u.rank as usize];
            match u.access {
                _ if shared || is_left => {}
                Access::In => work.writes.push(u.span.clone()),
                Access::Out => work.reads.push(u.span.clone()),
                // Memory that a kernel reads and writes is also its input.
                Access::InOut => {
                    work.reads.push(u.span.clone());
                    if u.own {
                        work.writes.push(u.span.clone());
                    }
                }
            }
        }
        for works in &mut self.hosts {
            reads.iter().for_each(|(rank, span)| works[*rank as usize].reads.push(span.clone()));
            writes.iter().for_each(|(rank, span)| works[*rank as usize].writes.push(span.clone()));
        }
    }
}

/// The holders of bytes, each once: launches mostly bind the same memory as earlier ones.
struct Index(HashMap<MemoryId, HashSet<Holder>>);

#[derive(PartialEq, Eq, Hash)]
struct Holder {
    bytes: Range<u64>,
    rank: u32,
    own: bool,
    wire: bool,
}

impl Index {
    fn of(uses: &[Use]) -> Index {
        let mut index: HashMap<MemoryId, HashSet<Holder>> = HashMap::new();
        for &Use { rank, own, wire, span: (memory, ref bytes), .. } in uses {
            index.entry(memory).or_default().insert(Holder { bytes: bytes.clone(), rank, own, wire });
        }
        Index(index)
    }

    /// True if a holder of this kind has some of these bytes.
    fn any(&self, (memory, bytes): &Span, is_it: impl Fn(&Holder) -> bool) -> bool {
        let meets = |other: &Holder| other.bytes.start < bytes.end && bytes.start < other.bytes.end;
        self.0.get(memory).is_some_and(|holders| holders.iter().any(|holder| is_it(holder) && meets(holder)))
    }
}

/// The parameters that a kernel reaches by put, get or packets.
fn wires(kernel: &Kernel) -> Vec<ParamId> {
    params_of(kernel, |op| match op {
        Op::Put { at, .. } | Op::Get { at, .. } | Op::PacketPut { at, .. } | Op::PacketGet { at, .. } => vec![at.base],
        _ => Vec::new(),
    })
}

/// The parameters that a kernel reaches by bulk copies.
fn copied(kernel: &Kernel) -> Vec<ParamId> {
    params_of(kernel, |op| match op {
        Op::BulkCopy { dst, src, .. } => vec![dst.base, src.base],
        _ => Vec::new(),
    })
}

/// The parameters that a kernel fills by bulk copies and posts.
fn filled(kernel: &Kernel) -> Vec<ParamId> {
    let posted = params_of(kernel, |op| match op {
        Op::Post { span: Some(span), .. } => vec![span.src.base],
        _ => Vec::new(),
    });
    let copied = params_of(kernel, |op| if let Op::BulkCopy { dst, .. } = op { vec![dst.base] } else { Vec::new() });
    posted.into_iter().filter(|param| copied.contains(param)).collect()
}

fn params_of(kernel: &Kernel, bases: impl Fn(&Op) -> Vec<Base>) -> Vec<ParamId> {
    let mut found: Vec<ParamId> = Vec::new();
    for role in kernel.roles.values() {
        kernel.walk(role.body, &mut |inst| {
            for base in bases(&kernel.insts[inst].op) {
                if let Base::Param(param) = base
                    && !found.contains(&param)
                {
                    found.push(param);
                }
            }
        });
    }
    found
}
