//! Posts: the leader appends a descriptor to the ring of a network proxy.
//!
//! ```text
//!   barrier, then the leader alone:
//!     ticket := tickets++                             device memory: a round trip to the host would cost a microsecond
//!     until ticket − seen < capacity: seen := taken   `seen` in device memory is a value that the host's `taken` had
//!     entry[ticket] := descriptor                     host memory
//!     entry[ticket].turn := ticket + 1                st.release.sys
//!   barrier, at which all lanes leave if the leader gave up
//! ```
//! **What the proxy sees.** The lanes' accesses happen before the first barrier, the barrier before the release, and
//! release is cumulative. So a proxy that acquires the turn sees the whole descriptor and the bytes that it names. The
//! proxy may then ask a NIC to read GPU memory. That the NIC finds the bytes there is an assumption outside the formal
//! PTX model, as for every peer that is not a thread.
//!
//! **What is overwritten.** The proxy's reads of an entry come before its release of `taken`. A leader reads `taken`
//! with acquire at system scope, and passes it on in `seen` with release at device scope, which other leaders acquire.
//! Causality is transitive across scopes, so the reads come before the stores, whichever thread read `taken`. `seen`
//! may go back, as leaders write it in any order. Any earlier value of `taken` is safe: it only makes a leader look
//! again.
//!
//! **Who may post.** Tickets and `seen` have device scope. Kernels of another device, or of the CPU engine, must not
//! share the ring.
//!
//! **Order.** A leader's tickets grow, since all atomics at one address are in one order. If one leader waited for a
//! signal of another, its later tickets are larger than the other's tickets before the signal.
//!
//! **Giving up.** A ticket is taken before there is room. If the wait for room gives up, or is aborted, the leader
//! writes nothing, because the entry still belongs to the descriptor of the previous lap. The proxy stops at this
//! entry. The launch has failed by then, and its transport is broken, so the ring cannot be used again.
//!
//! Only the leader waits for the ring, and leaders are in different warps. The holder of the lowest unpublished ticket
//! waits only for the proxy, so leaders cannot wait for each other in a cycle.

use super::abi;
use super::role::RoleCode;
use super::text::{Hex, Reg};
use crate::ir::matching::COUNT_SHIFT;
use crate::ir::ring::{self, ENTRIES, ENTRY, SEEN, TAKEN, TICKETS};
use crate::ir::{Base, Entity, Inst, Notice, NoticeKind, ParamId, PostSpan, Value};

