//! Preparing a kernel for the CPU and launching it.

use super::code::RoleCode;
use super::copy;
use super::error::{LaunchError, PrepareError, Who};
use super::level::Level;
use super::lower::{lower, memories};
use super::machine::{Blocked, Fault, Identity, Machine, Program, Stop};
use super::pace::Pace;
use super::pool::{Failure, Job, Pool};
use super::rounding::Rounding;
use super::shortcut::Shortcut;
use super::stall::Stalls;
use super::stores::{KEPT_IN_CACHE, StorePolicy};
use super::verify::verify;
use super::waits::{Backoff, Waits};
use crate::ir::ring::TICKETS_BYTES;
use crate::ir::{self, Kernel, Op, Param, RequiredBytes, Type, matching};
use crate::tensor::{Arg, HomeThread, Memory, MixedBanks};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How many times the wait of a lone machine looks before it gives up, on the fast path and again in the code. That is
/// longer than a small message takes from a peer that is already at work. The wait pauses between looks (about 50 ns on
/// Intel). On average it notices a message no later than if it looked all the time. Looking all the time would make the
/// sender fetch the line back again and again, and slow it down by half if the two share a core.
const LOOKS: u32 = 64;

/// What a wait of `Post` is for, in words.
pub(crate) const QUEUE_ROOM: &str = "room in the queue of the network proxy";

/// What a launch knows besides its kernel.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This rank.
    pub rank: usize,
    /// Ranks in the world.
    pub world_size: usize,
    /// How long a wait may take without any progress; `None`: forever.
    pub deadline: Option<Duration>,
    /// Vector instructions to use, at most those of this processor.
    pub level: Level,
    /// Which stores go around the cache.
    pub stores: StorePolicy,
    /// Whether the IR is simplified first. Results do not depend on it; turning it off is for tests.
    pub simplify: bool,
    /// How waits sleep and what ends them, besides the deadline.
    pub waits: Waits,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            rank: 0,
            world_size: 1,
            deadline: Some(Duration::from_secs(30)),
            level: Level::detect(),
            stores: StorePolicy::default(),
            simplify: true,
            waits: Waits::alone(),
        }
    }
}

/// A kernel with its arguments, compiled for the CPU: launch it any number of times.
///
/// It keeps its arguments alive. A launch allocates nothing; it runs on the calling thread, and with several blocks the
/// process's worker threads help. A prepared kernel may move to another thread. But if an argument is a thread's own
/// memory, as a tensor's is, it must be launched on that thread.
pub struct Prepared {
    machines: Vec<Machine>,
    job: Arc<Job>,
    /// For a launch of one instance, which is not a job.
    stalls: Stalls,
    blocks: usize,
    settings: Settings,
    /// The only thread that may launch it, if an argument is a thread's own memory.
    home: Option<HomeThread>,
    /// True if an argument is lent: every launch asks whether it still is, and none takes a shortcut.
    is_lent: bool,
    /// The thread that prepared it, which is `home` if there is one. Launches from other threads take no shortcut.
    prepared_on: HomeThread,
    args: Vec<Arg>,
}

// SAFETY: only the pointers in `machines` are not `Send` by themselves. They point into memory the machine owns, into
// its program, which never changes, to the words of its host, which are atomic and kept alive by an `Arc`, and into the
// arguments, which `args` keeps alive. All but the arguments move with the machine, which is also what lets the
// workers of a launch run machines (`pool.rs`). Only `run_through` and `takes_shortcut` touch the arguments, and both
// first check that this thread may.
unsafe impl Send for Prepared {}

impl Prepared {
    /// Prepares a kernel for a world of one.
    pub fn new(kernel: &Kernel, args: &[Arg]) -> Result<Prepared, PrepareError> {
        Prepared::with(kernel, args, Settings::default())
    }

    /// Prepares a kernel.
    pub fn with(kernel: &Kernel, args: &[Arg], settings: Settings) -> Result<Prepared, PrepareError> {
        ir::verify(kernel).map_err(|errors| PrepareError::Invalid(errors.to_string()))?;
        Prepared::of_verified(kernel, args, settings)
    }

