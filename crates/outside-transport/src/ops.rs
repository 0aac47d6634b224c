//! What kernels do to reach a peer through an outbox.

use tilewire::hook::{Region, RoleCtx};
use tilewire::ir::scalar::Element;
use tilewire::schedule::{LoadStore, Ops, Span, Word};
use tilewire::{Value, View};

/// The ops of one kernel and one peer. Signals and packets go over the wire as they are; bytes wait in the outbox.
#[derive(Clone, Copy)]
pub struct Outbox<'t> {
    wire: LoadStore<'t>,
    outbox: Region<'t>,
}

impl<'t> Outbox<'t> {
    pub(crate) fn new(wire: LoadStore<'t>, outbox: Region<'t>) -> Self {
        Outbox { wire, outbox }
    }
}

impl<'t> Ops<'t> for Outbox<'t> {
    #[track_caller]
    fn put<T: Element>(&self, offset: Value<'t, i64>, x: Value<'t, T>) {
        self.outbox.put(0, offset, x);
    }

    #[track_caller]
    fn put_if<T: Element>(&self, condition: Value<'t, bool>, offset: Value<'t, i64>, x: Value<'t, T>) {
        self.outbox.put_if(condition, 0, offset, x);
    }

    #[track_caller]
    fn get<T: Element>(&self, offset: Value<'t, i64>) -> Value<'t, T> {
        self.wire.get(offset)
    }

    #[track_caller]
    fn deliver(&self, r: &RoleCtx<'t>, span: Span<'t>, word: Word<'t>, x: Value<'t, u64>) {
        r.each(span.bytes, |i| {
            let at = span.offset + i;
            self.wire.put::<u8>(at, self.outbox.get(0, at));
        });
        self.wire.deliver(r, span, word, x);
    }

    #[track_caller]
    fn signal(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        self.wire.signal(r, word, x);
    }

    #[track_caller]
    fn credit(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        self.wire.credit(r, word, x);
    }

    #[track_caller]
    fn wait(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        self.wire.wait(r, word, x);
    }

    #[track_caller]
    fn packet_put(&self, index: Value<'t, i64>, x: Value<'t, u64>, flag: Value<'t, u32>) {
        self.wire.packet_put(index, x, flag);
    }

    #[track_caller]
    fn packet_get(&self, index: Value<'t, i64>, flag: Value<'t, u32>) -> Value<'t, u64> {
        self.wire.packet_get(index, flag)
    }

    #[track_caller]
    fn packet_clear(&self, index: Value<'t, i64>) {
        self.wire.packet_clear(index);
    }

    fn starts(&self) -> View<'t, u64> {
        self.wire.starts()
    }
}
