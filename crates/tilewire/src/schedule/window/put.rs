//! Puts into windows.

use super::copy::{Place, copy};
use super::signals::{Id, Tally};
use super::{Bound, MOST_COPIES, MOST_ROLES, Source, There, WINDOW_IDS, WORD, WindowOps, value};
use crate::hook::{IntoIndex, Known, RoleCtx, Value};
use crate::ir::SourceLine;

/// A put that has a destination, and no source yet.
#[must_use = "a put needs a source"]
pub struct PutTo<'t> {
    ops: WindowOps<'t>,
    peer: Known<'t>,
    offset: Known<'t>,
}

/// A put of bytes into the window of a peer. Nothing happens before one of the last three methods is called.
#[must_use = "a put does nothing until put_block, put_block_direct or put_warp_chunked_direct is called"]
pub struct Put<'t> {
    ops: WindowOps<'t>,
    peer: Known<'t>,
    to: Known<'t>,
    source: Source<'t>,
    from: Known<'t>,
    bytes: Known<'t>,
    signal: Option<Id<'t>>,
    counter: Option<Id<'t>>,
}

impl<'t> PutTo<'t> {
    pub(super) fn new(ops: WindowOps<'t>, peer: Known<'t>, offset: Known<'t>) -> PutTo<'t> {
        PutTo { ops, peer, offset }
    }

    /// Puts `bytes` bytes of the source, from its byte `offset` on.
    #[track_caller]
    pub fn from(self, source: Source<'t>, offset: impl IntoIndex<'t>, bytes: impl IntoIndex<'t>) -> Put<'t> {
        let (at, lines) = (SourceLine::caller(), self.ops.bound.lines);
        let from = lines.known("the offset of a put's source", offset, &at);
        let bytes = lines.known("the bytes of a put", bytes, &at);
        let PutTo { ops, peer, offset: to } = self;
        Put { ops, peer, to, source, from, bytes, signal: None, counter: None }
    }
}

impl<'t> Put<'t> {
    /// Raises signal `id` of the peer by one, after the bytes.
    #[track_caller]
    pub fn signal(self, id: impl IntoIndex<'t>) -> Put<'t> {
        let id = self.ops.id(id, &SourceLine::caller());
        Put { signal: Some(id), ..self }
    }

    /// Lets [`wait_counter`](WindowOps::wait_counter) tell when the source may be overwritten.
    #[track_caller]
    pub fn counter(self, id: impl IntoIndex<'t>) -> Put<'t> {
        let id = self.ops.id(id, &SourceLine::caller());
        Put { counter: Some(id), ..self }
    }

    /// Puts the bytes by all lanes of this role copy, which have read the source when it returns: straight into a near
    /// window, and through an outbox to a far one. The outbox of a far peer belongs to the put's counter, so a put that
    /// may go to one needs a counter.
    ///
    /// # Panics
    /// If there are far peers, and no counter was given.
    #[track_caller]
    pub fn put_block(self, r: &RoleCtx<'t>) {
        self.run(r, &|put, there| match there {
            There::Near { .. } => {
                put.copy(r, there, Part::whole(r, put));
                put.raise(r, there);
            }
            There::Far { .. } => put.stage(r, there),
        });
    }

    /// Puts the bytes in one hop: by vector stores of all lanes of this role copy into a near window, and by one post
    /// of the source to a far one. The source of a post must not change until the put's counter says so, or, without
    /// one, until the peer has told that it has the bytes.
    ///
    /// # Panics
    /// If there are far peers, and posts cannot read the source.
    #[track_caller]
    pub fn put_block_direct(self, r: &RoleCtx<'t>) {
        self.run(r, &|put, there| match there {
            There::Near { .. } => {
                put.copy(r, there, Part::whole(r, put));
                put.raise(r, there);
            }
            There::Far { .. } => put.post(r, there),
        });
    }

    /// As [`put_block_direct`](Self::put_block_direct), by all copies of a role together: copy `g` of `G` stores the
    /// chunks `g`, `g + G`, … of `chunk` bytes each, and no barrier is between them. All copies must call it. The first
    /// copy posts to a far peer. If the put has a signal or a counter, the first copy also waits until all copies have
    /// stored their chunks. Then it raises the signal, and may overwrite the source. Any other signal of a copy covers
    /// only what that copy has stored. Use a multiple of 16 for `chunk`.
    ///
    /// # Panics
    /// As [`put_block_direct`](Self::put_block_direct).
    #[track_caller]
    pub fn put_warp_chunked_direct(self, r: &RoleCtx<'t>, chunk: impl IntoIndex<'t>) {
        let chunk = self.ops.bound.lines.known("the size of a chunk", chunk, &SourceLine::caller());
        self.run(r, &|put, there| match there {
            There::Near { .. } => {
                let (chunk, bytes) = (value(r, chunk), value(r, put.bytes));
                r.require(chunk.gt(0));
                r.for_turns((bytes + chunk - 1) / chunk, |turn| {
                    let first = turn * chunk;
                    put.copy(r, there, Part { first, bytes: (bytes - first).min(chunk) });
                });
                // The first copy may then overwrite what the others have read.
                if put.signal.is_some() || put.counter.is_some() {
                    put.ops.bound.meet(r, &|| put.raise(r, there));
                }
            }
            There::Far { .. } => r.if_(r.copy().eq(0), || put.post(r, there)),
        });
    }

    /// Checks the put, and runs `body` for the way in which the peer is reached.
    #[track_caller]
    fn run(self, r: &RoleCtx<'t>, body: &dyn Fn(&Put<'t>, There<'t>)) {
        let put = &self;
        self.ops.on(SourceLine::caller(), &|bound| {
            let Put { peer, to, source, from, bytes, signal, counter, .. } = *put;
            [signal, counter].into_iter().flatten().for_each(|id| _ = bound.checked_id(r, id));
            bound.check_rank(r, peer);
            r.require_inside(peer, to, bytes, bound.size(peer));
            r.require_inside(bound.rank, from, bytes, source.bytes.len());
            bound.reach(r, peer, &|there| body(put, there));
        });
    }

    /// Stores a part of the bytes into a near window.
    fn copy(&self, r: &RoleCtx<'t>, there: There<'t>, part: Part<'t>) {
        let There::Near { window, bank, .. } = there else { unreachable!("a far window takes no stores") };
        let to = Place { region: window, bank, offset: value(r, self.to) + part.first };
        copy(r, to, self.place(r, part.first), part.bytes);
    }

    /// Raises the signal, if there is one.
    fn raise(&self, r: &RoleCtx<'t>, there: There<'t>) {
        if let Some(id) = self.signal {
            self.ops.bound.raise(r, self.peer, id, there);
        }
    }

    /// Posts the source to a far peer.
    fn post(&self, r: &RoleCtx<'t>, there: There<'t>) {
        let There::Far { far, .. } = there else { unreachable!("a near window takes no posts") };
        let (bound, source) = (&self.ops.bound, self.source.bytes.bank(0));
        assert!(self.source.is_registered, "posts cannot read this source: use put_block, or memory of the transport");
        let (source, to, bytes) = (source.part(self.from, 1), value(r, self.to), value(r, self.bytes));
        match self.signal {
            Some(id) => {
                let next = bound.next(r, self.peer, id, Tally::Sent);
                r.deliver(far.queue, self.peer, &[(source, to, bytes)], value(r, id.0) + far.signal, next);
            }
            None => r.post(far.queue, self.peer, source, to, bytes),
        }
        if let Some(id) = self.counter {
            bound.count(r, self.peer, id, there);
        }
    }

    /// Puts the bytes through an outbox, piece by piece.
    fn stage(&self, r: &RoleCtx<'t>, there: There<'t>) {
        let There::Far { far, among, .. } = there else { unreachable!("a near window takes no posts") };
        let Some(id) = self.counter else {
            panic!("put_block to a rank that is reached by posts needs a counter: its outbox belongs to it");
        };
        let (bound, bytes) = (&self.ops.bound, value(r, self.bytes));
        let slice = (value(r, among) * WINDOW_IDS as i64 + value(r, id.0)) * far.piece;
        r.for_step(0, bytes, far.piece, |first| {
            let part = Part { first, bytes: (bytes - first).min(far.piece) };
            bound.wait_counted(r, self.peer, id, there);
            let to = Place { region: far.outbox, bank: Known::Number(0), offset: slice };
            copy(r, to, self.place(r, first), part.bytes);
            let outbox = far.outbox.bank(0).part(slice, 1);
            r.post(far.queue, self.peer, outbox, value(r, self.to) + first, part.bytes);
            bound.count(r, self.peer, id, there);
        });
        self.raise(r, there);
    }

    /// A place in the source.
    fn place(&self, r: &RoleCtx<'t>, first: Value<'t, i64>) -> Place<'t> {
        Place { region: self.source.bytes, bank: Known::Number(0), offset: value(r, self.from) + first }
    }
}

/// Bytes of a put.
#[derive(Clone, Copy)]
struct Part<'t> {
    first: Value<'t, i64>,
    bytes: Value<'t, i64>,
}

impl<'t> Part<'t> {
    fn whole(r: &RoleCtx<'t>, put: &Put<'t>) -> Part<'t> {
        Part { first: r.constant(0i64), bytes: value(r, put.bytes) }
    }
}

impl<'t> Bound<'t> {
    /// Runs `last` in the first copy of a role, when all copies have come here.
    fn meet(&self, r: &RoleCtx<'t>, last: &dyn Fn()) {
        let Some(Meeting { first, next }) = self.meeting(r) else { return last() };
        r.if_else(
            r.copy().eq(0),
            || {
                r.for_((1, r.copies()), |copy| r.wait(self.meeting.slot(0, first + copy), next));
                last();
            },
            || r.signal(self.meeting.slot(0, first + r.copy()), next),
        );
    }

