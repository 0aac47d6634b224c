//! Communication between ranks: banked memory, signal slots, packets, bulk copies and posts to a network proxy.
//!
//! Every op here is the op of the same name in [`crate::ir::Op`], which states its ordering.

use super::error::MisuseKind;
use super::legs::Holds;
use super::role::RoleCtx;
use super::trace::{Brand, Trace};
use super::value::{AnyValue, IntoIndex, IntoValue, Known, Value};
use super::view::{Touch, View};
use crate::ir::ring::MAX_PARTS;
use crate::ir::scalar::Element;
use crate::ir::{
    self, Access, Base, BulkDone, Mask, Notice, NoticeKind, Op, ParamId, Place, PostSpan, SourceLine, Type,
};
use std::marker::PhantomData;

/// Typed memory in several banks, one per peer.
pub struct Banks<'t, T> {
    view: View<'t, T>,
    banks: usize,
}

impl<T> Clone for Banks<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Banks<'_, T> {}

impl<'t, T: Element> Banks<'t, T> {
    pub(super) fn new(trace: &'t Trace, param: ParamId, banks: usize, len: usize, access: Access) -> Self {
        Banks { view: View::of(trace, Base::Param(param), len, None, access), banks }
    }

    /// A view as the only bank.
    pub(super) fn of(view: View<'t, T>) -> Self {
        Banks { view, banks: 1 }
    }

    /// The memory of one bank; `bank` is uniform.
    #[track_caller]
    pub fn bank(&self, bank: impl IntoIndex<'t>) -> View<'t, T> {
        self.view.in_bank(uniform_bank(self.view.trace, self.banks, bank, &SourceLine::caller()))
    }

    /// Number of banks.
    pub fn banks(&self) -> usize {
        self.banks
    }

    /// Elements in each bank.
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// True if a bank has no element.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }
}

/// Bytes that peers write: `put` into a peer's bank, `get` from one. Offsets count bytes and are multiples of the
/// value's size.
///
/// ```
/// use tilewire::{Memory, Tensor, kernel};
/// let (x, y) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(64));
/// let (staging, tails) = ([Memory::zeroed(256), Memory::zeroed(256)], [Memory::zeroed(128), Memory::zeroed(128)]);
/// let traced = kernel("exchange", |k| {
///     let (x, y) = (k.input(&x), k.output(&y));
///     let (region, tail) = (k.region("staging", &staging), k.slots("tail", &tails, 128));
///     k.main(|r| {
///         let peer = 1 - r.rank();
///         r.each(64, |i| region.put(peer, i * 4, x.load(i)));
///         r.signal(tail.slot(peer, 0), 1);
///         r.wait(tail.slot(r.rank(), 0), 1);
///         r.each(64, |i| y.store(i, region.get::<f32>(r.rank(), i * 4)));
///     });
/// })?;
/// println!("{}", traced.kernel);
/// # Ok::<(), tilewire::BuildError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Region<'t> {
    bytes: Banks<'t, u8>,
}

impl<'t> Region<'t> {
    pub(super) fn new(bytes: Banks<'t, u8>) -> Self {
        Region { bytes }
    }

    pub(super) fn held_as(self, holds: Holds) -> Self {
        Region { bytes: Banks { view: self.bytes.view.held_as(holds), ..self.bytes } }
    }

    /// Number of banks.
    pub fn banks(&self) -> usize {
        self.bytes.banks()
    }

