//! The bytecode: what the lowering emits, the verifier checks, and the machine runs.
//!
//! A [`Code`] is an [`Opcode`], four 16-bit operands `a b c d` and one 32-bit operand `e`. Uniform values live in
//! 64-bit registers (raw bits, zero-extended), lane values in *lanes*: a lane is a pointer to the current strip of
//! elements, either into the instance's own strip memory or, for a bound access, straight into the tensor.
//! [`Opcode::signature`] tells the verifier what each operand is.

use crate::ir::{BinaryOp, CompareOp, GroupOp, Purpose, SourceLine, Type, UnaryOp};
use std::fmt;

/// One instruction before it is bound to a handler.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Code {
    pub op: Opcode,
    pub a: u16,
    pub b: u16,
    pub c: u16,
    pub d: u16,
    pub e: i32,
}

/// How the second operand of a lane op is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// One per element.
    Lane,
    /// One for all elements, in a register.
    Uniform,
    /// One per group of `e` elements.
    Group,
}

/// An operation. `U…` ops work on registers, `L…` ops on lanes. A lane op has `counts[d]` elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opcode {
    /// The role is done.
    End,
    /// Jump by `e`.
    Jump,
    /// Jump by `e`, back to the head of the loop `polls[a]`. Now and then, let other machines run.
    Again,
    /// Jump by `e` if register `a` is 0.
    JumpUnless,
    /// Jump by `e` unless `a op b`, as u64.
    JumpUnlessU64(CompareOp),
    /// Jump by `e` if registers `a` and `b` have a bit in common.
    JumpIfBits,
    /// `a = b`; jump by `e` unless `b < c` and `d > 0`.
    ForBegin,
    /// `a += b`; jump by `e` while `a < c`.
    ForNext,

    /// `a = op b`
    UUnary(UnaryOp, Type),
    /// `a = b op c`
    UBinary(BinaryOp, Type),
    /// `a = b op c`
    UCompare(CompareOp, Type),
    /// `a = b ? c : d`
    USelect,
    /// `a = b * c + d`, rounded once (floats) or wrapping (i64: the slot address)
    UFma(Type),
    /// `a = b & c`, `d = a * e`: the slot of a number, and its position
    UMaskScale,
    /// `a = b` converted
    UCast(Type, Type),
    /// `a = b`
    UMove,
    /// `a = memory[access e]`. If `d` is 1 (masked) and register `b` is 0, `a = c` instead.
    ULoad(Type),
    /// Register `a` = the eight bytes at byte `e` of entry `b`, which are known to be in bounds.
    ULoadWord,
    /// The eight bytes at byte `e` of entry `b` = register `a`.
    UStoreWord,
    /// `a = c + d`; the eight bytes at byte `e` of entry `b` = register `a`.
    UAddStoreWord,
    /// `memory[access e] = a`. If `d` is 1 (masked) and register `b` is 0, nothing is stored.
    UStore(Type),
    /// `a = fetch_add(memory[access e], b)`. If `d` is 1 (masked) and register `c` is 0, `a = 0` instead.
    UAtomicAdd(Type),

    /// `slot e = a`, release, after a store fence if non-temporal stores are pending.
    Signal,
    /// Blocks until `slot e >= a`. Two hints: `b` is the number of the slot signalled afterwards plus 1, or 0 for none;
    /// `c` is how many slots further on the next wait is.
    Wait,
    /// `a = slot e >= b`
    Test,
    /// Copies `a` elements from access `e` to access `e + 1`.
    Bulk,
    /// Copies `a` elements, if any, from access `e` to access `e + 1`, for an `each` that does nothing else.
    CopyRow,
    /// Copies `a` elements, if any, from access `e` to access `e + 1` and as many from `e + 2` to `e + 3`, interleaved,
    /// for an `each` that does nothing else. Bits 0 and 1 of `b` say whether the first and the second go to regions of
    /// other ranks.
    CopyTwoRows,
    /// Prefetches for writing the `a` elements of access `e` in slot `b & c`, where slots are `d` index steps apart.
    /// Only a hint.
    FetchSlot,
    /// Writes `a` words of access `e`, if any, to adjacent packets of access `e + 1` with the flag in register `c`, for
    /// an `each` that does nothing else.
    PacketSend,
    /// Reads `a` adjacent packets of access `e`, if any, into words of access `e + 1`; blocks until they carry the flag
    /// in register `c`. `b` as for `Wait`.
    PacketReceive,
    /// Writes descriptor `e` into its queue; blocks while it is full.
    Post,
    /// Ends the launch with report `e` if register `a` is 0.
    Require,

    /// Starts each `e`: extents, strip geometry. Jumps to its end if it is empty.
    EachBegin,
    /// Advances each `e` by one strip; jumps back while there is another.
    EachNext,

    /// lane `a` = address of access `e` for this strip, with `counts[d]` elements in bounds.
    Bind,
    /// As `Bind`, for memory that the next op writes, around the cache if this `each` streams.
    BindStore,
    /// contiguous access `e` = lane `a`, with elements of this many bytes. `b` is 1 for a put.
    CopyOut(u8),
    /// The same, around the cache if this `each` streams.
    StreamOut(u8),
    /// lane `a` = strided access `e`.
    LoadStrided(u8),
    /// strided access `e` = lane `a`.
    StoreStrided(u8),
    /// lane `a` = the tile at access `e`, packed.
    LoadTile(u8),
    /// the tile at access `e` = lane `a`, packed.
    StoreTile(u8),
    /// the tile at access `e + 1` = the tile at access `e`, through registers.
    MoveTile(u8),
    /// lane `a` = access `e` at the element indices in lane `b`, which have this integer type.
    Gather(u8, Type),
    /// As `Gather` where lane `c` is true, else the element of lane `d` (so the count is always `counts[0]`).
    GatherMasked(u8),
    /// access `e` at the element indices in lane `b` = lane `a`.
    Scatter(u8),
    /// As `Scatter` where lane `c` is true.
    ScatterMasked(u8),
    /// lane `a` = fetch_add of lane `b` to access `e` at the element indices in lane `c`, or 0 where lane `d` is false.
    /// `d` = 0xffff: no mask.
    AtomicLanes(u8),
    /// Writes lane `a` to the packets of access `e` at the indices in lane `b`, with the flag in register `c`.
    PacketPut,
    /// lane `a` = packets of access `e` at the indices in lane `b`; blocks until they carry the flag in register `c`.
    PacketGet,
    /// Writes lane `a` to adjacent packets of access `e`, with the flag in register `c`.
    PacketPutRow,
    /// lane `a` = adjacent packets of access `e`; blocks until they carry the flag in register `c`.
    PacketGetRow,

    /// lane `a` = register `b`, everywhere in the strip memory.
    Fill(u8),
    /// lane `a` = group lane `b`, each repeated `e` times.
    Expand(u8),
    /// lane `a` = index of the each's axis `b` (0 = row, 1 = column).
    Iota,
    /// lane `a` = affine index of access `e` for each element.
    AffineIndex,

    /// lane `a` = op lane `b`
    LUnary(UnaryOp, Type),
    /// lane `a` = lane `b` op `c`
    LBinary(BinaryOp, Type, Kind),
    /// lane `a` = lane `b` op `c`
    LCompare(CompareOp, Type, Kind),
    /// lane `a` = lane `b` ? lane `c` : lane `e`
    LSelect(u8),
    /// lane `a` = lane `b` * lane `c` + lane `e`
    LFma(Type),
    /// lane `a` = lane `b` converted
    LCast(Type, Type),
    /// f32 lane `a` = lane `b` op f32(lane `c` of the narrow type)
    LBinaryWiden(BinaryOp, Type),
    /// lane `a` of the narrow type = narrow(f32 lane `b` op `c`)
    LBinaryNarrow(BinaryOp, Type, Kind),

    /// group lane `a` = reduction of lane `b` in groups of `e`; `d` counts the elements.
    LGroup(GroupOp, Type),
    /// group lane `a` = max |lane `b`| in groups of `e`.
    LGroupMaxAbs(Type),
    /// lane `a` = prefix sums of lane `b` in groups of `e`.
    LScan(Type),
}

