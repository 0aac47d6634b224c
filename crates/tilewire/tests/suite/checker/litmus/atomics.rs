//! Atomics release and acquire as they state. A program that uses a result leaves the monotone fragment.

use super::Shared;
use crate::checker::check;
use tilewire::ir::{Order, Scope};
use tilewire::{Memory, Tensor, kernel};

#[test]
fn atomics_order_by_release_and_acquire_and_are_sampled() {
    for (order, ok) in [(Order::AcqRel, true), (Order::Relaxed, false)] {
        let s = Shared::new();
        let count = Memory::zeroed(8);
        let rank = |at: i64| {
            let out = Tensor::<u64>::zeros(2);
            let traced = kernel("last one reads", |k| {
                let bytes = k.region("bytes", std::slice::from_ref(&s.bytes));
                let count = k.buffer::<u32>("count", std::slice::from_ref(&count), tilewire::ir::Access::InOut);
                let out = k.output(&out);
                k.main(|r| {
                    bytes.put(0, at * 8, 1u64);
                    let before = count.bank(0).atomic_add(0, 1u32, order, Scope::System);
                    r.if_(before.eq(1), || out.store(0, bytes.get::<u64>(0, (1 - at) * 8)));
                });
            });
            traced.unwrap()
        };
        let report = check(&[vec![rank(0), rank(1)]]);
        assert!(!report.is_decided(), "{report}");
        assert_eq!(report.is_clean(), ok, "{report}");
    }
}
