//! Ops in places where they are not allowed.

use super::*;

#[test]
fn no_control_flow_in_an_each() {
    let made = kernel(|c, _, _| {
        let (n, cond) = (c.int(4), c.constant(Type::Bool, 1));
        let mut line = 0;
        c.each(&[n], |c, _| {
            line = line!() + 1;
            c.if_(cond, |_| {}, |_| {});
        });
        line
    });
    let text = "error: control flow inside an each; use select or a masked load or store, or move it outside\n  \
                in kernel k, role main: if v1 {..}";
    refused(made, Fault::ControlInEach, text);
}

#[test]
fn nothing_of_the_whole_group_in_an_each() {
    let made = kernel(|c, _, _| {
        let n = c.int(4);
        let mut line = 0;
        c.each(&[n], |c, _| {
            line = line!() + 1;
            c.run(Op::Barrier);
        });
        line
    });
    let text = "error: an op of the whole group inside an each; move it before or after the each\n  \
                in kernel k, role main: barrier";
    refused(made, Fault::SyncInEach, text);
}

#[test]
fn ops_on_elements_need_an_each() {
    let made = kernel(|c, _, _| {
        let x = c.int(4);
        let line = line!() + 1;
        c.value(Op::Group { op: GroupOp::Max, x, size: 4 });
        line
    });
    let text = "error: an op on elements outside any each; put it in the body of one\n  \
                in kernel k, role main: v1: i64 = group_max v0 of 4";
    refused(made, Fault::OutsideEach, text);
}

#[test]
fn no_each_in_an_each() {
    let made = kernel(|c, _, _| {
        let n = c.int(4);
        let mut line = 0;
        c.each(&[n], |c, _| {
            line = line!() + 1;
            c.each(&[n], |_, _| {});
        });
        line
    });
    let text = "error: each inside an each; use one each of two extents\n  in kernel k, role main: each v2 in v0 {..}";
    refused(made, Fault::NestedEach, text);
}

/// The faults of an `each` that puts a packet and gets another in this order, over these extents, with this op beside
/// them.
fn faults_of_a_swap(put_first: bool, axes: usize, groups: bool) -> Vec<Fault> {
    let (kernel, ()) = kernel(|c, p, _| {
        let (n, x, flag) = (c.int(4), c.constant(Type::U64, 1), c.constant(Type::U32, 1));
        let place = |index| Place { base: Base::Param(p.bytes), bank: None, index };
        c.each(&vec![n; axes], |c, index| {
            let at = place(index[0]);
            if put_first {
                c.run(Op::PacketPut { at, x, flag });
            }
            let got = c.value(Op::PacketGet { at, flag });
            if groups {
                c.value(Op::Group { op: GroupOp::Max, x: got, size: 2 });
            }
            if !put_first {
                c.run(Op::PacketPut { at, x: got, flag });
            }
        });
    });
    verify(&kernel).err().map_or_else(Vec::new, |errors| errors.0.into_iter().map(|error| error.fault).collect())
}

#[test]
fn packets_are_put_before_others_are_got() {
    assert_eq!(faults_of_a_swap(true, 1, false), []);
    assert_eq!(faults_of_a_swap(false, 1, false), [Fault::PutAfterGet]);
    assert_eq!(faults_of_a_swap(false, 2, true), [Fault::PutAfterGet]);
    assert_eq!(faults_of_a_swap(true, 2, false), [Fault::SwapInTwoDimensions]);
    assert_eq!(faults_of_a_swap(true, 1, true), [Fault::SwapInGroups]);
}

/// The faults of a kernel with one `each` of exactly these ops.
fn faults_in_each(ops: impl FnOnce(&mut Code, &Params, RoleId) -> Vec<Op>) -> Vec<Fault> {
    let (kernel, ()) = kernel(|c, p, role| {
        let n = c.int(4);
        let ops = ops(c, p, role);
        c.each(&[n], |c, _| ops.into_iter().for_each(|op| c.run(op)));
    });
    verify(&kernel).unwrap_err().0.into_iter().map(|error| error.fault).collect()
}

#[test]
fn every_op_of_the_whole_group_is_refused_in_an_each() {
    let faults = faults_in_each(|c, p, role| {
        let (zero, x, yes) = (c.int(0), c.constant(Type::U64, 1), c.constant(Type::Bool, 1));
        let queue = c.queue("queue");
        let var = c.builder.var(role, Type::U64);
        let slot = Slot { slots: p.slots, bank: Some(zero), index: zero };
        vec![
            Op::WriteVar { var, x },
            Op::Signal { slot, x },
            Op::SignalCredit { slot, x },
            Op::Wait { slot, x },
            Op::Test { slot, x },
            Op::BulkCopy { dst: at(p.y, zero), src: at(p.x, zero), count: zero },
            Op::BulkWait { pending: 0, done: tilewire::ir::BulkDone::Read },
            Op::ProxyFence,
            Op::Barrier,
            Op::Post {
                queue,
                peer: zero,
                span: Some(PostSpan { src: at(p.bytes, zero), dst: zero, bytes: zero }),
                notice: Some(Notice { slot: zero, x, parts: 1, kind: NoticeKind::Data }),
            },
            Op::Require { cond: yes, span: None },
        ]
    });
    assert_eq!(faults, vec![Fault::SyncInEach; 11]);
}

#[test]
fn packets_need_an_each() {
    let (kernel, ()) = kernel(|c, p, _| {
        let (zero, x, flag) = (c.int(0), c.constant(Type::U64, 1), c.constant(Type::U32, 1));
        c.run(Op::PacketPut { at: at(p.bytes, zero), x, flag });
        c.run(Op::PacketGet { at: at(p.bytes, zero), flag });
    });
    let faults: Vec<Fault> = verify(&kernel).unwrap_err().0.into_iter().map(|error| error.fault).collect();
    assert_eq!(faults, vec![Fault::OutsideEach; 2]);
}

#[test]
fn loops_are_refused_in_an_each_and_what_they_hold_is_still_checked() {
    let (kernel, ()) = kernel(|c, _, _| {
        let n = c.int(4);
        c.each(&[n], |c, _| {
            c.for_([n, n, n], |c, _| c.run(Op::Barrier));
            c.while_(|c| c.constant(Type::Bool, 0), |c| c.run(Op::ProxyFence));
        });
    });
    let faults: Vec<Fault> = verify(&kernel).unwrap_err().0.into_iter().map(|error| error.fault).collect();
    assert_eq!(faults, [Fault::ControlInEach, Fault::SyncInEach, Fault::ControlInEach, Fault::SyncInEach]);
}
