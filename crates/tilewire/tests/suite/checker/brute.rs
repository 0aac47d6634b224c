//! One run against all interleavings: on small random programs of the monotone fragment the checker's one run must say what
//! running every interleaving says. What counts as a race here is the plain definition, without any clock: a state in which two
//! parties can each take a step that touches the same word, one of them writing.

use crate::checker::{check, kinds};
use tilewire::check::{
    Bank, Binding, Bound, Instance, Memories, MemoryId, Options, Step, Unobserved, World, instances,
};
use tilewire::ir::{Access, Kernel, Op, Value};
use tilewire::{Memory, Traced, kernel};

/// One op of a small program: on a word, or on a slot with a value.
#[derive(Clone, Copy, Debug)]
pub enum Small {
    Load(i64),
    Store(i64),
    Signal(i64, i64),
    Wait(i64, i64),
    /// A test of a slot; then the word is read where it says what `there` says.
    LoadIf {
        slot: i64,
        value: i64,
        there: bool,
        word: i64,
    },
    /// The same, and the word is written.
    StoreIf {
        slot: i64,
        value: i64,
        there: bool,
        word: i64,
    },
}

pub const WORDS: usize = 2;
pub const SLOTS: usize = 3;

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n) as i64
    }
}

/// A program of so many parties and ops each: party p alone signals slot p, by 1, 2, …; anybody waits for anything, mostly for
/// what somebody signals.
fn program(random: &mut Random, parties: usize, ops: usize) -> Vec<Vec<Small>> {
    let mut all = Vec::new();
    for party in 0..parties {
        let (mut body, mut next) = (Vec::new(), 1);
        for _ in 0..ops {
            body.push(match random.below(5) {
                0 => Small::Load(random.below(WORDS as u64)),
                1 => Small::Store(random.below(WORDS as u64)),
                2 | 3 if random.below(2) == 0 => {
                    next += 1;
                    Small::Signal(party as i64, next - 1)
                }
                _ => {
                    let slot = (party as i64 + 1 + random.below(parties as u64 - 1)) % parties as i64;
                    Small::Wait(slot, 1 + random.below(2))
                }
            });
        }
        all.push(body);
    }
    all
}

pub fn trace(program: &[Vec<Small>]) -> Vec<Traced> {
    let (words, slots) = (Memory::zeroed(WORDS * 8), Memory::zeroed(SLOTS * 8));
    let rank = |body: &Vec<Small>| {
        let traced = kernel("small", |k| {
            let words = k.buffer::<u64>("words", std::slice::from_ref(&words), Access::InOut).bank(0);
            let slots = k.slots("slots", std::slice::from_ref(&slots), 8);
            k.main(|r| {
                r.barrier();
                for op in body {
                    match *op {
                        Small::Load(at) => _ = words.load(at),
                        Small::Store(at) => words.store(at, 1u64),
                        Small::Signal(slot, value) => r.signal(slots.slot(0, slot), value),
                        Small::Wait(slot, value) => r.wait(slots.slot(0, slot), value),
                        Small::LoadIf { slot, value, there, word } => {
                            let found = r.test(slots.slot(0, slot), value).eq(there);
                            r.if_(found, || _ = words.load(word));
                        }
                        Small::StoreIf { slot, value, there, word } => {
                            let found = r.test(slots.slot(0, slot), value).eq(there);
                            r.if_(found, || words.store(word, 1u64));
                        }
                    }
                }
            });
        });
        traced.unwrap()
    };
    program.iter().map(rank).collect()
}

/// What all interleavings show.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Shown {
    pub race: bool,
    pub deadlock: bool,
    /// Two who could set one slot next, or a slot that does not grow.
    pub writers: bool,
}

/// Runs every interleaving, each from the start.
pub fn all_interleavings(kernels: &[Traced]) -> (Shown, u64) {
    let (mut shown, mut runs) = (Shown::default(), 0);
    let mut path: Vec<(Vec<usize>, usize)> = Vec::new();
    loop {
        run(kernels, &mut path, &mut shown);
        runs += 1;
        while let Some((alternatives, chosen)) = path.last_mut() {
            *chosen += 1;
            if *chosen < alternatives.len() {
                break;
            }
            path.pop();
        }
        if path.is_empty() {
            return (shown, runs);
        }
    }
}

