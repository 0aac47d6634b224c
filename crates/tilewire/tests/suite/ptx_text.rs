//! The PTX of the main kernels, kept beside the tests and judged for what it must contain.

use crate::snapshots::assert_snapshot;
use std::collections::BTreeSet;
use tilewire::ir::{Access, Kernel, Op, Type};
use tilewire::ptx::{Options, PtxError, Target, emit};
use tilewire_testkit::code::{Code, at};
use tilewire_testkit::kernels;
use tilewire_testkit::ptx_machine::{Access as Touch, Code as Parsed, Instr, Operand, Space};
use tilewire_testkit::simulated::run_as_defined;

fn text(kernel: &Kernel) -> String {
    emit(kernel, Options::new(Target::Sm90a)).unwrap().text
}

#[test]
fn main_kernels_look_as_they_did() {
    for (name, kernel) in kernels::all() {
        if ["scale", "staged", "packets", "bulk", "network"].contains(&name) {
            assert_snapshot(&format!("{name}.ptx"), &text(&kernel));
        }
    }
}

/// The leader hands out a value that it loaded from memory after the ops that only fill scratch: both loads are under
/// way together. It hands out a value that it loaded from scratch before that.
#[test]
fn what_fills_scratch_does_not_wait_for_what_is_loaded() {
    use tilewire::{Tensor, kernel};
    const X: usize = 0;
    const COUNTER: usize = 2;
    let (x, y, counter) = (Tensor::<f32>::zeros(1024), Tensor::<f32>::zeros(1024), Tensor::<u32>::zeros(1));
    for of_scratch in [false, true] {
        let traced = kernel("prepares", |k| {
            let (x, y, counter) = (k.input(&x), k.output(&y), k.inout(&counter));
            k.role("main", 4).run(|r| {
                let (filled, number) = (r.scratch::<f32>(1024), r.scratch::<u32>(1024));
                r.each(1024, |i| number.store(i, i.cast::<u32>()));
                let loaded = if of_scratch { number.load(5) } else { counter.load(0) };
                r.each(1024, |i| filled.store(i, x.load(i)));
                r.each(1024, |i| y.store(i, filled.load(i) + loaded.cast::<f32>()));
                counter.store(0, loaded + 1);
            });
        });
        let (text, run) = run_as_defined("prepares", &traced.unwrap(), Target::Sm90a);
        let everybody = run.trace.accesses(|access| access.load);
        // A load of the leader alone, which no other thread makes.
        let alone = |load: &Touch| everybody.iter().all(|(_, other)| other.thread == 0 || !other.overlaps(load));
        let loaded = |access: &Touch| match of_scratch {
            true => access.space == Space::Shared && alone(access),
            false => run.is_to(access, 0, COUNTER),
        };
        let mut leader = everybody.iter().filter(|(_, access)| access.thread == 0);
        let &(loaded, by) = leader.clone().find(|(_, access)| loaded(access)).expect("the leader loads");
        let &(fills, _) = leader.find(|(_, access)| run.is_to(access, 0, X)).expect("scratch is filled");
        assert!(loaded < fills && alone(by), "{text}");
        assert_eq!(run.trace.meetings(by, loaded, fills), usize::from(of_scratch), "{text}");
    }
}

/// Lanes wait for what the leader has written, also if a bulk copy comes in between. The barrier with which that copy
/// makes room is usually skipped.
#[test]
fn a_bulk_copy_is_no_barrier() {
    use tilewire::{Tensor, kernel};
    let (x, y, from) = (Tensor::<u32>::zeros(1), Tensor::<u32>::zeros(1024), Tensor::<u32>::zeros(1024));
    let traced = kernel("room", |k| {
        let (x, y, from) = (k.inout(&x), k.output(&y), k.input(&from));
        k.role("main", 4).run(|r| {
            let scratch = r.scratch::<u32>(1024);
            x.store(0, 7u32);
            r.bulk_copy(scratch, from, 1024);
            r.each(1024, |i| y.store(i, x.load(0) + i.cast::<u32>()));
            r.bulk_wait(0, tilewire::ir::BulkDone::Complete);
        });
    });
    let (text, run) = run_as_defined("room", &traced.unwrap(), Target::Sm90a);
    let (loads, stores): (Vec<_>, Vec<_>) =
        run.trace.accesses(|access| run.is_to(access, 0, 0)).into_iter().partition(|(_, access)| access.load);
    let [store] = stores[..] else { panic!("one store to x: {stores:?}\n{text}") };
    let others: Vec<_> = loads.into_iter().filter(|(_, load)| load.thread != store.1.thread).collect();
    let lanes = BTreeSet::from_iter(others.iter().map(|(_, load)| load.thread));
    assert_eq!(lanes.len(), 4 * 32 - 1, "{text}");
    // In this run there is room, so the barrier of a full group is skipped.
    assert!(others.into_iter().all(|load| run.trace.met_between(store, load)), "{text}");
}

