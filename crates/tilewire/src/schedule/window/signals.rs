//! Signals, counters, the flush and the barrier of windows.

use super::{Bound, There, WINDOW_IDS, WindowOps, value};
use crate::hook::{IntoIndex, Known, RoleCtx, Value};
use crate::ir::SourceLine;
use crate::transport::layout::LINE;

/// The counts in the tally line of a rank and an id.
#[derive(Clone, Copy)]
pub(super) enum Tally {
    /// Signals to the rank.
    Sent,
    /// Signals from the rank that were waited for.
    Taken,
    /// Flushes of posts to the rank.
    Flushed,
}

/// Counts every signal as taken that has come from a peer to a set of lines which a new window gets: the window before
/// may have been signalled more often than it waited. `signals` are the lines of the peer's signals here, `tallies`
/// this rank's counts for the peer. Nothing may be on its way.
pub(crate) fn take_all_signals(signals: &[u8], tallies: &mut [u8]) {
    let taken = Tally::Taken as usize * size_of::<u64>();
    for (line, tally) in signals.chunks(LINE).zip(tallies.chunks_mut(LINE)) {
        tally[taken..][..size_of::<u64>()].copy_from_slice(&line[..size_of::<u64>()]);
    }
}

/// One of the ids of a window, checked.
#[derive(Clone, Copy)]
pub(super) struct Id<'t>(pub Known<'t>);

impl<'t> WindowOps<'t> {
    /// Raises signal `id` of a peer by one, after everything that this role copy did before: the peer sees it.
    #[track_caller]
    pub fn signal(&self, r: &RoleCtx<'t>, peer: impl IntoIndex<'t>, id: impl IntoIndex<'t>) {
        let at = SourceLine::caller();
        let (peer, id) = (self.peer(peer, &at), self.id(id, &at));
        self.on(at, &|bound| {
            let id = bound.checked_id(r, id);
            bound.check_rank(r, peer);
            bound.reach(r, peer, &|there| bound.raise(r, peer, id, there));
        });
    }

    /// Waits for the next signal `id` from a rank: the first that no earlier wait has taken, in this launch or before.
    /// Then everything is visible that the source did before it.
    #[track_caller]
    pub fn wait_signal_from(&self, r: &RoleCtx<'t>, source: impl IntoIndex<'t>, id: impl IntoIndex<'t>) {
        let at = SourceLine::caller();
        let (source, id) = (self.peer(source, &at), self.id(id, &at));
        self.on(at, &|bound| {
            let id = bound.checked_id(r, id);
            bound.check_rank(r, source);
            let next = bound.tally(r, source, id, Tally::Taken) + 1;
            r.wait(bound.signals.slot(source, id.0), next);
            bound.set_tally(r, source, id, Tally::Taken, next);
        });
    }

    /// Waits until the sources of all earlier puts to a peer that raised counter `id` have been read: they may be
    /// overwritten. Returns immediately if the peer is near, because such a put has read its source when it ends.
    #[track_caller]
    pub fn wait_counter(&self, r: &RoleCtx<'t>, peer: impl IntoIndex<'t>, id: impl IntoIndex<'t>) {
        let at = SourceLine::caller();
        let (peer, id) = (self.peer(peer, &at), self.id(id, &at));
        self.on(at, &|bound| {
            if bound.far.is_none() {
                return;
            }
            let id = bound.checked_id(r, id);
            bound.check_rank(r, peer);
            bound.reach(r, peer, &|there| bound.wait_counted(r, peer, id, there));
        });
    }

    /// Waits until all earlier puts of this role copy are in their receivers' windows. It uses counter `id` of every
    /// far peer. A kernel that is to read the bytes still needs a signal, from this rank or from one that this rank
    /// has told.
    #[track_caller]
    pub fn flush(&self, r: &RoleCtx<'t>, id: impl IntoIndex<'t>) {
        let at = SourceLine::caller();
        let id = self.id(id, &at);
        self.on(at, &|bound| {
            let far = (0..bound.found.len()).filter(|&rank| bound.found[rank].group.is_none());
            let far: Vec<_> = far.map(|rank| (Known::Number(rank as i64), bound.there(bound.found[rank]))).collect();
            if far.is_empty() {
                return;
            }
            let id = bound.checked_id(r, id);
            far.iter().for_each(|(peer, there)| bound.count(r, *peer, id, *there));
            far.iter().for_each(|(peer, there)| bound.wait_counted(r, *peer, id, *there));
        });
    }

