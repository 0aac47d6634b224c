//! The machine: the state of one running instance (a block's role) and the loop that runs it.
//!
//! The loop is threaded: every instruction carries the address of its handler, and the handler returns the address of
//! the next instruction, or null to stop. Register and lane numbers, table indices, jump targets and lane sizes were
//! checked once by [`super::verify`] and are not checked again. Addresses of memory accesses are known only at run
//! time. They are checked once per strip (once per element for gathers).

use super::code::{Access, Code, Each, Input, MAX_COUNTS, PostRef, RoleCode, SlotRef};
use super::handlers;
use super::level::Level;
use super::pace::{AROUND_FROM, Pace};
use super::shortcut::Shortcut;
use super::stamp::{FlagStamp, WordStamp};
use super::waits::{Awaited, WaitHost, Waits};
use crate::ir::matching::Look;
use crate::ir::{Special, Type};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

/// Does the work of an instruction, and perhaps of some after it. Returns the next one, or null after setting
/// `machine.stop`.
pub(crate) type Handler = unsafe fn(&mut Machine, *const Inst) -> *const Inst;

/// An instruction bound to its handler.
#[derive(Clone, Copy)]
pub(crate) struct Inst {
    pub run: Handler,
    pub a: u16,
    pub b: u16,
    pub c: u16,
    pub d: u16,
    pub e: i32,
}

/// The code of a role, verified and bound to the handlers of one instruction-set level.
pub(crate) struct Program {
    pub role: RoleCode,
    pub insts: Box<[Inst]>,
}

impl Program {
    /// Binds verified code.
    pub(crate) fn new(role: RoleCode, level: Level) -> Program {
        let bind = |(k, code): (usize, &Code)| Inst {
            run: handlers::of_several(&role.code[k..]).unwrap_or_else(|| handlers::handler(code.op, level)),
            a: code.a,
            b: code.b,
            c: code.c,
            d: code.d,
            e: code.e,
        };
        let insts = role.code.iter().enumerate().map(bind).collect();
        Program { role, insts }
    }
}

/// Why a machine stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stop {
    /// Not stopped.
    Running,
    /// The role is done.
    Done,
    /// A wait is not ready; run again to try again.
    Blocked(Blocked),
    /// An access is out of bounds or misaligned.
    Fault(Fault),
}

/// A wait that is not ready.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Blocked {
    /// Slot `slots[slot]` is below `expected`.
    Slot { slot: u32, bank: i64, index: i64, expected: u64, seen: u64 },
    /// A packet of access `access` does not carry the flag.
    Packet { access: u32, bank: Option<i64>, packet: i64, expected: u32, seen: u32 },
    /// The ring of post `post` is full.
    Queue { post: u32 },
    /// Loop `polls[poll]` lets others run.
    Poll { poll: u32 },
}

/// What a blocked machine waits for, in a form that can be checked without running it.
#[derive(Clone, Copy)]
pub(crate) enum Watch {
    /// A slot that has not reached `expected` yet.
    Slot { slot: *const AtomicU64, expected: u64, stamp: WordStamp },
    /// Half a packet without its flag.
    Packet { half: *const AtomicU64, flag: u32, stamp: FlagStamp },
    /// Only running it again can tell: a polling role continues in any case, and the consumer of a queue rings no bell.
    Polled,
}

impl Watch {
    pub(crate) fn is_polled(self) -> bool {
        matches!(self, Watch::Polled)
    }

    /// The address it looks at, if there is one.
    pub(crate) fn address(self) -> Option<usize> {
        match self {
            Watch::Slot { slot, .. } => Some(slot as usize),
            Watch::Packet { half, .. } => Some(half as usize),
            Watch::Polled => None,
        }
    }

    /// True if the machine is known to be able to continue: what it waits for is there, or that of another operation.
    ///
    /// # Safety
    /// The machine is blocked and alive: the word is one that its wait has just read.
    pub(crate) unsafe fn is_ready(self) -> bool {
        // Relaxed would do: the wait itself looks again with acquire before anything depends on it.
        match self {
            Watch::Slot { slot, expected, stamp } => {
                // SAFETY: the caller's promise.
                stamp.look(unsafe { &*slot }.load(Ordering::Acquire), expected) != Look::Missing
            }
            Watch::Packet { half, flag, stamp } => {
                // SAFETY: the caller's promise.
                let seen = (unsafe { &*half }.load(Ordering::Acquire) >> 32) as u32;
                stamp.look(seen, flag) != Look::Missing
            }
            Watch::Polled => false,
        }
    }
}

