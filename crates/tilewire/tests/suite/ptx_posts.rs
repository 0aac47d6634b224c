//! Posts to a network proxy as PTX. Random kernels that post give the same entries and bytes as on the CPU engine, on a
//! machine that runs PTX as its manual defines it. Their texts assemble for every target.

use std::sync::atomic::{AtomicBool, Ordering};
use tilewire::hook::{Queue, RoleCtx, Value, View};
use tilewire::ir::ring::{ENTRIES, ENTRY, Posted, TAKEN, TICKETS, TICKETS_BYTES, entries_bytes};
use tilewire::ir::{Access, Entity, Op, Part, Purpose, simplify};
use tilewire::ptx::{Options, Target, abi, emit};
use tilewire::tensor::{Ring, bytes_of};
use tilewire::vm::Prepared;
use tilewire::{Memory as HostMemory, Tensor, Traced, kernel};
use tilewire_testkit::ptx_machine::{self, Memory, Space};
use tilewire_testkit::random::Random;
use tilewire_testkit::simulated::{Launch, Proxies, Proxy, run_posts, run_world};
use tilewire_testkit::{kernels, ptxas};

/// The bytes of the source that one turn of a role uses.
const SHARE: i64 = 256;
/// The most turns of a role.
const TURNS: i64 = 3;
/// The operation that matched posts carry.
const OPERATION: u16 = 5;

/// The actions of a role in every turn. Its copies take turns. The CPU engine has one copy of every role.
#[derive(Clone, Debug)]
enum Step {
    /// The role fills its share of the source.
    Fill(i64),
    Post(Span),
    Deliver(Vec<Span>),
    Signal,
    Credit,
    Flush,
    /// The role acts only in blocks with odd numbers.
    InOddBlocks(Box<Step>),
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: i64,
    /// A constant, or the number of an element in the table of counts.
    count: Result<i64, i64>,
}

#[derive(Clone, Debug)]
struct PostingRole {
    warps: u32,
    copies: u32,
    turns: i64,
    steps: Vec<Step>,
}

/// A kernel that posts. Every turn of a role in a block has a separate peer, so that the order of its posts can be
/// compared.
#[derive(Clone, Debug)]
struct Posting {
    blocks: u32,
    matched: bool,
    roles: Vec<PostingRole>,
}

impl Posting {
    fn random(random: &mut Random) -> Posting {
        let role = |random: &mut Random| PostingRole {
            warps: 1 + random.below_u64(3) as u32,
            copies: 1 + random.below_u64(2) as u32,
            turns: 1 + random.below_u64(TURNS as u64) as i64,
            steps: (0..1 + random.below(5)).map(|_| step(random)).collect(),
        };
        Posting {
            blocks: 1 + random.below_u64(4) as u32,
            matched: random.once_in(2),
            roles: (0..1 + random.below(3)).map(|_| role(random)).collect(),
        }
    }

    fn peers(&self) -> usize {
        self.blocks as usize * self.roles.len() * TURNS as usize
    }

    /// The kernel, and its ring.
    fn trace(&self, capacity: usize) -> (Traced, Ring) {
        let ring = Ring::new(capacity);
        let ring = if self.matched { matched(&ring) } else { ring };
        let source = HostMemory::zeroed(self.peers() * SHARE as usize);
        let counts = Tensor::from_fn(8, |k| [0i64, 1, 7, 16, 100, 200, 31, 64][k]);
        let traced = kernel("posting", |k| {
            k.blocks(self.blocks);
            let source = k.buffer::<u8>("source", std::slice::from_ref(&source), Access::InOut).bank(0);
            let (counts, queue) = (k.input(&counts), k.queue("wire", ring.queue(9)));
            for (number, role) in self.roles.iter().enumerate() {
                k.role(format!("role{number}"), role.warps).copies(role.copies, |r| {
                    r.for_turns(role.turns, |turn| {
                        let me = (r.block() * self.roles.len() as i64 + number as i64) * TURNS + turn;
                        let body = Body { r, source, counts, queue, me, turn };
                        role.steps.iter().enumerate().for_each(|(number, step)| body.step(number as i64, step));
                    });
                });
            }
        });
        (traced.unwrap_or_else(|error| panic!("{error}\n{self:?}")), ring)
    }
}

