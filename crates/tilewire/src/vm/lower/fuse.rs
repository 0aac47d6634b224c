//! Joins neighbouring instructions of a role into one. A small message is all uniform code, so each instruction saved
//! is one dispatch less between the arrival of a message and the answer.
//!
//! | these | become |
//! |---|---|
//! | an `each` of one row that only copies, fills packets or empties them | `CopyRow`, `PacketSend`, `PacketReceive` |
//! | an `each` of one row that makes two copies | `CopyTwoRows` |
//! | `x & y`, `… == 0`, a jump unless | `JumpIfBits` |
//! | a comparison of u64, a jump unless | `JumpUnlessU64` |
//! | `x & y`, `… * constant` | `UMaskScale` |
//! | a sum, the store of it at a known place | `UAddStoreWord` |
//! | a u64 truncated to 32 bits for a packet's flag | nothing: packets read only the low half |
//!
//! Code that copies a message into a slot of a ring and signals it then prefetches the lines of the next slot
//! ([`Facts::fetch`]). The peer has these lines. Stores would otherwise fetch them one after the other, before the next
//! message can be seen. Each wait learns which slot is signalled after it (`announce_signals`), so that it can prefetch
//! that slot's line.
//!
//! Only neighbours are joined, no jump leads between them, and nobody else reads a register that disappears. So at
//! every remaining instruction, each register and each byte of memory has the value it had before.
#![forbid(unsafe_code)]

use super::super::code::{Code, Extra, Opcode, Operand, RoleCode};
use crate::ir::{BinaryOp, CompareOp, Type};

/// Joins the instructions that can be joined.
pub(super) fn fuse(role: &mut RoleCode) {
    drop_flag_casts(role);
    let facts = Facts::new(role);
    let mut code = Vec::with_capacity(role.code.len());
    // The new position of each instruction. One that was joined to an earlier one is not a jump target.
    let mut moved = vec![0usize; role.code.len() + 1];
    let mut at = 0;
    while at < role.code.len() {
        let joined = match role.code[at].op {
            Opcode::EachBegin => join_each(role, at).map(|code| (code, 4)).or_else(|| join_copies(role, at)),
            _ => facts.join(role, at),
        };
        let (inst, count) = joined.unwrap_or((role.code[at], 1));
        moved[at..at + count].fill(code.len());
        if !facts.is_dead(&inst) {
            code.push((inst, at + count - 1));
        }
        if inst.op == Opcode::Signal && !facts.target[at] {
            let fetch = facts.fetch(role, &code);
            code.extend(fetch.map(|fetch| (fetch, at + count - 1)));
        }
        at += count;
    }
    moved[at] = code.len();
    let old = std::mem::replace(&mut role.code, code.iter().map(|(code, _)| *code).collect());
    // Jumps are relative to their instruction. Of joined ones, the last was the one that jumped.
    for (new, &(inst, from)) in code.iter().enumerate() {
        let distance = |e: i32| moved[(from as i64 + i64::from(e)) as usize] as i32 - new as i32;
        match inst.op {
            Opcode::EachBegin => {
                let (each, next) =
                    (inst.e as usize, (from as i64 + i64::from(role.eaches[inst.e as usize].end) - 1) as usize);
                debug_assert_eq!(old[next].op, Opcode::EachNext);
                let top = moved[(next as i64 + i64::from(role.eaches[each].top)) as usize] as i32;
                role.eaches[each].end = moved[next] as i32 + 1 - new as i32;
                role.eaches[each].top = top - moved[next] as i32;
            }
            op if op.signature().1 == Extra::Jump => role.code[new].e = distance(old[from].e),
            _ => {}
        }
    }
    announce_signals(role);
    announce_waits(role, &facts);
}

/// Tells every wait how many slots further on the next wait is. Code that waits for a whole group of slots by waiting
/// for its last one (`x + 3`) next waits for the last slot of the next group.
fn announce_waits(role: &mut RoleCode, facts: &Facts) {
    for k in 0..role.code.len() {
        if role.code[k].op == Opcode::Wait {
            let index = role.slots[role.code[k].e as usize].index;
            let sum = role.code[..k]
                .iter()
                .rev()
                .find(|code| matches!(code.op, Opcode::UBinary(BinaryOp::Add, Type::I64)) && code.a == index);
            let last = sum.and_then(|sum| facts.constant(role, sum.c)).filter(|&last| last < 16);
            role.code[k].c = last.unwrap_or(0) as u16 + 1;
        }
    }
}