    /// Prepares a kernel that has just been verified, as every traced kernel is.
    pub(crate) fn of_verified(kernel: &Kernel, args: &[Arg], settings: Settings) -> Result<Prepared, PrepareError> {
        // The simplifier computes constants: they must not depend on the host's control word either.
        let _nearest = Rounding::nearest();
        check_arguments(kernel, args, settings.rank as u32)?;
        let simplified = settings.simplify.then(|| ir::simplify(kernel));
        let kernel = simplified.as_ref().unwrap_or(kernel);
        let level = settings.level.min(Level::checked()?);
        let mut machines = Vec::new();
        let programs = lower(kernel, args, settings.rank as u32, settings.stores.from)?
            .into_iter()
            .zip(kernel.roles.values())
            .map(|(role, ir::Role { body, .. })| {
                let (bases, sizes) = bases(&role, args, kernel);
                if let Err(what) = verify(&role, &sizes) {
                    panic!(
                        "tilewire bug: the bytecode of kernel {} is malformed: {what}\n{kernel}\n{role}",
                        kernel.name
                    );
                }
                (Arc::new(Program::new(role, level)), bases, puts(kernel, *body))
            })
            .collect::<Vec<_>>();
        for block in 0..kernel.blocks {
            let id = Identity {
                rank: settings.rank as i64,
                world_size: settings.world_size as i64,
                block: i64::from(block),
                blocks: i64::from(kernel.blocks),
            };
            for (program, bases, puts) in &programs {
                // SAFETY: the bytecode verifier passed with the sizes of these very addresses, and `args` keeps the
                // memory alive as long as the machine.
                let mut machine = unsafe { Machine::new(program.clone(), bases.clone(), id, level) };
                let StorePolicy { from, own_from, kept_from, puts: way } = settings.stores;
                if *puts {
                    machine.stream(from, kept_from.unwrap_or(from), Pace::of(way));
                } else {
                    // Two interleaved copies that are both kept stay in the cache up to the same size as if one were
                    // sent.
                    let own_from = own_from.unwrap_or(from);
                    machine.stream(own_from, own_from.saturating_mul(KEPT_IN_CACHE), Pace::none());
                }
                machine.announce(&settings.waits);
                machines.push(machine);
            }
        }
        let is_lent = args.iter().flat_map(memories).any(Memory::is_lent);
        if let [machine] = &mut machines[..] {
            machine.looks = LOOKS;
            machine.shortcut = if is_lent { None } else { Shortcut::of(machine) };
        }
        let job = Job::new(&mut machines, settings.waits.clone());
        let (stalls, blocks) = (Stalls::default(), kernel.blocks as usize);
        // All arguments that have a home have the same one: this thread.
        let home = args.iter().flat_map(memories).find_map(Memory::home);
        let prepared_on = HomeThread::here();
        Ok(Prepared { machines, job, stalls, blocks, settings, home, is_lent, prepared_on, args: args.to_vec() })
    }

    /// Binds other arguments to the kernel it was made of, with the same settings. If that fails, the old ones stay.
    pub(crate) fn rebind(&mut self, kernel: &Kernel, args: &[Arg]) -> Result<(), PrepareError> {
        *self = Prepared::of_verified(kernel, args, self.settings.clone())?;
        Ok(())
    }

    /// Runs the kernel to the end.
    #[inline]
    pub fn run(&mut self) -> Result<(), LaunchError> {
        if self.takes_shortcut() { Ok(()) } else { self.run_through() }
    }

    /// Runs the kernel to the end if it is one small message that can be moved now. If it returns false,
    /// [`Prepared::run`] has to start from the beginning.
    #[inline]
    pub(crate) fn takes_shortcut(&mut self) -> bool {
        match &self.machines[..] {
            [machine] if self.prepared_on.is_here() => {
                // SAFETY: the shortcut is the machine's own, nobody else runs the machine, and `args` keeps its memory
                // alive.
                machine.shortcut.as_ref().is_some_and(|shortcut| unsafe { shortcut.run(machine) })
            }
            _ => false,
        }
    }

    /// From now on [`takes_shortcut`](Prepared::takes_shortcut) returns false, until other arguments are bound.
    pub(crate) fn takes_the_long_way(&mut self) {
        self.machines.iter_mut().for_each(|machine| machine.shortcut = None);
    }

