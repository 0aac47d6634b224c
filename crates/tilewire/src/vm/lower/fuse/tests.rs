//! Which instructions are joined, which are not, and that jumps still lead to the same place.

use super::super::super::code::{Access, Code, Each, LaneInfo, Opcode, RoleCode, SlotRef};
use super::fuse;
use crate::ir::{BinaryOp, CompareOp, SourceLine, Type};

const AND: Opcode = Opcode::UBinary(BinaryOp::And, Type::U64);
const ADD: Opcode = Opcode::UBinary(BinaryOp::Add, Type::U64);
const EQ: Opcode = Opcode::UCompare(CompareOp::Eq, Type::U64);

fn code(op: Opcode, [a, b, c, d]: [u16; 4], e: i32) -> Code {
    Code { op, a, b, c, d, e }
}

/// A role with sixteen registers. Register k holds k unless the code writes it.
fn role(insts: &[Code]) -> RoleCode {
    let mut code = insts.to_vec();
    code.push(self::code(Opcode::End, [0; 4], 0));
    RoleCode { name: "test".into(), code, registers: (0..16).collect(), ..RoleCode::default() }
}

fn fused(mut role: RoleCode) -> RoleCode {
    fuse(&mut role);
    assert_eq!(role.code.pop().map(|end| end.op), Some(Opcode::End));
    role
}

fn access(width: u32) -> Access {
    Access {
        first: 0,
        banks: 1,
        bank: None,
        bytes: 64,
        unit: width,
        width,
        base: 0,
        row_stride: 0,
        col_stride: 0,
        group: 0,
        group_stride: 0,
        operations: None,
        name: "memory".into(),
        at: SourceLine::caller(),
    }
}

fn slot(index: u16) -> SlotRef {
    let (name, at) = ("slot".into(), SourceLine::caller());
    SlotRef { first: 0, banks: 1, bank: None, len: 4, stride: 8, index, operations: None, name, op: "wait", at }
}

#[test]
fn a_test_of_bits_and_its_jump_are_one() {
    let test = [
        code(AND, [8, 1, 2, 0], 0),
        code(EQ, [9, 8, 0, 0], 0),
        code(Opcode::JumpUnless, [9, 0, 0, 0], 2),
        code(ADD, [10, 1, 2, 0], 0),
    ];
    assert_eq!(fused(role(&test)).code, [code(Opcode::JumpIfBits, [1, 2, 0, 0], 2), test[3]]);
    // If another instruction reads the compared value, it stays, and only the comparison and the jump are joined.
    let read = [&test[..], &[code(Opcode::UMove, [11, 8, 0, 0], 0)]].concat();
    assert_eq!(fused(role(&read)).code[..2], [test[0], code(Opcode::JumpUnlessU64(CompareOp::Eq), [8, 0, 0, 0], 2)]);
    // The bit test stays if its result is compared with a value other than 0, or with one that is 0 only at first.
    let mut other = test;
    other[1].c = 3;
    assert_eq!(fused(role(&other)).code.len(), 3);
    let writes = [&test[..], &[code(Opcode::UMove, [0, 3, 0, 0], 0)]].concat();
    assert_eq!(fused(role(&writes)).code.len(), 4);
}

#[test]
fn jumps_lead_where_they_led_and_never_between_what_is_joined() {
    let count = [code(ADD, [8, 1, 2, 0], 0), code(Opcode::UStoreWord, [8, 3, 0, 0], 16)];
    let joined = code(Opcode::UAddStoreWord, [8, 3, 1, 2], 16);
    // Over a joined pair, forwards and backwards.
    let jump = |e| code(Opcode::Jump, [0; 4], e);
    let over = [jump(3), count[0], count[1], jump(-2), jump(-4)];
    assert_eq!(fused(role(&over)).code, [jump(2), joined, jump(-1), jump(-3)]);
    // A jump to the second of a pair keeps the two apart.
    let into = [jump(2), count[0], count[1]];
    assert_eq!(fused(role(&into)).code, into);
}

#[test]
fn a_mask_and_a_constant_factor_are_one_and_both_results_stay() {
    let place = [
        code(AND, [8, 1, 2, 0], 0),
        code(Opcode::UBinary(BinaryOp::Mul, Type::I64), [9, 8, 5, 0], 0),
        code(Opcode::UMove, [10, 8, 0, 0], 0),
    ];
    assert_eq!(fused(role(&place)).code, [code(Opcode::UMaskScale, [8, 1, 2, 9], 5), place[2]]);
    let mut varies = role(&place);
    varies.code.insert(0, code(Opcode::UMove, [5, 1, 0, 0], 0));
    assert_eq!(fused(varies).code.len(), 4);
    let mut large = role(&place);
    large.registers[5] = 1 << 31;
    assert_eq!(fused(large).code.len(), 3);
}

#[test]
fn a_flag_is_cut_for_nobody_but_packets() {
    let get = |flag| code(Opcode::PacketGet, [0, 1, flag, 0], 0);
    let cut = code(Opcode::UCast(Type::U64, Type::U32), [8, 1, 0, 0], 0);
    assert_eq!(fused(role(&[cut, get(8)])).code, [get(1)]);
    let moved = code(Opcode::UMove, [9, 8, 0, 0], 0);
    assert_eq!(fused(role(&[cut, get(8), moved])).code, [cut, get(8), moved]);
}

