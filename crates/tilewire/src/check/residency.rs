//! Whether a device holds all blocks of all ranks simultaneously. Blocks wait for each other, so a missing one is a
//! deadlock.

use crate::ir::Kernel;

/// The limits of a device, as its vendor states them. No driver is asked here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceLimits {
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Threads of a warp.
    pub warp: u32,
    /// Most threads on a multiprocessor.
    pub threads: u32,
    /// Most warps on a multiprocessor.
    pub warps: u32,
    /// Most blocks on a multiprocessor.
    pub blocks: u32,
    /// Most threads of a block.
    pub block_threads: u32,
    /// Bytes of shared memory of a multiprocessor.
    pub shared_bytes: u32,
    /// Most bytes of shared memory of a block.
    pub block_shared_bytes: u32,
    /// Bytes the system reserves in every block.
    pub reserved_shared_bytes: u32,
    /// Allocation unit of shared memory, in bytes.
    pub shared_unit: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers: u32,
    /// Allocation unit of a warp's registers.
    pub register_unit: u32,
    /// Parts of a multiprocessor with their own registers.
    pub partitions: u32,
}

impl DeviceLimits {
    /// NVIDIA H200 (compute capability 9.0).
    pub const H200: DeviceLimits = DeviceLimits {
        multiprocessors: 132,
        warp: 32,
        threads: 2048,
        warps: 64,
        blocks: 32,
        block_threads: 1024,
        shared_bytes: 228 << 10,
        block_shared_bytes: 227 << 10,
        reserved_shared_bytes: 1 << 10,
        shared_unit: 128,
        registers: 65536,
        register_unit: 256,
        partitions: 4,
    };
}

/// The resources that one block needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockNeeds {
    /// Threads.
    pub threads: u32,
    /// Registers of each thread.
    pub registers: u32,
    /// Bytes of shared memory, static and dynamic.
    pub shared_bytes: u32,
}

impl BlockNeeds {
    /// The resources that a block of a kernel needs, as far as the IR shows. The compiler determines the registers, and
    /// may add shared memory to the scratch of the roles.
    pub fn of(kernel: &Kernel, registers: u32) -> BlockNeeds {
        let copies = |role| kernel.roles.get(role).map_or(1, |role| u64::from(role.copies));
        let warps: u64 = kernel.roles.values().map(|role| u64::from(role.warps) * u64::from(role.copies)).sum();
        let scratch = kernel.scratches.values().map(|scratch| {
            let bytes = scratch.len.saturating_mul(scratch.ty.size() as u64);
            bytes.saturating_add(SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN * copies(scratch.role)
        });
        let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let (threads, shared) = (warps.saturating_mul(WARP), scratch.fold(0, u64::saturating_add));
        BlockNeeds { threads: narrow(threads), registers, shared_bytes: narrow(shared) }
    }

    /// The larger need of the two, for each resource.
    pub fn max(self, other: BlockNeeds) -> BlockNeeds {
        BlockNeeds {
            threads: self.threads.max(other.threads),
            registers: self.registers.max(other.registers),
            shared_bytes: self.shared_bytes.max(other.shared_bytes),
        }
    }
}

/// Lanes of a warp, as counted by `Role::warps`.
const WARP: u64 = 32;
/// Scratch starts on a cache line.
const SCRATCH_ALIGN: u64 = 128;

/// A device that all ranks of a plan share, as virtual ranks do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Residence {
    /// The device.
    pub limits: DeviceLimits,
    /// Registers of a thread, as the compiler reported for the kernels.
    pub registers: u32,
}

impl Residence {
    /// Checks that the device holds all blocks of these kernels simultaneously. If they differ, every block is assumed
    /// to need as much as the largest.
    pub fn holds(&self, kernels: &[&Kernel]) -> Result<(), NotResident> {
        let needs = kernels.iter().map(|kernel| BlockNeeds::of(kernel, self.registers)).reduce(BlockNeeds::max);
        let Some(needs) = needs else { return Ok(()) };
        let blocks = kernels.iter().map(|kernel| u64::from(kernel.blocks)).sum();
        fits(&self.limits, blocks, needs)
    }
}

/// The resource of a multiprocessor that is exhausted first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scarce {
    /// Block slots.
    Blocks,
    /// Threads.
    Threads,
    /// Warps.
    Warps,
    /// Shared memory.
    SharedMemory,
    /// Registers.
    Registers,
}

/// Why blocks do not fit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NotResident {
    /// No multiprocessor holds even one.
    Block {
        /// The scarce resource.
        scarce: Scarce,
        /// The need of a block, in threads, warps, bytes or registers.
        needs: u64,
        /// The amount available to one.
        has: u64,
    },
    /// The device does not hold all of them.
    Device {
        /// Blocks of all ranks on it.
        blocks: u64,
        /// Blocks it holds.
        room: u64,
        /// Blocks a multiprocessor holds.
        each: u32,
        /// Multiprocessors.
        multiprocessors: u32,
        /// The resource that is exhausted first.
        scarce: Scarce,
    },
}

