//! Random programs depend on none of the freedoms that the language leaves: the order of elements, the schedule, the
//! number of copies, the time of bulk copies.

use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};
use tilewire::check::{
    self, Access, AccessKind, Actor, BulkTiming, ElementOrder, InstanceOptions, MemoryId, Observer, Options, Schedule,
    World,
};
use tilewire::ir::{Inst, Op, Type, verify};
use tilewire_testkit::programs::{Hosted, Program};

fn results(program: &Program, options: Options) -> Vec<Vec<Vec<u8>>> {
    let (binding, memories) = program.bind();
    let after = check::run(&program.kernel, &binding, memories, options).unwrap_or_else(|e| panic!("{e}\n{program:?}"));
    program.results(&binding, &after)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn programs_are_legal(program in crate::strategy::programs()) {
        if let Err(faults) = verify(&program.kernel) {
            panic!("{faults:?}\n{program:?}");
        }
    }

    #[test]
    fn element_orders_agree(program in crate::strategy::programs(), seed: u64) {
        let forward = results(&program, Options::default());
        for order in [ElementOrder::Reverse, ElementOrder::Shuffled(seed)] {
            let instance = InstanceOptions { order, ..InstanceOptions::default() };
            prop_assert_eq!(&forward, &results(&program, Options { instance, ..Options::default() }));
        }
    }

    #[test]
    fn schedules_agree(program in crate::strategy::programs(), seed: u64) {
        let in_turn = results(&program, Options::default());
        for schedule in [Schedule::ToBlock, Schedule::Random(seed)] {
            prop_assert_eq!(&in_turn, &results(&program, Options { schedule, ..Options::default() }));
        }
    }

    #[test]
    fn copies_and_bulk_timing_do_not_matter(program in crate::strategy::programs()) {
        let plain = results(&program, Options::default());
        let instance = InstanceOptions { bulk: BulkTiming::Late, ..InstanceOptions::default() };
        let other = Options { instance, most_copies: u32::MAX, ..Options::default() };
        prop_assert_eq!(&plain, &results(&program, other));
    }

    #[test]
    fn host_memory_gives_the_same(program in crate::strategy::programs()) {
        let hosted = Hosted::new(&program);
        let after = check::evaluate(&program.kernel, &hosted.args, (0, 1), Options::default());
        let after = after.unwrap_or_else(|e| panic!("{e}\n{program:?}"));
        let mut banks = program.comparable(after);
        for (bank, param) in banks.iter_mut().zip(program.kernel.params.values()) {
            if matches!(param, tilewire::ir::Param::Scalar { .. }) {
                bank.clear();
            }
        }
        prop_assert_eq!(banks, results(&program, Options::default()));
        hosted.results(&program); // nothing outside of the banks was touched
    }

    #[test]
    fn no_two_elements_of_an_each_race(program in crate::strategy::programs()) {
        let (binding, memories) = program.bind();
        let (mut world, mut watch) = (World::new(memories), ElementRaces::default());
        let run = check::launch(&[(&program.kernel, &binding)], &mut world, &mut watch, Options::default());
        prop_assert!(run.is_ok());
        prop_assert!(watch.found.is_empty(), "{:?}", watch.found);
    }

    #[test]
    fn a_program_of_a_seed_is_always_the_same(seed: u64) {
        prop_assert_eq!(format!("{:?}", Program::new(seed, 3)), format!("{:?}", Program::new(seed, 3)));
    }
}

/// Finds bytes that two elements of one `each` touch, one of them writing, not both atomically.
#[derive(Default)]
struct ElementRaces {
    touched: HashMap<Actor, HashMap<(MemoryId, u64), Last>>,
    found: Vec<(Access, Last)>,
}

/// The element that touched a byte last, and its kind of access.
type Last = (u64, AccessKind);

