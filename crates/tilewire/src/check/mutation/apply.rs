//! The effect of a mutation on a plan.

use super::edit::Edit;
use super::posts;
use super::sites::{Place, sibling, whole};
use super::{Mutant, Mutation};
use crate::check::model::Watch;
use crate::check::world::Plan;
use crate::ir::{BulkDone, Const, Inst, Kernel, Notice, NoticeKind, Op, Type};

/// The plan with the mistake at a place.
pub(super) fn mutant(plan: &Plan, mutation: Mutation, place: Place) -> Mutant {
    let (mut plan, mut watch) = (plan.clone(), Watch::default());
    for &(launch, rank, inst) in &place.insts {
        let who = (launch as u32, rank as u32, inst);
        match mutation {
            Mutation::AcquireToRelaxed => _ = watch.relaxed.insert(who),
            Mutation::MissingBarrier => _ = watch.unbarriered.insert(who),
            Mutation::OvertakingSignal | Mutation::EarlyFlush => _ = watch.uncovered.insert(who),
            Mutation::UnheldNotice => _ = watch.unheld.insert(who),
            _ => edit(&mut plan.launches[launch][rank].kernel, mutation, inst),
        }
    }
    match mutation {
        Mutation::CounterReset => plan.resets_counters = true,
        Mutation::SwappedPeers => place.swap.iter().for_each(|swap| swap.apply(&mut plan)),
        Mutation::ReusedFlag => plan.launches.iter_mut().flatten().for_each(|job| one_flag(&mut job.kernel)),
        _ => {}
    }
    Mutant { mutation, at: place.at, of: place.swap.map(|swap| swap.to_string()), plan, watch }
}

fn edit(kernel: &mut Kernel, mutation: Mutation, inst: Inst) {
    let near = match mutation {
        Mutation::ReusedSlot => sibling(kernel, whole(kernel, inst), true),
        Mutation::SignalBeforePut => sibling(kernel, inst, false),
        Mutation::PostBeforePut => posts::filler(kernel, inst),
        Mutation::OutboxReused => posts::refill(kernel, whole(kernel, inst)),
        _ => None,
    };
    if mutation == Mutation::NoticeBeforeData {
        return posts::tell_first(kernel, inst);
    }
    let op = kernel.insts[inst].op.clone();
    let mut edit = Edit { kernel };
    let new = match (mutation, op) {
        (Mutation::DropWait | Mutation::DropCreditWait | Mutation::MissingProxyFence, _)
        | (Mutation::StaleStart | Mutation::NoDrain | Mutation::FlagsNotCleared, _) => return edit.remove(inst),
        (Mutation::ReusedSlot | Mutation::OutboxReused, _) => {
            let moved = whole(edit.kernel, inst);
            return near.map_or((), |near| edit.shift(moved, near, true));
        }
        // The values that a post needs are there only where it stands: what it tells of is moved instead.
        (Mutation::SignalBeforePut | Mutation::PostBeforePut, Op::Post { .. }) => {
            return near.map_or((), |near| edit.shift(near, inst, true));
        }
        (Mutation::SignalBeforePut, _) => return near.map_or((), |near| edit.shift(inst, near, false)),
        (Mutation::ReadyOfBlock0, _) => return edit.only_block_0(inst),
        (Mutation::ReleaseToRelaxed, Op::Signal { slot, x }) => Op::SignalCredit { slot, x },
        (Mutation::ReleaseToRelaxed, Op::Post { queue, peer, span, notice }) => {
            let notice = notice.map(|notice| Notice { kind: NoticeKind::Credit, ..notice });
            Op::Post { queue, peer, span, notice }
        }
        (Mutation::WrongLine, Op::Post { queue, peer, span, notice: Some(mut notice) }) => {
            notice.slot = edit.plus(inst, notice.slot, 1);
            Op::Post { queue, peer, span, notice: Some(notice) }
        }
        (Mutation::PartsOffByOne, Op::Post { queue, peer, span, notice: Some(mut notice) }) => {
            notice.parts = posts::wrong_parts(notice.parts);
            Op::Post { queue, peer, span, notice: Some(notice) }
        }
        (Mutation::SharedTail, Op::Post { queue, peer, span, notice: Some(mut notice) }) => {
            notice.slot = edit.minus_copy(inst, notice.slot);
            Op::Post { queue, peer, span, notice: Some(notice) }
        }
        (Mutation::PutTooFar, Op::Post { queue, peer, span: Some(mut span), notice }) => {
            span.dst = edit.plus(inst, span.dst, 1);
            Op::Post { queue, peer, span: Some(span), notice }
        }
        (Mutation::WrongSlot, Op::Signal { mut slot, x }) => {
            slot.index = edit.plus(inst, slot.index, 1);
            Op::Signal { slot, x }
        }
        (Mutation::WrongSlot, Op::SignalCredit { mut slot, x }) => {
            slot.index = edit.plus(inst, slot.index, 1);
            Op::SignalCredit { slot, x }
        }
        (Mutation::SharedTail, Op::Signal { mut slot, x }) => {
            slot.index = edit.minus_copy(inst, slot.index);
            Op::Signal { slot, x }
        }
        (Mutation::OffByOneCredit, Op::Wait { slot, x }) => Op::Wait { slot, x: edit.one_less(inst, x) },
        (Mutation::PutTooFar, Op::Put { mut at, x, mask }) => {
            let size = edit.kernel.ty(x).size() as i64;
            at.index = edit.plus(inst, at.index, size);
            Op::Put { at, x, mask }
        }
        (Mutation::PutTooFar, Op::PacketPut { mut at, x, flag }) => {
            at.index = edit.plus(inst, at.index, 1);
            Op::PacketPut { at, x, flag }
        }
        (Mutation::PutTooFar, Op::BulkCopy { mut dst, src, count }) => {
            dst.index = edit.plus(inst, dst.index, 1);
            Op::BulkCopy { dst, src, count }
        }
        (Mutation::BulkBeforeCompletion, Op::BulkWait { pending, .. }) => {
            Op::BulkWait { pending, done: BulkDone::Read }
        }
        (_, op) => op,
    };
    edit.kernel.insts[inst].op = new;
}

/// Gives every packet of a kernel flag 1.
fn one_flag(kernel: &mut Kernel) {
    let mut packets = Vec::new();
    for role in kernel.roles.values() {
        kernel.walk(role.body, &mut |inst| {
            if matches!(kernel.insts[inst].op, Op::PacketPut { .. } | Op::PacketGet { .. }) {
                packets.push(inst);
            }
        });
    }
    for inst in packets {
        let one = Edit { kernel }.before(inst, Op::Const(Const { ty: Type::U32, bits: 1 }));
        match &mut kernel.insts[inst].op {
            Op::PacketPut { flag, .. } | Op::PacketGet { flag, .. } => *flag = one,
            _ => {}
        }
    }
}
