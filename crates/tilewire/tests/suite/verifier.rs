//! The faults that the verifier reports, each with its message and line.

mod bounds;
mod declarations;
mod positions;
mod records;
mod scopes;
mod types;

use tilewire::ir::{
    Access, Base, BinaryOp, Def, Entity, Fault, GroupOp, Inst, Kernel, Mask, Notice, NoticeKind, Op, Param, ParamId,
    Place, PostSpan, Region, RoleId, Shape, Slot, SourceLine, Special, Type, Value, VarId, verify,
};
use tilewire_testkit::code::{Code, at, slot};
use tilewire_testkit::kernels;

/// The parameters of the kernels below.
struct Params {
    x: ParamId,
    y: ParamId,
    bytes: ParamId,
    banked: ParamId,
    slots: ParamId,
}

/// A kernel of one role with this body.
fn kernel<R>(body: impl FnOnce(&mut Code, &Params, RoleId) -> R) -> (Kernel, R) {
    let mut code = Code::new("k");
    let params = Params {
        x: code.buffer("x", Access::In, Type::F32, 64),
        y: code.buffer("y", Access::Out, Type::F32, 64),
        bytes: code.buffer("bytes", Access::InOut, Type::U8, 64),
        banked: code.banked("banked", Access::InOut, Type::F32, 64, 2),
        slots: code.slots("slots", 4, 2),
    };
    let mut result = None;
    code.role("main", 1, 1, |c, role| result = Some(body(c, &params, role)));
    (code.finish(), result.expect("the body ran"))
}

/// Asserts that the kernel has this one fault, with this text, at this line.
#[track_caller]
fn refused((kernel, line): (Kernel, u32), fault: Fault, text: &str) {
    let errors = verify(&kernel).expect_err("the kernel is malformed").0;
    assert_eq!(errors.len(), 1, "one fault expected:\n{errors:#?}\n{kernel}");
    assert_eq!(errors[0].fault, fault);
    let (at, file) = (errors[0].at.as_ref().expect("a source line"), SourceLine::caller().file);
    assert_eq!(at.line, line);
    assert_eq!(errors[0].to_string(), format!("{text}\n  at {}:{line}:{}", file, at.column));
}

/// Asserts that the kernel has this fault of a declaration, which has no line.
#[track_caller]
fn refused_as_a_whole(kernel: &Kernel, fault: Fault, text: &str) {
    let errors = verify(kernel).expect_err("the kernel is malformed").0;
    assert!(errors.iter().any(|error| error.fault == fault && error.to_string() == text), "{errors:#?}");
}

/// The first instruction that satisfies `f`.
fn find(kernel: &Kernel, f: impl Fn(&Op) -> bool) -> Inst {
    kernel.insts.iter().find(|(_, data)| f(&data.op)).expect("there is one").0
}

#[test]
fn every_fault_has_a_test() {
    let source = include_str!("../../src/ir/verify/fault.rs");
    let (_, rest) = source.split_once("pub enum Fault {").expect("the enum");
    let (body, _) = rest.split_once("\n}").expect("its end");
    let names = body.lines().filter_map(|line| line.strip_prefix("    "));
    let names = names.filter(|line| line.starts_with(char::is_uppercase));
    let names: Vec<&str> = names.map(|line| line.split([' ', ',', '(']).next().expect("a name")).collect();
    assert!(names.len() > 20, "{names:?}");
    let tests = [
        include_str!("verifier/bounds.rs"),
        include_str!("verifier/declarations.rs"),
        include_str!("verifier/positions.rs"),
        include_str!("verifier/records.rs"),
        include_str!("verifier/scopes.rs"),
        include_str!("verifier/types.rs"),
    ];
    for name in names {
        assert!(tests.iter().any(|test| test.contains(&format!("Fault::{name}"))), "no test of Fault::{name}");
    }
}

#[test]
fn all_faults_are_reported_at_once() {
    let (mut kernel, _) = kernel(|c, p, _| {
        let (a, b) = (c.int(1), c.f32(1.0));
        c.value(Op::Binary { op: BinaryOp::Add, a, b });
        c.value(Op::Group { op: GroupOp::Sum, x: b, size: 0 });
        c.load(at(p.x, a));
    });
    kernel.blocks = 0;
    let text = verify(&kernel).unwrap_err().to_string();
    let found: Vec<&str> = text.lines().filter(|line| !line.starts_with("  at ")).collect();
    let expected = [
        "error: the kernel has 0 blocks; 1 is the least",
        "  in kernel k",
        "error: add of i64 and f32; cast one of them",
        "  in kernel k, role main: v2: i64 = add v0, v1",
        "error: an op on elements outside any each; put it in the body of one",
        "  in kernel k, role main: v3: f32 = group_sum v1 of 0",
        "error: group of 0 elements",
        "  in kernel k, role main: v3: f32 = group_sum v1 of 0",
    ];
    assert_eq!(found, expected);
}
