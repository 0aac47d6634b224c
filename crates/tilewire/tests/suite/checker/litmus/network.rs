//! Network puts are ordered by their signal, not by each other.

use crate::checker::kinds;
use tilewire::{Memory, Tensor, kernel};

#[test]
fn network_puts_are_ordered_by_their_signal_only() {
    // A put is visible after its signal. A second put after that signal is not. The source is in use until a credit
    // says otherwise.
    for (reuse, ok) in [("credited", true), ("at once", false)] {
        let (ring, credits) = ([Memory::zeroed(64), Memory::zeroed(64)], Memory::zeroed(128));
        let (region, slots, source) = (Memory::zeroed(64), Memory::zeroed(128), Memory::zeroed(64));
        let out = Tensor::<u64>::zeros(2);
        let send = kernel("send", |k| {
            let source = k.region("source", std::slice::from_ref(&source));
            let (queue, credit) = (k.queue("wire", &ring[0]), k.slots("credit", std::slice::from_ref(&credits), 128));
            k.main(|r| {
                for step in 1..=2i64 {
                    if step == 2 && reuse == "credited" {
                        r.wait(credit.slot(0, 0), 1);
                    }
                    source.put(0, 0, step as u64);
                    r.post(queue, 1, source.bank(0), 0, 8);
                    r.post_signal(queue, 1, 0, step);
                }
            });
        });
        let receive = kernel("receive", |k| {
            let (region, out) = (k.region("region", std::slice::from_ref(&region)), k.output(&out));
            let (tail, queue) = (k.slots("tail", std::slice::from_ref(&slots), 128), k.queue("wire", &ring[1]));
            k.main(|r| {
                for step in 1..=2i64 {
                    r.wait(tail.slot(0, 0), step);
                    out.store(step - 1, region.get::<u64>(0, 0));
                    r.post_signal(queue, 0, 0, step);
                }
            });
        });
        let (send, receive) = (send.unwrap(), receive.unwrap());
        let mut plan = crate::checker::plan(&[vec![send, receive]]);
        plan.route(&ring[0], 1, &region, &slots, 128).route(&ring[1], 0, &source, &credits, 128);
        let report = plan.verify(&Default::default());
        assert!(report.faults.iter().all(|f| f.fault.kind() != "error"), "{report}");
        let races = kinds(&report).contains(&"race");
        assert_eq!(races, !ok, "{reuse}: {report}");
    }
}