impl Observer for ElementRaces {
    fn access(&mut self, who: Actor, access: &Access) {
        let Some(element) = access.element else { return };
        let reads = |kind| matches!(kind, AccessKind::Read | AccessKind::PacketRead);
        let touched = self.touched.entry(who).or_default();
        for byte in access.bytes.clone() {
            let before = *touched.entry((access.memory, byte)).or_insert((element, access.kind));
            let (other, kind) = before;
            let harmless = reads(kind) && reads(access.kind) || kind == access.kind && kind == AccessKind::Atomic;
            if other != element && !harmless {
                self.found.push((access.clone(), before));
            }
            if !reads(access.kind) {
                touched.insert((access.memory, byte), (element, access.kind));
            }
        }
    }
    fn barrier(&mut self, who: Actor, _: Inst) {
        self.touched.remove(&who);
    }
}

/// The name of an op, with its operation if there are several.
fn name_of(op: &Op) -> String {
    match op {
        Op::Unary { op, .. } => format!("{op:?}"),
        Op::Binary { op, .. } => format!("{op:?}"),
        Op::Compare { op, .. } => format!("Compare{op:?}"),
        Op::Group { op, .. } => format!("Group{op:?}"),
        Op::BulkWait { done, .. } => format!("BulkWait{done:?}"),
        other => {
            let text = format!("{other:?}");
            text.split([' ', '(', '{']).next().expect("a name").to_string()
        }
    }
}

#[test]
fn programs_use_every_op_and_type_that_one_rank_can_run_alone() {
    let mut seen = BTreeSet::new();
    let mut types = BTreeSet::new();
    for seed in 0..600 {
        let kernel = Program::new(seed, 5).kernel;
        for role in kernel.roles.values() {
            kernel.walk(role.body, &mut |inst| {
                let data = &kernel.insts[inst];
                let name = name_of(&data.op);
                if let Some(ty) = data.result.map(|v| kernel.ty(v)) {
                    types.insert((name.clone(), ty));
                }
                if let Op::Cast { x, to } = data.op {
                    types.insert((format!("Cast {}", kernel.ty(x)), to));
                }
                seen.insert(name);
            });
        }
    }
    let want = "Const Special Scalar Neg Abs Not Sqrt Rsqrt Rcp Exp Log Tanh Floor Ceil Trunc RoundEven Add Sub Mul Div Rem \
        MulHi Min Max And Or Xor Shl Shr CompareEq CompareNe CompareLt CompareLe CompareGt CompareGe Select Fma Cast \
        Bitcast GroupMax GroupMin GroupSum GroupScan ReadVar WriteVar Load Store AtomicAdd Put Get Signal SignalCredit \
        Wait Test PacketPut PacketGet BulkCopy BulkWaitRead BulkWaitComplete ProxyFence Barrier If For While Each";
    let missing: Vec<&str> = want.split_whitespace().filter(|&name| !seen.contains(name)).collect();
    assert!(missing.is_empty(), "no program has {missing:?}");
    let lacks = |name: String, ty: Type| !types.contains(&(name.clone(), ty));
    for from in Type::ALL {
        let names = ["Load", "Get", "Select", "Scalar"].map(String::from).into_iter();
        let casts = Type::ALL.map(|to| (format!("Cast {from}"), to)).into_iter();
        let missing: Vec<_> =
            names.map(|name| (name, from)).chain(casts).filter(|(n, t)| lacks(n.clone(), *t)).collect();
        assert!(missing.is_empty(), "no program has {missing:?}");
    }
    for ty in Type::ALL.into_iter().filter(|&ty| ty != Type::Bool) {
        let common =
            ["Add", "Sub", "Mul", "Div", "Min", "Max", "GroupSum", "GroupScan", "GroupMax", "GroupMin", "Bitcast"];
        let own: &[&str] = if ty.is_float() {
            &["Fma", "Sqrt", "Rsqrt", "Rcp", "Exp", "Log", "Tanh", "Floor", "Ceil", "Trunc", "RoundEven"]
        } else {
            &["Rem", "MulHi", "And", "Or", "Xor", "Shl", "Shr", "Not"]
        };
        let missing: Vec<_> = common.iter().chain(own).filter(|name| lacks(name.to_string(), ty)).collect();
        assert!(missing.is_empty(), "no program has {missing:?} of {ty}");
    }
}
