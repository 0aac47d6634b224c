//! The effect of one instruction on one thread.

use super::Memory;
use super::arith;
use super::bulk::{Copy, Shared};
use super::parse::{Code, Instr, Operand};
use super::trace::Space;
use std::collections::VecDeque;

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Running,
    Warp,
    Barrier { number: u64, count: u64 },
    Done,
}

pub struct Thread {
    pub number: u32,
    pub at: usize,
    pub block: u32,
    registers: Vec<u64>,
    local: Vec<u8>,
    state: State,
    /// The copies to memory: those of the open group, and the groups before it.
    group: Vec<Copy>,
    groups: VecDeque<Vec<Copy>>,
    /// The copies of 16 bytes to shared memory, in the same form.
    piece: Vec<Copy>,
    pieces: VecDeque<Vec<Copy>>,
}

impl Thread {
    pub fn new(code: &Code, number: u32, block: u32) -> Self {
        let (registers, local) = (vec![0; code.registers], vec![0xa5; code.local]);
        let [group, piece] = [Vec::new(), Vec::new()];
        let [groups, pieces] = [VecDeque::new(), VecDeque::new()];
        Thread { number, at: 0, block, registers, local, state: State::Running, group, groups, piece, pieces }
    }

    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }

    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    pub fn waits_for_warp(&self) -> bool {
        self.state == State::Warp
    }

    pub fn barrier(&self) -> Option<(u64, u64)> {
        match self.state {
            State::Barrier { number, count } => Some((number, count)),
            _ => None,
        }
    }

    /// The predicate that a thread brings to a reducing barrier.
    pub fn offers(&self, code: &Code) -> bool {
        let instr = &code.instrs[self.at];
        instr.parts[1] == "red" && self.value(&instr.args[3], 0) & 1 == 1
    }

    /// Continues after a barrier.
    pub fn pass(&mut self, code: &Code, any: bool) {
        let instr = &code.instrs[self.at];
        if instr.parts[1] == "red" {
            self.set(&instr.args[0], u64::from(any));
        }
        self.at += 1;
        self.state = State::Running;
    }

    /// Runs the thread until it meets others, ends, or has had its turn.
    pub fn run(
        &mut self,
        code: &Code,
        args: &[u8],
        memory: &mut Memory,
        shared: &mut Shared,
        clock: u64,
        steps: u32,
    ) -> Result<(), String> {
        for step in 0..steps {
            let instr = &code.instrs[self.at];
            if instr.guard.is_some_and(|(p, not)| (self.registers[p] & 1 == 1) == not) {
                self.at += 1;
                continue;
            }
            match instr.parts[0].as_str() {
                "bra" => {
                    self.at = instr.target;
                    continue;
                }
                "exit" if self.is_quiet() => self.state = State::Done,
                "exit" => return Err("a thread leaves with copies under way".into()),
                "bar" if instr.parts[1] == "warp" => self.state = State::Warp,
                "vote" | "shfl" => self.state = State::Warp,
                "bar" => {
                    let first = usize::from(instr.parts[1] == "red");
                    let (number, count) = (self.value(&instr.args[first], 0), self.value(&instr.args[first + 1], 0));
                    self.state = State::Barrier { number, count };
                }
                "ld" | "st" | "atom" => self.access(instr, args, memory, &mut shared.bytes)?,
                "cp" if instr.parts[2] == "bulk" => self.copy(instr, memory, shared)?,
                "cp" => self.copy_piece(instr, memory, shared)?,
                "mbarrier" => self.mbarrier(instr, memory, shared)?,
                "fence" => {}
                _ => self.compute(instr, clock + u64::from(step))?,
            }
            if self.state != State::Running {
                return Ok(());
            }
            self.at += 1;
        }
        Ok(())
    }

    fn value(&self, operand: &Operand, clock: u64) -> u64 {
        match operand {
            Operand::Reg(r) => self.registers[*r],
            Operand::Imm(bits) => *bits,
            Operand::Special("%tid.x") => self.number.into(),
            Operand::Special("%ctaid.x") => self.block.into(),
            Operand::Special(_) => clock,
            Operand::Vector(halves) => {
                self.value(&halves[0], clock) & 0xffff_ffff | self.value(&halves[1], clock) << 32
            }
            Operand::Memory(..) => unreachable!("an address is no value"),
        }
    }

    fn set(&mut self, to: &Operand, bits: u64) {
        match to {
            Operand::Reg(r) => self.registers[*r] = bits,
            Operand::Vector(halves) => {
                self.set(&halves[0], bits & 0xffff_ffff);
                self.set(&halves[1], bits >> 32);
            }
            _ => unreachable!("not a destination"),
        }
    }

    /// A place in memory.
    fn address(&self, place: &Operand) -> Result<u64, String> {
        let &Operand::Memory(base, offset) = place else { return Err("no address".into()) };
        Ok(base.map_or(0, |base| self.registers[base]).wrapping_add(offset as u64))
    }

    fn copy(&mut self, instr: &Instr, memory: &mut Memory, shared: &mut Shared) -> Result<(), String> {
        let parts: Vec<&str> = instr.parts.iter().skip(3).map(String::as_str).collect();
        let args = &instr.args;
        match parts[..] {
            ["commit_group"] => self.groups.push_back(std::mem::take(&mut self.group)),
            ["wait_group", ..] => {
                while self.groups.len() as u64 > self.value(&args[0], 0) {
                    for copy in self.groups.pop_front().expect("one more") {
                        copy.put(memory, shared)?;
                    }
                }
            }
            ["global", "shared::cta", "bulk_group"] => {
                let (global, shared) = (self.address(&args[0])?, self.address(&args[1])?);
                self.group.push(Copy { global, shared, bytes: self.value(&args[2], 0) }.checked()?);
            }
            ["shared::cluster", "global", ..] => {
                let (to, from, mbarrier) = (self.address(&args[0])?, self.address(&args[1])?, self.address(&args[3])?);
                shared.get(mbarrier, Copy { global: from, shared: to, bytes: self.value(&args[2], 0) })?;
            }
            _ => return Err(format!("unknown copy {}", instr.parts.join("."))),
        }
        Ok(())
    }

    /// Copies of 16 bytes by a lane. They may take effect at any time until the lane waits for them. The copies of
    /// every second lane are done immediately, and the rest at the last moment. So reads that are too early and writes
    /// that are too late have a visible effect.
    fn copy_piece(&mut self, instr: &Instr, memory: &mut Memory, shared: &mut Shared) -> Result<(), String> {
        let parts: Vec<&str> = instr.parts.iter().skip(2).map(String::as_str).collect();
        let args = &instr.args;
        match parts[..] {
            ["commit_group"] => self.pieces.push_back(std::mem::take(&mut self.piece)),
            ["wait_group"] => {
                while self.pieces.len() as u64 > self.value(&args[0], 0) {
                    for copy in self.pieces.pop_front().expect("one more") {
                        copy.land(memory, shared)?;
                    }
                }
            }
            ["cg", "shared", "global"] | ["cg", "shared", "global", "L2::cache_hint"]
                if self.value(&args[2], 0) == 16 =>
            {
                let (to, from) = (self.address(&args[0])?, self.address(&args[1])?);
                let copy = Copy { global: from, shared: to, bytes: 16 }.checked()?;
                if let Some(trace) = &mut memory.trace {
                    trace.access(self, instr, (Space::Shared, to, 16), false);
                }
                match self.number % 2 {
                    0 => self.piece.push(copy),
                    _ => copy.land(memory, shared)?,
                }
            }
            _ => return Err(format!("unknown copy {}", instr.parts.join("."))),
        }
        Ok(())
    }

    /// True if no copy of this thread is under way.
    fn is_quiet(&self) -> bool {
        let landed = self.piece.is_empty() && self.pieces.iter().all(Vec::is_empty);
        landed && self.group.is_empty() && self.groups.is_empty()
    }

    fn mbarrier(&mut self, instr: &Instr, memory: &mut Memory, shared: &mut Shared) -> Result<(), String> {
        let args = &instr.args;
        match (instr.parts[1].as_str(), instr.parts[2].as_str()) {
            ("init", _) => shared.init(self.address(&args[0])?, self.value(&args[1], 0)),
            ("arrive", "expect_tx") => shared.arrive(self.address(&args[1])?, self.value(&args[2], 0)),
            ("arrive", _) => shared.arrive(self.address(&args[1])?, 0),
            ("try_wait", "parity") => {
                let complete = shared.waited(self.address(&args[1])?, self.value(&args[2], 0), memory)?;
                self.set(&args[0], u64::from(complete));
                Ok(())
            }
            _ => Err(format!("unknown {}", instr.parts.join("."))),
        }
    }

    fn compute(&mut self, instr: &Instr, clock: u64) -> Result<(), String> {
        match (&instr.args[0], &instr.args[1]) {
            // Moves between a word and its halves. `value` and `set` handle 64 bits.
            (Operand::Vector(halves), word) if instr.parts[1] == "b32" => {
                let word = self.value(word, clock);
                self.set(&halves[0], word & 0xffff);
                self.set(&halves[1], word >> 16 & 0xffff);
            }
            (word, Operand::Vector(halves)) if instr.parts[1] == "b32" => {
                let [low, high] = [0, 1].map(|k| self.value(&halves[k], clock) & 0xffff);
                self.set(word, low | high << 16);
            }
            (to, _) => {
                let args: Vec<u64> = instr.args[1..].iter().map(|arg| self.value(arg, clock)).collect();
                let bits = arith::compute(&instr.parts, &args)?;
                self.set(to, bits);
            }
        }
        Ok(())
    }

    fn access(&mut self, instr: &Instr, args: &[u8], memory: &mut Memory, shared: &mut [u8]) -> Result<(), String> {
        let parts: Vec<&str> = instr.parts.iter().map(String::as_str).collect();
        let load = parts[0] != "st";
        let (place, data) = if load { (&instr.args[1], &instr.args[0]) } else { (&instr.args[0], &instr.args[1]) };
        let address = self.address(place)?;
        let ty = *parts.last().expect("an opcode");
        let (bytes, signed) = (ty[1..].parse::<u64>().map_err(|e| e.to_string())? / 8, ty.starts_with('s'));
        let count = parts.iter().find_map(|part| part.strip_prefix('v')?.parse::<u64>().ok()).unwrap_or(1);
        if !address.is_multiple_of(bytes * count) {
            return Err(format!("address {address:#x} is not aligned to {}", bytes * count));
        }
        let space = Space::of(&parts);
        if let Some(trace) = &mut memory.trace {
            trace.access(self, instr, (space, address, bytes * count), load);
        }
        let inside = |space: &str, len: usize| format!("{space} address {address:#x} of {len}");
        let range = address as usize..(address + bytes * count) as usize;
        let mut param;
        let place: &mut [u8] = if parts.contains(&"global") {
            memory.at(address, bytes * count)?
        } else if parts.contains(&"shared") {
            let len = shared.len();
            shared.get_mut(range).ok_or_else(|| inside("shared", len))?
        } else if parts.contains(&"local") {
            let len = self.local.len();
            self.local.get_mut(range).ok_or_else(|| inside("local", len))?
        } else {
            param = args.get(range).ok_or_else(|| inside("param", args.len()))?.to_vec();
            &mut param
        };
        let read = |place: &[u8]| {
            let mut raw = [0; 8];
            raw[..bytes as usize].copy_from_slice(place);
            let bits = u64::from_le_bytes(raw);
            let unused = 64 - 8 * bytes as u32;
            if signed && bytes < 8 { u64::from(((bits << unused) as i64 >> unused) as u32) } else { bits }
        };
        if parts[0] == "atom" {
            let old = read(place);
            let operand = |k: usize| match instr.args[k] {
                Operand::Reg(r) => self.registers[r],
                Operand::Imm(bits) => bits,
                _ => unreachable!("an operand of an atomic"),
            };
            let new = match parts.contains(&"cas") {
                true if old == operand(2) => operand(3),
                true => old,
                false => old.wrapping_add(operand(2)),
            };
            place.copy_from_slice(&new.to_le_bytes()[..bytes as usize]);
            self.set(&instr.args[0], old);
            return Ok(());
        }
        let elements: &[Operand] =
            if let Operand::Vector(elements) = data { elements } else { std::slice::from_ref(data) };
        if elements.len() as u64 != count {
            return Err("vector of another length".into());
        }
        if load {
            let values: Vec<u64> = place.chunks(bytes as usize).map(read).collect();
            elements.iter().zip(values).for_each(|(to, bits)| self.set(to, bits));
        } else {
            for (element, place) in elements.iter().zip(place.chunks_mut(bytes as usize)) {
                let bits = match element {
                    Operand::Reg(r) => self.registers[*r],
                    Operand::Imm(bits) => *bits,
                    _ => return Err("no value to store".into()),
                };
                place.copy_from_slice(&bits.to_le_bytes()[..bytes as usize]);
            }
        }
        Ok(())
    }
}

/// Runs a collective that all lanes of a warp have reached, and releases them.
pub fn collective(code: &Code, warp: &mut [Thread]) -> Result<(), String> {
    let instr = &code.instrs[warp[0].at];
    let name: Vec<&str> = instr.parts.iter().map(String::as_str).collect();
    match name[..] {
        ["bar", ..] => {}
        ["vote", ..] => {
            let any = warp.iter().any(|thread| thread.value(&instr.args[1], 0) & 1 == 1);
            warp.iter_mut().for_each(|thread| thread.set(&instr.args[0], u64::from(any)));
        }
        ["shfl", _, kind, _] => {
            let given: Vec<u64> = warp.iter().map(|thread| thread.value(&instr.args[1], 0)).collect();
            for (lane, thread) in warp.iter_mut().enumerate() {
                let by = thread.value(&instr.args[2], 0) as usize;
                let from = if kind == "idx" { by } else { lane ^ by };
                thread.set(&instr.args[0], given[from]);
            }
        }
        _ => return Err(format!("unknown collective {name:?}")),
    }
    for thread in warp {
        thread.at += 1;
        thread.state = State::Running;
    }
    Ok(())
}
