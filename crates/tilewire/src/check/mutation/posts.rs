//! What mutations ask about posts.

use super::edit::Edit;
use super::sites::{any, each_inst};
use crate::check::fixed::Reach;
use crate::check::memory::Bound;
use crate::ir::ring::MAX_PARTS;
use crate::ir::{Base, Entity, Inst, Kernel, Notice, NoticeKind, Op, Value};

/// A notice without bytes that tells a peer of data.
pub(super) fn is_signal(op: &Op) -> bool {
    matches!(op, Op::Post { span: None, notice: Some(Notice { kind: NoticeKind::Data, .. }), .. })
}

/// Bytes with a notice.
pub(super) fn is_delivery(op: &Op) -> bool {
    matches!(op, Op::Post { span: Some(_), notice: Some(_), .. })
}

/// True if an instruction has something for a peer that only a later posted signal tells: bytes that are posted without
/// a notice, or put into other memory than an outbox.
pub(super) fn needs_signal(kernel: &Kernel, inst: Inst) -> bool {
    let outboxes = outboxes(kernel);
    any(kernel, inst, &|op| match op {
        Op::Post { span, notice, .. } => span.is_some() && notice.is_none(),
        Op::Put { at, .. } => matches!(at.base, Base::Param(_)) && !outboxes.contains(&at.base),
        Op::BulkCopy { dst, .. } => matches!(dst.base, Base::Param(_)) && !outboxes.contains(&dst.base),
        _ => false,
    })
}

/// The memory that posts read.
fn outboxes(kernel: &Kernel) -> Vec<Base> {
    let mut found = Vec::new();
    each_inst(kernel, |_, inst| {
        if let Op::Post { span: Some(span), .. } = &kernel.insts[inst].op {
            found.push(span.src.base);
        }
    });
    found
}

/// The nearest instruction before a post, in its region, that fills the outbox and does nothing between parties.
pub(super) fn filler(kernel: &Kernel, inst: Inst) -> Option<Inst> {
    let Op::Post { span: Some(span), .. } = &kernel.insts[inst].op else { return None };
    let fills = |op: &Op| match op {
        Op::Put { at, .. } | Op::Store { at, .. } => at.base == span.src.base,
        _ => false,
    };
    let meets = |op: &Op| {
        matches!(op, Op::Post { .. } | Op::Wait { .. } | Op::Test { .. } | Op::Signal { .. } | Op::SignalCredit { .. })
    };
    let insts = kernel.regions.values().find(|insts| insts.contains(&inst))?;
    let place = insts.iter().position(|&other| other == inst)?;
    let found = insts[..place].iter().rev().copied().find(|&other| any(kernel, other, &fills))?;
    (!any(kernel, found, &meets)).then_some(found)
}

/// Where the slots of posted credits may lie.
pub(super) fn credited(kernel: &Kernel, bound: &[Bound], op: &Op) -> Vec<Reach> {
    let Op::Post { queue, peer, notice: Some(Notice { slot, kind: NoticeKind::Credit, .. }), .. } = op else {
        return Vec::new();
    };
    let Some(Bound::Queue(routes)) = bound.get(queue.index()) else { return Vec::new() };
    let constant = |value| kernel.as_const(value).map(|c| c.bits);
    let (peer, slot) = (constant(*peer), constant(*slot));
    let routes = (0..).zip(routes).filter(|(to, _)| peer.is_none_or(|peer| peer == *to));
    routes
        .filter_map(|(_, route)| route.as_ref())
        .map(|route| match slot {
            Some(slot) => Reach::one(&route.slots, slot.saturating_mul(route.stride.into())),
            None => Reach::all(&route.slots),
        })
        .collect()
}

/// The number of parts that is one wrong: one less, so that the notice comes before the last part. A delivery of one
/// part waits for a second that does not come.
pub(super) fn wrong_parts(parts: u8) -> u8 {
    const { assert!(MAX_PARTS >= 2) };
    if parts > 1 { parts - 1 } else { 2 }
}