/// An access that must not happen, or a condition that must hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Elements from `index` on leave the bank.
    Bounds { access: u32, index: i64 },
    /// The byte offset is not a multiple of the access size.
    Misaligned { access: u32, index: i64 },
    /// No such bank.
    Bank { access: u32, bank: i64 },
    /// No such slot, or no such bank of slots.
    Slot { slot: u32, bank: i64, index: i64 },
    /// A requirement of the kernel does not hold.
    Required { require: u32 },
    /// A bulk copy of a negative count.
    Count { access: u32, count: i64 },
    /// A slot has the awaited count, but of another operation.
    OtherSignal { slot: u32, bank: i64, index: i64, expected: u64, seen: u64 },
    /// The awaited packet is there, but of another operation.
    OtherPacket { access: u32, bank: Option<i64>, packet: i64, expected: u32, seen: u32 },
}

/// Where the current `each` is.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cursor {
    pub rows: u64,
    pub cols: u64,
    /// The strip: `tile_rows` × `tile_cols` elements from (row, col).
    pub row: u64,
    pub col: u64,
    pub tile_rows: u64,
    pub tile_cols: u64,
    /// Whether `BindStore` and `StreamOut` go around the cache, and the number of bytes from which other pieces do.
    pub streaming: bool,
    pub stream_from: usize,
}

/// One running (block, role).
pub(crate) struct Machine {
    /// Registers and lanes, as raw pointers because handlers index them unchecked; the vectors behind them are in
    /// `owned`.
    regs: *mut u64,
    lanes: *mut *mut u8,
    bases: *const *mut u8,
    accesses: *const Access,
    places: *const Place,
    slots: *const SlotRef,
    slot_places: *const Place,
    posts: *const PostRef,
    eaches: *const Each,
    pub counts: [usize; MAX_COUNTS],
    pub cursor: Cursor,
    pub stop: Stop,
    /// The lane bound to memory that is written around the cache; `u16::MAX`: none.
    pub stream_lane: u16,
    /// Whether there were non-temporal stores since the last fence.
    pub streamed: bool,
    pub level: Level,
    /// Counts satisfied waits and started `each`es, so that an observer can see progress.
    pub passed: u64,
    /// Iterations of polling loops, and a hash of the registers when such a loop last let others run.
    pub turns: u32,
    pub polled: u64,
    /// The number of bytes from which an `each` stores around the cache: usually, and in the current step.
    usual_stream_from: usize,
    pub stream_from: usize,
    /// The same for interleaved copies into tensors of this rank.
    pub stream_kept_from: usize,
    /// Decides how data for other ranks is written.
    pub pace: Pace,
    /// An `each` that is known to store fewer bytes goes through the cache and is not timed.
    pub plain_below: u64,
    /// How many times a wait looks again before it stops the machine; nonzero only if no other machine waits to run.
    /// The awaited value is often only one cache-line transfer away, and then nothing is faster than looking again.
    pub looks: u32,
    /// The fast path, if there is one and no other machine waits to run.
    pub shortcut: Option<Shortcut>,
    /// The next machine of the participant that runs this one; see `pool.rs`.
    pub next: usize,
    /// What the machine waits for, if it is blocked.
    pub watch: Watch,
    /// For each entry of `bases` the bell of the rank whose waits look at it; null if signals wake nobody.
    bells: *const BellRef,
    host: Option<Arc<dyn WaitHost>>,
    pc: *const Inst,
    owned: Owned,
}

/// What the machine's pointers point to; never touched except through them. Vectors, not boxes: moving a box asserts
/// that nobody else points into it.
struct Owned {
    program: Arc<Program>,
    _regs: Vec<u64>,
    _lanes: Vec<*mut u8>,
    _bases: Vec<*mut u8>,
    _places: Vec<Place>,
    _slot_places: Vec<Place>,
    _bells: Vec<BellRef>,
    _strips: Vec<Line>,
    _scratch: Vec<Line>,
    inputs: Vec<(u16, Start)>,
}