    /// Bytes in each bank.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if a bank has no byte.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// One bank as bytes, for bulk copies and posts.
    #[track_caller]
    pub fn bank(&self, bank: impl IntoIndex<'t>) -> View<'t, u8> {
        self.bytes.bank(bank)
    }

    /// Writes a value at a byte offset of a bank; its type is known only while tracing.
    #[track_caller]
    pub fn put_any(&self, bank: impl IntoIndex<'t>, offset: impl IntoIndex<'t>, x: AnyValue<'t>) {
        let (place, at) = self.place(bank, offset, Touch::Write);
        self.trace().emit(Op::Put { at: place, x: x.ir, mask: None }, &at);
    }

    /// As [`put_any`](Self::put_any), if `cond` holds.
    #[track_caller]
    pub fn put_any_if(
        &self,
        cond: Value<'t, bool>,
        bank: impl IntoIndex<'t>,
        offset: impl IntoIndex<'t>,
        x: AnyValue<'t>,
    ) {
        let (place, at) = self.place(bank, offset, Touch::WriteIf);
        self.trace().emit(Op::Put { at: place, x: x.ir, mask: Some(cond.ir) }, &at);
    }

    /// Reads a value of type `ty` at a byte offset of a bank.
    #[track_caller]
    pub fn get_any(&self, bank: impl IntoIndex<'t>, offset: impl IntoIndex<'t>, ty: Type) -> AnyValue<'t> {
        let (place, at) = self.place(bank, offset, Touch::Read);
        AnyValue::new(self.trace(), self.trace().raw(Op::Get { at: place, to: ty, mask: None }, &at))
    }

    /// Writes a value at a byte offset of a bank.
    #[track_caller]
    pub fn put<T: Element>(&self, bank: impl IntoIndex<'t>, offset: impl IntoIndex<'t>, x: impl IntoValue<'t, T>) {
        let (place, at) = self.place(bank, offset, Touch::Write);
        let x = x.into_ir(self.trace(), &at);
        self.trace().emit(Op::Put { at: place, x, mask: None }, &at);
    }

    /// Writes a value if `cond` holds.
    #[track_caller]
    pub fn put_if<T: Element>(
        &self,
        cond: impl IntoValue<'t, bool>,
        bank: impl IntoIndex<'t>,
        offset: impl IntoIndex<'t>,
        x: impl IntoValue<'t, T>,
    ) {
        let (place, at) = self.place(bank, offset, Touch::WriteIf);
        let (mask, x) = (Some(cond.into_ir(self.trace(), &at)), x.into_ir(self.trace(), &at));
        self.trace().emit(Op::Put { at: place, x, mask }, &at);
    }

    /// Reads a value at a byte offset of a bank.
    #[track_caller]
    pub fn get<T: Element>(&self, bank: impl IntoIndex<'t>, offset: impl IntoIndex<'t>) -> Value<'t, T> {
        let (place, at) = self.place(bank, offset, Touch::Read);
        self.trace().value(Op::Get { at: place, to: T::TYPE, mask: None }, &at)
    }

    /// Reads a value if `cond` holds, otherwise returns `other`.
    #[track_caller]
    pub fn get_if<T: Element>(
        &self,
        cond: impl IntoValue<'t, bool>,
        bank: impl IntoIndex<'t>,
        offset: impl IntoIndex<'t>,
        other: impl IntoValue<'t, T>,
    ) -> Value<'t, T> {
        let (place, at) = self.place(bank, offset, Touch::ReadIf);
        let mask = Some(Mask { cond: cond.into_ir(self.trace(), &at), other: other.into_ir(self.trace(), &at) });
        self.trace().value(Op::Get { at: place, to: T::TYPE, mask }, &at)
    }

    /// Writes packet number `index` (16 bytes) of a bank: 8 bytes of data that carry their flag, never 0. Only in an
    /// `each`.
    #[track_caller]
    pub fn packet_put(
        &self,
        bank: impl IntoIndex<'t>,
        index: impl IntoIndex<'t>,
        x: impl IntoValue<'t, u64>,
        flag: impl IntoValue<'t, u32>,
    ) {
        let (place, at) = self.place(bank, index, Touch::Write);
        let trace = self.trace();
        let (x, flag) = (x.into_ir(trace, &at), flag.into_ir(trace, &at));
        if trace.only_in_each("packet_put", &at) {
            let flag = trace.uniform("the flag of a packet", flag, &at);
            trace.emit(Op::PacketPut { at: place, x, flag }, &at);
        }
    }

    /// Waits until packet number `index` of a bank carries `flag` and returns its data. Only in an `each`.
    #[track_caller]
    pub fn packet_get(
        &self,
        bank: impl IntoIndex<'t>,
        index: impl IntoIndex<'t>,
        flag: impl IntoValue<'t, u32>,
    ) -> Value<'t, u64> {
        let (place, at) = self.place(bank, index, Touch::Read);
        let trace = self.trace();
        let flag = flag.into_ir(trace, &at);
        if !trace.only_in_each("packet_get", &at) {
            return Value::new(trace, trace.constant(Type::U64, 0, &at));
        }
        let flag = trace.uniform("the flag of a packet", flag, &at);
        trace.value(Op::PacketGet { at: place, flag }, &at)
    }

    #[track_caller]
    fn place(&self, bank: impl IntoIndex<'t>, index: impl IntoIndex<'t>, touch: Touch) -> (Place, SourceLine) {
        let at = SourceLine::caller();
        (self.bytes.bank(bank).place(index, touch, &at), at)
    }

    fn trace(&self) -> &'t Trace {
        self.bytes.view.trace
    }
}