fn step(random: &mut Random) -> Step {
    let span = |random: &mut Random| {
        let count = if random.once_in(2) { Ok(random.below_u64(201) as i64) } else { Err(random.below_u64(8) as i64) };
        Span { start: random.below_u64(56) as i64, count }
    };
    match random.below(10) {
        0 | 1 | 9 => Step::Fill(random.below_u64(SHARE as u64 + 1) as i64),
        2 => Step::Post(span(random)),
        3 | 4 => Step::Deliver((0..1 + random.below(3)).map(|_| span(random)).collect()),
        5 => Step::Signal,
        6 => Step::Credit,
        7 => Step::Flush,
        _ => Step::InOddBlocks(Box::new(step(random))),
    }
}

/// The same ring, for data from rank 0 to rank 1.
fn matched(ring: &Ring) -> Ring {
    let purpose = Purpose::Transfer { part: Part::Tail, from: 0, to: 1 };
    let of = |memory: &HostMemory| memory.clone().for_purpose(purpose).for_operation(OPERATION);
    Ring::over(of(ring.entries()), of(ring.queue(0).tickets())).expect("the memory of a ring")
}

#[derive(Clone, Copy)]
struct Body<'a, 't> {
    r: &'a RoleCtx<'t>,
    source: View<'t, u8>,
    counts: View<'t, i64>,
    queue: Queue<'t>,
    me: Value<'t, i64>,
    turn: Value<'t, i64>,
}

impl<'t> Body<'_, 't> {
    fn step(&self, number: i64, step: &Step) {
        let &Body { r, source, queue, me, turn, .. } = self;
        match step {
            Step::Fill(count) => {
                let first = me * SHARE;
                let what = (turn * 16 + number + me * 3) & 0xff;
                r.each(*count, |i| source.store(first + i, ((what + i) & 0xff).cast::<u8>()));
            }
            Step::Post(span) => {
                let (src, dst, bytes) = self.span(number, *span);
                r.post(queue, me, src, dst, bytes);
            }
            Step::Deliver(spans) => {
                let spans: Vec<_> =
                    spans.iter().enumerate().map(|(k, span)| self.span(number + 10 * k as i64, *span)).collect();
                r.deliver(queue, me, &spans, turn + 100 * number, turn * 1000 + number);
            }
            Step::Signal => r.post_signal(queue, me, number, turn + 1),
            Step::Credit => r.post_credit(queue, me, number, turn + 2),
            Step::Flush => r.post_flush(queue, me, number, turn + 3),
            Step::InOddBlocks(step) => r.if_((r.block() & 1).eq(1), || self.step(number, step)),
        }
    }

    fn span(&self, number: i64, Span { start, count }: Span) -> (View<'t, u8>, Value<'t, i64>, Value<'t, i64>) {
        let bytes = match count {
            Ok(count) => self.r.constant(count),
            Err(element) => self.counts.load(element),
        };
        (self.source.part(self.me * SHARE + start, 1), self.turn * 4096 + number * 8, bytes)
    }
}

/// The entries in a form that can be compared: sources as bytes, by peer, in order.
fn comparable(posted: &[Posted], peers: usize, offset: impl Fn(u64) -> u64) -> Vec<Vec<Posted>> {
    let mut by_peer = vec![Vec::new(); peers];
    for entry in posted {
        let mut entry = *entry;
        if let Some(span) = &mut entry.span {
            span.source = if span.bytes == 0 { 0 } else { offset(span.source) };
        }
        by_peer[entry.peer as usize].push(entry);
    }
    by_peer
}

