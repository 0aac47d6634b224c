//! IR → PTX text: the code generator for NVIDIA GPUs. No compiler is called; the driver assembles the text.
//!
//! - **In**: a verified [`Kernel`] (simplified, where speed matters) and a [`Target`]. **Out**: a [`Module`]: the text,
//!   and the facts a launch needs (threads of a block, bytes of shared memory, the offset of each parameter).
//! - **How**: a block has a warp group for every copy of every role. Every lane computes uniform values for itself. An
//!   `each` is a loop of the role copy's lanes over its elements. Where the access analysis finds contiguous accesses,
//!   a lane takes several neighbours at a time, so that loads and stores are 16 bytes wide and several are in flight.
//! - **Invariants**: results have the bits that `ir/scalar` defines. Control flow outside an `each` is the same for
//!   every lane of a role copy, so all of them reach its barriers. A role copy has its own barrier (named, or the
//!   warp's) and waits at no other. Every wait polls the abort word and a deadline, and gives up together with its role
//!   copy. Accesses are **not** checked against the bounds of their buffers unless [`Options::bounds`] asks for it.
//! - **Must not know**: devices, drivers, memory, streams.
//!
//! | file | holds |
//! |---|---|
//! | `target.rs` | [`Target`]: architectures and what they have |
//! | `abi.rs` | [`abi`]: parameters of a launch, and the report of a wait that gave up |
//! | `text.rs` | lines, registers, labels; which register holds which type |
//! | `number.rs`, `math.rs` | arithmetic; exp, log, tanh by the expansions of `ir/scalar/math.rs` |
//! | `convert.rs`, `narrow.rs` | conversions; floats of 8 and 16 bits |
//! | `role.rs`, `loops.rs`, `leader.rs` | uniform code, barriers; loops; the leader's work for all lanes |
//! | `place.rs` | addresses, loads and stores, one element or 16 bytes |
//! | `post.rs` | descriptors for a network proxy |
//! | `wire.rs` | signals, waits, packets; giving up |
//! | `busy.rs` | launches that find each other running |
//! | `each.rs`, `batch.rs` | loops over elements; the ops of a body for a batch of elements |
//! | `moving.rs` | addresses that advance by a constant from turn to turn of a loop |
//! | `ahead.rs` | long bodies whose loads run ahead through shared memory |
//! | `transposed.rs`, `squares.rs` | transposes through shared memory; 16-bit elements in squares of 64 × 64 |
//! | `register_scratch.rs` | scratch that each lane reads back as it wrote it: kept in registers |
//! | `group.rs` | reductions over neighbours: by shuffles, or through shared memory |
//! | `bulk.rs` | bulk copies |
//!
//! ```
//! use tilewire::{Tensor, kernel, ptx};
//! let x = Tensor::<f32>::zeros(64);
//! let traced = kernel("halve", |k| {
//!     let x = k.inout(&x);
//!     k.main(|r| r.each(x.len(), |i| x.store(i, x.load(i) * 0.5)));
//! })?;
//! let module = ptx::emit(&traced.kernel, ptx::Options::new(ptx::Target::Sm90a))?;
//! assert!(module.text.contains("st.global.v4.b32"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod abi;
mod ahead;
mod batch;
mod bulk;
mod busy;
mod convert;
mod each;
mod error;
mod group;
mod leader;
mod loops;
mod math;
mod moving;
mod narrow;
mod number;
mod place;
mod post;
mod register_scratch;
mod role;
mod squares;
mod target;
mod text;
mod transposed;
mod wire;

pub use abi::ParamBlock;
pub use error::PtxError;
pub use target::Target;

use crate::ir::Kernel;
use role::{Fixed, RoleCode, RolePlacement};
use std::fmt::Write;
use text::Text;

/// How to generate the code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Options {
    /// The GPU architecture.
    pub target: Target,
    /// Vectors of neighbours that a lane has in flight in an `each`; 0 lets the generator choose.
    pub unroll: u32,
    /// Checks loads, stores, atomics and packets against the bounds of their buffers. For debugging, since it costs
    /// speed. An access out of bounds is skipped and reported, and ends the launch. Banks, slots and bulk copies are
    /// not checked.
    pub bounds: bool,
    /// Lets the launches of a transport find out that two of them run at the same time, by a word in device memory; see
    /// [`abi`]. Both then end. For transports whose launches others capture.
    pub busy: bool,
}

impl Options {
    /// The default options for a target.
    pub const fn new(target: Target) -> Self {
        Options { target, unroll: 0, bounds: false, busy: false }
    }
}

/// A kernel as PTX.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    /// The text, for `ptxas` or the driver.
    pub text: String,
    /// Name of the entry.
    pub entry: String,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks of a launch.
    pub blocks: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The layout of the parameters.
    pub params: ParamBlock,
}

