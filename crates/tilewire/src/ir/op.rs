//! The op enum: the whole vocabulary of kernels. Every op states its meaning, its ordering, its PTX form and its CPU
//! form. Values are *uniform* (one per role copy) or *lane* (one per element of an `each`). Unless an op says
//! otherwise, its result is lane if an operand is lane, and a uniform operand of a lane op is broadcast.
//!
//! Element order in an `each` is free: for one element the ops happen in program order, between two elements of the
//! same `each` nothing is ordered. Two elements that touch the same byte, one of them writing, race.

use super::entity::{ParamId, Region, ScratchId, Value, VarId};
use super::ring::NoticeKind;
use super::types::Type;

/// A constant: the bits of an element, zero-extended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Const {
    /// Type of the constant.
    pub ty: Type,
    /// Its bits, zero-extended to 64.
    pub bits: u64,
}

/// Numbers a running kernel knows about itself; all are uniform `i64`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Special {
    /// Rank of this launch in its world.
    Rank,
    /// Number of ranks in the world.
    WorldSize,
    /// Index of this block, from 0.
    Block,
    /// Number of blocks of the launch.
    Blocks,
    /// Index of this copy of the role, from 0.
    Copy,
    /// Number of copies of this role **as run**: the CPU engine runs one copy regardless of the kernel's number.
    Copies,
}

/// Ops of one operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnaryOp {
    /// `-x`. Integers wrap (`-MIN = MIN`; unsigned: two's complement). Floats flip the sign bit, NaN included.
    Neg,
    /// Absolute value. `|MIN| = MIN` for signed integers; floats clear the sign bit; unsigned: identity.
    Abs,
    /// Bitwise not (integers), logical not (bool).
    Not,
    /// Square root, round to nearest. Negative → NaN, `sqrt(-0) = -0`. Floats only, like all below.
    Sqrt,
    /// `1 / sqrt(x)`: two correctly rounded ops, in that order; narrow floats do both in f32 and round once at the end.
    Rsqrt,
    /// `1 / x`, correctly rounded.
    Rcp,
    /// `e^x` by tilewire's own expansion (`ir/scalar/math.rs`), the same bits on every engine.
    Exp,
    /// Natural logarithm by tilewire's own expansion. `log(0) = -inf`, negative → NaN.
    Log,
    /// Hyperbolic tangent by tilewire's own expansion.
    Tanh,
    /// Round towards −∞ to an integral value.
    Floor,
    /// Round towards +∞ to an integral value.
    Ceil,
    /// Round towards zero to an integral value.
    Trunc,
    /// Round to the nearest integral value, ties to even.
    RoundEven,
}

/// Ops of two operands of one type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BinaryOp {
    /// Sum; integers wrap, floats round to nearest (as in all float ops; narrow floats compute in f32, round once).
    Add,
    /// Difference; integers wrap.
    Sub,
    /// Product; integers wrap.
    Mul,
    /// Quotient. Integers truncate towards zero; `x / 0 = 0`, `MIN / -1 = MIN`.
    Div,
    /// Integer remainder with the sign of the dividend; `x % 0 = x`, `MIN % -1 = 0`.
    Rem,
    /// High half of the double-width product of two integers (signed or unsigned by type).
    MulHi,
    /// Smaller. Floats: NaN loses (NaN only if both are), `-0 < +0`.
    Min,
    /// Larger. Floats: NaN loses (NaN only if both are), `-0 < +0`.
    Max,
    /// Bitwise and (integers), logical and (bool).
    And,
    /// Bitwise or (integers), logical or (bool).
    Or,
    /// Bitwise exclusive or (integers), inequality (bool).
    Xor,
    /// Left shift of an integer; an amount ≥ width (amount read as unsigned) yields 0.
    Shl,
    /// Right shift: arithmetic for signed, logical for unsigned; an amount ≥ width (read as unsigned) yields the sign
    /// fill or 0.
    Shr,
}

impl BinaryOp {
    /// True if swapping the operands never changes a bit of the result. A NaN made by float arithmetic has no specified
    /// payload, and min and max order even the zeros, so floats commute too.
    pub const fn commutes(self) -> bool {
        matches!(
            self,
            BinaryOp::Add
                | BinaryOp::Mul
                | BinaryOp::MulHi
                | BinaryOp::Min
                | BinaryOp::Max
                | BinaryOp::And
                | BinaryOp::Or
                | BinaryOp::Xor
        )
    }
}

