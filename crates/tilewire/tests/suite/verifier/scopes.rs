//! Values, variables and scratch used outside of their scope.

use super::*;

#[test]
fn a_lane_value_stays_in_its_each() {
    let made = kernel(|c, p, _| {
        let n = c.int(64);
        let mut inside = None;
        c.each(&[n], |c, i| inside = Some(c.load(at(p.x, i[0]))));
        let mut line = 0;
        c.each(&[n], |c, i| {
            line = line!() + 1;
            c.store(at(p.y, i[0]), inside.unwrap());
        });
        line
    });
    let text = "error: v2 is a lane value and its each has ended; store it in memory and load it here\n  \
                in kernel k, role main: store p1[v3], v2";
    refused(made, Fault::Escapes { value: "v2".into() }, text);
}

#[test]
fn a_value_is_defined_before_it_is_used() {
    let (mut kernel, line) = kernel(|c, _, _| {
        let x = c.int(1);
        let line = line!() + 1;
        c.value(Op::Cast { x, to: Type::I8 });
        line
    });
    let body = kernel.roles[RoleId::new(0)].body;
    kernel.regions[body].reverse();
    let text = "error: v1 is used before it is defined\n  in kernel k, role main: v0: i8 = cast v1 to i8";
    refused((kernel, line), Fault::UseBeforeDef { value: "v1".into() }, text);
}

#[test]
fn a_loop_index_ends_with_its_loop() {
    let made = kernel(|c, _, _| {
        let n = c.int(4);
        let mut index = None;
        c.for_([n, n, n], |_, i| index = Some(i[0]));
        let line = line!() + 1;
        c.value(Op::Cast { x: index.unwrap(), to: Type::I8 });
        line
    });
    let text = "error: v1 is used after the region that defines it; carry it out in a variable\n  \
                in kernel k, role main: v2: i8 = cast v1 to i8";
    refused(made, Fault::NotDominated { value: "v1".into() }, text);
}

#[test]
fn branches_do_not_see_each_other() {
    let made = kernel(|c, _, _| {
        let cond = c.constant(Type::Bool, 1);
        let (mut inner, mut line) = (None, 0);
        let then = c.builder.open(false);
        inner.replace(c.int(5));
        c.builder.close();
        let otherwise = c.builder.open(false);
        line += line!() + 1;
        c.value(Op::Cast { x: inner.unwrap(), to: Type::I8 });
        c.builder.close();
        c.run(Op::If { cond, then, otherwise });
        line
    });
    let text = "error: v1 is used after the region that defines it; carry it out in a variable\n  \
                in kernel k, role main: v2: i8 = cast v1 to i8";
    refused(made, Fault::NotDominated { value: "v1".into() }, text);
}

#[test]
fn the_head_of_a_while_is_seen_by_its_body_only() {
    let made = kernel(|c, _, _| {
        let head = c.builder.open(false);
        let cond = c.constant(Type::Bool, 0);
        c.builder.close();
        let body = c.builder.open(false);
        c.value(Op::Cast { x: cond, to: Type::I8 });
        c.builder.close();
        c.run(Op::While { head, cond, body });
        let line = line!() + 1;
        c.value(Op::Cast { x: cond, to: Type::I8 });
        line
    });
    let text = "error: v0 is used after the region that defines it; carry it out in a variable\n  \
                in kernel k, role main: v2: i8 = cast v0 to i8";
    refused(made, Fault::NotDominated { value: "v0".into() }, text);
}

#[test]
fn the_condition_of_a_while_is_not_of_its_body() {
    let made = kernel(|c, _, _| {
        let head = c.builder.open(false);
        c.builder.close();
        let body = c.builder.open(false);
        let cond = c.constant(Type::Bool, 0);
        c.builder.close();
        let line = line!() + 1;
        c.run(Op::While { head, cond, body });
        line
    });
    let text = "error: v0 is used before it is defined\n  in kernel k, role main: while {..} when v0 {..}";
    refused(made, Fault::UseBeforeDef { value: "v0".into() }, text);
}

#[test]
fn a_value_of_an_unplaced_instruction() {
    let made = kernel(|c, _, _| {
        c.builder.open(false);
        let x = c.int(1);
        c.builder.close();
        let line = line!() + 1;
        c.value(Op::Cast { x, to: Type::I8 });
        line
    });
    let text =
        "error: v1 is defined by an instruction that no role runs\n  in kernel k, role main: v0: i8 = cast v1 to i8";
    refused(made, Fault::Unplaced { value: "v1".into() }, text);
}

#[test]
fn a_variable_is_written_before_it_is_read() {
    let made = kernel(|c, _, role| {
        let var = c.builder.var(role, Type::I64);
        let n = c.int(4);
        c.for_([n, n, n], |c, i| c.run(Op::WriteVar { var, x: i[0] }));
        let line = line!() + 1;
        c.value(Op::ReadVar(var));
        line
    });
    let text = "error: x0 is read where it may have no value yet; write it before, on every path\n  \
                in kernel k, role main: v2: i64 = read x0";
    refused(made, Fault::Unassigned { var: "x0".into() }, text);
}

#[test]
fn roles_share_no_values_variables_or_scratch() {
    let mut code = Code::new("k");
    let mut of_first = None;
    code.role("first", 1, 1, |c, role| {
        let (x, var, tile) = (c.int(0), c.builder.var(role, Type::I64), c.builder.scratch(role, Type::I64, 4));
        c.run(Op::WriteVar { var, x });
        of_first = Some((x, var, Place { base: Base::Scratch(tile), bank: None, index: x }));
    });
    let (x, var, place) = of_first.unwrap();
    let line = line!() + 2;
    code.role("second", 1, 1, |c, _| {
        c.value(Op::Cast { x, to: Type::I8 });
        c.value(Op::ReadVar(var));
        let index = c.int(0);
        c.load(Place { index, ..place });
    });
    let errors = verify(&code.finish()).unwrap_err().0;
    let faults: Vec<&Fault> = errors.iter().map(|error| &error.fault).collect();
    let wrong = |what: &str| Fault::WrongRole { what: what.into(), owner: "first".into() };
    assert_eq!(faults, [&wrong("v0"), &wrong("x0"), &wrong("s0")]);
    assert_eq!(errors[0].at.as_ref().unwrap().line, line);
    let text = "error: v0 belongs to role first; roles share only memory and signals\n  \
                in kernel k, role second: v1: i8 = cast v0 to i8\n";
    assert!(errors[0].to_string().starts_with(text), "{}", errors[0]);
}