/// Tells every wait which slot is signalled next, if that is already known at the wait.
fn announce_signals(role: &mut RoleCode) {
    let out = |code: &Code, reg: u16| {
        let fields = [code.a, code.b, code.c, code.d];
        code.op.signature().0.into_iter().zip(fields).any(|(operand, field)| operand == Operand::RegOut && field == reg)
    };
    for k in 0..role.code.len() {
        if !matches!(role.code[k].op, Opcode::Wait | Opcode::PacketReceive) {
            continue;
        }
        let rest = &role.code[k + 1..];
        let Some(n) = rest.iter().position(|code| matches!(code.op, Opcode::Signal | Opcode::Wait)) else { continue };
        let (signal, slot) = (rest[n], &role.slots[rest[n].e as usize]);
        let known = |reg: u16| !rest[..n].iter().any(|code| out(code, reg));
        if signal.op == Opcode::Signal && known(slot.index) && slot.bank.is_none_or(known) {
            // A slot number too large for the operand is not announced.
            role.code[k].b = u16::try_from(signal.e + 1).unwrap_or(0);
        }
    }
}

/// Facts about the whole role that joining depends on.
struct Facts {
    /// How often each register is read.
    reads: Vec<u32>,
    /// Whether each register is ever written; if not, it is a constant.
    written: Vec<bool>,
    /// Whether a jump leads to each instruction.
    target: Vec<bool>,
}

impl Facts {
    fn new(role: &RoleCode) -> Facts {
        let mut facts = Facts {
            reads: reads(role, |_, _| true),
            written: vec![false; role.registers.len()],
            target: vec![false; role.code.len() + 1],
        };
        role.inputs.iter().for_each(|&(reg, _)| facts.written[reg as usize] = true);
        for (k, code) in role.code.iter().enumerate() {
            let (operands, extra) = code.op.signature();
            for (operand, field) in operands.into_iter().zip([code.a, code.b, code.c, code.d]) {
                if operand == Operand::RegOut {
                    facts.written[field as usize] = true;
                }
            }
            if extra == Extra::Jump {
                facts.target[(k as i64 + i64::from(code.e)) as usize] = true;
            }
        }
        facts
    }

    /// The value of a register that nothing changes.
    fn constant(&self, role: &RoleCode, reg: u16) -> Option<u64> {
        (!self.written[reg as usize]).then(|| role.registers[reg as usize])
    }

    /// A cast whose result nobody reads; [`drop_flag_casts`] leaves these behind.
    fn is_dead(&self, code: &Code) -> bool {
        matches!(code.op, Opcode::UCast(..)) && self.reads[code.a as usize] == 0
    }

    /// One instruction that replaces several from `at` on, and how many it replaces.
    fn join(&self, role: &RoleCode, at: usize) -> Option<(Code, usize)> {
        let code = |k: usize| role.code.get(at + k).filter(|_| k == 0 || !self.target[at + k]);
        let once = |reg: u16| self.reads[reg as usize] == 1;
        let (first, second) = (*code(0)?, *code(1)?);
        match (first.op, second.op) {
            (Opcode::UBinary(BinaryOp::And, Type::U64), Opcode::UCompare(CompareOp::Eq, Type::U64))
                if second.b == first.a && once(first.a) && self.constant(role, second.c) == Some(0) =>
            {
                let third = code(2).filter(|c| c.op == Opcode::JumpUnless && c.a == second.a && once(second.a))?;
                Some((Code { op: Opcode::JumpIfBits, a: first.b, b: first.c, c: 0, d: 0, e: third.e }, 3))
            }
            (Opcode::UCompare(op, Type::U64), Opcode::JumpUnless) if second.a == first.a && once(first.a) => {
                let op = Opcode::JumpUnlessU64(op);
                Some((Code { op, a: first.b, b: first.c, c: 0, d: 0, e: second.e }, 2))
            }
            (Opcode::UBinary(BinaryOp::And, Type::U64), Opcode::UBinary(BinaryOp::Mul, Type::I64 | Type::U64))
                if second.b == first.a =>
            {
                let e = i32::try_from(self.constant(role, second.c)? as i64).ok()?;
                Some((Code { op: Opcode::UMaskScale, a: first.a, b: first.b, c: first.c, d: second.a, e }, 2))
            }
            (Opcode::UBinary(BinaryOp::Add, Type::U64 | Type::I64), Opcode::UStoreWord) if second.a == first.a => {
                let op = Opcode::UAddStoreWord;
                Some((Code { op, a: first.a, b: second.b, c: first.b, d: first.c, e: second.e }, 2))
            }
            _ => None,
        }
    }

