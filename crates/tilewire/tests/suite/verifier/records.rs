//! Kernels whose tables contradict each other.

use super::*;

/// `rank` and a cast of it. Returns the line of the cast.
fn cast_of_rank() -> (Kernel, u32) {
    kernel(|c, _, _| {
        let x = c.value(Op::Special(Special::Rank));
        let line = line!() + 1;
        c.value(Op::Cast { x, to: Type::I8 });
        line
    })
}

#[test]
fn ids_are_of_this_kernel() {
    let (mut kernel, line) = cast_of_rank();
    let cast = find(&kernel, |op| matches!(op, Op::Cast { .. }));
    kernel.insts[cast].op = Op::Cast { x: Value::new(99), to: Type::I8 };
    let text = "error: v99 is not of this kernel\n  in kernel k, role main: v1: i8 = cast ?v99 to i8";
    refused((kernel.clone(), line), Fault::Dangling { id: "v99".into() }, text);

    kernel.insts[cast].op = Op::ReadVar(VarId::new(7));
    let text = "error: x7 is not of this kernel\n  in kernel k, role main: v1: i8 = read ?x7";
    refused((kernel.clone(), line), Fault::Dangling { id: "x7".into() }, text);

    kernel.roles[RoleId::new(0)].body = Region::new(50);
    let text = "error: b50 is not of this kernel\n  in kernel k, role main";
    let errors = verify(&kernel).unwrap_err();
    assert!(errors.to_string().starts_with(text), "{errors}");
}

#[test]
fn the_recorded_result_is_that_of_the_op() {
    let (mut kernel, line) = cast_of_rank();
    let cast = find(&kernel, |op| matches!(op, Op::Cast { .. }));
    let result = kernel.insts[cast].result.unwrap();
    kernel.values[result].shape = Shape::Lane;
    let (expected, recorded) = (Some((Type::I8, Shape::Uniform)), Some((Type::I8, Shape::Lane)));
    let text = "error: the op defines a uniform i8 but a lane i8 is recorded\n  \
                in kernel k, role main: v1: lane i8 = cast v0 to i8";
    refused((kernel.clone(), line), Fault::WrongResult { expected, recorded }, text);

    kernel.insts[cast].result = None;
    let text = "error: the op defines a uniform i8 but no value is recorded\n  in kernel k, role main: cast v0 to i8";
    refused((kernel, line), Fault::WrongResult { expected, recorded: None }, text);
}

#[test]
fn a_value_names_what_defines_it() {
    let (mut kernel, line) = cast_of_rank();
    let cast = find(&kernel, |op| matches!(op, Op::Cast { .. }));
    let result = kernel.insts[cast].result.unwrap();
    kernel.values[result].def = Def::Index { inst: cast, axis: 0 };
    let text = "error: v1 is recorded as defined by something else\n  in kernel k, role main: v1: i8 = cast v0 to i8";
    refused((kernel, line), Fault::WrongDef { value: "v1".into() }, text);
}

#[test]
fn a_loop_records_its_indices() {
    let (mut kernel, (each, line)) = kernel(|c, _, _| {
        let n = c.int(4);
        let line = line!() + 1;
        let each = c.each(&[n], |_, _| {});
        (each, line)
    });
    kernel.insts[each].indices.clear();
    let text = "error: the op has 1 index values but 0 are recorded\n  in kernel k, role main: each  in v0 {..}";
    refused((kernel, line), Fault::WrongIndices { expected: 1, recorded: 0 }, text);
}

#[test]
fn a_region_stands_in_one_place() {
    let made = kernel(|c, _, _| {
        let cond = c.constant(Type::Bool, 1);
        let then = c.builder.open(false);
        c.builder.close();
        let line = line!() + 1;
        c.run(Op::If { cond, then, otherwise: then });
        line
    });
    let text = "error: region b1 stands in two places; give each its own copy of the instructions\n  \
                in kernel k, role main: if v0 {..}";
    refused(made, Fault::RegionShared { region: "b1".into() }, text);
}

#[test]
fn a_region_inside_itself_is_no_endless_loop() {
    let (mut kernel, line) = kernel(|c, _, _| {
        let cond = c.constant(Type::Bool, 1);
        let line = line!() + 1;
        c.if_(cond, |_| {}, |_| {});
        line
    });
    let body = kernel.roles[RoleId::new(0)].body;
    let branch = find(&kernel, |op| matches!(op, Op::If { .. }));
    if let Op::If { then, .. } = &mut kernel.insts[branch].op {
        *then = body;
    }
    assert!(kernel.to_string().contains("..."));
    let text = "error: region b0 stands in two places; give each its own copy of the instructions\n  \
                in kernel k, role main: if v0 {..}";
    refused((kernel, line), Fault::RegionShared { region: "b0".into() }, text);
}

#[test]
fn an_instruction_stands_in_one_place() {
    let (mut kernel, line) = cast_of_rank();
    let cast = find(&kernel, |op| matches!(op, Op::Cast { .. }));
    let body = kernel.roles[RoleId::new(0)].body;
    kernel.regions[body].push(cast);
    let text = "error: instruction i1 stands in two places; copy it\n  in kernel k, role main: v1: i8 = cast v0 to i8";
    refused((kernel, line), Fault::InstShared { inst: "i1".into() }, text);
}

#[test]
fn nesting_has_a_limit() {
    let (kernel, _) = kernel(|c, _, _| {
        let cond = c.constant(Type::Bool, 1);
        let regions: Vec<Region> = (0..10_000).map(|_| c.builder.open(false)).collect();
        let otherwise: Vec<Region> = regions
            .iter()
            .map(|_| {
                let region = c.builder.open(false);
                c.builder.close();
                region
            })
            .collect();
        for (then, otherwise) in regions.into_iter().zip(otherwise).rev() {
            c.builder.close();
            c.run(Op::If { cond, then, otherwise });
        }
    });
    let errors = verify(&kernel).unwrap_err().0;
    assert_eq!(errors.len(), 2, "both branches of the innermost: {errors:?}");
    assert_eq!(errors[0].fault, Fault::TooDeep { limit: 128 });
    let text = "error: regions are nested more than 128 deep\n  in kernel k, role main: if v0 {..}\n  at ";
    assert!(errors[0].to_string().starts_with(text), "{}", errors[0]);
    assert!(kernel.to_string().contains("..."));
}