/// What an operand of a [`Code`] is, for the verifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operand {
    None,
    /// A register that is read.
    Reg,
    /// A register that is written.
    RegOut,
    /// A lane with `counts[d]` elements of this many bytes.
    Lane(u8),
    /// The same, written.
    LaneOut(u8),
    /// A lane with one element per group of `e` elements.
    GroupLane(u8),
    /// The same, written.
    GroupLaneOut(u8),
    /// A lane or 0xffff.
    OptionalLane(u8),
    /// Index of an element count.
    Count,
    /// An index into `slots` plus 1, or 0.
    NextSlot,
    /// A small number: the flag of a masked uniform access, or an axis.
    Number,
}

/// What the operand `e` is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extra {
    None,
    /// A jump, relative to this instruction.
    Jump,
    /// An index into `accesses`; the number says how many consecutive ones.
    Access(u8),
    /// An index into `slots`.
    Slot,
    /// An index into `posts`.
    Post,
    /// An index into `requires`.
    Require,
    /// An index into `eaches`.
    Each,
    /// The byte offset of a word in entry `b`.
    Word,
    /// A number.
    Number,
    /// A group size.
    Size,
    /// A lane with elements of this many bytes.
    Lane(u8),
}

impl Opcode {
    /// What `a b c d` and `e` are.
    pub(crate) fn signature(self) -> ([Operand; 4], Extra) {
        use Operand::*;
        let size = |ty: Type| ty.size() as u8;
        let second = |ty: Type, kind: Kind| match kind {
            Kind::Lane => Lane(size(ty)),
            Kind::Uniform => Reg,
            Kind::Group => GroupLane(size(ty)),
        };
        let extra = |kind: Kind| if kind == Kind::Group { Extra::Size } else { Extra::None };
        match self {
            Opcode::End => ([None; 4], Extra::None),
            Opcode::Jump => ([None; 4], Extra::Jump),
            Opcode::Again => ([Number, None, None, None], Extra::Jump),
            Opcode::JumpUnless => ([Reg, None, None, None], Extra::Jump),
            Opcode::JumpUnlessU64(_) | Opcode::JumpIfBits => ([Reg, Reg, None, None], Extra::Jump),
            Opcode::ForBegin => ([RegOut, Reg, Reg, Reg], Extra::Jump),
            Opcode::ForNext => ([RegOut, Reg, Reg, None], Extra::Jump),
            Opcode::UUnary(..) | Opcode::UCast(..) | Opcode::UMove => ([RegOut, Reg, None, None], Extra::None),
            Opcode::UBinary(..) | Opcode::UCompare(..) => ([RegOut, Reg, Reg, None], Extra::None),
            Opcode::USelect | Opcode::UFma(_) => ([RegOut, Reg, Reg, Reg], Extra::None),
            Opcode::UMaskScale => ([RegOut, Reg, Reg, RegOut], Extra::Number),
            Opcode::ULoadWord => ([RegOut, Number, None, None], Extra::Word),
            Opcode::UStoreWord => ([Reg, Number, None, None], Extra::Word),
            Opcode::UAddStoreWord => ([RegOut, Number, Reg, Reg], Extra::Word),
            Opcode::ULoad(_) => ([RegOut, Reg, Reg, Number], Extra::Access(1)),
            Opcode::UStore(_) => ([Reg, Reg, None, Number], Extra::Access(1)),
            Opcode::UAtomicAdd(_) => ([RegOut, Reg, Reg, Number], Extra::Access(1)),
            Opcode::Signal => ([Reg, None, None, None], Extra::Slot),
            Opcode::Wait => ([Reg, NextSlot, Number, None], Extra::Slot),
            Opcode::Test => ([RegOut, Reg, None, None], Extra::Slot),
            Opcode::Bulk | Opcode::CopyRow => ([Reg, None, None, None], Extra::Access(2)),
            Opcode::CopyTwoRows => ([Reg, Number, None, None], Extra::Access(4)),
            Opcode::FetchSlot => ([Reg, Reg, Reg, Reg], Extra::Access(1)),
            Opcode::PacketSend => ([Reg, None, Reg, None], Extra::Access(2)),
            Opcode::PacketReceive => ([Reg, NextSlot, Reg, None], Extra::Access(2)),
            Opcode::Post => ([None; 4], Extra::Post),
            Opcode::Require => ([Reg, None, None, None], Extra::Require),
            Opcode::EachBegin | Opcode::EachNext => ([None; 4], Extra::Each),
            // Bound lanes take their element size from the access: the verifier compares the two.
            Opcode::Bind | Opcode::BindStore => ([LaneOut(0), None, None, Count], Extra::Access(1)),
            Opcode::CopyOut(s) => ([Lane(s), Number, None, Count], Extra::Access(1)),
            Opcode::StreamOut(s) | Opcode::StoreStrided(s) | Opcode::StoreTile(s) => {
                ([Lane(s), None, None, Count], Extra::Access(1))
            }
            Opcode::LoadStrided(s) | Opcode::LoadTile(s) => ([LaneOut(s), None, None, Count], Extra::Access(1)),
            Opcode::MoveTile(_) => ([None, None, None, Count], Extra::Access(2)),
            Opcode::Gather(s, ty) => ([LaneOut(s), Lane(size(ty)), None, Count], Extra::Access(1)),
            Opcode::GatherMasked(s) => ([LaneOut(s), Lane(8), Lane(1), Lane(s)], Extra::Access(1)),
            Opcode::Scatter(s) => ([Lane(s), Lane(8), None, Count], Extra::Access(1)),
            Opcode::ScatterMasked(s) => ([Lane(s), Lane(8), Lane(1), Count], Extra::Access(1)),
            Opcode::AtomicLanes(s) => ([LaneOut(s), Lane(s), Lane(8), OptionalLane(1)], Extra::Access(1)),
            Opcode::PacketPut => ([Lane(8), Lane(8), Reg, Count], Extra::Access(1)),
            Opcode::PacketGet => ([LaneOut(8), Lane(8), Reg, Count], Extra::Access(1)),
            Opcode::PacketPutRow => ([Lane(8), None, Reg, Count], Extra::Access(1)),
            Opcode::PacketGetRow => ([LaneOut(8), None, Reg, Count], Extra::Access(1)),
            Opcode::Fill(s) => ([LaneOut(s), Reg, None, None], Extra::None),
            Opcode::Expand(s) => ([LaneOut(s), GroupLane(s), None, Count], Extra::Size),
            Opcode::Iota => ([LaneOut(8), Number, None, Count], Extra::None),
            Opcode::AffineIndex => ([LaneOut(8), None, None, Count], Extra::Access(1)),
            Opcode::LUnary(_, ty) => ([LaneOut(size(ty)), Lane(size(ty)), None, Count], Extra::None),
            Opcode::LBinary(_, ty, kind) => ([LaneOut(size(ty)), Lane(size(ty)), second(ty, kind), Count], extra(kind)),
            Opcode::LCompare(_, ty, kind) => ([LaneOut(1), Lane(size(ty)), second(ty, kind), Count], extra(kind)),
            Opcode::LSelect(s) => ([LaneOut(s), Lane(1), Lane(s), Count], Extra::Lane(s)),
            Opcode::LFma(ty) => ([LaneOut(size(ty)), Lane(size(ty)), Lane(size(ty)), Count], Extra::Lane(size(ty))),
            Opcode::LCast(from, to) => ([LaneOut(size(to)), Lane(size(from)), None, Count], Extra::None),
            Opcode::LBinaryWiden(_, ty) => ([LaneOut(4), Lane(4), Lane(size(ty)), Count], Extra::None),
            Opcode::LBinaryNarrow(_, ty, kind) => {
                ([LaneOut(size(ty)), Lane(4), second(Type::F32, kind), Count], extra(kind))
            }
            Opcode::LGroup(_, ty) | Opcode::LGroupMaxAbs(ty) => {
                ([GroupLaneOut(size(ty)), Lane(size(ty)), None, Count], Extra::Size)
            }
            Opcode::LScan(ty) => ([LaneOut(size(ty)), Lane(size(ty)), None, Count], Extra::Size),
        }
    }
}

