//! Virtual ranks of a GPU that post to each other: what a post costs, and messages between domains.
//!
//! | case | measured | limit, in the same run |
//! |---|---|---|
//! | `post` | signals that a kernel posts one after the other, each | a hand-written kernel that fills the same ring |
//! | `post_latency` | the host asks by a word, the kernel answers by a post | the kernel answers by a word |
//! | `ping` | 8 bytes from kernel to kernel, one way | a hand-written round trip from host to kernel to host |
//! | `put_flush` | a kernel puts 8 bytes, posts them and a flush, and waits for the flush | the same round trip |
//! | the others, below 1 MiB | launches over the mesh, with `run` and `sync` | the same between near ranks |
//! | ... from 1 MiB on | the same | the copies of the carrier alone |
//! | `oneway` over a network | the same | the same between ranks on CPUs, over the same provider |
//!
//! In `post` and `post_latency` the host takes the posts from the ring. The round trip of `ping` crosses the bus as
//! often as the message does. For the copies of the carrier, this thread copies the bytes that cross, between the same
//! kinds of memory.

use super::cases::Plan;
use super::race::median_of;
use crate::bench::report::Row;
use crate::bench::size::Size;
use crate::run::Mesh;
use anyhow::{Result, bail, ensure};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tilewire::collective::{Launch, PreparedExchange};
use tilewire::cuda::{self, Buffer, Device, Foreign, Grid, Seat, Settings, Stream};
use tilewire::ir::Part;
use tilewire::link::{MeshTransport, NvlOptions, NvlTransport, ShmOptions, Transport};
use tilewire::tensor::{Memory, Ring};
use tilewire::transport::{PeerEndpoint, Rank, There, World};
use tilewire::{Knobs, Primitive, Tensor, all_reduce, all_to_all, kernel, recv, send};

/// The cases.
pub const KEYS: [&str; 7] = ["post", "post_latency", "ping", "put_flush", "oneway", "all_to_all", "all_reduce"];

const TEXT: &str = include_str!("posts.ptx");
/// Entries of the ring: as many as that of a mesh.
const CAPACITY: usize = 1024;
/// Posts of one sample, and round trips.
const POSTS: u64 = 10_000;
const TRIPS: u64 = 2_000;
/// The most that a post may take to reach the proxy, in µs.
const POST_TARGET: f64 = 2.5;
/// The most that a put with its flush may take over a provider, in µs. For a proxy over a network card of 400 Gbit/s,
/// 38.6 µs were published by others.
const PUT_TARGETS: [(&str, f64); 2] = [("shm", 20.0), ("tcp", 38.0)];
/// The least speed of a message between ranks on a GPU, as a share of that between ranks on CPUs over the same network.
const CPU_TARGET: f64 = 0.8;

pub fn run(plan: &Plan, mesh: &Mesh) -> Result<Vec<Row>> {
    let device = Device::open(0)?;
    let wanted = |key: &str| plan.cases.is_empty() || plan.cases.iter().any(|case| case == key);
    let mut bench = Posts { by_hand: Foreign::load(&device, TEXT)?, device, mesh, plan, rows: Vec::new() };
    if wanted("post") {
        bench.post()?;
    }
    if wanted("post_latency") {
        bench.post_latency()?;
    }
    if wanted("ping") {
        bench.ping()?;
    }
    if wanted("put_flush") {
        bench.put_flush()?;
    }
    let sizes = plan.sizes.clone().unwrap_or_else(|| [8, 64 << 10, 1 << 20, 8 << 20, 64 << 20].map(Size).to_vec());
    for key in KEYS[4..].iter().filter(|key| wanted(key)) {
        for size in &sizes {
            bench.messages(key, size.0.max(8).next_multiple_of(8))?;
        }
    }
    Ok(bench.rows)
}

struct Posts<'a> {
    device: Arc<Device>,
    by_hand: Arc<Foreign>,
    mesh: &'a Mesh,
    plan: &'a Plan,
    rows: Vec<Row>,
}

