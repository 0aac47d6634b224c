//! What kernels do to reach a peer through an outbox.

use tilewire::hook::{AnyValue, Region, RoleCtx};
use tilewire::ir::Type;
use tilewire::schedule::{LoadStore, Reach, Spans, Word};
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

impl<'t> Reach<'t> for Outbox<'t> {
    fn put(&self, offset: Value<'t, i64>, x: AnyValue<'t>) {
        self.outbox.put_any(0, offset, x);
    }

    fn put_if(&self, condition: Value<'t, bool>, offset: Value<'t, i64>, x: AnyValue<'t>) {
        self.outbox.put_any_if(condition, 0, offset, x);
    }

    fn get(&self, offset: Value<'t, i64>, ty: Type) -> AnyValue<'t> {
        self.wire.get(offset, ty)
    }

    fn deliver(&self, r: &RoleCtx<'t>, spans: Spans<'_, 't>, word: Word<'t>, x: Value<'t, u64>) {
        for span in spans() {
            r.each(span.bytes, |i| {
                let at = span.offset + i;
                self.wire.put(at, self.outbox.get_any(0, at, Type::U8));
            });
        }
        self.wire.deliver(r, spans, word, x);
    }

    fn signal(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        self.wire.signal(r, word, x);
    }

    fn credit(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        self.wire.credit(r, word, x);
    }

    fn wait(&self, r: &RoleCtx<'t>, word: Word<'t>, x: Value<'t, u64>) {
        self.wire.wait(r, word, x);
    }

    fn packet_put(&self, index: Value<'t, i64>, x: Value<'t, u64>, flag: Value<'t, u32>) {
        self.wire.packet_put(index, x, flag);
    }

    fn packet_get(&self, index: Value<'t, i64>, flag: Value<'t, u32>) -> Value<'t, u64> {
        self.wire.packet_get(index, flag)
    }

    fn packet_clear(&self, index: Value<'t, i64>) {
        self.wire.packet_clear(index);
    }

    fn starts(&self) -> View<'t, u64> {
        self.wire.starts()
    }

    fn is_dense(&self) -> bool {
        true // so that the spans of a delivery are what was put
    }
}