/// Makes the notice of a delivery a signal before its first part.
pub(super) fn tell_first(kernel: &mut Kernel, inst: Inst) {
    let Op::Post { queue, peer, notice: Some(notice), .. } = kernel.insts[inst].op else { return };
    let same = |op: &Op| match op {
        Op::Post { queue: q, peer: p, notice: Some(other), .. } => {
            (*q, *p, other.slot, other.x) == (queue, peer, notice.slot, notice.x)
        }
        _ => false,
    };
    let mut edit = Edit { kernel };
    let Some((region, place)) = edit.position(inst) else { return };
    let is_later = edit.kernel.regions[region][..place].iter().any(|&other| same(&edit.kernel.insts[other].op));
    if !is_later {
        let notice = Some(Notice { parts: 1, ..notice });
        edit.insert(inst, Op::Post { queue, peer, span: None, notice });
    }
    if let Op::Post { notice, .. } = &mut kernel.insts[inst].op {
        *notice = None;
    }
}

/// A notice for a slot of the poster's own.
pub(super) fn is_flush(op: &Op) -> bool {
    matches!(op, Op::Post { notice: Some(Notice { kind: NoticeKind::Flush, .. }), .. })
}

/// True for a signal after posts that only a signal tells.
pub(super) fn covers_posts(kernel: &Kernel, inst: Inst) -> bool {
    let Op::Post { peer, .. } = kernel.insts[inst].op else { return false };
    let is_untold = |op: &Op| match op {
        Op::Post { peer: to, span: Some(_), notice: None, .. } => same(kernel, *to, peer),
        _ => false,
    };
    let Some(before) = before(kernel, inst) else { return false };
    is_signal(&kernel.insts[inst].op) && before.iter().any(|&other| any(kernel, other, &is_untold))
}

/// The instructions before one in its region.
fn before(kernel: &Kernel, inst: Inst) -> Option<&[Inst]> {
    let insts = kernel.regions.values().find(|insts| insts.contains(&inst))?;
    Some(&insts[..insts.iter().position(|&other| other == inst)?])
}

/// True for a notice of data for a slot for which there was one before, and its poster has waited for nothing since.
pub(super) fn is_second(kernel: &Kernel, inst: Inst) -> bool {
    let Some((peer, mine)) = told(&kernel.insts[inst].op) else { return false };
    let same = |a, b| same(kernel, a, b);
    let is_first = |other: &Inst| {
        told(&kernel.insts[*other].op)
            .is_some_and(|(to, first)| same(to, peer) && same(first.slot, mine.slot) && !same(first.x, mine.x))
    };
    let waits = |other: &Inst| any(kernel, *other, &|op| matches!(op, Op::Wait { .. } | Op::Test { .. }));
    before(kernel, inst).is_some_and(|before| before.iter().rev().take_while(|other| !waits(other)).any(is_first))
}

/// The peer and the notice of a post that tells of data.
fn told(op: &Op) -> Option<(Value, Notice)> {
    match op {
        Op::Post { peer, notice: Some(notice), .. } if notice.kind == NoticeKind::Data => Some((*peer, *notice)),
        _ => None,
    }
}

/// The nearest instruction after a wait, in its region, that fills an outbox.
pub(super) fn refill(kernel: &Kernel, wait: Inst) -> Option<Inst> {
    let outboxes = outboxes(kernel);
    let fills = |op: &Op| match op {
        Op::Put { at, .. } | Op::Store { at, .. } => outboxes.contains(&at.base),
        _ => false,
    };
    let insts = kernel.regions.values().find(|insts| insts.contains(&wait))?;
    let place = insts.iter().position(|&other| other == wait)?;
    insts[place + 1..].iter().copied().find(|&other| any(kernel, other, &fills))
}

/// True if two values are the same in every run.
fn same(kernel: &Kernel, a: Value, b: Value) -> bool {
    a == b || kernel.as_const(a).is_some_and(|a| Some(a) == kernel.as_const(b))
}