/// Blocks that one multiprocessor holds simultaneously, and the resource that limits them.
///
/// Follows the vendor's occupancy calculator: registers are allocated to warps in units from the warp's own partition,
/// shared memory in units, including the reserved part.
pub fn blocks_per_multiprocessor(device: &DeviceLimits, needs: BlockNeeds) -> Result<(u32, Scarce), NotResident> {
    let (device, needs) = (device.wide(), needs);
    let threads = u64::from(needs.threads.max(1));
    let warps = threads.div_ceil(device.warp);
    let shared = (u64::from(needs.shared_bytes) + device.reserved_shared).next_multiple_of(device.shared_unit);
    let of_warp = (u64::from(needs.registers) * device.warp).next_multiple_of(device.register_unit);
    let held_warps = (device.registers / device.partitions).checked_div(of_warp).map(|held| held * device.partitions);
    let lacks = |scarce, needs, has| if needs > has { Err(NotResident::Block { scarce, needs, has }) } else { Ok(()) };
    lacks(Scarce::Threads, threads, device.block_threads.min(device.threads))?;
    lacks(Scarce::Warps, warps, device.warps)?;
    lacks(Scarce::SharedMemory, u64::from(needs.shared_bytes), device.block_shared)?;
    lacks(Scarce::SharedMemory, shared, device.shared)?;
    // A block takes its registers equally from all partitions.
    lacks(Scarce::Registers, of_warp * warps.next_multiple_of(device.partitions), device.registers)?;
    let limits = [
        (device.blocks, Scarce::Blocks),
        (device.threads / threads, Scarce::Threads),
        (device.warps / warps, Scarce::Warps),
        (device.shared.checked_div(shared).unwrap_or(device.blocks), Scarce::SharedMemory),
        (held_warps.map_or(device.blocks, |held| held / warps), Scarce::Registers),
    ];
    let (least, scarce) = limits.into_iter().min_by_key(|(blocks, _)| *blocks).expect("five limits");
    lacks(scarce, 1, least)?;
    Ok((least as u32, scarce))
}

/// Checks that a device holds `blocks_per_rank` blocks of each of `ranks` ranks simultaneously. The ranks' launches
/// must be able to run beside each other: streams of one process, not processes that take turns.
///
/// ```
/// use tilewire::check::{BlockNeeds, DeviceLimits, co_resident};
/// let needs = BlockNeeds { threads: 512, registers: 64, shared_bytes: 0 };
/// assert!(co_resident(&DeviceLimits::H200, 4, 66, needs).is_ok()); // 2 on each of 132
/// let error = co_resident(&DeviceLimits::H200, 4, 133, needs).unwrap_err();
/// assert!(error.to_string().contains("532 blocks"), "{error}");
/// ```
pub fn co_resident(
    device: &DeviceLimits,
    ranks: u32,
    blocks_per_rank: u32,
    needs: BlockNeeds,
) -> Result<(), NotResident> {
    fits(device, u64::from(ranks) * u64::from(blocks_per_rank), needs)
}

fn fits(device: &DeviceLimits, blocks: u64, needs: BlockNeeds) -> Result<(), NotResident> {
    let (each, scarce) = blocks_per_multiprocessor(device, needs)?;
    let multiprocessors = device.multiprocessors;
    let room = u64::from(each) * u64::from(multiprocessors);
    if blocks <= room { Ok(()) } else { Err(NotResident::Device { blocks, room, each, multiprocessors, scarce }) }
}

/// The limits as numbers that do not overflow; units and partitions are at least 1.
struct Wide {
    warp: u64,
    threads: u64,
    warps: u64,
    blocks: u64,
    block_threads: u64,
    shared: u64,
    block_shared: u64,
    reserved_shared: u64,
    shared_unit: u64,
    registers: u64,
    register_unit: u64,
    partitions: u64,
}

impl DeviceLimits {
    fn wide(&self) -> Wide {
        Wide {
            warp: self.warp.max(1).into(),
            threads: self.threads.into(),
            warps: self.warps.into(),
            blocks: self.blocks.into(),
            block_threads: self.block_threads.into(),
            shared: self.shared_bytes.into(),
            block_shared: self.block_shared_bytes.into(),
            reserved_shared: self.reserved_shared_bytes.into(),
            shared_unit: self.shared_unit.max(1).into(),
            registers: self.registers.into(),
            register_unit: self.register_unit.max(1).into(),
            partitions: self.partitions.max(1).into(),
        }
    }
}

messages! {
    enum Scarce {
        Blocks => "places for blocks",
        Threads => "threads",
        Warps => "warps",
        SharedMemory => "bytes of shared memory",
        Registers => "registers",
    }
}

errors! {
    enum NotResident {
        Block { scarce, needs, has } => "a block needs {needs} {scarce}, a multiprocessor has {has} for it",
        Device { blocks, room, each, multiprocessors, scarce } =>
            "{blocks} blocks wait for each other and the device holds {room} at once: {each} on each of \
             {multiprocessors} multiprocessors, which then have no {scarce} left",
    }
}
