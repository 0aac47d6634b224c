//! The bytecode verifier, which establishes what the machine's unchecked loop relies on.
//!
//! It proves the following, for a role's code and the memory that its entries name:
//!
//! - Every register, lane, count, table index and jump is in range.
//! - Control never falls off the end, and enters an `each` only at its `EachBegin`.
//! - A lane is read only after it was filled or bound in the same `each`, with elements of the size the op expects and
//!   room for the longest strip.
//! - A bound lane is used with the count it was bound for.
//! - Every access, slot table and ring lies inside its memory.
//!
//! A failure here is a bug of the lowering. `prepare` panics with it, so unverified code never runs.
#![forbid(unsafe_code)]

use super::code::{Access, Code, Each, Extra, Input, MAX_COUNTS, Opcode, Operand, RoleCode};
use crate::ir::QuickMap;
use crate::ir::access::SCRATCH_ALIGN;
use crate::ir::ring::{TICKETS_BYTES, entries_bytes};

/// Checks a role's code. `entries` are the sizes in bytes of the memory behind each base address, scratch included.
pub(crate) fn verify(role: &RoleCode, entries: &[u64]) -> Result<(), String> {
    let mut check =
        Check { role, entries, each: None, bound: QuickMap::default(), filled: Vec::new(), owner: Vec::new() };
    check.tables()?;
    check.eaches()?;
    check.code()
}

struct Check<'r> {
    role: &'r RoleCode,
    entries: &'r [u64],
    /// The `each` that contains the instruction.
    each: Option<&'r Each>,
    /// Lanes bound in this `each`, with the count they were bound for.
    bound: QuickMap<u16, u16>,
    /// Lanes with strip memory written in this `each`.
    filled: Vec<u16>,
    /// For every instruction, the index of the `each` that contains it; an `EachBegin` itself is outside.
    owner: Vec<Option<usize>>,
}

impl<'r> Check<'r> {
    fn tables(&self) -> Result<(), String> {
        let role = self.role;
        for (k, access) in role.accesses.iter().enumerate() {
            self.access(access).map_err(|what| format!("access {k}: {what}"))?;
        }
        for (k, slot) in role.slots.iter().enumerate() {
            self.reg(slot.index)?;
            slot.bank.map_or(Ok(()), |bank| self.reg(bank))?;
            ensure(slot.banks == 1 || slot.bank.is_some(), || format!("slot {k} has banks and no bank register"))?;
            let bytes = slot.len.checked_mul(u64::from(slot.stride)).ok_or("slot table overflows")?;
            ensure(slot.stride % 8 == 0 && slot.stride > 0, || format!("slot {k} has stride {}", slot.stride))?;
            self.banks(slot.first, slot.banks, bytes)?;
        }
        for post in &role.posts {
            self.reg(post.peer)?;
            ensure(post.capacity.is_power_of_two(), || format!("a ring of {} descriptors", post.capacity))?;
            self.banks(post.queue, 1, entries_bytes(post.capacity))?;
            self.banks(post.queue.checked_add(1).ok_or("a ring without tickets")?, 1, TICKETS_BYTES as u64)?;
            if let Some((src, dst, bytes)) = post.span {
                ensure((src as usize) < role.accesses.len(), || format!("post of access {src}"))?;
                self.reg(dst)?;
                self.reg(bytes)?;
            }
            if let Some((slot, value, _)) = post.notice {
                self.reg(slot)?;
                self.reg(value)?;
            }
        }
        for require in &role.requires {
            require.span.iter().flatten().try_for_each(|reg| self.reg(*reg))?;
        }
        for &(reg, input) in &role.inputs {
            self.reg(reg)?;
            if let Input::Scalar(entry, ty) = input {
                self.banks(entry, 1, ty.size() as u64)?;
            }
        }
        for (k, lane) in role.lanes.iter().enumerate() {
            let Some((offset, capacity)) = lane.strip else { continue };
            let end = u64::from(offset) + u64::from(capacity) * u64::from(lane.size);
            ensure(end <= u64::from(role.strip_bytes), || format!("strip of lane {k} ends at {end}"))?;
        }
        for &(entry, offset) in &role.scratch {
            let size = self.entries.get(entry as usize).ok_or("scratch entry out of range")?;
            let end = (offset as u64).saturating_add(*size);
            let aligned = (offset as u64).is_multiple_of(u64::from(SCRATCH_ALIGN));
            ensure(aligned && end <= role.scratch_bytes as u64, || format!("scratch at {offset} of {size} bytes"))?;
        }
        Ok(())
    }