impl Posts<'_> {
    fn samples(&self) -> usize {
        if self.plan.quick { 3 } else { 9 }
    }

    /// A ring as a mesh makes it for a rank on a GPU.
    fn ring(&self) -> Result<Ring> {
        let entries = self.device.host_memory(Ring::bytes_of_entries(CAPACITY))?;
        let tickets = Arc::new(Buffer::zeroed(&self.device, Ring::BYTES_OF_TICKETS)?).memory();
        Ok(Ring::over(entries, tickets).expect("memory of the right size"))
    }

    fn post(&mut self) -> Result<()> {
        let ring = self.ring()?;
        let queue = ring.queue(0);
        let traced = kernel("posts", |k| {
            let queue = k.queue("posts", &queue);
            k.role("post", 1).run(|r| r.for_((0, POSTS as i64), |i| r.post_signal(queue, 1i64, 0i64, i + 1i64)));
        })?;
        let seat = Seat::new(&self.device)?;
        let mut launch = cuda::Launch::new(&traced.kernel, &traced.args, &seat, Settings::default())?;
        let mut ours = Vec::new();
        for _ in 0..self.samples() {
            launch.start()?;
            ours.push(taken(&ring)?);
            launch.sync()?;
        }
        let (ring, stream) = (self.ring()?, Stream::new(&self.device)?);
        let push = self.by_hand.entry("push")?;
        let queue = ring.queue(0);
        let words = [queue.entries(), queue.tickets()].map(|memory| memory.start().addr().get() as u64);
        let words = [words[0], words[1], CAPACITY as u64, POSTS];
        let mut limit = Vec::new();
        for _ in 0..self.samples() {
            // SAFETY: these are the arguments that the entry declares; the ring's memory lives until the stream is
            // empty.
            unsafe { push.launch(&stream, ONE, &words)? };
            let taken = taken(&ring);
            stream.sync()?;
            limit.push(taken?);
        }
        let (ours, limit) = (median(ours), median(limit));
        let each = format!("{} {POST_TARGET} µs", if ours <= POST_TARGET { "at most" } else { "MORE THAN" });
        self.push("a post reaches the proxy", 0, 2, ours, ("a hand-written entry".into(), limit), each, 0.85);
        Ok(())
    }

    /// Half of the time from a question of the host until it has the kernel's post: the word travels to the kernel as
    /// long as the post to the host.
    fn post_latency(&mut self) -> Result<()> {
        let (ring, words) = (self.ring()?, self.device.host_memory(8192)?);
        let queue = ring.queue(0);
        let traced = kernel("one post at a time", |k| {
            let queue = k.queue("posts", &queue);
            let asked = k.slots("asked", std::slice::from_ref(&words), PeerEndpoint::SLOT_STRIDE);
            k.role("post", 1).run(|r| {
                r.for_((1, TRIPS as i64 + 1), |i| {
                    r.wait(asked.slot(0i64, 0i64), i);
                    r.post_signal(queue, 1i64, 0i64, i);
                });
            });
        })?;
        let seat = Seat::new(&self.device)?;
        let mut launch = cuda::Launch::new(&traced.kernel, &traced.args, &seat, Settings::default())?;
        launch.start()?;
        let asked = word(&words, 0);
        let mut entry = None;
        let ours = round_trips(asked, |_| {
            entry = ring.pop();
            entry.is_some()
        })?;
        launch.sync()?;
        ensure!(matches!(entry, Some(Ok(_))), "the last post: {entry:?}");
        let half = ours / 2.0;
        let each = format!(
            "{half:.2} µs each way, {} {POST_TARGET}",
            if half <= POST_TARGET { "at most" } else { "MORE THAN" }
        );
        let limit = ("host, kernel, host by hand".to_string(), self.pong()?);
        self.push("one post at a time, there and back", 0, 2, ours, limit, each, 0.7);
        Ok(())
    }

    /// A round trip from the host to a hand-written kernel and back.
    fn pong(&self) -> Result<f64> {
        let (memory, stream) = (self.device.host_memory(8192)?, Stream::new(&self.device)?);
        let (asked, answered) = (word(&memory, 0), word(&memory, 4096));
        let address = memory.start().addr().get() as u64;
        // SAFETY: these are the arguments that the entry declares; the memory lives until the stream is empty.
        unsafe { self.by_hand.entry("pong")?.launch(&stream, ONE, &[address, address + 4096, TRIPS])? };
        let median = round_trips(asked, |trip| answered.load(Ordering::Acquire) == trip);
        stream.sync()?;
        median
    }

    /// Two ranks that post to each other.
    fn pair(&self) -> Result<Vec<MeshTransport>> {
        let links = self.mesh.virtual_ranks(&self.device, 2, NvlOptions::default())?;
        if !links[0].is_far(Rank::new(1)) {
            bail!("--domains {}: the two ranks do not post to each other", self.mesh.domains(2));
        }
        Ok(links)
    }

    /// The time from a put until its flush has come back, in one kernel. The kernel of the other rank waits for the
    /// last put, so that both ranks' threads are awake.
    fn put_flush(&mut self) -> Result<()> {
        let links = self.pair()?;
        let traced = links.iter().map(|link| {
            let peer = link.rank().after(1, 2);
            let endpoint = link.endpoint(peer).expect("a peer");
            let There::Posted(posted) = &endpoint.there else { unreachable!("a far peer") };
            kernel("put and flush", |k| {
                let slots = |name, memory| k.slots(name, std::slice::from_ref(memory), PeerEndpoint::SLOT_STRIDE);
                if link.rank().index() == 1 {
                    let tail = slots("tail", &endpoint.here.signals.tail);
                    k.role("wait", 1).run(|r| r.wait(tail.slot(0i64, 0i64), TRIPS as i64));
                    return;
                }
                let queue = k.queue("posts", posted.queue_for(Part::Tail));
                let outbox = k.region("outbox", std::slice::from_ref(&posted.outbox));
                let sent = slots("sent", &posted.sent);
                k.role("put", 1).run(|r| {
                    r.for_((1, TRIPS as i64 + 1), |i| {
                        r.each(1, |_| outbox.put(0i64, 0i64, i));
                        let spans = [(outbox.bank(0i64).part(0i64, 8), r.constant(0i64), r.constant(8i64))];
                        let (to, lines) = (i64::from(peer.number()), posted.lines);
                        r.deliver(queue, to, &spans, lines.tail as i64, i);
                        r.post_flush(queue, to, lines.sent as i64, i);
                        r.wait(sent.slot(0i64, 0i64), i);
                    });
                });
            })
        });
        let traced = traced.collect::<Result<Vec<_>, _>>()?;
        // As in `ping`, a sample is one launch of new ranks' kernels.
        let launches = links.iter().zip(&traced).map(|(link, traced)| Launch::new(link, traced));
        let mut launches = launches.collect::<Result<Vec<_>, _>>()?;
        let start = Instant::now();
        launches.iter_mut().try_for_each(|launch| launch.run())?;
        launches.iter_mut().try_for_each(|launch| launch.sync())?;
        let ours = start.elapsed().as_secs_f64() * 1e6 / TRIPS as f64;
        let limit = ("host, kernel, host by hand".to_string(), self.pong()?);
        let network = links[0].network().map(|choice| choice.provider.clone());
        let aim = PUT_TARGETS.into_iter().find(|(name, _)| network.as_ref().is_some_and(|is| is.starts_with(name)));
        let each = aim.map_or(String::new(), |(_, most)| {
            format!("{} {most} µs", if ours <= most { "at most" } else { "MORE THAN" })
        });
        self.push("put and flush of 8 bytes", 8, 2, ours, limit, each, 0.05);
        Ok(())
    }

    fn ping(&mut self) -> Result<()> {
        let links = self.pair()?;
        let traced = links.iter().map(|link| {
            let (me, peer) = (link.rank(), link.rank().after(1, 2));
            let endpoint = link.endpoint(peer).expect("a peer");
            let There::Posted(posted) = &endpoint.there else { unreachable!("a far peer") };
            let purpose = endpoint.here.signals.tail.purpose().turned();
            kernel("ping", |k| {
                let queue = k.queue("posts", posted.queue.clone().for_purpose(purpose));
                let outbox = k.region("outbox", std::slice::from_ref(&posted.outbox));
                let tail =
                    k.slots("tail", std::slice::from_ref(&endpoint.here.signals.tail), PeerEndpoint::SLOT_STRIDE);
                k.role("ping", 1).run(|r| {
                    r.for_((1, TRIPS as i64 + 1), |i| {
                        let post = || {
                            let bytes = outbox.bank(0i64).part(0i64, 8);
                            let spans = [(bytes, r.constant(0i64), r.constant(8i64))];
                            r.deliver(queue, i64::from(peer.number()), &spans, posted.lines.tail as i64, i);
                        };
                        if me.index() == 0 {
                            post();
                        }
                        r.wait(tail.slot(0i64, 0i64), i);
                        if me.index() == 1 {
                            post();
                        }
                    });
                });
            })
        });
        let traced = traced.collect::<Result<Vec<_>, _>>()?;
        // The counters only grow, so these kernels run once on a transport: a sample is one launch of new ranks'
        // kernels.
        let ours = {
            let launches = links.iter().zip(&traced).map(|(link, traced)| Launch::new(link, traced));
            let mut launches = launches.collect::<Result<Vec<_>, _>>()?;
            let start = Instant::now();
            launches.iter_mut().try_for_each(|launch| launch.run())?;
            launches.iter_mut().try_for_each(|launch| launch.sync())?;
            start.elapsed().as_secs_f64() * 1e6 / (2 * TRIPS) as f64
        };
        let limit = ("host, kernel, host by hand".to_string(), self.pong()?);
        self.push("8 bytes from kernel to kernel", 8, 2, ours, limit, String::new(), 0.5);
        Ok(())
    }

    fn messages(&mut self, key: &str, bytes: usize) -> Result<()> {
        let ranks = if key == "oneway" { 2 } else { self.mesh.count(None).ok().flatten().unwrap_or(4) };
        let links = self.mesh.virtual_ranks(&self.device, ranks, NvlOptions::default())?;
        let carried = || links.iter().map(MeshTransport::carried_bytes).sum::<u64>();
        let (ours, launches) = self.launches(key, &links.iter().collect::<Vec<_>>(), bytes)?;
        let crossing = carried() / launches;
        let over_network = links.iter().any(|link| link.network().is_some());
        let limit = if over_network && key == "oneway" {
            ("between ranks on CPUs".to_string(), self.between_cpus(bytes)?)
        } else if bytes < 1 << 20 {
            let near = NvlTransport::virtual_ranks(&self.device, ranks, NvlOptions::default())?;
            ("the same between near ranks".to_string(), self.launches(key, &near.iter().collect::<Vec<_>>(), bytes)?.0)
        } else {
            ("copies of the carrier".to_string(), self.copies(crossing as usize)?)
        };
        let each = format!("{} cross", Size(crossing as usize));
        let target = match bytes < 1 << 20 {
            _ if over_network && key == "oneway" => CPU_TARGET,
            true => 0.3,
            false => 0.5,
        };
        self.push(&format!("{key}, {ranks} ranks"), bytes, ranks, ours, limit, each, target);
        Ok(())
    }

    /// The median time of launches of all ranks, and how many there were.
    fn launches<L: Transport>(&self, key: &str, links: &[&L], bytes: usize) -> Result<(f64, u64)> {
        let (ranks, len, config) = (links.len(), bytes / 8, self.plan.config);
        let (mut tensors, mut ops) = (Vec::new(), Vec::new());
        for (me, &link) in links.iter().enumerate() {
            let chunks = if key == "all_to_all" { ranks } else { 1 };
            let data: Vec<u64> = (0..chunks * len).map(|i| (i * 31 + me) as u64).collect();
            let (x, y) = (self.device.tensor(&data)?, self.device.zeros::<u64>(chunks * len)?);
            ops.push(match (key, me) {
                ("all_to_all", _) => all_to_all(link, &y, &x).config(config).build()?,
                ("all_reduce", _) => all_reduce(link, &y, &x).config(config).build()?,
                (_, 0) => send(link, &x, Rank::new(1)).config(config).build()?,
                _ => recv(link, &y, Rank::new(0)).config(config).build()?,
            });
            tensors.push((x, y));
        }
        run_all(&mut ops)?;
        for (me, (_, y)) in tensors.iter().enumerate() {
            let of = |rank: usize, i: usize| (i * 31 + rank) as u64;
            let must = |i: usize| match key {
                "all_to_all" => of(i / len, me * len + i % len),
                "all_reduce" => (0..ranks).map(|rank| of(rank, i)).sum(),
                _ if me == 1 => of(0, i),
                _ => 0,
            };
            let wrong = y.try_to_vec()?.into_iter().enumerate().find(|&(i, x)| x != must(i));
            ensure!(wrong.is_none(), "{key} of {bytes} bytes gives something else to rank {me}: {wrong:?}");
        }
        let mut launches = 1;
        let median = median_of(self.samples(), || {
            launches += 1;
            let start = Instant::now();
            run_all(&mut ops)?;
            Ok(start.elapsed().as_secs_f64() * 1e6)
        })?;
        Ok((median, launches))
    }

    /// The median time of a message between two ranks on CPUs over the same network, staged as on a GPU.
    fn between_cpus(&self, bytes: usize) -> Result<f64> {
        let (samples, len, start) = (self.samples(), bytes / 8, Barrier::new(2));
        let knobs = Knobs { primitive: Some(Primitive::Staged), ..Knobs::default() };
        let times = World::threads(2).run(|world| {
            let link = self.mesh.transport(&world, ShmOptions::default())?;
            let me = world.rank().index();
            let (x, y) = (Tensor::from_fn(len, |i| i as u64), Tensor::<u64>::zeros(len));
            let mut op = match me {
                0 => send(&link, &x, Rank::new(1)).config(knobs).build()?,
                _ => recv(&link, &y, Rank::new(0)).config(knobs).build()?,
            };
            op.run()?;
            let mut times = Vec::new();
            for _ in 0..samples {
                start.wait();
                let begun = Instant::now();
                op.run()?;
                start.wait();
                times.push(begun.elapsed().as_secs_f64() * 1e6);
            }
            if me == 1 && y.to_vec() != x.to_vec() {
                return Err("other bytes have arrived".into());
            }
            drop(op);
            link.close()?;
            Ok(times)
        })?;
        Ok(median(times.into_iter().next().expect("rank 0")))
    }

    /// The time of this thread for copying these bytes from pinned memory to pinned memory.
    fn copies(&self, bytes: usize) -> Result<f64> {
        let (from, to) = (self.device.host_memory(bytes)?, self.device.host_memory(bytes)?);
        let copy = |from: &Memory, to: &Memory| {
            // SAFETY: both have this many bytes, they are two memories, and nothing else uses them.
            unsafe { std::ptr::copy_nonoverlapping(from.start().as_ptr(), to.start().as_ptr(), bytes) }
        };
        copy(&from, &to);
        median_of(self.samples(), || {
            let start = Instant::now();
            copy(&from, &to);
            Ok((start.elapsed().as_secs_f64() * 1e6).max(1e-3))
        })
    }

    #[expect(clippy::too_many_arguments, reason = "a row has as many columns")]
    fn push(
        &mut self,
        name: &str,
        bytes: usize,
        ranks: usize,
        median_us: f64,
        (limit, limit_us): (String, f64),
        each: String,
        target: f64,
    ) {
        self.rows.push(Row {
            name: name.to_string(),
            engine: "cuda",
            transport: self.mesh.name(),
            protocol: "staged",
            ranks,
            blocks: 0,
            bytes,
            place: "device",
            median_us,
            spread_us: None,
            gbps: (bytes > 8).then(|| bytes as f64 / median_us / 1e3),
            limit,
            ratio: limit_us / median_us,
            target: Some(target),
            each,
            samples: self.samples(),
        });
    }
}