/// An `each` of one row: a bound lane and an op on it.
fn each(bind: Code, work: Code) -> RoleCode {
    let begin = code(Opcode::EachBegin, [0; 4], 0);
    let mut role = role(&[begin, bind, work, code(Opcode::EachNext, [0; 4], 0)]);
    let (rows, groups) = (None, vec![1]);
    let (tile_rows, tile_cols, end, top) = (1, u64::MAX, 4, -2);
    role.eaches = vec![Each {
        rows,
        flat: false,
        cols: 7,
        tile_rows,
        tile_cols,
        stream_bytes: 0,
        store_bytes: 0,
        may_stream: false,
        groups,
        one_strip: 0,
        end,
        top,
    }];
    role.lanes = vec![LaneInfo { size: 8, strip: None }];
    role.accesses = vec![access(8), access(16), access(8)];
    role
}

#[test]
fn an_each_that_only_moves_elements_is_one_instruction() {
    let bind = code(Opcode::Bind, [0; 4], 0);
    let send = each(bind, code(Opcode::PacketPutRow, [0, 0, 4, 0], 1));
    assert_eq!(fused(send).code, [code(Opcode::PacketSend, [7, 0, 4, 0], 0)]);
    // Accesses that are not adjacent in the table are copied to its end, side by side.
    let receive = fused(each(bind, code(Opcode::PacketGetRow, [0, 0, 4, 0], 1)));
    assert_eq!(receive.code, [code(Opcode::PacketReceive, [7, 0, 4, 0], 3)]);
    assert_eq!(receive.accesses[3..].iter().map(|access| access.width).collect::<Vec<_>>(), [16, 8]);
    let copy = each(bind, code(Opcode::CopyOut(8), [0; 4], 2));
    assert_eq!(fused(copy.clone()).code, [code(Opcode::CopyRow, [7, 0, 0, 0], 3)]);
    for change in [|e: &mut Each| e.rows = Some(7), |e: &mut Each| e.flat = true, |e: &mut Each| e.tile_cols = 256] {
        let mut other = copy.clone();
        change(&mut other.eaches[0]);
        assert_eq!(fused(other.clone()).code[..], other.code[..4]);
    }
}

#[test]
fn a_wait_knows_what_is_signalled_next() {
    let (wait, signal) = (code(Opcode::Wait, [1, 0, 0, 0], 0), code(Opcode::Signal, [1, 0, 0, 0], 1));
    let hints = |insts: &[Code]| {
        let mut role = role(insts);
        role.slots = vec![slot(2), slot(3)];
        fused(role).code.iter().filter(|code| code.op == Opcode::Wait).map(|code| code.b).collect::<Vec<_>>()
    };
    assert_eq!(hints(&[wait, signal]), [2]);
    assert_eq!(hints(&[wait, wait, signal]), [0, 2]);
    assert_eq!(hints(&[wait]), [0]);
    // The slot becomes known only after the wait.
    assert_eq!(hints(&[wait, code(Opcode::UMove, [3, 1, 0, 0], 0), signal]), [0]);
}

#[test]
fn a_wait_knows_how_far_on_the_next_one_is() {
    let wait = code(Opcode::Wait, [1, 0, 0, 0], 0);
    let further = |insts: &[Code]| {
        let mut role = role(insts);
        role.slots = vec![slot(9)];
        fused(role).code.iter().filter(|code| code.op == Opcode::Wait).map(|code| code.c).collect::<Vec<_>>()
    };
    let last = |k| code(Opcode::UBinary(BinaryOp::Add, Type::I64), [9, 8, k, 0], 0);
    assert_eq!(further(&[wait]), [1]);
    assert_eq!(further(&[last(3), wait]), [4]);
    // The addend is not a constant.
    assert_eq!(further(&[code(Opcode::UMove, [3, 1, 0, 0], 0), last(3), wait]), [1]);
}

#[test]
fn who_copies_into_a_ring_and_signals_fetches_the_next_slot() {
    let place = [code(AND, [8, 9, 7, 0], 0), code(Opcode::UBinary(BinaryOp::Mul, Type::I64), [10, 8, 5, 0], 0)];
    let (next, copy) = (code(ADD, [11, 9, 1, 0], 0), code(Opcode::CopyRow, [6, 0, 0, 0], 0));
    let signal = code(Opcode::Signal, [11, 0, 0, 0], 0);
    // The number is not a constant.
    let number = code(Opcode::UMove, [9, 1, 0, 0], 0);
    let fused = |insts: &[Code]| {
        let mut role = role(&[&[number], insts].concat());
        (role.slots, role.accesses) = (vec![slot(8)], vec![access(8), Access { base: 10, ..access(8) }]);
        fused(role)
    };
    let [mask, scale] = place;
    let role = fused(&[mask, scale, next, copy, signal]);
    assert_eq!(role.code.last(), Some(&code(Opcode::FetchSlot, [6, 11, 7, 16], 1)));
    assert_eq!(role.registers[16..], [5]);
    // A jump past the signal also skips the fetch.
    let jump = code(Opcode::Jump, [0; 4], 6);
    assert_eq!(fused(&[jump, mask, scale, next, copy, signal]).code[1].e, 6);
    let fetches = |insts: &[Code]| fused(insts).code.iter().any(|code| code.op == Opcode::FetchSlot);
    // No fetch if the signalled value is not the next number, the copy goes elsewhere, nothing was copied before the
    // signal, or the mask varies.
    assert!(!fetches(&[mask, scale, code(ADD, [11, 9, 2, 0], 0), copy, signal]));
    assert!(!fetches(&[mask, code(Opcode::UMove, [10, 8, 0, 0], 0), next, copy, signal]));
    assert!(!fetches(&[mask, scale, next, signal]));
    assert!(!fetches(&[mask, scale, next, copy, signal, code(Opcode::UMove, [7, 1, 0, 0], 0)]));
}