/// Runs a kernel on the CPU, with a proxy beside it or after it. Returns the entries.
fn on_the_cpu(traced: &Traced, ring: &Ring, proxies: Proxies) -> Vec<Posted> {
    let take = || std::iter::from_fn(|| ring.pop()).map(|entry| entry.expect("an entry that producers write"));
    let mut prepared = Prepared::new(&traced.kernel, &traced.args).unwrap();
    if proxies == Proxies::AtTheEnd {
        prepared.run().unwrap();
        return take().collect();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let proxy = threads.spawn(|| {
            let mut posted = Vec::new();
            loop {
                let last = done.load(Ordering::Acquire);
                posted.extend(take());
                if last {
                    return posted;
                }
                std::thread::yield_now();
            }
        });
        let ran = prepared.run();
        done.store(true, Ordering::Release);
        ran.unwrap();
        proxy.join().unwrap()
    })
}

fn agree(posting: &Posting, capacity: usize, target: Target, proxies: Proxies) -> usize {
    let (traced, ring) = posting.trace(capacity);
    // This comes first, because it begins with a copy of the memory.
    let run = run_posts(std::slice::from_ref(&traced), target, proxies);
    let run = run.unwrap_or_else(|fault| panic!("{target}: {}\n{posting:?}", fault.0));
    let posted = on_the_cpu(&traced, &ring, proxies);
    let tilewire::Arg::Buffer(source) = &traced.args[0] else { panic!("a buffer") };
    let start = source[0].start().as_ptr() as u64;
    let expected = comparable(&posted, posting.peers(), |address| address - start);
    let got = comparable(&run.posted[0], posting.peers(), |address| match run.place(0, address) {
        Some((0, 0, byte)) => byte,
        other => panic!("a source at {other:?}"),
    });
    assert_eq!(got, expected, "{target}\n{posting:?}");
    assert!(run.results[0][0][0] == bytes_of(&source[0]).unwrap(), "{target}: other bytes\n{posting:?}");
    posted.len()
}