    fn access(&self, access: &Access) -> Result<(), String> {
        for reg in [access.base, access.row_stride, access.col_stride, access.group_stride] {
            self.reg(reg)?;
        }
        access.bank.map_or(Ok(()), |bank| self.reg(bank))?;
        ensure(access.banks == 1 || access.bank.is_some(), || "banks and no bank register".into())?;
        // An offset that is a multiple of the unit, or is checked to be a multiple of the width, is aligned for
        // atomics.
        let whole = access.unit > 0 && access.width.is_power_of_two() && access.width.is_multiple_of(access.unit);
        ensure(whole, || format!("width {} in units of {}", access.width, access.unit))?;
        self.banks(access.first, access.banks, access.bytes)
    }

    fn banks(&self, first: u16, banks: u32, bytes: u64) -> Result<(), String> {
        let (first, end) = (first as usize, first as usize + banks as usize);
        let entries = self.entries.get(first..end).ok_or_else(|| format!("entries {first}..{end} do not exist"))?;
        let short = entries.iter().find(|&&size| size < bytes);
        short.map_or(Ok(()), |size| Err(format!("memory of {size} bytes where {bytes} are used")))
    }

    /// Checks that every `EachBegin` has its `EachNext`, with only lane code between them.
    fn eaches(&mut self) -> Result<(), String> {
        let code = &self.role.code;
        self.owner = vec![None; code.len()];
        let mut seen = vec![false; self.role.eaches.len()];
        for (k, each) in self.role.eaches.iter().enumerate() {
            self.reg(each.cols)?;
            each.rows.map_or(Ok(()), |rows| self.reg(rows))?;
            let groups = &each.groups;
            ensure(groups.len() <= MAX_COUNTS && groups.first() == Some(&1) && !groups.contains(&0), || {
                format!("each {k} has groups {groups:?}")
            })?;
            ensure(each.tile_rows > 0 && each.tile_cols > 0, || format!("each {k} is flat"))?;
            let known = u64::from(each.one_strip);
            let one = known <= each.tile_cols && each.rows.is_none() && groups.len() == 1;
            ensure(known == 0 || one, || format!("each {k} of {known} elements is not one strip"))?;
        }
        for (begin, inst) in code.iter().enumerate().filter(|(_, inst)| inst.op == Opcode::EachBegin) {
            let index = inst.e as usize;
            let each = self.role.eaches.get(index).ok_or_else(|| format!("each {index} does not exist"))?;
            ensure(!std::mem::replace(&mut seen[index], true), || format!("each {index} begins twice"))?;
            let next = begin as i64 + i64::from(each.end) - 1;
            let last = usize::try_from(next).ok().and_then(|next| code.get(next));
            let matches = last.is_some_and(|last| last.op == Opcode::EachNext && last.e as usize == index);
            ensure(matches && next > begin as i64, || format!("each {index} does not end at {next}"))?;
            let top = next + i64::from(each.top);
            ensure(top > begin as i64 && top <= next, || format!("each {index} repeats from {top}"))?;
            for k in begin + 1..=next as usize {
                ensure(self.owner[k].is_none(), || format!("eaches overlap at {k}"))?;
                self.owner[k] = Some(index);
            }
        }
        let stray = |k: &usize| code[*k].op == Opcode::EachNext && self.owner[*k] != Some(code[*k].e as usize);
        (0..code.len()).find(stray).map_or(Ok(()), |k| Err(format!("stray EachNext at {k}")))
    }

    fn code(&mut self) -> Result<(), String> {
        let code = &self.role.code;
        ensure(code.last().is_some_and(|last| last.op == Opcode::End), || "the code does not end with End".into())?;
        for (k, inst) in code.iter().enumerate() {
            if inst.op == Opcode::EachBegin {
                self.each = Some(&self.role.eaches[inst.e as usize]);
                self.bound.clear();
                self.filled.clear();
                continue;
            }
            self.inst(k, inst).map_err(|what| format!("{k}: {:?}: {what}", inst))?;
            if self.owner[k].is_some() && inst.op == Opcode::EachNext {
                self.each = None;
            }
        }
        Ok(())
    }