const ONE: Grid = Grid { blocks: 1, threads: 1, shared_bytes: 0 };

/// A word of host memory that a kernel and this thread touch by atomics only.
fn word(memory: &Memory, at: usize) -> &AtomicU64 {
    assert!(at.is_multiple_of(8) && at + 8 <= memory.bytes(), "byte {at} of {} bytes", memory.bytes());
    // SAFETY: inside the memory and aligned, as asserted: device memory of the host begins on a page. The memory
    // outlives the reference, and nobody touches the word but by atomics.
    unsafe { AtomicU64::from_ptr(memory.start().as_ptr().add(at).cast()) }
}

/// Asks for one answer after the other. Returns the median time until an answer is there.
fn round_trips(asked: &AtomicU64, mut is_answered: impl FnMut(u64) -> bool) -> Result<f64> {
    let mut times = Vec::new();
    for trip in 1..=TRIPS {
        let start = Instant::now();
        asked.store(trip, Ordering::Release);
        until(|| is_answered(trip))?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

/// Takes the posts of one launch. Returns the time per post, from the first to the last.
fn taken(ring: &Ring) -> Result<f64> {
    let mut first = None;
    for number in 0..POSTS {
        let mut entry = None;
        until(|| {
            entry = ring.pop();
            entry.is_some()
        })?;
        ensure!(matches!(entry, Some(Ok(_))), "post {number}: {entry:?}");
        first.get_or_insert_with(Instant::now);
    }
    let start = first.expect("at least one post");
    Ok(start.elapsed().as_secs_f64() * 1e6 / (POSTS - 1) as f64)
}

/// Polls, for seconds at most.
fn until(mut is_so: impl FnMut() -> bool) -> Result<()> {
    let (mut polls, start) = (0u64, Instant::now());
    while !is_so() {
        polls += 1;
        std::hint::spin_loop();
        ensure!(!polls.is_multiple_of(1 << 16) || start.elapsed() < Duration::from_secs(10), "nothing came in 10 s");
    }
    Ok(())
}

fn run_all(ops: &mut [PreparedExchange<'_>]) -> Result<()> {
    ops.iter_mut().try_for_each(|op| op.run())?;
    Ok(ops.iter_mut().try_for_each(|op| op.sync())?)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
