//! Errors of the GPU engine.

use crate::ir::{RequiredBytes, SourceLine};
use crate::ptx::PtxError;
#[cfg(feature = "cuda")]
use cudarc::driver::DriverError;

/// Why a device, a program or a launch failed.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is not installed.
    NoDriver,
    /// The library was built without its feature `cuda`.
    NoFeature,
    /// The driver is older than tilewire needs.
    OldDriver {
        /// CUDA version of the driver, as 1000 · major + 10 · minor.
        version: i32,
        /// The oldest supported version.
        needed: i32,
    },
    /// There is no such device.
    NoDevice {
        /// The requested number.
        ordinal: u32,
        /// The number of devices.
        count: u32,
    },
    /// The device is older than every target.
    OldDevice {
        /// Its name.
        name: String,
        /// Its compute capability.
        capability: (u32, u32),
    },
    /// A call of the driver failed.
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's name of the error.
        error: String,
    },
    /// The kernel has no PTX for the device.
    Ptx(PtxError),
    /// The driver rejects the PTX: a bug of tilewire.
    Assembly {
        /// Name of the kernel.
        kernel: String,
        /// The driver's log.
        log: String,
    },
    /// The arguments do not match the parameters.
    Argument {
        /// Name of the parameter.
        param: String,
        /// The mismatch, with the values.
        what: String,
    },
    /// Blocks that wait for each other do not all run at the same time.
    NotResident {
        /// Blocks of the launch.
        blocks: u32,
        /// How many of them one multiprocessor runs simultaneously.
        per_multiprocessor: u32,
        /// Multiprocessors filled by other launches.
        others: u32,
        /// Multiprocessors of the device.
        multiprocessors: u32,
    },
    /// An operation that is impossible while launches are recorded.
    Capturing {
        /// The operation.
        what: &'static str,
    },
    /// A launch on a stream of others that cannot be ordered with the launches of its transport.
    Stream {
        /// The reason, and what to do.
        what: &'static str,
    },
    /// Two launches of one transport ran at the same time, at least one of them in a graph that others captured.
    Overlapped {
        /// The launch that found it, in words; empty if nobody named it.
        launch: String,
    },
    /// A wait took longer than the deadline.
    Timeout(Box<Stopped>),
    /// A wait found a signal or packet of another operation: `seen` is that operation, `expected` this launch's.
    OtherOperation(Box<Stopped>),
    /// An access out of bounds, if bounds are checked: `index` is its index, `expected` the largest one allowed.
    OutOfBounds(Box<Stopped>),
    /// A requirement of the kernel does not hold.
    Required(Box<UnmetRequirement>),
    /// The abort word was set.
    Aborted {
        /// Its value.
        word: u64,
    },
}

/// A requirement that does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnmetRequirement {
    /// The rank that found it.
    pub rank: u32,
    /// Its block.
    pub block: u64,
    /// Name of its role.
    pub role: String,
    /// Copy of the role.
    pub copy: u64,
    /// The bytes it is about, if it is about bytes.
    pub span: Option<RequiredBytes>,
    /// The user's line of the requirement.
    pub at: SourceLine,
    /// The launch, in words; empty if nobody named it.
    pub launch: String,
}

messages! {
    struct UnmetRequirement {
        UnmetRequirement { rank, block, role, copy, span, at, .. } => { |f|
            RequiredBytes::explain(span.as_ref(), f)?;
            write!(f, ": rank {rank} block {block} role {role} copy {copy}, at {at}")
        },
    }
}

