//! Where a mutation applies.

use super::Mutation;
use super::posts;
use super::swap::{Swap, swaps};
use crate::check::fixed::{Reach, reach};
use crate::check::model::Watch;
use crate::check::world::{Limits, Plan, ToBlock, execute};
use crate::ir::{Base, BulkDone, Inst, Kernel, Notice, NoticeKind, Op, Region, SourceLine, Type};

/// One place of the source in all kernels that have it; the whole plan if it is not in a kernel.
#[derive(Default)]
pub(super) struct Place {
    pub at: Option<SourceLine>,
    /// As (launch, rank, instruction).
    pub insts: Vec<(usize, usize, Inst)>,
    /// Slots of two peers, in the launches that have them.
    pub swap: Option<Swap>,
}

/// The places of a mutation in a plan, in the order of lines.
pub(super) fn places(plan: &Plan, mutation: Mutation) -> Vec<Place> {
    let whole = |applies: bool| {
        if applies { vec![Place::default()] } else { Vec::new() }
    };
    match mutation {
        Mutation::CounterReset => {
            return whole(plan.launches() > 1 && uses(plan, |op| matches!(op, Op::Wait { .. })));
        }
        Mutation::ReusedFlag => {
            return whole(plan.launches() > 1 && uses(plan, |op| matches!(op, Op::PacketPut { .. })));
        }
        _ => {}
    }
    let stage = match plan.stage() {
        Ok(stage) => stage,
        Err(_) => return Vec::new(),
    };
    // Code that never runs in this plan cannot be a mistake in it.
    let limits = Limits { most_copies: u32::MAX, steps: 200_000_000, first_fault: false };
    let ran = execute(plan, &stage, Watch::default(), limits, &mut ToBlock).detector.ran;
    if mutation == Mutation::SwappedPeers {
        let ran = |launch: usize, inst: Inst| ran.contains_key(&(launch as u32, 0, inst));
        return swaps(plan, ran).into_iter().map(|swap| Place { swap: Some(swap), ..Place::default() }).collect();
    }
    let mut credits: Vec<Reach> = Vec::new();
    for (launch, jobs) in plan.launches.iter().enumerate() {
        for (rank, job) in jobs.iter().enumerate() {
            each_inst(&job.kernel, |_, inst| {
                let (op, bound) = (&job.kernel.insts[inst].op, &stage.bindings[launch][rank].params);
                if let Op::SignalCredit { slot, .. } = op {
                    credits.extend(reach(&job.kernel, bound, slot));
                }
                credits.extend(posts::credited(&job.kernel, bound, op));
            });
        }
    }
    let mut places: Vec<(SourceLine, &'static str, Place)> = Vec::new();
    for (launch, jobs) in plan.launches.iter().enumerate() {
        for (rank, job) in jobs.iter().enumerate() {
            let kernel = &job.kernel;
            each_inst(kernel, |body, inst| {
                let credited = match &kernel.insts[inst].op {
                    Op::Wait { slot, .. } => {
                        let wanted = reach(kernel, &stage.bindings[launch][rank].params, slot);
                        wanted.iter().any(|wanted| credits.iter().any(|credit| credit.meets(wanted)))
                    }
                    _ => false,
                };
                if !applies(kernel, mutation, body, inst, credited) {
                    return;
                }
                let mut last = None;
                let mut look = |inst| last = last.max(ran.get(&(launch as u32, rank as u32, inst)).copied());
                look(inst);
                kernel.insts[inst].op.regions().into_iter().for_each(|region| kernel.walk(region, &mut look));
                // Restricting an op to block 0 is no mistake if only block 0 runs it anyway.
                if last < Some(u32::from(mutation == Mutation::ReadyOfBlock0)) {
                    return;
                }
                let (line, kind) = (kernel.line(inst).clone(), kind(&kernel.insts[inst].op));
                let found = match places.iter_mut().find(|(at, k, _)| *at == line && *k == kind) {
                    Some((.., place)) => place,
                    None => {
                        let place = Place { at: Some(line.clone()), ..Place::default() };
                        places.push((line, kind, place));
                        &mut places.last_mut().expect("just pushed").2
                    }
                };
                found.insts.push((launch, rank, inst));
            });
        }
    }
    places.into_iter().map(|(.., place)| place).collect()
}

fn applies(kernel: &Kernel, mutation: Mutation, body: Region, inst: Inst, credited: bool) -> bool {
    let op = &kernel.insts[inst].op;
    let waits = matches!(op, Op::Wait { x, .. } if kernel.as_const(*x).is_none_or(|c| c.bits > 0));
    match mutation {
        Mutation::DropWait | Mutation::AcquireToRelaxed => waits && !in_drain(kernel, body, inst),
        Mutation::DropCreditWait | Mutation::OffByOneCredit => waits && credited && !in_drain(kernel, body, inst),
        Mutation::ReusedSlot => {
            waits && credited && !in_drain(kernel, body, inst) && sibling(kernel, whole(kernel, inst), true).is_some()
        }
        Mutation::SignalBeforePut => is_signal(op) && sibling(kernel, inst, false).is_some(),
        Mutation::ReleaseToRelaxed => is_signal(op) && follows_put(kernel, body, inst) == Some(true),
        Mutation::WrongSlot => matches!(op, Op::Signal { .. } | Op::SignalCredit { .. }),
        Mutation::StaleStart => {
            let top = kernel.regions[body].contains(&inst);
            matches!(op, Op::Store { at, mask: None, .. } if top && is_counter(kernel, at.base))
        }
        Mutation::MissingBarrier => feeds_next(kernel, inst),
        Mutation::PutTooFar => match op {
            Op::Put { at, .. } => matches!(at.base, Base::Param(_)),
            Op::BulkCopy { dst, .. } => matches!(dst.base, Base::Param(_)),
            Op::PacketPut { .. } => true,
            Op::Post { span, .. } => span.is_some(),
            _ => false,
        },
        Mutation::ReadyOfBlock0 => waits && !credited && sibling(kernel, inst, true).is_some(),
        Mutation::NoDrain => is_drain(kernel, inst),
        Mutation::SharedTail => (is_signal(op) || posts::is_delivery(op)) && copies(kernel, body) > 1,
        Mutation::BulkBeforeCompletion => matches!(op, Op::BulkWait { done: BulkDone::Complete, .. }),
        Mutation::MissingProxyFence => matches!(op, Op::ProxyFence),
        Mutation::FlagsNotCleared => clears(kernel, inst),
        Mutation::NoticeBeforeData | Mutation::PartsOffByOne => posts::is_delivery(op),
        Mutation::PostBeforePut => posts::filler(kernel, inst).is_some(),
        Mutation::OutboxReused => {
            waits && !in_drain(kernel, body, inst) && posts::refill(kernel, whole(kernel, inst)).is_some()
        }
        Mutation::OvertakingSignal => posts::covers_posts(kernel, inst),
        Mutation::EarlyFlush => posts::is_flush(op),
        Mutation::UnheldNotice => posts::is_second(kernel, inst),
        Mutation::WrongLine => matches!(op, Op::Post { notice: Some(_), .. }),
        Mutation::CounterReset | Mutation::SwappedPeers | Mutation::ReusedFlag => false,
    }
}

/// A signal by a store, or a posted one without bytes.
fn is_signal(op: &Op) -> bool {
    matches!(op, Op::Signal { .. }) || posts::is_signal(op)
}

fn kind(op: &Op) -> &'static str {
    match op {
        Op::Wait { .. } => "wait",
        Op::Signal { .. } => "signal",
        Op::SignalCredit { .. } => "credit",
        Op::Post { span: Some(_), .. } => "post",
        Op::Post { notice: Some(Notice { kind: NoticeKind::Credit, .. }), .. } => "posted credit",
        Op::Post { notice: Some(Notice { kind: NoticeKind::Flush, .. }), .. } => "flush",
        Op::Post { .. } => "posted signal",
        _ => "other",
    }
}