/// `y = x` for `n` elements of a type, both aligned to `align`.
fn copy(ty: Type, n: u64, align: u32) -> Kernel {
    use tilewire::ir::Param;
    let mut code = Code::new("copy");
    let buffer = |name: &str, access| Param::Buffer { name: name.into(), ty, len: n, banks: 1, access, align };
    let (x, y) = (code.builder.param(buffer("x", Access::In)), code.builder.param(buffer("y", Access::Out)));
    code.role("main", 4, 1, |c, _| {
        let n = c.int(n as i64);
        c.each(&[n], |c, i| {
            let loaded = c.load(at(x, i[0]));
            c.store(at(y, i[0]), loaded);
        });
    });
    code.finish()
}

#[test]
fn accesses_are_as_wide_as_alignment_allows() {
    for (ty, align, load, store) in [
        (Type::F32, 16, "ld.global.v4.b32", "st.global.v4.b32"),
        (Type::F32, 8, "ld.global.v2.b32", "st.global.v2.b32"),
        (Type::F32, 4, "ld.global.nc.b32", "st.global.b32"),
        (Type::BF16, 16, "ld.global.v4.b32", "st.global.v4.b32"),
        (Type::F8E4M3, 4, "ld.global.b32", "st.global.b32"),
        (Type::F64, 16, "ld.global.v2.b64", "st.global.v2.b64"),
        (Type::I16, 2, "ld.global.nc.s16", "st.global.b16"),
    ] {
        let text = text(&copy(ty, 4096, align));
        assert!(text.contains(load) && text.contains(store), "{ty} aligned to {align}\n{text}");
    }
    // A length that is no multiple of a vector leaves a remainder, which is handled element by element.
    let odd = text(&copy(Type::F32, 4099, 16));
    assert!(odd.contains("ld.global.v4.b32") && odd.contains("ld.global.nc.b32"), "{odd}");
    // Several loads are under way before the first store.
    let first_store = odd.find("st.global").unwrap();
    assert!(odd[..first_store].matches("ld.global.v4").count() >= 4, "{odd}");
}

#[test]
fn orders_are_in_the_text() {
    let text = text(&kernels::staged());
    let code = Parsed::parse(&text).unwrap();
    let instrs = &code.instrs;
    // There is one data signal: a barrier right before its release. There is one credit: a barrier, then a relaxed
    // store. The leader makes both, to the first byte of a slot. The reports of a wait that gives up go to other
    // places.
    for order in ["release", "relaxed"] {
        let is_signal = |instr: &&Instr| {
            instr.parts == ["st", order, "sys", "global", "u64"]
                && instr.guard.is_some()
                && matches!(instr.args[0], Operand::Memory(_, 0))
        };
        let signals: Vec<usize> = (0..instrs.len()).filter(|&k| is_signal(&&instrs[k])).collect();
        assert_eq!(signals.len(), 1, "{order}\n{text}");
        let before = instrs[..signals[0]].iter().rev().find(|instr| matches!(&*instr.parts[0], "st" | "bar"));
        assert!(before.is_some_and(|instr| instr.parts[0] == "bar"), "{order}\n{text}");
    }
    // Every poll of a slot is an acquire. After the last poll of a wait, a barrier comes before any other access.
    let looks = instrs.iter().filter(|instr| instr.parts == ["ld", "acquire", "sys", "global", "u64"]);
    assert_eq!(looks.count(), 3 + 3 + 1, "{text}");
    // Each copy of each role has a barrier for its own lanes. The barrier's number is in a register. Barrier 0, of the
    // whole block, is not used.
    let barriers: Vec<&Instr> = instrs.iter().filter(|instr| instr.parts == ["bar", "sync"]).collect();
    assert!(!barriers.is_empty(), "{text}");
    assert!(barriers.iter().all(|i| matches!(i.args[..], [Operand::Reg(_), Operand::Imm(128)])), "{text}");
}

#[test]
fn what_does_not_fit_a_block_is_refused_with_figures() {
    let refused = |kernel: &Kernel, target| emit(kernel, Options::new(target)).unwrap_err();
    let mut code = Code::new("warps");
    code.role("main", 11, 3, |_, _| {});
    assert_eq!(refused(&code.finish(), Target::Sm90a), PtxError::TooManyWarps { warps: 33, most: 32 });

    let mut code = Code::new("barriers");
    code.role("main", 2, 16, |_, _| {});
    assert_eq!(refused(&code.finish(), Target::Sm90a), PtxError::TooManyBarriers { copies: 16, most: 15 });

    let mut code = Code::new("scratch");
    code.role("main", 1, 2, |c, role| {
        let tile = c.builder.scratch(role, Type::F32, 15_000);
        let zero = c.int(0);
        let x = c.f32(1.0);
        let place = tilewire::ir::Place { base: tilewire::ir::Base::Scratch(tile), bank: None, index: zero };
        c.run(Op::Store { at: place, x, mask: None });
    });
    let kernel = code.finish();
    assert!(emit(&kernel, Options::new(Target::Sm90a)).is_ok());
    let error = refused(&kernel, Target::Sm120);
    assert!(matches!(error, PtxError::SharedMemory { bytes: 120_000.., most: 101_376, .. }), "{error}");
    assert!(error.to_string().contains("101376"), "{error}");
}
