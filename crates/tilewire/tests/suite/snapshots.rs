//! The text of kernels, kept beside the tests. `TILEWIRE_BLESS=1 cargo test -p tilewire --test suite snapshots` accepts
//! new text.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use tilewire::ir::{Kernel, Op, SourceLine, Special, Type, fingerprint, inst_text, verify};
use tilewire_testkit::code::Code;
use tilewire_testkit::kernels;

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
    assert!(missing.is_empty(), "no kernel of tilewire_testkit::kernels has the ops numbered {missing:?}");
}

const VARIANTS: usize = 34;

/// Gives every op a number. A new op does not compile here until it has one, and then it needs a snapshot.
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
        Op::If { .. } => 29,
        Op::For { .. } => 30,
        Op::While { .. } => 31,
        Op::Each { .. } => 32,
        Op::Require { .. } => 33,
    }
}

/// `rank` twice. The second one is dead or alive, on the same line or another one.
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

/// Caches outlive a process. A change of this number drops them all, so it must be intended.
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

/// Compares `text` with `tests/snapshots/<name>.txt`; `TILEWIRE_BLESS=1` writes the file instead.
#[track_caller]
pub fn assert_snapshot(name: &str, text: &str) {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests", "snapshots", &format!("{name}.txt")].iter().collect();
    if std::env::var_os("TILEWIRE_BLESS").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("make the snapshot folder");
        return std::fs::write(&path, text).expect("write the snapshot");
    }
    let bless = "run the test with TILEWIRE_BLESS=1 to accept what it prints now";
    let Ok(expected) = std::fs::read_to_string(&path) else {
        panic!("no snapshot at {}; {bless}\n{text}", path.display());
    };
    // A checkout may have rewritten line ends.
    let expected = expected.replace("\r\n", "\n");
    assert!(expected == text, "{} differs (- kept, + now); {bless}\n{}", path.display(), diff(&expected, text));
}

/// The lines of two texts side by side: `-` only in the first, `+` only in the second, by longest common subsequence.
pub fn diff(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let mut common = vec![vec![0u32; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match old[i] == new[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut out) = (0, 0, String::new());
    while i < old.len() || j < new.len() {
        let (mark, line) = if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
            (' ', new[j - 1])
        } else if j == new.len() || i < old.len() && common[i + 1][j] >= common[i][j + 1] {
            i += 1;
            ('-', old[i - 1])
        } else {
            j += 1;
            ('+', new[j - 1])
        };
        writeln!(out, "{mark} {line}").expect("writing to a string");
    }
    out
}