/// Comparisons; the result is `bool`. Floats compare as IEEE: everything with NaN is false except `Ne`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the names say it all
pub enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// Reductions over groups of `size` neighbouring elements: elements `[k*size, (k+1)*size)` of the innermost axis. The
/// last group of a row may be shorter. Every element of the group gets the result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GroupOp {
    /// Largest, by [`BinaryOp::Max`].
    Max,
    /// Smallest, by [`BinaryOp::Min`].
    Min,
    /// Sum. Neighbours pair first: `x[k] = x[2k] + x[2k+1]` level by level (an odd last one is carried up unchanged)
    /// until one is left, each level rounded to the type.
    Sum,
    /// Inclusive prefix sum: for `d = 1, 2, 4, … < size`, simultaneously for all `k ≥ d` in the group, `x[k] = x[k-d] +
    /// x[k]`, each step rounded to the type. The only op here whose result differs between the elements of a group.
    Scan,
}

/// Memory order of an atomic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the names of the C++ memory model
pub enum Order {
    Relaxed,
    Acquire,
    Release,
    AcqRel,
}

/// The parties that must agree on an atomic. The CPU engine treats all as `System`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// The lanes of one block.
    Block,
    /// All blocks of one device.
    Device,
    /// Every rank that maps the memory.
    System,
}

/// How far a [`Op::BulkWait`] waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BulkDone {
    /// The sources have been read (they may be overwritten).
    Read,
    /// The copies are complete and visible to this role copy (they may be signalled).
    Complete,
}

/// The base of an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Base {
    /// A buffer parameter.
    Param(ParamId),
    /// Role-private scratch: every (block, role, copy) has its own, undefined at launch.
    Scratch(ScratchId),
}

/// A place in memory: `base[bank][index]`. `index` is an `i64` counting elements of the base's type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The buffer or scratch.
    pub base: Base,
    /// The bank of a banked parameter (one bank per peer); always uniform `i64`. `None` if there is one bank.
    pub bank: Option<Value>,
    /// Element index.
    pub index: Value,
}

/// A signal slot: a u64 counter in `slots[bank]`, `index` from 0; both uniform `i64`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// A `Slots` parameter.
    pub slots: ParamId,
    /// The bank (one per peer); `None` if there is one.
    pub bank: Option<Value>,
    /// The slot in the bank.
    pub index: Value,
}

/// Mask of a load: if `cond` is false nothing is read and the result is `other`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mask {
    /// `bool`, lane or uniform.
    pub cond: Value,
    /// Result if masked off; of the loaded type.
    pub other: Value,
}