    /// The instruction that prefetches the next slot of a ring, if the last two instructions copy a row into a slot and
    /// signal it: the copy goes to `(n & mask) * size`, and the signal stores `n + 1`.
    fn fetch(&self, role: &mut RoleCode, code: &[(Code, usize)]) -> Option<Code> {
        let [.., (copy, _), (signal, _)] = *code else { return None };
        if copy.op != Opcode::CopyRow {
            return None;
        }
        let to = role.accesses[copy.e as usize + 1].base;
        let place = code.iter().find(|(code, _)| code.op == Opcode::UMaskScale && code.d == to)?.0;
        let one = |reg: u16| self.constant(role, reg) == Some(1);
        let is_next = |code: &Code| {
            matches!(code.op, Opcode::UBinary(BinaryOp::Add, Type::U64))
                && code.a == signal.a
                && code.b == place.b
                && one(code.c)
        };
        let apart = u16::try_from(role.registers.len()).ok()?;
        if !code.iter().any(|(code, _)| is_next(code)) || self.constant(role, place.c).is_none() {
            return None;
        }
        role.registers.push(place.e as i64 as u64);
        Some(Code { op: Opcode::FetchSlot, a: copy.a, b: signal.a, c: place.c, d: apart, e: copy.e + 1 })
    }
}

/// The instruction for an `each` of one row in one strip of any length, whose body only moves elements from one place
/// to another.
fn join_each(role: &mut RoleCode, at: usize) -> Option<Code> {
    let [begin, bind, work, next] = *role.code.get(at..at + 4)? else { return None };
    let each = &role.eaches[begin.e as usize];
    let one = each.rows.is_none() && !each.flat && each.groups.len() == 1 && each.tile_cols == u64::MAX;
    let binds = matches!(bind.op, Opcode::Bind | Opcode::BindStore) && bind.a == work.a && bind.d == 0 && work.d == 0;
    if !one || !binds || next.op != Opcode::EachNext {
        return None;
    }
    let (op, from, to) = match work.op {
        Opcode::CopyOut(_) if bind.op == Opcode::Bind => (Opcode::CopyRow, bind.e, work.e),
        Opcode::PacketPutRow => (Opcode::PacketSend, bind.e, work.e),
        Opcode::PacketGetRow => (Opcode::PacketReceive, work.e, bind.e),
        _ => return None,
    };
    let e = if to == from + 1 {
        from
    } else {
        let pair = [from, to].map(|k| role.accesses[k as usize].clone());
        role.accesses.extend(pair);
        role.accesses.len() as i32 - 2
    };
    Some(Code { op, a: role.eaches[begin.e as usize].cols, b: 0, c: work.c, d: 0, e })
}