fn run(kernels: &[Traced], path: &mut Vec<(Vec<usize>, usize)>, shown: &mut Shown) {
    let mut memories = Memories::new();
    let (words, slots) = (memories.add(vec![0; WORDS * 8]), memories.add(vec![0; SLOTS * 8]));
    let bank = |memory, len| vec![Bank { memory, offset: 0, len }];
    let params = vec![Bound::Buffer(bank(words, WORDS as u64 * 8)), Bound::Slots(bank(slots, SLOTS as u64 * 8))];
    let bindings: Vec<Binding> = (0..kernels.len() as u32)
        .map(|rank| Binding { rank, world_size: kernels.len() as u32, params: params.clone() })
        .collect();
    let ranks: Vec<_> = kernels.iter().map(|traced| &traced.kernel).zip(&bindings).collect();
    let mut world = World::new(memories);
    let mut all = instances(&ranks, &mut world, Options::default()).unwrap();
    let mut done = vec![false; all.len()];
    for depth in 0.. {
        for (instance, done) in all.iter_mut().zip(&mut done) {
            settle(instance, done, &mut world);
        }
        let enabled: Vec<usize> = (0..all.len()).filter(|&i| !done[i] && can_run(&all[i], &world, slots)).collect();
        let touches: Vec<(u64, bool)> = enabled.iter().filter_map(|&i| touch(&all[i])).collect();
        for (i, a) in touches.iter().enumerate() {
            shown.race |= touches[..i].iter().any(|b| a.0 == b.0 && (a.1 || b.1));
        }
        let signals: Vec<(u64, u64)> = enabled.iter().filter_map(|&i| signal(&all[i])).collect();
        for (i, (slot, value)) in signals.iter().enumerate() {
            shown.writers |= signals[..i].iter().any(|(other, _)| other == slot);
            shown.writers |= *value <= world.memories.read(slots, slot * 8, 8);
        }
        if enabled.is_empty() {
            shown.deadlock |= done.contains(&false);
            return;
        }
        if depth == path.len() {
            path.push((enabled, 0));
        }
        let (alternatives, chosen) = &path[depth];
        let step = all[alternatives[*chosen]].step(&mut world, &mut Unobserved).unwrap();
        assert_eq!(step, Step::Ran);
    }
}

fn next<'k>(instance: &Instance<'k>) -> Option<&'k Op> {
    instance.next_inst().map(|inst| &instance.kernel().insts[inst].op)
}

/// Runs what nobody else can see.
fn settle(instance: &mut Instance<'_>, done: &mut bool, world: &mut World) {
    let seen = |op: Option<&Op>| {
        use Op::{Load, Signal, Store, Test, Wait};
        matches!(op, Some(Load { .. } | Store { .. } | Signal { .. } | Wait { .. } | Test { .. }))
    };
    while !*done && !seen(next(instance)) {
        *done = instance.step(world, &mut Unobserved).unwrap() == Step::Done;
    }
}

fn number(kernel: &Kernel, v: Value) -> u64 {
    kernel.as_const(v).expect("small programs are constant").bits
}

fn can_run(instance: &Instance<'_>, world: &World, slots: MemoryId) -> bool {
    match next(instance) {
        Some(Op::Wait { slot, x }) => {
            let kernel = instance.kernel();
            world.memories.read(slots, number(kernel, slot.index) * 8, 8) >= number(kernel, *x)
        }
        _ => true,
    }
}

fn touch(instance: &Instance<'_>) -> Option<(u64, bool)> {
    match next(instance)? {
        Op::Load { at, .. } => Some((number(instance.kernel(), at.index), false)),
        Op::Store { at, .. } => Some((number(instance.kernel(), at.index), true)),
        _ => None,
    }
}

fn signal(instance: &Instance<'_>) -> Option<(u64, u64)> {
    match next(instance)? {
        Op::Signal { slot, x } => Some((number(instance.kernel(), slot.index), number(instance.kernel(), *x))),
        _ => None,
    }
}

#[test]
fn one_run_says_what_all_interleavings_say() {
    let (mut racy, mut stuck, mut fine, mut runs) = (0, 0, 0, 0);
    for seed in 0..600u64 {
        let mut random = Random(seed);
        let (parties, ops) = if seed.is_multiple_of(2) { (2, 6) } else { (3, 3) };
        let program = program(&mut random, parties, ops);
        let kernels = trace(&program);
        let (shown, count) = all_interleavings(&kernels);
        runs += count;
        let report = check(&[kernels]);
        assert!(report.is_decided() && report.schedules == 1, "{report}");
        let has = |kind| kinds(&report).contains(&kind);
        let said = Shown { race: has("race"), deadlock: has("deadlock"), writers: has("two-writers") };
        assert_eq!(said, shown, "seed {seed}: {program:?}\n{report}");
        racy += usize::from(shown.race);
        stuck += usize::from(shown.deadlock);
        fine += usize::from(!shown.race && !shown.deadlock);
    }
    println!("{runs} interleavings: {racy} programs race, {stuck} deadlock, {fine} do neither");
    assert!(racy > 50 && stuck > 50 && fine > 20, "{racy} {stuck} {fine}");
}