    /// Runs the kernel's code to the end.
    pub(crate) fn run_through(&mut self) -> Result<(), LaunchError> {
        // On another thread it would race with the home thread's plain accesses to its tensors.
        if !self.home.is_none_or(HomeThread::is_here) {
            return Err(LaunchError::OtherThread { rank: self.settings.rank });
        }
        if self.is_lent && self.args.iter().flat_map(memories).any(Memory::is_returned) {
            return Err(LaunchError::Returned { rank: self.settings.rank });
        }
        let _nearest = Rounding::nearest();
        if let [machine] = &mut self.machines[..] {
            // The common small case: nothing to share, no table to walk.
            machine.restart();
            return if machine.run() { Ok(()) } else { self.finish_alone() };
        }
        let share = self.blocks > 1;
        let result = Job::launch(&self.job, share.then(Pool::global), self.settings.deadline);
        result.map_err(|failure| self.explain(failure))
    }

    /// The rest of a launch of one instance that stopped before its end.
    #[cold]
    fn finish_alone(&mut self) -> Result<(), LaunchError> {
        // From here on the backoff decides how long to look. A machine that looks for long in each of its rounds would
        // hardly ever sleep.
        self.machines[0].looks = 0;
        self.stalls.failed.store(false, Ordering::Relaxed);
        let result = self.back_off();
        let machine = &mut self.machines[0];
        machine.looks = LOOKS;
        if std::mem::take(&mut machine.streamed) {
            // The launch failed before its end. The next launch may take the fast path, and its signals must come after
            // everything stored here.
            copy::fence();
        }
        result
    }

    fn back_off(&mut self) -> Result<(), LaunchError> {
        let mut backoff = Backoff::new(self.settings.deadline);
        let waits = &self.settings.waits;
        let mut participant = self.stalls.enter(waits);
        loop {
            let machine = &mut self.machines[0];
            let mut abort = None;
            let over = match machine.stop {
                Stop::Blocked(_) => {
                    let watch = machine.watch;
                    // Looked up only once the wait is long: while it spins, every nanosecond counts.
                    let awaited = || machine.awaited();
                    // SAFETY: the machine is blocked, and outlives this call.
                    let is_ready = || unsafe { watch.is_ready() };
                    let in_vain = if backoff.spins() { None } else { waits.in_vain(awaited()) };
                    // Checked after reading the word: signals sent before it are visible now.
                    abort = waits.aborted().or_else(|| in_vain.filter(|_| !is_ready()));
                    if abort.is_none() && backoff.is_stalled() {
                        abort = participant.waits(std::iter::once(awaited()));
                    }
                    let mut ready = || is_ready() || waits.aborted().or_else(|| waits.in_vain(awaited())).is_some();
                    abort.is_some() || backoff.pause(waits, watch.is_polled(), &mut ready)
                }
                _ => true,
            };
            if over {
                let stop = machine.stop;
                self.stalls.failed.store(true, Ordering::Relaxed);
                return Err(self.explain(Failure { index: 0, stop, abort }));
            }
            let before = machine.passed;
            participant.looks();
            if machine.run() {
                return Ok(());
            }
            if machine.passed != before {
                backoff = Backoff::new(self.settings.deadline);
                participant.goes_on();
            }
        }
    }

    /// The bytecode as text.
    pub fn disassembly(&self) -> String {
        let mut text = String::new();
        for machine in self.machines.iter().take(self.machines.len() / self.blocks.max(1)) {
            text.push_str(&machine.role().to_string());
        }
        text
    }