/// What a machine knows about an access or a slot table before it runs, so that little is left to check where each
/// nanosecond counts.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The first byte of its bank; null if a register selects the bank.
    pub start: *mut u8,
    /// The number of indices certain to lie there; 0 if a register selects the bank.
    pub count: u64,
    /// Bytes per index step.
    pub unit: u32,
    /// Elements begin at multiples of this many indices, a power of two (whose logarithm is `shift`): 1, unless
    /// elements are wider than an index step.
    steps: u32,
    shift: u8,
    /// The register of its first index.
    pub base: u16,
    /// The entry of its (first) bank among the bases.
    pub entry: u16,
    /// For slots in one bank: how counts become words.
    pub words: WordStamp,
    /// For packets in one bank: how flags become the flags that are sent.
    pub flags: FlagStamp,
}

impl Place {
    fn of_access(access: &Access, bases: &[*mut u8]) -> Place {
        let Access { bytes, unit, width, .. } = *access;
        // The verifier checked that a width is a power of two and a multiple of the unit.
        let place =
            Place::new(access.bank, bytes / u64::from(width), unit, width / unit, access.base, access.first, bases);
        Place { flags: FlagStamp::of(access.operations.as_deref(), 0), ..place }
    }

    fn of_slot(slot: &SlotRef, bases: &[*mut u8]) -> Place {
        let place = Place::new(slot.bank, slot.len, slot.stride, 1, slot.index, slot.first, bases);
        Place { words: WordStamp::of(slot.operations.as_deref(), 0), ..place }
    }

    /// The place of `count` elements of `steps` index steps each.
    fn new(bank: Option<u16>, count: u64, unit: u32, steps: u32, base: u16, entry: u16, bases: &[*mut u8]) -> Place {
        let (start, count) = match bank {
            Some(_) => (std::ptr::null_mut(), 0),
            None => (bases[entry as usize], count * u64::from(steps)),
        };
        let (words, flags) = (WordStamp::of(None, 0), FlagStamp::of(None, 0));
        Place { start, count, unit, steps, shift: steps.ilog2() as u8, base, entry, words, flags }
    }

    /// True if `count` is at least 1 and `count` elements from `index` on are known to be in the bank and aligned.
    #[inline(always)]
    pub(crate) fn holds(self, index: u64, count: u64) -> bool {
        // A count of 0 wraps, and is then too large.
        let are_inside = index < self.count && count.wrapping_sub(1) < (self.count - index) >> self.shift;
        are_inside && index & u64::from(self.steps - 1) == 0
    }

    /// Address of `count` elements from the base on, if the place [holds](Place::holds) them.
    ///
    /// # Safety
    /// The place is one of `m`.
    #[inline(always)]
    pub(crate) unsafe fn known(self, m: &Machine, count: u64) -> Option<*mut u8> {
        // SAFETY: the verifier checked the register. All `self.count` indices lie in a bank of the size that the
        // verifier was given, so the product is an offset in it and does not wrap.
        unsafe {
            let index = m.reg(self.base);
            self.holds(index, count).then(|| self.start.add((index * u64::from(self.unit)) as usize))
        }
    }
}

/// A [`Bell`](super::waits::Bell) lent by the machine's host. The word is borrowed from inside the host's `Arc`.
/// `Machine::host` is a handle to that very `Arc`, and while it exists, the host can be reached only by shared
/// reference, so the loan lasts. Code that replaces the host must drop the bells first.
#[derive(Clone, Copy)]
struct BellRef {
    word: *const AtomicU32,
    sleepers: u32,
    rank: u32,
}

/// What a register is set to when a launch starts.
#[derive(Clone, Copy)]
enum Start {
    Value(u64),
    Read(*const u8, Type),
}

/// Strip memory and scratch are allocated in pairs of cache lines, so that vector accesses do not split and scratch has
/// the alignment that the access analysis promises.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u8; 128]);

/// The numbers a launch knows about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub rank: i64,
    pub world_size: i64,
    pub block: i64,
    pub blocks: i64,
}