impl RoleCode<'_> {
    pub fn post(&mut self, inst: Inst, queue: ParamId, peer: Value, span: Option<&PostSpan>, notice: Option<&Notice>) {
        self.check_span(inst, span);
        let words = self.posted_words(queue, peer, span, notice);
        let place = self.params.offset(queue);
        let [entries, tickets, capacity] = [0, 8, 16].map(|field| self.argument(place + field));
        self.barrier_if_needed();
        let (done, room) = (self.t.label(), self.t.label());
        self.t.branch_unless(self.fixed.leader, done);
        let ticket = self.t.d("atom.relaxed.gpu.global.add.u64", &[&format_args!("[{tickets}+{TICKETS}]"), &1]);
        let seen = self.t.d("ld.acquire.gpu.global.u64", &[&format_args!("[{tickets}+{SEEN}]")]);
        let used = self.t.d("sub.u64", &[&ticket, &seen]);
        let is_room = self.t.p("setp.lt.u64", &[&used, &capacity]);
        self.t.branch_if(is_room, room);
        self.wait_for_room(inst, queue, (entries, capacity), (ticket, seen));
        self.t.branch_if(self.fixed.failed, done);
        self.t.line(format_args!("st.release.gpu.global.u64 [{tickets}+{SEEN}], {seen};"));
        self.t.at(room);
        let last = self.t.d("sub.u64", &[&capacity, &1]);
        let number = self.t.d("and.b64", &[&ticket, &last]);
        let entry = self.t.d("mad.lo.u64", &[&number, &ENTRY, &entries]);
        for (k, word) in words.iter().enumerate() {
            let at = ENTRIES + 8 * (k + 1);
            self.t.line(format_args!("st.relaxed.sys.global.u64 [{entry}+{at}], {word};"));
        }
        let turn = self.t.d("add.u64", &[&ticket, &1]);
        self.t.line(format_args!("st.release.sys.global.u64 [{entry}+{ENTRIES}], {turn};"));
        self.t.at(done);
        self.progress();
        self.leave_if_failed();
    }

    /// If bounds are checked, all lanes leave unless the first and the last byte of the span are inside. Nothing is
    /// read of no bytes, so these may begin anywhere.
    fn check_span(&mut self, inst: Inst, span: Option<&PostSpan>) {
        let Some(PostSpan { src, bytes, .. }) = span.filter(|_| self.options.bounds) else { return };
        let (first, bytes) = (self.value(src.index), self.value(*bytes));
        let any = self.t.p("setp.ne.s64", &[&bytes, &0]);
        let end = self.t.d("add.s64", &[&first, &bytes]);
        let last = self.t.d("sub.s64", &[&end, &1]);
        for index in [first, last] {
            self.bounded(inst, src, index, (1, 1), Some(any));
        }
        self.leave_if_outside();
    }

    /// The words of the descriptor after its turn.
    fn posted_words(
        &mut self,
        queue: ParamId,
        peer: Value,
        span: Option<&PostSpan>,
        notice: Option<&Notice>,
    ) -> [Reg; ring::WORDS] {
        let parts = notice.map(|notice| (notice.parts, notice.kind));
        let known = self.t.d_const(ring::head(0, span.is_some(), parts));
        let target = self.argument(self.params.offset(queue) + 24);
        let head = self.t.d("or.b64", &[&known, &target]);
        // A peer number that is too large must not change the other fields.
        let peer = self.value(peer);
        let peer = self.t.d("min.u64", &[&peer, &Hex(u32::MAX.into())]);
        let head = self.t.d("or.b64", &[&head, &peer]);
        let [source, destination, bytes] = match span {
            Some(PostSpan { src, dst, bytes }) => {
                let Base::Param(param) = src.base else { unreachable!("the verifier wants a parameter") };
                let (bank, index) = (self.bank(param, src.bank), self.value(src.index));
                [self.t.d("add.s64", &[&bank, &index]), self.value(*dst), self.value(*bytes)]
            }
            None => [0; 3].map(|zero| self.t.d_const(zero)),
        };
        let [slot, value] = match notice {
            Some(Notice { slot, x, kind, .. }) => {
                let (slot, count) = (self.value(*slot), self.value(*x));
                match self.stamp(queue, None).filter(|_| *kind == NoticeKind::Data) {
                    Some(stamp) => {
                        let high = self.t.d("shl.b64", &[&count, &COUNT_SHIFT]);
                        [slot, self.t.d("or.b64", &[&high, &stamp])]
                    }
                    None => [slot, count],
                }
            }
            None => [0; 2].map(|zero| self.t.d_const(zero)),
        };
        [head, source, destination, bytes, slot, value]
    }

    /// Reads `taken` until the ticket's entry is free, or gives up. Leaves the last value of `taken` in `seen`.
    fn wait_for_room(
        &mut self,
        inst: Inst,
        queue: ParamId,
        (entries, capacity): (Reg, Reg),
        (ticket, seen): (Reg, Reg),
    ) {
        let again = self.t.label();
        let started = self.t.d("mov.u64", &[&"%globaltimer"]);
        let polls = self.t.r_const(0);
        let param = self.t.d_const(queue.index() as u64);
        let mark = self.stall_mark(&[param]);
        let look = |code: &mut Self| {
            code.t.op("ld.acquire.sys.global.u64", seen, &[&format_args!("[{entries}+{TAKEN}]")]);
            let used = code.t.d("sub.u64", &[&ticket, &seen]);
            let is_room = code.t.p("setp.lt.u64", &[&used, &capacity]);
            code.t.branch_if(is_room, mark.lifted);
        };
        self.t.at(again);
        look(self);
        let over = self.poll_rarely(polls, started, again, &mark, |_| {});
        // Once more: the thread may have been stopped for a long time after its last look.
        look(self);
        // As with a slot: what `taken` must reach, and what it is.
        let least = self.t.d("sub.u64", &[&ticket, &capacity]);
        let least = self.t.d("add.u64", &[&least, &1]);
        let what = self.awaited(inst, (queue.index(), None), ticket, least, seen);
        self.give_up(what, &abi::GAVE_UP, over);
        self.lift(mark);
    }
}