/// A wait that gave up, or an access out of bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stopped {
    /// The rank.
    pub rank: u32,
    /// Its block.
    pub block: u64,
    /// Name of its role.
    pub role: String,
    /// Copy of the role.
    pub copy: u64,
    /// Name of the slots or of the packet area.
    pub param: String,
    /// The bank.
    pub bank: u64,
    /// Number of the slot or packet.
    pub index: u64,
    /// The value (for a packet: the flag) that would have let it continue.
    pub expected: u64,
    /// Value seen.
    pub seen: u64,
    /// The user's line of the wait.
    pub at: SourceLine,
    /// The rank whose signal was awaited, if the purpose of the parameter names it.
    pub peer: Option<u32>,
    /// True if room was awaited in the queue of the network proxy, which is the parameter.
    pub for_room: bool,
    /// The launch, in words; empty if nobody named it.
    pub launch: String,
}

messages! {
    struct Stopped {
        Stopped { rank, block, role, copy, param, bank, index, expected, seen, at, .. } =>
            "{at}: rank {rank}, block {block}, role {role}, copy {copy}: gave up waiting for {param}[bank \
             {bank}][{index}] to be {expected}; it is {seen}",
    }
}

errors! {
    enum CudaError {
        NoDriver => "no CUDA driver on this machine (libcuda.so.1 is not found)",
        NoFeature => "tilewire was built without its feature `cuda`: enable it to use GPUs",
        OldDriver { version, needed } => (
            "the CUDA driver is for {}.{}; {}.{} or newer is needed",
            version / 1000, version % 1000 / 10, needed / 1000, needed % 1000 / 10
        ),
        NoDevice { ordinal, count } => "there is no GPU {ordinal}; the driver knows {count}",
        OldDevice { name, capability: (major, minor) } =>
            "{name} has compute capability {major}.{minor}; 8.0 or newer is needed",
        Driver { call, error } => "{call} failed: {error}",
        Ptx(error) => "{error}",
        Assembly { kernel, log } => "tilewire bug: the driver refuses the PTX of kernel {kernel}: {log}",
        Argument { param, what } => "argument {param}: {what}",
        NotResident { blocks, per_multiprocessor, others, multiprocessors } =>
            "blocks = {blocks}, {per_multiprocessor} per multiprocessor: they do not all run beside other ranks' \
             launches, which fill {others} of {multiprocessors} multiprocessors, and would wait forever; lower \
             .blocks(..)",
        Capturing { what } => "{what} while launches are recorded: do it before the capture",
        Stream { what } => "{what}",
        Overlapped { launch } =>
            "{launch}: it ran while another launch or replay of the same transport was running, and their counters are \
             shared: replay graphs one after another on the stream they were captured from, or make all launches on \
             both streams before the capture; recover with a new rendezvous",
        Timeout(stopped) => "{stopped}",
        OtherOperation(by) => (
            "{}: rank {}, block {}, role {}: the peer launched operation {} where this rank launched operation {}; \
             launch the same operations in the same order on both ranks",
            by.at, by.rank, by.block, by.role, by.seen, by.expected
        ),
        OutOfBounds(by) => (
            "{}: rank {}, block {}, role {}, copy {}: index {} of {}, where the largest is {}",
            by.at, by.rank, by.block, by.role, by.copy, by.index as i64, by.param, by.expected
        ),
        Required(unmet) => "{unmet}",
        Aborted { word } => "the launch was aborted: word {word:#x}",
    }
    from { PtxError => Ptx }
}

/// Adds the name of the call to a driver error.
#[cfg(feature = "cuda")]
pub(super) trait Called<T> {
    fn called(self, call: &'static str) -> Result<T, CudaError>;
}

#[cfg(feature = "cuda")]
impl<T> Called<T> for Result<T, DriverError> {
    fn called(self, call: &'static str) -> Result<T, CudaError> {
        self.map_err(|error| {
            let text =
                |text: Result<&std::ffi::CStr, DriverError>| text.ok().map(|text| text.to_string_lossy().into_owned());
            let name = text(error.error_name()).unwrap_or_else(|| "unknown error".into());
            let what = text(error.error_string()).unwrap_or_default();
            CudaError::Driver { call, error: format!("{name} ({what})") }
        })
    }
}