    /// Waits until every rank has come to its barrier with the same `id`. One role copy of every rank calls it. It sees
    /// everything that the others did before, including their puts.
    #[track_caller]
    pub fn barrier(&self, r: &RoleCtx<'t>, id: impl IntoIndex<'t>) {
        let at = SourceLine::caller();
        let id = self.id(id, &at);
        self.on(at, &|bound| {
            let id = bound.checked_id(r, id);
            let others = || (0..bound.found.len()).filter(|&rank| rank != bound.rank);
            for rank in others() {
                bound.raise(r, Known::Number(rank as i64), id, bound.there(bound.found[rank]));
            }
            for rank in others() {
                let source = Known::Number(rank as i64);
                let next = bound.tally(r, source, id, Tally::Taken) + 1;
                r.wait(bound.signals.slot(source, id.0), next);
                bound.set_tally(r, source, id, Tally::Taken, next);
            }
        });
    }

    pub(super) fn peer(&self, peer: impl IntoIndex<'t>, at: &SourceLine) -> Known<'t> {
        self.bound.lines.known("the rank of a window operation", peer, at)
    }

    pub(super) fn id(&self, id: impl IntoIndex<'t>, at: &SourceLine) -> Id<'t> {
        Id(self.bound.lines.known("the id of a window operation", id, at))
    }

    /// Everything that `body` traces gets the caller's line.
    pub(super) fn on(&self, at: SourceLine, body: &dyn Fn(&Bound<'t>)) {
        self.bound.lines.on_behalf_of(at, &mut || body(&self.bound));
    }
}

impl<'t> Bound<'t> {
    /// An id that is known to exist. One that is a value is required to.
    ///
    /// # Panics
    /// If it is known not to exist.
    pub(super) fn checked_id(&self, r: &RoleCtx<'t>, id: Id<'t>) -> Id<'t> {
        match id.0 {
            Known::Number(number) => {
                assert!(
                    (0..WINDOW_IDS as i64).contains(&number),
                    "id {number}: a window has ids 0 to {}",
                    WINDOW_IDS - 1
                );
            }
            Known::Value(number) => r.require(number.cast::<u64>().lt(WINDOW_IDS as u64)),
        }
        id
    }

    /// Raises a signal of a peer.
    pub(super) fn raise(&self, r: &RoleCtx<'t>, peer: Known<'t>, id: Id<'t>, there: There<'t>) {
        let next = self.next(r, peer, id, Tally::Sent);
        match there {
            There::Near { signals, among, .. } => r.signal(signals.slot(among, id.0), next),
            There::Far { far, .. } => r.post_signal(far.queue, peer, value(r, id.0) + far.signal, next),
        }
    }

    /// Lets a counter tell when all earlier posts to a far peer have been read.
    pub(super) fn count(&self, r: &RoleCtx<'t>, peer: Known<'t>, id: Id<'t>, there: There<'t>) {
        if let There::Far { far, counter, .. } = there {
            let next = self.next(r, peer, id, Tally::Flushed);
            r.post_flush(far.queue, peer, value(r, counter) + value(r, id.0), next);
        }
    }

    /// Waits for a counter.
    pub(super) fn wait_counted(&self, r: &RoleCtx<'t>, peer: Known<'t>, id: Id<'t>, there: There<'t>) {
        if let There::Far { far, among, .. } = there {
            r.wait(far.counters.slot(among, id.0), self.tally(r, peer, id, Tally::Flushed));
        }
    }

    /// The next count, which is kept.
    pub(super) fn next(&self, r: &RoleCtx<'t>, peer: Known<'t>, id: Id<'t>, tally: Tally) -> Value<'t, u64> {
        let next = self.tally(r, peer, id, tally) + 1;
        self.set_tally(r, peer, id, tally, next);
        next
    }

    fn tally(&self, r: &RoleCtx<'t>, peer: Known<'t>, id: Id<'t>, tally: Tally) -> Value<'t, u64> {
        self.tallies.bank(peer).load(word(r, id, tally))
    }

    fn set_tally(&self, r: &RoleCtx<'t>, peer: Known<'t>, id: Id<'t>, tally: Tally, x: Value<'t, u64>) {
        self.tallies.bank(peer).store(word(r, id, tally), x);
    }
}

fn word<'t>(r: &RoleCtx<'t>, id: Id<'t>, tally: Tally) -> Value<'t, i64> {
    value(r, id.0) * (LINE / 8) as i64 + tally as i64
}