    fn explain(&self, Failure { index, stop, abort }: Failure) -> LaunchError {
        let machine = &self.machines[index];
        let role = machine.role();
        let roles = self.machines.len() / self.blocks;
        let by = Box::new(Who { rank: self.settings.rank, block: index / roles, role: role.name.clone() });
        let access = |k: u32| &role.accesses[k as usize];
        match stop {
            Stop::Fault(fault) => match fault {
                Fault::Bounds { access: k, index } => {
                    let access = access(k);
                    let (name, len) = (access.name.clone(), access.bytes / u64::from(access.unit));
                    LaunchError::OutOfBounds { name, index, len, by, at: access.at.clone() }
                }
                Fault::Misaligned { access: k, index } => {
                    let access = access(k);
                    let offset = index.wrapping_mul(i64::from(access.unit));
                    let (name, size) = (access.name.clone(), access.width);
                    LaunchError::Misaligned { name, offset, size, by, at: access.at.clone() }
                }
                Fault::Bank { access: k, bank } => {
                    let access = access(k);
                    let (name, banks) = (access.name.clone(), access.banks);
                    LaunchError::NoSuchBank { name, bank, banks, by, at: access.at.clone() }
                }
                Fault::Slot { slot, bank, index } => {
                    let slot = &role.slots[slot as usize];
                    let (name, at) = (slot.name.clone(), slot.at.clone());
                    if bank as u64 >= u64::from(slot.banks) {
                        return LaunchError::NoSuchBank { name, bank, banks: slot.banks, by, at };
                    }
                    LaunchError::OutOfBounds { name, index, len: slot.len, by, at }
                }
                Fault::OtherSignal { slot, bank, index, expected, seen } => {
                    let (peer, slot) = (role.signaller(slot, bank, index), &role.slots[slot as usize]);
                    let bank = slot.bank.map(|_| bank as u32);
                    let (what, at) = (format!("{} {}[{index}]", slot.op, slot.name), slot.at.clone());
                    let [expected, seen] = [expected, seen].map(matching::operation_of_word);
                    LaunchError::OtherOperation { what, bank, peer, expected, seen, by, at }
                }
                Fault::OtherPacket { access: k, bank, packet, expected, seen } => {
                    let (peer, access) = (role.sender(k, bank, packet), access(k));
                    let bank = bank.map(|bank| bank as u32);
                    let (what, at) = (format!("packet {packet} of {}", access.name), access.at.clone());
                    let [expected, seen] = [expected, seen].map(matching::operation_of_flag);
                    LaunchError::OtherOperation { what, bank, peer, expected, seen, by, at }
                }
                Fault::Required { require } => {
                    let span = machine.required_span(require).map(RequiredBytes::of);
                    LaunchError::Required { span, by, at: role.requires[require as usize].at.clone() }
                }
                Fault::Count { access: k, count } => LaunchError::NegativeCount { count, by, at: access(k).at.clone() },
            },
            Stop::Blocked(blocked) => {
                let after = self.settings.deadline.unwrap_or_default();
                let of_bank = |bank: Option<i64>| bank.map_or(String::new(), |bank| format!("[bank {bank}]"));
                let peer = match blocked {
                    Blocked::Queue { .. } => self.settings.waits.host().and_then(|host| host.behind()),
                    _ => machine.awaited().map(|at| at.rank),
                };
                let peer = peer.map(|peer| peer as u32);
                let (what, bank, index, expected, seen, at) = match blocked {
                    Blocked::Slot { slot, bank, index, expected, seen } => {
                        let slot = &role.slots[slot as usize];
                        let bank = slot.bank.map(|_| bank);
                        let what = format!("{} {}{}[{index}]", slot.op, slot.name, of_bank(bank));
                        (what, bank, Some(index), expected, seen, slot.at.clone())
                    }
                    Blocked::Packet { access: k, bank, packet, expected, seen } => {
                        let access = access(k);
                        let what = format!("packet {packet} of {}{}", access.name, of_bank(bank));
                        (what, bank, Some(packet), u64::from(expected), u64::from(seen), access.at.clone())
                    }
                    Blocked::Poll { poll } => {
                        let at = role.polls[poll as usize].at.clone();
                        ("a loop that polls and finds nothing new".to_string(), None, None, 1, 0, at)
                    }
                    Blocked::Queue { post } => {
                        let post = &role.posts[post as usize];
                        (QUEUE_ROOM.to_string(), None, None, 1, 0, post.at.clone())
                    }
                };
                if let (Some(word), Some(host)) = (abort, self.settings.waits.host()) {
                    return LaunchError::Aborted { cause: host.explain(word), word, what, by, at };
                }
                let bank = bank.map(|bank| bank as u32);
                LaunchError::Timeout { what, bank, peer, index, expected, seen, after, by, at }
            }
            Stop::Running | Stop::Done => unreachable!("a launch that ended well needs no explanation"),
        }
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Prepared({} instances)", self.machines.len())
    }
}