/// A memory access: where the elements of a strip lie. The index of element (row, col) of the `each`, in units of
/// `unit` bytes, is `base + row * row_stride + col * col_stride + (col / group) * group_stride`.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// First entry of the machine's base addresses, and how many banks there are.
    pub first: u16,
    pub banks: u32,
    /// Register with the bank, if there are several.
    pub bank: Option<u16>,
    /// Bytes of one bank.
    pub bytes: u64,
    /// Bytes per index step, and bytes of one access.
    pub unit: u32,
    pub width: u32,
    /// Registers of the affine index.
    pub base: u16,
    pub row_stride: u16,
    pub col_stride: u16,
    pub group: u32,
    pub group_stride: u16,
    /// The operation number of each bank, if packets carry one.
    pub operations: Option<Box<[u16]>>,
    /// What to call it in errors.
    pub name: String,
    pub at: SourceLine,
}

/// A signal slot.
#[derive(Clone, Debug)]
pub(crate) struct SlotRef {
    pub first: u16,
    pub banks: u32,
    pub bank: Option<u16>,
    pub len: u64,
    pub stride: u32,
    pub index: u16,
    /// The operation number of each bank, if words carry one.
    pub operations: Option<Box<[u16]>>,
    pub name: String,
    pub op: &'static str,
    pub at: SourceLine,
}