/// Signal slots in several banks, one per peer.
#[derive(Clone, Copy)]
pub struct Slots<'t> {
    trace: &'t Trace,
    param: ParamId,
    banks: usize,
    brand: Brand<'t>,
}

impl<'t> Slots<'t> {
    pub(super) fn new(trace: &'t Trace, param: ParamId, banks: usize) -> Self {
        Slots { trace, param, banks, brand: PhantomData }
    }

    /// Slot `index` of a bank; both are uniform.
    #[track_caller]
    pub fn slot(&self, bank: impl IntoIndex<'t>, index: impl IntoIndex<'t>) -> Slot<'t> {
        let (trace, at) = (self.trace, SourceLine::caller());
        let bank = uniform_bank(trace, self.banks, bank, &at);
        let index = Known::uniform(trace, "the index of a slot", index, &at).ir(trace, &at);
        Slot { slot: ir::Slot { slots: self.param, bank, index }, brand: PhantomData }
    }
}

/// One signal slot: a u64 counter that only grows and has one writer.
#[derive(Clone, Copy)]
pub struct Slot<'t> {
    slot: ir::Slot,
    brand: Brand<'t>,
}

/// A descriptor queue to a network proxy.
#[derive(Clone, Copy)]
pub struct Queue<'t> {
    param: ParamId,
    brand: Brand<'t>,
}

impl<'t> Queue<'t> {
    pub(super) fn new(_: &'t Trace, param: ParamId) -> Self {
        Queue { param, brand: PhantomData }
    }
}

/// Signals, bulk copies and posts. None of them may appear in an `each`.
impl<'t> RoleCtx<'t> {
    /// Sets the slot to `x` after all earlier effects of this role copy are visible to observers of the slot (release,
    /// system scope).
    #[track_caller]
    pub fn signal(&self, slot: Slot<'t>, x: impl IntoIndex<'t>) {
        let at = SourceLine::caller();
        if let Some(x) = self.count("signal", x, &at) {
            self.trace.emit(Op::Signal { slot: slot.slot, x }, &at);
        }
    }

    /// Sets the slot to `x` after this role copy's earlier reads are done; publishes no data.
    #[track_caller]
    pub fn signal_credit(&self, slot: Slot<'t>, x: impl IntoIndex<'t>) {
        let at = SourceLine::caller();
        if let Some(x) = self.count("signal_credit", x, &at) {
            self.trace.emit(Op::SignalCredit { slot: slot.slot, x }, &at);
        }
    }

    /// Returns when the slot is at least `x` (acquire, system scope, for the whole role copy).
    #[track_caller]
    pub fn wait(&self, slot: Slot<'t>, x: impl IntoIndex<'t>) {
        let at = SourceLine::caller();
        if let Some(x) = self.count("wait", x, &at) {
            self.trace.emit(Op::Wait { slot: slot.slot, x }, &at);
        }
    }