/// The number of random kernels: `TILEWIRE_CASES`, or as many as CI has time for.
fn cases() -> u64 {
    std::env::var("TILEWIRE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(40)
}

#[test]
fn ptx_posts_what_the_cpu_engine_posts() {
    let mut entries = 0;
    for case in 0..cases() {
        let mut random = Random::of_case(case);
        let posting = Posting::random(&mut random);
        let target = random.pick(&Target::ALL);
        // Each of 12 roles posts 3 entries in each of 5 steps, with at most 3 turns.
        entries += agree(&posting, 1024, target, Proxies::AtTheEnd);
        let capacity = random.pick(&[1, 1, 2, 4]);
        entries += agree(&posting, capacity, target, Proxies::Beside);
    }
    assert!(entries as u64 > 20 * cases(), "{entries} entries");
}

/// A proxy that sees an entry sees its bytes: all lanes meet between a lane's store and the store of the turn number.
#[test]
fn lanes_meet_before_what_they_stored_is_posted() {
    let mut random = Random::new(3);
    let (mut stores, mut releases) = (0, 0);
    for _ in 0..12 {
        let posting = Posting::random(&mut random);
        let (traced, _ring) = posting.trace(1024);
        let run = run_world(std::slice::from_ref(&traced), Target::Sm90a).unwrap_or_else(|fault| panic!("{}", fault.0));
        let stored = run.trace.accesses(|access| !access.load && run.is_to(access, 0, 0));
        let turns =
            run.trace.accesses(|access| access.op.starts_with("st.release.sys") && access.space == Space::Global);
        let turns: Vec<_> = turns.into_iter().filter(|(_, access)| run.is_to(access, 0, 2)).collect();
        (stores, releases) = (stores + stored.len(), releases + turns.len());
        for turn in &turns {
            // For every lane of the role copy, its last store before the turn number.
            let lanes = |thread: u32| role_copy(&posting, thread) == role_copy(&posting, turn.1.thread);
            for store in stored.iter().filter(|store| store.0 < turn.0 && store.1.block == turn.1.block) {
                if lanes(store.1.thread) && store.1.thread != turn.1.thread {
                    assert!(run.trace.met_between(*store, *turn), "{posting:?}");
                }
            }
        }
    }
    assert!(stores > 1000 && releases > 100, "{stores} stores, {releases} posts");
}

/// The role copy that a thread of a block belongs to.
fn role_copy(posting: &Posting, thread: u32) -> (usize, u32) {
    let mut first = 0;
    for (number, role) in posting.roles.iter().enumerate() {
        let lanes = role.warps * 32;
        if thread < first + lanes * role.copies {
            return (number, (thread - first) / lanes);
        }
        first += lanes * role.copies;
    }
    panic!("no thread {thread}")
}

#[test]
fn kernels_that_post_assemble_for_every_target_without_spills() {
    if ptxas::find().is_none() {
        return;
    }
    let mut random = Random::new(1);
    let random = (0..4).map(|_| ("random", simplify(&Posting::random(&mut random).trace(4).0.kernel)));
    for (name, kernel) in random.chain([("network", kernels::network()), ("simplified", simplify(&kernels::network()))])
    {
        for target in Target::ALL {
            let text = emit(&kernel, Options::new(target)).unwrap_or_else(|error| panic!("{name}: {error}")).text;
            let usage =
                ptxas::assemble(&text, target).unwrap_or_else(|said| panic!("{name} for {target}: {said}\n{text}"));
            assert_eq!(usage.spills, 0, "{name} for {target}: {usage:?}\n{kernel}");
        }
    }
}

/// A kernel that posts three entries to a ring of two, and then writes a mark that it is done.
fn three_posts(is_matched: bool) -> Traced {
    let (done, ring) = (HostMemory::zeroed(8), Ring::new(2));
    let ring = if is_matched { matched(&ring) } else { ring };
    kernel("three posts", |k| {
        let done = k.buffer::<u64>("done", std::slice::from_ref(&done), Access::InOut).bank(0);
        let queue = k.queue("wire", ring.queue(9));
        k.role("other", 1).run(|r| r.barrier());
        k.role("main", 2).run(|r| {
            r.for_(0..3, |turn| r.post_signal(queue, 1, turn, turn + 1));
            done.store(0, 1u64);
        });
    })
    .unwrap()
}

#[test]
fn a_wait_for_room_in_vain_is_reported_writes_nothing_and_ends_the_launch() {
    // Either the deadline passes, or the launch is aborted, which reports nothing.
    for (is_matched, aborted) in [(false, false), (true, false), (false, true)] {
        let traced = three_posts(is_matched);
        let kernel = simplify(&traced.kernel);
        let module = emit(&kernel, Options::new(Target::Sm90a)).unwrap();
        let mut memory = Memory::default();
        let mut launch = Launch::new(&mut memory, 0, 1, if aborted { u64::MAX } else { 1_000_000 });
        let done = memory.pieces.len();
        launch.words.push(memory.add(vec![0; 8]));
        let entries = memory.pieces.len();
        launch.words.push(memory.add(vec![0; entries_bytes(2) as usize]));
        launch.words.extend([memory.add(vec![0; TICKETS_BYTES]), 2, 9 << 32]);
        launch.words.extend(is_matched.then_some(u64::from(OPERATION)));
        let (mut turns, abort) = (0, launch.abort);
        ptx_machine::run_beside(&[(&module, &launch.args())], &mut memory, &mut |memory| {
            turns += 1;
            if aborted && turns == 5 {
                memory.set_word(abort, 0, 3);
            }
        })
        .unwrap_or_else(|fault| panic!("{}", fault.0));
        let report: Vec<u64> = (0..abi::REPORT_WORDS).map(|k| memory.word(launch.report, 8 * k)).collect();
        if aborted {
            assert_eq!(report, [0; abi::REPORT_WORDS]);
            assert_eq!(memory.word(abort, 0), 3);
        } else {
            let posts = kernel.insts.iter().filter(|(_, inst)| matches!(inst.op, Op::Post { .. }));
            let posts: Vec<u64> = posts.map(|(id, _)| id.index() as u64).collect();
            // Role 1 waits for room for entry 2 of parameter 1: the proxy must have taken 1 entry, and has taken 0.
            assert_eq!(report, [[abi::GAVE_UP, 1, 0, 0, posts[0]], [1, 0, 2, 1, 0]].concat());
            assert_eq!(memory.word(abort, 0), abi::ABORTED_BY_TIMEOUT);
        }
        assert_eq!(memory.word(done, 0), 0, "the role goes on");
        // The first two entries are there, as they were posted.
        assert_eq!(memory.word(entries, TAKEN), 0);
        assert_eq!([0, 1].map(|k| memory.word(entries, ENTRIES + k * ENTRY)), [1, 2]);
        assert_eq!(memory.word(entries + 1, TICKETS), 3);
        let mut proxy = Proxy { rank: 0, entries, capacity: 2, posted: Vec::new() };
        proxy.empty(&mut memory);
        let slots: Vec<_> = proxy.posted.iter().map(|entry| entry.notice.map(|notice| notice.slot)).collect();
        assert_eq!(slots, [Some(0), Some(1)]);
    }
}

/// Posts `count` bytes from byte `start` of 100 with bounds checks. Returns the entries and the report.
fn checked((start, count): (i64, i64)) -> (Vec<Posted>, Vec<u64>) {
    let (source, ring) = (HostMemory::zeroed(100), Ring::new(2));
    let traced = kernel("span", |k| {
        let (queue, source) = (k.queue("wire", ring.queue(9)), k.region("source", std::slice::from_ref(&source)));
        k.role("main", 2).run(|r| {
            // The value is unknown while tracing, because it depends on the block.
            r.post(queue, 1, source.bank(0).part(r.block() + start, 1), 0, r.block() + count);
        });
    })
    .unwrap();
    let module = emit(&simplify(&traced.kernel), Options { bounds: true, ..Options::new(Target::Sm90a) }).unwrap();
    let mut memory = Memory::default();
    let mut launch = Launch::new(&mut memory, 0, 1, u64::MAX);
    let entries = memory.pieces.len();
    launch.words.push(memory.add(vec![0; entries_bytes(2) as usize]));
    launch.words.extend([memory.add(vec![0; TICKETS_BYTES]), 2, 9 << 32]);
    launch.words.push(memory.add(vec![0; 100]));
    ptx_machine::run_beside(&[(&module, &launch.args())], &mut memory, &mut |_| {})
        .unwrap_or_else(|fault| panic!("{}", fault.0));
    let mut proxy = Proxy { rank: 0, entries, capacity: 2, posted: Vec::new() };
    proxy.empty(&mut memory);
    (proxy.posted, (0..abi::REPORT_WORDS).map(|k| memory.word(launch.report, 8 * k)).collect())
}

/// The same as on the CPU engine.
#[test]
fn a_span_that_leaves_its_source_is_reported_and_not_posted_where_bounds_are_checked() {
    for span in [(0, 1), (0, 100), (99, 1), (40, 60), (100, 0), (-1, 0)] {
        let (posted, report) = checked(span);
        assert_eq!((posted.len(), report), (1, vec![0; abi::REPORT_WORDS]), "{span:?}");
        assert_eq!(posted[0].span.map(|posted| posted.bytes), Some(span.1 as u64));
    }
    let max = i64::MAX;
    for span in [(0, 101), (100, 1), (99, 2), (-1, 1), (-1, 200), (max, 1), (max, max), (5, max), (i64::MIN, max)] {
        let (posted, report) = checked(span);
        assert_eq!((posted, report[0]), (Vec::new(), abi::OUTSIDE), "{span:?}");
    }
}

/// A peer that does not exist reaches the proxy under its number, and changes nothing else. This also holds for a
/// number with more bits than the field for it.
#[test]
fn a_peer_that_does_not_exist_changes_no_other_field() {
    let ring = Ring::new(4);
    for nobody in [-1, i64::MIN, i64::MAX, 1 << 32, (1 << 32) + 1] {
        let traced = kernel("nobody", |k| {
            let queue = k.queue("wire", ring.queue(9));
            k.main(|r| r.post_credit(queue, r.rank() + nobody, 3, 4));
        })
        .unwrap();
        let run = run_posts(std::slice::from_ref(&traced), Target::Sm90a, Proxies::AtTheEnd);
        let posted = run.unwrap_or_else(|fault| panic!("{}", fault.0)).posted;
        assert_eq!(posted[0], on_the_cpu(&traced, &ring, Proxies::AtTheEnd));
        assert_eq!((posted[0][0].peer, posted[0][0].target), (u32::MAX, 9), "peer {nobody}");
    }
}