/// A descriptor for the network proxy: registers with its fields.
#[derive(Clone, Debug)]
pub(crate) struct PostRef {
    /// Entry of the machine's base addresses with the ring's entries; its tickets follow.
    pub queue: u16,
    /// How many descriptors the ring holds, a power of two.
    pub capacity: u64,
    /// The bits of the descriptor's head that are known.
    pub head: u64,
    pub peer: u16,
    /// The access of the source, and registers with destination offset and byte count.
    pub span: Option<(u32, u16, u16)>,
    /// Registers with the slot's index and its value, and the operation that its word carries, if any.
    pub notice: Option<(u16, u16, Option<u16>)>,
    pub at: SourceLine,
}

/// The report of a requirement that does not hold.
#[derive(Clone, Debug)]
pub(crate) struct RequireRef {
    /// Registers with the rank, the offset, the number of bytes and the size that it is about, if it is about bytes.
    pub span: Option<[u16; 4]>,
    pub at: SourceLine,
}

/// One `each`: registers with its extents and the geometry of its strips.
#[derive(Clone, Debug)]
pub(crate) struct Each {
    /// Register with the number of rows; `None`: one row.
    pub rows: Option<u16>,
    /// All rows are walked as one.
    pub flat: bool,
    pub cols: u16,
    /// Largest strip in rows and columns.
    pub tile_rows: u32,
    pub tile_cols: u64,
    /// Bytes stored per element through `BindStore` and `StreamOut`; 0 if nothing streams.
    pub stream_bytes: u32,
    /// Bytes stored per element in total.
    pub store_bytes: u32,
    /// Whether it may store around the cache: it stores only to memory of arguments, which it neither reads nor writes
    /// again.
    pub may_stream: bool,
    /// Group sizes: `counts[k]` is the number of groups of `groups[k]` in the strip; `groups[0]` is 1.
    pub groups: Vec<u32>,
    /// The number of columns, if it is known and fits in one strip and there are no groups; otherwise 0.
    pub one_strip: u32,
    /// Jump from `EachBegin` to just after the `EachNext`, and from `EachNext` to the first instruction of the strip.
    pub end: i32,
    pub top: i32,
}