impl Machine {
    /// An instance of a program. `bases` are the addresses of all banks of all arguments, in order, followed by one
    /// null per scratch of the role, which is filled in here.
    ///
    /// # Safety
    /// The program passed [`super::verify`] with these `bases`: every access's banks are valid for `bytes` bytes and
    /// every scalar's entry for its type, until the machine is dropped.
    pub(crate) unsafe fn new(program: Arc<Program>, mut bases: Vec<*mut u8>, id: Identity, level: Level) -> Machine {
        let role = &program.role;
        let mut regs = role.registers.clone();
        let lines = |bytes: usize| vec![Line([0; 128]); bytes.div_ceil(128)];
        let mut strips = lines(role.strip_bytes as usize);
        let mut scratch = lines(role.scratch_bytes);
        let strip_start = strips.as_mut_ptr().cast::<u8>();
        let mut lanes: Vec<*mut u8> = role
            .lanes
            .iter()
            .map(|lane| match lane.strip {
                // SAFETY: the verifier checked that each strip lies inside `strip_bytes`.
                Some((offset, _)) => unsafe { strip_start.add(offset as usize) },
                None => std::ptr::null_mut(),
            })
            .collect();
        for &(entry, offset) in &role.scratch {
            // SAFETY: the verifier checked that each scratch lies inside `scratch_bytes`.
            bases[entry as usize] = unsafe { scratch.as_mut_ptr().cast::<u8>().add(offset) };
        }
        let inputs = role
            .inputs
            .iter()
            .map(|&(reg, input)| {
                let start = match input {
                    Input::Special(special) => Start::Value(match special {
                        Special::Rank => id.rank,
                        Special::WorldSize => id.world_size,
                        Special::Block => id.block,
                        Special::Blocks => id.blocks,
                        Special::Copy => 0,
                        Special::Copies => 1,
                    } as u64),
                    Input::Scalar(entry, ty) => Start::Read(bases[entry as usize], ty),
                };
                (reg, start)
            })
            .collect();
        let places: Vec<Place> = role.accesses.iter().map(|access| Place::of_access(access, &bases)).collect();
        let slot_places: Vec<Place> = role.slots.iter().map(|slot| Place::of_slot(slot, &bases)).collect();
        Machine {
            regs: regs.as_mut_ptr(),
            lanes: lanes.as_mut_ptr(),
            bases: bases.as_ptr(),
            accesses: role.accesses.as_ptr(),
            places: places.as_ptr(),
            slots: role.slots.as_ptr(),
            slot_places: slot_places.as_ptr(),
            posts: role.posts.as_ptr(),
            eaches: role.eaches.as_ptr(),
            counts: [0; MAX_COUNTS],
            cursor: Cursor::default(),
            stop: Stop::Running,
            stream_lane: u16::MAX,
            streamed: false,
            level,
            passed: 0,
            turns: 0,
            polled: 0,
            usual_stream_from: usize::MAX,
            stream_from: usize::MAX,
            stream_kept_from: usize::MAX,
            pace: Pace::none(),
            plain_below: 0,
            looks: 0,
            shortcut: None,
            next: usize::MAX,
            watch: Watch::Polled,
            bells: std::ptr::null(),
            host: None,
            pc: program.insts.as_ptr(),
            owned: Owned {
                _regs: regs,
                _lanes: lanes,
                _bases: bases,
                _places: places,
                _slot_places: slot_places,
                _bells: Vec::new(),
                _strips: strips,
                _scratch: scratch,
                inputs,
                program,
            },
        }
    }

    /// Sets the number of bytes from which an `each` stores around the cache, the same for interleaved copies into
    /// tensors of this rank (`kept_from`), and how data for other ranks is written.
    pub(crate) fn stream(&mut self, from: usize, kept_from: usize, pace: Pace) {
        self.plain_below = pace.from().min(from as u64);
        (self.usual_stream_from, self.stream_from, self.stream_kept_from, self.pace) = (from, from, kept_from, pace);
    }

    /// Begins a step that stores `bytes` bytes, `pace.from()` or more. Until [`Machine::end_step`], another
    /// `stream_from` may apply.
    #[inline(never)]
    pub(crate) fn begin_step(&mut self, bytes: u64) {
        if let Some(group) = self.pace.take_owed() {
            // SAFETY: a wait of this machine noted the group.
            unsafe { super::control::look_again(self, group) };
        }
        let usual = self.usual_stream_from;
        self.stream_from = if self.pace.begin(bytes) { usual.min(AROUND_FROM) } else { usual };
    }