    fn inst(&mut self, k: usize, inst: &Code) -> Result<(), String> {
        let (operands, extra) = inst.op.signature();
        let in_each = self.owner[k].is_some();
        let lane_op = operands.iter().any(|o| {
            matches!(
                o,
                Operand::Lane(_)
                    | Operand::LaneOut(_)
                    | Operand::GroupLane(_)
                    | Operand::GroupLaneOut(_)
                    | Operand::OptionalLane(_)
                    | Operand::Count
            )
        });
        ensure(lane_op == (in_each && inst.op != Opcode::EachNext), || "lane code and each do not agree".into())?;
        let width = match extra {
            Extra::None | Extra::Number => 0,
            Extra::Jump => {
                let is_poll = inst.op != Opcode::Again || (inst.a as usize) < self.role.polls.len();
                ensure(is_poll, || format!("loop {} does not exist", inst.a))?;
                let target = k as i64 + i64::from(inst.e);
                let inside = usize::try_from(target).ok().filter(|&t| t < self.role.code.len());
                let target = inside.ok_or_else(|| format!("jump to {target}"))?;
                ensure(self.owner[target].is_none(), || format!("jump into an each at {target}"))?;
                0
            }
            Extra::Access(count) => {
                let first = usize::try_from(inst.e).map_err(|_| "negative access")?;
                let all = self.role.accesses.get(first..first + count as usize).ok_or("no such access")?;
                let width = access_width(inst.op).unwrap_or(all[0].width);
                // The target of a single atomic access must be aligned, so indices count whole elements.
                let whole = |access: &Access| access.unit == access.width;
                match (inst.op, all) {
                    (Opcode::PacketSend, [words, packets]) | (Opcode::PacketReceive, [packets, words]) => {
                        let fit = words.width == 8 && packets.width == 16 && whole(packets);
                        ensure(fit, || format!("words of {} and packets of {} bytes", words.width, packets.width))?;
                    }
                    _ => ensure(all.iter().all(|access| access.width == width), || {
                        format!("access of another width than {width}")
                    })?,
                }
                let atomic = matches!(
                    inst.op,
                    Opcode::UAtomicAdd(_)
                        | Opcode::AtomicLanes(_)
                        | Opcode::PacketPut
                        | Opcode::PacketGet
                        | Opcode::PacketPutRow
                        | Opcode::PacketGetRow
                );
                ensure(!atomic || whole(&all[0]), || "atomic access at a part of an element".into())?;
                width
            }
            Extra::Word => {
                let end = u64::try_from(inst.e).map_err(|_| "negative offset")? + 8;
                let size =
                    self.entries.get(inst.b as usize).ok_or_else(|| format!("entry {} does not exist", inst.b))?;
                // Scratch has no address before the machine is created, so its accesses take the general form.
                let scratch = self.role.scratch.iter().any(|&(entry, _)| entry == inst.b);
                ensure(end <= *size && !scratch, || format!("a word that ends at {end} of {size} bytes"))?;
                0
            }
            Extra::Slot => index(inst.e, self.role.slots.len())?,
            Extra::Post => index(inst.e, self.role.posts.len())?,
            Extra::Require => index(inst.e, self.role.requires.len())?,
            Extra::Each => index(inst.e, self.role.eaches.len())?,
            Extra::Size => {
                ensure(inst.e > 0, || "group of no elements".into())?;
                0
            }
            Extra::Lane(size) => {
                let lane = u16::try_from(inst.e).map_err(|_| "no such lane")?;
                self.read(lane, size, inst.d, 1)?;
                0
            }
        };
        // These walk the whole strip by rows and columns, regardless of the count they name.
        let whole = matches!(
            inst.op,
            Opcode::LoadTile(_) | Opcode::StoreTile(_) | Opcode::MoveTile(_) | Opcode::AffineIndex | Opcode::Iota
        );
        ensure(!whole || inst.d == 0, || "counts groups where it walks elements".into())?;
        let size_of = |size: u8| if size == 0 { width as u8 } else { size };
        // The count in d, if d is a count. Ops that use d for a lane count the elements.
        let count = if operands[3] == Operand::Count { inst.d } else { 0 };
        let group = if extra == Extra::Size { inst.e as u64 } else { 1 };
        let fields = [inst.a, inst.b, inst.c, inst.d];
        // Reads before writes: a lane that is only written here must not count as readable.
        for (operand, field) in operands.into_iter().zip(fields) {
            match operand {
                Operand::Reg | Operand::RegOut => self.reg(field)?,
                Operand::Lane(size) => self.read(field, size_of(size), count, 1)?,
                Operand::GroupLane(size) => self.read(field, size_of(size), count, group)?,
                Operand::OptionalLane(size) if field != u16::MAX => self.read(field, size, count, 1)?,
                Operand::NextSlot => ensure(field as usize <= self.role.slots.len(), || format!("no slot {field}"))?,
                Operand::Count => ensure((field as usize) < self.each.map_or(0, |e| e.groups.len()), || {
                    format!("count {field} does not exist")
                })?,
                _ => {}
            }
        }
        for (operand, field) in operands.into_iter().zip(fields) {
            match (operand, inst.op) {
                (Operand::LaneOut(_), Opcode::Bind | Opcode::BindStore) => self.bind(field, size_of(0), count)?,
                (Operand::LaneOut(size), _) => self.write(field, size_of(size), count, 1)?,
                (Operand::GroupLaneOut(size), _) => self.write(field, size_of(size), count, group)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The maximum number of elements in a strip of this `each`, by count number.
    fn longest(&self, count: u16) -> u64 {
        let Some(each) = self.each else { return 0 };
        let elements = u64::from(each.tile_rows).saturating_mul(each.tile_cols);
        elements.div_ceil(u64::from(each.groups.get(count as usize).copied().unwrap_or(1)))
    }

    fn read(&self, lane: u16, size: u8, count: u16, group: u64) -> Result<(), String> {
        self.lane(lane, size)?;
        if let Some(&bound) = self.bound.get(&lane) {
            let same = if group > 1 { self.group_of(bound) == group } else { bound == count };
            return ensure(same, || format!("lane {lane} was bound for count {bound}, not {count}"));
        }
        ensure(self.filled.contains(&lane), || format!("lane {lane} is read before it is written"))?;
        self.room(lane, count, group)
    }

    fn group_of(&self, count: u16) -> u64 {
        self.each.and_then(|each| each.groups.get(count as usize)).map_or(1, |&g| u64::from(g))
    }

    fn write(&mut self, lane: u16, size: u8, count: u16, group: u64) -> Result<(), String> {
        self.lane(lane, size)?;
        if let Some(&bound) = self.bound.get(&lane) {
            return ensure(bound == count && group == 1, || format!("lane {lane} was bound for count {bound}"));
        }
        self.room(lane, count, group)?;
        self.filled.push(lane);
        Ok(())
    }

    fn bind(&mut self, lane: u16, size: u8, count: u16) -> Result<(), String> {
        self.lane(lane, size)?;
        ensure(self.role.lanes[lane as usize].strip.is_none(), || format!("lane {lane} has strip memory"))?;
        self.bound.insert(lane, count);
        Ok(())
    }

    fn room(&self, lane: u16, count: u16, group: u64) -> Result<(), String> {
        let (_, capacity) = self.role.lanes[lane as usize].strip.ok_or_else(|| format!("lane {lane} is not bound"))?;
        let needed = self.longest(count).div_ceil(group);
        ensure(u64::from(capacity) >= needed, || format!("lane {lane} has room for {capacity} of {needed} elements"))
    }

    fn lane(&self, lane: u16, size: u8) -> Result<(), String> {
        let info = self.role.lanes.get(lane as usize).ok_or_else(|| format!("lane {lane} does not exist"))?;
        ensure(info.size == size, || format!("lane {lane} has elements of {} bytes, not {size}", info.size))
    }

    fn reg(&self, reg: u16) -> Result<(), String> {
        ensure((reg as usize) < self.role.registers.len(), || format!("register {reg} does not exist"))
    }
}

/// Bytes that an op moves per element of its accesses; `None` means the width of its accesses, which must agree.
fn access_width(op: Opcode) -> Option<u32> {
    match op {
        Opcode::CopyOut(size)
        | Opcode::StreamOut(size)
        | Opcode::LoadStrided(size)
        | Opcode::StoreStrided(size)
        | Opcode::LoadTile(size)
        | Opcode::StoreTile(size)
        | Opcode::MoveTile(size)
        | Opcode::Gather(size, _)
        | Opcode::GatherMasked(size)
        | Opcode::Scatter(size)
        | Opcode::ScatterMasked(size)
        | Opcode::AtomicLanes(size) => Some(u32::from(size)),
        Opcode::ULoad(ty) | Opcode::UStore(ty) | Opcode::UAtomicAdd(ty) => Some(ty.size() as u32),
        Opcode::PacketPut | Opcode::PacketGet | Opcode::PacketPutRow | Opcode::PacketGetRow => Some(16),
        _ => None,
    }
}

fn index(e: i32, len: usize) -> Result<u32, String> {
    ensure(usize::try_from(e).is_ok_and(|e| e < len), || format!("table entry {e} of {len}"))?;
    Ok(0)
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

#[cfg(any(test, fuzzing))]
pub(super) mod tests;
