//! A launch of the CPU engine: what a prepared kernel keeps, which roles run side by side, and how little an unusual
//! state of the host matters. `faults.rs` and `refusals.rs` cover errors, `roles.rs` roles and blocks, `posts.rs`
//! posts.

mod faults;
mod posts;
mod refusals;
mod roles;
mod rounding;
mod threads;

use std::time::Duration;
use tilewire::hook::Traced;
use tilewire::vm::{Prepared, Settings};
use tilewire::{Memory, Scalar, Tensor, kernel};

/// Short enough for a test, and long enough for progress on a busy machine.
const SOON: Duration = Duration::from_millis(50);

fn impatient() -> Settings {
    Settings { deadline: Some(SOON), ..Settings::default() }
}

fn prepared(traced: &Traced) -> Prepared {
    Prepared::new(&traced.kernel, &traced.args).expect("the engine takes it")
}

/// `n` slots of 8 bytes that the host can read and raise.
fn slots(n: usize) -> (Tensor<u64>, [Memory; 1]) {
    let tensor = Tensor::<u64>::zeros(n);
    let memory = tensor.memory().clone();
    (tensor, [memory])
}

#[test]
fn a_thousand_launches_see_the_scalars_of_their_time_and_the_memory_of_the_last() {
    let (step, sum, count) = (Scalar::new(0i64), Tensor::<i64>::zeros(300), Tensor::<u64>::zeros(1));
    let traced = kernel("sum", |k| {
        let (sum, count) = (k.inout(&sum), k.inout(&count));
        k.main(|r| {
            r.each(sum.len(), |i| sum.store(i, sum.load(i) + r.scalar(&step) * i));
            count.store(0, count.load(0) + 1);
        });
    })
    .expect("traces");
    let mut op = prepared(&traced);
    let mut expected = 0;
    for turn in 1..=1000 {
        step.set(turn * 7 - 3000);
        expected += step.get();
        op.run().expect("runs");
        assert_eq!(count.get(0), turn as u64);
    }
    assert_eq!(sum.to_vec(), (0..300).map(|i| i * expected).collect::<Vec<i64>>());
}

#[test]
fn a_thousand_launches_of_several_blocks_leave_nothing_out() {
    let (step, sum) = (Scalar::new(0u32), Tensor::<u32>::zeros(5 * 64));
    let traced = kernel("sum", |k| {
        k.blocks(5);
        let sum = k.inout(&sum);
        k.main(|r| {
            let first = r.block() * 64;
            r.each(64, |i| sum.store(first + i, sum.load(first + i) + &step));
        });
    })
    .expect("traces");
    let mut op = prepared(&traced);
    for turn in 1..=1000 {
        step.set(turn);
        op.run().expect("runs");
        assert_eq!(sum.to_vec(), [turn * (turn + 1) / 2; 5 * 64]);
    }
}

#[test]
fn memory_lives_as_long_as_the_prepared_kernel() {
    let y = Tensor::<f32>::zeros(5000);
    let mut op = {
        let x = Tensor::from_fn(5000, |i| i as f32);
        let factor = Scalar::new(3.0f32);
        let traced = kernel("late", |k| {
            let (x, y) = (k.input(&x), k.output(&y));
            k.main(|r| r.each(5000, |i| y.store(i, x.load(i) * &factor)));
        })
        .expect("traces");
        prepared(&traced)
    };
    // If anything was freed, it would be handed out again here.
    let _noise: Vec<_> = (0..16).map(|_| Tensor::<f32>::from_fn(5000, |_| -1.0)).collect();
    op.run().expect("runs");
    assert_eq!(y.to_vec(), (0..5000).map(|i| i as f32 * 3.0).collect::<Vec<_>>());
}

#[test]
fn tensors_of_no_elements_are_arguments_like_others() {
    let (x, y) = (Tensor::<f32>::zeros(0), Tensor::<f32>::zeros(0));
    for blocks in [1, 3] {
        let traced = kernel("nothing", |k| {
            k.blocks(blocks);
            let (x, y) = (k.input(&x), k.output(&y));
            k.main(|r| r.each(x.len(), |i| y.store(i, x.load(i) + 1.0)));
        })
        .expect("traces");
        let mut op = prepared(&traced);
        op.run().expect("runs");
        op.run().expect("runs again");
    }
}

#[test]
fn threads_launch_at_the_same_time_each_with_its_own_tensors() {
    let worker = |seed: u64| {
        let (x, y) = (Tensor::from_fn(8 * 500, |i| seed * 1_000_000 + i as u64), Tensor::<u64>::zeros(8 * 500));
        let (flags, bank) = slots(8);
        let epoch = Scalar::new(0u64);
        let traced = kernel("rank", |k| {
            k.blocks(8);
            let (x, y, flags) = (k.input(&x), k.output(&y), k.slots("flags", &bank, 8));
            k.role("copy", 1).run(|r| {
                let first = r.block() * 500;
                r.each(500, |i| y.store(first + i, x.load(first + i) + &epoch));
                r.signal(flags.slot(0, r.block()), &epoch);
            });
            k.role("next", 1).run(|r| r.wait(flags.slot(0, (r.block() + 1) % 8), &epoch));
        })
        .expect("traces");
        let mut op = prepared(&traced);
        for turn in 1..=100 {
            epoch.set(turn);
            op.run().expect("runs");
            let expected = (0..8 * 500).map(|i| seed * 1_000_000 + i + turn);
            assert!(y.to_vec().into_iter().eq(expected), "thread {seed}, turn {turn}");
            assert_eq!(flags.to_vec(), [turn; 8]);
        }
    };
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || worker(seed));
        }
    });
}
