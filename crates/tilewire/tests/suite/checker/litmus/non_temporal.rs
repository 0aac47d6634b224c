//! Non-temporal stores go around the cache, and the hardware orders them weakly. The language has none: an engine may
//! use them for a large `each`, and fences before any op that publishes. So the model has no row for them, and a
//! message large enough to be streamed is judged like any other.

use crate::checker::{check, clean, expect};
use tilewire::vm::{Settings, StorePolicy};
use tilewire::{Memory, Prepared, Tensor, Traced, kernel};

/// The number of elements. They have as many bytes as the engine needs to stream, if it is told to stream early.
const LEN: usize = 64 << 10;

struct Streamed {
    send: Traced,
    receive: Traced,
    out: Tensor<f32>,
    /// The lines of the store and of the load.
    lines: [u32; 2],
}

/// Data by plain stores of whole cache lines, then a signal. The receiver waits for it or does not.
fn streamed(waits: bool) -> Streamed {
    let (bytes, slots) = (Memory::zeroed(LEN * 4), Memory::zeroed(128));
    let (x, out) = (Tensor::from_fn(LEN, |i| i as f32), Tensor::<f32>::zeros(LEN));
    let one = std::slice::from_ref::<Memory>;
    let put = line!() + 6;
    let send = kernel("send", |k| {
        let (x, there) = (k.input(&x), k.region("there", one(&bytes)));
        let done = k.slots("done", one(&slots), 128);
        k.main(|r| {
            // With arithmetic. The engine writes results straight to their destination.
            r.each(LEN, |i| there.put(0, i * 4, x.load(i) * 2.0));
            r.signal(done.slot(0, 0), 1);
        });
    });
    let get = line!() + 8;
    let receive = kernel("receive", |k| {
        let (out, here) = (k.output(&out), k.region("here", one(&bytes)));
        let done = k.slots("done", one(&slots), 128);
        k.main(|r| {
            if waits {
                r.wait(done.slot(0, 0), 1);
            }
            r.each(LEN, |i| out.store(i, here.get::<f32>(0, i * 4)));
            r.wait(done.slot(0, 0), 1);
        });
    });
    Streamed { send: send.unwrap(), receive: receive.unwrap(), out, lines: [put, get] }
}

#[test]
fn a_signal_publishes_what_was_streamed() {
    let Streamed { send, receive, out, .. } = streamed(true);
    clean(&check(&[vec![send.clone(), receive.clone()]]));
    // The engine, told to stream as much as it can, agrees with the model.
    let settings = Settings { stores: StorePolicy { from: 1, ..StorePolicy::default() }, ..Settings::default() };
    for traced in [&send, &receive] {
        Prepared::with(&traced.kernel, &traced.args, settings.clone()).unwrap().run().unwrap();
    }
    assert!((0..LEN).all(|i| out.get(i) == i as f32 * 2.0));
}

#[test]
fn without_the_wait_it_is_a_race() {
    let Streamed { send, receive, lines, .. } = streamed(false);
    let report = check(&[vec![send, receive]]);
    expect(&report, "race", &lines);
    assert!(report.is_decided(), "{report}");
}