/// A loop that may poll: it reads memory that others write.
#[derive(Clone, Debug)]
pub(crate) struct Poll {
    pub at: SourceLine,
}

/// Where a lane's elements are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LaneInfo {
    /// Bytes per element.
    pub size: u8,
    /// Offset in the instance's strip memory, and how many elements fit there; `None` if it is only ever bound to
    /// memory.
    pub strip: Option<(u32, u32)>,
}

/// The code of one role.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoleCode {
    pub name: String,
    pub code: Vec<Code>,
    /// Initial contents of the registers: constants.
    pub registers: Vec<u64>,
    /// Registers set when an instance starts.
    pub inputs: Vec<(u16, Input)>,
    pub lanes: Vec<LaneInfo>,
    pub strip_bytes: u32,
    pub accesses: Vec<Access>,
    pub slots: Vec<SlotRef>,
    pub posts: Vec<PostRef>,
    pub requires: Vec<RequireRef>,
    pub eaches: Vec<Each>,
    pub polls: Vec<Poll>,
    /// Bytes of role scratch, and entries of the base addresses that point into it: (entry, offset).
    pub scratch_bytes: usize,
    pub scratch: Vec<(u16, usize)>,
    /// The rank it is compiled for.
    pub rank: u32,
    /// What the memory of each entry of the base addresses is for.
    pub purposes: Vec<Purpose>,
}

impl RoleCode {
    /// The rank that signals an awaited slot.
    pub(crate) fn signaller(&self, slot: u32, bank: i64, index: i64) -> Option<u32> {
        let SlotRef { first, len, .. } = self.slots[slot as usize];
        self.awaited(first, bank, index, len)
    }

    /// The rank that writes an awaited packet.
    pub(crate) fn sender(&self, access: u32, bank: Option<i64>, packet: i64) -> Option<u32> {
        let Access { first, bytes, .. } = self.accesses[access as usize];
        self.awaited(first, bank.unwrap_or(0), packet, bytes / 16)
    }

    fn awaited(&self, first: u16, bank: i64, index: i64, len: u64) -> Option<u32> {
        let purpose = self.purposes.get(usize::from(first) + bank as usize)?;
        purpose.signaller(index as u64, len).filter(|&by| by != self.rank)
    }
}

/// What a register holds when an instance starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Input {
    Special(crate::ir::Special),
    /// A scalar parameter, by its entry among the base addresses.
    Scalar(u16, Type),
}

/// The most element counts in one `each`: one for the elements, one per group size. The lowering refuses more.
pub(crate) const MAX_COUNTS: usize = 8;

impl fmt::Display for RoleCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "role {} ({} registers, {} lanes)", self.name, self.registers.len(), self.lanes.len())?;
        for (i, code) in self.code.iter().enumerate() {
            writeln!(f, "{i:5} {:?} {} {} {} {} {}", code.op, code.a, code.b, code.c, code.d, code.e)?;
        }
        Ok(())
    }
}