    /// Ends the current step, if there is one.
    #[inline(always)]
    pub(crate) fn end_step(&mut self) {
        if self.pace.end() {
            self.stream_from = self.usual_stream_from;
        }
    }

    /// From now on, signals wake the ranks that sleep on them.
    pub(crate) fn announce(&mut self, waits: &Waits) {
        // First, because they point into the host that is released next.
        self.bells = std::ptr::null();
        self.owned._bells.clear();
        self.host = waits.host().cloned();
        if let Some(host) = &self.host {
            let bell = |&start: &*mut u8| {
                let rank = host.owner(start as usize);
                let bell = host.bell(rank);
                BellRef { word: bell.word, sleepers: bell.sleepers, rank: rank as u32 }
            };
            self.owned._bells = self.owned._bases.iter().map(bell).collect();
            self.bells = self.owned._bells.as_ptr();
        }
    }

    /// Goes to the start of the role and reads the scalars.
    #[inline]
    pub(crate) fn restart(&mut self) {
        self.pc = self.owned.program.insts.as_ptr();
        self.stop = Stop::Running;
        (self.turns, self.polled) = (0, 0);
        // Undo what the last launch left, if it failed.
        self.stream_from = self.usual_stream_from;
        self.pace.launch();
        for &(reg, start) in &self.owned.inputs {
            let bits = match start {
                Start::Value(bits) => bits,
                // SAFETY: `new`'s caller promised that the scalar's address is valid for its type.
                Start::Read(from, ty) => unsafe { super::uniform::read(from, ty) },
            };
            // SAFETY: the verifier checked the register numbers of the inputs.
            unsafe { *self.regs.add(reg as usize) = bits };
        }
    }

    /// Runs until the role is done, a wait is not ready, or an access faults. Returns whether it is done; `stop` says
    /// the rest.
    ///
    /// It returns a bool and not a copy of `stop`. The copy would read in one piece what was written in small pieces.
    /// The processor would then wait until those have left its store buffer, behind any signal still on its way to
    /// another core.
    #[inline]
    pub(crate) fn run(&mut self) -> bool {
        let mut pc = self.pc;
        self.stop = Stop::Running;
        // SAFETY: `pc` is an instruction of the verified program: the first one, or one where a handler stopped. A
        // handler returns the next instruction or a jump target that the verifier found inside the code, or null; the
        // last instruction of verified code never falls through.
        unsafe {
            while !pc.is_null() {
                pc = ((*pc).run)(self, pc);
            }
        }
        matches!(self.stop, Stop::Done)
    }

    /// What the machine waits for, if it is blocked on memory that a rank is known to signal.
    pub(crate) fn awaited(&self) -> Option<Awaited> {
        let rank = match self.stop {
            Stop::Blocked(Blocked::Slot { slot, bank, index, .. }) => self.role().signaller(slot, bank, index)?,
            Stop::Blocked(Blocked::Packet { access, bank, packet, .. }) => self.role().sender(access, bank, packet)?,
            _ => return None,
        };
        Some(Awaited { rank: rank as usize, address: self.watch.address()? })
    }

    /// The numbers of a requirement, as this machine has computed them.
    pub(crate) fn required_span(&self, require: u32) -> Option<[i64; 4]> {
        let span = self.role().requires[require as usize].span?;
        // SAFETY: the verifier checked the registers of every requirement.
        Some(span.map(|reg| unsafe { self.reg(reg) } as i64))
    }

    /// The program this machine runs.
    pub(crate) fn role(&self) -> &RoleCode {
        &self.owned.program.role
    }

    // ---- what handlers use; unchecked here, because the verifier checked the code -----------------------------------

    /// Stops at `pc`: `run` will resume there.
    #[inline(always)]
    pub(crate) fn stop_at(&mut self, pc: *const Inst, stop: Stop) -> *const Inst {
        self.pc = pc;
        self.stop = stop;
        std::ptr::null()
    }

