//! The table from opcodes to handlers.

use super::code::Opcode;
use super::lane::{arithmetic, convert, group, memory, packet};
use super::level::Level;
use super::machine::Handler;
use super::{control, uniform};

/// The handler of an opcode at a level.
pub(crate) fn handler(op: Opcode, level: Level) -> Handler {
    match op {
        Opcode::End => control::end,
        Opcode::Jump => control::jump,
        Opcode::JumpUnless => control::jump_unless,
        Opcode::ForBegin => control::for_begin,
        Opcode::ForNext => control::for_next,
        Opcode::UUnary(op, ty) => uniform::unary(op, ty),
        Opcode::UBinary(op, ty) => uniform::binary(op, ty),
        Opcode::UCompare(op, ty) => uniform::compare(op, ty),
        Opcode::USelect => uniform::select,
        Opcode::UFma(ty) => uniform::fma(ty),
        Opcode::UCast(from, to) => uniform::cast(from, to),
        Opcode::UMove => uniform::mov,
        Opcode::ULoad(ty) => uniform::load(ty),
        Opcode::ULoadWord => uniform::load_word,
        Opcode::UStoreWord => uniform::store_word,
        Opcode::UStore(ty) => uniform::store(ty),
        Opcode::UAtomicAdd(ty) => uniform::atomic_add(ty),
        Opcode::Signal => control::signal,
        Opcode::Wait => control::wait,
        Opcode::Test => control::test,
        Opcode::Bulk => memory::bulk,
        Opcode::Post => control::post,
        Opcode::EachBegin => control::each_begin,
        Opcode::EachNext => control::each_next,
        Opcode::Bind => memory::bind,
        Opcode::BindStore => memory::bind_store,
        Opcode::CopyOut(_) => memory::copy_out,
        Opcode::LoadStrided(size) => memory::load_strided(size, level),
        Opcode::StoreStrided(size) => memory::store_strided(size, level),
        Opcode::LoadTile(size) => memory::load_tile(size),
        Opcode::StoreTile(size) => memory::store_tile(size),
        Opcode::MoveTile(size) => memory::move_tile(size),
        Opcode::Gather(size, index) => memory::gather(size, index, level),
        Opcode::GatherMasked(size) => memory::gather_masked(size),
        Opcode::Scatter(size) => memory::scatter(size),
        Opcode::ScatterMasked(size) => memory::scatter_masked(size),
        Opcode::AtomicLanes(size) => memory::atomic_lanes(size),
        Opcode::PacketPut => packet::packet_put,
        Opcode::PacketGet => packet::packet_get,
        Opcode::PacketPutRow => packet::packet_put_row,
        Opcode::PacketGetRow => packet::packet_get_row,
        Opcode::Fill(size) => group::fill(size, level),
        Opcode::Expand(size) => group::expand(size, level),
        Opcode::Iota => group::iota(level),
        Opcode::AffineIndex => memory::affine_index(level),
        Opcode::LUnary(op, ty) => arithmetic::unary(op, ty, level),
        Opcode::LBinary(op, ty, kind) => arithmetic::binary(op, ty, kind, level),
        Opcode::LCompare(op, ty, kind) => arithmetic::compare(op, ty, kind, level),
        Opcode::LSelect(size) => arithmetic::select(size, level),
        Opcode::LFma(ty) => arithmetic::fma(ty, level),
        Opcode::LCast(from, to) => convert::cast(from, to, level),
        Opcode::LBinaryWiden(op, from) => convert::widen(op, from, level),
        Opcode::LBinaryNarrow(op, to, kind) => convert::narrow(op, to, kind, level),
        Opcode::LGroup(op, ty) => group::reduce(op, ty, level),
        Opcode::LGroupMaxAbs(ty) => group::max_abs(ty, level),
        Opcode::LScan(ty) => group::scan(ty, level),
    }
}