fn uses(plan: &Plan, is: impl Fn(&Op) -> bool) -> bool {
    let mut found = false;
    for job in plan.launches.iter().flatten() {
        each_inst(&job.kernel, |_, inst| found |= is(&job.kernel.insts[inst].op));
    }
    found
}

/// Every instruction that a role reaches, with the body of its role.
pub(super) fn each_inst(kernel: &Kernel, mut f: impl FnMut(Region, Inst)) {
    for role in kernel.roles.values() {
        kernel.walk(role.body, &mut |inst| f(role.body, inst));
    }
}

fn copies(kernel: &Kernel, body: Region) -> u32 {
    kernel.roles.values().find(|role| role.body == body).map_or(1, |role| role.copies)
}

/// An instruction, or the branches that contain nothing but it: a sender waits for a slot only if it has been used
/// before, and for several together.
pub(super) fn whole(kernel: &Kernel, inst: Inst) -> Inst {
    let is_plain = |other: &Inst| *other == inst || kernel.insts[*other].op.regions().is_empty();
    let around = |outer: &Inst| match kernel.insts[*outer].op {
        Op::If { then, otherwise, .. } => {
            let insts = &kernel.regions[then];
            insts.contains(&inst) && insts.iter().all(is_plain) && kernel.regions[otherwise].is_empty()
        }
        _ => false,
    };
    let outer = kernel.regions.values().flatten().copied().find(|outer| around(outer));
    outer.map_or(inst, |outer| whole(kernel, outer))
}

/// The nearest instruction of the same region that writes bytes for a peer: after a wait, or before a signal.
pub(super) fn sibling(kernel: &Kernel, inst: Inst, after: bool) -> Option<Inst> {
    let insts = kernel.regions.values().find(|insts| insts.contains(&inst))?;
    let place = insts.iter().position(|&other| other == inst)?;
    if after {
        insts[place + 1..].iter().copied().find(|&other| puts(kernel, other) || posts_bytes(kernel, other))
    } else {
        insts[..place].iter().rev().copied().find(|&other| is_told(kernel, inst, other))
    }
}