    /// True if the slot is at least `x` now (acquire if so).
    #[track_caller]
    pub fn test(&self, slot: Slot<'t>, x: impl IntoIndex<'t>) -> Value<'t, bool> {
        let at = SourceLine::caller();
        match self.count("test", x, &at) {
            Some(x) => self.trace.value(Op::Test { slot: slot.slot, x }, &at),
            None => Value::new(self.trace, self.trace.constant(Type::Bool, 0, &at)),
        }
    }

    /// Barrier of the role copy, for code between uniform accesses; an `each` ends with one by itself.
    #[track_caller]
    pub fn barrier(&self) {
        self.effect("barrier", Op::Barrier);
    }

    /// Orders this role copy's earlier accesses before its later bulk copies.
    #[track_caller]
    pub fn proxy_fence(&self) {
        self.effect("proxy_fence", Op::ProxyFence);
    }

    /// Starts an asynchronous copy of `count` elements from the start of `src` to the start of `dst` (see
    /// [`View::part`]).
    #[track_caller]
    pub fn bulk_copy<T: Element>(&self, dst: View<'t, T>, src: View<'t, T>, count: impl IntoIndex<'t>) {
        let at = SourceLine::caller();
        let count = Known::uniform(self.trace, "the count of a bulk_copy", count, &at).ir(self.trace, &at);
        let (dst, src) = (dst.first(Touch::Write, &at), src.first(Touch::Read, &at));
        self.effect("bulk_copy", Op::BulkCopy { dst, src, count });
    }

    /// Waits until all but the last `pending` bulk copies of this role copy are done.
    #[track_caller]
    pub fn bulk_wait(&self, pending: u32, done: BulkDone) {
        self.effect("bulk_wait", Op::BulkWait { pending, done });
    }

    /// Asks the proxy to copy `bytes` bytes from the start of `src` into the peer's region at byte `dst`. A later
    /// [`post_signal`](Self::post_signal) to the same peer tells it.
    #[track_caller]
    pub fn post(
        &self,
        queue: Queue<'t>,
        peer: impl IntoIndex<'t>,
        src: View<'t, u8>,
        dst: impl IntoIndex<'t>,
        bytes: impl IntoIndex<'t>,
    ) {
        let (trace, at) = (self.trace, SourceLine::caller());
        let peer = Known::uniform(trace, "the peer of a post", peer, &at).ir(trace, &at);
        let span = Some(self.posted(src, dst, bytes, &at));
        self.effect("post", Op::Post { queue: queue.param, peer, span, notice: None });
    }

    /// Asks the proxy to copy all `spans` to the peer, up to [`MAX_PARTS`], and to set slot `slot` of the peer to `x`
    /// when all of them have arrived.
    #[track_caller]
    pub fn deliver(
        &self,
        queue: Queue<'t>,
        peer: impl IntoIndex<'t>,
        spans: &[(View<'t, u8>, Value<'t, i64>, Value<'t, i64>)],
        slot: impl IntoIndex<'t>,
        x: impl IntoIndex<'t>,
    ) {
        let (trace, at) = (self.trace, SourceLine::caller());
        if spans.is_empty() || spans.len() > usize::from(MAX_PARTS) {
            let what = "the number of spans of a delivery";
            let max = usize::from(MAX_PARTS);
            return trace.report(&at, MisuseKind::Length { what, is: spans.len(), must: spans.len().clamp(1, max) });
        }
        let peer = Known::uniform(trace, "the peer of a delivery", peer, &at).ir(trace, &at);
        let slot = Known::uniform(trace, "the index of a slot", slot, &at).ir(trace, &at);
        let Some(x) = self.count("deliver", x, &at) else { return };
        let notice = Some(Notice { slot, x, parts: spans.len() as u8, kind: NoticeKind::Data });
        for &(src, dst, bytes) in spans {
            let span = Some(self.posted(src, dst, bytes, &at));
            trace.emit(Op::Post { queue: queue.param, peer, span, notice }, &at);
        }
    }

    /// Asks the proxy to set slot `slot` of the peer to `x` after the data of earlier posts to it.
    #[track_caller]
    pub fn post_signal(
        &self,
        queue: Queue<'t>,
        peer: impl IntoIndex<'t>,
        slot: impl IntoIndex<'t>,
        x: impl IntoIndex<'t>,
    ) {
        self.notify("post_signal", (queue, NoticeKind::Data), peer, slot, x, &SourceLine::caller());
    }

    /// Asks the proxy to set slot `slot` of the peer to `x` after this role copy's earlier reads are done. It publishes
    /// no data, and waits for no earlier post.
    #[track_caller]
    pub fn post_credit(
        &self,
        queue: Queue<'t>,
        peer: impl IntoIndex<'t>,
        slot: impl IntoIndex<'t>,
        x: impl IntoIndex<'t>,
    ) {
        self.notify("post_credit", (queue, NoticeKind::Credit), peer, slot, x, &SourceLine::caller());
    }

    /// Asks the proxy to set slot `slot` of *this* rank to `x` after the bytes of all earlier posts to the peer have
    /// been read. It publishes no data. A role that waits for it may then overwrite what it posted:
    ///
    /// ```
    /// use tilewire::ir::Access;
    /// use tilewire::{Memory, kernel};
    /// let (ring, input, own) = (Memory::zeroed(64), Memory::zeroed(4096), Memory::zeroed(128));
    /// let traced = kernel("lent", |k| {
    ///     let (posts, sent) = (k.queue("posts", &ring), k.slots("sent", &[own.clone()], 128));
    ///     let input = k.buffer::<u8>("input", &[input.clone()], Access::In).bank(0);
    ///     k.main(|r| {
    ///         // 4 KiB to rank 1, where slot 7 takes the value 1.
    ///         r.deliver(posts, 1, &[(input, r.constant(0i64), r.constant(4096i64))], 7, 1);
    ///         // Slot 0 of this rank takes the value 1 when the input has been read.
    ///         r.post_flush(posts, 1, 0, 1);
    ///         r.wait(sent.slot(0, 0), 1);
    ///     });
    /// })?;
    /// assert!(traced.kernel.to_string().contains("post_flush"));
    /// # Ok::<(), tilewire::BuildError>(())
    /// ```
    #[track_caller]
    pub fn post_flush(
        &self,
        queue: Queue<'t>,
        peer: impl IntoIndex<'t>,
        slot: impl IntoIndex<'t>,
        x: impl IntoIndex<'t>,
    ) {
        self.notify("post_flush", (queue, NoticeKind::Flush), peer, slot, x, &SourceLine::caller());
    }

    fn notify(
        &self,
        what: &'static str,
        (queue, kind): (Queue<'t>, NoticeKind),
        peer: impl IntoIndex<'t>,
        slot: impl IntoIndex<'t>,
        x: impl IntoIndex<'t>,
        at: &SourceLine,
    ) {
        let trace = self.trace;
        let peer = Known::uniform(trace, "the peer of a notice", peer, at).ir(trace, at);
        let slot = Known::uniform(trace, "the index of a slot", slot, at).ir(trace, at);
        if let Some(x) = self.count(what, x, at) {
            let notice = Some(Notice { slot, x, parts: 1, kind });
            trace.emit(Op::Post { queue: queue.param, peer, span: None, notice }, at);
        }
    }

    fn posted(
        &self,
        src: View<'t, u8>,
        dst: impl IntoIndex<'t>,
        bytes: impl IntoIndex<'t>,
        at: &SourceLine,
    ) -> PostSpan {
        let dst = Known::uniform(self.trace, "the destination of a post", dst, at).ir(self.trace, at);
        let bytes = Known::uniform(self.trace, "the byte count of a post", bytes, at).ir(self.trace, at);
        PostSpan { src: src.first(Touch::Read, at), dst, bytes }
    }

    /// A signal value: uniform, `u64`. `None` inside an `each`, where signals are not allowed.
    fn count(&self, what: &'static str, x: impl IntoIndex<'t>, at: &SourceLine) -> Option<ir::Value> {
        if !self.trace.not_in_each(what, at) {
            return None;
        }
        let x = x.into_index(self.trace, Type::U64, at);
        Some(self.trace.uniform("a signal value", x, at))
    }

    #[track_caller]
    fn effect(&self, what: &'static str, op: Op) {
        let at = SourceLine::caller();
        if self.trace.not_in_each(what, &at) {
            self.trace.emit(op, &at);
        }
    }
}

/// `None` for the only bank of a parameter.
fn uniform_bank<'t>(trace: &'t Trace, banks: usize, bank: impl IntoIndex<'t>, at: &SourceLine) -> Option<ir::Value> {
    let number = bank.number();
    if let Some(index) = number.filter(|n| !(0..banks as i128).contains(n)) {
        trace.report(at, MisuseKind::OutOfBounds { index, len: banks });
    }
    if number == Some(0) && banks == 1 {
        return None;
    }
    Some(Known::uniform(trace, "a bank", bank, at).ir(trace, at))
}