/// The most warps a block can have.
const MOST_WARPS: u32 = 32;
/// Named barriers available to role copies; number 0 is the block's own.
const MOST_BARRIERS: u32 = 15;
/// The name of the one parameter.
const ARGS: &str = "args";
/// The name of the dynamic shared memory.
const SHARED: &str = "frame";
/// The name of the memory private to a lane.
const DEPOT: &str = "depot";

/// Writes a verified kernel as PTX.
pub fn emit(kernel: &Kernel, options: Options) -> Result<Module, PtxError> {
    match emit_with(kernel, options, true) {
        // Transposes and loads ahead need shared memory but are optional: try again without them.
        Err(PtxError::SharedMemory { .. }) => emit_with(kernel, options, false),
        result => result,
    }
}

fn emit_with(kernel: &Kernel, options: Options, may_use_shared: bool) -> Result<Module, PtxError> {
    let target = options.target;
    let params = ParamBlock::new(kernel, options.busy);
    if params.bytes() > u64::from(abi::MOST_BYTES) {
        return Err(PtxError::TooManyBanks { bytes: params.bytes(), most: abi::MOST_BYTES });
    }
    let warps: u32 =
        kernel.roles.values().map(|role| role.warps.saturating_mul(role.copies)).fold(0, u32::saturating_add);
    if warps > MOST_WARPS {
        return Err(PtxError::TooManyWarps { warps, most: MOST_WARPS });
    }
    let copies = kernel.roles.values().filter(|role| role.warps > 1).map(|role| role.copies).sum();
    if copies > MOST_BARRIERS {
        return Err(PtxError::TooManyBarriers { copies, most: MOST_BARRIERS });
    }

    let mut text = Text::new(target);
    let fixed = Fixed::new(&mut text);
    let thread = text.r("mov.u32", &[&"%tid.x"]);
    let warp = text.r("shr.u32", &[&thread, &5]);
    let mut labels = Vec::new();
    let mut first = 0;
    for role in kernel.roles.values() {
        let label = text.label();
        first += role.warps * role.copies;
        // The last role takes every remaining warp.
        match first < warps {
            true => {
                let mine = text.p("setp.lt.u32", &[&warp, &first]);
                text.jump_if(mine, label);
            }
            false => text.jump(label),
        }
        labels.push(label);
    }

    let (mut body, mut shared, mut local) = (text.take(), 0u64, 0);
    let (mut first_warp, mut first_barrier) = (0, 1);
    for ((id, role), label) in kernel.roles.iter().zip(labels) {
        let mut code = RoleCode::new(kernel, options, &params, text, fixed, id, first_barrier);
        code.may_use_shared = may_use_shared;
        code.body()?;
        let frame_bytes = code.frame_bytes();
        local = local.max(code.depot_bytes());
        text = code.finish();
        let lines = text.take();
        text.at(label);
        let placement = RolePlacement { thread, first_warp, first_byte: shared, frame_bytes };
        RoleCode::prologue(&mut text, fixed, role, placement);
        body += &text.take();
        body += &lines;
        shared += u64::from(frame_bytes) * u64::from(role.copies);
        first_warp += role.warps * role.copies;
        first_barrier += if role.warps > 1 { role.copies } else { 0 };
    }
    if shared > u64::from(target.shared_bytes()) {
        return Err(PtxError::SharedMemory { bytes: shared, most: target.shared_bytes(), target });
    }

    let (entry, threads) = (entry_name(&kernel.name), warps * 32);
    let mut out = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| writeln!(out, "{line}").expect("writing to a string");
    line(format_args!("// kernel {}, written by tilewire", kernel.name.replace('\n', " ")));
    line(format_args!(".version {}", target.ptx_version()));
    line(format_args!(".target {target}"));
    line(format_args!(".address_size 64"));
    line(format_args!(".extern .shared .align 128 .b8 {SHARED}[];"));
    line(format_args!(".visible .entry {entry}(.param .align 8 .b8 {ARGS}[{}])", params.bytes()));
    line(format_args!(".maxntid {threads}, 1, 1"));
    // One block per multiprocessor is enough: registers hold loads in flight rather than spill to make room for a
    // second block.
    line(format_args!(".minnctapersm 1"));
    line(format_args!("{{"));
    out += &text.declarations();
    if local > 0 {
        writeln!(out, "\t.local .align 8 .b8 {DEPOT}[{local}];").expect("writing to a string");
    }
    out += &body;
    out += "}\n";
    Ok(Module { text: out, entry, threads, blocks: kernel.blocks, shared_bytes: shared as u32, params })
}

/// The entry's name: the kernel's, with characters that PTX does not allow replaced.
fn entry_name(name: &str) -> String {
    let letters = name.chars().take(64).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    std::iter::once('k').chain(std::iter::once('_')).chain(letters).collect()
}