/// True if an instruction somewhere in a region has bytes written for a peer before it; `None` if it is not there.
fn follows_put(kernel: &Kernel, region: Region, inst: Inst) -> Option<bool> {
    let mut put = false;
    for &other in &kernel.regions[region] {
        if other == inst {
            return Some(put);
        }
        let inner = kernel.insts[other].op.regions();
        if let Some(before) = inner.into_iter().find_map(|region| follows_put(kernel, region, inst)) {
            return Some(put || before);
        }
        put |= is_told(kernel, inst, other);
    }
    None
}

/// True if `other` writes bytes that a signal tells a peer of.
fn is_told(kernel: &Kernel, signal: Inst, other: Inst) -> bool {
    match posts::is_signal(&kernel.insts[signal].op) {
        true => posts::needs_signal(kernel, other),
        false => puts(kernel, other),
    }
}

fn puts(kernel: &Kernel, inst: Inst) -> bool {
    any(kernel, inst, &|op| match op {
        Op::Put { at, .. } | Op::PacketPut { at, .. } => matches!(at.base, Base::Param(_)),
        Op::BulkCopy { dst, .. } => matches!(dst.base, Base::Param(_)),
        _ => false,
    })
}

fn posts_bytes(kernel: &Kernel, inst: Inst) -> bool {
    any(kernel, inst, &|op| matches!(op, Op::Post { span: Some(_), .. }))
}

pub(super) fn any(kernel: &Kernel, inst: Inst, is: &dyn Fn(&Op) -> bool) -> bool {
    let mut found = is(&kernel.insts[inst].op);
    for region in kernel.insts[inst].op.regions() {
        kernel.walk(region, &mut |inner| found |= is(&kernel.insts[inner].op));
    }
    found
}

/// A loop in a branch that only waits: the drain after a change of geometry.
fn is_drain(kernel: &Kernel, inst: Inst) -> bool {
    matches!(kernel.insts[inst].op, Op::For { .. })
        && any(kernel, inst, &|op| matches!(op, Op::Wait { .. }))
        && !any(kernel, inst, &|op| {
            matches!(op, Op::Each { .. } | Op::Signal { .. } | Op::SignalCredit { .. } | Op::Post { .. })
        })
}

fn in_drain(kernel: &Kernel, body: Region, inst: Inst) -> bool {
    let mut found = false;
    kernel.walk(body, &mut |outer| {
        if is_drain(kernel, outer) {
            for region in kernel.insts[outer].op.regions() {
                kernel.walk(region, &mut |inner| found |= inner == inst);
            }
        }
    });
    found
}

/// A buffer of words that the kernel also loads outside of any `each`: counters kept across launches.
fn is_counter(kernel: &Kernel, base: Base) -> bool {
    if !matches!(kernel.base_type(base), Some(Type::U64 | Type::I64)) || !matches!(base, Base::Param(_)) {
        return false;
    }
    let mut loaded = false;
    each_inst(kernel, |_, inst| loaded |= matches!(&kernel.insts[inst].op, Op::Load { at, .. } if at.base == base));
    loaded
}

/// An `each` that writes what the next instruction, also an `each`, touches at other elements.
fn feeds_next(kernel: &Kernel, inst: Inst) -> bool {
    let Op::Each { body, .. } = &kernel.insts[inst].op else { return false };
    let Some(insts) = kernel.regions.values().find(|insts| insts.contains(&inst)) else { return false };
    let place = insts.iter().position(|&other| other == inst).unwrap_or(0);
    let next = insts[place + 1..].iter().find(|&&next| {
        let op = &kernel.insts[next].op;
        !op.is_pure() && !matches!(op, Op::ReadVar(_) | Op::WriteVar { .. })
    });
    let Some(Op::Each { body: after, .. }) = next.map(|&next| &kernel.insts[next].op) else { return false };
    let mut written = Vec::new();
    kernel.walk(*body, &mut |inner| {
        if let Op::Put { at, .. } | Op::Store { at, .. } = &kernel.insts[inner].op {
            written.push(at.base);
        }
    });
    let mut feeds = false;
    kernel.walk(*after, &mut |inner| {
        if let Op::Get { at, .. } | Op::Load { at, .. } = &kernel.insts[inner].op {
            feeds |= written.contains(&at.base);
        }
    });
    feeds
}

/// An `each` that only puts zeros into bytes of packets.
fn clears(kernel: &Kernel, inst: Inst) -> bool {
    let Op::Each { body, .. } = &kernel.insts[inst].op else { return false };
    let (mut zeros, mut others) = (Vec::new(), false);
    kernel.walk(*body, &mut |inner| match &kernel.insts[inner].op {
        Op::Put { at, x, .. } if kernel.as_const(*x).is_some_and(|c| c.bits == 0) => zeros.push(at.base),
        op => others |= !op.is_pure(),
    });
    let mut packets = false;
    each_inst(kernel, |_, other| {
        if let Op::PacketPut { at, .. } | Op::PacketGet { at, .. } = &kernel.insts[other].op {
            packets |= zeros.contains(&at.base);
        }
    });
    packets && !others
}