    /// Wakes ranks that may sleep on the memory of entry `entry` of the bases. Must come after the store it announces.
    ///
    /// The processor may reorder the store and the load. A sleeper missed that way looks again by itself (the contract
    /// of [`WaitHost::sleep`]), so no signal pays for a fence. The compiler fence emits no instruction. It keeps the
    /// load behind the store in the code, so that such misses stay rare.
    ///
    /// # Safety
    /// `entry` is one of the bases of the verified program.
    #[inline(always)]
    pub(crate) unsafe fn ring(&self, entry: usize) {
        if self.bells.is_null() {
            return;
        }
        compiler_fence(Ordering::SeqCst);
        // SAFETY: there is a bell for every entry, and the host that lent its word is still `self.host`; see `BellRef`.
        unsafe {
            let bell = &*self.bells.add(entry);
            if (*bell.word).load(Ordering::Relaxed) & bell.sleepers != 0 {
                self.wake(bell.rank);
            }
        }
    }

    /// Lets the host do work that peers wait for.
    #[cold]
    #[inline(never)]
    pub(crate) fn progress(&self) {
        if let Some(host) = &self.host {
            host.progress();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&self, rank: u32) {
        if let Some(host) = &self.host {
            host.ring(rank as usize);
        }
    }

    /// True if lane `l` is to be written around the cache. The caller then does so, and the next signal fences.
    #[inline(always)]
    pub(crate) fn streams_to(&mut self, l: u16) -> bool {
        let streams = self.stream_lane == l;
        self.streamed |= streams;
        streams
    }

    /// # Safety
    /// `r` is a register of the verified program.
    #[inline(always)]
    pub(crate) unsafe fn reg(&self, r: u16) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { *self.regs.add(r as usize) }
    }

    /// # Safety
    /// `r` is a register of the verified program.
    #[inline(always)]
    pub(crate) unsafe fn set_reg(&mut self, r: u16, bits: u64) {
        // SAFETY: the caller's promise.
        unsafe { *self.regs.add(r as usize) = bits }
    }

    /// # Safety
    /// `l` is a lane of the verified program.
    #[inline(always)]
    pub(crate) unsafe fn lane(&self, l: u16) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { *self.lanes.add(l as usize) }
    }

    /// # Safety
    /// `l` is a lane of the verified program and `to` valid for the strip.
    #[inline(always)]
    pub(crate) unsafe fn bind(&mut self, l: u16, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { *self.lanes.add(l as usize) = to }
    }

    /// # Safety
    /// `e` is an access of the verified program.
    #[inline(always)]
    pub(crate) unsafe fn access<'p>(&self, e: i32) -> &'p Access {
        // SAFETY: the caller's promise; the table lives as long as the program, which outlives every handler call.
        unsafe { &*self.accesses.add(e as usize) }
    }

    /// # Safety
    /// `e` is an access of the verified program.
    #[inline(always)]
    pub(crate) unsafe fn place(&self, e: i32) -> Place {
        // SAFETY: the caller's promise; there is one for every access.
        unsafe { *self.places.add(e as usize) }
    }

    /// # Safety
    /// `e` is a slot of the verified program.
    #[inline(always)]
    pub(crate) unsafe fn slot_place(&self, e: i32) -> Place {
        // SAFETY: the caller's promise; there is one for every slot.
        unsafe { *self.slot_places.add(e as usize) }
    }

    /// # Safety
    /// `e` is a slot of the verified program.
    #[inline(always)]
    pub(crate) unsafe fn slot<'p>(&self, e: i32) -> &'p SlotRef {
        // SAFETY: as for `access`.
        unsafe { &*self.slots.add(e as usize) }
    }

    /// # Safety
    /// `e` is a post of the verified program.
    #[inline(always)]
    pub(crate) unsafe fn post<'p>(&self, e: i32) -> &'p PostRef {
        // SAFETY: as for `access`.
        unsafe { &*self.posts.add(e as usize) }
    }

    /// # Safety
    /// `e` is an each of the verified program.
    #[inline(always)]
    pub(crate) unsafe fn each<'p>(&self, e: i32) -> &'p Each {
        // SAFETY: as for `access`.
        unsafe { &*self.eaches.add(e as usize) }
    }

    /// # Safety
    /// `entry` is one of the bases of the verified program.
    #[inline(always)]
    pub(crate) unsafe fn base(&self, entry: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { *self.bases.add(entry) }
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod tests;