/// The instruction for an `each` of one row whose body makes two copies, from one source or two, and how many
/// instructions it replaces.
fn join_copies(role: &mut RoleCode, at: usize) -> Option<(Code, usize)> {
    let begin = role.code[at];
    let each = &role.eaches[begin.e as usize];
    let body = role.code.get(at + 1..(at as i64 + i64::from(each.end) - 1) as usize)?;
    let one = each.rows.is_none() && !each.flat && each.groups.len() == 1;
    if !one || body.len() > 4 || body.iter().any(|code| code.d != 0) {
        return None;
    }
    let (mut bound, mut copies) = (Vec::new(), Vec::new());
    for code in body {
        match code.op {
            Opcode::Bind => bound.push((code.a, code.e)),
            Opcode::CopyOut(_) => copies.push((bound.iter().rfind(|(lane, _)| *lane == code.a)?.1, *code)),
            _ => return None,
        }
    }
    let [(from, first), (other, second)] = copies[..] else { return None };
    let accesses = [from, first.e, other, second.e];
    let (e, a, count) = (role.accesses.len() as i32, each.cols, body.len() + 2);
    let accesses = accesses.map(|k| role.accesses[k as usize].clone());
    // Interleaving changes the order, so neither copy may write what the other reads or writes.
    let is_apart = [1, 3].iter().all(|&to| (0..4).all(|k| k == to || accesses[k].first != accesses[to].first));
    if !is_apart || accesses.iter().any(|access| access.width != accesses[0].width) {
        return None;
    }
    role.accesses.extend(accesses);
    Some((Code { op: Opcode::CopyTwoRows, a, b: first.b | second.b << 1, c: 0, d: 0, e }, count))
}

/// Lets packets read the u64 that their flag was truncated from, if only packets use the truncated value.
fn drop_flag_casts(role: &mut RoleCode) {
    let all = reads(role, |_, _| true);
    let flags = reads(role, |op, operand| is_packet(op) && operand == 2);
    let writes = |reg: u16| {
        let out = |code: &Code| {
            let fields = [code.a, code.b, code.c, code.d];
            code.op.signature().0.iter().zip(fields).any(|(o, field)| *o == Operand::RegOut && field == reg)
        };
        role.code.iter().filter(|code| out(code)).count() + role.inputs.iter().filter(|(r, _)| *r == reg).count()
    };
    let is_cut = |code: &Code| {
        let [a, b] = [code.a, code.b].map(usize::from);
        code.op == Opcode::UCast(Type::U64, Type::U32) && all[a] == flags[a] && writes(code.a) == 1 && writes(code.b) <= 1
            // If the source were written again, packets would read another value.
            && a != b
    };
    let cuts: Vec<usize> = (0..role.code.len()).filter(|&k| is_cut(&role.code[k])).collect();
    for k in cuts {
        let cut = role.code[k];
        for code in role.code.iter_mut().filter(|code| is_packet(code.op) && code.c == cut.a) {
            code.c = cut.b;
        }
    }
}

fn is_packet(op: Opcode) -> bool {
    matches!(op, Opcode::PacketPut | Opcode::PacketGet | Opcode::PacketPutRow | Opcode::PacketGetRow)
}

/// How often each register is read: by the operands that `counts` accepts, given the op and the operand's position, and
/// by the tables, if it accepts `End`.
fn reads(role: &RoleCode, counts: impl Fn(Opcode, usize) -> bool) -> Vec<u32> {
    let mut reads = vec![0; role.registers.len()];
    let mut read = |reg: u16| reads[reg as usize] += 1;
    for code in &role.code {
        let fields = [code.a, code.b, code.c, code.d];
        for (k, (operand, field)) in code.op.signature().0.into_iter().zip(fields).enumerate() {
            // The instruction that increments a loop index also reads it.
            let is_read = operand == Operand::Reg || (code.op == Opcode::ForNext && k == 0);
            if is_read && counts(code.op, k) {
                read(field);
            }
        }
    }
    if !counts(Opcode::End, 0) {
        return reads;
    }
    for access in &role.accesses {
        let index = [access.base, access.row_stride, access.col_stride, access.group_stride];
        index.into_iter().chain(access.bank).for_each(&mut read);
    }
    for slot in &role.slots {
        [slot.index].into_iter().chain(slot.bank).for_each(&mut read);
    }
    for each in &role.eaches {
        [each.cols].into_iter().chain(each.rows).for_each(&mut read);
    }
    for require in &role.requires {
        require.span.into_iter().flatten().for_each(&mut read);
    }
    for post in &role.posts {
        read(post.peer);
        post.span.into_iter().flat_map(|(_, dst, bytes)| [dst, bytes]).for_each(&mut read);
        post.notice.into_iter().flat_map(|(slot, value, _)| [slot, value]).for_each(&mut read);
    }
    reads
}

#[cfg(test)]
mod tests;
