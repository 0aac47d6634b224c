//! Blocks, parameters, roles and scratch.

use super::*;

#[test]
fn parameters() {
    let mut code = Code::new("k");
    code.role("main", 1, 1, |_, _| {});
    let buffer = |name: &str, banks, align, len| {
        let (name, ty, access) = (name.into(), Type::F32, Access::In);
        Param::Buffer { name, ty, len, banks, access, align }
    };
    code.builder.param(buffer("a", 0, 64, 1));
    code.builder.param(buffer("b", 1, 48, 1));
    code.builder.param(buffer("c", 1, 2, 1));
    code.builder.param(buffer("d", 1, 64, u64::MAX / 2));
    code.builder.param(Param::Slots { name: "e".into(), len: 1, stride: 0, banks: 1 });
    code.builder.param(Param::Slots { name: "f".into(), len: 1, stride: 12, banks: 0 });
    let kernel = code.finish();
    for (param, reason) in [
        ("a", "it has 0 banks; 1 is the least"),
        ("b", "alignment 48 is not a power of two of at least 4 (f32)"),
        ("c", "alignment 2 is not a power of two of at least 4 (f32)"),
        ("d", "9223372036854775807 elements of 4 bytes do not fit an address space"),
        ("e", "stride 0 is not a multiple of 8; a slot is 8 bytes"),
        ("f", "it has 0 banks; 1 is the least"),
        ("f", "stride 12 is not a multiple of 8; a slot is 8 bytes"),
    ] {
        let fault = Fault::BadParam { param: param.into(), reason: reason.into() };
        refused_as_a_whole(&kernel, fault, &format!("error: parameter {param}: {reason}\n  in kernel k"));
    }
}

#[test]
fn scratch() {
    let (kernel, _) = kernel(|c, _, role| c.builder.scratch(role, Type::F64, u64::MAX));
    let reason = "18446744073709551615 elements of 8 bytes do not fit an address space";
    let fault = Fault::BadScratch { scratch: "s0".into(), reason: reason.into() };
    refused_as_a_whole(&kernel, fault, &format!("error: scratch s0: {reason}\n  in kernel k"));
}

#[test]
fn roles() {
    let fault = |reason: &str| Fault::BadRole { reason: reason.into() };
    let reason = "the kernel has no role";
    refused_as_a_whole(&Code::new("k").finish(), fault(reason), &format!("error: {reason}\n  in kernel k"));

    for (warps, copies, reason) in
        [(0, 1, "a role of 0 warps; it needs at least 1"), (1, 0, "a role of 0 copies; it needs at least 1")]
    {
        let mut code = Code::new("k");
        let line = line!() + 1;
        code.role("main", warps, copies, |_, _| {});
        refused((code.finish(), line), fault(reason), &format!("error: {reason}\n  in kernel k, role main"));
    }

    let mut code = Code::new("k");
    code.role("main", 1, 1, |_, _| {});
    let line = line!() + 1;
    code.role("main", 1, 1, |_, _| {});
    let reason = "two roles of this name; give every role its own";
    refused((code.finish(), line), fault(reason), &format!("error: {reason}\n  in kernel k, role main"));

    for (warps, copies, reason) in [
        (17, 2, "the roles of a block have 34 warps, copies counted; 32 is the most"),
        (1, 16, "a block has 16 role copies; 15 is the most (each has a named barrier)"),
    ] {
        let mut code = Code::new("k");
        code.role("main", warps, copies, |_, _| {});
        refused_as_a_whole(&code.finish(), fault(reason), &format!("error: {reason}\n  in kernel k"));
    }
}

#[test]
fn blocks() {
    let mut kernel = kernels::scale();
    kernel.blocks = 0;
    let text = "error: the kernel has 0 blocks; 1 is the least\n  in kernel scale";
    refused_as_a_whole(&kernel, Fault::BlocksZero, text);
}