/// One operation.
///
/// If "PTX" and "CPU" are not stated for a value op, they are the obvious instruction of the type, `.rn` and never
/// `.ftz` for floats, and the function of the same name in `ir/scalar`.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    // ---- values -------------------------------------------------------------------------------------------------
    /// A constant.
    Const(Const),
    /// A number that the launch knows about itself.
    Special(Special),
    /// The value of a scalar parameter, read when the launch starts.
    Scalar(ParamId),
    /// One-operand arithmetic.
    Unary {
        /// The operation.
        op: UnaryOp,
        /// Operand.
        x: Value,
    },
    /// Two-operand arithmetic; both operands have the result's type.
    Binary {
        /// The operation.
        op: BinaryOp,
        /// Left operand.
        a: Value,
        /// Right operand.
        b: Value,
    },
    /// Comparison of two values of one type; bool supports `Eq` and `Ne` only.
    Compare {
        /// The comparison.
        op: CompareOp,
        /// Left operand.
        a: Value,
        /// Right operand.
        b: Value,
    },
    /// `cond ? a : b`, bits preserved. Both sides are evaluated.
    Select {
        /// `bool`.
        cond: Value,
        /// Result if true.
        a: Value,
        /// Result if false.
        b: Value,
    },
    /// `a * b + c` rounded once (narrow floats: one f32 fma, then one rounding to the type). Floats only.
    Fma {
        /// Factor.
        a: Value,
        /// Factor.
        b: Value,
        /// Addend.
        c: Value,
    },
    /// Conversion with defined rounding: wide → narrow float rounds once to nearest even; float → int truncates,
    /// saturates, NaN → 0; fp8 saturates (infinity and overflow → max finite, NaN → NaN); int → narrower int wraps;
    /// number → bool is `x != 0`; bool → number is 0 or 1.
    Cast {
        /// Operand.
        x: Value,
        /// Type of the result.
        to: Type,
    },
    /// The same bits as another type of the same size. Bool is not allowed on either side.
    Bitcast {
        /// Operand.
        x: Value,
        /// Type of the result.
        to: Type,
    },
    /// Reduction over groups of neighbouring elements. Only in an `each`; the result is lane. PTX: shuffles, then
    /// scratch for groups beyond a warp. CPU: one result per group if every use allows it.
    Group {
        /// The reduction.
        op: GroupOp,
        /// Operand (integers and floats).
        x: Value,
        /// Elements in a group, ≥ 1.
        size: u32,
    },

    // ---- mutable uniform variables ------------------------------------------------------------------------------
    /// The variable's value; uniform.
    ReadVar(VarId),
    /// Assigns a uniform value to the variable; not inside an `each`.
    WriteVar {
        /// The variable.
        var: VarId,
        /// The new value.
        x: Value,
    },

    // ---- memory -------------------------------------------------------------------------------------------------
    /// Reads one element. In an `each` the result is lane even if the index is uniform. Ordering: plain; program order
    /// within the element, and all effects of earlier `each`s of the role copy are visible. A uniform load (outside any
    /// `each`) of memory that may change during the launch is done by one lane and broadcast.
    Load {
        /// The place.
        at: Place,
        /// Mask, if any.
        mask: Option<Mask>,
    },
    /// Writes one element. Ordering: plain. Outside an `each` one lane writes.
    Store {
        /// The place.
        at: Place,
        /// The value.
        x: Value,
        /// If false, nothing is written.
        mask: Option<Value>,
    },
    /// Atomically adds to a 32- or 64-bit integer and returns the old value (0 if masked off). PTX: `atom.add`; CPU:
    /// `fetch_add`.
    AtomicAdd {
        /// The place.
        at: Place,
        /// Addend.
        x: Value,
        /// If false, nothing happens.
        mask: Option<Value>,
        /// Memory order.
        order: Order,
        /// Scope.
        scope: Scope,
    },

    // ---- the transport seam: load/store links -------------------------------------------------------------------
    /// Writes a value into a peer's region (a `u8` buffer, index in bytes, a multiple of the value's size). Ordering:
    /// plain; a later `signal` of the same role copy publishes it. PTX: vector store to the mapped address. CPU: store.
    Put {
        /// Byte offset in a `u8` parameter or scratch.
        at: Place,
        /// The value, of any type.
        x: Value,
        /// If false, nothing is written.
        mask: Option<Value>,
    },
    /// Reads a value from a region (a `u8` buffer, index in bytes, a multiple of the value's size). Ordering: plain; an
    /// earlier `wait` of the same role copy makes the bytes published by its signal visible.
    Get {
        /// Byte offset in a `u8` parameter or scratch.
        at: Place,
        /// Type of the value.
        to: Type,
        /// Mask, if any.
        mask: Option<Mask>,
    },

    // ---- signals ------------------------------------------------------------------------------------------------
    /// Sets the slot to `x` (u64) after all earlier effects of this role copy are visible to observers of the slot. In
    /// a matched parameter ([`Kernel::is_matched`](super::Kernel::is_matched)) the stored word carries the launch's
    /// operation beside `x`. Ordering: release, system scope, cumulative. PTX: role barrier, then one lane's
    /// `st.release.sys`. CPU: `sfence` if non-temporal stores were used, then a release store. Not in an `each`.
    Signal {
        /// The slot.
        slot: Slot,
        /// New value, uniform `u64`.
        x: Value,
    },
    /// Sets the slot to `x` after the earlier *reads* of this role copy are done; publishes no data. PTX: role barrier,
    /// then a relaxed system-scope store (that `bar.sync` completes the reads is an assumption outside the formal PTX
    /// model). CPU: release store. Not in an `each`.
    SignalCredit {
        /// The slot.
        slot: Slot,
        /// New value, uniform `u64`.
        x: Value,
    },
    /// Returns when the slot is ≥ `x`. In a matched parameter the counts are compared; if they are equal and the
    /// operation is not this launch's, the launch ends with an error. Ordering: acquire, system scope, for the whole
    /// role copy. PTX: one lane polls `ld.acquire.sys`, then a role barrier; of consecutive waits lane k polls for the
    /// k-th, with one deadline for all. CPU: acquire load; if not ready, yields to other instances. Not in an `each`.
    Wait {
        /// The slot.
        slot: Slot,
        /// Least value, uniform `u64`.
        x: Value,
    },
    /// True if the slot is ≥ `x` now; uniform bool. Another operation ends the launch as in `Wait`. Ordering: acquire
    /// if true. A failed test lets other instances run, so a role may poll in a loop; a deadline counts from the last
    /// progress. Not in an `each`.
    Test {
        /// The slot.
        slot: Slot,
        /// Least value, uniform `u64`.
        x: Value,
    },

    // ---- packets ------------------------------------------------------------------------------------------------
    /// Writes the 16-byte packet `{d32, flag, d32, flag}` number `at.index` of a `u8` buffer (index counts packets).
    /// Ordering: each 8-byte half is atomic and carries its own flag; no other order. PTX: `st.volatile.v4`/two 8-byte
    /// stores; CPU: two relaxed 64-bit atomic stores. Only in an `each`. The flag is never 0. In a matched parameter
    /// the flag on the wire is [`matching::flag`](super::matching::flag): its low 16 bits and the launch's operation.
    PacketPut {
        /// The packet.
        at: Place,
        /// Eight bytes of data, `u64`: low half in the first d32.
        x: Value,
        /// Uniform `u32`, not 0.
        flag: Value,
    },
    /// Waits until both halves of the packet carry `flag` and returns the 8 bytes. In a matched parameter a packet with
    /// the same low 16 bits and another operation ends the launch with an error. Ordering: the data travels with its
    /// flag; nothing else is ordered. CPU: two 64-bit atomic loads; if not ready, yields. Only in an `each`. It blocks
    /// like `wait`, and so must never wait for a packet that the same `each` puts.
    ///
    /// In a one-dimensional `each` that puts other packets first, a waiting element never holds back one with a smaller
    /// number, on any engine. So ranks that put and get packets of the same numbers in one `each` make progress. (On a
    /// GPU, roles of such an `each` have the same number of lanes on every rank.) A flag of 0 at run time is
    /// meaningless; the evaluator reports it.
    PacketGet {
        /// The packet.
        at: Place,
        /// Uniform `u32`, not 0.
        flag: Value,
    },

    // ---- bulk (asynchronous proxy) ------------------------------------------------------------------------------
    /// Starts an asynchronous copy of `count` elements between two places of the same type that do not overlap, at most
    /// one of them scratch. A count of 0 touches nothing. The bytes are read and written at some time before a
    /// `BulkWait` covers the copy or the role ends. Ordering: none with this role copy's own accesses except through
    /// `ProxyFence` (before) and `BulkWait` (after). PTX: `cp.async.bulk` if one side is scratch and addresses and size
    /// are multiples of 16 bytes, else a copy by the lanes. CPU: the copy happens immediately. Not in an `each`.
    BulkCopy {
        /// First element written.
        dst: Place,
        /// First element read.
        src: Place,
        /// Number of elements, uniform `i64`, ≥ 0.
        count: Value,
    },
    /// Waits until all but the last `pending` bulk copies of this role copy are done. Not in an `each`.
    BulkWait {
        /// How many of the latest copies may still be in flight.
        pending: u32,
        /// What counts as done.
        done: BulkDone,
    },
    /// Orders this role copy's earlier accesses (and those its waits made visible) before its later bulk copies. PTX:
    /// `fence.proxy.async` by every lane, then a role barrier. CPU: nothing. Not in an `each`.
    ProxyFence,
    /// Barrier of the role copy: every lane's earlier accesses are visible to every lane's later ones. An `each` ends
    /// with one by itself; this one is for code between uniform accesses. PTX: named barrier. CPU: nothing. Not in an
    /// `each`.
    Barrier,

    // ---- the transport seam: network links ----------------------------------------------------------------------
    /// Appends one descriptor to the ring of a network proxy: bytes for a peer, a notice, or both. The ring and its
    /// entries are defined in [`ring`](super::ring). Yields while the ring is full. Not in an `each`.
    ///
    /// The proxy later copies the bytes to the peer and turns the notice into a new value of one of the peer's slots.
    /// Ordering, on every carrier:
    ///
    /// 1. *Delivery* (bytes with a notice of `parts` parts): posts of one role copy to one peer with the same slot,
    ///    value and number of parts are one delivery. The slot takes the value after the bytes of all its parts, in
    ///    whatever order they arrive.
    /// 2. *Signal* (a notice without bytes): the slot takes the value after the bytes of all earlier posts of this role
    ///    copy to this peer over this ring.
    /// 3. *Credit* (a notice without bytes that is a credit): waits for no bytes. It publishes no data, as
    ///    [`Op::SignalCredit`].
    /// 4. *Flush* (a notice without bytes for a slot of this rank's own): the slot takes the value after the sources of
    ///    all earlier posts of this role copy to this peer over this ring have been read. Nothing is sent. It publishes
    ///    no data, as a credit: whoever waits for it may overwrite those sources, and sees nothing new.
    /// 5. Bytes without a notice are covered by a later signal.
    /// 6. A delivery or a signal also covers the earlier posts of this role copy to this peer over this ring that are
    ///    over for it: the peer has credited them. It never covers a post of another role copy, even one that is over.
    ///
    /// Deliveries and signals also publish everything this role copy did or saw before, as [`Op::Signal`]. Bytes are
    /// written after those of an earlier post of this rank, to the same peer over the same ring, that is over for this
    /// role copy. Notices for one slot arrive in order. Nothing else is ordered: not two deliveries, not notices for
    /// different slots. The source may be overwritten when a later signal of the peer says that the bytes have arrived,
    /// or after a flush.
    Post {
        /// A `Queue` parameter.
        queue: ParamId,
        /// Destination rank, uniform `i64`.
        peer: Value,
        /// The bytes.
        span: Option<PostSpan>,
        /// The notice.
        notice: Option<Notice>,
    },

    /// Ends the launch on all ranks, with a report, unless `cond` holds. Nothing that follows it in this role copy
    /// happens then; what other role copies do until they end is not ordered with it. Ordering: none. PTX: a uniform
    /// branch; if it is taken, the leader fills the report and the role copy ends. CPU: a fault. Not in an `each`.
    Require {
        /// Uniform bool.
        cond: Value,
        /// The bytes that the condition is about, if it is about bytes: the report names them.
        span: Option<RequiredSpan>,
    },

    // ---- control (all on uniform values; none inside an `each`) ---------------------------------------------------
    /// Runs one of two regions.
    If {
        /// Uniform bool.
        cond: Value,
        /// Run if true.
        then: Region,
        /// Run if false.
        otherwise: Region,
    },
    /// Runs the body with its index = `start, start + step, …` while `index < end`. A step ≤ 0 runs nothing, and a sum
    /// beyond i64 ends the loop. The index is the instruction's index value, axis 0. All uniform `i64`.
    For {
        /// First index.
        start: Value,
        /// Exclusive bound.
        end: Value,
        /// Increment.
        step: Value,
        /// Body.
        body: Region,
    },
    /// Runs `head`; if `cond` (a uniform bool computed in `head` or before) holds, runs `body` and repeats.
    While {
        /// Computes the condition; runs at least once.
        head: Region,
        /// The condition.
        cond: Value,
        /// Body.
        body: Region,
    },
    /// Runs the body once for every element: `0..extent[0]` in one dimension, `0..extent[0]` rows × `0..extent[1]`
    /// columns in two. The index values are axis 0 (and 1), lane `i64`. Element order is free (but see
    /// [`Op::PacketGet`]). Extents are uniform `i64`; ≤ 0 runs nothing. Ends with a barrier of the role copy.
    Each {
        /// One or two extents.
        extent: Vec<Value>,
        /// Body: no control flow, no signals.
        body: Region,
    },
}

/// The bytes that an [`Op::Require`] is about, in the memory of a rank. All uniform `i64`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequiredSpan {
    /// The rank whose memory it is.
    pub rank: Value,
    /// The first byte.
    pub offset: Value,
    /// Number of bytes.
    pub bytes: Value,
    /// Number of bytes that there are.
    pub size: Value,
}

/// The bytes of a post.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PostSpan {
    /// First byte read, in a `u8` buffer.
    pub src: Place,
    /// Byte offset in the peer's region, uniform `i64`.
    pub dst: Value,
    /// Number of bytes, uniform `i64`.
    pub bytes: Value,
}

/// The notice of a post.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Notice {
    /// Number of the slot at the peer, of a flush at this rank, uniform `i64`.
    pub slot: Value,
    /// New value of the slot, uniform `u64`. In a matched queue
    /// ([`Kernel::is_matched`](super::Kernel::is_matched)) the slot's word also carries the launch's operation, unless
    /// the notice is a credit or a flush.
    pub x: Value,
    /// How many posts make up the delivery, 1 to [`MAX_PARTS`](super::ring::MAX_PARTS). 1 without bytes.
    pub parts: u8,
    /// What it says.
    pub kind: NoticeKind,
}
