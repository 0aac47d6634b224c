//! The text of kernels, kept beside the tests; `TILEWIRE_BLESS=1 cargo test -p tilewire --test suite snapshots` accepts new
//! text.

use crate::support;

use std::collections::BTreeSet;
use support::code::Code;
use support::{assert_snapshot, diff, kernels};
use tilewire::ir::{Kernel, Op, SourceLine, Special, Type, fingerprint, inst_text, verify};

#[test]
fn text_of_every_op() {
    for (name, kernel) in kernels::all() {
        verify(&kernel).unwrap_or_else(|errors| panic!("{name}: {errors}"));
        assert_snapshot(name, &kernel.to_string());
    }
}

#[test]
fn every_op_is_in_a_snapshot() {
    let mut met = BTreeSet::new();
    for (_, kernel) in kernels::all() {
        for role in kernel.roles.values() {
            kernel.walk(role.body, &mut |inst| {
                met.insert(variant(&kernel.insts[inst].op));
            });
        }
    }
    let missing: Vec<_> = (0..VARIANTS).filter(|number| !met.contains(number)).collect();
    assert!(missing.is_empty(), "no kernel of tests/support/kernels.rs has the ops numbered {missing:?}");
}

const VARIANTS: usize = 34;

/// Numbers the ops. A new op does not compile here until it has a number, and then needs a snapshot.
fn variant(op: &Op) -> usize {
    match op {
        Op::Const(_) => 0,
        Op::Special(_) => 1,
        Op::Scalar(_) => 2,
        Op::Unary { .. } => 3,
        Op::Binary { .. } => 4,
        Op::Compare { .. } => 5,
        Op::Select { .. } => 6,
        Op::Fma { .. } => 7,
        Op::Cast { .. } => 8,
        Op::Bitcast { .. } => 9,
        Op::Group { .. } => 10,
        Op::ReadVar(_) => 11,
        Op::WriteVar { .. } => 12,
        Op::Load { .. } => 13,
        Op::Store { .. } => 14,
        Op::AtomicAdd { .. } => 15,
        Op::Put { .. } => 16,
        Op::Get { .. } => 17,
        Op::Signal { .. } => 18,
        Op::SignalCredit { .. } => 19,
        Op::Wait { .. } => 20,
        Op::Test { .. } => 21,
        Op::PacketPut { .. } => 22,
        Op::PacketGet { .. } => 23,
        Op::BulkCopy { .. } => 24,
        Op::BulkWait { .. } => 25,
        Op::ProxyFence => 26,
        Op::Barrier => 27,
        Op::Post { .. } => 28,
        Op::PostSignal { .. } => 29,
        Op::If { .. } => 30,
        Op::For { .. } => 31,
        Op::While { .. } => 32,
        Op::Each { .. } => 33,
    }
}

/// `rank` twice, the second one dead or alive, from one line or from two.
fn ranks(dead: bool, lines: [u32; 2]) -> Kernel {
    let mut code = Code::new("ranks");
    let [first, second] = lines.map(|line| SourceLine { file: "hook.rs", line, column: 9 });
    code.builder.open_role("main", 1, 1, &first);
    if dead {
        let never = code.builder.open(false);
        code.builder.push(Op::Special(Special::Block), &first);
        code.builder.close();
        let _ = never;
    }
    let x = code.builder.value(Op::Special(Special::Rank), &first);
    code.builder.push(Op::Cast { x, to: Type::I32 }, &second);
    code.builder.close();
    code.finish()
}

#[test]
fn lines_are_comments_of_the_alternate_form() {
    let expected = "\
kernel ranks blocks 1
role r0 main warps 1 copies 1 { ; hook.rs:3
  v0: i64 = rank ; hook.rs:3
  v1: i32 = cast v0 to i32 ; hook.rs:4
}
";
    assert_eq!(format!("{:#}", ranks(false, [3, 4])), expected);
}

#[test]
fn dead_entries_and_lines_change_neither_text_nor_fingerprint() {
    let (plain, other) = (ranks(false, [3, 4]), ranks(true, [30, 40]));
    assert_ne!(plain.insts.len(), other.insts.len());
    assert_eq!(plain.to_string(), other.to_string());
    assert_eq!(fingerprint(&plain), fingerprint(&other));
    assert_ne!(fingerprint(&plain), fingerprint(&kernels::scale()));
}

/// Caches outlive a process: a change of this number drops them all, and must be meant.
#[test]
fn the_fingerprint_is_stable() {
    assert_eq!(format!("{:#018x}", fingerprint(&ranks(false, [1, 1]))), "0x7809122d6f82c747");
}

#[test]
fn one_instruction_prints_as_it_does_in_its_kernel() {
    for (_, kernel) in kernels::all() {
        let text = kernel.to_string();
        for role in kernel.roles.values() {
            kernel.walk(role.body, &mut |inst| {
                let line = inst_text(&kernel, inst);
                let head = line.split(" {..}").next().unwrap_or(&line);
                assert!(text.contains(head), "{line}");
            });
        }
    }
}

#[test]
fn a_diff_marks_what_changed() {
    assert_eq!(diff("a\nb\nc\n", "a\nx\nc\nd\n"), "  a\n- b\n+ x\n  c\n+ d\n");
}