/// The base addresses of a role and the sizes behind them: all banks of all arguments, then the role's scratch.
fn bases(role: &RoleCode, args: &[Arg], kernel: &Kernel) -> (Vec<*mut u8>, Vec<u64>) {
    let all = args.iter().flat_map(memories);
    let (mut bases, mut sizes): (Vec<_>, Vec<_>) = all.map(|m| (m.start().as_ptr(), m.bytes() as u64)).unzip();
    let scratches = kernel.scratches.values().filter(|s| kernel.roles[s.role].name == role.name);
    for scratch in scratches {
        bases.push(std::ptr::null_mut());
        sizes.push(scratch.len * scratch.ty.size() as u64);
    }
    (bases, sizes)
}

/// The most base addresses that the bytecode can number.
const MAX_ENTRIES: usize = u16::MAX as usize;

/// Checks that every argument of rank `me` matches its parameter.
fn check_arguments(kernel: &Kernel, args: &[Arg], me: u32) -> Result<(), PrepareError> {
    let wrong = |param: String, what: String| PrepareError::Argument { param, what };
    if kernel.params.len() != args.len() {
        let what = format!("{} arguments for {} parameters", args.len(), kernel.params.len());
        return Err(wrong(kernel.name.clone(), what));
    }
    let entries: usize = args.iter().map(|arg| memories(arg).len()).sum::<usize>() + kernel.scratches.len();
    if entries > MAX_ENTRIES {
        return Err(wrong(
            kernel.name.clone(),
            format!("{entries} banks in all; at most {MAX_ENTRIES} fit the bytecode"),
        ));
    }
    let packets = kernel.packet_areas();
    for ((id, param), arg) in kernel.params.iter().zip(args) {
        let wrong = |what: String| wrong(kernel.name_for(id, me), what);
        let (banks, bytes, align, ty) = match (param, arg) {
            (Param::Buffer { ty, len, banks, align, .. }, Arg::Buffer(_)) => {
                let bytes = len.checked_mul(ty.size() as u64).ok_or_else(|| wrong("its size overflows".into()))?;
                (*banks, bytes, if packets.contains(&id) { (*align).max(16) } else { *align }, *ty)
            }
            (Param::Scalar { ty, .. }, Arg::Scalar(_)) => (1, ty.size() as u64, ty.size() as u32, *ty),
            (Param::Slots { len, stride, banks, .. }, Arg::Slots(_)) => {
                let bytes = len.checked_mul(u64::from(*stride));
                (*banks, bytes.ok_or_else(|| wrong("its size overflows".into()))?, 8, Type::U64)
            }
            // Entries and tickets have the sizes and alignments of a ring.
            (Param::Queue { .. }, Arg::Queue(queue)) => match queue.capacity() {
                Some(_) => (2, TICKETS_BYTES as u64, 64, Type::U64),
                None => return Err(wrong("its memory is no ring: bind a tensor::Ring's queue".into())),
            },
            _ => return Err(wrong(format!("a {arg:?} cannot be bound to it"))),
        };
        let memories = memories(arg);
        if memories.len() != banks as usize {
            return Err(wrong(format!("{} memories for {banks} banks", memories.len())));
        }
        if let Some(what) = MixedBanks::objection(memories, kernel.is_matched(id)) {
            return Err(wrong(what));
        }
        for memory in memories {
            let reach = memory.reachable_from();
            if !reach.host {
                return Err(wrong(format!(
                    "it is reached from {reach}, not from the host: the CPU engine cannot use it"
                )));
            }
            if memory.is_returned() {
                return Err(wrong("it was lent for the time of a closure, and its owner has it back".into()));
            }
            if memory.home().is_some_and(|home| !home.is_here()) {
                return Err(wrong("it is another thread's own: prepare the kernel on the thread that made it".into()));
            }
            if (memory.bytes() as u64) < bytes {
                return Err(wrong(format!("{} bytes of memory where the kernel uses {bytes}", memory.bytes())));
            }
            let address = memory.start().as_ptr() as usize;
            if bytes > 0 && !address.is_multiple_of(align as usize) {
                let (param, align) = (kernel.name_for(id, me), align as usize);
                return Err(PrepareError::Unaligned { param, ty, align, address });
            }
        }
    }
    Ok(())
}

/// Whether a body puts anything into a region that other ranks read.
fn puts(kernel: &Kernel, body: ir::Region) -> bool {
    let mut found = false;
    kernel.walk(body, &mut |inst| {
        found |= matches!(&kernel.insts[inst].op, Op::Put { at, .. } if matches!(at.base, ir::Base::Param(_)));
    });
    found
}
