//! Litmus tests, one file for each behaviour. They show what the memory model allows and forbids, in programs of two to
//! four role copies over shared words.

mod atomics;
mod bulk;
mod credit_handoff;
mod cumulativity;
mod iriw;
mod load_buffering;
mod message_passing;
mod network;
mod non_temporal;
mod packet;
mod polling;
mod store_buffering;

use tilewire::hook::{Region, RoleCtx, Slots, View};
use tilewire::{Memory, Tensor, Traced, kernel};

/// The memory of litmus programs: bytes, slots, and an output for each rank.
pub struct Shared {
    pub bytes: Memory,
    pub slots: Memory,
}

impl Shared {
    pub fn new() -> Shared {
        Shared { bytes: Memory::zeroed(256), slots: Memory::zeroed(8 * 128) }
    }

    /// A rank with one role.
    pub fn rank(&self, body: impl for<'t> Fn(&RoleCtx<'t>, Region<'t>, Slots<'t>, View<'t, u64>)) -> Traced {
        let out = Tensor::<u64>::zeros(4);
        let traced = kernel("litmus", |k| {
            let region = k.region("bytes", std::slice::from_ref(&self.bytes));
            let slots = k.slots("slots", std::slice::from_ref(&self.slots), 128);
            let out = k.output(&out).named("out");
            k.main(|r| body(r, region, slots, out));
        });
        traced.unwrap()
    }
}
