//! A host that flushes denormals or rounds in another way changes no result.
#![cfg(target_arch = "x86_64")]

use crate::engine_launch::{prepared, slots};
use tilewire::{F16, Tensor, kernel};

/// Flush-to-zero, denormals-are-zero, and rounding towards zero.
const STRANGE: u32 = 0x8000 | 0x0040 | 0x6000;

fn control_word() -> u32 {
    let mut word = 0u32;
    // SAFETY: stores the control word to a local; every x86-64 has the instruction.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut word, options(nostack, preserves_flags)) };
    word
}

fn set_control_word(word: u32) {
    // SAFETY: only rounding and denormal bits differ from what was read, and `Strange` sets them back.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &word, options(nostack, preserves_flags)) };
}

/// While it lives, this thread's arithmetic has these settings.
struct Strange(u32);

impl Strange {
    fn new() -> Strange {
        let before = control_word();
        set_control_word(before | STRANGE);
        Strange(before)
    }
}

impl Drop for Strange {
    fn drop(&mut self) {
        set_control_word(self.0);
    }
}

fn results(blocks: usize, strange_launch: bool, strange_build: bool) -> (Vec<u32>, Vec<u32>, Vec<u16>) {
    let n = 300;
    let x = Tensor::from_fn(blocks * n, |i| f32::from_bits(0x0040_0000 + 77 * i as u32));
    let (y, constants) = (Tensor::<f32>::zeros(blocks * n), Tensor::<f32>::zeros(blocks * 4));
    let (half, (_, bank)) = (Tensor::<F16>::zeros(blocks * n), slots(blocks));
    let _strange = strange_build.then(Strange::new);
    let traced = kernel("denormals", |k| {
        k.blocks(blocks as u32);
        let (x, y, constants, half) = (k.input(&x), k.output(&y), k.output(&constants), k.output(&half));
        let flags = k.slots("flags", &bank, 8);
        k.main(|r| {
            let first = r.block() * n as i64;
            r.each(n, |i| {
                let x = x.load(first + i);
                y.store(first + i, x * 0.5 + x / 3.0);
                half.store(first + i, (x * 1.0e34).cast::<F16>());
            });
            // Constants, which the simplifier may compute when the kernel is prepared.
            let tiny = r.constant(f32::MIN_POSITIVE);
            let at = r.block() * 4;
            constants.store(at, tiny * 0.25);
            constants.store(at + 1, r.constant(1.0f32) / 3.0 * 7.0 + tiny);
            constants.store(at + 2, (tiny * 0.5).sqrt());
            constants.store(at + 3, x.load(first) * 0.5);
            r.signal(flags.slot(0, r.block()), 1);
            r.wait(flags.slot(0, (r.block() + 1) % blocks as i64), 1);
        });
    })
    .expect("traces");
    let mut op = prepared(&traced);
    let _also = strange_launch.then(Strange::new);
    let before = control_word() & STRANGE;
    op.run().expect("runs");
    assert_eq!(control_word() & STRANGE, before, "the launch gives the control word back");
    drop((_also, _strange));
    let bits = |t: &Tensor<f32>| t.to_vec().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    (bits(&y), bits(&constants), half.to_vec().into_iter().map(|h| h.to_bits()).collect())
}

#[test]
fn a_host_that_flushes_denormals_changes_no_launch() {
    for blocks in [1, 8] {
        let expected = results(blocks, false, false);
        assert!(expected.0.iter().any(|bits| bits & 0x7f80_0000 == 0 && bits & 0x7f_ffff != 0), "denormals are made");
        for _ in 0..10 {
            assert!(results(blocks, true, false) == expected, "{blocks} blocks");
        }
    }
}

#[test]
fn a_host_that_flushes_denormals_changes_no_preparation() {
    let expected = results(1, false, false);
    assert_eq!(expected.1[0], (f32::MIN_POSITIVE * 0.25).to_bits());
    let got = results(1, false, true);
    assert_eq!(got.1, expected.1, "constants folded by the simplifier");
    assert!(got == expected);
}
