//! The table from opcodes to handlers, and handlers that run several instructions.

use super::code::{Code, Opcode};
use super::lane::{arithmetic, convert, group, memory, packet, rows};
use super::level::Level;
use super::machine::{Handler, Inst, Machine};
use super::{control, uniform};
use crate::ir::{BinaryOp, Type};

/// A handler that runs those of adjacent instructions one after the other. All but the last always continue to the
/// next.
macro_rules! one_after_the_other {
    ($($handler:path),+) => {{
        unsafe fn all(m: &mut Machine, mut pc: *const Inst) -> *const Inst {
            $(
                debug_assert!(!pc.is_null(), "only the last of several may stop");
                // SAFETY: these instructions follow each other in the verified code, and each handler gets its own, for
                // which the verifier's findings hold.
                pc = unsafe { $handler(m, pc) };
            )+
            pc
        }
        all
    }};
}

/// One handler for the first instruction and some after it, if the code begins as transfers do. It saves a dispatch for
/// each of them between the arrival of a message and the answer. The others keep their own handlers, for jumps that
/// lead to them.
pub(crate) fn of_several(code: &[Code]) -> Option<Handler> {
    use BinaryOp::{Add, Or};
    use Opcode::{End, JumpIfBits, UBinary, ULoadWord, UMaskScale, UStoreWord};
    use Type::U64;
    use control::{end, jump_if_bits};
    use uniform::{add_u64, load_word, mask_scale, or_u64, store_word};
    let op = |k: usize| code.get(k).map_or(End, |code| code.op);
    let handler: Handler = match [op(0), op(1), op(2), op(3), op(4)] {
        // A packet: its number, flag, place and successor; a sender asks for credits now and then.
        [ULoadWord, UBinary(Or, U64), UMaskScale, UBinary(Add, U64), JumpIfBits] => {
            one_after_the_other!(load_word, or_u64, mask_scale, add_u64, jump_if_bits)
        }
        [ULoadWord, UBinary(Or, U64), UMaskScale, UBinary(Add, U64), _] => {
            one_after_the_other!(load_word, or_u64, mask_scale, add_u64)
        }
        // A slot: the same without a flag.
        [ULoadWord, UMaskScale, UBinary(Add, U64), ..] => one_after_the_other!(load_word, mask_scale, add_u64),
        [UMaskScale, UBinary(Add, U64), JumpIfBits, ..] => one_after_the_other!(mask_scale, add_u64, jump_if_bits),
        [UStoreWord, End, ..] if code.len() > 1 => one_after_the_other!(store_word, end),
        _ => return None,
    };
    Some(handler)
}

/// The handler of an opcode at a level.
pub(crate) fn handler(op: Opcode, level: Level) -> Handler {
    match op {
        Opcode::End => control::end,
        Opcode::Jump => control::jump,
        Opcode::Again => control::again,
        Opcode::JumpUnless => control::jump_unless,
        Opcode::JumpUnlessU64(op) => control::jump_unless_u64(op),
        Opcode::JumpIfBits => control::jump_if_bits,
        Opcode::ForBegin => control::for_begin,
        Opcode::ForNext => control::for_next,
        Opcode::UUnary(op, ty) => uniform::unary(op, ty),
        Opcode::UBinary(op, ty) => uniform::binary(op, ty),
        Opcode::UCompare(op, ty) => uniform::compare(op, ty),
        Opcode::USelect => uniform::select,
        Opcode::UFma(ty) => uniform::fma(ty),
        Opcode::UMaskScale => uniform::mask_scale,
        Opcode::UCast(from, to) => uniform::cast(from, to),
        Opcode::UMove => uniform::mov,
        Opcode::ULoad(ty) => uniform::load(ty),
        Opcode::ULoadWord => uniform::load_word,
        Opcode::UStoreWord => uniform::store_word,
        Opcode::UAddStoreWord => uniform::add_store_word,
        Opcode::UStore(ty) => uniform::store(ty),
        Opcode::UAtomicAdd(ty) => uniform::atomic_add(ty),
        Opcode::Signal => control::signal,
        Opcode::Wait => control::wait,
        Opcode::Test => control::test,
        Opcode::Bulk => rows::bulk,
        Opcode::CopyRow => rows::copy_row,
        Opcode::CopyTwoRows => rows::copy_two_rows,
        Opcode::FetchSlot => rows::fetch_slot,
        Opcode::PacketSend => packet::packet_send,
        Opcode::PacketReceive => packet::packet_receive,
        Opcode::Post => control::post,
        Opcode::Require => control::require,
        Opcode::EachBegin => control::each_begin,
        Opcode::EachNext => control::each_next,
        Opcode::Bind => memory::bind,
        Opcode::BindStore => memory::bind_store,
        Opcode::CopyOut(_) => memory::copy_out,
        Opcode::StreamOut(_) => memory::stream_out,
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