    /// Where the copies of a role meet next; `None` if it has only one.
    fn meeting(&self, r: &RoleCtx<'t>) -> Option<Meeting<'t>> {
        let (role, copies) = (r.role_index(), r.declared_copies() as usize);
        if copies == 1 {
            return None;
        }
        assert!(copies <= MOST_COPIES, "{copies} copies of a role: at most {MOST_COPIES} can meet");
        assert!(role < MOST_ROLES, "copies can meet in the first {MOST_ROLES} roles of a kernel");
        let block = r.block();
        r.require(block.lt(self.blocks as i64));
        let first = (block * MOST_ROLES as i64 + role as i64) * MOST_COPIES as i64;
        let count = (first + r.copy()) * (WORD / 8) as i64;
        let next = self.met.load(count) + 1;
        self.met.store(count, next);
        Some(Meeting { first, next })
    }
}

/// The words where the copies of a role meet, and the value that they then have.
struct Meeting<'t> {
    first: Value<'t, i64>,
    next: Value<'t, u64>,
}

impl<'t> WindowOps<'t> {
    /// Waits until all copies of this role have come here, and sees what they did before. For a role whose first copy
    /// waits for a signal on behalf of all. All copies call it.
    #[track_caller]
    pub fn meet(&self, r: &RoleCtx<'t>) {
        self.on(SourceLine::caller(), &|bound| {
            let Some(Meeting { first, next }) = bound.meeting(r) else { return };
            let word = |copy: Value<'t, i64>| bound.meeting.slot(0, first + copy);
            r.if_else(
                r.copy().eq(0),
                || {
                    r.for_((1, r.copies()), |copy| r.wait(word(copy), next));
                    // An engine may run one copy alone. Nobody waits for it then.
                    r.if_(r.copies().gt(1), || r.signal(bound.meeting.slot(0, first), next));
                },
                || {
                    r.signal(word(r.copy()), next);
                    r.wait(bound.meeting.slot(0, first), next);
                },
            );
        });
    }

    /// Copies bytes of a source into this rank's own window, by all lanes of this role copy.
    #[track_caller]
    pub fn self_copy(
        &self,
        r: &RoleCtx<'t>,
        offset: impl IntoIndex<'t>,
        source: Source<'t>,
        from: impl IntoIndex<'t>,
        bytes: impl IntoIndex<'t>,
    ) {
        self.to(self.bound.rank, offset).from(source, from, bytes).put_block_direct(r);
    }
}
